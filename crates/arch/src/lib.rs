//! CPU kernels of Linerate: checksum, copy, fused copy and checksum, chosen once from a detected CPU.
//!
//! # Theory
//! Bytes are touched as few times as physics allows, and where they are touched, these functions do it. A [`Cpu`] is plain
//! data: the host detects it and passes it in, a simulation passes [`Cpu::PORTABLE`]. [`Kernels::select`] turns it into a
//! one-byte value with safe methods; dispatch is one predictable branch, and short inputs skip even that.
//!
//! # The partial sum
//! The Internet checksum (RFC 1071) is a ones'-complement sum of big-endian 16-bit words. All functions here speak of
//! *partial sums*: a `u32` of at most 0xffff, so that a caller may add up to 65,536 of them with plain `+` before [`fold`].
//! Blocks of odd length are padded with a zero byte; [`combine`] joins two blocks at any offset. A partial sum is 0 only for
//! all-zero bytes (and 0xffff, not 0, for other multiples of 0xffff), so every variant gives the very same number.
//!
//! # Invariants
//! - Every variant equals the byte-pair reference in the tests, at all lengths, alignments and offsets.
//! - `select` drops claims that the CPU itself denies: a wrong `Cpu` costs speed, never soundness.
//!
//! # Limits
//! x86-64 has AVX2 kernels; other machines run the portable ones, whose plain copy is the compiler's `memcpy`, as is that
//! of short bytes everywhere. This crate decides nothing else: thresholds of use live with the callers.
#![no_std]
#![allow(unsafe_code)]

#[cfg(test)]
extern crate std;

#[cfg(target_arch = "x86_64")]
mod avx2;
mod cpu;
mod kernels;
mod portable;
mod sum;

pub use cpu::{Cpu, cycles, prefetch_read, prefetch_read_part};
pub use kernels::Kernels;
pub use sum::{checksum, combine, fold, sum_u16, sum_words};
