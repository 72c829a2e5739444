//! Faults of a wire, applied to single frames on one way of it.
//!
//! The injector decides, this carries out: a lost frame is dropped with `WireLoss`, a second copy shares its pages, a
//! flipped bit is written into a page of the receiver (the sender's bytes are frozen, and others may be reading
//! them), a delayed frame waits here. Frames leave in the order of their due times; without reordering a frame is never due
//! before the one in front of it, so that jitter alone keeps the order.
//! Limits: `MAX_DELAYED` frames wait; beyond that the wire's queue is full (`WireQueue`). Not modelled: bandwidth.

use alloc::collections::VecDeque;

use linerate_base::{DropReason, Instant};
use linerate_skb::{HEAD_CAPACITY, Skb};

use crate::fault::FaultInjector;
use crate::queue::QueueCx;

/// Most frames that wait for their time.
const MAX_DELAYED: usize = 65_536;

/// One way of a wire, with faults. See the module head.
#[derive(Debug)]
pub struct FaultyLine {
    injector: FaultInjector,
    /// By due time; first come first where equal.
    delayed: VecDeque<(Instant, Skb)>,
    /// Due time of the last frame that kept its place.
    last_due: Instant,
}

impl FaultyLine {
    /// A wire on which nothing travels yet.
    pub fn new(injector: FaultInjector) -> Self {
        Self { injector, delayed: VecDeque::new(), last_due: Instant::ZERO }
    }
    /// When the next frame is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.delayed.front().map(|(due, _)| *due)
    }
    /// The next frame whose time has come.
    pub fn pop_due(&mut self, now: Instant) -> Option<Skb> {
        self.delayed.front().is_some_and(|(due, _)| *due <= now).then(|| self.delayed.pop_front())?.map(|(_, skb)| skb)
    }

    /// One frame goes through; what arrives is found with [`pop_due`](Self::pop_due).
    pub fn rcv(&mut self, cx: &mut QueueCx<'_>, mut skb: Skb) {
        let fault = self.injector.decide(skb.len());
        if fault.lost {
            return discard(cx, skb, DropReason::WireLoss);
        }
        let twin = if fault.duplicated { twin_of(cx, &skb) } else { None };
        if let Some(bit) = fault.flip_bit
            && !flip(cx, &mut skb, bit)
        {
            return discard(cx, skb, DropReason::NoMem);
        }
        let mut due = cx.now + fault.delay;
        if !fault.overtaken {
            due = due.max(self.last_due);
            self.last_due = due;
        }
        for skb in [Some(skb), twin].into_iter().flatten() {
            if self.delayed.len() >= MAX_DELAYED {
                discard(cx, skb, DropReason::WireQueue);
                continue;
            }
            let at = self.delayed.partition_point(|(d, _)| *d <= due);
            self.delayed.insert(at, (due, skb));
        }
    }

    /// All frames that still wait die with the wire.
    pub fn clear(&mut self) {
        self.delayed.drain(..).for_each(|(_, skb)| skb.into_home());
    }
}

fn discard(cx: &mut QueueCx<'_>, skb: Skb, reason: DropReason) {
    cx.drops.count(reason);
    cx.skbs.free(skb, cx.pool);
}

fn twin_of(cx: &mut QueueCx<'_>, skb: &Skb) -> Option<Skb> {
    let mut twin = cx.skbs.alloc()?;
    twin.set_max_frags(skb.max_frags());
    twin.reset_head(HEAD_CAPACITY - skb.head_len());
    let whole = twin.put_head_from(skb.head()) && twin.clone_frags_from(skb, 0, skb.data_len());
    if !whole {
        cx.skbs.free(twin, cx.pool);
        return None;
    }
    let at = twin.head_offset();
    twin.network_header = at;
    twin.transport_header = at + skb.transport_header.saturating_sub(skb.network_header);
    (twin.csum, twin.hash) = (skb.csum, skb.hash);
    Some(twin)
}

/// Flips one bit; false when there was no page for it (the frame is then damaged goods and must go).
fn flip(cx: &mut QueueCx<'_>, skb: &mut Skb, bit: u32) -> bool {
    let (at, mask) = (bit as usize / 8, 1u8 << (bit % 8));
    let head_len = skb.head_len();
    if let Some(byte) = skb.head_mut().get_mut(at) {
        *byte ^= mask;
        return true;
    }
    let Some(mut page) = cx.pool.alloc() else { return false };
    let mut off = at - head_len;
    skb.set_max_frags(128);
    let mut ok = true;
    // Each fragment goes round once, the damaged one as three: before, the byte, after.
    for _ in 0..skb.nr_frags() {
        let Some(f) = skb.pop_front_frag() else { break };
        let len = f.len() as usize;
        if off < len && ok {
            let old = f.as_slice().get(off).copied().unwrap_or(0);
            let byte = page.fill(1, |b| {
                b.fill(old ^ mask);
                b.len()
            });
            let (before, after) = (f.slice(0, off as u32), f.slice(off as u32 + 1, u32::MAX));
            let parts = [Some(before), byte, Some(after)];
            ok = parts.into_iter().flatten().all(|p| skb.push_frag(p).is_ok());
            cx.pool.recycle(f);
            off = usize::MAX;
        } else {
            ok &= skb.push_frag(f).is_ok();
            off = off.saturating_sub(if off == usize::MAX { 0 } else { len });
        }
    }
    cx.pool.recycle_page(page);
    ok
}
