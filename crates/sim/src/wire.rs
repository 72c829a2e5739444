//! One direction of a simulated wire in virtual time: rate, delay, a queue that overflows, and faults.
//!
//! ```text
//!   offer -> path MTU? -> queue (drop tail, CE above a threshold) -> rate -> faults -> delay -> arrived
//! ```
//! A wire carries whole IP frames as bytes: what the sender's pages held is copied here, as a real wire would, so that
//! nothing that happens later at the sender can be seen by the receiver. Every frame has a number, and ends in exactly
//! one [`Fate`]: delivered, or dropped with a reason. [`WireStats::balance`] is that sentence as an equation.
//!
//! Order is kept unless a fault says "overtaken". Randomness comes from the plan's seed, one sequence per wire. Faults
//! can be told to stop at a time, so that a run can ask whether everything recovers. A [`Filter`] sees every frame first
//! and may decide its fate itself: hand-written scenarios lose exactly the frame that they mean.
//!
//! Not modelled: link headers, preambles, collisions; rates count IP bytes.

use std::collections::{BTreeMap, VecDeque};

use linerate_base::{DropReason, Duration, Instant};
use linerate_netdev::{FaultInjector, FaultPlan};
use linerate_wire::ip::{IpVersion, ecn};
use linerate_wire::ipv4;

/// What a wire is like.
#[derive(Clone, Debug, PartialEq)]
pub struct WireConfig {
    /// IP bits per second; 0 = infinitely fast.
    pub rate_bps: u64,
    /// Propagation delay.
    pub delay: Duration,
    /// Bytes that may wait for transmission; the frame that exceeds it is dropped (tail drop).
    pub queue_bytes: u64,
    /// Frames that may wait for transmission.
    pub queue_wire_pkts: usize,
    /// Frames longer than this are refused as a router would, bytes; `None` = the devices' MTU holds all the way.
    pub path_mtu_bytes: Option<u32>,
    /// Frames that find more than this waiting get a CE mark if their sender understands it, bytes.
    pub ce_threshold_bytes: Option<u64>,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// Nothing goes wrong any more from this time on.
    pub faults_until: Instant,
    /// Nothing goes wrong before this time.
    pub faults_from: Instant,
}

impl Default for WireConfig {
    fn default() -> Self {
        Self {
            rate_bps: 0,
            delay: Duration::from_millis(1),
            queue_bytes: u64::MAX,
            queue_wire_pkts: usize::MAX,
            path_mtu_bytes: None,
            ce_threshold_bytes: None,
            faults: FaultPlan::default(),
            faults_until: Instant::FAR_FUTURE,
            faults_from: Instant::ZERO,
        }
    }
}

/// What a filter wants with one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing special: the plan decides.
    Pass,
    /// The frame arrives untouched whatever the plan says.
    Keep,
    /// It is lost.
    Lose,
    /// It arrives later by this and may be overtaken.
    HoldBack(Duration),
    /// It arrives twice.
    Twice,
    /// This bit is flipped, counted from the first byte's highest.
    Flip(u32),
}

/// Decides about frames before the plan does: (time, number of the frame on this wire from 0, bytes).
pub type Filter = Box<dyn FnMut(Instant, u64, &[u8]) -> Verdict + Send>;

/// How a frame ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fate {
    /// Still under way.
    #[default]
    InFlight,
    /// Handed to the receiving stack.
    Delivered,
    /// It died, and why.
    Dropped(DropReason),
}

/// A frame on a wire.
#[derive(Debug)]
pub struct Frame {
    /// Number in the order of the whole link, both directions.
    pub id: u64,
    /// The IP packet.
    pub bytes: Vec<u8>,
    /// When the sender's device put it on the wire.
    pub sent: Instant,
    /// A bit was flipped.
    pub flipped: Option<u32>,
    /// A copy that the wire made.
    pub is_copy: bool,
    /// Held back so that later frames could overtake it.
    pub held_back: bool,
}

/// What happened on a wire, in frames unless the name says bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct WireStats {
    /// Offered by the sender.
    pub offered: u64,
    /// Bytes of those.
    pub offered_bytes: u64,
    /// Made by the wire.
    pub copies: u64,
    /// Taken by the receiving stack.
    pub delivered: u64,
    /// Bytes of those.
    pub delivered_bytes: u64,
    /// Lost by the plan or a filter.
    pub lost: u64,
    /// Dropped at the queue's end.
    pub queue_drops: u64,
    /// Longer than the path allows.
    pub too_big: u64,
    /// Arrived, but the receiving device had no room or memory.
    pub nic_drops: u64,
    /// One bit flipped.
    pub corrupted: u64,
    /// Held back.
    pub held_back: u64,
    /// CE marks set.
    pub ce_marked: u64,
    /// Messages that routers on the path sent back.
    pub icmp_made: u64,
}

impl WireStats {
    /// What came in minus what ended: the frames in flight. Negative would be a frame that ended twice.
    pub fn balance(&self) -> i64 {
        let inn = self.offered + self.copies + self.icmp_made;
        let out = self.delivered + self.lost + self.queue_drops + self.too_big + self.nic_drops;
        inn as i64 - out as i64
    }
}

/// What became of an offered frame.
#[derive(Debug)]
pub struct Offered {
    /// When its last bit left the sender; the time of the offer if it never did.
    pub departs: Instant,
    /// Its fate if that is already known.
    pub dropped: Option<DropReason>,
    /// A bit will arrive flipped.
    pub flipped: Option<u32>,
    /// It was held back.
    pub held_back: bool,
    /// It got a CE mark.
    pub ce: bool,
    /// Number of the copy that the wire made.
    pub copy: Option<u64>,
}

/// One direction.
pub struct Wire {
    cfg: WireConfig,
    injector: FaultInjector,
    filter: Option<Filter>,
    /// When the last bit of the last frame is out.
    busy_until: Instant,
    /// (departure, bytes) of frames that wait or are being sent.
    queue: VecDeque<(Instant, u32)>,
    queued_bytes: u64,
    /// No frame may arrive before this unless it is held back by a fault, or overtakes one that is.
    last_arrival: Instant,
    flight: BTreeMap<(Instant, u64), Frame>,
    stats: WireStats,
    spare: Vec<Vec<u8>>,
}

/// Buffers kept for reuse.
const SPARE_BUFFERS: usize = 1024;

impl Wire {
    /// An idle wire whose faults follow `seed`.
    pub fn new(cfg: WireConfig, seed: u64) -> Self {
        Self {
            injector: FaultInjector::new(cfg.faults.clone(), seed),
            cfg,
            filter: None,
            busy_until: Instant::ZERO,
            queue: VecDeque::new(),
            queued_bytes: 0,
            last_arrival: Instant::ZERO,
            flight: BTreeMap::new(),
            stats: WireStats::default(),
            spare: Vec::new(),
        }
    }
    /// What it is like.
    pub fn config(&self) -> &WireConfig {
        &self.cfg
    }
    /// Changes it from now on; frames under way are not touched.
    pub fn configure(&mut self, change: impl FnOnce(&mut WireConfig)) {
        change(&mut self.cfg);
        self.injector.set_plan(self.cfg.faults.clone());
    }
    /// Lets `filter` see every frame from now on; `None` takes it off.
    pub fn set_filter(&mut self, filter: Option<Filter>) {
        self.filter = filter;
    }
    /// What happened so far.
    pub fn stats(&self) -> &WireStats {
        &self.stats
    }
    /// Frames under way.
    pub fn in_flight(&self) -> usize {
        self.flight.len()
    }
    /// When the next frame arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.flight.first_key_value().map(|(&(at, _), _)| at)
    }
    /// A buffer to build a frame in.
    pub fn buffer(&mut self) -> Vec<u8> {
        let mut b = self.spare.pop().unwrap_or_default();
        b.clear();
        b
    }
    /// Takes back the buffer of a frame that ended.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(buffer);
        }
    }

    /// Takes frame number `id` (its copy, if the plan makes one, gets `copy_id`).
    pub fn offer(&mut self, now: Instant, id: u64, copy_id: u64, mut bytes: Vec<u8>) -> Offered {
        let len = bytes.len() as u32;
        let index = self.stats.offered;
        self.stats.offered += 1;
        self.stats.offered_bytes += u64::from(len);
        let mut end = Offered { departs: now, dropped: None, flipped: None, held_back: false, ce: false, copy: None };
        if self.cfg.path_mtu_bytes.is_some_and(|mtu| len > mtu) {
            self.stats.too_big += 1;
            return self.dropped(end, DropReason::PktTooBig, bytes);
        }
        while self.queue.front().is_some_and(|&(departs, _)| departs <= now) {
            let (_, len) = self.queue.pop_front().unwrap_or_default();
            self.queued_bytes -= u64::from(len);
        }
        let waiting = self.queued_bytes;
        let full = waiting.saturating_add(u64::from(len)) > self.cfg.queue_bytes && waiting > 0;
        if full || self.queue.len() >= self.cfg.queue_wire_pkts {
            self.stats.queue_drops += 1;
            return self.dropped(end, DropReason::WireQueue, bytes);
        }
        if self.cfg.ce_threshold_bytes.is_some_and(|limit| waiting > limit) && mark_ce(&mut bytes) {
            self.stats.ce_marked += 1;
            end.ce = true;
        }
        end.departs = self.busy_until.max(now) + self.serialisation(len);
        if self.cfg.rate_bps > 0 {
            self.busy_until = end.departs;
            self.queue.push_back((end.departs, len));
            self.queued_bytes += u64::from(len);
        }
        self.apply_faults(now, index, id, copy_id, bytes, end)
    }

    fn dropped(&mut self, end: Offered, reason: DropReason, bytes: Vec<u8>) -> Offered {
        self.recycle(bytes);
        Offered { dropped: Some(reason), ..end }
    }

    fn apply_faults(
        &mut self,
        now: Instant,
        index: u64,
        id: u64,
        copy_id: u64,
        mut bytes: Vec<u8>,
        mut end: Offered,
    ) -> Offered {
        let mut verdict = self.filter.as_mut().map_or(Verdict::Pass, |f| f(now, index, &bytes));
        if !(self.cfg.faults_from..self.cfg.faults_until).contains(&now) && verdict == Verdict::Pass {
            verdict = Verdict::Keep;
        }
        // One decision is drawn per frame whatever the filter says, so that a filter does not shift the others' fates.
        let mut fault = self.injector.decide(bytes.len() as u32);
        match verdict {
            Verdict::Pass => {}
            Verdict::Keep => fault = linerate_netdev::Fault::default(),
            Verdict::Lose => fault.lost = true,
            Verdict::HoldBack(delay) => (fault.delay, fault.overtaken, fault.lost) = (delay, true, false),
            Verdict::Twice => (fault.duplicated, fault.lost) = (true, false),
            Verdict::Flip(bit) => (fault.flip_bit, fault.lost) = (Some(bit), false),
        }
        if fault.lost {
            self.stats.lost += 1;
            return self.dropped(end, DropReason::WireLoss, bytes);
        }
        let straight = end.departs + self.cfg.delay;
        let mut arrives = straight + fault.delay;
        if fault.overtaken {
            self.stats.held_back += 1;
            end.held_back = true;
        } else {
            arrives = arrives.max(self.last_arrival);
            self.last_arrival = arrives;
        }
        if fault.duplicated {
            self.stats.copies += 1;
            end.copy = Some(copy_id);
            let twin =
                Frame { id: copy_id, bytes: bytes.clone(), sent: now, flipped: None, is_copy: true, held_back: false };
            self.flight.insert((arrives, copy_id), twin);
        }
        if let Some(bit) = fault.flip_bit
            && let Some(byte) = bytes.get_mut(bit as usize / 8)
        {
            *byte ^= 0x80 >> (bit % 8);
            self.stats.corrupted += 1;
            end.flipped = Some(bit);
        }
        let frame = Frame { id, bytes, sent: now, flipped: end.flipped, is_copy: false, held_back: end.held_back };
        self.flight.insert((arrives, id), frame);
        end
    }

    /// A message that a router on the path sends to the receiver of this wire.
    pub fn inject(&mut self, now: Instant, id: u64, bytes: Vec<u8>) {
        self.stats.icmp_made += 1;
        let at = now + self.cfg.delay;
        let frame = Frame { id, bytes, sent: now, flipped: None, is_copy: false, held_back: false };
        self.flight.insert((at, id), frame);
    }

    /// Time on the wire of `len` bytes.
    pub fn serialisation(&self, len: u32) -> Duration {
        if self.cfg.rate_bps == 0 {
            return Duration::ZERO;
        }
        let ns = u128::from(len) * 8 * 1_000_000_000 / u128::from(self.cfg.rate_bps);
        Duration::from_nanos(ns as u64)
    }

    /// The next frame that has arrived by `now`.
    pub fn take_arrived(&mut self, now: Instant) -> Option<Frame> {
        let entry = self.flight.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
    /// The receiving stack has it.
    pub fn delivered(&mut self, len: usize) {
        self.stats.delivered += 1;
        self.stats.delivered_bytes += len as u64;
    }
    /// The receiving device dropped it.
    pub fn nic_dropped(&mut self) {
        self.stats.nic_drops += 1;
    }
}

/// Sets CE if the frame is ECN-capable and keeps the IPv4 header checksum right. False: not capable, or marked before.
pub fn mark_ce(frame: &mut [u8]) -> bool {
    match IpVersion::of_packet(frame) {
        Some(IpVersion::V4) => {
            let header = usize::from(frame[0] & 15) * 4;
            let Some(head) = frame.get_mut(..header.max(ipv4::HEADER_LEN)) else { return false };
            let tos = &mut head[ipv4::field::TOS];
            if !matches!(*tos & ecn::MASK, ecn::ECT0 | ecn::ECT1) {
                return false;
            }
            *tos |= ecn::CE;
            ipv4::fill_checksum(head);
            true
        }
        Some(IpVersion::V6) => {
            // The traffic class lies across the first two bytes; its two lowest bits are bits 4 and 5 of the second.
            let Some(byte) = frame.get_mut(1) else { return false };
            if !matches!((*byte >> 4) & ecn::MASK, ecn::ECT0 | ecn::ECT1) {
                return false;
            }
            *byte |= ecn::CE << 4;
            true
        }
        None => false,
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
