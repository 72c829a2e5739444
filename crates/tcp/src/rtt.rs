//! Round trips: RFC 6298 in Linux's integer form, the RTO and its floor, and the windowed minimum.
//!
//! `srtt` is kept in eighths and `mdev` in quarters of a microsecond, so that both filters are shifts. Linux's variance
//! differs from the RFC in two ways, both kept: a sample *below* the average raises the deviation by an eighth of what
//! the RFC says (a falling RTT is no reason to wait longer), and the deviation that the RTO uses is the largest of a
//! round trip, falls slowly, and is never below the least RTO: the floor is on the variance, so that
//! `RTO = srtt + max(rto_min, 4 mdev)`. The floor's precedence is route over socket over configuration (SYSTEMS B12).
//!
//! [`MinRtt`] is the minimum of the last five minutes by Nichols' three-sample filter (as in BBR and RACK).
//! Not here: which segments give samples (Karn's rule is in `ack`).

use linerate_base::Instant;

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::tx::Tx;

/// Least timeout of probes and reordering timers, µs: two ticks of a 1 ms clock.
pub(crate) const TIMEOUT_MIN_US: u32 = 2_000;
/// Length of the window over which the minimum is taken: `tcp_min_rtt_wlen`, seconds.
const MIN_RTT_WINDOW_MS: u32 = 300_000;

/// Windowed minimum: the best, second and third best samples of the window, each later than the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinRtt([(u32, u32); 3]);

impl MinRtt {
    /// No sample.
    pub(crate) const UNKNOWN: Self = Self([(0, u32::MAX); 3]);
    /// The minimum, µs; `u32::MAX` when unknown.
    pub(crate) fn get(&self) -> u32 {
        self.0[0].1
    }
    /// Takes a sample.
    #[inline]
    pub(crate) fn update(&mut self, now: Instant, rtt_us: u32) {
        let new = (now.as_millis() as u32, rtt_us);
        let [a, b, c] = &mut self.0;
        if rtt_us <= a.1 || new.0.wrapping_sub(c.0) > MIN_RTT_WINDOW_MS {
            self.0 = [new; 3];
            return;
        }
        if rtt_us <= b.1 {
            (*b, *c) = (new, new);
        } else if rtt_us <= c.1 {
            *c = new;
        }
        let age = new.0.wrapping_sub(a.0);
        if age > MIN_RTT_WINDOW_MS {
            // The best expired; so may have the second.
            (*a, *b, *c) = (*b, *c, new);
            if new.0.wrapping_sub(a.0) > MIN_RTT_WINDOW_MS {
                (*a, *b) = (*b, *c);
            }
        } else if b.0 == a.0 && age > MIN_RTT_WINDOW_MS / 4 {
            (*b, *c) = (new, new);
        } else if c.0 == b.0 && age > MIN_RTT_WINDOW_MS / 2 {
            *c = new;
        }
    }
}

impl Tx {
    /// Takes one sample into srtt and variance; `rto_min_us` is the floor.
    #[inline]
    pub(crate) fn rtt_sample(&mut self, rtt_us: u32, rto_min_us: u32) {
        // Beyond 268 s the shifted form would overflow; no RTO is that long.
        let rtt = i64::from(rtt_us.min(1 << 28));
        if self.srtt_us8 == 0 {
            self.srtt_us8 = (rtt << 3).max(1) as u32;
            self.mdev_us4 = (rtt << 1) as u32;
            self.rttvar_us = self.mdev_us4.max(rto_min_us);
            self.mdev_max_us4 = self.rttvar_us;
            self.rtt_seq = self.snd_nxt;
            return;
        }
        let err = rtt - i64::from(self.srtt_us8 >> 3);
        self.srtt_us8 = (i64::from(self.srtt_us8) + err).max(1) as u32;
        let mut step = err.abs() - i64::from(self.mdev_us4 >> 2);
        if err < 0 && step > 0 {
            step >>= 3;
        }
        self.mdev_us4 = (i64::from(self.mdev_us4) + step).max(0) as u32;
        if self.mdev_us4 > self.mdev_max_us4 {
            self.mdev_max_us4 = self.mdev_us4;
            self.rttvar_us = self.rttvar_us.max(self.mdev_max_us4);
        }
        if self.snd_una.gt(self.rtt_seq) {
            if self.mdev_max_us4 < self.rttvar_us {
                self.rttvar_us -= (self.rttvar_us - self.mdev_max_us4) >> 2;
            }
            self.rtt_seq = self.snd_nxt;
            self.mdev_max_us4 = rto_min_us;
        }
    }

    /// The RTO that srtt and variance give, without backoff.
    #[inline]
    pub(crate) fn rto_from_rtt(&self, rto_max_us: u32) -> u32 {
        ((self.srtt_us8 >> 3) + self.rttvar_us).clamp(1, rto_max_us)
    }
}

impl Conn {
    /// Least RTO: route, else socket, else configuration; µs.
    #[inline]
    pub(crate) fn rto_min_us(&self, cx: &TcpCx<'_>) -> u32 {
        let chosen = if self.path.rto_min_us != 0 {
            self.path.rto_min_us
        } else if self.opts.rto_min_us != 0 {
            self.opts.rto_min_us
        } else {
            cx.cfg.rto_min_us
        };
        chosen.clamp(1, cx.cfg.rto_max_us)
    }

    /// A valid sample of an acknowledged segment: srtt, RTO, and the end of any backoff (RFC 6298 section 5.7).
    pub(crate) fn take_rtt(&mut self, cx: &TcpCx<'_>, rtt_us: u32) {
        let floor = self.rto_min_us(cx);
        self.tx.rtt_sample(rtt_us, floor);
        self.tx.rto_us = self.tx.rto_from_rtt(cx.cfg.rto_max_us);
        self.tx.backoff = 0;
    }

    /// The round trip of the handshake, µs, as a minisock measured it.
    pub(crate) fn seed_rtt(&mut self, cx: &TcpCx<'_>, rtt_us: u32) {
        self.tx.min_rtt.update(cx.now, rtt_us.max(1));
        self.take_rtt(cx, rtt_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_forgets_after_its_window() {
        let at = Instant::from_secs;
        let mut m = MinRtt::UNKNOWN;
        assert_eq!(m.get(), u32::MAX);
        m.update(at(10), 500);
        m.update(at(20), 300);
        m.update(at(30), 900);
        assert_eq!(m.get(), 300);
        for s in 31..400 {
            m.update(at(s), 700);
        }
        assert_eq!(m.get(), 700, "the sample of second 20 is older than five minutes");
        m.update(at(5000), 2000);
        assert_eq!(m.get(), 2000, "nothing fresher is known");
    }

    #[test]
    fn the_minimum_equals_a_naive_one_within_its_tolerance() {
        let mut m = MinRtt::UNKNOWN;
        let mut all = std::vec::Vec::new();
        let mut x = 12_345_u32;
        for s in 0..3000_u64 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let rtt = 1000 + (x >> 20);
            m.update(Instant::from_secs(s + 1), rtt);
            all.push(rtt);
            let from = all.len().saturating_sub(301);
            let exact = all[from..].iter().copied().min().unwrap();
            assert!(m.get() >= exact && m.get() <= exact + 400, "{} {exact}", m.get());
        }
    }
}
