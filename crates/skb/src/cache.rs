//! The slab of skb descriptors, with one owner (SYSTEMS A36).
//!
//! Descriptors are of one fixed size and carry their own head, so allocating an skb is a pop and two cache lines of
//! stores, and freeing one looks nothing up: no page metadata is touched for the head. Free descriptors are kept LIFO, so
//! that the next skb is warm. They are made in bulk (64 at a time, as the kernel's napi cache) up to `max_skbs`.
//!
//! Ways home: [`SkbCache::free`] (owner's side, fragments recycled too), [`SkbCache::consume`] (owner's side, fragments
//! dropped), [`Skb::into_home`] (any thread, on purpose), and `Drop` of an `Skb`, which does the same but counts a
//! *silent drop*: an skb that died without anybody saying why. Tests fail when there is one.
//!
//! Invariants: as [`pool`](crate::pool); a dropped cache is detached and its memory goes when the last skb is home.
//! It does not count drop reasons (the caller's `DropCounters` do) and does not hold packets.

use crate::blocks::BlockPool;
use crate::desc::{Desc, HEAD_CAPACITY, HeadBytes, INLINE_FRAGS, MAX_FRAGS, SkbCore, slab_layout};
use crate::dropped::{DropLog, Dropped};
use crate::home::{Home, next_of};
use crate::meta::SkbMeta;
use crate::pool::PagePool;
use crate::skb::Skb;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use alloc::alloc::alloc;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::panic::Location;
use core::ptr::{NonNull, null_mut};

use linerate_base::DropReason;

/// Descriptors made at once.
const SLAB_SKBS: usize = 64;

/// Counters of a cache. Each counts events since the cache was made, except `made` and `free_len`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SkbCacheStats {
    /// Skbs handed out.
    pub hold: u64,
    /// Skbs home again, by all ways.
    pub release: u64,
    /// Of these, over the return stack.
    pub returned: u64,
    /// Allocations refused: `max_skbs` are out, or the host has no memory.
    pub exhausted: u64,
    /// Descriptors made so far.
    pub made: u32,
    /// Descriptors in the cache now.
    pub free_len: u32,
}

/// The owner's side of the descriptors: `Send`, not `Sync`. Dropping it detaches it.
pub struct SkbCache {
    core: NonNull<SkbCore>,
    /// LIFO; capacity is reserved as slabs are made, so that pushing never allocates.
    free: Vec<NonNull<Desc>>,
    max_skbs: u32,
    max_frags: u16,
    stats: SkbCacheStats,
    /// Dropped skbs, while somebody watches.
    drops: Option<Box<DropLog>>,
}

// SAFETY: everything reachable from the handle is its own, or atomic; nothing depends on the thread.
unsafe impl Send for SkbCache {}

impl SkbCache {
    /// An empty cache of at most `max_skbs` descriptors (at least 1), 640 bytes each, made as they are needed.
    pub fn new(max_skbs: u32) -> Self {
        let max_skbs = max_skbs.max(1);
        let core = Box::new(SkbCore {
            home: Home::new(),
            silent: AtomicU64::new(0),
            blocks: BlockPool::new(max_skbs as usize),
            chunks: UnsafeCell::new(Vec::new()),
        });
        Self {
            core: NonNull::from(Box::leak(core)),
            free: Vec::new(),
            max_skbs,
            max_frags: INLINE_FRAGS as u16,
            stats: SkbCacheStats::default(),
            drops: None,
        }
    }

    #[inline]
    fn core(&self) -> &SkbCore {
        // SAFETY: the core lives at least as long as the handle.
        unsafe { self.core.as_ref() }
    }

    /// The fragment limit that new skbs get (1 to [`MAX_FRAGS`]; 17 unless set).
    pub fn set_max_frags(&mut self, n: usize) {
        self.max_frags = n.clamp(1, MAX_FRAGS) as u16;
    }
    /// The fragment limit that new skbs get.
    #[inline]
    pub fn max_frags(&self) -> usize {
        self.max_frags as usize
    }

    /// An empty skb with the default headroom. `None` (counted) when `max_skbs` are out or the host has no memory.
    #[inline]
    pub fn alloc(&mut self) -> Option<Skb> {
        let d = match self.free.pop() {
            Some(d) => d,
            None => self.alloc_slow()?,
        };
        self.stats.hold += 1;
        // SAFETY: home, and ours to give.
        unsafe { &mut *d.as_ptr() }.reset(self.max_frags);
        // SAFETY: as above.
        Some(unsafe { Skb::from_raw(d) })
    }

    #[cold]
    fn alloc_slow(&mut self) -> Option<NonNull<Desc>> {
        if self.reclaim() == 0 && !self.grow() {
            self.stats.exhausted += 1;
            return None;
        }
        self.free.pop()
    }

    fn grow(&mut self) -> bool {
        let n = SLAB_SKBS.min((self.max_skbs - self.stats.made) as usize);
        if n == 0 {
            return false;
        }
        // SAFETY: the size is not zero.
        let Some(first) = NonNull::new(unsafe { alloc(slab_layout(n)) }.cast::<Desc>()) else { return false };
        self.free.reserve(self.stats.made as usize + n);
        for i in (0..n).rev() {
            let desc = Desc {
                meta: SkbMeta::default(),
                data_len: 0,
                head_off: 0,
                head_end: 0,
                floor: 0,
                first: 0,
                nr: 0,
                max: 0,
                block: null_mut(),
                core: self.core,
                link: AtomicPtr::new(null_mut()),
                head: HeadBytes([0; HEAD_CAPACITY]),
                frags: [const { MaybeUninit::uninit() }; INLINE_FRAGS],
            };
            // SAFETY: inside the fresh allocation, aligned by its layout.
            let d = unsafe { first.add(i) };
            // SAFETY: as above.
            unsafe { d.write(desc) };
            self.free.push(d);
        }
        // SAFETY: only the owner touches `chunks` while the handle lives.
        unsafe { &mut *self.core().chunks.get() }.push((first, n));
        self.stats.made += n as u32;
        true
    }

    /// The end of an skb on the owner's side, consumed or transmitted, or dropped with a reason that the caller counted:
    /// descriptor and fragments are recycled without atomics where they are ours.
    #[inline]
    pub fn free(&mut self, skb: Skb, pool: &mut PagePool) {
        self.put(skb, |f| pool.recycle(f));
    }

    /// As [`free`](Self::free) for an skb that was dropped, and counted under `reason`: while drops are watched it is kept
    /// for [`take_dropped`](Self::take_dropped), with the place of this call.
    #[cold]
    #[track_caller]
    pub fn drop_skb(&mut self, skb: Skb, pool: &mut PagePool, reason: DropReason) {
        let skb = match &mut self.drops {
            Some(log) => log.keep(Dropped { skb, reason, place: Location::caller() }),
            None => Some(skb),
        };
        if let Some(skb) = skb {
            self.free(skb, pool);
        }
    }

    /// Begins or ends the watching of drops. What was kept when it ends goes home.
    pub fn watch_drops(&mut self, on: bool) {
        if !on {
            while let Some(dropped) = self.take_dropped() {
                self.consume(dropped.skb);
            }
            self.drops = None;
        } else if self.drops.is_none() {
            self.drops = Some(Box::new(DropLog::new()));
        }
    }
    /// Was anything dropped that nobody has looked at?
    #[inline]
    pub fn has_dropped(&self) -> bool {
        self.drops.as_ref().is_some_and(|log| !log.is_empty())
    }
    /// A dropped skb to look at and to [`free`](Self::free), the oldest first.
    pub fn take_dropped(&mut self) -> Option<Dropped> {
        self.drops.as_mut()?.take()
    }
    /// Drops that found the list of those to look at full, since watching began.
    pub fn drops_missed(&self) -> u64 {
        self.drops.as_ref().map_or(0, |log| log.missed())
    }

    /// As [`free`](Self::free) where the fragments' pool is not at hand: they are dropped.
    #[inline]
    pub fn consume(&mut self, skb: Skb) {
        self.put(skb, drop);
    }

    #[inline]
    fn put(&mut self, skb: Skb, recycle: impl FnMut(crate::Frag)) {
        let d = skb.into_raw();
        // SAFETY: the handle gave the descriptor to us.
        let desc = unsafe { &mut *d.as_ptr() };
        desc.clear_frags(recycle);
        if desc.core == self.core {
            self.stats.release += 1;
            self.free.push(d);
        } else {
            // SAFETY: ours, out, of another cache, and not touched again.
            unsafe { crate::desc::send_home(d, false) };
        }
    }

    /// Takes home all descriptors that were let go elsewhere; returns how many. One load when there are none.
    #[inline]
    pub fn reclaim(&mut self) -> usize {
        match NonNull::new(self.core().home.take()) {
            None => 0,
            Some(first) => self.reclaim_from(first),
        }
    }

    fn reclaim_from(&mut self, first: NonNull<Desc>) -> usize {
        let mut next = first.as_ptr();
        let mut n = 0;
        while let Some(d) = NonNull::new(next) {
            // SAFETY: taken from our return stack, hence home.
            next = unsafe { next_of(d) };
            self.free.push(d);
            n += 1;
        }
        self.stats.returned += n as u64;
        self.stats.release += n as u64;
        n
    }

    /// Skbs out, as far as the owner knows: those on the return stack count until [`Self::reclaim`].
    #[inline]
    pub fn inflight(&self) -> u32 {
        (self.stats.hold - self.stats.release) as u32
    }
    /// Skbs whose `Drop` ran without `free`, `consume` or `into_home`: they died without a reason (`NotSpecified`).
    #[inline]
    pub fn silent_drops(&self) -> u64 {
        self.core().silent.load(Ordering::Relaxed)
    }
    /// Counters.
    pub fn stats(&self) -> SkbCacheStats {
        SkbCacheStats { free_len: self.free.len() as u32, ..self.stats }
    }
}

impl Drop for SkbCache {
    fn drop(&mut self) {
        self.watch_drops(false);
        let mut next = self.core().home.detach();
        while let Some(d) = NonNull::new(next) {
            // SAFETY: taken from our return stack, hence home.
            next = unsafe { next_of(d) };
            self.stats.release += 1;
        }
        if self.core().home.settle(self.inflight() as usize) {
            // SAFETY: `settle` elected us: all descriptors are home.
            unsafe { SkbCore::destroy(self.core) };
        }
    }
}

impl core::fmt::Debug for SkbCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SkbCache")
            .field("max_skbs", &self.max_skbs)
            .field("silent_drops", &self.silent_drops())
            .field("stats", &self.stats())
            .finish()
    }
}
