//! The software NIC and its wire.
//!
//! ```text
//!   shard A                                                            shard B
//!   xmit -> pending -> kick: [cut][checksum] -> SPSC ring of slots -> poll_rx: [faults][checksum][merge] -> skbs
//! ```
//! [`pair`] makes two NICs with a wire between them. A NIC has no thread: its transmit engines run inside
//! [`kick`](linerate_netdev::TxQueue::kick), its receive engines inside [`poll_rx`](linerate_netdev::RxQueue::poll_rx), on the
//! caller's thread; only the ring crosses. The engines are the pure functions of `linerate_offload`, so that the "silicon"
//! and the stack's software fallback are one code. Cycles inside them are charged to the hardware
//! ([`NicStats::hw_cycles`]).
//!
//! **Uncut** (the default), super-packets cross the wire whole with `gso_size` and `gso_segs`, and a checksum that the
//! sender left to the device crosses as "good, not computed", exactly as over a veth pair: nothing can corrupt memory on
//! the way, so nothing is summed. **Cut**, every MTU frame is really built, with its own header and checksum, and
//! parsed, verified and merged again. A wire with faults is always cut, since faults happen to wire frames.
//!
//! **By reference** pages cross and are the sender's until the last holder lets go; **by copy** the receiving NIC copies
//! the payload into pages of the receiving queue and releases the sender's at once.
//!
//! Limits: queue `i` of one side is wired to queue `i` of the other; no link layer (packets start at their IP header); no
//! bandwidth or delay of its own.
#![no_std]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

mod config;
mod irq;
mod nic;
mod rx;
mod slot;
mod stats;
mod tx;

#[cfg(all(test, not(loom)))]
mod tests;

pub use config::{CsumOffload, Dma, NicConfig};
pub use irq::Wake;
pub use nic::{Nic, QueuePair, pair};
pub use stats::NicStats;
