//! Descriptors and the files behind them.
//!
//! A descriptor is a small number that names a file; several may name the same one (`F_DUPFD`), and a call that sleeps
//! holds its file as well, so that `close` by another thread does not pull it away (as in Linux, where the sleeping call
//! goes on). A file ends when nobody names or holds it. Numbers are the lowest free ones, from 3 on: 0 to 2 are left to
//! the process. Invariants: `refs` = descriptors + holding calls; a key of a file that ended finds nothing.

use linerate_base::{Errno, Key, Slab};

use crate::abi::{FD_CLOEXEC, O_NONBLOCK, O_RDWR};
use crate::epoll::Epoll;
use crate::pipe::PipeEnd;
use crate::sock::Sock;

/// Most descriptors (RLIMIT_NOFILE of a usual system).
const MAX_FDS: usize = 1 << 20;
/// The lowest number given out.
const FIRST_FD: usize = 3;

/// What a descriptor stands for.
pub(crate) enum Kind {
    Sock(Box<Sock>),
    Epoll(Epoll),
    Pipe(PipeEnd),
}

/// An open file description.
pub(crate) struct File {
    pub(crate) kind: Kind,
    /// Status flags of F_GETFL besides the access mode.
    pub(crate) status: i32,
    /// Access mode of F_GETFL.
    pub(crate) access: i32,
    /// Descriptors and sleeping calls.
    pub(crate) refs: u32,
    /// Epoll instances that watch it.
    pub(crate) watchers: Vec<Key>,
}

impl File {
    pub(crate) fn new(kind: Kind, nonblock: bool) -> Self {
        let status = if nonblock { O_NONBLOCK } else { 0 };
        Self { kind, status, access: O_RDWR, refs: 0, watchers: Vec::new() }
    }
    pub(crate) fn nonblock(&self) -> bool {
        self.status & O_NONBLOCK != 0
    }
    pub(crate) fn set_nonblock(&mut self, on: bool) {
        self.status = if on { self.status | O_NONBLOCK } else { self.status & !O_NONBLOCK };
    }
}

#[derive(Clone, Copy)]
struct Fd {
    file: Key,
    flags: i32,
}

/// The descriptor table.
#[derive(Default)]
pub(crate) struct Files {
    fds: Vec<Option<Fd>>,
    files: Slab<File>,
}

impl Files {
    /// A new file behind the lowest free descriptor.
    pub(crate) fn open(&mut self, file: File, cloexec: bool) -> Result<i32, Errno> {
        let key = self.files.insert(file);
        self.install(key, 0, cloexec).inspect_err(|_| {
            self.files.remove(key);
        })
    }
    /// Another descriptor, `least` or above, for a file.
    pub(crate) fn install(&mut self, key: Key, least: usize, cloexec: bool) -> Result<i32, Errno> {
        let mut at = least.max(FIRST_FD);
        while self.fds.get(at).is_some_and(Option::is_some) {
            at += 1;
        }
        if at >= MAX_FDS {
            return Err(Errno::EMFILE);
        }
        if at >= self.fds.len() {
            self.fds.resize(at + 1, None);
        }
        let flags = if cloexec { FD_CLOEXEC } else { 0 };
        if let Some(slot) = self.fds.get_mut(at) {
            *slot = Some(Fd { file: key, flags });
        }
        self.hold(key);
        Ok(at as i32)
    }
    fn slot(&self, fd: i32) -> Result<Fd, Errno> {
        usize::try_from(fd).ok().and_then(|fd| self.fds.get(fd).copied().flatten()).ok_or(Errno::EBADF)
    }
    /// The file of a descriptor.
    pub(crate) fn key(&self, fd: i32) -> Result<Key, Errno> {
        self.slot(fd).map(|s| s.file)
    }
    /// FD_CLOEXEC.
    pub(crate) fn fd_flags(&self, fd: i32) -> Result<i32, Errno> {
        self.slot(fd).map(|s| s.flags)
    }
    pub(crate) fn set_fd_flags(&mut self, fd: i32, flags: i32) -> Result<(), Errno> {
        self.slot(fd)?;
        if let Some(Some(slot)) = self.fds.get_mut(fd as usize) {
            slot.flags = flags & FD_CLOEXEC;
        }
        Ok(())
    }
    /// Takes a descriptor away; its file stays referenced once more, for the caller to [`Self::release`].
    pub(crate) fn take(&mut self, fd: i32) -> Result<Key, Errno> {
        let key = self.key(fd)?;
        if let Some(slot) = self.fds.get_mut(fd as usize) {
            *slot = None;
        }
        Ok(key)
    }
    pub(crate) fn get(&self, key: Key) -> Option<&File> {
        self.files.get(key)
    }
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut File> {
        self.files.get_mut(key)
    }
    /// One more user.
    pub(crate) fn hold(&mut self, key: Key) {
        if let Some(f) = self.files.get_mut(key) {
            f.refs += 1;
        }
    }
    /// One user less; gives the file when that was the last.
    pub(crate) fn release(&mut self, key: Key) -> Option<File> {
        let f = self.files.get_mut(key)?;
        f.refs = f.refs.saturating_sub(1);
        if f.refs == 0 { self.files.remove(key) } else { None }
    }
    /// Users of a file.
    pub(crate) fn refs(&self, key: Key) -> u32 {
        self.files.get(key).map_or(0, |f| f.refs)
    }
    /// The socket behind a descriptor.
    pub(crate) fn sock(&self, fd: i32) -> Result<(Key, &Sock), Errno> {
        let key = self.key(fd)?;
        self.sock_at(key).map(|s| (key, s)).ok_or(Errno::ENOTSOCK)
    }
    pub(crate) fn sock_at(&self, key: Key) -> Option<&Sock> {
        match &self.files.get(key)?.kind {
            Kind::Sock(s) => Some(s),
            _ => None,
        }
    }
    pub(crate) fn sock_at_mut(&mut self, key: Key) -> Option<&mut Sock> {
        match &mut self.files.get_mut(key)?.kind {
            Kind::Sock(s) => Some(s),
            _ => None,
        }
    }
    pub(crate) fn epoll_at_mut(&mut self, key: Key) -> Option<&mut Epoll> {
        match &mut self.files.get_mut(key)?.kind {
            Kind::Epoll(e) => Some(e),
            _ => None,
        }
    }
    /// All open descriptors, lowest first.
    pub(crate) fn open_fds(&self) -> impl Iterator<Item = i32> {
        self.fds.iter().enumerate().filter(|(_, slot)| slot.is_some()).map(|(fd, _)| fd as i32)
    }
}
