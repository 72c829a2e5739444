//! The IPv4 header (RFC 791): the byte view.
//!
//! The valid form is [`crate::ip::IpRepr`], shared by both families. The view reads every field, options included, and
//! judges nothing. A total length of 0 is how Linux marks a BIG TCP super-packet (SYSTEMS A12); whether that is legal
//! depends on where the bytes came from, so [`crate::ip`] decides. Fragments are recognised here and put together by the stack.
//! Options are skipped: record-route and source routes have no effect.

use core::net::Ipv4Addr;

use crate::bytes::{array, be16, byte};
use crate::checksum;
use crate::ip::IpParseError;

/// Length of a header without options, in bytes.
pub const HEADER_LEN: usize = 20;
/// The don't-fragment bit in the word of the fragment offset.
pub const DF: u16 = 0x4000;
/// The more-fragments bit in the word of the fragment offset.
pub const MF: u16 = 0x2000;

/// Byte offsets of the fields, for code that patches a built header in place.
pub mod field {
    /// Type of service, 1 byte.
    pub const TOS: usize = 1;
    /// Total length, 2 bytes.
    pub const TOTAL_LEN: usize = 2;
    /// Identification, 2 bytes.
    pub const IDENT: usize = 4;
    /// Flags and fragment offset, 2 bytes.
    pub const FRAG: usize = 6;
    /// Time to live, 1 byte.
    pub const TTL: usize = 8;
    /// Protocol, 1 byte.
    pub const PROTO: usize = 9;
    /// Header checksum, 2 bytes.
    pub const CHECKSUM: usize = 10;
    /// Source address, 4 bytes.
    pub const SRC: usize = 12;
    /// Destination address, 4 bytes.
    pub const DST: usize = 16;
}

/// An IPv4 header as bytes: at least 20 of them, nothing else is promised.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4View<'a>(&'a [u8]);

impl<'a> Ipv4View<'a> {
    /// A view of `bytes`, which begin with the header and may run on.
    ///
    /// # Errors
    /// [`IpParseError::Truncated`] below 20 bytes.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, IpParseError> {
        if bytes.len() < HEADER_LEN { Err(IpParseError::Truncated) } else { Ok(Self(bytes)) }
    }
    /// Version nibble.
    pub fn version(&self) -> u8 {
        byte(self.0, 0) >> 4
    }
    /// Header length in bytes as the header says it: 0 to 60.
    pub fn header_len(&self) -> usize {
        usize::from(byte(self.0, 0) & 0xf) * 4
    }
    /// DSCP and ECN.
    pub fn tos(&self) -> u8 {
        byte(self.0, field::TOS)
    }
    /// Total length in bytes.
    pub fn total_len(&self) -> u16 {
        be16(self.0, field::TOTAL_LEN)
    }
    /// Identification.
    pub fn ident(&self) -> u16 {
        be16(self.0, field::IDENT)
    }
    /// Don't-fragment bit.
    pub fn dont_frag(&self) -> bool {
        be16(self.0, field::FRAG) & DF != 0
    }
    /// More-fragments bit.
    pub fn more_frags(&self) -> bool {
        be16(self.0, field::FRAG) & MF != 0
    }
    /// Offset of this fragment in bytes.
    pub fn frag_offset(&self) -> u32 {
        u32::from(be16(self.0, field::FRAG) & 0x1fff) * 8
    }
    /// True when the bytes are a piece of a packet.
    pub fn is_fragment(&self) -> bool {
        be16(self.0, field::FRAG) & (MF | 0x1fff) != 0
    }
    /// Time to live.
    pub fn ttl(&self) -> u8 {
        byte(self.0, field::TTL)
    }
    /// Protocol.
    pub fn proto(&self) -> u8 {
        byte(self.0, field::PROTO)
    }
    /// Header checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.0, field::CHECKSUM)
    }
    /// Source address.
    pub fn src(&self) -> Ipv4Addr {
        array::<4>(self.0, field::SRC).into()
    }
    /// Destination address.
    pub fn dst(&self) -> Ipv4Addr {
        array::<4>(self.0, field::DST).into()
    }
    /// Option bytes, as far as they are there.
    pub fn options(&self) -> &'a [u8] {
        self.0.get(HEADER_LEN..self.header_len().min(self.0.len())).unwrap_or(&[])
    }
    /// What follows the header, as far as it is there; empty when the header length is impossible.
    pub fn payload(&self) -> &'a [u8] {
        if self.header_len() < HEADER_LEN { &[] } else { self.0.get(self.header_len()..).unwrap_or(&[]) }
    }
    /// True when the header is whole and its checksum is right.
    pub fn is_checksum_valid(&self) -> bool {
        let len = self.header_len();
        len >= HEADER_LEN && self.0.get(..len).is_some_and(|h| checksum::is_valid(checksum::sum(h)))
    }
}

/// Writes the right checksum into a header whose other bytes are final; does nothing to bytes that are not a whole header.
pub fn fill_checksum(header: &mut [u8]) {
    let len = usize::from(byte(header, 0) & 0xf) * 4;
    let Some(h) = header.get_mut(..len).filter(|h| h.len() >= HEADER_LEN) else { return };
    h[field::CHECKSUM..field::CHECKSUM + 2].fill(0);
    let c = checksum::finish(checksum::sum(h));
    h[field::CHECKSUM..field::CHECKSUM + 2].copy_from_slice(&c.to_be_bytes());
}
