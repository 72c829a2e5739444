//! Who owns a segment, and who owns a port: the tables of the TCP layer.
//!
//! ```text
//!   established   FlowTable of 8-byte slots, keyed by the five-tuple   conn | req | time-wait  (2 bits of the slot)
//!   listeners     (local address or wildcard, port) -> group of sockets (more than one with SO_REUSEPORT); port 0 is every port
//!   bind          port -> counts, (port, address) -> counts             (SYSTEMS B45, Linux's bhash and bhash2)
//! ```
//! All hashes are keyed (SYSTEMS B44: one table per shard, under the shard's secret), so that no peer can aim at one
//! bucket. IPv4 lives in the same tables as v4-mapped IPv6. A dual-stack wildcard listener (`::` without `V6ONLY`) is
//! entered under both wildcards, so one look-up of an address and one of its family's wildcard always suffice.
//!
//! Bind conflicts are answered from counts, never from a list of owners: each bucket counts its owners, those without
//! SO_REUSEADDR, those without SO_REUSEPORT and those that listen. A port with a million connections costs as much as one.
//! Not here: what a socket is; the tables know indices only.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_arch::prefetch_read;
use linerate_base::{FlowTable, HashKey, Slab};
use linerate_wire::flow::to_mapped;

/// What an entry of the established table names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// A connection: index of a socket.
    Conn(u32),
    /// A half-open connection: index of a request.
    Req(u32),
    /// A TIME-WAIT state.
    Tw(u32),
}

const KIND_SHIFT: u32 = 30;
const INDEX_MASK: u32 = (1 << KIND_SHIFT) - 1;

impl Entry {
    /// As a table index: two bits of kind, thirty of index.
    pub(crate) const fn pack(self) -> u32 {
        let (kind, index) = match self {
            Self::Conn(i) => (0, i),
            Self::Req(i) => (1, i),
            Self::Tw(i) => (2, i),
        };
        debug_assert!(index <= INDEX_MASK);
        kind << KIND_SHIFT | index
    }
    /// The reverse of [`Self::pack`].
    pub(crate) const fn unpack(slot: u32) -> Self {
        match slot >> KIND_SHIFT {
            0 => Self::Conn(slot & INDEX_MASK),
            1 => Self::Req(slot & INDEX_MASK),
            _ => Self::Tw(slot & INDEX_MASK),
        }
    }
}

/// Which addresses a binding covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// One address, IPv4 as v4-mapped.
    Addr(Ipv6Addr),
    /// All of IPv4.
    V4Any,
    /// All of IPv6 and nothing else.
    V6Any,
    /// Both families.
    DualAny,
}

const V4_ANY: Ipv6Addr = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped();
const V6_ANY: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

impl Scope {
    /// The scope of binding to `addr`.
    pub(crate) fn of(addr: IpAddr, v6only: bool) -> Self {
        match addr {
            IpAddr::V4(a) if a.is_unspecified() => Self::V4Any,
            IpAddr::V6(a) if a.is_unspecified() && v6only => Self::V6Any,
            IpAddr::V6(a) if a.is_unspecified() => Self::DualAny,
            a => Self::Addr(to_mapped(a)),
        }
    }
    /// The addresses under which the scope is entered in a table by address: one, or both wildcards.
    fn addrs(self) -> impl Iterator<Item = Ipv6Addr> {
        let (a, b) = match self {
            Self::Addr(a) => (a, None),
            Self::V4Any => (V4_ANY, None),
            Self::V6Any => (V6_ANY, None),
            Self::DualAny => (V4_ANY, Some(V6_ANY)),
        };
        core::iter::once(a).chain(b)
    }
    fn touches_v4(self) -> bool {
        match self {
            Self::Addr(a) => a.to_ipv4_mapped().is_some(),
            Self::V4Any | Self::DualAny => true,
            Self::V6Any => false,
        }
    }
    fn touches_v6(self) -> bool {
        match self {
            Self::Addr(a) => a.to_ipv4_mapped().is_none(),
            Self::V6Any | Self::DualAny => true,
            Self::V4Any => false,
        }
    }
}

/// What one owner of a port brings into the counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Owner {
    /// SO_REUSEADDR.
    pub(crate) reuse: bool,
    /// SO_REUSEPORT.
    pub(crate) reuseport: bool,
    /// It listens.
    pub(crate) listening: bool,
    /// It chose the port by itself (`bind`, or inherited from a listener), not by `connect`.
    pub(crate) explicit: bool,
}

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Counts {
    owners: u32,
    no_reuse: u32,
    no_reuseport: u32,
    listening: u32,
    explicit: u32,
}

impl Counts {
    fn add(&mut self, o: Owner) {
        self.owners += 1;
        self.no_reuse += u32::from(!o.reuse);
        self.no_reuseport += u32::from(!o.reuseport);
        self.listening += u32::from(o.listening);
        self.explicit += u32::from(o.explicit);
    }
    fn sub(&mut self, o: Owner) {
        debug_assert!(self.owners > 0, "a port is given back that nobody holds");
        self.owners -= 1;
        self.no_reuse -= u32::from(!o.reuse);
        self.no_reuseport -= u32::from(!o.reuseport);
        self.listening -= u32::from(o.listening);
        self.explicit -= u32::from(o.explicit);
    }
    /// Linux's `inet_csk_bind_conflict`, over counts instead of a list.
    fn conflicts(&self, new: Owner) -> bool {
        let shares_addr = new.reuse && self.no_reuse == 0 && self.listening == 0;
        let shares_port = new.reuseport && self.no_reuseport == 0;
        self.owners > 0 && !shares_addr && !shares_port
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct PortBucket {
    v4: Counts,
    v6: Counts,
}

struct AddrBucket {
    addr: Ipv6Addr,
    port: u16,
    counts: Counts,
    hash: u64,
}

const PORTS_PER_CHUNK: usize = 64;

/// Who holds which local port.
pub(crate) struct BindTable {
    key: HashKey,
    /// One bit a port: somebody holds it by `bind`. `connect` asks of many ports, and these are few lines.
    explicit: Box<[u64; 1024]>,
    /// By port, in chunks that are made when first used: 40 bytes a port.
    ports: Vec<Option<Box<[PortBucket; PORTS_PER_CHUNK]>>>,
    by_addr: FlowTable,
    buckets: Slab<AddrBucket>,
    owners: usize,
}

impl BindTable {
    pub(crate) fn new(key: HashKey) -> Self {
        let mut ports = Vec::new();
        ports.resize_with(65_536 / PORTS_PER_CHUNK, || None);
        Self { key, explicit: Box::new([0; 1024]), ports, by_addr: FlowTable::new(), buckets: Slab::new(), owners: 0 }
    }

    /// Bindings held.
    pub(crate) fn len(&self) -> usize {
        self.owners
    }

    /// The hash of a binding to one address, for [`Self::add_at`]; asks for the memory that the binding will need.
    pub(crate) fn prepare(&self, port: u16, addr: IpAddr) -> u64 {
        let hash = addr_hash(&self.key, port, to_mapped(addr));
        if let Some(bucket) = self.port(port) {
            prefetch_read(bucket);
        }
        self.by_addr.homes(hash).for_each(prefetch_read);
        hash
    }
    fn port(&self, port: u16) -> Option<&PortBucket> {
        self.ports.get(usize::from(port) / PORTS_PER_CHUNK)?.as_ref()?.get(usize::from(port) % PORTS_PER_CHUNK)
    }
    fn port_mut(&mut self, port: u16) -> Option<&mut PortBucket> {
        let chunk = self.ports.get_mut(usize::from(port) / PORTS_PER_CHUNK)?;
        let chunk = chunk.get_or_insert_with(|| Box::new([PortBucket::default(); PORTS_PER_CHUNK]));
        chunk.get_mut(usize::from(port) % PORTS_PER_CHUNK)
    }
    fn bucket(&self, port: u16, addr: Ipv6Addr) -> Option<u32> {
        self.bucket_at(addr_hash(&self.key, port, addr), port, addr)
    }
    fn bucket_at(&self, hash: u64, port: u16, addr: Ipv6Addr) -> Option<u32> {
        self.by_addr.find(hash, |i| self.buckets.get_by_index(i).is_some_and(|b| b.port == port && b.addr == addr))
    }
    fn counts(&self, port: u16, addr: Ipv6Addr) -> Counts {
        self.bucket(port, addr).and_then(|i| self.buckets.get_by_index(i)).map_or(Counts::default(), |b| b.counts)
    }

    /// Would `new` clash with those that hold `port` in `scope`?
    pub(crate) fn conflicts(&self, port: u16, scope: Scope, new: Owner) -> bool {
        let Some(bucket) = self.port(port) else { return false };
        match scope {
            // The common case first: nobody of that family holds the port at all.
            Scope::Addr(a) => {
                let (all, any) = if scope.touches_v4() { (&bucket.v4, V4_ANY) } else { (&bucket.v6, V6_ANY) };
                all.conflicts(new) && (self.counts(port, a).conflicts(new) || self.counts(port, any).conflicts(new))
            }
            Scope::V4Any => bucket.v4.conflicts(new),
            Scope::V6Any => bucket.v6.conflicts(new),
            Scope::DualAny => bucket.v4.conflicts(new) || bucket.v6.conflicts(new),
        }
    }

    /// Does anybody hold `port` by `bind`, in either family? `connect` leaves such ports alone, as Linux.
    pub(crate) fn explicitly_held(&self, port: u16) -> bool {
        let bit = self.explicit[usize::from(port) / 64] >> (port % 64) & 1 == 1;
        debug_assert_eq!(bit, self.port(port).is_some_and(|b| b.v4.explicit + b.v6.explicit > 0));
        bit
    }
    /// Does nobody hold `port`?
    #[cfg(test)]
    pub(crate) fn is_free(&self, port: u16) -> bool {
        self.port(port).is_none_or(|b| b.v4.owners + b.v6.owners == 0)
    }

    /// Enters an owner; the caller asked for conflicts before.
    pub(crate) fn add(&mut self, port: u16, scope: Scope, owner: Owner) {
        self.count_in(port, scope, owner);
        for addr in scope.addrs() {
            self.add_addr(addr_hash(&self.key, port, addr), port, addr, owner);
        }
    }

    /// As [`Self::add`] for the one address `addr`; returns a number by which [`Self::remove_at`] finds the binding again.
    /// `hash` comes from [`Self::prepare`].
    pub(crate) fn add_at(&mut self, hash: u64, port: u16, addr: IpAddr, owner: Owner) -> u32 {
        let addr = to_mapped(addr);
        self.count_in(port, Scope::Addr(addr), owner);
        self.add_addr(hash, port, addr, owner)
    }

    /// Counts an owner of the port; the addresses remain to be entered.
    fn count_in(&mut self, port: u16, scope: Scope, owner: Owner) {
        self.owners += 1;
        if let Some(bucket) = self.port_mut(port) {
            if scope.touches_v4() {
                bucket.v4.add(owner);
            }
            if scope.touches_v6() {
                bucket.v6.add(owner);
            }
        }
        if owner.explicit {
            self.explicit[usize::from(port) / 64] |= 1 << (port % 64);
        }
    }

    fn add_addr(&mut self, hash: u64, port: u16, addr: Ipv6Addr, owner: Owner) -> u32 {
        debug_assert_eq!(hash, addr_hash(&self.key, port, addr));
        let index = self.bucket_at(hash, port, addr).unwrap_or_else(|| {
            let index = self.buckets.insert(AddrBucket { addr, port, counts: Counts::default(), hash }).index;
            self.by_addr.insert(hash, index);
            index
        });
        if let Some(b) = self.buckets.get_by_index_mut(index) {
            b.counts.add(owner);
        }
        index
    }

    /// Takes an owner out: exactly what was given to [`Self::add`].
    pub(crate) fn remove(&mut self, port: u16, scope: Scope, owner: Owner) {
        self.count_out(port, scope, owner);
        for addr in scope.addrs() {
            let Some(index) = self.bucket(port, addr) else {
                debug_assert!(false, "binding of port {port} is not in the table");
                continue;
            };
            self.remove_addr(index, owner);
        }
    }

    /// Takes an owner out that [`Self::add_at`] gave the number `index`.
    pub(crate) fn remove_at(&mut self, index: u32, owner: Owner) {
        let Some(&AddrBucket { addr, port, .. }) = self.buckets.get_by_index(index) else {
            debug_assert!(false, "binding {index} is not in the table");
            return;
        };
        self.count_out(port, Scope::Addr(addr), owner);
        self.remove_addr(index, owner);
    }

    fn count_out(&mut self, port: u16, scope: Scope, owner: Owner) {
        debug_assert!(self.owners > 0);
        self.owners -= 1;
        if let Some(bucket) = self.port_mut(port) {
            if scope.touches_v4() {
                bucket.v4.sub(owner);
            }
            if scope.touches_v6() {
                bucket.v6.sub(owner);
            }
            if owner.explicit && bucket.v4.explicit + bucket.v6.explicit == 0 {
                self.explicit[usize::from(port) / 64] &= !(1 << (port % 64));
            }
        }
    }

    fn remove_addr(&mut self, index: u32, owner: Owner) {
        let Some((key, bucket)) = self.buckets.entry_by_index_mut(index) else { return };
        bucket.counts.sub(owner);
        if bucket.counts.owners == 0 {
            let hash = bucket.hash;
            self.by_addr.remove(hash, index);
            self.buckets.discard(key);
        }
    }
}

fn addr_hash(key: &HashKey, port: u16, addr: Ipv6Addr) -> u64 {
    match addr.to_ipv4_mapped() {
        Some(v4) => key.sip13_words(&[u64::from(v4.to_bits()) << 16 | u64::from(port)]),
        None => {
            let bits = addr.to_bits();
            key.sip13_words(&[(bits >> 64) as u64, bits as u64, u64::from(port)])
        }
    }
}

/// Listeners of one address and port.
struct Group {
    addr: Ipv6Addr,
    port: u16,
    /// Socket indices; more than one only with SO_REUSEPORT.
    members: Vec<u32>,
}

/// Who listens where.
pub(crate) struct ListenTable {
    key: HashKey,
    table: FlowTable,
    groups: Slab<Group>,
    /// Groups that listen on every port: asked only when there is one.
    any_port: usize,
}

impl ListenTable {
    pub(crate) fn new(key: HashKey) -> Self {
        Self { key, table: FlowTable::new(), groups: Slab::new(), any_port: 0 }
    }
    /// True when nobody listens.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
    fn group(&self, port: u16, addr: Ipv6Addr) -> Option<u32> {
        let hash = addr_hash(&self.key, port, addr);
        self.table.find(hash, |i| self.groups.get_by_index(i).is_some_and(|g| g.port == port && g.addr == addr))
    }
    /// Enters the listening socket `index`.
    pub(crate) fn add(&mut self, port: u16, scope: Scope, index: u32) {
        for addr in scope.addrs() {
            match self.group(port, addr).and_then(|g| self.groups.get_by_index_mut(g)) {
                Some(group) => group.members.push(index),
                None => {
                    let group = Group { addr, port, members: Vec::from([index]) };
                    let g = self.groups.insert(group).index;
                    self.table.insert(addr_hash(&self.key, port, addr), g);
                    self.any_port += usize::from(port == 0);
                }
            }
        }
    }
    /// Takes the listening socket `index` out.
    pub(crate) fn remove(&mut self, port: u16, scope: Scope, index: u32) {
        for addr in scope.addrs() {
            let Some(g) = self.group(port, addr) else { continue };
            let Some(group) = self.groups.get_by_index_mut(g) else { continue };
            group.members.retain(|&m| m != index);
            if group.members.is_empty() {
                self.table.remove(addr_hash(&self.key, port, addr), g);
                self.any_port -= usize::from(port == 0);
                if let Some(key) = self.groups.key_of(g) {
                    self.groups.remove(key);
                }
            }
        }
    }
    /// The listener for a segment to `addr`:`port`; `flow_hash` spreads flows over a SO_REUSEPORT group.
    pub(crate) fn find(&self, addr: IpAddr, port: u16, flow_hash: u64) -> Option<u32> {
        let any = if addr.is_ipv4() { V4_ANY } else { V6_ANY };
        let at = |port| self.group(port, to_mapped(addr)).or_else(|| self.group(port, any));
        let group = at(port).or_else(|| if self.any_port > 0 { at(0) } else { None })?;
        let members = &self.groups.get_by_index(group)?.members;
        // The upper half of a hash times the length: uniform without a division.
        let at = ((flow_hash >> 32) * members.len() as u64) >> 32;
        members.get(at as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HashKey = HashKey([1, 2]);
    const PLAIN: Owner = Owner { reuse: false, reuseport: false, listening: false, explicit: true };
    const REUSE: Owner = Owner { reuse: true, ..PLAIN };
    const LISTEN: Owner = Owner { listening: true, ..REUSE };
    const SHARED: Owner = Owner { reuseport: true, ..PLAIN };

    fn addr(text: &str) -> Scope {
        Scope::of(text.parse().unwrap(), false)
    }

    #[test]
    fn entries_keep_kind_and_index() {
        for e in [Entry::Conn(0), Entry::Req(7), Entry::Tw(INDEX_MASK), Entry::Conn(INDEX_MASK)] {
            assert_eq!(Entry::unpack(e.pack()), e);
        }
        assert_ne!(Entry::Tw(INDEX_MASK).pack(), u32::MAX, "the flow table can not hold that index");
    }

    #[test]
    fn conflicts_follow_addresses_and_families() {
        let mut t = BindTable::new(KEY);
        t.add(80, addr("10.0.0.1"), PLAIN);
        for (scope, clash) in [
            (addr("10.0.0.1"), true),
            (addr("10.0.0.2"), false),
            (addr("fd00::1"), false),
            (Scope::V4Any, true),
            (Scope::V6Any, false),
            (Scope::DualAny, true),
        ] {
            assert_eq!(t.conflicts(80, scope, PLAIN), clash, "{scope:?}");
            assert!(!t.conflicts(81, scope, PLAIN));
        }
        t.add(81, Scope::DualAny, PLAIN);
        assert!(t.conflicts(81, addr("10.0.0.2"), PLAIN) && t.conflicts(81, addr("fd00::1"), PLAIN));
        t.remove(81, Scope::DualAny, PLAIN);
        t.remove(80, addr("10.0.0.1"), PLAIN);
        assert!(t.is_free(80) && t.is_free(81) && t.buckets.is_empty() && t.by_addr.is_empty() && t.len() == 0);
    }

    #[test]
    fn sharing_needs_both_and_no_listener() {
        let mut t = BindTable::new(KEY);
        t.add(80, addr("10.0.0.1"), REUSE);
        assert!(!t.conflicts(80, addr("10.0.0.1"), REUSE) && t.conflicts(80, addr("10.0.0.1"), PLAIN));
        t.add(80, addr("10.0.0.1"), LISTEN);
        assert!(t.conflicts(80, addr("10.0.0.1"), REUSE), "a listener shares with nobody by SO_REUSEADDR");
        let mut t = BindTable::new(KEY);
        t.add(80, Scope::V4Any, SHARED);
        assert!(!t.conflicts(80, Scope::V4Any, SHARED) && t.conflicts(80, Scope::V4Any, REUSE));
        assert!(t.explicitly_held(80));
        t.add(90, addr("10.0.0.1"), Owner { explicit: false, ..PLAIN });
        assert!(!t.explicitly_held(90) && !t.is_free(90));
    }

    #[test]
    fn the_nearest_listener_wins_and_groups_spread() {
        let mut t = ListenTable::new(KEY);
        t.add(80, Scope::DualAny, 1);
        t.add(80, addr("10.0.0.1"), 2);
        let find = |t: &ListenTable, a: &str, h: u64| t.find(a.parse().unwrap(), 80, h);
        assert_eq!(find(&t, "10.0.0.1", 0), Some(2));
        assert_eq!((find(&t, "10.0.0.2", 0), find(&t, "fd00::1", 0)), (Some(1), Some(1)));
        assert_eq!(t.find("10.0.0.1".parse().unwrap(), 81, 0), None);
        t.add(80, addr("10.0.0.1"), 3);
        let mut seen = [0u32; 4];
        for i in 0..1000u64 {
            seen[find(&t, "10.0.0.1", KEY.sip13_words(&[i])).unwrap() as usize] += 1;
        }
        assert!(seen[2] > 400 && seen[3] > 400, "{seen:?}");
        t.remove(80, addr("10.0.0.1"), 2);
        t.remove(80, addr("10.0.0.1"), 3);
        assert_eq!(find(&t, "10.0.0.1", 0), Some(1));
        t.add(0, Scope::V4Any, 4);
        assert_eq!(find(&t, "10.0.0.1", 0), Some(1), "who listens on the port itself is nearer");
        t.remove(80, Scope::DualAny, 1);
        assert_eq!((find(&t, "10.0.0.1", 0), find(&t, "fd00::1", 0)), (Some(4), None));
        t.remove(0, Scope::V4Any, 4);
        assert!(t.is_empty() && t.groups.is_empty() && t.any_port == 0);
    }
}
