//! `poll`, and what a file is ready for (Linux `tcp_poll`, `udp_poll`).
//!
//! The stack says what a connection is ready for; the socket layer adds what it alone knows: directions that this end shut
//! down. Readiness is a level, computed when asked. `POLLERR` and `POLLHUP` are always reported; a closed descriptor is
//! `POLLNVAL`, a negative one is skipped. [`Posix::wake`] turns the stack's events into wake-ups of epoll instances.

use linerate_base::{Errno, Key};
use linerate_stack::{Ready, SockId};
use linerate_tcp::State;

use crate::abi::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDBAND, POLLRDHUP, POLLRDNORM, POLLWRBAND, POLLWRNORM,
};
use crate::call::{Out, Outcome, PollFd, Reply};
use crate::fd::Kind;
use crate::ops::{Work, timeout_ms};
use crate::posix::{Posix, Start};
use crate::sock::{Proto, Sock};

const IN: u32 = POLLIN | POLLRDNORM;
const OUT: u32 = POLLOUT | POLLWRNORM;
/// Deepest nesting of epoll instances (EP_MAX_NESTS).
pub(crate) const MAX_NESTING: u32 = 4;

impl Posix {
    /// What a file is ready for now.
    pub(crate) fn mask(&self, file: Key, depth: u32) -> u32 {
        let Some(f) = self.files.get(file) else { return 0 };
        match &f.kind {
            Kind::Pipe(p) => p.mask(),
            Kind::Sock(s) => match s.proto {
                Proto::Tcp(id) => self.mask_tcp(s, id),
                Proto::Udp(id) => self.mask_udp(s, id),
            },
            Kind::Epoll(e) => {
                let ready = depth < MAX_NESTING && e.items().any(|(of, events)| self.mask(of, depth + 1) & events != 0);
                if ready { IN } else { 0 }
            }
        }
    }

    fn mask_tcp(&self, s: &Sock, id: SockId) -> u32 {
        let r = self.shard.readiness(id);
        let when = |on: bool, bits: u32| if on { bits } else { 0 };
        if s.listening {
            return when(r.contains(Ready::ACCEPT), IN);
        }
        let state = self.shard.conn(id).map(|c| c.state());
        let rcv_shut = s.shut_rd || r.contains(Ready::RDHUP);
        let hup = r.contains(Ready::HUP) || (rcv_shut && s.shut_wr);
        let opening = matches!(state, Some(State::SynSent | State::SynRcvd));
        when(hup, POLLHUP)
            | when(rcv_shut, IN | POLLRDHUP)
            | when(!opening && r.contains(Ready::READABLE), IN)
            | when(!opening && (s.shut_wr || r.contains(Ready::WRITABLE)), OUT)
            | when(r.contains(Ready::ERROR), POLLERR)
    }

    fn mask_udp(&self, s: &Sock, id: SockId) -> u32 {
        let r = self.shard.readiness(id);
        let when = |on: bool, bits: u32| if on { bits } else { 0 };
        when(r.contains(Ready::ERROR), POLLERR)
            | when(s.shut_rd, IN | POLLRDHUP)
            | when(s.shut_rd && s.shut_wr, POLLHUP)
            | when(self.shard.udp().rmem_bytes(id) > 0, IN)
            | when(r.contains(Ready::WRITABLE), OUT)
    }

    pub(crate) fn start_poll(&mut self, fds: Vec<PollFd>, timeout: i32) -> Result<Start, Errno> {
        let fds: Vec<_> = fds.into_iter().map(|p| (p, self.files.key(p.fd).ok())).collect();
        for key in fds.iter().filter_map(|(_, key)| *key) {
            self.files.hold(key);
        }
        Ok(Start::Work(Work::Poll { fds }, timeout_ms(timeout)))
    }

    pub(crate) fn step_poll(&mut self, fds: &[(PollFd, Option<Key>)], may_sleep: bool) -> Option<Outcome> {
        let seen = |p: &PollFd, key: Option<Key>| match key {
            _ if p.fd < 0 => 0,
            None => POLLNVAL,
            Some(key) => self.mask(key, 0) & (u32::from(p.events as u16) | POLLERR | POLLHUP),
        };
        let revents: Vec<i16> = fds.iter().map(|(p, key)| seen(p, *key) as u16 as i16).collect();
        let n = revents.iter().filter(|r| **r != 0).count();
        if n == 0 && may_sleep {
            return None;
        }
        Some(Ok(Reply::with(n as i64, Out::Revents(revents))))
    }

    /// Hands the events of the stack to the epoll instances that watch their sockets.
    pub(crate) fn wake(&mut self) {
        while let Some((id, ready)) = self.shard.next_ready() {
            let Some(&file) = self.by_sock.get(&id) else { continue };
            let mut key = 0;
            if ready.intersects(Ready::READABLE | Ready::ACCEPT) {
                key |= IN | POLLPRI | POLLRDBAND;
            }
            if ready.intersects(Ready::WRITABLE) {
                key |= OUT | POLLWRBAND;
            }
            if ready.intersects(Ready::ERROR) {
                key |= POLLERR;
            }
            if ready.intersects(Ready::CONNECTED | Ready::HUP | Ready::RDHUP) {
                // A change of state wakes everybody.
                key = u32::MAX;
            }
            self.wake_file(file, key);
        }
    }

    /// Wakes the epoll instances that watch `file` for any of `key`.
    pub(crate) fn wake_file(&mut self, file: Key, key: u32) {
        let Some(watchers) = self.files.get(file).map(|f| f.watchers.clone()) else { return };
        for watcher in watchers {
            let Some(epoll) = self.files.epoll_at_mut(watcher) else { continue };
            if epoll.wake(file, key) {
                self.wake_file(watcher, IN);
            }
        }
    }
}
