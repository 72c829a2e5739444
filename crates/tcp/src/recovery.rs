//! The congestion state machine: Open, Disorder, Cwr, Recovery, Loss (RFC 5681, 6582, 6675, 9937; states as in Linux).
//!
//! ```text
//!            SACK / dup ACK        loss found
//!    Open <-----------------> Disorder -----------> Recovery --+
//!     ^  \--- ECE ---> Cwr ------------------------> |         | snd_una >= high_seq, or undone
//!     |                 | snd_una > high_seq         |         |
//!     +-----------------+----------------------------+---------+
//!     any --- RTO ---> Loss --- snd_una >= high_seq, or proven spurious ---> Open
//! ```
//! An episode begins by remembering `high_seq = snd_nxt`, the former cwnd and ssthresh, and where undo would start. In
//! Cwr and Recovery cwnd is steered by proportional rate reduction: what is sent follows what is delivered, so that cwnd
//! meets ssthresh after one round trip without a burst or a silence. In Loss it grows by slow start.
//! Finding losses is RACK's business (`rack`), taking an episode back is `undo`'s, sending is `output`'s.

use linerate_cong::{CaState, CcEvent, CongestionControl, INFINITE_SSTHRESH};

use crate::ack::{AckCx, Rexmit, fact};
use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::timer::RetransKind;
use crate::tx::{Chrono, Prr, Tx, flag};
use crate::txq::tag;

impl Tx {
    /// ssthresh as it will be once a reduction under way has ended.
    pub(crate) fn current_ssthresh(&self) -> u32 {
        if self.in_cwnd_reduction() {
            self.cc.ssthresh
        } else {
            self.cc.ssthresh.max((self.cc.cwnd >> 1) + (self.cc.cwnd >> 2))
        }
    }
}

/// Windows.
impl Conn {
    /// Moves to a congestion state.
    pub(crate) fn set_ca_state(&mut self, cx: &TcpCx<'_>, to: CaState) {
        self.tx.sync_cc();
        let tx = &mut self.tx;
        tx.algo.on_event(&mut tx.cc, cx.now, CcEvent::State(to));
        tx.cc.ca_state = to;
    }

    /// Remembers where an episode began, so that it can be taken back.
    fn init_undo(&mut self) {
        let tx = &mut self.tx;
        let probe = u32::from(tx.fl.tlp_high_seq.is_some() && tx.fl.tlp_retrans);
        let copies = tx.retrans_out + probe;
        tx.fl.undo_marker = Some(tx.snd_una);
        tx.fl.undo_retrans = if copies == 0 { -1 } else { copies.min(i32::MAX as u32) as i32 };
    }

    /// A reduction begins: PRR from cwnd to the new ssthresh.
    pub(crate) fn init_cwnd_reduction(&mut self, cx: &TcpCx<'_>) {
        self.tx.sync_cc();
        let now = cx.now;
        let tx = &mut self.tx;
        tx.fl.high_seq = tx.snd_nxt;
        tx.fl.tlp_high_seq = None;
        tx.cc.cwnd_cnt = 0;
        tx.cc.prior_cwnd = tx.cc.cwnd;
        tx.fl.prr = Prr { delivered: 0, out: 0 };
        tx.cc.ssthresh = tx.algo.ssthresh(&tx.cc).max(1);
        tx.fl.cwnd_stamp = now;
        self.ecn_queue_cwr();
    }

    /// One ACK's share of a reduction (RFC 9937): cwnd becomes what is in flight plus what may be sent for it.
    pub(crate) fn cwnd_reduction(&mut self, delivered: u32, lost: u32, una_advanced: bool) {
        let flight = self.tx.in_flight();
        let tx = &mut self.tx;
        if delivered == 0 || tx.cc.prior_cwnd == 0 {
            return;
        }
        let prr = &mut tx.fl.prr;
        prr.delivered = prr.delivered.saturating_add(delivered);
        let mut send = if flight > tx.cc.ssthresh {
            let share = u64::from(tx.cc.ssthresh) * u64::from(prr.delivered);
            let share = share.div_ceil(u64::from(tx.cc.prior_cwnd));
            u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(prr.out)
        } else {
            let mut n = prr.delivered.saturating_sub(prr.out).max(delivered);
            if una_advanced && lost == 0 {
                n = n.saturating_add(1);
            }
            n.min(tx.cc.ssthresh - flight)
        };
        if prr.out == 0 {
            // The first retransmission always leaves.
            send = send.max(1);
        }
        tx.cc.cwnd = flight.saturating_add(send).max(1);
    }

    /// The reduction is over: cwnd is ssthresh, unless it was undone.
    pub(crate) fn end_cwnd_reduction(&mut self, cx: &TcpCx<'_>) {
        let tx = &mut self.tx;
        let ours = tx.cc.ca_state == CaState::Cwr || tx.fl.undo_marker.is_some();
        if tx.cc.ssthresh < INFINITE_SSTHRESH && ours {
            tx.cc.cwnd = tx.cc.ssthresh.max(1);
            tx.fl.cwnd_stamp = cx.now;
        }
        tx.algo.on_event(&mut tx.cc, cx.now, CcEvent::CompleteCwr);
    }

    /// ECN echo (or a full local queue): reduce, once per window.
    pub(crate) fn enter_cwr(&mut self, cx: &TcpCx<'_>) {
        self.tx.fl.prior_ssthresh = 0;
        if matches!(self.tx.cc.ca_state, CaState::Open | CaState::Disorder) {
            self.tx.fl.undo_marker = None;
            self.init_cwnd_reduction(cx);
            self.set_ca_state(cx, CaState::Cwr);
        }
    }

    /// Fast recovery begins.
    pub(crate) fn enter_recovery(&mut self, cx: &mut TcpCx<'_>, ece: bool) {
        if self.neg.sack {
            cx.mib.sack_recovery += 1;
        } else {
            cx.mib.reno_recovery += 1;
        }
        self.tx.fl.prior_ssthresh = 0;
        self.init_undo();
        if !self.tx.in_cwnd_reduction() {
            if !ece {
                self.tx.fl.prior_ssthresh = self.tx.current_ssthresh();
            }
            self.init_cwnd_reduction(cx);
        }
        self.set_ca_state(cx, CaState::Recovery);
    }

    /// A retransmission timeout: everything is lost, and cwnd begins anew (RFC 5681 section 3.1).
    pub(crate) fn enter_loss(&mut self, cx: &mut TcpCx<'_>) {
        let state = self.tx.cc.ca_state;
        let fresh = matches!(state, CaState::Open | CaState::Disorder | CaState::Cwr);
        self.timeout_mark_lost(cx);
        let calm = matches!(state, CaState::Open | CaState::Disorder);
        let again = state == CaState::Loss && self.tx.retransmits == 0;
        if calm || self.tx.fl.high_seq.le(self.tx.snd_una) || again {
            self.tx.fl.prior_ssthresh = self.tx.current_ssthresh();
            self.tx.sync_cc();
            let tx = &mut self.tx;
            tx.cc.prior_cwnd = tx.cc.cwnd;
            tx.cc.ssthresh = tx.algo.ssthresh(&tx.cc).max(1);
            tx.algo.on_event(&mut tx.cc, cx.now, CcEvent::Loss);
            self.init_undo();
        }
        let tx = &mut self.tx;
        tx.cc.cwnd = tx.in_flight() + 1;
        tx.cc.cwnd_cnt = 0;
        tx.fl.cwnd_stamp = cx.now;
        if calm && tx.sacked_out >= cx.cfg.reordering_segs {
            // Many SACKs and still a timeout: the degree of reordering was over-estimated.
            tx.reordering = tx.reordering.min(cx.cfg.reordering_segs.min(0xffff) as u16);
        }
        self.set_ca_state(cx, CaState::Loss);
        let tx = &mut self.tx;
        tx.fl.high_seq = tx.snd_nxt;
        tx.fl.tlp_high_seq = None;
        tx.fl.frto = cx.cfg.frto != 0 && (fresh || tx.retransmits > 0);
        tx.set_flag(flag::HOLD | flag::REXMIT_NEW, false);
        self.ecn_queue_cwr();
    }

    /// After a timeout: all is lost, but what was sent too recently to judge.
    fn timeout_mark_lost(&mut self, cx: &mut TcpCx<'_>) {
        let reneged = self.tx.fl.q.rtx_head().is_some_and(|h| h.has(tag::SACKED));
        if reneged {
            cx.mib.sack_reneging += 1;
            self.tx.sacked_out = 0;
            self.tx.set_flag(flag::SACK_RENEG, true);
        } else if !self.neg.sack {
            self.tx.sacked_out = 0;
        }
        for pos in 0..self.tx.fl.q.sent() {
            let Some(seg) = self.tx.fl.q.get(pos).copied() else { break };
            if reneged && seg.has(tag::SACKED) {
                if let Some(s) = self.tx.fl.q.get_mut(pos) {
                    s.tags &= !tag::SACKED;
                }
            } else if !reneged && pos != 0 && self.tx.rack_timeout_us(cx.now, seg.tx_at, 0) > 0 {
                continue;
            }
            if let Some(slot) = self.tx.fl.q.slot(pos) {
                self.tx.mark_lost(cx, slot);
            }
        }
        self.tx.fl.retrans_hint = None;
    }

    /// Is cwnd what limits us? Remembered per window; a window that is not used decays (RFC 7661's concern).
    #[inline]
    pub(crate) fn cwnd_validate(&mut self, cx: &TcpCx<'_>, limited: bool) {
        let tx = &mut self.tx;
        let fl = &mut *tx.fl;
        let new_window = tx.snd_una.ge(fl.cwnd_usage_seq);
        if new_window || limited || (!tx.cc.is_cwnd_limited && tx.packets_out > tx.cc.max_packets_out) {
            tx.cc.is_cwnd_limited = limited;
            tx.cc.max_packets_out = tx.packets_out;
            fl.cwnd_usage_seq = tx.snd_nxt;
        }
        if tx.cc.cwnd_limited() {
            fl.cwnd_used = 0;
            fl.cwnd_stamp = cx.now;
            return;
        }
        fl.cwnd_used = fl.cwnd_used.max(tx.packets_out);
        let stale = cx.now.nanos_since(fl.cwnd_stamp) >= u64::from(tx.rto_us) * 1000;
        if stale || tx.flags & flag::NOSPACE != 0 {
            self.cwnd_unused(cx);
        }
    }

    /// RFC 7661: a window that was not filled for long shrinks. Or is it the send buffer that holds the sender back?
    fn cwnd_unused(&mut self, cx: &TcpCx<'_>) {
        let tx = &mut self.tx;
        let nospace = tx.flag(flag::NOSPACE);
        if cx.cfg.slow_start_after_idle && cx.now.micros_since(tx.fl.cwnd_stamp) >= tx.rto_us {
            let init = self.init_cwnd(cx);
            let tx = &mut self.tx;
            if tx.cc.ca_state == CaState::Open && !nospace {
                let used = tx.fl.cwnd_used.max(init);
                if used < tx.cc.cwnd {
                    tx.cc.ssthresh = tx.current_ssthresh();
                    tx.cc.cwnd = (tx.cc.cwnd + used) >> 1;
                }
                tx.fl.cwnd_used = 0;
            }
            tx.fl.cwnd_stamp = cx.now;
        }
        let tx = &mut self.tx;
        if nospace && !tx.fl.q.has_unsent() {
            tx.chrono_start(cx.now, Chrono::SndbufLimited);
        }
    }
}

/// The state machine.
impl Conn {
    /// Something is unusual: what does it mean, and what may be sent for it? `dups`: duplicate ACKs in this segment.
    pub(crate) fn fastretrans_alert(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx, dups: u32) {
        if self.tx.packets_out == 0 {
            self.tx.sacked_out = 0;
        }
        if a.has(fact::ECE) {
            self.tx.fl.prior_ssthresh = 0;
        }
        if self.sack_reneging(cx, a) {
            return;
        }
        let state = self.tx.cc.ca_state;
        if state == CaState::Open {
            self.tx.fl.retrans_stamp = 0;
        } else if self.tx.snd_una.ge(self.tx.fl.high_seq) && self.episode_over(cx, a) {
            return;
        }
        match self.tx.cc.ca_state {
            CaState::Recovery => {
                if !self.in_recovery(cx, a, dups) {
                    return;
                }
            }
            CaState::Loss => {
                self.process_loss(cx, a, dups);
                self.identify_loss(cx, &mut a.facts);
                if self.tx.cc.ca_state != CaState::Open && !a.has(fact::LOST_RETRANS) {
                    return;
                }
                if !self.maybe_recover(cx, a, dups) {
                    return;
                }
            }
            _ => {
                if !self.maybe_recover(cx, a, dups) {
                    return;
                }
            }
        }
        a.rexmit = Rexmit::Lost;
    }

    /// All that was out when the episode began is acknowledged. Returns true when nothing more is to be decided.
    fn episode_over(&mut self, cx: &mut TcpCx<'_>, a: &AckCx) -> bool {
        match self.tx.cc.ca_state {
            CaState::Cwr if self.tx.snd_una != self.tx.fl.high_seq => {
                self.end_cwnd_reduction(cx);
                self.set_ca_state(cx, CaState::Open);
            }
            CaState::Recovery => {
                if !self.neg.sack {
                    self.tx.sacked_out = 0;
                }
                if self.try_undo_recovery(cx, a) {
                    return true;
                }
                self.end_cwnd_reduction(cx);
            }
            _ => {}
        }
        false
    }

    /// An ACK in Recovery. Returns whether lost segments may be sent.
    fn in_recovery(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx, dups: u32) -> bool {
        if !a.has(fact::SND_UNA_ADVANCED) {
            if !self.neg.sack {
                self.add_reno_sack(cx, dups);
            }
        } else if self.try_undo_partial(cx, a) {
            return false;
        }
        if self.try_undo_dsack(cx) {
            self.try_to_open(cx, a);
        }
        self.identify_loss(cx, &mut a.facts);
        if self.tx.cc.ca_state != CaState::Recovery {
            if self.tx.lost_out == 0 {
                return false;
            }
            // Undone, but a loss is evident: that is an episode of its own.
            self.enter_recovery(cx, a.has(fact::ECE));
        }
        true
    }

    /// An ACK in Open, Disorder or Cwr (or in Loss that was just left). Returns whether recovery began.
    fn maybe_recover(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx, dups: u32) -> bool {
        if !self.neg.sack {
            if a.has(fact::SND_UNA_ADVANCED) {
                self.tx.sacked_out = 0;
            }
            self.add_reno_sack(cx, dups);
        }
        if matches!(self.tx.cc.ca_state, CaState::Open | CaState::Disorder) {
            self.try_undo_dsack(cx);
        }
        self.identify_loss(cx, &mut a.facts);
        if self.tx.lost_out == 0 {
            self.try_to_open(cx, a);
            return false;
        }
        if self.mtu_probe_lost(cx) {
            return true;
        }
        self.enter_recovery(cx, a.has(fact::ECE));
        true
    }

    /// An ACK after a timeout: F-RTO (RFC 5682), undo, or conventional recovery.
    fn process_loss(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx, dups: u32) {
        let recovered = self.tx.snd_una.ge(self.tx.fl.high_seq);
        if a.has(fact::SND_UNA_ADVANCED) && self.try_undo_loss(cx, a, false) {
            return;
        }
        if self.tx.fl.frto {
            // Step 3.b: data that was never retransmitted arrived; the timeout was spurious.
            if a.has(fact::ORIG_SACK_ACKED) && self.try_undo_loss(cx, a, true) {
                return;
            }
            if self.tx.snd_nxt.gt(self.tx.fl.high_seq) {
                if a.has(fact::DATA_SACKED) || dups > 0 {
                    self.tx.fl.frto = false;
                }
            } else if a.has(fact::SND_UNA_ADVANCED) && !recovered {
                self.tx.fl.high_seq = self.tx.snd_nxt;
                // Step 2.b: try new data first.
                if self.tx.fl.q.has_unsent() && self.tx.wnd_end().gt(self.tx.snd_nxt) {
                    a.rexmit = Rexmit::New;
                    return;
                }
                self.tx.fl.frto = false;
            }
        }
        if recovered {
            self.try_undo_recovery(cx, a);
            return;
        }
        if !self.neg.sack {
            // A duplicate ACK after new data was sent: it was delivered, and clocks retransmissions out.
            if self.tx.snd_nxt.gt(self.tx.fl.high_seq) && dups > 0 {
                self.add_reno_sack(cx, dups);
            } else if a.has(fact::SND_UNA_ADVANCED) {
                self.tx.sacked_out = 0;
            }
        }
        a.rexmit = Rexmit::Lost;
    }

    /// The head is SACKed but not acknowledged: the peer forgot it. Wait a little, then treat it as a timeout.
    fn sack_reneging(&mut self, cx: &TcpCx<'_>, a: &mut AckCx) -> bool {
        if !a.has(fact::SACK_RENEGING) || !a.has(fact::SND_UNA_ADVANCED) {
            return false;
        }
        let us = (self.tx.srtt_us8 >> 4).max(10_000);
        self.timers.set_retrans(RetransKind::Rto, cx.now.plus_micros(u64::from(us)));
        a.facts &= !fact::SET_XMIT_TIMER;
        true
    }

    /// Nothing evident: Open or Disorder, or Cwr when the network says so.
    pub(crate) fn try_to_open(&mut self, cx: &TcpCx<'_>, a: &AckCx) {
        if !self.tx.any_retrans_done() {
            self.tx.fl.retrans_stamp = 0;
        }
        if a.has(fact::ECE) {
            self.enter_cwr(cx);
        }
        if self.tx.cc.ca_state != CaState::Cwr {
            self.try_keep_open(cx);
        }
    }

    /// Open if nothing is missing, Disorder otherwise.
    pub(crate) fn try_keep_open(&mut self, cx: &TcpCx<'_>) {
        let tx = &self.tx;
        let disorder = tx.sacked_out + tx.lost_out > 0 || tx.any_retrans_done();
        let to = if disorder { CaState::Disorder } else { CaState::Open };
        if tx.cc.ca_state != to {
            self.set_ca_state(cx, to);
            self.tx.fl.high_seq = self.tx.snd_nxt;
        }
    }
}

/// Duplicate ACKs in place of SACKs (RFC 6582): `sacked_out` is a guess.
impl Conn {
    /// Each duplicate ACK means that one more segment arrived.
    fn add_reno_sack(&mut self, cx: &mut TcpCx<'_>, dups: u32) {
        if dups == 0 {
            return;
        }
        let before = self.tx.sacked_out;
        self.tx.sacked_out = before.saturating_add(dups);
        self.check_reno_reordering(cx, 0);
        let delivered = self.tx.sacked_out.saturating_sub(before);
        self.tx.delivered = self.tx.delivered.wrapping_add(delivered);
    }

    /// An ACK acknowledged `acked` wire segments: one filled the hole, the rest had been counted as duplicates.
    pub(crate) fn remove_reno_sacks(&mut self, cx: &mut TcpCx<'_>, acked: u32) {
        if acked > 0 {
            let fresh = acked.saturating_sub(self.tx.sacked_out).max(1);
            self.tx.delivered = self.tx.delivered.wrapping_add(fresh);
            self.tx.sacked_out = self.tx.sacked_out.saturating_sub(acked - 1);
        }
        self.check_reno_reordering(cx, acked);
    }

    /// More duplicates than segments: they were reordered, not lost.
    fn check_reno_reordering(&mut self, cx: &mut TcpCx<'_>, addend: u32) {
        if !self.limit_reno_sacked() {
            return;
        }
        let most = cx.cfg.max_reordering_segs.clamp(1, 0xffff);
        self.tx.reordering = (self.tx.packets_out + addend).clamp(1, most) as u16;
        self.saw_reordering();
        cx.mib.reno_reorder += 1;
    }

    /// Keeps the guess below what is out, less the holes.
    pub(crate) fn limit_reno_sacked(&mut self) -> bool {
        let tx = &mut self.tx;
        let holes = tx.lost_out.max(1).min(tx.packets_out);
        let most = tx.packets_out - holes;
        let over = tx.sacked_out > most;
        tx.sacked_out = tx.sacked_out.min(most);
        over
    }
}
