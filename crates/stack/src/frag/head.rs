//! The headers of fragments: what one says of itself, and the header of the packet that they made.
//!
//! Theory: an IPv4 fragment repeats the header and says offset and more-fragments in it (RFC 791 section 3.2); an IPv6
//! fragment repeats the *per-fragment headers* (the fixed one, hop-by-hop, routing) and says the rest in a fragment header
//! (RFC 8200 section 4.5). [`Piece::parse`] reads either and judges what can be judged without the others; [`restore`]
//! writes the header of the whole into the head of the first fragment.
//!
//! ```text
//!   IPv6:  | fixed 40 | ext ... | fragment 8 | payload      header_len = 40 + ext + 8
//!   whole:         | fixed 40 | ext ... | payload           the bytes before the fragment header move up by 8
//! ```
//! Lengths: an IPv4 fragment that is not the last and no multiple of 8 is cut to one, as Linux does; an IPv6 one is
//! answered. No packet is longer than its length field can say: 65,535 bytes, counted from its header in IPv4 and behind
//! the fixed header in IPv6. Not here: queues, and the extension headers behind the fragment header, which are walked
//! when the packet is whole.

use linerate_skb::{Csum, GsoType, Skb, SkbFlags};
use linerate_wire::ip::{IpVersion, ecn, proto};
use linerate_wire::ipv4::{self, Ipv4View};
use linerate_wire::ipv6::{self, Ipv6View};

use super::FragKey;
use super::queue::United;

/// Bytes of an IPv6 fragment header.
pub(super) const FRAG_HEADER_LEN: usize = 8;
/// The most that a length field can say.
const LEN_MAX: u32 = u16::MAX as u32;
/// Bytes of the first fragment that are looked at for the end of its header chain.
const CHAIN_BYTES: usize = 128;

/// What a fragment says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) key: FragKey,
    /// Its bytes are `[offset, end)` of the packet's payload.
    pub(super) offset: u32,
    pub(super) end: u32,
    /// Others follow.
    pub(super) more: bool,
    /// Bytes in front of its payload.
    pub(super) header_len: usize,
    pub(super) tos: u8,
}

/// Why a fragment is refused by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// Its header contradicts itself.
    Header,
    /// As `Header`; the sender is told (ICMPv6 parameter problem).
    ParamProblem { code: u8, pointer: u32 },
}

impl Piece {
    /// Reads the fragment that `skb` holds, whose IP header the parser found right but for being a fragment.
    pub(super) fn parse(skb: &Skb) -> Result<Self, Refused> {
        if skb.is_gso() {
            return Err(Refused::Header);
        }
        match IpVersion::of_packet(skb.head()) {
            Some(IpVersion::V4) => Self::parse_v4(skb),
            Some(IpVersion::V6) => Self::parse_v6(skb),
            None => Err(Refused::Header),
        }
    }

    fn parse_v4(skb: &Skb) -> Result<Self, Refused> {
        let v = Ipv4View::new_checked(skb.head()).map_err(|_| Refused::Header)?;
        let (hl, offset, more) = (v.header_len(), v.frag_offset(), v.more_frags());
        let len = u32::from(v.total_len()).checked_sub(hl as u32).ok_or(Refused::Header)?;
        let len = if more { len & !7 } else { len };
        let key = FragKey {
            src: v.src().into(),
            dst: v.dst().into(),
            ident: u32::from(v.ident()),
            proto: v.proto(),
            ifindex: 0,
        };
        Ok(Self { key, offset, end: offset + len, more, header_len: hl, tos: v.tos() })
    }

    fn parse_v6(skb: &Skb) -> Result<Self, Refused> {
        let head = skb.head();
        let v = Ipv6View::new_checked(head).map_err(|_| Refused::Header)?;
        let chain = ipv6::walk(head).map_err(|_| Refused::Header)?;
        let f = chain.fragment.filter(|_| chain.proto == proto::FRAGMENT).ok_or(Refused::Header)?;
        let at = ipv6::HEADER_LEN + chain.len;
        // A jumbogram must not be a fragment (RFC 2675 section 3).
        if chain.jumbo.is_some() {
            return Err(Refused::ParamProblem { code: 0, pointer: at as u32 });
        }
        let header_len = at + FRAG_HEADER_LEN;
        let len = u32::from(v.payload_len()).checked_sub((header_len - ipv6::HEADER_LEN) as u32);
        let end = f.offset + len.ok_or(Refused::Header)?;
        if end > LEN_MAX {
            return Err(Refused::ParamProblem { code: 0, pointer: at as u32 + 2 });
        }
        if f.more && end % 8 != 0 {
            return Err(Refused::ParamProblem { code: 0, pointer: ipv6::field::PAYLOAD_LEN as u32 });
        }
        let first_next = head.get(at).copied().unwrap_or(proto::NO_NEXT_HEADER);
        if f.offset == 0 && is_chain_cut(skb, header_len, end, first_next) {
            return Err(Refused::ParamProblem { code: INCOMPLETE_CHAIN, pointer: 0 });
        }
        // An address of one link means another host on another link.
        let link = v.src().is_unicast_link_local() || v.dst().is_multicast();
        let key = FragKey {
            src: v.src().into(),
            dst: v.dst().into(),
            ident: f.ident,
            proto: 0,
            ifindex: if link { skb.ifindex } else { 0 },
        };
        Ok(Self { key, offset: f.offset, end, more: f.more, header_len, tos: v.tos() })
    }
}

/// ICMPv6 parameter problem: the first fragment does not hold all headers (RFC 7112 section 5).
const INCOMPLETE_CHAIN: u8 = 3;

/// Does a first fragment with `len` bytes of payload end before its last header does? What lies beyond the bytes that are
/// looked at is judged when the packet is whole.
fn is_chain_cut(skb: &Skb, at: usize, len: u32, mut next: u8) -> bool {
    let mut buf = [0; CHAIN_BYTES];
    let have = skb.copy_bytes(at as u32, &mut buf);
    let mut pos = 0;
    for _ in 0..ipv6::MAX_EXT_HEADERS {
        if !matches!(next, proto::DSTOPTS | proto::ROUTING) {
            break;
        }
        let Some([kind, n, ..]) = buf.get(pos..have) else { return pos + 2 > len as usize };
        next = *kind;
        pos += 8 + usize::from(*n) * 8;
    }
    let upper = match next {
        proto::TCP => 20,
        proto::UDP | proto::ICMPV6 => 8,
        proto::NO_NEXT_HEADER => 0,
        _ => 1,
    };
    pos + upper > len as usize
}

/// Makes the header of the first fragment that of the whole packet. False: longer than a packet can be.
pub(super) fn restore(u: &mut United) -> bool {
    let is_v4 = u.skb.head().first().is_some_and(|b| b >> 4 == 4);
    let fits = if is_v4 { restore_v4(u) } else { restore_v6(u) };
    let skb = &mut u.skb;
    // What a device said was about pieces.
    skb.csum = Csum::None;
    skb.flags = if u.ecn == ecn::CE { SkbFlags::ECN_MARKED } else { SkbFlags::EMPTY };
    (skb.gso_size, skb.gso_segs, skb.gso_type, skb.hash) = (0, 0, GsoType::None, 0);
    fits
}

fn restore_v4(u: &mut United) -> bool {
    let Ok(total) = u16::try_from(u.header_len as u32 + u.payload_len) else { return false };
    let Some(h) = u.skb.head_mut().get_mut(..u.header_len) else { return false };
    h[2..4].copy_from_slice(&total.to_be_bytes());
    h[ipv4::field::FRAG..ipv4::field::FRAG + 2].fill(0);
    h[ipv4::field::TOS] |= u.ecn;
    ipv4::fill_checksum(h);
    true
}

fn restore_v6(u: &mut United) -> bool {
    let Some(frag_at) = u.header_len.checked_sub(FRAG_HEADER_LEN) else { return false };
    let Ok(len) = u16::try_from((frag_at - ipv6::HEADER_LEN) as u32 + u.payload_len) else { return false };
    let Some(h) = u.skb.head_mut().get_mut(..u.header_len) else { return false };
    let next = h[frag_at];
    let field = next_header_field(h, frag_at);
    h[field] = next;
    h[ipv6::field::PAYLOAD_LEN..ipv6::field::PAYLOAD_LEN + 2].copy_from_slice(&len.to_be_bytes());
    // The traffic class lies across two bytes; its last two bits are in the upper half of the second.
    h[1] |= u.ecn << 4;
    h.copy_within(..frag_at, FRAG_HEADER_LEN);
    u.skb.pull_head(FRAG_HEADER_LEN)
}

/// Where the next-header byte stands that announces the header at `at`.
fn next_header_field(h: &[u8], at: usize) -> usize {
    let (mut field, mut pos) = (ipv6::field::NEXT_HEADER, ipv6::HEADER_LEN);
    // The walk has bounded the chain; every step moves forward.
    while pos < at {
        field = pos;
        pos += 8 + usize::from(h.get(pos + 1).copied().unwrap_or(0)) * 8;
    }
    field
}
