//! TCP sockets of a [`Stack`](crate::Stack), for any thread.
//!
//! ```text
//!   TcpListener --accept--> TcpStream --split--> ReadHalf + WriteHalf      all Send; each used by one thread at a time
//!   TcpStream::connect ----^
//! ```
//! Verbs come in three kinds with one meaning: blocking (`read`, `write`, `accept`, through [`std::io::Read`] and
//! [`std::io::Write`]), `try_*` (never waits: [`Error::WouldBlock`](crate::Error::WouldBlock)) and `poll_*` (as a task,
//! with a [`Context`](std::task::Context)). Bytes are copied on the calling thread, into and out of pages that cross to the stack by
//! reference; `try_write_frag` and `try_read_frags` do not copy at all.
//!
//! Limits: verbs take `&mut self`, because each direction is a queue with one end; use [`TcpStream::split`] for two
//! threads. Socket options are given when the socket is made ([`ConnectOptions`], [`ListenOptions`]).

mod halves;
mod listener;
mod stream;

pub use self::halves::{ReadHalf, WriteHalf};
pub use self::listener::{Incoming, ListenOptions, TcpListener};
pub use self::stream::{ConnectOptions, TcpStream};
