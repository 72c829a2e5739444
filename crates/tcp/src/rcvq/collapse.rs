//! Collapse: many skbs that waste memory become few that do not (Linux `tcp_collapse`).
//!
//! Runs only when the buffer is over its limit. Neighbouring segments whose truesize is more than twice their payload are
//! copied into dense pages (the shard's shared page, so that a short run does not pin a page of its own); what is well
//! packed is left alone, and so is everything when no page is to be had. The copy is the price of a hostile or unlucky
//! segmentation, never of ordinary traffic. Sequence numbers, FIN marks and order are kept; charges fall by what was
//! saved. It does not merge across gaps, and it never grows a charge.

use alloc::vec::Vec;

use linerate_skb::{Frag, SKB_TRUESIZE, Skb};

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::rx::RxSeg;

/// Copies what fits of `bytes` into the shard's shared page; `None` when there is no page.
pub(super) fn append_to_page(cx: &mut TcpCx<'_>, bytes: &[u8]) -> Option<Frag> {
    if cx.page.as_ref().is_none_or(|p| p.room() == 0) {
        if let Some(full) = cx.page.take() {
            cx.pool.recycle_page(full);
        }
        *cx.page = cx.pool.alloc();
    }
    cx.page.as_mut()?.append(&cx.kernels, bytes)
}

/// Copies all bytes of `from` behind those of `to`. False (and `to` has the bytes that fitted; its length tells) when
/// pages or fragments ran out.
fn copy_payload(cx: &mut TcpCx<'_>, to: &mut Skb, from: &Skb) -> bool {
    for slice in from.slices() {
        let mut rest = slice;
        while !rest.is_empty() {
            let Some(frag) = append_to_page(cx, rest) else { return false };
            let n = frag.len() as usize;
            if let Err(frag) = to.push_frag(frag) {
                cx.pool.recycle(frag);
                return false;
            }
            rest = rest.get(n..).unwrap_or_default();
        }
    }
    true
}

/// Worth copying: more than half of the memory holds no payload.
fn is_loose(seg: &RxSeg) -> bool {
    seg.skb.truesize / 2 > seg.skb.len() && !seg.skb.is_empty()
}

/// Least saving, in bytes, for which a lone segment is copied.
const LONE_GAIN: u32 = 256;

/// Worth copying although it stands alone. What was copied once is not: else every arrival would copy them all again.
fn is_fat(seg: &RxSeg) -> bool {
    seg.skb.truesize > seg.skb.len().saturating_add(SKB_TRUESIZE + LONE_GAIN)
}

/// Would collapsing save anything? Looks no further than `limit` bytes of truesize that can not be helped, because a peer
/// that sends nothing but lone bytes would make every look a long one.
fn is_worth<'a>(segs: impl Iterator<Item = &'a RxSeg>, limit: u32) -> bool {
    let mut hopeless = 0u32;
    let mut loose_end = None;
    for seg in segs {
        let loose = is_loose(seg);
        if loose && (loose_end == Some(seg.seq) || is_fat(seg)) {
            return true;
        }
        loose_end = loose.then(|| seg.end());
        hopeless = hopeless.saturating_add(seg.skb.truesize);
        if hopeless > limit {
            return false;
        }
    }
    false
}

impl Conn {
    /// Collapses the receive queue.
    pub(super) fn collapse_queue(&mut self, cx: &mut TcpCx<'_>) {
        if !is_worth(self.rx.queue.iter(), u32::MAX) {
            return;
        }
        let segs: Vec<RxSeg> = self.rx.queue.drain(..).collect();
        let packed = self.collapse(cx, segs);
        self.rx.queue.extend(packed);
    }

    /// Collapses the front of the out-of-order queue, as far as [`is_worth`] looks: the work of one arrival stays bounded.
    pub(super) fn collapse_ofo(&mut self, cx: &mut TcpCx<'_>) {
        let limit = self.rx.rcvbuf >> 3;
        if !self.rx.ofo.as_ref().is_some_and(|o| is_worth(o.segs(), limit)) {
            return;
        }
        let Some(mut ofo) = self.rx.ofo.take() else { return };
        let (mut segs, mut hopeless) = (Vec::new(), 0u32);
        while hopeless <= limit
            && let Some(seg) = ofo.take_first()
        {
            if !is_fat(&seg) {
                hopeless = hopeless.saturating_add(seg.skb.truesize);
            }
            segs.push(seg);
        }
        for seg in self.collapse(cx, segs) {
            ofo.put(seg);
        }
        self.rx.ofo = Some(ofo);
    }

    fn collapse(&mut self, cx: &mut TcpCx<'_>, segs: Vec<RxSeg>) -> Vec<RxSeg> {
        let mut out: Vec<RxSeg> = Vec::with_capacity(segs.len());
        // The last of `out` was made here and may take more.
        let mut open = false;
        let mut segs = segs.into_iter().peekable();
        while let Some(seg) = segs.next() {
            let follows = open && out.last().is_some_and(|o| o.end() == seg.seq && !o.fin);
            let leads = !seg.fin && segs.peek().is_some_and(|next| is_loose(next) && next.seq == seg.end());
            if !is_loose(&seg) || !(follows || leads || is_fat(&seg)) {
                out.push(seg);
                open = false;
                continue;
            }
            let left = if follows { self.pour(cx, out.last_mut(), seg) } else { Some(seg) };
            let Some(seg) = left else { continue };
            match self.start_dense(cx, &seg) {
                Some(dense) => {
                    out.push(dense);
                    open = true;
                    // The empty newcomer takes at least what its source held, or gives up and leaves it alone.
                    if let Some(seg) = self.pour(cx, out.last_mut(), seg) {
                        if let Some(dense) = out.pop() {
                            cx.skbs.free(dense.skb, cx.pool);
                        }
                        self.rx.rmem_alloc = self.rx.rmem_alloc.saturating_sub(SKB_TRUESIZE);
                        cx.mem.uncharge(self.tx.group, SKB_TRUESIZE);
                        out.push(seg);
                        open = false;
                    }
                }
                None => {
                    out.push(seg);
                    open = false;
                }
            }
        }
        out
    }

    /// An empty skb at `seg`'s place, charged for its descriptor.
    fn start_dense(&mut self, cx: &mut TcpCx<'_>, seg: &RxSeg) -> Option<RxSeg> {
        let mut skb = cx.skbs.alloc()?;
        skb.truesize = SKB_TRUESIZE;
        skb.tstamp = seg.skb.tstamp;
        self.rx.rmem_alloc = self.rx.rmem_alloc.saturating_add(SKB_TRUESIZE);
        cx.mem.force(self.tx.group, SKB_TRUESIZE);
        Some(RxSeg { skb, seq: seg.seq, fin: false })
    }

    /// Copies `seg` into `to` and frees it; gives it back, and `to` unchanged, when it does not fit.
    fn pour(&mut self, cx: &mut TcpCx<'_>, to: Option<&mut RxSeg>, seg: RxSeg) -> Option<RxSeg> {
        let Some(to) = to else { return Some(seg) };
        let before = to.skb.len();
        let len = seg.skb.len();
        if !copy_payload(cx, &mut to.skb, &seg.skb) {
            to.skb.trim(before);
            return Some(seg);
        }
        to.skb.truesize += len;
        to.fin = seg.fin;
        // The bytes are charged to the dense skb; the rest of the old charge is saved.
        debug_assert!(seg.skb.truesize >= len);
        let saved = seg.skb.truesize - len;
        self.uncharge_rx(cx, saved);
        cx.mib.rcv_collapsed += 1;
        cx.skbs.free(seg.skb, cx.pool);
        None
    }
}
