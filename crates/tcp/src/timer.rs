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

use linerate_base::Instant;
use linerate_cong::CaState;

use crate::conn::{Conn, SocketError};
use crate::cx::TcpCx;
use crate::state::State;
use crate::tx::want;

/// The shortest RTO that limits of time are computed with, whatever floor is configured (Linux's TCP_RTO_MIN), µs.
const MODEL_RTO_US: u64 = 200_000;
/// SYN timeouts that do not double the RTO: `tcp_syn_linear_timeouts`.
const SYN_LINEAR_TIMEOUTS: u8 = 4;
/// Most probe doublings: 200 ms shifted by this passes 120 s.
const PROBE_BACKOFF_MAX: u8 = 10;
/// Retries of an orphan when `tcp_orphan_retries` is 0.
const ORPHAN_RETRIES: u8 = 8;

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
    /// The sender's own pause: a writer waits for memory (and, with pacing, for its release time).
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
    /// None of them is due before; [`Instant::FAR_FUTURE`] when none is armed. Deadlines that were pushed back or disarmed
    /// since it was computed may make it early.
    soonest: Instant,
    kind: RetransKind,
    /// Which are armed, one bit each.
    armed: u8,
}

impl Default for Timers {
    fn default() -> Self {
        let never = Instant::FAR_FUTURE;
        Self {
            retrans: never,
            delack: never,
            keepalive: never,
            comp_ack: never,
            pacing: never,
            soonest: never,
            kind: RetransKind::None,
            armed: 0,
        }
    }
}

impl Timers {
    #[inline]
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
    #[inline]
    pub(crate) fn set(&mut self, t: Timer, at: Instant) {
        debug_assert!(t != Timer::Retrans, "the retransmission timer needs a kind");
        self.arm(t, at);
    }
    #[inline]
    fn arm(&mut self, t: Timer, at: Instant) {
        *self.field(t) = at;
        self.armed |= 1 << t as u8;
        self.soonest = self.soonest.min(at);
    }
    /// Arms the retransmission deadline.
    #[inline]
    pub(crate) fn set_retrans(&mut self, kind: RetransKind, at: Instant) {
        debug_assert!(kind != RetransKind::None);
        self.kind = kind;
        self.arm(Timer::Retrans, at);
    }
    /// Disarms.
    #[inline]
    pub(crate) fn clear(&mut self, t: Timer) {
        *self.field(t) = Instant::FAR_FUTURE;
        if t == Timer::Retrans {
            self.kind = RetransKind::None;
        }
        self.armed &= !(1 << t as u8);
        if self.armed == 0 {
            self.soonest = Instant::FAR_FUTURE;
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
        let at = self.earliest();
        (at != Instant::FAR_FUTURE).then_some(at)
    }
    fn earliest(&self) -> Instant {
        self.retrans.min(self.delack).min(self.keepalive).min(self.comp_ack).min(self.pacing)
    }
    /// Takes a deadline that has passed; the kind stays for the caller.
    fn expire(&mut self, t: Timer, now: Instant) -> bool {
        let due = *self.field(t) <= now;
        if due {
            *self.field(t) = Instant::FAR_FUTURE;
            self.armed &= !(1 << t as u8);
        }
        due
    }
}

/// Doors for the stack.
impl Conn {
    /// The earliest deadline; [`Conn::on_timer`] wants to be called then, or later.
    #[inline]
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// When to look at the timers: no later than [`Self::next_timer`], but perhaps earlier, because timers were pushed back
    /// meanwhile; [`Instant::FAR_FUTURE`] for never. One load.
    #[inline]
    pub fn alarm(&self) -> Instant {
        self.timers.soonest
    }

    /// [`Self::alarm`], made exact.
    pub fn sharpen_alarm(&mut self) -> Instant {
        self.timers.soonest = self.timers.earliest();
        self.timers.soonest
    }

    /// Time has passed: everything that is due happens, once.
    pub fn on_timer(&mut self, cx: &mut TcpCx<'_>) {
        if self.timers.expire(Timer::Delack, cx.now) {
            self.on_delack_timer(cx);
        }
        if self.timers.expire(Timer::CompAck, cx.now) {
            self.on_comp_ack_timer(cx);
        }
        if self.timers.expire(Timer::Retrans, cx.now) {
            self.on_retrans_timer(cx);
        }
        if self.timers.expire(Timer::Keepalive, cx.now) {
            self.on_keepalive_timer(cx);
        }
        if self.timers.expire(Timer::Pacing, cx.now) {
            self.check_space(cx);
        }
        self.sharpen_alarm();
    }

    fn on_retrans_timer(&mut self, cx: &mut TcpCx<'_>) {
        let kind = self.timers.kind;
        if !matches!(kind, RetransKind::Tlp | RetransKind::Reo) {
            // Those two measure the RTO from the oldest transmission, and say so by their kind.
            self.timers.kind = RetransKind::None;
        }
        if self.state == State::Closed {
            return;
        }
        match kind {
            RetransKind::None => {}
            RetransKind::Rto => self.retransmit_timer(cx),
            RetransKind::Tlp => {
                self.tx.want |= want::TLP;
                // The probe, sent by the next `poll_xmit`, arms the RTO anew; until then it guards alone.
                self.rearm_rto(cx);
            }
            RetransKind::Reo => self.rack_reo_timeout(cx),
            RetransKind::Probe0 => self.probe_timer(cx),
        }
    }
}

/// Retransmission timeout.
impl Conn {
    /// Arms the RTO `us` microseconds from now.
    pub(crate) fn arm_rto(&mut self, cx: &TcpCx<'_>, us: u32) {
        let us = us.clamp(1, cx.cfg.rto_max_us);
        self.timers.set_retrans(RetransKind::Rto, cx.now.plus_micros(u64::from(us)));
    }

    /// Microseconds until the oldest segment is overdue; not positive: it is.
    pub(crate) fn rto_delta_us(&self, cx: &TcpCx<'_>) -> i64 {
        match self.tx.fl.q.rtx_head() {
            Some(head) => i64::from(self.tx.rto_us) - i64::from(cx.now.micros_since(head.tx_at)),
            None => 1,
        }
    }

    /// RFC 6298 section 5: restarts the RTO, or stops it when nothing is out. After a probe or RACK's timer, time that
    /// has passed since the oldest transmission counts.
    pub(crate) fn rearm_rto(&mut self, cx: &TcpCx<'_>) {
        if self.tx.packets_out == 0 {
            if self.timers.retrans_kind() != RetransKind::Probe0 {
                self.timers.clear(Timer::Retrans);
            }
            return;
        }
        let mut us = self.tx.rto_us;
        if matches!(self.timers.retrans_kind(), RetransKind::Tlp | RetransKind::Reo) {
            us = self.rto_delta_us(cx).clamp(1, i64::from(us)) as u32;
        }
        self.arm_rto(cx, us);
    }

    /// The RTO passed (RFC 6298 section 5.4 to 5.7).
    fn retransmit_timer(&mut self, cx: &mut TcpCx<'_>) {
        if self.tx.packets_out == 0 || self.tx.fl.q.sent() == 0 {
            return;
        }
        let shrunk =
            self.tx.snd_wnd == 0 && !self.is_orphan() && !matches!(self.state, State::SynSent | State::SynRcvd);
        if shrunk {
            // The peer took its window back: this is probing, it may last as long as the peer answers.
            if self.heard_ms_ago(cx) > cx.cfg.rto_max_us / 1000 {
                return self.write_err(cx);
            }
            self.enter_loss(cx);
            self.tx.want |= want::HEAD;
            return self.reset_rto(cx);
        }
        cx.mib.timeouts += 1;
        if self.write_timeout(cx) {
            return;
        }
        if self.tx.retransmits == 0 {
            self.count_failure(cx);
        }
        self.enter_loss(cx);
        self.tx.retransmits = self.tx.retransmits.saturating_add(1);
        self.note_retrans_start(cx);
        self.reset_rto(cx);
    }

    /// Backs off and arms the RTO again.
    fn reset_rto(&mut self, cx: &TcpCx<'_>) {
        if self.state == State::SynSent {
            self.tx.fl.syn_rtos = self.tx.fl.syn_rtos.saturating_add(1);
        }
        if self.state != State::SynSent || self.tx.fl.syn_rtos > SYN_LINEAR_TIMEOUTS {
            self.tx.backoff = self.tx.backoff.saturating_add(1);
            self.tx.rto_us = self.tx.rto_us.saturating_mul(2).min(cx.cfg.rto_max_us);
        }
        let us = self.clamp_rto_to_user_timeout(cx);
        self.arm_rto(cx, us);
    }

    /// The clock of limits of time starts with the first retransmission, even if that can not leave at once.
    fn note_retrans_start(&mut self, cx: &TcpCx<'_>) {
        let stamp = self.tsval(cx.now).max(1);
        let fl = &mut *self.tx.fl;
        if fl.retrans_stamp == 0 {
            fl.retrans_stamp = stamp;
            if self.state != State::SynSent {
                fl.retrans_at = cx.now;
            }
        }
    }

    fn count_failure(&self, cx: &mut TcpCx<'_>) {
        match self.tx.cc.ca_state {
            CaState::Recovery if self.neg.sack => cx.mib.sack_failures += 1,
            CaState::Recovery => cx.mib.reno_failures += 1,
            CaState::Loss => cx.mib.loss_failures += 1,
            _ => {}
        }
    }

    /// Ends the connection when its retries are used up. Returns whether it did.
    fn write_timeout(&mut self, cx: &mut TcpCx<'_>) -> bool {
        let retransmits = self.tx.retransmits;
        let user_us = u64::from(self.opts.user_timeout_ms) * 1000;
        let expired = if matches!(self.state, State::SynSent | State::SynRcvd) {
            let tries = if self.opts.syncnt != 0 { self.opts.syncnt } else { cx.cfg.syn_retries };
            let linear = if self.state == State::SynSent { SYN_LINEAR_TIMEOUTS } else { 0 };
            let limit = if user_us != 0 {
                user_us
            } else {
                model_timeout_us(tries, u64::from(cx.cfg.rto_initial_us), cx.cfg.rto_max_us)
            };
            retransmits >= tries.saturating_add(linear) || self.timed_out(cx, limit)
        } else {
            if cx.cfg.mtu_probing != 0
                && self.timed_out(cx, model_timeout_us(cx.cfg.retries1, MODEL_RTO_US, cx.cfg.rto_max_us))
            {
                self.suspect_black_hole(cx);
            }
            let mut tries = cx.cfg.retries2;
            if self.is_orphan() {
                tries = self.orphan_retries(cx, self.tx.rto_us < cx.cfg.rto_max_us);
            }
            let limit = if user_us != 0 { user_us } else { model_timeout_us(tries, MODEL_RTO_US, cx.cfg.rto_max_us) };
            self.timed_out(cx, limit)
        };
        if expired {
            self.write_err(cx);
        }
        expired
    }

    /// Has it been `limit_us` since the first retransmission?
    fn timed_out(&self, cx: &TcpCx<'_>, limit_us: u64) -> bool {
        self.tx.retransmits > 0 && cx.now.since(self.tx.fl.retrans_at).as_micros() as u64 >= limit_us
    }

    fn orphan_retries(&self, cx: &TcpCx<'_>, alive: bool) -> u8 {
        match cx.cfg.orphan_retries {
            0 if alive => ORPHAN_RETRIES,
            n => n,
        }
    }

    /// RFC 5482: the RTO does not overshoot the user's timeout.
    pub(crate) fn clamp_rto_to_user_timeout(&self, cx: &TcpCx<'_>) -> u32 {
        let rto = self.tx.rto_us;
        if self.opts.user_timeout_ms == 0 || self.tx.fl.retrans_stamp == 0 {
            return rto;
        }
        let limit = u64::from(self.opts.user_timeout_ms) * 1000;
        let elapsed = cx.now.since(self.tx.fl.retrans_at).as_micros() as u64;
        let left = limit.saturating_sub(elapsed).clamp(1, u64::from(u32::MAX));
        rto.min(left as u32)
    }

    /// Death by timeout: the error is what ICMP said before, or ETIMEDOUT.
    fn write_err(&mut self, cx: &mut TcpCx<'_>) {
        cx.mib.abort_on_timeout += 1;
        let error = self.tx.fl.err_soft.take().unwrap_or(SocketError::TimedOut);
        self.fail(cx, error);
    }
}

/// Zero-window probes.
impl Conn {
    /// Shortest probe interval, µs.
    pub(crate) fn probe0_base_us(&self) -> u32 {
        self.tx.rto_us.max(MODEL_RTO_US as u32)
    }

    /// Arms the next probe, backed off.
    pub(crate) fn arm_probe0(&mut self, cx: &TcpCx<'_>) {
        let shift = self.tx.backoff.min(PROBE_BACKOFF_MAX);
        let mut us = (u64::from(self.probe0_base_us()) << shift).min(u64::from(cx.cfg.rto_max_us));
        let user_us = u64::from(self.opts.user_timeout_ms) * 1000;
        if user_us != 0 && self.tx.fl.probes_at != Instant::ZERO {
            let elapsed = cx.now.since(self.tx.fl.probes_at).as_micros() as u64;
            us = us.min(user_us.saturating_sub(elapsed).max(u64::from(crate::rtt::TIMEOUT_MIN_US)));
        }
        self.timers.set_retrans(RetransKind::Probe0, cx.now.plus_micros(us));
    }

    /// The probe timer fired: give up, or probe (RFC 1122 section 4.2.2.17: a peer that answers is probed for ever).
    fn probe_timer(&mut self, cx: &mut TcpCx<'_>) {
        if self.tx.packets_out > 0 || !self.tx.fl.q.has_unsent() {
            self.tx.probes_out = 0;
            self.tx.fl.probes_at = Instant::ZERO;
            return;
        }
        let user_us = u64::from(self.opts.user_timeout_ms) * 1000;
        if self.tx.fl.probes_at == Instant::ZERO {
            self.tx.fl.probes_at = cx.now;
        } else if user_us != 0 && cx.now.since(self.tx.fl.probes_at).as_micros() as u64 >= user_us {
            return self.write_err(cx);
        }
        let mut most = cx.cfg.retries2;
        if self.is_orphan() {
            let interval = u64::from(self.tx.rto_us) << self.tx.backoff.min(PROBE_BACKOFF_MAX);
            let alive = interval < u64::from(cx.cfg.rto_max_us);
            most = self.orphan_retries(cx, alive);
            if !alive && self.tx.backoff >= most {
                return self.write_err(cx);
            }
        }
        if self.tx.probes_out >= most {
            return self.write_err(cx);
        }
        self.tx.want |= want::PROBE0;
        self.tx.probes_out = self.tx.probes_out.saturating_add(1);
        if self.tx.backoff < cx.cfg.retries2 {
            self.tx.backoff += 1;
        }
        self.arm_probe0(cx);
    }
}

/// How long `boundary` doublings of the shortest RTO take, capped at `rto_max_us` each.
fn model_timeout_us(boundary: u8, rto_base_us: u64, rto_max_us: u32) -> u64 {
    let (base, max) = (rto_base_us.max(1), u64::from(rto_max_us));
    let doublings = u64::from((max / base).max(1).ilog2());
    let boundary = u64::from(boundary);
    if boundary <= doublings {
        ((2 << boundary) - 1) * base
    } else {
        ((2 << doublings) - 1) * base + (boundary - doublings) * max
    }
}
