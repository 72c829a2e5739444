//! Frames that pass without descriptors: the same frames, order, counters and memory as with them.
//!
//! Cutter and merger are the real ones, as the stack plugs them in; each burst takes one of the two ways on each side by
//! chance, so that they also mix within a flow.

use std::vec::Vec;

use linerate_base::Rng;
use linerate_netdev::queue::QueueCx;
use linerate_netdev::{FRAME_HEAD, FrameFrags, FrameSink, FrameSource, RxCx};
use linerate_offload::gso::Cutter;
use linerate_offload::{CsumMode, Gro, GroConfig, OffloadCx, PaddedHead, gso};
use linerate_skb::{Frag, HEAD_CAPACITY, Skb, SkbBatch, TxDoneToken};
use proptest::prelude::*;

use super::{KERNELS, Side, Spec, assert_home, bytes, sides};
use crate::{CsumOffload, Dma, NicConfig};

struct Cut<'a> {
    cutter: Cutter<'a>,
    /// Frame whose checksum field is damaged on the way.
    damage: Option<usize>,
    given: usize,
    header: [u8; HEAD_CAPACITY],
}

impl FrameSource for Cut<'_> {
    fn header_len(&self) -> usize {
        self.cutter.header_len()
    }
    fn next_frame(&mut self, frags: &mut FrameFrags) -> Option<&[u8; HEAD_CAPACITY]> {
        self.cutter.next_frame(|f| frags.push(f))?;
        self.header = *self.cutter.header_padded();
        if self.damage == Some(self.given) {
            self.header[self.cutter.transport_offset() + 17] ^= 0x40;
        }
        self.given += 1;
        Some(&self.header)
    }
}

struct Merge<'a>(&'a mut Gro);

impl FrameSink for Merge<'_> {
    fn merge(
        &mut self,
        cx: &mut RxCx<'_>,
        head: &[u8; FRAME_HEAD],
        len: usize,
        frags: &mut [Option<Frag>; 2],
        out: &mut SkbBatch,
    ) -> bool {
        let head = PaddedHead { bytes: head, len };
        let cx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &KERNELS, drops: cx.drops };
        self.0.merge_next_frame(&cx, head, frags, false, out)
    }
    fn rcv(&mut self, cx: &mut RxCx<'_>, skb: Skb, out: &mut SkbBatch) {
        let mut cx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &KERNELS, drops: cx.drops };
        self.0.receive(&mut cx, skb, out);
    }
}

impl Side {
    fn ring_doorbell(&mut self) {
        let mut cx = QueueCx { now: self.now, pool: &mut self.tx_pool, skbs: &mut self.skbs, drops: &mut self.drops };
        self.tx.kick(&mut cx);
    }

    /// Cuts `skb` straight into the device. False: it did not take it.
    fn xmit_cut(&mut self, skb: &Skb, damage: Option<usize>) -> bool {
        let cutter = Cutter::new(skb, 0, CsumMode::Fill, &KERNELS).unwrap();
        let segs = cutter.segs() as usize;
        let mut source = Cut { cutter, damage, given: 0, header: [0; HEAD_CAPACITY] };
        let mut cx = QueueCx { now: self.now, pool: &mut self.tx_pool, skbs: &mut self.skbs, drops: &mut self.drops };
        let took = self.tx.xmit_frames(&mut cx, skb, segs, &mut source);
        assert!(source.given == if took { segs } else { 0 });
        took
    }

    fn segment(&mut self, skb: Skb) -> SkbBatch {
        let mut out = SkbBatch::new();
        let mut cx =
            OffloadCx { skbs: &mut self.skbs, pool: &mut self.tx_pool, kernels: &KERNELS, drops: &mut self.drops };
        gso::segment(skb, 0, &mut cx, CsumMode::Fill, &mut out).unwrap();
        out
    }

    /// Polls until nothing is left, merging above the device.
    fn poll_merging(&mut self, gro: &mut Gro, budget: usize, without_skbs: bool, out: &mut SkbBatch) {
        loop {
            let mut cx =
                QueueCx { now: self.now, pool: &mut self.rx_pool, skbs: &mut self.skbs, drops: &mut self.drops };
            let n = if without_skbs {
                let n = self.rx.poll_frames(&mut cx, budget, &mut Merge(gro), out).unwrap();
                assert!(n <= budget);
                n
            } else {
                let mut batch = SkbBatch::new();
                let n = self.rx.poll_rx(&mut cx, budget, &mut batch);
                batch.drain(..).for_each(|skb| Merge(gro).rcv(&mut cx, skb, out));
                n
            };
            let mut cx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &KERNELS, drops: cx.drops };
            gro.flush(&mut cx, out);
            if n == 0 {
                return;
            }
        }
    }
}

fn plain() -> NicConfig {
    NicConfig { cut: true, csum: CsumOffload::Sw, ..NicConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn frames_without_descriptors_are_the_same_frames(
        seed in any::<u64>(), v6 in any::<bool>(), budget in 1usize..80, small_ring in any::<bool>(),
    ) {
        let cfg = NicConfig { ring_slots: if small_ring { 256 } else { 4096 }, ..plain() };
        let (mut a, mut b) = sides(&cfg, &cfg);
        let (mut rng, mut gro) = (Rng::new(seed), Gro::new(GroConfig::default()));
        let (mut seq, mut ident) = (rng.next_u32(), rng.next_u32() as u16);
        let (mut want, mut got, mut truesize, mut merged) = (Vec::new(), Vec::new(), 0u32, 0);
        for _ in 0..24 {
            // Long headers take a second slot.
            let s = Spec { v6, udp: false, ident, seq, flags: 0x10, options: [12, 12, 0, 40][rng.below(4) as usize] };
            let mss = 1500 - s.header_len();
            let len = mss + 1 + rng.below(43 * mss as u64) as usize;
            let payload = bytes(&mut rng, len);
            let skb = s.skb(&mut a, &payload, mss, false);
            truesize += skb.truesize;
            let mut out = SkbBatch::new();
            if rng.chance(0.7) && a.xmit_cut(&skb, None) {
                a.ring_doorbell();
                a.skbs.free(skb, &mut a.tx_pool);
            } else {
                let mut batch = a.segment(skb);
                while !batch.is_empty() {
                    a.xmit(&mut batch);
                    b.poll_merging(&mut gro, budget, rng.chance(0.7), &mut out);
                }
            }
            b.poll_merging(&mut gro, budget, rng.chance(0.7), &mut out);
            merged += out.iter().filter(|skb| skb.gso_segs > 1).count();
            got.extend(b.frames(&mut out, true));
            let frames = s.frames(&payload, mss);
            seq = seq.wrapping_add(len as u32);
            ident = ident.wrapping_add(frames.len() as u16);
            want.extend(frames);
        }
        prop_assert!(got == want, "frames differ");
        prop_assert!(budget < 2 || merged > 0);
        let (tx, rx) = (a.stats.total(), b.stats.total());
        let n = want.len() as u64;
        let bytes: usize = want.iter().map(Vec::len).sum();
        prop_assert_eq!([tx.tx_wire_pkts, tx.tx_skbs, tx.tx_csum_none, rx.rx_wire_pkts, rx.rx_skbs, rx.rx_csum_none], [n; 6]);
        prop_assert_eq!([tx.tx_bytes, rx.rx_bytes], [bytes as u64; 2]);
        prop_assert_eq!(a.completed().1, [(TxDoneToken(1), truesize)]);
        prop_assert_eq!((a.drops.total(), b.drops.total()), (0, 0));
        assert_home(a, b);
    }
}

#[test]
fn a_damaged_frame_is_not_merged() {
    let (mut a, mut b) = sides(&plain(), &plain());
    let s = Spec { v6: false, udp: false, ident: 7, seq: 1, flags: 0x10, options: 12 };
    let skb = s.skb(&mut a, &bytes(&mut Rng::new(4), 10 * 1448), 1448, false);
    assert!(a.xmit_cut(&skb, Some(4)));
    a.skbs.free(skb, &mut a.tx_pool);
    a.ring_doorbell();
    let (mut out, mut gro) = (SkbBatch::new(), Gro::new(GroConfig::default()));
    b.poll_merging(&mut gro, 64, true, &mut out);
    let segs: Vec<u32> = out.iter().map(|skb| skb.wire_pkts()).collect();
    assert_eq!(segs, [4, 1, 5], "what came before and behind it merges, it goes up by itself to be dropped there");
    b.free(&mut out);
    assert_home(a, b);
}

#[test]
fn frames_follow_what_was_taken_before() {
    let (mut a, mut b) = sides(&plain(), &plain());
    let s = Spec { v6: false, udp: false, ident: 7, seq: 1, flags: 0x10, options: 12 };
    let payload = bytes(&mut Rng::new(5), 4 * 1448);
    let mut first = SkbBatch::from_iter([s.skb(&mut a, &payload[..1448], 1448, false)]);
    let mut cx = QueueCx { now: a.now, pool: &mut a.tx_pool, skbs: &mut a.skbs, drops: &mut a.drops };
    // Taken, and no doorbell yet.
    assert_eq!(a.tx.xmit(&mut cx, &mut first), 1);
    let next = Spec { ident: 8, seq: 1449, ..s.clone() };
    let skb = next.skb(&mut a, &payload[1448..], 1448, false);
    assert!(a.xmit_cut(&skb, None));
    a.skbs.free(skb, &mut a.tx_pool);
    a.ring_doorbell();
    let mut out = SkbBatch::new();
    b.poll_all(&mut out);
    assert_eq!(b.frames(&mut out, true), s.frames(&payload, 1448));
    assert_home(a, b);
}

#[test]
fn who_has_work_for_the_device_or_no_room_is_refused() {
    let s = Spec { v6: false, udp: false, ident: 7, seq: 1, flags: 0x10, options: 12 };
    let payload = bytes(&mut Rng::new(6), 300 * 1448);
    let small = NicConfig { ring_slots: 256, ..plain() };
    let (mut a, b) = sides(&small, &small);
    let skb = s.skb(&mut a, &payload, 1448, false);
    assert!(!a.xmit_cut(&skb, None), "more frames than slots");
    a.skbs.free(skb, &mut a.tx_pool);
    let long = s.skb(&mut a, &payload[..9000], 4000, false);
    assert!(!a.xmit_cut(&long, None), "frames above the MTU");
    a.skbs.free(long, &mut a.tx_pool);
    assert_home(a, b);
    for cfg in [NicConfig { csum: CsumOffload::Hw, ..plain() }, NicConfig { dma: Dma::Copy, ..plain() }] {
        let (a, mut b) = sides(&cfg, &cfg);
        let mut gro = Gro::new(GroConfig::default());
        let mut out = SkbBatch::new();
        let mut cx = QueueCx { now: b.now, pool: &mut b.rx_pool, skbs: &mut b.skbs, drops: &mut b.drops };
        assert!(b.rx.poll_frames(&mut cx, 64, &mut Merge(&mut gro), &mut out).is_none());
        assert_home(a, b);
    }
}
