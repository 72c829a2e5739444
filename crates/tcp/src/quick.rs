//! The steps that requests and responses consist of, each decided by a few compares and done in one look.
//!
//! ```text
//!   write_small   bytes of at most one wire segment, nothing unsent before them
//!   xmit_quick    that segment, or a FIN, leaves: nothing in flight, window and cwnd open, nothing to repair
//!   poll_small    the same segment, header and bytes, written where the device wants it: no descriptor, no reference;
//!                 or an ACK alone, when nothing else is to be sent, or the SYN
//!   rcv_quick     the predicted segment, from numbers that the caller has read off a plain header
//!   ack_quick     the ACK of all that was in flight, in state Open, without SACK or ECN
//!   ack_idle      an ACK that acknowledges nothing, with nothing in flight
//!   read_small    all that is queued, when that came in one small packet
//! ```
//! This is header prediction (Van Jacobson) for the sender as well: what is predicted does exactly what the general way
//! would do, and leaves out what can not happen. Whatever is not predicted is refused with nothing changed, and the general
//! way (`write`, `output`, `ack`) takes over. A rule that changes there and concerns these cases changes here too; tests
//! compare the two ways over whole conversations.
//!
//! Two rules of thumb made it twice as fast as a straight transcription. Values stay in registers or lie where they are
//! needed: a struct that is put together in memory by parts and then copied as a whole waits for the parts to leave the
//! store buffer. And what is asked every time is one load: the queue knows its only segment, the timers their earliest.
//!
//! Not here: bulk data, where a segment is a super-packet and the general way costs nothing per byte.

use linerate_base::{Instant, Seq};
use linerate_cong::{CaState, CongestionControl, RateSample};
use linerate_skb::{Page, SKB_TRUESIZE, Skb, SkbBatch, SkbCache};
use linerate_wire::{SackBlocks, TcpFlags, Timestamps};

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::input::{DataFacts, Seg};
use crate::mem::MemAcct;
use crate::output::{Emit, Out, wire_flags};
use crate::rate::sent_after;
use crate::rcvq::charge_of;
use crate::rx::ack;
use crate::state::State;
use crate::timer::{RetransKind, Timer};
use crate::tx::{Chrono, SEG_TRUESIZE, Tx, flag};
use crate::txq::{TxSeg, tag};
use crate::wnd::align_up;

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

impl Quick {
    #[inline]
    fn ts(&self) -> Timestamps {
        Timestamps { val: self.ts_val, ecr: self.ts_ecr }
    }
    #[inline]
    fn flags(&self) -> TcpFlags {
        if self.psh { TcpFlags::ACK | TcpFlags::PSH } else { TcpFlags::ACK }
    }
}

/// What a segment may carry that is predicted. A FIN is one more number to acknowledge; what it does to the state is
/// the receiver's business, which looks at the numbers.
const PLAIN_TAGS: u16 = tag::FIN | tag::PSH | tag::EOR | tag::LISTED | tag::APP_LIMITED;
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

/// Copies a few bytes, `to` as long as `from`: from both ends in blocks of one size, which may overlap, so that the usual
/// lengths need no loop and no call that would first find out how to copy them.
#[inline]
pub(crate) fn copy_small(to: &mut [u8], from: &[u8]) {
    debug_assert_eq!(to.len(), from.len());
    match from.len() {
        32..=64 => copy_ends::<32>(to, from),
        16..32 => copy_ends::<16>(to, from),
        8..16 => copy_ends::<8>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first and the last `N` bytes.
#[inline(always)]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
        let (first, last) = (*first, *last);
        if let Some(to) = to.first_chunk_mut::<N>() {
            *to = first;
        }
        if let Some(to) = to.last_chunk_mut::<N>() {
            *to = last;
        }
    }
}

impl Conn {
    /// [`Conn::write`] of at most one segment's bytes on a connection that has nothing queued and was not idle for long.
    /// False: not that, and nothing happened. It borrows of the world what it needs: a small write is too short for more.
    #[inline(always)]
    pub fn write_small(&mut self, now: Instant, page: &mut Option<Page>, mem: &mut MemAcct, data: &[u8]) -> bool {
        let tx = &mut self.tx;
        let Some(fl) = tx.fl.born() else { return false };
        let len = data.len();
        let open = self.state == State::Established && !self.rx.shut.snd && self.error.is_none();
        // No longer idle than an RTO: cwnd stays.
        let last = tx.cc.lsnd_time;
        let warm = last == Instant::ZERO || now.nanos_since(last) <= u64::from(tx.rto_us.max(1)) * 1000;
        if !open || len == 0 || len > tx.cc.mss as usize || !fl.q.is_empty() || !warm {
            return false;
        }
        let n = len as u32;
        let free = tx.wmem_queued < tx.sndbuf && tx.notsent_lowat == u32::MAX;
        let Some(page) = page.as_mut().filter(|_| free) else { return false };
        if !take_it() || !mem.charge(tx.group, n + SEG_TRUESIZE) {
            return false;
        }
        if !fl.q.push_first(page, data, tx.write_seq, tag::PSH) {
            mem.uncharge(tx.group, n + SEG_TRUESIZE);
            return false;
        }
        debug_assert!(tx.packets_out | tx.lost_out | tx.retrans_out | tx.sacked_out == 0, "nothing is queued");
        if tx.wmem_alloc <= SKB_TRUESIZE {
            fl.app_limited = tx.delivered.max(1);
        }
        if fl.chrono == Chrono::Idle {
            (fl.chrono, fl.chrono_at) = (Chrono::Busy, now);
        }
        tx.wmem_queued += n + SEG_TRUESIZE;
        tx.write_seq += n;
        fl.pushed_seq = tx.write_seq;
        tx.flags &= !(flag::MORE | flag::PUSH);
        true
    }

    /// Would the stack's account and the group's take `truesize` bytes without a thought?
    #[inline(always)]
    fn has_room(&self, cx: &TcpCx<'_>, truesize: u32) -> bool {
        let group = self.tx.group;
        !cx.mem.under_pressure(group) && cx.mem.left_bytes(group) >= u64::from(truesize)
    }

    /// [`Conn::is_predicted`] for a segment with `len` bytes of payload, and may it be taken as it is?
    #[inline]
    fn expects(&self, cx: &TcpCx<'_>, q: &Quick, len: u32) -> bool {
        let (tx, rx) = (&self.tx, &self.rx);
        self.state == State::Established
            && self.neg.ts
            && Seq(q.seq) == rx.nxt
            && Seq(q.ack).ge(tx.snd_una)
            && Seq(q.ack).le(tx.snd_nxt)
            && u32::from(q.window) << self.neg.snd_wscale.min(14) == tx.snd_wnd
            && q.ts_val.wrapping_sub(rx.ts_recent) as i32 >= 0
            && rx.ofo.is_none()
            // Unread bytes are put together page by page, which a packet in a descriptor's head does not allow.
            && (len == 0 || (rx.wnd != 0 && rx.queue.is_empty() && rx.rmem_alloc <= rx.rcvbuf))
            && len <= self.receive_window()
            && (len == 0 || self.has_room(cx, SKB_TRUESIZE + len))
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
        if !self.expects(cx, q, len) || !take_it() || (len > 0 && !self.queue_quick(cx, q, len, make)) {
            return false;
        }
        let (seq, ack) = (Seq(q.seq), Seq(q.ack));
        self.rx.segs_in = self.rx.segs_in.wrapping_add(1);
        if ack == self.tx.snd_una && len > 0 {
            self.note_peer_alive(cx);
        } else if self.acks_sole(ack) {
            if len == 0 {
                self.quick_ts(cx, q);
                cx.mib.hp_acks += 1;
                self.rx.rtt.last_tsecr = q.ts_ecr;
            }
            self.take_sole_ack(cx, Ack { seq, ack, pure: len == 0 });
            self.note_peer_alive(cx);
        } else {
            self.rcv_other_ack(cx, q, len);
        }
        if len > 0 {
            self.ack_snd_check(cx, false);
        }
        true
    }

    /// The ACK of a predicted segment, whatever it acknowledges; data was taken before.
    #[inline(never)]
    fn rcv_other_ack(&mut self, cx: &mut TcpCx<'_>, q: &Quick, len: u32) {
        let seg = Seg {
            seq: Seq(q.seq),
            end_seq: Seq(q.seq) + len,
            ack: Seq(q.ack),
            wnd: self.tx.snd_wnd,
            flags: q.flags(),
            len,
            gso_segs: 1,
            header_len: SMALL_HEADER as u32,
            ts: Some(q.ts()),
            sack: SackBlocks::EMPTY,
            now: cx.now,
            ece: false,
            ip_ecn: 0,
        };
        if len > 0 {
            self.predicted_data_ack(cx, &seg);
        } else {
            let taken = self.predicted_ack(cx, &seg);
            debug_assert!(taken.is_ok(), "a predicted ACK was refused");
        }
    }

    /// The timestamp of a predicted segment.
    #[inline]
    fn quick_ts(&mut self, cx: &TcpCx<'_>, q: &Quick) {
        if self.rx.nxt == self.rx.wup {
            self.store_ts_recent(cx, q.ts());
        }
    }

    /// The data of a predicted segment. False: no descriptor, and nothing happened.
    #[inline]
    fn queue_quick(
        &mut self,
        cx: &mut TcpCx<'_>,
        q: &Quick,
        len: u32,
        make: impl FnOnce(&mut SkbCache) -> Option<Skb>,
    ) -> bool {
        let truesize = SKB_TRUESIZE + len;
        let Some(skb) = make(cx.skbs) else { return false };
        debug_assert!(skb.len() == len && charge_of(&skb) == truesize, "not the payload of the segment");
        self.rx.data_segs_in = self.rx.data_segs_in.wrapping_add(1);
        let charged = cx.mem.charge(self.tx.group, truesize);
        debug_assert!(charged, "there was room");
        self.quick_ts(cx, q);
        self.rcv_rtt_measure_ts(cx.now, Some(q.ts()), len);
        cx.mib.hp_hits += 1;
        self.queue_charged(cx, Seq(q.seq), skb, truesize);
        let flags = q.flags();
        let facts = DataFacts { len, gso_size: 0, truesize, header_len: SMALL_HEADER as u32, flags, ip_ecn: 0 };
        self.on_data_received(cx, facts);
        true
    }

    /// [`Conn::read`] of all that is queued, when that is the payload of one small packet and the buffer stays as it is.
    /// `None`: it is not, and nothing happened. Borrows what it needs, as [`Self::write_small`].
    #[inline(always)]
    pub fn read_small(
        &mut self,
        now: Instant,
        mem: &mut MemAcct,
        skbs: &mut SkbCache,
        buf: &mut [u8],
    ) -> Option<usize> {
        let rx = &mut self.rx;
        let front = rx.queue.front().filter(|f| f.skb.nr_frags() == 0 && rx.queue.len() == 1)?;
        if rx.space_is_due(now) {
            return None;
        }
        let bytes = front.skb.head();
        let n = bytes.len();
        copy_small(buf.get_mut(..n)?, bytes);
        let skb = rx.queue.pop_back()?.skb;
        rx.rmem_alloc = rx.rmem_alloc.saturating_sub(skb.truesize);
        mem.uncharge(self.tx.group, skb.truesize);
        skbs.consume(skb);
        rx.copied_seq += n as u32;
        self.after_read(mem, n);
        Some(n)
    }

    /// The one small segment of the write queue, or a FIN, if it may leave now and nothing is in flight.
    #[inline]
    fn sole_to_send(&self) -> Option<&TxSeg> {
        let tx = &self.tx;
        let plain = tx.want == 0
            && tx.packets_out == 0
            && tx.flags & !PLAIN_FLAGS == 0
            && tx.notsent_lowat == u32::MAX
            && self.state.is_synchronized()
            && self.rx.dsack.is_none()
            && self.rx.ofo.is_none()
            && tx.fl.is_born();
        if !plain {
            return None;
        }
        let head = tx.fl.q.sole_unsent()?;
        let len = head.data_len();
        let fits = head.tags & !PLAIN_TAGS == 0 && len <= tx.cc.mss && head.end_seq.le(tx.wnd_end());
        let held = len != tx.cc.mss && !head.has(tag::FIN) && (tx.flag(flag::MORE) || self.opts.cork);
        (fits && !held && (len == 0 || tx.fl.q.is_one_frag())).then_some(head)
    }

    /// Is an ACK due and nothing else to be sent?
    #[inline]
    fn ack_is_quick(&self) -> bool {
        self.ack_now()
            && self.tx.want == 0
            && !self.wants_xmit()
            && !self.tx.flag(flag::REXMIT_NEW)
            && self.tx.notsent_lowat == u32::MAX
            && self.state.is_synchronized()
            && self.rx.dsack.is_none()
            && self.rx.ofo.is_none()
    }

    /// Sends the one segment that waits. False: not predicted (or no descriptor), and nothing happened.
    pub(crate) fn xmit_quick(&mut self, cx: &mut TcpCx<'_>, out: &mut SkbBatch, budget: usize) -> bool {
        let Some(head) = self.sole_to_send().copied() else { return false };
        if budget == 0 || !take_it() {
            return false;
        }
        let mss = self.tx.cc.mss;
        let (seq, end, (from, to), flags) = (head.seq, head.end_seq, head.payload(), wire_flags(&head, mss));
        let e = Emit { seq, from, to, flags, mss, new_data: true, retrans: false };
        if !self.emit(cx, &mut Out::new(out, budget), &e) {
            return false;
        }
        self.sent_quick(cx, end, to - from);
        true
    }

    /// Does what [`Self::poll_xmit`] would do, and writes the segment into `room` instead of making an skb: the one small
    /// segment that waits, or the ACK that is due, when nothing else is to be sent. It has left when this returns, and
    /// is complete: TCP small queues do not see it. The checksum field is zero; ECT is not set. Returns the length of
    /// the header and of the payload, and leaves nothing to be sent.
    ///
    /// `None`: not such a segment, or no room; nothing happened.
    #[inline]
    pub fn poll_small(&mut self, cx: &mut TcpCx<'_>, room: &mut [u8]) -> Option<(usize, usize)> {
        if self.state == State::SynSent {
            return if take_it() { self.small_syn(cx, room).map(|len| (len, 0)) } else { None };
        }
        if !self.neg.ts || self.neg.ecn {
            return None;
        }
        let (header, rest) = room.split_first_chunk_mut::<SMALL_HEADER>()?;
        let Some(head) = self.sole_to_send() else {
            if !self.ack_is_quick() || !take_it() {
                return None;
            }
            self.small_header(cx, header, self.acceptable_seq(), TcpFlags::ACK);
            self.count_sent(cx, 0, 1, 0);
            self.ack_sent(cx, self.rx.nxt);
            return Some((SMALL_HEADER, 0));
        };
        let (seq, end, (from, to)) = (head.seq, head.end_seq, head.payload());
        let flags = wire_flags(head, self.tx.cc.mss);
        let len = (to - from) as usize;
        if len > 0 {
            copy_small(rest.get_mut(..len)?, self.tx.fl.q.sole_bytes(from, to)?);
        }
        if !take_it() {
            return None;
        }
        self.small_header(cx, header, seq, flags);
        self.note_sent(cx, len as u32, 1, true);
        self.ack_sent(cx, self.rx.nxt);
        self.sent_quick(cx, end, len as u32);
        Some((SMALL_HEADER, len))
    }

    /// The header of a segment with ACK and timestamps.
    #[inline]
    fn small_header(&mut self, cx: &mut TcpCx<'_>, to: &mut [u8; SMALL_HEADER], seq: Seq, flags: TcpFlags) {
        let window = self.select_window_quick(cx);
        let ports = u32::from(self.key.local_port()) << 16 | u32::from(self.key.remote_port());
        let facts = (SMALL_HEADER as u32 / 4) << 28 | u32::from(flags.0) << 16 | u32::from(window);
        let words = [ports, seq.0, self.rx.nxt.0, facts, 0, TS_OPTION, self.tsval(cx.now), self.ts_recent()];
        for (to, word) in to.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
    }

    /// [`Conn::select_window`] when the application has read all: as large as the buffer and the slow start of windows allow.
    #[inline]
    fn select_window_quick(&mut self, cx: &mut TcpCx<'_>) -> u16 {
        let (rx, shift) = (&self.rx, self.neg.rcv_wscale);
        let plain = rx.rmem_alloc == 0 && shift > 0 && rx.ack.rcv_mss > 0 && rx.ack.pending & ack::NOMEM == 0;
        let now = align_up(self.full_space().min(rx.ssthresh), shift);
        // What was promised stays promised.
        let new = now.max(align_up(self.receive_window(), shift));
        if !plain || rx.wnd == 0 || now == 0 {
            return self.select_window(cx);
        }
        self.rx.wnd = new;
        self.rx.wup = self.rx.nxt;
        (new.min(65_535 << shift) >> shift) as u16
    }

    /// The one segment of the queue, with `len` bytes of payload and up to `end`, has left.
    #[inline]
    fn sent_quick(&mut self, cx: &mut TcpCx<'_>, end: Seq, len: u32) {
        let (now, mss) = (cx.now, self.tx.cc.mss);
        let tx = &mut self.tx;
        let delivered = tx.delivered;
        let Some(fl) = tx.fl.born() else { return };
        // A new flight: rate samples count from here.
        (fl.first_tx_at, fl.delivered_at) = (now, now);
        let limited = if fl.app_limited != 0 { tag::APP_LIMITED } else { 0 };
        if len < mss {
            fl.snd_sml = end;
        }
        if let Some(seg) = fl.q.mark_sole_sent(limited) {
            (seg.tx_at, seg.first_tx_at, seg.delivered_at, seg.delivered) = (now, now, now, delivered);
            (seg.mss, seg.segs) = (wire_mss(mss), 1);
        }
        let held = fl.chrono == Chrono::RwndLimited;
        (tx.packets_out, tx.snd_nxt) = (1, end);
        tx.flags &= !flag::PUSH;
        cx.mib.orig_data_sent += 1;
        if held {
            tx.chrono_stop(now, Chrono::RwndLimited);
        }
        self.cwnd_validate(cx, self.tx.cc.cwnd <= 1);
        if self.tx.in_cwnd_reduction() {
            self.tx.fl.prr.out = self.tx.fl.prr.out.saturating_add(1);
        }
        self.arm_quick(cx);
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

    /// Does `ack` acknowledge the only segment of the queue, and is that all there is to say about it?
    #[inline]
    fn acks_sole(&self, ack: Seq) -> bool {
        let tx = &self.tx;
        let plain = ack == tx.snd_nxt
            && self.neg.sack
            && tx.cc.ca_state == CaState::Open
            && tx.sacked_out | tx.lost_out | tx.retrans_out == 0
            && tx.flags & !PLAIN_FLAGS == 0
            && tx.mtu.is_none()
            && tx.fl.is_born();
        let head = if plain && tx.fl.tlp_high_seq.is_none() { tx.fl.q.sole_sent() } else { None };
        head.is_some_and(|head| head.tags & !PLAIN_TAGS == 0 && head.seq == tx.snd_una)
    }

    /// Takes the ACK of everything that was in flight. False: not predicted, and nothing happened.
    #[inline]
    pub(crate) fn ack_quick(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> bool {
        if !seg.sack.is_empty() || seg.ece || !self.acks_sole(seg.ack) || !take_it() {
            return false;
        }
        // It moves `snd_una`, hence it is the latest word about the window.
        self.set_window(cx, seg.wnd);
        self.take_sole_ack(cx, Ack { seq: seg.seq, ack: seg.ack, pure: seg.len == 0 });
        true
    }

    /// The only segment is delivered: the general way's `clean_rtx_queue`, RACK, RTT and rate for this one case.
    fn take_sole_ack(&mut self, cx: &mut TcpCx<'_>, a: Ack) {
        let floor_us = self.rto_min_us(cx);
        if self.timers.retrans_kind() != RetransKind::Probe0 {
            self.timers.clear(Timer::Retrans);
        }
        let tx = &mut self.tx;
        let Some(fl) = tx.fl.born() else { return };
        let Some(seg) = fl.q.take_sole(cx.pool, cx.page) else { return };
        let TxSeg { tx_at, delivered, segs, tags, first_tx_at, delivered_at, .. } = seg;
        let acked = a.ack - tx.snd_una;
        debug_assert_eq!(tx.packets_out, segs, "packets_out is the sum over the queue");
        // Nothing is left that could be sent again before the next ACK.
        tx.flags = (tx.flags & !flag::MORE) | flag::HOLD;
        (tx.retransmits, tx.probes_out, tx.packets_out, tx.backoff) = (0, 0, 0, 0);
        (tx.snd_wl1, tx.snd_una) = (a.seq, a.ack);
        tx.bytes_acked = tx.bytes_acked.wrapping_add(u64::from(acked));
        tx.delivered = tx.delivered.wrapping_add(segs);
        cx.mib.pure_acks += u64::from(a.pure);
        cx.mib.delivered += u64::from(segs);
        if tx.reo_wnd_persist == 0 {
            tx.reo_wnd_steps = 1;
        }
        let rtt_us = cx.now.micros_since(tx_at);
        let rack = &mut fl.rack;
        (rack.advanced, rack.rtt_us) = (true, rtt_us);
        if sent_after(tx_at, a.ack, rack.mstamp, rack.end_seq) {
            (rack.mstamp, rack.end_seq) = (tx_at, a.ack);
        }
        let truesize = SEG_TRUESIZE + acked;
        debug_assert!(tx.wmem_queued >= truesize);
        tx.wmem_queued = tx.wmem_queued.saturating_sub(truesize);
        cx.mem.uncharge(tx.group, truesize);
        let single = delivered.wrapping_add(1) == tx.delivered;
        let is_ack_delayed = segs == 1 && acked < tx.cc.mss && single;
        if !(is_ack_delayed && rtt_us > tx.min_rtt.get()) {
            tx.min_rtt.update(cx.now, rtt_us.max(1));
        }
        tx.rtt_sample(rtt_us, floor_us);
        tx.rto_us = tx.rto_from_rtt(cx.cfg.rto_max_us);
        // Sent into an empty network, both phases of the sample are the round trip.
        let alone = first_tx_at == tx_at && delivered_at == tx_at;
        let phase_us = || tx_at.micros_since(first_tx_at).max(cx.now.micros_since(delivered_at));
        let us = if alone { rtt_us } else { phase_us() };
        let s = Sole { tx_at, delivered, segs, limited: tags & tag::APP_LIMITED != 0, rtt_us, us, is_ack_delayed };
        let interval_us = tx.rate_quick(cx.now, &s);
        self.learn_quick(cx, &s, interval_us);
    }

    /// Takes an ACK of nothing, with nothing in flight and nothing to be sent: it tells the peer's window. False: not that,
    /// and nothing happened.
    #[inline]
    pub(crate) fn ack_idle(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> bool {
        let tx = &mut self.tx;
        let fl = &*tx.fl;
        debug_assert_eq!(tx.packets_out, 0);
        let idle = seg.ack == tx.snd_una
            && seg.sack.is_empty()
            && !tx.flag(flag::NOSPACE)
            && fl.q.is_empty()
            && fl.chrono == Chrono::Idle
            && fl.tlp_high_seq.is_none();
        if !idle || !take_it() {
            return false;
        }
        // An idle connection's lines stay clean where nothing changes.
        if tx.flag(flag::MORE) || tx.probes_out != 0 {
            (tx.flags, tx.probes_out) = (tx.flags & !flag::MORE, 0);
        }
        cx.mib.pure_acks += u64::from(seg.len == 0);
        if tx.is_newer_window(seg) {
            tx.snd_wl1 = seg.seq;
            self.set_window(cx, seg.wnd);
        }
        true
    }

    /// What the congestion control makes of it; then the queue is empty.
    #[inline]
    fn learn_quick(&mut self, cx: &mut TcpCx<'_>, s: &Sole, interval_us: i64) {
        let tx = &mut self.tx;
        tx.sync_cc();
        let total = tx.delivered;
        let sample = || RateSample {
            delivered: i64::from(total.wrapping_sub(s.delivered)),
            interval_us,
            rtt_us: i64::from(s.rtt_us),
            acked_sacked: s.segs,
            prior_in_flight: s.segs,
            prior_delivered: u64::from(s.delivered),
            is_app_limited: s.limited,
            is_ack_delayed: s.is_ack_delayed,
            ..RateSample::default()
        };
        tx.algo.pkts_acked_plain(&mut tx.cc, cx.now, s.rtt_us, sample);
        tx.algo.cong_avoid(&mut tx.cc, cx.now, s.segs);
        tx.update_pacing_rate();
        let Some(fl) = tx.fl.born() else { return };
        fl.cwnd_stamp = cx.now;
        if fl.chrono == Chrono::Busy {
            let busy_ns = &mut fl.chrono_ns[0];
            *busy_ns = busy_ns.saturating_add(cx.now.nanos_since(fl.chrono_at));
            (fl.chrono, fl.chrono_at) = (Chrono::Idle, cx.now);
        } else {
            tx.chrono_stop(cx.now, Chrono::Busy);
        }
        self.take_hystart_counts(cx);
    }
}

/// What an ACK says that is predicted.
#[derive(Clone, Copy)]
struct Ack {
    /// Sequence number of the segment that it came with.
    seq: Seq,
    ack: Seq,
    /// That segment has no payload.
    pure: bool,
}

/// The segment that an ACK delivers alone, and what is known then.
struct Sole {
    tx_at: Instant,
    /// [`Tx::delivered`] when it was sent.
    delivered: u32,
    segs: u32,
    /// Sent while limited by the application.
    limited: bool,
    rtt_us: u32,
    /// The longer of the send and the ACK phase.
    us: u32,
    is_ack_delayed: bool,
}

impl Tx {
    /// `rate_delivered` and `rate_gen` for one segment that was sent once and is all that an ACK delivers. Returns the
    /// interval of the sample, -1 if it is none.
    #[inline]
    fn rate_quick(&mut self, now: Instant, s: &Sole) -> i64 {
        let (total, min_rtt) = (self.delivered, self.min_rtt.get());
        let Some(fl) = self.fl.born() else { return -1 };
        (fl.first_tx_at, fl.delivered_at) = (s.tx_at, now);
        if fl.app_limited != 0 && (total.wrapping_sub(fl.app_limited) as i32) > 0 {
            fl.app_limited = 0;
        }
        if s.us < min_rtt || s.us == 0 {
            return -1;
        }
        let count = total.wrapping_sub(s.delivered);
        let faster =
            u64::from(count) * u64::from(fl.rate_interval_us) >= u64::from(fl.rate_delivered) * u64::from(s.us);
        if !s.limited || faster {
            (fl.rate_delivered, fl.rate_interval_us, fl.rate_app_limited) = (count, s.us, s.limited);
        }
        i64::from(s.us)
    }
}

/// The MSS as a segment notes it.
#[inline]
fn wire_mss(mss: u32) -> u16 {
    mss.min(u32::from(u16::MAX)) as u16
}
