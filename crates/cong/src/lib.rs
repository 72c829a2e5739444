//! Congestion control: numbers in, numbers out. Reno and CUBIC with HyStart.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
