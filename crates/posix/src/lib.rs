//! Linux system-call semantics over an inline shard: descriptors, blocking calls, socket options, errno.
//!
//! ```text
//!   Call ──▶ Posix::call ──▶ Done(Ok(reply) | Err(errno))
//!                       └──▶ Blocked(token) ── Posix::poll(token) after every turn ──▶ Some(outcome)
//!   descriptors ─▶ files ─▶ sockets of the Shard, epoll instances, pipes
//! ```
//! [`Posix`] owns a [`linerate_stack::Shard`] and no thread: a call that would sleep is a resumable operation, so one
//! caller can stand for many threads, and time is an argument. What Linux decides in its socket layer (which errno, in
//! which order checks are made, what an option's value is rounded to) is decided here; what it decides in TCP is the
//! stack's. Used by the packetdrill runner, the packetdrill shared object and the C interface.
//!
//! Not here: signals (EPIPE never raises one), `fork`, files that are no sockets, epoll instances or pipes, urgent data,
//! the error queue, MSG_ZEROCOPY, ancillary data beyond TCP_INQ.

pub mod abi;
mod call;
mod epoll;
mod fd;
mod ops;
mod pipe;
mod poll;
mod posix;
mod recv;
mod send;
mod sock;
mod sockopt;
mod sockopt_ip;
mod sockopt_tcp;
mod tcp_info;
mod udp;

pub use call::{
    Addr, Call, CallState, Cmsg, Data, EpollEvent, Out, Outcome, PollFd, Received, RecvKind, Reply, Span, Token,
};
pub use posix::{Limits, Posix};
pub use tcp_info::TCP_INFO_BYTES;
