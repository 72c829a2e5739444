//! One wire alone: time, queue, faults, marks and the books.

use super::*;
use linerate_base::Rng;
use linerate_wire::{IpRepr, ip::proto};

fn ms(n: u64) -> Instant {
    Instant::from_millis(n)
}

/// Frames (number, arrival) in the order in which they arrive.
fn drain(wire: &mut Wire) -> Vec<(u64, Instant)> {
    let mut got = Vec::new();
    while let Some(at) = wire.next_arrival() {
        let frame = wire.take_arrived(at).expect("it said that one arrives now");
        got.push((frame.id, at));
        wire.delivered(frame.bytes.len());
    }
    got
}

#[test]
fn rate_and_delay_make_the_times() {
    // 1000 bytes at 8 Mbit/s take 1 ms.
    let mut wire =
        Wire::new(WireConfig { rate_bps: 8_000_000, delay: Duration::from_millis(10), ..WireConfig::default() }, 1);
    for id in 0..3 {
        assert_eq!(wire.offer(ms(5), id, 99, vec![0; 1000]).departs, ms(6 + id));
    }
    assert!(wire.take_arrived(ms(15)).is_none());
    assert_eq!(drain(&mut wire), [(0, ms(16)), (1, ms(17)), (2, ms(18))]);
    // After a pause the wire is idle again.
    assert_eq!(wire.offer(ms(100), 3, 99, vec![0; 1000]).departs, ms(101));
    assert_eq!(wire.stats().balance(), 1);
}

#[test]
fn the_queue_drops_its_tail_by_bytes_and_by_frames() {
    let slow = WireConfig { rate_bps: 8_000, queue_bytes: 3000, ..WireConfig::default() };
    let mut wire = Wire::new(slow, 1);
    let fates: Vec<bool> = (0..5).map(|id| wire.offer(ms(0), id, 99, vec![0; 1000]).dropped.is_some()).collect();
    assert_eq!(fates, [false, false, false, true, true]);
    assert_eq!((wire.stats().queue_drops, wire.stats().balance()), (2, 3));
    // A second later the first has left and there is room for one.
    assert!(wire.offer(ms(1000), 5, 99, vec![0; 1000]).dropped.is_none());
    assert_eq!(wire.offer(ms(1000), 6, 99, vec![0; 1000]).dropped, Some(DropReason::WireQueue));
    wire.configure(|c| (c.queue_bytes, c.queue_wire_pkts) = (u64::MAX, 3));
    assert_eq!(wire.offer(ms(1000), 7, 99, vec![0; 1]).dropped, Some(DropReason::WireQueue));
}

#[test]
fn jitter_keeps_the_order_and_reordering_does_not() {
    let jitter = FaultPlan { jitter: Duration::from_millis(50), ..FaultPlan::default() };
    let mut wire = Wire::new(WireConfig { faults: jitter, ..WireConfig::default() }, 3);
    for id in 0..200 {
        wire.offer(ms(id), id, 999, vec![0; 10]);
    }
    assert!(drain(&mut wire).is_sorted_by_key(|&(id, _)| id));
    let reorder = FaultPlan { reorder: 0.1, reorder_delay: Duration::from_millis(20), ..FaultPlan::default() };
    let mut wire = Wire::new(WireConfig { faults: reorder, ..WireConfig::default() }, 3);
    for id in 0..200 {
        wire.offer(ms(id), id, 999, vec![0; 10]);
    }
    let got = drain(&mut wire);
    assert!(!got.is_sorted_by_key(|&(id, _)| id));
    assert!((5..50).contains(&wire.stats().held_back));
    assert_eq!((got.len(), wire.stats().balance()), (200, 0));
}

#[test]
fn a_filter_decides_for_one_frame_and_leaves_the_others_alone() {
    let plan = FaultPlan { loss: 0.5, ..FaultPlan::default() };
    let cfg = WireConfig { faults: plan, ..WireConfig::default() };
    let fates = |filter: Option<Filter>| -> Vec<bool> {
        let mut wire = Wire::new(cfg.clone(), 5);
        wire.set_filter(filter);
        (0..64).map(|id| wire.offer(ms(id), id, 999, vec![1; 20]).dropped.is_some()).collect()
    };
    let plain = fates(None);
    let kept = fates(Some(Box::new(|_, n, _| if n == 10 { Verdict::Keep } else { Verdict::Pass })));
    let lost = fates(Some(Box::new(|_, n, _| if n == 11 { Verdict::Lose } else { Verdict::Pass })));
    assert!(!kept[10] && lost[11]);
    for n in (0..64).filter(|n| ![10, 11].contains(n)) {
        assert_eq!((plain[n], plain[n]), (kept[n], lost[n]), "frame {n}");
    }
}

#[test]
fn copies_and_flips_are_made_and_counted() {
    let mut wire = Wire::new(WireConfig::default(), 1);
    wire.set_filter(Some(Box::new(|_, n, _| if n == 0 { Verdict::Twice } else { Verdict::Flip(9) })));
    assert_eq!(wire.offer(ms(0), 0, 1, vec![0; 4]).copy, Some(1));
    assert_eq!(wire.offer(ms(0), 2, 3, vec![0; 4]).flipped, Some(9));
    let mut frames = Vec::new();
    while let Some(f) = wire.take_arrived(ms(5)) {
        frames.push((f.id, f.bytes, f.is_copy));
    }
    assert_eq!(frames, [(0, vec![0; 4], false), (1, vec![0; 4], true), (2, vec![0, 0x40, 0, 0], false)]);
    assert_eq!((wire.stats().copies, wire.stats().corrupted), (1, 1));
}

#[test]
fn faults_end_when_they_are_told_to() {
    let all = FaultPlan { loss: 1.0, ..FaultPlan::default() };
    let cfg = WireConfig { faults: all, faults_from: ms(10), faults_until: ms(20), ..WireConfig::default() };
    let mut wire = Wire::new(cfg, 1);
    let lost = |wire: &mut Wire, at| wire.offer(ms(at), at, 999, vec![0; 1]).dropped.is_some();
    assert_eq!([9, 10, 19, 20].map(|at| lost(&mut wire, at)), [false, true, true, false]);
}

#[test]
fn marks_only_who_understands_and_keeps_the_header_valid() {
    for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        for (tos, marked) in [(0x50, false), (0x51, true), (0x52, true), (0x53, false)] {
            let mut ip = IpRepr::new(src.parse().unwrap(), dst.parse().unwrap(), proto::UDP, 0);
            ip.tos = tos;
            let mut bytes = vec![0; ip.header_len()];
            ip.emit(&mut bytes);
            assert_eq!(mark_ce(&mut bytes), marked, "{src} {tos:#x}");
            let (after, _) = IpRepr::parse(&bytes).expect("a valid header");
            assert_eq!(after.tos, if marked { tos | 3 } else { tos });
        }
    }
    assert!(!mark_ce(&mut []) && !mark_ce(&mut [0x45]) && !mark_ce(&mut [0x60]));
}

/// Whatever the plan: every frame is delivered, dropped with a reason, or still on its way.
#[test]
fn the_books_balance_under_every_plan() {
    let mut rng = Rng::new(11);
    for seed in 0..100 {
        let faults = FaultPlan {
            loss: rng.unit() * 0.3,
            burst: rng.chance(0.5).then_some((0.05, 0.3, 0.9)),
            duplicate: rng.unit() * 0.2,
            corrupt: rng.unit() * 0.2,
            reorder: rng.unit() * 0.2,
            reorder_delay: Duration::from_micros(rng.below(5000)),
            jitter: Duration::from_micros(rng.below(5000)),
        };
        let cfg = WireConfig {
            rate_bps: rng.range(1_000_000, 100_000_000),
            queue_bytes: rng.range(2_000, 60_000),
            path_mtu_bytes: Some(1000),
            faults,
            ..WireConfig::default()
        };
        let mut wire = Wire::new(cfg, seed);
        for n in 0..500 {
            wire.offer(Instant::from_micros(n * 50), 2 * n, 2 * n + 1, vec![0; rng.range(20, 1100) as usize]);
        }
        assert_eq!(wire.stats().balance(), wire.in_flight() as i64);
        drain(&mut wire);
        assert_eq!((wire.stats().balance(), wire.stats().offered), (0, 500));
    }
}
