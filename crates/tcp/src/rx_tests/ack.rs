//! When ACKs leave: quick, delayed, for super-packets, pingpong, ECN.

use crate::config::{SockOpts, TcpConfig};
use crate::testing::{Host, bytes, syn_opts};
use crate::tx::SendFlags;
use linerate_base::Duration;
use linerate_wire::TcpFlags;

/// Ends the quick start, as a connection that has run for a while.
fn settled() -> Host {
    let mut host = Host::new();
    for i in 0..40 {
        host.data(1 + i * 1448, 1448).unwrap();
        host.read_all();
        host.advance(Duration::from_millis(100));
        host.sent();
    }
    host.conn.rx.ack.quick = 0;
    host
}

#[test]
fn the_first_acks_are_not_delayed() {
    let mut host = Host::new();
    for i in 0..16 {
        host.data(1 + i * 1448, 1448).unwrap();
        host.acked(1 + (i + 1) * 1448);
    }
    host.finish();
}

#[test]
fn a_single_segment_is_delayed_and_the_second_is_not() {
    let mut host = settled();
    let at = 1 + 40 * 1448;
    host.conn.rx.ack.ato_ms = 40;
    host.data(at, 1448).unwrap();
    host.silent();
    let start = host.w.now;
    host.advance(Duration::from_millis(500));
    host.acked(at + 1448);
    let waited = host.w.now.since(start);
    assert!((Duration::from_millis(40)..=Duration::from_millis(200)).contains(&waited), "{waited:?}");
    assert!(host.w.mib.delayed_acks >= 1);

    host.conn.rx.ack.quick = 0;
    host.data(at + 1448, 1448).unwrap();
    host.silent();
    host.data(at + 2896, 1448).unwrap();
    host.silent();
    host.read_all();
    host.acked(at + 4344);
    host.finish();
}

/// SYSTEMS A20: the segment size is what one wire segment carries, so a super-packet acknowledges at once.
#[test]
fn a_super_packet_acks_at_once() {
    let mut host = settled();
    let at = 1 + 40 * 1448;
    let h = host.header(TcpFlags::ACK, at, 1);
    host.deliver(&h, &bytes(u64::from(at) - 1, 10 * 1448), 1448).unwrap();
    assert_eq!(host.conn.rx.ack.rcv_mss, 1448);
    host.read_all();
    host.acked(at + 14_480);
    host.finish();
}

#[test]
fn rcv_mss_learns_from_two_equal_short_segments() {
    let mut host = Host::new();
    host.data(1, 1448).unwrap();
    assert_eq!(host.conn.rx.ack.rcv_mss, 1448);
    host.data(1449, 1000).unwrap();
    assert_eq!(host.conn.rx.ack.rcv_mss, 1448, "one short segment says nothing");
    host.data(2449, 1000).unwrap();
    assert_eq!(host.conn.rx.ack.rcv_mss, 1000);
    host.finish();
}

#[test]
fn answering_data_makes_acks_ride() {
    let mut host = settled();
    let at = 1 + 40 * 1448;
    host.data(at, 100).unwrap();
    host.conn.write(&mut host.w.cx(), b"answer", SendFlags::default()).unwrap();
    let s = host.one();
    assert_eq!((s.payload.as_slice(), s.h.ack - host.irs), (b"answer".as_slice(), at + 100));
    assert!(host.conn.in_pingpong());
    assert!(host.conn.next_timer().is_some());
    host.data(at + 100, 100).unwrap();
    host.silent();
    host.finish();
}

#[test]
fn tcp_quickack_sends_what_waits() {
    let mut host = settled();
    let at = 1 + 40 * 1448;
    host.data(at, 100).unwrap();
    host.silent();
    host.read_all();
    host.conn.set_opts(&mut host.w.cx(), |o| o.quickack = Some(true));
    host.acked(at + 100);
    assert!(host.conn.quickack());
    host.conn.set_opts(&mut host.w.cx(), |o| o.quickack = Some(false));
    assert!(!host.conn.quickack());
    host.finish();
}

#[test]
fn one_turn_sends_one_ack() {
    let mut host = Host::new();
    for i in 0..10 {
        host.data(1 + i * 1448, 1448).unwrap();
    }
    host.acked(1 + 14_480);
    host.finish();
}

#[test]
fn ce_is_echoed_until_cwr() {
    let cfg = TcpConfig { ecn: 2, ..TcpConfig::default() };
    let mut host = Host::established(cfg, SockOpts::default(), syn_opts(Some(1)));
    host.conn.neg.ecn = true;
    host.peer_ecn = 2;
    host.data(1, 1000).unwrap();
    assert!(!host.one().h.flags.contains(TcpFlags::ECE));
    host.peer_ecn = 3;
    host.data(1001, 1000).unwrap();
    assert!(host.one().h.flags.contains(TcpFlags::ECE), "at once");
    host.peer_ecn = 2;
    host.data(2001, 1000).unwrap();
    assert!(host.one().h.flags.contains(TcpFlags::ECE), "until CWR");
    host.segment(TcpFlags::ACK | TcpFlags::CWR, 3001, 1000, 1).unwrap();
    assert!(!host.one().h.flags.contains(TcpFlags::ECE));
    host.finish();
}

#[test]
fn only_new_data_is_ect() {
    let mut host = Host::new();
    host.conn.neg.ecn = true;
    host.data(1, 1000).unwrap();
    assert!(!host.one().ect, "a pure ACK");
    host.conn.rx.ecn.queue_cwr = true;
    host.conn.write(&mut host.w.cx(), b"data", SendFlags::default()).unwrap();
    let s = host.one();
    assert!(s.ect && s.h.flags.contains(TcpFlags::CWR));
    host.finish();
}
