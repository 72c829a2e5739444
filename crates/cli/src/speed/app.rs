//! What the two applications do: write and read bulk data, ask and answer.
//!
//! An [`App`] is stepped between the turns of its shard, on the shard's thread: it is the inline way to a socket. It
//! writes and reads as much as `-l` says per call and never waits. Counters are atomics that only its own thread writes
//! and the coordinator reads between slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_base::Instant;
use linerate_stack::Shard;

/// Counted by one end.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// Payload bytes that the stack accepted from writers.
    pub(crate) written: AtomicU64,
    /// Payload bytes that readers got.
    pub(crate) read: AtomicU64,
    /// Requests answered.
    pub(crate) transactions: AtomicU64,
    /// 1 when the application is through (file sent, answers counted).
    pub(crate) finished: AtomicU64,
    /// 1 when the end stopped with an error.
    pub(crate) failed: AtomicU64,
    /// Bytes that differed from what was sent (`--touch verify`).
    pub(crate) corrupted: AtomicU64,
}

impl Counters {
    /// Adds to a counter that only this thread writes: a load and a store, no locked instruction.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// One end's application.
pub(crate) trait App: Send {
    /// Does what can be done now; true when anything was.
    fn step(&mut self, shard: &mut Shard, now: Instant) -> Result<bool, String>;
    /// Its counters.
    fn counters(&self) -> &Arc<Counters>;
    /// The first flow's socket, for the report.
    fn first_socket(&self) -> Option<linerate_stack::SockId> {
        None
    }
    /// Round-trip times in nanoseconds, when measured.
    fn latency(&self) -> Option<&hdrhistogram::Histogram<u64>> {
        None
    }
    /// SHA-256 of what was sent or received, when asked for.
    fn digest(&mut self) -> Option<String> {
        None
    }
}

/// Period of the verifiable pattern: prime, so that no page or segment size divides it.
const PATTERN_PERIOD: usize = 65_521;

/// The byte stream that `--touch verify` expects: a fixed sequence with a prime period.
pub(crate) struct Pattern {
    bytes: Vec<u8>,
}

impl Pattern {
    /// Can lend up to `len` bytes from any stream offset.
    pub(crate) fn new(len: usize) -> Self {
        let period =
            (0..PATTERN_PERIOD as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>();
        Self { bytes: period.iter().copied().cycle().take(PATTERN_PERIOD + len).collect() }
    }
    /// `len` bytes of the stream from `offset` on.
    pub(crate) fn at(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset % PATTERN_PERIOD as u64) as usize;
        &self.bytes[start..start + len]
    }
}

/// One pass that reads every byte: what a consumer pays at least.
pub(crate) fn touch_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0_u64, |sum, word| sum ^ u64::from_le_bytes(*word));
    std::hint::black_box(rest.iter().fold(sum, |sum, &byte| sum ^ u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_one_stream_whatever_the_cuts() {
        let pattern = Pattern::new(1000);
        let whole: Vec<u8> = (0..200_000_u64).map(|i| pattern.at(i, 1)[0]).collect();
        for offset in [0_u64, 1, 65_000, 65_520, 65_521, 131_000] {
            assert_eq!(pattern.at(offset, 1000), &whole[offset as usize..][..1000]);
        }
    }
}
