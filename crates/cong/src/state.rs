//! What a connection and its congestion control share: cwnd, ssthresh, path measurements and events.
//!
//! [`CcState`] is the set of variables of RFC 5681 plus the few facts about the send queue that an algorithm needs. The
//! connection keeps it current (marked "by the connection" below) and algorithms change cwnd, ssthresh and counters only.
//! Window arithmetic that every loss-based algorithm has in common lives here as methods: [`CcState::slow_start`] and
//! [`CcState::cong_avoid_ai`]. All of it saturates: a window is a peer-influenced number.
//! Not here: how cwnd shrinks during recovery, or after idle time; the connection does both.

use crate::hystart::HystartMib;
use linerate_base::{Instant, Seq};

/// The ssthresh of a connection that has seen no congestion yet, as `tcp_info` reports it.
pub const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

/// How the connection stands with regard to loss; Linux's five congestion states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CaState {
    /// Nothing unusual.
    #[default]
    Open,
    /// SACKs or duplicate ACKs were seen; it may yet be mere reordering.
    Disorder,
    /// cwnd is being reduced for another reason than loss: ECN or a full local queue.
    Cwr,
    /// Fast retransmit in progress.
    Recovery,
    /// A retransmission timeout happened.
    Loss,
}

/// What an algorithm is told beside ACKs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CcEvent {
    /// The connection is established or changed its algorithm: start from nothing.
    Init,
    /// The congestion state becomes this one (sent before `CcState::ca_state` changes).
    State(CaState),
    /// First transmission with nothing in flight; `CcState::lsnd_time` still holds the previous send.
    TxStart,
    /// cwnd was set back after idle time.
    CwndRestart,
    /// A window reduction ended: cwnd equals ssthresh.
    CompleteCwr,
    /// A loss timer fired.
    Loss,
    /// A segment without a Congestion Experienced mark arrived.
    EcnNoCe,
    /// A segment with a Congestion Experienced mark arrived.
    EcnIsCe,
}

/// What one ACK taught (the rate sample of `draft-cheng-iccrg-delivery-rate-estimation`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateSample {
    /// Wire segments delivered over the interval; negative when there is no valid sample.
    pub delivered: i64,
    /// Length of the interval in microseconds; -1 when there is no valid sample.
    pub interval_us: i64,
    /// Round trip of the latest segment delivered and never retransmitted, in microseconds; -1 when none.
    pub rtt_us: i64,
    /// Wire segments newly acknowledged or SACKed by this ACK.
    pub acked_sacked: u32,
    /// Wire segments newly marked lost on this ACK.
    pub losses: u32,
    /// Wire segments in flight before this ACK.
    pub prior_in_flight: u32,
    /// The connection's delivered count when the sampled segment was sent.
    pub prior_delivered: u64,
    /// The sample was taken while the application had too little to send.
    pub is_app_limited: bool,
    /// The sampled segment had been retransmitted.
    pub is_retrans: bool,
    /// The ACK was probably held back by the peer's delayed-ACK timer.
    pub is_ack_delayed: bool,
}

impl Default for RateSample {
    /// No valid sample.
    fn default() -> Self {
        Self {
            delivered: -1,
            interval_us: -1,
            rtt_us: -1,
            acked_sacked: 0,
            losses: 0,
            prior_in_flight: 0,
            prior_delivered: 0,
            is_app_limited: false,
            is_retrans: false,
            is_ack_delayed: false,
        }
    }
}

/// The variables that a connection lends to its congestion control.
#[derive(Clone, Debug)]
pub struct CcState {
    /// Congestion window in wire segments; at least 1.
    pub cwnd: u32,
    /// Wire segments acknowledged since cwnd last grew in congestion avoidance.
    pub cwnd_cnt: u32,
    /// Upper limit of cwnd, in wire segments (by the connection).
    pub cwnd_clamp: u32,
    /// Slow start below this window, congestion avoidance from it on; in wire segments.
    pub ssthresh: u32,
    /// cwnd when the latest reduction began, for undo (by the connection).
    pub prior_cwnd: u32,
    /// Congestion state (by the connection).
    pub ca_state: CaState,
    /// In the current window cwnd, and nothing else, held transmission back (by the connection).
    pub is_cwnd_limited: bool,
    /// Most wire segments in flight in the current window, if not cwnd limited (by the connection).
    pub max_packets_out: u32,
    /// First byte not acknowledged, already advanced by the ACK being processed (by the connection).
    pub snd_una: Seq,
    /// Next byte to send (by the connection).
    pub snd_nxt: Seq,
    /// When data was last sent (by the connection).
    pub lsnd_time: Instant,
    /// Smoothed round trip in microseconds, plain and not shifted; 0 when unknown (by the connection).
    pub srtt_us: u32,
    /// Payload bytes of a full wire segment (by the connection).
    pub mss: u32,
    /// Rate that pacing would use, in bytes per second; 0 when unknown (by the connection).
    pub pacing_rate: u64,
    /// Transmission really is paced: by a timer or by the fq qdisc (by the connection).
    pub is_paced: bool,
    /// Largest super-packet of the route, in bytes (by the connection).
    pub gso_max_size: u32,
    /// What HyStart found; the connection may take and zero it.
    pub hystart_mib: HystartMib,
}

impl Default for CcState {
    /// A fresh connection: initial window 10 (RFC 6928), infinite ssthresh, no clamp.
    fn default() -> Self {
        Self {
            cwnd: 10,
            cwnd_cnt: 0,
            cwnd_clamp: u32::MAX,
            ssthresh: INFINITE_SSTHRESH,
            prior_cwnd: 0,
            ca_state: CaState::Open,
            is_cwnd_limited: false,
            max_packets_out: 0,
            snd_una: Seq(0),
            snd_nxt: Seq(0),
            lsnd_time: Instant::ZERO,
            srtt_us: 0,
            mss: 536,
            pacing_rate: 0,
            is_paced: false,
            gso_max_size: 65_536,
            hystart_mib: HystartMib::default(),
        }
    }
}

impl CcState {
    /// cwnd is below ssthresh (RFC 5681 section 3.1; equality counts as congestion avoidance, as in Linux).
    pub const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// No congestion was ever seen.
    pub const fn in_initial_slow_start(&self) -> bool {
        self.ssthresh >= INFINITE_SSTHRESH
    }

    /// Whether cwnd may grow (RFC 7661's concern): the window was in use. Slow start is more generous, half of the
    /// window in use is enough, so that a window that doubled can be probed by an application that still speeds up.
    pub const fn cwnd_limited(&self) -> bool {
        self.is_cwnd_limited || (self.in_slow_start() && self.cwnd < self.max_packets_out.saturating_mul(2))
    }

    /// Slow start (RFC 5681 section 3.1, with Appropriate Byte Counting of RFC 3465 and no limit L, as Linux): cwnd
    /// grows by what was acknowledged, up to ssthresh. Returns how many of `acked` are left for congestion avoidance.
    #[must_use]
    pub fn slow_start(&mut self, acked: u32) -> u32 {
        let grown = self.cwnd.saturating_add(acked).min(self.ssthresh.max(self.cwnd));
        let left = acked - (grown - self.cwnd);
        self.set_cwnd(grown);
        left
    }

    /// Additive increase: one segment for every `w` acknowledged; `w = cwnd` is one per round trip.
    pub fn cong_avoid_ai(&mut self, w: u32, acked: u32) {
        let w = w.max(1);
        let mut cwnd = self.cwnd;
        // Credit gathered under a larger `w` is worth one segment, not several: no burst when `w` drops suddenly.
        if self.cwnd_cnt >= w {
            self.cwnd_cnt = 0;
            cwnd = cwnd.saturating_add(1);
        }
        self.cwnd_cnt = self.cwnd_cnt.saturating_add(acked);
        if self.cwnd_cnt >= w {
            cwnd = cwnd.saturating_add(self.cwnd_cnt / w);
            self.cwnd_cnt %= w;
        }
        self.set_cwnd(cwnd);
    }

    /// The window to return to when a reduction proves spurious: what it was, unless it has grown beyond since.
    pub fn reno_undo_cwnd(&self) -> u32 {
        self.cwnd.max(self.prior_cwnd)
    }

    fn set_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd.min(self.cwnd_clamp).max(1);
    }
}
