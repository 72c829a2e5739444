//! Model-checked interleavings (`RUSTFLAGS="--cfg loom" cargo test -p linerate-skb --lib loom --release`).
//!
//! Each test is the smallest scene in which a protocol of this crate could go wrong: two threads that let go of one page
//! while the owner takes home, an owner that leaves while objects are out, the last count handed over between threads, the
//! ring's publish and its closing, and the block list's pop against pop and put. Loom runs every interleaving and every
//! permitted reordering; it also checks that ring slots are never touched by both sides at once.
//! Limits: at most three threads, and preemption is bounded (3) where the full search would take minutes.

use crate::blocks::BlockPool;
use crate::sync::{Arc, AtomicUsize, Ordering};
use crate::{Frag, PagePool, PoolConfig, SkbCache, spsc};
use linerate_arch::Kernels;
use loom::thread;
use std::vec::Vec;

fn bounded(f: impl Fn() + Sync + Send + 'static) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(3);
    b.check(f);
}

fn pool(max_pages: u32) -> PagePool {
    PagePool::new(PoolConfig { page_shift: 12, max_pages, cache_pages: 2 })
}

fn frag(pool: &mut PagePool, bytes: &[u8]) -> Frag {
    let mut page = pool.alloc().expect("a page is home");
    let f = page.append(&Kernels::portable(), bytes).expect("an empty page has room");
    pool.recycle_page(page);
    f
}

/// Every page is home, once: all can be out at the same time, and they are different pages.
fn all_home(pool: &mut PagePool, pages: u32) {
    pool.reclaim();
    assert_eq!(pool.inflight(), 0);
    let out: Vec<_> = (0..pages).map(|_| pool.alloc().expect("no page is lost")).collect();
    let mut seen: Vec<u32> = out.iter().map(|p| p.index()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..pages).collect::<Vec<_>>(), "no page is home twice");
    out.into_iter().for_each(|p| pool.recycle_page(p));
}

#[test]
fn loom_return_stack_against_reclaim() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static EARLY: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    bounded(|| {
        let mut pool = pool(2);
        let (a, b) = (frag(&mut pool, b"a"), frag(&mut pool, b"b"));
        let ta = thread::spawn(move || drop(a));
        let tb = thread::spawn(move || drop(b));
        let early = pool.reclaim();
        EARLY[early].fetch_add(1, Relaxed);
        ta.join().expect("no panic");
        tb.join().expect("no panic");
        let late = pool.reclaim();
        assert_eq!(early + late, 2);
        all_home(&mut pool, 2);
    });
    assert!(EARLY.iter().all(|n| n.load(Relaxed) > 0), "the search took none, one and both: {EARLY:?}");
}

#[test]
fn loom_last_count_is_handed_over() {
    // Two clones of one page on two threads, the owner recycling a third: exactly one of the three brings it home.
    bounded(|| {
        let mut pool = pool(1);
        let a = frag(&mut pool, b"abc");
        let (b, c) = (a.clone(), a.slice(1, 1));
        let tb = thread::spawn(move || {
            assert_eq!(b.as_slice(), b"abc");
            drop(b);
        });
        let tc = thread::spawn(move || {
            assert_eq!(c.as_slice(), b"b");
            drop(c);
        });
        pool.recycle(a);
        // Whoever was last, the page is out until it is reclaimed, and then it is home once.
        assert!(pool.inflight() <= 1);
        tb.join().expect("no panic");
        tc.join().expect("no panic");
        all_home(&mut pool, 1);
        let s = pool.stats();
        assert_eq!(s.hold, s.release);
    });
}

#[test]
fn loom_sole_owner_may_write() {
    // `is_sole_owner` (Acquire) must order the other reader's accesses before ours.
    bounded(|| {
        let mut pool = pool(1);
        let mut a = frag(&mut pool, b"x");
        let b = a.clone();
        let read = Arc::new(AtomicUsize::new(0));
        let t = thread::spawn({
            let read = read.clone();
            move || {
                read.store(b.as_slice().len(), Ordering::Relaxed);
                drop(b);
            }
        });
        if a.get_mut().is_some() {
            assert_eq!(read.load(Ordering::Relaxed), 1, "sole only after the other has read");
        }
        t.join().expect("no panic");
        assert!(a.get_mut().is_some());
        drop(a);
        all_home(&mut pool, 1);
    });
}

#[test]
fn loom_detached_pool() {
    // The owner leaves while two threads let go: the memory is freed once, by whoever is last (loom and the allocator
    // would see a double free; a leak shows in the leak test of tests/pool.rs).
    bounded(|| {
        let mut pool = pool(2);
        let (a, b) = (frag(&mut pool, b"a"), frag(&mut pool, b"b"));
        let ta = thread::spawn(move || drop(a));
        let tb = thread::spawn(move || drop(b));
        drop(pool);
        ta.join().expect("no panic");
        tb.join().expect("no panic");
    });
}

#[test]
fn loom_skb_goes_home() {
    bounded(|| {
        let mut pool = pool(1);
        let mut skbs = SkbCache::new(2);
        let mut a = skbs.alloc().expect("a descriptor is home");
        a.push_frag(frag(&mut pool, b"a")).expect("one fragment fits");
        let b = skbs.alloc().expect("a descriptor is home");
        let ta = thread::spawn(move || a.into_home());
        let tb = thread::spawn(move || drop(b));
        let early = skbs.reclaim();
        ta.join().expect("no panic");
        tb.join().expect("no panic");
        assert_eq!(early + skbs.reclaim(), 2);
        assert_eq!((skbs.inflight(), skbs.silent_drops()), (0, 1));
        all_home(&mut pool, 1);
    });
}

#[test]
fn loom_detached_skb_cache() {
    bounded(|| {
        let mut skbs = SkbCache::new(2);
        let (a, b) = (skbs.alloc().expect("home"), skbs.alloc().expect("home"));
        let t = thread::spawn(move || drop(a));
        drop(skbs);
        b.into_home();
        t.join().expect("no panic");
    });
}

#[test]
fn loom_block_list() {
    // The classical ABA scene: while a pop of x (with y behind it) is interrupted, the other thread takes x and y and puts
    // x back. Without the tag the pop would then make y the head, although y is out.
    bounded(|| {
        let blocks = Arc::new(BlockPool::new(2));
        let (y, x) = (blocks.take().expect("made"), blocks.take().expect("made"));
        // SAFETY: taken above.
        unsafe {
            blocks.put(y);
            blocks.put(x);
        }
        let t = thread::spawn({
            let blocks = blocks.clone();
            move || {
                let x = blocks.take().expect("two for two threads");
                let y = blocks.take();
                // SAFETY: taken above.
                unsafe { blocks.put(x) };
                y.map(|y| y.as_ptr() as usize)
            }
        });
        let mine = blocks.take().map(|b| b.as_ptr() as usize);
        let theirs = t.join().expect("no panic");
        // All blocks are out now, or one is left; none is out twice.
        let left = blocks.take().map(|b| b.as_ptr() as usize);
        let mut out: Vec<usize> = [mine, theirs, left].into_iter().flatten().collect();
        assert_eq!(out.len(), 2);
        out.dedup();
        assert_eq!(out.len(), 2);
        assert!(blocks.take().is_none());
    });
}

#[test]
fn loom_spsc_push_pop() {
    loom::model(|| {
        let (mut tx, mut rx) = spsc::channel::<usize>(2);
        let t = thread::spawn(move || {
            let mut sent = 0;
            for v in 1..=3 {
                // A full ring is not waited for: the model would never end.
                if tx.try_push(v).is_err() {
                    break;
                }
                sent = v;
            }
            sent
        });
        let mut got = Vec::new();
        for _ in 0..2 {
            got.extend(rx.pop());
        }
        let sent = t.join().expect("no panic");
        while let Some(v) = rx.pop() {
            got.push(v);
        }
        assert_eq!(got, (1..=sent).collect::<Vec<_>>());
        assert!(sent >= 2 && rx.is_closed());
    });
}

#[test]
fn loom_spsc_batches() {
    loom::model(|| {
        let (mut tx, mut rx) = spsc::channel::<usize>(2);
        let t = thread::spawn(move || {
            let mut it = 1..=4;
            let n = tx.push_batch(&mut it) + tx.push_batch(&mut it);
            (n, it.next())
        });
        let mut got = Vec::new();
        rx.pop_batch(2, |v| got.push(v));
        let (n, next) = t.join().expect("no panic");
        rx.pop_batch(usize::MAX, |v| got.push(v));
        assert_eq!(got, (1..=n).collect::<Vec<_>>());
        assert_eq!(next, if n < 4 { Some(n + 1) } else { None }, "what does not fit stays in the iterator");
    });
}

#[test]
fn loom_spsc_close_drops_the_rest() {
    struct Tally(Arc<AtomicUsize>);
    impl Drop for Tally {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    loom::model(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (mut tx, mut rx) = spsc::channel(2);
        let t = thread::spawn({
            let dropped = dropped.clone();
            move || {
                for _ in 0..2 {
                    // Taken by the ring or given back closed: either way it is dropped once.
                    drop(tx.push(Tally(dropped.clone())));
                }
            }
        });
        drop(rx.pop());
        drop(rx);
        t.join().expect("no panic");
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    });
}
