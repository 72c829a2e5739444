//! The process: its descriptors, its sleeping calls, and the shard that all of it stands on.
//!
//! ```text
//!   call ─▶ Work ─▶ step ─┬─▶ Some(outcome)                     returned
//!                         └─▶ None: sleep ─▶ Token, deadline    poll: step again, until it returns or its time is over
//! ```
//! Each call is turned into a `Work`, which `step` carries on as far as it goes without sleeping. A call that must not
//! sleep (O_NONBLOCK, MSG_DONTWAIT, a timeout of 0) is stepped once with `may_sleep` off, and a call whose time is over as
//! well: so "what to answer instead of sleeping" is said in one place per call. The owner of the shard turns it between
//! calls; `wake` then hands the shard's events to epoll instances. Nothing here looks at a clock.

use std::collections::{BTreeMap, HashMap};

use linerate_base::{Duration, Errno, Instant, Key};
use linerate_stack::{Shard, SockId};

use crate::call::{Call, CallState, Outcome, Reply, Token};
use crate::fd::{File, Files, Kind};
use crate::ops::Work;

/// System-wide limits of socket buffers and queues (`net.core.*`), with the defaults of Linux 6.18.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// `net.core.rmem_max`, bytes: bound of SO_RCVBUF before doubling.
    pub rmem_max_bytes: u32,
    /// `net.core.wmem_max`, bytes: bound of SO_SNDBUF before doubling.
    pub wmem_max_bytes: u32,
    /// `net.core.somaxconn`: bound of a backlog.
    pub somaxconn: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rmem_max_bytes: 4 << 20, wmem_max_bytes: 4 << 20, somaxconn: 4096 }
    }
}

struct Sleeper {
    work: Work,
    deadline: Option<Instant>,
}

/// A process on a shard.
pub struct Posix {
    pub(crate) shard: Shard,
    pub(crate) files: Files,
    pub(crate) by_sock: HashMap<SockId, Key>,
    pub(crate) limits: Limits,
    sleepers: BTreeMap<u64, Sleeper>,
    next_token: u64,
}

impl Posix {
    /// A process without descriptors.
    pub fn new(shard: Shard) -> Self {
        Self {
            shard,
            files: Files::default(),
            by_sock: HashMap::new(),
            limits: Limits::default(),
            sleepers: BTreeMap::new(),
            next_token: 1,
        }
    }
    /// The shard, to turn it and to configure it.
    pub fn shard_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }
    /// The shard.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }
    /// System-wide limits; a change concerns later calls.
    pub fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// Makes a call at `now`.
    pub fn call(&mut self, now: Instant, call: Call) -> CallState {
        self.wake();
        let (work, timeout) = match self.start(call) {
            Ok(Start::Done(reply)) => return CallState::Done(Ok(reply)),
            Ok(Start::Work(work, timeout)) => (work, timeout),
            Err(errno) => return CallState::Done(Err(errno)),
        };
        let mut work = work;
        if let Some(outcome) = self.step(&mut work, timeout != Some(Duration::ZERO)) {
            self.finish(work);
            return CallState::Done(outcome);
        }
        let token = self.next_token;
        self.next_token += 1;
        self.sleepers.insert(token, Sleeper { work, deadline: timeout.map(|t| now + t) });
        CallState::Blocked(Token(token))
    }

    /// Goes on with a call that sleeps. `None`: it still does. A token is used up by its outcome.
    pub fn poll(&mut self, now: Instant, token: Token) -> Option<Outcome> {
        self.wake();
        let mut sleeper = self.sleepers.remove(&token.0)?;
        let may_sleep = sleeper.deadline.is_none_or(|at| now < at);
        match self.step(&mut sleeper.work, may_sleep) {
            Some(outcome) => {
                self.finish(sleeper.work);
                Some(outcome)
            }
            None => {
                self.sleepers.insert(token.0, sleeper);
                None
            }
        }
    }

    /// When the first sleeping call's time is over.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.sleepers.values().filter_map(|s| s.deadline).min()
    }
    /// Calls that sleep.
    pub fn sleeping(&self) -> impl Iterator<Item = Token> + '_ {
        self.sleepers.keys().map(|&t| Token(t))
    }
    /// Closes every descriptor, as the end of a process does. Sleeping calls are dropped.
    pub fn exit(&mut self) {
        for (_, sleeper) in std::mem::take(&mut self.sleepers) {
            self.finish(sleeper.work);
        }
        for fd in self.files.open_fds().collect::<Vec<_>>() {
            if let Ok(key) = self.files.take(fd) {
                self.release(key);
            }
        }
    }

    /// Lets go of what a call held.
    fn finish(&mut self, work: Work) {
        for key in work.holds() {
            self.release(key);
        }
    }

    /// One user of a file less; the last one ends it.
    pub(crate) fn release(&mut self, key: Key) {
        if let Some(file) = self.files.release(key) {
            self.end_file(key, file);
        }
    }

    fn end_file(&mut self, key: Key, file: File) {
        for watcher in &file.watchers {
            if let Some(epoll) = self.files.epoll_at_mut(*watcher) {
                epoll.forget(key);
            }
        }
        match file.kind {
            Kind::Sock(sock) => self.end_sock(&sock),
            Kind::Epoll(epoll) => {
                for watched in epoll.files() {
                    if let Some(f) = self.files.get_mut(watched) {
                        f.watchers.retain(|w| *w != key);
                    }
                }
            }
            Kind::Pipe(_) => {}
        }
    }
}

/// How a call begins.
pub(crate) enum Start {
    /// It returned at once.
    Done(Reply),
    /// It may sleep, at most this long; zero = not at all.
    Work(Work, Option<Duration>),
}

impl Posix {
    fn start(&mut self, call: Call) -> Result<Start, Errno> {
        let done = |ret: Result<i64, Errno>| ret.map(|r| Start::Done(Reply::ret(r)));
        match call {
            Call::Socket { domain, kind, protocol } => done(self.socket(domain, kind, protocol)),
            Call::Bind { fd, addr } => done(self.bind(fd, addr)),
            Call::Listen { fd, backlog } => done(self.listen(fd, backlog)),
            Call::Shutdown { fd, how } => done(self.shutdown(fd, how)),
            Call::Fcntl { fd, cmd, arg } => done(self.fcntl(fd, cmd, arg)),
            Call::SetSockOpt { fd, level, name, value, len } => {
                done(self.setsockopt(fd, level, name, value.as_deref(), len))
            }
            Call::GetSockOpt { fd, level, name, null, len } => {
                self.getsockopt(fd, level, name, null, len).map(Start::Done)
            }
            Call::Ioctl { fd, request, value, null } => self.ioctl(fd, request, value, null).map(Start::Done),
            Call::GetSockName { fd } => self.sock_name(fd, false).map(Start::Done),
            Call::GetPeerName { fd } => self.sock_name(fd, true).map(Start::Done),
            Call::EpollCreate { size } => done(self.epoll_create(size)),
            Call::EpollCtl { epfd, op, fd, event } => done(self.epoll_ctl(epfd, op, fd, event)),
            Call::Pipe { flags } => self.pipe(flags).map(Start::Done),
            Call::Accept { fd, flags } => self.start_accept(fd, flags),
            Call::Connect { fd, addr } => self.start_connect(fd, addr),
            Call::Recv { fd, iov, flags, kind } => self.start_recv(fd, iov, flags, kind),
            Call::Send { fd, iov, flags, addr, control } => self.start_send(fd, iov, flags, addr, &control),
            Call::Close { fd } => self.start_close(fd),
            Call::Poll { fds, timeout_ms } => self.start_poll(fds, timeout_ms),
            Call::EpollWait { epfd, max_events, timeout_ms } => self.start_epoll_wait(epfd, max_events, timeout_ms),
        }
    }
}
