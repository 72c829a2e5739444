//! Counters that can be read from anywhere, after the queues have gone to their shards.
//!
//! Each half of a queue pair counts in a [`Qstats`] of its own and publishes it once per poll or doorbell with relaxed
//! stores; a reader may see one half newer than the other, each counter is exact. Nothing here is on the path of a frame.
//! Cycles are those of `linerate_arch::cycles` (time-stamp counter), spent inside the NIC's engines by the shard's thread.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use linerate_netdev::Qstats;

/// The published counters of one half.
pub(crate) struct Published {
    values: [AtomicU64; Qstats::LEN],
    hw_cycles: AtomicU64,
}

impl Published {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { values: [const { AtomicU64::new(0) }; Qstats::LEN], hw_cycles: AtomicU64::new(0) })
    }
    pub(crate) fn publish(&self, stats: &Qstats, hw_cycles: u64) {
        for (cell, v) in self.values.iter().zip(stats.to_array()) {
            cell.store(v, Ordering::Relaxed);
        }
        self.hw_cycles.store(hw_cycles, Ordering::Relaxed);
    }
    fn qstats(&self) -> Qstats {
        Qstats::from_array(core::array::from_fn(|i| self.values.get(i).map_or(0, |cell| cell.load(Ordering::Relaxed))))
    }
}

/// A handle on the counters of one NIC: `Clone`, `Send`, valid for as long as it is kept.
#[derive(Clone)]
pub struct NicStats {
    /// Receive and transmit half by queue.
    pub(crate) queues: Vec<[Arc<Published>; 2]>,
}

impl NicStats {
    /// Counters of one queue pair; zeros for a queue that does not exist.
    pub fn queue(&self, queue: u16) -> Qstats {
        let mut sum = Qstats::default();
        for half in self.queues.get(usize::from(queue)).into_iter().flatten() {
            sum.merge(&half.qstats());
        }
        sum
    }
    /// Counters of all queues together.
    pub fn total(&self) -> Qstats {
        let mut sum = Qstats::default();
        for q in 0..self.queues.len() {
            sum.merge(&self.queue(q as u16));
        }
        sum
    }
    /// Cycles spent inside this NIC's engines, all queues, both directions.
    pub fn hw_cycles(&self) -> u64 {
        self.queues.iter().flatten().map(|half| half.hw_cycles.load(Ordering::Relaxed)).sum()
    }
}

impl core::fmt::Debug for NicStats {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NicStats").field("total", &self.total()).field("hw_cycles", &self.hw_cycles()).finish()
    }
}
