//! Packets and memory: skb descriptors, page fragments, page pools, rings between threads.
//!
//! ```text
//!  SkbCache ──alloc──▶ Skb ──▶ head (192 B, in the descriptor)          headers
//!                       │
//!                       └───▶ frags [Frag; 17 | 128] ──▶ Page metadata (64 B, own line) ──▶ page bytes    payload
//!                                                              │
//!  PagePool ──alloc──▶ Page ──append──▶ Frag ──────────────────┘
//! ```
//!
//! A super-packet is one [`Skb`]: a small linear head for headers and references to pages for payload. Bytes are written
//! once, by the single writer of a [`Page`], and then only referenced: a [`Frag`] is (page, offset, length) and owns one
//! count on its page. Both descriptors and pages come from caches that one owner uses without a lock or an atomic
//! read-modify-write ([`SkbCache`], [`PagePool`]); what is let go on another thread comes home over an intrusive lock-free
//! stack through the object's own link, which can neither fill up nor allocate. [`spsc`] is the ring that carries either
//! across threads.
//!
//! Invariants: bytes below a page's fill mark never change while a fragment may see them (except through a sole owner);
//! pages and descriptors out equal pages and descriptors home in the end; in steady state nothing here calls the
//! allocator; memory of a pool or cache outlives its owner until the last object is home.
//!
//! What it does not do: it parses nothing, sums nothing by itself, knows no device and no socket, and does not decide
//! *why* an skb dies (that is the caller's `DropReason`); it counts those that died without anyone saying so, and keeps the
//! dropped ones a moment for who watches drops.
#![no_std]
#![allow(unsafe_code)]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

mod batch;
mod blocks;
mod cache;
mod desc;
mod dropped;
mod frag;
mod home;
mod meta;
mod notes;
mod page;
mod pool;
mod skb;
mod skb_frags;
pub mod spsc;
mod sync;

#[cfg(all(test, loom))]
mod loom_tests;

pub use batch::SkbBatch;
pub use cache::{SkbCache, SkbCacheStats};
pub use desc::{DEFAULT_HEADROOM, HEAD_CAPACITY, INLINE_FRAGS, MAX_FRAGS, SKB_TRUESIZE};
pub use dropped::{DROPS_KEPT, Dropped};
pub use frag::{CloneN, Frag, OwedRefs};
pub use meta::{Csum, GsoType, SkbFlags, SkbMeta, TxDoneToken};
pub use page::Page;
pub use pool::{AllocStats, PagePool, PoolConfig, PoolStats, RecycleStats};
pub use skb::Skb;
