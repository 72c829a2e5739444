//! ICMPv6 (RFC 4443) and the type numbers of neighbour discovery (RFC 4861).
//!
//! As in [`crate::icmp`], a variant for what a host acts upon and `Other` for the rest, verbatim. The checksum covers the
//! IPv6 pseudo-header, so parsing and emitting take both addresses. Errors quote as much as fits into the minimum MTU
//! ([`ERROR_LEN_MAX`]), which [`quote_len`] computes. Neighbour discovery is read by [`crate::ndisc`], listener discovery by
//! [`crate::group`]. Rate limits and "never answer an error" live in the stack.

use core::net::Ipv6Addr;

use crate::bytes::{be16, put};
use crate::checksum;
use crate::icmp::{HEADER_LEN, IcmpParseError};
use crate::ip::proto;

/// Most bytes of an error message, its IP header included (RFC 4443 section 2.4 (c)).
pub const ERROR_LEN_MAX: usize = 1280;

/// Message types.
pub mod ty {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAM_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Multicast listener query.
    pub const MLD_QUERY: u8 = 130;
    /// Router solicitation.
    pub const ROUTER_SOLICIT: u8 = 133;
    /// Router advertisement.
    pub const ROUTER_ADVERT: u8 = 134;
    /// Neighbour solicitation.
    pub const NEIGHBOR_SOLICIT: u8 = 135;
    /// Neighbour advertisement.
    pub const NEIGHBOR_ADVERT: u8 = 136;
    /// Redirect.
    pub const REDIRECT: u8 = 137;
    /// Multicast listener report, version 2.
    pub const MLDV2_REPORT: u8 = 143;
}

/// Codes of destination unreachable.
pub mod unreach {
    /// No route.
    pub const NO_ROUTE: u8 = 0;
    /// Administratively prohibited.
    pub const ADMIN_PROHIBITED: u8 = 1;
    /// Beyond the scope of the source.
    pub const BEYOND_SCOPE: u8 = 2;
    /// Address unreachable.
    pub const ADDRESS: u8 = 3;
    /// Port unreachable.
    pub const PORT: u8 = 4;
    /// Source address failed the policy.
    pub const POLICY: u8 = 5;
    /// Route rejected.
    pub const REJECT_ROUTE: u8 = 6;
}

/// Codes of parameter problem.
pub mod param {
    /// Erroneous header field.
    pub const HEADER_FIELD: u8 = 0;
    /// Unknown next header.
    pub const NEXT_HEADER: u8 = 1;
    /// Unknown option.
    pub const OPTION: u8 = 2;
}

/// A valid ICMPv6 message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv6Repr<'a> {
    /// Echo request.
    EchoRequest {
        /// Identifier.
        ident: u16,
        /// Sequence number of the request.
        seq: u16,
        /// Data to be sent back.
        data: &'a [u8],
    },
    /// Echo reply.
    EchoReply {
        /// Identifier.
        ident: u16,
        /// Sequence number of the request.
        seq: u16,
        /// The request's data.
        data: &'a [u8],
    },
    /// Destination unreachable; any code.
    Unreachable {
        /// See [`unreach`].
        code: u8,
        /// The packet it is about, as much as the sender quoted.
        quoted: &'a [u8],
    },
    /// Packet too big.
    PacketTooBig {
        /// Next-hop MTU in bytes.
        mtu: u32,
        /// The packet it is about.
        quoted: &'a [u8],
    },
    /// Time exceeded.
    TimeExceeded {
        /// 0: hop limit; 1: reassembly.
        code: u8,
        /// The packet it is about.
        quoted: &'a [u8],
    },
    /// Parameter problem.
    ParamProblem {
        /// See [`param`].
        code: u8,
        /// Offset of the offending byte.
        pointer: u32,
        /// The packet it is about.
        quoted: &'a [u8],
    },
    /// Any other message, verbatim.
    Other {
        /// Type.
        ty: u8,
        /// Code.
        code: u8,
        /// The four bytes behind the checksum.
        rest: [u8; 4],
        /// What follows.
        data: &'a [u8],
    },
}

impl<'a> Icmpv6Repr<'a> {
    /// Reads a whole message and verifies its checksum.
    ///
    /// # Errors
    /// See [`IcmpParseError`].
    pub fn parse(src: &Ipv6Addr, dst: &Ipv6Addr, bytes: &'a [u8]) -> Result<Self, IcmpParseError> {
        let (h, data) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(IcmpParseError::Truncated)?;
        if !checksum::is_valid(checksum::combine(pseudo(src, dst, bytes.len()), checksum::sum(bytes))) {
            return Err(IcmpParseError::Checksum);
        }
        let (code, rest) = (h[1], [h[4], h[5], h[6], h[7]]);
        let word = u32::from_be_bytes(rest);
        Ok(match h[0] {
            ty::ECHO_REQUEST if code == 0 => Self::EchoRequest { ident: be16(h, 4), seq: be16(h, 6), data },
            ty::ECHO_REPLY if code == 0 => Self::EchoReply { ident: be16(h, 4), seq: be16(h, 6), data },
            ty::UNREACHABLE => Self::Unreachable { code, quoted: data },
            ty::PACKET_TOO_BIG => Self::PacketTooBig { mtu: word, quoted: data },
            ty::TIME_EXCEEDED => Self::TimeExceeded { code, quoted: data },
            ty::PARAM_PROBLEM => Self::ParamProblem { code, pointer: word, quoted: data },
            ty => Self::Other { ty, code, rest, data },
        })
    }

    fn parts(&self) -> (u8, u8, [u8; 4], &'a [u8]) {
        let pair = |a: u16, b: u16| (u32::from(a) << 16 | u32::from(b)).to_be_bytes();
        match *self {
            Self::EchoRequest { ident, seq, data } => (ty::ECHO_REQUEST, 0, pair(ident, seq), data),
            Self::EchoReply { ident, seq, data } => (ty::ECHO_REPLY, 0, pair(ident, seq), data),
            Self::Unreachable { code, quoted } => (ty::UNREACHABLE, code, [0; 4], quoted),
            Self::PacketTooBig { mtu, quoted } => (ty::PACKET_TOO_BIG, 0, mtu.to_be_bytes(), quoted),
            Self::TimeExceeded { code, quoted } => (ty::TIME_EXCEEDED, code, [0; 4], quoted),
            Self::ParamProblem { code, pointer, quoted } => (ty::PARAM_PROBLEM, code, pointer.to_be_bytes(), quoted),
            Self::Other { ty, code, rest, data } => (ty, code, rest, data),
        }
    }

    /// Length of the message in bytes.
    pub fn emit_len(&self) -> usize {
        HEADER_LEN + self.parts().3.len()
    }

    /// Writes the message, with its checksum, into the first [`Self::emit_len`] bytes of `buf`.
    pub fn emit(&self, src: &Ipv6Addr, dst: &Ipv6Addr, buf: &mut [u8]) {
        let (ty, code, rest, data) = self.parts();
        put(buf, 0, &[ty, code, 0, 0, rest[0], rest[1], rest[2], rest[3]]);
        put(buf, HEADER_LEN, data);
        let len = HEADER_LEN + data.len();
        let sum = checksum::combine(pseudo(src, dst, len), checksum::sum(buf.get(..len).unwrap_or(&[])));
        put(buf, 2, &checksum::finish(sum).to_be_bytes());
    }
}

fn pseudo(src: &Ipv6Addr, dst: &Ipv6Addr, len: usize) -> u32 {
    checksum::pseudo_v6(src, dst, proto::ICMPV6, len as u32)
}

/// How many bytes of a packet of `pkt_len` bytes an error message quotes.
pub const fn quote_len(pkt_len: usize) -> usize {
    let room = ERROR_LEN_MAX - crate::ipv6::HEADER_LEN - HEADER_LEN;
    if pkt_len < room { pkt_len } else { room }
}
