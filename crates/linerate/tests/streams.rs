//! Bytes between threads over two stacks: equality of streams, many connections, half close, by-reference verbs.

mod common;

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use common::{CLIENT, SERVER, Sizes, Watchdog, check, fill, plain_stacks, two_stacks};
use linerate::nic::{CsumOffload, Dma, FaultPlan, NicConfig, pair};
use linerate::{ConnectOptions, Interface, PagePool, PoolConfig, Stack, TcpListener, TcpStream, Wait};

/// Writes `total` bytes of stream `seed` in random pieces.
fn send(stream: &mut impl Write, seed: u64, total: u64, max: usize, step: impl Fn()) {
    let mut sizes = Sizes::new(seed);
    let mut buf = vec![0; max];
    let mut pos = 0;
    while pos < total {
        let n = sizes.next(max).min((total - pos) as usize);
        fill(seed, pos, &mut buf[..n]);
        stream.write_all(&buf[..n]).expect("write");
        pos += n as u64;
        step();
    }
}

/// Reads to the end in random pieces, checks every byte, returns how many there were.
fn receive(stream: &mut impl Read, seed: u64, max: usize, step: impl Fn()) -> u64 {
    let mut sizes = Sizes::new(seed ^ 0x55);
    let mut buf = vec![0; max];
    let mut pos = 0;
    loop {
        let want = sizes.next(max);
        let n = stream.read(&mut buf[..want]).expect("read");
        if n == 0 {
            return pos;
        }
        check(seed, pos, &buf[..n]);
        pos += n as u64;
        step();
    }
}

/// Both directions at once on every one of `conns` connections, each end of each on threads of its own.
fn duplex(client: &Stack, server: &Stack, conns: u64, total: u64, max: usize) {
    let dog = Watchdog::new("duplex", &[client, server]);
    let mut listener = TcpListener::bind(server, (SERVER, 0)).expect("bind");
    let addr = listener.local_addr();
    thread::scope(|s| {
        let t = dog.ticker();
        s.spawn(move || {
            thread::scope(|s| {
                for stream in listener.incoming().take(conns as usize) {
                    let mut stream = stream.expect("accept");
                    let mut id = [0; 8];
                    stream.read_exact(&mut id).expect("the number of the stream");
                    let id = u64::from_le_bytes(id);
                    let (mut r, mut w) = stream.split();
                    let (t1, t2) = (t.clone(), t.clone());
                    s.spawn(move || assert_eq!(receive(&mut r, id, max, || t1.tick()), total));
                    s.spawn(move || send(&mut w, id + 1000, total, max, || t2.tick()));
                }
            });
        });
        for id in 0..conns {
            let t = dog.ticker();
            let mut stream = TcpStream::connect(client, addr).expect("connect");
            s.spawn(move || {
                stream.write_all(&id.to_le_bytes()).expect("write");
                let (mut r, mut w) = stream.split();
                let t2 = t.clone();
                thread::scope(|s| {
                    s.spawn(move || {
                        send(&mut w, id, total, max, || t2.tick());
                        w.shutdown();
                    });
                    assert_eq!(receive(&mut r, id + 1000, max, || t.tick()), total);
                });
            });
        }
    });
}

#[test]
fn streams_are_equal_by_reference() {
    for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
        let (client, server) = two_stacks(wait, &NicConfig::default(), |b| b);
        duplex(&client, &server, 2, 3_000_001, 100_000);
    }
}

#[test]
fn streams_are_equal_over_frames_copied_by_the_device() {
    let nic = NicConfig { cut: true, dma: Dma::Copy, csum: CsumOffload::Hw, ..NicConfig::default() };
    let (client, server) = two_stacks(Wait::Adaptive, &nic, |b| b);
    duplex(&client, &server, 2, 2_000_003, 70_000);
}

#[test]
fn streams_are_equal_over_a_device_that_can_do_nothing() {
    let nic = NicConfig { cut: true, csum: CsumOffload::Sw, tso: false, gro_hw: false, ..NicConfig::default() };
    let (client, server) = two_stacks(Wait::Adaptive, &nic, |b| b);
    duplex(&client, &server, 1, 1_000_007, 70_000);
}

#[test]
fn many_connections() {
    let (client, server) = plain_stacks();
    duplex(&client, &server, 40, 30_001, 5_000);
}

#[test]
fn a_closed_direction_leaves_the_other_open() {
    let (client, server) = plain_stacks();
    let mut listener = TcpListener::bind(&server, (SERVER, 0)).expect("bind");
    let mut a = TcpStream::connect(&client, listener.local_addr()).expect("connect");
    let (mut b, peer) = listener.accept().expect("accept");
    assert_eq!(peer, a.local_addr().expect("connected"));
    assert_eq!(b.local_addr().expect("accepted"), a.peer_addr());

    a.write_all(b"question").expect("write");
    a.shutdown();
    let mut got = Vec::new();
    b.read_to_end(&mut got).expect("the end comes");
    assert_eq!(got, b"question");
    assert_eq!(a.try_write(b"x"), Err(linerate::Error::Shutdown));
    // Megabytes in the direction that is still open.
    let answer = vec![7_u8; 2 << 20];
    let writer = thread::spawn(move || {
        b.write_all(&answer).expect("the other direction is open");
        b
    });
    let mut got = vec![0; 2 << 20];
    a.read_exact(&mut got).expect("read");
    assert!(got.iter().all(|&x| x == 7));
    drop(writer.join().expect("writer"));
    assert_eq!(a.read(&mut got).expect("the end"), 0);
}

#[test]
fn fragments_travel_without_a_copy() {
    let (client, server) = plain_stacks();
    let mut listener = TcpListener::bind(&server, (SERVER, 0)).expect("bind");
    let mut a = TcpStream::connect(&client, listener.local_addr()).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    let mut data = vec![0; 300_000];
    fill(9, 0, &mut data);
    a.write_all(&data).expect("write");
    a.shutdown();
    let (mut read, _write) = b.split();
    let mut pos = 0;
    loop {
        let mut frags = Vec::new();
        let n = read.read_frags(50_000, &mut |f| frags.push(f)).expect("read");
        if n == 0 {
            break;
        }
        assert_eq!(frags.iter().map(|f| f.len() as usize).sum::<usize>(), n);
        for f in &frags {
            check(9, pos, f.as_slice());
            pos += u64::from(f.len());
        }
    }
    assert_eq!(pos, 300_000);
    assert_eq!(read.copied_bytes(), 0);
}

/// Fragments that are longer than the send buffer ever is go in pieces, block, and come home.
#[test]
fn fragments_are_written_without_a_copy() {
    let (client, server) = plain_stacks();
    let mut listener = TcpListener::bind(&server, (SERVER, 0)).expect("bind");
    let mut options = ConnectOptions::default();
    options.socket.sndbuf_bytes = 40_000;
    let a = TcpStream::connect_with(&client, listener.local_addr(), &options).expect("connect");
    let (mut b, _) = listener.accept().expect("accept");
    let (_read, mut write) = a.split();
    let mut pool = PagePool::new(PoolConfig { page_shift: 17, ..PoolConfig::default() });
    let reader = thread::spawn(move || receive(&mut b, 4, 30_000, || ()));
    let mut pos = 0;
    for len in [1, 131_072, 100_000, 70_000, 2, 131_072] {
        let mut page = pool.alloc().expect("a page");
        let frag = page.fill(len, |to| {
            fill(4, pos, to);
            to.len()
        });
        write.write_frag(frag.expect("a page has room for that")).expect("written");
        pos += len as u64;
        pool.recycle_page(page);
    }
    assert_eq!(write.copied_bytes(), 0);
    write.shutdown();
    assert_eq!(reader.join().expect("reader"), pos);
    assert!(write.write_frag(pool.alloc().and_then(|mut p| p.fill(1, |to| to.len())).expect("a page")).is_err());
    drop((client, server));
    pool.reclaim();
    assert_eq!(pool.inflight(), 0);
}

#[test]
fn the_loopback_of_a_stack_alone() {
    let stack = Stack::builder().start().expect("start");
    duplex_on_loopback(&stack);
}

fn duplex_on_loopback(stack: &Stack) {
    let mut listener = TcpListener::bind(stack, "127.0.0.1:0").expect("bind");
    let addr = listener.local_addr();
    let server = thread::spawn(move || {
        let (mut s, _) = listener.accept().expect("accept");
        receive(&mut s, 5, 40_000, || ())
    });
    let mut s = TcpStream::connect(stack, addr).expect("connect");
    send(&mut s, 5, 500_000, 60_000, || ());
    drop(s);
    assert_eq!(server.join().expect("server"), 500_000);
}

/// A long path needs more than the default send buffer. The buffer of a socket that a thread writes to grows as the
/// window does, as if the writer had asked the stack itself.
#[test]
fn the_send_buffer_grows_with_the_window_of_a_long_path() {
    const SMALL_BYTES: u32 = 32 << 10;
    let (a, b) = pair(&NicConfig::default(), &NicConfig::default());
    let late = FaultPlan { reorder: 1.0, reorder_delay: Duration::from_millis(10), ..FaultPlan::default() };
    let stack = |nic, addr: &str, seed| {
        let eth0 = Interface::nic("eth0", nic).address(&format!("{addr}/24"));
        let eth0 = eth0.faults(FaultPlan::default(), late.clone(), seed);
        Stack::builder().interface(eth0).configure(|cfg| cfg.tcp.wmem_bytes[1] = SMALL_BYTES).seed(seed).start()
    };
    let (client, server) = (stack(a, CLIENT, 1).expect("start"), stack(b, SERVER, 2).expect("start"));
    let dog = Watchdog::new("a long path", &[&client, &server]);
    let mut listener = TcpListener::bind(&server, (SERVER, 0)).expect("bind");
    let mut from = TcpStream::connect(&client, listener.local_addr()).expect("connect");
    let (mut to, peer) = listener.accept().expect("accept");
    let local = listener.local_addr();
    let sndbuf = |client: &Stack| {
        let of = move |shard: &mut linerate::inline::Shard| {
            shard.find(peer, local).and_then(|id| shard.conn(id)).map(linerate_tcp::Conn::sndbuf_bytes)
        };
        client.handle().with_shard(of).expect("the stack runs").expect("the connection stands")
    };
    let before = sndbuf(&client);
    let after = thread::scope(|s| {
        let tick = dog.ticker();
        s.spawn(move || assert_eq!(receive(&mut to, 3, 64 << 10, || tick.tick()), 4 << 20));
        send(&mut from, 3, 4 << 20, 64 << 10, || ());
        let after = sndbuf(&client);
        from.shutdown();
        after
    });
    assert!(after > 4 * before, "from {before} to {after} bytes");
}
