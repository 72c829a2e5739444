//! The neighbour table: entries, timers, claims, limits.
//!
//! One table holds both families and all devices; the key is device and address, hashed under a secret, since a stranger
//! on the link chooses addresses. This module decides and changes states; it sends nothing. What has to be sent comes
//! back as a value ([`Due`], [`Verdict`]), so that the whole life of an entry is tested without a packet.
//!
//! **Claims.** Whoever says "address A is at hardware H" makes a [`Claim`]. As in Linux (`neigh_update`): an unknown address is
//! entered only by who may create; a claim for the hardware that is known changes nothing but the proof; a claim for other hardware
//! is believed when it may replace, weakens a proved entry to `Stale` when it may not (RFC 4861 section 7.2.5), and is
//! else refused and counted. With `verify_change` it never replaces: the known hardware is asked instead.
//!
//! **Limits.** `gc_thresh` bounds the entries of each family for good. Entries that came from strangers' solicitations and that
//! no packet of ours ever used are *unwanted*: at most `gc_thresh[1]` of them, recycled oldest first, and any of them gives
//! way to an address that we want to send to. So neither a flood of solicitations nor a scan through us grows the table,
//! and a flood alone does not keep us from new neighbours (Linux would refuse those for five seconds).

use alloc::collections::VecDeque;
use core::net::IpAddr;

use linerate_base::slab::{Key, Slab};
use linerate_base::{Duration, FlowTable, HashKey, Instant, TimerWheel};
use linerate_netdev::IfIndex;
use linerate_skb::SkbBatch;
use linerate_wire::flow::to_mapped;
use linerate_wire::{MacAddr, ethernet};

use super::state::Nud;
use super::stats::NeighStats;
use crate::config::NeighConfig;

/// Not updated for so long, an entry may be taken for another when the table is full (Linux: 5 s).
const FORCED_GC_AGE: Duration = Duration::from_secs(5);
/// Between two searches of a full table that found nothing to take.
const FORCED_GC_PAUSE: Duration = Duration::from_millis(100);
/// How often a device draws a new reachable time.
const REROLL: Duration = Duration::from_secs(300);

/// Times of one family on one device; routers may set those of IPv6.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    pub(crate) base_reachable: Duration,
    pub(crate) retrans: Duration,
    /// Drawn from `base_reachable`.
    reachable: Duration,
    reroll_at: Instant,
}

impl Params {
    pub(crate) fn new(cfg: &NeighConfig) -> Self {
        let base = cfg.base_reachable;
        Self { base_reachable: base, retrans: cfg.retrans, reachable: base, reroll_at: Instant::ZERO }
    }
    /// The reachable time, drawn anew every five minutes from half to one and a half of the base. `random` is any number.
    pub(crate) fn reachable(&mut self, now: Instant, random: u64) -> Duration {
        if now >= self.reroll_at {
            self.reroll_at = now + REROLL;
            let base_us = self.base_reachable.as_micros() as u64;
            self.reachable = Duration::from_micros(base_us / 2 + random % base_us.max(1));
        }
        self.reachable
    }
    /// A router says otherwise.
    pub(crate) fn set_base_reachable(&mut self, base: Duration) {
        if self.base_reachable != base {
            (self.base_reachable, self.reroll_at) = (base, Instant::ZERO);
        }
    }
}

/// One neighbour.
pub(crate) struct Neighbour {
    pub(crate) ifindex: IfIndex,
    pub(crate) addr: IpAddr,
    pub(crate) state: Nud,
    /// Known while the state is valid.
    pub(crate) mac: MacAddr,
    /// The whole link header towards it.
    pub(crate) header: [u8; ethernet::HEADER_LEN],
    /// It said that it is a router.
    pub(crate) router: bool,
    /// A packet of ours was sent to it, or wants to be.
    wanted: bool,
    /// Solicitations since the state began.
    probes: u8,
    /// Last packet sent to it.
    pub(crate) used: Instant,
    /// Last change of state or hardware.
    pub(crate) updated: Instant,
    /// Last proof.
    confirmed: Instant,
    /// Packets that wait for its hardware address, and their truesize.
    pub(crate) queue: SkbBatch,
    pub(crate) queue_bytes: u32,
    hash: u64,
}

/// "Address is at hardware."
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The hardware; `None`: what is known.
    pub(crate) mac: Option<MacAddr>,
    /// It is an answer to us: a proof that packets arrive.
    pub(crate) proof: bool,
    /// It may replace known hardware.
    pub(crate) replace: bool,
    /// When it may not replace, it still makes a proved entry doubtful.
    pub(crate) weak: bool,
    /// What it says about being a router.
    pub(crate) router: Option<bool>,
}

/// What became of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It says nothing new, or nothing that counts.
    Nothing,
    /// It contradicts what is known and is not believed.
    Refused,
    /// As `Refused`, and the known hardware is to be asked by a unicast solicitation.
    Verify,
    /// Believed.
    Believed {
        /// Packets that waited can go.
        resolved: bool,
    },
}

/// What a timer wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// Nothing to be sent.
    Nothing,
    /// A solicitation to all.
    SolicitAll,
    /// A solicitation to the known hardware.
    SolicitOne,
    /// It failed: who waits is to be told.
    Failed,
}

/// What sending to a neighbour needs besides the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// The header is good.
    Send,
    /// The packet waits.
    Wait,
    /// The packet waits, and a solicitation to all is due now.
    WaitAndSolicit,
}

const fn family(addr: IpAddr) -> usize {
    if addr.is_ipv4() { 0 } else { 1 }
}

/// All neighbours.
pub(crate) struct Table {
    pub(crate) cfg: NeighConfig,
    slab: Slab<Neighbour>,
    index: FlowTable,
    key: HashKey,
    pub(crate) wheel: TimerWheel,
    /// Entries by family.
    count: [usize; 2],
    /// Those of them that no packet of ours used.
    unwanted: [usize; 2],
    /// Their keys, oldest first; keys that went stale or became wanted are skipped.
    unwanted_keys: [VecDeque<Key>; 2],
    /// Entries that wait for a proof.
    pub(crate) wanting_proof: usize,
    /// No search for something to take before.
    forced_gc_at: Instant,
    /// When entries are looked through for old ones.
    pub(crate) gc_at: Option<Instant>,
    pub(crate) stats: NeighStats,
}

impl Table {
    pub(crate) fn new(cfg: NeighConfig, key: HashKey) -> Self {
        Self {
            cfg,
            slab: Slab::new(),
            index: FlowTable::new(),
            key,
            wheel: TimerWheel::new(),
            count: [0; 2],
            unwanted: [0; 2],
            unwanted_keys: [VecDeque::new(), VecDeque::new()],
            wanting_proof: 0,
            forced_gc_at: Instant::ZERO,
            gc_at: None,
            stats: NeighStats::default(),
        }
    }

    fn hash(&self, ifindex: IfIndex, addr: IpAddr) -> u64 {
        let bits = to_mapped(addr).to_bits();
        self.key.sip13_words(&[(bits >> 64) as u64, bits as u64, u64::from(ifindex.0)])
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Neighbour)> {
        self.slab.iter()
    }
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&Neighbour> {
        self.slab.get(key)
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Neighbour> {
        self.slab.get_mut(key)
    }
    /// The key of the entry that a timer names.
    pub(crate) fn key_of(&self, index: u32) -> Option<Key> {
        self.slab.key_of(index)
    }
    pub(crate) fn find(&self, ifindex: IfIndex, addr: IpAddr) -> Option<Key> {
        let hash = self.hash(ifindex, addr);
        let is = |i| self.slab.get_by_index(i).is_some_and(|n| n.addr == addr && n.ifindex == ifindex);
        self.index.find(hash, is).and_then(|i| self.slab.key_of(i))
    }

    /// The entry of an address that a packet of ours is to be sent to; `None` when the table is full of such.
    pub(crate) fn want(&mut self, ifindex: IfIndex, addr: IpAddr, now: Instant) -> Option<Key> {
        let key = match self.find(ifindex, addr) {
            Some(key) => key,
            None => self.create(ifindex, addr, now, true)?,
        };
        let n = self.slab.get_mut(key)?;
        if !core::mem::replace(&mut n.wanted, true) {
            self.unwanted[family(addr)] -= 1;
        }
        Some(key)
    }

    fn create(&mut self, ifindex: IfIndex, addr: IpAddr, now: Instant, wanted: bool) -> Option<Key> {
        let f = family(addr);
        let [_, soft, hard] = self.cfg.gc_thresh;
        if !wanted && self.unwanted[f] >= soft.min(hard) {
            self.take_unwanted(f);
        }
        if self.count[f] >= hard && !(self.take_unwanted(f) || self.forced_gc(f, now)) {
            self.stats.table_fulls += 1;
            return None;
        }
        let hash = self.hash(ifindex, addr);
        let key = self.slab.insert(Neighbour {
            ifindex,
            addr,
            state: Nud::Failed,
            mac: MacAddr::default(),
            header: [0; ethernet::HEADER_LEN],
            router: false,
            wanted,
            probes: 0,
            used: now,
            updated: now,
            confirmed: Instant::ZERO,
            queue: SkbBatch::new(),
            queue_bytes: 0,
            hash,
        });
        self.index.insert(hash, key.index);
        self.count[f] += 1;
        self.stats.allocs += 1;
        if !wanted {
            self.unwanted[f] += 1;
            let keys = &mut self.unwanted_keys[f];
            if keys.len() > 4 * hard {
                // Most are stale: what was recycled or wanted since.
                let slab = &self.slab;
                keys.retain(|k| slab.get(*k).is_some_and(|n| !n.wanted));
            }
            keys.push_back(key);
        }
        if self.count[f] >= self.cfg.gc_thresh[0] && self.gc_at.is_none() {
            self.gc_at = Some(now + self.cfg.base_reachable / 2);
        }
        Some(key)
    }

    /// Recycles the oldest entry that nobody uses.
    fn take_unwanted(&mut self, f: usize) -> bool {
        while let Some(key) = self.unwanted_keys[f].pop_front() {
            let idle = self.slab.get(key).is_some_and(|n| !n.wanted && n.queue.is_empty() && n.state != Nud::Permanent);
            if idle {
                self.remove(key);
                return true;
            }
        }
        false
    }

    /// Searches a full table for one entry that failed, or has not changed for long and waits for nothing.
    fn forced_gc(&mut self, f: usize, now: Instant) -> bool {
        if now < self.forced_gc_at {
            return false;
        }
        self.stats.forced_gcs += 1;
        let old = |n: &Neighbour| n.updated + FORCED_GC_AGE < now && matches!(n.state, Nud::Stale);
        let can_go = |n: &Neighbour| family(n.addr) == f && n.queue.is_empty() && (n.state == Nud::Failed || old(n));
        let found = self.slab.iter().filter(|(_, n)| can_go(n)).min_by_key(|(_, n)| n.used).map(|(k, _)| k);
        match found {
            Some(key) => self.remove(key),
            None => self.forced_gc_at = now + FORCED_GC_PAUSE,
        }
        found.is_some()
    }

    /// Looks through all entries for those unused for long; only while there are many.
    pub(crate) fn periodic_gc(&mut self, now: Instant) {
        if self.gc_at.is_none_or(|at| at > now) {
            return;
        }
        let few = |c: &usize| *c < self.cfg.gc_thresh[0];
        if self.count.iter().all(few) {
            self.gc_at = None;
            return;
        }
        self.gc_at = Some(now + self.cfg.base_reachable / 2);
        let stale = self.cfg.gc_stale;
        let old = |n: &Neighbour| matches!(n.state, Nud::Failed | Nud::Stale) && n.used.max(n.updated) + stale < now;
        let count = self.count;
        let many = |n: &Neighbour| count[family(n.addr)] >= self.cfg.gc_thresh[0];
        let gone: alloc::vec::Vec<Key> =
            self.slab.iter().filter(|(_, n)| n.queue.is_empty() && many(n) && old(n)).map(|(k, _)| k).collect();
        for key in gone {
            self.remove(key);
        }
    }

    /// Forgets an entry. Its queue is empty, or the caller has emptied it.
    pub(crate) fn remove(&mut self, key: Key) {
        self.note_proof(key, false);
        let Some(n) = self.slab.remove(key) else { return };
        debug_assert!(n.queue.is_empty(), "packets still wait for a neighbour that goes");
        let known = self.index.remove(n.hash, key.index);
        debug_assert!(known, "a neighbour was not in the index");
        self.wheel.cancel(key.index);
        let f = family(n.addr);
        self.count[f] -= 1;
        if !n.wanted {
            self.unwanted[f] -= 1;
        }
        self.stats.destroys += 1;
    }

    /// Keeps the number of entries that wait for a proof: called around each change of a state, first with `false`.
    fn note_proof(&mut self, key: Key, after: bool) {
        if self.slab.get(key).is_some_and(|n| n.state.wants_proof()) {
            if after {
                self.wanting_proof += 1;
            } else {
                self.wanting_proof -= 1;
            }
        }
    }

    /// Changes the state by `event` and arms (or stops) its timer.
    fn change(&mut self, key: Key, now: Instant, timer: Option<Duration>, event: impl FnOnce(&mut Neighbour)) {
        self.note_proof(key, false);
        let Some(n) = self.slab.get_mut(key) else { return };
        let old = n.state;
        event(n);
        if n.state != old {
            (n.updated, n.probes) = (now, 0);
        }
        debug_assert_eq!(timer.is_some(), n.state.has_timer(), "{old:?} -> {:?}", n.state);
        self.note_proof(key, true);
        self.wheel.observe(now);
        match timer {
            Some(after) => self.wheel.arm(key.index, now + after),
            None => {
                self.wheel.cancel(key.index);
            }
        }
    }

    /// A packet is to be sent to it and its state is not one in which nothing is to be thought about.
    pub(crate) fn on_use(&mut self, key: Key, now: Instant, params: &Params) -> Use {
        let Some(n) = self.slab.get_mut(key) else { return Use::Wait };
        n.used = now;
        match n.state {
            Nud::Stale => {
                let delay = self.cfg.delay_first_probe;
                self.change(key, now, Some(delay), |n| walk(n.state.on_use()));
                Use::Send
            }
            Nud::Failed => {
                self.change(key, now, Some(params.retrans), |n| walk(n.state.on_use()));
                self.count_probe(key);
                Use::WaitAndSolicit
            }
            Nud::Incomplete => Use::Wait,
            Nud::Reachable | Nud::Delay | Nud::Probe | Nud::Permanent => Use::Send,
        }
    }

    fn count_probe(&mut self, key: Key) {
        if let Some(n) = self.slab.get_mut(key) {
            n.probes = n.probes.saturating_add(1);
        }
    }

    /// Its timer fired.
    pub(crate) fn on_timer(&mut self, key: Key, now: Instant, params: &mut Params, random: u64) -> Due {
        let reachable = params.reachable(now, random);
        let (delay, retrans) = (self.cfg.delay_first_probe, params.retrans);
        let (ucast, mcast) = (self.cfg.ucast_solicit, self.cfg.mcast_solicit);
        let Some(n) = self.slab.get(key) else { return Due::Nothing };
        match n.state {
            Nud::Reachable if n.confirmed + reachable > now => {
                let left = (n.confirmed + reachable).since(now);
                self.change(key, now, Some(left), |_| {});
                Due::Nothing
            }
            Nud::Reachable if n.wanted && n.used + delay > now => {
                self.change(key, now, Some(delay), |n| walk(n.state.on_expire_in_use()));
                Due::Nothing
            }
            Nud::Reachable => {
                self.change(key, now, None, |n| walk(n.state.on_expire()));
                Due::Nothing
            }
            Nud::Delay => {
                self.change(key, now, Some(retrans), |n| walk(n.state.on_doubt()));
                self.count_probe(key);
                Due::SolicitOne
            }
            Nud::Incomplete | Nud::Probe => {
                let (limit, due) =
                    if n.state == Nud::Probe { (ucast, Due::SolicitOne) } else { (mcast, Due::SolicitAll) };
                if n.probes >= limit {
                    self.change(key, now, None, |n| walk(n.state.on_give_up()));
                    self.stats.res_failed += 1;
                    return Due::Failed;
                }
                self.change(key, now, Some(retrans), |_| {});
                self.count_probe(key);
                due
            }
            Nud::Stale | Nud::Failed | Nud::Permanent => Due::Nothing,
        }
    }

    /// A layer above had an answer through it: as good as an answer of its own (RFC 4861 section 7.3.1).
    pub(crate) fn confirm(&mut self, key: Key, now: Instant, params: &mut Params, random: u64) {
        if self.slab.get(key).is_some_and(|n| n.state.wants_proof()) {
            let reachable = params.reachable(now, random);
            self.change(key, now, Some(reachable), |n| {
                n.confirmed = now;
                walk(n.state.on_confirm());
            });
        }
    }

    /// Somebody who may enter new addresses claims one (a solicitation to us).
    pub(crate) fn claim_new(
        &mut self,
        (ifindex, addr): (IfIndex, IpAddr),
        own: MacAddr,
        claim: &Claim,
        now: Instant,
        params: (&mut Params, u64),
    ) -> (Option<Key>, Verdict) {
        let key = self.find(ifindex, addr).or_else(|| self.create(ifindex, addr, now, false));
        match key {
            Some(key) => (Some(key), self.claim(key, own, claim, now, params)),
            None => (None, Verdict::Refused),
        }
    }

    /// Somebody claims a known address; `own` is our hardware address on that device.
    pub(crate) fn claim(
        &mut self,
        key: Key,
        own: MacAddr,
        claim: &Claim,
        now: Instant,
        (params, random): (&mut Params, u64),
    ) -> Verdict {
        let Some(n) = self.slab.get_mut(key) else { return Verdict::Nothing };
        let valid = n.state.is_valid();
        let Some(mac) = claim.mac.or(valid.then_some(n.mac)) else { return Verdict::Nothing };
        let same = valid && mac == n.mac;
        if n.state == Nud::Permanent {
            return self.refuse_unless(same);
        }
        if valid && !same {
            if self.cfg.verify_change {
                return self.verify(key, now, params.retrans);
            }
            if !claim.replace {
                if claim.weak && n.state.is_connected() {
                    self.change(key, now, None, |n| walk(n.state.on_heard()));
                }
                return self.refuse_unless(false);
            }
        }
        if let Some(router) = claim.router {
            n.router = router;
        }
        if same && !claim.proof {
            return Verdict::Nothing;
        }
        if !same {
            (n.mac, n.updated) = (mac, now);
            n.header = header(own, mac, n.addr);
        }
        let reachable = claim.proof.then(|| params.reachable(now, random));
        self.change(key, now, reachable, |n| {
            if claim.proof {
                n.confirmed = now;
                walk(n.state.on_confirm());
            } else {
                walk(n.state.on_heard());
            }
        });
        Verdict::Believed { resolved: !valid }
    }

    fn refuse_unless(&mut self, same: bool) -> Verdict {
        if same {
            return Verdict::Nothing;
        }
        self.stats.claims_refused += 1;
        Verdict::Refused
    }

    /// The known hardware is asked before others are believed.
    fn verify(&mut self, key: Key, now: Instant, retrans: Duration) -> Verdict {
        self.stats.claims_refused += 1;
        let Some(n) = self.slab.get(key) else { return Verdict::Refused };
        if n.state == Nud::Probe {
            return Verdict::Refused;
        }
        self.change(key, now, Some(retrans), |n| walk(n.state.on_doubt()));
        self.count_probe(key);
        Verdict::Verify
    }

    /// Enters an address by hand.
    pub(crate) fn set_permanent(
        &mut self,
        ifindex: IfIndex,
        addr: IpAddr,
        own: MacAddr,
        mac: MacAddr,
        now: Instant,
    ) -> Option<Key> {
        let key = self.want(ifindex, addr, now)?;
        self.change(key, now, None, |n| {
            n.mac = mac;
            n.header = header(own, mac, addr);
            walk(n.state.on_admin());
        });
        Some(key)
    }
}

impl Table {
    /// What must hold between turns.
    ///
    /// # Panics
    /// When something does not hold.
    pub(crate) fn check_invariants(&self) {
        for (key, n) in self.slab.iter() {
            assert_eq!(self.find(n.ifindex, n.addr), Some(key), "{} is not found", n.addr);
            assert_eq!(self.wheel.is_armed(key.index), n.state.has_timer(), "the timer of {} in {:?}", n.addr, n.state);
            let bytes: u32 = n.queue.iter().map(|skb| skb.truesize.max(linerate_skb::SKB_TRUESIZE)).sum();
            assert_eq!(n.queue_bytes, bytes, "what waits for {}", n.addr);
            assert!(n.queue.is_empty() || n.state == Nud::Incomplete, "{} waits in {:?}", n.addr, n.state);
            assert!(n.wanted || !matches!(n.state, Nud::Incomplete | Nud::Delay), "{} was never used", n.addr);
        }
        let wanting = self.slab.iter().filter(|(_, n)| n.state.wants_proof()).count();
        assert_eq!((self.wanting_proof, self.index.len()), (wanting, self.slab.len()), "counts of neighbours");
        let unwanted = self.slab.iter().filter(|(_, n)| !n.wanted).count();
        assert_eq!(self.unwanted.iter().sum::<usize>(), unwanted, "neighbours that nobody wants");
        assert!(
            self.count.iter().all(|c| *c <= self.cfg.gc_thresh[2]) && self.count.iter().sum::<usize>() == self.len()
        );
    }
}

/// The link header of packets to `mac`.
pub(crate) fn header(own: MacAddr, mac: MacAddr, addr: IpAddr) -> [u8; ethernet::HEADER_LEN] {
    let ethertype = if addr.is_ipv4() { ethernet::ethertype::IPV4 } else { ethernet::ethertype::IPV6 };
    let mut h = [0; ethernet::HEADER_LEN];
    ethernet::EthernetRepr { dst: mac, src: own, ethertype, vlan_tci: None }.emit(&mut h);
    h
}

/// The state graph allows what this module walks: anything else is a bug here.
fn walk(walked: Result<(), linerate_base::state_table::InvalidTransition>) {
    debug_assert!(walked.is_ok(), "{walked:?}");
}

#[cfg(test)]
mod tests;
