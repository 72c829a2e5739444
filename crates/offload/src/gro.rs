//! Merging wire frames of a flow into super-packets (SYSTEMS A14, A15): the inverse of [`gso`](crate::gso).
//!
//! Up to eight buckets of eight held skbs, found by flow hash. A frame is merged into the held skb of its flow when
//! cutting the result again would give exactly the frames that came in:
//! same addresses, ports, TTL, TOS, flow label and DF; IPv4 identification counting up from the first frame's, or always
//! the same (DF only); same acknowledgement, window, urgent pointer, option bytes and flags except CWR, FIN and PSH;
//! the next sequence number; a payload no longer than the first frame's; checksums that were verified, by the device or
//! now; pages of the same pool side. All of the header that must be equal is compared at once, word-wise under a mask.
//!
//! A held skb goes up when it can not be longer: after a shorter frame, after FIN, PSH, RST, URG or SYN, before CWR, on
//! anything of its flow that does not fit behind it, or that may be of its flow and does not say so (a fragment), so that order
//! within a flow is kept, at `max_size`, `max_frags` or
//! `max_segs`, when its bucket is full (the oldest), and at the end of the poll batch ([`Gro::flush`]). FIN and PSH are
//! ORed into it. Super-packets from a device merge too when their segment sizes are equal. UDP merges equal
//! lengths (the last may be shorter, at most [`UDP_MAX_SEGS`]), never without a checksum.
//!
//! Nothing is allocated, no payload is touched except to verify it, and each skb given in goes to `out` or into another one.
//! Not merged: extension headers, IPv4 options, fragments, payload in the linear head, tunnels, ESP.

use linerate_base::Instant;
use linerate_skb::{Csum, Frag, GsoType, OwedRefs, SKB_TRUESIZE, Skb, SkbBatch, SkbFlags};
use linerate_wire::ip::proto;
use linerate_wire::{checksum, ipv4};

mod next;

use crate::OffloadCx;
use crate::csum::{self, Verdict};
use crate::gso::MAX_SEGS;
use crate::headers::{Headers, be16, be32, byte, put16};
pub use next::{NEXT_HEAD, PaddedHead};
use next::{Next, pad, sum_frags, sum_pair};

/// Buckets by flow hash.
pub const BUCKETS: usize = 8;
/// Held skbs in a bucket.
pub const BUCKET_SKBS: usize = 8;
/// Most datagrams in one merged UDP skb, as in the kernel.
pub const UDP_MAX_SEGS: u32 = 64;

const FIN: u16 = 0x01;
const SYN: u16 = 0x02;
const RST: u16 = 0x04;
const PSH: u16 = 0x08;
const URG: u16 = 0x20;
const CWR: u16 = 0x80;
/// A frame with one of these ends its super-packet, and does not begin one.
const ENDS: u16 = FIN | SYN | RST | PSH | URG;

/// Limits of one merger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroConfig {
    /// A merged IP packet stays below this, bytes (gro_max_size).
    pub max_size: u32,
    /// Most fragments of a merged skb.
    pub max_frags: usize,
    /// Most wire frames of a merged skb.
    pub max_segs: u32,
    /// Merge UDP too; only for receivers that take `gso_size` into account.
    pub udp: bool,
    /// This is a device: marks merged skbs `HW_GRO` instead of `GRO`.
    pub hw: bool,
}

impl Default for GroConfig {
    fn default() -> Self {
        Self { max_size: 65_536, max_frags: 17, max_segs: MAX_SEGS, udp: false, hw: false }
    }
}

/// The headers that can be merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Tcp4,
    Tcp6,
    Udp4,
    Udp6,
}

/// What one packet says about itself.
#[derive(Clone, Copy)]
struct Facts {
    kind: Kind,
    headers: Headers,
    payload: u32,
    /// Payload of each of its wire frames but the last.
    mss: u32,
    /// Wire frames.
    segs: u32,
    seq: u32,
    flags: u16,
    ident: u16,
    df: bool,
    own_pool: bool,
    hash: u32,
}

/// How the IPv4 identification of a held skb's frames goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IdMode {
    /// Only one frame so far (or IPv6).
    Unknown,
    Counts,
    Fixed,
}

struct Held {
    skb: Skb,
    facts: Facts,
    /// What the next full frame must be.
    next: Option<Next>,
    /// Page counts that merging left over.
    owed: OwedRefs,
    /// FIN and PSH of the frames that were merged in.
    or_flags: u16,
    id_mode: IdMode,
    merged: bool,
}

#[derive(Default)]
struct Bucket {
    /// Oldest first, without gaps.
    held: [Option<Held>; BUCKET_SKBS],
    len: usize,
}

impl Bucket {
    fn remove(&mut self, i: usize) -> Option<Held> {
        let held = self.held.get_mut(i)?.take()?;
        self.len -= 1;
        if let Some(rest) = self.held.get_mut(i..) {
            rest.rotate_left(1);
        }
        Some(held)
    }
}

/// The table of held skbs of one queue.
pub struct Gro {
    cfg: GroConfig,
    buckets: [Bucket; BUCKETS],
    held: usize,
    /// Bucket and place of the held skb that a frame was merged into last, or that was held last.
    fed: Option<(usize, usize)>,
}

impl Gro {
    /// An empty table.
    pub fn new(cfg: GroConfig) -> Self {
        Self { cfg, buckets: Default::default(), held: 0, fed: None }
    }
    /// The limits.
    pub fn config(&self) -> &GroConfig {
        &self.cfg
    }
    /// Changes the limits; held skbs keep what they have.
    pub fn set_config(&mut self, cfg: GroConfig) {
        self.cfg = cfg;
    }
    /// Forgets which flow was fed last: the next packet goes the long way.
    #[cfg(test)]
    pub(crate) fn forget(&mut self) {
        self.fed = None;
    }
    /// Skbs held back now.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes one packet: merges it, holds it, or passes it on to `out` behind what its flow has held.
    #[inline]
    pub fn receive(&mut self, cx: &mut OffloadCx<'_>, mut skb: Skb, out: &mut SkbBatch) {
        if self.merge_next(cx, &mut skb, out) {
            return cx.skbs.free(skb, cx.pool);
        }
        self.receive_any(cx, skb, out);
    }

    fn receive_any(&mut self, cx: &mut OffloadCx<'_>, mut skb: Skb, out: &mut SkbBatch) {
        let Some(facts) = self.facts(cx, &skb) else {
            if self.held > 0 && hides_its_flow(&skb) {
                self.flush(cx, out);
            }
            return out.push(skb);
        };
        let b = facts.hash as usize % BUCKETS;
        let found = self.buckets.get(b).and_then(|bucket| find(bucket, &facts, &skb));
        let holdable = mergeable(cx, &mut skb, &facts);
        if let Some((i, exact)) = found {
            if exact && holdable && self.try_merge(b, i, &facts, &mut skb) {
                cx.skbs.free(skb, cx.pool);
                if self.is_complete(b, i, &facts) {
                    self.complete(b, i, out);
                }
                return;
            }
            self.complete(b, i, out);
        }
        let whole = facts.payload == facts.mss.wrapping_mul(facts.segs);
        if !holdable || !whole || facts.flags & ENDS != 0 {
            return out.push(skb);
        }
        self.hold(b, facts, skb, out);
    }

    /// The held skb that was fed last.
    #[inline]
    fn last_fed(&mut self) -> Option<(usize, usize, &mut Held)> {
        let (b, i) = self.fed?;
        let held = self.buckets.get_mut(b)?.held.get_mut(i)?.as_mut()?;
        Some((b, i, held))
    }

    /// The common case of [`receive`](Self::receive) by a few compares: `skb` is the next full frame of the flow that was
    /// fed last. Its payload is then taken, and the rest of the skb is the caller's to free. False: nothing happened.
    #[inline]
    pub fn merge_next(&mut self, cx: &OffloadCx<'_>, skb: &mut Skb, out: &mut SkbBatch) -> bool {
        let cfg = self.cfg;
        let Some((b, i, held)) = self.last_fed() else { return false };
        let verified = match skb.csum {
            Csum::Unnecessary | Csum::Partial { .. } => true,
            Csum::None => false,
            Csum::Complete(_) => return false,
        };
        let Some(bytes) = pad(skb.head()) else { return false };
        let head = PaddedHead { bytes: &bytes, len: skb.head_len() };
        let own_pool = skb.frags().first().is_none_or(|f| cx.pool.owns(f));
        let known = skb.payload_sum.is_some() && !verified;
        if skb.is_gso() || known || held.skb.nr_frags() > held.skb.max_frags() {
            return false;
        }
        let len = skb.data_len();
        let Some(sum) = held.is_next(&cfg, head, len, own_pool) else { return false };
        if !verified && !checksum::is_valid(sum + sum_frags(skb.frags(), cx.kernels)) {
            return false;
        }
        if !held.skb.append_frags_owing(skb, &mut held.owed) {
            return false;
        }
        let marks = SkbFlags::ECN_MARKED.union(SkbFlags::RETRANS);
        held.skb.flags.insert(SkbFlags(skb.flags.0 & marks.0));
        held.fed(len, skb.truesize.saturating_sub(SKB_TRUESIZE));
        if held.facts.segs >= cfg.max_segs {
            self.complete(b, i, out);
        }
        true
    }

    /// [`merge_next`](Self::merge_next) for a frame that no descriptor was spent on yet: its head, and up to two fragments,
    /// which are taken. `verified`: a device has checked its transport checksum; else that is done now.
    #[inline]
    pub fn merge_next_frame(
        &mut self,
        cx: &OffloadCx<'_>,
        head: PaddedHead<'_>,
        frags: &mut [Option<Frag>; 2],
        verified: bool,
        out: &mut SkbBatch,
    ) -> bool {
        let cfg = self.cfg;
        let Some((b, i, held)) = self.last_fed() else { return false };
        let len_of = |f: &Option<Frag>| f.as_ref().map_or(0, Frag::len);
        let len = len_of(&frags[0]) + len_of(&frags[1]);
        let own_pool = frags[0].as_ref().is_none_or(|f| cx.pool.owns(f));
        // Merging at the seam may need one slot less than this asks for; then the frame goes the long way.
        if held.skb.nr_frags() + 2 > held.skb.max_frags() {
            return false;
        }
        let Some(sum) = held.is_next(&cfg, head, len, own_pool) else { return false };
        if !verified && !checksum::is_valid(sum + sum_pair(frags, cx.kernels)) {
            return false;
        }
        for f in frags.iter_mut().filter_map(Option::take) {
            let pushed = held.skb.push_frag_owing(f, &mut held.owed);
            debug_assert!(pushed.is_ok(), "there was room for two");
        }
        held.fed(len, len);
        if held.facts.segs >= cfg.max_segs {
            self.complete(b, i, out);
        }
        true
    }

    /// All held skbs go to `out`: the end of the poll batch.
    pub fn flush(&mut self, _cx: &mut OffloadCx<'_>, out: &mut SkbBatch) {
        self.flush_older(Instant::FAR_FUTURE, out);
    }

    /// Held skbs whose first frame came at or before `limit` go to `out` (gro_flush_timeout).
    pub fn flush_older(&mut self, limit: Instant, out: &mut SkbBatch) {
        for b in 0..BUCKETS {
            if self.held == 0 {
                return;
            }
            let mut i = 0;
            while let Some(held) = self.buckets.get(b).and_then(|bucket| bucket.held.get(i)?.as_ref()) {
                if held.skb.tstamp <= limit {
                    self.complete(b, i, out);
                } else {
                    i += 1;
                }
            }
        }
    }

    /// What the merger needs to know; `None` for a packet that has no flow here.
    #[inline]
    fn facts(&self, cx: &OffloadCx<'_>, skb: &Skb) -> Option<Facts> {
        let h = Headers::parse(skb).ok()?;
        let kind = match (h.proto, h.version) {
            (proto::TCP, 4) if h.l4 == ipv4::HEADER_LEN => Kind::Tcp4,
            (proto::TCP, 6) if !h.has_ext => Kind::Tcp6,
            (proto::UDP, 4) if self.cfg.udp && h.l4 == ipv4::HEADER_LEN => Kind::Udp4,
            (proto::UDP, 6) if self.cfg.udp && !h.has_ext => Kind::Udp6,
            _ => return None,
        };
        let head = skb.head();
        let tcp = h.proto == proto::TCP;
        let payload = h.l4_len - (h.end - h.l4) as u32;
        let (mss, segs) = if skb.is_gso() { (skb.gso_size, skb.wire_pkts()) } else { (payload, 1) };
        let own_pool = skb.frags().first().is_none_or(|f| cx.pool.owns(f));
        let (ident, df) = if h.version == 4 { (be16(head, 4), byte(head, 6) & 0x40 != 0) } else { (0, false) };
        // Only a hash that its maker calls one of the flow is the same for all of the flow's packets.
        let hash = if skb.flags.contains(SkbFlags::L4_HASH) { skb.hash } else { quick_hash(head, &h) };
        let (seq, flags) = if tcp { (be32(head, h.l4 + 4), be16(head, h.l4 + 12)) } else { (0, 0) };
        Some(Facts { kind, headers: h, payload, mss, segs, seq, flags, ident, df, own_pool, hash })
    }

    /// Appends the payload when all rules allow it; else changes nothing.
    #[inline]
    fn try_merge(&mut self, b: usize, i: usize, f: &Facts, skb: &mut Skb) -> bool {
        let cfg = self.cfg;
        let slot = self.buckets.get_mut(b).and_then(|bucket| bucket.held.get_mut(i));
        let Some(held) = slot.and_then(Option::as_mut) else { return false };
        let p = &mut held.facts;
        let fits = if skb.is_gso() { f.mss == p.mss } else { f.payload <= p.mss };
        let segs = p.segs.saturating_add(f.segs);
        let max_segs = if matches!(p.kind, Kind::Tcp4 | Kind::Tcp6) { cfg.max_segs } else { UDP_MAX_SEGS };
        let small = held.skb.len().saturating_add(f.payload) < cfg.max_size && segs <= max_segs;
        let follows = f.seq == p.seq.wrapping_add(p.payload) || matches!(p.kind, Kind::Udp4 | Kind::Udp6);
        if !fits || !small || !follows || f.flags & CWR != 0 || f.own_pool != p.own_pool {
            return false;
        }
        let Some(id_mode) = next_id_mode(held.id_mode, p, f, skb) else { return false };
        if !held.skb.append_frags(skb) {
            return false;
        }
        held.id_mode = id_mode;
        held.merged = true;
        held.or_flags |= f.flags & (FIN | PSH);
        p.segs = segs;
        p.payload += f.payload;
        held.refresh_next();
        self.fed = Some((b, i));
        held.skb.truesize = held.skb.truesize.saturating_add(skb.truesize.saturating_sub(SKB_TRUESIZE));
        let marks = SkbFlags::ECN_MARKED.union(SkbFlags::RETRANS);
        held.skb.flags.insert(SkbFlags(skb.flags.0 & marks.0));
        true
    }

    /// Nothing can follow the frame that was merged last.
    #[inline]
    fn is_complete(&self, b: usize, i: usize, last: &Facts) -> bool {
        let slot = self.buckets.get(b).and_then(|bucket| bucket.held.get(i)?.as_ref());
        slot.is_some_and(|held| {
            let p = &held.facts;
            let max_segs = if matches!(p.kind, Kind::Tcp4 | Kind::Tcp6) { self.cfg.max_segs } else { UDP_MAX_SEGS };
            p.payload != p.mss.wrapping_mul(p.segs) || last.flags & ENDS != 0 || p.segs >= max_segs
        })
    }

    fn hold(&mut self, b: usize, facts: Facts, mut skb: Skb, out: &mut SkbBatch) {
        skb.set_max_frags(self.cfg.max_frags);
        let id_mode = match (facts.segs, skb.flags.contains(SkbFlags::FIXED_ID)) {
            (1, _) => IdMode::Unknown,
            (_, true) => IdMode::Fixed,
            (_, false) => IdMode::Counts,
        };
        if self.buckets.get(b).is_some_and(|bucket| bucket.len == BUCKET_SKBS) {
            self.complete(b, 0, out);
        }
        let Some(bucket) = self.buckets.get_mut(b) else { return out.push(skb) };
        match bucket.held.get_mut(bucket.len) {
            Some(slot) => {
                debug_assert!(slot.is_none(), "buckets have no gaps");
                let owed = OwedRefs::default();
                *slot = Some(Held {
                    next: Next::after(&skb, &facts),
                    skb,
                    facts,
                    owed,
                    or_flags: 0,
                    id_mode,
                    merged: false,
                });
                self.fed = Some((b, bucket.len));
                bucket.len += 1;
                self.held += 1;
            }
            None => out.push(skb),
        }
    }

    /// Takes a held skb out and makes its header say what it became.
    fn complete(&mut self, b: usize, i: usize, out: &mut SkbBatch) {
        let Some(held) = self.buckets.get_mut(b).and_then(|bucket| bucket.remove(i)) else { return };
        self.held -= 1;
        self.fed = None;
        let Held { mut skb, facts, or_flags, id_mode, merged, .. } = held;
        if merged {
            finish_header(&mut skb, &facts, or_flags);
            skb.gso_size = facts.mss;
            skb.gso_segs = facts.segs;
            skb.gso_type = match facts.kind {
                Kind::Tcp4 => GsoType::TcpV4,
                Kind::Tcp6 => GsoType::TcpV6,
                Kind::Udp4 | Kind::Udp6 => GsoType::UdpL4,
            };
            skb.csum = Csum::Unnecessary;
            skb.flags.insert(if self.cfg.hw { SkbFlags::HW_GRO } else { SkbFlags::GRO });
            if id_mode == IdMode::Fixed {
                skb.flags.insert(SkbFlags::FIXED_ID);
            }
        }
        out.push(skb);
    }
}

/// Is this a fragment, or a packet with options or extension headers: of a flow that may be held, but does it not say which?
#[cold]
fn hides_its_flow(skb: &Skb) -> bool {
    let head = skb.head();
    match byte(head, 0) >> 4 {
        4 => byte(head, 0) & 15 != 5 || be16(head, 6) & 0x3fff != 0,
        6 => matches!(byte(head, 6), proto::HOPOPTS | proto::ROUTING | proto::FRAGMENT | proto::DSTOPTS),
        _ => false,
    }
}

/// May this packet begin or continue a super-packet as far as it alone is concerned? Verifies its checksums.
#[inline]
fn mergeable(cx: &OffloadCx<'_>, skb: &mut Skb, f: &Facts) -> bool {
    let h = &f.headers;
    let whole = h.l4 as u32 + h.l4_len == skb.len() && h.end == skb.head_len();
    if f.payload == 0 || !whole || f.flags & (SYN | RST | URG) != 0 {
        return false;
    }
    if h.version == 4 && !checksum::is_valid(checksum::sum(skb.head().get(..h.l4).unwrap_or_default())) {
        return false;
    }
    if matches!(f.kind, Kind::Udp4 | Kind::Udp6) && !is_mergeable_datagram(skb, h) {
        return false;
    }
    match skb.csum {
        Csum::Unnecessary | Csum::Partial { .. } => true,
        _ => csum::check_parsed(skb, h, cx.kernels) == Verdict::Good,
    }
}

/// The length field covers the whole, and the sender has summed: cutting gives every frame a checksum.
fn is_mergeable_datagram(skb: &Skb, h: &Headers) -> bool {
    let field = u32::from(be16(skb.head(), h.l4 + 4));
    let whole = field == h.l4_len || (field == 0 && skb.is_gso());
    whole && (be16(skb.head(), h.l4 + 6) != 0 || matches!(skb.csum, Csum::Partial { .. }))
}

/// The identification rule: `None` when `f` can not follow.
#[inline]
fn next_id_mode(mode: IdMode, p: &Facts, f: &Facts, skb: &Skb) -> Option<IdMode> {
    if p.headers.version != 4 {
        return Some(IdMode::Unknown);
    }
    let fixed_super = f.segs > 1 && skb.flags.contains(SkbFlags::FIXED_ID);
    let counting_super = f.segs > 1 && !fixed_super;
    let counts = f.ident == p.ident.wrapping_add(p.segs as u16) && !fixed_super;
    let fixed = f.ident == p.ident && p.df && !counting_super;
    match mode {
        IdMode::Unknown | IdMode::Counts if counts => Some(IdMode::Counts),
        IdMode::Unknown | IdMode::Fixed if fixed => Some(IdMode::Fixed),
        _ => None,
    }
}

fn finish_header(skb: &mut Skb, f: &Facts, or_flags: u16) {
    let len = skb.len();
    let h = &f.headers;
    let head = skb.head_mut();
    if h.version == 4 {
        put16(head, 2, u16::try_from(len).unwrap_or(0));
        if let Some(ip) = head.get_mut(..h.l4) {
            ipv4::fill_checksum(ip);
        }
    } else {
        put16(head, 4, u16::try_from(len - 40).unwrap_or(0));
    }
    if h.proto == proto::TCP {
        put16(head, h.l4 + 12, f.flags | or_flags);
    } else {
        put16(head, h.l4 + 4, u16::try_from(len - h.l4 as u32).unwrap_or(0));
    }
}

/// The held skb of the packet's flow: its index, and whether all that must be equal is.
#[inline]
fn find(bucket: &Bucket, f: &Facts, skb: &Skb) -> Option<(usize, bool)> {
    let new = skb.head().get(..f.headers.end)?;
    for (i, held) in bucket.held.iter().enumerate() {
        let Some(held) = held else { return None };
        if held.facts.hash != f.hash || held.facts.kind != f.kind {
            continue;
        }
        let old = held.skb.head();
        let same_length = held.facts.headers.end == f.headers.end;
        if same_length && is_exact(f.kind, old, new) {
            return Some((i, true));
        }
        if is_same_flow(f.kind, old, new) {
            return Some((i, false));
        }
    }
    None
}

/// Masks over the fixed headers in words as they lie in memory: a set bit must be equal.
const fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    assert!(bytes.len() == N * 4);
    let mut w = [0; N];
    let mut i = 0;
    while i < N {
        w[i] = u32::from_ne_bytes([bytes[i * 4], bytes[i * 4 + 1], bytes[i * 4 + 2], bytes[i * 4 + 3]]);
        i += 1;
    }
    w
}
const fn join<const A: usize, const B: usize, const N: usize>(a: [u32; A], b: [u32; B]) -> [u32; N] {
    assert!(A + B == N);
    let mut w = [0; N];
    let mut i = 0;
    while i < N {
        w[i] = if i < A { a[i] } else { b[i - A] };
        i += 1;
    }
    w
}

/// IPv4 without total length, identification and header checksum.
const IP4: [u32; 5] = words(&[255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
/// Protocol and addresses.
const IP4_FLOW: [u32; 5] = words(&[255, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
/// IPv6 without payload length.
const IP6: [u32; 10] = join::<2, 8, 10>(words(&[255, 255, 255, 255, 0, 0, 255, 255]), [u32::MAX; 8]);
const IP6_FLOW: [u32; 10] = join::<2, 8, 10>(words(&[0, 0, 0, 0, 0, 0, 255, 0]), [u32::MAX; 8]);
/// TCP without sequence number, CWR, PSH, FIN and checksum: the ports, the acknowledgement, the data offset, the other
/// flags, the window and the urgent pointer remain.
const TCP: [u32; 5] =
    words(&[255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 255, !0x89, 255, 255, 0, 0, 255, 255]);
const TCP_FLOW: [u32; 5] = [u32::MAX, 0, 0, 0, 0];
/// The ports; lengths have a rule of their own.
const UDP: [u32; 2] = [u32::MAX, 0];

#[inline]
fn eq_masked<const N: usize>(a: &[u8], b: &[u8], mask: &[u32; N]) -> bool {
    let (Some(a), Some(b)) = (a.as_chunks::<4>().0.first_chunk::<N>(), b.as_chunks::<4>().0.first_chunk::<N>()) else {
        return false;
    };
    let mut diff = 0;
    for i in 0..N {
        diff |= (u32::from_ne_bytes(a[i]) ^ u32::from_ne_bytes(b[i])) & mask[i];
    }
    diff == 0
}

/// Options: header lengths are equal and multiples of four here.
#[inline]
fn eq_options(a: &[u8], b: &[u8], from: usize) -> bool {
    let (a, b) = (a.get(from..).unwrap_or_default(), b.get(from..).unwrap_or_default());
    let words = a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0);
    let diff = words.fold(0, |d, (x, y)| d | (u32::from_ne_bytes(*x) ^ u32::from_ne_bytes(*y)));
    a.len() == b.len() && diff == 0
}

#[inline]
fn is_exact(kind: Kind, a: &[u8], b: &[u8]) -> bool {
    match kind {
        Kind::Tcp4 => eq_masked(a, b, const { &join::<5, 5, 10>(IP4, TCP) }) && eq_options(a, b, 40),
        Kind::Tcp6 => eq_masked(a, b, const { &join::<10, 5, 15>(IP6, TCP) }) && eq_options(a, b, 60),
        Kind::Udp4 => eq_masked(a, b, const { &join::<5, 2, 7>(IP4, UDP) }),
        Kind::Udp6 => eq_masked(a, b, const { &join::<10, 2, 12>(IP6, UDP) }),
    }
}

#[inline]
fn is_same_flow(kind: Kind, a: &[u8], b: &[u8]) -> bool {
    match kind {
        Kind::Tcp4 => eq_masked(a, b, const { &join::<5, 5, 10>(IP4_FLOW, TCP_FLOW) }),
        Kind::Tcp6 => eq_masked(a, b, const { &join::<10, 5, 15>(IP6_FLOW, TCP_FLOW) }),
        Kind::Udp4 => eq_masked(a, b, const { &join::<5, 2, 7>(IP4_FLOW, UDP) }),
        Kind::Udp6 => eq_masked(a, b, const { &join::<10, 2, 12>(IP6_FLOW, UDP) }),
    }
}

/// A hash of addresses and ports for a table of 64 entries: a peer that aims at one bucket only loses its own merging.
#[inline]
fn quick_hash(head: &[u8], h: &Headers) -> u32 {
    let addrs = if h.version == 4 { 12..20 } else { 8..40 };
    let mix = |x: u32, w: &[u8; 4]| (x ^ u32::from_ne_bytes(*w)).wrapping_mul(0x9e37_79b1).rotate_left(15);
    let seed = head.get(h.l4..).and_then(|s| s.first_chunk()).map_or(1, |w| mix(u32::from(h.proto), w));
    let x = head.get(addrs).unwrap_or_default().as_chunks::<4>().0.iter().fold(seed, mix);
    (x ^ x >> 16).max(1)
}
