//! A SYN flood meets no queue: SYN-ACKs that remember for us, and the ACKs that bring them back (SYSTEMS B10).
//!
//! A listener whose SYN queue is full answers by a cookie (see `linerate_tcp::minisocks::cookie`), sends it once and keeps
//! nothing but the time. An ACK for a listener that belongs to no known flow is taken for one that brings a cookie back,
//! but only [`VALID_MINUTES`] after the listener sent its last: at rest, a forged ACK is not even hashed. A good cookie
//! becomes a request that is completed at once, in the same turn; memory is spent only on peers that can be reached at
//! their address. Counters are Linux's: `SyncookiesSent`, `SyncookiesRecv`, `SyncookiesFailed`.
//!
//! Limits: the accept queue's, as for any handshake. Not here: Fast Open, which Linux switches off under cookies.

use linerate_base::{DropReason, Duration, Key, RstReason};
use linerate_tcp::Isn;
use linerate_tcp::minisocks::cookie::VALID_MINUTES;
use linerate_wire::flow::FlowKey;

use crate::core_state::Core;
use crate::demux::Entry;
use crate::ip_out::{self, IpTx};
use crate::route::RouteInfo;
use crate::sock::ReadyList;
use crate::tcp::{PROTO_TCP, Req, Sock, TcpLayer, hash_of, tcp_cx};
use crate::tcp_in::Segment;

/// How long after its last cookie a listener believes one.
const BELIEVED: Duration = Duration::from_secs(60 * VALID_MINUTES as u64);

impl TcpLayer {
    /// Answers a SYN without remembering it.
    pub(crate) fn send_cookie(
        &mut self,
        core: &mut Core,
        listener: Key,
        seg: Segment<'_>,
        (key, route): (FlowKey, &RouteInfo),
        isn: Isn,
    ) {
        let Some(l) = self.socks.get_mut(listener).and_then(Sock::listener_mut) else {
            core.drop_skb(seg.skb, DropReason::NoSocket);
            return;
        };
        l.cookie_sent = Some(core.now);
        let (tos, ttl) = l.opts.ip_fields(key.remote_addr());
        let mut cx = tcp_cx(core, &mut self.challenge);
        let flow = (key, route.path);
        let mut req = self.cookies.request_of_syn(&mut cx, &l.opts, flow, seg.h, seg.rx_meta(), isn);
        let synack = req.emit_synack(&mut cx);
        core.consume(seg.skb);
        let Some(mut skb) = synack else { return };
        core.mibs.tcp.syncookies_sent += 1;
        skb.hash = hash_of(&core.hash_key, &key) as u32;
        let tx = IpTx { src: key.local_addr(), tos, ttl, ..IpTx::new(route, key.remote_addr(), PROTO_TCP) };
        // A lost one is not sent again; the peer's SYN is.
        let _ = ip_out::xmit(core, skb, &tx);
    }

    /// An ACK for a listener: the end of a handshake that nobody remembers, or nothing that was asked for.
    pub(crate) fn rcv_cookie(&mut self, core: &mut Core, ready: &mut ReadyList, listener: u32, seg: Segment<'_>) {
        let Some(listener_key) = self.socks.key_of(listener) else { return };
        let l = self.socks.get_mut(listener_key).and_then(Sock::listener_mut);
        let now = core.now;
        let overflowed = |sent: linerate_base::Instant| now.since(sent) <= BELIEVED;
        let Some(l) = l.filter(|l| l.cookie_sent.is_some_and(overflowed) && core.cfg.tcp.syncookies != 0) else {
            return self.refuse_ack(core, seg);
        };
        let key = seg.meta.key(PROTO_TCP, seg.h.src_port, seg.h.dst_port);
        let Ok(route) = core.links.route(seg.meta.src, Some(seg.meta.dst), None, core.now) else {
            return self.refuse_ack(core, seg);
        };
        let ts_offset = self.isn.isn(&key, core.now).ts_offset;
        let mut cx = tcp_cx(core, &mut self.challenge);
        let flow = (key, route.path);
        let sock = self.cookies.request_of_ack(&mut cx, &l.opts, flow, seg.h, seg.rx_meta(), ts_offset);
        let Some(sock) = sock else {
            core.mibs.tcp.syncookies_failed += 1;
            return self.refuse_ack(core, seg);
        };
        core.mibs.tcp.syncookies_recv += 1;
        if l.accept_is_full() {
            core.mibs.tcp.listen_overflows += 1;
            core.mibs.tcp.listen_drops += 1;
            core.drop_skb(seg.skb, DropReason::TcpListenOverflow);
            return;
        }
        // As if it had been remembered, for the length of this call.
        l.syn_qlen += 1;
        let (hash, oif, route_generation) = (seg.hash, route.ifindex, route.generation);
        let index = self.reqs.insert(Req { sock, hash, listener: listener_key, oif, route_generation }).index;
        self.table.insert(hash, Entry::Req(index).pack());
        self.complete(core, ready, index, seg);
        debug_assert!(self.reqs.get_by_index(index).is_none(), "a cookie's request outlives its ACK");
    }

    /// An ACK that nobody asked for (RFC 9293 section 3.10.7.2).
    pub(crate) fn refuse_ack(&mut self, core: &mut Core, seg: Segment<'_>) {
        core.drop_skb(seg.skb, DropReason::TcpFlags);
        self.reply_reset(core, seg.meta, seg.h, seg.payload_len, RstReason::TcpFlags);
    }
}
