//! Seeds from the kernel's random number generator.
//!
//! The stack's hash keys, initial sequence numbers and ephemeral ports come from a generator that is seeded once; this
//! is where the seed comes from. A simulation passes its own number instead. It blocks only before the kernel's pool is
//! first initialised, early in a boot. It is not a generator: ask once and expand below.

use linerate_wire::ethernet::MacAddr;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Eight random bytes of the kernel as a number.
///
/// # Panics
/// When the kernel refuses `getrandom` (older than Linux 3.17, or a seccomp filter): keys that a peer could guess would
/// be worse than no stack.
pub fn random_seed() -> u64 {
    let mut seed = [0; 8];
    fill(&mut seed);
    u64::from_ne_bytes(seed)
}

/// A hardware address of our own making: one station, locally administered (IEEE 802 section 8.4).
///
/// # Panics
/// As [`random_seed`].
pub fn random_mac() -> MacAddr {
    let [a, b, c, d, e, f, ..] = random_seed().to_ne_bytes();
    MacAddr([a & 0xfc | 2, b, c, d, e, f])
}

/// Fills `bytes` with the kernel's random bytes, for keys that are longer than a seed.
///
/// # Panics
/// As [`random_seed`].
pub fn fill(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        match getrandom(&mut bytes[done..], GetRandomFlags::empty()) {
            Ok(got) => done += got,
            Err(Errno::INTR) => {}
            Err(errno) => panic!("getrandom: {errno}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_are_stations_of_our_own() {
        let (a, b) = (random_mac(), random_mac());
        assert!(a != b && a.is_unicast() && b.is_unicast());
        assert_eq!((a.0[0] & 3, b.0[0] & 3), (2, 2));
    }

    #[test]
    fn seeds_differ_and_long_requests_are_filled() {
        assert_ne!(random_seed(), random_seed());
        let mut key = [0_u8; 600];
        fill(&mut key);
        // 100 consecutive zeros have a probability of 256^-100 in random bytes.
        assert!(key.chunks(100).all(|chunk| chunk.iter().any(|&b| b != 0)));
        fill(&mut []);
    }
}
