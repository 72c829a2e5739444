//! Counters that can be read from anywhere, after the queues have gone to their shards.
//!
//! Each half of a queue pair counts in counters of its own that anybody may read while they move: one writer, relaxed
//! loads and stores, nothing to publish. A reader may see one half newer than the other; each counter is exact.
//!
//! Cycles are those of `linerate_arch::cycles` (time-stamp counter), spent inside the NIC's engines by the shard's thread.
//! Reading that counter twice costs as much as a small frame, so calls that move little are sampled: of [`SAMPLE`] one is
//! timed and stands for all. Long calls are timed each. The sum is an estimate as soon as there are short calls.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linerate_arch::cycles;
use linerate_netdev::{Counter, Qstats, SharedQstats};

/// Short calls of which one is timed.
const SAMPLE: u32 = 16;
/// Frames or slots from which on a call is long.
const LONG: usize = 16;

/// The counters of one half.
#[derive(Default)]
pub(crate) struct Published {
    pub(crate) counters: SharedQstats,
    hw_cycles: Counter,
}

/// Times the calls of one half.
#[derive(Default)]
pub(crate) struct HwTime {
    calls: u32,
}

/// A call that is being timed: when it began, and for how many it stands.
pub(crate) struct Timed {
    start: u64,
    weight: u64,
}

impl HwTime {
    /// A call begins that will move about `work` frames or slots.
    #[inline]
    pub(crate) fn begin(&mut self, work: usize) -> Option<Timed> {
        if work >= LONG {
            return Some(Timed { start: cycles(), weight: 1 });
        }
        let timed = self.calls.is_multiple_of(SAMPLE);
        self.calls = self.calls.wrapping_add(1);
        timed.then(|| Timed { start: cycles(), weight: u64::from(SAMPLE) })
    }
}

impl Published {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }
    /// The call ends.
    #[inline]
    pub(crate) fn end(&self, timed: Option<Timed>) {
        if let Some(Timed { start, weight }) = timed {
            self.hw_cycles.add(cycles().wrapping_sub(start).wrapping_mul(weight));
        }
    }
    fn qstats(&self) -> Qstats {
        self.counters.get()
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
        self.queues.iter().flatten().map(|half| half.hw_cycles.get()).sum()
    }
}

impl core::fmt::Debug for NicStats {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NicStats").field("total", &self.total()).field("hw_cycles", &self.hw_cycles()).finish()
    }
}
