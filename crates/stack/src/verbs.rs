//! The verbs of TCP sockets: what an application that owns the shard calls between turns.
//!
//! Every verb acts on the socket at once and marks it dirty; segments leave with the next turn. Nothing blocks: what would,
//! says `WouldBlock`, and readiness follows. `write` copies into the shard's transmit pages and `read` copies out: the
//! caller is on the shard's thread, so copies happen where the caller is. `read_frags` and `write_frag` move references.
//! A stale id is an error of the verb, never a panic.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::net::SocketAddr;

use linerate_base::DropReason;
use linerate_skb::Frag;
use linerate_tcp::{Closing, Conn, How, RecvError, SendError, SendFlags, SockOpts, SocketError, State, TcpInfo};
use linerate_wire::flow::FlowKey;
use linerate_wire::ip::proto;

use crate::demux::{Entry, Scope};
use crate::errors::{AcceptError, BindError, ConnectError, ListenError, SockError};
use crate::frag;
use crate::shard::Shard;
use crate::sock::{Ready, SockId, SockKind};
use crate::tcp::{BindOpts, Body, Family, Listener, Sock, Unbound, flag, owner_of};
use crate::upcall::flow_hash;

/// Opening and naming.
impl Shard {
    /// A TCP socket that is neither bound nor connected.
    pub fn tcp_socket(&mut self, family: Family, opts: &SockOpts) -> SockId {
        let bind = BindOpts::default();
        let opts = self.tcp.share(opts);
        let unbound = Unbound { family, local: None, opts, bind, error: None };
        SockId::new(SockKind::Tcp, self.tcp.new_socket(unbound))
    }

    /// Gives an unbound socket a local address; port 0 chooses one.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(&mut self, id: SockId, local: SocketAddr, opts: BindOpts) -> Result<(), BindError> {
        let key = id.key(SockKind::Tcp).ok_or(BindError::BadSocket)?;
        self.tcp.bind(&mut self.core, key, local, opts)
    }

    /// Makes a socket listen (or changes the backlog of one that does). An unbound one gets a port on the wildcard address.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(&mut self, id: SockId, backlog: u32) -> Result<(), ListenError> {
        let key = id.key(SockKind::Tcp).ok_or(ListenError::BadSocket)?;
        let sock = self.tcp.socks.get_mut(key).ok_or(ListenError::BadSocket)?;
        // `net.core.somaxconn` bounds it in Linux.
        let backlog = backlog.min(self.core.cfg.tcp.max_syn_backlog);
        let u = match &mut sock.body {
            Body::Listen(l) => {
                l.backlog = backlog;
                return Ok(());
            }
            Body::Conn(_) => return Err(ListenError::Connected),
            Body::Unbound(u) => u,
        };
        if u.local.is_none() {
            let any: core::net::IpAddr = match u.family {
                Family::V4 => core::net::Ipv4Addr::UNSPECIFIED.into(),
                Family::V6 => core::net::Ipv6Addr::UNSPECIFIED.into(),
            };
            let bind = u.bind;
            self.tcp.bind(&mut self.core, key, SocketAddr::new(any, 0), bind).map_err(|_| ListenError::AddrInUse)?;
        }
        let Some(sock) = self.tcp.socks.get_mut(key) else { return Err(ListenError::BadSocket) };
        let Body::Unbound(u) = &sock.body else { return Err(ListenError::BadSocket) };
        let Some(local) = u.local else { return Err(ListenError::AddrNotAvailable) };
        let scope = Scope::of(local.ip(), u.bind.v6only);
        // From bound to listening: SO_REUSEADDR no longer shares with other listeners.
        let (before, after) = (owner_of(sock.flags, false), owner_of(sock.flags, true));
        self.tcp.binds.remove(local.port(), scope, before);
        if self.tcp.binds.conflicts(local.port(), scope, after) {
            self.tcp.binds.add(local.port(), scope, before);
            return Err(ListenError::AddrInUse);
        }
        self.tcp.binds.add(local.port(), scope, after);
        let (bind, opts) = (u.bind, u.opts.clone());
        let accept = VecDeque::new();
        sock.body = Body::Listen(Box::new(Listener {
            local,
            scope,
            bind,
            opts,
            backlog,
            accept,
            syn_qlen: 0,
            cookie_sent: None,
        }));
        self.tcp.listeners.add(local.port(), scope, key.index);
        Ok(())
    }

    /// A listening socket in one call.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn tcp_listen(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        opts: &SockOpts,
        bind: BindOpts,
    ) -> Result<SockId, ListenError> {
        let family = if local.is_ipv4() { Family::V4 } else { Family::V6 };
        let id = self.tcp_socket(family, opts);
        let bound = self.bind(id, local, bind).map_err(|e| match e {
            BindError::AddrNotAvailable => ListenError::AddrNotAvailable,
            BindError::Family => ListenError::Family,
            _ => ListenError::AddrInUse,
        });
        match bound.and_then(|()| self.listen(id, backlog)) {
            Ok(()) => Ok(id),
            Err(e) => {
                self.discard(id);
                Err(e)
            }
        }
    }

    /// Takes the oldest established connection of a listener.
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub fn accept(&mut self, listener: SockId) -> Result<SockId, AcceptError> {
        let child = self.take_child(listener)?;
        // What arrived before anybody owned the connection is told now.
        let ready = self.readiness(child);
        if let Some(index) = self.tcp.index_of(child) {
            self.tcp.post(&mut self.ready, index, ready);
        }
        Ok(child)
    }

    /// As [`Self::accept`], without telling what the connection is ready for.
    pub(crate) fn take_child(&mut self, listener: SockId) -> Result<SockId, AcceptError> {
        let sock = self.tcp.sock_mut(listener).ok_or(AcceptError::BadSocket)?;
        let l = sock.listener_mut().ok_or(AcceptError::NotListening)?;
        let child = l.accept.pop_front().ok_or(AcceptError::WouldBlock)?;
        if let Some(sock) = self.tcp.sock_mut(child) {
            sock.clear(flag::UNACCEPTED);
        }
        Ok(child)
    }

    /// Opens a connection from an unbound or bound socket; the SYN leaves with the next turn. After a failed attempt the
    /// socket may be tried again.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(&mut self, id: SockId, remote: SocketAddr) -> Result<(), ConnectError> {
        let key = id.key(SockKind::Tcp).ok_or(ConnectError::BadSocket)?;
        self.tcp.connect(&mut self.core, key, remote)
    }

    /// A connection attempt in one call.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn tcp_connect(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        opts: &SockOpts,
    ) -> Result<SockId, ConnectError> {
        let Some(local) = local.filter(|l| l.port() != 0) else {
            let key = self.tcp.connect_new(&mut self.core, remote, local, opts)?;
            return Ok(SockId::new(SockKind::Tcp, key));
        };
        let id = self.tcp_socket(if remote.is_ipv4() { Family::V4 } else { Family::V6 }, opts);
        let bound = self.bind(id, local, BindOpts::default()).map_err(|e| match e {
            BindError::AddrInUse => ConnectError::AddrInUse,
            BindError::Family => ConnectError::Family,
            _ => ConnectError::AddrNotAvailable,
        });
        match bound.and_then(|()| self.connect(id, remote)) {
            Ok(()) => Ok(id),
            Err(e) => {
                self.discard(id);
                Err(e)
            }
        }
    }

    /// Ends the connection at once (RST) and makes the socket unbound again: `connect` to AF_UNSPEC.
    ///
    /// # Errors
    /// The id names no connection.
    pub fn disconnect(&mut self, id: SockId) -> Result<(), SockError> {
        let key = id.key(SockKind::Tcp).ok_or(SockError::BadSocket)?;
        let aborted = self.tcp.with_conn(&mut self.core, id, |conn, cx| {
            let open = !matches!(conn.state(), State::Closed | State::TimeWait | State::LastAck | State::Closing);
            conn.abort(cx);
            open
        });
        let was_open = aborted.ok_or(SockError::NotConnected)?;
        // The RST leaves before the connection goes.
        self.tcp.flush(&mut self.core, key.index);
        self.tcp.make_unbound(&mut self.core, key);
        if let Some(Body::Unbound(u)) = self.tcp.socks.get_mut(key).map(|s| &mut s.body)
            && was_open
        {
            // As in Linux the next verb learns that there was something to lose.
            u.error = Some(SocketError::Reset);
        }
        Ok(())
    }
}

/// Moving bytes.
impl Shard {
    /// Copies bytes into the send buffer; returns how many were taken.
    ///
    /// # Errors
    /// `WouldBlock` when none fit, or why none ever will.
    pub fn write(&mut self, id: SockId, data: &[u8]) -> Result<usize, SendError> {
        if self.tcp.write_small(&mut self.core, id, data) {
            return Ok(data.len());
        }
        self.write_flags(id, data, SendFlags::default())
    }

    /// As [`Self::write`] with MSG_MORE and MSG_EOR.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_flags(&mut self, id: SockId, data: &[u8], flags: SendFlags) -> Result<usize, SendError> {
        let done = self.tcp.with_conn_if(&mut self.core, id, |conn, cx| {
            let done = conn.write(cx, data, flags);
            (done, done != Err(SendError::WouldBlock) || conn.awaits_memory())
        });
        let n = done.unwrap_or(Err(SendError::BrokenPipe))?;
        self.tcp.copied_tx += n as u64;
        Ok(n)
    }

    /// Takes a fragment by reference.
    ///
    /// # Errors
    /// Gives it back with the reason.
    pub fn write_frag(&mut self, id: SockId, frag: Frag, flags: SendFlags) -> Result<(), (Frag, SendError)> {
        let mut frag = Some(frag);
        let done = self.tcp.with_conn(&mut self.core, id, |conn, cx| match frag.take() {
            Some(frag) => conn.write_frag(cx, frag, flags),
            None => Ok(()),
        });
        match (done, frag) {
            (Some(done), _) => done,
            (None, Some(frag)) => Err((frag, SendError::BrokenPipe)),
            (None, None) => Ok(()),
        }
    }

    /// Copies received bytes out; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`, the connection's error (once), or `NotConnected`.
    pub fn read(&mut self, id: SockId, buf: &mut [u8]) -> Result<usize, RecvError> {
        if let Some(n) = self.tcp.read_small(&mut self.core, id, buf) {
            return Ok(n);
        }
        self.read_with(id, buf, false)
    }

    /// As [`Self::read`], and leaves the bytes where they are (MSG_PEEK).
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn peek(&mut self, id: SockId, buf: &mut [u8]) -> Result<usize, RecvError> {
        self.read_with(id, buf, true)
    }

    fn read_with(&mut self, id: SockId, buf: &mut [u8], peek: bool) -> Result<usize, RecvError> {
        let done = self.tcp.with_conn_if(&mut self.core, id, |conn, cx| {
            let done = conn.read(cx, buf, peek);
            (done, done != Err(RecvError::WouldBlock))
        });
        let n = done.unwrap_or(Err(RecvError::NotConnected))?;
        self.tcp.copied_rx += n as u64;
        Ok(n)
    }

    /// Throws up to `max` received bytes away without touching them (MSG_TRUNC); returns how many.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_discard(&mut self, id: SockId, max: usize) -> Result<usize, RecvError> {
        self.read_frags(id, max, &mut drop)
    }

    /// Hands out up to `max` received bytes as references to the pages that they arrived in; returns how many bytes. The
    /// fragments may be kept and dropped on any thread.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_frags(&mut self, id: SockId, max: usize, out: &mut impl FnMut(Frag)) -> Result<usize, RecvError> {
        let done = self.tcp.with_conn_if(&mut self.core, id, |conn, cx| {
            let done = conn.read_frags(cx, max, out);
            (done, done != Err(RecvError::WouldBlock))
        });
        done.unwrap_or(Err(RecvError::NotConnected))
    }

    /// Bytes that our code copied for this shard's sockets: by `write` and by `read`.
    pub fn copied_bytes(&self) -> (u64, u64) {
        (self.tcp.copied_tx, self.tcp.copied_rx)
    }
}

/// Closing.
impl Shard {
    /// Ends one or both directions.
    ///
    /// # Errors
    /// See [`SockError`].
    pub fn shutdown(&mut self, id: SockId, how: How) -> Result<(), SockError> {
        self.tcp.index_of(id).ok_or(SockError::BadSocket)?;
        let done = self.tcp.with_conn(&mut self.core, id, |conn, cx| conn.shutdown(cx, how));
        match done {
            Some(Ok(())) => Ok(()),
            _ => Err(SockError::NotConnected),
        }
    }

    /// Lets go of a socket. A connection lives on as an orphan until its data is delivered and its FIN acknowledged; unread
    /// data, or SO_LINGER with zero, makes it a RST. A listener's connections that nobody accepted are reset.
    ///
    /// # Errors
    /// [`SockError::BadSocket`]; also for a socket that was closed before.
    pub fn close(&mut self, id: SockId) -> Result<(), SockError> {
        if id.kind() == SockKind::Udp {
            return if self.udp.close(&mut self.core, id) { Ok(()) } else { Err(SockError::BadSocket) };
        }
        self.let_go(id, |conn, cx| conn.close(cx) == Closing::Gone)
    }

    /// Lets go of a socket; a connection is reset.
    ///
    /// # Errors
    /// [`SockError::BadSocket`].
    pub fn abort(&mut self, id: SockId) -> Result<(), SockError> {
        self.let_go(id, |conn, cx| {
            conn.abort(cx);
            conn.close(cx);
            true
        })
    }

    fn let_go(
        &mut self,
        id: SockId,
        end: impl FnOnce(&mut Conn, &mut linerate_tcp::TcpCx<'_>) -> bool,
    ) -> Result<(), SockError> {
        let index = self.tcp.index_of(id).ok_or(SockError::BadSocket)?;
        let sock = self.tcp.sock(id).filter(|s| !s.has(flag::ORPHAN)).ok_or(SockError::BadSocket)?;
        match &sock.body {
            Body::Conn(_) => {
                let gone = self.tcp.with_conn(&mut self.core, id, end) == Some(true);
                if let Some(sock) = self.tcp.sock_mut(id) {
                    sock.set(flag::ORPHAN);
                    sock.clear(flag::UNACCEPTED);
                    sock.pending = Ready::NONE;
                    if gone {
                        sock.set(flag::GONE);
                    }
                }
            }
            Body::Listen(_) => self.close_listener(id, index),
            Body::Unbound(_) => self.tcp.remove(&mut self.core, index),
        }
        Ok(())
    }

    fn close_listener(&mut self, id: SockId, index: u32) {
        let Some(l) = self.tcp.sock_mut(id).and_then(Sock::listener_mut) else { return };
        let (port, scope, children) = (l.local.port(), l.scope, core::mem::take(&mut l.accept));
        self.tcp.listeners.remove(port, scope, index);
        self.tcp.remove(&mut self.core, index);
        for child in children {
            // Each is in the queue once and leaves it here.
            let _ = self.abort(child);
        }
    }

    fn discard(&mut self, id: SockId) {
        if let Some(index) = self.tcp.index_of(id) {
            self.tcp.remove(&mut self.core, index);
        }
    }

    /// Resets every connection and closes every listener: the stack shuts down. The RSTs leave with the next turn.
    pub fn reset_all(&mut self) {
        self.remote_abort_all();
        let mut at = 0;
        while let Some(key) = self.tcp.socks.next_from(at) {
            at = key.index + 1;
            // Orphans have no owner to tell, but peers to reset.
            let id = SockId::new(SockKind::Tcp, key);
            if let Some(sock) = self.tcp.sock_mut(id) {
                sock.clear(flag::ORPHAN);
            }
            let _ = self.abort(id);
        }
        self.udp.close_all(&mut self.core);
        frag::purge(&mut self.core, DropReason::Shutdown);
    }
}

/// Looking.
impl Shard {
    /// What a socket is ready for now.
    pub fn readiness(&self, id: SockId) -> Ready {
        let Some(sock) = self.tcp.sock(id) else { return self.udp.readiness(id) };
        let when = |on: bool, bits: Ready| if on { bits } else { Ready::NONE };
        match &sock.body {
            Body::Unbound(u) => Ready::WRITABLE | Ready::HUP | when(u.error.is_some(), Ready::ERROR),
            Body::Listen(l) => when(!l.accept.is_empty(), Ready::ACCEPT),
            Body::Conn(c) => {
                let over = sock.has(flag::OVER);
                let open = !matches!(c.state(), State::SynSent | State::SynRcvd | State::Closed);
                let peer_closed =
                    matches!(c.state(), State::CloseWait | State::LastAck | State::Closing | State::TimeWait);
                when(c.state() != State::SynSent && c.is_readable(), Ready::READABLE)
                    | when(over || (open && c.is_writable()), Ready::WRITABLE)
                    | when(over || peer_closed, Ready::RDHUP)
                    | when(over, Ready::HUP)
                    | when(c.has_error(), Ready::ERROR)
                    | when(open, Ready::CONNECTED)
            }
        }
    }

    /// A socket that something happened to since it was last returned, and what.
    pub fn next_ready(&mut self) -> Option<(SockId, Ready)> {
        while let Some(id) = self.ready.pop() {
            let pending = match self.tcp.sock_mut(id) {
                Some(sock) => core::mem::take(&mut sock.pending),
                None => self.udp.take_pending(id),
            };
            if !pending.is_empty() {
                return Some((id, pending));
            }
        }
        None
    }

    /// The connection behind a socket.
    pub fn conn(&self, id: SockId) -> Option<&Conn> {
        self.tcp.sock(id)?.conn()
    }
    /// TCP_INFO.
    pub fn info(&self, id: SockId) -> Option<TcpInfo> {
        Some(self.conn(id)?.info(self.core.now))
    }
    /// The local end: of a connection, a listener or a bound socket.
    pub fn local_addr(&self, id: SockId) -> Option<SocketAddr> {
        match &self.tcp.sock(id)?.body {
            Body::Conn(c) => Some(c.key().local()),
            Body::Listen(l) => Some(l.local),
            Body::Unbound(u) => u.local,
        }
    }
    /// The other end of a connection.
    pub fn peer_addr(&self, id: SockId) -> Option<SocketAddr> {
        Some(self.conn(id)?.key().remote())
    }
    /// Whom the peer meant to reach: on an any-ip device the destination of its SYN (SO_ORIGINAL_DST).
    pub fn original_dst(&self, id: SockId) -> Option<SocketAddr> {
        Some(self.conn(id)?.key().local())
    }
    /// SO_ERROR: the pending error, once.
    pub fn take_error(&mut self, id: SockId) -> Option<SocketError> {
        match &mut self.tcp.sock_mut(id)?.body {
            Body::Conn(c) => c.take_error(),
            Body::Unbound(u) => u.error.take(),
            Body::Listen(_) => None,
        }
    }
    /// The connection between two addresses, as the demultiplexer finds it for a segment.
    pub fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<SockId> {
        let key = FlowKey::new(local, remote, proto::TCP);
        match self.tcp.lookup(flow_hash(&self.core.hash_key, &key), &key)? {
            Entry::Conn(index) => self.tcp.id_of(index),
            _ => None,
        }
    }
    /// TCP sockets, orphans included; half-open connections; TIME-WAIT states.
    pub fn tcp_counts(&self) -> (usize, usize, usize) {
        (self.tcp.socks.len(), self.tcp.reqs.len(), self.tcp.tws.len())
    }
}
