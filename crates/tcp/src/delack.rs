//! When to acknowledge (RFC 1122 section 4.2.3.2, RFC 5681 section 4.2), with Linux's adaptation (SYSTEMS A20, B34).
//!
//! A connection begins in *quick ACK mode*: up to 16 ACKs leave without delay, so that the peer's slow start is not held
//! up. Then an ACK waits for `ato` (40 ms at first, following the gaps between segments, at most 200 ms), unless more
//! than one full segment of the peer is unacknowledged and the window can move, or the protocol wants one at once (a gap
//! appeared or was filled, old data, a probe). When data is answered with data (*pingpong*), ACKs wait for the answer.
//! `rcv_mss` is learnt from what one wire segment carries (`gso_size`), so a super-packet of many segments acknowledges
//! at once. Duplicate ACKs of one gap are *compressed* after the third: one per 5 % of the RTT, at most 1 ms or 44.
//!
//! Nothing is sent here: [`ack::SEND`] asks `poll_xmit` for an ACK, so that one turn sends at most one per connection,
//! and [`Conn::ack_sent`] takes note when any segment with ACK leaves.

use linerate_base::{Duration, Instant, Seq};

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::input::DataFacts;
use crate::rx::ack;
use crate::state::State;
use crate::timer::Timer;
use crate::validate::now_ms;
use linerate_wire::TcpFlags;

/// ACKs sent without delay at the start and after trouble.
const MAX_QUICKACKS: u32 = 16;
/// Smallest ACK delay, ms (Linux TCP_ATO_MIN, TCP_DELACK_MIN).
const ATO_MIN_MS: u32 = 40;
/// Longest ACK delay, ms (Linux TCP_DELACK_MAX).
const DELACK_MAX_MS: u32 = 200;
/// Duplicate ACKs that are never compressed: the peer's fast retransmit needs three.
const DUP_ACKS_AT_ONCE: u8 = 3;
/// The least MSS assumed when learning from short segments, bytes (RFC 9293 section 3.7.1).
const MSS_DEFAULT: u32 = 536;
/// Segments below this never teach anything, bytes.
const MSS_MIN: u32 = 88;
/// Largest data segment below which growth of the window is not worth a look, bytes.
const GROW_MIN_LEN: u32 = 128;

impl Conn {
    /// A segment with ACK has to be sent in this turn.
    pub(crate) fn ack_now(&self) -> bool {
        self.rx.ack.pending & ack::SEND != 0
    }

    /// Asks for an ACK in this turn.
    pub(crate) fn request_ack(&mut self) {
        self.rx.ack.pending |= ack::SEND;
    }

    /// A segment with acknowledgement `ack` leaves: whatever was waiting is done with it.
    #[inline]
    pub(crate) fn ack_sent(&mut self, cx: &mut TcpCx<'_>, ack: Seq) {
        let held = self.rx.ack.compressed;
        if held > 0 {
            cx.mib.ack_compressed += u64::from(held);
            self.rx.ack.compressed = 0;
            self.timers.clear(Timer::CompAck);
        }
        self.rx.dsack = None;
        self.rx.last_ack_sent = ack;
        if ack != self.rx.nxt {
            return;
        }
        if self.rx.ack.quick > 0 && self.rx.ack.pending & ack::SCHED != 0 {
            self.rx.ack.quick -= 1;
            if self.rx.ack.quick == 0 {
                self.rx.ack.ato_ms = ATO_MIN_MS;
            }
        }
        self.rx.ack.pending = 0;
        self.timers.clear(Timer::Delack);
    }

    /// New data leaves at `now`: an answer within the ACK delay makes the connection interactive.
    #[inline]
    pub(crate) fn data_sent(&mut self, now: Instant) {
        let since = (now.as_millis() as u32).wrapping_sub(self.rx.ack.lrcvtime_ms);
        if since < self.rx.ack.ato_ms {
            self.rx.ack.pingpong = self.rx.ack.pingpong.saturating_add(1);
        }
    }

    pub(crate) fn in_pingpong(&self) -> bool {
        self.rx.ack.pingpong > 0
    }

    fn in_quickack(&self) -> bool {
        self.rx.ack.quick > 0 && !self.in_pingpong()
    }

    /// At least as many immediate ACKs as half a window of full segments needs, at most `max`.
    fn incr_quickack(&mut self, max: u32) {
        let full = self.rx.wnd / (2 * u32::from(self.rx.ack.rcv_mss.max(1)));
        let quick = if full == 0 { 2 } else { full }.min(max) as u8;
        self.rx.ack.quick = self.rx.ack.quick.max(quick);
    }

    /// Trouble: acknowledge at once for a while.
    pub(crate) fn enter_quickack(&mut self) {
        self.enter_quickack_max(MAX_QUICKACKS);
    }

    pub(crate) fn enter_quickack_max(&mut self, max: u32) {
        self.incr_quickack(max);
        self.rx.ack.pingpong = 0;
        self.rx.ack.ato_ms = ATO_MIN_MS;
    }

    /// Saves the handshake's ACK when data is about to carry it, or the application asked for that.
    pub(crate) fn defer_handshake_ack(&mut self, cx: &TcpCx<'_>) {
        self.rx.ack.pending |= ack::SCHED | ack::TIMER;
        self.enter_quickack();
        self.arm_delack(cx, DELACK_MAX_MS);
    }

    fn arm_delack(&mut self, cx: &TcpCx<'_>, delay_ms: u32) {
        self.rx.ack.timeout_ms = now_ms(cx).wrapping_add(delay_ms);
        self.timers.set(Timer::Delack, cx.now.plus_micros(u64::from(delay_ms) * 1000));
    }

    /// What every in-order data segment changes: estimators, ACK schedule, window growth (Linux `tcp_event_data_recv`).
    #[inline]
    pub(crate) fn on_data_received(&mut self, cx: &mut TcpCx<'_>, facts: DataFacts) {
        self.rx.ack.pending |= ack::SCHED;
        self.measure_rcv_mss(facts);
        self.rcv_rtt_measure(cx.now);
        let now = now_ms(cx);
        let a = &mut self.rx.ack;
        if a.ato_ms == 0 {
            a.ato_ms = ATO_MIN_MS;
            self.incr_quickack(MAX_QUICKACKS);
        } else {
            let gap = now.wrapping_sub(a.lrcvtime_ms);
            if gap <= ATO_MIN_MS / 2 {
                a.ato_ms = (a.ato_ms >> 1) + ATO_MIN_MS / 2;
            } else if gap < a.ato_ms {
                a.ato_ms = ((a.ato_ms >> 1) + gap).min(self.tx.rto_us / 1_000);
            } else if gap > self.tx.rto_us / 1_000 {
                // The peer was silent for long: it starts anew, and so do we.
                self.incr_quickack(MAX_QUICKACKS);
            }
        }
        self.rx.ack.lrcvtime_ms = now;
        self.ecn_on_data(facts.ip_ecn);
        if facts.len >= GROW_MIN_LEN {
            self.grow_window(cx, facts.len, facts.truesize);
        }
    }

    /// Learns what one wire segment of the peer carries (SYSTEMS A20), and what memory it costs (A21).
    #[inline]
    pub(crate) fn measure_rcv_mss(&mut self, facts: DataFacts) {
        let last = core::mem::take(&mut self.rx.ack.last_seg_size);
        let len = if facts.gso_size != 0 { facts.gso_size } else { facts.len };
        if len >= u32::from(self.rx.ack.rcv_mss) {
            if len != u32::from(self.rx.ack.rcv_mss) {
                self.update_scaling_ratio(facts.len, facts.truesize);
            }
            self.rx.ack.rcv_mss = len.min(self.advmss_data()) as u16;
            if facts.flags.contains(TcpFlags::PSH) {
                self.rx.ack.pending |= ack::PUSHED;
            }
            return;
        }
        // Shorter: believed when it is a plausible full segment, twice in a row.
        let whole = len + facts.header_len;
        let remnant = facts.flags.intersects(TcpFlags::FIN | TcpFlags::URG | TcpFlags::SYN | TcpFlags::PSH);
        if whole >= MSS_DEFAULT + 20 || (whole >= MSS_MIN + 20 && !remnant) {
            let size =
                whole.saturating_sub(20 + crate::conn::ts_option_bytes(&self.neg)).min(u32::from(u16::MAX)) as u16;
            self.rx.ack.last_seg_size = size;
            if size == last && size > 0 {
                self.rx.ack.rcv_mss = size;
                return;
            }
        }
        if self.rx.ack.pending & ack::PUSHED != 0 {
            self.rx.ack.pending |= ack::PUSHED2;
        }
        self.rx.ack.pending |= ack::PUSHED;
    }

    /// Decides after a segment: ACK now, later, or compressed (Linux `__tcp_ack_snd_check`).
    #[inline]
    pub(crate) fn ack_snd_check(&mut self, cx: &mut TcpCx<'_>, ofo_possible: bool) {
        let pending = self.rx.ack.pending;
        if pending & ack::SCHED == 0 || pending & ack::SEND != 0 || self.state == State::Closed {
            return;
        }
        let unacked = self.rx.nxt - self.rx.wup;
        let unread = self.rx.nxt - self.rx.copied_seq;
        let full_segment = unacked > u32::from(self.rx.ack.rcv_mss)
            && (unread < self.rx.rcvlowat || self.compute_window(cx.mem) >= self.rx.wnd);
        if full_segment || self.in_quickack() || pending & ack::NOW != 0 {
            return self.request_ack();
        }
        if !ofo_possible || self.rx.ofo_is_empty() {
            return self.send_delayed_ack(cx);
        }
        self.compress_dup_ack(cx);
    }

    /// A gap is open: the first duplicate ACKs leave at once, the others are bundled (SYSTEMS B34).
    fn compress_dup_ack(&mut self, cx: &TcpCx<'_>) {
        let a = &mut self.rx.ack;
        if !self.neg.sack || a.compressed >= cx.cfg.comp_sack_nr {
            return self.request_ack();
        }
        if a.compressed_nxt != self.rx.nxt {
            a.compressed_nxt = self.rx.nxt;
            a.dup_acks = 0;
        }
        if a.dup_acks < DUP_ACKS_AT_ONCE {
            a.dup_acks += 1;
            return self.request_ack();
        }
        a.compressed += 1;
        if self.timers.get(Timer::CompAck).is_some() {
            return;
        }
        let mut rtt_us8 = self.rx.rtt.rtt_us8;
        if self.tx.srtt_us8 != 0 && (self.tx.srtt_us8 < rtt_us8 || rtt_us8 == 0) {
            rtt_us8 = self.tx.srtt_us8;
        }
        // 5 % of the RTT: rtt_us8 / 8 us * 1000 ns / 20.
        let delay_ns = (u64::from(rtt_us8) * 125 / 20).min(u64::from(cx.cfg.comp_sack_delay_ns));
        self.timers.set(Timer::CompAck, cx.now + Duration::from_nanos(delay_ns));
    }

    /// Sends what was compressed: the SACK list is about to forget a block.
    pub(crate) fn flush_compressed_ack(&mut self) {
        if self.rx.ack.compressed > 0 {
            self.timers.clear(Timer::CompAck);
            self.request_ack();
        }
    }

    #[inline]
    fn send_delayed_ack(&mut self, cx: &TcpCx<'_>) {
        let mut ato = self.rx.ack.ato_ms;
        if ato > ATO_MIN_MS {
            let patient = self.in_pingpong() || self.rx.ack.pending & ack::PUSHED != 0;
            let mut max = if patient { DELACK_MAX_MS } else { 500 };
            if self.tx.srtt_us8 != 0 {
                max = max.min((self.tx.srtt_us8 / 8_000).max(ATO_MIN_MS));
            }
            ato = ato.min(max);
        }
        ato = ato.min(DELACK_MAX_MS);
        if self.rx.ack.pending & ack::TIMER != 0 {
            let left = self.rx.ack.timeout_ms.wrapping_sub(now_ms(cx)) as i32;
            if left <= (ato >> 2) as i32 {
                return self.request_ack();
            }
            ato = ato.min(left as u32);
        }
        self.rx.ack.pending |= ack::SCHED | ack::TIMER;
        self.arm_delack(cx, ato);
    }

    /// The delayed ACK is due.
    pub(crate) fn on_delack_timer(&mut self, cx: &mut TcpCx<'_>) {
        if self.rx.ack.compressed > 0 {
            return self.flush_compressed_ack();
        }
        if self.rx.ack.pending & ack::TIMER == 0 || self.state == State::Closed {
            return;
        }
        self.rx.ack.pending &= !ack::TIMER;
        if self.rx.ack.pending & ack::SCHED == 0 {
            return;
        }
        if self.in_pingpong() {
            // Waited for an answer that did not come.
            self.rx.ack.pingpong = 0;
            self.rx.ack.ato_ms = ATO_MIN_MS;
        } else {
            self.rx.ack.ato_ms = (self.rx.ack.ato_ms << 1).min(self.tx.rto_us / 1_000);
        }
        self.request_ack();
        cx.mib.delayed_acks += 1;
    }

    /// The compressed ACKs are due.
    pub(crate) fn on_comp_ack_timer(&mut self, _cx: &mut TcpCx<'_>) {
        if self.rx.ack.compressed > 0 {
            self.request_ack();
        }
    }

    /// TCP_QUICKACK: `on` leaves pingpong mode and sends what is scheduled; off enters it.
    pub(crate) fn set_quickack(&mut self, cx: &mut TcpCx<'_>, on: bool) {
        if !on {
            self.rx.ack.pingpong = 1;
            return;
        }
        self.rx.ack.pingpong = 0;
        let open = matches!(self.state, State::Established | State::CloseWait);
        if open && self.rx.ack.pending & ack::SCHED != 0 {
            self.rx.ack.pending |= ack::PUSHED;
            self.cleanup_rbuf(cx.mem, 1);
        }
    }

    /// TCP_QUICKACK as `getsockopt` reports it.
    pub fn quickack(&self) -> bool {
        !self.in_pingpong()
    }
}
