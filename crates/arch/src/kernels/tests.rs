use std::vec;
use std::vec::Vec;

use super::*;
use crate::{checksum, combine, fold, sum_u16, sum_words};

/// Every variant that this machine can run.
fn variants() -> Vec<Kernels> {
    let mut all = vec![Kernels::portable()];
    let best = Kernels::select(Cpu::detect());
    if best != all[0] {
        all.push(best);
    }
    all
}

/// RFC 1071 by the letter: byte pairs, big-endian, carries folded at once.
fn reference(bytes: &[u8]) -> u32 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| u32::from(b));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    sum
}

/// SplitMix64: enough randomness for bytes.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Checks one block against the reference with every operation; guard bytes around `dst` must survive.
fn check(k: Kernels, src: &[u8], dst_offset: usize) {
    const GUARD: u8 = 0xa5;
    let len = src.len();
    let want = reference(src);
    assert_eq!(k.sum(src), want, "{} sum of {len} bytes", k.name());
    let span = dst_offset..dst_offset + len;
    let mut room = vec![GUARD; dst_offset + len + 40];
    let verify = |room: &mut Vec<u8>, what: &str| {
        assert_eq!(room[span.clone()], *src, "{} {what} of {len} bytes to +{dst_offset}", k.name());
        assert!(room[..span.start].iter().chain(&room[span.end..]).all(|&b| b == GUARD), "{what} wrote outside");
        room.fill(GUARD);
    };
    assert_eq!(k.copy_sum(&mut room[span.clone()], src), want, "{} copy_sum of {len} bytes", k.name());
    verify(&mut room, "copy_sum");
    k.nt_copy(&mut room[span.clone()], src);
    verify(&mut room, "nt_copy");
    k.copy(&mut room[span.clone()], src);
    verify(&mut room, "copy");
}

#[test]
fn detection_agrees_with_the_standard_library() {
    let cpu = Cpu::detect();
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        assert_eq!(cpu.avx2, std::is_x86_feature_detected!("avx2"));
        assert_eq!(cpu.avx512, std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bw"));
        assert_eq!(cpu.erms, std::is_x86_feature_detected!("ermsb"));
        assert_eq!(Kernels::select(cpu).name(), if cpu.avx2 { "avx2" } else { "portable" });
    }
    assert_eq!(Kernels::select(Cpu::PORTABLE), Kernels::portable());
    let claim_all = Cpu { avx2: true, avx512: true, erms: true, fsrm: true };
    assert_eq!(Kernels::select(claim_all), Kernels::select(cpu), "a claim beyond the hardware is ignored");
}

#[test]
fn every_variant_equals_the_reference_at_all_lengths_and_alignments() {
    let mut random = Random(1);
    let pool = random.bytes(512);
    for k in variants() {
        for len in 0..300 {
            for align in 0..32 {
                check(k, &pool[align..align + len], (align * 7 + len) % 33);
            }
        }
    }
}

#[test]
fn every_variant_equals_the_reference_at_random_sizes() {
    let mut random = Random(2);
    for _ in 0..30 {
        let len = random.below(600_000);
        let (skip, offset) = (random.below(64), random.below(64));
        let pool = random.bytes(len + skip);
        for k in variants() {
            check(k, &pool[skip..], offset);
        }
    }
}

/// Carries everywhere, and the two forms of zero.
#[test]
fn extreme_bytes() {
    for k in variants() {
        for len in [0, 1, 2, 3, 31, 32, 63, 64, 65, 127, 128, 4096, 65_535, 1 << 20] {
            check(k, &vec![0xff; len], 3);
            check(k, &vec![0; len], 3);
            let mut one = vec![0; len];
            if let Some(last) = one.last_mut() {
                *last = 1;
            }
            check(k, &one, 1);
        }
        assert_eq!(k.sum(&[0xff; 400]), 0xffff);
        assert_eq!(k.sum(&[0; 400]), 0);
    }
}

#[test]
fn blocks_combine_at_any_offset() {
    let mut random = Random(3);
    for _ in 0..300 {
        let len = 1 + random.below(3000);
        let bytes = random.bytes(len);
        let (i, j) = (random.below(len + 1), random.below(len + 1));
        let (i, j) = (i.min(j), i.max(j));
        for k in variants() {
            let (a, b, c) = (k.sum(&bytes[..i]), k.sum(&bytes[i..j]), k.sum(&bytes[j..]));
            assert_eq!(combine(combine(a, b, i), c, j), reference(&bytes), "cut at {i} and {j} of {len}");
            assert_eq!(combine(a, combine(b, c, j - i), i), reference(&bytes), "associative");
        }
    }
}

#[test]
fn uninitialised_memory_is_filled() {
    let src = Random(4).bytes(1000);
    for k in variants() {
        let mut room = vec![MaybeUninit::<u8>::uninit(); 1000];
        assert_eq!(k.copy_uninit(&mut room, &src), src);
        let mut room = vec![MaybeUninit::<u8>::uninit(); 1000];
        let (filled, sum) = k.copy_sum_uninit(&mut room, &src);
        assert_eq!((&*filled, sum), (&src[..], reference(&src)));
        let mut room = vec![MaybeUninit::<u8>::uninit(); 1000];
        assert_eq!(k.nt_copy_uninit(&mut room, &src), src);
    }
}

#[test]
#[should_panic(expected = "different lengths")]
fn lengths_must_agree() {
    Kernels::portable().copy_sum(&mut [0; 4], &[0; 5]);
}

/// The example of RFC 1071 section 3, and a header that contains its checksum.
#[test]
fn known_checksums() {
    let k = Kernels::select(Cpu::detect());
    assert_eq!(fold(k.sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    let mut header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 0x01, 0xc0, 0xa8, 0, 0xc7];
    let field = checksum(k.sum(&header));
    assert_eq!(field, 0xb861);
    header[10..12].copy_from_slice(&field.to_be_bytes());
    assert_eq!(checksum(k.sum(&header)), 0);
}

#[test]
fn fields_add_like_their_bytes() {
    let mut random = Random(5);
    for _ in 0..1000 {
        let words: [u32; 4] = core::array::from_fn(|_| random.next() as u32);
        let field = random.next() as u16;
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        bytes.extend(field.to_be_bytes());
        assert_eq!(sum_u16(sum_words(&words), field), reference(&bytes));
    }
    assert_eq!((sum_words(&[]), fold(u32::MAX), fold(0x1_ffff)), (0, 0xffff, 1));
}

#[test]
fn hints_and_counters_do_no_harm() {
    let bytes = [1u8, 2, 3];
    crate::prefetch_read(&bytes);
    crate::prefetch_read::<[u8]>(&[]);
    crate::prefetch_read_part(&[0_u8; 1000], 100..900);
    crate::prefetch_read_part(&[0_u8; 1000], 0..1);
    crate::prefetch_read_part(&(), 0..0);
    assert_eq!(bytes, [1, 2, 3]);
    let first = crate::cycles();
    assert!(crate::cycles() >= first || cfg!(not(target_arch = "x86_64")));
}
