//! Statistics of one queue pair, under the names of the kernel's `qstats` (SYSTEMS B29).
//!
//! Each counter says what it counts in its name: `wire_pkts` are frames as they cross the wire, `skbs` are what the
//! stack handed over or got. With offloads off the two are equal; their quotient is the aggregation.
//!
//! One table makes the fields, the names and the order of the array, so a counter can not be forgotten in a sum or a
//! report. Counters only grow and belong to one queue; a device adds its queues up with [`Qstats::merge`]. There is no
//! reset: whoever wants a rate takes two snapshots. Not here: drop reasons, which the stack counts.

use core::sync::atomic::{AtomicU64, Ordering};

/// A counter with one writer and readers anywhere: adding is a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. For the one writer.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
    /// The count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! qstats {
    ($( $(#[doc = $doc:literal])+ $name:ident, )+) => {
        /// Counters of one queue pair.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct Qstats { $( $(#[doc = $doc])+ pub $name: u64, )+ }

        /// The same counters, counted by one thread and readable from all: each is exact, some may be newer than others.
        #[derive(Default, Debug)]
        pub struct SharedQstats { $( $(#[doc = $doc])+ pub $name: Counter, )+ }

        impl SharedQstats {
            /// The counts now.
            pub fn get(&self) -> Qstats {
                Qstats { $( $name: self.$name.get(), )+ }
            }
        }

        impl Qstats {
            /// Number of counters.
            pub const LEN: usize = [ $( stringify!($name) ),+ ].len();
            /// All counters, in the order of [`Qstats::iter`].
            pub const fn to_array(&self) -> [u64; Self::LEN] {
                [ $( self.$name ),+ ]
            }
            /// The counters from [`Qstats::to_array`].
            pub const fn from_array(values: [u64; Self::LEN]) -> Self {
                let [ $( $name ),+ ] = values;
                Self { $( $name ),+ }
            }
            /// All counters with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [ $( (stringify!($name), self.$name), )+ ].into_iter()
            }
            /// Adds the counts of `other`.
            pub fn merge(&mut self, other: &Self) {
                $( self.$name += other.$name; )+
            }
        }
    };
}

qstats! {
    /// Skbs handed to the stack.
    rx_skbs,
    /// Frames taken from the wire.
    rx_wire_pkts,
    /// Bytes of those frames, IP header included.
    rx_bytes,
    /// Skbs that hardware GRO merged from two or more frames.
    rx_hw_gro_skbs,
    /// Frames inside those skbs.
    rx_hw_gro_wire_pkts,
    /// Frames whose L4 checksum the device verified.
    rx_csum_unnecessary,
    /// Frames whose L4 checksum the device did not look at.
    rx_csum_none,
    /// Frames whose L4 checksum was wrong.
    rx_csum_bad,
    /// Frames lost because no page or descriptor was free.
    rx_alloc_fail,
    /// Frames lost because the receive ring was full.
    rx_hw_drop_overruns,
    /// Bytes that the device copied into receive pages (`--dma copy`).
    rx_dma_copied_bytes,
    /// Skbs taken from the stack.
    tx_skbs,
    /// Frames put on the wire.
    tx_wire_pkts,
    /// Bytes of those frames, IP header included.
    tx_bytes,
    /// Skbs that the device cut.
    tx_hw_gso_skbs,
    /// Frames made of those skbs.
    tx_hw_gso_wire_pkts,
    /// Frames whose checksum the device filled in.
    tx_csum_partial,
    /// Frames that came with a finished checksum.
    tx_csum_none,
    /// Times the ring was full and the stack had to wait.
    tx_stop,
    /// Doorbells: times the stack told the device to look.
    tx_kicks,
}
