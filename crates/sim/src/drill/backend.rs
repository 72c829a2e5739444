//! What the runner needs of a stack: a virtual clock, an IP wire, system calls.
//!
//! The runner owns the script and all mapping between script and live values; a [`Backend`] owns one stack in one variant
//! and knows nothing of scripts. Time moves only through [`Backend::advance`]: between two calls of it the clock stands,
//! so a call, a packet and what the stack answers at once all carry one instant. Invariants a backend must keep: packets
//! come out in the order and with the time they left; outputs' times never exceed `now`; a blocked call's effects are
//! applied before `syscall` returns; descriptors are unique while open. Limits: one blocked call at a time.

use std::net::SocketAddr;

use linerate_base::Instant;

/// A stack under test.
pub trait Backend {
    /// The virtual clock; zero when the backend is made.
    fn now(&self) -> Instant;
    /// The next instant at which the stack may act by itself; `None` = it never will. May be in the past or present:
    /// then `advance(now)` runs it.
    fn next_timer(&self) -> Option<Instant>;
    /// Moves the clock to `until` (never backwards) and fires the stack's timers on the way, each at its own instant.
    fn advance(&mut self, until: Instant);
    /// One IP packet of up to 64 KB arrives now. It may exceed the MTU: then it is a super-packet, whose `gso_size` is the
    /// variant's `mss` if that was given. The stack processes it before this returns.
    fn inject(&mut self, packet: &[u8]);
    /// The next packet that left the stack (super-packets uncut, checksums complete), with the time at which it left.
    fn next_output(&mut self) -> Option<(Instant, Vec<u8>)>;
    /// Starts a system call now.
    fn syscall(&mut self, call: &Call) -> CallState;
    /// Whether a blocked call has finished since; each completion is reported once.
    fn poll_blocked(&mut self, token: BlockToken) -> Option<Completion>;
    /// Does what a shell line would do to a host: sysctls, routes, queueing disciplines. An error fails the script.
    fn shell(&mut self, op: &ShellOp) -> Result<(), String>;
}

/// Names a blocked call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockToken(pub u64);

/// How a system call went so far.
#[derive(Clone, Debug, PartialEq)]
pub enum CallState {
    /// It returned.
    Done(Outcome),
    /// It sleeps; ask [`Backend::poll_blocked`].
    Blocked(BlockToken),
}

/// A blocked call that returned.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// When it returned.
    pub at: Instant,
    /// With what.
    pub outcome: Outcome,
}

/// Result of a system call.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The return value; -1 on error.
    pub ret: i64,
    /// Linux's error number if `ret` is -1, else 0.
    pub errno: i32,
    /// What the call wrote to the caller's memory.
    pub out: Output,
}

impl Outcome {
    /// Success without outputs.
    pub fn ok(ret: i64) -> Self {
        Self { ret, errno: 0, out: Output::None }
    }
    /// Success with outputs.
    pub fn with(ret: i64, out: Output) -> Self {
        Self { ret, errno: 0, out }
    }
    /// Failure with a Linux error number.
    pub fn err(errno: i32) -> Self {
        Self { ret: -1, errno, out: Output::None }
    }
}

/// What a call wrote to the caller's memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Nothing, or data that no script looks at.
    None,
    /// accept, recvfrom: the peer's address.
    Addr(SocketAddr),
    /// getsockopt: the value, as long as the returned option length.
    Bytes(Vec<u8>),
    /// ioctl: the integer.
    Int(i32),
    /// poll: `revents` of each entry.
    Revents(Vec<i16>),
    /// epoll_wait: the events.
    Events(Vec<EpollEvent>),
    /// recvmsg: `msg_flags`, source address, control messages.
    Msg {
        /// `msg_flags` as returned.
        flags: i32,
        /// Source address, if one was asked for and the socket gives one.
        addr: Option<SocketAddr>,
        /// Control messages in order.
        control: Vec<Cmsg>,
    },
    /// pipe: read end, write end.
    Pipe(i32, i32),
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cmsg {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    /// The data, in the machine's byte order, without padding.
    pub data: Vec<u8>,
}

/// An epoll event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// EPOLLIN and the like.
    pub events: u32,
    /// The caller's own 64 bits.
    pub data: u64,
}

/// One entry of poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollFd {
    /// Live descriptor.
    pub fd: i32,
    /// POLLIN and the like.
    pub events: i16,
}

/// A caller's buffer: its content is zeros or does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buf {
    /// The pointer is NULL: touching it is EFAULT.
    pub null: bool,
    /// Bytes the caller says it has.
    pub len: usize,
}

/// A socket address argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addr {
    /// NULL pointer.
    Null,
    /// AF_UNSPEC: disconnects.
    Unspec,
    /// AF_INET or AF_INET6 (v4-mapped in the mapped variant).
    Inet(SocketAddr),
}

/// A system call with resolved arguments; descriptors are live ones.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields are named as in the manual pages of the calls")]
pub enum Call {
    Socket {
        domain: i32,
        kind: i32,
        protocol: i32,
    },
    Bind {
        fd: i32,
        addr: Addr,
    },
    Listen {
        fd: i32,
        backlog: i32,
    },
    Accept {
        fd: i32,
    },
    Connect {
        fd: i32,
        addr: Addr,
    },
    Read {
        fd: i32,
        buf: Buf,
    },
    Readv {
        fd: i32,
        iov: Vec<Buf>,
    },
    Recv {
        fd: i32,
        buf: Buf,
        flags: i32,
    },
    RecvFrom {
        fd: i32,
        buf: Buf,
        flags: i32,
    },
    /// `control_len` bytes are offered for control messages.
    RecvMsg {
        fd: i32,
        iov: Vec<Buf>,
        flags: i32,
        control_len: usize,
    },
    Write {
        fd: i32,
        buf: Buf,
    },
    Writev {
        fd: i32,
        iov: Vec<Buf>,
    },
    Send {
        fd: i32,
        buf: Buf,
        flags: i32,
    },
    SendTo {
        fd: i32,
        buf: Buf,
        flags: i32,
        addr: Addr,
    },
    SendMsg {
        fd: i32,
        iov: Vec<Buf>,
        flags: i32,
        addr: Addr,
        control: Vec<Cmsg>,
    },
    Fcntl {
        fd: i32,
        cmd: i32,
        arg: i64,
    },
    /// `null`: the third argument is a NULL pointer.
    Ioctl {
        fd: i32,
        request: u64,
        value: i32,
        null: bool,
    },
    Close {
        fd: i32,
    },
    Shutdown {
        fd: i32,
        how: i32,
    },
    /// `null`: the value pointer is NULL. `len` is what the caller says it has room for.
    GetSockOpt {
        fd: i32,
        level: i32,
        name: i32,
        null: bool,
        len: i32,
    },
    /// `value` is `None` for a NULL pointer.
    SetSockOpt {
        fd: i32,
        level: i32,
        name: i32,
        value: Option<Vec<u8>>,
        len: i32,
    },
    /// `timeout_ms` < 0 waits for ever.
    Poll {
        fds: Vec<PollFd>,
        timeout_ms: i32,
    },
    EpollCreate {
        size: i32,
    },
    EpollCtl {
        epfd: i32,
        op: i32,
        fd: i32,
        event: Option<EpollEvent>,
    },
    EpollWait {
        epfd: i32,
        max_events: i32,
        timeout_ms: i32,
    },
    Pipe,
}

/// What a shell line asks of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShellOp {
    /// `defaults.sh`: the sysctls of the `linux` profile (CONFORMANCE section 1).
    Defaults,
    /// One sysctl, dotted: `net.ipv4.tcp_sack` = `0`.
    Sysctl {
        /// Dotted name.
        name: String,
        /// Value as text, blanks as in the file.
        value: String,
    },
    /// Undo all `Sysctl` since the start: back to the profile.
    RestoreSysctls,
    /// `ip ARGS...`: routes, links, metrics.
    Ip(Vec<String>),
    /// `tc ARGS...`.
    Tc(Vec<String>),
    /// Anything else, word by word.
    Other(Vec<String>),
}
