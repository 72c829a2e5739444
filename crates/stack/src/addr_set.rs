//! Sorted addresses: which are ours, for every packet that comes in.
//!
//! The families are kept apart as plain integers, so that a look-up in a set of few costs a few compares, and one in a set
//! of thousands (a host with many addresses) a bisection. A change moves what lies behind the place and sorts nothing. The
//! set counts: an address that two devices have stands twice, and is gone when both have lost it.
//!
//! It does not know prefixes, scopes or devices.

use alloc::vec::Vec;
use core::net::IpAddr;

/// A sorted multiset of addresses of both families.
#[derive(Debug, Default)]
pub(crate) struct AddrSet {
    v4: Vec<u32>,
    v6: Vec<u128>,
}

fn insert<T: Ord>(list: &mut Vec<T>, value: T) {
    let (Ok(at) | Err(at)) = list.binary_search(&value);
    list.insert(at, value);
}

fn remove<T: Ord>(list: &mut Vec<T>, value: &T) -> bool {
    match list.binary_search(value) {
        Ok(at) => {
            list.remove(at);
            true
        }
        Err(_) => false,
    }
}

impl AddrSet {
    /// Is it there at least once?
    #[inline]
    pub(crate) fn contains(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(a) => self.v4.binary_search(&a.to_bits()).is_ok(),
            IpAddr::V6(a) => self.v6.binary_search(&a.to_bits()).is_ok(),
        }
    }
    /// Adds it, once more if it is there.
    pub(crate) fn insert(&mut self, addr: IpAddr) {
        match addr {
            IpAddr::V4(a) => insert(&mut self.v4, a.to_bits()),
            IpAddr::V6(a) => insert(&mut self.v6, a.to_bits()),
        }
    }
    /// Takes it out once; false when it is not there.
    pub(crate) fn remove(&mut self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(a) => remove(&mut self.v4, &a.to_bits()),
            IpAddr::V6(a) => remove(&mut self.v6, &a.to_bits()),
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert!(set.v4.is_sorted() && set.v6.is_sorted());
        for &a in &addrs {
            assert!(set.remove(a) && set.contains(a) && set.remove(a) && !set.contains(a) && !set.remove(a));
        }
    }
}
