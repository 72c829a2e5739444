//! Windows that shut, shrink and open by a byte; segments of a byte, and segments that overlap.
//!
//! Memory is what the peer can make us hold: at most the receive buffer in truesize (and one segment), at most the send
//! buffer of what the application wrote. The announced right edge never moves back. Work is linear in segments: it is
//! counted in skbs that were copied together, not in seconds.

use linerate_base::Rng;
use linerate_stack::{SendError, SockId, TcpOpt};
use linerate_wire::TcpFlags;

use crate::lab::{Flow, Lab, Peer, assert_stream, last_ack, stream};
use crate::reasons::fill_window;

/// Most that one segment of the laboratory's device is charged above the limit.
const ONE_SEGMENT: u32 = 8192;

/// What the shard promised so far, and that it never takes it back.
struct Edge {
    right: Option<u32>,
}

impl Edge {
    fn watch(&mut self, lab: &mut Lab, flow: &Flow) {
        for o in lab.take().iter().filter(|o| o.h.dst_port == flow.peer.port() && o.h.flags.contains(TcpFlags::ACK)) {
            let right = o.h.ack.0.wrapping_add(u32::from(o.h.window) << flow.shard_wscale);
            if let Some(old) = self.right {
                assert!(right.wrapping_sub(old) as i32 >= 0, "the window's right edge moved back");
            }
            self.right = Some(right);
        }
    }
}

/// Memory within limits, books and pages alike.
fn check_memory(lab: &Lab, id: SockId) {
    let conn = lab.s.conn(id).expect("alive");
    let (used, limit) = (conn.rmem_alloc_bytes(), conn.rcvbuf_bytes());
    assert!(used <= limit + ONE_SEGMENT, "{used} bytes held, {limit} allowed");
    let mem = &lab.s.core().mem;
    let pages = u64::from(lab.rx_pages()) * 4096 + u64::from(mem.tx_pool.inflight()) * 32_768;
    let held = pages + u64::from(mem.skbs.inflight()) * 640;
    assert!(held <= u64::from(limit) + 200_000, "{held} bytes of pages and descriptors held, {limit} allowed");
}

/// Sends segments of `len` bytes in an order, never reading, then the stream again in good order: all of it arrives.
fn tiny_segments(len: u32, order: impl Iterator<Item = u32>, total: u32) {
    let mut lab = Lab::new();
    lab.s.set_opt(lab.listener, TcpOpt::RcvBuf(65_536)).unwrap();
    let (flow, id) = lab.flow(Peer::v4());
    let (start, mut edge, mut sent) = (flow.seq, Edge { right: None }, 0u64);
    for at in order {
        lab.inject(flow.data_frame(at, &stream(start.wrapping_add(at), len as usize)));
        sent += 1;
        if sent % 16 == 0 {
            lab.rest();
            edge.watch(&mut lab, &flow);
            check_memory(&lab, id);
        }
    }
    lab.rest();
    let mib = &lab.s.mibs().tcp;
    assert!(mib.rcv_collapsed <= 4 * sent, "{} skbs copied together for {sent} segments", mib.rcv_collapsed);
    lab.s.check_invariants();
    let mut got = lab.read(id);
    let mut at = 0;
    while at < total {
        let len = 1000.min(total - at);
        lab.send(flow.data_frame(at, &stream(start.wrapping_add(at), len as usize)));
        got.extend(lab.read(id));
        at += len;
    }
    assert_stream(&got, &stream(start, total as usize));
    lab.prove_alive();
    lab.finish();
}

#[test]
fn sixty_four_kilobytes_of_single_bytes_in_order() {
    tiny_segments(1, 0..65_536, 65_536);
}

#[test]
fn sixty_four_kilobytes_of_single_bytes_backwards() {
    tiny_segments(1, (0..65_536).rev(), 65_536);
}

#[test]
fn every_second_of_sixty_four_thousand_bytes() {
    tiny_segments(1, (0..65_536).filter(|i| i % 2 == 1), 65_536);
    tiny_segments(1, (0..65_536).rev().filter(|i| i % 2 == 1), 65_536);
}

#[test]
fn small_segments_that_pin_a_page_each() {
    tiny_segments(150, (0..400).map(|i| i * 150), 60_000);
    tiny_segments(150, (0..400).rev().map(|i| i * 151 + 1), 60_600);
    tiny_segments(90, (0..300).map(|i| i * 200 + 1), 60_600);
}

#[test]
fn a_random_order_of_tiny_segments() {
    let mut rng = Rng::new(11);
    let order: Vec<u32> = (0..20_000).map(|_| rng.below(60_000) as u32).collect();
    tiny_segments(7, order.into_iter(), 61_000);
}

/// What was delivered never changes, and no byte comes twice, whatever overlaps whatever.
#[test]
fn overlapping_segments_deliver_each_byte_once() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut lab = Lab::new();
        let (mut flow, id) = lab.flow(Peer::v4());
        let mut copies: Vec<Vec<u8>> = vec![Vec::new(); 400];
        let mut got = Vec::new();
        for n in 1..=60u8 {
            let (at, len) = (rng.below(380) as u32, 1 + rng.below(20) as u32);
            // Each segment has a content of its own.
            lab.send(flow.data_frame(at, &vec![n; len as usize]));
            for place in copies.iter_mut().skip(at as usize).take(len as usize) {
                place.push(n);
            }
            if rng.chance(0.2) {
                got.extend(lab.read(id));
            }
        }
        lab.send(flow.data_frame(0, &[200; 400]));
        copies.iter_mut().for_each(|c| c.push(200));
        flow.seq += 400;
        got.extend(lab.read(id));
        assert_eq!(got.len(), 400, "seed {seed}");
        assert!(got.iter().zip(&copies).all(|(b, c)| c.contains(b)), "seed {seed}: a byte that nobody sent");
        lab.send(flow.data_frame(0u32.wrapping_sub(400), &[201; 400]));
        assert!(lab.read(id).is_empty(), "delivered twice");
        lab.finish();
    }
}

/// In order, the first copy is the one that counts.
#[test]
fn the_first_copy_in_order_wins() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    flow.send_data(&mut lab, &[1; 100]);
    lab.send(flow.data_frame(50u32.wrapping_sub(100), &[2; 100]));
    lab.send(flow.data_frame(0, &[3; 70]));
    let got = lab.read(id);
    assert_eq!((&got[..100], &got[100..150], &got[150..]), (&[1; 100][..], &[2; 50][..], &[3; 20][..]));
    lab.finish();
}

/// A peer that acknowledges and never reads: the writer waits, memory is bounded, probes back off.
#[test]
fn a_peer_that_never_reads_is_probed_ever_more_rarely() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer { window: 0, ..Peer::v4() });
    let mut written = 0;
    let refusal = loop {
        match lab.s.write(id, &[7; 65_536]) {
            Ok(n) => written += n,
            Err(e) => break e,
        }
        lab.rest();
        assert!(written < 64 << 20, "the writer is never stopped");
    };
    assert_eq!(refusal, SendError::WouldBlock);
    let conn = lab.s.conn(id).unwrap();
    assert!(conn.wmem_queued_bytes() <= 2 * conn.sndbuf_bytes() + 65_536);
    let held = lab.mem_bytes();
    let mut probes = Vec::new();
    while lab.now.as_millis() < (1000 + 3600) * 1000 {
        lab.pass(100);
        for o in lab.take() {
            assert!(o.data.len() <= 1, "data into a shut window");
            probes.push(lab.now);
            flow.ack = flow.ack.max(o.h.seq.0);
            let ack = flow.ack_frame();
            lab.inject(ack);
        }
    }
    assert!((25..=60).contains(&probes.len()), "{} probes in an hour", probes.len());
    let gaps: Vec<u64> = probes.windows(2).map(|w| (w[1].as_millis() - w[0].as_millis()) / 1000).collect();
    assert!(gaps.windows(2).all(|g| g[1] + 2 >= g[0]), "backing off: {gaps:?}");
    assert!(lab.mem_bytes() <= held, "nothing grows while nothing moves");
    assert!(matches!(lab.s.write(id, b"x"), Err(SendError::WouldBlock)));
    // It reads at last.
    flow.window = 0xffff;
    lab.inject(flow.ack_frame());
    lab.rest();
    assert_eq!(flow.gather(&mut lab).len(), written);
    lab.finish();
}

#[test]
fn a_peer_that_vanishes_behind_a_shut_window_is_given_up() {
    let mut lab = Lab::new();
    let (_, id) = lab.flow(Peer { window: 0, ..Peer::v4() });
    lab.s.write(id, &[7; 1000]).unwrap();
    lab.pass(3_600_000);
    assert!(lab.take().len() < 40);
    assert!(lab.s.take_error(id).is_some(), "ETIMEDOUT");
    assert_eq!(lab.mem_bytes(), 0);
    lab.s.close(id).unwrap();
    lab.finish();
}

#[test]
fn windows_that_shrink_below_what_is_under_way() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::bare());
    let text = stream(3, 60_000);
    assert_eq!(lab.s.write(id, &text), Ok(60_000));
    lab.rest();
    let (mut got, mut rng) = (Vec::new(), Rng::new(3));
    for _ in 0..400 {
        for o in lab.take() {
            if o.h.seq.0 == flow.ack {
                flow.ack = flow.ack.wrapping_add(o.data.len() as u32);
                got.extend(o.data);
            }
        }
        flow.window = rng.below(3000) as u16 * u16::from(rng.chance(0.7));
        lab.inject(flow.ack_frame());
        lab.rest();
        lab.s.check_invariants();
        lab.pass(rng.below(400));
    }
    flow.window = 0xffff;
    lab.pass(1000);
    got.extend(flow.gather(&mut lab));
    assert_stream(&got, &text);
    lab.finish();
}

/// A window that opens byte by byte must not be answered byte by byte (RFC 1122 section 4.2.3.4).
#[test]
fn the_sender_avoids_the_silly_window() {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer { window: 0, ..Peer::bare() });
    lab.s.write(id, &[7; 20_000]).unwrap();
    lab.rest();
    lab.take();
    let mut segments = 0;
    for window in 1..1400 {
        flow.window = window;
        lab.inject(flow.ack_frame());
        lab.rest();
        segments += lab.take().iter().filter(|o| !o.data.is_empty()).count();
    }
    assert!(segments <= 8, "{segments} segments for a window that opens by a byte");
    lab.finish();
}

/// A reader that takes a byte at a time must not announce a byte at a time (RFC 9293 section 3.8.6.2.2).
#[test]
fn the_receiver_avoids_the_silly_window() {
    let mut lab = Lab::new();
    lab.s.set_opt(lab.listener, TcpOpt::RcvBuf(32_768)).unwrap();
    let (mut flow, id) = lab.flow(Peer::bare());
    fill_window(&mut lab, &mut flow);
    lab.take();
    let (mut updates, mut reads) = (0, 0);
    while lab.s.read(id, &mut [0]).is_ok() {
        reads += 1;
        lab.rest();
        updates += lab.take().len();
    }
    assert!(reads > 4000 && updates <= 24, "{updates} window updates for {reads} reads");
    lab.finish();
}

/// One byte into a shut window, for ever: each probe is answered, none is taken, nothing grows.
#[test]
fn window_probes_are_answered_and_not_stored() {
    let mut lab = Lab::new();
    lab.s.set_opt(lab.listener, TcpOpt::RcvBuf(32_768)).unwrap();
    let (mut flow, id) = lab.flow(Peer::bare());
    fill_window(&mut lab, &mut flow);
    let (held, total) = (lab.mem_bytes(), lab.total_drops());
    for i in 0..2000u64 {
        let outs = lab.send(flow.data_frame(0, b"?"));
        assert_eq!(last_ack(&outs), Some(flow.seq), "probe {i}");
    }
    assert_eq!((lab.mem_bytes(), lab.total_drops()), (held, total + 2000));
    let read = lab.read(id).len();
    assert!(read > 4000);
    lab.pass(10);
    flow.send_data(&mut lab, b"!");
    assert_eq!(lab.read(id), b"!");
    lab.finish();
}

/// A flow that the shard opened is no weaker than one that it accepted.
#[test]
fn a_connecting_shard_is_as_careful() {
    let mut lab = Lab::new();
    let (flow, id) = lab.flow_out(Peer::v6());
    let start = flow.seq;
    for at in (0..2000).rev() {
        lab.send(flow.data_frame(at, &stream(start + at, 1)));
    }
    assert_stream(&lab.read(id), &stream(start, 2000));
    lab.finish();
}
