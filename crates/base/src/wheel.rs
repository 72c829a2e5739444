//! The timer wheel of a shard (DESIGN section 3, "Timers").
//!
//! # Theory
//! Every connection owns one key (its slab index) and arms it at the earliest of its named timers. There may be millions
//! of keys, nearly all of them re-armed or cancelled before they fire, so arming and cancelling are O(1) and firing may
//! cost a little more.
//!
//! Time is cut into ticks of 1 ms. The wheel has 8 levels of 64 slots; a timer lies at the level of the highest 6-bit
//! digit in which its tick differs from the wheel's position. All timers of a level are therefore later than all timers
//! of the levels below, and *the first set bit of the lowest occupied level* is the earliest slot: no scan, no wrap.
//!
//! ```text
//! tick  = ... | digit 2 | digit 1 | digit 0          level 0: same 64 ms as the position, one slot = 1 ms
//!               4096 ms    64 ms     1 ms            level 1: same 4096 ms, one slot = 64 ms;   ... level 7: 2^48 ms in all
//! ```
//! When the position reaches a slot of a higher level, its timers move to lower levels (a cascade, at most 7 times in a
//! timer's life). Empty time costs nothing: a leap of hours jumps from occupied slot to occupied slot.
//!
//! A tick is too coarse for pacing, RACK and TLP: what is due within [`NEAR_TICKS`] lies in a binary heap that is exact to
//! the nanosecond. Each node knows its place in the heap, so cancelling removes the entry at once; nothing stale is kept.
//!
//! # Invariants
//! - A timer never fires before its deadline; after it, it is reported by the first call whose `now` is 1 ms later or more.
//! - `tick <= ` start of every occupied slot; a slot's bit is set exactly when its list is not empty.
//! - A node is 24 bytes; nodes live in chunks that never move, so growth copies nothing.
//!
//! # Limits
//! Keys should be dense: memory follows the chunks of keys that were ever armed until [`TimerWheel::shrink_to_fit`]. A
//! cascade moves all timers of a slot at once. The wheel reads no clock and calls nobody back by itself.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::time::{Duration, Instant};

/// Deadlines at most this many ticks (ms) ahead of the last seen `now` are kept exact to the nanosecond.
pub const NEAR_TICKS: u64 = 4;

const NS_PER_TICK: u64 = 1_000_000;
const LEVELS: usize = 8;
const DIGIT_BITS: usize = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
/// Keys per chunk of nodes: 24 KiB.
const CHUNK_KEYS: usize = 1024;

// The whole range of an `Instant` in ticks fits the wheel, so no overflow list is needed.
const _: () = assert!(u64::MAX / NS_PER_TICK < 1 << (LEVELS * DIGIT_BITS));
const _: () = assert!(size_of::<Node>() <= 24);

/// Where a node is: a slot number, or one of these two.
const PLACE_IDLE: u16 = u16::MAX;
const PLACE_HEAP: u16 = u16::MAX - 1;
const _: () = assert!(LEVELS * SLOTS < PLACE_HEAP as usize);

#[derive(Clone, Copy)]
struct Node {
    at_ns: u64,
    /// In a slot: the next key of the circular list. In the heap: the position.
    next: u32,
    prev: u32,
    place: u16,
}

impl Node {
    const IDLE: Self = Self { at_ns: 0, next: 0, prev: 0, place: PLACE_IDLE };
}

#[derive(Clone, Copy)]
struct Slot {
    /// First key of a circular list; meaningless while the slot's bit is clear.
    head: u32,
    /// Not later than the earliest tick in the slot; exact until that timer is cancelled.
    min_tick: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Near {
    at_ns: u64,
    key: u32,
}

/// The earliest occupied slot.
#[derive(Clone, Copy)]
struct First {
    level: usize,
    slot: usize,
    start_tick: u64,
}

impl First {
    fn place(self) -> usize {
        self.level * SLOTS + self.slot
    }
}

/// A hierarchical timer wheel over caller-chosen `u32` keys. See the module head.
pub struct TimerWheel {
    /// Position: no occupied slot starts earlier.
    tick: u64,
    /// Tick of the latest `now` seen; decides what is near.
    now_tick: u64,
    occupied: [u64; LEVELS],
    slots: Box<[Slot]>,
    /// Chunks of nodes by `key / CHUNK_KEYS`; an empty box is a chunk never used.
    nodes: Vec<Box<[Node]>>,
    near: Vec<Near>,
    armed: usize,
    /// Nothing is due before: a turn that comes earlier costs a compare.
    quiet_until_ns: u64,
    /// Something was cancelled since that was exact.
    blurred: bool,
}

impl Default for TimerWheel {
    fn default() -> Self {
        Self::new()
    }
}

/// First tick at which a timer for `at` may fire: rounded up, so never early.
const fn due_tick(at_ns: u64) -> u64 {
    at_ns.div_ceil(NS_PER_TICK)
}

impl TimerWheel {
    /// An empty wheel at the origin of time.
    pub fn new() -> Self {
        Self {
            tick: 0,
            now_tick: 0,
            occupied: [0; LEVELS],
            slots: vec![Slot { head: 0, min_tick: 0 }; LEVELS * SLOTS].into_boxed_slice(),
            nodes: Vec::new(),
            near: Vec::new(),
            armed: 0,
            quiet_until_ns: u64::MAX,
            blurred: false,
        }
    }

    /// Armed keys.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// True when no key is armed.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Tells the wheel the time without firing anything, so that deadlines armed from now on count as near or far from it.
    /// Worth a call at the start of a turn, after a sleep; [`Self::pop_expired`] does it by itself. Never goes back.
    #[inline]
    pub fn observe(&mut self, now: Instant) {
        self.now_tick = self.now_tick.max(now.as_millis());
    }

    /// Arms `key` at `at`; a key already armed is moved. A deadline in the past fires at the next call.
    ///
    /// [`Instant::FAR_FUTURE`] means never.
    pub fn arm(&mut self, key: u32, at: Instant) {
        self.cancel(key);
        self.ensure(key);
        self.armed += 1;
        let at_ns = at.as_nanos();
        self.node_mut(key).at_ns = at_ns;
        let tick = due_tick(at_ns);
        let due_ns = if tick <= self.now_tick.max(self.tick) + NEAR_TICKS {
            self.near_push(key, at_ns);
            at_ns
        } else {
            self.link(key, tick);
            tick.saturating_mul(NS_PER_TICK)
        };
        self.quiet_until_ns = self.quiet_until_ns.min(due_ns);
    }

    /// Disarms `key`; false when it was not armed.
    pub fn cancel(&mut self, key: u32) -> bool {
        let Some(&Node { place, next, .. }) = self.node(key) else { return false };
        match place {
            PLACE_IDLE => return false,
            PLACE_HEAP => self.near_remove(next as usize),
            _ => self.unlink(key),
        }
        self.node_mut(key).place = PLACE_IDLE;
        self.armed -= 1;
        self.blurred = true;
        true
    }

    /// `key` has no deadline any more, but may soon have one again: it is disarmed, unless it fires within `grace` in
    /// any case. Who is told so in vain disarms and arms nothing in the meantime.
    #[inline]
    pub fn release(&mut self, key: u32, grace: Duration) {
        let soon = Instant::from_millis(self.now_tick) + grace;
        if self.deadline(key).is_some_and(|at| at > soon) {
            self.cancel(key);
        }
    }

    /// Arms `key` at `at`, unless it fires earlier in any case.
    #[inline]
    pub fn arm_by(&mut self, key: u32, at: Instant) {
        if self.deadline(key).is_none_or(|armed| armed > at) {
            self.arm(key, at);
        }
    }

    /// True when `key` is armed.
    pub fn is_armed(&self, key: u32) -> bool {
        self.node(key).is_some_and(|n| n.place != PLACE_IDLE)
    }

    /// A part of what is kept for `key`, armed or not, without a look at it: for a prefetch.
    pub fn place_of(&self, key: u32) -> Option<&u64> {
        self.node(key).map(|node| &node.at_ns)
    }

    /// The exact deadline of `key`, if armed.
    #[inline]
    pub fn deadline(&self, key: u32) -> Option<Instant> {
        self.node(key).filter(|n| n.place != PLACE_IDLE).map(|n| Instant::from_nanos(n.at_ns))
    }

    /// When to call [`Self::pop_expired`] next; O(1).
    ///
    /// Never later than the first timer fires. It may be earlier when the first timer of a distant slot was cancelled;
    /// such a call fires nothing and makes the next answer sharper.
    pub fn next_deadline(&self) -> Option<Instant> {
        let near = self.near.first().map(|n| Instant::from_nanos(n.at_ns));
        let far = self.first().map(|f| Instant::from_millis(self.slots[f.place()].min_tick));
        match (near, far) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Nothing is due before; [`Instant::FAR_FUTURE`] when no key is armed. As [`Self::next_deadline`], kept from call to call:
    /// two loads as long as nothing was cancelled.
    #[inline]
    pub fn quiet_until(&mut self) -> Instant {
        if self.blurred {
            self.sharpen();
        }
        Instant::from_nanos(self.quiet_until_ns)
    }

    fn sharpen(&mut self) {
        self.quiet_until_ns = self.next_deadline().map_or(u64::MAX, Instant::as_nanos);
        self.blurred = false;
    }

    /// Takes one timer that is due at `now`, earliest tick first, and disarms it; `None` when no more is due.
    ///
    /// The caller may arm and cancel between calls. A periodic timer should be re-armed from `now`, not from its old
    /// deadline, or a leap of the clock replays every period.
    #[inline]
    pub fn pop_expired(&mut self, now: Instant) -> Option<u32> {
        let now_tick = now.as_millis();
        self.now_tick = self.now_tick.max(now_tick);
        if now.as_nanos() < self.quiet_until_ns { None } else { self.pop_due(now, now_tick) }
    }

    fn pop_due(&mut self, now: Instant, now_tick: u64) -> Option<u32> {
        loop {
            let first = self.first();
            if let Some(&top) = self.near.first()
                && top.at_ns <= now.as_nanos()
                && first.is_none_or(|f| top.at_ns <= f.start_tick.saturating_mul(NS_PER_TICK))
            {
                return self.fire(top.key);
            }
            let Some(f) = first.filter(|f| f.start_tick <= now_tick) else {
                self.tick = self.tick.max(now_tick);
                self.sharpen();
                return None;
            };
            debug_assert!(f.start_tick >= self.tick, "an occupied slot lies behind the position");
            self.tick = f.start_tick;
            if f.level == 0 {
                return self.fire(self.slots[f.place()].head);
            }
            self.cascade(f);
        }
    }

    /// Calls `fire` for every timer due at `now`. Bounded by the number of armed keys.
    pub fn advance(&mut self, now: Instant, fire: &mut impl FnMut(u32)) {
        while let Some(key) = self.pop_expired(now) {
            fire(key);
        }
    }

    /// Frees chunks of nodes without an armed key; O(chunks). For housekeeping after a burst of connections has gone.
    pub fn shrink_to_fit(&mut self) {
        for chunk in &mut self.nodes {
            if chunk.iter().all(|n| n.place == PLACE_IDLE) {
                *chunk = Box::default();
            }
        }
        while self.nodes.last().is_some_and(|c| c.is_empty()) {
            self.nodes.pop();
        }
        self.nodes.shrink_to_fit();
        self.near.shrink_to_fit();
    }

    fn fire(&mut self, key: u32) -> Option<u32> {
        let was_armed = self.cancel(key);
        debug_assert!(was_armed, "fired a key that is not armed");
        Some(key)
    }

    #[inline]
    fn node(&self, key: u32) -> Option<&Node> {
        self.nodes.get(key as usize / CHUNK_KEYS)?.get(key as usize % CHUNK_KEYS)
    }

    /// The node of a key whose chunk exists: our own state, so a miss is a bug here.
    fn node_mut(&mut self, key: u32) -> &mut Node {
        &mut self.nodes[key as usize / CHUNK_KEYS][key as usize % CHUNK_KEYS]
    }

    fn ensure(&mut self, key: u32) {
        let chunk = key as usize / CHUNK_KEYS;
        if chunk >= self.nodes.len() {
            self.nodes.resize_with(chunk + 1, Box::default);
        }
        if self.nodes[chunk].is_empty() {
            self.nodes[chunk] = vec![Node::IDLE; CHUNK_KEYS].into_boxed_slice();
        }
    }

    fn first(&self) -> Option<First> {
        let level = self.occupied.iter().position(|&bits| bits != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let above = (level + 1) * DIGIT_BITS;
        let start_tick = (self.tick >> above << above) | ((slot as u64) << (level * DIGIT_BITS));
        Some(First { level, slot, start_tick })
    }

    /// Appends `key` to the slot of `tick`, seen from the present position.
    fn link(&mut self, key: u32, tick: u64) {
        debug_assert!(tick >= self.tick, "linked behind the position");
        let level = (u64::BITS - 1 - ((tick ^ self.tick) | 1).leading_zeros()) as usize / DIGIT_BITS;
        let slot = (tick >> (level * DIGIT_BITS)) as usize % SLOTS;
        let place = level * SLOTS + slot;
        let (next, prev);
        if self.occupied[level] & (1 << slot) == 0 {
            self.occupied[level] |= 1 << slot;
            self.slots[place] = Slot { head: key, min_tick: tick };
            (next, prev) = (key, key);
        } else {
            let s = &mut self.slots[place];
            s.min_tick = s.min_tick.min(tick);
            next = s.head;
            prev = self.node_mut(next).prev;
            self.node_mut(next).prev = key;
            self.node_mut(prev).next = key;
        }
        let node = self.node_mut(key);
        (node.next, node.prev, node.place) = (next, prev, place as u16);
    }

    fn unlink(&mut self, key: u32) {
        let Node { next, prev, place, .. } = *self.node_mut(key);
        if next == key {
            self.occupied[place as usize / SLOTS] &= !(1 << (place as usize % SLOTS));
            return;
        }
        self.node_mut(prev).next = next;
        self.node_mut(next).prev = prev;
        let slot = &mut self.slots[place as usize];
        if slot.head == key {
            slot.head = next;
        }
    }

    /// Moves the timers of a slot that the position has reached to lower levels.
    fn cascade(&mut self, f: First) {
        self.occupied[f.level] &= !(1 << f.slot);
        let head = self.slots[f.place()].head;
        let mut key = head;
        loop {
            let Node { next, at_ns, .. } = *self.node_mut(key);
            self.link(key, due_tick(at_ns));
            debug_assert!((self.node_mut(key).place as usize) < f.level * SLOTS, "a cascade must descend");
            if next == head {
                return;
            }
            key = next;
        }
    }

    fn near_push(&mut self, key: u32, at_ns: u64) {
        self.near.push(Near { at_ns, key });
        self.node_mut(key).place = PLACE_HEAP;
        self.sift_up(self.near.len() - 1);
    }

    fn near_remove(&mut self, pos: usize) {
        self.near.swap_remove(pos);
        if pos < self.near.len() {
            self.sift_down(pos);
            self.sift_up(pos);
        }
    }

    fn settle(&mut self, pos: usize, entry: Near) {
        self.near[pos] = entry;
        self.node_mut(entry.key).next = pos as u32;
    }

    fn sift_up(&mut self, mut pos: usize) {
        let entry = self.near[pos];
        while pos > 0 {
            let parent = (pos - 1) / 2;
            if self.near[parent] <= entry {
                break;
            }
            self.settle(pos, self.near[parent]);
            pos = parent;
        }
        self.settle(pos, entry);
    }

    fn sift_down(&mut self, mut pos: usize) {
        let entry = self.near[pos];
        loop {
            let mut child = 2 * pos + 1;
            if child + 1 < self.near.len() && self.near[child + 1] < self.near[child] {
                child += 1;
            }
            if child >= self.near.len() || entry <= self.near[child] {
                break;
            }
            self.settle(pos, self.near[child]);
            pos = child;
        }
        self.settle(pos, entry);
    }
}

#[cfg(test)]
mod tests;
