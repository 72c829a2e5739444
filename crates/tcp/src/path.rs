//! What the path allows: MSS, the start of a connection's windows, route changes and ICMP.
//!
//! The MSS is the least of what the path's MTU leaves, what the peer announced and what the user allows, less the
//! timestamps that every segment carries, and never more than half of the peer's largest window. When it shrinks, what is
//! in flight and no longer fits is lost by definition and is cut anew (RFC 1191, RFC 8201); cwnd is not reduced for that.
//!
//! ICMP is believed only for sequence numbers that are in flight (RFC 5927). Before the connection is established an
//! unreachable destination ends it; afterwards it is remembered and told only if retransmissions give up (RFC 1122
//! section 4.2.3.9, RFC 5461), and an unreachable host or network takes back one doubling of the RTO (RFC 6069).
//! Probing for an MTU without ICMP (RFC 4821) is in `mtu`. Not here: neighbour and route selection.

use linerate_base::{Errno, Instant, Seq};
use linerate_cong::{CaState, CcEvent, CongestionControl};

use crate::config::PathInfo;
use crate::conn::{Conn, SocketError};
use crate::cx::TcpCx;
use crate::state::State;
use crate::txq::tag;

/// The kind of an ICMP or ICMPv6 error about one of our segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IcmpKind {
    /// Fragmentation needed, or packet too big.
    PktTooBig,
    /// Network unreachable, or no route.
    NetUnreachable,
    /// Host or address unreachable.
    HostUnreachable,
    /// Protocol unreachable.
    ProtoUnreachable,
    /// Port unreachable.
    PortUnreachable,
    /// Forbidden by an administrator.
    Prohibited,
    /// Hop limit exceeded.
    TimeExceeded,
    /// A header that the other end did not understand.
    ParamProblem,
}

/// An ICMP error that quotes one of our segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpError {
    /// What happened.
    pub kind: IcmpKind,
    /// The next hop's MTU in bytes for [`IcmpKind::PktTooBig`], else 0.
    pub mtu: u32,
    /// Sequence number of the quoted segment.
    pub seq: Seq,
}

impl IcmpKind {
    fn error(self) -> SocketError {
        SocketError::Icmp(match self {
            Self::PktTooBig => Errno::EMSGSIZE,
            Self::NetUnreachable => Errno::ENETUNREACH,
            Self::HostUnreachable | Self::TimeExceeded | Self::Prohibited => Errno::EHOSTUNREACH,
            Self::ProtoUnreachable => Errno::ENOPROTOOPT,
            Self::PortUnreachable => Errno::ECONNREFUSED,
            Self::ParamProblem => Errno::EPROTO,
        })
    }
    fn is_fatal_in_handshake(self) -> bool {
        !matches!(self, Self::PktTooBig | Self::TimeExceeded)
    }
}

impl Conn {
    /// The sender starts: the handshake is over and both ends agreed on their options. `lossy`: it took timeouts that were
    /// not spurious. One is forgiven, because the first timeout is only a second (RFC 6298 section 5.7, RFC 5681 section
    /// 3.1; Linux `tcp_init_transfer`).
    pub(crate) fn tx_init(&mut self, cx: &mut TcpCx<'_>, now: Instant, lossy: bool) {
        if cx.cfg.mtu_probing > 1 && self.tx.mtu.is_none() {
            self.begin_mtu_search(cx);
        }
        self.sync_mss(cx);
        let retried = lossy && self.tx.total_retrans > 1;
        let init = self.init_cwnd(cx);
        let tx = &mut self.tx;
        tx.cc.cwnd = if retried { 1 } else { init };
        tx.cc.gso_max_size = self.path.gso_max_size_bytes;
        tx.sync_cc();
        tx.algo.on_event(&mut tx.cc, now, CcEvent::Init);
        tx.retransmits = 0;
        if tx.fl.is_born() {
            tx.fl.cwnd_stamp = now;
        }
        tx.update_pacing_rate();
        self.sndbuf_expand(cx);
    }

    /// Computes the MSS anew.
    pub(crate) fn sync_mss(&mut self, cx: &TcpCx<'_>) {
        let headers = u32::from(self.path.ip_header_bytes) + 20;
        let peer = match self.neg.peer_mss_bytes {
            0 => 536,
            mss => u32::from(mss),
        };
        let mut mtu = self.path.mtu_bytes;
        if let Some(search) = &mut self.tx.mtu {
            search.bound(mtu);
            mtu = mtu.min(search.low_bytes());
        }
        let mut mss = mtu.saturating_sub(headers).min(peer);
        if self.opts.user_mss_bytes != 0 {
            mss = mss.min(u32::from(self.opts.user_mss_bytes));
        }
        let least = cx.cfg.min_snd_mss_bytes.max(8);
        mss = mss.max(least) - if self.neg.ts { 12 } else { 0 };
        self.tx.cc.mss =
            self.bound_to_half_wnd(mss).clamp(least - if self.neg.ts { 12.min(least - 8) } else { 0 }, 65_535);
    }

    /// The route or its MTU changed.
    pub fn on_path_change(&mut self, cx: &mut TcpCx<'_>, path: PathInfo) {
        let before = self.tx.cc.mss;
        self.path = path;
        self.tx.cc.gso_max_size = path.gso_max_size_bytes;
        self.sync_mss(cx);
        if self.tx.cc.mss < before {
            self.simple_retransmit(cx);
        }
    }

    /// An ICMP error about a segment of this connection.
    pub fn on_icmp(&mut self, cx: &mut TcpCx<'_>, e: IcmpError) {
        let handshake = matches!(self.state, State::SynSent | State::SynRcvd);
        if self.state == State::Closed {
            return;
        }
        let flying = e.seq.ge(self.tx.snd_una) && e.seq.le(self.tx.snd_nxt);
        if !flying {
            cx.mib.out_of_window_icmps += 1;
            return;
        }
        if e.kind == IcmpKind::PktTooBig {
            let usable = e.mtu >= u32::from(self.path.ip_header_bytes) + 20 + cx.cfg.min_snd_mss_bytes;
            if usable && e.mtu < self.path.mtu_bytes && !self.path.mtu_locked {
                let path = PathInfo { mtu_bytes: e.mtu, ..self.path };
                self.on_path_change(cx, path);
            }
            return;
        }
        if handshake && e.kind.is_fatal_in_handshake() {
            self.fail(cx, e.kind.error());
            return;
        }
        if matches!(e.kind, IcmpKind::NetUnreachable | IcmpKind::HostUnreachable) {
            self.revert_rto(cx, e.seq);
        }
        if self.tx.fl.is_born() {
            self.tx.fl.err_soft = Some(e.kind.error());
        }
    }

    /// RFC 6069: the loss was not congestion, so one doubling of the RTO is taken back.
    fn revert_rto(&mut self, cx: &TcpCx<'_>, seq: Seq) {
        if seq != self.tx.snd_una || self.tx.retransmits == 0 || self.tx.backoff == 0 || self.tx.packets_out == 0 {
            return;
        }
        self.tx.backoff -= 1;
        let base = match self.tx.srtt_us8 {
            0 => cx.cfg.rto_initial_us,
            _ => self.tx.rto_from_rtt(cx.cfg.rto_max_us),
        };
        let rto = u64::from(base) << self.tx.backoff.min(20);
        self.tx.rto_us = rto.min(u64::from(cx.cfg.rto_max_us)) as u32;
        let left = self.rto_delta_us(cx).max(1);
        self.arm_rto(cx, left as u32);
    }

    /// What is in flight and larger than the MSS is lost: cut it and send it again, without touching cwnd.
    pub(crate) fn simple_retransmit(&mut self, cx: &mut TcpCx<'_>) {
        if !self.tx.fl.is_born() {
            return;
        }
        let mss = self.current_mss();
        for pos in 0..self.tx.fl.q.sent() {
            let Some(seg) = self.tx.fl.q.get(pos).copied() else { break };
            let wire = seg.data_len().min(u32::from(seg.mss));
            if wire > mss
                && !seg.has(tag::SACKED)
                && let Some(slot) = self.tx.fl.q.slot(pos)
            {
                self.tx.mark_lost(cx, slot);
            }
        }
        if self.tx.lost_out == 0 {
            return;
        }
        if !self.neg.sack {
            self.limit_reno_sacked();
        }
        if self.tx.cc.ca_state != CaState::Loss {
            let ssthresh = self.tx.current_ssthresh();
            let fl = &mut *self.tx.fl;
            fl.high_seq = self.tx.snd_nxt;
            fl.prior_ssthresh = 0;
            fl.undo_marker = None;
            self.tx.cc.ssthresh = ssthresh;
            self.set_ca_state(cx, CaState::Loss);
        }
        self.tx.set_flag(crate::tx::flag::HOLD | crate::tx::flag::REXMIT_NEW, false);
    }
}
