//! Segments that a stranger forges, and what a malicious peer says about our data.
//!
//! Blind attackers (RFC 5961, 5927) guess numbers: a near miss earns a challenge ACK, limited per connection and for the
//! stack, and changes nothing. A peer that lies in its acknowledgements, SACK blocks, timestamps and windows may slow his
//! own connection down, but never makes us send more than we should, forget data, or grow.

use linerate_base::{DropReason, Rng, Seq};
use linerate_stack::SockId;
use linerate_wire::ip::proto;
use linerate_wire::{SackBlocks, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::lab::{Flow, Lab, Peer, Setup, assert_stream, icmp_frame, ip, last_ack, stream};

/// The connection still carries bytes both ways.
fn still_works(lab: &mut Lab, flow: &mut Flow, id: SockId) {
    let data = stream(flow.seq, 100);
    flow.send_data(lab, &data);
    assert_eq!(lab.read(id), data);
    lab.take();
    lab.s.write(id, b"still here").unwrap();
    lab.rest();
    assert_eq!(flow.gather(lab), b"still here");
    lab.s.check_invariants();
}

/// A segment without payload whose numbers are off by these.
fn forged(flow: &Flow, flags: TcpFlags, seq_off: u32, ack_off: u32) -> Vec<u8> {
    let mut h = flow.header(flags);
    (h.seq, h.ack) = (h.seq + seq_off, h.ack + ack_off);
    flow.frame(&h, &[])
}

#[test]
fn challenge_acks_are_limited_on_a_connection() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    let mut answers = 0;
    for i in 0..1000 {
        let flags = if i % 2 == 0 { TcpFlags::SYN } else { TcpFlags::RST };
        answers += lab.send(forged(&flow, flags, 1 + i, 0)).len();
    }
    assert_eq!(answers, 1, "one in half a second");
    for i in 0..1000 {
        lab.pass(10);
        answers += lab.send(forged(&flow, TcpFlags::SYN, 1 + i, 0)).len();
    }
    assert!((10..=22).contains(&answers), "{answers} in ten seconds");
    assert_eq!(lab.drops(DropReason::TcpInvalidSyn), 1500);
    assert_eq!(lab.drops(DropReason::TcpInvalidRst), 500);
    still_works(&mut lab, &mut flow, id);
    lab.finish();
}

#[test]
fn challenge_acks_are_limited_for_the_stack() {
    let mut lab = Lab::with(Setup::tcp(|t| t.challenge_ack_limit = 10));
    let flows: Vec<_> = (0..50).map(|_| lab.flow(Peer::v4()).0).collect();
    lab.take();
    let answers: usize = flows.iter().map(|f| lab.send(forged(f, TcpFlags::SYN, 9, 0)).len()).sum();
    assert_eq!(answers, 10);
    lab.pass(5000);
    let later: usize = flows.iter().map(|f| lab.send(forged(f, TcpFlags::SYN, 9, 0)).len()).sum();
    assert_eq!(later, 10, "a new second, a new chance");
    lab.finish();
}

#[test]
fn a_sweep_of_resets_over_the_sequence_space_misses() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    let mut answers = 0;
    for i in 0..65_536u32 {
        lab.inject(forged(&flow, TcpFlags::RST, 1 + i * 65_536, 0));
        if i % 64 == 63 {
            lab.rest();
            answers += lab.take().len();
        }
    }
    assert!(answers <= 1, "{answers} answers to resets");
    let dropped = lab.drops(DropReason::TcpInvalidRst) + lab.drops(DropReason::TcpInvalidSequence);
    assert_eq!(dropped, 65_536);
    still_works(&mut lab, &mut flow, id);
    lab.finish();
}

#[test]
fn data_with_a_guessed_ack_is_not_taken() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    for off in [1u32, 1000, 1 << 20, 1 << 30, (1 << 31) - 1] {
        for ack_off in [off, off.wrapping_neg()] {
            let mut h = flow.header(TcpFlags::ACK);
            h.ack += ack_off;
            lab.send(flow.frame(&h, b"injected"));
        }
    }
    assert_eq!(lab.drops(DropReason::TcpAckUnsentData) + lab.drops(DropReason::TcpTooOldAck), 10);
    assert!(lab.read(id).is_empty());
    still_works(&mut lab, &mut flow, id);
    lab.finish();
}

/// Fifty thousand bytes under way, and their numbers.
fn sending(peer: Peer) -> (Lab, Flow, SockId, Vec<u8>) {
    let mut lab = Lab::new();
    let (flow, id) = lab.flow(peer);
    let text = stream(1, 50_000);
    assert_eq!(lab.s.write(id, &text), Ok(text.len()));
    lab.rest();
    (lab, flow, id, text)
}

#[test]
fn acks_of_unsent_data_acknowledge_nothing() {
    let (mut lab, mut flow, id, text) = sending(Peer::v4());
    let before = lab.s.info(id).unwrap().unacked;
    for ahead in [50_001, 1 << 20, 1 << 30, (1 << 31) - 1] {
        lab.send(forged(&flow, TcpFlags::ACK, 0, ahead));
    }
    assert_eq!(lab.drops(DropReason::TcpAckUnsentData), 4);
    assert_eq!(lab.s.info(id).unwrap().unacked, before);
    lab.pass(300);
    assert_stream(&flow.gather(&mut lab), &text);
    lab.finish();
}

#[test]
fn ack_division_does_not_open_the_window_faster() {
    let (mut lab, mut flow, id, _) = sending(Peer::v4());
    let first: u32 = lab.take().iter().map(|o| o.data.len() as u32).sum();
    assert_eq!(first, 14_600, "the initial window");
    for _ in 0..first {
        flow.ack += 1;
        lab.inject(flow.ack_frame());
    }
    lab.rest();
    let info = lab.s.info(id).unwrap();
    assert!(info.snd_cwnd <= 20, "14,600 ACKs for ten segments opened the window to {}", info.snd_cwnd);
    lab.take();
    lab.pass(1000);
    flow.gather(&mut lab);
    lab.finish();
}

#[test]
fn sack_nonsense_is_ignored() {
    let (mut lab, mut flow, id, text) = sending(Peer::v4());
    let mut sent = lab.take().len();
    let mut rng = Rng::new(5);
    let una = flow.ack;
    for i in 0..5000u32 {
        let blocks: Vec<_> = (0..4)
            .map(|_| {
                let pick = |rng: &mut Rng| match rng.below(6) {
                    0 => una,
                    1 => una.wrapping_add(rng.below(14_600) as u32),
                    2 => una.wrapping_sub(rng.below(100_000) as u32),
                    3 => una.wrapping_add(14_600 + rng.below(100_000) as u32),
                    4 => una.wrapping_add(1 << 31),
                    _ => rng.next_u64() as u32,
                };
                let (l, r) = (pick(&mut rng), pick(&mut rng));
                // True blocks would be news, not nonsense: keep to what is inverted, empty, or outside.
                let inside = |n: u32| n.wrapping_sub(una) <= 14_600;
                if inside(l) && inside(r) && (r.wrapping_sub(l) as i32) > 0 {
                    (Seq(r), Seq(l))
                } else {
                    (Seq(l), Seq(r))
                }
            })
            .collect();
        let opts = TcpOptions { sack: SackBlocks::from_slice(&blocks), ..TcpOptions::NONE };
        lab.inject(flow.frame(&TcpRepr { opts, ..flow.header(TcpFlags::ACK) }, &[]));
        if i % 50 == 49 {
            lab.rest();
            lab.s.check_invariants();
        }
    }
    sent += lab.take().len();
    let info = lab.s.info(id).unwrap();
    assert!(info.sacked <= info.unacked && info.lost <= info.unacked);
    assert!(sent <= 40, "{sent} segments provoked by nonsense");
    lab.pass(2000);
    assert_stream(&flow.gather(&mut lab), &text);
    lab.finish();
}

#[test]
fn a_peer_that_takes_its_sacks_back_gets_everything() {
    let (mut lab, mut flow, id, text) = sending(Peer::v4());
    lab.take();
    // It claims all but the first segment, and then that it has nothing.
    let block = [(Seq(flow.ack + 1460), Seq(flow.ack + 14_600))];
    let opts = TcpOptions { sack: SackBlocks::from_slice(&block), ..TcpOptions::NONE };
    for _ in 0..5 {
        lab.send(flow.frame(&TcpRepr { opts, ..flow.header(TcpFlags::ACK) }, &[]));
    }
    assert!(lab.s.info(id).unwrap().sacked > 0);
    lab.take();
    lab.pass(5000);
    assert_stream(&flow.gather(&mut lab), &text);
    lab.finish();
}

#[test]
fn a_storm_of_dsacks_is_harmless() {
    let (mut lab, mut flow, id, text) = sending(Peer::v4().timestamps(9));
    let first: u32 = lab.take().iter().map(|o| o.data.len() as u32).sum();
    let mut got = text[..first as usize].to_vec();
    let start = flow.ack;
    flow.ack += first;
    let mut sent = lab.send(flow.ack_frame());
    for i in 0..10_000u32 {
        let at = start + i % first;
        let blocks = [(Seq(at), Seq(at + 1)), (Seq(start.wrapping_sub(90_000)), Seq(start.wrapping_sub(80_000)))];
        let opts = TcpOptions { sack: SackBlocks::from_slice(&blocks), ts: flow.ts, ..TcpOptions::NONE };
        lab.inject(flow.frame(&TcpRepr { opts, ..flow.header(TcpFlags::ACK) }, &[]));
        if i % 64 == 0 {
            lab.rest();
        }
    }
    lab.rest();
    sent.extend(lab.take());
    let info = lab.s.info(id).unwrap();
    assert!(info.reordering <= 300, "the degree of reordering has its limit: {}", info.reordering);
    assert!(sent.len() < 100, "{} segments", sent.len());
    lab.s.check_invariants();
    for o in &sent {
        if o.h.seq.0 == flow.ack {
            flow.ack += o.data.len() as u32;
            got.extend(&o.data);
        }
    }
    lab.pass(3000);
    got.extend(flow.gather(&mut lab));
    assert_stream(&got, &text);
    lab.finish();
}

#[test]
fn sequence_numbers_wrap() {
    for iss in [0xffff_ffff, 0xffff_fffe, 0xffff_f000, 0x7fff_ff00, 0xffff_ffff - 2000] {
        for reversed in [false, true] {
            let mut lab = Lab::new();
            let (mut flow, id) = lab.flow(Peer::v4().iss(iss).timestamps(u32::MAX - 1));
            let start = flow.seq;
            let mut parts: Vec<u32> = (0..10).collect();
            if reversed {
                parts.reverse();
            }
            for i in parts {
                let at = i * 700;
                lab.send(flow.data_frame(at, &stream(start.wrapping_add(at), 700)));
                if let Some(ts) = &mut flow.ts {
                    ts.val = ts.val.wrapping_add(1);
                }
            }
            flow.seq = start.wrapping_add(7000);
            assert_eq!(lab.read(id), stream(start, 7000), "from {iss:#x}, reversed {reversed}");
            lab.pass(300);
            assert_eq!(last_ack(&lab.send(flow.data_frame(0, b"!"))), Some(flow.seq.wrapping_add(1)));
            lab.finish();
        }
    }
}

#[test]
fn fins_again_and_data_behind_them() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    // A FIN that comes before its data, and one that lies about where the stream ends.
    let fin = |f: &Flow, ahead: u32| {
        let mut h = f.header(TcpFlags::FIN | TcpFlags::ACK);
        h.seq += ahead;
        f.frame(&h, &[])
    };
    lab.send(fin(&flow, 10));
    assert!(lab.read(id).is_empty());
    flow.send_data(&mut lab, &stream(flow.seq, 10));
    assert_eq!(lab.read(id).len(), 10);
    assert_eq!(lab.s.read(id, &mut [0; 8]), Ok(0), "the end of the stream");
    for _ in 0..20 {
        lab.send(fin(&flow, 0));
        lab.send(flow.data_frame(1, b"behind the FIN"));
        lab.send(fin(&flow, 500));
        assert_eq!(lab.s.read(id, &mut [0; 8]), Ok(0), "what ended stays ended");
    }
    flow.seq += 1;
    lab.take();
    lab.s.write(id, b"the other way is open").unwrap();
    lab.rest();
    assert_eq!(flow.gather(&mut lab), b"the other way is open");
    lab.finish();
}

/// As Linux and RFC 1122 section 4.2.2.13 have it: whoever sends over his own FIN is reset.
#[test]
fn data_over_the_senders_own_fin_resets() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    flow.send_data(&mut lab, &stream(flow.seq, 10));
    lab.send(flow.frame(&flow.header(TcpFlags::FIN | TcpFlags::ACK), &[]));
    let outs = lab.send(flow.data_frame(0, b"over the FIN"));
    assert!(outs.iter().any(|o| o.h.flags.contains(TcpFlags::RST)));
    assert_eq!(lab.drops(DropReason::TcpAbortOnData), 1);
    assert_stream(&lab.read(id), &stream(flow.seq.wrapping_sub(10), 10));
    lab.finish();
}

#[test]
fn old_timestamps_deliver_nothing_and_jumps_do_not_kill() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4().timestamps(1_000_000));
    let honest = flow.ts.unwrap();
    for back in [1000u32, 1 << 20, (1 << 31) - 1] {
        flow.ts = Some(Timestamps { val: honest.val.wrapping_sub(back), ..honest });
        lab.send(flow.data_frame(0, b"replayed"));
    }
    assert_eq!(lab.drops(DropReason::TcpRfc7323Paws), 3);
    assert!(lab.read(id).is_empty());
    // A blind segment outside of the window must not poison the memory of the peer's clock.
    flow.ts = Some(Timestamps { val: honest.val.wrapping_add((1 << 31) - 1), ..honest });
    lab.send(flow.data_frame(1 << 30, b"blind"));
    lab.send(forged(&flow, TcpFlags::RST, 1 << 30, 0));
    flow.ts = Some(honest);
    still_works(&mut lab, &mut flow, id);
    // The peer's own clock jumps forward by all that it can: it goes on from there.
    for jump in [(1u32 << 31) - 1, 1 << 31, 5] {
        flow.ts = flow.ts.map(|ts| Timestamps { val: ts.val.wrapping_add(jump), ..ts });
        still_works(&mut lab, &mut flow, id);
    }
    lab.finish();
}

#[test]
fn timestamps_that_echo_nonsense_do_not_spoil_the_timeout() {
    let (mut lab, mut flow, id, text) = sending(Peer::v4().timestamps(1));
    let mut got = Vec::new();
    for ecr in [0, 1, u32::MAX, 1 << 31, 0x1234_5678] {
        for o in lab.take() {
            if o.h.seq.0 == flow.ack && !o.data.is_empty() {
                flow.ack += 1460.min(o.data.len() as u32);
                got.extend(&o.data[..1460.min(o.data.len())]);
                flow.ts = Some(Timestamps { val: 2, ecr });
                lab.send(flow.ack_frame());
                let info = lab.s.info(id).unwrap();
                assert!(info.rto <= 120_000_000 && info.rtt < 120_000_000, "echo {ecr}: rtt {} us", info.rtt);
            }
        }
        lab.pass(10);
    }
    got.extend(flow.gather(&mut lab));
    assert_stream(&got, &text);
    lab.finish();
}

/// Errors about our segments that nobody on the path could have sent (RFC 5927).
#[test]
fn icmp_about_a_connection_needs_its_numbers() {
    let (mut lab, mut flow, id, text) = sending(Peer::v4());
    let quote = |flow: &Flow, seq: u32| {
        let mut h = flow.header(TcpFlags::ACK);
        (h.src_port, h.dst_port, h.seq) = (flow.local.port(), flow.peer.port(), Seq(seq));
        crate::lab::tcp_frame(flow.local, flow.peer, &h, &[])
    };
    let error = |ty: u8, code: u8, mtu: u16, quote: &[u8]| {
        let [a, b] = mtu.to_be_bytes();
        icmp_frame(&ip("10.0.0.77", "10.0.0.1", proto::ICMP), &[&[ty, code, 0, 0, 0, 0, a, b], quote].concat())
    };
    let mtu = lab.s.info(id).unwrap().pmtu;
    for seq in [flow.ack.wrapping_sub(1 << 20), flow.ack.wrapping_add(1 << 20), flow.ack ^ 0x8000_0000] {
        for code in 0..16 {
            lab.send(error(3, code, 600, &quote(&flow, seq)));
        }
        lab.send(error(11, 0, 0, &quote(&flow, seq)));
        lab.send(error(12, 0, 0, &quote(&flow, seq)));
    }
    let info = lab.s.info(id).unwrap();
    assert_eq!((info.pmtu, info.state), (mtu, 1), "a guess changed the connection");
    // With the right number even absurd MTUs are bounded from below, and raise nothing.
    for claimed in [0, 1, 68, 1499, 9000, 65_535] {
        lab.send(error(3, 4, claimed, &quote(&flow, flow.ack)));
        let info = lab.s.info(id).unwrap();
        assert!(info.pmtu <= mtu && info.snd_mss >= 36 && info.state == 1, "{claimed}: {} {}", info.pmtu, info.snd_mss);
    }
    lab.pass(3000);
    assert_stream(&flow.gather(&mut lab), &text);
    lab.finish();
}

/// The same connection attacked while it opens: our SYN is out, and the answers are wrong.
#[test]
fn wrong_answers_to_a_syn_open_nothing() {
    let mut lab = Lab::new();
    let mut flow = Flow::new(Peer::v4(), 4000);
    let id = lab.s.tcp_connect(flow.peer, None, &linerate_stack::SockOpts::default()).unwrap();
    lab.rest();
    let syn = lab.take().pop().unwrap().h;
    flow.local.set_port(syn.src_port);
    flow.ack = syn.seq.0.wrapping_add(1);
    let (s, a, f, r) = (TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN, TcpFlags::RST);
    for flags in [s | a, a, s | a | f, r | a, a | f, r] {
        for off in [1u32, 1000, 1 << 31, u32::MAX, 77] {
            lab.send(forged(&flow, flags, 0, off));
        }
    }
    for flags in [r, f, TcpFlags::NONE, TcpFlags::PSH, a] {
        lab.send(forged(&flow, flags, 0, 0));
    }
    assert_eq!(lab.s.info(id).map(|i| i.state), Some(2), "still SYN-SENT");
    let synack = TcpRepr { ack: Seq(flow.ack), flags: s | a, ..flow.syn() };
    lab.send(flow.frame(&synack, &[]));
    flow.seq += 1;
    lab.take();
    still_works(&mut lab, &mut flow, id);
    lab.finish();
}
