//! Kernels for every CPU: 64-bit words with end-around carry, four chains wide.
//!
//! A 64-bit word holds four 16-bit words; adding it with its carry fed back keeps the ones'-complement sum of all of them,
//! in native byte order, and one fold at the end repairs the order. Four independent accumulators hide the latency of the
//! carry. The last bytes are loaded into a zeroed word, which is the padding that RFC 1071 wants.
//!
//! Invariants: reads exactly `len` bytes at `src` and writes exactly `len` bytes at `dst`. Alignment does not matter.
//! The tests hold every other variant to these, and these to a byte-pair loop.

use crate::sum::add_u64;

/// Bytes per turn of the unrolled loops.
const BLOCK: usize = 32;

/// The wide native-order sum of `bytes`.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut acc = [0u64; 4];
    for block in blocks {
        for (a, word) in acc.iter_mut().zip(block.as_chunks::<8>().0) {
            *a = add_u64(*a, u64::from_ne_bytes(*word));
        }
    }
    let wide = add_u64(add_u64(acc[0], acc[1]), add_u64(acc[2], acc[3]));
    add_u64(wide, sum_short(rest))
}

/// [`sum`] without unrolling: for headers and tails.
#[inline]
pub(crate) fn sum_short(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let wide = words.iter().fold(0, |acc, word| add_u64(acc, u64::from_ne_bytes(*word)));
    if tail.is_empty() {
        return wide;
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    add_u64(wide, u64::from_ne_bytes(last))
}

/// Copies `src` to `dst` and returns the wide sum of the bytes.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes and must not overlap `src`. It may be uninitialised.
#[inline]
pub(crate) unsafe fn copy_sum(dst: *mut u8, src: &[u8]) -> u64 {
    let (blocks, rest) = src.as_chunks::<BLOCK>();
    let mut acc = [0u64; 4];
    let mut out = dst;
    for block in blocks {
        for (a, word) in acc.iter_mut().zip(block.as_chunks::<8>().0) {
            *a = add_u64(*a, u64::from_ne_bytes(*word));
        }
        // SAFETY: `out` is BLOCK * (blocks before) into `dst`, so BLOCK bytes are writable there; no overlap by contract.
        unsafe { out.copy_from_nonoverlapping(block.as_ptr(), BLOCK) };
        // SAFETY: one past the block just written is within or one past the end of the `src.len()` writable bytes.
        out = unsafe { out.add(BLOCK) };
    }
    // SAFETY: `rest` is what remains of the `src.len()` bytes behind `out`; no overlap by contract.
    unsafe { out.copy_from_nonoverlapping(rest.as_ptr(), rest.len()) };
    let wide = add_u64(add_u64(acc[0], acc[1]), add_u64(acc[2], acc[3]));
    add_u64(wide, sum_short(rest))
}
