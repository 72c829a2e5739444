//! Passive opens: the SYN queue, the accept queue, and what happens when they are full.
//!
//! ```text
//!   SYN ──▶ Req (SYN-ACK sent, wheel armed) ──ACK──▶ connection ──▶ accept queue ──▶ accept()
//!            at most `backlog` of a listener            at most `backlog` + 1
//! ```
//! Limits as in Linux: a SYN is dropped when the accept queue is full. When the listener has `backlog` half-open
//! connections, it is answered by a cookie ([`crate::cookies`]), or dropped where `tcp_syncookies` is 0; then also when
//! three quarters of `tcp_max_syn_backlog` are used up by peers that never proved to exist. The ACK that would complete a handshake is dropped when the accept queue is full meanwhile (the peer's data or
//! our SYN-ACK's retransmission brings the next chance), or answered by RST with `tcp_abort_on_overflow`. So a flood
//! costs at most `backlog` requests of 216 bytes. Requests of a closed listener die by their timers.

use linerate_base::{DropReason, RstReason, Seq};
use linerate_tcp::Isn;
use linerate_tcp::minisocks::{ReqSock, ReqTimer};
use linerate_wire::TcpFlags;

use crate::core_state::Core;
use crate::demux::{Entry, Scope};
use crate::ip_out::{self, IpTx};
use crate::sock::{Ready, ReadyList};
use crate::tcp::{Body, Listener, PROTO_TCP, Req, Sock, TcpLayer, bind_flags, flag, owner_of, tcp_cx};
use crate::tcp_in::{Segment, drop_min_ttl};
use crate::timers::REQ_GRACE;

/// What becomes of a SYN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// It is remembered.
    Keep,
    /// It is answered, and the answer remembers for us.
    Cookie,
    /// It is dropped.
    Refuse,
}

impl Listener {
    /// Linux's `sk_acceptq_is_full`: one more than the backlog fits.
    pub(crate) fn accept_is_full(&self) -> bool {
        self.accept.len() > self.backlog as usize
    }
}

impl TcpLayer {
    /// A segment of no known flow: for a listener, or for nobody.
    pub(crate) fn rcv_listen(&mut self, core: &mut Core, ready: &mut ReadyList, seg: Segment<'_>) {
        let Some(listener) = self.listeners.find(seg.meta.dst, seg.h.dst_port, seg.hash) else {
            core.drop_skb(seg.skb, DropReason::NoSocket);
            self.reply_reset(core, seg.meta, seg.h, seg.payload_len, RstReason::NoSocket);
            return;
        };
        let least_ttl = self.socks.get_by_index(listener).map_or(0, |s| s.opts().least_ttl(seg.meta.src));
        if seg.meta.ttl < least_ttl {
            return drop_min_ttl(core, seg.skb);
        }
        let flags = seg.h.flags;
        if flags.contains(TcpFlags::RST) {
            core.drop_skb(seg.skb, DropReason::TcpReset);
        } else if flags.contains(TcpFlags::SYN | TcpFlags::ACK) {
            self.refuse_ack(core, seg);
        } else if flags.contains(TcpFlags::ACK) {
            self.rcv_cookie(core, ready, listener, seg);
        } else if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::FIN) {
            self.conn_request(core, listener, seg, None);
        } else {
            core.drop_skb(seg.skb, DropReason::TcpFlags);
        }
    }

    /// What a listener does with another SYN. `returning`: a TIME-WAIT state stands for its peer.
    fn judge_syn(&self, core: &mut Core, listener: u32, returning: bool) -> Judged {
        let Some(Body::Listen(l)) = self.socks.get_by_index(listener).map(|s| &s.body) else { return Judged::Refuse };
        let cookies = core.cfg.tcp.syncookies;
        let full = l.syn_qlen >= l.backlog.max(1) || cookies == 2;
        if full && !returning {
            match cookies {
                0 => core.mibs.tcp.reqq_full_drop += 1,
                _ => core.mibs.tcp.reqq_full_do_cookies += 1,
            }
        }
        if l.accept_is_full() {
            core.mibs.tcp.listen_overflows += 1;
            return Judged::Refuse;
        }
        let most = core.cfg.tcp.max_syn_backlog;
        // The last quarter is for peers that are known to exist; nobody is known here.
        let scarce = cookies == 0 && most.saturating_sub(l.syn_qlen) < most >> 2;
        match full && !returning {
            true if cookies == 0 => Judged::Refuse,
            true => Judged::Cookie,
            false if scarce && !returning => Judged::Refuse,
            false => Judged::Keep,
        }
    }

    /// A SYN for a listener; `iss` when a TIME-WAIT state gave way to it.
    pub(crate) fn conn_request(&mut self, core: &mut Core, listener: u32, seg: Segment<'_>, iss: Option<Seq>) {
        let judged = self.judge_syn(core, listener, iss.is_some());
        if judged == Judged::Refuse {
            core.mibs.tcp.listen_drops += 1;
            core.drop_skb(seg.skb, DropReason::TcpListenOverflow);
            return;
        }
        let Ok(route) = core.links.route(seg.meta.src, Some(seg.meta.dst), None, core.now) else {
            core.mibs.tcp.listen_drops += 1;
            core.drop_skb(seg.skb, DropReason::IpOutNoRoutes);
            return;
        };
        let key = seg.meta.key(PROTO_TCP, seg.h.src_port, seg.h.dst_port);
        let fresh = self.isn.isn(&key, core.now);
        let isn = Isn { iss: iss.unwrap_or(fresh.iss), ..fresh };
        let Some(listener_key) = self.socks.key_of(listener) else { return };
        if judged == Judged::Cookie {
            return self.send_cookie(core, listener_key, seg, (key, &route), isn);
        }
        let Some(l) = self.socks.get_mut(listener_key).and_then(Sock::listener_mut) else { return };
        l.syn_qlen += 1;
        let mut cx = tcp_cx(core, &mut self.challenge);
        let sock = ReqSock::new(&mut cx, &l.opts, key, route.path, seg.h, seg.rx_meta(), isn);
        let (hash, oif, route_generation) = (seg.hash, route.ifindex, route.generation);
        let index = self.reqs.insert(Req { sock, hash, listener: listener_key, oif, route_generation }).index;
        self.table.insert(hash, Entry::Req(index).pack());
        core.consume(seg.skb);
        self.send_synack(core, index, false);
        if let Some(req) = self.reqs.get_by_index(index) {
            self.req_timers.arm_by(index, req.sock.deadline());
        }
    }

    /// Sends a request's SYN-ACK.
    pub(crate) fn send_synack(&mut self, core: &mut Core, index: u32, again: bool) {
        let Some(req) = self.reqs.get_by_index_mut(index) else { return };
        let (src, dst) = (req.sock.key().local_addr(), req.sock.key().remote_addr());
        let mut cx = tcp_cx(core, &mut self.challenge);
        let skb = if again { req.sock.emit_synack_again(&mut cx) } else { req.sock.emit_synack(&mut cx) };
        let Some(mut skb) = skb else { return };
        if req.route_generation != core.links.generation() {
            let Ok(route) = core.links.route(dst, Some(src), None, core.now) else {
                core.drop_skb(skb, DropReason::IpOutNoRoutes);
                return;
            };
            // The device alone; the connection looks the path up, hence no new generation here.
            req.oif = route.ifindex;
        }
        skb.hash = req.hash as u32;
        let ifindex = req.oif;
        let (tos, ttl) = self.listener_ip_fields(index);
        let tx = IpTx { src, dst, proto: PROTO_TCP, tos, ttl, ifindex, frag_mtu: 0 };
        // A lost SYN-ACK is sent again by the timer.
        let _ = ip_out::xmit(core, skb, &tx);
    }

    /// TOS and TTL of what a request sends: the listener's, which the connection inherits; a listener that is gone has no
    /// say.
    pub(crate) fn listener_ip_fields(&self, index: u32) -> (u8, u8) {
        let Some(req) = self.reqs.get_by_index(index) else { return (0, 0) };
        match self.socks.get(req.listener).map(|s| &s.body) {
            Some(Body::Listen(l)) => l.opts.ip_fields(req.sock.key().remote_addr()),
            _ => (0, 0),
        }
    }

    /// Takes a request out of everything.
    pub(crate) fn remove_req(&mut self, index: u32) {
        if let Some(req) = self.take_req(index) {
            let out = self.table.remove(req.hash, Entry::Req(index).pack());
            debug_assert!(out, "a request was not in the table");
        }
    }

    /// Takes a request out of everything but the table of flows.
    fn take_req(&mut self, index: u32) -> Option<Req> {
        let key = self.reqs.key_of(index)?;
        let req = self.reqs.remove(key)?;
        self.req_timers.release(index, REQ_GRACE);
        if let Some(l) = self.socks.get_mut(req.listener).and_then(Sock::listener_mut) {
            debug_assert!(l.syn_qlen > 0);
            l.syn_qlen = l.syn_qlen.saturating_sub(1);
        }
        Some(req)
    }

    /// The segment that completes a handshake.
    pub(crate) fn complete(&mut self, core: &mut Core, ready: &mut ReadyList, index: u32, seg: Segment<'_>) {
        let Some(listener_key) = self.reqs.get_by_index(index).map(|r| r.listener) else { return };
        let Some(l) = self.socks.get_mut(listener_key).and_then(Sock::listener_mut) else {
            // The listener was closed meanwhile.
            self.remove_req(index);
            core.drop_skb(seg.skb, DropReason::NoSocket);
            self.reply_reset(core, seg.meta, seg.h, seg.payload_len, RstReason::NoSocket);
            return;
        };
        if l.accept_is_full() {
            core.mibs.tcp.listen_overflows += 1;
            core.mibs.tcp.listen_drops += 1;
            core.drop_skb(seg.skb, DropReason::TcpListenOverflow);
            if core.cfg.tcp.abort_on_overflow {
                core.mibs.tcp.embryonic_rsts += 1;
                self.remove_req(index);
                self.reply_reset(core, seg.meta, seg.h, seg.payload_len, RstReason::InvalidSyn);
            }
            return;
        }
        let (opts, bind, scope) = (l.opts.clone(), l.bind, l.scope);
        let Some(req) = self.take_req(index) else { return };
        let local = req.sock.key().local();
        let family = if scope == Scope::DualAny || local.is_ipv6() { flag::V6 } else { 0 };
        let flags = flag::IN_TABLE | flag::BOUND | flag::UNACCEPTED | family | bind_flags(bind);
        let bind_hash = self.binds.prepare(local.port(), local.ip());
        let bind = self.binds.add_at(bind_hash, local.port(), local.ip(), owner_of(flags, false));
        let (challenge, hash) = (&mut self.challenge, req.hash);
        debug_assert_eq!(hash, seg.hash);
        let generation = core.links.generation();
        let accepted = if req.oif == seg.meta.ifindex { generation } else { generation.wrapping_sub(1) };
        let child = self.socks.insert_with(|_| Sock {
            hash,
            bind,
            flags,
            oif: req.oif,
            route_generation: req.route_generation,
            accepted,
            ..Sock::new(Body::Conn(req.sock.into_conn(&mut tcp_cx(core, challenge), opts)))
        });
        let child = child.index;
        if let Some(sock) = self.socks.get_by_index_mut(child) {
            sock.note_min_ttl();
        }
        let took_over = self.table.replace(hash, Entry::Req(index).pack(), Entry::Conn(child).pack());
        debug_assert!(took_over, "a request was not in the table");
        if let (Some(id), Some(l)) = (self.id_of(child), self.socks.get_mut(listener_key).and_then(Sock::listener_mut))
        {
            l.accept.push_back(id);
        }
        self.post(ready, listener_key.index, Ready::ACCEPT);
        self.rcv_conn(core, ready, child, seg);
    }

    /// A request's deadline passed.
    pub(crate) fn on_req_timer(&mut self, core: &mut Core, index: u32) {
        let Some(req) = self.reqs.get_by_index_mut(index) else { return };
        if core.now < req.sock.deadline() {
            self.req_timers.arm_by(index, req.sock.deadline());
            return;
        }
        let verdict = req.sock.on_timer(&tcp_cx(core, &mut self.challenge));
        let orphan = self.reqs.get_by_index(index).is_some_and(|r| !self.socks.contains(r.listener));
        match verdict {
            _ if orphan => self.remove_req(index),
            ReqTimer::Expired => {
                core.mibs.tcp.attempt_fails += 1;
                self.remove_req(index);
            }
            ReqTimer::Resend => self.send_synack(core, index, true),
            ReqTimer::Wait => {}
        }
        if let Some(req) = self.reqs.get_by_index(index) {
            self.req_timers.arm_by(index, req.sock.deadline());
        }
    }
}
