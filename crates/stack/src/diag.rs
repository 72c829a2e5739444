//! What `ss` shows: the sockets of a shard, a bounded piece per call.
//!
//! ```text
//!   half-open ──▶ TCP sockets ──▶ TIME-WAIT ──▶ UDP sockets          each table by rising index
//!        cursor ───────▶
//! ```
//! [`Shard::diag`] is called between turns, again and again with the same [`DiagCursor`]. A call looks at no more than
//! [`SLOTS_PER_CALL`] entries and tells of no more than the caller wants, so a dump of a million sockets costs each turn
//! the same few microseconds.
//!
//! A dump is no snapshot: the stack works on between its pieces. Entries of a slab never move, hence: **a socket that is
//! open during the whole dump appears exactly once**; one that opens or closes meanwhile appears once or not at all. The
//! tables stand in the order in which a connection passes through them, so a *connection* that lives on in the next table
//! (half-open, then a socket, then TIME-WAIT) is not missed; it may appear once in each. What is told of a socket belongs
//! to one moment.
//!
//! Nothing is counted for it while nobody asks.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linerate_base::{Instant, Key};
use linerate_tcp::info::{PendingTimer, TimerName};
use linerate_tcp::{Conn, State, TcpConfig, TcpInfo};

use crate::shard::Shard;
use crate::sock::{SockId, SockKind};
use crate::tcp::{Body, Family, Listener, Req, Sock, Tw, flag};

/// Entries that one call looks at, used or free.
pub const SLOTS_PER_CALL: usize = 1024;

/// A state under Linux's number; besides those of a connection there is one that listens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiagState(u8);

impl DiagState {
    /// TCP_LISTEN.
    pub const LISTEN: Self = Self(10);
    /// TCP_CLOSE: also what an unconnected UDP socket is in.
    pub const CLOSE: Self = Self(State::Closed as u8);
    /// TCP_ESTABLISHED: also a connected UDP socket.
    pub const ESTABLISHED: Self = Self(State::Established as u8);
    /// All there are.
    pub const ALL: [Self; 11] =
        [Self(1), Self(2), Self(3), Self(4), Self(5), Self(6), Self(7), Self(8), Self(9), Self(10), Self(11)];

    /// Linux's number, 1 to 11.
    pub const fn number(self) -> u8 {
        self.0
    }
    /// From [`Self::number`].
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.0 == n)
    }
    /// Its bit in [`DiagFilter::states`].
    pub const fn bit(self) -> u16 {
        1 << self.0
    }
    /// The name that `ss` prints.
    pub fn name(self) -> &'static str {
        State::ALL.iter().find(|s| **s as u8 == self.0).map_or("LISTEN", |s| s.ss_name())
    }
}

impl From<State> for DiagState {
    fn from(state: State) -> Self {
        Self(state as u8)
    }
}

/// Which sockets are wanted, and how much of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiagFilter {
    /// TCP.
    pub tcp: bool,
    /// UDP.
    pub udp: bool,
    /// Sockets of IPv4.
    pub v4: bool,
    /// Sockets of IPv6, those that speak IPv4 too included.
    pub v6: bool,
    /// Bits of [`DiagState::bit`].
    pub states: u16,
    /// With [`SockDiag::tcp`].
    pub info: bool,
}

impl DiagFilter {
    /// Everything.
    pub const ALL: Self = Self { tcp: true, udp: true, v4: true, v6: true, states: u16::MAX, info: true };

    fn wants(&self, v6: bool, state: DiagState) -> bool {
        self.states & state.bit() != 0 && if v6 { self.v6 } else { self.v4 }
    }
}

/// Where a dump stands. The default is its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiagCursor {
    table: Table,
    /// The next index to look at.
    index: u32,
}

/// The tables in the order of a dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Table {
    #[default]
    Requests,
    Tcp,
    TimeWait,
    Udp,
    End,
}

impl Table {
    const fn next(self) -> Self {
        match self {
            Self::Requests => Self::Tcp,
            Self::Tcp => Self::TimeWait,
            Self::TimeWait => Self::Udp,
            Self::Udp | Self::End => Self::End,
        }
    }
}

/// Memory of a socket, the numbers of `skmem:(...)` in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SockMem {
    /// Truesize of what is received and not read.
    pub rmem_alloc: u32,
    /// SO_RCVBUF.
    pub rcvbuf: u32,
    /// Truesize of what is below the socket.
    pub wmem_alloc: u32,
    /// SO_SNDBUF.
    pub sndbuf: u32,
    /// Truesize of what is written and not acknowledged.
    pub wmem_queued: u32,
}

/// What only a TCP connection has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpDiag {
    /// TCP_INFO.
    pub info: TcpInfo,
    /// Congestion control.
    pub congestion: &'static str,
}

/// What is told of one socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SockDiag {
    /// Its name while it lives, never 0. A half-open connection and a TIME-WAIT state have none.
    pub id: Option<SockId>,
    /// TCP or UDP.
    pub kind: SockKind,
    /// Its family is IPv6, whatever its addresses.
    pub v6: bool,
    /// IPV6_V6ONLY.
    pub v6only: bool,
    /// Its state.
    pub state: DiagState,
    /// Local end; port 0 while unbound.
    pub local: SocketAddr,
    /// Other end.
    pub peer: Option<SocketAddr>,
    /// Bytes to be read; of a listener the connections to be accepted.
    pub recv_q: u32,
    /// Bytes not acknowledged (TCP) or not sent (UDP); of a listener its backlog.
    pub send_q: u32,
    /// What it waits for.
    pub timer: Option<PendingTimer>,
    /// Memory; `None` where there is no buffer.
    pub mem: Option<SockMem>,
    /// With [`DiagFilter::info`], of a connection.
    pub tcp: Option<Box<TcpDiag>>,
}

impl Shard {
    /// Adds to `out` up to `limit` sockets from `cursor` on and moves it; false when that was the end. A call may add
    /// none and still return true: it has looked at [`SLOTS_PER_CALL`] entries.
    pub fn diag(&self, filter: &DiagFilter, cursor: &mut DiagCursor, limit: usize, out: &mut Vec<SockDiag>) -> bool {
        let full = out.len().saturating_add(limit);
        for _ in 0..SLOTS_PER_CALL {
            while cursor.index >= self.diag_end(cursor.table, filter) {
                if cursor.table == Table::End {
                    return false;
                }
                *cursor = DiagCursor { table: cursor.table.next(), index: 0 };
            }
            if out.len() >= full {
                return true;
            }
            out.extend(self.diag_at(*cursor, filter));
            cursor.index += 1;
        }
        true
    }

    /// The first index of the table that need not be looked at.
    fn diag_end(&self, table: Table, filter: &DiagFilter) -> u32 {
        let tcp = |end: u32| if filter.tcp { end } else { 0 };
        match table {
            Table::Requests => tcp(self.tcp.reqs.index_end()),
            Table::Tcp => tcp(self.tcp.socks.index_end()),
            Table::TimeWait => tcp(self.tcp.tws.index_end()),
            Table::Udp if filter.udp => self.udp.index_end(),
            Table::Udp | Table::End => 0,
        }
    }

    fn diag_at(&self, cursor: DiagCursor, filter: &DiagFilter) -> Option<SockDiag> {
        let (now, index) = (self.core.now, cursor.index);
        match cursor.table {
            Table::Requests => {
                let req = self.tcp.reqs.get_by_index(index)?;
                let v6 = self.tcp.socks.get(req.listener).is_some_and(|l| family_of(l) == Family::V6);
                of_request(req, v6, now, filter)
            }
            Table::Tcp => {
                let key = self.tcp.socks.key_of(index)?;
                self.of_socket(key, self.tcp.socks.get(key)?, filter)
            }
            Table::TimeWait => of_time_wait(self.tcp.tws.get_by_index(index)?, now, filter),
            Table::Udp => self.udp.diag_at(index).filter(|d| filter.wants(d.v6, d.state)),
            Table::End => None,
        }
    }

    fn of_socket(&self, key: Key, sock: &Sock, filter: &DiagFilter) -> Option<SockDiag> {
        let v6 = family_of(sock) == Family::V6;
        let state = match &sock.body {
            Body::Unbound(_) => DiagState::CLOSE,
            Body::Listen(_) => DiagState::LISTEN,
            Body::Conn(c) => c.state().into(),
        };
        if !filter.wants(v6, state) {
            return None;
        }
        let bare = SockDiag {
            id: Some(SockId::new(SockKind::Tcp, key)),
            kind: SockKind::Tcp,
            v6,
            v6only: sock.has(flag::V6ONLY),
            state,
            local: nowhere(v6),
            peer: None,
            recv_q: 0,
            send_q: 0,
            timer: None,
            mem: None,
            tcp: None,
        };
        Some(match &sock.body {
            Body::Unbound(u) => SockDiag { local: u.local.unwrap_or(bare.local), v6only: u.bind.v6only, ..bare },
            Body::Listen(l) => of_listener(l, &self.core.cfg.tcp, bare),
            Body::Conn(c) => of_conn(c, self.core.now, filter.info, bare),
        })
    }
}

fn family_of(sock: &Sock) -> Family {
    match &sock.body {
        Body::Unbound(u) => u.family,
        Body::Listen(l) if l.local.is_ipv6() => Family::V6,
        Body::Conn(c) if c.key().local().is_ipv6() => Family::V6,
        Body::Listen(_) | Body::Conn(_) if sock.has(flag::V6) => Family::V6,
        Body::Listen(_) | Body::Conn(_) => Family::V4,
    }
}

/// The address of an unbound socket.
fn nowhere(v6: bool) -> SocketAddr {
    let ip = if v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    SocketAddr::new(ip, 0)
}

fn of_listener(l: &Listener, cfg: &TcpConfig, bare: SockDiag) -> SockDiag {
    // What a connection begins with.
    let or_default = |set: u32, default: u32| if set == 0 { default } else { set };
    let rcvbuf = or_default(l.opts.rcvbuf_bytes, cfg.rmem_bytes[1]);
    let sndbuf = or_default(l.opts.sndbuf_bytes, cfg.wmem_bytes[1]);
    SockDiag {
        v6only: l.bind.v6only,
        local: l.local,
        recv_q: l.accept.len() as u32,
        send_q: l.backlog,
        mem: Some(SockMem { rcvbuf, sndbuf, ..SockMem::default() }),
        ..bare
    }
}

fn of_conn(c: &Conn, now: Instant, info: bool, bare: SockDiag) -> SockDiag {
    let mem = SockMem {
        rmem_alloc: c.rmem_alloc_bytes(),
        rcvbuf: c.rcvbuf_bytes(),
        wmem_alloc: c.wmem_alloc_bytes(),
        sndbuf: c.sndbuf_bytes(),
        wmem_queued: c.wmem_queued_bytes(),
    };
    SockDiag {
        local: c.key().local(),
        peer: Some(c.key().remote()),
        recv_q: c.inq_bytes(),
        send_q: c.outq_bytes(),
        timer: c.pending_timer(now),
        mem: Some(mem),
        tcp: info.then(|| Box::new(TcpDiag { info: c.info(now), congestion: c.congestion_name() })),
        ..bare
    }
}

/// What a half-open connection and a TIME-WAIT state have in common.
fn of_minisock(
    key: &linerate_wire::FlowKey,
    v6: bool,
    state: DiagState,
    timer: PendingTimer,
    filter: &DiagFilter,
) -> Option<SockDiag> {
    let v6 = v6 || key.local().is_ipv6();
    filter.wants(v6, state).then(|| SockDiag {
        id: None,
        kind: SockKind::Tcp,
        v6,
        v6only: false,
        state,
        local: key.local(),
        peer: Some(key.remote()),
        recv_q: 0,
        send_q: 0,
        timer: Some(timer),
        mem: None,
        tcp: None,
    })
}

fn of_request(req: &Req, v6: bool, now: Instant, filter: &DiagFilter) -> Option<SockDiag> {
    let left = req.sock.deadline().since(now);
    let timer = PendingTimer { name: TimerName::On, left, retries: req.sock.retransmissions() };
    of_minisock(req.sock.key(), v6, State::SynRcvd.into(), timer, filter)
}

fn of_time_wait(tw: &Tw, now: Instant, filter: &DiagFilter) -> Option<SockDiag> {
    let timer = PendingTimer { name: TimerName::TimeWait, left: tw.sock.deadline(now).since(now), retries: 0 };
    of_minisock(tw.sock.key(), tw.flags & flag::V6 != 0, tw.sock.state().into(), timer, filter)
}

#[cfg(test)]
mod tests;
