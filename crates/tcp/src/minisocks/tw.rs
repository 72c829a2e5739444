//! TIME-WAIT, and the rest of an orphan's FIN-WAIT-2 (RFC 9293 section 3.10.7.4, RFC 6191, RFC 1337).
//!
//! For 60 seconds nobody may mistake a late segment of this connection for one of the next between the same ends: the
//! minisock acknowledges what comes and lets nothing through. Two ways to reopen early are safe: a new SYN whose sequence
//! number or timestamp is beyond all that was used (RFC 6191), and our own `connect` when timestamps moved on by a second
//! (`tcp_tw_reuse`). A RST at the exact place ends it at once, unless `tcp_rfc1337` forbids the assassination. In 64
//! bytes there is room for little: times are 32-bit milliseconds, the window is kept in its scaled form, and the answer
//! limit in eighths of a second.

use linerate_base::{DropReason, Duration, Instant, Seq};
use linerate_wire::flow::FlowKey;
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::conn::{Conn, Isn, ts_clock};
use crate::cx::TcpCx;
use crate::keepalive::TIMEWAIT_MS;
use crate::minisocks::in_window;
use crate::state::State;
use crate::validate::{Paws, now_ms, now_s};

/// The next connection's sequence numbers begin this far beyond the old ones: more than any unscaled window.
const ISN_GAP: u32 = 65_535 + 2;

mod flag {
    /// Still FIN-WAIT-2: the peer's FIN has not come.
    pub(super) const FIN_WAIT2: u8 = 1;
    /// Timestamps are in use.
    pub(super) const TS: u8 = 2;
    /// In microseconds.
    pub(super) const USEC: u8 = 4;
}

/// What is left of a connection.
#[derive(Clone, Debug)]
pub struct TwSock {
    key: FlowKey,
    rcv_nxt: Seq,
    snd_nxt: Seq,
    ts_recent: u32,
    ts_offset: u32,
    /// End of life, ms.
    deadline_ms: u32,
    /// As in the header: scaled.
    window: u16,
    /// Upper half: [`flag`]s; lower half: window scale.
    flags_scale: u8,
    /// When a bad segment was last answered, in eighths of a second, plus one; 0 = never.
    last_oow_8th: u8,
}

const _: () = assert!(size_of::<TwSock>() <= 64);

/// What a segment means to a finished connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TwVerdict {
    /// Count the skb.
    Drop(DropReason),
    /// Count the skb and send [`TwSock::ack_repr`].
    Ack(DropReason),
    /// Count the skb, answer with [`super::reset_for`], and remove the minisock when `remove`.
    Reset {
        /// Why.
        reason: DropReason,
        /// FIN-WAIT-2 ends here; TIME-WAIT never answers so.
        remove: bool,
    },
    /// Remove the minisock and count the skb.
    Kill(DropReason),
    /// A new connection between the same ends: remove the minisock and treat the SYN as a listener's, with this ISS.
    NewSyn(Seq),
}

impl TwSock {
    pub(crate) fn from_conn(conn: &Conn, cx: &TcpCx<'_>) -> Self {
        let mut flags = 0;
        if conn.state == State::FinWait2 {
            flags |= flag::FIN_WAIT2;
        }
        if conn.neg.ts {
            flags |= flag::TS;
        }
        if conn.neg.usec_ts {
            flags |= flag::USEC;
        }
        let shift = conn.neg.rcv_wscale.min(14);
        Self {
            key: conn.key,
            rcv_nxt: conn.rx.nxt,
            snd_nxt: conn.snd_nxt(),
            ts_recent: conn.rx.ts_recent,
            ts_offset: conn.ts_offset,
            deadline_ms: now_ms(cx).wrapping_add(conn.minisock_ms(cx)),
            window: (conn.receive_window() >> shift).min(65_535) as u16,
            flags_scale: flags << 4 | shift,
            last_oow_8th: 0,
        }
    }

    fn has(&self, f: u8) -> bool {
        self.flags_scale >> 4 & f != 0
    }
    fn rcv_wnd(&self) -> u32 {
        u32::from(self.window) << (self.flags_scale & 15)
    }
    /// Both ends, local first.
    pub fn key(&self) -> &FlowKey {
        &self.key
    }
    /// [`State::TimeWait`] or [`State::FinWait2`].
    pub fn state(&self) -> State {
        if self.has(flag::FIN_WAIT2) { State::FinWait2 } else { State::TimeWait }
    }
    /// When the minisock has to be removed, as seen at `now` (within 24 days of its making).
    pub fn deadline(&self, now: Instant) -> Instant {
        let left = self.deadline_ms.wrapping_sub(now.as_millis() as u32) as i32;
        now + Duration::from_millis(left.max(0) as u64)
    }

    fn rearm(&mut self, cx: &TcpCx<'_>) {
        self.deadline_ms = now_ms(cx).wrapping_add(TIMEWAIT_MS);
    }

    /// About when the last segment renewed the wait: what the age of `ts_recent` is judged by.
    fn stamp_s(&self, cx: &TcpCx<'_>) -> u32 {
        let age_ms = TIMEWAIT_MS.saturating_sub(self.deadline_ms.wrapping_sub(now_ms(cx)).min(TIMEWAIT_MS));
        now_s(cx).wrapping_sub(age_ms / 1_000)
    }

    /// What the segment means (Linux `tcp_timewait_state_process`). `payload_len` in bytes.
    pub fn on_segment(&mut self, cx: &mut TcpCx<'_>, h: &TcpRepr, payload_len: u32) -> TwVerdict {
        let rst = h.flags.contains(TcpFlags::RST);
        let ts = h.opts.ts.filter(|_| self.has(flag::TS));
        let paws = Paws { ts_recent: self.ts_recent, stamp_s: self.stamp_s(cx), usec: self.has(flag::USEC) };
        let paws_reject = ts.is_some_and(|ts| paws.rejects(ts.val, now_s(cx), rst));
        let end_seq = h.end_seq(payload_len);
        if self.has(flag::FIN_WAIT2) {
            return self.in_fin_wait2(cx, h, end_seq, paws_reject);
        }
        if !paws_reject && h.seq == self.rcv_nxt && (h.seq == end_seq || rst) {
            return self.in_order(cx, rst, ts);
        }
        let syn = h.flags.contains(TcpFlags::SYN) && !rst && !h.flags.contains(TcpFlags::ACK);
        let newer = ts.is_some_and(|ts| (self.ts_recent.wrapping_sub(ts.val) as i32) < 0);
        if syn && !paws_reject && (h.seq.gt(self.rcv_nxt) || newer) {
            cx.mib.tw_recycled += 1;
            let iss = self.snd_nxt + ISN_GAP;
            return TwVerdict::NewSyn(if iss == Seq(0) { Seq(1) } else { iss });
        }
        if paws_reject {
            cx.mib.paws_estab += 1;
        }
        let reason = if paws_reject { DropReason::TcpRfc7323Paws } else { DropReason::TcpMinisock };
        if rst {
            return TwVerdict::Drop(reason);
        }
        if paws_reject || h.flags.contains(TcpFlags::ACK) {
            self.rearm(cx);
        }
        self.answer(cx, reason, State::TimeWait)
    }

    /// At the exact place, without data: a bare ACK prolongs, a RST ends.
    fn in_order(&mut self, cx: &TcpCx<'_>, rst: bool, ts: Option<Timestamps>) -> TwVerdict {
        if rst && !cx.cfg.rfc1337 {
            return TwVerdict::Kill(DropReason::TcpReset);
        }
        if !rst {
            self.rearm(cx);
        }
        if let Some(ts) = ts {
            self.ts_recent = ts.val;
        }
        TwVerdict::Drop(DropReason::TcpMinisock)
    }

    /// All the checks of a full connection in FIN-WAIT-2 whose reader is gone.
    fn in_fin_wait2(&mut self, cx: &mut TcpCx<'_>, h: &TcpRepr, end_seq: Seq, paws_reject: bool) -> TwVerdict {
        if paws_reject || !in_window(h.seq, end_seq, self.rcv_nxt, self.rcv_nxt + self.rcv_wnd()) {
            return self.answer(cx, DropReason::TcpInvalidSequence, State::FinWait2);
        }
        if h.flags.contains(TcpFlags::RST) {
            return TwVerdict::Kill(DropReason::TcpReset);
        }
        if h.flags.contains(TcpFlags::SYN) && h.seq.ge(self.rcv_nxt) {
            return TwVerdict::Reset { reason: DropReason::TcpInvalidSyn, remove: true };
        }
        if !h.flags.contains(TcpFlags::ACK) || end_seq.le(self.rcv_nxt) || end_seq == h.seq {
            return TwVerdict::Drop(DropReason::TcpMinisock);
        }
        if !h.flags.contains(TcpFlags::FIN) || end_seq != self.rcv_nxt + 1 {
            cx.mib.abort_on_data += 1;
            return TwVerdict::Reset { reason: DropReason::TcpAbortOnData, remove: true };
        }
        self.flags_scale &= !(flag::FIN_WAIT2 << 4);
        self.rcv_nxt = end_seq;
        if let Some(ts) = h.opts.ts {
            self.ts_recent = ts.val;
        }
        self.rearm(cx);
        TwVerdict::Ack(DropReason::TcpMinisock)
    }

    /// An ACK, if the limit allows one.
    fn answer(&mut self, cx: &mut TcpCx<'_>, reason: DropReason, state: State) -> TwVerdict {
        let now = (now_ms(cx) / 125 % 255) as u8;
        let limit = (cx.cfg.invalid_ratelimit_ms / 125).min(254) as u8;
        if let Some(last) = self.last_oow_8th.checked_sub(1) {
            let since = if now >= last { now - last } else { now + (255 - last) };
            if since < limit {
                match state {
                    State::FinWait2 => cx.mib.ack_skipped_fin_wait2 += 1,
                    _ => cx.mib.ack_skipped_time_wait += 1,
                }
                return TwVerdict::Drop(reason);
            }
        }
        self.last_oow_8th = now + 1;
        TwVerdict::Ack(reason)
    }

    /// The ACK that answers a segment.
    pub fn ack_repr(&self, cx: &TcpCx<'_>) -> TcpRepr {
        let ts = self.has(flag::TS).then(|| {
            let val = ts_clock(cx.now, self.has(flag::USEC)).wrapping_add(self.ts_offset);
            Timestamps { val, ecr: self.ts_recent }
        });
        TcpRepr {
            src_port: self.key.local_port(),
            dst_port: self.key.remote_port(),
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: TcpFlags::ACK,
            window: self.window,
            urgent: 0,
            opts: TcpOptions { ts, ..TcpOptions::NONE },
        }
    }

    /// May our own `connect` take this place (`tcp_tw_reuse`)? Then these are its numbers, and
    /// [`Conn::inherit_timestamp`] takes the other two.
    pub fn reuse_for_connect(&self, cx: &TcpCx<'_>) -> Option<(Isn, u32, u32)> {
        let stamp_s = self.stamp_s(cx);
        let moved_on = now_s(cx).wrapping_sub(stamp_s) >= 1;
        if !cx.cfg.tw_reuse || !self.has(flag::TS) || self.has(flag::FIN_WAIT2) || !moved_on {
            return None;
        }
        let iss = self.snd_nxt + ISN_GAP;
        let iss = if iss == Seq(0) { Seq(1) } else { iss };
        Some((Isn { iss, ts_offset: self.ts_offset }, self.ts_recent, stamp_s))
    }
}
