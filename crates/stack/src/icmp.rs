//! ICMP and ICMPv6: echo, errors out, errors in.
//!
//! *Echo replies* are the request turned round: payload stays in its pages, and the checksum is updated for the bytes that
//! changed (RFC 1624) instead of summed again. *Errors out* quote the offending packet by reference, as much of it as
//! RFC 1812 (576 bytes) and RFC 4443 (1280) allow. *Errors in* are checked (checksum, a quoted packet that was ours) and
//! translated as Linux's `icmp_err_convert` tables do; whether the flow exists, and whether a quoted TCP sequence number
//! is in flight (RFC 5927), is for the transport, which then also calls [`crate::link::Links::update_pmtu`].
//!
//! What is never answered with an error (RFC 1122 section 3.2.2, RFC 4443 section 2.4 (e)): errors and redirects; packets to
//! a group or broadcast (IPv6 excepts "too big" and unknown options); packets whose source is not one host. Errors pass two
//! limits: one for all (`icmp_msgs_per_sec`, `icmp_msgs_burst`) and one per destination ([`HOST_RATE_PER_S`],
//! [`HOST_BURST`]). As in Linux echo replies and "too big" are not limited, and the loopback is not.
//!
//! Neighbour discovery and listener queries go on to [`crate::neigh`].
//!
//! Not here: redirects, source quench, timestamps (counted and ignored), pings of our own.

mod quoted;
mod reply;

use core::net::IpAddr;

use linerate_base::{DropReason, HashKey, Instant, TokenBucket};
use linerate_skb::Skb;
use linerate_wire::flow::to_mapped;
use linerate_wire::ip::proto;
use linerate_wire::{icmp as v4, icmpv6 as v6};

use crate::core_state::Core;
use crate::link::LOOPBACK;
use crate::neigh;
use crate::upcall::{IpMeta, Upcall};

pub use self::reply::{IcmpSend, send_error, send_for_bad_header};

/// Errors per second to one destination (Linux's `icmp_ratelimit` of 1000 ms).
pub const HOST_RATE_PER_S: u32 = 1;
/// Errors at once to one destination.
pub const HOST_BURST: u32 = 6;
/// Destinations are classed by keyed hash: hosts of one class share a limit, which a stranger can not aim at.
const HOST_CLASSES: usize = 256;

/// The limits of errors that we send.
#[derive(Debug)]
pub(crate) struct IcmpLimits {
    global: TokenBucket,
    hosts: [TokenBucket; HOST_CLASSES],
}

/// Which limit said no.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    Global,
    Host,
}

impl IcmpLimits {
    pub(crate) fn new(global: TokenBucket) -> Self {
        Self { global, hosts: [TokenBucket::new(HOST_RATE_PER_S, HOST_BURST); HOST_CLASSES] }
    }

    fn allow(&mut self, key: &HashKey, dst: IpAddr, now: Instant) -> Result<(), Limit> {
        let bits = to_mapped(dst).to_bits();
        let class = key.sip13_words(&[(bits >> 64) as u64, bits as u64]) as usize % HOST_CLASSES;
        // The host's own limit first: one noisy host must not spend what is for all.
        let host_allows = self.hosts.get_mut(class).is_none_or(|host| host.allow(now));
        match host_allows {
            false => Err(Limit::Host),
            true if !self.global.allow(now) => Err(Limit::Global),
            true => Ok(()),
        }
    }
}

/// Receives one message; the skb's head starts at it, 8 bytes of it at least are linear.
pub fn rcv(core: &mut Core, meta: IpMeta, skb: Skb) -> Upcall {
    core.mibs.icmp.in_msgs += 1;
    if let Err(reason) = check(core, &meta, &skb) {
        core.mibs.icmp.in_errors += 1;
        core.mibs.icmp.in_csum_errors += u64::from(reason == DropReason::IcmpCsum);
        core.drop_skb(skb, reason);
        return Upcall::Consumed;
    }
    let (ty, code) = match skb.head() {
        [ty, code, ..] => (*ty, *code),
        _ => (0, 0),
    };
    if meta.is_v4() { rcv_v4(core, meta, skb, ty, code) } else { rcv_v6(core, meta, skb, ty, code) }
}

/// Whole, of one frame, and summed right.
fn check(core: &Core, meta: &IpMeta, skb: &Skb) -> Result<(), DropReason> {
    if skb.head_len() < v4::HEADER_LEN {
        return Err(DropReason::PktTooSmall);
    }
    if skb.is_gso() {
        return Err(DropReason::IcmpInvalid);
    }
    // The loopback alone hands over messages that nobody needs to sum.
    if meta.ifindex == LOOPBACK {
        return Ok(());
    }
    let pseudo = if meta.is_v4() { 0 } else { reply::pseudo(meta.src, meta.dst, skb.len()) };
    if reply::message_sum(skb, pseudo, &core.kernels) == 0xffff { Ok(()) } else { Err(DropReason::IcmpCsum) }
}

fn rcv_v4(core: &mut Core, meta: IpMeta, skb: Skb, ty: u8, code: u8) -> Upcall {
    let mib = &mut core.mibs.icmp;
    match ty {
        v4::ty::ECHO_REQUEST if code == 0 => {
            mib.in_echos += 1;
            // RFC 1122 section 3.2.2.6 allows silence; Linux's icmp_echo_ignore_broadcasts.
            if meta.multicast {
                return ignore(core, skb);
            }
            reply::echo(core, meta, skb)
        }
        v4::ty::ECHO_REPLY => {
            mib.in_echo_reps += 1;
            ignore(core, skb)
        }
        v4::ty::UNREACHABLE => {
            mib.in_dest_unreachs += 1;
            quoted::rcv(core, meta, skb, quoted::convert_v4(ty, code))
        }
        v4::ty::TIME_EXCEEDED => {
            mib.in_time_excds += 1;
            quoted::rcv(core, meta, skb, quoted::convert_v4(ty, code))
        }
        v4::ty::PARAM_PROBLEM => {
            mib.in_parm_probs += 1;
            quoted::rcv(core, meta, skb, quoted::convert_v4(ty, code))
        }
        v4::ty::REDIRECT => {
            mib.in_redirects += 1;
            ignore(core, skb)
        }
        v4::ty::SOURCE_QUENCH | v4::ty::TIMESTAMP | v4::ty::TIMESTAMP_REPLY => ignore(core, skb),
        _ => invalid(core, skb),
    }
}

fn rcv_v6(core: &mut Core, meta: IpMeta, skb: Skb, ty: u8, code: u8) -> Upcall {
    let mib = &mut core.mibs.icmp;
    match ty {
        v6::ty::ECHO_REQUEST if code == 0 => {
            mib.in_echos += 1;
            reply::echo(core, meta, skb)
        }
        v6::ty::ECHO_REPLY => {
            mib.in_echo_reps += 1;
            ignore(core, skb)
        }
        v6::ty::UNREACHABLE | v6::ty::PACKET_TOO_BIG => {
            mib.in_dest_unreachs += 1;
            quoted::rcv(core, meta, skb, quoted::convert_v6(ty, code))
        }
        v6::ty::TIME_EXCEEDED => {
            mib.in_time_excds += 1;
            quoted::rcv(core, meta, skb, quoted::convert_v6(ty, code))
        }
        v6::ty::PARAM_PROBLEM => {
            mib.in_parm_probs += 1;
            quoted::rcv(core, meta, skb, quoted::convert_v6(ty, code))
        }
        v6::ty::REDIRECT => {
            mib.in_redirects += 1;
            ignore(core, skb)
        }
        v6::ty::MLD_QUERY => {
            neigh::group::rcv_mld(core, &meta, skb);
            Upcall::Consumed
        }
        // Listener reports and leaves are for routers.
        131 | 132 | v6::ty::MLDV2_REPORT => ignore(core, skb),
        _ if neigh::ndisc::is_discovery(ty) => {
            neigh::ndisc::rcv(core, &meta, skb);
            Upcall::Consumed
        }
        _ => invalid(core, skb),
    }
}

/// A message that is understood and asks for nothing.
fn ignore(core: &mut Core, skb: Skb) -> Upcall {
    core.consume(skb);
    Upcall::Consumed
}

/// A message that fits no rule.
fn invalid(core: &mut Core, skb: Skb) -> Upcall {
    core.mibs.icmp.in_errors += 1;
    core.drop_skb(skb, DropReason::IcmpInvalid);
    Upcall::Consumed
}

/// Is a message of this type an error, of either family (or a redirect, which must not be answered either)?
fn is_error(protocol: u8, ty: u8) -> bool {
    match protocol {
        proto::ICMP => !matches!(
            ty,
            v4::ty::ECHO_REPLY | v4::ty::ECHO_REQUEST | v4::ty::TIMESTAMP | v4::ty::TIMESTAMP_REPLY | 9 | 10 | 15..=18
        ),
        proto::ICMPV6 => ty < 128 || ty == v6::ty::REDIRECT,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
