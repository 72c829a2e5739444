//! A bounded ring between exactly two threads.
//!
//! ```text
//!        head (consumer writes)            tail (producer writes)       slot of index i: i & mask
//!   ... free | full | full | full | full | free ...                     tail - head = items, <= capacity
//! ```
//! One [`Producer`], one [`Consumer`], a power-of-two number of slots, no locks and no waiting. Indices run over all of
//! `usize` and wrap; their difference is the number of items. Each side keeps the other's index *cached* and looks at the
//! shared one only when the cache says full (empty): while the ring is neither, a line crosses between cores once per
//! batch and not once per item. Batches publish once. The two indices and the closing flags lie on lines of their own.
//!
//! **Who may touch what when.** Slot `i` belongs to the producer while `i - tail` (mod 2^64) is below the free room, and to
//! the consumer while `head <= i < tail`. The producer writes a slot, then publishes `tail` with Release; the consumer sees
//! it with Acquire and only then reads. The consumer moves the value out, then publishes `head` with Release; the producer
//! sees it with Acquire and only then writes again. The last of the two ends drops what is left.
//!
//! Closing: an end that is dropped closes the ring. The producer then fails at once; the consumer first gets what is left.
//! It does not: wake anyone, allocate after `channel`, or serve more than one thread at an end.

use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, SlotCell};
use alloc::boxed::Box;
use core::mem::MaybeUninit;

/// How far ahead a batch prefetches: about the latency of a line from another core, in slots of 10 ns of work.
const PREFETCH_SLOTS: usize = 12;

/// On a pair of lines of its own (adjacent lines are fetched together).
#[repr(align(128))]
struct Lines<T>(T);

struct Ring<T> {
    /// Consumer's index.
    head: Lines<AtomicUsize>,
    /// Producer's index.
    tail: Lines<AtomicUsize>,
    consumer_gone: Lines<AtomicBool>,
    producer_gone: AtomicBool,
    slots: Box<[SlotCell<MaybeUninit<T>>]>,
}

// SAFETY: slots change hands by the protocol in the module's head; `T` moves between threads, hence `Send`.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: see above; a `&Ring` reaches a slot only through the one producer or the one consumer.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// # Safety
    /// The slot of `i` belongs to the caller and holds nothing.
    #[inline]
    unsafe fn write(&self, i: usize, v: T) {
        let mask = self.slots.len() - 1;
        // SAFETY: masked, so in range; ours by contract.
        unsafe { self.slots.get_unchecked(i & mask).with_mut(|p| (*p).write(v)) };
    }
    /// # Safety
    /// The slot of `i` belongs to the caller and holds a value, which it does not afterwards.
    #[inline]
    unsafe fn read(&self, i: usize) -> T {
        let mask = self.slots.len() - 1;
        // SAFETY: masked, so in range; ours and full by contract.
        unsafe { self.slots.get_unchecked(i & mask).with_mut(|p| (*p).assume_init_read()) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (mut head, tail) = (self.head.0.load(Ordering::Relaxed), self.tail.0.load(Ordering::Relaxed));
        while head != tail {
            // SAFETY: both ends are gone; [head, tail) is full.
            drop(unsafe { self.read(head) });
            head = head.wrapping_add(1);
        }
    }
}

/// Why a value was not taken; it is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushError<T> {
    /// No slot is free now.
    Full(T),
    /// The consumer is gone.
    Closed(T),
}

impl<T> PushError<T> {
    /// The value.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(v) | Self::Closed(v) => v,
        }
    }
}

/// The sending end. `Send`, one thread at a time.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
    tail: usize,
    /// `tail` as the consumer may know it.
    published: usize,
    head_seen: usize,
}

/// The receiving end. `Send`, one thread at a time.
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    head: usize,
    tail_seen: usize,
}

/// A ring of `capacity` slots (brought up to a power of two, at least 1): its two ends.
pub fn channel<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    debug_assert!(capacity.is_power_of_two(), "the capacity is a power of two");
    let slots = (0..capacity.max(1).next_power_of_two()).map(|_| SlotCell::new(MaybeUninit::uninit())).collect();
    let ring = Arc::new(Ring {
        head: Lines(AtomicUsize::new(0)),
        tail: Lines(AtomicUsize::new(0)),
        consumer_gone: Lines(AtomicBool::new(false)),
        producer_gone: AtomicBool::new(false),
        slots,
    });
    (Producer { ring: ring.clone(), tail: 0, published: 0, head_seen: 0 }, Consumer { ring, head: 0, tail_seen: 0 })
}

impl<T: Send> Producer<T> {
    /// Slots.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.ring.slots.len()
    }
    /// Is the consumer gone?
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.ring.consumer_gone.0.load(Ordering::Acquire)
    }
    /// Items in the ring, staged ones included (may shrink at any time). Looks at the shared index.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.ring.head.0.load(Ordering::Acquire))
    }
    /// Is there no item in the ring?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Free slots, at least `want` if there are so many (the shared index is looked at only if the cached one says fewer).
    #[inline]
    pub fn room(&mut self, want: usize) -> usize {
        let cap = self.capacity();
        let room = cap - self.tail.wrapping_sub(self.head_seen);
        if room >= want {
            return room;
        }
        self.head_seen = self.ring.head.0.load(Ordering::Acquire);
        cap - self.tail.wrapping_sub(self.head_seen)
    }

    /// Writes and publishes; gives the value back when the ring is full. Does not look whether the consumer is there.
    #[inline]
    pub fn try_push(&mut self, v: T) -> Result<(), T> {
        self.stage(v)?;
        self.publish();
        Ok(())
    }

    /// Writes without publishing: the consumer sees it after [`publish`](Self::publish), or after anything else that
    /// publishes. Gives the value back when the ring is full.
    #[inline]
    pub fn stage(&mut self, v: T) -> Result<(), T> {
        if self.room(1) == 0 {
            return Err(v);
        }
        // SAFETY: there is room, so the slot at `tail` is ours and empty.
        unsafe { self.ring.write(self.tail, v) };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// As [`stage`](Self::stage) for a value that is finished where it lies: `begin` makes it, `f` completes it in the ring.
    /// False when the ring is full, or when `f` says so: then the value is dropped and nothing is staged.
    #[inline]
    pub fn stage_with(&mut self, begin: impl FnOnce() -> T, f: impl FnOnce(&mut T) -> bool) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        let mask = self.ring.slots.len() - 1;
        let Some(slot) = self.ring.slots.get(self.tail & mask) else { return false };
        let whole = slot.with_mut(|p| {
            // SAFETY: there is room, so the slot at `tail` is ours and empty. (Should `f` panic, the value leaks.)
            let v = unsafe { (*p).write(begin()) };
            f(v)
        });
        if whole {
            self.tail = self.tail.wrapping_add(1);
        } else {
            // SAFETY: written above, not staged, and read once.
            drop(unsafe { self.ring.read(self.tail) });
        }
        whole
    }

    /// Items that are staged.
    #[inline]
    pub fn staged(&self) -> usize {
        self.tail.wrapping_sub(self.published)
    }

    /// Publishes what is staged, together.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.published = self.tail;
            self.ring.tail.0.store(self.tail, Ordering::Release);
        }
    }

    /// As [`try_push`](Self::try_push), and says which: full, or closed.
    #[inline]
    pub fn push(&mut self, v: T) -> Result<(), PushError<T>> {
        if self.is_closed() {
            return Err(PushError::Closed(v));
        }
        self.try_push(v).map_err(PushError::Full)
    }

    /// Takes items from `it` while there is room and publishes them together; returns how many. What does not fit stays in
    /// the iterator.
    #[inline]
    pub fn push_batch(&mut self, it: &mut impl Iterator<Item = T>) -> usize {
        let room = self.room(self.capacity());
        let mut n = 0;
        while n < room {
            let Some(v) = it.next() else { break };
            // SAFETY: `n < room`, so the slot is ours and empty. (Should the iterator panic, unpublished values leak.)
            unsafe { self.ring.write(self.tail.wrapping_add(n), v) };
            n += 1;
        }
        self.tail = self.tail.wrapping_add(n);
        self.publish();
        n
    }
}

impl<T: Send> Consumer<T> {
    /// Slots.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.ring.slots.len()
    }
    /// Is the producer gone? Items may still be in the ring.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.ring.producer_gone.load(Ordering::Acquire)
    }
    /// Items in the ring (may grow at any time). Looks at the shared index.
    #[inline]
    pub fn len(&self) -> usize {
        self.ring.tail.0.load(Ordering::Acquire).wrapping_sub(self.head)
    }
    /// Is there no item in the ring?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn ready(&mut self) -> usize {
        let ready = self.tail_seen.wrapping_sub(self.head);
        if ready > 0 {
            return ready;
        }
        self.tail_seen = self.ring.tail.0.load(Ordering::Acquire);
        self.tail_seen.wrapping_sub(self.head)
    }

    /// The oldest item, without taking it.
    #[inline]
    pub fn peek(&mut self) -> Option<&T> {
        if self.ready() == 0 {
            return None;
        }
        let mask = self.ring.slots.len() - 1;
        let slot = self.ring.slots.get(self.head & mask)?;
        // SAFETY: published and not taken, hence ours and full; borrowed from `self`, which alone could take it.
        Some(slot.with_mut(|p| unsafe { (*p).assume_init_ref() }))
    }

    /// Takes the oldest item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.ready() == 0 {
            return None;
        }
        // SAFETY: published and not taken, hence ours and full.
        let v = unsafe { self.ring.read(self.head) };
        self.head = self.head.wrapping_add(1);
        self.ring.head.0.store(self.head, Ordering::Release);
        Some(v)
    }

    /// Takes the oldest item if `f`, which sees it where it lies, says so; else it stays. What `f` leaves of a taken item is
    /// dropped. Returns whether it was taken.
    #[inline]
    pub fn pop_if(&mut self, f: impl FnOnce(&mut T) -> bool) -> bool {
        if self.ready() == 0 {
            return false;
        }
        let mask = self.ring.slots.len() - 1;
        let Some(slot) = self.ring.slots.get(self.head & mask) else { return false };
        slot.with_mut(|p| {
            // SAFETY: published and not taken, hence ours and full.
            let v = unsafe { (*p).assume_init_mut() };
            let taken = f(v);
            if taken {
                // SAFETY: as above; never touched again, since `head` moves on.
                unsafe { core::ptr::drop_in_place(v) };
                self.head = self.head.wrapping_add(1);
                self.ring.head.0.store(self.head, Ordering::Release);
            }
            taken
        })
    }

    /// Takes up to `max` items in order, each into `f`, and frees their slots together; returns how many.
    #[inline]
    pub fn pop_batch(&mut self, max: usize, mut f: impl FnMut(T)) -> usize {
        if self.ready() < max {
            self.tail_seen = self.ring.tail.0.load(Ordering::Acquire);
        }
        let n = self.tail_seen.wrapping_sub(self.head).min(max);
        let taken = Taken(self);
        for _ in 0..n {
            // Slots were written on the other core: ask for a later one while this one is worked on. Not beyond what is
            // published: that would take lines away from the producer.
            let ahead = taken.0.head.wrapping_add(PREFETCH_SLOTS);
            if taken.0.tail_seen.wrapping_sub(taken.0.head) > PREFETCH_SLOTS
                && let Some(slot) = taken.0.ring.slots.get(ahead & (taken.0.ring.slots.len() - 1))
            {
                linerate_arch::prefetch_read(slot);
            }
            // SAFETY: published and not taken, hence ours and full.
            let v = unsafe { taken.0.ring.read(taken.0.head) };
            taken.0.head = taken.0.head.wrapping_add(1);
            f(v);
        }
        n
    }
}

/// Publishes the consumer's index when it goes, also when a callback panics: an item is never read twice.
struct Taken<'a, T>(&'a mut Consumer<T>);

impl<T> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.ring.head.0.store(self.0.head, Ordering::Release);
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // What is staged reaches the consumer too, or is dropped with the ring.
        self.ring.tail.0.store(self.tail, Ordering::Release);
        self.ring.producer_gone.store(true, Ordering::Release);
    }
}
impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.ring.consumer_gone.0.store(true, Ordering::Release);
    }
}

impl<T> core::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Producer").field("tail", &self.tail).finish_non_exhaustive()
    }
}
impl<T> core::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Consumer").field("head", &self.head).finish_non_exhaustive()
    }
}
