//! A token bucket on [`Instant`]: the limit of replies that a stranger can provoke.
//!
//! ICMP errors (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)), challenge ACKs (RFC 5961 section 7) and replies to
//! out-of-window segments are answers to packets that anybody can forge; each kind passes through a bucket of its own.
//!
//! Theory: instead of counting tokens the bucket keeps one point in time, at which it will be full again (the "virtual
//! scheduling" form of the generic cell rate algorithm). One answer moves that point by `1 / rate`; it may lie at most
//! `burst / rate` ahead of now. No refill step, no remainders, no timer; a leap of the clock merely fills the bucket.
//!
//! Invariant: over any span `t` at most `burst + t * rate` answers pass. A clock that goes back passes no more than that.

use crate::time::{Duration, Instant};

/// A rate limiter: `allow` until it says no.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    /// When the bucket is full again.
    full_at_ns: u64,
    /// Time that earns one token; 0 = no limit, `u64::MAX` = nothing passes.
    ns_per_token: u64,
    /// How far ahead of now `full_at_ns` may lie before an answer.
    slack_ns: u64,
}

impl TokenBucket {
    /// Passes everything.
    pub const UNLIMITED: Self = Self { full_at_ns: 0, ns_per_token: 0, slack_ns: 0 };

    /// At most `rate_per_s` a second on average and `burst` at once. Starts full. A rate or burst of 0 passes nothing; more
    /// than 10^9 a second is no limit.
    pub const fn new(rate_per_s: u32, burst: u32) -> Self {
        if rate_per_s == 0 || burst == 0 {
            return Self { full_at_ns: 0, ns_per_token: u64::MAX, slack_ns: 0 };
        }
        if rate_per_s > 1_000_000_000 {
            return Self::UNLIMITED;
        }
        // Rounded up: never faster than asked.
        let ns_per_token = 1_000_000_000u64.div_ceil(rate_per_s as u64);
        Self { full_at_ns: 0, ns_per_token, slack_ns: ns_per_token * (burst as u64 - 1) }
    }

    /// One per `interval`, no burst: for per-connection limits such as Linux's `tcp_invalid_ratelimit`. Zero is no limit.
    pub const fn every(interval: Duration) -> Self {
        let ns = interval.as_nanos();
        Self { full_at_ns: 0, ns_per_token: if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 }, slack_ns: 0 }
    }

    /// True when one more may pass at `now`; then it is counted.
    pub const fn allow(&mut self, now: Instant) -> bool {
        if self.ns_per_token == u64::MAX {
            return false;
        }
        let now = now.as_nanos();
        let full_at = if self.full_at_ns > now { self.full_at_ns } else { now };
        if full_at - now > self.slack_ns {
            return false;
        }
        self.full_at_ns = full_at.saturating_add(self.ns_per_token);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn passed(b: &mut TokenBucket, at_ms: u64, tries: usize) -> usize {
        (0..tries).filter(|_| b.allow(Instant::from_millis(at_ms))).count()
    }

    #[test]
    fn burst_then_rate() {
        let mut b = TokenBucket::new(10, 5);
        assert_eq!(passed(&mut b, 0, 20), 5);
        assert_eq!(passed(&mut b, 99, 20), 0);
        assert_eq!(passed(&mut b, 100, 20), 1);
        assert_eq!(passed(&mut b, 350, 20), 2);
        assert_eq!(passed(&mut b, 3_600_000, 20), 5, "a leap fills it once");
    }

    #[test]
    fn edges() {
        assert_eq!(passed(&mut TokenBucket::new(0, 5), 1000, 9), 0);
        assert_eq!(passed(&mut TokenBucket::new(5, 0), 1000, 9), 0);
        assert_eq!(passed(&mut TokenBucket::UNLIMITED.clone(), 0, 1000), 1000);
        assert_eq!(passed(&mut TokenBucket::new(u32::MAX, 1), 0, 1000), 1000);
        let mut b = TokenBucket::every(Duration::from_millis(500));
        assert_eq!([0, 499, 500, 999, 1000].map(|t| passed(&mut b, t, 3)), [1, 0, 1, 0, 1]);
    }

    #[test]
    fn never_more_than_burst_plus_rate() {
        let mut rng = Rng::new(2);
        for _ in 0..50 {
            let (rate, burst) = (1 + rng.below(5000) as u32, 1 + rng.below(50) as u32);
            let mut b = TokenBucket::new(rate, burst);
            let (mut now, mut count) = (0u64, 0u64);
            for _ in 0..5000 {
                now += rng.below(1_000_000);
                // A clock that goes back now and then earns nothing.
                let seen = if rng.chance(0.01) { now / 2 } else { now };
                count += u64::from(b.allow(Instant::from_nanos(seen)));
                let most = u128::from(burst) + u128::from(now) * u128::from(rate) / 1_000_000_000 + 1;
                assert!(u128::from(count) <= most, "{count} > {most}");
            }
        }
    }
}
