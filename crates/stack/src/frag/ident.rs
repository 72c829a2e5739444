//! Identifications of packets that may be fragmented (RFC 791, RFC 6864, RFC 7739).
//!
//! Two fragments of different packets that carry one identification make a third packet that nobody sent. So IPv4
//! identifications of one (source, destination, protocol) must not come back soon, and a stranger must not foresee them (he
//! could inject a fragment, or count our packets). As Linux does, packets are classed by a keyed hash into
//! [`BUCKETS`] counters; a counter that was idle first jumps by a random step of at most one per millisecond of its
//! idleness, which no observer can tell from traffic. IPv6 has 32 bits and takes them at random.
//!
//! Not here: packets with DF set, whose identification means nothing (see `Links::next_ident`).

use alloc::boxed::Box;
use core::net::IpAddr;

use linerate_base::rng::Rng;
use linerate_base::{HashKey, Instant};
use linerate_wire::flow::to_mapped;

/// Counters: 8 KiB, made when the first packet needs one.
const BUCKETS: usize = 1024;

#[derive(Clone, Copy, Default)]
struct Bucket {
    next: u32,
    /// Last use, milliseconds.
    used_ms: u32,
}

/// The counters of a shard.
#[derive(Default)]
pub(crate) struct Idents(Option<Box<[Bucket; BUCKETS]>>);

impl Idents {
    /// `count` consecutive identifications for IPv4 packets between two hosts; the first is returned.
    pub(super) fn reserve_v4(
        &mut self,
        key: &HashKey,
        rng: &mut Rng,
        now: Instant,
        flow: (IpAddr, IpAddr, u8),
        count: u32,
    ) -> u16 {
        let (src, dst, proto) = flow;
        let (src, dst) = (to_mapped(src).to_bits() as u64, to_mapped(dst).to_bits() as u64);
        let class = key.sip13_words(&[src, dst, u64::from(proto)]) as usize % BUCKETS;
        let buckets = self.0.get_or_insert_with(|| Box::new([Bucket::default(); BUCKETS]));
        let bucket = &mut buckets[class];
        let now_ms = (now.as_nanos() / 1_000_000) as u32;
        let idle_ms = now_ms.wrapping_sub(bucket.used_ms);
        let step = if idle_ms == 0 { 0 } else { rng.below(u64::from(idle_ms)) as u32 };
        let first = bucket.next.wrapping_add(step);
        *bucket = Bucket { next: first.wrapping_add(count), used_ms: now_ms };
        first as u16
    }
}

/// An identification for the fragments of an IPv6 packet; never 0, which some take for "none".
pub(super) fn random_v6(rng: &mut Rng) -> u32 {
    loop {
        let id = rng.next_u32();
        if id != 0 {
            return id;
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_base::Duration;

    use super::*;

    #[test]
    fn one_pair_counts_on_and_idleness_jumps() {
        let mut ids = Idents::default();
        let (mut rng, key) = (Rng::new(7), HashKey([1, 2]));
        let a = |n: u8| IpAddr::from([10, 0, 0, n]);
        let t = Instant::from_secs(5000);
        let flow = (a(1), a(2), 17);
        let first = ids.reserve_v4(&key, &mut rng, t, flow, 3);
        assert_eq!(ids.reserve_v4(&key, &mut rng, t, flow, 1), first.wrapping_add(3), "busy: no jump");
        let later = ids.reserve_v4(&key, &mut rng, t + Duration::from_millis(100), flow, 1);
        assert!((4..104).contains(&later.wrapping_sub(first)), "{first} then {later}");
        let other = ids.reserve_v4(&key, &mut rng, t, (a(1), a(3), 17), 1);
        assert_ne!(other, first, "another pair, another counter");
        assert_ne!(random_v6(&mut rng), random_v6(&mut rng));
    }
}
