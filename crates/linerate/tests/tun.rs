//! Linux on the other side: the kernel's TCP, UDP and ICMP against a stack over a TUN device.
//!
//! Each test runs in a user and network namespace of its own (`common/netns.rs`), with the kernel's sockets on plain
//! `std::net` and the stack's on `linerate`. Streams are compared byte by byte at both ends.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use common::{Watchdog, fill, read_stream, write_stream};
use linerate::inline::{DropReason, udp};
use linerate::nic::FaultPlan;
use linerate::tun::{Offloads, Tun, TunConfig, TunError, VnetHdr};
use linerate::{Interface, Stack, Stats, TcpListener, TcpStream, Wait};
use netns::in_namespace;

/// The kernel's ends and ours, of device number `n`.
fn host(n: u8, v6: bool) -> IpAddr {
    if v6 { format!("fd09:{n}::1") } else { format!("10.9.{n}.1") }.parse().expect("an address")
}
fn ours(n: u8, v6: bool) -> IpAddr {
    if v6 { format!("fd09:{n}::2") } else { format!("10.9.{n}.2") }.parse().expect("an address")
}

fn config(n: u8) -> TunConfig {
    let cidr = |v6| format!("{}/{}", host(n, v6), if v6 { 64 } else { 24 }).parse().expect("an address");
    TunConfig::default().host_address(cidr(false)).host_address(cidr(true))
}

/// A stack on a new device; the device's name is the thread's.
fn stack_on(n: u8, config: &TunConfig, set: impl FnOnce(Interface) -> Interface) -> Stack {
    let tun = Tun::open(config).expect("a TUN in a namespace of one's own");
    let name = tun.name().to_owned();
    let interface = Interface::tun(tun).address(&format!("{}/24", ours(n, false)));
    let interface = set(interface.address(&format!("{}/64", ours(n, true))));
    Stack::builder().interface(interface).thread_name(name).start().expect("the stack starts")
}

fn stats(stack: &Stack) -> Stats {
    stack.stats().expect("the stack runs")
}

/// Both ends write `len` bytes at once and read the other's.
fn exchange(linux: std::net::TcpStream, mine: TcpStream, len: u64, dog: &Watchdog) {
    let (mut read, mut write) = mine.split();
    let (linux_read, linux_write) = (&linux, &linux);
    let tick = dog.ticker();
    thread::scope(|s| {
        let (t1, t2) = (tick.clone(), tick.clone());
        s.spawn(move || {
            write_stream(1, len, &mut &*linux_write);
            linux_write.shutdown(Shutdown::Write).expect("shutdown");
        });
        s.spawn(move || {
            write_stream(2, len, &mut write);
            write.shutdown();
        });
        s.spawn(move || read_stream(1, len, &mut read, &t1));
        read_stream(2, len, &mut &*linux_read, &t2);
    });
}

/// A flow that each side opened: Linux connects, then we do.
fn both_ways(stack: &Stack, n: u8, v6: bool, len: u64, dog: &Watchdog) {
    let mut listener = TcpListener::bind(stack, (ours(n, v6), 0)).expect("bind");
    let linux = std::net::TcpStream::connect(listener.local_addr()).expect("Linux connects");
    let (mine, peer) = listener.accept().expect("accept");
    assert_eq!(peer, linux.local_addr().expect("an address"));
    exchange(linux, mine, len, dog);
    let listener = std::net::TcpListener::bind((host(n, v6), 0)).expect("Linux binds");
    let mine = TcpStream::connect(stack, listener.local_addr().expect("an address")).expect("connect");
    let (linux, _) = listener.accept().expect("Linux accepts");
    exchange(linux, mine, len, dog);
}

/// No packet died of what it was or of what the device did with it. (Linux greets groups that nobody joined, and repeats
/// what it believes lost: those die by right.)
#[track_caller]
fn check_stats(stats: &Stats, what: &str) {
    use DropReason as R;
    let ours = [
        [R::NotSpecified, R::DevHdr, R::SkbGsoSeg, R::NoMem, R::FullRing, R::PktTooSmall, R::PktTooBig],
        [R::UnhandledProto, R::IpInHdr, R::IpCsum, R::TcpCsum, R::UdpCsum, R::IcmpCsum, R::TcpHdr],
    ];
    let drops: Vec<_> = stats.mibs.drops.iter().filter(|(r, _)| ours.as_flattened().contains(r)).collect();
    assert!(drops.is_empty(), "{what}: {drops:?}");
}

fn matrix(mode: &str, set: impl Fn(TunConfig) -> TunConfig, expect: impl Fn(&Tun)) {
    for (n, mtu) in [(1, 1500), (2, 9000), (3, 65_535)] {
        let config = set(config(n)).mtu(mtu);
        let probe = Tun::open(&set(TunConfig::default())).expect("a TUN");
        expect(&probe);
        drop(probe);
        let stack = stack_on(n, &config, |i| i);
        for v6 in [false, true] {
            let dog = Watchdog::new(&format!("{mode}, MTU {mtu}, IPv6 {v6}"), &[&stack]);
            both_ways(&stack, n, v6, 3_000_000, &dog);
        }
        let stats = stats(&stack);
        check_stats(&stats, &format!("{mode}, MTU {mtu}"));
        let q = stats.interfaces.last().expect("the TUN").qstats;
        let super_packets = q.rx_hw_gro_skbs > 0 && q.tx_hw_gso_skbs > 0;
        assert_eq!(super_packets, mode == "offloads" && mtu < 65_535, "{mode}, MTU {mtu}: {q:?}");
        let errors = ["TcpExtTCPBadCsum", "TcpInCsumErrors", "TcpInErrs"].map(|name| stats.mibs.tcp.get(name));
        assert!(errors.iter().all(|n| n.unwrap_or(0) == 0), "{errors:?}");
    }
}

#[test]
fn streams_with_offloads() {
    in_namespace("streams_with_offloads", || {
        matrix(
            "offloads",
            |c| c,
            |tun| {
                assert_eq!(tun.vnet_hdr(), VnetHdr::V1);
                assert!(tun.offloads().csum && tun.offloads().tso4 && tun.offloads().tso6);
            },
        );
    });
}

#[test]
fn streams_with_checksums_only() {
    let set = |c: TunConfig| c.offloads(Offloads::CSUM).vnet_hdr(VnetHdr::Legacy);
    in_namespace("streams_with_checksums_only", || {
        matrix("checksums", set, |tun| {
            assert_eq!((tun.vnet_hdr(), tun.offloads()), (VnetHdr::Legacy, Offloads::CSUM));
        });
    });
}

#[test]
fn streams_without_offloads() {
    in_namespace("streams_without_offloads", || {
        matrix("no offloads", |c| c.offloads(Offloads::NONE), |tun| assert_eq!(tun.offloads(), Offloads::NONE));
    });
}

#[test]
fn streams_plain() {
    in_namespace("streams_plain", || {
        matrix("plain", TunConfig::plain, |tun| assert_eq!(tun.vnet_hdr(), VnetHdr::Off));
    });
}

/// Ethernet: Linux and the stack find each other by ARP and neighbour discovery. With and without offloads.
#[test]
fn streams_over_a_tap() {
    in_namespace("streams_over_a_tap", || {
        for (n, name, set) in [
            (1, "TAP", (|c: TunConfig| c) as fn(TunConfig) -> TunConfig),
            (2, "TAP with long super-packets", |c| c.gso_max_size(180_000)),
            (3, "plain TAP", TunConfig::plain),
        ] {
            let stack = stack_on(n, &set(config(n).ethernet()), |i| i);
            let dog = Watchdog::new(name, &[&stack]);
            wait_for_address(&stack, ours(n, true));
            for v6 in [false, true] {
                both_ways(&stack, n, v6, 3_000_000, &dog);
                ping(n, v6, 56);
            }
            let stats = stats(&stack);
            check_stats(&stats, name);
            let q = stats.interfaces.last().expect("the TAP").qstats;
            assert_eq!(q.rx_hw_gro_skbs > 0 && q.tx_hw_gso_skbs > 0, name != "plain TAP", "{q:?}");
        }
    });
}

/// An IPv6 address of an Ethernet device is used once nobody else was found to have it.
fn wait_for_address(stack: &Stack, addr: IpAddr) {
    let begin = Instant::now();
    while TcpListener::bind(stack, (addr, 0)).is_err() {
        assert!(begin.elapsed() < common::STALL, "{addr} did not become usable");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn faults_on_a_tap() {
    in_namespace("faults_on_a_tap", || {
        let plan = FaultPlan { loss: 0.005, corrupt: 0.002, duplicate: 0.005, ..FaultPlan::default() };
        let stack = stack_on(1, &config(1).ethernet(), |i| i.faults(plan.clone(), plan.clone(), 3));
        let dog = Watchdog::new("faults on a TAP", &[&stack]);
        both_ways(&stack, 1, false, 1_000_000, &dog);
        let drops = stats(&stack).mibs.drops;
        assert!(drops.get(DropReason::WireLoss) > 5, "{:?}", drops.iter().collect::<Vec<_>>());
        assert_eq!(drops.get(DropReason::NotSpecified) + drops.get(DropReason::SkbGsoSeg), 0);
    });
}

/// BIG TCP towards Linux, which takes super-packets of 180 KB over both families.
#[test]
fn streams_of_long_super_packets() {
    in_namespace("streams_of_long_super_packets", || {
        let stack = stack_on(1, &config(1).gso_max_size(180_000), |i| i);
        let mut segs = 0.0_f64;
        for v6 in [false, true, false, true] {
            let dog = Watchdog::new("long super-packets", &[&stack]);
            both_ways(&stack, 1, v6, 8_000_000, &dog);
            let q = stats(&stack).interfaces.last().expect("the TUN").qstats;
            segs = segs.max(q.tx_hw_gso_wire_pkts as f64 / q.tx_hw_gso_skbs as f64);
        }
        check_stats(&stats(&stack), "long super-packets");
        assert!(segs > 46.0, "{segs} segments in a super-packet on average: none was longer than 64 KiB");
    });
}

#[test]
fn streams_over_several_queues() {
    in_namespace("streams_over_several_queues", || {
        let stack = stack_on(1, &config(1).queues(3), |i| i);
        let dog = Watchdog::new("three queues", &[&stack]);
        thread::scope(|s| {
            for flow in 0..6 {
                let (stack, dog) = (&stack, &dog);
                s.spawn(move || both_ways(stack, 1, flow % 2 == 0, 1_000_000, dog));
            }
        });
        check_stats(&stats(&stack), "three queues");
    });
}

/// Loss, duplicates, reordering and flipped bits on wire frames of both directions, on a device with all offloads.
#[test]
fn streams_through_faults() {
    in_namespace("streams_through_faults", || {
        let plan = FaultPlan {
            loss: 0.005,
            duplicate: 0.005,
            corrupt: 0.005,
            reorder: 0.01,
            reorder_delay: Duration::from_millis(1),
            ..FaultPlan::default()
        };
        let stack = stack_on(1, &config(1), |i| i.faults(plan.clone(), plan.clone(), 7));
        for v6 in [false, true] {
            let dog = Watchdog::new("faults", &[&stack]);
            both_ways(&stack, 1, v6, 1_000_000, &dog);
        }
        let drops = stats(&stack).mibs.drops;
        assert!(drops.get(DropReason::WireLoss) > 10, "{:?}", drops.iter().collect::<Vec<_>>());
        assert!(drops.get(DropReason::TcpCsum) > 0, "a flipped bit was found");
        assert_eq!(drops.get(DropReason::NotSpecified), 0);
    });
}

#[test]
fn resets_and_refusals_cross() {
    in_namespace("resets_and_refusals_cross", || {
        let stack = stack_on(1, &config(1), |i| i);
        let _dog = Watchdog::new("resets", &[&stack]);
        for v6 in [false, true] {
            let to = SocketAddr::new(ours(1, v6), 81);
            let refused = std::net::TcpStream::connect(to).expect_err("nobody listens");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            let refused = TcpStream::connect(&stack, (host(1, v6), 81)).expect_err("nobody listens");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

            let mut listener = TcpListener::bind(&stack, (ours(1, v6), 0)).expect("bind");
            let linux = std::net::TcpStream::connect(listener.local_addr()).expect("Linux connects");
            let (mut mine, _) = listener.accept().expect("accept");
            rustix::net::sockopt::set_socket_linger(&linux, Some(Duration::ZERO)).expect("SO_LINGER");
            drop(linux);
            let reset = mine.read(&mut [0; 9]).expect_err("Linux aborted");
            assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
        }
        let mut listener = TcpListener::bind(&stack, (ours(1, false), 0)).expect("bind");
        let mut linux = std::net::TcpStream::connect(listener.local_addr()).expect("Linux connects");
        let _mine = listener.accept().expect("accept");
        drop(stack);
        let reset = linux.read(&mut [0; 9]).expect_err("the stack is gone");
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    });
}

/// An echo request by a raw socket, and the reply that belongs to it.
fn ping(n: u8, v6: bool, len: usize) {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket};
    let (af, proto, kind) =
        if v6 { (AddressFamily::INET6, ipproto::ICMPV6, 128) } else { (AddressFamily::INET, ipproto::ICMP, 8) };
    let raw = socket(af, SocketType::RAW, Some(proto)).expect("root of the namespace");
    rustix::net::sockopt::set_socket_timeout(&raw, rustix::net::sockopt::Timeout::Recv, Some(common::STALL))
        .expect("a time limit");
    let mut request = vec![kind, 0, 0, 0, 0x12, 0x34, 0, len as u8];
    request.extend((0..len).map(|i| i as u8));
    if !v6 {
        let sum = linerate_wire::checksum::finish(linerate_wire::checksum::sum(&request));
        request[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    sendto(&raw, &request, SendFlags::empty(), &SocketAddr::new(ours(n, v6), 0)).expect("send");
    let mut reply = vec![0; 70_000];
    loop {
        let (got, _) = recv(&raw, &mut reply[..], RecvFlags::empty()).expect("a reply");
        let header = if v6 { 0 } else { usize::from(reply[0] & 15) * 4 };
        let reply = &reply[header..got];
        if reply[0] == if v6 { 129 } else { 0 } {
            assert_eq!(&reply[4..], &request[4..]);
            return;
        }
    }
}

#[test]
fn pings_are_answered() {
    in_namespace("pings_are_answered", || {
        for (n, plain) in [(1, false), (2, true)] {
            let config = if plain { config(n).plain() } else { config(n) };
            let stack = stack_on(n, &config, |i| i);
            for (v6, len) in [(false, 0), (false, 56), (false, 1472), (true, 56), (true, 1452)] {
                ping(n, v6, len);
            }
            assert_eq!(stats(&stack).mibs.ip.reasm_reqds, 0);
            // Longer than a frame: Linux cuts the request, the stack the answer.
            for (v6, len) in
                [(false, 1473), (true, 1453), (false, 20_000), (true, 20_000), (false, 65_507), (true, 65_527)]
            {
                ping(n, v6, len);
            }
            let ip = &stats(&stack).mibs.ip;
            assert_eq!((ip.reasm_oks, ip.reasm_fails, ip.frag_oks, ip.frag_fails), (6, 0, 6, 0));
            check_stats(&stats(&stack), "ping");
        }
    });
}

/// A UDP socket of the stack, through its handle.
struct Udp<'a>(&'a Stack, linerate::inline::SockId);

impl<'a> Udp<'a> {
    fn bind(stack: &'a Stack, at: SocketAddr) -> Self {
        let bound = stack.handle().with_shard(move |shard| shard.udp_bind(at, udp::BindOpts::default()));
        Self(stack, bound.expect("the stack runs").expect("a free port"))
    }
    fn send(&self, data: Vec<u8>, to: SocketAddr, gso_size: Option<u16>) {
        let id = self.1;
        let sent = self.0.handle().with_shard(move |shard| {
            let opts = udp::SendOpts { gso_size, ..udp::SendOpts::default() };
            shard.send_to(id, &data, Some(to), opts)
        });
        sent.expect("the stack runs").expect("room");
    }
    fn recv(&self) -> (Vec<u8>, SocketAddr) {
        let id = self.1;
        let begin = Instant::now();
        while begin.elapsed() < common::STALL {
            let got = self.0.handle().with_shard(move |shard| {
                let mut buf = vec![0; 70_000];
                let got = shard.recv_from(id, &mut buf, udp::RecvFlags::default()).ok()?;
                buf.truncate(got.len);
                Some((buf, got.from))
            });
            if let Some(got) = got.expect("the stack runs") {
                return got;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("no datagram came");
    }
}

/// Datagrams there and back, and trains of them in one super-packet each way.
#[test]
fn datagrams_and_trains() {
    in_namespace("datagrams_and_trains", || {
        for (n, plain) in [(1, false), (2, true)] {
            let config = if plain { config(n).plain() } else { config(n) };
            let stack = stack_on(n, &config, |i| i);
            let _dog = Watchdog::new("datagrams", &[&stack]);
            for v6 in [false, true] {
                let mine = Udp::bind(&stack, SocketAddr::new(ours(n, v6), 9000));
                let linux = std::net::UdpSocket::bind((host(n, v6), 0)).expect("Linux binds");
                linux.set_read_timeout(Some(common::STALL)).expect("a time limit");
                linux.connect((ours(n, v6), 9000)).expect("Linux connects");
                let largest = if v6 { 1452 } else { 1472 };
                let longest = if v6 { 65_527 } else { 65_507 };
                for len in [0, 1, 100, 1000, largest, largest + 1, 10_000, longest] {
                    let mut data = vec![0; len];
                    fill(len as u64, 0, &mut data);
                    linux.send(&data).expect("Linux sends");
                    let (got, from) = mine.recv();
                    assert!(got == data && from == linux.local_addr().expect("an address"), "{len} bytes");
                    mine.send(got, from, None);
                    let mut back = vec![0; 70_000];
                    let n = linux.recv(&mut back).expect("an echo");
                    assert!(back[..n] == data, "{len} bytes back");
                }
                trains(&linux, &mine);
            }
            let stats = stats(&stack);
            check_stats(&stats, "datagrams");
            let q = stats.interfaces.last().expect("the TUN").qstats;
            let uso = !plain && stack_offers_uso();
            assert_eq!((q.rx_hw_gro_skbs, q.tx_hw_gso_skbs), if uso { (2, 2) } else { (0, 0) }, "{q:?}");
        }
    });
}

fn stack_offers_uso() -> bool {
    Tun::open(&TunConfig::default()).expect("a TUN").offloads().uso
}

fn trains(linux: &std::net::UdpSocket, mine: &Udp<'_>) {
    let mut data = vec![0; 10 * 1000 + 333];
    fill(5, 0, &mut data);
    set_udp_segment(linux, 1000);
    linux.send(&data).expect("a train from Linux");
    set_udp_segment(linux, 0);
    let mut whole = Vec::new();
    while whole.len() < data.len() {
        let (got, _) = mine.recv();
        assert!(got.len() <= 1000);
        whole.extend(got);
    }
    assert!(whole == data, "the train from Linux");
    mine.send(data.clone(), linux.local_addr().expect("an address"), Some(1000));
    let (mut whole, mut buf) = (Vec::new(), vec![0; 2000]);
    while whole.len() < data.len() {
        let n = linux.recv(&mut buf).expect("a datagram");
        assert!(n <= 1000);
        whole.extend_from_slice(&buf[..n]);
    }
    assert!(whole == data, "the train to Linux");
}

/// UDP_SEGMENT, which neither the standard library nor rustix has.
#[allow(unsafe_code)]
fn set_udp_segment(socket: &std::net::UdpSocket, bytes: i32) {
    unsafe extern "C" {
        fn setsockopt(fd: i32, level: i32, name: i32, value: *const i32, len: u32) -> i32;
    }
    const SOL_UDP: i32 = 17;
    const UDP_SEGMENT: i32 = 103;
    // SAFETY: the value is one int that outlives the call, and its length is given.
    let set = unsafe { setsockopt(socket.as_raw_fd(), SOL_UDP, UDP_SEGMENT, &raw const bytes, 4) };
    assert_eq!(set, 0, "UDP_SEGMENT");
}

/// Times that the thread of this name went to sleep.
fn sleeps_of(thread: &str) -> u64 {
    for task in std::fs::read_dir("/proc/self/task").expect("/proc").flatten() {
        let read = |f: &str| std::fs::read_to_string(task.path().join(f)).unwrap_or_default();
        if read("comm").trim() == thread {
            let status = read("status");
            let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            return line.expect("a count").trim().parse().expect("a number");
        }
    }
    panic!("no thread is called {thread}");
}

/// With a connection that is idle, on every kind of device: the stack's thread sleeps through.
#[test]
fn an_idle_stack_sleeps() {
    in_namespace("an_idle_stack_sleeps", || {
        // Reports about groups are Linux's own business too.
        for which in ["all", "default"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        }
        let v4 = |n: u8| TunConfig::new(format!("quiet{n}")).host_address(config(n).host_addresses[0]);
        for (n, config) in [(1, v4(1)), (2, v4(2).plain()), (3, v4(3).queues(4))] {
            let tun = Tun::open(&config).expect("a TUN");
            let quiet = tun.name().to_owned();
            let interface = Interface::tun(tun).address(&format!("{}/24", ours(n, false)));
            let builder = Stack::builder().interface(interface).thread_name(&quiet).wait(Wait::Adaptive);
            let stack = builder.start().expect("the stack starts");
            let mut listener = TcpListener::bind(&stack, (ours(n, false), 0)).expect("bind");
            let mut linux = std::net::TcpStream::connect(listener.local_addr()).expect("Linux connects");
            let (mut mine, _) = listener.accept().expect("accept");
            linux.write_all(b"x").expect("write");
            mine.read_exact(&mut [0]).expect("read");
            // The delayed acknowledgement, and the timers of the handshake.
            thread::sleep(Duration::from_millis(500));
            // A machine that stops and continues its processes wakes them, too: one quiet second is what counts.
            let mut woken = u64::MAX;
            for _ in 0..6 {
                let before = sleeps_of(&quiet);
                thread::sleep(Duration::from_secs(1));
                woken = woken.min(sleeps_of(&quiet) - before);
                if woken == 0 {
                    break;
                }
            }
            assert_eq!(woken, 0, "{quiet}: wake-ups in the best of six seconds of nothing");
            linux.write_all(b"y").expect("write");
            mine.read_exact(&mut [0]).expect("still there");
        }
    });
}

#[test]
fn mistakes_are_named() {
    in_namespace("mistakes_are_named", || {
        let tun = Tun::open(&TunConfig::new("lin7")).expect("a TUN");
        assert_eq!((tun.name(), tun.mtu_bytes(), tun.queues()), ("lin7", 1500, 1));
        let open = |config: &TunConfig| Tun::open(config).expect_err("refused");
        assert_eq!(open(&TunConfig::new("lin7")), TunError::Busy("lin7".into()));
        assert_eq!(open(&TunConfig::new("lo")), TunError::WrongKind("lo".into()));
        for bad in ["", "a/b", "a b", "..", "sixteen-bytes-xx"] {
            assert_eq!(open(&TunConfig::new(bad)), TunError::BadName(bad.into()));
        }
        let too_large = open(&TunConfig::default().mtu(70_000));
        assert!(matches!(too_large, TunError::Mtu { mtu_bytes: 70_000, .. }), "{too_large:?}");
        let address = "10.7.0.1/24".parse().expect("an address");
        let twice = open(&TunConfig::default().host_address(address).host_address(address));
        assert!(matches!(twice, TunError::Address { .. }) && twice.to_string().contains("leave it out"), "{twice}");
        let text = std::io::Error::from(open(&TunConfig::new("lin7"))).to_string();
        assert!(text.contains("lin%d"), "{text}");
        // Nothing of the failures is left.
        let left: Vec<_> = std::fs::read_dir("/proc/sys/net/ipv4/conf").expect("/proc").flatten().collect();
        assert_eq!(left.iter().filter(|d| d.file_name().to_string_lossy().starts_with("lin")).count(), 1);
        drop(tun);
        assert!(Tun::open(&TunConfig::new("lin7").queues(2)).is_ok(), "the name is free again");
    });
}

/// A device that is taken away under the stack: its sockets time out or are reset, and the stack does not spin.
#[test]
fn a_device_that_is_removed_does_not_keep_the_stack_awake() {
    in_namespace("a_device_that_is_removed_does_not_keep_the_stack_awake", || {
        let config = TunConfig::new("gone").host_address(config(1).host_addresses[0]);
        let stack = stack_on(1, &config, |i| i);
        let deleted = std::process::Command::new("ip").args(["link", "del", "gone"]).status();
        if !deleted.is_ok_and(|s| s.success()) {
            println!("not tried: it needs the program `ip`");
            return;
        }
        thread::sleep(Duration::from_millis(200));
        let cpu = linerate_host::process_cpu_time();
        thread::sleep(Duration::from_secs(1));
        let used = linerate_host::process_cpu_time() - cpu;
        assert!(used < Duration::from_millis(300), "{used:?} of CPU in a second of nothing");
        assert!(
            TcpStream::connect_timeout(&stack, SocketAddr::new(host(1, false), 9), Duration::from_millis(300)).is_err()
        );
    });
}

/// A device that the stack lets go: Linux loses it, too, and the stack goes on without waking for it.
#[test]
fn a_device_that_the_stack_lets_go_is_closed() {
    in_namespace("a_device_that_the_stack_lets_go_is_closed", || {
        let stack = stack_on(1, &TunConfig::new("let-go").host_address(config(1).host_addresses[0]), |i| i);
        let there = || std::path::Path::new("/proc/sys/net/ipv4/conf/let-go").exists();
        assert!(there());
        let linux = std::net::UdpSocket::bind((host(1, false), 0)).expect("Linux binds");
        let gone = stack.handle().with_shard(|shard| shard.del_device(linerate::inline::IfIndex(2)));
        linux.send_to(b"for nobody", SocketAddr::new(ours(1, false), 9)).ok();
        assert_eq!(gone.expect("the stack runs"), Ok(()));
        let begin = Instant::now();
        while there() {
            assert!(begin.elapsed() < common::STALL, "the device is still there");
            thread::sleep(Duration::from_millis(5));
        }
        let cpu = linerate_host::process_cpu_time();
        thread::sleep(Duration::from_millis(500));
        assert!(linerate_host::process_cpu_time() - cpu < Duration::from_millis(200), "the stack does not sleep");
        assert_eq!(stats(&stack).interfaces.len(), 1);
    });
}
