//! From the server's thread to a shard's and back: doors, inboxes, answers and the bell.
//!
//! A [`Door`] hands closures to the thread that turns a shard and wakes it. A [`Stack`](crate::Stack)'s thread takes them by
//! itself; a program that turns its own shard keeps an [`Inbox`] and runs it once a turn. A closure that nobody will run is
//! dropped when the shard's side ends, and whoever waits for its [`Answer`] learns of it.
//!
//! The bell is one eventfd for all answers: rung after an answer was put in its place (or can not come any more), read
//! before the places are looked at. Many rings before a look are one wake-up.
//!
//! Limits: a door does not count its closures; the server has at most one on its way per client and shard.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use linerate_host::Unparker;
use linerate_stack::Shard;
use rustix::event::{EventfdFlags, eventfd};

use crate::driver::Control;

/// A way to run closures between two turns of a shard, from any thread.
#[derive(Clone)]
pub struct Door(Arc<Control>);

impl Door {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self(control)
    }
    /// Asks for `f` to be run. False when the shard's side has ended; later than that, `f` is dropped.
    pub fn call(&self, f: impl FnOnce(&mut Shard) + Send + 'static) -> bool {
        self.0.call(Box::new(f))
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

/// The shard's side of a [`Door`], for a program that turns its shard itself.
///
/// ```
/// use linerate::control::{Inbox, Parker};
/// use linerate::inline::{Instant, Shard, StackConfig};
///
/// let parker = Parker::with_futex();
/// let mut shard = Shard::new(StackConfig::default());
/// let mut inbox = Inbox::new(parker.unparker());
/// let door = inbox.door();
/// let (tell, told) = std::sync::mpsc::channel();
/// std::thread::spawn(move || door.call(move |shard| tell.send(shard.tcp_counts().0).expect("it listens"))).join();
/// // The loop of the program: turn, run what was asked, sleep if there was nothing.
/// shard.turn(Instant::from_millis(1), 64);
/// assert!(inbox.run(&mut shard));
/// assert_eq!(told.recv(), Ok(0));
/// ```
pub struct Inbox(Arc<Control>);

impl Inbox {
    /// An inbox whose doors wake the thread of `unparker`'s parker.
    pub fn new(unparker: Unparker) -> Self {
        Self(Control::new(unparker))
    }
    /// A door to it.
    pub fn door(&self) -> Door {
        Door(self.0.clone())
    }
    /// Runs what was asked for; false when there was nothing, at the price of a load.
    pub fn run(&mut self, shard: &mut Shard) -> bool {
        let calls = self.0.take_calls();
        let any = !calls.is_empty();
        for call in calls {
            call(shard);
        }
        any
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

/// Wakes the server's thread. Cheap to clone, and to ring when it rang already.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<BellInner>);

#[derive(Debug)]
struct BellInner {
    fd: OwnedFd,
    /// The descriptor is readable, or about to be.
    rung: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(BellInner { fd, rung: AtomicBool::new(false) })))
    }
    /// Ends the server's sleep, or the next one.
    pub(crate) fn ring(&self) {
        if !self.0.rung.swap(true, Ordering::SeqCst) {
            // It fails only when the counter is full, and then the descriptor is readable.
            let _ = rustix::io::write(&self.0.fd, &1_u64.to_ne_bytes());
        }
    }
    /// From now on it can be rung again; what rang it before is to be looked at after this.
    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0.fd, &mut count);
        self.0.rung.store(false, Ordering::SeqCst);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// What a shard was asked for, some time later.
pub(crate) struct Answer<T>(Receiver<T>);

/// The state of an [`Answer`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply<T> {
    /// Not yet.
    Pending,
    /// Here it is; it is given once.
    Ready(T),
    /// The shard ended before.
    Gone,
}

/// Rings when it is dropped: behind the answer, and also when there will be none.
struct RingOnDrop(Bell);

impl Drop for RingOnDrop {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// The order of the fields is the order in which they are dropped: first nobody can answer any more, then it rings.
struct Tell<T> {
    to: SyncSender<T>,
    _bell: RingOnDrop,
}

impl<T: Send + 'static> Answer<T> {
    /// Runs `f` on the shard behind `door`; `bell` rings when that is done, or can not be.
    pub(crate) fn ask(door: &Door, bell: &Bell, f: impl FnOnce(&mut Shard) -> T + Send + 'static) -> Self {
        let (to, place) = sync_channel(1);
        let tell = Tell { to, _bell: RingOnDrop(bell.clone()) };
        // A closed door drops the closure, and with it the sender.
        door.call(move |shard| {
            // Nobody may be left to be told.
            let _ = tell.to.try_send(f(shard));
            drop(tell);
        });
        Self(place)
    }
    /// Looks whether it is here.
    pub(crate) fn take(&mut self) -> Reply<T> {
        match self.0.try_recv() {
            Ok(value) => Reply::Ready(value),
            Err(TryRecvError::Empty) => Reply::Pending,
            Err(TryRecvError::Disconnected) => Reply::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_host::Parker;
    use linerate_stack::StackConfig;

    #[test]
    fn an_answer_comes_once_and_rings() {
        let (bell, parker) = (Bell::new().unwrap(), Parker::with_futex());
        let mut shard = Shard::new(StackConfig::default());
        let mut inbox = Inbox::new(parker.unparker());
        let door = inbox.door();
        let mut answer = Answer::ask(&door, &bell, |shard| shard.tcp_counts().0);
        assert_eq!(answer.take(), Reply::Pending);
        assert!(!bell.0.rung.load(Ordering::SeqCst));
        assert!(inbox.run(&mut shard) && !inbox.run(&mut shard));
        assert!(bell.0.rung.load(Ordering::SeqCst));
        assert_eq!(answer.take(), Reply::Ready(0));
        assert_eq!(answer.take(), Reply::Gone);
        bell.clear();
        // A shard that ends drops what it was asked, and says so.
        let mut answer = Answer::ask(&door, &bell, |_| ());
        drop(inbox);
        assert_eq!(answer.take(), Reply::Gone);
        assert!(bell.0.rung.load(Ordering::SeqCst));
        assert_eq!(Answer::ask(&door, &bell, |_| ()).take(), Reply::Gone);
        assert!(!door.call(|_| ()));
    }
}
