//! A SYN flood from Linux over a TUN: forged SYNs by the hundred thousand against a listener that honest peers use, too.
//!
//! The forger is a raw socket in the kernel's namespace, with a source address that nobody has for each SYN. What must hold:
//! half-open connections stay within the backlog, memory within a bound, cookies answer what finds no place, a bulk flow of
//! an honest peer goes on and is unharmed, and new honest connections to the same port are opened all the while. The
//! forger is faster than the device's queue is emptied, so honest packets are lost in the kernel and sent again.
//! `LINERATE_FLOOD_SYNS` makes the flood longer. Floods against the stack without a kernel (SYNs by the million, pings,
//! neighbours, forged ICMP) are tests of `linerate-stack`.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{Sizes, Ticker, Watchdog, byte_at, fill};
use linerate::inline::DropReason;
use linerate::tun::{Tun, TunConfig};
use linerate::{Interface, ListenOptions, Stack, TcpListener};
use linerate_wire::checksum::{finish, sum};
use netns::in_namespace;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 2);
/// Half-open connections that the listener holds before it answers by cookies.
const BACKLOG: u32 = 64;
/// What the flood may cost, bytes: the half-open connections, and what an allocator keeps.
const MEMORY_BYTES: u64 = 16 << 20;
/// Honest connections that must be opened while the flood lasts; it goes on until they were.
const HONEST: u64 = 20;

/// The Internet checksum of a TCP segment, its pseudo-header included.
fn tcp_sum(src: Ipv4Addr, segment: &[u8]) -> u16 {
    let mut all = [src.octets(), OURS.octets()].concat();
    all.extend([0, 6, 0, segment.len() as u8]);
    all.extend(segment);
    finish(sum(&all))
}

/// A SYN as Linux would send it, from an address of the network for benchmarks (RFC 2544), which nobody here has.
fn forged_syn(random: &mut Sizes, port: u16) -> Vec<u8> {
    let mut any = || random.next(1 << 16) as u32 - 1;
    let src = Ipv4Addr::from(0xc612_0000 | any());
    let mut tcp = (1024 + any() as u16 % 60_000).to_be_bytes().to_vec();
    tcp.extend(port.to_be_bytes());
    tcp.extend((any() << 16 | any()).to_be_bytes());
    tcp.extend([0, 0, 0, 0, 10 << 4, 2, 0xfa, 0xf0, 0, 0, 0, 0]);
    // MSS 1460, SACK permitted, timestamps, no-op, window scale 7.
    tcp.extend([2, 4, 5, 0xb4, 4, 2, 8, 10]);
    tcp.extend((any() << 16 | any()).to_be_bytes());
    tcp.extend([0, 0, 0, 0, 1, 3, 3, 7]);
    let check = tcp_sum(src, &tcp);
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    // Linux fills in the length, the identification and the header's checksum.
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0];
    packet.extend(src.octets());
    packet.extend(OURS.octets());
    packet.extend(tcp);
    packet
}

/// Sends forged SYNs until `enough` says so; returns how many.
fn flood(raw: &OwnedFd, port: u16, enough: impl Fn(u64) -> bool) -> u64 {
    let (mut random, mut sent) = (Sizes::new(5), 0);
    while !enough(sent) {
        let packet = forged_syn(&mut random, port);
        sendto(raw, &packet, SendFlags::empty(), &SocketAddr::new(IpAddr::V4(OURS), 0)).expect("a raw packet");
        sent += 1;
    }
    sent
}

/// Writes the stream 1 until the flood is over; returns its length.
fn write_bulk(mut to: TcpStream, over: &AtomicBool) -> u64 {
    let (mut buf, mut pos) = (vec![0; 50_000], 0);
    while !over.load(Ordering::Relaxed) {
        fill(1, pos, &mut buf);
        to.write_all(&buf).expect("the honest flow goes on");
        pos += buf.len() as u64;
        // It is to live through the flood, not to compete with it.
        thread::sleep(Duration::from_millis(2));
    }
    pos
}

/// Reads and checks the stream 1 to its end; returns its length.
fn read_bulk(from: &mut impl Read, tick: &Ticker) -> u64 {
    let (mut buf, mut pos) = (vec![0; 70_000], 0);
    loop {
        let n = from.read(&mut buf).expect("the honest flow goes on");
        if n == 0 {
            return pos;
        }
        assert!((pos..).zip(&buf[..n]).all(|(at, &b)| b == byte_at(1, at)), "near byte {pos}");
        pos += n as u64;
        tick.tick();
    }
}

/// Opens a connection, sends a line, and reads its echo.
fn visit(port: u16, number: u64) {
    let mut stream = TcpStream::connect((OURS, port)).expect("an honest connection in the flood");
    stream.set_read_timeout(Some(common::STALL)).expect("a time limit");
    let text = number.to_le_bytes();
    stream.write_all(&text).expect("write");
    let mut echo = [0; 8];
    stream.read_exact(&mut echo).expect("an echo in the flood");
    assert_eq!(echo, text);
}

/// Accepts visitors until one says that it was the last, number 0.
fn receive_visitors(listener: &mut TcpListener, tick: &Ticker) {
    listener.set_accept_timeout(Some(common::STALL));
    loop {
        let (mut stream, peer) = listener.accept().expect("an honest visitor");
        assert_eq!(peer.ip(), IpAddr::V4(HOST), "a forged connection was completed");
        let mut text = [0; 8];
        stream.read_exact(&mut text).expect("a line");
        stream.write_all(&text).expect("an echo");
        tick.tick();
        if text == [0; 8] {
            return;
        }
    }
}

/// Most half-open connections and most memory beyond the present that were seen until the flood was over.
fn look(stack: &Stack, over: &AtomicBool) -> (usize, u64) {
    let before = linerate_host::rss_bytes().expect("/proc");
    let (mut requests, mut memory) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        requests = requests.max(stack.stats().expect("the stack runs").tcp_requests);
        memory = memory.max(linerate_host::rss_bytes().expect("/proc").saturating_sub(before));
        thread::sleep(Duration::from_millis(5));
    }
    (requests, memory)
}

#[test]
fn a_syn_flood_from_linux_is_met_by_cookies_and_the_honest_go_on() {
    in_namespace("a_syn_flood_from_linux_is_met_by_cookies_and_the_honest_go_on", || {
        let syns = std::env::var("LINERATE_FLOOD_SYNS").map_or(100_000, |v| v.parse().expect("a number"));
        let config = TunConfig::default().host_address(format!("{HOST}/24").parse().expect("an address"));
        let tun = Tun::open(&config).expect("a TUN in a namespace of one's own");
        let interface = Interface::tun(tun).address(&format!("{OURS}/24")).gateway(&HOST.to_string());
        let stack = Stack::builder().interface(interface).start().expect("the stack starts");
        let mut options = ListenOptions::default();
        options.backlog = BACKLOG;
        let mut listener = TcpListener::bind_with(&stack, (OURS, 80), &options).expect("bind");
        let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).expect("root of the namespace");
        let dog = Watchdog::new("a SYN flood", &[&stack]);
        let bulk = TcpStream::connect((OURS, 80)).expect("the honest flow");
        let (mut reader, _) = listener.accept().expect("the honest flow");
        let (over, visits) = (AtomicBool::new(false), AtomicU64::new(0));
        let (sent, (requests, memory)) = thread::scope(|s| {
            let (t1, t2) = (dog.ticker(), dog.ticker());
            let written = s.spawn(|| write_bulk(bulk, &over));
            let read = s.spawn(move || read_bulk(&mut reader, &t1));
            let visitors = &mut listener;
            s.spawn(move || receive_visitors(visitors, &t2));
            s.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    visit(80, 1 + visits.fetch_add(1, Ordering::Relaxed));
                }
                visit(80, 0);
            });
            let seen = s.spawn(|| look(&stack, &over));
            let sent = flood(&raw, 80, |sent| sent >= syns && visits.load(Ordering::Relaxed) > HONEST);
            over.store(true, Ordering::Relaxed);
            assert_eq!(written.join().expect("no panic"), read.join().expect("no panic"), "bytes of the honest flow");
            (sent, seen.join().expect("no panic"))
        });
        let stats = stack.stats().expect("the stack runs");
        let tcp = |name: &str| stats.mibs.tcp.get(name).expect("a counter");
        let (cookies, eaten) = (tcp("TcpExtSyncookiesSent"), tcp("TcpExtSyncookiesRecv"));
        println!(
            "{sent} forged SYNs: {cookies} cookies, {eaten} of them came back; at most {requests} half-open, {} KiB more; \
             {} honest visits",
            memory >> 10,
            visits.load(Ordering::Relaxed),
        );
        assert!(requests <= BACKLOG as usize + 1, "{requests} half-open connections");
        assert!(memory <= MEMORY_BYTES, "{memory} bytes");
        // A fast forger overruns the device's queue, honest packets included; what came through was answered, all of it.
        assert!(cookies > sent / 20, "{cookies} cookies for {sent} SYNs");
        for name in ["TcpExtListenDrops", "TcpExtListenOverflows", "TcpInErrs", "TcpExtSyncookiesFailed"] {
            assert_eq!(tcp(name), 0, "{name}");
        }
        assert!(eaten > 0, "no honest connection came by its cookie");
        assert_eq!(stats.mibs.drops.get(DropReason::NotSpecified), 0);
    });
}
