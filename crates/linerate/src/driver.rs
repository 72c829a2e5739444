//! The thread of a [`Stack`](crate::Stack): it turns the shard, runs what was asked of it, and sleeps.
//!
//! ```text
//!   take calls -> turn -> run calls -> stop? -> work left? again
//!                                            -> Spin: again   Adaptive: again for a while   Block: at once
//!                                            -> arm devices and handles, look once more, sleep until woken or a timer
//! ```
//! Calls are taken *before* the turn and run after it, so a call that was made after a command of the same thread (connect,
//! listen) finds that command obeyed. The sleep is on the parker, and on the descriptors of devices that have one
//! ([`WatchList`]). Waking always leaves a token ([`Unparker::unpark`]), so a call, a frame or a
//! command that comes between the last look and the sleep ends that sleep at once.
//!
//! The end: every connection is reset, the turns that send the resets run, the shard is dropped (which tells every handle),
//! and calls that nobody will run are dropped (which tells their callers). A panic ends the same way, without resets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linerate_base::Instant;
use linerate_host::wake::SPIN_US;
use linerate_host::{Clock, Parker, Unparker, Wait, WatchList};
use linerate_stack::{Shard, Turn};

/// Turns that may run after the reset of all connections until the devices took the resets.
const SHUTDOWN_TURNS: usize = 64;
/// Turns without work between two offers of the CPU to others, while spinning.
const TURNS_PER_YIELD: u32 = 32;

/// Something to run between two turns.
pub(crate) type Call = Box<dyn FnOnce(&mut Shard) + Send>;

/// What the owner and the handles share with the thread.
pub(crate) struct Control {
    stop: AtomicBool,
    has_calls: AtomicBool,
    /// `None` once the thread has ended.
    calls: Mutex<Option<Vec<Call>>>,
    unparker: Unparker,
}

impl Control {
    pub(crate) fn new(unparker: Unparker) -> Arc<Self> {
        Arc::new(Self {
            stop: AtomicBool::new(false),
            has_calls: AtomicBool::new(false),
            calls: Mutex::new(Some(Vec::new())),
            unparker,
        })
    }
    /// Asks for a call. False when the thread has ended.
    pub(crate) fn call(&self, call: Call) -> bool {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(list) = calls.as_mut() else { return false };
        list.push(call);
        self.has_calls.store(true, Ordering::Release);
        drop(calls);
        self.unparker.unpark();
        true
    }
    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.unparker.unpark();
    }
    /// What was asked for; the price of nothing is a load.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        if !self.has_calls.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_calls.store(false, Ordering::Relaxed);
        calls.as_mut().map(std::mem::take).unwrap_or_default()
    }
    /// From now on nothing is taken; what was not run is dropped.
    pub(crate) fn close(&self) {
        // Dropped outside the lock: a call may own anything.
        let refused = self.calls.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(refused);
    }
}

/// The thread's own state.
pub(crate) struct Driver {
    pub(crate) shard: Shard,
    pub(crate) parker: Parker,
    /// Descriptors of devices; when there is one, the parker has an eventfd.
    pub(crate) watched: WatchList,
    pub(crate) control: Arc<Control>,
    /// Those of all shards of the stack, this one's included.
    pub(crate) all: Arc<[Arc<Control>]>,
    pub(crate) wait: Wait,
    pub(crate) budget: usize,
    pub(crate) clock: Clock,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.control.close();
        if std::thread::panicking() {
            // What is left of the stack would lose the packets of this shard without a word.
            self.all.iter().for_each(|control| control.stop());
        }
    }
}

impl Driver {
    /// Runs until [`Control::stop`].
    pub(crate) fn run(mut self) {
        let mut idle = Idle::default();
        while !self.control.stop.load(Ordering::Acquire) {
            let calls = self.control.take_calls();
            let now = self.clock.now();
            let turn = self.shard.turn(now, self.budget);
            let busy = turn.rx_skbs + turn.tx_skbs != 0 || turn.more || !calls.is_empty();
            for call in calls {
                call(&mut self.shard);
            }
            // Sockets that calls opened have no other listener: their events are looked up, not queued for ever.
            while self.shard.next_ready().is_some() {}
            if busy {
                idle = Idle::default();
            } else if idle.may_sleep(self.wait, now) {
                self.sleep(&turn);
            }
        }
        self.finish();
    }

    fn sleep(&mut self, turn: &Turn) {
        if !self.shard.prepare_sleep() {
            return;
        }
        let left = turn.next.and_then(|at| self.clock.until(at));
        if left == Some(Duration::ZERO) {
            return;
        }
        let _ = if self.watched.is_empty() {
            self.parker.wait(Wait::Block, left)
        } else {
            self.parker.wait_watching(&mut self.watched, left)
        };
    }

    fn finish(&mut self) {
        self.shard.reset_all();
        for _ in 0..SHUTDOWN_TURNS {
            if !self.shard.turn(self.clock.now(), self.budget).more {
                break;
            }
        }
    }
}

/// For how long nothing happened.
#[derive(Default)]
struct Idle {
    since: Option<Instant>,
    turns: u32,
}

impl Idle {
    /// After a turn without work: is it time to sleep?
    fn may_sleep(&mut self, wait: Wait, now: Instant) -> bool {
        match wait {
            Wait::Block => return true,
            Wait::Adaptive => {
                let since = *self.since.get_or_insert(now);
                if now.since(since) >= Duration::from_micros(SPIN_US) {
                    return true;
                }
            }
            Wait::Spin => {}
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_YIELD) {
            // Whoever should bring the work may be waiting for this very core.
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        false
    }
}
