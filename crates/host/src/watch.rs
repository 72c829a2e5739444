//! Descriptors that a thread sleeps on besides its parker: [`Watched`], and the [`WatchList`] that
//! [`Parker::wait_watching`](crate::Parker::wait_watching) polls.
//!
//! A device half says what it waits for (`READ` after its last read found nothing, `WRITE` after a write found no room), and
//! the sleeper polls exactly that. Readiness is a level, not an event: what arrived between the last read and the sleep ends
//! the sleep at once, so nothing has to be armed in the kernel and no wake-up can be lost.
//!
//! A descriptor that reports an error or a hang-up and nothing to read is *broken*: it is never polled again, since its
//! level would end every sleep. Its device says so in its own way (a TUN drops what it should send). A descriptor that only
//! the list still holds is let go, and with it closed, before the next sleep: its device is gone.
//!
//! What is waited for is set by the thread that sleeps; the flags are atomic only so that the halves of a device can share
//! them.
//!
//! Limits: `poll(2)`, whose cost grows with the list; a handful of queues is what it is for. Up to [`IN_PLACE`] descriptors
//! cost no allocation.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Descriptors polled from an array on the stack, the parker's own included.
pub const IN_PLACE: usize = 16;

const READ: u8 = 1;
const WRITE: u8 = 2;
const BROKEN: u8 = 4;

/// A descriptor, and what is waited for on it.
#[derive(Debug)]
pub struct Watched {
    fd: OwnedFd,
    state: AtomicU8,
}

impl Watched {
    /// A descriptor on which nothing is waited for yet.
    pub fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { fd, state: AtomicU8::new(0) })
    }
    fn set(&self, bit: u8, on: bool) {
        if on {
            self.state.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.state.fetch_and(!bit, Ordering::Relaxed);
        }
    }
    fn has(&self, bit: u8) -> bool {
        self.state.load(Ordering::Relaxed) & bit != 0
    }
    /// Bytes to read end the sleep.
    pub fn want_read(&self, on: bool) {
        self.set(READ, on);
    }
    /// Room to write ends the sleep.
    pub fn want_write(&self, on: bool) {
        self.set(WRITE, on);
    }
    /// Is room to write waited for?
    pub fn wants_write(&self) -> bool {
        self.has(WRITE)
    }
    /// Nothing will ever come from it again.
    pub fn set_broken(&self) {
        self.set(BROKEN, true);
    }
    /// Is it beyond use?
    pub fn is_broken(&self) -> bool {
        self.has(BROKEN)
    }
    /// What to poll for; `None`: leave it out.
    fn interest(&self) -> Option<PollFlags> {
        let state = self.state.load(Ordering::Relaxed);
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, state & READ != 0);
        flags.set(PollFlags::OUT, state & WRITE != 0);
        (state & BROKEN == 0 && !flags.is_empty()).then_some(flags)
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// All descriptors of one sleeper.
#[derive(Clone, Default, Debug)]
pub struct WatchList(Vec<Arc<Watched>>);

impl WatchList {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }
    /// One more.
    pub fn push(&mut self, watched: Arc<Watched>) {
        self.0.push(watched);
    }
    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Descriptors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Sleeps until one of the list, or `bell`, is ready, `timeout` has passed or a signal came. True when one of the list
    /// is ready.
    pub(crate) fn poll(&mut self, bell: BorrowedFd<'_>, timeout: Option<Duration>) -> bool {
        self.0.retain(|w| Arc::strong_count(w) > 1);
        // A timeout beyond the range of the system call is none.
        let timeout = timeout.and_then(|d| Timespec::try_from(d).ok());
        let first = PollFd::from_borrowed_fd(bell, PollFlags::IN);
        let polled = self.0.iter().filter_map(|w| Some((w, w.interest()?)));
        if self.0.len() < IN_PLACE {
            let mut fds: [PollFd<'_>; IN_PLACE] = std::array::from_fn(|_| first.clone());
            let mut n = 1;
            for ((w, flags), slot) in polled.clone().zip(fds.iter_mut().skip(1)) {
                *slot = PollFd::new(w.as_ref(), flags);
                n += 1;
            }
            return sleep(fds.get_mut(..n).unwrap_or_default(), timeout.as_ref(), polled.map(|(w, _)| w));
        }
        let mut fds = vec![first];
        fds.extend(polled.clone().map(|(w, flags)| PollFd::new(w.as_ref(), flags)));
        sleep(&mut fds, timeout.as_ref(), polled.map(|(w, _)| w))
    }
}

/// `fds` is the bell and then `watched`, one each.
fn sleep<'a>(
    fds: &mut [PollFd<'_>],
    timeout: Option<&Timespec>,
    watched: impl Iterator<Item = &'a Arc<Watched>>,
) -> bool {
    if !poll(fds, timeout).is_ok_and(|n| n > 0) {
        return false;
    }
    let mut ready = false;
    for (fd, watched) in fds.iter().skip(1).zip(watched) {
        let seen = fd.revents();
        if seen.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) && !seen.contains(PollFlags::IN) {
            watched.set_broken();
        }
        ready |= !seen.is_empty();
    }
    ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::{Parker, Woken};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::time::Instant;

    const SHORT: Option<Duration> = Some(Duration::from_millis(5));
    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    fn pair() -> (Arc<Watched>, OwnedFd) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).expect("socketpair");
        (Watched::new(a), b)
    }

    /// A list, what it watches, and the far ends.
    fn list(n: usize) -> (Parker, WatchList, Vec<Arc<Watched>>, Vec<OwnedFd>) {
        let (near, ends): (Vec<_>, Vec<_>) = (0..n).map(|_| pair()).unzip();
        (Parker::with_eventfd().expect("eventfd"), WatchList(near.clone()), near, ends)
    }

    #[test]
    fn only_what_is_wanted_ends_the_sleep() {
        for n in [1, 3, IN_PLACE + 4] {
            let (parker, mut list, near, ends) = list(n);
            rustix::io::write(&ends[n - 1], b"x").expect("write");
            assert_eq!(parker.wait_watching(&mut list, SHORT), Woken::TimedOut, "nobody asked for it");
            near[n - 1].want_read(true);
            assert_eq!(parker.wait_watching(&mut list, LONG), Woken::Ready);
            near[n - 1].want_read(false);
            near[0].want_write(true);
            assert_eq!(parker.wait_watching(&mut list, LONG), Woken::Ready, "there is room");
        }
    }

    #[test]
    fn a_token_and_an_unpark_end_the_sleep() {
        let (parker, mut list, near, _ends) = list(2);
        near[0].want_read(true);
        parker.unparker().unpark();
        assert_eq!(parker.wait_watching(&mut list, LONG), Woken::Unparked);
        assert_eq!(parker.wait_watching(&mut list, SHORT), Woken::TimedOut);
        let unparker = parker.unparker();
        let waker = std::thread::spawn(move || while !unparker.unpark_if_asleep() {});
        let begin = Instant::now();
        assert_eq!(parker.wait_watching(&mut list, LONG), Woken::Unparked);
        assert!(begin.elapsed() < Duration::from_secs(30));
        waker.join().expect("waker");
    }

    #[test]
    fn a_broken_descriptor_ends_one_sleep_only() {
        let (parker, mut list, near, ends) = list(2);
        near[1].want_write(true);
        while rustix::io::write(&near[1], &[0; 1024]).is_ok() {}
        drop(ends);
        assert_eq!(parker.wait_watching(&mut list, LONG), Woken::Ready);
        assert!(near[1].is_broken());
        assert_eq!(parker.wait_watching(&mut list, SHORT), Woken::TimedOut);
    }

    #[test]
    fn what_nobody_uses_is_closed() {
        let (parker, mut list, mut near, ends) = list(2);
        near.iter().for_each(|w| w.want_read(true));
        rustix::io::write(&ends[1], b"x").expect("write");
        near.pop();
        assert_eq!(parker.wait_watching(&mut list, SHORT), Woken::TimedOut, "it was readable for ever");
        assert!(list.len() == 1 && rustix::io::write(&ends[1], b"x").is_err(), "closed");
    }
}
