//! The states of a connection (RFC 9293 section 3.3.2) and the only arrows between them.
//!
//! One table declares every arrow: an event, the states that it may find and the state that follows. The method that
//! performs an event, the list of arrows and its snapshot test are made from it, so that a change of the life cycle is a
//! change of one table and of one snapshot. Linux's numbers are kept, because `TcpInfo` shows them.
//!
//! Three phases live elsewhere: LISTEN is a socket of the stack, SYN-RECEIVED of a passive open is a
//! [`ReqSock`](crate::minisocks::ReqSock), and TIME-WAIT is a [`TwSock`](crate::minisocks::TwSock). A [`State::TimeWait`]
//! here is the short moment between the last ACK and the hand-over. The table knows arrows, not reasons: who may send
//! what in which state is decided by input, output and close.

linerate_base::state_table! {
    /// Where a connection stands. The numbers are those of Linux's `TCP_INFO`.
    #[repr(u8)]
    pub enum State {
        /// Data flows both ways.
        Established = 1,
        /// Our SYN is out.
        SynSent = 2,
        /// Both SYNs are out, ours is not acknowledged.
        SynRcvd = 3,
        /// We closed; our FIN is not acknowledged.
        FinWait1 = 4,
        /// We closed and that was acknowledged; the peer may still send.
        FinWait2 = 5,
        /// Both ends closed; quiet time.
        TimeWait = 6,
        /// Nothing is left.
        Closed = 7,
        /// The peer closed; we may still send.
        CloseWait = 8,
        /// The peer closed first, then we; our FIN is not acknowledged.
        LastAck = 9,
        /// Both closed at once; our FIN is not acknowledged.
        Closing = 11,
    }
    /// The application connects.
    on_connect(Closed => SynSent);
    /// A minisock completed its handshake and becomes a connection.
    on_accept(Closed => SynRcvd);
    /// A SYN with an acceptable ACK answers ours.
    on_syn_ack(SynSent => Established);
    /// A SYN without ACK crosses ours: simultaneous open.
    on_syn(SynSent => SynRcvd);
    /// Our SYN is acknowledged.
    on_ack_of_syn(SynRcvd => Established);
    /// The application closes its direction: a FIN follows all data.
    on_close(SynRcvd | Established => FinWait1, CloseWait => LastAck);
    /// The peer's FIN is in order.
    on_fin(SynRcvd | Established => CloseWait, FinWait1 => Closing, FinWait2 => TimeWait);
    /// Our FIN is acknowledged.
    on_ack_of_fin(FinWait1 => FinWait2, Closing => TimeWait, LastAck => Closed);
    /// Reset, timeout or abort.
    on_abort(SynSent | SynRcvd | Established | FinWait1 | FinWait2 | CloseWait | Closing | LastAck | TimeWait => Closed);
}

impl State {
    /// Both SYNs have been acknowledged and the connection is not over.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynRcvd | Self::Closed)
    }
    /// The application may still queue data (RFC 9293 section 3.10.2).
    pub const fn can_send(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }
    /// New data of the peer may still arrive.
    pub const fn can_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }
    /// The name as `ss` prints it.
    pub const fn ss_name(self) -> &'static str {
        match self {
            Self::Established => "ESTAB",
            Self::SynSent => "SYN-SENT",
            Self::SynRcvd => "SYN-RECV",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "UNCONN",
            Self::CloseWait => "CLOSE-WAIT",
            Self::LastAck => "LAST-ACK",
            Self::Closing => "CLOSING",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::State;
    use std::fmt::Write as _;
    use std::string::String;

    /// The whole life cycle, as text: a changed arrow is a changed line.
    #[test]
    fn arrows_are_rfc_9293() {
        let mut text = String::new();
        for a in State::arrows().filter(|a| a.event != "on_abort") {
            writeln!(text, "{}: {} -> {}", a.event, a.from, a.to).unwrap();
        }
        let want = "\
on_connect: Closed -> SynSent
on_accept: Closed -> SynRcvd
on_syn_ack: SynSent -> Established
on_syn: SynSent -> SynRcvd
on_ack_of_syn: SynRcvd -> Established
on_close: SynRcvd -> FinWait1
on_close: Established -> FinWait1
on_close: CloseWait -> LastAck
on_fin: SynRcvd -> CloseWait
on_fin: Established -> CloseWait
on_fin: FinWait1 -> Closing
on_fin: FinWait2 -> TimeWait
on_ack_of_fin: FinWait1 -> FinWait2
on_ack_of_fin: Closing -> TimeWait
on_ack_of_fin: LastAck -> Closed
";
        assert_eq!(text, want);
    }

    #[test]
    fn an_event_that_does_not_fit_changes_nothing() {
        let mut s = State::FinWait2;
        assert!(s.on_close().is_err());
        assert_eq!(s, State::FinWait2);
        for &state in State::ALL {
            let mut s = state;
            assert_eq!(s.on_abort().is_ok(), state != State::Closed);
            assert_eq!(s, State::Closed);
        }
    }

    #[test]
    fn numbers_are_linux() {
        let numbers: std::vec::Vec<u8> = State::ALL.iter().map(|&s| s as u8).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]);
    }
}
