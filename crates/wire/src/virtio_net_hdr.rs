//! The virtio-net header, version 1 (12 bytes, little endian): what TUN with `IFF_VNET_HDR`, packet sockets with
//! `PACKET_VNET_HDR` and virtio rings put before a packet.
//!
//! It says whether the transport checksum is still to be filled in (a partial sum stands in the field), whether it was
//! verified, and how a super-packet is to be cut. `hdr_len` is a hint and never trusted. Offsets count from the
//! first byte behind this header. A guest or a kernel chose these numbers: [`VirtioNetHdr::parse`] refuses types that
//! it does not know, and [`VirtioNetHdr::fits`] says whether offsets and sizes lie within the packet. The 10-byte legacy form
//! lacks `num_buffers`; set the header size to 12 on the device. Numbers are from the OASIS virtio 1.2 text, section 5.1.6.

/// Length of the header in bytes.
pub const LEN: usize = 12;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const F_RSC_INFO: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// How a super-packet is to be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum VirtioGso {
    /// Not a super-packet.
    #[default]
    None = 0,
    /// TCP over IPv4.
    TcpV4 = 1,
    /// UDP by IP fragments (obsolete).
    Udp = 3,
    /// TCP over IPv6.
    TcpV6 = 4,
    /// UDP into datagrams (USO).
    UdpL4 = 5,
}

/// Where the checksum of a packet with a partial sum is to be computed from and stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialCsum {
    /// First byte to be summed (the transport header), from the start of the packet.
    pub start: u16,
    /// Offset of the 2-byte field from `start`: 16 in TCP, 6 in UDP.
    pub offset: u16,
}

/// Why bytes are not a header that we understand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VirtioParseError {
    /// Fewer than 12 bytes.
    Truncated,
    /// A GSO type that is not known.
    GsoType(u8),
    /// A super-packet with a segment size of 0.
    GsoSize,
}

/// A valid header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VirtioNetHdr {
    /// The checksum is partial and is to be completed.
    pub csum: Option<PartialCsum>,
    /// The device verified the checksum.
    pub data_valid: bool,
    /// `csum_start` and `csum_offset` hold counts of coalesced segments instead (not used here, kept for the log).
    pub rsc_info: bool,
    /// How to cut.
    pub gso: VirtioGso,
    /// The first segment carries CWR (TCP only).
    pub ecn: bool,
    /// Length of all headers in bytes; a hint.
    pub hdr_len: u16,
    /// Payload of each segment in bytes; above 0 for super-packets.
    pub gso_size: u16,
    /// Receive buffers that the packet was spread over.
    pub num_buffers: u16,
}

fn le16(b: &[u8; LEN], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

impl VirtioNetHdr {
    /// Reads the first 12 bytes.
    ///
    /// # Errors
    /// See [`VirtioParseError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, VirtioParseError> {
        let h = bytes.first_chunk::<LEN>().ok_or(VirtioParseError::Truncated)?;
        let gso = match h[1] & !GSO_ECN {
            0 => VirtioGso::None,
            1 => VirtioGso::TcpV4,
            3 => VirtioGso::Udp,
            4 => VirtioGso::TcpV6,
            5 => VirtioGso::UdpL4,
            t => return Err(VirtioParseError::GsoType(t)),
        };
        let gso_size = le16(h, 4);
        if gso != VirtioGso::None && gso_size == 0 {
            return Err(VirtioParseError::GsoSize);
        }
        let csum = PartialCsum { start: le16(h, 6), offset: le16(h, 8) };
        Ok(Self {
            csum: (h[0] & F_NEEDS_CSUM != 0).then_some(csum),
            data_valid: h[0] & F_DATA_VALID != 0,
            rsc_info: h[0] & F_RSC_INFO != 0,
            gso,
            ecn: h[1] & GSO_ECN != 0,
            hdr_len: le16(h, 2),
            gso_size,
            num_buffers: le16(h, 10),
        })
    }

    /// The 12 bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut h = [0u8; LEN];
        let bit = |on: bool, f: u8| if on { f } else { 0 };
        h[0] = bit(self.csum.is_some(), F_NEEDS_CSUM) | bit(self.data_valid, F_DATA_VALID);
        h[0] |= bit(self.rsc_info, F_RSC_INFO);
        h[1] = self.gso as u8 | bit(self.ecn, GSO_ECN);
        h[2..4].copy_from_slice(&self.hdr_len.to_le_bytes());
        h[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        if let Some(c) = self.csum {
            h[6..8].copy_from_slice(&c.start.to_le_bytes());
            h[8..10].copy_from_slice(&c.offset.to_le_bytes());
        }
        h[10..12].copy_from_slice(&self.num_buffers.to_le_bytes());
        h
    }

    /// True when the checksum field lies within a packet of `pkt_len` bytes and `ecn` stands beside TCP only.
    pub fn fits(&self, pkt_len: u32) -> bool {
        let csum = self.csum.is_none_or(|c| u32::from(c.start) + u32::from(c.offset) + 2 <= pkt_len);
        csum && (!self.ecn || matches!(self.gso, VirtioGso::TcpV4 | VirtioGso::TcpV6))
    }
}
