//! Remote handles across threads: streams, closes, failures, and many stops and goes of one flow.
//!
//! One thread turns both shards in real time and sleeps whenever nothing is to do, so a lost wake-up is a test that hangs;
//! every wait of a test therefore has an end ([`PATIENCE`]) after which it fails.

use std::boxed::Box;
use std::sync::atomic::{AtomicBool, Ordering as StdOrdering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant as StdInstant};
use std::vec::Vec;

use linerate_arch::Kernels;
use linerate_base::{Errno, Instant};
use linerate_skb::PoolConfig;
use linerate_tcp::SockOpts;

use super::cell::Shared;
use super::wake::NIL;
use super::{HandleError, Park, ShardRemote, ShardWaker, SockHandle, Stream, pair};
use crate::sync::Ordering;
use crate::tests::{Net, byte_at};
use crate::{BindOpts, Shard};

const PATIENCE: Duration = Duration::from_secs(60);
const POOL: PoolConfig = PoolConfig { page_shift: 15, max_pages: 1024, cache_pages: 16 };

/// A thread's sleep, with a token.
#[derive(Default)]
struct Token(Mutex<bool>, Condvar);

impl Token {
    fn wake(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }
    /// Sleeps for at most `time`; false when nobody woke.
    fn sleep(&self, time: Duration) -> bool {
        let token = self.0.lock().unwrap();
        let (mut token, _) = self.1.wait_timeout_while(token, time, |t| !*t).unwrap();
        core::mem::take(&mut *token)
    }
}
impl ShardWaker for Token {
    fn wake(&self) {
        self.wake();
    }
}
impl Wake for Token {
    fn wake(self: Arc<Self>) {
        Token::wake(&self);
    }
}

/// Blocks the calling thread; fails the test instead of hanging.
struct Parked(Arc<Token>);
impl Parked {
    fn new() -> Self {
        Self(Arc::default())
    }
}
impl Park for Parked {
    fn waker(&self) -> Waker {
        self.0.clone().into()
    }
    fn park(&self) {
        assert!(self.0.sleep(PATIENCE), "nobody woke: a wake-up was lost");
    }
}

/// The thread that turns both shards.
struct Host {
    remotes: [ShardRemote; 2],
    stop: Arc<AtomicBool>,
    token: Arc<Token>,
    thread: Option<thread::JoinHandle<Net>>,
}

impl Host {
    fn new() -> Self {
        let mut net = Net::new();
        let token = Arc::new(Token::default());
        let stop = Arc::new(AtomicBool::new(false));
        let remotes = [net.a.remote(token.clone(), POOL), net.b.remote(token.clone(), POOL)];
        let (t, s) = (token.clone(), stop.clone());
        let thread = Some(thread::spawn(move || turn_until(net, &t, &s)));
        Self { remotes, stop, token, thread }
    }
    fn stop(mut self) -> Net {
        self.stop.store(true, StdOrdering::SeqCst);
        self.token.wake();
        self.thread.take().unwrap().join().expect("the shards' thread")
    }
    /// A connection: the client's end at a, the server's at b.
    fn connection(&self, port: u16) -> (SockHandle, SockHandle) {
        let park = Parked::new();
        let at = std::format!("10.0.0.2:{port}").parse().unwrap();
        let mut l = self.remotes[1].listen(at, 8, BindOpts::default(), &SockOpts::default()).unwrap();
        // The listener's command may come after the SYN: then the SYN is refused, so wait for the port.
        while l.local_addr().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        let mut c = self.remotes[0].connect(at, None, &SockOpts::default()).unwrap();
        c.wait_connected(&park).unwrap();
        let s = l.accept(&park).unwrap();
        assert_eq!((s.peer_addr(), s.local_addr()), (c.local_addr().unwrap(), Some(c.peer_addr())));
        (c, s)
    }
}

fn turn_until(mut net: Net, token: &Token, stop: &AtomicBool) -> Net {
    let start = StdInstant::now();
    while !stop.load(StdOrdering::SeqCst) {
        net.now = Instant::from_nanos(start.elapsed().as_nanos() as u64);
        let turns = [net.a.turn(net.now, 256), net.b.turn(net.now, 256)];
        if turns.iter().any(|t| t.rx_skbs + t.tx_skbs > 0 || t.more) {
            continue;
        }
        let may = [net.a.prepare_sleep(), net.b.prepare_sleep()];
        if may == [true, true] {
            let next = turns.iter().filter_map(|t| t.next).min();
            token.sleep(next.map_or(PATIENCE, |at| at.since(net.now)).min(PATIENCE));
        }
    }
    net
}

fn stream(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(byte_at).collect()
}

#[test]
fn a_stream_crosses_threads_unharmed() {
    const END: u64 = 6 << 20;
    let host = Host::new();
    let (mut c, s) = host.connection(80);
    let (mut rd, mut wr) = s.split();
    let reader = thread::spawn(move || {
        let (park, mut at, mut buf) = (Parked::new(), 0, std::vec![0; 50_000]);
        loop {
            match rd.read(&park, &mut buf).unwrap() {
                0 => break,
                n => {
                    assert_eq!(buf[..n], stream(at, n)[..], "at {at}");
                    at += n as u64;
                }
            }
        }
        (at, rd.copied_bytes())
    });
    let park = Parked::new();
    let mut at = 0;
    while at < END {
        let chunk = stream(at, 30_000.min((END - at) as usize));
        c.write.write_all(&park, &chunk).unwrap();
        at += chunk.len() as u64;
    }
    c.shutdown();
    assert_eq!(c.write.write(&park, b"x"), Err(HandleError::Shutdown));
    assert_eq!(reader.join().unwrap(), (END, END));
    // The other direction still works, and ends when the writer is dropped.
    wr.write_all(&park, b"thanks").unwrap();
    drop(wr);
    let mut buf = [0; 64];
    let mut got = Vec::new();
    loop {
        match c.read.read(&park, &mut buf).unwrap() {
            0 => break,
            n => got.extend_from_slice(&buf[..n]),
        }
    }
    assert_eq!(got, b"thanks");
    drop(c);
    thread::sleep(Duration::from_millis(50));
    let mut net = host.stop();
    net.a.check_invariants();
    net.b.check_invariants();
    assert_eq!((net.a.remote_count(), net.b.remote_count()), (0, 0));
    assert_eq!(net.a.copied_bytes(), (0, 0), "the shard itself copies nothing");
    net.finish();
}

#[test]
fn failures_reach_the_handle() {
    let host = Host::new();
    let park = Parked::new();
    let refused = "10.0.0.2:81".parse().unwrap();
    let mut c = host.remotes[0].connect(refused, None, &SockOpts::default()).unwrap();
    assert_eq!(c.wait_connected(&park), Err(HandleError::Socket(Errno::ECONNREFUSED)));
    let mut c = host.remotes[0].connect("192.168.9.9:1".parse().unwrap(), None, &SockOpts::default()).unwrap();
    assert_eq!(c.wait_connected(&park), Err(HandleError::Socket(Errno::ENETUNREACH)));
    let at = "10.9.9.9:80".parse().unwrap();
    let mut l = host.remotes[1].clone().listen(at, 8, BindOpts::default(), &SockOpts::default()).unwrap();
    assert_eq!(l.accept(&park).err(), Some(HandleError::Socket(Errno::EADDRNOTAVAIL)));
    // A reset reaches a reader that waits.
    let (mut c, s) = host.connection(82);
    let reader = thread::spawn(move || c.read.read(&Parked::new(), &mut [0; 16]));
    thread::sleep(Duration::from_millis(20));
    s.abort();
    assert_eq!(reader.join().unwrap(), Err(HandleError::Socket(Errno::ECONNRESET)));
    // A shard that goes reaches everybody.
    let (mut c, _s) = host.connection(83);
    let remote = host.remotes[0].clone();
    let reader = thread::spawn(move || c.read.read(&Parked::new(), &mut [0; 16]));
    thread::sleep(Duration::from_millis(20));
    drop(host.stop());
    assert_eq!(reader.join().unwrap(), Err(HandleError::Gone));
    assert_eq!(remote.connect(refused, None, &SockOpts::default()).err(), Some(HandleError::Gone));
}

#[test]
fn a_reader_that_does_not_read_closes_the_window() {
    let host = Host::new();
    let (mut c, mut s) = host.connection(80);
    let mut at = 0u64;
    let mut idle = 0;
    while idle < 30 {
        match c.try_write(&stream(at, 40_000)) {
            Ok(n) => (at, idle) = (at + n as u64, 0),
            Err(HandleError::WouldBlock) => {
                idle += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(at < 64 << 20, "{at} bytes were taken without a reader");
    let (park, mut got, mut buf) = (Parked::new(), 0u64, std::vec![0; 100_000]);
    while got < at {
        let n = s.read.read(&park, &mut buf).unwrap();
        assert_eq!(buf[..n], stream(got, n)[..]);
        got += n as u64;
    }
    drop((c, s));
    host.stop().finish();
}

/// A shard's part without TCP: what one handle writes goes to the other, `window` bytes at a time.
fn bridge(shared: &Shared, token: &Token, from: &mut Stream, to: &mut Stream, window: u64, stop: &AtomicBool) {
    from.cell.link.adopt(0);
    to.cell.link.adopt(1);
    from.cell.snd_limit.store(window, Ordering::Release);
    while !stop.load(StdOrdering::SeqCst) {
        shared.asleep.cancel();
        let mut at = shared.dirty.take_all();
        while at != NIL {
            at = if at == 0 { from.cell.link.take() } else { to.cell.link.take() };
        }
        let mut news = false;
        while let Some(frag) = from.down.pop() {
            from.taken += u64::from(frag.len());
            to.moved += u64::from(frag.len());
            to.up.try_push(frag).expect("the window is smaller than the ring");
            news = true;
        }
        to.cell.up_wait.prepare();
        from.cell.snd_limit.store(to.cell.rcv_read.load(Ordering::Acquire) + window, Ordering::Release);
        if news && to.cell.rd_wait.notify() {
            to.rd_wakers.wake();
        }
        if from.cell.wr_wait.notify() {
            from.wr_wakers.wake();
        }
        shared.asleep.prepare();
        if shared.has_work() || !from.down.is_empty() {
            continue;
        }
        assert!(token.sleep(PATIENCE) || stop.load(StdOrdering::SeqCst), "the shard was not woken");
    }
}

/// `rounds` times: the writer fills the window and sleeps, the reader sleeps, reads all of it and opens it again.
fn stop_and_go(rounds: u64) {
    const WINDOW: usize = 64;
    let token = Arc::new(Token::default());
    let shared = Arc::new(Shared::new(token.clone()));
    let peer = "10.0.0.1:1".parse().unwrap();
    let (mut from, a) = pair(&shared, Kernels::portable(), POOL, peer);
    let (mut to, b) = pair(&shared, Kernels::portable(), POOL, peer);
    let stop = Arc::new(AtomicBool::new(false));
    let shard = {
        let (shared, token, stop) = (shared.clone(), token.clone(), stop.clone());
        thread::spawn(move || bridge(&shared, &token, &mut from, &mut to, WINDOW as u64, &stop))
    };
    let reader = thread::spawn(move || {
        let (park, mut b, mut at, mut buf) = (Parked::new(), b, 0u64, [0; WINDOW]);
        while at < rounds * WINDOW as u64 {
            let n = b.read.read(&park, &mut buf).unwrap();
            assert!(buf[..n].iter().zip(at..).all(|(b, i)| *b == i as u8));
            at += n as u64;
        }
        b
    });
    let (park, mut a, mut at) = (Parked::new(), a, 0u64);
    while at < rounds * WINDOW as u64 {
        let mut chunk = [0; 2 * WINDOW];
        chunk.iter_mut().zip(at..).for_each(|(b, i)| *b = i as u8);
        let want = (rounds * WINDOW as u64 - at).min(chunk.len() as u64) as usize;
        at += a.write.write(&park, &chunk[..want]).unwrap() as u64;
    }
    let b = reader.join().unwrap();
    stop.store(true, StdOrdering::SeqCst);
    token.wake();
    shard.join().unwrap();
    drop((a, b));
}

#[test]
fn a_window_that_closes_and_opens_loses_no_wake_up() {
    stop_and_go(100_000);
}

#[test]
#[ignore = "minutes; run it in release"]
fn a_window_that_closes_and_opens_a_million_times() {
    stop_and_go(1_000_000);
}

#[test]
fn many_tasks_take_turns_on_one_half() {
    // More wakers than the ring holds, without the shard looking: the half asks again instead of losing one.
    let token = Arc::new(Token::default());
    let shared = Arc::new(Shared::new(token));
    let (mut stream, mut handle) = pair(&shared, Kernels::portable(), POOL, "10.0.0.1:1".parse().unwrap());
    let tokens: Vec<Arc<Token>> = (0..9).map(|_| Arc::default()).collect();
    let mut asked_again = 0;
    for t in &tokens {
        let waker = t.clone().into();
        let poll = handle.read.poll_read(&mut core::task::Context::from_waker(&waker), &mut [0; 4]);
        assert!(poll.is_pending());
        asked_again += usize::from(t.sleep(Duration::ZERO));
    }
    assert_eq!(asked_again, tokens.len() - 4);
    stream.rd_wakers.refresh();
    let waker = tokens[8].clone().into();
    assert!(handle.read.poll_read(&mut core::task::Context::from_waker(&waker), &mut [0; 4]).is_pending());
    assert!(stream.cell.rd_wait.notify());
    stream.rd_wakers.wake();
    assert!(tokens[8].sleep(Duration::ZERO), "the newest is woken");
    assert!(tokens[..8].iter().all(|t| !t.sleep(Duration::ZERO)));
}

fn is_send<T: Send>() {}

#[test]
fn handles_and_shards_move_between_threads() {
    is_send::<SockHandle>();
    is_send::<super::RemoteListener>();
    is_send::<ShardRemote>();
    is_send::<Shard>();
    is_send::<Box<Shard>>();
}
