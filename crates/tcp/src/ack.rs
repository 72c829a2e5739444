//! An acknowledgement arrives (RFC 9293 section 3.10.7.4 with RFC 5961, 7323, 2018, 8985).
//!
//! The order is Linux's: is the ACK acceptable; window update; SACK blocks into the scoreboard; acknowledged segments out
//! of the queue, which gives RTT samples (Karn's rule, timestamps where a retransmission makes it ambiguous); tail loss
//! probe; then, if anything is unusual, the congestion state machine; the timer; the rate sample; and at last the
//! congestion control. Nothing is sent from here: `poll_xmit` does what the new state allows.
//!
//! What one ACK teaches travels as bits ([`fact`]) and numbers in [`AckCx`]. A peer may say anything: numbers are compared
//! modulo 2^32 only after they were found between `snd_una` and `snd_nxt`, and work is bounded by segments that the ACK
//! really moves plus a constant per SACK block. Not here: who sends challenge ACKs (the receiver half does, on `Err`).

use linerate_base::{DropReason, Instant, Seq};
use linerate_cong::{CaState, CongestionControl, RateSample};

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::input::Seg;
use crate::rate::Sample;
use crate::timer::{RetransKind, Timer};
use crate::tx::{Chrono, Tx, flag};
use crate::txq::{TxQueue, TxSeg, tag};

/// Bits of [`AckCx::facts`].
pub(crate) mod fact {
    /// The segment has payload.
    pub(crate) const DATA: u32 = 1;
    /// It updates the window.
    pub(crate) const WIN_UPDATE: u32 = 1 << 1;
    /// It acknowledges data or FIN.
    pub(crate) const DATA_ACKED: u32 = 1 << 2;
    /// Some of which had been retransmitted.
    pub(crate) const RETRANS_DATA_ACKED: u32 = 1 << 3;
    /// It acknowledges our SYN.
    pub(crate) const SYN_ACKED: u32 = 1 << 4;
    /// It SACKs something new.
    pub(crate) const DATA_SACKED: u32 = 1 << 5;
    /// ECN echo.
    pub(crate) const ECE: u32 = 1 << 6;
    /// RACK found a retransmission to be lost.
    pub(crate) const LOST_RETRANS: u32 = 1 << 7;
    /// Data below `high_seq` that was never retransmitted is acknowledged or SACKed.
    pub(crate) const ORIG_SACK_ACKED: u32 = 1 << 8;
    /// `snd_una` moved.
    pub(crate) const SND_UNA_ADVANCED: u32 = 1 << 9;
    /// It carries a duplicate SACK.
    pub(crate) const DSACKING_ACK: u32 = 1 << 10;
    /// The retransmission timer starts anew.
    pub(crate) const SET_XMIT_TIMER: u32 = 1 << 11;
    /// The new head of the queue had been SACKed.
    pub(crate) const SACK_RENEGING: u32 = 1 << 12;
    /// The duplicate SACK answers the tail loss probe.
    pub(crate) const DSACK_TLP: u32 = 1 << 13;
    /// The peer probably held the ACK back.
    pub(crate) const MAYBE_DELAYED: u32 = 1 << 14;

    /// Anything acknowledged.
    pub(crate) const ACKED: u32 = DATA_ACKED | SYN_ACKED;
    /// Not a duplicate ACK.
    pub(crate) const NOT_DUP: u32 = DATA | WIN_UPDATE | ACKED;
    /// Worth a look at the congestion state.
    pub(crate) const CA_ALERT: u32 = DATA_SACKED | ECE | DSACKING_ACK;
    /// The peer moves forward.
    pub(crate) const FORWARD_PROGRESS: u32 = ACKED | DATA_SACKED;
}

/// What an ACK did, for the receiver half.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AckInfo {
    /// Sequence numbers newly acknowledged, SYN and FIN included.
    pub(crate) acked: u32,
    /// `snd_una` moved.
    pub(crate) una_advanced: bool,
    /// Our SYN is acknowledged by this ACK.
    pub(crate) syn_acked: bool,
    /// Below `snd_una`, but recent enough not to be an attack.
    pub(crate) old: bool,
}

/// What is to be sent after the ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Rexmit {
    /// Nothing beyond what the windows allow for new data.
    #[default]
    None,
    /// Lost segments.
    Lost,
    /// New data, to see whether the old was lost (F-RTO).
    New,
}

/// One ACK on its way through.
pub(crate) struct AckCx {
    pub(crate) facts: u32,
    pub(crate) rexmit: Rexmit,
    pub(crate) prior_una: Seq,
    pub(crate) ack: Seq,
    pub(crate) now: Instant,
    /// Echoed timestamp, 0 = none.
    pub(crate) ecr: u32,
    /// What it delivers, for the rate sample.
    pub(crate) rs: Sample,
    /// Transmission times of the first and last segment newly SACKed that was never retransmitted.
    pub(crate) sackt: Option<(Instant, Instant)>,
    /// RTT of this ACK for RACK, the congestion control and the minimum, µs.
    pub(crate) ca_rtt_us: i64,
}

impl AckCx {
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.facts & bits != 0
    }
}

impl Conn {
    /// Processes the ACK fields of an acceptable segment.
    ///
    /// # Errors
    /// [`DropReason::TcpAckUnsentData`] and [`DropReason::TcpTooOldAck`]; both want a challenge ACK (RFC 5961 section 5).
    pub(crate) fn on_ack(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> Result<AckInfo, DropReason> {
        let una = self.tx.snd_una;
        if seg.ack.gt(self.tx.snd_nxt) {
            return Err(DropReason::TcpAckUnsentData);
        }
        if seg.ack.lt(una) {
            let trust = self.tx.max_window.min(u32::try_from(self.tx.bytes_acked).unwrap_or(u32::MAX));
            if seg.ack.lt(una - trust) {
                return Err(DropReason::TcpTooOldAck);
            }
        }
        if self.tx.packets_out == 0 {
            if self.ack_idle(cx, seg) {
                return Ok(AckInfo::default());
            }
        } else if self.ack_quick(cx, seg) {
            return Ok(AckInfo { acked: seg.ack - una, una_advanced: true, ..AckInfo::default() });
        }
        let mut a = AckCx {
            facts: if seg.len > 0 { fact::DATA } else { 0 },
            rexmit: Rexmit::None,
            prior_una: una,
            ack: seg.ack,
            now: cx.now,
            ecr: seg.ts.map_or(0, |ts| ts.ecr),
            rs: Sample::default(),
            sackt: None,
            ca_rtt_us: -1,
        };
        self.tx.set_flag(flag::MORE, false);
        if seg.ack.lt(una) {
            self.old_ack(cx, seg, &mut a);
            return Ok(AckInfo { old: true, ..AckInfo::default() });
        }
        self.current_ack(cx, seg, &mut a);
        self.sender_settled(cx);
        let acked = self.tx.snd_una - una;
        let syn_acked = a.has(fact::SYN_ACKED);
        Ok(AckInfo { acked, una_advanced: acked > 0, syn_acked, old: false })
    }

    /// An ACK below `snd_una`: only its SACK blocks still matter.
    fn old_ack(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, a: &mut AckCx) {
        if seg.sack.is_empty() || !self.neg.sack || !self.tx.fl.is_born() {
            return;
        }
        let delivered = self.tx.delivered;
        self.sacktag(cx, a, &seg.sack);
        self.fastretrans_alert(cx, a, 0);
        self.finish_rexmit(a);
        self.count_delivered(cx, a, self.tx.delivered.wrapping_sub(delivered));
    }

    fn current_ack(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, a: &mut AckCx) {
        let had_out = self.tx.packets_out;
        let (delivered, lost) = (self.tx.delivered, self.tx.fl.lost);
        let in_flight = self.tx.in_flight();
        if seg.ack.gt(a.prior_una) {
            a.facts |= fact::SND_UNA_ADVANCED;
            self.tx.retransmits = 0;
        }
        let prior_fack = if self.neg.sack { self.highest_sack_seq() } else { self.tx.snd_una };
        if seg.len == 0 {
            cx.mib.pure_acks += 1;
        }
        self.update_window(cx, seg, a);
        if !seg.sack.is_empty() && self.neg.sack && self.tx.fl.is_born() {
            self.sacktag(cx, a, &seg.sack);
        }
        if seg.ece {
            a.facts |= fact::ECE;
        }
        self.tx.probes_out = 0;
        if had_out == 0 {
            self.ack_without_queue(cx, a);
            return;
        }
        self.clean_rtx_queue(cx, a, prior_fack);
        self.rack_update_reo_wnd(a.rs.prior_delivered());
        self.process_tlp_ack(cx, a.ack, a.facts);
        if !a.has(fact::NOT_DUP) || a.has(fact::CA_ALERT) || self.tx.cc.ca_state != CaState::Open {
            let dup = !a.has(fact::SND_UNA_ADVANCED | fact::NOT_DUP | fact::DSACKING_ACK);
            self.fastretrans_alert(cx, a, if dup { seg.gso_segs.max(1) } else { 0 });
        }
        if a.has(fact::SET_XMIT_TIMER) && !self.schedule_loss_probe(cx, true) {
            self.rearm_rto(cx);
        }
        let newly = self.tx.delivered.wrapping_sub(delivered);
        self.count_delivered(cx, a, newly);
        let mut rs = RateSample { rtt_us: a.ca_rtt_us, prior_in_flight: in_flight, ..RateSample::default() };
        rs.is_ack_delayed = a.has(fact::MAYBE_DELAYED);
        let lost = self.tx.fl.lost.wrapping_sub(lost);
        self.tx.rate_gen(cx.now, &a.rs, newly, lost, &mut rs);
        self.cong_control(cx, a, newly, &rs);
        self.finish_rexmit(a);
    }

    /// Counts wire segments that were newly found delivered; an ACK with ECE says that they met congestion.
    fn count_delivered(&mut self, cx: &mut TcpCx<'_>, a: &AckCx, newly: u32) {
        cx.mib.delivered += u64::from(newly);
        if a.has(fact::ECE) && newly > 0 {
            cx.mib.delivered_ce += u64::from(newly);
            self.tx.fl.delivered_ce = self.tx.fl.delivered_ce.wrapping_add(newly);
        }
    }

    /// Nothing was in flight: an ACK may still open the window, or tell of a duplicate.
    fn ack_without_queue(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx) {
        if a.has(fact::DSACKING_ACK) {
            self.fastretrans_alert(cx, a, 0);
            self.finish_rexmit(a);
        }
        self.ack_probe(cx);
        if self.tx.fl.tlp_high_seq.is_some() {
            self.process_tlp_ack(cx, a.ack, a.facts);
        }
    }

    /// What `poll_xmit` may retransmit until the next ACK.
    fn finish_rexmit(&mut self, a: &AckCx) {
        self.tx.set_flag(flag::REXMIT_NEW, a.rexmit == Rexmit::New);
        self.tx.set_flag(flag::HOLD, a.rexmit == Rexmit::None);
    }

    /// After the queue changed: who waits for room, what time was spent on, memory of a burst.
    fn sender_settled(&mut self, cx: &mut TcpCx<'_>) {
        if !self.tx.fl.is_born() {
            return;
        }
        self.check_space(cx);
        if self.tx.fl.q.is_empty() && self.tx.fl.chrono != Chrono::Idle {
            self.tx.chrono_stop(cx.now, Chrono::Busy);
            if self.tx.fl.data_segs_out == 0 && self.tx.cc.ca_state == CaState::Open {
                // Only a SYN ever was in it: idle connections stay small.
                self.tx.fl.forget(cx.parts);
            } else {
                self.tx.fl.q.shrink(TxQueue::keep());
            }
        }
    }

    /// Takes what the segment says about the window, if it is the latest word, and moves `snd_una`.
    fn update_window(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, a: &mut AckCx) {
        if self.tx.is_newer_window(seg) {
            a.facts |= fact::WIN_UPDATE;
            self.tx.snd_wl1 = seg.seq;
            self.set_window(cx, seg.wnd);
        }
        let tx = &mut self.tx;
        tx.bytes_acked = tx.bytes_acked.wrapping_add(u64::from(a.ack - tx.snd_una));
        tx.snd_una = a.ack;
    }

    /// The peer's window is `wnd` bytes from now on.
    #[inline]
    pub(crate) fn set_window(&mut self, cx: &mut TcpCx<'_>, wnd: u32) {
        if self.tx.snd_wnd != wnd {
            self.change_window(cx, wnd);
        }
    }

    fn change_window(&mut self, cx: &mut TcpCx<'_>, wnd: u32) {
        let tx = &mut self.tx;
        tx.snd_wnd = wnd;
        let grown = wnd > tx.max_window;
        tx.max_window = tx.max_window.max(wnd);
        if self.tx.fl.q.has_unsent() {
            self.slow_start_after_idle(cx);
        }
        if grown {
            self.sync_mss(cx);
        }
    }

    /// An ACK while only window probes were out.
    fn ack_probe(&mut self, cx: &mut TcpCx<'_>) {
        if !self.tx.fl.is_born() {
            return;
        }
        let Some(head) = self.tx.fl.q.send_head().copied() else { return };
        if head.end_seq.le(self.tx.wnd_end()) {
            self.tx.backoff = 0;
            self.tx.fl.probes_at = Instant::ZERO;
            if self.timers.retrans_kind() == RetransKind::Probe0 {
                self.timers.clear(Timer::Retrans);
            }
        } else {
            self.arm_probe0(cx);
        }
    }

    /// Takes what is acknowledged out of the retransmit queue (RFC 6298 section 3, Karn; RFC 8985 section 6.2).
    fn clean_rtx_queue(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx, prior_fack: Seq) {
        let prior_sacked = self.tx.sacked_out;
        let mut times: Option<(Instant, Instant)> = None;
        let (mut acked_segs, mut reord, mut fully) = (0, prior_fack, true);
        while let Some(seg) = self.tx.fl.q.rtx_head().copied() {
            let una = self.tx.snd_una;
            let mut segs = seg.segs;
            if seg.end_seq.gt(una) {
                if seg.seq.ge(una) {
                    break;
                }
                segs = self.trim_head(cx, &seg, una);
                fully = false;
                if segs == 0 {
                    break;
                }
            }
            self.account_acked(a, &seg, segs, &mut times, &mut reord);
            acked_segs += segs;
            a.facts |= if seg.has(tag::SYN) { fact::SYN_ACKED } else { fact::DATA_ACKED };
            if !fully {
                break;
            }
            if seg.has(tag::SYN) {
                self.tx.fl.retrans_stamp = 0;
            }
            self.tx.fl.q.pop_front();
            self.uncharge_seg(cx, seg.len());
        }
        self.tx.fl.q.free_frags(self.tx.snd_una, cx.pool);
        let head = self.tx.fl.q.rtx_head().copied();
        if head.is_some_and(|h| h.has(tag::SACKED)) {
            a.facts |= fact::SACK_RENEGING;
        }
        let delayed = acked_segs == 1 && fully && prior_sacked == 0 && self.tx.snd_una - a.prior_una < self.tx.cc.mss;
        let updated = self.ack_rtt(cx, a, times, delayed);
        if a.has(fact::ACKED) {
            a.facts |= fact::SET_XMIT_TIMER;
            if self.tx.mtu.is_some() {
                self.check_mtu_probe(cx);
            }
            if self.neg.sack {
                if reord.lt(prior_fack) {
                    self.check_sack_reordering(cx, reord, false);
                }
            } else {
                self.remove_reno_sacks(cx, acked_segs);
                if a.has(fact::RETRANS_DATA_ACKED) {
                    a.facts &= !fact::ORIG_SACK_ACKED;
                }
            }
            self.tx.sync_cc();
        } else if let (true, Some(h), Some((first, _))) = (updated, head, a.sackt)
            && first < h.tx_at
        {
            // The sample is of a segment sent before the head: the head had its chance, its timer starts anew.
            a.facts |= fact::SET_XMIT_TIMER;
        }
    }

    /// Counters for `segs` wire segments of `seg` that are acknowledged for good.
    fn account_acked(
        &mut self,
        a: &mut AckCx,
        seg: &TxSeg,
        segs: u32,
        times: &mut Option<(Instant, Instant)>,
        reord: &mut Seq,
    ) {
        if seg.has(tag::EVER_RETRANS) {
            if seg.has(tag::RETRANS) {
                self.tx.retrans_out = self.tx.retrans_out.saturating_sub(segs);
            }
            a.facts |= fact::RETRANS_DATA_ACKED;
        } else if !seg.has(tag::SACKED) {
            *times = Some((times.map_or(seg.tx_at, |t| t.0), seg.tx_at));
            *reord = reord.min(seg.seq);
            if seg.end_seq.le(self.tx.fl.high_seq) {
                a.facts |= fact::ORIG_SACK_ACKED;
            }
        }
        if seg.has(tag::SACKED) {
            self.tx.sacked_out = self.tx.sacked_out.saturating_sub(segs);
        } else if self.neg.sack {
            self.tx.delivered = self.tx.delivered.wrapping_add(segs);
            if !self.spurious_retrans(seg, a.ecr) {
                self.rack_advance(seg, a.now);
            }
        }
        if seg.has(tag::LOST) {
            self.tx.lost_out = self.tx.lost_out.saturating_sub(segs);
        }
        self.tx.packets_out = self.tx.packets_out.saturating_sub(segs);
        self.tx.rate_delivered(&mut a.rs, seg);
    }

    /// Cuts the acknowledged front off the head. Returns the wire segments that are gone with it.
    fn trim_head(&mut self, cx: &mut TcpCx<'_>, seg: &TxSeg, una: Seq) -> u32 {
        let gone = una - seg.seq;
        let Some(s) = self.tx.fl.q.get_mut(0) else { return 0 };
        s.seq = una;
        s.tags &= !tag::SYN;
        let before = s.segs;
        if before > 1 {
            let mss = u32::from(s.mss);
            s.set_segs(mss);
            s.segs = s.segs.min(before);
        }
        let acked = before - s.segs;
        self.uncharge_bytes(cx, gone);
        acked
    }

    /// Samples of this ACK: the RTO's from the first, the minimum's and the congestion control's from the last segment.
    fn ack_rtt(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx, times: Option<(Instant, Instant)>, delayed: bool) -> bool {
        let us = |t: Instant| i64::from(cx.now.micros_since(t));
        let mut seq_rtt = -1;
        if let Some((first, last)) = times.filter(|_| !a.has(fact::RETRANS_DATA_ACKED)) {
            seq_rtt = us(first);
            a.ca_rtt_us = us(last);
            let single = a.rs.prior_delivered().is_some_and(|d| d.wrapping_add(1) == self.tx.delivered);
            if delayed && single && !a.has(fact::CA_ALERT | fact::SYN_ACKED) {
                a.facts |= fact::MAYBE_DELAYED;
            }
        }
        if let Some((first, last)) = a.sackt {
            a.ca_rtt_us = us(last);
            if seq_rtt < 0 {
                seq_rtt = us(first);
            }
        }
        if seq_rtt < 0 && a.ecr != 0 && a.has(fact::ACKED) && self.neg.ts {
            seq_rtt = self.ts_rtt_us(cx.now, a.ecr);
            a.ca_rtt_us = seq_rtt;
        }
        if seq_rtt < 0 {
            return false;
        }
        let ca = a.ca_rtt_us.max(0) as u32;
        if !(a.has(fact::MAYBE_DELAYED) && ca > self.tx.min_rtt.get()) {
            self.tx.min_rtt.update(cx.now, ca.max(1));
        }
        self.take_rtt(cx, seq_rtt as u32);
        true
    }

    /// RFC 7323 section 4: the round trip that an echoed timestamp tells, at least one tick; -1 when it is absurd.
    fn ts_rtt_us(&self, now: Instant, ecr: u32) -> i64 {
        let delta = self.tsval(now).wrapping_sub(ecr);
        let (tick_us, most) = if self.neg.usec_ts { (1, i32::MAX as u32) } else { (1000, i32::MAX as u32 / 1000) };
        if delta >= most { -1 } else { i64::from(delta.max(1)) * tick_us }
    }

    /// Congestion control proper: proportional reduction while recovering, growth otherwise.
    fn cong_control(&mut self, cx: &mut TcpCx<'_>, a: &AckCx, delivered: u32, rs: &RateSample) {
        self.tx.sync_cc();
        let tx = &mut self.tx;
        if a.has(fact::ACKED | fact::DATA_SACKED) {
            tx.algo.pkts_acked(&mut tx.cc, cx.now, rs);
        }
        if tx.in_cwnd_reduction() {
            let plain = a.has(fact::SND_UNA_ADVANCED);
            self.cwnd_reduction(delivered, rs.losses, plain);
        } else {
            let progress = if u32::from(tx.reordering) > cx.cfg.reordering_segs {
                fact::FORWARD_PROGRESS
            } else {
                fact::DATA_ACKED
            };
            if a.has(progress) {
                tx.algo.cong_avoid(&mut tx.cc, cx.now, delivered);
                tx.fl.cwnd_stamp = cx.now;
            }
        }
        self.tx.update_pacing_rate();
        self.take_hystart_counts(cx);
    }

    #[inline]
    pub(crate) fn take_hystart_counts(&mut self, cx: &mut TcpCx<'_>) {
        let h = &self.tx.cc.hystart_mib;
        if h.train_detect | h.delay_detect != 0 {
            self.count_hystart(cx);
        }
    }

    #[cold]
    fn count_hystart(&mut self, cx: &mut TcpCx<'_>) {
        let h = core::mem::take(&mut self.tx.cc.hystart_mib);
        cx.mib.hystart_train_detect += u64::from(h.train_detect);
        cx.mib.hystart_train_cwnd += u64::from(h.train_cwnd);
        cx.mib.hystart_delay_detect += u64::from(h.delay_detect);
        cx.mib.hystart_delay_cwnd += u64::from(h.delay_cwnd);
    }
}

impl Tx {
    /// RFC 9293 section 3.10.7.4: is this the most recent word about the window?
    #[inline]
    pub(crate) fn is_newer_window(&self, seg: &Seg) -> bool {
        seg.ack.gt(self.snd_una)
            || seg.seq.gt(self.snd_wl1)
            || (seg.seq == self.snd_wl1 && (seg.wnd > self.snd_wnd || seg.wnd == 0))
    }
}
