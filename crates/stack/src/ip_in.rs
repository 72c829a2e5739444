//! IP input: from a device's skb to a transport.
//!
//! ```text
//!   parse (version, lengths, header checksum, options and extension headers skipped; fragments wait in `frag`)
//!     -> source can be a sender?  -> destination ours?  -> trim link padding -> pull headers -> L4 checksum -> Upcall
//! ```
//! The order is Linux's (`ip_rcv`, `ip_route_input`, `ip_local_deliver`; `ipv6_rcv` alike), and so are the counters. All
//! of it happens once per super-packet. What comes out has its head at the transport header, that header whole in the
//! linear head, the IP header still readable in front of it (`network_header`; ICMP errors quote it), and a checksum
//! that was verified by the device or here: no byte is acknowledged before.
//!
//! Not done: forwarding (a packet that is not ours is dropped), source routes and other options that act (skipped), IPv6
//! headers whose extensions do not fit the linear head beside the transport header. Loopback addresses are refused from
//! real devices ("martians"), as is our own address as a source.

use core::net::{IpAddr, Ipv4Addr};

use linerate_base::DropReason;
use linerate_netdev::IfIndex;
use linerate_offload::csum;
use linerate_skb::{Csum, HEAD_CAPACITY, Skb, SkbFlags};
use linerate_wire::flow::is_unicast_source;
use linerate_wire::ip::{IpVersion, ecn, proto};
use linerate_wire::ipv4::Ipv4View;
use linerate_wire::ipv6::Ipv6View;
use linerate_wire::udp::UdpView;
use linerate_wire::{IpParseError, IpRepr, UdpRepr};

use crate::core_state::Core;
use crate::frag;
use crate::icmp::{self, IcmpSend};
use crate::link::{Accepted, AddrType, LOOPBACK, Links};
use crate::neigh::{self, ether::L2_GROUP};
use crate::steer;
use crate::upcall::{IpMeta, Upcall};

/// Bytes that are made linear when a packet's headers do not lie in the head as they should.
const PULL_BYTES: usize = 128;
const _: () = assert!(PULL_BYTES <= HEAD_CAPACITY);

/// The packet came in fragments.
pub(crate) const REASSEMBLED: SkbFlags = SkbFlags(SkbFlags::FIRST_PRIVATE.0 << 9);

/// Receives one skb whose head starts at its IP header; `ifindex` and `queue` are set. Counts it, answers it or hands it up.
pub fn rcv(core: &mut Core, mut skb: Skb) -> Upcall {
    core.mibs.ip.in_receives += 1;
    core.mibs.ip.in_octets += u64::from(skb.len());
    let (ip, hl) = match parse(&mut skb) {
        Ok(found) => found,
        Err(IpParseError::Fragment) => return rcv_fragment(core, skb),
        Err(e) => return refuse_header(core, skb, e),
    };
    count_ecn(core, ip.tos, skb.wire_pkts());
    let ifindex = IfIndex(skb.ifindex);
    let multicast = match accept(core, &ip, ifindex) {
        Ok(multicast) => multicast,
        Err(reason) => return drop_with(core, skb, reason),
    };
    local(core, skb, &ip, hl, multicast)
}

/// A packet for this host: its bytes end where its header says, and its transport gets it.
#[inline]
fn local(core: &mut Core, mut skb: Skb, ip: &IpRepr, hl: usize, multicast: bool) -> Upcall {
    // What came to a group on the link is for nobody who talks to one station, whatever its IP addresses say.
    let multicast = multicast || skb.flags.contains(L2_GROUP);
    let len = hl as u32 + ip.payload_len;
    if skb.len() > len {
        // What the device summed includes the padding.
        if matches!(skb.csum, Csum::Complete(_)) {
            skb.csum = Csum::None;
        }
        skb.trim(len);
    }
    skb.ip_version = if ip.src.is_ipv4() { 4 } else { 6 };
    let meta = IpMeta {
        src: ip.src,
        dst: ip.dst,
        ecn: ip.tos & ecn::MASK,
        tos: ip.tos,
        ttl: ip.hop_limit,
        ifindex: IfIndex(skb.ifindex),
        multicast,
    };
    deliver(core, skb, ip, hl, meta)
}

/// A fragment: kept for its packet, which goes on from here when nothing is missing.
#[cold]
fn rcv_fragment(core: &mut Core, skb: Skb) -> Upcall {
    let head = skb.head();
    let ends = match IpVersion::of_packet(head) {
        Some(IpVersion::V4) => Ipv4View::new_checked(head).map(|v| (v.src().into(), v.dst().into(), v.tos())),
        _ => Ipv6View::new_checked(head).map(|v| (v.src().into(), v.dst().into(), v.tos())),
    };
    let (src, dst, tos) = match ends {
        Ok(found) => found,
        Err(e) => return refuse_header(core, skb, e),
    };
    count_ecn(core, tos, skb.wire_pkts());
    let multicast = match accept(core, &IpRepr::new(src, dst, 0, 0), IfIndex(skb.ifindex)) {
        Ok(multicast) => multicast,
        Err(reason) => return drop_with(core, skb, reason),
    };
    let Some(mut whole) = frag::rcv(core, skb) else { return Upcall::Consumed };
    whole.flags.insert(REASSEMBLED);
    let Some(mut whole) = steer::forward(core, whole) else { return Upcall::Consumed };
    match parse(&mut whole) {
        Ok((ip, hl)) => local(core, whole, &ip, hl, multicast),
        // Also a fragment of fragments, which nobody makes.
        Err(e) => refuse_header(core, whole, e),
    }
}

/// The header, however the bytes are spread over head and fragments.
pub(crate) fn parse(skb: &mut Skb) -> Result<(IpRepr, usize), IpParseError> {
    let (len, gso) = (skb.len(), skb.is_gso());
    match IpRepr::parse_head(skb.head(), len, gso) {
        // Headers in fragments: a device that does not split them, or a long chain of extension headers.
        Err(IpParseError::Truncated) if skb.data_len() > 0 && skb.head_len() < PULL_BYTES => {
            if !skb.pull_to_head(PULL_BYTES.min(len as usize)) {
                return Err(IpParseError::Truncated);
            }
            IpRepr::parse_head(skb.head(), len, gso)
        }
        other => other,
    }
}

/// A header that is not accepted: counted as Linux does, and in one case the sender is told.
fn refuse_header(core: &mut Core, mut skb: Skb, e: IpParseError) -> Upcall {
    let mib = &mut core.mibs.ip;
    match e {
        IpParseError::Checksum => {
            mib.in_csum_errors += 1;
            mib.in_hdr_errors += 1;
        }
        IpParseError::Truncated => mib.in_truncated_pkts += 1,
        IpParseError::MappedAddr => mib.in_addr_errors += 1,
        _ => mib.in_hdr_errors += 1,
    }
    if let IpParseError::ParamProblem { code, pointer } = e {
        skb.network_header = skb.head_offset();
        icmp::send_for_bad_header(core, &skb, IcmpSend::ParamProblem { code, pointer });
    }
    core.drop_skb(skb, e.drop_reason());
    Upcall::Consumed
}

fn count_ecn(core: &mut Core, tos: u8, wire_pkts: u32) {
    let mib = &mut core.mibs.ip;
    let counter = match tos & ecn::MASK {
        ecn::NOT_ECT => &mut mib.in_no_ect_pkts,
        ecn::ECT1 => &mut mib.in_ect1_pkts,
        ecn::ECT0 => &mut mib.in_ect0_pkts,
        _ => &mut mib.in_ce_pkts,
    };
    *counter += u64::from(wire_pkts);
}

#[track_caller]
fn drop_with(core: &mut Core, skb: Skb, reason: DropReason) -> Upcall {
    core.drop_skb(skb, reason);
    Upcall::Consumed
}

/// May this packet come in? `Ok(true)` when it is for a group or broadcast.
#[inline]
pub(crate) fn accept(core: &mut Core, ip: &IpRepr, ifindex: IfIndex) -> Result<bool, DropReason> {
    if let (IpAddr::V4(src), IpAddr::V4(dst)) = (ip.src, ip.dst)
        && is_plain_v4(&core.links, src, dst)
    {
        return Ok(false);
    }
    // Packets of a flow come in a row: what was said of the last one holds as long as no address changed.
    let asked = Accepted { src: ip.src, dst: ip.dst, ifindex, generation: core.links.generation() };
    if core.links.accepted == Some(asked) {
        return Ok(false);
    }
    let multicast = accept_new(core, ip, ifindex)?;
    if !multicast {
        core.links.accepted = Some(asked);
    }
    Ok(multicast)
}

/// From another host's address to an address of ours, without a look at anything special: [`accept_new`] would agree.
#[inline]
fn is_plain_v4(links: &Links, src: Ipv4Addr, dst: Ipv4Addr) -> bool {
    const LOOPBACK: u8 = 127;
    let [from, ..] = src.octets();
    let [to, ..] = dst.octets();
    // Classes A to C without the network of loopback.
    let plain = (1..224).contains(&from) && from != LOOPBACK && to != LOOPBACK;
    plain && links.is_own_v4(dst) && !links.is_own_v4(src) && !links.is_broadcast(src)
}

fn accept_new(core: &mut Core, ip: &IpRepr, ifindex: IfIndex) -> Result<bool, DropReason> {
    let links = &core.links;
    let foreign_source = ifindex == LOOPBACK || !(ip.src.is_loopback() || links.is_local(ip.src));
    let broadcast_source = matches!(ip.src, IpAddr::V4(a) if links.is_broadcast(a));
    // Who tries an address for itself speaks from none (RFC 4862 section 5.4.2).
    let nameless = ip.proto == proto::ICMPV6 && ip.src.is_unspecified() && ip.dst.is_multicast();
    let nameless = nameless && links.ether(ifindex).is_some();
    if !(is_unicast_source(ip.src) || nameless) || !foreign_source || broadcast_source {
        core.mibs.ip.in_addr_errors += 1;
        return Err(DropReason::IpInvalidSource);
    }
    match links.addr_type(ip.dst, ifindex) {
        AddrType::Local => Ok(false),
        AddrType::Broadcast => {
            core.mibs.ip.in_bcast_pkts += 1;
            Ok(true)
        }
        AddrType::Multicast => {
            core.mibs.ip.in_mcast_pkts += 1;
            Ok(true)
        }
        AddrType::Other => {
            let any_ip = links.device(ifindex).is_some_and(|d| d.any_ip);
            // The rules of a source are those of an address that a flow can have at either end. What loops back was sent
            // to an address that was local then, or from an any-ip flow.
            if any_ip && is_unicast_source(ip.dst) && !ip.dst.is_loopback() {
                return Ok(false);
            }
            core.mibs.ip.in_addr_errors += 1;
            Err(DropReason::IpInAddrErrors)
        }
    }
}

/// Pulls headers, verifies the checksum and chooses the transport.
fn deliver(core: &mut Core, mut skb: Skb, ip: &IpRepr, hl: usize, meta: IpMeta) -> Upcall {
    let l4_len = match ip.proto {
        proto::TCP => tcp_header_len(&mut skb, hl),
        proto::UDP => udp_header_len(&mut skb, ip, hl),
        proto::ICMP if meta.is_v4() => Ok(8),
        proto::ICMPV6 if !meta.is_v4() => Ok(8),
        proto::IGMP if meta.is_v4() && core.links.ether(meta.ifindex).is_some() => {
            skb.pull(hl as u32);
            neigh::group::rcv_igmp(core, &meta, skb);
            return Upcall::Consumed;
        }
        _ => return unknown_proto(core, skb, ip, hl, meta),
    };
    let linear = l4_len.and_then(|n| match skb.pull_to_head(hl + n) {
        true => Ok(()),
        false => Err(DropReason::PktTooSmall),
    });
    if let Err(reason) = linear {
        count_l4_error(core, ip.proto, reason);
        return drop_with(core, skb, reason);
    }
    let is_icmp = !matches!(ip.proto, proto::TCP | proto::UDP);
    if !is_icmp && !csum::verify_l4(&mut skb, &core.kernels) {
        let reason = if ip.proto == proto::TCP { DropReason::TcpCsum } else { DropReason::UdpCsum };
        count_l4_error(core, ip.proto, reason);
        return drop_with(core, skb, reason);
    }
    strip(&mut skb, hl);
    core.mibs.ip.in_delivers += 1;
    match ip.proto {
        proto::TCP => Upcall::Tcp(meta, skb),
        proto::UDP => Upcall::Udp(meta, skb),
        _ => icmp::rcv(core, meta, skb),
    }
}

/// The head starts at the transport header from now on.
fn strip(skb: &mut Skb, hl: usize) {
    skb.network_header = skb.head_offset();
    let pulled = skb.pull_head(hl);
    debug_assert!(pulled, "the parser read headers beyond the head");
    skb.transport_header = skb.head_offset();
}

/// Length of the TCP header with options: makes the fixed part linear to read it.
fn tcp_header_len(skb: &mut Skb, hl: usize) -> Result<usize, DropReason> {
    if !skb.pull_to_head(hl + 20) {
        return Err(DropReason::PktTooSmall);
    }
    let doff = skb.head().get(hl + 12).map_or(0, |b| usize::from(b >> 4) * 4);
    if doff < 20 { Err(DropReason::TcpHdr) } else { Ok(doff) }
}

/// Checks the UDP length and cuts off what it does not cover; 8, or why not.
fn udp_header_len(skb: &mut Skb, ip: &IpRepr, hl: usize) -> Result<usize, DropReason> {
    if !skb.pull_to_head(hl + 8) {
        return Err(DropReason::PktTooSmall);
    }
    let head = skb.head().get(hl..).unwrap_or_default();
    let view = UdpView::new_checked(head).map_err(|e| e.drop_reason())?;
    let udp = UdpRepr::parse(head, ip.payload_len, skb.is_gso()).map_err(|e| e.drop_reason())?;
    // RFC 8200 section 8.1: over IPv6 every datagram is summed, whatever a device says about it.
    if !view.has_checksum() && !ip.src.is_ipv4() && matches!(skb.csum, Csum::None | Csum::Complete(_)) {
        return Err(DropReason::UdpCsum);
    }
    let len = (hl + 8) as u32 + udp.payload_len;
    if len < skb.len() {
        if matches!(skb.csum, Csum::Complete(_)) {
            skb.csum = Csum::None;
        }
        skb.trim(len);
    }
    Ok(8)
}

/// A transport header or checksum that is refused, under the counters of its protocol.
fn count_l4_error(core: &mut Core, protocol: u8, reason: DropReason) {
    let m = &mut core.mibs;
    match protocol {
        proto::TCP => {
            m.tcp.in_segs += 1;
            m.tcp.in_errs += 1;
            m.tcp.in_csum_errors += u64::from(reason == DropReason::TcpCsum);
        }
        proto::UDP => {
            m.udp.in_errors += 1;
            m.udp.in_csum_errors += u64::from(reason == DropReason::UdpCsum);
        }
        _ => {
            m.icmp.in_msgs += 1;
            m.icmp.in_errors += 1;
        }
    }
}

/// A transport that is not spoken here: the sender is told (RFC 1122 section 3.2.2.1, RFC 8200 section 4).
fn unknown_proto(core: &mut Core, mut skb: Skb, ip: &IpRepr, hl: usize, meta: IpMeta) -> Upcall {
    core.mibs.ip.in_unknown_protos += 1;
    let pointer = next_header_offset(&skb, hl);
    // What could not be made linear is quoted as far as it is.
    let _ = skb.pull_to_head((hl + 8).min(skb.len() as usize));
    strip(&mut skb, hl);
    if ip.proto != proto::NO_NEXT_HEADER {
        icmp::send_error(core, &meta, ip.proto, &skb, IcmpSend::UnknownProtocol { pointer });
    }
    drop_with(core, skb, DropReason::IpNoProto)
}

/// Where the byte stands that names the transport: IPv6's last extension header, or the fixed header.
fn next_header_offset(skb: &Skb, hl: usize) -> u32 {
    let head = skb.head();
    let (mut field, mut at) = (6, 40);
    let mut next = head.get(6).copied().unwrap_or(0);
    // The parser has bounded the chain; every step moves forward.
    while at < hl {
        let Some(&len) = head.get(at + 1) else { break };
        field = at;
        let step = if next == proto::FRAGMENT { 8 } else { 8 + usize::from(len) * 8 };
        next = head.get(at).copied().unwrap_or(0);
        at += step;
    }
    field as u32
}

#[cfg(test)]
mod tests;
