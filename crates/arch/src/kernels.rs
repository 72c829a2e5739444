//! The chosen set of kernels: one byte, `Copy`, safe methods.
//!
//! [`Kernels::select`] is the only place where a feature becomes a promise: the field is private, and `Isa::Avx2` is stored
//! only when the CPU itself confirmed AVX2. Every `unsafe` call below rests on that, and on slices of equal length.
//!
//! Lengths must be equal in the two-slice forms; a mismatch is a caller's bug and panics, as `copy_from_slice` does. The
//! `_uninit` forms write into fresh pages without zeroing them first and return the part that is now initialised.
//! Nothing here allocates, blocks or keeps state.

use core::mem::MaybeUninit;

use crate::cpu::Cpu;
use crate::{portable, sum};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Isa {
    Portable,
    /// Invariant: made by `select` only, after detection.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

/// Below this many bytes set-up costs more than vectors save: headers and small segments.
#[cfg(target_arch = "x86_64")]
const SHORT_BYTES: usize = 64;

/// From here on the C library may leave a copy to `rep movsb`.
#[cfg(target_arch = "x86_64")]
const LONG_COPY_BYTES: usize = 1024;

#[cfg(target_arch = "x86_64")]
const _: () = assert!(SHORT_BYTES >= crate::avx2::VECTOR && LONG_COPY_BYTES >= crate::avx2::VECTOR);

/// CPU kernels, chosen once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernels(Isa);

impl Default for Kernels {
    fn default() -> Self {
        Self::portable()
    }
}

impl Kernels {
    /// The best kernels for `cpu`. Features that the running CPU does not have are ignored.
    pub fn select(cpu: Cpu) -> Self {
        // Without a claim there is nothing to confirm: a simulation stays free of the hardware.
        if cpu == Cpu::PORTABLE {
            return Self::portable();
        }
        #[cfg(target_arch = "x86_64")]
        if cpu.and(Cpu::detect()).avx2 {
            return Self(Isa::Avx2);
        }
        Self::portable()
    }

    /// The kernels that run everywhere.
    pub const fn portable() -> Self {
        Self(Isa::Portable)
    }

    /// Name of the instruction set in use, for reports.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
        }
    }

    /// Partial sum of `bytes` (at most 0xffff); an odd end is padded with a zero byte.
    #[inline]
    pub fn sum(&self, bytes: &[u8]) -> u32 {
        let wide = match self.0 {
            Isa::Portable => portable::sum(bytes),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if bytes.len() < SHORT_BYTES => portable::sum_short(bytes),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::Avx2` exists only where AVX2 was detected.
            Isa::Avx2 => unsafe { crate::avx2::sum(bytes) },
        };
        sum::from_native(wide)
    }

    /// Copies `src` to `dst` through the caches.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy(&self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "copy between different lengths");
        // SAFETY: equal lengths; `dst` is borrowed mutably, so it is writable and does not overlap `src`.
        unsafe { self.copy_raw(dst.as_mut_ptr(), src) };
    }

    /// Copies `src` to `dst` and returns the partial sum of the bytes, in one pass.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy_sum(&self, dst: &mut [u8], src: &[u8]) -> u32 {
        assert_eq!(dst.len(), src.len(), "copy_sum between different lengths");
        // SAFETY: equal lengths; `dst` is borrowed mutably, so it is writable and does not overlap `src`.
        unsafe { self.copy_sum_raw(dst.as_mut_ptr(), src) }
    }

    /// Copies `src` to `dst` around the caches where the CPU can: for bytes that this core will not read again.
    ///
    /// The bytes are globally visible before the return: a doorbell may follow at once. Worth it above some kilobytes.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn nt_copy(&self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "nt_copy between different lengths");
        // SAFETY: equal lengths; `dst` is borrowed mutably, so it is writable and does not overlap `src`.
        unsafe { self.nt_copy_raw(dst.as_mut_ptr(), src) };
    }

    /// [`Self::copy`] into memory that need not be initialised.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy_uninit<'a>(&self, dst: &'a mut [MaybeUninit<u8>], src: &[u8]) -> &'a mut [u8] {
        assert_eq!(dst.len(), src.len(), "copy_uninit between different lengths");
        // SAFETY: equal lengths, no overlap with a mutable borrow.
        unsafe { self.copy_raw(dst.as_mut_ptr().cast(), src) };
        // SAFETY: all `src.len()` bytes were just written.
        unsafe { assume_init(dst) }
    }

    /// [`Self::copy_sum`] into memory that need not be initialised.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy_sum_uninit<'a>(&self, dst: &'a mut [MaybeUninit<u8>], src: &[u8]) -> (&'a mut [u8], u32) {
        assert_eq!(dst.len(), src.len(), "copy_sum_uninit between different lengths");
        // SAFETY: equal lengths, no overlap with a mutable borrow.
        let sum = unsafe { self.copy_sum_raw(dst.as_mut_ptr().cast(), src) };
        // SAFETY: all `src.len()` bytes were just written.
        (unsafe { assume_init(dst) }, sum)
    }

    /// [`Self::nt_copy`] into memory that need not be initialised.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn nt_copy_uninit<'a>(&self, dst: &'a mut [MaybeUninit<u8>], src: &[u8]) -> &'a mut [u8] {
        assert_eq!(dst.len(), src.len(), "nt_copy_uninit between different lengths");
        // SAFETY: equal lengths, no overlap with a mutable borrow.
        unsafe { self.nt_copy_raw(dst.as_mut_ptr().cast(), src) };
        // SAFETY: all `src.len()` bytes were just written.
        unsafe { assume_init(dst) }
    }

    /// [`Self::copy`] to a raw address, for page fragments.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `src.len()` bytes and must not overlap `src`. It may be uninitialised.
    #[inline]
    pub unsafe fn copy_raw(&self, dst: *mut u8, src: &[u8]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::Avx2` exists only where AVX2 was detected; the rest is the caller's contract.
            Isa::Avx2 if src.len() >= LONG_COPY_BYTES => unsafe { crate::avx2::copy(dst, src) },
            // SAFETY: the caller's contract.
            _ => unsafe { dst.copy_from_nonoverlapping(src.as_ptr(), src.len()) },
        }
    }

    /// [`Self::copy_sum`] to a raw address, for page fragments.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `src.len()` bytes and must not overlap `src`. It may be uninitialised.
    #[inline]
    pub unsafe fn copy_sum_raw(&self, dst: *mut u8, src: &[u8]) -> u32 {
        let wide = match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::Avx2` exists only where AVX2 was detected; the rest is the caller's contract.
            Isa::Avx2 if src.len() >= SHORT_BYTES => unsafe { crate::avx2::copy_sum(dst, src) },
            // SAFETY: the caller's contract.
            _ => unsafe { portable::copy_sum(dst, src) },
        };
        sum::from_native(wide)
    }

    /// [`Self::nt_copy`] to a raw address, for page fragments.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `src.len()` bytes and must not overlap `src`. It may be uninitialised.
    #[inline]
    pub unsafe fn nt_copy_raw(&self, dst: *mut u8, src: &[u8]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::Avx2` exists only where AVX2 was detected; the rest is the caller's contract.
            Isa::Avx2 if src.len() >= SHORT_BYTES => unsafe { crate::avx2::nt_copy(dst, src) },
            // SAFETY: the caller's contract.
            _ => unsafe { dst.copy_from_nonoverlapping(src.as_ptr(), src.len()) },
        }
    }
}

/// # Safety
/// All of `bytes` must be initialised.
#[inline]
unsafe fn assume_init(bytes: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    // SAFETY: same layout, initialised by the caller's word, and the borrow is carried over.
    unsafe { &mut *(core::ptr::from_mut(bytes) as *mut [u8]) }
}

#[cfg(test)]
mod tests;
