//! Linerate and Linux talk for as long as asked: nothing may stall, grow, leak or be lost without a reason.
//!
//! One stack on a TUN with all offloads, the kernel's sockets on its other side, everything in this process:
//! - bulk: two connections, one opened by each side, both directions of each, paced, every byte compared;
//! - short: connections opened at a steady rate, half by each side, closed first by either side; request and echo compared.
//!
//! Looked at all the time: no bulk direction and no short connection stands still for more than [`STALL`], where the time
//! that this process was kept from running is not counted ([`watch`]); memory after the warm-up stays within
//! [`GROWTH_BYTES`] and [`TIME_WAIT_BYTES`] for each further TIME-WAIT state.
//! Looked at in the end: every drop has a reason; the stack's counters agree with ours and with the kernel's of the device;
//! sockets, descriptors, pages and the memory account are home; the stack's own invariants hold.
//!
//! Limits: IPv4, one queue, no losses (the simulator and [`crate::goodput`] have those).

mod bulk;
mod short;
mod watch;

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linerate::inline::{DropReason, Shard};
use linerate::tun::{Tun, TunConfig};
use linerate::{Interface, Stack, Stats, Wait};
use linerate_host::netns;
use serde_json::{Value, json};

use watch::{Watch, Watched};

/// Standing still for longer is a failure.
pub(crate) const STALL: Duration = Duration::from_secs(1);
/// What memory may grow by after the warm-up, bytes: what an allocator keeps and gives back as threads come and go.
const GROWTH_BYTES: u64 = 8 << 20;
/// And for each TIME-WAIT state above those at the warm-up's end, bytes: its entry, its timer and its slot in the table.
const TIME_WAIT_BYTES: u64 = 384;
/// Of a device's pages, that wait in it to be filled.
const PAGES_IN_DEVICE: u32 = 5;
/// How long everything may take to come home.
const HOMEWARD: Duration = Duration::from_secs(10);
const DEVICE: &str = "soak0";

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Args {
    secs: u64,
    /// Of all bulk streams together.
    mbit: u64,
    /// Short connections a second.
    conns: u64,
    json: bool,
}

impl Args {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut args = Self { secs: 60, mbit: 100, conns: 1000, json: false };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut value = |max: u64| {
                let text = words.next().ok_or_else(|| format!("{word} needs a value"))?;
                let n = text.parse().ok().filter(|n| (1..=max).contains(n));
                n.ok_or_else(|| format!("{word} {text}: a number from 1 to {max} is wanted"))
            };
            match word {
                "--json" => args.json = true,
                "--secs" => args.secs = value(1_000_000)?,
                "--mbit" => args.mbit = value(10_000)?,
                "--conns" => args.conns = value(5_000)?,
                _ => return Err(format!("soak has no option '{word}'")),
            }
        }
        Ok(args)
    }
}

/// What all threads share.
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    pub(crate) watch: Watch,
    /// Bytes of bulk streams read and compared.
    pub(crate) bulk_bytes: AtomicU64,
    /// Short connections that came to their end, by who opened them: Linux, Linerate.
    pub(crate) done: [AtomicU64; 2],
    /// Connections that Linerate tried to open, and accepted.
    pub(crate) opened: AtomicU64,
    pub(crate) accepted: AtomicU64,
    /// The longest short connection, microseconds.
    pub(crate) longest_us: AtomicU64,
}

impl Shared {
    pub(crate) fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Linux's end and ours.
pub(crate) fn linux(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 8, 0, 1], port))
}
pub(crate) fn linerate(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 8, 0, 2], port))
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let (report, wrong) = soak(args).map_err(|e| e.to_string())?;
    if args.json {
        println!("{report}");
    } else {
        print!("{}", text(&report));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn soak(args: &Args) -> io::Result<(Value, Vec<String>)> {
    netns::set_loopback_up()?;
    let cidr = "10.8.0.1/24".parse().map_err(|_| io::Error::other("an address"))?;
    let tun = Tun::open(&TunConfig::new(DEVICE).host_address(cidr)).map_err(io::Error::from)?;
    let interface = Interface::tun(tun).address("10.8.0.2/24");
    let stack = Stack::builder().interface(interface).thread_name("stack").wait(Wait::Block).start()?;
    let shared = Shared {
        stop: AtomicBool::new(false),
        watch: Watch::new(),
        bulk_bytes: AtomicU64::new(0),
        done: [AtomicU64::new(0), AtomicU64::new(0)],
        opened: AtomicU64::new(0),
        accepted: AtomicU64::new(0),
        longest_us: AtomicU64::new(0),
    };
    let began = Instant::now();
    let memory = thread::scope(|s| {
        let watching = s.spawn(|| shared.watch.run());
        let flows = || -> io::Result<Memory> {
            let mut threads = bulk::start(s, &shared, &stack, args.mbit)?;
            threads.extend(short::start(s, &shared, &stack, args.conns)?);
            let memory = look_at_memory(args, &shared, &stack);
            shared.stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
            }
            memory
        };
        let memory = flows();
        // Also after an error: whoever still runs must see the end.
        shared.stop.store(true, Ordering::Relaxed);
        shared.watch.stop();
        let _ = watching.join();
        memory
    })?;
    let secs = began.elapsed().as_secs_f64();
    let home = come_home(&stack)?;
    let stats = stack.stats().map_err(io::Error::other)?;
    let mut wrong = judge(&shared, &memory, &home, &stats)?;
    if let Err(e) = stack.shutdown() {
        wrong.push(format!("the stack's end: {e}"));
    }
    Ok((report(args, secs, &shared, &memory, &home, &stats, &wrong), wrong))
}

/// Resident memory over time, bytes, and TIME-WAIT states, at the warm-up's end and at the worst moment.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    base: u64,
    base_tw: u64,
    worst: u64,
    worst_tw: u64,
    /// Above the allowance; 0 is well.
    excess: u64,
    last: u64,
}

/// Sleeps for as long as the soak lasts and looks at memory every second.
fn look_at_memory(args: &Args, shared: &Shared, stack: &Stack) -> io::Result<Memory> {
    let warm_up = Duration::from_secs((args.secs / 4).clamp(1, 120));
    let (began, mut memory) = (Instant::now(), Memory::default());
    while began.elapsed() < Duration::from_secs(args.secs) && !shared.watch.has_failed() {
        thread::sleep(Duration::from_secs(1).min(Duration::from_secs(args.secs).saturating_sub(began.elapsed())));
        let rss = linerate_host::rss_bytes()?;
        let tw = stack.stats().map_err(io::Error::other)?.tcp_time_wait as u64;
        memory.last = rss;
        if began.elapsed() < warm_up || memory.base == 0 {
            memory = Memory { base: rss, base_tw: tw, worst: rss, worst_tw: tw, ..memory };
            continue;
        }
        let allowed = memory.base + GROWTH_BYTES + tw.saturating_sub(memory.base_tw) * TIME_WAIT_BYTES;
        memory.excess = memory.excess.max(rss.saturating_sub(allowed));
        if rss > memory.worst {
            (memory.worst, memory.worst_tw) = (rss, tw);
        }
    }
    Ok(memory)
}

/// What is still out when all sockets are closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Home {
    sockets: usize,
    requests: usize,
    skbs: u32,
    tx_pages: u32,
    rx_pages: u32,
    tcp_bytes: u64,
}

impl Home {
    fn of(shard: &Shard) -> Self {
        let mem = &shard.core().mem;
        let (sockets, requests, _) = shard.tcp_counts();
        let rx = shard.links().devices().filter(|d| d.name == DEVICE).filter_map(|d| d.rx_pool(0));
        Self {
            sockets,
            requests,
            skbs: mem.skbs.inflight(),
            // The one that inline writers append to stays.
            tx_pages: mem.tx_pool.inflight().saturating_sub(u32::from(mem.tx_page.is_some())),
            rx_pages: rx.map(|pool| pool.inflight()).sum::<u32>().saturating_sub(PAGES_IN_DEVICE),
            tcp_bytes: mem.tcp.allocated_bytes,
        }
    }
}

/// Waits until everything is home, and has the stack check itself.
fn come_home(stack: &Stack) -> io::Result<Home> {
    let until = Instant::now() + HOMEWARD;
    loop {
        let home = stack.handle().with_shard(|shard| Home::of(shard)).map_err(io::Error::other)?;
        if home == Home::default() || Instant::now() > until {
            stack.handle().with_shard(|shard| shard.check_invariants()).map_err(io::Error::other)?;
            return Ok(home);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Everything that is not as it should be.
fn judge(shared: &Shared, memory: &Memory, home: &Home, stats: &Stats) -> io::Result<Vec<String>> {
    let mut wrong = shared.watch.stalls();
    let mut expect = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    expect(memory.excess == 0, format!("memory grew {} bytes above what is allowed: {memory:?}", memory.excess));
    expect(*home == Home::default(), format!("not everything came home: {home:?}"));
    let drops = &stats.mibs.drops;
    expect(drops.get(DropReason::NotSpecified) == 0, format!("drops without a reason: {drops:?}"));
    let tcp = &stats.mibs.tcp;
    let get = |name: &str| tcp.get(name).unwrap_or_default();
    let (opened, accepted) = (shared.opened.load(Ordering::Relaxed), shared.accepted.load(Ordering::Relaxed));
    expect(
        get("TcpActiveOpens") == opened,
        format!("{} active opens, but {opened} were asked for", get("TcpActiveOpens")),
    );
    let passive = get("TcpPassiveOpens");
    expect(passive == accepted, format!("{passive} passive opens, but {accepted} were accepted"));
    for name in ["TcpInErrs", "TcpInCsumErrors", "TcpAttemptFails", "TcpCurrEstab"] {
        expect(get(name) == 0, format!("{name} is {}", get(name)));
    }
    let [rx, rx_drops, tx, tx_drops] = kernel_counts()?;
    let q = stats.interfaces.last().map(|i| i.qstats).unwrap_or_default();
    // The kernel counts what it gave to the device and what we wrote into it, super-packets as one.
    expect(q.tx_skbs == rx + rx_drops, format!("{} written, but Linux got {rx} and dropped {rx_drops}", q.tx_skbs));
    expect(q.rx_skbs <= tx && tx - q.rx_skbs <= 2, format!("{} read, but Linux sent {tx}", q.rx_skbs));
    expect(tx_drops == 0, format!("Linux dropped {tx_drops} before the device"));
    let [by_linux, by_us] = [0, 1].map(|n| shared.done[n].load(Ordering::Relaxed));
    expect(by_linux > 0 && by_us > 0, format!("{by_linux} and {by_us} short connections"));
    expect(shared.bulk_bytes.load(Ordering::Relaxed) > 0, "no bulk data".to_owned());
    Ok(wrong)
}

fn kernel_counts() -> io::Result<[u64; 4]> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    crate::space::device_of(&text, DEVICE).ok_or_else(|| io::Error::other("the device is not listed"))
}

fn report(
    args: &Args,
    secs: f64,
    shared: &Shared,
    memory: &Memory,
    home: &Home,
    stats: &Stats,
    wrong: &[String],
) -> Value {
    let n = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let drops: serde_json::Map<String, Value> =
        stats.mibs.drops.iter().map(|(reason, n)| (format!("{reason:?}"), n.into())).collect();
    let tcp: serde_json::Map<String, Value> =
        stats.mibs.tcp.iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n.into())).collect();
    json!({
        "schema": 1, "secs": secs, "bulk_mbit_wanted": args.mbit, "conns_per_second_wanted": args.conns,
        "bulk_bytes": n(&shared.bulk_bytes), "bulk_mbit": n(&shared.bulk_bytes) as f64 * 8e-6 / secs,
        "short_by_linux": n(&shared.done[0]), "short_by_linerate": n(&shared.done[1]),
        "conns_per_second": (n(&shared.done[0]) + n(&shared.done[1])) as f64 / secs,
        "longest_short_ms": n(&shared.longest_us) as f64 / 1e3,
        "longest_pause_ms": shared.watch.longest().as_secs_f64() * 1e3,
        "kept_from_running_ms": shared.watch.held_up().as_secs_f64() * 1e3,
        "rss_base_bytes": memory.base, "rss_worst_bytes": memory.worst, "rss_last_bytes": memory.last,
        "rss_growth_bytes": memory.worst.saturating_sub(memory.base),
        "time_wait_base": memory.base_tw, "time_wait_worst": memory.worst_tw,
        "cpu_secs": linerate_host::process_cpu_time().as_secs_f64(),
        "out": { "sockets": home.sockets, "requests": home.requests, "skbs": home.skbs, "tx_pages": home.tx_pages,
                 "rx_pages": home.rx_pages, "tcp_bytes": home.tcp_bytes },
        "drops": drops, "tcp": tcp, "wrong": wrong,
    })
}

fn text(report: &Value) -> String {
    let mut out = String::new();
    for (key, value) in report.as_object().into_iter().flatten().filter(|(key, _)| *key != "tcp") {
        let _ = writeln!(out, "{key:24} {value}");
    }
    out
}

/// Sleeps until the next of a series of moments, or not at all when it is past.
pub(crate) fn sleep_until(next: Instant) {
    thread::sleep(next.saturating_duration_since(Instant::now()));
}

/// Reads, again when a signal came between: a process that is stopped and continued sees that on sockets with a time limit.
pub(crate) fn read(from: &mut impl io::Read, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buf) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// A thing of the watch that has ended does not stand still any more.
pub(crate) fn watched(shared: &Shared, name: String) -> Watched<'_> {
    shared.watch.add(name)
}
