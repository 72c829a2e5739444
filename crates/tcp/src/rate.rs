//! Delivery-rate samples (draft-cheng-iccrg-delivery-rate-estimation), per ACK.
//!
//! Each segment remembers, at transmission, how much had been delivered and when. When it is delivered, the connection
//! knows how much was delivered over at least one round trip. A sample spans the longer of the send and the ACK phase, so
//! that neither bursts nor compressed ACKs inflate it; samples shorter than the least RTT are discarded. While the
//! application has too little to send, samples say so and only count if they are higher than the known rate.
//!
//! [`Sample`] gathers what one ACK delivers; [`Tx::rate_gen`] makes the congestion control's [`RateSample`] from it.
//! Not here: pacing. Only its rate is estimated (Linux's formula), because super-packets are sized by it.

use linerate_base::{Instant, Seq};
use linerate_cong::RateSample;

use crate::conn::Conn;
use crate::tx::Tx;
use crate::txq::{TxSeg, tag};

/// Pacing rate in percent of cwnd / srtt in slow start: `tcp_pacing_ss_ratio`.
const PACING_SS_RATIO: u64 = 200;
/// The same in congestion avoidance: `tcp_pacing_ca_ratio`.
const PACING_CA_RATIO: u64 = 120;

/// The most recently sent of the segments that one ACK delivers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    prior_delivered: u32,
    prior_at: Option<Instant>,
    send_us: u32,
    last: Option<(Instant, Seq)>,
    app_limited: bool,
    retrans: bool,
}

impl Sample {
    /// `Tx::delivered` when the sampled segment was sent; `None` without a sample.
    pub(crate) fn prior_delivered(&self) -> Option<u32> {
        self.prior_at.map(|_| self.prior_delivered)
    }
}

/// Was (t1, end1) sent after (t2, end2)? Segments of one instant are in sequence order.
pub(crate) fn sent_after(t1: Instant, end1: Seq, t2: Instant, end2: Seq) -> bool {
    t1 > t2 || (t1 == t2 && end1.gt(end2))
}

impl Tx {
    /// A segment is delivered, by ACK or SACK: remember the snapshot of the one that was sent last.
    pub(crate) fn rate_delivered(&mut self, rs: &mut Sample, seg: &TxSeg) {
        if seg.has(tag::RATE_DONE) {
            return;
        }
        if rs.last.is_none_or(|(at, end)| sent_after(seg.tx_at, seg.end_seq, at, end)) {
            rs.prior_delivered = seg.delivered;
            rs.prior_at = Some(seg.delivered_at);
            rs.app_limited = seg.has(tag::APP_LIMITED);
            rs.retrans = seg.has(tag::EVER_RETRANS);
            rs.last = Some((seg.tx_at, seg.end_seq));
            rs.send_us = seg.tx_at.micros_since(seg.first_tx_at);
            self.fl.first_tx_at = seg.tx_at;
        }
    }

    /// Ends the ACK: `delivered` and `lost` are the wire segments that it delivered and condemned.
    pub(crate) fn rate_gen(&mut self, now: Instant, rs: &Sample, delivered: u32, lost: u32, out: &mut RateSample) {
        let (total, min_rtt) = (self.delivered, self.min_rtt.get());
        let reneg = self.flag(crate::tx::flag::SACK_RENEG);
        let fl = &mut *self.fl;
        if fl.app_limited != 0 && (total.wrapping_sub(fl.app_limited) as i32) > 0 {
            fl.app_limited = 0;
        }
        if delivered > 0 {
            fl.delivered_at = now;
        }
        out.acked_sacked = delivered;
        out.losses = lost;
        let Some(prior_at) = rs.prior_at.filter(|_| !reneg) else { return };
        let count = total.wrapping_sub(rs.prior_delivered);
        out.prior_delivered = u64::from(rs.prior_delivered);
        out.delivered = i64::from(count);
        (out.is_app_limited, out.is_retrans) = (rs.app_limited, rs.retrans);
        let us = rs.send_us.max(now.micros_since(prior_at));
        if us < min_rtt || us == 0 {
            return;
        }
        out.interval_us = i64::from(us);
        let faster = u64::from(count) * u64::from(fl.rate_interval_us) >= u64::from(fl.rate_delivered) * u64::from(us);
        if !rs.app_limited || faster {
            (fl.rate_delivered, fl.rate_interval_us, fl.rate_app_limited) = (count, us, rs.app_limited);
        }
    }

    /// The rate at which pacing would send, bytes per second: cwnd per srtt, with a margin to keep probing.
    #[inline]
    pub(crate) fn update_pacing_rate(&mut self) {
        let ratio = if self.cc.cwnd < self.cc.ssthresh / 2 { PACING_SS_RATIO } else { PACING_CA_RATIO };
        let window = u64::from(self.cc.cwnd.max(self.packets_out)) * u64::from(self.cc.mss);
        let per_byte = ratio * (8_000_000 / 100);
        let srtt = self.srtt_us8.max(1);
        self.cc.pacing_rate = match window.checked_mul(per_byte) {
            Some(n) => n / u64::from(srtt),
            // A terabyte in flight.
            None => u64::try_from(u128::from(window) * u128::from(per_byte) / u128::from(srtt)).unwrap_or(u64::MAX),
        };
    }
}

impl Conn {
    /// Before a write: was the sender about to run dry? Then what is sent from now on measures the application.
    pub(crate) fn check_app_limited(&mut self) {
        let tx = &mut self.tx;
        if !tx.fl.is_born() {
            return;
        }
        let dry = tx.write_seq - tx.snd_nxt < tx.cc.mss
            && tx.wmem_alloc <= linerate_skb::SKB_TRUESIZE
            && tx.in_flight() < tx.cc.cwnd
            && tx.lost_out <= tx.retrans_out;
        if dry {
            tx.fl.app_limited = tx.delivered.wrapping_add(tx.in_flight()).max(1);
        }
    }
}
