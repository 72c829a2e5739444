//! Parts of connections that ended, kept warm for the connections that begin.
//!
//! A connection that speaks needs a [`Flight`] with three small lists in it, and a ring for what it received: six
//! allocations, which cost a short connection more than its segments. So what a dying connection leaves behind goes onto
//! a stack here, lists and all, and the next birth takes the latest, whose lines are still in the cache. In steady state
//! opening and closing connections allocates nothing.
//!
//! Invariants: a part on the stack holds no page, no skb and no segment, only capacity; nothing of the former connection
//! can be read from it, since a birth writes every field anew. Limits: [`MAX_KEPT`] parts of each kind, and none that a
//! bulk transfer made large ([`MAX_RING`]; the queue keeps its own limit), so the store stays below a megabyte. It is the
//! shard's: no locks.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::rx::RxSeg;
use crate::tx::Flight;

/// Parts of each kind that are kept: as many connections as one turn may well end and begin.
const MAX_KEPT: usize = 256;
/// Longest ring of received segments that is kept.
const MAX_RING: usize = 16;

/// Memory of former connections. See the module head.
#[derive(Default)]
pub struct Parts {
    /// Boxed here as there: what moves is a pointer.
    #[expect(clippy::vec_box, reason = "a connection holds the box; the box is what is kept")]
    flights: Vec<Box<Flight>>,
    rings: Vec<VecDeque<RxSeg>>,
}

impl core::fmt::Debug for Parts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Parts").field("flights", &self.flights.len()).field("rings", &self.rings.len()).finish()
    }
}

impl Parts {
    /// An empty store.
    pub const fn new() -> Self {
        Self { flights: Vec::new(), rings: Vec::new() }
    }

    /// A sender's state as new.
    pub(crate) fn flight(&mut self) -> Box<Flight> {
        match self.flights.pop() {
            Some(mut old) => {
                old.renew();
                old
            }
            None => Box::new(Flight::NEW),
        }
    }

    /// Takes over a sender's state that nobody needs any more, with its queue empty.
    pub(crate) fn keep_flight(&mut self, old: Box<Flight>) {
        debug_assert!(old.q.is_empty(), "segments in a queue that is given away");
        if self.flights.len() < MAX_KEPT && old.q.is_small() {
            self.flights.push(old);
        }
    }

    /// A ring without segments, with room if there is one.
    pub(crate) fn ring(&mut self) -> VecDeque<RxSeg> {
        self.rings.pop().unwrap_or_default()
    }

    /// Takes over an empty ring.
    pub(crate) fn keep_ring(&mut self, ring: VecDeque<RxSeg>) {
        debug_assert!(ring.is_empty(), "segments in a ring that is given away");
        if self.rings.len() < MAX_KEPT && (1..=MAX_RING).contains(&ring.capacity()) {
            self.rings.push(ring);
        }
    }
}
