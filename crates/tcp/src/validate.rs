//! Is this segment to be believed? PAWS, sequence numbers, RST and SYN in the window (RFC 9293 3.10.7.4, 7323, 5961).
//!
//! The order is Linux's: PAWS first (a RST passes it), then the sequence check, then RST, then SYN. What fails is answered
//! by a duplicate ACK or a challenge ACK and dropped with its reason. Two limits keep answers from being an amplifier or
//! an oracle: one per connection (`tcp_invalid_ratelimit`, 500 ms, which data segments are exempt from, because a peer
//! that lost our ACK needs one) and one for the stack (`tcp_challenge_ack_limit`). A RST must hit `rcv_nxt`, the right
//! edge of the last SACK block, or, after the peer's FIN, one below; anything else in the window only earns a challenge.
//! Nothing here changes sequence variables.

use linerate_base::{DropReason, Seq};
use linerate_wire::{TcpFlags, Timestamps};

use crate::conn::{Conn, SocketError};
use crate::cx::TcpCx;
use crate::input::{Seg, Step};
use crate::rx::ack;
use crate::state::State;

/// Ticks that timestamps may run backwards in one window without being suspicious (Linux TCP_PAWS_WINDOW).
const PAWS_WINDOW: i32 = 1;
/// Seconds after which a remembered timestamp says nothing more: half the circle of a millisecond clock.
const PAWS_24DAYS_S: u32 = 60 * 60 * 24 * 24;
/// The same for a microsecond clock (SYSTEMS B33).
const PAWS_WRAP_USEC_S: u32 = (i32::MAX as u32) / 1_000_000;
/// Seconds after which a RST is believed whatever its timestamp (Linux TCP_PAWS_MSL).
const PAWS_MSL_S: u32 = 60;

/// A remembered TS.Recent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paws {
    pub(crate) ts_recent: u32,
    /// Seconds when it was stored.
    pub(crate) stamp_s: u32,
    pub(crate) usec: bool,
}

impl Paws {
    /// The timestamp may follow the remembered one, give or take `window` ticks.
    pub(crate) fn accepts(&self, tsval: u32, now_s: u32, window: i32) -> bool {
        let wrap_s = if self.usec { PAWS_WRAP_USEC_S } else { PAWS_24DAYS_S };
        // Some peers send 0 on their SYN and real values later.
        self.ts_recent == 0
            || self.ts_recent.wrapping_sub(tsval) as i32 <= window
            || now_s.wrapping_sub(self.stamp_s) >= wrap_s
    }
    /// As [`Self::accepts`] for minisocks: a RST is believed once the memory is older than a segment lives.
    pub(crate) fn rejects(&self, tsval: u32, now_s: u32, rst: bool) -> bool {
        let believed = rst && now_s.wrapping_sub(self.stamp_s) >= PAWS_MSL_S;
        !believed && !self.accepts(tsval, now_s, 0)
    }
}

/// Seconds of the turn's clock, wrapping.
pub(crate) fn now_s(cx: &TcpCx<'_>) -> u32 {
    (cx.now.as_millis() / 1_000) as u32
}

/// Milliseconds of the turn's clock, wrapping after 49 days.
pub(crate) fn now_ms(cx: &TcpCx<'_>) -> u32 {
    cx.now.as_millis() as u32
}

/// Linux's per-socket limit on answers to bad segments: true when this one must stay silent.
pub(crate) fn oow_limited(last_ms: &mut u32, now_ms: u32, ratelimit_ms: u32) -> bool {
    let now = now_ms | 1;
    if *last_ms != 0 && (now.wrapping_sub(*last_ms) as i32) >= 0 && now.wrapping_sub(*last_ms) < ratelimit_ms {
        return true;
    }
    *last_ms = now;
    false
}

impl Conn {
    /// PAWS state of this connection; `None` before the first timestamp.
    fn paws(&self) -> Option<Paws> {
        let stamp = self.rx.ts_recent_stamp_s.checked_sub(1)?;
        Some(Paws { ts_recent: self.rx.ts_recent, stamp_s: stamp, usec: self.neg.usec_ts })
    }

    /// Stores the segment's TSval when it covers the last ACK sent (RFC 7323 section 4.3) and passes PAWS.
    pub(crate) fn replace_ts_recent(&mut self, cx: &TcpCx<'_>, seg: &Seg) {
        if let Some(ts) = seg.ts
            && self.neg.ts
            && seg.seq.le(self.rx.wup)
            && self.paws().is_none_or(|p| p.accepts(ts.val, now_s(cx), 0))
        {
            self.store_ts_recent(cx, ts);
        }
    }

    /// Stores a TSval without questions.
    pub(crate) fn store_ts_recent(&mut self, cx: &TcpCx<'_>, ts: Timestamps) {
        self.rx.ts_recent = ts.val;
        self.rx.ts_recent_stamp_s = now_s(cx).wrapping_add(1).max(1);
    }

    /// The TSecr of what we send; 0 before the first timestamp.
    pub(crate) fn ts_recent(&self) -> u32 {
        self.rx.ts_recent
    }

    /// Bytes that the peer may still send from `rcv_nxt` on, by the window that was advertised.
    pub(crate) fn receive_window(&self) -> u32 {
        (self.rx.wup + self.rx.wnd).diff(self.rx.nxt).max(0) as u32
    }

    /// Everything that has to be true before the ACK field is looked at.
    ///
    /// # Errors
    /// The reason to drop the segment; answers are already pending, and a reset has taken place.
    pub(crate) fn validate_incoming(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> Step {
        let rst = seg.flags.contains(TcpFlags::RST);
        let syn = seg.flags.contains(TcpFlags::SYN);
        if let Some(reason) = self.paws_discards(cx, seg)
            && !rst
        {
            if syn {
                return Err(self.syn_challenge(cx));
            }
            if reason == PawsVerdict::OldAck {
                cx.mib.paws_old_ack += 1;
                return Err(DropReason::TcpRfc7323Paws);
            }
            cx.mib.paws_estab += 1;
            if self.may_answer(cx, seg, Skipped::Paws) {
                self.send_dupack(cx, seg);
            }
            return Err(DropReason::TcpRfc7323Paws);
        }
        if let Err(reason) = self.check_sequence(cx, seg) {
            if rst {
                if self.is_reset_after_fin(seg) {
                    return Err(self.reset(cx));
                }
            } else if syn {
                return Err(self.syn_challenge(cx));
            } else if self.may_answer(cx, seg, Skipped::Seq) {
                self.send_dupack(cx, seg);
            }
            return Err(reason);
        }
        if rst {
            return Err(self.on_rst_in_window(cx, seg));
        }
        if syn && !self.is_syn_ack_of_simultaneous_open(seg) {
            return Err(self.syn_challenge(cx));
        }
        Ok(())
    }

    /// Why PAWS refuses the segment, if it does.
    fn paws_discards(&self, cx: &TcpCx<'_>, seg: &Seg) -> Option<PawsVerdict> {
        let ts = seg.ts.filter(|_| self.neg.ts)?;
        let paws = self.paws()?;
        if paws.accepts(ts.val, now_s(cx), PAWS_WINDOW) {
            return None;
        }
        // A pure ACK that arrives late by reordering is common; only one that might be a replay is refused.
        if !seg.flags.contains(TcpFlags::ACK) || seg.seq != seg.end_seq {
            return Some(PawsVerdict::Old);
        }
        if seg.seq != self.rx.nxt {
            return Some(if seg.seq.lt(self.rx.nxt) { PawsVerdict::OldAck } else { PawsVerdict::Old });
        }
        if seg.ack != self.snd_una() || seg.wnd != self.snd_wnd() {
            return Some(PawsVerdict::Old);
        }
        let replay_ticks = u64::from(self.rto_ms()) * 12 / 10 * if self.neg.usec_ts { 1_000 } else { 1 };
        let age = i64::from(self.rx.ts_recent.wrapping_sub(ts.val) as i32);
        (age > replay_ticks as i64).then_some(PawsVerdict::Old)
    }

    /// RFC 9293 table 6, as Linux reads it: the left edge is what was last acknowledged *to the peer*; a segment that
    /// begins in the window but ends beyond it is taken only when nothing else is queued.
    fn check_sequence(&mut self, _cx: &mut TcpCx<'_>, seg: &Seg) -> Step {
        let limit = self.rx.nxt + self.receive_window();
        if seg.end_seq.lt(self.rx.wup) {
            return Err(DropReason::TcpInvalidSequence);
        }
        if seg.end_seq.gt(limit) {
            if seg.seq.gt(limit) {
                return Err(DropReason::TcpInvalidSequence);
            }
            let fin = u32::from(seg.flags.contains(TcpFlags::FIN));
            // A FIN alone may stand one beyond the window; the data rules look at it again.
            if (seg.end_seq - fin).gt(limit) && !self.rx.queue.is_empty() {
                return Err(DropReason::TcpOverwindow);
            }
        }
        Ok(())
    }

    /// A RST one below `rcv_nxt`: some peers count their own FIN out when they reset after it.
    fn is_reset_after_fin(&self, seg: &Seg) -> bool {
        seg.seq == self.rx.nxt - 1 && matches!(self.state, State::CloseWait | State::LastAck | State::Closing)
    }

    /// RFC 5961 section 3.2: exact hits reset, near misses are challenged.
    fn on_rst_in_window(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> DropReason {
        let sack_edge = self.rx.ofo_sacks().as_slice().iter().map(|b| b.1).reduce(Seq::max);
        if seg.seq == self.rx.nxt || self.is_reset_after_fin(seg) || sack_edge == Some(seg.seq) {
            return self.reset(cx);
        }
        self.send_challenge_ack(cx);
        DropReason::TcpInvalidRst
    }

    /// The other half of a simultaneous open: the peer acknowledges our SYN with a SYN of its own, again.
    fn is_syn_ack_of_simultaneous_open(&self, seg: &Seg) -> bool {
        self.state == State::SynRcvd
            && seg.flags.contains(TcpFlags::ACK)
            && seg.seq + 1 == seg.end_seq
            && seg.seq + 1 == self.rx.nxt
            && seg.ack == self.snd_nxt()
    }

    fn syn_challenge(&mut self, cx: &mut TcpCx<'_>) -> DropReason {
        cx.mib.syn_challenge += 1;
        self.send_challenge_ack(cx);
        DropReason::TcpInvalidSyn
    }

    /// One ACK that lets an honest peer notice that it is out of step (RFC 5961 section 7: limited).
    pub(crate) fn send_challenge_ack(&mut self, cx: &mut TcpCx<'_>) {
        if oow_limited(&mut self.rx.last_oow_ack_ms, now_ms(cx), cx.cfg.invalid_ratelimit_ms) {
            cx.mib.ack_skipped_challenge += 1;
            return;
        }
        if cx.cfg.challenge_ack_limit != u32::MAX && !cx.challenge.allow(cx.now) {
            return;
        }
        cx.mib.challenge_ack += 1;
        self.request_ack();
    }

    /// Data may always be answered; the rest within the connection's limit.
    fn may_answer(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, kind: Skipped) -> bool {
        if seg.seq != seg.end_seq && !seg.flags.contains(TcpFlags::SYN) {
            return true;
        }
        if !oow_limited(&mut self.rx.last_oow_ack_ms, now_ms(cx), cx.cfg.invalid_ratelimit_ms) {
            return true;
        }
        match kind {
            Skipped::Paws => cx.mib.ack_skipped_paws += 1,
            Skipped::Seq => cx.mib.ack_skipped_seq += 1,
        }
        false
    }

    /// An immediate duplicate ACK; repeated old data is reported by DSACK.
    fn send_dupack(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) {
        if seg.seq != seg.end_seq && seg.seq.lt(self.rx.nxt) {
            cx.mib.delayed_ack_lost += 1;
            self.enter_quickack();
            let end = seg.end_seq.min(self.rx.nxt);
            self.dsack_set(cx, seg.seq, end);
        }
        self.rx.ack.pending |= ack::SCHED;
        self.request_ack();
    }

    /// A believed RST (Linux `tcp_reset`).
    pub(crate) fn reset(&mut self, cx: &mut TcpCx<'_>) -> DropReason {
        let error = match self.state {
            State::SynSent => SocketError::Refused,
            State::CloseWait => SocketError::BrokenPipe,
            State::Closed => return DropReason::TcpReset,
            _ => SocketError::Reset,
        };
        if matches!(self.state, State::SynSent | State::SynRcvd) {
            cx.mib.attempt_fails += 1;
        }
        if matches!(self.state, State::Established | State::CloseWait) {
            cx.mib.estab_resets += 1;
        }
        self.fail(cx, error);
        DropReason::TcpReset
    }
}

/// What PAWS says about a refused segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PawsVerdict {
    /// Too old.
    Old,
    /// A pure ACK overtaken by others: common, not worth an answer.
    OldAck,
}

/// Which counter an unsent answer adds to.
#[derive(Clone, Copy)]
enum Skipped {
    Paws,
    Seq,
}
