//! Named deadlines of a connection, and what happens when they pass.
//!
//! Four deadlines besides the pacer's: retransmission (one timer for the RTO, the tail loss probe, RACK's reordering
//! timer and zero-window probes, as in Linux: only one of them makes sense at a time), delayed ACK, keepalive (also used
//! for the life time in FIN-WAIT-2 and for linger) and compressed ACK. The stack keeps one wheel node per connection at
//! [`Conn::next_timer`]; [`Conn::on_timer`] looks again at the time, so that a deadline that moved later costs nothing,
//! and a clock that leaps by hours fires each name once.
//!
//! Retries are limited by *time*, as Linux does it: `tcp_retries2 = 15` means as long as fifteen doublings of the
//! shortest RTO would take, however long the measured RTO is. Sources: RFC 6298 section 5, RFC 9293 section 3.8.3,
//! RFC 1122 section 4.2.2.17 (zero-window probes), RFC 5482 (user timeout), SYSTEMS B12.

use linerate_base::{Instant, Seq};

use crate::conn::{Conn, SocketError, ev};
use crate::cx::TcpCx;
use crate::state::State;
use crate::tx::want;

/// Names of the deadlines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// See [`RetransKind`].
    Retrans,
    /// Delayed ACK.
    Delack,
    /// Keepalive, FIN-WAIT-2, linger.
    Keepalive,
    /// Compressed ACK.
    CompAck,
    /// Pacing release.
    Pacing,
}

/// What the retransmission deadline stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum RetransKind {
    /// Nothing: the deadline is not armed.
    #[default]
    None,
    /// RFC 6298.
    Rto,
    /// RFC 8985 section 7.
    Tlp,
    /// RFC 8985 section 6.2 step 5.
    Reo,
    /// RFC 9293 section 3.8.6.1.
    Probe0,
}

/// The deadlines; [`Instant::FAR_FUTURE`] means not armed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    retrans: Instant,
    delack: Instant,
    keepalive: Instant,
    comp_ack: Instant,
    pacing: Instant,
    kind: RetransKind,
}

impl Default for Timers {
    fn default() -> Self {
        let never = Instant::FAR_FUTURE;
        Self { retrans: never, delack: never, keepalive: never, comp_ack: never, pacing: never, kind: RetransKind::None }
    }
}

impl Timers {
    fn field(&mut self, t: Timer) -> &mut Instant {
        match t {
            Timer::Retrans => &mut self.retrans,
            Timer::Delack => &mut self.delack,
            Timer::Keepalive => &mut self.keepalive,
            Timer::CompAck => &mut self.comp_ack,
            Timer::Pacing => &mut self.pacing,
        }
    }
    /// Arms or moves a deadline; [`Timer::Retrans`] goes through [`Self::set_retrans`].
    pub(crate) fn set(&mut self, t: Timer, at: Instant) {
        debug_assert!(t != Timer::Retrans, "the retransmission timer needs a kind");
        *self.field(t) = at;
    }
    /// Arms the retransmission deadline.
    pub(crate) fn set_retrans(&mut self, kind: RetransKind, at: Instant) {
        debug_assert!(kind != RetransKind::None);
        (self.kind, self.retrans) = (kind, at);
    }
    /// Disarms.
    pub(crate) fn clear(&mut self, t: Timer) {
        *self.field(t) = Instant::FAR_FUTURE;
        if t == Timer::Retrans {
            self.kind = RetransKind::None;
        }
    }
    /// Disarms everything.
    pub(crate) fn clear_all(&mut self) {
        *self = Self::default();
    }
    /// The deadline, if armed.
    pub(crate) fn get(&self, t: Timer) -> Option<Instant> {
        let at = *{ *self }.field(t);
        (at != Instant::FAR_FUTURE).then_some(at)
    }
    /// What the retransmission deadline stands for.
    pub(crate) fn retrans_kind(&self) -> RetransKind {
        self.kind
    }
    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        let at = self.retrans.min(self.delack).min(self.keepalive).min(self.comp_ack).min(self.pacing);
        (at != Instant::FAR_FUTURE).then_some(at)
    }
    /// Takes a deadline that has passed.
    fn expire(&mut self, t: Timer, now: Instant) -> bool {
        let due = *self.field(t) <= now;
        if due {
            *self.field(t) = Instant::FAR_FUTURE;
        }
        due
    }
}
