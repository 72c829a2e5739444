//! The short way of the merger (the next full frame of the flow that was fed last) against the long way.
//!
//! Frames come from cutting a super-packet, so that their payloads lie behind each other in pages; then some are lost,
//! repeated, swapped, or get a bit of their header or their meta data changed. The same frames go through three mergers:
//! one that may take the short way, one that is made to forget it before each frame, and one that is offered frames before
//! they are skbs, as a device does. What comes out must be equal in bytes and in everything that an skb says about itself.

use linerate_skb::{Frag, SKB_TRUESIZE};

use super::*;
use crate::gro::{NEXT_HEAD, PaddedHead};

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Short,
    Long,
    Device,
}

/// The frames of one super-packet, with accidents.
fn frames(w: &mut World, s: &Spec, len: usize, mss: u32, rng: &mut Rng) -> Vec<Skb> {
    let payload = bytes(3, len);
    let cuts: Vec<usize> = (0..rng.below(4)).map(|_| 1 + rng.below(4000) as usize).collect();
    let skb = super_skb(w, s, &payload, &cuts, mss);
    let mut made = SkbBatch::new();
    segment(skb, 0, &mut w.cx(), CsumMode::Fill, &mut made).unwrap();
    let fixed_id = rng.chance(0.2);
    let mut frames = Vec::new();
    for mut skb in made {
        skb.csum = Csum::None;
        skb.truesize = SKB_TRUESIZE + skb.data_len();
        if fixed_id && !s.v6 {
            skb.head_mut()[4..6].copy_from_slice(&s.ident.to_be_bytes());
            skb.head_mut()[10..12].fill(0);
            let field = checksum::finish(checksum::sum(&skb.head()[..20]));
            skb.head_mut()[10..12].copy_from_slice(&field.to_be_bytes());
        }
        if rng.chance(0.03) {
            w.skbs.free(skb, &mut w.pool);
            continue;
        }
        if rng.chance(0.03) {
            let at = rng.below(skb.head_len() as u64) as usize;
            skb.head_mut()[at] ^= 1 << rng.below(8);
        }
        match rng.below(30) {
            0..6 => skb.csum = Csum::Unnecessary,
            6 => skb.csum = Csum::Complete(rng.next_u32()),
            7 => skb.flags.insert(SkbFlags::ECN_MARKED),
            8 => skb.payload_sum = Some(csum::payload_sum(&skb, &KERNELS)),
            9 => skb.trim(skb.len() - 1),
            _ => {}
        }
        frames.push(skb);
        let n = frames.len();
        if n > 1 && rng.chance(0.03) {
            frames.swap(n - 2, n - 1);
        }
    }
    frames
}

/// What came out: bytes, meta data, fragments.
fn outcome(way: Way, s: &Spec, len: usize, mss: u32, cfg: GroConfig, seed: u64) -> Vec<std::string::String> {
    let (mut w, mut rng) = (World::new(), Rng::new(seed));
    let (mut gro, mut out) = (Gro::new(cfg), SkbBatch::new());
    let frames = frames(&mut w, s, len, mss, &mut rng);
    for mut skb in frames {
        if way == Way::Long {
            gro.forget();
        }
        let plain = matches!(skb.csum, Csum::None | Csum::Unnecessary)
            && skb.payload_sum.is_none()
            && skb.flags == SkbFlags::EMPTY
            && skb.nr_frags() <= 2;
        if way == Way::Device && plain {
            let head = skb.head().to_vec();
            let mut taken: Vec<Frag> = skb.drain_frags().collect();
            let mut frags = [taken.pop(), taken.pop()];
            if frags[1].is_some() {
                frags.swap(0, 1);
            }
            let verified = skb.csum == Csum::Unnecessary;
            // Behind the header of a slot lies what was there before.
            let mut bytes = [0xa5; NEXT_HEAD];
            let fits = bytes.get_mut(..head.len()).map(|to| to.copy_from_slice(&head)).is_some();
            let head = PaddedHead { bytes: &bytes, len: head.len() };
            if fits && gro.merge_next_frame(&w.cx(), head, &mut frags, verified, &mut out) {
                assert!(frags.iter().all(Option::is_none));
                w.skbs.free(skb, &mut w.pool);
                continue;
            }
            frags.into_iter().flatten().for_each(|f| skb.push_frag(f).unwrap());
        }
        gro.receive(&mut w.cx(), skb, &mut out);
    }
    gro.flush(&mut w.cx(), &mut out);
    let said = out
        .iter_mut()
        .map(|skb| {
            let lengths: Vec<u32> = skb.frags().iter().map(Frag::len).collect();
            std::format!("{:?} {lengths:?} {:?}", **skb, skb.to_vec())
        })
        .collect();
    w.free(&mut out);
    drop(gro);
    w.assert_home();
    said
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_short_way_gives_what_the_long_way_gives(
        s in spec(), len in 1usize..40_000, mss in 100u32..2000, seed in any::<u64>(),
        max_size in 3000u32..70_000, max_frags in 1usize..40, max_segs in 1u32..50,
    ) {
        let s = Spec { udp: false, flags: s.flags & if seed % 2 == 0 { 0x50 } else { 0xff }, ..s };
        let cfg = GroConfig { max_size, max_frags, max_segs, ..ALL };
        let long = outcome(Way::Long, &s, len, mss, cfg, seed);
        prop_assert!(outcome(Way::Short, &s, len, mss, cfg, seed) == long);
        prop_assert!(outcome(Way::Device, &s, len, mss, cfg, seed) == long);
    }
}

/// Without accidents nearly all frames go the short way: else it would not be tested by being equal.
#[test]
fn the_short_way_is_the_common_one() {
    for v6 in [false, true] {
        let mut w = World::new();
        let payload = bytes(3, 30_000);
        let skb = super_skb(&mut w, &Spec::tcp(v6), &payload, &[], 1000);
        let (mut made, mut gro, mut out) = (SkbBatch::new(), Gro::new(ALL), SkbBatch::new());
        segment(skb, 0, &mut w.cx(), CsumMode::Fill, &mut made).unwrap();
        for (i, mut skb) in made.into_iter().enumerate() {
            let short = gro.merge_next(&w.cx(), &mut skb, &mut out);
            assert_eq!(short, i > 0, "frame {i}");
            if short {
                w.skbs.free(skb, &mut w.pool);
            } else {
                gro.receive(&mut w.cx(), skb, &mut out);
            }
        }
        gro.flush(&mut w.cx(), &mut out);
        assert_eq!(out.front().map(|s| (s.gso_segs, s.nr_frags())), Some((30, 8)));
        w.free(&mut out);
        w.assert_home();
    }
}
