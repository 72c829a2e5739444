//! What the tests of remote sockets share: two stacks with a wire between them, bytes that can be checked at any
//! position, and a watchdog that turns a stall into a message instead of a hanging test run.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate::nic::{NicConfig, pair};
use linerate::{Builder, Interface, Stack, Wait};

/// No test may stand still for longer: beyond what a machine full of other work makes of a few thousand hand-overs.
pub(crate) const STALL: Duration = Duration::from_secs(30);

/// To stderr itself: what a test captures is lost with the process.
macro_rules! say {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_all(&mut std::io::stderr(), (format!($($arg)*) + "\n").as_bytes());
    }};
}

/// Addresses of the two stacks.
pub(crate) const CLIENT: &str = "10.0.0.1";
pub(crate) const SERVER: &str = "10.0.0.2";

/// Two stacks on threads of their own, joined by a software wire: client and server.
pub(crate) fn two_stacks(wait: Wait, nic: &NicConfig, set: impl Fn(Builder) -> Builder) -> (Stack, Stack) {
    let (a, b) = pair(nic, nic);
    let stack = |name: &str, nic, addr: &str, seed| {
        let eth0 = Interface::nic("eth0", nic).address(&format!("{addr}/24"));
        set(Stack::builder().interface(eth0).wait(wait).thread_name(name).seed(seed)).start().expect("the stack starts")
    };
    (stack("client", a, CLIENT, 1), stack("server", b, SERVER, 2))
}

/// As [`two_stacks`] with defaults.
pub(crate) fn plain_stacks() -> (Stack, Stack) {
    two_stacks(Wait::Adaptive, &NicConfig::default(), |b| b)
}

/// The byte at a position of the stream number `seed`: every 64-bit word is a mix of its index.
pub(crate) fn byte_at(seed: u64, pos: u64) -> u8 {
    let mut x = (pos / 8).wrapping_add(seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> (pos % 8 * 8)) as u8
}

/// Fills `buf` with the stream `seed` from `pos` on.
pub(crate) fn fill(seed: u64, pos: u64, buf: &mut [u8]) {
    for (i, b) in (pos..).zip(buf) {
        *b = byte_at(seed, i);
    }
}

/// Checks `buf` against the stream `seed` from `pos` on.
#[track_caller]
pub(crate) fn check(seed: u64, pos: u64, buf: &[u8]) {
    for (i, &b) in (pos..).zip(buf) {
        assert_eq!(b, byte_at(seed, i), "stream {seed} differs at byte {i}");
    }
}

/// Writes the first `len` bytes of the stream `seed`.
pub(crate) fn write_stream(seed: u64, len: u64, to: &mut impl Write) {
    let mut buf = vec![0; 50_000];
    let mut pos = 0;
    while pos < len {
        let n = (len - pos).min(buf.len() as u64) as usize;
        fill(seed, pos, &mut buf[..n]);
        to.write_all(&buf[..n]).expect("write");
        pos += n as u64;
    }
}

/// Reads the stream `seed` to its end, which must come after `len` bytes.
pub(crate) fn read_stream(seed: u64, len: u64, from: &mut impl Read, tick: &Ticker) {
    let mut buf = vec![0; 70_000];
    let mut pos = 0;
    loop {
        let n = from.read(&mut buf).expect("read");
        if n == 0 {
            break;
        }
        check(seed, pos, &buf[..n]);
        pos += n as u64;
        tick.tick();
    }
    assert_eq!(pos, len, "the end came at the end");
}

/// A small generator for sizes; the seed makes the run.
pub(crate) struct Sizes(u64);
impl Sizes {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(0x1234_5677))
    }
    pub(crate) fn next(&mut self, max: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        1 + (self.0 % max as u64) as usize
    }
}

/// Aborts the test run with a message when nothing was [`Watchdog::tick`]ed for [`STALL`].
pub(crate) struct Watchdog {
    shared: Arc<(AtomicU64, AtomicBool)>,
    thread: Option<JoinHandle<()>>,
}

/// What tells the watchdog that something moved.
#[derive(Clone)]
pub(crate) struct Ticker(Arc<(AtomicU64, AtomicBool)>);
impl Ticker {
    pub(crate) fn tick(&self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Watchdog {
    pub(crate) fn new(what: &str, stacks: &[&Stack]) -> Self {
        let shared = Arc::new((AtomicU64::new(0), AtomicBool::new(false)));
        let (seen, what) = (shared.clone(), what.to_owned());
        let handles: Vec<_> = stacks.iter().map(|s| s.handle()).collect();
        let thread = std::thread::spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            while !seen.1.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(20));
                let now = seen.0.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > STALL {
                    say!("STALL: {what}: nothing moved for {STALL:?} after {now} steps");
                    dump_threads();
                    for (i, handle) in handles.iter().enumerate() {
                        // A call wakes the stack: what it shows may already be the cure.
                        match handle.stats() {
                            Ok(stats) => {
                                let mib: Vec<_> = stats.mibs.tcp.iter().filter(|(_, n)| *n != 0).collect();
                                say!("stack {i}: {mib:?} {:?}", stats.interfaces.last());
                            }
                            Err(e) => say!("stack {i}: {e}"),
                        }
                    }
                    std::process::abort();
                }
            }
        });
        Self { shared, thread: Some(thread) }
    }
    pub(crate) fn ticker(&self) -> Ticker {
        Ticker(self.shared.clone())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.1.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Name, state and wait channel of every thread of this process, where the host tells.
fn dump_threads() {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return };
    for task in tasks.flatten() {
        let read = |f: &str| std::fs::read_to_string(task.path().join(f)).unwrap_or_default();
        let status = read("status");
        let state = status.lines().find(|l| l.starts_with("State")).unwrap_or("State: ?").to_owned();
        say!("thread {:16} {state}  wchan {}", read("comm").trim(), read("wchan").trim());
    }
}
