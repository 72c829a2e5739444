//! Ethernet II frames with up to one 802.1Q tag.
//!
//! The view reads addresses, ethertype and tag of any frame of at least 14 bytes; the repr writes 14 or 18 bytes. A second tag
//! (802.1ad) shows as the ethertype of what follows and is not looked into. There is no FCS: devices strip and add it.
//! Frames shorter than 60 bytes are padded by devices, so the payload may be longer than the packet in it: IP lengths decide.

use crate::bytes::{array, be16, byte, put};

/// Length of an untagged header in bytes.
pub const HEADER_LEN: usize = 14;
/// Length of one VLAN tag in bytes.
pub const VLAN_TAG_LEN: usize = 4;

/// Ethertypes.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// 802.1ad service tag.
    pub const QINQ: u16 = 0x88a8;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
}

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All ones.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// Group bit: multicast or broadcast.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
    /// An address that one station can have: neither a group nor all zeros.
    pub const fn is_unicast(self) -> bool {
        !self.is_multicast() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
    /// Where packets to a group go on the link (RFC 1112 section 6.4, RFC 2464 section 7); the broadcast for 255.255.255.255.
    pub fn of_group(group: core::net::IpAddr) -> Self {
        match group {
            core::net::IpAddr::V4(a) if a.is_broadcast() => Self::BROADCAST,
            core::net::IpAddr::V4(a) => {
                let [_, b, c, d] = a.octets();
                Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            core::net::IpAddr::V6(a) => {
                let o = a.octets();
                Self([0x33, 0x33, o[12], o[13], o[14], o[15]])
            }
        }
    }
}

impl core::fmt::Display for MacAddr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}
impl core::fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

/// The frame is shorter than its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetTruncated;

/// A frame as bytes: at least 14 of them.
#[derive(Clone, Copy, Debug)]
pub struct EthernetView<'a>(&'a [u8]);

impl<'a> EthernetView<'a> {
    /// A view of a frame.
    ///
    /// # Errors
    /// [`EthernetTruncated`] below 14 bytes.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, EthernetTruncated> {
        if bytes.len() < HEADER_LEN { Err(EthernetTruncated) } else { Ok(Self(bytes)) }
    }
    /// Destination.
    pub fn dst(&self) -> MacAddr {
        MacAddr(array(self.0, 0))
    }
    /// Source.
    pub fn src(&self) -> MacAddr {
        MacAddr(array(self.0, 6))
    }
    /// The type field behind the addresses; 0x8100 in tagged frames.
    pub fn outer_type(&self) -> u16 {
        be16(self.0, 12)
    }
    /// Tag control information (priority 3 bits, DEI, VLAN id 12 bits) of a tagged frame.
    pub fn vlan_tci(&self) -> Option<u16> {
        (self.outer_type() == ethertype::VLAN && self.0.len() >= HEADER_LEN + VLAN_TAG_LEN).then(|| be16(self.0, 14))
    }
}

/// A valid header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetRepr {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// What follows; not 0x8100.
    pub ethertype: u16,
    /// Tag control information of an 802.1Q tag.
    pub vlan_tci: Option<u16>,
}

impl EthernetRepr {
    /// Reads the header and returns it with its length (14 or 18 bytes).
    ///
    /// # Errors
    /// [`EthernetTruncated`].
    pub fn parse(frame: &[u8]) -> Result<(Self, usize), EthernetTruncated> {
        let v = EthernetView::new_checked(frame)?;
        let vlan_tci = v.vlan_tci();
        let (ethertype, len) = match vlan_tci {
            Some(_) => (be16(frame, 16), HEADER_LEN + VLAN_TAG_LEN),
            None if v.outer_type() == ethertype::VLAN => return Err(EthernetTruncated),
            None => (v.outer_type(), HEADER_LEN),
        };
        Ok((Self { dst: v.dst(), src: v.src(), ethertype, vlan_tci }, len))
    }
    /// Length of the header in bytes: 14 or 18.
    pub const fn header_len(&self) -> usize {
        HEADER_LEN + if self.vlan_tci.is_some() { VLAN_TAG_LEN } else { 0 }
    }
    /// Writes the header into the first [`Self::header_len`] bytes of `buf`.
    pub fn emit(&self, buf: &mut [u8]) {
        put(buf, 0, &self.dst.0);
        put(buf, 6, &self.src.0);
        if let Some(tci) = self.vlan_tci {
            put(buf, 12, &ethertype::VLAN.to_be_bytes());
            put(buf, 14, &tci.to_be_bytes());
        }
        put(buf, self.header_len() - 2, &self.ethertype.to_be_bytes());
    }
}

/// The ethertype for the IP packet that `bytes` begins with.
pub fn ethertype_of_ip(bytes: &[u8]) -> Option<u16> {
    match byte(bytes, 0) >> 4 {
        4 => Some(ethertype::IPV4),
        6 => Some(ethertype::IPV6),
        _ => None,
    }
}
