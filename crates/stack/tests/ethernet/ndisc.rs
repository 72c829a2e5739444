//! IPv6 neighbours: discovery as RFC 4861 section 7 wants it, and who may not be believed.

use std::net::Ipv6Addr;

use linerate_base::{DropReason, Errno};
use linerate_stack::{Nud, SockId, SockOpts};
use linerate_wire::{MacAddr, NdiscRepr};

use crate::lab::{EVIL, Lab, OWN, OWN_LL, PEER, datagrams, group, nd, nd_with, ping, solicits};

fn a(s: &str) -> Ipv6Addr {
    s.parse().unwrap()
}
fn advert(target: &str, mac: MacAddr, solicited: bool, replace: bool) -> NdiscRepr<'static> {
    NdiscRepr::NeighborAdvert { router: false, solicited, replace, target: a(target), lla: Some(mac) }
}
fn solicit(target: &str, mac: Option<MacAddr>) -> NdiscRepr<'static> {
    NdiscRepr::NeighborSolicit { target: a(target), lla: mac, nonce: None }
}
/// The honest answer of fd00::2.
fn honest() -> Vec<u8> {
    nd(OWN, PEER, "fd00::2", "fd00::1", &advert("fd00::2", PEER, true, true))
}
fn known(l: &mut Lab) -> SockId {
    let u = l.udp(true);
    l.send_to(u, "[fd00::2]:9", b"x");
    l.take();
    assert_eq!(datagrams(&l.answer(honest())), [(PEER, b"x".to_vec())]);
    assert_eq!(l.state("fd00::2"), Some(Nud::Reachable));
    u
}
fn goes_to(l: &mut Lab, u: SockId) -> Vec<MacAddr> {
    l.send_to(u, "[fd00::2]:9", b"secret");
    datagrams(&l.take()).into_iter().map(|d| d.0).collect()
}

#[test]
fn a_datagram_waits_for_its_neighbour() {
    let mut l = Lab::v6();
    let u = l.udp(true);
    l.send_to(u, "[fd00::2]:9", b"one");
    let outs = l.take();
    assert_eq!(solicits(&outs), [(group("ff02::1:ff00:2"), a("fd00::1"), a("fd00::2"))]);
    assert_eq!(outs[0].ip().unwrap().dst, a("ff02::1:ff00:2"));
    assert!(matches!(outs[0].nd(), Some(NdiscRepr::NeighborSolicit { lla: Some(OWN), nonce: None, .. })));
    assert_eq!(datagrams(&l.answer(honest())), [(PEER, b"one".to_vec())]);
    // Link-local neighbours are spoken to from the link-local address.
    l.send_to(u, "[fe80::2]:9", b"ll");
    let outs = l.take();
    assert_eq!(solicits(&outs), [(group("ff02::1:ff00:2"), a(OWN_LL), a("fe80::2"))]);
    // Groups need no neighbour.
    l.send_to(u, "[ff02::1234]:9", b"all");
    assert_eq!(datagrams(&l.take()), [(group("ff02::1234"), b"all".to_vec())]);
}

#[test]
fn who_does_not_answer_is_an_unreachable_host() {
    let mut l = Lab::v6();
    let c = l.s.tcp_connect("[fd00::9]:80".parse().unwrap(), None, &SockOpts::default()).unwrap();
    l.pass(2900);
    assert_eq!((solicits(&l.take()).len(), l.s.take_error(c)), (3, None));
    l.pass(200);
    assert_eq!(l.s.take_error(c).map(|e| e.errno()), Some(Errno::EHOSTUNREACH));
    l.s.close(c).unwrap();
    l.pass(1000);
    l.s.assert_quiescent();
}

#[test]
fn solicitations_are_answered_as_they_ask() {
    let mut l = Lab::v6();
    // To the group: the hardware is told, and may replace another.
    let outs =
        l.answer(nd(group("ff02::1:ff00:1"), PEER, "fd00::2", "ff02::1:ff00:1", &solicit("fd00::1", Some(PEER))));
    let told = NdiscRepr::NeighborAdvert {
        router: false,
        solicited: true,
        replace: true,
        target: a("fd00::1"),
        lla: Some(OWN),
    };
    assert_eq!((outs.len(), outs[0].eth.dst, outs[0].nd()), (1, PEER, Some(told)));
    assert_eq!((outs[0].ip().unwrap().src, outs[0].ip().unwrap().dst), (a("fd00::1").into(), a("fd00::2").into()));
    assert_eq!(l.neigh("fd00::2").map(|n| (n.mac, n.state)), Some((Some(PEER), Nud::Stale)));
    // To us alone: whether we are still there.
    let outs = l.answer(nd(OWN, PEER, "fd00::2", "fd00::1", &solicit("fd00::1", Some(PEER))));
    let there =
        NdiscRepr::NeighborAdvert { router: false, solicited: true, replace: false, target: a("fd00::1"), lla: None };
    assert_eq!(outs[0].nd(), Some(there));
    // Without its hardware address: known by now.
    let outs = l.answer(nd(OWN, PEER, "fd00::2", "fd00::1", &solicit("fd00::1", None)));
    assert_eq!((outs[0].eth.dst, outs[0].nd()), (PEER, Some(there)));
    // And from a stranger: it has to be found first.
    let outs = l.answer(nd(OWN, EVIL, "fd00::3", "fd00::1", &solicit("fd00::1", None)));
    assert_eq!(solicits(&outs).len(), 1);
    // Whoever tries our address hears that it is taken, and so does everybody.
    let outs = l.answer(nd(group("ff02::1:ff00:1"), EVIL, "::", "ff02::1:ff00:1", &solicit("fd00::1", None)));
    let taken = NdiscRepr::NeighborAdvert {
        router: false,
        solicited: false,
        replace: true,
        target: a("fd00::1"),
        lla: Some(OWN),
    };
    assert_eq!((outs[0].eth.dst, outs[0].nd()), (group("ff02::1"), Some(taken)));
    // Others' addresses are theirs.
    assert_eq!(l.answer(nd(OWN, PEER, "fd00::2", "fd00::1", &solicit("fd00::77", Some(PEER)))).len(), 0);
}

#[test]
fn what_may_not_be_is_discarded() {
    let mut l = Lab::v6();
    let mut refused = 0;
    let ns = solicit("fd00::1", Some(PEER));
    let g = group("ff02::1:ff00:1");
    let mut bad = |l: &mut Lab, frame: Vec<u8>, why: &str| {
        refused += 1;
        assert_eq!(l.answer(frame).len(), 0, "{why}");
        assert_eq!(l.drops(DropReason::NdiscInvalid), refused, "{why}");
    };
    bad(&mut l, nd_with(g, PEER, "fd00::2", "ff02::1:ff00:1", &ns, 254), "it was forwarded");
    bad(&mut l, nd_with(OWN, PEER, "fd00::2", "fd00::1", &advert("fd00::2", PEER, true, true), 64), "it was forwarded");
    bad(&mut l, nd(g, PEER, "::", "ff02::1:ff00:1", &ns), "a trial with a hardware address");
    bad(&mut l, nd(OWN, PEER, "::", "ff02::1", &solicit("fd00::1", None)), "a trial to another group");
    bad(
        &mut l,
        nd(g, PEER, "fd00::2", "ff02::1:ff00:1", &solicit("fd00::1", Some(MacAddr::BROADCAST))),
        "hardware of a group",
    );
    bad(&mut l, nd(group("ff02::1"), PEER, "fd00::2", "ff02::1", &advert("fd00::2", PEER, true, true)), "asked by all");
    bad(&mut l, nd(g, PEER, "fd00::2", "ff02::1:ff00:1", &solicit("ff02::5", Some(PEER))), "a group as target");
    assert_eq!((l.s.neighbours().count(), l.s.neigh_stats().invalid), (0, refused));
    assert_eq!(l.drops(DropReason::NotSpecified), 0);
    assert_eq!(l.answer(nd(g, PEER, "fd00::2", "ff02::1:ff00:1", &ns)).len(), 1, "the honest one is served");
}

#[test]
fn advertisements_are_weighed() {
    let mut l = Lab::v6();
    // Unasked: nothing is entered.
    for n in 2..100 {
        let target = format!("fd00::{n:x}");
        l.answer(nd(group("ff02::1"), EVIL, &target, "ff02::1", &advert(&target, EVIL, false, true)));
        l.answer(nd(OWN, EVIL, &target, "fd00::1", &advert(&target, EVIL, true, true)));
    }
    assert_eq!((l.s.neighbours().count(), l.s.neigh_stats().claims_refused), (0, 196));
    let u = known(&mut l);
    // Without the override flag nothing is replaced; the proof is gone, and the known hardware is asked.
    l.answer(nd(OWN, EVIL, "fd00::2", "fd00::1", &advert("fd00::2", EVIL, true, false)));
    assert_eq!((l.state("fd00::2"), goes_to(&mut l, u)), (Some(Nud::Stale), vec![PEER]));
    l.pass(5100);
    assert_eq!(solicits(&l.take()), [(PEER, a("fd00::1"), a("fd00::2"))]);
    l.answer(honest());
    // With it, it is, as in Linux.
    l.answer(nd(group("ff02::1"), EVIL, "fd00::2", "ff02::1", &advert("fd00::2", EVIL, false, true)));
    assert_eq!(goes_to(&mut l, u), [EVIL]);
    // Our own address is ours.
    l.answer(nd(group("ff02::1"), EVIL, "fe80::66", "ff02::1", &advert("fd00::1", EVIL, false, true)));
    assert_eq!(l.s.neigh_stats().conflicts, 1);
    assert_eq!(l.answer(ping(OWN, EVIL, "fd00::2", "fd00::1")).len(), 1);
}

#[test]
fn poisoning_does_not_redirect_when_changes_are_verified() {
    let mut l = Lab::v6_with(|s, _| s.neigh.verify_change = true);
    let u = known(&mut l);
    for _ in 0..50 {
        l.pass(1500);
        l.inject(nd(group("ff02::1"), EVIL, "fd00::2", "ff02::1", &advert("fd00::2", EVIL, false, true)));
        l.inject(nd(OWN, EVIL, "fd00::2", "fd00::1", &advert("fd00::2", EVIL, true, true)));
        l.inject(nd(group("ff02::1:ff00:1"), EVIL, "fd00::2", "ff02::1:ff00:1", &solicit("fd00::1", Some(EVIL))));
        if !solicits(&l.take()).is_empty() {
            l.answer(honest());
        }
        assert_eq!(goes_to(&mut l, u), [PEER]);
    }
}

#[test]
fn a_flood_of_strangers_is_bounded_and_the_honest_go_on() {
    let mut l = Lab::v6();
    let u = known(&mut l);
    for n in 0..100_000u32 {
        let [_, b, c, d] = n.to_be_bytes();
        let src = format!("fd00::{:x}:{:x}", 0x100 + (n >> 16), n & 0xffff);
        let mac = MacAddr([2, 9, 9, b, c, d]);
        l.inject(nd(group("ff02::1:ff00:1"), mac, &src, "ff02::1:ff00:1", &solicit("fd00::1", Some(mac))));
        if n % 256 == 0 {
            l.take();
        }
        if n % 20_000 == 0 {
            assert_eq!(goes_to(&mut l, u), [PEER]);
        }
    }
    l.take();
    assert!(l.s.neighbours().count() <= 513, "{} entries", l.s.neighbours().count());
    l.send_to(u, "[fd00::3]:9", b"new");
    l.take();
    let found = nd(OWN, EVIL, "fd00::3", "fd00::1", &advert("fd00::3", EVIL, true, true));
    assert_eq!(datagrams(&l.answer(found)), [(EVIL, b"new".to_vec())]);
    assert_eq!(goes_to(&mut l, u), [PEER]);
}
