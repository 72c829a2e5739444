//! The two directions of a connection, each for one thread at a time.
//!
//! A half is the engine's half (`linerate_stack::remote`) with a way to wait: mode, time limit, and the thread's parker.
//! Dropping the writing half ends its direction after what was written (FIN); dropping both closes the connection.
//! Limits: as those of [`crate::tcp`].

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use linerate_host::Wait;
use linerate_skb::Frag;
use linerate_stack::remote;

use crate::error::Error;
use crate::wait::block_on;

/// How a half waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) mode: Wait,
    pub(crate) limit: Option<Duration>,
}

/// The time limit of a blocking verb; zero would mean "never wait", which is what `try_*` is for.
fn checked(limit: Option<Duration>) -> io::Result<Option<Duration>> {
    match limit {
        Some(Duration::ZERO) => Err(io::Error::new(io::ErrorKind::InvalidInput, "the time limit is zero")),
        limit => Ok(limit),
    }
}

/// The reading direction of a [`TcpStream`](crate::TcpStream).
pub struct ReadHalf {
    pub(super) inner: remote::ReadHalf,
    pub(super) waiting: Waiting,
    pub(super) peer: SocketAddr,
}

impl ReadHalf {
    /// Copies up to `buf.len()` bytes out without waiting; `Ok(0)` is the end of the stream (or an empty `buf`).
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when nothing is there; after everything that came before was read, why the connection died.
    pub fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        self.inner.try_read(buf).map_err(Error::from)
    }

    /// Takes up to `max_bytes` as references to the pages they arrived in, without copying and without waiting. The
    /// fragments may be kept, and dropped on any thread; as long as they live, their pages are not used again, so keep
    /// them for less than it takes the peer to fill the receive pool. `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// As [`Self::try_read`].
    pub fn try_read_frags(&mut self, max_bytes: usize, out: &mut impl FnMut(Frag)) -> Result<usize, Error> {
        self.inner.try_read_frags(max_bytes, out).map_err(Error::from)
    }

    /// As [`Self::try_read`]; `Pending` after the waker of `cx` was registered (the last one registered is woken).
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<usize, Error>> {
        self.inner.poll_read(cx, buf).map_err(Error::from)
    }

    /// As [`Self::try_read_frags`]; `Pending` after the waker of `cx` was registered.
    pub fn poll_read_frags(
        &mut self,
        cx: &mut Context<'_>,
        max_bytes: usize,
        out: &mut impl FnMut(Frag),
    ) -> Poll<Result<usize, Error>> {
        self.inner.poll_read_frags(cx, max_bytes, out).map_err(Error::from)
    }

    /// As [`Self::try_read_frags`], blocking.
    ///
    /// # Errors
    /// As [`Self::try_read`]; [`Error::TimedOut`] instead of `WouldBlock`.
    pub fn read_frags(&mut self, max_bytes: usize, out: &mut impl FnMut(Frag)) -> Result<usize, Error> {
        let Waiting { mode, limit } = self.waiting;
        block_on(mode, limit, |cx| self.inner.poll_read_frags(cx, max_bytes, out))
    }

    /// The longest that a blocking read waits; `None` is without end.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.waiting.limit = checked(limit)?;
        Ok(())
    }

    /// How blocking reads wait.
    pub fn set_wait(&mut self, mode: Wait) {
        self.waiting.mode = mode;
    }

    /// The other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Bytes that reads copied.
    pub fn copied_bytes(&self) -> u64 {
        self.inner.copied_bytes()
    }
}

impl Read for ReadHalf {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Waiting { mode, limit } = self.waiting;
        Ok(block_on(mode, limit, |cx| self.inner.poll_read(cx, buf))?)
    }
}

impl fmt::Debug for ReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadHalf").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// The writing direction of a [`TcpStream`](crate::TcpStream).
pub struct WriteHalf {
    pub(super) inner: remote::WriteHalf,
    pub(super) waiting: Waiting,
    pub(super) peer: SocketAddr,
}

impl WriteHalf {
    /// Copies bytes into pages and hands them over, as many as there is room for, without waiting. They leave at once;
    /// there is nothing to flush.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is no room; else why nothing can be written any more.
    pub fn try_write(&mut self, data: &[u8]) -> Result<usize, Error> {
        self.inner.try_write(data).map_err(Error::from)
    }

    /// Hands a fragment over without copying and without waiting. Its page is used again when the last holder lets go,
    /// which includes the retransmit queue and, over a by-reference wire, the reader at the far end.
    ///
    /// # Errors
    /// As [`Self::try_write`], with the fragment. One longer than [`Self::free_bytes`] is refused until it fits.
    pub fn try_write_frag(&mut self, frag: Frag) -> Result<(), (Frag, Error)> {
        self.inner.try_write_frag(frag).map_err(|(frag, e)| (frag, Error::from(e)))
    }

    /// As [`Self::try_write`]; `Pending` after the waker of `cx` was registered (the last one registered is woken).
    pub fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize, Error>> {
        self.inner.poll_write(cx, data).map_err(Error::from)
    }

    /// Hands over as much of a fragment as there is room for, without copying, and returns how many bytes; what is left stays
    /// in `frag`. `Pending` after the waker of `cx` was registered.
    pub fn poll_write_frag(&mut self, cx: &mut Context<'_>, frag: &mut Option<Frag>) -> Poll<Result<usize, Error>> {
        self.inner.poll_write_frag(cx, frag).map_err(Error::from)
    }

    /// Hands over a whole fragment without copying, blocking: in pieces, as there is room.
    ///
    /// # Errors
    /// As [`Self::try_write`]; [`Error::TimedOut`] instead of `WouldBlock`. Then the peer may have a part of it.
    pub fn write_frag(&mut self, frag: Frag) -> Result<(), Error> {
        let Waiting { mode, limit } = self.waiting;
        let mut left = Some(frag);
        while left.is_some() {
            block_on(mode, limit, |cx| self.inner.poll_write_frag(cx, &mut left))?;
        }
        Ok(())
    }

    /// Bytes that the stack takes now.
    pub fn free_bytes(&self) -> usize {
        self.inner.snd_free()
    }

    /// Ends this direction: the peer reads the end of the stream after everything that was written. Idempotent.
    pub fn shutdown(&mut self) {
        self.inner.shutdown();
    }

    /// The longest that a blocking write waits; `None` is without end.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.waiting.limit = checked(limit)?;
        Ok(())
    }

    /// How blocking writes wait.
    pub fn set_wait(&mut self, mode: Wait) {
        self.waiting.mode = mode;
    }

    /// The other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Bytes that writes copied.
    pub fn copied_bytes(&self) -> u64 {
        self.inner.copied_bytes()
    }
}

impl Write for WriteHalf {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let Waiting { mode, limit } = self.waiting;
        Ok(block_on(mode, limit, |cx| self.inner.poll_write(cx, data))?)
    }
    /// Nothing is held back: what `write` took is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for WriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteHalf").field("peer", &self.peer).finish_non_exhaustive()
    }
}
