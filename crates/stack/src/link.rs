//! Devices, their queues and addresses, and the look-ups that need both devices and routes.
//!
//! ```text
//!   Links ── Device 1 "lo"   loopback: a queue of skbs, no device behind it
//!         ├─ Device 2        queue pair 0: rx ─ pool, gro        qdisc ─ staged ─ tx
//!         │                  queue pair 1: ...
//!         ├─ local addresses (sorted, all devices)     broadcast addresses
//!         └─ RouteTable
//! ```
//! A device is made first and gets its queue pairs by [`Links::attach`]; without one it is down. Addresses follow
//! Linux's weak host model: an address of any device is ours on all of them (loopback addresses only on the loopback).
//! The features of a device are what all of its queues can do.
//!
//! A device carries bare IP packets between two ends, or Ethernet frames; what the latter need is in [`crate::neigh`].
//! Source addresses of IPv6 are chosen by RFC 6724 (`saddr`), those of IPv4 as Linux does.
//!
//! Limits: [`MAX_DEVICES`], [`MAX_QUEUES`].

mod l2;
mod saddr;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_base::{Errno, Instant, Rng, TokenBucket};
use linerate_netdev::{Features, IfIndex, Qstats, RxQueue, SMALL_BYTES, TxQueue};
use linerate_offload::gro::{Gro, GroConfig};
use linerate_skb::{PagePool, PoolConfig, SkbBatch};
use linerate_tcp::PathInfo;
use linerate_wire::{Cidr, MacAddr, ethernet};

use crate::addr_set::AddrSet;
use crate::config::{DeviceConfig, GroMode, LinkKind, StackConfig};
use crate::icmp::IcmpLimits;
use crate::loopback::{LOOPBACK_MTU, Loopback};
use crate::napi::NapiState;
use crate::neigh::ether::Ether;
use crate::neigh::{Neighbours, addrconf};
use crate::qdisc::{Fifo, QdiscStats};
use crate::route::{Route, RouteChangeError, RouteError, RouteInfo, RouteOrigin, RouteTable};
use crate::shard::earlier;
use crate::steer::Siblings;

/// The loopback's index.
pub const LOOPBACK: IfIndex = IfIndex(1);
/// The least index of a device with queues.
const FIRST_DEVICE: usize = LOOPBACK.0 as usize + 1;
/// Most devices of a stack.
pub const MAX_DEVICES: usize = 4096;
/// Most queue pairs of a device.
pub const MAX_QUEUES: usize = 256;
/// Largest IPv4 packet that is not a super-packet, bytes (Linux's `IP_MAX_MTU`).
const MAX_MTU_V4: u32 = 65_535;
/// Largest IPv6 packet that is not a super-packet, bytes (`IP6_MAX_MTU`).
const MAX_MTU_V6: u32 = 65_575;

/// Why an address or device could not be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AddrError {
    /// No device of this index.
    NoDevice,
    /// The device has this address already.
    Exists,
    /// The device does not have this address.
    NotFound,
    /// Not an address that a host can have (multicast, unspecified, broadcast, IPv4-mapped).
    Invalid,
    /// Too many devices, queues or groups, a queue of another link kind, or the loopback, which stays as it is.
    Refused,
}

impl AddrError {
    /// The Linux error number.
    pub const fn errno(self) -> Errno {
        match self {
            Self::NoDevice | Self::Invalid => Errno::EINVAL,
            Self::Exists => Errno::EEXIST,
            Self::NotFound => Errno::EADDRNOTAVAIL,
            Self::Refused => Errno::EOPNOTSUPP,
        }
    }
}

impl fmt::Display for AddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoDevice => "no such device",
            Self::Exists => "the device has this address already",
            Self::NotFound => "the device does not have this address",
            Self::Invalid => "not an address that a host can have",
            Self::Refused => "too many of them, a queue of another link kind, or the loopback, which stays as it is",
        })
    }
}
impl core::error::Error for AddrError {}

/// What a destination address is to this host, on the device it came in by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddrType {
    /// Ours.
    Local,
    /// The limited broadcast, or that of a subnet of ours.
    Broadcast,
    /// A group that every host is in.
    Multicast,
    /// Somebody else's, a group that nobody joined, or a loopback address on a real device.
    Other,
}

/// One receive and one transmit queue, with what the stack keeps for them.
pub(crate) struct QueuePair {
    pub(crate) rx: Box<dyn RxQueue + Send>,
    pub(crate) tx: Box<dyn TxQueue + Send>,
    /// Pages that this queue receives into.
    pub(crate) pool: PagePool,
    pub(crate) gro: Option<Gro>,
    pub(crate) qdisc: Fifo,
    /// Prepared for the device but not taken by it yet; before everything in the qdisc.
    pub(crate) staged: SkbBatch,
    /// Something was taken since the last doorbell.
    pub(crate) kick: bool,
}

/// A network device of the stack.
pub struct Device {
    /// Its number.
    pub ifindex: IfIndex,
    /// Its name.
    pub name: String,
    /// Largest IP packet of one wire frame, bytes.
    pub mtu_bytes: u32,
    /// Every unicast destination is accepted (any-ip).
    pub any_ip: bool,
    /// Software GRO.
    pub gro: GroMode,
    features: Features,
    addrs: Vec<Cidr>,
    rx_pool: PoolConfig,
    pub(crate) queues: Vec<QueuePair>,
    /// What an Ethernet device has besides.
    pub(crate) ether: Option<Box<Ether>>,
}

impl Device {
    /// Addresses with their prefixes.
    pub fn addrs(&self) -> &[Cidr] {
        &self.addrs
    }
    /// Its hardware address, if it is an Ethernet device.
    pub fn mac(&self) -> Option<MacAddr> {
        self.ether.as_ref().map(|e| e.mac())
    }
    /// IPv6 addresses on trial: not ours yet.
    pub fn tentative(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.ether.iter().flat_map(|e| e.addrconf.tentative())
    }
    /// Addresses that we tried and others had, newest last.
    pub fn dad_failed(&self) -> &[Ipv6Addr] {
        self.ether.as_ref().map_or(&[], |e| &e.addrconf.failed)
    }
    /// What all its queues can do.
    pub fn features(&self) -> &Features {
        &self.features
    }
    /// Queue pairs attached.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }
    /// Can it send? The loopback always can.
    pub fn is_up(&self) -> bool {
        self.ifindex == LOOPBACK || !self.queues.is_empty()
    }
    /// Counters of all queues together.
    pub fn qstats(&self) -> Qstats {
        let mut sum = Qstats::default();
        for one in (0..self.queues.len() as u16).filter_map(|q| self.queue_qstats(q)) {
            sum.merge(&one);
        }
        sum
    }
    /// Counters of queue pair `queue`.
    pub fn queue_qstats(&self, queue: u16) -> Option<Qstats> {
        let pair = self.queues.get(usize::from(queue))?;
        let mut sum = pair.rx.qstats();
        sum.merge(&pair.tx.qstats());
        Some(sum)
    }
    /// Counters of the qdisc of queue `queue`.
    pub fn qdisc_stats(&self, queue: u16) -> Option<QdiscStats> {
        self.queues.get(usize::from(queue)).map(|q| q.qdisc.stats())
    }
    /// Pages of the receive pool of queue `queue`.
    pub fn rx_pool(&self, queue: u16) -> Option<&PagePool> {
        self.queues.get(usize::from(queue)).map(|q| &q.pool)
    }
    /// Skbs that wait to be sent.
    pub fn backlog_skbs(&self) -> usize {
        self.queues.iter().map(|q| q.qdisc.len() + q.staged.len()).sum()
    }
}

/// A unicast packet that was found to be for this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Accepted {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) ifindex: IfIndex,
    /// Of the addresses and settings that this rests on.
    pub(crate) generation: u32,
}

/// All devices, addresses and routes of a stack.
pub struct Links {
    /// By index; 0 is never used.
    devices: Vec<Option<Device>>,
    pub(crate) lo: Loopback,
    /// Addresses of all devices.
    local: AddrSet,
    /// Directed broadcasts.
    broadcast: AddrSet,
    /// Addresses whose preferred lifetime is over.
    deprecated: AddrSet,
    routes: RouteTable,
    pub(crate) neigh: Neighbours,
    pub(crate) napi: NapiState,
    /// Queue pairs of all devices.
    pub(crate) queue_pairs: usize,
    /// Other shards that have queues of the same devices.
    pub(crate) siblings: Option<Box<Siblings>>,
    /// Some queue may have a deadline.
    timed: bool,
    /// The device that has the only queue pair of all; 0 when there is not just one.
    sole_device: usize,
    /// A qdisc may hold something: set by who puts it there, cleared by who finds all empty.
    pub(crate) backlog: bool,
    /// All that waits there waits for devices that will call when they have room.
    pub(crate) stopped: bool,
    /// Packets are captured on their way: none may take a shorter one.
    pub(crate) tapped: bool,
    /// Packets handed to devices in [`crate::quick`], not yet counted by the turn.
    pub(crate) small_sent: usize,
    /// The last packet of its kind.
    pub(crate) accepted: Option<Accepted>,
    pub(crate) icmp: IcmpLimits,
    /// Next IPv4 identification of each class of flows; see [`Self::next_ident`].
    ident: [u16; 64],
    qdisc_limit_skbs: usize,
}

impl Links {
    /// The loopback with 127.0.0.1/8 and ::1/128, and nothing else.
    pub fn new(cfg: &StackConfig) -> Self {
        let lo = Device {
            ifindex: LOOPBACK,
            name: String::from("lo"),
            mtu_bytes: LOOPBACK_MTU,
            any_ip: false,
            gro: GroMode::Off,
            features: Loopback::FEATURES,
            addrs: Vec::new(),
            rx_pool: cfg.tx_pool,
            queues: Vec::new(),
            ether: None,
        };
        let mut links = Self {
            devices: Vec::from([None, Some(lo)]),
            lo: Loopback::new(cfg.qdisc_limit_skbs),
            local: AddrSet::default(),
            broadcast: AddrSet::default(),
            deprecated: AddrSet::default(),
            routes: RouteTable::new(),
            // A stream of its own: what neighbours need changes nothing for the others.
            neigh: Neighbours::new(cfg.neigh.clone(), Rng::new(cfg.seed ^ 0x6e65_6967_6862_6f72).hash_key()),
            napi: NapiState::new(cfg.napi_weight),
            queue_pairs: 0,
            siblings: None,
            timed: false,
            sole_device: 0,
            backlog: false,
            stopped: false,
            tapped: false,
            small_sent: 0,
            accepted: None,
            icmp: IcmpLimits::new(TokenBucket::new(cfg.icmp_rate.0, cfg.icmp_rate.1)),
            ident: [0; 64],
            qdisc_limit_skbs: cfg.qdisc_limit_skbs,
        };
        for (addr, prefix) in [(IpAddr::V4(Ipv4Addr::LOCALHOST), 8), (IpAddr::V6(Ipv6Addr::LOCALHOST), 128)] {
            let added = Cidr::new(addr, prefix).map(|c| links.add_address(LOOPBACK, c));
            debug_assert_eq!(added, Some(Ok(())));
        }
        links
    }

    /// The device of this index.
    pub fn device(&self, ifindex: IfIndex) -> Option<&Device> {
        self.devices.get(ifindex.0 as usize)?.as_ref()
    }
    /// The device of this index, to change its settings.
    pub fn device_mut(&mut self, ifindex: IfIndex) -> Option<&mut Device> {
        self.routes.touch();
        self.dev_mut(ifindex)
    }
    pub(crate) fn dev_mut(&mut self, ifindex: IfIndex) -> Option<&mut Device> {
        self.devices.get_mut(ifindex.0 as usize)?.as_mut()
    }
    /// All devices, by index.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().flatten()
    }
    pub(crate) fn devices_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.devices.iter_mut().flatten()
    }
    /// Calls `f` with all queue pairs and the numbers of their devices. The loopback has none.
    #[inline]
    pub(crate) fn each_queue(&mut self, mut f: impl FnMut(IfIndex, &mut QueuePair)) {
        // Nearly always there is one.
        if let Some(Some(dev)) = self.devices.get_mut(self.sole_device)
            && let [q] = dev.queues.as_mut_slice()
        {
            return f(dev.ifindex, q);
        }
        for dev in self.devices.get_mut(FIRST_DEVICE..).unwrap_or_default().iter_mut().flatten() {
            for q in &mut dev.queues {
                f(dev.ifindex, q);
            }
        }
    }

    /// Adds a device without queues: down until [`Self::attach`].
    ///
    /// # Errors
    /// [`AddrError::Refused`] at [`MAX_DEVICES`]; [`AddrError::Invalid`] for a hardware address that no station can have.
    pub fn add_device(&mut self, cfg: DeviceConfig) -> Result<IfIndex, AddrError> {
        if self.devices.len() > MAX_DEVICES {
            return Err(AddrError::Refused);
        }
        let ifindex = IfIndex(self.devices.len() as u32);
        let ether = match cfg.link {
            LinkKind::Ip => None,
            LinkKind::Ethernet { mac } if !mac.is_unicast() => return Err(AddrError::Invalid),
            LinkKind::Ethernet { mac } => Some(Box::new(Ether::new(mac, cfg.ipv6, &self.neigh.table.cfg))),
        };
        self.devices.push(Some(Device {
            ifindex,
            name: cfg.name,
            mtu_bytes: cfg.mtu_bytes,
            any_ip: cfg.any_ip,
            gro: cfg.gro,
            features: Features::plain(cfg.mtu_bytes),
            addrs: Vec::new(),
            rx_pool: cfg.rx_pool,
            queues: Vec::new(),
            ether,
        }));
        Ok(ifindex)
    }

    /// Gives a device its next queue pair. The first must be 0, the next 1 and so on.
    ///
    /// # Errors
    /// [`AddrError::NoDevice`]; [`AddrError::Refused`] for the loopback, a queue out of turn, or beyond [`MAX_QUEUES`].
    pub fn attach(
        &mut self,
        ifindex: IfIndex,
        queue: u16,
        rx: Box<dyn RxQueue + Send>,
        tx: Box<dyn TxQueue + Send>,
    ) -> Result<(), AddrError> {
        let limit = self.qdisc_limit_skbs;
        let dev = self.device_mut(ifindex).ok_or(AddrError::NoDevice)?;
        let n = dev.queues.len();
        let f = *tx.features();
        let hard_header_len = if dev.ether.is_some() { ethernet::HEADER_LEN } else { 0 };
        let same_kind = usize::from(f.hard_header_len) == hard_header_len;
        if ifindex == LOOPBACK || usize::from(queue) != n || n >= MAX_QUEUES || !same_kind {
            return Err(AddrError::Refused);
        }
        dev.features = if n == 0 { f } else { common(&dev.features, &f) };
        dev.mtu_bytes = dev.mtu_bytes.min(f.mtu);
        let keeps_time = rx.keeps_time();
        dev.queues.push(QueuePair {
            rx,
            tx,
            pool: PagePool::new(dev.rx_pool),
            gro: (dev.gro == GroMode::Software).then(|| Gro::new(GroConfig { udp: true, ..GroConfig::default() })),
            qdisc: Fifo::new(limit),
            staged: SkbBatch::new(),
            kick: false,
        });
        self.queue_pairs += 1;
        self.timed |= keeps_time;
        self.note_sole();
        if n == 0 {
            addrconf::link_up(self, ifindex);
        }
        Ok(())
    }

    /// Queue pairs came or went.
    fn note_sole(&mut self) {
        let has_queue = |dev: &Option<Device>| dev.as_ref().is_some_and(|dev| !dev.queues.is_empty());
        let first = self.devices.iter().position(has_queue);
        self.sole_device = first.filter(|_| self.queue_pairs == 1).unwrap_or(0);
    }

    /// Takes a device away, with its addresses and routes. Its queues come back inside it, with skbs that were not sent;
    /// [`crate::ip_out::purge`] ends those.
    pub(crate) fn take_device(&mut self, ifindex: IfIndex) -> Result<Device, AddrError> {
        if ifindex == LOOPBACK {
            return Err(AddrError::Refused);
        }
        let slot = self.devices.get_mut(ifindex.0 as usize).ok_or(AddrError::NoDevice)?;
        let dev = slot.take().ok_or(AddrError::NoDevice)?;
        self.queue_pairs -= dev.queues.len();
        self.note_sole();
        self.routes.del_device(ifindex);
        for cidr in &dev.addrs {
            self.forget(cidr);
        }
        self.routes.touch();
        Ok(dev)
    }

    /// Gives a device an address, and the stack the connected route. IPv6 addresses of Ethernet devices are on trial first
    /// (duplicate address detection).
    ///
    /// # Errors
    /// See [`AddrError`].
    pub fn add_address(&mut self, ifindex: IfIndex, cidr: Cidr) -> Result<(), AddrError> {
        check_host(&cidr)?;
        let dev = self.device(ifindex).ok_or(AddrError::NoDevice)?;
        let Some(ether) = dev.ether.as_ref().filter(|_| !cidr.addr().is_ipv4()) else {
            return self.install_address(ifindex, cidr, true);
        };
        if dev.addrs.iter().any(|c| c.addr() == cidr.addr()) || ether.addrconf.has_tentative(cidr.addr()) {
            return Err(AddrError::Exists);
        }
        addrconf::add_address(self, ifindex, cidr);
        Ok(())
    }

    /// An address is ours from now on; `connected`: with the route to its prefix.
    pub(crate) fn install_address(&mut self, ifindex: IfIndex, cidr: Cidr, connected: bool) -> Result<(), AddrError> {
        check_host(&cidr)?;
        let addr = cidr.addr();
        let is_known = self.local.contains(addr);
        let dev = self.dev_mut(ifindex).ok_or(AddrError::NoDevice)?;
        if is_known && dev.addrs.iter().any(|c| c.addr() == addr) {
            return Err(AddrError::Exists);
        }
        dev.addrs.push(cidr);
        self.local.insert(addr);
        if let Some(b) = cidr.broadcast() {
            self.broadcast.insert(b.into());
        }
        self.join_solicited(ifindex, addr);
        self.routes.touch();
        if ifindex != LOOPBACK && connected {
            let metric = if addr.is_ipv4() { 0 } else { 256 };
            let mut r = Route::new(cidr, ifindex);
            // Which IPv6 address suits a destination is decided by it, not by the route (RFC 6724).
            (r.src, r.origin, r.metric) = (addr.is_ipv4().then_some(addr), RouteOrigin::Kernel, metric);
            // A second address of the same subnet uses the first one's route; another device's comes behind it.
            if self.routes.add(r).is_err()
                && !self.routes.iter().any(|o| o.ifindex == ifindex && is_same_net(&o.dst, &cidr))
            {
                r.metric += ifindex.0;
                let _ = self.routes.add(r);
            }
        }
        Ok(())
    }

    /// Takes an address away, and its connected route unless another address needs it.
    ///
    /// # Errors
    /// See [`AddrError`].
    pub fn del_address(&mut self, ifindex: IfIndex, cidr: Cidr) -> Result<(), AddrError> {
        let dev = self.dev_mut(ifindex).ok_or(AddrError::NoDevice)?;
        let Some(at) = dev.addrs.iter().position(|c| *c == cidr) else {
            return self.del_tentative(ifindex, cidr);
        };
        dev.addrs.remove(at);
        let same = |c: &&Cidr| is_same_net(c, &cidr);
        let heir = dev.addrs.iter().find(same).copied();
        self.forget(&cidr);
        self.leave_solicited(ifindex, cidr.addr());
        self.routes.touch();
        let own = |r: &Route| match r.src {
            Some(src) => src == cidr.addr(),
            None => is_same_net(&r.dst, &cidr),
        };
        let kernel = |r: &&Route| r.origin == RouteOrigin::Kernel && r.ifindex == ifindex && own(r);
        let old = self.routes.iter().find(kernel).copied();
        if let Some(mut r) = old {
            let _ = self.routes.del(r.dst, ifindex, Some(r.metric));
            if let Some(heir) = heir {
                r.src = r.src.map(|_| heir.addr());
                let _ = self.routes.add(r);
            }
        }
        Ok(())
    }

    /// An address of a device is gone.
    fn forget(&mut self, cidr: &Cidr) {
        let known = self.local.remove(cidr.addr());
        let known = known && cidr.broadcast().is_none_or(|b| self.broadcast.remove(b.into()));
        debug_assert!(known, "an address of a device was not known");
        self.deprecated.remove(cidr.addr());
    }

    /// Adds a route.
    ///
    /// # Errors
    /// See [`RouteChangeError`].
    pub fn add_route(&mut self, route: Route) -> Result<(), RouteChangeError> {
        self.device(route.ifindex).ok_or(RouteChangeError::NoDevice)?;
        self.routes.add(route)
    }

    /// Removes the route of this prefix over this device.
    ///
    /// # Errors
    /// [`RouteChangeError::NotFound`].
    pub fn del_route(&mut self, dst: Cidr, ifindex: IfIndex) -> Result<Route, RouteChangeError> {
        self.routes.del(dst, ifindex, None)
    }

    /// The routes.
    pub fn routes(&self) -> &RouteTable {
        &self.routes
    }
    /// Counts changes of devices, addresses, routes and path MTUs: a cached [`RouteInfo`] of another generation is stale.
    pub fn generation(&self) -> u32 {
        self.routes.generation()
    }

    /// Is this an address of ours? All of 127/8 is.
    pub fn is_local(&self, addr: IpAddr) -> bool {
        self.local.contains(addr) || matches!(addr, IpAddr::V4(a) if a.is_loopback())
    }

    /// Does a device of ours have this address?
    #[inline]
    pub(crate) fn is_own_v4(&self, addr: Ipv4Addr) -> bool {
        self.local.contains_v4(addr)
    }

    /// What a destination is to us when it came in by `ifindex`; any-ip is not looked at.
    pub fn addr_type(&self, addr: IpAddr, ifindex: IfIndex) -> AddrType {
        if addr.is_loopback() {
            return if ifindex == LOOPBACK { AddrType::Local } else { AddrType::Other };
        }
        if self.local.contains(addr) {
            return AddrType::Local;
        }
        match addr {
            IpAddr::V4(a) if a.is_broadcast() || self.is_broadcast(a) => AddrType::Broadcast,
            IpAddr::V4(a) if a == Ipv4Addr::new(224, 0, 0, 1) => AddrType::Multicast,
            _ if addr.is_multicast() && self.is_member(ifindex, addr) => AddrType::Multicast,
            // All nodes, interface and link scope (RFC 4291 section 2.7.1).
            IpAddr::V6(a) if matches!(a.segments(), [0xff01 | 0xff02, 0, 0, 0, 0, 0, 0, 1]) => AddrType::Multicast,
            _ => AddrType::Other,
        }
    }

    /// Is this the directed broadcast of a subnet of ours?
    #[inline]
    pub fn is_broadcast(&self, addr: Ipv4Addr) -> bool {
        self.broadcast.contains_v4(addr)
    }

    /// The route to `dst`. `src` is what the socket is bound to; it is not checked to be ours, since any-ip sockets answer
    /// from foreign addresses. `oif` restricts to one device.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn route(
        &self,
        dst: IpAddr,
        src: Option<IpAddr>,
        oif: Option<IfIndex>,
        now: Instant,
    ) -> Result<RouteInfo, RouteError> {
        let src = src.filter(|s| !s.is_unspecified());
        if dst.is_unspecified() || src.is_some_and(|s| s.is_ipv4() != dst.is_ipv4()) {
            return Err(RouteError::Family);
        }
        if self.is_local(dst) {
            let lo = self.device(LOOPBACK).ok_or(RouteError::LinkDown)?;
            return Ok(self.info(lo, src.unwrap_or(dst), dst, None, now));
        }
        let on_oif = |r: &Route| oif.is_none_or(|i| i == r.ifindex);
        let usable = |r: &Route| on_oif(r) && self.device(r.ifindex).is_some_and(Device::is_up);
        let Some(route) = self.routes.lookup(dst, usable) else {
            let down = self.routes.lookup(dst, on_oif).is_some();
            return Err(if down { RouteError::LinkDown } else { RouteError::NoRoute });
        };
        let dev = self.device(route.ifindex).ok_or(RouteError::LinkDown)?;
        let src = src.or(route.src).or_else(|| self.pick_source(dev, route.via.unwrap_or(dst), dst));
        Ok(self.info(dev, src.ok_or(RouteError::NoSource)?, dst, Some(route), now))
    }

    /// Source address. IPv6: RFC 6724. IPv4: the subnet of the next hop, then the scope of the destination, then any;
    /// addresses of other devices only when this one has none.
    fn pick_source(&self, dev: &Device, next_hop: IpAddr, dst: IpAddr) -> Option<IpAddr> {
        if let IpAddr::V6(dst) = dst {
            return self.pick_source_v6(dev, dst).map(IpAddr::V6);
        }
        let family = |c: &&Cidr| c.addr().is_ipv4() == dst.is_ipv4();
        let best = |d: &Device| {
            let rank = |c: &&Cidr| (!c.contains(next_hop), is_link_scope(c.addr()) != is_link_scope(dst));
            d.addrs.iter().filter(family).min_by_key(rank).map(Cidr::addr)
        };
        let others = || self.devices().filter(|d| d.ifindex != LOOPBACK).find_map(best);
        best(dev).or_else(others)
    }

    fn info(&self, dev: &Device, src: IpAddr, dst: IpAddr, route: Option<&Route>, now: Instant) -> RouteInfo {
        let v4 = dst.is_ipv4();
        let f = &dev.features;
        let limit = if v4 { MAX_MTU_V4 } else { MAX_MTU_V6 };
        let lock = route.is_some_and(|r| r.mtu_lock);
        let route_mtu = route.map_or(0, |r| r.mtu_bytes);
        let mut mtu = dev.mtu_bytes.min(limit);
        if route_mtu != 0 {
            mtu = mtu.min(route_mtu);
        }
        if let Some(ether) = dev.ether.as_ref().filter(|e| !v4 && e.addrconf.mtu_bytes != 0) {
            mtu = mtu.min(ether.addrconf.mtu_bytes);
        }
        if let Some(learned) = self.routes.pmtu(dst, now).filter(|_| !lock) {
            mtu = mtu.min(learned);
        }
        let path = PathInfo {
            mtu_bytes: mtu,
            advmss_bytes: route.map_or(0, |r| r.advmss_bytes),
            init_cwnd_segs: route.map_or(0, |r| r.init_cwnd_segs),
            init_rwnd_segs: route.map_or(0, |r| r.init_rwnd_segs),
            ip_header_bytes: if v4 { 20 } else { 40 },
            mtu_locked: lock,
            rto_min_us: route.map_or(0, |r| r.rto_min_us),
            gso_max_size_bytes: f.gso_max_size.max(mtu),
            gso_max_segs: u16::try_from(f.gso_max_segs).unwrap_or(u16::MAX),
            tso: f.tso(if v4 { 4 } else { 6 }) && f.tx_csum && f.sg,
            tx_csum: f.tx_csum,
        };
        RouteInfo { ifindex: dev.ifindex, src, via: route.and_then(|r| r.via), path, generation: self.generation() }
    }

    /// Learns from an ICMP "too big" that `mtu_bytes` is what fits towards `dst`. The caller has checked that the quoted
    /// packet was one of a socket's own (TCP: sequence number in flight, RFC 5927 section 7.2). Returns the path MTU to use
    /// from now on, or `None` when it is not believed, locked, or changes nothing.
    pub fn update_pmtu(&mut self, dst: IpAddr, mtu_bytes: u32, now: Instant) -> Option<u32> {
        let path = self.route(dst, None, None, now).ok()?.path;
        if path.mtu_locked {
            return None;
        }
        let learned = self.routes.pmtu.learn(dst, mtu_bytes, path.mtu_bytes, now)?;
        self.routes.touch();
        Some(learned)
    }

    /// Identification for `wire_pkts` IPv4 packets of the flow with this hash. Flows of one class count on together; a
    /// packet with DF set may have any (RFC 6864), but frames of a super-packet must have consecutive ones.
    pub(crate) fn next_ident(&mut self, hash: u32, wire_pkts: u32) -> u16 {
        let slot = &mut self.ident[(hash % 64) as usize];
        let id = *slot;
        *slot = id.wrapping_add(wire_pkts as u16);
        id
    }

    /// The queue that a flow's small packets go to, and the next identification of its class. `None`: the loopback, a device
    /// without queues, with a link header, or one for which they may be too large.
    #[inline]
    pub(crate) fn small_tx(&mut self, ifindex: IfIndex, hash: u32) -> Option<(&mut QueuePair, &mut u16)> {
        let dev = self.devices.get_mut(ifindex.0 as usize)?.as_mut()?;
        if dev.ether.is_some() || (dev.mtu_bytes as usize) < SMALL_BYTES {
            return None;
        }
        let n = dev.queues.len();
        let queue = dev.queues.get_mut(if n > 1 { hash as usize % n } else { 0 })?;
        Some((queue, &mut self.ident[(hash % 64) as usize]))
    }

    /// Something waits that the next turn should not be late for: local packets, or skbs that a device did not take and
    /// will not call for.
    pub fn work_pending(&self) -> bool {
        self.lo.pending_skbs() != 0 || (self.backlog && !self.stopped)
    }

    /// The earliest time that a queue wants to be polled at although nothing arrives, or that something of the link layer is
    /// due.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let next = self.neigh.next_deadline();
        if self.timed { earlier(next, self.next_of_queues()) } else { next }
    }

    fn next_of_queues(&self) -> Option<Instant> {
        let mut next = None;
        for dev in self.devices.get(FIRST_DEVICE..).unwrap_or_default().iter().flatten() {
            for q in &dev.queues {
                next = earlier(next, q.rx.next_deadline());
            }
        }
        next
    }

    /// Counters of a device.
    pub fn qstats(&self, ifindex: IfIndex) -> Option<Qstats> {
        if ifindex == LOOPBACK { Some(self.lo.qstats()) } else { self.device(ifindex).map(Device::qstats) }
    }
}

/// Are both addresses of one prefix?
fn is_same_net(a: &Cidr, b: &Cidr) -> bool {
    a.network() == b.network() && a.prefix_len() == b.prefix_len()
}

/// Can a host have this address?
fn check_host(cidr: &Cidr) -> Result<(), AddrError> {
    let addr = cidr.addr();
    let is_host = match addr {
        IpAddr::V4(a) => !(a.is_multicast() || a.octets()[0] == 0 || a.octets()[0] >= 240),
        IpAddr::V6(a) => !(a.is_multicast() || a.is_unspecified() || a.to_ipv4_mapped().is_some()),
    };
    let is_broadcast = cidr.broadcast().is_some_and(|b| IpAddr::V4(b) == addr);
    if is_host && !is_broadcast { Ok(()) } else { Err(AddrError::Invalid) }
}

/// Link-local scope, or narrower.
fn is_link_scope(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local() || (a.is_multicast() && a.octets()[1] & 0xf <= 2),
    }
}

/// What both can do.
fn common(a: &Features, b: &Features) -> Features {
    Features {
        tx_csum: a.tx_csum && b.tx_csum,
        tso4: a.tso4 && b.tso4,
        tso6: a.tso6 && b.tso6,
        uso: a.uso && b.uso,
        rx_csum: a.rx_csum && b.rx_csum,
        gro_hw: a.gro_hw && b.gro_hw,
        sg: a.sg && b.sg,
        by_ref: a.by_ref && b.by_ref,
        mtu: a.mtu.min(b.mtu),
        gso_max_size: a.gso_max_size.min(b.gso_max_size),
        gso_max_segs: a.gso_max_segs.min(b.gso_max_segs),
        max_frags: a.max_frags.min(b.max_frags),
        hard_header_len: a.hard_header_len,
    }
}

#[cfg(test)]
mod tests;
