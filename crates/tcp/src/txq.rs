//! The write queue and the retransmit queue: one ordered list of segments over one stream of page fragments.
//!
//! ```text
//!   order:   [seg][seg][seg] | [seg][seg]        sorted by seq, contiguous
//!             sent, not acked |  not yet sent     `sent` = position of the bar
//!   frags:   {frag}{frag      frag}{frag}         bytes of the stream, keyed by their first sequence number
//! ```
//! A [`TxSeg`] is an interval of sequence space with its tags; it holds no memory of its own. The bytes are a second
//! queue of fragments keyed by sequence number. So cutting a segment at an MSS boundary, or merging SACKed neighbours,
//! moves a boundary and touches no page: partial SACKs of super-packets cost nothing per byte.
//!
//! Segments live in a slab and never move; `order` holds their slot numbers (4 bytes each, so an insertion in the middle
//! moves little) and is searched by bisection. A second list through the slots, `ts_*`, keeps what is in flight in the
//! order of transmission for RACK: every operation on it is O(1).
//!
//! Invariants: `order` is contiguous in sequence space; exactly the first `sent` segments have been transmitted; a segment
//! is in the transmission list iff it was sent and is neither SACKed nor (lost and not retransmitted). In steady state
//! nothing allocates: slots, order and fragments reuse their capacity, which is given back when the queue runs empty.
//! It does not know windows, timers or counters: `Tx` does.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use linerate_base::{Instant, Seq};
use linerate_skb::{Frag, Page, PagePool};

use crate::quick::copy_small;

/// No slot.
pub(crate) const NIL: u32 = u32::MAX;
/// Slots that an emptied queue keeps, so that request-response traffic does not allocate.
const KEEP_SLOTS: usize = 64;
/// Slots of a queue that another connection may inherit.
const SMALL_SLOTS: usize = 16;

/// Tags and flags of a segment.
pub(crate) mod tag {
    /// Takes one sequence number before the data.
    pub(crate) const SYN: u16 = 1;
    /// Takes one sequence number after the data.
    pub(crate) const FIN: u16 = 2;
    /// Push.
    pub(crate) const PSH: u16 = 4;
    /// A record ends here: nothing may be appended or merged behind it (MSG_EOR).
    pub(crate) const EOR: u16 = 8;
    /// The peer reported it by SACK.
    pub(crate) const SACKED: u16 = 16;
    /// Believed lost.
    pub(crate) const LOST: u16 = 32;
    /// Retransmitted, and that copy is believed to be in flight.
    pub(crate) const RETRANS: u16 = 64;
    /// Was retransmitted at least once (Karn's rule).
    pub(crate) const EVER_RETRANS: u16 = 128;
    /// Linked in the transmission list.
    pub(crate) const LISTED: u16 = 256;
    /// Left while the application had too little to send.
    pub(crate) const APP_LIMITED: u16 = 512;
    /// Its delivery was already taken for the rate sample.
    pub(crate) const RATE_DONE: u16 = 1024;
    /// What says what is going on with it: the equation's tags.
    pub(crate) const TAGBITS: u16 = SACKED | LOST | RETRANS;
}

/// An interval of the sequence space that is sent, or to be sent, as one super-packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxSeg {
    /// First sequence number.
    pub(crate) seq: Seq,
    /// Sequence number after the last, SYN and FIN included.
    pub(crate) end_seq: Seq,
    /// When it was last sent.
    pub(crate) tx_at: Instant,
    /// Rate sample: when the segment that was the latest delivered at `tx_at` had been sent.
    pub(crate) first_tx_at: Instant,
    /// Rate sample: when the connection's delivered count was last advanced, at `tx_at`.
    pub(crate) delivered_at: Instant,
    /// Rate sample: the connection's delivered count at `tx_at`.
    pub(crate) delivered: u32,
    /// Wire segments that it counts for in the in-flight equation.
    pub(crate) segs: u32,
    /// Payload bytes per wire segment of the latest count.
    pub(crate) mss: u16,
    /// Bits of [`tag`].
    pub(crate) tags: u16,
    /// Fragments that were appended for it (an upper bound after cuts).
    pub(crate) frags: u16,
    prev: u32,
    next: u32,
}

impl TxSeg {
    /// A segment that was never sent.
    pub(crate) fn new(seq: Seq, len: u32, tags: u16) -> Self {
        Self {
            seq,
            end_seq: seq + len,
            tx_at: Instant::ZERO,
            first_tx_at: Instant::ZERO,
            delivered_at: Instant::ZERO,
            delivered: 0,
            segs: 0,
            mss: 0,
            tags,
            frags: 0,
            prev: NIL,
            next: NIL,
        }
    }
    /// Sequence space, SYN and FIN included.
    pub(crate) fn len(&self) -> u32 {
        self.end_seq - self.seq
    }
    /// Any of `bits` is set.
    pub(crate) fn has(&self, bits: u16) -> bool {
        self.tags & bits != 0
    }
    /// Sequence numbers of its payload alone.
    pub(crate) fn payload(&self) -> (Seq, Seq) {
        let start = if self.has(tag::SYN) { self.seq + 1 } else { self.seq };
        let end = if self.has(tag::FIN) { self.end_seq - 1 } else { self.end_seq };
        (start, if end.lt(start) { start } else { end })
    }
    /// Payload bytes.
    pub(crate) fn data_len(&self) -> u32 {
        let (start, end) = self.payload();
        end - start
    }
    /// Counts the wire segments that `len` takes at `mss` bytes each (at least 1).
    pub(crate) fn set_segs(&mut self, mss: u32) {
        let mss = mss.clamp(1, u32::from(u16::MAX));
        self.mss = mss as u16;
        self.segs = self.data_len().div_ceil(mss).max(1);
    }
}

/// A fragment of the stream and the sequence number of its first byte.
struct TxFrag {
    seq: Seq,
    frag: Frag,
}

impl TxFrag {
    fn end(&self) -> Seq {
        self.seq + self.frag.len()
    }
}

/// Both queues.
pub(crate) struct TxQueue {
    slab: Vec<TxSeg>,
    /// Head of the free slots, linked through `next`; 0 means none, slot numbers are stored plus one.
    free_plus1: u32,
    order: VecDeque<u32>,
    sent: u32,
    /// Slot of the only segment; [`NIL`] when there is not just one.
    sole: u32,
    frags: VecDeque<TxFrag>,
    ts_head_plus1: u32,
    ts_tail_plus1: u32,
}

impl TxQueue {
    /// Empty, without memory.
    pub(crate) const NEW: Self = Self {
        slab: Vec::new(),
        free_plus1: 0,
        order: VecDeque::new(),
        sent: 0,
        sole: NIL,
        frags: VecDeque::new(),
        ts_head_plus1: 0,
        ts_tail_plus1: 0,
    };
    /// Nothing sent waits for its ACK and nothing waits to be sent.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
    /// Segments, sent and unsent.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }
    /// Segments of the retransmit queue.
    pub(crate) fn sent(&self) -> usize {
        self.sent as usize
    }
    /// Something was never sent.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.order.len() > self.sent as usize
    }
    /// The segment at `pos` of the order.
    #[inline]
    pub(crate) fn get(&self, pos: usize) -> Option<&TxSeg> {
        self.order.get(pos).and_then(|&s| self.slab.get(s as usize))
    }
    /// The segment at `pos`, to change.
    #[inline]
    pub(crate) fn get_mut(&mut self, pos: usize) -> Option<&mut TxSeg> {
        let slot = *self.order.get(pos)?;
        self.slab.get_mut(slot as usize)
    }
    /// The oldest segment in flight.
    pub(crate) fn rtx_head(&self) -> Option<&TxSeg> {
        if self.sent == 0 { None } else { self.get(0) }
    }
    /// The first segment that was never sent.
    pub(crate) fn send_head(&self) -> Option<&TxSeg> {
        self.get(self.sent as usize)
    }
    /// The only segment, if it was never sent.
    #[inline]
    pub(crate) fn sole_unsent(&self) -> Option<&TxSeg> {
        if self.sent == 0 { self.slab.get(self.sole as usize) } else { None }
    }
    /// The only segment, if it is in flight.
    #[inline]
    pub(crate) fn sole_sent(&self) -> Option<&TxSeg> {
        if self.sent == 1 { self.slab.get(self.sole as usize) } else { None }
    }
    /// All bytes lie in one fragment.
    #[inline]
    pub(crate) fn is_one_frag(&self) -> bool {
        self.frags.len() == 1
    }
    /// The bytes of `[from, to)`, if all that is queued lies in one fragment.
    #[inline]
    pub(crate) fn sole_bytes(&self, from: Seq, to: Seq) -> Option<&[u8]> {
        let only = self.frags.front().filter(|_| self.frags.len() == 1)?;
        let at = (from - only.seq) as usize;
        only.frag.as_slice().get(at..at + (to - from) as usize)
    }
    /// The last segment, if it was never sent.
    pub(crate) fn unsent_tail(&mut self) -> Option<&mut TxSeg> {
        if self.has_unsent() { self.get_mut(self.order.len() - 1) } else { None }
    }
    /// The last segment of all.
    pub(crate) fn tail(&self) -> Option<&TxSeg> {
        self.order.len().checked_sub(1).and_then(|p| self.get(p))
    }
    /// Slot of the segment at `pos`.
    pub(crate) fn slot(&self, pos: usize) -> Option<u32> {
        self.order.get(pos).copied()
    }
    /// The segment in `slot`.
    pub(crate) fn at_slot(&self, slot: u32) -> Option<&TxSeg> {
        self.slab.get(slot as usize)
    }
    /// The segment in `slot`, to change.
    pub(crate) fn at_slot_mut(&mut self, slot: u32) -> Option<&mut TxSeg> {
        self.slab.get_mut(slot as usize)
    }
    /// Position of the first segment whose end lies after `seq`; `len()` when there is none.
    pub(crate) fn find(&self, seq: Seq) -> usize {
        let slab = &self.slab;
        self.order.partition_point(|&s| slab.get(s as usize).is_some_and(|t| t.end_seq.le(seq)))
    }

    /// Appends a segment that was never sent.
    pub(crate) fn push(&mut self, seg: TxSeg) {
        debug_assert!(self.tail().is_none_or(|t| t.end_seq == seg.seq), "a hole in the write queue");
        let slot = self.alloc(seg);
        self.order.push_back(slot);
        self.note_sole();
    }

    /// Segments came or went.
    #[inline]
    fn note_sole(&mut self) {
        self.sole = if self.order.len() == 1 { self.order.front().copied().unwrap_or(NIL) } else { NIL };
    }

    /// [`Self::push`] and [`Self::push_frag`] for an empty queue: a segment of `data`, which is copied to `page`. False: the page
    /// has no room for all of it, and nothing happened. Not inlined: here the parts of what is queued never leave registers.
    #[inline(never)]
    pub(crate) fn push_first(&mut self, page: &mut Page, data: &[u8], seq: Seq, tags: u16) -> bool {
        debug_assert!(self.is_empty() && self.sent == 0 && self.frags.is_empty(), "not the first segment");
        let len = data.len();
        if page.room() < len {
            return false;
        }
        let frag = page.fill(len, |to| {
            copy_small(to, data);
            len
        });
        let Some(frag) = frag else { return false };
        self.slab.clear();
        self.free_plus1 = 0;
        self.frags.push_back(TxFrag { seq, frag });
        self.slab.push(TxSeg { frags: 1, ..TxSeg::new(seq, len as u32, tags) });
        self.order.push_back(0);
        self.sole = 0;
        true
    }

    /// Marks the send head as sent and puts it at the end of the transmission list.
    pub(crate) fn mark_sent(&mut self) {
        if let Some(slot) = self.slot(self.sent as usize) {
            self.sent += 1;
            self.ts_push_tail(slot);
        }
    }

    /// Marks the only segment as sent with `tags` besides what it has; returns it.
    #[inline]
    pub(crate) fn mark_sole_sent(&mut self, tags: u16) -> Option<&mut TxSeg> {
        debug_assert!(self.sole != NIL && self.sent == 0 && self.ts_head_plus1 == 0, "not the only segment");
        let seg = self.slab.get_mut(self.sole as usize)?;
        seg.tags = (seg.tags & !tag::APP_LIMITED) | tag::LISTED | tags;
        self.sent = 1;
        (self.ts_head_plus1, self.ts_tail_plus1) = (self.sole + 1, self.sole + 1);
        Some(seg)
    }

    /// Cuts the segment at `pos` so that its first part ends at `at`. Both parts keep tags, times and the place in the
    /// transmission list; SYN stays with the first, FIN, PSH and EOR go with the second. Wire segment counts are the
    /// caller's business. False when `at` is not inside.
    pub(crate) fn split(&mut self, pos: usize, at: Seq) -> bool {
        let Some(slot) = self.slot(pos) else { return false };
        let Some(seg) = self.slab.get_mut(slot as usize) else { return false };
        if !(seg.seq.lt(at) && at.lt(seg.end_seq)) {
            return false;
        }
        let mut rest = *seg;
        rest.seq = at;
        rest.tags &= !(tag::SYN | tag::LISTED);
        seg.end_seq = at;
        seg.tags &= !(tag::FIN | tag::PSH | tag::EOR);
        let listed = seg.has(tag::LISTED);
        let rest = self.alloc(rest);
        self.order.insert(pos + 1, rest);
        self.sole = NIL;
        if pos < self.sent as usize {
            self.sent += 1;
        }
        if listed {
            self.ts_insert_after(slot, rest);
        }
        true
    }

    /// Merges the segment behind `pos` into it: tags of the end and Karn's mark move over, counts are the caller's.
    pub(crate) fn merge_next(&mut self, pos: usize) {
        let (Some(a), Some(b)) = (self.slot(pos), self.slot(pos + 1)) else { return };
        let Some(next) = self.at_slot(b).copied() else { return };
        self.ts_unlink(b);
        if let Some(seg) = self.slab.get_mut(a as usize) {
            seg.end_seq = next.end_seq;
            seg.tags |= next.tags & (tag::FIN | tag::PSH | tag::EOR | tag::EVER_RETRANS);
            seg.frags = seg.frags.saturating_add(next.frags);
        }
        self.order.remove(pos + 1);
        self.note_sole();
        if pos + 1 < self.sent as usize {
            self.sent -= 1;
        }
        self.release(b);
    }

    /// Moves the border between the segment at `pos` and the next to `at`, which lies inside the next.
    pub(crate) fn grow(&mut self, pos: usize, at: Seq) {
        if let Some(next) = self.get_mut(pos + 1) {
            debug_assert!(next.seq.lt(at) && at.lt(next.end_seq), "the border leaves its neighbour");
            next.seq = at;
        }
        if let Some(seg) = self.get_mut(pos) {
            seg.end_seq = at;
        }
    }

    /// Takes the first `n` segments, which are acknowledged, out of the queue.
    pub(crate) fn pop_front(&mut self) {
        if let Some(slot) = self.order.pop_front() {
            self.sent = self.sent.saturating_sub(1);
            self.note_sole();
            self.ts_unlink(slot);
            self.release(slot);
        }
    }

    /// Fragments that hold bytes of `[from, to)`.
    pub(crate) fn count_frags(&self, from: Seq, to: Seq) -> usize {
        if from.ge(to) {
            return 0;
        }
        let first = self.frags.partition_point(|f| f.end().le(from));
        let last = self.frags.partition_point(|f| f.seq.lt(to));
        last.saturating_sub(first)
    }

    /// How many bytes of `[from, to)` lie in the first `max` fragments.
    pub(crate) fn len_in_frags(&self, from: Seq, to: Seq, max: usize) -> u32 {
        let first = self.frags.partition_point(|f| f.end().le(from));
        match self.frags.get(first + max) {
            Some(f) if f.seq.lt(to) => f.seq - from,
            _ => to - from,
        }
    }

    /// Calls `f` with a reference to each piece of `[from, to)`, in order; stops and says false when `f` does.
    pub(crate) fn each_frag(&self, from: Seq, to: Seq, mut f: impl FnMut(Frag) -> bool) -> bool {
        let mut at = from;
        // Mostly it begins in the first fragment: no need to search.
        let first = match self.frags.front() {
            Some(f) if f.end().gt(from) => 0,
            _ => self.frags.partition_point(|f| f.end().le(from)),
        };
        for tf in self.frags.range(first..) {
            if at.ge(to) {
                break;
            }
            let off = at - tf.seq;
            let end = if tf.end().lt(to) { tf.end() } else { to };
            if !f(tf.frag.slice(off, end - at)) {
                return false;
            }
            at = end;
        }
        debug_assert!(at.ge(to), "bytes of the send queue are missing");
        at.ge(to)
    }

    /// The last fragment of the stream, to be extended in place by the writer of its page.
    pub(crate) fn last_frag(&mut self) -> Option<&mut Frag> {
        self.frags.back_mut().map(|f| &mut f.frag)
    }

    /// Appends bytes that start at `seq`. Returns true when they became a fragment of their own.
    pub(crate) fn push_frag(&mut self, seq: Seq, frag: Frag) -> bool {
        let frag = match self.frags.back_mut() {
            Some(last) if last.end() == seq => match last.frag.try_merge(frag) {
                Ok(()) => return false,
                Err(frag) => frag,
            },
            _ => frag,
        };
        self.frags.push_back(TxFrag { seq, frag });
        true
    }

    /// Lets go of all fragments that end at or below `una`.
    pub(crate) fn free_frags(&mut self, una: Seq, pool: &mut PagePool) {
        while self.frags.front().is_some_and(|f| f.end().le(una)) {
            if let Some(f) = self.frags.pop_front() {
                pool.recycle(f.frag);
            }
        }
    }

    /// Takes the only segment, if it is in flight, and its bytes out of the queue, which is empty then. What is of the
    /// page that is being written goes back to its writer.
    #[inline]
    pub(crate) fn take_sole(&mut self, pool: &mut PagePool, page: &mut Option<Page>) -> Option<TxSeg> {
        let seg = *self.sole_sent()?;
        self.order.clear();
        (self.sent, self.sole) = (0, NIL);
        (self.ts_head_plus1, self.ts_tail_plus1) = (0, 0);
        // From the back: a queue that never moved its front needs no wrapping.
        while let Some(f) = self.frags.pop_back() {
            let rest = match page {
                Some(page) => page.take_back(f.frag),
                None => Some(f.frag),
            };
            if let Some(frag) = rest {
                pool.recycle(frag);
            }
        }
        if self.slab.capacity() > KEEP_SLOTS || self.frags.capacity() > 2 * KEEP_SLOTS {
            self.shrink(KEEP_SLOTS);
        }
        Some(seg)
    }

    /// Lets go of everything, but for lists that another connection may inherit.
    pub(crate) fn clear(&mut self, pool: &mut PagePool) {
        for f in self.frags.drain(..) {
            pool.recycle(f.frag);
        }
        if self.is_small() {
            self.renew();
        } else {
            *self = Self::NEW;
        }
    }

    /// Called when the queue has run empty: gives back what a burst had needed.
    pub(crate) fn shrink(&mut self, keep: usize) {
        debug_assert!(self.order.is_empty() && self.ts_head_plus1 == 0, "shrinking a queue in use");
        let keep = keep.min(KEEP_SLOTS);
        self.slab.clear();
        self.free_plus1 = 0;
        if self.slab.capacity() > keep {
            self.slab.shrink_to(keep);
            self.order.shrink_to(keep);
        }
        if self.frags.is_empty() && self.frags.capacity() > 2 * keep {
            self.frags.shrink_to(2 * keep);
        }
    }
    /// Empty again, whatever state it was left in; capacity stays.
    pub(crate) fn renew(&mut self) {
        self.slab.clear();
        self.order.clear();
        self.frags.clear();
        (self.free_plus1, self.sent, self.ts_head_plus1, self.ts_tail_plus1) = (0, 0, 0, 0);
        self.sole = NIL;
    }
    /// Its lists never grew beyond what short messages need.
    pub(crate) fn is_small(&self) -> bool {
        self.slab.capacity() <= SMALL_SLOTS && self.frags.capacity() <= 2 * SMALL_SLOTS
    }
    /// The default amount that [`Self::shrink`] keeps.
    pub(crate) const fn keep() -> usize {
        KEEP_SLOTS
    }

    fn alloc(&mut self, seg: TxSeg) -> u32 {
        let seg = TxSeg { prev: NIL, next: NIL, ..seg };
        if let Some(slot) = self.free_plus1.checked_sub(1)
            && let Some(s) = self.slab.get_mut(slot as usize)
        {
            self.free_plus1 = if s.next == NIL { 0 } else { s.next + 1 };
            *s = seg;
            return slot;
        }
        self.slab.push(seg);
        (self.slab.len() - 1) as u32
    }
    fn release(&mut self, slot: u32) {
        if let Some(s) = self.slab.get_mut(slot as usize) {
            s.next = self.free_plus1.checked_sub(1).unwrap_or(NIL);
            self.free_plus1 = slot + 1;
        }
    }
}

/// The transmission list.
impl TxQueue {
    /// Slot that was sent the longest ago, or [`NIL`].
    pub(crate) fn ts_first(&self) -> u32 {
        self.ts_head_plus1.checked_sub(1).unwrap_or(NIL)
    }
    /// The slot sent after `slot`, or [`NIL`].
    pub(crate) fn ts_next(&self, slot: u32) -> u32 {
        self.at_slot(slot).map_or(NIL, |s| s.next)
    }
    /// Puts a slot at the end: it was just sent.
    pub(crate) fn ts_push_tail(&mut self, slot: u32) {
        self.ts_unlink(slot);
        let tail = self.ts_tail_plus1.checked_sub(1).unwrap_or(NIL);
        self.link(slot, tail, NIL);
    }
    /// Takes a slot out of the list, if it is there.
    pub(crate) fn ts_unlink(&mut self, slot: u32) {
        let Some(seg) = self.slab.get_mut(slot as usize) else { return };
        if !seg.has(tag::LISTED) {
            return;
        }
        seg.tags &= !tag::LISTED;
        let (prev, next) = (seg.prev, seg.next);
        (seg.prev, seg.next) = (NIL, NIL);
        match self.slab.get_mut(prev as usize) {
            Some(p) => p.next = next,
            None => self.ts_head_plus1 = next.wrapping_add(1),
        }
        match self.slab.get_mut(next as usize) {
            Some(n) => n.prev = prev,
            None => self.ts_tail_plus1 = prev.wrapping_add(1),
        }
    }
    /// Unlinks the segment at `pos`.
    pub(crate) fn ts_unlink_pos(&mut self, pos: usize) {
        if let Some(slot) = self.slot(pos) {
            self.ts_unlink(slot);
        }
    }
    /// The segment at `pos` was just sent.
    pub(crate) fn ts_touch(&mut self, pos: usize) {
        if let Some(slot) = self.slot(pos) {
            self.ts_push_tail(slot);
        }
    }
    fn ts_insert_after(&mut self, slot: u32, new: u32) {
        let next = self.ts_next(slot);
        self.link(new, slot, next);
    }
    fn link(&mut self, slot: u32, prev: u32, next: u32) {
        if let Some(s) = self.slab.get_mut(slot as usize) {
            (s.prev, s.next) = (prev, next);
            s.tags |= tag::LISTED;
        }
        match self.slab.get_mut(prev as usize) {
            Some(p) => p.next = slot,
            None => self.ts_head_plus1 = slot + 1,
        }
        match self.slab.get_mut(next as usize) {
            Some(n) => n.prev = slot,
            None => self.ts_tail_plus1 = slot + 1,
        }
    }
    /// Builds the list anew from times: needed when "lost" tags are taken back all at once, which is rare.
    pub(crate) fn ts_rebuild(&mut self) {
        let Some(base) = self.get(0).map(|s| s.seq) else { return };
        let mut slots: Vec<u32> = self.order.iter().take(self.sent as usize).copied().collect();
        for &s in &slots {
            self.ts_unlink(s);
        }
        let slab = &self.slab;
        slots.retain(|&s| {
            slab.get(s as usize)
                .is_some_and(|t| !t.has(tag::SACKED) && t.tags & (tag::LOST | tag::RETRANS) != tag::LOST)
        });
        slots.sort_unstable_by_key(|&s| {
            slab.get(s as usize).map_or((Instant::ZERO, 0), |t| (t.tx_at, t.end_seq - base))
        });
        for s in slots {
            self.ts_push_tail(s);
        }
    }

    /// Checks the structure; for tests and the simulator.
    ///
    /// # Panics
    /// When an invariant of the module head does not hold.
    pub(crate) fn check(&self) {
        let sole = self.slot(0).filter(|_| self.order.len() == 1).unwrap_or(NIL);
        assert_eq!(self.sole, sole, "not the only segment");
        let mut end: Option<Seq> = None;
        let mut listed = 0;
        for (pos, &slot) in self.order.iter().enumerate() {
            let s = self.at_slot(slot).expect("order names a slot");
            assert!(s.len() > 0, "an empty segment");
            assert!(end.is_none_or(|e| e == s.seq), "a hole in the send queue at {:?}", s.seq);
            end = Some(s.end_seq);
            let want = pos < self.sent() && !s.has(tag::SACKED) && s.tags & (tag::LOST | tag::RETRANS) != tag::LOST;
            assert_eq!(s.has(tag::LISTED), want, "transmission list at {:?} tags {:#x}", s.seq, s.tags);
            listed += usize::from(want);
        }
        let (mut slot, mut n, mut prev) = (self.ts_first(), 0, NIL);
        while let Some(s) = self.at_slot(slot) {
            assert_eq!(s.prev, prev, "back link");
            assert!(n < listed, "the transmission list is too long");
            (prev, slot, n) = (slot, s.next, n + 1);
        }
        assert_eq!(n, listed, "transmission list length");
        for w in self.frags.iter().zip(self.frags.iter().skip(1)) {
            assert_eq!(w.0.end(), w.1.seq, "a hole in the stream");
        }
    }
}

#[cfg(test)]
impl TxQueue {
    /// Slots of the slab, used or free.
    pub(crate) fn slots(&self) -> usize {
        self.slab.capacity()
    }
}
