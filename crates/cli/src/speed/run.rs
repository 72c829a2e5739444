//! Runs the two ends in slices, on one thread or two.
//!
//! A thread's loop is: read the clock, one turn of the shard, one step of the application, for each of its ends (the clock
//! once for both when they move little: a transaction's two messages are one round of the loop). When neither moved anything
//! the thread waits as `--wait` says: it spins, or it arms the NIC's interrupt, looks once more, and sleeps until the
//! far side rings or a timer is due. CPU time is the kernel's account of the thread, read at both ends of a slice.

use std::sync::atomic::Ordering;

use linerate_arch::cycles;
use linerate_base::{Duration, Instant};
use linerate_host::{Parker, Unparker, Wait, cpu_time};

use super::args::WaitMode;
use super::control::{Control, SliceClock};
use super::setup::End;

/// Skbs that one turn may take.
const BUDGET: usize = 256;
/// Skbs of a turn so short that the other end's may have the same time: reading the clock would cost as much.
const LIGHT_SKBS: usize = 2;
/// One thread must not sleep through the end of its slice.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

impl From<WaitMode> for Wait {
    fn from(mode: WaitMode) -> Self {
        match mode {
            WaitMode::Block => Self::Block,
            WaitMode::Spin => Self::Spin,
            WaitMode::Adaptive => Self::Adaptive,
        }
    }
}

/// What a thread brings back.
pub(crate) struct Finished {
    pub(crate) ends: Vec<End>,
    /// CPU time in slices.
    pub(crate) cpu: Duration,
    /// Length of those slices.
    pub(crate) active: Duration,
    /// Rate of the cycle counter, from those slices.
    pub(crate) cycles_per_ns: f64,
    pub(crate) error: Option<String>,
}

/// The loop of a thread that drives one end or both.
pub(crate) fn drive(ends: Vec<End>, control: &Control, parker: &Parker, mode: Wait) -> Finished {
    let mut this = Finished { ends, cpu: Duration::ZERO, active: Duration::ZERO, cycles_per_ns: 1.0, error: None };
    let mut counted = 0;
    let _watch = control.watch();
    while let Some(clock) = control.wait_for_slice() {
        let (cpu, began, began_cycles) = (cpu_time(), clock.now(), cycles());
        while control.running() && this.error.is_none() {
            match run_until_idle(&mut this.ends, control, &clock) {
                Err(message) => {
                    this.fail(message);
                    control.end_slice(&clock, clock.now());
                }
                Ok(next) if control.running() => wait(&mut this.ends, next, &clock, control, parker, mode),
                Ok(_) => {}
            }
        }
        this.cpu += cpu_time().saturating_sub(cpu);
        this.active += clock.now().since(began);
        counted += cycles().wrapping_sub(began_cycles);
    }
    this.cycles_per_ns = counted as f64 / (this.active.as_nanos() as f64).max(1.0);
    this
}

impl Finished {
    /// The end stops here; the coordinator sees the flag and ends the run.
    fn fail(&mut self, message: String) {
        for end in &self.ends {
            end.app.counters().failed.store(1, Ordering::Relaxed);
        }
        self.error = Some(message);
    }
}

/// Turns and steps until a round moves nothing or the slice is over; then the earliest deadline.
fn run_until_idle(ends: &mut [End], control: &Control, clock: &SliceClock) -> Result<Option<Instant>, String> {
    let mut next: Option<Instant> = None;
    let mut now = clock.now();
    while control.goes_on(clock, now) {
        let mut progress = false;
        next = None;
        let mut moved = 0;
        for end in ends.iter_mut() {
            if moved > LIGHT_SKBS {
                now = clock.now();
            }
            let turn = end.shard.turn(now, BUDGET);
            moved = turn.rx_skbs + turn.tx_skbs;
            progress |= moved > 0 || turn.more;
            next = match (next, turn.next) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if end.app.step(&mut end.shard, now)? {
                end.shard.flush();
                progress = true;
            }
        }
        now = clock.now();
        if !progress {
            break;
        }
    }
    Ok(next)
}

fn wait(ends: &mut [End], next: Option<Instant>, clock: &SliceClock, control: &Control, parker: &Parker, mode: Wait) {
    if mode == Wait::Spin {
        control.give_way();
        return;
    }
    let now = clock.now();
    let timeout = next.map_or(LONGEST_SLEEP, |next| next.since(now).min(LONGEST_SLEEP));
    if timeout.is_zero() {
        return;
    }
    let _ = parker.wait_until(mode, Some(timeout), || {
        !control.running() || ends.iter_mut().any(|end| !end.shard.prepare_sleep())
    });
}

/// A parker for each thread, and what wakes it.
pub(crate) fn parkers(threads: usize) -> (Vec<Parker>, Vec<Unparker>) {
    let parkers: Vec<Parker> = (0..threads).map(|_| Parker::with_futex()).collect();
    let unparkers = parkers.iter().map(Parker::unparker).collect();
    (parkers, unparkers)
}
