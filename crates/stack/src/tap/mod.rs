//! Capture taps: copies of the packets that pass a point of the stack, for who wants to see them (SYSTEMS B08, E25).
//!
//! ```text
//!   device ──▶ rx ──▶ gro ──▶ rx-gro ──▶ ip, tcp, udp        dropped anywhere ──▶ drop
//!   device ◀── qdisc ◀── tx ◀── ip, tcp, udp
//! ```
//! A tap has points, maybe one device, a [`Filter`] and a snap length. The filter reads a packet where it lies; only what
//! it takes is copied, up to the snap length, into a bounded buffer that its reader swaps for an empty one
//! ([`Shard::swap_tap`]). A full buffer loses packets and counts them; the shard never waits and never writes a file.
//!
//! No tap: the data path asks one flag ([`Links::tapped`](crate::Links)) once per poll and once per super-packet sent. A tap at a
//! point other than `drop` switches off what goes around the points: the short way of small packets and the merging of
//! frames that never became skbs. Drops are seen through [`SkbCache::drop_skb`](linerate_skb::SkbCache::drop_skb), which
//! keeps the packet until the end of the step that dropped it.
//!
//! What `drop` shows is the packet as far as it is still there. Drops that are only counted (a device's own, those of whole
//! queues of fragments) are in [`Mibs::drops`](crate::Mibs) and not here. Limits: [`MAX_TAPS`], [`MAX_DROP_PLACES`].

pub mod buf;
pub mod facts;
pub mod filter;
#[cfg(all(test, not(loom)))]
mod tests;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use linerate_base::Instant;
use linerate_netdev::IfIndex;
use linerate_skb::{Dropped, Skb, SkbFlags};
use linerate_wire::ethernet;
use linerate_wire::pcapng::LinkType;

use crate::core_state::Core;
use crate::remote::ShardWaker;
use crate::shard::Shard;

pub use buf::{CaptureBuf, DropNote, Record};
pub use facts::{Facts, Net};
pub use filter::{Filter, FilterError};

/// Most taps of a shard.
pub const MAX_TAPS: usize = 8;
/// Bytes that a filter may look at; longer chains of headers are cut.
const HEAD_BYTES: usize = 192;
/// Places of drops that are told apart; what comes from further ones is only counted.
pub const MAX_DROP_PLACES: usize = 256;
/// Most bytes that are taken of a packet: what readers of captures accept.
pub const MAX_SNAPLEN: u32 = 262_144;

/// A point of the stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Point {
    /// As the device gave it, before merging.
    Rx,
    /// Received, after merging.
    RxGro,
    /// As the stack gives it to the qdisc: a super-packet uncut, its checksum maybe unfinished.
    Tx,
    /// Dropped.
    Drop,
}

impl Point {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Rx, Self::RxGro, Self::Tx, Self::Drop];

    /// The name that tools print and take.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::RxGro => "rx-gro",
            Self::Tx => "tx",
            Self::Drop => "drop",
        }
    }
    /// The point of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// A set of points.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Points(u8);

impl Points {
    /// None.
    pub const NONE: Self = Self(0);
    /// All.
    pub const ALL: Self = Self(0xf);
    /// Where packets pass: everything but drops.
    const PATH: Self = Self::NONE.with(Point::Rx).with(Point::RxGro).with(Point::Tx);

    /// These and `point`.
    pub const fn with(self, point: Point) -> Self {
        Self(self.0 | 1 << point as u8)
    }
    /// Is `point` one of them?
    pub const fn has(self, point: Point) -> bool {
        self.0 & 1 << point as u8 != 0
    }
    /// Is there none?
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What a tap takes.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Where.
    pub points: Points,
    /// Of this device alone.
    pub ifindex: Option<IfIndex>,
    /// Most bytes of a packet, 1 to [`MAX_SNAPLEN`].
    pub snaplen: u32,
    /// Which packets.
    pub filter: Filter,
    /// Room for packets between two visits of the reader, bytes.
    pub buffer_bytes: usize,
}

impl Default for TapConfig {
    /// All packets in and out and all drops, whole as far as readers take them, 4 MiB.
    fn default() -> Self {
        Self {
            points: Points::NONE.with(Point::Rx).with(Point::Tx).with(Point::Drop),
            ifindex: None,
            snaplen: MAX_SNAPLEN,
            filter: Filter::ALL,
            buffer_bytes: 4 << 20,
        }
    }
}

/// The number of a tap, never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TapId(u64);

/// There are [`MAX_TAPS`] already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyTaps;

impl fmt::Display for TooManyTaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MAX_TAPS} captures run already")
    }
}
impl core::error::Error for TooManyTaps {}

/// What one tap counted at one point of one device, skbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TapStats {
    /// Came by.
    pub seen_skbs: u64,
    /// The filter took them.
    pub matched_skbs: u64,
    /// Of these, lost because the buffer was full.
    pub lost_skbs: u64,
}

/// Those of one point of one device.
pub type PointStats = (IfIndex, Point, TapStats);

struct Tap {
    id: u64,
    cfg: TapConfig,
    buf: CaptureBuf,
    reader: Option<Arc<dyn ShardWaker>>,
    /// By device, then by point.
    stats: Vec<[TapStats; Point::ALL.len()]>,
}

/// How often skbs were dropped in one place for one reason on one device, since drops are watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropPlace {
    /// Why, and where in our code.
    pub note: DropNote,
    /// The device that the packet came from or went to; 0 when it had none yet.
    pub ifindex: IfIndex,
    /// Skbs.
    pub skbs: u64,
    /// Wire frames that they stood for.
    pub wire_pkts: u64,
}

/// All taps of a shard.
#[derive(Default)]
pub(crate) struct Taps {
    taps: Vec<Tap>,
    next_id: u64,
    places: Vec<DropPlace>,
    /// Until when places of drops are watched.
    watch_until: Option<Instant>,
    /// How often watching began.
    watches: u64,
}

/// A packet at a point.
struct Packet<'a> {
    record: Record,
    head: &'a [u8],
    /// Nothing when the payload is not to be shown.
    rest: Option<&'a Skb>,
}

impl<'a> Packet<'a> {
    /// An skb whose head starts where its device's packets do.
    fn of(skb: &'a Skb, mut record: Record) -> Self {
        record.orig_len = skb.len();
        Self::with(skb, skb.head(), true, record)
    }

    fn with(skb: &'a Skb, head: &'a [u8], is_whole: bool, mut record: Record) -> Self {
        record.wire_pkts = skb.wire_pkts();
        record.gso_size = skb.gso_size;
        // Pages that the wire did not fill hold nothing of this packet.
        let shown = is_whole && !skb.flags.contains(SkbFlags::ELIDED);
        Self { record, head, rest: shown.then_some(skb) }
    }

    /// A dropped skb, from its network header on, or from the link header where that is still in front of it.
    fn dropped(d: &'a Dropped, mut record: Record, is_ether: bool) -> Self {
        let skb = &d.skb;
        let known = skb.network_header != 0 || skb.transport_header != 0;
        let network = if known { skb.network_header } else { skb.head_offset() };
        let link_head = match network.checked_sub(ethernet::HEADER_LEN as u16).filter(|_| is_ether) {
            Some(at) => skb.head_from(at),
            None => &[],
        };
        let (head, link_len) = match link_head {
            [] => (skb.head_from(network), 0),
            head => (head, ethernet::HEADER_LEN as u32),
        };
        record.link = if link_len == 0 { LinkType::Raw } else { LinkType::Ethernet };
        record.dropped = Some(DropNote { reason: d.reason, place: d.place });
        let there = (head.len() as u32).saturating_add(skb.data_len());
        let said = ip_len(head.get(link_len as usize..).unwrap_or_default()).map(|n| n.saturating_add(link_len));
        record.orig_len = said.map_or(there, |n| n.max(there));
        // A reader that took the whole head may have gone on to cut the payload at its front: then it does not follow.
        let is_whole = skb.head_len() > 0 || said.is_none_or(|n| n == there);
        Self::with(skb, head, is_whole, record)
    }

    fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        core::iter::once(self.head).chain(self.rest.into_iter().flat_map(Skb::payload_slices))
    }

    fn available(&self) -> u32 {
        (self.head.len() as u32).saturating_add(self.rest.map_or(0, Skb::data_len))
    }
}

/// The length that an IP header says; `None` when it says none (a super-packet) or is not there.
fn ip_len(ip: &[u8]) -> Option<u32> {
    let field = |at: usize| ip.get(at..)?.first_chunk().map(|b| u32::from(u16::from_be_bytes(*b)));
    match ip.first()? >> 4 {
        4 => field(2).filter(|&n| n != 0),
        6 => field(4).filter(|&n| n != 0).map(|n| n + 40),
        _ => None,
    }
}

impl Taps {
    fn points(&self) -> Points {
        Points(self.taps.iter().fold(0, |set, t| set | t.cfg.points.0))
    }

    fn offer(&mut self, packet: &Packet<'_>) {
        let mut gathered = [0; HEAD_BYTES];
        let mut head = packet.head;
        if head.len() < HEAD_BYTES && packet.rest.is_some_and(|skb| skb.data_len() > 0) {
            // Headers may go on in the fragments.
            let mut len = 0;
            for piece in packet.pieces() {
                let room = gathered.get_mut(len..).unwrap_or_default();
                let n = piece.len().min(room.len());
                if let (Some(to), Some(from)) = (room.get_mut(..n), piece.get(..n)) {
                    to.copy_from_slice(from);
                }
                len += n;
            }
            head = gathered.get(..len).unwrap_or_default();
        }
        let facts = Facts::of(head, packet.record.orig_len, packet.record.link);
        for tap in &mut self.taps {
            tap.offer(packet, &facts);
        }
    }

    fn note_place(&mut self, note: DropNote, ifindex: IfIndex, wire_pkts: u32) {
        let known = self.places.iter_mut().find(|p| p.ifindex == ifindex && p.note == note);
        if let Some(place) = known {
            place.skbs += 1;
            place.wire_pkts += u64::from(wire_pkts);
        } else if self.places.len() < MAX_DROP_PLACES {
            self.places.push(DropPlace { note, ifindex, skbs: 1, wire_pkts: u64::from(wire_pkts) });
        }
    }
}

impl Tap {
    fn offer(&mut self, packet: &Packet<'_>, facts: &Facts<'_>) {
        let Record { point, ifindex, .. } = packet.record;
        if !self.cfg.points.has(point) || self.cfg.ifindex.is_some_and(|only| only != ifindex) {
            return;
        }
        let device = ifindex.0 as usize;
        if device >= self.stats.len() {
            self.stats.resize(device + 1, Default::default());
        }
        let Some(stats) = self.stats.get_mut(device).and_then(|d| d.get_mut(point as usize)) else { return };
        stats.seen_skbs += 1;
        if !self.cfg.filter.matches(facts) {
            return;
        }
        stats.matched_skbs += 1;
        let mut record = packet.record;
        record.cap_len = packet.available().min(self.cfg.snaplen);
        let is_first = self.buf.is_empty();
        stats.lost_skbs += u64::from(!self.buf.push(record, packet.pieces()));
        if let Some(reader) = self.reader.as_ref().filter(|_| is_first) {
            reader.wake();
        }
    }
}

/// What the data path calls; each caller has asked [`Links::tapped`](crate::Links) before.
impl Taps {
    /// Packets from the device or from GRO.
    #[cold]
    pub(crate) fn received<'a>(
        &mut self,
        now: Instant,
        (ifindex, queue, point): (IfIndex, u16, Point),
        link: LinkType,
        skbs: impl Iterator<Item = &'a Skb>,
    ) {
        if !self.points().has(point) {
            return;
        }
        for skb in skbs {
            self.offer(&Packet::of(skb, Record::new(now, ifindex, queue, point, link)));
        }
    }

    /// Packets that GRO is done with; each knows its device.
    #[cold]
    pub(crate) fn merged<'a>(&mut self, now: Instant, skbs: impl Iterator<Item = &'a Skb>) {
        if !self.points().has(Point::RxGro) {
            return;
        }
        for skb in skbs {
            let record = Record::new(now, IfIndex(skb.ifindex), skb.queue, Point::RxGro, LinkType::Raw);
            self.offer(&Packet::of(skb, record));
        }
    }

    /// A packet on its way to queue `queue` of a device.
    #[cold]
    pub(crate) fn sent(&mut self, now: Instant, ifindex: IfIndex, queue: u16, link: LinkType, skb: &Skb) {
        if self.points().has(Point::Tx) {
            self.offer(&Packet::of(skb, Record::new(now, ifindex, queue, Point::Tx, link)));
        }
    }
}

impl Core {
    /// Shows the packets that were dropped since the last time to who watches drops, and lets them go.
    #[cold]
    pub(crate) fn show_dropped(&mut self) {
        if self.taps.watch_until.is_some_and(|end| end < self.now) {
            self.end_watch();
        }
        while let Some(d) = self.mem.skbs.take_dropped() {
            let ifindex = IfIndex(d.skb.ifindex);
            let is_ether = self.links.device(ifindex).is_some_and(|dev| dev.ether.is_some());
            let record = Record::new(self.now, ifindex, d.skb.queue, Point::Drop, LinkType::Raw);
            let packet = Packet::dropped(&d, record, is_ether);
            if self.taps.points().has(Point::Drop) {
                self.taps.offer(&packet);
            }
            if self.taps.watch_until.is_some() {
                let note = DropNote { reason: d.reason, place: d.place };
                self.taps.note_place(note, ifindex, packet.record.wire_pkts);
            }
            self.mem.skbs.free(d.skb, &mut self.mem.tx_pool);
        }
        self.retap();
    }

    /// Places of drops are not told apart any more.
    fn end_watch(&mut self) {
        self.taps.watch_until = None;
        self.taps.places.clear();
    }

    /// Switches the points on and off, as the taps want them.
    fn retap(&mut self) {
        let points = self.taps.points();
        self.links.tapped = points.0 & Points::PATH.0 != 0;
        self.mem.skbs.watch_drops(points.has(Point::Drop) || self.taps.watch_until.is_some());
    }
}

/// Captures and the places of drops.
impl Shard {
    /// Begins a capture. It goes on until [`Self::del_tap`]. `reader` is woken when there is something to
    /// [take](Self::swap_tap) and there was nothing before.
    ///
    /// # Errors
    /// [`TooManyTaps`].
    pub fn add_tap(&mut self, mut cfg: TapConfig, reader: Option<Arc<dyn ShardWaker>>) -> Result<TapId, TooManyTaps> {
        let taps = &mut self.core.taps;
        if taps.taps.len() >= MAX_TAPS {
            return Err(TooManyTaps);
        }
        cfg.snaplen = cfg.snaplen.clamp(1, MAX_SNAPLEN);
        taps.next_id += 1;
        let (id, buf) = (taps.next_id, CaptureBuf::new(cfg.buffer_bytes));
        taps.taps.push(Tap { id, cfg, buf, reader, stats: Vec::new() });
        self.core.retap();
        Ok(TapId(id))
    }

    /// Ends a capture; returns what its reader has not taken, and what was counted. `None` for a tap that has ended.
    pub fn del_tap(&mut self, id: TapId) -> Option<(CaptureBuf, Vec<PointStats>)> {
        self.core.show_dropped();
        let at = self.core.taps.taps.iter().position(|t| t.id == id.0)?;
        let stats = self.tap_stats(id).collect();
        let tap = self.core.taps.taps.remove(at);
        self.core.retap();
        Some((tap.buf, stats))
    }

    /// Swaps what a tap has taken for `buf`, which is cleared first. False for a tap that has ended.
    pub fn swap_tap(&mut self, id: TapId, buf: &mut CaptureBuf) -> bool {
        let Some(tap) = self.core.taps.taps.iter_mut().find(|t| t.id == id.0) else { return false };
        buf.clear();
        core::mem::swap(&mut tap.buf, buf);
        true
    }

    /// What a tap has counted, by device and point, where anything came by.
    pub fn tap_stats(&self, id: TapId) -> impl Iterator<Item = PointStats> + '_ {
        let tap = self.core.taps.taps.iter().find(|t| t.id == id.0);
        let devices = (0..).zip(tap.into_iter().flat_map(|t| &t.stats));
        let points = devices.flat_map(|(d, p)| Point::ALL.into_iter().zip(p).map(move |(at, s)| (IfIndex(d), at, *s)));
        points.filter(|(.., stats)| stats.seen_skbs != 0)
    }

    /// Tells the places of drops apart until `until`, and longer if somebody asked for longer; without being asked again it
    /// ends by itself with the first drop after that time, so who watches and dies leaves nothing behind.
    pub fn watch_drops(&mut self, until: Instant) {
        let now = self.core.now;
        let taps = &mut self.core.taps;
        if taps.watch_until.is_none_or(|end| end < now) {
            taps.places.clear();
            taps.watches += 1;
        }
        taps.watch_until = taps.watch_until.max(Some(until));
        self.core.retap();
    }

    /// How often watching began anew: the counts of [`Self::drop_places`] began with the last time.
    pub fn drop_watches(&self) -> u64 {
        self.core.taps.watches
    }

    /// Where skbs were dropped since drops are watched, and why. What is in [`Mibs::drops`](crate::Mibs) beyond these had no
    /// packet at hand, or came in larger bursts than are kept.
    pub fn drop_places(&mut self) -> &[DropPlace] {
        self.core.show_dropped();
        &self.core.taps.places
    }
}
