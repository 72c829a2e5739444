//! Segmentation, aggregation and checksum as pure functions on packets.
//!
//! "Hardware is a function": the stack calls these in software where a device can not do the work, and the software NIC
//! calls the same ones as its silicon, so that both are equal by construction and every claim about them is one property
//! test. [`gso`] cuts a super-packet into wire frames, [`gro`] is its inverse, [`csum`] verifies and fills in transport
//! checksums over a head and fragments, [`rss`] spreads flows over queues.
//!
//! Payload is moved by reference and never copied; nothing allocates beyond the caller's descriptor cache. Packets start
//! at their IP header. Not done here: IP fragmentation, link headers, tunnels, and the IPv6 jumbo header (a super-packet
//! above 64 KiB is a length inside the host).
#![no_std]

#[cfg(test)]
extern crate std;

pub mod csum;
pub mod gro;
pub mod gso;
mod headers;
pub mod rss;

#[cfg(test)]
mod tests;

use linerate_arch::Kernels;
use linerate_base::DropCounters;
use linerate_skb::{PagePool, SkbCache};

pub use csum::Verdict;
pub use gro::{Gro, GroConfig, PaddedHead};
pub use gso::CsumMode;
pub use headers::Headers;

/// What an offload may use during a call.
pub struct OffloadCx<'a> {
    /// Descriptors for the frames that are made, and home of those that end.
    pub skbs: &'a mut SkbCache,
    /// The pool that pages of this side come from: home of references that end.
    pub pool: &'a mut PagePool,
    /// Copy and checksum.
    pub kernels: &'a Kernels,
    /// Drops by reason.
    pub drops: &'a mut DropCounters,
}
