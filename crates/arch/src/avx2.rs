//! Kernels for x86-64 with AVX2: 32 bytes an instruction.
//!
//! Sum: each 32-bit half of a 64-bit lane is added to a 64-bit accumulator, so carries collect in the upper halves and need
//! no care before 2^32 additions (64 GiB through one accumulator); longer input is cut long before that. Four accumulators
//! hide the latency.
//! Loads are unaligned: modern cores charge only for a crossed cache line, and a prologue would cost more.
//!
//! Non-temporal copy: stores that go around the caches, for bytes that this core will not read again. Such stores want
//! aligned addresses (a prologue of plain bytes) and are weakly ordered, so each call ends with `sfence`: what the caller
//! publishes afterwards with a release store really is behind the bytes.
//!
//! Invariants: reads exactly `src.len()` bytes and writes exactly as many. All functions need AVX2.

use core::arch::x86_64::{
    __m256i, _mm_sfence, _mm256_add_epi64, _mm256_and_si256, _mm256_loadu_si256, _mm256_set1_epi64x,
    _mm256_setzero_si256, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_stream_si256,
};

use crate::portable::{self, sum_short};
use crate::sum::add_u64;

const VECTOR: usize = size_of::<__m256i>();
/// Bytes per turn of the unrolled loop: two cache lines.
const BLOCK: usize = 4 * VECTOR;
/// Input of one accumulation: far below the 2^32 additions of 32-bit halves that fill a lane.
const PIECE: usize = 1 << 30;

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the array is 32 readable bytes; the intrinsic takes any alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Adds both 32-bit halves of every 64-bit lane of `v`.
#[inline]
#[target_feature(enable = "avx2")]
fn accumulate(acc: __m256i, v: __m256i) -> __m256i {
    let low = _mm256_and_si256(v, _mm256_set1_epi64x(0xffff_ffff));
    _mm256_add_epi64(_mm256_add_epi64(acc, low), _mm256_srli_epi64::<32>(v))
}

/// The wide sum of four accumulators.
#[inline]
#[target_feature(enable = "avx2")]
fn reduce(acc: [__m256i; 4]) -> u64 {
    let mut wide = 0;
    for v in acc {
        let mut lanes = [0u64; 4];
        // SAFETY: the array is 32 writable bytes; the intrinsic takes any alignment.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), v) };
        wide = lanes.into_iter().fold(wide, add_u64);
    }
    wide
}

/// The wide native-order sum of `bytes`.
#[target_feature(enable = "avx2")]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let mut wide = 0;
    // Pieces are even in length, so their sums add without swapping.
    for piece in bytes.chunks(PIECE) {
        let mut acc = [_mm256_setzero_si256(); 4];
        let (blocks, rest) = piece.as_chunks::<BLOCK>();
        for block in blocks {
            let vectors = block.as_chunks::<VECTOR>().0;
            for i in 0..4 {
                acc[i] = accumulate(acc[i], load(&vectors[i]));
            }
        }
        let (vectors, tail) = rest.as_chunks::<VECTOR>();
        for v in vectors {
            acc[0] = accumulate(acc[0], load(v));
        }
        wide = add_u64(wide, add_u64(reduce(acc), sum_short(tail)));
    }
    wide
}

/// Copies `src` to `dst` and returns the wide sum of the bytes.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes and must not overlap `src`. It may be uninitialised.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn copy_sum(dst: *mut u8, src: &[u8]) -> u64 {
    let mut wide = 0;
    let mut out = dst;
    for piece in src.chunks(PIECE) {
        let mut acc = [_mm256_setzero_si256(); 4];
        let (blocks, rest) = piece.as_chunks::<BLOCK>();
        for block in blocks {
            let vectors = block.as_chunks::<VECTOR>().0;
            for i in 0..4 {
                let v = load(&vectors[i]);
                acc[i] = accumulate(acc[i], v);
                // SAFETY: `out` stands at this block's offset from `dst`, and vector `i` < 4 lies in the block.
                unsafe { _mm256_storeu_si256(out.cast::<__m256i>().add(i), v) };
            }
            // SAFETY: stays within, or one past the end of, the writable bytes.
            out = unsafe { out.add(BLOCK) };
        }
        let (vectors, tail) = rest.as_chunks::<VECTOR>();
        for v in vectors {
            let v = load(v);
            acc[0] = accumulate(acc[0], v);
            // SAFETY: `out` stands at this vector's offset from `dst`, so 32 bytes are writable there.
            unsafe { _mm256_storeu_si256(out.cast(), v) };
            // SAFETY: stays within, or one past the end of, the writable bytes.
            out = unsafe { out.add(VECTOR) };
        }
        // SAFETY: `tail.len()` bytes of this piece are left behind `out`; no overlap by contract.
        let tail_sum = unsafe { portable::copy_sum(out, tail) };
        // SAFETY: as above.
        out = unsafe { out.add(tail.len()) };
        wide = add_u64(wide, add_u64(reduce(acc), tail_sum));
    }
    wide
}

/// Copies `src` to `dst` around the caches.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes and must not overlap `src`. It may be uninitialised.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn nt_copy(dst: *mut u8, src: &[u8]) {
    let head = dst.align_offset(VECTOR).min(src.len());
    let (head, body) = src.split_at(head);
    // SAFETY: the head is a prefix of the writable bytes; no overlap by contract.
    unsafe { dst.copy_from_nonoverlapping(head.as_ptr(), head.len()) };
    // SAFETY: within, or one past the end of, the writable bytes.
    let mut out = unsafe { dst.add(head.len()) };
    let (vectors, tail) = body.as_chunks::<VECTOR>();
    for v in vectors {
        debug_assert!(out.cast::<__m256i>().is_aligned());
        // SAFETY: 32 bytes are writable at `out`, and the prologue aligned it (if it could not, there are no vectors).
        unsafe { _mm256_stream_si256(out.cast(), load(v)) };
        // SAFETY: within, or one past the end of, the writable bytes.
        out = unsafe { out.add(VECTOR) };
    }
    // SAFETY: the tail's bytes are left behind `out`; no overlap by contract.
    unsafe { out.copy_from_nonoverlapping(tail.as_ptr(), tail.len()) };
    _mm_sfence();
}
