//! Our benches beside other stacks, in one run on one machine.
//!
//! Only ratios travel between machines, and only when both sides ran at nearly the same moment. So each row is a series
//! of pairs, ours then theirs, the order swapped every time; the ratio is taken within a pair and the table gives the
//! median and the range of each side and of the ratio. Rows against the kernel need no second command: `linerate speed`
//! itself alternates with a kernel flow and reports both. Rows over a TUN are in [`tun`].
//!
//! The binaries are built here, in the release profile. Other load on the machine spoils every figure: the table's head
//! says what the load was.

mod tun;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::report::figure;
use crate::steps::{Outcome, cargo, output, target_dir};

const PAIRS: usize = 5;
const PAIRS_QUICK: usize = 2;

/// Where the other side's figure comes from.
enum Other {
    /// Arguments of `linerate-peers`, and the key of its figure.
    Peer(&'static str, &'static str),
    /// A path in our own report: measured by the same command, in alternation.
    Report(&'static str),
}

struct Row {
    name: &'static str,
    /// Arguments of `linerate speed`.
    ours: &'static str,
    figure: &'static str,
    other_name: &'static str,
    other: Other,
    unit: &'static str,
    /// What the figures are divided by before they are shown.
    scale: f64,
}

const BPS: &str = "end.sum_received.bits_per_second";
const TPS: &str = "end.linerate.transactions_per_second";

const ROWS: &[Row] = &[
    Row {
        name: "stream, one thread, MTU 1500 cut, software checksums",
        ours: "--threads 1 --cut on --csum sw --tso off --gro sw --no-kernel",
        figure: BPS,
        other_name: "smoltcp, best buffers",
        other: Other::Peer("smoltcp-bulk --buf best --secs 1", "bits_per_second"),
        unit: "Gbit/s",
        scale: 1e9,
    },
    Row {
        name: "64 B request-response, one thread",
        ours: "--test rr --threads 1 --no-kernel",
        figure: TPS,
        other_name: "smoltcp",
        other: Other::Peer("smoltcp-rr --secs 1", "transactions_per_second"),
        unit: "k/s",
        scale: 1e3,
    },
    Row {
        name: "stream, defaults (two threads, super-packets)",
        ours: "",
        figure: BPS,
        other_name: "kernel loopback, cubic",
        other: Other::Report("end.linerate.kernel_loopback.bits_per_second"),
        unit: "Gbit/s",
        scale: 1e9,
    },
    Row {
        name: "64 B request-response, two threads, spinning",
        ours: "--test rr --threads 2 --wait spin",
        figure: TPS,
        other_name: "kernel loopback",
        other: Other::Report("end.linerate.kernel_loopback.transactions_per_second"),
        unit: "k/s",
        scale: 1e3,
    },
];

/// The paired figures of a row.
#[derive(Default)]
struct Series {
    ours: Vec<f64>,
    /// Empty where the other side was not measured.
    other: Vec<f64>,
    ratios: Vec<f64>,
}

/// What to run, and where the figures go besides the screen.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    /// Only rows whose names contain this, whatever the case.
    pub(crate) only: Option<String>,
    pub(crate) json: Option<PathBuf>,
}

impl Options {
    /// From the words behind the verb; `None`: they are not understood.
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--quick" => options.quick = true,
                "--only" => options.only = Some(words.next()?.to_lowercase()),
                "--json" => options.json = Some(words.next()?.into()),
                _ => return None,
            }
        }
        Some(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.to_lowercase().contains(only))
    }
}

/// The verb.
pub(crate) fn run(root: &Path, options: &Options) -> Outcome {
    let pairs = if options.quick { PAIRS_QUICK } else { PAIRS };
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown").to_string();
    if ROWS.iter().any(|row| options.wants(row.name)) {
        output(cargo(root).args(["build", "--release", "-p", "linerate-cli", "-p", "linerate-peers"]))?;
    }
    let release = target_dir(root).join("release");
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    for row in ROWS.iter().filter(|row| options.wants(row.name)) {
        eprintln!("{} ...", row.name);
        match measure(row, &release, pairs) {
            Ok(series) => rows.push((row, series)),
            Err(message) => failures.push(format!("{}: {message}", row.name)),
        }
    }
    let over_tun = tun::run(root, &release, pairs, |name| options.wants(name)).unwrap_or_else(|message| {
        failures.push(message);
        tun::Report::default()
    });
    let cpu = cpu_model();
    println!("{pairs} alternating pairs; {cpu}; load before {load}; median (min..max)");
    rows.iter().for_each(|(row, series)| print!("{}", row_text(row, series)));
    print!("{}", over_tun.text());
    if let Some(file) = &options.json {
        let rows: Vec<Value> = rows.iter().map(|(row, series)| row_json(row, series)).collect();
        let all = json!({ "schema": 2, "pairs": pairs, "cpu": cpu, "load_before": load, "rows": rows,
                          "tun": over_tun.json(), "failures": failures });
        let text = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())?;
        std::fs::write(file, text + "\n").map_err(|e| format!("{}: {e}", file.display()))?;
    }
    if failures.is_empty() { Ok(String::new()) } else { Err(failures.join("\n")) }
}

fn measure(row: &Row, release: &Path, pairs: usize) -> Result<Series, String> {
    let mut series = Series::default();
    for pair in 0..pairs {
        // Whoever goes second profits from a warm processor or suffers from a hot one: take turns.
        let theirs_first = match row.other {
            Other::Peer(args, key) if pair % 2 == 1 => Some(peer(release, args, key)?),
            _ => None,
        };
        let report = speed(release, row.ours)?;
        let ours = figure(&report, row.figure).ok_or_else(|| format!("{} is null or missing", row.figure))?;
        let other = match row.other {
            Other::Peer(args, key) => Some(theirs_first.map_or_else(|| peer(release, args, key), Ok)?),
            Other::Report(path) => figure(&report, path),
        };
        series.ours.push(ours);
        if let Some(other) = other {
            series.other.push(other);
            series.ratios.push(ours / other);
        }
    }
    Ok(series)
}

fn speed(release: &Path, args: &str) -> Result<Value, String> {
    let mut command = Command::new(release.join("linerate"));
    command.arg("speed").args(args.split_whitespace()).args(["-t", "1", "--json"]);
    parsed(&mut command)
}

fn peer(release: &Path, args: &str, key: &str) -> Result<f64, String> {
    let mut command = Command::new(release.join("linerate-peers"));
    command.args(args.split_whitespace()).arg("--json");
    figure(&parsed(&mut command)?, key).ok_or_else(|| format!("{command:?}: no {key}"))
}

fn parsed(command: &mut Command) -> Result<Value, String> {
    let text = output(command)?;
    serde_json::from_str(&text).map_err(|e| format!("{command:?}: {e}"))
}

/// Minimum, median and maximum; `None` of nothing.
fn spread(figures: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    let half = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) };
    Some((first, median, last))
}

fn shown(figures: &[f64], scale: f64, digits: usize) -> String {
    spread(figures).map_or("not measured".into(), |(min, median, max)| {
        format!("{:.digits$} ({:.digits$}..{:.digits$})", median / scale, min / scale, max / scale)
    })
}

fn row_text(row: &Row, series: &Series) -> String {
    format!(
        "{}\n  {:<24} {:>28} {}\n  {:<24} {:>28} {}\n  {:<24} {:>28}\n",
        row.name,
        "linerate",
        shown(&series.ours, row.scale, 1),
        row.unit,
        row.other_name,
        shown(&series.other, row.scale, 1),
        row.unit,
        "ratio",
        shown(&series.ratios, 1.0, 2),
    )
}

/// The same for programs; null of nothing.
fn statistics(figures: &[f64]) -> Value {
    spread(figures)
        .map_or(Value::Null, |(min, median, max)| json!({ "min": min, "median": median, "max": max, "all": figures }))
}

fn row_json(row: &Row, series: &Series) -> Value {
    let of = statistics;
    json!({ "name": row.name, "command": format!("linerate speed {}", row.ours), "other": row.other_name,
            "linerate": of(&series.ours), "peer": of(&series.other), "ratio": of(&series.ratios) })
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown CPU");
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("{}, {cpus} CPUs", model.trim_start_matches(['\t', ' ', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_rows_and_a_file() {
        let options = Options::parse(&["--only", "Plain", "--json", "x.json", "--quick"]).unwrap();
        assert!(options.quick && options.json == Some("x.json".into()));
        assert!(options.wants("TUN plain, to the kernel") && !options.wants("stream, defaults"));
        assert!(Options::parse(&[]).unwrap().wants("anything"));
        for bad in [&["--only"][..], &["--json"], &["x"]] {
            assert_eq!(Options::parse(bad), None);
        }
    }

    #[test]
    fn medians_of_odd_and_even_series() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0]), Some((3.0, 3.0, 3.0)));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((1.0, 2.5, 4.0)));
    }

    #[test]
    fn a_row_shows_both_sides_or_says_that_one_is_missing() {
        let mut series = Series { ours: vec![6e10, 7e10, 5e10], other: vec![3e10; 3], ratios: vec![2.0, 2.3, 1.7] };
        let text = row_text(&ROWS[0], &series);
        assert!(text.contains("60.0 (50.0..70.0) Gbit/s") && text.contains("2.00 (1.70..2.30)"), "{text}");
        assert_eq!(row_json(&ROWS[0], &series)["ratio"]["median"], 2.0);
        (series.other, series.ratios) = (Vec::new(), Vec::new());
        assert!(row_text(&ROWS[0], &series).contains("not measured"));
        assert!(row_json(&ROWS[0], &series)["peer"].is_null());
    }
}
