//! Time, sequence numbers, tables, drop reasons and counters that every layer of Linerate shares.
//!
//! Nothing here knows a packet. The crate is `no_std`: it reads no clock and no randomness, both arrive as arguments.
//!
//! | module | what |
//! |---|---|
//! | [`time`], [`seq`] | points in time, TCP sequence numbers |
//! | [`wheel`], [`token_bucket`] | timers by key; limits of replies |
//! | [`slab`], [`flow_table`], [`array_vec`] | storage with stable indices; hash to index; short lists in place |
//! | [`siphash`], [`rng`] | the keyed hash; the seeded generator |
//! | [`drop_reason`], [`errno`], [`mib`] | why a packet died; what a caller did wrong; what was counted |
//! | [`mod@state_table`], [`trace`] | state graphs as tables; the hook that follows a connection |
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod array_vec;
pub mod drop_reason;
pub mod errno;
pub mod flow_table;
pub mod mib;
mod reasons;
pub mod rng;
pub mod rst_reason;
pub mod seq;
pub mod siphash;
pub mod slab;
pub mod state_table;
pub mod time;
pub mod token_bucket;
pub mod trace;
pub mod wheel;

pub use array_vec::ArrayVec;
pub use drop_reason::{DropCounters, DropReason};
pub use errno::Errno;
pub use flow_table::FlowTable;
pub use mib::{IcmpMib, IpMib, TcpMib, UdpMib};
pub use rng::Rng;
pub use rst_reason::{RstCounters, RstReason};
pub use seq::Seq;
pub use siphash::HashKey;
pub use slab::{CacheLine, Key, Slab};
pub use time::{Duration, Instant};
pub use token_bucket::TokenBucket;
pub use trace::{NoTrace, Trace, TraceEvent, TraceKind, TraceRing};
pub use wheel::TimerWheel;
