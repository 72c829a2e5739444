//! Taking a reduction back: Eifel by timestamps (RFC 3522, 4015), DSACKs (RFC 3708), and what F-RTO proved (RFC 5682).
//!
//! An episode is needless when the original transmissions had arrived after all. Three proofs are accepted: the ACK echoes
//! a timestamp older than the first retransmission; as many duplicates were reported by DSACK as retransmissions were
//! made; or, after a timeout, data that was never retransmitted is acknowledged. Then cwnd and ssthresh return to what
//! they were, "lost" tags vanish, and RACK looks again with fresh eyes.
//!
//! Invariant: `undo_marker` is `Some` exactly while an episode can be taken back. Nothing here finds losses or sends.

use linerate_cong::{CaState, CongestionControl};

use crate::ack::AckCx;
use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::txq::tag;

impl Conn {
    /// The ACK answers a transmission older than the first retransmission, or there was none.
    pub(crate) fn packet_delayed(&self, ecr: u32) -> bool {
        match self.tx.fl.retrans_stamp {
            0 => true,
            stamp => self.neg.ts && ecr != 0 && (ecr.wrapping_sub(stamp) as i32) < 0,
        }
    }

    fn may_undo(&self, ecr: u32) -> bool {
        self.tx.fl.undo_marker.is_some() && (self.tx.fl.undo_retrans == 0 || self.packet_delayed(ecr))
    }

    /// Restores the windows.
    fn undo_cwnd_reduction(&mut self, cx: &TcpCx<'_>, unmark_loss: bool) {
        if unmark_loss {
            self.unmark_lost();
        }
        self.tx.sync_cc();
        let tx = &mut self.tx;
        if tx.fl.prior_ssthresh != 0 {
            tx.cc.cwnd = tx.algo.undo_cwnd(&tx.cc).clamp(1, tx.cc.cwnd_clamp);
            if tx.fl.prior_ssthresh > tx.cc.ssthresh {
                tx.cc.ssthresh = tx.fl.prior_ssthresh;
                self.rx.ecn.queue_cwr = false;
            }
        }
        let fl = &mut *self.tx.fl;
        fl.cwnd_stamp = cx.now;
        fl.undo_marker = None;
        fl.rack.advanced = true;
    }

    /// Nothing is lost any more.
    fn unmark_lost(&mut self) {
        let q = &mut self.tx.fl.q;
        for pos in 0..q.sent() {
            if let Some(s) = q.get_mut(pos) {
                s.tags &= !tag::LOST;
            }
        }
        self.tx.lost_out = 0;
        self.tx.fl.retrans_hint = None;
        self.tx.fl.q.ts_rebuild();
    }

    /// Without SACK, stay in the state until something above `high_seq` is acknowledged: late duplicate ACKs must not
    /// start another recovery (RFC 6582 section 4).
    fn stays_for_reno(&mut self) -> bool {
        if self.neg.sack || self.tx.snd_una != self.tx.fl.high_seq {
            return false;
        }
        if !self.tx.any_retrans_done() {
            self.tx.fl.retrans_stamp = 0;
        }
        true
    }

    /// The episode's data is acknowledged: a happy end or not, Open follows. Returns true when the state is kept.
    pub(crate) fn try_undo_recovery(&mut self, cx: &mut TcpCx<'_>, a: &AckCx) -> bool {
        if self.may_undo(a.ecr) {
            self.undo_cwnd_reduction(cx, false);
            if self.tx.cc.ca_state == CaState::Loss {
                cx.mib.loss_undo += 1;
            } else {
                cx.mib.full_undo += 1;
            }
        } else if self.tx.reo_wnd_persist > 0 {
            self.tx.reo_wnd_persist -= 1;
        }
        if self.stays_for_reno() {
            return true;
        }
        self.set_ca_state(cx, CaState::Open);
        self.tx.set_flag(crate::tx::flag::SACK_RENEG, false);
        false
    }

    /// All retransmissions were reported as duplicates.
    pub(crate) fn try_undo_dsack(&mut self, cx: &mut TcpCx<'_>) -> bool {
        if self.tx.fl.undo_marker.is_none() || self.tx.fl.undo_retrans != 0 {
            return false;
        }
        self.rack_persist();
        self.undo_cwnd_reduction(cx, false);
        cx.mib.dsack_undo += 1;
        true
    }

    /// After a timeout. `frto`: F-RTO proved it spurious.
    pub(crate) fn try_undo_loss(&mut self, cx: &mut TcpCx<'_>, a: &AckCx, frto: bool) -> bool {
        if !frto && !self.may_undo(a.ecr) {
            return false;
        }
        self.undo_cwnd_reduction(cx, true);
        cx.mib.loss_undo += 1;
        if frto {
            cx.mib.spurious_rtos += 1;
        }
        self.tx.retransmits = 0;
        if self.stays_for_reno() {
            return true;
        }
        if frto || self.neg.sack {
            self.set_ca_state(cx, CaState::Open);
            self.tx.set_flag(crate::tx::flag::SACK_RENEG, false);
        }
        true
    }

    /// A partial ACK in Recovery. Returns true when nothing shall be retransmitted for now.
    pub(crate) fn try_undo_partial(&mut self, cx: &mut TcpCx<'_>, a: &AckCx) -> bool {
        if self.tx.fl.undo_marker.is_none() || !self.packet_delayed(a.ecr) {
            return false;
        }
        // The hole was filled by a late original: the path reorders more than we thought.
        self.check_sack_reordering(cx, a.prior_una, true);
        if self.tx.retrans_out > 0 {
            return true;
        }
        if !self.tx.any_retrans_done() {
            self.tx.fl.retrans_stamp = 0;
        }
        self.undo_cwnd_reduction(cx, true);
        cx.mib.partial_undo += 1;
        self.try_keep_open(cx);
        false
    }
}
