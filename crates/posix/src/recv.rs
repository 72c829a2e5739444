//! Receiving: `read`, `readv`, `recv`, `recvfrom`, `recvmsg`, with the rules of Linux's `tcp_recvmsg` and `udp_recvmsg`.
//!
//! A stream returns as soon as it has `target` bytes: all of them with MSG_WAITALL, else SO_RCVLOWAT or what was asked for
//! when that is less. When it would sleep for more and has something, O_NONBLOCK, an error, the end of the stream and a
//! timeout all return what it has; an error is kept for the next call then. A buffer that is NULL is EFAULT only when there
//! is something to copy to it, and nothing is consumed then. MSG_PEEK leaves the bytes; MSG_TRUNC on a stream throws them
//! away uncopied. Limits: no urgent data (MSG_OOB is EINVAL, as without any) and no error queue (MSG_ERRQUEUE is EAGAIN, as
//! an empty one).

use std::net::{IpAddr, SocketAddr};

use linerate_base::{Errno, Key};
use linerate_stack::udp::UdpRecv;
use linerate_stack::{Ready, SockId};

use crate::abi::*;
use crate::call::{Cmsg, Out, Outcome, Received, RecvKind, Reply, Span};
use crate::fd::Kind;
use crate::ops::{Work, timeout_of};
use crate::posix::{Posix, Start};
use crate::sock::{Proto, Sock};
use crate::sockopt::sockaddr_bytes;

/// Most bytes that one call moves (Linux's MAX_RW_COUNT).
pub(crate) const MAX_RW_COUNT: usize = 0x7fff_f000;
/// Most buffers of one call (UIO_MAXIOV).
pub(crate) const UIO_MAXIOV: usize = 1024;
/// Bytes of a control message's header.
const CMSG_HEADER: usize = 16;

/// A receiving call on its way.
pub(crate) struct Recv {
    pub(crate) file: Key,
    iov: Vec<Span>,
    total: usize,
    flags: i32,
    kind: RecvKind,
    /// What was taken so far.
    got: Vec<u8>,
    /// Bytes taken so far; more than `got` holds when they are thrown away.
    count: usize,
}

impl Recv {
    /// Does some NULL buffer lie within the next `n` bytes, and are they copied at all?
    fn faults(&self, n: usize) -> bool {
        let (from, to) = (self.count, self.count + n);
        let mut at = 0;
        self.iov.iter().any(|s| {
            let (begin, end) = (at, at + s.len);
            at = end;
            s.null && s.len > 0 && begin < to && end > from
        }) && !self.has(MSG_TRUNC)
    }
    fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }
}

/// Sum of buffer lengths, bounded as Linux bounds it.
pub(crate) fn total_of(lens: impl Iterator<Item = usize>) -> Result<usize, Errno> {
    let mut total: usize = 0;
    for len in lens {
        if len > isize::MAX as usize {
            return Err(Errno::EINVAL);
        }
        total = total.saturating_add(len);
    }
    Ok(total.min(MAX_RW_COUNT))
}

impl Posix {
    pub(crate) fn start_recv(&mut self, fd: i32, iov: Vec<Span>, flags: i32, kind: RecvKind) -> Result<Start, Errno> {
        let file = self.files.key(fd)?;
        if iov.len() > UIO_MAXIOV {
            return Err(if matches!(kind, RecvKind::Msg { .. }) { Errno::EMSGSIZE } else { Errno::EINVAL });
        }
        let total = total_of(iov.iter().map(|s| s.len))?;
        let f = self.files.get(file).ok_or(Errno::EBADF)?;
        let socket_timeout = match &f.kind {
            Kind::Sock(s) => s.rcvtimeo,
            Kind::Pipe(p) if p.is_read && kind == RecvKind::Read => None,
            Kind::Pipe(_) if kind == RecvKind::Read => return Err(Errno::EBADF),
            Kind::Epoll(_) if kind == RecvKind::Read => return Err(Errno::EINVAL),
            _ => return Err(Errno::ENOTSOCK),
        };
        if kind == RecvKind::Read && total == 0 {
            return Ok(Start::Done(Reply::with(0, Out::Msg(Received::default()))));
        }
        let timeout = timeout_of(f.nonblock(), flags, socket_timeout);
        self.files.hold(file);
        Ok(Start::Work(Work::Recv(Recv { file, iov, total, flags, kind, got: Vec::new(), count: 0 }), timeout))
    }

    pub(crate) fn step_recv(&mut self, r: &mut Recv, may_sleep: bool) -> Option<Outcome> {
        match &self.files.get(r.file)?.kind {
            Kind::Pipe(p) => match p.read(r.total) {
                Err(Errno::EAGAIN) if may_sleep => None,
                Err(e) => Some(Err(e)),
                Ok(data) if r.faults(data.len()) => Some(Err(Errno::EFAULT)),
                Ok(data) => {
                    let ret = data.len() as i64;
                    Some(Ok(Reply::with(ret, Out::Msg(Received { data, ..Received::default() }))))
                }
            },
            Kind::Sock(s) => match s.proto {
                Proto::Tcp(id) => self.recv_tcp(r, id, may_sleep),
                Proto::Udp(id) => self.recv_udp(r, id, may_sleep),
            },
            Kind::Epoll(_) => Some(Err(Errno::EINVAL)),
        }
    }

    fn recv_tcp(&mut self, r: &mut Recv, id: SockId, may_sleep: bool) -> Option<Outcome> {
        let sock = self.files.sock_at(r.file)?;
        if r.has(MSG_ERRQUEUE) {
            return Some(Err(Errno::EAGAIN));
        }
        if sock.listening {
            return Some(Err(Errno::ENOTCONN));
        }
        if r.has(MSG_OOB) {
            return Some(Err(Errno::EINVAL));
        }
        if self.shard.conn(id).is_none() {
            let error = self.shard.take_error(id).map_or(Errno::ENOTCONN, |e| e.errno());
            return Some(Err(error));
        }
        let low = if r.has(MSG_WAITALL) { r.total } else { (sock.rcvlowat as usize).min(r.total) };
        let target = low.max(1);
        if r.has(MSG_PEEK) {
            r.count = 0;
        }
        loop {
            let inq = self.shard.conn(id).map_or(0, |c| c.inq_bytes()) as usize;
            let want = inq.min(r.total - r.count);
            if want > 0 && r.faults(want) {
                return Some(if r.count > 0 { Ok(self.received_tcp(r, id)) } else { Err(Errno::EFAULT) });
            }
            if want == 0 && r.count > 0 {
                // Nothing more now. Why is looked at without using up an error: what was taken is returned first.
                let over =
                    self.shard.readiness(id).intersects(Ready::READABLE | Ready::ERROR | Ready::HUP | Ready::RDHUP);
                let done = r.count >= target.min(r.total) || r.count == r.total || over || !may_sleep;
                return if done { Some(Ok(self.received_tcp(r, id))) } else { None };
            }
            if want == 0 && inq > 0 {
                return Some(Ok(self.received_tcp(r, id)));
            }
            match self.take_tcp(r, id, want) {
                Ok(0) => return Some(Ok(self.received_tcp(r, id))),
                Ok(n) => {
                    r.count += n;
                    if r.has(MSG_PEEK) && r.count < target.min(r.total) && may_sleep && !self.stream_ended(id) {
                        return None;
                    }
                    if r.has(MSG_PEEK) || r.count == r.total || (r.count >= target && !self.has_more(id)) {
                        return Some(Ok(self.received_tcp(r, id)));
                    }
                }
                Err(Errno::EAGAIN) if may_sleep => return None,
                Err(e) => return Some(Err(e)),
            }
        }
    }

    fn has_more(&self, id: SockId) -> bool {
        self.shard.conn(id).is_some_and(|c| c.inq_bytes() > 0)
    }
    fn stream_ended(&self, id: SockId) -> bool {
        self.shard.readiness(id).intersects(Ready::ERROR | Ready::HUP | Ready::RDHUP)
    }

    /// Takes `want` bytes, or with 0 learns why there are none.
    fn take_tcp(&mut self, r: &mut Recv, id: SockId, want: usize) -> Result<usize, Errno> {
        if r.has(MSG_TRUNC) && !r.has(MSG_PEEK) && want > 0 {
            return self.shard.read_discard(id, want).map_err(|e| e.errno());
        }
        let at = if r.has(MSG_PEEK) { 0 } else { r.got.len() };
        r.got.resize(at + want, 0);
        let mut nothing = [0];
        let peek = r.has(MSG_PEEK);
        let room = match r.got.get_mut(at..) {
            Some(room) if want > 0 => room,
            _ => &mut nothing[..],
        };
        let got = if peek { self.shard.peek(id, room) } else { self.shard.read(id, room) };
        let n = got.map_err(|e| e.errno())?;
        r.got.truncate(at + n.min(want));
        Ok(n.min(want))
    }

    fn received_tcp(&self, r: &mut Recv, id: SockId) -> Reply {
        let mut m = Received { data: core::mem::take(&mut r.got), ..Received::default() };
        let wants_inq = self.files.sock_at(r.file).is_some_and(|s| s.plain(SOL_TCP, TCP_INQ) != 0);
        if wants_inq && let RecvKind::Msg { control_len } = r.kind {
            let inq = self.shard.conn(id).map_or(0, |c| {
                // At the end of the stream Linux says one byte, so that the reader comes for it.
                let ended = self.shard.readiness(id).contains(Ready::RDHUP);
                c.inq_bytes().max(u32::from(ended && c.inq_bytes() == 0))
            });
            push_cmsg(&mut m, control_len, SOL_TCP, TCP_INQ, &(inq as i32).to_le_bytes());
        }
        Reply::with(r.count as i64, Out::Msg(m))
    }

    fn recv_udp(&mut self, r: &mut Recv, id: SockId, may_sleep: bool) -> Option<Outcome> {
        let sock = self.files.sock_at(r.file)?.clone();
        if r.has(MSG_ERRQUEUE) {
            return Some(Err(Errno::EAGAIN));
        }
        if r.has(MSG_OOB) {
            return Some(Err(Errno::EOPNOTSUPP));
        }
        let inq = self.shard.udp().inq_bytes(id) as usize;
        if r.faults(inq.min(r.total)) {
            return Some(Err(Errno::EFAULT));
        }
        let mut buf = vec![0; r.total.min(inq.max(1))];
        let flags = linerate_stack::udp::RecvFlags { peek: r.has(MSG_PEEK) };
        match self.shard.recv_from(id, &mut buf, flags) {
            Err(e) if e.errno() == Errno::EAGAIN && sock.shut_rd => Some(Ok(Reply::ret(0))),
            Err(e) if e.errno() == Errno::EAGAIN && may_sleep => None,
            Err(e) => Some(Err(e.errno())),
            Ok(got) => {
                buf.truncate(got.len);
                let mut m = Received { data: buf, addr: Some(sock.show(got.from)), ..Received::default() };
                if got.truncated {
                    m.flags |= MSG_TRUNC;
                }
                if let RecvKind::Msg { control_len } = r.kind {
                    if let Some(size) = got.gso_size {
                        push_cmsg(&mut m, control_len, SOL_UDP, UDP_GRO, &i32::from(size).to_le_bytes());
                    }
                    let port = self.shard.udp().local_addr(id).map_or(0, |a| a.port());
                    push_ip_cmsgs(&mut m, control_len, &sock, &got, port);
                }
                let ret = if r.has(MSG_TRUNC) { got.full_len } else { got.len };
                Some(Ok(Reply::with(ret as i64, Out::Msg(m))))
            }
        }
    }
}

/// What the socket asked to be told about a datagram's IP header. An AF_INET6 socket is told of IPv4 datagrams what it
/// asked for at level SOL_IP, and their addresses as v4-mapped at level SOL_IPV6 (Linux `ip_cmsg_recv`,
/// `ip6_datagram_recv_ctl`).
fn push_ip_cmsgs(m: &mut Received, room: usize, sock: &Sock, got: &UdpRecv, port: u16) {
    let ifindex = got.ifindex.0.to_le_bytes();
    let (tos, ttl) = (got.tos, i32::from(got.ttl).to_le_bytes());
    let mapped = match got.to {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    if sock.is_v6 && sock.plain(SOL_IPV6, IPV6_RECVPKTINFO) != 0 {
        let info = [&mapped.octets()[..], &ifindex].concat();
        push_cmsg(m, room, SOL_IPV6, IPV6_PKTINFO, &info);
    }
    let IpAddr::V4(to) = got.to else {
        if sock.plain(SOL_IPV6, IPV6_RECVHOPLIMIT) != 0 {
            push_cmsg(m, room, SOL_IPV6, IPV6_HOPLIMIT, &ttl);
        }
        if sock.plain(SOL_IPV6, IPV6_RECVTCLASS) != 0 {
            push_cmsg(m, room, SOL_IPV6, IPV6_TCLASS, &i32::from(tos).to_le_bytes());
        }
        return;
    };
    if sock.plain(SOL_IP, IP_PKTINFO) != 0 {
        // The address to answer from, and the one in the header.
        let info = [ifindex, to.octets(), to.octets()].concat();
        push_cmsg(m, room, SOL_IP, IP_PKTINFO, &info);
    }
    if sock.plain(SOL_IP, IP_RECVTTL) != 0 {
        push_cmsg(m, room, SOL_IP, IP_TTL, &ttl);
    }
    if sock.plain(SOL_IP, IP_RECVTOS) != 0 {
        push_cmsg(m, room, SOL_IP, IP_TOS, &[tos]);
    }
    if sock.plain(SOL_IP, IP_RECVORIGDSTADDR) != 0 {
        let addr = sockaddr_bytes(SocketAddr::new(to.into(), port));
        push_cmsg(m, room, SOL_IP, IP_RECVORIGDSTADDR, &addr);
    }
}

/// Appends a control message where there is room, else says so in the flags.
fn push_cmsg(m: &mut Received, room: usize, level: i32, kind: i32, data: &[u8]) {
    let used: usize = m.control.iter().map(|c| CMSG_HEADER + c.data.len().next_multiple_of(8)).sum();
    match room.saturating_sub(used).checked_sub(CMSG_HEADER) {
        Some(left) if left >= data.len() => m.control.push(Cmsg { level, kind, data: data.to_vec() }),
        Some(left) if left > 0 => {
            m.flags |= MSG_CTRUNC;
            let data = data.get(..left).unwrap_or(data).to_vec();
            m.control.push(Cmsg { level, kind, data });
        }
        _ => m.flags |= MSG_CTRUNC,
    }
}
