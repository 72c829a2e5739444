//! Linerate, smoltcp, gVisor and the kernel itself against the Linux kernel over a TUN: one flow, one direction, one report.
//!
//! [`tun`] says what is measured and how. A peer is never run "out of the box": its buffers, bursts and ways of waiting are
//! swept and the best is taken, since a comparison is worth what its weakest side is worth.
//!
//! It is a package of its own beside `linerate-peers`: what smoltcp needs here slows it down there. The binary prints one
//! JSON object with `--json` and a sentence without; it exits with 77 when the machine lacks something. `cargo xtask peers`
//! runs it in rounds.

mod tun;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tun::{Contender, Dir, Error, Plan};

const USAGE: &str =
    "usage: linerate-peers-tun --stack linerate|linerate-remote|smoltcp|gvisor|veth|loopback --dir to|from
       [--plain] [--wait block|spin|adaptive] [--buf BYTES|best] [--program GVISOR] [--secs S] [--mtu BYTES] [--json]";

/// The smallest MTU that IPv4 allows a host to rely on, and the largest that its length field can say.
const MTU_RANGE: std::ops::RangeInclusive<u32> = 576..=65_535;

/// Socket buffers that a run accepts: below one segment nothing flows, above 1 GiB window scaling ends.
const BUF_RANGE: std::ops::RangeInclusive<usize> = 4_096..=1 << 30;

/// The plan, and whether the report is to be JSON.
fn parse(mut words: impl Iterator<Item = String>) -> Result<(Plan, bool), String> {
    let (mut stack, mut dir, mut json) = (None, None, false);
    let mut plan = Plan::new(Contender::Linerate, Dir::To);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--json" => json = true,
            "--plain" => plan.plain = true,
            "--stack" => stack = Some(value()?.parse()?),
            "--dir" => dir = Some(value()?.parse()?),
            "--wait" => plan.wait = Some(value()?.parse()?),
            "--program" => plan.program = Some(PathBuf::from(value()?)),
            "--secs" => plan.time = Duration::from_secs_f64(number(&value()?, 0.01..=3_600.0)?),
            "--mtu" => plan.mtu = number(&value()?, MTU_RANGE)?,
            "--buf" => {
                let text = value()?;
                plan.buf_bytes = if text == "best" { None } else { Some(number(&text, BUF_RANGE)?) };
            }
            _ => return Err(format!("'{word}' is no option")),
        }
    }
    plan.contender = stack.ok_or("which --stack?")?;
    plan.dir = dir.ok_or("which --dir?")?;
    Ok((plan, json))
}

fn number<T>(text: &str, range: std::ops::RangeInclusive<T>) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Debug,
{
    let value = text.parse().map_err(|_| format!("'{text}' is no number"))?;
    if range.contains(&value) { Ok(value) } else { Err(format!("{text} is outside {range:?}")) }
}

fn run(plan: &Plan, json: bool) -> Result<String, Error> {
    let report = tun::run(plan)?;
    if json {
        return Ok(report.to_string());
    }
    let gbps = report["bits_per_second"].as_f64().unwrap_or(f64::NAN) / 1e9;
    let way = if plan.dir == Dir::To { "to" } else { "from" };
    let device = if plan.plain { "no offload" } else { "super-packets" };
    let cores = |key: &str| report[key].as_f64().map_or("?".into(), |cores| format!("{cores:.2}"));
    Ok(format!(
        "{:?} {way} the kernel, MTU {}, {device}: {gbps:.2} Gbit/s; {} cores, the kernel's end {}; {}",
        plan.contender,
        plan.mtu,
        cores("cores_contender"),
        cores("cores_kernel_end"),
        report["how"].as_str().unwrap_or_default(),
    ))
}

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let inside = words.first().is_some_and(|word| word == tun::INSIDE);
    if inside {
        words.remove(0);
    }
    let (plan, json) = match parse(words.iter().cloned()) {
        Ok(parsed) => parsed,
        Err(message) => {
            eprintln!("linerate-peers-tun: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = if inside {
        run(&plan, json).map(|line| {
            println!("{line}");
            ExitCode::SUCCESS
        })
    } else {
        tun::run_inside(&words)
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("linerate-peers-tun: {error}");
        tun::exit_of(&error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate::Wait;

    fn words(line: &str) -> impl Iterator<Item = String> + '_ {
        line.split_whitespace().map(String::from)
    }

    #[test]
    fn options_are_parsed_and_bounded() {
        let line =
            "--stack smoltcp --dir from --plain --wait spin --secs 2 --program x/y --buf 65536 --mtu 9000 --json";
        let expected = Plan {
            plain: true,
            wait: Some(Wait::Spin),
            time: Duration::from_secs(2),
            program: Some("x/y".into()),
            buf_bytes: Some(65_536),
            mtu: 9_000,
            ..Plan::new(Contender::Smoltcp, Dir::From)
        };
        assert_eq!(parse(words(line)), Ok((expected, true)));
        assert_eq!(parse(words("--dir to --stack veth")), Ok((Plan::new(Contender::Veth, Dir::To), false)));
        for bad in ["", "--stack veth", "--dir to", "--stack x --dir to", "--dir up --stack veth"] {
            assert!(parse(words(bad)).is_err(), "{bad}");
        }
        for bad in ["--secs", "--secs 0", "--mtu 70000", "--buf 1", "--wait never", "x"] {
            assert!(parse(words(&format!("--stack veth --dir to {bad}"))).is_err(), "{bad}");
        }
    }
}
