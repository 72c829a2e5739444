//! What a Linux machine knows a host by: `ping` of every length, `traceroute` in its ways, and datagrams of all
//! lengths there are, echoed over an MTU of 1500, cut and put together again at both ends.
//!
//! Each test runs in a user and network namespace of its own (`common/netns.rs`), over a TUN.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use common::{Watchdog, fill};
use linerate::inline::DropReason;
use linerate::tun::{Tun, TunConfig};
use linerate::{Interface, Stack, Stats, TcpListener, UdpOptions, UdpSocket};
use netns::{in_namespace, in_namespace_with};
use rustix::net::sockopt;

const OURS: [&str; 2] = ["10.9.0.2", "fd09::2"];

fn stack(config: TunConfig) -> Stack {
    let host = |cidr: &str| cidr.parse().expect("an address");
    let config = config.mtu(1500).host_address(host("10.9.0.1/24")).host_address(host("fd09::1/64"));
    let tun = Interface::tun(Tun::open(&config).expect("a TUN in a namespace of one's own"));
    let tun = tun.address("10.9.0.2/24").address("fd09::2/64");
    Stack::builder().interface(tun).start().expect("the stack starts")
}

fn stats(stack: &Stack) -> Stats {
    stack.stats().expect("the stack runs")
}

#[track_caller]
fn check_stats(stats: &Stats) {
    use DropReason as R;
    let ours = [
        [R::NotSpecified, R::DevHdr, R::SkbGsoSeg, R::NoMem, R::PktTooSmall, R::PktTooBig, R::UnhandledProto],
        [R::IpInHdr, R::IpCsum, R::UdpCsum, R::IcmpCsum, R::IpFragMem, R::FullRing, R::SocketRcvbuff],
    ];
    let drops: Vec<_> = stats.mibs.drops.iter().filter(|(r, n)| *n != 0 && ours.as_flattened().contains(r)).collect();
    assert!(drops.is_empty(), "{drops:?}");
}

/// What a program prints; it must succeed.
#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().expect("the program starts");
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{program} {args:?} ({}): {text}", out.status);
    text
}

/// `ping` compares what comes back with what it sent, and says so when it differs.
#[test]
fn ping_is_answered() {
    in_namespace_with(&["ping"], "ping_is_answered", || {
        for config in [TunConfig::default(), TunConfig::default().plain()] {
            let stack = stack(config);
            for (at, largest) in [(OURS[0], 65_507), (OURS[1], 65_527)] {
                for len in [0, 1, 56, 1452, 1453, 1472, 1473, 9000, largest] {
                    let text =
                        run("ping", &["-n", "-q", "-c", "3", "-i", "0.01", "-W", "10", "-s", &len.to_string(), at]);
                    assert!(text.contains(" 3 received, 0% packet loss"), "{text}");
                    assert!(!text.contains("wrong data") && !text.contains("truncated"), "{text}");
                }
                let text = run("ping", &["-n", "-q", "-f", "-c", "1000", "-W", "10", at]);
                assert!(text.contains(" 1000 received, 0% packet loss"), "{text}");
            }
            let stats = stats(&stack);
            check_stats(&stats);
            assert!(stats.mibs.ip.reasm_fails == 0 && stats.mibs.ip.frag_oks > 0, "{:?}", stats.mibs.ip);
        }
    });
}

/// The first hop is the end, whatever the probes are made of.
#[test]
fn traceroute_finds_us_at_once() {
    in_namespace_with(&["traceroute"], "traceroute_finds_us_at_once", || {
        let stack = stack(TunConfig::default());
        let _web = TcpListener::bind(&stack, "[::]:80").expect("bind");
        for at in OURS {
            for probes in [&["-U"][..], &["-I"], &["-T", "-p", "80"], &["-T", "-p", "81"], &["-U", "-p", "33434"]] {
                let args = [&["-n", "-q", "2", "-N", "2", "-w", "5", "-m", "4"], probes, &[at]].concat();
                let text = run("traceroute", &args);
                let hops: Vec<_> = text.lines().skip(1).collect();
                assert_eq!(hops.len(), 1, "{args:?}: {text}");
                assert!(hops[0].contains(&format!(" 1  {at}  ")) && !hops[0].contains('*'), "{args:?}: {text}");
            }
            // A datagram in pieces is answered by one error, which names the socket that sent it.
            let text = run("traceroute", &["-n", "-q", "1", "-w", "5", "-m", "4", at, "5000"]);
            assert!(text.contains(&format!(" 1  {at}  ")), "{text}");
        }
        check_stats(&stats(&stack));
    });
}

/// Bytes on their way at once: two of the longest. More might not find room with Linux, which counts what their pieces
/// occupy and does not let us ask for more than twice `net.core.rmem_max`.
const WINDOW: u64 = 130_000;

/// Sends every length from 0 to `longest`, in order; the echo must be the same, in the same order.
fn every_length(stack: &Stack, at: &str, longest: usize, dog: &Watchdog) {
    let ip = at.parse().expect("an address");
    let options = |rcvbuf| {
        let mut options = UdpOptions::default();
        (options.rcvbuf_bytes, options.sndbuf_bytes) = (rcvbuf, rcvbuf);
        options
    };
    let mut echo = UdpSocket::bind_with(stack, SocketAddr::new(ip, 9), &options(8 << 20)).expect("bind");
    let linux =
        std::net::UdpSocket::bind(if ip.is_ipv4() { "10.9.0.1:0" } else { "[fd09::1]:0" }).expect("Linux binds");
    linux.connect((ip, 9)).expect("Linux connects");
    linux.set_read_timeout(Some(common::STALL)).expect("a time limit");
    sockopt::set_socket_recv_buffer_size(&linux, 8 << 20).expect("as much as is allowed");
    sockopt::set_socket_send_buffer_size(&linux, 8 << 20).expect("as much as is allowed");
    // Datagram n is n bytes of this, from a place of its own.
    let mut bytes = vec![0; longest + 1000];
    fill(at.len() as u64, 0, &mut bytes);
    let datagram = |n: usize| &bytes[n % 997..][..n];
    let (back, tick) = (AtomicU64::new(0), dog.ticker());
    thread::scope(|s| {
        s.spawn(|| {
            let mut buf = vec![0; 65_536];
            for n in 0..=longest {
                let (len, from) = echo.recv_from(&mut buf).expect("a datagram");
                assert!(&buf[..len] == datagram(n), "{len} bytes came instead of {n}, or others");
                echo.send_to(&buf[..len], from).expect("send");
            }
        });
        s.spawn(|| {
            let mut sent = 0;
            for n in 0..=longest {
                while sent - back.load(Ordering::Acquire) > WINDOW {
                    thread::yield_now();
                }
                linux.send(datagram(n)).expect("Linux sends");
                sent += 1000 + n as u64;
            }
        });
        let mut buf = vec![0; 65_536];
        for n in 0..=longest {
            let len = linux.recv(&mut buf).expect("an echo");
            assert!(&buf[..len] == datagram(n), "{len} bytes came back instead of {n}, or others");
            back.fetch_add(1000 + n as u64, Ordering::Release);
            tick.tick();
        }
    });
}

#[test]
fn datagrams_of_every_length_are_echoed() {
    in_namespace("datagrams_of_every_length_are_echoed", || {
        let stack = stack(TunConfig::default().tx_queue_len(2000));
        for (at, longest) in [(OURS[0], 65_507), (OURS[1], 65_527)] {
            let dog = Watchdog::new(at, &[&stack]);
            let begin = Instant::now();
            every_length(&stack, at, longest, &dog);
            println!("{at}: {} lengths in {:.1} s", longest + 1, begin.elapsed().as_secs_f64());
        }
        let stats = stats(&stack);
        check_stats(&stats);
        // All that is longer than 1472 (1452) bytes came in pieces, and went.
        let cut = 65_507 - 1472 + 65_527 - 1452;
        let ip = &stats.mibs.ip;
        assert_eq!((ip.reasm_oks, ip.reasm_fails, ip.frag_oks, ip.frag_fails), (cut, 0, cut, 0));
    });
}
