//! Sockets: opening, naming, connecting, accepting, closing, as `net/socket.c` and `net/ipv4/af_inet.c` of Linux decide.
//!
//! Above TCP's states Linux keeps a state of the *socket* ([`SockState`]): it decides EISCONN, EALREADY, EINPROGRESS and
//! whether a failed attempt may be repeated. Options that were set are kept here ([`Sock::opts`]) and handed to the stack
//! on each change, so that an unconnected socket has them and an accepted one inherits them. Addresses are given out in
//! the socket's family: IPv4 peers of an AF_INET6 socket as v4-mapped. Checks are made in Linux's order, since scripts
//! test which errno wins.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use linerate_base::{Duration, Errno, Key};
use linerate_stack::{BindOpts, Family, SockId, TcpOpt};
use linerate_tcp::{How, SockOpts, State};

use crate::abi::{
    AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, SHUT_RD, SHUT_RDWR, SHUT_WR, SO_REUSEADDR, SO_REUSEPORT, SOCK_CLOEXEC,
    SOCK_DGRAM, SOCK_NONBLOCK, SOCK_RAW, SOCK_STREAM, SOCK_TYPE_MASK, SOL_SOCKET,
};
use crate::call::{Addr, Out, Outcome, Reply};
use crate::fd::{File, Kind};
use crate::ops::{Work, timeout_of};
use crate::posix::{Posix, Start};

/// Linux's `socket_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SockState {
    Unconnected,
    Connecting,
    Connected,
    Disconnecting,
}

/// What speaks through a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proto {
    /// TCP: the stack's socket.
    Tcp(SockId),
    /// UDP: the stack's socket.
    Udp(SockId),
}

/// A socket as the process sees it.
#[derive(Clone)]
pub(crate) struct Sock {
    pub(crate) proto: Proto,
    /// AF_INET6.
    pub(crate) is_v6: bool,
    pub(crate) state: SockState,
    pub(crate) listening: bool,
    /// `bind` succeeded.
    pub(crate) bound: bool,
    /// Directions that this end shut down (SHUT_RD, SHUT_WR).
    pub(crate) shut_rd: bool,
    pub(crate) shut_wr: bool,
    /// TCP options as set.
    pub(crate) opts: SockOpts,
    /// Options that are a number and no more, by level and name; absent = the default.
    pub(crate) plain: BTreeMap<(i32, i32), i32>,
    /// SO_LINGER's seconds while it is off.
    pub(crate) linger_s: u32,
    pub(crate) rcvtimeo: Option<Duration>,
    pub(crate) sndtimeo: Option<Duration>,
    pub(crate) rcvlowat: u32,
    /// UDP: the default destination.
    pub(crate) peer: Option<SocketAddr>,
    /// Length of the accept queue, for TCP_INFO of a listener.
    pub(crate) backlog: u32,
}

impl Sock {
    fn new(proto: Proto, is_v6: bool) -> Self {
        Self {
            proto,
            is_v6,
            state: SockState::Unconnected,
            listening: false,
            bound: false,
            shut_rd: false,
            shut_wr: false,
            opts: SockOpts::DEFAULT,
            plain: BTreeMap::new(),
            linger_s: 0,
            rcvtimeo: None,
            sndtimeo: None,
            rcvlowat: 1,
            peer: None,
            backlog: 0,
        }
    }
    /// The stack's TCP socket.
    pub(crate) fn tcp(&self) -> Option<SockId> {
        match self.proto {
            Proto::Tcp(id) => Some(id),
            Proto::Udp(_) => None,
        }
    }
    /// The stack's socket, whatever the protocol.
    pub(crate) fn id(&self) -> SockId {
        match self.proto {
            Proto::Tcp(id) | Proto::Udp(id) => id,
        }
    }
    /// A plain option, or 0.
    pub(crate) fn plain(&self, level: i32, name: i32) -> i32 {
        self.plain.get(&(level, name)).copied().unwrap_or(0)
    }
    pub(crate) fn bind_opts(&self) -> BindOpts {
        BindOpts {
            reuseaddr: self.plain(SOL_SOCKET, SO_REUSEADDR) != 0,
            reuseport: self.plain(SOL_SOCKET, SO_REUSEPORT) != 0,
            v6only: self.is_v6 && self.plain(crate::abi::SOL_IPV6, crate::abi::IPV6_V6ONLY) != 0,
            any_port: false,
        }
    }
    /// An address as this socket's family writes it.
    pub(crate) fn show(&self, a: SocketAddr) -> SocketAddr {
        match a.ip() {
            IpAddr::V4(ip) if self.is_v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), a.port()),
            _ => a,
        }
    }
    /// An address argument in the family that the stack expects: v4-mapped becomes IPv4.
    pub(crate) fn read_addr(&self, a: SocketAddr, short: Errno) -> Result<SocketAddr, Errno> {
        match (self.is_v6, a) {
            // sockaddr_in is shorter than what an AF_INET6 socket wants.
            (true, SocketAddr::V4(_)) => Err(short),
            (false, SocketAddr::V6(_)) => Err(Errno::EAFNOSUPPORT),
            (true, SocketAddr::V6(v6)) => match v6.ip().to_ipv4_mapped() {
                Some(_) if self.bind_opts().v6only => Err(Errno::ENETUNREACH),
                Some(ip) => Ok(SocketAddr::new(ip.into(), a.port())),
                None => Ok(a),
            },
            (false, _) => Ok(a),
        }
    }
}

/// Opening and naming.
impl Posix {
    pub(crate) fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<i64, Errno> {
        let (flags, base) = (kind & !SOCK_TYPE_MASK, kind & SOCK_TYPE_MASK);
        if flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0 {
            return Err(Errno::EINVAL);
        }
        let is_v6 = match domain {
            AF_INET => false,
            AF_INET6 => true,
            _ => return Err(Errno::EAFNOSUPPORT),
        };
        if base > 10 || !(0..256).contains(&protocol) {
            return Err(Errno::EINVAL);
        }
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let proto = match (base, protocol) {
            (SOCK_STREAM, 0 | IPPROTO_TCP) => Proto::Tcp(self.shard.tcp_socket(family, &SockOpts::DEFAULT)),
            (SOCK_DGRAM, 0 | IPPROTO_UDP) => Proto::Udp(self.shard.udp_socket(is_v6)),
            (SOCK_STREAM | SOCK_DGRAM | SOCK_RAW, _) => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        let file = File::new(Kind::Sock(Box::new(Sock::new(proto, is_v6))), flags & SOCK_NONBLOCK != 0);
        self.open_sock(file, flags & SOCK_CLOEXEC != 0)
    }

    fn open_sock(&mut self, file: File, cloexec: bool) -> Result<i64, Errno> {
        let fd = self.files.open(file, cloexec)?;
        let (key, sock) = self.files.sock(fd)?;
        let id = sock.id();
        self.by_sock.insert(id, key);
        Ok(i64::from(fd))
    }

    pub(crate) fn bind(&mut self, fd: i32, addr: Addr) -> Result<i64, Errno> {
        let (key, sock) = self.files.sock(fd)?;
        let addr = match addr {
            Addr::Null => return Err(Errno::EFAULT),
            Addr::Unspec => return Err(if sock.is_v6 { Errno::EINVAL } else { Errno::EAFNOSUPPORT }),
            Addr::Inet(a) => a,
        };
        if sock.is_v6
            && sock.bind_opts().v6only
            && matches!(addr, SocketAddr::V6(a) if a.ip().to_ipv4_mapped().is_some())
        {
            return Err(Errno::EINVAL);
        }
        let local = sock.read_addr(addr, Errno::EINVAL)?;
        let opts = sock.bind_opts();
        match sock.proto {
            Proto::Tcp(id) => {
                if sock.bound || self.shard.local_addr(id).is_some() {
                    return Err(Errno::EINVAL);
                }
                self.shard.bind(id, local, opts).map_err(|e| e.errno())?;
            }
            Proto::Udp(_) => self.bind_udp(key, local)?,
        }
        self.with_sock(key, |s| s.bound = true);
        Ok(0)
    }

    /// Changes a socket that is known to exist.
    pub(crate) fn with_sock(&mut self, key: Key, f: impl FnOnce(&mut Sock)) {
        if let Some(s) = self.files.sock_at_mut(key) {
            f(s);
        }
    }

    pub(crate) fn listen(&mut self, fd: i32, backlog: i32) -> Result<i64, Errno> {
        let (key, sock) = self.files.sock(fd)?;
        let Proto::Tcp(id) = sock.proto else { return Err(Errno::EOPNOTSUPP) };
        if sock.state != SockState::Unconnected || self.shard.conn(id).is_some() {
            return Err(Errno::EINVAL);
        }
        // A negative backlog is a large one.
        let backlog = u32::try_from(backlog).unwrap_or(u32::MAX).min(self.limits.somaxconn);
        self.shard.listen(id, backlog).map_err(|e| e.errno())?;
        self.with_sock(key, |s| {
            s.listening = true;
            s.backlog = backlog;
        });
        Ok(0)
    }

    pub(crate) fn sock_name(&mut self, fd: i32, of_peer: bool) -> Result<Reply, Errno> {
        let (_, sock) = self.files.sock(fd)?;
        let any: IpAddr =
            if sock.is_v6 { std::net::Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let found = match (sock.proto, of_peer) {
            (Proto::Tcp(id), true) => {
                self.shard.peer_addr(id).filter(|_| self.shard.conn(id).is_some_and(|c| c.state() != State::Closed))
            }
            (Proto::Udp(_), true) => sock.peer,
            (Proto::Tcp(id), false) => self.shard.local_addr(id).or(Some(SocketAddr::new(any, 0))),
            (Proto::Udp(id), false) => self.shard.udp().local_addr(id),
        };
        let addr = found.ok_or(Errno::ENOTCONN)?;
        Ok(Reply::with(0, Out::Addr(sock.show(addr))))
    }
}

/// Accepting.
impl Posix {
    pub(crate) fn start_accept(&mut self, fd: i32, flags: i32) -> Result<Start, Errno> {
        if flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0 {
            return Err(Errno::EINVAL);
        }
        let (file, sock) = self.files.sock(fd)?;
        if sock.tcp().is_none() {
            return Err(Errno::EOPNOTSUPP);
        }
        let timeout = timeout_of(self.nonblock(file), 0, sock.rcvtimeo);
        self.files.hold(file);
        Ok(Start::Work(Work::Accept { file, flags }, timeout))
    }

    pub(crate) fn nonblock(&self, file: Key) -> bool {
        self.files.get(file).is_some_and(File::nonblock)
    }

    pub(crate) fn step_accept(&mut self, file: Key, flags: i32, may_sleep: bool) -> Option<Outcome> {
        let sock = self.files.sock_at(file)?;
        let Some(id) = sock.tcp().filter(|_| sock.listening) else { return Some(Err(Errno::EINVAL)) };
        let child = match self.shard.accept(id) {
            Ok(child) => child,
            Err(e) if e.errno() == Errno::EAGAIN && may_sleep => return None,
            Err(e) => return Some(Err(e.errno())),
        };
        let mut new = Sock { proto: Proto::Tcp(child), state: SockState::Connected, ..sock.clone() };
        (new.listening, new.bound, new.backlog) = (false, true, 0);
        new.opts.quickack = None;
        let peer = self.shard.peer_addr(child).map(|a| new.show(a));
        if new.rcvlowat > 1 {
            // The id was given out a moment ago.
            let _ = self.shard.set_opt(child, TcpOpt::RcvLowat(new.rcvlowat));
        }
        let opened =
            self.open_sock(File::new(Kind::Sock(Box::new(new)), flags & SOCK_NONBLOCK != 0), flags & SOCK_CLOEXEC != 0);
        Some(match opened {
            Ok(fd) => Ok(Reply::with(fd, peer.map_or(Out::None, Out::Addr))),
            Err(e) => {
                // No descriptor for it: the peer is reset rather than left waiting.
                let _ = self.shard.abort(child);
                Err(e)
            }
        })
    }
}

/// Connecting.
impl Posix {
    pub(crate) fn start_connect(&mut self, fd: i32, addr: Addr) -> Result<Start, Errno> {
        let (file, sock) = self.files.sock(fd)?;
        let addr = match addr {
            Addr::Null => return Err(Errno::EFAULT),
            Addr::Unspec => return self.disconnect(file).map(|()| Start::Done(Reply::ret(0))),
            Addr::Inet(a) => a,
        };
        let Proto::Tcp(id) = sock.proto else {
            let peer = sock.read_addr(addr, Errno::EINVAL)?;
            return self.connect_udp(file, peer).map(|()| Start::Done(Reply::ret(0)));
        };
        let errno = match sock.state {
            SockState::Connected => return Err(Errno::EISCONN),
            SockState::Disconnecting => return Err(Errno::EINVAL),
            SockState::Connecting => Errno::EALREADY,
            SockState::Unconnected => {
                if sock.listening {
                    return Err(Errno::EISCONN);
                }
                let remote = sock.read_addr(addr, Errno::EINVAL)?;
                if self.shard.conn(id).is_some() {
                    // What is left of an attempt that failed.
                    let _ = self.shard.disconnect(id);
                }
                self.shard.connect(id, remote).map_err(|e| e.errno())?;
                self.with_sock(file, |s| {
                    s.state = SockState::Connecting;
                    (s.shut_rd, s.shut_wr) = (false, false);
                });
                Errno::EINPROGRESS
            }
        };
        let timeout = timeout_of(self.nonblock(file), 0, self.files.sock_at(file).and_then(|s| s.sndtimeo));
        self.files.hold(file);
        Ok(Start::Work(Work::Connect { file, errno }, timeout))
    }

    pub(crate) fn step_connect(&mut self, file: Key, errno: Errno, may_sleep: bool) -> Option<Outcome> {
        let id = self.files.sock_at(file)?.tcp()?;
        match self.shard.conn(id).map(|c| c.state()) {
            Some(State::SynSent | State::SynRcvd) => {
                return if may_sleep { None } else { Some(Err(errno)) };
            }
            Some(State::Closed) | None => {}
            Some(_) => {
                self.with_sock(file, |s| s.state = SockState::Connected);
                return Some(Ok(Reply::ret(0)));
            }
        }
        let error = self.shard.take_error(id).map_or(Errno::ECONNABORTED, |e| e.errno());
        let _ = self.shard.disconnect(id);
        // Disconnecting leaves no error behind.
        let _ = self.shard.take_error(id);
        self.with_sock(file, |s| s.state = SockState::Unconnected);
        Some(Err(error))
    }

    /// `connect` with AF_UNSPEC.
    fn disconnect(&mut self, file: Key) -> Result<(), Errno> {
        let Some(sock) = self.files.sock_at(file) else { return Err(Errno::ENOTSOCK) };
        let Proto::Tcp(id) = sock.proto else {
            return self.disconnect_udp(file);
        };
        if sock.listening {
            self.stop_listening(file);
        } else if self.shard.conn(id).is_some() {
            self.shard.disconnect(id).map_err(|e| e.errno())?;
        }
        self.with_sock(file, |s| {
            s.state = SockState::Unconnected;
            (s.shut_rd, s.shut_wr) = (false, false);
        });
        Ok(())
    }

    /// A listener becomes an unbound socket with the same options; its port stays bound only in Linux's books.
    fn stop_listening(&mut self, file: Key) {
        let Some((old, family, opts, bind)) = self.files.sock_at(file).and_then(|s| {
            let family = if s.is_v6 { Family::V6 } else { Family::V4 };
            Some((s.tcp()?, family, s.opts.clone(), s.bind_opts()))
        }) else {
            return;
        };
        let local = self.shard.local_addr(old);
        let _ = self.shard.close(old);
        self.by_sock.remove(&old);
        let id = self.shard.tcp_socket(family, &opts);
        if let Some(local) = local {
            // The port was ours a moment ago.
            let _ = self.shard.bind(id, local, bind);
        }
        self.by_sock.insert(id, file);
        self.with_sock(file, |s| {
            s.proto = Proto::Tcp(id);
            s.listening = false;
        });
    }
}

/// Ending.
impl Posix {
    pub(crate) fn shutdown(&mut self, fd: i32, how: i32) -> Result<i64, Errno> {
        let (file, sock) = self.files.sock(fd)?;
        let (rd, wr, verb) = match how {
            SHUT_RD => (true, false, How::Rd),
            SHUT_WR => (false, true, How::Wr),
            SHUT_RDWR => (true, true, How::RdWr),
            _ => return Err(Errno::EINVAL),
        };
        let Proto::Tcp(id) = sock.proto else {
            let connected = sock.peer.is_some();
            self.with_sock(file, |s| {
                s.shut_rd |= rd;
                s.shut_wr |= wr;
            });
            return if connected { Ok(0) } else { Err(Errno::ENOTCONN) };
        };
        if sock.listening {
            if rd {
                self.stop_listening(file);
            }
            return Ok(0);
        }
        let state = self.shard.conn(id).map(|c| c.state());
        let done = self.shard.shutdown(id, verb);
        self.with_sock(file, |s| {
            if s.state == SockState::Connecting {
                let never = matches!(state, None | Some(State::SynSent | State::SynRcvd | State::Closed));
                s.state = if never { SockState::Disconnecting } else { SockState::Connected };
            }
            if state == Some(State::SynSent) {
                // The attempt is dissolved, so that another one may begin.
                s.state = SockState::Unconnected;
            } else {
                s.shut_rd |= rd;
                s.shut_wr |= wr;
            }
        });
        done.map(|()| 0).map_err(|e| e.errno())
    }

    pub(crate) fn start_close(&mut self, fd: i32) -> Result<Start, Errno> {
        let file = self.files.take(fd)?;
        let lingers = self.files.refs(file) == 1
            && self.files.sock_at(file).is_some_and(|s| {
                s.opts.linger_s.is_some_and(|t| t > 0)
                    && s.tcp().and_then(|id| self.shard.conn(id)).is_some_and(|c| {
                        c.inq_bytes() == 0 && !matches!(c.state(), State::SynSent | State::SynRcvd | State::Closed)
                    })
            });
        if !lingers {
            self.release(file);
            return Ok(Start::Done(Reply::ret(0)));
        }
        let Some((id, seconds)) = self.files.sock_at(file).and_then(|s| Some((s.tcp()?, s.opts.linger_s?))) else {
            return Ok(Start::Done(Reply::ret(0)));
        };
        // The FIN goes now; the reference of the descriptor becomes that of the sleeping call.
        let _ = self.shard.shutdown(id, How::RdWr);
        let timeout = Duration::from_secs(u64::from(seconds));
        Ok(Start::Work(Work::Linger { file }, Some(timeout)))
    }

    /// Sleeps until the FIN is acknowledged (Linux `sk_stream_wait_close`).
    pub(crate) fn step_linger(&mut self, file: Key, may_sleep: bool) -> Option<Outcome> {
        let id = self.files.sock_at(file)?.tcp()?;
        let closing = |s: State| matches!(s, State::FinWait1 | State::Closing | State::LastAck);
        let open = self.shard.conn(id).is_some_and(|c| closing(c.state()));
        if open && may_sleep { None } else { Some(Ok(Reply::ret(0))) }
    }

    /// The last user of a socket is gone.
    pub(crate) fn end_sock(&mut self, sock: &Sock) {
        self.by_sock.remove(&sock.id());
        // A socket that the stack already forgot needs no closing.
        let _ = self.shard.close(sock.id());
    }
}
