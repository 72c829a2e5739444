//! The IP header of either family: one valid representation, and the rules for what is accepted.
//!
//! [`IpRepr`] is what the layers above work with: addresses of one family, protocol, ttl, tos, and a payload length of 32
//! bits, since a super-packet may be longer than the 16-bit fields can say. Inside, a super-packet is just that length; on
//! the way out the length field is 0 when it does not fit (Linux's form of IPv4 BIG TCP, and of IPv6 from 7.0 on), or a
//! hop-by-hop jumbo header says it ([`IpRepr::emit_jumbo`]). On the way in a length of 0 is believed only for a packet
//! that the device marked as GSO: from a plain wire frame it is malformed (SYSTEMS A11, A12).
//! Not done here: reassembly, forwarding, options that record or route, link-layer padding (the caller trims to
//! `payload_len`), and whether the addresses are ours.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_base::DropReason;

use crate::bytes::put;
use crate::ipv4::{self, Ipv4View};
use crate::ipv6::{self, Ipv6View};

/// Protocol numbers (IANA).
pub mod proto {
    /// IPv6 hop-by-hop options.
    pub const HOPOPTS: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// ESP.
    pub const ESP: u8 = 50;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// IPv6 destination options.
    pub const DSTOPTS: u8 = 60;
}

/// The two ECN bits of the tos byte (RFC 3168 section 5).
pub mod ecn {
    /// Mask of the field.
    pub const MASK: u8 = 3;
    /// Not ECN-capable.
    pub const NOT_ECT: u8 = 0;
    /// ECN-capable, codepoint 1.
    pub const ECT1: u8 = 1;
    /// ECN-capable, codepoint 0.
    pub const ECT0: u8 = 2;
    /// Congestion experienced.
    pub const CE: u8 = 3;
}

/// The address family of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// The family by the first nibble; `None` for anything else and for no bytes.
    pub fn of_packet(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Some(Self::V4),
            6 => Some(Self::V6),
            _ => None,
        }
    }
    /// Length of the header that [`IpRepr::emit`] writes, in bytes.
    pub const fn header_len(self) -> usize {
        match self {
            Self::V4 => ipv4::HEADER_LEN,
            Self::V6 => ipv6::HEADER_LEN,
        }
    }
}

/// Why bytes are not an IP packet for the layers above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IpParseError {
    /// Fewer bytes than the header needs or announces.
    Truncated,
    /// Neither version 4 nor 6.
    Version,
    /// A length, an option or an extension header contradicts the rest, or a limit is exceeded: discard in silence.
    Header,
    /// The IPv4 header checksum is wrong.
    Checksum,
    /// A fragment.
    Fragment,
    /// An IPv4-mapped address in an IPv6 header: it would be taken for an IPv4 peer.
    MappedAddr,
    /// Discard, and tell the sender by ICMPv6 parameter problem.
    ParamProblem {
        /// Code of the message.
        code: u8,
        /// Offset of the offending byte from the IPv6 header.
        pointer: u32,
    },
}

impl IpParseError {
    /// The reason that the packet's drop is counted under.
    pub const fn drop_reason(self) -> DropReason {
        match self {
            Self::Truncated => DropReason::PktTooSmall,
            Self::Version => DropReason::UnhandledProto,
            Self::Header | Self::ParamProblem { .. } => DropReason::IpInHdr,
            Self::Checksum => DropReason::IpCsum,
            Self::Fragment => DropReason::IpFragment,
            Self::MappedAddr => DropReason::IpInvalidSource,
        }
    }
}

impl fmt::Display for IpParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.drop_reason().describe())
    }
}
impl core::error::Error for IpParseError {}

/// A valid IP header of either family. Both addresses are of one family, and IPv6 ones are not IPv4-mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpRepr {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// The upper-layer protocol, behind all extension headers.
    pub proto: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// DSCP (upper 6 bits) and ECN (lower 2).
    pub tos: u8,
    /// Bytes behind the header and its extensions; above 65535 in super-packets.
    pub payload_len: u32,
    /// IPv6 flow label, 20 bits; 0 in IPv4.
    pub flow_label: u32,
    /// IPv4 identification; 0 in IPv6.
    pub ident: u16,
    /// IPv4 don't-fragment; true in IPv6, where no router fragments.
    pub dont_frag: bool,
}

impl IpRepr {
    /// A header with defaults: hop limit 64, tos 0, don't-fragment, no label. The family is that of `src`.
    pub fn new(src: IpAddr, dst: IpAddr, proto: u8, payload_len: u32) -> Self {
        debug_assert_eq!(src.is_ipv4(), dst.is_ipv4(), "addresses of two families");
        Self { src, dst, proto, hop_limit: 64, tos: 0, payload_len, flow_label: 0, ident: 0, dont_frag: true }
    }

    /// The family.
    #[inline]
    pub fn version(&self) -> IpVersion {
        if self.src.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 }
    }

    /// Reads a whole packet that lies in `bytes`, as it came from a wire. Returns the header and its length in bytes,
    /// extension headers and options included; the payload is the `payload_len` bytes behind it.
    ///
    /// # Errors
    /// See [`Self::parse_head`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), IpParseError> {
        Self::parse_head(bytes, u32::try_from(bytes.len()).map_err(|_| IpParseError::Header)?, false)
    }

    /// Reads a packet of `pkt_len` bytes of which `head` is the beginning (at least all IP headers). `gso` says that the
    /// device marked it as a super-packet, for which a length field of 0 means "all of it".
    ///
    /// # Errors
    /// Everything that Linux discards in `ip_rcv` and `ipv6_rcv`: impossible versions and lengths, a wrong IPv4 header
    /// checksum, bad extension headers; also fragments, which the caller may still want to reassemble by the views.
    pub fn parse_head(head: &[u8], pkt_len: u32, gso: bool) -> Result<(Self, usize), IpParseError> {
        match IpVersion::of_packet(head) {
            Some(IpVersion::V4) => Self::parse_v4(head, pkt_len, gso),
            Some(IpVersion::V6) => Self::parse_v6(head, pkt_len, gso),
            None if head.is_empty() => Err(IpParseError::Truncated),
            None => Err(IpParseError::Version),
        }
    }

    /// The plain packet of nearly all traffic: 20 bytes of header, whole, no fragment. `None`: look closer.
    #[inline]
    fn parse_v4_plain(head: &[u8], pkt_len: u32) -> Option<(Self, usize)> {
        let h = head.first_chunk::<{ ipv4::HEADER_LEN }>()?;
        let total = u32::from(u16::from_be_bytes([h[2], h[3]]));
        let frag = u16::from_be_bytes([h[6], h[7]]);
        let plain = h[0] == 0x45
            && (ipv4::HEADER_LEN as u32..=pkt_len).contains(&total)
            && frag & !ipv4::DF == 0
            && crate::checksum::is_valid(crate::checksum::sum(h));
        let repr = Self {
            src: Ipv4Addr::new(h[12], h[13], h[14], h[15]).into(),
            dst: Ipv4Addr::new(h[16], h[17], h[18], h[19]).into(),
            proto: h[ipv4::field::PROTO],
            hop_limit: h[ipv4::field::TTL],
            tos: h[ipv4::field::TOS],
            payload_len: total.wrapping_sub(ipv4::HEADER_LEN as u32),
            flow_label: 0,
            ident: u16::from_be_bytes([h[4], h[5]]),
            dont_frag: frag & ipv4::DF != 0,
        };
        plain.then_some((repr, ipv4::HEADER_LEN))
    }

    fn parse_v4(head: &[u8], pkt_len: u32, gso: bool) -> Result<(Self, usize), IpParseError> {
        if let Some(plain) = Self::parse_v4_plain(head, pkt_len) {
            return Ok(plain);
        }
        let v = Ipv4View::new_checked(head)?;
        let hl = v.header_len();
        if hl < ipv4::HEADER_LEN {
            return Err(IpParseError::Header);
        }
        if hl > head.len() {
            return Err(IpParseError::Truncated);
        }
        if !v.is_checksum_valid() {
            return Err(IpParseError::Checksum);
        }
        let total = match v.total_len() {
            0 if gso && v.proto() == proto::TCP => pkt_len,
            n => u32::from(n),
        };
        if total > pkt_len {
            return Err(IpParseError::Truncated);
        }
        let payload_len = total.checked_sub(hl as u32).ok_or(IpParseError::Header)?;
        if v.is_fragment() {
            return Err(IpParseError::Fragment);
        }
        let repr = Self {
            src: v.src().into(),
            dst: v.dst().into(),
            proto: v.proto(),
            hop_limit: v.ttl(),
            tos: v.tos(),
            payload_len,
            flow_label: 0,
            ident: v.ident(),
            dont_frag: v.dont_frag(),
        };
        Ok((repr, hl))
    }

    fn parse_v6(head: &[u8], pkt_len: u32, gso: bool) -> Result<(Self, usize), IpParseError> {
        let v = Ipv6View::new_checked(head)?;
        let (src, dst) = (v.src(), v.dst());
        if src.to_ipv4_mapped().is_some() || dst.to_ipv4_mapped().is_some() {
            return Err(IpParseError::MappedAddr);
        }
        let ext = ipv6::walk(head)?;
        let behind_fixed = match (v.payload_len(), ext.jumbo) {
            (_, Some(n)) => n,
            (0, None) if gso && ext.proto == proto::TCP => pkt_len.saturating_sub(ipv6::HEADER_LEN as u32),
            (n, None) => u32::from(n),
        };
        if pkt_len.checked_sub(ipv6::HEADER_LEN as u32).is_none_or(|have| behind_fixed > have) {
            return Err(IpParseError::Truncated);
        }
        if ext.proto == proto::FRAGMENT {
            return Err(IpParseError::Fragment);
        }
        let payload_len = behind_fixed.checked_sub(ext.len as u32).ok_or(IpParseError::Header)?;
        let repr = Self {
            src: src.into(),
            dst: dst.into(),
            proto: ext.proto,
            hop_limit: v.hop_limit(),
            tos: v.tos(),
            payload_len,
            flow_label: v.flow_label(),
            ident: 0,
            dont_frag: true,
        };
        Ok((repr, ipv6::HEADER_LEN + ext.len))
    }

    /// Bytes that [`Self::emit`] writes: 20 or 40.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.version().header_len()
    }

    /// Writes the header into the first [`Self::header_len`] bytes of `buf`, IPv4 with its checksum. A length that does
    /// not fit its field is written as 0: such a packet may leave only as GSO.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        match (self.src, self.dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => self.emit_v4(s, d, buf),
            (s, d) => {
                let len = u16::try_from(self.payload_len).unwrap_or(0);
                self.emit_v6(crate::flow::to_mapped(s), crate::flow::to_mapped(d), len, self.proto, buf);
            }
        }
    }

    #[inline]
    fn emit_v4(&self, src: Ipv4Addr, dst: Ipv4Addr, buf: &mut [u8]) {
        let total = self.payload_len.saturating_add(ipv4::HEADER_LEN as u32);
        let mut h = [0u8; ipv4::HEADER_LEN];
        h[0] = 0x45;
        h[ipv4::field::TOS] = self.tos;
        h[2..4].copy_from_slice(&u16::try_from(total).unwrap_or(0).to_be_bytes());
        h[4..6].copy_from_slice(&self.ident.to_be_bytes());
        h[6..8].copy_from_slice(&(if self.dont_frag { ipv4::DF } else { 0 }).to_be_bytes());
        h[ipv4::field::TTL] = self.hop_limit;
        h[ipv4::field::PROTO] = self.proto;
        h[12..16].copy_from_slice(&src.octets());
        h[16..20].copy_from_slice(&dst.octets());
        let sum = crate::checksum::finish(crate::checksum::sum(&h));
        h[ipv4::field::CHECKSUM..ipv4::field::CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        put(buf, 0, &h);
    }

    fn emit_v6(&self, src: Ipv6Addr, dst: Ipv6Addr, len: u16, next: u8, buf: &mut [u8]) {
        let mut h = [0u8; ipv6::HEADER_LEN];
        let word = 6 << 28 | u32::from(self.tos) << 20 | (self.flow_label & 0xf_ffff);
        h[0..4].copy_from_slice(&word.to_be_bytes());
        h[4..6].copy_from_slice(&len.to_be_bytes());
        h[ipv6::field::NEXT_HEADER] = next;
        h[ipv6::field::HOP_LIMIT] = self.hop_limit;
        h[8..24].copy_from_slice(&src.octets());
        h[24..40].copy_from_slice(&dst.octets());
        put(buf, 0, &h);
    }

    /// Writes an IPv6 header with a hop-by-hop jumbo header behind it (48 bytes), as Linux before 7.0 wants BIG TCP, and
    /// returns true; false and nothing written when the packet is IPv4 or short enough for its length field.
    pub fn emit_jumbo(&self, buf: &mut [u8]) -> bool {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (self.src, self.dst) else { return false };
        if self.payload_len <= 65535 {
            return false;
        }
        self.emit_v6(src, dst, 0, proto::HOPOPTS, buf);
        let jumbo_len = self.payload_len.saturating_add(ipv6::JUMBO_HBH_LEN as u32);
        ipv6::emit_jumbo_hbh(buf.get_mut(ipv6::HEADER_LEN..).unwrap_or(&mut []), self.proto, jumbo_len);
        true
    }

    /// Partial sum of the pseudo-header for the whole payload (see [`crate::checksum`]).
    #[inline]
    pub fn pseudo_sum(&self) -> u32 {
        crate::checksum::pseudo(self.src, self.dst, self.proto, self.payload_len)
    }
}
