//! A TCP segment arrives: parse once, look up once, hand over (RFC 9293 section 3.10.7).
//!
//! `ip_in` has verified the checksum. The flow's keyed hash is computed once per super-packet and goes with it. A segment
//! finds a connection, a half-open request, a TIME-WAIT state, a listener, or nobody; nobody answers with a RST, always
//! (as Linux: what a stranger can provoke is no more than what he sent). Every skb ends here: taken by a connection, or
//! counted under a reason and freed. Transmission waits for the output pass, except for answers without a connection.

use linerate_base::{DropReason, Errno, RstReason};
use linerate_skb::Skb;
use linerate_tcp::minisocks::Disposition;
use linerate_tcp::{IcmpError, IcmpKind, RxMeta};
use linerate_wire::TcpRepr;

use crate::core_state::Core;
use crate::demux::Entry;
use crate::sock::ReadyList;
use crate::tcp::{Body, PROTO_TCP, TcpLayer, flag, hash_of, note_dirty, tcp_cx};
use crate::tcp_out::settle;
use crate::upcall::{IcmpUp, IpMeta};

/// A parsed segment on its way to its owner.
pub(crate) struct Segment<'a> {
    pub(crate) meta: &'a IpMeta,
    pub(crate) h: &'a TcpRepr,
    /// Keyed hash of the flow.
    pub(crate) hash: u64,
    /// Payload bytes.
    pub(crate) payload_len: u32,
    pub(crate) skb: Skb,
}

impl Segment<'_> {
    pub(crate) fn rx_meta(&self) -> RxMeta {
        RxMeta { ecn: self.meta.ecn, ttl: self.meta.ttl, ifindex: self.meta.ifindex.0, hash: self.hash as u32 }
    }
}

impl TcpLayer {
    /// A segment for this host.
    pub(crate) fn rcv(&mut self, core: &mut Core, ready: &mut ReadyList, meta: &IpMeta, skb: Skb) {
        core.mibs.tcp.in_segs += u64::from(skb.wire_pkts());
        if meta.multicast {
            // TCP is between two hosts (RFC 9293 section 3.9.2.3).
            core.drop_skb(skb, DropReason::IpInvalidSource);
            return;
        }
        let (h, header_len) = match TcpRepr::parse(skb.head()) {
            Ok(parsed) => parsed,
            Err(e) => {
                core.mibs.tcp.in_errs += 1;
                core.drop_skb(skb, e.drop_reason());
                return;
            }
        };
        let key = meta.key(PROTO_TCP, h.src_port, h.dst_port);
        let (hash, entry) = self.lookup_rx(core, &key);
        let payload_len = skb.len().saturating_sub(header_len as u32);
        self.rcv_owned(core, ready, entry, Segment { meta, h: &h, hash, payload_len, skb });
    }

    /// Hands a segment to whom its flow belongs; its packet was found acceptable.
    #[inline]
    pub(crate) fn rcv_owned(&mut self, core: &mut Core, ready: &mut ReadyList, entry: Option<Entry>, seg: Segment<'_>) {
        match entry {
            Some(Entry::Conn(index)) => {
                self.note_rx(index, seg.meta.ifindex, core.links.generation());
                self.rcv_conn(core, ready, index, seg);
            }
            Some(Entry::Req(index)) => self.rcv_req(core, ready, index, seg),
            Some(Entry::Tw(index)) => self.rcv_tw(core, index, seg),
            None => self.rcv_listen(core, ready, seg),
        }
    }

    /// Hands a segment to its connection.
    pub(crate) fn rcv_conn(&mut self, core: &mut Core, ready: &mut ReadyList, index: u32, seg: Segment<'_>) {
        let rx_meta = seg.rx_meta();
        let Segment { meta, h, payload_len, skb, .. } = seg;
        let mut found = self.socks.entry_by_index_mut(index);
        if let Some((_, sock)) = &found
            && sock.has(flag::MIN_TTL)
            && meta.ttl < sock.opts().least_ttl(meta.src)
        {
            return drop_min_ttl(core, skb);
        }
        let Some(conn) = found.as_mut().and_then(|(_, sock)| sock.conn_mut()) else {
            debug_assert!(false, "the table names a socket without a connection");
            core.drop_skb(skb, DropReason::NoSocket);
            return;
        };
        let una = core.links.neigh.wants_proof().then(|| conn.snd_una());
        let done = conn.rcv(&mut tcp_cx(core, &mut self.challenge), rx_meta, h, skb);
        if una.is_some_and(|una| una != conn.snd_una()) {
            // New data was acknowledged: the neighbour that it went through is there.
            crate::neigh::confirm(core, meta.src, meta.ifindex);
        }
        let reset = conn.take_reset_reply();
        if let Some((key, sock)) = found
            && !settle(&mut self.timers, ready, sock, key)
        {
            note_dirty(&mut self.dirty, sock, index);
        }
        let mut why = RstReason::NotSpecified;
        if let Err((skb, reason)) = done {
            why = RstReason::of_drop(reason);
            core.drop_skb(skb, reason);
        }
        if reset {
            self.reply_reset(core, meta, h, payload_len, why);
        }
    }

    /// A segment for a half-open connection.
    fn rcv_req(&mut self, core: &mut Core, ready: &mut ReadyList, index: u32, seg: Segment<'_>) {
        let Some(req) = self.reqs.get_by_index_mut(index) else {
            debug_assert!(false, "the table names a request that is gone");
            core.drop_skb(seg.skb, DropReason::NoSocket);
            return;
        };
        let verdict = req.sock.on_segment(&mut tcp_cx(core, &mut self.challenge), seg.h, seg.payload_len);
        match verdict {
            Disposition::Complete => return self.complete(core, ready, index, seg),
            Disposition::Drop(reason) => core.drop_skb(seg.skb, reason),
            Disposition::ResendSynAck => {
                core.drop_skb(seg.skb, DropReason::TcpMinisock);
                self.send_synack(core, index, true);
            }
            Disposition::SendAck(reason) => {
                let ack = req.sock.ack_repr(&tcp_cx(core, &mut self.challenge));
                let tos = self.listener_ip_fields(index).0;
                core.drop_skb(seg.skb, reason);
                self.reply(core, seg.meta, &ack, tos);
            }
            Disposition::Reset(reason) | Disposition::ResetAndRemove(reason) => {
                core.drop_skb(seg.skb, reason);
                self.reply_reset(core, seg.meta, seg.h, seg.payload_len, RstReason::of_drop(reason));
                if matches!(verdict, Disposition::ResetAndRemove(_)) {
                    self.remove_req(index);
                }
            }
            Disposition::Remove(reason) => {
                core.drop_skb(seg.skb, reason);
                self.remove_req(index);
            }
        }
        if let Some(req) = self.reqs.get_by_index(index) {
            self.req_timers.arm_by(index, req.sock.deadline());
        }
    }

    /// An ICMP error about a segment of ours (RFC 1122 section 4.2.3.9, RFC 5927).
    pub(crate) fn on_icmp(&mut self, core: &mut Core, up: &IcmpUp) {
        let hash = hash_of(&core.hash_key, &up.key);
        match self.lookup(hash, &up.key) {
            Some(Entry::Conn(index)) => self.icmp_conn(core, index, up),
            Some(Entry::Req(index)) => {
                let Some(req) = self.reqs.get_by_index(index) else { return };
                if !req.sock.is_own_seq(up.seq) {
                    core.mibs.tcp.out_of_window_icmps += 1;
                } else if matches!(up.errno, Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EPROTO) {
                    // The path is broken (Linux's `tcp_req_err`); a refusing port is not the peer's word.
                    core.mibs.tcp.listen_drops += 1;
                    self.remove_req(index);
                }
            }
            // A finished connection has nobody to tell; one that never was is somebody else's trouble.
            Some(Entry::Tw(_)) => {}
            None => core.mibs.icmp.in_errors += 1,
        }
    }

    fn icmp_conn(&mut self, core: &mut Core, index: u32, up: &IcmpUp) {
        let Some(sock) = self.socks.get_by_index_mut(index) else { return };
        let Body::Conn(conn) = &mut sock.body else { return };
        let before = conn.path().mtu_bytes;
        conn.on_icmp(
            &mut tcp_cx(core, &mut self.challenge),
            IcmpError { kind: icmp_kind(up), mtu: up.mtu_bytes, seq: up.seq },
        );
        if conn.path().mtu_bytes < before {
            let peer = up.key.remote_addr();
            // The route remembers for the next connection; this one looks again in the output pass.
            if core.links.update_pmtu(peer, up.mtu_bytes, core.now).is_some() {
                sock.route_generation = core.links.generation().wrapping_sub(1);
            }
        }
        self.mark(index);
    }
}

/// RFC 5082: the segment came from farther away than the application takes segments from.
#[cold]
pub(crate) fn drop_min_ttl(core: &mut Core, skb: Skb) {
    core.mibs.tcp.min_ttl_drop += 1;
    core.drop_skb(skb, DropReason::TcpMinTtl);
}

/// The kind of an error, from Linux's translation of it.
fn icmp_kind(up: &IcmpUp) -> IcmpKind {
    match up.errno {
        _ if up.mtu_bytes != 0 => IcmpKind::PktTooBig,
        Errno::EMSGSIZE => IcmpKind::PktTooBig,
        Errno::ENETUNREACH => IcmpKind::NetUnreachable,
        Errno::ECONNREFUSED => IcmpKind::PortUnreachable,
        Errno::ENOPROTOOPT => IcmpKind::ProtoUnreachable,
        Errno::EPROTO => IcmpKind::ParamProblem,
        Errno::EACCES => IcmpKind::Prohibited,
        _ if up.fatal => IcmpKind::Prohibited,
        _ => IcmpKind::HostUnreachable,
    }
}
