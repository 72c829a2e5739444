//! TCP sequence numbers (RFC 9293 section 3.4): unsigned 32-bit, compared modulo 2^32.
//!
//! `a < b` holds when `b` is less than 2^31 ahead of `a`. There is no `Ord`: the relation is not transitive over the
//! whole circle, so sorting by it would be a bug that the compiler should refuse.
//!
//! Differences ([`Seq`] minus [`Seq`]) are distances upwards, 0 to 2^32 - 1: whoever subtracts has compared first. All
//! arithmetic wraps, so a number that a peer chose can neither panic nor overflow. Two numbers exactly 2^31 apart are
//! each "before" the other; windows are at most 2^30 bytes, so no valid pair is.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// `self < other` on the circle.
    pub const fn lt(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
    /// `self <= other` on the circle.
    pub const fn le(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) <= 0
    }
    /// `self > other` on the circle.
    pub const fn gt(self, other: Self) -> bool {
        other.lt(self)
    }
    /// `self >= other` on the circle.
    pub const fn ge(self, other: Self) -> bool {
        other.le(self)
    }
    /// The later of two.
    pub const fn max(self, other: Self) -> Self {
        if self.lt(other) { other } else { self }
    }
    /// The earlier of two.
    pub const fn min(self, other: Self) -> Self {
        if self.lt(other) { self } else { other }
    }
    /// `low <= self < high`, walking upwards from `low`.
    pub const fn in_range(self, low: Self, high: Self) -> bool {
        self.0.wrapping_sub(low.0) < high.0.wrapping_sub(low.0)
    }
    /// Signed distance `self - other`.
    pub const fn diff(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl Add<u32> for Seq {
    type Output = Self;
    fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }
}
impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}
impl Sub<u32> for Seq {
    type Output = Self;
    fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n))
    }
}
/// Bytes from `rhs` up to `self`, modulo 2^32.
impl Sub for Seq {
    type Output = u32;
    fn sub(self, rhs: Self) -> u32 {
        self.0.wrapping_sub(rhs.0)
    }
}
impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relations at and around the wrap and at half the circle, where they stop being symmetric.
    #[test]
    fn compares_on_the_circle() {
        let (before, after) = (Seq(u32::MAX - 4), Seq(5));
        assert!(before.lt(after) && before.le(after) && after.gt(before) && after.ge(before));
        assert!(!after.lt(before) && after.le(after) && !after.lt(after));
        assert_eq!((before.max(after), before.min(after)), (after, before));
        assert_eq!((after - before, after.diff(before), before.diff(after)), (10, 10, -10));
        assert_eq!((before + 10, after - 10u32), (after, before));
        assert!(Seq(0).lt(Seq(0x7fff_ffff)) && !Seq(0).gt(Seq(0x7fff_ffff)));
        assert!(Seq(0).gt(Seq(0x8000_0001)));
    }

    #[test]
    fn ranges_wrap_and_may_be_empty() {
        let (low, high) = (Seq(u32::MAX - 1), Seq(2));
        assert!(low.in_range(low, high) && Seq(0).in_range(low, high) && Seq(1).in_range(low, high));
        assert!(!high.in_range(low, high) && !(low - 1u32).in_range(low, high));
        assert!(!low.in_range(low, low));
    }
}
