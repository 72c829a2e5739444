//! Pools and caches over their whole life: exhaustion, statistics, detachment, strangers' threads.

use linerate_arch::Kernels;
use linerate_base::DropReason;
use linerate_skb::{DROPS_KEPT, Frag, Page, PagePool, PoolConfig, Skb, SkbBatch, SkbCache, spsc};
use std::thread;

const STRESS: usize = if cfg!(miri) { 60 } else { 60_000 };

fn pool(max_pages: u32, cache_pages: u32) -> PagePool {
    PagePool::new(PoolConfig { page_shift: 12, max_pages, cache_pages })
}

fn one(pool: &mut PagePool, bytes: &[u8]) -> Frag {
    let mut page = pool.alloc().expect("a page");
    let f = page.append(&Kernels::portable(), bytes).expect("room");
    pool.recycle_page(page);
    f
}

fn assert_send<T: Send>() {}

#[test]
fn what_crosses_threads_is_send() {
    assert_send::<(Frag, Page, Skb, SkbBatch)>();
    assert_send::<(PagePool, SkbCache)>();
    assert_send::<(spsc::Producer<Skb>, spsc::Consumer<Frag>)>();
}

#[test]
fn exhaustion_is_none_and_counted() {
    let mut pool = pool(3, 2);
    let out: Vec<Page> = std::iter::from_fn(|| pool.alloc()).collect();
    assert_eq!(out.len(), 3);
    assert_eq!((pool.stats().exhausted, pool.stats().alloc.empty, pool.inflight()), (1, 4, 3));
    out.into_iter().for_each(|p| pool.recycle_page(p));
    assert_eq!(pool.inflight(), 0);
    assert!(pool.alloc().is_some());

    let mut skbs = SkbCache::new(2);
    let (a, b) = (skbs.alloc().expect("one"), skbs.alloc().expect("two"));
    assert!(skbs.alloc().is_none());
    assert_eq!(skbs.stats().exhausted, 1);
    skbs.consume(a);
    skbs.consume(b);
    assert_eq!((skbs.inflight(), skbs.silent_drops()), (0, 0));
}

#[test]
fn dropped_skbs_are_kept_for_who_watches_and_come_home() {
    let mut p = pool(2 * DROPS_KEPT as u32, 2);
    let mut skbs = SkbCache::new(4 * DROPS_KEPT as u32);
    let drop_one = |skbs: &mut SkbCache, p: &mut PagePool, mark: u32| {
        let mut skb = skbs.alloc().expect("a descriptor");
        skb.mark = mark;
        skb.push_frag(one(p, b"payload")).expect("room");
        skbs.drop_skb(skb, p, DropReason::TcpCsum);
    };
    drop_one(&mut skbs, &mut p, 1);
    assert!(!skbs.has_dropped() && skbs.take_dropped().is_none(), "nobody watches");
    skbs.watch_drops(true);
    (0..DROPS_KEPT as u32 + 5).for_each(|n| drop_one(&mut skbs, &mut p, n));
    assert_eq!((skbs.inflight(), skbs.drops_missed()), (DROPS_KEPT as u32, 5));
    for n in 0..DROPS_KEPT as u32 / 2 {
        let d = skbs.take_dropped().expect("one of those kept");
        assert_eq!((d.skb.mark, d.reason), (n, DropReason::TcpCsum), "the oldest first");
        assert!(d.place.file().ends_with("pool.rs") && d.skb.to_vec() == b"payload");
        skbs.free(d.skb, &mut p);
    }
    assert!(skbs.has_dropped());
    skbs.watch_drops(false);
    p.reclaim();
    assert_eq!((skbs.inflight(), p.inflight(), skbs.silent_drops()), (0, 0, 0), "all home when watching ends");
    skbs.watch_drops(true);
    drop_one(&mut skbs, &mut p, 0);
    drop(skbs);
    p.reclaim();
    assert_eq!(p.inflight(), 0, "the end of the cache is the end of what it kept");
}

#[test]
fn each_path_has_its_counter() {
    let mut p = pool(8, 2);
    let frags: Vec<Frag> = (0u8..5).map(|i| one(&mut p, &[i])).collect();
    let s = p.stats();
    assert_eq!((s.alloc.slow, s.alloc.slow_high_order, s.alloc.empty, s.alloc.fast), (5, 0, 5, 0));
    assert_eq!(s.recycle.released_refcnt, 5, "the writers left while a fragment held the page");
    let mut frags = frags.into_iter();
    for _ in 0..3 {
        p.recycle(frags.next().expect("of five"));
    }
    let s = p.stats();
    assert_eq!((s.recycle.cached, s.recycle.cache_full, s.cache_len, s.spare_len), (2, 1, 2, 1));
    drop(frags);
    assert_eq!(p.inflight(), 2, "on the return stack");
    assert_eq!((p.reclaim(), p.reclaim()), (2, 0));
    let s = p.stats();
    assert_eq!((s.recycle.ring, s.recycle.ring_full, p.inflight(), s.spare_len), (2, 0, 0, 3));
    // Two from the cache, then refills from the spare list (2 + 1), and nothing fresh.
    let out: Vec<Page> = (0..5).map(|_| p.alloc().expect("home")).collect();
    let s = p.stats();
    assert_eq!((s.alloc.fast, s.alloc.refill, s.alloc.slow, s.spare_len), (3, 2, 5, 0));
    assert_eq!(s.hold, 10);
    drop(out);
    assert_eq!(p.reclaim(), 5);
    let mut large = PagePool::new(PoolConfig { page_shift: 21, max_pages: 2, cache_pages: 2 });
    let page = large.alloc().expect("2 MiB");
    assert_eq!((page.capacity(), large.stats().alloc.slow_high_order, large.stats().pages), (2 << 20, 1, 1));
    large.recycle_page(page);
}

#[test]
fn reuse_is_lifo() {
    let mut p = pool(16, 8);
    let (a, b) = (one(&mut p, b"a"), one(&mut p, b"b"));
    let (ia, ib) = (a.page_index(), b.page_index());
    p.recycle(a);
    p.recycle(b);
    let (x, y) = (p.alloc().expect("home"), p.alloc().expect("home"));
    assert_eq!((x.index(), y.index()), (ib, ia));
    p.recycle_page(x);
    p.recycle_page(y);
    assert_eq!(p.stats().pages, 16, "one chunk, cut to the limit");
}

#[test]
fn pages_are_aligned_zeroed_and_stale_bytes_are_out_of_reach() {
    let mut p = pool(2, 2);
    let k = Kernels::portable();
    let mut page = p.alloc().expect("a page");
    let f = page
        .fill(4096, |b| {
            assert!(b.iter().all(|x| *x == 0), "zeroed by the host");
            assert_eq!(b.as_ptr() as usize % 4096, 0);
            b.fill(0xee);
            4096
        })
        .expect("written");
    assert!(page.fill(1, |_| 1).is_none() && page.append(&k, b"x").is_none());
    assert!(!page.reset_if_sole());
    p.recycle(f);
    assert!(page.reset_if_sole());
    // The second life: only what is written again can be seen, gaps cannot.
    let a = page.append(&k, b"abc").expect("room");
    page.align_to(64);
    assert_eq!((page.filled(), page.room()), (64, 4032));
    let b = page
        .fill(100, |b| {
            b[..2].copy_from_slice(b"de");
            2
        })
        .expect("written");
    assert_eq!((a.as_slice(), b.as_slice(), b.offset_in_page()), (&b"abc"[..], &b"de"[..], 64));
    assert!(!a.is_followed_by(&b), "the gap keeps them apart");
    assert!(page.fill(10, |_| 0).is_none(), "nothing written, nothing frozen");
    page.align_to(4096);
    page.align_to(4096);
    assert_eq!(page.room(), 0);
    assert_eq!((a.clone(), a.len()).1, 3);
    drop((a, b));
    p.recycle_page(page);
    assert_eq!(p.inflight(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "too many fragments for an interpreter")]
fn the_writers_share_is_topped_up() {
    let k = Kernels::portable();
    let mut p = PagePool::new(PoolConfig { page_shift: 18, max_pages: 1, cache_pages: 1 });
    let mut page = p.alloc().expect("a page");
    let n = 200_000;
    // More fragments than the first share of counts pays for.
    let frags: Vec<Frag> = (0..n).map(|i| page.append(&k, &[i as u8]).expect("room")).collect();
    assert!(frags.iter().enumerate().all(|(i, f)| f.as_slice() == [i as u8]));
    frags.into_iter().for_each(|f| p.recycle(f));
    assert!(page.reset_if_sole());
    p.recycle_page(page);
    assert_eq!(p.inflight(), 0);
}

#[test]
fn a_detached_pool_lives_until_the_last_page_is_home() {
    let mut p = pool(4, 2);
    let (a, b, c) = (one(&mut p, b"aaa"), one(&mut p, b"bbb"), one(&mut p, b"ccc"));
    drop(a);
    let page = p.alloc().expect("a page");
    drop(p);
    assert_eq!(b.as_slice(), b"bbb");
    let t = thread::spawn(move || {
        assert_eq!(c.as_slice(), b"ccc");
        drop(c);
    });
    drop(b);
    t.join().expect("no panic");
    drop(page);
}

#[test]
fn a_detached_cache_lives_until_the_last_skb_is_home() {
    let mut p = pool(4, 2);
    let mut skbs = SkbCache::new(200);
    let mut out: Vec<Skb> = (0..130).map(|_| skbs.alloc().expect("of 200")).collect();
    out[100].push_frag(one(&mut p, b"payload")).expect("room");
    drop((skbs, p));
    assert_eq!(out[100].to_vec(), b"payload");
    let half = out.split_off(65);
    let t = thread::spawn(move || half.into_iter().for_each(Skb::into_home));
    drop(out);
    t.join().expect("no panic");
}

#[test]
fn strangers_skbs_and_fragments_find_their_own_home() {
    let (mut p1, mut p2) = (pool(4, 2), pool(4, 2));
    let (mut s1, mut s2) = (SkbCache::new(4), SkbCache::new(4));
    let mut skb = s1.alloc().expect("one");
    skb.push_frag(one(&mut p1, b"x")).expect("room");
    let page = p1.alloc().expect("a page");
    assert!(p1.owns(&skb.frags()[0]) && !p2.owns(&skb.frags()[0]));
    // Freed with another shard's cache and pool.
    s2.free(skb, &mut p2);
    p2.recycle_page(page);
    assert_eq!((s2.inflight(), p2.inflight(), s1.inflight(), p1.inflight()), (0, 0, 1, 2));
    assert_eq!((s1.reclaim(), p1.reclaim()), (1, 2));
    assert_eq!((s1.inflight(), p1.inflight(), s1.silent_drops()), (0, 0, 0));
}

#[test]
fn a_silent_drop_is_counted_and_an_explicit_end_is_not() {
    let mut skbs = SkbCache::new(4);
    drop(skbs.alloc());
    let mut batch = SkbBatch::new();
    batch.push(skbs.alloc().expect("one"));
    drop(batch);
    assert_eq!(skbs.silent_drops(), 2);
    skbs.alloc().expect("one").into_home();
    assert_eq!((skbs.reclaim(), skbs.inflight(), skbs.silent_drops()), (3, 0, 2));
}

#[test]
fn many_fragments_take_a_block_and_give_it_back() {
    let mut p = pool(300, 300);
    let mut skbs = SkbCache::new(2);
    skbs.set_max_frags(128);
    for _ in 0..3 {
        let (mut a, mut b) = (skbs.alloc().expect("one"), skbs.alloc().expect("two"));
        for i in 0..128u8 {
            a.push_frag(one(&mut p, &[i])).expect("up to 128");
        }
        let left = a.push_frag(one(&mut p, b"no")).expect_err("full");
        assert!(b.clone_frags_from(&a, 0, 128) && !b.append_frags(&mut a));
        assert_eq!((a.nr_frags(), b.nr_frags()), (128, 128));
        // Slots freed at the front are found again.
        for i in 0..100u8 {
            assert_eq!(a.pop_front_frag().expect("of 128").as_slice(), [i]);
        }
        a.push_frag(left).expect("room at the front");
        assert_eq!(a.to_vec()[..2], [100, 101]);
        a.charge_pages();
        assert_eq!(a.truesize, linerate_skb::SKB_TRUESIZE + 29 * 4096);
        skbs.free(a, &mut p);
        skbs.consume(b);
        p.reclaim();
        assert_eq!((p.inflight(), skbs.inflight()), (0, 0));
    }
}

#[test]
fn header_offsets_move_with_the_head() {
    let mut p = pool(2, 2);
    let mut skbs = SkbCache::new(1);
    let mut skb = skbs.alloc().expect("one");
    assert!(skb.put_head_from(&[1; 40]));
    skb.network_header = 128;
    skb.transport_header = 148;
    skb.csum = linerate_skb::Csum::Partial { start: 148, offset: 16 };
    skb.push_frag(one(&mut p, &[2; 200])).expect("room");
    assert!(!skb.pull_to_head(193) && skb.pull_to_head(100));
    let by = 128 - skb.head_offset();
    assert!(by > 0);
    assert_eq!((skb.network_header, skb.transport_header), (128 - by, 148 - by));
    assert_eq!(skb.csum, linerate_skb::Csum::Partial { start: 148 - by, offset: 16 });
    assert_eq!(skb.head_from(skb.transport_header)[..20], [1; 20]);
    assert_eq!((skb.head_len(), skb.data_len()), (100, 140));
    skbs.free(skb, &mut p);
}

/// Reads skbs until the ring closes, and lets go of them in three ways; returns how many there were.
fn read_and_let_go(mut rx: spsc::Consumer<Skb>) -> u32 {
    let mut next = 0u32;
    loop {
        let closed = rx.is_closed();
        let n = rx.pop_batch(8, |skb| {
            let frozen = skb.payload_slices().flat_map(|s| s.chunks(4)).all(|w| w == next.to_le_bytes());
            assert!(frozen, "written once, then frozen");
            next += 1;
            match next % 3 {
                0 => skb.into_home(),
                1 => {
                    let clones: Vec<Frag> = skb.frags().iter().flat_map(|f| f.clone_n(2)).collect();
                    skb.into_home();
                    drop(clones);
                }
                _ => drop(skb),
            }
        });
        if n == 0 && closed {
            return next;
        }
        if n == 0 {
            thread::yield_now();
        }
    }
}

/// Writes `src` into pages and pushes the fragments; waits for pages that are out.
fn write(skb: &mut Skb, p: &mut PagePool, page: &mut Option<Page>, src: &[u8]) {
    let mut left = src;
    while !left.is_empty() {
        if page.is_none() {
            *page = p.alloc();
        }
        let Some(w) = page.as_mut() else {
            thread::yield_now();
            continue;
        };
        match w.append(&Kernels::portable(), left) {
            Some(f) => {
                left = &left[f.len() as usize..];
                skb.push_frag(f).expect("few fragments");
            }
            None => page.take().into_iter().for_each(|w| p.recycle_page(w)),
        }
    }
}

/// Super-packets made on one thread, consumed on another: what is let go there comes home, and in the end all is home.
#[test]
fn cross_thread_stress() {
    let mut p = pool(64, 16);
    let mut skbs = SkbCache::new(32);
    let (mut tx, rx) = spsc::channel::<Skb>(16);
    let reader = thread::spawn(move || read_and_let_go(rx));
    let mut page: Option<Page> = None;
    for i in 0..STRESS as u32 {
        p.reclaim();
        let mut skb = loop {
            match skbs.alloc() {
                Some(skb) => break skb,
                None => thread::yield_now(),
            }
        };
        write(&mut skb, &mut p, &mut page, &i.to_le_bytes().repeat(100 + i as usize % 300));
        while let Err(back) = tx.try_push(skb) {
            skb = back;
            thread::yield_now();
        }
    }
    drop(tx);
    assert_eq!(reader.join().expect("no panic"), STRESS as u32);
    page.into_iter().for_each(|w| p.recycle_page(w));
    skbs.reclaim();
    p.reclaim();
    assert_eq!((p.inflight(), skbs.inflight()), (0, 0));
    let s = p.stats();
    assert_eq!((s.hold, s.recycle.cached + s.recycle.cache_full + s.recycle.ring), (s.release, s.release));
    assert_eq!(skbs.silent_drops(), (STRESS / 3) as u64, "those with next % 3 == 2");
}

/// Four threads let go of clones of the same pages while the owner reclaims and hands out again.
#[test]
fn many_threads_let_go_of_the_same_pages() {
    let mut p = pool(32, 8);
    let mut threads = Vec::new();
    let mut txs = Vec::new();
    for _ in 0..4 {
        let (tx, mut rx) = spsc::channel::<(u32, Frag)>(32);
        txs.push(tx);
        threads.push(thread::spawn(move || {
            loop {
                let closed = rx.is_closed();
                match rx.pop() {
                    Some((v, f)) => assert_eq!(f.as_slice(), v.to_le_bytes()),
                    None if closed => return,
                    None => thread::yield_now(),
                }
            }
        }));
    }
    for v in 0..STRESS as u32 / 4 {
        let mut page = loop {
            p.reclaim();
            match p.alloc() {
                Some(page) => break page,
                None => thread::yield_now(),
            }
        };
        let f = page.append(&Kernels::portable(), &v.to_le_bytes()).expect("room");
        p.recycle_page(page);
        for (tx, c) in txs.iter_mut().zip(f.clone_n(4)) {
            let mut item = (v, c);
            while let Err(back) = tx.try_push(item) {
                item = back;
                thread::yield_now();
            }
        }
        p.recycle(f);
    }
    drop(txs);
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
    p.reclaim();
    assert_eq!(p.inflight(), 0);
}

#[test]
fn a_ring_wraps_and_closes() {
    let (mut tx, mut rx) = spsc::channel::<Box<u32>>(4);
    let (mut sent, mut got) = (0u32, 0u32);
    for round in 0..50 {
        sent += tx.push_batch(&mut (sent..sent + round % 6).map(Box::new)) as u32;
        assert!(tx.len() <= tx.capacity());
        assert_eq!(rx.peek().map(|v| **v), if sent > got { Some(got) } else { None });
        rx.pop_batch(round as usize % 4, |v| {
            assert_eq!(*v, got);
            got += 1;
        });
    }
    while let Some(v) = rx.pop() {
        assert_eq!(*v, got);
        got += 1;
    }
    assert_eq!((sent, rx.len(), rx.is_closed()), (got, 0, false));
    tx.push(Box::new(1)).expect("room");
    drop(tx);
    assert!(rx.is_closed() && rx.len() == 1, "what was sent can still be taken");
    drop(rx);
    let (mut tx, rx) = spsc::channel::<Box<u32>>(1);
    drop(rx);
    assert!(matches!(tx.push(Box::new(2)), Err(spsc::PushError::Closed(_))));
}
