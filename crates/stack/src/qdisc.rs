//! The queue between IP and a device: first in, first out, with a limit.
//!
//! A qdisc holds super-packets as they were sent: cutting and summing happen when they leave it, so that its limit counts
//! what the sender counts (as Linux, whose `pfifo` counts skbs too). It answers the sender at once: an skb over the limit
//! comes back and is the sender's local congestion (`NET_XMIT_DROP`), which TCP treats as a loss that it need not
//! wait for. What the device does not take stays in front; order within a queue never changes.
//!
//! Limits: `limit_skbs`. Not here: fairness, pacing and priorities (`fq` is a later qdisc behind the same four methods).

use linerate_skb::{Skb, SkbBatch};

/// Counters of one qdisc (`tc -s qdisc`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct QdiscStats {
    /// Skbs accepted.
    pub enqueued_skbs: u64,
    /// Bytes of those skbs, IP headers included.
    pub enqueued_bytes: u64,
    /// Skbs refused because the limit was reached.
    pub dropped_skbs: u64,
    /// Bytes waiting now.
    pub backlog_bytes: u64,
}

/// A FIFO with a limit in skbs.
#[derive(Debug)]
pub struct Fifo {
    queue: SkbBatch,
    limit_skbs: usize,
    stats: QdiscStats,
}

impl Fifo {
    /// An empty queue that holds at most `limit_skbs` (at least 1).
    pub fn new(limit_skbs: usize) -> Self {
        Self { queue: SkbBatch::new(), limit_skbs: limit_skbs.max(1), stats: QdiscStats::default() }
    }

    /// Adds an skb at the end.
    ///
    /// # Errors
    /// Gives the skb back when the limit is reached; the refusal is counted here, the drop by the caller.
    pub fn enqueue(&mut self, skb: Skb) -> Result<(), Skb> {
        if self.queue.len() >= self.limit_skbs {
            self.stats.dropped_skbs += 1;
            return Err(skb);
        }
        self.stats.enqueued_skbs += 1;
        self.stats.enqueued_bytes += u64::from(skb.len());
        self.stats.backlog_bytes += u64::from(skb.len());
        self.queue.push(skb);
        Ok(())
    }

    /// Counts a packet of `bytes` that the device took although it never stood in the queue, which is empty.
    #[inline]
    pub(crate) fn passed(&mut self, bytes: u32) {
        debug_assert!(self.queue.is_empty(), "a packet overtakes");
        self.stats.enqueued_skbs += 1;
        self.stats.enqueued_bytes += u64::from(bytes);
    }

    /// Takes the first skb.
    pub fn dequeue(&mut self) -> Option<Skb> {
        let skb = self.queue.pop_front()?;
        debug_assert!(self.stats.backlog_bytes >= u64::from(skb.len()), "an skb grew inside the qdisc");
        self.stats.backlog_bytes -= u64::from(skb.len());
        Some(skb)
    }

    /// Lends the queue to a device that takes from its front, as it is; returns what `take` says.
    pub(crate) fn lend<R>(&mut self, take: impl FnOnce(&mut SkbBatch) -> R) -> R {
        let done = take(&mut self.queue);
        self.stats.backlog_bytes = self.queue.iter().map(|skb| u64::from(skb.len())).sum();
        done
    }

    /// The skbs waiting, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Skb> {
        self.queue.iter()
    }

    /// Skbs waiting.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Most skbs that may wait.
    pub fn limit_skbs(&self) -> usize {
        self.limit_skbs
    }

    /// Counters.
    pub fn stats(&self) -> QdiscStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use linerate_skb::{PagePool, PoolConfig, SkbCache};

    use super::*;

    #[test]
    fn order_limit_and_backlog() {
        let (mut skbs, mut pool) = (SkbCache::new(16), PagePool::new(PoolConfig::default()));
        let mut q = Fifo::new(3);
        for i in 0..5u8 {
            let mut skb = skbs.alloc().unwrap();
            assert!(skb.put_head_from(&[i; 10]));
            match q.enqueue(skb) {
                Ok(()) => assert!(i < 3),
                Err(skb) => {
                    assert!(i >= 3, "refused below the limit");
                    skbs.free(skb, &mut pool);
                }
            }
        }
        let want = QdiscStats { enqueued_skbs: 3, enqueued_bytes: 30, dropped_skbs: 2, backlog_bytes: 30 };
        assert_eq!((q.len(), q.stats()), (3, want));
        for i in 0..3u8 {
            let skb = q.dequeue().unwrap();
            assert_eq!(skb.head(), [i; 10]);
            skbs.free(skb, &mut pool);
        }
        assert!(q.dequeue().is_none() && q.is_empty() && q.stats().backlog_bytes == 0);
        assert_eq!((skbs.inflight(), skbs.silent_drops()), (0, 0));
    }
}
