//! ARP: asking, answering, learning (RFC 826 as Linux does it, `arp_process`).
//!
//! *Answered* are requests for any address of this host, on whatever device they come (`arp_ignore` 0), and probes (sender
//! 0.0.0.0) for one. *Learned* is the sender of a request for us, as a new entry that proves nothing (`Stale`). Every other
//! message only touches an entry that exists: a reply to us proves it, anything else makes it known. Within
//! `locktime` of a change nobody changes it again but by a gratuitous message; `arp_accept` (off) would let those make
//! entries. Senders that claim an address of ours are counted as conflicts and taught nothing.
//!
//! Not here: probing for conflicts of our own IPv4 addresses (RFC 5227; Linux leaves that to user space), reverse ARP, proxies.

use core::net::Ipv4Addr;

use linerate_base::DropReason;
use linerate_netdev::IfIndex;
use linerate_skb::SkbBatch;
use linerate_wire::arp::{ArpOp, ArpRepr, LEN};
use linerate_wire::ethernet::ethertype;
use linerate_wire::flow::is_unicast_source;
use linerate_wire::{ArpParseError, MacAddr};

use super::ether::{self, L2_GROUP};
use super::output;
use super::table::{Claim, Verdict};
use crate::core_state::Core;
use crate::link::AddrType;

/// Handles the ARP messages that the last poll brought.
#[cold]
pub(crate) fn input(core: &mut Core, ifindex: IfIndex) {
    let Some((ether, _)) = core.links.ether_and_neigh(ifindex) else { return };
    let mut messages: SkbBatch = core::mem::take(&mut ether.arp);
    for skb in messages.drain(..) {
        let mut buf = [0u8; LEN];
        let n = skb.copy_bytes(0, &mut buf);
        core.links.neigh.table.stats.arp_rcvd += 1;
        match buf.get(..n).ok_or(ArpParseError::Truncated).and_then(ArpRepr::parse) {
            Ok(arp) if rcv(core, ifindex, &arp, !skb.flags.contains(L2_GROUP)) => core.consume(skb),
            Ok(_) => {
                core.links.neigh.table.stats.invalid += 1;
                core.drop_skb(skb, DropReason::IpInvalidSource);
            }
            Err(e) => {
                core.links.neigh.table.stats.invalid += 1;
                core.drop_skb(skb, e.drop_reason());
            }
        }
    }
    // The batch keeps its memory.
    if let Some((ether, _)) = core.links.ether_and_neigh(ifindex) {
        ether.arp = messages;
    }
}

/// One message, sent to us alone or to all; false when its addresses are none.
fn rcv(core: &mut Core, ifindex: IfIndex, arp: &ArpRepr, alone: bool) -> bool {
    let (sip, tip) = (arp.sender_ip, arp.target_ip);
    if tip.is_multicast() || tip.is_loopback() || !arp.sender_mac.is_unicast() {
        return false;
    }
    let for_us = core.links.addr_type(tip.into(), ifindex) == AddrType::Local;
    if sip.is_unspecified() {
        // A probe: the prober has no address yet, so nothing is learned.
        if arp.op == ArpOp::Request && for_us {
            send_reply(core, ifindex, arp);
        }
        return true;
    }
    if !is_unicast_source(sip.into()) || sip.is_loopback() || core.links.is_broadcast(sip) {
        return false;
    }
    if core.links.is_local(sip.into()) {
        core.links.neigh.table.stats.conflicts += 1;
        return true;
    }
    if arp.op == ArpOp::Request && for_us {
        let claim = Claim { mac: Some(arp.sender_mac), proof: false, replace: true, weak: false, router: None };
        learn(core, ifindex, sip, &claim, true);
        send_reply(core, ifindex, arp);
        return true;
    }
    hear(core, ifindex, arp, for_us && alone);
    true
}

/// A message that asks nothing of us. Only a reply to us alone proves that packets arrive.
fn hear(core: &mut Core, ifindex: IfIndex, arp: &ArpRepr, for_us: bool) {
    let gratuitous = arp.is_gratuitous();
    let (now, cfg) = (core.now, &core.links.neigh.table.cfg);
    let (locktime, create) = (cfg.locktime, cfg.arp_accept && gratuitous);
    let known = core.links.neigh.table.find(ifindex, arp.sender_ip.into());
    let unlocked = known.and_then(|k| core.links.neigh.table.get(k)).is_none_or(|n| n.updated + locktime < now);
    let proof = arp.op == ArpOp::Reply && for_us;
    let claim = Claim { mac: Some(arp.sender_mac), proof, replace: unlocked || gratuitous, weak: false, router: None };
    if known.is_some() || create {
        learn(core, ifindex, arp.sender_ip, &claim, create);
    } else if arp.op == ArpOp::Reply {
        // An answer that nobody asked for: the first half of most poisonings.
        core.links.neigh.table.stats.claims_refused += 1;
    }
}

fn learn(core: &mut Core, ifindex: IfIndex, addr: Ipv4Addr, claim: &Claim, create: bool) {
    let (now, random) = (core.now, core.rng.next_u64());
    let addr = addr.into();
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
        Verdict::Believed { resolved: true } => output::flush(core, key),
        Verdict::Verify => output::solicit(core, key, true),
        _ => {}
    }
}

fn send(core: &mut Core, ifindex: IfIndex, to: MacAddr, arp: &ArpRepr) {
    let mut b = [0u8; LEN];
    arp.emit(&mut b);
    ether::send(core, ifindex, to, ethertype::ARP, &b);
}

fn send_reply(core: &mut Core, ifindex: IfIndex, request: &ArpRepr) {
    let Some(own) = core.links.ether(ifindex).map(ether::Ether::mac) else { return };
    core.links.neigh.table.stats.answers_sent += 1;
    let reply = ArpRepr {
        op: ArpOp::Reply,
        sender_mac: own,
        sender_ip: request.target_ip,
        target_mac: request.sender_mac,
        target_ip: request.sender_ip,
    };
    send(core, ifindex, request.sender_mac, &reply);
}

/// Asks who has `target`: all, or the hardware that had it. `src` is the address to ask from, if there is a better one than
/// the device's own.
pub(crate) fn send_request(
    core: &mut Core,
    ifindex: IfIndex,
    target: Ipv4Addr,
    src: Option<core::net::IpAddr>,
    to: Option<MacAddr>,
) {
    let Some(own) = core.links.ether(ifindex).map(ether::Ether::mac) else { return };
    let src = src.or_else(|| core.links.source_for(ifindex, target.into()));
    let sender_ip = match src {
        Some(core::net::IpAddr::V4(a)) => a,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    let request = ArpRepr {
        op: ArpOp::Request,
        sender_mac: own,
        sender_ip,
        target_mac: to.unwrap_or_default(),
        target_ip: target,
    };
    send(core, ifindex, to.unwrap_or(MacAddr::BROADCAST), &request);
}
