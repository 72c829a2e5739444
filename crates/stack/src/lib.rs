//! The stack of one core: shard, napi, IP, routes, demultiplexing, TCP and UDP sockets.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;
