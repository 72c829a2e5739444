//! Initial sequence numbers and timestamp offsets (RFC 6528, RFC 7323 section 5.4).
//!
//! ISN = M + F(local, remote, secret): M is a clock that ticks every 64 ns (it wraps in 4.6 minutes, about Linux's), F a
//! keyed SipHash of the flow. So numbers of one flow grow, and those of different flows tell nothing about each other.
//! The other half of the same 64-bit hash offsets the timestamp clock: TSvals of one flow stay monotonic over
//! reconnections (PAWS and TIME-WAIT reuse rely on that), and do not show the host's uptime. The key is a secret of the
//! stack; whoever knows it can predict both. A deterministic key gives deterministic numbers, for simulations.

use linerate_base::siphash::HashKey;
use linerate_base::{Instant, Seq};
use linerate_wire::flow::FlowKey;

use crate::conn::Isn;

/// Nanoseconds per tick, as a shift: 64 ns.
const TICK_SHIFT: u32 = 6;

/// The secret behind the numbers.
#[derive(Clone, Copy, Debug)]
pub struct IsnKey(HashKey);

impl IsnKey {
    /// From the stack's secret.
    pub const fn new(key: HashKey) -> Self {
        Self(key)
    }

    /// Numbers for a connection of `key` (local first) that opens at `now`.
    pub fn isn(&self, key: &FlowKey, now: Instant) -> Isn {
        let hash = match key.as_v4_words() {
            Some(words) => self.0.sip24_words(&words),
            None => self.0.sip24_words(&key.as_words()),
        };
        let clock = (now.as_nanos() >> TICK_SHIFT) as u32;
        Isn { iss: Seq((hash as u32).wrapping_add(clock)), ts_offset: (hash >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::IsnKey;
    use core::net::{IpAddr, Ipv4Addr, SocketAddr};
    use linerate_base::Instant;
    use linerate_base::siphash::HashKey;
    use linerate_wire::flow::FlowKey;

    fn flow(port: u16) -> FlowKey {
        let a = |o| IpAddr::V4(Ipv4Addr::new(10, 0, 0, o));
        FlowKey::new(SocketAddr::new(a(1), port), SocketAddr::new(a(2), 80), 6)
    }

    #[test]
    fn one_flow_grows_by_the_clock_and_others_differ() {
        let k = IsnKey::new(HashKey([1, 2]));
        let t = Instant::from_millis(5);
        let a = k.isn(&flow(1000), t);
        let later = k.isn(&flow(1000), t + core::time::Duration::from_micros(64));
        assert_eq!(later.iss - a.iss, 1000, "64 us are a thousand ticks of 64 ns");
        assert_eq!(later.ts_offset, a.ts_offset, "timestamps of one flow never jump");
        let b = k.isn(&flow(1001), t);
        assert_ne!((a.iss, a.ts_offset), (b.iss, b.ts_offset));
        let other = IsnKey::new(HashKey([1, 3])).isn(&flow(1000), t);
        assert_ne!(other.iss, a.iss);
    }
}
