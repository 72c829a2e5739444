//! The congestion-control interface, and the choice among algorithms.
//!
//! The interface is Linux's `tcp_congestion_ops` cut to six methods: the initialiser, the state change and the cwnd
//! event are one [`CongestionControl::on_event`], since all three say only "this happened" and want no answer.
//! [`Algorithm`] dispatches by a match, so built-in algorithms cost no allocation and no indirect call; an application's
//! own is boxed. An algorithm sees nothing of the connection but [`CcState`], and must leave `cwnd >= 1`.
//! Not here: rate-based control that sets pacing rate and cwnd on every ACK even during recovery (BBR).

use crate::cubic::Cubic;
use crate::reno::Reno;
use crate::state::{CcEvent, CcState, RateSample};
use alloc::boxed::Box;
use core::fmt;
use linerate_base::Instant;

/// How the congestion window reacts to ACKs, loss and time.
pub trait CongestionControl {
    /// Name as in `TCP_CONGESTION`: lower case, at most 15 bytes.
    fn name(&self) -> &'static str;

    /// The new ssthresh in wire segments, at least 2: asked when entering recovery, CWR or loss, before cwnd changes.
    fn ssthresh(&mut self, cc: &CcState) -> u32;

    /// Grow cwnd for `acked` wire segments newly acknowledged. Called after [`Self::pkts_acked`] of the same ACK, with
    /// `snd_una` advanced, and only while no recovery rule controls cwnd.
    fn cong_avoid(&mut self, cc: &mut CcState, now: Instant, acked: u32);

    /// Learn from an ACK. Called for every ACK that acknowledges or SACKs something, in every state.
    fn pkts_acked(&mut self, cc: &mut CcState, now: Instant, rs: &RateSample);

    /// The cwnd to restore, in wire segments, when the last reduction proves spurious.
    fn undo_cwnd(&mut self, cc: &CcState) -> u32;

    /// Something other than an ACK happened.
    fn on_event(&mut self, cc: &mut CcState, now: Instant, ev: CcEvent);
}

/// A connection's congestion control.
#[non_exhaustive]
pub enum Algorithm {
    /// RFC 5681.
    Reno(Reno),
    /// Linux's CUBIC with HyStart; the default.
    Cubic(Cubic),
    /// An application's own.
    Custom(Box<dyn CongestionControl + Send>),
}

impl Algorithm {
    /// The built-in algorithm of that name, in its initial state.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "reno" => Some(Self::Reno(Reno)),
            "cubic" => Some(Self::Cubic(Cubic::new())),
            _ => None,
        }
    }

    /// Names of the built-in algorithms, the default first.
    pub const fn names() -> &'static [&'static str] {
        &["cubic", "reno"]
    }
}

impl Algorithm {
    /// [`CongestionControl::pkts_acked`] of an ACK with a round trip of `rtt_us`; `sample` makes all of what the ACK taught,
    /// for an algorithm that asks for more.
    #[inline]
    pub fn pkts_acked_plain(
        &mut self,
        cc: &mut CcState,
        now: Instant,
        rtt_us: u32,
        sample: impl FnOnce() -> RateSample,
    ) {
        match self {
            Self::Reno(_) => {}
            Self::Cubic(a) => a.on_rtt(cc, now, rtt_us),
            Self::Custom(a) => a.pkts_acked(cc, now, &sample()),
        }
    }
}

impl Default for Algorithm {
    fn default() -> Self {
        Self::Cubic(Cubic::new())
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reno(a) => a.fmt(f),
            Self::Cubic(a) => a.fmt(f),
            Self::Custom(a) => write!(f, "Custom({})", a.name()),
        }
    }
}

macro_rules! dispatch {
    ($self:ident, $a:ident => $call:expr) => {
        match $self {
            Algorithm::Reno($a) => $call,
            Algorithm::Cubic($a) => $call,
            Algorithm::Custom($a) => $call,
        }
    };
}

impl CongestionControl for Algorithm {
    fn name(&self) -> &'static str {
        dispatch!(self, a => a.name())
    }
    fn ssthresh(&mut self, cc: &CcState) -> u32 {
        dispatch!(self, a => a.ssthresh(cc))
    }
    #[inline]
    fn cong_avoid(&mut self, cc: &mut CcState, now: Instant, acked: u32) {
        dispatch!(self, a => a.cong_avoid(cc, now, acked));
    }
    fn pkts_acked(&mut self, cc: &mut CcState, now: Instant, rs: &RateSample) {
        dispatch!(self, a => a.pkts_acked(cc, now, rs));
    }
    fn undo_cwnd(&mut self, cc: &CcState) -> u32 {
        dispatch!(self, a => a.undo_cwnd(cc))
    }
    #[inline]
    fn on_event(&mut self, cc: &mut CcState, now: Instant, ev: CcEvent) {
        dispatch!(self, a => a.on_event(cc, now, ev));
    }
}
