//! The three steps that requests and responses consist of, each decided by a few compares and done in one look.
//!
//! ```text
//!   write_quick   bytes of at most one wire segment, nothing unsent before them
//!   xmit_quick    that segment leaves: nothing in flight, window and cwnd open, nothing to repair
//!   poll_small    the same segment, header and bytes, written where the device wants it: no descriptor, no reference
//!   ack_quick     the ACK of all that was in flight, in state Open, without SACK, ECN or a change of window
//! ```
//! This is header prediction (Van Jacobson) for the sender as well: what is predicted does exactly what the general way
//! would do, and leaves out what can not happen. Whatever is not predicted is refused with nothing changed, and the general
//! way (`write`, `output`, `ack`) takes over. A rule that changes there and concerns these cases changes here too; tests
//! compare the two ways over whole conversations.
//!
//! Not here: prediction on the receiver's side (`input`), and bulk data, where a segment is a super-packet and the general
//! way costs nothing per byte.

use linerate_base::{Instant, Seq};
use linerate_cong::{CaState, CongestionControl, RateSample};
use linerate_skb::{SKB_TRUESIZE, Skb, SkbBatch, SkbCache};
use linerate_wire::{SackBlocks, TcpFlags, Timestamps};

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::input::Seg;
use crate::output::{Emit, Out, wire_flags};
use crate::rate::sent_after;
use crate::rcvq::charge_of;
use crate::state::State;
use crate::timer::{RetransKind, Timer};
use crate::tx::{Chrono, SEG_TRUESIZE, SendFlags, Tx, flag};
use crate::txq::{TxSeg, tag};

/// What a segment says that has timestamps as its only option and at most PSH beside ACK. Numbers in the host's order.
#[derive(Clone, Copy, Debug)]
pub struct Quick {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// The window field.
    pub window: u16,
    /// PSH is set.
    pub psh: bool,
    /// TSval.
    pub ts_val: u32,
    /// TSecr.
    pub ts_ecr: u32,
}

/// What a segment may carry that is predicted.
const PLAIN_TAGS: u16 = tag::PSH | tag::EOR | tag::LISTED | tag::APP_LIMITED;
/// Flags of the sender that are nobody's business while all goes well.
const PLAIN_FLAGS: u8 = flag::MORE | flag::PUSH | flag::HOLD | flag::REORD_SEEN;

/// Header with timestamps and nothing else, bytes.
const SMALL_HEADER: usize = 32;
/// Two NOPs, and the kind and length of the timestamp option, as they stand on the wire.
const TS_OPTION: u32 = 0x0101_080a;

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

/// Copies a few bytes: steps of sixteen and a rest are cheaper than a call that would first find out how to copy them.
#[inline]
fn copy_small(to: &mut [u8], from: &[u8]) {
    let (to, from) = (to.as_chunks_mut::<16>(), from.as_chunks::<16>());
    for (to, from) in to.0.iter_mut().zip(from.0) {
        *to = *from;
    }
    for (to, from) in to.1.iter_mut().zip(from.1) {
        *to = *from;
    }
}

impl Conn {
    /// [`Conn::write`] of at most one segment's bytes on a connection that has nothing queued and was not idle for long.
    /// False: not that, and nothing happened.
    #[inline]
    pub(crate) fn write_quick(&mut self, cx: &mut TcpCx<'_>, data: &[u8], flags: SendFlags) -> bool {
        let tx = &mut self.tx;
        let Some(fl) = tx.fl.born() else { return false };
        let len = data.len();
        let open = self.state == State::Established && !self.rx.shut.snd && self.error.is_none();
        // No longer idle than an RTO: cwnd stays.
        let last = tx.cc.lsnd_time;
        let warm = last == Instant::ZERO || cx.now.nanos_since(last) <= u64::from(tx.rto_us.max(1)) * 1000;
        if !open || flags.more || flags.eor || len == 0 || len > tx.cc.mss as usize || !fl.q.is_empty() || !warm {
            return false;
        }
        let n = len as u32;
        let free = tx.wmem_queued < tx.sndbuf && tx.notsent_lowat == u32::MAX;
        let Some(page) = cx.page.as_mut().filter(|p| free && p.room() >= len) else { return false };
        if !take_it() || !cx.mem.charge(tx.group, n + SEG_TRUESIZE) {
            return false;
        }
        let frag = page.fill(len, |to| {
            copy_small(to, data);
            len
        });
        let Some(frag) = frag else {
            debug_assert!(false, "the page had room");
            cx.mem.uncharge(tx.group, n + SEG_TRUESIZE);
            return false;
        };
        debug_assert!(tx.packets_out | tx.lost_out | tx.retrans_out | tx.sacked_out == 0, "nothing is queued");
        if tx.wmem_alloc <= SKB_TRUESIZE {
            fl.app_limited = tx.delivered.max(1);
        }
        if fl.chrono == Chrono::Idle {
            (fl.chrono, fl.chrono_at) = (Chrono::Busy, cx.now);
        }
        fl.q.push_first(TxSeg::new(tx.write_seq, n, tag::PSH), frag);
        tx.wmem_queued += n + SEG_TRUESIZE;
        tx.write_seq += n;
        fl.pushed_seq = tx.write_seq;
        tx.flags &= !(flag::MORE | flag::PUSH);
        true
    }

    /// Would the stack's account and the group's take `truesize` bytes without a thought?
    #[inline]
    fn has_room(&self, cx: &TcpCx<'_>, truesize: u32) -> bool {
        let group = self.tx.group;
        !cx.mem.under_pressure(group) && cx.mem.left_bytes(group) >= u64::from(truesize)
    }

    /// [`Conn::rcv`] for a segment with `len` bytes of payload that the caller has looked through: receives it if it is the
    /// predicted one. `make` makes an skb of the payload alone, and is called only for a segment with payload that is
    /// received, unless there is no descriptor. False: not received, and nothing happened.
    #[inline]
    pub fn rcv_quick(
        &mut self,
        cx: &mut TcpCx<'_>,
        q: &Quick,
        len: u32,
        make: impl FnOnce(&mut SkbCache) -> Option<Skb>,
    ) -> bool {
        let truesize = SKB_TRUESIZE + len;
        // Unread bytes are put together page by page, which a packet in a descriptor's head does not allow.
        let takes = len == 0 || (self.rx.queue.is_empty() && self.has_room(cx, truesize));
        if self.state != State::Established || !self.neg.ts || !takes {
            return false;
        }
        let seg = Seg {
            seq: Seq(q.seq),
            end_seq: Seq(q.seq) + len,
            ack: Seq(q.ack),
            wnd: u32::from(q.window) << self.neg.snd_wscale.min(14),
            flags: if q.psh { TcpFlags::ACK | TcpFlags::PSH } else { TcpFlags::ACK },
            len,
            gso_segs: 1,
            header_len: SMALL_HEADER as u32,
            ts: Some(Timestamps { val: q.ts_val, ecr: q.ts_ecr }),
            sack: SackBlocks::EMPTY,
            now: cx.now,
            ece: false,
            ip_ecn: 0,
        };
        if !self.is_predicted(&seg) || !take_it() {
            return false;
        }
        if len == 0 {
            self.rx.segs_in = self.rx.segs_in.wrapping_add(1);
            let taken = self.predicted_ack(cx, &seg);
            debug_assert!(taken.is_ok(), "a predicted ACK was refused");
            return true;
        }
        let Some(skb) = make(cx.skbs) else { return false };
        debug_assert!(skb.len() == len && charge_of(&skb) == truesize, "not the payload of the segment");
        self.rx.segs_in = self.rx.segs_in.wrapping_add(1);
        self.rx.data_segs_in = self.rx.data_segs_in.wrapping_add(1);
        let charged = cx.mem.charge(self.tx.group, truesize);
        debug_assert!(charged, "there was room");
        self.predicted_data(cx, &seg, skb, truesize);
        true
    }

    /// [`Conn::read`] of all that is queued, when that is the payload of one small packet. `None`: it is not.
    #[inline]
    pub(crate) fn read_quick(&mut self, cx: &mut TcpCx<'_>, buf: &mut [u8]) -> Option<usize> {
        let front = self.rx.queue.front().filter(|f| f.skb.nr_frags() == 0 && self.rx.queue.len() == 1)?;
        let bytes = front.skb.head();
        let n = bytes.len();
        copy_small(buf.get_mut(..n)?, bytes);
        let skb = self.rx.queue.pop_front()?.skb;
        self.uncharge_rx(cx, skb.truesize);
        cx.skbs.consume(skb);
        self.rx.copied_seq += n as u32;
        self.rcv_space_adjust(cx);
        self.after_read(cx, n);
        Some(n)
    }

    /// Is the write queue one small segment that may leave now, with nothing in flight?
    #[inline]
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
            && tx.notsent_lowat == u32::MAX
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
        self.sent_quick(cx, seq, end, mss);
        true
    }

    /// Does what [`Self::poll_xmit`] would do, and writes the segment into `room` instead of making an skb: the one small
    /// segment that waits, when nothing else is to be sent. It has left when this returns, and is complete: TCP small queues
    /// do not see it. The checksum field is zero; ECT is not set. Returns the length of the header and of the payload.
    ///
    /// `None`: not such a segment, or no room; nothing happened.
    pub fn poll_small(&mut self, cx: &mut TcpCx<'_>, room: &mut [u8]) -> Option<(usize, usize)> {
        if !self.neg.ts || self.neg.ecn || !self.xmit_is_quick() {
            return None;
        }
        let mss = self.tx.cc.mss;
        let (header, rest) = room.split_first_chunk_mut::<SMALL_HEADER>()?;
        let head = self.tx.fl.q.sole_unsent()?;
        let (seq, end, flags) = (head.seq, head.end_seq, wire_flags(head, mss));
        let payload = self.tx.fl.q.sole_bytes(seq, end)?;
        copy_small(rest.get_mut(..payload.len())?, payload);
        let len = payload.len();
        if !take_it() {
            return None;
        }
        let window = self.select_window(cx);
        let ack = self.rx.nxt;
        let ports = u32::from(self.key.local_port()) << 16 | u32::from(self.key.remote_port());
        let facts = (SMALL_HEADER as u32 / 4) << 28 | u32::from(flags.0) << 16 | u32::from(window);
        let words = [ports, seq.0, ack.0, facts, 0, TS_OPTION, self.tsval(cx.now), self.ts_recent()];
        for (to, word) in header.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
        self.count_sent(cx, len as u32, 1, 0);
        self.ack_sent(cx, ack);
        if let Some(head) = self.tx.fl.q.get_mut(0) {
            (head.mss, head.segs) = (mss.min(u32::from(u16::MAX)) as u16, 1);
        }
        self.sent_quick(cx, seq, end, mss);
        Some((SMALL_HEADER, len))
    }

    /// The one segment of the queue has left.
    #[inline]
    fn sent_quick(&mut self, cx: &mut TcpCx<'_>, seq: Seq, end: Seq, mss: u32) {
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
        let limited = fl.chrono == Chrono::RwndLimited;
        self.tx.packets_out = 1;
        self.tx.snd_nxt = end;
        cx.mib.orig_data_sent += 1;
        if limited {
            self.tx.chrono_stop(cx.now, Chrono::RwndLimited);
        }
        self.cwnd_validate(cx, self.tx.cc.cwnd <= 1);
        if self.tx.in_cwnd_reduction() {
            self.tx.fl.prr.out = self.tx.fl.prr.out.saturating_add(1);
        }
        self.arm_quick(cx);
        self.tx.set_flag(flag::PUSH, false);
    }

    /// `schedule_loss_probe`, or the RTO where no probe makes sense, for one segment in flight that has left just now.
    #[inline]
    fn arm_quick(&mut self, cx: &TcpCx<'_>) {
        let tx = &self.tx;
        if !cx.cfg.tlp || !self.neg.sack || !matches!(tx.cc.ca_state, CaState::Open | CaState::Cwr) {
            return self.rearm_rto(cx);
        }
        let probe_us = match tx.srtt_us8 {
            0 => cx.cfg.rto_initial_us,
            srtt => (srtt >> 2) + self.rto_min_us(cx),
        };
        let us = if tx.rto_us > 0 { probe_us.min(tx.rto_us) } else { probe_us };
        self.timers.set_retrans(RetransKind::Tlp, cx.now.plus_micros(u64::from(us.min(cx.cfg.rto_max_us))));
    }

    /// The only segment of the queue, if this ACK is the predicted one for it.
    #[inline]
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
            && tx.mtu.is_none()
            && tx.fl.is_born();
        if !expected || tx.fl.tlp_high_seq.is_some() {
            return None;
        }
        let head = tx.fl.q.sole_sent()?;
        (head.tags & !PLAIN_TAGS == 0 && head.seq == tx.snd_una).then_some(*head)
    }

    /// Takes the ACK of everything that was in flight. False: not predicted, and nothing happened.
    #[inline]
    pub(crate) fn ack_quick(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> bool {
        let Some(head) = self.acked_quick(seg).filter(|_| take_it()) else { return false };
        let floor = self.rto_min_us(cx);
        let tx = &mut self.tx;
        let Some(fl) = tx.fl.born() else { return false };
        let acked = head.end_seq - head.seq;
        let in_flight = tx.packets_out;
        debug_assert_eq!(in_flight, head.segs, "packets_out is the sum over the queue");
        // Nothing is left that could be sent again before the next ACK.
        tx.flags = (tx.flags & !flag::MORE) | flag::HOLD;
        (tx.retransmits, tx.probes_out, tx.packets_out) = (0, 0, 0);
        tx.snd_wl1 = seg.seq;
        tx.snd_una = seg.ack;
        tx.bytes_acked = tx.bytes_acked.wrapping_add(u64::from(acked));
        tx.delivered = tx.delivered.wrapping_add(head.segs);
        fl.q.take_sole(cx.pool, cx.page);
        cx.mib.pure_acks += u64::from(seg.len == 0);
        cx.mib.delivered += u64::from(head.segs);
        if tx.reo_wnd_persist == 0 {
            tx.reo_wnd_steps = 1;
        }
        let rtt_us = cx.now.micros_since(head.tx_at);
        let rack = &mut fl.rack;
        (rack.advanced, rack.rtt_us) = (true, rtt_us);
        if sent_after(head.tx_at, head.end_seq, rack.mstamp, rack.end_seq) {
            (rack.mstamp, rack.end_seq) = (head.tx_at, head.end_seq);
        }
        let truesize = SEG_TRUESIZE + acked;
        debug_assert!(tx.wmem_queued >= truesize);
        tx.wmem_queued = tx.wmem_queued.saturating_sub(truesize);
        cx.mem.uncharge(tx.group, truesize);
        if self.timers.retrans_kind() != RetransKind::Probe0 {
            self.timers.clear(Timer::Retrans);
        }
        let single = head.delivered.wrapping_add(1) == tx.delivered;
        let is_ack_delayed = head.segs == 1 && acked < tx.cc.mss && single;
        if !(is_ack_delayed && rtt_us > tx.min_rtt.get()) {
            tx.min_rtt.update(cx.now, rtt_us.max(1));
        }
        tx.rtt_sample(rtt_us, floor);
        tx.rto_us = tx.rto_from_rtt(cx.cfg.rto_max_us);
        tx.backoff = 0;
        let rs = RateSample {
            rtt_us: i64::from(rtt_us),
            prior_in_flight: in_flight,
            is_ack_delayed,
            ..tx.rate_quick(cx.now, &head)
        };
        self.learn_quick(cx, &rs, head.segs);
        true
    }

    /// What the congestion control makes of it; then the queue is empty.
    #[inline]
    fn learn_quick(&mut self, cx: &mut TcpCx<'_>, rs: &RateSample, segs: u32) {
        let tx = &mut self.tx;
        tx.sync_cc();
        tx.algo.pkts_acked(&mut tx.cc, cx.now, rs);
        tx.algo.cong_avoid(&mut tx.cc, cx.now, segs);
        tx.update_pacing_rate();
        let Some(fl) = tx.fl.born() else { return };
        fl.cwnd_stamp = cx.now;
        if fl.chrono != Chrono::Idle {
            tx.chrono_stop(cx.now, Chrono::Busy);
        }
        self.take_hystart_counts(cx);
    }
}

impl Tx {
    /// `rate_delivered` and `rate_gen` for one segment that was sent once and is all that an ACK delivers.
    #[inline]
    fn rate_quick(&mut self, now: Instant, seg: &TxSeg) -> RateSample {
        let (total, min_rtt) = (self.delivered, self.min_rtt.get());
        let mut rs = RateSample { acked_sacked: seg.segs, ..RateSample::default() };
        let Some(fl) = self.fl.born() else { return rs };
        fl.first_tx_at = seg.tx_at;
        if fl.app_limited != 0 && (total.wrapping_sub(fl.app_limited) as i32) > 0 {
            fl.app_limited = 0;
        }
        fl.delivered_at = now;
        let count = total.wrapping_sub(seg.delivered);
        let limited = seg.has(tag::APP_LIMITED);
        (rs.prior_delivered, rs.delivered) = (u64::from(seg.delivered), i64::from(count));
        rs.is_app_limited = limited;
        let us = seg.tx_at.micros_since(seg.first_tx_at).max(now.micros_since(seg.delivered_at));
        if us < min_rtt || us == 0 {
            return rs;
        }
        rs.interval_us = i64::from(us);
        let faster = u64::from(count) * u64::from(fl.rate_interval_us) >= u64::from(fl.rate_delivered) * u64::from(us);
        if !limited || faster {
            (fl.rate_delivered, fl.rate_interval_us, fl.rate_app_limited) = (count, us, limited);
        }
        rs
    }
}
