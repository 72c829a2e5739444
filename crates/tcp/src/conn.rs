//! The connection: its parts, who owns which, and the verbs that the stack calls.
//!
//! ```text
//!            segments                          application
//!        rcv |     ^ poll_xmit              write |     ^ read
//!            v     |                              v     |
//!   +--------------+---------------------------------------------+
//!   | Conn  state, key, path, opts, neg (what both ends agreed)  |
//!   |   tx: Tx   sender half   una..nxt, rtx queue, cwnd, RTO    |
//!   |   rx: Rx   receiver half nxt, wnd, in-order and ofo queue  |
//!   |   timers   few named deadlines, next_timer() = their min   |
//!   +------------------------------------------------------------+
//! ```
//! Four kinds of methods: *getters*; `rcv`/`on_*` (input from below and from time); *verbs* of the application
//! (`write read shutdown close abort`); `poll_*` (output that the stack fetches after any of the former).
//! After each call into a connection the stack asks `poll_xmit`, `poll_event` and `next_timer`.

use linerate_base::{DropReason, Errno};
use linerate_wire::flow::FlowKey;

use crate::config::{PathInfo, SockOpts};
use crate::rx::Rx;
use crate::state::State;
use crate::timer::Timers;
use crate::tx::Tx;

/// What the two ends agreed on in the handshake.
#[derive(Clone, Copy, Debug, Default)]
pub struct Negotiated {
    /// Timestamps on every segment (RFC 7323).
    pub ts: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Window scaling in both directions.
    pub wscale: bool,
    /// Shift of the windows that the peer sends us, 0..=14.
    pub snd_wscale: u8,
    /// Shift of the windows that we send, 0..=14.
    pub rcv_wscale: u8,
    /// RFC 3168 marks are understood by both.
    pub ecn: bool,
    /// The TSval clock counts microseconds.
    pub usec_ts: bool,
    /// MSS that the peer announced, 536 (v4) / 1220 (v6) when it did not.
    pub peer_mss_bytes: u16,
    /// MSS that we announced.
    pub our_mss_bytes: u16,
}

/// One TCP connection.
pub struct Conn {
    /// Both addresses and ports, local first.
    pub(crate) key: FlowKey,
    /// RFC 9293 section 3.3.2.
    pub(crate) state: State,
    pub(crate) neg: Negotiated,
    pub(crate) path: PathInfo,
    /// Options live in a box: most sockets never set one.
    pub(crate) opts: SockOpts,
    /// Sender half.
    pub(crate) tx: Tx,
    /// Receiver half.
    pub(crate) rx: Rx,
    pub(crate) timers: Timers,
    /// Why the connection ended; reported once (SO_ERROR).
    pub(crate) error: Option<SocketError>,
    /// Events not yet fetched, one bit per kind: they do not queue.
    pub(crate) events: u16,
}

/// What the application is told about a dead connection (SO_ERROR).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer refused the connection by RST (ECONNREFUSED).
    Refused,
    /// The peer reset the connection (ECONNRESET).
    Reset,
    /// Written after the peer reset in CLOSE-WAIT (EPIPE).
    BrokenPipe,
    /// Retransmissions, keepalive or user timeout ended it (ETIMEDOUT).
    TimedOut,
    /// An ICMP error ended it or is pending: the errno says which (EHOSTUNREACH, ENETUNREACH, ECONNREFUSED, EMSGSIZE ...).
    Icmp(Errno),
    /// The caller aborted it (ECONNABORTED).
    Aborted,
}

impl SocketError {
    /// The Linux error number.
    pub const fn errno(self) -> Errno {
        match self {
            Self::Refused => Errno::ECONNREFUSED,
            Self::Reset => Errno::ECONNRESET,
            Self::BrokenPipe => Errno::EPIPE,
            Self::TimedOut => Errno::ETIMEDOUT,
            Self::Icmp(errno) => errno,
            Self::Aborted => Errno::ECONNABORTED,
        }
    }
}

/// Why a connection left the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both directions closed in order; this end keeps TIME-WAIT when `true`.
    Done {
        /// The active closer stays in TIME-WAIT.
        time_wait: bool,
    },
    /// Ended by an error.
    Error(SocketError),
    /// A segment of the peer was the reason.
    Peer(DropReason),
}

/// What happened, for the owner of the socket. Level-like: an event that is pending is not queued twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The handshake completed.
    Connected,
    /// Bytes, end of stream or an error can be read.
    Readable,
    /// Room in the send buffer after it was short.
    Writable,
    /// The peer closed its direction.
    PeerClosed,
    /// The connection is over; it may be removed once the application let go.
    Closed(CloseReason),
}
