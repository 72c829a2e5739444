//! The TCP header (RFC 9293 section 3.1): flags, the byte view and the valid representation.
//!
//! [`TcpView`] reads any field of any bytes and judges nothing: it can log garbage. [`TcpRepr`] is a header that can be
//! sent: its length is always a multiple of 4 and at most 60 bytes, and its options are laid out in the order that Linux
//! uses. [`TcpRepr::parse`] accepts what Linux accepts: only an impossible data offset is an error, bad options never are.
//! Reserved bits are ignored on receipt and zero when sent, as RFC 9293 asks. Checksums are not verified here: they need
//! the payload, which may live in fragments (see `checksum`). SACK blocks and options are described in [`options`].

use core::fmt;
use core::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Not, Sub};

use linerate_base::{DropReason, Seq};

use crate::bytes::{be16, be32, byte, put};

pub mod options;

pub use options::{FastOpenCookie, OptionBytes, OptionIter, SackBlocks, TcpOption, TcpOptions, Timestamps, emit_list};

/// Length of a header without options, in bytes.
pub const HEADER_LEN_MIN: usize = 20;
/// Length of the longest header, in bytes.
pub const HEADER_LEN_MAX: usize = 60;
/// Most bytes of options that a header carries.
pub const OPTIONS_LEN_MAX: usize = HEADER_LEN_MAX - HEADER_LEN_MIN;

/// Byte offsets of the fields, for code that patches a built header in place (segmentation, NAT).
pub mod field {
    /// Source port, 2 bytes.
    pub const SRC_PORT: usize = 0;
    /// Destination port, 2 bytes.
    pub const DST_PORT: usize = 2;
    /// Sequence number, 4 bytes.
    pub const SEQ: usize = 4;
    /// Acknowledgement number, 4 bytes.
    pub const ACK: usize = 8;
    /// Data offset (upper 4 bits), reserved bits and flags, 2 bytes.
    pub const FLAGS: usize = 12;
    /// Window, 2 bytes, not scaled.
    pub const WINDOW: usize = 14;
    /// Checksum, 2 bytes.
    pub const CHECKSUM: usize = 16;
    /// Urgent pointer, 2 bytes.
    pub const URGENT: usize = 18;
    /// First option byte.
    pub const OPTIONS: usize = 20;
}

/// The nine flag bits, in the places that they have in the header's 13th and 14th byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TcpFlags(pub u16);

impl TcpFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(0x001);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x002);
    /// Reset the connection.
    pub const RST: Self = Self(0x004);
    /// Push.
    pub const PSH: Self = Self(0x008);
    /// The acknowledgement number is valid.
    pub const ACK: Self = Self(0x010);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x020);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x040);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x080);
    /// Accurate ECN (RFC 9768), formerly NS.
    pub const AE: Self = Self(0x100);
    /// All nine.
    pub const ALL: Self = Self(0x1ff);

    /// True when every flag of `other` is set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// True when at least one flag of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// True when no flag is set.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Union, usable in constants.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for TcpFlags {
    type Output = Self;
    #[inline]
    fn bitor(self, o: Self) -> Self {
        Self(self.0 | o.0)
    }
}
impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, o: Self) {
        self.0 |= o.0;
    }
}
impl BitAnd for TcpFlags {
    type Output = Self;
    #[inline]
    fn bitand(self, o: Self) -> Self {
        Self(self.0 & o.0)
    }
}
impl BitAndAssign for TcpFlags {
    #[inline]
    fn bitand_assign(&mut self, o: Self) {
        self.0 &= o.0;
    }
}
/// The flags of the nine that are not set.
impl Not for TcpFlags {
    type Output = Self;
    #[inline]
    fn not(self) -> Self {
        Self(!self.0 & Self::ALL.0)
    }
}
/// `self` without the flags of the right side.
impl Sub for TcpFlags {
    type Output = Self;
    #[inline]
    fn sub(self, o: Self) -> Self {
        Self(self.0 & !o.0)
    }
}

/// The letters of packetdrill and tcpdump: `F S R P U E W A` and a dot for ACK, for example `SEW.`; `-` when empty.
impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LETTERS: [(TcpFlags, &str); 9] = [
            (TcpFlags::FIN, "F"),
            (TcpFlags::SYN, "S"),
            (TcpFlags::RST, "R"),
            (TcpFlags::PSH, "P"),
            (TcpFlags::URG, "U"),
            (TcpFlags::ECE, "E"),
            (TcpFlags::CWR, "W"),
            (TcpFlags::AE, "A"),
            (TcpFlags::ACK, "."),
        ];
        if !self.intersects(Self::ALL) {
            return f.write_str("-");
        }
        for (flag, letter) in LETTERS {
            if self.contains(flag) {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}
impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why bytes are not a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TcpParseError {
    /// Fewer bytes than the header needs.
    Truncated,
    /// The data offset is below 5 words.
    DataOffset,
}

impl TcpParseError {
    /// The reason that the packet's drop is counted under.
    pub const fn drop_reason(self) -> DropReason {
        match self {
            Self::Truncated => DropReason::PktTooSmall,
            Self::DataOffset => DropReason::TcpHdr,
        }
    }
}

impl fmt::Display for TcpParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "fewer bytes than the TCP header needs",
            Self::DataOffset => "TCP data offset below 5",
        })
    }
}
impl core::error::Error for TcpParseError {}

/// A TCP header as bytes: at least 20 of them, nothing else is promised.
#[derive(Clone, Copy, Debug)]
pub struct TcpView<'a>(&'a [u8]);

impl<'a> TcpView<'a> {
    /// A view of `bytes`, which begin with the header and may run on into the payload.
    ///
    /// # Errors
    /// [`TcpParseError::Truncated`] below 20 bytes; the data offset is not judged.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, TcpParseError> {
        if bytes.len() < HEADER_LEN_MIN { Err(TcpParseError::Truncated) } else { Ok(Self(bytes)) }
    }
    /// Source port.
    pub fn src_port(&self) -> u16 {
        be16(self.0, field::SRC_PORT)
    }
    /// Destination port.
    pub fn dst_port(&self) -> u16 {
        be16(self.0, field::DST_PORT)
    }
    /// Sequence number.
    pub fn seq(&self) -> Seq {
        Seq(be32(self.0, field::SEQ))
    }
    /// Acknowledgement number, whether ACK is set or not.
    pub fn ack(&self) -> Seq {
        Seq(be32(self.0, field::ACK))
    }
    /// Header length in bytes as the data offset says it: 0 to 60.
    pub fn header_len(&self) -> usize {
        usize::from(byte(self.0, field::FLAGS) >> 4) * 4
    }
    /// The nine flags.
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(be16(self.0, field::FLAGS)) & TcpFlags::ALL
    }
    /// The three reserved bits, 0 to 7.
    pub fn reserved(&self) -> u8 {
        (byte(self.0, field::FLAGS) >> 1) & 7
    }
    /// Window, not scaled.
    pub fn window(&self) -> u16 {
        be16(self.0, field::WINDOW)
    }
    /// Checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.0, field::CHECKSUM)
    }
    /// Urgent pointer.
    pub fn urgent(&self) -> u16 {
        be16(self.0, field::URGENT)
    }
    /// The option bytes, as far as they are there; empty when the data offset is impossible.
    pub fn options(&self) -> &'a [u8] {
        let end = self.header_len().min(self.0.len());
        self.0.get(field::OPTIONS..end).unwrap_or(&[])
    }
    /// What follows the header; empty when the data offset is impossible.
    pub fn payload(&self) -> &'a [u8] {
        if self.header_len() < HEADER_LEN_MIN {
            return &[];
        }
        self.0.get(self.header_len()..).unwrap_or(&[])
    }
}

/// A valid TCP header, without its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpRepr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first byte (or of the SYN).
    pub seq: Seq,
    /// Acknowledgement number; meaningful with ACK.
    pub ack: Seq,
    /// Flags.
    pub flags: TcpFlags,
    /// Window as on the wire, not scaled.
    pub window: u16,
    /// Urgent pointer; meaningful with URG.
    pub urgent: u16,
    /// Options.
    pub opts: TcpOptions,
}

impl TcpRepr {
    /// Reads a header from the front of `bytes` and returns it with its length in bytes (20 to 60, a multiple of 4).
    ///
    /// # Errors
    /// Only a header that is cut short or whose data offset is below 5. Options never fail a segment: unknown ones are
    /// skipped, and a malformed length ends their reading, as in Linux.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), TcpParseError> {
        let Some(h) = bytes.first_chunk::<HEADER_LEN_MIN>() else {
            return Err(TcpParseError::Truncated);
        };
        let len = usize::from(h[12] >> 4) * 4;
        if len < HEADER_LEN_MIN {
            return Err(TcpParseError::DataOffset);
        }
        let Some(opts) = bytes.get(HEADER_LEN_MIN..len) else {
            return Err(TcpParseError::Truncated);
        };
        let flags = TcpFlags(u16::from_be_bytes([h[12], h[13]])) & TcpFlags::ALL;
        let repr = Self {
            src_port: u16::from_be_bytes([h[0], h[1]]),
            dst_port: u16::from_be_bytes([h[2], h[3]]),
            seq: Seq(u32::from_be_bytes([h[4], h[5], h[6], h[7]])),
            ack: Seq(u32::from_be_bytes([h[8], h[9], h[10], h[11]])),
            flags,
            window: u16::from_be_bytes([h[14], h[15]]),
            urgent: u16::from_be_bytes([h[18], h[19]]),
            opts: TcpOptions::parse(opts, flags.contains(TcpFlags::SYN)),
        };
        Ok((repr, len))
    }

    /// Length of the header in bytes: 20 to 60, a multiple of 4.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN_MIN + self.opts.emit_len()
    }

    /// Writes the header into the first [`Self::header_len`] bytes of `buf`, with a checksum field of zero. A shorter
    /// buffer is a bug of the caller (debug assertion).
    pub fn emit(&self, buf: &mut [u8]) {
        let len = self.header_len();
        self.emit_fixed(buf, len);
        match buf.get_mut(HEADER_LEN_MIN..len) {
            Some(opts) => self.opts.emit(opts),
            None => debug_assert!(false, "TCP header of {len} bytes does not fit"),
        }
    }

    /// Writes the header with `opts` in the place of its own options: they are written one after the other as they are
    /// given, and end-of-list bytes fill up to a multiple of 4. Returns the header's length; `None` when the options are
    /// longer than 40 bytes or `buf` is too short. For tests and script runners that need an exact order.
    pub fn emit_with_options(&self, opts: &[TcpOption], buf: &mut [u8]) -> Option<usize> {
        let room = buf.len().min(HEADER_LEN_MAX);
        let used = emit_list(opts, buf.get_mut(HEADER_LEN_MIN..room)?)?;
        let len = HEADER_LEN_MIN + used.next_multiple_of(4);
        buf.get_mut(HEADER_LEN_MIN + used..len)?.fill(0);
        self.emit_fixed(buf, len);
        Some(len)
    }

    fn emit_fixed(&self, buf: &mut [u8], len: usize) {
        let mut h = [0u8; HEADER_LEN_MIN];
        h[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        h[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        h[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        h[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        let off_flags = ((len / 4) as u16) << 12 | (self.flags & TcpFlags::ALL).0;
        h[12..14].copy_from_slice(&off_flags.to_be_bytes());
        h[14..16].copy_from_slice(&self.window.to_be_bytes());
        h[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        put(buf, 0, &h);
    }

    /// Sequence space that the segment takes: payload bytes, plus one each for SYN and FIN (RFC 9293 SEG.LEN).
    #[inline]
    pub const fn segment_len(&self, payload_len: u32) -> u32 {
        payload_len
            .wrapping_add(self.flags.contains(TcpFlags::SYN) as u32)
            .wrapping_add(self.flags.contains(TcpFlags::FIN) as u32)
    }

    /// The sequence number after the segment.
    #[inline]
    pub fn end_seq(&self, payload_len: u32) -> Seq {
        self.seq + self.segment_len(payload_len)
    }
}

#[cfg(test)]
mod tests;
