//! What an skb says about itself besides its bytes.
//!
//! [`SkbMeta`] holds the offload contract (segment size and count, what was summed), where the headers start, and what
//! steers the packet (hash, queue, mark, completion token). The fields are plain and public, as in `struct sk_buff`:
//! whoever changes bytes keeps them true. Together with the handle's own bookkeeping they fill the first two cache lines
//! of the descriptor.
//!
//! Limits: offsets are relative to the start of the *head buffer* (not of the data in it), so they stay true while headers
//! are pushed and pulled; only `pull_to_head` may move the head, and it moves the offsets with it.

use linerate_base::Instant;

/// What kind of super-packet `gso_size` describes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum GsoType {
    /// One wire frame.
    #[default]
    None,
    /// TCP over IPv4, to be cut every `gso_size` payload bytes.
    TcpV4,
    /// TCP over IPv6, to be cut every `gso_size` payload bytes.
    TcpV6,
    /// UDP datagrams of `gso_size` bytes each, the last maybe shorter (USO).
    UdpL4,
}

/// What is known, or still to be done, about the transport checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Csum {
    /// Nothing is known: the receiver must verify.
    #[default]
    None,
    /// Verified, by a device that says so or by us.
    Unnecessary,
    /// On transmit: sum from head-buffer offset `start` to the end and store at `start + offset`; the field already holds
    /// the pseudo header's sum.
    Partial {
        /// Offset of the first summed byte from the start of the head buffer, bytes.
        start: u16,
        /// Offset of the checksum field from `start`, bytes.
        offset: u16,
    },
    /// The device summed the whole packet from the network header on; the partial sum is given.
    Complete(u32),
}

/// Facts about an skb, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SkbFlags(pub u32);

impl SkbFlags {
    /// No flag.
    pub const EMPTY: Self = Self(0);
    /// At least one wire frame carried the ECN CE mark.
    pub const ECN_MARKED: Self = Self(1 << 0);
    /// Merged by software GRO.
    pub const GRO: Self = Self(1 << 1);
    /// Merged by the device (LRO or HW-GRO).
    pub const HW_GRO: Self = Self(1 << 2);
    /// `hash` covers the transport ports.
    pub const L4_HASH: Self = Self(1 << 3);
    /// Carries retransmitted data.
    pub const RETRANS: Self = Self(1 << 4);
    /// Some pages belong to an application until completion.
    pub const ZEROCOPY: Self = Self(1 << 5);
    /// The last byte ends a push (PSH was set on the last wire frame).
    pub const PSH: Self = Self(1 << 6);
    /// The payload was not carried by the wire (header-only modes): the pages hold no meaningful bytes.
    pub const ELIDED: Self = Self(1 << 7);
    /// A super-packet whose wire frames all carry the same IPv4 identification (else it counts up).
    pub const FIXED_ID: Self = Self(1 << 8);
    /// The first flag that is free for a device's or the stack's own use.
    pub const FIRST_PRIVATE: Self = Self(1 << 16);

    /// Are all flags of `f` set?
    #[inline]
    pub const fn contains(self, f: Self) -> bool {
        self.0 & f.0 == f.0
    }
    /// Sets all flags of `f`.
    #[inline]
    pub const fn insert(&mut self, f: Self) {
        self.0 |= f.0;
    }
    /// Clears all flags of `f`.
    #[inline]
    pub const fn remove(&mut self, f: Self) {
        self.0 &= !f.0;
    }
    /// Both sets together.
    #[inline]
    pub const fn union(self, f: Self) -> Self {
        Self(self.0 | f.0)
    }
}

impl core::ops::BitOr for SkbFlags {
    type Output = Self;
    fn bitor(self, f: Self) -> Self {
        self.union(f)
    }
}

/// Whom to tell when the device is done with an skb (a socket's id, for TCP small queues); 0 is nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TxDoneToken(pub u64);

impl TxDoneToken {
    /// Nobody.
    pub const NONE: Self = Self(0);
    /// Is nobody to be told?
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The facts that travel with an skb. Reached through `Deref` of [`Skb`](crate::Skb).
#[derive(Clone, Debug, Default)]
pub struct SkbMeta {
    /// When the skb was received, or the earliest time it may leave (EDT).
    pub tstamp: Instant,
    /// Whom to tell on transmit completion.
    pub tx_done: TxDoneToken,
    /// Payload bytes per wire frame; 0 = not a super-packet.
    pub gso_size: u32,
    /// Wire frames that this skb stands for (0 and 1 both mean one).
    pub gso_segs: u32,
    /// Partial checksum of all fragment bytes (not the head), when somebody has already summed them. Every operation that
    /// changes the fragments' bytes and cannot keep it clears it.
    pub payload_sum: Option<u32>,
    /// Transport checksum.
    pub csum: Csum,
    /// Flow hash, 0 = not computed.
    pub hash: u32,
    /// Interface that it came from or goes to.
    pub ifindex: u32,
    /// Memory charged for this skb, bytes (SYSTEMS A21: allocated, not used).
    pub truesize: u32,
    /// Facts, one bit each.
    pub flags: SkbFlags,
    /// The owner's mark (`SO_MARK`), 0 = none.
    pub mark: u32,
    /// Queue that it came from or goes to.
    pub queue: u16,
    /// Where the IP header starts, bytes from the start of the head buffer.
    pub network_header: u16,
    /// Where the transport header starts, bytes from the start of the head buffer.
    pub transport_header: u16,
    /// 4, 6, or 0 when unknown.
    pub ip_version: u8,
    /// How to cut it.
    pub gso_type: GsoType,
}

impl SkbMeta {
    /// Wire frames that this skb stands for, at least 1.
    #[inline]
    pub const fn wire_pkts(&self) -> u32 {
        if self.gso_segs == 0 { 1 } else { self.gso_segs }
    }
    /// Is it a super-packet?
    #[inline]
    pub const fn is_gso(&self) -> bool {
        self.gso_size != 0
    }
}
