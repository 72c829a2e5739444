use std::collections::BTreeMap;
use std::vec::Vec;

use super::*;
use crate::rng::Rng;
use crate::siphash::HashKey;

const KEY: HashKey = HashKey([7, 9]);

fn hash(flow: u32) -> u64 {
    KEY.sip13_words(&[u64::from(flow)])
}

#[test]
fn finds_what_was_inserted_and_nothing_else() {
    let mut t = FlowTable::new();
    for flow in 0..10_000 {
        t.insert(hash(flow), flow * 3);
        assert_eq!(t.len(), flow as usize + 1);
    }
    for flow in 0..20_000 {
        let want = (flow < 10_000).then_some(flow * 3);
        assert_eq!(t.find(hash(flow), |i| i == flow * 3), want);
    }
    let mut all: Vec<_> = t.iter().collect();
    all.sort_unstable();
    assert_eq!(all, (0..10_000).map(|f| f * 3).collect::<Vec<_>>());
}

#[test]
fn twins_with_one_hash_are_told_apart_by_the_key() {
    let mut t = FlowTable::new();
    for index in 0..5 {
        t.insert(42 << 32, index);
    }
    assert_eq!(t.find(42 << 32, |i| i == 3), Some(3));
    assert!(t.remove(42 << 32, 3) && !t.remove(42 << 32, 3));
    assert_eq!(t.find(42 << 32, |i| i == 3), None);
    assert_eq!(t.find(42 << 32, |i| i == 4), Some(4));
}

/// What is asked for ahead is what the search then finds, in both tables while one grows.
#[test]
fn a_candidate_is_what_is_found() {
    let mut t = FlowTable::new();
    for flow in 0..3_000 {
        t.insert(hash(flow), flow);
        let probe = flow * 7 % (flow + 1);
        assert_eq!(t.candidate(hash(probe)), t.find(hash(probe), |_| true));
        assert_eq!(t.homes(hash(probe)).count(), 1 + usize::from(t.old.is_some()));
        assert_eq!(t.candidate(hash(1_000_000 + flow)), None);
    }
}

/// Owners change places while the table grows: who was replaced is gone, who came is found.
#[test]
fn an_entry_changes_its_owner() {
    let mut t = FlowTable::new();
    for flow in 0..5_000 {
        t.insert(hash(flow), flow);
        let half = flow / 2;
        let owner = t.find(hash(half), |_| true).unwrap();
        assert!(t.replace(hash(half), owner, 10_000 + flow) && !t.replace(hash(half), owner, 1));
        assert_eq!(t.find(hash(half), |i| i == 10_000 + flow), Some(10_000 + flow));
        assert_eq!(t.len(), flow as usize + 1);
    }
}

#[test]
fn clusters_wrap_round_the_end() {
    let mut t = FlowTable::new();
    // All at home in the last slot.
    for index in 0..8 {
        t.insert(u64::MAX, index);
    }
    for index in (0..8).rev() {
        assert!(t.remove(u64::MAX, index));
        for other in 0..index {
            assert_eq!(t.find(u64::MAX, |i| i == other), Some(other));
        }
    }
    assert!(t.is_empty() && t.table.slots.iter().all(|&s| s == 0));
}

/// Against a map, through several growths, with lookups while entries are still moving.
#[test]
fn equals_a_map() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut t = FlowTable::new();
        let mut model = BTreeMap::<u32, u32>::new();
        let range = 1 << (6 + seed);
        for _ in 0..20_000 {
            let flow = rng.below(range) as u32;
            if rng.chance(0.6) {
                model.entry(flow).or_insert_with(|| {
                    t.insert(hash(flow), flow);
                    flow
                });
            } else {
                assert_eq!(t.remove(hash(flow), flow), model.remove(&flow).is_some());
            }
            let probe = rng.below(range) as u32;
            assert_eq!(t.find(hash(probe), |i| i == probe), model.get(&probe).copied(), "seed {seed}");
            assert_eq!(t.len(), model.len());
        }
        let mut all: Vec<_> = t.iter().collect();
        all.sort_unstable();
        assert_eq!(all, model.keys().copied().collect::<Vec<_>>());
    }
}

/// Probe lengths and compared keys per lookup stay the same from 10^3 to 10^6 flows.
#[test]
fn cost_is_flat() {
    let mut t = FlowTable::new();
    let mut next = 0;
    for size in [1_000, 10_000, 100_000, 1_000_000] {
        while next < size {
            t.insert(hash(next), next);
            next += 1;
        }
        assert!(t.max_probe() < 64, "{} slots from home at {size}", t.max_probe());
        let mut compared = 0;
        for flow in 0..1_000 {
            t.find(hash(flow), |i| {
                compared += 1;
                i == flow
            });
        }
        assert!(compared < 1_020, "{compared} comparisons for 1000 hits at {size}");
        // Misses are refused by the tag alone.
        let mut compared = 0;
        for flow in 2_000_000..2_001_000 {
            assert_eq!(
                t.find(hash(flow), |_| {
                    compared += 1;
                    false
                }),
                None
            );
        }
        assert!(compared < 20, "{compared} comparisons for 1000 misses at {size}");
    }
}

#[test]
fn capacity_is_honoured_and_growth_is_gradual() {
    let mut t = FlowTable::with_capacity(1000);
    let before = t.memory_bytes();
    for flow in 0..1000 {
        t.insert(hash(flow), flow);
    }
    assert_eq!(t.memory_bytes(), before);
    let mut flow = 1000;
    while t.old.is_none() {
        t.insert(hash(flow), flow);
        flow += 1;
    }
    let waiting = t.old.as_ref().map_or(0, |o| o.table.len);
    t.insert(hash(flow), flow);
    let left = t.old.as_ref().map_or(0, |o| o.table.len);
    assert!(left > 0 && left < waiting, "one insertion moves a part: {waiting} -> {left}");
}
