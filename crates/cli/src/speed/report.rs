//! What `speed` says: iperf3's JSON shape with one more object, or a few lines for people.
//!
//! Every key of `end.linerate` is always present; `null` means not applicable or not measured. Bits per second are
//! payload bits that the reader got; `wire_*` figures count frames as they crossed the software wire, IP header
//! included. Nothing here computes a speed from anything but counted bytes and read clocks.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::args::SpeedArgs;

/// One slice of the run, as iperf3's interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    /// Active seconds since the start of the run.
    pub(crate) start_secs: f64,
    /// Length in seconds.
    pub(crate) secs: f64,
    /// Payload bytes accepted from the writers.
    pub(crate) sent_bytes: u64,
    /// Payload bytes that the readers got.
    pub(crate) received_bytes: u64,
    /// Transactions completed.
    pub(crate) transactions: u64,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

/// The kernel's side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KernelSide {
    pub(crate) bits_per_second: Option<f64>,
    pub(crate) transactions_per_second: Option<f64>,
    pub(crate) cc: String,
    pub(crate) rx: &'static str,
    pub(crate) write_bytes: usize,
}

/// The object that all verbs share: `end.linerate`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Linerate {
    pub(crate) schema: u32,
    pub(crate) wire_mode: &'static str,
    pub(crate) wire_cut: bool,
    pub(crate) dma: &'static str,
    pub(crate) touch: &'static str,
    pub(crate) wire_bits_per_second: Option<f64>,
    pub(crate) wire_payload_bits_per_second: Option<f64>,
    pub(crate) wire_pkts: Option<u64>,
    pub(crate) wire_pkts_per_second: Option<f64>,
    pub(crate) rx_skbs: Option<u64>,
    pub(crate) tx_skbs: Option<u64>,
    pub(crate) copies_per_byte_tx: Option<f64>,
    pub(crate) copies_per_byte_rx: Option<f64>,
    pub(crate) cpu_ns_per_mib: Option<f64>,
    pub(crate) hw_ns_per_mib: Option<f64>,
    pub(crate) retrans_segs: u64,
    pub(crate) drops: BTreeMap<&'static str, u64>,
    pub(crate) transactions_per_second: Option<f64>,
    pub(crate) latency_us: Option<Latency>,
    pub(crate) rss_growth_bytes: Option<u64>,
    pub(crate) stages_ns_per_mib: Option<BTreeMap<&'static str, f64>>,
    pub(crate) kernel_loopback: Option<KernelSide>,
    pub(crate) ratio_to_kernel: Option<f64>,
}

/// A finished run.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) intervals: Vec<Interval>,
    /// Share of one core that the sending and the receiving thread used, percent.
    pub(crate) cpu_percent: (f64, f64),
    pub(crate) mss_bytes: u32,
    /// Congestion window of the first flow at the end, bytes.
    pub(crate) snd_cwnd_bytes: u64,
    /// Smoothed round-trip time of the first flow at the end, µs.
    pub(crate) rtt_us: u32,
    pub(crate) sha256: Option<String>,
    /// Why the run is not whole.
    pub(crate) error: Option<String>,
    /// (connections, ns per lookup) of the idle test.
    pub(crate) lookup_ns: Vec<(u32, f64)>,
    /// (connections, ns per received segment) of the idle test.
    pub(crate) segment_ns: Vec<(u32, f64)>,
    pub(crate) linerate: Linerate,
}

/// What was timed at several numbers of connections.
fn by_conns(points: &[(u32, f64)]) -> Vec<serde_json::Value> {
    points.iter().map(|&(conns, ns)| json!({ "conns": conns, "ns": ns })).collect()
}

impl Report {
    fn secs(&self) -> f64 {
        self.intervals.iter().map(|i| i.secs).sum()
    }
    fn sent_bytes(&self) -> u64 {
        self.intervals.iter().map(|i| i.sent_bytes).sum()
    }
    fn received_bytes(&self) -> u64 {
        self.intervals.iter().map(|i| i.received_bytes).sum()
    }
    /// Payload bits that the readers got per second.
    pub(crate) fn received_bits_per_second(&self) -> f64 {
        rate_bits(self.received_bytes(), self.secs())
    }

    /// iperf3's shape.
    pub(crate) fn to_json(&self, args: &SpeedArgs) -> Value {
        let secs = self.secs();
        let sum = |bytes: u64, sender: bool| {
            json!({
                "start": 0, "end": secs, "seconds": secs, "bytes": bytes,
                "bits_per_second": rate_bits(bytes, secs), "sender": sender,
                "retransmits": if sender { Some(self.linerate.retrans_segs) } else { None },
            })
        };
        let (sent, received) = (sum(self.sent_bytes(), true), sum(self.received_bytes(), false));
        let cpu_total = self.cpu_percent.0 + self.cpu_percent.1;
        let mut report = json!({
            "start": start_object(args, self.mss_bytes),
            "intervals": self.intervals.iter().map(interval_object).collect::<Vec<_>>(),
            "end": {
                "streams": [{ "sender": sent, "receiver": received }],
                "sum_sent": sent,
                "sum_received": received,
                "cpu_utilization_percent": {
                    "host_total": self.cpu_percent.0, "host_user": null, "host_system": null,
                    "remote_total": self.cpu_percent.1, "remote_user": null, "remote_system": null,
                    "both_total": cpu_total,
                },
                "sender_tcp_congestion": args.cc,
                "receiver_tcp_congestion": args.cc,
                "sha256": self.sha256,
                "lookup_ns_by_conns": by_conns(&self.lookup_ns),
                "segment_ns_by_conns": by_conns(&self.segment_ns),
                "linerate": self.linerate,
            },
        });
        if let Some(error) = &self.error {
            report["error"] = error.as_str().into();
        }
        report
    }

    /// The lines for people.
    pub(crate) fn to_text(&self, args: &SpeedArgs) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_text(args, &mut text);
        text
    }

    fn write_text(&self, args: &SpeedArgs, out: &mut String) -> std::fmt::Result {
        let line = &self.linerate;
        for interval in self.intervals.iter().filter(|i| i.received_bytes > 0) {
            writeln!(
                out,
                "[{:6.2}-{:6.2} s] {:>10}",
                interval.start_secs,
                interval.start_secs + interval.secs,
                gbits(rate_bits(interval.received_bytes, interval.secs)),
            )?;
        }
        if self.received_bytes() > 0 && line.transactions_per_second.is_none() {
            writeln!(out, "linerate          {}", gbits(self.received_bits_per_second()))?;
            writeln!(
                out,
                "flow              mss {}, cwnd {} KiB, rtt {} us, {} retransmissions",
                self.mss_bytes,
                self.snd_cwnd_bytes >> 10,
                self.rtt_us,
                line.retrans_segs,
            )?;
        }
        self.write_details(out)?;
        if let Some(kernel) = &line.kernel_loopback {
            match (kernel.bits_per_second, kernel.transactions_per_second) {
                (Some(bits), _) => {
                    writeln!(out, "kernel loopback   {} ({}, rx {})", gbits(bits), kernel.cc, kernel.rx)?
                }
                (_, Some(tps)) => writeln!(out, "kernel loopback   {tps:.0} transactions/s ({})", kernel.cc)?,
                _ => {}
            }
        }
        match line.ratio_to_kernel {
            Some(ratio) => writeln!(out, "ratio to kernel   {ratio:.2}")?,
            None if line.kernel_loopback.is_some() => {
                writeln!(out, "ratio to kernel   not given: the kernel's flow could not run with CUBIC")?;
            }
            None => {}
        }
        if args.threads == 1 {
            writeln!(out, "(both ends in one thread)")?;
        }
        if let Some(digest) = &self.sha256 {
            writeln!(out, "sha256            {digest} (equal at both ends)")?;
        }
        Ok(())
    }

    fn write_details(&self, out: &mut String) -> std::fmt::Result {
        let line = &self.linerate;
        if let Some(tps) = line.transactions_per_second {
            writeln!(out, "transactions      {tps:.0} /s")?;
        }
        if let Some(l) = &line.latency_us {
            writeln!(
                out,
                "latency us        p50 {:.2}  p90 {:.2}  p99 {:.2}  p99.9 {:.2}  max {:.1}",
                l.p50, l.p90, l.p99, l.p999, l.max
            )?;
        }
        if let (Some(pkts), Some(rate)) = (line.wire_pkts, line.wire_pkts_per_second) {
            writeln!(
                out,
                "wire              {pkts} frames ({:.2} M/s), {} skbs sent, {} received, cut {}, dma {}",
                rate / 1e6,
                line.tx_skbs.unwrap_or(0),
                line.rx_skbs.unwrap_or(0),
                if line.wire_cut { "on" } else { "off" },
                line.dma,
            )?;
        }
        if let (Some(tx), Some(rx)) = (line.copies_per_byte_tx, line.copies_per_byte_rx) {
            writeln!(out, "copies per byte   {tx:.2} sending, {rx:.2} receiving")?;
        }
        if let (Some(cpu), Some(hw)) = (line.cpu_ns_per_mib, line.hw_ns_per_mib) {
            writeln!(out, "cost per MiB      {cpu:.0} ns of CPU, of which {hw:.0} ns as the NIC")?;
        }
        for (stage, ns) in line.stages_ns_per_mib.iter().flatten() {
            writeln!(out, "  stage {stage:<12} {ns:>9.0} ns/MiB")?;
        }
        if let Some(bytes) = line.rss_growth_bytes {
            writeln!(out, "rss growth        {:.1} MiB", bytes as f64 / f64::from(1 << 20))?;
        }
        for (conns, ns) in &self.lookup_ns {
            writeln!(out, "lookup            {ns:.0} ns among {conns} connections")?;
        }
        for (conns, ns) in &self.segment_ns {
            writeln!(out, "segment           {ns:.0} ns each in bursts, among {conns} connections")?;
        }
        for (reason, count) in &line.drops {
            writeln!(out, "dropped           {count} {reason}")?;
        }
        Ok(())
    }
}

/// What iperf3 prints of a run that failed: its start and the error, with empty results.
pub(crate) fn failure_json(args: &SpeedArgs, error: &str) -> String {
    let report = json!({ "start": start_object(args, 0), "intervals": [], "end": {}, "error": error });
    format!("{report:#}\n")
}

fn start_object(args: &SpeedArgs, mss_bytes: u32) -> Value {
    json!({
        "version": concat!("linerate ", env!("CARGO_PKG_VERSION")),
        "system_info": std::fs::read_to_string("/proc/version").unwrap_or_default().trim(),
        "connected": [],
        "tcp_mss_default": mss_bytes,
        "test_start": {
            "protocol": "TCP", "num_streams": args.flows, "blksize": args.len, "omit": 0, "duration": args.secs,
            "bytes": 0, "blocks": 0, "reverse": u8::from(args.reverse), "bidir": u8::from(args.bidir),
            "test": format!("{:?}", args.test).to_lowercase(), "threads": args.threads, "mtu": args.mtu,
            "gro": format!("{:?}", args.gro).to_lowercase(), "tso": args.tso.is_on(),
            "csum": format!("{:?}", args.csum).to_lowercase(), "wait": format!("{:?}", args.wait).to_lowercase(),
        },
    })
}

fn interval_object(interval: &Interval) -> Value {
    let end = interval.start_secs + interval.secs;
    json!({
        "streams": [],
        "sum": {
            "start": interval.start_secs, "end": end, "seconds": interval.secs, "bytes": interval.received_bytes,
            "bits_per_second": rate_bits(interval.received_bytes, interval.secs),
            "transactions": interval.transactions,
            "omitted": false, "sender": true,
        },
    })
}

/// Bits per second, 0 for an empty time.
pub(crate) fn rate_bits(bytes: u64, secs: f64) -> f64 {
    if secs > 0.0 { bytes as f64 * 8.0 / secs } else { 0.0 }
}

fn gbits(bits_per_second: f64) -> String {
    format!("{:.2} Gbit/s", bits_per_second / 1e9)
}
