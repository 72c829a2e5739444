//! Slices: the flow runs, stands still while the kernel's flow runs, and goes on.
//!
//! Time is an argument of the stack, so a pause is a clock that stands still: no retransmission timer fires because the
//! other side had its turn. [`Control`] is shared by the coordinating thread and the threads of the two ends. A phase is
//! a number that only grows: odd while a slice runs, even between slices; [`STOP`] ends the run.
//!
//! Who sees first that the time is up ends the slice: the ends read their clock anyway, and two ends that spin may keep
//! the coordinator from its CPU for long. Where threads outnumber CPUs a spinning end gives its own up now and then.
//! A thread that panics is counted as lost, so that nobody waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use linerate_base::{Duration, Instant};
use linerate_host::{Clock, Unparker};

const STOP: u64 = u64::MAX;
/// How often the coordinator looks whether a slice is done.
const POLL: Duration = Duration::from_millis(20);

/// What the coordinator and the ends share.
pub(crate) struct Control {
    phase: AtomicU64,
    lock: Mutex<State>,
    changed: Condvar,
    clock: Clock,
    /// Active time at which the last slice was ended, ns.
    ended_ns: AtomicU64,
    /// Threads outnumber CPUs.
    crowded: bool,
}

#[derive(Default)]
struct State {
    /// Ends that stand still.
    parked: usize,
    /// Active time before the current slice, ns.
    active_ns: u64,
    /// When the current slice began, on the host's clock, ns.
    began_ns: u64,
    /// Length of the current slice, ns.
    limit_ns: u64,
    /// A thread of the run panicked.
    lost: bool,
}

/// The clock of a slice: active time since the run began.
#[derive(Clone)]
pub(crate) struct SliceClock {
    clock: Clock,
    base_ns: u64,
    began_ns: u64,
    end: Instant,
    phase: u64,
}

impl SliceClock {
    /// Now, in active time.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.base_ns + self.clock.now().as_nanos().saturating_sub(self.began_ns))
    }
}

impl Control {
    /// For `threads` threads, the coordinator's own not counted.
    pub(crate) fn new(threads: usize) -> Self {
        let cpus = linerate_host::allowed_cpus().map_or(1, |cpus| cpus.len());
        Self {
            phase: AtomicU64::new(0),
            lock: Mutex::default(),
            changed: Condvar::new(),
            clock: Clock::fast(),
            ended_ns: AtomicU64::new(0),
            crowded: cpus < threads,
        }
    }

    /// Where threads outnumber CPUs: lets another thread run.
    pub(crate) fn give_way(&self) {
        if self.crowded {
            std::thread::yield_now();
        } else {
            core::hint::spin_loop();
        }
    }

    /// True while the current slice runs.
    pub(crate) fn running(&self) -> bool {
        let phase = self.phase.load(Ordering::Relaxed);
        phase & 1 == 1 && phase != STOP
    }

    /// Ends the slice of `clock` when its time is up at `now`; false when it is over.
    pub(crate) fn goes_on(&self, clock: &SliceClock, now: Instant) -> bool {
        if now >= clock.end {
            self.end_slice(clock, now);
        }
        self.running()
    }

    /// Ends the slice of `clock` at `now`, unless another thread did.
    pub(crate) fn end_slice(&self, clock: &SliceClock, now: Instant) {
        // Only what the winner stores counts; the coordinator reads it after the threads have parked.
        if self.phase.compare_exchange(clock.phase, clock.phase + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.ended_ns.store(now.as_nanos(), Ordering::Release);
        }
    }

    /// An end stands still until the next slice; `None` when there is none.
    pub(crate) fn wait_for_slice(&self) -> Option<SliceClock> {
        let mut state = self.lock.lock().ok()?;
        state.parked += 1;
        self.changed.notify_all();
        let phase = loop {
            match self.phase.load(Ordering::Acquire) {
                STOP => return None,
                phase if phase & 1 == 1 => break phase,
                _ => state = self.changed.wait(state).ok()?,
            }
        };
        state.parked -= 1;
        self.changed.notify_all();
        Some(self.slice_clock(&state, phase))
    }

    fn slice_clock(&self, state: &State, phase: u64) -> SliceClock {
        let end = Instant::from_nanos(state.active_ns.saturating_add(state.limit_ns));
        SliceClock { clock: self.clock, base_ns: state.active_ns, began_ns: state.began_ns, end, phase }
    }

    /// Runs one slice of `secs` (or until `done`), with `ends` threads; returns its real length in seconds.
    pub(crate) fn slice(&self, secs: f64, ends: usize, unparkers: &[Unparker], done: impl Fn() -> bool) -> f64 {
        let Some(mut state) = self.wait_parked(ends) else { return 0.0 };
        let limit = Duration::from_secs_f64(secs);
        state.limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        state.began_ns = self.clock.now().as_nanos();
        let phase = self.phase.load(Ordering::Relaxed) + 1;
        let clock = self.slice_clock(&state, phase);
        self.phase.store(phase, Ordering::Release);
        drop(state);
        self.changed.notify_all();
        // A thread that the scheduler lets sleep through its slice would never be seen parked again.
        let Some(state) = self.wait_while(|state| state.parked != 0 && self.running()) else { return 0.0 };
        drop(state);
        while self.goes_on(&clock, clock.now()) {
            if done() {
                self.end_slice(&clock, clock.now());
                break;
            }
            std::thread::sleep(clock.end.since(clock.now()).min(POLL));
        }
        for unparker in unparkers {
            unparker.unpark();
        }
        let Some(mut state) = self.wait_parked(ends) else { return 0.0 };
        let ended_ns = self.ended_ns.load(Ordering::Acquire);
        let secs = ended_ns.saturating_sub(state.active_ns) as f64 / 1e9;
        // A little more than the slice: the ends' clock must never run backwards.
        state.active_ns += self.clock.now().as_nanos().saturating_sub(state.began_ns);
        secs
    }

    /// Ends the run.
    pub(crate) fn stop(&self) {
        let _state = self.lock.lock();
        self.phase.store(STOP, Ordering::Release);
        self.changed.notify_all();
    }

    /// Notes a panic of the calling thread, should there be one while the guard lives.
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch(self)
    }

    /// Waits until exactly `ends` threads stand still.
    fn wait_parked(&self, ends: usize) -> Option<MutexGuard<'_, State>> {
        self.wait_while(|state| state.parked != ends)
    }

    /// `None` when a thread was lost.
    fn wait_while(&self, wait: impl Fn(&State) -> bool) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock.lock().ok()?;
        while wait(&state) {
            if state.lost {
                return None;
            }
            state = self.changed.wait(state).ok()?;
        }
        Some(state)
    }
}

/// See [`Control::watch`].
pub(crate) struct Watch<'a>(&'a Control);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(mut state) = self.0.lock.lock()
        {
            state.lost = true;
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// An end that spins and reads its clock, as `run` does.
    fn end(control: &Control, turns: &AtomicU64) {
        let _watch = control.watch();
        while let Some(clock) = control.wait_for_slice() {
            while control.goes_on(&clock, clock.now()) {
                turns.fetch_add(1, Ordering::Relaxed);
                control.give_way();
            }
        }
    }

    #[test]
    fn slices_end_by_the_clock_of_the_ends() {
        let (control, turns) = (Control::new(4), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| end(&control, &turns));
            }
            let mut active = 0.0;
            for _ in 0..50 {
                active += control.slice(0.002, 4, &[], || false);
            }
            control.stop();
            assert!(active >= 50.0 * 0.002, "each slice lasts at least what was asked for: {active}");
        });
        assert!(turns.into_inner() > 0);
    }

    #[test]
    fn a_slice_that_is_done_ends_early_and_one_whose_thread_died_ends_at_all() {
        let (control, done) = (Control::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| end(&control, &AtomicU64::new(0)));
            let died = scope.spawn(|| {
                let _watch = control.watch();
                let clock = control.wait_for_slice().unwrap();
                done.store(true, Ordering::Relaxed);
                while control.goes_on(&clock, clock.now()) {
                    control.give_way();
                }
                panic!("as a bug would");
            });
            let secs = control.slice(3600.0, 2, &[], || done.load(Ordering::Relaxed));
            assert!(secs < 60.0);
            assert!(died.join().is_err());
            assert_eq!(control.slice(3600.0, 2, &[], || false), 0.0);
            control.stop();
        });
    }
}
