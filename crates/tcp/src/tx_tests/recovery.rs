//! Losses: finding them, repairing them, and taking the reduction back when there were none.

use super::*;
use crate::txq::tag;
use linerate_cong::CaState;

/// Ten segments in flight, 20 kB more to send, one round trip later.
fn ten_out() -> Peer {
    flight(Setup::default(), 30_000)
}

fn flight(s: Setup, bytes: usize) -> Peer {
    let rtt = s.rtt_us;
    let mut p = Peer::with(s);
    p.write(bytes);
    let sent = p.sent();
    assert!(sent.iter().map(|s| s.len).sum::<u32>() <= 10_000);
    p.pass_us(rtt);
    p
}

fn with_ts() -> Setup {
    let mut s = Setup { mss: 1012, ..Setup::default() };
    s.cfg.timestamps = true;
    s.path.mtu_bytes = 1052;
    s
}

fn without_sack() -> Setup {
    let mut s = Setup::default();
    s.cfg.sack = false;
    s
}

fn state(p: &Peer) -> CaState {
    p.conn.tx.cc.ca_state
}

#[test]
fn three_sacked_segments_start_recovery() {
    let mut p = ten_out();
    p.sack(1, &[(1001, 2001)]);
    assert_eq!(spans(&p.sent()), [(10_001, 1000)], "limited transmit (RFC 3042)");
    p.pass_us(2000);
    p.sack(1, &[(1001, 3001)]);
    assert_eq!(spans(&p.sent()), [(11_001, 1000)]);
    assert_eq!(state(&p), CaState::Disorder);
    p.sack(1, &[(1001, 4001)]);
    assert_eq!(state(&p), CaState::Recovery);
    let sent = p.sent();
    assert_eq!(spans(&sent)[0], (1, 1000), "fast retransmit");
    assert_eq!((p.mib.sack_recovery, p.mib.fast_retrans), (1, 1));
    assert_eq!(p.conn.tx.cc.ssthresh, 5);
    p.pass_us(100_000);
    p.ack(12_001);
    assert_eq!(state(&p), CaState::Open);
    assert!((5..=6).contains(&p.cwnd()), "ssthresh, and what this very ACK adds");
    p.finish();
}

/// An ACK was lost, and the next one reports two new blocks, the latest first (RFC 2018 section 4). Nothing was overtaken on
/// its way: the lower block did not come after the higher one.
#[test]
fn the_order_of_blocks_is_not_that_of_arrivals() {
    let mut p = ten_out();
    p.sack(1, &[(6001, 8001), (1001, 3001), (4001, 5001)]);
    assert_eq!((p.mib.sack_reorder, p.conn.tx.fl.reord_seen), (0, 0));
    assert_eq!(p.conn.tx.sacked_out, 5);
    // A segment that comes below what is known: it was overtaken indeed.
    p.sack(1, &[(3001, 5001), (6001, 8001), (1001, 3001)]);
    assert_eq!((p.mib.sack_reorder, p.conn.tx.fl.reord_seen), (1, 1));
    let end = p.conn.tx.snd_nxt - p.iss;
    p.pass_us(100_000);
    p.ack(end);
    p.finish();
}

#[test]
fn prr_sends_half_of_what_is_delivered_and_lands_on_ssthresh() {
    let mut p = ten_out();
    let mut sent = 0;
    for n in 2..=10 {
        p.pass_us(2000);
        p.sack(1, &[(1001, n * 1000 + 1)]);
        sent += p.sent().iter().map(|s| s.len / 1000).sum::<u32>();
        if state(&p) == CaState::Recovery {
            assert!(p.conn.tx.in_flight() <= p.cwnd());
        }
    }
    // Two by limited transmit, then the retransmission and new data at half the rate of delivery.
    assert!((5..=7).contains(&sent), "{sent}");
    assert!(p.conn.tx.fl.prr.delivered >= 7);
    p.pass_us(100_000);
    let end = p.conn.tx.snd_nxt - p.iss;
    p.ack(end);
    assert!((5..=6).contains(&p.cwnd()), "ssthresh, and what this very ACK adds: {}", p.cwnd());
    p.finish();
}

#[test]
fn a_lone_sack_waits_for_the_reordering_window() {
    let mut p = ten_out();
    p.sack(1, &[(9001, 10_001)]);
    assert_eq!(spans(&p.sent()), [(10_001, 1000)]);
    assert_eq!(p.conn.timers.retrans_kind(), crate::timer::RetransKind::Reo);
    let fired = p.pass_us(30_000);
    let (at, first) = &fired[0];
    assert_eq!((first.seq, *at), (1, 27_000), "a quarter of the least RTT and two ticks");
    assert_eq!(state(&p), CaState::Recovery);
    assert!(p.conn.tx.lost_out == 9);
    p.finish();
}

#[test]
fn a_lost_retransmission_is_found_by_what_was_sent_after_it() {
    let mut p = ten_out();
    for n in 2..=4 {
        p.sack(1, &[(1001, n * 1000 + 1)]);
        p.sent();
    }
    let rexmit_at = p.now;
    p.pass_us(50_000);
    for n in 5..=10 {
        p.sack(1, &[(1001, n * 1000 + 1)]);
        p.sent();
    }
    p.pass_us(60_000);
    assert!(p.now > rexmit_at);
    let end = p.conn.tx.snd_nxt - p.iss;
    p.sack(1, &[(1001, end)]);
    assert!(p.mib.lost_retransmit >= 1, "{:?}", p.conn.tx.lost_out);
    assert_eq!(spans(&p.sent())[0], (1, 1000), "again");
    p.finish();
}

#[test]
fn newreno_repairs_one_hole_per_round_trip() {
    let mut p = flight(without_sack(), 10_000);
    for _ in 0..2 {
        p.ack(1);
        assert!(p.sent().is_empty());
    }
    p.ack(1);
    assert_eq!(spans(&p.sent()), [(1, 1000)]);
    assert_eq!((state(&p), p.mib.reno_recovery), (CaState::Recovery, 1));
    for _ in 0..5 {
        p.ack(1);
    }
    p.pass_us(100_000);
    p.ack(3001);
    assert_eq!(spans(&p.sent())[0], (3001, 1000), "partial ACK (RFC 6582)");
    p.pass_us(100_000);
    p.ack(10_001);
    assert_eq!(p.conn.tx.packets_out, 0);
    p.finish();
}

#[test]
fn window_updates_are_not_duplicates() {
    let mut p = flight(without_sack(), 10_000);
    for i in 1..=5 {
        p.wnd += i * 1000;
        p.ack(1);
    }
    assert_eq!(p.conn.tx.sacked_out, 0);
    assert!(p.sent().is_empty());
    p.finish();
}

#[test]
fn a_partial_sack_cuts_a_super_packet_at_the_mss() {
    let mut s = Setup { rtt_us: 200, ..Setup::default() };
    s.path.init_cwnd_segs = 20;
    let mut p = Peer::with(s);
    p.write(20_000);
    let sent = p.sent();
    assert!(sent[0].segs >= 8, "{sent:?}");
    p.pass_us(200);
    // 3000 bytes from the middle of a segment to the middle of another: two whole ones count.
    p.sack(1, &[(2501, 5501)]);
    assert_eq!(p.conn.tx.sacked_out, 2);
    let q = &p.conn.tx.fl.q;
    let sacked: Vec<_> = (0..q.len()).filter_map(|i| q.get(i)).filter(|s| s.has(tag::SACKED)).collect();
    assert_eq!((sacked[0].seq - p.iss, sacked[0].len()), (3001, 2000));
    p.sack(1, &[(5001, 8001), (3001, 5001)]);
    assert_eq!(p.conn.tx.sacked_out, 5);
    let n = (0..p.conn.tx.fl.q.len()).filter(|&i| p.conn.tx.fl.q.get(i).unwrap().has(tag::SACKED)).count();
    assert_eq!(n, 1, "SACKed neighbours are merged");
    p.finish();
}

#[test]
fn nonsense_blocks_change_nothing() {
    let mut p = ten_out();
    for block in [
        (5001, 4001),
        (1001, 1001),
        (9001, 40_001),
        (40_001, 50_001),
        (0, 1),
        (3_000_000_000, 3_000_001_000),
        (1001, 1500),
        (1, 500),
    ] {
        p.sack(1, &[block]);
        assert_eq!(p.conn.tx.sacked_out, 0, "{block:?}");
    }
    assert!(p.mib.sack_discard >= 3);
    p.sack(1, &[(4001, 5001), (2001, 6001), (2001, 6001), (3001, 4001)]);
    assert_eq!(p.conn.tx.sacked_out, 4);
    p.finish();
}

#[test]
fn a_reneging_peer_is_repaired_by_timeout() {
    let mut p = ten_out();
    p.sack(1, &[(1001, 3001)]);
    p.sent();
    p.ack(1001);
    assert_eq!(p.conn.timers.retrans_kind(), crate::timer::RetransKind::Rto);
    let sent = p.pass_us(50_000);
    assert_eq!(p.mib.sack_reneging, 1);
    assert_eq!((sent[0].1.seq, p.conn.tx.sacked_out), (1001, 0));
    p.pass_us(100_000);
    let end = p.conn.tx.snd_nxt - p.iss;
    p.ack(end);
    assert_eq!(state(&p), CaState::Open);
    p.finish();
}

#[test]
fn timestamps_undo_a_needless_recovery() {
    let mut p = flight(with_ts(), 30_000);
    let original = p.last_tsval;
    for n in 2..=4 {
        p.ack_ts(1, original, &[(1001, n * 1000 + 1)]);
        p.sent();
    }
    assert_eq!(state(&p), CaState::Recovery);
    let before = p.conn.tx.fl.prior_ssthresh;
    p.pass_us(5_000);
    // The original was only late: the ACK echoes its timestamp.
    p.ack_ts(4001, original, &[]);
    assert_eq!((state(&p), p.mib.partial_undo), (CaState::Open, 1));
    assert_eq!(p.conn.tx.cc.ssthresh, before);
    assert!(p.cwnd() >= 10);
    assert_eq!(p.mib.ts_reorder, 1);
    p.finish();
}

#[test]
fn duplicate_sacks_undo_a_needless_recovery() {
    let mut p = ten_out();
    for n in 2..=4 {
        p.sack(1, &[(1001, n * 1000 + 1)]);
        p.sent();
    }
    assert_eq!((state(&p), p.conn.tx.fl.undo_retrans), (CaState::Recovery, 1));
    p.pass_us(10_000);
    p.ack(6001);
    p.sent();
    p.pass_us(80_000);
    p.sack(10_001, &[(1, 1001)]);
    assert_eq!((p.mib.dsack_undo, p.mib.dsack_recv, p.conn.tx.fl.dsack_dups), (1, 1, 1));
    assert!(p.cwnd() >= 10 && p.conn.tx.cc.ssthresh > 1000);
    assert_ne!(state(&p), CaState::Recovery);
    p.finish();
}

#[test]
fn reordering_widens_the_window_instead_of_retransmitting() {
    let mut p = ten_out();
    p.sack(1, &[(1001, 2001)]);
    p.sent();
    p.ack(2001);
    assert_eq!(p.conn.tx.fl.reord_seen, 1);
    p.sent();
    p.pass_us(1000);
    for n in 4..=8 {
        p.sack(2001, &[(3001, n * 1000 + 1)]);
        assert!(p.sent().iter().all(|s| s.seq > 10_000), "no fast retransmit within the window");
    }
    p.ack(9001);
    assert_eq!((p.mib.fast_retrans, p.mib.sack_recovery), (0, 0));
    assert!(p.conn.tx.reordering >= 3);
    p.finish();
}

#[test]
fn a_tail_loss_probe_precedes_the_timeout() {
    let mut p = flight(Setup::default(), 3000);
    let sent = p.pass_us(150_000);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].0, sent[0].1.seq, sent[0].1.len), (102_000, 2001, 1000), "2 srtt and two ticks, the last one");
    assert_eq!(p.mib.loss_probes, 1);
    // Its SACK shows the hole: fast recovery, no timeout.
    p.pass_us(60_000);
    p.sack(1, &[(2001, 3001)]);
    p.sent();
    let more = p.pass_us(40_000);
    assert!(p.mib.sack_recovery == 1 || !more.is_empty());
    p.ack(3001);
    assert_eq!(p.mib.timeouts, 0);
    p.finish();
}

#[test]
fn a_probe_that_repaired_the_loss_costs_a_reduction() {
    let mut p = flight(Setup::default(), 2000);
    p.ack(1001);
    let sent = p.pass_us(500_000);
    assert_eq!(sent[0].1.seq, 1001);
    assert_eq!(p.mib.timeouts, 0);
    p.write(1000);
    p.sent();
    p.ack(3001);
    assert_eq!(p.mib.loss_probe_recovery, 1);
    p.finish();
}

#[test]
fn a_probe_with_both_copies_delivered_costs_nothing() {
    let mut p = flight(Setup::default(), 3000);
    p.pass_us(110_000);
    assert_eq!(p.mib.loss_probes, 1);
    p.sack(3001, &[(2001, 3001)]);
    assert_eq!((p.mib.loss_probe_recovery, p.cwnd() >= 10), (0, true));
    assert!(p.conn.tx.fl.tlp_high_seq.is_none());
    p.finish();
}

#[test]
fn a_new_segment_is_the_better_probe() {
    let mut p = Peer::with(Setup { wnd: 3500, ..Setup::default() });
    p.write(3400);
    p.sent();
    p.write(100);
    let sent = p.pass_us(250_000);
    assert_eq!((sent[0].1.seq, sent[0].1.len), (3401, 100), "Nagle does not hold a probe");
    p.finish();
}

#[test]
fn what_never_reached_the_wire_is_not_probed_for() {
    let mut p = Peer::new();
    p.hold = true;
    p.write(3000);
    assert_eq!(p.sent().iter().map(|s| s.len).sum::<u32>(), 3000);
    let sent = p.pass_us(250_000);
    assert_eq!(sent, [], "the device has it still");
    assert_eq!((p.mib.loss_probes, p.mib.spurious_rtx_host_queues), (0, 1));
    // The RTO is what remains, and it does not ask.
    let sent = p.pass_us(100_000);
    assert_eq!((sent[0].0, sent[0].1.seq, p.mib.timeouts), (50_000, 1, 1), "{sent:?}");
    p.complete();
    p.hold = false;
    p.ack(3001);
    p.finish();
}

#[test]
fn forward_rto_recovery_finds_a_spurious_timeout() {
    let mut p = flight(without_sack(), 30_000);
    let sent = p.pass_us(250_000);
    assert_eq!((sent[0].1.seq, p.mib.timeouts), (1, 1));
    assert_eq!((state(&p), p.cwnd()), (CaState::Loss, 1));
    // The ACKs of the originals were only late.
    p.ack(1001);
    let sent = p.sent();
    assert_eq!(spans(&sent), [(10_001, 1000), (11_001, 1000)], "new data, not retransmissions");
    p.ack(2001);
    assert_eq!(p.mib.spurious_rtos, 1);
    assert!(p.cwnd() >= 10, "{}", p.cwnd());
    assert!(p.conn.tx.cc.ssthresh > 1000);
    p.finish();
}

#[test]
fn forward_rto_recovery_falls_back_when_the_loss_is_real() {
    let mut p = flight(without_sack(), 30_000);
    p.pass_us(250_000);
    p.ack(1001);
    p.sent();
    p.ack(1001);
    assert_eq!(p.mib.spurious_rtos, 0);
    let sent = p.sent();
    assert_eq!(spans(&sent)[0].0, 1001, "conventional recovery: {sent:?}");
    p.finish();
}

#[test]
fn a_timeout_with_sack_repairs_by_slow_start() {
    let mut p = flight(Setup::default(), 10_000);
    p.conn.tx.fl.frto = false;
    p.cfg.frto = 0;
    p.cfg.tlp = false;
    p.conn.rearm_rto(&*cx!(p));
    let sent = p.pass_us(400_000);
    assert_eq!(sent.iter().map(|s| s.1.seq).collect::<Vec<_>>(), [1]);
    assert_eq!(p.conn.tx.lost_out, 10);
    p.ack(1001);
    assert_eq!(spans(&p.sent()).iter().map(|s| s.1).sum::<u32>(), 2000);
    p.pass_us(10_000);
    p.ack(3001);
    let more = p.sent().iter().map(|s| u64::from(s.segs)).sum::<u64>();
    assert_eq!((more, p.mib.slow_start_retrans), (4, 1 + 2 + 4));
    p.pass_us(10_000);
    p.ack(10_001);
    assert_eq!(state(&p), CaState::Open);
    p.finish();
}

#[test]
fn small_neighbours_ride_along_with_a_retransmission() {
    let mut s = Setup::default();
    s.opts.nodelay = true;
    s.cfg.tlp = false;
    let mut p = Peer::with(s);
    for _ in 0..8 {
        p.write(100);
        p.sent();
    }
    assert_eq!(p.conn.tx.packets_out, 8);
    let sent = p.pass_us(310_000);
    assert_eq!((sent[0].1.seq, sent[0].1.len), (1, 800));
    assert_eq!(p.conn.tx.packets_out, 1);
    p.ack(801);
    p.finish();
}

#[test]
fn records_stay_apart_in_retransmissions_too() {
    let mut s = Setup::default();
    s.opts.nodelay = true;
    s.cfg.tlp = false;
    let mut p = Peer::with(s);
    for _ in 0..4 {
        p.write_with(100, SendFlags { more: false, eor: true }).unwrap();
    }
    p.sent();
    let sent = p.pass_us(310_000);
    assert_eq!((sent[0].1.seq, sent[0].1.len), (1, 100));
    p.finish();
}

#[test]
fn a_smaller_path_mtu_resends_what_no_longer_fits() {
    let mut p = ten_out();
    let cwnd = p.cwnd();
    let seq = p.iss + 1;
    p.conn.on_icmp(cx!(p), crate::path::IcmpError { kind: crate::path::IcmpKind::PktTooBig, mtu: 540, seq });
    p.conn.check_invariants();
    assert_eq!(p.conn.current_mss(), 500);
    let sent = p.sent();
    assert!(sent.iter().all(|s| s.mss <= 500 && (s.segs > 1 || s.len <= 500)), "{sent:?}");
    assert_eq!((sent[0].seq, p.cwnd()), (1, cwnd), "the window is not reduced");
    p.conn
        .on_icmp(cx!(p), crate::path::IcmpError { kind: crate::path::IcmpKind::PktTooBig, mtu: 500, seq: seq - 9000 });
    assert_eq!(p.mib.out_of_window_icmps, 1);
    p.finish();
}

#[test]
fn one_byte_segments_are_linear() {
    let mut s = Setup::default();
    s.opts.nodelay = true;
    s.opts.sndbuf_bytes = 100 << 20;
    s.cfg.limit_output_bytes = 1 << 30;
    s.path.init_cwnd_segs = 40_000;
    s.cfg.max_reordering_segs = 300;
    let mut p = Peer::with(s);
    let n = 20_000_u32;
    for i in 0..n {
        let byte = [Peer::pattern(u64::from(i))];
        p.conn.write(cx!(p), &byte, SendFlags::default()).unwrap();
        let mut out = core::mem::take(&mut p.out);
        p.conn.poll_xmit(cx!(p), &mut out, 8);
        for skb in out.drain(..) {
            p.conn.tx.wmem_alloc -= skb.truesize;
            p.skbs.free(skb, &mut p.pool);
        }
        p.out = out;
    }
    assert_eq!(p.conn.tx.packets_out, n);
    p.pass_us(1000);
    // Every second byte, one ACK each, in order: the scoreboard stays exact.
    for i in (2..n).step_by(2) {
        let mut seg = p.seg(1);
        seg.sack = SackBlocks::from_slice(&[(p.iss + i, p.iss + i + 1)]);
        p.conn.on_ack(cx!(p), &seg).unwrap();
    }
    p.conn.check_invariants();
    assert_eq!(p.conn.tx.sacked_out, n / 2 - 1);
    p.ack(n + 1);
    assert_eq!(p.conn.tx.packets_out, 0);
    p.finish();
}

#[test]
fn merging_neighbours_keeps_guesses_below_what_is_out() {
    let mut p = flight(without_sack(), 2001);
    p.ack(1);
    let seq = p.iss + 1;
    p.conn.on_icmp(cx!(p), crate::path::IcmpError { kind: crate::path::IcmpKind::PktTooBig, mtu: 492, seq });
    p.sent();
    p.pass_us(100_000);
    p.ack(2002 - 1);
    p.finish();
}

#[test]
fn a_late_probe_of_a_lost_segment_counts_as_its_retransmission() {
    let mut p = flight(Setup::default(), 3000);
    // The probe timer fires, and before anything leaves the path shrinks: all of it is lost.
    p.now = p.now.plus_micros(103_000);
    p.conn.on_timer(cx!(p));
    let seq = p.iss + 1;
    p.conn.on_icmp(cx!(p), crate::path::IcmpError { kind: crate::path::IcmpKind::PktTooBig, mtu: 540, seq });
    let sent = p.sent();
    assert!(sent.len() > 1);
    assert!(p.conn.tx.retrans_out > 0);
    p.finish();
}
