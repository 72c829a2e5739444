use std::vec;
use std::vec::Vec;

use linerate_base::{DropReason, Rng};
use linerate_wire::ip::proto;

use crate::testing::{Dev, Host, ip, ip_packet, udp_packet};

/// A TCP segment with its checksum.
fn tcp_packet(src: &str, dst: &str, data: &[u8]) -> Vec<u8> {
    let mut head = ip(src, dst, proto::TCP);
    let mut b = vec![0; 20];
    b[..4].copy_from_slice(&[0, 80, 0x12, 0x34]);
    (b[12], b[13]) = (0x50, 0x10);
    b.extend_from_slice(data);
    head.payload_len = b.len() as u32;
    let sum = linerate_wire::checksum::combine(head.pseudo_sum(), linerate_wire::checksum::sum(&b));
    b[16..18].copy_from_slice(&linerate_wire::checksum::finish(sum).to_be_bytes());
    ip_packet(&head, &b)
}

/// Valid packets of all kinds, from a stranger to us.
fn seeds() -> Vec<Vec<u8>> {
    let hop = |next: u8, inner: u8, rest: &[u8]| {
        ip_packet(&ip("fd00::9", "fd00::1", next), &[&[inner, 0, 1, 4, 0, 0, 0, 0], rest].concat())
    };
    let tcp6 = tcp_packet("fd00::9", "fd00::1", b"data");
    let mut out = vec![
        tcp_packet("10.0.0.9", "10.0.0.1", b"hello, world"),
        tcp6.clone(),
        hop(proto::HOPOPTS, proto::TCP, &tcp6[40..]),
        hop(proto::DSTOPTS, proto::DSTOPTS, &hop(proto::DSTOPTS, proto::TCP, &tcp6[40..])[40..]),
        // No segment left.
        ip_packet(
            &ip("fd00::9", "fd00::1", proto::ROUTING),
            &[&[proto::TCP, 0, 4, 0, 0, 0, 0, 0], &tcp6[40..]].concat(),
        ),
        hop(proto::FRAGMENT, proto::UDP, b"fragment"),
        udp_packet(&ip("10.0.0.9", "10.0.0.1", proto::UDP), 5, 6, &[7; 300]),
        udp_packet(&ip("fd00::9", "fd00::1", proto::UDP), 5, 6, b""),
        ip_packet(&ip("10.0.0.9", "10.0.0.1", proto::ICMP), &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]),
        ip_packet(&ip("10.0.0.9", "10.0.0.1", 99), b"who am I"),
    ];
    // With options.
    let mut opt = tcp_packet("10.0.0.9", "10.0.0.1", b"options");
    opt.splice(20..20, [1, 1, 1, 0]);
    opt[0] = 0x46;
    let len = (opt.len() as u16).to_be_bytes();
    opt[2..4].copy_from_slice(&len);
    linerate_wire::ipv4::fill_checksum(&mut opt);
    out.push(opt);
    out
}

#[test]
fn valid_packets_reach_their_transport() {
    for head_bytes in [1, 20, 40, 57, 64, 128] {
        let mut h = Host::numbered(1, Dev { head_bytes, ..Dev::plain() });
        for f in seeds() {
            h.answer(&f);
        }
        let data: Vec<&[u8]> = h.tcp.iter().map(|(_, b)| &b[20..]).collect();
        assert_eq!(data, [&b"hello, world"[..], b"data", b"data", b"data", b"data", b"options"], "head {head_bytes}");
        assert_eq!(h.core.mibs.udp.no_ports, 2);
        assert_eq!((h.core.mibs.ip.in_receives, h.core.mibs.ip.in_unknown_protos), (11, 1));
        assert_eq!(h.core.mibs.ip.in_delivers, 9);
        h.assert_home();
    }
}

#[test]
fn hostile_bytes_end_with_a_reason() {
    let seeds = seeds();
    for seed in 0..6u64 {
        let mut rng = Rng::new(seed);
        let head_bytes = rng.range(1, 128) as usize;
        let mut h = Host::numbered(1, Dev { head_bytes, any_ip: seed % 2 == 0, ..Dev::plain() });
        for _ in 0..4000 {
            let mut f = match rng.below(8) {
                0 => {
                    let mut f = vec![0; rng.below(200) as usize];
                    rng.fill(&mut f);
                    if let (Some(b), true) = (f.first_mut(), rng.chance(0.8)) {
                        *b = if rng.chance(0.5) { 0x45 } else { 0x60 };
                    }
                    f
                }
                _ => seeds[rng.below(seeds.len() as u64) as usize].clone(),
            };
            for _ in 0..rng.below(4) {
                if let Some(b) = f.get_mut(rng.below(80) as usize) {
                    *b = rng.next_u32() as u8;
                }
            }
            if rng.chance(0.2) {
                f.truncate(rng.below(f.len() as u64 + 1) as usize);
            }
            if rng.chance(0.2) {
                f.resize(f.len() + rng.below(40) as usize, 0);
            }
            if f.first().is_some_and(|b| b >> 4 == 4) && rng.chance(0.7) {
                linerate_wire::ipv4::fill_checksum(&mut f);
            }
            let before = h.core.mibs.drops.total();
            let icmp_before = h.core.mibs.icmp.in_msgs;
            let (waiting_before, fragments_before) = (h.core.frags.len(), h.core.mibs.ip.reasm_reqds);
            h.answer(&f);
            let died = h.core.mibs.drops.total() - before;
            // TCP ends as a drop in this host; an ICMP message may be used up without one.
            let icmp = h.core.mibs.icmp.in_msgs - icmp_before;
            // A fragment waits for others, and ends with them.
            let fragment = h.core.mibs.ip.reasm_reqds == fragments_before + 1;
            let with_others = fragment && h.core.frags.len() < waiting_before;
            let used_up = died == 0 && (icmp == 1 || fragment);
            assert!(died == 1 || used_up || with_others, "{died} drops: {f:02x?}");
        }
        assert_eq!(h.core.mibs.ip.in_receives, 4000);
        assert!(
            h.core.mibs.drops.iter().count() >= 8,
            "too few kinds: {:?}",
            h.core.mibs.drops.iter().collect::<Vec<_>>()
        );
        h.assert_home();
    }
}

#[test]
fn each_defect_has_its_reason_and_counter() {
    let mut h = Host::new(1);
    let good = tcp_packet("10.0.0.9", "10.0.0.1", b"x");
    let with = |edit: &dyn Fn(&mut Vec<u8>), sum: bool| {
        let mut f = good.clone();
        edit(&mut f);
        if sum {
            linerate_wire::ipv4::fill_checksum(&mut f);
        }
        f
    };
    let cases = [
        (with(&|f| f[10] ^= 1, false), DropReason::IpCsum),
        (with(&|f| f[3] = 10, true), DropReason::IpInHdr),
        (with(&|f| f[2..4].fill(0), true), DropReason::IpInHdr),
        (with(&|f| f[3] += 1, true), DropReason::PktTooSmall),
        (with(&|f| f[0] = 0x44, false), DropReason::IpInHdr),
        (with(&|f| f[0] = 0x55, false), DropReason::UnhandledProto),
        // A last fragment of no bytes.
        (with(&|f| (f[3], f[7]) = (20, 1), true), DropReason::IpFragment),
        (with(&|f| f[19] = 9, true), DropReason::IpInAddrErrors),
        (with(&|f| f[12] = 224, true), DropReason::IpInvalidSource),
        (with(&|f| f[15] = 1, true), DropReason::IpInvalidSource),
        (with(&|f| f[12] = 127, true), DropReason::IpInvalidSource),
        (with(&|f| f[16] = 127, true), DropReason::IpInAddrErrors),
        (with(&|f| f[40] ^= 1, true), DropReason::TcpCsum),
        (with(&|f| f[32] = 0x40, true), DropReason::TcpHdr),
        (with(&|f| f[32] = 0xf0, true), DropReason::PktTooSmall),
        (vec![], DropReason::PktTooSmall),
        (vec![0x45], DropReason::PktTooSmall),
    ];
    for (i, (f, reason)) in cases.iter().enumerate() {
        let before = h.drops(*reason);
        h.answer(f);
        assert_eq!(h.drops(*reason), before + 1, "case {i}: {:?}", h.core.mibs.drops.iter().collect::<Vec<_>>());
    }
    let m = &h.core.mibs.ip;
    assert_eq!((m.in_receives, m.in_csum_errors, m.in_hdr_errors, m.reasm_fails), (17, 1, 5, 1));
    assert_eq!((m.in_truncated_pkts, m.in_addr_errors, m.in_delivers), (3, 5, 0));
    assert_eq!((h.core.mibs.tcp.in_errs, h.core.mibs.tcp.in_csum_errors), (3, 1));
    assert_eq!(h.core.mibs.drops.total(), 17);
    h.assert_home();
}

#[test]
fn padding_is_trimmed() {
    let mut h = Host::new(1);
    for src in [("10.0.0.9", "10.0.0.1"), ("fd00::9", "fd00::1")] {
        let mut f = tcp_packet(src.0, src.1, b"abc");
        f.resize(f.len() + 23, 0xee);
        h.answer(&f);
        assert_eq!(h.tcp.pop().map(|(_, b)| b[20..].to_vec()), Some(b"abc".to_vec()));
    }
    assert_eq!(h.drops(DropReason::TcpCsum), 0);
}

#[test]
fn any_ip_takes_everything_that_a_flow_can_be_addressed_to() {
    let mut h = Host::numbered(1, Dev { any_ip: true, ..Dev::plain() });
    for dst in ["93.184.216.34", "192.168.7.7"] {
        h.answer(&tcp_packet("10.0.0.9", dst, b"x"));
        assert_eq!(h.tcp.pop().map(|(m, _)| m.dst), Some(dst.parse().unwrap()));
    }
    h.answer(&tcp_packet("fd00::9", "2001:db8::1", b"x"));
    assert_eq!(h.tcp.pop().map(|(m, _)| m.dst), Some("2001:db8::1".parse().unwrap()));
    for dst in ["127.0.0.1", "224.9.9.9", "0.0.0.0"] {
        h.answer(&tcp_packet("10.0.0.9", dst, b"x"));
    }
    assert!(h.tcp.is_empty());
    assert_eq!(h.drops(DropReason::IpInAddrErrors), 3);
}
