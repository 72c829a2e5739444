//! SipHash (Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012): the keyed hash of everything a peer can choose.
//!
//! Flow tables, initial sequence numbers (RFC 6528), SYN cookies and ephemeral ports hash addresses that an attacker picks.
//! Under a secret 128-bit [`HashKey`] he can neither aim collisions nor predict the result. SipHash-1-3 (one round per word,
//! three at the end) serves tables; SipHash-2-4 serves values that leave the machine.
//!
//! Invariant: the word forms equal the byte forms over the words' little-endian bytes, on every machine. Words are the fast
//! path: no tail, no length arithmetic, unrolled for a constant `N`. This is a MAC for short inputs, not a digest, and it
//! makes no secrets: the key arrives as an argument.

use core::fmt;

/// A secret 128-bit key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

/// A key does not print itself.
impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl HashKey {
    /// From 16 bytes, as the reference implementation reads them.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self([both as u64, (both >> 64) as u64])
    }

    /// SipHash-1-3 of `bytes`.
    pub fn sip13(&self, bytes: &[u8]) -> u64 {
        hash_bytes::<1, 3>(self, bytes)
    }

    /// SipHash-2-4 of `bytes`.
    pub fn sip24(&self, bytes: &[u8]) -> u64 {
        hash_bytes::<2, 4>(self, bytes)
    }

    /// SipHash-1-3 of the little-endian bytes of `words`.
    #[inline]
    pub fn sip13_words<const N: usize>(&self, words: &[u64; N]) -> u64 {
        hash_words::<1, 3, N>(self, words)
    }

    /// SipHash-2-4 of the little-endian bytes of `words`.
    #[inline]
    pub fn sip24_words<const N: usize>(&self, words: &[u64; N]) -> u64 {
        hash_words::<2, 4, N>(self, words)
    }
}

struct State([u64; 4]);

impl State {
    #[inline]
    fn new(key: &HashKey) -> Self {
        let [k0, k1] = key.0;
        // "somepseudorandomlygeneratedbytes", the constants of the paper.
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline]
    fn rounds<const R: usize>(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        for _ in 0..R {
            a = a.wrapping_add(b);
            b = b.rotate_left(13) ^ a;
            a = a.rotate_left(32);
            c = c.wrapping_add(d);
            d = d.rotate_left(16) ^ c;
            a = a.wrapping_add(d);
            d = d.rotate_left(21) ^ a;
            c = c.wrapping_add(b);
            b = b.rotate_left(17) ^ c;
            c = c.rotate_left(32);
        }
        self.0 = [a, b, c, d];
    }

    #[inline]
    fn absorb<const C: usize>(&mut self, word: u64) {
        self.0[3] ^= word;
        self.rounds::<C>();
        self.0[0] ^= word;
    }

    /// `last` is the tail with the length in its top byte.
    #[inline]
    fn finish<const C: usize, const D: usize>(mut self, last: u64) -> u64 {
        self.absorb::<C>(last);
        self.0[2] ^= 0xff;
        self.rounds::<D>();
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }
}

fn hash_bytes<const C: usize, const D: usize>(key: &HashKey, bytes: &[u8]) -> u64 {
    let mut state = State::new(key);
    let (words, tail) = bytes.as_chunks::<8>();
    for &word in words {
        state.absorb::<C>(u64::from_le_bytes(word));
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    last[7] = bytes.len() as u8;
    state.finish::<C, D>(u64::from_le_bytes(last))
}

#[inline]
fn hash_words<const C: usize, const D: usize, const N: usize>(key: &HashKey, words: &[u64; N]) -> u64 {
    let mut state = State::new(key);
    for &word in words {
        state.absorb::<C>(word);
    }
    state.finish::<C, D>(((N * 8) as u64 & 0xff) << 56)
}

#[cfg(test)]
mod tests {
    use core::hash::Hasher;
    use std::hash::DefaultHasher;
    use std::vec::Vec;

    use super::*;
    use crate::rng::Rng;

    /// The paper's key 00 01 .. 0f and messages empty, 00, 00 01, ...; the last is appendix A's worked example.
    #[test]
    fn reference_vectors_of_2_4() {
        let key = HashKey::from_bytes(core::array::from_fn(|i| i as u8));
        let message: Vec<u8> = (0..15).collect();
        let want: [u64; 9] = [
            0x726f_db47_dd0e_0e31,
            0x74f8_39c5_93dc_67fd,
            0x0d6c_8009_d9a9_4f5a,
            0x8567_6696_d7fb_7e2d,
            0xcf27_94e0_2771_87b7,
            0x1876_5564_cd99_a68d,
            0xcbc9_466e_58fe_e3ce,
            0xab02_00f5_8b01_d137,
            0x93f5_f579_9a93_2462,
        ];
        for (len, want) in want.into_iter().enumerate() {
            assert_eq!(key.sip24(&message[..len]), want, "{len} bytes");
        }
        assert_eq!(key.sip24(&message), 0xa129_ca61_49be_45e5);
    }

    /// The standard library's default hasher is SipHash-1-3 under a zero key, and its old one 2-4 under any key.
    #[test]
    #[expect(deprecated, reason = "the only independent SipHash-2-4 at hand")]
    fn equals_the_standard_library() {
        let mut rng = Rng::new(5);
        for len in 0..300 {
            let bytes: Vec<u8> = (0..len).map(|_| rng.next_u32() as u8).collect();
            let mut std13 = DefaultHasher::new();
            std13.write(&bytes);
            assert_eq!(HashKey([0, 0]).sip13(&bytes), std13.finish());
            let key = [rng.next_u64(), rng.next_u64()];
            let mut std24 = std::hash::SipHasher::new_with_keys(key[0], key[1]);
            std24.write(&bytes);
            assert_eq!(HashKey(key).sip24(&bytes), std24.finish());
        }
    }

    #[test]
    fn words_equal_their_bytes() {
        let mut rng = Rng::new(6);
        for _ in 0..100 {
            let key = HashKey([rng.next_u64(), rng.next_u64()]);
            let words: [u64; 5] = core::array::from_fn(|_| rng.next_u64());
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            assert_eq!(key.sip13_words(&words), key.sip13(&bytes));
            assert_eq!(key.sip24_words(&words), key.sip24(&bytes));
        }
        let long = [7u64; 40]; // 320 bytes: the length byte wraps
        let bytes: Vec<u8> = long.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(HashKey([1, 2]).sip13_words(&long), HashKey([1, 2]).sip13(&bytes));
    }
}
