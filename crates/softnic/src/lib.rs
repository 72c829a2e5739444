//! The software NIC and its wire.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
