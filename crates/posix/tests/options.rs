//! Options do what they say or refuse: none is stored that nobody reads.
//!
//! A process on one shard talks to itself over the loopback. What Linux would keep and this stack can not do is
//! ENOPROTOOPT to ask for, and reading the option tells what is so; the rest is seen in packets, control messages and
//! error numbers.

use std::net::SocketAddr;

use linerate_base::{DropReason, Errno, Instant};
use linerate_posix::abi::*;
use linerate_posix::{Addr, Call, CallState, Cmsg, Data, Out, Posix, Received, RecvKind, Reply, Span};
use linerate_stack::{Shard, StackConfig};

struct Process {
    posix: Posix,
    now: Instant,
}

type Result<T> = std::result::Result<T, Errno>;

impl Process {
    fn new() -> Self {
        Self { posix: Posix::new(Shard::new(StackConfig::default())), now: Instant::from_secs(1) }
    }
    fn turn(&mut self) {
        for _ in 0..8 {
            self.now = self.now.plus_micros(10);
            self.posix.shard_mut().turn(self.now, 64);
        }
    }
    /// A call that does not sleep for long: the stack is turned until it returns.
    fn call(&mut self, call: Call) -> Result<Reply> {
        match self.posix.call(self.now, call) {
            CallState::Done(outcome) => {
                self.turn();
                outcome
            }
            CallState::Blocked(token) => {
                for _ in 0..100 {
                    self.turn();
                    if let Some(outcome) = self.posix.poll(self.now, token) {
                        return outcome;
                    }
                }
                panic!("the call sleeps for ever");
            }
        }
    }
    fn socket(&mut self, domain: i32, kind: i32) -> i32 {
        self.call(Call::Socket { domain, kind, protocol: 0 }).unwrap().ret as i32
    }
    fn set(&mut self, fd: i32, level: i32, name: i32, v: i32) -> Result<i64> {
        let value = Some(v.to_le_bytes().to_vec());
        self.call(Call::SetSockOpt { fd, level, name, value, len: 4 }).map(|r| r.ret)
    }
    fn get(&mut self, fd: i32, level: i32, name: i32) -> Result<i32> {
        match self.call(Call::GetSockOpt { fd, level, name, null: false, len: 4 })?.out {
            Out::Bytes(b) => Ok(i32::from_le_bytes(b.try_into().expect("an int"))),
            other => panic!("{other:?}"),
        }
    }
    fn bind(&mut self, fd: i32, at: &str) -> SocketAddr {
        self.call(Call::Bind { fd, addr: Addr::Inet(at.parse().unwrap()) }).unwrap();
        match self.call(Call::GetSockName { fd }).unwrap().out {
            Out::Addr(a) => a,
            other => panic!("{other:?}"),
        }
    }
    fn connect(&mut self, fd: i32, to: SocketAddr) -> Result<i64> {
        self.call(Call::Connect { fd, addr: Addr::Inet(to) }).map(|r| r.ret)
    }
    fn send(&mut self, fd: i32, bytes: &[u8], to: Option<SocketAddr>, control: Vec<Cmsg>) -> Result<i64> {
        let (iov, addr) = (vec![Data::Bytes(bytes.to_vec())], to.map(Addr::Inet));
        self.call(Call::Send { fd, iov, flags: 0, addr, control }).map(|r| r.ret)
    }
    fn recv(&mut self, fd: i32) -> Received {
        let (iov, kind) = (vec![Span { null: false, len: 100 }], RecvKind::Msg { control_len: 400 });
        match self.call(Call::Recv { fd, iov, flags: 0, kind }).unwrap().out {
            Out::Msg(m) => m,
            other => panic!("{other:?}"),
        }
    }
    /// A connection over the loopback: client, server.
    fn pair(&mut self, server: i32, at: &str) -> (i32, i32) {
        let to = self.bind(server, at);
        self.call(Call::Listen { fd: server, backlog: 4 }).unwrap();
        let client = self.socket(if to.is_ipv4() { AF_INET } else { AF_INET6 }, SOCK_STREAM);
        self.connect(client, to).unwrap();
        (client, self.call(Call::Accept { fd: server, flags: 0 }).unwrap().ret as i32)
    }
}

fn find(m: &Received, level: i32, kind: i32) -> Option<&[u8]> {
    m.control.iter().find(|c| (c.level, c.kind) == (level, kind)).map(|c| c.data.as_slice())
}

#[test]
fn what_is_fixed_says_so_and_refuses_the_rest() {
    let mut p = Process::new();
    let fd = p.socket(AF_INET6, SOCK_STREAM);
    for (level, name, is) in [
        (SOL_SOCKET, SO_DEBUG, 0),
        (SOL_SOCKET, SO_DONTROUTE, 0),
        (SOL_SOCKET, SO_OOBINLINE, 1),
        (SOL_SOCKET, SO_NO_CHECK, 0),
        (SOL_SOCKET, SO_TIMESTAMP, 0),
        (SOL_SOCKET, SO_TIMESTAMPNS, 0),
        (SOL_SOCKET, SO_RXQ_OVFL, 0),
        (SOL_SOCKET, SO_PRIORITY, 0),
        (SOL_SOCKET, SO_MARK, 0),
        (SOL_SOCKET, SO_BUSY_POLL, 0),
        (SOL_SOCKET, SO_INCOMING_CPU, -1),
        (SOL_TCP, TCP_THIN_LINEAR_TIMEOUTS, 0),
        (SOL_TCP, TCP_SAVE_SYN, 0),
        (SOL_IP, IP_RECVOPTS, 0),
        (SOL_IP, IP_RECVERR, 0),
        (SOL_IP, IP_FREEBIND, 0),
        (SOL_IP, IP_TRANSPARENT, 0),
        (SOL_IP, IP_BIND_ADDRESS_NO_PORT, 0),
        (SOL_IPV6, IPV6_RECVERR, 0),
        (SOL_IPV6, IPV6_AUTOFLOWLABEL, 1),
    ] {
        assert_eq!(p.get(fd, level, name), Ok(is), "{level} {name}");
        assert_eq!(p.set(fd, level, name, is), Ok(0), "{level} {name}: what is so may be asked for");
        assert_eq!(p.set(fd, level, name, 1 - is), Err(Errno::ENOPROTOOPT), "{level} {name}");
        assert_eq!(p.get(fd, level, name), Ok(is), "{level} {name}");
    }
    // Linux checks the value and keeps nothing.
    assert_eq!([0, 1, 2].map(|v| p.set(fd, SOL_TCP, TCP_THIN_DUPACK, v)), [Ok(0), Ok(0), Err(Errno::EINVAL)]);
    assert_eq!(p.get(fd, SOL_TCP, TCP_THIN_DUPACK), Ok(0));
    for (level, name) in [(SOL_IP, IP_MTU_DISCOVER), (SOL_IPV6, IPV6_MTU_DISCOVER)] {
        let refused = Err(Errno::ENOPROTOOPT);
        let of = [0, 1, 2, 3, 6].map(|v| p.set(fd, level, name, v));
        assert_eq!(of, [refused, Ok(0), Ok(0), refused, Err(Errno::EINVAL)]);
    }
}

#[test]
fn a_stream_guards_itself_against_far_peers() {
    for (domain, at, level, name, hops, kind) in [
        (AF_INET, "127.0.0.1:0", SOL_IP, IP_MINTTL, IP_TTL, "IPv4"),
        (AF_INET6, "[::1]:0", SOL_IPV6, IPV6_MINHOPCOUNT, IPV6_UNICAST_HOPS, "IPv6"),
    ] {
        let mut p = Process::new();
        let server = p.socket(domain, SOCK_STREAM);
        assert_eq!(p.set(server, level, name, 256), Err(Errno::EINVAL));
        p.set(server, level, name, 64).unwrap();
        let (client, child) = p.pair(server, at);
        assert_eq!(p.get(child, level, name), Ok(64), "{kind}: inherited");
        p.set(client, level, hops, 63).unwrap();
        p.send(client, b"far", None, vec![]).unwrap();
        assert_eq!(p.posix.shard().mibs().drops.get(DropReason::TcpMinTtl), 1, "{kind}");
        p.set(child, level, name, 63).unwrap();
        p.send(client, b"near", None, vec![]).unwrap();
        p.now = p.now.plus_micros(1_000_000);
        p.turn();
        assert_eq!(p.recv(child).data, b"farnear", "{kind}");
        assert_eq!(p.posix.shard().mibs().drops.get(DropReason::TcpMinTtl), 1, "{kind}");
    }
}

#[test]
fn a_datagram_tells_what_was_asked_for() {
    let mut p = Process::new();
    let (rx, tx) = (p.socket(AF_INET, SOCK_DGRAM), p.socket(AF_INET, SOCK_DGRAM));
    let to = p.bind(rx, "0.0.0.0:0");
    let to: SocketAddr = format!("127.0.0.1:{}", to.port()).parse().unwrap();
    p.send(tx, b"plain", Some(to), vec![]).unwrap();
    assert_eq!(p.recv(rx).control, vec![], "nothing was asked for");
    for name in [IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR] {
        p.set(rx, SOL_IP, name, 1).unwrap();
    }
    let cmsg = |kind, v: i32| Cmsg { level: SOL_IP, kind, data: v.to_le_bytes().to_vec() };
    p.send(tx, b"x", Some(to), vec![cmsg(IP_TOS, 0xb8), cmsg(IP_TTL, 7)]).unwrap();
    let m = p.recv(rx);
    assert_eq!(find(&m, SOL_IP, IP_TTL), Some(&7_i32.to_le_bytes()[..]));
    assert_eq!(find(&m, SOL_IP, IP_TOS), Some(&[0xb8][..]));
    assert_eq!(find(&m, SOL_IP, IP_PKTINFO), Some(&[1, 0, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1][..]), "lo");
    let dst = find(&m, SOL_IP, IP_RECVORIGDSTADDR).expect("the destination");
    assert_eq!(dst[..8], [2, 0, (to.port() >> 8) as u8, to.port() as u8, 127, 0, 0, 1]);
    // From another of our addresses, as PKTINFO says.
    let info = [0, 0, 0, 0, 127, 0, 0, 9, 0, 0, 0, 0].to_vec();
    p.send(tx, b"y", Some(to), vec![Cmsg { level: SOL_IP, kind: IP_PKTINFO, data: info }]).unwrap();
    assert_eq!(p.recv(rx).addr.map(|a| a.ip()), Some("127.0.0.9".parse().unwrap()));
    let unknown = Cmsg { level: SOL_IP, kind: IP_RECVERR, data: vec![0; 4] };
    assert_eq!(p.send(tx, b"z", Some(to), vec![unknown]), Err(Errno::EINVAL));
    assert_eq!(p.send(tx, b"z", Some(to), vec![cmsg(IP_TTL, 0)]), Err(Errno::EINVAL));
}

#[test]
fn an_ipv6_socket_is_told_of_both_families() {
    let mut p = Process::new();
    let (rx, tx) = (p.socket(AF_INET6, SOCK_DGRAM), p.socket(AF_INET6, SOCK_DGRAM));
    let port = p.bind(rx, "[::]:0").port();
    for name in [IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS] {
        p.set(rx, SOL_IPV6, name, 1).unwrap();
    }
    p.set(rx, SOL_IP, IP_RECVTTL, 1).unwrap();
    let control = vec![Cmsg { level: SOL_IPV6, kind: IPV6_TCLASS, data: 0x48_i32.to_le_bytes().to_vec() }];
    p.send(tx, b"6", Some(format!("[::1]:{port}").parse().unwrap()), control).unwrap();
    let m = p.recv(rx);
    assert_eq!(find(&m, SOL_IPV6, IPV6_TCLASS), Some(&0x48_i32.to_le_bytes()[..]));
    assert_eq!(find(&m, SOL_IPV6, IPV6_HOPLIMIT), Some(&64_i32.to_le_bytes()[..]));
    let lo = std::net::Ipv6Addr::LOCALHOST.octets();
    assert_eq!(find(&m, SOL_IPV6, IPV6_PKTINFO), Some(&[&lo[..], &[1, 0, 0, 0]].concat()[..]));
    p.send(tx, b"4", Some(format!("[::ffff:127.0.0.1]:{port}").parse().unwrap()), vec![]).unwrap();
    let m = p.recv(rx);
    let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    assert_eq!(find(&m, SOL_IPV6, IPV6_PKTINFO), Some(&[&mapped[..], &[1, 0, 0, 0]].concat()[..]));
    assert_eq!(find(&m, SOL_IP, IP_TTL), Some(&64_i32.to_le_bytes()[..]));
    assert_eq!(find(&m, SOL_IPV6, IPV6_HOPLIMIT), None, "an IPv4 datagram has a TTL");
}

#[test]
fn notsent_lowat_stops_a_writer() {
    let mut p = Process::new();
    let server = p.socket(AF_INET, SOCK_STREAM);
    p.set(server, SOL_SOCKET, SO_RCVBUF, 4096).unwrap();
    let (client, _child) = p.pair(server, "127.0.0.1:0");
    p.set(client, SOL_TCP, TCP_NOTSENT_LOWAT, 16_384).unwrap();
    assert_eq!(p.get(client, SOL_TCP, TCP_NOTSENT_LOWAT), Ok(16_384));
    p.call(Call::Fcntl { fd: client, cmd: F_SETFL, arg: i64::from(O_NONBLOCK) }).unwrap();
    let mut written = 0;
    loop {
        match p.send(client, &[5; 4096], None, vec![]) {
            Ok(n) => written += n,
            Err(e) => break assert_eq!(e, Errno::EAGAIN),
        }
    }
    // The peer's window, what one segment holds beyond the mark, and the mark: far less than the send buffer.
    assert!((16_384..200_000).contains(&written), "{written}");
    let sndbuf = p.get(client, SOL_SOCKET, SO_SNDBUF).unwrap();
    assert!(i64::from(sndbuf) > written);
}
