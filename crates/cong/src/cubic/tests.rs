//! CUBIC against windows that Linux showed, against the curve in floating point, and HyStart's two signs.

use super::{Cubic, cbrt};
use crate::tests::Flow;
use crate::{CaState, CcEvent, CongestionControl, HystartMib, INFINITE_SSTHRESH};
use proptest::prelude::*;

proptest! {
    #[test]
    fn cbrt_is_the_exact_floor(n in prop_oneof![any::<u64>(), 0u64..5_000]) {
        let (n, r) = (u128::from(n), u128::from(cbrt(n)));
        prop_assert!(r * r * r <= n && n < (r + 1) * (r + 1) * (r + 1));
    }
}

/// Two segments acknowledged every 100 ms with a window of 48 that no loss has limited yet: the windows that a Linux
/// sender shows. First the slow floor of 1/20, then the convex curve, then at most one segment for two acknowledged.
#[test]
fn a_slow_link_after_slow_start_grows_as_in_linux() {
    let mut flow = Flow::avoiding(Cubic::new(), 48);
    flow.alg.delay_min_us = 100_000;
    let mut cwnd_after = |acks: core::ops::RangeInclusive<u32>| {
        for _ in acks {
            flow.wait_us(100_000);
            flow.ack(2, 2_000_000);
        }
        flow.cc.cwnd
    };
    assert_eq!(cwnd_after(1..=11), 49);
    assert_eq!(cwnd_after(12..=21), 50);
    assert_eq!(cwnd_after(22..=31), 52);
    assert_eq!(cwnd_after(32..=41), 58);
    for n in 1..=140 {
        assert_eq!(cwnd_after(42..=42), 58 + n, "one for every two");
    }
}

#[test]
fn the_window_follows_the_cubic_curve() {
    for (w_max, rtt_us) in [(1_000u32, 100_000u32), (1_000, 30_000), (10_000, 50_000), (400, 200_000)] {
        let mut flow = Flow::avoiding(Cubic::new(), w_max);
        flow.round_burst(rtt_us);
        flow.cc.cwnd = w_max;
        flow.reduce();
        let reduced = f64::from(flow.cc.cwnd);
        assert_eq!(flow.cc.cwnd, w_max * 717 / 1024);
        let k = ((f64::from(w_max) - reduced) / 0.4).cbrt();
        let start = flow.now;
        loop {
            flow.round(rtt_us);
            let t = f64::from(flow.now.micros_since(start)) / 1e6;
            if t > 1.6 * k {
                break;
            }
            let w = 0.4 * (t - k).powi(3) + f64::from(w_max);
            let error = (f64::from(flow.cc.cwnd) - w).abs() / w;
            assert!(error < 0.015, "W_max {w_max}, rtt {rtt_us} us, t {t:.2} s: cwnd {} curve {w:.1}", flow.cc.cwnd);
        }
        assert!(flow.cc.cwnd > w_max, "beyond the plateau");
    }
}

#[test]
fn a_short_path_grows_as_reno_with_the_same_mean_would() {
    // 2 ms: within 100 rounds the curve has hardly left 71, Reno with alpha = 8/15 has 53 segments more.
    let mut flow = Flow::avoiding(Cubic::new(), 100);
    flow.round_burst(2_000);
    flow.cc.cwnd = 100;
    flow.reduce();
    assert_eq!(flow.cc.cwnd, 70);
    for _ in 0..100 {
        flow.round(2_000);
    }
    let expected = 70 + 100 * 8 / 15;
    assert!(flow.cc.cwnd.abs_diff(expected) <= 3, "cwnd {} against {expected}", flow.cc.cwnd);
    let k = (30f64 / 0.4).cbrt();
    let curve = 0.4 * (0.2 - k).powi(3) + 100.0;
    assert!(f64::from(flow.cc.cwnd) > 1.4 * curve, "the curve alone would be at {curve:.1}");
}

#[test]
fn fast_convergence_gives_way_to_others() {
    let mut flow = Flow::avoiding(Cubic::new(), 100);
    flow.reduce();
    assert_eq!((flow.cc.cwnd, flow.alg.last_max_cwnd), (70, 100));
    flow.cc.cwnd = 80;
    flow.reduce();
    assert_eq!((flow.cc.cwnd, flow.alg.last_max_cwnd), (56, 68), "80 < 100: the plateau is (1 + beta) / 2 of 80");
    flow.cc.cwnd = 90;
    flow.reduce();
    assert_eq!((flow.cc.cwnd, flow.alg.last_max_cwnd), (63, 90), "90 > 68: it is the window itself");
}

#[test]
fn undo_restores_and_small_windows_keep_two() {
    let mut flow = Flow::avoiding(Cubic::new(), 100);
    flow.reduce();
    assert_eq!(flow.alg.undo_cwnd(&flow.cc), 100);
    flow.cc.cwnd = 1;
    assert_eq!(flow.alg.ssthresh(&flow.cc), 2);
}

#[test]
fn growth_is_at_most_half_a_window_per_round() {
    let mut flow = Flow::avoiding(Cubic::new(), 100);
    flow.round_burst(100_000);
    flow.reduce();
    for _ in 0..400 {
        let before = flow.cc.cwnd;
        flow.round(100_000);
        assert!(flow.cc.cwnd >= before && flow.cc.cwnd <= before + before / 2 + 1);
    }
    assert!(flow.cc.cwnd > 15_000, "40 s of convex growth, not {}", flow.cc.cwnd);
}

/// The window one round after 60 idle seconds, with or without being told that transmission starts anew.
fn after_idle(told: bool) -> (u32, u32) {
    let mut flow = Flow::avoiding(Cubic::new(), 400);
    flow.round_burst(100_000);
    flow.cc.cwnd = 400;
    flow.reduce();
    for _ in 0..20 {
        flow.round(100_000);
    }
    let before = flow.cc.cwnd;
    flow.wait_us(60_000_000);
    if told {
        flow.event(CcEvent::TxStart);
    }
    flow.send();
    flow.round(100_000);
    (before, flow.cc.cwnd)
}

#[test]
fn idle_time_is_no_growth_time() {
    let (before, after) = after_idle(true);
    assert!(after - before <= 12, "{before} -> {after}: the curve goes on where it stopped");
    let (before, after) = after_idle(false);
    assert!(after > before + before * 2 / 5, "{before} -> {after}: without the shift it would burst");
}

#[test]
fn an_epoch_never_starts_in_the_future() {
    let mut flow = Flow::avoiding(Cubic::new(), 48);
    flow.cc.lsnd_time = linerate_base::Instant::ZERO;
    flow.round(10_000);
    flow.cc.lsnd_time = linerate_base::Instant::ZERO;
    flow.event(CcEvent::TxStart);
    assert_eq!(flow.alg.epoch_ms, Some(flow.now.as_millis()));
}

/// 20 segments sent at once over a 200 ms path, acknowledged in pairs 1 ms apart from `first_us` on.
fn pairs_after(first_us: u64) -> Flow<Cubic> {
    let mut flow = Flow::new(Cubic::new());
    flow.round_burst(200_000);
    assert_eq!(flow.cc.cwnd, 20);
    flow.wait_us(first_us);
    flow
}

#[test]
fn hystart_leaves_slow_start_on_the_ninth_late_sample() {
    let mut flow = pairs_after(240_000);
    for n in 0..8 {
        flow.ack(2, 240_000 + n * 1_000);
        flow.wait_us(1_000);
        assert_eq!((flow.cc.ssthresh, i64::from(flow.cc.cwnd)), (INFINITE_SSTHRESH, 22 + 2 * n));
    }
    flow.ack(2, 248_000);
    assert_eq!((flow.cc.ssthresh, flow.cc.cwnd), (36, 36), "as Linux: found before growth, so the ninth adds nothing");
    flow.wait_us(1_000);
    flow.ack(2, 249_000);
    assert_eq!((flow.cc.ssthresh, flow.cc.cwnd), (36, 36));
    let expected = HystartMib { delay_detect: 1, delay_cwnd: 36, ..HystartMib::default() };
    assert_eq!(flow.cc.hystart_mib, expected);
}

#[test]
fn hystart_ignores_small_increases_and_rounds_with_one_early_sample() {
    let mut flow = pairs_after(210_000);
    for n in 0..10 {
        flow.ack(2, 215_000 + n);
    }
    assert_eq!(flow.cc.ssthresh, INFINITE_SSTHRESH, "less than 16 ms above 200 ms");
    // The minimum of a round decides: one early sample, here even below the known minimum, shows an empty queue.
    let mut flow = pairs_after(240_000);
    for n in 0..10 {
        flow.ack(2, if n == 8 { 150_000 } else { 240_000 });
    }
    assert_eq!((flow.cc.ssthresh, flow.cc.cwnd), (INFINITE_SSTHRESH, 40));
}

/// Milliseconds after which a train of ACKs, 1 ms apart, ends slow start on a 40 ms path with 80 segments in flight.
fn train_length_ms(prepare: impl Fn(&mut Flow<Cubic>)) -> Option<u32> {
    let mut flow = Flow::new(Cubic::new());
    (0..3).for_each(|_| flow.round_burst(40_000));
    assert_eq!(flow.cc.cwnd, 80);
    prepare(&mut flow);
    flow.wait_us(40_000);
    for ms in 0..64 {
        flow.ack(1, 40_000);
        if !flow.cc.in_initial_slow_start() {
            assert_eq!((flow.cc.hystart_mib.train_detect, flow.cc.hystart_mib.delay_detect), (1, 0));
            assert_eq!(flow.cc.hystart_mib.train_cwnd, flow.cc.ssthresh);
            return Some(ms);
        }
        flow.wait_us(1_000);
    }
    None
}

#[test]
fn hystart_leaves_slow_start_on_a_long_ack_train() {
    assert_eq!(train_length_ms(|_| {}), Some(21), "more than half of 40 ms");
    assert_eq!(train_length_ms(|f| f.cc.is_paced = true), Some(41), "pacing stretches trains");
    let paced_slowly = |f: &mut Flow<Cubic>| {
        f.cc.is_paced = true;
        f.cc.pacing_rate = 1_000_000;
    };
    assert_eq!(train_length_ms(paced_slowly), Some(42), "super-packets bunch ACKs by up to 1 ms");
}

#[test]
fn a_gap_ends_the_train_for_the_round() {
    let mut flow = pairs_after(200_000);
    flow.ack(2, 200_000);
    for _ in 0..8 {
        flow.wait_us(3_000);
        flow.ack(2, 200_000);
    }
    flow.wait_us(100_000);
    flow.ack(1, 200_000);
    flow.wait_us(1_000);
    flow.ack(1, 200_000);
    assert_eq!(flow.cc.ssthresh, INFINITE_SSTHRESH);
}

#[test]
fn small_windows_are_not_judged() {
    let mut flow = Flow::new(Cubic::new());
    flow.ack(1, 10_000);
    flow.cc.ssthresh = 15;
    for _ in 0..12 {
        flow.cc.cwnd = 14;
        flow.ack(0, 100_000);
    }
    assert_eq!((flow.cc.ssthresh, flow.cc.hystart_mib), (15, HystartMib::default()));
}

#[test]
fn a_timeout_forgets_the_path_and_hystart_looks_again() {
    let mut flow = pairs_after(240_000);
    for _ in 0..10 {
        flow.ack(2, 240_000);
    }
    assert_eq!(flow.cc.hystart_mib.delay_detect, 1);
    flow.cc.prior_cwnd = flow.cc.cwnd;
    flow.cc.ssthresh = flow.alg.ssthresh(&flow.cc);
    flow.event(CcEvent::State(CaState::Loss));
    assert_eq!((flow.alg.last_max_cwnd, flow.alg.delay_min_us, flow.alg.epoch_ms), (0, 0, None));
    flow.cc.cwnd = 20;
    flow.send();
    flow.wait_us(100_000);
    flow.ack(1, 100_000);
    for _ in 0..9 {
        flow.ack(0, 100_000);
    }
    assert_eq!(flow.cc.hystart_mib.delay_detect, 1, "100 ms is the new minimum");
    flow.cc.ssthresh = 100;
    flow.send();
    flow.ack(40, -1);
    flow.wait_us(130_000);
    for _ in 0..9 {
        flow.ack(1, 130_000);
    }
    assert_eq!(flow.cc.hystart_mib.delay_detect, 2);
}

#[test]
fn samples_right_after_a_reduction_are_discarded() {
    let mut flow = Flow::avoiding(Cubic::new(), 50);
    flow.ack(1, 80_000);
    assert_eq!(flow.alg.delay_min_us, 80_000);
    flow.wait_us(500_000);
    flow.ack(1, 30_000);
    assert_eq!(flow.alg.delay_min_us, 80_000, "0.5 s into the epoch");
    flow.wait_us(500_000);
    flow.ack(1, 30_000);
    assert_eq!(flow.alg.delay_min_us, 30_000);
    flow.ack(1, 0);
    assert_eq!(flow.alg.delay_min_us, 1, "0 us is a sample, and 0 means none");
}
