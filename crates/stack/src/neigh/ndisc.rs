//! Neighbour discovery (RFC 4861 section 7, RFC 4862 section 5.4) as Linux does it (`ndisc_recv_ns`, `ndisc_recv_na`).
//!
//! A message must have hop limit 255: it was not forwarded. *Answered* are solicitations for an address of ours, to the asker
//! (whose hardware address is entered as `Stale` when it says it) or, when the asker has no address yet, to all. *Learned* from
//! advertisements is only about entries that exist: nothing is entered unasked. An advertisement without the override flag
//! changes no known hardware, but makes a proved entry doubtful.
//!
//! An address on trial (duplicate address detection) answers nobody; a solicitation of another host for it, or any
//! advertisement of it, ends the trial. Our own solicitation that the link reflects is known by its nonce (RFC 7527).
//! Router advertisements go to [`addrconf`]. Answers go straight to the hardware that asked, so that solicitations from forged
//! addresses use up no entries.

use core::net::{IpAddr, Ipv6Addr};

use linerate_base::DropReason;
use linerate_netdev::IfIndex;
use linerate_skb::Skb;
use linerate_wire::ethernet::ethertype;
use linerate_wire::flow::is_unicast_source;
use linerate_wire::icmpv6::ty;
use linerate_wire::ip::proto;
use linerate_wire::{IpRepr, MacAddr, NdiscRepr, ipv6};

use super::table::{Claim, Verdict};
use super::{addrconf, ether, output};
use crate::core_state::Core;
use crate::ip_in::REASSEMBLED;
use crate::upcall::IpMeta;

/// The group of all nodes on the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The group of all routers on the link.
pub(crate) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Longest message that is read: an Ethernet frame's worth.
const MAX_LEN: usize = 1500;

/// The group that an address is asked for in (RFC 4291 section 2.7.1).
pub(crate) fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let low = addr.to_bits() as u32 & 0x00ff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | u128::from(low))
}

/// Receives a message of types 133 to 136, its checksum verified.
pub(crate) fn rcv(core: &mut Core, meta: &IpMeta, skb: Skb) {
    if core.links.ether(meta.ifindex).is_none() {
        // A link between two ends has nobody to find.
        return core.consume(skb);
    }
    core.links.neigh.table.stats.ndisc_rcvd += 1;
    let mut buf = [0u8; MAX_LEN];
    let n = skb.copy_bytes(0, &mut buf);
    // Fragments would hide a message from a switch that guards the link (RFC 6980).
    let whole = n == skb.len() as usize && meta.ttl == 255 && !skb.flags.contains(REASSEMBLED);
    let repr = buf.get(..n).filter(|_| whole).and_then(|b| NdiscRepr::parse(b).ok());
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (meta.src, meta.dst) else { return invalid(core, skb) };
    let valid = match repr {
        Some(NdiscRepr::NeighborSolicit { target, lla, nonce }) => {
            rcv_solicit(core, meta.ifindex, (src, dst), target, lla, nonce)
        }
        Some(NdiscRepr::NeighborAdvert { router, solicited, replace, target, lla }) => {
            let claim = Claim { mac: lla, proof: solicited, replace, weak: true, router: Some(router) };
            rcv_advert(core, meta.ifindex, dst, target, &claim)
        }
        Some(NdiscRepr::RouterAdvert(ra)) => addrconf::rcv_ra(core, meta.ifindex, src, &ra),
        // Hosts answer no routers' questions.
        Some(NdiscRepr::RouterSolicit { .. }) => true,
        None => false,
    };
    if valid { core.consume(skb) } else { invalid(core, skb) }
}

fn invalid(core: &mut Core, skb: Skb) {
    core.links.neigh.table.stats.invalid += 1;
    core.mibs.icmp.in_errors += 1;
    core.drop_skb(skb, DropReason::NdiscInvalid);
}

fn rcv_solicit(
    core: &mut Core,
    ifindex: IfIndex,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    target: Ipv6Addr,
    lla: Option<MacAddr>,
    nonce: Option<[u8; 6]>,
) -> bool {
    let trial = src.is_unspecified();
    let to_group = dst.is_multicast();
    if lla.is_some_and(|m| !m.is_unicast()) || trial && (lla.is_some() || dst != solicited_node(target)) {
        return false;
    }
    if let Some(own) = addrconf::tentative_nonce(core, ifindex, target) {
        // Another host tries the same address at the same time, unless this is our own voice.
        if trial && (nonce.is_none() || nonce != own) {
            addrconf::dad_failed(core, ifindex, target);
        }
        return true;
    }
    let Some(dev) = core.links.device(ifindex) else { return true };
    if !dev.addrs().iter().any(|c| c.addr() == IpAddr::V6(target)) {
        return true;
    }
    if trial {
        send_advert(core, ifindex, target, None, ALL_NODES, true);
        return true;
    }
    if core.links.is_local(src.into()) {
        core.links.neigh.table.stats.conflicts += 1;
        return true;
    }
    if lla.is_some() {
        let claim = Claim { mac: lla, proof: false, replace: true, weak: true, router: None };
        learn(core, ifindex, src, &claim, true);
    }
    send_advert(core, ifindex, target, lla, src, to_group);
    true
}

fn rcv_advert(core: &mut Core, ifindex: IfIndex, dst: Ipv6Addr, target: Ipv6Addr, claim: &Claim) -> bool {
    if dst.is_multicast() && claim.proof || claim.mac.is_some_and(|m| !m.is_unicast()) {
        return false;
    }
    if addrconf::tentative_nonce(core, ifindex, target).is_some() {
        addrconf::dad_failed(core, ifindex, target);
        return true;
    }
    if core.links.is_local(target.into()) {
        core.links.neigh.table.stats.conflicts += 1;
        return true;
    }
    let table = &mut core.links.neigh.table;
    let known = table.find(ifindex, target.into()).and_then(|k| table.get(k));
    let Some(known) = known.filter(|n| n.state != super::Nud::Failed) else {
        table.stats.claims_refused += 1;
        return true;
    };
    let was_router = known.router;
    learn(core, ifindex, target, claim, false);
    if was_router && claim.router == Some(false) {
        addrconf::router_gone(core, ifindex, target);
    }
    true
}

/// A claim about a neighbour; `create`: it may be new.
pub(super) fn learn(core: &mut Core, ifindex: IfIndex, addr: Ipv6Addr, claim: &Claim, create: bool) {
    let addr = IpAddr::V6(addr);
    if !is_unicast_source(addr) {
        return;
    }
    let (now, random) = (core.now, core.rng.next_u64());
    let Some((ether, neigh)) = core.links.ether_and_neigh(ifindex) else { return };
    let own = ether.mac();
    let params = (ether.params_of(addr), random);
    let (key, verdict) = if create {
        neigh.table.claim_new((ifindex, addr), own, claim, now, params)
    } else {
        let Some(key) = neigh.table.find(ifindex, addr) else { return };
        (Some(key), neigh.table.claim(key, own, claim, now, params))
    };
    let Some(key) = key else { return };
    match verdict {
        Verdict::Believed { resolved } => {
            if resolved {
                output::flush(core, key);
            }
            if resolved || claim.proof {
                addrconf::router_answered(core, ifindex, addr);
            }
        }
        Verdict::Verify => output::solicit(core, key, true),
        _ => {}
    }
}

/// Builds a message with its IPv6 header in a buffer and sends it to `to`.
pub(super) fn send(
    core: &mut Core,
    ifindex: IfIndex,
    to: MacAddr,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    msg: &NdiscRepr<'_>,
) -> bool {
    let mut b = [0u8; 128];
    let len = msg.emit_len();
    let mut ip = IpRepr::new(src.into(), dst.into(), proto::ICMPV6, len as u32);
    ip.hop_limit = 255;
    ip.emit(&mut b);
    let Some(body) = b.get_mut(ipv6::HEADER_LEN..) else { return false };
    msg.emit(&src, &dst, body);
    core.mibs.icmp.out_msgs += 1;
    core.mibs.ip.out_requests += 1;
    let whole = b.get(..ipv6::HEADER_LEN + len).unwrap_or_default();
    ether::send(core, ifindex, to, ethertype::IPV6, whole)
}

/// Answers a solicitation. `lla`: the hardware that asked, if it said so; `dst`: who asked, or all.
fn send_advert(
    core: &mut Core,
    ifindex: IfIndex,
    target: Ipv6Addr,
    lla: Option<MacAddr>,
    dst: Ipv6Addr,
    to_group: bool,
) {
    let Some(own) = core.links.ether(ifindex).map(ether::Ether::mac) else { return };
    core.links.neigh.table.stats.answers_sent += 1;
    let solicited = !dst.is_multicast();
    let replace = to_group;
    let msg = NdiscRepr::NeighborAdvert { router: false, solicited, replace, target, lla: to_group.then_some(own) };
    let known = |core: &Core| {
        let table = &core.links.neigh.table;
        let n = table.find(ifindex, dst.into()).and_then(|k| table.get(k))?;
        n.state.is_valid().then_some(n.mac)
    };
    let to = if dst.is_multicast() { Some(MacAddr::of_group(dst.into())) } else { lla.or_else(|| known(core)) };
    match to {
        Some(to) => {
            send(core, ifindex, to, (target, dst), &msg);
        }
        // Who asks without saying where it is can not be answered at once: as any packet to it.
        None => send_resolved(core, ifindex, (target, dst), &msg),
    }
}

/// Sends a message to a neighbour that may have to be found first.
fn send_resolved(core: &mut Core, ifindex: IfIndex, (src, dst): (Ipv6Addr, Ipv6Addr), msg: &NdiscRepr<'_>) {
    let Some(mut skb) = core.mem.skbs.alloc() else {
        core.mibs.drops.count(DropReason::NoMem);
        return;
    };
    let made = skb.put_head(msg.emit_len()).map(|b| msg.emit(&src, &dst, b));
    if made.is_none() {
        return core.drop_skb(skb, DropReason::DevHdr);
    }
    core.mibs.icmp.out_msgs += 1;
    let tx = crate::ip_out::IpTx {
        src: src.into(),
        dst: dst.into(),
        proto: proto::ICMPV6,
        tos: 0,
        ttl: 255,
        ifindex,
        frag_mtu: 0,
    };
    // A drop on the way out is counted there.
    let _ = crate::ip_out::xmit(core, skb, &tx);
}

/// Asks for `target`: its group, or the hardware that had it.
pub(crate) fn send_solicit(
    core: &mut Core,
    ifindex: IfIndex,
    target: Ipv6Addr,
    src: Option<IpAddr>,
    to: Option<MacAddr>,
) {
    let Some(own) = core.links.ether(ifindex).map(ether::Ether::mac) else { return };
    let src = src.or_else(|| core.links.source_for(ifindex, target.into()));
    let Some(IpAddr::V6(src)) = src else { return };
    let msg = NdiscRepr::NeighborSolicit { target, lla: Some(own), nonce: None };
    let dst = if to.is_some() { target } else { solicited_node(target) };
    let to = to.unwrap_or(MacAddr::of_group(dst.into()));
    send(core, ifindex, to, (src, dst), &msg);
}

/// Is this a message for [`rcv`]?
pub(crate) const fn is_discovery(kind: u8) -> bool {
    matches!(kind, ty::ROUTER_SOLICIT..=ty::NEIGHBOR_ADVERT)
}
