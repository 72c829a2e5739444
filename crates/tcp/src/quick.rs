//! The three steps that requests and responses consist of, each decided by a few compares and done in one look.
//!
//! ```text
//!   write_quick   bytes of at most one wire segment, nothing unsent before them
//!   xmit_quick    that segment leaves: nothing in flight, window and cwnd open, nothing to repair
//!   ack_quick     the ACK of all that was in flight, in state Open, without SACK, ECN or a change of window
//! ```
//! This is header prediction (Van Jacobson) for the sender as well: what is predicted does exactly what the general way
//! would do, and leaves out what can not happen. Whatever is not predicted is refused with nothing changed, and the general
//! way (`write`, `output`, `ack`) takes over. A rule that changes there and concerns these cases changes here too; tests
//! compare the two ways over whole conversations.
//!
//! Not here: prediction on the receiver's side (`input`), and bulk data, where a segment is a super-packet and the general
//! way costs nothing per byte.

use linerate_cong::{CaState, CongestionControl, RateSample};
use linerate_skb::SkbBatch;

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::input::Seg;
use crate::output::{Emit, Out, wire_flags};
use crate::rate::Sample;
use crate::state::State;
use crate::timer::{RetransKind, Timer};
use crate::tx::{Chrono, SEG_TRUESIZE, flag};
use crate::txq::{TxSeg, tag};

/// What a segment may carry that is predicted.
const PLAIN_TAGS: u16 = tag::PSH | tag::EOR | tag::LISTED | tag::APP_LIMITED;
/// Flags of the sender that are nobody's business while all goes well.
const PLAIN_FLAGS: u8 = flag::MORE | flag::PUSH | flag::HOLD | flag::REORD_SEEN;

#[cfg(test)]
pub(crate) mod switch;

/// A case was recognised: is it to be taken? Always, but for tests that compare.
#[inline(always)]
fn take_it() -> bool {
    #[cfg(test)]
    {
        if !switch::is_on() {
            return false;
        }
        switch::count();
    }
    true
}

impl Conn {
    /// Takes `data` whole as one segment of the write queue. The caller has made sure that the state allows it.
    pub(crate) fn write_quick(&mut self, cx: &mut TcpCx<'_>, data: &[u8]) -> bool {
        let len = data.len();
        let fits = len > 0 && len <= self.tx.cc.mss as usize && self.tx.memory_free();
        if !fits || self.tx.fl.q.has_unsent() || cx.page.as_ref().is_none_or(|p| p.room() < len) || !take_it() {
            return false;
        }
        let n = len as u32;
        let Some(page) = cx.page.as_mut().filter(|_| cx.mem.charge(self.tx.group, n + SEG_TRUESIZE)) else {
            return false;
        };
        let seq = self.tx.write_seq;
        let extended = self.tx.fl.q.last_frag().is_some_and(|last| page.extend(&cx.kernels, last, data) == len);
        let frag = if extended { None } else { page.append(&cx.kernels, data) };
        if !extended && frag.is_none() {
            debug_assert!(false, "the page had room");
            cx.mem.uncharge(self.tx.group, n + SEG_TRUESIZE);
            return false;
        }
        let mut seg = TxSeg::new(seq, n, 0);
        seg.frags = 1;
        self.begin_segment(cx, seg);
        self.tx.wmem_queued += n + SEG_TRUESIZE;
        self.tx.write_seq += n;
        if let Some(frag) = frag {
            self.tx.fl.q.push_frag(seq, frag);
        }
        true
    }

    /// Is the write queue one small segment that may leave now, with nothing in flight?
    fn xmit_is_quick(&self) -> bool {
        let tx = &self.tx;
        if !tx.fl.is_born() || tx.want != 0 || !matches!(self.state, State::Established | State::CloseWait) {
            return false;
        }
        let Some(head) = tx.fl.q.sole_unsent() else { return false };
        let len = head.end_seq - head.seq;
        head.tags & !PLAIN_TAGS == 0
            && tx.packets_out == 0
            && tx.flags & !PLAIN_FLAGS == 0
            && len <= tx.cc.mss
            && tx.fl.q.is_one_frag()
            && head.end_seq.le(tx.wnd_end())
            && self.rx.dsack.is_none()
            && self.rx.ofo.is_none()
            && (len == tx.cc.mss || !(tx.flag(flag::MORE) || self.opts.cork))
    }

    /// Sends the one segment that waits. False: not predicted (or no descriptor), and nothing happened.
    pub(crate) fn xmit_quick(&mut self, cx: &mut TcpCx<'_>, out: &mut SkbBatch, budget: usize) -> bool {
        if budget == 0 || !self.xmit_is_quick() || !take_it() {
            return false;
        }
        let mss = self.tx.cc.mss;
        let Some(head) = self.tx.fl.q.get_mut(0) else { return false };
        (head.mss, head.segs) = (mss.min(u32::from(u16::MAX)) as u16, 1);
        let (seq, end, flags) = (head.seq, head.end_seq, wire_flags(head, mss));
        let e = Emit { seq, from: seq, to: end, flags, mss, new_data: true, retrans: false };
        if !self.emit(cx, &mut Out::new(out, budget), &e) {
            return false;
        }
        let (now, delivered) = (cx.now, self.tx.delivered);
        let fl = &mut *self.tx.fl;
        // A new flight: rate samples count from here.
        (fl.first_tx_at, fl.delivered_at) = (now, now);
        let limited = fl.app_limited != 0;
        if end - seq < mss {
            fl.snd_sml = end;
        }
        if let Some(seg) = fl.q.mark_sole_sent() {
            (seg.tx_at, seg.first_tx_at, seg.delivered_at, seg.delivered) = (now, now, now, delivered);
            seg.tags = (seg.tags & !tag::APP_LIMITED) | if limited { tag::APP_LIMITED } else { 0 };
        }
        self.tx.packets_out = 1;
        self.tx.snd_nxt = end;
        cx.mib.orig_data_sent += 1;
        self.tx.chrono_stop(cx.now, Chrono::RwndLimited);
        self.cwnd_validate(cx, self.tx.cc.cwnd <= 1);
        if self.tx.in_cwnd_reduction() {
            self.tx.fl.prr.out = self.tx.fl.prr.out.saturating_add(1);
        }
        if !self.schedule_loss_probe(cx, false) {
            self.rearm_rto(cx);
        }
        self.tx.set_flag(flag::PUSH, false);
        true
    }

    /// The only segment of the queue, if this ACK is the predicted one for it.
    fn acked_quick(&self, seg: &Seg) -> Option<TxSeg> {
        let tx = &self.tx;
        let expected = seg.ack == tx.snd_nxt
            && seg.wnd == tx.snd_wnd
            && seg.sack.is_empty()
            && !seg.ece
            && self.neg.sack
            && tx.cc.ca_state == CaState::Open
            && tx.sacked_out | tx.lost_out | tx.retrans_out == 0
            && tx.flags & !PLAIN_FLAGS == 0
            && tx.fl.is_born();
        if !expected || tx.fl.tlp_high_seq.is_some() {
            return None;
        }
        let head = tx.fl.q.sole_sent()?;
        (head.tags & !PLAIN_TAGS == 0 && head.seq == tx.snd_una).then_some(*head)
    }

    /// Takes the ACK of everything that was in flight. False: not predicted, and nothing happened.
    pub(crate) fn ack_quick(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> bool {
        let Some(head) = self.acked_quick(seg).filter(|_| take_it()) else { return false };
        cx.mib.pure_acks += u64::from(seg.len == 0);
        let acked = head.len();
        let tx = &mut self.tx;
        let in_flight = tx.packets_out;
        debug_assert_eq!(in_flight, head.segs, "packets_out is the sum over the queue");
        tx.set_flag(flag::MORE, false);
        // Nothing is left that could be sent again before the next ACK.
        tx.set_flag(flag::HOLD, true);
        (tx.retransmits, tx.probes_out, tx.packets_out) = (0, 0, 0);
        tx.snd_wl1 = seg.seq;
        tx.snd_una = seg.ack;
        tx.bytes_acked = tx.bytes_acked.wrapping_add(u64::from(acked));
        tx.delivered = tx.delivered.wrapping_add(head.segs);
        tx.fl.q.take_sole(cx.pool);
        cx.mib.delivered += u64::from(head.segs);
        if tx.reo_wnd_persist == 0 {
            tx.reo_wnd_steps = 1;
        }
        self.rack_advance(&head, cx.now);
        self.uncharge_seg(cx, acked);
        if self.timers.retrans_kind() != RetransKind::Probe0 {
            self.timers.clear(Timer::Retrans);
        }
        self.measure_quick(cx, &head, acked, in_flight);
        if self.tx.fl.chrono != Chrono::Idle {
            self.tx.chrono_stop(cx.now, Chrono::Busy);
        }
        true
    }

    /// Round trip, rate and congestion window from the segment that was acknowledged.
    fn measure_quick(&mut self, cx: &mut TcpCx<'_>, head: &TxSeg, acked: u32, in_flight: u32) {
        let rtt_us = cx.now.micros_since(head.tx_at);
        let tx = &mut self.tx;
        let single = head.delivered.wrapping_add(1) == tx.delivered;
        let is_ack_delayed = head.segs == 1 && acked < tx.cc.mss && single;
        if !(is_ack_delayed && rtt_us > tx.min_rtt.get()) {
            tx.min_rtt.update(cx.now, rtt_us.max(1));
        }
        self.take_rtt(cx, rtt_us);
        let tx = &mut self.tx;
        let mut sample = Sample::default();
        tx.rate_delivered(&mut sample, head);
        let mut rs = RateSample {
            rtt_us: i64::from(rtt_us),
            prior_in_flight: in_flight,
            is_ack_delayed,
            ..RateSample::default()
        };
        tx.rate_gen(cx.now, &sample, head.segs, 0, &mut rs);
        tx.sync_cc();
        tx.algo.pkts_acked(&mut tx.cc, cx.now, &rs);
        tx.algo.cong_avoid(&mut tx.cc, cx.now, head.segs);
        tx.fl.cwnd_stamp = cx.now;
        tx.update_pacing_rate();
        self.take_hystart_counts(cx);
    }
}
