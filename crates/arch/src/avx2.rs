//! Kernels for x86-64 with AVX2: 32 bytes an instruction.
//!
//! **Sum.** `vpmaddwd` with ones adds the two 16-bit words of every 32-bit lane, but takes them as signed. So each word's top
//! bit is flipped first, which makes it its value less 2^15, and the vectors are counted: what was taken away is given
//! back as a whole at the end. Three instructions a vector, and the sum is the plain integer sum of the words. A lane
//! moves by at most 2^16 a vector, so a [`PIECE`] stays within 32 bits through the final addition of all lanes.
//!
//! **Ends.** What a whole number of vectors leaves over is one more vector that ends at the end, its bytes that were
//! taken before masked out (for a copy: written twice, alike). An odd last byte goes by itself, so that words stay
//! words. This is why these functions want at least one vector; shorter input is the portable kernels'.
//!
//! **Copy.** Plain vectors through the caches. The C library moves some kilobytes and more by `rep movsb`, which on several
//! cores (Zen 3 among them) loses up to a third when source and destination lie unluckily to each other.
//!
//! **Non-temporal copy.** Stores that go around the caches, for bytes that this core will not read again. Such stores want
//! aligned addresses (a prologue of plain bytes) and are weakly ordered, so each call ends with `sfence`: what the caller
//! publishes afterwards with a release store really is behind the bytes.
//!
//! Loads are unaligned: modern cores charge only for a crossed cache line, and a prologue would cost more.
//! Invariants: reads only within `src` and writes only within the `src.len()` bytes at `dst`, all of them. All functions
//! need AVX2.

use core::arch::x86_64::{
    __m256i, _mm_add_epi32, _mm_cvtsi128_si32, _mm_sfence, _mm_shuffle_epi32, _mm256_add_epi32, _mm256_and_si256,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi16,
    _mm256_setzero_si256, _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256,
};

use crate::sum::add_u64;

pub(crate) const VECTOR: usize = size_of::<__m256i>();
/// Bytes per turn of the unrolled loop: two cache lines.
const BLOCK: usize = 4 * VECTOR;
/// Input of one accumulation: 2^11 vectors and one more of at most 2^16 in each of 8 lanes is 2^30 and a little.
const PIECE: usize = 1 << 16;

/// Read at offset `n`: the mask that keeps the last `n` bytes of a vector.
static KEEP_LAST: [u8; 2 * VECTOR] = {
    let mut mask = [0; 2 * VECTOR];
    let mut i = VECTOR;
    while i < 2 * VECTOR {
        mask[i] = 0xff;
        i += 1;
    }
    mask
};

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the array is 32 readable bytes; the intrinsic takes any alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// # Safety
/// 32 bytes must be writable at `dst`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(dst: *mut u8, v: __m256i) {
    // SAFETY: writable by contract; the intrinsic takes any alignment.
    unsafe { _mm256_storeu_si256(dst.cast(), v) };
}

/// The last vector of `bytes`, and the part of it that `rest` bytes make.
#[inline]
#[target_feature(enable = "avx2")]
fn last_vector(bytes: &[u8], rest: usize) -> (__m256i, __m256i) {
    debug_assert!(rest < VECTOR && bytes.len() >= VECTOR);
    let (Some(last), Some(mask)) = (bytes.last_chunk(), KEEP_LAST.get(rest..).and_then(|m| m.first_chunk())) else {
        return (_mm256_setzero_si256(), _mm256_setzero_si256());
    };
    let v = load(last);
    (v, _mm256_and_si256(v, load(mask)))
}

/// The sum of the words of several vectors.
#[derive(Clone, Copy)]
struct Acc {
    lanes: [__m256i; 2],
}

impl Acc {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        Self { lanes: [_mm256_setzero_si256(); 2] }
    }

    /// Adds a vector to chain `i`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(&mut self, i: usize, v: __m256i) {
        let signed = _mm256_xor_si256(v, _mm256_set1_epi16(i16::MIN));
        let pairs = _mm256_madd_epi16(signed, _mm256_set1_epi16(1));
        self.lanes[i % 2] = _mm256_add_epi32(self.lanes[i % 2], pairs);
    }

    /// The sum, when `vectors` were added in all.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn reduce(self, vectors: usize) -> u64 {
        let v = _mm256_add_epi32(self.lanes[0], self.lanes[1]);
        let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b00_00_11_10>(v));
        let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b00_00_00_01>(v));
        let taken = (vectors * VECTOR / 2) as i64 * (1 << 15);
        (i64::from(_mm_cvtsi128_si32(v)) + taken).cast_unsigned()
    }
}

/// The wide native-order sum of `bytes`, at least one vector of them.
#[target_feature(enable = "avx2")]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    debug_assert!(bytes.len() >= VECTOR);
    let even = bytes.len() & !1;
    let mut wide = bytes.get(even).map_or(0, |&b| u64::from(u16::from_ne_bytes([b, 0])));
    let bytes = bytes.get(..even).unwrap_or_default();
    for piece in bytes.chunks(PIECE) {
        let mut acc = Acc::new();
        let (blocks, rest) = piece.as_chunks::<BLOCK>();
        for block in blocks {
            for (i, v) in block.as_chunks::<VECTOR>().0.iter().enumerate() {
                acc.add(i, load(v));
            }
        }
        let (vectors, tail) = rest.as_chunks::<VECTOR>();
        for v in vectors {
            acc.add(0, load(v));
        }
        let mut n = piece.len() / VECTOR;
        if !tail.is_empty() {
            // Only the last piece has a tail, so its last vector is that of all bytes.
            acc.add(1, last_vector(bytes, tail.len()).1);
            n += 1;
        }
        wide = add_u64(wide, acc.reduce(n));
    }
    wide
}

/// Copies `src`, at least one vector of bytes, to `dst` and returns their wide sum.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes and must not overlap `src`. It may be uninitialised.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn copy_sum(dst: *mut u8, src: &[u8]) -> u64 {
    debug_assert!(src.len() >= VECTOR);
    let even = src.len() & !1;
    let mut wide = 0;
    if let Some(&last) = src.get(even) {
        wide = u64::from(u16::from_ne_bytes([last, 0]));
        // SAFETY: `even` < the length.
        unsafe { dst.add(even).write(last) };
    }
    let src = src.get(..even).unwrap_or_default();
    let mut out = dst;
    for piece in src.chunks(PIECE) {
        let mut acc = Acc::new();
        let (blocks, rest) = piece.as_chunks::<BLOCK>();
        for block in blocks {
            for (i, v) in block.as_chunks::<VECTOR>().0.iter().enumerate() {
                let v = load(v);
                acc.add(i, v);
                // SAFETY: `out` stands at this block's offset from `dst`, and vector `i` < 4 lies in the block.
                unsafe { store(out.add(i * VECTOR), v) };
            }
            // SAFETY: stays within, or one past the end of, the writable bytes.
            out = unsafe { out.add(BLOCK) };
        }
        let (vectors, tail) = rest.as_chunks::<VECTOR>();
        for v in vectors {
            let v = load(v);
            acc.add(0, v);
            // SAFETY: `out` stands at this vector's offset from `dst`, so 32 bytes are writable there.
            unsafe { store(out, v) };
            // SAFETY: stays within, or one past the end of, the writable bytes.
            out = unsafe { out.add(VECTOR) };
        }
        let mut n = piece.len() / VECTOR;
        if !tail.is_empty() {
            // Only the last piece has a tail, so its last vector is that of all bytes.
            let (whole, part) = last_vector(src, tail.len());
            acc.add(1, part);
            n += 1;
            // SAFETY: `src.len()` bytes, at least 32, are writable at `dst`.
            unsafe { store(dst.add(src.len() - VECTOR), whole) };
        }
        wide = add_u64(wide, acc.reduce(n));
    }
    wide
}

/// Copies `src`, at least one vector of bytes, to `dst` through the caches.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes and must not overlap `src`. It may be uninitialised.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn copy(dst: *mut u8, src: &[u8]) {
    debug_assert!(src.len() >= VECTOR);
    let mut out = dst;
    let (blocks, rest) = src.as_chunks::<BLOCK>();
    for block in blocks {
        let vectors = block.as_chunks::<VECTOR>().0;
        // All loads first: a store whose address looks like a later load's in its low bits would hold that up.
        let v: [__m256i; 4] = [load(&vectors[0]), load(&vectors[1]), load(&vectors[2]), load(&vectors[3])];
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: `out` stands at this block's offset from `dst`, and vector `i` < 4 lies in the block.
            unsafe { store(out.add(i * VECTOR), v) };
        }
        // SAFETY: stays within, or one past the end of, the writable bytes.
        out = unsafe { out.add(BLOCK) };
    }
    for v in rest.as_chunks::<VECTOR>().0 {
        // SAFETY: `out` stands at this vector's offset from `dst`, so 32 bytes are writable there.
        unsafe { store(out, load(v)) };
        // SAFETY: stays within, or one past the end of, the writable bytes.
        out = unsafe { out.add(VECTOR) };
    }
    if let Some(last) = src.last_chunk() {
        // SAFETY: `src.len()` bytes, at least 32, are writable at `dst`.
        unsafe { store(dst.add(src.len() - VECTOR), load(last)) };
    }
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
