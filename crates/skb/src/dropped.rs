//! Skbs that were dropped, kept a moment for who watches drops (SYSTEMS B08).
//!
//! Counters say how often a reason occurred; this says to which packet, and where in the code. Nobody watches: a drop is
//! one branch more than a free, and drops are rare. Somebody watches: the skb moves into a short list instead of going
//! home, by the one call that frees it ([`SkbCache::drop_skb`](crate::SkbCache::drop_skb)); nothing is copied and nothing
//! is allocated. The owner of the cache empties the list between two pieces of work, looks at each skb and frees it.
//!
//! Limits: [`DROPS_KEPT`] at a time; what comes while the list is full goes home at once and is counted as missed. The
//! list holds what it keeps out of the pool, so it is emptied at least once a turn. An skb is kept as its last reader left
//! it: headers may have been pulled (`network_header` says where they begin), payload may have been cut.

use alloc::collections::VecDeque;
use core::panic::Location;

use linerate_base::DropReason;

use crate::skb::Skb;

/// Dropped skbs that wait to be looked at, at most.
pub const DROPS_KEPT: usize = 64;

/// One skb that was dropped.
#[derive(Debug)]
pub struct Dropped {
    /// The packet. It goes home by [`SkbCache::free`](crate::SkbCache::free).
    pub skb: Skb,
    /// Why.
    pub reason: DropReason,
    /// Where in our code.
    pub place: &'static Location<'static>,
}

/// The list. It is there while somebody watches.
#[derive(Debug)]
pub(crate) struct DropLog {
    kept: VecDeque<Dropped>,
    missed: u64,
}

impl DropLog {
    pub(crate) fn new() -> Self {
        Self { kept: VecDeque::with_capacity(DROPS_KEPT), missed: 0 }
    }

    /// Keeps an skb, or gives it back when there is no room.
    pub(crate) fn keep(&mut self, dropped: Dropped) -> Option<Skb> {
        if self.kept.len() == DROPS_KEPT {
            self.missed += 1;
            return Some(dropped.skb);
        }
        self.kept.push_back(dropped);
        None
    }

    pub(crate) fn take(&mut self) -> Option<Dropped> {
        self.kept.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }
}
