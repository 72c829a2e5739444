//! A TCP connection of a stack.
//!
//! [`TcpStream`] is both halves, the stack and the addresses. It is made by [`TcpStream::connect`] or by a listener.
//! Invariant: a `TcpStream` that the caller holds has completed its handshake, except one of
//! [`TcpStream::start_connect`], whose verbs say `WouldBlock` until then.
//! Limits: as those of [`crate::tcp`].

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};
use std::time::Duration;

use linerate_host::Wait;
use linerate_stack::remote::SockHandle;
use linerate_stack::{SockOpts, TcpInfo};

use super::halves::{ReadHalf, Waiting, WriteHalf};
use crate::error::Error;
use crate::stack::StackHandle;
use crate::wait::block_on;

/// What a connection attempt may be told.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Local address; port 0 chooses one. `None` chooses both.
    pub local: Option<SocketAddr>,
    /// The longest that the handshake may take. `None` leaves it to TCP: `tcp_syn_retries`, about 63 s.
    pub timeout: Option<Duration>,
    /// How the stream's blocking verbs wait. `None`: as the stack does.
    pub wait: Option<Wait>,
    /// Socket options: TCP_NODELAY, buffers, keepalive, congestion control ...
    pub socket: SockOpts,
}

/// A TCP connection between a [`Stack`](crate::Stack) and a peer. See [`crate::tcp`].
pub struct TcpStream {
    read: ReadHalf,
    write: WriteHalf,
    local: Option<SocketAddr>,
    accepted: bool,
    stack: StackHandle,
}

/// Tries every address that `addr` means; the last error counts.
fn each<T>(addr: impl ToSocketAddrs, mut f: impl FnMut(SocketAddr) -> Result<T, Error>) -> io::Result<T> {
    let mut last = None;
    for addr in addr.to_socket_addrs()? {
        match f(addr) {
            Ok(done) => return Ok(done),
            Err(e) => last = Some(e),
        }
    }
    Err(last.map_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to"), io::Error::from))
}

impl TcpStream {
    /// Connects and waits for the handshake. A name (rather than an address) is looked up by the *host's* resolver, and
    /// each of its addresses is tried.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, `NetworkUnreachable` ...; `ConnectionAborted` when the stack is gone.
    pub fn connect(stack: &impl AsRef<StackHandle>, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(stack, addr, &ConnectOptions::default())
    }

    /// As [`Self::connect`] with a time limit.
    ///
    /// # Errors
    /// As there; `TimedOut` after `timeout`.
    pub fn connect_timeout(stack: &impl AsRef<StackHandle>, addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let options = ConnectOptions { timeout: Some(timeout), ..ConnectOptions::default() };
        Self::connect_with(stack, addr, &options)
    }

    /// As [`Self::connect`] with options.
    ///
    /// # Errors
    /// As there.
    pub fn connect_with(
        stack: &impl AsRef<StackHandle>,
        addr: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        each(addr, |addr| {
            let mut stream = Self::start_connect(stack, addr, options)?;
            let mode = stream.read.waiting.mode;
            block_on(mode, options.timeout, |cx| stream.read.inner.poll_connected(cx))?;
            stream.local_addr_now();
            Ok(stream)
        })
    }

    /// Begins to connect and does not wait: [`Self::poll_connected`] says when the handshake is done, or why it failed.
    ///
    /// # Errors
    /// [`Error::StackGone`]; everything else comes from `poll_connected`.
    pub fn start_connect(
        stack: &impl AsRef<StackHandle>,
        addr: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        let stack = stack.as_ref();
        let shard = stack.shards.for_connect(options.local, addr);
        let handle = stack.command(shard, |remote| remote.connect(addr, options.local, &options.socket))?;
        Ok(Self::new(handle, stack.clone(), options.wait.unwrap_or(stack.wait_mode()), false))
    }

    pub(super) fn new(handle: SockHandle, stack: StackHandle, mode: Wait, accepted: bool) -> Self {
        let (peer, local) = (handle.peer_addr(), handle.local_addr());
        let (read, write) = handle.split();
        let waiting = Waiting { mode, limit: None };
        Self {
            read: ReadHalf { inner: read, waiting, peer },
            write: WriteHalf { inner: write, waiting, peer },
            local,
            accepted,
            stack,
        }
    }

    /// Ready when the handshake is done, or with the reason why it failed.
    pub fn poll_connected(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let poll = self.read.inner.poll_connected(cx).map_err(Error::from);
        if matches!(poll, Poll::Ready(Ok(()))) {
            self.local_addr_now();
        }
        poll
    }

    fn local_addr_now(&mut self) {
        self.local = self.local.or_else(|| self.read.inner.local_addr());
    }

    /// The other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.read.peer
    }

    /// Of an accepted stream: whom the peer meant to reach (SO_ORIGINAL_DST). Its local end, which on an interface with
    /// [`any_ip`](crate::Interface::any_ip) may be any address; `None` for a stream that this side opened.
    pub fn original_dst(&self) -> Option<SocketAddr> {
        self.local.filter(|_| self.accepted)
    }

    /// This end.
    ///
    /// # Errors
    /// `NotConnected` before the handshake of [`Self::start_connect`] is done.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local.ok_or_else(|| Error::Socket(linerate_base::Errno::ENOTCONN).into())
    }

    /// As [`ReadHalf::try_read`].
    ///
    /// # Errors
    /// As there.
    pub fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        self.read.try_read(buf)
    }

    /// As [`WriteHalf::try_write`].
    ///
    /// # Errors
    /// As there.
    pub fn try_write(&mut self, data: &[u8]) -> Result<usize, Error> {
        self.write.try_write(data)
    }

    /// As [`ReadHalf::poll_read`].
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<usize, Error>> {
        self.read.poll_read(cx, buf)
    }

    /// As [`WriteHalf::poll_write`].
    pub fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize, Error>> {
        self.write.poll_write(cx, data)
    }

    /// Ends the writing direction: the peer reads the end of the stream after everything that was written. Reading goes
    /// on. Idempotent.
    pub fn shutdown(&mut self) {
        self.write.shutdown();
    }

    /// The reading direction, in place.
    pub fn read_half(&mut self) -> &mut ReadHalf {
        &mut self.read
    }

    /// The writing direction, in place.
    pub fn write_half(&mut self) -> &mut WriteHalf {
        &mut self.write
    }

    /// The two directions, for two threads or tasks.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }

    /// As [`ReadHalf::set_read_timeout`].
    ///
    /// # Errors
    /// As there.
    pub fn set_read_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.read.set_read_timeout(limit)
    }

    /// As [`WriteHalf::set_write_timeout`].
    ///
    /// # Errors
    /// As there.
    pub fn set_write_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.write.set_write_timeout(limit)
    }

    /// How both directions wait.
    pub fn set_wait(&mut self, mode: Wait) {
        self.read.set_wait(mode);
        self.write.set_wait(mode);
    }

    /// `TCP_INFO`: what `ss -ti` shows. Asks the stack's thread.
    ///
    /// # Errors
    /// `NotConnected` when the connection is over; `ConnectionAborted` when the stack is gone.
    pub fn info(&self) -> io::Result<TcpInfo> {
        Ok(self.stack.tcp_info(self.local_addr()?, self.peer_addr())?)
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read.read(buf)
    }
}

impl Write for TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write.write(data)
    }
    /// Nothing is held back: what `write` took is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream").field("local", &self.local).field("peer", &self.read.peer).finish_non_exhaustive()
    }
}
