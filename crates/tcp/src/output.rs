//! Segments leave: what may be sent now, in how large units, and with which header.
//!
//! `poll_xmit` is the only door. In this order: resets and probes that were asked for, retransmissions, new data, and a
//! pure ACK if one is due and nothing carried it. The unit is a super-packet; it is emitted by reference to the pages of
//! the send queue, so a transmission and a retransmission both cost one descriptor and one count per fragment.
//!
//! New data passes, per super-packet, Linux's five tests: congestion window, receiver's window, Nagle in Minshall's
//! variant (with CORK and MSG_MORE) for a lone partial segment, TSO deferral for larger ones (wait a little for the ACK
//! that makes a fuller unit), and TCP small queues (what lies below the socket is bounded by a millisecond of the
//! estimated rate). Sender-side silly window avoidance (RFC 1122 section 4.2.3.4) is Nagle plus cutting at MSS multiples.
//!
//! Not here: pacing (the rate is estimated and sizes units, nothing waits for it), autocorking, urgent data.

use linerate_base::{Instant, RstReason, Seq};
use linerate_cong::{CaState, CcEvent, CongestionControl};
use linerate_skb::{Csum, GsoType, SKB_TRUESIZE, Skb, SkbBatch, SkbFlags};
use linerate_wire::tcp::field;
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::mtu::Probing;
use crate::state::State;
use crate::timer::{RetransKind, Timer};
use crate::tx::{Chrono, SEG_FRAGS, flag, want};
use crate::txq::{TxSeg, tag};

/// Set on skbs whose IP header shall say ECT(0) (RFC 3168 section 6.1.2: new data only).
pub const SKB_ECT0: SkbFlags = SkbFlags(SkbFlags::FIRST_PRIVATE.0);
/// Right shift of a rate in bytes per second to what is sent in about a millisecond.
const PACING_SHIFT: u32 = 10;
/// Round trips below `2^9` µs times a few let super-packets grow to the device's limit (Linux's tcp_tso_rtt_log).
const TSO_RTT_LOG: u32 = 9;
/// Fewest wire segments of a super-packet, windows permitting.
const MIN_TSO_SEGS: u32 = 2;
/// Longest TCP header, bytes.
const MAX_HEADER_LEN: usize = 60;
/// How long after the last transmission deferral is still allowed, ns: a burst has to be going on.
const DEFER_NS: u64 = 1_000_000;

/// Where segments go, and how many more may.
pub(crate) struct Out<'b> {
    batch: &'b mut SkbBatch,
    pub(crate) left: usize,
}

impl<'b> Out<'b> {
    /// At most `left` skbs into `batch`.
    pub(crate) fn new(batch: &'b mut SkbBatch, left: usize) -> Self {
        Self { batch, left }
    }
}

/// One transmission.
pub(crate) struct Emit {
    pub(crate) seq: Seq,
    /// Payload, in sequence numbers.
    pub(crate) from: Seq,
    pub(crate) to: Seq,
    pub(crate) flags: TcpFlags,
    pub(crate) mss: u32,
    pub(crate) new_data: bool,
    pub(crate) retrans: bool,
}

/// How Nagle's rule is bent for one call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nagle {
    /// As the socket says.
    Socket,
    /// Off (TCP_NODELAY, FIN, probes).
    Off,
}

/// What the tests say about the send head.
enum Gate {
    /// Send at most so many bytes of it.
    Send(u32),
    /// Held back by cwnd.
    Cwnd,
    /// Held back by the peer's window.
    Rwnd,
    /// Held back by Nagle, deferral or small queues.
    Wait,
}

impl Conn {
    /// Hands out what may leave now, at most `budget` skbs, and returns how many. Each begins at its TCP header
    /// (`transport_header`), with `Csum::Partial` whose pseudo header is still to be seeded, and `gso_*` set.
    pub fn poll_xmit(&mut self, cx: &mut TcpCx<'_>, out: &mut SkbBatch, budget: usize) -> usize {
        if self.xmit_quick(cx, out, budget) {
            return 1;
        }
        if self.is_quiet() {
            return 0;
        }
        let before = out.len();
        let mut o = Out::new(out, budget);
        if self.tx.want != 0 {
            self.send_wanted(cx, &mut o);
        }
        if self.state != State::Closed && self.tx.fl.is_born() {
            self.send_queued(cx, &mut o);
        }
        if self.state != State::Closed && self.ack_now() {
            self.send_ack(cx, &mut o, self.acceptable_seq());
        }
        if self.tx.notsent_lowat != u32::MAX {
            // What is sent now is not unsent any more; of the buffer itself only ACKs give something back.
            self.check_space(cx);
        }
        out.len() - before
    }

    /// Nothing is to be sent, whatever the windows say: [`Self::poll_xmit`] would do nothing.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.tx.want == 0 && !self.ack_now() && !self.wants_xmit() && !self.tx.flag(flag::REXMIT_NEW)
    }

    /// Something waits to be sent, or to be sent again: room below the socket may make it go.
    #[inline]
    pub fn wants_xmit(&self) -> bool {
        self.tx.fl.is_born() && (self.tx.fl.q.has_unsent() || self.tx.lost_out > self.tx.retrans_out)
    }

    /// Retransmissions and new data, as far as the windows allow.
    fn send_queued(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) {
        if self.tx.fl.q.send_head().is_some_and(|s| s.has(tag::SYN)) {
            self.send_syn(cx, o);
            return;
        }
        if self.tx.flag(flag::REXMIT_NEW) && o.left > 0 {
            // F-RTO: new data shows whether the old was lost; only without any are retransmissions next.
            self.tx.set_flag(flag::REXMIT_NEW, false);
            self.write_xmit(cx, o, Nagle::Off, false);
            let sent = self.tx.snd_nxt.gt(self.tx.fl.high_seq);
            self.tx.set_flag(flag::HOLD, sent);
            self.tx.fl.frto &= sent;
        }
        if !self.tx.flag(flag::HOLD) && self.tx.lost_out > self.tx.retrans_out {
            self.xmit_retransmit_queue(cx, o);
        }
        if self.tx.fl.q.has_unsent() {
            self.push_pending(cx, o);
        }
    }

    /// Sends what may be sent, and sees to a window probe when nothing may and nothing is in flight.
    fn push_pending(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) {
        if self.write_xmit(cx, o, Nagle::Socket, false) && self.timers.get(Timer::Retrans).is_none() {
            let at = cx.now.plus_micros(u64::from(self.probe0_base_us()));
            self.timers.set_retrans(RetransKind::Probe0, at);
        }
        if !self.tx.fl.q.has_unsent() {
            self.tx.set_flag(flag::PUSH, false);
        }
    }

    /// Sends new data. `probe`: exactly one segment, whatever cwnd says (tail loss probe). Returns whether data waits
    /// with nothing in flight.
    fn write_xmit(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>, nagle: Nagle, probe: bool) -> bool {
        let mss = self.current_mss();
        let max_segs = self.tso_segs(mss);
        let (mut sent, mut cwnd_limited, mut rwnd_limited) = (0, false, false);
        if self.tx.mtu.is_some() && !probe {
            match self.mtu_probe(cx, o) {
                Probing::No => {}
                Probing::Soon => return false,
                Probing::Sent => sent = 1,
            }
        }
        while self.tx.fl.q.has_unsent() && o.left > 0 {
            let quota = match self.cwnd_quota() {
                0 if probe => 1,
                0 => break,
                n => n.min(max_segs),
            };
            let limit = match self.gate(cx, mss, quota, max_segs, nagle, probe) {
                Gate::Send(limit) => limit,
                Gate::Cwnd => {
                    cwnd_limited = true;
                    break;
                }
                Gate::Rwnd => {
                    rwnd_limited = true;
                    break;
                }
                Gate::Wait => break,
            };
            let Some(segs) = self.send_head(cx, o, limit, mss) else { break };
            sent += segs;
            if probe {
                break;
            }
        }
        if rwnd_limited {
            self.tx.chrono_start(cx.now, Chrono::RwndLimited);
        } else {
            self.tx.chrono_stop(cx.now, Chrono::RwndLimited);
        }
        cwnd_limited |= self.tx.in_flight() >= self.tx.cc.cwnd;
        if sent > 0 || cwnd_limited {
            self.cwnd_validate(cx, cwnd_limited);
        }
        if sent > 0 {
            if self.tx.in_cwnd_reduction() {
                self.tx.fl.prr.out = self.tx.fl.prr.out.saturating_add(sent);
            }
            if !probe {
                self.schedule_loss_probe(cx, false);
            }
            return false;
        }
        self.tx.packets_out == 0 && self.tx.fl.q.has_unsent()
    }

    /// The tests for the send head.
    fn gate(&mut self, cx: &TcpCx<'_>, mss: u32, quota: u32, max_segs: u32, nagle: Nagle, probe: bool) -> Gate {
        self.grow_head(cx, quota.saturating_mul(mss));
        let pos = self.tx.fl.q.sent();
        let last = pos + 1 == self.tx.fl.q.len();
        let Some(head) = self.tx.fl.q.get_mut(pos) else { return Gate::Wait };
        head.set_segs(mss);
        let head = *head;
        let first_end = if head.data_len() > mss { head.seq + mss } else { head.end_seq };
        if first_end.gt(self.tx.wnd_end()) {
            return Gate::Rwnd;
        }
        let nonagle = nagle == Nagle::Off || self.opts.nodelay;
        if head.segs == 1 {
            let pushed = !last || head.has(tag::FIN) || self.tx.flag(flag::PUSH);
            if !pushed && self.nagle_holds(head.data_len() < mss, nonagle) {
                return Gate::Wait;
            }
        } else if !probe && let Some(gate) = self.tso_should_defer(cx, &head, last, mss, max_segs) {
            return gate;
        }
        let limit =
            if head.segs > 1 { self.split_point(&head, last, mss, quota, nonagle) } else { mss.max(head.data_len()) };
        if limit == 0 || self.small_queue_full(cx, limit.min(head.data_len()), 0) {
            return Gate::Wait;
        }
        Gate::Send(limit)
    }

    /// Nagle's test for a segment of which `partial` says that it is not full (RFC 9293 section 3.7.4, Minshall).
    fn nagle_holds(&self, partial: bool, nonagle: bool) -> bool {
        if !partial {
            return false;
        }
        if self.opts.cork || self.tx.flag(flag::MORE) {
            return true;
        }
        let sml = self.tx.fl.snd_sml;
        let small_in_flight = sml.gt(self.tx.snd_una) && sml.le(self.tx.snd_nxt);
        !nonagle && self.tx.packets_out > 0 && small_in_flight
    }

    /// How much of a head of several segments may go: whole segments, and the partial rest unless Nagle minds.
    fn split_point(&self, head: &TxSeg, last: bool, mss: u32, quota: u32, nonagle: bool) -> u32 {
        let window = self.tx.wnd_end() - head.seq;
        let most = mss.saturating_mul(quota);
        if window >= most && !last {
            return most;
        }
        let needed = head.data_len().min(window);
        if most <= needed {
            return most;
        }
        let partial = needed % mss;
        if self.nagle_holds(partial != 0, nonagle) && !self.tx.flag(flag::PUSH) && !head.has(tag::FIN) {
            needed - partial
        } else {
            needed
        }
    }

    /// Waits for the next ACK when that will allow a fuller unit, as long as there is one to come soon.
    fn tso_should_defer(&self, cx: &TcpCx<'_>, head: &TxSeg, last: bool, mss: u32, max_segs: u32) -> Option<Gate> {
        let tx = &self.tx;
        if matches!(tx.cc.ca_state, CaState::Recovery | CaState::Loss) {
            return None;
        }
        if cx.now.since(tx.fl.wstamp).as_nanos() as u64 > DEFER_NS {
            return None;
        }
        let send_win = tx.wnd_end() - head.seq;
        let cong_win = tx.cc.cwnd.saturating_sub(tx.in_flight()).saturating_mul(mss);
        let limit = send_win.min(cong_win);
        if limit >= max_segs.saturating_mul(mss) || (!last && limit >= head.data_len()) {
            return None;
        }
        let chunk = match cx.cfg.tso_win_divisor {
            0 => 3 * mss + 1,
            n => tx.snd_wnd.min(tx.cc.cwnd.saturating_mul(mss)) / n,
        };
        if limit >= chunk {
            return None;
        }
        // Worth waiting only if the ACK of the oldest segment is at most half a round trip away.
        let oldest = tx.fl.q.rtx_head()?;
        if cx.now.micros_since(oldest.tx_at) < tx.srtt_us8 >> 4 {
            return None;
        }
        if cong_win < send_win {
            if cong_win <= head.data_len() {
                return Some(Gate::Cwnd);
            }
        } else if send_win <= head.data_len() {
            return Some(Gate::Rwnd);
        }
        if head.has(tag::FIN | tag::EOR) { None } else { Some(Gate::Wait) }
    }

    /// Wire segments that cwnd allows now: at most half of it in one unit, so that ACKs keep coming.
    fn cwnd_quota(&self) -> u32 {
        let (flight, cwnd) = (self.tx.in_flight(), self.tx.cc.cwnd);
        if flight >= cwnd { 0 } else { (cwnd >> 1).max(1).min(cwnd - flight) }
    }

    /// Fills the send head from its successor up to `want` bytes: a border moves, no byte does.
    pub(crate) fn grow_head(&mut self, cx: &TcpCx<'_>, want: u32) {
        let pos = self.tx.fl.q.sent();
        let (Some(head), Some(next)) = (self.tx.fl.q.get(pos).copied(), self.tx.fl.q.get(pos + 1).copied()) else {
            return;
        };
        let missing = want.saturating_sub(head.data_len());
        if missing == 0 || head.has(tag::EOR | tag::SYN) {
            return;
        }
        let max = SEG_FRAGS.min(cx.skbs.max_frags());
        let payload_end = next.payload().1;
        if missing >= payload_end - next.seq {
            // The whole neighbour would have to move: only full units are worth it, and those it makes by itself.
            return;
        }
        let at = next.seq + missing;
        if self.tx.fl.q.count_frags(head.seq, at) <= max {
            self.tx.fl.q.grow(pos, at);
        }
    }

    /// TCP small queues: is enough of this socket below it? `factor` doubles the limit for retransmissions.
    /// `len`: payload of the skb that wants to leave.
    pub(crate) fn small_queue_full(&self, cx: &TcpCx<'_>, len: u32, factor: u32) -> bool {
        let rate = (self.tx.cc.pacing_rate >> PACING_SHIFT).min(u64::from(cx.cfg.limit_output_bytes)) as u32;
        let two = 2 * (SKB_TRUESIZE + len);
        let limit = rate.max(two).min(cx.cfg.limit_output_bytes) << factor;
        self.tx.wmem_alloc > limit && self.tx.fl.q.sent() > 1
    }

    /// Wire segments of one super-packet: what a millisecond of the rate sends, more where the round trip is short.
    pub(crate) fn tso_segs(&self, mss: u32) -> u32 {
        let max = self.path.gso_max_size_bytes;
        let mut bytes = (self.tx.cc.pacing_rate >> PACING_SHIFT).min(u64::from(max)) as u32;
        let r = self.tx.min_rtt.get() >> TSO_RTT_LOG;
        if r < u32::BITS {
            bytes = bytes.saturating_add(max >> r);
        }
        let segs = (bytes.min(max) / mss).max(MIN_TSO_SEGS);
        segs.min(u32::from(self.path.gso_max_segs.max(1)))
    }

    /// Sends up to `limit` bytes of the send head. Returns its wire segments; `None`: no descriptor.
    pub(crate) fn send_head(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>, limit: u32, mss: u32) -> Option<u32> {
        let pos = self.tx.fl.q.sent();
        let head = *self.tx.fl.q.get(pos)?;
        let fit = self.fit_frags(cx, &head, limit, mss);
        if head.data_len() > fit {
            self.split_seg(cx, pos, head.seq + fit, mss);
        }
        let seg = *self.tx.fl.q.get(pos)?;
        let (from, to) = seg.payload();
        let flags = wire_flags(&seg, mss);
        let e = Emit { seq: seg.seq, from, to, flags, mss, new_data: true, retrans: false };
        if !self.emit(cx, o, &e) {
            return None;
        }
        self.new_data_sent(cx, pos);
        if seg.data_len() < seg.segs.saturating_mul(mss) {
            self.tx.fl.snd_sml = seg.end_seq;
        }
        cx.mib.orig_data_sent += u64::from(seg.segs);
        Some(self.tx.fl.q.get(pos)?.segs)
    }

    /// The send head has left: it is in flight now, and timed.
    fn new_data_sent(&mut self, cx: &TcpCx<'_>, pos: usize) {
        if self.record_sent(cx, pos) || self.timers.retrans_kind() == RetransKind::Tlp {
            self.rearm_rto(cx);
        }
    }

    /// Moves the segment at `pos`, the send head, to the retransmit queue. Returns whether it begins a flight.
    pub(crate) fn record_sent(&mut self, cx: &TcpCx<'_>, pos: usize) -> bool {
        let tx = &mut self.tx;
        let first = tx.packets_out == 0;
        let fl = &mut *tx.fl;
        if first {
            // A new flight: rate samples count from here.
            (fl.first_tx_at, fl.delivered_at) = (cx.now, cx.now);
        }
        let (first_tx_at, delivered_at, limited) = (fl.first_tx_at, fl.delivered_at, fl.app_limited != 0);
        let delivered = tx.delivered;
        let Some(seg) = fl.q.get_mut(pos) else { return false };
        seg.tx_at = cx.now;
        (seg.first_tx_at, seg.delivered_at, seg.delivered) = (first_tx_at, delivered_at, delivered);
        seg.tags &= !tag::APP_LIMITED;
        seg.tags |= if limited { tag::APP_LIMITED } else { 0 };
        let (segs, end) = (seg.segs, seg.end_seq);
        fl.q.mark_sent();
        tx.packets_out += segs;
        tx.snd_nxt = end;
        first
    }

    /// The SYN, or SYN-ACK of a simultaneous open: no window applies.
    fn send_syn(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) {
        let Some(seg) = self.tx.fl.q.send_head().copied() else { return };
        let pos = self.tx.fl.q.sent();
        if let Some(s) = self.tx.fl.q.get_mut(pos) {
            s.set_segs(self.tx.cc.mss);
        }
        let e = self.syn_emit(&seg, false);
        if self.emit(cx, o, &e) {
            // The time that a connection attempt may take counts from here.
            self.tx.fl.retrans_at = cx.now;
            self.new_data_sent(cx, pos);
        } else {
            // No descriptor: nothing else would ever wake a connection that has not begun.
            self.arm_rto(cx, self.tx.rto_us);
        }
    }

    /// The first SYN of an active open, written into `room` as [`Self::send_syn`] would send it; the length of its
    /// header.
    /// `None`: that is not what waits, or there is no room; nothing happened.
    pub(crate) fn small_syn(&mut self, cx: &mut TcpCx<'_>, room: &mut [u8]) -> Option<usize> {
        let seg = *self.tx.fl.q.sole_unsent().filter(|s| s.has(tag::SYN) && self.tx.want == 0)?;
        let room = room.get_mut(..MAX_HEADER_LEN)?;
        let e = self.syn_emit(&seg, false);
        debug_assert!(!e.flags.contains(TcpFlags::ACK), "a SYN-ACK in SYN-SENT");
        let repr = self.header(cx, &e, false);
        let len = repr.header_len();
        repr.emit(room.get_mut(..len)?);
        if let Some(s) = self.tx.fl.q.get_mut(0) {
            s.set_segs(self.tx.cc.mss);
        }
        self.count_sent(cx, 0, 1, 0);
        self.tx.fl.retrans_at = cx.now;
        self.new_data_sent(cx, 0);
        Some(len)
    }

    pub(crate) fn syn_emit(&self, seg: &TxSeg, retrans: bool) -> Emit {
        // ECN is asked for once: a middlebox that drops such SYNs lets the second pass (RFC 3168 section 6.1.1.1).
        let ack = match (self.state, self.neg.ecn && !retrans) {
            (State::SynSent, true) => TcpFlags::ECE | TcpFlags::CWR,
            (State::SynSent, false) => TcpFlags::NONE,
            (_, true) => TcpFlags::ACK | TcpFlags::ECE,
            (_, false) => TcpFlags::ACK,
        };
        Emit {
            seq: seg.seq,
            from: seg.end_seq,
            to: seg.end_seq,
            flags: TcpFlags::SYN | ack,
            mss: self.tx.cc.mss,
            new_data: !retrans,
            retrans,
        }
    }

    /// What was asked for by name: resets, probes, the head into a shrunken window.
    fn send_wanted(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) {
        let wanted = self.tx.want;
        if wanted & want::RST != 0 && self.send_flags(cx, o, self.acceptable_seq(), TcpFlags::RST | TcpFlags::ACK) {
            self.tx.want &= !want::RST;
            cx.mib.out_rsts += 1;
        }
        if self.state == State::Closed {
            self.tx.want &= want::RST;
            return;
        }
        if wanted & want::TLP != 0 && o.left > 0 {
            self.tx.want &= !want::TLP;
            self.send_loss_probe(cx, o);
        }
        if wanted & want::HEAD != 0 && o.left > 0 {
            self.tx.want &= !want::HEAD;
            self.retransmit_seg(cx, o, 0, 1, false);
        }
        if wanted & want::PROBE0 != 0 && o.left > 0 {
            self.tx.want &= !want::PROBE0;
            self.write_wakeup(cx, o);
        }
        if wanted & want::PROBE != 0 && o.left > 0 {
            self.tx.want &= !want::PROBE;
            self.send_ack(cx, o, self.tx.snd_una - 1);
        }
    }

    /// Is there a new segment that the peer's window takes?
    pub(crate) fn new_probe_fits(&self) -> bool {
        let mss = self.current_mss();
        self.tx.fl.q.send_head().is_some_and(|h| {
            let end = if h.data_len() > mss { h.seq + mss } else { h.end_seq };
            end.le(self.tx.wnd_end())
        })
    }

    /// Asks the tail loss probe of `poll_xmit`: one new segment, whatever cwnd says. Returns whether one was sent.
    pub(crate) fn send_new_probe(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) -> bool {
        let before = self.tx.packets_out;
        self.write_xmit(cx, o, Nagle::Off, true);
        self.tx.packets_out > before
    }

    /// A window probe: what the window still takes of the send head, else a segment below the window.
    fn write_wakeup(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) {
        let wnd_end = self.tx.wnd_end();
        match self.tx.fl.q.send_head().copied() {
            Some(head) if head.seq.lt(wnd_end) => {
                let mss = self.current_mss();
                let most = (wnd_end - head.seq).min(mss);
                if self.tx.fl.pushed_seq.lt(head.end_seq) {
                    self.tx.fl.pushed_seq = head.end_seq;
                }
                let pos = self.tx.fl.q.sent();
                if head.data_len() > most {
                    self.split_seg(cx, pos, head.seq + most, mss);
                }
                if let Some(h) = self.tx.fl.q.get_mut(pos) {
                    h.tags |= tag::PSH;
                    h.set_segs(mss);
                }
                self.send_head(cx, o, most, mss);
            }
            _ => {
                if self.send_ack(cx, o, self.tx.snd_una - 1) {
                    cx.mib.win_probe += 1;
                }
            }
        }
        if self.tx.packets_out > 0 || !self.tx.fl.q.has_unsent() {
            self.tx.probes_out = 0;
            self.tx.backoff = 0;
            self.tx.fl.probes_at = Instant::ZERO;
        }
    }

    /// The sequence number of a segment without data: `snd_nxt`, or the window's edge when the peer shrank it.
    pub(crate) fn acceptable_seq(&self) -> Seq {
        let end = self.tx.wnd_end();
        if self.tx.snd_nxt.gt(end) && self.state.is_synchronized() { end } else { self.tx.snd_nxt }
    }

    fn send_ack(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>, seq: Seq) -> bool {
        self.send_flags(cx, o, seq, TcpFlags::ACK)
    }
    fn send_flags(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>, seq: Seq, flags: TcpFlags) -> bool {
        let e = Emit { seq, from: seq, to: seq, flags, mss: self.tx.cc.mss, new_data: false, retrans: false };
        self.emit(cx, o, &e)
    }

    /// Queues an active reset; it leaves with the next `poll_xmit` even when the connection is closed by then.
    pub(crate) fn send_rst(&mut self, cx: &mut TcpCx<'_>, reason: RstReason) {
        if self.tx.want & want::RST == 0 {
            cx.rsts.count(reason);
        }
        self.tx.want |= want::RST;
    }
    /// Queues a keepalive probe.
    pub(crate) fn send_probe(&mut self, _cx: &mut TcpCx<'_>) {
        self.tx.want |= want::PROBE;
    }

    /// Payload bytes that a segment can carry now, SACK blocks and timestamps taken off.
    pub(crate) fn current_mss(&self) -> u32 {
        let mss = self.tx.cc.mss;
        if !self.neg.sack || (self.rx.dsack.is_none() && self.rx.ofo_is_empty()) {
            return mss;
        }
        let blocks = (self.sack_blocks().len() as u32).min(if self.neg.ts { 3 } else { 4 });
        let bytes = if blocks == 0 { 0 } else { 4 + 8 * blocks };
        mss.saturating_sub(bytes).max(8)
    }

    fn options(&self, cx: &TcpCx<'_>, flags: TcpFlags) -> TcpOptions {
        let syn = flags.contains(TcpFlags::SYN);
        let ts = self.neg.ts.then(|| Timestamps { val: self.tsval(cx.now), ecr: self.ts_recent() });
        let mut opts = TcpOptions { ts, ..TcpOptions::NONE };
        if syn {
            opts.mss = Some(self.neg.our_mss_bytes);
            opts.wscale = self.neg.wscale.then_some(self.neg.rcv_wscale);
            opts.sack_permitted = self.neg.sack;
        } else if (self.rx.dsack.is_some() || !self.rx.ofo_is_empty()) && !flags.contains(TcpFlags::RST) {
            opts.sack = self.sack_blocks();
        }
        opts
    }

    /// Builds one skb and hands it out. False, and nothing happened, without budget or descriptor.
    pub(crate) fn emit(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>, e: &Emit) -> bool {
        if o.left == 0 {
            return false;
        }
        let Some(mut skb) = cx.skbs.alloc() else { return false };
        let whole = self.tx.fl.q.each_frag(e.from, e.to, |f| skb.push_frag(f).is_ok());
        debug_assert!(whole, "a segment with more fragments than an skb takes");
        if !whole {
            cx.skbs.free(skb, cx.pool);
            return false;
        }
        let payload = e.to - e.from;
        let new_data = e.new_data && payload > 0;
        let repr = self.header(cx, e, new_data);
        let made = match repr.header_len() {
            // With timestamps alone, as nearly always: a length known here makes the header in registers.
            32 => skb.push_header::<32>().map(|h| repr.emit(h)),
            len => skb.push_head(len).map(|h| repr.emit(h)),
        };
        debug_assert!(made.is_some(), "no headroom for a TCP header");
        self.dress(cx, &mut skb, e, payload, new_data);
        let segs = skb.gso_segs.max(1);
        self.count_sent(cx, payload, segs, skb.truesize);
        if e.flags.contains(TcpFlags::ACK) {
            self.ack_sent(cx, repr.ack);
        }
        o.batch.push(skb);
        o.left -= 1;
        true
    }

    /// The header of a transmission; the window in it is promised from now on.
    #[inline]
    fn header(&mut self, cx: &mut TcpCx<'_>, e: &Emit, new_data: bool) -> TcpRepr {
        let with_ack = e.flags.contains(TcpFlags::ACK);
        let flags = e.flags | self.ecn_flags(new_data);
        let opts = self.options(cx, e.flags);
        let window = self.select_window(cx);
        TcpRepr {
            src_port: self.key.local_port(),
            dst_port: self.key.remote_port(),
            seq: e.seq,
            ack: if with_ack { self.rx.nxt } else { Seq(0) },
            flags,
            window,
            urgent: 0,
            opts,
        }
    }

    /// Offload facts of a built segment.
    fn dress(&self, cx: &TcpCx<'_>, skb: &mut Skb, e: &Emit, payload: u32, new_data: bool) {
        let v4 = self.path.ip_header_bytes == 20;
        let at = skb.head_offset();
        skb.transport_header = at;
        skb.csum = Csum::Partial { start: at, offset: field::CHECKSUM as u16 };
        skb.ip_version = if v4 { 4 } else { 6 };
        if payload > e.mss {
            skb.gso_size = e.mss;
            skb.gso_segs = payload.div_ceil(e.mss);
            skb.gso_type = if v4 { GsoType::TcpV4 } else { GsoType::TcpV6 };
        } else {
            skb.gso_segs = 1;
        }
        skb.tstamp = cx.now;
        skb.truesize = SKB_TRUESIZE.saturating_add(payload);
        if e.retrans {
            skb.flags.insert(SkbFlags::RETRANS);
        }
        if e.flags.contains(TcpFlags::PSH) {
            skb.flags.insert(SkbFlags::PSH);
        }
        if self.neg.ecn && new_data {
            skb.flags.insert(SKB_ECT0);
        }
    }

    #[inline]
    pub(crate) fn count_sent(&mut self, cx: &mut TcpCx<'_>, payload: u32, segs: u32, truesize: u32) {
        self.tx.wmem_alloc = self.tx.wmem_alloc.saturating_add(truesize);
        self.note_sent(cx, payload, segs, self.tx.in_flight() == 0);
    }

    /// Counts what leaves; `idle`: nothing was in flight.
    #[inline]
    pub(crate) fn note_sent(&mut self, cx: &mut TcpCx<'_>, payload: u32, segs: u32, idle: bool) {
        self.tx.segs_out = self.tx.segs_out.wrapping_add(segs);
        cx.mib.out_segs += u64::from(segs);
        if payload > 0 && idle {
            self.tx.sync_cc();
            let tx = &mut self.tx;
            tx.algo.on_event(&mut tx.cc, cx.now, CcEvent::TxStart);
        }
        if payload > 0 {
            self.tx.cc.lsnd_time = cx.now;
            self.data_sent(cx.now);
        }
        if self.tx.fl.is_born() {
            let fl = &mut *self.tx.fl;
            fl.wstamp = cx.now;
            if payload > 0 {
                fl.data_segs_out = fl.data_segs_out.wrapping_add(segs);
                fl.bytes_sent = fl.bytes_sent.wrapping_add(u64::from(payload));
            }
        }
    }

    /// How much of `seg`, at most `limit`, fits the fragments of one skb; whole segments if at all possible.
    pub(crate) fn fit_frags(&self, cx: &TcpCx<'_>, seg: &TxSeg, limit: u32, mss: u32) -> u32 {
        let (from, to) = seg.payload();
        let limit = limit.min(seg.data_len());
        let max = SEG_FRAGS.min(cx.skbs.max_frags());
        if usize::from(seg.frags) <= max && self.tx.fl.q.count_frags(from, to) <= max {
            return limit;
        }
        let cut = if from + limit == to || (from + limit).gt(to) { to } else { from + limit };
        let fit = self.tx.fl.q.len_in_frags(from, cut, max);
        if fit >= cut - from {
            limit
        } else if fit > mss {
            fit - fit % mss
        } else {
            fit
        }
    }
}

/// Header flags of a queued segment with data or FIN. A super-packet always ends with PSH, so that the receiver's GRO
/// hands it up at once; that is a matter of the transmission, not of the segment (Linux).
pub(crate) fn wire_flags(seg: &TxSeg, mss: u32) -> TcpFlags {
    let mut flags = TcpFlags::ACK;
    if seg.has(tag::PSH) || seg.data_len() > mss {
        flags |= TcpFlags::PSH;
    }
    if seg.has(tag::FIN) {
        flags |= TcpFlags::FIN;
    }
    flags
}
