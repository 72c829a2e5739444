//! Two devices and a link without a stack: bytes in, bytes out, and everything that can go wrong on the way.

use super::*;
use crate::link::Link;
use crate::tap::Keep;
use crate::wire::{Fate, Verdict as Do, WireConfig};
use linerate_base::{DropCounters, Seq};
use linerate_skb::{GsoType, PagePool, PoolConfig, SkbCache, TxDoneToken};
use linerate_wire::TcpFlags;

const MTU: u32 = 1500;
const MSS: u32 = 1460;

/// One end: a device and the memory that a stack would lend it.
struct End {
    rx: SimRx,
    tx: SimTx,
    pool: PagePool,
    skbs: SkbCache,
    drops: DropCounters,
}

impl End {
    fn new(link: &SharedLink, side: usize, nic: NicConfig, pages: u32) -> Self {
        let (rx, tx) = queues(link, side, nic, 7);
        let pool = PagePool::new(PoolConfig { page_shift: 12, max_pages: pages, cache_pages: 16 });
        Self { rx, tx, pool, skbs: SkbCache::new(4096), drops: DropCounters::default() }
    }
    fn send(&mut self, now: Instant, skbs: impl IntoIterator<Item = Skb>) -> usize {
        let mut batch = SkbBatch::new();
        skbs.into_iter().for_each(|s| batch.push(s));
        let mut cx = TxCx { now, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops };
        let taken = self.tx.xmit(&mut cx, &mut batch);
        self.tx.kick(&mut cx);
        batch.clear_with(&mut self.skbs, &mut self.pool);
        taken
    }
    fn done(&mut self, now: Instant) -> Vec<(TxDoneToken, u32)> {
        let mut done = TxDone::new();
        let mut cx = TxCx { now, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops };
        self.tx.poll_tx(&mut cx, &mut done);
        done.drain().collect()
    }
    fn poll(&mut self, now: Instant, budget: usize) -> (usize, Vec<Skb>) {
        let mut out = SkbBatch::new();
        let mut cx = RxCx { now, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops };
        let n = self.rx.poll_rx(&mut cx, budget, &mut out);
        (n, out.drain(..).collect())
    }
    fn free(&mut self, skbs: Vec<Skb>) {
        skbs.into_iter().for_each(|s| self.skbs.free(s, &mut self.pool));
        self.pool.reclaim();
        self.skbs.reclaim();
    }
    fn assert_all_home(&self) {
        assert_eq!((self.pool.inflight(), self.skbs.inflight(), self.skbs.silent_drops()), (0, 0, 0));
    }
    /// A data segment of `payload` bytes from 10.0.0.1 to 10.0.0.2, as a stack hands it down.
    fn segment(&mut self, seq: u32, payload: &[u8]) -> Skb {
        let k = Kernels::portable();
        let mut skb = self.skbs.alloc().expect("descriptors");
        let mut rest = payload;
        while !rest.is_empty() {
            let mut page = self.pool.alloc().expect("pages");
            let frag = page.append(&k, rest).expect("room");
            rest = &rest[frag.len() as usize..];
            self.pool.recycle_page(page);
            skb.push_frag(frag).expect("few fragments");
        }
        let flags = TcpFlags::ACK;
        let tcp = TcpRepr { src_port: 1, dst_port: 2, seq: Seq(seq), flags, window: 500, ..TcpRepr::default() };
        let l4_len = tcp.header_len() as u32 + skb.data_len();
        let ip = IpRepr::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), proto::TCP, l4_len);
        tcp.emit(skb.push_head(tcp.header_len()).expect("headroom"));
        let l4 = skb.head_offset();
        let seed = linerate_wire::checksum::fold(ip.pseudo_sum());
        skb.head_mut()[16..18].copy_from_slice(&seed.to_be_bytes());
        ip.emit(skb.push_head(20).expect("headroom"));
        (skb.transport_header, skb.network_header, skb.ip_version) = (l4, l4 - 20, 4);
        skb.csum = Csum::Partial { start: l4, offset: 16 };
        if skb.data_len() > MSS {
            (skb.gso_size, skb.gso_segs, skb.gso_type) = (MSS, skb.data_len().div_ceil(MSS), GsoType::TcpV4);
        }
        skb.truesize = skb.len();
        skb.tx_done = TxDoneToken(9);
        skb
    }
}

fn pair(wire: WireConfig, a: NicConfig, b: NicConfig, pages: u32) -> (SharedLink, End, End) {
    let link = Link::new(MTU, [wire.clone(), wire], Keep::Whole, 1);
    let (a, b) = (End::new(&link, 0, a, 4096), End::new(&link, 1, b, pages));
    (link, a, b)
}

fn bytes_of(skbs: &[Skb]) -> Vec<u8> {
    skbs.iter().flat_map(|s| s.payload_slices().flatten().copied().collect::<Vec<_>>()).collect()
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
}

const LATER: Instant = Instant::from_millis(50);

#[test]
fn a_super_packet_is_cut_on_the_wire_and_merged_behind_it() {
    let (link, mut a, mut b) = pair(WireConfig::default(), NicConfig::full(MTU), NicConfig::full(MTU), 4096);
    let data = pattern(40_000);
    let skb = a.segment(1000, &data);
    assert_eq!(a.send(Instant::ZERO, [skb]), 1);
    assert_eq!(b.poll(Instant::from_micros(999), 64).1.len(), 0);
    let (_, got) = b.poll(LATER, 64);
    assert_eq!((got.len(), got[0].gso_segs, got[0].csum), (1, 28, Csum::Unnecessary));
    assert_eq!(bytes_of(&got), data);
    assert_eq!(a.done(LATER), [(TxDoneToken(9), 40_040)]);
    b.free(got);
    a.free(Vec::new());
    a.assert_all_home();
    b.assert_all_home();
    let link = lock(&link);
    assert_eq!(link.checker.violations.texts(), [] as [String; 0]);
    assert!(link.tap.events().iter().all(|e| e.len <= MTU && e.fate == Fate::Delivered));
    assert_eq!((link.wires[0].stats().delivered, link.wires[0].stats().balance()), (28, 0));
}

#[test]
fn a_plain_device_refuses_what_it_did_not_promise() {
    let (link, mut a, mut b) = pair(WireConfig::default(), NicConfig::plain(MTU), NicConfig::plain(MTU), 64);
    let data = pattern(100);
    let skb = a.segment(1, &data);
    a.send(Instant::ZERO, [skb]);
    assert_eq!(lock(&link).checker.violations.count(), 1, "an unfinished checksum");
    let skb = a.segment(101, &pattern(4000));
    a.send(Instant::ZERO, [skb]);
    assert_eq!(lock(&link).checker.violations.count(), 2, "a super-packet");
    let (_, got) = b.poll(LATER, 64);
    assert!(got.iter().all(|s| s.csum == Csum::None && s.head_len() == 40));
    b.free(got);
    a.done(LATER);
    a.assert_all_home();
    b.assert_all_home();
}

#[test]
fn a_flipped_bit_is_never_called_verified() {
    let (link, mut a, mut b) = pair(WireConfig::default(), NicConfig::full(MTU), NicConfig::full(MTU), 4096);
    for bit in (0..1000 * 8).step_by(37) {
        lock(&link).wires[0].set_filter(Some(Box::new(move |_, _, _| Do::Flip(bit))));
        let skb = a.segment(1, &pattern(960));
        a.send(Instant::ZERO, [skb]);
        let (_, mut got) = b.poll(LATER, 64);
        assert_eq!(got.len(), 1);
        // Damage in the IPv4 header is for its own checksum to find; everything behind it is for the device's.
        let header_bad = IpRepr::parse(&got[0].to_vec()).is_err();
        assert_eq!(header_bad, bit < 160, "bit {bit}");
        if !header_bad {
            assert_ne!(got[0].csum, Csum::Unnecessary, "bit {bit}");
            assert_ne!(csum::check_l4(&mut got[0], &Kernels::portable()), Verdict::Good, "bit {bit}");
        }
        b.free(got);
        a.done(LATER);
    }
    assert_eq!(lock(&link).wires[0].stats().corrupted, 217);
}

#[test]
fn a_small_ring_overflows_with_a_reason() {
    let nic = NicConfig { rx_ring: 4, ..NicConfig::plain(MTU) };
    let (link, mut a, mut b) = pair(WireConfig::default(), NicConfig::full(MTU), nic, 64);
    let skb = a.segment(1, &pattern(10 * MSS as usize));
    a.send(Instant::ZERO, [skb]);
    let (n, got) = b.poll(LATER, 3);
    assert_eq!((n, got.len()), (3, 3), "the budget, so: poll again");
    b.free(got);
    assert!(b.rx.irq_enable(), "one is left");
    let (n, got) = b.poll(LATER, 3);
    assert_eq!((n, got.len(), b.drops.get(DropReason::FullRing)), (1, 1, 6));
    b.free(got);
    a.done(LATER);
    b.assert_all_home();
    let link = lock(&link);
    assert_eq!((link.wires[0].stats().nic_drops, link.wires[0].stats().balance()), (6, 0));
    let lost = link.tap.events().iter().filter(|e| e.fate == Fate::Dropped(DropReason::FullRing)).count();
    assert_eq!(lost, 6);
}

#[test]
fn missing_memory_drops_frames_and_comes_back() {
    let mut nic = NicConfig::plain(MTU);
    nic.rx_starved = vec![(Instant::from_millis(10), Instant::from_millis(20))];
    // Two pages: four frames of 1460 bytes.
    let (_link, mut a, mut b) = pair(WireConfig::default(), NicConfig::full(MTU), nic, 2);
    let skb = a.segment(1, &pattern(8 * MSS as usize));
    a.send(Instant::ZERO, [skb]);
    let (_, got) = b.poll(Instant::from_millis(5), 64);
    let short = b.drops.get(DropReason::NoMem);
    assert!(got.len() >= 4 && got.len() + short as usize == 8, "{} and {short}", got.len());
    b.free(got);
    let skb = a.segment(1, &pattern(100));
    a.send(Instant::from_millis(9), [skb]);
    assert_eq!(b.poll(Instant::from_millis(10), 64).1.len(), 0);
    assert_eq!(b.drops.get(DropReason::NoMem), short + 1);
    let skb = a.segment(1, &pattern(100));
    a.send(Instant::from_millis(19), [skb]);
    let (_, got) = b.poll(Instant::from_millis(20), 64);
    assert_eq!(got.len(), 1);
    b.free(got);
    b.assert_all_home();
}

#[test]
fn a_device_that_is_the_bottleneck_pushes_back() {
    let wire = WireConfig { rate_bps: 12_000_000, ..WireConfig::default() };
    let nic = NicConfig { tx_ring: 2, tx_done: TxDoneAt::Departed, ..NicConfig::full(MTU) };
    let (link, mut a, _b) = pair(wire, nic, NicConfig::plain(MTU), 64);
    let three: Vec<Skb> = (0..3).map(|_| a.segment(1, &pattern(MSS as usize))).collect();
    assert_eq!(a.send(Instant::ZERO, three), 2);
    assert_eq!(lock(&link).next_for(0), Some(Instant::from_millis(1)));
    assert_eq!(a.done(Instant::from_micros(999)), []);
    assert_eq!(a.done(Instant::from_millis(1)), [(TxDoneToken(9), 1500)]);
    assert_eq!(lock(&link).next_for(0), Some(Instant::from_millis(2)));
    let skb = a.segment(1, &pattern(10));
    assert_eq!(a.send(Instant::from_millis(1), [skb]), 1);
}

#[test]
fn coalescing_delays_the_wake_up_only() {
    let nic = NicConfig { coalesce: Duration::from_micros(500), ..NicConfig::plain(MTU) };
    let (link, mut a, mut b) = pair(WireConfig::default(), NicConfig::full(MTU), nic, 64);
    let skb = a.segment(1, &pattern(10));
    a.send(Instant::ZERO, [skb]);
    assert_eq!(lock(&link).next_for(1), Some(Instant::from_micros(1500)));
    let (_, got) = b.poll(Instant::from_micros(1100), 64);
    assert_eq!(got.len(), 1);
    b.free(got);
}

#[test]
fn a_narrow_path_answers_with_its_mtu() {
    let wire = WireConfig { path_mtu_bytes: Some(1200), ..WireConfig::default() };
    let (link, mut a, mut b) = pair(wire, NicConfig::full(MTU), NicConfig::full(MTU), 64);
    let skb = a.segment(77, &pattern(MSS as usize));
    a.send(Instant::ZERO, [skb]);
    assert_eq!(b.poll(LATER, 64).1.len(), 0);
    let (_, got) = a.poll(LATER, 64);
    let bytes = got[0].to_vec();
    let (ip, at) = IpRepr::parse(&bytes).expect("a packet");
    assert_eq!((ip.proto, ip.dst.to_string().as_str()), (proto::ICMP, "10.0.0.1"));
    match linerate_wire::Icmpv4Repr::parse(&bytes[at..]) {
        Ok(linerate_wire::Icmpv4Repr::Unreachable { code: 4, mtu: 1200, quoted }) => {
            let quoted = linerate_wire::QuotedPacket::parse(quoted).expect("a quotation");
            assert_eq!(quoted.tcp_seq(), Seq(77));
        }
        other => panic!("{other:?}"),
    }
    a.free(got);
    a.done(LATER);
    a.assert_all_home();
    let link = lock(&link);
    assert_eq!((link.wires[0].stats().too_big, link.wires[1].stats().balance()), (1, 0));
    assert!(!link.tap.to_pcapng("test", ["a", "b"]).is_empty());
}

#[test]
fn the_hash_sees_every_byte_every_time_and_every_fate() {
    let run = |byte: u8, at: u64, lose: bool| {
        let (link, mut a, mut b) = pair(WireConfig::default(), NicConfig::full(MTU), NicConfig::full(MTU), 64);
        lock(&link).wires[0].set_filter(Some(Box::new(move |_, _, _| if lose { Do::Lose } else { Do::Pass })));
        let skb = a.segment(1, &[byte; 100]);
        a.send(Instant::from_micros(at), [skb]);
        let (_, got) = b.poll(LATER, 64);
        b.free(got);
        lock(&link).tap.hash()
    };
    assert_eq!(run(1, 1, false), run(1, 1, false));
    let hashes: std::collections::BTreeSet<u64> =
        [run(1, 1, false), run(2, 1, false), run(1, 2, false), run(1, 1, true)].into();
    assert_eq!(hashes.len(), 4);
}

#[test]
fn a_super_packet_below_the_mtu_is_cut_all_the_same() {
    let (link, mut a, mut b) = pair(WireConfig::default(), NicConfig::full(MTU), NicConfig::plain(MTU), 64);
    let mut skb = a.segment(1, &pattern(1300));
    (skb.gso_size, skb.gso_segs, skb.gso_type) = (1000, 2, GsoType::TcpV4);
    a.send(Instant::ZERO, [skb]);
    let (_, got) = b.poll(LATER, 64);
    assert_eq!(got.iter().map(|s| s.data_len()).collect::<Vec<_>>(), [1000, 300]);
    assert_eq!(lock(&link).checker.violations.count(), 0);
    b.free(got);
    a.done(LATER);
}
