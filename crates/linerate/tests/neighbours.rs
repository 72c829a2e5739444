//! Linux on the same Ethernet: who finds whom, who may have an address, and whom nobody finds.
//!
//! Each test runs in a user and network namespace of its own over a TAP device. The kernel's view is read from `/proc`.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::net::{IpAddr, Ipv6Addr, TcpListener as HostListener, UdpSocket};
use std::time::{Duration, Instant};

use linerate::inline::{NeighInfo, Nud};
use linerate::tun::{MacAddr, Tun, TunConfig};
use linerate::{Interface, Stack, TcpStream};
use netns::in_namespace;

const MAC: MacAddr = MacAddr([2, 9, 0, 0, 0, 2]);

fn stack(host: &[&str], ours: &[&str]) -> Stack {
    let cidr = |a: &&str| a.parse().expect("an address");
    let config = host.iter().map(cidr).fold(TunConfig::default().ethernet(), TunConfig::host_address);
    let tun = Tun::open(&config).expect("a TAP in a namespace of one's own");
    let interface = ours.iter().fold(Interface::tun(tun).mac(MAC), |i, a| i.address(a));
    Stack::builder().interface(interface).start().expect("the stack starts")
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < common::STALL, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn neighbours(stack: &Stack) -> Vec<NeighInfo> {
    stack.handle().with_shard(|s| s.neighbours().collect()).expect("the stack runs")
}

#[test]
fn both_find_each_other() {
    in_namespace("both_find_each_other", || {
        let stack = stack(&["10.9.1.1/24", "fd09:1::1/64"], &["10.9.1.2/24", "fd09:1::2/64"]);
        // The kernel asks for us: a datagram to a port that nobody has, which ICMP answers.
        for (from, to) in [("10.9.1.1:0", "10.9.1.2:9"), ("[fd09:1::1]:0", "[fd09:1::2]:9")] {
            eventually("the kernel's datagram is answered", || {
                let Ok(u) = UdpSocket::bind(from) else { return false };
                u.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
                u.connect(to).expect("a route");
                let _ = u.send(b"anybody?");
                u.recv(&mut [0; 8]).is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
            });
        }
        let arp = std::fs::read_to_string("/proc/net/arp").expect("the kernel's table");
        let row = arp.lines().find(|l| l.starts_with("10.9.1.2 ")).unwrap_or_else(|| panic!("{arp}"));
        assert!(row.contains(&MAC.to_string()) && row.contains("0x2"), "complete: {row}");
        // And we know the kernel: who asked, or answered.
        let all = neighbours(&stack);
        for addr in ["10.9.1.1", "fd09:1::1"] {
            let addr: IpAddr = addr.parse().expect("an address");
            let n = all.iter().find(|n| n.addr == addr).unwrap_or_else(|| panic!("{addr} in {all:?}"));
            assert!(n.state.is_valid() && n.mac.is_some_and(|m| m != MAC), "{n:?}");
        }
        // A connection asks for nobody again.
        let listener = HostListener::bind("[fd09:1::1]:0").expect("a listener");
        let port = listener.local_addr().expect("bound").port();
        let c = TcpStream::connect(&stack, ("fd09:1::1", port)).expect("connected");
        drop((c, listener));
        let stats = stack.handle().with_shard(|s| s.neigh_stats().clone()).expect("the stack runs");
        assert_eq!((stats.claims_refused, stats.conflicts, stats.dad_failures), (0, 0, 0), "{stats:?}");
    });
}

#[test]
fn an_address_that_linux_has_is_not_taken() {
    in_namespace("an_address_that_linux_has_is_not_taken", || {
        let stack = stack(&["fd09:2::1/64"], &["fd09:2::1/64", "fd09:2::2/64"]);
        let taken: Ipv6Addr = "fd09:2::1".parse().expect("an address");
        let state = move |stack: &Stack| {
            let look = move |s: &mut linerate::inline::Shard| {
                let dev = s.links().devices().find(|d| d.mac().is_some()).expect("the TAP");
                (dev.tentative().count(), dev.dad_failed().to_vec(), dev.addrs().len())
            };
            stack.handle().with_shard(look).expect("the stack runs")
        };
        eventually("the trials end", || state(&stack).0 == 0);
        // The other one and the link-local address are ours.
        assert_eq!(state(&stack), (0, vec![taken], 2));
    });
}

#[test]
fn a_host_that_is_not_there() {
    in_namespace("a_host_that_is_not_there", || {
        let stack = stack(&["10.9.3.1/24"], &["10.9.3.2/24"]);
        let begin = Instant::now();
        let e = TcpStream::connect(&stack, "10.9.3.77:80").expect_err("nobody is there");
        assert_eq!(e.kind(), std::io::ErrorKind::HostUnreachable, "{e}");
        assert!((2..20).contains(&begin.elapsed().as_secs()), "three questions, a second apart: {:?}", begin.elapsed());
        let n = neighbours(&stack);
        assert_eq!(n.iter().map(|n| n.state).collect::<Vec<_>>(), [Nud::Failed]);
    });
}
