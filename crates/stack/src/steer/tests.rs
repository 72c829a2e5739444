//! The rule on generated packets; shards beside each other on one thread and on several; what is left when they go.

use std::boxed::Box;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration as StdDuration;
use std::vec::Vec;

use linerate_base::rng::Rng;
use linerate_base::{Duration, Instant};
use linerate_skb::SkbCache;
use linerate_tcp::SockOpts;
use linerate_wire::ip::{IpRepr, proto};

use super::*;
use crate::config::StackConfig;
use crate::errors::{BindError, ConnectError};
use crate::sock::SockId;
use crate::tcp::BindOpts;
use crate::testing::{Host, ip, ip_packet, udp_packet};
use crate::udp::{BindOpts as UdpBindOpts, RecvFlags, SendOpts};

const KEY: HashKey = HashKey([7, 8]);

struct Nobody;
impl ShardWaker for Nobody {
    fn wake(&self) {}
}

struct Unpark(Thread);
impl ShardWaker for Unpark {
    fn wake(&self) {
        self.0.unpark();
    }
}

fn shard(seed: u64) -> Shard {
    Shard::new(StackConfig { seed, ..StackConfig::default() })
}

/// Shards that one thread turns.
fn family(n: usize) -> Vec<Shard> {
    let wakers = (0..n).map(|_| Arc::new(Nobody) as Arc<dyn ShardWaker>).collect();
    (1..)
        .zip(siblings(KEY, wakers))
        .map(|(seed, place)| {
            let mut shard = shard(seed);
            shard.join(place);
            shard
        })
        .collect()
}

fn turns(shards: &mut [Shard], ms: std::ops::Range<u64>) {
    for ms in ms {
        for shard in &mut *shards {
            shard.turn(Instant::from_millis(ms), 64);
            while shard.next_ready().is_some() {}
        }
    }
}

/// All memory is home, and nothing died in silence.
fn assert_home(shards: &mut [Shard]) {
    for shard in shards {
        shard.check_invariants();
        shard.core.mem.skbs.reclaim();
        if let Some(page) = shard.core.mem.tx_page.take() {
            shard.core.mem.tx_pool.recycle_page(page);
        }
        shard.core.mem.tx_pool.reclaim();
        assert_eq!((shard.core.mem.skbs.inflight(), shard.core.mem.tx_pool.inflight()), (0, 0));
    }
}

/// A random address of a peer.
fn peer(rng: &mut Rng, v6: bool) -> IpAddr {
    let bits = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
    match v6 {
        false => Ipv4Addr::from_bits(0x0a00_0000 | bits as u32 & 0x00ff_ffff).into(),
        true => Ipv6Addr::from_bits(0xfd00 << 112 | bits >> 16).into(),
    }
}

/// The first bytes of a TCP segment or a datagram, with these ports.
fn transport(src_port: u16, dst_port: u16) -> Vec<u8> {
    let mut bytes = std::vec![0; 24];
    bytes[..2].copy_from_slice(&src_port.to_be_bytes());
    bytes[2..4].copy_from_slice(&dst_port.to_be_bytes());
    bytes
}

/// An IPv6 packet with a destination options header before the transport.
fn behind_options(ip: &IpRepr, payload: &[u8]) -> Vec<u8> {
    const DESTINATION_OPTIONS: u8 = 60;
    let options = IpRepr { proto: DESTINATION_OPTIONS, ..*ip };
    // Eight bytes of one PadN option.
    ip_packet(&options, &[&[ip.proto, 0, 1, 4, 0, 0, 0, 0], payload].concat())
}

/// Whatever speaks of a flow has the flow's home: its packets, however their headers lie, and errors about what we sent.
#[test]
fn all_that_concerns_a_flow_has_one_home() {
    let (mut rng, mut skbs) = (Rng::new(11), SkbCache::new(64));
    let mut pool = linerate_skb::PagePool::new(linerate_skb::PoolConfig::default());
    let mut homes_of = |homes: &Homes, packet: &[u8], cut: usize| {
        let mut skb = skbs.alloc().unwrap();
        skb.reset_head(0);
        let (head, rest) = packet.split_at(cut.min(packet.len()));
        assert!(skb.put_head_from(head));
        if !rest.is_empty() {
            let mut page = pool.alloc().unwrap();
            skb.push_frag(page.append(&linerate_arch::Kernels::portable(), rest).unwrap()).unwrap();
            pool.recycle_page(page);
        }
        let home = homes.of_packet(&mut skb);
        skbs.free(skb, &mut pool);
        home
    };
    for round in 0..4000 {
        let (v6, udp) = (round % 2 == 1, round % 4 > 1);
        let homes = Homes::new(KEY, 1 + round % 7);
        let local: IpAddr = if v6 { "fd00::1" } else { "10.0.0.1" }.parse().unwrap();
        let remote = SocketAddr::new(peer(&mut rng, v6), rng.next_u32() as u16);
        let port = rng.next_u32() as u16;
        let home = if udp { homes.of_udp(port) } else { homes.of_tcp(port, remote) };
        assert!(home < homes.shards());
        let protocol = if udp { proto::UDP } else { proto::TCP };
        let rx = IpRepr::new(remote.ip(), local, protocol, 0);
        let packet = ip_packet(&rx, &transport(remote.port(), port));
        for cut in [packet.len(), 0, 20, 30] {
            assert_eq!(homes_of(&homes, &packet, cut), Some(home), "{remote} to port {port}, {cut} bytes in the head");
        }
        // What we sent comes back in an error of somebody on the way.
        let sent = ip_packet(&IpRepr::new(local, remote.ip(), protocol, 0), &transport(port, remote.port()));
        let (icmp_proto, ty) = if v6 { (proto::ICMPV6, [1, 2, 3, 4]) } else { (proto::ICMP, [3, 3, 11, 12]) };
        for ty in ty {
            let message = [&[ty, 0, 0, 0, 0, 0, 5, 0][..], &sent].concat();
            let error = ip_packet(&IpRepr::new(peer(&mut rng, v6), local, icmp_proto, 0), &message);
            assert_eq!(homes_of(&homes, &error, 64), Some(home), "error {ty}");
        }
        if v6 {
            let packet = behind_options(&rx, &transport(remote.port(), port));
            assert_eq!(homes_of(&homes, &packet, 128), Some(home), "behind an extension header");
        }
        // An echo is answered by anybody, and what can not be read is refused by whoever has it.
        let echo = [if v6 { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 1];
        assert_eq!(homes_of(&homes, &ip_packet(&IpRepr::new(remote.ip(), local, icmp_proto, 0), &echo), 64), None);
        let short = &packet[..(rng.below(packet.len() as u64 - 4) as usize).min(if v6 { 43 } else { 23 })];
        let _ = homes_of(&homes, short, 64);
    }
    // Noise is nobody's, and panics nobody.
    for _ in 0..20_000 {
        let mut noise = [0; 96];
        rng.fill(&mut noise);
        noise[0] = if noise[1] & 1 == 0 { 0x45 } else { 0x60 };
        let _ = homes_of(&Homes::new(KEY, 5), &noise, rng.below(97) as usize);
    }
}

#[test]
fn flows_spread_evenly() {
    let (homes, mut rng, mut seen) = (Homes::new(KEY, 4), Rng::new(5), [0_u32; 4]);
    for n in 0..40_000_u32 {
        seen[homes.of_tcp(n as u16, SocketAddr::new(peer(&mut rng, n % 2 == 0), 443))] += 1;
    }
    assert!(seen.iter().all(|n| (9_500..10_500).contains(n)), "{seen:?}");
    assert_eq!([0, 1, 2, 3, 4].map(|port| homes.of_udp(port)), [0, 1, 2, 3, 0]);
}

/// A port that `connect` chooses brings the flow home, one that the caller chose is refused elsewhere; so are UDP ports.
#[test]
fn ports_come_home() {
    let mut shards = family(4);
    let homes = shards[0].homes().unwrap();
    let opts = SockOpts::default();
    for (me, shard) in shards.iter_mut().enumerate() {
        for n in 0..400_u16 {
            let to = SocketAddr::new(if n % 2 == 0 { "127.0.0.1" } else { "::1" }.parse().unwrap(), 1000 + n % 7);
            let id = shard.tcp_connect(to, None, &opts).unwrap();
            let local = shard.local_addr(id).unwrap();
            assert_eq!(homes.of_tcp(local.port(), to), me, "{local} to {to}");
            let local = SocketAddr::new(to.ip(), 20_000 + n);
            let opened = shard.tcp_connect(to, Some(local), &opts);
            match homes.of_tcp(local.port(), to) == me {
                true => assert!(opened.is_ok(), "{local}: {opened:?}"),
                false => assert_eq!(opened, Err(ConnectError::AddrNotAvailable), "{local}"),
            }
        }
        for port in 5000..5008 {
            let bound = shard.udp_bind(SocketAddr::new("127.0.0.1".parse().unwrap(), port), UdpBindOpts::default());
            match homes.of_udp(port) == me {
                true => assert!(bound.is_ok()),
                false => assert_eq!(bound, Err(BindError::AddrNotAvailable)),
            }
        }
        let any = shard.udp_bind("127.0.0.1:0".parse().unwrap(), UdpBindOpts::default()).unwrap();
        assert_eq!(homes.of_udp(shard.udp().local_addr(any).unwrap().port()), me);
        // One that never was bound gets its port when it speaks.
        let auto = shard.udp_socket(false);
        shard.udp_connect(auto, "127.0.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(homes.of_udp(shard.udp().local_addr(auto).unwrap().port()), me);
    }
    // Linux's order of ports stays: those of a destination come two apart, here among those that come home.
    let mut alone = shard(1);
    let (to, mut last, mut near) = ("127.0.0.1:99".parse().unwrap(), 0_u16, 0);
    for (n, shard) in [&mut alone, &mut shards[0]].into_iter().enumerate() {
        for _ in 0..100 {
            let id = shard.tcp_connect(to, None, &opts).unwrap();
            let port = shard.local_addr(id).unwrap().port();
            assert!(port % 2 == 0, "connect takes even ports first");
            near += u32::from(port.wrapping_sub(last) <= if n == 0 { 16 } else { 128 });
            last = port;
        }
    }
    assert!(near >= 190, "{near} of 200 next to their predecessors");
}

/// A listener on each, clients on each, over the loopback, where half of the packets begin at the wrong shard: streams
/// arrive, and what was handed over is what was received.
#[test]
fn streams_between_shards() {
    let mut shards = family(3);
    let to: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let opts = SockOpts::default();
    let listeners: Vec<SockId> =
        shards.iter_mut().map(|s| s.tcp_listen(to, 64, &opts, BindOpts::default()).unwrap()).collect();
    let mut clients = Vec::new();
    for n in 0..30 {
        clients.push((n % 3, shards[n % 3].tcp_connect(to, None, &opts).unwrap()));
    }
    turns(&mut shards, 0..20);
    for (n, &(shard, id)) in clients.iter().enumerate() {
        assert_eq!(shards[shard].write(id, &[n as u8; 3000]), Ok(3000), "client {n} is connected");
    }
    turns(&mut shards, 20..40);
    let (mut accepted, mut seen) = (Vec::new(), Vec::new());
    for (n, shard) in shards.iter_mut().enumerate() {
        while let Ok(id) = shard.accept(listeners[n]) {
            let mut buf = [0; 4000];
            assert_eq!(shard.read(id, &mut buf), Ok(3000));
            assert!(buf[..3000].iter().all(|&b| b == buf[0]));
            seen.push(buf[0]);
            accepted.push((n, id));
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..30).collect::<Vec<u8>>(), "every client once");
    assert!((0..3).all(|n| accepted.iter().any(|&(shard, _)| shard == n)), "all shards accept");
    for (shard, id) in clients.into_iter().chain(accepted) {
        shards[shard].close(id).unwrap();
    }
    turns(&mut shards, 40..60);
    let mut sum = SteerStats::default();
    shards.iter().for_each(|s| sum.merge(&s.steer_stats()));
    assert!(sum.wrong_shard > 100 && sum.dropped == 0 && sum.from_siblings == sum.wrong_shard, "{sum:?}");
    assert_home(&mut shards);
}

/// A datagram in fragments that come to whichever shard: they meet at one, and the whole goes to the port's shard.
#[test]
fn fragments_meet_and_the_whole_goes_home() {
    let wakers = (0..3).map(|_| Arc::new(Nobody) as Arc<dyn ShardWaker>).collect();
    let mut hosts: Vec<Host> = siblings(KEY, wakers)
        .into_iter()
        .map(|place| {
            let mut host = Host::new(1);
            host.core.links.siblings = Some(Box::new(place));
            host
        })
        .collect();
    let mut sender = Host::new(2);
    for (round, port) in (4000..4060_u16).enumerate() {
        let home = usize::from(port % 3);
        let at: SocketAddr = if round % 2 == 0 { "10.0.0.1:0" } else { "[fd00::1]:0" }.parse().unwrap();
        let at = SocketAddr::new(at.ip(), port);
        let h = &mut hosts[home];
        let sock = h.udp.socket(&h.core, at.is_ipv6());
        h.udp.bind(&mut h.core, sock, at, UdpBindOpts::default()).unwrap();
        let from = sender.udp.socket(&sender.core, at.is_ipv6());
        let data: Vec<u8> = (0..5000).map(|n| (n * (round + 3)) as u8).collect();
        sender.udp.send_to(&mut sender.core, from, &data, Some(at), SendOpts::default()).unwrap();
        sender.turn();
        let frames = sender.tx.take();
        assert!(frames.len() >= 4, "in fragments");
        for (n, frame) in frames.into_iter().enumerate() {
            hosts[(n + round) % 3].rx.push(frame);
        }
        // Twice round: to the shard where they meet, and from there.
        for _ in 0..3 {
            hosts.iter_mut().for_each(Host::turn);
        }
        let h = &mut hosts[home];
        let mut buf = [0; 6000];
        let got = h.udp.recv_from(&mut h.core, sock, &mut buf, RecvFlags::default()).expect("it is whole, and here");
        assert_eq!(&buf[..got.len], &data[..]);
        h.udp.close(&mut h.core, sock);
        sender.udp.close(&mut sender.core, from);
    }
    let received: u64 = hosts.iter().map(|h| h.core.mibs.ip.in_receives).sum();
    assert_eq!(received, sender.core.mibs.ip.out_transmits, "each fragment is counted once, the whole not again");
    let whole: u64 = hosts.iter().map(|h| h.core.mibs.ip.reasm_oks).sum();
    assert_eq!(whole, 60);
    // The sender's pages are held by nobody.
    hosts.iter_mut().for_each(Host::assert_home);
    sender.assert_home();
}

/// One that is not turned costs its siblings a bounded number of packets, and what is in its rings when it goes is not lost.
#[test]
fn a_full_ring_drops_and_a_dead_one_leaks_nothing() {
    let mut shards = family(2);
    let socks: Vec<SockId> = (0..2).map(|n| shards[n].udp_socket(false)).collect();
    let to: SocketAddr = "127.0.0.1:5001".parse().unwrap();
    let from = 1 - usize::from(to.port() % 2);
    let shard = &mut shards[from];
    let send = |shard: &mut Shard, skbs: u64, at: u64| {
        for n in 0..skbs {
            shard.send_to(socks[from], &[1; 900], Some(to), SendOpts::default()).unwrap();
            shard.turn(Instant::from_millis(at + n), 64);
        }
    };
    let extra = 100;
    send(shard, RING_SKBS as u64 + extra, 0);
    let stats = shard.steer_stats();
    assert_eq!((stats.wrong_shard, stats.dropped), (RING_SKBS as u64 + extra, extra));
    assert_eq!(shard.mibs().drops.get(DropReason::CpuBacklog), extra);
    assert!(shard.core.mem.skbs.inflight() >= RING_SKBS as u32, "they wait in the ring");
    // It goes, with all of them; whatever is sent now is for nobody.
    let other = shards.remove(1 - from);
    drop(other);
    let shard = &mut shards[0];
    send(shard, 10, 10_000);
    assert_eq!(shard.mibs().drops.get(DropReason::Shutdown), 10);
    shard.close(socks[from]).unwrap();
    assert_home(&mut shards);
}

/// Two shards on threads of their own that sleep whenever they may, and one datagram that goes to and fro: one lost wake-up
/// and it stands still.
#[test]
fn a_sleeping_shard_gets_its_packets() {
    const ROUNDS: u64 = 20_000;
    let seen = Arc::new(AtomicU64::new(0));
    let slept = Arc::new(AtomicU64::new(0));
    let (seen_too, slept_too) = (seen.clone(), slept.clone());
    let run = move |shard: &mut Shard, id: SockId, to: SocketAddr, serve: bool| {
        let start = std::time::Instant::now();
        let (mut rounds, mut buf) = (0, [0; 16]);
        if serve {
            shard.send_to(id, &[0; 8], Some(to), SendOpts::default()).unwrap();
        }
        loop {
            let turn = shard.turn(Instant::ZERO + Duration::from_micros(start.elapsed().as_micros() as u64), 64);
            while shard.next_ready().is_some() {}
            while let Ok(got) = shard.recv_from(id, &mut buf, RecvFlags::default()) {
                rounds += 1;
                seen_too.fetch_add(1, Ordering::Relaxed);
                shard.send_to(id, &buf[..got.len], Some(to), SendOpts::default()).unwrap();
            }
            if rounds >= ROUNDS {
                // The last answer leaves.
                for _ in 0..4 {
                    shard.turn(Instant::ZERO + Duration::from_secs(1000), 64);
                }
                return;
            }
            if !turn.more && shard.prepare_sleep() {
                slept_too.fetch_add(1, Ordering::Relaxed);
                thread::park_timeout(StdDuration::from_secs(5));
                assert!(start.elapsed() < StdDuration::from_secs(300));
            }
        }
    };
    let (tx, rx) = std::sync::mpsc::channel::<Siblings>();
    let serve = run.clone();
    let other = thread::spawn(move || {
        let mut b = shard(2);
        b.join(rx.recv().unwrap());
        let id = b.udp_bind("127.0.0.1:5001".parse().unwrap(), UdpBindOpts::default()).unwrap();
        serve(&mut b, id, "127.0.0.1:5000".parse().unwrap(), false);
        b
    });
    let wakers: Vec<Arc<dyn ShardWaker>> =
        std::vec![Arc::new(Unpark(thread::current())), Arc::new(Unpark(other.thread().clone()))];
    let mut places = siblings(KEY, wakers).into_iter();
    let mut a = shard(1);
    a.join(places.next().unwrap());
    let id = a.udp_bind("127.0.0.1:5000".parse().unwrap(), UdpBindOpts::default()).unwrap();
    tx.send(places.next().unwrap()).unwrap();
    let begin = std::time::Instant::now();
    run(&mut a, id, "127.0.0.1:5001".parse().unwrap(), true);
    let b = other.join().unwrap();
    assert!(seen.load(Ordering::Relaxed) >= 2 * ROUNDS - 1);
    assert!(slept.load(Ordering::Relaxed) > ROUNDS / 100, "they slept {slept:?} times");
    // A lost wake-up is found after the five seconds that a park lasts at most.
    assert!(begin.elapsed() < StdDuration::from_secs(120), "{:?}", begin.elapsed());
    assert_eq!(a.steer_stats().dropped + b.steer_stats().dropped, 0);
    drop((a, b));
}

/// Alone, nothing of this happens.
#[test]
fn a_shard_without_siblings_hands_nothing_over() {
    let mut alone = shard(1);
    assert!(alone.homes().is_none());
    alone.turn(Instant::ZERO, 64);
    assert_eq!(alone.steer_stats(), SteerStats::default());
    let mut host = Host::new(1);
    host.answer(&udp_packet(&ip("10.0.0.2", "10.0.0.1", proto::UDP), 1, 2, b"nobody"));
    assert_eq!(host.drops(DropReason::CpuBacklog), 0);
}
