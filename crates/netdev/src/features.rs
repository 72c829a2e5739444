//! What a device can do, as data.
//!
//! The stack reads [`Features`] and does the rest itself: it cuts super-packets for a device without TSO, sums for one
//! without checksum offload, copies for one that can not take fragments. A feature is a promise, tested as equality
//! with the software function of the same name.

/// Offloads and limits of a device queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Fills in L4 checksums from `Csum::Partial`.
    pub tx_csum: bool,
    /// Cuts TCP over IPv4.
    pub tso4: bool,
    /// Cuts TCP over IPv6.
    pub tso6: bool,
    /// Cuts UDP (`UDP_SEGMENT`).
    pub uso: bool,
    /// Verifies L4 checksums and says so (`Csum::Unnecessary`).
    pub rx_csum: bool,
    /// Merges received wire frames (rx-gro-hw).
    pub gro_hw: bool,
    /// Takes fragments besides the linear head.
    pub sg: bool,
    /// Passes page references to the far end instead of copying bytes.
    pub by_ref: bool,
    /// Largest IP packet of one wire frame, bytes.
    pub mtu: u32,
    /// Largest IP super-packet handed over uncut, bytes; at least the MTU.
    pub gso_max_size: u32,
    /// Most wire frames that one super-packet may stand for.
    pub gso_max_segs: u32,
    /// Most fragments in one skb.
    pub max_frags: u32,
    /// Bytes of the link header that every frame begins with, both ways: 0 on a pure-IP device, 14 on Ethernet. Not counted in
    /// `mtu` and `gso_max_size`.
    pub hard_header_len: u8,
}

impl Features {
    /// A device that can do nothing by itself.
    pub const fn plain(mtu: u32) -> Self {
        Self {
            tx_csum: false,
            tso4: false,
            tso6: false,
            uso: false,
            rx_csum: false,
            gro_hw: false,
            sg: true,
            by_ref: false,
            mtu,
            gso_max_size: 65_536,
            gso_max_segs: 65_535,
            max_frags: 17,
            hard_header_len: 0,
        }
    }
    /// TSO for `ip_version` (4 or 6).
    pub const fn tso(&self, ip_version: u8) -> bool {
        match ip_version {
            4 => self.tso4,
            6 => self.tso6,
            _ => false,
        }
    }
}

/// Descriptors per ring, as `ethtool -g` prints them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingParams {
    /// Receive descriptors, a power of two.
    pub rx: u32,
    /// Transmit descriptors, a power of two.
    pub tx: u32,
}

impl Default for RingParams {
    fn default() -> Self {
        Self { rx: 4096, tx: 4096 }
    }
}
