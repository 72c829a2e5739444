use std::net::IpAddr;
use std::vec;
use std::vec::Vec;

use linerate_base::{DropReason, Errno, Rng};
use linerate_wire::{Icmpv4Repr, Icmpv6Repr, IpRepr, QuotedPacket};

use super::*;
use crate::testing::{Dev, Host, ip, ip_packet, run, udp_packet};

fn v6(a: IpAddr) -> core::net::Ipv6Addr {
    to_mapped(a)
}

fn msg4(src: &str, dst: &str, m: &Icmpv4Repr<'_>) -> Vec<u8> {
    let mut b = vec![0; m.emit_len()];
    m.emit(&mut b);
    ip_packet(&ip(src, dst, proto::ICMP), &b)
}

fn msg6(src: &str, dst: &str, m: &Icmpv6Repr<'_>) -> Vec<u8> {
    let head = ip(src, dst, proto::ICMPV6);
    let mut b = vec![0; m.emit_len()];
    m.emit(&v6(head.src), &v6(head.dst), &mut b);
    ip_packet(&head, &b)
}

#[test]
fn echo_replies_are_the_request_turned_round() {
    let mut rng = Rng::new(1);
    for head_bytes in [28, 48, 64, 128] {
        let mut h = Host::numbered(1, Dev { head_bytes, ..Dev::plain() });
        for len in [0usize, 1, 2, 7, 8, 55, 56, 100, 1001, 1452] {
            let mut data = vec![0; len];
            rng.fill(&mut data);
            let (ident, seq) = (rng.next_u32() as u16, len as u16);
            let out = h.answer(&msg4("10.0.0.9", "10.0.0.1", &Icmpv4Repr::EchoRequest { ident, seq, data: &data }));
            let (r, hl) = IpRepr::parse(&out[0]).unwrap();
            assert_eq!((r.src, r.dst), ("10.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap()));
            let want = Icmpv4Repr::EchoReply { ident, seq, data: &data };
            assert_eq!(Icmpv4Repr::parse(&out[0][hl..]), Ok(want));
            for dst in ["fd00::1", "ff02::1"] {
                let out = h.answer(&msg6("fd00::9", dst, &Icmpv6Repr::EchoRequest { ident, seq, data: &data }));
                let (r, hl) = IpRepr::parse(&out[0]).unwrap();
                assert_eq!((r.src, r.dst), ("fd00::1".parse().unwrap(), "fd00::9".parse().unwrap()));
                let want = Icmpv6Repr::EchoReply { ident, seq, data: &data };
                assert_eq!(Icmpv6Repr::parse(&v6(r.src), &v6(r.dst), &out[0][hl..]), Ok(want));
            }
        }
        assert_eq!((h.core.mibs.icmp.in_echos, h.core.mibs.icmp.out_echo_reps), (30, 30));
        assert_eq!(h.core.mibs.drops.total(), 0);
        h.assert_home();
    }
}

#[test]
fn errors_quote_what_they_are_about() {
    let mut h = Host::new(1);
    for len in [0usize, 20, 100, 600, 1400] {
        let asked = udp_packet(&ip("10.0.0.9", "10.0.0.1", proto::UDP), 5, 9, &vec![3; len]);
        let out = h.answer(&asked);
        assert!(out[0].len() <= 576);
        let (_, hl) = IpRepr::parse(&out[0]).unwrap();
        let Ok(Icmpv4Repr::Unreachable { code: 3, quoted, .. }) = Icmpv4Repr::parse(&out[0][hl..]) else { panic!() };
        assert_eq!(quoted, &asked[..asked.len().min(548)]);
        let asked = udp_packet(&ip("fd00::9", "fd00::1", proto::UDP), 5, 9, &vec![3; len]);
        let out = h.answer(&asked);
        assert!(out[0].len() <= 1280);
        let (r, hl) = IpRepr::parse(&out[0]).unwrap();
        let Ok(Icmpv6Repr::Unreachable { code: 4, quoted }) = Icmpv6Repr::parse(&v6(r.src), &v6(r.dst), &out[0][hl..])
        else {
            panic!()
        };
        assert_eq!(quoted, &asked[..asked.len().min(1232)]);
        assert_eq!(QuotedPacket::parse(quoted).map(|q| q.dst_port()), Some(9));
    }
    h.assert_home();
}

#[test]
fn what_must_never_be_answered() {
    let mut h = Host::new(1);
    let quoted = udp_packet(&ip("10.0.0.1", "10.0.0.9", proto::UDP), 5, 9, b"");
    let unreachable = Icmpv4Repr::Unreachable { code: 3, mtu: 0, quoted: &quoted };
    let silent = [
        msg4("10.0.0.9", "10.0.0.1", &unreachable),
        msg4("10.0.0.9", "10.0.0.255", &Icmpv4Repr::EchoRequest { ident: 1, seq: 1, data: b"" }),
        msg4("10.0.0.9", "10.0.0.1", &Icmpv4Repr::EchoReply { ident: 1, seq: 1, data: b"" }),
        udp_packet(&ip("10.0.0.9", "10.0.0.255", proto::UDP), 5, 9, b"x"),
        udp_packet(&ip("10.0.0.9", "255.255.255.255", proto::UDP), 5, 9, b"x"),
        udp_packet(&ip("10.0.0.9", "224.0.0.1", proto::UDP), 5, 9, b"x"),
        udp_packet(&ip("224.0.0.5", "10.0.0.1", proto::UDP), 5, 9, b"x"),
        udp_packet(&ip("10.0.0.255", "10.0.0.1", proto::UDP), 5, 9, b"x"),
        udp_packet(&ip("0.0.0.0", "10.0.0.1", proto::UDP), 5, 9, b"x"),
        udp_packet(&ip("127.0.0.1", "10.0.0.1", proto::UDP), 5, 9, b"x"),
        udp_packet(&ip("10.0.0.9", "127.0.0.1", proto::UDP), 5, 9, b"x"),
        udp_packet(&ip("10.0.0.9", "10.0.0.77", proto::UDP), 5, 9, b"x"),
        ip_packet(&ip("10.0.0.9", "10.0.0.255", 99), b"unknown protocol"),
        udp_packet(&ip("fd00::9", "ff02::1", proto::UDP), 5, 9, b"x"),
        ip_packet(&ip("fd00::9", "fd00::1", proto::NO_NEXT_HEADER), b""),
        msg6("fd00::9", "fd00::1", &Icmpv6Repr::Unreachable { code: 4, quoted: b"nonsense" }),
        msg6("fd00::9", "fd00::1", &Icmpv6Repr::Other { ty: 3, code: 9, rest: [0; 4], data: b"" }),
        // An error behind an option that asks for an answer.
        ip_packet(&ip("fd00::9", "fd00::1", proto::DSTOPTS), &[58, 0, 0x81, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
    ];
    for (i, frame) in silent.iter().enumerate() {
        assert!(h.answer(frame).is_empty(), "case {i}");
    }
    let loud = [
        udp_packet(&ip("10.0.0.9", "10.0.0.1", proto::UDP), 5, 9, b"x"),
        ip_packet(&ip("10.0.0.9", "10.0.0.1", 99), b"unknown protocol"),
        ip_packet(&ip("fd00::9", "fd00::1", 99), b"unknown protocol"),
        ip_packet(&ip("fd00::9", "fd00::1", proto::DSTOPTS), &[59, 0, 0x81, 4, 0, 0, 0, 0]),
        ip_packet(&ip("fd00::9", "ff02::1", proto::DSTOPTS), &[59, 0, 0x81, 4, 0, 0, 0, 0]),
    ];
    for (i, frame) in loud.iter().enumerate() {
        assert_eq!(h.answer(frame).len(), 1, "case {i}");
    }
    h.assert_home();
}

#[test]
fn unknown_next_header_is_pointed_at() {
    let mut h = Host::new(1);
    for (chain, pointer) in [(&[99u8, 0, 1, 4, 0, 0, 0, 0][..], 40), (&[], 6)] {
        let next = if chain.is_empty() { 99 } else { proto::DSTOPTS };
        let out = h.answer(&ip_packet(&ip("fd00::9", "fd00::1", next), &[chain, b"payload"].concat()));
        let (r, hl) = IpRepr::parse(&out[0]).unwrap();
        let got = Icmpv6Repr::parse(&v6(r.src), &v6(r.dst), &out[0][hl..]);
        assert!(matches!(got, Ok(Icmpv6Repr::ParamProblem { code: 1, pointer: p, .. }) if p == pointer), "{got:?}");
    }
    assert_eq!((h.core.mibs.ip.in_unknown_protos, h.drops(DropReason::IpNoProto)), (2, 2));
}

#[test]
fn errors_for_tcp_come_up_translated() {
    let mut h = Host::new(1);
    let mut tcp = ip_packet(&ip("10.0.0.1", "10.0.0.9", proto::TCP), &[0x12, 0x34, 0, 80, 1, 2, 3, 4]);
    let cases = [
        (Icmpv4Repr::Unreachable { code: 1, mtu: 0, quoted: &tcp }, Errno::EHOSTUNREACH, false, 0),
        (Icmpv4Repr::Unreachable { code: 2, mtu: 0, quoted: &tcp }, Errno::ENOPROTOOPT, true, 0),
        (Icmpv4Repr::Unreachable { code: 4, mtu: 1400, quoted: &tcp }, Errno::EMSGSIZE, false, 1400),
        (Icmpv4Repr::TimeExceeded { code: 0, quoted: &tcp }, Errno::EHOSTUNREACH, false, 0),
        (Icmpv4Repr::ParamProblem { code: 0, pointer: 1, quoted: &tcp }, Errno::EPROTO, true, 0),
    ];
    for (m, errno, fatal, mtu_bytes) in cases {
        assert!(h.answer(&msg4("10.0.0.77", "10.0.0.1", &m)).is_empty());
        let up = h.icmp_up.pop().unwrap();
        assert_eq!((up.errno, up.fatal, up.mtu_bytes, up.seq.0), (errno, fatal, mtu_bytes, 0x0102_0304));
        assert_eq!(up.key.local(), "10.0.0.1:4660".parse().unwrap());
        assert_eq!(up.key.remote(), "10.0.0.9:80".parse().unwrap());
    }
    let tcp6 = ip_packet(&ip("fd00::1", "fd00::9", proto::TCP), &[0x12, 0x34, 0, 80, 1, 2, 3, 4]);
    h.answer(&msg6("fd00::77", "fd00::1", &Icmpv6Repr::PacketTooBig { mtu: 1300, quoted: &tcp6 }));
    let up = h.icmp_up.pop().unwrap();
    assert_eq!((up.errno, up.mtu_bytes, up.key.local_addr()), (Errno::EMSGSIZE, 1300, "fd00::1".parse().unwrap()));
    assert_eq!(h.core.links.routes().pmtu_entries(), 0, "TCP has not vouched for it");
    // Not ours, too short, or without an MTU: nobody is told.
    tcp[15] = 77;
    for m in [
        Icmpv4Repr::Unreachable { code: 1, mtu: 0, quoted: &tcp },
        Icmpv4Repr::Unreachable { code: 1, mtu: 0, quoted: &tcp[..27] },
        Icmpv4Repr::Unreachable { code: 4, mtu: 0, quoted: &tcp },
        Icmpv4Repr::Unreachable { code: 99, mtu: 0, quoted: &tcp },
    ] {
        h.answer(&msg4("10.0.0.77", "10.0.0.1", &m));
    }
    assert!(h.icmp_up.is_empty());
    assert_eq!((h.drops(DropReason::IcmpInvalid), h.core.mibs.icmp.in_errors), (4, 4));
    let mut bad = msg4("10.0.0.77", "10.0.0.1", &Icmpv4Repr::EchoRequest { ident: 1, seq: 2, data: b"x" });
    bad[28] ^= 4;
    assert!(h.answer(&bad).is_empty());
    assert_eq!((h.drops(DropReason::IcmpCsum), h.core.mibs.icmp.in_csum_errors), (1, 1));
    h.assert_home();
}

#[test]
fn echo_over_the_loopback_and_between_hosts() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    for m in [
        msg4("10.0.0.1", "10.0.0.2", &Icmpv4Repr::EchoRequest { ident: 1, seq: 1, data: b"ping" }),
        msg6("fd00::1", "fd00::2", &Icmpv6Repr::EchoRequest { ident: 1, seq: 1, data: b"ping" }),
    ] {
        b.rx.push(m);
    }
    run(&mut a, &mut b);
    assert_eq!((a.core.mibs.icmp.in_echo_reps, a.core.mibs.drops.total()), (2, 0));
    a.assert_home();
    b.assert_home();
}
