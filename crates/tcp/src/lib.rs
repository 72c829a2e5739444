//! One TCP connection, sans-IO, as Linux does it.
//!
//! [`Conn`] is the whole of one connection: it is handed segments ([`Conn::rcv`]), time ([`Conn::on_timer`]) and the
//! application's verbs, and asked for segments ([`Conn::poll_xmit`]), deadlines ([`Conn::next_timer`]) and events
//! ([`Conn::poll_event`]). It owns no clock, no socket table and no IP: the `stack` crate does.
//!
//! Files are named as the kernel's, one mechanism each. The sender's half lives in `tx` and the files that work on it
//! (`output ack sack rtt rate recovery undo timer`), the receiver's half in `rx` (`input rcvq wnd delack`), the phases
//! before and after a connection in [`minisocks`].
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod ack;
mod close;
pub mod config;
pub mod conn;
pub mod cx;
mod delack;
mod ecn;
pub mod info;
mod input;
pub mod isn;
mod keepalive;
pub mod mem;
pub mod minisocks;
mod mtu;
mod output;
mod parts;
mod path;
pub mod ports;
mod quick;
mod rack;
mod rate;
mod rcvq;
mod recovery;
mod retransmit;
mod rtt;
mod rx;
#[cfg(test)]
mod rx_tests;
mod sack;
pub mod state;
mod synsent;
#[cfg(test)]
mod testing;
mod timer;
mod tlp;
mod tx;
#[cfg(test)]
mod tx_tests;
mod txq;
mod undo;
mod validate;
mod wnd;
mod write;

pub use config::{PathInfo, SockOpts, TcpConfig};
pub use conn::{CloseReason, Closing, Conn, Event, How, Isn, Negotiated, Opts, RecvError, SocketError};
pub use cx::{RxMeta, TcpCx};
pub use info::TcpInfo;
pub use mem::{MemAcct, MemGroup, MemLimits};
pub use minisocks::{Disposition, ReqSock, ReqTimer, TwSock, TwVerdict};
pub use output::SKB_ECT0;
pub use parts::Parts;
pub use path::{IcmpError, IcmpKind};
pub use quick::Quick;
pub use state::State;
pub use tx::{SendError, SendFlags};
