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

use alloc::sync::Arc;
use core::mem::offset_of;
use core::ops::{Deref, Range};

use linerate_base::{DropReason, Errno, Seq};
use linerate_wire::flow::FlowKey;

use crate::config::{PathInfo, SockOpts, TcpConfig};
use crate::cx::TcpCx;
use crate::minisocks::TwSock;
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
///
/// The order of its fields is their order in memory: among a million connections the lines that a segment touches
/// decide what it costs. The first lines, and those around the border between the halves, are all that a segment needs
/// which brings no data, see [`Conn::HOT`].
#[repr(C)]
pub struct Conn {
    /// Added to the clock in every TSval, so that flows do not show the host's uptime (RFC 7323 section 5.4).
    pub(crate) ts_offset: u32,
    /// Events not yet fetched, one bit per kind: they do not queue.
    pub(crate) events: u16,
    pub(crate) neg: Negotiated,
    /// RFC 9293 section 3.3.2.
    pub(crate) state: State,
    /// Why the connection ended; reported once (SO_ERROR).
    pub(crate) error: Option<SocketError>,
    /// Both addresses and ports, local first.
    pub(crate) key: FlowKey,
    pub(crate) timers: Timers,
    /// What `Event::Closed` says once the connection is over.
    pub(crate) closed: Option<CloseReason>,
    /// One word: most sockets never set one, or have those of their listener.
    pub(crate) opts: Opts,
    pub(crate) path: PathInfo,
    /// Sender half; what an ACK needs is at its end.
    pub(crate) tx: Tx,
    /// Receiver half; what an ACK needs is at its beginning.
    pub(crate) rx: Rx,
}

impl Conn {
    /// The bytes of a connection that a segment without data touches: state, flow and deadlines; the ends of both
    /// halves.
    pub const HOT: [Range<usize>; 2] = {
        let border = offset_of!(Self, rx);
        [0..offset_of!(Self, closed), border - Tx::HOT_BYTES..border + Rx::HOT_BYTES]
    };
}

/// A million idle connections have to fit 1 GiB together with their table and timers.
const _: () = assert!(size_of::<Conn>() <= 704);
const _: () = assert!(Conn::HOT[0].end <= 128 && offset_of!(Conn, tx) + size_of::<Tx>() == offset_of!(Conn, rx));

/// Bits of [`Conn::events`], in the order in which they are reported.
pub(crate) mod ev {
    pub(crate) const CONNECTED: u16 = 1;
    pub(crate) const READABLE: u16 = 2;
    pub(crate) const WRITABLE: u16 = 4;
    pub(crate) const PEER_CLOSED: u16 = 8;
    pub(crate) const CLOSED: u16 = 16;
}

/// Socket options in one word: defaults cost nothing, and others are shared with the listener or the socket that they
/// were inherited from until one of them changes its own. Reads see Linux's defaults.
#[derive(Clone, Debug, Default)]
pub struct Opts(Option<Arc<SockOpts>>);

impl Opts {
    /// Takes over `opts`; a default costs no memory.
    pub fn new(opts: SockOpts) -> Self {
        if opts == *DEFAULT_OPTS { Self(None) } else { Self(Some(Arc::new(opts))) }
    }
    /// The options, to change one; nobody else sees the change.
    pub fn make_mut(&mut self) -> &mut SockOpts {
        Arc::make_mut(self.0.get_or_insert_with(Arc::default))
    }
}

impl From<SockOpts> for Opts {
    fn from(opts: SockOpts) -> Self {
        Self::new(opts)
    }
}

static DEFAULT_OPTS: &SockOpts = &SockOpts::DEFAULT;

impl Deref for Opts {
    type Target = SockOpts;
    fn deref(&self) -> &SockOpts {
        self.0.as_deref().unwrap_or(DEFAULT_OPTS)
    }
}

/// Where a connection's numbers begin: both from one keyed hash of the flow, see [`crate::isn`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Isn {
    /// Initial send sequence number.
    pub iss: Seq,
    /// Added to the timestamp clock.
    pub ts_offset: u32,
}

/// What is left to do after [`Conn::close`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// Nothing, once `poll_xmit` was emptied: the connection may be removed.
    Gone,
    /// The connection lives on without an owner until `Event::Closed`.
    Orphan,
}

/// Which directions a shutdown ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// SHUT_RD.
    Rd,
    /// SHUT_WR.
    Wr,
    /// SHUT_RDWR.
    RdWr,
}

/// Why nothing could be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RecvError {
    /// Nothing is queued (EAGAIN).
    WouldBlock,
    /// There is no connection (ENOTCONN).
    NotConnected,
    /// The connection died; reported once, end of stream afterwards.
    Socket(SocketError),
}

impl RecvError {
    /// The Linux error number.
    pub const fn errno(self) -> Errno {
        match self {
            Self::WouldBlock => Errno::EAGAIN,
            Self::NotConnected => Errno::ENOTCONN,
            Self::Socket(e) => e.errno(),
        }
    }
}

impl core::fmt::Display for RecvError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.errno().describe())
    }
}
impl core::error::Error for RecvError {}

impl Conn {
    /// An active open: the SYN leaves with the next `poll_xmit`.
    ///
    /// `isn` comes from [`crate::isn::IsnKey`] (or from a TIME-WAIT socket that is reused, then with its `ts_recent`
    /// through [`Conn::inherit_timestamp`]).
    pub fn connect(cx: &mut TcpCx<'_>, key: FlowKey, path: PathInfo, opts: impl Into<Opts>, isn: Isn) -> Self {
        Self::connect_with(cx, key, path, opts.into(), isn)
    }

    fn connect_with(cx: &mut TcpCx<'_>, key: FlowKey, path: PathInfo, opts: Opts, isn: Isn) -> Self {
        let mut neg = Negotiated {
            our_mss_bytes: advmss(&path, &opts),
            usec_ts: cx.cfg.usec_timestamps,
            ..Negotiated::default()
        };
        let rx = Rx::for_connect(cx, &path, &opts, &mut neg);
        let mut conn = Self {
            key,
            state: State::Closed,
            neg,
            path,
            tx: Tx::new(cx, isn.iss, &path, &opts),
            opts,
            rx,
            timers: Timers::default(),
            error: None,
            closed: None,
            events: 0,
            ts_offset: isn.ts_offset,
        };
        conn.advance(cx, State::on_connect);
        cx.mib.active_opens += 1;
        conn.queue_syn(cx, false);
        conn
    }

    /// Remembers the last TSval of a former connection between the same ends, so that its late segments fail PAWS.
    pub fn inherit_timestamp(&mut self, ts_recent: u32, stamp_s: u32) {
        self.rx.ts_recent = ts_recent;
        self.rx.ts_recent_stamp_s = stamp_s.wrapping_add(1).max(1);
    }

    /// Both ends, local first.
    pub fn key(&self) -> &FlowKey {
        &self.key
    }
    /// Where the connection stands.
    pub fn state(&self) -> State {
        self.state
    }
    /// What the handshake agreed.
    pub fn negotiated(&self) -> &Negotiated {
        &self.neg
    }
    /// The path's facts as this connection knows them.
    pub fn path(&self) -> &PathInfo {
        &self.path
    }
    /// The options as set.
    pub fn opts(&self) -> &SockOpts {
        &self.opts
    }
    /// The options as set, to be shared.
    pub fn shared_opts(&self) -> &Opts {
        &self.opts
    }
    /// The application closed the socket and the connection lives on without an owner.
    pub fn is_orphan(&self) -> bool {
        self.rx.shut.dead
    }
    /// An error is pending: a read, a write or [`Conn::take_error`] reports it.
    pub fn has_error(&self) -> bool {
        self.error.is_some()
    }
    /// The pending error, which stays pending.
    pub fn error(&self) -> Option<SocketError> {
        self.error
    }
    /// SO_ERROR: the pending error, once.
    pub fn take_error(&mut self) -> Option<SocketError> {
        self.error.take()
    }
    /// True once after a call of [`Conn::rcv`] whose segment must be answered by the reset that
    /// [`crate::minisocks::reset_for`] makes from the same header.
    pub fn take_reset_reply(&mut self) -> bool {
        core::mem::take(&mut self.rx.shut.reply_rst)
    }

    /// The next event. They are level-like: at most one of each kind is pending.
    pub fn poll_event(&mut self) -> Option<Event> {
        let bit = self.events & self.events.wrapping_neg();
        self.events &= !bit;
        match bit {
            ev::CONNECTED => Some(Event::Connected),
            ev::READABLE => Some(Event::Readable),
            ev::WRITABLE => Some(Event::Writable),
            ev::PEER_CLOSED => Some(Event::PeerClosed),
            ev::CLOSED => Some(Event::Closed(self.closed.unwrap_or(CloseReason::Done { time_wait: false }))),
            _ => None,
        }
    }

    /// Something waits to be fetched by [`Self::poll_event`].
    #[inline]
    pub fn has_events(&self) -> bool {
        self.events != 0
    }
    /// Fetches `Event::Readable`, if that is all that waits.
    #[inline]
    pub fn take_readable(&mut self) -> bool {
        let only = self.events == ev::READABLE;
        if only {
            self.events = 0;
        }
        only
    }

    /// `Event::Closed` waits to be fetched.
    pub fn is_over(&self) -> bool {
        self.events & ev::CLOSED != 0
    }

    /// Queues events (bits of [`ev`]); an orphan has nobody to tell but the stack.
    pub(crate) fn notify(&mut self, bits: u16) {
        self.events |= if self.rx.shut.dead { bits & ev::CLOSED } else { bits };
    }

    /// The minisock that takes this connection's place in the table after `Closed(Done { time_wait: true })`.
    pub fn time_wait_sock(&self, cx: &TcpCx<'_>) -> TwSock {
        TwSock::from_conn(self, cx)
    }

    /// The clock of this connection's TSval: milliseconds, or microseconds where the route says so, plus the flow's
    /// random offset.
    pub(crate) fn tsval(&self, now: linerate_base::Instant) -> u32 {
        ts_clock(now, self.neg.usec_ts).wrapping_add(self.ts_offset)
    }
}

/// The timestamp clock before the offset (SYSTEMS B33).
pub(crate) fn ts_clock(now: linerate_base::Instant, usec: bool) -> u32 {
    if usec { now.as_micros() as u32 } else { now.as_millis() as u32 }
}

/// The MSS that is announced: the route's, or what the MTU leaves, and never more than the user allows (TCP_MAXSEG).
pub(crate) fn advmss(path: &PathInfo, opts: &SockOpts) -> u16 {
    let headers = u32::from(path.ip_header_bytes) + 20;
    let mss = match path.advmss_bytes {
        0 => path.mtu_bytes.saturating_sub(headers).clamp(1, 65_535) as u16,
        route => route,
    };
    match opts.user_mss_bytes {
        0 => mss,
        user => mss.min(user),
    }
}

/// Bytes of header options that every data segment carries.
pub(crate) fn ts_option_bytes(neg: &Negotiated) -> u32 {
    if neg.ts { 12 } else { 0 }
}

/// Seconds of a configured or set value, whichever is set.
pub(crate) fn or_config(set: u32, config: u32) -> u32 {
    if set == 0 { config } else { set }
}

/// Bounds of the receive buffer: what the socket asked for, else the config's default.
pub(crate) fn initial_rcvbuf(cfg: &TcpConfig, opts: &SockOpts) -> u32 {
    or_config(opts.rcvbuf_bytes, cfg.rmem_bytes[1])
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
