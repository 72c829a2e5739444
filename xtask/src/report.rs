//! The shape of `linerate speed --json`: every key is always present, null where it does not apply.
//!
//! Scripts and CI read these reports, so a missing key is a broken promise even when the figure is not known. The lists
//! here are the promise: iperf3's part (`start`, `intervals`, `end`) and ours (`end.linerate`, schema 1). Further keys
//! are welcome. Values are judged only where a figure must exist in every run: time was spent and bytes arrived.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::steps::Outcome;

/// Keys that a report has whatever the run was, as paths.
const KEYS: &[&str] = &[
    "start",
    "intervals",
    "end.sum_sent.bits_per_second",
    "end.sum_received.bits_per_second",
    "end.cpu_utilization_percent",
];

/// Keys of `end.linerate`.
const LINERATE_KEYS: &[&str] = &[
    "schema",
    "wire_mode",
    "wire_cut",
    "dma",
    "touch",
    "wire_bits_per_second",
    "wire_payload_bits_per_second",
    "wire_pkts",
    "wire_pkts_per_second",
    "rx_skbs",
    "tx_skbs",
    "copies_per_byte_tx",
    "copies_per_byte_rx",
    "cpu_ns_per_mib",
    "hw_ns_per_mib",
    "retrans_segs",
    "drops",
    "transactions_per_second",
    "latency_us",
    "rss_growth_bytes",
    "stages_ns_per_mib",
    "kernel_loopback",
    "ratio_to_kernel",
];

/// Follows a path of keys; `None` when one is missing.
pub(crate) fn at<'a>(report: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(report, |value, key| value.get(key))
}

/// The number at a path; `None` when it is missing or null.
pub(crate) fn figure(report: &Value, path: &str) -> Option<f64> {
    at(report, path)?.as_f64()
}

/// The keys that a report lacks, and figures that cannot be.
fn faults(report: &Value) -> Vec<String> {
    let ours = LINERATE_KEYS.iter().map(|key| format!("end.linerate.{key}"));
    let all = KEYS.iter().map(|key| (*key).to_string()).chain(ours);
    let mut faults: Vec<String> =
        all.filter(|path| at(report, path).is_none()).map(|path| format!("{path} is missing")).collect();
    if at(report, "end.linerate.schema").is_some_and(|schema| schema != 1) {
        faults.push("end.linerate.schema is not 1".into());
    }
    for path in ["end.sum_sent.bits_per_second", "end.sum_received.bits_per_second"] {
        let full = at(report, "end.linerate.wire_mode").and_then(Value::as_str) == Some("full");
        if full && figure(report, path).is_none_or(|bps| bps <= 0.0) {
            faults.push(format!("{path} is not positive though the payload was carried"));
        }
    }
    faults
}

/// Checks a report in a file.
pub(crate) fn check_file(file: &Path) -> Outcome {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let report: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    let faults = faults(&report);
    if !faults.is_empty() {
        return Err(format!("{}:\n  {}", file.display(), faults.join("\n  ")));
    }
    let shown = |path| figure(&report, path).map_or("null".into(), |v| format!("{v:.2}"));
    let gbps = figure(&report, "end.sum_received.bits_per_second").map_or("null".into(), |v| format!("{:.1}", v / 1e9));
    Ok(format!("all keys present: {gbps} Gbit/s received, ratio to kernel {}", shown("end.linerate.ratio_to_kernel")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> Value {
        let mut ours = serde_json::Map::new();
        for key in LINERATE_KEYS {
            ours.insert((*key).into(), Value::Null);
        }
        ours["schema"] = 1.into();
        ours["wire_mode"] = "full".into();
        serde_json::json!({
            "start": {}, "intervals": [],
            "end": { "sum_sent": { "bits_per_second": 1e9 }, "sum_received": { "bits_per_second": 1e9 },
                     "cpu_utilization_percent": {}, "linerate": ours }
        })
    }

    #[test]
    fn a_complete_report_has_no_fault_and_each_missing_key_is_one() {
        assert_eq!(faults(&complete()), Vec::<String>::new());
        for key in LINERATE_KEYS {
            let mut report = complete();
            report["end"]["linerate"].as_object_mut().unwrap().remove(*key);
            assert_eq!(faults(&report), [format!("end.linerate.{key} is missing")]);
        }
        assert_eq!(faults(&Value::Null).len(), KEYS.len() + LINERATE_KEYS.len());
    }

    #[test]
    fn figures_are_needed_only_where_payload_was_carried() {
        let mut report = complete();
        report["end"]["sum_received"]["bits_per_second"] = Value::Null;
        assert_eq!(faults(&report).len(), 1);
        report["end"]["linerate"]["wire_mode"] = "elide".into();
        assert!(faults(&report).is_empty());
        report["end"]["linerate"]["schema"] = 2.into();
        assert_eq!(faults(&report).len(), 1);
    }
}
