//! IPv4 neighbours: asked, answered, believed or not.

use linerate_base::{DropReason, Errno};
use linerate_stack::{Nud, SockOpts};
use linerate_wire::ethernet::ethertype;
use linerate_wire::ip::proto;
use linerate_wire::{ArpOp, IpRepr, MacAddr};

use crate::lab::{EVIL, Lab, OWN, PEER, arp, arps, datagrams, eth, packet, ping, who_has};

fn ip(a: &str) -> std::net::Ipv4Addr {
    a.parse().unwrap()
}

#[test]
fn a_datagram_waits_for_its_neighbour() {
    let mut l = Lab::v4();
    let u = l.udp(false);
    l.send_to(u, "10.0.0.2:9", b"one");
    l.send_to(u, "10.0.0.2:9", b"two");
    let outs = l.take();
    let [(to, q)] = arps(&outs)[..] else { panic!("one question: {outs:?}") };
    assert_eq!((to, outs.len()), (MacAddr::BROADCAST, 1));
    assert_eq!((q.op, q.sender_mac, q.sender_ip, q.target_ip), (ArpOp::Request, OWN, ip("10.0.0.1"), ip("10.0.0.2")));
    assert_eq!(l.state("10.0.0.2"), Some(Nud::Incomplete));
    let outs = l.resolve_v4("10.0.0.2", PEER);
    assert_eq!(datagrams(&outs), [(PEER, b"one".to_vec()), (PEER, b"two".to_vec())], "in order");
    assert_eq!(l.state("10.0.0.2"), Some(Nud::Reachable));
    // And from now on at once, over a gateway too.
    l.send_to(u, "10.0.0.2:9", b"three");
    assert_eq!(datagrams(&l.take()), [(PEER, b"three".to_vec())]);
    let default = "0.0.0.0/0".parse().unwrap();
    l.s.add_route(linerate_stack::Route::new(default, l.dev).via(ip("10.0.0.2").into())).unwrap();
    l.send_to(u, "192.0.2.77:9", b"far");
    assert_eq!(datagrams(&l.take()), [(PEER, b"far".to_vec())]);
    // Broadcasts need no neighbour.
    l.s.udp_mut().opts_mut(u).unwrap().broadcast = true;
    l.send_to(u, "10.0.0.255:9", b"all");
    assert_eq!(datagrams(&l.take()), [(MacAddr::BROADCAST, b"all".to_vec())]);
    assert_eq!(l.s.neighbours().count(), 1);
}

#[test]
fn who_does_not_answer_is_an_unreachable_host() {
    let mut l = Lab::v4();
    let u = l.udp(false);
    l.s.udp_connect(u, "10.0.0.9:9".parse().unwrap()).unwrap();
    l.s.send_to(u, b"hello", None, Default::default()).unwrap();
    let c = l.s.tcp_connect("10.0.0.9:80".parse().unwrap(), None, &SockOpts::default()).unwrap();
    assert_eq!(arps(&l.take()).len(), 1);
    l.pass(2900);
    assert_eq!(arps(&l.take()).len(), 2, "a second apart");
    assert_eq!(l.s.take_error(c), None);
    l.pass(200);
    assert_eq!(l.s.take_error(c).map(|e| e.errno()), Some(Errno::EHOSTUNREACH));
    // To a datagram socket it is a soft error, of which only IP_RECVERR would tell.
    assert_eq!(l.s.recv_from(u, &mut [0; 8], Default::default()).unwrap_err().errno(), Errno::EAGAIN);
    // Two packets waited: a datagram and at least one SYN.
    assert!(l.drops(DropReason::NeighFailed) >= 2);
    assert_eq!((l.state("10.0.0.9"), l.s.neigh_stats().res_failed), (Some(Nud::Failed), 1));
    l.s.close(c).unwrap();
    l.s.close(u).unwrap();
    l.pass(1000);
    l.s.assert_quiescent();
}

#[test]
fn what_waits_is_bounded_and_the_oldest_goes() {
    let mut l = Lab::v4();
    let u = l.udp(false);
    for n in 0..2000u32 {
        l.send_to(u, "10.0.0.2:9", &n.to_be_bytes());
        l.rest();
    }
    let lost = l.drops(DropReason::NeighQueueFull);
    assert!((1000..1990).contains(&lost), "{lost} lost");
    l.take();
    let outs = datagrams(&l.resolve_v4("10.0.0.2", PEER));
    assert_eq!(outs.len() as u64, 2000 - lost);
    let first = u32::from_be_bytes(outs[0].1[..].try_into().unwrap());
    assert_eq!(u64::from(first), lost, "the oldest were lost");
    assert_eq!(u32::from_be_bytes(outs.last().unwrap().1[..].try_into().unwrap()), 1999);
}

#[test]
fn we_answer_for_our_addresses_alone() {
    let mut l = Lab::v4();
    let (other, _) = (l.s.add_device(linerate_stack::DeviceConfig::new("tun0", 1500)).unwrap(), 0);
    l.s.add_address(other, "10.9.9.9/32".parse().unwrap()).unwrap();
    // Also for an address of another device (arp_ignore 0).
    for target in ["10.0.0.1", "10.9.9.9"] {
        let outs = l.answer(who_has(PEER, "10.0.0.2", target));
        let [(to, a)] = arps(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!((to, a.op, a.sender_mac, a.sender_ip), (PEER, ArpOp::Reply, OWN, ip(target)));
        assert_eq!((a.target_mac, a.target_ip), (PEER, ip("10.0.0.2")));
    }
    assert_eq!(l.neigh("10.0.0.2").map(|n| (n.mac, n.state)), Some((Some(PEER), Nud::Stale)), "who asks is known");
    for target in ["10.0.0.7", "127.0.0.1", "224.0.0.1", "10.0.0.255"] {
        assert_eq!(l.answer(who_has(PEER, "10.0.0.2", target)).len(), 0, "{target}");
    }
    // A probe (RFC 5227) is answered and teaches nothing.
    assert_eq!(arps(&l.answer(who_has(EVIL, "0.0.0.0", "10.0.0.1"))).len(), 1);
    assert_eq!(l.s.neighbours().count(), 1);
    // Nobody is taught by somebody who can not be: our own address, groups, broadcasts, a group's hardware.
    for sender in ["10.0.0.1", "224.0.0.9", "10.0.0.255", "255.255.255.255", "127.0.0.1"] {
        assert_eq!(l.answer(who_has(EVIL, sender, "10.0.0.1")).len(), 0, "{sender}");
    }
    assert_eq!(
        l.answer(eth(OWN, EVIL, ethertype::ARP, &who_has(MacAddr::BROADCAST, "10.0.0.3", "10.0.0.1")[14..])).len(),
        0
    );
    assert_eq!((l.s.neighbours().count(), l.s.neigh_stats().conflicts), (1, 1));
}

/// A known neighbour, proved.
fn known(l: &mut Lab) -> linerate_stack::SockId {
    let u = l.udp(false);
    l.send_to(u, "10.0.0.2:9", b"x");
    l.take();
    l.resolve_v4("10.0.0.2", PEER);
    assert_eq!(l.state("10.0.0.2"), Some(Nud::Reachable));
    u
}
/// Where a datagram to the neighbour goes.
fn goes_to(l: &mut Lab, u: linerate_stack::SockId) -> Vec<MacAddr> {
    l.send_to(u, "10.0.0.2:9", b"secret");
    datagrams(&l.take()).into_iter().map(|d| d.0).collect()
}

#[test]
fn what_nobody_asked_for_enters_nothing() {
    let mut l = Lab::v4();
    let reply = |sender: &str| arp(OWN, EVIL, ArpOp::Reply, ip(sender), ip("10.0.0.1"), OWN);
    for n in 2..200 {
        l.answer(reply(&format!("10.0.0.{n}")));
        // Announcements, as requests and as replies.
        let me = ip(&format!("10.0.0.{n}"));
        l.answer(who_has(EVIL, &me.to_string(), &me.to_string()));
        l.answer(arp(MacAddr::BROADCAST, EVIL, ArpOp::Reply, me, me, EVIL));
    }
    assert_eq!(l.s.neighbours().count(), 0);
    assert!(l.s.neigh_stats().claims_refused >= 198);
}

#[test]
fn the_first_answer_wins() {
    let mut l = Lab::v4();
    let u = known(&mut l);
    // The race of a poisoner with the honest answer: within the lock time he is late.
    for _ in 0..100 {
        l.answer(arp(OWN, EVIL, ArpOp::Reply, ip("10.0.0.2"), ip("10.0.0.1"), OWN));
        l.pass(5);
    }
    assert_eq!(goes_to(&mut l, u), [PEER]);
    assert_eq!(l.s.neigh_stats().claims_refused, 100);
    // Later Linux believes him, and so do we unless told otherwise.
    l.pass(1000);
    l.answer(arp(OWN, EVIL, ArpOp::Reply, ip("10.0.0.2"), ip("10.0.0.1"), OWN));
    assert_eq!(goes_to(&mut l, u), [EVIL]);
}

#[test]
fn poisoning_does_not_redirect_when_changes_are_verified() {
    let mut l = Lab::with(|s, d| {
        s.neigh.verify_change = true;
        d.ipv6.addr_gen = linerate_stack::AddrGen::None;
    });
    l.s.add_address(l.dev, "10.0.0.1/24".parse().unwrap()).unwrap();
    let u = known(&mut l);
    for round in 0..50 {
        l.pass(1500);
        // Replies, announcements and requests of a liar; the honest one answers when it is asked.
        l.inject(arp(OWN, EVIL, ArpOp::Reply, ip("10.0.0.2"), ip("10.0.0.1"), OWN));
        l.inject(who_has(EVIL, "10.0.0.2", "10.0.0.2"));
        l.inject(who_has(EVIL, "10.0.0.2", "10.0.0.1"));
        let asked = arps(&l.take());
        assert!(asked.iter().filter(|(_, q)| q.op == ArpOp::Request).all(|(to, _)| *to == PEER), "{asked:?}");
        if asked.iter().any(|(_, q)| q.op == ArpOp::Request) {
            l.resolve_v4("10.0.0.2", PEER);
        }
        assert_eq!(goes_to(&mut l, u), [PEER], "round {round}");
    }
    assert!(l.s.neigh_stats().claims_refused >= 100);
    // A host that really moved is found again, because the old hardware is silent.
    l.pass(1500);
    l.answer(who_has(EVIL, "10.0.0.2", "10.0.0.2"));
    l.pass(4000);
    l.take();
    l.send_to(u, "10.0.0.2:9", b"moved?");
    assert_eq!(arps(&l.take())[0].0, MacAddr::BROADCAST);
    assert_eq!(datagrams(&l.resolve_v4("10.0.0.2", EVIL))[0].0, EVIL);
}

#[test]
fn a_flood_of_strangers_is_bounded_and_the_honest_go_on() {
    let mut l = Lab::v4();
    let u = known(&mut l);
    for n in 0..100_000u32 {
        let [_, b, c, d] = (n + 0x0300).to_be_bytes();
        let sender = std::net::Ipv4Addr::new(10, b + 1, c, d.max(1));
        let mac = MacAddr([2, 9, 9, b, c, d]);
        l.inject(arp(MacAddr::BROADCAST, mac, ArpOp::Request, sender, ip("10.0.0.1"), MacAddr::default()));
        if n % 256 == 0 {
            l.take();
        }
        if n % 10_000 == 0 {
            assert_eq!(goes_to(&mut l, u), [PEER]);
        }
    }
    l.take();
    assert!(l.s.neighbours().count() <= 513, "{} entries", l.s.neighbours().count());
    // A neighbour that is new now is found all the same.
    l.send_to(u, "10.0.0.3:9", b"new");
    l.take();
    assert_eq!(datagrams(&l.resolve_v4("10.0.0.3", EVIL)), [(EVIL, b"new".to_vec())]);
    assert_eq!(goes_to(&mut l, u), [PEER]);
    l.pass(200_000);
    assert!(l.s.neighbours().count() < 200, "the strangers are forgotten");
}

#[test]
fn a_scan_of_ours_does_not_grow_the_table() {
    let mut l = Lab::v4();
    let u = known(&mut l);
    l.s.add_address(l.dev, "10.1.0.1/16".parse().unwrap()).unwrap();
    let mut scanner = l.udp(false);
    for n in 2..20_000u32 {
        let [_, _, c, d] = n.to_be_bytes();
        // What waits is charged to its socket: one alone would soon be stopped by its send buffer.
        if n % 100 == 0 {
            scanner = l.udp(false);
        }
        let _ =
            l.s.send_to(scanner, b"?", Some(format!("10.1.{c}.{}:9", d.max(2)).parse().unwrap()), Default::default());
        if n % 100 == 0 {
            l.take();
            assert_eq!(goes_to(&mut l, u), [PEER]);
        }
    }
    assert!(l.s.neighbours().count() <= 1024);
    assert!(l.drops(DropReason::NeighCreateFail) > 10_000);
    l.pass(5000);
    l.take();
    l.send_to(u, "10.1.77.77:9", b"!");
    assert_eq!(arps(&l.take()).len(), 1, "what failed gives way");
}

#[test]
fn a_stale_neighbour_in_use_is_asked_alone() {
    let mut l = Lab::v4();
    let u = known(&mut l);
    l.pass(60_000);
    assert_eq!((l.state("10.0.0.2"), l.take().len()), (Some(Nud::Stale), 0));
    assert_eq!(l.s.turn(l.now, 64).next, None, "a link at rest wants nothing");
    assert_eq!(goes_to(&mut l, u), [PEER]);
    assert_eq!(l.state("10.0.0.2"), Some(Nud::Delay));
    l.pass(5100);
    let asked = arps(&l.take());
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].0, asked[0].1.op, l.state("10.0.0.2")), (PEER, ArpOp::Request, Some(Nud::Probe)));
    l.resolve_v4("10.0.0.2", PEER);
    assert_eq!(l.state("10.0.0.2"), Some(Nud::Reachable));
    l.s.close(u).unwrap();
    l.pass(100_000);
    l.s.assert_quiescent();
}

#[test]
fn entries_of_the_administrator_stay() {
    let mut l = Lab::v4();
    let u = l.udp(false);
    l.send_to(u, "10.0.0.2:9", b"waits");
    l.take();
    l.s.add_neighbour(l.dev, ip("10.0.0.2").into(), PEER).unwrap();
    assert_eq!(datagrams(&l.take()), [(PEER, b"waits".to_vec())]);
    for _ in 0..3 {
        l.pass(2000);
        l.answer(arp(OWN, EVIL, ArpOp::Reply, ip("10.0.0.2"), ip("10.0.0.1"), OWN));
        l.answer(who_has(EVIL, "10.0.0.2", "10.0.0.2"));
    }
    assert_eq!(goes_to(&mut l, u), [PEER]);
    assert_eq!(l.state("10.0.0.2"), Some(Nud::Permanent));
    l.s.del_neighbour(l.dev, ip("10.0.0.2").into()).unwrap();
    assert!(goes_to(&mut l, u).is_empty() && l.s.del_neighbour(l.dev, ip("10.0.0.9").into()).is_err());
    assert!(l.s.add_neighbour(l.dev, ip("10.0.0.9").into(), MacAddr::BROADCAST).is_err());
}

#[test]
fn frames_for_others_are_not_ours() {
    let mut l = Lab::v4();
    let pong = |l: &mut Lab, dst: MacAddr| l.answer(ping(dst, PEER, "10.0.0.2", "10.0.0.1")).len();
    known(&mut l);
    assert_eq!(pong(&mut l, OWN), 1);
    assert_eq!(pong(&mut l, EVIL), 0);
    assert_eq!(pong(&mut l, MacAddr([0x01, 0, 0x5e, 1, 2, 3])), 0, "a group that nobody joined");
    assert_eq!(l.drops(DropReason::OtherHost), 2);
    // The type and the packet must agree.
    let v4 = ping(OWN, PEER, "10.0.0.2", "10.0.0.1");
    assert_eq!(l.answer(eth(OWN, PEER, ethertype::IPV6, &v4[14..])).len(), 0);
    assert_eq!(l.drops(DropReason::IpInHdr), 1);
    for kind in [ethertype::VLAN, 0x88cc, 0x0100] {
        l.answer(eth(OWN, PEER, kind, &v4[14..]));
    }
    assert_eq!(l.drops(DropReason::UnhandledProto), 3);
    for n in 0..14 {
        l.answer(v4[..n].to_vec());
    }
    l.answer(v4[..14].to_vec());
    l.answer(eth(OWN, MacAddr::BROADCAST, ethertype::IPV4, &v4[14..]));
    assert_eq!((l.drops(DropReason::PktTooSmall), l.drops(DropReason::IpInvalidSource)), (15, 1));
    assert_eq!(pong(&mut l, OWN), 1);
}

#[test]
fn tcp_does_not_listen_to_groups_on_the_link() {
    let mut l = Lab::v4();
    known(&mut l);
    let at = "10.0.0.1:80".parse().unwrap();
    l.s.tcp_listen(at, 8, &SockOpts::default(), Default::default()).unwrap();
    let h = IpRepr::new(ip("10.0.0.2").into(), ip("10.0.0.1").into(), proto::TCP, 20);
    let mut syn = [0x13, 0x88, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
    let sum = linerate_wire::checksum::combine(h.pseudo_sum(), linerate_wire::checksum::sum(&syn));
    syn[16..18].copy_from_slice(&linerate_wire::checksum::finish(sum).to_be_bytes());
    assert_eq!(l.answer(packet(MacAddr::BROADCAST, PEER, &h, &syn)).len(), 0);
    // The same to us alone, with the padding of a short frame behind it.
    let outs = l.answer(packet(OWN, PEER, &h, &syn));
    assert_eq!((outs.len(), outs[0].eth.dst), (1, PEER));
}

/// Announcements: no new entries by default, a change of a known one at once, entries where they are wanted.
#[test]
fn announcements_change_what_is_known() {
    let announce = |mac: MacAddr| who_has(mac, "10.0.0.2", "10.0.0.2");
    let mut l = Lab::v4();
    let u = known(&mut l);
    // A spare host takes the address over: it does not wait for the lock time.
    l.answer(announce(EVIL));
    assert_eq!((l.state("10.0.0.2"), goes_to(&mut l, u)), (Some(Nud::Stale), vec![EVIL]));
    // A reply to all is no proof, even if it names us.
    l.pass(1100);
    l.answer(arp(MacAddr::BROADCAST, PEER, ArpOp::Reply, ip("10.0.0.2"), ip("10.0.0.1"), OWN));
    assert_eq!((l.state("10.0.0.2"), goes_to(&mut l, u)), (Some(Nud::Stale), vec![PEER]));

    let mut l = Lab::with(|s, _| s.neigh.arp_accept = true);
    l.s.add_address(l.dev, "10.0.0.1/24".parse().unwrap()).unwrap();
    l.answer(announce(PEER));
    assert_eq!(l.neigh("10.0.0.2").map(|n| (n.mac, n.state)), Some((Some(PEER), Nud::Stale)));
    l.answer(arp(OWN, PEER, ArpOp::Reply, ip("10.0.0.3"), ip("10.0.0.1"), OWN));
    assert_eq!(l.neigh("10.0.0.3"), None, "an answer that nobody asked for is no announcement");
}
