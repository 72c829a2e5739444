//! Two NICs back to back: what goes in comes out, in every mode; nothing is lost, leaked or waited for in vain.
//!
//! Expected wire frames are built byte by byte from a description, independently of the engines.

use std::sync::{Arc, Condvar, Mutex};
use std::vec::Vec;

use linerate_arch::Kernels;
use linerate_base::{DropCounters, DropReason, Duration, Instant, Rng};
use linerate_netdev::queue::QueueCx;
use linerate_netdev::{FaultPlan, RxQueue, TxDone, TxQueue};
use linerate_offload::{CsumMode, OffloadCx, gso};
use linerate_skb::{Csum, GsoType, Page, PagePool, PoolConfig, Skb, SkbBatch, SkbCache, TxDoneToken};
use linerate_wire::checksum;
use proptest::prelude::*;

use crate::{CsumOffload, Dma, Nic, NicConfig, NicStats, Wake, pair};

mod frames;

const KERNELS: Kernels = Kernels::portable();

/// One host: a queue pair and the memory that it lives on.
struct Side {
    rx: std::boxed::Box<dyn RxQueue + Send>,
    tx: std::boxed::Box<dyn TxQueue + Send>,
    stats: NicStats,
    skbs: SkbCache,
    tx_pool: PagePool,
    rx_pool: PagePool,
    drops: DropCounters,
    now: Instant,
}

impl Side {
    fn new(nic: &mut Nic) -> Self {
        let (rx, tx) = nic.take_queue(0).unwrap();
        assert!(nic.take_queue(0).is_none());
        let pool = || PagePool::new(PoolConfig { page_shift: 12, max_pages: 8192, cache_pages: 128 });
        Self {
            rx,
            tx,
            stats: nic.stats(),
            skbs: SkbCache::new(8192),
            tx_pool: pool(),
            rx_pool: pool(),
            drops: DropCounters::default(),
            now: Instant::ZERO,
        }
    }
    fn xmit(&mut self, batch: &mut SkbBatch) -> usize {
        let mut cx = QueueCx { now: self.now, pool: &mut self.tx_pool, skbs: &mut self.skbs, drops: &mut self.drops };
        let n = self.tx.xmit(&mut cx, batch);
        self.tx.kick(&mut cx);
        n
    }
    fn completed(&mut self) -> (usize, Vec<(TxDoneToken, u32)>) {
        let mut cx = QueueCx { now: self.now, pool: &mut self.tx_pool, skbs: &mut self.skbs, drops: &mut self.drops };
        let mut done = TxDone::new();
        let n = self.tx.poll_tx(&mut cx, &mut done);
        (n, done.drain().collect())
    }
    fn poll(&mut self, budget: usize, out: &mut SkbBatch) -> usize {
        let mut cx = QueueCx { now: self.now, pool: &mut self.rx_pool, skbs: &mut self.skbs, drops: &mut self.drops };
        let before = out.len();
        let n = self.rx.poll_rx(&mut cx, budget, out);
        assert!(n <= budget && out.len() == before + n);
        n
    }
    fn poll_all(&mut self, out: &mut SkbBatch) {
        while self.poll(7, out) > 0 || self.rx.irq_enable() {}
        self.rx.irq_disable();
    }
    fn free(&mut self, batch: &mut SkbBatch) {
        batch.clear_with(&mut self.skbs, &mut self.rx_pool);
    }
    /// The wire frames that a batch stands for. `sums`: also the transport checksums, else zeros in their place.
    fn frames(&mut self, batch: &mut SkbBatch, sums: bool) -> Vec<Vec<u8>> {
        let mut out = SkbBatch::new();
        while let Some(skb) = batch.pop_front() {
            if skb.is_gso() {
                let mut cx = OffloadCx {
                    skbs: &mut self.skbs,
                    pool: &mut self.rx_pool,
                    kernels: &KERNELS,
                    drops: &mut self.drops,
                };
                gso::segment(skb, 0, &mut cx, CsumMode::Fill, &mut out).unwrap();
            } else {
                out.push(skb);
            }
        }
        let frames = out.iter().map(|s| if sums { s.to_vec() } else { unsummed(s.to_vec()) }).collect();
        self.free(&mut out);
        frames
    }
}

fn unsummed(mut f: Vec<u8>) -> Vec<u8> {
    let (l4, udp) = if f[0] >> 4 == 6 { (40, f[6] == 17) } else { (20, f[9] == 17) };
    let at = l4 + if udp { 6 } else { 16 };
    f[at..at + 2].fill(0);
    f
}

fn sides(a: &NicConfig, b: &NicConfig) -> (Side, Side) {
    let (mut a, mut b) = pair(a, b);
    (Side::new(&mut a), Side::new(&mut b))
}

/// All memory is home once the devices are gone.
fn assert_home(a: Side, b: Side) {
    let mut rest = Vec::new();
    for s in [a, b] {
        let Side { rx, tx, skbs, tx_pool, rx_pool, drops, .. } = s;
        drop((rx, tx));
        assert_eq!(drops.get(DropReason::NotSpecified), 0);
        rest.push((skbs, tx_pool, rx_pool));
    }
    for (mut skbs, mut tx_pool, mut rx_pool) in rest {
        skbs.reclaim();
        tx_pool.reclaim();
        rx_pool.reclaim();
        assert_eq!((skbs.inflight(), tx_pool.inflight(), rx_pool.inflight(), skbs.silent_drops()), (0, 0, 0, 0));
    }
}

#[derive(Clone, Debug)]
struct Spec {
    v6: bool,
    udp: bool,
    ident: u16,
    seq: u32,
    flags: u8,
    options: usize,
}

impl Spec {
    fn l4(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }
    fn header_len(&self) -> usize {
        self.l4() + if self.udp { 8 } else { 20 + self.options }
    }
    /// The headers for `payload`, and the sum of the pseudo-header (what `Csum::Partial` has in the field).
    fn header(&self, payload: &[u8]) -> (Vec<u8>, u16) {
        let proto = if self.udp { 17 } else { 6 };
        let len = (self.header_len() - self.l4() + payload.len()) as u32;
        let short = u16::try_from(len).unwrap_or(0).to_be_bytes();
        let (mut ip, mut l4, mut pseudo) = (Vec::new(), Vec::new(), Vec::new());
        let addr = |n: u8| if self.v6 { Vec::from([n; 16]) } else { Vec::from([10, 0, 0, n]) };
        pseudo.extend(addr(1));
        pseudo.extend(addr(2));
        if self.v6 {
            ip.extend([0x60, 0, 0, 0, short[0], short[1], proto, 64]);
            ip.extend(&pseudo);
        } else {
            ip.extend([0x45, 0]);
            ip.extend(u16::try_from(len + 20).unwrap_or(0).to_be_bytes());
            ip.extend(self.ident.to_be_bytes());
            ip.extend([0x40, 0, 64, proto, 0, 0]);
            ip.extend(&pseudo);
            let c = checksum::finish(checksum::sum(&ip));
            ip[10..12].copy_from_slice(&c.to_be_bytes());
        }
        pseudo.extend(len.to_be_bytes());
        pseudo.extend([0, 0, 0, proto]);
        let seed = checksum::fold(checksum::sum(&pseudo));
        l4.extend([0x14, 0x51, 0x9c, 0x40]);
        if self.udp {
            l4.extend([short[0], short[1], 0, 0]);
        } else {
            l4.extend(self.seq.to_be_bytes());
            l4.extend([0, 0, 0, 9, ((20 + self.options) as u8 / 4) << 4, self.flags, 1, 2, 0, 0, 0, 0]);
            l4.extend((0..self.options).map(|i| i as u8));
        }
        let mut all = pseudo;
        all.extend(&l4);
        all.extend(payload);
        let at = if self.udp { 6 } else { 16 };
        let c = match checksum::finish(checksum::sum(&all)) {
            0 if self.udp => 0xffff,
            c => c,
        };
        l4[at..at + 2].copy_from_slice(&c.to_be_bytes());
        ip.extend(l4);
        (ip, seed)
    }
    fn frames(&self, payload: &[u8], mss: usize) -> Vec<Vec<u8>> {
        let n = payload.len().div_ceil(mss);
        let one = |(i, chunk): (usize, &[u8])| {
            let mut s = self.clone();
            s.seq = s.seq.wrapping_add((i * mss) as u32);
            s.ident = s.ident.wrapping_add(i as u16);
            s.flags &= if i + 1 < n { !9 } else { !0 };
            s.flags &= if i > 0 { !0x80 } else { !0 };
            let mut f = s.header(chunk).0;
            f.extend(chunk);
            f
        };
        payload.chunks(mss).enumerate().map(one).collect()
    }
    /// A super-packet (or a frame, when the payload is no longer than `mss`) as a stack hands it over. `partial`: the
    /// checksum is left to the device.
    fn skb(&self, side: &mut Side, payload: &[u8], mss: usize, partial: bool) -> Skb {
        let (mut header, seed) = self.header(payload);
        let at = self.l4() + if self.udp { 6 } else { 16 };
        if partial {
            header[at..at + 2].copy_from_slice(&seed.to_be_bytes());
        }
        let mut skb = side.skbs.alloc().unwrap();
        skb.set_max_frags(128);
        skb.reset_head(192 - header.len());
        assert!(skb.put_head_from(&header));
        let (mut rest, mut page): (&[u8], Option<Page>) = (payload, None);
        while !rest.is_empty() {
            page.take().into_iter().for_each(|p| side.tx_pool.recycle_page(p));
            let p = page.insert(side.tx_pool.alloc().unwrap());
            let f = p.append(&KERNELS, rest).unwrap();
            rest = &rest[f.len() as usize..];
            skb.push_frag(f).unwrap();
        }
        page.into_iter().for_each(|p| side.tx_pool.recycle_page(p));
        if payload.len() > mss {
            skb.gso_size = mss as u32;
            skb.gso_segs = payload.len().div_ceil(mss) as u32;
            skb.gso_type = match (self.udp, self.v6) {
                (true, _) => GsoType::UdpL4,
                (false, false) => GsoType::TcpV4,
                (false, true) => GsoType::TcpV6,
            };
        }
        let start = skb.head_offset();
        (skb.network_header, skb.transport_header) = (start, start + self.l4() as u16);
        if partial {
            skb.csum = Csum::Partial { start: skb.transport_header, offset: (at - self.l4()) as u16 };
        }
        skb.charge_pages();
        skb.tx_done = TxDoneToken(1);
        skb
    }
}

fn bytes(rng: &mut Rng, n: usize) -> Vec<u8> {
    (0..n).map(|_| rng.next_u32() as u8).collect()
}

/// Random super-packets of one or two flows through a pair of NICs; the frames that came out must be the ones that a
/// plain sender would have made, in order.
fn through(cfg: &NicConfig, v6: bool, seed: u64) {
    let (mut a, mut b) = sides(cfg, cfg);
    let mut rng = Rng::new(seed);
    let sums = cfg.csum == CsumOffload::Hw;
    let (mut seq, mut ident) = (rng.next_u32(), rng.next_u32() as u16);
    let (mut want, mut batch, mut got) = (Vec::new(), SkbBatch::new(), Vec::new());
    let (mut skbs_sent, mut truesize) = (0, 0u32);
    for _ in 0..12 {
        for _ in 0..1 + rng.below(4) {
            let udp = rng.chance(0.2);
            let options = rng.below(11) as usize * 4;
            let flags = 0x10 | if rng.chance(0.3) { [1, 8, 9, 0x80][rng.below(4) as usize] } else { 0 };
            let s = Spec { v6, udp, ident, seq, flags, options };
            let mss = 1500 - s.header_len();
            let most = if sums { 40 * mss } else { mss };
            let len = if rng.chance(0.1) { 0 } else { 1 + rng.below(most as u64) as usize };
            let payload = bytes(&mut rng, len);
            let skb = s.skb(&mut a, &payload, mss, sums);
            truesize += skb.truesize;
            skbs_sent += 1;
            batch.push(skb);
            let frames = if len == 0 { Vec::from([s.header(&[]).0]) } else { s.frames(&payload, mss) };
            seq = seq.wrapping_add(len as u32);
            ident = ident.wrapping_add(frames.len() as u16);
            want.extend(frames);
        }
        while !batch.is_empty() {
            a.xmit(&mut batch);
            let mut out = SkbBatch::new();
            b.poll_all(&mut out);
            for skb in out.iter() {
                assert!(skb.csum == if sums { Csum::Unnecessary } else { Csum::None });
                assert_eq!(skb.ip_version, if v6 { 6 } else { 4 });
                assert!(cfg.dma == Dma::Ref || skb.frags().iter().all(|f| b.rx_pool.owns(f)));
            }
            got.extend(b.frames(&mut out, cfg.cut || !sums));
        }
    }
    if !cfg.cut && sums {
        want = want.into_iter().map(unsummed).collect();
    }
    assert_eq!(got.len(), want.len());
    // Merging may let another flow's frame pass (UDP is not held), so order is per protocol.
    for proto in [6, 17] {
        let of = |all: &[Vec<u8>]| -> Vec<Vec<u8>> {
            all.iter().filter(|f| f[if v6 { 6 } else { 9 }] == proto).cloned().collect()
        };
        assert!(of(&got) == of(&want), "{cfg:?} v6 {v6} seed {seed}: frames differ");
    }
    check_counters(cfg, &mut a, &mut b, want.len() as u64, skbs_sent, truesize);
    assert_eq!((a.drops.total(), b.drops.total()), (0, 0));
    assert_home(a, b);
}

fn check_counters(cfg: &NicConfig, a: &mut Side, b: &mut Side, frames: u64, skbs: usize, truesize: u32) {
    assert_eq!(a.completed(), (skbs, Vec::from([(TxDoneToken(1), truesize)])));
    let (tx, rx) = (a.stats.total(), b.stats.total());
    assert_eq!((tx.tx_wire_pkts, rx.rx_wire_pkts, tx.tx_skbs), (frames, frames, skbs as u64));
    assert_eq!(tx.tx_bytes, rx.rx_bytes);
    assert_eq!(tx.tx_csum_partial + tx.tx_csum_none, frames);
    assert_eq!(rx.rx_csum_unnecessary + rx.rx_csum_none, frames);
    if cfg.csum == CsumOffload::Hw {
        assert_eq!(rx.rx_csum_none, 0);
        assert_eq!(tx.tx_hw_gso_skbs > 0, cfg.cut);
    }
    assert_eq!(rx.rx_hw_gro_skbs > 0, cfg.cut && cfg.features().gro_hw);
    assert_eq!(rx.rx_dma_copied_bytes > 0, cfg.dma == Dma::Copy);
    assert!(!cfg!(target_arch = "x86_64") || a.stats.hw_cycles() > 0 && b.stats.hw_cycles() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn every_mode_carries_every_byte(
        cut in any::<bool>(), copy in any::<bool>(), sw in any::<bool>(), gro_hw in any::<bool>(), v6 in any::<bool>(),
        seed in any::<u64>(), small_ring in any::<bool>(),
    ) {
        let cfg = NicConfig {
            cut,
            dma: if copy { Dma::Copy } else { Dma::Ref },
            csum: if sw { CsumOffload::Sw } else { CsumOffload::Hw },
            gro_hw,
            ring_slots: if small_ring { 256 } else { 4096 },
            ..NicConfig::default()
        };
        through(&cfg, v6, seed);
    }
}

#[test]
fn cut_frames_are_merged_again() {
    let cfg = NicConfig { cut: true, ..NicConfig::default() };
    let (mut a, mut b) = sides(&cfg, &cfg);
    let s = Spec { v6: false, udp: false, ident: 1, seq: 5, flags: 0x18, options: 12 };
    let payload = bytes(&mut Rng::new(1), 44 * 1448);
    let mut batch = SkbBatch::from_iter([s.skb(&mut a, &payload, 1448, true)]);
    assert_eq!(a.xmit(&mut batch), 1);
    let mut out = SkbBatch::new();
    assert_eq!(b.poll(64, &mut out), 1);
    let skb = out.front().unwrap();
    assert_eq!((skb.gso_size, skb.gso_segs, skb.data_len()), (1448, 44, 44 * 1448));
    // The slices of one page became one fragment again.
    assert_eq!(skb.nr_frags(), payload.len().div_ceil(4096));
    assert_eq!(b.stats.queue(0).rx_hw_gro_wire_pkts, 44);
    b.free(&mut out);
    assert_home(a, b);
}

#[test]
fn a_full_ring_stops_and_starts_the_sender() {
    let cfg = NicConfig { cut: true, ring_slots: 256, ..NicConfig::default() };
    let (mut a, mut b) = sides(&cfg, &cfg);
    let s = Spec { v6: true, udp: false, ident: 0, seq: 0, flags: 0x10, options: 12 };
    let payload = bytes(&mut Rng::new(2), 20 * 1428);
    let mut batch: SkbBatch = (0..40).map(|_| s.skb(&mut a, &payload, 1428, true)).collect();
    let taken = a.xmit(&mut batch);
    assert!(taken > 0 && taken < 40 && batch.len() == 40 - taken);
    assert_eq!(a.completed().0, taken);
    // It goes to sleep; nothing has changed, so nothing to do.
    assert!(!a.rx.irq_enable());
    let (mut out, mut got) = (SkbBatch::new(), 0);
    while !batch.is_empty() || got < 40 * 20 {
        b.poll_all(&mut out);
        got += b.frames(&mut out, true).len();
        // Room was made: that is work.
        assert!(batch.is_empty() || a.rx.irq_enable());
        a.xmit(&mut batch);
    }
    assert_eq!(got, 40 * 20);
    let stops = a.stats.queue(0).tx_stop;
    assert!(stops > 2, "{stops} stops");
    assert_home(a, b);
}

#[test]
fn what_can_never_be_sent_is_dropped_with_a_reason() {
    let cfg = NicConfig { tso: false, ..NicConfig::default() };
    let (mut a, b) = sides(&cfg, &cfg);
    let s = Spec { v6: false, udp: false, ident: 0, seq: 0, flags: 0x10, options: 0 };
    let payload = bytes(&mut Rng::new(3), 3000);
    let super_packet = s.skb(&mut a, &payload, 1460, true);
    let too_long = s.skb(&mut a, &payload[..1461], 9000, true);
    let udp = Spec { udp: true, ..s.clone() };
    let too_long_frames = udp.skb(&mut a, &payload, 1480, true);
    let mut batch = SkbBatch::from_iter([super_packet, too_long, too_long_frames]);
    assert_eq!(a.xmit(&mut batch), 3);
    assert_eq!((a.drops.get(DropReason::DevHdr), a.drops.get(DropReason::PktTooBig)), (1, 2));
    assert_eq!(a.completed().0, 3);
    drop(b);
    a.skbs.reclaim();
    assert_eq!((a.skbs.inflight(), a.tx_pool.inflight()), (0, 0));
}

#[test]
fn a_far_side_that_goes_away_wakes_and_ends_what_waits() {
    let cfg = NicConfig { ring_slots: 256, ..NicConfig::default() };
    let (mut nic_a, mut nic_b) = pair(&cfg, &cfg);
    let parker = Arc::new(Parker::default());
    assert!(nic_a.set_waker(0, parker.clone()));
    let (mut a, mut b) = (Side::new(&mut nic_a), Side::new(&mut nic_b));
    let s = Spec { v6: false, udp: false, ident: 0, seq: 0, flags: 0x10, options: 0 };
    let mut batch: SkbBatch = (0..300).map(|_| s.skb(&mut a, &[5; 100], 1460, true)).collect();
    assert_eq!((a.xmit(&mut batch), batch.len()), (256, 44));
    let mut out = SkbBatch::new();
    b.poll(1, &mut out);
    b.free(&mut out);
    assert!(!a.rx.irq_enable());
    drop((b.rx, b.tx));
    assert!(parker.park());
    assert_eq!((a.xmit(&mut batch), batch.len()), (44, 0));
    assert!(a.drops.get(DropReason::Shutdown) >= 12);
    assert_eq!(a.completed().0, 300);
    // What is in the ring stays there until both ends are gone.
    drop((a.rx, a.tx));
    a.skbs.reclaim();
    a.tx_pool.reclaim();
    assert_eq!((a.skbs.inflight(), a.tx_pool.inflight()), (0, 0));
}

#[test]
fn a_damaged_frame_dies_of_its_checksum() {
    let fault = FaultPlan { corrupt: 1.0, ..FaultPlan::default() };
    for dma in [Dma::Ref, Dma::Copy] {
        let cfg = NicConfig { dma, fault: Some((fault.clone(), 7)), ..NicConfig::default() };
        let (mut a, mut b) = sides(&cfg, &NicConfig { dma, ..NicConfig::default() });
        let s = Spec { v6: false, udp: false, ident: 0, seq: 0, flags: 0x10, options: 12 };
        let mut rng = Rng::new(4);
        let mut passed = 0;
        for _ in 0..20 {
            let payload = bytes(&mut rng, 30 * 1448);
            let mut batch = SkbBatch::from_iter([s.skb(&mut a, &payload, 1448, true)]);
            a.xmit(&mut batch);
            let mut out = SkbBatch::new();
            b.poll_all(&mut out);
            passed += out.len() as u64;
            // Only damage outside of what TCP sums comes through, and that the IP header's checksum tells.
            assert!(out.iter().all(|f| !checksum::is_valid(checksum::sum(&f.head()[..20]))));
            b.free(&mut out);
        }
        let bad = b.stats.queue(0).rx_csum_bad;
        assert_eq!(b.drops.get(DropReason::TcpCsum) + b.drops.get(DropReason::UdpCsum), bad);
        assert_eq!(b.drops.total(), bad);
        assert_eq!(bad + passed, 600);
        assert!(bad > 560, "{bad} found");
        assert_home(a, b);
    }
}

#[test]
fn faults_lose_copy_and_reorder_whole_frames() {
    let plan = FaultPlan {
        loss: 0.05,
        duplicate: 0.05,
        reorder: 0.1,
        reorder_delay: Duration::from_millis(2),
        jitter: Duration::from_micros(300),
        ..FaultPlan::default()
    };
    let cfg = NicConfig { fault: Some((plan, 11)), gro_hw: false, ..NicConfig::default() };
    let (mut a, mut b) = sides(&cfg, &NicConfig { gro_hw: false, ..NicConfig::default() });
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    let mut rng = Rng::new(5);
    for i in 0..50u32 {
        let s =
            Spec { v6: i & 1 == 1, udp: i & 6 == 6, ident: 20 * i as u16, seq: 30_000 * i, flags: 0x10, options: 12 };
        let payload = bytes(&mut rng, 20 * 1400);
        sent.extend(s.frames(&payload, 1400));
        let mut batch = SkbBatch::from_iter([s.skb(&mut a, &payload, 1400, true)]);
        a.xmit(&mut batch);
        b.now = b.now.plus_micros(100);
        let mut out = SkbBatch::new();
        b.poll_all(&mut out);
        got.extend(b.frames(&mut out, true));
    }
    while let Some(at) = b.rx.next_deadline() {
        assert!(at > b.now);
        b.now = at;
        let mut out = SkbBatch::new();
        b.poll_all(&mut out);
        got.extend(b.frames(&mut out, true));
    }
    let lost = b.drops.get(DropReason::WireLoss) as usize;
    assert_eq!(b.drops.total() as usize, lost);
    assert!(lost > 20 && lost < 90, "{lost} lost of 1000");
    let mut unique = got.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), sent.len() - lost);
    assert!(got.len() > unique.len(), "some came twice");
    let order: Vec<usize> = got.iter().filter_map(|f| sent.iter().position(|g| g == f)).collect();
    assert!(!order.is_sorted(), "nothing was overtaken");
    sent.sort();
    assert!(unique.iter().all(|f| sent.binary_search(f).is_ok()));
    assert_home(a, b);
}

#[test]
fn a_lack_of_memory_is_counted() {
    let cfg = NicConfig { dma: Dma::Copy, ..NicConfig::default() };
    let (mut a, mut b) = sides(&cfg, &cfg);
    b.rx_pool = PagePool::new(PoolConfig { page_shift: 12, max_pages: 4, cache_pages: 4 });
    let s = Spec { v6: false, udp: false, ident: 0, seq: 0, flags: 0x10, options: 12 };
    let payload = bytes(&mut Rng::new(6), 20 * 1448);
    let mut batch = SkbBatch::from_iter([s.skb(&mut a, &payload, 1448, true)]);
    a.xmit(&mut batch);
    let mut out = SkbBatch::new();
    b.poll_all(&mut out);
    assert!(out.is_empty());
    assert_eq!((b.drops.get(DropReason::NoMem), b.stats.queue(0).rx_alloc_fail), (1, 20));
    // No descriptor.
    b.skbs = SkbCache::new(1);
    let kept = b.skbs.alloc().unwrap();
    let mut batch = SkbBatch::from_iter([s.skb(&mut a, &payload[..9], 1448, true)]);
    a.xmit(&mut batch);
    b.poll_all(&mut out);
    assert_eq!((b.drops.get(DropReason::NoMem), out.len()), (2, 0));
    b.skbs.consume(kept);
    assert_home(a, b);
}

/// A parker: what a host thread sleeps on.
#[derive(Default)]
struct Parker(Mutex<bool>, Condvar);

impl Parker {
    /// Waits to be woken; false when that took too long to be anything but a lost wake-up.
    fn park(&self) -> bool {
        let limit = std::time::Duration::from_secs(30);
        let woken = self.0.lock().unwrap();
        let (mut woken, timeout) = self.1.wait_timeout_while(woken, limit, |w| !*w).unwrap();
        *woken = false;
        !timeout.timed_out()
    }
}
impl Wake for Parker {
    fn wake(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }
}

#[test]
fn no_wake_up_is_lost_between_two_threads() {
    const FRAMES: u32 = 100_000;
    let cfg = NicConfig { ring_slots: 256, ..NicConfig::default() };
    let (mut nic_a, mut nic_b) = pair(&cfg, &cfg);
    let parkers = [Arc::new(Parker::default()), Arc::new(Parker::default())];
    assert!(nic_a.set_waker(0, parkers[0].clone()) && nic_b.set_waker(0, parkers[1].clone()));
    assert!(!nic_b.set_waker(1, parkers[1].clone()));
    let (mut a, mut b) = (Side::new(&mut nic_a), Side::new(&mut nic_b));
    let [park_a, park_b] = parkers;
    let receiver = std::thread::spawn(move || {
        let (mut out, mut got, mut sleeps) = (SkbBatch::new(), 0, 0u32);
        while got < FRAMES {
            let n = b.poll(64, &mut out);
            for skb in out.iter() {
                assert_eq!(skb.head()[24..28], got.to_be_bytes());
                got += 1;
            }
            b.free(&mut out);
            if n < 64 && got < FRAMES && !b.rx.irq_enable() {
                sleeps += 1;
                assert!(park_b.park(), "woken too late: {got} frames so far");
                b.rx.irq_disable();
            }
        }
        (b, sleeps)
    });
    let (mut batch, mut rng) = (SkbBatch::new(), Rng::new(8));
    let mut next = 0;
    while next < FRAMES || !batch.is_empty() {
        let burst = if rng.chance(0.05) { 400 } else { 1 + rng.below(3) as u32 };
        let end = (next + burst).min(FRAMES);
        while next < end {
            let s = Spec { v6: false, udp: false, ident: 0, seq: next, flags: 0x10, options: 0 };
            batch.push(s.skb(&mut a, &[], 1460, true));
            next += 1;
        }
        a.skbs.reclaim();
        while !batch.is_empty() {
            a.xmit(&mut batch);
            a.completed();
            if !batch.is_empty() && !a.rx.irq_enable() {
                assert!(park_a.park(), "no room in time: {next} frames so far");
            }
            a.rx.irq_disable();
        }
    }
    let (b, sleeps) = receiver.join().unwrap();
    assert!(sleeps > 0, "the receiver never slept: the test shows nothing");
    assert_home(a, b);
}

#[test]
fn queues_are_wired_one_to_one() {
    let cfg = NicConfig { queues: 3, ..NicConfig::default() };
    let (mut nic_a, mut nic_b) = pair(&cfg, &NicConfig { queues: 5, ..cfg.clone() });
    assert_eq!((nic_a.queues(), nic_b.queues()), (3, 3));
    let mut host = Side::new(&mut nic_a);
    let mut far = Side::new(&mut nic_b);
    for q in 1..3 {
        (host.rx, host.tx) = nic_a.take_queue(q).unwrap();
        (far.rx, far.tx) = nic_b.take_queue(q).unwrap();
        let s = Spec { v6: false, udp: false, ident: 0, seq: u32::from(q), flags: 0x10, options: 0 };
        let mut batch = SkbBatch::from_iter([s.skb(&mut host, &[1; 100], 1460, true)]);
        host.xmit(&mut batch);
        let mut out = SkbBatch::new();
        far.poll_all(&mut out);
        assert_eq!(out.iter().map(|s| (s.queue, s.head()[27])).collect::<Vec<_>>(), [(q, q as u8)]);
        far.free(&mut out);
        assert_eq!((far.stats.queue(q).rx_skbs, far.stats.queue(0).rx_skbs), (1, 0));
    }
    // Whether pages cross by reference is for the receiver to say.
    let copying = NicConfig { dma: Dma::Copy, ..cfg.clone() };
    let (x, y) = pair(&cfg, &copying);
    assert_eq!((x.features().by_ref, y.features().by_ref), (false, true));
    assert_eq!((host.stats.total().tx_skbs, far.stats.total().rx_skbs), (2, 2));
    assert_home(host, far);
}
