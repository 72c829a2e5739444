//! The TCP layer of a shard: its sockets and tables, and what all files of the layer share.
//!
//! ```text
//!   socks   Slab<Sock>     unbound | listening | connection     <- SockId of the application
//!   reqs    Slab<Req>      half-open: at most `backlog` a listener, no SockId
//!   tws     Slab<Tw>       TIME-WAIT: at most tcp_max_tw_buckets, no SockId
//!   table   five-tuple -> one of the three        listeners, binds: see `demux`
//!   timers  one wheel key per entry of each slab
//!   dirty   sockets with something to transmit, to tell or to re-arm
//! ```
//! Invariants: a flow is in the table exactly while its entry lives and is not over; a socket is in `dirty` at most once
//! (a flag says so); the wheel is never later than a connection's earliest deadline, and may be earlier: on fire the
//! deadline is looked at again. Every connection and TIME-WAIT holds its local port in `binds`.
//!
//! Files: `tcp_in` (segments), `tcp_out` (the output pass), `listen`, `connect`, `timewait`, `timers`, `verbs`.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::net::SocketAddr;
use core::ops::Range;

use linerate_arch::Kernels;
use linerate_base::rng::Rng;
use linerate_base::siphash::HashKey;
use linerate_base::{CacheLine, FlowTable, Instant, Key, RstReason, Slab, TimerWheel, TokenBucket};
use linerate_netdev::IfIndex;
use linerate_skb::SkbBatch;
use linerate_tcp::isn::IsnKey;
use linerate_tcp::minisocks::{self, CookieKey, ReqSock, TwSock};
use linerate_tcp::ports::PortPicker;
use linerate_tcp::{Conn, Opts, SockOpts, SocketError, TcpCx};
use linerate_wire::TcpRepr;
use linerate_wire::flow::FlowKey;
use linerate_wire::ip::ecn;

use crate::config::StackConfig;
use crate::core_state::{Core, Memory, Mibs};
use crate::demux::{BindTable, Entry, ListenTable, Owner, Scope};
use crate::early::Aside;
use crate::ip_out::{self, IpTx};
use crate::lookahead::Ahead;
use crate::quick::LastRx;
use crate::sock::{Ready, ReadyList, SockId, SockKind};
use crate::upcall::{IpMeta, flow_hash};

/// IP protocol number of TCP.
pub(crate) const PROTO_TCP: u8 = 6;
/// No remote handle.
pub(crate) const NO_REMOTE: u32 = u32::MAX;

/// Facts about a socket, one bit each.
pub(crate) mod flag {
    /// In the dirty list.
    pub(crate) const DIRTY: u16 = 1;
    /// The application let go.
    pub(crate) const ORPHAN: u16 = 2;
    /// To be removed once nothing is left to transmit.
    pub(crate) const GONE: u16 = 4;
    /// In the established table.
    pub(crate) const IN_TABLE: u16 = 8;
    /// Holds its local port.
    pub(crate) const BOUND: u16 = 16;
    /// SO_REUSEADDR of the binding.
    pub(crate) const REUSE: u16 = 32;
    /// SO_REUSEPORT of the binding.
    pub(crate) const REUSEPORT: u16 = 64;
    /// The port was chosen by `bind` or inherited from a listener.
    pub(crate) const EXPLICIT: u16 = 128;
    /// Waits in a listener's accept queue.
    pub(crate) const UNACCEPTED: u16 = 256;
    /// The connection is over.
    pub(crate) const OVER: u16 = 512;
    /// IP_MINTTL or IPV6_MINHOPCOUNT is set: segments are asked for their TTL.
    pub(crate) const MIN_TTL: u16 = 1024;
    /// The socket's family is IPv6, whatever the family of its connection.
    pub(crate) const V6: u16 = 2048;
    /// IPV6_V6ONLY.
    pub(crate) const V6ONLY: u16 = 4096;
    /// A segment of it was set aside: see [`crate::early`].
    pub(crate) const ASIDE: u16 = 8192;
}

/// Which addresses a socket may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6, and IPv4 as v4-mapped addresses unless `v6only`.
    V6,
}

/// How a socket shares its address and port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BindOpts {
    /// SO_REUSEADDR: with others that have it, as long as none listens there.
    pub reuseaddr: bool,
    /// SO_REUSEPORT: with others that have it; listeners share the flows.
    pub reuseport: bool,
    /// IPV6_V6ONLY: a wildcard IPv6 socket leaves IPv4 alone.
    pub v6only: bool,
    /// The socket, bound to port 0, listens on every port on which nobody else listens: with an any-ip device, to whatever
    /// is addressed (what Linux does with TPROXY). It holds no port; other sockets bind as if it were not there.
    pub any_port: bool,
}

/// A TCP socket, in the order of memory: what a segment asks of it lies beside the connection's first lines.
#[repr(C)]
pub(crate) struct Sock {
    /// Keyed hash of the flow; 0 before there is one.
    pub(crate) hash: u64,
    /// A connection's place among the bindings, while [`flag::BOUND`].
    pub(crate) bind: u32,
    /// Index of the remote handle, or [`NO_REMOTE`].
    pub(crate) remote: u32,
    /// Device of the route, looked up at `route_generation`.
    pub(crate) oif: IfIndex,
    pub(crate) route_generation: u32,
    /// [`Links::generation`](crate::link::Links::generation) when a packet of the connection from device `oif` was
    /// found acceptable.
    pub(crate) accepted: u32,
    /// Bits of [`flag`].
    pub(crate) flags: u16,
    /// Events not fetched by the owner.
    pub(crate) pending: Ready,
    /// When the wheel looks at it; [`Instant::FAR_FUTURE`]: never.
    pub(crate) watched: Instant,
    pub(crate) body: Body,
}

/// All sockets, each beginning with a cache line of its own.
pub(crate) type Socks = Slab<Sock, CacheLine>;

/// What a socket is.
#[expect(clippy::large_enum_variant, reason = "nearly all sockets are connections, and those must not cost a pointer")]
pub(crate) enum Body {
    /// Neither connected nor listening.
    Unbound(Box<Unbound>),
    /// Listening.
    Listen(Box<Listener>),
    /// A connection in any state.
    Conn(Conn),
}

// A million idle sockets within 1 GiB: slab entry (twelve lines), table slots (about 16) and timer node (24) included.
const _: () = assert!(size_of::<Sock>() <= 12 * 64 - 8);
// Then a connection's first byte is the body's, which [`Sock::HOT`] counts on.
const _: () = assert!(size_of::<Body>() == size_of::<Conn>());
const _: () = assert!(size_of::<Req>() <= 216);
const _: () = assert!(size_of::<Tw>() <= 72);

/// A socket before it connects or listens.
#[derive(Debug)]
pub(crate) struct Unbound {
    pub(crate) family: Family,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) opts: Opts,
    pub(crate) bind: BindOpts,
    pub(crate) error: Option<SocketError>,
}

/// A listening socket.
pub(crate) struct Listener {
    pub(crate) local: SocketAddr,
    pub(crate) scope: Scope,
    pub(crate) bind: BindOpts,
    pub(crate) opts: Opts,
    /// Accept queue length is at most this plus one, as in Linux.
    pub(crate) backlog: u32,
    /// Established and not accepted, oldest first.
    pub(crate) accept: VecDeque<SockId>,
    /// Half-open connections.
    pub(crate) syn_qlen: u32,
    /// When a cookie was sent last; none that comes back is believed long after.
    pub(crate) cookie_sent: Option<Instant>,
}

/// A half-open connection.
pub(crate) struct Req {
    pub(crate) sock: ReqSock,
    /// Keyed hash of the flow.
    pub(crate) hash: u64,
    /// Its listener, which may be gone.
    pub(crate) listener: Key,
    /// Device of the route, looked up at `route_generation`.
    pub(crate) oif: IfIndex,
    pub(crate) route_generation: u32,
}

/// A finished connection.
pub(crate) struct Tw {
    pub(crate) sock: TwSock,
    /// The connection's place among the bindings.
    pub(crate) bind: u32,
    /// The bits of [`flag`] that belong to the binding, and the family.
    pub(crate) flags: u16,
    /// TOS or traffic class of its ACKs, ECN bits clear.
    pub(crate) tos: u8,
}

impl Sock {
    /// The bytes of a socket with a connection that a segment without data touches.
    pub(crate) const HOT: [Range<usize>; 2] = {
        let (at, [first, second]) = (offset_of!(Self, body), Conn::HOT);
        [0..at + first.end, at + second.start..at + second.end]
    };

    pub(crate) fn new(body: Body) -> Self {
        Self {
            body,
            hash: 0,
            bind: 0,
            remote: NO_REMOTE,
            oif: IfIndex(0),
            route_generation: 0,
            accepted: 0,
            flags: 0,
            pending: Ready::NONE,
            watched: Instant::FAR_FUTURE,
        }
    }
    pub(crate) const fn has(&self, bits: u16) -> bool {
        self.flags & bits == bits
    }
    pub(crate) fn set(&mut self, bits: u16) {
        self.flags |= bits;
    }
    pub(crate) fn clear(&mut self, bits: u16) {
        self.flags &= !bits;
    }
    /// The options as stored.
    pub(crate) fn opts(&self) -> &SockOpts {
        match &self.body {
            Body::Unbound(u) => &u.opts,
            Body::Listen(l) => &l.opts,
            Body::Conn(c) => c.opts(),
        }
    }
    /// Keeps [`flag::MIN_TTL`] true to the options, so that a segment costs no look at them.
    pub(crate) fn note_min_ttl(&mut self) {
        match self.opts().min_ttl | self.opts().min_hopcount != 0 {
            true => self.set(flag::MIN_TTL),
            false => self.clear(flag::MIN_TTL),
        }
    }
    pub(crate) fn conn(&self) -> Option<&Conn> {
        match &self.body {
            Body::Conn(c) => Some(c),
            _ => None,
        }
    }
    pub(crate) fn conn_mut(&mut self) -> Option<&mut Conn> {
        match &mut self.body {
            Body::Conn(c) => Some(c),
            _ => None,
        }
    }
    pub(crate) fn listener_mut(&mut self) -> Option<&mut Listener> {
        match &mut self.body {
            Body::Listen(l) => Some(l),
            _ => None,
        }
    }
}

/// The sharing of a binding, from its flag bits.
pub(crate) fn owner_of(flags: u16, listening: bool) -> Owner {
    Owner {
        reuse: flags & flag::REUSE != 0,
        reuseport: flags & flag::REUSEPORT != 0,
        listening,
        explicit: flags & flag::EXPLICIT != 0,
    }
}

/// The flag bits of an explicit binding.
pub(crate) fn bind_flags(opts: BindOpts) -> u16 {
    let reuse = if opts.reuseaddr { flag::REUSE } else { 0 };
    let reuseport = if opts.reuseport { flag::REUSEPORT } else { 0 };
    flag::EXPLICIT | reuse | reuseport
}

/// All TCP sockets of a shard.
pub(crate) struct TcpLayer {
    pub(crate) socks: Socks,
    pub(crate) reqs: Slab<Req>,
    pub(crate) tws: Slab<Tw>,
    pub(crate) table: FlowTable,
    pub(crate) listeners: ListenTable,
    pub(crate) binds: BindTable,
    pub(crate) timers: TimerWheel,
    pub(crate) req_timers: TimerWheel,
    pub(crate) tw_timers: TimerWheel,
    /// Indices of sockets with [`flag::DIRTY`].
    pub(crate) dirty: Vec<u32>,
    /// The list that the output pass works on; kept for its capacity.
    pub(crate) working: Vec<u32>,
    /// What one connection transmits; empty between calls.
    pub(crate) batch: SkbBatch,
    /// Sockets with a remote handle that something happened to.
    pub(crate) remote_dirty: Vec<u32>,
    pub(crate) last_rx: LastRx,
    /// Whose the next segments of the batch in hand may be.
    pub(crate) ahead: Ahead,
    /// Segments on their way from a ring to their sockets; empty between turns.
    pub(crate) aside: Vec<Aside>,
    pub(crate) challenge: TokenBucket,
    pub(crate) isn: IsnKey,
    pub(crate) cookies: CookieKey,
    /// Options of the last active open: the next ones most often are the same, and share them.
    last_opts: Opts,
    /// `None` only while it is in use.
    pub(crate) ports: Option<PortPicker>,
    /// Bytes copied by `write` and `read`.
    pub(crate) copied_tx: u64,
    pub(crate) copied_rx: u64,
}

impl TcpLayer {
    /// A layer without sockets. `core` gives randomness and configuration.
    pub(crate) fn new(core: &mut Core) -> Self {
        let key = core.hash_key;
        let (low, high) = core.cfg.local_ports;
        let limit = core.cfg.tcp.challenge_ack_limit;
        let challenge = if limit == u32::MAX { TokenBucket::UNLIMITED } else { TokenBucket::new(limit, limit) };
        let secret = core.rng.hash_key();
        let isn = IsnKey::new(secret);
        Self {
            socks: Slab::new(),
            reqs: Slab::new(),
            tws: Slab::new(),
            table: FlowTable::new(),
            listeners: ListenTable::new(key),
            binds: BindTable::new(key),
            timers: TimerWheel::new(),
            req_timers: TimerWheel::new(),
            tw_timers: TimerWheel::new(),
            dirty: Vec::new(),
            working: Vec::new(),
            batch: SkbBatch::new(),
            remote_dirty: Vec::new(),
            last_rx: LastRx::NONE,
            ahead: Ahead::NONE,
            aside: Vec::new(),
            challenge,
            isn,
            cookies: CookieKey::derive(&secret),
            last_opts: Opts::default(),
            ports: Some(PortPicker::new(low..=high, &mut core.rng)),
            copied_tx: 0,
            copied_rx: 0,
        }
    }

    /// What owns the flow.
    pub(crate) fn lookup(&self, hash: u64, key: &FlowKey) -> Option<Entry> {
        find_owner(&self.table, (&self.socks, &self.reqs, &self.tws), hash, key)
    }

    /// What owns the flow of a received segment, and the flow's hash. Segments of a flow come in a row, so the connection
    /// of the last one is asked first, and then the one that the look-ahead found: either saves the hash and the table.
    pub(crate) fn lookup_rx(&mut self, core: &Core, key: &FlowKey) -> (u64, Option<Entry>) {
        let guess = self.ahead.pop();
        for index in [Some(self.last_rx.key.index), guess].into_iter().flatten() {
            if let Some(sock) = self.socks.get_by_index(index)
                && sock.has(flag::IN_TABLE)
                && sock.conn().is_some_and(|c| c.key() == key)
            {
                return (sock.hash, Some(Entry::Conn(index)));
            }
        }
        let hash = hash_of(&core.hash_key, key);
        (hash, self.lookup(hash, key))
    }

    /// Puts a socket into the dirty list, unless it is there.
    pub(crate) fn mark(&mut self, index: u32) {
        if let Some(sock) = self.socks.get_by_index_mut(index) {
            note_dirty(&mut self.dirty, sock, index);
        }
    }

    /// The id of the socket at `index`.
    pub(crate) fn id_of(&self, index: u32) -> Option<SockId> {
        self.socks.key_of(index).map(|key| SockId::new(SockKind::Tcp, key))
    }
    /// The index of a live socket.
    pub(crate) fn index_of(&self, id: SockId) -> Option<u32> {
        let key = id.key(SockKind::Tcp)?;
        self.socks.contains(key).then_some(key.index)
    }
    /// A live socket.
    pub(crate) fn sock(&self, id: SockId) -> Option<&Sock> {
        self.socks.get(id.key(SockKind::Tcp)?)
    }
    /// A live socket.
    pub(crate) fn sock_mut(&mut self, id: SockId) -> Option<&mut Sock> {
        self.socks.get_mut(id.key(SockKind::Tcp)?)
    }

    /// Calls `f` with the connection of `id` and the world; the socket is dirty afterwards.
    pub(crate) fn with_conn<R>(
        &mut self,
        core: &mut Core,
        id: SockId,
        f: impl FnOnce(&mut Conn, &mut TcpCx<'_>) -> R,
    ) -> Option<R> {
        self.with_conn_if(core, id, |conn, cx| (f(conn, cx), true))
    }

    /// As [`Self::with_conn`], for verbs that may find nothing to do: `f` says whether it changed something, and only then
    /// is the socket dirty. Otherwise a caller that asks again and again would never find the shard idle.
    pub(crate) fn with_conn_if<R>(
        &mut self,
        core: &mut Core,
        id: SockId,
        f: impl FnOnce(&mut Conn, &mut TcpCx<'_>) -> (R, bool),
    ) -> Option<R> {
        let key = id.key(SockKind::Tcp)?;
        let sock = self.socks.get_mut(key)?;
        let (done, changed) = f(sock.conn_mut()?, &mut tcp_cx(core, &mut self.challenge));
        if changed {
            note_dirty(&mut self.dirty, sock, key.index);
        }
        Some(done)
    }

    /// Queues events for the owner of a socket; an orphan has none, and a remote one is told by its cell.
    pub(crate) fn post(&mut self, ready: &mut ReadyList, index: u32, bits: Ready) {
        let Some(id) = self.id_of(index) else { return };
        let Some(sock) = self.socks.get_by_index_mut(index) else { return };
        if sock.flags & (flag::ORPHAN | flag::UNACCEPTED) != 0 {
            return;
        }
        if sock.remote == NO_REMOTE {
            ready.post(id, &mut sock.pending, bits);
        } else if matches!(sock.body, Body::Listen(_)) {
            // Connections are served whenever they were in the output pass.
            self.remote_dirty.push(sock.remote);
        }
    }

    /// Sends a segment that no connection stands behind, in answer to a packet. `tos` without ECN bits: such a segment is
    /// not ECN-capable (RFC 3168 section 6.1.4).
    pub(crate) fn reply(&mut self, core: &mut Core, meta: &IpMeta, h: &TcpRepr, tos: u8) {
        debug_assert_eq!(tos & ecn::MASK, 0);
        let Some(skb) = minisocks::emit(&mut tcp_cx(core, &mut self.challenge), h) else { return };
        core.mibs.tcp.out_segs += 1;
        let Ok(route) = core.links.route(meta.src, Some(meta.dst), None, core.now) else {
            core.drop_skb(skb, linerate_base::DropReason::IpOutNoRoutes);
            return;
        };
        let tx = IpTx { src: meta.dst, tos, ..IpTx::new(&route, meta.src, PROTO_TCP) };
        // Whatever became of it is counted; nobody waits for it.
        let _ = ip_out::xmit(core, skb, &tx);
    }

    /// Answers a segment that belongs to nobody (RFC 9293 section 3.10.7.1), in the traffic class that it came in.
    pub(crate) fn reply_reset(&mut self, core: &mut Core, meta: &IpMeta, h: &TcpRepr, len: u32, why: RstReason) {
        if let Some(rst) = minisocks::reset_for(h, len) {
            core.mibs.rsts.count(why);
            self.reply(core, meta, &rst, meta.tos & !ecn::MASK);
        }
    }

    /// Takes a connection out of the established table and gives its port back, if it has them.
    pub(crate) fn detach(&mut self, index: u32) {
        let Some(sock) = self.socks.get_by_index_mut(index) else { return };
        if sock.has(flag::IN_TABLE) {
            sock.clear(flag::IN_TABLE);
            let out = self.table.remove(sock.hash, Entry::Conn(index).pack());
            debug_assert!(out, "a connection was not in the table");
        }
        self.unbind(index);
    }

    /// Gives the local port of a socket back, if it holds one.
    pub(crate) fn unbind(&mut self, index: u32) {
        let Some(sock) = self.socks.get_by_index_mut(index) else { return };
        if !sock.has(flag::BOUND) {
            return;
        }
        let (local, scope, listening) = match &sock.body {
            Body::Unbound(u) => match u.local {
                Some(local) => (local, Scope::of(local.ip(), u.bind.v6only), false),
                None => return,
            },
            Body::Listen(l) => (l.local, l.scope, true),
            Body::Conn(_) => {
                sock.clear(flag::BOUND);
                self.binds.remove_at(sock.bind, owner_of(sock.flags, false));
                return;
            }
        };
        sock.clear(flag::BOUND);
        let owner = owner_of(sock.flags, listening);
        self.binds.remove(local.port(), scope, owner);
    }

    /// `opts` in the form that sockets share.
    pub(crate) fn share(&mut self, opts: &SockOpts) -> Opts {
        if *self.last_opts != *opts {
            self.last_opts = Opts::new(opts.clone());
        }
        self.last_opts.clone()
    }

    /// Takes back the memory of all out-of-order queues.
    pub(crate) fn shed(&mut self, core: &mut Core) {
        let mut from = 0;
        while let Some(Key { index, .. }) = self.socks.next_from(from) {
            from = index + 1;
            let conn = self.socks.get_by_index_mut(index).and_then(Sock::conn_mut);
            if conn.is_some_and(|conn| conn.shed_ofo(&mut tcp_cx(core, &mut self.challenge))) {
                self.mark(index);
            }
        }
    }

    /// The end of a socket: out of all tables, memory home, the id dead.
    pub(crate) fn remove(&mut self, core: &mut Core, index: u32) {
        self.detach(index);
        self.timers.cancel(index);
        let Some((key, sock)) = self.socks.entry_by_index_mut(index) else { return };
        if let Some(conn) = sock.conn_mut() {
            conn.purge(&mut tcp_cx(core, &mut self.challenge));
        }
        self.socks.discard(key);
    }
}

/// What owns the flow, for who uses other parts of the layer at the same time.
#[inline]
pub(crate) fn find_owner(
    table: &FlowTable,
    (socks, reqs, tws): (&Socks, &Slab<Req>, &Slab<Tw>),
    hash: u64,
    key: &FlowKey,
) -> Option<Entry> {
    let same = |slot| match Entry::unpack(slot) {
        Entry::Conn(i) => socks.get_by_index(i).and_then(Sock::conn).is_some_and(|c| c.key() == key),
        Entry::Req(i) => reqs.get_by_index(i).is_some_and(|r| r.sock.key() == key),
        Entry::Tw(i) => tws.get_by_index(i).is_some_and(|t| t.sock.key() == key),
    };
    table.find(hash, same).map(Entry::unpack)
}

/// Puts a socket at hand into the dirty list, unless it is there.
#[inline]
pub(crate) fn note_dirty(dirty: &mut Vec<u32>, sock: &mut Sock, index: u32) {
    if !sock.has(flag::DIRTY) {
        sock.set(flag::DIRTY);
        dirty.push(index);
    }
}

/// The world, lent to a connection.
#[inline(always)]
pub(crate) fn tcp_cx<'a>(core: &'a mut Core, challenge: &'a mut TokenBucket) -> TcpCx<'a> {
    let Core { now, kernels, mem, mibs, rng, cfg, .. } = core;
    tcp_cx_of((*now, *kernels), mem, mibs, rng, cfg, challenge)
}

/// As [`tcp_cx`], for who uses the other parts of the core at the same time.
#[inline(always)]
pub(crate) fn tcp_cx_of<'a>(
    (now, kernels): (Instant, Kernels),
    mem: &'a mut Memory,
    mibs: &'a mut Mibs,
    rng: &'a mut Rng,
    cfg: &'a StackConfig,
    challenge: &'a mut TokenBucket,
) -> TcpCx<'a> {
    TcpCx {
        now,
        pool: &mut mem.tx_pool,
        page: &mut mem.tx_page,
        skbs: &mut mem.skbs,
        mib: &mut mibs.tcp,
        drops: &mut mibs.drops,
        rsts: &mut mibs.rsts,
        parts: &mut mem.parts,
        mem: &mut mem.tcp,
        rng,
        challenge,
        cfg: &cfg.tcp,
        kernels,
    }
}

/// The hash of a flow under the shard's key.
pub(crate) fn hash_of(key: &HashKey, flow: &FlowKey) -> u64 {
    flow_hash(key, flow)
}

#[cfg(test)]
mod size_tests {
    use super::*;

    /// What an idle connection holds: slab entry, two table slots at the worst fill, timer node, and its share of the
    /// binding counts (a port with many connections costs as much as one, so a handful of bytes).
    #[test]
    fn a_million_idle_connections_fit_one_gib() {
        let slab_entry = (size_of::<Sock>() + size_of::<u64>()).next_multiple_of(64);
        let table = 3 * size_of::<u64>();
        let timer = 24;
        let sum = slab_entry + table + timer;
        assert!(sum < 1024, "{sum} bytes");
        std::println!(
            "Sock {} Conn {} Req {} Tw {}: {sum} bytes an idle connection without its heap",
            size_of::<Sock>(),
            size_of::<Conn>(),
            size_of::<Req>(),
            size_of::<Tw>()
        );
    }
}
