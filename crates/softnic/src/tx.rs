//! The transmit half: admission, the TSO and checksum engines, the ring.
//!
//! [`xmit`](TxQueue::xmit) takes an skb only when the ring has room for all slots that it can become, so that
//! [`kick`](TxQueue::kick), which makes the slots, never fails for room. What can not be sent ever (over the MTU, cut or
//! summed against the features, too many frames for the ring) is dropped with a reason and counts as completed.
//!
//! Uncut, a super-packet's references move into slots as they are. Cut, the TSO engine ([`Cutter`]) builds each frame's
//! header and slices the references; no descriptor is spent on a frame. Slots are published in groups that stay in the
//! L1 cache, and once at the end of the doorbell at the latest. Completions are due when the wire has taken the frames, not
//! when the receiver is done: TCP small queues pace by them.
//!
//! Frames that the stack cuts and sums itself need no descriptor: [`xmit_frames`](TxQueue::xmit_frames) puts them into slots
//! as they are made. Its time is not charged to the hardware: nearly all of it is the stack's cutting and summing.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linerate_arch::Kernels;
use linerate_base::DropReason;
use linerate_netdev::{Features, FrameFrags, FrameSource, Qstats, SMALL_BYTES, SmallPacket, TxCx, TxDone, TxQueue};
use linerate_offload::gso::Cutter;
use linerate_offload::{CsumMode, csum};
use linerate_skb::spsc::Producer;
use linerate_skb::{Csum, GsoType, HEAD_CAPACITY, Skb, SkbBatch, SkbFlags, TxDoneToken};

use crate::irq::{Bell, Irq};
use crate::slot::{FIRST_HEAD, FrameMeta, Slot, encode, encode_first, encode_padded, slots_of};
use crate::stats::{HwTime, Published};

/// Slots published together: 8 KiB, a quarter of a small L1.
const GROUP_SLOTS: usize = 64;

pub(crate) struct SoftTx {
    pub(crate) features: Features,
    /// Frames are built one by one.
    pub(crate) cut: bool,
    /// Small packets may cross in a slot: nobody has to sum, cut, merge or damage them.
    pub(crate) small: bool,
    pub(crate) kernels: Kernels,
    pub(crate) ring: Producer<Slot>,
    pub(crate) irq: Arc<Irq>,
    /// Behind the ring, so that it rings after that has closed.
    pub(crate) bell: Bell,
    /// There are slots that no doorbell was rung for.
    pub(crate) ring_bell: bool,
    /// Taken and not yet kicked, and the slots that they may need.
    pub(crate) pending: SkbBatch,
    pub(crate) reserved: usize,
    /// Fragments of the frame being made.
    pub(crate) frags: FrameFrags,
    pub(crate) done: Vec<(TxDoneToken, u32)>,
    pub(crate) stats: Arc<Published>,
    pub(crate) time: HwTime,
}

impl SoftTx {
    /// Why this skb can never be sent.
    fn refuse(&self, skb: &Skb) -> Option<DropReason> {
        let f = &self.features;
        let link = u32::from(f.hard_header_len);
        if skb.head_len() <= link as usize {
            return Some(DropReason::PktTooSmall);
        }
        if matches!(skb.csum, Csum::Partial { .. }) && !f.tx_csum {
            return Some(DropReason::DevHdr);
        }
        if !skb.is_gso() {
            return (skb.len() > f.mtu + link).then_some(DropReason::PktTooBig);
        }
        let can = match skb.gso_type {
            GsoType::TcpV4 => f.tso4,
            GsoType::TcpV6 => f.tso6,
            GsoType::UdpL4 => f.uso,
            GsoType::None => false,
        };
        let frame = (skb.head_len() as u32).saturating_add(skb.gso_size.min(skb.data_len()));
        let segs = skb.data_len().div_ceil(skb.gso_size);
        if !can || segs == 0 {
            Some(DropReason::DevHdr)
        } else if frame > f.mtu + link || skb.len() > f.gso_max_size + link {
            Some(DropReason::PktTooBig)
        } else if segs > f.gso_max_segs || skb.nr_frags() > 128 {
            Some(DropReason::SkbGsoSeg)
        } else {
            None
        }
    }

    /// Most slots that the skb can become.
    fn slots_for(&self, skb: &Skb) -> usize {
        if !self.cut || !skb.is_gso() {
            return slots_of(skb.head_len(), skb.nr_frags());
        }
        slots_for_frames(skb.data_len().div_ceil(skb.gso_size) as usize, skb)
    }

    fn has_room(&mut self, need: usize) -> bool {
        let want = self.reserved + need;
        self.ring.room(want) >= want
    }

    /// Says that the sender waits, and looks once more. False: it does wait.
    #[cold]
    fn wait_for_room(&mut self, need: usize) -> bool {
        self.irq.stop_tx();
        let room = self.has_room(need);
        if room {
            self.irq.restart_tx();
        } else {
            self.stats.counters.tx_stop.add(1);
        }
        room
    }

    fn complete(&mut self, skb: &Skb) {
        self.done.push((skb.tx_done, skb.truesize));
    }

    fn drop_skb(&mut self, cx: &mut TxCx<'_>, skb: Skb, reason: DropReason) {
        self.complete(&skb);
        cx.drops.count(reason);
        cx.skbs.free(skb, cx.pool);
    }

    /// Makes the slots of one skb.
    fn send(&mut self, cx: &mut TxCx<'_>, mut skb: Skb) {
        let segs = if skb.is_gso() { skb.data_len().div_ceil(skb.gso_size) } else { 1 };
        if self.cut && segs > 1 {
            return self.send_cut(cx, skb);
        }
        let header_bytes = u64::from(segs - 1) * skb.head_len() as u64;
        match skb.csum {
            Csum::Partial { .. } => {
                self.stats.counters.tx_csum_partial.add(u64::from(segs));
                if self.cut && !csum::fill_partial(&mut skb, &self.kernels) {
                    return self.drop_skb(cx, skb, DropReason::DevHdr);
                }
            }
            _ => self.stats.counters.tx_csum_none.add(u64::from(segs)),
        }
        let mut meta = FrameMeta {
            hash: skb.hash,
            l4: skb.transport_header.saturating_sub(skb.head_offset()).try_into().unwrap_or(0),
            csum_good: !self.cut && matches!(skb.csum, Csum::Partial { .. }),
            ..FrameMeta::default()
        };
        if segs > 1 {
            meta.gso_size = skb.gso_size;
            meta.gso_segs = segs as u16;
            meta.gso_type = skb.gso_type;
            meta.fixed_id = skb.flags.contains(SkbFlags::FIXED_ID);
        }
        self.stats.counters.tx_wire_pkts.add(u64::from(segs));
        self.stats.counters.tx_bytes.add(u64::from(skb.len()) + header_bytes);
        self.complete(&skb);
        if let Some(slot) = encode_first(&mut skb, meta) {
            stage(&mut self.ring, slot);
        } else {
            skb.drain_frags().for_each(|f| self.frags.push(f));
            encode(skb.head(), &mut self.frags, meta, |slot| stage(&mut self.ring, slot));
        }
        cx.skbs.free(skb, cx.pool);
    }

    /// Makes the slots of everything that was taken.
    fn send_pending(&mut self, cx: &mut TxCx<'_>) {
        let closed = self.ring.is_closed();
        while let Some(skb) = self.pending.pop_front() {
            if closed {
                self.drop_skb(cx, skb, DropReason::Shutdown);
                continue;
            }
            self.send(cx, skb);
        }
        self.reserved = 0;
        self.ring_bell = true;
    }

    /// The TSO engine.
    fn send_cut(&mut self, cx: &mut TxCx<'_>, mut skb: Skb) {
        // Cutting begins at the IP header; each frame gets the link header of the whole.
        let link_len = usize::from(self.features.hard_header_len);
        let mut framed = [0; HEAD_CAPACITY];
        if let (Some(to), Some(link)) = (framed.get_mut(..link_len), skb.head().get(..link_len)) {
            to.copy_from_slice(link);
        }
        skb.pull_head(link_len);
        let mut cutter = match Cutter::new(&skb, 0, CsumMode::Fill, &self.kernels) {
            Ok(cutter) => cutter,
            Err(reason) => return self.drop_skb(cx, skb, reason),
        };
        let (segs, header_len) = (u64::from(cutter.segs()), cutter.header_len());
        let l4 = (link_len + cutter.transport_offset()) as u8;
        let meta = FrameMeta { hash: skb.hash, l4, ..FrameMeta::default() };
        while cutter.next_frame(|f| self.frags.push(f)).is_some() {
            let stage = |s| stage(&mut self.ring, s);
            if link_len == 0 {
                encode_padded(cutter.header_padded(), header_len, &mut self.frags, meta, stage);
            } else {
                let whole = link_len + header_len;
                if let Some(to) = framed.get_mut(link_len..whole) {
                    to.copy_from_slice(cutter.header());
                }
                encode_padded(&framed, whole, &mut self.frags, meta, stage);
            }
        }
        drop(cutter);
        let header_len = link_len + header_len;
        match skb.csum {
            Csum::Partial { .. } => self.stats.counters.tx_csum_partial.add(segs),
            _ => self.stats.counters.tx_csum_none.add(segs),
        }
        self.stats.counters.tx_wire_pkts.add(segs);
        self.stats.counters.tx_bytes.add(segs * header_len as u64 + u64::from(skb.data_len()));
        self.stats.counters.tx_hw_gso_skbs.add(1);
        self.stats.counters.tx_hw_gso_wire_pkts.add(segs);
        self.complete(&skb);
        cx.skbs.free(skb, cx.pool);
    }
}

/// Most slots of `segs` frames cut from `skb`: a frame has two fragments in its first slot, and each further one begins a
/// fragment of the super-packet.
fn slots_for_frames(segs: usize, skb: &Skb) -> usize {
    segs * (1 + usize::from(skb.head_len() > FIRST_HEAD)) + skb.nr_frags()
}

/// Writes a slot into the ring; a group that is full is published.
#[inline]
fn stage(ring: &mut Producer<Slot>, slot: Slot) {
    let staged = ring.stage(slot);
    debug_assert!(staged.is_ok(), "admission reserves the room");
    if ring.staged() >= GROUP_SLOTS {
        ring.publish();
    }
}

impl TxQueue for SoftTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut taken = 0;
        while let Some(skb) = batch.front() {
            if let Some(reason) = self.refuse(skb) {
                let Some(skb) = batch.pop_front() else { break };
                self.drop_skb(cx, skb, reason);
                taken += 1;
                continue;
            }
            let need = self.slots_for(skb);
            if !self.has_room(need) && !self.wait_for_room(need) {
                if !self.ring.is_closed() {
                    break;
                }
                let Some(skb) = batch.pop_front() else { break };
                self.drop_skb(cx, skb, DropReason::Shutdown);
                taken += 1;
                continue;
            }
            let Some(skb) = batch.pop_front() else { break };
            self.reserved += need;
            self.pending.push(skb);
            self.stats.counters.tx_skbs.add(1);
            taken += 1;
        }
        taken
    }

    fn xmit_frames(&mut self, cx: &mut TxCx<'_>, skb: &Skb, segs: usize, frames: &mut dyn FrameSource) -> bool {
        let head_len = frames.header_len();
        let frame = (head_len as u32).saturating_add(skb.gso_size);
        let need = slots_for_frames(segs, skb);
        let has_link = self.features.hard_header_len > 0;
        if has_link
            || frame > self.features.mtu
            || skb.nr_frags() > 128
            || !self.has_room(need)
            || self.ring.is_closed()
        {
            return false;
        }
        self.send_pending(cx);
        let l4 = skb.transport_header.saturating_sub(skb.head_offset()).try_into().unwrap_or(0);
        let meta = FrameMeta { hash: skb.hash, l4, ..FrameMeta::default() };
        let mut given = 0;
        while let Some(header) = frames.next_frame(&mut self.frags) {
            encode_padded(header, head_len, &mut self.frags, meta, |s| stage(&mut self.ring, s));
            given += 1;
        }
        debug_assert!(given <= segs, "admission reserved room for {segs}");
        let c = &self.stats.counters;
        c.tx_skbs.add(given as u64);
        c.tx_csum_none.add(given as u64);
        c.tx_wire_pkts.add(given as u64);
        c.tx_bytes.add((given * head_len) as u64 + u64::from(skb.data_len()));
        self.complete(skb);
        true
    }

    fn kick(&mut self, cx: &mut TxCx<'_>) {
        if self.pending.is_empty() && !self.ring_bell {
            return;
        }
        let timed = self.time.begin(self.reserved);
        self.stats.counters.tx_kicks.add(1);
        self.send_pending(cx);
        self.ring.publish();
        self.ring_bell = false;
        self.bell.ring();
        self.stats.end(timed);
    }

    fn xmit_small(&mut self, make: &mut dyn FnMut(&mut [u8; SMALL_BYTES]) -> Option<SmallPacket>) -> bool {
        // What was taken before leaves before.
        if !self.small || !self.pending.is_empty() || self.ring_bell || self.ring.is_closed() {
            return false;
        }
        let timed = self.time.begin(1);
        let mut sent = 0;
        let empty = || Slot::Small { hash: 0, len: 0, l4: 0, payload_len: 0, bytes: [0; SMALL_BYTES] };
        let made = self.ring.stage_with(empty, |slot| {
            let Slot::Small { hash, len, l4, payload_len, bytes } = slot else { return false };
            let Some(packet) = make(bytes) else { return false };
            sent = packet.len();
            debug_assert!(usize::from(sent) <= SMALL_BYTES && packet.transport_header() < sent);
            (*hash, *len, *l4, *payload_len) = (packet.hash(), sent, packet.transport_header(), packet.payload_len());
            true
        });
        if made {
            self.ring.publish();
            self.bell.ring();
            let c = &self.stats.counters;
            c.tx_skbs.add(1);
            c.tx_kicks.add(1);
            c.tx_csum_partial.add(1);
            c.tx_wire_pkts.add(1);
            c.tx_bytes.add(u64::from(sent));
        }
        self.stats.end(timed);
        made
    }

    fn poll_tx(&mut self, _cx: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        let n = self.done.len();
        if n == 0 {
            return 0;
        }
        for (token, bytes) in self.done.drain(..) {
            done.push(token, bytes);
        }
        n
    }

    /// The far side rings when it has taken half of the ring.
    fn is_stopped(&self) -> bool {
        self.irq.is_stopped()
    }
    fn features(&self) -> &Features {
        &self.features
    }

    fn qstats(&self) -> Qstats {
        self.stats.counters.get()
    }
}

impl Drop for SoftTx {
    /// The device goes away: what was taken and not kicked goes home, and nobody is left to count it.
    fn drop(&mut self) {
        self.pending.drain(..).for_each(Skb::into_home);
    }
}
