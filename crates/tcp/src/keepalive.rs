//! The slow timer: keepalive (RFC 9293 section 3.8.4) and the life of an orphan in FIN-WAIT-2.
//!
//! Keepalive is off by default. When on, a connection on which nothing was heard for `keepidle` is probed every
//! `keepintvl` with a segment one byte below the window; after `keepcnt` unanswered probes (or TCP_USER_TIMEOUT) it is
//! reset. It never probes while data is outstanding: retransmission finds a dead peer better. The same deadline ends an
//! orphan whose peer never closes: after `tcp_fin_timeout` (at least 3.5 RTO) FIN-WAIT-2 is over; for up to 60 s a
//! minisock keeps that state, longer times wait here first. SO_LINGER's waiting is the caller's: a connection never
//! blocks.

use linerate_base::{Duration, RstReason};

use crate::conn::{CloseReason, Conn, SocketError, ev, or_config};
use crate::cx::TcpCx;
use crate::state::State;
use crate::timer::Timer;
use crate::validate::now_ms;

/// Life of a TIME-WAIT or FIN-WAIT-2 minisock, ms (Linux TCP_TIMEWAIT_LEN).
pub(crate) const TIMEWAIT_MS: u32 = 60_000;

impl Conn {
    fn keepalive_time_ms(&self, cx: &TcpCx<'_>) -> u32 {
        or_config(self.opts.keepidle_s, cx.cfg.keepalive_time_s).saturating_mul(1_000)
    }
    fn keepalive_intvl_ms(&self, cx: &TcpCx<'_>) -> u32 {
        or_config(self.opts.keepintvl_s, cx.cfg.keepalive_intvl_s).saturating_mul(1_000)
    }
    fn keepalive_probes(&self, cx: &TcpCx<'_>) -> u8 {
        if self.opts.keepcnt == 0 { cx.cfg.keepalive_probes } else { self.opts.keepcnt }
    }
    /// Silence of the peer, ms.
    pub(crate) fn heard_ms_ago(&self, cx: &TcpCx<'_>) -> u32 {
        let now = now_ms(cx);
        let data = now.wrapping_sub(self.rx.ack.lrcvtime_ms);
        now.wrapping_sub(self.rx.rcv_tstamp_ms).min(data)
    }

    fn arm_keepalive(&mut self, cx: &TcpCx<'_>, delay_ms: u32) {
        self.timers.set(Timer::Keepalive, cx.now + Duration::from_millis(u64::from(delay_ms)));
    }

    /// SO_KEEPALIVE took effect, or its times changed.
    pub(crate) fn arm_keepalive_if_on(&mut self, cx: &TcpCx<'_>) {
        if self.opts.keepalive && self.state.is_synchronized() && !self.rx.shut.dead {
            let idle = self.keepalive_time_ms(cx);
            let delay = idle.saturating_sub(self.heard_ms_ago(cx));
            self.arm_keepalive(cx, delay.max(1));
        } else if !self.rx.shut.dead {
            self.timers.clear(Timer::Keepalive);
        }
    }

    /// The slow timer fired.
    pub(crate) fn on_keepalive_timer(&mut self, cx: &mut TcpCx<'_>) {
        if self.state == State::FinWait2 && self.rx.shut.dead {
            return self.on_fin_wait2_timer(cx);
        }
        if !self.opts.keepalive || matches!(self.state, State::Closed | State::SynSent | State::TimeWait) {
            return;
        }
        let idle = self.keepalive_time_ms(cx);
        if !self.is_all_acked() {
            return self.arm_keepalive(cx, idle);
        }
        let elapsed = self.heard_ms_ago(cx);
        if elapsed < idle {
            return self.arm_keepalive(cx, idle - elapsed);
        }
        let user = self.opts.user_timeout_ms;
        let probes = self.rx.keep_probes_out;
        let is_dead = if user != 0 { elapsed >= user && probes > 0 } else { probes >= self.keepalive_probes(cx) };
        if is_dead {
            self.send_rst(cx, RstReason::TcpKeepaliveTimeout);
            cx.mib.abort_on_timeout += 1;
            return self.fail(cx, SocketError::TimedOut);
        }
        self.send_probe(cx);
        cx.mib.keep_alive += 1;
        self.rx.keep_probes_out = probes.saturating_add(1);
        let next = self.keepalive_intvl_ms(cx);
        self.arm_keepalive(cx, next);
    }

    /// How long FIN-WAIT-2 lasts for an orphan, ms (Linux `tcp_fin_time`).
    fn fin_time_ms(&self, cx: &TcpCx<'_>) -> u32 {
        let set = u32::try_from(self.opts.linger2_s).unwrap_or(0);
        let ms = or_config(set, cx.cfg.fin_timeout_s).saturating_mul(1_000);
        let rto = self.rto_ms();
        ms.max((rto << 2) - (rto >> 1))
    }

    /// An orphan reached FIN-WAIT-2: how it ends. `busy`: the segment at hand still has to be processed here.
    pub(crate) fn fin_wait2_timeout(&mut self, cx: &mut TcpCx<'_>, busy: bool) {
        let time = self.fin_time_ms(cx);
        if time > TIMEWAIT_MS {
            self.arm_keepalive(cx, time - TIMEWAIT_MS);
        } else if busy {
            self.arm_keepalive(cx, time);
        } else {
            self.leave_to_minisock();
        }
    }

    /// The long part of a long FIN-WAIT-2 is over: the minisock keeps the rest, or nothing does.
    fn on_fin_wait2_timer(&mut self, cx: &mut TcpCx<'_>) {
        if self.opts.linger2_s >= 0 && self.fin_time_ms(cx) > TIMEWAIT_MS {
            return self.leave_to_minisock();
        }
        self.send_rst(cx, RstReason::TcpAbortOnLinger);
        self.done(cx);
    }

    /// A minisock takes over in the present state.
    pub(crate) fn leave_to_minisock(&mut self) {
        self.timers.clear_all();
        self.closed = Some(CloseReason::Done { time_wait: true });
        self.notify(ev::CLOSED);
    }

    /// Life of the minisock, ms.
    pub(crate) fn minisock_ms(&self, cx: &TcpCx<'_>) -> u32 {
        if self.state == State::FinWait2 { self.fin_time_ms(cx).min(TIMEWAIT_MS) } else { TIMEWAIT_MS }
    }
}
