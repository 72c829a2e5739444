//! Peers measured beside Linerate: other stacks doing the same job, each set up as well as we know how.
//!
//! A comparison is worth what its weakest side is worth, so a peer here is never run "out of the box": its buffers,
//! bursts and acknowledgement delay are swept and the best is taken, its frames come from a pool, its clock is read
//! rarely, and Nagle is off. What stays the same on both sides is the job: one thread, an MTU of 1500 really cut,
//! checksums computed and verified in software, the application copying in at one end and out at the other.
//!
//! `tun` is a different job: one flow between the Linux kernel and a contender, Linerate among them, over a TUN ([`tun`]).
//!
//! The binary prints one JSON object per run with `--json` and a sentence without. `cargo xtask peers` runs it
//! alternately with `linerate speed`, or with itself. Peers never become dependencies of the shipped binary.

mod smoltcp_peer;
mod tun;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use linerate::Wait;
use smoltcp_peer::{Bulk, bulk, bulk_best, rr};
use tun::{Contender, Dir, Plan};

const USAGE: &str = "usage: linerate-peers smoltcp-bulk [--secs S] [--buf BYTES|best] [--mtu BYTES] [--json]
       linerate-peers smoltcp-rr   [--secs S] [--mtu BYTES] [--json]
       linerate-peers tun --stack linerate|linerate-remote|smoltcp|gvisor|veth|loopback --dir to|from [--plain]
                          [--wait block|spin|adaptive] [--buf BYTES|best] [--program GVISOR] [--secs S] [--mtu BYTES] [--json]";

/// The smallest MTU that IPv4 allows a host to rely on, and the largest that its length field can say.
const MTU_RANGE: std::ops::RangeInclusive<usize> = 576..=65_535;

/// Socket buffers that a run accepts: below one segment nothing flows, above 1 GiB window scaling ends.
const BUF_RANGE: std::ops::RangeInclusive<usize> = 4_096..=1 << 30;

#[derive(Debug)]
struct Args {
    verb: Verb,
    secs: f64,
    buf_bytes: Option<usize>,
    mtu: usize,
    json: bool,
    stack: Option<Contender>,
    dir: Option<Dir>,
    plain: bool,
    wait: Option<Wait>,
    program: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    SmoltcpBulk,
    SmoltcpRr,
    /// Starts the next one.
    Tun,
    TunInside,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let verb = match words.next().as_deref() {
        Some("smoltcp-bulk") => Verb::SmoltcpBulk,
        Some("smoltcp-rr") => Verb::SmoltcpRr,
        Some("tun") => Verb::Tun,
        Some(tun::INSIDE) => Verb::TunInside,
        Some(other) => return Err(format!("'{other}' is no peer")),
        None => return Err("which peer?".into()),
    };
    let (stack, dir, wait, program) = (None, None, None, None);
    let mut args =
        Args { verb, secs: 1.0, buf_bytes: None, mtu: 1_500, json: false, stack, dir, plain: false, wait, program };
    let over_tun = matches!(verb, Verb::Tun | Verb::TunInside);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--json" => args.json = true,
            "--secs" => args.secs = number(&value()?, 0.01..=3_600.0)?,
            "--mtu" => args.mtu = number(&value()?, MTU_RANGE)?,
            "--buf" => {
                let text = value()?;
                args.buf_bytes = if text == "best" { None } else { Some(number(&text, BUF_RANGE)?) };
            }
            "--plain" if over_tun => args.plain = true,
            "--stack" if over_tun => args.stack = Some(value()?.parse()?),
            "--dir" if over_tun => args.dir = Some(value()?.parse()?),
            "--wait" if over_tun => args.wait = Some(value()?.parse()?),
            "--program" if over_tun => args.program = Some(value()?.into()),
            _ => return Err(format!("'{word}' is no option")),
        }
    }
    if over_tun && (args.stack.is_none() || args.dir.is_none()) {
        return Err("tun wants --stack and --dir".into());
    }
    Ok(args)
}

fn number<T>(text: &str, range: std::ops::RangeInclusive<T>) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Debug,
{
    let value = text.parse().map_err(|_| format!("'{text}' is no number"))?;
    if range.contains(&value) { Ok(value) } else { Err(format!("{text} is outside {range:?}")) }
}

/// The plan of a run over a TUN; `None` when it does not say against whom or where to, which `parse` does not let through.
fn plan(args: &Args) -> Option<Plan> {
    Some(Plan {
        plain: args.plain,
        time: Duration::from_secs_f64(args.secs),
        mtu: args.mtu as u32,
        wait: args.wait,
        buf_bytes: args.buf_bytes,
        program: args.program.clone(),
        ..Plan::new(args.stack?, args.dir?)
    })
}

fn run_tun(args: &Args) -> Result<String, tun::Error> {
    let plan = plan(args).ok_or_else(|| tun::Error::Failed("no plan".into()))?;
    let report = tun::run(&plan)?;
    if args.json {
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

fn run(args: &Args) -> Result<String, String> {
    let time = Duration::from_secs_f64(args.secs);
    match args.verb {
        Verb::Tun | Verb::TunInside => Err("it runs in a namespace of its own".into()),
        Verb::SmoltcpBulk => {
            let (set, bits_per_second) = match args.buf_bytes {
                None => bulk_best(args.mtu, time)?,
                Some(buf_bytes) => {
                    let set = Bulk { buf_bytes, ..Bulk::new(args.mtu) };
                    (set, bulk(&set, time)?)
                }
            };
            let Bulk { mtu, buf_bytes, burst_frames, ack_delay } = set;
            Ok(if args.json {
                format!(
                    "{{\"bits_per_second\": {bits_per_second:.0}, \"buf_bytes\": {buf_bytes}, \"burst_frames\": \
                     {burst_frames}, \"ack_delay\": {ack_delay}, \"mtu\": {mtu}}}"
                )
            } else {
                format!(
                    "smoltcp, one thread, MTU {mtu}, software checksums, copied in and out: {:.1} Gbit/s with {} KiB \
                     buffers, bursts of {burst_frames} frames, ack delay {}",
                    bits_per_second / 1e9,
                    buf_bytes / 1024,
                    if ack_delay { "on" } else { "off" }
                )
            })
        }
        Verb::SmoltcpRr => {
            let transactions_per_second = rr(args.mtu, time)?;
            Ok(if args.json {
                format!("{{\"transactions_per_second\": {transactions_per_second:.0}, \"mtu\": {}}}", args.mtu)
            } else {
                format!("smoltcp, one thread, 64 bytes each way: {transactions_per_second:.0} transactions/s")
            })
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let args = match parse(words.iter().cloned()) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("linerate-peers: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = match args.verb {
        Verb::Tun => match tun::run_inside(&words[1..]) {
            Ok(exit) => return exit,
            Err(e) => Err(e),
        },
        Verb::TunInside => run_tun(&args),
        Verb::SmoltcpBulk | Verb::SmoltcpRr => run(&args).map_err(tun::Error::Failed),
    };
    match outcome {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("linerate-peers: {message}");
            tun::exit_of(&message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = String> + '_ {
        line.split_whitespace().map(String::from)
    }

    #[test]
    fn options_are_parsed_and_bounded() {
        let args = parse(words("smoltcp-bulk --secs 0.5 --buf 65536 --mtu 9000 --json")).unwrap();
        assert_eq!((args.verb, args.secs, args.buf_bytes), (Verb::SmoltcpBulk, 0.5, Some(65_536)));
        assert_eq!((args.mtu, args.json), (9_000, true));
        assert_eq!(parse(words("smoltcp-bulk --buf best")).unwrap().buf_bytes, None);
        let args = parse(words("tun --stack smoltcp --dir from --plain --wait spin --secs 2 --program x/y")).unwrap();
        let expected = Plan {
            plain: true,
            wait: Some(Wait::Spin),
            time: Duration::from_secs(2),
            program: Some("x/y".into()),
            ..Plan::new(Contender::Smoltcp, Dir::From)
        };
        assert_eq!(plan(&args), Some(expected));
        for bad in ["tun --stack veth", "tun --stack x --dir to", "tun --dir up --stack veth", "smoltcp-rr --plain"] {
            assert!(parse(words(bad)).is_err(), "{bad}");
        }
        for bad in ["", "x", "smoltcp-rr --secs", "smoltcp-rr --secs 0", "smoltcp-bulk --mtu 70000", "smoltcp-rr -x"] {
            assert!(parse(words(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn both_verbs_report_what_they_ran() {
        let line = run(&parse(words("smoltcp-bulk --secs 0.05 --buf 65536 --json")).unwrap()).unwrap();
        assert!(line.starts_with("{\"bits_per_second\": ") && line.contains("\"buf_bytes\": 65536"), "{line}");
        let line = run(&parse(words("smoltcp-rr --secs 0.05 --json")).unwrap()).unwrap();
        assert!(line.starts_with("{\"transactions_per_second\": "), "{line}");
    }
}
