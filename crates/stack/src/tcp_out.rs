//! The output pass: everything that the dirty connections want to send, tell and be woken for, once a turn.
//!
//! For each dirty socket: take its segments (`poll_xmit`), give each super-packet one IP header, turn its events into
//! readiness, move it to TIME-WAIT or remove it when it is over, arm its timer. A connection that has more than its share
//! ([`XMIT_BUDGET`]) goes to the end of the next pass, so that one bulk flow does not hold up a thousand small ones. A
//! segment that was refused below (qdisc full) is given back to TCP small queues at once; retransmission repairs it, as
//! in Linux.

use linerate_base::{DropReason, Key, TimerWheel, TokenBucket};
use linerate_skb::{Skb, SkbBatch};
use linerate_tcp::{CloseReason, Conn, Event, SKB_ECT0};
use linerate_wire::flow::FlowKey;

use crate::core_state::Core;
use crate::ip_out::{self, IpTx, Xmit};
use crate::quick;
use crate::sock::{Ready, ReadyList, SockId, SockKind};
use crate::tcp::{Body, NO_REMOTE, PROTO_TCP, Sock, TcpLayer, flag, note_dirty, tcp_cx};
use crate::timers::rearm;

/// Skbs that one connection may hand over in one pass.
pub(crate) const XMIT_BUDGET: usize = 64;

/// Sockets that end, or that nobody owns yet or any more.
const SPECIAL: u16 = flag::ORPHAN | flag::OVER | flag::GONE | flag::UNACCEPTED;

/// ECT(0) in the TOS byte (RFC 3168).
const TOS_ECT0: u8 = 2;

impl TcpLayer {
    /// The pass where it is short: one socket is dirty, and has one small segment to send. Otherwise it stays dirty.
    #[inline]
    pub(crate) fn output_small(&mut self, core: &mut Core, ready: &mut ReadyList) {
        if let [index] = *self.dirty.as_slice()
            && self.output_quick(core, ready, index)
        {
            self.dirty.clear();
        }
    }

    /// Works through the dirty list. `true`: some connection has more to send.
    pub(crate) fn output(&mut self, core: &mut Core, ready: &mut ReadyList) -> bool {
        let mut more = false;
        let mut working = core::mem::take(&mut self.working);
        debug_assert!(working.is_empty());
        core::mem::swap(&mut working, &mut self.dirty);
        for index in working.drain(..) {
            if self.output_one(core, ready, index) {
                more = true;
                self.mark(index);
            }
        }
        self.working = working;
        more
    }

    /// One connection's part of the pass, if that is one small segment and nothing else. Otherwise it stays dirty.
    #[inline(always)]
    fn output_quick(&mut self, core: &mut Core, ready: &mut ReadyList, index: u32) -> bool {
        let Self { socks, timers, challenge, .. } = self;
        let Some((key, sock)) = socks.entry_by_index_mut(index) else { return false };
        let fresh = sock.has(flag::DIRTY) && sock.route_generation == core.links.generation();
        if !fresh || !quick::xmit(core, challenge, sock) {
            return false;
        }
        let settled = settle_quiet(timers, ready, sock, key);
        if settled {
            sock.clear(flag::DIRTY);
        }
        settled
    }

    /// One connection's part of the pass. `true`: its share is spent.
    fn output_one(&mut self, core: &mut Core, ready: &mut ReadyList, index: u32) -> bool {
        if self.output_quick(core, ready, index) {
            return false;
        }
        match self.socks.get_by_index_mut(index) {
            Some(sock) if sock.has(flag::DIRTY) => sock.clear(flag::DIRTY),
            _ => return false,
        }
        self.refresh_route(core, index);
        let Self { socks, timers, batch, challenge, .. } = self;
        let Some((key, sock)) = socks.entry_by_index_mut(index) else { return false };
        let id = SockId::new(SockKind::Tcp, key);
        let sent = xmit_sock(core, challenge, batch, sock, id);
        let (bits, closed) = take_events(sock);
        if closed.is_some() || sock.flags & SPECIAL != 0 || sock.remote != NO_REMOTE {
            return self.output_special(core, ready, index, sent, bits, closed);
        }
        ready.post(id, &mut sock.pending, bits);
        rearm(timers, index, sock);
        sent == XMIT_BUDGET
    }

    /// The rest of [`Self::output_one`] for sockets that end, or whose owner is nobody or somewhere else.
    fn output_special(
        &mut self,
        core: &mut Core,
        ready: &mut ReadyList,
        index: u32,
        sent: usize,
        bits: Ready,
        closed: Option<CloseReason>,
    ) -> bool {
        if let Some(reason) = closed {
            match reason {
                CloseReason::Done { time_wait: true } => self.enter_time_wait(core, index),
                _ => self.detach(index),
            }
            if let Some(sock) = self.socks.get_by_index_mut(index) {
                sock.set(flag::OVER);
            }
        }
        let Some(sock) = self.socks.get_by_index_mut(index) else { return false };
        let over = sock.has(flag::ORPHAN | flag::OVER) || sock.has(flag::GONE);
        if over && sent < XMIT_BUDGET {
            self.remove(core, index);
            return false;
        }
        if sock.remote != NO_REMOTE {
            // Whatever happened may have made room or brought bytes.
            self.remote_dirty.push(sock.remote);
        }
        rearm(&mut self.timers, index, sock);
        self.post(ready, index, bits);
        sent == XMIT_BUDGET
    }

    /// Hands a connection's segments to IP; returns how many.
    pub(crate) fn flush(&mut self, core: &mut Core, index: u32) -> usize {
        self.refresh_route(core, index);
        let Some((key, sock)) = self.socks.entry_by_index_mut(index) else { return 0 };
        xmit_sock(core, &mut self.challenge, &mut self.batch, sock, SockId::new(SockKind::Tcp, key))
    }

    /// Looks the route up again when routes, addresses or path MTUs changed since.
    fn refresh_route(&mut self, core: &mut Core, index: u32) {
        let generation = core.links.generation();
        let Some(sock) = self.socks.get_by_index_mut(index) else { return };
        if sock.route_generation == generation {
            return;
        }
        let Body::Conn(conn) = &mut sock.body else { return };
        let key: FlowKey = *conn.key();
        sock.route_generation = generation;
        // Without a route the old device is used: it refuses, and the connection's timers decide.
        if let Ok(route) = core.links.route(key.remote_addr(), Some(key.local_addr()), None, core.now) {
            sock.oif = route.ifindex;
            conn.on_path_change(&mut tcp_cx(core, &mut self.challenge), route.path);
        }
    }

    /// Transmissions of a socket left the device.
    pub(crate) fn on_tx_done(&mut self, core: &mut Core, id: SockId, bytes: u32) {
        let Some(key) = id.key(SockKind::Tcp) else { return };
        let Some(sock) = self.socks.get_mut(key) else { return };
        let Some(conn) = sock.conn_mut() else { return };
        conn.on_tx_done(&mut tcp_cx(core, &mut self.challenge), bytes);
        // Only who was held back has something to do now.
        if conn.wants_xmit() {
            note_dirty(&mut self.dirty, sock, key.index);
        }
    }
}

/// Does at once what the output pass would do for a connection that has nothing to send and is not over: tells its owner
/// and arms its timer. False: that is not all, the pass has to see it.
#[inline]
pub(crate) fn settle(timers: &mut TimerWheel, ready: &mut ReadyList, sock: &mut Sock, key: Key) -> bool {
    let is_quiet = !sock.has(flag::DIRTY) && sock.conn().is_some_and(Conn::is_quiet);
    is_quiet && settle_quiet(timers, ready, sock, key)
}

/// As [`settle`], for a connection that is known to have nothing to send.
#[inline(always)]
fn settle_quiet(timers: &mut TimerWheel, ready: &mut ReadyList, sock: &mut Sock, key: Key) -> bool {
    let Body::Conn(conn) = &mut sock.body else { return false };
    debug_assert!(conn.is_quiet(), "it has something to send");
    if sock.flags & SPECIAL != 0 || sock.remote != NO_REMOTE {
        return false;
    }
    if conn.has_events() {
        if conn.is_over() {
            return false;
        }
        let bits = if conn.take_readable() { Ready::READABLE } else { take_events(sock).0 };
        ready.post(SockId::new(SockKind::Tcp, key), &mut sock.pending, bits);
    }
    rearm(timers, key.index, sock);
    true
}

/// Hands a connection's segments to IP; returns how many.
fn xmit_sock(core: &mut Core, challenge: &mut TokenBucket, batch: &mut SkbBatch, sock: &mut Sock, id: SockId) -> usize {
    let (hash, oif) = (sock.hash, sock.oif);
    let Body::Conn(conn) = &mut sock.body else { return 0 };
    if conn.is_quiet() {
        return 0;
    }
    let n = conn.poll_xmit(&mut tcp_cx(core, challenge), batch, XMIT_BUDGET);
    if n == 0 {
        debug_assert!(batch.is_empty());
        return 0;
    }
    let (src, dst) = (conn.key().local_addr(), conn.key().remote_addr());
    let (set_tos, ttl) = conn.opts().ip_fields(dst);
    let mut refused = 0u32;
    while let Some(skb) = batch.pop_front() {
        let tos = set_tos | if skb.flags.contains(SKB_ECT0) { TOS_ECT0 } else { 0 };
        let tx = IpTx { src, dst, proto: PROTO_TCP, tos, ttl, ifindex: oif, frag_mtu: 0 };
        refused = refused.saturating_add(xmit_one(core, skb, &tx, id, hash));
    }
    if refused > 0 {
        conn.on_tx_done(&mut tcp_cx(core, challenge), refused);
    }
    n
}

/// What happened on a connection, as readiness, and whether it is over.
fn take_events(sock: &mut Sock) -> (Ready, Option<CloseReason>) {
    let (mut bits, mut closed) = (Ready::NONE, None);
    let Some(conn) = sock.conn_mut() else { return (bits, closed) };
    while let Some(event) = conn.poll_event() {
        bits |= match event {
            Event::Connected => Ready::CONNECTED | Ready::WRITABLE,
            Event::Readable => Ready::READABLE,
            Event::Writable => Ready::WRITABLE,
            Event::PeerClosed => Ready::READABLE | Ready::RDHUP,
            Event::Closed(reason) => {
                closed = Some(reason);
                let over = Ready::READABLE | Ready::WRITABLE | Ready::RDHUP | Ready::HUP;
                if matches!(reason, CloseReason::Done { .. }) { over } else { over | Ready::ERROR }
            }
            _ => Ready::NONE,
        };
    }
    (bits, closed)
}

/// Sends one segment; returns its truesize when it was refused.
fn xmit_one(core: &mut Core, mut skb: Skb, tx: &IpTx, id: SockId, hash: u64) -> u32 {
    let truesize = skb.truesize;
    skb.tx_done = id.token();
    skb.hash = hash as u32;
    match ip_out::xmit(core, skb, tx) {
        Xmit::Ok => 0,
        Xmit::Drop(reason) => {
            debug_assert_ne!(reason, DropReason::NotSpecified);
            truesize
        }
        // A changed MTU changes the routes' generation, and the pass has looked the route up anew before. So the device can
        // not carry even the least MSS (`min_snd_mss_bytes`): the connection runs into its timeout, as in Linux.
        Xmit::TooBig { .. } => truesize,
    }
}
