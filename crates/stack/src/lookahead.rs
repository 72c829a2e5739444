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
//!   2  for each hash: first slot with that tag -> index -> prefetch the connection's hot lines and its timer
//!   3  (the caller) ip_in, tcp_in: everything is on its way or there, and so is a guess whose each segment is
//! ```
//! Steps 1 and 2 decide nothing. What they read from a packet was not checked, so it is used only to say which lines are
//! wanted, and which connection is to be asked first whether the segment is its own ([`Ahead`]): then flow and table
//! are not looked at a second time. A packet that lies makes a prefetch useless or a guess wrong, and nothing else.
//!
//! # Limits
//! The walk costs some tens of ns a segment. It is left out for few connections, which the caches hold anyway, and for
//! small batches, which have nothing to overlap. Requests and TIME-WAIT states are not looked ahead for: they are small,
//! and short-lived.

use linerate_arch::{prefetch_read, prefetch_read_part};
use linerate_base::HashKey;
use linerate_skb::SkbBatch;
use linerate_wire::flow::FlowKey;

use crate::demux::Entry;
use crate::tcp::{Sock, TcpLayer, hash_of};

/// Fewer sockets than this stay in the caches: 4 MB with their tables.
pub(crate) const MIN_SOCKETS: usize = 4096;
/// Fewest segments whose waits are worth overlapping.
const MIN_BATCH: usize = 4;
/// Most segments looked ahead for at a time: what their connections take must not push each other out of the L2 cache.
const MAX_BATCH: usize = 64;

/// Whose the next segments are, most likely: one guess for each skb of a batch that looked like TCP, in their order.
/// When a packet in between is none after all the guesses are off by one, and the table is asked.
pub(crate) struct Ahead {
    conns: [u32; MAX_BATCH],
    next: usize,
    len: usize,
}

impl Ahead {
    /// No guesses.
    pub(crate) const NONE: Self = Self { conns: [0; MAX_BATCH], next: 0, len: 0 };

    fn push(&mut self, conn: u32) {
        if let Some(to) = self.conns.get_mut(self.len) {
            *to = conn;
            self.len += 1;
        }
    }
    /// The next guess.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let guess = self.conns[..self.len].get(self.next).copied();
        self.next += 1;
        guess
    }
}

impl TcpLayer {
    /// Asks for the memory that `batch` will need, and guesses whose its segments are.
    #[inline]
    pub(crate) fn look_ahead(&mut self, key: &HashKey, batch: &SkbBatch) {
        (self.ahead.next, self.ahead.len) = (0, 0);
        if batch.len() >= MIN_BATCH && self.socks.len() >= MIN_SOCKETS {
            self.prefetch(key, batch);
        }
    }

    fn prefetch(&mut self, key: &HashKey, batch: &SkbBatch) {
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
            let candidate = self.table.candidate(hash).map(Entry::unpack);
            let Some(Entry::Conn(index)) = candidate else {
                self.ahead.push(u32::MAX);
                continue;
            };
            self.ahead.push(index);
            if let Some(sock) = self.socks.place_of(index) {
                Sock::HOT.into_iter().for_each(|part| prefetch_read_part(sock, part));
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
        let mut shard = Shard::new(StackConfig::default());
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
