//! `linerate doctor`: what works on this host, and what costs speed on it.
//!
//! Each check looks at one thing and says `ok`, `warn` (something does not work, or costs speed) or `info` (good to know),
//! with one line of advice where there is something to do. Warnings are findings, not failures: the exit status is 0.
//!
//! Nothing is changed. What can only be found out by trying, is tried by a child process in a user and network namespace of
//! its own (`probe`), whose TUN is gone with it; where the host forbids that and this process may make a device, the TUN is
//! made here, left down, and closed at once. Everything else is read from `/proc` and `/sys` (`host`).

mod host;
mod probe;

use std::fmt::Write as _;

use clap::Args;
use serde::Serialize;

use crate::Outcome;

/// What works on this host, and what costs speed here.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Try what can only be tried, and print the results: for the child in a namespace
    #[arg(long, hide = true)]
    probe: bool,
}

/// How a check ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warn,
    Info,
}

/// What a check is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Part {
    /// Does it work?
    Works,
    /// Does it cost speed?
    Speed,
}

/// One check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Check {
    part: Part,
    name: &'static str,
    state: State,
    /// What was found.
    found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    fn ok(part: Part, name: &'static str, found: impl Into<String>) -> Self {
        Self { part, name, state: State::Ok, found: found.into(), advice: None }
    }
    fn info(part: Part, name: &'static str, found: impl Into<String>) -> Self {
        Self { state: State::Info, ..Self::ok(part, name, found) }
    }
    fn warn(part: Part, name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { state: State::Warn, advice: Some(advice.into()), ..Self::ok(part, name, found) }
    }
    fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
    /// `ok` or `warn`, by what was found.
    fn of(good: bool, part: Part, name: &'static str, found: impl Into<String>, advice: &str) -> Self {
        if good { Self::ok(part, name, found) } else { Self::warn(part, name, found, advice) }
    }
}

/// Runs the verb.
pub(crate) fn main(args: &DoctorArgs) -> Outcome {
    if args.probe {
        let text = serde_json::to_string(&probe::here()).map_err(|e| e.to_string())?;
        return Ok(crate::print(&format!("{text}\n"))?);
    }
    let mut checks = probe::checks();
    checks.extend(host::checks(std::path::Path::new("/")));
    crate::print(&if args.json { as_json(&checks) } else { as_text(&checks) })?;
    Ok(())
}

fn count(checks: &[Check], state: State) -> usize {
    checks.iter().filter(|c| c.state == state).count()
}

fn as_text(checks: &[Check]) -> String {
    let mut text = String::new();
    for (part, title) in [(Part::Works, "What works"), (Part::Speed, "What costs speed")] {
        let _ = writeln!(text, "{title}");
        for check in checks.iter().filter(|c| c.part == part) {
            let state = match check.state {
                State::Ok => "ok",
                State::Warn => "WARN",
                State::Info => "info",
            };
            let _ = writeln!(text, "  {state:<4}  {:<20}  {}", check.name, check.found);
            if let Some(advice) = &check.advice {
                let _ = writeln!(text, "                              -> {advice}");
            }
        }
    }
    let _ = writeln!(text, "{} ok, {} warnings", count(checks, State::Ok), count(checks, State::Warn));
    text
}

fn as_json(checks: &[Check]) -> String {
    let sums = serde_json::json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "ok": count(checks, State::Ok),
        "warnings": count(checks, State::Warn),
        "checks": checks,
    });
    format!("{sums}\n")
}
