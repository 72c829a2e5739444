//! Points in time, as an argument.
//!
//! The core never reads a clock: a caller reads one at the start of a turn and hands the value down. An [`Instant`] is a
//! count of nanoseconds since an origin that the caller chose (a process start, or zero in a simulation); 2^64 ns are
//! 584 years, so it never wraps. All arithmetic saturates, because a virtual clock may leap and a caller may be wrong,
//! and neither may panic.

use core::ops::{Add, AddAssign, Sub};

pub use core::time::Duration;

/// A point in time: nanoseconds since the caller's origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than every deadline.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }
    /// `us` microseconds after the origin (saturating).
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }
    /// `ms` milliseconds after the origin (saturating).
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }
    /// `s` seconds after the origin (saturating).
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }
    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// Whole microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }
    /// Whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
    /// Time passed since `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
    /// Microseconds passed since `earlier`, capped at `u32::MAX` (71 minutes); zero when `earlier` is later.
    pub const fn micros_since(self, earlier: Self) -> u32 {
        let us = self.0.saturating_sub(earlier.0) / 1_000;
        if us > u32::MAX as u64 { u32::MAX } else { us as u32 }
    }
    /// Nanoseconds passed since `earlier`; zero when `earlier` is later.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
    /// This point plus `us` microseconds.
    pub const fn plus_micros(self, us: u64) -> Self {
        Self(self.0.saturating_add(us.saturating_mul(1_000)))
    }
}

const fn nanos(d: Duration) -> u64 {
    let ns = d.as_nanos();
    if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(nanos(d)))
    }
}
impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}
impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(d)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let t = Instant::from_secs(1);
        assert_eq!(t + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(t - Duration::from_secs(2), Instant::ZERO);
        assert_eq!(Instant::from_secs(u64::MAX), Instant::FAR_FUTURE);
        assert_eq!(Instant::FAR_FUTURE.plus_micros(u64::MAX), Instant::FAR_FUTURE);
        assert_eq!(Instant::ZERO.since(t), Duration::ZERO);
        assert_eq!((Instant::ZERO.micros_since(t), Instant::FAR_FUTURE.micros_since(t)), (0, u32::MAX));
    }

    #[test]
    fn units_agree() {
        let t = Instant::from_millis(1_234);
        assert_eq!((t.as_nanos(), t.as_micros(), t.as_millis()), (1_234_000_000, 1_234_000, 1_234));
        assert_eq!(t.plus_micros(7).micros_since(t), 7);
        assert_eq!((t + Duration::from_nanos(999)).as_micros(), 1_234_000);
        assert_eq!((t + Duration::from_millis(3)).since(t), Duration::from_millis(3));
    }
}
