//! Known packets, round trips and hostile bytes for everything but TCP.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use crate::ip::proto;
use crate::ipv6::{ExtChain, FragmentHeader};
use crate::pcapng::{Direction, InterfaceInfo, InterfaceStats, LinkType, PacketInfo, PcapngWriter};
use crate::virtio_net_hdr::VirtioParseError;
use crate::*;

const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// A UDP datagram's header, 192.168.0.1 to 192.168.0.199, with the checksum that its sender gave it.
const V4_HEADER: [u8; 20] =
    [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];

#[test]
fn checksums_of_known_bytes() {
    // The example of RFC 1071 section 3.
    assert_eq!(checksum::fold(checksum::sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    assert!(checksum::is_valid(checksum::sum(&V4_HEADER)));
    let mut h = V4_HEADER;
    h[10..12].fill(0);
    ipv4::fill_checksum(&mut h);
    assert_eq!(h, V4_HEADER);
    // A ttl that went down by one.
    h[8] -= 1;
    let patched = checksum::update16(0xb861, 0x4011, 0x3f11);
    h[10..12].copy_from_slice(&patched.to_be_bytes());
    assert!(checksum::is_valid(checksum::sum(&h)));
    // A long run of ones must not lose its carries.
    assert_eq!(checksum::fold(checksum::sum(&vec![0xff; 300_001])), 0xff00);
}

/// What is peeked at is what is parsed, wherever something is found; packets of another shape give nothing.
#[test]
fn a_peeked_flow_is_the_parsed_one() {
    let tcp = TcpRepr {
        src_port: 443,
        dst_port: 50_000,
        seq: linerate_base::Seq(1),
        ack: linerate_base::Seq(2),
        flags: TcpFlags::ACK,
        window: 1,
        urgent: 0,
        opts: TcpOptions::default(),
    };
    let v4 = |o| IpAddr::V4(Ipv4Addr::new(10, 0, 0, o));
    for (src, dst) in [(v4(1), v4(2)), (A6.into(), B6.into())] {
        let ip = IpRepr::new(src, dst, proto::TCP, 20);
        let mut bytes = vec![0; ip.header_len() + 20];
        ip.emit(&mut bytes);
        tcp.emit(&mut bytes[ip.header_len()..]);
        let want = flow::FlowKey::of_rx(&ip, 443, 50_000);
        assert_eq!(flow::FlowKey::peek_tcp(&bytes), Some(want));
        assert_eq!(want.as_v4_words().is_some(), src.is_ipv4());
        for cut in 0..ip.header_len() + 4 {
            assert_eq!(flow::FlowKey::peek_tcp(&bytes[..cut]), None, "{cut} bytes");
        }
        bytes[if src.is_ipv4() { 9 } else { 6 }] = proto::UDP;
        assert_eq!(flow::FlowKey::peek_tcp(&bytes), None);
    }
    assert_eq!(flow::FlowKey::peek_tcp(&[0x46; 64]), None, "IPv4 with options");
}

#[test]
fn icmp_echo_of_a_known_ping() {
    let mut b = vec![8, 0, 0x4d, 0x5a, 0, 1, 0, 1];
    b.extend_from_slice(b"abcdefghijklmnopqrstuvwabcdefghi");
    let r = Icmpv4Repr::parse(&b).unwrap();
    assert_eq!(r, Icmpv4Repr::EchoRequest { ident: 1, seq: 1, data: &b[8..] });
    let mut out = vec![0; r.emit_len()];
    r.emit(&mut out);
    assert_eq!(out, b);
    b[20] ^= 1;
    assert_eq!(Icmpv4Repr::parse(&b), Err(IcmpParseError::Checksum));
}

#[test]
fn ipv4_lengths_and_super_packets() {
    let mut pkt = V4_HEADER.to_vec();
    pkt.resize(0x73, 0);
    let (r, hl) = IpRepr::parse(&pkt).unwrap();
    assert_eq!((hl, r.payload_len, r.proto, r.hop_limit, r.dont_frag), (20, 0x73 - 20, proto::UDP, 64, true));
    assert_eq!(IpRepr::parse(&pkt[..0x72]), Err(IpParseError::Truncated));
    // A length of 0 is believed from a device that says GSO, and from nobody else.
    let big = IpRepr::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), proto::TCP, 180_000);
    let mut h = [0; 20];
    big.emit(&mut h);
    assert_eq!(h[2..4], [0, 0]);
    assert_eq!(IpRepr::parse_head(&h, 180_020, true), Ok((big, 20)));
    assert_eq!(IpRepr::parse_head(&h, 180_020, false), Err(IpParseError::Header));
    let frag = |word: u16| {
        let mut f = V4_HEADER;
        f[6..8].copy_from_slice(&word.to_be_bytes());
        ipv4::fill_checksum(&mut f);
        IpRepr::parse_head(&f, 0x73, false)
    };
    assert_eq!(frag(ipv4::MF), Err(IpParseError::Fragment));
    assert_eq!(frag(1), Err(IpParseError::Fragment));
}

#[test]
fn ipv6_jumbo_is_written_and_read() {
    let r = IpRepr::new(A6.into(), B6.into(), proto::TCP, 200_000);
    let mut b = [0; 48];
    assert!(r.emit_jumbo(&mut b));
    assert_eq!(b[40..48], [6, 0, 0xc2, 4, 0, 3, 0x0d, 0x48]);
    assert_eq!(IpRepr::parse_head(&b, 200_048, false), Ok((r, 48)));
    assert_eq!(IpRepr::parse_head(&b, 200_047, false), Err(IpParseError::Truncated));
    // A jumbo length that 16 bits could hold, and one beside a payload length.
    let mut small = b;
    small[45] = 0;
    assert_eq!(IpRepr::parse_head(&small, 200_048, false), Err(IpParseError::ParamProblem { code: 0, pointer: 44 }));
    b[5] = 8;
    assert_eq!(IpRepr::parse_head(&b, 200_048, false), Err(IpParseError::ParamProblem { code: 0, pointer: 42 }));
    // Without the header: GSO only.
    let mut h = [0; 40];
    r.emit(&mut h);
    assert_eq!(IpRepr::parse_head(&h, 200_040, true), Ok((r, 40)));
    assert!(!IpRepr { payload_len: 65535, ..r }.emit_jumbo(&mut [0; 48]));
}

fn v6_with(next: u8, rest: &[u8]) -> Vec<u8> {
    let r = IpRepr::new(A6.into(), B6.into(), next, rest.len() as u32);
    let mut b = vec![0; 40];
    r.emit(&mut b);
    b.extend_from_slice(rest);
    b
}

#[test]
fn ipv6_extension_headers() {
    let pad = [1, 4, 0, 0, 0, 0];
    let hdr = |next: u8| [&[next, 0][..], &pad].concat();
    let chain = [hdr(60), hdr(43), vec![44, 0, 0, 0, 0, 0, 0, 0], vec![17, 0, 0, 0, 1, 2, 3, 4], vec![9; 12]].concat();
    let pkt = v6_with(proto::HOPOPTS, &chain);
    let atomic = FragmentHeader { offset: 0, more: false, ident: 0x0102_0304 };
    assert_eq!(ipv6::walk(&pkt), Ok(ExtChain { proto: 17, len: 32, jumbo: None, fragment: Some(atomic) }));
    assert_eq!(IpRepr::parse(&pkt).map(|(r, hl)| (r.proto, r.payload_len, hl)), Ok((17, 12, 72)));
    let fragment = v6_with(proto::FRAGMENT, &[6, 0, 0, 9, 0, 0, 0, 1, 0, 0]);
    assert_eq!(IpRepr::parse(&fragment), Err(IpParseError::Fragment));
    let routed = v6_with(proto::ROUTING, &[6, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(ipv6::walk(&routed), Err(IpParseError::ParamProblem { code: 0, pointer: 42 }));
    let late_hbh = v6_with(proto::DSTOPTS, &[hdr(0), hdr(6)].concat());
    assert_eq!(ipv6::walk(&late_hbh), Err(IpParseError::ParamProblem { code: 1, pointer: 40 }));
    let unknown = |kind: u8| ipv6::walk(&v6_with(proto::DSTOPTS, &[6, 0, kind, 4, 0, 0, 0, 0])).map(|c| c.proto);
    assert_eq!(unknown(0x1e), Ok(6));
    assert_eq!(unknown(0x5e), Err(IpParseError::Header));
    assert_eq!(unknown(0x9e), Err(IpParseError::ParamProblem { code: 2, pointer: 42 }));
    assert_eq!(unknown(0xde), Err(IpParseError::ParamProblem { code: 2, pointer: 42 }));
    let endless = v6_with(proto::DSTOPTS, &hdr(60).repeat(20));
    assert_eq!(ipv6::walk(&endless), Err(IpParseError::Header));
    assert_eq!(ipv6::walk(&v6_with(proto::DSTOPTS, &[6, 1, 1, 4, 0, 0, 0, 0])), Err(IpParseError::Truncated));
    let mapped = IpRepr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), B6.into(), 6, 0);
    let mut b = [0; 40];
    mapped.emit(&mut b);
    assert_eq!(IpRepr::parse(&b), Err(IpParseError::MappedAddr));
}

#[test]
fn quoted_packets() {
    let tcp = TcpRepr { src_port: 80, dst_port: 4000, seq: linerate_base::Seq(7), ..TcpRepr::default() };
    let mut t = [0; 20];
    tcp.emit(&mut t);
    let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut q = vec![0; 20];
    IpRepr::new(a, b, proto::TCP, 1480).emit(&mut q);
    q.extend_from_slice(&t[..8]);
    let p = QuotedPacket::parse(&q).unwrap();
    assert_eq!((p.src, p.dst, p.src_port(), p.dst_port(), p.tcp_seq().0), (a, b, 80, 4000, 7));
    assert_eq!(QuotedPacket::parse(&q[..27]), None);
    let first = [&[6, 0, 0, 1, 0, 0, 0, 1][..], &t[..8]].concat();
    let v6 = v6_with(proto::FRAGMENT, &first);
    assert_eq!(QuotedPacket::parse(&v6).map(|p| (p.proto, p.dst_port())), Some((proto::TCP, 4000)));
    let later = [&[6, 0, 0, 8, 0, 0, 0, 1][..], &t[..8]].concat();
    assert_eq!(QuotedPacket::parse(&v6_with(proto::FRAGMENT, &later)), None);
    let msg = Icmpv4Repr::Unreachable { code: icmp::unreach::FRAG_NEEDED, mtu: 1400, quoted: &q };
    let mut out = vec![0; msg.emit_len()];
    msg.emit(&mut out);
    assert_eq!((Icmpv4Repr::parse(&out), &out[4..8]), (Ok(msg), &[0, 0, 5, 0x78][..]));
}

#[test]
fn udp_lengths() {
    let r = UdpRepr { src_port: 53, dst_port: 4000, payload_len: 5 };
    let mut b = [9; 16];
    r.emit(&mut b);
    assert_eq!(b[..8], [0, 53, 0x0f, 0xa0, 0, 13, 0, 0]);
    assert_eq!(UdpRepr::parse(&b, 16, false), Ok(r));
    assert_eq!(UdpView::new_checked(&b).unwrap().payload(), [9; 5]);
    assert_eq!(UdpRepr::parse(&b, 12, false), Err(UdpParseError::Truncated));
    b[5] = 7;
    assert_eq!(UdpRepr::parse(&b, 16, false), Err(UdpParseError::Length));
    let big = UdpRepr { payload_len: 100_000, ..r };
    big.emit(&mut b);
    assert_eq!(UdpRepr::parse(&b, 100_008, true), Ok(big));
    assert_eq!(UdpRepr::parse(&b, 100_008, false), Err(UdpParseError::Length));
    assert_eq!((udp::finish(0xffff), udp::finish(0)), (0xffff, 0xffff));
}

#[test]
fn flow_keys_and_prefixes() {
    let (l, r): (SocketAddr, SocketAddr) = ("10.0.0.1:80".parse().unwrap(), "10.0.0.2:4000".parse().unwrap());
    let k = FlowKey::new(l, r, proto::TCP);
    assert_eq!((k.local(), k.remote(), k.proto()), (l, r, proto::TCP));
    assert_eq!(k.as_words(), [0, 0xffff_0a00_0001, 0, 0xffff_0a00_0002, 80 << 48 | 4000 << 32 | 6]);
    assert_eq!((k.reversed(), k.reversed().reversed()), (FlowKey::new(r, l, proto::TCP), k));
    assert_eq!(FlowKey::of_rx(&IpRepr::new(r.ip(), l.ip(), proto::TCP, 0), 4000, 80), k);
    let c: Cidr = "10.1.2.3/20".parse().unwrap();
    assert_eq!(c.to_string(), "10.1.2.3/20");
    assert_eq!((c.network(), c.broadcast()), ([10, 1, 0, 0].into(), Some([10, 1, 15, 255].into())));
    assert!(c.contains([10, 1, 15, 9].into()) && !c.contains([10, 1, 16, 0].into()) && !c.contains(A6.into()));
    assert!("0.0.0.0/0".parse::<Cidr>().unwrap().contains([255; 4].into()));
    assert!("::/0".parse::<Cidr>().unwrap().contains(A6.into()));
    assert!("fd00::1".parse::<Cidr>().is_ok_and(|c| c.prefix_len() == 128 && !c.contains(B6.into())));
    for bad in ["10.0.0.1/33", "fd00::/129", "10.0.0.1/", "10.0.0.1/+8", "x/8", "", "/", "1.2.3.4/8/8"] {
        assert!(bad.parse::<Cidr>().is_err(), "{bad}");
    }
    for bad in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "ff02::1", "::", "::ffff:1.2.3.4"] {
        assert!(!flow::is_unicast_source(bad.parse().unwrap()), "{bad}");
    }
    assert!(flow::is_unicast_source(A6.into()) && flow::is_unicast_source([192, 0, 2, 1].into()));
}

#[test]
fn virtio_headers() {
    let h = VirtioNetHdr {
        csum: Some(PartialCsum { start: 20, offset: 16 }),
        gso: VirtioGso::TcpV4,
        ecn: true,
        hdr_len: 52,
        gso_size: 1448,
        num_buffers: 1,
        ..VirtioNetHdr::default()
    };
    let b = h.emit();
    assert_eq!(b, [1, 0x81, 52, 0, 0xa8, 5, 20, 0, 16, 0, 1, 0]);
    assert_eq!(VirtioNetHdr::parse(&b), Ok(h));
    assert!(h.fits(38) && !h.fits(37));
    assert_eq!(VirtioNetHdr::parse(&[0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Err(VirtioParseError::GsoType(2)));
    assert_eq!(VirtioNetHdr::parse(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Err(VirtioParseError::GsoSize));
    assert_eq!(VirtioNetHdr::parse(&b[..11]), Err(VirtioParseError::Truncated));
}

#[test]
fn pcapng_blocks_chain() {
    let mut w = PcapngWriter::new("linerate");
    let id = w.add_interface("tun0", LinkType::Raw);
    w.packet(id, 5_000_000_001, &[&V4_HEADER[..3], &V4_HEADER[3..]], 0x73, Some("why"));
    w.packet(id, 6, &[], 0, None);
    let b = w.take();
    let le = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
    let (mut at, mut types) = (0, vec![]);
    while at < b.len() {
        let len = le(at + 4) as usize;
        assert_eq!((len % 4, le(at + len - 4) as usize), (0, len));
        types.push(le(at));
        if le(at) == 6 && types.len() == 3 {
            assert_eq!((le(at + 12), le(at + 16), le(at + 20), le(at + 24)), (1, 705_032_705, 20, 0x73));
            assert_eq!(b[at + 28..at + 48], V4_HEADER);
            assert_eq!(b[at + 48..at + 56], [1, 0, 3, 0, b'w', b'h', b'y', 0]);
        }
        at += len;
    }
    assert_eq!(types, [0x0a0d_0d0a, 1, 6, 6]);
    assert!(w.as_bytes().is_empty());
    // Options, in the order in which they are written; each is padded to a multiple of 4.
    let info = InterfaceInfo { name: "tun0:rx", description: "d", snaplen: 96, filter: "tcp" };
    let id = w.describe_interface(LinkType::Ethernet, &info);
    let b = w.take();
    assert_eq!((b[8..12].to_vec(), b[12..16].to_vec()), (vec![1, 0, 0, 0], vec![96, 0, 0, 0]));
    let options = [
        &[2, 0, 7, 0][..],
        b"tun0:rx\0",
        &[3, 0, 1, 0],
        b"d\0\0\0",
        &[9, 0, 1, 0, 9, 0, 0, 0],
        &[11, 0, 4, 0, 0],
        b"tcp",
    ];
    assert_eq!(b[16..b.len() - 8], options.concat());
    let info = PacketInfo { comment: None, direction: Some(Direction::Outbound), queue: Some(3) };
    w.describe_packet(id, 0, &[&[1, 2, 3, 4]], 9, &info);
    let b = w.take();
    assert_eq!(b[32..b.len() - 4], [2, 0, 4, 0, 2, 0, 0, 0, 6, 0, 4, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    let stats = InterfaceStats { start_ns: 1 << 32, end_ns: 2, received: 3, accepted: 4, lost: 5, delivered: 6 };
    w.interface_stats(id, &stats);
    let b = w.take();
    assert_eq!(b[12..20], [0, 0, 0, 0, 2, 0, 0, 0], "the upper half first");
    let codes: Vec<u8> = (0..6).map(|n| b[20 + 12 * n]).collect();
    let values: Vec<u8> = (2..6).map(|n| b[24 + 12 * n]).collect();
    assert_eq!((codes, values), (vec![2, 3, 4, 6, 7, 8], vec![3, 4, 5, 6]));
    assert_eq!(b[24..32], [1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn ethernet_headers() {
    for vlan_tci in [None, Some(0x2064)] {
        let r = EthernetRepr { dst: MacAddr::BROADCAST, src: MacAddr([2, 0, 0, 0, 0, 1]), ethertype: 0x86dd, vlan_tci };
        let mut b = vec![0; r.header_len()];
        r.emit(&mut b);
        assert_eq!(EthernetRepr::parse(&b), Ok((r, b.len())));
        assert!(EthernetRepr::parse(&b[..b.len() - 1]).is_err());
    }
    assert_eq!(MacAddr([2, 0, 0, 0, 0, 0xab]).to_string(), "02:00:00:00:00:ab");
}

proptest! {
    #[test]
    fn ip_round_trips(v6 in any::<bool>(), (s, d) in any::<(u32, u32)>(), (proto, hop_limit, tos) in (4u8..40, any::<u8>(), any::<u8>()),
                      flow_label in 0u32..1 << 20, ident in any::<u16>(), df in any::<bool>(), payload_len in 0u32..65515) {
        let addr = |x: u32| if v6 { IpAddr::from(Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(x))) } else { Ipv4Addr::from_bits(x).into() };
        let mut r = IpRepr { hop_limit, tos, ..IpRepr::new(addr(s), addr(d), proto, payload_len) };
        if v6 { r.flow_label = flow_label } else { (r.ident, r.dont_frag) = (ident, df) }
        let mut b = vec![0xee; r.header_len()];
        r.emit(&mut b);
        let len = b.len();
        prop_assert_eq!(IpRepr::parse_head(&b, len as u32 + payload_len, false), Ok((r, len)));
    }

    #[test]
    fn icmpv6_round_trips(ty in any::<u8>(), code in any::<u8>(), rest in any::<[u8; 4]>(), data in proptest::collection::vec(any::<u8>(), 0..99)) {
        let r = Icmpv6Repr::Other { ty, code, rest, data: &data };
        let mut b = vec![0; r.emit_len()];
        r.emit(&A6, &B6, &mut b);
        let parsed = Icmpv6Repr::parse(&A6, &B6, &b).unwrap();
        // Known types become their variant and are written as the same value again.
        let mut again = vec![0; parsed.emit_len()];
        parsed.emit(&A6, &B6, &mut again);
        prop_assert_eq!(Icmpv6Repr::parse(&A6, &B6, &again), Ok(parsed));
        prop_assert_eq!(Icmpv6Repr::parse(&A6, &A6, &b).is_err(), true);
    }

    #[test]
    fn sums_compose(b in proptest::collection::vec(any::<u8>(), 2..200), cut in 0usize..100) {
        let cut = (cut * 2).min(b.len() & !1);
        let parts = checksum::combine(checksum::sum(&b[..cut]), checksum::sum(&b[cut..]));
        prop_assert_eq!(checksum::fold(parts), checksum::fold(checksum::sum(&b)));
    }

    #[test]
    fn hostile_bytes_never_panic(mut b in proptest::collection::vec(any::<u8>(), 0..200), first in any::<u8>(), next in 0u8..64, len in any::<u32>(), gso in any::<bool>()) {
        let nibble = if first & 1 == 0 { 0x40 } else { 0x60 };
        if let Some(x) = b.first_mut() { *x = nibble | (first >> 4) }
        if let Some(x) = b.get_mut(6) { *x = next }
        if nibble == 0x40 { ipv4::fill_checksum(&mut b) }
        if let Ok((r, hl)) = IpRepr::parse_head(&b, len, gso) {
            prop_assert!(hl <= b.len() && hl as u64 + u64::from(r.payload_len) <= u64::from(len));
        }
        if let Ok((r, hl)) = IpRepr::parse(&b) {
            prop_assert!(hl + r.payload_len as usize <= b.len());
        }
        if let Ok(c) = ipv6::walk(&b) { prop_assert!(40 + c.len <= b.len()) }
        if let Some(q) = QuotedPacket::parse(&b) { prop_assert!(q.transport.len() < b.len()) }
        if let Ok(r) = UdpRepr::parse(&b, len, gso) { prop_assert!(r.payload_len < len) }
        if let Ok(v) = UdpView::new_checked(&b) { prop_assert!(v.payload().len() <= b.len() - 8) }
        if b.len() >= 4 {
            b[2..4].fill(0);
            let c = checksum::finish(checksum::sum(&b));
            b[2..4].copy_from_slice(&c.to_be_bytes());
        }
        if let Ok(m) = Icmpv4Repr::parse(&b) { prop_assert_eq!(m.emit_len(), b.len()) }
        let _ = Icmpv6Repr::parse(&A6, &B6, &b);
        if let Ok(h) = VirtioNetHdr::parse(&b) { prop_assert_eq!(VirtioNetHdr::parse(&h.emit()), Ok(h)); let _ = h.fits(len); }
        if let Ok((r, hl)) = EthernetRepr::parse(&b) { prop_assert_eq!(r.header_len(), hl) }
    }
}
