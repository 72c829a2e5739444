//! Close orders, resets, TIME-WAIT.

use linerate_tcp::{How, RecvError, SocketError, State, TcpConfig};

use super::{Net, events};
use crate::Ready;
use crate::errors::SockError;

fn cfg(change: impl FnOnce(&mut TcpConfig)) -> TcpConfig {
    let mut cfg = TcpConfig::default();
    change(&mut cfg);
    cfg
}

#[test]
fn the_active_closer_keeps_time_wait() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    net.a.close(c).unwrap();
    net.settle();
    assert_eq!(net.a.close(c), Err(SockError::BadSocket), "closed before");
    assert!(net.b.readiness(s).contains(Ready::RDHUP | Ready::READABLE));
    assert_eq!(net.b.read(s, &mut [0; 1]), Ok(0));
    net.b.close(s).unwrap();
    net.settle();
    assert_eq!((net.a.tcp_counts().2, net.b.tcp_counts()), (1, (0, 0, 0)));
    net.pass(59_000);
    assert_eq!(net.a.tcp_counts().2, 1);
    net.pass(2_000);
    assert_eq!(net.a.tcp_counts(), (0, 0, 0));
    net.finish();
}

#[test]
fn half_close_lets_the_other_direction_go_on() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    net.a.write(c, b"question").unwrap();
    net.a.shutdown(c, How::Wr).unwrap();
    net.settle();
    let mut buf = [0; 64];
    assert_eq!(net.b.read(s, &mut buf), Ok(8));
    assert_eq!(net.b.read(s, &mut buf), Ok(0));
    net.b.write(s, b"answer").unwrap();
    net.settle();
    assert_eq!((net.a.read(c, &mut buf), &buf[..6]), (Ok(6), &b"answer"[..]));
    net.b.close(s).unwrap();
    net.settle();
    assert_eq!(net.a.read(c, &mut buf), Ok(0));
    assert!(net.a.readiness(c).contains(Ready::HUP));
    net.a.close(c).unwrap();
    net.finish();
}

#[test]
fn simultaneous_close_ends_in_time_wait_on_both_sides() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    net.a.close(c).unwrap();
    net.b.close(s).unwrap();
    net.settle();
    assert_eq!((net.a.tcp_counts().2, net.b.tcp_counts().2), (1, 1));
    net.finish();
}

#[test]
fn closing_with_unread_data_resets() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    net.a.write(c, b"nobody reads this").unwrap();
    net.settle();
    net.b.close(s).unwrap();
    net.settle();
    assert_eq!(net.a.read(c, &mut [0; 8]), Err(RecvError::Socket(SocketError::Reset)));
    assert_eq!(net.a.conn(c).unwrap().state(), State::Closed);
    assert!(events(&mut net.a).iter().any(|(id, r)| *id == c && r.contains(Ready::HUP | Ready::ERROR)));
    net.a.close(c).unwrap();
    net.finish();
    assert_eq!(net.a.tcp_counts(), (0, 0, 0));
}

#[test]
fn an_abort_is_seen_by_the_peer() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    net.a.abort(c).unwrap();
    net.settle();
    assert_eq!(net.a.tcp_counts(), (0, 0, 0));
    assert_eq!(net.b.take_error(s), Some(SocketError::Reset));
    net.b.close(s).unwrap();
    net.finish();
}

#[test]
fn data_written_before_close_is_delivered() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    let data = [7; 100_000];
    assert_eq!(net.a.write(c, &data), Ok(data.len()));
    net.a.close(c).unwrap();
    let (mut got, mut buf) = (0, [0; 4096]);
    loop {
        net.pass(5);
        match net.b.read(s, &mut buf) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) => assert_eq!(e, RecvError::WouldBlock),
        }
    }
    assert_eq!(got, data.len());
    net.b.close(s).unwrap();
    net.finish();
}

#[test]
fn over_the_bucket_limit_there_is_no_time_wait() {
    let mut net = Net::with(cfg(|c| c.max_tw_buckets = 2), TcpConfig::default());
    let l = net.listen(80, 8);
    for _ in 0..4 {
        let c = net.connect(80);
        net.settle();
        let s = net.b.accept(l).unwrap();
        net.a.close(c).unwrap();
        net.settle();
        net.b.close(s).unwrap();
        net.settle();
    }
    assert_eq!((net.a.tcp_counts().2, net.a.mibs().tcp.time_wait_overflow), (2, 2));
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn a_new_syn_takes_the_place_of_time_wait() {
    let mut net = Net::new();
    let l = net.listen(80, 8);
    let local = "10.0.0.1:5000".parse().unwrap();
    let to = "10.0.0.2:80".parse().unwrap();
    let reuse = crate::BindOpts { reuseaddr: true, ..Default::default() };
    for round in 0..3 {
        let c = net.a.tcp_socket(crate::Family::V4, &Default::default());
        net.a.bind(c, local, reuse).unwrap();
        net.a.connect(c, to).unwrap();
        net.settle();
        let s = net.b.accept(l).unwrap_or_else(|e| panic!("round {round}: {e:?}"));
        // The listener's side closes first and keeps TIME-WAIT; the next SYN of the same ports recycles it.
        net.b.close(s).unwrap();
        net.settle();
        net.a.close(c).unwrap();
        net.settle();
        assert_eq!((net.a.tcp_counts().2, net.b.tcp_counts().2), (0, 1));
        net.pass(1_500);
    }
    assert_eq!(net.b.mibs().tcp.tw_recycled, 2);
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn reset_all_leaves_nothing() {
    let mut net = Net::new();
    let l = net.listen(80, 8);
    let c = net.connect(80);
    net.settle();
    net.b.reset_all();
    net.settle();
    assert_eq!(net.b.tcp_counts(), (0, 0, 0));
    assert_eq!(net.a.take_error(c), Some(SocketError::Reset));
    assert_eq!(net.b.close(l), Err(SockError::BadSocket));
    net.a.close(c).unwrap();
    net.finish();
}

#[test]
fn who_resets_says_why() {
    use linerate_base::RstReason;
    let why = |s: &crate::Shard| s.mibs().rsts.iter().collect::<std::vec::Vec<_>>();
    // A port without a listener.
    let mut net = Net::new();
    let c = net.connect(81);
    net.settle();
    assert_eq!(why(&net.b), [(RstReason::NoSocket, 1)]);
    net.a.close(c).unwrap();
    // Unread data, and an abort.
    let (c, s) = net.pair();
    net.a.write(c, b"unread").unwrap();
    net.settle();
    net.b.close(s).unwrap();
    net.settle();
    assert_eq!(why(&net.b), [(RstReason::NoSocket, 1), (RstReason::TcpAbortOnClose, 1)]);
    net.a.close(c).unwrap();
    let (c, s) = net.pair();
    net.a.abort(c).unwrap();
    net.settle();
    assert_eq!(why(&net.a), [(RstReason::TcpState, 1)]);
    net.b.close(s).unwrap();
    // Data for somebody who will never read it: what is left of the connection is a minisock.
    let (c, s) = net.pair();
    net.b.close(s).unwrap();
    net.settle();
    net.a.write(c, b"too late").unwrap();
    net.settle();
    assert_eq!(net.b.mibs().rsts.get(RstReason::TcpTimewaitSocket), 1);
    net.a.close(c).unwrap();
    // A peer that is gone: probes, and then the verdict.
    let (c, s) = net.pair();
    let keep = [
        crate::TcpOpt::KeepAlive(true),
        crate::TcpOpt::KeepIdle(1),
        crate::TcpOpt::KeepIntvl(1),
        crate::TcpOpt::KeepCnt(2),
    ];
    keep.into_iter().for_each(|o| net.a.set_opt(c, o).unwrap());
    net.wires[0].lock().unwrap().lose = 100;
    net.pass(10_000);
    assert_eq!(net.a.mibs().rsts.get(RstReason::TcpKeepaliveTimeout), 1);
    net.wires[0].lock().unwrap().lose = 0;
    net.a.close(c).unwrap();
    net.b.abort(s).unwrap();
    assert_eq!(net.a.mibs().tcp.out_rsts, net.a.mibs().rsts.total());
    net.finish();
}
