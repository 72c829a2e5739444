//! Floods: more of everything than anybody needs.
//!
//! What strangers can make the shard keep is bounded by a number of the configuration: half-open connections by the
//! backlog, finished ones by `tcp_max_tw_buckets`, answers by rate limits. Connections that are established go on during a
//! flood, and new ones succeed when it is over.

use linerate_base::DropReason;
use linerate_stack::{BindOpts, SockOpts};
use linerate_wire::TcpFlags;
use linerate_wire::ip::proto;

use crate::lab::{Flow, Lab, Peer, Setup, icmp_frame, ip, ip_frame, stream, udp_frame};

/// Number `n` of very many strangers.
fn stranger(n: u32) -> Flow {
    let mut flow = Flow::new(Peer { host: 10 + (n / 60_000) as u8, iss: n.wrapping_mul(77_777), ..Peer::v4() }, 0);
    flow.peer.set_port((n % 60_000) as u16 + 1000);
    flow
}

/// With cookies a flood of SYNs fills one queue and nothing else, and who can be reached gets in, during all of it.
#[test]
fn a_million_syns_meet_cookies() {
    let mut lab = Lab::new();
    let (mut most_skbs, mut synacks, mut honest) = (0, 0u32, 0u16);
    for n in 0..1_000_000 {
        let flow = stranger(n);
        lab.inject(flow.frame(&flow.syn(), &[]));
        if n % 64 != 0 {
            continue;
        }
        lab.rest();
        synacks += lab.take_raw().len() as u32;
        most_skbs = most_skbs.max(lab.s.core().mem.skbs.inflight());
        assert!(lab.s.tcp_counts().1 <= 64, "more half-open connections than the backlog");
        if n % 100_032 == 0 {
            honest += 1;
            let peer =
                [Peer::v4().timestamps(7), Peer::bare(), Peer::v6(), Peer::v6().timestamps(9)][usize::from(honest) % 4];
            let (mut flow, id) = lab.flow(peer);
            let data = stream(flow.seq, 5000);
            data.chunks(1000).for_each(|part| drop(flow.send_data(&mut lab, part)));
            assert_eq!(lab.read(id), data);
            assert_eq!(lab.s.write(id, &data), Ok(5000));
            lab.rest();
            assert_eq!(flow.gather(&mut lab), data);
            lab.s.abort(id).unwrap();
            lab.rest();
            lab.take_raw();
            lab.s.check_invariants();
        }
    }
    assert!(most_skbs <= 80, "{most_skbs} descriptors");
    assert!(synacks > 999_000, "{synacks} answers");
    assert_eq!(lab.mem_bytes(), 0);
    let m = &lab.s.mibs().tcp;
    assert!(m.syncookies_sent > 999_000 && m.syncookies_recv >= u64::from(honest) - 1 && m.syncookies_failed == 0);
    assert_eq!((m.reqq_full_drop, lab.total_drops()), (0, 0));
    lab.pass(140_000);
    lab.take();
    lab.prove_alive();
    lab.finish();
}

#[test]
fn a_hundred_thousand_syns_without_cookies() {
    let mut lab = Lab::with(Setup::tcp(|c| c.syncookies = 0));
    let (mut honest, id) = lab.flow(Peer::v4());
    let mut synacks = 0;
    for n in 0..100_000 {
        let flow = stranger(n);
        lab.inject(flow.frame(&flow.syn(), &[]));
        if n % 64 == 0 {
            lab.rest();
            synacks += lab.take().iter().filter(|o| o.h.flags.contains(TcpFlags::SYN)).count();
            assert!(lab.s.tcp_counts().1 <= 64, "more half-open connections than the backlog");
        }
        if n % 5000 == 0 {
            let data = stream(honest.seq, 100);
            honest.send_data(&mut lab, &data);
            assert_eq!(lab.read(id), data, "the established connection goes on");
            lab.s.check_invariants();
        }
    }
    lab.rest();
    assert!(synacks <= 64, "{synacks} SYN-ACKs in no time");
    assert_eq!(lab.drops(DropReason::TcpListenOverflow), lab.total_drops());
    assert!(lab.total_drops() > 99_000);
    assert_eq!(lab.mem_bytes(), 0, "half-open connections hold no buffers");
    assert!(lab.s.core().mem.skbs.inflight() <= 64);
    // No place for anybody new while the requests live; then as always.
    let late = Flow::new(Peer::v4(), 999);
    assert!(lab.send(late.frame(&late.syn(), &[])).iter().all(|o| o.h.dst_port != 999));
    lab.pass(140_000);
    assert_eq!(lab.s.tcp_counts().1, 0, "the flood's requests expired");
    assert!(lab.take().len() <= 64 * 6, "five retries at most");
    lab.prove_alive();
    lab.finish();
}

#[test]
fn an_accept_queue_that_nobody_serves() {
    let mut lab = Lab::new();
    let at = "10.0.0.1:90".parse().unwrap();
    let listener = lab.s.tcp_listen(at, 5, &SockOpts::default(), BindOpts::default()).unwrap();
    for n in 0..2000 {
        let mut flow = stranger(n);
        flow.local.set_port(90);
        let outs = lab.send(flow.frame(&flow.syn(), &[]));
        if let Some(o) = outs.iter().find(|o| o.h.dst_port == flow.peer.port()) {
            flow.take_synack(&o.h);
            lab.send(flow.ack_frame());
            flow.send_data(&mut lab, &[1; 1000]);
        }
        assert!(lab.s.accept_queue(listener).unwrap().0 <= 6);
    }
    let (socks, reqs, _) = lab.s.tcp_counts();
    assert!(socks <= 2 + 6 && reqs <= 6, "{socks} sockets, {reqs} requests");
    lab.s.check_invariants();
    lab.prove_alive();
    lab.finish();
}

#[test]
fn segments_of_no_connection_cost_nothing() {
    let mut lab = Lab::new();
    let before = lab.s.tcp_counts();
    for n in 0..20_000u32 {
        let flow = stranger(n);
        let flags = [TcpFlags::ACK, TcpFlags::FIN | TcpFlags::ACK, TcpFlags::RST, TcpFlags::SYN | TcpFlags::ACK];
        lab.inject(flow.frame(&flow.header(flags[n as usize % 4]), &[9; 100]));
        if n % 64 == 0 {
            lab.rest();
        }
    }
    lab.rest();
    assert_eq!(lab.take().len(), 15_000, "one RST each, and none for a RST");
    assert_eq!((lab.s.tcp_counts(), lab.mem_bytes(), lab.rx_pages()), (before, 0, 0));
    assert_eq!(lab.total_drops(), 20_000);
    lab.prove_alive();
    lab.finish();
}

#[test]
fn time_wait_is_bounded() {
    let mut lab = Lab::with(Setup::tcp(|t| t.max_tw_buckets = 50));
    for _ in 0..500 {
        let (mut flow, id) = lab.flow(Peer::v4());
        lab.s.close(id).unwrap();
        lab.rest();
        flow.ack += 1;
        lab.send(flow.frame(&flow.header(TcpFlags::FIN | TcpFlags::ACK), &[]));
        assert!(lab.s.tcp_counts().2 <= 50);
    }
    let (socks, reqs, tws) = lab.s.tcp_counts();
    assert_eq!((socks, reqs), (1, 0), "only the listener");
    assert!((1..=50).contains(&tws));
    lab.s.check_invariants();
    lab.prove_alive();
    lab.finish();
}

#[test]
fn peers_that_never_close_their_half_are_forgotten() {
    let mut lab = Lab::new();
    for _ in 0..200 {
        let (mut flow, id) = lab.flow(Peer::v4());
        lab.s.close(id).unwrap();
        lab.rest();
        flow.ack += 1;
        lab.send(flow.ack_frame());
    }
    // And those that do not even acknowledge our FIN.
    for _ in 0..200 {
        let (_, id) = lab.flow(Peer::v4());
        lab.s.close(id).unwrap();
    }
    lab.pass(1_200_000);
    assert_eq!(lab.s.tcp_counts(), (1, 0, 0), "orphans do not live for ever");
    lab.finish();
}

#[test]
fn answers_by_icmp_are_limited() {
    let mut lab = Lab::new();
    for n in 0..5000u32 {
        let port = (n % 60_000) as u16 + 1;
        lab.inject(udp_frame(&ip("10.0.0.9", "10.0.0.1", proto::UDP), 9, port, &[1; 50]));
        lab.inject(udp_frame(&ip("fd00::9", "fd00::1", proto::UDP), 9, port, &[1; 50]));
        lab.inject(ip_frame(&ip("10.0.0.8", "10.0.0.1", 99), &[1; 50]));
        if n % 16 == 0 {
            lab.rest();
        }
    }
    lab.rest();
    let answers = lab.take_raw().len();
    assert!((1..=50).contains(&answers), "{answers} errors in no time");
    assert_eq!(lab.total_drops(), 15_000);
    lab.prove_alive();
    lab.finish();
}

#[test]
fn a_flood_of_pings_is_answered_and_forgotten() {
    let mut lab = Lab::new();
    let mut answers = 0;
    for n in 0..10_000u32 {
        let message = [&[8, 0, 0, 0][..], &n.to_be_bytes(), &[3; 1000]].concat();
        lab.inject(icmp_frame(&ip("10.0.0.9", "10.0.0.1", proto::ICMP), &message));
        if n % 64 == 63 {
            lab.rest();
            answers += lab.take_raw().len();
        }
    }
    lab.rest();
    answers += lab.take_raw().len();
    assert_eq!((answers as u64) + lab.drops(DropReason::QdiscDrop), 10_000);
    lab.prove_alive();
    lab.finish();
}

/// Many connections at once, all of them sending one byte and never again: memory is proportional, and goes.
#[test]
fn thousands_of_connections_that_are_abandoned() {
    let mut lab = Lab::new();
    let mut ids = Vec::new();
    for _ in 0..2000 {
        let (mut flow, id) = lab.flow(Peer::bare());
        flow.send_data(&mut lab, b"x");
        ids.push(id);
    }
    assert!(lab.mem_bytes() <= 2000 * 2048, "{} bytes for 2000 bytes", lab.mem_bytes());
    for id in ids {
        lab.s.close(id).unwrap();
    }
    lab.pass(1000);
    assert_eq!((lab.s.tcp_counts(), lab.mem_bytes()), ((1, 0, 0), 0), "closed with unread data: reset, gone");
    let resets = lab.take().iter().filter(|o| o.h.flags.contains(TcpFlags::RST)).count() as u64;
    assert_eq!(resets + lab.drops(DropReason::QdiscDrop), 2000, "more at once than the qdisc holds");
    lab.finish();
}
