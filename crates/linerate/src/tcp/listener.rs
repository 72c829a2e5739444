//! A listening socket of a stack.
//!
//! [`TcpListener::bind`] returns once the stack listens, or says why it does not. Connections that completed their
//! handshake wait in the listener's accept queue (`backlog`) and in a ring of 128 towards the handle. Dropping the
//! listener closes it; connections that nobody accepted are reset.
//! On a stack of several shards it listens on all of them, and accepts from each in turn; the queues are each shard's.
//! Limits: one thread accepts; several listeners with `reuseport` share a port among threads.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};
use std::time::Duration;

use linerate_base::Errno;
use linerate_host::Wait;
use linerate_stack::remote::{HandleError, RemoteListener, SockHandle};
use linerate_stack::{BindOpts, SockOpts};

use super::halves::Waiting;
use super::stream::TcpStream;
use crate::error::Error;
use crate::stack::StackHandle;
use crate::wait::block_on;

/// Ports tried for a listener on several shards that leaves the choice to the stack.
const PORT_TRIES: u32 = 16;

/// What a listener may be told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Connections that may wait to be accepted, beyond the 128 on their way to the handle. A connection that finds the
    /// queue full is not completed; its peer tries again. `tcp_max_syn_backlog` bounds it.
    pub backlog: u32,
    /// SO_REUSEADDR, SO_REUSEPORT, IPV6_V6ONLY.
    pub bind: BindOpts,
    /// How `accept` and the accepted streams' blocking verbs wait. `None`: as the stack does.
    pub wait: Option<Wait>,
    /// Socket options that accepted connections inherit.
    pub socket: SockOpts,
}

impl Default for ListenOptions {
    /// A backlog of 1024 and `reuseaddr`, as servers use.
    fn default() -> Self {
        let bind = BindOpts { reuseaddr: true, ..BindOpts::default() };
        Self { backlog: 1024, bind, wait: None, socket: SockOpts::default() }
    }
}

/// A listening TCP socket. See [`crate::tcp`].
pub struct TcpListener {
    /// By shard.
    inner: Vec<RemoteListener>,
    /// Whom to ask first for the next connection.
    next: usize,
    /// Accepted while `bind` looked whether it listens.
    early: VecDeque<SockHandle>,
    local: SocketAddr,
    waiting: Waiting,
    stack: StackHandle,
}

impl TcpListener {
    /// Listens on `addr`; port 0 chooses one. An unspecified address (`0.0.0.0`, `[::]`) means every address of the stack.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; `ConnectionAborted` when the stack is gone.
    pub fn bind(stack: &impl AsRef<StackHandle>, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(stack, addr, &ListenOptions::default())
    }

    /// As [`Self::bind`] with options.
    ///
    /// # Errors
    /// As there.
    pub fn bind_with(
        stack: &impl AsRef<StackHandle>,
        addr: impl ToSocketAddrs,
        options: &ListenOptions,
    ) -> io::Result<Self> {
        let mut last = None;
        for addr in addr.to_socket_addrs()? {
            match Self::bind_one(stack.as_ref(), addr, options) {
                Ok(listener) => return Ok(listener),
                Err(e) => last = Some(e),
            }
        }
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
        Err(last.map_or_else(none, io::Error::from))
    }

    /// Listens on every port of every address, of both families, on which nobody else listens. With
    /// [`Interface::any_ip`](crate::Interface::any_ip) that is whatever packets are addressed to, and
    /// [`TcpStream::original_dst`] says what that was: the accepting half of a proxy. ([`Self::bind_with`] does it for one
    /// address or family: port 0 and [`BindOpts::any_port`].)
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_every_port(stack: &impl AsRef<StackHandle>) -> io::Result<Self> {
        let bind = BindOpts { any_port: true, ..BindOpts::default() };
        Self::bind_with(stack, (Ipv6Addr::UNSPECIFIED, 0), &ListenOptions { bind, ..ListenOptions::default() })
    }

    fn bind_one(stack: &StackHandle, addr: SocketAddr, options: &ListenOptions) -> Result<Self, Error> {
        let mut tries = if addr.port() == 0 && stack.shards() > 1 { PORT_TRIES } else { 1 };
        loop {
            tries -= 1;
            match Self::bind_everywhere(stack, addr, options) {
                // The first shard chose a port that another's connections use.
                Err(Error::Socket(Errno::EADDRINUSE)) if tries > 0 => {}
                done => return done,
            }
        }
    }

    /// Listens on all shards, or on none.
    fn bind_everywhere(stack: &StackHandle, mut addr: SocketAddr, options: &ListenOptions) -> Result<Self, Error> {
        let (backlog, bind, socket) = (options.backlog, options.bind, &options.socket);
        let waiting = Waiting { mode: options.wait.unwrap_or(stack.wait_mode()), limit: None };
        let mut this =
            Self { inner: Vec::new(), next: 0, early: VecDeque::new(), local: addr, waiting, stack: stack.clone() };
        for shard in 0..stack.shards() {
            let mut inner = stack.command(shard, |remote| remote.listen(addr, backlog, bind, socket))?;
            // A call runs after the commands that came before it: then the stack listens, or has said why not.
            stack.with_shard_at(shard, |_| ())?;
            match inner.try_accept() {
                Ok(handle) => this.early.push_back(handle),
                Err(HandleError::WouldBlock) => {}
                Err(e) => return Err(e.into()),
            }
            this.local = inner.local_addr().ok_or(Error::Socket(Errno::ENOTCONN))?;
            addr.set_port(this.local.port());
            this.inner.push(inner);
        }
        Ok(this)
    }

    /// Where it listens; port 0 is every port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn stream(&self, handle: SockHandle) -> TcpStream {
        TcpStream::new(handle, self.stack.clone(), self.waiting.mode, true)
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// `TimedOut` after the limit of [`Self::set_accept_timeout`]; `ConnectionAborted` when the stack is gone.
    pub fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (mode, limit) = (self.waiting.mode, self.waiting.limit);
        let handle = block_on(mode, limit, |cx| self.poll_handle(cx))?;
        let peer = handle.peer_addr();
        Ok((self.stream(handle), peer))
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when none does.
    pub fn try_accept(&mut self) -> Result<TcpStream, Error> {
        let handle = self.next_handle(RemoteListener::try_accept)?;
        Ok(self.stream(handle))
    }

    /// As [`Self::try_accept`]; `Pending` after the waker of `cx` was registered.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<TcpStream, Error>> {
        let poll = self.poll_handle(cx);
        poll.map(|done| done.map(|handle| self.stream(handle)).map_err(Error::from))
    }

    fn poll_handle(&mut self, cx: &mut Context<'_>) -> Poll<Result<SockHandle, HandleError>> {
        let ask = |inner: &mut RemoteListener| match inner.poll_accept(cx) {
            Poll::Ready(done) => done,
            Poll::Pending => Err(HandleError::WouldBlock),
        };
        match self.next_handle(ask) {
            Err(HandleError::WouldBlock) => Poll::Pending,
            done => Poll::Ready(done),
        }
    }

    /// Asks one shard's listener after the other for a connection, beginning behind the one that had the last.
    fn next_handle(
        &mut self,
        mut ask: impl FnMut(&mut RemoteListener) -> Result<SockHandle, HandleError>,
    ) -> Result<SockHandle, HandleError> {
        if let Some(handle) = self.early.pop_front() {
            return Ok(handle);
        }
        let shards = self.inner.len();
        for n in 0..shards {
            let at = (self.next + n) % shards;
            match self.inner.get_mut(at).map(&mut ask) {
                Some(Err(HandleError::WouldBlock)) | None => {}
                Some(done) => {
                    self.next = (at + 1) % shards;
                    return done;
                }
            }
        }
        Err(HandleError::WouldBlock)
    }

    /// The longest that `accept` waits; `None` is without end.
    pub fn set_accept_timeout(&mut self, limit: Option<Duration>) {
        self.waiting.limit = limit;
    }

    /// How `accept` and the streams accepted from now on wait.
    pub fn set_wait(&mut self, mode: Wait) {
        self.waiting.mode = mode;
    }

    /// Connections as they come; it never ends by itself, and yields an error once the stack is gone.
    pub fn incoming(&mut self) -> Incoming<'_> {
        Incoming { listener: self }
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("local", &self.local).finish_non_exhaustive()
    }
}

/// Connections as they come: [`TcpListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a mut TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}
