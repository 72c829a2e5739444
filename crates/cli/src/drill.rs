//! `linerate drill`: scripts of the packetdrill language against this stack, in virtual time.
//!
//! The work is in the `sim` crate; here are the flags, the progress on a terminal, and how results read: one paragraph per
//! case that failed, then one line of sums. A case is a script in one variant. Exit status 1 when a case failed, when none
//! was run, or when a path cannot be read. A case that uses what the runner lacks is shown and counted by itself, and is no
//! failure. It runs nothing against Linux: the judge of a script is the test that drives the kernel.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use linerate_host::interrupt;
use linerate_sim::drill::{CaseResult, Summary, Verdict, drill_main, variants};
use serde_json::json;

/// Scripts of the packetdrill language, in virtual time, in-process.
#[derive(Clone, Debug, Args)]
pub(crate) struct DrillArgs {
    /// Scripts, and directories that are searched for *.pkt
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Threads
    #[arg(short = 'j', default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Write a JUnit report
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Replace a word of the scripts
    #[arg(short = 'D', long = "define", value_name = "NAME=VALUE", value_parser = definition)]
    defines: Vec<String>,
    /// Only this variant
    #[arg(long, value_name = "NAME", value_parser = variant)]
    variant: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn definition(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.to_owned()),
        _ => Err("expected NAME=VALUE".into()),
    }
}

fn variant(text: &str) -> Result<String, String> {
    let known: Vec<_> = variants().iter().map(|v| v.name).collect();
    if known.contains(&text) { Ok(text.to_owned()) } else { Err(format!("expected one of {}", known.join(", "))) }
}

/// The progress of the one run that a process makes; hidden unless standard error is a terminal.
static BAR: OnceLock<ProgressBar> = OnceLock::new();

fn on_case(case: &CaseResult) {
    if let Some(bar) = BAR.get() {
        bar.inc(1);
        bar.set_message(case.path.display().to_string());
    }
}

fn word(verdict: &Verdict) -> (&'static str, Option<&str>) {
    match verdict {
        Verdict::Passed => ("passed", None),
        Verdict::Failed(text) => ("failed", Some(text)),
        Verdict::Unsupported(text) => ("unsupported", Some(text)),
    }
}

fn as_text(summary: &Summary) -> String {
    let mut out = String::new();
    for c in &summary.cases {
        if let (what, Some(message)) = word(&c.report.verdict) {
            let _ = writeln!(out, "{what} [{}] {message}", c.variant);
        }
        for warning in &c.report.warnings {
            let _ = writeln!(out, "warning [{}] {warning}", c.variant);
        }
    }
    let (all, passed, failed) = (summary.cases.len(), summary.passed(), summary.failed());
    let _ = writeln!(out, "{all} cases: {passed} passed, {failed} failed, {} unsupported", summary.unsupported());
    out
}

fn as_json(summary: &Summary) -> serde_json::Value {
    let cases: Vec<_> = summary
        .cases
        .iter()
        .map(|c| {
            let (verdict, message) = word(&c.report.verdict);
            json!({
                "path": c.path.display().to_string(),
                "variant": c.variant,
                "verdict": verdict,
                "message": message,
                "warnings": c.report.warnings,
                "virtual_us": c.report.virtual_us,
                "wall_us": u64::try_from(c.wall.as_micros()).unwrap_or(u64::MAX),
            })
        })
        .collect();
    json!({
        "schema": 1,
        "interrupted": interrupt::caught(),
        "passed": summary.passed(),
        "failed": summary.failed(),
        "unsupported": summary.unsupported(),
        "cases": cases,
    })
}

/// Runs the verb.
pub(crate) fn main(args: &DrillArgs) -> crate::Outcome {
    if let Some(file) = &args.junit {
        // A report that can not be written is better found before the work than after it.
        std::fs::File::create(file).map_err(|e| format!("--junit {}: {e}", file.display()))?;
    }
    let outcome = run(args);
    if let (true, Err((message, false))) = (args.json, &outcome) {
        crate::print(&format!("{:#}\n", json!({ "schema": 1, "cases": [], "error": message })))?;
    }
    outcome.map_err(|(message, _)| message.into())
}

/// Runs the scripts and prints their results; an error says whether they were printed.
fn run(args: &DrillArgs) -> Result<(), (String, bool)> {
    let bar = if args.json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} cases [{elapsed}] {wide_msg}") {
        bar.set_style(style);
    }
    let bar = BAR.get_or_init(|| bar);
    let (jobs, variant) = (usize::from(args.jobs), args.variant.as_deref());
    let stop = Some(interrupt::caught as fn() -> bool);
    let done = drill_main(&args.paths, jobs, args.junit.as_deref(), &args.defines, variant, Some(on_case), stop);
    bar.finish_and_clear();
    let summary = done.map_err(|message| (message, false))?;
    let text = if args.json { format!("{:#}\n", as_json(&summary)) } else { as_text(&summary) };
    crate::print(&text).map_err(|message| (message, true))?;
    let failed = match summary.failed() {
        n if n > 0 => format!("{n} of {} cases failed", summary.cases.len()),
        _ if interrupt::caught() => crate::INTERRUPTED.into(),
        _ if summary.cases.is_empty() => "no script was run: the paths hold no *.pkt for this variant".into(),
        _ => return Ok(()),
    };
    Err((failed, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_checked_before_anything_runs() {
        assert!(definition("A=").is_ok() && definition("=1").is_err() && definition("A").is_err());
        assert!(variant("ipv6").is_ok());
        assert!(variant("ipv5").unwrap_err().contains("ipv4-mapped-ipv6"));
    }

    #[test]
    fn a_failure_is_shown_with_its_message_and_counted() {
        let dir = std::env::temp_dir().join(format!("linerate-drill-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("bad.pkt"), "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 listen(3, 1) = 7\n")
            .unwrap();
        std::fs::write(dir.join("good.pkt"), "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n").unwrap();
        let summary = drill_main(std::slice::from_ref(&dir), 1, None, &[], Some("ipv4"), None, None).unwrap();
        let text = as_text(&summary);
        assert!(text.contains("failed [ipv4]") && text.contains("bad.pkt:2"), "{text}");
        assert!(text.ends_with("2 cases: 1 passed, 1 failed, 0 unsupported\n"), "{text}");
        let json = as_json(&summary);
        assert_eq!((&json["passed"], &json["failed"]), (&json!(1), &json!(1)));
        let verdicts: Vec<_> = json["cases"].as_array().unwrap().iter().map(|c| c["verdict"].clone()).collect();
        assert_eq!(verdicts, [json!("failed"), json!("passed")]);
        let _ = std::fs::remove_dir_all(&dir);
    }
}
