//! Polling: from the devices' queues to merged skbs, within a budget; completions and sleep.
//!
//! A turn begins with [`start_turn`] and then calls [`poll`] until it says that nothing is left or the turn's budget is
//! spent. Each call serves one queue with at most the *weight* (64) and hands its skbs out merged, so that they are
//! received while their headers are warm, and so that no queue starves another: the next call goes on with the next
//! queue in a fixed rotation that survives the turn. A queue that filled its weight is asked again after the others.
//!
//! ```text
//!   rotation: lo, dev 2 queue 0, dev 2 queue 1, dev 3 queue 0, ..., what sibling shards handed over (`steer`)
//!   poll -> RxQueue::poll_rx (<= weight) -> Gro::receive .. flush -> out
//! ```
//! GRO never holds an skb beyond the poll that brought it (a batch is the unit of merging): latency is bounded without a
//! timer. Sleeping: [`arm`] asks all queues for a wake-up and says when work arrived meanwhile, in which case the caller
//! polls on. What this does not do: timers, sockets, deciding when to sleep.

use linerate_arch::Kernels;
use linerate_netdev::{FRAME_HEAD, FrameSink, RxCx, TxCx, TxDone};
use linerate_offload::{Gro, OffloadCx, PaddedHead};
use linerate_skb::{Frag, Skb, SkbBatch};
use linerate_wire::pcapng::LinkType;

use crate::core_state::Core;
use crate::link::{LOOPBACK, QueuePair};
use crate::tap::Point;
use crate::{neigh, steer};

/// Where the rotation stands.
#[derive(Debug)]
pub(crate) struct NapiState {
    weight: usize,
    /// Position in the rotation: 0 is the loopback, then all queues of all devices, then the siblings.
    cursor: usize,
    /// Queues in a row that had less than their weight.
    drained: usize,
    /// Wake-ups are on.
    armed: bool,
    /// Reused between polls.
    scratch: SkbBatch,
}

impl NapiState {
    pub(crate) fn new(weight: usize) -> Self {
        Self { weight: weight.max(1), cursor: 0, drained: 0, armed: false, scratch: SkbBatch::new() }
    }
    /// Skbs that one queue may deliver before the next has its chance.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }
}

/// What one [`poll`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Poll {
    /// Skbs taken from a queue, before merging: they count against the budget.
    pub rx_skbs: usize,
    /// There may be more: call again. False: all queues were found empty.
    pub more: bool,
}

/// Begins a turn: wake-ups off, every queue gets its chance again.
#[inline]
pub fn start_turn(core: &mut Core) {
    core.links.napi.drained = 0;
    if core.links.napi.armed {
        disarm(core);
    }
}

fn disarm(core: &mut Core) {
    core.links.napi.armed = false;
    core.links.each_queue(|_, q| q.rx.irq_disable());
    if let Some(siblings) = &mut core.links.siblings {
        siblings.disarm();
    }
}

/// Polls the next queue that has something, for at most `budget` skbs, and appends what came of it to `out`. Each skb
/// knows its `ifindex` and `queue`.
pub fn poll(core: &mut Core, budget: usize, out: &mut SkbBatch) -> Poll {
    if budget == 0 {
        return Poll { rx_skbs: 0, more: true };
    }
    let queues = core.links.queue_pairs;
    let shared = core.links.siblings.is_some();
    let total = queues + 1 + usize::from(shared);
    while core.links.napi.drained < total {
        // A device that was taken away may leave it behind the end.
        let at = if core.links.napi.cursor < total { core.links.napi.cursor } else { 0 };
        let want = budget.min(core.links.napi.weight);
        let n = match at {
            0 => poll_loopback(core, want, out),
            _ if at <= queues => poll_queue(core, at - 1, want, out),
            _ => steer::take(core, want, out),
        };
        core.links.napi.cursor = if at + 1 < total { at + 1 } else { 0 };
        if n >= want {
            core.links.napi.drained = 0;
        } else {
            core.links.napi.drained += 1;
        }
        if n > 0 {
            if shared && at <= queues {
                steer::sift(core, out);
            }
            return Poll { rx_skbs: n, more: core.links.napi.drained < total };
        }
    }
    Poll { rx_skbs: 0, more: false }
}

/// Polls the loopback.
#[inline]
fn poll_loopback(core: &mut Core, want: usize, out: &mut SkbBatch) -> usize {
    let n = core.links.lo.poll(want, out);
    if core.links.tapped {
        let arrived = out.iter().skip(out.len() - n);
        core.taps.received(core.now, (LOOPBACK, 0, Point::Rx), LinkType::Raw, arrived);
    }
    n
}

/// Polls queue number `index` of all queues.
fn poll_queue(core: &mut Core, index: usize, want: usize, out: &mut SkbBatch) -> usize {
    let Core { links, mem, mibs, now, kernels, taps, .. } = core;
    let mut scratch = core::mem::take(&mut links.napi.scratch);
    let tapped = links.tapped;
    let mut skip = index;
    let mut n = 0;
    let mut arp_from = None;
    for dev in links.devices_mut() {
        if skip >= dev.queues.len() {
            skip -= dev.queues.len();
            continue;
        }
        let ifindex = dev.ifindex.0;
        let ether = &mut dev.ether;
        let QueuePair { rx, pool, gro, .. } = &mut dev.queues[skip];
        pool.reclaim();
        let mut cx = RxCx { now: *now, pool, skbs: &mut mem.skbs, drops: &mut mibs.drops };
        if let Some(gro) = gro.as_mut().filter(|_| ether.is_none() && !tapped) {
            let mut merger = Merger { gro, kernels, ifindex, queue: skip as u16 };
            if let Some(frames) = rx.poll_frames(&mut cx, want, &mut merger, out) {
                merger.flush(&mut cx, out);
                n = frames;
                break;
            }
        }
        // What is not to be merged goes where it is wanted.
        let batch = if gro.is_some() || ether.is_some() { &mut scratch } else { &mut *out };
        let before = batch.len();
        n = rx.poll_rx(&mut cx, want, batch);
        debug_assert_eq!(n, batch.len() - before, "a queue miscounted what it delivered");
        for skb in batch.iter_mut().rev().take(n) {
            skb.ifindex = ifindex;
            skb.queue = skip as u16;
        }
        if tapped {
            let link = if ether.is_some() { LinkType::Ethernet } else { LinkType::Raw };
            let arrived = batch.iter().skip(before);
            taps.received(*now, (dev.ifindex, skip as u16, Point::Rx), link, arrived);
        }
        if let Some(ether) = ether.as_mut().filter(|_| n > 0) {
            ether.receive(&mut cx, &mut scratch, out);
            arp_from = (!ether.arp.is_empty()).then_some(dev.ifindex);
            if gro.is_none() {
                out.append(&mut scratch);
            }
        }
        if let Some(gro) = gro.as_mut().filter(|_| n > 0) {
            let mut cx = OffloadCx { skbs: &mut mem.skbs, pool, kernels, drops: &mut mibs.drops };
            for skb in scratch.drain(..) {
                gro.receive(&mut cx, skb, out);
            }
            gro.flush(&mut cx, out);
        }
        break;
    }
    links.napi.scratch = scratch;
    if let Some(ifindex) = arp_from {
        neigh::arp::input(core, ifindex);
    }
    n
}

/// Software GRO as a device sees it that hands frames over without descriptors.
struct Merger<'a> {
    gro: &'a mut Gro,
    kernels: &'a Kernels,
    ifindex: u32,
    queue: u16,
}

impl Merger<'_> {
    fn flush(&mut self, cx: &mut RxCx<'_>, out: &mut SkbBatch) {
        let mut cx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: self.kernels, drops: cx.drops };
        self.gro.flush(&mut cx, out);
    }
}

impl FrameSink for Merger<'_> {
    #[inline]
    fn merge(
        &mut self,
        cx: &mut RxCx<'_>,
        head: &[u8; FRAME_HEAD],
        len: usize,
        frags: &mut [Option<Frag>; 2],
        out: &mut SkbBatch,
    ) -> bool {
        let head = PaddedHead { bytes: head, len };
        let cx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: self.kernels, drops: cx.drops };
        self.gro.merge_next_frame(&cx, head, frags, false, out)
    }

    fn rcv(&mut self, cx: &mut RxCx<'_>, mut skb: Skb, out: &mut SkbBatch) {
        skb.ifindex = self.ifindex;
        skb.queue = self.queue;
        let mut cx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: self.kernels, drops: cx.drops };
        self.gro.receive(&mut cx, skb, out);
    }
}

/// Collects completions of all transmit queues; returns the number of skbs.
#[inline]
pub fn reclaim(core: &mut Core, done: &mut TxDone) -> usize {
    let Core { links, mem, mibs, now, .. } = core;
    let mut n = links.lo.reclaim(done);
    if links.neigh.done.skbs() != 0 {
        links.neigh.done.drain().for_each(|(token, bytes)| done.push(token, bytes));
    }
    let mut cx = TxCx { now: *now, pool: &mut mem.tx_pool, skbs: &mut mem.skbs, drops: &mut mibs.drops };
    links.each_queue(|_, q| n += q.tx.poll_tx(&mut cx, done));
    n
}

/// Asks all queues for a wake-up before the caller sleeps. `true`: work arrived meanwhile, do not sleep (the next turn
/// disarms again).
pub fn arm(core: &mut Core) -> bool {
    core.links.napi.armed = true;
    let mut work = core.links.work_pending();
    core.links.each_queue(|_, q| work |= q.rx.irq_enable());
    if let Some(siblings) = &mut core.links.siblings {
        work |= siblings.arm();
    }
    work
}

#[cfg(test)]
mod tests;
