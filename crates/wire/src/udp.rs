//! UDP (RFC 768): view and valid header.
//!
//! The length field must cover the header and lie within what the IP layer delivered; bytes behind it are ignored. A length
//! of 0 is accepted only where the device marked the packet as GSO and the rest is too long for 16 bits. A checksum
//! field of 0 means "not summed": fine in IPv4, refused in IPv6 (RFC 8200 section 8.1), which [`UdpView::has_checksum`]
//! lets the caller decide. A computed sum of 0 is sent as 0xffff ([`finish`]). Payloads are not touched here.

use linerate_base::DropReason;

use crate::bytes::{be16, put};
use crate::checksum;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum field in bytes.
pub const CHECKSUM_OFFSET: usize = 6;

/// Why bytes are not a UDP datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UdpParseError {
    /// Fewer bytes than the header or its length field needs.
    Truncated,
    /// The length field is below 8.
    Length,
}

impl UdpParseError {
    /// The reason that the packet's drop is counted under.
    pub const fn drop_reason(self) -> DropReason {
        DropReason::PktTooSmall
    }
}

/// A UDP header as bytes: at least 8 of them.
#[derive(Clone, Copy, Debug)]
pub struct UdpView<'a>(&'a [u8]);

impl<'a> UdpView<'a> {
    /// A view of `bytes`, which begin with the header and may run on.
    ///
    /// # Errors
    /// [`UdpParseError::Truncated`] below 8 bytes.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, UdpParseError> {
        if bytes.len() < HEADER_LEN { Err(UdpParseError::Truncated) } else { Ok(Self(bytes)) }
    }
    /// Source port; 0 when no answer is wanted.
    pub fn src_port(&self) -> u16 {
        be16(self.0, 0)
    }
    /// Destination port.
    pub fn dst_port(&self) -> u16 {
        be16(self.0, 2)
    }
    /// Length field: header and payload in bytes.
    pub fn len_field(&self) -> u16 {
        be16(self.0, 4)
    }
    /// Checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.0, CHECKSUM_OFFSET)
    }
    /// True when the sender summed the datagram.
    pub fn has_checksum(&self) -> bool {
        self.checksum() != 0
    }
    /// What follows the header, as far as it is there and the length field covers it.
    pub fn payload(&self) -> &'a [u8] {
        let end = usize::from(self.len_field()).min(self.0.len());
        self.0.get(HEADER_LEN..end).unwrap_or(&[])
    }
}

/// A valid UDP header, without its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpRepr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Payload in bytes; above 65527 only in super-packets that are still to be cut.
    pub payload_len: u32,
}

impl UdpRepr {
    /// Reads the header at the front of `head`; `ip_payload_len` is what the IP header announced, `gso` whether the device
    /// marked a super-packet.
    ///
    /// # Errors
    /// See [`UdpParseError`].
    pub fn parse(head: &[u8], ip_payload_len: u32, gso: bool) -> Result<Self, UdpParseError> {
        let v = UdpView::new_checked(head)?;
        let len = match v.len_field() {
            0 if gso && ip_payload_len > 65535 => ip_payload_len,
            n => u32::from(n),
        };
        if len > ip_payload_len {
            return Err(UdpParseError::Truncated);
        }
        let payload_len = len.checked_sub(HEADER_LEN as u32).ok_or(UdpParseError::Length)?;
        Ok(Self { src_port: v.src_port(), dst_port: v.dst_port(), payload_len })
    }

    /// Writes the 8 bytes of the header, with a checksum field of zero and a length field of 0 when it does not fit.
    pub fn emit(&self, buf: &mut [u8]) {
        let len = u16::try_from(self.payload_len.saturating_add(HEADER_LEN as u32)).unwrap_or(0);
        put(buf, 0, &self.src_port.to_be_bytes());
        put(buf, 2, &self.dst_port.to_be_bytes());
        put(buf, 4, &len.to_be_bytes());
        put(buf, CHECKSUM_OFFSET, &[0, 0]);
    }
}

/// The checksum field for a partial sum over pseudo-header, header and payload: never 0.
pub const fn finish(sum: u32) -> u16 {
    match checksum::finish(sum) {
        0 => 0xffff,
        c => c,
    }
}
