//! Wait modes: what a thread does when there is nothing to do.
//!
//! Two kinds of threads wait: the stack's, for packets, timers and applications; and yours, in a blocking verb. Both wait
//! in one of three ways ([`Wait`](crate::Wait)):
//!
//! | mode | does | costs | for |
//! |---|---|---|---|
//! | `Block` | sleeps at once | a wake-up, some tens of microseconds across cores | quiet services |
//! | `Spin` | polls, and now and then offers the core to others | a whole core | the last microsecond, on cores of your own |
//! | `Adaptive` (default) | polls for about the cost of a wake-up, then sleeps | at most twice the best | everything else |
//!
//! [`Builder::wait`](crate::Builder::wait) sets the stack's mode, and the mode its sockets start with;
//! [`ConnectOptions::wait`](crate::ConnectOptions), [`ListenOptions::wait`](crate::ListenOptions) and
//! [`TcpStream::set_wait`](crate::TcpStream::set_wait) set a socket's. With fewer cores than busy threads, `Spin` takes from
//! the very thread that it waits for. The other end of a TUN is a thread of the same machine, so a remote socket over one
//! keeps three threads busy: with two cores, let the application's side `Block`.
//!
//! **No wake-up is lost.** Each side announces that it will sleep, fences, looks once more, and only then sleeps; the other
//! publishes, fences, and then looks for the announcement. One of the two sees the other. An awake side costs its peer
//! no system call. The protocol is model-checked, and tested with writers that the window stops a million times.
//!
//! **Tasks.** `poll_*` verbs take a [`Context`](std::task::Context); the last waker registered for a direction is the one
//! that is woken. An executor needs nothing else:
//!
//! ```
//! use std::future::poll_fn;
//! use linerate::{Error, TcpStream};
//!
//! async fn write_all(stream: &mut TcpStream, mut data: &[u8]) -> Result<(), Error> {
//!     while !data.is_empty() {
//!         let n = poll_fn(|cx| stream.poll_write(cx, data)).await?;
//!         data = &data[n..];
//!     }
//!     Ok(())
//! }
//! # let _ = write_all;
//! ```
