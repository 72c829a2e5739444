//! CPU detection: which instructions the kernels of [`linerate_arch`] may use.
//!
//! The binary is built for the baseline processor and chooses at run time, once, from the value made here: a shard is
//! given a [`Cpu`] and never asks again. Detection itself is [`Cpu::detect`]; this is its answer kept for the process,
//! because CPUID traps to the hypervisor in a virtual machine and costs tens of microseconds there. The counter's
//! invariance is asked here and not there: it says something about clocks, which only this crate has.

use std::sync::OnceLock;

use linerate_arch::Cpu;

/// The features of the processor that this process runs on, found out once.
pub fn detect_cpu() -> Cpu {
    static CPU: OnceLock<Cpu> = OnceLock::new();
    *CPU.get_or_init(Cpu::detect)
}

/// Whether the time-stamp counter ticks at one rate in all power states (leaf 0x8000_0007, EDX bit 8).
#[cfg(target_arch = "x86_64")]
pub(crate) fn invariant_counter() -> bool {
    cpuid(0x8000_0000, 0x8000_0007).edx & 1 << 8 != 0
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn invariant_counter() -> bool {
    false
}

/// Sub-leaf 0 of `leaf`, or zeros when the range that starts at `base` ends before it.
#[cfg(target_arch = "x86_64")]
fn cpuid(base: u32, leaf: u32) -> core::arch::x86_64::CpuidResult {
    use core::arch::x86_64::{__cpuid_count, CpuidResult};
    // SAFETY: CPUID exists on every x86-64 processor, is allowed in user mode and touches no memory.
    #[allow(unused_unsafe, reason = "newer compilers declare it safe")]
    let highest = unsafe { __cpuid_count(base, 0) }.eax;
    if highest < leaf {
        return CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    }
    // SAFETY: as above.
    #[allow(unused_unsafe, reason = "newer compilers declare it safe")]
    unsafe {
        __cpuid_count(leaf, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detection_agrees_with_the_kernel() {
        let Ok(info) = std::fs::read_to_string("/proc/cpuinfo") else { return };
        let Some(flags) = info.lines().find(|line| line.starts_with("flags")) else { return };
        let has = |flag: &str| flags.split_ascii_whitespace().any(|f| f == flag);
        let cpu = detect_cpu();
        assert_eq!(cpu.avx2, has("avx2"));
        assert_eq!(cpu.avx512, has("avx512f") && has("avx512bw"));
        assert_eq!(cpu.erms, has("erms"));
        assert_eq!(cpu.fsrm, has("fsrm"));
        assert_eq!(invariant_counter(), has("nonstop_tsc") && has("constant_tsc"));
    }
}
