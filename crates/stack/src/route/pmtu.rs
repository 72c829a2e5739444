//! What the path to one destination was found to carry: exceptions from the route's MTU (RFC 1191, RFC 8201).
//!
//! An exception is made by an ICMP "too big" that a socket has vouched for, only ever lowers the MTU, and is forgotten
//! after [`EXPIRES`] (Linux's `mtu_expires`), so that a path that got better is found again. A stranger who guesses flows
//! can make entries, so they are bounded ([`MAX_ENTRIES`]); the oldest goes first. MTUs below what the protocol guarantees
//! are not believed: IPv4 stops at [`MIN_V4_BYTES`], IPv6 ignores what is under 1280.
//!
//! Not here: probing without ICMP (RFC 4821), which each TCP connection does for itself.

use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;

use linerate_base::{Duration, Instant};

/// How long an exception lives: 10 minutes.
pub const EXPIRES: Duration = Duration::from_secs(600);
/// Most exceptions at once.
pub const MAX_ENTRIES: usize = 4096;
/// Lowest believed IPv4 path MTU in bytes (Linux's `min_pmtu`).
const MIN_V4_BYTES: u32 = 552;
/// Lowest IPv6 path MTU in bytes (RFC 8200 section 5).
const MIN_V6_BYTES: u32 = 1280;

#[derive(Clone, Copy, Debug)]
struct Entry {
    mtu_bytes: u32,
    expires: Instant,
}

/// The exceptions of a stack.
#[derive(Debug, Default)]
pub(crate) struct PmtuCache {
    map: BTreeMap<IpAddr, Entry>,
    /// Destinations by age of their entry; each is in `map` exactly once.
    order: VecDeque<IpAddr>,
}

impl PmtuCache {
    /// The MTU towards `dst`, if an exception is alive.
    pub(crate) fn get(&self, dst: IpAddr, now: Instant) -> Option<u32> {
        if self.map.is_empty() {
            return None;
        }
        self.map.get(&dst).filter(|e| e.expires > now).map(|e| e.mtu_bytes)
    }

    /// Learns that `mtu_bytes` is what fits towards `dst`, where `current_bytes` was assumed. Returns the MTU to use from
    /// now on, or `None` when the message is not believed or changes nothing.
    pub(crate) fn learn(&mut self, dst: IpAddr, mtu_bytes: u32, current_bytes: u32, now: Instant) -> Option<u32> {
        let mtu_bytes = match dst {
            IpAddr::V4(_) => mtu_bytes.max(MIN_V4_BYTES),
            IpAddr::V6(_) if mtu_bytes < MIN_V6_BYTES => return None,
            IpAddr::V6(_) => mtu_bytes,
        };
        if mtu_bytes >= current_bytes {
            return None;
        }
        if self.map.insert(dst, Entry { mtu_bytes, expires: now + EXPIRES }).is_some() {
            self.order.retain(|&d| d != dst);
        }
        self.order.push_back(dst);
        while self.order.len() > MAX_ENTRIES {
            if let Some(oldest) = self.order.pop_front() {
                self.map.remove(&oldest);
            }
        }
        debug_assert_eq!(self.order.len(), self.map.len());
        Some(mtu_bytes)
    }

    /// Exceptions held, the expired ones that nobody asked about included.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Forgets everything: routes changed.
    pub(crate) fn clear(&mut self) {
        self.map.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn lowers_expires_and_is_bounded() {
        let mut c = PmtuCache::default();
        let d = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        let t0 = Instant::from_secs(5);
        assert_eq!(c.learn(d, 1500, 1500, t0), None, "not lower");
        assert_eq!(c.learn(d, 1400, 1500, t0), Some(1400));
        assert_eq!(c.learn(d, 68, 1400, t0), Some(MIN_V4_BYTES));
        assert_eq!(c.get(d, t0 + Duration::from_secs(599)), Some(MIN_V4_BYTES));
        assert_eq!(c.get(d, t0 + EXPIRES), None);
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert_eq!(c.learn(v6, 1279, 1500, t0), None);
        assert_eq!(c.learn(v6, 1280, 1500, t0), Some(1280));
        for i in 0..2 * MAX_ENTRIES as u32 {
            c.learn(IpAddr::V4(Ipv4Addr::from_bits(i)), 1000, 1500, t0);
        }
        assert_eq!((c.len(), c.get(d, t0)), (MAX_ENTRIES, None));
    }
}
