//! RACK: a segment is lost when one sent later was delivered, and reordering can not explain it (RFC 8985 section 6).
//!
//! Time, not sequence, decides: so retransmissions that are lost again are found, and one mechanism serves in place of
//! duplicate-ACK counting. The reordering window is 0 as long as no reordering was seen and recovery runs or three
//! segments are SACKed; else a quarter of the least RTT times `reo_wnd_steps`, at most srtt, widened by DSACKs and
//! narrowed again after 16 recoveries without. What is not yet overdue gets a timer.
//!
//! The transmission list makes an ACK cost the segments that it condemns, plus a bounded look ahead for the timer.
//! Without SACK the classic rule is kept (RFC 6582): three duplicate ACKs condemn the head, each partial ACK the next.

use linerate_base::{Instant, Seq};
use linerate_cong::CaState;

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::rate::sent_after;
use crate::rtt::TIMEOUT_MIN_US;
use crate::timer::RetransKind;
use crate::tx::{Tx, flag};
use crate::txq::{NIL, TxSeg, tag};

/// Recoveries for which a widened window lasts (RFC 8985 section 6.2 step 4).
const REO_WND_PERSIST: u8 = 16;
/// Segments not yet overdue that are looked at for the exact timer; beyond, an upper bound serves.
const LOOK_AHEAD: u32 = 64;

impl Tx {
    /// A segment is believed to be lost, each copy of it.
    pub(crate) fn mark_lost(&mut self, cx: &mut TcpCx<'_>, slot: u32) {
        let Some(seg) = self.fl.q.at_slot(slot).copied() else { return };
        if seg.has(tag::SACKED) || (seg.has(tag::LOST) && !seg.has(tag::RETRANS)) {
            return;
        }
        if self.fl.retrans_hint.is_none_or(|h| seg.seq.lt(h)) {
            self.fl.retrans_hint = Some(seg.seq);
        }
        if seg.has(tag::RETRANS) {
            self.retrans_out = self.retrans_out.saturating_sub(seg.segs);
            cx.mib.lost_retransmit += u64::from(seg.segs);
        }
        if !seg.has(tag::LOST) {
            self.lost_out += seg.segs;
        }
        self.fl.lost = self.fl.lost.wrapping_add(seg.segs);
        if let Some(s) = self.fl.q.at_slot_mut(slot) {
            s.tags = (s.tags | tag::LOST) & !tag::RETRANS;
        }
        self.fl.q.ts_unlink(slot);
    }

    /// Reordering window, µs.
    fn reo_wnd_us(&self, dupthresh: u32) -> u32 {
        if !self.flag(flag::REORD_SEEN) {
            let recovering = matches!(self.cc.ca_state, CaState::Recovery | CaState::Loss);
            if recovering || self.sacked_out >= dupthresh {
                return 0;
            }
        }
        let quarter = match self.min_rtt.get() {
            u32::MAX => u32::MAX,
            us => us >> 2,
        };
        quarter.saturating_mul(u32::from(self.reo_wnd_steps)).min(self.srtt_us8 >> 3)
    }

    /// Microseconds until a segment sent at `at` is overdue; not positive: it is.
    pub(crate) fn rack_timeout_us(&self, now: Instant, at: Instant, reo_wnd_us: u32) -> i64 {
        i64::from(self.fl.rack.rtt_us) + i64::from(reo_wnd_us) - i64::from(now.micros_since(at))
    }

    /// Condemns what is overdue. Returns when the next will be, in µs from now; 0 = nothing waits.
    fn rack_detect_loss(&mut self, cx: &mut TcpCx<'_>) -> u32 {
        let reo_wnd = self.reo_wnd_us(u32::from(self.reordering));
        let rack = self.fl.rack;
        let (mut timeout, mut seen) = (0_i64, 0);
        let mut slot = self.fl.q.ts_first();
        while slot != NIL {
            let Some(seg) = self.fl.q.at_slot(slot).copied() else { break };
            let next = self.fl.q.ts_next(slot);
            if !sent_after(rack.mstamp, rack.end_seq, seg.tx_at, seg.end_seq) {
                break;
            }
            let left = self.rack_timeout_us(cx.now, seg.tx_at, reo_wnd);
            if left <= 0 {
                self.mark_lost(cx, slot);
            } else {
                timeout = timeout.max(left);
                seen += 1;
                if seen > LOOK_AHEAD {
                    timeout = timeout.max(self.rack_timeout_us(cx.now, rack.mstamp, reo_wnd));
                    break;
                }
            }
            slot = next;
        }
        u32::try_from(timeout).unwrap_or(u32::MAX)
    }
}

impl Conn {
    /// A segment was delivered: is it the latest sent so far?
    pub(crate) fn rack_advance(&mut self, seg: &TxSeg, now: Instant) {
        let rtt_us = now.micros_since(seg.tx_at);
        if rtt_us < self.tx.min_rtt.get() && self.tx.min_rtt.get() != u32::MAX && seg.has(tag::EVER_RETRANS) {
            // Too fast for the copy: the original arrived.
            return;
        }
        let rack = &mut self.tx.fl.rack;
        rack.advanced = true;
        rack.rtt_us = rtt_us;
        if sent_after(seg.tx_at, seg.end_seq, rack.mstamp, rack.end_seq) {
            rack.mstamp = seg.tx_at;
            rack.end_seq = seg.end_seq;
        }
    }

    /// Does the echoed timestamp prove that the ACK answers the original, not the retransmission (RFC 3522)?
    pub(crate) fn spurious_retrans(&self, seg: &TxSeg, ecr: u32) -> bool {
        let sent = self.tsval(seg.tx_at);
        seg.has(tag::EVER_RETRANS) && self.neg.ts && ecr != 0 && (ecr.wrapping_sub(sent) as i32) < 0
    }

    /// Looks for losses after an ACK. Returns whether RACK's own timer was armed.
    pub(crate) fn rack_mark_lost(&mut self, cx: &mut TcpCx<'_>) -> bool {
        if !self.tx.fl.rack.advanced {
            return false;
        }
        self.tx.fl.rack.advanced = false;
        let timeout = self.tx.rack_detect_loss(cx);
        if timeout > 0 {
            let us = timeout.saturating_add(TIMEOUT_MIN_US).min(self.tx.rto_us);
            self.timers.set_retrans(RetransKind::Reo, cx.now.plus_micros(u64::from(us)));
        }
        timeout > 0
    }

    /// RACK's timer fired.
    pub(crate) fn rack_reo_timeout(&mut self, cx: &mut TcpCx<'_>) {
        let before = self.tx.in_flight();
        let lost = self.tx.fl.lost;
        let timeout = self.tx.rack_detect_loss(cx);
        if before != self.tx.in_flight() {
            if self.tx.cc.ca_state != CaState::Recovery {
                self.enter_recovery(cx, false);
                let lost = self.tx.fl.lost.wrapping_sub(lost);
                self.cwnd_reduction(1, lost, false);
            }
            self.tx.set_flag(flag::HOLD, false);
        }
        if timeout > 0 {
            let us = timeout.saturating_add(TIMEOUT_MIN_US).min(self.tx.rto_us);
            self.timers.set_retrans(RetransKind::Reo, cx.now.plus_micros(u64::from(us)));
        } else {
            self.rearm_rto(cx);
        }
    }

    /// Adapts the reordering window to DSACKs, once per round trip.
    pub(crate) fn rack_update_reo_wnd(&mut self, prior_delivered: Option<u32>) {
        let Some(prior) = prior_delivered else { return };
        let fresh = (prior.wrapping_sub(self.tx.fl.rack.last_delivered) as i32) >= 0;
        if !fresh {
            self.tx.set_flag(flag::DSACK_SEEN, false);
        }
        if self.tx.flag(flag::DSACK_SEEN) {
            self.tx.reo_wnd_steps = self.tx.reo_wnd_steps.saturating_add(1);
            self.tx.set_flag(flag::DSACK_SEEN, false);
            self.tx.fl.rack.last_delivered = self.tx.delivered;
            self.tx.reo_wnd_persist = REO_WND_PERSIST;
        } else if self.tx.reo_wnd_persist == 0 {
            self.tx.reo_wnd_steps = 1;
        }
    }

    /// Widening lasts longer: a recovery was proven to be needless.
    pub(crate) fn rack_persist(&mut self) {
        self.tx.reo_wnd_persist = self.tx.reo_wnd_persist.saturating_add(1).min(REO_WND_PERSIST);
    }

    /// Finds losses: RACK, or NewReno without SACK.
    pub(crate) fn identify_loss(&mut self, cx: &mut TcpCx<'_>, facts: &mut u32) {
        use crate::ack::fact;
        if self.tx.fl.q.sent() == 0 {
            return;
        }
        if !self.neg.sack {
            self.newreno_mark_lost(cx, *facts & fact::SND_UNA_ADVANCED != 0);
            return;
        }
        let retrans = self.tx.retrans_out;
        if self.rack_mark_lost(cx) {
            *facts &= !fact::SET_XMIT_TIMER;
        }
        if retrans > self.tx.retrans_out {
            *facts |= fact::LOST_RETRANS;
        }
    }

    /// RFC 6582: the first wire segment of the queue is lost.
    fn newreno_mark_lost(&mut self, cx: &mut TcpCx<'_>, una_advanced: bool) {
        let dupthresh = self.tx.sacked_out >= u32::from(self.tx.reordering);
        let begins = !matches!(self.tx.cc.ca_state, CaState::Recovery | CaState::Loss) && dupthresh;
        let goes_on = self.tx.cc.ca_state == CaState::Recovery && una_advanced;
        if !begins && !goes_on {
            return;
        }
        let Some(head) = self.tx.fl.q.rtx_head().copied().filter(|h| !h.has(tag::LOST)) else { return };
        let mss = u32::from(head.mss.max(1));
        if head.segs > 1 && head.data_len() > mss {
            let at: Seq = head.seq + mss;
            self.split_seg(cx, 0, at, mss);
        }
        if let Some(slot) = self.tx.fl.q.slot(0) {
            self.tx.mark_lost(cx, slot);
        }
        self.limit_reno_sacked();
    }
}
