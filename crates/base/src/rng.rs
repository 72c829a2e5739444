//! A small deterministic generator: the stack's randomness is an argument.
//!
//! xoshiro256++ (Blackman, Vigna, "Scrambled linear pseudorandom number generators", 2021), its state spread from a 64-bit
//! seed by SplitMix64 as its authors advise. The same seed gives the same run on every machine, which is what makes a
//! failing simulation a number. Period 2^256 - 1; four words of state; a handful of instructions a draw.
//!
//! It is *not* cryptographic: who sees outputs can predict more. What must be secret (hash keys, ISNs, cookies) is made by
//! SipHash from a [`HashKey`] that the host draws from the system; this generator serves jitter, port offsets and faults.

use crate::siphash::HashKey;

/// A seeded generator. `Clone` copies the stream: both continue alike; [`Rng::fork`] makes an independent one.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

/// One step of SplitMix64 over a counter.
const fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = *state;
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream of `seed`; every seed is good, 0 included.
    pub const fn new(mut seed: u64) -> Self {
        Self([splitmix64(&mut seed), splitmix64(&mut seed), splitmix64(&mut seed), splitmix64(&mut seed)])
    }

    /// 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.0;
        let out = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c2, d2) = (c ^ a, d ^ b);
        self.0 = [a ^ d2, b ^ c2, c2 ^ (b << 17), d2.rotate_left(45)];
        out
    }

    /// 32 random bits, the upper ones of a draw.
    pub const fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Uniform in `0..n`, without bias (Lemire's multiplication with rejection). `n == 0` gives 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        let mut product = self.next_u64() as u128 * n as u128;
        if (product as u64) < n {
            let reject_below = n.wrapping_neg() % n;
            while (product as u64) < reject_below {
                product = self.next_u64() as u128 * n as u128;
            }
        }
        (product >> 64) as u64
    }

    /// Uniform in `low..=high`; `low` when `high` is less.
    pub const fn range(&mut self, low: u64, high: u64) -> u64 {
        match high.saturating_sub(low).checked_add(1) {
            Some(n) => low + self.below(n),
            None => self.next_u64(),
        }
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub const fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with probability `p`; never for `p <= 0` or NaN, always for `p >= 1`. Always consumes one draw.
    pub const fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// An independent generator, seeded from this one.
    pub const fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    /// A hash key from this stream: for simulations and tests, where a secret would break replay.
    pub const fn hash_key(&mut self) -> HashKey {
        HashKey([self.next_u64(), self.next_u64()])
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outputs of the authors' C program from the state 1, 2, 3, 4.
    #[test]
    fn xoshiro_reference() {
        let mut rng = Rng([1, 2, 3, 4]);
        for want in [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386, 9_228_616_714_210_784_205] {
            assert_eq!(rng.next_u64(), want);
        }
    }

    #[test]
    fn splitmix_reference() {
        let mut state = 1_234_567;
        assert_eq!(splitmix64(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(splitmix64(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn below_is_in_range_and_even() {
        let mut rng = Rng::new(0);
        let mut seen = [0u32; 6];
        for _ in 0..60_000 {
            seen[rng.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (9_500..10_500).contains(n)), "{seen:?}");
        assert_eq!((rng.below(0), rng.below(1), rng.range(5, 5), rng.range(7, 3)), (0, 0, 5, 7));
        // Near 2^64 every second draw of a biased method would fall into the lower half too often.
        let n = (1 << 63) + (1 << 62);
        let low = (0..40_000).filter(|_| rng.below(n) < n / 2).count();
        assert!((19_000..21_000).contains(&low), "{low}");
        assert!((0..1000).all(|_| (10..=12).contains(&rng.range(10, 12))));
        rng.range(0, u64::MAX);
    }

    #[test]
    fn chance_has_its_edges() {
        let mut rng = Rng::new(9);
        assert!((0..1000).all(|_| !rng.chance(0.0) && rng.chance(1.0) && !rng.chance(f64::NAN)));
        let hits = (0..100_000).filter(|_| rng.chance(0.01)).count();
        assert!((850..1150).contains(&hits), "{hits}");
    }

    #[test]
    fn forks_differ_and_replay() {
        let (mut a, mut b) = (Rng::new(1), Rng::new(1));
        let (mut fa, mut fb) = (a.fork(), b.fork());
        assert_eq!(fa.next_u64(), fb.next_u64());
        assert_ne!(fa.next_u64(), a.next_u64());
        let (mut x, mut y) = ([0; 13], [0; 13]);
        fa.fill(&mut x);
        fb.next_u64();
        fb.fill(&mut y);
        assert_eq!(x, y);
        assert_ne!(x, [0; 13]);
    }
}
