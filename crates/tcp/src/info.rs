//! `TCP_INFO`: what a connection says about itself, under Linux's names without their `tcpi_` prefix.
//!
//! Filled from both halves in one call, so that the numbers belong together. Units are Linux's: times in microseconds or
//! milliseconds as the field's comment says, counts of segments are counts of wire segments (a super-packet of 45 counts
//! 45), bytes are payload. Fields of mechanisms that are not built (Fast Open, Accurate ECN) are zero. A connection that
//! has been handed over to a TIME-WAIT minisock shows state 7 (CLOSE), as the kernel's socket does.

use linerate_base::{Duration, Instant};
use linerate_cong::CongestionControl as _;

use crate::conn::Conn;
use crate::state::State;
use crate::timer::{RetransKind, Timer};

/// Bits of [`TcpInfo::options`].
pub mod opt {
    /// TCPI_OPT_TIMESTAMPS.
    pub const TIMESTAMPS: u8 = 1;
    /// TCPI_OPT_SACK.
    pub const SACK: u8 = 2;
    /// TCPI_OPT_WSCALE.
    pub const WSCALE: u8 = 4;
    /// TCPI_OPT_ECN: ECN was negotiated.
    pub const ECN: u8 = 8;
    /// TCPI_OPT_ECN_SEEN: a segment with ECT came.
    pub const ECN_SEEN: u8 = 16;
    /// TCPI_OPT_USEC_TS.
    pub const USEC_TS: u8 = 64;
}

/// Linux's `struct tcp_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TcpInfo {
    /// State, Linux's number.
    pub state: u8,
    /// Congestion state: 0 Open, 1 Disorder, 2 CWR, 3 Recovery, 4 Loss.
    pub ca_state: u8,
    /// Timeouts without progress.
    pub retransmits: u8,
    /// Unanswered probes.
    pub probes: u8,
    /// Doublings of the RTO.
    pub backoff: u8,
    /// Bits of [`opt`].
    pub options: u8,
    /// Shift of the windows that we receive.
    pub snd_wscale: u8,
    /// Shift of the windows that we send.
    pub rcv_wscale: u8,
    /// The last rate sample was limited by the application.
    pub delivery_rate_app_limited: bool,
    /// Retransmission timeout, µs.
    pub rto: u32,
    /// ACK delay estimate, µs.
    pub ato: u32,
    /// MSS that we send with, bytes.
    pub snd_mss: u32,
    /// What one segment of the peer carries, bytes.
    pub rcv_mss: u32,
    /// Segments in flight or queued for it.
    pub unacked: u32,
    /// Of those, SACKed.
    pub sacked: u32,
    /// Of those, believed lost.
    pub lost: u32,
    /// Of those, retransmitted.
    pub retrans: u32,
    /// Unused in Linux.
    pub fackets: u32,
    /// Since the last data was sent, ms.
    pub last_data_sent: u32,
    /// Unused in Linux.
    pub last_ack_sent: u32,
    /// Since the last data was received, ms.
    pub last_data_recv: u32,
    /// Since the last ACK was received, ms.
    pub last_ack_recv: u32,
    /// Path MTU, bytes.
    pub pmtu: u32,
    /// Limit of the window that may be offered, bytes.
    pub rcv_ssthresh: u32,
    /// Smoothed RTT, µs.
    pub rtt: u32,
    /// Mean deviation, µs.
    pub rttvar: u32,
    /// Slow start threshold, segments; 2^31-1 = none yet.
    pub snd_ssthresh: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// MSS that we announced, bytes.
    pub advmss: u32,
    /// Degree of reordering, segments.
    pub reordering: u32,
    /// RTT as the receiver sees it, µs.
    pub rcv_rtt: u32,
    /// What the application reads in one round trip, bytes.
    pub rcv_space: u32,
    /// Retransmitted segments of the whole connection.
    pub total_retrans: u32,
    /// Pacing rate, bytes per second; `u64::MAX` = none.
    pub pacing_rate: u64,
    /// Its limit.
    pub max_pacing_rate: u64,
    /// Payload bytes acknowledged.
    pub bytes_acked: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Segments sent.
    pub segs_out: u32,
    /// Segments received.
    pub segs_in: u32,
    /// Payload bytes written and not sent.
    pub notsent_bytes: u32,
    /// Smallest RTT, µs; `u32::MAX` = unknown.
    pub min_rtt: u32,
    /// Segments with payload received.
    pub data_segs_in: u32,
    /// Segments with payload sent.
    pub data_segs_out: u32,
    /// Bytes per second.
    pub delivery_rate: u64,
    /// Time with something to send, µs.
    pub busy_time: u64,
    /// Of that, limited by the peer's window, µs.
    pub rwnd_limited: u64,
    /// Of that, limited by the send buffer, µs.
    pub sndbuf_limited: u64,
    /// Segments delivered.
    pub delivered: u32,
    /// Of those, with ECE.
    pub delivered_ce: u32,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes sent again.
    pub bytes_retrans: u64,
    /// Segments that the peer reported twice.
    pub dsack_dups: u32,
    /// Times that reordering was seen.
    pub reord_seen: u32,
    /// Segments received out of order.
    pub rcv_ooopack: u32,
    /// The peer's window, bytes.
    pub snd_wnd: u32,
    /// Our window, bytes.
    pub rcv_wnd: u32,
    /// Re-hashes of the path: not built.
    pub rehash: u32,
    /// RTOs of the whole connection: counted as in Linux since 6.7.
    pub total_rto: u16,
}

/// A timer as `ss -o` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerName {
    /// Retransmission, tail loss probe or RACK's reordering timer.
    On,
    /// Keepalive, linger, or the rest of an orphan's FIN-WAIT-2.
    Keepalive,
    /// TIME-WAIT.
    TimeWait,
    /// Zero-window probe.
    Persist,
}

impl TimerName {
    /// The word of `ss`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Keepalive => "keepalive",
            Self::TimeWait => "timewait",
            Self::Persist => "persist",
        }
    }
}

/// The timer that a socket waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingTimer {
    /// Which.
    pub name: TimerName,
    /// Until it fires.
    pub left: Duration,
    /// How often it fired without an answer.
    pub retries: u8,
}

/// Single numbers that socket options and `ss` show.
impl Conn {
    /// Name of the congestion control in use.
    pub fn congestion_name(&self) -> &'static str {
        self.tx.algo.name()
    }
    /// Truesize of what is below the socket: in the qdisc, in the device, bytes.
    pub fn wmem_alloc_bytes(&self) -> u32 {
        self.tx.wmem_alloc
    }
    /// The timer that `ss -o` shows: the retransmission timer in one of its meanings, else the slow one.
    pub fn pending_timer(&self, now: Instant) -> Option<PendingTimer> {
        let timer = |name, at: Instant, retries| PendingTimer { name, left: at.since(now), retries };
        if let Some(at) = self.timers.get(Timer::Retrans) {
            let probes = self.timers.retrans_kind() == RetransKind::Probe0;
            let (name, retries) =
                if probes { (TimerName::Persist, self.tx.probes_out) } else { (TimerName::On, self.tx.retransmits) };
            return Some(timer(name, at, retries));
        }
        let at = self.timers.get(Timer::Keepalive)?;
        Some(timer(TimerName::Keepalive, at, self.rx.keep_probes_out))
    }
    /// SO_SNDBUF: bound of the send buffer, bytes of truesize.
    pub fn sndbuf_bytes(&self) -> u32 {
        self.tx.sndbuf
    }
    /// SO_RCVBUF: bound of the receive buffer, bytes of truesize.
    pub fn rcvbuf_bytes(&self) -> u32 {
        self.rx.rcvbuf
    }
    /// Truesize of what is received and not read, bytes.
    pub fn rmem_alloc_bytes(&self) -> u32 {
        self.rx.rmem_alloc
    }
    /// Truesize of what is written and not acknowledged, bytes.
    pub fn wmem_queued_bytes(&self) -> u32 {
        self.tx.wmem_queued
    }
    /// TCP_MAXSEG: payload of one segment, bytes.
    pub fn mss_bytes(&self) -> u32 {
        self.current_mss()
    }
    /// TCP_WINDOW_CLAMP: largest window that may be offered, bytes.
    pub fn window_clamp_bytes(&self) -> u32 {
        self.rx.window_clamp
    }
    /// TCP_TIMESTAMP: the TSval of a segment sent now.
    pub fn timestamp(&self, now: Instant) -> u32 {
        self.tsval(now)
    }
}

impl Conn {
    /// A snapshot for TCP_INFO and `ss -ti`.
    pub fn info(&self, now: Instant) -> TcpInfo {
        let mut i = TcpInfo::default();
        self.fill_sender(&mut i, now);
        self.fill_receiver(&mut i, now);
        i
    }

    fn fill_receiver(&self, i: &mut TcpInfo, now: Instant) {
        let now_ms = now.as_millis() as u32;
        let rx = &self.rx;
        i.state = if self.state == State::TimeWait { State::Closed } else { self.state } as u8;
        let n = &self.neg;
        // Before the handshake is over nothing has been agreed.
        if self.state != State::SynSent {
            let bits = [
                (n.ts, opt::TIMESTAMPS),
                (n.sack, opt::SACK),
                (n.wscale, opt::WSCALE),
                (n.ecn, opt::ECN),
                (rx.ecn.seen, opt::ECN_SEEN),
                (n.ts && n.usec_ts, opt::USEC_TS),
            ];
            i.options = bits.iter().filter(|b| b.0).map(|b| b.1).sum();
            i.snd_wscale = n.snd_wscale;
            i.rcv_wscale = n.rcv_wscale;
        }
        i.ato = rx.ack.ato_ms.saturating_mul(1_000);
        i.rcv_mss = u32::from(rx.ack.rcv_mss);
        i.last_data_recv = now_ms.wrapping_sub(rx.ack.lrcvtime_ms);
        i.last_ack_recv = now_ms.wrapping_sub(rx.rcv_tstamp_ms);
        i.pmtu = self.path.mtu_bytes;
        i.rcv_ssthresh = rx.ssthresh;
        i.advmss = self.advmss_data();
        i.rcv_rtt = rx.rtt.rtt_us8 >> 3;
        i.rcv_space = rx.space.space;
        i.bytes_received = rx.bytes_received;
        i.segs_in = rx.segs_in;
        i.data_segs_in = rx.data_segs_in;
        i.rcv_ooopack = rx.ooopack;
        i.rcv_wnd = rx.wnd;
    }

    fn fill_sender(&self, i: &mut TcpInfo, now: Instant) {
        let tx = &self.tx;
        let fl = &*tx.fl;
        i.ca_state = tx.cc.ca_state as u8;
        i.retransmits = tx.retransmits;
        i.probes = tx.probes_out.max(self.rx.keep_probes_out);
        i.backoff = tx.backoff;
        i.rto = tx.rto_us;
        i.snd_mss = tx.cc.mss;
        (i.unacked, i.sacked, i.lost, i.retrans) = (tx.packets_out, tx.sacked_out, tx.lost_out, tx.retrans_out);
        i.last_data_sent = now.since(fl.wstamp).as_millis().min(u128::from(u32::MAX)) as u32;
        i.rtt = tx.srtt_us8 >> 3;
        i.rttvar = tx.mdev_us4 >> 2;
        i.snd_ssthresh = tx.cc.ssthresh;
        i.snd_cwnd = tx.cc.cwnd;
        i.reordering = u32::from(tx.reordering);
        i.total_retrans = tx.total_retrans;
        (i.pacing_rate, i.max_pacing_rate) = (u64::MAX, u64::MAX);
        (i.bytes_acked, i.bytes_sent, i.bytes_retrans) = (tx.bytes_acked, fl.bytes_sent, fl.bytes_retrans);
        (i.segs_out, i.data_segs_out) = (tx.segs_out, fl.data_segs_out);
        i.notsent_bytes = self.unsent_bytes();
        i.min_rtt = tx.min_rtt.get();
        i.delivery_rate = tx.delivery_rate();
        i.delivery_rate_app_limited = fl.rate_app_limited;
        [i.busy_time, i.rwnd_limited, i.sndbuf_limited] = tx.chrono_us(now);
        i.delivered = tx.delivered;
        i.delivered_ce = tx.fl.delivered_ce;
        (i.dsack_dups, i.reord_seen) = (fl.dsack_dups, fl.reord_seen);
        i.snd_wnd = tx.snd_wnd;
    }
}
