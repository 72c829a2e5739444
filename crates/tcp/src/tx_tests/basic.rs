//! Sending without trouble: windows, Nagle and its relatives, units, small queues.

use super::*;
use crate::conn::Event;

#[test]
fn initial_window_is_ten_and_slow_start_doubles() {
    let mut p = Peer::new();
    assert_eq!(p.write(100_000), 100_000);
    let first = p.sent();
    assert_eq!(first.iter().map(|s| s.len).sum::<u32>(), 10_000);
    assert_eq!(first[0].seq, 1);
    assert!(first.iter().all(|s| s.len % 1000 == 0), "whole segments: {first:?}");
    assert!(p.sent().is_empty(), "the window is full");
    p.pass_us(100_000);
    let mut acked = 1;
    let mut got = 0;
    for _ in 0..5 {
        acked += 2000;
        p.ack(acked);
        got += p.sent().iter().map(|s| s.len).sum::<u32>();
    }
    assert_eq!(p.cwnd(), 20);
    assert_eq!(got, 20_000, "twice what was acknowledged");
    p.finish();
}

#[test]
fn the_route_gives_another_initial_window() {
    let mut s = Setup::default();
    s.path.init_cwnd_segs = 4;
    let mut p = Peer::with(s);
    p.write(10_000);
    assert_eq!(p.sent().iter().map(|s| s.len).sum::<u32>(), 4000);
    p.finish();
}

#[test]
fn the_peers_window_bounds_what_leaves() {
    let mut p = Peer::with(Setup { wnd: 3500, ..Setup::default() });
    p.write(10_000);
    let sent = p.sent();
    assert!(sent.iter().map(Sent::end).max().unwrap() <= 3501);
    assert_eq!(p.conn.tx.fl.chrono, crate::tx::Chrono::RwndLimited);
    p.ack(1 + sent.iter().map(|s| s.len).sum::<u32>());
    assert!(!p.sent().is_empty());
    p.finish();
}

#[test]
fn nagle_holds_the_second_small_write() {
    let mut p = Peer::new();
    p.write(100);
    assert_eq!(spans(&p.sent()), [(1, 100)]);
    p.write(100);
    assert!(p.sent().is_empty(), "a small segment is in flight");
    p.write(950);
    assert_eq!(spans(&p.sent()), [(101, 1000)], "a full one may go, its rest waits");
    p.ack(1101);
    let last = p.sent();
    assert_eq!(spans(&last), [(1101, 50)]);
    assert!(last[0].flags.contains(TcpFlags::PSH));
    p.finish();
}

#[test]
fn minshall_lets_a_small_tail_follow_full_segments() {
    let mut p = Peer::new();
    p.write(2500);
    assert_eq!(p.sent().iter().map(|s| s.len).sum::<u32>(), 2500, "only full segments were in flight");
    p.write(10);
    assert!(p.sent().is_empty());
    p.finish();
}

#[test]
fn nodelay_sends_at_once_and_cork_holds_until_taken_off() {
    let mut s = Setup::default();
    s.opts.nodelay = true;
    let mut p = Peer::with(s);
    for i in 0..3 {
        p.write(10);
        assert_eq!(spans(&p.sent()), [(1 + 10 * i, 10)]);
    }
    p.conn.opts.make_mut().cork = true;
    p.write(10);
    assert!(p.sent().is_empty());
    p.write(1000);
    assert_eq!(spans(&p.sent()), [(31, 1000)]);
    p.conn.opts.make_mut().cork = false;
    p.conn.push_now();
    assert_eq!(spans(&p.sent()), [(1031, 10)]);
    p.finish();
}

#[test]
fn more_holds_until_a_write_without_it_or_an_ack() {
    let mut p = Peer::new();
    let more = SendFlags { more: true, eor: false };
    p.write_with(100, more).unwrap();
    assert!(p.sent().is_empty());
    p.write(50);
    let sent = p.sent();
    assert_eq!(spans(&sent), [(1, 150)]);
    assert!(sent[0].flags.contains(TcpFlags::PSH));
    p.ack(151);
    p.write_with(2500, more).unwrap();
    let sent = p.sent();
    assert_eq!(spans(&sent), [(151, 2000)]);
    p.ack(2151);
    assert_eq!(spans(&p.sent()), [(2151, 500)], "an ACK pushes what is pending");
    p.finish();
}

#[test]
fn records_never_share_a_segment() {
    let mut p = Peer::new();
    let eor = SendFlags { more: false, eor: true };
    p.conn.opts.make_mut().nodelay = true;
    p.write_with(300, eor).unwrap();
    p.write_with(300, eor).unwrap();
    p.write(400);
    p.write(100);
    assert_eq!(spans(&p.sent()), [(1, 300), (301, 300), (601, 500)]);
    p.finish();
}

#[test]
fn push_marks_the_end_of_each_write_and_of_each_super_packet() {
    let mut p = Peer::new();
    p.write(3000);
    let sent = p.sent();
    assert_eq!(spans(&sent), [(1, 2000), (2001, 1000)]);
    assert!(sent.iter().all(|s| s.flags.contains(TcpFlags::PSH)));
    p.ack(3001);
    p.write_with(1000, SendFlags { more: true, eor: false }).unwrap();
    let sent = p.sent();
    assert_eq!(spans(&sent), [(3001, 1000)]);
    assert!(!sent[0].flags.contains(TcpFlags::PSH));
    p.ack(4001);
    p.finish();
}

#[test]
fn super_packets_are_whole_segments_with_their_facts() {
    let mut p = Peer::with(Setup { rtt_us: 200, ..Setup::default() });
    p.write(200_000);
    let sent = p.sent();
    assert!(sent.iter().any(|s| s.segs > 1 && s.mss == 1000 && s.len == s.segs * 1000), "{sent:?}");
    assert_eq!(p.mib.out_segs, 1 + 10);
    p.finish();
}

#[test]
fn small_queues_bound_what_lies_below() {
    let mut s = Setup { rtt_us: 100_000, ..Setup::default() };
    s.path.init_cwnd_segs = 1000;
    s.cfg.wmem_bytes = [4096, 4 << 20, 4 << 20];
    let mut p = Peer::with(s);
    p.hold = true;
    p.write(1_000_000);
    let first = p.sent();
    let bytes = first.iter().map(|s| s.len).sum::<u32>();
    // A millisecond of 1000 segments per 100 ms, doubled in slow start, is 20 kB.
    assert!((10_000..60_000).contains(&bytes), "{bytes}");
    assert!(p.sent().is_empty());
    p.complete();
    assert!(!p.sent().is_empty(), "completions let the next out");
    p.finish();
}

#[test]
fn a_full_buffer_blocks_and_a_third_free_wakes() {
    let mut s = Setup::default();
    s.opts.sndbuf_bytes = 40_000;
    let mut p = Peer::with(s);
    let mut total = 0;
    loop {
        match p.write(5000) {
            0 => break,
            n => total += n,
        }
    }
    assert!(total >= 30_000, "{total}");
    assert_eq!(p.write_with(1, SendFlags::default()), Err(SendError::WouldBlock));
    while p.conn.poll_event().is_some() {}
    let mut acked = 1;
    let mut woken_at = None;
    p.sent();
    while acked < total as u32 {
        p.pass_us(10_000);
        acked = (acked + 1000).min(p.conn.tx.snd_nxt - p.iss);
        p.ack(acked);
        p.sent();
        if p.conn.poll_event() == Some(Event::Writable) {
            woken_at = Some(p.conn.snd_free());
            break;
        }
    }
    let free = woken_at.expect("woken") as u32;
    assert!(free >= 40_000 / 3 - 1024, "{free}");
    p.finish();
}

#[test]
fn the_buffer_grows_with_the_window() {
    let mut s = Setup::default();
    s.cfg.wmem_bytes = [4096, 16_384, 4 << 20];
    let mut p = Peer::with(s);
    let before = p.conn.tx.sndbuf;
    assert!(before >= 2 * 10 * 2048, "two initial windows by truesize: {before}");
    let mut acked = 1;
    for _ in 0..60 {
        p.write(500_000);
        p.sent();
        p.pass_us(50_000);
        acked = p.conn.tx.snd_nxt - p.iss;
        p.ack(acked);
    }
    assert!(acked > 100_000);
    assert!(p.conn.tx.sndbuf > before, "{}", p.conn.tx.sndbuf);
    p.finish();
}

#[test]
fn fin_rides_on_the_last_data_and_is_acknowledged() {
    let mut p = Peer::new();
    p.write(1500);
    p.close_write();
    let sent = p.sent();
    assert_eq!(sent.iter().map(|s| s.len).sum::<u32>(), 1500);
    assert!(sent.last().unwrap().flags.contains(TcpFlags::FIN));
    assert!(p.ack(1501).una_advanced && !p.conn.is_all_acked());
    assert!(p.ack(1502).una_advanced && p.conn.is_all_acked());
    p.finish();
}

#[test]
fn a_full_segment_with_fin_is_one_wire_segment() {
    let mut p = Peer::new();
    p.write(1000);
    p.close_write();
    let sent = p.sent();
    assert_eq!((sent.len(), sent[0].len, sent[0].segs), (1, 1000, 1));
    assert_eq!(p.conn.tx.packets_out, 1);
    p.finish();
}

#[test]
fn sequence_numbers_wrap() {
    let mut p = Peer::with(Setup { iss: u32::MAX - 2500, ..Setup::default() });
    p.write(10_000);
    assert_eq!(p.sent().iter().map(|s| s.len).sum::<u32>(), 10_000);
    p.sack(1001, &[(3001, 5001)]);
    p.sack(1001, &[(3001, 7001)]);
    p.sent();
    p.pass_us(300_000);
    p.ack(10_001);
    assert_eq!(p.conn.tx.packets_out, 0);
    p.finish();
}

#[test]
fn fragments_are_taken_by_reference() {
    let mut p = Peer::new();
    let mut page = p.pool.alloc().unwrap();
    let data: Vec<u8> = (0..8000).map(Peer::pattern).collect();
    let frag = page.append(&Kernels::portable(), &data).unwrap();
    p.conn.write_frag(cx!(p), frag, SendFlags::default()).map_err(|e| e.1).unwrap();
    p.written = 8000;
    p.pool.recycle_page(page);
    assert_eq!(p.sent().iter().map(|s| s.len).sum::<u32>(), 8000);
    p.ack(8001);
    p.finish();
}

#[test]
fn idle_connections_hold_no_queue() {
    let mut p = Peer::new();
    assert!(!p.conn.tx.fl.is_born(), "the SYN's box is gone");
    p.write(10);
    p.sent();
    p.ack(11);
    assert!(p.conn.tx.fl.is_born());
    p.finish();
    assert!(size_of::<crate::tx::Tx>() <= 480, "{}", size_of::<crate::tx::Tx>());
}

#[test]
fn steady_state_reuses_its_slots() {
    let mut p = Peer::new();
    for i in 0..200_u32 {
        p.write(100);
        p.sent();
        p.pass_us(1000);
        p.ack(1 + (i + 1) * 100);
    }
    assert!(p.conn.tx.fl.q.is_empty());
    assert!(p.conn.tx.fl.q.slots() <= 64);
    p.finish();
}

#[test]
fn ecn_echo_reduces_once_per_window() {
    let mut p = Peer::new();
    p.conn.neg.ecn = true;
    p.write(50_000);
    p.sent();
    p.pass_us(100_000);
    let mut seg = p.seg(1001);
    seg.ece = true;
    p.feed(&seg);
    assert_eq!(p.conn.tx.cc.ssthresh, 5);
    assert!(p.conn.rx.ecn.queue_cwr);
    for a in 2..=10 {
        let mut seg = p.seg(a * 1000 + 1);
        seg.ece = true;
        p.feed(&seg);
        p.sent();
    }
    assert_eq!(p.conn.tx.cc.ssthresh, 5, "one window, one reduction");
    p.finish();
}

#[test]
fn hot_ack_path_counts_time_spent() {
    let mut p = Peer::new();
    p.write(5000);
    p.sent();
    p.pass_us(100_000);
    p.ack(5001);
    let [busy, rwnd, sndbuf] = p.conn.tx.chrono_us(p.now);
    assert_eq!((busy, rwnd, sndbuf), (100_000, 0, 0));
    assert!(p.conn.tx.delivery_rate() > 0);
    p.finish();
}

#[test]
fn a_writer_without_memory_is_woken_again() {
    let mut p = Peer::new();
    // The only page of the shard is somebody else's.
    p.page = None;
    p.pool = PagePool::new(PoolConfig { page_shift: 12, max_pages: 1, cache_pages: 1 });
    let held = p.pool.alloc().expect("the only page");
    assert_eq!(p.write_with(10, SendFlags::default()), Err(SendError::WouldBlock));
    while p.conn.poll_event().is_some() {}
    p.pass_us(9_000);
    assert_eq!(p.conn.poll_event(), None);
    p.pool.recycle_page(held);
    p.pass_us(2_000);
    assert_eq!(p.conn.poll_event(), Some(Event::Writable));
    assert_eq!(p.write(10), 10);
    p.finish();
}

#[test]
fn an_empty_account_grants_one_segment() {
    let mut p = Peer::new();
    let most = p.mem.max_bytes;
    p.mem.max_bytes = 100;
    assert_eq!(p.write_with(5000, SendFlags::default()), Ok(1000), "one segment, of nothing");
    assert_eq!(p.write_with(10, SendFlags::default()), Err(SendError::WouldBlock));
    p.mem.max_bytes = p.mem.allocated_bytes + 3000;
    let part = p.write_with(5000, SendFlags::default()).unwrap();
    assert!((1024..=3000).contains(&part), "what the account bears: {part}");
    p.mem.max_bytes = most;
    p.finish();
}

#[test]
fn notsent_lowat_bounds_what_waits_to_be_sent() {
    let mut s = Setup::default();
    s.opts.notsent_lowat_bytes = 20_000;
    let mut p = Peer::with(s);
    // Segments end where the mark is passed: a segment that was begun may be filled (Linux asks before a new one).
    let first = p.write(1_000_000);
    assert!((20_000..=20_000 + 65_536).contains(&first), "{first}");
    assert!(!p.conn.is_writable());
    assert_eq!(p.sent().iter().map(|s| s.len).sum::<u32>(), 10_000);
    let mut acked = 1;
    while p.conn.unsent_bytes() >= 10_000 {
        assert_eq!((p.conn.poll_event(), p.conn.is_writable()), (None, false), "{} unsent", p.conn.unsent_bytes());
        acked += 2000;
        p.ack(acked);
        p.sent();
    }
    assert!(p.conn.is_writable());
    assert_eq!(p.conn.poll_event(), Some(Event::Writable), "sending made the room, not an ACK");
    // The option is taken back: the writer that waits is told.
    while p.write(100_000) == 100_000 {}
    assert!(!p.conn.is_writable());
    while p.conn.poll_event().is_some() {}
    p.conn.set_opts(cx!(p), |o| o.notsent_lowat_bytes = 1 << 30);
    assert_eq!(p.conn.poll_event(), Some(Event::Writable));
    p.finish();
}

#[test]
fn notsent_lowat_is_the_configurations_where_the_socket_says_nothing() {
    let mut s = Setup::default();
    s.cfg.notsent_lowat_bytes = 5_000;
    let mut p = Peer::with(s);
    p.write(100_000);
    p.sent();
    assert!(p.conn.unsent_bytes() < 80_000 && !p.conn.is_writable());
    p.finish();
}

/// Whole writes, and writes that end within a segment: what is cut at the segment's MSS was summed when it was copied in.
#[test]
fn towards_a_device_that_does_not_sum_frames_are_summed_while_they_are_written() {
    for tx_csum in [false, true] {
        let mut s = Setup::default();
        (s.path.tx_csum, s.path.init_cwnd_segs) = (tx_csum, 500);
        let mut p = Peer::with(s);
        let mut sent = 0;
        for len in [100_000, 64_000, 150_000, 700, 1000, 999, 40_000] {
            p.write(len);
            sent += p.sent().iter().map(|s| s.len).sum::<u32>();
            p.ack(1 + sent);
        }
        let (frames, known) = p.noted;
        assert!(frames > 350);
        // Short pieces at the edge of a page may displace each other's note.
        assert!(if tx_csum { known == 0 } else { known * 100 >= frames * 98 }, "{known} of {frames}");
        p.finish();
    }
}

/// Segments that are cut elsewhere than they were summed are summed again: no note answers for them.
#[test]
fn notes_answer_only_for_what_they_summed() {
    let mut s = Setup::default();
    (s.path.tx_csum, s.path.init_cwnd_segs) = (false, 500);
    let mut p = Peer::with(s);
    p.hold = false;
    for len in [300, 800, 5, 2500] {
        // Held back by nobody: each write begins a segment of its own or fills the one before.
        p.write(len);
    }
    let total: u32 = p.sent().iter().map(|s| s.len).sum();
    assert_eq!(total, 3605);
    let (frames, known) = p.noted;
    assert!(known < frames, "{known} of {frames}");
    p.ack(1 + total);
    p.finish();
}
