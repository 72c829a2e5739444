//! Goodput over loss, round-trip time and reordering, as a table that is committed: a change of behaviour is a diff of
//! numbers. `UPDATE_SNAPSHOTS=1 cargo test -p linerate-sim --test goodput` writes it anew.
//!
//! Each cell: one bulk flow over a 100 Mbit/s wire with a queue of one bandwidth-delay product (at least 64 KB), 1500-byte
//! frames, loss and reordering (held back by an eighth of the round trip) of data frames only, three virtual seconds from
//! the handshake on, three seeds. Virtual time makes the numbers exact on every machine.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use linerate_base::Instant;
use linerate_netdev::FaultPlan;
use linerate_sim::apps::Script;
use linerate_sim::link::lock;
use linerate_sim::net::{LinkSpec, Net, Stop};
use linerate_sim::tap::Keep;
use linerate_sim::wire::WireConfig;
use linerate_stack::StackConfig;
use linerate_tcp::SockOpts;

const RATE_BPS: u64 = 100_000_000;
const SECONDS: u64 = 3;
/// Runs of a cell with chance in it; without, all runs are one.
const SEEDS: u64 = 3;
const START: Instant = Instant::from_secs(1);

/// Sums over the seeds of one cell.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    runs: u64,
    bytes: u64,
    sent: u64,
    retransmitted: u64,
    spurious: u64,
    rtos: u64,
    probes: u64,
    lost: u64,
    /// Longest time without a fresh byte at the receiver, worst seed.
    stall: Duration,
}

impl Cell {
    fn goodput_mbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / (SECONDS * self.runs) as f64
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    cc: &'static str,
    loss: f64,
    rtt_ms: u64,
    reorder: f64,
}

fn run_one(case: Case, seed: u64, cell: &mut Cell) {
    let mut cfg = StackConfig::default();
    cfg.tcp.congestion_control = case.cc;
    let rtt = Duration::from_millis(case.rtt_ms);
    let bdp = RATE_BPS / 8 * case.rtt_ms / 1000;
    let clean =
        WireConfig { rate_bps: RATE_BPS, delay: rtt / 2, queue_bytes: bdp.max(65_536), ..WireConfig::default() };
    let faults = FaultPlan { loss: case.loss, reorder: case.reorder, reorder_delay: rtt / 8, ..FaultPlan::default() };
    // The handshake is not what is measured: faults begin behind it.
    let lossy = WireConfig { faults, faults_from: START + 2 * rtt, ..clean.clone() };
    let mut spec = LinkSpec::symmetric(1500, clean);
    spec.wires[0] = lossy;
    let mut net = Net::pair(seed, Keep::Nothing, &cfg, spec);
    let addr = SocketAddr::new(Net::addr(0, 1, false), 80);
    net.listen(1, addr, 8, &SockOpts::DEFAULT, |_| Script::sink());
    net.dial(0, START, addr, Script::send(1 << 40));
    let end = START + 2 * rtt + Duration::from_secs(SECONDS);
    let (mut last, mut read, mut stall) = (START, 0, Duration::ZERO);
    let stop = net.run_until(end, |net| {
        let now_read = net.hosts[1].endpoints.first().map_or(0, |e| e.read);
        if now_read != read {
            stall = stall.max(net.now.since(last));
            (last, read) = (net.now, now_read);
        }
        false
    });
    assert_eq!((stop, net.violations.texts()), (Stop::TimeLimit, &[][..]), "{case:?} seed {seed}");
    net.check();
    let mib = &net.hosts[0].shard.mibs().tcp;
    let link = lock(&net.links[0]);
    let data = link.checker.stats(0);
    cell.runs += 1;
    cell.bytes += read;
    cell.sent += data.sent;
    cell.retransmitted += data.retransmitted;
    cell.spurious += data.spurious;
    cell.lost += link.wires[0].stats().lost + link.wires[0].stats().queue_drops;
    cell.rtos += mib.timeouts;
    cell.probes += mib.loss_probes;
    cell.stall = cell.stall.max(stall.max(net.now.since(last)));
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for cc in ["reno", "cubic"] {
        for reorder in [0.0, 0.03] {
            for rtt_ms in [1, 10, 50, 200] {
                for loss in [0.0, 0.001, 0.01, 0.03, 0.05] {
                    cases.push(Case { cc, loss, rtt_ms, reorder });
                }
            }
        }
    }
    cases
}

fn table(rows: &[(Case, Cell)]) -> String {
    let mut out = String::from(
        "# One bulk flow over 100 Mbit/s, 3 s of virtual time, 3 seeds where chance has a part. Counts are sums over the seeds, in wire frames.\n\
         # cc     reorder  rtt_ms   loss  goodput_mbps      sent     lost  retrans  spurious  rtos  tlps  longest_stall_ms\n",
    );
    for (c, r) in rows {
        let _ = writeln!(
            out,
            "{:<8} {:>6.1}% {:>7} {:>5.1}% {:>13.2} {:>9} {:>8} {:>8} {:>9} {:>5} {:>5} {:>17.1}",
            c.cc,
            c.reorder * 100.0,
            c.rtt_ms,
            c.loss * 100.0,
            r.goodput_mbps(),
            r.sent,
            r.lost,
            r.retransmitted,
            r.spurious,
            r.rtos,
            r.probes,
            r.stall.as_secs_f64() * 1e3,
        );
    }
    out
}

/// What the numbers must be whatever they are.
fn check(case: Case, cell: &Cell) {
    let what = || format!("{case:?}: {cell:?}");
    assert!(cell.bytes > 0, "{}", what());
    // A stall is a silence that no recovery explains: several timeouts in a row, doubled each time.
    let patience = Duration::from_millis(1500) + 6 * Duration::from_millis(case.rtt_ms);
    assert!(cell.stall < patience, "{}", what());
    if case.loss == 0.0 && case.reorder == 0.0 {
        assert_eq!((cell.rtos, cell.retransmitted >= cell.lost), (0, true), "{}", what());
    }
    // Enough in flight for RACK to see a loss by what follows it: a window of 20 segments or more on average.
    let segs_in_flight = cell.goodput_mbps() * 1e6 / 8.0 / 1448.0 * case.rtt_ms as f64 / 1e3;
    if case.loss <= 0.01 && segs_in_flight >= 20.0 {
        assert_eq!(cell.rtos, 0, "RACK and TLP suffice: {}", what());
    }
    // What is sent again was lost, nearly always.
    if case.reorder == 0.0 {
        assert!(cell.spurious <= cell.lost / 20 + 5, "{}", what());
    }
}

#[test]
fn goodput_table() {
    let cases = cases();
    // Cells are independent: two at a time, put together in order.
    let half = cases.len() / 2;
    let run = |cases: &[Case]| -> Vec<(Case, Cell)> {
        cases
            .iter()
            .map(|&case| {
                let mut cell = Cell::default();
                let seeds = if case.loss + case.reorder > 0.0 { SEEDS } else { 1 };
                (1..=seeds).for_each(|seed| run_one(case, seed, &mut cell));
                (case, cell)
            })
            .collect()
    };
    let rows = std::thread::scope(|s| {
        let second = s.spawn(|| run(&cases[half..]));
        let mut rows = run(&cases[..half]);
        rows.extend(second.join().expect("the second half"));
        rows
    });
    let text = table(&rows);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/goodput.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).expect("the snapshot is written");
    }
    rows.iter().for_each(|(case, cell)| check(*case, cell));
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    let diff: Vec<String> = want
        .lines()
        .zip(text.lines())
        .filter(|(a, b)| a != b)
        .map(|(a, b)| format!("- {a}\n+ {b}"))
        .chain((want.lines().count() != text.lines().count()).then(|| "other rows".to_string()))
        .collect();
    assert!(diff.is_empty(), "goodput changed (UPDATE_SNAPSHOTS=1 accepts it):\n{}", diff.join("\n"));
}
