//! Beginnings and ends: refused and timed-out connections, backlogs, dropped handles, dropped stacks, dead peers.
//! Each test has a watchdog: whatever is lost must be told to who waits, within seconds.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use common::{CLIENT, SERVER, STALL, Watchdog, plain_stacks, two_stacks};
use linerate::nic::NicConfig;
use linerate::{ConnectOptions, Error, Interface, ListenOptions, Stack, TcpListener, TcpStream, Wait, nic};

fn addr(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), port)
}

/// A connected pair: (client's end, server's end).
fn connected(client: &Stack, server: &Stack) -> (TcpStream, TcpStream) {
    let mut listener = TcpListener::bind(server, (SERVER, 0)).expect("bind");
    let a = TcpStream::connect(client, listener.local_addr()).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    (a, b)
}

/// Writes until nothing more is taken for a while: the peer does not read.
fn stuff(stream: &mut TcpStream) -> usize {
    let (chunk, mut n, mut since) = (vec![1; 64 << 10], 0, Instant::now());
    while since.elapsed() < Duration::from_millis(100) {
        match stream.try_write(&chunk) {
            Ok(taken) => (n, since) = (n + taken, Instant::now()),
            Err(Error::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            Err(e) => panic!("{e}"),
        }
    }
    n
}

#[test]
fn nobody_listens() {
    let (client, server) = plain_stacks();
    let _dog = Watchdog::new("refused", &[&client, &server]);
    let e = TcpStream::connect(&client, (SERVER, 81)).expect_err("nobody listens");
    assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
    let e = TcpStream::connect(&client, "192.0.2.1:80").expect_err("no route");
    assert_eq!(e.kind(), ErrorKind::NetworkUnreachable);
}

#[test]
fn nobody_answers_in_time() {
    // The far end of this wire is held by nobody who polls it.
    let (a, _silent) = nic::pair(&NicConfig::default(), &NicConfig::default());
    let eth0 = Interface::nic("eth0", a).address("10.0.0.1/24");
    let client = Stack::builder().interface(eth0).start().expect("start");
    let begin = Instant::now();
    let e = TcpStream::connect_timeout(&client, addr(SERVER, 80), Duration::from_millis(150)).expect_err("silence");
    assert_eq!(e.kind(), ErrorKind::TimedOut);
    assert!(begin.elapsed() >= Duration::from_millis(150) && begin.elapsed() < STALL);
    // The attempt is given up with its handle, not retried for a minute.
    let until = Instant::now() + STALL;
    while client.stats().expect("stats").tcp_sockets != 0 {
        assert!(Instant::now() < until, "the socket of a dropped attempt stays");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn reads_and_writes_have_time_limits() {
    let (client, server) = plain_stacks();
    let _dog = Watchdog::new("limits", &[&client, &server]);
    let (mut a, mut b) = connected(&client, &server);
    a.set_read_timeout(Some(Duration::from_millis(50))).expect("legal");
    assert_eq!(a.set_read_timeout(Some(Duration::ZERO)).expect_err("illegal").kind(), ErrorKind::InvalidInput);
    assert_eq!(a.read(&mut [0; 9]).expect_err("silence").kind(), ErrorKind::TimedOut);
    b.write_all(b"late").expect("write");
    let mut buf = [0; 4];
    a.read_exact(&mut buf).expect("the stream is well");
    assert_eq!(&buf, b"late");
    stuff(&mut a);
    a.set_write_timeout(Some(Duration::from_millis(50))).expect("legal");
    assert_eq!(a.write(&[0; 9]).expect_err("full").kind(), ErrorKind::TimedOut);
}

#[test]
fn an_address_is_taken_once() {
    let (client, server) = plain_stacks();
    let _dog = Watchdog::new("bind", &[&client, &server]);
    let first = TcpListener::bind(&server, (SERVER, 8080)).expect("bind");
    let e = TcpListener::bind(&server, (SERVER, 8080)).expect_err("taken");
    assert_eq!(e.kind(), ErrorKind::AddrInUse);
    let e = TcpListener::bind(&server, "10.9.9.9:80").expect_err("not ours");
    assert_eq!(e.kind(), ErrorKind::AddrNotAvailable);
    drop(first);
    // The close is a mark that the next turn obeys; a command after it comes no earlier.
    let until = Instant::now() + STALL;
    while TcpListener::bind(&server, (SERVER, 8080)).is_err() {
        assert!(Instant::now() < until, "the port of a dropped listener stays taken");
    }
}

#[test]
fn a_backlog_holds_connections_back_and_lets_them_in_later() {
    // 128 connections fit the handle's ring and 17 the queue (Linux's backlog + 1); 13 are too many.
    const CLIENTS: usize = 128 + 17 + 13;
    // A client that was answered by a cookie would wait for nothing: it does not know that it is not in the queue.
    let (client, server) =
        two_stacks(Wait::Adaptive, &NicConfig::default(), |b| b.configure(|cfg| cfg.tcp.syncookies = 0));
    let dog = Watchdog::new("backlog", &[&client, &server]);
    let mut options = ListenOptions::default();
    options.backlog = 16;
    let mut listener = TcpListener::bind_with(&server, (SERVER, 0), &options).expect("bind");
    listener.set_accept_timeout(Some(STALL));
    let to = listener.local_addr();
    let mut clients: Vec<_> = (0..128).map(|_| TcpStream::connect(&client, to).expect("room")).collect();
    let start = || TcpStream::start_connect(&client, to, &ConnectOptions::default()).expect("start");
    clients.extend((128..CLIENTS).map(|_| start()));
    thread::sleep(Duration::from_millis(200));
    let sockets = server.stats().expect("stats").tcp_sockets;
    // A burst has at most `backlog` half-open connections at once, so the last place may stay free.
    assert!((1 + 128 + 16..=1 + 128 + 17).contains(&sockets), "{sockets}: the listener, its ring, its queue");
    dog.ticker().tick();
    // None is lost when the server comes back to accept: who was held back tries again after a second.
    for _ in 0..CLIENTS {
        let (mut peer, _) = listener.accept().expect("accept");
        peer.write_all(b"!").expect("write");
    }
    for stream in &mut clients {
        let mut byte = [0];
        stream.set_read_timeout(Some(STALL)).expect("legal");
        assert_eq!(stream.read(&mut byte).expect("accepted"), 1);
    }
    assert_eq!(listener.try_accept().err(), Some(Error::WouldBlock));
}

#[test]
fn a_dropped_handle_closes() {
    let (client, server) = plain_stacks();
    let _dog = Watchdog::new("drop", &[&client, &server]);
    let (a, mut b) = connected(&client, &server);
    drop(a);
    assert_eq!(b.read(&mut [0; 9]).expect("the end"), 0);
    // Nobody is there to read what is written now: a reset comes back.
    let e = loop {
        match b.write_all(&[0; 1000]) {
            Ok(_) => thread::sleep(Duration::from_millis(1)),
            Err(e) => break e,
        }
    };
    assert!(matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{e}");
}

#[test]
fn unread_bytes_make_the_close_a_reset() {
    let (client, server) = plain_stacks();
    let _dog = Watchdog::new("reset", &[&client, &server]);
    let (mut a, b) = connected(&client, &server);
    let taken = stuff(&mut a);
    assert!(taken > 100_000);
    drop(b);
    let e = loop {
        match a.write_all(&[0; 1000]) {
            Ok(_) => thread::sleep(Duration::from_millis(1)),
            Err(e) => break e,
        }
    };
    assert_eq!(e.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_blocked_writer_whose_reader_is_gone_hears_of_the_reset() {
    let (client, server) = plain_stacks();
    let _dog = Watchdog::new("writer alone", &[&client, &server]);
    let (mut a, b) = connected(&client, &server);
    stuff(&mut a);
    let (read, mut write) = a.split();
    drop(read);
    let writer = thread::spawn(move || write.write_all(&vec![0; 8 << 20]));
    thread::sleep(Duration::from_millis(50));
    drop(b);
    let e = writer.join().expect("no panic").expect_err("reset");
    assert!(matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{e}");
}

#[test]
fn a_blocked_writer_whose_reader_does_not_read_hears_of_the_reset() {
    let (client, server) = plain_stacks();
    let _dog = Watchdog::new("reader idle", &[&client, &server]);
    let (mut a, mut b) = connected(&client, &server);
    // Both directions are full: nothing of `a`'s input is taken any more.
    let sent = stuff(&mut b);
    stuff(&mut a);
    let (mut read, mut write) = a.split();
    let writer = thread::spawn(move || write.write_all(&vec![0; 8 << 20]));
    thread::sleep(Duration::from_millis(50));
    drop(b);
    let e = writer.join().expect("no panic").expect_err("reset");
    assert_eq!(e.kind(), ErrorKind::ConnectionReset);
    // What had arrived is still there, then the error.
    let (mut got, mut buf) = (0, vec![0; 64 << 10]);
    let e = loop {
        match read.read(&mut buf) {
            Ok(0) => panic!("a reset looks like an end"),
            Ok(n) => got += n,
            Err(e) => break e,
        }
    };
    assert_eq!(e.kind(), ErrorKind::ConnectionReset);
    assert!(got > 0 && got <= sent);
}

#[test]
fn a_dropped_stack_resets_its_connections_and_tells_its_handles() {
    for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
        let (client, server) = two_stacks(wait, &NicConfig::default(), |b| b);
        let _dog = Watchdog::new("stack drop", &[&client, &server]);
        let mut listener = TcpListener::bind(&server, (SERVER, 0)).expect("bind");
        let mut a = TcpStream::connect(&client, listener.local_addr()).expect("connect");
        let (b, _) = listener.accept().expect("accept");
        let (mut read, mut write) = b.split();
        let reader = thread::spawn(move || read.read(&mut [0; 9]));
        let acceptor = thread::spawn(move || listener.accept().map(|_| ()));
        let writer = thread::spawn(move || write.write_all(&vec![0; 64 << 20]));
        let handle = server.handle();
        thread::sleep(Duration::from_millis(50));
        drop(server);
        // Never an end of stream: the reader could not tell it from success.
        for e in [
            reader.join().expect("no panic").expect_err("the stack is gone"),
            acceptor.join().expect("no panic").expect_err("the stack is gone"),
            writer.join().expect("no panic").expect_err("the stack is gone"),
        ] {
            assert_eq!(e.kind(), ErrorKind::ConnectionAborted, "{e}");
        }
        assert_eq!(handle.stats().err(), Some(Error::StackGone));
        let e = TcpListener::bind(&handle, "127.0.0.1:0").expect_err("the stack is gone");
        assert_eq!(e.kind(), ErrorKind::ConnectionAborted);
        let e = TcpStream::connect(&handle, "127.0.0.1:1").expect_err("the stack is gone");
        assert_eq!(e.kind(), ErrorKind::ConnectionAborted);
        let e = loop {
            match a.read(&mut [0; 4096]) {
                Ok(0) => panic!("a reset looks like an end"),
                Ok(_) => {}
                Err(e) => break e,
            }
        };
        assert_eq!(e.kind(), ErrorKind::ConnectionReset);
        assert!(client.shutdown().is_ok());
    }
}

#[test]
fn a_stack_with_nothing_to_do_uses_no_cpu() {
    let (client, server) = plain_stacks();
    let _idle = connected(&client, &server);
    let tid = client.handle().with_shard(|_| linerate_host::threads::current_tid()).expect("runs");
    thread::sleep(Duration::from_millis(100));
    let Ok(before) = linerate_host::task_cpu_time(tid) else {
        println!("skipped: the host does not tell the CPU time of a thread");
        return;
    };
    thread::sleep(Duration::from_millis(300));
    let used = linerate_host::task_cpu_time(tid).expect("it was told before") - before;
    assert!(used < Duration::from_millis(100), "{used:?} in 300 ms");
    assert!(client.shutdown().is_ok());
}

#[test]
fn closures_run_on_the_stack_and_their_panics_come_back() {
    let stack = Stack::builder().thread_name("mine").start().expect("start");
    let handle = stack.handle();
    let name = handle.with_shard(|_| thread::current().name().map(str::to_owned)).expect("runs");
    assert_eq!(name.as_deref(), Some("mine"));
    let h = handle.clone();
    let panicked = thread::spawn(move || h.with_shard(|_| panic!("of the closure"))).join();
    assert!(panicked.is_err());
    assert!(handle.stats().is_ok(), "the stack lives on");
}

#[test]
fn mistakes_are_errors_of_the_builder() {
    let start = |iface: Interface| Stack::builder().interface(iface).start().map(drop).map_err(|e| e.kind());
    let end = || nic::pair(&NicConfig::default(), &NicConfig::default()).0;
    assert_eq!(start(Interface::nic("eth0", end()).address("10.0.0.1/24")), Ok(()));
    assert_eq!(start(Interface::nic("eth0", end()).address("10.0.0.1/33")), Err(ErrorKind::InvalidInput));
    assert_eq!(start(Interface::nic("eth0", end()).gateway("nowhere")), Err(ErrorKind::InvalidInput));
    let mut used = end();
    drop(used.take_queue(0));
    assert_eq!(start(Interface::nic("eth0", used)), Err(ErrorKind::InvalidInput));
    let e = Stack::builder().pin_to_cpu(1 << 20).start().expect_err("no such CPU");
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
}

#[test]
fn what_a_stack_tells_about_itself() {
    let (client, server) = plain_stacks();
    let _dog = Watchdog::new("stats", &[&client, &server]);
    let (mut a, mut b) = connected(&client, &server);
    a.write_all(&[1; 100_000]).expect("write");
    b.read_exact(&mut vec![0; 100_000]).expect("read");
    let info = a.info().expect("connected");
    assert_eq!(info.state, 1);
    assert!(info.segs_out >= 2 && info.snd_mss > 1000);
    let stats = client.stats().expect("stats");
    assert_eq!(stats.tcp_sockets, 1);
    let names: Vec<_> = stats.interfaces.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["lo", "eth0"]);
    assert!(stats.interfaces[1].qstats.tx_bytes > 100_000);
    assert_eq!(stats.mibs.tcp.get("TcpActiveOpens"), Some(1));
    assert_eq!(a.local_addr().expect("connected").ip().to_string(), CLIENT);
}
