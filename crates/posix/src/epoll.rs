//! epoll: interest list, ready list, level and edge triggering, EPOLLONESHOT, EPOLLEXCLUSIVE, nested instances.
//!
//! As in Linux an entry stands in the ready list after a wake-up that concerns it; `epoll_wait` walks the list, asks each
//! entry's file what it is ready for *now*, drops those that are not ready, reports the others, and puts a level-triggered
//! entry back at the end. So edge triggering is "report once per wake-up", and order is fair. An entry is named by file and
//! descriptor; it ends with its file. Sockets wake for writing only after they were short of room, so entries that were
//! seen not writable are looked at again by each wait (`await_out`), whoever filled the buffer.
//! Limits: EPOLLWAKEUP has no meaning without a system that suspends and is dropped.

use std::collections::VecDeque;

use linerate_base::{Errno, Key};

use crate::abi::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, EPOLLWAKEUP, POLLERR, POLLHUP,
    POLLIN, POLLOUT,
};
use crate::call::{EpollEvent, Out, Outcome, Reply};
use crate::fd::{File, Kind};
use crate::ops::{Work, timeout_ms};
use crate::poll::MAX_NESTING;
use crate::posix::{Posix, Start};

/// Bits that say how, not what.
const PRIVATE: u32 = EPOLLWAKEUP | EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE;
/// Bits that may stand beside EPOLLEXCLUSIVE.
const EXCLUSIVE_OK: u32 = POLLIN | POLLOUT | POLLERR | POLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
/// Most events of one wait (EP_MAX_EVENTS).
const MAX_EVENTS: i32 = i32::MAX / 12;

#[derive(Clone)]
struct Item {
    fd: i32,
    file: Key,
    events: u32,
    data: u64,
    queued: bool,
    /// Seen not writable while asked for writing.
    await_out: bool,
}

/// An epoll instance.
#[derive(Default)]
pub(crate) struct Epoll {
    items: Vec<Item>,
    /// Descriptors of queued items with their files, in order.
    ready: VecDeque<(i32, Key)>,
}

impl Epoll {
    fn at(&self, fd: i32, file: Key) -> Option<usize> {
        self.items.iter().position(|i| i.fd == fd && i.file == file)
    }
    fn queue(&mut self, at: usize) {
        if let Some(item) = self.items.get_mut(at)
            && !item.queued
        {
            item.queued = true;
            self.ready.push_back((item.fd, item.file));
        }
    }
    /// A wake-up of `file` for `key`; true when some entry of this instance became ready by it.
    pub(crate) fn wake(&mut self, file: Key, key: u32) -> bool {
        let mut any = false;
        for at in 0..self.items.len() {
            let Some(item) = self.items.get(at).filter(|i| i.file == file) else { continue };
            if item.events & !PRIVATE & key != 0 {
                self.queue(at);
                any = true;
            }
        }
        any
    }
    /// All entries of a file that ended are gone.
    pub(crate) fn forget(&mut self, file: Key) {
        self.items.retain(|i| i.file != file);
        self.ready.retain(|(_, f)| *f != file);
    }
    /// Files watched.
    pub(crate) fn files(&self) -> Vec<Key> {
        self.items.iter().map(|i| i.file).collect()
    }
    /// Files and what they are watched for, private bits taken away.
    pub(crate) fn items(&self) -> impl Iterator<Item = (Key, u32)> {
        self.items.iter().map(|i| (i.file, i.events & !PRIVATE))
    }
}

impl Posix {
    pub(crate) fn epoll_create(&mut self, size: i32) -> Result<i64, Errno> {
        if size <= 0 {
            return Err(Errno::EINVAL);
        }
        self.files.open(File::new(Kind::Epoll(Epoll::default()), false), false).map(i64::from)
    }

    pub(crate) fn epoll_ctl(&mut self, epfd: i32, op: i32, fd: i32, event: Option<EpollEvent>) -> Result<i64, Errno> {
        if op != EPOLL_CTL_DEL && event.is_none() {
            return Err(Errno::EFAULT);
        }
        let (ep, file) = (self.files.key(epfd)?, self.files.key(fd)?);
        let mut event = event.unwrap_or(EpollEvent { events: 0, data: 0 });
        event.events &= !EPOLLWAKEUP;
        let is_epoll = |key: Key| matches!(self.files.get(key).map(|f| &f.kind), Some(Kind::Epoll(_)));
        if ep == file || !is_epoll(ep) {
            return Err(Errno::EINVAL);
        }
        if op != EPOLL_CTL_DEL && event.events & EPOLLEXCLUSIVE != 0 {
            let odd = event.events & !EXCLUSIVE_OK != 0;
            if op == EPOLL_CTL_MOD || is_epoll(file) || odd {
                return Err(Errno::EINVAL);
            }
        }
        if op == EPOLL_CTL_ADD && is_epoll(file) && (self.reaches(file, ep, 0) || self.depth(file, 0) >= MAX_NESTING) {
            return Err(Errno::ELOOP);
        }
        event.events |= POLLERR | POLLHUP;
        let epoll = self.files.epoll_at_mut(ep).ok_or(Errno::EINVAL)?;
        let found = epoll.at(fd, file);
        match (op, found) {
            (EPOLL_CTL_ADD, None) => {
                let EpollEvent { events, data } = event;
                epoll.items.push(Item { fd, file, events, data, queued: false, await_out: false });
                if let Some(f) = self.files.get_mut(file) {
                    f.watchers.push(ep);
                }
                self.queue_if_ready(ep, fd, file);
            }
            (EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EEXIST),
            (EPOLL_CTL_DEL, Some(at)) => {
                epoll.items.remove(at);
                epoll.ready.retain(|r| *r != (fd, file));
                if let Some(f) = self.files.get_mut(file)
                    && let Some(at) = f.watchers.iter().position(|w| *w == ep)
                {
                    f.watchers.swap_remove(at);
                }
            }
            (EPOLL_CTL_MOD, Some(at)) => {
                let Some(item) = epoll.items.get_mut(at) else { return Err(Errno::ENOENT) };
                if item.events & EPOLLEXCLUSIVE != 0 {
                    return Err(Errno::EINVAL);
                }
                (item.events, item.data) = (event.events, event.data);
                self.queue_if_ready(ep, fd, file);
            }
            (EPOLL_CTL_DEL | EPOLL_CTL_MOD, None) => return Err(Errno::ENOENT),
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    /// Does epoll instance `from` watch `to`, itself or through others?
    fn reaches(&self, from: Key, to: Key, depth: u32) -> bool {
        let Some(Kind::Epoll(e)) = self.files.get(from).map(|f| &f.kind) else { return false };
        from == to || (depth <= MAX_NESTING && e.items().any(|(f, _)| f == to || self.reaches(f, to, depth + 1)))
    }

    /// How deep instances are nested below `file`.
    fn depth(&self, file: Key, at: u32) -> u32 {
        let Some(Kind::Epoll(e)) = self.files.get(file).map(|f| &f.kind) else { return 0 };
        if at > MAX_NESTING {
            return at;
        }
        1 + e.items().map(|(f, _)| self.depth(f, at + 1)).max().unwrap_or(0)
    }

    fn queue_if_ready(&mut self, ep: Key, fd: i32, file: Key) {
        let mask = self.mask(file, 0);
        let Some(epoll) = self.files.epoll_at_mut(ep) else { return };
        let Some(at) = epoll.at(fd, file) else { return };
        let Some(item) = epoll.items.get_mut(at) else { return };
        item.await_out = item.events & POLLOUT != 0 && mask & POLLOUT == 0;
        if mask & item.events & !PRIVATE != 0 {
            epoll.queue(at);
            self.wake_file(ep, POLLIN);
        }
    }

    pub(crate) fn start_epoll_wait(&mut self, epfd: i32, max: i32, timeout: i32) -> Result<Start, Errno> {
        if max <= 0 || max > MAX_EVENTS {
            return Err(Errno::EINVAL);
        }
        let file = self.files.key(epfd)?;
        if self.files.epoll_at_mut(file).is_none() {
            return Err(Errno::EINVAL);
        }
        self.files.hold(file);
        Ok(Start::Work(Work::EpollWait { file, max: max as usize }, timeout_ms(timeout)))
    }

    pub(crate) fn step_epoll_wait(&mut self, ep: Key, max: usize, may_sleep: bool) -> Option<Outcome> {
        self.requeue_writable(ep);
        let epoll = self.files.epoll_at_mut(ep)?;
        let mut walk = std::mem::take(&mut epoll.ready);
        let mut events = Vec::new();
        let mut again = VecDeque::new();
        while events.len() < max {
            let Some((fd, file)) = walk.pop_front() else { break };
            let mask = self.mask(file, 0);
            let Some(epoll) = self.files.epoll_at_mut(ep) else { break };
            let Some(item) = epoll.at(fd, file).and_then(|at| epoll.items.get_mut(at)) else { continue };
            item.queued = false;
            item.await_out = item.events & POLLOUT != 0 && mask & POLLOUT == 0;
            let seen = mask & item.events & !PRIVATE;
            if seen == 0 {
                continue;
            }
            events.push(EpollEvent { events: seen, data: item.data });
            if item.events & EPOLLONESHOT != 0 {
                item.events &= PRIVATE;
            } else if item.events & EPOLLET == 0 {
                item.queued = true;
                again.push_back((fd, file));
            }
        }
        if let Some(epoll) = self.files.epoll_at_mut(ep) {
            // What was not reached comes first the next time.
            walk.append(&mut epoll.ready);
            walk.append(&mut again);
            epoll.ready = walk;
        }
        if events.is_empty() && may_sleep {
            return None;
        }
        Some(Ok(Reply::with(events.len() as i64, Out::Events(events))))
    }

    /// Queues entries that waited for room and have it.
    fn requeue_writable(&mut self, ep: Key) {
        let Some(epoll) = self.files.epoll_at_mut(ep) else { return };
        let waiting: Vec<(usize, Key)> =
            epoll.items.iter().enumerate().filter(|(_, i)| i.await_out).map(|(at, i)| (at, i.file)).collect();
        for (at, file) in waiting {
            let writable = self.mask(file, 0) & POLLOUT != 0;
            if let Some(epoll) = self.files.epoll_at_mut(ep).filter(|_| writable) {
                if let Some(item) = epoll.items.get_mut(at) {
                    item.await_out = false;
                }
                epoll.queue(at);
            }
        }
    }
}
