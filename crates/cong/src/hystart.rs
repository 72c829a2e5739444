//! HyStart: leave slow start before it overflows the bottleneck (Ha and Rhee, 2011; Linux's form of it).
//!
//! A round is the time from one ACK to the ACK of everything that was outstanding then. Within a round two signs say
//! that the pipe is full, either ends slow start by setting ssthresh to cwnd:
//! - **ACK train**: ACKs follow each other within 2 ms without a gap, and the train lasts longer than half the minimum
//!   RTT. The window then spans the one-way pipe. With pacing a train may be stretched by up to half an RTT without
//!   meaning anything, so the whole RTT is required. A sender or receiver that bundles segments into super-packets
//!   bunches ACKs as well, so what 4 of the largest super-packets take at the pacing rate (at most 1 ms) is added.
//! - **Delay increase**: the smallest of at least 8 RTT samples of the round exceeds the minimum RTT by 1/8 of it, held
//!   within 4..16 ms. A queue is building.
//!
//! Below 16 segments neither is meaningful. Once found, HyStart is silent until the next timeout resets it; later slow
//! starts end at a finite ssthresh anyway. Limits: state is a few words, work per ACK is constant. HyStart++ (RFC 9406)
//! with its conservative phase is a different algorithm.

use crate::state::CcState;
use linerate_base::{Instant, Seq};

/// Smallest cwnd, in wire segments, at which HyStart looks.
const LOW_WINDOW: u32 = 16;
/// RTT samples of a round that must be seen before the delay is judged.
const MIN_SAMPLES: u8 = 8;
/// Bounds of the tolerated delay increase, microseconds.
const DELAY_MIN_US: u32 = 4_000;
const DELAY_MAX_US: u32 = 16_000;
/// Largest gap between two ACKs of a train, microseconds.
const ACK_DELTA_US: u32 = 2_000;
/// Most that super-packets can add to the length of a train, microseconds.
const ACK_DELAY_MAX_US: u64 = 1_000;

/// Times that HyStart ended slow start, and the windows at which it did: Linux's `TcpExtTCPHystart*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HystartMib {
    /// `TCPHystartTrainDetect`.
    pub train_detect: u32,
    /// `TCPHystartTrainCwnd`: sum of cwnd at those times, wire segments.
    pub train_cwnd: u32,
    /// `TCPHystartDelayDetect`.
    pub delay_detect: u32,
    /// `TCPHystartDelayCwnd`: sum of cwnd at those times, wire segments.
    pub delay_cwnd: u32,
}

/// HyStart's memory of the current round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hystart {
    round_start: Instant,
    last_ack: Instant,
    /// The round ends when a byte beyond this one is acknowledged.
    end_seq: Seq,
    /// Smallest RTT of the round, microseconds.
    curr_rtt_us: u32,
    sample_cnt: u8,
    found: bool,
}

impl Hystart {
    /// Forget that slow start was ended, and begin a round.
    pub(crate) fn restart(&mut self, cc: &CcState, now: Instant) {
        self.found = false;
        self.begin_round(cc, now);
    }

    fn begin_round(&mut self, cc: &CcState, now: Instant) {
        self.round_start = now;
        self.last_ack = now;
        self.end_seq = cc.snd_nxt;
        self.curr_rtt_us = u32::MAX;
        self.sample_cnt = 0;
    }

    /// An RTT sample of `rtt_us`, already reflected in `delay_min_us` (the path's minimum). May set ssthresh to cwnd.
    #[inline]
    pub(crate) fn on_rtt(&mut self, cc: &mut CcState, now: Instant, rtt_us: u32, delay_min_us: u32) {
        debug_assert!(delay_min_us <= rtt_us, "the minimum includes the sample");
        if self.found || !cc.in_slow_start() {
            return;
        }
        if cc.snd_una.gt(self.end_seq) {
            self.begin_round(cc, now);
        }
        if cc.cwnd >= LOW_WINDOW {
            self.look(cc, now, rtt_us, delay_min_us);
        }
    }

    /// Both signs, at a window at which they mean something.
    fn look(&mut self, cc: &mut CcState, now: Instant, rtt_us: u32, delay_min_us: u32) {
        if self.train_is_long(cc, now, delay_min_us) {
            self.found = true;
            cc.hystart_mib.train_detect = cc.hystart_mib.train_detect.wrapping_add(1);
            cc.hystart_mib.train_cwnd = cc.hystart_mib.train_cwnd.wrapping_add(cc.cwnd);
        }
        if self.delay_grew(rtt_us, delay_min_us) {
            self.found = true;
            cc.hystart_mib.delay_detect = cc.hystart_mib.delay_detect.wrapping_add(1);
            cc.hystart_mib.delay_cwnd = cc.hystart_mib.delay_cwnd.wrapping_add(cc.cwnd);
        }
        if self.found {
            cc.ssthresh = cc.cwnd;
        }
    }

    fn train_is_long(&mut self, cc: &CcState, now: Instant, delay_min_us: u32) -> bool {
        if now.micros_since(self.last_ack) > ACK_DELTA_US {
            return false;
        }
        self.last_ack = now;
        let whole = delay_min_us.saturating_add(super_packet_delay_us(cc));
        let threshold = if cc.is_paced { whole } else { whole / 2 };
        now.micros_since(self.round_start) > threshold
    }

    fn delay_grew(&mut self, rtt_us: u32, delay_min_us: u32) -> bool {
        self.curr_rtt_us = self.curr_rtt_us.min(rtt_us);
        if self.sample_cnt < MIN_SAMPLES {
            self.sample_cnt += 1;
            return false;
        }
        let tolerated = (delay_min_us / 8).clamp(DELAY_MIN_US, DELAY_MAX_US);
        self.curr_rtt_us > delay_min_us.saturating_add(tolerated)
    }
}

/// Time that four of the largest super-packets take at the pacing rate; 0 while no rate is known.
fn super_packet_delay_us(cc: &CcState) -> u32 {
    let us = (u64::from(cc.gso_max_size) * 4 * 1_000_000).checked_div(cc.pacing_rate);
    us.unwrap_or(0).min(ACK_DELAY_MAX_US) as u32
}
