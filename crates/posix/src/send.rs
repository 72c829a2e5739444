//! Sending: `write`, `writev`, `send`, `sendto`, `sendmsg`, with the rules of Linux's `tcp_sendmsg` and `udp_sendmsg`.
//!
//! A stream that may sleep returns only when everything is queued, or an error stopped it: then what was queued is the
//! result and the error stays for the next call. One that must not sleep returns what fitted, or EAGAIN. The buffers of a
//! vector are one write. Order of answers on a stream: handshake (EAGAIN or sleep), pending error, EPIPE, then EFAULT for
//! a NULL buffer. Limits: MSG_OOB, MSG_FASTOPEN and MSG_ZEROCOPY are EOPNOTSUPP; control messages of a datagram may say
//! UDP_SEGMENT, IP_TOS, IP_TTL, IP_PKTINFO and their IPv6 twins, others of those levels are EINVAL. The device of a PKTINFO
//! is not obeyed: routes choose it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_base::{Errno, Key};
use linerate_stack::udp::SendOpts;
use linerate_stack::{Ready, SockId};
use linerate_tcp::{SendFlags, State};

use crate::abi::*;
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
    asked: Asked,
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

/// What control messages ask for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asked {
    gso_size: Option<u16>,
    tos: Option<u8>,
    ttl: Option<u8>,
    src: Option<IpAddr>,
}

fn int4(data: &[u8]) -> Result<i32, Errno> {
    data.try_into().map(i32::from_le_bytes).map_err(|_| Errno::EINVAL)
}

impl Asked {
    /// Reads them for a datagram (Linux `udp_cmsg_send`, `ip_cmsg_send`, `ip6_datagram_send_ctl`): one of a level that is
    /// looked at and that is not known is EINVAL. A stream looks at level SOL_SOCKET alone, where nothing is known.
    fn of(control: &[Cmsg], is_stream: bool, is_v6: bool) -> Result<Self, Errno> {
        let mut asked = Self::default();
        for c in control {
            match (c.level, c.kind) {
                (SOL_SOCKET, _) => return Err(Errno::EINVAL),
                _ if is_stream => {}
                (SOL_UDP, UDP_SEGMENT) => {
                    let size = c.data.as_slice().try_into().map_err(|_| Errno::EINVAL)?;
                    asked.gso_size = Some(u16::from_le_bytes(size)).filter(|s| *s > 0);
                }
                (SOL_UDP, _) => return Err(Errno::EINVAL),
                (SOL_IP, _) => asked.take_ip(c)?,
                (SOL_IPV6, _) if is_v6 => asked.take_ipv6(c)?,
                _ => {}
            }
        }
        Ok(asked)
    }

    fn take_ip(&mut self, c: &Cmsg) -> Result<(), Errno> {
        match c.kind {
            IP_TOS => {
                let v = if let [b] = c.data[..] { i32::from(b) } else { int4(&c.data)? };
                self.tos = Some(u8::try_from(v).map_err(|_| Errno::EINVAL)?);
            }
            IP_TTL => self.ttl = Some(u8::try_from(int4(&c.data)?).ok().filter(|t| *t > 0).ok_or(Errno::EINVAL)?),
            IP_PKTINFO => {
                // ifindex, the source that is wished, and an address that is not read. Routes choose the device.
                let info: [u8; 12] = c.data.as_slice().try_into().map_err(|_| Errno::EINVAL)?;
                let src = Ipv4Addr::new(info[4], info[5], info[6], info[7]);
                self.src = Some(IpAddr::V4(src)).filter(|a| !a.is_unspecified());
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn take_ipv6(&mut self, c: &Cmsg) -> Result<(), Errno> {
        // -1 is the socket's own.
        let byte = |data: &[u8]| match int4(data)? {
            -1 => Ok(None),
            v => u8::try_from(v).map(Some).map_err(|_| Errno::EINVAL),
        };
        match c.kind {
            IPV6_TCLASS => self.tos = byte(&c.data)?,
            IPV6_HOPLIMIT => self.ttl = byte(&c.data)?.filter(|t| *t > 0),
            IPV6_PKTINFO => {
                let info: [u8; 20] = c.data.as_slice().try_into().map_err(|_| Errno::EINVAL)?;
                let (ip, _) = info.split_first_chunk::<16>().ok_or(Errno::EINVAL)?;
                self.src = Some(Ipv6Addr::from(*ip).to_canonical()).filter(|a| !a.is_unspecified());
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }
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
        let (socket_timeout, default_gso, is_stream, is_v6) = match &f.kind {
            Kind::Sock(s) => (s.sndtimeo, s.plain(SOL_UDP, UDP_SEGMENT), s.tcp().is_some(), s.is_v6),
            Kind::Pipe(p) if !p.is_read && plain => (None, 0, true, false),
            Kind::Pipe(_) if plain => return Err(Errno::EBADF),
            Kind::Epoll(_) if plain => return Err(Errno::EINVAL),
            _ => return Err(Errno::ENOTSOCK),
        };
        if flags & (MSG_OOB | MSG_FASTOPEN | MSG_ZEROCOPY) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut asked = Asked::of(control, is_stream, is_v6)?;
        asked.gso_size = asked.gso_size.or(u16::try_from(default_gso).ok().filter(|s| *s > 0));
        let faults = iov.iter().any(|d| matches!(d, Data::Null(n) if *n > 0));
        let timeout = timeout_of(f.nonblock(), flags, socket_timeout);
        let bytes = Bytes::of(iov, total);
        self.files.hold(file);
        Ok(Start::Work(
            Work::Send(Send { file, bytes, faults, total, done: 0, flags, addr, asked, waits_for_room: false }),
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
        let Asked { gso_size, tos, ttl, src } = s.asked;
        let opts = SendOpts { gso_size: gso_size.filter(|g| usize::from(*g) < s.total), tos, ttl, src };
        match self.shard.send_to(id, s.bytes.from(0, s.total), to, opts) {
            Ok(n) => Some(Ok(Reply::ret(n as i64))),
            Err(e) if e.errno() == Errno::EAGAIN && may_sleep => None,
            Err(e) => Some(Err(e.errno())),
        }
    }
}
