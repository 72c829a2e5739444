//! Errors in: the quoted packet, and what Linux makes of the message.
//!
//! An error is believed as far as it quotes a packet that this host can have sent: its source is an address of ours (or
//! anything, on an any-ip device), its transport header's first 8 bytes are there. The quoted packet names the flow,
//! local end first. Nothing here changes state: the transport that finds the flow decides.
//!
//! The tables are those of RFC 1122 section 3.2.2.1 and RFC 4443 as Linux reads them: "fatal" errors end a connection
//! attempt, the others are soft.

use core::net::{IpAddr, SocketAddr};

use linerate_base::{Errno, Seq};
use linerate_skb::Skb;
use linerate_wire::ip::proto;
use linerate_wire::{FlowKey, QuotedPacket, icmp as v4, icmpv6 as v6};

use crate::core_state::Core;
use crate::upcall::{IcmpUp, IpMeta, Upcall};

/// Bytes of a message that are looked at: 8 of its own, an IPv6 header with a few extensions (or the longest IPv4
/// header), and 8 of the transport.
const LOOK_BYTES: usize = 160;

/// What a message means to the socket that it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meaning {
    errno: Errno,
    fatal: bool,
    too_big: bool,
}

const fn soft(errno: Errno) -> Option<Meaning> {
    Some(Meaning { errno, fatal: false, too_big: false })
}
const fn fatal(errno: Errno) -> Option<Meaning> {
    Some(Meaning { errno, fatal: true, too_big: false })
}
const TOO_BIG: Option<Meaning> = Some(Meaning { errno: Errno::EMSGSIZE, fatal: false, too_big: true });

/// ICMPv4 type and code; `None` for codes that do not exist.
pub(super) const fn convert_v4(ty: u8, code: u8) -> Option<Meaning> {
    use v4::unreach as u;
    match ty {
        v4::ty::UNREACHABLE => match code {
            u::NET | u::NET_TOS => soft(Errno::ENETUNREACH),
            u::HOST | u::HOST_TOS => soft(Errno::EHOSTUNREACH),
            u::PROTOCOL => fatal(Errno::ENOPROTOOPT),
            u::PORT => fatal(Errno::ECONNREFUSED),
            u::FRAG_NEEDED => TOO_BIG,
            u::SOURCE_ROUTE_FAILED => soft(Errno::EOPNOTSUPP),
            u::NET_UNKNOWN | u::NET_PROHIBITED => fatal(Errno::ENETUNREACH),
            u::HOST_UNKNOWN => fatal(Errno::EHOSTDOWN),
            u::SOURCE_HOST_ISOLATED
            | u::HOST_PROHIBITED
            | u::FILTERED
            | u::PRECEDENCE_VIOLATION
            | u::PRECEDENCE_CUTOFF => fatal(Errno::EHOSTUNREACH),
            _ => None,
        },
        v4::ty::TIME_EXCEEDED => soft(Errno::EHOSTUNREACH),
        v4::ty::PARAM_PROBLEM => fatal(Errno::EPROTO),
        _ => None,
    }
}

/// ICMPv6 type and code.
pub(super) const fn convert_v6(ty: u8, code: u8) -> Option<Meaning> {
    use v6::unreach as u;
    match ty {
        v6::ty::UNREACHABLE => match code {
            u::NO_ROUTE => soft(Errno::ENETUNREACH),
            u::ADMIN_PROHIBITED | u::POLICY | u::REJECT_ROUTE => fatal(Errno::EACCES),
            u::BEYOND_SCOPE | u::ADDRESS => soft(Errno::EHOSTUNREACH),
            u::PORT => fatal(Errno::ECONNREFUSED),
            _ => fatal(Errno::EPROTO),
        },
        v6::ty::PACKET_TOO_BIG => TOO_BIG,
        v6::ty::TIME_EXCEEDED => soft(Errno::EHOSTUNREACH),
        v6::ty::PARAM_PROBLEM => fatal(Errno::EPROTO),
        _ => None,
    }
}

/// An error message: handed up when it is about a flow that can be ours.
pub(super) fn rcv(core: &mut Core, meta: IpMeta, skb: Skb, meaning: Option<Meaning>) -> Upcall {
    let mut buf = [0u8; LOOK_BYTES];
    let n = skb.copy_bytes(0, &mut buf);
    let up = buf.get(..n).and_then(|b| find(core, &meta, b, meaning?));
    match up {
        Some(up) => {
            core.consume(skb);
            Upcall::Icmp(up)
        }
        None => super::invalid(core, skb),
    }
}

fn find(core: &Core, meta: &IpMeta, msg: &[u8], meaning: Meaning) -> Option<IcmpUp> {
    let (head, quoted) = msg.split_first_chunk::<{ v4::HEADER_LEN }>()?;
    let q = QuotedPacket::parse(quoted)?;
    let any_ip = core.links.device(meta.ifindex).is_some_and(|d| d.any_ip);
    if q.src.is_ipv4() != meta.is_v4() || !(core.links.is_local(q.src) || any_ip) {
        return None;
    }
    if !matches!(q.proto, proto::TCP | proto::UDP) {
        return None;
    }
    let mtu_bytes = match (meaning.too_big, meta.dst) {
        (false, _) => 0,
        // Routers before RFC 1191 say 0: as Linux, such a message changes nothing.
        (true, IpAddr::V4(_)) => u32::from(u16::from_be_bytes([head[6], head[7]])),
        (true, IpAddr::V6(_)) => u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
    };
    if meaning.too_big && mtu_bytes == 0 {
        return None;
    }
    let key = FlowKey::new(SocketAddr::new(q.src, q.src_port()), SocketAddr::new(q.dst, q.dst_port()), q.proto);
    let seq = if q.proto == proto::TCP { q.tcp_seq() } else { Seq(0) };
    Some(IcmpUp { key, seq, errno: meaning.errno, fatal: meaning.fatal, mtu_bytes, ifindex: meta.ifindex })
}
