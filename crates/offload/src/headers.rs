//! Where the headers of a packet lie, and how long the packet says that it is.
//!
//! [`Headers::parse`] reads the linear head only, and judges no more than the offloads need: lengths that contradict each
//! other and fragments are refused with a reason, everything else (addresses, flags, checksums) is for the layers above.
//! A total length of 0 is believed only when the skb is marked as a super-packet (its length does not fit 16 bits), since
//! a peer could write it into any wire frame. All offsets are from the start of the head's data, where the IP header is.
//! IPv6 extension headers are walked by the `wire` crate's rules, at most eight of them.

use linerate_base::DropReason;
use linerate_skb::Skb;
use linerate_wire::ip::proto;
use linerate_wire::{ipv4, ipv6};

/// Big-endian u16 at `at`; 0 beyond the end.
#[inline]
pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    b.get(at..).and_then(|s| s.first_chunk::<2>()).map_or(0, |a| u16::from_be_bytes(*a))
}
/// Big-endian u32 at `at`; 0 beyond the end.
#[inline]
pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    b.get(at..).and_then(|s| s.first_chunk::<4>()).map_or(0, |a| u32::from_be_bytes(*a))
}
/// Byte at `at`; 0 beyond the end.
#[inline]
pub(crate) fn byte(b: &[u8], at: usize) -> u8 {
    b.get(at).copied().unwrap_or(0)
}
/// Writes `v` at `at` of a header of ours.
#[inline]
pub(crate) fn put16(b: &mut [u8], at: usize, v: u16) {
    match b.get_mut(at..).and_then(|s| s.first_chunk_mut::<2>()) {
        Some(d) => *d = v.to_be_bytes(),
        None => debug_assert!(false, "header shorter than it was parsed"),
    }
}
/// As [`put16`] for 32 bits.
#[inline]
pub(crate) fn put32(b: &mut [u8], at: usize, v: u32) {
    match b.get_mut(at..).and_then(|s| s.first_chunk_mut::<4>()) {
        Some(d) => *d = v.to_be_bytes(),
        None => debug_assert!(false, "header shorter than it was parsed"),
    }
}

/// What [`Headers::parse`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// 4 or 6.
    pub version: u8,
    /// Transport protocol, behind all extension headers.
    pub proto: u8,
    /// Where the transport header starts, bytes.
    pub l4: usize,
    /// Where the payload starts, bytes: behind the TCP or UDP header, at `l4` for other protocols.
    pub end: usize,
    /// Transport header and payload, bytes, as the IP header says; never beyond the end of the skb.
    pub l4_len: u32,
    /// IPv6 extension headers are there.
    pub has_ext: bool,
}

impl Headers {
    /// Finds the headers of `skb`, whose head starts at the IP header.
    ///
    /// # Errors
    /// The reason that a drop would be counted under: truncated, contradictory, or a fragment.
    pub fn parse(skb: &Skb) -> Result<Self, DropReason> {
        let b = skb.head();
        let mut h = match byte(b, 0) >> 4 {
            4 => Self::parse_v4(b, skb)?,
            6 => Self::parse_v6(b, skb)?,
            _ if b.is_empty() => return Err(DropReason::PktTooSmall),
            _ => return Err(DropReason::UnhandledProto),
        };
        let len = match h.proto {
            proto::TCP => {
                let len = usize::from(byte(b, h.l4 + 12) >> 4) * 4;
                if len < 20 || h.l4 + len > b.len() || len as u32 > h.l4_len {
                    return Err(DropReason::TcpHdr);
                }
                len
            }
            proto::UDP => {
                if h.l4 + 8 > b.len() || h.l4_len < 8 {
                    return Err(DropReason::PktTooSmall);
                }
                8
            }
            _ => 0,
        };
        h.end = h.l4 + len;
        Ok(h)
    }

    fn parse_v4(b: &[u8], skb: &Skb) -> Result<Self, DropReason> {
        let ihl = usize::from(byte(b, 0) & 15) * 4;
        if b.len() < ipv4::HEADER_LEN || ihl > b.len() {
            return Err(DropReason::PktTooSmall);
        }
        let total = match be16(b, 2) {
            0 if skb.is_gso() => skb.len(),
            n => u32::from(n),
        };
        if ihl < ipv4::HEADER_LEN || total < ihl as u32 {
            return Err(DropReason::IpInHdr);
        }
        if total > skb.len() {
            return Err(DropReason::PktTooSmall);
        }
        if be16(b, 6) & 0x3fff != 0 {
            return Err(DropReason::IpFragment);
        }
        let l4_len = total - ihl as u32;
        Ok(Self { version: 4, proto: byte(b, 9), l4: ihl, end: ihl, l4_len, has_ext: false })
    }

    fn parse_v6(b: &[u8], skb: &Skb) -> Result<Self, DropReason> {
        if b.len() < ipv6::HEADER_LEN {
            return Err(DropReason::PktTooSmall);
        }
        let next = byte(b, 6);
        let (kind, ext, jumbo) = if matches!(next, proto::TCP | proto::UDP) {
            (next, 0, None)
        } else {
            let chain = ipv6::walk(b).map_err(|e| e.drop_reason())?;
            if chain.fragment.is_some() {
                return Err(DropReason::IpFragment);
            }
            (chain.proto, chain.len, chain.jumbo)
        };
        let payload = match (be16(b, 4), jumbo) {
            (_, Some(n)) => n,
            (0, None) if skb.is_gso() => skb.len() - ipv6::HEADER_LEN as u32,
            (n, None) => u32::from(n),
        };
        if payload > skb.len() - ipv6::HEADER_LEN as u32 {
            return Err(DropReason::PktTooSmall);
        }
        let l4_len = payload.checked_sub(ext as u32).ok_or(DropReason::IpInHdr)?;
        let l4 = ipv6::HEADER_LEN + ext;
        Ok(Self { version: 6, proto: kind, l4, end: l4, l4_len, has_ext: ext > 0 })
    }

    /// Partial sum of the pseudo-header of `head` for a transport length of `len` bytes.
    #[inline]
    pub(crate) fn pseudo(&self, head: &[u8], len: u32) -> u32 {
        let addrs = if self.version == 4 { 12..20 } else { 8..40 };
        let sum = linerate_wire::checksum::sum(head.get(addrs).unwrap_or_default());
        linerate_wire::checksum::combine(sum, u32::from(self.proto) + (len >> 16) + (len & 0xffff))
    }
    /// Offset of the checksum field in the transport header, for TCP and UDP.
    #[inline]
    pub(crate) const fn csum_offset(&self) -> usize {
        if self.proto == proto::TCP { 16 } else { 6 }
    }
}
