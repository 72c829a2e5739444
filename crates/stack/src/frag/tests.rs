use std::format;
use std::vec;
use std::vec::Vec;

use linerate_base::{DropReason, Duration, Rng};
use linerate_wire::ip::proto;
use linerate_wire::{icmp as v4, icmpv6 as v6};

use super::{HIGH_THRESH_BYTES, TIMEOUT_V4, TIMEOUT_V6};
use crate::sock::SockId;
use crate::testing::{Dev, Host, ip, ip_packet, run, udp_packet};
use crate::udp::{BindOpts, PmtuDisc, RecvFlags, SendOpts, UdpSendError};

const PORT: u16 = 7;

/// A piece of the IPv4 packet `whole`: payload bytes `[from, to)`.
fn piece4(whole: &[u8], from: usize, to: usize, more: bool) -> Vec<u8> {
    let mut f = [&whole[..20], &whole[20 + from..20 + to]].concat();
    let len = (f.len() as u16).to_be_bytes();
    f[2..4].copy_from_slice(&len);
    f[6..8].copy_from_slice(&((from / 8) as u16 | if more { 0x2000 } else { 0 }).to_be_bytes());
    linerate_wire::ipv4::fill_checksum(&mut f);
    f
}

/// A piece of the IPv6 packet `whole` (no extension headers), identification 77.
fn piece6(whole: &[u8], from: usize, to: usize, more: bool) -> Vec<u8> {
    let off = (from as u16 | u16::from(more)).to_be_bytes();
    let frag = [whole[6], 0, off[0], off[1], 0, 0, 0, 77];
    let mut f = [&whole[..40], &frag, &whole[40 + from..40 + to]].concat();
    f[6] = proto::FRAGMENT;
    let len = ((f.len() - 40) as u16).to_be_bytes();
    f[4..6].copy_from_slice(&len);
    f
}

fn is_v4(whole: &[u8]) -> bool {
    whole[0] >> 4 == 4
}

fn piece(whole: &[u8], from: usize, to: usize, more: bool) -> Vec<u8> {
    if is_v4(whole) { piece4(whole, from, to, more) } else { piece6(whole, from, to, more) }
}

/// All pieces of `whole`, `size` bytes of payload each.
fn pieces(whole: &[u8], size: usize) -> Vec<Vec<u8>> {
    let len = whole.len() - if is_v4(whole) { 20 } else { 40 };
    let cut = |from| piece(whole, from, len.min(from + size), from + size < len);
    (0..len).step_by(size).map(cut).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// A datagram to the host's port, of either family.
fn datagram(v4: bool, len: usize) -> Vec<u8> {
    let (src, dst) = if v4 { ("10.0.0.9", "10.0.0.1") } else { ("fd00::9", "fd00::1") };
    let mut head = ip(src, dst, proto::UDP);
    head.dont_frag = false;
    udp_packet(&head, 5, PORT, &pattern(len))
}

/// A host that listens on [`PORT`].
fn host(dev: Dev) -> (Host, SockId) {
    let mut h = Host::numbered(1, dev);
    let id = h.udp.socket(&h.core, true);
    h.udp.bind(&mut h.core, id, format!("[::]:{PORT}").parse().unwrap(), BindOpts::default()).unwrap();
    h.udp.opts_mut(id).unwrap().rcvbuf_bytes = 1 << 24;
    (h, id)
}

fn read(h: &mut Host, id: SockId) -> Option<Vec<u8>> {
    let mut buf = vec![0; 70_000];
    let got = h.udp.recv_from(&mut h.core, id, &mut buf, RecvFlags::default()).ok()?;
    buf.truncate(got.len);
    Some(buf)
}

#[test]
fn any_order_any_size_any_split_gives_the_datagram() {
    for (seed, head_bytes) in [1, 20, 40, 57, 64, 128].into_iter().enumerate() {
        let mut rng = Rng::new(seed as u64);
        let (mut h, id) = host(Dev { head_bytes, ..Dev::plain() });
        for case in 0..60 {
            let len = rng.range(9, 20_000) as usize;
            let whole = datagram(case % 2 == 0, len);
            let size = 8 * rng.range(3, 180) as usize;
            let mut parts = pieces(&whole, size);
            match case % 3 {
                0 => {}
                1 => parts.reverse(),
                _ => (1..parts.len()).rev().for_each(|i| parts.swap(i, rng.below(i as u64 + 1) as usize)),
            }
            for (i, part) in parts.iter().enumerate() {
                assert_eq!(read(&mut h, id), None, "{i} of {}", parts.len());
                h.rx.push(part.clone());
                h.turn();
            }
            assert_eq!(read(&mut h, id), Some(pattern(len)), "case {case}, {len} bytes by {size}, head {head_bytes}");
        }
        let m = &h.core.mibs;
        let split = m.ip.reasm_oks;
        assert!(split > 50 && m.ip.reasm_fails == 0 && m.drops.total() == 0, "{split} put together");
        h.assert_home();
    }
}

#[test]
fn the_longest_datagrams_in_the_smallest_pieces() {
    for (v4, len, size) in [(true, 65_507, 1480), (false, 65_527, 1440), (true, 9000, 8), (false, 6000, 8)] {
        // Pages that hold a piece each, as charged, would be more than the limit allows for the smallest.
        let (mut h, id) = host(Dev { head_bytes: 128, ..Dev::plain() });
        let parts = pieces(&datagram(v4, len), size);
        // IPv6's first piece has to hold all headers.
        for part in &parts {
            h.rx.push(part.clone());
            h.turn();
        }
        assert_eq!(read(&mut h, id), Some(pattern(len)), "{len} by {size}");
        h.assert_home();
    }
}

#[test]
fn pieces_are_moved_not_copied() {
    // Heads hold headers alone: nothing is copied, and neighbours share an skb.
    let (mut h, id) = host(Dev { head_bytes: 20, ..Dev::plain() });
    for part in pieces(&datagram(true, 30_000), 1480) {
        h.rx.push(part);
    }
    h.turn();
    assert_eq!(h.core.mem.tx_pool.inflight(), 0, "no page of ours was needed");
    assert_eq!(read(&mut h, id), Some(pattern(30_000)));
    h.assert_home();
}

#[test]
fn a_wrong_checksum_is_found_in_the_whole() {
    for v4 in [true, false] {
        let (mut h, id) = host(Dev::plain());
        let mut whole = datagram(v4, 5000);
        *whole.last_mut().unwrap() ^= 1;
        pieces(&whole, 1024).into_iter().for_each(|p| h.rx.push(p));
        h.turn();
        assert_eq!(read(&mut h, id), None);
        assert_eq!((h.drops(DropReason::UdpCsum), h.core.mibs.ip.reasm_oks), (1, 1));
        h.assert_home();
    }
}

#[test]
fn duplicates_die_alone_and_contradictions_end_the_packet() {
    for v4 in [true, false] {
        let whole = datagram(v4, 3000);
        let p = |from, to, more| piece(&whole, from, to, more);
        let whole_len = 3008;
        // What comes before the last fragment, the reason, and how many die of it.
        let cases: [(Vec<Vec<u8>>, DropReason, u64); 7] = [
            (vec![p(0, 1024, true), p(0, 1024, true)], DropReason::IpDupFrag, 1),
            (vec![p(0, 1024, true), p(512, 768, true)], DropReason::IpDupFrag, 1),
            (vec![p(0, 1024, true), p(512, 1536, true)], DropReason::IpFragOverlap, 2),
            (vec![p(1024, 2048, true), p(512, 2560, true)], DropReason::IpFragOverlap, 2),
            (vec![p(2048, whole_len, false), p(1024, 2048, false)], DropReason::IpFragment, 2),
            (vec![p(1024, 2048, false), p(2048, 3008, true)], DropReason::IpFragment, 2),
            (vec![p(1024, 1024, true)], DropReason::IpFragment, 1),
        ];
        for (i, (parts, reason, dead)) in cases.into_iter().enumerate() {
            let (mut h, id) = host(Dev::plain());
            parts.into_iter().for_each(|f| h.rx.push(f));
            h.turn();
            let drops: Vec<_> = h.core.mibs.drops.iter().collect();
            assert_eq!(h.drops(reason), dead, "case {i}, v4 {v4}: {drops:?}");
            let survives = reason == DropReason::IpDupFrag;
            assert_eq!(h.core.frags.len(), usize::from(survives), "case {i}");
            // The rest of the packet completes it only where nobody lied.
            h.rx.push(p(1024, 2048, true));
            h.rx.push(p(2048, whole_len, false));
            h.turn();
            assert_eq!(read(&mut h, id).is_some(), survives, "case {i}");
            let overlaps = u64::from(reason == DropReason::IpFragOverlap);
            assert_eq!(h.core.mibs.ip.reasm_overlaps, overlaps, "case {i}");
            h.assert_home();
        }
    }
}

/// The type and code of an ICMP message in an IP packet.
fn icmp_kind(packet: &[u8]) -> (u8, u8) {
    let at = if is_v4(packet) { 20 } else { 40 };
    (packet[at], packet[at + 1])
}

#[test]
fn time_exceeded_is_sent_when_the_beginning_is_there() {
    for (is4, timeout, kind) in
        [(true, TIMEOUT_V4, (v4::ty::TIME_EXCEEDED, 1)), (false, TIMEOUT_V6, (v6::ty::TIME_EXCEEDED, 1))]
    {
        for (from, answered) in [(0, true), (1024, false)] {
            let (mut h, _) = host(Dev::plain());
            let whole = datagram(is4, 3000);
            let first = piece(&whole, from, from + 1024, true);
            assert!(h.answer(&first).is_empty());
            assert_eq!(h.core.frags.next_deadline(), Some(h.core.now + timeout));
            // More fragments do not give it more time.
            h.sleep(timeout - Duration::from_millis(1));
            assert!(h.answer(&piece(&whole, 2048, 3008, false)).is_empty());
            assert_eq!(h.core.frags.len(), 1);
            h.sleep(Duration::from_millis(1));
            h.turn();
            let out = h.tx.take();
            assert_eq!(out.len(), usize::from(answered));
            if let Some(e) = out.first() {
                assert_eq!(icmp_kind(e), kind);
                let quote = if is4 { &e[28..] } else { &e[48..] };
                let n = quote.len().min(first.len());
                assert!(n > 60 && quote[..n] == first[..n], "the first fragment is quoted as it came");
            }
            let m = &h.core.mibs;
            assert_eq!((m.ip.reasm_timeout, m.ip.reasm_fails, m.ip.reasm_reqds), (1, 1, 2));
            assert_eq!((h.drops(DropReason::FragReasmTimeout), m.icmp.out_time_excds), (2, u64::from(answered)));
            assert_eq!(h.core.frags.next_deadline(), None);
            h.assert_home();
        }
    }
}

#[test]
fn packets_longer_than_packets_can_be_are_refused() {
    // The last fragment ends beyond 65,535 bytes: the "ping of death".
    let (mut h, _) = host(Dev::plain());
    let whole = ip_packet(&ip("10.0.0.9", "10.0.0.1", proto::ICMP), &vec![8; 1480]);
    let at = |offset: usize, more: bool| {
        let mut f = piece4(&whole, 0, 1480, more);
        f[6..8].copy_from_slice(&((offset / 8) as u16 | if more { 0x2000 } else { 0 }).to_be_bytes());
        linerate_wire::ipv4::fill_checksum(&mut f);
        f
    };
    (0..45).for_each(|i| h.rx.push(at(i * 1480, i < 44)));
    h.turn();
    assert_eq!((h.drops(DropReason::PktTooBig), h.core.mibs.ip.reasm_fails), (45, 1));
    h.assert_home();
    // IPv6 says so at once, and tells the sender where.
    let (mut h, _) = host(Dev::plain());
    let whole = ip_packet(&ip("fd00::9", "fd00::1", proto::UDP), &vec![8; 1440]);
    let mut f = piece6(&whole, 0, 1440, false);
    f[42..44].copy_from_slice(&65_528u16.to_be_bytes());
    let out = h.answer(&f);
    assert_eq!(out.iter().map(|e| icmp_kind(e)).collect::<Vec<_>>(), [(v6::ty::PARAM_PROBLEM, 0)]);
    assert_eq!(out[0][44..48], 42u32.to_be_bytes());
    // So is a piece that is not a multiple of 8 and not the last.
    let out = h.answer(&piece6(&whole, 0, 1001, true));
    assert_eq!((icmp_kind(&out[0]), &out[0][44..48]), ((v6::ty::PARAM_PROBLEM, 0), &4u32.to_be_bytes()[..]));
    assert_eq!((h.drops(DropReason::IpFragment), h.core.mibs.ip.in_hdr_errors), (2, 2));
    h.assert_home();
}

#[test]
fn an_odd_piece_of_ipv4_is_cut_to_a_multiple_of_eight() {
    let (mut h, id) = host(Dev::plain());
    let whole = datagram(true, 2000);
    h.rx.push(piece4(&whole, 0, 1027, true));
    h.rx.push(piece4(&whole, 1024, 2008, false));
    h.turn();
    assert_eq!(read(&mut h, id), Some(pattern(2000)));
    h.assert_home();
}

#[test]
fn ecn_of_the_whole_is_that_of_its_pieces() {
    for is4 in [true, false] {
        for (a, b, want) in
            [(2, 2, Some(2)), (2, 3, Some(3)), (3, 1, Some(3)), (0, 0, Some(0)), (0, 3, None), (2, 0, None)]
        {
            let (mut h, id) = host(Dev::plain());
            let whole = datagram(is4, 2000);
            for (from, to, more, ecn) in [(0, 1024, true, a), (1024, 2008, false, b)] {
                let mut f = piece(&whole, from, to, more);
                if is4 {
                    f[1] |= ecn;
                    linerate_wire::ipv4::fill_checksum(&mut f);
                } else {
                    f[1] |= ecn << 4;
                }
                h.rx.push(f);
            }
            h.turn();
            let mut buf = vec![0; 3000];
            let got = h.udp.recv_from(&mut h.core, id, &mut buf, RecvFlags::default()).ok().map(|r| r.ecn);
            assert_eq!(got, want, "{a} and {b}");
            assert_eq!(h.drops(DropReason::IpFragEcn), if want.is_none() { 2 } else { 0 });
            h.assert_home();
        }
    }
}

#[test]
fn a_flood_of_first_fragments_stays_within_the_limit() {
    let (mut h, id) = host(Dev::plain());
    let good = datagram(true, 3000);
    h.answer(&piece4(&good, 0, 1024, true));
    let mut rng = Rng::new(1);
    for i in 0..20_000u32 {
        let mut f = piece4(&datagram(true, 100), 0, 64, true);
        f[4..6].copy_from_slice(&(i as u16).to_be_bytes());
        f[12..16].copy_from_slice(&(0x0b00_0000 | rng.next_u32() >> 8).to_be_bytes());
        linerate_wire::ipv4::fill_checksum(&mut f);
        h.rx.push(f);
        if i % 200 == 0 {
            h.turn();
            assert!(h.core.frags.mem_bytes() < HIGH_THRESH_BYTES + 8192, "{} bytes", h.core.frags.mem_bytes());
        }
    }
    h.turn();
    assert!(h.drops(DropReason::IpFragMem) > 10_000);
    // Who was in before is not hurt by the flood.
    h.answer(&piece4(&good, 1024, 2048, true));
    h.answer(&piece4(&good, 2048, 3008, false));
    assert_eq!(read(&mut h, id), Some(pattern(3000)));
    // After the timeout there is room again, and no more than a few messages were sent about it.
    h.sleep(TIMEOUT_V4);
    h.turn();
    assert!(h.core.frags.is_empty() && h.tx.take().len() <= 51);
    pieces(&good, 1024).into_iter().for_each(|p| h.rx.push(p));
    h.turn();
    assert_eq!(read(&mut h, id), Some(pattern(3000)));
    h.assert_home();
}

#[test]
fn deadlines_of_finished_packets_do_not_pile_up() {
    let (mut h, id) = host(Dev::plain());
    for i in 0..2000u16 {
        let mut whole = datagram(true, 1000);
        whole[4..6].copy_from_slice(&i.to_be_bytes());
        pieces(&whole, 512).into_iter().for_each(|p| h.rx.push(p));
        h.turn();
        assert!(read(&mut h, id).is_some());
    }
    assert!(h.core.frags.due[0].len() < 80, "{} deadlines", h.core.frags.due[0].len());
    h.assert_home();
}

#[test]
fn ipv6_atomic_fragments_stand_alone() {
    let (mut h, id) = host(Dev::plain());
    let whole = datagram(false, 900);
    // A queue with the same identification waits meanwhile (RFC 6946 section 4).
    h.answer(&piece6(&datagram(false, 3000), 1024, 2048, true));
    h.answer(&piece6(&whole, 0, 908, false));
    assert_eq!(read(&mut h, id), Some(pattern(900)));
    assert_eq!(h.core.frags.len(), 1);
    h.assert_home();
}

#[test]
fn ipv6_headers_before_and_behind_the_fragment_header() {
    // Hop-by-hop in each piece, destination options in the first alone.
    let (mut h, id) = host(Dev { head_bytes: 96, ..Dev::plain() });
    let inner = datagram(false, 2000);
    let with_dst = [&inner[..40], &[proto::UDP, 0, 1, 4, 0, 0, 0, 0], &inner[40..]].concat();
    let mut whole = with_dst.clone();
    whole[6] = proto::DSTOPTS;
    for p in pieces(&whole, 1024) {
        let mut f = [&p[..40], &[proto::FRAGMENT, 0, 1, 4, 0, 0, 0, 0], &p[40..]].concat();
        f[6] = proto::HOPOPTS;
        let len = ((f.len() - 40) as u16).to_be_bytes();
        f[4..6].copy_from_slice(&len);
        h.rx.push(f);
    }
    h.turn();
    assert_eq!(read(&mut h, id), Some(pattern(2000)));
    // RFC 7112: the first fragment holds all headers, or the sender hears of it.
    let out = h.answer(&piece6(&whole, 0, 8, true));
    assert_eq!(out.iter().map(|e| icmp_kind(e)).collect::<Vec<_>>(), [(v6::ty::PARAM_PROBLEM, 3)]);
    // A fragment of fragments ends with a reason.
    let nested =
        ip_packet(&ip("fd00::9", "fd00::1", proto::FRAGMENT), &[&[17, 0, 0, 1, 0, 0, 0, 9][..], &[0; 1024]].concat());
    pieces(&nested, 512).into_iter().for_each(|p| h.rx.push(p));
    h.turn();
    assert_eq!((h.core.mibs.ip.reasm_oks, h.drops(DropReason::IpFragment)), (2, 2));
    h.assert_home();
}

#[test]
fn fragments_from_who_may_not_send_or_to_others_are_not_kept() {
    let (mut h, _) = host(Dev::plain());
    let part = piece4(&datagram(true, 3000), 0, 1024, true);
    for (at, bytes, reason) in [
        (16, [10, 0, 0, 77], DropReason::IpInAddrErrors),
        (12, [224, 0, 0, 5], DropReason::IpInvalidSource),
        (12, [10, 0, 0, 1], DropReason::IpInvalidSource),
    ] {
        let mut f = part.clone();
        f[at..at + 4].copy_from_slice(&bytes);
        linerate_wire::ipv4::fill_checksum(&mut f);
        let before = h.drops(reason);
        h.answer(&f);
        assert_eq!((h.drops(reason), h.core.frags.len()), (before + 1, 0));
    }
    h.assert_home();
}

#[test]
fn random_pieces_never_hurt() {
    for seed in 0..8u64 {
        let mut rng = Rng::new(seed);
        let (mut h, id) = host(Dev { head_bytes: rng.range(1, 128) as usize, ..Dev::plain() });
        let wholes = [datagram(true, 4000), datagram(false, 4000)];
        for _ in 0..3000 {
            let whole = &wholes[rng.below(2) as usize];
            let from = 8 * rng.below(500) as usize;
            let to = (from + 8 * rng.below(200) as usize + if rng.chance(0.2) { 3 } else { 0 }).min(4008);
            let mut f = piece(whole, from, to.max(from), rng.chance(0.8));
            if rng.chance(0.3) {
                let at = rng.below(f.len().min(64) as u64) as usize;
                f[at] = rng.next_u32() as u8;
                if is_v4(&f) && f.len() >= 20 && f[0] == 0x45 {
                    linerate_wire::ipv4::fill_checksum(&mut f);
                }
            }
            h.rx.push(f);
            if rng.chance(0.1) {
                h.turn();
                if let Some(got) = read(&mut h, id) {
                    assert_eq!(got, pattern(got.len()), "seed {seed}");
                }
            }
            h.sleep(Duration::from_millis(rng.below(200)));
        }
        h.turn();
        while let Some(got) = read(&mut h, id) {
            assert_eq!(got, pattern(got.len()));
        }
        h.sleep(TIMEOUT_V6);
        h.turn();
        assert_eq!((h.core.frags.len(), h.core.frags.mem_bytes()), (0, 0));
        h.assert_home();
    }
}

/// Two hosts, a socket on each; the second is bound to [`PORT`].
fn pair(dev: Dev) -> (Host, Host, SockId, SockId) {
    let mut a = Host::numbered(2, dev.clone());
    let (b, to) = host(dev);
    let from = a.udp.socket(&a.core, true);
    a.udp.opts_mut(from).unwrap().sndbuf_bytes = 1 << 20;
    (a, b, from, to)
}

#[test]
fn long_datagrams_leave_in_fragments_and_arrive_whole() {
    for sums in [false, true] {
        let mut dev = Dev::plain();
        dev.features.tx_csum = sums;
        let (mut a, mut b, from, to) = pair(dev);
        for (dst, len, frames) in [
            ("10.0.0.1:7", 1472, 1),
            ("10.0.0.1:7", 1473, 2),
            ("10.0.0.1:7", 65_507, 45),
            ("[fd00::1]:7", 1452, 1),
            ("[fd00::1]:7", 1453, 2),
            ("[fd00::1]:7", 65_527, 46),
        ] {
            let before = a.core.mibs.ip.clone();
            let data = pattern(len);
            let sent = a.udp.send_to(&mut a.core, from, &data, Some(dst.parse().unwrap()), SendOpts::default());
            assert_eq!(sent, Ok(len));
            assert_eq!(a.core.links.device(a.dev).unwrap().backlog_skbs(), frames, "{dst} {len}");
            run(&mut a, &mut b);
            assert_eq!(read(&mut b, to), Some(data), "{dst} {len}");
            let (m, cut) = (&a.core.mibs.ip, u64::from(frames > 1));
            assert_eq!(m.frag_oks - before.frag_oks, cut);
            assert_eq!(m.frag_creates - before.frag_creates, cut * frames as u64);
            assert_eq!((m.out_requests - before.out_requests, m.frag_fails), (1, 0));
        }
        let too_long = a.udp.send_to(
            &mut a.core,
            from,
            &pattern(65_508),
            Some("10.0.0.1:7".parse().unwrap()),
            SendOpts::default(),
        );
        assert_eq!(too_long, Err(UdpSendError::TooBig));
        assert!(a.udp.readiness(from).contains(crate::sock::Ready::WRITABLE), "all charges came back");
        a.assert_home();
        b.assert_home();
    }
}

#[test]
fn fragments_are_made_by_reference() {
    let (mut a, _, from, _) = pair(Dev::plain());
    a.udp
        .send_to(&mut a.core, from, &pattern(60_000), Some("10.0.0.1:7".parse().unwrap()), SendOpts::default())
        .unwrap();
    // 60,000 bytes lie in two pages of 32 KiB, and 41 pieces refer to them.
    assert_eq!(a.core.mem.tx_pool.inflight(), 2);
    a.turn();
    let frames = a.tx.take();
    let ids: Vec<_> = frames.iter().map(|f| [f[4], f[5]]).collect();
    assert_eq!((frames.len(), ids.iter().all(|id| *id == ids[0])), (41, true));
    assert!(frames.iter().enumerate().all(|(i, f)| {
        let field = u16::from_be_bytes([f[6], f[7]]);
        field == (i * 185) as u16 | if i < 40 { 0x2000 } else { 0 }
    }));
    a.assert_home();
}

#[test]
fn mtu_discovery_modes_say_what_is_cut_and_what_has_df() {
    use PmtuDisc::{Do, Dont, Interface, Omit, Probe, Want};
    let dst = "10.0.0.1:7".parse().unwrap();
    // The path carries 1000 bytes, the device 1500. For each mode: DF on what fits, and what becomes of 1200 and 2000.
    let (fits, cut, refused) = (Ok(1), Ok(2), Err(UdpSendError::TooBig));
    for (mode, df, medium, long) in [
        (Dont, false, cut, Ok(3)),
        (Want, true, cut, Ok(3)),
        (Do, true, refused, refused),
        (Probe, true, fits, refused),
        (Interface, false, fits, refused),
        (Omit, false, fits, cut),
    ] {
        let (mut a, _, from, _) = pair(Dev::plain());
        a.core.links.update_pmtu("10.0.0.1".parse().unwrap(), 1000, a.core.now).unwrap();
        a.udp.opts_mut(from).unwrap().mtu_discover = mode;
        let mut send = |len: usize| {
            let sent = a.udp.send_to(&mut a.core, from, &pattern(len), Some(dst), SendOpts::default());
            a.turn();
            let frames = a.tx.take();
            (sent.map(|_| frames.len()), frames)
        };
        let (sent, frames) = send(500);
        assert_eq!((sent, frames[0][6] & 0x40 != 0), (fits, df), "{mode:?}");
        let (sent, frames) = send(1200);
        assert_eq!(sent, medium, "{mode:?}");
        assert!(frames.len() < 2 || frames.iter().all(|f| f[6] & 0x40 == 0), "{mode:?}: a fragment with DF");
        assert_eq!(send(2000).0, long, "{mode:?}");
        a.assert_home();
    }
    // IPv6, and IPV6_DONTFRAG.
    let dst = "[fd00::1]:7".parse().unwrap();
    for (mode, dont_frag, want) in [(Want, false, cut), (Want, true, refused), (Do, false, refused), (Omit, false, cut)]
    {
        let (mut a, _, from, _) = pair(Dev::plain());
        let opts = a.udp.opts_mut(from).unwrap();
        (opts.mtu_discover6, opts.dont_frag6) = (mode, dont_frag);
        let sent = a.udp.send_to(&mut a.core, from, &pattern(2000), Some(dst), SendOpts::default());
        a.turn();
        assert_eq!(sent.map(|_| a.tx.take().len()), want, "{mode:?}");
        a.assert_home();
    }
}

#[test]
fn a_long_ping_is_answered_in_fragments() {
    for (is4, head_bytes) in [(true, 20), (true, 192), (false, 64), (false, 192)] {
        let (mut h, _) = host(Dev { head_bytes, ..Dev::plain() });
        let (mut peer, _) = host(Dev::plain());
        let (head, ty) = match is4 {
            true => (ip("10.0.0.9", "10.0.0.1", proto::ICMP), 8),
            false => (ip("fd00::9", "fd00::1", proto::ICMPV6), 128),
        };
        let mut message = [&[ty, 0, 0, 0, 1, 2, 3, 4][..], &pattern(5000)].concat();
        let mut summed = head;
        summed.payload_len = message.len() as u32;
        let pseudo = if is4 { 0 } else { summed.pseudo_sum() };
        let sum = linerate_wire::checksum::combine(pseudo, linerate_wire::checksum::sum(&message));
        message[2..4].copy_from_slice(&linerate_wire::checksum::finish(sum).to_be_bytes());
        pieces(&ip_packet(&head, &message), 1232).into_iter().for_each(|p| h.rx.push(p));
        h.turn();
        let reply = h.tx.take();
        assert_eq!(reply.len(), 4);
        // Whoever receives them sees one message with a good checksum: another stack of ours, as 10.0.0.9.
        let own = if is4 { "10.0.0.9/24" } else { "fd00::9/64" };
        let dev = peer.dev;
        peer.core.links.del_address(dev, if is4 { "10.0.0.1/24" } else { "fd00::1/64" }.parse().unwrap()).unwrap();
        peer.core.links.add_address(dev, own.parse().unwrap()).unwrap();
        reply.into_iter().for_each(|f| peer.rx.push(f));
        peer.turn();
        let m = &peer.core.mibs;
        assert_eq!((m.icmp.in_echo_reps, m.icmp.in_csum_errors, m.ip.reasm_oks), (1, 0, 1));
        h.assert_home();
        peer.assert_home();
    }
}

#[test]
fn a_full_qdisc_loses_pieces_without_losing_count() {
    let mut dev = Dev::plain();
    dev.ring = 0;
    let (mut a, _, from, _) = pair(dev);
    a.udp.opts_mut(from).unwrap().sndbuf_bytes = u32::MAX;
    let data = pattern(20_000);
    for _ in 0..100 {
        let sent = a.udp.send_to(&mut a.core, from, &data, Some("10.0.0.1:7".parse().unwrap()), SendOpts::default());
        assert_eq!(sent, Ok(20_000), "a full queue is no error of send");
    }
    let m = &a.core.mibs;
    assert_eq!((m.ip.frag_oks + m.ip.frag_fails, m.ip.frag_creates), (100, 1000));
    assert_eq!(m.drops.get(DropReason::QdiscDrop), 1400 - 1000);
    let mut done = linerate_netdev::TxDone::new();
    crate::ip_out::del_device(&mut a.core, a.dev, &mut done).unwrap();
    for (token, bytes) in done.drain().filter(|(t, _)| !t.is_none()) {
        a.udp.on_tx_done(&mut a.ready, SockId::from_u64(token.0), bytes);
    }
    assert_eq!(a.udp.wmem_bytes(from), 0);
    a.assert_home();
}
