//! Source ports of active opens: RFC 6056 algorithm 4 (double hash), as Linux strengthened it (SYSTEMS B43).
//!
//! `offset = table[hash mod 2^16] + hash >> 32`, so each destination has its own sequence through the port range, and a
//! table entry that it shares with few others. After each choice the entry moves on by two for every port that was
//! taken, and by a random amount of up to seven steps, so that a listener at one destination does not learn how many
//! connections go elsewhere. With a table of 256 entries an attacker who can measure his own increments finds a
//! destination that shares his entry with a few hundred probes (arXiv 2209.12993); the test below carries that out, and
//! fails to with 65,536 entries and noise. Connect prefers ports of the range's first parity, bind of the other, so that
//! they rarely collide. The structure knows no sockets: the caller says what is free. Memory: 256 KiB per picker.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use linerate_base::rng::Rng;

/// Entries of the table, as a power of two (Linux INET_TABLE_PERTURB_ORDER).
const PERTURB_ORDER: u32 = 16;
/// Ports are tried two apart, one parity first.
const STEP: u32 = 2;
/// A choice moves the entry by up to this many further steps.
const NOISE_STEPS: u64 = 8;

/// Picks source ports.
#[derive(Clone, Debug)]
pub struct PortPicker {
    table: Vec<u32>,
    low: u16,
    /// Ports in the range, at least 1.
    count: u32,
    noise: bool,
}

impl PortPicker {
    /// For ports of `range` (Linux's default is 32768..=60999); an empty range is taken as its first port.
    pub fn new(range: RangeInclusive<u16>, rng: &mut Rng) -> Self {
        Self::with_order(range, rng, PERTURB_ORDER, true)
    }

    fn with_order(range: RangeInclusive<u16>, rng: &mut Rng, order: u32, noise: bool) -> Self {
        let mut table = vec![0; 1 << order];
        table.fill_with(|| rng.next_u32());
        let (low, high) = (*range.start(), *range.end());
        Self { table, low, count: u32::from(high.saturating_sub(low)) + 1, noise }
    }

    /// Forgets all sequences: new random entries (a re-key).
    pub fn rekey(&mut self, rng: &mut Rng) {
        self.table.fill_with(|| rng.next_u32());
    }

    /// A port for which `is_free` says yes, trying each port of the range at most once; `None` when all are taken.
    ///
    /// `hash` is a keyed 64-bit hash of local address, remote address and remote port.
    pub fn next(&mut self, hash: u64, rng: &mut Rng, mut is_free: impl FnMut(u16) -> bool) -> Option<u16> {
        let index = hash as usize & (self.table.len() - 1);
        let entry = self.table.get(index).copied().unwrap_or_default();
        let first = (entry.wrapping_add((hash >> 32) as u32) % self.count) & !1;
        for parity in 0..STEP.min(self.count) {
            let mut tried = 0;
            while tried < self.count {
                // `first` has even parity and the walk stays in its own: a range of odd length skips its wrap-around.
                let at = wrap_parity(first + parity + tried, self.count, parity);
                if let Some(at) = at
                    && is_free(self.low + at as u16)
                {
                    let noise = if self.noise { rng.below(NOISE_STEPS) as u32 * STEP } else { 0 };
                    if let Some(e) = self.table.get_mut(index) {
                        *e = e.wrapping_add(tried.max(noise) + STEP);
                    }
                    return Some(self.low + at as u16);
                }
                tried += STEP;
            }
        }
        None
    }
}

/// Position `at` of a walk in steps of two, brought back into `0..count` with the same parity; `None` for a step that
/// has no port (the last one of a range of odd length, for the odd parity).
fn wrap_parity(at: u32, count: u32, parity: u32) -> Option<u32> {
    let even_count = count.next_multiple_of(STEP);
    let at = at % even_count;
    debug_assert_eq!(at % STEP, parity % STEP);
    (at < count).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::PortPicker;
    use linerate_base::rng::Rng;
    use std::collections::HashSet;
    use std::vec::Vec;

    #[test]
    fn every_port_is_tried_once() {
        for range in [40_000..=40_009u16, 40_000..=40_010, 7..=7, 65_535..=65_535] {
            let mut rng = Rng::new(7);
            let mut p = PortPicker::new(range.clone(), &mut rng);
            let mut seen = Vec::new();
            assert_eq!(
                p.next(0x1234_5678_9abc_def0, &mut rng, |port| {
                    seen.push(port);
                    false
                }),
                None
            );
            let unique: HashSet<u16> = seen.iter().copied().collect();
            assert_eq!(unique.len(), seen.len(), "a port was tried twice");
            assert_eq!(unique, range.collect());
        }
    }

    #[test]
    fn first_parity_first() {
        let mut rng = Rng::new(3);
        let mut p = PortPicker::new(32_768..=60_999, &mut rng);
        for i in 0..100u64 {
            let port = p.next(i.wrapping_mul(0x9e37_79b9_7f4a_7c15), &mut rng, |_| true).unwrap();
            assert_eq!(port % 2, 0);
            let odd = p.next(i, &mut rng, |port| port % 2 == 1).unwrap();
            assert_eq!(odd % 2, 1);
        }
    }

    /// The attack of arXiv 2209.12993, simplified: the attacker sees the ports of connections to `probes` destinations of
    /// his own, twice, with one connection to the victim in between; a destination whose entry moved by more than its own
    /// share collides with the victim's. Returns how often the guess is right over many victims.
    fn collision_found(order: u32, noise: bool) -> usize {
        let mut rng = Rng::new(99);
        let mut right = 0;
        for victim in 0..40u64 {
            let mut p = PortPicker::with_order(32_768..=60_999, &mut rng, order, noise);
            let own: Vec<u64> = (0..2000).map(|_| rng.next_u64()).collect();
            let target = rng.next_u64() ^ victim;
            // One probe of each: then the victim is visited, then each again; a step of 2 is what a probe itself moves.
            let mut moved = None;
            for &h in &own {
                let before = p.next(h, &mut rng, |_| true).unwrap();
                let quiet = p.next(h, &mut rng, |_| true).unwrap();
                p.next(target, &mut rng, |_| true).unwrap();
                let after = p.next(h, &mut rng, |_| true).unwrap();
                if after.wrapping_sub(quiet) != quiet.wrapping_sub(before) {
                    moved = Some(h);
                    break;
                }
            }
            let mask = (1u64 << order) - 1;
            right += usize::from(moved.is_some_and(|h| h & mask == target & mask));
        }
        right
    }

    #[test]
    fn the_collision_attack_needs_a_small_table_without_noise() {
        assert!(collision_found(8, false) >= 36, "256 entries without noise: nearly every victim is found");
        assert!(collision_found(16, true) <= 2, "65,536 entries with noise: no better than a guess");
    }
}
