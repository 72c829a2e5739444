//! Memberships: reports when they change, answers when they are asked for, frames that they let in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_base::DropReason;
use linerate_stack::AddrError;
use linerate_wire::group::{self as wire, GroupRecord, RecordKind};
use linerate_wire::ip::proto;
use linerate_wire::{IpRepr, checksum};

use crate::lab::{Lab, OWN, Out, PEER, group, packet, ping};

const G4: &str = "239.1.2.3";
const G6: &str = "ff05::1234";

/// The records of the newest reports among frames, each checked for what routers demand of it.
fn reports(outs: &[Out]) -> Vec<(RecordKind, String)> {
    let mut all = Vec::new();
    for o in outs {
        let Some(ip) = o.ip() else { continue };
        let (v4, dst) = match ip.proto {
            proto::IGMP => (true, "224.0.0.22"),
            proto::ICMPV6 if o.body()[0] == 143 => (false, "ff02::16"),
            _ => continue,
        };
        assert_eq!((ip.hop_limit, ip.dst.to_string()), (1, dst.to_string()));
        if v4 {
            assert_eq!(o.payload[20..24], [0x94, 4, 0, 0], "router alert");
            assert!(checksum::is_valid(checksum::sum(o.body())));
        } else {
            assert_eq!(o.payload[40..48], [58, 0, 5, 2, 0, 0, 1, 0], "router alert");
        }
        all.extend(
            wire::parse_report(o.body(), v4).unwrap().map(|GroupRecord { kind, group }| (kind, group.to_string())),
        );
    }
    all
}
fn of(outs: &[Out], group: &str) -> Vec<RecordKind> {
    reports(outs).into_iter().filter(|r| r.1 == group).map(|r| r.0).collect()
}
/// A host with an address of each family; its own joins are over.
fn host() -> Lab {
    let mut l = Lab::v6();
    l.s.add_address(l.dev, "10.0.0.1/24".parse().unwrap()).unwrap();
    l.take();
    l
}
/// A query from the router, newest version, or of an older one by its length.
fn query(g: &str, code: u16, older: bool) -> Vec<u8> {
    let asked: IpAddr = g.parse().unwrap();
    let mut b = [0; 64];
    if asked.is_ipv4() {
        let dst: Ipv4Addr = if asked.is_unspecified() { "224.0.0.1".parse().unwrap() } else { g.parse().unwrap() };
        let n = wire::emit_query(asked, code, 0, &mut b);
        let n = if older { 8 } else { n };
        b[2..4].fill(0);
        let sum = checksum::finish(checksum::sum(&b[..n]));
        b[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut ip = IpRepr::new("10.0.0.254".parse().unwrap(), dst.into(), proto::IGMP, 0);
        ip.hop_limit = 1;
        return packet(group(&dst.to_string()), PEER, &ip, &b[..n]);
    }
    let src: Ipv6Addr = "fe80::fe".parse().unwrap();
    let dst: Ipv6Addr = if asked.is_unspecified() { "ff02::1".parse().unwrap() } else { g.parse().unwrap() };
    let n = wire::emit_query(asked, code, 0, &mut b);
    let n = if older { 24 } else { n };
    b[2..4].fill(0);
    let sum = checksum::combine(wire::mld_pseudo(&src, &dst, n), checksum::sum(&b[..n]));
    b[2..4].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    let mut ip = IpRepr::new(src.into(), dst.into(), proto::ICMPV6, 0);
    ip.hop_limit = 1;
    packet(group(&dst.to_string()), PEER, &ip, &b[..n])
}
#[test]
fn addresses_join_the_groups_that_they_are_asked_for_in() {
    let mut l = Lab::with(|_, _| {});
    l.pass(5000);
    let outs = l.take();
    // First from no address, again when there is one.
    let solicited = of(&outs, "ff02::1:ff00:1");
    assert!(solicited.len() >= 3 && solicited.iter().all(|k| *k == RecordKind::ChangeToExclude), "{solicited:?}");
    let sources: Vec<String> = outs.iter().filter_map(Out::ip).map(|ip| ip.src.to_string()).collect();
    assert!(sources.contains(&"::".into()) && sources.contains(&crate::lab::OWN_LL.into()));
    assert!(reports(&outs).iter().all(|r| r.1 != "ff02::1" && r.1 != "224.0.0.1"), "what all are in is not reported");
    // A second address of the same group is one more user of it.
    l.s.add_address_nodad(l.dev, "fd00::1/64".parse().unwrap()).unwrap();
    l.pass(2000);
    assert_eq!(reports(&l.take()), []);
    l.s.del_address(l.dev, "fd00::1/64".parse().unwrap()).unwrap();
    l.pass(2000);
    assert_eq!(reports(&l.take()), []);
    l.s.add_address_nodad(l.dev, "fd00::7:7/64".parse().unwrap()).unwrap();
    l.pass(2000);
    assert_eq!(of(&l.take(), "ff02::1:ff07:7"), [RecordKind::ChangeToExclude; 2]);
    l.s.del_address(l.dev, "fd00::7:7/64".parse().unwrap()).unwrap();
    l.pass(2000);
    assert_eq!(of(&l.take(), "ff02::1:ff07:7"), [RecordKind::ChangeToInclude; 2]);
}

#[test]
fn groups_are_joined_reported_and_left() {
    let mut l = host();
    for g in [G4, G6] {
        let addr = g.parse().unwrap();
        l.s.join_group(l.dev, addr).unwrap();
        assert_eq!(of(&l.take(), g), [RecordKind::ChangeToExclude], "{g}: at once");
        l.pass(1100);
        assert_eq!(of(&l.take(), g), [RecordKind::ChangeToExclude], "and once more");
        l.s.join_group(l.dev, addr).unwrap();
        l.s.leave_group(l.dev, addr).unwrap();
        l.pass(5000);
        assert_eq!(reports(&l.take()), [], "a second user is nobody's business");
        l.s.leave_group(l.dev, addr).unwrap();
        l.pass(5000);
        assert_eq!(of(&l.take(), g), [RecordKind::ChangeToInclude; 2]);
        assert_eq!(l.s.leave_group(l.dev, addr), Err(AddrError::NotFound));
        assert_eq!(l.s.join_group(linerate_stack::LOOPBACK, addr), Err(AddrError::NoDevice));
    }
    assert_eq!(l.s.join_group(l.dev, "10.0.0.5".parse().unwrap()), Err(AddrError::Invalid));
}

#[test]
fn only_members_hear() {
    let mut l = host();
    let at = format!("{G4}:7").parse().unwrap();
    let u = l.s.udp_bind("0.0.0.0:7".parse().unwrap(), Default::default()).unwrap();
    let datagram = || {
        let ip = IpRepr::new("10.0.0.2".parse().unwrap(), std::net::SocketAddr::ip(&at), proto::UDP, 0);
        packet(group(G4), PEER, &ip, &[0, 9, 0, 7, 0, 12, 0, 0, b'd', b'a', b't', b'a'])
    };
    let got = |l: &mut Lab| l.s.recv_from(u, &mut [0; 8], Default::default()).map(|r| r.len).ok();
    l.answer(datagram());
    assert_eq!((got(&mut l), l.drops(DropReason::OtherHost)), (None, 1));
    l.s.join_group(l.dev, G4.parse().unwrap()).unwrap();
    l.answer(datagram());
    assert_eq!(got(&mut l), Some(4));
    // The neighbouring group that shares its hardware address is another one.
    let shared = IpRepr::new("10.0.0.2".parse().unwrap(), "238.1.2.3".parse().unwrap(), proto::UDP, 0);
    l.answer(packet(group(G4), PEER, &shared, &[0, 9, 0, 7, 0, 8, 0, 0]));
    assert_eq!((got(&mut l), l.drops(DropReason::IpInAddrErrors)), (None, 1));
    l.s.leave_group(l.dev, G4.parse().unwrap()).unwrap();
    l.answer(datagram());
    assert_eq!(got(&mut l), None);
    assert!(!l.answer(ping(OWN, PEER, "10.0.0.2", "10.0.0.1")).is_empty());
}

#[test]
fn queries_are_answered_after_a_while() {
    let mut l = host();
    for g in [G4, G6] {
        l.s.join_group(l.dev, g.parse().unwrap()).unwrap();
    }
    l.pass(5000);
    l.take();
    for (all, one, own, code) in [("0.0.0.0", G4, 1, 20), ("::", G6, 2, 2000)] {
        // All groups: after up to two seconds, one message.
        assert_eq!(reports(&l.answer(query(all, code, false))), []);
        l.pass(2000);
        let outs = l.take();
        let got = reports(&outs);
        assert_eq!((outs.len(), got.len()), (1, own), "{got:?}");
        assert!(got.contains(&(RecordKind::ModeIsExclude, one.into())));
        // One group; one that we are not in.
        l.inject(query(one, code, false));
        l.pass(2000);
        assert_eq!(reports(&l.take()), [(RecordKind::ModeIsExclude, one.to_string())]);
        let other = if own == 1 { "239.9.9.9" } else { "ff05::9" };
        l.inject(query(other, code, false));
        l.pass(2000);
        assert_eq!(reports(&l.take()), []);
    }
}

#[test]
fn elders_are_answered_in_their_language() {
    let mut l = host();
    for g in [G4, G6] {
        l.s.join_group(l.dev, g.parse().unwrap()).unwrap();
    }
    l.pass(5000);
    l.take();
    l.inject(query("0.0.0.0", 20, true));
    l.inject(query("::", 2000, true));
    l.pass(2000);
    let outs = l.take();
    assert_eq!(reports(&outs.iter().filter(|o| o.body()[0] == 143).cloned().collect::<Vec<_>>()), []);
    let sent: Vec<(u8, String)> = outs.iter().map(|o| (o.body()[0], o.ip().unwrap().dst.to_string())).collect();
    assert!(sent.contains(&(0x16, G4.into())) && sent.contains(&(131, G6.into())), "{sent:?}");
    // A leave is told to the routers; after a while the new language is spoken again.
    l.s.leave_group(l.dev, G4.parse().unwrap()).unwrap();
    let outs = l.take();
    assert_eq!((outs[0].body()[0], outs[0].ip().unwrap().dst.to_string()), (0x17, "224.0.0.2".into()));
    l.pass(300_000);
    l.take();
    l.s.join_group(l.dev, G4.parse().unwrap()).unwrap();
    assert_eq!(of(&l.take(), G4), [RecordKind::ChangeToExclude]);
}
