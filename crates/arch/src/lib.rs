//! CPU kernels of Linerate: checksum, copy, fused copy and checksum, chosen once from a detected CPU.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
