//! From a destination to a link header.
//!
//! The common case is one look into a direct-mapped cache (destination, device, generation of routes and addresses →
//! neighbour), a compare of the neighbour's state, and 14 bytes copied in front of the packet. What misses the cache asks the
//! routes for the next hop and the table for the neighbour. Groups and broadcasts need neither: their hardware address
//! follows from theirs.
//!
//! A packet for a neighbour that is not known waits with it, at most `unres_qlen_bytes` of truesize; beyond that the oldest
//! is dropped, as in Linux. When the neighbour does not answer, what waits is dropped and each socket is told as by an
//! ICMP "host unreachable" (EHOSTUNREACH).

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use linerate_base::slab::Key;
use linerate_base::{DropReason, Errno, Seq};
use linerate_netdev::IfIndex;
use linerate_skb::{SKB_TRUESIZE, Skb};
use linerate_wire::ethernet::HEADER_LEN;
use linerate_wire::ip::{IpVersion, proto};
use linerate_wire::{FlowKey, MacAddr, QuotedPacket};

use super::table::{self, Use};
use super::{addrconf, arp, ndisc};
use crate::core_state::Core;
use crate::ip_out::{self, Xmit};
use crate::upcall::IcmpUp;

/// Destinations remembered.
const CACHE_SLOTS: usize = 64;

#[derive(Clone, Copy)]
struct Cached {
    dst: IpAddr,
    ifindex: IfIndex,
    generation: u32,
    key: Key,
}

/// Destination to neighbour; empty until the first packet to an Ethernet device.
#[derive(Default)]
pub(crate) struct DstCache(Vec<Option<Cached>>);

impl DstCache {
    /// A stranger who aims at one slot costs us a look-up in the routes, no more: no key is needed.
    #[inline]
    fn slot(dst: IpAddr) -> usize {
        let low = match dst {
            IpAddr::V4(a) => a.to_bits(),
            IpAddr::V6(a) => {
                let bits = a.to_bits();
                (bits ^ bits >> 64) as u32
            }
        };
        (low.wrapping_mul(0x9e37_79b1) >> 26) as usize % CACHE_SLOTS
    }
    #[inline]
    pub(super) fn get(&self, dst: IpAddr, ifindex: IfIndex, generation: u32) -> Option<Key> {
        let c = self.0.get(Self::slot(dst))?.as_ref()?;
        (c.dst == dst && c.ifindex == ifindex && c.generation == generation).then_some(c.key)
    }
    fn put(&mut self, c: Cached) {
        if self.0.is_empty() {
            self.0.resize(CACHE_SLOTS, None);
        }
        if let Some(slot) = self.0.get_mut(Self::slot(c.dst)) {
            *slot = Some(c);
        }
    }
}

/// Sends an IP packet over an Ethernet device.
pub(crate) fn xmit(core: &mut Core, mut skb: Skb, dst: IpAddr, ifindex: IfIndex) -> Xmit {
    let generation = core.links.generation();
    let neigh = &mut core.links.neigh;
    if let Some(key) = neigh.cache.get(dst, ifindex, generation)
        && let Some(n) = neigh.table.get_mut(key)
        && n.state.is_ready()
    {
        n.used = core.now;
        let header = n.header;
        return match push(&mut skb, &header) {
            true => ip_out::dev_queue_xmit(core, skb, ifindex),
            false => ip_out::refuse(core, skb, DropReason::DevHdr),
        };
    }
    xmit_slow(core, skb, dst, ifindex)
}

/// Puts the link header in front.
#[inline]
fn push(skb: &mut Skb, header: &[u8; HEADER_LEN]) -> bool {
    if skb.headroom() < HEADER_LEN && !skb.make_headroom(HEADER_LEN) {
        return false;
    }
    skb.push_header::<HEADER_LEN>().map(|h| *h = *header).is_some()
}

fn xmit_slow(core: &mut Core, mut skb: Skb, dst: IpAddr, ifindex: IfIndex) -> Xmit {
    if let Some(group) = group_mac(core, dst) {
        let own = core.links.ether(ifindex).map_or(MacAddr::default(), super::ether::Ether::mac);
        return match push(&mut skb, &table::header(own, group, dst)) {
            true => ip_out::dev_queue_xmit(core, skb, ifindex),
            false => ip_out::refuse(core, skb, DropReason::DevHdr),
        };
    }
    let next_hop = core.links.next_hop(dst, ifindex);
    let (now, generation) = (core.now, core.links.generation());
    let neigh = &mut core.links.neigh;
    let Some(key) = neigh.table.want(ifindex, next_hop, now) else {
        return ip_out::refuse(core, skb, DropReason::NeighCreateFail);
    };
    neigh.cache.put(Cached { dst, ifindex, generation, key });
    let Some((ether, neigh)) = core.links.ether_and_neigh(ifindex) else {
        return ip_out::refuse(core, skb, DropReason::FullRing);
    };
    let verdict = neigh.table.on_use(key, now, ether.params_of(next_hop));
    let header = neigh.table.get(key).map(|n| n.header);
    match (verdict, header) {
        (Use::Send, Some(header)) => match push(&mut skb, &header) {
            true => ip_out::dev_queue_xmit(core, skb, ifindex),
            false => ip_out::refuse(core, skb, DropReason::DevHdr),
        },
        _ => {
            hold(core, key, skb);
            if verdict == Use::WaitAndSolicit {
                solicit(core, key, false);
            }
            Xmit::Ok
        }
    }
}

/// The hardware address of a destination that is not one station.
fn group_mac(core: &Core, dst: IpAddr) -> Option<MacAddr> {
    match dst {
        IpAddr::V4(a) if a.is_broadcast() || core.links.is_broadcast(a) => Some(MacAddr::BROADCAST),
        _ if dst.is_multicast() => Some(MacAddr::of_group(dst)),
        _ => None,
    }
}

/// The packet waits for its neighbour's hardware address.
fn hold(core: &mut Core, key: Key, skb: Skb) {
    let limit = core.links.neigh.table.cfg.unres_qlen_bytes;
    let cost = skb.truesize.max(SKB_TRUESIZE);
    loop {
        let Some(n) = core.links.neigh.table.get_mut(key) else { return core.drop_skb(skb, DropReason::NeighFailed) };
        if n.queue_bytes.saturating_add(cost) <= limit || n.queue.is_empty() {
            n.queue_bytes = n.queue_bytes.saturating_add(cost);
            n.queue.push(skb);
            return;
        }
        let Some(oldest) = n.queue.pop_front() else { continue };
        n.queue_bytes = n.queue_bytes.saturating_sub(oldest.truesize.max(SKB_TRUESIZE));
        lose(core, oldest, DropReason::NeighQueueFull);
    }
}

/// A packet that was accepted dies here: its socket gets its bytes back.
#[track_caller]
fn lose(core: &mut Core, skb: Skb, reason: DropReason) {
    core.links.neigh.done.push(skb.tx_done, skb.truesize);
    core.mibs.ip.out_discards += 1;
    core.drop_skb(skb, reason);
}

/// The neighbour is known: what waited for it goes.
pub(crate) fn flush(core: &mut Core, key: Key) {
    loop {
        let Some(n) = core.links.neigh.table.get_mut(key).filter(|n| n.state.is_valid()) else { return };
        let (header, ifindex) = (n.header, n.ifindex);
        let Some(mut skb) = n.queue.pop_front() else {
            n.queue_bytes = 0;
            return;
        };
        let (token, truesize) = (skb.tx_done, skb.truesize);
        if !push(&mut skb, &header) {
            lose(core, skb, DropReason::DevHdr);
        } else if !ip_out::dev_queue_xmit(core, skb, ifindex).is_ok() {
            core.links.neigh.done.push(token, truesize);
        }
    }
}

/// The neighbour does not answer: what waited for it dies, and the sockets are told.
pub(crate) fn fail(core: &mut Core, key: Key) {
    let Some(n) = core.links.neigh.table.get_mut(key) else { return };
    let (ifindex, addr, router) = (n.ifindex, n.addr, n.router);
    while let Some(skb) = core.links.neigh.table.get_mut(key).and_then(|n| n.queue.pop_front()) {
        if let Some(up) = error_of(&skb, ifindex) {
            core.links.neigh.errors.push(up);
        }
        lose(core, skb, DropReason::NeighFailed);
    }
    if let Some(n) = core.links.neigh.table.get_mut(key) {
        n.queue_bytes = 0;
    }
    if router {
        addrconf::router_failed(core, ifindex, addr);
    }
}

/// What the sender of a packet hears.
fn error_of(skb: &Skb, ifindex: IfIndex) -> Option<IcmpUp> {
    let q = QuotedPacket::parse(skb.head_from(skb.network_header))?;
    if !matches!(q.proto, proto::TCP | proto::UDP) {
        return None;
    }
    let key = FlowKey::new(SocketAddr::new(q.src, q.src_port()), SocketAddr::new(q.dst, q.dst_port()), q.proto);
    let seq = if q.proto == proto::TCP { q.tcp_seq() } else { Seq(0) };
    Some(IcmpUp { key, seq, errno: Errno::EHOSTUNREACH, fatal: false, mtu_bytes: 0, ifindex })
}

/// Asks for a neighbour: everybody, or (`unicast`) the hardware that is known. The question comes from the address that
/// the first waiting packet comes from, if it is ours (Linux's `arp_announce` 0), else from one of the device's.
pub(crate) fn solicit(core: &mut Core, key: Key, unicast: bool) {
    let Some(n) = core.links.neigh.table.get(key) else { return };
    let (ifindex, addr, mac) = (n.ifindex, n.addr, unicast.then_some(n.mac));
    let first = n.queue.iter().next().and_then(|skb| source_of(skb.head_from(skb.network_header)));
    let src = first.filter(|s| core.links.is_local(*s) && s.is_ipv4() == addr.is_ipv4());
    core.links.neigh.table.stats.solicits_sent += 1;
    match addr {
        IpAddr::V4(target) => arp::send_request(core, ifindex, target, src, mac),
        IpAddr::V6(target) => ndisc::send_solicit(core, ifindex, target, src, mac),
    }
}

fn source_of(ip: &[u8]) -> Option<IpAddr> {
    match IpVersion::of_packet(ip)? {
        IpVersion::V4 => ip.get(12..16)?.first_chunk::<4>().map(|a| IpAddr::from(*a)),
        IpVersion::V6 => ip.get(8..24)?.first_chunk::<16>().map(|a| IpAddr::from(*a)),
    }
}
