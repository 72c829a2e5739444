//! Headers that are cut, flipped, too long, too short, or contradict each other.
//!
//! Two laws are checked for thousands of frames. *Accounting*: a frame that can not be what it says is dropped, once, and
//! counted. *Integrity*: whatever a frame of a wrong header was taken for, the stream that the application reads is the
//! stream that the honest peer sent. Frames whose checksums were made right again (an attacker can sum) are told apart
//! from those that a bad link made.

use linerate_base::{DropReason, Seq};
use linerate_wire::ip::proto;
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr};

use crate::lab::{
    Flow, Lab, PORT, Peer, Setup, byte_at, fix_sums, icmp_frame, ip, ip_frame, last_ack, stream, tcp_frame_with,
    udp_frame,
};

/// A whole packet of every kind: both families, all transports.
fn packets() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for (peer, a, b, icmp) in
        [(Peer::v4(), "10.0.0.9", "10.0.0.1", proto::ICMP), (Peer::v6(), "fd00::9", "fd00::1", proto::ICMPV6)]
    {
        let flow = Flow::new(peer, 999);
        out.push(flow.frame(&flow.syn(), &[]));
        out.push(flow.frame(&flow.header(TcpFlags::ACK), b"hello, world"));
        out.push(udp_frame(&ip(a, b, proto::UDP), 5, 6, b"datagram"));
        let echo = if icmp == proto::ICMP { 8 } else { 128 };
        out.push(icmp_frame(&ip(a, b, icmp), &[echo, 0, 0, 0, 0, 1, 0, 2, 3, 4, 5]));
        // An error about a segment of nobody's.
        let quoted = Flow::new(peer, 999);
        let quote = swap_ends(quoted.frame(&quoted.syn(), &[]));
        let unreachable = if icmp == proto::ICMP { [3, 3] } else { [1, 4] };
        out.push(icmp_frame(&ip(a, b, icmp), &[&unreachable[..], &[0; 6], &quote].concat()));
    }
    out
}

/// The packet as its receiver would have sent it.
fn swap_ends(mut frame: Vec<u8>) -> Vec<u8> {
    let (src, len) = if frame[0] >> 4 == 4 { (12, 4) } else { (8, 16) };
    for i in 0..len {
        frame.swap(src + i, src + len + i);
    }
    fix_sums(&mut frame);
    frame
}

/// Writes the length of the frame into its IP header.
fn fix_ip_len(frame: &mut [u8]) {
    let len = frame.len();
    match frame.first().map(|b| b >> 4) {
        Some(4) if len >= 4 => frame[2..4].copy_from_slice(&(len as u16).to_be_bytes()),
        Some(6) if len >= 40 => frame[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes()),
        _ => {}
    }
}

#[test]
fn every_truncation_is_dropped_once() {
    let mut lab = Lab::new();
    for (n, whole) in packets().into_iter().enumerate() {
        for len in 1..whole.len() {
            let before = lab.total_drops();
            lab.send(whole[..len].to_vec());
            assert_eq!(lab.total_drops(), before + 1, "packet {n} cut to {len}");
        }
    }
    lab.prove_alive();
    lab.finish();
}

#[test]
fn truncations_with_lengths_that_agree_are_harmless() {
    let mut lab = Lab::new();
    for whole in packets() {
        for len in 1..whole.len() {
            let mut frame = whole[..len].to_vec();
            fix_ip_len(&mut frame);
            lab.send(frame.clone());
            // And with sums that fit: shorter data is valid, shorter headers are not.
            fix_sums(&mut frame);
            lab.send(frame);
            lab.s.check_invariants();
        }
    }
    lab.take_raw();
    lab.prove_alive();
    lab.finish();
}

#[test]
fn padding_behind_a_packet_is_not_data() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    let mut frame = flow.data_frame(0, b"seen");
    frame.extend([0xee; 600]);
    flow.seq += 4;
    let outs = lab.send(frame);
    assert_eq!(lab.read(id), b"seen");
    assert!(last_ack(&outs).is_none_or(|a| a == flow.seq));
    lab.finish();
}

/// Every single bit of every header of a data segment, flipped on the wire.
#[test]
fn flipped_header_bits_never_reach_the_stream() {
    for peer in [Peer::v4(), Peer::v4().timestamps(77), Peer::v6(), Peer::v6().timestamps(77)] {
        let mut lab = Lab::new();
        let (mut flow, id) = lab.flow(peer);
        let headers = flow.data_frame(0, &[]).len();
        for bit in 0..headers * 8 {
            let data = stream(flow.seq, 20);
            let mut frame = flow.data_frame(0, &data);
            frame[bit / 8] ^= 1 << (bit % 8);
            let before = lab.total_drops();
            lab.send(frame);
            if lab.total_drops() == before {
                // Nothing sums IPv6's traffic class, flow label and hop limit: the packet is as good as it was.
                let unsummed = bit < 4 || (8..32).contains(&bit) || (56..64).contains(&bit);
                assert!(peer.v6 && unsummed, "bit {bit} was not noticed");
            }
            flow.send_data(&mut lab, &data);
            assert_eq!(lab.read(id), data, "after bit {bit}");
        }
        lab.s.check_invariants();
        lab.prove_alive();
        lab.finish();
    }
}

/// The same by somebody who can sum: each flip on a connection of its own.
#[test]
fn flipped_header_bits_with_good_sums_are_harmless() {
    for peer in [Peer::v4().timestamps(77), Peer::v6().timestamps(77)] {
        let headers = Flow { ts: peer.opts.ts, ..Flow::new(peer, 1) }.data_frame(0, &[]).len();
        let mut lab = Lab::new();
        for bit in 0..headers * 8 {
            let (mut flow, id) = lab.flow(peer);
            let mut frame = flow.data_frame(0, &stream(flow.seq, 20));
            frame[bit / 8] ^= 1 << (bit % 8);
            fill_stream(&mut frame);
            fix_sums(&mut frame);
            lab.send(frame);
            // The honest peer goes on, if a RST flag did not end the connection.
            let start = flow.seq;
            let data = stream(start, 40);
            flow.send_data(&mut lab, &data);
            let got = lab.read(id);
            let dead = lab.s.conn(id).is_none_or(|c| c.has_error()) || lab.s.info(id).is_none_or(|i| i.state == 7);
            assert!(stream(start, 9000).starts_with(&got), "bit {bit}: {got:?}");
            if !dead {
                let acked = lab.s.info(id).map(|i| i.bytes_received);
                assert!(acked.is_some_and(|n| n <= 5000), "bit {bit}: bytes out of nowhere: {acked:?}");
            }
            lab.s.abort(id).ok();
            lab.rest();
            lab.take();
            lab.s.check_invariants();
        }
        lab.prove_alive();
        lab.finish();
    }
}

/// Makes the payload that which an honest sender has at the frame's sequence number, wherever that points now.
fn fill_stream(frame: &mut [u8]) {
    let hl = if frame[0] >> 4 == 4 { usize::from(frame[0] & 15) * 4 } else { 40 };
    let Some(l4) = frame.get_mut(hl..) else { return };
    let Ok((h, len)) = TcpRepr::parse(l4) else { return };
    for (i, b) in l4[len..].iter_mut().enumerate() {
        *b = byte_at(h.seq.0.wrapping_add(i as u32));
    }
}

#[test]
fn lengths_that_contradict_each_other_are_dropped_once() {
    let flow = Flow::new(Peer::v4(), 999);
    let v4 = flow.frame(&flow.syn(), b"some data");
    let flow6 = Flow::new(Peer::v6(), 999);
    let v6 = flow6.frame(&flow6.syn(), b"some data");
    let udp = udp_frame(&ip("10.0.0.9", "10.0.0.1", proto::UDP), 5, 6, b"datagram");
    let mut cases: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut case = |what, base: &[u8], change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = base.to_vec();
        change(&mut frame);
        fix_sums(&mut frame);
        cases.push((what, frame));
    };
    for ihl in 0..5 {
        case("IHL below 5", &v4, &|f| f[0] = 0x40 | ihl);
    }
    case("IHL beyond the packet", &udp[..32], &|f| {
        f[0] = 0x4f;
        f[3] = 32;
    });
    for total in [0u16, 1, 19, 20, 21, 39, 1000, 0xffff] {
        case("IP total length", &v4, &|f| f[2..4].copy_from_slice(&total.to_be_bytes()));
    }
    for len in [0u16, 1, 19, 1000, 0xffff] {
        case("IPv6 payload length", &v6, &|f| f[4..6].copy_from_slice(&len.to_be_bytes()));
    }
    for doff in 0..5 {
        case("data offset below 5", &v4, &|f| f[32] = doff << 4);
        case("data offset below 5", &v6, &|f| f[52] = doff << 4);
    }
    let bare = flow.frame(&flow.header(TcpFlags::SYN), &[]);
    for doff in 6..16 {
        case("data offset beyond the segment", &bare, &|f| f[32] = doff << 4);
    }
    for len in [0u16, 1, 7, 17, 1000, 0xffff] {
        case("UDP length", &udp, &|f| f[24..26].copy_from_slice(&len.to_be_bytes()));
    }
    let mut lab = Lab::new();
    for (what, frame) in cases {
        let before = lab.total_drops();
        lab.send(frame.clone());
        let seen: Vec<_> = lab.s.mibs().drops.iter().collect();
        assert_eq!(lab.total_drops(), before + 1, "{what}: {frame:02x?}: {seen:?}");
    }
    assert_eq!(lab.s.tcp_counts().1, 0, "no request was made");
    lab.prove_alive();
    lab.finish();
}

#[test]
fn extension_headers_without_end_are_dropped_once() {
    let chain = |kinds: &[u8], last: u8, rest: &[u8]| {
        let mut payload = Vec::new();
        for i in 0..kinds.len() {
            let next = kinds.get(i + 1).copied().unwrap_or(last);
            payload.extend([next, 0, 1, 4, 0, 0, 0, 0]);
        }
        payload.extend(rest);
        ip_frame(&ip("fd00::9", "fd00::1", kinds[0]), &payload)
    };
    let cases = [
        chain(&[proto::DSTOPTS; 100], proto::TCP, &[0; 20]),
        chain(&[proto::DSTOPTS; 100], proto::DSTOPTS, &[]),
        chain(&[proto::DSTOPTS, proto::HOPOPTS], proto::TCP, &[0; 20]),
        chain(&[proto::DSTOPTS], proto::DSTOPTS, &[0xff; 8]),
        chain(&[proto::HOPOPTS], proto::HOPOPTS, &[59, 200, 0, 0, 0, 0, 0, 0]),
        chain(&[proto::FRAGMENT], proto::TCP, &[0; 20]),
        chain(&[proto::ROUTING], proto::TCP, &[0; 20]),
        chain(&[proto::DSTOPTS], proto::NO_NEXT_HEADER, b"nothing"),
        // A jumbo length that is a lie: smaller than 64 KB, beyond the frame, and none at all.
        ip_frame(&ip("fd00::9", "fd00::1", 0), &[6, 0, 0xc2, 4, 0, 0, 1, 0, 1, 2, 3]),
        ip_frame(&ip("fd00::9", "fd00::1", 0), &[6, 0, 0xc2, 4, 0x7f, 0xff, 0xff, 0xff, 1, 2]),
        // Options that run out of their header.
        ip_frame(&ip("fd00::9", "fd00::1", 60), &[6, 0, 5, 200, 0, 0, 0, 0]),
        ip_frame(&ip("fd00::9", "fd00::1", 60), &[6, 0, 0x85, 4, 0, 0, 0, 0]),
    ];
    let mut lab = Lab::new();
    for (n, frame) in cases.into_iter().enumerate() {
        let before = lab.total_drops();
        lab.send(frame);
        // One of them is the last fragment of something.
        let waits = u64::from(n == 5);
        assert_eq!((lab.total_drops(), lab.s.core().frags.len() as u64), (before + 1 - waits, waits), "chain {n}");
        lab.take_raw();
        if waits == 1 {
            lab.pass(60_000);
            assert_eq!(lab.drops(DropReason::FragReasmTimeout), 1);
        }
    }
    lab.prove_alive();
    lab.finish();
}

/// Sources that nobody can have, destinations that nobody asked for, and us talking to ourselves.
#[test]
fn impossible_addresses_are_refused_and_never_answered() {
    let src = DropReason::IpInvalidSource;
    let dst = DropReason::IpInAddrErrors;
    let cases = [
        ("10.0.0.1", "10.0.0.1", src), // land
        ("127.0.0.1", "10.0.0.1", src),
        ("10.0.0.9", "127.0.0.1", dst),
        ("0.0.0.0", "10.0.0.1", src),
        ("224.0.0.1", "10.0.0.1", src),
        ("255.255.255.255", "10.0.0.1", src),
        ("10.0.0.255", "10.0.0.1", src),
        ("10.0.0.9", "10.0.0.200", dst),
        ("10.0.0.9", "0.0.0.0", dst),
        ("fd00::1", "fd00::1", src), // land
        ("::1", "fd00::1", src),
        ("fd00::9", "::1", dst),
        ("::", "fd00::1", src),
        ("ff02::1", "fd00::1", src),
        ("::ffff:10.0.0.9", "fd00::1", src),
        ("fd00::9", "fd00::77", dst),
    ];
    for (from, to, why) in cases {
        let mut lab = Lab::new();
        let mut flow = Flow::new(Peer::v4(), PORT);
        flow.peer.set_ip(from.parse().unwrap());
        flow.local.set_ip(to.parse().unwrap());
        let udp = udp_frame(&ip(from, to, proto::UDP), 7, 7, b"x");
        let echo = if from.contains(':') { (proto::ICMPV6, 128) } else { (proto::ICMP, 8) };
        let frames = [
            flow.frame(&flow.syn(), &[]),
            flow.frame(&flow.header(TcpFlags::ACK), b"x"),
            udp,
            icmp_frame(&ip(from, to, echo.0), &[echo.1, 0, 0, 0, 0, 1, 0, 2]),
        ];
        for frame in frames {
            lab.inject(frame);
        }
        lab.rest();
        assert_eq!((lab.drops(why), lab.total_drops()), (4, 4), "{from} > {to}");
        assert!(lab.take_raw().is_empty(), "{from} > {to} was answered");
        assert_eq!(lab.s.tcp_counts().1, 0);
        lab.finish();
    }
    // TCP to a group is nobody's, and groups are not told about closed ports.
    let mut lab = Lab::new();
    for to in ["10.0.0.255", "255.255.255.255", "224.0.0.1", "ff02::1"] {
        let mut flow = Flow::new(if to.contains(':') { Peer::v6() } else { Peer::v4() }, 999);
        flow.local.set_ip(to.parse().unwrap());
        lab.inject(flow.frame(&flow.syn(), &[]));
        lab.inject(udp_frame(&ip(&flow.peer.ip().to_string(), to, proto::UDP), 7, 99, b"x"));
    }
    lab.rest();
    assert!(lab.take_raw().is_empty());
    assert_eq!(lab.total_drops(), 8);
    lab.prove_alive();
    lab.finish();
}

/// All 512 combinations of the flags, with and without data, against every kind of owner.
#[test]
fn every_combination_of_flags_is_survived() {
    let mut lab = Lab::new();
    for bits in 0..512u16 {
        let flags = TcpFlags(bits);
        for (len, urgent) in [(0, 0), (30, 0), (30, 20_000)] {
            let (mut open, id) = lab.flow(Peer::v4());
            let (mut half, closed, mut last) = (Flow::new(Peer::v4(), 9000), Flow::new(Peer::v4(), 9001), open.clone());
            half.peer.set_port(lab.fresh_port());
            last.peer.set_port(lab.fresh_port());
            let synack = lab.send(half.frame(&half.syn(), &[]));
            half.take_synack(&synack[0].h);
            let established = open.peer;
            for f in [&mut open, &mut half, &mut closed.clone(), &mut last] {
                if f.peer == closed.peer {
                    f.local.set_port(81);
                }
                let h = TcpRepr { urgent, ..f.header(flags) };
                let outs = lab.send(f.frame(&h, &stream(f.seq, len)));
                let answers = outs.len();
                assert!(answers <= 2, "{flags}: {answers} answers to one segment");
                assert!(
                    !flags.contains(TcpFlags::RST) || answers == 0 || f.peer == established,
                    "{flags}: a RST answered"
                );
            }
            // Nothing but the bytes that were sent can come out.
            let got = lab.read(id);
            assert!(stream(open.seq, len).starts_with(&got), "{flags}: {got:?}");
            lab.s.abort(id).ok();
            let rst = half.frame(&half.header(TcpFlags::RST), &[]);
            lab.send(rst);
            while let Ok(child) = lab.s.accept(lab.listener) {
                lab.s.abort(child).unwrap();
            }
            let rst =
                last.frame(&TcpRepr { seq: last.header(TcpFlags::NONE).seq + 1, ..last.header(TcpFlags::RST) }, &[]);
            lab.send(rst);
        }
        lab.s.check_invariants();
    }
    lab.pass(200_000);
    lab.prove_alive();
    lab.finish();
}

#[test]
fn urgent_pointers_change_nothing() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    for urgent in [0, 1, 9, 10, 11, 0x7fff, 0xffff] {
        let data = stream(flow.seq, 10);
        let h = TcpRepr { urgent, ..flow.header(TcpFlags::ACK | TcpFlags::URG) };
        lab.send(flow.frame(&h, &data));
        flow.seq += 10;
        assert_eq!(lab.read(id), data, "urgent data is delivered in line");
    }
    lab.finish();
}

/// Option bytes with every kind and every length, on a SYN and in the middle of a stream.
#[test]
fn malformed_options_never_fail_a_segment() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    let mut half = Flow::new(Peer::v4(), 0);
    for kind in [0, 1, 2, 3, 4, 5, 8, 9, 19, 28, 29, 30, 34, 69, 172, 174, 253, 254, 255] {
        for len in (0..=41).chain([0x7f, 0x80, 0xfe, 0xff]) {
            for lead in [0, 1, 37, 38, 39] {
                let mut options = vec![1u8; lead];
                options.extend([kind, len]);
                options.resize(40, 0xff);
                let data = stream(flow.seq, 5);
                let frame = tcp_frame_with(&flow, &flow.header(TcpFlags::ACK), &options[..40], &data);
                flow.seq += 5;
                lab.send(frame);
                assert_eq!(lab.read(id), data, "kind {kind} length {len} behind {lead}");
                half.peer.set_port(lab.fresh_port());
                let syn = tcp_frame_with(&half, &half.header(TcpFlags::SYN), &options[..40], &[]);
                let mut outs = lab.send(syn);
                outs.retain(|o| o.h.dst_port == half.peer.port());
                assert_eq!(outs.len(), 1, "SYN with kind {kind} length {len} behind {lead}");
                let h = outs[0].h;
                assert_eq!(h.flags - TcpFlags::ECE, TcpFlags::SYN | TcpFlags::ACK);
                let mut rst = half.header(TcpFlags::RST);
                rst.seq = h.ack;
                lab.send(half.frame(&rst, &[]));
            }
        }
    }
    assert_eq!(lab.s.tcp_counts().1, 0);
    lab.prove_alive();
    lab.finish();
}

/// The values that options may have and should not.
#[test]
fn absurd_option_values_are_bounded() {
    for mss in [0, 1, 47, 48, 87, 88, 0xffff] {
        for wscale in [0, 14, 15, 200, 255] {
            let opts = TcpOptions { mss: Some(mss), wscale: Some(wscale), sack_permitted: true, ..TcpOptions::NONE };
            let mut lab = Lab::new();
            let (mut flow, id) = lab.flow(Peer { opts, ..Peer::v4() });
            let text = stream(1, 2000);
            assert_eq!(lab.s.write(id, &text), Ok(2000));
            lab.rest();
            let info = lab.s.info(id).unwrap();
            assert!((36..=1460).contains(&info.snd_mss), "MSS {mss} became {}", info.snd_mss);
            assert!(info.snd_wscale <= 14);
            let outs = lab.take();
            assert!(outs.len() <= 70 && outs.iter().all(|o| o.data.len() <= 1460));
            // Go on as one who lost the first flight.
            lab.pass(500);
            assert_eq!(flow.gather(&mut lab).len(), 2000, "MSS {mss} shift {wscale}");
            lab.finish();
        }
    }
}

#[test]
fn oversized_frames_are_survived() {
    let mut lab = Lab::with(Setup::default());
    let (mut flow, id) = lab.flow(Peer::v4());
    // The device is careless about its MTU; a page is the most that a frame of this device can be.
    let data = stream(flow.seq, 3900);
    flow.send_data(&mut lab, &data);
    assert_eq!(lab.read(id), data);
    lab.inject(icmp_frame(
        &ip("10.0.0.9", "10.0.0.1", proto::ICMP),
        &[&[8, 0, 0, 0, 0, 1, 0, 1][..], &[7; 3900]].concat(),
    ));
    lab.rest();
    // The answer, 3908 bytes of it, fits no frame of 1500.
    assert_eq!((lab.take_raw().len(), lab.s.mibs().ip.frag_oks), (3, 1));
    let mut wrapped = flow.header(TcpFlags::ACK);
    wrapped.seq = Seq(flow.seq.wrapping_sub(3900));
    lab.send(flow.frame(&wrapped, &stream(wrapped.seq.0, 3900)));
    assert_eq!(lab.drops(DropReason::TcpOldData), 1);
    lab.prove_alive();
    lab.finish();
}
