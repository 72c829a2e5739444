//! The engine without a thread: a [`Shard`] that the caller owns, turns and asks.
//!
//! A shard is one core's whole stack. [`Shard::turn`] is its only door for packets; between turns the verbs of sockets
//! act at once and never block. What a verb caused leaves with the next turn, or with [`Shard::flush`]. The loop of a
//! program is always the same:
//!
//! ```text
//!   turn(now, budget) -> next_ready()* -> verbs -> more? again : prepare_sleep() ? sleep until Turn::next : again
//! ```
//! Invariants: a [`SockId`] that outlived its socket is an error, never a panic or another socket; a socket stands in the
//! ready queue at most once; time that goes back counts as standing still.
//!
//! UDP is inline only in this version: `udp_bind`, `send_to` and `recv_from` of [`Shard`], with trains of datagrams
//! (`UDP_SEGMENT`, `UDP_GRO`) both ways. A running [`Stack`](crate::Stack) reaches them through
//! [`StackHandle::with_shard`](crate::StackHandle::with_shard).

pub use linerate_arch::Kernels;
pub use linerate_base::mib::{IcmpMib, IpMib, TcpMib, UdpMib};
pub use linerate_base::{DropCounters, DropReason, Errno, Instant};
pub use linerate_netdev::{IfIndex, Qstats};
pub use linerate_skb::{Frag, PagePool, PoolConfig};
pub use linerate_stack::config::GroMode;
pub use linerate_stack::errors::{AcceptError, BindError, ConnectError, ListenError, OptError, SockError, SocketError};
pub use linerate_stack::udp;
pub use linerate_stack::{
    AddrError, AddrGen, BindOpts, Core, Device, DeviceConfig, Family, How, Ipv6Config, LOOPBACK, LinkKind, Links,
    Memory, Mibs, NeighConfig, NeighInfo, NeighStats, Nud, Ready, RecvError, Route, RouteChangeError, RouteError,
    RouteInfo, SendError, SendFlags, Shard, SockId, SockKind, SockOpts, StackConfig, Stage, Stages, TcpInfo, Turn,
};
pub use linerate_tcp::TcpConfig;
pub use linerate_wire::Cidr;
