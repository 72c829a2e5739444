//! Remote UDP sockets: every size, both families, trains, errors, limits, and no lost wake-up in any wait mode.

mod common;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{CLIENT, SERVER, Watchdog, check, fill, two_stacks};
use linerate::nic::NicConfig;
use linerate::{Errno, Error, Stack, UdpOptions, UdpSocket, Wait};

const LONG: Option<Duration> = Some(Duration::from_secs(20));

fn socket(stack: &Stack, host: &str) -> UdpSocket {
    let mut socket = UdpSocket::bind(stack, (host, 0)).expect("bind");
    socket.set_read_timeout(LONG).expect("a limit");
    socket
}

/// A client connected to a server, on two stacks.
fn connected(client: &Stack, server: &Stack) -> (UdpSocket, UdpSocket) {
    let (mut a, b) = (socket(client, CLIENT), socket(server, SERVER));
    a.connect(b.local_addr().expect("bound")).expect("connect");
    (a, b)
}

fn errno(e: std::io::Error) -> Errno {
    e.downcast::<Error>().expect("a typed error").errno()
}

#[test]
fn every_size_comes_back() {
    let (client, server) = two_stacks(Wait::Adaptive, &NicConfig { mtu: 9000, ..NicConfig::default() }, |b| b);
    let _dog = Watchdog::new("sizes", &[&client, &server]);
    let (mut a, mut b) = connected(&client, &server);
    let (mut data, mut buf) = (vec![0; 8972], vec![0; 65_536]);
    fill(1, 0, &mut data);
    for len in (0..=8972).step_by(61).chain([1, 2, 8971, 8972]) {
        assert_eq!(a.send(&data[..len]).expect("send"), len);
        let (n, from) = b.recv_from(&mut buf).expect("recv");
        assert_eq!((n, from), (len, a.local_addr().expect("bound")));
        check(1, 0, &buf[..n]);
        b.send_to(&buf[..n], from).expect("answer");
        assert_eq!(a.recv(&mut buf).expect("the echo"), len);
    }
    // Longer than the path: cut to fragments, as IP_MTU_DISCOVER's default allows here, or refused at the socket.
    assert_eq!(a.send(&[0; 65_536]).map_err(errno), Err(Errno::EMSGSIZE));
}

#[test]
fn a_short_buffer_loses_the_rest_and_says_so() {
    let (client, server) = two_stacks(Wait::Block, &NicConfig::default(), |b| b);
    let (mut a, mut b) = connected(&client, &server);
    a.send(b"longer than the buffer").expect("send");
    a.send(b"next").expect("send");
    let mut buf = [0; 6];
    let d = b.recv_datagram(&mut buf).expect("recv");
    assert_eq!((d.len, d.full_len, &buf), (6, 22, b"longer"));
    assert_eq!(b.recv_datagram(&mut buf).expect("recv").full_len, 4);
    assert_eq!(&buf[..4], b"next");
}

#[test]
fn trains_go_and_come_as_one() {
    let nic = NicConfig { cut: true, tso: true, ..NicConfig::default() };
    let (client, server) = two_stacks(Wait::Adaptive, &nic, |b| b);
    let _dog = Watchdog::new("trains", &[&client, &server]);
    let (mut a, mut b) = connected(&client, &server);
    let (mut data, mut buf) = (vec![0; 40_500], vec![0; 65_536]);
    fill(2, 0, &mut data);
    // One by one.
    a.send_train(&data, 1000, None).expect("send");
    let mut pos = 0;
    while pos < data.len() {
        let d = b.recv_datagram(&mut buf).expect("recv");
        assert_eq!((d.len, d.gso_size), ((data.len() - pos).min(1000), None));
        check(2, pos as u64, &buf[..d.len]);
        pos += d.len;
    }
    // As they come: whole datagrams, in order, however they were merged.
    b.set_gro(true);
    a.send_train(&data, 1000, None).expect("send");
    let mut pos = 0;
    while pos < data.len() {
        let d = b.recv_datagram(&mut buf).expect("recv");
        assert!(d.gso_size.is_none_or(|s| s == 1000), "{d:?}");
        assert!(d.gso_size.is_some() || d.len <= 1000);
        check(2, pos as u64, &buf[..d.len]);
        pos += d.len;
    }
    // What can not be a train is the next verb's error, once.
    for (size, expected) in [(0, Errno::EINVAL), (1473, Errno::EINVAL), (10, Errno::EINVAL)] {
        a.send_train(&data[..4000], size, None).expect("handed over");
        a.set_read_timeout(LONG).expect("a limit");
        assert_eq!(a.recv(&mut buf).map_err(errno), Err(expected), "{size}");
    }
    assert_eq!(a.take_error(), None);
    a.send(b"well again").expect("send");
}

#[test]
fn what_is_wrong_is_said() {
    let (client, server) = two_stacks(Wait::Block, &NicConfig::default(), |b| b);
    let _dog = Watchdog::new("errors", &[&client, &server]);
    let kind = |r: std::io::Result<UdpSocket>| r.expect_err("refused").kind();
    let mut a = socket(&client, CLIENT);
    let taken = a.local_addr().expect("bound");
    assert_eq!(kind(UdpSocket::bind(&client, taken)), ErrorKind::AddrInUse);
    assert_eq!(kind(UdpSocket::bind(&client, "192.0.2.9:0")), ErrorKind::AddrNotAvailable);
    assert_eq!(a.send(b"to whom?").map_err(errno), Err(Errno::EDESTADDRREQ));
    assert_eq!(a.peer_addr().map_err(|e| e.kind()), Err(ErrorKind::NotConnected));
    assert_eq!(a.connect("198.51.100.1:9").map_err(|e| e.kind()), Err(ErrorKind::NetworkUnreachable));
    assert_eq!(a.connect("10.0.0.255:9").map_err(errno), Err(Errno::EACCES));
    // A peer without a socket answers by ICMP; only who is connected, and to that port, hears of it: the answer to the
    // first datagram may come when the socket is connected already.
    let nobody: SocketAddr = format!("{SERVER}:9").parse().expect("an address");
    a.send_to(b"anybody?", (SERVER, 10)).expect("send");
    a.connect(nobody).expect("connect");
    assert_eq!(a.peer_addr().ok(), Some(nobody));
    a.send(b"anybody?").expect("send");
    assert_eq!(a.recv(&mut [0; 8]).map_err(|e| e.kind()), Err(ErrorKind::ConnectionRefused));
    // Once: then the socket works.
    a.disconnect().expect("disconnect");
    a.set_read_timeout(Some(Duration::from_millis(20))).expect("a limit");
    assert_eq!(a.recv(&mut [0; 8]).map_err(errno), Err(Errno::ETIMEDOUT));
    assert_eq!(a.try_recv(&mut [0; 8]), Err(Error::WouldBlock));
    assert!(a.set_read_timeout(Some(Duration::ZERO)).is_err());
    drop(client);
    assert_eq!(a.send_to(b"late", nobody).map_err(|e| e.kind()), Err(ErrorKind::ConnectionAborted));
    assert_eq!(a.recv(&mut [0; 8]).map_err(|e| e.kind()), Err(ErrorKind::ConnectionAborted));
    assert_eq!(a.connect(nobody).map_err(|e| e.kind()), Err(ErrorKind::ConnectionAborted));
}

#[test]
fn a_reader_that_does_not_read_loses_datagrams_and_nothing_else() {
    let (client, server) = two_stacks(Wait::Adaptive, &NicConfig::default(), |b| b);
    let _dog = Watchdog::new("overload", &[&client, &server]);
    let mut a = socket(&client, CLIENT);
    let mut options = UdpOptions::default();
    options.rcvbuf_bytes = 100_000;
    let mut b = UdpSocket::bind_with(&server, (SERVER, 0), &options).expect("bind");
    b.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
    a.connect(b.local_addr().expect("bound")).expect("connect");
    let sent = 20_000_u32;
    for i in 0..sent {
        a.send(&[&i.to_be_bytes()[..], &[7; 200]].concat()).expect("send");
    }
    let (mut got, mut last, mut buf) = (0_u32, None, [0; 300]);
    loop {
        match b.recv(&mut buf) {
            Ok(n) => {
                assert_eq!(n, 204);
                let i = u32::from_be_bytes(buf[..4].try_into().expect("four bytes"));
                assert!(last.is_none_or(|l| i > l), "in order, none twice");
                (last, got) = (Some(i), got + 1);
            }
            Err(e) => break assert_eq!(errno(e), Errno::ETIMEDOUT),
        }
    }
    let dropped = server.stats().expect("stats").mibs.udp.rcvbuf_errors;
    assert_eq!(u64::from(got) + dropped, u64::from(sent), "read or counted");
    assert!(got > 100 && dropped > 0, "{got} read, {dropped} dropped");
    // The socket goes on.
    a.send(b"well?").expect("send");
    assert_eq!(b.recv(&mut buf).expect("recv"), 5);
}

#[test]
fn what_was_sent_before_the_drop_arrives() {
    let (client, server) = two_stacks(Wait::Block, &NicConfig::default(), |b| b);
    let (mut a, mut b) = connected(&client, &server);
    for i in 0..50_u8 {
        a.send(&[i]).expect("send");
    }
    drop(a);
    let mut buf = [0; 4];
    for i in 0..50_u8 {
        assert_eq!((b.recv(&mut buf).expect("recv"), buf[0]), (1, i));
    }
    // The port is free again.
    let port = b.local_addr().expect("bound");
    drop(b);
    for _ in 0..1000 {
        match UdpSocket::bind(&server, port) {
            Ok(_) => return,
            Err(e) => assert_eq!(e.kind(), ErrorKind::AddrInUse),
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("a dropped socket keeps its port");
}

#[test]
fn both_families_and_any_address() {
    let stack = Stack::builder().start().expect("a stack with its loopback");
    let mut any = UdpSocket::bind(&stack, "[::]:0").expect("bind");
    any.set_read_timeout(LONG).expect("a limit");
    let port = any.local_addr().expect("bound").port();
    let mut buf = [0; 16];
    for (host, peer) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1")] {
        let mut from = socket(&stack, host);
        from.send_to(b"hello", (peer, port)).expect("send");
        let d = any.recv_datagram(&mut buf).expect("recv");
        assert_eq!((d.from, d.to.to_string().as_str()), (from.local_addr().expect("bound"), peer));
        any.send_to(&buf[..d.len], d.from).expect("answer");
        assert_eq!(from.recv(&mut buf).expect("recv"), 5);
    }
}

/// One datagram there, one back: each end sleeps until the other has written.
fn ping_pong(wait: Wait, rounds: u32) {
    let (client, server) = two_stacks(wait, &NicConfig::default(), |b| b);
    let dog = Watchdog::new(&format!("datagrams, {wait:?}"), &[&client, &server]);
    let (mut a, mut b) = connected(&client, &server);
    let echo = thread::spawn(move || {
        let mut buf = [0; 8];
        loop {
            let (n, from) = b.recv_from(&mut buf).expect("recv");
            b.send_to(&buf[..n], from).expect("send");
            if n == 0 {
                return;
            }
        }
    });
    let tick = dog.ticker();
    let mut buf = [0; 8];
    for i in 0..rounds {
        a.send(&i.to_be_bytes()).expect("send");
        assert_eq!((a.recv(&mut buf).expect("recv"), &buf[..4]), (4, &i.to_be_bytes()[..]));
        tick.tick();
    }
    a.send(b"").expect("send");
    echo.join().expect("the echo");
}

#[test]
fn ping_pong_in_every_mode() {
    for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
        ping_pong(wait, 3_000);
    }
}

#[test]
#[ignore = "a million rounds take minutes"]
fn ping_pong_a_million_times() {
    ping_pong(Wait::Block, 1_000_000);
}

/// Counts how often it was woken.
struct Count(AtomicUsize, mpsc::Sender<()>);
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        // The test may be over.
        let _ = self.1.send(());
    }
}

#[test]
fn a_writer_that_finds_the_send_buffer_full_is_woken() {
    let (client, server) = two_stacks(Wait::Block, &NicConfig { ring_slots: 256, ..NicConfig::default() }, |b| b);
    let _dog = Watchdog::new("full send buffer", &[&client, &server]);
    let mut options = UdpOptions::default();
    options.sndbuf_bytes = 20_000;
    let mut a = UdpSocket::bind_with(&client, (CLIENT, 0), &options).expect("bind");
    let b = socket(&server, SERVER);
    a.connect(b.local_addr().expect("bound")).expect("connect");
    let (tx, woken) = mpsc::channel();
    let count = Arc::new(Count(AtomicUsize::new(0), tx));
    let waker = Waker::from(count.clone());
    let mut cx = Context::from_waker(&waker);
    let mut waited = 0;
    for _ in 0..20_000 {
        while a.poll_send(&mut cx, &[3; 1000], None, None).map(|r| r.expect("send")).is_pending() {
            waited += 1;
            woken.recv_timeout(Duration::from_secs(20)).expect("a wake-up");
        }
    }
    assert!(waited > 0 && count.0.load(Ordering::Relaxed) >= waited);
}
