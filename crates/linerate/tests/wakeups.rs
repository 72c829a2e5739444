//! No wake-up is lost: a writer that the window stopped, and a reader that opens it, [`ROUNDS`] times in every
//! wait mode (`cargo test -- --ignored` makes it a million). A lost wake-up would stand still until a timer of TCP comes
//! to its help, so the zero-window probes are counted too: there must be next to none.

mod common;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::{sync::Arc, time::Duration};

use common::{SERVER, Watchdog, check, fill, two_stacks};
use linerate::nic::NicConfig;
use linerate::{ConnectOptions, ListenOptions, TcpListener, TcpStream, Wait};

/// Stops and releases of a writer in the tests that always run; each costs four changes of thread.
const ROUNDS: u64 = 100_000;

/// What a reader takes before it waits for the writer to be stopped again, bytes. The stack hands up a receive queue whole,
/// so more than its mark may wait for the reader: this much brings it below the mark and empties the queue, which opens
/// the window. With less, reader and writer would both rightly wait for ever.
const TAKE_BYTES: usize = 64 << 10;
/// SO_RCVBUF and SO_SNDBUF as stored.
const BUF_BYTES: u32 = 16 << 10;

struct Unpark(Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The writer is stopped `rounds` times, each time by a closed window, and each time let go by one read.
fn window(wait: Wait, rounds: u64) {
    let (client, server) = two_stacks(wait, &NicConfig::default(), |b| b);
    let dog = Watchdog::new(&format!("window, {wait:?}"), &[&client, &server]);
    let mut options = ListenOptions::default();
    options.socket.rcvbuf_bytes = BUF_BYTES;
    let mut listener = TcpListener::bind_with(&server, (SERVER, 0), &options).expect("bind");
    let mut options = ConnectOptions::default();
    options.socket.sndbuf_bytes = BUF_BYTES;
    let a = TcpStream::connect_with(&client, listener.local_addr(), &options).expect("connect");
    let (mut b, _) = listener.accept().expect("accept");
    // Times that the writer was stopped; the reader has let it go as often as it has read.
    let stopped = Arc::new(AtomicU64::new(0));
    let (mut read, mut write) = a.split();
    let seen = stopped.clone();
    let writer = thread::spawn(move || {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut data = vec![0; 4 << 10];
        let mut pos = 0;
        while seen.load(Ordering::Relaxed) < rounds {
            fill(3, pos, &mut data);
            match write.poll_write(&mut cx, &data) {
                Poll::Ready(n) => pos += n.expect("write") as u64,
                Poll::Pending => {
                    seen.fetch_add(1, Ordering::Release);
                    thread::park();
                }
            }
        }
        write.shutdown();
        pos
    });
    let tick = dog.ticker();
    let (mut pos, mut reads) = (0, 0);
    let mut buf = vec![0; TAKE_BYTES];
    loop {
        // Only a writer that says that it sleeps is let go: before that, filling the window is its own affair.
        while stopped.load(Ordering::Acquire) <= reads && !writer.is_finished() {
            thread::yield_now();
        }
        reads = stopped.load(Ordering::Relaxed);
        let mut got = 0;
        while got < TAKE_BYTES {
            match b.try_read(&mut buf[got..]) {
                Ok(0) => {
                    check(3, pos, &buf[..got]);
                    pos += got as u64;
                    assert_eq!(pos, writer.join().expect("writer"));
                    assert_eq!(read.try_read(&mut buf), Err(linerate::Error::WouldBlock));
                    let probes = client.stats().expect("stats").mibs.tcp.get("TcpExtTCPWinProbe").unwrap_or(0);
                    assert!(probes <= rounds / 1000 + 5, "{probes} probes of a closed window in {rounds} rounds");
                    return;
                }
                Ok(n) => got += n,
                // All of it must come: less may be too little for the receiver to open the window.
                Err(linerate::Error::WouldBlock) => thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
        check(3, pos, &buf[..got]);
        pos += got as u64;
        tick.tick();
    }
}

/// One byte there, one byte back: each end sleeps until the other has written.
fn ping_pong(wait: Wait, rounds: u64) {
    let (client, server) = two_stacks(wait, &NicConfig::default(), |b| b);
    let dog = Watchdog::new(&format!("ping-pong, {wait:?}"), &[&client, &server]);
    let mut listener = TcpListener::bind(&server, (SERVER, 0)).expect("bind");
    let mut a = TcpStream::connect(&client, listener.local_addr()).expect("connect");
    let (mut b, _) = listener.accept().expect("accept");
    let echo = thread::spawn(move || {
        let mut byte = [0];
        while b.read(&mut byte).expect("read") == 1 {
            b.write_all(&byte).expect("write");
        }
    });
    let tick = dog.ticker();
    for i in 0..rounds {
        a.write_all(&[i as u8]).expect("write");
        let mut byte = [0];
        a.read_exact(&mut byte).expect("read");
        assert_eq!(byte[0], i as u8);
        tick.tick();
    }
    a.shutdown();
    echo.join().expect("echo");
}

#[test]
fn window_reopened_blocking() {
    window(Wait::Block, ROUNDS);
}
#[test]
fn window_reopened_adaptive() {
    window(Wait::Adaptive, ROUNDS);
}
#[test]
fn window_reopened_spinning() {
    window(Wait::Spin, ROUNDS);
}

#[test]
#[ignore = "a million rounds in each mode take minutes"]
fn window_reopened_a_million_times() {
    for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
        window(wait, 1_000_000);
    }
}

#[test]
fn ping_pong_in_every_mode() {
    for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
        ping_pong(wait, 5_000);
    }
}

/// A writer whose pages are all out is let go when they come home, although no segment tells it.
#[test]
fn a_writer_without_pages_goes_on_when_they_come_home() {
    let few = linerate::PoolConfig { page_shift: 12, max_pages: 2, cache_pages: 2 };
    let (client, server) = two_stacks(Wait::Adaptive, &NicConfig::default(), |b| b.write_pool(few));
    let _dog = Watchdog::new("pages", &[&client, &server]);
    let mut listener = TcpListener::bind(&server, (SERVER, 0)).expect("bind");
    let mut a = TcpStream::connect(&client, listener.local_addr()).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    let writer = thread::spawn(move || {
        let mut data = vec![0; 100_000];
        fill(4, 0, &mut data);
        a.write_all(&data).expect("write");
    });
    // Over this wire pages travel by reference: what the reader keeps, the writer lacks.
    let (mut read, _write) = b.split();
    let (mut pos, mut kept) = (0, Vec::new());
    while pos < 100_000 {
        let n = read.read_frags(1000, &mut |f| kept.push(f)).expect("read");
        let bytes: Vec<u8> = kept.iter().flat_map(|f| f.as_slice().iter().copied()).collect();
        let end = pos + n as u64;
        check(4, end - bytes.len() as u64, &bytes);
        pos = end;
        if bytes.len() > 3000 {
            // Long enough for every segment to be acknowledged, so that none of them can be what wakes the writer.
            thread::sleep(Duration::from_millis(2));
            kept.clear();
        }
    }
    drop(kept);
    writer.join().expect("writer");
}
