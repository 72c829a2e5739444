//! A pool of pages with one owner, after the kernel's `page_pool` (SYSTEMS A34, A35).
//!
//! ```text
//!            alloc                     recycle (owner)
//!   Page ◀────────── LIFO cache ◀───────────────────── Frag
//!                      ▲    │ full
//!               refill │    ▼
//!                    spare list ◀── reclaim ── return stack ◀── last Drop, any thread
//!                      ▲
//!                 fresh pages ◀── chunks of host memory (1 MiB), up to `max_pages`
//! ```
//! The owner's fast path is an array pop or push and plain stores: no lock, no atomic read-modify-write, no allocation.
//! LIFO, so that the working set stays as small as the number of pages really out, and warm. Pages that were let go
//! elsewhere come home over [`home`](crate::home), and are taken all at once by [`PagePool::reclaim`] (once a turn) or
//! when the cache runs dry. Memory is taken from the global allocator in chunks, zeroed, never moved, and given back only
//! when the handle is gone *and* all pages are home: a dropped pool is detached, not freed.
//!
//! **Statistics** have the names of the kernel's `page-pool-stats` (see [`PoolStats`]). `hold - release` is the number of
//! pages out as far as the owner knows: pages on the return stack still count until `reclaim`.
//!
//! **Who may touch what when.** `PagePool` (`&mut`) alone touches its lists and `PoolCore::chunks`; after the handle is
//! dropped the one that `Home` elects frees them. A page's metadata belongs to the pool while the page is home.
//!
//! It does not: give memory back under pressure, know NUMA nodes, or hold memory that the CPU may not read.

use crate::frag::Frag;
use crate::home::{Home, next_of};
use crate::notes::Notes;
use crate::page::{Page, PageMeta};
use crate::sync::{AtomicPtr, AtomicU32, Ordering, fence};
use alloc::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};

/// Host memory is taken in pieces of at least this size, bytes: few enough calls, small enough not to waste.
const CHUNK_BYTES: usize = 1 << 20;

/// Alignment of every chunk and so of every page, bytes.
const PAGE_ALIGN: usize = 4096;

/// Pages moved from the spare list into the cache at once (the kernel's `PP_ALLOC_CACHE_REFILL`).
const REFILL: usize = 64;

/// Size and limits of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// log2 of the page size, 12 (4 KiB) to 21 (2 MiB); values outside are brought to the nearest end.
    pub page_shift: u8,
    /// Most pages ever taken from the host; at least 1.
    pub max_pages: u32,
    /// Pages in the LIFO cache; beyond that they wait on the spare list. At least 1.
    pub cache_pages: u32,
}

impl Default for PoolConfig {
    /// Transmit pages of 32 KiB (64 KiB in two or three fragments), 64 MiB in all, the kernel's cache of 128.
    fn default() -> Self {
        Self { page_shift: 15, max_pages: 2048, cache_pages: 128 }
    }
}

/// Where pages handed out came from. Each field counts events since the pool was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AllocStats {
    /// Pages straight from the cache.
    pub fast: u64,
    /// Fresh pages of 4 KiB (order 0) from the host's memory.
    pub slow: u64,
    /// Fresh pages larger than 4 KiB.
    pub slow_high_order: u64,
    /// Times that the cache, the spare list and the return stack were all empty, so that the slow path was forced.
    pub empty: u64,
    /// Times that the cache was refilled from the spare list or the return stack.
    pub refill: u64,
    /// Pages refused because they are on the wrong NUMA node. Always 0: nodes are not known here.
    pub waive: u64,
}

/// Where pages that came home went. Each field counts events since the pool was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RecycleStats {
    /// Pages recycled by the owner into the cache.
    pub cached: u64,
    /// Pages recycled by the owner that found the cache full and went to the spare list.
    pub cache_full: u64,
    /// Pages that came home over the return stack (our ring).
    pub ring: u64,
    /// Pages that found the ring full. Always 0: the stack is linked through the pages themselves and cannot be full.
    pub ring_full: u64,
    /// Fragments that the owner let go while others still held the page, so that only their count was dropped.
    pub released_refcnt: u64,
}

/// Counters of a pool (SYSTEMS A34).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolStats {
    /// Pages out of the pool.
    pub alloc: AllocStats,
    /// Pages home.
    pub recycle: RecycleStats,
    /// Pages handed out, ever.
    pub hold: u64,
    /// Pages taken home by the owner, ever. `hold - release` = in flight.
    pub release: u64,
    /// Allocations refused: `max_pages` reached, or the host has no memory.
    pub exhausted: u64,
    /// Pages taken from the host so far.
    pub pages: u32,
    /// Pages in the cache now.
    pub cache_len: u32,
    /// Pages on the spare list now.
    pub spare_len: u32,
}

/// One piece of host memory and the metadata of its pages.
struct Chunk {
    base: NonNull<u8>,
    layout: Layout,
    metas: NonNull<PageMeta>,
    pages: usize,
}

/// What pages need of their pool: outlives the handle until the last page is home.
pub(crate) struct PoolCore {
    pub(crate) home: Home<PageMeta>,
    chunks: UnsafeCell<Vec<Chunk>>,
}

impl PoolCore {
    /// Frees everything.
    ///
    /// # Safety
    /// `Home` elected the caller: the handle is gone and all pages are home.
    #[cold]
    pub(crate) unsafe fn destroy(core: NonNull<Self>) {
        // SAFETY: made by `Box::into_raw` in `PagePool::new`, and nobody else can reach it any more.
        let core = unsafe { Box::from_raw(core.as_ptr()) };
        for c in core.chunks.into_inner() {
            for i in 0..c.pages {
                // SAFETY: initialised in `grow`, not reachable by anybody else, dropped once.
                unsafe { c.metas.add(i).drop_in_place() };
            }
            // SAFETY: both were allocated in `grow` with these layouts.
            unsafe {
                dealloc(c.metas.as_ptr().cast(), metas_layout(c.pages));
                dealloc(c.base.as_ptr(), c.layout);
            }
        }
    }
}

fn metas_layout(pages: usize) -> Layout {
    Layout::array::<PageMeta>(pages).expect("a chunk's metadata is far smaller than the address space")
}

/// The owner's side of a pool of pages: `Send`, not `Sync`. Dropping it detaches it.
pub struct PagePool {
    core: NonNull<PoolCore>,
    /// LIFO; its capacity is reserved once.
    cache: Vec<NonNull<PageMeta>>,
    cache_pages: usize,
    /// Linked through `link`, LIFO.
    spare: *mut PageMeta,
    /// Pages of the newest chunk that have never been out.
    fresh: *mut PageMeta,
    fresh_left: usize,
    page_size: usize,
    max_pages: u32,
    stats: PoolStats,
}

// SAFETY: everything reachable from the handle is its own, or atomic; nothing depends on the thread.
unsafe impl Send for PagePool {}

impl PagePool {
    /// An empty pool; host memory is taken as it is needed. Values of `cfg` outside their range are brought into it.
    pub fn new(cfg: PoolConfig) -> Self {
        debug_assert!((12..=21).contains(&cfg.page_shift), "page_shift is 12..=21");
        let core = Box::new(PoolCore { home: Home::new(), chunks: UnsafeCell::new(Vec::new()) });
        let cache_pages = cfg.cache_pages.clamp(1, cfg.max_pages.max(1)) as usize;
        Self {
            core: NonNull::from(Box::leak(core)),
            cache: Vec::with_capacity(cache_pages),
            cache_pages,
            spare: null_mut(),
            fresh: null_mut(),
            fresh_left: 0,
            page_size: 1 << cfg.page_shift.clamp(12, 21),
            max_pages: cfg.max_pages.max(1),
            stats: PoolStats::default(),
        }
    }

    #[inline]
    fn core(&self) -> &PoolCore {
        // SAFETY: the core lives at least as long as the handle.
        unsafe { self.core.as_ref() }
    }

    /// An empty page to write into. `None` (counted) when all `max_pages` are out or the host has no memory.
    #[inline]
    pub fn alloc(&mut self) -> Option<Page> {
        let meta = match self.cache.pop() {
            Some(m) => {
                self.stats.alloc.fast += 1;
                m
            }
            None => self.alloc_slow()?,
        };
        self.stats.hold += 1;
        // SAFETY: home, and ours to give.
        Some(unsafe { Page::from_home(meta) })
    }

    #[cold]
    fn alloc_slow(&mut self) -> Option<NonNull<PageMeta>> {
        self.reclaim();
        self.refill();
        if let Some(m) = self.cache.pop() {
            self.stats.alloc.refill += 1;
            return Some(m);
        }
        self.stats.alloc.empty += 1;
        if self.fresh_left == 0 && !self.grow() {
            self.stats.exhausted += 1;
            return None;
        }
        let m = NonNull::new(self.fresh)?;
        self.fresh_left -= 1;
        // SAFETY: within the chunk's metadata, or one past its end when `fresh_left` is 0 (then it is not read).
        self.fresh = unsafe { self.fresh.add(1) };
        if self.page_size == 4096 {
            self.stats.alloc.slow += 1;
        } else {
            self.stats.alloc.slow_high_order += 1;
        }
        Some(m)
    }

    /// Moves up to `REFILL` pages from the spare list into the cache.
    fn refill(&mut self) {
        for _ in 0..REFILL.min(self.cache_pages - self.cache.len().min(self.cache_pages)) {
            let Some(m) = NonNull::new(self.spare) else { return };
            // SAFETY: on our spare list, hence home.
            self.spare = unsafe { next_of(m) };
            self.stats.spare_len -= 1;
            self.cache.push(m);
        }
    }

    /// Takes one more chunk from the host. False: at the limit, or the host has no memory.
    fn grow(&mut self) -> bool {
        let left = (self.max_pages - self.stats.pages) as usize;
        let pages = (CHUNK_BYTES / self.page_size).max(1).min(left);
        if pages == 0 {
            return false;
        }
        // Over-allocate and align by hand: with a small alignment the allocator maps zero pages instead of writing them.
        let Ok(layout) = Layout::from_size_align(pages * self.page_size + PAGE_ALIGN, 16) else { return false };
        // SAFETY: the size is not zero.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { return false };
        // SAFETY: the size is not zero.
        let Some(metas) = NonNull::new(unsafe { alloc(metas_layout(pages)) }.cast::<PageMeta>()) else {
            // SAFETY: allocated above with this layout.
            unsafe { dealloc(base.as_ptr(), layout) };
            return false;
        };
        let skew = base.as_ptr().align_offset(PAGE_ALIGN);
        debug_assert!(skew < PAGE_ALIGN);
        for i in 0..pages {
            let meta = PageMeta {
                refs: AtomicU32::new(0),
                size: self.page_size as u32,
                // SAFETY: skew + pages * page_size <= the chunk's size.
                data: unsafe { base.add(skew + i * self.page_size) },
                core: self.core,
                link: AtomicPtr::new(null_mut()),
                index: self.stats.pages + i as u32,
                notes: Notes::new(),
            };
            // SAFETY: inside the fresh allocation, aligned by its layout.
            unsafe { metas.add(i).write(meta) };
        }
        // SAFETY: only the owner touches `chunks` while the handle lives.
        unsafe { &mut *self.core().chunks.get() }.push(Chunk { base, layout, metas, pages });
        self.fresh = metas.as_ptr();
        self.fresh_left = pages;
        self.stats.pages += pages as u32;
        true
    }

    /// Lets a fragment go on the owner's side. When it held the last count, its page goes into the cache without an atomic
    /// read-modify-write; a fragment of another pool is dropped.
    #[inline]
    pub fn recycle(&mut self, f: Frag) {
        if !self.owns(&f) {
            return drop(f);
        }
        self.put(f.into_raw(), 1);
    }

    /// Lets a page's writer go on the owner's side; its fragments stay valid.
    #[inline]
    pub fn recycle_page(&mut self, p: Page) {
        if p.meta().core != self.core {
            return drop(p);
        }
        let (meta, bias) = p.into_raw();
        self.put(meta, bias);
    }

    /// Gives up `n` counts of one of our pages.
    #[inline]
    fn put(&mut self, meta: NonNull<PageMeta>, n: u32) {
        // SAFETY: the caller's counts keep it alive.
        let refs = unsafe { &meta.as_ref().refs };
        // All counts are ours: nobody else can take or drop one, so a load decides. Acquire: other readers are done.
        if refs.load(Ordering::Acquire) == n {
            return self.come_home(meta);
        }
        if refs.fetch_sub(n, Ordering::Release) == n {
            fence(Ordering::Acquire);
            return self.come_home(meta);
        }
        self.stats.recycle.released_refcnt += 1;
    }

    #[inline]
    fn come_home(&mut self, meta: NonNull<PageMeta>) {
        self.stats.release += 1;
        if self.cache.len() < self.cache_pages {
            self.stats.recycle.cached += 1;
            self.cache.push(meta);
        } else {
            self.stats.recycle.cache_full += 1;
            self.push_spare(meta);
        }
    }

    #[inline]
    fn push_spare(&mut self, meta: NonNull<PageMeta>) {
        // SAFETY: home, hence ours.
        unsafe { meta.as_ref() }.link.store(self.spare, Ordering::Relaxed);
        self.spare = meta.as_ptr();
        self.stats.spare_len += 1;
    }

    /// Takes home all pages that were let go elsewhere; returns how many. Meant for once a turn: one load when there are
    /// none.
    #[inline]
    pub fn reclaim(&mut self) -> usize {
        match NonNull::new(self.core().home.take()) {
            None => 0,
            Some(first) => self.reclaim_from(first),
        }
    }

    fn reclaim_from(&mut self, first: NonNull<PageMeta>) -> usize {
        let mut next = first.as_ptr();
        let mut n = 0;
        while let Some(meta) = NonNull::new(next) {
            // SAFETY: taken from our return stack, hence home.
            next = unsafe { next_of(meta) };
            if self.cache.len() < self.cache_pages {
                self.cache.push(meta);
            } else {
                self.push_spare(meta);
            }
            n += 1;
        }
        self.stats.recycle.ring += n as u64;
        self.stats.release += n as u64;
        n
    }

    /// Pages out, as far as the owner knows (hold - release): those on the return stack count until [`Self::reclaim`].
    #[inline]
    pub fn inflight(&self) -> u32 {
        (self.stats.hold - self.stats.release) as u32
    }
    /// Bytes per page.
    #[inline]
    pub fn page_size(&self) -> usize {
        self.page_size
    }
    /// Most pages that this pool will ever have.
    #[inline]
    pub fn max_pages(&self) -> u32 {
        self.max_pages
    }
    /// Does the fragment lie in a page of this pool?
    #[inline]
    pub fn owns(&self, f: &Frag) -> bool {
        f.meta().core == self.core
    }
    /// Counters, and the lengths of the lists now.
    pub fn stats(&self) -> PoolStats {
        PoolStats { cache_len: self.cache.len() as u32, ..self.stats }
    }
}

impl Drop for PagePool {
    fn drop(&mut self) {
        let mut next = self.core().home.detach();
        while let Some(meta) = NonNull::new(next) {
            // SAFETY: taken from our return stack, hence home.
            next = unsafe { next_of(meta) };
            self.stats.release += 1;
        }
        if self.core().home.settle(self.inflight() as usize) {
            // SAFETY: `settle` elected us: all pages are home.
            unsafe { PoolCore::destroy(self.core) };
        }
    }
}

impl core::fmt::Debug for PagePool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PagePool")
            .field("page_size", &self.page_size)
            .field("max_pages", &self.max_pages)
            .field("stats", &self.stats())
            .finish()
    }
}
