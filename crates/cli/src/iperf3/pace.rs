//! How fast a stream may send: a token bucket that is written as one comparison.
//!
//! From a base time on, `rate` bits per second are due. A stream may send when what it has sent is not ahead of what is
//! due; so the first block goes at once, and the average over any time is the rate and at most one burst. After a stall
//! the stream catches up, but never by more than [`CATCH_UP`] or two bursts: a rate is a promise to the network, too.
//! Time comes from the caller. Rates are at most 2^50, so that nothing overflows within 500 years.

use linerate_base::{Duration, Instant};

/// How much of a stall is caught up.
const CATCH_UP: Duration = Duration::from_millis(100);

/// The pace of one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    rate: u64,
    base: Instant,
    sent_bytes: u64,
    /// Most bytes that may be sent in arrears.
    most_behind: u64,
}

impl Pacer {
    /// `rate` in bits per second, not 0; `burst` is what is sent at once, bytes.
    pub(crate) fn new(rate: u64, burst: u64, now: Instant) -> Self {
        debug_assert!(rate > 0);
        let most_behind = bytes_in(rate, CATCH_UP.as_nanos() as u64).max(2 * burst);
        Self { rate, base: now, sent_bytes: 0, most_behind }
    }

    /// Bytes that are due and not sent; `None`: nothing may go yet.
    pub(crate) fn behind(&mut self, now: Instant) -> Option<u64> {
        let due = bytes_in(self.rate, now.nanos_since(self.base));
        if due.saturating_sub(self.sent_bytes) > self.most_behind {
            self.sent_bytes = due - self.most_behind;
        }
        due.checked_sub(self.sent_bytes)
    }
    /// Notes what went.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
    }
    /// When the next block may go.
    pub(crate) fn next(&self) -> Instant {
        let ns = u128::from(self.sent_bytes) * 8_000_000_000 / u128::from(self.rate);
        let ns = u64::try_from(ns).unwrap_or(u64::MAX).min(u64::MAX / 2);
        // Rounded up, or the caller would come a nanosecond early for ever.
        self.base + Duration::from_nanos(ns + 1)
    }
}

fn bytes_in(rate: u64, ns: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(ns) / 8_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_the_rate_and_a_stall_is_caught_up_a_little() {
        let mut now = Instant::from_secs(5);
        let mut pacer = Pacer::new(8_000_000, 1000, now);
        let mut sent = 0;
        while now < Instant::from_secs(7) {
            while pacer.behind(now).is_some() {
                pacer.sent(1000);
                sent += 1000;
            }
            assert!(pacer.next() > now);
            now = pacer.next();
        }
        assert!((2_000_000..=2_002_000).contains(&sent), "{sent}");
        // Ten seconds later only a tenth of a second is due.
        now += Duration::from_secs(10);
        assert_eq!(pacer.behind(now), Some(100_000));
    }

    #[test]
    fn a_slow_rate_sends_the_first_block_at_once_and_waits_for_the_next() {
        let start = Instant::from_secs(1);
        let mut pacer = Pacer::new(1_000_000, 131_072, start);
        assert!(pacer.behind(start).is_some());
        pacer.sent(131_072);
        assert_eq!(pacer.behind(Instant::from_millis(2048)), None);
        assert_eq!(pacer.behind(Instant::from_millis(2049)), Some(53));
        assert!(pacer.next() <= Instant::from_millis(2049) && pacer.next() > Instant::from_millis(2048));
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut pacer = Pacer::new(1, 1 << 20, Instant::ZERO);
        pacer.sent(u64::MAX / 2);
        assert!(pacer.next() > Instant::from_secs(1));
        assert_eq!(pacer.behind(Instant::from_secs(1 << 30)), None);
        let mut pacer = Pacer::new(1 << 50, 1, Instant::ZERO);
        assert!(pacer.behind(Instant::from_secs(1 << 33)).is_some());
    }
}
