//! Passive opens: limits of both queues, floods, listeners that go.

use std::format;
use std::vec::Vec;

use linerate_base::{DropReason, Seq};
use linerate_tcp::{RecvError, SockOpts, SocketError, TcpConfig};
use linerate_wire::{IpRepr, TcpFlags, TcpOptions, TcpRepr};

use super::{B, Net};
use crate::errors::{AcceptError, ListenError};
use crate::{BindOpts, Ready, Shard};

#[test]
fn the_accept_queue_holds_one_more_than_the_backlog() {
    let mut b = TcpConfig::default();
    // A client that was answered by a cookie would wait for nothing: it does not know that it is not in the queue.
    b.syncookies = 0;
    let mut net = Net::with(TcpConfig::default(), b);
    let l = net.listen(80, 2);
    let clients: Vec<_> = (0..2).map(|_| net.connect(80)).collect();
    net.settle();
    let more: Vec<_> = (0..3).map(|_| net.connect(80)).collect();
    net.settle();
    assert!(net.b.mibs().tcp.listen_drops > 0);
    assert!(net.b.mibs().drops.get(DropReason::TcpListenOverflow) > 0);
    for _ in 0..3 {
        let s = net.b.accept(l).unwrap();
        net.b.abort(s).unwrap();
    }
    assert_eq!(net.b.accept(l), Err(AcceptError::WouldBlock));
    // The SYNs that were dropped come again and find room.
    net.pass(10_000);
    for _ in 0..2 {
        let s = net.b.accept(l).unwrap();
        net.b.abort(s).unwrap();
    }
    for c in clients.into_iter().chain(more) {
        net.a.close(c).unwrap();
    }
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn overflow_may_abort() {
    let mut b = TcpConfig::default();
    b.abort_on_overflow = true;
    let mut net = Net::with(TcpConfig::default(), b);
    let l = net.listen(80, 1);
    // Four SYNs get through while the accept queue is empty; only two handshakes fit.
    let clients: Vec<_> = (0..4).map(|_| net.connect(80)).collect();
    net.settle();
    net.pass(30_000);
    assert!(net.b.mibs().tcp.listen_drops > 0);
    for c in clients {
        net.a.close(c).unwrap();
    }
    net.b.close(l).unwrap();
    net.finish();
}

/// A SYN of a forged source, as it is on the wire.
fn forged_syn(n: u32) -> Vec<u8> {
    let src = core::net::Ipv4Addr::from_bits(u32::from_be_bytes([10, 0, 0, 0]) | 128 | (n & 63));
    let h = TcpRepr {
        src_port: 1024 + (n >> 6) as u16,
        dst_port: 80,
        seq: Seq(n),
        ack: Seq(0),
        flags: TcpFlags::SYN,
        window: 1000,
        urgent: 0,
        opts: TcpOptions::NONE,
    };
    let ip = IpRepr::new(src.into(), B.parse().unwrap(), 6, 20);
    let mut frame = std::vec![0; 40];
    ip.emit(&mut frame[..20]);
    h.emit(&mut frame[20..]);
    let sum = linerate_arch::Kernels::portable().sum(&frame[20..]);
    let sum = !linerate_arch::fold(linerate_arch::combine(ip.pseudo_sum(), sum, 0));
    frame[36..38].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Every SYN is answered by a cookie; what both ends then agree on is what a remembered handshake would have given them,
/// as far as there is room to say it.
#[test]
fn a_cookie_remembers_the_options() {
    use linerate_tcp::info::opt::{ECN, SACK, TIMESTAMPS, WSCALE};
    for (ts, ecn, want) in
        [(true, 1, TIMESTAMPS | SACK | WSCALE | ECN), (true, 0, TIMESTAMPS | SACK | WSCALE), (false, 1, 0)]
    {
        let mut a = TcpConfig::default();
        (a.timestamps, a.ecn) = (ts, ecn);
        let mut b = TcpConfig::default();
        (b.syncookies, b.ecn) = (2, 1);
        let mut net = Net::with(a, b);
        let l = net.listen(80, 8);
        let c = net.connect(80);
        net.settle();
        let s = net.b.accept(l).unwrap();
        for (end, id) in [(&net.a, c), (&net.b, s)] {
            let info = end.info(id).unwrap();
            assert_eq!(info.options & !linerate_tcp::info::opt::ECN_SEEN, want, "timestamps {ts}, ECN {ecn}");
        }
        // The MSS is that of the table, less the timestamps.
        assert_eq!(net.b.info(s).unwrap().snd_mss, if ts { 1448 } else { 1460 });
        // The stream goes both ways, with stamps that never go back.
        for _ in 0..20 {
            assert_eq!((net.a.write(c, &[1; 3000]), net.b.write(s, &[2; 3000])), (Ok(3000), Ok(3000)));
            net.pass(7);
            let mut buf = [0; 4000];
            assert_eq!((net.a.read(c, &mut buf), net.b.read(s, &mut buf)), (Ok(3000), Ok(3000)));
        }
        let m = &net.b.mibs().tcp;
        assert_eq!((m.syncookies_sent, m.syncookies_recv, m.syncookies_failed), (1, 1, 0));
        assert_eq!((m.paws_estab, net.a.mibs().tcp.paws_estab, m.passive_opens), (0, 0, 1));
        net.a.close(c).unwrap();
        net.b.close(s).unwrap();
        net.b.close(l).unwrap();
        net.finish();
    }
}

#[test]
fn a_cookie_that_was_not_sent_is_refused() {
    let mut b = TcpConfig::default();
    b.syncookies = 2;
    let mut net = Net::with(TcpConfig::default(), b);
    let l = net.listen(80, 8);
    let guess = |n: u32| {
        let mut frame = forged_syn(n);
        let sum = u32::from(u16::from_be_bytes([frame[36], frame[37]]));
        frame[28..32].copy_from_slice(&0x1234_5678u32.to_be_bytes());
        frame[33] = 0x10;
        // The sum of what changed: acknowledgement number and flags.
        let sum = linerate_wire::checksum::finish(!(sum as u16) as u32 + 0x1234 + 0x5678 + 0x10 - 0x02);
        frame[36..38].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    // No cookie was sent: nothing is looked at.
    net.wires[0].lock().unwrap().frames.push_back(guess(1));
    net.settle();
    assert_eq!((net.b.mibs().tcp.out_rsts, net.b.mibs().tcp.syncookies_failed), (1, 0));
    let c = net.connect(80);
    net.settle();
    net.wires[0].lock().unwrap().frames.push_back(guess(2));
    net.settle();
    assert_eq!((net.b.mibs().tcp.out_rsts, net.b.mibs().tcp.syncookies_failed), (2, 1));
    // Long after the last cookie none is believed.
    net.pass(121_000);
    net.wires[0].lock().unwrap().frames.push_back(guess(3));
    net.settle();
    assert_eq!((net.b.mibs().tcp.out_rsts, net.b.mibs().tcp.syncookies_failed), (3, 1));
    assert_eq!(net.b.mibs().tcp.in_csum_errors, 0);
    net.a.close(c).unwrap();
    let s = net.b.accept(l).unwrap();
    net.b.close(s).unwrap();
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn a_syn_flood_without_cookies_is_bounded() {
    let mut b = TcpConfig::default();
    b.syncookies = 0;
    let mut net = Net::with(TcpConfig::default(), b);
    let l = net.listen(80, 16);
    for n in 0..5_000 {
        net.wires[0].lock().unwrap().frames.push_back(forged_syn(n));
        if n % 100 == 0 {
            net.turn();
            net.wires[1].lock().unwrap().frames.clear();
        }
    }
    for _ in 0..40 {
        net.turn();
        net.wires[1].lock().unwrap().frames.clear();
    }
    assert_eq!(net.b.tcp_counts(), (1, 16, 0));
    assert_eq!(net.b.mibs().tcp.reqq_full_drop, 5_000 - 16);
    assert_eq!(net.b.mibs().drops.get(DropReason::TcpListenOverflow), 5_000 - 16);
    // All of them expire by themselves.
    net.pass(200_000);
    assert_eq!(net.b.tcp_counts(), (1, 0, 0));
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn a_lost_syn_ack_is_sent_again() {
    let mut net = Net::new();
    let l = net.listen(80, 4);
    net.wires[1].lock().unwrap().lose = 1;
    let c = net.connect(80);
    net.pass(900);
    assert!(net.b.accept(l).is_err());
    net.pass(1_000);
    let s = net.b.accept(l).unwrap();
    net.a.close(c).unwrap();
    net.b.close(s).unwrap();
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn a_listener_that_goes_resets_what_nobody_accepted() {
    let mut net = Net::new();
    let l = net.listen(80, 4);
    let c = net.connect(80);
    net.settle();
    net.b.close(l).unwrap();
    net.settle();
    assert_eq!(net.a.read(c, &mut [0; 4]), Err(RecvError::Socket(SocketError::Reset)));
    assert_eq!(net.b.accept(l), Err(AcceptError::BadSocket));
    net.a.close(c).unwrap();
    net.finish();
}

#[test]
fn a_dual_stack_listener_takes_both_families() {
    let mut net = Net::new();
    let opts = SockOpts::default();
    let l = net.b.tcp_listen("[::]:80".parse().unwrap(), 4, &opts, BindOpts::default()).unwrap();
    let v4 = net.b.tcp_listen("0.0.0.0:80".parse().unwrap(), 4, &opts, BindOpts::default());
    assert_eq!(v4, Err(ListenError::AddrInUse));
    let c4 = net.connect(80);
    let c6 = net.a.tcp_connect("[fd00::2]:80".parse().unwrap(), None, &opts).unwrap();
    net.settle();
    let got = [net.b.accept(l).unwrap(), net.b.accept(l).unwrap()];
    let families: Vec<bool> = got.iter().map(|&s| net.b.peer_addr(s).unwrap().is_ipv4()).collect();
    assert!(families.contains(&true) && families.contains(&false));
    for c in [c4, c6] {
        net.a.abort(c).unwrap();
    }
    for s in got.into_iter().chain([l]) {
        net.b.close(s).unwrap();
    }
    net.finish();
}

#[test]
fn reuseport_listeners_share_the_flows() {
    let mut net = Net::new();
    let bind = BindOpts { reuseport: true, ..BindOpts::default() };
    let at: core::net::SocketAddr = format!("{B}:80").parse().unwrap();
    let ls: Vec<_> = (0..2).map(|_| net.b.tcp_listen(at, 256, &SockOpts::default(), bind).unwrap()).collect();
    assert_eq!(net.b.tcp_listen(at, 1, &SockOpts::default(), BindOpts::default()), Err(ListenError::AddrInUse));
    let clients: Vec<_> = (0..100).map(|_| net.connect(80)).collect();
    net.settle();
    let mut counts = [0; 2];
    for (l, count) in ls.iter().zip(&mut counts) {
        while let Ok(s) = net.b.accept(*l) {
            *count += 1;
            net.b.abort(s).unwrap();
        }
    }
    assert_eq!(counts[0] + counts[1], 100);
    assert!(counts.iter().all(|n| *n > 20), "{counts:?}");
    for c in clients {
        net.a.close(c).unwrap();
    }
    for l in ls {
        net.b.close(l).unwrap();
    }
    net.finish();
}

#[test]
fn an_any_ip_device_tells_the_original_destination() {
    let mut net = Net::new();
    net.b.device_mut(super::WIRE).unwrap().any_ip = true;
    let route = crate::Route::new("0.0.0.0/0".parse().unwrap(), super::WIRE);
    net.a.add_route(route).unwrap();
    let l = net.b.tcp_listen("0.0.0.0:80".parse().unwrap(), 4, &SockOpts::default(), BindOpts::default()).unwrap();
    let to = "203.0.113.9:80".parse().unwrap();
    let c = net.a.tcp_connect(to, None, &SockOpts::default()).unwrap();
    net.settle();
    let s = net.b.accept(l).unwrap();
    assert_eq!(net.b.original_dst(s), Some(to));
    assert!(net.a.readiness(c).contains(Ready::WRITABLE));
    for id in [s, l] {
        net.b.close(id).unwrap();
    }
    net.a.close(c).unwrap();
    net.finish();
}

#[test]
fn a_listener_on_every_port_takes_what_nobody_else_does() {
    let mut net = Net::new();
    net.b.device_mut(super::WIRE).unwrap().any_ip = true;
    net.a.add_route(crate::Route::new("0.0.0.0/0".parse().unwrap(), super::WIRE)).unwrap();
    let any = BindOpts { any_port: true, ..BindOpts::default() };
    let listen = |b: &mut Shard, at: &str, opts| b.tcp_listen(at.parse().unwrap(), 8, &SockOpts::default(), opts);
    assert_eq!(listen(&mut net.b, "0.0.0.0:80", any), Err(ListenError::AddrNotAvailable), "every port is port 0");
    let all = listen(&mut net.b, "0.0.0.0:0", any).unwrap();
    assert_eq!(net.b.local_addr(all), Some("0.0.0.0:0".parse().unwrap()));
    assert_eq!(listen(&mut net.b, "0.0.0.0:0", any), Err(ListenError::AddrInUse));
    let web = listen(&mut net.b, "0.0.0.0:80", BindOpts::default()).unwrap();
    let mut clients = Vec::new();
    for (to, at) in
        [("203.0.113.9:22", all), ("198.51.100.7:65535", all), ("203.0.113.9:80", web), ("198.51.100.7:1", all)]
    {
        let to = to.parse().unwrap();
        clients.push(net.a.tcp_connect(to, None, &SockOpts::default()).unwrap());
        net.settle();
        let s = net.b.accept(at).unwrap();
        assert_eq!(net.b.original_dst(s), Some(to));
        // An answer goes out from there, and comes back to nobody else.
        assert_eq!(net.b.write(s, b"here"), Ok(4));
        net.settle();
        let (c, mut buf) = (*clients.last().unwrap(), [0; 8]);
        assert_eq!((net.a.read(c, &mut buf), &buf[..4]), (Ok(4), &b"here"[..]));
        net.b.check_invariants();
        clients.push(s);
    }
    net.b.close(all).unwrap();
    let late = net.a.tcp_connect("203.0.113.9:22".parse().unwrap(), None, &SockOpts::default()).unwrap();
    net.settle();
    assert!(net.a.readiness(late).contains(Ready::ERROR), "refused again");
    net.a.close(late).unwrap();
    for pair in clients.chunks(2) {
        net.a.close(pair[0]).unwrap();
        net.b.close(pair[1]).unwrap();
    }
    net.b.close(web).unwrap();
    net.finish();
}

/// The initial window of b's end after the first `lost` SYN-ACKs vanished (`synack`), or a's after as many SYNs.
fn cwnd_after_loss(lost: usize, synack: bool) -> u32 {
    let mut net = Net::new();
    let l = net.listen(80, 4);
    net.wires[usize::from(synack)].lock().unwrap().lose = lost;
    let c = net.connect(80);
    net.pass(20_000);
    let s = net.b.accept(l).expect("accepted");
    let info = if synack { net.b.info(s) } else { net.a.info(c) }.unwrap();
    assert_eq!(info.total_retrans as usize, lost);
    net.a.abort(c).unwrap();
    for id in [s, l] {
        net.b.close(id).unwrap();
    }
    net.finish();
    info.snd_cwnd
}

#[test]
fn the_initial_window_is_one_after_two_lost_handshake_segments() {
    // RFC 5681 section 3.1, with RFC 6298 section 5.7's pardon for one (the first timeout is only a second).
    assert_eq!([0, 1].map(|lost| cwnd_after_loss(lost, false)), [10, 10], "SYNs");
    assert_eq!([2, 3].map(|lost| cwnd_after_loss(lost, false)), [1, 1], "SYNs");
    // The client's own SYN comes again as well, so one loss of a SYN-ACK may cost two retransmissions.
    assert_eq!(cwnd_after_loss(0, true), 10, "SYN-ACKs");
}

#[test]
fn min_ttl_drops_what_comes_from_far_away() {
    let mut net = Net::new();
    let l = net.listen(80, 4);
    net.b.with_opts(l, |o| o.min_ttl = 65).unwrap();
    let c = net.connect(80);
    net.settle();
    assert_eq!(net.b.mibs().drops.get(DropReason::TcpMinTtl), 1, "the SYN's TTL is 64");
    assert_eq!(net.b.tcp_counts(), (1, 0, 0));
    net.b.with_opts(l, |o| o.min_ttl = 64).unwrap();
    net.pass(2_000);
    let s = net.b.accept(l).expect("64 is enough, and inherited");
    assert_eq!(net.b.opts(s).unwrap().min_ttl, 64);
    assert_eq!(net.a.write(c, b"near"), Ok(4));
    net.settle();
    assert_eq!(net.b.read(s, &mut [0; 8]), Ok(4));
    // The path becomes longer.
    let before = net.b.mibs().tcp.min_ttl_drop;
    net.a.with_opts(c, |o| o.ttl = 63).unwrap();
    assert_eq!(net.a.write(c, b"far"), Ok(3));
    net.settle();
    assert_eq!(net.b.read(s, &mut [0; 8]), Err(RecvError::WouldBlock));
    assert_eq!(net.b.mibs().tcp.min_ttl_drop, before + 1);
    net.b.with_opts(s, |o| o.min_ttl = 0).unwrap();
    net.pass(1_000);
    assert_eq!(net.b.read(s, &mut [0; 8]), Ok(3), "the retransmission");
    net.a.abort(c).unwrap();
    for id in [s, l] {
        net.b.close(id).unwrap();
    }
    net.finish();
}
