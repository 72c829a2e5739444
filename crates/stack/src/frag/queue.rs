//! The fragments of one packet: who is in, who contradicts whom, and when it is whole.
//!
//! A queue holds *runs*: bytes `[start, end)` of the packet in one skb. A fragment that continues a run joins it: its pages
//! move into the run's skb, the bytes that lay in its head are copied (they are few). Whoever comes out of order begins
//! a run of its own; runs are joined once, when nothing is missing. So a fragment costs one look-up among the runs and
//! never touches the payload, in whatever order it comes.
//!
//! ```text
//!   0        1480      2960             5920
//!   | header + run 0    |    (missing)   | run 5920 ...      max_end, total when the last fragment is in
//! ```
//! Rules (Linux, RFC 8200 section 4.5, RFC 5722): a copy of bytes that one run covers is a duplicate and dies alone;
//! bytes that overlap in any other way, a second end, or an empty fragment end the queue: somebody lies, and whose bytes
//! are right is not for us to choose. What this does not do: find its queue, time, limits of memory (see the parent).

use alloc::collections::BTreeMap;

use linerate_base::DropReason;
use linerate_skb::{MAX_FRAGS, SKB_TRUESIZE, Skb};
use linerate_wire::ip::ecn;

use super::head::Piece;
use crate::core_state::Core;
use crate::ip_out;
use linerate_offload::OffloadCx;

/// Bytes `[start, end)` of the packet; the start is the key in the queue.
struct Run {
    end: u32,
    /// The run at 0 begins with its IP headers, every other with its payload.
    skb: Skb,
}

/// What is known of one packet.
pub(super) struct Queue {
    runs: BTreeMap<u32, Run>,
    /// Length of the payload, when the last fragment is in.
    total: Option<u32>,
    /// Highest byte seen.
    max_end: u32,
    /// Bytes that are in.
    meat: u32,
    /// One bit for each of the four ECN code points seen.
    ecn_seen: u8,
    /// Bytes of header in front of the first fragment's payload.
    first_header_len: usize,
    /// Fragments that are in.
    pub(super) fragments: u32,
    /// Truesize of what is in.
    pub(super) mem_bytes: u32,
    /// Tells the queues apart that had one key at different times.
    pub(super) serial: u64,
}

/// What a fragment was to its queue.
pub(super) enum Joined {
    /// It is in.
    Waiting,
    /// It is in, and nothing is missing.
    Whole,
    /// It says nothing new and comes back.
    Duplicate(Skb),
    /// It contradicts the others and comes back: the queue is to be given up.
    Contradiction(Skb, DropReason),
}

impl Queue {
    pub(super) fn new(serial: u64) -> Self {
        Self {
            runs: BTreeMap::new(),
            total: None,
            max_end: 0,
            meat: 0,
            ecn_seen: 0,
            first_header_len: 0,
            fragments: 0,
            mem_bytes: 0,
            serial,
        }
    }

    /// Takes one fragment in; `skb` starts at its IP header and ends with its last byte.
    pub(super) fn join(&mut self, core: &mut Core, p: &Piece, mut skb: Skb) -> Joined {
        debug_assert_eq!(skb.len(), p.header_len as u32 + (p.end - p.offset));
        if let Err(reason) = self.check_ends(p) {
            return Joined::Contradiction(skb, reason);
        }
        let before = self.runs.range(..=p.offset).next_back().map(|(&at, run)| (at, run.end));
        let touches_before = before.is_some_and(|(_, end)| end > p.offset);
        if touches_before && before.is_some_and(|(_, end)| p.end <= end) {
            return Joined::Duplicate(skb);
        }
        let touches_next = self.runs.range(p.offset..).next().is_some_and(|(&at, _)| at < p.end);
        if touches_before || touches_next {
            core.mibs.ip.reasm_overlaps += 1;
            return Joined::Contradiction(skb, DropReason::IpFragOverlap);
        }
        self.ecn_seen |= 1 << (p.tos & ecn::MASK);
        self.fragments += 1;
        self.mem_bytes = self.mem_bytes.saturating_add(charge_of(&skb));
        self.meat += p.end - p.offset;
        if p.offset == 0 {
            self.first_header_len = p.header_len;
        } else {
            skb.pull_head(p.header_len);
        }
        let continues = before.filter(|&(_, end)| end == p.offset).and_then(|(at, _)| self.runs.get_mut(&at));
        match continues {
            Some(run) => match absorb(core, &mut run.skb, skb) {
                Ok(()) => run.end = p.end,
                // It is counted in; the parent takes it out with the others.
                Err(skb) => return Joined::Contradiction(skb, DropReason::NoMem),
            },
            None => {
                skb.set_max_frags(MAX_FRAGS);
                self.runs.insert(p.offset, Run { end: p.end, skb });
            }
        }
        if self.total == Some(self.meat) { Joined::Whole } else { Joined::Waiting }
    }

    /// Do the fragments agree about where the packet ends?
    fn check_ends(&mut self, p: &Piece) -> Result<(), DropReason> {
        if p.end == p.offset {
            return Err(DropReason::IpFragment);
        }
        if !p.more {
            if p.end < self.max_end || self.total.is_some_and(|total| total != p.end) {
                return Err(DropReason::IpFragment);
            }
            self.total = Some(p.end);
            self.max_end = p.end;
        } else if p.end > self.max_end {
            if self.total.is_some() {
                return Err(DropReason::IpFragment);
            }
            self.max_end = p.end;
        }
        Ok(())
    }

    /// Joins the runs of a whole packet. The skb starts at the first fragment's headers. Returns it with their length, the
    /// length of the payload and the ECN bits to add.
    ///
    /// # Errors
    /// Mixed ECN code points, or no memory: everything is gone, the reason is for all fragments.
    pub(super) fn unite(mut self, core: &mut Core) -> Result<United, DropReason> {
        debug_assert_eq!(Some(self.meat), self.total);
        let Some(ecn) = united_ecn(self.ecn_seen) else {
            self.end(core);
            return Err(DropReason::IpFragEcn);
        };
        let Some((at, first)) = self.runs.pop_first() else { return Err(DropReason::IpFragment) };
        debug_assert_eq!(at, 0, "a whole packet has its beginning");
        let mut skb = first.skb;
        while let Some((_, run)) = self.runs.pop_first() {
            if let Err(rest) = absorb(core, &mut skb, run.skb) {
                core.consume(rest);
                core.consume(skb);
                self.end(core);
                return Err(DropReason::NoMem);
            }
        }
        skb.truesize = self.mem_bytes;
        Ok(United { skb, header_len: self.first_header_len, payload_len: self.meat, ecn })
    }

    /// The first fragment with all that continues it, when it is in: an ICMP error quotes it.
    pub(super) fn first_mut(&mut self) -> Option<&mut Skb> {
        self.runs.get_mut(&0).map(|run| &mut run.skb)
    }

    /// Lets everything go, without counting.
    pub(super) fn end(self, core: &mut Core) {
        for run in self.runs.into_values() {
            core.consume(run.skb);
        }
    }
}

/// A packet put together, headers still those of its first fragment.
pub(super) struct United {
    pub(super) skb: Skb,
    pub(super) header_len: usize,
    pub(super) payload_len: u32,
    /// To be set in the header.
    pub(super) ecn: u8,
}

/// What a fragment is charged for.
pub(super) fn charge_of(skb: &Skb) -> u32 {
    skb.truesize.max(SKB_TRUESIZE)
}

/// The ECN bits to set in the united header (RFC 3168 section 5.3): CE when one fragment met congestion, none when they
/// agree or differ in the flavour of ECT alone. `None`: not-ECT beside another, which no honest path makes.
fn united_ecn(seen: u8) -> Option<u8> {
    let not_ect = seen & (1 << ecn::NOT_ECT) != 0;
    let ce = seen & (1 << ecn::CE) != 0;
    match (not_ect, ce, seen.count_ones()) {
        (true, _, n) if n > 1 => None,
        (_, true, _) => Some(ecn::CE),
        _ => Some(0),
    }
}

/// Moves the bytes of `from` behind those of `into`: pages by reference, linear bytes by copy. Too many fragments for
/// one skb are first copied into few.
///
/// # Errors
/// No page was left: `from` comes back, maybe without its linear bytes.
fn absorb(core: &mut Core, into: &mut Skb, mut from: Skb) -> Result<(), Skb> {
    if into.nr_frags() + from.nr_frags() + 2 > MAX_FRAGS && !collapse(core, into) {
        return Err(from);
    }
    let mut linear = from.head();
    while !linear.is_empty() {
        let kernels = core.kernels;
        let Some(page) = core.mem.writable_page() else { return Err(from) };
        let n = page.room().min(linear.len());
        let (now, later) = linear.split_at(n);
        let Some(Ok(())) = page.append(&kernels, now).map(|frag| into.push_frag(frag)) else { return Err(from) };
        linear = later;
    }
    if !into.append_frags(&mut from) {
        return Err(from);
    }
    core.consume(from);
    Ok(())
}

/// Copies the payload of an skb in many small fragments into few. False: no memory.
fn collapse(core: &mut Core, skb: &mut Skb) -> bool {
    let Some(empty) = core.mem.skbs.alloc() else { return false };
    let full = core::mem::replace(skb, empty);
    let mut cx = OffloadCx {
        skbs: &mut core.mem.skbs,
        pool: &mut core.mem.tx_pool,
        kernels: &core.kernels,
        drops: &mut core.mibs.drops,
    };
    let (back, done) = match ip_out::compact(full, MAX_FRAGS / 2, &mut cx) {
        Ok(few) => (few, true),
        Err(many) => (many, false),
    };
    core.consume(core::mem::replace(skb, back));
    done
}
