//! Time: retransmission timeouts, probes, and when a connection is given up.

use super::*;
use crate::conn::SocketError;

fn no_tlp() -> Setup {
    let mut s = Setup::default();
    s.cfg.tlp = false;
    s
}

/// Times of transmissions in milliseconds.
fn times_ms(sent: &[(u64, Sent)]) -> Vec<u64> {
    sent.iter().map(|s| s.0 / 1000).collect()
}

#[test]
fn the_rto_doubles_from_srtt_and_variance() {
    let mut p = Peer::with(no_tlp());
    p.write(1000);
    p.sent();
    // srtt 100 ms, variance at its floor of 200 ms.
    assert_eq!(times_ms(&p.pass_us(5_000_000)), [300, 900, 2100, 4500]);
    assert_eq!((p.mib.timeouts, p.conn.tx.backoff), (4, 4));
    p.ack(1001);
    p.write(1000);
    p.sent();
    assert!(p.conn.tx.rto_us >= 2_400_000, "no sample from a retransmission (Karn), the backoff stays");
    p.pass_us(100_000);
    p.ack(2001);
    assert!(p.conn.tx.rto_us < 400_000, "{}", p.conn.tx.rto_us);
    p.finish();
}

#[test]
fn the_floor_of_the_rto_is_route_over_socket_over_config() {
    for (route, socket, config, want) in
        [(0, 0, 200_000, 300_000), (0, 50_000, 200_000, 300_000), (10_000, 50_000, 0, 300_000)]
    {
        let mut s = no_tlp();
        s.path.rto_min_us = route;
        s.opts.rto_min_us = socket;
        s.cfg.rto_min_us = config;
        let mut p = Peer::with(s);
        assert_eq!(p.conn.tx.rto_us, want, "the first variance is half the RTT, times four");
        for i in 1..200 {
            p.write(1000);
            p.sent();
            p.pass_us(100_000);
            p.ack(i * 1000 + 1);
        }
        let floor = [route, socket, config].into_iter().find(|&f| f != 0).unwrap();
        let rto = p.conn.tx.rto_us;
        assert!((100_000 + floor..100_000 + floor + 8_000).contains(&rto), "{floor}: {rto}");
        p.finish();
    }
}

#[test]
fn timestamps_time_a_retransmission() {
    let mut s = no_tlp();
    s.cfg.timestamps = true;
    let mut p = Peer::with(s);
    p.write(500);
    p.sent();
    let sent = p.pass_us(350_000);
    assert_eq!(sent.len(), 1);
    let echo = p.last_tsval;
    p.pass_us(60_000);
    p.ack_ts(501, echo, &[]);
    assert_eq!(p.conn.tx.backoff, 0);
    assert!(p.conn.tx.srtt_us8 >> 3 < 105_000);
    p.finish();
}

#[test]
fn microsecond_timestamps_time_to_the_microsecond() {
    let mut s = no_tlp();
    s.cfg.timestamps = true;
    s.cfg.usec_timestamps = true;
    let mut p = Peer::with(s);
    p.write(500);
    p.sent();
    let sent = p.pass_us(350_000);
    assert_eq!(sent.len(), 1);
    let echo = p.last_tsval;
    let at = p.now;
    p.pass_us(57);
    p.ack_ts(501, echo, &[]);
    let since = u64::from(at.micros_since(Instant::ZERO)) % 1000;
    assert!(since < 1000 && p.conn.tx.min_rtt.get() < 100_000, "{}", p.conn.tx.min_rtt.get());
    p.finish();
}

#[test]
fn a_syn_is_repeated_every_second_then_doubles() {
    let s = Setup::default();
    let mut p = Peer::syn_sent(s.cfg, s.path, s.opts, 1);
    assert_eq!(p.sent().len(), 1);
    let sent = p.pass_us(300_000_000);
    assert_eq!(times_ms(&sent), [1000, 2000, 3000, 4000, 5000, 7000, 11_000, 19_000, 35_000]);
    assert!(sent.iter().all(|s| s.1.flags == TcpFlags::SYN && s.1.seq == 0));
    assert_eq!((p.conn.state, p.conn.take_error()), (State::Closed, Some(SocketError::TimedOut)));
    assert_eq!(p.mib.syn_retrans, 9);
    p.finish();
}

#[test]
fn syncnt_limits_the_tries() {
    let mut s = Setup::default();
    s.opts.syncnt = 1;
    let mut p = Peer::syn_sent(s.cfg, s.path, s.opts, 1);
    p.sent();
    let sent = p.pass_us(100_000_000);
    // The time of one doubled repeat, (2^2 - 1) s, ends the attempt before the linear repeats do.
    assert_eq!(times_ms(&sent), [1000, 2000]);
    assert_eq!(p.conn.state, State::Closed);
    p.finish();
}

#[test]
fn retries_end_by_time() {
    let mut p = Peer::with(no_tlp());
    p.write(1000);
    p.sent();
    let sent = p.pass_us(2_000_000_000);
    let last = times_ms(&sent).last().copied().unwrap();
    // Fifteen doublings of 200 ms, capped at 120 s: 924.6 s after the first retransmission.
    assert!((800_000..925_000).contains(&last), "{last}");
    assert_eq!((p.conn.state, p.conn.take_error()), (State::Closed, Some(SocketError::TimedOut)));
    assert_eq!(p.mib.abort_on_timeout, 1);
    p.finish();
}

#[test]
fn the_user_timeout_ends_earlier_and_is_not_overshot() {
    let mut s = no_tlp();
    s.opts.user_timeout_ms = 3000;
    let mut p = Peer::with(s);
    p.write(1000);
    p.sent();
    let sent = p.pass_us(3_299_000);
    assert_eq!(times_ms(&sent), [300, 900, 2100]);
    assert_ne!(p.conn.state, State::Closed);
    p.pass_us(2_000);
    assert_eq!(p.conn.state, State::Closed);
    p.finish();
}

#[test]
fn icmp_is_told_when_retries_end() {
    let mut s = no_tlp();
    s.opts.user_timeout_ms = 2000;
    let mut p = Peer::with(s);
    p.write(1000);
    p.sent();
    p.pass_us(1_000_000);
    let rto = p.conn.tx.rto_us;
    let seq = p.conn.tx.snd_una;
    p.conn.on_icmp(cx!(p), crate::path::IcmpError { kind: crate::path::IcmpKind::HostUnreachable, mtu: 0, seq });
    assert_eq!(p.conn.tx.rto_us, rto / 2, "RFC 6069");
    p.pass_us(10_000_000);
    assert_eq!(p.conn.take_error(), Some(SocketError::Icmp(linerate_base::Errno::EHOSTUNREACH)));
    p.finish();
}

#[test]
fn a_zero_window_is_probed_with_backoff_and_reopens() {
    let mut p = Peer::with(Setup { wnd: 2000, ..Setup::default() });
    p.write(5000);
    let sent = p.sent();
    assert_eq!(sent.iter().map(|s| s.len).sum::<u32>(), 2000);
    p.pass_us(100_000);
    p.wnd = 0;
    p.ack(2001);
    assert!(p.sent().is_empty());
    let rto = u64::from(p.conn.tx.rto_us / 1000);
    let sent = p.pass_us(rto * 16 * 1000);
    let want: Vec<u64> = [1, 3, 7, 15].into_iter().map(|n| n * rto).collect();
    let got = times_ms(&sent);
    assert!(got.iter().zip(&want).all(|(g, w)| g.abs_diff(*w) <= 2) && got.len() == 4, "{got:?} {want:?}");
    assert!(sent.iter().all(|s| (s.1.seq, s.1.len) == (2000, 0)), "one below the window: {sent:?}");
    assert_eq!(p.mib.win_probe, 4);
    p.ack(2001);
    assert_eq!(p.conn.tx.probes_out, 0, "an answer keeps it alive");
    p.wnd = 100_000;
    p.ack(2001);
    assert_eq!(p.sent().iter().map(|s| s.len).sum::<u32>(), 3000);
    assert_eq!(p.conn.tx.backoff, 0);
    p.finish();
}

#[test]
fn a_probe_fills_a_small_opening() {
    let mut p = Peer::with(Setup { wnd: 1500, ..Setup::default() });
    p.write(1000);
    p.sent();
    p.pass_us(10_000);
    p.wnd = 300;
    p.ack(1001);
    p.write(2000);
    assert!(p.sent().is_empty(), "no silly window: a full segment does not fit");
    let sent = p.pass_us(400_000);
    assert_eq!((sent[0].1.seq, sent[0].1.len), (1001, 300));
    p.finish();
}

#[test]
fn a_shrunken_window_is_probed_by_the_head() {
    let mut p = Peer::with(no_tlp());
    p.write(3000);
    p.sent();
    p.pass_us(100_000);
    p.wnd = 0;
    p.ack(1001);
    let sent = p.pass_us(1_000_000);
    assert!(!sent.is_empty() && sent.iter().all(|s| s.1.seq == 1001 && s.1.len == 1000), "{sent:?}");
    assert_eq!(p.mib.timeouts, 0);
    p.wnd = 10_000;
    p.ack(3001);
    assert_eq!(p.conn.tx.packets_out, 0);
    p.finish();
}

#[test]
fn idle_time_takes_the_window_back_when_asked_for() {
    for (on, want) in [(true, 10), (false, 20)] {
        let mut s = no_tlp();
        s.cfg.slow_start_after_idle = on;
        let mut p = Peer::with(s);
        p.write(40_000);
        p.sent();
        p.pass_us(100_000);
        for i in 1..=10 {
            p.ack(i * 1000 + 1);
            p.sent();
        }
        p.pass_us(100_000);
        let end = p.conn.tx.snd_nxt - p.iss;
        p.ack(end);
        p.sent();
        p.pass_us(100_000);
        let end = p.conn.tx.snd_nxt - p.iss;
        p.ack(end);
        let cwnd = p.cwnd();
        assert!(cwnd >= 20);
        p.pass_us(20_000_000);
        p.write(100);
        assert_eq!(p.cwnd().min(20), want);
        p.sent();
        p.finish();
    }
}

#[test]
fn an_application_that_sends_little_does_not_grow_the_window() {
    let mut p = Peer::new();
    for i in 0..100_u32 {
        p.write(1000);
        p.sent();
        p.pass_us(100_000);
        p.ack((i + 1) * 1000 + 1);
    }
    assert_eq!(p.cwnd(), 10);
    p.finish();
}

#[test]
fn a_clock_that_leaps_fires_once() {
    let mut p = Peer::with(no_tlp());
    p.write(1000);
    p.sent();
    p.now = p.now.plus_micros(3_600_000_000);
    p.conn.on_timer(cx!(p));
    assert_eq!(p.mib.timeouts, 1);
    assert_eq!(p.sent().len(), 1);
    assert!(p.conn.next_timer().unwrap() > p.now);
    p.finish();
}
