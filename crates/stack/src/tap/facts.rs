//! What a filter may ask about a packet, read leniently from its first bytes.
//!
//! The parsers of [`linerate_wire`] accept what a host may accept; a capture also has to name what was refused. So this one
//! judges nothing: it says what the bytes claim, as far as they are there, and what is missing is `None`. It walks IPv6
//! extension headers (at most `MAX_EXT` of them), knows that a later fragment has a protocol but no ports, and looks at
//! no checksum and no length field.
//!
//! Invariants: no input makes it panic, loop or allocate. Not read: VLAN tags, tunnels, addresses inside ICMP errors.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_wire::ethernet::{self, ethertype};
use linerate_wire::ip::proto;
use linerate_wire::pcapng::LinkType;

/// IPv6 extension headers that are stepped over.
const MAX_EXT: usize = 16;
/// IPv6 authentication header (RFC 4302), whose length counts differently.
const AUTH: u8 = 51;

/// What a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Net {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// ARP.
    Arp,
    /// Anything else.
    Other,
}

/// What a packet claims to be.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The network protocol.
    pub net: Net,
    /// Source and destination; sender and target of ARP.
    pub ends: Option<(IpAddr, IpAddr)>,
    /// The transport protocol, also of a fragment.
    pub proto: Option<u8>,
    /// From the network header on.
    pub net_bytes: &'a [u8],
    /// From the transport header on; `None` in later fragments.
    pub l4: Option<&'a [u8]>,
    /// Bytes of the whole packet, link header included.
    pub len: u32,
}

impl<'a> Facts<'a> {
    /// Reads the beginning `head` of a packet of `len` bytes.
    pub fn of(head: &'a [u8], len: u32, link: LinkType) -> Self {
        let (net, net_bytes) = match link {
            LinkType::Ethernet => {
                let net = match be16(head, ethernet::HEADER_LEN - 2) {
                    Some(ethertype::IPV4) => Net::V4,
                    Some(ethertype::IPV6) => Net::V6,
                    Some(ethertype::ARP) => Net::Arp,
                    _ => Net::Other,
                };
                (net, head.get(ethernet::HEADER_LEN..).unwrap_or_default())
            }
            LinkType::Raw => match head.first().map(|b| b >> 4) {
                Some(4) => (Net::V4, head),
                Some(6) => (Net::V6, head),
                _ => (Net::Other, head),
            },
        };
        let (proto, l4) = match net {
            Net::V4 => ipv4(net_bytes),
            Net::V6 => ipv6(net_bytes),
            Net::Arp | Net::Other => (None, None),
        };
        Self { net, ends: ends(net, net_bytes), proto, net_bytes, l4, len }
    }

    /// Source and destination port of TCP and UDP.
    pub fn ports(&self) -> Option<(u16, u16)> {
        let l4 = self.l4.filter(|_| matches!(self.proto, Some(proto::TCP | proto::UDP)))?;
        Some((be16(l4, 0)?, be16(l4, 2)?))
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

fn v4(bytes: &[u8], at: usize) -> Option<IpAddr> {
    bytes.get(at..)?.first_chunk::<4>().map(|b| Ipv4Addr::from(*b).into())
}

fn v6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    bytes.get(at..)?.first_chunk::<16>().map(|b| Ipv6Addr::from(*b).into())
}

fn ends(net: Net, b: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match net {
        Net::V4 => Some((v4(b, 12)?, v4(b, 16)?)),
        Net::V6 => Some((v6(b, 8)?, v6(b, 24)?)),
        // IPv4 over hardware addresses of six bytes.
        Net::Arp if b.get(2..6) == Some(&[8, 0, 6, 4]) => Some((v4(b, 14)?, v4(b, 24)?)),
        Net::Arp | Net::Other => None,
    }
}

fn ipv4(b: &[u8]) -> (Option<u8>, Option<&[u8]>) {
    let protocol = b.get(9).copied();
    let header_len = b.first().map_or(0, |b| usize::from(b & 15) * 4);
    let is_first = be16(b, 6).is_some_and(|f| f & 0x1fff == 0);
    let l4 = if is_first && header_len >= 20 { b.get(header_len..) } else { None };
    (protocol, l4)
}

fn ipv6(b: &[u8]) -> (Option<u8>, Option<&[u8]>) {
    let Some(mut next) = b.get(6).copied() else { return (None, None) };
    let mut at = 40;
    for _ in 0..MAX_EXT {
        let len = match (next, b.get(at + 1)) {
            (proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS, Some(&n)) => usize::from(n) * 8 + 8,
            (AUTH, Some(&n)) => usize::from(n) * 4 + 8,
            (proto::FRAGMENT, Some(_)) => 8,
            (proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS | AUTH | proto::FRAGMENT, None) => return (None, None),
            _ => return (Some(next), b.get(at..)),
        };
        let is_later = next == proto::FRAGMENT && be16(b, at + 2).is_none_or(|f| f >> 3 != 0);
        let Some(&after) = b.get(at) else { return (None, None) };
        if is_later {
            return (Some(after), None);
        }
        next = after;
        at += len;
    }
    (None, None)
}
