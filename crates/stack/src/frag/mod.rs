//! IP fragments: put together on the way in, made on the way out (RFC 791, RFC 815, RFC 8200 section 4.5).
//!
//! ```text
//!   ip_in ── fragment ──▶ Piece (head.rs) ──▶ queue of (src, dst, id, proto) ──▶ whole packet ──▶ ip_in again
//!                                               │ 30 s, IPv6 60 s: ICMP time exceeded, code 1
//!   udp, icmp ── longer than the path MTU ──▶ send.rs: checksum, then pieces by reference ──▶ qdisc
//! ```
//! Fragments are the cheapest way to make a host remember: so everything is bounded. All queues together hold at most
//! [`HIGH_THRESH_BYTES`] of truesize before a new queue is refused, and a quarter more before anything is (Linux's
//! `ipfrag_high_thresh`); a queue is given up after [`TIMEOUT_V4`] or [`TIMEOUT_V6`] from its first fragment, however busy
//! it is; contradictions end it at once (RFC 5722). Payload stays in the pages that it came in; the transport checksum is
//! verified over the whole before anybody sees a byte.
//!
//! Deadlines are in order of birth for each family, so the next one is the front of a queue. An entry whose queue is gone
//! is skipped; when more than half are such, they are swept. Not here: `ipfrag_max_dist`, fragments for others (nothing is
//! forwarded), and fragments of TCP on the way out (it keeps DF and asks the path).

mod head;
mod ident;
mod queue;
mod send;

use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;

use linerate_base::{DropReason, Duration, Instant};
use linerate_skb::Skb;

use self::head::{Piece, Refused};
pub(crate) use self::ident::Idents;
use self::queue::{Joined, Queue, charge_of};
pub(crate) use self::send::xmit;
use crate::core_state::Core;
use crate::icmp::{self, IcmpSend};
use crate::shard::earlier;

/// Truesize of all fragments held before no new packet is begun (Linux's `ipfrag_high_thresh`), bytes.
pub const HIGH_THRESH_BYTES: u32 = 4 << 20;
/// Truesize beyond which no fragment at all is taken: what is begun may still be finished up to here.
const HARD_LIMIT_BYTES: u32 = HIGH_THRESH_BYTES + HIGH_THRESH_BYTES / 4;
/// How long an IPv4 packet may stay incomplete (`ipfrag_time`).
pub const TIMEOUT_V4: Duration = Duration::from_secs(30);
/// How long an IPv6 packet may stay incomplete (RFC 8200 section 4.5).
pub const TIMEOUT_V6: Duration = Duration::from_secs(60);
/// Stale deadlines that are tolerated before they are swept.
const STALE_MIN: usize = 64;

/// Whose fragment it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FragKey {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) ident: u32,
    /// 0 in IPv6, where it is no part of the key.
    pub(crate) proto: u8,
    /// Where addresses mean one link, else 0.
    pub(crate) ifindex: u32,
}

/// A queue's end, in the order of births of one family.
#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    key: FragKey,
    serial: u64,
}

/// All packets that wait for fragments, and the identifications of our own.
#[derive(Default)]
pub struct FragTable {
    queues: BTreeMap<FragKey, Queue>,
    /// Births of IPv4 and IPv6.
    due: [VecDeque<Due>; 2],
    mem_bytes: u32,
    next_serial: u64,
    pub(crate) idents: Idents,
}

impl FragTable {
    /// Packets that wait for fragments.
    pub fn len(&self) -> usize {
        self.queues.len()
    }
    /// Is nothing waiting?
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
    /// Truesize of all fragments held, bytes.
    pub fn mem_bytes(&self) -> u32 {
        self.mem_bytes
    }
    /// When `expire` has something to do.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.queues.is_empty() {
            return None;
        }
        // The front may be stale: then it is early, never late.
        let [v4, v6] = &self.due;
        earlier(v4.front().map(|d| d.at), v6.front().map(|d| d.at))
    }

    /// The queue of a fragment, out of the table; a new one when memory allows.
    fn take(&mut self, key: &FragKey, now: Instant) -> Option<Queue> {
        if let Some(queue) = self.queues.remove(key) {
            self.mem_bytes -= queue.mem_bytes;
            return Some(queue);
        }
        if self.mem_bytes > HIGH_THRESH_BYTES {
            return None;
        }
        self.next_serial += 1;
        let v6 = key.src.is_ipv6();
        let at = now + if v6 { TIMEOUT_V6 } else { TIMEOUT_V4 };
        let births = &mut self.due[usize::from(v6)];
        if births.len() > STALE_MIN + 2 * self.queues.len() {
            let queues = &self.queues;
            births.retain(|d| queues.get(&d.key).is_some_and(|q| q.serial == d.serial));
        }
        births.push_back(Due { at, key: *key, serial: self.next_serial });
        Some(Queue::new(self.next_serial))
    }

    /// A queue goes (back) into the table.
    fn put(&mut self, key: FragKey, queue: Queue) {
        self.mem_bytes += queue.mem_bytes;
        let old = self.queues.insert(key, queue);
        debug_assert!(old.is_none(), "two queues of one packet");
    }

    /// The oldest queue that is over its time.
    fn pop_due(&mut self, now: Instant) -> Option<Queue> {
        for births in &mut self.due {
            while let Some(d) = births.front().copied().filter(|d| d.at <= now) {
                births.pop_front();
                let live = self.queues.get(&d.key).is_some_and(|q| q.serial == d.serial);
                if let Some(queue) = live.then(|| self.queues.remove(&d.key)).flatten() {
                    self.mem_bytes -= queue.mem_bytes;
                    return Some(queue);
                }
            }
        }
        None
    }
}

/// Receives a fragment that is for us; its head starts at the IP header. Gives back the packet when it is whole; else the
/// skb was kept, or dropped and counted.
#[cold]
pub(crate) fn rcv(core: &mut Core, mut skb: Skb) -> Option<Skb> {
    core.mibs.ip.reasm_reqds += 1;
    let piece = match Piece::parse(&skb) {
        Ok(piece) => piece,
        Err(refused) => {
            refuse(core, skb, refused);
            return None;
        }
    };
    // Padding, and what is not a multiple of 8.
    skb.trim(piece.header_len as u32 + (piece.end - piece.offset));
    let full = core.frags.mem_bytes.saturating_add(charge_of(&skb)) > HARD_LIMIT_BYTES;
    let queue = if full { None } else { core.frags.take(&piece.key, core.now) };
    let Some(mut queue) = queue else {
        core.mibs.ip.reasm_fails += 1;
        core.drop_skb(skb, DropReason::IpFragMem);
        return None;
    };
    match queue.join(core, &piece, skb) {
        Joined::Waiting => core.frags.put(piece.key, queue),
        Joined::Whole => return finish(core, queue),
        Joined::Duplicate(skb) => {
            core.frags.put(piece.key, queue);
            core.drop_skb(skb, DropReason::IpDupFrag);
        }
        Joined::Contradiction(skb, reason) => {
            core.mibs.ip.reasm_fails += 1;
            // Without memory the last one was counted in already.
            let own = u32::from(reason != DropReason::NoMem);
            core.mibs.drops.count_n(reason, u64::from(queue.fragments + own));
            core.consume(skb);
            queue.end(core);
        }
    }
    None
}

/// A fragment that is wrong by itself; it changes nothing for the others.
fn refuse(core: &mut Core, mut skb: Skb, refused: Refused) {
    if let Refused::ParamProblem { code, pointer } = refused {
        core.mibs.ip.in_hdr_errors += 1;
        skb.network_header = skb.head_offset();
        icmp::send_for_bad_header(core, &skb, IcmpSend::ParamProblem { code, pointer });
    }
    core.mibs.ip.reasm_fails += 1;
    core.drop_skb(skb, DropReason::IpFragment);
}

/// Nothing is missing.
fn finish(core: &mut Core, queue: Queue) -> Option<Skb> {
    let fragments = u64::from(queue.fragments);
    let united = queue.unite(core).and_then(|mut u| match head::restore(&mut u) {
        true => Ok(u.skb),
        false => {
            core.consume(u.skb);
            Err(DropReason::PktTooBig)
        }
    });
    match united {
        Ok(skb) => {
            core.mibs.ip.reasm_oks += 1;
            Some(skb)
        }
        Err(reason) => {
            core.mibs.ip.reasm_fails += 1;
            core.mibs.drops.count_n(reason, fragments);
            None
        }
    }
}

/// Gives up what is over its time; who sent a first fragment is told (RFC 792, RFC 4443 section 3.3).
#[cold]
pub(crate) fn expire(core: &mut Core) {
    while let Some(mut queue) = core.frags.pop_due(core.now) {
        core.mibs.ip.reasm_timeout += 1;
        core.mibs.ip.reasm_fails += 1;
        core.mibs.drops.count_n(DropReason::FragReasmTimeout, u64::from(queue.fragments));
        if let Some(first) = queue.first_mut() {
            first.network_header = first.head_offset();
            icmp::send_for_bad_header(core, first, IcmpSend::ReassemblyTimeout);
        }
        queue.end(core);
    }
}

/// Lets all incomplete packets go: memory is needed, or the stack ends.
#[cold]
pub(crate) fn purge(core: &mut Core, reason: DropReason) {
    for births in &mut core.frags.due {
        births.clear();
    }
    core.frags.mem_bytes = 0;
    for queue in core::mem::take(&mut core.frags.queues).into_values() {
        core.mibs.ip.reasm_fails += 1;
        core.mibs.drops.count_n(reason, u64::from(queue.fragments));
        queue.end(core);
    }
}

#[cfg(test)]
mod tests;
