//! Out of order: reassembly, SACK, DSACK, memory.

use crate::config::{SockOpts, TcpConfig};
use crate::testing::{Host, syn_opts};
use linerate_base::rng::Rng;
use linerate_base::{DropReason, Duration};
use linerate_wire::TcpFlags;
use std::vec;
use std::vec::Vec;

#[test]
fn a_gap_is_reported_and_filled() {
    let mut host = Host::new();
    host.data(1001, 1000).unwrap();
    let ack = host.acked(1);
    assert_eq!(host.sacks(&ack), [(1001, 2001)]);
    assert_eq!(host.conn.inq_bytes(), 0);
    host.data(1, 1000).unwrap();
    let ack = host.acked(2001);
    assert!(ack.opts.sack.is_empty());
    assert_eq!(host.read_all(), 2000);
    assert_eq!(host.w.mib.ofo_queue, 1);
    host.finish();
}

/// RFC 2018 section 4: the block with the segment that triggered the ACK comes first, then the most recent ones.
#[test]
fn sack_blocks_are_most_recent_first() {
    let mut host = Host::without_ts();
    for (seq, want) in [
        (1001, vec![(1001, 1101)]),
        (3001, vec![(3001, 3101), (1001, 1101)]),
        (5001, vec![(5001, 5101), (3001, 3101), (1001, 1101)]),
        (3101, vec![(3001, 3201), (5001, 5101), (1001, 1101)]),
        (7001, vec![(7001, 7101), (3001, 3201), (5001, 5101), (1001, 1101)]),
        (9001, vec![(9001, 9101), (7001, 7101), (3001, 3201), (5001, 5101)]),
    ] {
        host.data(seq, 100).unwrap();
        if !host.conn.ack_now() {
            host.advance(Duration::from_millis(1));
        }
        let ack = host.acked(1);
        assert_eq!(host.sacks(&ack), want, "after {seq}");
    }
    host.finish();
}

#[test]
fn three_blocks_fit_beside_timestamps() {
    let mut host = Host::new();
    for seq in [1001, 3001, 5001, 7001] {
        host.data(seq, 100).unwrap();
    }
    let ack = host.acked(1);
    assert_eq!(host.sacks(&ack), [(7001, 7101), (5001, 5101), (3001, 3101)]);
    host.finish();
}

#[test]
fn duplicates_are_reported_once_by_dsack() {
    let mut host = Host::without_ts();
    host.data(1, 1000).unwrap();
    host.acked(1001);
    assert_eq!(host.data(501, 500), Err(DropReason::TcpOldData));
    let ack = host.acked(1001);
    assert_eq!(host.sacks(&ack), [(501, 1001)]);
    assert_eq!((host.w.mib.dsack_old_sent, host.w.mib.delayed_ack_lost), (1, 1));
    // Half old, half new.
    host.data(801, 400).unwrap();
    let ack = host.acked(1201);
    assert_eq!(host.sacks(&ack), [(801, 1001)]);
    // Twice out of order: the DSACK stands before the block that holds it (RFC 2883 section 4.1).
    host.data(2001, 100).unwrap();
    host.acked(1201);
    host.data(2001, 100).unwrap();
    let ack = host.acked(1201);
    assert_eq!(host.sacks(&ack), [(2001, 2101), (2001, 2101)]);
    assert_eq!(host.w.mib.dsack_ofo_sent, 1);
    assert_eq!(host.w.drops.get(DropReason::TcpOfoMerge), 1);
    host.data(1201, 100).unwrap();
    let ack = host.acked(1301);
    assert_eq!(host.sacks(&ack), [(2001, 2101)], "reported once");
    assert_eq!(host.read_all(), 1300);
    host.finish();
}

#[test]
fn overlaps_deliver_every_byte_once() {
    let mut rng = Rng::new(4711);
    for round in 0..30 {
        let mut host = if round % 2 == 0 { Host::new() } else { Host::without_ts() };
        let total = 20_000u32;
        while host.read_pos < u64::from(total) {
            let nxt = host.conn.rx.nxt - (host.irs + 1);
            let base = nxt.saturating_sub(2000);
            let seq = base + rng.below(8000) as u32;
            let len = (1 + rng.below(3000) as u32).min(total - seq.min(total));
            if len > 0 {
                let _any = host.data(1 + seq, len as usize);
            }
            if rng.chance(0.3) {
                host.read_all();
            }
            host.sent();
        }
        assert_eq!(host.read_pos, u64::from(total));
        assert!(host.conn.rx.ofo_is_empty());
        assert_eq!(host.conn.rx.rmem_alloc, 0);
        host.finish();
    }
}

#[test]
fn a_fin_out_of_order_waits_for_the_data_before_it() {
    let mut host = Host::new();
    host.segment(TcpFlags::ACK | TcpFlags::FIN, 1001, 500, 1).unwrap();
    let ack = host.acked(1);
    assert_eq!(host.sacks(&ack), [(1001, 1502)], "the FIN counts");
    host.data(1, 1000).unwrap();
    host.acked(1502);
    assert_eq!(host.read_all(), 1500);
    assert_eq!(host.read(&mut [0; 10]), Ok(0), "end of stream");
    host.finish();

    let mut host = Host::new();
    host.segment(TcpFlags::ACK | TcpFlags::FIN, 1001, 0, 1).unwrap();
    host.data(1, 1000).unwrap();
    host.acked(1002);
    assert_eq!(host.read_all(), 1000);
    host.finish();
}

/// One-byte segments, each behind a gap: memory stays within the buffer and one segment, time is linear.
#[test]
fn one_byte_segments_with_gaps_are_bounded() {
    let mut host = Host::new();
    for i in 0..30_000u32 {
        let _refused_when_full = host.data(3 + 2 * i, 1);
        host.sent();
        assert!(host.conn.rx.rmem_alloc <= host.conn.rx.rcvbuf + 4096);
    }
    assert!(host.conn.rx.ofo.as_ref().unwrap().len() <= host.conn.rx.rcvbuf as usize / 640 + 1);
    assert!(host.w.drops.total() > 0 && host.w.mib.prune_called > 0);
    host.finish();
}

/// The same without gaps but in reverse order, which merges: nothing is refused.
#[test]
fn one_byte_segments_in_reverse_collapse() {
    let mut host = Host::new();
    let n = 20_000u32;
    for i in (0..n).rev() {
        host.data(1 + i, 1).unwrap();
        if i % 64 == 0 {
            host.sent();
        }
    }
    assert_eq!(host.read_all(), n as usize);
    host.finish();
}

#[test]
fn tiny_segments_in_order_are_collapsed_not_refused() {
    let opts = SockOpts { rcvbuf_bytes: 65_536, ..SockOpts::default() };
    let mut host = Host::established(TcpConfig::default(), opts, syn_opts(Some(1)));
    let mut sent = 0u32;
    while sent < 8_000 {
        host.data(1 + sent, 20).unwrap();
        sent += 20;
        host.sent();
    }
    assert!(host.w.mib.rcv_collapsed > 0, "400 skbs of 2.7 KB do not fit 64 KB");
    assert!(host.conn.rx.rmem_alloc <= host.conn.rx.rcvbuf);
    assert_eq!(host.read_all(), 8_000);
    host.finish();
}

#[test]
fn pruning_forgets_what_sack_promised() {
    let opts = SockOpts { rcvbuf_bytes: 32_768, ..SockOpts::default() };
    let mut host = Host::established(TcpConfig::default(), opts, syn_opts(Some(1)));
    let mut seqs: Vec<u32> = (0..70).map(|i| 1_001 + i * 205).collect();
    seqs.reverse();
    for seq in seqs {
        let _refused_when_full = host.data(seq, 200);
        host.sent();
    }
    assert!(host.w.mib.ofo_pruned > 0);
    assert!(host.w.drops.get(DropReason::TcpOfoQueuePrune) > 0);
    host.finish();
}

#[test]
fn duplicate_acks_are_compressed_after_the_third() {
    let mut host = Host::without_ts();
    host.conn.rx.rtt.rtt_us8 = 8 * 100_000;
    host.conn.tx.srtt_us8 = 8 * 100_000;
    let mut acks = 0;
    for i in 0..20 {
        host.data(2001 + i * 1000, 1000).unwrap();
        acks += host.sent().len();
    }
    assert_eq!(acks, 3, "three at once, the others wait");
    let before = host.w.now;
    host.advance(Duration::from_millis(10));
    assert_eq!(host.w.now.since(before), Duration::from_millis(1), "min(1 ms, 5 % of 100 ms)");
    host.acked(1);
    assert_eq!(host.w.mib.ack_compressed, 17);
    host.finish();
}
