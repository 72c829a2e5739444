//! Addresses in a hash table: which are ours, for every packet that comes in.
//!
//! ```text
//!   home = top bits of (address x odd constant)      slots: [address, owners] ... linear probing, at most half full
//! ```
//! A look-up costs one multiplication and nearly always one line, in a set of one as in a set of thousands (a host with many
//! addresses, a load generator). The set counts: an address that two devices have stands there with two owners, and is
//! gone when both have lost it. Zero owners mark an empty slot; a removal moves the rest of its cluster back, so there are
//! no tombstones.
//!
//! The hash has no key: what is stored is chosen by whoever configures the host. A stranger chooses only what is looked
//! up, and that costs him at most a walk over the longest cluster of the host's own making. It does not know prefixes,
//! scopes or devices.

use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

/// Slots of the smallest table, as a power of two.
const MIN_BITS: u32 = 3;
/// 2^64 divided by the golden ratio: consecutive addresses land far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What the set can hold.
trait Addr: Copy + Eq + Default {
    fn fold(self) -> u64;
}

impl Addr for u32 {
    #[inline]
    fn fold(self) -> u64 {
        u64::from(self)
    }
}
impl Addr for u128 {
    #[inline]
    fn fold(self) -> u64 {
        // The host part decides among the addresses of one network; the network part is turned so that it does not cancel.
        (self as u64) ^ ((self >> 64) as u64).rotate_left(29)
    }
}

/// The addresses of one family.
#[derive(Debug)]
struct Family<T> {
    /// Address and owners; a power of two.
    slots: Vec<(T, u32)>,
    len: usize,
}

impl<T: Addr> Default for Family<T> {
    fn default() -> Self {
        Self { slots: vec![(T::default(), 0); 1 << MIN_BITS], len: 0 }
    }
}

impl<T: Addr> Family<T> {
    #[inline]
    fn home(&self, addr: T) -> usize {
        (addr.fold().wrapping_mul(SPREAD) >> (u64::BITS - self.slots.len().trailing_zeros())) as usize
    }

    /// Where the address is, or the empty slot where it belongs.
    #[inline]
    fn position(&self, addr: T) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(addr);
        // Ends: at least half of the slots are empty.
        while let Some(&(here, owners)) = self.slots.get(at) {
            if owners == 0 {
                return Err(at);
            }
            if here == addr {
                return Ok(at);
            }
            at = (at + 1) & mask;
        }
        Err(0)
    }

    fn insert(&mut self, addr: T) {
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        match self.position(addr) {
            Ok(at) => self.slots[at].1 += 1,
            Err(at) => {
                self.slots[at] = (addr, 1);
                self.len += 1;
            }
        }
    }

    fn grow(&mut self) {
        let double = vec![(T::default(), 0); 2 * self.slots.len()];
        for (addr, owners) in core::mem::replace(&mut self.slots, double) {
            if owners > 0
                && let Err(at) = self.position(addr)
            {
                self.slots[at] = (addr, owners);
            }
        }
    }

    fn remove(&mut self, addr: T) -> bool {
        let Ok(mut hole) = self.position(addr) else { return false };
        self.slots[hole].1 -= 1;
        if self.slots[hole].1 > 0 {
            return true;
        }
        self.len -= 1;
        let mask = self.slots.len() - 1;
        let mut at = (hole + 1) & mask;
        while self.slots[at].1 > 0 {
            // It may go back to the hole unless its home lies behind the hole.
            let distance = at.wrapping_sub(self.home(self.slots[at].0)) & mask;
            if distance >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = core::mem::take(&mut self.slots[at]);
                hole = at;
            }
            at = (at + 1) & mask;
        }
        true
    }
}

/// A multiset of addresses of both families.
#[derive(Debug, Default)]
pub(crate) struct AddrSet {
    v4: Family<u32>,
    v6: Family<u128>,
}

impl AddrSet {
    /// As [`Self::contains`], for an IPv4 address.
    #[inline]
    pub(crate) fn contains_v4(&self, addr: Ipv4Addr) -> bool {
        self.v4.position(addr.to_bits()).is_ok()
    }
    /// Is it there at least once?
    #[inline]
    pub(crate) fn contains(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(a) => self.contains_v4(a),
            IpAddr::V6(a) => self.v6.position(a.to_bits()).is_ok(),
        }
    }
    /// Adds it, once more if it is there.
    pub(crate) fn insert(&mut self, addr: IpAddr) {
        match addr {
            IpAddr::V4(a) => self.v4.insert(a.to_bits()),
            IpAddr::V6(a) => self.v6.insert(a.to_bits()),
        }
    }
    /// Takes it out once; false when it is not there.
    pub(crate) fn remove(&mut self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(a) => self.v4.remove(a.to_bits()),
            IpAddr::V6(a) => self.v6.remove(a.to_bits()),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use core::net::{Ipv4Addr, Ipv6Addr};

    use linerate_base::rng::Rng;

    use super::*;

    #[test]
    fn an_address_goes_when_its_last_owner_has_lost_it() {
        let mut set = AddrSet::default();
        let addrs: Vec<IpAddr> =
            ["10.0.0.9", "fd00::2", "10.0.0.1", "::1", "192.0.2.7"].iter().map(|a| a.parse().unwrap()).collect();
        for &a in &addrs {
            assert!(!set.contains(a) && !set.remove(a));
            set.insert(a);
            set.insert(a);
        }
        for &a in &addrs {
            assert!(set.remove(a) && set.contains(a) && set.remove(a) && !set.contains(a) && !set.remove(a));
        }
        assert_eq!((set.v4.len, set.v6.len), (0, 0));
    }

    /// Against a map, with few and with many addresses, zero included.
    #[test]
    fn equals_a_map_of_counts() {
        let mut rng = Rng::new(11);
        for span in [4_u64, 64, 3000] {
            let (mut set, mut map) = (AddrSet::default(), BTreeMap::<IpAddr, u32>::new());
            for _ in 0..20_000 {
                let n = rng.below(span) as u32;
                let addr: IpAddr = if rng.below(2) == 0 {
                    Ipv4Addr::from_bits(n << 3).into()
                } else {
                    Ipv6Addr::from_bits(u128::from(n % 7) << 64 | u128::from(n)).into()
                };
                if rng.below(2) == 0 {
                    set.insert(addr);
                    *map.entry(addr).or_default() += 1;
                } else {
                    let owners = map.entry(addr).or_default();
                    assert_eq!(set.remove(addr), *owners > 0);
                    *owners = owners.saturating_sub(1);
                }
                assert_eq!(set.contains(addr), map[&addr] > 0);
            }
            for (addr, owners) in map {
                assert_eq!(set.contains(addr), owners > 0);
            }
        }
    }
}
