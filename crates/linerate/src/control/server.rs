//! The server: one thread that listens, sleeps in `poll`, and lets clients and their commands go on.
//!
//! ```text
//!   poll [bell, listener, client ...]  no time limit ─▶ bell? clear ─▶ every client that may go on ─▶ new clients ─▶ again
//! ```
//! The thread asks shards and never waits for one. It ends when the [`Server`] is dropped: the bell rings, clients are cut
//! off (their commands undo what they set up), the socket's file is removed.
//!
//! Limits: [`MAX_CLIENTS`]. One more takes the place of the one that has asked nothing for longest; when all are busy it is
//! told so. When the process is out of descriptors, new clients wait [`NO_FD_PAUSE`] and with them this thread, nobody else.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_base::Errno;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as Os;
use rustix::net::{SocketFlags, accept_with};

use super::door::{Bell, Door};
use super::path::{Bound, ControlPath};
use super::peer::{Life, Peer};
use super::proto::Refusal;

/// Clients served at once.
pub const MAX_CLIENTS: usize = 16;
/// How long the thread waits for a descriptor to become free.
const NO_FD_PAUSE: Duration = Duration::from_millis(100);

/// A control socket that is being served, until it is dropped.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    bell: Bell,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path` and serves the shards behind `doors`, which are numbered in this order. A
    /// [`Stack`](crate::Stack) does this itself ([`Builder::control`](crate::Builder::control)); this is for
    /// shards that the program turns.
    ///
    /// # Errors
    /// What the host says to the directory, the socket, the thread; `AddrInUse` when a living process serves that path;
    /// `PermissionDenied` when the directory is not private. The text says what to do.
    pub fn start(path: &ControlPath, doors: Vec<Door>) -> io::Result<Self> {
        let bound = Bound::new(path)?;
        let bell = Bell::new()?;
        let stop = Arc::new(AtomicBool::new(false));
        let path = bound.path().to_owned();
        let mut desk = Desk { bound, doors, bell: bell.clone(), stop: stop.clone(), peers: Vec::new(), events: 0 };
        let thread = linerate_host::spawn_named("control".to_owned(), move || desk.run())?;
        Ok(Self { path, stop, bell, thread: Some(thread) })
    }
    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Desk {
    bound: Bound,
    doors: Vec<Door>,
    bell: Bell,
    stop: Arc<AtomicBool>,
    peers: Vec<Peer>,
    /// Wake-ups, as a clock for who was idle longest.
    events: u64,
}

impl Desk {
    fn run(&mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let Some((rung, news, seen)) = self.sleep() else { continue };
            self.events += 1;
            if rung {
                self.bell.clear();
            }
            self.serve(rung, &seen);
            if news {
                self.admit();
            }
        }
    }

    /// Sleeps. Did the bell ring, is there a new client, and what happened to each of the others? `None` after a signal.
    fn sleep(&self) -> Option<(bool, bool, Vec<PollFlags>)> {
        let mut fds = Vec::with_capacity(2 + self.peers.len());
        fds.push(PollFd::new(&self.bell, PollFlags::IN));
        fds.push(PollFd::from_borrowed_fd(self.bound.listener(), PollFlags::IN));
        fds.extend(self.peers.iter().map(|peer| PollFd::new(peer, peer.interest())));
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Os::INTR) => return None,
            Err(_) => {
                // Only want of memory in the kernel.
                std::thread::sleep(NO_FD_PAUSE);
                return None;
            }
        }
        let seen: Vec<_> = fds.iter().map(PollFd::revents).collect();
        let (first, rest) = seen.split_at(2);
        Some((!first[0].is_empty(), !first[1].is_empty(), rest.to_vec()))
    }

    /// The bell is everybody's: a command that it did not mean finds nothing new.
    fn serve(&mut self, rung: bool, seen: &[PollFlags]) {
        let (doors, bell, events) = (&self.doors, &self.bell, self.events);
        let mut seen = seen.iter().copied();
        self.peers.retain_mut(|peer| {
            let seen = seen.next().unwrap_or(PollFlags::empty());
            if seen.contains(PollFlags::IN) {
                peer.last_event = events;
            }
            let concerned = !seen.is_empty() || rung && !peer.is_idle();
            !concerned || peer.advance(seen, doors, bell) == Life::Here
        });
    }

    /// Takes one new client; the next sleep ends at once when there are more.
    fn admit(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = match accept_with(self.bound.listener(), flags) {
            Ok(fd) => fd,
            Err(Os::AGAIN | Os::INTR | Os::CONNABORTED) => return,
            Err(_) => return std::thread::sleep(NO_FD_PAUSE),
        };
        if self.peers.len() >= MAX_CLIENTS {
            let idle = self.peers.iter().enumerate().filter(|(_, peer)| peer.is_idle());
            let Some((longest, _)) = idle.min_by_key(|(_, peer)| peer.last_event) else {
                let message = format!("{MAX_CLIENTS} clients are being served");
                return Peer::refuse(fd, &Refusal::new(Errno::EAGAIN, message, "end one of them and try again"));
            };
            self.peers.remove(longest);
        }
        self.peers.push(Peer::new(fd, self.events));
    }
}
