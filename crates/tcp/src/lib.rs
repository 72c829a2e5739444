//! One TCP connection, sans-IO, as Linux does it.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
