//! The two wake-up protocols between a shard and the threads that use its sockets, and nothing else.
//!
//! **Waiting.** [`WaitFlag`] is Dekker's pattern: each side stores, fences, then looks at the other's word.
//! ```text
//!   waiter                                  notifier
//!     flag = 1            (announce)          publish              (ring push, counter, event bit)
//!     fence SeqCst                            fence SeqCst
//!     condition true?  -> do not sleep        flag == 1 ?  swap 0  -> wake the waiter
//! ```
//! Of the two fences one is first. If the waiter's is, the notifier sees the flag; if the notifier's is, the waiter sees
//! what was published. So never do both sides miss, and an awake waiter costs the notifier a fence and a load.
//! The same flag serves an application that waits for its shard and a shard that sleeps.
//!
//! **Work for the shard.** [`DirtyStack`] is a stack of cells by index: any thread pushes, the shard takes all at once. A
//! cell is in it at most once ([`DirtyLink::queued`]); since nothing but the whole is ever popped, there is no ABA.
//! The shard clears `queued` *before* it looks at the cell, so a push that finds it set is always seen. A cell's number is
//! free when nobody else holds the cell *and* the stack does not: the last mark may come between a turn's look into the
//! stack and the end of the last reference.
//!
//! Not here: what is waited for, and who is woken how.

use crate::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// No cell.
pub(crate) const NIL: u32 = u32::MAX;

/// One waiter, any number of notifiers. See the module head.
#[derive(Debug)]
pub struct WaitFlag(AtomicU32);

impl Default for WaitFlag {
    fn default() -> Self {
        Self::new()
    }
}

impl WaitFlag {
    /// Nobody waits.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }
    /// The waiter says that it is about to sleep. It must look at its condition *after* this.
    pub fn prepare(&self) {
        // Release: what the waiter handed over before (its waker) is seen by the notifier that takes the flag. A swap and
        // not a store: all writes of the flag read each other, so their order is one, which the model checker needs.
        self.0.swap(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }
    /// The waiter does not sleep after all. A notifier may already have decided to wake it: that wake-up is spurious.
    pub fn cancel(&self) {
        // Only the waiter sets the flag, so it never misses its own 1 here.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.swap(0, Ordering::AcqRel);
        }
    }
    /// After publishing: must the waiter be woken? At most one notifier gets `true` for one announcement.
    #[must_use]
    pub fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::AcqRel) != 0
    }
    /// Was the wait announced, and neither cancelled nor answered? A look without a fence: it may be late.
    pub fn is_announced(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// A cell's place in the [`DirtyStack`] of its shard.
#[derive(Debug)]
pub(crate) struct DirtyLink {
    /// The number under which the shard knows the cell; [`NIL`] until it does.
    index: AtomicU32,
    /// The cell below in the stack.
    next: AtomicU32,
    queued: AtomicBool,
}

impl DirtyLink {
    pub(crate) fn new() -> Self {
        Self { index: AtomicU32::new(NIL), next: AtomicU32::new(NIL), queued: AtomicBool::new(false) }
    }
    /// The shard adopts the cell. It must look at the cell *after* this, for what was published before.
    pub(crate) fn adopt(&self, index: u32) {
        self.index.store(index, Ordering::Release);
        fence(Ordering::SeqCst);
    }
    /// The shard begins to look at a cell that it took: gives the cell below it.
    pub(crate) fn take(&self) -> u32 {
        // `next` first: once `queued` is clear another push may write it.
        let next = self.next.load(Ordering::Relaxed);
        self.queued.swap(false, Ordering::AcqRel);
        next
    }
    /// The cell is in the stack: its number must not be given to another. Certain once no other thread can push it.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire)
    }
}

/// Cells with work for the shard. See the module head.
#[derive(Debug)]
pub(crate) struct DirtyStack(AtomicU32);

impl DirtyStack {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(NIL))
    }
    /// After publishing: puts the cell into the stack, unless it is there. `true`: the shard must hear of it, if it sleeps.
    ///
    /// A cell that the shard has not adopted is not pushed: the shard looks at it when it adopts it.
    #[must_use]
    pub(crate) fn push(&self, link: &DirtyLink) -> bool {
        fence(Ordering::SeqCst);
        let index = link.index.load(Ordering::Acquire);
        if index == NIL || link.queued.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link.next.store(head, Ordering::Relaxed);
            match self.0.compare_exchange_weak(head, index, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }
    /// Takes the whole stack: the first cell, or [`NIL`]. Go on with [`DirtyLink::take`].
    pub(crate) fn take_all(&self) -> u32 {
        if self.is_empty() { NIL } else { self.0.swap(NIL, Ordering::AcqRel) }
    }
    /// Is there no work?
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == NIL
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU64;
    use loom::sync::Arc;
    use loom::thread;

    /// A thread that parks; a token is kept.
    struct Sleeper(loom::sync::Mutex<bool>, loom::sync::Condvar);
    impl Sleeper {
        fn new() -> Self {
            Self(loom::sync::Mutex::new(false), loom::sync::Condvar::new())
        }
        fn wake(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }
        fn sleep(&self) {
            let mut token = self.0.lock().unwrap();
            while !*token {
                token = self.1.wait(token).unwrap();
            }
            *token = false;
        }
    }

    /// A lost wake-up is a deadlock, which loom reports.
    #[test]
    fn waiter_never_misses_the_notifier() {
        loom::model(|| {
            let s = Arc::new((WaitFlag::new(), AtomicU64::new(0), Sleeper::new()));
            let t = s.clone();
            let notifier = thread::spawn(move || {
                for n in 1..=2 {
                    t.1.store(n, Ordering::Relaxed);
                    if t.0.notify() {
                        t.2.wake();
                    }
                }
            });
            for want in 1..=2 {
                loop {
                    if s.1.load(Ordering::Relaxed) >= want {
                        break;
                    }
                    s.0.prepare();
                    if s.1.load(Ordering::Relaxed) >= want {
                        s.0.cancel();
                        break;
                    }
                    s.2.sleep();
                }
            }
            notifier.join().unwrap();
        });
    }

    /// Two threads mark two cells, one of them both; the shard sleeps in between and misses nothing.
    #[test]
    fn shard_sees_every_mark() {
        // Three threads: all interleavings with up to two preemptions, which is where races live.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            struct World {
                asleep: WaitFlag,
                stack: DirtyStack,
                cells: [(DirtyLink, AtomicU64); 2],
                sleeper: Sleeper,
            }
            let cells = [(DirtyLink::new(), AtomicU64::new(0)), (DirtyLink::new(), AtomicU64::new(0))];
            let w = World { asleep: WaitFlag::new(), stack: DirtyStack::new(), cells, sleeper: Sleeper::new() };
            w.cells[0].0.adopt(0);
            w.cells[1].0.adopt(1);
            let w = Arc::new(w);
            let mark = |w: &World, i: usize| {
                w.cells[i].1.fetch_add(1, Ordering::Relaxed);
                if w.stack.push(&w.cells[i].0) && w.asleep.notify() {
                    w.sleeper.wake();
                }
            };
            let a = {
                let w = w.clone();
                thread::spawn(move || mark(&w, 0))
            };
            let b = {
                let w = w.clone();
                thread::spawn(move || {
                    mark(&w, 1);
                    mark(&w, 0);
                })
            };
            let mut seen = [0; 2];
            while seen != [2, 1] {
                let mut at = w.stack.take_all();
                while at != NIL {
                    let i = at as usize;
                    at = w.cells[i].0.take();
                    seen[i] = w.cells[i].1.load(Ordering::Relaxed);
                }
                if seen == [2, 1] {
                    break;
                }
                w.asleep.prepare();
                if w.stack.is_empty() {
                    w.sleeper.sleep();
                } else {
                    w.asleep.cancel();
                }
            }
            a.join().unwrap();
            b.join().unwrap();
            // A mark may still come after its work was seen: it is looked at in vain, and the stack is whole.
            let mut at = w.stack.take_all();
            for _ in 0..2 {
                at = if at == NIL { NIL } else { w.cells[at as usize].0.take() };
            }
            assert!(at == NIL && w.stack.is_empty());
        });
    }

    /// The application marks a cell and lets it go. A shard that finds itself alone with the cell, and the cell in no stack,
    /// may give its number to another.
    #[test]
    fn a_number_that_is_free_is_in_no_stack() {
        loom::model(|| {
            let stack = Arc::new(DirtyStack::new());
            let mut cell = Arc::new(DirtyLink::new());
            cell.adopt(0);
            let theirs = (stack.clone(), cell.clone());
            let app = thread::spawn(move || {
                let _ = theirs.0.push(&theirs.1);
                drop(theirs.1);
            });
            let taken = stack.take_all();
            if taken != NIL {
                assert_eq!((taken, cell.take()), (0, NIL));
            }
            if Arc::get_mut(&mut cell).is_some() && !cell.is_queued() {
                assert!(stack.is_empty(), "the number of a free cell is still in the stack");
            }
            app.join().unwrap();
        });
    }

    /// What was published before the adoption is seen by the look after it, or pushed.
    #[test]
    fn adoption_races_with_the_first_mark() {
        loom::model(|| {
            let s = Arc::new((DirtyStack::new(), DirtyLink::new(), AtomicU64::new(0)));
            let t = s.clone();
            let app = thread::spawn(move || {
                t.2.store(1, Ordering::Relaxed);
                t.0.push(&t.1)
            });
            s.1.adopt(0);
            let seen = s.2.load(Ordering::Relaxed);
            let pushed = app.join().unwrap();
            assert!(seen == 1 || pushed, "neither seen nor pushed");
        });
    }
}
