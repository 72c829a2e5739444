//! What the CPU can do, and the two instructions that are not about bytes: the cycle counter and the prefetch.
//!
//! [`Cpu`] is plain data so that it can be an argument: printed by `linerate doctor`, overridden by an option, replaced in a
//! simulation. [`Cpu::detect`] asks the hardware itself (CPUID and XGETBV on x86-64), without the standard library; a
//! feature counts only when the operating system saves the registers that it needs.
//!
//! Limits: detection is for the instructions that our kernels use, no catalogue. The cycle counter is not synchronised
//! with any clock and may differ between sockets: it measures spans on one core.

/// Features of a CPU that the kernels can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cpu {
    /// 256-bit integer vectors.
    pub avx2: bool,
    /// 512-bit vectors (foundation and byte/word instructions).
    pub avx512: bool,
    /// Fast `rep movsb` for long copies.
    pub erms: bool,
    /// Fast `rep movsb` for short copies.
    pub fsrm: bool,
}

impl Cpu {
    /// No feature: what a simulation uses, and every machine has.
    pub const PORTABLE: Self = Self { avx2: false, avx512: false, erms: false, fsrm: false };

    /// What this CPU and its operating system offer. Takes microseconds, in a virtual machine more: once per process.
    pub fn detect() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return detect_x86_64();
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        return Self::PORTABLE;
    }

    /// The features that both have.
    pub const fn and(self, other: Self) -> Self {
        Self {
            avx2: self.avx2 && other.avx2,
            avx512: self.avx512 && other.avx512,
            erms: self.erms && other.erms,
            fsrm: self.fsrm && other.fsrm,
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(unused_unsafe, reason = "the intrinsics became safe after our oldest compiler")]
fn detect_x86_64() -> Cpu {
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    #[target_feature(enable = "xsave")]
    fn saved_state() -> u64 {
        // SAFETY: register 0 exists wherever XGETBV does, and the caller has the feature.
        unsafe { _xgetbv(0) }
    }

    // SAFETY: every x86-64 CPU has CPUID; leaf 0 says which other leaves exist.
    if unsafe { __cpuid(0) }.eax < 7 {
        return Cpu::PORTABLE;
    }
    // SAFETY: leaf 1 exists, see above.
    let one = unsafe { __cpuid(1) };
    // SAFETY: leaf 7 exists, see above.
    let seven = unsafe { __cpuid_count(7, 0) };
    let bit = |register: u32, n: u32| register >> n & 1 == 1;
    let osxsave = bit(one.ecx, 27);
    // SAFETY: OSXSAVE says that XGETBV is there and enabled.
    let saved = if osxsave { unsafe { saved_state() } } else { 0 };
    let ymm = saved & 0b110 == 0b110 && bit(one.ecx, 28);
    let zmm = ymm && saved & 0b1110_0000 == 0b1110_0000;
    Cpu {
        avx2: ymm && bit(seven.ebx, 5),
        avx512: zmm && bit(seven.ebx, 16) && bit(seven.ebx, 30),
        erms: bit(seven.ebx, 9),
        fsrm: bit(seven.edx, 4),
    }
}

/// The cycle counter: TSC on x86-64, the virtual counter on AArch64, 0 elsewhere. Not serialising.
#[inline]
pub fn cycles() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: RDTSC is part of x86-64. (An operating system may forbid it by CR4.TSD; Linux does so only on request.)
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let count: u64;
        // SAFETY: reads a counter that is readable at EL0 under Linux; touches neither memory nor flags.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
        count
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    {
        0
    }
}

/// Bytes of a cache line on every machine that this runs well on.
const LINE_BYTES: usize = 64;

/// Hints that `value`'s first cache line will be read soon. Never faults, changes nothing.
#[inline]
pub fn prefetch_read<T: ?Sized>(value: &T) {
    prefetch_at(core::ptr::from_ref(value).cast());
}

/// As [`prefetch_read`], for the cache lines that the bytes `part` of `value` lie in.
#[inline]
pub fn prefetch_read_part<T>(value: &T, part: core::ops::Range<usize>) {
    let at = core::ptr::from_ref(value).cast::<u8>();
    // From the beginning of the first line, so that none is asked for twice.
    let first = part.start.wrapping_sub(at.addr().wrapping_add(part.start) % LINE_BYTES);
    let mut offset = first;
    while (offset as isize) < part.end as isize {
        prefetch_at(at.wrapping_add(offset));
        offset = offset.wrapping_add(LINE_BYTES);
    }
}

#[inline]
fn prefetch_at(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64; a prefetch dereferences nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch is a hint; it reads nothing architecturally.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = at;
}
