//! Sleeping without missing a wake-up: a [`Parker`] for the one thread that sleeps, [`Unparker`]s for all who wake it.
//!
//! ```text
//!             unpark                       sleeper
//!   EMPTY ---------------> NOTIFIED --consumed--> EMPTY
//!   EMPTY --prepare_sleep--> SLEEPING --unpark (and the system call)--> NOTIFIED
//!   SLEEPING --finish_sleep (timeout, other work)--> EMPTY
//! ```
//! The word is the truth; the eventfd (or the futex on the word itself) only ends the sleep. A token is kept: an
//! `unpark` before the sleep makes the next wait return at once, and any number of them are one. A late write of the
//! eventfd, from an `unpark` whose token was already consumed, costs one more turn of the loop and is never reported.
//!
//! Two protocols for a waker, both free of lost wake-ups:
//! - [`Unparker::unpark`]: publish the work, unpark. One atomic exchange unless a token is already there.
//! - [`Unparker::unpark_if_asleep`]: publish the work, then wake only a sleeper. No write to the shared word while the
//!   sleeper is awake; in exchange the sleeper must look for work *after* it said that it sleeps, which
//!   [`Parker::wait_until`] does. Both sides put a SeqCst fence between their store and their load (Dekker's pattern).
//!
//! A wake-up across cores costs some 28 us each way on a virtual machine whose idle CPUs halt, so [`Wait::Adaptive`]
//! polls for [`SPIN_US`] before it sleeps. Not offered: waiting of two threads on one parker.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::watch::WatchList;

/// How long [`Wait::Adaptive`] polls before it sleeps, in microseconds: about the cost of the wake-up that it may save.
pub const SPIN_US: u64 = 60;

/// Polls between two looks at the clock (some 20 ns) while spinning.
const SPINS_PER_CLOCK_READ: u32 = 32;

/// Looks at the clock after which a spinning thread gives its CPU up between polls: some 100 us without work. Whoever
/// waits for an answer of a microsecond never comes here; where threads outnumber CPUs, whoever should produce the work
/// runs at last, instead of a scheduler's slice later. On a CPU of its own it costs a system call that returns at once.
const PATIENT_CLOCK_READS: u32 = 128;

const EMPTY: u32 = 0;
const NOTIFIED: u32 = 1;
const SLEEPING: u32 = 2;

/// How a thread waits for work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Wait {
    /// Sleep at once: least CPU, a system call and a wake-up per wait.
    Block,
    /// Never sleep: least latency, a whole core.
    Spin,
    /// Poll for [`SPIN_US`], then sleep.
    #[default]
    Adaptive,
}

impl FromStr for Wait {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "block" => Ok(Self::Block),
            "spin" => Ok(Self::Spin),
            "adaptive" => Ok(Self::Adaptive),
            _ => Err(format!("'{s}' is not one of block, spin, adaptive")),
        }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum Woken {
    /// The caller's condition holds.
    Ready,
    /// A token of [`Unparker::unpark`] was consumed.
    Unparked,
    /// The time is over.
    TimedOut,
}

#[derive(Debug)]
struct Inner {
    state: AtomicU32,
    /// Empty: the sleep is a futex wait on `state`. Set before the first sleep, or never.
    fd: OnceLock<OwnedFd>,
}

impl Inner {
    fn unpark(&self) {
        // A token that is still there will be consumed after this fence, and its consumer then sees the caller's work:
        // see the fence in `take_token`.
        fence(SeqCst);
        if self.state.load(Relaxed) == NOTIFIED {
            return;
        }
        if self.state.swap(NOTIFIED, SeqCst) == SLEEPING {
            self.end_sleep();
        }
    }

    fn unpark_if_asleep(&self) -> bool {
        fence(SeqCst);
        if self.state.load(Relaxed) != SLEEPING {
            return false;
        }
        // Of several wakers that saw the sleeper, only the one that changes the word pays for the system call.
        let mine = self.state.compare_exchange(SLEEPING, NOTIFIED, SeqCst, Relaxed).is_ok();
        if mine {
            self.end_sleep();
        }
        mine
    }

    #[cold]
    fn end_sleep(&self) {
        match self.fd.get() {
            // EAGAIN means that the counter is at its maximum: the sleeper's poll returns anyway.
            Some(fd) => while rustix::io::write(fd, &1_u64.to_ne_bytes()) == Err(Errno::INTR) {},
            // Nobody waits on the word yet or any more: both are fine, the wait compares it with SLEEPING first.
            None => _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1),
        }
    }

    fn take_token(&self) -> bool {
        if self.state.load(Acquire) != NOTIFIED {
            return false;
        }
        // Only the parker leaves NOTIFIED, so the word cannot have changed.
        let before = self.state.swap(EMPTY, SeqCst);
        debug_assert_eq!(before, NOTIFIED);
        fence(SeqCst);
        true
    }
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

/// The sleeping side. It belongs to one thread at a time.
#[derive(Debug)]
pub struct Parker {
    inner: Arc<Inner>,
    _one_thread: PhantomData<Cell<()>>,
}

/// The waking side: clone it to every thread that produces work.
#[derive(Clone, Debug)]
pub struct Unparker {
    inner: Arc<Inner>,
}

impl Parker {
    /// A parker that sleeps on an eventfd, which an event loop can watch among its other descriptors
    /// ([`Parker::fd`], [`Parker::prepare_sleep`]).
    ///
    /// Errors: those of `eventfd(2)`, in practice `EMFILE`.
    pub fn with_eventfd() -> io::Result<Self> {
        let fd = new_eventfd()?;
        Ok(Self::new(OnceLock::from(fd)))
    }

    /// A parker that sleeps on a futex: no descriptor, for threads that wait for nothing else.
    pub fn with_futex() -> Self {
        Self::new(OnceLock::new())
    }

    /// Makes this a parker that sleeps on an eventfd, if it is not one. Its unparkers stay valid. Not while it sleeps,
    /// which `&mut` sees to.
    ///
    /// Errors: as [`Parker::with_eventfd`].
    pub fn use_eventfd(&mut self) -> io::Result<()> {
        if self.inner.fd.get().is_none() {
            // Nobody else sets it: the parker is borrowed.
            let _ = self.inner.fd.set(new_eventfd()?);
        }
        Ok(())
    }

    fn new(fd: OnceLock<OwnedFd>) -> Self {
        Self { inner: Arc::new(Inner { state: AtomicU32::new(EMPTY), fd }), _one_thread: PhantomData }
    }

    /// A waker of this parker.
    pub fn unparker(&self) -> Unparker {
        Unparker { inner: Arc::clone(&self.inner) }
    }

    /// The descriptor that becomes readable when a sleeper is woken; `None` for a futex.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd.get().map(AsFd::as_fd)
    }

    /// Waits for a token, at most `timeout` (`None`: without limit).
    pub fn wait(&self, mode: Wait, timeout: Option<Duration>) -> Woken {
        self.wait_until(mode, timeout, || false)
    }

    /// Waits until `ready` is true, a token arrives or `timeout` has passed. `ready` is asked while polling and once
    /// more after the sleeper has said that it sleeps; it should be a few loads.
    pub fn wait_until(&self, mode: Wait, timeout: Option<Duration>, mut ready: impl FnMut() -> bool) -> Woken {
        if let Some(woken) = self.check(&mut ready) {
            return woken;
        }
        if timeout == Some(Duration::ZERO) {
            return Woken::TimedOut;
        }
        let start = Instant::now();
        // A timeout beyond the clock's range is no timeout.
        let deadline = timeout.and_then(|t| start.checked_add(t));
        let spin_until = match mode {
            Wait::Block => Some(start),
            Wait::Spin => deadline,
            Wait::Adaptive if one_cpu() => Some(start),
            Wait::Adaptive => {
                let end = start + Duration::from_micros(SPIN_US);
                Some(deadline.map_or(end, |d| d.min(end)))
            }
        };
        if spin_until != Some(start)
            && let Some(woken) = self.spin(spin_until, &mut ready)
        {
            return woken;
        }
        self.sleep(deadline, &mut ready)
    }

    fn check(&self, ready: &mut impl FnMut() -> bool) -> Option<Woken> {
        if ready() {
            return Some(Woken::Ready);
        }
        self.inner.take_token().then_some(Woken::Unparked)
    }

    fn spin(&self, until: Option<Instant>, ready: &mut impl FnMut() -> bool) -> Option<Woken> {
        let mut patience = if one_cpu() { 0 } else { PATIENT_CLOCK_READS };
        loop {
            for _ in 0..SPINS_PER_CLOCK_READ {
                if let Some(woken) = self.check(ready) {
                    return Some(woken);
                }
                std::hint::spin_loop();
            }
            match patience {
                0 => std::thread::yield_now(),
                _ => patience -= 1,
            }
            if until.is_some_and(|t| Instant::now() >= t) {
                return None;
            }
        }
    }

    fn sleep(&self, deadline: Option<Instant>, ready: &mut impl FnMut() -> bool) -> Woken {
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return self.check(ready).unwrap_or(Woken::TimedOut);
            }
            if !self.prepare_sleep() {
                return Woken::Unparked;
            }
            // A waker that published before it could see SLEEPING is found here; one that publishes later sees it.
            if ready() {
                // A token taken back here came with the work that the caller is about to look at.
                let _ = self.finish_sleep();
                return Woken::Ready;
            }
            self.block(left);
            if self.finish_sleep() {
                return if ready() { Woken::Ready } else { Woken::Unparked };
            }
            if ready() {
                return Woken::Ready;
            }
        }
    }

    /// Says that this thread is about to sleep, so that wakers pay for the system call. False when a token was there:
    /// it is consumed, and the caller must not sleep. After true the caller looks for work once more, sleeps (its own
    /// `poll` or `epoll_wait` over [`Parker::fd`] and others) and calls [`Parker::finish_sleep`].
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        let slept = self.inner.state.compare_exchange(EMPTY, SLEEPING, SeqCst, SeqCst);
        debug_assert_ne!(slept, Err(SLEEPING), "prepare_sleep twice without finish_sleep");
        if slept.is_err() {
            self.inner.state.store(EMPTY, SeqCst);
        }
        fence(SeqCst);
        slept.is_ok()
    }

    /// Ends a sleep, however it ended, and makes the descriptor unreadable again. True when a token was consumed.
    pub fn finish_sleep(&self) -> bool {
        if let Some(fd) = self.inner.fd.get() {
            // Before the exchange: a write that comes after it belongs to a token that the exchange shows, and its only
            // trace is one spurious return of a later sleep.
            while rustix::io::read(fd, &mut [0_u8; 8]) == Err(Errno::INTR) {}
        }
        let token = self.inner.state.swap(EMPTY, SeqCst) == NOTIFIED;
        fence(SeqCst);
        token
    }

    /// Sleeps until a token arrives, a descriptor of `list` is ready for what is wanted of it ([`Woken::Ready`]), or
    /// `timeout` has passed. A signal may end it early, as [`Woken::TimedOut`].
    ///
    /// # Panics
    /// When this parker has no eventfd ([`Parker::with_eventfd`], [`Parker::use_eventfd`]).
    pub fn wait_watching(&self, list: &mut WatchList, timeout: Option<Duration>) -> Woken {
        let bell = self.fd().expect("a parker that watches descriptors has one of its own");
        if !self.prepare_sleep() {
            return Woken::Unparked;
        }
        let ready = list.poll(bell, timeout);
        match (self.finish_sleep(), ready) {
            (true, _) => Woken::Unparked,
            (false, true) => Woken::Ready,
            (false, false) => Woken::TimedOut,
        }
    }

    /// Sleeps until woken, `left` has passed or a signal came; the caller loops.
    fn block(&self, left: Option<Duration>) {
        let left = left.and_then(|d| Timespec::try_from(d).ok());
        match self.inner.fd.get() {
            Some(fd) => _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], left.as_ref()),
            None => _ = futex::wait(&self.inner.state, futex::Flags::PRIVATE, SLEEPING, left.as_ref()),
        }
    }
}

impl Unparker {
    /// Leaves a token and wakes the sleeper if there is one. Publish the work first.
    pub fn unpark(&self) {
        self.inner.unpark();
    }

    /// Wakes the sleeper if there is one and leaves no token otherwise: for work that the sleeper looks for itself in
    /// [`Parker::wait_until`]. True when this call ended a sleep (a doorbell, for counting).
    pub fn unpark_if_asleep(&self) -> bool {
        self.inner.unpark_if_asleep()
    }

    /// This unparker as the waker of a future, for a `block_on` over [`Parker::wait`].
    pub fn to_waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.inner))
    }
}

fn new_eventfd() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Whether this process had one CPU when it first waited: spinning would keep the producer from running.
fn one_cpu() -> bool {
    static ONE_CPU: OnceLock<bool> = OnceLock::new();
    *ONE_CPU.get_or_init(|| std::thread::available_parallelism().is_ok_and(|n| n.get() == 1))
}

#[cfg(test)]
mod tests;
