//! What the shard lends to a connection for the length of one call.
//!
//! Time, memory, randomness and counters come in as arguments: a connection stores none of them. All references are
//! disjoint fields of the shard, so that lending costs nothing.
//!
//! Invariants: `now` does not change within a call and never goes back between calls; what a connection charges to
//! [`MemAcct`] it gives back when it lets the memory go, so that a shard without connections has charged nothing (checked
//! by the shard's invariants). The account only counts: who is refused under pressure is decided in `rcvq` and `write`.

use linerate_arch::Kernels;
use linerate_base::mib::TcpMib;
use linerate_base::rng::Rng;
use linerate_base::token_bucket::TokenBucket;
use linerate_base::{DropCounters, Instant, RstCounters};
use linerate_skb::{Page, PagePool, SkbCache};

use crate::config::TcpConfig;
use crate::mem::MemAcct;
use crate::parts::Parts;

/// The world, as one connection sees it during a call.
pub struct TcpCx<'a> {
    /// The time of this turn.
    pub now: Instant,
    /// Pages for the data that the application writes.
    pub pool: &'a mut PagePool,
    /// The page that writes are being appended to, shared by the shard's sockets as Linux shares a task's page frag.
    pub page: &'a mut Option<Page>,
    /// Descriptors.
    pub skbs: &'a mut SkbCache,
    /// Linux's TCP counters.
    pub mib: &'a mut TcpMib,
    /// Drops by reason.
    pub drops: &'a mut DropCounters,
    /// Resets sent, by reason.
    pub rsts: &'a mut RstCounters,
    /// What former connections left for new ones.
    pub parts: &'a mut Parts,
    /// The stack's memory account.
    pub mem: &'a mut MemAcct,
    /// Seeded randomness.
    pub rng: &'a mut Rng,
    /// Challenge ACKs per second, stack-wide (RFC 5961 section 7).
    pub challenge: &'a mut TokenBucket,
    /// The configuration snapshot of this turn.
    pub cfg: &'a TcpConfig,
    /// Copy and checksum for this CPU.
    pub kernels: Kernels,
}

/// What the lower layers know about a received segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct RxMeta {
    /// The two ECN bits of the IP header (RFC 3168): 0 Not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// Hop limit.
    pub ttl: u8,
    /// Device that received it.
    pub ifindex: u32,
    /// Flow hash.
    pub hash: u32,
}
