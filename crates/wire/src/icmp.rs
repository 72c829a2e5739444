//! ICMP for IPv4 (RFC 792, 1191, 1812) and what error messages of both families quote.
//!
//! [`Icmpv4Repr`] has a variant for what a host acts upon or sends; the rest keeps its bytes in `Other`, so every message
//! that was parsed is written back unchanged. Parsing verifies the checksum over the whole message, which is small.
//! [`QuotedPacket`] reads the packet inside an error leniently: a router may cut it after the first 8 transport bytes, and
//! its checksum is not trusted or checked (hosts change lengths and ttl before quoting). Whether a quoted sequence number is
//! in flight (RFC 5927) is for TCP to judge. Rate limits live in the stack.

use core::net::IpAddr;

use linerate_base::{DropReason, Seq};

use crate::bytes::{be16, be32, byte, put};
use crate::checksum;
use crate::ip::{IpVersion, proto};
use crate::ipv4::Ipv4View;
use crate::ipv6::{self, Ipv6View};

/// Length of the header of every message in bytes.
pub const HEADER_LEN: usize = 8;
/// Most bytes of an IPv4 error message, its IP header included (RFC 1812 section 4.3.2.3).
pub const ERROR_LEN_MAX: usize = 576;

/// Message types.
pub mod ty {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Source quench (obsolete, ignored: RFC 6633).
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAM_PROBLEM: u8 = 12;
    /// Timestamp request.
    pub const TIMESTAMP: u8 = 13;
    /// Timestamp reply.
    pub const TIMESTAMP_REPLY: u8 = 14;
}

/// Codes of destination unreachable.
pub mod unreach {
    /// Network unreachable.
    pub const NET: u8 = 0;
    /// Host unreachable.
    pub const HOST: u8 = 1;
    /// Protocol unreachable.
    pub const PROTOCOL: u8 = 2;
    /// Port unreachable.
    pub const PORT: u8 = 3;
    /// Fragmentation needed and DF set; carries the MTU.
    pub const FRAG_NEEDED: u8 = 4;
    /// Source route failed.
    pub const SOURCE_ROUTE_FAILED: u8 = 5;
    /// Destination network unknown.
    pub const NET_UNKNOWN: u8 = 6;
    /// Destination host unknown.
    pub const HOST_UNKNOWN: u8 = 7;
    /// Source host isolated.
    pub const SOURCE_HOST_ISOLATED: u8 = 8;
    /// Network prohibited.
    pub const NET_PROHIBITED: u8 = 9;
    /// Host prohibited.
    pub const HOST_PROHIBITED: u8 = 10;
    /// Network unreachable for this type of service.
    pub const NET_TOS: u8 = 11;
    /// Host unreachable for this type of service.
    pub const HOST_TOS: u8 = 12;
    /// Packet filtered.
    pub const FILTERED: u8 = 13;
    /// Host precedence violation.
    pub const PRECEDENCE_VIOLATION: u8 = 14;
    /// Precedence cutoff.
    pub const PRECEDENCE_CUTOFF: u8 = 15;
}

/// Why bytes are not an ICMP message (of either family).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IcmpParseError {
    /// Fewer than 8 bytes.
    Truncated,
    /// The checksum is wrong.
    Checksum,
}

impl IcmpParseError {
    /// The reason that the packet's drop is counted under.
    pub const fn drop_reason(self) -> DropReason {
        match self {
            Self::Truncated => DropReason::PktTooSmall,
            Self::Checksum => DropReason::IcmpCsum,
        }
    }
}

/// A valid ICMPv4 message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv4Repr<'a> {
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
        /// Next-hop MTU in bytes with code 4 (0 from routers before RFC 1191); 0 with the others.
        mtu: u16,
        /// The packet it is about, as much as the sender quoted.
        quoted: &'a [u8],
    },
    /// Time exceeded.
    TimeExceeded {
        /// 0: ttl; 1: reassembly.
        code: u8,
        /// The packet it is about.
        quoted: &'a [u8],
    },
    /// Parameter problem.
    ParamProblem {
        /// Code.
        code: u8,
        /// Offset of the offending byte.
        pointer: u8,
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

impl<'a> Icmpv4Repr<'a> {
    /// Reads a whole message and verifies its checksum.
    ///
    /// # Errors
    /// See [`IcmpParseError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, IcmpParseError> {
        let (h, data) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(IcmpParseError::Truncated)?;
        if !checksum::is_valid(checksum::sum(bytes)) {
            return Err(IcmpParseError::Checksum);
        }
        let (code, hi, lo) = (h[1], be16(h, 4), be16(h, 6));
        Ok(match h[0] {
            ty::ECHO_REQUEST if code == 0 => Self::EchoRequest { ident: hi, seq: lo, data },
            ty::ECHO_REPLY if code == 0 => Self::EchoReply { ident: hi, seq: lo, data },
            ty::UNREACHABLE => {
                Self::Unreachable { code, mtu: if code == unreach::FRAG_NEEDED { lo } else { 0 }, quoted: data }
            }
            ty::TIME_EXCEEDED => Self::TimeExceeded { code, quoted: data },
            ty::PARAM_PROBLEM => Self::ParamProblem { code, pointer: h[4], quoted: data },
            ty => Self::Other { ty, code, rest: [h[4], h[5], h[6], h[7]], data },
        })
    }

    /// Type, code, the four bytes behind the checksum, and the rest.
    fn parts(&self) -> (u8, u8, [u8; 4], &'a [u8]) {
        let pair = |a: u16, b: u16| {
            let ([a0, a1], [b0, b1]) = (a.to_be_bytes(), b.to_be_bytes());
            [a0, a1, b0, b1]
        };
        match *self {
            Self::EchoRequest { ident, seq, data } => (ty::ECHO_REQUEST, 0, pair(ident, seq), data),
            Self::EchoReply { ident, seq, data } => (ty::ECHO_REPLY, 0, pair(ident, seq), data),
            Self::Unreachable { code, mtu, quoted } => {
                (ty::UNREACHABLE, code, pair(0, if code == unreach::FRAG_NEEDED { mtu } else { 0 }), quoted)
            }
            Self::TimeExceeded { code, quoted } => (ty::TIME_EXCEEDED, code, [0; 4], quoted),
            Self::ParamProblem { code, pointer, quoted } => (ty::PARAM_PROBLEM, code, [pointer, 0, 0, 0], quoted),
            Self::Other { ty, code, rest, data } => (ty, code, rest, data),
        }
    }

    /// Length of the message in bytes.
    pub fn emit_len(&self) -> usize {
        HEADER_LEN + self.parts().3.len()
    }

    /// Writes the message, with its checksum, into the first [`Self::emit_len`] bytes of `buf`.
    pub fn emit(&self, buf: &mut [u8]) {
        let (ty, code, rest, data) = self.parts();
        put(buf, 0, &[ty, code, 0, 0, rest[0], rest[1], rest[2], rest[3]]);
        put(buf, HEADER_LEN, data);
        let sum = checksum::sum(buf.get(..HEADER_LEN + data.len()).unwrap_or(&[]));
        put(buf, 2, &checksum::finish(sum).to_be_bytes());
    }
}

/// What an error message tells about the packet that caused it. The packet was *ours*: `src` is local.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotedPacket<'a> {
    /// Source address: ours.
    pub src: IpAddr,
    /// Destination address: the peer's.
    pub dst: IpAddr,
    /// Upper-layer protocol.
    pub proto: u8,
    /// Transport header and what was quoted of the payload: at least 8 bytes for TCP and UDP, else any number.
    pub transport: &'a [u8],
}

impl<'a> QuotedPacket<'a> {
    /// Reads the quoted packet of either family; `None` when it says too little to find a socket by, or is a later
    /// fragment, which has no transport header.
    pub fn parse(quoted: &'a [u8]) -> Option<Self> {
        let (src, dst, p, at): (IpAddr, IpAddr, u8, usize) = match IpVersion::of_packet(quoted)? {
            IpVersion::V4 => {
                let v = Ipv4View::new_checked(quoted).ok()?;
                if v.header_len() < crate::ipv4::HEADER_LEN || v.frag_offset() != 0 {
                    return None;
                }
                (v.src().into(), v.dst().into(), v.proto(), v.header_len())
            }
            IpVersion::V6 => {
                let v = Ipv6View::new_checked(quoted).ok()?;
                let ext = ipv6::walk(quoted).ok()?;
                let first_frag = ext.fragment.filter(|f| f.offset == 0);
                // A first fragment still holds the transport header, behind the fragment header that the walk stopped at.
                let (p, len) = match (ext.proto, first_frag) {
                    (proto::FRAGMENT, Some(_)) => (byte(quoted, ipv6::HEADER_LEN + ext.len), ext.len + 8),
                    (proto::FRAGMENT, None) => return None,
                    (p, _) => (p, ext.len),
                };
                (v.src().into(), v.dst().into(), p, ipv6::HEADER_LEN + len)
            }
        };
        let transport = quoted.get(at..)?;
        if matches!(p, proto::TCP | proto::UDP) && transport.len() < 8 {
            return None;
        }
        Some(Self { src, dst, proto: p, transport })
    }
    /// Our port, for TCP and UDP.
    pub fn src_port(&self) -> u16 {
        be16(self.transport, 0)
    }
    /// The peer's port, for TCP and UDP.
    pub fn dst_port(&self) -> u16 {
        be16(self.transport, 2)
    }
    /// The TCP sequence number.
    pub fn tcp_seq(&self) -> Seq {
        Seq(be32(self.transport, 4))
    }
}
