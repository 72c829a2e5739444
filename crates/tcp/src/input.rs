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

use crate::conn::{CloseReason, Conn, SocketError, ev};
use crate::cx::{RxMeta, TcpCx};
use crate::rx::{RxSeg, ack};
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

/// What a step decided about the segment.
pub(crate) type Step = Result<(), DropReason>;
