//! One number is one network with its faults, applications and accidents, and a verdict.
//!
//! [`run_seed`] draws a [`Plan`] from the seed, builds it, runs it to its end and then to rest, under all checkers. The same
//! seed gives the same run, frame by frame: [`Outcome::hash`] is over everything that crossed the wires. A failure says what
//! was violated, how to replay it, and what the plan was; the capture comes from a second run that keeps frames.
//!
//! What must hold: streams arrive whole or end with an error that the plan explains; after faults stop everything comes to
//! an end; the checkers find nothing; a panic of the stack is a failure like any other. Plans are drawn wide on purpose:
//! tiny buffers, single-byte writes, rings of four, features in any combination.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_base::{Duration, Instant, Rng};
use linerate_netdev::FaultPlan;
use linerate_stack::StackConfig;
use linerate_stack::config::GroMode;
use linerate_tcp::{SockOpts, SocketError};

use crate::apps::{CHUNK_MAX, Op, Script};
use crate::device::{NicConfig, TxDoneAt};
use crate::link::lock;
use crate::net::{LinkSpec, Net, Stop};
use crate::tap::Keep;
use crate::wire::WireConfig;

/// Virtual time after which a run that has not ended has failed: longer than all retries of TCP together.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// How hard the wires are to live with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Weather {
    /// Nothing goes wrong.
    Calm,
    /// A percent or so.
    Light,
    /// Up to a tenth of everything.
    Rough,
    /// Most frames die in bursts.
    Storm,
}

/// What one connection does at both ends.
#[derive(Clone, Debug)]
struct Job {
    /// Dials at.
    at: Instant,
    client: Script,
    server: Script,
    /// One of the ends breaks off on purpose.
    breaks: bool,
}

/// Everything that a seed decides.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Faults of the wires.
    pub weather: Weather,
    /// Both hosts' stacks.
    stacks: [StackConfig; 2],
    budgets: [usize; 2],
    link: LinkSpec,
    /// A third host, with a link of its own to host 1, dials every second connection.
    third: bool,
    v6: bool,
    jobs: Vec<Job>,
    /// (host, from, until).
    starved: Vec<(usize, Instant, Instant)>,
    leaps: Vec<(Instant, Duration)>,
}

/// The verdict.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The number.
    pub seed: u64,
    /// Hash of everything that crossed the wires.
    pub hash: u64,
    /// How the run stopped.
    pub stop: Stop,
    /// Virtual time that passed.
    pub time: Duration,
    /// Events handled.
    pub steps: u64,
    /// Frames that were put on wires.
    pub wire_pkts: u64,
    /// Payload bytes that arrived.
    pub bytes: u64,
    /// Connections, and how many of their ends met an error.
    pub endpoints: (usize, usize),
    /// What was violated; empty when all is well.
    pub violations: Vec<String>,
    /// The plan in words.
    pub plan: String,
    /// The capture of a failed run.
    pub capture: Option<PathBuf>,
}

impl Outcome {
    /// Nothing was violated.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }
    /// The message of a failure: what, how to see it again, and what was going on.
    pub fn report(&self) -> String {
        let capture = self.capture.as_ref().map_or(String::new(), |p| format!("\n  capture: {}", p.display()));
        format!(
            "seed {}: {}\n  replay:  linerate sim --seed {}{capture}\n  plan:    {}",
            self.seed,
            self.violations.join("\n           "),
            self.seed,
            self.plan
        )
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

/// Uniform in the exponent: as many draws between 1 and 10 as between 10 and 100.
fn log_range(rng: &mut Rng, low: u64, high: u64) -> u64 {
    let (a, b) = ((low.max(1) as f64).ln(), (high.max(1) as f64).ln());
    ((a + rng.unit() * (b - a)).exp() as u64).clamp(low, high)
}

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

impl Plan {
    /// What `seed` says.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let weather = pick(rng, &[Weather::Calm, Weather::Light, Weather::Light, Weather::Rough, Weather::Storm]);
        let mtu = pick(rng, &[576, 1280, 1400, 1500, 1500, 1500, 4096, 9000]);
        let v6 = mtu >= 1280 && rng.chance(0.4);
        let mut link = draw_link(rng, weather, mtu);
        if rng.chance(0.05) && mtu > 1280 {
            link.wires[0].path_mtu_bytes = Some(1280);
        }
        let bytes = work(rng, &link);
        let jobs = draw_jobs(rng, bytes);
        let sec = |rng: &mut Rng| Instant::from_secs(1) + micros(log_range(rng, 1_000, 20_000_000));
        let starved = (0..rng.below(4).saturating_sub(1))
            .map(|_| {
                let from = sec(rng);
                (rng.below(2) as usize, from, from + micros(log_range(rng, 100, 3_000_000)))
            })
            .collect();
        let leaps = if rng.chance(0.08) {
            vec![(sec(rng), micros(log_range(rng, 1_000_000, 10_800_000_000)))]
        } else {
            Vec::new()
        };
        let stacks = [draw_stack(rng), draw_stack(rng)];
        let budgets = [draw_budget(rng), draw_budget(rng)];
        let third = jobs.len() > 1 && rng.chance(0.3);
        Self { weather, stacks, budgets, link, third, v6, jobs, starved, leaps }
    }

    /// The network of the plan, ready to run.
    pub fn build(&self, seed: u64, keep: Keep) -> Net {
        let mut net = Net::new(seed, keep);
        for (cfg, budget) in self.stacks.iter().zip(self.budgets) {
            net.add_host(cfg.clone(), budget);
        }
        net.connect(0, 1, self.link.clone());
        if self.third {
            let third = net.add_host(self.stacks[0].clone(), self.budgets[0]);
            net.connect(third, 1, self.link.clone());
        }
        for (n, job) in self.jobs.iter().enumerate() {
            let (from, link) = if self.third && n % 2 == 1 { (2, 1) } else { (0, 0) };
            let to = std::net::SocketAddr::new(Net::addr(link, 1, self.v6), 1000 + n as u16);
            let script = job.server.clone();
            net.listen(1, to, 16, &job.server.opts, move |_| script.clone());
            net.dial(from, job.at, to, job.client.clone());
        }
        for &(host, from, until) in &self.starved {
            net.starve(host, from, until);
        }
        for &(at, by) in &self.leaps {
            net.leap(at, by);
        }
        net
    }

    /// May connections of this plan end with an error that nobody asked for?
    fn may_fail(&self) -> bool {
        self.weather >= Weather::Rough || !self.leaps.is_empty()
    }

    fn describe(&self) -> String {
        let w = &self.link.wires[0];
        let tcp = |c: &StackConfig| {
            let t = &c.tcp;
            format!(
                "{}{}{}{} ecn{} rmem {:?} wmem {:?}",
                t.congestion_control,
                if t.sack { " sack" } else { "" },
                if t.timestamps { " ts" } else { "" },
                if t.window_scaling { " wscale" } else { "" },
                t.ecn,
                t.rmem_bytes,
                t.wmem_bytes
            )
        };
        format!(
            "{:?}, IPv{}, MTU {}, {} bit/s, {:?} each way, queue {} bytes, faults {:?} until {:?}, {} hosts, {} connections, starved {:?}, leaps {:?}\n           \
             host 0: {}\n           host 1: {}",
            self.weather,
            if self.v6 { 6 } else { 4 },
            self.link.mtu_bytes,
            w.rate_bps,
            w.delay,
            w.queue_bytes,
            w.faults,
            w.faults_until,
            2 + usize::from(self.third),
            self.jobs.len(),
            self.starved,
            self.leaps,
            tcp(&self.stacks[0]),
            tcp(&self.stacks[1])
        )
    }
}

/// Bytes that a run may move without taking long here: fewer where each costs more events.
fn work(rng: &mut Rng, link: &LinkSpec) -> u64 {
    let per_frame = u64::from(link.mtu_bytes) * 1_500;
    log_range(rng, 1, per_frame.min(3_000_000))
}

fn draw_budget(rng: &mut Rng) -> usize {
    pick(rng, &[1, 4, 64, 256])
}

fn draw_faults(rng: &mut Rng, weather: Weather, delay: Duration) -> FaultPlan {
    let scale = match weather {
        Weather::Calm => return FaultPlan::default(),
        Weather::Light => 0.01,
        Weather::Rough => 0.1,
        Weather::Storm => 0.25,
    };
    let mut chance = |p: f64| if rng.chance(p) { rng.unit() * scale } else { 0.0 };
    let (loss, duplicate, corrupt, reorder) = (chance(0.7), chance(0.4), chance(0.4), chance(0.5));
    let burst =
        (weather >= Weather::Rough && rng.chance(0.5)).then(|| (rng.unit() * 0.05, 0.05 + rng.unit() * 0.5, 0.9));
    let rtt_us = (delay.as_micros() as u64).max(50);
    let reorder_delay = micros(rng.range(1, 2 * rtt_us));
    let jitter = if rng.chance(0.3) { micros(rng.below(rtt_us)) } else { Duration::ZERO };
    FaultPlan { loss, burst, duplicate, corrupt, reorder, reorder_delay, jitter }
}

fn draw_wire(rng: &mut Rng, weather: Weather, delay: Duration) -> WireConfig {
    let rate_bps = pick(rng, &[0, 0, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000]);
    let queue_bytes = if rng.chance(0.4) { u64::MAX } else { log_range(rng, 8_000, 1_000_000) };
    WireConfig {
        rate_bps,
        delay,
        queue_bytes,
        ce_threshold_bytes: rng.chance(0.3).then(|| log_range(rng, 3_000, 100_000)),
        faults: draw_faults(rng, weather, delay),
        faults_until: Instant::from_secs(1) + micros(log_range(rng, 200_000, 60_000_000)),
        ..WireConfig::default()
    }
}

fn draw_nic(rng: &mut Rng, mtu: u32, weather: Weather) -> NicConfig {
    let mut nic = NicConfig::plain(mtu);
    let f = &mut nic.features;
    f.tx_csum = rng.chance(0.6);
    (f.tso4, f.tso6) = (f.tx_csum && rng.chance(0.7), f.tx_csum && rng.chance(0.7));
    f.rx_csum = rng.chance(0.6);
    f.gro_hw = f.rx_csum && rng.chance(0.4);
    f.gso_max_size = pick(rng, &[mtu.max(4096), 16_384, 65_536]);
    f.max_frags = pick(rng, &[17, 17, 45]);
    nic.rx_ring = pick(rng, &[16, 64, 4096]);
    nic.tx_ring = pick(rng, &[2, 16, 1024]);
    nic.tx_done = pick(rng, &[TxDoneAt::Taken, TxDoneAt::Departed]);
    nic.coalesce = if rng.chance(0.3) { micros(rng.below(200)) } else { Duration::ZERO };
    if weather >= Weather::Light && rng.chance(0.2) {
        nic.rx_alloc_fail = 0.01;
    }
    nic
}

fn draw_link(rng: &mut Rng, weather: Weather, mtu: u32) -> LinkSpec {
    let delay = micros(log_range(rng, 1, 200_000));
    let mut spec = LinkSpec::symmetric(mtu, WireConfig::default());
    spec.wires = [draw_wire(rng, weather, delay), draw_wire(rng, weather, delay)];
    spec.nics = [draw_nic(rng, mtu, weather), draw_nic(rng, mtu, weather)];
    spec.gro = [(); 2].map(|()| pick(rng, &[GroMode::Off, GroMode::Software]));
    spec
}

fn draw_stack(rng: &mut Rng) -> StackConfig {
    let mut cfg = StackConfig::default();
    let t = &mut cfg.tcp;
    t.congestion_control = pick(rng, &["cubic", "reno"]);
    t.sack = rng.chance(0.8);
    t.dsack = rng.chance(0.8);
    t.timestamps = rng.chance(0.8);
    t.window_scaling = rng.chance(0.85);
    t.ecn = pick(rng, &[0, 0, 1, 2]);
    t.rack = rng.chance(0.85);
    t.tlp = rng.chance(0.85);
    t.frto = if rng.chance(0.8) { 2 } else { 0 };
    // The place of a setting that went: recorded seeds keep their meaning.
    let _ = rng.chance(0.5);
    t.moderate_rcvbuf = rng.chance(0.8);
    t.slow_start_after_idle = rng.chance(0.3);
    if rng.chance(0.3) {
        let rcv = log_range(rng, 4_096, 200_000) as u32;
        t.rmem_bytes = [4096.min(rcv), rcv, rcv.max(log_range(rng, 10_000, 2_000_000) as u32)];
    }
    if rng.chance(0.3) {
        let snd = log_range(rng, 4_608, 200_000) as u32;
        t.wmem_bytes = [4096, snd, snd.max(log_range(rng, 10_000, 2_000_000) as u32)];
    }
    cfg.napi_weight = pick(rng, &[1, 16, 64]);
    cfg.qdisc_limit_skbs = pick(rng, &[4, 100, 1000]);
    cfg
}

fn draw_script(rng: &mut Rng, mut script: Script) -> Script {
    script.write_max = log_range(rng, 1, CHUNK_MAX as u64) as usize;
    script.read_max = log_range(rng, 1, CHUNK_MAX as u64) as usize;
    let total: u64 = script.ops.iter().map(|op| if let Op::Send(n) = op { *n } else { 0 }).sum();
    // Single bytes are welcome, but not a million of them.
    script.write_max = script.write_max.max((total / 2_000) as usize);
    script.read_max = script.read_max.max((total / 2_000) as usize + 16);
    if rng.chance(0.3) {
        script.read_pause = (0.05, micros(log_range(rng, 100, 300_000)));
    }
    script.opts = SockOpts::DEFAULT;
    // A peer whose RST was lost is silent for ever: whoever only reads has to ask.
    (script.opts.keepalive, script.opts.keepidle_s, script.opts.keepintvl_s) = (true, 40, 7);
    script.opts.nodelay = rng.chance(0.5);
    if rng.chance(0.15) {
        script.opts.rcvbuf_bytes = log_range(rng, 2_304, 100_000) as u32;
    }
    if rng.chance(0.15) {
        script.opts.sndbuf_bytes = log_range(rng, 4_608, 100_000) as u32;
    }
    script
}

fn draw_jobs(rng: &mut Rng, bytes: u64) -> Vec<Job> {
    let count = pick(rng, &[1, 1, 1, 2, 3, 12]);
    let share = (bytes / count).max(1);
    (0..count)
        .map(|_| {
            let at = Instant::from_secs(1) + micros(rng.below(500_000));
            let mut breaks = false;
            let (client, server) = match rng.below(10) {
                0..=2 => (Script::send(share), Script::sink()),
                3..=4 => (Script::sink_after_shutdown(), Script::send(share)),
                5 => (Script::send(share), Script::send(rng.range(1, share))),
                6..=7 => {
                    let (rounds, req, resp) = (rng.range(1, 12), log_range(rng, 1, 3_000), log_range(rng, 1, 5_000));
                    (Script::client_rr(rounds, req, resp), Script::server_rr(rounds, req, resp))
                }
                8 => (Script::of(vec![Op::Shutdown]), Script::of(vec![Op::AwaitEnd, Op::Shutdown])),
                _ => {
                    breaks = true;
                    let pause = micros(log_range(rng, 1, 1_000_000));
                    let cut = Script::of(vec![Op::Send(rng.range(1, share)), Op::Sleep(pause), Op::Abort]);
                    if rng.chance(0.5) { (cut, Script::send(share)) } else { (Script::send(share), cut) }
                }
            };
            Job { at, client: draw_script(rng, client), server: draw_script(rng, server), breaks }
        })
        .collect()
}

/// Runs `seed` and judges it. A failure is run once more, now recorded, and its captures go into `capture_dir`.
pub fn run_seed(seed: u64, capture_dir: Option<&Path>) -> Outcome {
    let mut outcome = run_once(seed, Keep::Nothing, None);
    if !outcome.is_ok()
        && let Some(dir) = capture_dir
    {
        outcome.capture = run_once(seed, Keep::Whole, Some(dir)).capture;
    }
    outcome
}

fn run_once(seed: u64, keep: Keep, dir: Option<&Path>) -> Outcome {
    let plan = Plan::draw(seed);
    let mut net = plan.build(seed, keep);
    net.steps_max = 3_000_000;
    let run = catch_unwind(AssertUnwindSafe(|| {
        let limit = net.now + LIMIT;
        let stop = net.run_until(limit, Net::all_done);
        if stop == Stop::Done {
            net.finish();
        }
        stop
    }));
    let (stop, mut violations) = match run {
        Ok(stop) => (stop, net.violations.texts().to_vec()),
        Err(panic) => (Stop::Violation, vec![panic_text(panic.as_ref())]),
    };
    judge(&plan, &net, stop, &mut violations);
    let mut out = Outcome {
        seed,
        hash: net.trace_hash(),
        stop,
        time: net.now.since(Instant::from_secs(1)),
        steps: net.steps,
        wire_pkts: 0,
        bytes: 0,
        endpoints: (0, 0),
        violations,
        plan: plan.describe(),
        capture: None,
    };
    for link in &net.links {
        let link = lock(link);
        for side in 0..2 {
            out.wire_pkts += link.wires[side].stats().offered;
            out.bytes += link.checker.stats(side).fresh_bytes;
        }
    }
    for e in net.hosts.iter().flat_map(|h| &h.endpoints) {
        out.endpoints.0 += 1;
        out.endpoints.1 += usize::from(e.error.is_some());
    }
    if let Some(dir) = dir {
        for (n, link) in net.links.iter().enumerate().rev() {
            let link_suffix = if n == 0 { String::new() } else { format!("-link{n}") };
            let path = dir.join(format!("sim-seed-{seed}{link_suffix}.pcapng"));
            let title = format!("linerate sim --seed {seed}");
            let bytes = lock(link).tap.to_pcapng(&title, ["side 0", "side 1"]);
            // Without the capture the failure is still reported with its seed.
            out.capture = std::fs::write(&path, bytes).is_ok().then_some(path);
        }
    }
    out
}

/// What a run must also be, beyond what the checkers saw.
fn judge(plan: &Plan, net: &Net, stop: Stop, violations: &mut Vec<String>) {
    if stop != Stop::Done && violations.is_empty() {
        let open = net.hosts.iter().enumerate().flat_map(|(h, host)| {
            host.endpoints
                .iter()
                .filter(|e| !e.is_done())
                .map(move |e| format!("host {h} flow {:?} wrote {} read {} eof {}", e.name, e.written, e.read, e.eof))
        });
        let open: Vec<String> = open.take(4).collect();
        violations.push(format!("{stop:?} at {:?} with unfinished work: {}", net.now, open.join("; ")));
    }
    if plan.may_fail() {
        return;
    }
    // A closed socket gives up after a hundred seconds without progress, even against a window that is honestly closed
    // (`tcp_orphan_retries`); a reader that wakes later is answered by a reset. An open socket that gave up has an error of
    // its own and is still judged.
    let gave_up = net.hosts.iter().any(|h| h.shard.mibs().tcp.abort_on_timeout != 0);
    for e in net.hosts.iter().flat_map(|h| &h.endpoints) {
        let port = e.name.1.port().wrapping_sub(1000) as usize;
        let breaks = plan.jobs.get(port).is_none_or(|j| j.breaks);
        let explained = breaks || gave_up && e.error == Some(SocketError::Reset);
        if let (Some(error), false) = (e.error, explained) {
            violations
                .push(format!("flow {:?} failed with {error:?} although nothing on the wire explains it", e.name));
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}

/// Runs all seeds of `range` on `threads` threads, each run alone on one. Outcomes come back in the order of the seeds.
pub fn run_seeds(
    range: Range<u64>,
    threads: usize,
    capture_dir: Option<&Path>,
    progress: &(dyn Fn(&Outcome) + Sync),
) -> Vec<Outcome> {
    run_seeds_until(range, threads, capture_dir, progress, &|| false)
}

/// As [`run_seeds`]; no further seed is begun once `stop` says so. What was run is in the result.
pub fn run_seeds_until(
    range: Range<u64>,
    threads: usize,
    capture_dir: Option<&Path>,
    progress: &(dyn Fn(&Outcome) + Sync),
    stop: &(dyn Fn() -> bool + Sync),
) -> Vec<Outcome> {
    let next = AtomicU64::new(range.start);
    let worker = || {
        let mut mine = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= range.end || stop() {
                return mine;
            }
            let outcome = run_seed(seed, capture_dir);
            progress(&outcome);
            mine.push(outcome);
        }
    };
    let mut all: Vec<Outcome> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| s.spawn(worker)).collect();
        workers.into_iter().flat_map(|w| w.join().unwrap_or_default()).collect()
    });
    all.sort_by_key(|o| o.seed);
    all
}
