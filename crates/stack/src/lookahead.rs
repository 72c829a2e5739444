//! Looking ahead: the memory that a batch of segments will need is asked for before the first of them is processed.
//!
//! # Theory
//! With a million connections every segment of another flow finds its table slot, its connection and its timer outside of
//! every cache: a dozen lines, of which the first two depend on each other. One after the other that is a microsecond of
//! waiting for 200 ns of work. But a poll brings many segments at once, and their flows are independent; so the batch is
//! walked twice before it is processed, and the waits of all segments overlap:
//!
//! ```text
//!   1  for each skb: five-tuple at its usual place -> keyed hash -> prefetch the table's slot
//!   2  for each hash: first slot with that tag -> index -> prefetch the connection's lines and its timer
//!   3  (the caller) ip_in, tcp_in: everything is on its way or there
//! ```
//! Steps 1 and 2 decide nothing. What they read from a packet was not checked, so it is used only to say which lines are
//! wanted; a packet that lies makes a prefetch useless, never wrong.
//!
//! # Limits
//! The walk costs some tens of ns a segment. It is left out for few connections, which the caches hold anyway, and for
//! small batches, which have nothing to overlap. Requests and TIME-WAIT states are not looked ahead for: they are small,
//! and short-lived.

use linerate_arch::{prefetch_read, prefetch_read_all};
use linerate_base::HashKey;
use linerate_skb::SkbBatch;
use linerate_wire::flow::FlowKey;

use crate::demux::Entry;
use crate::tcp::{TcpLayer, hash_of};

/// Fewer sockets than this stay in the caches: 4 MB with their tables.
const MIN_SOCKETS: usize = 4096;
/// Fewest segments whose waits are worth overlapping.
const MIN_BATCH: usize = 4;
/// Most segments looked ahead for at a time: what their connections take must not push each other out of the L2 cache.
const MAX_BATCH: usize = 64;

impl TcpLayer {
    /// Asks for the memory that `batch` will need. Changes nothing.
    #[inline]
    pub(crate) fn look_ahead(&self, key: &HashKey, batch: &SkbBatch) {
        if batch.len() >= MIN_BATCH && self.socks.len() >= MIN_SOCKETS {
            self.prefetch(key, batch);
        }
    }

    fn prefetch(&self, key: &HashKey, batch: &SkbBatch) {
        let mut hashes = [0_u64; MAX_BATCH];
        let mut found = 0;
        for flow in batch.iter().take(MAX_BATCH).filter_map(|skb| FlowKey::peek_tcp(skb.head())) {
            let hash = hash_of(key, &flow);
            self.table.homes(hash).for_each(prefetch_read);
            if let Some(to) = hashes.get_mut(found) {
                *to = hash;
                found += 1;
            }
        }
        for &hash in hashes.iter().take(found) {
            let Some(Entry::Conn(index)) = self.table.candidate(hash).map(Entry::unpack) else { continue };
            if let Some(sock) = self.socks.place_of(index) {
                prefetch_read_all(sock);
            }
            if let Some(timer) = self.timers.place_of(index) {
                prefetch_read(timer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_skb::SkbCache;
    use linerate_wire::ip::{IpRepr, proto};

    use super::*;
    use crate::{Shard, StackConfig};

    /// Packets of nobody, packets that lie and packets that are none: nothing is found, nothing changes, nothing panics.
    #[test]
    fn what_a_packet_says_is_only_a_hint() {
        let shard = Shard::new(StackConfig::default());
        let (mut skbs, mut batch) = (SkbCache::new(256), SkbBatch::new());
        for n in 0..2 * MAX_BATCH {
            let mut skb = skbs.alloc().unwrap();
            let ip = IpRepr::new([10, 0, 0, 1].into(), [10, 0, 0, n as u8].into(), proto::TCP, 20);
            let mut bytes = [0_u8; 40];
            ip.emit(&mut bytes[..20]);
            assert!(skb.put_head_from(&bytes[..n % 41]));
            batch.push(skb);
        }
        shard.tcp.prefetch(&HashKey([1, 2]), &batch);
        shard.check_invariants();
        let mut pool = linerate_skb::PagePool::new(linerate_skb::PoolConfig::default());
        batch.clear_with(&mut skbs, &mut pool);
        assert_eq!(skbs.inflight(), 0);
    }
}
