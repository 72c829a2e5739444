//! CUBIC with Linux's constants and arithmetic (RFC 9438; HyStart for slow start).
//!
//! After a reduction at window `W_max`, the window follows `W(t) = C (t - K)^3 + W_max`, with `C = 0.4`, t in seconds since
//! growth resumed, and `K = cbrt((W_max - cwnd) / C)`: fast far from `W_max`, flat around it, then probing ever faster.
//!
//! ```text
//! cwnd                          .'    convex: probing for more
//!   W_max ............____.--''
//!                 .--'                flat around W_max, reached at t = K
//! 0.7 W_max ----+'                    concave: back to where it was
//!               0         K        t
//! ```
//!
//! The curve is not followed by setting cwnd. Every ACK brings `cnt`, how many acknowledged segments earn one segment, so
//! that the curve's value one minimum RTT ahead is reached in one RTT. `cnt >= 2`: never more than 1.5 times per RTT.
//! Where Reno with the same mean (`alpha = 3 (1-beta) / (1+beta)`) would be faster, its estimate limits `cnt`.
//!
//! Time is in milliseconds for the curve (Linux's jiffies at HZ = 1000), scaled by 1024 to a second; cwnd counts wire
//! segments; everything is integer. Differences from Linux are only where its numbers wrap or err: the cube root is exact
//! and offsets from K saturate, so hours of growth end at the clamp and not at a wrapped value.
//! Not here: ECN's different beta, and the RFC's `W_est` after reaching `W_max` (Linux has neither).

use crate::algorithm::CongestionControl;
use crate::hystart::Hystart;
use crate::state::{CaState, CcEvent, CcState, RateSample};
use linerate_base::Instant;

#[cfg(test)]
mod tests;

/// Fixed-point one of `BETA`.
const BETA_ONE: u64 = 1024;
/// Multiplicative decrease, 0.7.
const BETA: u64 = 717;
/// C in 1/1024: 0.4004. C scaled by the fixed point of time cubed is what one unit of `delta` is worth.
const C_SCALED: u64 = 410;
/// Fractional bits of t and K: units of 1/1024 s.
const TIME_SHIFT: u32 = 10;
/// Fractional bits of `C_SCALED * offset^3`.
const DELTA_SHIFT: u32 = 10 + 3 * TIME_SHIFT;
/// `K = cbrt(K_FACTOR * distance)`.
const K_FACTOR: u64 = (1 << DELTA_SHIFT) / C_SCALED;
/// Reno's estimate grows by one for each `cwnd * RENO_SCALE / 8` segments: 1/alpha in eighths, rounded down.
const RENO_SCALE: u64 = 8 * (BETA_ONE + BETA) / 3 / (BETA_ONE - BETA);
/// The curve is computed anew at most this often while cwnd stands still, milliseconds.
const UPDATE_MS: u64 = 1000 / 32;
/// RTT samples are not trusted for so long after growth resumed, milliseconds: they show the queue of before.
const DISCARD_MS: u64 = 1000;
/// Slowest growth while no W_max is known: 5 % per RTT.
const CNT_MAX_INITIAL: u32 = 20;
/// Fastest growth: 50 % per RTT.
const CNT_MIN: u32 = 2;

/// CUBIC congestion control.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cubic {
    /// Segments acknowledged that earn one segment of cwnd.
    cnt: u32,
    /// W_max: cwnd before the last reduction, lowered by fast convergence; 0 when none is known.
    last_max_cwnd: u32,
    /// cwnd and time, in milliseconds, of the last computation.
    last_cwnd: u32,
    last_ms: u64,
    /// The plateau of the curve, wire segments.
    origin_point: u32,
    /// Time from the epoch's start to the plateau, 1/1024 s.
    k: u32,
    /// Smallest RTT seen, microseconds; 0 when none.
    delay_min_us: u32,
    /// When growth resumed, in milliseconds; `None` from a reduction to the first ACK after it.
    epoch_ms: Option<u64>,
    /// Segments acknowledged that Reno's estimate has not used up.
    ack_cnt: u32,
    /// What Reno's window would be.
    reno_cwnd: u32,
    hystart: Hystart,
}

impl Cubic {
    /// CUBIC in its initial state.
    pub fn new() -> Self {
        Self::default()
    }

    fn reset(&mut self, cc: &CcState, now: Instant) {
        *self = Self { hystart: self.hystart, ..Self::default() };
        self.hystart.restart(cc, now);
    }

    /// Computes `cnt` for a window of `cwnd`, `acked` segments having been acknowledged.
    fn update(&mut self, cwnd: u32, acked: u32, now_ms: u64) {
        self.ack_cnt = self.ack_cnt.saturating_add(acked);
        if self.last_cwnd == cwnd && now_ms.saturating_sub(self.last_ms) <= UPDATE_MS {
            return;
        }
        // Within one millisecond the curve does not move; only Reno's estimate, which counts ACKs, does.
        if self.epoch_ms.is_none() || now_ms != self.last_ms {
            self.last_cwnd = cwnd;
            self.last_ms = now_ms;
            let epoch_ms = match self.epoch_ms {
                Some(ms) => ms,
                None => self.begin_epoch(cwnd, acked, now_ms),
            };
            self.cnt = self.curve_cnt(cwnd, now_ms.saturating_sub(epoch_ms));
        }
        self.follow_reno(cwnd);
        self.cnt = self.cnt.max(CNT_MIN);
    }

    fn begin_epoch(&mut self, cwnd: u32, acked: u32, now_ms: u64) -> u64 {
        self.epoch_ms = Some(now_ms);
        self.ack_cnt = acked;
        self.reno_cwnd = cwnd;
        self.origin_point = self.last_max_cwnd.max(cwnd);
        // K_FACTOR < 2^32, so the product fits and its root has at most 22 bits.
        self.k = cbrt(K_FACTOR * u64::from(self.origin_point - cwnd));
        now_ms
    }

    /// RFC 9438 section 4.2 with t one minimum RTT ahead, as segments to acknowledge per segment of growth.
    fn curve_cnt(&self, cwnd: u32, elapsed_ms: u64) -> u32 {
        let ahead_ms = u64::from(self.delay_min_us.div_ceil(1000));
        let t = ((elapsed_ms.min(u64::from(u32::MAX)) + ahead_ms) << TIME_SHIFT) / 1000;
        let k = u64::from(self.k);
        let offset = u128::from(t.abs_diff(k));
        let delta = u32::try_from((u128::from(C_SCALED) * offset * offset * offset) >> DELTA_SHIFT).unwrap_or(u32::MAX);
        let target =
            if t < k { self.origin_point.saturating_sub(delta) } else { self.origin_point.saturating_add(delta) };
        let cnt = if target > cwnd { cwnd / (target - cwnd) } else { cwnd.saturating_mul(100) };
        if self.last_max_cwnd == 0 { cnt.min(CNT_MAX_INITIAL) } else { cnt }
    }

    /// RFC 9438 section 4.3: at small windows and RTTs, be no slower than Reno.
    fn follow_reno(&mut self, cwnd: u32) {
        let per_segment = ((u64::from(cwnd) * RENO_SCALE) >> 3).max(1);
        let steps = u64::from(self.ack_cnt.saturating_sub(1)) / per_segment;
        // `steps * per_segment < ack_cnt`, so both fit.
        self.ack_cnt -= (steps * per_segment) as u32;
        self.reno_cwnd = self.reno_cwnd.saturating_add(steps as u32);
        if self.reno_cwnd > cwnd {
            self.cnt = self.cnt.min(cwnd / (self.reno_cwnd - cwnd));
        }
    }

    /// Idle time is no growth time: the epoch moves with it, so the curve goes on where it stopped.
    fn shift_epoch(&mut self, cc: &CcState, now: Instant) {
        let now_ms = now.as_millis();
        let idle_ms = now_ms.saturating_sub(cc.lsnd_time.as_millis());
        if let Some(epoch_ms) = self.epoch_ms.as_mut() {
            *epoch_ms = epoch_ms.saturating_add(idle_ms).min(now_ms);
        }
    }
}

impl CongestionControl for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn ssthresh(&mut self, cc: &CcState) -> u32 {
        let cwnd = u64::from(cc.cwnd);
        self.epoch_ms = None;
        // Fast convergence (RFC 9438 section 4.7): a second reduction before W_max was reached means that others want a share.
        let w_max = if cc.cwnd < self.last_max_cwnd { cwnd * (BETA_ONE + BETA) / (2 * BETA_ONE) } else { cwnd };
        self.last_max_cwnd = w_max as u32;
        ((cwnd * BETA / BETA_ONE) as u32).max(2)
    }

    #[inline]
    fn cong_avoid(&mut self, cc: &mut CcState, now: Instant, acked: u32) {
        if cc.cwnd_limited() {
            self.grow(cc, now, acked);
        }
    }

    #[inline]
    fn pkts_acked(&mut self, cc: &mut CcState, now: Instant, rs: &RateSample) {
        if let Ok(rtt_us) = u64::try_from(rs.rtt_us) {
            self.on_rtt(cc, now, u32::try_from(rtt_us).unwrap_or(u32::MAX));
        }
    }

    fn undo_cwnd(&mut self, cc: &CcState) -> u32 {
        cc.reno_undo_cwnd()
    }

    #[inline]
    fn on_event(&mut self, cc: &mut CcState, now: Instant, ev: CcEvent) {
        match ev {
            CcEvent::Init | CcEvent::State(CaState::Loss) => self.reset(cc, now),
            CcEvent::TxStart if self.epoch_ms.is_some() => self.shift_epoch(cc, now),
            _ => {}
        }
    }
}

/// What ACKs do.
impl Cubic {
    /// cwnd is in use and may grow.
    fn grow(&mut self, cc: &mut CcState, now: Instant, acked: u32) {
        let left = if cc.in_slow_start() { cc.slow_start(acked) } else { acked };
        if left > 0 {
            self.update(cc.cwnd, left, now.as_millis());
            cc.cong_avoid_ai(self.cnt, left);
        }
    }

    /// A round trip was measured.
    #[inline]
    pub(crate) fn on_rtt(&mut self, cc: &mut CcState, now: Instant, rtt_us: u32) {
        if self.epoch_ms.is_some_and(|ms| now.as_millis().saturating_sub(ms) < DISCARD_MS) {
            return;
        }
        let rtt_us = rtt_us.max(1);
        if self.delay_min_us == 0 || rtt_us < self.delay_min_us {
            self.delay_min_us = rtt_us;
        }
        self.hystart.on_rtt(cc, now, rtt_us, self.delay_min_us);
    }
}

/// Floor of the cube root, exactly: Newton's iteration from above, at most about 20 steps.
fn cbrt(n: u64) -> u32 {
    if n == 0 {
        return 0;
    }
    // A power of two that is not below the root: from there Newton decreases until it reaches the floor.
    let mut x = 1u64 << (64 - n.leading_zeros()).div_ceil(3);
    loop {
        let next = (2 * x + n / (x * x)) / 3;
        if next >= x {
            return x as u32;
        }
        x = next;
    }
}
