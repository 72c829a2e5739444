//! Sending: `write`, `writev`, `send`, `sendto`, `sendmsg`, with the rules of Linux's `tcp_sendmsg` and `udp_sendmsg`.
//!
//! A stream that may sleep returns only when everything is queued, or an error stopped it: then what was queued is the
//! result and the error stays for the next call. One that must not sleep returns what fitted, or EAGAIN. The buffers of a
//! vector are one write. Order of answers on a stream: handshake (EAGAIN or sleep), pending error, EPIPE, then EFAULT for
//! a NULL buffer. Limits: MSG_OOB, MSG_FASTOPEN and MSG_ZEROCOPY are EOPNOTSUPP; control messages are understood for
//! UDP_SEGMENT only, others of those levels are EINVAL.

use linerate_base::{Errno, Key};
use linerate_stack::udp::SendOpts;
use linerate_stack::{Ready, SockId};
use linerate_tcp::{SendFlags, State};

use crate::abi::{MSG_EOR, MSG_FASTOPEN, MSG_MORE, MSG_OOB, MSG_ZEROCOPY, SOL_SOCKET, SOL_UDP, UDP_SEGMENT};
use crate::call::{Addr, Cmsg, Data, Outcome, Reply};
use crate::fd::Kind;
use crate::ops::{Work, timeout_of};
use crate::posix::{Posix, Start};
use crate::recv::{UIO_MAXIOV, total_of};
use crate::sock::Proto;

/// Zero bytes are made in pieces of this size: more than any send buffer takes at once.
const ZEROS: usize = 8 << 20;

/// A sending call on its way.
pub(crate) struct Send {
    pub(crate) file: Key,
    bytes: Bytes,
    /// A part with a length is NULL.
    faults: bool,
    total: usize,
    done: usize,
    flags: i32,
    addr: Option<Addr>,
    gso_size: Option<u16>,
    /// It slept for room: only a third of the buffer wakes it, not the first free byte.
    waits_for_room: bool,
}

/// What is sent, as one run of bytes.
enum Bytes {
    These(Vec<u8>),
    /// Only zeros: a piece of them stands for all.
    Zeros(Vec<u8>),
}

impl Bytes {
    fn of(iov: Vec<Data>, total: usize) -> Self {
        if iov.iter().all(|d| !matches!(d, Data::Bytes(b) if !b.is_empty())) {
            return Self::Zeros(vec![0; total.min(ZEROS)]);
        }
        let mut all = Vec::with_capacity(total);
        for part in iov {
            match part {
                Data::Bytes(b) => all.extend(b),
                Data::Zeros(n) => all.resize(all.len().saturating_add(n).min(total), 0),
                Data::Null(_) => {}
            }
        }
        all.truncate(total);
        Self::These(all)
    }
    /// Bytes from `at` on, of `total`: all of them, or as many as stand for the rest.
    fn from(&self, at: usize, total: usize) -> &[u8] {
        match self {
            Self::These(all) => all.get(at..).unwrap_or_default(),
            Self::Zeros(some) => some.get(..(total - at).min(some.len())).unwrap_or_default(),
        }
    }
}

fn gso_size_of(control: &[Cmsg]) -> Result<Option<u16>, Errno> {
    let mut size = None;
    for c in control {
        match (c.level, c.kind, c.data.as_slice()) {
            (SOL_UDP, UDP_SEGMENT, &[a, b]) => size = Some(u16::from_le_bytes([a, b])),
            (SOL_UDP | SOL_SOCKET, ..) => return Err(Errno::EINVAL),
            _ => {}
        }
    }
    Ok(size.filter(|s| *s > 0))
}

impl Posix {
    pub(crate) fn start_send(
        &mut self,
        fd: i32,
        iov: Vec<Data>,
        flags: i32,
        addr: Option<Addr>,
        control: &[Cmsg],
    ) -> Result<Start, Errno> {
        let file = self.files.key(fd)?;
        if iov.len() > UIO_MAXIOV {
            return Err(Errno::EINVAL);
        }
        let total = total_of(iov.iter().map(Data::len))?;
        let f = self.files.get(file).ok_or(Errno::EBADF)?;
        let plain = addr.is_none() && control.is_empty() && flags == 0;
        let (socket_timeout, default_gso) = match &f.kind {
            Kind::Sock(s) => (s.sndtimeo, s.plain(SOL_UDP, UDP_SEGMENT)),
            Kind::Pipe(p) if !p.is_read && plain => (None, 0),
            Kind::Pipe(_) if plain => return Err(Errno::EBADF),
            Kind::Epoll(_) if plain => return Err(Errno::EINVAL),
            _ => return Err(Errno::ENOTSOCK),
        };
        if flags & (MSG_OOB | MSG_FASTOPEN | MSG_ZEROCOPY) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let gso_size = gso_size_of(control)?.or(u16::try_from(default_gso).ok().filter(|s| *s > 0));
        let faults = iov.iter().any(|d| matches!(d, Data::Null(n) if *n > 0));
        let timeout = timeout_of(f.nonblock(), flags, socket_timeout);
        let bytes = Bytes::of(iov, total);
        self.files.hold(file);
        Ok(Start::Work(
            Work::Send(Send { file, bytes, faults, total, done: 0, flags, addr, gso_size, waits_for_room: false }),
            timeout,
        ))
    }

    pub(crate) fn step_send(&mut self, s: &mut Send, may_sleep: bool) -> Option<Outcome> {
        match &self.files.get(s.file)?.kind {
            Kind::Pipe(p) => {
                if s.faults {
                    return Some(Err(Errno::EFAULT));
                }
                while s.done < s.total {
                    match p.write(s.bytes.from(s.done, s.total)) {
                        Ok(n) => s.done += n,
                        Err(Errno::EAGAIN) if may_sleep => return None,
                        Err(e) if s.done == 0 => return Some(Err(e)),
                        Err(_) => break,
                    }
                }
                Some(Ok(Reply::ret(s.done as i64)))
            }
            Kind::Sock(sock) => match sock.proto {
                Proto::Tcp(id) => self.send_tcp(s, id, may_sleep),
                Proto::Udp(id) => self.send_udp(s, id, may_sleep),
            },
            Kind::Epoll(_) => Some(Err(Errno::EINVAL)),
        }
    }

    fn send_tcp(&mut self, s: &mut Send, id: SockId, may_sleep: bool) -> Option<Outcome> {
        let Some(conn) = self.shard.conn(id) else {
            let error = self.shard.take_error(id).map_or(Errno::EPIPE, |e| e.errno());
            return Some(Err(error));
        };
        if matches!(conn.state(), State::SynSent | State::SynRcvd) && !conn.has_error() {
            return if may_sleep { None } else { Some(Err(Errno::EAGAIN)) };
        }
        let so_far = |s: &Send, e: Errno| if s.done > 0 { Ok(Reply::ret(s.done as i64)) } else { Err(e) };
        if s.done > 0 && self.shard.readiness(id).intersects(Ready::ERROR | Ready::HUP) {
            // The error belongs to the next call.
            return Some(Ok(Reply::ret(s.done as i64)));
        }
        let woken = self.shard.readiness(id).intersects(Ready::WRITABLE | Ready::ERROR | Ready::HUP);
        if s.waits_for_room && may_sleep && !woken {
            return None;
        }
        if s.faults || s.total == 0 {
            return Some(match self.shard.write(id, &[]) {
                Err(e) => so_far(s, e.errno()),
                Ok(_) if s.faults => Err(Errno::EFAULT),
                Ok(_) => Ok(Reply::ret(0)),
            });
        }
        while s.done < s.total {
            let part = s.bytes.from(s.done, s.total);
            let last = s.done + part.len() == s.total;
            let flags = SendFlags { more: !last || s.flags & MSG_MORE != 0, eor: last && s.flags & MSG_EOR != 0 };
            match self.shard.write_flags(id, part, flags) {
                Ok(n) => s.done += n,
                Err(e) if e.errno() == Errno::EAGAIN => {
                    s.waits_for_room = true;
                    return if may_sleep { None } else { Some(so_far(s, Errno::EAGAIN)) };
                }
                Err(e) => return Some(so_far(s, e.errno())),
            }
        }
        Some(Ok(Reply::ret(s.done as i64)))
    }

    fn send_udp(&mut self, s: &mut Send, id: SockId, may_sleep: bool) -> Option<Outcome> {
        let sock = self.files.sock_at(s.file)?;
        if s.total > 0xffff {
            return Some(Err(Errno::EMSGSIZE));
        }
        if sock.shut_wr {
            return Some(Err(Errno::EPIPE));
        }
        let to = match s.addr {
            Some(Addr::Inet(a)) => match sock.read_addr(a, Errno::EINVAL) {
                Ok(a) => Some(a),
                Err(e) => return Some(Err(e)),
            },
            _ => None,
        };
        if s.faults {
            return Some(Err(Errno::EFAULT));
        }
        let opts = SendOpts { gso_size: s.gso_size.filter(|g| usize::from(*g) < s.total), ..SendOpts::default() };
        match self.shard.send_to(id, s.bytes.from(0, s.total), to, opts) {
            Ok(n) => Some(Ok(Reply::ret(n as i64))),
            Err(e) if e.errno() == Errno::EAGAIN && may_sleep => None,
            Err(e) => Some(Err(e.errno())),
        }
    }
}
