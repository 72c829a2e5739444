//! A synthetic ACK clock, and what holds for every algorithm: growth, reduction, undo, limits.
//!
//! [`Flow`] plays the connection: it keeps `CcState` current and calls an algorithm in the order that the crate's head
//! prescribes. Windows are compared as exact numbers of wire segments.

use crate::{Algorithm, CaState, CcEvent, CcState, CongestionControl, INFINITE_SSTHRESH, RateSample, Reno};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use linerate_base::{Instant, Seq};
use proptest::prelude::*;

/// One connection that always has data to send.
pub(crate) struct Flow<A> {
    pub(crate) cc: CcState,
    pub(crate) alg: A,
    pub(crate) now: Instant,
}

impl<A: CongestionControl> Flow<A> {
    pub(crate) fn new(alg: A) -> Self {
        let cc = CcState { mss: 1000, is_cwnd_limited: true, ..CcState::default() };
        let mut flow = Self { cc, alg, now: Instant::from_secs(1) };
        flow.event(CcEvent::Init);
        flow.send();
        flow
    }

    /// Starts in congestion avoidance at `cwnd`.
    pub(crate) fn avoiding(alg: A, cwnd: u32) -> Self {
        let mut flow = Self::new(alg);
        flow.cc.cwnd = cwnd;
        flow.cc.ssthresh = cwnd;
        flow.send();
        flow
    }

    pub(crate) fn event(&mut self, ev: CcEvent) {
        self.alg.on_event(&mut self.cc, self.now, ev);
    }

    pub(crate) fn send(&mut self) {
        self.cc.snd_nxt = self.cc.snd_una + self.cc.cwnd * self.cc.mss;
        self.cc.lsnd_time = self.now;
    }

    pub(crate) fn wait_us(&mut self, us: u64) {
        self.now = self.now.plus_micros(us);
    }

    /// An ACK of `acked` segments that took `rtt_us`, and transmission of what it allows.
    pub(crate) fn ack(&mut self, acked: u32, rtt_us: i64) {
        self.cc.snd_una += acked * self.cc.mss;
        let rs = RateSample { rtt_us, acked_sacked: acked, ..RateSample::default() };
        self.alg.pkts_acked(&mut self.cc, self.now, &rs);
        self.alg.cong_avoid(&mut self.cc, self.now, acked);
        self.send();
    }

    /// One round trip whose ACKs, each of up to two segments, arrive together at its end.
    pub(crate) fn round_burst(&mut self, rtt_us: u32) {
        let mut left = self.cc.cwnd;
        self.wait_us(u64::from(rtt_us));
        while left > 0 {
            let n = left.min(2);
            self.ack(n, i64::from(rtt_us));
            left -= n;
        }
    }

    /// One round trip whose ACKs, each of up to two segments, are spread evenly over it.
    pub(crate) fn round(&mut self, rtt_us: u32) {
        let (start, total) = (self.now, self.cc.cwnd);
        let mut done = 0;
        while done < total {
            let n = (total - done).min(2);
            done += n;
            self.now = start.plus_micros(u64::from(rtt_us) * u64::from(done) / u64::from(total));
            self.ack(n, i64::from(rtt_us));
        }
    }

    /// A loss that recovery repaired: cwnd ends at ssthresh.
    pub(crate) fn reduce(&mut self) {
        self.cc.prior_cwnd = self.cc.cwnd;
        self.cc.ssthresh = self.alg.ssthresh(&self.cc);
        self.event(CcEvent::State(CaState::Recovery));
        self.cc.cwnd = self.cc.ssthresh;
        self.cc.cwnd_cnt = 0;
        self.event(CcEvent::CompleteCwr);
    }
}

#[test]
fn names_are_those_of_the_algorithms() {
    for name in Algorithm::names() {
        assert_eq!(Algorithm::by_name(name).map(|a| a.name()), Some(*name));
    }
    assert!(Algorithm::by_name("vegas").is_none());
    assert_eq!(Algorithm::default().name(), "cubic");
    assert_eq!(Algorithm::Custom(Box::new(Reno)).name(), "reno");
}

#[test]
fn slow_start_doubles_each_round() {
    for name in Algorithm::names() {
        let mut flow = Flow::new(Algorithm::by_name(name).unwrap());
        let windows: Vec<u32> = (0..6)
            .map(|_| {
                flow.round_burst(100_000);
                flow.cc.cwnd
            })
            .collect();
        assert_eq!(windows, [20, 40, 80, 160, 320, 640], "{name}");
        assert!(flow.cc.in_initial_slow_start());
    }
}

#[test]
fn slow_start_stops_at_ssthresh_and_hands_on_the_rest() {
    let mut cc = CcState { cwnd: 10, ssthresh: 14, ..CcState::default() };
    assert_eq!(cc.slow_start(10), 6);
    assert_eq!((cc.cwnd, cc.in_slow_start()), (14, false));
    assert_eq!(cc.slow_start(5), 5, "nothing is taken above ssthresh");
    assert_eq!(cc.cwnd, 14);
}

#[test]
fn additive_increase_is_one_segment_per_w() {
    let mut cc = CcState { cwnd: 10, ..CcState::default() };
    cc.cong_avoid_ai(10, 9);
    assert_eq!((cc.cwnd, cc.cwnd_cnt), (10, 9));
    cc.cong_avoid_ai(10, 1);
    assert_eq!((cc.cwnd, cc.cwnd_cnt), (11, 0));
    cc.cong_avoid_ai(10, 25);
    assert_eq!((cc.cwnd, cc.cwnd_cnt), (13, 5), "a stretched ACK counts in full");
    // Credit of 9 under w = 10 is one segment when w falls to 2, not four.
    cc.cwnd_cnt = 9;
    cc.cong_avoid_ai(2, 1);
    assert_eq!((cc.cwnd, cc.cwnd_cnt), (14, 1));
}

#[test]
fn reno_grows_by_one_each_round_and_halves() {
    let mut flow = Flow::avoiding(Reno, 20);
    for expected in 21..40 {
        flow.round(50_000);
        assert_eq!(flow.cc.cwnd, expected);
    }
    flow.reduce();
    assert_eq!((flow.cc.cwnd, flow.cc.ssthresh), (19, 19));
    assert_eq!(flow.alg.undo_cwnd(&flow.cc), 39, "undo restores");
    flow.cc.cwnd = 50;
    assert_eq!(flow.alg.undo_cwnd(&flow.cc), 50, "undo never shrinks");
    flow.cc.cwnd = 1;
    assert_eq!(flow.alg.ssthresh(&flow.cc), 2);
}

#[test]
fn nothing_grows_while_the_window_is_not_used() {
    for name in Algorithm::names() {
        let mut flow = Flow::new(Algorithm::by_name(name).unwrap());
        flow.cc.is_cwnd_limited = false;
        flow.cc.max_packets_out = 5;
        flow.round_burst(50_000);
        assert_eq!(flow.cc.cwnd, 10, "{name}: half of the window is in use, not more");
        flow.cc.max_packets_out = 6;
        flow.ack(1, 50_000);
        assert_eq!(flow.cc.cwnd, 11, "{name}: more than half is enough in slow start");
        flow.cc.ssthresh = flow.cc.cwnd;
        flow.cc.max_packets_out = flow.cc.cwnd;
        flow.round_burst(50_000);
        flow.round_burst(50_000);
        assert_eq!(flow.cc.cwnd, 11, "{name}: but not in congestion avoidance");
    }
}

#[test]
fn the_clamp_holds() {
    for name in Algorithm::names() {
        let mut flow = Flow::new(Algorithm::by_name(name).unwrap());
        flow.cc.cwnd_clamp = 33;
        for _ in 0..8 {
            flow.round_burst(20_000);
            assert!(flow.cc.cwnd <= 33);
        }
        assert_eq!(flow.cc.cwnd, 33, "{name}");
    }
}

/// cwnd at the end of each round over a path that loses when the window exceeds `limit`.
fn sawtooth(name: &str, rtt_us: u32, limit: u32, rounds: u32) -> Vec<u32> {
    let mut flow = Flow::new(Algorithm::by_name(name).unwrap());
    (0..rounds)
        .map(|_| {
            flow.round(rtt_us);
            if flow.cc.cwnd > limit {
                flow.reduce();
            }
            flow.cc.cwnd
        })
        .collect()
}

#[test]
fn cwnd_per_round() {
    let mut table = String::new();
    for name in Algorithm::names() {
        for (rtt_us, limit) in [(500, 40), (10_000, 100), (50_000, 400), (200_000, 400)] {
            writeln!(table, "{name} rtt_us={rtt_us} limit={limit}").unwrap();
            for line in sawtooth(name, rtt_us, limit, 80).chunks(20) {
                for cwnd in line {
                    write!(table, " {cwnd:>4}").unwrap();
                }
                writeln!(table).unwrap();
            }
        }
    }
    insta::assert_snapshot!(table);
}

fn extreme_u32() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0u32), Just(1), Just(2), Just(u32::MAX), Just(INFINITE_SSTHRESH), 0u32..100, any::<u32>()]
}

fn extreme_i64() -> impl Strategy<Value = i64> {
    prop_oneof![Just(-1i64), Just(0), Just(i64::MAX), Just(i64::MIN), 0i64..1_000_000, any::<i64>()]
}

fn event() -> impl Strategy<Value = CcEvent> {
    prop_oneof![
        Just(CcEvent::Init),
        Just(CcEvent::State(CaState::Loss)),
        Just(CcEvent::State(CaState::Open)),
        Just(CcEvent::TxStart),
        Just(CcEvent::CwndRestart),
        Just(CcEvent::EcnIsCe),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Acked { rtt_us: i64, una: u32, nxt: u32 },
    Avoid(u32),
    Reduce,
    Undo,
    Event(CcEvent),
    Leap(u64),
    Set { cwnd: u32, ssthresh: u32, clamp: u32, pacing_rate: u64, is_paced: bool },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (extreme_i64(), any::<u32>(), any::<u32>()).prop_map(|(rtt_us, una, nxt)| Op::Acked { rtt_us, una, nxt }),
        4 => extreme_u32().prop_map(Op::Avoid),
        1 => Just(Op::Reduce),
        1 => Just(Op::Undo),
        1 => event().prop_map(Op::Event),
        3 => prop_oneof![0u64..2_000_000_000, any::<u64>()].prop_map(Op::Leap),
        2 => (extreme_u32(), extreme_u32(), extreme_u32(), any::<u64>(), any::<bool>()).prop_map(
            |(cwnd, ssthresh, clamp, pacing_rate, is_paced)| Op::Set { cwnd, ssthresh, clamp, pacing_rate, is_paced }
        ),
    ]
}

proptest! {
    /// Whatever the numbers: no panic, no overflow (the test profile checks), cwnd in 1..=clamp, ssthresh >= 2.
    #[test]
    fn no_input_breaks_the_window(name in prop::sample::select(Algorithm::names()), ops in prop::collection::vec(op(), 1..60)) {
        let mut flow = Flow::new(Algorithm::by_name(name).unwrap());
        flow.now = Instant::ZERO;
        for op in ops {
            match op {
                Op::Acked { rtt_us, una, nxt } => {
                    (flow.cc.snd_una, flow.cc.snd_nxt) = (Seq(una), Seq(nxt));
                    let rs = RateSample { rtt_us, ..RateSample::default() };
                    flow.alg.pkts_acked(&mut flow.cc, flow.now, &rs);
                }
                Op::Avoid(acked) => {
                    let before = flow.cc.cwnd;
                    flow.alg.cong_avoid(&mut flow.cc, flow.now, acked);
                    prop_assert!(flow.cc.cwnd >= before.min(flow.cc.cwnd_clamp), "an ACK never shrinks the window");
                }
                Op::Reduce => {
                    let ssthresh = flow.alg.ssthresh(&flow.cc);
                    prop_assert!(ssthresh >= 2 && (ssthresh <= flow.cc.cwnd || ssthresh == 2));
                    flow.cc.prior_cwnd = flow.cc.cwnd;
                    (flow.cc.ssthresh, flow.cc.cwnd) = (ssthresh, ssthresh.min(flow.cc.cwnd_clamp));
                }
                Op::Undo => {
                    let cwnd = flow.alg.undo_cwnd(&flow.cc);
                    prop_assert!(cwnd >= flow.cc.cwnd);
                    flow.cc.cwnd = cwnd.min(flow.cc.cwnd_clamp);
                }
                Op::Event(ev) => flow.event(ev),
                Op::Leap(ns) => flow.now = Instant::from_nanos(flow.now.as_nanos().saturating_add(ns)),
                Op::Set { cwnd, ssthresh, clamp, pacing_rate, is_paced } => {
                    flow.cc.cwnd_clamp = clamp.max(1);
                    flow.cc.cwnd = cwnd.clamp(1, flow.cc.cwnd_clamp);
                    flow.cc.ssthresh = ssthresh;
                    (flow.cc.pacing_rate, flow.cc.is_paced) = (pacing_rate, is_paced);
                }
            }
            prop_assert!(flow.cc.cwnd >= 1 && flow.cc.cwnd <= flow.cc.cwnd_clamp);
        }
    }
}
