use std::net::SocketAddr;
use std::vec;
use std::vec::Vec;

use linerate_base::{DropReason, Duration, Errno, Rng};
use linerate_netdev::Features;

use super::*;
use crate::config::GroMode;
use crate::errors::BindError;
use crate::testing::{Dev, Host, ip, run, udp_packet};

fn addr(s: &str) -> SocketAddr {
    s.parse().unwrap()
}

fn bound(h: &mut Host, at: &str) -> SockId {
    let at = addr(at);
    let id = h.udp.socket(&h.core, at.is_ipv6());
    h.udp.bind(&mut h.core, id, at, BindOpts::default()).unwrap();
    id
}

fn send(h: &mut Host, id: SockId, data: &[u8], to: &str) -> Result<usize, UdpSendError> {
    h.udp.send_to(&mut h.core, id, data, Some(addr(to)), SendOpts::default())
}

fn recv(h: &mut Host, id: SockId) -> Result<(UdpRecv, Vec<u8>), UdpRecvError> {
    let mut buf = vec![0; 70_000];
    let got = h.udp.recv_from(&mut h.core, id, &mut buf, RecvFlags::default())?;
    buf.truncate(got.len);
    Ok((got, buf))
}

fn csum_device() -> Dev {
    let mut d = Dev::plain();
    d.features = Features { tx_csum: true, uso: true, ..d.features };
    d
}

#[test]
fn every_size_comes_back() {
    for dev in [Dev::plain(), csum_device(), Dev { gro: GroMode::Software, head_bytes: 128, ..Dev::plain() }] {
        let (mut a, mut b) = (Host::numbered(1, dev.clone()), Host::numbered(2, dev));
        let mut rng = Rng::new(1);
        for (server, client, to, most) in
            [("0.0.0.0:7", "0.0.0.0:0", "10.0.0.2:7", 1472), ("[::]:8", "[::]:0", "[fd00::2]:8", 1452)]
        {
            let (s, c) = (bound(&mut b, server), bound(&mut a, client));
            let opts = a.udp.opts_mut(c).unwrap();
            (opts.mtu_discover, opts.mtu_discover6) = (PmtuDisc::Do, PmtuDisc::Do);
            let mut data = vec![0; most + 1];
            rng.fill(&mut data);
            for len in 0..=most {
                assert_eq!(send(&mut a, c, &data[..len], to), Ok(len));
                run(&mut a, &mut b);
                let (got, bytes) = recv(&mut b, s).unwrap();
                assert_eq!((bytes.as_slice(), got.truncated, got.gso_size), (&data[..len], false, None));
                b.udp.send_to(&mut b.core, s, &bytes, Some(got.from), SendOpts::default()).unwrap();
                run(&mut a, &mut b);
                let (back, bytes) = recv(&mut a, c).unwrap();
                assert_eq!((bytes.as_slice(), back.from), (&data[..len], addr(to)));
            }
            assert_eq!(send(&mut a, c, &data, to), Err(UdpSendError::TooBig));
            assert_eq!(recv(&mut a, c), Err(UdpRecvError::WouldBlock));
        }
        assert_eq!((a.core.mibs.drops.total(), b.core.mibs.drops.total()), (0, 0));
        assert_eq!(a.core.mibs.udp.out_datagrams, 1473 + 1453);
        assert_eq!(b.core.mibs.udp.in_datagrams, 1473 + 1453);
        a.assert_home();
        b.assert_home();
    }
}

#[test]
fn trains_arrive_as_datagrams_or_as_trains() {
    for dev in [Dev::plain(), csum_device(), Dev { gro: GroMode::Software, ..Dev::plain() }] {
        // GRO merges what has its payload in pages alone: the head ends with the headers.
        for (server, to, headers) in [("0.0.0.0:7", "10.0.0.2:7", 28), ("[::]:7", "[fd00::2]:7", 48)] {
            let dev = Dev { head_bytes: headers, ..dev.clone() };
            let (mut a, mut b) = (Host::numbered(1, dev.clone()), Host::numbered(2, dev.clone()));
            let s = bound(&mut b, server);
            b.udp.opts_mut(s).unwrap().rcvbuf_bytes = 1 << 20;
            let c = a.udp.socket(&a.core, to.starts_with('['));
            let mut rng = Rng::new(9);
            for (gso, len) in [(1, 1), (1, 60), (100, 100), (100, 101), (100, 5000), (1400, 60_000), (1452, 14_520)] {
                let mut data = vec![0; len];
                rng.fill(&mut data);
                let opts = SendOpts { gso_size: Some(gso), ..SendOpts::default() };
                assert_eq!(a.udp.send_to(&mut a.core, c, &data, Some(addr(to)), opts), Ok(len), "{gso} {len}");
                run(&mut a, &mut b);
                for want in data.chunks(gso.into()) {
                    let (got, bytes) = recv(&mut b, s).unwrap();
                    assert_eq!((bytes.as_slice(), got.gso_size), (want, None));
                }
                assert_eq!(recv(&mut b, s), Err(UdpRecvError::WouldBlock));
            }
            // As trains: whatever comes, its pieces are of gso_size.
            b.udp.opts_mut(s).unwrap().gro = true;
            let mut data = vec![0; 30_000];
            rng.fill(&mut data);
            let opts = SendOpts { gso_size: Some(1000), ..SendOpts::default() };
            a.udp.send_to(&mut a.core, c, &data, Some(addr(to)), opts).unwrap();
            run(&mut a, &mut b);
            let (mut all, mut skbs) = (Vec::new(), 0);
            while let Ok((got, bytes)) = recv(&mut b, s) {
                assert!(got.gso_size.is_none_or(|g| g == 1000) && (got.gso_size.is_some() || bytes.len() <= 1000));
                all.extend_from_slice(&bytes);
                skbs += 1;
            }
            assert_eq!(all, data);
            // 30 pages, 17 fragments an skb.
            assert!(dev.gro == GroMode::Off || skbs == 2, "{skbs} pieces although GRO is on");
            assert_eq!(b.core.mibs.udp.in_datagrams, a.core.mibs.udp.out_datagrams);
            a.assert_home();
            b.assert_home();
        }
    }
}

#[test]
fn sizes_of_trains_are_checked() {
    let mut a = Host::new(1);
    let c = bound(&mut a, "0.0.0.0:0");
    let mut try_send = |gso, len: usize| {
        let opts = SendOpts { gso_size: Some(gso), ..SendOpts::default() };
        a.udp.send_to(&mut a.core, c, &vec![0; len], Some(addr("10.0.0.2:7")), opts)
    };
    assert_eq!(try_send(0, 10), Err(UdpSendError::BadGsoSize));
    assert_eq!(try_send(1473, 3000), Err(UdpSendError::BadGsoSize));
    assert_eq!(try_send(10, 1281), Err(UdpSendError::BadGsoSize));
    assert_eq!(try_send(1472, 65_508), Err(UdpSendError::TooBig));
    assert_eq!(try_send(1472, 65_507), Ok(65_507));
}

#[test]
fn loopback_carries_large_datagrams_of_both_families() {
    let mut h = Host::new(1);
    for (server, to, len) in
        [("0.0.0.0:7", "127.0.0.1:7", 65_507), ("[::]:8", "[::1]:8", 65_488), ("[::]:9", "10.0.0.1:9", 65_507)]
    {
        let (s, c) = (bound(&mut h, server), h.udp.socket(&h.core, server.starts_with('[')));
        let data: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        assert_eq!(send(&mut h, c, &data, to), Ok(len));
        assert!(h.core.links.work_pending());
        h.turn();
        let (got, bytes) = recv(&mut h, s).unwrap();
        assert!(bytes == data && got.from.ip() == addr(to).ip());
        assert!(h.tx.take().is_empty(), "nothing of it is on the wire");
    }
    h.assert_home();
}

#[test]
fn closed_port_refuses_a_connected_socket() {
    for (to, v6) in [("10.0.0.2:9", false), ("[fd00::2]:9", true)] {
        let (mut a, mut b) = (Host::new(1), Host::new(2));
        let c = a.udp.socket(&a.core, v6);
        assert_eq!(send(&mut a, c, b"x", to), Ok(1));
        run(&mut a, &mut b);
        assert_eq!(recv(&mut a, c), Err(UdpRecvError::WouldBlock), "an unconnected socket is not told");
        a.udp.connect(&mut a.core, c, addr(to)).unwrap();
        a.udp.send_to(&mut a.core, c, b"x", None, SendOpts::default()).unwrap();
        run(&mut a, &mut b);
        assert!(a.udp.readiness(c).contains(Ready::ERROR | Ready::READABLE));
        assert_eq!(a.ready.pop(), Some(c));
        assert_eq!(a.udp.take_pending(c), Ready::ERROR | Ready::READABLE);
        let refused = UdpSendError::Pending(Errno::ECONNREFUSED);
        assert_eq!(a.udp.send_to(&mut a.core, c, b"x", None, SendOpts::default()), Err(refused));
        a.udp.send_to(&mut a.core, c, b"x", None, SendOpts::default()).unwrap();
        assert_eq!((b.core.mibs.udp.no_ports, b.drops(DropReason::NoSocket)), (2, 2));
        assert_eq!(b.core.mibs.icmp.out_msgs, 2);
        a.turn();
        a.assert_home();
        b.assert_home();
    }
}

#[test]
fn answers_to_strangers_are_limited() {
    let mut h = Host::new(1);
    let mut answered = 0;
    for i in 0..100u16 {
        answered += h.answer(&udp_packet(&ip("10.0.0.9", "10.0.0.1", 17), 5, 1000 + i, b"?")).len();
    }
    assert_eq!((answered, h.core.mibs.icmp.out_rate_limit_host), (6, 94), "one host: a burst of six");
    h.sleep(Duration::from_secs(2));
    answered = 0;
    for host in 0..10u8 {
        for _ in 0..100 {
            let src = std::format!("10.0.0.{}", 100 + host);
            answered += h.answer(&udp_packet(&ip(&src, "10.0.0.1", 17), 5, 9, b"?")).len();
        }
    }
    assert_eq!(answered, 50, "all hosts: icmp_msgs_burst");
    assert!(h.core.mibs.icmp.out_rate_limit_global > 0);
    h.assert_home();
}

#[test]
fn checksum_rules() {
    let mut h = Host::new(1);
    let (s4, s6) = (bound(&mut h, "0.0.0.0:7"), bound(&mut h, "[fd00::1]:7"));
    let (v4, v6) = (ip("10.0.0.2", "10.0.0.1", 17), ip("fd00::2", "fd00::1", 17));
    let mut unsummed = udp_packet(&v4, 5, 7, b"none");
    unsummed[26..28].fill(0);
    h.answer(&unsummed);
    assert_eq!(recv(&mut h, s4).unwrap().1, b"none", "IPv4 allows no checksum");
    let mut wrong = udp_packet(&v4, 5, 7, b"wrong");
    wrong[28] ^= 1;
    h.answer(&wrong);
    let mut unsummed = udp_packet(&v6, 5, 7, b"none");
    unsummed[46..48].fill(0);
    h.answer(&unsummed);
    assert_eq!((recv(&mut h, s4), recv(&mut h, s6)), (Err(UdpRecvError::WouldBlock), Err(UdpRecvError::WouldBlock)));
    assert_eq!((h.core.mibs.udp.in_csum_errors, h.drops(DropReason::UdpCsum)), (2, 2));
    // A sum of zero is sent as 0xffff, in one frame and in a train.
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let (c, s) = (bound(&mut a, "10.0.0.1:4000"), bound(&mut b, "0.0.0.0:7"));
    for word in 0..=u16::MAX {
        let frame = udp_packet(&ip("10.0.0.1", "10.0.0.2", 17), 4000, 7, &word.to_be_bytes());
        if frame[26..28] == [0xff, 0xff] {
            send(&mut a, c, &word.to_be_bytes(), "10.0.0.2:7").unwrap();
            let twice = [word.to_be_bytes(), word.to_be_bytes()].concat();
            let opts = SendOpts { gso_size: Some(2), ..SendOpts::default() };
            a.udp.send_to(&mut a.core, c, &twice, Some(addr("10.0.0.2:7")), opts).unwrap();
            a.turn();
            let frames = a.tx.take();
            assert_eq!(frames.len(), 3);
            assert!(frames.iter().all(|f| f[26..28] == [0xff, 0xff]));
            frames.into_iter().for_each(|f| b.rx.push(f));
            b.turn();
            assert!((0..3).all(|_| recv(&mut b, s).unwrap().1 == word.to_be_bytes()));
            return;
        }
    }
    panic!("no payload sums to zero");
}

#[test]
fn conflicts_and_sharing() {
    let mut h = Host::new(1);
    let mut try_bind = |at: &str, opts: BindOpts| {
        let id = h.udp.socket(&h.core, addr(at).is_ipv6());
        h.udp.bind(&mut h.core, id, addr(at), opts).map(|_| id)
    };
    let (plain, only6) = (BindOpts::default(), BindOpts { v6only: true, ..BindOpts::default() });
    let share = BindOpts { reuseaddr: true, ..plain };
    try_bind("10.0.0.1:1", plain).unwrap();
    assert_eq!(try_bind("10.0.0.1:1", plain), Err(BindError::AddrInUse));
    assert_eq!(try_bind("0.0.0.0:1", plain), Err(BindError::AddrInUse));
    assert_eq!(try_bind("[::]:1", plain), Err(BindError::AddrInUse));
    assert_eq!(try_bind("0.0.0.0:1", share), Err(BindError::AddrInUse), "both must agree");
    try_bind("[::]:1", only6).unwrap();
    try_bind("127.0.0.1:1", plain).unwrap();
    try_bind("0.0.0.0:2", share).unwrap();
    try_bind("0.0.0.0:2", share).unwrap();
    assert_eq!(try_bind("10.9.9.9:3", plain), Err(BindError::AddrNotAvailable));
    try_bind("10.9.9.9:3", BindOpts { transparent: true, ..plain }).unwrap();
    assert_eq!(try_bind("[::ffff:10.0.0.1]:4", only6), Err(BindError::Family));
    try_bind("[::ffff:10.0.0.1]:4", plain).unwrap();
    assert_eq!(try_bind("10.0.0.1:4", plain), Err(BindError::AddrInUse));
}

#[test]
fn ephemeral_ports_are_all_used_once() {
    let cfg = crate::StackConfig { local_ports: (40_000, 40_009), ..crate::StackConfig::default() };
    let mut h = Host::with(cfg, Dev::plain(), &["10.0.0.1/24"]);
    let mut ports: Vec<u16> = (0..10)
        .map(|_| {
            let id = h.udp.socket(&h.core, false);
            h.udp.bind(&mut h.core, id, addr("0.0.0.0:0"), BindOpts::default()).unwrap().port()
        })
        .collect();
    ports.sort_unstable();
    assert!(ports.iter().copied().eq(40_000..40_010));
    let id = h.udp.socket(&h.core, false);
    assert_eq!(send(&mut h, id, b"x", "10.0.0.2:7"), Err(UdpSendError::NoPort));
}

#[test]
fn lookup_prefers_the_closest() {
    let mut h = Host::new(1);
    let any6 = bound(&mut h, "[::]:7");
    let deliver = |h: &mut Host, from: &str, to: &str| {
        h.answer(&udp_packet(&ip(from, to, 17), 5, 7, b"x"));
    };
    deliver(&mut h, "10.0.0.2", "10.0.0.1");
    assert_eq!(recv(&mut h, any6).unwrap().0.from, addr("10.0.0.2:5"), "dual stack, canonical address");
    let share = BindOpts { reuseaddr: true, ..BindOpts::default() };
    h.udp.close(&mut h.core, any6);
    let mut open = |at: &str| {
        let id = h.udp.socket(&h.core, addr(at).is_ipv6());
        h.udp.bind(&mut h.core, id, addr(at), share).unwrap();
        id
    };
    let (any6, any4, one, conn) = (open("[::]:7"), open("0.0.0.0:7"), open("10.0.0.1:7"), open("10.0.0.1:7"));
    h.udp.connect(&mut h.core, conn, addr("10.0.0.2:5")).unwrap();
    deliver(&mut h, "10.0.0.2", "10.0.0.1");
    assert!(recv(&mut h, conn).is_ok(), "both ends match");
    deliver(&mut h, "10.0.0.3", "10.0.0.1");
    assert!(recv(&mut h, one).is_ok() && recv(&mut h, conn).is_err(), "not the connected one's peer");
    h.udp.close(&mut h.core, one);
    deliver(&mut h, "10.0.0.3", "10.0.0.1");
    assert!(recv(&mut h, any4).is_ok());
    h.udp.close(&mut h.core, any4);
    deliver(&mut h, "10.0.0.3", "10.0.0.1");
    assert!(recv(&mut h, any6).is_ok());
    assert!(h.udp.disconnect(&mut h.core, conn));
    deliver(&mut h, "10.0.0.3", "10.0.0.1");
    assert!(recv(&mut h, conn).is_ok(), "bound to the address again");
    h.assert_home();
}

#[test]
fn reuseport_spreads_by_flow() {
    let mut h = Host::new(1);
    let opts = BindOpts { reuseport: true, ..BindOpts::default() };
    let ids: Vec<_> = (0..4)
        .map(|_| {
            let id = h.udp.socket(&h.core, false);
            h.udp.bind(&mut h.core, id, addr("0.0.0.0:7"), opts).unwrap();
            id
        })
        .collect();
    for port in 0..400u16 {
        for _ in 0..2 {
            h.answer(&udp_packet(&ip("10.0.0.2", "10.0.0.1", 17), 1000 + port, 7, b"x"));
        }
    }
    let mut total = 0;
    for id in ids {
        let mut from = std::collections::BTreeMap::new();
        while let Ok((got, _)) = recv(&mut h, id) {
            *from.entry(got.from).or_insert(0) += 1;
        }
        assert!(from.values().all(|&n| n == 2), "a flow stays with its socket");
        assert!((60..140).contains(&from.len()), "{} of 400 flows", from.len());
        total += from.len();
    }
    assert_eq!(total, 400);
}

#[test]
fn buffers_are_bounded_and_wake() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let (s, c) = (bound(&mut b, "0.0.0.0:7"), bound(&mut a, "0.0.0.0:0"));
    b.udp.opts_mut(s).unwrap().rcvbuf_bytes = 20_000;
    a.udp.opts_mut(c).unwrap().sndbuf_bytes = 10_000;
    let mut sent = 0;
    while send(&mut a, c, &[1; 500], "10.0.0.2:7").is_ok() {
        sent += 1;
    }
    assert_eq!(send(&mut a, c, &[1; 500], "10.0.0.2:7"), Err(UdpSendError::WouldBlock));
    assert!((5..20).contains(&sent) && !a.udp.readiness(c).contains(Ready::WRITABLE));
    run(&mut a, &mut b);
    assert_eq!((a.ready.pop(), a.udp.take_pending(c)), (Some(c), Ready::WRITABLE));
    let queued = (0..).take_while(|_| recv(&mut b, s).is_ok()).count() as u64;
    assert_eq!(b.core.mibs.udp.rcvbuf_errors + queued, sent);
    assert!(b.drops(DropReason::SocketRcvbuff) > 0 && queued > 0);
    assert_eq!((b.udp.rmem_bytes(s), b.core.mibs.udp.in_errors), (0, b.core.mibs.udp.rcvbuf_errors));
    a.assert_home();
    b.assert_home();
}

#[test]
fn peek_and_truncation() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let (s, c) = (bound(&mut b, "0.0.0.0:7"), bound(&mut a, "0.0.0.0:0"));
    send(&mut a, c, b"hello world", "10.0.0.2:7").unwrap();
    run(&mut a, &mut b);
    assert_eq!(b.udp.inq_bytes(s), 11);
    let mut buf = [0; 5];
    for peek in [true, true, false] {
        let got = b.udp.recv_from(&mut b.core, s, &mut buf, RecvFlags { peek }).unwrap();
        assert_eq!((&buf, got.len, got.full_len, got.truncated), (b"hello", 5, 11, true));
    }
    assert_eq!(recv(&mut b, s), Err(UdpRecvError::WouldBlock));
    assert_eq!(b.core.mibs.udp.in_datagrams, 1);
}

#[test]
fn path_mtu_exception_bounds_and_expires() {
    let mut a = Host::new(1);
    let c = bound(&mut a, "0.0.0.0:0");
    a.udp.connect(&mut a.core, c, addr("10.0.0.2:7")).unwrap();
    a.udp.opts_mut(c).unwrap().mtu_discover = PmtuDisc::Do;
    let tx = |a: &mut Host, len: usize| a.udp.send_to(&mut a.core, c, &vec![7; len], None, SendOpts::default());
    tx(&mut a, 1472).unwrap();
    a.turn();
    let sent = a.tx.take().remove(0);
    let icmp = |mtu: u16| {
        let msg = linerate_wire::Icmpv4Repr::Unreachable { code: 4, mtu, quoted: &sent[..28] };
        let mut b = vec![0; msg.emit_len()];
        msg.emit(&mut b);
        crate::testing::ip_packet(&ip("10.0.0.77", "10.0.0.1", 1), &b)
    };
    a.answer(&icmp(1400));
    assert_eq!(tx(&mut a, 1372), Err(UdpSendError::Pending(Errno::EMSGSIZE)));
    assert_eq!((tx(&mut a, 1372), tx(&mut a, 1373)), (Ok(1372), Err(UdpSendError::TooBig)));
    assert_eq!(a.core.links.routes().pmtu_entries(), 1);
    a.answer(&icmp(68));
    assert_eq!(tx(&mut a, 100), Err(UdpSendError::Pending(Errno::EMSGSIZE)));
    assert_eq!((tx(&mut a, 524), tx(&mut a, 525)), (Ok(524), Err(UdpSendError::TooBig)), "not below min_pmtu");
    a.sleep(Duration::from_secs(601));
    assert_eq!(tx(&mut a, 1472), Ok(1472));
    a.turn();
    a.assert_home();
}
