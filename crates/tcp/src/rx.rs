//! The receiver half of a connection: its variables, no behaviour.
//!
//! ```text
//!  copied_seq        nxt                        wup + wnd
//!      |  in order    |     may be accepted         |
//!  ----+==============+-----[==]------[=====]-------+-----> sequence space
//!      |    queue     |         ofo (out of order)  |
//! ```
//! Invariants: `copied_seq <= nxt` (plus one when the FIN was taken), `wup <= nxt`, and `rmem_alloc` is the sum of the
//! charges of every skb in `queue` and `ofo`. Nothing here grows with data except the two queues, whose memory is
//! charged by truesize against `rcvbuf` (SYSTEMS A21) and against the stack. Times are 32-bit milliseconds that wrap
//! after 49 days and are compared as differences, which keeps a million idle connections small; only the autotuner
//! needs nanoseconds. Who works on it: `input rcvq wnd delack ecn keepalive`.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::mem::offset_of;

use linerate_base::{Instant, Seq};
use linerate_skb::Skb;
use linerate_wire::SackBlocks;

use crate::rcvq::Ofo;

/// One received skb with the sequence space that its payload takes.
pub(crate) struct RxSeg {
    /// Payload only; its `truesize` is what was charged.
    pub(crate) skb: Skb,
    /// Sequence number of the first payload byte.
    pub(crate) seq: Seq,
    /// The payload is followed by the peer's FIN.
    pub(crate) fin: bool,
}

impl RxSeg {
    /// Sequence number after the payload, not counting a FIN.
    pub(crate) fn end(&self) -> Seq {
        self.seq + self.skb.len()
    }
}

/// Bits of [`DelAck::pending`].
pub(crate) mod ack {
    /// Something has to be acknowledged.
    pub(crate) const SCHED: u8 = 1;
    /// The delayed ACK timer runs.
    pub(crate) const TIMER: u8 = 2;
    /// A small segment arrived: draining the queue acknowledges it.
    pub(crate) const PUSHED: u8 = 4;
    /// A second small segment arrived: even a chatty connection acknowledges.
    pub(crate) const PUSHED2: u8 = 8;
    /// The protocol asks for one ACK without delay.
    pub(crate) const NOW: u8 = 16;
    /// A segment was refused for memory: advertise zero once.
    pub(crate) const NOMEM: u8 = 32;
    /// The decision was taken: `poll_xmit` sends an ACK this turn.
    pub(crate) const SEND: u8 = 64;
}

/// Delayed acknowledgement state (RFC 1122 section 4.2.3.2, as Linux adapts it).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DelAck {
    /// Bits of [`ack`].
    pub(crate) pending: u8,
    /// ACKs that are still sent without delay.
    pub(crate) quick: u8,
    /// Interactive when not 0: ACKs wait for data to ride on.
    pub(crate) pingpong: u8,
    /// Wire segments' ACKs held back since the last one (compressed).
    pub(crate) compressed: u8,
    /// Duplicate ACKs sent at once since `compressed_nxt`.
    pub(crate) dup_acks: u8,
    /// Delay estimate, ms; 0 before the first data.
    pub(crate) ato_ms: u32,
    /// When the last data segment came, ms.
    pub(crate) lrcvtime_ms: u32,
    /// `nxt` when `dup_acks` was started.
    pub(crate) compressed_nxt: Seq,
    /// Deadline of the delayed ACK while `TIMER` is set, ms.
    pub(crate) timeout_ms: u32,
    /// Last segment length below `rcv_mss`, 0 = none.
    pub(crate) last_seg_size: u16,
    /// What one segment of the peer carries, bytes (learnt).
    pub(crate) rcv_mss: u16,
}

/// The receiver's part of RFC 3168.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EcnRx {
    /// ECT was seen: a segment without it is probably a retransmission.
    pub(crate) seen: bool,
    /// CE was seen: echo ECE until the peer says CWR.
    pub(crate) demand_cwr: bool,
    /// We reduced: tell the peer with the next new data.
    pub(crate) queue_cwr: bool,
}

/// Dynamic right-sizing (autotuning) of the receive buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RcvSpace {
    /// Bytes that the application read in the best round trip so far.
    pub(crate) space: u32,
    /// `copied_seq` at the start of the measurement.
    pub(crate) seq: Seq,
    /// Start of the measurement.
    pub(crate) time: Instant,
}

/// Round trip time as the receiver sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RcvRtt {
    /// Smoothed, in eighths of a microsecond; 0 = unknown.
    pub(crate) rtt_us8: u32,
    /// A window's worth of data has arrived once `nxt` gets here.
    pub(crate) seq: Seq,
    /// Start of that window; `ZERO` = not measuring.
    pub(crate) time: Instant,
    /// TSecr of the last sample.
    pub(crate) last_tsecr: u32,
}

/// Directions and owners that are gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shut {
    /// Nothing more is delivered to the application (Linux RCV_SHUTDOWN).
    pub(crate) rcv: bool,
    /// Nothing more is taken from the application (Linux SEND_SHUTDOWN).
    pub(crate) snd: bool,
    /// The peer's FIN was taken: after the queue comes the end of the stream (Linux SOCK_DONE).
    pub(crate) done: bool,
    /// The application closed the socket: an orphan (Linux SOCK_DEAD).
    pub(crate) dead: bool,
    /// A RST has to answer the segment that was just handed in; see [`crate::Conn::take_reset_reply`].
    pub(crate) reply_rst: bool,
}

/// Receiver half. In the order of memory, what every segment touches first: it lies beside what an ACK touches of the
/// sender ([`crate::Conn::HOT`]).
#[repr(C)]
pub(crate) struct Rx {
    /// Out of order; boxed because most connections never need it.
    pub(crate) ofo: Option<Box<Ofo>>,
    /// Next byte expected (RCV.NXT).
    pub(crate) nxt: Seq,
    /// `nxt` when the window was last advertised.
    pub(crate) wup: Seq,
    /// Window last advertised, bytes, from `wup`.
    pub(crate) wnd: u32,
    /// Next byte that the application reads.
    pub(crate) copied_seq: Seq,
    /// Latest TSval in order (RFC 7323 TS.Recent).
    pub(crate) ts_recent: u32,
    /// Seconds when `ts_recent` was stored, plus one; 0 = never.
    pub(crate) ts_recent_stamp_s: u32,
    /// When an ACK last arrived, ms.
    pub(crate) rcv_tstamp_ms: u32,
    /// Wire segments received.
    pub(crate) segs_in: u32,
    /// Keepalive probes without an answer.
    pub(crate) keep_probes_out: u8,
    /// len / truesize in 1/256 (SYSTEMS A21).
    pub(crate) scaling_ratio: u8,
    pub(crate) ecn: EcnRx,
    pub(crate) shut: Shut,
    pub(crate) ack: DelAck,
    pub(crate) rtt: RcvRtt,
    pub(crate) space: RcvSpace,
    /// In order, not read.
    pub(crate) queue: VecDeque<RxSeg>,
    /// Payload bytes received in order.
    pub(crate) bytes_received: u64,
    /// The peer's initial sequence number.
    pub(crate) irs: Seq,
    /// ACK number that was last sent.
    pub(crate) last_ack_sent: Seq,
    /// Largest window that may ever be advertised, bytes.
    pub(crate) window_clamp: u32,
    /// Window that may be advertised now, bytes; grows with well packed data.
    pub(crate) ssthresh: u32,
    /// Receive buffer, bytes of truesize.
    pub(crate) rcvbuf: u32,
    /// Truesize charged by both queues.
    pub(crate) rmem_alloc: u32,
    /// SO_RCVLOWAT, bytes, at least 1.
    pub(crate) rcvlowat: u32,
    /// When an out-of-window segment was last answered, ms, forced odd; 0 = never.
    pub(crate) last_oow_ack_ms: u32,
    /// Of those, with payload.
    pub(crate) data_segs_in: u32,
    /// Wire segments received out of order.
    pub(crate) ooopack: u32,
    /// Duplicate SACK to report next (RFC 2883).
    pub(crate) dsack: Option<(Seq, Seq)>,
}

impl Rx {
    /// Bytes at the beginning that a segment touches.
    pub(crate) const HOT_BYTES: usize = offset_of!(Self, space);
}
const _: () = assert!(Rx::HOT_BYTES <= 104);

impl Rx {
    /// SACK blocks of the out-of-order queue, most recent first (RFC 2018 section 4), without DSACK.
    pub(crate) fn ofo_sacks(&self) -> SackBlocks {
        self.ofo.as_ref().map_or(SackBlocks::EMPTY, |o| o.sacks())
    }
    /// A round trip has passed since the buffer was last sized by what the application reads.
    #[inline]
    pub(crate) fn space_is_due(&self, now: Instant) -> bool {
        let rtt_us = self.rtt.rtt_us8 >> 3;
        self.rtt.rtt_us8 != 0 && now.nanos_since(self.space.time) >= u64::from(rtt_us) * 1000
    }
    /// Nothing waits out of order.
    pub(crate) fn ofo_is_empty(&self) -> bool {
        self.ofo.as_ref().is_none_or(|o| o.is_empty())
    }
}
