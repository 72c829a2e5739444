//! Taps on whole conversations: what is captured is what crossed the wire, on every path that packets take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec;
use std::vec::Vec;

use linerate_base::DropReason;
use linerate_softnic::{NicConfig, pair};
use linerate_tcp::SockOpts;

use super::*;
use crate::config::{DeviceConfig, GroMode};
use crate::remote::ShardWaker;
use crate::tests::{Net as Lab, WIRE, byte_at};
use crate::{BindOpts, SockId, StackConfig};

fn tap_at(shard: &mut Shard, points: &[Point], text: &str) -> TapId {
    let points = points.iter().fold(Points::NONE, |set, &p| set.with(p));
    let filter = Filter::parse(text).unwrap();
    shard.add_tap(TapConfig { points, filter, buffer_bytes: 16 << 20, ..TapConfig::default() }, None).unwrap()
}

/// What a tap took since the last time.
fn take(shard: &mut Shard, id: TapId) -> Vec<(Record, Vec<u8>)> {
    let mut buf = CaptureBuf::new(16 << 20);
    assert!(shard.swap_tap(id, &mut buf));
    buf.iter().map(|(r, bytes)| (*r, bytes.to_vec())).collect()
}

/// Two shards on software NICs, where small packets have their short way and frames merge without descriptors.
struct Small {
    ends: [Shard; 2],
    socks: [SockId; 2],
    now: Instant,
}

impl Small {
    fn new(gro: GroMode) -> Self {
        // Frames that are there to be merged, or super-packets as they are.
        let cut = gro == GroMode::Software;
        let cfg = NicConfig { ring_slots: 256, cut, gro_hw: false, ..NicConfig::default() };
        let (mut a, mut b) = pair(&cfg, &cfg);
        let side = |nic: &mut linerate_softnic::Nic, n: u64| {
            let mut shard = Shard::new(StackConfig { seed: 1 + n, ..StackConfig::default() });
            let mut device = DeviceConfig::new("nic0", 1500);
            device.gro = gro;
            let dev = shard.add_device(device).unwrap();
            let (rx, tx) = nic.take_queue(0).unwrap();
            shard.attach(dev, 0, rx, tx).unwrap();
            shard.add_address(dev, std::format!("10.0.0.{}/24", n + 1).parse().unwrap()).unwrap();
            shard
        };
        let mut ends = [side(&mut a, 0), side(&mut b, 1)];
        let mut opts = SockOpts::default();
        opts.nodelay = true;
        let to = "10.0.0.2:80".parse().unwrap();
        let listener = ends[1].tcp_listen(to, 8, &opts, BindOpts::default()).unwrap();
        let client = ends[0].tcp_connect(to, None, &opts).unwrap();
        let mut now = Instant::from_secs(1);
        for _ in 0..6 {
            ends.iter_mut().for_each(|end| _ = end.turn(now, 64));
            now = now.plus_micros(50);
        }
        let server = ends[1].accept(listener).unwrap();
        Self { ends, socks: [client, server], now }
    }

    /// A message from `from` to the other end, which reads it at once.
    fn say(&mut self, from: usize, bytes: &[u8]) {
        let (mut left, mut got) = (bytes, 0);
        while got < bytes.len() {
            left = &left[self.ends[from].write(self.socks[from], left).unwrap_or(0)..];
            self.ends[from].flush();
            for end in [1 - from, from] {
                self.ends[end].turn(self.now, 64);
                self.now = self.now.plus_micros(20);
            }
            let mut buf = vec![0; bytes.len()];
            got += self.ends[1 - from].read(self.socks[1 - from], &mut buf).unwrap_or(0);
        }
    }
    fn wire(&self, end: usize) -> (u64, u64) {
        let q = self.ends[end].qstats(WIRE).unwrap();
        (q.rx_wire_pkts, q.tx_wire_pkts)
    }
}

#[test]
fn captured_is_all_that_crossed_the_wire_small_ones_too() {
    for gro in [GroMode::Off, GroMode::Software] {
        let mut lab = Small::new(gro);
        // The short way is taken before and after.
        (0..20).for_each(|n| lab.say(n % 2, b"hello"));
        let ids = [0, 1].map(|end| tap_at(&mut lab.ends[end], &[Point::Rx, Point::RxGro, Point::Tx], ""));
        let before = [lab.wire(0), lab.wire(1)];
        (0..50).for_each(|n| lab.say(n % 2, &vec![n as u8; 1 + n % 70]));
        lab.say(0, &vec![7; 100_000]);
        let after = [lab.wire(0), lab.wire(1)];
        let taken = [0, 1].map(|end| take(&mut lab.ends[end], ids[end]));
        for end in [0, 1] {
            let at = |point| taken[end].iter().filter(move |(r, _)| r.point == point);
            let wire_pkts = |point| at(point).map(|(r, _)| u64::from(r.wire_pkts)).sum::<u64>();
            let crossed = (after[end].0 - before[end].0, after[end].1 - before[end].1);
            assert_eq!((wire_pkts(Point::Rx), wire_pkts(Point::Tx)), crossed, "{gro:?}, end {end}");
            assert_eq!(wire_pkts(Point::RxGro), crossed.0, "{gro:?}, end {end}");
            assert!(at(Point::Rx).all(|(r, b)| r.orig_len as usize == b.len() && r.link == LinkType::Raw));
            let merged = at(Point::RxGro).count() < at(Point::Rx).count();
            assert_eq!(merged, end == 1 && gro == GroMode::Software, "{gro:?}, end {end}");
            let bytes = |point| at(point).map(|(r, _)| u64::from(r.orig_len)).sum::<u64>();
            assert!(bytes(Point::Rx) > 0 && bytes(Point::Tx) > 0);
        }
        // Payload is whole, wherever it was: 100 000 sevens went over one wire.
        let sevens = |point| -> usize {
            let data = taken[1].iter().filter(|(r, _)| r.point == point && r.orig_len > 52);
            data.map(|(_, b)| b[52..].iter().filter(|&&b| b == 7).count()).sum()
        };
        assert_eq!((sevens(Point::Rx), sevens(Point::RxGro)), (100_000, 100_000), "{gro:?}");
        let stats: Vec<_> = lab.ends[0].tap_stats(ids[0]).collect();
        assert_eq!(stats.len(), 3);
        assert!(stats.iter().all(|(i, _, s)| *i == WIRE && s.seen_skbs == s.matched_skbs && s.lost_skbs == 0));
        // Without taps nothing is looked at, and everything goes on.
        for end in [0, 1] {
            assert!(lab.ends[end].del_tap(ids[end]).is_some_and(|(rest, stats)| rest.is_empty() && stats.len() == 3));
            assert!(lab.ends[end].del_tap(ids[end]).is_none() && !lab.ends[end].core.links.tapped);
        }
        lab.say(0, b"on");
        lab.ends.iter().for_each(Shard::check_invariants);
    }
}

#[test]
fn a_transfer_looks_the_same_at_both_ends_of_the_wire() {
    let mut net = Lab::new();
    let at_a = tap_at(&mut net.a, &[Point::Tx], "");
    let at_b = tap_at(&mut net.b, &[Point::Rx], "");
    let (c, s) = net.pair();
    let data: Vec<u8> = (0..300_000).map(byte_at).collect();
    let (mut sent, mut got, mut buf) = (0, Vec::new(), vec![0; 65_536]);
    while got.len() < data.len() {
        sent += net.a.write(c, &data[sent..]).unwrap_or(0);
        net.settle();
        while let Ok(n) = net.b.read(s, &mut buf) {
            got.extend_from_slice(&buf[..n]);
        }
        net.pass(1);
    }
    let (tx, rx) = (take(&mut net.a, at_a), take(&mut net.b, at_b));
    assert!(tx.iter().any(|(r, _)| r.wire_pkts > 1 && r.gso_size > 1000), "super-packets are shown uncut");
    assert_eq!(
        tx.iter().map(|(r, _)| u64::from(r.wire_pkts)).sum::<u64>(),
        rx.iter().map(|(r, _)| u64::from(r.wire_pkts)).sum()
    );
    // Behind headers of 52 bytes (timestamps), both have the stream.
    let stream = |taken: &[(Record, Vec<u8>)]| {
        let data = taken.iter().filter(|(_, b)| b.len() > 60);
        data.flat_map(|(_, b)| b[52..].to_vec()).collect::<Vec<u8>>()
    };
    assert!(stream(&tx) == data && stream(&rx) == data);
    assert!(rx.windows(2).all(|w| w[0].0.at <= w[1].0.at));
    net.a.del_tap(at_a);
    net.b.del_tap(at_b);
    net.a.close(c).unwrap();
    net.b.close(s).unwrap();
    net.finish();
}

#[test]
fn filters_devices_and_snap_lengths_bound_what_is_taken() {
    let mut net = Lab::new();
    let tap = |shard: &mut Shard, change: &dyn Fn(&mut TapConfig)| {
        let mut cfg = TapConfig { points: Points::NONE.with(Point::Tx), ..TapConfig::default() };
        change(&mut cfg);
        shard.add_tap(cfg, None).unwrap()
    };
    let syn = tap(&mut net.a, &|c| c.filter = Filter::parse("tcp-syn").unwrap());
    let heads = tap(&mut net.a, &|c| c.snaplen = 30);
    let other = tap(&mut net.a, &|c| c.ifindex = Some(crate::LOOPBACK));
    let tiny = tap(&mut net.a, &|c| c.buffer_bytes = 130);
    let (c, _s) = net.pair();
    net.a.write(c, &[1; 5000]).unwrap();
    net.settle();
    assert_eq!(take(&mut net.a, syn).len(), 1);
    let taken = take(&mut net.a, heads);
    assert!(taken.len() >= 3 && taken.iter().all(|(r, b)| b.len() == 30 && r.cap_len == 30 && r.orig_len > 30));
    assert_eq!(take(&mut net.a, other).len(), 0);
    let stats: Vec<_> = net.a.tap_stats(tiny).collect();
    let mut buf = CaptureBuf::new(130);
    assert!(net.a.swap_tap(tiny, &mut buf));
    let (_, _, stats) = stats[0];
    assert_eq!(stats.matched_skbs - stats.lost_skbs, buf.len() as u64);
    assert!(stats.lost_skbs > 0 && buf.bytes_held() <= 130 && buf.is_half_full(), "{stats:?}");
    // Many taps are refused, and ended ones make room.
    let more: Vec<_> = (4..MAX_TAPS).map(|_| tap(&mut net.a, &|_| {})).collect();
    assert_eq!(net.a.add_tap(TapConfig::default(), None), Err(TooManyTaps));
    for id in more.into_iter().chain([syn, heads, other, tiny]) {
        assert!(net.a.del_tap(id).is_some());
    }
    assert!(!net.a.core.links.tapped && !net.a.swap_tap(tiny, &mut buf));
}

struct Count(AtomicUsize);
impl ShardWaker for Count {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_reader_is_called_once_until_it_comes() {
    let mut net = Lab::new();
    let bell = Arc::new(Count(AtomicUsize::new(0)));
    let cfg = TapConfig { points: Points::ALL, ..TapConfig::default() };
    let id = net.a.add_tap(cfg, Some(bell.clone())).unwrap();
    let _ = net.pair();
    assert_eq!(bell.0.load(Ordering::Relaxed), 1);
    assert!(take(&mut net.a, id).len() >= 3);
    net.settle();
    assert_eq!(bell.0.load(Ordering::Relaxed), 1, "nothing came");
    let _ = net.connect(81);
    net.settle();
    assert_eq!(bell.0.load(Ordering::Relaxed), 2);
}

#[test]
fn a_drop_is_shown_whole_with_its_reason_and_place() {
    let mut net = Lab::new();
    let id = tap_at(&mut net.b, &[Point::Drop], "");
    net.b.watch_drops(Instant::from_secs(100));
    // A closed port, twice; then a wrong checksum in a segment with payload in fragments.
    let (c, s) = net.pair();
    let refused = [net.connect(9), net.connect(9)];
    net.settle();
    net.a.write(c, &[5; 1400]).unwrap();
    net.a.turn(net.now, 64);
    *net.wires[0].lock().unwrap().frames[0].last_mut().unwrap() ^= 1;
    net.settle();
    let taken = take(&mut net.b, id);
    let reasons: Vec<_> = taken.iter().map(|(r, _)| r.dropped.unwrap().reason).collect();
    assert_eq!(reasons, [DropReason::NoSocket, DropReason::NoSocket, DropReason::TcpCsum]);
    let (syn, bytes) = &taken[0];
    assert_eq!((syn.orig_len as usize, syn.ifindex, syn.link), (bytes.len(), WIRE, LinkType::Raw));
    assert!(syn.dropped.unwrap().place.file().ends_with("listen.rs"), "{:?}", syn.dropped);
    let facts = Facts::of(bytes, syn.orig_len, syn.link);
    assert!(Filter::parse("tcp-syn and dst port 9 and dst 10.0.0.2").unwrap().matches(&facts));
    let (bad, bytes) = &taken[2];
    assert_eq!((bad.orig_len, bytes.len()), (1452, 1452));
    assert_eq!(bytes[52..1451], [5; 1399]);
    assert_eq!(bytes[1451], 4);
    assert!(bad.dropped.unwrap().place.file().ends_with("ip_in.rs"));
    let places = net.b.drop_places();
    let counts: Vec<_> = places.iter().map(|p| (p.note.reason, p.ifindex, p.skbs)).collect();
    assert_eq!(counts, [(DropReason::NoSocket, WIRE, 2), (DropReason::TcpCsum, WIRE, 1)]);
    assert_eq!(net.b.mibs().drops.total(), 3, "all were shown");
    // The watch ends by itself at its time, and the tap goes on.
    net.now = Instant::from_secs(101);
    let late = net.connect(10);
    net.settle();
    assert_eq!((net.b.drop_places().len(), take(&mut net.b, id).len()), (0, 1));
    net.b.del_tap(id);
    assert!(!net.b.core.mem.skbs.has_dropped());
    net.b.close(s).unwrap();
    refused.into_iter().chain([c, late]).for_each(|sock| net.a.close(sock).unwrap());
    net.finish();
}

#[test]
fn what_dies_in_the_receive_queue_is_shown_from_its_ip_header_on() {
    let mut net = Lab::new();
    let id = tap_at(&mut net.b, &[Point::Drop], "tcp port 80");
    let (c, s) = net.pair();
    // Twice the same: the second is old.
    net.a.write(c, &[5; 1000]).unwrap();
    net.a.turn(net.now, 64);
    let frame = net.wires[0].lock().unwrap().frames[0].clone();
    net.wires[0].lock().unwrap().frames.push_back(frame.clone());
    net.settle();
    let taken = take(&mut net.b, id);
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].0.dropped.unwrap().reason, DropReason::TcpOldData);
    assert_eq!((taken[0].0.orig_len as usize, &taken[0].1[..]), (frame.len(), &frame[..]));
    let _ = (c, s);
}

#[test]
fn frames_and_arp_of_an_ethernet_device_are_shown_with_their_link_header() {
    let mac = |n| linerate_wire::MacAddr([2, 0, 0, 0, 0, n]);
    let cfg = NicConfig { ethernet: true, ..NicConfig::default() };
    let (mut a, mut b) = pair(&cfg, &cfg);
    let mut ends = [(&mut a, 1), (&mut b, 2)].map(|(nic, n)| {
        let mut shard = Shard::new(StackConfig { seed: u64::from(n), ..StackConfig::default() });
        let dev = shard.add_device(DeviceConfig::new("eth0", 1500).ethernet(mac(n))).unwrap();
        let (rx, tx) = nic.take_queue(0).unwrap();
        shard.attach(dev, 0, rx, tx).unwrap();
        shard.add_address(dev, std::format!("10.0.0.{n}/24").parse().unwrap()).unwrap();
        shard
    });
    let ids = [0, 1].map(|n| tap_at(&mut ends[n], &[Point::Rx, Point::RxGro, Point::Tx, Point::Drop], "arp or tcp"));
    let to = "10.0.0.2:80".parse().unwrap();
    let _ = ends[0].tcp_connect(to, None, &SockOpts::default()).unwrap();
    let mut now = Instant::from_secs(1);
    for _ in 0..8 {
        ends.iter_mut().for_each(|end| _ = end.turn(now, 64));
        now = now.plus_micros(50);
    }
    let [at_a, at_b] = [0, 1].map(|n| take(&mut ends[n], ids[n]));
    let shown = |taken: &[(Record, Vec<u8>)]| -> Vec<(Point, LinkType, u8)> {
        let kind = |r: &Record, b: &[u8]| if r.link == LinkType::Ethernet { b[13] } else { b[0] };
        taken.iter().map(|(r, b)| (r.point, r.link, kind(r, b))).collect()
    };
    use LinkType::{Ethernet as E, Raw as R};
    use Point::{Drop as D, Rx, RxGro as G, Tx};
    // ARP both ways, SYN, RST (nobody listens). A drop is shown at the end of the step that it happened in.
    assert_eq!(shown(&at_a), [(Tx, E, 6), (Rx, E, 6), (Tx, E, 0), (Rx, E, 0), (G, R, 0x45), (D, E, 0)]);
    assert_eq!(shown(&at_b), [(Rx, E, 6), (Tx, E, 6), (Rx, E, 0), (G, R, 0x45), (Tx, E, 0), (D, E, 0)]);
    let (dropped, syn) = (&at_b[5], &at_b[2]);
    assert_eq!(dropped.1, syn.1, "the dropped frame is the received one");
}
