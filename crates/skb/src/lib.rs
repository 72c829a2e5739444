//! Packets and memory: skb descriptors, page fragments, page pools, rings between threads.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
