//! Messages out: echo replies, and errors that quote a packet.
//!
//! Both move references. A reply reuses the request's skb; an error is a new skb whose head holds the ICMP header and the
//! quoted packet's linear bytes and whose fragments are the quoted packet's own pages. When the linear part is too long
//! for the head beside our headers, the quote ends there: still more than the 8 transport bytes that matter.
//!
//! Sums: a reply changes one word (and perhaps the pseudo-header), so its checksum is adjusted (RFC 1624, equation 3);
//! an error is summed over what it quotes, at most 1280 bytes.

use core::net::IpAddr;

use linerate_arch::Kernels;
use linerate_base::DropReason;
use linerate_netdev::IfIndex;
use linerate_offload::csum;
use linerate_skb::{Csum, GsoType, HEAD_CAPACITY, Skb, SkbFlags};
use linerate_wire::flow::is_unicast_source;
use linerate_wire::ip::{IpVersion, proto};
use linerate_wire::ipv4::Ipv4View;
use linerate_wire::ipv6::{self, Ipv6View};
use linerate_wire::{checksum, icmp as v4, icmpv6 as v6};

use super::{Limit, is_error};
use crate::core_state::Core;
use crate::ip_out::{self, IpTx};
use crate::link::{AddrType, LOOPBACK};
use crate::upcall::{IpMeta, Upcall};

/// Room for a link header in front of what is built here.
const LINK_HEADROOM: usize = linerate_wire::ethernet::HEADER_LEN;

/// An error that we send; each becomes the message of its packet's family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IcmpSend {
    /// No socket on the port: port unreachable.
    PortUnreachable,
    /// No such transport: protocol unreachable, or parameter problem (code 1) that points at the next-header byte.
    UnknownProtocol {
        /// Offset of that byte from the IPv6 header.
        pointer: u32,
    },
    /// Parameter problem.
    ParamProblem {
        /// Code.
        code: u8,
        /// Offset of the offending byte from the IP header.
        pointer: u32,
    },
    /// Packet too big, or fragmentation needed.
    TooBig {
        /// What fits, bytes.
        mtu_bytes: u32,
    },
    /// The host behind us can not be reached.
    HostUnreachable,
    /// Administratively prohibited.
    Prohibited,
    /// Time exceeded, code 1: fragments did not come in time.
    ReassemblyTimeout,
}

impl IcmpSend {
    /// Type, code and the four bytes behind the checksum.
    fn header(self, is_v4: bool) -> (u8, u8, [u8; 4]) {
        let none = [0; 4];
        match (self, is_v4) {
            (Self::PortUnreachable, true) => (v4::ty::UNREACHABLE, v4::unreach::PORT, none),
            (Self::PortUnreachable, false) => (v6::ty::UNREACHABLE, v6::unreach::PORT, none),
            (Self::UnknownProtocol { .. }, true) => (v4::ty::UNREACHABLE, v4::unreach::PROTOCOL, none),
            (Self::UnknownProtocol { pointer }, false) => {
                (v6::ty::PARAM_PROBLEM, v6::param::NEXT_HEADER, pointer.to_be_bytes())
            }
            (Self::ParamProblem { code, pointer }, true) => {
                (v4::ty::PARAM_PROBLEM, code, [u8::try_from(pointer).unwrap_or(0), 0, 0, 0])
            }
            (Self::ParamProblem { code, pointer }, false) => (v6::ty::PARAM_PROBLEM, code, pointer.to_be_bytes()),
            (Self::TooBig { mtu_bytes }, true) => {
                let [a, b] = u16::try_from(mtu_bytes).unwrap_or(u16::MAX).to_be_bytes();
                (v4::ty::UNREACHABLE, v4::unreach::FRAG_NEEDED, [0, 0, a, b])
            }
            (Self::TooBig { mtu_bytes }, false) => (v6::ty::PACKET_TOO_BIG, 0, mtu_bytes.to_be_bytes()),
            (Self::HostUnreachable, true) => (v4::ty::UNREACHABLE, v4::unreach::HOST, none),
            (Self::HostUnreachable, false) => (v6::ty::UNREACHABLE, v6::unreach::ADDRESS, none),
            (Self::ReassemblyTimeout, true) => (v4::ty::TIME_EXCEEDED, 1, none),
            (Self::ReassemblyTimeout, false) => (v6::ty::TIME_EXCEEDED, 1, none),
            (Self::Prohibited, true) => (v4::ty::UNREACHABLE, v4::unreach::FILTERED, none),
            (Self::Prohibited, false) => (v6::ty::UNREACHABLE, v6::unreach::ADMIN_PROHIBITED, none),
        }
    }

    /// The exceptions of RFC 4443 section 2.4 (e.3).
    fn may_answer_groups(self, is_v4: bool) -> bool {
        match self {
            Self::TooBig { .. } => !is_v4,
            Self::ParamProblem { code, .. } => !is_v4 && code == v6::param::OPTION,
            _ => false,
        }
    }
}

/// Partial sum of the ICMPv6 pseudo-header.
pub(super) fn pseudo(src: IpAddr, dst: IpAddr, len: u32) -> u32 {
    checksum::pseudo(src, dst, proto::ICMPV6, len)
}

/// The folded sum over a whole message and its pseudo-header: 0xffff when it is intact.
pub(super) fn message_sum(skb: &Skb, pseudo: u32, k: &Kernels) -> u16 {
    let sum = csum::sum_from(skb, 0, skb.len(), k);
    checksum::fold(checksum::combine(u32::from(checksum::fold(sum)), u32::from(checksum::fold(pseudo))))
}

/// Answers an echo request with its own bytes.
pub(super) fn echo(core: &mut Core, meta: IpMeta, mut skb: Skb) -> Upcall {
    // A request to a group is answered from an address of ours.
    let src = (!meta.multicast).then_some(meta.dst);
    let oif = (meta.ifindex != LOOPBACK).then_some(meta.ifindex);
    let Ok(route) = core.links.route(meta.src, src, oif, core.now) else {
        core.mibs.ip.out_no_routes += 1;
        core.mibs.icmp.out_errors += 1;
        core.drop_skb(skb, DropReason::IpOutNoRoutes);
        return Upcall::Consumed;
    };
    let is_v4 = meta.is_v4();
    let (protocol, reply_ty) =
        if is_v4 { (proto::ICMP, v4::ty::ECHO_REPLY) } else { (proto::ICMPV6, v6::ty::ECHO_REPLY) };
    turn_round(skb.head_mut(), reply_ty, is_v4, meta.dst, route.src);
    clean(&mut skb);
    core.mibs.icmp.out_msgs += 1;
    core.mibs.icmp.out_echo_reps += 1;
    // Linux answers with the request's tos (RFC 1349 section 5.1) and without ECN.
    let tx = IpTx { tos: meta.tos & !3, frag_mtu: route.path.mtu_bytes, ..IpTx::new(&route, meta.src, protocol) };
    // A drop on the way out is counted there.
    let _ = ip_out::xmit(core, skb, &tx);
    Upcall::Consumed
}

/// Makes a request a reply: the type changes, and for a group also the pseudo-header's address.
fn turn_round(head: &mut [u8], reply_ty: u8, is_v4: bool, old: IpAddr, new: IpAddr) {
    let Some(h) = head.first_chunk_mut::<{ v4::HEADER_LEN }>() else { return };
    let field = u16::from_be_bytes([h[2], h[3]]);
    let mut field = checksum::update16(field, u16::from_be_bytes([h[0], h[1]]), u16::from_be_bytes([reply_ty, h[1]]));
    h[0] = reply_ty;
    if !is_v4 && old != new {
        let sum_of = |a: IpAddr| match a {
            IpAddr::V4(a) => checksum::fold(checksum::sum(&a.octets())),
            IpAddr::V6(a) => checksum::fold(checksum::sum(&a.octets())),
        };
        field = checksum::update16(field, sum_of(old), sum_of(new));
    }
    h[2..4].copy_from_slice(&field.to_be_bytes());
}

/// Forgets what the receiving side noted: the skb is sent now.
fn clean(skb: &mut Skb) {
    skb.csum = Csum::None;
    skb.flags = SkbFlags::EMPTY;
    (skb.gso_size, skb.gso_segs, skb.gso_type) = (0, 0, GsoType::None);
}

/// Sends an error about `skb`, whose head starts behind its IP header (`network_header`), which must not be answered in
/// all cases: see the module's head. The packet itself stays the caller's to drop. True when a message was sent.
pub fn send_error(core: &mut Core, meta: &IpMeta, protocol: u8, skb: &Skb, what: IcmpSend) -> bool {
    let first = skb.head().first().copied().unwrap_or(0);
    let about_error = matches!(protocol, proto::ICMP | proto::ICMPV6) && is_error(protocol, first);
    let to_group = meta.multicast && !what.may_answer_groups(meta.is_v4());
    let one_host = is_unicast_source(meta.src) && (!meta.src.is_loopback() || meta.ifindex == LOOPBACK);
    if about_error || to_group || !one_host {
        return false;
    }
    let limited = meta.ifindex != LOOPBACK && !matches!(what, IcmpSend::TooBig { .. });
    if limited && let Err(limit) = core.links.icmp.allow(&core.hash_key, meta.src, core.now) {
        match limit {
            Limit::Global => core.mibs.icmp.out_rate_limit_global += 1,
            Limit::Host => core.mibs.icmp.out_rate_limit_host += 1,
        }
        return false;
    }
    let src = (!meta.multicast).then_some(meta.dst);
    let oif = (meta.ifindex != LOOPBACK).then_some(meta.ifindex);
    let Ok(route) = core.links.route(meta.src, src, oif, core.now) else {
        core.mibs.ip.out_no_routes += 1;
        core.mibs.icmp.out_errors += 1;
        return false;
    };
    let tx = IpTx::new(&route, meta.src, if meta.is_v4() { proto::ICMP } else { proto::ICMPV6 });
    let Some(msg) = build(core, skb, &tx, what) else {
        core.mibs.icmp.out_errors += 1;
        return false;
    };
    core.mibs.icmp.out_msgs += 1;
    match what {
        IcmpSend::ReassemblyTimeout => core.mibs.icmp.out_time_excds += 1,
        _ => {
            let unreachable = msg.head().first() == Some(&v4::ty::UNREACHABLE) || !meta.is_v4();
            core.mibs.icmp.out_dest_unreachs += u64::from(unreachable);
        }
    }
    ip_out::xmit(core, msg, &tx).is_ok()
}

/// The message: header, quoted linear bytes, quoted pages.
fn build(core: &mut Core, about: &Skb, tx: &IpTx, what: IcmpSend) -> Option<Skb> {
    let is_v4 = tx.src.is_ipv4();
    let ip_len = if is_v4 { 20 } else { ipv6::HEADER_LEN };
    let max = if is_v4 { v4::ERROR_LEN_MAX } else { v6::ERROR_LEN_MAX } - ip_len - v4::HEADER_LEN;
    let linear = about.head_from(about.network_header);
    let room = HEAD_CAPACITY - LINK_HEADROOM - ip_len - v4::HEADER_LEN;
    let quoted_linear = linear.get(..linear.len().min(room).min(max)).unwrap_or_default();
    let mut msg = core.mem.skbs.alloc()?;
    msg.reset_head(LINK_HEADROOM + ip_len);
    let (ty, code, rest) = what.header(is_v4);
    let header = [ty, code, 0, 0, rest[0], rest[1], rest[2], rest[3]];
    let mut fits = msg.put_head_from(&header) && msg.put_head_from(quoted_linear);
    if quoted_linear.len() == linear.len() {
        let more = about.data_len().min((max - quoted_linear.len()) as u32);
        fits = fits && msg.clone_frags_from(about, 0, more);
    }
    if !fits {
        core.consume(msg);
        return None;
    }
    let pseudo = if is_v4 { 0 } else { pseudo(tx.src, tx.dst, msg.len()) };
    let field = !message_sum(&msg, pseudo, &core.kernels);
    if let Some(h) = msg.head_mut().get_mut(2..4) {
        h.copy_from_slice(&field.to_be_bytes());
    }
    Some(msg)
}

/// As [`send_error`] for a packet whose IP header was refused, so that addresses and transport are read leniently. The
/// head starts at the IP header.
pub fn send_for_bad_header(core: &mut Core, skb: &Skb, what: IcmpSend) -> bool {
    let head = skb.head();
    let ifindex = IfIndex(skb.ifindex);
    let (src, dst, protocol, at): (IpAddr, IpAddr, u8, usize) = match IpVersion::of_packet(head) {
        Some(IpVersion::V4) => match Ipv4View::new_checked(head) {
            Ok(v) => (v.src().into(), v.dst().into(), v.proto(), v.header_len()),
            Err(_) => return false,
        },
        Some(IpVersion::V6) => match Ipv6View::new_checked(head) {
            Ok(v) => {
                let (p, at) = skip_extensions(head, v.next_header());
                (v.src().into(), v.dst().into(), p, at)
            }
            Err(_) => return false,
        },
        None => return false,
    };
    let ty = head.get(at).copied().unwrap_or(0);
    if matches!(protocol, proto::ICMP | proto::ICMPV6) && is_error(protocol, ty) {
        return false;
    }
    let kind = core.links.addr_type(dst, ifindex);
    let any_ip = core.links.device(ifindex).is_some_and(|d| d.any_ip) && is_unicast_source(dst);
    if kind == AddrType::Other && !any_ip {
        return false;
    }
    let multicast = matches!(kind, AddrType::Multicast | AddrType::Broadcast);
    let meta = IpMeta { src, dst, ecn: 0, tos: 0, ttl: 0, ifindex, multicast };
    // The transport was judged above.
    send_error(core, &meta, proto::NO_NEXT_HEADER, skb, what)
}

/// Steps over extension headers by their lengths alone; the protocol behind them, and where it starts.
fn skip_extensions(head: &[u8], mut next: u8) -> (u8, usize) {
    let mut at = ipv6::HEADER_LEN;
    for _ in 0..ipv6::MAX_EXT_HEADERS {
        if !matches!(next, proto::HOPOPTS | proto::ROUTING | proto::FRAGMENT | proto::DSTOPTS) {
            break;
        }
        let Some(&[kind, len]) = head.get(at..).and_then(|h| h.first_chunk::<2>()) else { break };
        at += if next == proto::FRAGMENT { 8 } else { 8 + usize::from(len) * 8 };
        next = kind;
    }
    (next, at)
}
