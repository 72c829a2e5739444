//! A segment arrives (RFC 9293 section 3.10.7), as Linux treats it.
//!
//! [`Conn::rcv`] is the one door. The predicted case is decided by a few compares: an in-order segment, nothing out of
//! order, window open, only a timestamp as option. Everything else takes the way of the RFC: sequence and PAWS checks
//! ([`crate::validate`]), ACK (the sender half's `on_ack`), FIN and data ([`crate::rcvq`]). A super-packet of many wire
//! segments passes once. Ownership: `Ok` means that the skb was taken (queued, or freed as consumed); `Err` gives it back
//! with the reason of its death, which the caller counts. Answers are never sent from here: they become pending and
//! leave with `poll_xmit`, so that one turn sends at most one ACK. The urgent pointer is ignored: urgent data is
//! delivered in line, as RFC 6093 recommends.

use linerate_base::{DropReason, Instant, Seq};
use linerate_skb::Skb;
use linerate_wire::{SackBlocks, TcpFlags, TcpRepr, Timestamps};

use crate::conn::{CloseReason, Conn, ev};
use crate::cx::{RxMeta, TcpCx};
use crate::rcvq::charge_of;
use crate::rx::ack;
use crate::state::State;

/// Facts of one received segment, shared by both halves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seg {
    /// First sequence number (of the SYN, if it has one).
    pub(crate) seq: Seq,
    /// Sequence number after the segment, SYN and FIN counted.
    pub(crate) end_seq: Seq,
    /// Acknowledgement number; meaningful with ACK.
    pub(crate) ack: Seq,
    /// Window in bytes: scaled, except on a SYN (RFC 7323 section 2.2).
    pub(crate) wnd: u32,
    /// Flags.
    pub(crate) flags: TcpFlags,
    /// Payload bytes.
    pub(crate) len: u32,
    /// Wire segments in this skb, at least 1.
    pub(crate) gso_segs: u32,
    /// Bytes of TCP header.
    pub(crate) header_len: u32,
    /// Timestamps as they are on the wire (the echo still has this connection's offset), if negotiated or on a SYN.
    pub(crate) ts: Option<Timestamps>,
    /// SACK blocks as received, unchecked.
    pub(crate) sack: SackBlocks,
    /// The time of this turn.
    pub(crate) now: Instant,
    /// ECN echo: RFC 3168 is in use and ECE is set.
    pub(crate) ece: bool,
    /// The two ECN bits of the IP header.
    pub(crate) ip_ecn: u8,
}

/// What the estimators want to know about a data segment after it was queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataFacts {
    /// New payload bytes.
    pub(crate) len: u32,
    /// Payload bytes per wire segment, 0 = one segment.
    pub(crate) gso_size: u32,
    /// Memory charged.
    pub(crate) truesize: u32,
    /// Bytes of TCP header.
    pub(crate) header_len: u32,
    /// Flags of the header.
    pub(crate) flags: TcpFlags,
    /// The two ECN bits of the IP header.
    pub(crate) ip_ecn: u8,
}

impl DataFacts {
    pub(crate) fn of(seg: &Seg, skb: &Skb, truesize: u32) -> Self {
        let Seg { header_len, flags, ip_ecn, .. } = *seg;
        Self { len: skb.len(), gso_size: skb.gso_size, truesize, header_len, flags, ip_ecn }
    }
}

/// What a step decided about the segment.
pub(crate) type Step = Result<(), DropReason>;

/// Removes the headers in front of the payload and says how long the TCP header was; `None` when there is not even one.
fn strip_header(skb: &mut Skb) -> Option<u32> {
    let before = u32::from(skb.transport_header.checked_sub(skb.head_offset())?);
    let len = u32::from(*skb.head_from(skb.transport_header).get(12)? >> 4) * 4;
    if len < 20 || before + len > skb.len() {
        return None;
    }
    skb.pull(before + len);
    Some(len)
}

impl Conn {
    /// A segment of this connection, checksum verified, headers still in front of the payload.
    ///
    /// # Errors
    /// The skb comes back with the reason why it was not taken; the caller counts and frees it. When
    /// [`Conn::take_reset_reply`] is true afterwards, the segment has to be answered with
    /// [`reset_for`](crate::minisocks::reset_for).
    pub fn rcv(&mut self, cx: &mut TcpCx<'_>, m: RxMeta, h: &TcpRepr, mut skb: Skb) -> Result<(), (Skb, DropReason)> {
        self.rx.shut.reply_rst = false;
        let Some(header_len) = strip_header(&mut skb) else {
            return Err((skb, DropReason::TcpHdr));
        };
        let seg = self.seg(cx, m, h, &skb, header_len);
        self.rx.segs_in = self.rx.segs_in.wrapping_add(seg.gso_segs);
        if seg.len > 0 {
            self.rx.data_segs_in = self.rx.data_segs_in.wrapping_add(seg.gso_segs);
        }
        match self.state {
            State::Established if self.is_predicted(&seg) => self.rcv_predicted(cx, &seg, skb),
            State::Established => self.rcv_established(cx, &seg, skb),
            State::SynSent => self.rcv_syn_sent(cx, h, &seg, skb),
            State::Closed => {
                self.rx.shut.reply_rst = !seg.flags.contains(TcpFlags::RST);
                Err((skb, DropReason::NoSocket))
            }
            State::TimeWait => Err((skb, DropReason::TcpMinisock)),
            _ => self.rcv_state_process(cx, &seg, skb),
        }
    }

    fn seg(&self, cx: &TcpCx<'_>, m: RxMeta, h: &TcpRepr, skb: &Skb, header_len: u32) -> Seg {
        let len = skb.len();
        let syn = h.flags.contains(TcpFlags::SYN);
        let shift = if syn { 0 } else { self.neg.snd_wscale };
        Seg {
            seq: h.seq,
            end_seq: h.end_seq(len),
            ack: h.ack,
            wnd: u32::from(h.window) << shift.min(14),
            flags: h.flags,
            len,
            gso_segs: skb.wire_pkts(),
            header_len,
            ts: h.opts.ts.filter(|_| self.neg.ts || syn),
            sack: if self.neg.sack { h.opts.sack } else { SackBlocks::EMPTY },
            now: cx.now,
            ece: self.neg.ecn && h.flags.contains(TcpFlags::ECE),
            ip_ecn: m.ecn & 3,
        }
    }

    /// Header prediction (Van Jacobson, as Linux keeps it): next in order, nothing out of order, window unchanged, at most
    /// a timestamp and PSH. Such a segment is in the window by definition.
    pub(crate) fn is_predicted(&self, seg: &Seg) -> bool {
        seg.flags - TcpFlags::PSH == TcpFlags::ACK
            && seg.seq == self.rx.nxt
            && seg.wnd == self.snd_wnd()
            && seg.ack.le(self.snd_nxt())
            && seg.ack.ge(self.snd_una())
            && seg.sack.is_empty()
            && self.rx.ofo.is_none()
            && seg.len <= self.receive_window()
            && (seg.len == 0 || (self.rx.rmem_alloc <= self.rx.rcvbuf && self.rx.wnd != 0))
            && match (self.neg.ts, seg.ts) {
                (true, Some(ts)) => ts.val.wrapping_sub(self.rx.ts_recent) as i32 >= 0,
                (need, _) => !need,
            }
    }

    fn rcv_predicted(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, skb: Skb) -> Result<(), (Skb, DropReason)> {
        if seg.len == 0 {
            if let Err(reason) = self.predicted_ack(cx, seg) {
                return Err((skb, reason));
            }
            cx.skbs.free(skb, cx.pool);
            return Ok(());
        }
        let truesize = charge_of(&skb);
        if cx.mem.under_pressure(self.tx.group) || !cx.mem.charge(self.tx.group, truesize) {
            return self.rcv_established(cx, seg, skb);
        }
        self.predicted_data(cx, seg, skb, truesize);
        Ok(())
    }

    /// The timestamp of a predicted segment.
    #[inline]
    fn predicted_ts(&mut self, cx: &TcpCx<'_>, seg: &Seg) {
        if let Some(ts) = seg.ts
            && self.rx.nxt == self.rx.wup
        {
            self.store_ts_recent(cx, ts);
        }
    }

    /// A predicted segment without payload.
    pub(crate) fn predicted_ack(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> Step {
        self.predicted_ts(cx, seg);
        self.on_ack(cx, seg)?;
        cx.mib.hp_acks += 1;
        self.note_peer_alive(cx);
        if let Some(ts) = seg.ts.filter(|ts| ts.ecr != self.rx.rtt.last_tsecr) {
            self.rx.rtt.last_tsecr = ts.ecr;
        }
        Ok(())
    }

    /// A predicted segment with payload, whose memory is charged.
    pub(crate) fn predicted_data(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, skb: Skb, truesize: u32) {
        self.predicted_ts(cx, seg);
        self.rcv_rtt_measure_ts(seg.now, seg.ts, seg.end_seq - seg.seq);
        cx.mib.hp_hits += 1;
        let facts = DataFacts::of(seg, &skb, truesize);
        self.queue_charged(cx, seg.seq, skb, truesize);
        self.on_data_received(cx, facts);
        if (seg.ack == self.snd_una() && !seg.ece) || self.ack_quick(cx, seg) {
            self.note_peer_alive(cx);
        } else {
            self.predicted_data_ack(cx, seg);
        }
        self.ack_snd_check(cx, false);
    }

    /// The ACK field of a predicted segment, whose payload and timestamp were taken.
    pub(crate) fn predicted_data_ack(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) {
        if self.process_ack(cx, seg, true).is_err() {
            // In range by prediction; the sender half refused a detail, the data stands.
            debug_assert!(self.state == State::Closed || seg.ack.le(self.snd_nxt()));
        }
    }

    /// Slow path of ESTABLISHED.
    fn rcv_established(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, skb: Skb) -> Result<(), (Skb, DropReason)> {
        if let Err(reason) = self.checks_before_data(cx, seg) {
            return Err((skb, reason));
        }
        self.after_ack(cx, seg, skb)
    }

    fn checks_before_data(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> Step {
        require_flags(seg)?;
        self.validate_incoming(cx, seg)?;
        if !seg.flags.contains(TcpFlags::ACK) {
            return Err(DropReason::TcpFlags);
        }
        self.process_ack(cx, seg, true)
    }

    fn after_ack(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, skb: Skb) -> Result<(), (Skb, DropReason)> {
        self.rcv_rtt_measure_ts(seg.now, seg.ts, seg.end_seq - seg.seq);
        let taken = self.data_queue(cx, seg, skb);
        self.ack_snd_check(cx, true);
        taken
    }

    /// The window of a segment of the handshake (RFC 9293 SND.WND, SND.WL1).
    pub(crate) fn set_snd_wnd(&mut self, seg: &Seg) {
        self.tx.snd_wnd = seg.wnd;
        self.tx.snd_wl1 = seg.seq;
        self.tx.max_window = self.tx.max_window.max(seg.wnd);
    }

    /// The oldest sequence number that is not acknowledged.
    pub fn snd_una(&self) -> Seq {
        self.tx.snd_una
    }
    pub(crate) fn snd_nxt(&self) -> Seq {
        self.tx.snd_nxt
    }
    pub(crate) fn snd_wnd(&self) -> u32 {
        self.tx.snd_wnd
    }
    /// Everything that the application wrote, and our FIN, is acknowledged.
    pub(crate) fn is_all_acked(&self) -> bool {
        self.tx.snd_una == self.tx.write_seq
    }
    pub(crate) fn rto_ms(&self) -> u32 {
        self.tx.rto_us / 1_000
    }

    /// Hands the ACK field to the sender half and does the receiver's part of an acceptable ACK.
    fn process_ack(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, established: bool) -> Step {
        let prior_una = self.snd_una();
        match self.on_ack(cx, seg) {
            Ok(_) => {
                if seg.ack.ge(prior_una) {
                    self.replace_ts_recent(cx, seg);
                }
                self.note_peer_alive(cx);
                Ok(())
            }
            Err(reason) => {
                if matches!(reason, DropReason::TcpTooOldAck | DropReason::TcpAckUnsentData) || !established {
                    self.send_challenge_ack(cx);
                }
                Err(reason)
            }
        }
    }

    /// The peer lives: keepalive counts from here.
    pub(crate) fn note_peer_alive(&mut self, cx: &TcpCx<'_>) {
        self.rx.rcv_tstamp_ms = crate::validate::now_ms(cx);
        self.rx.keep_probes_out = 0;
    }

    /// All synchronized states but ESTABLISHED, and SYN-RECEIVED (RFC 9293 section 3.10.7.4).
    fn rcv_state_process(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, skb: Skb) -> Result<(), (Skb, DropReason)> {
        match self.state_checks(cx, seg) {
            Err(reason) => return Err((skb, reason)),
            Ok(false) => {
                cx.skbs.free(skb, cx.pool);
                return Ok(());
            }
            Ok(true) => {}
        }
        // The SYN of a simultaneous open's SYN-ACK is old by now: it is reported as a duplicate, like any repeated text.
        let peer_closed = matches!(self.state, State::CloseWait | State::Closing | State::LastAck);
        let taken = if peer_closed && seg.seq.ge(self.rx.nxt) {
            // Behind the peer's own FIN: nothing that means anything.
            cx.skbs.free(skb, cx.pool);
            Ok(())
        } else if self.state != State::Established && self.aborts_on_data(seg) {
            return Err((skb, self.abort_on_data(cx)));
        } else {
            self.data_queue(cx, seg, skb)
        };
        if !matches!(self.state, State::Closed) {
            self.ack_snd_check(cx, true);
        }
        taken
    }

    /// Checks and the ACK step; `Ok(false)`: the segment was consumed by a change of state.
    fn state_checks(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> Result<bool, DropReason> {
        require_flags(seg)?;
        self.validate_incoming(cx, seg)?;
        if !seg.flags.contains(TcpFlags::ACK) {
            return Err(DropReason::TcpFlags);
        }
        if self.state == State::SynRcvd {
            self.ack_in_syn_rcvd(cx, seg)?;
            return Ok(true);
        }
        self.process_ack(cx, seg, false)?;
        match self.state {
            State::FinWait1 if self.is_all_acked() => self.enter_fin_wait2(cx, seg),
            State::Closing if self.is_all_acked() => {
                self.enter_time_wait(cx);
                Ok(false)
            }
            State::LastAck if self.is_all_acked() => {
                self.done(cx);
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    /// The ACK that completes a passive or simultaneous open. A wrong one is answered with RST and forgotten.
    fn ack_in_syn_rcvd(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> Step {
        // Only our SYN is out: there is one right number.
        if seg.ack != self.snd_nxt() {
            self.rx.shut.reply_rst = true;
            return Err(DropReason::TcpAckUnsentData);
        }
        let lossy = self.tx.retransmits > 0;
        if let Err(reason) = self.on_ack(cx, seg) {
            self.rx.shut.reply_rst = true;
            return Err(reason);
        }
        self.set_snd_wnd(seg);
        self.replace_ts_recent(cx, seg);
        self.note_peer_alive(cx);
        self.establish(cx, State::on_ack_of_syn, lossy);
        if self.rx.shut.snd {
            // The application shut its direction down before the handshake was over.
            self.close_send(cx);
        }
        Ok(())
    }

    /// Our FIN is acknowledged (RFC 9293; Linux's rules for orphans). `Ok(false)`: the segment is done with.
    fn enter_fin_wait2(&mut self, cx: &mut TcpCx<'_>, seg: &Seg) -> Result<bool, DropReason> {
        self.advance(cx, State::on_ack_of_fin);
        self.rx.shut.snd = true;
        if !self.rx.shut.dead {
            self.notify(ev::WRITABLE);
            return Ok(true);
        }
        let fin = u32::from(seg.flags.contains(TcpFlags::FIN));
        let late_data = seg.end_seq != seg.seq && (seg.end_seq - fin).gt(self.rx.nxt);
        if self.opts.linger2_s < 0 || late_data {
            cx.mib.abort_on_data += 1;
            self.rx.shut.reply_rst = true;
            self.done(cx);
            return Err(DropReason::TcpAbortOnData);
        }
        let more = fin == 1;
        self.fin_wait2_timeout(cx, more);
        Ok(more || self.closed.is_none())
    }

    /// RFC 1122 section 4.2.2.13: data for an application that stopped reading for good.
    fn aborts_on_data(&self, seg: &Seg) -> bool {
        let fin = u32::from(seg.flags.contains(TcpFlags::FIN));
        self.rx.shut.rcv && seg.end_seq != seg.seq && (seg.end_seq - fin).gt(self.rx.nxt)
    }

    fn abort_on_data(&mut self, cx: &mut TcpCx<'_>) -> DropReason {
        cx.mib.abort_on_data += 1;
        self.reset(cx);
        self.closed = Some(CloseReason::Peer(DropReason::TcpAbortOnData));
        self.rx.shut.reply_rst = true;
        DropReason::TcpAbortOnData
    }

    /// The peer's FIN is in order: everything before it was queued (Linux `tcp_fin`).
    pub(crate) fn on_fin(&mut self, cx: &mut TcpCx<'_>) {
        self.rx.ack.pending |= ack::SCHED;
        self.rx.shut.rcv = true;
        self.rx.shut.done = true;
        match self.state {
            State::SynRcvd | State::Established => {
                self.advance(cx, State::on_fin);
                self.rx.ack.pingpong = 1;
            }
            State::FinWait1 => {
                self.request_ack();
                self.advance(cx, State::on_fin);
            }
            State::FinWait2 => {
                self.request_ack();
                self.enter_time_wait(cx);
            }
            _ => {}
        }
        self.purge_ofo(cx, None);
        self.notify(ev::READABLE | ev::PEER_CLOSED);
    }

    /// The handshake is complete; `lossy`: after timeouts that were not spurious.
    pub(crate) fn establish(&mut self, cx: &mut TcpCx<'_>, event: StateEvent, lossy: bool) {
        self.advance(cx, event);
        self.rx.ack.lrcvtime_ms = crate::validate::now_ms(cx);
        self.init_buffer_space(cx);
        self.init_rcv_mss();
        self.tx_init(cx, cx.now, lossy);
        self.arm_keepalive_if_on(cx);
        self.notify(ev::CONNECTED | ev::WRITABLE);
    }
}

/// One arrow of the state table.
pub(crate) type StateEvent = fn(&mut State) -> Result<(), linerate_base::state_table::InvalidTransition>;

/// RFC 9293 knows no segment without ACK, SYN and RST.
fn require_flags(seg: &Seg) -> Step {
    if seg.flags.intersects(TcpFlags::ACK | TcpFlags::RST | TcpFlags::SYN) { Ok(()) } else { Err(DropReason::TcpFlags) }
}
