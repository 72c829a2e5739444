//! System calls as values: what is asked, and what comes back.
//!
//! Pointers of the C interface become owned values: a buffer to be read is [`Data`], a buffer to be filled is a [`Span`] of
//! which only length and NULL-ness matter (what was received comes back in the [`Reply`]). A NULL pointer is a value too,
//! so that EFAULT is answered exactly where Linux does. A call that sleeps comes back as a [`Token`]; its effects so far
//! are applied, and [`crate::Posix::poll`] goes on with it. Sizes are bytes.

use std::net::SocketAddr;

use linerate_base::Errno;

/// A buffer whose bytes are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// These bytes.
    Bytes(Vec<u8>),
    /// As many zero bytes.
    Zeros(usize),
    /// A NULL pointer with a length.
    Null(usize),
}

impl Data {
    /// The length that the caller gave.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(b) => b.len(),
            Self::Zeros(n) | Self::Null(n) => *n,
        }
    }
    /// A length of 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A buffer to be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The pointer is NULL.
    pub null: bool,
    /// Room.
    pub len: usize,
}

/// A socket address argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addr {
    /// NULL.
    Null,
    /// AF_UNSPEC.
    Unspec,
    /// AF_INET or AF_INET6.
    Inet(SocketAddr),
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cmsg {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    /// Contents without header and padding.
    pub data: Vec<u8>,
}

/// One entry of `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollFd {
    /// Descriptor; negative ones are skipped.
    pub fd: i32,
    /// Events asked for.
    pub events: i16,
}

/// `struct epoll_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// EPOLLIN and the like.
    pub events: u32,
    /// The caller's own 64 bits.
    pub data: u64,
}

/// Which of the receiving calls it is: they differ in what they give back and in how they treat a length of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvKind {
    /// `read`, `readv`.
    Read,
    /// `recv`, `recvfrom`.
    Recv,
    /// `recvmsg` with this much room for control messages.
    Msg {
        /// Bytes of `msg_control`.
        control_len: usize,
    },
}

/// A system call.
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
        flags: i32,
    },
    Connect {
        fd: i32,
        addr: Addr,
    },
    Recv {
        fd: i32,
        iov: Vec<Span>,
        flags: i32,
        kind: RecvKind,
    },
    /// `addr` is `None` for calls that have no address.
    Send {
        fd: i32,
        iov: Vec<Data>,
        flags: i32,
        addr: Option<Addr>,
        control: Vec<Cmsg>,
    },
    Fcntl {
        fd: i32,
        cmd: i32,
        arg: i64,
    },
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
    GetSockName {
        fd: i32,
    },
    GetPeerName {
        fd: i32,
    },
    GetSockOpt {
        fd: i32,
        level: i32,
        name: i32,
        null: bool,
        len: i32,
    },
    SetSockOpt {
        fd: i32,
        level: i32,
        name: i32,
        value: Option<Vec<u8>>,
        len: i32,
    },
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
    Pipe {
        flags: i32,
    },
}

/// What a call wrote to the caller's memory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Out {
    /// Nothing.
    #[default]
    None,
    /// An address.
    Addr(SocketAddr),
    /// An option's value, as long as the returned length.
    Bytes(Vec<u8>),
    /// The integer of an `ioctl`.
    Int(i32),
    /// `revents` of each entry.
    Revents(Vec<i16>),
    /// Events of `epoll_wait`.
    Events(Vec<EpollEvent>),
    /// Received bytes (empty when they were discarded), and what belongs to them.
    Msg(Received),
    /// Read end and write end.
    Pipe(i32, i32),
}

/// What a receiving call gives back.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Received {
    /// The bytes, in the order of the buffers.
    pub data: Vec<u8>,
    /// `msg_flags`.
    pub flags: i32,
    /// Who sent it, where the protocol says so.
    pub addr: Option<SocketAddr>,
    /// Control messages.
    pub control: Vec<Cmsg>,
}

/// A call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Reply {
    /// The return value.
    pub ret: i64,
    /// What was written to the caller's memory.
    pub out: Out,
}

impl Reply {
    /// A return value alone.
    pub fn ret(ret: i64) -> Self {
        Self { ret, out: Out::None }
    }
    /// A return value and an output.
    pub fn with(ret: i64, out: Out) -> Self {
        Self { ret, out }
    }
}

/// How a call ended.
pub type Outcome = Result<Reply, Errno>;

/// Names a call that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// How a call went so far.
#[derive(Clone, Debug, PartialEq)]
pub enum CallState {
    /// It returned.
    Done(Outcome),
    /// It sleeps.
    Blocked(Token),
}
