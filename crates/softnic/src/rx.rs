//! The receive half: the ring, faults, the copying DMA, checksum verification and HW-GRO.
//!
//! ```text
//!   ring -> frame -> faults -> dma -> checksum -> merge -> ready -> out (at most the budget)
//! ```
//! A poll takes what was in the ring when it began, and stops early when the budget is filled; what the table of the
//! merger holds is flushed at the end of each poll, as a NAPI poll does. `ready` keeps what exceeds the budget.
//! A frame with a wrong checksum dies here with `TcpCsum` or `UdpCsum`; one that the device did not look at goes up as
//! `Csum::None`. Where no engine is on, frames may go to a merger above as they are
//! ([`poll_frames`](RxQueue::poll_frames)); that time is the merger's, not the hardware's. Memory: a frame for which no
//! descriptor or page is free is lost and counted (`rx_alloc_fail`).
//! `truesize` is the descriptor and the frame's bytes: pages are shared between frames.

use alloc::boxed::Box;
use alloc::sync::Arc;

use linerate_arch::Kernels;
use linerate_base::{DropReason, Instant};
use linerate_netdev::{FaultyLine, FrameSink, Qstats, RxCx, RxQueue, SMALL_BYTES, SmallPacket};
use linerate_offload::{Gro, OffloadCx, PaddedHead, Verdict, csum};
use linerate_skb::spsc::Consumer;
use linerate_skb::{Csum, Frag, Page, SKB_TRUESIZE, Skb, SkbBatch};

use crate::config::ETHERNET_HEADER_LEN;
use crate::irq::{Bell, Irq};
use crate::slot::{Assembled, Assembler, FIRST_HEAD, Slot, small_skb};
use crate::stats::{HwTime, Published};

/// Slots taken from the ring at a time.
const GROUP_SLOTS: usize = 32;

pub(crate) struct SoftRx {
    pub(crate) ring: Consumer<Slot>,
    pub(crate) irq: Arc<Irq>,
    /// Behind the ring, so that it rings after that has closed.
    pub(crate) bell: Bell,
    pub(crate) engine: Engine,
    pub(crate) time: HwTime,
}

#[inline]
fn frags_len(frags: &[Option<Frag>; 2]) -> u64 {
    let len = |f: &Option<Frag>| f.as_ref().map_or(0, |f| u64::from(f.len()));
    len(&frags[0]) + len(&frags[1])
}

/// What one poll handed to whoever merges above.
#[derive(Default)]
struct Handed {
    frames: usize,
    /// Of these without a descriptor.
    plain: u64,
    bytes: u64,
}

/// Everything behind the ring.
pub(crate) struct Engine {
    pub(crate) queue: u16,
    pub(crate) kernels: Kernels,
    pub(crate) rx_csum: bool,
    pub(crate) copies: bool,
    pub(crate) max_frags: usize,
    pub(crate) assembler: Assembler,
    pub(crate) line: Option<Box<FaultyLine>>,
    /// None: nothing is merged.
    pub(crate) gro: Option<Box<Gro>>,
    /// The page that the DMA is filling.
    pub(crate) page: Option<Page>,
    pub(crate) ready: SkbBatch,
    /// The link header of the frames that are being merged, on an Ethernet device.
    pub(crate) link: Option<[u8; ETHERNET_HEADER_LEN]>,
    pub(crate) stats: Arc<Published>,
}

impl Engine {
    fn held(&self) -> usize {
        self.gro.as_ref().map_or(0, |g| g.held())
    }

    #[inline]
    fn slot(&mut self, cx: &mut RxCx<'_>, mut slot: Slot) {
        if self.merge_slot(cx, &mut slot) || self.small_slot(cx, &slot) {
            return;
        }
        match self.assembler.take(slot, cx.skbs) {
            Assembled::No => {}
            Assembled::Frame(skb) if self.line.is_some() => {
                if let Some(line) = &mut self.line {
                    line.rcv(cx, skb);
                }
                self.take_due(cx);
            }
            Assembled::Frame(skb) => self.frame(cx, skb),
            Assembled::Lost => {
                self.stats.counters.rx_alloc_fail.add(1);
                cx.drops.count(DropReason::NoMem);
            }
        }
    }

    /// A small packet that nobody took from the ring becomes an skb, its payload in a page of this queue. False: another
    /// kind of slot.
    fn small_slot(&mut self, cx: &mut RxCx<'_>, slot: &Slot) -> bool {
        let Slot::Small { hash, len, l4, payload_len, bytes } = slot else { return false };
        let (len, payload_len) = (usize::from(*len), usize::from(*payload_len));
        let head_len = len.saturating_sub(payload_len);
        let made = small_skb(*hash, head_len, *l4, bytes, cx.skbs).and_then(|mut skb| {
            match self.copy_bytes(cx, &mut skb, bytes.get(head_len..len).unwrap_or_default()) {
                true => Some(skb),
                false => {
                    cx.skbs.free(skb, cx.pool);
                    None
                }
            }
        });
        match made {
            Some(skb) => self.frame(cx, skb),
            None => {
                self.stats.counters.rx_alloc_fail.add(1);
                cx.drops.count(DropReason::NoMem);
            }
        }
        true
    }

    /// Shows a small packet to who may take it. False: it was not taken, or is another kind of slot.
    #[inline]
    fn offer(&self, slot: &Slot, take: &mut dyn FnMut(&[u8; SMALL_BYTES], SmallPacket) -> bool) -> bool {
        let Slot::Small { hash, len, l4, payload_len, bytes } = slot else { return false };
        let packet = SmallPacket::new(*len, *l4, *payload_len, *hash);
        if !take(bytes, packet) {
            return false;
        }
        let c = &self.stats.counters;
        c.rx_skbs.add(1);
        c.rx_wire_pkts.add(1);
        c.rx_bytes.add(u64::from(*len));
        c.rx_csum_unnecessary.add(1);
        // It came in the slot, not by reference.
        c.rx_dma_copied_bytes.add(u64::from(*payload_len));
        true
    }

    /// The merger's short way: a whole frame that continues what was fed last costs no descriptor. False: nothing happened.
    #[inline]
    fn merge_slot(&mut self, cx: &mut RxCx<'_>, slot: &mut Slot) -> bool {
        let Some(gro) = &mut self.gro else { return false };
        let Slot::First { frags, meta, head_len, nr_frags, head } = slot else { return false };
        let head = PaddedHead { bytes: head, len: usize::from(*head_len) };
        let whole = usize::from(*nr_frags) <= frags.len() && head.len <= head.bytes.len();
        if self.line.is_some() || self.copies || meta.gso_size != 0 || !whole {
            return false;
        }
        let len = head.len as u64 + frags_len(frags);
        // Frames of one flow with another link header are not one packet.
        let mut behind = [0; FIRST_HEAD];
        let head = match &self.link {
            None => head,
            Some(link) => match head.bytes.strip_prefix(link) {
                Some(packet) if head.len >= link.len() => {
                    behind[..packet.len()].copy_from_slice(packet);
                    PaddedHead { bytes: &behind, len: head.len - link.len() }
                }
                _ => return false,
            },
        };
        let ocx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &self.kernels, drops: cx.drops };
        if !gro.merge_next_frame(&ocx, head, frags, meta.csum_good, &mut self.ready) {
            return false;
        }
        let c = &self.stats.counters;
        c.rx_wire_pkts.add(1);
        c.rx_bytes.add(len);
        let summed = if self.rx_csum || meta.csum_good { &c.rx_csum_unnecessary } else { &c.rx_csum_none };
        summed.add(1);
        true
    }

    /// Is there nothing for the device to do with a frame but to hand it over?
    fn is_plain(&self) -> bool {
        let idle = self.gro.is_none() && self.line.is_none() && !self.copies && !self.rx_csum;
        idle && self.link.is_none() && self.ready.is_empty()
    }

    /// As [`slot`](Self::slot) for frames that somebody above merges.
    #[inline]
    fn slot_to(
        &mut self,
        cx: &mut RxCx<'_>,
        mut slot: Slot,
        sink: &mut dyn FrameSink,
        out: &mut SkbBatch,
        sum: &mut Handed,
    ) {
        if let Slot::First { frags, meta, head_len, nr_frags, head } = &mut slot
            && meta.gso_size == 0
            && !meta.csum_good
            && usize::from(*nr_frags) <= frags.len()
            && usize::from(*head_len) <= head.len()
        {
            let len = usize::from(*head_len) as u64 + frags_len(frags);
            if sink.merge(cx, head, usize::from(*head_len), frags, out) {
                sum.frames += 1;
                sum.plain += 1;
                sum.bytes += len;
                return;
            }
        }
        match self.assembler.take(slot, cx.skbs) {
            Assembled::No => {}
            Assembled::Frame(mut skb) => {
                let segs = u64::from(skb.wire_pkts());
                self.stats.counters.rx_wire_pkts.add(segs);
                self.describe(cx, &mut skb);
                // Nothing is verified here, only counted.
                self.verify(&mut skb, segs);
                sum.frames += 1;
                sum.bytes += u64::from(skb.len()) + (segs - 1) * skb.head_len() as u64;
                sink.rcv(cx, skb, out);
            }
            Assembled::Lost => {
                self.stats.counters.rx_alloc_fail.add(1);
                cx.drops.count(DropReason::NoMem);
            }
        }
    }

    fn take_due(&mut self, cx: &mut RxCx<'_>) {
        while let Some(skb) = self.line.as_mut().and_then(|line| line.pop_due(cx.now)) {
            self.frame(cx, skb);
        }
    }

    /// A frame has arrived.
    #[inline]
    fn frame(&mut self, cx: &mut RxCx<'_>, mut skb: Skb) {
        let segs = u64::from(skb.wire_pkts());
        self.stats.counters.rx_wire_pkts.add(segs);
        self.stats.counters.rx_bytes.add(u64::from(skb.len()) + (segs - 1) * skb.head_len() as u64);
        if self.copies && !self.copy_in(cx, &mut skb) {
            self.stats.counters.rx_alloc_fail.add(segs);
            cx.drops.count(DropReason::NoMem);
            return cx.skbs.free(skb, cx.pool);
        }
        self.pull_link(cx, &mut skb);
        self.describe(cx, &mut skb);
        if !self.verify(&mut skb, segs) {
            let udp = skb.head().get(if skb.ip_version == 6 { 6 } else { 9 }) == Some(&17);
            cx.drops.count(if udp { DropReason::UdpCsum } else { DropReason::TcpCsum });
            return cx.skbs.free(skb, cx.pool);
        }
        match &mut self.gro {
            None => self.ready.push(skb),
            Some(gro) => {
                let mut ocx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &self.kernels, drops: cx.drops };
                gro.receive(&mut ocx, skb, &mut self.ready);
            }
        }
    }

    /// Takes the link header off for the engines, which begin at the IP header; [`deliver`](Self::deliver) puts it back. What is
    /// being merged under another one is complete.
    #[inline]
    fn pull_link(&mut self, cx: &mut RxCx<'_>, skb: &mut Skb) {
        let Some(link) = self.link else { return };
        if !skb.head().starts_with(&link) {
            self.flush(cx);
            self.link = skb.head().first_chunk().copied().or(Some(link));
        }
        let pulled = skb.pull_head(ETHERNET_HEADER_LEN);
        debug_assert!(pulled, "the sender refuses frames that are shorter");
    }

    /// What the device says of a frame.
    #[inline]
    fn describe(&self, cx: &RxCx<'_>, skb: &mut Skb) {
        skb.ip_version = skb.head().first().map_or(0, |b| b >> 4);
        skb.queue = self.queue;
        skb.tstamp = cx.now;
        skb.truesize = SKB_TRUESIZE.saturating_add(skb.data_len());
    }

    /// The checksum engine; false when the checksum is wrong.
    #[inline]
    fn verify(&mut self, skb: &mut Skb, segs: u64) -> bool {
        let verdict = match skb.csum {
            // Uncut: the sender left it to the device, and no wire was in between.
            Csum::Unnecessary => Verdict::Good,
            _ if !self.rx_csum => Verdict::NotChecked,
            _ => csum::check_l4(skb, &self.kernels),
        };
        match verdict {
            Verdict::Good => self.stats.counters.rx_csum_unnecessary.add(segs),
            Verdict::NotChecked => self.stats.counters.rx_csum_none.add(segs),
            Verdict::Bad => self.stats.counters.rx_csum_bad.add(segs),
        }
        verdict != Verdict::Bad
    }

    /// The DMA: payload goes into pages of this queue, the sender's references end.
    fn copy_in(&mut self, cx: &mut RxCx<'_>, skb: &mut Skb) -> bool {
        skb.set_max_frags(self.max_frags.max(skb.nr_frags() + 1).max(cx.skbs.max_frags()));
        let mut ok = true;
        for _ in 0..skb.nr_frags() {
            let Some(f) = skb.pop_front_frag() else { break };
            ok = ok && self.copy_bytes(cx, skb, f.as_slice());
            cx.pool.recycle(f);
        }
        ok
    }

    /// Copies bytes into pages of this queue, behind what the skb has. False: no page, or too many fragments.
    fn copy_bytes(&mut self, cx: &mut RxCx<'_>, skb: &mut Skb, mut rest: &[u8]) -> bool {
        while !rest.is_empty() {
            if self.page.as_ref().is_none_or(|p| p.room() == 0) {
                self.page.take().into_iter().for_each(|p| cx.pool.recycle_page(p));
                self.page = cx.pool.alloc();
            }
            let Some(to) = self.page.as_mut().and_then(|p| p.append(&self.kernels, rest)) else { return false };
            let n = to.len() as usize;
            if skb.push_frag(to).is_err() {
                skb.set_max_frags(128);
                return false;
            }
            self.stats.counters.rx_dma_copied_bytes.add(n as u64);
            rest = rest.get(n..).unwrap_or_default();
        }
        true
    }

    /// The end of the poll batch.
    fn flush(&mut self, cx: &mut RxCx<'_>) {
        if let Some(gro) = self.gro.as_mut().filter(|g| g.held() > 0) {
            let mut ocx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &self.kernels, drops: cx.drops };
            gro.flush(&mut ocx, &mut self.ready);
        }
    }

    fn deliver(&mut self, budget: usize, out: &mut SkbBatch) -> usize {
        let n = self.ready.len().min(budget);
        if self.link.is_some() {
            for skb in self.ready.iter_mut().take(n) {
                let back = skb.unpull_head(ETHERNET_HEADER_LEN);
                debug_assert!(back, "the link header was pulled here");
            }
        }
        if self.gro.is_none() && n == self.ready.len() {
            self.stats.counters.rx_skbs.add(n as u64);
            if out.is_empty() {
                core::mem::swap(&mut self.ready, out);
            } else {
                out.append(&mut self.ready);
            }
            return n;
        }
        for skb in self.ready.drain(..n) {
            self.stats.counters.rx_skbs.add(1);
            if self.gro.is_some() && skb.gso_segs > 1 {
                self.stats.counters.rx_hw_gro_skbs.add(1);
                self.stats.counters.rx_hw_gro_wire_pkts.add(u64::from(skb.gso_segs));
            }
            out.push(skb);
        }
        n
    }
}

impl SoftRx {
    /// Rings a sender that waits for room in the ring, if there is enough. A poll comes here when it happens to see that the
    /// sender has stopped; who is about to sleep comes in any case, since only the fence in here makes sure.
    #[cold]
    fn restart_sender(&mut self) {
        let half = self.ring.capacity() / 2;
        if self.bell.irq().take_stopped(|| self.ring.len() <= half) {
            self.bell.ring();
        }
    }
}

impl RxQueue for SoftRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let mut slots = self.ring.len();
        let due = self.engine.line.as_ref().and_then(|l| l.next_due()).is_some_and(|at| at <= cx.now);
        if slots == 0 && !due && self.engine.ready.is_empty() {
            if self.bell.irq().is_stopped() {
                self.restart_sender();
            }
            return 0;
        }
        let timed = self.time.begin(slots);
        let Self { ring, engine, .. } = self;
        engine.take_due(cx);
        while slots > 0 && engine.ready.len() + engine.held() <= budget {
            let n = ring.pop_batch(slots.min(GROUP_SLOTS), |slot| engine.slot(cx, slot));
            if n == 0 {
                break;
            }
            slots -= n;
        }
        engine.flush(cx);
        let n = engine.deliver(budget, out);
        if self.bell.irq().is_stopped() {
            self.restart_sender();
        }
        self.engine.stats.end(timed);
        n
    }

    fn poll_frames(
        &mut self,
        cx: &mut RxCx<'_>,
        budget: usize,
        sink: &mut dyn FrameSink,
        out: &mut SkbBatch,
    ) -> Option<usize> {
        if !self.engine.is_plain() {
            return None;
        }
        let mut slots = self.ring.len();
        let mut sum = Handed::default();
        if slots > 0 {
            let Self { ring, engine, .. } = self;
            while slots > 0 && sum.frames < budget {
                let group = slots.min(GROUP_SLOTS).min(budget - sum.frames);
                let n = ring.pop_batch(group, |slot| engine.slot_to(cx, slot, sink, out, &mut sum));
                if n == 0 {
                    break;
                }
                slots -= n;
            }
            let c = &engine.stats.counters;
            c.rx_wire_pkts.add(sum.plain);
            c.rx_csum_none.add(sum.plain);
            c.rx_bytes.add(sum.bytes);
            c.rx_skbs.add(sum.frames as u64);
        }
        if self.bell.irq().is_stopped() {
            self.restart_sender();
        }
        Some(sum.frames)
    }

    fn poll_small(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8; SMALL_BYTES], SmallPacket) -> bool,
    ) -> (usize, bool) {
        let Self { ring, engine, bell, time, .. } = self;
        let simple = engine.line.is_none() && engine.gro.is_none() && engine.ready.is_empty();
        if !simple || bell.irq().is_stopped() {
            return (0, true);
        }
        let waiting = ring.len();
        if waiting == 0 {
            return (0, false);
        }
        let timed = time.begin(1);
        let mut n = 0;
        while n < waiting.min(budget) && ring.pop_if(|slot| engine.offer(slot, take)) {
            n += 1;
        }
        engine.stats.end(timed);
        (n, n < waiting)
    }

    fn irq_enable(&mut self) -> bool {
        self.restart_sender();
        let (ring, engine) = (&self.ring, &self.engine);
        self.irq.enable(|| !ring.is_empty() || !engine.ready.is_empty())
    }

    fn irq_disable(&mut self) {
        self.irq.disable();
    }

    fn keeps_time(&self) -> bool {
        self.engine.line.is_some()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.engine.line.as_ref().and_then(|l| l.next_due())
    }

    fn qstats(&self) -> Qstats {
        self.engine.stats.counters.get()
    }
}

impl Drop for SoftRx {
    /// The device goes away with frames in it: their memory goes home, and nobody is left to count them.
    fn drop(&mut self) {
        self.engine.ready.drain(..).for_each(Skb::into_home);
        self.engine.assembler.clear();
        if let Some(line) = &mut self.engine.line {
            line.clear();
        }
    }
}
