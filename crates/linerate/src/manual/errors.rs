//! Errors: what can go wrong, who is told, and when.
//!
//! Three things are kept apart:
//! - **A verb that can not be done** returns a typed error: [`Error`](crate::Error) for remote handles, one enum per
//!   operation inline ([`ConnectError`](crate::inline::ConnectError), [`ListenError`](crate::inline::ListenError) ...). Each has its Linux number
//!   (`errno()`); converted to [`std::io::Error`] it has the kind that the standard library gives to that number.
//! - **A connection that died** (reset, timed out, unreachable) tells each direction: the writer at once; the reader after
//!   it has read everything that arrived before.
//! - **A packet that died** is nobody's error: it is counted under its [`DropReason`](crate::inline::DropReason) in
//!   [`Stats::mibs`](crate::Stats).
//!
//! ```
//! use std::io::ErrorKind;
//! use linerate::{Errno, Error, Stack, TcpStream};
//!
//! let stack = Stack::builder().start()?;
//! let e = TcpStream::connect(&stack, "127.0.0.1:80").expect_err("nobody listens");
//! assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
//! // The typed error is inside.
//! assert_eq!(e.downcast::<Error>()?, Error::Socket(Errno::ECONNREFUSED));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The end of a stream (`Ok(0)`) is only ever the peer's FIN. Everything else is an error: a peer's reset
//! (`ConnectionReset`), a [`Stack`](crate::Stack) that was dropped (`ConnectionAborted`, [`Error::StackGone`](crate::Error::StackGone)).
//!
//! Closing follows Linux. Dropping a handle sends FIN after what was written, and the stack delivers it without the handle;
//! with unread bytes left it is a reset, since the peer must learn that they were not read. A peer never makes the stack
//! panic; a panic in this crate is a bug.
