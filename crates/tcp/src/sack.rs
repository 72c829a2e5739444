//! Selective acknowledgements into the scoreboard (RFC 2018, RFC 2883), for blocks that may be lies.
//!
//! The scoreboard is the retransmit queue itself: a SACKed segment carries a tag. A block that covers part of a
//! super-packet cuts it at MSS boundaries; neighbours that are both SACKed are merged at once, so the queue never holds
//! more SACKed segments than holes, and a block costs a bisection, the segments that it newly covers, and one step per
//! hole that it spans. A window of one-byte segments is linear over its life, not quadratic, and needs no cache of the
//! last ACK's blocks.
//!
//! A block is believed when it lies within `snd_una..snd_nxt`; a duplicate SACK (below the ACK, or inside the second
//! block) may also lie below, down to where the current episode began. Duplicates drive undo and RACK's reordering
//! window. SACKed data stays in the queue: the peer may renege, which is found out at the head of the queue.

use linerate_base::Seq;
use linerate_wire::SackBlocks;

use crate::ack::{AckCx, fact};
use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::tx::{Tx, flag};
use crate::txq::{TxSeg, tag};

impl Conn {
    /// Takes the blocks of one ACK into the scoreboard.
    pub(crate) fn sacktag(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx, blocks: &SackBlocks) {
        if self.tx.sacked_out == 0 {
            self.tx.fl.highest_sack = self.tx.snd_una;
        }
        let dsack = self.check_dsack(cx, a, blocks);
        let floor = self.tx.max_window;
        if a.ack.lt(a.prior_una - floor) || self.tx.packets_out == 0 {
            return;
        }
        let mut reord = self.tx.snd_nxt;
        for (start, end, dup) in in_order(blocks, dsack) {
            if !self.block_valid(dup, start, end) {
                self.count_invalid(cx, dup, start, end);
                continue;
            }
            if end.gt(a.prior_una) && end.gt(self.tx.snd_una) {
                self.tag_range(cx, a, start.max(self.tx.snd_una), end, dup, &mut reord);
            }
        }
        let loss = self.tx.cc.ca_state == linerate_cong::CaState::Loss;
        if !loss || self.tx.fl.undo_marker.is_some() {
            self.check_sack_reordering(cx, reord, false);
        }
    }

    /// Is the first block a duplicate report (RFC 2883 section 4)? Counts it and what it proves superfluous.
    fn check_dsack(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx, blocks: &SackBlocks) -> bool {
        let list = blocks.as_slice();
        let Some(&(start, end)) = list.first() else { return false };
        if start.lt(a.ack) {
            cx.mib.dsack_recv += 1;
        } else if list.get(1).is_some_and(|&(s1, e1)| end.le(e1) && start.ge(s1)) {
            cx.mib.dsack_ofo_recv += 1;
        } else {
            return false;
        }
        let Some(segs) = self.dsack_seen(a, start, end) else {
            return false;
        };
        cx.mib.dsack_recv_segs += u64::from(segs);
        let marker = self.tx.fl.undo_marker;
        if self.tx.fl.undo_retrans > 0 && end.le(a.prior_una) && marker.is_some_and(|m| end.gt(m)) {
            self.tx.credit_undo(segs);
        }
        true
    }

    /// Wire segments that a duplicate report stands for; `None` when it is not credible.
    fn dsack_seen(&mut self, a: &mut AckCx, start: Seq, end: Seq) -> Option<u32> {
        if start.ge(end) || end - start > self.tx.max_window {
            return None;
        }
        let len = end - start;
        let mss = self.tx.cc.mss.max(1);
        let segs = len.div_ceil(mss);
        let tlp = len <= mss && self.tx.fl.tlp_high_seq == Some(end);
        if tlp {
            a.facts |= fact::DSACK_TLP;
        }
        self.tx.fl.dsack_dups = self.tx.fl.dsack_dups.wrapping_add(segs);
        // More duplicates than retransmissions: the network duplicates, that proves nothing.
        if self.tx.fl.dsack_dups > self.tx.total_retrans {
            return None;
        }
        if !tlp {
            self.tx.set_flag(flag::DSACK_SEEN, true);
        }
        a.facts |= fact::DSACKING_ACK;
        Some(segs)
    }

    /// Can the block be true?
    fn block_valid(&self, dsack: bool, start: Seq, end: Seq) -> bool {
        let tx = &self.tx;
        if end.gt(tx.snd_nxt) || start.ge(end) || start.ge(tx.snd_nxt) || end - start > (1 << 30) {
            return false;
        }
        if start.gt(tx.snd_una) {
            return true;
        }
        let Some(marker) = tx.fl.undo_marker.filter(|_| dsack) else { return false };
        if end.gt(tx.snd_una) {
            return false;
        }
        if start.ge(marker) {
            return true;
        }
        end.gt(marker) && start.ge(end - tx.max_window)
    }

    fn count_invalid(&self, cx: &mut TcpCx<'_>, dsack: bool, start: Seq, end: Seq) {
        if dsack {
            match self.tx.fl.undo_marker {
                None => cx.mib.dsack_ignored_no_undo += 1,
                Some(_) => cx.mib.dsack_ignored_old += 1,
            }
        } else if !(end.le(self.tx.snd_una) && start.lt(end)) {
            // Wholly acknowledged blocks are merely late.
            cx.mib.sack_discard += 1;
        }
    }

    /// Tags what `[start, end)` covers.
    fn tag_range(&mut self, cx: &mut TcpCx<'_>, a: &mut AckCx, start: Seq, end: Seq, dup: bool, reord: &mut Seq) {
        let mut pos = self.tx.fl.q.find(start);
        while pos < self.tx.fl.q.sent() {
            let Some(seg) = self.tx.fl.q.get(pos).copied() else { return };
            if seg.seq.ge(end) {
                return;
            }
            if seg.has(tag::SACKED) {
                if dup {
                    self.tag_dup(&seg, reord);
                }
                pos += 1;
                continue;
            }
            match self.fit_block(cx, pos, &seg, start, end) {
                Some(true) => {}
                Some(false) => {
                    pos += 1;
                    continue;
                }
                None => return,
            }
            self.tag_one(a, pos, dup, reord);
            pos = self.merge_sacked(cx, pos) + 1;
        }
    }

    /// Cuts the segment at `pos` to the part inside the block, in whole wire segments. `Some(false)`: that part begins
    /// with the next segment; `None`: nothing of it can be told from the block.
    fn fit_block(&mut self, cx: &mut TcpCx<'_>, pos: usize, seg: &TxSeg, start: Seq, end: Seq) -> Option<bool> {
        let inside = start.le(seg.seq);
        if inside && seg.end_seq.le(end) {
            return Some(true);
        }
        if seg.segs <= 1 {
            // Part of one wire segment: keep looking only if the block goes on behind it.
            return if seg.end_seq.lt(end) { Some(false) } else { None };
        }
        let mss = u32::from(seg.mss.max(1));
        let mut len = if inside { end - seg.seq } else { (start - seg.seq).max(mss) };
        if inside && len < mss {
            return None;
        }
        if len > mss {
            let whole = len - len % mss;
            len = if !inside && whole < len { whole + mss } else { whole };
        }
        if len >= seg.len() {
            return if inside { Some(true) } else { Some(false) };
        }
        if self.queue_too_large() || !self.split_seg(cx, pos, seg.seq + len, mss) {
            return None;
        }
        Some(inside)
    }

    /// A peer must not blow the queue up by cutting: twice the buffer is the end (and the RTO repairs without SACK).
    fn queue_too_large(&self) -> bool {
        self.tx.wmem_queued >> 1 > self.tx.sndbuf.saturating_add(2 * self.path.gso_max_size_bytes)
    }

    /// One segment is newly SACKed.
    fn tag_one(&mut self, a: &mut AckCx, pos: usize, dup: bool, reord: &mut Seq) {
        let Some(seg) = self.tx.fl.q.get(pos).copied() else { return };
        if dup {
            self.tag_dup(&seg, reord);
        }
        self.rack_advance(&seg, a.now);
        let tx = &mut self.tx;
        if seg.has(tag::RETRANS) {
            // Either copy: nothing of it is in flight any more.
            tx.retrans_out = tx.retrans_out.saturating_sub(seg.segs);
        }
        if !seg.has(tag::EVER_RETRANS) {
            if seg.seq.lt(tx.fl.highest_sack) {
                *reord = reord.min(seg.seq);
            }
            if seg.end_seq.le(tx.fl.high_seq) {
                a.facts |= fact::ORIG_SACK_ACKED;
            }
            a.sackt = Some((a.sackt.map_or(seg.tx_at, |t| t.0), seg.tx_at));
        }
        if seg.has(tag::LOST) {
            tx.lost_out = tx.lost_out.saturating_sub(seg.segs);
        }
        tx.sacked_out += seg.segs;
        tx.delivered = tx.delivered.wrapping_add(seg.segs);
        tx.rate_delivered(&mut a.rs, &seg);
        a.facts |= fact::DATA_SACKED;
        tx.fl.highest_sack = tx.fl.highest_sack.max(seg.end_seq);
        if let Some(s) = tx.fl.q.get_mut(pos) {
            s.tags &= !(tag::LOST | tag::RETRANS);
            s.tags |= tag::SACKED | tag::RATE_DONE;
        }
        tx.fl.q.ts_unlink_pos(pos);
    }

    /// A segment above `snd_una` was reported twice.
    fn tag_dup(&mut self, seg: &TxSeg, reord: &mut Seq) {
        if !seg.has(tag::EVER_RETRANS) {
            return;
        }
        let fl = &self.tx.fl;
        if fl.undo_retrans > 0 && fl.undo_marker.is_some_and(|m| seg.end_seq.gt(m)) {
            self.tx.credit_undo(seg.segs);
        }
        if seg.has(tag::SACKED) {
            *reord = reord.min(seg.seq);
        }
    }

    /// Merges a SACKed segment with SACKed neighbours. Returns the position where it is now.
    fn merge_sacked(&mut self, cx: &mut TcpCx<'_>, mut pos: usize) -> usize {
        let sacked = |c: &Self, p: usize| p < c.tx.fl.q.sent() && c.tx.fl.q.get(p).is_some_and(|s| s.has(tag::SACKED));
        if pos + 1 < self.tx.fl.q.sent() && sacked(self, pos + 1) {
            self.merge_pair(cx, pos);
        }
        if pos > 0 && sacked(self, pos - 1) {
            pos -= 1;
            self.merge_pair(cx, pos);
        }
        pos
    }

    fn merge_pair(&mut self, cx: &mut TcpCx<'_>, pos: usize) {
        let q = &mut self.tx.fl.q;
        let Some(segs) = q.get(pos + 1).map(|n| n.segs) else { return };
        q.merge_next(pos);
        if let Some(s) = q.get_mut(pos) {
            s.segs = s.segs.saturating_add(segs);
        }
        self.uncharge_seg(cx, 0);
        cx.mib.sack_merged += 1;
    }

    /// End of the highest SACKed segment: what lies below was overtaken.
    pub(crate) fn highest_sack_seq(&self) -> Seq {
        if self.tx.sacked_out == 0 { self.tx.snd_una } else { self.tx.fl.highest_sack.max(self.tx.snd_una) }
    }

    /// `low` was delivered although higher segments had been before: how far was it overtaken?
    pub(crate) fn check_sack_reordering(&mut self, cx: &mut TcpCx<'_>, low: Seq, by_ts: bool) {
        let fack = self.highest_sack_seq();
        if low.ge(fack) {
            return;
        }
        let mss = self.tx.cc.mss.max(1);
        let metric = fack - low;
        if metric > u32::from(self.tx.reordering).saturating_mul(mss) {
            let most = cx.cfg.max_reordering_segs.clamp(1, 0xffff);
            self.tx.reordering = metric.div_ceil(mss).min(most) as u16;
        }
        self.saw_reordering();
        if by_ts {
            cx.mib.ts_reorder += 1;
        } else {
            cx.mib.sack_reorder += 1;
        }
    }

    pub(crate) fn saw_reordering(&mut self) {
        self.tx.set_flag(flag::REORD_SEEN, true);
        self.tx.fl.reord_seen = self.tx.fl.reord_seen.wrapping_add(1);
    }
}

/// The blocks by where they begin, and whether each is the duplicate report, which is the first on the wire. On the wire the
/// latest comes first (RFC 2018 section 4): taken so, after an ACK that was lost, a lower block that is new would look as
/// if it had arrived after the higher one, and the path as if it reordered.
fn in_order(blocks: &SackBlocks, dsack: bool) -> impl Iterator<Item = (Seq, Seq, bool)> {
    let mut all = [(Seq(0), Seq(0), false); SackBlocks::MAX];
    let mut len = 0;
    for (slot, &(start, end)) in all.iter_mut().zip(blocks.as_slice()) {
        *slot = (start, end, dsack && len == 0);
        len += 1;
    }
    for i in 1..len {
        let mut at = i;
        while at > 0 && all[at].0.lt(all[at - 1].0) {
            all.swap(at, at - 1);
            at -= 1;
        }
    }
    all.into_iter().take(len)
}

impl Tx {
    /// Duplicates prove `segs` retransmissions of the episode superfluous.
    fn credit_undo(&mut self, segs: u32) {
        let left = i64::from(self.fl.undo_retrans) - i64::from(segs);
        self.fl.undo_retrans = left.max(0) as i32;
    }
}
