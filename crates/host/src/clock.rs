//! Clocks that produce [`Instant`]s: nanoseconds since the first clock of the process was made.
//!
//! All clocks of a process share one origin, so their instants compare across threads and kinds. [`Clock::monotonic`]
//! asks the kernel (CLOCK_MONOTONIC through the vDSO, about 20 ns). [`Clock::fast`] reads the time-stamp counter (about
//! 9 ns) and scales it; its rate is calibrated once a process against CLOCK_MONOTONIC, over [`CALIBRATION_MS`].
//!
//! Invariants: a clock never goes backwards on one thread; between threads the fast clock may disagree by the skew of
//! the counters, which is tens of nanoseconds where the kernel itself trusts them. The fast clock is used only where it
//! does: the processor says that the counter is invariant, the kernel's clock source is the counter (or a paravirtual
//! clock derived from it), and two halves of the calibration agree within [`MAX_RATE_ERROR_PPM`]. Otherwise `fast` is
//! `monotonic`.
//!
//! Limits: the kernel slews CLOCK_MONOTONIC under NTP and the fast clock does not follow, so the two may drift apart by
//! some parts per million: harmless for intervals and timers, wrong for wall-clock stamps, which it does not offer.

use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use linerate_arch::cycles;
use linerate_base::Instant;
use rustix::time::{ClockId, clock_gettime};

/// How long the one calibration of a process spins, in milliseconds. The two end points are each known within some
/// 30 ns, so 8 ms bound the rate's error by about 10 parts per million.
pub const CALIBRATION_MS: u64 = 8;

/// The largest disagreement between the two halves of a calibration, in parts per million, before it is thrown away.
pub const MAX_RATE_ERROR_PPM: u64 = 500;

/// Where a kernel tells which counter it keeps time by.
const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// A source of [`Instant`]s. It is a small value: copy it to every thread that needs one.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: u64,
    scale: Option<Scale>,
}

/// `ns = base_ns + ((tsc - base_tsc) * mult >> 32)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale {
    base_tsc: u64,
    base_ns: u64,
    mult: u64,
}

impl Scale {
    fn ns_at(&self, tsc: u64) -> u64 {
        let ticks = u128::from(tsc.saturating_sub(self.base_tsc));
        // 2^64 ticks times a multiplier below 2^40 fit 128 bits; the shifted result is below 584 years for any real tick.
        self.base_ns.saturating_add(((ticks * u128::from(self.mult)) >> 32) as u64)
    }
}

impl Clock {
    /// The kernel's monotonic clock.
    pub fn monotonic() -> Self {
        Self { origin_ns: origin_ns(), scale: None }
    }

    /// The time-stamp counter where it can be trusted, else [`Clock::monotonic`]. The first call of a process spins
    /// [`CALIBRATION_MS`] milliseconds.
    pub fn fast() -> Self {
        static SCALE: OnceLock<Option<Scale>> = OnceLock::new();
        let origin_ns = origin_ns();
        Self { origin_ns, scale: *SCALE.get_or_init(|| counter_is_trusted().then(calibrate).flatten()) }
    }

    /// Whether this clock reads the time-stamp counter.
    pub fn is_counter(&self) -> bool {
        self.scale.is_some()
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub fn now(&self) -> Instant {
        let ns = match &self.scale {
            Some(scale) => scale.ns_at(cycles()),
            None => monotonic_ns(),
        };
        Instant::from_nanos(ns.saturating_sub(self.origin_ns))
    }

    /// Time from now to `deadline`; zero when it has passed, `None` for [`Instant::FAR_FUTURE`].
    pub fn until(&self, deadline: Instant) -> Option<Duration> {
        (deadline != Instant::FAR_FUTURE).then(|| deadline.since(self.now()))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::monotonic()
    }
}

/// CLOCK_MONOTONIC in nanoseconds since the boot.
fn monotonic_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    // The kernel's monotonic clock starts at zero at boot, so both parts are never negative.
    (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)
}

/// The origin that all clocks of this process share.
fn origin_ns() -> u64 {
    static ORIGIN_NS: OnceLock<u64> = OnceLock::new();
    *ORIGIN_NS.get_or_init(monotonic_ns)
}

/// Whether both processor and kernel keep time by this counter.
fn counter_is_trusted() -> bool {
    let kernel_trusts = fs::read_to_string(CLOCKSOURCE)
        .is_ok_and(|s| matches!(s.trim(), "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page"));
    kernel_trusts && crate::cpu::invariant_counter()
}

/// A counter value and the kernel's time of the same moment: the closest of several tries, since a preemption between
/// the two reads would spoil one.
fn sample() -> (u64, u64) {
    const TRIES: usize = 8;
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..TRIES {
        let before = cycles();
        let ns = monotonic_ns();
        let after = cycles();
        let gap = after.saturating_sub(before);
        if gap < best.0 {
            best = (gap, before + gap / 2, ns);
        }
    }
    (best.1, best.2)
}

/// Spins until `ms` milliseconds after `since_ns` and samples there.
fn sample_after(since_ns: u64, ms: u64) -> (u64, u64) {
    while monotonic_ns().saturating_sub(since_ns) < ms * 1_000_000 {
        std::hint::spin_loop();
    }
    sample()
}

/// Measures the counter's rate in two halves; `None` when they disagree.
fn calibrate() -> Option<Scale> {
    let start = sample();
    let middle = sample_after(start.1, CALIBRATION_MS / 2);
    let end = sample_after(start.1, CALIBRATION_MS);
    let first = rate(start, middle)?;
    let second = rate(middle, end)?;
    let error_ppm = u128::from(first.abs_diff(second)) * 1_000_000 / u128::from(first);
    if error_ppm > u128::from(MAX_RATE_ERROR_PPM) {
        return None;
    }
    // Anchored at the end, so that the fast clock agrees with the kernel's when it is first used.
    Some(Scale { base_tsc: end.0, base_ns: end.1, mult: rate(start, end)? })
}

/// Nanoseconds per tick, as a 32.32 fixed-point number. `None` for a counter that stands still or is slower than 4 MHz
/// (too coarse to be worth it).
fn rate(from: (u64, u64), to: (u64, u64)) -> Option<u64> {
    let (ticks, ns) = (to.0.checked_sub(from.0)?, to.1.checked_sub(from.1)?);
    if ticks == 0 || ns == 0 {
        return None;
    }
    let mult = (u128::from(ns) << 32) / u128::from(ticks);
    (mult > 0 && mult < 1 << 40).then_some(mult as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_share_an_origin_and_never_go_back() {
        let kinds = [Clock::monotonic(), Clock::fast()];
        let mut last = Instant::ZERO;
        for _ in 0..1_000 {
            for clock in kinds {
                let now = clock.now();
                // The two kinds may differ by the rate's error since the calibration.
                assert!(now + Duration::from_millis(5) >= last, "{now:?} after {last:?}");
                last = now;
            }
        }
        for clock in kinds {
            let mut last = clock.now();
            for _ in 0..10_000 {
                let now = clock.now();
                assert!(now >= last);
                last = now;
            }
        }
    }

    #[test]
    fn a_sleep_is_seen_by_both_clocks() {
        for clock in [Clock::monotonic(), Clock::fast()] {
            let before = clock.now();
            std::thread::sleep(Duration::from_millis(20));
            assert!(clock.now().since(before) >= Duration::from_millis(19), "counter: {}", clock.is_counter());
        }
    }

    #[test]
    fn until_counts_down_and_knows_forever() {
        let clock = Clock::monotonic();
        assert_eq!(clock.until(Instant::FAR_FUTURE), None);
        assert_eq!(clock.until(Instant::ZERO), Some(Duration::ZERO));
        let left = clock.until(clock.now() + Duration::from_secs(100)).unwrap();
        assert!(left <= Duration::from_secs(100) && left > Duration::from_secs(50));
    }

    #[test]
    fn the_scale_is_exact_at_its_base_and_at_its_rate() {
        // 2.5 GHz: 0.4 ns a tick.
        let mult = rate((0, 0), (2_500_000_000, 1_000_000_000)).unwrap();
        let scale = Scale { base_tsc: 1_000, base_ns: 77, mult };
        assert_eq!(scale.ns_at(1_000), 77);
        assert_eq!(scale.ns_at(0), 77, "a counter behind the base does not wrap");
        let ns = scale.ns_at(1_000 + 2_500_000_000);
        assert!((999_999_990..=1_000_000_000).contains(&(ns - 77)), "{ns}");
        // A year of uptime neither overflows nor drifts by more than the fixed point allows.
        let year = 365 * 24 * 3_600_u64;
        let ns = scale.ns_at(1_000 + year * 2_500_000_000) - 77;
        assert!((year * 1_000_000_000).abs_diff(ns) < year * 10, "{ns}");
    }

    #[test]
    fn a_useless_counter_is_refused() {
        assert_eq!(rate((5, 0), (5, 1_000)), None, "stands still");
        assert_eq!(rate((5, 0), (4, 1_000)), None, "goes back");
        assert_eq!(rate((0, 0), (1, 1_000)), None, "1 MHz is too coarse");
    }
}
