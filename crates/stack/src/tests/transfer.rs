//! Handshakes and streams.

use std::vec::Vec;

use linerate_tcp::{RecvError, SendError, State};

use super::{Net, WIRE, byte_at, events};
use crate::{Ready, Shard, SockId};

/// Writes what the buffer takes; returns the new position.
pub(super) fn feed(s: &mut Shard, id: SockId, mut at: u64, end: u64) -> u64 {
    while at < end {
        let chunk: Vec<u8> = (at..end.min(at + 20_000)).map(byte_at).collect();
        match s.write(id, &chunk) {
            Ok(n) => at += n as u64,
            Err(SendError::WouldBlock) => break,
            Err(e) => panic!("{e:?}"),
        }
    }
    at
}

/// Reads everything; returns the new position.
pub(super) fn drain(s: &mut Shard, id: SockId, mut at: u64) -> u64 {
    let mut buf = [0; 10_000];
    loop {
        match s.read(id, &mut buf) {
            Ok(0) | Err(RecvError::WouldBlock) => return at,
            Ok(n) => {
                for (i, &b) in buf[..n].iter().enumerate() {
                    assert_eq!(b, byte_at(at + i as u64), "byte {} is wrong", at + i as u64);
                }
                at += n as u64;
            }
            Err(e) => panic!("{e:?}"),
        }
    }
}

#[test]
fn three_way_handshake_tells_both_ends() {
    let mut net = Net::new();
    let l = net.listen(80, 8);
    let c = net.connect(80);
    assert_eq!(net.a.conn(c).unwrap().state(), State::SynSent);
    net.settle();
    let told = events(&mut net.a);
    assert!(told.iter().any(|(id, r)| *id == c && r.contains(Ready::CONNECTED | Ready::WRITABLE)), "{told:?}");
    assert_eq!(events(&mut net.b), [(l, Ready::ACCEPT)]);
    let s = net.b.accept(l).unwrap();
    assert_eq!(net.b.conn(s).unwrap().state(), State::Established);
    assert_eq!(net.a.local_addr(c), net.b.peer_addr(s));
    assert_eq!(net.b.original_dst(s), net.a.peer_addr(c));
    assert_eq!(net.b.accept(l), Err(crate::errors::AcceptError::WouldBlock));
    assert!(net.a.readiness(c).contains(Ready::WRITABLE));
    net.a.close(c).unwrap();
    net.b.close(s).unwrap();
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn a_long_stream_arrives_as_it_was_sent() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    let (mut sent, mut got, end) = (0, 0, 8 << 20);
    while got < end {
        sent = feed(&mut net.a, c, sent, end);
        net.turn();
        got = drain(&mut net.b, s, got);
        net.pass(1);
        assert!(net.now.as_millis() < 120_000, "{got} bytes after two minutes");
    }
    let (tx, rx) = (net.a.copied_bytes().0, net.b.copied_bytes().1);
    assert_eq!((tx, rx), (end, end), "each end copies each byte once");
    assert_eq!(net.a.mibs().tcp.retrans_segs, 0, "nothing was lost, nothing is sent twice");
    net.a.close(c).unwrap();
    net.b.close(s).unwrap();
    net.finish();
    assert!(net.a.qstats(WIRE).is_some());
}

#[test]
fn both_directions_at_once_over_ipv6_with_losses() {
    let mut net = Net::new();
    let l = net.b.tcp_listen("[::]:80".parse().unwrap(), 8, &Default::default(), Default::default()).unwrap();
    let c = net.a.tcp_connect("[fd00::2]:80".parse().unwrap(), None, &Default::default()).unwrap();
    net.settle();
    let s = net.b.accept(l).unwrap();
    let end = 600_000;
    let (mut sent, mut got, mut sent_b, mut got_a) = (0, 0, 0, 0);
    for round in 0u64.. {
        sent = feed(&mut net.a, c, sent, end);
        sent_b = feed(&mut net.b, s, sent_b, end);
        if round % 7 == 3 {
            net.wires[(round % 2) as usize].lock().unwrap().lose = 2;
        }
        net.pass(5);
        got = drain(&mut net.b, s, got);
        got_a = drain(&mut net.a, c, got_a);
        if got == end && got_a == end {
            break;
        }
        assert!(round < 20_000, "{got} and {got_a} of {end}");
    }
    assert!(net.a.mibs().tcp.retrans_segs > 0);
    net.a.close(c).unwrap();
    net.b.close(s).unwrap();
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn a_full_window_stops_the_sender_and_reading_lets_it_go_on() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    let mut sent = 0;
    for _ in 0..200 {
        sent = feed(&mut net.a, c, sent, 1 << 30);
        net.pass(10);
    }
    let stalled = sent;
    net.pass(2_000);
    assert_eq!(feed(&mut net.a, c, sent, 1 << 30), stalled, "buffers are full and nobody reads");
    events(&mut net.a);
    let mut got = drain(&mut net.b, s, 0);
    assert!(got > 0 && got < stalled);
    net.pass(3_000);
    assert!(events(&mut net.a).iter().any(|(id, r)| *id == c && r.contains(Ready::WRITABLE)));
    while got < stalled {
        net.pass(50);
        got = drain(&mut net.b, s, got);
    }
    net.a.close(c).unwrap();
    net.b.close(s).unwrap();
    net.finish();
}

#[test]
fn asking_in_vain_is_no_work() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    let mut sent = 0;
    for _ in 0..200 {
        sent = feed(&mut net.a, c, sent, 1 << 30);
        net.pass(10);
    }
    net.pass(2_000);
    assert!(net.a.prepare_sleep());
    assert_eq!(net.a.write(c, b"x"), Err(SendError::WouldBlock));
    assert_eq!(net.a.read(c, &mut [0; 8]), Err(RecvError::WouldBlock));
    assert_eq!(net.a.read_discard(c, 8), Err(RecvError::WouldBlock));
    assert!(net.a.prepare_sleep(), "a caller that asks again and again may sleep in between");
    assert!(net.b.read(s, &mut [0; 1 << 17]).is_ok());
    assert!(!net.b.prepare_sleep(), "the window opened");
    net.a.close(c).unwrap();
    net.b.abort(s).unwrap();
    net.finish();
}

#[test]
fn peek_leaves_and_discard_takes_without_copying() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    net.a.write(c, b"hello world").unwrap();
    net.settle();
    let mut buf = [0; 5];
    assert_eq!((net.b.peek(s, &mut buf), &buf), (Ok(5), b"hello"));
    let copied = net.b.copied_bytes().1;
    assert_eq!(net.b.read_discard(s, 6), Ok(6));
    assert_eq!(net.b.copied_bytes().1, copied);
    assert_eq!((net.b.read(s, &mut buf), &buf), (Ok(5), b"world"));
    assert_eq!(net.b.read(s, &mut buf), Err(RecvError::WouldBlock));
    net.a.close(c).unwrap();
    net.b.close(s).unwrap();
    net.finish();
}

#[test]
fn loopback_within_one_shard() {
    let mut net = Net::new();
    let at = "127.0.0.1:9".parse().unwrap();
    let l = net.a.tcp_listen(at, 4, &Default::default(), Default::default()).unwrap();
    let c = net.a.tcp_connect(at, None, &Default::default()).unwrap();
    net.settle();
    let s = net.a.accept(l).unwrap();
    let (mut sent, mut got) = (0, 0);
    while got < 1_000_000 {
        sent = feed(&mut net.a, c, sent, 1_000_000);
        net.settle();
        got = drain(&mut net.a, s, got);
        net.pass(1);
    }
    for id in [c, s, l] {
        net.a.close(id).unwrap();
    }
    net.finish();
}
