//! Every operation of an skb against the obvious model: two byte vectors (head and payload).
//!
//! A run is a list of random operations on two skbs over pools of two page sizes. After each step the bytes, lengths and
//! the fragment limit agree with the model, a failed operation has changed nothing, and a known payload sum is true; at the
//! end all pages and descriptors are home. Failing cases shrink to a short list.

use linerate_arch::{Kernels, fold};
use linerate_skb::{Frag, HEAD_CAPACITY, Page, PagePool, PoolConfig, Skb, SkbCache};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Push(usize),
    Put(usize),
    PullHead(usize),
    Unpull(usize),
    Reset(usize),
    Append { len: usize, fresh_page: bool, sum: bool },
    Extend(usize),
    PopFront,
    Pull(u32),
    Trim(u32),
    PullToHead(usize),
    AppendFrags,
    CloneFrom { off: u32, len: u32 },
    Split(u32),
    MaxFrags(usize),
    Swap,
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (0usize..80).prop_map(Op::Push),
        1 => (0usize..80).prop_map(Op::Put),
        1 => (0usize..80).prop_map(Op::PullHead),
        1 => (0usize..80).prop_map(Op::Unpull),
        1 => (0usize..220).prop_map(Op::Reset),
        6 => (1usize..6000, any::<bool>(), any::<bool>())
            .prop_map(|(len, fresh_page, sum)| Op::Append { len, fresh_page, sum }),
        2 => (1usize..100, any::<bool>()).prop_map(|(len, sum)| Op::Append { len, fresh_page: true, sum }),
        1 => (1usize..3000).prop_map(Op::Extend),
        1 => Just(Op::PopFront),
        2 => (0u32..9000).prop_map(Op::Pull),
        2 => (0u32..20000).prop_map(Op::Trim),
        2 => (0usize..200).prop_map(Op::PullToHead),
        2 => Just(Op::AppendFrags),
        3 => (0u32..9000, 0u32..12000).prop_map(|(off, len)| Op::CloneFrom { off, len }),
        2 => (0u32..12000).prop_map(Op::Split),
        1 => prop_oneof![Just(3usize), Just(17), Just(29), Just(45), Just(128)].prop_map(Op::MaxFrags),
        3 => Just(Op::Swap),
        1 => Just(Op::Clear),
    ]
}

#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    /// Bytes before the head's data that were written, oldest first; the last is the nearest.
    pulled: Vec<u8>,
    off: usize,
    head: Vec<u8>,
    payload: Vec<u8>,
}

struct World {
    k: Kernels,
    pool: PagePool,
    page: Option<Page>,
    next: u8,
    a: (Skb, Model),
    b: (Skb, Model),
}

fn sum_is_true(k: &Kernels, skb: &Skb, m: &Model) -> bool {
    // Both zeros are zero in ones' complement.
    let norm = |s: u16| if s == 0xffff { 0 } else { s };
    skb.payload_sum.is_none_or(|s| norm(fold(s)) == norm(fold(k.sum(&m.payload))))
}

impl World {
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        // Never zero, so that zeroed gaps and stale bytes are told apart from data.
        (0..n)
            .map(|_| {
                self.next = self.next % 251 + 1;
                self.next
            })
            .collect()
    }

    fn frag(&mut self, src: &[u8], fresh: bool) -> Option<(Frag, usize)> {
        if (fresh || self.page.as_ref().is_none_or(|p| p.room() == 0))
            && let Some(p) = self.page.take()
        {
            self.pool.recycle_page(p);
        }
        if self.page.is_none() {
            self.page = Some(self.pool.alloc()?);
        }
        let f = self.page.as_mut()?.append(&self.k, src)?;
        let n = f.len() as usize;
        Some((f, n))
    }

    fn head_op(&mut self, op: &Op) {
        let (skb, m) = &mut self.a;
        match *op {
            Op::Push(n) => {
                let done = skb.push_head(n).map(|b| {
                    assert!(b.iter().all(|x| *x == 0), "no stale bytes");
                    b.fill(0xa5);
                });
                assert_eq!(done.is_some(), n <= m.off);
                if done.is_some() {
                    m.off -= n;
                    m.pulled.truncate(m.pulled.len().saturating_sub(n));
                    m.head.splice(0..0, core::iter::repeat_n(0xa5, n));
                }
            }
            Op::Put(n) => {
                let done = skb.put_head(n).map(|b| {
                    assert!(b.iter().all(|x| *x == 0), "no stale bytes");
                    b.fill(0x5a);
                });
                assert_eq!(done.is_some(), m.off + m.head.len() + n <= HEAD_CAPACITY);
                if done.is_some() {
                    m.head.extend(core::iter::repeat_n(0x5a, n));
                }
            }
            Op::PullHead(n) => {
                let ok = skb.pull_head(n);
                assert_eq!(ok, n <= m.head.len());
                if ok {
                    m.pulled.extend(m.head.drain(..n));
                    m.off += n;
                }
            }
            Op::Unpull(n) => {
                let ok = skb.unpull_head(n);
                assert_eq!(ok, n <= m.pulled.len());
                if ok {
                    let back = m.pulled.split_off(m.pulled.len() - n);
                    m.head.splice(0..0, back);
                    m.off -= n;
                }
            }
            Op::Reset(at) => {
                skb.reset_head(at);
                m.off = at.min(HEAD_CAPACITY);
                m.pulled.clear();
                m.head.clear();
            }
            _ => unreachable!("a head operation"),
        }
    }

    fn add_op(&mut self, op: &Op) {
        match *op {
            Op::Append { len, fresh_page, sum } => {
                let src = self.bytes(len);
                let Some((f, n)) = self.frag(&src, fresh_page) else { return };
                let (skb, m) = &mut self.a;
                let merges = skb.frags().last().is_some_and(|l| l.is_followed_by(&f));
                let room = merges || skb.nr_frags() < skb.max_frags();
                let known = m.payload.is_empty() || skb.payload_sum.is_some();
                let partial = self.k.sum(&src[..n]);
                let r = if sum { skb.push_frag_sum(f, partial) } else { skb.push_frag(f) };
                assert_eq!(r.is_ok(), room);
                if r.is_ok() {
                    m.payload.extend_from_slice(&src[..n]);
                    assert_eq!(skb.payload_sum.is_some(), sum && known);
                }
            }
            Op::Extend(len) => {
                let src = self.bytes(len);
                let (Some(page), (skb, m)) = (self.page.as_mut(), &mut self.a) else { return };
                // The last fragment goes out and comes back longer, as a socket's write would do it.
                let Some(mut last) = skb.pop_front_frag() else { return };
                if skb.nr_frags() > 0 {
                    m.payload.drain(..last.len() as usize);
                    return drop(last);
                }
                let n = page.extend(&self.k, &mut last, &src);
                m.payload.extend_from_slice(&src[..n]);
                skb.push_frag(last).expect("its slot was just freed");
            }
            Op::AppendFrags => {
                let (before_a, before_b) = (self.a.0.to_vec(), self.b.0.to_vec());
                if self.a.0.append_frags(&mut self.b.0) {
                    self.a.1.payload.append(&mut self.b.1.payload);
                    assert_eq!(self.b.0.nr_frags(), 0);
                } else {
                    assert!(self.a.0.nr_frags() + self.b.0.nr_frags() > self.a.0.max_frags());
                    assert_eq!((before_a, before_b), (self.a.0.to_vec(), self.b.0.to_vec()));
                }
            }
            Op::CloneFrom { off, len } => {
                let there = off as usize + len as usize <= self.b.1.payload.len();
                let before = (self.a.0.to_vec(), self.a.0.nr_frags());
                if self.a.0.clone_frags_from(&self.b.0, off, len) {
                    assert!(there);
                    self.a.1.payload.extend_from_slice(&self.b.1.payload[off as usize..][..len as usize]);
                } else {
                    assert!(!there || before.1 + self.b.0.nr_frags() > self.a.0.max_frags());
                    assert_eq!(before, (self.a.0.to_vec(), self.a.0.nr_frags()));
                }
            }
            Op::Split(at) => {
                let there = at as usize <= self.a.1.payload.len();
                if self.a.0.split_payload(at, &mut self.b.0) {
                    assert!(there);
                    let tail = self.a.1.payload.split_off(at as usize);
                    self.b.1.payload.extend(tail);
                } else {
                    assert!(!there || self.a.0.nr_frags() + self.b.0.nr_frags() > self.b.0.max_frags());
                }
            }
            _ => unreachable!("an operation that adds"),
        }
    }

    fn cut_op(&mut self, op: &Op) {
        let (skb, m) = &mut self.a;
        match *op {
            Op::PopFront => {
                if let Some(f) = skb.pop_front_frag() {
                    let front: Vec<u8> = m.payload.drain(..f.len() as usize).collect();
                    assert_eq!(f.as_slice(), front);
                    self.pool.recycle(f);
                } else {
                    assert!(m.payload.is_empty());
                }
            }
            Op::Pull(n) => {
                let n = n.min(skb.len());
                skb.pull(n);
                let h = (n as usize).min(m.head.len());
                m.pulled.extend(m.head.drain(..h));
                m.off += h;
                m.payload.drain(..n as usize - h);
            }
            Op::Trim(len) => {
                skb.trim(len);
                m.payload.truncate((len as usize).saturating_sub(m.head.len()));
                m.head.truncate(len as usize);
            }
            Op::PullToHead(n) => {
                let before = skb.to_vec();
                let off = skb.head_offset() as usize;
                let ok = skb.pull_to_head(n);
                assert_eq!(ok, n <= m.head.len() || (n <= before.len() && n <= HEAD_CAPACITY));
                assert_eq!(before, skb.to_vec(), "the bytes are the same, wherever they lie");
                if ok && n > m.head.len() {
                    let more = n - m.head.len();
                    m.head.extend(m.payload.drain(..more));
                    if off != skb.head_offset() as usize {
                        m.pulled.clear();
                        m.off = skb.head_offset() as usize;
                        assert!(m.off < off);
                    }
                }
            }
            Op::MaxFrags(n) => skb.set_max_frags(n),
            Op::Swap => core::mem::swap(&mut self.a, &mut self.b),
            Op::Clear => {
                skb.clear_frags();
                m.payload.clear();
            }
            _ => unreachable!("an operation that cuts"),
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Push(_) | Op::Put(_) | Op::PullHead(_) | Op::Unpull(_) | Op::Reset(_) => self.head_op(op),
            Op::Append { .. } | Op::Extend(_) | Op::AppendFrags | Op::CloneFrom { .. } | Op::Split(_) => {
                self.add_op(op);
            }
            _ => self.cut_op(op),
        }
        for (skb, m) in [&self.a, &self.b] {
            assert_eq!(skb.head(), m.head);
            assert_eq!(skb.head_offset() as usize, m.off);
            assert_eq!(skb.payload_slices().collect::<Vec<_>>().concat(), m.payload);
            assert_eq!(skb.data_len() as usize, m.payload.len());
            assert_eq!(skb.len() as usize, m.head.len() + m.payload.len());
            assert_eq!(skb.frags().len(), skb.nr_frags());
            assert!(skb.frags().iter().all(|f| !f.is_empty()));
            assert!(sum_is_true(&self.k, skb, m));
        }
    }
}

fn run(page_shift: u8, ops: &[Op]) {
    let mut skbs = SkbCache::new(4);
    let mut pool = PagePool::new(PoolConfig { page_shift, max_pages: 4096, cache_pages: 8 });
    // Dirty a page and a descriptor first, so that stale bytes exist.
    let mut page = pool.alloc().expect("a page");
    let room = page.capacity();
    let f = page.fill(room, |b| {
        b.fill(0xee);
        b.len()
    });
    pool.recycle_page(page);
    f.into_iter().for_each(|f| pool.recycle(f));
    let mut dirty = skbs.alloc().expect("a descriptor");
    dirty.reset_head(0);
    dirty.put_head(HEAD_CAPACITY).expect("the head is empty").fill(0xee);
    skbs.consume(dirty);

    let fresh = Model { off: linerate_skb::DEFAULT_HEADROOM, ..Model::default() };
    let a = (skbs.alloc().expect("a descriptor"), fresh.clone());
    let b = (skbs.alloc().expect("a descriptor"), fresh);
    let mut w = World { k: Kernels::portable(), pool, page: None, next: 0, a, b };
    ops.iter().for_each(|op| w.step(op));
    for (off, len) in [(0u32, 10usize), (7, 300), (5000, 70_000)] {
        let (all, mut got) = (w.a.0.to_vec(), vec![0; len]);
        let n = w.a.0.copy_bytes(off, &mut got);
        let want = all.get(off as usize..).unwrap_or_default();
        assert_eq!(&got[..n], &want[..want.len().min(len)]);
    }
    let World { mut pool, page, a: (a, _), b: (b, _), .. } = w;
    page.into_iter().for_each(|p| pool.recycle_page(p));
    skbs.free(a, &mut pool);
    skbs.free(b, &mut pool);
    pool.reclaim();
    assert_eq!((pool.inflight(), skbs.inflight(), skbs.silent_drops()), (0, 0, 0));
    let s = pool.stats();
    assert_eq!(s.hold, s.release);
    assert_eq!(s.alloc.fast + s.alloc.refill + s.alloc.slow + s.alloc.slow_high_order, s.hold);
    assert_eq!(s.recycle.cached + s.recycle.cache_full + s.recycle.ring, s.release);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 1000 }, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn operations_agree_with_byte_vectors(ops in prop::collection::vec(op(), 1..120)) {
        run(12, &ops);
    }

    #[test]
    fn operations_agree_on_large_pages(ops in prop::collection::vec(op(), 1..60)) {
        run(15, &ops);
    }
}

#[test]
fn fragment_cuts_agree_with_slices() {
    let k = Kernels::portable();
    let mut pool = PagePool::new(PoolConfig { page_shift: 12, max_pages: 1, cache_pages: 1 });
    let mut page = pool.alloc().expect("a page");
    let bytes: Vec<u8> = (0..100).collect();
    let mut f = page.append(&k, &bytes).expect("room");
    assert_eq!(f.slice(10, 20).as_slice(), &bytes[10..30]);
    assert_eq!(f.slice(90, 20).as_slice(), &bytes[90..]);
    assert!(f.slice(200, 1).is_empty());
    let tail = f.split_off(40);
    assert_eq!((f.as_slice(), tail.as_slice()), (&bytes[..40], &bytes[40..]));
    let far = tail.slice(1, 5);
    let far = f.try_merge(far).expect_err("there is a gap");
    f.try_merge(tail).expect("contiguous");
    assert_eq!(f.as_slice(), bytes);
    assert!(!f.is_sole_owner() && f.get_mut().is_none());
    drop(far);
    pool.recycle_page(page);
    f.get_mut().expect("alone").reverse();
    assert_eq!(f.as_slice()[0], 99);
    let mut clones = f.clone_n(3);
    let one = clones.next().expect("of three");
    drop(clones);
    assert!(!f.is_sole_owner());
    drop(one);
    assert!(f.is_sole_owner());
    pool.recycle(f);
    assert_eq!(pool.inflight(), 0);
}
