//! Who stands still: a list of things that should move, looked at every few milliseconds.
//!
//! Whatever should move [`Watched::moved`]s a time stamp. A thread looks at all of them; what has not moved for longer than
//! allowed is a stall. A machine that does other work, or stops this process altogether, makes everybody stand still, and
//! the watcher too: how much later than asked it wakes is added up, and what was added up since a thing moved is taken from
//! its pause. (Twice: who shares CPUs waits for its turn, and its peer for its own.) So a stall is the program's, not the
//! machine's, and the sum says how good the machine was.
//!
//! Limits: pauses are seen with the resolution of the watcher's look.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::STALL;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// Stalls that are told; more say nothing new.
const TOLD: usize = 20;

/// When a thing moved, and how late the watcher had been by then; nanoseconds.
#[derive(Debug, Default)]
struct Moved {
    at: AtomicU64,
    held_up: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    things: BTreeMap<u64, (String, Arc<Moved>)>,
    stalls: Vec<String>,
}

/// The list, and what was seen.
#[derive(Debug)]
pub(crate) struct Watch {
    began: Instant,
    list: Mutex<List>,
    held_up: AtomicU64,
    longest: AtomicU64,
    failed: AtomicBool,
    stop: AtomicBool,
}

/// A thing that should move until it is dropped.
pub(crate) struct Watched<'a> {
    watch: &'a Watch,
    number: u64,
    moved: Arc<Moved>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            list: Mutex::default(),
            held_up: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Begins to watch a thing.
    pub(crate) fn add(&self, name: String) -> Watched<'_> {
        let moved = Arc::new(Moved::default());
        let mut watched = Watched { watch: self, number: 0, moved: moved.clone() };
        // Before the watcher can see it: a thing that never moved would have stood still since the beginning.
        watched.moved();
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        watched.number = list.next;
        list.next += 1;
        list.things.insert(watched.number, (name, moved));
        drop(list);
        watched
    }

    /// Looks until [`Self::stop`].
    pub(crate) fn run(&self) {
        let mut last = self.now();
        while !self.stop.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
            let now = self.now();
            let late = (now - last).saturating_sub(LOOK.as_nanos() as u64);
            last = now;
            let held_up = self.held_up.fetch_add(late, Ordering::Relaxed) + late;
            self.look(now, held_up);
        }
    }

    fn look(&self, now: u64, held_up: u64) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let list = &mut *list;
        for (name, moved) in list.things.values() {
            let since = now.saturating_sub(moved.at.load(Ordering::Acquire));
            let excused = 2 * held_up.saturating_sub(moved.held_up.load(Ordering::Relaxed));
            let pause = since.saturating_sub(excused);
            self.longest.fetch_max(pause, Ordering::Relaxed);
            if u128::from(pause) > STALL.as_nanos() {
                self.failed.store(true, Ordering::Relaxed);
                if list.stalls.len() < TOLD {
                    list.stalls.push(format!(
                        "{name}: no progress for {:?} ({:?} of it excused)",
                        Duration::from_nanos(since),
                        Duration::from_nanos(excused)
                    ));
                }
            }
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
    /// What stood still.
    pub(crate) fn stalls(&self) -> Vec<String> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).stalls.clone()
    }
    /// The longest pause of anything, without what was excused.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }
    /// How much later than asked the watcher woke, in all.
    pub(crate) fn held_up(&self) -> Duration {
        Duration::from_nanos(self.held_up.load(Ordering::Relaxed))
    }
}

impl Watched<'_> {
    /// It moved.
    pub(crate) fn moved(&self) {
        self.moved.held_up.store(self.watch.held_up.load(Ordering::Relaxed), Ordering::Relaxed);
        self.moved.at.store(self.watch.now(), Ordering::Release);
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let mut list = self.watch.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.things.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_pause_is_a_stall_only_when_nobody_kept_it() {
        let watch = Watch::new();
        let thing = watch.add("a thing".into());
        let at = thing.moved.at.load(Ordering::Relaxed);
        watch.look(at + 900 * MS, 0);
        assert_eq!((watch.has_failed(), watch.longest()), (false, Duration::from_millis(900)));
        // Three seconds, of which the machine took a second and a half from everybody.
        watch.look(at + 3000 * MS, 1500 * MS);
        assert!(!watch.has_failed());
        watch.look(at + 3000 * MS, 900 * MS);
        assert!(watch.has_failed() && watch.stalls()[0].starts_with("a thing: no progress for 3s"), "{watch:?}");
    }

    #[test]
    fn what_has_just_begun_has_just_moved() {
        let watch = Watch { began: Instant::now() - 100 * STALL, ..Watch::new() };
        thread::scope(|s| {
            s.spawn(|| watch.run());
            for n in 0..20_000 {
                drop(watch.add(format!("{n}")));
            }
            watch.stop();
        });
        assert!(!watch.has_failed(), "{watch:?}");
    }

    #[test]
    fn what_has_ended_is_not_watched() {
        let watch = Watch::new();
        drop(watch.add("ended".into()));
        watch.look(100_000 * MS, 0);
        assert!(!watch.has_failed());
    }

    #[test]
    fn the_watcher_notices_its_own_lateness() {
        let watch = Watch::new();
        thread::scope(|s| {
            s.spawn(|| watch.run());
            thread::sleep(5 * LOOK);
            watch.stop();
        });
        assert!(watch.held_up() > Duration::ZERO, "nobody wakes to the nanosecond");
    }
}
