//! The command line, misused: one line says what is wrong and what to do, and the exit status says whose fault it was.
//!
//! Status 2 is bad usage (nothing ran), status 1 a failure; both write one line to standard error. Standard output stays
//! empty, so that a script never takes half an answer, except with `--json`: then a failure is an object with the key
//! `error`, as iperf3 does. A run that a signal ends prints what it has. The last tests run `speed` for a moment and check
//! that every key of its report is there: figures depend on the machine, keys do not.

use std::io::Read as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn linerate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_linerate")).args(args).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Checks status and that standard error is one line; returns standard output and that line.
#[track_caller]
fn ends_with(args: &[&str], status: i32) -> (String, String) {
    let out = linerate(args);
    let (shown, err) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(status), "{args:?}: {err}");
    assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
    assert!(err.starts_with("linerate: ") && !err.contains("panicked"), "{args:?}: {err}");
    (shown, err)
}

/// Bad usage: the line names the culprit and, where a number helps, the way out.
#[track_caller]
fn bad_usage(args: &[&str], names: &[&str]) {
    let (shown, err) = ends_with(args, 2);
    assert!(shown.is_empty(), "{args:?} wrote to standard output");
    for name in names {
        assert!(err.contains(name), "{args:?}: {err:?} does not name {name:?}");
    }
}

/// A failure without `--json`: standard output is empty.
#[track_caller]
fn fails(args: &[&str], names: &str) {
    let (shown, err) = ends_with(args, 1);
    assert!(shown.is_empty(), "{args:?} wrote to standard output: {shown}");
    assert!(err.contains(names), "{args:?}: {err:?} does not name {names:?}");
}

#[test]
fn unknown_words_are_bad_usage() {
    bad_usage(&["speed", "--bogus"], &["--bogus", "linerate speed --help"]);
    bad_usage(&["speed", "-Z"], &["-Z"]);
    bad_usage(&["spead"], &["spead", "speed", "linerate --help"]);
    bad_usage(&["speed", "surplus"], &["surplus"]);
    bad_usage(&["sim", "--sed", "1"], &["--sed", "--seed"]);
    bad_usage(&["iperf3", "--bogus"], &["--bogus", "linerate iperf3 --help"]);
    bad_usage(&["drill", "--variant", "ipv5", "/"], &["ipv5", "ipv4-mapped-ipv6"]);
}

#[test]
fn values_out_of_range_are_bad_usage() {
    for (args, culprit) in [
        (["--threads", "3"], "1..=2"),
        (["--threads", "0"], "--threads"),
        (["-l", "0"], "-l"),
        (["-l", "65M"], "64M"),
        (["-l", "12Q"], "-l"),
        (["-P", "0"], "1..=1024"),
        (["-P", "-1"], "-1"),
        (["-P", "100000"], "-P"),
        (["-t", "0"], "-t"),
        (["-t", "nan"], "-t"),
        (["-t", "-1"], "-1"),
        (["-t", "forever"], "-t"),
        (["-M", "10"], "-M"),
        (["-M", "65536"], "-M"),
        (["-w", "0"], "-w"),
        (["-w", "2G"], "1G"),
        (["-C", "vegas"], "cubic"),
        (["--mtu", "67"], "88..=65535"),
        (["--mtu", "65536"], "88..=65535"),
        (["--conns", "0"], "--conns"),
        (["--req", "0"], "--req"),
        (["--resp", "1G"], "--resp"),
        (["--test", "marathon"], "--test"),
        (["--wire", "bent"], "--wire"),
        (["--gro", "maybe"], "--gro"),
    ] {
        bad_usage(&["speed", args[0], args[1]], &[culprit, "see 'linerate speed --help'"]);
    }
    bad_usage(&["sim", "--seed", "x"], &["--seed"]);
    bad_usage(&["sim", "--seed", "-1"], &["-1"]);
    bad_usage(&["sim", "--seed", "1", "--count", "0"], &["--count"]);
    bad_usage(&["sim", "--seed", "1", "-j", "0"], &["-j"]);
    bad_usage(&["drill", "-j", "0", "/"], &["-j"]);
    bad_usage(&["drill", "-D", "novalue", "/"], &["NAME=VALUE"]);
}

#[test]
fn what_is_missing_is_named() {
    bad_usage(&["sim"], &["--seed"]);
    bad_usage(&["drill"], &["PATH"]);
    bad_usage(&["speed", "--file"], &["--file"]);
}

#[test]
fn contradictions_are_bad_usage() {
    bad_usage(&["speed", "-4", "-6"], &["-4", "-6"]);
    bad_usage(&["speed", "-R", "--bidir"], &["-R", "--bidir"]);
    bad_usage(&["speed", "--file", "/dev/null", "-R"], &["--file", "-R"]);
    bad_usage(&["speed", "--file", "/dev/null", "--bidir"], &["--file", "--bidir"]);
    bad_usage(&["speed", "--file", "/dev/null", "-P", "2"], &["--file", "-P"]);
    bad_usage(&["speed", "--file", "/dev/null", "--rx", "trunc"], &["--rx trunc", "--file"]);
    bad_usage(&["speed", "--file", "/dev/null", "--touch", "verify"], &["--touch verify", "--file"]);
    bad_usage(&["speed", "--rx", "trunc", "--touch", "read"], &["--rx trunc", "--touch"]);
    bad_usage(&["speed", "--threads", "1", "--threads", "2"], &["--threads"]);
    bad_usage(&["speed", "-M", "1461"], &["-M 1461", "--mtu 1500", "1460"]);
    bad_usage(&["speed", "-6", "-M", "1441"], &["1440"]);
    bad_usage(&["speed", "-6", "--mtu", "1279"], &["--mtu 1279", "-6", "1280"]);
}

#[test]
fn a_flag_of_another_test_is_not_ignored() {
    bad_usage(&["speed", "--test", "rr", "--file", "/dev/null"], &["--file", "--test rr"]);
    bad_usage(&["speed", "--test", "rr", "-l", "1K"], &["-l", "--req"]);
    bad_usage(&["speed", "--test", "rr", "-R"], &["-R"]);
    bad_usage(&["speed", "--test", "crr", "--touch", "read"], &["--touch"]);
    bad_usage(&["speed", "--test", "idle", "-6"], &["-6", "IPv4"]);
    bad_usage(&["speed", "--test", "idle", "-P", "2"], &["-P", "--conns"]);
    bad_usage(&["speed", "--req", "64"], &["--req", "-l"]);
    bad_usage(&["speed", "--conns", "10"], &["--conns", "-P"]);
}

#[test]
fn a_bare_command_gets_help_and_help_is_no_error() {
    let out = linerate(&[]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("Usage: linerate"));
    for args in [&["--help"][..], &["--version"], &["speed", "--help"], &["help", "sim"]] {
        let out = linerate(args);
        assert_eq!((out.status.code(), out.stderr.len()), (Some(0), 0), "{args:?}");
        assert!(!out.stdout.is_empty());
    }
}

#[test]
fn files_that_can_not_be_used_are_failures() {
    fails(&["speed", "--file", "/nonexistent", "-t", "0.1"], "/nonexistent: No such file");
    fails(&["speed", "--file", "/", "-t", "0.1"], "/: is a directory");
    fails(&["drill", "/nonexistent.pkt"], "/nonexistent.pkt");
    fails(&["drill", "/dev/null", "--junit", "/nonexistent/report.xml"], "/nonexistent/report.xml");
    fails(&["sim", "--seed", "1", "--out", "/nonexistent"], "--out");
    let (shown, _) = ends_with(&["drill", env!("CARGO_MANIFEST_DIR")], 1);
    assert!(shown.contains("0 cases"), "a directory without scripts: {shown}");
}

#[test]
fn a_failure_in_json_has_iperf3s_key() {
    let (shown, err) = ends_with(&["speed", "--file", "/nonexistent", "--json"], 1);
    let report: Value = serde_json::from_str(&shown).expect("JSON and nothing else");
    assert_eq!(report["intervals"], serde_json::json!([]));
    assert_eq!(report["start"]["test_start"]["protocol"], "TCP");
    let said = report["error"].as_str().expect("an error");
    assert!(said.contains("/nonexistent") && err.contains(said));
    let (shown, _) = ends_with(&["drill", "/nonexistent.pkt", "--json"], 1);
    let report: Value = serde_json::from_str(&shown).expect("JSON and nothing else");
    assert!(report["error"].as_str().is_some_and(|e| e.contains("/nonexistent.pkt")));
}

/// Starts the command with its output in pipes.
fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// Presses Ctrl-C after a while and returns how the command ended; it must end long before its own time.
#[track_caller]
fn interrupted(args: &[&str], after: Duration) -> (String, String) {
    let child = start(args);
    std::thread::sleep(after);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("it still runs");
    let since = Instant::now();
    let out = child.wait_with_output().expect("it ends");
    assert!(since.elapsed() < Duration::from_secs(60), "{args:?} did not end");
    assert_eq!(out.status.code(), Some(1), "{args:?}: {}", text(&out.stderr));
    (text(&out.stdout), text(&out.stderr))
}

#[test]
fn control_c_prints_the_summary_so_far() {
    let second = Duration::from_secs(1);
    let (shown, err) = interrupted(&["speed", "-t", "600", "--no-kernel", "--json"], 2 * second);
    let report: Value = serde_json::from_str(&shown).expect("the whole report");
    assert!(report["error"].as_str().is_some_and(|e| e.starts_with("interrupt - ")), "{shown}");
    assert!(report["end"]["sum_received"]["bytes"].as_u64().is_some_and(|n| n > 0), "{shown}");
    assert!(err.starts_with("linerate: interrupt - "), "{err}");
    let (shown, _) = interrupted(&["speed", "-t", "600", "--no-kernel", "--wait", "spin"], 2 * second);
    assert!(shown.contains("Gbit/s"), "{shown}");
    let (shown, _) = interrupted(&["sim", "--seed", "1", "--count", "100000000"], second);
    assert!(shown.contains(" seeds, 0 failed"), "{shown}");
    let (shown, _) = interrupted(&["speed", "--test", "idle", "--conns", "4000000"], second);
    assert!(shown.contains("rss growth"), "{shown}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in [
        &["speed", "-t", "0.1", "--no-kernel", "--json"][..],
        &["sim", "--seed", "1", "--json"],
        &["speed", "--help"],
        &["--bogus"],
    ] {
        let mut child = start(args);
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
        let status = child.wait().expect("it ends").code();
        assert_eq!(status, Some(if args[0] == "--bogus" { 2 } else { 0 }), "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
    let mut child = start(&["--bogus"]);
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(2));
}

/// Two ends that spin share one CPU with the coordinator.
#[test]
fn a_run_ends_in_time_on_one_cpu() {
    if Command::new("taskset").arg("--version").output().is_err() {
        return println!("skipped: no taskset");
    }
    for test in ["stream", "rr", "crr"] {
        let since = Instant::now();
        let out = Command::new("taskset")
            .args(["-c", "0", env!("CARGO_BIN_EXE_linerate"), "speed", "-t", "1", "--no-kernel", "--wait", "spin"])
            .args(["--test", test])
            .output()
            .expect("taskset runs");
        assert!(out.status.success(), "{}", text(&out.stderr));
        // Generous: the machine may be busy with other tests. A livelock would not end at all.
        assert!(since.elapsed() < Duration::from_secs(60), "{test}: {:?}", since.elapsed());
    }
}

#[test]
fn the_smallest_windows_writes_and_frames_carry_data() {
    for args in
        [["-w", "1"], ["-l", "1"], ["--mtu", "88"], ["-M", "88"], ["--mtu", "65535"], ["-w", "1G"], ["-P", "50"]]
    {
        let out = linerate(&["speed", "-t", "0.3", "--no-kernel", "--json", "--touch", "verify", args[0], args[1]]);
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let bytes = at(&report, "end.sum_received.bytes").and_then(Value::as_u64);
        assert!(bytes.is_some_and(|n| n > 1000), "{args:?}: {bytes:?}");
    }
}

/// Keys that a report has whatever the run was (the same list as `cargo xtask speed-json`).
const KEYS: &[&str] = &[
    "start",
    "intervals",
    "end.sum_sent.bits_per_second",
    "end.sum_received.bits_per_second",
    "end.cpu_utilization_percent",
    "end.linerate.schema",
    "end.linerate.wire_mode",
    "end.linerate.wire_cut",
    "end.linerate.dma",
    "end.linerate.touch",
    "end.linerate.wire_bits_per_second",
    "end.linerate.wire_payload_bits_per_second",
    "end.linerate.wire_pkts",
    "end.linerate.wire_pkts_per_second",
    "end.linerate.rx_skbs",
    "end.linerate.tx_skbs",
    "end.linerate.copies_per_byte_tx",
    "end.linerate.copies_per_byte_rx",
    "end.linerate.cpu_ns_per_mib",
    "end.linerate.hw_ns_per_mib",
    "end.linerate.retrans_segs",
    "end.linerate.drops",
    "end.linerate.transactions_per_second",
    "end.linerate.latency_us",
    "end.linerate.rss_growth_bytes",
    "end.linerate.stages_ns_per_mib",
    "end.linerate.kernel_loopback",
    "end.linerate.ratio_to_kernel",
];

fn at<'a>(report: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(report, |value, key| value.get(key))
}

#[test]
fn a_short_run_reports_every_key() {
    for test in ["stream", "rr"] {
        let out = linerate(&["speed", "-t", "0.2", "--no-kernel", "--json", "--test", test]);
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(0), "{test}: {err}");
        let report: Value = serde_json::from_slice(&out.stdout).expect("JSON and nothing else");
        let missing: Vec<_> = KEYS.iter().filter(|path| at(&report, path).is_none()).collect();
        assert!(missing.is_empty(), "{test}: {missing:?} missing");
        let schema = at(&report, "end.linerate.schema");
        assert_eq!(schema, Some(&Value::from(1)));
        let not_specified = at(&report, "end.linerate.drops.NOT_SPECIFIED").and_then(Value::as_u64);
        assert!(not_specified.is_none_or(|n| n == 0), "skbs died without a reason");
        if test == "stream" {
            let bps = at(&report, "end.sum_received.bits_per_second").and_then(Value::as_f64);
            assert!(bps.is_some_and(|bps| bps > 0.0), "bytes arrived");
            assert_eq!(at(&report, "end.linerate.kernel_loopback"), Some(&Value::Null), "not run, so not claimed");
        }
    }
}

#[test]
fn a_file_arrives_as_it_was() {
    let path = std::env::temp_dir().join(format!("linerate-usage-{}", std::process::id()));
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    std::fs::write(&path, bytes).expect("a temporary file");
    let out = linerate(&["speed", "--file", path.to_str().expect("text"), "--json"]);
    std::fs::remove_file(&path).ok();
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{err}");
    assert!(serde_json::from_slice::<Value>(&out.stdout).is_ok());
}

#[test]
fn an_empty_file_is_a_file() {
    let out = linerate(&["speed", "--file", "/dev/null", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let digest = at(&report, "end.sha256").and_then(Value::as_str);
    assert_eq!(digest, Some("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"), "SHA-256 of nothing");
}
