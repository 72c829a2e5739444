//! SYN-RECEIVED of a passive open: from the SYN to the ACK that makes a connection (RFC 9293 section 3.10.7.4).
//!
//! The SYN-ACK is sent again after 1, 2, 4 ... seconds, `tcp_synack_retries` times; a repeated SYN asks for one at once.
//! With TCP_DEFER_ACCEPT a bare ACK is remembered and the connection is made by the first data. A wrong ACK number is
//! answered by a RST and does not end the request (somebody else may have sent it); an exact RST does. Everything that a
//! connection needs later was agreed when the SYN came, so the request is all that a listener keeps.

use linerate_base::{DropReason, Duration, Instant, Seq};
use linerate_skb::Skb;
use linerate_wire::flow::FlowKey;
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::config::{PathInfo, SockOpts};
use crate::conn::{Conn, Isn, Negotiated, Opts, advmss, initial_rcvbuf, ts_clock};
use crate::cx::{RxMeta, TcpCx};
use crate::ecn::syn_requests_ecn;
use crate::minisocks::{emit, in_window};
use crate::rx::Rx;
use crate::state::State;
use crate::synsent::agree;
use crate::timer::Timers;
use crate::tx::Tx;
use crate::validate::{Paws, now_ms, now_s, oow_limited};
use crate::wnd::{InitialWindow, listen_window};

/// First SYN-ACK timeout (RFC 6298 section 2).
const TIMEOUT_INIT: Duration = Duration::from_secs(1);

/// A half-open connection.
#[derive(Clone, Debug)]
pub struct ReqSock {
    key: FlowKey,
    path: PathInfo,
    neg: Negotiated,
    window: InitialWindow,
    isn: Isn,
    irs: Seq,
    ts_recent: u32,
    /// TSvals of the first and the last SYN-ACK: an honest echo lies between.
    tsval_first: u32,
    tsval_last: u32,
    rcvbuf: u32,
    last_oow_ack_ms: u32,
    /// When the SYN-ACK is due again.
    deadline: Instant,
    /// When the first SYN-ACK left.
    sent_at: Instant,
    timeouts: u8,
    /// SYN-ACKs sent after the first.
    retrans: u8,
    /// Timeouts during which a bare ACK does not count (TCP_DEFER_ACCEPT).
    defer: u8,
    max_retries: u8,
    acked: bool,
    /// The ACK echoes the first SYN-ACK: those that followed were not needed.
    spurious: bool,
}

const _: () = assert!(size_of::<ReqSock>() <= 192);

/// What a segment means to a half-open connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// Nothing to do; count the skb.
    Drop(DropReason),
    /// Count the skb and send [`ReqSock::emit_synack`] again.
    ResendSynAck,
    /// Count the skb (out of window) and send [`ReqSock::ack_repr`].
    SendAck(DropReason),
    /// Count the skb and answer with [`super::reset_for`]; the request stays.
    Reset(DropReason),
    /// As `Reset`, and the request is over.
    ResetAndRemove(DropReason),
    /// A RST ended the request.
    Remove(DropReason),
    /// Make a connection with [`ReqSock::into_conn`] and hand it this segment ([`Conn::rcv`]).
    Complete,
}

/// What a request's deadline asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReqTimer {
    /// Send [`ReqSock::emit_synack`].
    Resend,
    /// Wait on: the peer has acknowledged and data is awaited.
    Wait,
    /// The request is over.
    Expired,
}

/// Timeouts that `seconds` of TCP_DEFER_ACCEPT stand for.
fn defer_timeouts(seconds: u32, rto_max_us: u32) -> u8 {
    let (mut timeouts, mut period, mut step) = (0u8, 0u32, 1u32);
    while period < seconds && timeouts < u8::MAX {
        period = period.saturating_add(step);
        step = step.saturating_mul(2).min(rto_max_us / 1_000_000);
        timeouts += 1;
    }
    timeouts
}

impl ReqSock {
    /// A SYN for a listener with `opts`. The SYN-ACK is to be sent with [`Self::emit_synack`].
    pub fn new(
        cx: &mut TcpCx<'_>,
        opts: &SockOpts,
        key: FlowKey,
        path: PathInfo,
        h: &TcpRepr,
        meta: RxMeta,
        isn: Isn,
    ) -> Self {
        let ours = Negotiated {
            ts: cx.cfg.timestamps,
            sack: cx.cfg.sack,
            wscale: cx.cfg.window_scaling,
            usec_ts: cx.cfg.usec_timestamps,
            our_mss_bytes: advmss(&path, opts),
            ..Negotiated::default()
        };
        let mut neg = agree(&ours, &h.opts, path.ip_header_bytes);
        neg.ecn = syn_requests_ecn(h.flags, meta.ecn, cx.cfg.ecn);
        let mss = u32::from(neg.our_mss_bytes).saturating_sub(crate::conn::ts_option_bytes(&neg));
        let window = listen_window(cx.cfg, &path, opts, mss, neg.wscale);
        neg.rcv_wscale = window.wscale;
        let tsval = ts_clock(cx.now, neg.usec_ts).wrapping_add(isn.ts_offset);
        Self {
            key,
            path,
            neg,
            window,
            isn,
            irs: h.seq,
            ts_recent: h.opts.ts.map_or(0, |ts| ts.val),
            tsval_first: tsval,
            tsval_last: tsval,
            rcvbuf: initial_rcvbuf(cx.cfg, opts),
            last_oow_ack_ms: 0,
            deadline: cx.now + TIMEOUT_INIT,
            sent_at: cx.now,
            timeouts: 0,
            retrans: 0,
            defer: defer_timeouts(opts.defer_accept_s, cx.cfg.rto_max_us),
            max_retries: if opts.syncnt == 0 { cx.cfg.synack_retries } else { opts.syncnt },
            acked: false,
            spurious: false,
        }
    }

    /// What both ends agreed on.
    pub(super) fn negotiated(&self) -> &Negotiated {
        &self.neg
    }
    /// TSvals are this much ahead of the clock.
    pub(super) fn offset_stamps(&mut self, ts_offset: u32) {
        self.isn.ts_offset = ts_offset;
    }
    /// When the SYN-ACK left is not known: its answer is no RTT sample, as with one that was sent again.
    pub(super) fn forget_times(&mut self) {
        self.retrans = 1;
    }
    /// Both ends, local first.
    pub fn key(&self) -> &FlowKey {
        &self.key
    }
    /// Is `seq` the number of our SYN-ACK? An ICMP error that quotes another is not believed (RFC 5927).
    pub fn is_own_seq(&self, seq: Seq) -> bool {
        seq == self.isn.iss
    }
    /// When [`Self::on_timer`] has to be called.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
    /// SYN-ACKs sent again so far.
    pub fn retransmissions(&self) -> u8 {
        self.retrans
    }
    /// The path that was chosen for the SYN.
    pub fn path(&self) -> &PathInfo {
        &self.path
    }

    fn header(&self, seq: Seq, flags: TcpFlags, window: u16, opts: TcpOptions) -> TcpRepr {
        TcpRepr {
            src_port: self.key.local_port(),
            dst_port: self.key.remote_port(),
            seq,
            ack: self.irs + 1,
            flags,
            window,
            urgent: 0,
            opts,
        }
    }

    fn timestamps(&mut self, cx: &TcpCx<'_>) -> Option<Timestamps> {
        self.neg.ts.then(|| {
            self.tsval_last = ts_clock(cx.now, self.neg.usec_ts).wrapping_add(self.isn.ts_offset);
            Timestamps { val: self.tsval_last, ecr: self.ts_recent }
        })
    }

    /// The SYN-ACK, first or again. `None` when there is no descriptor: the deadline brings the next chance.
    pub fn emit_synack(&mut self, cx: &mut TcpCx<'_>) -> Option<Skb> {
        let ts = self.timestamps(cx);
        let opts = TcpOptions {
            mss: Some(self.neg.our_mss_bytes),
            wscale: self.neg.wscale.then_some(self.neg.rcv_wscale),
            sack_permitted: self.neg.sack,
            ts,
            ..TcpOptions::NONE
        };
        let ecn = if self.neg.ecn { TcpFlags::ECE } else { TcpFlags::NONE };
        let h = self.header(
            self.isn.iss,
            TcpFlags::SYN | TcpFlags::ACK | ecn,
            self.window.rcv_wnd.min(65_535) as u16,
            opts,
        );
        let skb = emit(cx, &h);
        if skb.is_some() {
            cx.mib.out_segs += 1;
        }
        skb
    }

    /// As [`Self::emit_synack`], counted as a retransmission.
    pub fn emit_synack_again(&mut self, cx: &mut TcpCx<'_>) -> Option<Skb> {
        self.retrans = self.retrans.saturating_add(1);
        cx.mib.retrans_segs += 1;
        cx.mib.syn_retrans += 1;
        self.emit_synack(cx)
    }

    /// The ACK that answers a segment out of the window.
    pub fn ack_repr(&mut self, cx: &TcpCx<'_>) -> TcpRepr {
        let opts = TcpOptions { ts: self.timestamps(cx), ..TcpOptions::NONE };
        let window = (self.window.rcv_wnd >> self.neg.rcv_wscale).min(65_535) as u16;
        self.header(self.isn.iss + 1, TcpFlags::ACK, window, opts)
    }

    /// The deadline passed.
    pub fn on_timer(&mut self, cx: &TcpCx<'_>) -> ReqTimer {
        let tired = self.timeouts >= self.max_retries;
        if tired && (!self.acked || self.timeouts >= self.defer) {
            return ReqTimer::Expired;
        }
        let resend = !self.acked || self.timeouts.saturating_add(1) >= self.defer;
        self.timeouts = self.timeouts.saturating_add(1);
        self.deadline = cx.now + self.timeout(cx);
        if resend { ReqTimer::Resend } else { ReqTimer::Wait }
    }

    fn timeout(&self, cx: &TcpCx<'_>) -> Duration {
        let us = 1_000_000u64 << self.timeouts.min(20);
        Duration::from_micros(us.min(u64::from(cx.cfg.rto_max_us)))
    }

    /// What the segment means (Linux `tcp_check_req`). `payload_len` in bytes.
    pub fn on_segment(&mut self, cx: &mut TcpCx<'_>, h: &TcpRepr, payload_len: u32) -> Disposition {
        let flags = h.flags & (TcpFlags::SYN | TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN);
        let ts = h.opts.ts.filter(|_| self.neg.ts);
        let rst = flags.contains(TcpFlags::RST);
        let paws_reject = ts.is_some_and(|ts| {
            let age_s = (self.timeout(cx).as_secs()) as u32;
            let paws =
                Paws { ts_recent: self.ts_recent, stamp_s: now_s(cx).wrapping_sub(age_s), usec: self.neg.usec_ts };
            paws.rejects(ts.val, now_s(cx), rst)
        });
        if h.seq == self.irs && flags == TcpFlags::SYN && !paws_reject {
            return self.on_repeated_syn(cx);
        }
        if flags.contains(TcpFlags::ACK) && h.ack != self.isn.iss + 1 {
            return if rst {
                Disposition::Drop(DropReason::TcpInvalidRst)
            } else {
                Disposition::Reset(DropReason::TcpAckUnsentData)
            };
        }
        let next = self.irs + 1;
        let echo_is_foreign = ts.is_some_and(|ts| ts.ecr != 0 && !self.echo_is_ours(ts.ecr));
        if paws_reject || echo_is_foreign || !in_window(h.seq, h.end_seq(payload_len), next, next + self.window.rcv_wnd)
        {
            return self.out_of_window(cx, rst, paws_reject || echo_is_foreign);
        }
        if let Some(ts) = ts
            && h.seq.le(next)
        {
            self.ts_recent = ts.val;
        }
        // A SYN at its old place is outside of the window that begins behind it.
        let syn = flags.contains(TcpFlags::SYN) && h.seq != self.irs;
        if rst || syn {
            cx.mib.attempt_fails += 1;
            cx.mib.embryonic_rsts += 1;
            let gone = if rst {
                Disposition::Remove(DropReason::TcpReset)
            } else {
                Disposition::ResetAndRemove(DropReason::TcpInvalidSyn)
            };
            return gone;
        }
        if !flags.contains(TcpFlags::ACK) {
            return Disposition::Drop(DropReason::TcpFlags);
        }
        if self.timeouts < self.defer && h.end_seq(payload_len) == next {
            self.acked = true;
            return Disposition::Drop(DropReason::TcpMinisock);
        }
        self.spurious = ts.is_some_and(|ts| ts.ecr == self.tsval_first);
        Disposition::Complete
    }

    fn echo_is_ours(&self, ecr: u32) -> bool {
        ecr.wrapping_sub(self.tsval_first) <= self.tsval_last.wrapping_sub(self.tsval_first)
    }

    fn on_repeated_syn(&mut self, cx: &mut TcpCx<'_>) -> Disposition {
        if oow_limited(&mut self.last_oow_ack_ms, now_ms(cx), cx.cfg.invalid_ratelimit_ms) {
            cx.mib.ack_skipped_syn_recv += 1;
            return Disposition::Drop(DropReason::RateLimited);
        }
        self.deadline = cx.now + self.timeout(cx);
        Disposition::ResendSynAck
    }

    fn out_of_window(&mut self, cx: &mut TcpCx<'_>, rst: bool, by_timestamp: bool) -> Disposition {
        let reason = if by_timestamp { DropReason::TcpRfc7323Paws } else { DropReason::TcpOverwindow };
        if by_timestamp {
            cx.mib.paws_estab += 1;
        }
        if rst {
            return Disposition::Drop(reason);
        }
        if oow_limited(&mut self.last_oow_ack_ms, now_ms(cx), cx.cfg.invalid_ratelimit_ms) {
            cx.mib.ack_skipped_syn_recv += 1;
            return Disposition::Drop(reason);
        }
        Disposition::SendAck(reason)
    }

    /// The connection, in SYN-RECEIVED: hand it the segment that completed the handshake. `opts` are the listener's.
    pub fn into_conn(self, cx: &mut TcpCx<'_>, opts: impl Into<Opts>) -> Conn {
        self.into_conn_with(cx, opts.into())
    }

    fn into_conn_with(self, cx: &mut TcpCx<'_>, opts: Opts) -> Conn {
        let mut tx = Tx::new(cx, self.isn.iss, &self.path, &opts);
        let first = self.isn.iss + 1;
        (tx.snd_una, tx.snd_nxt, tx.write_seq, tx.snd_wl1, tx.rtt_seq) = (first, first, first, self.irs, first);
        (tx.cc.snd_una, tx.cc.snd_nxt) = (first, first);
        tx.total_retrans = u32::from(self.retrans);
        // What the handshake's ACK finds: it decides the initial window.
        tx.retransmits = if self.spurious { 0 } else { self.timeouts };
        let mut conn = Conn {
            key: self.key,
            state: State::Closed,
            neg: self.neg,
            path: self.path,
            tx,
            opts,
            rx: Rx::for_accept(self.rcvbuf, self.window, self.irs),
            timers: Timers::default(),
            error: None,
            closed: None,
            events: 0,
            ts_offset: self.isn.ts_offset,
        };
        conn.advance(cx, State::on_accept);
        cx.mib.passive_opens += 1;
        if conn.neg.ts {
            conn.store_ts_recent(cx, Timestamps { val: self.ts_recent, ecr: 0 });
        }
        conn.rx.last_oow_ack_ms = self.last_oow_ack_ms;
        conn.init_rcv_mss();
        conn.note_peer_alive(cx);
        if self.retrans == 0 {
            conn.seed_rtt(cx, cx.now.micros_since(self.sent_at).max(1));
        }
        conn
    }
}
