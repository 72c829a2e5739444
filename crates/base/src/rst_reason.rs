//! Why a RST was sent: by whom of us, and for what.
//!
//! A reset is the only thing that TCP says about a failure, and it says nothing: the same twenty bytes mean a port without
//! a listener, an application that left data unread, or a broken invariant. So the sender counts why (Linux's
//! `sk_rst_reason`). Names are the kernel's. A RST that *answers* a segment mostly has the reason that the segment was
//! dropped for ([`RstReason::of_drop`]); an *active* one has the reason of the verb or timer that gave the connection up.
//!
//! The table below is the only list: the enum, the names, the descriptions and the counters are made from it. Not here:
//! resets received, which are drops ([`DropReason::TcpReset`]).

use crate::drop_reason::DropReason;
use crate::reasons::reasons;

reasons! {
    /// Why a RST was sent.
    #[non_exhaustive]
    enum RstReason;
    /// RSTs sent, one counter per reason.
    counters RstCounters;

    /// None of the others.
    NotSpecified = "NOT_SPECIFIED",
    /// No socket wanted the segment.
    NoSocket = "NO_SOCKET",
    /// The segment's acknowledgement number is not acceptable in the handshake.
    TcpInvalidAckSequence = "TCP_INVALID_ACK_SEQUENCE",
    /// Older than the last timestamp (PAWS, RFC 7323).
    TcpRfc7323Paws = "TCP_RFC7323_PAWS",
    /// An acknowledgement below the acceptable range (RFC 5961).
    TcpTooOldAck = "TCP_TOO_OLD_ACK",
    /// An acknowledgement of data never sent.
    TcpAckUnsentData = "TCP_ACK_UNSENT_DATA",
    /// TCP flags that the state does not accept.
    TcpFlags = "TCP_FLAGS",
    /// Data came after the application stopped reading for good.
    TcpAbortOnData = "TCP_ABORT_ON_DATA",
    /// A segment for TIME-WAIT that its state does not accept.
    TcpTimewaitSocket = "TCP_TIMEWAIT_SOCKET",
    /// A SYN in the window, or a handshake that the listener has no room for.
    InvalidSyn = "INVALID_SYN",
    /// The application closed with unread data.
    TcpAbortOnClose = "TCP_ABORT_ON_CLOSE",
    /// The time that a closed connection may linger was set to none.
    TcpAbortOnLinger = "TCP_ABORT_ON_LINGER",
    /// Too many orphans, or no memory for them.
    TcpAbortOnMemory = "TCP_ABORT_ON_MEMORY",
    /// The connection was aborted in a state in which the peer believes in it.
    TcpState = "TCP_STATE",
    /// The peer did not answer keepalive probes.
    TcpKeepaliveTimeout = "TCP_KEEPALIVE_TIMEOUT",
    /// The connection was aborted with data still to send.
    TcpDisconnectWithData = "TCP_DISCONNECT_WITH_DATA",
}

impl RstReason {
    /// The reason of a RST that answers a segment which was dropped for `reason`.
    pub const fn of_drop(reason: DropReason) -> Self {
        match reason {
            DropReason::NoSocket => Self::NoSocket,
            DropReason::TcpRfc7323Paws => Self::TcpRfc7323Paws,
            DropReason::TcpTooOldAck => Self::TcpTooOldAck,
            DropReason::TcpAckUnsentData => Self::TcpAckUnsentData,
            DropReason::TcpFlags => Self::TcpFlags,
            DropReason::TcpAbortOnData => Self::TcpAbortOnData,
            DropReason::TcpInvalidSyn => Self::InvalidSyn,
            DropReason::TcpInvalidSequence => Self::TcpInvalidAckSequence,
            _ => Self::NotSpecified,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_counters_add_up() {
        let names: BTreeSet<_> = RstReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), RstReason::ALL.len());
        assert!(RstReason::ALL.iter().enumerate().all(|(i, &r)| r as usize == i && !r.describe().is_empty()));
        let (mut a, mut b) = (RstCounters::default(), RstCounters::default());
        a.count(RstReason::NoSocket);
        b.count(RstReason::NoSocket);
        a.merge(&b);
        assert_eq!((a.get(RstReason::NoSocket), a.total(), a.iter().count()), (2, 2, 1));
        assert_eq!(RstReason::of_drop(DropReason::TcpFlags), RstReason::TcpFlags);
        assert_eq!(RstReason::of_drop(DropReason::NoMem), RstReason::NotSpecified);
    }
}
