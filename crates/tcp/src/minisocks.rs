//! The small phases: before a connection ([`ReqSock`]), after it ([`TwSock`]), and without one ([`reset_for`]).
//!
//! A SYN flood and a server with many short connections must not cost a [`Conn`](crate::Conn) each: a half-open
//! connection is 192 bytes, a finished one 64. Both are plain values that decide what a segment means and leave the doing
//! to the stack: it keeps them in slabs, arms their deadlines and sends what they describe. Neither holds an skb or
//! charges memory. Under a flood not even that is kept: [`cookie`]. Fast Open is not theirs. Segments are judged as Linux's `tcp_check_req` and
//! `tcp_timewait_state_process` do; answers to junk are limited per minisock.

pub mod cookie;
mod req;
mod tw;

pub use cookie::CookieKey;
pub use req::{Disposition, ReqSock, ReqTimer};
pub use tw::{TwSock, TwVerdict};

use linerate_base::Seq;
use linerate_skb::{Csum, Skb};
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr};

use crate::cx::TcpCx;

/// The RST that answers a segment for which there is no connection (RFC 9293 section 3.10.7.1); `None` for a RST, which is
/// never answered. `payload_len` in bytes.
pub fn reset_for(h: &TcpRepr, payload_len: u32) -> Option<TcpRepr> {
    if h.flags.contains(TcpFlags::RST) {
        return None;
    }
    let (seq, ack, flags) = if h.flags.contains(TcpFlags::ACK) {
        (h.ack, Seq(0), TcpFlags::RST)
    } else {
        (Seq(0), h.end_seq(payload_len), TcpFlags::RST | TcpFlags::ACK)
    };
    Some(TcpRepr {
        src_port: h.dst_port,
        dst_port: h.src_port,
        seq,
        ack,
        flags,
        window: 0,
        urgent: 0,
        opts: TcpOptions::NONE,
    })
}

/// A segment without payload: the header with its checksum still to be made (`Csum::Partial`, pseudo header not seeded).
/// `None` when there is no descriptor.
pub fn emit(cx: &mut TcpCx<'_>, h: &TcpRepr) -> Option<Skb> {
    let mut skb = cx.skbs.alloc()?;
    let len = h.header_len();
    match skb.push_head(len) {
        Some(bytes) => h.emit(bytes),
        None => {
            cx.skbs.consume(skb);
            return None;
        }
    }
    let start = skb.head_offset();
    skb.transport_header = start;
    skb.csum = Csum::Partial { start, offset: linerate_wire::tcp::field::CHECKSUM as u16 };
    skb.tstamp = cx.now;
    if h.flags.contains(TcpFlags::RST) {
        cx.mib.out_rsts += 1;
    }
    Some(skb)
}

/// The segment touches `[start, end)`, or is empty at its start (Linux `tcp_in_window`).
fn in_window(seq: Seq, end_seq: Seq, start: Seq, end: Seq) -> bool {
    seq == start || (seq.lt(end) && start.lt(end_seq)) || (seq == end && seq == end_seq)
}
