//! The two queue traits and what a caller lends them (DESIGN section 3).
//!
//! ```text
//!   RxQueue::poll_rx  -> up to `budget` skbs; returned == budget means: poll me again
//!   TxQueue::xmit     <- a batch; takes from the front, the rest stays in the qdisc
//!   TxQueue::kick     <- one doorbell for everything taken since the last
//!   TxQueue::poll_tx  -> completions: bytes by socket, so that TCP small queues can go on
//! ```
//! An skb on a pure-IP device starts at its IP header, on an Ethernet device (`Features::hard_header_len` 14) at the link
//! header, both ways. What `poll_rx` delivers has its headers in the linear head
//! (the first `min(len, 128)` bytes at least up to the end of the L4 header) and the payload in fragments.
//! Memory comes in as an argument; a queue keeps no pool of the stack.

use alloc::vec::Vec;

use linerate_base::{DropCounters, Instant};
use linerate_skb::{PagePool, Skb, SkbBatch, SkbCache, TxDoneToken};

use crate::frames::{FrameSink, FrameSource};

/// Number of a device within its stack; 0 is none, 1 the loopback.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct IfIndex(pub u32);

/// What a queue may use during a call.
pub struct QueueCx<'a> {
    /// The time of this turn.
    pub now: Instant,
    /// Pages of this queue.
    pub pool: &'a mut PagePool,
    /// Descriptors of the shard.
    pub skbs: &'a mut SkbCache,
    /// Drops by reason.
    pub drops: &'a mut DropCounters,
}

/// What a receive queue may use: its own page pool for the bytes that arrive.
pub type RxCx<'a> = QueueCx<'a>;
/// What a transmit queue may use: the pool takes home the pages of transmitted skbs.
pub type TxCx<'a> = QueueCx<'a>;

/// The receiving half of a queue pair.
pub trait RxQueue {
    /// Appends up to `budget` skbs to `out` and returns how many; `budget` means that there may be more.
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize;
    /// As [`poll_rx`](Self::poll_rx), with up to `budget` frames going to `sink`, which adds to `out` what becomes of them;
    /// returns how many frames. `None`: this queue, as it is set, hands out skbs only, and nothing happened.
    fn poll_frames(
        &mut self,
        _cx: &mut RxCx<'_>,
        _budget: usize,
        _sink: &mut dyn FrameSink,
        _out: &mut SkbBatch,
    ) -> Option<usize> {
        None
    }
    /// Offers the small packets at the front of the ring where they lie, in order, to `take`, at most `budget` of them, until
    /// one is refused or another kind of frame comes: those are for [`Self::poll_rx`]. Returns how many were taken, and
    /// whether `poll_rx` has something to look at. Only packets whose checksum is known to be good are offered.
    fn poll_small(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8; SMALL_BYTES], SmallPacket) -> bool,
    ) -> (usize, bool) {
        let _ = (budget, take);
        (0, true)
    }
    /// Asks for a wake-up on the next frame. `true`: work arrived meanwhile, poll again instead of sleeping.
    fn irq_enable(&mut self) -> bool;
    /// No wake-ups from now on: the caller polls.
    fn irq_disable(&mut self);
    /// May [`Self::next_deadline`] ever have something to say? Asked once, before the first poll.
    fn keeps_time(&self) -> bool {
        true
    }
    /// When this queue wants to be polled although nothing arrives (a simulated wire, an aggregation timer).
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    /// Counters of this half.
    fn qstats(&self) -> crate::Qstats;
}

/// Bytes of the largest packet that [`TxQueue::xmit_small`] lends room for: headers of TCP over IPv4 with timestamps and 68
/// bytes of payload.
pub const SMALL_BYTES: usize = 120;

/// What is to be known about a packet that was made in the device's own room: one word, which passes in a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SmallPacket(u64);

impl SmallPacket {
    /// A packet of `len` bytes whose transport header, `transport_header` bytes behind the IP header's start, leaves its
    /// checksum to the device: the field holds the pseudo header's sum, as with `Csum::Partial`.
    #[inline]
    pub const fn new(len: u8, transport_header: u8, payload_len: u8, hash: u32) -> Self {
        Self((hash as u64) << 32 | (payload_len as u64) << 16 | (transport_header as u64) << 8 | len as u64)
    }
    /// Bytes of IP packet.
    #[inline]
    pub const fn len(self) -> u8 {
        self.0 as u8
    }
    /// Is there no packet?
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// Where the transport header starts.
    #[inline]
    pub const fn transport_header(self) -> u8 {
        (self.0 >> 8) as u8
    }
    /// Bytes of payload.
    #[inline]
    pub const fn payload_len(self) -> u8 {
        (self.0 >> 16) as u8
    }
    /// Flow hash.
    #[inline]
    pub const fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The transmitting half of a queue pair.
pub trait TxQueue {
    /// Takes skbs from the front of `batch` and returns how many; what it can not take now stays.
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize;
    /// Takes the frames that `skb` was cut into, at most `segs` and whole with their checksums, behind everything taken
    /// before; the completion is that of `skb`, which stays the caller's. False: none was taken, and they have to come as
    /// skbs.
    fn xmit_frames(&mut self, _cx: &mut TxCx<'_>, _skb: &Skb, _segs: usize, _frames: &mut dyn FrameSource) -> bool {
        false
    }
    /// Rings the doorbell for everything taken since the last time.
    fn kick(&mut self, cx: &mut TxCx<'_>);
    /// Sends one small packet without a descriptor: lends room of the ring itself, which `make` fills, and rings the doorbell.
    /// The packet counts as completed at once and is not reported. `None` from `make` sends nothing. Returns whether the
    /// packet was sent; a device that does not know how, or can not now, never calls `make`.
    fn xmit_small(&mut self, make: &mut dyn FnMut(&mut [u8; SMALL_BYTES]) -> Option<SmallPacket>) -> bool {
        let _ = make;
        false
    }
    /// Reports what was transmitted since the last time and returns the number of skbs.
    fn poll_tx(&mut self, cx: &mut TxCx<'_>, done: &mut TxDone) -> usize;
    /// It took nothing for want of room and will wake the stack when there is some: until then asking again is idle.
    /// `false`, also while it takes nothing, is always right, at the price of being asked in every turn.
    fn is_stopped(&self) -> bool {
        false
    }
    /// What this queue can do.
    fn features(&self) -> &crate::Features;
    /// Counters of this half.
    fn qstats(&self) -> crate::Qstats;
}

/// Completed transmissions, summed by socket.
#[derive(Debug, Default)]
pub struct TxDone {
    rows: Vec<(TxDoneToken, u32)>,
    skbs: usize,
}

impl TxDone {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }
    /// Notes that an skb of `bytes` truesize, sent for `token`, left the device.
    pub fn push(&mut self, token: TxDoneToken, bytes: u32) {
        self.skbs += 1;
        if token == TxDoneToken::default() {
            return;
        }
        match self.rows.last_mut() {
            // Completions come in runs of one socket: summing them here saves the stack a lookup per skb.
            Some((last, sum)) if *last == token => *sum = sum.saturating_add(bytes),
            _ => self.rows.push((token, bytes)),
        }
    }
    /// Skbs completed since the last [`Self::drain`].
    pub fn skbs(&self) -> usize {
        self.skbs
    }
    /// Takes all rows: socket token and bytes.
    pub fn drain(&mut self) -> impl Iterator<Item = (TxDoneToken, u32)> + '_ {
        self.skbs = 0;
        self.rows.drain(..)
    }
}
