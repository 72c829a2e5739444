//! The short forms of `goodput` and `soak`: that they run and come to an end with everything in place. Nothing here is about
//! speed; the table and the hours are `cargo xtask goodput` and `cargo xtask soak`.
//!
//! Both need TUN and user namespaces, and are skipped without, except under `LINERATE_REQUIRE=all`.
//! `LINERATE_SOAK_SECS` makes the soak longer than its 20 seconds.

use std::process::{Command, Output};

use serde_json::Value;

/// The program's status when the host lacks something.
const LACKING: i32 = 3;

/// The JSON that the program prints; `None` when the host can not run it.
fn report(args: &[&str]) -> Option<Value> {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_linerate-linux")).args(args).output().expect("our own program");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    if status.code() == Some(LACKING) {
        let required = std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all");
        assert!(!required, "{stderr}");
        println!("skipped: {}", stderr.trim());
        return None;
    }
    assert!(status.success(), "{args:?} ({status}):\n{stderr}\n{stdout}");
    Some(serde_json::from_str(&stdout).expect("one JSON value"))
}

#[test]
fn a_quick_comparison_is_complete() {
    let Some(report) =
        report(&["goodput", "--quick", "--json", "--arrangements", "linerate-linux,linux-linerate,linerate-linerate"])
    else {
        return;
    };
    let rows = report["cells"][0]["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().filter_map(|row| row["arrangement"].as_str()).collect();
    assert_eq!(names, ["linux-linux", "linerate-linux", "linux-linerate", "linerate-linerate"]);
    for row in rows {
        assert!(row["flows"] == 4 && row["mbit_per_second"].as_f64() > Some(0.0), "{row}");
        assert!(row["lost"].as_u64() > Some(0), "the wire lost what it was told to: {row}");
        let compared = row["arrangement"] != "linux-linux";
        assert_eq!(row["ratio"]["pairs"].as_u64(), compared.then_some(4), "{row}");
    }
    // The same numbers are lost whoever sends: of two flows of one number, the one that sent less lost no more.
    let results = report["slices"][0]["results"].as_array().expect("flows");
    for flow in 0..4 {
        let mut sent: Vec<(u64, u64)> = results
            .iter()
            .filter(|r| r["flow"] == flow)
            .map(|r| (r["data"]["frames"].as_u64().expect("a count"), r["data"]["lost"].as_u64().expect("a count")))
            .collect();
        sent.sort_unstable();
        assert!(sent.is_sorted_by_key(|(_, lost)| *lost), "flow {flow}: frames and losses {sent:?}");
    }
    assert_eq!(report["slices"][0]["wire"]["strangers"], 0);
}

#[test]
fn a_short_soak_leaves_nothing_behind() {
    let secs = std::env::var("LINERATE_SOAK_SECS").unwrap_or_else(|_| "20".into());
    let Some(report) = report(&["soak", "--secs", &secs, "--json"]) else { return };
    println!("{report:#}");
    assert_eq!(report["wrong"], Value::Array(Vec::new()));
    for key in ["bulk_bytes", "short_by_linux", "short_by_linerate", "rss_base_bytes"] {
        assert!(report[key].as_u64() > Some(0), "{key} of {report}");
    }
}
