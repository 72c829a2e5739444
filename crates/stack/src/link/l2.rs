//! What the link layer asks of devices, addresses and routes.
//!
//! The neighbour code works on one device and the shard's neighbours at a time; [`Links::ether_and_neigh`] lends both. Groups
//! follow addresses: an IPv6 address of an Ethernet device is a member of its solicited-node group for as long as it lives.
//! Nothing here sends anything; joins and trials are carried out by the next turn.

use core::net::{IpAddr, Ipv6Addr};

use linerate_base::Instant;
use linerate_netdev::IfIndex;
use linerate_wire::Cidr;

use super::{AddrError, Links, is_same_net, saddr};
use crate::link::{Device, LOOPBACK};
use crate::neigh::Neighbours;
use crate::neigh::ether::Ether;
use crate::neigh::ndisc::solicited_node;
use crate::route::{Route, RouteChangeError, RouteOrigin};

impl Links {
    /// The Ethernet half of a device.
    pub(crate) fn ether(&self, ifindex: IfIndex) -> Option<&Ether> {
        self.device(ifindex)?.ether.as_deref()
    }
    /// The Ethernet half of a device, and all neighbours.
    pub(crate) fn ether_and_neigh(&mut self, ifindex: IfIndex) -> Option<(&mut Ether, &mut Neighbours)> {
        let dev = self.devices.get_mut(ifindex.0 as usize)?.as_mut()?;
        Some((dev.ether.as_deref_mut()?, &mut self.neigh))
    }

    /// Who is to be sent to on `ifindex` to reach `dst`: the gateway, or `dst` itself.
    pub(crate) fn next_hop(&self, dst: IpAddr, ifindex: IfIndex) -> IpAddr {
        self.routes.lookup(dst, |r| r.ifindex == ifindex).and_then(|r| r.via).unwrap_or(dst)
    }
    /// An address of ours to speak to `dst` from on this device.
    pub(crate) fn source_for(&self, ifindex: IfIndex, dst: IpAddr) -> Option<IpAddr> {
        self.pick_source(self.device(ifindex)?, dst, dst)
    }
    /// The link-local address of a device.
    pub(crate) fn link_local(&self, ifindex: IfIndex) -> Option<Ipv6Addr> {
        self.device(ifindex)?.addrs().iter().find_map(|c| match c.addr() {
            IpAddr::V6(a) if a.is_unicast_link_local() => Some(a),
            _ => None,
        })
    }
    /// Something that look-ups depend on changed.
    pub(crate) fn touch(&mut self) {
        self.routes.touch();
    }

    /// The best source for `dst` (RFC 6724 section 5). Groups and link-local destinations are only spoken to from
    /// addresses of the device itself.
    pub(super) fn pick_source_v6(&self, dev: &Device, dst: Ipv6Addr) -> Option<Ipv6Addr> {
        let narrow = dst.is_multicast() || dst.is_unicast_link_local();
        let devices = self.devices().filter(|d| d.ifindex == dev.ifindex || !narrow && d.ifindex != LOOPBACK);
        let candidates = devices.flat_map(|d| {
            d.addrs().iter().filter_map(move |c| match c.addr() {
                IpAddr::V6(addr) => Some(saddr::Candidate {
                    addr,
                    prefix_len: c.prefix_len(),
                    on_device: d.ifindex == dev.ifindex,
                    deprecated: self.deprecated.contains(addr.into()),
                }),
                IpAddr::V4(_) => None,
            })
        });
        saddr::select(candidates, dst)
    }

    /// The preferred lifetime of an address is over, or began anew.
    pub(crate) fn set_deprecated(&mut self, addr: IpAddr, deprecated: bool) {
        if self.deprecated.contains(addr) != deprecated {
            if deprecated {
                self.deprecated.insert(addr);
            } else {
                self.deprecated.remove(addr);
            }
            self.routes.touch();
        }
    }

    /// Takes away a route that a router advertised.
    pub(crate) fn del_advertised(&mut self, dst: Cidr, ifindex: IfIndex) -> Result<Route, RouteChangeError> {
        let same = |r: &&Route| is_same_net(&r.dst, &dst);
        let advertised = |r: &&Route| r.origin == RouteOrigin::RouterAdvert && r.ifindex == ifindex && same(r);
        let metric = self.routes.iter().find(advertised).map(|r| r.metric).ok_or(RouteChangeError::NotFound)?;
        self.routes.del(dst, ifindex, Some(metric))
    }

    /// Are we in this group on this device?
    pub(crate) fn is_member(&self, ifindex: IfIndex, group: IpAddr) -> bool {
        self.ether(ifindex).is_some_and(|e| e.groups.contains(group))
    }
    pub(crate) fn join_group(&mut self, ifindex: IfIndex, group: IpAddr) -> Result<(), AddrError> {
        let (ether, neigh) = self.ether_and_neigh(ifindex).ok_or(AddrError::NoDevice)?;
        if !group.is_multicast() {
            return Err(AddrError::Invalid);
        }
        if !ether.groups.join(group) {
            return Err(AddrError::Refused);
        }
        neigh.schedule(Instant::ZERO);
        self.routes.touch();
        Ok(())
    }
    pub(crate) fn leave_group(&mut self, ifindex: IfIndex, group: IpAddr) -> Result<(), AddrError> {
        let (ether, neigh) = self.ether_and_neigh(ifindex).ok_or(AddrError::NoDevice)?;
        if !ether.groups.leave(group) {
            return Err(AddrError::NotFound);
        }
        neigh.schedule(Instant::ZERO);
        self.routes.touch();
        Ok(())
    }

    pub(super) fn join_solicited(&mut self, ifindex: IfIndex, addr: IpAddr) {
        if let (IpAddr::V6(a), Some((ether, neigh))) = (addr, self.ether_and_neigh(ifindex)) {
            ether.groups.join(solicited_node(a).into());
            neigh.schedule(Instant::ZERO);
        }
    }
    pub(super) fn leave_solicited(&mut self, ifindex: IfIndex, addr: IpAddr) {
        if let (IpAddr::V6(a), Some((ether, neigh))) = (addr, self.ether_and_neigh(ifindex)) {
            ether.groups.leave(solicited_node(a).into());
            ether.addrconf.forget(addr);
            neigh.schedule(Instant::ZERO);
        }
    }
    /// Ends the trial of an address.
    pub(super) fn del_tentative(&mut self, ifindex: IfIndex, cidr: Cidr) -> Result<(), AddrError> {
        let (ether, _) = self.ether_and_neigh(ifindex).ok_or(AddrError::NotFound)?;
        if !ether.addrconf.remove_tentative(cidr.addr()) {
            return Err(AddrError::NotFound);
        }
        self.leave_solicited(ifindex, cidr.addr());
        Ok(())
    }
}
