//! The stack's end of a channel: a queue pair whose far side is a thread of the caller.
//!
//! The receive half takes what the sender made ready; packets were checked and copied there, so that a poll is a move of
//! one pointer per packet, and what died there is counted here, in its place in the order. The transmit half hands skbs over
//! as they are: an skb counts as transmitted when it is in the ring, as on a TUN, and its pages come home when the caller drops it.
//!
//! Two limits stop the transmit half, packets and bytes; a packet longer than all bytes goes when nothing waits. It goes on when the
//! receiver has taken half of what stopped it, so that neither side is woken for every packet.
//! Invariant: the far side's waker is called only after its wait was announced, and after what it waits for was published.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use linerate_base::DropReason;
use linerate_host::packet::{self, Shape};
use linerate_netdev::{Features, Qstats, RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_skb::spsc::{Consumer, Producer};
use linerate_skb::{Skb, SkbBatch, TxDoneToken};
use linerate_stack::remote::{WaitFlag, WakerRx};

use super::Shared;
use super::caller::{Packet, Pushed};

/// Entries looked at for each skb of budget, at most: those that died before cost little and are bounded, too.
const ENTRIES_PER_SKB: usize = 2;

/// Tells the caller's end that waits, also when this end goes.
struct Bell {
    shared: Arc<Shared>,
    wait: fn(&Shared) -> &WaitFlag,
    wakers: WakerRx,
}

impl Bell {
    /// After publishing: wakes who waits.
    fn ring(&mut self) {
        if (self.wait)(&self.shared).notify() {
            self.wakers.wake();
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
    }
}

pub(super) struct ChannelRx {
    ring: Consumer<Pushed>,
    /// Behind the ring, so that it rings when that has closed.
    bell: Bell,
    stats: Qstats,
}

impl ChannelRx {
    pub(super) fn new(ring: Consumer<Pushed>, shared: Arc<Shared>, wakers: WakerRx) -> Self {
        Self { ring, bell: Bell { shared, wait: |s| &s.wr_wait, wakers }, stats: Qstats::default() }
    }
}

impl RxQueue for ChannelRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let (mut delivered, mut taken) = (0, 0);
        while delivered < budget
            && taken < budget.saturating_mul(ENTRIES_PER_SKB)
            && let Some(pushed) = self.ring.pop()
        {
            taken += 1;
            match pushed {
                Pushed::Dropped(reason) => {
                    self.stats.rx_alloc_fail += u64::from(reason == DropReason::NoMem);
                    cx.drops.count(reason);
                }
                Pushed::Packet(packet) => {
                    let Some(mut skb) = packet.into_skb() else { continue };
                    skb.tstamp = cx.now;
                    packet::count_rx(&mut self.stats, &skb);
                    out.push(skb);
                    delivered += 1;
                }
            }
        }
        if taken > 0 && self.ring.len() <= self.ring.capacity() / 2 {
            self.bell.ring();
        }
        delivered
    }

    fn irq_enable(&mut self) -> bool {
        self.bell.wakers.refresh();
        self.bell.shared.asleep.prepare();
        let work = !self.ring.is_empty();
        if work {
            self.bell.shared.asleep.cancel();
        }
        work
    }

    fn irq_disable(&mut self) {
        self.bell.shared.asleep.cancel();
    }

    fn qstats(&self) -> Qstats {
        self.stats
    }
}

pub(super) struct ChannelTx {
    ring: Producer<Packet>,
    /// Behind the ring, so that it rings when that has closed.
    bell: Bell,
    features: Features,
    /// Bytes that may wait.
    limit_bytes: u64,
    /// Bytes handed over in all.
    pushed_bytes: u64,
    /// Of these, taken when last looked: at most what is.
    pulled_seen: u64,
    /// Completed, not reported yet.
    done: Vec<(TxDoneToken, u32)>,
    stats: Qstats,
}

impl ChannelTx {
    pub(super) fn new(
        ring: Producer<Packet>,
        shared: Arc<Shared>,
        wakers: WakerRx,
        shape: Shape,
        limit_bytes: u64,
    ) -> Self {
        let features = Features { by_ref: true, ..shape.features() };
        let bell = Bell { shared, wait: |s| &s.rd_wait, wakers };
        Self {
            ring,
            bell,
            features,
            limit_bytes,
            pushed_bytes: 0,
            pulled_seen: 0,
            done: Vec::new(),
            stats: Qstats::default(),
        }
    }

    fn has_room(&mut self, len: u32) -> bool {
        self.ring.room(1) > 0 && (self.fits(len) || self.fits_now(len))
    }
    fn fits(&self, len: u32) -> bool {
        let waiting = self.pushed_bytes.wrapping_sub(self.pulled_seen);
        waiting == 0 || waiting + u64::from(len) <= self.limit_bytes
    }
    fn fits_now(&mut self, len: u32) -> bool {
        self.pulled_seen = self.bell.shared.pulled_bytes.load(Ordering::Acquire);
        self.fits(len)
    }

    /// Says that the stack waits, and looks once more. False: it does wait.
    #[cold]
    fn wait_for_room(&mut self, len: u32) -> bool {
        // The receiver must know of what it is to take.
        self.publish();
        let shared = self.bell.shared.clone();
        shared.room.prepare();
        let room = self.has_room(len) || self.ring.is_closed();
        if room {
            shared.room.cancel();
        } else {
            self.stats.tx_stop += 1;
        }
        room
    }

    fn publish(&mut self) {
        if self.ring.staged() == 0 {
            return;
        }
        self.bell.shared.pushed_bytes.store(self.pushed_bytes, Ordering::Release);
        self.ring.publish();
        self.stats.tx_kicks += 1;
        self.bell.ring();
    }

    fn drop_skb(&mut self, cx: &mut TxCx<'_>, skb: Skb, reason: DropReason) {
        self.done.push((skb.tx_done, skb.truesize));
        cx.drops.count(reason);
        cx.skbs.free(skb, cx.pool);
    }

    fn send(&mut self, mut skb: Skb) {
        packet::count_tx(&mut self.stats, &skb);
        self.done.push((std::mem::take(&mut skb.tx_done), skb.truesize));
        self.pushed_bytes = self.pushed_bytes.wrapping_add(u64::from(skb.len()));
        let staged = self.ring.stage(Packet::new(skb));
        debug_assert!(staged.is_ok(), "there was room");
    }
}

impl TxQueue for ChannelTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut taken = 0;
        while let Some(skb) = batch.front() {
            let len = skb.len();
            let mut reason = packet::refuse(skb, &self.features);
            if reason.is_none() && !self.has_room(len) && !self.wait_for_room(len) {
                break;
            }
            if reason.is_none() && self.ring.is_closed() {
                reason = Some(DropReason::Shutdown);
            }
            let Some(skb) = batch.pop_front() else { break };
            match reason {
                Some(reason) => self.drop_skb(cx, skb, reason),
                None => self.send(skb),
            }
            taken += 1;
        }
        taken
    }

    fn kick(&mut self, _cx: &mut TxCx<'_>) {
        self.publish();
    }

    fn poll_tx(&mut self, _cx: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        self.bell.wakers.refresh();
        let n = self.done.len();
        for (token, bytes) in self.done.drain(..) {
            done.push(token, bytes);
        }
        n
    }

    fn is_stopped(&self) -> bool {
        self.bell.shared.room.is_announced()
    }

    fn features(&self) -> &Features {
        &self.features
    }

    fn qstats(&self) -> Qstats {
        self.stats
    }
}
