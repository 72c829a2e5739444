//! Active opens and their failures, ports, many connections.

use std::collections::HashSet;
use std::format;
use std::vec::Vec;

use linerate_tcp::{SockOpts, SocketError, TcpConfig};

use super::{A, B, Net, events};
use crate::errors::{BindError, ConnectError};
use crate::{BindOpts, Family, Ready};

#[test]
fn a_closed_port_refuses() {
    let mut net = Net::new();
    let c = net.connect(81);
    net.settle();
    assert_eq!(net.b.mibs().tcp.out_rsts, 1);
    assert_eq!(net.b.mibs().drops.get(linerate_base::DropReason::NoSocket), 1);
    assert!(events(&mut net.a).iter().any(|(id, r)| *id == c && r.contains(Ready::ERROR | Ready::HUP)));
    assert_eq!(net.a.take_error(c), Some(SocketError::Refused));
    // The socket may be tried again.
    let l = net.listen(82, 1);
    net.a.connect(c, format!("{B}:82").parse().unwrap()).unwrap();
    net.settle();
    assert!(net.a.readiness(c).contains(Ready::WRITABLE));
    net.a.close(c).unwrap();
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn nobody_answers() {
    let mut net = Net::new();
    let c = net.a.tcp_connect("10.0.0.77:80".parse().unwrap(), None, &SockOpts::default()).unwrap();
    net.pass(140_000);
    assert_eq!(net.a.take_error(c), Some(SocketError::TimedOut));
    // Linux sends a few SYNs at a steady pace before the doubling begins (`tcp_syn_linear_timeouts`).
    assert!(net.a.mibs().tcp.syn_retrans >= u64::from(TcpConfig::default().syn_retries));
    net.a.close(c).unwrap();
    net.finish();
}

#[test]
fn connect_says_what_is_wrong() {
    let mut net = Net::new();
    let mut to = |text: &str| net.a.tcp_connect(text.parse().unwrap(), None, &SockOpts::default());
    assert_eq!(to("192.168.7.1:80"), Err(ConnectError::NetUnreachable));
    assert_eq!(to("224.0.0.1:80"), Err(ConnectError::NetUnreachable));
    assert_eq!(to("10.0.0.2:0"), Err(ConnectError::BadPeer));
    let local = Some("10.0.0.9:0".parse().unwrap());
    let to_b = format!("{B}:80").parse().unwrap();
    assert_eq!(net.a.tcp_connect(to_b, local, &SockOpts::default()), Err(ConnectError::AddrNotAvailable));
    let c = net.connect(80);
    assert_eq!(net.a.connect(c, to_b), Err(ConnectError::InProgress));
    net.a.close(c).unwrap();
    net.finish();
    assert_eq!(net.a.connect(c, to_b), Err(ConnectError::BadSocket));
    assert_eq!(net.a.tcp_counts(), (0, 0, 0));
}

#[test]
fn all_ports_towards_one_peer_can_be_used_up() {
    let mut net = Net::new();
    net.a.core.cfg.local_ports = (40_000, 40_009);
    net.a.tcp.ports = Some(linerate_tcp::ports::PortPicker::new(40_000..=40_009, &mut net.a.core.rng));
    let l = net.listen(80, 64);
    let socks: Vec<_> = (0..10).map(|_| net.connect(80)).collect();
    let ports: HashSet<u16> = socks.iter().map(|&c| net.a.local_addr(c).unwrap().port()).collect();
    assert_eq!(ports, (40_000..=40_009).collect());
    let to: core::net::SocketAddr = format!("{B}:80").parse().unwrap();
    assert_eq!(net.a.tcp_connect(to, None, &SockOpts::default()), Err(ConnectError::AddrNotAvailable));
    // Another destination shares the same ports.
    let other = net.a.tcp_connect(format!("{B}:81").parse().unwrap(), None, &SockOpts::default()).unwrap();
    net.settle();
    for c in socks {
        net.a.close(c).unwrap();
    }
    net.a.close(other).unwrap();
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn ports_are_held_and_given_back() {
    let mut net = Net::new();
    let at: core::net::SocketAddr = format!("{A}:7000").parse().unwrap();
    let any = |port| core::net::SocketAddr::new(core::net::Ipv4Addr::UNSPECIFIED.into(), port);
    let new = |net: &mut Net| net.a.tcp_socket(Family::V4, &SockOpts::default());
    let one = new(&mut net);
    net.a.bind(one, at, BindOpts::default()).unwrap();
    assert_eq!(net.a.bind(one, at, BindOpts::default()), Err(BindError::Bound));
    let two = new(&mut net);
    assert_eq!(net.a.bind(two, any(7000), BindOpts::default()), Err(BindError::AddrInUse));
    assert_eq!(net.a.bind(two, "10.0.0.5:1".parse().unwrap(), BindOpts::default()), Err(BindError::AddrNotAvailable));
    assert_eq!(net.a.bind(two, "[fd00::1]:1".parse().unwrap(), BindOpts::default()), Err(BindError::Family));
    net.a.close(one).unwrap();
    net.a.bind(two, any(7000), BindOpts::default()).unwrap();
    let three = new(&mut net);
    net.a.bind(three, any(0), BindOpts::default()).unwrap();
    let port = net.a.local_addr(three).unwrap().port();
    assert!((32_768..=60_999).contains(&port), "{port}");
    net.a.close(two).unwrap();
    net.a.close(three).unwrap();
    net.finish();
}

#[test]
fn many_connections_come_and_go() {
    let mut net = Net::new();
    let l = net.listen(80, 4096);
    let clients: Vec<_> = (0..500).map(|_| net.connect(80)).collect();
    net.settle();
    let mut servers = Vec::new();
    while let Ok(s) = net.b.accept(l) {
        servers.push(s);
    }
    assert_eq!(servers.len(), clients.len());
    for (i, &c) in clients.iter().enumerate() {
        assert_eq!(net.a.write(c, &(i as u32).to_be_bytes()), Ok(4));
    }
    net.settle();
    let mut seen = HashSet::new();
    for &s in &servers {
        let mut buf = [0; 8];
        assert_eq!(net.b.read(s, &mut buf), Ok(4));
        seen.insert(u32::from_be_bytes(buf[..4].try_into().unwrap()));
    }
    assert_eq!(seen.len(), clients.len());
    for (c, s) in clients.into_iter().zip(servers) {
        net.a.close(c).unwrap();
        net.b.close(s).unwrap();
    }
    net.settle();
    net.b.close(l).unwrap();
    net.finish();
    assert_eq!((net.a.tcp_counts(), net.b.tcp_counts()), ((0, 0, 0), (0, 0, 0)));
}

#[test]
fn a_socket_keeps_its_family_whatever_it_was_connected_to() {
    let mut net = Net::new();
    let opts = SockOpts::default();
    let l = net.b.tcp_listen("[::]:80".parse().unwrap(), 4, &opts, BindOpts::default()).unwrap();
    let c = net.a.tcp_socket(Family::V6, &opts);
    for to in ["[::ffff:10.0.0.2]:80", "[fd00::2]:80", "10.0.0.2:80"] {
        net.a.connect(c, to.parse().unwrap()).unwrap();
        net.settle();
        let s = net.b.accept(l).expect(to);
        net.a.disconnect(c).unwrap();
        net.settle();
        // The accepted end of a dual-stack listener is an IPv6 socket as well.
        net.b.disconnect(s).unwrap();
        assert_eq!(net.b.bind(s, "[fd00::2]:0".parse().unwrap(), BindOpts::default()), Ok(()), "{to}");
        net.b.close(s).unwrap();
    }
    let v4 = net.a.tcp_socket(Family::V4, &opts);
    net.a.connect(v4, "10.0.0.2:80".parse().unwrap()).unwrap();
    net.settle();
    net.a.disconnect(v4).unwrap();
    assert_eq!(net.a.connect(v4, "[fd00::2]:80".parse().unwrap()), Err(ConnectError::Family));
    for id in [c, v4] {
        net.a.close(id).unwrap();
    }
    net.b.close(l).unwrap();
    net.finish();
}

/// TOS byte of the last frame that b put on the wire.
fn last_tos(net: &Net) -> u8 {
    net.wires[1].lock().unwrap().frames.back().expect("a frame")[1]
}

#[test]
fn answers_without_a_socket_carry_the_traffic_class() {
    let mut net = Net::new();
    let mut opts = SockOpts::default();
    opts.tos = 0xb8;
    let c = net.a.tcp_connect(format!("{B}:81").parse().unwrap(), None, &opts).unwrap();
    net.a.turn(net.now, 64);
    net.b.turn(net.now, 64);
    assert_eq!(last_tos(&net), 0xb8, "a RST answers in the class that was asked in");
    net.settle();
    net.a.close(c).unwrap();
    // TIME-WAIT at b, which closes first: its ACK to a repeated FIN has the class of b's socket.
    let l = net.listen(82, 4);
    net.b.with_opts(l, |o| o.tos = 0x48).unwrap();
    let c = net.connect(82);
    net.settle();
    let s = net.b.accept(l).unwrap();
    net.b.close(s).unwrap();
    net.settle();
    net.a.close(c).unwrap();
    net.a.turn(net.now, 64);
    let fin = net.wires[0].lock().unwrap().frames.back().expect("the FIN").clone();
    net.settle();
    assert_eq!(net.b.tcp_counts().2, 1, "TIME-WAIT");
    net.pass(1_000);
    net.wires[0].lock().unwrap().frames.push_back(fin);
    net.b.turn(net.now, 64);
    assert_eq!(last_tos(&net), 0x48);
    net.settle();
    net.b.close(l).unwrap();
    net.finish();
}

#[test]
fn a_device_whose_mtu_shrinks_stops_no_connection() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    net.a.device_mut(super::WIRE).unwrap().mtu_bytes = 600;
    let data = [7; 20_000];
    assert_eq!(net.a.write(c, &data), Ok(data.len()));
    let mut got = 0;
    net.settle();
    while let Ok(n @ 1..) = net.b.read(s, &mut [0; 30_000]) {
        got += n;
        net.settle();
    }
    assert_eq!(got, data.len(), "no timeout was needed");
    assert_eq!(net.a.info(c).unwrap().snd_mss, 600 - 40 - 12);
    // A datagram that must not be cut has nobody who could send it again: its sender is told.
    let u = net.a.udp_bind(format!("{A}:7").parse().unwrap(), Default::default()).unwrap();
    net.a.udp_mut().opts_mut(u).unwrap().mtu_discover = crate::udp::PmtuDisc::Do;
    let to = Some(format!("{B}:7").parse().unwrap());
    assert_eq!(net.a.send_to(u, &[0; 500], to, Default::default()), Ok(500));
    net.a.device_mut(super::WIRE).unwrap().mtu_bytes = 400;
    let told = net.a.send_to(u, &[0; 500], to, Default::default());
    assert_eq!(told.map_err(|e| e.errno()), Err(linerate_base::Errno::EMSGSIZE));
    net.a.close(u).unwrap();
    net.a.abort(c).unwrap();
    net.b.close(s).unwrap();
    net.finish();
}
