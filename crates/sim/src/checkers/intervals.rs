//! Sets of numbers as half-open ranges that never touch.
//!
//! The observer's memory of what arrived: ranges of stream offsets, merged as they fill up, so that an intact stream is
//! one entry however long it is. Offsets are 64-bit and do not wrap. Insertion and look-up are logarithmic in the
//! number of holes.

use std::collections::BTreeMap;

/// A set of ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals(BTreeMap<u64, u64>);

impl Intervals {
    /// Adds `start..end`; an empty range changes nothing.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        if let Some((&s, &e)) = self.0.range(..=start).next_back()
            && e >= start
        {
            start = s;
            end = end.max(e);
        }
        while let Some((&s, &e)) = self.0.range(start..=end).next() {
            end = end.max(e);
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }
    /// Is every number of `start..end` in the set? True for an empty range.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        start >= end || self.0.range(..=start).next_back().is_some_and(|(_, &e)| e >= end)
    }
    /// The first number at or above `from` that is missing.
    pub fn end_of_run(&self, from: u64) -> u64 {
        self.0.range(..=from).next_back().map_or(from, |(_, &e)| e.max(from))
    }
    /// Ranges in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Is nothing in the set?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_base::Rng;

    #[test]
    fn touching_ranges_become_one() {
        let mut set = Intervals::default();
        set.insert(10, 20);
        set.insert(30, 40);
        assert_eq!((set.len(), set.end_of_run(10), set.end_of_run(25)), (2, 20, 25));
        set.insert(20, 30);
        assert_eq!((set.len(), set.contains(10, 40), set.contains(9, 11)), (1, true, false));
        set.insert(5, 5);
        assert!(set.contains(7, 7) && !set.is_empty());
    }

    #[test]
    fn agrees_with_a_plain_array() {
        let mut rng = Rng::new(4);
        let (mut set, mut plain) = (Intervals::default(), [false; 200]);
        for _ in 0..300 {
            let start = rng.below(200);
            let end = (start + rng.below(9)).min(200);
            set.insert(start, end);
            plain[start as usize..end as usize].fill(true);
            let (a, len) = (rng.below(190), rng.below(10));
            assert_eq!(set.contains(a, a + len), plain[a as usize..(a + len) as usize].iter().all(|&x| x));
            let runs = plain.iter().enumerate().filter(|&(i, &x)| x && (i == 0 || !plain[i - 1])).count();
            assert_eq!(set.len(), runs);
        }
    }
}
