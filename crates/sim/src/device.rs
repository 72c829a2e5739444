//! A simulated network device: one queue pair at one end of a [`Link`](crate::link::Link).
//!
//! ```text
//!   xmit -> tx ring -> kick: cut, sum -> bytes -> wire          taken pages go home on completion
//!   wire -> rx ring -> poll_rx: pages, head split, verify, merge -> skbs
//! ```
//! The offloads are the stack's own pure functions, switched on by [`Features`]. Whatever is switched off is refused: a
//! super-packet on a device without TSO, an unfinished checksum on one without checksum offload, a frame beyond the MTU
//! are violations and are noted in the link's checker. Bytes are copied at the wire, so both ends keep their own pages.
//!
//! Time: frames leave when the stack kicks, and are seen by `poll_rx` once they arrived; `coalesce` only delays the
//! *wake-up*. Completions are reported at once or when the last bit left ([`TxDoneAt`]); in the second case the transmit
//! ring is the sender's queue and pushes back on the qdisc. Rings are finite; memory can be made to fail, by chance or
//! in windows of time, and each frame lost here has a reason in the shard's drop counters and in the link's record.

use std::collections::VecDeque;
use std::time::Duration;

use linerate_arch::Kernels;
use linerate_base::{DropReason, Instant, Rng};
use linerate_netdev::{Features, Qstats, RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_offload::gso::{CsumMode, Cutter};
use linerate_offload::{Gro, GroConfig, OffloadCx, Verdict, csum};
use linerate_skb::{Csum, Page, Skb, SkbBatch};
use linerate_wire::ip::proto;
use linerate_wire::{IpRepr, TcpRepr};

use crate::link::{SharedLink, lock};
use crate::wire::Frame;

/// When the device lets go of what it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TxDoneAt {
    /// As soon as it is on the wire's queue: the bottleneck is elsewhere and drops.
    #[default]
    Taken,
    /// When its last bit has left: the device is the bottleneck and pushes back.
    Departed,
}

/// A device.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// What it can do.
    pub features: Features,
    /// Frames that wait for a poll at most.
    pub rx_ring: usize,
    /// Skbs that wait for completion at most.
    pub tx_ring: usize,
    /// See [`TxDoneAt`].
    pub tx_done: TxDoneAt,
    /// How long after a frame's arrival the stack is woken.
    pub coalesce: Duration,
    /// Probability that memory for a received frame is missing.
    pub rx_alloc_fail: f64,
    /// Times in which it is missing for sure.
    pub rx_starved: Vec<(Instant, Instant)>,
}

impl NicConfig {
    /// A device that does nothing for the stack.
    pub fn plain(mtu_bytes: u32) -> Self {
        Self {
            features: Features::plain(mtu_bytes),
            rx_ring: 4096,
            tx_ring: 1024,
            tx_done: TxDoneAt::Taken,
            coalesce: Duration::ZERO,
            rx_alloc_fail: 0.0,
            rx_starved: Vec::new(),
        }
    }
    /// A device with every offload.
    pub fn full(mtu_bytes: u32) -> Self {
        let mut nic = Self::plain(mtu_bytes);
        let f = &mut nic.features;
        (f.tx_csum, f.rx_csum, f.tso4, f.tso6, f.uso, f.gro_hw) = (true, true, true, true, true, true);
        nic
    }
}

/// The queue pair of `side`.
pub fn queues(link: &SharedLink, side: usize, cfg: NicConfig, seed: u64) -> (SimRx, SimTx) {
    lock(link).coalesce[side] = cfg.coalesce;
    let gro = cfg.features.gro_hw.then(|| {
        let max_frags = cfg.features.max_frags as usize;
        Gro::new(GroConfig { max_size: 65_536, max_frags, max_segs: u32::from(u16::MAX), udp: false, hw: true })
    });
    let rx = SimRx {
        link: SharedLink::clone(link),
        side,
        cfg: cfg.clone(),
        ring: VecDeque::new(),
        gro,
        rng: Rng::new(seed),
        kernels: Kernels::portable(),
        stats: Qstats::default(),
    };
    let tx = SimTx {
        link: SharedLink::clone(link),
        side,
        cfg,
        staged: VecDeque::new(),
        flight: VecDeque::new(),
        kernels: Kernels::portable(),
        stats: Qstats::default(),
    };
    (rx, tx)
}

/// The receiving half.
pub struct SimRx {
    link: SharedLink,
    side: usize,
    cfg: NicConfig,
    ring: VecDeque<Frame>,
    gro: Option<Gro>,
    rng: Rng,
    kernels: Kernels,
    stats: Qstats,
}

impl SimRx {
    /// Everything that arrived by now is in the ring, or was dropped because that is full.
    fn fill_ring(&mut self, cx: &mut RxCx<'_>) {
        let mut link = lock(&self.link);
        let from = 1 - self.side;
        while let Some(frame) = link.wires[from].take_arrived(cx.now) {
            if self.ring.len() >= self.cfg.rx_ring {
                self.stats.rx_hw_drop_overruns += 1;
                cx.drops.count(DropReason::FullRing);
                link.drop_at_nic(from, cx.now, frame, DropReason::FullRing);
            } else {
                self.ring.push_back(frame);
            }
        }
    }

    fn starved(&mut self, now: Instant) -> bool {
        let by_chance = self.cfg.rx_alloc_fail > 0.0 && self.rng.chance(self.cfg.rx_alloc_fail);
        by_chance || self.cfg.rx_starved.iter().any(|&(from, until)| (from..until).contains(&now))
    }

    /// The frame as an skb: headers in the head, payload in pages; `None` when memory is missing.
    fn build(&mut self, cx: &mut RxCx<'_>, page: &mut Option<Page>, bytes: &[u8]) -> Option<Skb> {
        let mut skb = cx.skbs.alloc()?;
        let (ip_version, l4, head_len) = split(bytes);
        let (head, mut payload) = bytes.split_at(head_len);
        if skb.tailroom() < head.len() {
            skb.reset_head(0);
        }
        let mut fits = skb.put_head_from(head);
        while fits && !payload.is_empty() {
            if page.as_ref().is_none_or(|p| p.room() == 0) {
                if let Some(used) = page.take() {
                    cx.pool.recycle_page(used);
                }
                *page = cx.pool.alloc();
            }
            let frag = page.as_mut().and_then(|p| p.append(&self.kernels, payload));
            fits = frag.is_some_and(|f| {
                payload = payload.split_at(f.len() as usize).1;
                skb.push_frag(f).is_ok()
            });
        }
        if !fits {
            cx.skbs.free(skb, cx.pool);
            return None;
        }
        let at = skb.head_offset();
        skb.ip_version = ip_version;
        skb.network_header = at;
        skb.transport_header = at + l4 as u16;
        skb.tstamp = cx.now;
        skb.gso_segs = 1;
        skb.charge_pages();
        Some(skb)
    }

    fn receive(&mut self, cx: &mut RxCx<'_>, page: &mut Option<Page>, frame: Frame, out: &mut SkbBatch) {
        let from = 1 - self.side;
        let skb = if self.starved(cx.now) { None } else { self.build(cx, page, &frame.bytes) };
        let Some(mut skb) = skb else {
            self.stats.rx_alloc_fail += 1;
            cx.drops.count(DropReason::NoMem);
            return lock(&self.link).drop_at_nic(from, cx.now, frame, DropReason::NoMem);
        };
        self.stats.rx_wire_pkts += 1;
        self.stats.rx_bytes += u64::from(skb.len());
        self.stats.rx_dma_copied_bytes += u64::from(skb.len());
        if self.cfg.features.rx_csum {
            match csum::check_l4(&mut skb, &self.kernels) {
                Verdict::Good => self.stats.rx_csum_unnecessary += 1,
                // A device hands damaged frames up unverified: the stack counts them under its own reason.
                Verdict::Bad => self.stats.rx_csum_bad += 1,
                Verdict::NotChecked => self.stats.rx_csum_none += 1,
            }
        } else {
            skb.csum = Csum::None;
            self.stats.rx_csum_none += 1;
        }
        lock(&self.link).deliver(from, cx.now, frame);
        match &mut self.gro {
            Some(gro) => {
                let mut ocx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &self.kernels, drops: cx.drops };
                gro.receive(&mut ocx, skb, out);
            }
            None => out.push(skb),
        }
    }
}

/// (IP version, offset of the transport header, bytes that belong into the head).
fn split(bytes: &[u8]) -> (u8, usize, usize) {
    let unknown = (0, 0, bytes.len().min(128));
    let Ok((ip, l4)) = IpRepr::parse(bytes) else { return unknown };
    let version = if ip.src.is_ipv4() { 4 } else { 6 };
    let head = match ip.proto {
        proto::TCP => bytes.get(l4..).and_then(|b| TcpRepr::parse(b).ok()).map(|(_, len)| l4 + len),
        proto::UDP => Some(l4 + 8),
        _ => None,
    };
    (version, l4, head.unwrap_or(128).min(bytes.len()))
}

impl RxQueue for SimRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        self.fill_ring(cx);
        let before = out.len();
        let mut page = None;
        // The budget counts skbs as they leave, so what the merger holds is counted with them.
        while out.len() - before + self.gro.as_ref().map_or(0, Gro::held) < budget {
            let Some(frame) = self.ring.pop_front() else { break };
            self.receive(cx, &mut page, frame, out);
        }
        if let Some(gro) = &mut self.gro {
            let mut ocx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &self.kernels, drops: cx.drops };
            gro.flush(&mut ocx, out);
        }
        if let Some(p) = page {
            cx.pool.recycle_page(p);
        }
        let got = out.len() - before;
        for skb in out.iter().skip(before).filter(|s| s.gso_segs > 1) {
            self.stats.rx_hw_gro_skbs += 1;
            self.stats.rx_hw_gro_wire_pkts += u64::from(skb.gso_segs);
        }
        self.stats.rx_skbs += got as u64;
        got
    }
    fn irq_enable(&mut self) -> bool {
        !self.ring.is_empty()
    }
    fn irq_disable(&mut self) {}
    fn next_deadline(&self) -> Option<Instant> {
        lock(&self.link).next_for(self.side)
    }
    fn qstats(&self) -> Qstats {
        self.stats
    }
}

/// The transmitting half.
pub struct SimTx {
    link: SharedLink,
    side: usize,
    cfg: NicConfig,
    /// Taken, not yet on the wire: waiting for the doorbell.
    staged: VecDeque<Skb>,
    /// On the wire, with the time of completion.
    flight: VecDeque<(Instant, Skb)>,
    kernels: Kernels,
    stats: Qstats,
}

impl SimTx {
    /// What of `skb` was not negotiated.
    fn misuse(&self, skb: &Skb) -> Option<&'static str> {
        let f = &self.cfg.features;
        let gso_ok = match skb.gso_type {
            linerate_skb::GsoType::UdpL4 => f.uso,
            _ => f.tso(skb.ip_version),
        };
        let cut = is_super(skb);
        let wrong = [
            (cut && !gso_ok, "a super-packet without TSO"),
            (!skb.is_gso() && skb.len() > f.mtu, "a frame beyond the MTU"),
            (matches!(skb.csum, Csum::Partial { .. }) && !f.tx_csum, "an unfinished checksum without checksum offload"),
            (skb.nr_frags() > f.max_frags as usize, "more fragments than the device takes"),
            (skb.nr_frags() > 0 && !f.sg, "fragments without scatter-gather"),
            (cut && skb.len() > f.gso_max_size, "a super-packet beyond gso_max_size"),
            (cut && skb.gso_segs > f.gso_max_segs, "a super-packet beyond gso_max_segs"),
            (
                skb.is_gso() && skb.gso_segs > 1 && skb.gso_segs != skb.data_len().div_ceil(skb.gso_size),
                "a wrong gso_segs",
            ),
        ];
        wrong.iter().find(|(is, _)| *is).map(|&(_, what)| what)
    }

    /// Puts `skb` on the wire, cut if it must be. Returns when its last bit has left.
    fn transmit(&mut self, cx: &mut TxCx<'_>, skb: &mut Skb) -> Instant {
        let mut link = lock(&self.link);
        if let Some(what) = self.misuse(skb) {
            let (side, len) = (self.side, skb.len());
            link.checker
                .violations
                .note(|| format!("{:?}: side {side} handed its device {what} ({len} bytes)", cx.now));
        }
        self.stats.tx_skbs += 1;
        if matches!(skb.csum, Csum::Partial { .. }) {
            self.stats.tx_csum_partial += 1;
        } else {
            self.stats.tx_csum_none += 1;
        }
        if is_super(skb) {
            let Ok(mut cutter) = Cutter::new(skb, 0, CsumMode::Fill, &self.kernels) else {
                cx.drops.count(DropReason::SkbGsoSeg);
                link.checker.violations.note(|| format!("{:?}: a super-packet that can not be cut", cx.now));
                return cx.now;
            };
            self.stats.tx_hw_gso_skbs += 1;
            self.stats.tx_hw_gso_wire_pkts += u64::from(cutter.segs());
            let mut departs = cx.now;
            let mut payload = Vec::new();
            while cutter.next_frame(|piece| payload.extend_from_slice(piece.as_slice())).is_some() {
                let mut bytes = link.wires[self.side].buffer();
                bytes.extend_from_slice(cutter.header());
                bytes.append(&mut payload);
                self.stats.tx_wire_pkts += 1;
                self.stats.tx_bytes += bytes.len() as u64;
                departs = link.send(self.side, cx.now, bytes);
            }
            return departs;
        }
        if !csum::fill_partial(skb, &self.kernels) {
            cx.drops.count(DropReason::DevHdr);
            link.checker.violations.note(|| format!("{:?}: checksum offsets outside of the head", cx.now));
            return cx.now;
        }
        let mut bytes = link.wires[self.side].buffer();
        for piece in skb.slices() {
            bytes.extend_from_slice(piece);
        }
        self.stats.tx_wire_pkts += 1;
        self.stats.tx_bytes += bytes.len() as u64;
        link.send(self.side, cx.now, bytes)
    }
}

/// More than one frame: also a super-packet that would fit the MTU is cut where its sender says, for the peer's MSS may be
/// smaller.
fn is_super(skb: &Skb) -> bool {
    skb.is_gso() && skb.data_len() > skb.gso_size
}

impl TxQueue for SimTx {
    fn xmit(&mut self, _cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut taken = 0;
        while self.staged.len() + self.flight.len() < self.cfg.tx_ring {
            let Some(skb) = batch.pop_front() else { break };
            self.staged.push_back(skb);
            taken += 1;
        }
        self.stats.tx_stop += u64::from(!batch.is_empty());
        taken
    }
    fn kick(&mut self, cx: &mut TxCx<'_>) {
        self.stats.tx_kicks += 1;
        while let Some(mut skb) = self.staged.pop_front() {
            let departs = self.transmit(cx, &mut skb);
            let done = match self.cfg.tx_done {
                TxDoneAt::Taken => cx.now,
                TxDoneAt::Departed => departs,
            };
            self.flight.push_back((done, skb));
        }
        lock(&self.link).tx_deadline[self.side] = self.flight.front().map(|f| f.0);
    }
    fn poll_tx(&mut self, cx: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        let mut n = 0;
        while self.flight.front().is_some_and(|f| f.0 <= cx.now) {
            let Some((_, skb)) = self.flight.pop_front() else { break };
            done.push(skb.tx_done, skb.truesize);
            cx.skbs.free(skb, cx.pool);
            n += 1;
        }
        lock(&self.link).tx_deadline[self.side] = self.flight.front().map(|f| f.0);
        n
    }
    fn features(&self) -> &Features {
        &self.cfg.features
    }
    fn qstats(&self) -> Qstats {
        self.stats
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
