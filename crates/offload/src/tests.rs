//! Properties of the offloads: what is cut merges to what it was, what is merged cuts to what came in, checksums agree
//! with the slow sums of the `wire` crate, and hostile bytes neither panic nor get lost.
//!
//! Packets are built here byte by byte from a small description, independently of the code under test.

use std::vec::Vec;

use linerate_arch::Kernels;
use linerate_base::{DropCounters, DropReason, Rng};
use linerate_skb::{Csum, GsoType, Page, PagePool, PoolConfig, Skb, SkbBatch, SkbCache, SkbFlags, TxDoneToken};
use linerate_wire::checksum;
use proptest::prelude::*;

use crate::gro::{Gro, GroConfig};
use crate::gso::{CsumMode, segment};
use crate::rss::{IndirectionTable, Toeplitz};
use crate::{Headers, OffloadCx, Verdict, csum};

mod next_frame;

const KERNELS: Kernels = Kernels::portable();

pub(crate) struct World {
    pub(crate) skbs: SkbCache,
    pub(crate) pool: PagePool,
    pub(crate) drops: DropCounters,
}

impl World {
    fn new() -> Self {
        Self {
            skbs: SkbCache::new(4096),
            pool: PagePool::new(PoolConfig { page_shift: 12, max_pages: 4096, cache_pages: 128 }),
            drops: DropCounters::default(),
        }
    }
    fn cx(&mut self) -> OffloadCx<'_> {
        OffloadCx { skbs: &mut self.skbs, pool: &mut self.pool, kernels: &KERNELS, drops: &mut self.drops }
    }
    fn free(&mut self, batch: &mut SkbBatch) {
        batch.clear_with(&mut self.skbs, &mut self.pool);
    }
    /// Nothing is out and nothing died silently.
    fn assert_home(&mut self) {
        self.skbs.reclaim();
        self.pool.reclaim();
        assert_eq!((self.skbs.inflight(), self.pool.inflight(), self.skbs.silent_drops()), (0, 0, 0));
    }
}

/// A packet in words.
#[derive(Clone, Debug)]
struct Spec {
    v6: bool,
    udp: bool,
    tos: u8,
    ttl: u8,
    ident: u16,
    df: bool,
    ports: (u16, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
}

impl Spec {
    fn tcp(v6: bool) -> Self {
        let options = Vec::from([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        Self {
            v6,
            udp: false,
            tos: 2,
            ttl: 64,
            ident: 0xfffe,
            df: true,
            ports: (5201, 40000),
            seq: 0xffff_f000,
            ack: 77,
            flags: 0x10,
            window: 501,
            options,
        }
    }
    fn header_len(&self) -> usize {
        let ip = if self.v6 { 40 } else { 20 };
        ip + if self.udp { 8 } else { 20 + self.options.len() }
    }
    fn l4(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }
    /// The headers, with sums and lengths for `payload`.
    fn header(&self, payload: &[u8]) -> Vec<u8> {
        let mut l4 = Vec::new();
        l4.extend(self.ports.0.to_be_bytes());
        l4.extend(self.ports.1.to_be_bytes());
        let l4_len = self.header_len() - self.l4() + payload.len();
        let short = u16::try_from(l4_len).unwrap_or(0);
        if self.udp {
            l4.extend(short.to_be_bytes());
            l4.extend([0, 0]);
        } else {
            l4.extend(self.seq.to_be_bytes());
            l4.extend(self.ack.to_be_bytes());
            l4.extend([((20 + self.options.len()) as u8 / 4) << 4, self.flags]);
            l4.extend(self.window.to_be_bytes());
            l4.extend([0; 4]);
            l4.extend(&self.options);
        }
        let (src, dst) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let (src6, dst6) = (*b"\xfd\0linerate-srcs1", *b"\xfd\0linerate-dsts2");
        let proto = if self.udp { 17 } else { 6 };
        let mut ip = Vec::new();
        let mut addrs = Vec::new();
        if self.v6 {
            ip.extend([0x60 | self.tos >> 4, self.tos << 4, 0, 9]);
            ip.extend(short.to_be_bytes());
            ip.extend([proto, self.ttl]);
            addrs.extend(src6);
            addrs.extend(dst6);
        } else {
            let total = u16::try_from(20 + l4_len).unwrap_or(0);
            ip.extend([0x45, self.tos]);
            ip.extend(total.to_be_bytes());
            ip.extend(self.ident.to_be_bytes());
            ip.extend([if self.df { 0x40 } else { 0 }, 0, self.ttl, proto, 0, 0]);
            addrs.extend(src);
            addrs.extend(dst);
        }
        ip.extend(&addrs);
        if !self.v6 {
            let c = checksum::finish(checksum::sum(&ip));
            ip[10..12].copy_from_slice(&c.to_be_bytes());
        }
        let mut all = addrs;
        all.extend((l4_len as u32).to_be_bytes());
        all.extend([0, 0, 0, proto]);
        all.extend(&l4);
        all.extend(payload);
        let c = match checksum::finish(checksum::sum(&all)) {
            0 if self.udp => 0xffff,
            c => c,
        };
        let at = if self.udp { 6 } else { 16 };
        l4[at..at + 2].copy_from_slice(&c.to_be_bytes());
        ip.extend(l4);
        ip
    }
    /// The wire frames that a sender with `mss` makes of `payload`.
    fn frames(&self, payload: &[u8], mss: usize) -> Vec<Vec<u8>> {
        let n = payload.len().div_ceil(mss);
        payload
            .chunks(mss)
            .enumerate()
            .map(|(i, chunk)| {
                let mut s = self.clone();
                s.seq = s.seq.wrapping_add((i * mss) as u32);
                s.ident = s.ident.wrapping_add(i as u16);
                if i + 1 < n {
                    s.flags &= !0x09;
                }
                if i > 0 {
                    s.flags &= !0x80;
                }
                let mut f = s.header(chunk);
                f.extend(chunk);
                f
            })
            .collect()
    }
}

/// An skb of a header and a payload cut into fragments of the given lengths (the last takes the rest), at odd offsets.
fn skb_of(w: &mut World, header: &[u8], payload: &[u8], cuts: &[usize]) -> Skb {
    let mut skb = w.skbs.alloc().unwrap();
    skb.set_max_frags(128);
    skb.reset_head(192 - header.len());
    assert!(skb.put_head_from(header));
    let (mut rest, mut cuts, mut page): (&[u8], _, Option<Page>) = (payload, cuts.iter(), None);
    while !rest.is_empty() {
        let want = cuts.next().copied().unwrap_or(usize::MAX).clamp(1, rest.len());
        if page.as_ref().is_none_or(|p| p.room() == 0) {
            page.take().into_iter().for_each(|p| w.pool.recycle_page(p));
            page = w.pool.alloc();
        }
        let p = page.as_mut().unwrap();
        let frag = p.append(&KERNELS, &rest[..want]).unwrap();
        rest = &rest[frag.len() as usize..];
        skb.push_frag(frag).unwrap();
        if cuts.len() > 0 && p.room() > 1 {
            // A gap: the next fragment does not merge with this one.
            let _ = p.append(&KERNELS, &[0]);
        }
    }
    page.into_iter().for_each(|p| w.pool.recycle_page(p));
    skb.network_header = skb.head_offset();
    skb.charge_pages();
    skb
}

fn super_skb(w: &mut World, s: &Spec, payload: &[u8], cuts: &[usize], mss: u32) -> Skb {
    let mut skb = skb_of(w, &s.header(payload), payload, cuts);
    skb.gso_size = mss;
    skb.gso_segs = (payload.len() as u32).div_ceil(mss);
    skb.gso_type = match (s.udp, s.v6) {
        (true, _) => GsoType::UdpL4,
        (_, false) => GsoType::TcpV4,
        (_, true) => GsoType::TcpV6,
    };
    skb
}

fn bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.next_u32() as u8).collect()
}

fn spec() -> impl Strategy<Value = Spec> {
    let opts = prop_oneof![
        Just(Vec::new()),
        Just(Vec::from([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2])),
        prop::collection::vec(any::<[u8; 4]>(), 1..10).prop_map(|v| v.concat()),
    ];
    (any::<(bool, bool, u8, u8, u16, bool)>(), any::<(u16, u16, u32, u32, u16)>(), 0u8..8, opts).prop_map(
        |((v6, udp, tos, ttl, ident, df), (sp, dp, seq, ack, window), f, options)| Spec {
            v6,
            udp,
            tos,
            ttl,
            ident,
            df,
            ports: (sp, dp),
            seq,
            ack,
            // ACK and ECE always, CWR, PSH and FIN by chance.
            flags: 0x50 | (f & 1) << 7 | (f & 2) << 2 | f >> 2,
            window,
            options: if udp { Vec::new() } else { options },
        },
    )
}

fn merge(w: &mut World, cfg: GroConfig, frames: impl IntoIterator<Item = Skb>) -> SkbBatch {
    let (mut gro, mut out) = (Gro::new(cfg), SkbBatch::new());
    for f in frames {
        gro.receive(&mut w.cx(), f, &mut out);
    }
    gro.flush(&mut w.cx(), &mut out);
    assert_eq!(gro.held(), 0);
    out
}

/// All wire frames of a batch: super-packets are cut.
fn cut(w: &mut World, batch: &mut SkbBatch) -> Vec<Vec<u8>> {
    let mut out = SkbBatch::new();
    while let Some(skb) = batch.pop_front() {
        if skb.is_gso() {
            segment(skb, 0, &mut w.cx(), CsumMode::Fill, &mut out).unwrap();
        } else {
            out.push(skb);
        }
    }
    let frames = out.iter().map(Skb::to_vec).collect();
    w.free(&mut out);
    frames
}

const ALL: GroConfig = GroConfig { max_size: 1 << 20, max_frags: 128, max_segs: 65_535, udp: true, hw: false };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn cutting_gives_the_frames_of_a_plain_sender(
        s in spec(), len in 1usize..20_000, mss in 1u32..3000, cuts in prop::collection::vec(1usize..5000, 0..12),
        known in any::<bool>(),
    ) {
        let mss = mss.max(len as u32 / 1000 + 1);
        let mut w = World::new();
        let payload = bytes(1, len);
        let mut skb = super_skb(&mut w, &s, &payload, &cuts, mss);
        skb.csum = Csum::Unnecessary;
        skb.tx_done = TxDoneToken(9);
        let truesize = skb.truesize;
        skb.payload_sum = known.then(|| checksum::sum(&payload));
        let frames = s.frames(&payload, mss as usize);
        let mut out = SkbBatch::new();
        let n = segment(skb, 0, &mut w.cx(), CsumMode::Fill, &mut out).unwrap();
        prop_assert_eq!(n, frames.len());
        let got: Vec<_> = out.iter().map(Skb::to_vec).collect();
        prop_assert_eq!(got, frames);
        let tokens: Vec<_> = out.iter().filter(|f| !f.tx_done.is_none()).map(|f| f.truesize).collect();
        prop_assert_eq!(tokens, [truesize]);
        w.free(&mut out);
        w.assert_home();
    }

    #[test]
    fn a_device_completes_what_is_left_partial(s in spec(), len in 1usize..9000, mss in 100u32..3000) {
        let mut w = World::new();
        let payload = bytes(2, len);
        let mut skb = super_skb(&mut w, &s, &payload, &[], mss);
        skb.csum = Csum::Unnecessary;
        if len as u32 <= mss {
            // One frame goes on as it is; its checksum is there already.
            w.skbs.free(skb, &mut w.pool);
            return Ok(());
        }
        let mut out = SkbBatch::new();
        segment(skb, 0, &mut w.cx(), CsumMode::LeavePartial, &mut out).unwrap();
        for f in out.iter_mut() {
            let is_partial = matches!(f.csum, Csum::Partial { .. });
            prop_assert!(is_partial);
            prop_assert!(csum::fill_partial(f, &KERNELS));
            prop_assert_eq!(f.csum, Csum::None);
        }
        let got: Vec<_> = out.iter().map(Skb::to_vec).collect();
        prop_assert_eq!(got, s.frames(&payload, mss as usize));
        w.free(&mut out);
        w.assert_home();
    }

    #[test]
    fn merging_undoes_cutting(s in spec(), len in 1usize..50_000, mss in 600u32..3000) {
        let mut w = World::new();
        let payload = bytes(3, len);
        let mut s = s;
        if s.udp {
            // More datagrams than the limit of a merged skb would make two.
            s.flags = 0;
        }
        let mss = if s.udp { mss.max(len as u32 / 60) } else { mss };
        // A frame with FIN or PSH alone is never held, and a frame that does not fill the segment size ends one.
        let frames: Vec<Skb> = s
            .frames(&payload, mss as usize)
            .iter()
            .map(|f| skb_of(&mut w, &f[..s.header_len()], &f[s.header_len()..], &[]))
            .collect();
        let n = frames.len();
        let mut out = merge(&mut w, ALL, frames);
        prop_assert_eq!(out.len(), 1);
        let skb = out.pop_front().unwrap();
        prop_assert_eq!(skb.csum == Csum::Unnecessary, true);
        if n > 1 {
            let at = s.l4() + if s.udp { 6 } else { 16 };
            let (mut got, mut want) = (skb.to_vec(), super_bytes(&s, &payload));
            got[at..at + 2].fill(0);
            want[at..at + 2].fill(0);
            prop_assert!(got == want);
            prop_assert_eq!((skb.gso_size, skb.gso_segs), (mss, n as u32));
            prop_assert!(skb.flags.contains(SkbFlags::GRO));
        }
        w.skbs.free(skb, &mut w.pool);
        w.assert_home();
    }

    #[test]
    fn cutting_undoes_merging_whatever_comes(
        base in spec(), seed in any::<u64>(), n in 1usize..80, max_size in 2000u32..70_000, max_frags in 1usize..40,
    ) {
        let mut w = World::new();
        let mut rng = Rng::new(seed);
        let frames = mutated_frames(&base, &mut rng, n);
        let skbs: Vec<Skb> = frames.iter().map(|f| random_skb(&mut w, &mut rng, f)).collect();
        let cfg = GroConfig { max_size, max_frags, ..ALL };
        let mut out = merge(&mut w, cfg, skbs);
        for skb in out.iter() {
            prop_assert!(!skb.is_gso() || (skb.len() < max_size && skb.nr_frags() <= max_frags));
        }
        // Between flows the order may change, within one it may not.
        let got = cut(&mut w, &mut out);
        let of_flow = |all: &[Vec<u8>], port: u8| -> Vec<Vec<u8>> {
            all.iter().filter(|f| f.get(base.l4() + 1) == Some(&port)).cloned().collect()
        };
        for port in 0..3 {
            prop_assert!(of_flow(&got, port) == of_flow(&frames, port));
        }
        prop_assert_eq!(got.len(), frames.len());
        w.assert_home();
    }

    #[test]
    fn the_verdict_is_that_of_a_slow_sum(
        s in spec(), len in 0usize..6000, cuts in prop::collection::vec(1usize..700, 0..9), flip in any::<Option<u32>>(),
    ) {
        let mut w = World::new();
        let payload = bytes(4, len);
        let mut frame = s.header(&payload);
        frame.extend(&payload);
        // Only bits that the checksum covers, and not the lengths and offsets.
        let flipped = flip.map(|bit| {
            let bit = bit as usize % (frame.len() * 8 - s.l4() * 8) + s.l4() * 8;
            frame[bit / 8] ^= 1 << (bit % 8);
            bit / 8 - s.l4()
        });
        let mut skb = skb_of(&mut w, &frame[..s.header_len()], &frame[s.header_len()..], &cuts);
        let complete = checksum::sum(&frame);
        let want = match flipped {
            None => Verdict::Good,
            Some(at) if !s.udp && at == 12 => Verdict::NotChecked,
            Some(4 | 5) if s.udp => Verdict::NotChecked,
            Some(_) => Verdict::Bad,
        };
        let got = csum::check_l4(&mut skb, &KERNELS);
        prop_assert!(got == want || want == Verdict::NotChecked, "{:?} for {:?}", got, want);
        if want != Verdict::NotChecked {
            prop_assert_eq!(skb.csum == Csum::Unnecessary, want == Verdict::Good);
            skb.csum = Csum::Complete(complete);
            prop_assert_eq!(csum::check_l4(&mut skb, &KERNELS), want);
            prop_assert_eq!(csum::sum_from(&skb, 3, u32::MAX, &KERNELS) % 0xffff, checksum::sum(&frame[3..]) % 0xffff);
        }
        w.skbs.free(skb, &mut w.pool);
        w.assert_home();
    }

    #[test]
    fn random_bytes_neither_panic_nor_get_lost(
        packets in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..200), any::<[u32; 4]>()), 1..30),
    ) {
        let mut w = World::new();
        let skbs: Vec<Skb> = packets.iter().map(|(b, r)| hostile_skb(&mut w, b, r)).collect();
        let total: u32 = skbs.iter().map(Skb::len).sum();
        let mut out = merge(&mut w, ALL, skbs);
        prop_assert_eq!(out.iter().map(Skb::len).sum::<u32>() <= total, true);
        let mut cut = SkbBatch::new();
        while let Some(skb) = out.pop_front() {
            let before = skb.data_len();
            let at = cut.len();
            match segment(skb, 0, &mut w.cx(), CsumMode::Fill, &mut cut) {
                Ok(n) => {
                    prop_assert_eq!(cut.len(), at + n);
                    prop_assert_eq!(cut.iter().skip(at).map(Skb::data_len).sum::<u32>(), before);
                }
                Err((skb, _)) => {
                    prop_assert_eq!((skb.data_len(), cut.len()), (before, at));
                    w.skbs.free(skb, &mut w.pool);
                }
            }
        }
        w.free(&mut cut);
        w.assert_home();
    }
}

fn super_bytes(s: &Spec, payload: &[u8]) -> Vec<u8> {
    let mut b = s.header(payload);
    b.extend(payload);
    b
}

/// Frames of up to three flows (told apart by the low byte of the source port) that mostly follow each other, with
/// everything that must end a super-packet thrown in.
fn mutated_frames(base: &Spec, rng: &mut Rng, n: usize) -> Vec<Vec<u8>> {
    let mut flows: Vec<Spec> = (0..3).map(|i| Spec { ports: (0x1400 + i, base.ports.1), ..base.clone() }).collect();
    let mut frames = Vec::new();
    for _ in 0..n {
        let s = &mut flows[rng.below(3) as usize];
        let len = if rng.chance(0.8) { 500 } else { rng.below(900) as usize };
        let mut f = s.clone();
        f.flags = 0x10 | if rng.chance(0.1) { rng.next_u32() as u8 } else { 0 };
        if rng.chance(0.05) {
            let field = rng.below(7);
            match field {
                0 => f.ttl ^= 1,
                1 => f.tos ^= 3,
                2 => f.ack ^= 1,
                3 => f.seq ^= 512,
                4 => f.ident ^= 7,
                5 => f.df = !f.df,
                _ => f.window ^= 1,
            }
        }
        let payload = bytes(rng.next_u64(), len);
        let mut bytes = super_bytes(&f, &payload);
        if rng.chance(0.03) {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
        }
        frames.push(bytes);
        s.seq = s.seq.wrapping_add(len as u32);
        s.ident = s.ident.wrapping_add(u16::from(rng.chance(0.9)));
    }
    frames
}

fn random_skb(w: &mut World, rng: &mut Rng, frame: &[u8]) -> Skb {
    let l4 = if frame[0] >> 4 == 6 { 40 } else { 20 };
    let udp = frame[if l4 == 40 { 6 } else { 9 }] == 17;
    let len = l4 + if udp { 8 } else { usize::from(frame[l4 + 12] >> 4) * 4 };
    let cuts: Vec<usize> = (0..rng.below(3)).map(|_| 1 + rng.below(300) as usize).collect();
    let mut skb = skb_of(w, &frame[..len], &frame[len..], &cuts);
    // A number that says nothing about the flow.
    skb.hash = rng.next_u32() & 3;
    if rng.chance(0.2) {
        skb.csum = Csum::Complete(checksum::sum(frame));
    }
    skb
}

/// Any bytes, often with a plausible first byte and protocol, and any offload fields.
fn hostile_skb(w: &mut World, b: &[u8], r: &[u32; 4]) -> Skb {
    let mut b = Vec::from(b);
    if r[0] & 3 != 0 && b.len() > 44 {
        let v6 = r[0] & 1 == 0;
        b[0] = if v6 { 0x60 } else { 0x45 };
        let proto = if r[1] & 1 == 0 { 6 } else { 17 };
        let len = if v6 { b.len() - 40 } else { b.len() } as u16;
        let (at, lens) = if v6 { (6, 4) } else { (9, 2) };
        b[at] = proto;
        if !r[1].is_multiple_of(3) {
            b[lens..lens + 2].copy_from_slice(&len.to_be_bytes());
            b[if v6 { 52 } else { 32 }.min(len as usize)] = (r[1] >> 16) as u8;
        }
        if !v6 {
            b[6] = 0x40;
            b[7] = 0;
        }
    }
    let head = (r[2] as usize % (b.len() + 1)).min(190);
    let mut skb = skb_of(w, &b[..head], &b[head..], &[r[2] as usize % 50]);
    skb.gso_size = if r[3].is_multiple_of(3) { r[3] >> 8 } else { r[3] % 60 };
    skb.gso_segs = r[3] % 70;
    skb.gso_type = [GsoType::None, GsoType::TcpV4, GsoType::TcpV6, GsoType::UdpL4][r[3] as usize % 4];
    skb.csum = match r[0] >> 8 & 3 {
        0 => Csum::None,
        1 => Csum::Unnecessary,
        2 => Csum::Complete(r[1]),
        _ => Csum::Partial { start: r[1] as u16 % 300, offset: (r[1] >> 16) as u16 },
    };
    skb
}

#[test]
fn super_packets_of_a_device_merge_again() {
    let mut w = World::new();
    for (v6, sizes) in [(false, [8, 8, 3]), (true, [4, 1, 2])] {
        let s = Spec::tcp(v6);
        let payload = bytes(5, 20_000);
        let mut at = 0;
        let parts: Vec<Skb> = sizes
            .iter()
            .map(|n| {
                let len = n * 1000;
                let mut part = Spec { seq: s.seq.wrapping_add(at as u32), ..s.clone() };
                part.ident = s.ident.wrapping_add(at as u16 / 1000);
                let mut skb = super_skb(&mut w, &part, &payload[at..at + len], &[], 1000);
                if *n == 1 {
                    (skb.gso_size, skb.gso_segs, skb.gso_type) = (0, 0, GsoType::None);
                }
                skb.csum = Csum::Unnecessary;
                at += len;
                skb
            })
            .collect();
        let mut out = merge(&mut w, ALL, parts);
        assert_eq!(out.len(), 1);
        assert_eq!(out.front().map(|s| (s.gso_size, s.gso_segs)), Some((1000, sizes.iter().sum::<usize>() as u32)));
        assert_eq!(cut(&mut w, &mut out), s.frames(&payload[..at], 1000));
    }
    w.assert_home();
}

#[test]
fn a_fixed_identification_survives() {
    let mut w = World::new();
    let s = Spec { ident: 7, ..Spec::tcp(false) };
    let payload = bytes(6, 5000);
    let frames: Vec<Vec<u8>> = (0..5)
        .map(|i| {
            let part = Spec { seq: s.seq.wrapping_add(i * 1000), ..s.clone() };
            super_bytes(&part, &payload[i as usize * 1000..][..1000])
        })
        .collect();
    let skbs: Vec<Skb> = frames.iter().map(|f| skb_of(&mut w, &f[..52], &f[52..], &[])).collect();
    let mut out = merge(&mut w, ALL, skbs);
    assert_eq!(out.len(), 1);
    assert!(out.front().unwrap().flags.contains(SkbFlags::FIXED_ID));
    assert_eq!(cut(&mut w, &mut out), frames);
    w.assert_home();
}

#[test]
fn pages_of_two_sides_are_not_mixed() {
    let mut w = World::new();
    let mut far = World::new();
    let s = Spec::tcp(true);
    let payload = bytes(7, 3000);
    let frames = s.frames(&payload, 1000);
    let skbs: Vec<Skb> = frames
        .iter()
        .enumerate()
        .map(|(i, f)| skb_of(if i == 1 { &mut far } else { &mut w }, &f[..72], &f[72..], &[]))
        .collect();
    let mut out = merge(&mut w, ALL, skbs);
    assert_eq!(out.len(), 3);
    w.free(&mut out);
    w.assert_home();
    far.assert_home();
}

#[test]
fn a_full_bucket_lets_the_oldest_go() {
    let mut w = World::new();
    let (mut gro, mut out) = (Gro::new(ALL), SkbBatch::new());
    for i in 0..20u16 {
        let s = Spec { ports: (i, 1), ..Spec::tcp(false) };
        let payload = bytes(u64::from(i), 100);
        let mut skb = skb_of(&mut w, &s.header(&payload), &payload, &[]);
        skb.hash = 8;
        skb.flags.insert(SkbFlags::L4_HASH);
        gro.receive(&mut w.cx(), skb, &mut out);
        assert_eq!(gro.held(), usize::from(i + 1).min(8));
    }
    let ports: Vec<u8> = out.iter().map(|s| s.head()[21]).collect();
    assert_eq!(ports, Vec::from_iter(0..12));
    gro.flush(&mut w.cx(), &mut out);
    assert_eq!(out.len(), 20);
    w.free(&mut out);
    w.assert_home();
}

#[test]
fn what_can_not_be_cut_comes_back_with_a_reason() {
    let mut w = World::new();
    let payload = bytes(8, 4000);
    let s = Spec::tcp(false);
    let reason = |w: &mut World, gso_size: u32, edit: &dyn Fn(&mut Skb)| {
        let mut skb = super_skb(w, &s, &payload, &[], 1000);
        edit(&mut skb);
        let mut out = SkbBatch::new();
        let r = segment(skb, gso_size, &mut w.cx(), CsumMode::Fill, &mut out);
        assert!(out.is_empty());
        r.map_err(|(skb, reason)| {
            w.skbs.free(skb, &mut w.pool);
            reason
        })
    };
    assert_eq!(reason(&mut w, 0, &|s| s.gso_size = 0), Err(DropReason::SkbGsoSeg));
    assert_eq!(reason(&mut w, 0, &|s| s.trim(52)), Err(DropReason::PktTooSmall));
    assert_eq!(reason(&mut w, 0, &|s| s.gso_type = GsoType::TcpV6), Err(DropReason::SkbGsoSeg));
    assert_eq!(reason(&mut w, 0, &|s| s.gso_type = GsoType::UdpL4), Err(DropReason::SkbGsoSeg));
    assert_eq!(reason(&mut w, 0, &|s| s.head_mut()[6] = 0x20), Err(DropReason::IpFragment));
    assert_eq!(reason(&mut w, 0, &|s| s.head_mut()[32] = 0xf0), Err(DropReason::TcpHdr));
    assert!(reason(&mut w, 0, &|s| assert!(s.pull_to_head(60))).is_err());
    w.skbs = SkbCache::new(3);
    assert_eq!(reason(&mut w, 0, &|_| ()), Err(DropReason::NoMem));
    // Too many frames, and frames too long for the 16-bit fields.
    w = World::new();
    let long = bytes(9, 140_000);
    for (mss, why) in [(1, DropReason::SkbGsoSeg), (70_000, DropReason::PktTooBig)] {
        let skb = super_skb(&mut w, &s, &long, &[], mss);
        let (skb, reason) = segment(skb, 0, &mut w.cx(), CsumMode::Fill, &mut SkbBatch::new()).unwrap_err();
        assert_eq!((reason, skb.data_len()), (why, 140_000));
        w.skbs.free(skb, &mut w.pool);
    }
    w.assert_home();
}

#[test]
fn lengths_beyond_16_bits_are_believed_only_from_a_super_packet() {
    let mut w = World::new();
    let s = Spec::tcp(true);
    let payload = bytes(10, 200_000);
    let mut skb = super_skb(&mut w, &s, &payload, &[], 1428);
    assert_eq!(Headers::parse(&skb).map(|h| h.l4_len), Ok(200_032));
    skb.gso_size = 0;
    assert!(Headers::parse(&skb).is_ok_and(|h| h.l4_len == 0) || Headers::parse(&skb).is_err());
    skb.gso_size = 1428;
    skb.csum = Csum::Unnecessary;
    let mut out = SkbBatch::new();
    segment(skb, 0, &mut w.cx(), CsumMode::Fill, &mut out).unwrap();
    assert_eq!(cut(&mut w, &mut out), s.frames(&payload, 1428));
    w.assert_home();
}

#[test]
fn udp_without_a_checksum_stays_without() {
    let mut w = World::new();
    let s = Spec { udp: true, options: Vec::new(), ..Spec::tcp(false) };
    let payload = bytes(11, 3000);
    let mut skb = super_skb(&mut w, &s, &payload, &[], 1000);
    skb.head_mut()[26..28].fill(0);
    let mut out = SkbBatch::new();
    segment(skb, 0, &mut w.cx(), CsumMode::Fill, &mut out).unwrap();
    for f in out.iter_mut() {
        assert_eq!(f.head()[26..28], [0, 0]);
        assert_eq!(csum::check_l4(f, &KERNELS), Verdict::Good);
        f.csum = Csum::None;
    }
    // And is not merged: cutting would have to invent one.
    let frames: Vec<Skb> = out.into_iter().collect();
    let mut out = merge(&mut w, ALL, frames);
    assert_eq!(out.len(), 3);
    w.free(&mut out);
    w.assert_home();
}

/// Fragments and packets with options or extension headers are not held, and do not overtake what of their flow is.
#[test]
fn what_can_not_be_held_does_not_overtake() {
    for (v6, udp) in [(false, true), (false, false), (true, true), (true, false)] {
        let s = Spec { udp, options: Vec::new(), ..Spec::tcp(v6) };
        let payload = bytes(5, 1000);
        let held = s.header(&payload);
        let mut later = held.clone();
        if v6 {
            // A fragment header in between: the last fragment of something.
            let next = later[6];
            later[6] = 44;
            later[4..6].copy_from_slice(&(8 + (held.len() - 40 + payload.len()) as u16).to_be_bytes());
            later.splice(40..40, [next, 0, 0, 8, 0, 0, 0, 1]);
        } else {
            later[6..8].copy_from_slice(&[0, 1]);
        }
        let mut w = World::new();
        let frames = [held.clone(), held, later].map(|h| skb_of(&mut w, &h, &payload, &[]));
        let (mut gro, mut out) = (Gro::new(ALL), SkbBatch::new());
        for f in frames {
            gro.receive(&mut w.cx(), f, &mut out);
        }
        assert_eq!(gro.held(), 0, "{s:?}");
        gro.flush(&mut w.cx(), &mut out);
        let last = out.iter().last().unwrap();
        let is_later = if v6 { last.head()[6] == 44 } else { last.head()[7] == 1 };
        assert!(is_later, "{s:?}");
        w.free(&mut out);
        w.assert_home();
    }
    // What belongs to no flow that could be held leaves them alone.
    let (s, payload, mut w) = (Spec::tcp(false), bytes(6, 500), World::new());
    let mut other = s.header(&payload);
    other[9] = 50;
    let frames = [s.header(&payload), other].map(|h| skb_of(&mut w, &h, &payload, &[]));
    let (mut gro, mut out) = (Gro::new(ALL), SkbBatch::new());
    for f in frames {
        gro.receive(&mut w.cx(), f, &mut out);
    }
    assert_eq!((gro.held(), out.len()), (1, 1));
    gro.flush(&mut w.cx(), &mut out);
    w.free(&mut out);
    w.assert_home();
}

/// The verification suite of Microsoft's RSS specification.
#[test]
fn toeplitz_gives_the_published_hashes() {
    let key: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];
    let t = Toeplitz::new(key);
    let vectors = [
        ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
        ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
        ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
        ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x4b61_e985, 0x02d1_feef),
    ];
    for (src, dst, addrs, flow) in vectors {
        let (src, dst): (core::net::SocketAddr, core::net::SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        assert_eq!(t.hash_addrs(src.ip(), dst.ip()), addrs, "{src} {dst}");
        assert_eq!(t.hash_flow(src, dst), flow, "{src} {dst}");
    }
    let table = IndirectionTable::even(3);
    assert_eq!((0..7).map(|h| table.queue(h)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
}

/// The flush rules one by one: four frames of 500 bytes, the third one changed, and how many frames each skb has that
/// comes out.
#[test]
fn what_does_not_fit_ends_a_super_packet() {
    type Edit = fn(&mut Spec, &mut Vec<u8>);
    let rules: &[(&str, Edit, &[u32])] = &[
        ("nothing", |_, _| (), &[4]),
        ("shorter", |_, p| p.truncate(499), &[3, 1]),
        ("longer", |_, p| p.push(0), &[2, 1, 1]),
        ("no payload", |_, p| p.clear(), &[2, 1, 1]),
        ("psh", |s, _| s.flags |= 0x08, &[3, 1]),
        ("fin", |s, _| s.flags |= 0x01, &[3, 1]),
        ("syn", |s, _| s.flags |= 0x02, &[2, 1, 1]),
        ("rst", |s, _| s.flags |= 0x04, &[2, 1, 1]),
        ("urg", |s, _| s.flags |= 0x20, &[2, 1, 1]),
        ("ece", |s, _| s.flags |= 0x40, &[2, 1, 1]),
        // May begin a super-packet, so that cutting puts it on the first frame; not go on in one.
        ("cwr", |s, _| s.flags |= 0x80, &[2, 2]),
        ("acknowledgement", |s, _| s.ack += 1, &[2, 1, 1]),
        ("window", |s, _| s.window += 1, &[2, 1, 1]),
        ("timestamp", |s, _| s.options[7] += 1, &[2, 1, 1]),
        ("fewer options", |s, _| s.options.truncate(4), &[2, 1, 1]),
        ("ttl", |s, _| s.ttl -= 1, &[2, 1, 1]),
        ("congestion mark", |s, _| s.tos |= 3, &[2, 1, 1]),
        ("a hole", |s, _| s.seq += 500, &[2, 1, 1]),
        ("other flow", |s, _| s.ports.0 += 1, &[2, 1, 1]),
    ];
    let mut w = World::new();
    for v6 in [false, true] {
        for (what, edit, want) in rules {
            let base = Spec { seq: 9, ident: 9, ..Spec::tcp(v6) };
            let skbs: Vec<Skb> = (0..4u16)
                .map(|i| {
                    let mut s = Spec { ident: 9 + i, seq: 9 + 500 * u32::from(i), ..base.clone() };
                    let mut payload = bytes(u64::from(i), 500);
                    if i == 2 {
                        edit(&mut s, &mut payload);
                    }
                    skb_of(&mut w, &s.header(&payload), &payload, &[])
                })
                .collect();
            let mut out = merge(&mut w, ALL, skbs);
            let got: Vec<u32> = out.iter().map(|s| s.wire_pkts()).collect();
            assert_eq!(&got[..], *want, "{what}, v6 {v6}");
            w.free(&mut out);
        }
    }
    w.assert_home();
}

/// The identification may count or stay, but not change its mind; without DF it must count.
#[test]
fn identifications_count_or_stay() {
    let mut w = World::new();
    let rules: [([u16; 4], bool, &[u32]); 5] = [
        ([0xffff, 0, 1, 2], false, &[4]),
        ([7, 7, 7, 7], true, &[4]),
        ([7, 7, 7, 7], false, &[1, 1, 1, 1]),
        ([7, 7, 8, 9], true, &[2, 2]),
        ([7, 8, 8, 9], true, &[2, 2]),
    ];
    for (idents, df, want) in rules {
        let skbs: Vec<Skb> = (0..4u32)
            .map(|i| {
                let s = Spec { ident: idents[i as usize], df, seq: 500 * i, ..Spec::tcp(false) };
                let payload = bytes(u64::from(i), 500);
                skb_of(&mut w, &s.header(&payload), &payload, &[])
            })
            .collect();
        let mut out = merge(&mut w, ALL, skbs);
        let got: Vec<u32> = out.iter().map(|s| s.wire_pkts()).collect();
        assert_eq!(got, want, "{idents:?} df {df}");
        w.free(&mut out);
    }
    w.assert_home();
}
