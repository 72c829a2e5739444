//! The life of entries in virtual time, without a packet.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::BTreeSet;

use linerate_skb::{PagePool, PoolConfig, SkbCache};
use proptest::prelude::*;

use super::*;

const DEV: IfIndex = IfIndex(2);
const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

fn v4(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + n).into()
}

struct Lab {
    t: Table,
    params: Params,
    now: Instant,
}

impl Lab {
    fn with(change: impl FnOnce(&mut NeighConfig)) -> Self {
        let mut cfg = NeighConfig::default();
        change(&mut cfg);
        let params = Params::new(&cfg);
        Self { t: Table::new(cfg, HashKey([1, 2])), params, now: Instant::from_secs(100) }
    }
    fn new() -> Self {
        Self::with(|_| {})
    }
    fn state(&self, key: Key) -> Nud {
        self.t.get(key).unwrap().state
    }
    fn mac(&self, key: Key) -> MacAddr {
        self.t.get(key).unwrap().mac
    }
    fn sleep(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }
    /// Lets time pass timer by timer; what they wanted, with when (ms from the beginning).
    fn run(&mut self, ms: u64) -> Vec<(u64, Due)> {
        let (start, end) = (self.now, self.now + Duration::from_millis(ms));
        let mut seen = Vec::new();
        while let Some(at) = self.t.wheel.next_deadline().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            while let Some(index) = self.t.wheel.pop_expired(self.now) {
                let key = self.t.key_of(index).unwrap();
                // The middle of the range: the base itself.
                let random = self.params.base_reachable.as_micros() as u64 / 2;
                match self.t.on_timer(key, self.now, &mut self.params, random) {
                    Due::Nothing => {}
                    due => seen.push((self.now.since(start).as_millis() as u64, due)),
                }
            }
        }
        self.now = end;
        seen
    }
    fn claim(&mut self, key: Key, mac: MacAddr, proof: bool, replace: bool) -> Verdict {
        let claim = Claim { mac: Some(mac), proof, replace, weak: true, router: None };
        let random = self.params.base_reachable.as_micros() as u64 / 2;
        self.t.claim(key, OWN, &claim, self.now, (&mut self.params, random))
    }
    fn reachable(&mut self, n: u32) -> Key {
        let key = self.t.want(DEV, v4(n), self.now).unwrap();
        self.t.on_use(key, self.now, &self.params);
        assert_eq!(self.claim(key, MAC, true, true), Verdict::Believed { resolved: true });
        assert_eq!(self.state(key), Nud::Reachable);
        key
    }
}

use std::vec::Vec;

#[test]
fn an_unanswered_resolution_fails_after_three_questions() {
    let mut l = Lab::new();
    let key = l.t.want(DEV, v4(1), l.now).unwrap();
    assert_eq!(l.t.on_use(key, l.now, &l.params), Use::WaitAndSolicit);
    assert_eq!(l.t.on_use(key, l.now, &l.params), Use::Wait);
    assert_eq!(l.run(10_000), [(1000, Due::SolicitAll), (2000, Due::SolicitAll), (3000, Due::Failed)]);
    assert_eq!((l.state(key), l.t.wheel.is_empty(), l.t.stats.res_failed), (Nud::Failed, true, 1));
    // The next packet begins anew.
    assert_eq!(l.t.on_use(key, l.now, &l.params), Use::WaitAndSolicit);
    assert_eq!((l.state(key), l.run(3000).len()), (Nud::Incomplete, 3));
}

#[test]
fn an_unused_neighbour_goes_stale_and_keeps_quiet() {
    let mut l = Lab::new();
    let key = l.reachable(1);
    let header = l.t.get(key).unwrap().header;
    assert_eq!(header, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    assert_eq!(l.run(100_000), []);
    assert_eq!((l.state(key), l.t.wheel.next_deadline()), (Nud::Stale, None));
}

#[test]
fn a_used_neighbour_is_asked_unless_something_above_proves_it() {
    let mut l = Lab::new();
    let key = l.reachable(1);
    l.run(100_000);
    // Used while stale: five seconds of trust, then three questions to it alone.
    assert_eq!((l.t.on_use(key, l.now, &l.params), l.state(key)), (Use::Send, Nud::Delay));
    assert_eq!(l.t.wanting_proof, 1);
    let asked = [(5000, Due::SolicitOne), (6000, Due::SolicitOne), (7000, Due::SolicitOne), (8000, Due::Failed)];
    assert_eq!(l.run(20_000), asked);
    assert_eq!((l.state(key), l.t.wanting_proof), (Nud::Failed, 0));
    // Proved from above within the five seconds: no question.
    let key = l.reachable(2);
    l.run(100_000);
    l.t.on_use(key, l.now, &l.params);
    assert_eq!(l.run(4000), []);
    l.t.confirm(key, l.now, &mut l.params, 0);
    assert_eq!((l.state(key), l.t.wanting_proof), (Nud::Reachable, 0));
    // An answer to the first question.
    l.run(100_000);
    l.t.on_use(key, l.now, &l.params);
    assert_eq!(l.run(5500).len(), 1);
    assert_eq!(l.claim(key, MAC, true, false), Verdict::Believed { resolved: false });
    assert_eq!((l.state(key), l.run(1000)), (Nud::Reachable, Vec::new()));
}

#[test]
fn a_busy_neighbour_is_doubted_in_use() {
    let mut l = Lab::new();
    let key = l.reachable(1);
    l.run(29_000);
    l.t.get_mut(key).unwrap().used = l.now;
    l.run(1500);
    assert_eq!(l.state(key), Nud::Delay, "no packet has to come first");
    // Doubt alone proves nothing and changes nothing.
    l.t.confirm(key, l.now, &mut l.params, 0);
    assert_eq!(l.state(key), Nud::Reachable);
}

#[test]
fn claims_of_known_addresses() {
    let mut l = Lab::new();
    let key = l.reachable(1);
    // What is known already: nothing new, or a proof.
    assert_eq!(l.claim(key, MAC, false, true), Verdict::Nothing);
    assert_eq!((l.state(key), l.t.stats.claims_refused), (Nud::Reachable, 0));
    // Other hardware that may not replace: doubt, no change.
    assert_eq!(l.claim(key, OTHER, true, false), Verdict::Refused);
    assert_eq!((l.state(key), l.mac(key), l.t.stats.claims_refused), (Nud::Stale, MAC, 1));
    // Other hardware that may: believed, as far as it proves.
    assert_eq!(l.claim(key, OTHER, false, true), Verdict::Believed { resolved: false });
    assert_eq!((l.state(key), l.mac(key), l.t.get(key).unwrap().header[5]), (Nud::Stale, OTHER, 3));
    assert_eq!(l.claim(key, MAC, true, true), Verdict::Believed { resolved: false });
    assert_eq!((l.state(key), l.mac(key)), (Nud::Reachable, MAC));
    // By hand: for ever.
    let key = l.t.set_permanent(DEV, v4(1), OWN, MAC, l.now).unwrap();
    assert_eq!(l.claim(key, OTHER, true, true), Verdict::Refused);
    assert_eq!(l.run(1_000_000), []);
    assert_eq!((l.state(key), l.mac(key)), (Nud::Permanent, MAC));
}

#[test]
fn known_hardware_is_asked_before_others_are_believed() {
    let mut l = Lab::with(|c| c.verify_change = true);
    let key = l.reachable(1);
    assert_eq!(l.claim(key, OTHER, true, true), Verdict::Verify);
    assert_eq!((l.state(key), l.mac(key)), (Nud::Probe, MAC));
    assert_eq!(l.claim(key, OTHER, true, true), Verdict::Refused, "one question at a time");
    assert_eq!(l.claim(key, MAC, true, true), Verdict::Believed { resolved: false });
    assert_eq!((l.state(key), l.mac(key)), (Nud::Reachable, MAC));
    // It moved indeed: the old hardware is silent, and the next packet asks all.
    assert_eq!(l.claim(key, OTHER, true, true), Verdict::Verify);
    let asked = [(1000, Due::SolicitOne), (2000, Due::SolicitOne), (3000, Due::Failed)];
    assert_eq!(l.run(3500), asked);
    assert_eq!(l.t.on_use(key, l.now, &l.params), Use::WaitAndSolicit);
    assert_eq!(l.claim(key, OTHER, true, true), Verdict::Believed { resolved: true });
}

#[test]
fn reachable_times_are_drawn_from_half_to_one_and_a_half() {
    let mut p = Params::new(&NeighConfig::default());
    let mut seen = BTreeSet::new();
    for i in 0..1000u64 {
        let now = Instant::from_secs(301 * i);
        let t = p.reachable(now, i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        assert!((15_000..45_000).contains(&t.as_millis()), "{t:?}");
        assert_eq!(p.reachable(now + Duration::from_secs(200), 1), t, "kept for five minutes");
        seen.insert(t.as_millis() / 10_000);
    }
    assert_eq!(seen.len(), 4, "all of the range is drawn");
}

#[test]
fn strangers_do_not_fill_the_table() {
    let mut l = Lab::new();
    let mine = l.reachable(1);
    let claim = Claim { mac: Some(OTHER), proof: false, replace: true, weak: false, router: None };
    for n in 0..100_000 {
        let (key, verdict) = l.t.claim_new((DEV, v4(1000 + n)), OWN, &claim, l.now, (&mut l.params, 0));
        assert!(key.is_some() && verdict == Verdict::Believed { resolved: true });
    }
    assert_eq!((l.t.len(), l.t.unwanted[0]), (513, 512));
    assert!(l.t.unwanted_keys[0].len() <= 4096 + 1);
    assert_eq!(l.state(mine), Nud::Reachable);
    // Whom we want to send to has a place: all of the table if it must be.
    let wanted: Vec<Key> = (0..1023).map(|n| l.t.want(DEV, v4(500_000 + n), l.now).unwrap()).collect();
    assert_eq!((l.t.len(), l.t.unwanted[0], wanted.len()), (1024, 0, 1023));
    wanted.iter().for_each(|k| assert_eq!(l.t.on_use(*k, l.now, &l.params), Use::WaitAndSolicit));
    assert_eq!(l.t.want(DEV, v4(600_000), l.now), None, "all of it is being asked for");
    assert_eq!(l.t.stats.table_fulls, 1);
    // The other family has a table of its own.
    assert!(l.t.want(DEV, Ipv6Addr::LOCALHOST.into(), l.now).is_some());
    l.run(3000);
    assert!(l.t.want(DEV, v4(600_000), l.now).is_some(), "what failed gives way");
}

#[test]
fn unused_entries_are_collected_when_there_are_many() {
    let mut l = Lab::new();
    for n in 0..100 {
        l.reachable(n);
    }
    l.run(1_000_000);
    assert_eq!((l.t.len(), l.t.gc_at), (100, None), "few entries cost nothing");
    for n in 100..200 {
        l.reachable(n);
    }
    l.sleep(70_000);
    l.run(0);
    l.t.periodic_gc(l.now);
    assert!(l.t.len() <= 100, "{} entries", l.t.len());
    assert!(l.t.gc_at.is_some());
    l.sleep(100_000);
    l.t.periodic_gc(l.now);
    assert_eq!(l.t.gc_at, None, "and it stops when there are few");
}

proptest! {
    /// Whatever happens in whatever order: counts agree, limits hold, timers run exactly where states say so.
    #[test]
    fn the_books_balance(steps in prop::collection::vec((0..8u8, 0..40u32, any::<bool>(), any::<bool>()), 1..300)) {
        let mut l = Lab::with(|c| c.gc_thresh = [4, 8, 16]);
        let (mut skbs, mut pool) = (SkbCache::new(64), PagePool::new(PoolConfig::default()));
        for (what, n, a, b) in steps {
            let addr = if a { v4(n) } else { Ipv6Addr::from_bits(u128::from(n) + 1).into() };
            let claim = Claim { mac: Some(if b { MAC } else { OTHER }), proof: a, replace: b, weak: !b, router: None };
            match what {
                0 | 1 => if let Some(key) = l.t.want(DEV, addr, l.now) {
                    let used = l.t.on_use(key, l.now, &l.params);
                    if used != Use::Send && b {
                        l.t.get_mut(key).unwrap().queue.push(skbs.alloc().unwrap());
                    }
                },
                2 => { l.t.claim_new((DEV, addr), OWN, &claim, l.now, (&mut l.params, 7)); }
                3 => if let Some(key) = l.t.find(DEV, addr) { l.t.claim(key, OWN, &claim, l.now, (&mut l.params, 9)); },
                4 => { l.run(u64::from(n) * 100); }
                5 => if let Some(key) = l.t.find(DEV, addr) { l.t.confirm(key, l.now, &mut l.params, 3); },
                6 => { l.sleep(u64::from(n) * 1000); l.t.periodic_gc(l.now); }
                _ => if let Some(key) = l.t.find(DEV, addr).filter(|_| b) {
                    l.t.get_mut(key).unwrap().queue.clear_with(&mut skbs, &mut pool);
                    l.t.remove(key);
                },
            }
            let all: Vec<(Key, Nud)> = l.t.iter().map(|(k, n)| (k, n.state)).collect();
            for (key, state) in &all {
                prop_assert_eq!(l.t.wheel.is_armed(key.index), state.has_timer(), "{:?}", state);
            }
            prop_assert_eq!(all.iter().filter(|s| s.1.wants_proof()).count(), l.t.wanting_proof);
            prop_assert_eq!((l.t.index.len(), l.t.count.iter().sum::<usize>()), (all.len(), all.len()));
            prop_assert!(l.t.count.iter().all(|c| *c <= 16) && l.t.unwanted.iter().all(|u| *u <= 8));
            prop_assert_eq!(l.t.iter().filter(|(_, n)| !n.wanted).count(), l.t.unwanted.iter().sum::<usize>());
        }
        for key in l.t.iter().map(|(k, _)| k).collect::<Vec<_>>() {
            l.t.get_mut(key).unwrap().queue.clear_with(&mut skbs, &mut pool);
            l.t.remove(key);
        }
        prop_assert_eq!((l.t.len(), l.t.wheel.is_empty(), l.t.wanting_proof, skbs.inflight()), (0, true, 0, 0));
    }
}
