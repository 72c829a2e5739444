//! SYN-SENT: the answer to our SYN (RFC 9293 section 3.10.7.3, RFC 7323, RFC 3168).
//!
//! Four outcomes: a SYN-ACK completes the handshake; a SYN alone means that both ends opened at once and leads to
//! SYN-RECEIVED, where our SYN-ACK goes out; an acceptable RST refuses the connection; an ACK of something that we never
//! sent is answered by a RST and changes nothing, because it belongs to a former connection. Options are agreed here:
//! each counts only if both SYNs carry it, a window scale above 14 is taken as 14, a missing MSS means 536 (IPv4) or
//! 1220 (IPv6), and a window on a SYN is never scaled. Data on the SYN or SYN-ACK is not taken: the peer sends it again.

use linerate_base::DropReason;
use linerate_skb::Skb;
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr};

use crate::conn::{Conn, Negotiated, ts_clock};
use crate::cx::TcpCx;
use crate::ecn::synack_grants_ecn;
use crate::input::Seg;
use crate::state::State;
use crate::validate::{Paws, now_s};
use crate::wnd::MAX_WSCALE;

/// MSS that a peer without the option takes: RFC 9293 section 3.7.1 for IPv4, RFC 8200's 1280 - 60 for IPv6.
pub(crate) fn default_mss(ip_header_bytes: u8) -> u16 {
    if ip_header_bytes == 40 { 1220 } else { 536 }
}

/// What both SYNs offer; `ours` is what ours offered.
pub(crate) fn agree(ours: &Negotiated, peer: &TcpOptions, ip_header_bytes: u8) -> Negotiated {
    let wscale = ours.wscale && peer.wscale.is_some();
    Negotiated {
        ts: ours.ts && peer.ts.is_some(),
        sack: ours.sack && peer.sack_permitted,
        wscale,
        snd_wscale: if wscale { peer.wscale.unwrap_or(0).min(MAX_WSCALE) } else { 0 },
        rcv_wscale: if wscale { ours.rcv_wscale } else { 0 },
        peer_mss_bytes: peer.mss.unwrap_or_else(|| default_mss(ip_header_bytes)),
        ..*ours
    }
}

/// How soon a SYN follows after a SYN-ACK with a wrong number (TCP_TIMEOUT_MIN: two jiffies).
const RETRY_AFTER_BAD_ACK_US: u32 = 2_000;

impl Conn {
    pub(crate) fn rcv_syn_sent(
        &mut self,
        cx: &mut TcpCx<'_>,
        h: &TcpRepr,
        seg: &Seg,
        skb: Skb,
    ) -> Result<(), (Skb, DropReason)> {
        let step = if seg.flags.contains(TcpFlags::ACK) {
            self.answer_with_ack(cx, h, seg)
        } else {
            self.answer_without_ack(cx, h, seg)
        };
        match step {
            Ok(()) => {
                cx.skbs.free(skb, cx.pool);
                Ok(())
            }
            Err(reason) => Err((skb, reason)),
        }
    }

    fn answer_with_ack(&mut self, cx: &mut TcpCx<'_>, h: &TcpRepr, seg: &Seg) -> Result<(), DropReason> {
        let rst = seg.flags.contains(TcpFlags::RST);
        if !(seg.ack.gt(self.snd_una()) && seg.ack.le(self.snd_nxt())) {
            self.rx.shut.reply_rst = !rst;
            if self.tx.retransmits == 0 {
                // The RST may have removed an old connection of the peer: the SYN is worth repeating at once (Linux).
                self.arm_rto(cx, RETRY_AFTER_BAD_ACK_US);
            }
            return Err(DropReason::TcpAckUnsentData);
        }
        if self.neg.ts && !self.echo_is_ours(cx, seg) {
            cx.mib.paws_active += 1;
            self.rx.shut.reply_rst = !rst;
            return Err(DropReason::TcpRfc7323Paws);
        }
        if rst {
            return Err(self.reset(cx));
        }
        if !seg.flags.contains(TcpFlags::SYN) {
            return Err(DropReason::TcpFlags);
        }
        self.take_syn(cx, h, seg);
        self.neg.ecn &= synack_grants_ecn(seg.flags);
        // An echo from before the first retransmission: only the answer was late.
        let lossy = !self.packet_delayed(seg.ts.map_or(0, |ts| ts.ecr));
        self.on_ack(cx, seg)?;
        self.set_snd_wnd(seg);
        self.note_peer_alive(cx);
        self.establish(cx, State::on_syn_ack, lossy);
        if self.wants_handshake_ack_deferred() {
            self.defer_handshake_ack(cx);
        } else {
            self.request_ack();
        }
        Ok(())
    }

    /// The echo lies between our first SYN and now; 0 is what some peers send.
    fn echo_is_ours(&self, cx: &TcpCx<'_>, seg: &Seg) -> bool {
        let Some(ts) = seg.ts else { return true };
        let now = ts_clock(cx.now, self.neg.usec_ts).wrapping_add(self.ts_offset);
        let age = now.wrapping_sub(ts.ecr) as i32;
        // The SYN's retries span minutes: anything not in the future and not older than that may be ours.
        let oldest = i32::from(i16::MAX).saturating_mul(if self.neg.usec_ts { 10_000 } else { 10 });
        ts.ecr == 0 || (0..=oldest).contains(&age)
    }

    fn answer_without_ack(&mut self, cx: &mut TcpCx<'_>, h: &TcpRepr, seg: &Seg) -> Result<(), DropReason> {
        if seg.flags.contains(TcpFlags::RST) {
            return Err(DropReason::TcpInvalidRst);
        }
        if !seg.flags.contains(TcpFlags::SYN) {
            return Err(DropReason::TcpFlags);
        }
        if let Some(ts) = seg.ts
            && let Some(stamp_s) = self.rx.ts_recent_stamp_s.checked_sub(1)
            && (Paws { ts_recent: self.rx.ts_recent, stamp_s, usec: self.neg.usec_ts }).rejects(
                ts.val,
                now_s(cx),
                false,
            )
        {
            return Err(DropReason::TcpRfc7323Paws);
        }
        self.take_syn(cx, h, seg);
        let asks = crate::ecn::syn_requests_ecn(seg.flags, seg.ip_ecn, cx.cfg.ecn);
        self.neg.ecn &= asks;
        self.set_snd_wnd(seg);
        self.advance(cx, State::on_syn);
        self.queue_syn(cx, true);
        Ok(())
    }

    /// Numbers and options of the peer's SYN.
    fn take_syn(&mut self, cx: &TcpCx<'_>, h: &TcpRepr, seg: &Seg) {
        self.neg = agree(&self.neg, &h.opts, self.path.ip_header_bytes);
        if !self.neg.wscale {
            self.rx.window_clamp = self.rx.window_clamp.min(65_535);
            self.rx.wnd = self.rx.wnd.min(65_535);
            self.rx.ssthresh = self.rx.ssthresh.min(65_535);
        }
        if let Some(ts) = seg.ts.filter(|_| self.neg.ts) {
            self.store_ts_recent(cx, ts);
        }
        self.rx.irs = seg.seq;
        let first = seg.seq + 1;
        (self.rx.nxt, self.rx.wup, self.rx.copied_seq, self.rx.last_ack_sent) = (first, first, first, first);
        self.init_rcv_mss();
    }

    /// Data is about to carry the handshake's ACK, or TCP_DEFER_ACCEPT or TCP_QUICKACK off asked to wait for it.
    fn wants_handshake_ack_deferred(&self) -> bool {
        self.outq_bytes() > 0 || self.opts.defer_accept_s > 0 || self.in_pingpong()
    }
}
