//! Stacks of several shards: over a TUN with as many queues, with Linux on the other side, and over the software NIC with
//! shards at both ends. Every stream is compared byte by byte; what was handed over between shards is counted and printed.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{CLIENT, SERVER, Watchdog, fill, read_stream, write_stream};
use linerate::inline::DropReason;
use linerate::nic::{NicConfig, Qstats, RxCx, RxQueue, SkbBatch, pair};
use linerate::tun::{MacAddr, Tun, TunConfig};
use linerate::{ConnectOptions, Interface, Stack, Stats, TcpListener, TcpStream, UdpSocket, Wait};
use netns::in_namespace;

const SHARDS: usize = 3;
/// Streams of a test, each in both directions at once.
const FLOWS: u64 = 24;
const STREAM_BYTES: u64 = 1 << 20;

fn host(v6: bool) -> IpAddr {
    if v6 { "fd09::1" } else { "10.9.0.1" }.parse().expect("an address")
}
fn ours(v6: bool) -> IpAddr {
    if v6 { "fd09::2" } else { "10.9.0.2" }.parse().expect("an address")
}

/// A stack over a TUN with a queue for each shard.
fn over_tun(shards: usize, wait: Wait) -> Stack {
    let cidr = |text: &str| text.parse().expect("an address");
    let mut config = TunConfig::default().host_address(cidr("10.9.0.1/24")).host_address(cidr("fd09::1/64"));
    config.queues = shards as u16;
    let tun = Tun::open(&config).expect("a TUN in a namespace of one's own");
    assert_eq!(tun.queues(), shards);
    let tun = Interface::tun(tun).address("10.9.0.2/24").address("fd09::2/64");
    Stack::builder().interface(tun).shards(shards).wait(wait).thread_name("shard").start().expect("the stack starts")
}

fn stats(stack: &Stack) -> Stats {
    stack.stats().expect("the stack runs")
}

/// Nothing was lost between shards, and nothing for a reason that would be ours.
#[track_caller]
fn check_drops(stats: &Stats) {
    use DropReason as R;
    let ours = [R::NotSpecified, R::CpuBacklog, R::Shutdown, R::NoMem, R::TcpCsum, R::UdpCsum, R::NoSocket];
    let drops: Vec<_> = stats.mibs.drops.iter().filter(|(r, n)| ours.contains(r) && *n > 0).collect();
    assert!(drops.is_empty(), "{drops:?}");
    assert_eq!((stats.steer.dropped, stats.steer.from_siblings), (0, stats.steer.wrong_shard), "{:?}", stats.steer);
}

/// Both ends of a connection write and read at once; Linux's begins with a word that says which stream it is.
fn exchange(seed: u64, linux: &std::net::TcpStream, mine: TcpStream, tick: &common::Ticker) {
    let (mut read, mut write) = mine.split();
    thread::scope(|s| {
        s.spawn(move || {
            write_stream(seed, STREAM_BYTES, &mut &*linux);
            linux.shutdown(Shutdown::Write).expect("shutdown");
        });
        s.spawn(move || {
            write_stream(seed + 1000, STREAM_BYTES, &mut write);
            write.shutdown();
        });
        s.spawn(move || read_stream(seed, STREAM_BYTES, &mut read, tick));
        read_stream(seed + 1000, STREAM_BYTES, &mut &*linux, tick);
    });
}

/// Connections that Linux opened and that we opened, half each, over both families.
fn connections(stack: &Stack) -> Vec<(std::net::TcpStream, TcpStream)> {
    let mut mine: Vec<_> = [false, true].map(|v6| TcpListener::bind(stack, (ours(v6), 0)).expect("bind")).into();
    let theirs = [false, true].map(|v6| std::net::TcpListener::bind((host(v6), 0)).expect("Linux binds"));
    let mut all = Vec::new();
    for n in 0..FLOWS {
        let family = (n / 2 % 2) as usize;
        if n % 2 == 0 {
            let linux = std::net::TcpStream::connect(mine[family].local_addr()).expect("Linux connects");
            let (stream, peer) = mine[family].accept().expect("accept");
            assert_eq!(peer, linux.local_addr().expect("an address"));
            all.push((linux, stream));
        } else {
            let to = theirs[family].local_addr().expect("an address");
            let stream = TcpStream::connect(stack, to).expect("connect");
            all.push((theirs[family].accept().expect("Linux accepts").0, stream));
        }
    }
    all
}

/// Twenty-four streams both ways: all arrive, on all shards, and after a flow's first packets each comes to its shard.
#[test]
fn flows_stay_on_their_shards_over_a_tun() {
    in_namespace("flows_stay_on_their_shards_over_a_tun", || {
        let stack = over_tun(SHARDS, Wait::Adaptive);
        let dog = Watchdog::new("flows over a TUN", &[&stack]);
        let tick = dog.ticker();
        let connections = connections(&stack);
        let spread = stack.handle().with_each_shard(|shard| shard.tcp_counts().0).expect("the stack runs");
        assert_eq!(spread.iter().sum::<usize>(), FLOWS as usize);
        // Those that we opened went round; those of Linux are spread by a hash.
        assert!(spread.iter().all(|&n| n >= FLOWS as usize / 2 / SHARDS), "{spread:?}");
        for (_, mine) in &connections {
            assert!(mine.info().expect("it is found where it lives").snd_mss > 1000);
        }
        let before = stats(&stack);
        thread::scope(|s| {
            for (seed, (linux, mine)) in (0..).zip(connections) {
                let tick = &tick;
                s.spawn(move || exchange(seed, &linux, mine, tick));
            }
        });
        let after = stats(&stack);
        let rx = |s: &Stats| s.interfaces[1].qstats.rx_skbs;
        println!(
            "{FLOWS} flows, {SHARDS} shards {spread:?}: {} skbs received, {} of them at a wrong shard before the streams, {} of {} while they ran",
            rx(&after),
            before.steer.wrong_shard,
            after.steer.wrong_shard - before.steer.wrong_shard,
            rx(&after) - rx(&before),
        );
        check_drops(&after);
        // A SYN and what came before our first answer; Linux forgets where a flow was after three seconds of silence.
        assert!(after.steer.wrong_shard <= 4 * FLOWS, "{:?}", after.steer);
        stack.shutdown().expect("a good end");
    });
}

/// Sockets on every shard, with datagrams in one piece and in fragments, and errors that come back.
#[test]
fn datagrams_and_errors_find_their_shard() {
    in_namespace("datagrams_and_errors_find_their_shard", || {
        // Linux tells only so many per second that a port is closed.
        for limit in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
            std::fs::write(format!("/proc/sys/net/{limit}"), "0").expect("root of the namespace");
        }
        let stack = over_tun(SHARDS, Wait::Adaptive);
        let dog = Watchdog::new("datagrams", &[&stack]);
        for v6 in [false, true] {
            let linux = std::net::UdpSocket::bind((host(v6), 0)).expect("Linux binds");
            for port in 7000..7012_u16 {
                // A port that is named, and one that is left to the stack.
                let mut named = UdpSocket::bind(&stack, (ours(v6), port)).expect("bind");
                let mut any = UdpSocket::bind(&stack, (ours(v6), 0)).expect("bind");
                for socket in [&mut named, &mut any] {
                    socket.set_read_timeout(Some(common::STALL)).expect("a limit");
                    let at = socket.local_addr().expect("bound");
                    for len in [10, 1200, 20_000] {
                        let mut data = vec![0; len];
                        fill(u64::from(port), 0, &mut data);
                        linux.send_to(&data, at).expect("Linux sends");
                        let mut buf = vec![0; 30_000];
                        let (n, from) = socket.recv_from(&mut buf).expect("it comes");
                        assert_eq!((&buf[..n], from), (&data[..], linux.local_addr().expect("bound")));
                        socket.send_to(&data, from).expect("send");
                        let (n, from) = linux.recv_from(&mut buf).expect("the answer comes");
                        assert_eq!((&buf[..n], from), (&data[..], at));
                        dog.ticker().tick();
                    }
                }
                // Nobody is there: the error finds the socket.
                named.connect((host(v6), 9)).expect("a route");
                named.send(b"anybody?").expect("send");
                let e = named.recv(&mut [0; 10]).expect_err("the port is closed");
                assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
            }
            // TCP's errors are the same affair: a port that nobody has, from connections of all shards.
            for _ in 0..2 * SHARDS {
                let e = TcpStream::connect(&stack, (host(v6), 9)).expect_err("the port is closed");
                assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
            }
        }
        let stats = stats(&stack);
        println!("{} datagrams and fragments, {} at a wrong shard", stats.mibs.ip.in_receives, stats.steer.wrong_shard);
        assert_eq!(stats.mibs.ip.reasm_fails, 0);
        check_drops(&stats);
    });
}

/// Shards that sleep at once, and one word to and fro on each of some connections: the next is sent when the last came back.
#[test]
fn sleeping_shards_are_woken_over_a_tun() {
    in_namespace("sleeping_shards_are_woken_over_a_tun", || {
        const ROUNDS: u32 = 300;
        let stack = over_tun(SHARDS, Wait::Block);
        let dog = Watchdog::new("words to and fro", &[&stack]);
        let mut connections = connections(&stack);
        connections.iter().for_each(|(linux, _)| linux.set_nodelay(true).expect("nodelay"));
        for round in 0..ROUNDS {
            for (linux, mine) in &mut connections {
                let word = round.to_be_bytes();
                let mut got = [0; 4];
                linux.write_all(&word).expect("write");
                mine.read_exact(&mut got).expect("read");
                mine.write_all(&got).expect("write");
                linux.read_exact(&mut got).expect("read");
                assert_eq!(got, word);
            }
            dog.ticker().tick();
        }
        let stats = stats(&stack);
        check_drops(&stats);
        // A wake-up that is lost would be mended by a timer.
        assert_eq!(stats.mibs.tcp.timeouts, 0);
    });
}

/// The caller's own port brings a connection to the port's shard, and a port that the stack chose listens on all.
#[test]
fn ports_of_ones_own() {
    in_namespace("ports_of_ones_own", || {
        let stack = over_tun(4, Wait::Adaptive);
        let theirs = std::net::TcpListener::bind((host(false), 0)).expect("Linux binds");
        let to = theirs.local_addr().expect("an address");
        for port in 30_000..30_012 {
            let local = Some(SocketAddr::new(ours(false), port));
            let mut options = ConnectOptions::default();
            options.local = local;
            let mut stream = TcpStream::connect_with(&stack, to, &options).expect("connect");
            assert_eq!(stream.local_addr().ok(), local);
            let (mut linux, peer) = theirs.accept().expect("Linux accepts");
            assert_eq!(Some(peer), local);
            stream.write_all(&port.to_be_bytes()).expect("write");
            let mut got = [0; 2];
            linux.read_exact(&mut got).expect("read");
            assert_eq!(got, port.to_be_bytes());
        }
        let mut listener = TcpListener::bind(&stack, (ours(false), 0)).expect("bind");
        let at = listener.local_addr();
        let taken = TcpListener::bind(&stack, at).expect_err("one has it");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        let linux: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(at).expect("Linux connects")).collect();
        let mut peers: HashSet<SocketAddr> = HashSet::new();
        listener.set_accept_timeout(Some(common::STALL));
        for _ in &linux {
            assert!(peers.insert(listener.accept().expect("accept").1));
        }
        assert_eq!(peers, linux.iter().map(|l| l.local_addr().expect("an address")).collect());
        // Dropped, it listens nowhere.
        drop(listener);
        let begin = Instant::now();
        while (0..8).any(|_| std::net::TcpStream::connect(at).is_ok()) {
            assert!(begin.elapsed() < common::STALL, "some shard still listens");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Both ends have shards, and no device that learns: most flows are handed over at one end, for good, and arrive.
#[test]
fn shards_at_both_ends_of_a_software_wire() {
    let nic = NicConfig { queues: 4, ..NicConfig::default() };
    let (a, b) = pair(&nic, &nic);
    let stack = |nic, addr: &str, seed| {
        let eth0 = Interface::nic("eth0", nic).address(&format!("{addr}/24"));
        Stack::builder().interface(eth0).shards(4).seed(seed).start().expect("the stack starts")
    };
    let (client, server) = (stack(a, CLIENT, 1), stack(b, SERVER, 2));
    let dog = Watchdog::new("shards at both ends", &[&client, &server]);
    let tick = dog.ticker();
    let mut listener = TcpListener::bind(&server, (SERVER, 0)).expect("bind");
    thread::scope(|s| {
        for seed in 0..12 {
            let mut stream = TcpStream::connect(&client, listener.local_addr()).expect("connect");
            let (mut theirs, _) = listener.accept().expect("accept");
            s.spawn(move || {
                write_stream(seed, STREAM_BYTES, &mut stream);
                stream.shutdown();
            });
            let tick = &tick;
            s.spawn(move || read_stream(seed, STREAM_BYTES, &mut theirs, tick));
        }
    });
    let mut udp = UdpSocket::bind(&server, (SERVER, 5353)).expect("bind");
    for n in 0..16_u8 {
        let mut from = UdpSocket::bind(&client, (CLIENT, 0)).expect("bind");
        from.send_to(&[n; 100], (SERVER, 5353)).expect("send");
        let (len, peer) = udp.recv_from(&mut [0; 200]).expect("it comes");
        assert_eq!((len, peer), (100, from.local_addr().expect("bound")));
    }
    for (who, stack) in [("client", &client), ("server", &server)] {
        let stats = stats(stack);
        println!("{who}: {} skbs, {:?}", stats.interfaces[1].qstats.rx_skbs, stats.steer);
        check_drops(&stats);
        assert!(stats.steer.wrong_shard > 0);
    }
    // Within one stack as well, from shard to shard.
    let mut listener = TcpListener::bind(&client, "127.0.0.1:80").expect("bind");
    for word in 0..8_u8 {
        let mut stream = TcpStream::connect(&client, "127.0.0.1:80").expect("connect");
        let (mut other, _) = listener.accept().expect("accept");
        stream.write_all(&[word; 3]).expect("write");
        let mut got = [0; 3];
        other.read_exact(&mut got).expect("read");
        assert_eq!(got, [word; 3]);
    }
}

/// Stacks that end in the middle of everything, with packets in every ring: the threads end, and whoever waits is told.
#[test]
fn an_end_with_packets_in_the_rings() {
    for round in 0..10 {
        let nic = NicConfig { queues: 2, ..NicConfig::default() };
        let (a, b) = pair(&nic, &nic);
        let stack = |nic, addr: &str, seed| {
            let eth0 = Interface::nic("eth0", nic).address(&format!("{addr}/24"));
            Stack::builder().interface(eth0).shards(2).seed(seed).start().expect("the stack starts")
        };
        let (client, server) = (stack(a, CLIENT, round), stack(b, SERVER, round + 100));
        let mut listener = TcpListener::bind(&server, (SERVER, 80)).expect("bind");
        let mut ends = Vec::new();
        for _ in 0..4 {
            let mut stream = TcpStream::connect(&client, (SERVER, 80)).expect("connect");
            let (mut theirs, _) = listener.accept().expect("accept");
            ends.push(thread::spawn(move || while stream.write_all(&[1; 100_000]).is_ok() {}));
            ends.push(thread::spawn(move || while theirs.read(&mut [0; 100_000]).is_ok_and(|n| n > 0) {}));
        }
        thread::sleep(Duration::from_millis(20));
        let (first, second) = if round % 2 == 0 { (client, server) } else { (server, client) };
        first.shutdown().expect("a good end");
        second.shutdown().expect("a good end");
        ends.into_iter().for_each(|end| end.join().expect("it was told"));
    }
}

/// A receive queue that panics when it is told to.
struct Trap(Box<dyn RxQueue + Send>, Arc<AtomicBool>);

impl RxQueue for Trap {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        assert!(!self.1.load(Ordering::Acquire), "this is the panic that the test wants");
        self.0.poll_rx(cx, budget, out)
    }
    fn irq_enable(&mut self) -> bool {
        self.0.irq_enable()
    }
    fn irq_disable(&mut self) {
        self.0.irq_disable();
    }
    fn qstats(&self) -> Qstats {
        self.0.qstats()
    }
}

/// A stack without one of its shards would lose packets without a word: it ends, and says so.
#[test]
fn one_shard_that_panics_ends_all() {
    let nic = NicConfig { queues: 2, ..NicConfig::default() };
    let (mut a, _b) = pair(&nic, &nic);
    let [(rx0, tx0), (rx1, tx1)] = [0, 1].map(|q| a.take_queue(q).expect("two queues"));
    let sprung = Arc::new(AtomicBool::new(false));
    let eth0 = Interface::device("eth0", 1500, rx0, tx0).queue(Box::new(Trap(rx1, sprung.clone())), tx1);
    let builder = Stack::builder().interface(eth0.address("10.0.0.1/24")).shards(2);
    let waker = builder.waker();
    let stack = builder.start().expect("the stack starts");
    let mut listener = TcpListener::bind(&stack, "10.0.0.1:80").expect("bind");
    let waiting = thread::spawn(move || listener.accept().map(|_| ()).expect_err("nobody comes"));
    sprung.store(true, Ordering::Release);
    waker.wake();
    assert_eq!(waiting.join().expect("no panic here").kind(), ErrorKind::ConnectionAborted);
    let begin = Instant::now();
    while stack.stats().is_ok() || stack.handle().with_shard_at(0, |_| ()).is_ok() {
        assert!(begin.elapsed() < common::STALL, "the other shard goes on");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(stack.shutdown().is_err(), "a thread panicked");
}

#[test]
fn what_does_not_fit_is_said_at_the_start() {
    let refuse = |nic: &NicConfig, set: fn(Interface) -> Interface| {
        let (a, _b) = pair(nic, nic);
        let e =
            Stack::builder().interface(set(Interface::nic("eth0", a))).shards(3).start().expect_err("it does not fit");
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        e.to_string()
    };
    let few = NicConfig { queues: 2, ..NicConfig::default() };
    assert_eq!(refuse(&few, |i| i), "eth0: it has fewer queues than the stack's 3 shards");
    let ethernet = NicConfig { queues: 3, ethernet: true, ..NicConfig::default() };
    let said = refuse(&ethernet, |i| i.mac(MacAddr([2, 0, 0, 0, 0, 1])));
    assert_eq!(said, "eth0: an Ethernet interface needs a stack of one shard");
    // None is one, and shards that nobody needs do no harm.
    for shards in [0, 1, 5] {
        let stack = Stack::builder().shards(shards).start().expect("the stack starts");
        assert_eq!(stack.handle().shards(), shards.max(1));
        assert!(stack.handle().with_shard_at(shards.max(1), |_| ()).is_err(), "there is none of that number");
    }
}
