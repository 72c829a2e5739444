//! The stack of one core: shard, napi, IP, routes, demultiplexing, TCP and UDP sockets.
//!
//! A [`Shard`] is one core's whole stack. One thread uses it at a time; there are no locks inside. Its only door for
//! packets is [`Shard::turn`]: reclaim memory, poll the devices, merge, receive, run timers, transmit, ring doorbells.
//! Between turns the owner calls the verbs of its sockets (`write`, `read`, `accept` ...); what they cause leaves with
//! the next turn.
//!
//! ```text
//!   device rx -> napi (budget, gro) -> ip_in -> tcp_in  -> Conn::rcv -> rcvq   -> read
//!                                           -> udp      -> rcvq                -> recv_from
//!                                           -> icmp     -> reply, or error to a socket
//!   write -> Conn::poll_xmit -> ip_out (route, header) -> qdisc -> device tx (gso in software where it can not cut)
//! ```
//! On an Ethernet device `neigh` stands between `ip_out` and the qdisc, and between the device and GRO.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod addr_set;
pub mod config;
mod connect;
mod cookies;
pub mod core_state;
mod demux;
pub mod diag;
mod early;
pub mod errors;
pub mod frag;
pub mod icmp;
mod invariants;
pub mod ip_in;
pub mod ip_out;
pub mod link;
mod listen;
mod lookahead;
mod loopback;
mod mem;
pub mod napi;
pub mod neigh;
pub mod opts;
pub mod qdisc;
mod quick;
pub mod remote;
pub mod route;
pub mod shard;
pub mod sock;
pub mod stages;
pub mod steer;
mod sync;
pub mod tap;
mod tcp;
mod tcp_in;
mod tcp_out;
mod timers;
mod timewait;
pub mod udp;
mod udp_verbs;
pub mod upcall;
mod verbs;

#[cfg(test)]
mod testing;
#[cfg(all(test, not(loom)))]
mod tests;

pub use config::{AddrGen, DeviceConfig, Ipv6Config, LinkKind, NeighConfig, StackConfig};
pub use core_state::{Core, Memory, Mibs};
pub use diag::{DiagCursor, DiagFilter, DiagState, SockDiag};
pub use linerate_tcp::{How, MemGroup, MemLimits, RecvError, SendError, SendFlags, SockOpts, TcpInfo};
pub use link::{AddrError, Device, LOOPBACK, Links};
pub use neigh::{NeighInfo, NeighStats, Nud};
pub use opts::TcpOpt;
pub use route::{Route, RouteChangeError, RouteError, RouteInfo, RouteTable};
pub use shard::{Shard, Turn};
pub use sock::{Ready, SockId, SockKind};
pub use stages::{Stage, Stages};
pub use tcp::{BindOpts, Family};
pub use udp::UdpLayer;
