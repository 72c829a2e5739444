//! Packet headers as views over bytes and valid representations.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
