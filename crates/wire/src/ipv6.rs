//! The IPv6 header and its extension headers (RFC 8200), with the jumbo payload option (RFC 2675).
//!
//! [`Ipv6View`] reads the fixed header. [`walk`] steps over the extension headers to the upper-layer protocol; a peer
//! chooses that chain, so it is bounded three times: by the bytes, by [`MAX_EXT_HEADERS`] and by [`MAX_OPTIONS`] per
//! options header. It stops at a real fragment (an atomic one, RFC 6946, is stepped over), at no-next-header and at
//! anything it does not know, and leaves the verdict to the caller. Routing headers are stepped over only when no
//! segment is left (RFC 8200 section 4.4; a node that is no router of theirs must refuse them). Hop-by-hop comes first or
//! is an error. The jumbo header belongs to the edge (DESIGN section 3): it is read and written here, never kept inside.

use core::net::Ipv6Addr;

use crate::bytes::{array, be16, be32, byte, put};
use crate::ip::{IpParseError, proto};

/// Length of the fixed header in bytes.
pub const HEADER_LEN: usize = 40;
/// Length of a hop-by-hop header that holds nothing but the jumbo payload option, in bytes.
pub const JUMBO_HBH_LEN: usize = 8;
/// Extension headers that a packet may have.
pub const MAX_EXT_HEADERS: usize = 8;
/// Options other than padding that one options header may have (Linux's `max_hbh_opts_number`).
pub const MAX_OPTIONS: usize = 8;
/// Bytes of padding in a row: more aligns nothing (Linux, RFC 9099 section 2.2).
pub const MAX_PADDING_BYTES: usize = 7;

const OPT_PAD1: u8 = 0;
const OPT_PADN: u8 = 1;
const OPT_ROUTER_ALERT: u8 = 5;
const OPT_JUMBO: u8 = 0xc2;

/// Byte offsets of the fields, for code that patches a built header in place.
pub mod field {
    /// Payload length, 2 bytes.
    pub const PAYLOAD_LEN: usize = 4;
    /// Next header, 1 byte.
    pub const NEXT_HEADER: usize = 6;
    /// Hop limit, 1 byte.
    pub const HOP_LIMIT: usize = 7;
    /// Source address, 16 bytes.
    pub const SRC: usize = 8;
    /// Destination address, 16 bytes.
    pub const DST: usize = 24;
}

/// An IPv6 fixed header as bytes: at least 40 of them, nothing else is promised.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6View<'a>(&'a [u8]);

impl<'a> Ipv6View<'a> {
    /// A view of `bytes`, which begin with the header and may run on.
    ///
    /// # Errors
    /// [`IpParseError::Truncated`] below 40 bytes.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, IpParseError> {
        if bytes.len() < HEADER_LEN { Err(IpParseError::Truncated) } else { Ok(Self(bytes)) }
    }
    /// Version nibble.
    pub fn version(&self) -> u8 {
        byte(self.0, 0) >> 4
    }
    /// Traffic class: DSCP and ECN.
    pub fn tos(&self) -> u8 {
        (be16(self.0, 0) >> 4) as u8
    }
    /// Flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        be32(self.0, 0) & 0xf_ffff
    }
    /// Payload length field in bytes; 0 in jumbograms.
    pub fn payload_len(&self) -> u16 {
        be16(self.0, field::PAYLOAD_LEN)
    }
    /// Next header.
    pub fn next_header(&self) -> u8 {
        byte(self.0, field::NEXT_HEADER)
    }
    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        byte(self.0, field::HOP_LIMIT)
    }
    /// Source address.
    pub fn src(&self) -> Ipv6Addr {
        array::<16>(self.0, field::SRC).into()
    }
    /// Destination address.
    pub fn dst(&self) -> Ipv6Addr {
        array::<16>(self.0, field::DST).into()
    }
    /// What follows the fixed header, as far as it is there.
    pub fn payload(&self) -> &'a [u8] {
        self.0.get(HEADER_LEN..).unwrap_or(&[])
    }
}

/// A fragment header (RFC 8200 section 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentHeader {
    /// Offset of this fragment in bytes, a multiple of 8.
    pub offset: u32,
    /// More fragments follow.
    pub more: bool,
    /// Identification.
    pub ident: u32,
}

/// What [`walk`] found between the fixed header and the upper layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtChain {
    /// The upper-layer protocol; 59 for none; 44 when it stopped at a fragment.
    pub proto: u8,
    /// Length of all extension headers in bytes.
    pub len: usize,
    /// The jumbo payload length in bytes (all that follows the fixed header), above 65535.
    pub jumbo: Option<u32>,
    /// The fragment header that it stopped at, or the atomic one that it stepped over.
    pub fragment: Option<FragmentHeader>,
}

/// Codes of ICMPv6 parameter problem that [`walk`] asks for.
mod problem {
    pub(super) const HEADER_FIELD: u8 = 0;
    pub(super) const UNKNOWN_OPTION: u8 = 2;
}

/// Walks the extension headers of the packet that `bytes` begins with.
///
/// # Errors
/// [`IpParseError::Truncated`] when the chain runs beyond `bytes`, [`IpParseError::Header`] when it must be discarded in
/// silence or exceeds a limit, [`IpParseError::ParamProblem`] when the sender is to be told.
pub fn walk(bytes: &[u8]) -> Result<ExtChain, IpParseError> {
    let v6 = Ipv6View::new_checked(bytes)?;
    let mut c = ExtChain { proto: v6.next_header(), len: 0, jumbo: None, fragment: None };
    for n in 0..=MAX_EXT_HEADERS {
        let at = HEADER_LEN + c.len;
        let is_ext = matches!(c.proto, proto::HOPOPTS | proto::ROUTING | proto::FRAGMENT | proto::DSTOPTS);
        if !is_ext {
            return Ok(c);
        }
        let head: &[u8; 8] = bytes.get(at..).and_then(|b| b.first_chunk()).ok_or(IpParseError::Truncated)?;
        let len = if c.proto == proto::FRAGMENT { 8 } else { 8 + usize::from(head[1]) * 8 };
        let header = bytes.get(at..at + len).ok_or(IpParseError::Truncated)?;
        match c.proto {
            // Only directly after the fixed header; elsewhere it is an unknown next header (RFC 8200 section 4.1).
            proto::HOPOPTS if n > 0 => {
                return Err(IpParseError::ParamProblem { code: 1, pointer: next_ptr(bytes, n, at) });
            }
            proto::HOPOPTS => c.jumbo = walk_options(header, at, &v6, true)?,
            proto::DSTOPTS => {
                walk_options(header, at, &v6, false)?;
            }
            proto::ROUTING if head[3] != 0 => {
                return Err(IpParseError::ParamProblem { code: problem::HEADER_FIELD, pointer: at as u32 + 2 });
            }
            proto::FRAGMENT => {
                let off = be16(header, 2);
                let f = FragmentHeader { offset: u32::from(off & !7), more: off & 1 != 0, ident: be32(header, 4) };
                c.fragment = Some(f);
                if f.more || f.offset != 0 {
                    return Ok(c);
                }
            }
            _ => {}
        }
        c.proto = head[0];
        c.len += len;
    }
    Err(IpParseError::Header)
}

/// Where the next-header byte that led to the header at `at` stands: found by walking again, an error path.
fn next_ptr(bytes: &[u8], n: usize, at: usize) -> u32 {
    let (mut ptr, mut pos, mut kind) = (field::NEXT_HEADER, HEADER_LEN, byte(bytes, field::NEXT_HEADER));
    for _ in 0..n {
        if pos >= at {
            break;
        }
        ptr = pos;
        pos += if kind == proto::FRAGMENT { 8 } else { 8 + usize::from(byte(bytes, pos + 1)) * 8 };
        kind = byte(bytes, ptr);
    }
    ptr as u32
}

/// Checks the options of one header that stands at `at`; gives the jumbo length when it holds one.
fn walk_options(header: &[u8], at: usize, v6: &Ipv6View<'_>, hbh: bool) -> Result<Option<u32>, IpParseError> {
    let (mut i, mut seen, mut padding, mut jumbo) = (2, 0, 0, None);
    while i < header.len() {
        let kind = byte(header, i);
        if kind == OPT_PAD1 {
            i += 1;
            padding += 1;
            if padding > MAX_PADDING_BYTES {
                return Err(IpParseError::Header);
            }
            continue;
        }
        let len = usize::from(*header.get(i + 1).ok_or(IpParseError::Header)?);
        let body = header.get(i + 2..i + 2 + len).ok_or(IpParseError::Header)?;
        let pointer = (at + i) as u32;
        if kind == OPT_PADN {
            // Padding carries nothing: who writes into it hides something.
            padding += 2 + len;
            if padding > MAX_PADDING_BYTES || body.iter().any(|&b| b != 0) {
                return Err(IpParseError::Header);
            }
        } else {
            padding = 0;
            seen += 1;
            if seen > MAX_OPTIONS {
                return Err(IpParseError::Header);
            }
        }
        match kind {
            OPT_JUMBO if hbh => {
                let n = be32(body, 0);
                if len != 4 || v6.payload_len() != 0 || n <= 65535 {
                    let off = if len == 4 && v6.payload_len() == 0 { 2 } else { 0 };
                    return Err(IpParseError::ParamProblem { code: problem::HEADER_FIELD, pointer: pointer + off });
                }
                jumbo = Some(n);
            }
            OPT_PADN | OPT_ROUTER_ALERT => {}
            // RFC 8200 section 4.2: the two upper bits say what to do with an option that one does not know.
            _ if kind >> 6 == 0 => {}
            _ if kind >> 6 == 1 || (kind >> 6 == 3 && v6.dst().is_multicast()) => return Err(IpParseError::Header),
            _ => return Err(IpParseError::ParamProblem { code: problem::UNKNOWN_OPTION, pointer }),
        }
        i += 2 + len;
    }
    Ok(jumbo)
}

/// Writes the 8-byte hop-by-hop header with the jumbo payload option. `jumbo_len` counts all that follows the fixed
/// header, this header included, and is above 65535.
pub fn emit_jumbo_hbh(buf: &mut [u8], next_header: u8, jumbo_len: u32) {
    debug_assert!(jumbo_len > 65535);
    let l = jumbo_len.to_be_bytes();
    put(buf, 0, &[next_header, 0, OPT_JUMBO, 4, l[0], l[1], l[2], l[3]]);
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// A packet whose hop-by-hop header has these bytes as options, made a multiple of 8 long by Pad1.
    fn walk_hbh(options: &[u8]) -> Result<ExtChain, IpParseError> {
        let mut h = Vec::from([proto::NO_NEXT_HEADER, 0]);
        h.extend(options);
        h.resize(h.len().next_multiple_of(8), OPT_PAD1);
        h[1] = (h.len() / 8 - 1) as u8;
        let mut p = Vec::from([0; HEADER_LEN]);
        p[0] = 0x60;
        p[5] = h.len() as u8;
        p.extend(h);
        walk(&p)
    }

    #[test]
    fn options_and_padding_are_bounded() {
        let alert = [OPT_ROUTER_ALERT, 2, 0, 0];
        assert!(walk_hbh(&alert.repeat(MAX_OPTIONS)).is_ok());
        assert_eq!(walk_hbh(&alert.repeat(MAX_OPTIONS + 1)), Err(IpParseError::Header), "too many");
        assert!(walk_hbh(&[1, 4, 0, 0, 0, 0]).is_ok());
        assert!(walk_hbh(&[1, 5, 0, 0, 0, 0, 0, 5, 2, 0, 0, 1, 1, 0]).is_ok(), "seven, an option, three");
        assert_eq!(walk_hbh(&[1, 6, 0, 0, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0]), Err(IpParseError::Header), "eight in one");
        assert_eq!(walk_hbh(&[0; 14]), Err(IpParseError::Header), "fourteen times one");
        assert_eq!(walk_hbh(&[1, 4, 0, 0, 7, 0]), Err(IpParseError::Header), "padding that says something");
    }

    #[test]
    fn unknown_options_do_what_their_upper_bits_say() {
        assert!(walk_hbh(&[0x3e, 4, 1, 2, 3, 4]).is_ok(), "skip");
        assert_eq!(walk_hbh(&[0x7e, 4, 1, 2, 3, 4]), Err(IpParseError::Header), "discard");
        let told = IpParseError::ParamProblem { code: 2, pointer: 42 };
        assert_eq!(walk_hbh(&[0xbe, 4, 1, 2, 3, 4]), Err(told), "discard and tell");
        assert_eq!(walk_hbh(&[0xfe, 4, 1, 2, 3, 4]), Err(told), "and tell, as this is for one host");
    }

    #[test]
    fn routing_headers_with_segments_left_are_refused() {
        for kind in [0, 2, 3, 4, 200] {
            let mut p = Vec::from([0; HEADER_LEN + 8]);
            (p[0], p[5], p[6]) = (0x60, 8, proto::ROUTING);
            (p[40], p[42]) = (proto::NO_NEXT_HEADER, kind);
            assert!(walk(&p).is_ok());
            p[43] = 1;
            assert_eq!(walk(&p), Err(IpParseError::ParamProblem { code: 0, pointer: 42 }), "RFC 5095");
        }
    }
}
