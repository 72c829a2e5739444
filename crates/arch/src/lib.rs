//! CPU kernels of Linerate: checksum, copy, fused copy and checksum, chosen once from a detected CPU.
//!
//! For now the portable kernels only, with the interface that the layers above build on; the tuned ones replace them here.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

/// The processor that kernels are chosen for. `Default` is the portable one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cpu {}

/// The chosen kernels; all of them give equal results.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernels {}

/// A partial sum (of big-endian 16-bit words, ones' complement) brought into 16 bits.
pub fn fold(sum: u32) -> u16 {
    let s = (sum & 0xffff) + (sum >> 16);
    ((s & 0xffff) + (s >> 16)) as u16
}

/// The partial sum of `a`'s bytes (`len_a` of them) followed by `b`'s.
pub fn combine(a: u32, b: u32, len_a: usize) -> u32 {
    let b = fold(b);
    u32::from(fold(a)) + u32::from(if len_a % 2 == 1 { b.swap_bytes() } else { b })
}

impl Kernels {
    /// The best kernels for `cpu`.
    pub const fn select(_cpu: Cpu) -> Self {
        Self {}
    }
    /// Kernels that run everywhere.
    pub const fn portable() -> Self {
        Self {}
    }
    /// Partial sum of `bytes`.
    pub fn sum(&self, bytes: &[u8]) -> u32 {
        let (words, odd) = bytes.as_chunks::<2>();
        let s: u64 = words.iter().map(|w| u64::from(u16::from_be_bytes(*w))).sum();
        let s = s + odd.first().map_or(0, |b| u64::from(*b) << 8);
        let s = (s & 0xffff_ffff) + (s >> 32);
        let s = (s & 0xffff) + (s >> 16);
        u32::from(fold(((s & 0xffff) + (s >> 16)) as u32))
    }
    /// Copies `src` over `dst`, which is as long.
    pub fn copy(&self, dst: &mut [u8], src: &[u8]) {
        dst.copy_from_slice(src);
    }
    /// Copies `src` over `dst`, which is as long, and returns the partial sum.
    pub fn copy_sum(&self, dst: &mut [u8], src: &[u8]) -> u32 {
        dst.copy_from_slice(src);
        self.sum(src)
    }
}
