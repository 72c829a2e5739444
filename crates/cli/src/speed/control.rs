//! Slices: the flow runs, stands still while the kernel's flow runs, and goes on.
//!
//! Time is an argument of the stack, so a pause is a clock that stands still: no retransmission timer fires because the
//! other side had its turn. [`Control`] is shared by the coordinating thread and the threads of the two ends. A phase is
//! a number that only grows: odd while a slice runs, even between slices; [`STOP`] ends the run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use linerate_base::{Duration, Instant};
use linerate_host::{Clock, Unparker};

const STOP: u64 = u64::MAX;

/// What the coordinator and the ends share.
pub(crate) struct Control {
    phase: AtomicU64,
    lock: Mutex<State>,
    changed: Condvar,
    clock: Clock,
}

#[derive(Default)]
struct State {
    /// Ends that stand still.
    parked: usize,
    /// Active time before the current slice, ns.
    active_ns: u64,
    /// When the current slice began, on the host's clock, ns.
    began_ns: u64,
}

/// The clock of a slice: active time since the run began.
#[derive(Clone)]
pub(crate) struct SliceClock {
    clock: Clock,
    base_ns: u64,
    began_ns: u64,
}

impl SliceClock {
    /// Now, in active time.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.base_ns + self.clock.now().as_nanos().saturating_sub(self.began_ns))
    }
}

impl Control {
    pub(crate) fn new() -> Self {
        Self { phase: AtomicU64::new(0), lock: Mutex::default(), changed: Condvar::new(), clock: Clock::fast() }
    }

    /// True while the current slice runs.
    pub(crate) fn running(&self) -> bool {
        let phase = self.phase.load(Ordering::Relaxed);
        phase & 1 == 1 && phase != STOP
    }

    /// An end stands still until the next slice; `None` when there is none.
    pub(crate) fn wait_for_slice(&self) -> Option<SliceClock> {
        let mut state = self.lock.lock().ok()?;
        state.parked += 1;
        self.changed.notify_all();
        loop {
            match self.phase.load(Ordering::Acquire) {
                STOP => return None,
                phase if phase & 1 == 1 => break,
                _ => state = self.changed.wait(state).ok()?,
            }
        }
        state.parked -= 1;
        self.changed.notify_all();
        Some(SliceClock { clock: self.clock, base_ns: state.active_ns, began_ns: state.began_ns })
    }

    /// Runs one slice of `secs` (or until `done`), with `ends` threads; returns its real length in seconds.
    pub(crate) fn slice(&self, secs: f64, ends: usize, unparkers: &[Unparker], done: impl Fn() -> bool) -> f64 {
        let Some(mut state) = self.wait_parked(ends) else { return 0.0 };
        state.began_ns = self.clock.now().as_nanos();
        self.phase.fetch_add(1, Ordering::AcqRel);
        drop(state);
        self.changed.notify_all();
        // A thread that the scheduler lets sleep through its slice would never be seen parked again.
        drop(self.wait_parked(0));
        let start = std::time::Instant::now();
        let end = Duration::from_secs_f64(secs);
        while start.elapsed() < end && !done() {
            std::thread::sleep((end.saturating_sub(start.elapsed())).min(Duration::from_millis(20)));
        }
        self.phase.fetch_add(1, Ordering::AcqRel);
        let elapsed = start.elapsed();
        for unparker in unparkers {
            unparker.unpark();
        }
        if let Some(mut state) = self.wait_parked(ends) {
            // A little more than the slice: the ends' clock must never run backwards.
            state.active_ns += self.clock.now().as_nanos() - state.began_ns;
        }
        elapsed.as_secs_f64()
    }

    /// Ends the run.
    pub(crate) fn stop(&self) {
        let _state = self.lock.lock();
        self.phase.store(STOP, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits until exactly `ends` threads stand still.
    fn wait_parked(&self, ends: usize) -> Option<std::sync::MutexGuard<'_, State>> {
        let mut state = self.lock.lock().ok()?;
        while state.parked != ends {
            state = self.changed.wait(state).ok()?;
        }
        Some(state)
    }
}
