//! What a tap took, on its way to whoever reads it.
//!
//! A [`CaptureBuf`] is filled by the shard and swapped for an empty one by its reader ([`Shard::swap_tap`]), between two
//! turns: so neither ever waits for the other, and bytes are copied once. Both vectors get their room when the buffer is
//! made and never grow: what does not fit is counted as lost by the tap, as a kernel's packet socket does.
//!
//! [`Shard::swap_tap`]: crate::Shard::swap_tap

use alloc::vec::Vec;
use core::panic::Location;

use linerate_base::{DropReason, Instant};
use linerate_netdev::IfIndex;
use linerate_wire::pcapng::LinkType;

use super::Point;

/// Room for bytes per record, when the number of records is bounded.
const BYTES_PER_RECORD: usize = 64;

/// Why and where a packet died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropNote {
    /// Why.
    pub reason: DropReason,
    /// Where in our code.
    pub place: &'static Location<'static>,
}

/// One packet that a tap took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When: the time of the turn.
    pub at: Instant,
    /// The device.
    pub ifindex: IfIndex,
    /// The device's queue.
    pub queue: u16,
    /// Where in the stack.
    pub point: Point,
    /// What the bytes begin with.
    pub link: LinkType,
    /// Of a drop.
    pub dropped: Option<DropNote>,
    /// Bytes of the whole packet; of a super-packet all of its payload behind one header.
    pub orig_len: u32,
    /// Wire frames that it stands for.
    pub wire_pkts: u32,
    /// Payload bytes per wire frame of a super-packet, else 0.
    pub gso_size: u32,
    /// Bytes taken.
    pub cap_len: u32,
    /// Where they begin in the buffer.
    start: usize,
}

/// Records and their bytes.
#[derive(Debug, Default)]
pub struct CaptureBuf {
    records: Vec<Record>,
    bytes: Vec<u8>,
    max_records: usize,
    max_bytes: usize,
}

impl CaptureBuf {
    /// Room for `bytes` bytes of packets, and for as many records as those can be.
    pub fn new(bytes: usize) -> Self {
        let max_records = (bytes / BYTES_PER_RECORD).max(1);
        Self {
            records: Vec::with_capacity(max_records),
            bytes: Vec::with_capacity(bytes),
            max_records,
            max_bytes: bytes,
        }
    }
    /// Records, oldest first, each with its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&Record, &[u8])> {
        self.records.iter().map(|r| (r, self.bytes_of(r)))
    }
    fn bytes_of(&self, r: &Record) -> &[u8] {
        self.bytes.get(r.start..r.start + r.cap_len as usize).unwrap_or_default()
    }
    /// Record number `n`, with its bytes.
    pub fn get(&self, n: usize) -> Option<(&Record, &[u8])> {
        self.records.get(n).map(|r| (r, self.bytes_of(r)))
    }
    /// Records held.
    pub fn len(&self) -> usize {
        self.records.len()
    }
    /// Is nothing held?
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
    /// Is half of the room used? Then its reader should come sooner.
    pub fn is_half_full(&self) -> bool {
        self.bytes.len() > self.max_bytes / 2 || self.records.len() > self.max_records / 2
    }
    /// Bytes of packets held.
    pub fn bytes_held(&self) -> usize {
        self.bytes.len()
    }
    /// Forgets everything and keeps the room.
    pub fn clear(&mut self) {
        self.records.clear();
        self.bytes.clear();
    }

    /// Takes a record and the first `record.cap_len` bytes of `pieces`. False when there is no room.
    pub(super) fn push<'a>(&mut self, mut record: Record, pieces: impl Iterator<Item = &'a [u8]>) -> bool {
        let start = self.bytes.len();
        let mut left = record.cap_len as usize;
        if self.records.len() >= self.max_records || left > self.max_bytes - start.min(self.max_bytes) {
            return false;
        }
        for piece in pieces {
            let n = left.min(piece.len());
            self.bytes.extend_from_slice(piece.get(..n).unwrap_or_default());
            left -= n;
            if left == 0 {
                break;
            }
        }
        record.start = start;
        // Fewer bytes than the skb said: then so many were taken.
        record.cap_len -= left as u32;
        self.records.push(record);
        true
    }
}

impl Record {
    /// A record without bytes yet.
    pub(super) fn new(at: Instant, ifindex: IfIndex, queue: u16, point: Point, link: LinkType) -> Self {
        Self {
            at,
            ifindex,
            queue,
            point,
            link,
            dropped: None,
            orig_len: 0,
            wire_pkts: 1,
            gso_size: 0,
            cap_len: 0,
            start: 0,
        }
    }
}
