//! Messages of the link layer: known bytes, round trips, hostile bytes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use crate::group::{self, GroupParseError, GroupQuery, GroupRecord, RecordKind};
use crate::ndisc::{self, NdParseError, PrefixInfo, RouterAdvert, RouterPref};
use crate::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const A6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 2);

#[test]
fn arp_of_known_bytes() {
    let b = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
    let r = ArpRepr::parse(&b).unwrap();
    let (spa, tpa) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let want =
        ArpRepr { op: ArpOp::Request, sender_mac: MAC, sender_ip: spa, target_mac: MacAddr::default(), target_ip: tpa };
    assert_eq!((r, r.is_gratuitous()), (want, false));
    for (at, bad) in [(1, 2), (2, 9), (4, 8), (5, 16), (7, 3), (6, 1)] {
        let mut c = b;
        c[at] = bad;
        assert_eq!(ArpRepr::parse(&c), Err(ArpParseError::Unsupported), "byte {at}");
    }
    for n in 0..28 {
        assert_eq!(ArpRepr::parse(&b[..n]), Err(ArpParseError::Truncated));
    }
    // A reply that names two stations announces nothing.
    let announce = ArpRepr { target_ip: spa, ..want };
    assert!(announce.is_gratuitous() && !ArpRepr { op: ArpOp::Reply, ..announce }.is_gratuitous());
}

#[test]
fn groups_have_their_link_addresses() {
    let of = |a: &str| MacAddr::of_group(a.parse().unwrap()).0;
    assert_eq!(of("224.0.0.1"), [1, 0, 0x5e, 0, 0, 1]);
    assert_eq!(of("239.129.2.3"), [1, 0, 0x5e, 1, 2, 3]);
    assert_eq!(of("255.255.255.255"), [0xff; 6]);
    assert_eq!(of("ff02::1:ff12:3456"), [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
}

#[test]
fn discovery_refuses_what_contradicts_itself() {
    let ns = NdiscRepr::NeighborSolicit { target: A6, lla: Some(MAC), nonce: Some([7; 6]) };
    let mut b = vec![0; ns.emit_len()];
    ns.emit(&A6, &B6, &mut b);
    assert_eq!((b.len(), NdiscRepr::parse(&b)), (40, Ok(ns)));
    assert!(matches!(Icmpv6Repr::parse(&A6, &B6, &b), Ok(Icmpv6Repr::Other { ty: 135, .. })), "its sum is right");
    let changed = |at: usize, v: u8| {
        let mut c = b.clone();
        c[at] = v;
        NdiscRepr::parse(&c).err()
    };
    assert_eq!(changed(1, 1), Some(NdParseError::Message), "code");
    assert_eq!(changed(8, 0xff), Some(NdParseError::Message), "a group as target");
    assert_eq!(changed(25, 0), Some(NdParseError::Options), "an option of no length");
    assert_eq!(changed(33, 2), Some(NdParseError::Options), "an option beyond the end");
    assert_eq!(changed(0, 137), Some(NdParseError::Type), "a redirect");
    assert_eq!(NdiscRepr::parse(&b[..23]), Err(NdParseError::Message));
    // An address option of a longer link is not an address here.
    let parsed = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &A6.octets(), &[1, 2], &[9; 14]].concat();
    assert_eq!(NdiscRepr::parse(&parsed), Ok(NdiscRepr::NeighborSolicit { target: A6, lla: None, nonce: None }));
}

#[test]
fn queries_of_all_versions() {
    let igmp = |mut b: Vec<u8>| {
        let sum = checksum::finish(checksum::sum(&b));
        b[2..4].copy_from_slice(&sum.to_be_bytes());
        b
    };
    let read = |b: &[u8]| GroupQuery::parse_igmp(b).map(|q| (q.version, q.max_resp_ms, q.interval_s));
    assert_eq!(read(&igmp(vec![0x11, 0, 0, 0, 0, 0, 0, 0])), Ok((1, 10_000, 0)));
    assert_eq!(read(&igmp(vec![0x11, 100, 0, 0, 0, 0, 0, 0])), Ok((2, 10_000, 0)));
    assert_eq!(read(&igmp(vec![0x11, 0x8f, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0])), Ok((3, 24_800, 125)));
    assert_eq!(read(&igmp(vec![0x11, 1, 0, 0, 0, 0, 0, 0, 0, 0])), Err(GroupParseError::Length));
    assert_eq!(read(&igmp(vec![0x11, 1, 0, 0, 10, 0, 0, 1])), Err(GroupParseError::Type));
    assert_eq!(read(&[0x11, 1, 0, 0, 0, 0, 0, 0]), Err(GroupParseError::Checksum));
    assert_eq!(read(&igmp(vec![0x11, 1, 0, 0, 224, 0, 0, 9, 2, 125, 0, 9])), Err(GroupParseError::Length));
    let mut b = [0; 64];
    let group = IpAddr::V6(B6);
    let n = group::emit_query(group, 0x8001, group::mld_pseudo(&A6, &B6, 28), &mut b);
    let q = GroupQuery::parse_mld(&b[..n]).unwrap();
    assert_eq!((q.version, q.group, q.max_resp_ms, q.robustness, q.interval_s), (2, group, 0x1001 << 3, 2, 125));
    assert_eq!(GroupQuery::parse_mld(&b[..24]).unwrap().version, 1);
    assert_eq!(GroupQuery::parse_mld(&b[..26]), Err(GroupParseError::Length));
    let n = group::emit_query(Ipv4Addr::UNSPECIFIED.into(), 100, 0, &mut b);
    assert_eq!(read(&b[..n]), Ok((3, 10_000, 125)));
}

#[test]
fn old_reports_name_one_group() {
    let mut b = [0; 24];
    group::emit_old(group::igmp::V2_REPORT, Ipv4Addr::new(239, 1, 2, 3).into(), 0, &mut b);
    assert!(b[..8].starts_with(&[0x16, 0]) && checksum::is_valid(checksum::sum(&b[..8])));
    group::emit_old(group::MLD_V1_REPORT, B6.into(), group::mld_pseudo(&A6, &B6, 24), &mut b);
    assert!(matches!(Icmpv6Repr::parse(&A6, &B6, &b), Ok(Icmpv6Repr::Other { ty: 131, .. })));
}

prop_compose! {
    fn prefix()(prefix_len in any::<u8>(), on_link in any::<bool>(), autonomous in any::<bool>(), valid_s in any::<u32>(),
        preferred_s in any::<u32>(), bits in any::<u128>()) -> PrefixInfo {
        PrefixInfo { prefix_len, on_link, autonomous, valid_s, preferred_s, prefix: Ipv6Addr::from_bits(bits) }
    }
}

fn record() -> impl Strategy<Value = (RecordKind, u32)> {
    let kinds = [
        RecordKind::ModeIsInclude,
        RecordKind::ModeIsExclude,
        RecordKind::ChangeToInclude,
        RecordKind::ChangeToExclude,
    ];
    (prop::sample::select(kinds.to_vec()), any::<u32>())
}

proptest! {
    #[test]
    fn arp_round_trip(reply in any::<bool>(), macs in any::<[[u8; 6]; 2]>(), ips in any::<[u32; 2]>(), pad in 0..20usize) {
        let op = if reply { ArpOp::Reply } else { ArpOp::Request };
        let [sender_mac, target_mac] = macs.map(MacAddr);
        let [sender_ip, target_ip] = ips.map(Ipv4Addr::from_bits);
        let r = ArpRepr { op, sender_mac, sender_ip, target_mac, target_ip };
        let mut b = vec![0; arp::LEN + pad];
        r.emit(&mut b);
        prop_assert_eq!(ArpRepr::parse(&b), Ok(r));
    }

    #[test]
    fn advertisements_round_trip(p in prefix(), mtu in any::<u32>(), servers in 1..4usize, times in any::<[u32; 2]>(),
        life in any::<u16>(), flags in any::<[bool; 2]>(), hop_limit in any::<u8>(), pref in 0..3usize, lla in any::<[u8; 6]>()) {
        let dns = [0x20; 64];
        let list = [
            NdOption::SourceLla(MacAddr(lla)), NdOption::Mtu(mtu), NdOption::Prefix(p),
            NdOption::Rdnss { lifetime_s: times[0], servers: &dns[..servers * 16] }, NdOption::Other { ty: 200, body: &dns[..14] },
        ];
        let mut bytes = vec![0; list.iter().map(NdOption::emit_len).sum()];
        let mut at = 0;
        for o in &list {
            o.emit(&mut bytes[at..]);
            at += o.emit_len();
        }
        let options = NdOptions::new_checked(&bytes).unwrap();
        prop_assert!(options.iter().eq(list));
        let pref = [RouterPref::Low, RouterPref::Medium, RouterPref::High][pref];
        let ra = RouterAdvert { hop_limit, managed: flags[0], other: flags[1], pref, lifetime_s: life, reachable_ms: times[0],
            retrans_ms: times[1], options };
        let repr = NdiscRepr::RouterAdvert(ra);
        let mut b = vec![0; repr.emit_len()];
        repr.emit(&A6, &B6, &mut b);
        prop_assert_eq!(NdiscRepr::parse(&b), Ok(repr));
        let sum_is_right = Icmpv6Repr::parse(&A6, &B6, &b).is_ok();
        prop_assert!(sum_is_right);
    }

    #[test]
    fn neighbour_messages_round_trip(flags in any::<[bool; 3]>(), bits in any::<u128>(), lla in any::<Option<[u8; 6]>>(),
        nonce in any::<Option<[u8; 6]>>()) {
        let target = Ipv6Addr::from_bits(bits & (u128::MAX >> 1));
        let lla = lla.map(MacAddr);
        let [router, solicited, replace] = flags;
        for r in [
            NdiscRepr::RouterSolicit { lla },
            NdiscRepr::NeighborSolicit { target, lla, nonce },
            NdiscRepr::NeighborAdvert { router, solicited, replace, target, lla },
        ] {
            let mut b = vec![0xaa; r.emit_len() + 3];
            r.emit(&A6, &B6, &mut b);
            prop_assert_eq!(NdiscRepr::parse(&b[..r.emit_len()]), Ok(r));
        }
    }

    #[test]
    fn reports_round_trip(records in prop::collection::vec(record(), 0..7), v4 in any::<bool>()) {
        let records: Vec<_> = records.into_iter().map(|(kind, n)| GroupRecord {
            kind,
            group: if v4 { Ipv4Addr::from_bits(n).into() } else { Ipv6Addr::from_bits(u128::from(n) | 0xff02 << 112).into() },
        }).collect();
        let mut b = vec![0; group::report_len(v4, records.len())];
        group::emit_report(&records, v4, 0, &mut b);
        let sum_is_right = checksum::is_valid(checksum::sum(&b));
        prop_assert!(sum_is_right);
        let read: Vec<_> = group::parse_report(&b, v4).unwrap().collect();
        prop_assert_eq!(read, records);
        let cut = b.len() - 1;
        prop_assert!(b.len() == 8 || group::parse_report(&b[..cut], v4).is_none());
    }

    #[test]
    fn hostile_bytes_are_survived(mut b in prop::collection::vec(any::<u8>(), 0..120), ty in 130..138u8, typed in any::<bool>()) {
        if typed && b.len() > 1 {
            b[0] = ty;
            b[1] = 0;
        }
        let _ = ArpRepr::parse(&b);
        let _ = GroupQuery::parse_igmp(&b);
        let _ = GroupQuery::parse_mld(&b);
        for v4 in [false, true] {
            prop_assert!(group::parse_report(&b, v4).map_or(0, Iterator::count) <= b.len());
        }
        if let Ok(r) = NdiscRepr::parse(&b) {
            let mut out = vec![0; r.emit_len()];
            r.emit(&A6, &B6, &mut out);
            prop_assert_eq!(NdiscRepr::parse(&out), Ok(r));
        }
        if let Ok(o) = ndisc::NdOptions::new_checked(&b) {
            prop_assert_eq!(o.iter().map(|o| o.emit_len()).sum::<usize>(), b.len());
        }
    }
}
