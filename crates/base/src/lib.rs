//! Time, sequence numbers, tables, drop reasons and counters that every layer of Linerate shares.
//!
//! Nothing here knows a packet. The crate is `no_std`: it reads no clock and no randomness, both arrive as arguments.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod drop_reason;
pub mod errno;
pub mod seq;
pub mod time;

pub use drop_reason::{DropCounters, DropReason};
pub use errno::Errno;
pub use seq::Seq;
pub use time::{Duration, Instant};
