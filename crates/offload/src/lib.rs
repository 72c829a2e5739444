//! Segmentation, aggregation and checksum as pure functions on packets.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
