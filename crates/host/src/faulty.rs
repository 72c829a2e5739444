//! Faults around any device: loss, duplication, reordering, corruption and delay of the *wire frames* that cross it.
//!
//! ```text
//!   RxQueue -> [cut, sum] -> FaultyLine -> stack        stack -> [cuts, sums] -> FaultyLine -> TxQueue
//! ```
//! A super-packet is no wire frame: one loss would take forty-five of them. So received super-packets are cut and their
//! checksums finished before the plan sees them (software GRO merges what is left), and to the stack the device promises no
//! offload, so that what is to be sent comes as finished frames. A flipped bit is then found by whoever verifies, as on
//! a real wire.
//!
//! Delays are turned into deadlines of the receive half ([`RxQueue::next_deadline`]), the transmit half's too: a shard asks
//! only receive queues. A frame counts as transmitted when the line took it. What waits when the device ends goes home.
//!
//! Each direction has a plan and a seed of its own; the same frames in the same order meet the same faults. For tests and
//! for comparisons under loss, not for speed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_arch::Kernels;
use linerate_base::Instant;
use linerate_netdev::{
    FaultInjector, FaultPlan, FaultyLine, Features, Qstats, QueueCx, RxCx, RxQueue, TxCx, TxDone, TxQueue,
};
use linerate_offload::gso::{CsumMode, segment};
use linerate_offload::{OffloadCx, csum};
use linerate_skb::{HEAD_CAPACITY, Skb, SkbBatch, TxDoneToken};

/// A queue pair.
pub type QueuePair = (Box<dyn RxQueue + Send>, Box<dyn TxQueue + Send>);

/// Nothing waits on the way out.
const NEVER: u64 = u64::MAX;

/// Puts faults around a queue pair: `rx` meets what the stack receives, `tx` what it sends. The seeds of the two are made
/// from `seed`.
pub fn faulty(pair: QueuePair, rx: FaultPlan, tx: FaultPlan, seed: u64, kernels: Kernels) -> QueuePair {
    let (inner_rx, inner_tx) = pair;
    let next_out = Arc::new(AtomicU64::new(NEVER));
    // The stack cuts and sums, so that single frames arrive here.
    let features = *inner_tx.features();
    let Features { sg, hard_header_len, mtu, .. } = features;
    let features = Features { sg, hard_header_len, ..Features::plain(mtu) };
    let receive = FaultyRx {
        inner: inner_rx,
        line: FaultyLine::new(FaultInjector::new(rx, seed)),
        kernels,
        link_len: usize::from(features.hard_header_len),
        taken: SkbBatch::new(),
        frames: SkbBatch::new(),
        next_out: next_out.clone(),
        waiting: false,
    };
    let transmit = FaultyTx {
        inner: inner_tx,
        line: FaultyLine::new(FaultInjector::new(tx, seed ^ 0x9e37_79b9_7f4a_7c15)),
        features,
        due: SkbBatch::new(),
        done: Vec::new(),
        next_out,
    };
    (Box::new(receive), Box::new(transmit))
}

struct FaultyRx {
    inner: Box<dyn RxQueue + Send>,
    line: FaultyLine,
    kernels: Kernels,
    /// Bytes of the link header.
    link_len: usize,
    /// As the device gave them; empty between polls.
    taken: SkbBatch,
    /// Cut; empty between polls.
    frames: SkbBatch,
    /// When the other half has something to send, in nanoseconds.
    next_out: Arc<AtomicU64>,
    /// Frames that are due did not fit the budget.
    waiting: bool,
}

impl FaultyRx {
    fn frame(&mut self, cx: &mut RxCx<'_>, skb: Skb) {
        let mut ocx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &self.kernels, drops: cx.drops };
        let cut = finish(skb, self.link_len, &mut ocx, &mut self.frames);
        debug_assert!(cut || self.frames.is_empty());
        for frame in self.frames.drain(..) {
            self.line.rcv(cx, frame);
        }
    }
}

/// Cuts and sums; false (and counted) when that can not be done.
fn finish(mut skb: Skb, link_len: usize, cx: &mut OffloadCx<'_>, out: &mut SkbBatch) -> bool {
    let (tstamp, truesize) = (skb.tstamp, skb.truesize);
    let ended = if skb.is_gso() {
        cut(skb, link_len, cx, out)
    } else if csum::fill_partial(&mut skb, cx.kernels) {
        out.push(skb);
        Ok(())
    } else {
        Err((skb, linerate_base::DropReason::DevHdr))
    };
    if let Err((skb, reason)) = ended {
        cx.drops.count(reason);
        cx.skbs.free(skb, cx.pool);
        return false;
    }
    let share = truesize / out.len().max(1) as u32;
    for frame in out.iter_mut() {
        (frame.tstamp, frame.truesize) = (tstamp, share.max(linerate_skb::SKB_TRUESIZE));
    }
    true
}

/// Cuts behind the link header, which all frames get.
fn cut(
    mut skb: Skb,
    link_len: usize,
    cx: &mut OffloadCx<'_>,
    out: &mut SkbBatch,
) -> Result<(), (Skb, linerate_base::DropReason)> {
    let mut link = [0; HEAD_CAPACITY];
    let (Some(link), Some(from)) = (link.get_mut(..link_len), skb.head().get(..link_len)) else {
        return Err((skb, linerate_base::DropReason::SkbGsoSeg));
    };
    link.copy_from_slice(from);
    skb.pull_head(link_len);
    segment(skb, 0, cx, CsumMode::Fill, out)?;
    for frame in out.iter_mut() {
        let room = frame.make_headroom(link_len);
        let pushed = frame.push_head(link_len).map(|to| to.copy_from_slice(link));
        debug_assert!(room && pushed.is_some(), "headers of a frame fill its head");
    }
    Ok(())
}

impl RxQueue for FaultyRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let mut taken = std::mem::take(&mut self.taken);
        let more = self.inner.poll_rx(cx, budget, &mut taken) == budget;
        for skb in taken.drain(..) {
            self.frame(cx, skb);
        }
        self.taken = taken;
        let mut n = 0;
        while n < budget
            && let Some(skb) = self.line.pop_due(cx.now)
        {
            out.push(skb);
            n += 1;
        }
        self.waiting = more || self.line.next_due().is_some_and(|due| due <= cx.now);
        n
    }

    fn irq_enable(&mut self) -> bool {
        self.inner.irq_enable() || self.waiting
    }

    fn irq_disable(&mut self) {
        self.inner.irq_disable();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let out = self.next_out.load(Ordering::Relaxed);
        let out = (out != NEVER).then(|| Instant::from_nanos(out));
        [self.inner.next_deadline(), self.line.next_due(), out].into_iter().flatten().min()
    }

    fn qstats(&self) -> Qstats {
        self.inner.qstats()
    }
}

impl Drop for FaultyRx {
    fn drop(&mut self) {
        self.line.clear();
    }
}

struct FaultyTx {
    inner: Box<dyn TxQueue + Send>,
    line: FaultyLine,
    features: Features,
    /// Frames that are due and that the device did not take yet.
    due: SkbBatch,
    done: Vec<(TxDoneToken, u32)>,
    next_out: Arc<AtomicU64>,
}

impl FaultyTx {
    /// Hands over what is due.
    fn send(&mut self, cx: &mut QueueCx<'_>) {
        while let Some(skb) = self.line.pop_due(cx.now) {
            self.due.push(skb);
        }
        if !self.due.is_empty() && self.inner.xmit(cx, &mut self.due) > 0 {
            self.inner.kick(cx);
        }
        // A device without room is asked again in a millisecond.
        let again = (!self.due.is_empty()).then(|| cx.now + std::time::Duration::from_millis(1));
        let next = [self.line.next_due(), again].into_iter().flatten().min();
        self.next_out.store(next.map_or(NEVER, Instant::as_nanos), Ordering::Relaxed);
    }
}

impl TxQueue for FaultyTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let n = batch.len();
        for mut skb in batch.drain(..) {
            self.done.push((std::mem::take(&mut skb.tx_done), skb.truesize));
            self.line.rcv(cx, skb);
        }
        n
    }

    fn kick(&mut self, cx: &mut TxCx<'_>) {
        self.send(cx);
    }

    fn poll_tx(&mut self, cx: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        self.send(cx);
        // The device's own completions are of skbs that were reported here.
        let mut own = TxDone::new();
        self.inner.poll_tx(cx, &mut own);
        let n = self.done.len();
        for (token, bytes) in self.done.drain(..) {
            done.push(token, bytes);
        }
        n
    }

    fn features(&self) -> &Features {
        &self.features
    }

    fn qstats(&self) -> Qstats {
        self.inner.qstats()
    }
}

impl Drop for FaultyTx {
    fn drop(&mut self) {
        self.line.clear();
        self.due.drain(..).for_each(Skb::into_home);
    }
}
