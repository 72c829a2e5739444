//! The link layer: Ethernet devices, and who is where on them (RFC 826, 4861, 4862, 3376, 3810).
//!
//! ```text
//!   ip_out ── output ──▶ neighbour known?  14 bytes in front ──▶ qdisc           napi ──▶ ether: ours? which protocol?
//!                            └ no: it waits here, ask (arp, ndisc)                          ├─ IP: header off, up
//!                                                                                          └─ ARP ──▶ arp
//!   timers ──▶ solicit again · give up (errors to the sockets) · DAD · lifetimes · reports        icmp ──▶ ndisc, group
//! ```
//! A pure-IP device pays one test of an option for all of this. On an Ethernet device the way out is a look into a small
//! cache of destinations (`output`), a look at the neighbour's state, and a copy of its ready-made header. Everything
//! else is rare.
//!
//! *State* is in `table` (neighbours), `addrconf` (addresses on trial, routers, lifetimes) and `group` (memberships); *messages*
//! in `arp`, `ndisc` and `group`. Everybody on the link is a stranger: tables are bounded, a claim is weighed against what is
//! known, and what is refused is counted in [`NeighStats`].
//!
//! Not here: proxy ARP and ND, redirects, static multicast routing, VLANs, DHCP. A shard has a table of its own; a
//! device whose queues belong to several shards must give ARP and ND to each of them.

pub(crate) mod addrconf;
pub(crate) mod arp;
pub(crate) mod ether;
pub(crate) mod group;
pub(crate) mod ndisc;
pub(crate) mod output;
mod state;
mod stats;
pub(crate) mod table;
pub(crate) mod timers;

use alloc::vec::Vec;
use core::net::IpAddr;

use linerate_base::slab::Key;
use linerate_base::{HashKey, Instant};
use linerate_netdev::{IfIndex, TxDone};
use linerate_skb::Skb;
use linerate_wire::MacAddr;

pub use self::state::Nud;
pub use self::stats::NeighStats;

use self::output::DstCache;
use self::table::Table;
use crate::config::NeighConfig;
use crate::core_state::Core;
use crate::link::AddrError;
use crate::shard::{Shard, earlier};
use crate::upcall::IcmpUp;

/// One neighbour, as `ip neigh` prints it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighInfo {
    /// The device that it is behind.
    pub ifindex: IfIndex,
    /// Its address.
    pub addr: IpAddr,
    /// Its hardware address, when one is known.
    pub mac: Option<MacAddr>,
    /// What is known of it.
    pub state: Nud,
    /// It is a router.
    pub router: bool,
}

/// The neighbours of a shard and what hangs on them.
pub(crate) struct Neighbours {
    pub(crate) table: Table,
    pub(crate) cache: DstCache,
    /// Completions of packets that died while they waited.
    pub(crate) done: TxDone,
    /// What sockets are to be told.
    pub(crate) errors: Vec<IcmpUp>,
    /// Nothing of a device (addresses, routers, groups) is due before.
    pub(crate) devices_at: Instant,
}

impl Neighbours {
    pub(crate) fn new(cfg: NeighConfig, key: HashKey) -> Self {
        Self {
            table: Table::new(cfg, key),
            cache: DstCache::default(),
            done: TxDone::new(),
            errors: Vec::new(),
            devices_at: Instant::FAR_FUTURE,
        }
    }

    /// Something of a device is due at `at`.
    pub(crate) fn schedule(&mut self, at: Instant) {
        self.devices_at = self.devices_at.min(at);
    }

    /// Is there anything to do at `now`?
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.devices_at <= now || self.table.len() > 0 && self.next_deadline().is_some_and(|at| at <= now)
    }

    /// The earliest of all deadlines.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let devices = (self.devices_at != Instant::FAR_FUTURE).then_some(self.devices_at);
        if self.table.len() == 0 {
            return devices;
        }
        earlier(devices, earlier(self.table.wheel.next_deadline(), self.table.gc_at))
    }

    /// Some neighbour waits for a proof that packets arrive: whoever sees progress should say so.
    #[inline]
    pub(crate) fn wants_proof(&self) -> bool {
        self.table.wanting_proof != 0
    }

    /// Forgets the neighbours of a device; what waited for them goes to `lost`.
    pub(crate) fn forget_device(&mut self, ifindex: IfIndex, mut lost: impl FnMut(Skb)) {
        let gone: Vec<Key> = self.table.iter().filter(|(_, n)| n.ifindex == ifindex).map(|(k, _)| k).collect();
        for key in gone {
            if let Some(n) = self.table.get_mut(key) {
                n.queue.drain(..).for_each(&mut lost);
                n.queue_bytes = 0;
            }
            self.table.remove(key);
        }
    }
}

/// TCP had an acknowledgement of new data from `peer` over `ifindex`: its next hop is there (Linux's `dst_confirm`). Called
/// only while [`Neighbours::wants_proof`].
#[cold]
pub(crate) fn confirm(core: &mut Core, peer: IpAddr, ifindex: IfIndex) {
    // We have just sent to it: the cache knows the way, as a rule.
    let known = core.links.neigh.cache.get(peer, ifindex, core.links.generation());
    let find = || core.links.neigh.table.find(ifindex, core.links.next_hop(peer, ifindex));
    let Some(key) = known.or_else(find) else { return };
    let random = core.rng.next_u64();
    if let Some((ether, neigh)) = core.links.ether_and_neigh(ifindex) {
        neigh.table.confirm(key, core.now, ether.params_of(peer), random);
    }
}

impl Shard {
    /// The neighbours of all devices.
    pub fn neighbours(&self) -> impl Iterator<Item = NeighInfo> + '_ {
        self.core.links.neigh.table.iter().map(|(_, n)| NeighInfo {
            ifindex: n.ifindex,
            addr: n.addr,
            mac: n.state.is_valid().then_some(n.mac),
            state: n.state,
            router: n.router,
        })
    }
    /// What the neighbour table counted.
    pub fn neigh_stats(&self) -> &NeighStats {
        &self.core.links.neigh.table.stats
    }
    /// Enters a neighbour by hand; nothing that is heard changes it (`ip neigh replace ... nud permanent`).
    ///
    /// # Errors
    /// [`AddrError::NoDevice`] when there is none of Ethernet kind, [`AddrError::Invalid`] for addresses that no station can
    /// have, [`AddrError::Refused`] when the table is full.
    pub fn add_neighbour(&mut self, ifindex: IfIndex, addr: IpAddr, mac: MacAddr) -> Result<(), AddrError> {
        let now = self.core.now;
        let (ether, neigh) = self.core.links.ether_and_neigh(ifindex).ok_or(AddrError::NoDevice)?;
        if !mac.is_unicast() || !linerate_wire::flow::is_unicast_source(addr) {
            return Err(AddrError::Invalid);
        }
        let key = neigh.table.set_permanent(ifindex, addr, ether.mac(), mac, now).ok_or(AddrError::Refused)?;
        output::flush(&mut self.core, key);
        Ok(())
    }
    /// Forgets a neighbour, whatever its state; what waited for it is dropped.
    ///
    /// # Errors
    /// [`AddrError::NotFound`].
    pub fn del_neighbour(&mut self, ifindex: IfIndex, addr: IpAddr) -> Result<(), AddrError> {
        let key = self.core.links.neigh.table.find(ifindex, addr).ok_or(AddrError::NotFound)?;
        output::fail(&mut self.core, key);
        self.core.links.neigh.table.remove(key);
        Ok(())
    }
    /// Joins a group on an Ethernet device: its frames are accepted and routers are told (IGMP, MLD). Once for each call of
    /// [`Self::leave_group`].
    ///
    /// # Errors
    /// [`AddrError::NoDevice`] when there is none of Ethernet kind, [`AddrError::Invalid`] when `group` is none,
    /// [`AddrError::Refused`] beyond [`MAX_GROUPS`].
    pub fn join_group(&mut self, ifindex: IfIndex, group: IpAddr) -> Result<(), AddrError> {
        self.core.links.join_group(ifindex, group)
    }
    /// Leaves a group that was joined.
    ///
    /// # Errors
    /// [`AddrError::NoDevice`]; [`AddrError::NotFound`].
    pub fn leave_group(&mut self, ifindex: IfIndex, group: IpAddr) -> Result<(), AddrError> {
        self.core.links.leave_group(ifindex, group)
    }

    /// What is due of the link layer, and the errors that sockets are to hear.
    #[inline]
    pub(crate) fn run_neighbours(&mut self) {
        let neigh = &self.core.links.neigh;
        if neigh.is_due(self.core.now) || !neigh.errors.is_empty() {
            self.run_neighbours_due();
        }
    }

    #[cold]
    fn run_neighbours_due(&mut self) {
        timers::run(&mut self.core);
        for up in core::mem::take(&mut self.core.links.neigh.errors) {
            if up.key.proto() == crate::tcp::PROTO_TCP {
                self.tcp.on_icmp(&mut self.core, &up);
            } else {
                self.udp.on_icmp(&mut self.core, &mut self.ready, &up);
            }
        }
    }
}

pub use self::group::MAX_GROUPS;
