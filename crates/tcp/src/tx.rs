//! The sender half of a connection: its variables and the application's way in.
//!
//! ```text
//!      snd_una            snd_nxt              snd_una + snd_wnd     write_seq
//!         | sent, not acked  | may be sent           |                  |
//!  -------+==================+-----------------------+------------------+--> sequence space
//!         |   retransmit queue      |         write queue               |
//! ```
//! Invariants: `snd_una <= snd_nxt <= write_seq`; `packets_out` is the sum of wire segments of what is sent and not
//! acknowledged, `sacked_out`, `lost_out` and `retrans_out` the sums over the tagged part of it (without SACK,
//! `sacked_out` counts duplicate ACKs instead); in flight = `packets_out - sacked_out - lost_out + retrans_out`: what was
//! sent once, minus what has left the network, plus what was sent again. `wmem_queued` is the price of both queues in
//! bytes of truesize and equals what this connection has charged to the stack for sending.
//!
//! [`Tx`] is what an idle connection needs. [`Flight`] is the rest (queues, recovery, counters), born in a box with the
//! first byte that is sent, so that a connection that never speaks stays small. Times are instants; RTTs microseconds.
//! Not here: decisions. They live in `output ack sack rtt rate recovery undo tlp timer`.

use alloc::boxed::Box;
use core::mem::offset_of;
use core::ops::{Deref, DerefMut};

use linerate_base::{Errno, Instant, Seq};
use linerate_cong::{Algorithm, CaState, CcState};

use crate::config::{PathInfo, SockOpts};
use crate::conn::{Conn, SocketError};
use crate::cx::TcpCx;
use crate::mem::MemGroup;
use crate::parts::Parts;
use crate::rtt::MinRtt;
use crate::txq::TxQueue;

/// Price of a queued segment besides its bytes: what Linux pays for an skb with an empty head, in bytes of truesize.
pub(crate) const SEG_TRUESIZE: u32 = 1280;
/// Most fragments of one segment (Linux's MAX_SKB_FRAGS).
pub(crate) const SEG_FRAGS: usize = 17;
/// No send buffer is larger: sequence comparisons need the queue well below 2^31.
const SNDBUF_MAX: u32 = 1 << 30;

/// Bits of [`Tx::want`]: what `poll_xmit` shall send besides what the windows allow.
pub(crate) mod want {
    /// A reset.
    pub(crate) const RST: u8 = 1;
    /// A probe one byte below the window: keepalive.
    pub(crate) const PROBE: u8 = 2;
    /// One new segment or the last sent one: tail loss probe.
    pub(crate) const TLP: u8 = 4;
    /// One segment into a closed window, or a probe.
    pub(crate) const PROBE0: u8 = 8;
    /// The oldest segment although the window is closed (the peer shrank it).
    pub(crate) const HEAD: u8 = 16;
}

/// How `write` treats the end of what it is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// More follows soon: do not send a partial segment for it (MSG_MORE).
    pub more: bool,
    /// A record ends here: later bytes never share a segment with it (MSG_EOR).
    pub eor: bool,
}

/// Why nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SendError {
    /// The send buffer is full, or the handshake has not finished (EAGAIN).
    WouldBlock,
    /// Our direction is closed (EPIPE).
    BrokenPipe,
    /// There is no connection yet (ENOTCONN).
    NotConnected,
    /// The connection died; reported once.
    Socket(SocketError),
}

impl SendError {
    /// The Linux error number.
    pub const fn errno(self) -> Errno {
        match self {
            Self::WouldBlock => Errno::EAGAIN,
            Self::BrokenPipe => Errno::EPIPE,
            Self::NotConnected => Errno::ENOTCONN,
            Self::Socket(e) => e.errno(),
        }
    }
}

impl core::fmt::Display for SendError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.errno().describe())
    }
}
impl core::error::Error for SendError {}

/// Sender half: what is needed even when nothing is in flight. In the order of memory, what every ACK touches last: it
/// lies beside what it touches of the receiver ([`Conn::HOT`]).
#[repr(C)]
pub(crate) struct Tx {
    /// Windows as the congestion control sees them: cwnd, ssthresh, MSS, ca_state.
    pub(crate) cc: CcState,
    pub(crate) algo: Algorithm,
    /// The search for the path's MTU, once there is one.
    pub(crate) mtu: Option<alloc::boxed::Box<crate::mtu::MtuSearch>>,
    pub(crate) min_rtt: MinRtt,
    /// Smoothed RTT, eighths of a microsecond; 0 = unknown.
    pub(crate) srtt_us8: u32,
    /// Mean deviation, quarters of a microsecond.
    pub(crate) mdev_us4: u32,
    /// Largest `mdev_us4` of this round trip.
    pub(crate) mdev_max_us4: u32,
    /// Deviation that the RTO uses, microseconds (already times four).
    pub(crate) rttvar_us: u32,
    /// When `snd_una` passes this, a round trip is over.
    pub(crate) rtt_seq: Seq,
    /// Retransmission timeout, microseconds, with its backoff.
    pub(crate) rto_us: u32,
    /// Wire segments delivered so far (wraps).
    pub(crate) delivered: u32,
    /// Wire segments sent.
    pub(crate) segs_out: u32,
    /// Retransmitted wire segments of the connection.
    pub(crate) total_retrans: u32,
    /// Send buffer, bytes of truesize.
    pub(crate) sndbuf: u32,
    /// Bytes written and never sent from which on a writer waits (TCP_NOTSENT_LOWAT); `u32::MAX` = no such bound.
    pub(crate) notsent_lowat: u32,
    /// Truesize of both queues.
    pub(crate) wmem_queued: u32,
    /// Truesize of skbs below the socket (TCP small queues).
    pub(crate) wmem_alloc: u32,
    /// Whose account is charged beside the stack's.
    pub(crate) group: MemGroup,
    /// Degree of reordering, wire segments.
    pub(crate) reordering: u16,
    /// The rest; see the module's head.
    pub(crate) fl: Lazy,
    /// Sequence numbers acknowledged, the SYN's included (as tcpi_bytes_acked).
    pub(crate) bytes_acked: u64,
    /// First byte not acknowledged.
    pub(crate) snd_una: Seq,
    /// Next byte to send.
    pub(crate) snd_nxt: Seq,
    /// Sequence number after the last byte that the application wrote (FIN included).
    pub(crate) write_seq: Seq,
    /// SEG.SEQ of the last window update (RFC 9293 SND.WL1).
    pub(crate) snd_wl1: Seq,
    /// The peer's window in bytes, from `snd_una`.
    pub(crate) snd_wnd: u32,
    /// Largest window ever seen, bytes.
    pub(crate) max_window: u32,
    /// Wire segments sent and not acknowledged.
    pub(crate) packets_out: u32,
    /// Of those, SACKed (or guessed from duplicate ACKs).
    pub(crate) sacked_out: u32,
    /// Of those, believed lost.
    pub(crate) lost_out: u32,
    /// Of those, retransmitted and that copy believed to be in flight.
    pub(crate) retrans_out: u32,
    /// Doublings of the RTO or of the probe interval.
    pub(crate) backoff: u8,
    /// Timeouts without progress.
    pub(crate) retransmits: u8,
    /// Unanswered window probes.
    pub(crate) probes_out: u8,
    /// Bits of [`want`].
    pub(crate) want: u8,
    /// Bits of [`Tx`] that are booleans, see [`flag`].
    pub(crate) flags: u8,
    /// RACK: quarters of min_rtt in the reordering window.
    pub(crate) reo_wnd_steps: u8,
    /// RACK: recoveries for which the window stays widened.
    pub(crate) reo_wnd_persist: u8,
}

impl Tx {
    /// Bytes at the end that an ACK touches.
    pub(crate) const HOT_BYTES: usize = size_of::<Self>() - offset_of!(Self, fl);
}
const _: () = assert!(Tx::HOT_BYTES <= 64);

/// Bits of [`Tx::flags`].
pub(crate) mod flag {
    /// The application ran into a full buffer and waits for `Event::Writable`.
    pub(crate) const NOSPACE: u8 = 1;
    /// The last write said MSG_MORE and no ACK came since.
    pub(crate) const MORE: u8 = 2;
    /// NODELAY was set or CORK was taken off: what is queued goes now.
    pub(crate) const PUSH: u8 = 4;
    /// Recovery forbids retransmissions until the next ACK or timeout.
    pub(crate) const HOLD: u8 = 8;
    /// F-RTO wants new data first.
    pub(crate) const REXMIT_NEW: u8 = 16;
    /// Reordering was seen once.
    pub(crate) const REORD_SEEN: u8 = 32;
    /// A duplicate SACK was seen since RACK's window was adapted.
    pub(crate) const DSACK_SEEN: u8 = 64;
    /// The head of the queue had been SACKed and then forgotten by the peer.
    pub(crate) const SACK_RENEG: u8 = 128;
}

/// What limited sending, for `TcpInfo` (tcpi_busy_time and its parts).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Chrono {
    /// Nothing to send.
    #[default]
    Idle,
    /// Sending.
    Busy,
    /// Busy, held back by the peer's window.
    RwndLimited,
    /// Busy, held back by the send buffer.
    SndbufLimited,
}

/// Proportional rate reduction (RFC 9937).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prr {
    /// Wire segments delivered since the reduction began.
    pub(crate) delivered: u32,
    /// Wire segments sent since.
    pub(crate) out: u32,
}

/// RACK's view of the latest delivery (RFC 8985 section 6.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// Transmission time of the latest sent segment that was delivered.
    pub(crate) mstamp: Instant,
    /// Its end.
    pub(crate) end_seq: Seq,
    /// Its RTT.
    pub(crate) rtt_us: u32,
    /// Something new was learnt since losses were last looked for.
    pub(crate) advanced: bool,
    /// `Tx::delivered` when the reordering window was last adapted.
    pub(crate) last_delivered: u32,
}

/// What a connection needs once it sends: queues, recovery, counters.
pub(crate) struct Flight {
    pub(crate) q: TxQueue,
    /// End of the last write that had to be pushed.
    pub(crate) pushed_seq: Seq,
    /// End of the last small segment (Minshall's Nagle).
    pub(crate) snd_sml: Seq,
    /// `snd_nxt` when the current congestion episode began.
    pub(crate) high_seq: Seq,
    /// `snd_una` when it began; `None`: nothing to undo.
    pub(crate) undo_marker: Option<Seq>,
    /// Retransmissions of the episode not yet proven superfluous by DSACKs; -1: none was made.
    pub(crate) undo_retrans: i32,
    /// ssthresh before the episode; 0: nothing to restore.
    pub(crate) prior_ssthresh: u32,
    /// TSval of the first retransmission of the episode; 0 = none.
    pub(crate) retrans_stamp: u32,
    /// Time of the same, for limits of time.
    pub(crate) retrans_at: Instant,
    /// End of the highest segment that was ever SACKed in this queue.
    pub(crate) highest_sack: Seq,
    /// No segment below needs retransmission.
    pub(crate) retrans_hint: Option<Seq>,
    pub(crate) prr: Prr,
    pub(crate) rack: Rack,
    /// F-RTO is at work (RFC 5682).
    pub(crate) frto: bool,
    /// `snd_nxt` when the tail loss probe was sent.
    pub(crate) tlp_high_seq: Option<Seq>,
    /// The probe was a retransmission.
    pub(crate) tlp_retrans: bool,
    /// When the first unanswered window probe was sent.
    pub(crate) probes_at: Instant,
    /// What ICMP reported without ending the connection; told if retries end it.
    pub(crate) err_soft: Option<SocketError>,
    /// RTOs of the SYN so far.
    pub(crate) syn_rtos: u8,
    /// Rate sample: time of the latest delivery.
    pub(crate) delivered_at: Instant,
    /// Rate sample: transmission time of the segment delivered last.
    pub(crate) first_tx_at: Instant,
    /// The sender has been limited by the application until `delivered` reaches this; 0 = not limited.
    pub(crate) app_limited: u32,
    /// Wire segments marked lost so far (wraps).
    pub(crate) lost: u32,
    /// Best recent rate sample.
    pub(crate) rate_delivered: u32,
    /// Interval of that sample.
    pub(crate) rate_interval_us: u32,
    /// It was taken while limited by the application.
    pub(crate) rate_app_limited: bool,
    /// When `snd_una` passes this, a new window of cwnd usage begins.
    pub(crate) cwnd_usage_seq: Seq,
    /// Most wire segments in flight since the window was last full.
    pub(crate) cwnd_used: u32,
    /// When cwnd was last seen to be used, or changed.
    pub(crate) cwnd_stamp: Instant,
    /// Time of the last transmission of anything.
    pub(crate) wstamp: Instant,
    /// Payload bytes sent, retransmissions included.
    pub(crate) bytes_sent: u64,
    /// Payload bytes sent again.
    pub(crate) bytes_retrans: u64,
    /// Wire segments with payload sent.
    pub(crate) data_segs_out: u32,
    /// Wire segments delivered with ECN echo (wraps).
    pub(crate) delivered_ce: u32,
    /// Wire segments that the peer reported twice.
    pub(crate) dsack_dups: u32,
    /// Times that reordering was seen.
    pub(crate) reord_seen: u32,
    /// What limits sending now.
    pub(crate) chrono: Chrono,
    /// Since when.
    pub(crate) chrono_at: Instant,
    /// Nanoseconds spent busy, limited by the window, limited by the buffer (without the current stretch).
    pub(crate) chrono_ns: [u64; 3],
}

/// [`Flight`], made at the first change; reads before see zeros.
#[derive(Default)]
pub(crate) struct Lazy(Option<Box<Flight>>);

impl Lazy {
    /// Was anything ever sent or queued?
    #[inline]
    pub(crate) fn is_born(&self) -> bool {
        self.0.is_some()
    }
    /// It, if anything was.
    #[inline]
    pub(crate) fn born(&mut self) -> Option<&mut Flight> {
        self.0.as_deref_mut()
    }
    /// Gives it to the next connection; the caller made sure that nothing in it matters and that its queue is empty.
    pub(crate) fn forget(&mut self, parts: &mut Parts) {
        if let Some(flight) = self.0.take() {
            parts.keep_flight(flight);
        }
    }
}

impl Deref for Lazy {
    type Target = Flight;
    fn deref(&self) -> &Flight {
        const UNBORN: &Flight = &Flight::NEW;
        match &self.0 {
            Some(f) => f,
            None => UNBORN,
        }
    }
}
impl DerefMut for Lazy {
    #[inline]
    fn deref_mut(&mut self) -> &mut Flight {
        self.0.get_or_insert_with(newborn)
    }
}

#[cold]
#[inline(never)]
fn newborn() -> Box<Flight> {
    Box::new(Flight::NEW)
}

impl Flight {
    /// Nothing queued, nothing counted.
    pub(crate) const NEW: Self = Self {
        q: TxQueue::NEW,
        pushed_seq: Seq(0),
        snd_sml: Seq(0),
        high_seq: Seq(0),
        undo_marker: None,
        undo_retrans: 0,
        prior_ssthresh: 0,
        retrans_stamp: 0,
        retrans_at: Instant::ZERO,
        highest_sack: Seq(0),
        retrans_hint: None,
        prr: Prr { delivered: 0, out: 0 },
        rack: Rack { mstamp: Instant::ZERO, end_seq: Seq(0), rtt_us: 0, advanced: false, last_delivered: 0 },
        frto: false,
        tlp_high_seq: None,
        tlp_retrans: false,
        probes_at: Instant::ZERO,
        err_soft: None,
        syn_rtos: 0,
        delivered_at: Instant::ZERO,
        first_tx_at: Instant::ZERO,
        app_limited: 0,
        lost: 0,
        rate_delivered: 0,
        rate_interval_us: 0,
        rate_app_limited: false,
        cwnd_usage_seq: Seq(0),
        cwnd_used: 0,
        cwnd_stamp: Instant::ZERO,
        wstamp: Instant::ZERO,
        bytes_sent: 0,
        bytes_retrans: 0,
        data_segs_out: 0,
        delivered_ce: 0,
        dsack_dups: 0,
        reord_seen: 0,
        chrono: Chrono::Idle,
        chrono_at: Instant::ZERO,
        chrono_ns: [0; 3],
    };

    /// As new, but for the capacity of its queue.
    pub(crate) fn renew(&mut self) {
        let mut q = core::mem::replace(&mut self.q, TxQueue::NEW);
        q.renew();
        // What is replaced owns nothing any more: dropping it would only look at that.
        core::mem::forget(core::mem::replace(self, Self { q, ..Self::NEW }));
    }
}

impl Tx {
    /// A sender that has not sent its SYN: `iss` is that of the SYN.
    pub(crate) fn new(cx: &TcpCx<'_>, iss: Seq, path: &PathInfo, opts: &SockOpts) -> Self {
        let name = opts.congestion_control.unwrap_or(cx.cfg.congestion_control);
        let sndbuf = if opts.sndbuf_bytes != 0 { opts.sndbuf_bytes } else { cx.cfg.wmem_bytes[1] };
        Self {
            cc: CcState {
                gso_max_size: path.gso_max_size_bytes,
                snd_una: iss,
                snd_nxt: iss,
                cwnd: cx.cfg.init_cwnd_segs.max(1),
                ..CcState::default()
            },
            algo: Algorithm::by_name(name).unwrap_or_default(),
            mtu: None,
            snd_una: iss,
            snd_nxt: iss,
            write_seq: iss,
            snd_wl1: Seq(0),
            snd_wnd: 0,
            max_window: 0,
            packets_out: 0,
            sacked_out: 0,
            lost_out: 0,
            retrans_out: 0,
            srtt_us8: 0,
            mdev_us4: cx.cfg.rto_initial_us,
            mdev_max_us4: 0,
            rttvar_us: 0,
            rtt_seq: iss,
            rto_us: cx.cfg.rto_initial_us,
            min_rtt: MinRtt::UNKNOWN,
            delivered: 0,
            bytes_acked: 0,
            segs_out: 0,
            total_retrans: 0,
            sndbuf: sndbuf.min(SNDBUF_MAX),
            notsent_lowat: opts.notsent_lowat(cx.cfg),
            wmem_queued: 0,
            group: opts.mem_group,
            wmem_alloc: 0,
            reordering: cx.cfg.reordering_segs.clamp(1, 0xffff) as u16,
            backoff: 0,
            retransmits: 0,
            probes_out: 0,
            want: 0,
            flags: 0,
            reo_wnd_steps: 1,
            reo_wnd_persist: 0,
            fl: Lazy::default(),
        }
    }

    /// SO_SNDBUF, as stored: bytes of truesize.
    pub(crate) fn set_sndbuf(&mut self, bytes: u32) {
        self.sndbuf = bytes.min(SNDBUF_MAX);
    }

    /// Makes [`Flight`] before the first segment is queued, with its sequence numbers at today's edge.
    pub(crate) fn birth(&mut self, cx: &mut TcpCx<'_>) {
        if self.fl.is_born() {
            return;
        }
        let (una, end) = (self.snd_una, self.write_seq);
        let fl = self.fl.0.insert(cx.parts.flight());
        (fl.pushed_seq, fl.snd_sml, fl.high_seq, fl.cwnd_usage_seq, fl.highest_sack) = (end, end, una, una, una);
        fl.cwnd_stamp = cx.now;
    }

    /// Wire segments believed to be in the network.
    pub(crate) fn in_flight(&self) -> u32 {
        let left = self.sacked_out.saturating_add(self.lost_out);
        self.packets_out.saturating_add(self.retrans_out).saturating_sub(left)
    }
    /// End of the peer's window.
    pub(crate) fn wnd_end(&self) -> Seq {
        self.snd_una + self.snd_wnd
    }
    pub(crate) fn flag(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }
    pub(crate) fn set_flag(&mut self, bit: u8, on: bool) {
        if on {
            self.flags |= bit;
        } else {
            self.flags &= !bit;
        }
    }
    /// cwnd is being reduced step by step.
    pub(crate) fn in_cwnd_reduction(&self) -> bool {
        matches!(self.cc.ca_state, CaState::Cwr | CaState::Recovery)
    }
    /// A retransmission of this queue is, or was, under way.
    pub(crate) fn any_retrans_done(&self) -> bool {
        self.retrans_out > 0 || self.fl.q.rtx_head().is_some_and(|s| s.has(crate::txq::tag::EVER_RETRANS))
    }
    /// Room for another segment: in the buffer, and below the mark of what was not sent yet.
    pub(crate) fn memory_free(&self) -> bool {
        self.wmem_queued < self.sndbuf && (self.write_seq - self.snd_nxt) < self.notsent_lowat
    }
    /// As little is unsent as makes it worth to wake a writer: half of the mark (Linux `sk_stream_memory_free` with `wake`).
    fn unsent_is_low(&self) -> bool {
        self.notsent_lowat == u32::MAX || (self.write_seq - self.snd_nxt) < self.notsent_lowat.div_ceil(2)
    }
    /// The copies of the queue's edges that the congestion control sees.
    pub(crate) fn sync_cc(&mut self) {
        self.cc.snd_una = self.snd_una;
        self.cc.snd_nxt = self.snd_nxt;
        self.cc.srtt_us = self.srtt_us8 >> 3;
    }

    /// Switches what limits sending.
    fn chrono_set(&mut self, now: Instant, to: Chrono) {
        let fl = &mut *self.fl;
        let spent = now.nanos_since(fl.chrono_at);
        if let Some(slot) = (fl.chrono as usize).checked_sub(1).and_then(|i| fl.chrono_ns.get_mut(i)) {
            *slot = slot.saturating_add(spent);
        }
        (fl.chrono, fl.chrono_at) = (to, now);
    }
    /// A limit begins; a stronger one that holds already wins.
    pub(crate) fn chrono_start(&mut self, now: Instant, kind: Chrono) {
        if kind > self.fl.chrono {
            self.chrono_set(now, kind);
        }
    }
    /// A limit ends: back to busy, or to idle when nothing is queued.
    pub(crate) fn chrono_stop(&mut self, now: Instant, kind: Chrono) {
        if self.fl.chrono == Chrono::Idle {
            return;
        }
        if self.fl.q.is_empty() {
            self.chrono_set(now, Chrono::Idle);
        } else if kind == self.fl.chrono && kind != Chrono::Busy {
            self.chrono_set(now, Chrono::Busy);
        }
    }
    /// Microseconds spent busy (in total), limited by the peer's window, limited by the send buffer.
    pub(crate) fn chrono_us(&self, now: Instant) -> [u64; 3] {
        let mut ns = self.fl.chrono_ns;
        if let Some(slot) = (self.fl.chrono as usize).checked_sub(1).and_then(|i| ns.get_mut(i)) {
            *slot += now.since(self.fl.chrono_at).as_nanos() as u64;
        }
        let [busy, rwnd, sndbuf] = ns.map(|n| n / 1000);
        [busy + rwnd + sndbuf, rwnd, sndbuf]
    }

    /// Latest good delivery rate, bytes per second (tcpi_delivery_rate); 0 when unknown.
    pub(crate) fn delivery_rate(&self) -> u64 {
        match self.fl.rate_interval_us {
            0 => 0,
            us => u64::from(self.fl.rate_delivered) * u64::from(self.cc.mss) * 1_000_000 / u64::from(us),
        }
    }

    /// Recounts the equation from the queue; for tests and the simulator.
    ///
    /// # Panics
    /// When a counter and the queue disagree.
    pub(crate) fn check(&self, sack: bool) {
        use crate::txq::tag;
        let q = &self.fl.q;
        q.check();
        let (mut out, mut sacked, mut lost, mut retrans) = (0, 0, 0, 0);
        for s in (0..q.sent()).filter_map(|p| q.get(p)) {
            out += s.segs;
            sacked += if s.has(tag::SACKED) { s.segs } else { 0 };
            lost += if s.has(tag::LOST) { s.segs } else { 0 };
            retrans += if s.has(tag::RETRANS) { s.segs } else { 0 };
            assert!(!(s.has(tag::SACKED) && s.has(tag::LOST | tag::RETRANS)), "SACKed and lost at {:?}", s.seq);
        }
        assert_eq!(self.packets_out, out, "packets_out");
        assert_eq!((self.lost_out, self.retrans_out), (lost, retrans), "lost_out, retrans_out");
        if sack {
            assert_eq!(self.sacked_out, sacked, "sacked_out");
        }
        assert!(self.sacked_out + self.lost_out <= self.packets_out, "left_out <= packets_out");
        assert!(self.snd_una.le(self.snd_nxt) && self.snd_nxt.le(self.write_seq), "una <= nxt <= write_seq");
        assert_eq!(q.get(0).map_or(self.write_seq, |s| s.seq), self.snd_una, "the queue begins at snd_una");
        assert_eq!(q.send_head().map_or(self.write_seq, |s| s.seq), self.snd_nxt, "the send head is snd_nxt");
        assert_eq!(q.tail().map_or(self.snd_una, |s| s.end_seq), self.write_seq, "the queue ends at write_seq");
        assert!(self.cc.cwnd >= 1, "cwnd");
    }
}

/// What `TcpInfo` shows of the sender.
impl Conn {
    /// Checks the sender's invariants; for tests and the simulator.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check_invariants(&self) {
        self.tx.check(self.neg.sack);
        let q = &self.tx.fl.q;
        let price: u64 = (0..q.len()).filter_map(|p| q.get(p)).map(|s| u64::from(SEG_TRUESIZE + s.len())).sum();
        assert_eq!(u64::from(self.tx.wmem_queued), price, "wmem_queued");
        if self.tx.packets_out > 0 {
            assert!(self.timers.get(crate::timer::Timer::Retrans).is_some(), "data in flight without a timer");
        }
    }
    /// Payload bytes written and not acknowledged (SIOCOUTQ).
    pub fn outq_bytes(&self) -> u32 {
        self.payload_between(self.tx.snd_una)
    }
    /// Payload bytes written and never sent (SIOCOUTQNSD).
    pub fn unsent_bytes(&self) -> u32 {
        self.payload_between(self.tx.snd_nxt)
    }
    fn payload_between(&self, from: Seq) -> u32 {
        use crate::txq::tag;
        let q = &self.tx.fl.q;
        let syn = u32::from(q.get(0).is_some_and(|s| s.has(tag::SYN) && s.seq.ge(from)));
        let fin = u32::from(q.tail().is_some_and(|s| s.has(tag::FIN) && s.end_seq.gt(from)));
        (self.tx.write_seq - from).saturating_sub(syn + fin)
    }
    /// Room in the send buffer, bytes of truesize; 0 = a write would not take anything.
    pub fn snd_free(&self) -> usize {
        self.tx.sndbuf.saturating_sub(self.tx.wmem_queued) as usize
    }
    /// A write would take something, and enough that it pays to wake the writer: a third of the buffer is free, and
    /// less than half of TCP_NOTSENT_LOWAT waits to be sent.
    pub fn is_writable(&self) -> bool {
        let tx = &self.tx;
        tx.sndbuf.saturating_sub(tx.wmem_queued) >= tx.wmem_queued >> 1 && tx.memory_free() && tx.unsent_is_low()
    }
}
