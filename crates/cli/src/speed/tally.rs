//! The books of a run: what the counters said before and after each slice, and the report made of the differences.
//!
//! Counters are cumulative and live where the work is done (the applications, the NICs, the shards); here are snapshots
//! of them. The warm-up is what lies before [`Tally::begin`]; slices in which the kernel's flow ran are not counted as
//! ours, so both sides are measured alone, alternating. A figure that was not measured stays `None` and is printed as
//! null. Threads' CPU time includes the warm-up and is scaled to the counted slices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use linerate_netdev::Qstats;
use linerate_softnic::NicStats;
use linerate_stack::stages::Stage;

use super::app::Counters;
use super::args::{Dma, SpeedArgs, Test, Touch};
use super::report::{Interval, Latency, Linerate, Report};
use super::run::Finished;
use super::setup::{End, Ends};
use crate::kernel_loopback::{KernelLoopback, Slice};

/// Cumulative counters at one moment.
#[derive(Clone, Copy, Default)]
struct Snapshot {
    written: u64,
    read: u64,
    transactions: u64,
    wire: Qstats,
    hw_cycles: u64,
}

/// Counters of both ends, and the intervals so far.
pub(crate) struct Tally {
    apps: [Arc<Counters>; 2],
    nics: [NicStats; 2],
    first: Snapshot,
    last: Snapshot,
    intervals: Vec<Interval>,
    kernel: Vec<Slice>,
}

impl Tally {
    pub(crate) fn new(_args: &SpeedArgs, ends: &Ends) -> Self {
        let mut this = Self {
            apps: [ends.client.app.counters().clone(), ends.server.app.counters().clone()],
            nics: [ends.client.nic.clone(), ends.server.nic.clone()],
            first: Snapshot::default(),
            last: Snapshot::default(),
            intervals: Vec::new(),
            kernel: Vec::new(),
        };
        this.begin();
        this
    }
    /// The warm-up is over: counting starts here.
    pub(crate) fn begin(&mut self) {
        self.first = self.snapshot();
        self.last = self.first;
    }
    /// A reader saw the end of its stream.
    pub(crate) fn finished(&self) -> bool {
        self.apps.iter().any(|app| app.finished.load(Ordering::Relaxed) > 0) || self.failed()
    }
    /// An end stopped with an error.
    pub(crate) fn failed(&self) -> bool {
        self.apps.iter().any(|app| app.failed.load(Ordering::Relaxed) > 0)
    }
    /// Payload bytes that readers got so far.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.apps.iter().map(|app| app.read.load(Ordering::Relaxed)).sum()
    }
    /// Notes an interval of `secs`.
    pub(crate) fn end_slice(&mut self, secs: f64) {
        let now = self.snapshot();
        self.intervals.push(Interval {
            start_secs: self.secs(),
            secs,
            sent_bytes: now.written - self.last.written,
            received_bytes: now.read - self.last.read,
            transactions: now.transactions - self.last.transactions,
        });
        self.last = now;
    }
    /// Notes what the kernel moved.
    pub(crate) fn kernel_slice(&mut self, slice: Slice) {
        self.kernel.push(slice);
    }

    fn snapshot(&self) -> Snapshot {
        let sum = |f: fn(&Counters) -> u64| self.apps.iter().map(|app| f(app)).sum::<u64>();
        let mut wire = Qstats::default();
        for nic in &self.nics {
            wire.merge(&nic.total());
        }
        Snapshot {
            written: sum(|c| c.written.load(Ordering::Relaxed)),
            read: sum(|c| c.read.load(Ordering::Relaxed)),
            transactions: sum(|c| c.transactions.load(Ordering::Relaxed)),
            wire,
            hw_cycles: self.nics.iter().map(|nic| nic.hw_cycles()).sum(),
        }
    }

    /// Closes the books.
    pub(crate) fn into_report(
        self,
        args: &SpeedArgs,
        mut finished: Vec<Finished>,
        kernel: Option<&KernelLoopback>,
    ) -> Result<Report, String> {
        let corrupted: u64 = self.apps.iter().map(|app| app.corrupted.load(Ordering::Relaxed)).sum();
        if corrupted > 0 {
            return Err(format!("{corrupted} bytes arrived different from what was sent"));
        }
        let mut report = empty_report(args);
        report.error = super::interrupted();
        if report.error.is_none() {
            // Half a file has no digest to compare.
            report.sha256 = digests(&mut finished)?;
        }
        self.fill_wire(&mut report);
        self.fill_cost(args, &finished, &mut report);
        fill_from_shards(&finished, &mut report, args);
        if args.test != Test::Stream {
            report.linerate.transactions_per_second =
                Some(ratio(self.last.transactions - self.first.transactions, self.secs()));
        }
        self.fill_kernel(args, kernel, &mut report);
        report.intervals = self.intervals;
        Ok(report)
    }

    fn secs(&self) -> f64 {
        // Not `sum`: that of nothing is -0.0.
        self.intervals.iter().fold(0.0, |secs, i| secs + i.secs)
    }

    fn fill_wire(&self, report: &mut Report) {
        let secs = self.secs();
        let pkts = self.last.wire.tx_wire_pkts - self.first.wire.tx_wire_pkts;
        let bytes = self.last.wire.tx_bytes - self.first.wire.tx_bytes;
        let payload = self.last.read - self.first.read;
        let line = &mut report.linerate;
        line.wire_pkts = Some(pkts);
        line.wire_pkts_per_second = Some(ratio(pkts, secs));
        line.wire_bits_per_second = Some(8.0 * ratio(bytes, secs));
        line.wire_payload_bits_per_second = Some(8.0 * ratio(payload, secs));
        line.tx_skbs = Some(self.last.wire.tx_skbs - self.first.wire.tx_skbs);
        line.rx_skbs = Some(self.last.wire.rx_skbs - self.first.wire.rx_skbs);
    }

    fn fill_cost(&self, args: &SpeedArgs, finished: &[Finished], report: &mut Report) {
        let secs: f64 = self.secs();
        let percent =
            |f: Option<&Finished>| f.map_or(0.0, |f| 100.0 * f.cpu.as_secs_f64() / f.active.as_secs_f64().max(1e-9));
        report.cpu_percent = match args.threads {
            1 => (percent(finished.first()), 0.0),
            _ => (percent(finished.first()), percent(finished.get(1))),
        };
        let mib = (self.last.read - self.first.read) as f64 / f64::from(1 << 20);
        if mib < 1.0 || args.test != Test::Stream {
            return;
        }
        // Threads were also charged for the warm-up: scale their time to the counted slices.
        let cpu_ns: f64 =
            finished.iter().map(|f| f.cpu.as_nanos() as f64 * (secs / f.active.as_secs_f64().max(1e-9)).min(1.0)).sum();
        report.linerate.cpu_ns_per_mib = Some(cpu_ns / mib);
        let cycles_per_ns = self.cycles_per_ns(finished);
        let hw = (self.last.hw_cycles - self.first.hw_cycles) as f64;
        report.linerate.hw_ns_per_mib = Some(hw / cycles_per_ns / mib);
    }

    /// The counter's rate, from the run itself.
    fn cycles_per_ns(&self, finished: &[Finished]) -> f64 {
        finished.first().map_or(1.0, |f| f.cycles_per_ns.max(1e-9))
    }

    fn fill_kernel(&self, args: &SpeedArgs, kernel: Option<&KernelLoopback>, report: &mut Report) {
        let Some(kernel) = kernel else { return };
        let secs: f64 = self.kernel.iter().map(|s| s.secs).sum();
        let bits = 8.0 * ratio(self.kernel.iter().map(|s| s.bytes).sum(), secs);
        let tps = ratio(self.kernel.iter().map(|s| s.transactions).sum(), secs);
        let stream = args.test == Test::Stream;
        report.linerate.kernel_loopback =
            Some(super::kernel_side(args, &kernel.cc, stream.then_some(bits), (!stream).then_some(tps)));
        let (ours, theirs) = match stream {
            true => (8.0 * ratio(self.last.read - self.first.read, self.secs()), bits),
            false => (report.linerate.transactions_per_second.unwrap_or(0.0), tps),
        };
        if kernel.cc == args.cc && theirs > 0.0 {
            report.linerate.ratio_to_kernel = Some(ours / theirs);
        }
    }
}

fn ratio(n: u64, secs: f64) -> f64 {
    if secs > 0.0 { n as f64 / secs } else { 0.0 }
}

fn digests(finished: &mut [Finished]) -> Result<Option<String>, String> {
    let mut digests = finished.iter_mut().flat_map(|f| f.ends.iter_mut()).filter_map(|end| end.app.digest());
    match (digests.next(), digests.next()) {
        (Some(a), Some(b)) if a == b => Ok(Some(a)),
        (Some(a), Some(b)) => Err(format!("SHA-256 differs: {a} was sent, {b} arrived")),
        _ => Ok(None),
    }
}

fn ends_of(finished: &[Finished]) -> impl Iterator<Item = &End> {
    finished.iter().flat_map(|f| f.ends.iter())
}

/// What the stacks counted themselves: copies, drops, retransmissions, stages, the first flow's state.
fn fill_from_shards(finished: &[Finished], report: &mut Report, args: &SpeedArgs) {
    let (mut tx_copied, mut rx_copied, mut written, mut read, mut dma) = (0, 0, 0, 0, 0);
    for end in ends_of(finished) {
        let (tx, rx) = end.shard.copied_bytes();
        tx_copied += tx;
        rx_copied += rx;
        dma += end.nic.total().rx_dma_copied_bytes;
        written += end.app.counters().written.load(Ordering::Relaxed);
        read += end.app.counters().read.load(Ordering::Relaxed);
        let mibs = end.shard.mibs();
        report.linerate.retrans_segs += mibs.tcp.retrans_segs;
        for (reason, count) in mibs.drops.iter() {
            *report.linerate.drops.entry(reason.name()).or_default() += count;
        }
        if let Some(info) = end.app.first_socket().and_then(|sock| end.shard.info(sock)) {
            report.mss_bytes = info.snd_mss;
            report.snd_cwnd_bytes = u64::from(info.snd_cwnd) * u64::from(info.snd_mss);
            report.rtt_us = info.rtt;
        }
        if let Some(histogram) = end.app.latency().filter(|h| !h.is_empty()) {
            let us = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
            report.linerate.latency_us = Some(Latency {
                p50: us(0.5),
                p90: us(0.9),
                p99: us(0.99),
                p999: us(0.999),
                max: histogram.max() as f64 / 1e3,
            });
        }
    }
    if args.test == Test::Stream && written > 0 && read > 0 {
        report.linerate.copies_per_byte_tx = Some(tx_copied as f64 / written as f64);
        report.linerate.copies_per_byte_rx = Some((rx_copied + dma) as f64 / read as f64);
    }
    fill_stages(finished, report, read);
}

fn fill_stages(finished: &[Finished], report: &mut Report, read: u64) {
    let mut stages: BTreeMap<&'static str, f64> = BTreeMap::new();
    for f in finished {
        for end in &f.ends {
            let counted = end.shard.stages();
            for stage in Stage::ALL.into_iter().filter(|_| counted.turns() > 0) {
                let ns = counted.cycles(stage) as f64 / f.cycles_per_ns.max(1e-9);
                *stages.entry(stage.name()).or_default() += ns * f64::from(1 << 20) / read.max(1) as f64;
            }
        }
    }
    if !stages.is_empty() {
        report.linerate.stages_ns_per_mib = Some(stages);
    }
}

/// A report with every key and nothing measured.
pub(crate) fn empty_report(args: &SpeedArgs) -> Report {
    Report {
        intervals: Vec::new(),
        cpu_percent: (0.0, 0.0),
        mss_bytes: 0,
        snd_cwnd_bytes: 0,
        rtt_us: 0,
        sha256: None,
        error: None,
        lookup_ns: Vec::new(),
        segment_ns: Vec::new(),
        linerate: Linerate {
            schema: 1,
            wire_mode: "full",
            wire_cut: args.cut.is_on(),
            dma: if args.dma == Dma::Ref { "ref" } else { "copy" },
            touch: match args.touch {
                Touch::None => "none",
                Touch::Read => "read",
                Touch::Verify => "verify",
            },
            wire_bits_per_second: None,
            wire_payload_bits_per_second: None,
            wire_pkts: None,
            wire_pkts_per_second: None,
            rx_skbs: None,
            tx_skbs: None,
            copies_per_byte_tx: None,
            copies_per_byte_rx: None,
            cpu_ns_per_mib: None,
            hw_ns_per_mib: None,
            retrans_segs: 0,
            drops: BTreeMap::new(),
            transactions_per_second: None,
            latency_us: None,
            rss_growth_bytes: None,
            stages_ns_per_mib: None,
            kernel_loopback: None,
            ratio_to_kernel: None,
        },
    }
}
