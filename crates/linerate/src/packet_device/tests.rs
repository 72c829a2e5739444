//! The queue pair against a caller on the same thread: order, bounds, doorbells, and what becomes of lies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake as TaskWake, Waker};

use linerate_base::{DropCounters, DropReason, Instant};
use linerate_netdev::{RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_skb::{Csum, GsoType, PagePool, Skb, SkbBatch, SkbCache, TxDoneToken};
use linerate_wire::IpRepr;
use linerate_wire::ip::proto;

use super::*;
use crate::Error;

#[derive(Default)]
struct Count(AtomicUsize);
impl Wake for Count {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
impl TaskWake for Count {
    fn wake(self: Arc<Self>) {
        Wake::wake(&*self);
    }
}
impl Count {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// A shard's side and a caller's.
struct Bench {
    rx: Box<dyn RxQueue + Send>,
    tx: Box<dyn TxQueue + Send>,
    sender: PacketSender,
    receiver: PacketReceiver,
    /// Wake-ups of the stack, and of the caller.
    stack: Arc<Count>,
    task: Arc<Count>,
    pool: PagePool,
    skbs: SkbCache,
    drops: DropCounters,
}

impl Bench {
    fn new(config: &ChannelConfig) -> Self {
        let (device, sender, receiver) = channel(config);
        let stack = Arc::new(Count::default());
        let (rx, tx) = device.into_queues(stack.clone());
        let (pool, skbs) = (PagePool::new(PoolConfig::default()), SkbCache::new(4096));
        Self { rx, tx, sender, receiver, stack, task: Arc::default(), pool, skbs, drops: DropCounters::default() }
    }
    fn waker(&self) -> Waker {
        Waker::from(self.task.clone())
    }
    fn poll(&mut self, budget: usize) -> Vec<Skb> {
        let mut out = SkbBatch::new();
        let mut cx = RxCx { now: Instant::ZERO, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops };
        let n = self.rx.poll_rx(&mut cx, budget, &mut out);
        assert_eq!(n, out.len());
        std::iter::from_fn(|| out.pop_front()).collect()
    }
    fn free(&mut self, skb: Skb) {
        self.skbs.free(skb, &mut self.pool);
    }
    fn xmit(&mut self, batch: &mut SkbBatch) -> usize {
        let mut cx = TxCx { now: Instant::ZERO, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops };
        let n = self.tx.xmit(&mut cx, batch);
        self.tx.kick(&mut cx);
        n
    }
    fn completed(&mut self) -> usize {
        let mut cx = TxCx { now: Instant::ZERO, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops };
        self.tx.poll_tx(&mut cx, &mut TxDone::new())
    }
    /// What the stack sends: one packet of `len` bytes behind its headers.
    fn skb(&mut self, len: usize) -> Skb {
        let bytes = packet(false, len);
        let mut skb = self.skbs.alloc().expect("a descriptor");
        assert!(skb.put_head_from(&bytes[..28]));
        let mut rest = &bytes[28..];
        skb.set_max_frags(linerate_skb::MAX_FRAGS);
        while !rest.is_empty() {
            let mut page = self.pool.alloc().expect("a page");
            let frag = page.append(&Kernels::portable(), rest).expect("room");
            rest = &rest[frag.len() as usize..];
            skb.push_frag(frag).expect("a slot");
            self.pool.recycle_page(page);
        }
        (skb.tx_done, skb.truesize) = (TxDoneToken(3), len as u32);
        skb
    }
    #[track_caller]
    fn finish(mut self) {
        drop((self.rx, self.tx, self.sender, self.receiver));
        self.pool.reclaim();
        self.skbs.reclaim();
        assert_eq!((self.skbs.inflight(), self.skbs.silent_drops(), self.pool.inflight()), (0, 0, 0));
        assert_eq!(self.drops.get(DropReason::NotSpecified), 0);
    }
}

/// A UDP packet of `len` bytes of payload.
fn packet(v6: bool, len: usize) -> Vec<u8> {
    let (src, dst) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
    let ip = IpRepr::new(src.parse().expect("address"), dst.parse().expect("address"), proto::UDP, 8 + len as u32);
    let at = ip.header_len();
    let mut bytes = vec![0; at + 8];
    ip.emit(&mut bytes);
    bytes[at + 4..at + 6].copy_from_slice(&((8 + len) as u16).to_be_bytes());
    bytes.extend((0..len).map(|i| (i * 7 + i / 251) as u8));
    bytes
}

#[test]
fn what_is_pushed_is_received_with_headers_apart_and_the_payload_summed() {
    let mut b = Bench::new(&ChannelConfig::new(1500));
    let packets: Vec<_> = [(false, 0), (true, 0), (false, 1), (false, 1472), (true, 65_487), (false, 65_507)]
        .map(|(v6, len)| packet(v6, len))
        .into();
    assert_eq!(b.sender.try_push_batch(&packets), Ok(packets.len()));
    let got = b.poll(64);
    assert_eq!(got.len(), packets.len());
    for (skb, sent) in got.into_iter().zip(&packets) {
        let end = if sent[0] >> 4 == 4 { 28 } else { 48 };
        assert!(skb.to_vec() == *sent && skb.head_len() == end && skb.csum == Csum::None);
        assert_eq!(skb.ip_version, sent[0] >> 4);
        if sent.len() > end {
            let sum = linerate_wire::checksum::sum(&sent[end..]);
            let known = skb.payload_sum.expect("summed on the way");
            assert_eq!(linerate_wire::checksum::finish(known), linerate_wire::checksum::finish(sum));
        }
        b.free(skb);
    }
    let s = b.rx.qstats();
    assert_eq!((s.rx_skbs, s.rx_bytes), (6, packets.iter().map(|p| p.len() as u64).sum()));
    b.finish();
}

#[test]
fn references_cross_without_a_copy() {
    let mut b = Bench::new(&ChannelConfig::new(9000));
    let mut pool = PagePool::new(PoolConfig::default());
    let mut page = pool.alloc().expect("a page");
    let sent = packet(true, 5000);
    // Cut inside the header, and inside the payload.
    let mut frags: Vec<_> = [&sent[..30], &sent[30..1000], &sent[1000..]]
        .map(|p| page.append(&Kernels::portable(), p).expect("room"))
        .into();
    assert_eq!(b.sender.try_push_frags(&mut frags, &VnetHeader::default()), Ok(()));
    assert!(frags.is_empty());
    let skb = b.poll(64).pop().expect("a packet");
    assert!(skb.to_vec() == sent && skb.head_len() == 48);
    assert_eq!(skb.frags()[0].offset_in_page(), 48, "in the page that the caller filled");
    b.free(skb);
    drop(page);
    pool.reclaim();
    assert_eq!(pool.inflight(), 0, "the caller's page came home");
    assert_eq!(b.sender.try_push_frags(&mut frags, &VnetHeader::default()), Ok(()), "taken, and dropped");
    assert_eq!((b.poll(64).len(), b.drops.get(DropReason::PktTooSmall)), (0, 1));
    b.finish();
}

#[test]
fn a_full_ring_says_how_many_it_took_and_rings_when_half_is_free() {
    let mut b = Bench::new(&ChannelConfig::new(1500).rings(8, 8));
    let packets = vec![packet(false, 100); 12];
    assert_eq!(b.sender.room(), 8);
    assert_eq!(b.sender.try_push_batch(&packets), Ok(8));
    assert_eq!(b.sender.try_push_batch(&packets[8..]), Err(Error::WouldBlock));
    assert_eq!(b.sender.try_push_batch(&packets[..0]), Ok(0));
    let waker = b.waker();
    let mut cx = Context::from_waker(&waker);
    assert!(b.sender.poll_room(&mut cx).is_pending());
    let mut got = b.poll(3);
    assert_eq!((got.len(), b.task.take()), (3, 0), "not yet half");
    got.extend(b.poll(1));
    assert_eq!((b.task.take(), b.sender.room()), (1, 4));
    assert_eq!(b.sender.poll_room(&mut cx), Poll::Ready(Ok(())));
    assert_eq!(b.sender.try_push_batch(&packets[8..]), Ok(4));
    got.extend(b.poll(64));
    assert_eq!((got.len(), b.task.take()), (12, 0), "nobody waits");
    got.into_iter().for_each(|skb| b.free(skb));
    b.finish();
}

#[test]
fn a_sleeping_stack_is_woken_once_for_a_batch() {
    let mut b = Bench::new(&ChannelConfig::new(1500));
    assert_eq!(b.sender.try_push(&packet(false, 9)), Ok(()));
    assert_eq!(b.stack.take(), 0, "it polls");
    assert!(b.rx.irq_enable(), "there was work already");
    for skb in b.poll(64) {
        b.free(skb);
    }
    assert!(!b.rx.irq_enable());
    assert_eq!(b.sender.try_push_batch(&vec![packet(false, 9); 5]), Ok(5));
    assert_eq!(b.sender.try_push(&packet(false, 9)), Ok(()));
    assert_eq!(b.stack.take(), 1, "once for each sleep");
    b.rx.irq_disable();
    for skb in b.poll(64) {
        b.free(skb);
    }
    assert_eq!(b.sender.try_push(&packet(false, 9)), Ok(()));
    assert_eq!(b.stack.take(), 0, "it was disarmed");
    b.finish();
}

#[test]
fn a_full_ring_towards_the_caller_stops_the_device_until_half_is_free() {
    for (config, fit) in [
        (ChannelConfig::new(1500).rings(8, 8), 8),
        // 128 bytes a packet.
        (ChannelConfig::new(1500).tx_bytes(900), 7),
        // Longer than all that may wait: one at a time.
        (ChannelConfig::new(1500).tx_bytes(100), 1),
    ] {
        let mut b = Bench::new(&config);
        let waker = b.waker();
        let mut cx = Context::from_waker(&waker);
        assert!(b.receiver.poll_pull(&mut cx).is_pending());
        let mut batch = SkbBatch::from_iter((0..20).map(|_| b.skb(100)).collect::<Vec<_>>());
        assert_eq!((b.xmit(&mut batch), b.completed(), b.task.take()), (fit, fit, 1));
        assert_eq!((b.tx.is_stopped(), b.tx.qstats().tx_stop), (true, 1));
        let mut pulled = 0;
        while b.receiver.try_pull().is_ok() {
            pulled += 1;
            let left = fit - pulled;
            let roomy = left <= config.tx_ring / 2 && left as u64 * 128 <= config.tx_bytes / 2;
            assert_eq!(b.tx.is_stopped(), !roomy, "{pulled} of {fit}");
        }
        assert_eq!((pulled, b.stack.take()), (fit, 1));
        let mut rest = 20 - fit;
        while rest > 0 {
            let n = b.xmit(&mut batch);
            let got = b.receiver.try_pull_batch(64, |p| assert_eq!(p.len(), 128)).expect("sent");
            assert_eq!(n, got);
            rest -= n;
        }
        assert_eq!((b.tx.qstats().tx_skbs, b.drops.total()), (20, 0));
        b.finish();
    }
}

#[test]
fn packets_are_the_stack_s_own_pages_and_come_home_from_anywhere() {
    let mut b = Bench::new(&ChannelConfig::new(65_535));
    let skb = b.skb(60_000);
    let (sent, page) = (skb.to_vec(), skb.frags()[0].as_slice().as_ptr());
    assert_eq!(b.xmit(&mut SkbBatch::from_iter([skb])), 1);
    let got = b.receiver.try_pull().expect("sent");
    assert_eq!(got.slices().nth(1).expect("a fragment").as_ptr(), page);
    let mut start = [0; 40];
    assert_eq!((got.copy_to(&mut start), got.len(), got.wire_pkts()), (40, sent.len(), 1));
    assert!(start == sent[..40] && got.to_vec() == sent && got.header() == VnetHeader::default());
    std::thread::spawn(move || drop(got)).join().expect("dropped elsewhere");
    b.finish();
}

#[test]
fn super_packets_cross_whole_and_from_one_channel_to_another() {
    let config = ChannelConfig::new(1500).offloads(Offloads::ALL);
    let (mut a, mut b) = (Bench::new(&config), Bench::new(&config));
    let mut skb = a.skb(10_000);
    (skb.gso_size, skb.gso_segs, skb.gso_type) = (1400, 8, GsoType::UdpL4);
    skb.csum = Csum::Partial { start: skb.head_offset() + 20, offset: 6 };
    let sent = skb.to_vec();
    assert_eq!(a.xmit(&mut SkbBatch::from_iter([skb])), 1);
    let packet = a.receiver.try_pull().expect("sent");
    let said = packet.header();
    assert_eq!((said.gso, said.gso_size, said.csum), (Gso::UdpL4, 1400, Some(PartialCsum { start: 20, offset: 6 })));
    // By copy, and by reference.
    assert_eq!(b.sender.stage(&packet.to_vec(), &said), Ok(()));
    assert!(b.sender.stage_packet(packet).is_ok());
    b.sender.flush();
    let got = b.poll(64);
    assert_eq!(got.len(), 2);
    for skb in got {
        assert_eq!((skb.gso_size, skb.gso_segs, skb.gso_type), (1400, 8, GsoType::UdpL4));
        assert_eq!(
            (skb.hash, skb.ifindex, skb.csum),
            (0, 0, Csum::Partial { start: skb.head_offset() + 20, offset: 6 })
        );
        assert!(skb.to_vec() == sent);
        b.free(skb);
    }
    b.finish();
    a.finish();
}

#[test]
fn lies_end_as_drops_with_a_reason_and_in_their_place() {
    use DropReason as R;
    let mut b = Bench::new(&ChannelConfig::new(1500).offloads(Offloads { uso: false, ..Offloads::ALL }));
    let (udp, none) = (packet(false, 3000), VnetHeader::default());
    let csum = Some(PartialCsum { start: 20, offset: 6 });
    let uso = VnetHeader { csum, gso: Gso::UdpL4, gso_size: 1000, ..none };
    let tso = VnetHeader { gso: Gso::TcpV4, ..uso };
    let cases: Vec<(&str, Vec<u8>, VnetHeader, R)> = vec![
        ("nothing", vec![], none, R::PktTooSmall),
        ("longer than IP can be", vec![0x45; 65_536], none, R::PktTooBig),
        ("not agreed on", udp.clone(), uso, R::DevHdr),
        ("TCP that is UDP", udp.clone(), tso, R::SkbGsoSeg),
        ("the other family", udp.clone(), VnetHeader { gso: Gso::TcpV6, ..tso }, R::SkbGsoSeg),
        ("a size of 0", udp.clone(), VnetHeader { gso_size: 0, ..tso }, R::SkbGsoSeg),
        (
            "a sum beyond the packet",
            udp.clone(),
            VnetHeader { csum: Some(PartialCsum { start: 9000, offset: 6 }), ..none },
            R::DevHdr,
        ),
        (
            "a sum in the payload",
            udp.clone(),
            VnetHeader { csum: Some(PartialCsum { start: 2000, offset: 0 }), ..none },
            R::DevHdr,
        ),
        ("headers longer than the packet", udp.clone(), VnetHeader { hdr_len: 60_000, ..tso }, R::DevHdr),
        ("a super-packet of a header", udp[..28].to_vec(), tso, R::PktTooSmall),
    ];
    for (what, packet, header, reason) in cases {
        assert_eq!(b.sender.stage(&packet, &header), Ok(()), "{what}");
        b.sender.flush();
        let before = b.drops.get(reason);
        assert!(b.poll(64).is_empty(), "{what} was let through");
        assert_eq!(b.drops.get(reason), before + 1, "{what}: {:?}", b.drops.iter().collect::<Vec<_>>());
    }
    // Drops count against what a poll looks at, but not against what it delivers.
    for _ in 0..7 {
        assert_eq!(b.sender.stage(&[], &none), Ok(()));
    }
    assert_eq!(b.sender.try_push(&udp), Ok(()));
    assert_eq!((b.poll(2).len(), b.rx.irq_enable()), (0, true), "four were looked at, and there is more");
    let got = b.poll(2);
    assert_eq!((got.len(), b.drops.get(R::PktTooSmall)), (1, 1 + 1 + 7));
    got.into_iter().for_each(|skb| b.free(skb));
    b.finish();
}

#[test]
fn without_pages_a_packet_is_taken_and_counted() {
    let pool = PoolConfig { page_shift: 12, max_pages: 2, cache_pages: 2 };
    let mut b = Bench::new(&ChannelConfig::new(1500).pool(pool));
    let big = packet(false, 6000);
    assert_eq!(b.sender.try_push_batch(&[&big, &big, &big]), Ok(3));
    let got = b.poll(64);
    assert_eq!((got.len(), b.drops.get(DropReason::NoMem), b.rx.qstats().rx_alloc_fail), (1, 2, 2));
    got.into_iter().for_each(|skb| b.free(skb));
    assert_eq!(b.sender.try_push(&packet(false, 100)), Ok(()));
    assert_eq!(b.poll(64).into_iter().map(|skb| b.free(skb)).count(), 1, "memory is back");
    b.finish();
}

#[test]
fn an_end_that_goes_is_told() {
    // The stack's.
    let (device, mut sender, mut receiver) = channel(&ChannelConfig::new(1500).rings(1, 1));
    let task = Arc::new(Count::default());
    let waker = Waker::from(task.clone());
    let mut cx = Context::from_waker(&waker);
    assert_eq!(sender.try_push(&packet(false, 1)), Ok(()));
    assert!(sender.poll_push(&mut cx, &packet(false, 1)).is_pending() && receiver.poll_pull(&mut cx).is_pending());
    drop(device);
    assert_eq!(task.take(), 2);
    assert_eq!(sender.poll_push(&mut cx, &packet(false, 1)), Poll::Ready(Err(Error::StackGone)));
    assert!(matches!(receiver.poll_pull(&mut cx), Poll::Ready(Err(Error::StackGone))));
    assert!(receiver.pull().is_err() && sender.room() == 0);
    // The caller's, while the stack waits for it.
    let mut b = Bench::new(&ChannelConfig::new(1500).rings(8, 1));
    let mut batch = SkbBatch::from_iter([b.skb(10), b.skb(10), b.skb(10)]);
    assert_eq!((b.xmit(&mut batch), b.tx.is_stopped()), (1, true));
    b.receiver = channel(&ChannelConfig::new(1500)).2;
    assert_eq!((b.stack.take(), b.tx.is_stopped()), (1, false));
    assert_eq!((b.xmit(&mut batch), b.drops.get(DropReason::Shutdown), b.completed()), (2, 2, 3));
    b.finish();
}

#[test]
fn behind_an_ethernet_header_all_is_the_same() {
    let mut b = Bench::new(&ChannelConfig::new(1500).ethernet());
    let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd][..], &packet(true, 65_487)].concat();
    let arp = [&frame[..12], &[8, 6], &[9; 28]].concat();
    assert_eq!(b.sender.try_push_batch(&[&frame[..], &arp, &frame[..9]]), Ok(3));
    let got = b.poll(64);
    let heads: Vec<_> = got.iter().map(|skb| (skb.len() as usize, skb.head_len())).collect();
    assert_eq!(heads, [(frame.len(), 62), (42, 42), (9, 9)], "the stack judges what is too short");
    assert_eq!(b.tx.features().hard_header_len, 14);
    got.into_iter().for_each(|skb| b.free(skb));
    b.finish();
}
