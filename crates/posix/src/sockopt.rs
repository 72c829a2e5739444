//! `getsockopt`, `setsockopt`, `fcntl`, `ioctl`, `pipe`: the general part and level SOL_SOCKET.
//!
//! Options that are a number and no more are a table ([`Plain`]): level, name, default, range, whether it is a boolean.
//! A row is there because something reads it, or because what it switches is fixed here ([`fixed`]): the option tells the
//! truth, and to ask for anything else is ENOPROTOOPT, never a promise that nobody keeps. All others are code. A value is read as Linux reads it: length checked before the pointer, the pointer before the value.
//! A returned value is cut to the caller's length, without an error. SO_SNDBUF and SO_RCVBUF are doubled and bounded as in
//! Linux. Each option that the stack acts on is pushed to it at once.

use linerate_base::{Duration, Errno, Key};
use linerate_stack::TcpOpt;
use linerate_tcp::{SockOpts, State};

use crate::abi::*;
use crate::call::{Out, Reply};
use crate::fd::{File, Kind};
use crate::posix::Posix;
use crate::sock::{Proto, Sock};

/// Least values of stored buffer sizes, bytes (SOCK_MIN_SNDBUF, SOCK_MIN_RCVBUF).
pub(crate) const MIN_SNDBUF: u32 = 4608;
pub(crate) const MIN_RCVBUF: u32 = 2304;

/// An option that is a number.
pub(crate) struct Plain {
    pub(crate) level: i32,
    pub(crate) name: i32,
    pub(crate) default: i32,
    pub(crate) min: i32,
    pub(crate) max: i32,
    /// Any value but 0 is 1.
    pub(crate) boolean: bool,
    /// Only the default can be set.
    pub(crate) fixed: bool,
}

pub(crate) const fn flag(level: i32, name: i32, default: i32) -> Plain {
    Plain { level, name, default, min: i32::MIN, max: i32::MAX, boolean: true, fixed: false }
}
pub(crate) const fn number(level: i32, name: i32, default: i32, min: i32, max: i32) -> Plain {
    Plain { level, name, default, min, max, boolean: false, fixed: false }
}

/// What the option switches is always as `value` says.
pub(crate) const fn fixed(level: i32, name: i32, value: i32) -> Plain {
    Plain { level, name, default: value, min: i32::MIN, max: i32::MAX, boolean: false, fixed: true }
}
/// As [`fixed`], for a boolean.
pub(crate) const fn fixed_flag(level: i32, name: i32, value: i32) -> Plain {
    Plain { boolean: true, ..fixed(level, name, value) }
}

const SOCKET: &[Plain] = &[
    flag(SOL_SOCKET, SO_REUSEADDR, 0),
    flag(SOL_SOCKET, SO_REUSEPORT, 0),
    flag(SOL_SOCKET, SO_BROADCAST, 0),
    flag(SOL_SOCKET, SO_KEEPALIVE, 0),
    // A record of calls that nobody could read.
    fixed_flag(SOL_SOCKET, SO_DEBUG, 0),
    fixed_flag(SOL_SOCKET, SO_DONTROUTE, 0),
    // There is no urgent data: the byte that it marks stands in its place among the others.
    fixed_flag(SOL_SOCKET, SO_OOBINLINE, 1),
    fixed_flag(SOL_SOCKET, SO_NO_CHECK, 0),
    fixed_flag(SOL_SOCKET, SO_TIMESTAMP, 0),
    fixed_flag(SOL_SOCKET, SO_TIMESTAMPNS, 0),
    fixed_flag(SOL_SOCKET, SO_RXQ_OVFL, 0),
    // One queue, first in first out, and routes that ask for no mark.
    fixed(SOL_SOCKET, SO_PRIORITY, 0),
    fixed(SOL_SOCKET, SO_MARK, 0),
    // Whoever turns the shard decides when to poll.
    fixed(SOL_SOCKET, SO_BUSY_POLL, 0),
    fixed(SOL_SOCKET, SO_INCOMING_CPU, -1),
];

/// The table row of an option.
pub(crate) fn plain_row(table: &'static [Plain], level: i32, name: i32) -> Option<&'static Plain> {
    table.iter().find(|p| p.level == level && p.name == name)
}

impl Plain {
    /// The value to store.
    pub(crate) fn checked(&self, v: i32) -> Result<i32, Errno> {
        let v = if self.boolean { i32::from(v != 0) } else { v };
        match v {
            v if v < self.min || v > self.max => Err(Errno::EINVAL),
            v if self.fixed && v != self.default => Err(Errno::ENOPROTOOPT),
            v => Ok(v),
        }
    }
}

/// The first four bytes of an option value as an `int`.
pub(crate) fn int_of(value: Option<&[u8]>, len: i32) -> Result<i32, Errno> {
    if len < 4 {
        return Err(Errno::EINVAL);
    }
    let bytes = value.ok_or(Errno::EFAULT)?.get(..4).and_then(|b| b.try_into().ok()).ok_or(Errno::EFAULT)?;
    Ok(i32::from_le_bytes(bytes))
}

/// A returned value, cut to the caller's length.
pub(crate) fn give(bytes: &[u8], null: bool, len: i32) -> Result<Reply, Errno> {
    let room = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    let cut = bytes.get(..room).unwrap_or(bytes);
    if null && !cut.is_empty() {
        return Err(Errno::EFAULT);
    }
    Ok(Reply::with(0, Out::Bytes(cut.to_vec())))
}

fn timeval(t: Option<Duration>) -> [u8; 16] {
    let t = t.unwrap_or(Duration::ZERO);
    let mut out = [0; 16];
    out[..8].copy_from_slice(&(t.as_secs() as i64).to_le_bytes());
    out[8..].copy_from_slice(&i64::from(t.subsec_micros()).to_le_bytes());
    out
}

/// A `struct timeval` as a timeout: zero is for ever, a negative time is none at all.
fn timeout(value: Option<&[u8]>, len: i32) -> Result<Option<Duration>, Errno> {
    if len < 16 {
        return Err(Errno::EINVAL);
    }
    let v = value.ok_or(Errno::EFAULT)?;
    let word =
        |at: usize| v.get(at..at + 8).and_then(|b| b.try_into().ok()).map(i64::from_le_bytes).ok_or(Errno::EFAULT);
    let (sec, usec) = (word(0)?, word(8)?);
    if !(0..1_000_000).contains(&usec) {
        return Err(Errno::EDOM);
    }
    Ok(match u64::try_from(sec) {
        Err(_) => Some(Duration::ZERO),
        Ok(0) if usec == 0 => None,
        Ok(sec) => Some(Duration::new(sec, usec as u32 * 1_000)),
    })
}

impl Posix {
    pub(crate) fn setsockopt(
        &mut self,
        fd: i32,
        level: i32,
        name: i32,
        value: Option<&[u8]>,
        len: i32,
    ) -> Result<i64, Errno> {
        let (file, sock) = self.files.sock(fd)?;
        if len < 0 {
            return Err(Errno::EINVAL);
        }
        let proto = sock.proto;
        match (level, proto) {
            (SOL_SOCKET, _) => self.set_socket(file, name, value, len),
            (SOL_TCP, Proto::Tcp(id)) => self.set_tcp(file, id, name, value, len),
            (SOL_UDP, Proto::Udp(_)) => self.set_udp(file, name, value, len),
            (SOL_IP | SOL_IPV6, _) => self.set_ip(file, level, name, value, len),
            _ => Err(Errno::ENOPROTOOPT),
        }
        .map(|()| 0)
    }

    pub(crate) fn getsockopt(&mut self, fd: i32, level: i32, name: i32, null: bool, len: i32) -> Result<Reply, Errno> {
        let (file, sock) = self.files.sock(fd)?;
        let proto = sock.proto;
        if len < 0 {
            return Err(Errno::EINVAL);
        }
        match (level, proto) {
            (SOL_SOCKET, _) => self.get_socket(file, name).and_then(|v| give(&v, null, len)),
            (SOL_TCP, Proto::Tcp(id)) => self.get_tcp(file, id, name).and_then(|v| give(&v, null, len)),
            (SOL_UDP, Proto::Udp(_)) => self.get_udp(file, name).and_then(|v| give(&v, null, len)),
            (SOL_IP | SOL_IPV6, _) => self.get_ip(file, level, name, null, len),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    /// Changes TCP options here and in the stack.
    pub(crate) fn push_opts(&mut self, file: Key, set: impl FnOnce(&mut SockOpts)) {
        let Some(s) = self.files.sock_at_mut(file) else { return };
        set(&mut s.opts);
        let (id, opts) = (s.id(), s.opts.clone());
        // An action, not a mode.
        s.opts.quickack = None;
        // A UDP socket has none of these.
        let _ = self.shard.with_opts(id, |o| *o = opts);
    }

    fn set_socket(&mut self, file: Key, name: i32, value: Option<&[u8]>, len: i32) -> Result<(), Errno> {
        match name {
            SO_TYPE | SO_PROTOCOL | SO_DOMAIN | SO_ERROR | SO_ACCEPTCONN | SO_SNDLOWAT | SO_PEERNAME | SO_MEMINFO
            | SO_COOKIE => {
                // Linux reads the value before it looks at the name.
                return int_of(value, len).and(Err(Errno::ENOPROTOOPT));
            }
            SO_RCVTIMEO | SO_RCVTIMEO_NEW => {
                int_of(value, len)?;
                let t = timeout(value, len)?;
                self.with_sock(file, |s| s.rcvtimeo = t);
                return Ok(());
            }
            SO_SNDTIMEO | SO_SNDTIMEO_NEW => {
                int_of(value, len)?;
                let t = timeout(value, len)?;
                self.with_sock(file, |s| s.sndtimeo = t);
                return Ok(());
            }
            SO_LINGER => return self.set_linger(file, value, len),
            _ => {}
        }
        let v = int_of(value, len)?;
        match name {
            SO_SNDBUF | SO_SNDBUFFORCE => {
                let bound = if name == SO_SNDBUF { self.limits.wmem_max_bytes } else { u32::MAX / 4 };
                // A negative size is a huge one, except where it is forced.
                let v = if v < 0 && name == SO_SNDBUFFORCE { 0 } else { v as u32 };
                self.set_sndbuf(file, (v.min(bound).min(i32::MAX as u32 / 2) * 2).max(MIN_SNDBUF));
            }
            SO_RCVBUF | SO_RCVBUFFORCE => {
                let bound = if name == SO_RCVBUF { self.limits.rmem_max_bytes } else { u32::MAX / 4 };
                let v = if v < 0 && name == SO_RCVBUFFORCE { 0 } else { v as u32 };
                self.set_rcvbuf(file, (v.min(bound).min(i32::MAX as u32 / 2) * 2).max(MIN_RCVBUF));
            }
            SO_RCVLOWAT => self.set_lowat(file, if v < 0 { i32::MAX as u32 } else { v as u32 }),
            SO_BSDCOMPAT => {}
            _ => {
                let row = plain_row(SOCKET, SOL_SOCKET, name).ok_or(Errno::ENOPROTOOPT)?;
                let v = row.checked(v)?;
                self.with_sock(file, |s| {
                    s.plain.insert((SOL_SOCKET, name), v);
                });
                match name {
                    SO_KEEPALIVE => self.push_opts(file, |o| o.keepalive = v != 0),
                    SO_BROADCAST => self.udp_opts(file, |o| o.broadcast = v != 0),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Changes the stack's options of a UDP socket; nothing for others.
    pub(crate) fn udp_opts(&mut self, file: Key, set: impl FnOnce(&mut linerate_stack::udp::UdpOpts)) {
        if let Some(Proto::Udp(id)) = self.files.sock_at(file).map(|s| s.proto)
            && let Some(o) = self.shard.udp_mut().opts_mut(id)
        {
            set(o);
        }
    }

    fn set_sndbuf(&mut self, file: Key, bytes: u32) {
        self.push_opts(file, |o| o.sndbuf_bytes = bytes);
        self.udp_opts(file, |o| o.sndbuf_bytes = bytes);
    }
    fn set_rcvbuf(&mut self, file: Key, bytes: u32) {
        self.push_opts(file, |o| o.rcvbuf_bytes = bytes);
        self.udp_opts(file, |o| o.rcvbuf_bytes = bytes);
    }

    /// SO_RCVLOWAT: at most half of what the buffer may become; a stream's buffer grows for it.
    fn set_lowat(&mut self, file: Key, v: u32) {
        let Some(s) = self.files.sock_at(file) else { return };
        let most = if s.opts.rcvbuf_bytes != 0 { s.opts.rcvbuf_bytes } else { self.shard.config().tcp.rmem_bytes[2] };
        let is_tcp = s.tcp().is_some();
        let v = if is_tcp { v.min(most >> 1) } else { v }.max(1);
        let id = s.id();
        self.with_sock(file, |s| s.rcvlowat = v);
        // Only a connection cares; an accepted one is told then.
        let _ = self.shard.set_opt(id, TcpOpt::RcvLowat(v));
    }

    fn set_linger(&mut self, file: Key, value: Option<&[u8]>, len: i32) -> Result<(), Errno> {
        let on = int_of(value, len)?;
        if len < 8 {
            return Err(Errno::EINVAL);
        }
        let seconds = int_of(value.and_then(|v| v.get(4..)), 4)? as u32;
        self.with_sock(file, |s| s.linger_s = seconds);
        self.push_opts(file, |o| o.linger_s = (on != 0).then_some(seconds));
        Ok(())
    }

    fn get_socket(&mut self, file: Key, name: i32) -> Result<Vec<u8>, Errno> {
        let s = self.files.sock_at(file).ok_or(Errno::ENOTSOCK)?;
        let int = match name {
            SO_ERROR => return Ok(self.take_errno(file).to_le_bytes().to_vec()),
            SO_LINGER => {
                let (on, seconds) = (s.opts.linger_s.is_some(), s.opts.linger_s.unwrap_or(s.linger_s));
                return Ok([u32::from(on).to_le_bytes(), seconds.to_le_bytes()].concat());
            }
            SO_RCVTIMEO | SO_RCVTIMEO_NEW => return Ok(timeval(s.rcvtimeo).to_vec()),
            SO_SNDTIMEO | SO_SNDTIMEO_NEW => return Ok(timeval(s.sndtimeo).to_vec()),
            SO_MEMINFO => return Ok(self.meminfo(s).iter().flat_map(|n| n.to_le_bytes()).collect()),
            SO_COOKIE => return Ok(s.id().as_u64().to_le_bytes().to_vec()),
            SO_PEERNAME => {
                let peer = match s.proto {
                    Proto::Tcp(id) => self.shard.peer_addr(id),
                    Proto::Udp(_) => s.peer,
                };
                return Ok(sockaddr_bytes(s.show(peer.ok_or(Errno::ENOTCONN)?)));
            }
            SO_TYPE => {
                if s.tcp().is_some() {
                    SOCK_STREAM
                } else {
                    SOCK_DGRAM
                }
            }
            SO_PROTOCOL => {
                if s.tcp().is_some() {
                    IPPROTO_TCP
                } else {
                    IPPROTO_UDP
                }
            }
            SO_DOMAIN => {
                if s.is_v6 {
                    AF_INET6
                } else {
                    AF_INET
                }
            }
            SO_ACCEPTCONN => i32::from(s.listening),
            SO_SNDBUF => self.sndbuf(s) as i32,
            SO_RCVBUF => self.rcvbuf(s) as i32,
            SO_RCVLOWAT => s.rcvlowat as i32,
            SO_SNDLOWAT => 1,
            SO_BSDCOMPAT => 0,
            _ => {
                let row = plain_row(SOCKET, SOL_SOCKET, name).ok_or(Errno::ENOPROTOOPT)?;
                s.plain.get(&(SOL_SOCKET, name)).copied().unwrap_or(row.default)
            }
        };
        Ok(int.to_le_bytes().to_vec())
    }

    /// SO_ERROR's number, 0 without one.
    fn take_errno(&mut self, file: Key) -> i32 {
        let errno = match self.files.sock_at(file).map(|s| s.proto) {
            Some(Proto::Tcp(id)) => self.shard.take_error(id).map(|e| e.errno()),
            Some(Proto::Udp(id)) => self.shard.udp_mut().take_error(id),
            None => None,
        };
        errno.map_or(0, Errno::number)
    }

    /// The send buffer as SO_SNDBUF shows it, bytes.
    pub(crate) fn sndbuf(&self, s: &Sock) -> u32 {
        match s.proto {
            Proto::Tcp(id) => match self.shard.conn(id) {
                Some(c) => c.sndbuf_bytes(),
                None if s.opts.sndbuf_bytes != 0 => s.opts.sndbuf_bytes,
                None => self.shard.config().tcp.wmem_bytes[1],
            },
            Proto::Udp(id) => self.shard.udp().opts(id).map_or(0, |o| o.sndbuf_bytes),
        }
    }
    /// The receive buffer as SO_RCVBUF shows it, bytes.
    pub(crate) fn rcvbuf(&self, s: &Sock) -> u32 {
        match s.proto {
            Proto::Tcp(id) => match self.shard.conn(id) {
                Some(c) => c.rcvbuf_bytes(),
                None if s.opts.rcvbuf_bytes != 0 => s.opts.rcvbuf_bytes,
                None => self.shard.config().tcp.rmem_bytes[1],
            },
            Proto::Udp(id) => self.shard.udp().opts(id).map_or(0, |o| o.rcvbuf_bytes),
        }
    }

    /// SO_MEMINFO: rmem_alloc, rcvbuf, wmem_alloc, sndbuf, fwd_alloc, wmem_queued, optmem, backlog, drops.
    fn meminfo(&self, s: &Sock) -> [u32; 9] {
        let (rmem, wmem) = match s.proto {
            Proto::Tcp(id) => self.shard.conn(id).map_or((0, 0), |c| (c.rmem_alloc_bytes(), c.wmem_queued_bytes())),
            Proto::Udp(id) => (self.shard.udp().rmem_bytes(id), 0),
        };
        [rmem, self.rcvbuf(s), 0, self.sndbuf(s), 0, wmem, 0, 0, 0]
    }
}

/// `struct sockaddr_in` or `sockaddr_in6`.
pub(crate) fn sockaddr_bytes(a: std::net::SocketAddr) -> Vec<u8> {
    let port = a.port().to_be_bytes();
    match a.ip() {
        std::net::IpAddr::V4(ip) => [&(AF_INET as u16).to_le_bytes()[..], &port, &ip.octets(), &[0; 8]].concat(),
        std::net::IpAddr::V6(ip) => {
            [&(AF_INET6 as u16).to_le_bytes()[..], &port, &[0; 4], &ip.octets(), &[0; 4]].concat()
        }
    }
}

/// fcntl, ioctl, pipe.
impl Posix {
    pub(crate) fn fcntl(&mut self, fd: i32, cmd: i32, arg: i64) -> Result<i64, Errno> {
        let key = self.files.key(fd)?;
        match cmd {
            F_GETFL => Ok(self.files.get(key).map_or(0, |f| i64::from(f.access | f.status))),
            F_SETFL => {
                if let Some(f) = self.files.get_mut(key) {
                    f.status = arg as i32 & SETFL_MASK;
                }
                Ok(0)
            }
            F_GETFD => self.files.fd_flags(fd).map(i64::from),
            F_SETFD => self.files.set_fd_flags(fd, arg as i32).map(|()| 0),
            F_DUPFD | F_DUPFD_CLOEXEC => {
                let least = usize::try_from(arg).ok().filter(|n| *n < 1 << 20).ok_or(Errno::EINVAL)?;
                self.files.install(key, least, cmd == F_DUPFD_CLOEXEC).map(i64::from)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn ioctl(&mut self, fd: i32, request: u64, value: i32, null: bool) -> Result<Reply, Errno> {
        let key = self.files.key(fd)?;
        if request == FIONBIO {
            if null {
                return Err(Errno::EFAULT);
            }
            if let Some(f) = self.files.get_mut(key) {
                f.set_nonblock(value != 0);
            }
            return Ok(Reply::with(0, Out::Int(value)));
        }
        let n = match &self.files.get(key).ok_or(Errno::EBADF)?.kind {
            Kind::Pipe(p) if request == FIONREAD => p.queued() as i64,
            Kind::Pipe(_) | Kind::Epoll(_) => return Err(Errno::ENOTTY),
            Kind::Sock(s) => self.queue_length(s, request)?,
        };
        if null {
            return Err(Errno::EFAULT);
        }
        Ok(Reply::with(0, Out::Int(n.min(i64::from(i32::MAX)) as i32)))
    }

    fn queue_length(&self, s: &Sock, request: u64) -> Result<i64, Errno> {
        let id = match (s.proto, request) {
            (Proto::Tcp(id), FIONREAD | SIOCOUTQ | SIOCOUTQNSD | SIOCATMARK) => id,
            (Proto::Udp(id), FIONREAD) => return Ok(i64::from(self.shard.udp().inq_bytes(id))),
            (Proto::Udp(_), SIOCOUTQ) => return Ok(0),
            _ => return Err(Errno::ENOTTY),
        };
        if s.listening && request != SIOCATMARK {
            return Err(Errno::EINVAL);
        }
        let Some(c) = self.shard.conn(id) else { return Ok(0) };
        let opening = matches!(c.state(), State::SynSent | State::SynRcvd);
        Ok(match request {
            FIONREAD if opening => 0,
            FIONREAD => i64::from(c.inq_bytes()),
            SIOCOUTQ if opening => 0,
            SIOCOUTQ => i64::from(c.outq_bytes()),
            SIOCOUTQNSD if opening => 0,
            SIOCOUTQNSD => i64::from(c.unsent_bytes()),
            // No urgent data, so never at its mark.
            _ => 0,
        })
    }

    pub(crate) fn pipe(&mut self, flags: i32) -> Result<Reply, Errno> {
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let (r, w) = crate::pipe::pair();
        let (nonblock, cloexec) = (flags & SOCK_NONBLOCK != 0, flags & SOCK_CLOEXEC != 0);
        let end = |end, access| File { access, ..File::new(Kind::Pipe(end), nonblock) };
        let r = self.files.open(end(r, 0), cloexec)?;
        let w = self.files.open(end(w, 1), cloexec).inspect_err(|_| {
            if let Ok(key) = self.files.take(r) {
                self.release(key);
            }
        })?;
        Ok(Reply::with(0, Out::Pipe(r, w)))
    }
}
