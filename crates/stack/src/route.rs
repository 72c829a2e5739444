//! Routes: which device, which source address, and what the path can carry.
//!
//! One table for both families (IPv4 and IPv6 each in a trie of its own, see [`trie`](self)); routes of the same prefix
//! are ordered by metric. A route also carries what Linux keeps per route: MTU with lock, advertised MSS, initial
//! windows and the lower bound of the RTO (SYSTEMS A19). [`PathInfo`] is all of that for one connection, together with
//! what the device can do. A gateway is the neighbour to send to on an Ethernet device; on a link between two ends it
//! chooses only the source address.
//!
//! ```text
//!   dst local?  -> loopback, source = dst          else   longest prefix -> lowest metric whose device is up
//!                                                            -> source -> MTU = min(device, route, exception)
//! ```
//! Source addresses: the route's own; else for IPv6 by RFC 6724, for IPv4 an address of the device in the subnet of the
//! next hop, then one of the same scope. [`RouteTable`] counts changes in a generation, by which a cached [`RouteInfo`] is
//! known to be stale.

mod pmtu;
mod trie;

use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use linerate_base::{Errno, Instant};
use linerate_netdev::IfIndex;
use linerate_tcp::PathInfo;
use linerate_wire::Cidr;

use self::pmtu::PmtuCache;
pub use self::pmtu::{EXPIRES as PMTU_EXPIRES, MAX_ENTRIES as PMTU_MAX_ENTRIES};
use self::trie::Trie;

/// Where a route came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RouteOrigin {
    /// Added by the user.
    #[default]
    Static,
    /// Made for an address of a device (`proto kernel`); goes with the address.
    Kernel,
    /// Heard from a router (`proto ra`); goes when its lifetime ends.
    RouterAdvert,
}

/// A route, as `ip route` prints it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Destinations.
    pub dst: Cidr,
    /// Next hop; `None` on the link itself.
    pub via: Option<IpAddr>,
    /// Device.
    pub ifindex: IfIndex,
    /// Preferred source address.
    pub src: Option<IpAddr>,
    /// `mtu`, bytes of IP packet; 0 = the device's.
    pub mtu_bytes: u32,
    /// `mtu lock`: ICMP does not lower it.
    pub mtu_lock: bool,
    /// `advmss`, bytes; 0 = derived from the MTU.
    pub advmss_bytes: u16,
    /// `initcwnd`, segments; 0 = the configuration's.
    pub init_cwnd_segs: u16,
    /// `initrwnd`, segments; 0 = derived.
    pub init_rwnd_segs: u16,
    /// `rto_min`, microseconds; 0 = the configuration's (SYSTEMS B12).
    pub rto_min_us: u32,
    /// Lower wins among routes of one prefix.
    pub metric: u32,
    /// Where it came from.
    pub origin: RouteOrigin,
}

impl Route {
    /// A plain route to `dst` over `ifindex`.
    pub fn new(dst: Cidr, ifindex: IfIndex) -> Self {
        Self {
            dst,
            via: None,
            ifindex,
            src: None,
            mtu_bytes: 0,
            mtu_lock: false,
            advmss_bytes: 0,
            init_cwnd_segs: 0,
            init_rwnd_segs: 0,
            rto_min_us: 0,
            metric: 0,
            origin: RouteOrigin::Static,
        }
    }
    /// The same route over a next hop.
    #[must_use]
    pub fn via(mut self, gateway: IpAddr) -> Self {
        self.via = Some(gateway);
        self
    }
}

/// Why a destination can not be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RouteError {
    /// No route covers the destination.
    NoRoute,
    /// The route's device has no queue to send with.
    LinkDown,
    /// No address of this host can be the source.
    NoSource,
    /// Source and destination are of different families, or an address can not be used so.
    Family,
}

impl RouteError {
    /// The Linux error number.
    pub const fn errno(self) -> Errno {
        match self {
            Self::NoRoute => Errno::ENETUNREACH,
            Self::LinkDown => Errno::ENETDOWN,
            Self::NoSource => Errno::EADDRNOTAVAIL,
            Self::Family => Errno::EINVAL,
        }
    }
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.errno().describe())
    }
}
impl core::error::Error for RouteError {}

/// Why a route was not added or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RouteChangeError {
    /// A route with this prefix and metric exists.
    Exists,
    /// There is no such route.
    NotFound,
    /// No device of this index.
    NoDevice,
    /// Gateway or source address is of another family than the destination.
    Family,
}

impl RouteChangeError {
    /// The Linux error number.
    pub const fn errno(self) -> Errno {
        match self {
            Self::Exists => Errno::EEXIST,
            Self::NotFound => Errno::ENOENT,
            Self::NoDevice | Self::Family => Errno::EINVAL,
        }
    }
}

impl fmt::Display for RouteChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exists => "a route with this prefix and metric exists",
            Self::NotFound => "no such route",
            Self::NoDevice => "no such device",
            Self::Family => "destination, gateway and source must be of one family",
        })
    }
}
impl core::error::Error for RouteChangeError {}

/// The answer of a look-up: everything that a sender needs, 1 cache line, copied into the socket.
#[derive(Clone, Copy, Debug)]
pub struct RouteInfo {
    /// Device to send over; the loopback for destinations of our own.
    pub ifindex: IfIndex,
    /// Source address.
    pub src: IpAddr,
    /// Next hop, when it is not the destination.
    pub via: Option<IpAddr>,
    /// What TCP wants to know.
    pub path: PathInfo,
    /// [`crate::link::Links::generation`] at the time of the look-up; look up again when they differ.
    pub generation: u32,
}

/// The routes of a stack, and the path MTU exceptions.
#[derive(Debug)]
pub struct RouteTable {
    v4: Trie,
    v6: Trie,
    /// Routes of one prefix, by metric; a trie's value is an index here.
    buckets: Vec<Vec<Route>>,
    free: Vec<u32>,
    pub(crate) pmtu: PmtuCache,
    generation: u32,
}

/// The key of an address in its trie.
fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(a) => u128::from(a.to_bits()) << 96,
        IpAddr::V6(a) => a.to_bits(),
    }
}

impl Default for RouteTable {
    fn default() -> Self {
        Self::new()
    }
}

impl RouteTable {
    /// An empty table.
    pub fn new() -> Self {
        Self {
            v4: Trie::new(),
            v6: Trie::new(),
            buckets: Vec::new(),
            free: Vec::new(),
            pmtu: PmtuCache::default(),
            generation: 0,
        }
    }

    fn trie(&self, addr: IpAddr) -> &Trie {
        if addr.is_ipv4() { &self.v4 } else { &self.v6 }
    }
    fn trie_mut(&mut self, addr: IpAddr) -> &mut Trie {
        if addr.is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }

    /// Counts changes of routes and exceptions.
    pub fn generation(&self) -> u32 {
        self.generation
    }
    /// Something that look-ups depend on changed.
    pub(crate) fn touch(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Adds a route. The device's existence is the caller's to check.
    ///
    /// # Errors
    /// [`RouteChangeError::Exists`] or [`RouteChangeError::Family`].
    pub(crate) fn add(&mut self, route: Route) -> Result<(), RouteChangeError> {
        let net = route.dst.network();
        if route.via.into_iter().chain(route.src).any(|a| a.is_ipv4() != net.is_ipv4()) {
            return Err(RouteChangeError::Family);
        }
        let (key, len) = (bits(net), route.dst.prefix_len());
        let bucket = match self.trie(net).get(key, len) {
            Some(b) => b,
            None => {
                let b = self.free.pop().unwrap_or_else(|| {
                    self.buckets.push(Vec::new());
                    (self.buckets.len() - 1) as u32
                });
                self.trie_mut(net).insert(key, len, b);
                b
            }
        };
        let list = &mut self.buckets[bucket as usize];
        match list.binary_search_by_key(&route.metric, |r| r.metric) {
            Ok(_) => Err(RouteChangeError::Exists),
            Err(at) => {
                list.insert(at, route);
                self.pmtu.clear();
                self.touch();
                Ok(())
            }
        }
    }

    /// Removes the route of this prefix, device and (if given) metric.
    ///
    /// # Errors
    /// [`RouteChangeError::NotFound`].
    pub(crate) fn del(&mut self, dst: Cidr, ifindex: IfIndex, metric: Option<u32>) -> Result<Route, RouteChangeError> {
        let (net, len) = (dst.network(), dst.prefix_len());
        let bucket = self.trie(net).get(bits(net), len).ok_or(RouteChangeError::NotFound)?;
        let list = &mut self.buckets[bucket as usize];
        let at = list.iter().position(|r| r.ifindex == ifindex && metric.is_none_or(|m| m == r.metric));
        let route = list.remove(at.ok_or(RouteChangeError::NotFound)?);
        if list.is_empty() {
            self.trie_mut(net).remove(bits(net), len);
            self.free.push(bucket);
        }
        self.pmtu.clear();
        self.touch();
        Ok(route)
    }

    /// Removes all routes over a device.
    pub(crate) fn del_device(&mut self, ifindex: IfIndex) {
        let gone: Vec<Route> = self.iter().filter(|r| r.ifindex == ifindex).copied().collect();
        for r in gone {
            // Listed a line above: it is there.
            let _ = self.del(r.dst, ifindex, Some(r.metric));
        }
    }

    /// The route to `dst`: longest prefix first, then lowest metric, among those that `usable` agrees to.
    pub(crate) fn lookup(&self, dst: IpAddr, usable: impl Fn(&Route) -> bool) -> Option<&Route> {
        let mut found = None;
        self.trie(dst).lookup(bits(dst), |bucket| {
            found = self.buckets.get(bucket as usize).and_then(|list| list.iter().find(|r| usable(r)));
            found.is_some()
        });
        found
    }

    /// All routes, in no useful order.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.buckets.iter().flatten()
    }

    /// Path MTU exceptions held.
    pub fn pmtu_entries(&self) -> usize {
        self.pmtu.len()
    }

    /// The exception for `dst`, bytes.
    pub fn pmtu(&self, dst: IpAddr, now: Instant) -> Option<u32> {
        self.pmtu.get(dst, now)
    }
}
