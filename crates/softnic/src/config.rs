//! What a software NIC is set to, and the [`Features`] that follow from it.
//!
//! The fields mirror the command line (`--cut`, `--dma`, `--tso`, `--csum`, `--gro`). A wire is cut when either of its
//! ends asks for it or has faults. TSO and HW-GRO
//! without checksum offload do not exist, here as in the kernel. A super-packet
//! must fit the ring as frames, so the ring bounds `gso_max_segs`. Nothing is validated twice: [`NicConfig::features`] is
//! the only place where settings become promises.

use linerate_arch::Kernels;
use linerate_netdev::{FaultPlan, Features};

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET_HEADER_LEN: usize = 14;

/// How payload crosses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dma {
    /// Page references cross and are held until the last holder lets go.
    #[default]
    Ref,
    /// The receiving NIC copies into pages of the receive queue.
    Copy,
}

/// Who computes and verifies transport checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CsumOffload {
    /// The NIC.
    #[default]
    Hw,
    /// The stack.
    Sw,
}

/// Settings of one NIC.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Largest IP packet of a wire frame, bytes.
    pub mtu: u32,
    /// Frames begin with an Ethernet header; both ends must agree.
    pub ethernet: bool,
    /// Build every wire frame.
    pub cut: bool,
    /// How payload arrives here.
    pub dma: Dma,
    /// Cut TCP in the device.
    pub tso: bool,
    /// Cut UDP in the device.
    pub uso: bool,
    /// Who sums.
    pub csum: CsumOffload,
    /// Merge received frames in the device (rx-gro-hw); there is nothing to merge on an uncut wire.
    pub gro_hw: bool,
    /// Slots of each direction's ring, a power of two, at least 256.
    pub ring_slots: usize,
    /// Queue pairs.
    pub queues: u16,
    /// Largest super-packet taken, bytes.
    pub gso_max_size: u32,
    /// Merged packets stay below this, bytes.
    pub gro_max_size: u32,
    /// Most fragments of an skb, both ways.
    pub max_frags: u32,
    /// Whoever serves this NIC polls it and never sleeps unless all work is its own thread's: no bell is rung for it, and
    /// nobody pays for the question whether it sleeps.
    pub polled: bool,
    /// Copy and checksum.
    pub kernels: Kernels,
    /// What happens to frames that this NIC sends, and the seed of it.
    pub fault: Option<(FaultPlan, u64)>,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            ethernet: false,
            cut: false,
            dma: Dma::Ref,
            tso: true,
            uso: true,
            csum: CsumOffload::Hw,
            gro_hw: true,
            ring_slots: 4096,
            queues: 1,
            gso_max_size: 65_536,
            gro_max_size: 65_536,
            max_frags: 17,
            polled: false,
            kernels: Kernels::portable(),
            fault: None,
        }
    }
}

impl NicConfig {
    /// Slots of a ring, brought to a legal value.
    pub(crate) fn slots(&self) -> usize {
        self.ring_slots.clamp(256, 1 << 20).next_power_of_two()
    }

    /// What a queue of this NIC promises. `by_ref` says here how payload *arrives*; what a transmit queue promises depends on
    /// the far side, and [`pair`](crate::pair) sets it so.
    pub fn features(&self) -> Features {
        let csum = self.csum == CsumOffload::Hw;
        Features {
            tx_csum: csum,
            tso4: self.tso && csum,
            tso6: self.tso && csum,
            uso: self.uso && csum,
            rx_csum: csum,
            gro_hw: self.gro_hw && csum,
            sg: true,
            by_ref: self.dma == Dma::Ref,
            mtu: self.mtu,
            gso_max_size: self.gso_max_size.max(self.mtu),
            // Cut, a frame may take two slots for a long header, and fragments may need more: half is always enough.
            gso_max_segs: (self.slots() / 4).min(65_535) as u32,
            max_frags: self.max_frags.clamp(1, 128),
            hard_header_len: if self.ethernet { ETHERNET_HEADER_LEN as u8 } else { 0 },
        }
    }
}
