//! No allocation per packet: a counting allocator under the cycles of a data path.
//!
//! After a warm-up, in which chunks, slabs, blocks and queues reach their size, ten thousand super-packets are built,
//! referenced, cut, handed on and freed, and the allocator is not called once.

use linerate_arch::Kernels;
use linerate_skb::{Page, PagePool, PoolConfig, SkbBatch, SkbCache, spsc};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        CALLS.with(|c| c.set(c.get() + 1));
        LIVE.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(l) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        CALLS.with(|c| c.set(c.get() + 1));
        LIVE.with(|c| c.set(c.get() - 1));
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(p, l) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

fn calls() -> u64 {
    CALLS.with(Cell::get)
}

struct Path {
    k: Kernels,
    pool: PagePool,
    skbs: SkbCache,
    page: Option<Page>,
    batch: SkbBatch,
    out: SkbBatch,
}

impl Path {
    /// One 64 KiB super-packet: written, kept for retransmission, cut into 45 frames by reference, all freed.
    fn cycle(&mut self, src: &[u8]) {
        let mut skb = self.skbs.alloc().expect("a descriptor");
        let mut left = src;
        while !left.is_empty() {
            if self.page.as_ref().is_none_or(|p| p.room() == 0) {
                self.page.take().into_iter().for_each(|p| self.pool.recycle_page(p));
                self.page = self.pool.alloc();
            }
            let (f, sum) = self.page.as_mut().expect("a page").append_sum(&self.k, left).expect("room");
            left = &left[f.len() as usize..];
            skb.push_frag_sum(f, sum).expect("a few fragments");
        }
        let mut off = 0;
        while off < skb.data_len() {
            let n = 1448.min(skb.data_len() - off);
            let mut frame = self.skbs.alloc().expect("a descriptor");
            frame.push_head(40).expect("headroom")[0] = 0x45;
            assert!(frame.clone_frags_from(&skb, off, n));
            self.batch.push(frame);
            off += n;
        }
        // The far side: frames are merged again into one skb with many fragments.
        let mut gro = self.skbs.alloc().expect("a descriptor");
        gro.set_max_frags(128);
        for mut frame in self.batch.drain(..) {
            assert!(gro.append_frags(&mut frame));
            self.skbs.free(frame, &mut self.pool);
        }
        assert_eq!(gro.data_len() as usize, src.len());
        self.out.push(gro);
        self.skbs.free(skb, &mut self.pool);
        self.out.clear_with(&mut self.skbs, &mut self.pool);
        self.pool.reclaim();
        self.skbs.reclaim();
    }

    /// 60 fragments on different pages: a block of 128 is taken and given back.
    fn many_frags(&mut self) {
        let mut skb = self.skbs.alloc().expect("a descriptor");
        skb.set_max_frags(128);
        for i in 0..60u8 {
            let mut page = self.pool.alloc().expect("a page");
            let f = page.append(&self.k, &[i; 100]).expect("room");
            self.pool.recycle_page(page);
            skb.push_frag(f).expect("up to 128");
        }
        self.skbs.free(skb, &mut self.pool);
    }

    /// The ways home that strangers use.
    fn stranger(&mut self) {
        let mut page = self.pool.alloc().expect("a page");
        let f = page.append(&self.k, b"x").expect("room");
        drop(page);
        let mut skb = self.skbs.alloc().expect("a descriptor");
        skb.push_frag(f.clone()).expect("room");
        skb.into_home();
        drop(f);
    }
}

#[test]
fn no_allocation_in_steady_state() {
    let cfg = PoolConfig { page_shift: 15, max_pages: 256, cache_pages: 64 };
    let mut path = Path {
        k: Kernels::portable(),
        pool: PagePool::new(cfg),
        skbs: SkbCache::new(256),
        page: None,
        batch: SkbBatch::new(),
        out: SkbBatch::new(),
    };
    let src = vec![7u8; 65_536];
    let (mut tx, mut rx) = spsc::channel(8);
    let mut turn = |path: &mut Path| {
        path.cycle(&src);
        path.many_frags();
        path.stranger();
        tx.try_push(path.skbs.alloc().expect("a descriptor")).expect("room");
        let back = rx.pop().expect("one");
        path.skbs.free(back, &mut path.pool);
    };
    for _ in 0..10 {
        turn(&mut path);
    }
    let (before, pages) = (calls(), path.pool.stats().pages);
    let turns = if cfg!(miri) { 3 } else { 1_000 };
    for _ in 0..turns {
        turn(&mut path);
    }
    assert_eq!(calls() - before, 0, "allocator calls in {turns} turns");
    assert_eq!(path.pool.stats().pages, pages);
    path.page.take().into_iter().for_each(|p| path.pool.recycle_page(p));
    path.pool.reclaim();
    path.skbs.reclaim();
    assert_eq!((path.pool.inflight(), path.skbs.inflight(), path.skbs.silent_drops()), (0, 0, 0));
}

#[test]
fn a_dropped_cache_and_pool_give_everything_back() {
    let (before, live) = (calls(), LIVE.with(Cell::get));
    {
        let mut pool = PagePool::new(PoolConfig { page_shift: 12, max_pages: 600, cache_pages: 4 });
        let mut skbs = SkbCache::new(100);
        let mut skb = skbs.alloc().expect("a descriptor");
        skb.set_max_frags(128);
        for i in 0..40u8 {
            let mut page = pool.alloc().expect("a page");
            let f = page.append(&Kernels::portable(), &[i]).expect("room");
            drop(page);
            skb.push_frag(f).expect("up to 128");
        }
        drop((pool, skbs));
        skb.into_home();
    }
    assert!(calls() - before >= 10, "something was allocated");
    assert_eq!(LIVE.with(Cell::get), live, "and all of it given back");
}
