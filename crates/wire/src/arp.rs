//! ARP for IPv4 over Ethernet (RFC 826, address conflict detection of RFC 5227).
//!
//! [`ArpRepr`] is a request or a reply with hardware addresses of 6 bytes and protocol addresses of 4; everything else
//! that the format could carry (other hardware, other protocols, reverse ARP) is refused as unsupported, as Linux does.
//! What follows the 28 bytes is the padding of short frames and is not looked at. Whether a message is believed is for the
//! neighbour table: here are only bytes.

use core::fmt;
use core::net::Ipv4Addr;

use linerate_base::DropReason;

use crate::bytes::{array, be16, byte, put};
use crate::ethernet::{MacAddr, ethertype};

/// Length of a message in bytes.
pub const LEN: usize = 28;
/// Hardware type of Ethernet.
const HW_ETHERNET: u16 = 1;
/// Hardware type of IEEE 802 networks, which RFC 1042 has treated alike.
const HW_IEEE802: u16 = 6;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpOp {
    /// Who has the target address?
    Request,
    /// The sender has its address.
    Reply,
}

/// Why bytes are not an ARP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpParseError {
    /// Fewer than 28 bytes.
    Truncated,
    /// Other hardware, another protocol or another operation.
    Unsupported,
}

impl ArpParseError {
    /// The reason that the frame's drop is counted under.
    pub const fn drop_reason(self) -> DropReason {
        match self {
            Self::Truncated => DropReason::PktTooSmall,
            Self::Unsupported => DropReason::UnhandledProto,
        }
    }
}
impl fmt::Display for ArpParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.drop_reason().describe())
    }
}
impl core::error::Error for ArpParseError {}

/// A message as bytes: at least 28 of them.
#[derive(Clone, Copy, Debug)]
pub struct ArpView<'a>(&'a [u8]);

impl<'a> ArpView<'a> {
    /// A view of `bytes`, which may run on.
    ///
    /// # Errors
    /// [`ArpParseError::Truncated`] below 28 bytes.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, ArpParseError> {
        if bytes.len() < LEN { Err(ArpParseError::Truncated) } else { Ok(Self(bytes)) }
    }
    /// Hardware type; 1 is Ethernet.
    pub fn hw_type(&self) -> u16 {
        be16(self.0, 0)
    }
    /// Protocol type, an ethertype.
    pub fn proto_type(&self) -> u16 {
        be16(self.0, 2)
    }
    /// Length of a hardware address in bytes.
    pub fn hw_len(&self) -> u8 {
        byte(self.0, 4)
    }
    /// Length of a protocol address in bytes.
    pub fn proto_len(&self) -> u8 {
        byte(self.0, 5)
    }
    /// Operation number: 1 request, 2 reply.
    pub fn op(&self) -> u16 {
        be16(self.0, 6)
    }
    /// Sender's hardware address, if addresses are of 6 and 4 bytes.
    pub fn sender_mac(&self) -> MacAddr {
        MacAddr(array(self.0, 8))
    }
    /// Sender's IP address, under the same condition.
    pub fn sender_ip(&self) -> Ipv4Addr {
        array::<4>(self.0, 14).into()
    }
    /// Target's hardware address, under the same condition.
    pub fn target_mac(&self) -> MacAddr {
        MacAddr(array(self.0, 18))
    }
    /// Target's IP address, under the same condition.
    pub fn target_ip(&self) -> Ipv4Addr {
        array::<4>(self.0, 24).into()
    }
}

/// A valid message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArpRepr {
    /// Request or reply.
    pub op: ArpOp,
    /// Who speaks.
    pub sender_mac: MacAddr,
    /// The address that it speaks for; unspecified in a probe (RFC 5227 section 1.1).
    pub sender_ip: Ipv4Addr,
    /// In a request of no meaning.
    pub target_mac: MacAddr,
    /// The address that is asked for, or answered to.
    pub target_ip: Ipv4Addr,
}

impl ArpRepr {
    /// Reads a message.
    ///
    /// # Errors
    /// See [`ArpParseError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ArpParseError> {
        let v = ArpView::new_checked(bytes)?;
        let known = matches!(v.hw_type(), HW_ETHERNET | HW_IEEE802)
            && (v.proto_type(), v.hw_len(), v.proto_len()) == (ethertype::IPV4, 6, 4);
        let op = match v.op() {
            1 if known => ArpOp::Request,
            2 if known => ArpOp::Reply,
            _ => return Err(ArpParseError::Unsupported),
        };
        Ok(Self {
            op,
            sender_mac: v.sender_mac(),
            sender_ip: v.sender_ip(),
            target_mac: v.target_mac(),
            target_ip: v.target_ip(),
        })
    }

    /// Announces a binding rather than asks: sender and target are the same address. A reply must also name the same
    /// hardware twice.
    pub fn is_gratuitous(&self) -> bool {
        self.sender_ip == self.target_ip && (self.op == ArpOp::Request || self.sender_mac == self.target_mac)
    }

    /// Writes the message into the first [`LEN`] bytes of `buf`.
    pub fn emit(&self, buf: &mut [u8]) {
        let mut b = [0u8; LEN];
        b[..8].copy_from_slice(&[0, HW_ETHERNET as u8, 8, 0, 6, 4, 0, if self.op == ArpOp::Request { 1 } else { 2 }]);
        b[8..14].copy_from_slice(&self.sender_mac.0);
        b[14..18].copy_from_slice(&self.sender_ip.octets());
        b[18..24].copy_from_slice(&self.target_mac.0);
        b[24..28].copy_from_slice(&self.target_ip.octets());
        put(buf, 0, &b);
    }
}
