//! The out-of-order queue and what it reports: SACK (RFC 2018) and D-SACK (RFC 2883).
//!
//! Segments that begin beyond `rcv_nxt` wait here, keyed by their sequence number unrolled to 64 bits, in a balanced tree:
//! an insertion costs O(log n) wherever it lands. Entries never overlap: a newcomer is trimmed on both sides and swallows what it covers, so the queue never holds a byte twice. Neighbours are
//! coalesced, small payloads are pulled into their descriptor, so that thousands of one-byte segments cost what their
//! bytes cost. The number of entries is bounded by `rcvbuf / SKB_TRUESIZE`.
//!
//! The SACK list holds the four most recently changed blocks, latest first, as RFC 2018 section 4 asks; it remembers
//! *changes*, not the queue, and is forgotten when pruning takes back what it promised. A D-SACK names what arrived
//! twice and goes out once, in front.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use linerate_base::{DropReason, Seq};
use linerate_skb::{SKB_TRUESIZE, Skb};
use linerate_wire::{SackBlocks, TcpFlags};

use super::{Taken, charge_of, try_coalesce};
use crate::conn::{Conn, ev};
use crate::cx::TcpCx;
use crate::input::{DataFacts, Seg};
use crate::rx::{RxSeg, ack};
use crate::validate::now_ms;

/// Blocks that fit an ACK without doubt; more mean that a block will be forgotten (Linux TCP_SACK_BLOCKS_EXPECTED).
const SACK_BLOCKS_EXPECTED: usize = 2;

/// The queue and its SACK list.
pub(crate) struct Ofo {
    map: BTreeMap<u64, RxSeg>,
    /// `origin` unrolled to 64 bits.
    origin_ext: u64,
    /// A sequence number near all keys: `rcv_nxt` at the last call.
    origin: Seq,
    sacks: [(Seq, Seq); SackBlocks::MAX],
    sack_len: u8,
}

/// The range that a block list entry and a segment share or touch.
fn extends(block: &mut (Seq, Seq), start: Seq, end: Seq) -> bool {
    if start.le(block.1) && block.0.le(end) {
        *block = (block.0.min(start), block.1.max(end));
        return true;
    }
    false
}

impl Ofo {
    fn new(nxt: Seq) -> Self {
        Self {
            map: BTreeMap::new(),
            origin_ext: 1 << 40,
            origin: nxt,
            sacks: [(nxt, nxt); SackBlocks::MAX],
            sack_len: 0,
        }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
    /// Skbs in the queue.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }
    /// Most recent first.
    pub(crate) fn sacks(&self) -> SackBlocks {
        SackBlocks::from_slice(self.sacks.get(..usize::from(self.sack_len)).unwrap_or_default())
    }
    /// Where the last segment ends.
    pub(crate) fn last_end(&self) -> Option<Seq> {
        self.map.last_key_value().map(|(_, s)| s.end())
    }
    /// Keeps the 64-bit numbering in step with `rcv_nxt`, which only grows.
    fn follow(&mut self, nxt: Seq) {
        self.origin_ext = self.origin_ext.wrapping_add_signed(i64::from(nxt.diff(self.origin)));
        self.origin = nxt;
    }
    fn key(&self, seq: Seq) -> u64 {
        self.origin_ext.wrapping_add_signed(i64::from(seq.diff(self.origin)))
    }

    /// Notes a change of the queue for the SACK list. Returns true when more blocks are alive than an ACK surely carries.
    fn note(&mut self, start: Seq, end: Seq) -> bool {
        let len = usize::from(self.sack_len);
        let Some(live) = self.sacks.get_mut(..len) else { return false };
        if let Some(i) = live.iter_mut().position(|b| extends(b, start, end)) {
            if let Some(head) = live.get_mut(..=i) {
                head.rotate_right(1);
            }
            self.merge_into_first();
            return i >= SACK_BLOCKS_EXPECTED;
        }
        let len = (len + 1).min(SackBlocks::MAX);
        if let Some(live) = self.sacks.get_mut(..len) {
            live.rotate_right(1);
            if let Some(first) = live.first_mut() {
                *first = (start, end);
            }
        }
        let crowded = usize::from(self.sack_len) >= SACK_BLOCKS_EXPECTED;
        self.sack_len = len as u8;
        crowded
    }

    /// The first block grew: it may have swallowed others.
    fn merge_into_first(&mut self) {
        let mut i = 1;
        while i < usize::from(self.sack_len) {
            let block = self.sacks[i];
            if extends(&mut self.sacks[0], block.0, block.1) {
                self.remove_sack(i);
                i = 1;
            } else {
                i += 1;
            }
        }
    }

    fn remove_sack(&mut self, i: usize) {
        if let Some(live) = self.sacks.get_mut(i..usize::from(self.sack_len)) {
            live.rotate_left(1);
            self.sack_len -= 1;
        }
    }

    /// Blocks that are in order now say nothing.
    fn forget_below(&mut self, nxt: Seq) {
        let mut i = 0;
        while i < usize::from(self.sack_len) {
            if self.sacks[i].0.le(nxt) { self.remove_sack(i) } else { i += 1 }
        }
    }

    fn reset_sacks(&mut self) {
        self.sack_len = 0;
    }

    /// All segments, in order.
    pub(super) fn segs(&self) -> impl Iterator<Item = &RxSeg> {
        self.map.values()
    }
    /// Takes the first segment out, for collapsing.
    pub(super) fn take_first(&mut self) -> Option<RxSeg> {
        self.map.pop_first().map(|(_, seg)| seg)
    }
    /// Puts a segment back that does not overlap others.
    pub(super) fn put(&mut self, seg: RxSeg) {
        let key = self.key(seg.seq);
        self.map.insert(key, seg);
    }
}

impl Conn {
    /// SACK blocks for a segment that leaves now: the D-SACK first, then the most recent changes (RFC 2018, 2883). Options
    /// that do not fit are cut by the header.
    pub(crate) fn sack_blocks(&self) -> SackBlocks {
        let mut blocks = SackBlocks::EMPTY;
        if !self.neg.sack {
            return blocks;
        }
        if let Some((start, end)) = self.rx.dsack {
            blocks.push(start, end);
        }
        for &(start, end) in self.rx.ofo_sacks().as_slice() {
            blocks.push(start, end);
        }
        blocks
    }

    /// `[start, end)` arrived twice.
    pub(crate) fn dsack_set(&mut self, cx: &mut TcpCx<'_>, start: Seq, end: Seq) {
        if !self.neg.sack || !cx.cfg.dsack || start == end {
            return;
        }
        if start.lt(self.rx.nxt) {
            cx.mib.dsack_old_sent += 1;
        } else {
            cx.mib.dsack_ofo_sent += 1;
        }
        self.rx.dsack = Some((start, end));
    }

    /// More of the same.
    fn dsack_extend(&mut self, cx: &mut TcpCx<'_>, start: Seq, end: Seq) {
        match &mut self.rx.dsack {
            Some(block) => {
                extends(block, start, end);
            }
            None => self.dsack_set(cx, start, end),
        }
    }

    /// A segment beyond `rcv_nxt` (Linux `tcp_data_queue_ofo`).
    pub(super) fn queue_ofo(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, mut skb: Skb) -> Taken {
        self.ecn_on_data(seg.ip_ecn);
        let truesize = charge_of(&skb);
        if !self.rmem_schedule(cx, seg.seq, truesize) {
            cx.mib.ofo_drop += 1;
            self.notify(ev::READABLE);
            self.rx.ack.pending |= ack::SCHED;
            return Err((skb, self.no_room()));
        }
        let facts = DataFacts::of(seg, &skb, truesize);
        skb.truesize = truesize;
        self.rx.rmem_alloc = self.rx.rmem_alloc.saturating_add(truesize);
        self.measure_rcv_mss(facts);
        self.rx.ack.pending |= ack::SCHED;
        self.rx.ack.lrcvtime_ms = now_ms(cx);
        self.rx.ooopack = self.rx.ooopack.wrapping_add(seg.gso_segs);
        cx.mib.ofo_queue += 1;
        self.condense(cx, &mut skb);
        let new = RxSeg { skb, seq: seg.seq, fin: seg.flags.contains(TcpFlags::FIN) };
        let nxt = self.rx.nxt;
        let mut ofo = self.rx.ofo.take().unwrap_or_else(|| Box::new(Ofo::new(nxt)));
        ofo.follow(nxt);
        if let Some(new) = self.trim_to_gap(cx, &mut ofo, new) {
            self.insert_ofo(cx, &mut ofo, new);
        }
        if self.neg.sack && ofo.note(seg.seq, seg.end_seq) {
            self.flush_compressed_ack();
        }
        self.rx.ofo = Some(ofo);
        if self.neg.sack {
            // Without SACK the window stays, so that duplicate ACKs look like ones.
            self.grow_window(cx, facts.len, facts.truesize);
        }
        if !self.rx.shut.dead {
            let space = self.rx.space.space;
            self.rcvbuf_grow(cx, space);
        }
        Ok(())
    }

    /// Small payloads move into the descriptor; their pages go home.
    fn condense(&mut self, cx: &mut TcpCx<'_>, skb: &mut Skb) {
        let len = skb.len();
        if skb.nr_frags() == 0 || len as usize > linerate_skb::HEAD_CAPACITY / 2 || !skb.pull_to_head(len as usize) {
            return;
        }
        let saved = skb.truesize.saturating_sub(SKB_TRUESIZE + len);
        skb.truesize -= saved;
        self.uncharge_rx(cx, saved);
    }

    /// Cuts what is already there off `new`, and takes out what it covers. `None`: nothing new was left.
    fn trim_to_gap(&mut self, cx: &mut TcpCx<'_>, ofo: &mut Ofo, mut new: RxSeg) -> Option<RxSeg> {
        let key = ofo.key(new.seq);
        if let Some((&k, pred)) = ofo.map.range_mut(..=key).next_back() {
            let pred_end = pred.end();
            if pred.skb.is_empty() && pred_end == new.seq && !new.skb.is_empty() {
                // A FIN with data behind it: one of both lies; the data wins.
                if let Some(old) = ofo.map.remove(&k) {
                    self.drop_rx(cx, old.skb, DropReason::TcpOfoMerge);
                }
            } else if new.end().le(pred_end) {
                pred.fin |= new.fin && new.end() == pred_end;
                cx.mib.ofo_merge += 1;
                self.dsack_set(cx, new.seq, new.end());
                self.drop_rx(cx, new.skb, DropReason::TcpOfoMerge);
                return None;
            } else if pred_end.gt(new.seq) {
                self.dsack_set(cx, new.seq, pred_end);
                new.skb.pull(pred_end - new.seq);
                new.seq = pred_end;
            }
        }
        self.swallow_covered(cx, ofo, &mut new);
        // Nothing is left between its neighbours, or it was a FIN in front of data.
        if (new.skb.is_empty() && !new.fin) || ofo.map.contains_key(&ofo.key(new.seq)) {
            cx.mib.ofo_merge += 1;
            self.drop_rx(cx, new.skb, DropReason::TcpOfoMerge);
            return None;
        }
        Some(new)
    }

    /// Takes out what `new` covers and cuts its tail where the next segment begins.
    fn swallow_covered(&mut self, cx: &mut TcpCx<'_>, ofo: &mut Ofo, new: &mut RxSeg) {
        let key = ofo.key(new.seq);
        while let Some((&k, next)) = ofo.map.range(key..).next() {
            let (start, end) = (next.seq, next.end());
            if start.ge(new.end()) {
                break;
            }
            if end.gt(new.end()) {
                self.dsack_extend(cx, start, new.end());
                new.skb.trim(start - new.seq);
                new.fin = false;
                break;
            }
            if let Some(old) = ofo.map.remove(&k) {
                new.fin |= old.fin && end == new.end();
                self.dsack_extend(cx, start, end);
                cx.mib.ofo_merge += 1;
                self.drop_rx(cx, old.skb, DropReason::TcpOfoMerge);
            }
        }
    }

    /// Puts `new`, which overlaps nothing, into the queue, merged with its neighbours where they fit one skb.
    fn insert_ofo(&mut self, cx: &mut TcpCx<'_>, ofo: &mut Ofo, mut new: RxSeg) {
        let key = ofo.key(new.seq);
        if let Some((_, pred)) = ofo.map.range_mut(..key).next_back()
            && let Some(saved) = try_coalesce(pred, &mut new)
        {
            cx.mib.rcv_coalesce += 1;
            self.uncharge_rx(cx, saved);
            cx.skbs.free(new.skb, cx.pool);
            return;
        }
        let next_key = ofo.key(new.end());
        if !new.skb.is_empty()
            && let Some(mut next) = ofo.map.remove(&next_key)
        {
            match try_coalesce(&mut new, &mut next) {
                Some(saved) => {
                    cx.mib.rcv_coalesce += 1;
                    self.uncharge_rx(cx, saved);
                    cx.skbs.free(next.skb, cx.pool);
                }
                None => {
                    ofo.map.insert(next_key, next);
                }
            }
        }
        ofo.map.insert(key, new);
    }

    /// Moves what has become in order into the receive queue (Linux `tcp_ofo_queue`, `tcp_sack_remove`).
    pub(super) fn drain_ofo(&mut self, cx: &mut TcpCx<'_>) {
        let Some(mut ofo) = self.rx.ofo.take() else { return };
        ofo.follow(self.rx.nxt);
        let mut fin = false;
        while let Some(first) = ofo.map.first_entry() {
            if first.get().seq.gt(self.rx.nxt) {
                break;
            }
            let mut seg = first.remove();
            let overlap = self.rx.nxt - seg.seq;
            if overlap > 0 {
                let dup_end = seg.end().min(self.rx.nxt);
                self.dsack_extend(cx, seg.seq, dup_end);
            }
            if overlap > seg.skb.len() || (overlap == seg.skb.len() && !seg.fin) {
                self.drop_rx(cx, seg.skb, DropReason::TcpOfoMerge);
                continue;
            }
            seg.skb.pull(overlap);
            seg.seq = self.rx.nxt;
            fin = seg.fin;
            self.take_in_order(cx, seg);
            if fin {
                break;
            }
        }
        ofo.forget_below(self.rx.nxt);
        if !ofo.is_empty() {
            self.rx.ofo = Some(ofo);
        }
        if fin {
            self.rx.nxt += 1;
            self.on_fin(cx);
        }
    }

    /// A segment of the out-of-order queue, already charged, is next.
    fn take_in_order(&mut self, cx: &mut TcpCx<'_>, mut seg: RxSeg) {
        let len = seg.skb.len();
        seg.fin = false;
        if len == 0 {
            self.free_rx(cx, seg.skb);
            return;
        }
        self.append_in_order(cx, seg);
        self.rx.nxt += len;
        self.rx.bytes_received += u64::from(len);
        self.notify(ev::READABLE);
    }

    /// Drops from the far end, an eighth of the buffer at a time, until there is room; the segment that needs it (at `seq`)
    /// is never worth less than what lies behind it (Linux `tcp_prune_ofo_queue`).
    pub(super) fn prune_ofo(&mut self, cx: &mut TcpCx<'_>, seq: Seq) -> bool {
        let Some(mut ofo) = self.rx.ofo.take() else { return false };
        let step = i64::from(self.rx.rcvbuf >> 3);
        let mut goal = step;
        let mut pruned = false;
        while let Some(last) = ofo.map.last_entry() {
            if seq.gt(last.get().seq) {
                break;
            }
            let seg = last.remove();
            goal -= i64::from(seg.skb.truesize);
            pruned = true;
            self.drop_rx(cx, seg.skb, DropReason::TcpOfoQueuePrune);
            if goal <= 0 {
                if self.can_ingest() && !cx.mem.under_pressure(self.tx.group) {
                    break;
                }
                goal = step;
            }
        }
        if pruned {
            cx.mib.ofo_pruned += 1;
            ofo.reset_sacks();
        }
        if !ofo.is_empty() {
            self.rx.ofo = Some(ofo);
        }
        pruned
    }

    /// Lets go of everything out of order, because the stack has no memory left to receive with: what fills the gap could
    /// never come in. The peer sends it again (RFC 2018 section 8 allows a receiver to renege). True if there was any.
    pub fn shed_ofo(&mut self, cx: &mut TcpCx<'_>) -> bool {
        let any = self.rx.ofo.is_some();
        if any {
            cx.mib.ofo_pruned += 1;
            self.purge_ofo(cx, Some(DropReason::TcpOfoQueuePrune));
        }
        any
    }

    /// Forgets everything out of order; `None` counts it as merged away by the end of the stream.
    pub(crate) fn purge_ofo(&mut self, cx: &mut TcpCx<'_>, reason: Option<DropReason>) {
        let Some(mut ofo) = self.rx.ofo.take() else { return };
        while let Some((_, seg)) = ofo.map.pop_first() {
            self.drop_rx(cx, seg.skb, reason.unwrap_or(DropReason::TcpOfoMerge));
        }
    }
}
