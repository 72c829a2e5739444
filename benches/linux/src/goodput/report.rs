//! From slices to a table.
//!
//! Slices of one cell are put together; flow `i` of a slice in one arrangement is paired with flow `i` of the same slice in
//! Linux to Linux ([`crate::ratio`]). A ratio is *met* when its mean is at least 0.90 and the upper bound of its interval at
//! least 0.95. A row is *complete* with at least [`MIN_LOSSES`] chosen losses of data frames in each arrangement, and
//! *disturbed* when more than one delivery in a hundred was late: such a row is shown and marked, never quoted.
//!
//! [`check`] judges completeness alone: that every flow moved, and that the wire lost what it was told to. Speed is for the
//! reader of the table.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::slice::LATE_PER_RTT;
use super::{ARRANGEMENTS, Cell};
use crate::ratio::{Ratio, of_pairs};

/// Losses of data frames that each arrangement of a cell should have seen.
const MIN_LOSSES: u64 = 300;
/// Of the deliveries, that may be late in a run that counts. (An idle virtual machine wakes a sleeper more than 1 ms late
/// once in two hundred times.)
const LATE_SHARE: f64 = 1e-2;
const MEAN_WANTED: f64 = 0.90;
const HIGH_WANTED: f64 = 0.95;

/// Everything about an arrangement in a cell.
struct Row {
    arrangement: &'static str,
    flows: usize,
    mbps: f64,
    lost: u64,
    queue_drops: u64,
    /// Payload sent for each byte of goodput.
    overhead: f64,
    ratio: Option<Ratio>,
}

struct CellRows {
    cell: Cell,
    late: f64,
    latest_ms: f64,
    busy: f64,
    rows: Vec<Row>,
}

fn n(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_default()
}

fn cell_of(slice: &Value) -> Cell {
    Cell { loss_percent: n(slice, "loss_percent"), rtt_ms: slice["rtt_ms"].as_u64().unwrap_or_default() }
}

fn results<'a>(slice: &'a Value, name: &'a str) -> impl Iterator<Item = &'a Value> {
    slice["results"].as_array().into_iter().flatten().filter(move |r| r["arrangement"] == name)
}

/// Goodputs of the flow in two arrangements of a slice, Mbit/s.
fn pairs(slices: &[&Value], name: &str) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    for slice in slices {
        let mbps = |r: &Value| n(r, "bytes") * 8e-6 / n(slice, "secs");
        for r in results(slice, name) {
            let base = results(slice, ARRANGEMENTS[0].name).find(|base| base["flow"] == r["flow"]);
            all.extend(base.map(|base| (mbps(r), mbps(base))));
        }
    }
    all
}

fn row(slices: &[&Value], name: &'static str) -> Option<Row> {
    let flows: Vec<(&Value, f64)> =
        slices.iter().flat_map(|slice| results(slice, name).map(|r| (r, n(slice, "secs")))).collect();
    let sum = |f: &dyn Fn(&Value) -> f64| flows.iter().map(|(r, _)| f(r)).sum::<f64>();
    let bytes = sum(&|r| n(r, "bytes"));
    let secs: f64 = flows.iter().map(|(_, secs)| secs).sum();
    if flows.is_empty() {
        return None;
    }
    Some(Row {
        arrangement: name,
        flows: flows.len(),
        mbps: bytes * 8e-6 / secs,
        lost: sum(&|r| n(&r["data"], "lost")) as u64,
        queue_drops: sum(&|r| n(&r["data"], "queue_drops") + n(&r["acks"], "queue_drops")) as u64,
        overhead: sum(&|r| n(&r["data"], "payload_bytes")) / bytes.max(1.0),
        ratio: (name != ARRANGEMENTS[0].name).then(|| of_pairs(&pairs(slices, name))).flatten(),
    })
}

fn by_cell(slices: &[Value]) -> Vec<CellRows> {
    let mut cells: Vec<Cell> = Vec::new();
    for slice in slices {
        let cell = cell_of(slice);
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    let of = |cell: Cell| {
        let of_cell: Vec<&Value> = slices.iter().filter(|slice| cell_of(slice) == cell).collect();
        let sum = |key: &str| of_cell.iter().map(|slice| n(&slice["wire"], key)).sum::<f64>();
        let latest = of_cell.iter().map(|slice| n(&slice["wire"], "latest_us")).fold(0.0, f64::max);
        CellRows {
            cell,
            busy: of_cell.iter().map(|slice| n(&slice["wire"], "busy_share")).fold(0.0, f64::max),
            late: sum("late") / sum("delivered").max(1.0),
            latest_ms: latest / 1e3,
            rows: ARRANGEMENTS.iter().filter_map(|a| row(&of_cell, a.name)).collect(),
        }
    };
    cells.into_iter().map(of).collect()
}

fn is_met(ratio: &Ratio) -> bool {
    ratio.mean >= MEAN_WANTED && ratio.high >= HIGH_WANTED
}

fn remarks(cell: &CellRows, row: &Row) -> String {
    let mut words = Vec::new();
    if let Some(ratio) = &row.ratio
        && !is_met(ratio)
    {
        words.push("below the aim");
    }
    if row.lost < MIN_LOSSES {
        words.push("few losses");
    }
    if cell.late > LATE_SHARE {
        words.push("disturbed");
    }
    words.join(", ")
}

/// The table.
pub(crate) fn table(slices: &[Value]) -> String {
    let mut out = format!(
        "Goodput of one flow, mean over flows; ratio to linux-linux over the same losses with its 95 % interval.\n\
         Aim: ratio >= {MEAN_WANTED:.2}, upper bound >= {HIGH_WANTED:.2}. Late: by more than 1/{LATE_PER_RTT} of the round trip.\n\
         loss%  rtt_ms  arrangement        flows   Mbit/s  ratio  (95 % interval)   lost  queue_drops  sent/got  late%  worst_ms  busy%\n",
    );
    for cell in by_cell(slices) {
        for row in &cell.rows {
            let ratio = row
                .ratio
                .map_or_else(|| " ".repeat(23), |r| format!("{:5.3}  ({:.3} .. {:.3})", r.mean, r.low, r.high));
            let line = format!(
                "{:5} {:7}  {:<17} {:6} {:8.2}  {ratio} {:6} {:12} {:9.3} {:6.2} {:9.1} {:6.0}  {}",
                cell.cell.loss_percent,
                cell.cell.rtt_ms,
                row.arrangement,
                row.flows,
                row.mbps,
                row.lost,
                row.queue_drops,
                row.overhead,
                cell.late * 100.0,
                cell.latest_ms,
                cell.busy * 100.0,
                remarks(&cell, row),
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    out
}

/// The same, for programs, with every slice.
pub(crate) fn json(slices: &[Value]) -> Value {
    let row = |cell: &CellRows, row: &Row| {
        let ratio = row
            .ratio
            .map(|r| json!({ "mean": r.mean, "low": r.low, "high": r.high, "pairs": r.pairs, "met": is_met(&r) }));
        json!({ "arrangement": row.arrangement, "flows": row.flows, "mbit_per_second": row.mbps, "ratio": ratio,
                "lost": row.lost, "complete": row.lost >= MIN_LOSSES, "queue_drops": row.queue_drops,
                "sent_per_received": row.overhead, "disturbed": cell.late > LATE_SHARE })
    };
    let cell = |c: &CellRows| {
        json!({ "loss_percent": c.cell.loss_percent, "rtt_ms": c.cell.rtt_ms, "late_share": c.late,
                "latest_ms": c.latest_ms, "busy_share": c.busy, "rows": c.rows.iter().map(|r| row(c, r)).collect::<Vec<_>>() })
    };
    json!({ "schema": 1, "cells": by_cell(slices).iter().map(cell).collect::<Vec<_>>(), "slices": slices })
}

/// Whether the run is whole: every flow moved, and losses happened where they were asked for.
pub(crate) fn check(slices: &[Value]) -> Result<(), String> {
    let mut wrong = Vec::new();
    if slices.is_empty() {
        wrong.push("nothing was measured".to_owned());
    }
    for cell in by_cell(slices) {
        let what = |row: &Row| format!("{} % at {} ms, {}", cell.cell.loss_percent, cell.cell.rtt_ms, row.arrangement);
        for row in &cell.rows {
            if row.lost == 0 && cell.cell.loss_percent >= 0.1 {
                wrong.push(format!("{}: nothing was lost", what(row)));
            }
            if row.ratio.is_none() && row.arrangement != ARRANGEMENTS[0].name {
                wrong.push(format!("{}: nothing to compare it with", what(row)));
            }
        }
    }
    for (slice, r) in slices.iter().flat_map(|s| s["results"].as_array().into_iter().flatten().map(move |r| (s, r))) {
        if n(r, "bytes") == 0.0 {
            wrong.push(format!("{:?}: {} flow {} moved nothing", cell_of(slice), r["arrangement"], r["flow"]));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(late: u64, ours: u64) -> Value {
        let lane = json!({ "frames": 1000, "payload_bytes": 2_000_000, "lost": 200, "queue_drops": 1 });
        let r = |name: &str, flow: u64, bytes: u64| json!({ "arrangement": name, "flow": flow, "bytes": bytes, "data": lane, "acks": lane });
        json!({ "loss_percent": 1.0, "rtt_ms": 10, "secs": 8, "wire": { "delivered": 1000, "late": late, "latest_us": 1500 },
                "results": [r("linux-linux", 0, 1_000_000), r("linux-linux", 1, 2_000_000),
                            r("linerate-linux", 0, ours), r("linerate-linux", 1, 2 * ours)] })
    }

    #[test]
    fn flows_are_paired_and_slices_added() {
        let slices = [slice(0, 800_000), slice(0, 800_000)];
        let cells = by_cell(&slices);
        let (linux, ours) = (&cells[0].rows[0], &cells[0].rows[1]);
        assert_eq!((linux.flows, linux.lost, ours.lost, ours.queue_drops), (4, 800, 800, 8));
        assert!((linux.mbps - 1.5).abs() < 1e-9 && linux.ratio.is_none());
        let ratio = ours.ratio.expect("four pairs");
        assert!((ratio.mean - 0.8).abs() < 1e-9 && !is_met(&ratio));
        let text = table(&slices);
        assert!(text.contains("0.800") && text.contains("below the aim") && !text.contains("disturbed"), "{text}");
        assert_eq!(json(&slices)["cells"][0]["rows"][1]["ratio"]["met"], false);
        assert_eq!(check(&slices), Ok(()));
    }

    #[test]
    fn a_late_run_and_an_incomplete_one_say_so() {
        let slices = [slice(20, 1_000_000)];
        let text = table(&slices);
        assert!(text.contains("disturbed"), "{text}");
        let still = [slice(0, 0)];
        assert!(check(&still).expect_err("nothing moved").contains("moved nothing"));
        assert!(check(&[]).is_err());
    }
}
