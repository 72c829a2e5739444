//! Interrupts without a thread: who sleeps says so, who brings work looks and calls the waker.
//!
//! ```text
//!   sleeper (irq_enable)                  bringer (after publishing)
//!     armed = true                          ring.tail = ..
//!     ---- SeqCst fence ----                ---- SeqCst fence ----
//!     look at the ring again                armed? then armed = false, wake
//! ```
//! Of the two looks at least one sees the other's store (Dekker), so no wake-up is lost; a waker is called only when its
//! side has armed, and once for each arming. The same pair of fences covers the way back: a transmitter that finds the
//! ring full says `tx_stopped`, and the receiver that makes room says `tx_room` and rings the bell of the transmitter.
//!
//! A waker reaches the far side over a small ring of its own, because there is no lock here. It is fetched only by who is
//! about to call it, after the arming that made it necessary. Wakers must bear being called early or twice.
//! Limits: at most [`WAKERS`] changes of waker between two calls; one sleeper and one bringer per direction.

use alloc::sync::Arc;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, Ordering, fence};
use linerate_skb::spsc::{Consumer, Producer, channel};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};

/// Changes of waker that may be waiting to be fetched.
pub(crate) const WAKERS: usize = 8;

/// How a sleeping shard is woken: an eventfd, a parker, a simulated interrupt. Called on the far side's thread.
pub trait Wake: Send + Sync {
    /// There is work. May be called when nobody sleeps.
    fn wake(&self);
}

impl<F: Fn() + Send + Sync> Wake for F {
    fn wake(&self) {
        self();
    }
}

/// The flags of one queue pair, shared with the far side.
#[derive(Debug)]
pub(crate) struct Irq {
    /// The owner sleeps or is about to.
    armed: AtomicBool,
    /// The owner's transmit ring was full.
    tx_stopped: AtomicBool,
    /// The far side has made room since.
    tx_room: AtomicBool,
}

impl Irq {
    pub(crate) fn new() -> Self {
        Self { armed: AtomicBool::new(false), tx_stopped: AtomicBool::new(false), tx_room: AtomicBool::new(false) }
    }

    /// The owner arms. `has_work` looks at the rings; true: there is work already, and it is not armed.
    pub(crate) fn enable(&self, has_work: impl FnOnce() -> bool) -> bool {
        self.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let room = self.tx_room.load(Ordering::Acquire) && self.tx_room.swap(false, Ordering::AcqRel);
        if room || has_work() {
            self.armed.store(false, Ordering::Relaxed);
            return true;
        }
        false
    }
    /// The owner polls.
    pub(crate) fn disable(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }
    /// The owner's ring is full. After this it must look at the ring once more.
    pub(crate) fn stop_tx(&self) {
        self.tx_stopped.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
    /// There was room after all.
    pub(crate) fn restart_tx(&self) {
        self.tx_stopped.store(false, Ordering::Relaxed);
    }
    /// A look without a fence: may be late, but a later look sees it.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.tx_stopped.load(Ordering::Relaxed)
    }
    /// The far side has taken slots: does the owner wait for that? (The far side then says `room` and rings.)
    pub(crate) fn take_stopped(&self, is_roomy: impl FnOnce() -> bool) -> bool {
        fence(Ordering::SeqCst);
        if !self.tx_stopped.load(Ordering::Relaxed) || !is_roomy() {
            return false;
        }
        self.tx_stopped.store(false, Ordering::Relaxed);
        self.tx_room.store(true, Ordering::Release);
        true
    }
}

/// The far side's end: rings the owner of an [`Irq`].
pub(crate) struct Bell {
    irq: Arc<Irq>,
    /// The owner never waits for it.
    muted: bool,
    wakers: Consumer<Arc<dyn Wake>>,
    waker: Option<Arc<dyn Wake>>,
}

impl Bell {
    /// A bell for the owner of `irq`, and where the owner puts its waker. A muted one never rings.
    pub(crate) fn new(irq: Arc<Irq>, muted: bool) -> (Self, Producer<Arc<dyn Wake>>) {
        let (tx, wakers) = channel(WAKERS);
        (Self { irq, muted, wakers, waker: None }, tx)
    }
    pub(crate) fn irq(&self) -> &Irq {
        &self.irq
    }
    /// Work was published: wakes the owner if it sleeps. Returns whether it did.
    #[inline]
    pub(crate) fn ring(&mut self) -> bool {
        if self.muted {
            return false;
        }
        fence(Ordering::SeqCst);
        if !self.irq.armed.load(Ordering::Relaxed) {
            return false;
        }
        self.wake()
    }
    #[cold]
    fn wake(&mut self) -> bool {
        // Acquire: what the owner did before arming (setting its waker) is seen.
        if !self.irq.armed.swap(false, Ordering::AcqRel) {
            return false;
        }
        fence(Ordering::SeqCst);
        while let Some(w) = self.wakers.pop() {
            self.waker = Some(w);
        }
        if let Some(w) = &self.waker {
            w.wake();
        }
        true
    }
}

impl Drop for Bell {
    /// The far side goes away (its ring end is closed already): who waits for room or frames looks once more.
    fn drop(&mut self) {
        self.irq.take_stopped(|| true);
        self.muted = false;
        self.ring();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicUsize;

    /// A sleeper that saw no work and armed is woken by the bringer.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let irq = Arc::new(Irq::new());
            let ring = loom::sync::Arc::new(AtomicUsize::new(0));
            let woken = loom::sync::Arc::new(AtomicUsize::new(0));
            let bringer = {
                let (irq, ring, woken) = (irq.clone(), ring.clone(), woken.clone());
                loom::thread::spawn(move || {
                    ring.store(1, Ordering::Release);
                    fence(Ordering::SeqCst);
                    if irq.armed.load(Ordering::Relaxed) && irq.armed.swap(false, Ordering::AcqRel) {
                        woken.store(1, Ordering::Release);
                    }
                })
            };
            let sleeps = !irq.enable(|| ring.load(Ordering::Acquire) == 1);
            bringer.join().unwrap();
            assert!(!sleeps || woken.load(Ordering::Acquire) == 1, "sleeps with work in the ring");
        });
    }

    /// A transmitter that stopped and armed is woken by the receiver that made room.
    #[test]
    fn no_restart_is_lost() {
        loom::model(|| {
            let irq = Arc::new(Irq::new());
            let full = loom::sync::Arc::new(AtomicUsize::new(1));
            let woken = loom::sync::Arc::new(AtomicUsize::new(0));
            let receiver = {
                let (irq, full, woken) = (irq.clone(), full.clone(), woken.clone());
                loom::thread::spawn(move || {
                    full.store(0, Ordering::Release);
                    if irq.take_stopped(|| true) {
                        fence(Ordering::SeqCst);
                        if irq.armed.load(Ordering::Relaxed) && irq.armed.swap(false, Ordering::AcqRel) {
                            woken.store(1, Ordering::Release);
                        }
                    }
                })
            };
            irq.stop_tx();
            let stopped = full.load(Ordering::Acquire) == 1;
            let sleeps = stopped && !irq.enable(|| false);
            receiver.join().unwrap();
            assert!(!sleeps || woken.load(Ordering::Acquire) == 1, "sleeps although there is room");
        });
    }
}
