//! In steady state a frame costs no allocation: neither cut nor uncut, by reference or by copy.
//!
//! A counting global allocator sees everything that this test's own thread does; the first rounds fill the caches.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use linerate_arch::Kernels;
use linerate_base::{DropCounters, Instant};
use linerate_netdev::TxDone;
use linerate_netdev::queue::QueueCx;
use linerate_skb::{Csum, GsoType, PagePool, PoolConfig, Skb, SkbBatch, SkbCache};
use linerate_softnic::{Dma, NicConfig, pair};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator; counting touches a thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// IPv4 and TCP, 40 bytes, a length for `payload` bytes; the checksum is the device's.
fn header(payload: usize, seq: u32) -> [u8; 40] {
    let mut h = [0; 40];
    h[0] = 0x45;
    h[2..4].copy_from_slice(&((payload + 40) as u16).to_be_bytes());
    (h[6], h[8], h[9]) = (0x40, 64, 6);
    h[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let ip = linerate_wire::checksum::finish(linerate_wire::checksum::sum(&h[..20]));
    h[10..12].copy_from_slice(&ip.to_be_bytes());
    h[20..28].copy_from_slice(&[0x14, 0x51, 0x9c, 0x40, 0, 0, 0, 0]);
    h[24..28].copy_from_slice(&seq.to_be_bytes());
    (h[32], h[33]) = (0x50, 0x10);
    let pseudo = linerate_wire::checksum::pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, payload as u32 + 20);
    h[36..38].copy_from_slice(&linerate_wire::checksum::fold(pseudo).to_be_bytes());
    h
}

struct Memory {
    skbs: SkbCache,
    pool: PagePool,
    drops: DropCounters,
}

impl Memory {
    fn new() -> Self {
        let pool = PagePool::new(PoolConfig { page_shift: 15, max_pages: 64, cache_pages: 64 });
        Self { skbs: SkbCache::new(512), pool, drops: DropCounters::default() }
    }
    fn cx(&mut self) -> QueueCx<'_> {
        QueueCx { now: Instant::ZERO, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops }
    }
    fn super_packet(&mut self, payload: &[u8], seq: u32) -> Skb {
        let mut skb = self.skbs.alloc().unwrap();
        assert!(skb.put_head_from(&header(payload.len(), seq)));
        let mut rest = payload;
        while !rest.is_empty() {
            let mut page = self.pool.alloc().unwrap();
            let f = page.append(&Kernels::portable(), rest).unwrap();
            rest = &rest[f.len() as usize..];
            skb.push_frag(f).unwrap();
            self.pool.recycle_page(page);
        }
        (skb.gso_size, skb.gso_type) = (1460, GsoType::TcpV4);
        skb.transport_header = skb.head_offset() + 20;
        skb.csum = Csum::Partial { start: skb.transport_header, offset: 16 };
        skb
    }
}

#[test]
fn nothing_is_allocated_per_frame() {
    let payload = [7; 44 * 1460];
    for (cut, dma) in [(false, Dma::Ref), (false, Dma::Copy), (true, Dma::Ref), (true, Dma::Copy)] {
        let cfg = NicConfig { cut, dma, ..NicConfig::default() };
        let (mut a, mut b) = pair(&cfg, &cfg);
        let ((mut near_rx, mut tx), (mut rx, _far_tx)) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        let (mut near, mut far) = (Memory::new(), Memory::new());
        let (mut batch, mut out, mut done) = (SkbBatch::new(), SkbBatch::new(), TxDone::new());
        let (mut before, mut bytes) = (0, 0u64);
        for round in 0..400u32 {
            if round == 100 {
                (before, bytes) = (COUNT.with(Cell::get), 0);
            }
            near.pool.reclaim();
            for i in 0..8 {
                batch.push(near.super_packet(&payload, (round * 8 + i) * payload.len() as u32));
            }
            assert_eq!(tx.xmit(&mut near.cx(), &mut batch), 8);
            tx.kick(&mut near.cx());
            tx.poll_tx(&mut near.cx(), &mut done);
            done.drain().for_each(drop);
            while rx.poll_rx(&mut far.cx(), 64, &mut out) > 0 {}
            bytes += out.iter().map(|s| u64::from(s.data_len())).sum::<u64>();
            out.clear_with(&mut far.skbs, &mut far.pool);
            assert!(!near_rx.irq_enable());
        }
        let allocations = COUNT.with(Cell::get) - before;
        assert_eq!(bytes, 300 * 8 * payload.len() as u64);
        assert_eq!(allocations, 0, "{allocations} allocations for {bytes} bytes; cut {cut}, {dma:?}");
        assert_eq!(near.drops.total() + far.drops.total(), 0);
    }
}
