use std::collections::BTreeMap;
use std::vec::Vec;

use super::*;
use crate::rng::Rng;
use crate::time::Duration;

const MS: u64 = 1_000_000;

fn ns(n: u64) -> Instant {
    Instant::from_nanos(n)
}

fn drain(w: &mut TimerWheel, now: Instant) -> Vec<u32> {
    let mut fired = Vec::new();
    w.advance(now, &mut |k| fired.push(k));
    fired
}

#[test]
fn near_deadlines_are_exact() {
    let mut w = TimerWheel::new();
    w.arm(1, ns(250_000));
    w.arm(2, ns(249_999));
    assert_eq!(w.next_deadline(), Some(ns(249_999)));
    assert_eq!(drain(&mut w, ns(249_998)), []);
    assert_eq!(drain(&mut w, ns(249_999)), [2]);
    assert_eq!(drain(&mut w, ns(250_000)), [1]);
    assert_eq!(w.next_deadline(), None);
}

#[test]
fn far_deadlines_round_up_to_one_tick() {
    let mut w = TimerWheel::new();
    w.arm(7, ns(100 * MS + 1));
    assert_eq!(w.deadline(7), Some(ns(100 * MS + 1)));
    assert_eq!(w.next_deadline(), Some(ns(101 * MS)));
    assert_eq!(drain(&mut w, ns(101 * MS - 1)), []);
    assert_eq!(drain(&mut w, ns(101 * MS)), [7]);
    assert!(!w.is_armed(7) && w.deadline(7).is_none() && w.is_empty());
}

#[test]
fn rearm_and_cancel() {
    let mut w = TimerWheel::new();
    assert!(!w.cancel(5));
    w.arm(5, Instant::from_secs(10));
    w.arm(5, Instant::from_secs(20));
    assert_eq!(w.len(), 1);
    assert_eq!(drain(&mut w, Instant::from_secs(15)), []);
    w.arm(5, Instant::from_secs(15) + Duration::from_micros(10));
    assert_eq!(drain(&mut w, Instant::from_secs(16)), [5]);
    w.arm(5, Instant::from_secs(30));
    assert!(w.cancel(5) && !w.cancel(5));
    assert_eq!((w.next_deadline(), w.quiet_until()), (None, Instant::FAR_FUTURE));
    assert_eq!(drain(&mut w, Instant::from_secs(90)), []);
}

#[test]
fn past_deadline_fires_at_once_and_time_never_goes_back() {
    let mut w = TimerWheel::new();
    assert_eq!(drain(&mut w, Instant::from_secs(100)), []);
    w.arm(1, Instant::from_secs(3));
    assert_eq!(drain(&mut w, Instant::from_secs(2)), [], "an earlier now fires nothing that is later");
    assert_eq!(drain(&mut w, Instant::from_secs(100)), [1]);
}

#[test]
fn same_tick_fires_in_order_of_arming() {
    let mut w = TimerWheel::new();
    for k in [9, 3, 6] {
        w.arm(k, Instant::from_millis(500));
    }
    assert_eq!(drain(&mut w, Instant::from_millis(500)), [9, 3, 6]);
}

#[test]
fn leap_over_years_jumps_between_occupied_slots() {
    let mut w = TimerWheel::new();
    for k in 0..1000 {
        w.arm(k, Instant::from_secs(u64::from(k) * 86_400));
    }
    // Per-tick work would be 10^12 steps here.
    let fired = drain(&mut w, Instant::from_secs(400 * 365 * 86_400));
    assert_eq!(fired, (0..1000).collect::<Vec<_>>());
    w.arm(1, Instant::FAR_FUTURE);
    assert_eq!(drain(&mut w, Instant::FAR_FUTURE), [], "never means never");
    assert!(w.cancel(1));
}

#[test]
fn stale_lower_bound_sharpens() {
    let mut w = TimerWheel::new();
    w.arm(1, Instant::from_secs(100));
    w.arm(2, Instant::from_secs(101));
    w.cancel(1);
    let mut wakes = 0;
    loop {
        let at = w.next_deadline().expect("armed");
        wakes += 1;
        if w.pop_expired(at) == Some(2) {
            assert_eq!(at, Instant::from_secs(101));
            break;
        }
    }
    assert!(wakes <= LEVELS, "{wakes} wakes for one timer");
}

#[test]
fn observe_makes_near_deadlines_exact_after_a_sleep() {
    let mut w = TimerWheel::new();
    let now = Instant::from_secs(50);
    w.observe(now);
    w.arm(1, now + Duration::from_micros(50));
    assert_eq!(w.next_deadline(), Some(now + Duration::from_micros(50)));
}

#[test]
fn shrink_frees_idle_chunks_only() {
    let mut w = TimerWheel::new();
    w.arm(3, Instant::from_secs(1));
    w.arm(5_000_000, Instant::from_secs(2));
    w.cancel(5_000_000);
    w.shrink_to_fit();
    assert_eq!(w.nodes.len(), 1);
    assert_eq!(drain(&mut w, Instant::from_secs(3)), [3]);
}

/// The wheel against a sorted map: random arms, cancels and advances over all magnitudes of time.
#[test]
fn equals_a_sorted_map() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut w = TimerWheel::new();
        let mut model = BTreeMap::<u32, u64>::new();
        let mut now = rng.below(1 << 50);
        for _ in 0..4000 {
            match rng.below(10) {
                0..=5 => {
                    let key = rng.below(300) as u32;
                    let span = 1u64 << rng.below(56);
                    let at = now.saturating_add(rng.below(span)).saturating_sub(rng.below(2_000_000));
                    w.arm(key, ns(at));
                    model.insert(key, at);
                }
                6 => {
                    let key = rng.below(300) as u32;
                    assert_eq!(w.cancel(key), model.remove(&key).is_some());
                }
                _ => {
                    now = if rng.chance(0.3) {
                        w.next_deadline().map_or(now, |d| d.as_nanos().max(now))
                    } else {
                        let span = 1 << rng.below(50);
                        now + rng.below(span)
                    };
                    for key in drain(&mut w, ns(now)) {
                        let at = model.remove(&key).expect("fired twice or never armed");
                        assert!(at <= now, "seed {seed}: early by {}", at - now);
                    }
                    if let Some(late) = model.values().find(|&&at| at + MS <= now) {
                        panic!("seed {seed}: {} ns late", now - late);
                    }
                }
            }
            assert_eq!(w.len(), model.len());
            let first = model.values().min().map(|&at| ns(at));
            match (w.next_deadline(), first) {
                (Some(d), Some(f)) => assert!(d <= f + Duration::from_millis(1), "would sleep too long"),
                (d, f) => assert_eq!(d.is_some(), f.is_some()),
            }
            assert_eq!(w.quiet_until(), w.next_deadline().unwrap_or(Instant::FAR_FUTURE), "seed {seed}");
        }
        for (&key, &at) in &model {
            assert_eq!(w.deadline(key), Some(ns(at)));
        }
    }
}

#[test]
fn many_keys_in_the_heap_keep_their_positions() {
    let mut rng = Rng::new(1);
    let mut w = TimerWheel::new();
    for key in 0..5000 {
        w.arm(key, ns(rng.below(3_000_000)));
    }
    for key in (0..5000).step_by(3) {
        assert!(w.cancel(key));
    }
    let mut last = ns(0);
    let mut fired = 0;
    while let Some(d) = w.next_deadline() {
        assert!(d >= last);
        last = d;
        let key = w.pop_expired(d).expect("an exact deadline fires");
        assert_ne!(key % 3, 0);
        fired += 1;
    }
    assert_eq!(fired, 5000 - 1667);
}
