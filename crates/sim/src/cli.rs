//! The verb `linerate sim --seed N [--count K] [--json]`, without its flags.
//!
//! Runs the seeds and prints one line each, or only the failures of a long series with a summary, or one JSON object.
//! Returns whether all held. Progress goes to the caller's callback, so that a terminal can show a bar and a pipe nothing.
//!
//! Invariants: seeds are independent, so threads change the order of work and never a result; a failing seed leaves a
//! capture, named by it. Limits: the outcomes of all seeds are kept until the end.

use std::io::{self, Write};
use std::path::Path;

use crate::seed::{Outcome, run_seeds_until};

/// What to run.
#[derive(Clone, Debug)]
pub struct CliOpts {
    /// First seed.
    pub seed: u64,
    /// How many, one after the other.
    pub count: u64,
    /// One JSON object instead of text.
    pub json: bool,
    /// Threads.
    pub threads: usize,
}

/// Runs the seeds, writes the result to `out`, puts captures of failures into `dir`. False: something was violated.
/// Once `stop` says so, no further seed is begun, and the result is that of the seeds so far.
///
/// # Errors
/// Only those of `out`.
pub fn cli_run(
    opts: &CliOpts,
    dir: &Path,
    out: &mut dyn Write,
    progress: &(dyn Fn(&Outcome) + Sync),
    stop: &(dyn Fn() -> bool + Sync),
) -> io::Result<bool> {
    let range = opts.seed..opts.seed.saturating_add(opts.count.max(1));
    let outcomes = run_seeds_until(range, opts.threads, Some(dir), progress, stop);
    let failed = outcomes.iter().filter(|o| !o.is_ok()).count();
    if opts.json {
        write_json(&outcomes, stop(), out)?;
    } else {
        write_text(&outcomes, failed, out)?;
    }
    Ok(failed == 0)
}

fn write_text(outcomes: &[Outcome], failed: usize, out: &mut dyn Write) -> io::Result<()> {
    for o in outcomes {
        if !o.is_ok() {
            writeln!(out, "FAILED {}", o.report())?;
        } else if outcomes.len() <= 10 {
            writeln!(
                out,
                "ok     seed {}: {} endpoints, {} bytes in {} frames, {:.3} s of virtual time, hash {:016x}\n  plan:    {}",
                o.seed,
                o.endpoints.0,
                o.bytes,
                o.wire_pkts,
                o.time.as_secs_f64(),
                o.hash,
                o.plan
            )?;
        }
    }
    let (bytes, frames, time) = totals(outcomes);
    writeln!(
        out,
        "{} seeds, {failed} failed; {bytes} bytes in {frames} frames, {time:.0} s of virtual time",
        outcomes.len()
    )
}

fn totals(outcomes: &[Outcome]) -> (u64, u64, f64) {
    outcomes.iter().fold((0, 0, 0.0), |(b, f, t), o| (b + o.bytes, f + o.wire_pkts, t + o.time.as_secs_f64()))
}

fn write_json(outcomes: &[Outcome], interrupted: bool, out: &mut dyn Write) -> io::Result<()> {
    let (bytes, frames, time) = totals(outcomes);
    write!(
        out,
        "{{\"schema\":1,\"interrupted\":{interrupted},\"seeds\":{},\"bytes\":{bytes},\"wire_pkts\":{frames},\"virtual_s\":{time},\"runs\":[",
        outcomes.len()
    )?;
    for (n, o) in outcomes.iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        let violations: Vec<String> = o.violations.iter().map(|v| quote(v)).collect();
        let capture = o.capture.as_ref().map_or("null".to_string(), |p| quote(&p.display().to_string()));
        write!(
            out,
            "{comma}{{\"seed\":{},\"ok\":{},\"hash\":\"{:016x}\",\"virtual_s\":{},\"steps\":{},\"wire_pkts\":{},\"bytes\":{},\"endpoints\":{},\"errors\":{},\"violations\":[{}],\"plan\":{},\"capture\":{capture}}}",
            o.seed,
            o.is_ok(),
            o.hash,
            o.time.as_secs_f64(),
            o.steps,
            o.wire_pkts,
            o.bytes,
            o.endpoints.0,
            o.endpoints.1,
            violations.join(","),
            quote(&o.plan)
        )?;
    }
    writeln!(out, "]}}")
}

/// A JSON string.
fn quote(text: &str) -> String {
    let mut s = String::with_capacity(text.len() + 2);
    s.push('"');
    for c in text.chars() {
        match c {
            '"' => s.push_str("\\\""),
            '\\' => s.push_str("\\\\"),
            c if u32::from(c) < 0x20 => s.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => s.push(c),
        }
    }
    s.push('"');
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_json() {
        assert_eq!(quote("a\"b\\c\nd"), "\"a\\\"b\\\\c\\u000ad\"");
    }
}
