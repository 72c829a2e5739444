//! What a network device is: receive and transmit queues, features, statistics, faults.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
