//! Calls that may sleep, as state that can be carried on.
//!
//! A [`Work`] holds the files that it is about (a reference each), so a descriptor that is closed meanwhile does not
//! matter to it, as in Linux. `step` does as much as can be done now. With `may_sleep` off it always has an outcome: what
//! was achieved so far, or the errno that stands for "would have slept". Timeouts come from the socket (SO_RCVTIMEO,
//! SO_SNDTIMEO) or from the call; [`timeout_of`] maps O_NONBLOCK and MSG_DONTWAIT to zero.

use linerate_base::{Duration, Errno, Key};

use crate::abi::MSG_DONTWAIT;
use crate::call::{Outcome, PollFd};
use crate::posix::Posix;
use crate::recv::Recv;
use crate::send::Send;

/// A call that may sleep.
pub(crate) enum Work {
    Accept {
        file: Key,
        flags: i32,
    },
    Connect {
        file: Key,
        errno: Errno,
    },
    Recv(Recv),
    Send(Send),
    /// A lingering close: the descriptor is gone already.
    Linger {
        file: Key,
    },
    Poll {
        fds: Vec<(PollFd, Option<Key>)>,
    },
    EpollWait {
        file: Key,
        max: usize,
    },
}

impl Work {
    /// The files that the call holds a reference of.
    pub(crate) fn holds(&self) -> Vec<Key> {
        match self {
            Self::Accept { file, .. } | Self::Connect { file, .. } => vec![*file],
            Self::Linger { file } | Self::EpollWait { file, .. } => vec![*file],
            Self::Recv(r) => vec![r.file],
            Self::Send(s) => vec![s.file],
            Self::Poll { fds } => fds.iter().filter_map(|(_, key)| *key).collect(),
        }
    }
}

/// How long a call on a file may sleep.
pub(crate) fn timeout_of(nonblock: bool, flags: i32, socket: Option<Duration>) -> Option<Duration> {
    if nonblock || flags & MSG_DONTWAIT != 0 { Some(Duration::ZERO) } else { socket }
}

/// A timeout in milliseconds as `poll` and `epoll_wait` take it: negative is for ever.
pub(crate) fn timeout_ms(ms: i32) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

impl Posix {
    /// Carries a call on. `None`: it sleeps.
    pub(crate) fn step(&mut self, work: &mut Work, may_sleep: bool) -> Option<Outcome> {
        match work {
            Work::Accept { file, flags } => self.step_accept(*file, *flags, may_sleep),
            Work::Connect { file, errno } => self.step_connect(*file, *errno, may_sleep),
            Work::Recv(r) => self.step_recv(r, may_sleep),
            Work::Send(s) => self.step_send(s, may_sleep),
            Work::Linger { file } => self.step_linger(*file, may_sleep),
            Work::Poll { fds } => self.step_poll(fds, may_sleep),
            Work::EpollWait { file, max } => self.step_epoll_wait(*file, *max, may_sleep),
        }
    }
}
