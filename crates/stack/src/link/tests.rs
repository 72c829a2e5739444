use std::vec::Vec;

use linerate_base::{Duration, Rng};

use super::*;
use crate::testing::{Dev, Host};

fn a(s: &str) -> IpAddr {
    s.parse().unwrap()
}
fn c(s: &str) -> Cidr {
    s.parse().unwrap()
}

#[test]
fn look_ups_agree_with_a_linear_scan() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut h = Host::new(1);
        let devs: Vec<IfIndex> = (0..4)
            .map(|i| {
                let d = h.core.links.add_device(DeviceConfig::new("x", 1500)).unwrap();
                // Half of them stay down.
                if i % 2 == 0 { h.dev } else { d }
            })
            .collect();
        let (mut list, now) = (Vec::new(), h.core.now);
        let random = |rng: &mut Rng, v4: bool| -> IpAddr {
            let r = rng.next_u64() & 0x8181_8181_8181_8181;
            if v4 {
                Ipv4Addr::from_bits(r as u32 & 0x3fff_ffff | 0x2000_0000).into()
            } else {
                Ipv6Addr::from_bits(0x2000 << 112 | u128::from(r) << 50).into()
            }
        };
        for _ in 0..300 {
            let v4 = rng.chance(0.5);
            let dst = Cidr::new(random(&mut rng, v4), rng.range(0, if v4 { 32 } else { 80 }) as u8).unwrap();
            let mut r = Route::new(dst, devs[rng.below(4) as usize]);
            r.metric = rng.below(3) as u32;
            r.mtu_bytes = 600 + rng.below(900) as u32;
            r.src = Some(random(&mut rng, v4));
            if h.core.links.add_route(r).is_ok() {
                list.push(r);
            }
            if rng.chance(0.3) {
                let r = list.swap_remove(rng.below(list.len() as u64) as usize);
                let same = |x: &Route| x.dst.network() == r.dst.network() && x.dst.prefix_len() == r.dst.prefix_len();
                let gone = h.core.links.del_route(r.dst, r.ifindex).unwrap();
                assert!(same(&gone));
                if gone != r {
                    let at = list.iter().position(|x| *x == gone).unwrap();
                    list[at] = r;
                }
            }
            let dst = random(&mut rng, v4);
            let up = |r: &&Route| r.dst.contains(dst) && r.ifindex == h.dev;
            let best = list.iter().filter(up).max_by_key(|r| (r.dst.prefix_len(), core::cmp::Reverse(r.metric)));
            let got = h.core.links.route(dst, None, None, now);
            assert_eq!(got.as_ref().ok().map(|i| i.path.mtu_bytes), best.map(|r| r.mtu_bytes), "{dst}");
            assert_eq!(got.ok().map(|i| i.src), best.and_then(|r| r.src));
        }
    }
}

#[test]
fn loopback_is_there_from_the_start() {
    let links = Links::new(&StackConfig::default());
    let now = Instant::ZERO;
    for (dst, src, mtu) in
        [("127.0.0.1", "127.0.0.1", 65_535), ("127.9.9.9", "127.9.9.9", 65_535), ("::1", "::1", 65_536)]
    {
        let r = links.route(a(dst), None, None, now).unwrap();
        assert_eq!((r.ifindex, r.src, r.path.mtu_bytes, r.path.tso), (LOOPBACK, a(src), mtu, true));
    }
    assert_eq!(links.route(a("10.0.0.1"), None, None, now).unwrap_err(), RouteError::NoRoute);
    assert_eq!(links.route(a("0.0.0.0"), None, None, now).unwrap_err(), RouteError::Family);
    assert_eq!(links.route(a("::1"), Some(a("127.0.0.1")), None, now).unwrap_err(), RouteError::Family);
}

#[test]
fn addresses_bring_routes_and_take_them_away() {
    let mut h =
        Host::with(StackConfig::default(), Dev::plain(), &["10.0.0.1/24", "10.0.0.5/24", "fe80::1/64", "fd00::1/64"]);
    let (l, now) = (&mut h.core.links, h.core.now);
    let src = |l: &Links, d: &str| l.route(a(d), None, None, now).map(|r| r.src);
    assert_eq!(src(l, "10.0.0.9"), Ok(a("10.0.0.1")));
    assert_eq!(src(l, "10.0.0.5"), Ok(a("10.0.0.5")), "local: the address itself");
    assert_eq!(src(l, "fd00::9"), Ok(a("fd00::1")));
    assert_eq!(src(l, "fe80::9"), Ok(a("fe80::1")));
    assert_eq!(src(l, "8.8.8.8"), Err(RouteError::NoRoute));
    let g = l.generation();
    l.add_route(Route::new(c("0.0.0.0/0"), h.dev).via(a("10.0.0.254"))).unwrap();
    l.add_route(Route::new(c("::/0"), h.dev).via(a("fe80::fe"))).unwrap();
    assert_ne!(l.generation(), g);
    assert_eq!(src(l, "8.8.8.8"), Ok(a("10.0.0.1")));
    assert_eq!(src(l, "2001:db8::1"), Ok(a("fd00::1")), "its scope reaches there, whatever the next hop");
    assert_eq!(l.add_route(Route::new(c("::/0"), h.dev)), Err(RouteChangeError::Exists));
    assert_eq!(l.add_route(Route::new(c("::/0"), h.dev).via(a("10.0.0.1"))), Err(RouteChangeError::Family));
    assert_eq!(l.add_route(Route::new(c("::/0"), IfIndex(9))), Err(RouteChangeError::NoDevice));
    l.del_address(h.dev, c("10.0.0.1/24")).unwrap();
    assert_eq!(src(l, "10.0.0.9"), Ok(a("10.0.0.5")), "the second address inherits the route");
    l.del_address(h.dev, c("10.0.0.5/24")).unwrap();
    assert_eq!(l.del_address(h.dev, c("10.0.0.5/24")), Err(AddrError::NotFound));
    assert_eq!(src(l, "10.0.0.9"), Err(RouteError::NoSource), "over the default route, from nowhere");
    for bad in ["224.0.0.1/4", "0.0.0.0/0", "::/0", "ff02::1/8", "10.1.1.255/24", "255.255.255.255/32"] {
        assert_eq!(l.add_address(h.dev, c(bad)), Err(AddrError::Invalid), "{bad}");
    }
    assert_eq!(l.add_address(IfIndex(7), c("10.1.1.1/24")), Err(AddrError::NoDevice));
    assert_eq!(l.add_address(h.dev, c("fd00::1/48")), Err(AddrError::Exists));
}

#[test]
fn route_metrics_reach_the_connection() {
    let mut h = Host::new(1);
    let mut r = Route::new(c("10.7.0.0/16"), h.dev);
    (r.mtu_bytes, r.mtu_lock, r.advmss_bytes) = (1400, true, 1200);
    (r.init_cwnd_segs, r.init_rwnd_segs, r.rto_min_us) = (30, 40, 5000);
    h.core.links.add_route(r).unwrap();
    let now = h.core.now;
    let p = h.core.links.route(a("10.7.1.1"), None, None, now).unwrap().path;
    assert_eq!((p.mtu_bytes, p.mtu_locked, p.advmss_bytes, p.ip_header_bytes), (1400, true, 1200, 20));
    assert_eq!((p.init_cwnd_segs, p.init_rwnd_segs, p.rto_min_us, p.tso), (30, 40, 5000, false));
    assert_eq!(h.core.links.update_pmtu(a("10.7.1.1"), 1000, now), None, "locked");
    assert_eq!(h.core.links.update_pmtu(a("10.0.0.7"), 1000, now), Some(1000));
    let mtu = |t| h.core.links.route(a("10.0.0.7"), None, None, t).unwrap().path.mtu_bytes;
    assert_eq!(
        (mtu(now), mtu(now + Duration::from_secs(599)), mtu(now + Duration::from_secs(600))),
        (1000, 1000, 1500)
    );
}

#[test]
fn kinds_of_addresses() {
    let h = Host::new(1);
    let l = &h.core.links;
    use AddrType::{Broadcast, Local, Multicast, Other};
    for (addr, on_dev, on_lo) in [
        ("10.0.0.1", Local, Local),
        ("10.0.0.255", Broadcast, Broadcast),
        ("255.255.255.255", Broadcast, Broadcast),
        ("10.0.0.2", Other, Other),
        ("127.0.0.1", Other, Local),
        ("::1", Other, Local),
        ("fd00::1", Local, Local),
        ("224.0.0.1", Multicast, Multicast),
        ("224.0.0.2", Other, Other),
        ("ff02::1", Multicast, Multicast),
        ("ff02::2", Other, Other),
    ] {
        assert_eq!((l.addr_type(a(addr), h.dev), l.addr_type(a(addr), LOOPBACK)), (on_dev, on_lo), "{addr}");
    }
}
