//! Reno: slow start, one segment per round trip, halving (RFC 5681 section 3.1).
//!
//! The baseline that CUBIC must never fall behind, and the algorithm of most conformance scripts because its numbers can
//! be worked out by hand. It has no state of its own: all of it is in [`CcState`]. Growth stops while the application
//! does not fill the window. As in Linux, ssthresh is half of cwnd and not half of FlightSize; the connection's
//! cwnd validation keeps the two close. Limit: ssthresh never falls below 2 segments.

use crate::algorithm::CongestionControl;
use crate::state::{CcEvent, CcState, RateSample};
use linerate_base::Instant;

/// RFC 5681 congestion control.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reno;

impl CongestionControl for Reno {
    fn name(&self) -> &'static str {
        "reno"
    }

    fn ssthresh(&mut self, cc: &CcState) -> u32 {
        (cc.cwnd >> 1).max(2)
    }

    #[inline]
    fn cong_avoid(&mut self, cc: &mut CcState, _now: Instant, acked: u32) {
        if !cc.cwnd_limited() {
            return;
        }
        let left = if cc.in_slow_start() { cc.slow_start(acked) } else { acked };
        if left > 0 {
            cc.cong_avoid_ai(cc.cwnd, left);
        }
    }

    #[inline]
    fn pkts_acked(&mut self, _cc: &mut CcState, _now: Instant, _rs: &RateSample) {}

    fn undo_cwnd(&mut self, cc: &CcState) -> u32 {
        cc.reno_undo_cwnd()
    }

    #[inline]
    fn on_event(&mut self, _cc: &mut CcState, _now: Instant, _ev: CcEvent) {}
}
