//! Trials of addresses, routers and what they advertise.

use std::net::{IpAddr, Ipv6Addr};

use linerate_base::{Duration, HashKey, Instant};
use linerate_stack::{AddrError, AddrGen, RouteError};
use linerate_wire::ndisc::{INFINITE, PrefixInfo, RouterAdvert, RouterPref};
use linerate_wire::{Cidr, MacAddr, NdOption, NdOptions, NdiscRepr};

use crate::lab::{EVIL, Lab, MTU, OWN, OWN_LL, Out, PEER, group, nd, nd_with, ping, solicits};

fn a(s: &str) -> Ipv6Addr {
    s.parse().unwrap()
}
fn c(s: &str) -> Cidr {
    s.parse().unwrap()
}
fn addrs(l: &Lab) -> Vec<String> {
    l.s.device(l.dev).unwrap().addrs().iter().map(ToString::to_string).collect()
}
fn tentative(l: &Lab) -> Vec<String> {
    l.s.device(l.dev).unwrap().tentative().map(|c| c.to_string()).collect()
}
/// The trials among frames: who is asked for, and the nonce.
fn trials(outs: &[Out]) -> Vec<(Ipv6Addr, Option<[u8; 6]>)> {
    let pick = |o: &Out| match (o.ip()?.src, o.nd()?) {
        (IpAddr::V6(src), NdiscRepr::NeighborSolicit { target, lla: None, nonce }) if src.is_unspecified() => {
            Some((target, nonce))
        }
        _ => None,
    };
    outs.iter().filter_map(pick).collect()
}

#[test]
fn an_address_is_ours_after_its_trial() {
    let mut l = Lab::with(|_, _| {});
    l.s.add_address(l.dev, c("fd00::1/64")).unwrap();
    assert_eq!(l.s.add_address(l.dev, c("fd00::1/64")), Err(AddrError::Exists));
    assert_eq!((addrs(&l).len(), tentative(&l).len()), (0, 2));
    l.take();
    assert_eq!(l.answer(ping(OWN, PEER, "fd00::2", "fd00::1")).len(), 0, "nobody's address");
    assert!(matches!(l.s.links().route(a("fd00::2").into(), None, None, l.now), Err(RouteError::NoRoute)));
    l.pass(1000);
    let outs = l.take();
    let mut asked: Vec<Ipv6Addr> = trials(&outs).into_iter().map(|t| t.0).collect();
    asked.sort();
    assert_eq!(asked, [a("fd00::1"), a(OWN_LL)], "once each, within a second");
    assert_eq!(outs.iter().filter(|o| o.nd().is_some()).map(|o| o.eth.dst.0[0]).max(), Some(0x33));
    l.pass(1000);
    assert_eq!((tentative(&l).len(), addrs(&l).len()), (0, 2));
    assert!(addrs(&l).contains(&format!("{OWN_LL}/64")));
    l.take();
    let outs = l.answer(ping(OWN, PEER, "fd00::2", "fd00::1"));
    assert_eq!(solicits(&outs).len(), 1, "we answer, and look for who asked: {outs:?}");
    // Without a trial at once, and taken away at once.
    l.s.add_address_nodad(l.dev, c("fd00::5/64")).unwrap();
    assert!(addrs(&l).contains(&"fd00::5/64".into()));
    l.s.add_address(l.dev, c("fd00::6/64")).unwrap();
    for gone in ["fd00::5/64", "fd00::6/64"] {
        l.s.del_address(l.dev, c(gone)).unwrap();
        assert_eq!(l.s.del_address(l.dev, c(gone)), Err(AddrError::NotFound));
    }
    l.pass(5000);
    assert_eq!(addrs(&l).len(), 2);
    // A pure-IP device knows no trials, nor does IPv4.
    l.s.add_address(l.dev, c("10.0.0.1/24")).unwrap();
    assert_eq!(addrs(&l).len(), 3);
}

#[test]
fn an_address_that_others_have_is_not_ours() {
    let advert = NdiscRepr::NeighborAdvert {
        router: false,
        solicited: false,
        replace: true,
        target: a("fd00::1"),
        lla: Some(EVIL),
    };
    let ns = |nonce| NdiscRepr::NeighborSolicit { target: a("fd00::1"), lla: None, nonce };
    let g = group("ff02::1:ff00:1");
    let cases: [(&str, Vec<u8>); 3] = [
        ("it is advertised", nd(group("ff02::1"), EVIL, "fd00::1", "ff02::1", &advert)),
        ("another one tries it too", nd(g, EVIL, "::", "ff02::1:ff00:1", &ns(None))),
        ("with a nonce of its own", nd(g, EVIL, "::", "ff02::1:ff00:1", &ns(Some([9; 6])))),
    ];
    for (why, frame) in cases {
        let mut l = Lab::with(|_, d| d.ipv6.addr_gen = AddrGen::None);
        l.s.add_address(l.dev, c("fd00::1/64")).unwrap();
        l.pass(1000);
        l.answer(frame);
        l.pass(5000);
        assert_eq!((addrs(&l).len(), tentative(&l).len()), (0, 0), "{why}");
        assert_eq!(l.s.device(l.dev).unwrap().dad_failed(), [a("fd00::1")]);
        assert_eq!(l.s.neigh_stats().dad_failures, 1);
        l.take();
        assert_eq!(l.answer(ping(OWN, PEER, "fd00::2", "fd00::1")).len(), 0);
    }
    // Our own voice, reflected by the link, and somebody who asks for other reasons, end nothing.
    let mut l = Lab::with(|_, d| d.ipv6.addr_gen = AddrGen::None);
    l.s.add_address(l.dev, c("fd00::1/64")).unwrap();
    l.pass(1000);
    let nonce = trials(&l.take())[0].1;
    assert!(nonce.is_some());
    l.answer(nd(g, OWN, "::", "ff02::1:ff00:1", &ns(nonce)));
    let asks = NdiscRepr::NeighborSolicit { target: a("fd00::1"), lla: Some(EVIL), nonce: None };
    assert_eq!(l.answer(nd(g, EVIL, "fd00::2", "ff02::1:ff00:1", &asks)).len(), 0);
    l.pass(5000);
    assert_eq!(addrs(&l), ["fd00::1/64"]);
}

#[test]
fn a_private_address_is_made_anew_three_times() {
    let key = HashKey([3, 4]);
    let mut l = Lab::with(|_, d| d.ipv6.addr_gen = AddrGen::StablePrivacy(key));
    let mut seen = Vec::new();
    for _ in 0..4 {
        l.pass(1001);
        let now = tentative(&l);
        assert_eq!(now.len(), 1);
        let addr = a(now[0].strip_suffix("/64").unwrap());
        assert!(addr.is_unicast_link_local() && !seen.contains(&addr));
        seen.push(addr);
        let s = addr.to_string();
        let advert =
            NdiscRepr::NeighborAdvert { router: false, solicited: false, replace: true, target: addr, lla: Some(EVIL) };
        l.answer(nd(group("ff02::1"), EVIL, &s, "ff02::1", &advert));
    }
    l.pass(10_000);
    assert_eq!((addrs(&l).len(), tentative(&l).len(), l.s.neigh_stats().dad_failures), (0, 0, 4));
    // The same secret, hardware and prefix give the same first address; another secret another.
    let first = |key| tentative(&Lab::with(|_, d| d.ipv6.addr_gen = AddrGen::StablePrivacy(key)));
    assert_eq!(first(key), [format!("{}/64", seen[0])]);
    assert_ne!(first(key), first(HashKey([3, 5])));
}

/// A router at fe80::fe, as it speaks.
struct Router {
    lifetime_s: u16,
    pref: RouterPref,
    prefix: Option<PrefixInfo>,
    mtu: Option<u32>,
    times_ms: [u32; 2],
    addr: &'static str,
    mac: MacAddr,
    hop_limit: u8,
}

fn prefix(valid_s: u32, preferred_s: u32) -> PrefixInfo {
    PrefixInfo { prefix_len: 64, on_link: true, autonomous: true, valid_s, preferred_s, prefix: a("2001:db8:1::") }
}

impl Router {
    fn new() -> Self {
        Self {
            lifetime_s: 1800,
            pref: RouterPref::Medium,
            prefix: None,
            mtu: None,
            times_ms: [0; 2],
            addr: "fe80::fe",
            mac: PEER,
            hop_limit: 255,
        }
    }
    fn advert(&self) -> Vec<u8> {
        let options = [
            Some(NdOption::SourceLla(self.mac)),
            self.prefix.map(NdOption::Prefix),
            self.mtu.map(NdOption::Mtu),
            Some(NdOption::Rdnss { lifetime_s: 60, servers: &[0x20; 16] }),
        ];
        let mut bytes = Vec::new();
        for o in options.iter().flatten() {
            let at = bytes.len();
            bytes.resize(at + o.emit_len(), 0);
            o.emit(&mut bytes[at..]);
        }
        let ra = NdiscRepr::RouterAdvert(RouterAdvert {
            hop_limit: 64,
            managed: false,
            other: false,
            pref: self.pref,
            lifetime_s: self.lifetime_s,
            reachable_ms: self.times_ms[0],
            retrans_ms: self.times_ms[1],
            options: NdOptions::new_checked(&bytes).unwrap(),
        });
        nd_with(group("ff02::1"), self.mac, self.addr, "ff02::1", &ra, self.hop_limit)
    }
}

/// A shard that listens to routers, its link-local address in place.
fn listener() -> Lab {
    let mut l = Lab::with(|_, d| d.ipv6.accept_ra = true);
    l.pass(2500);
    l.take();
    l
}
const FAR: &str = "2001:db8:9::9";
const AUTO: &str = "2001:db8:1:0:0:ff:fe00:1";

fn via(l: &Lab, dst: &str) -> Option<IpAddr> {
    l.s.links().route(dst.parse().unwrap(), None, None, l.now).ok()?.via
}
fn route_mtu(l: &Lab, dst: &str) -> u32 {
    l.s.links().route(dst.parse().unwrap(), None, None, l.now).unwrap().path.mtu_bytes
}

#[test]
fn routers_are_asked_for_and_believed_only_when_wanted() {
    let mut l = Lab::with(|_, _| {});
    l.pass(100_000);
    let asks = |outs: &[Out]| outs.iter().filter(|o| matches!(o.nd(), Some(NdiscRepr::RouterSolicit { .. }))).count();
    assert_eq!(asks(&l.take()), 0);
    l.answer(Router { prefix: Some(prefix(600, 600)), ..Router::new() }.advert());
    l.pass(5000);
    assert_eq!((via(&l, FAR), addrs(&l).len()), (None, 1), "accept_ra is off");

    let mut l = Lab::with(|_, d| d.ipv6.accept_ra = true);
    l.pass(3000);
    let outs = l.take();
    assert_eq!(asks(&outs), 1, "when the link-local address is ours");
    let rs = outs.iter().find(|o| matches!(o.nd(), Some(NdiscRepr::RouterSolicit { .. }))).unwrap();
    assert_eq!((rs.eth.dst, rs.ip().unwrap().src), (group("ff02::2"), a(OWN_LL).into()));
    assert_eq!(rs.nd(), Some(NdiscRepr::RouterSolicit { lla: Some(OWN) }));
    // Ever more seldom, and not at all when a router was heard.
    l.pass(60_000);
    let n = asks(&l.take());
    assert!((3..=5).contains(&n), "{n} in a minute");
    l.pass(36_000_000);
    let n = asks(&l.take());
    assert!((12..=24).contains(&n), "{n} in ten hours");
    l.answer(Router::new().advert());
    l.pass(36_000_000);
    assert_eq!(asks(&l.take()), 0);
}

#[test]
fn a_router_gives_route_address_and_mtu() {
    let mut l = listener();
    l.answer(Router { prefix: Some(prefix(7200, 600)), mtu: Some(1400), ..Router::new() }.advert());
    assert_eq!(via(&l, FAR), Some(a("fe80::fe").into()));
    assert_eq!(l.neigh("fe80::fe").map(|n| (n.mac, n.router)), Some((Some(PEER), true)), "asked no more");
    l.pass(2100);
    assert!(addrs(&l).contains(&format!("{}/64", a(AUTO))), "{:?}", addrs(&l));
    let r = l.s.links().route(a(FAR).into(), None, None, l.now).unwrap();
    assert_eq!((r.src, r.path.mtu_bytes), (a(AUTO).into(), 1400));
    assert_eq!(via(&l, "2001:db8:1::7"), None, "on the link");
    l.take();
    let u = l.udp(true);
    l.send_to(u, &format!("[{FAR}]:9"), b"out");
    let outs = l.take();
    assert_eq!((outs.len(), outs[0].eth.dst), (1, PEER));
    // Advertised MTUs below the minimum or above the link's are not taken.
    for bad in [1279, MTU + 1, 0, u32::MAX] {
        l.answer(Router { mtu: Some(bad), ..Router::new() }.advert());
        assert_eq!(route_mtu(&l, FAR), 1400);
    }
    // A router that stops being one.
    l.answer(Router { lifetime_s: 0, ..Router::new() }.advert());
    assert_eq!(via(&l, FAR), None);
    assert!(l.s.links().route(a(FAR).into(), None, None, l.now).is_err());
}

#[test]
fn what_no_router_may_say_is_ignored() {
    let mut l = listener();
    l.answer(Router { hop_limit: 64, ..Router::new() }.advert());
    l.answer(Router { addr: "2001:db8:1::fe", ..Router::new() }.advert());
    assert_eq!((via(&l, FAR), l.s.neigh_stats().invalid), (None, 2));
    let p = prefix(600, 600);
    for bad in [
        PrefixInfo { preferred_s: 601, ..p },
        PrefixInfo { prefix_len: 129, ..p },
        PrefixInfo { prefix: a("fe80::"), ..p },
        PrefixInfo { prefix: a("ff0e::"), ..p },
        PrefixInfo { prefix_len: 63, on_link: false, ..p },
        PrefixInfo { autonomous: false, on_link: false, ..p },
    ] {
        l.answer(Router { prefix: Some(bad), ..Router::new() }.advert());
    }
    l.pass(3000);
    let count = |l: &Lab| l.s.links().routes().iter().count();
    assert_eq!((addrs(&l).len(), count(&l)), (1, 3), "the default route, fe80::/64, ff00::/8");
    // A liar can not make more of anything than there is room for.
    for n in 0..200u32 {
        let prefix = PrefixInfo { prefix: Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(n) << 64), ..p };
        l.answer(Router { prefix: Some(prefix), ..Router::new() }.advert());
        let evil: &'static str = Box::leak(format!("fe80::{:x}", 0x1000 + n).into_boxed_str());
        l.answer(Router { addr: evil, mac: EVIL, ..Router::new() }.advert());
    }
    l.pass(3000);
    assert_eq!(addrs(&l).len(), 17);
    assert!(count(&l) <= 3 + 16);
    assert_eq!(via(&l, FAR), Some(a("fe80::fe").into()), "who came first stays");
}

#[test]
fn addresses_are_deprecated_and_end() {
    let mut l = listener();
    let start = l.now;
    l.answer(Router { prefix: Some(prefix(3600, 600)), ..Router::new() }.advert());
    l.s.add_address_nodad(l.dev, c("2001:db8:5::1/64")).unwrap();
    l.pass(3000);
    let src = |l: &Lab| l.s.links().route(a("2001:db8:1::9").into(), None, None, l.now).unwrap().src;
    assert_eq!(src(&l), IpAddr::V6(a(AUTO)));
    l.pass(600_000);
    assert_eq!(src(&l), IpAddr::V6(a("2001:db8:5::1")), "deprecated: not for new flows");
    assert!(addrs(&l).contains(&format!("{}/64", a(AUTO))), "but still ours");
    // Preferred again by the next advertisement.
    l.answer(Router { prefix: Some(prefix(3600, 600)), ..Router::new() }.advert());
    assert_eq!(src(&l), IpAddr::V6(a(AUTO)));
    // Two hours: an advertisement can not end what has longer to live ...
    l.answer(Router { prefix: Some(prefix(86_400, 86_400)), ..Router::new() }.advert());
    l.answer(Router { prefix: Some(prefix(1, 1)), ..Router::new() }.advert());
    l.pass(7_100_000);
    assert!(addrs(&l).contains(&format!("{}/64", a(AUTO))));
    // ... nor shorten the last two hours, only lengthen them.
    l.answer(Router { prefix: Some(prefix(10, 10)), ..Router::new() }.advert());
    l.pass(50_000);
    assert!(addrs(&l).contains(&format!("{}/64", a(AUTO))));
    l.pass(60_000);
    assert!(!addrs(&l).contains(&format!("{}/64", a(AUTO))), "{:?}", l.now.since(start));
    // For ever.
    l.answer(Router { prefix: Some(prefix(INFINITE, INFINITE)), ..Router::new() }.advert());
    l.pass(1_000_000_000);
    assert!(addrs(&l).contains(&format!("{}/64", a(AUTO))));
    assert!(l.now > Instant::from_secs(1_000_000) + Duration::from_secs(1));
}

#[test]
fn the_best_router_has_the_route() {
    let mut l = listener();
    let second = Router { addr: "fe80::fd", mac: EVIL, ..Router::new() };
    l.answer(Router::new().advert());
    l.answer(second.advert());
    assert_eq!(via(&l, FAR), Some(a("fe80::fe").into()), "the first of equals");
    l.answer(Router { pref: RouterPref::High, ..Router { addr: "fe80::fd", mac: EVIL, ..Router::new() } }.advert());
    assert_eq!(via(&l, FAR), Some(a("fe80::fd").into()), "the preferred one");
    // It falls silent: found out when it is used.
    l.pass(100_000);
    l.take();
    let u = l.udp(true);
    l.send_to(u, &format!("[{FAR}]:9"), b"anybody?");
    l.pass(9000);
    assert_eq!(via(&l, FAR), Some(a("fe80::fe").into()));
    assert_eq!(solicits(&l.take()).len(), 3);
    // And comes back.
    l.answer(Router { pref: RouterPref::High, addr: "fe80::fd", mac: EVIL, ..Router::new() }.advert());
    assert_eq!(via(&l, FAR), Some(a("fe80::fd").into()), "it spoke again");
    let there = NdiscRepr::NeighborAdvert {
        router: true,
        solicited: true,
        replace: true,
        target: a("fe80::fd"),
        lla: Some(EVIL),
    };
    l.answer(nd(OWN, EVIL, "fe80::fd", OWN_LL, &there));
    assert_eq!(via(&l, FAR), Some(a("fe80::fd").into()));
    // It says that it is no router any more.
    let host = NdiscRepr::NeighborAdvert {
        router: false,
        solicited: true,
        replace: true,
        target: a("fe80::fd"),
        lla: Some(EVIL),
    };
    l.answer(nd(OWN, EVIL, "fe80::fd", OWN_LL, &host));
    assert_eq!(via(&l, FAR), Some(a("fe80::fe").into()));
    l.pass(1_800_000);
    assert_eq!(via(&l, FAR), None, "lifetimes end");
}

#[test]
fn routers_set_the_times_of_discovery() {
    let mut l = listener();
    l.s.add_address_nodad(l.dev, c("fd00::1/64")).unwrap();
    l.answer(Router { times_ms: [1000, 200], ..Router::new() }.advert());
    let u = l.udp(true);
    l.send_to(u, "[fd00::9]:9", b"x");
    l.take();
    l.pass(410);
    assert_eq!(solicits(&l.take()).len(), 2, "200 ms apart");
    let found = NdiscRepr::NeighborAdvert {
        router: false,
        solicited: true,
        replace: true,
        target: a("fd00::9"),
        lla: Some(PEER),
    };
    l.answer(nd(OWN, PEER, "fd00::9", "fd00::1", &found));
    l.pass(1600);
    assert_ne!(l.state("fd00::9").map(|s| s.name()), Some("Reachable"), "half to one and a half of a second");
}
