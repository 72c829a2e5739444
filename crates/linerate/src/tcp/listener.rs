//! A listening socket of a stack.
//!
//! [`TcpListener::bind`] returns once the stack listens, or says why it does not. Connections that completed their
//! handshake wait in the listener's accept queue (`backlog`) and in a ring of 128 towards the handle. Dropping the
//! listener closes it; connections that nobody accepted are reset.
//! Limits: one thread accepts; several listeners with `reuseport` share a port among stacks' threads.

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
    inner: RemoteListener,
    /// Accepted while `bind` looked whether it listens.
    early: Option<SockHandle>,
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
        let (backlog, bind, socket) = (options.backlog, options.bind, &options.socket);
        let mut inner = stack.command(|remote| remote.listen(addr, backlog, bind, socket))?;
        // A call runs after the commands that came before it: then the stack listens, or has said why not.
        stack.with_shard(|_| ())?;
        let early = match inner.try_accept() {
            Ok(handle) => Some(handle),
            Err(HandleError::WouldBlock) => None,
            Err(e) => return Err(e.into()),
        };
        let local = inner.local_addr().ok_or(Error::Socket(Errno::ENOTCONN))?;
        let waiting = Waiting { mode: options.wait.unwrap_or(stack.wait_mode()), limit: None };
        Ok(Self { inner, early, local, waiting, stack: stack.clone() })
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
        let handle = match self.early.take() {
            Some(handle) => handle,
            None => block_on(self.waiting.mode, self.waiting.limit, |cx| self.inner.poll_accept(cx))?,
        };
        let peer = handle.peer_addr();
        Ok((self.stream(handle), peer))
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when none does.
    pub fn try_accept(&mut self) -> Result<TcpStream, Error> {
        let handle = match self.early.take() {
            Some(handle) => handle,
            None => self.inner.try_accept()?,
        };
        Ok(self.stream(handle))
    }

    /// As [`Self::try_accept`]; `Pending` after the waker of `cx` was registered.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<TcpStream, Error>> {
        if let Some(handle) = self.early.take() {
            return Poll::Ready(Ok(self.stream(handle)));
        }
        let poll = self.inner.poll_accept(cx);
        poll.map(|done| done.map(|handle| self.stream(handle)).map_err(Error::from))
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
