//! UDP: sockets, their tables, and the way of a datagram to its socket.
//!
//! ```text
//!   received   four-tuple in `conns`  ->  (dst, port) in `bound`  ->  (any, port) in `bound`  ->  port unreachable
//!   sent       autobind, route (cached), one super-skb for a train of datagrams (UDP_SEGMENT), ip_out
//! ```
//! Three tables of hashes hold slab indices: `conns` by both ends, filled by `connect` (SYSTEMS B14: a connected socket
//! is found without scoring its port's others), `bound` by local address and port, `ports` by port alone for conflicts.
//! All are keyed, so a peer can not aim at a bucket. Addresses are canonical: IPv4 is never v4-mapped; an unspecified IPv6
//! socket without `v6only` also takes IPv4. Among sockets that share an address the latest wins, unless they all set
//! `reuseport`: then the flow's hash chooses.
//!
//! A train of datagrams that arrives merged stays one skb in the receive queue; each `recv` takes one datagram off it,
//! or with `gro` the whole train with its `gso_size` (UDP_GRO). The queue is bounded by truesize (`rcvbuf`), the bytes
//! below the socket by `sndbuf`. Counters are Linux's.
//!
//! A datagram that is longer than the path MTU leaves in fragments, unless the socket forbids them ([`PmtuDisc`]).
//!
//! Limits: no multicast membership, and a datagram for a group or broadcast goes to one socket, the latest.

mod bind;
mod recv;
mod send;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linerate_base::{Errno, FlowTable, HashKey, Instant, Key, Slab};
use linerate_skb::Skb;
use linerate_wire::FlowKey;
use linerate_wire::flow::to_mapped;

use crate::core_state::Core;
use crate::diag::{DiagState, SockDiag, SockMem};
use crate::route::RouteInfo;
use crate::sock::{Ready, ReadyList, SockId, SockKind};
use crate::tcp::NO_REMOTE;
use crate::upcall::IpMeta;

pub use self::bind::BindOpts;
pub use self::recv::{RecvFlags, UdpRecv};
pub use self::send::{GSO_MAX_SEGS, SendOpts};

macro_rules! errors {
    ($( $(#[doc = $doc:literal])+ $name:ident { $( $(#[doc = $vdoc:literal])+ $var:ident = $errno:ident, )+ } )+) => { $(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum $name {
            $( $(#[doc = $vdoc])+ $var, )+
            /// An earlier datagram of this socket met an error, reported once.
            Pending(Errno),
        }

        impl $name {
            /// The Linux error number.
            pub const fn errno(self) -> Errno {
                match self { $( Self::$var => Errno::$errno, )+ Self::Pending(errno) => errno }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $( Self::$var => concat!($( $vdoc ),+), )+
                    Self::Pending(errno) => errno.describe(),
                }.trim())
            }
        }
        impl core::error::Error for $name {}
    )+ };
}

errors! {
    /// Why a datagram was not sent.
    UdpSendError {
        /// The id names no UDP socket.
        BadSocket = EBADF,
        /// No destination given and the socket is not connected.
        NoDestination = EDESTADDRREQ,
        /// The destination is of another family than the socket, or its port is 0.
        Invalid = EINVAL,
        /// The destination is a broadcast address and the socket may not send to one.
        Broadcast = EACCES,
        /// Longer than a datagram can be, or than the path MTU where the socket forbids fragments ([`PmtuDisc`]).
        TooBig = EMSGSIZE,
        /// `gso_size` is 0, does not fit the path MTU, or cuts the data into too many datagrams.
        BadGsoSize = EINVAL,
        /// No route leads to the destination.
        NoRoute = ENETUNREACH,
        /// The device of the route has no queue.
        LinkDown = ENETDOWN,
        /// No address of this host can be the source.
        NoSource = EADDRNOTAVAIL,
        /// No local port is free.
        NoPort = EAGAIN,
        /// The send buffer is full.
        WouldBlock = EAGAIN,
        /// No page or descriptor is free.
        NoMem = ENOBUFS,
    }
    /// Why no datagram was received.
    UdpRecvError {
        /// The id names no UDP socket.
        BadSocket = EBADF,
        /// The receive queue is empty.
        WouldBlock = EAGAIN,
    }
    /// Why a socket was not connected.
    UdpConnectError {
        /// The id names no UDP socket.
        BadSocket = EBADF,
        /// The peer is of another family than the socket.
        Family = EAFNOSUPPORT,
        /// The peer is a broadcast address and the socket may not send to one.
        Broadcast = EACCES,
        /// No route leads to the peer.
        NoRoute = ENETUNREACH,
        /// The device of the route has no queue.
        LinkDown = ENETDOWN,
        /// No address of this host can be the source.
        NoSource = EADDRNOTAVAIL,
        /// No local port is free.
        NoPort = EAGAIN,
    }
}

/// IP_MTU_DISCOVER, IPV6_MTU_DISCOVER: which MTU counts, and what becomes of datagrams that are longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PmtuDisc {
    /// IPv4 never sets DF; longer datagrams are cut.
    Dont,
    /// DF on what fits; longer datagrams are cut to the path MTU.
    #[default]
    Want,
    /// DF; longer datagrams are refused (EMSGSIZE).
    Do,
    /// DF, and the path MTU is not looked at: only the device's counts.
    Probe,
    /// No DF, and only the device's MTU counts; longer datagrams are refused.
    Interface,
    /// As `Interface`; longer datagrams are cut.
    Omit,
}

impl PmtuDisc {
    /// From the option's number, 0 to 5.
    pub const fn from_number(n: i32) -> Option<Self> {
        Some(match n {
            0 => Self::Dont,
            1 => Self::Want,
            2 => Self::Do,
            3 => Self::Probe,
            4 => Self::Interface,
            5 => Self::Omit,
            _ => return None,
        })
    }
    /// What was learned of the path counts.
    const fn uses_path_mtu(self) -> bool {
        matches!(self, Self::Dont | Self::Want | Self::Do)
    }
    /// Longer datagrams may be cut.
    const fn may_cut(self) -> bool {
        matches!(self, Self::Dont | Self::Want | Self::Omit)
    }
    /// What fits carries DF.
    const fn sets_df(self) -> bool {
        matches!(self, Self::Want | Self::Do | Self::Probe)
    }
}

/// Options of a UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UdpOpts {
    /// UDP_GRO: `recv` may return a train of datagrams with its `gso_size`.
    pub gro: bool,
    /// SO_BROADCAST.
    pub broadcast: bool,
    /// SO_RCVBUF as stored, bytes of truesize.
    pub rcvbuf_bytes: u32,
    /// SO_SNDBUF as stored, bytes of truesize below the socket.
    pub sndbuf_bytes: u32,
    /// IP_TOS, IPV6_TCLASS.
    pub tos: u8,
    /// IP_TTL, IPV6_UNICAST_HOPS; 0 = the configuration's.
    pub ttl: u8,
    /// IP_MTU_DISCOVER, for IPv4 destinations.
    pub mtu_discover: PmtuDisc,
    /// IPV6_MTU_DISCOVER, for IPv6 destinations.
    pub mtu_discover6: PmtuDisc,
    /// IPV6_DONTFRAG: longer IPv6 datagrams are refused.
    pub dont_frag6: bool,
}

/// One received datagram, or what is left of a train of them.
struct Datagram {
    meta: IpMeta,
    src_port: u16,
    /// Head and fragments are payload only.
    skb: Skb,
    /// Charged to the socket until the skb is used up.
    truesize: u32,
}

/// A route looked up for a destination, and when.
#[derive(Clone, Copy)]
struct CachedRoute {
    dst: IpAddr,
    info: RouteInfo,
    at: Instant,
}

/// One socket.
struct UdpSock {
    v6: bool,
    /// Bound to; port 0 while unbound.
    local: SocketAddr,
    /// The address was chosen by `connect`, not by `bind`: `disconnect` takes it back.
    local_by_connect: bool,
    peer: Option<SocketAddr>,
    bind: BindOpts,
    opts: UdpOpts,
    rcvq: VecDeque<Datagram>,
    rcvq_bytes: u32,
    wmem_bytes: u32,
    error: Option<Errno>,
    pending: Ready,
    route: Option<CachedRoute>,
    /// Grows with each bind: the latest wins.
    order: u64,
    /// Index of the remote handle, or [`NO_REMOTE`].
    remote: u32,
    /// It stands in the list of those to be served.
    remote_marked: bool,
}

impl UdpSock {
    /// Something happened: the owner is told by event, or served by its cell.
    fn tell(&mut self, ready: &mut ReadyList, remote_dirty: &mut Vec<u32>, id: SockId, bits: Ready) {
        if self.remote == NO_REMOTE {
            ready.post(id, &mut self.pending, bits);
        } else if !self.remote_marked {
            self.remote_marked = true;
            remote_dirty.push(self.remote);
        }
    }
    fn readiness(&self) -> Ready {
        let mut r = Ready::NONE;
        if !self.rcvq.is_empty() || self.error.is_some() {
            r |= Ready::READABLE;
        }
        if self.wmem_bytes < self.opts.sndbuf_bytes {
            r |= Ready::WRITABLE;
        }
        if self.error.is_some() {
            r |= Ready::ERROR;
        }
        r
    }
}

/// Hash of a local address and port.
fn bound_hash(key: &HashKey, addr: IpAddr, port: u16) -> u64 {
    let bits = to_mapped(addr).to_bits();
    key.sip13_words(&[(bits >> 64) as u64, bits as u64, u64::from(port)])
}

/// Hash of a port.
fn port_hash(key: &HashKey, port: u16) -> u64 {
    key.sip13_words(&[u64::from(port)])
}

fn conn_hash(key: &HashKey, flow: &FlowKey) -> u64 {
    key.sip13_words(&flow.as_words())
}

fn unspecified(v6: bool) -> IpAddr {
    if v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) }
}

/// IPv4 where it is v4-mapped.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// All UDP sockets of a shard.
#[derive(Default)]
pub struct UdpLayer {
    socks: Slab<UdpSock>,
    conns: FlowTable,
    bound: FlowTable,
    ports: FlowTable,
    next_order: u64,
    /// Remote handles of sockets that something happened to.
    pub(crate) remote_dirty: Vec<u32>,
}

impl UdpLayer {
    /// No sockets.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new unbound socket, of IPv6 (and IPv4 besides, unless bound with `v6only`) or IPv4.
    pub fn socket(&mut self, core: &Core, v6: bool) -> SockId {
        let opts = UdpOpts {
            gro: false,
            broadcast: false,
            rcvbuf_bytes: core.cfg.udp_rcvbuf_bytes,
            sndbuf_bytes: core.cfg.udp_rcvbuf_bytes,
            tos: 0,
            ttl: 0,
            mtu_discover: PmtuDisc::Want,
            mtu_discover6: PmtuDisc::Want,
            dont_frag6: false,
        };
        let key = self.socks.insert(UdpSock {
            v6,
            local: SocketAddr::new(unspecified(v6), 0),
            local_by_connect: false,
            peer: None,
            bind: BindOpts::default(),
            opts,
            rcvq: VecDeque::new(),
            rcvq_bytes: 0,
            wmem_bytes: 0,
            error: None,
            pending: Ready::NONE,
            route: None,
            order: 0,
            remote: NO_REMOTE,
            remote_marked: false,
        });
        SockId::new(SockKind::Udp, key)
    }

    fn key(&self, id: SockId) -> Option<Key> {
        id.key(SockKind::Udp).filter(|k| self.socks.contains(*k))
    }
    fn sock(&self, id: SockId) -> Option<&UdpSock> {
        self.socks.get(id.key(SockKind::Udp)?)
    }
    fn sock_mut(&mut self, id: SockId) -> Option<&mut UdpSock> {
        self.socks.get_mut(id.key(SockKind::Udp)?)
    }

    /// Sockets open.
    pub fn len(&self) -> usize {
        self.socks.len()
    }
    /// True without sockets.
    pub fn is_empty(&self) -> bool {
        self.socks.is_empty()
    }
    /// Does the id name a socket?
    pub fn contains(&self, id: SockId) -> bool {
        self.sock(id).is_some()
    }
    /// The local address; port 0 while unbound.
    pub fn local_addr(&self, id: SockId) -> Option<SocketAddr> {
        self.sock(id).map(|s| s.local)
    }
    /// The peer of a connected socket.
    pub fn peer_addr(&self, id: SockId) -> Option<SocketAddr> {
        self.sock(id)?.peer
    }
    /// The options, to read.
    pub fn opts(&self, id: SockId) -> Option<&UdpOpts> {
        self.sock(id).map(|s| &s.opts)
    }
    /// The options, to change.
    pub fn opts_mut(&mut self, id: SockId) -> Option<&mut UdpOpts> {
        self.sock_mut(id).map(|s| &mut s.opts)
    }
    /// What the socket is ready for now.
    pub fn readiness(&self, id: SockId) -> Ready {
        self.sock(id).map_or(Ready::NONE, UdpSock::readiness)
    }
    /// The pending error, taken (SO_ERROR).
    pub fn take_error(&mut self, id: SockId) -> Option<Errno> {
        self.sock_mut(id)?.error.take()
    }
    /// Bytes that the next `recv` can return: those of the first datagram (SIOCINQ); 0 when there is none.
    pub fn inq_bytes(&self, id: SockId) -> u32 {
        self.sock(id).and_then(|s| s.rcvq.front().map(|d| recv::next_len(s, d))).unwrap_or(0)
    }
    /// Truesize of what is queued to be read, bytes.
    pub fn rmem_bytes(&self, id: SockId) -> u32 {
        self.sock(id).map_or(0, |s| s.rcvq_bytes)
    }
    /// Truesize of what was sent and not left the host yet, bytes (SIOCOUTQ).
    pub fn wmem_bytes(&self, id: SockId) -> u32 {
        self.sock(id).map_or(0, |s| s.wmem_bytes)
    }
    /// Every socket's index lies below.
    pub(crate) fn index_end(&self) -> u32 {
        self.socks.index_end()
    }
    /// What `ss` shows of the socket at `index`. Linux calls connected datagram sockets established.
    pub(crate) fn diag_at(&self, index: u32) -> Option<SockDiag> {
        let key = self.socks.key_of(index)?;
        let s = self.socks.get(key)?;
        let mem = SockMem {
            rmem_alloc: s.rcvq_bytes,
            rcvbuf: s.opts.rcvbuf_bytes,
            wmem_alloc: s.wmem_bytes,
            sndbuf: s.opts.sndbuf_bytes,
            wmem_queued: 0,
        };
        Some(SockDiag {
            id: Some(SockId::new(SockKind::Udp, key)),
            kind: SockKind::Udp,
            v6: s.v6,
            v6only: s.bind.v6only,
            state: if s.peer.is_some() { DiagState::ESTABLISHED } else { DiagState::CLOSE },
            local: s.local,
            peer: s.peer,
            recv_q: s.rcvq_bytes,
            send_q: s.wmem_bytes,
            timer: None,
            mem: Some(mem),
            tcp: None,
        })
    }
    /// Events since the last call: what [`ReadyList`] queued the socket for.
    pub(crate) fn take_pending(&mut self, id: SockId) -> Ready {
        self.sock_mut(id).map_or(Ready::NONE, |s| core::mem::take(&mut s.pending))
    }

    /// A remote handle has the socket from now on; what has already come is its first service's.
    pub(crate) fn set_remote(&mut self, id: SockId, index: u32) {
        if let Some(s) = self.sock_mut(id) {
            s.remote = index;
        }
    }
    /// The handle is being served: what happens from now on is told again.
    pub(crate) fn served(&mut self, id: SockId) {
        if let Some(s) = self.sock_mut(id) {
            s.remote_marked = false;
        }
    }

    /// The device is done with `bytes` that this socket sent.
    pub(crate) fn on_tx_done(&mut self, ready: &mut ReadyList, id: SockId, bytes: u32) {
        let Some(s) = id.key(SockKind::Udp).and_then(|key| self.socks.get_mut(key)) else { return };
        let was_full = s.wmem_bytes >= s.opts.sndbuf_bytes;
        debug_assert!(s.wmem_bytes >= bytes, "more sent than was charged");
        s.wmem_bytes = s.wmem_bytes.saturating_sub(bytes);
        if was_full && s.wmem_bytes < s.opts.sndbuf_bytes {
            s.tell(ready, &mut self.remote_dirty, id, Ready::WRITABLE);
        }
    }

    /// Closes a socket; what it had queued is gone.
    pub fn close(&mut self, core: &mut Core, id: SockId) -> bool {
        let Some(key) = self.key(id) else { return false };
        self.unhash(core, key);
        let Some(sock) = self.socks.remove(key) else { return false };
        for d in sock.rcvq {
            core.consume(d.skb);
        }
        true
    }

    /// Closes all sockets.
    pub fn close_all(&mut self, core: &mut Core) {
        while let Some(key) = self.socks.next_from(0) {
            let closed = self.close(core, SockId::new(SockKind::Udp, key));
            debug_assert!(closed);
        }
    }
}

#[cfg(test)]
mod tests;
