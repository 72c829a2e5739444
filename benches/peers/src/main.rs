//! Peers measured beside Linerate: other stacks doing the same job, each set up as well as we know how.
//!
//! A comparison is worth what its weakest side is worth, so a peer here is never run "out of the box": its buffers,
//! bursts and acknowledgement delay are swept and the best is taken, its frames come from a pool, its clock is read
//! rarely, and Nagle is off. What stays the same on both sides is the job: one thread, an MTU of 1500 really cut,
//! checksums computed and verified in software, the application copying in at one end and out at the other.
//!
//! The binary prints one JSON object per run with `--json` and a sentence without. `cargo xtask peers` runs it
//! alternately with `linerate speed`. Peers never become dependencies of the shipped binary.

mod smoltcp_peer;

use std::process::ExitCode;
use std::time::Duration;

use smoltcp_peer::{Bulk, bulk, bulk_best, rr};

const USAGE: &str = "usage: linerate-peers smoltcp-bulk [--secs S] [--buf BYTES|best] [--mtu BYTES] [--json]
       linerate-peers smoltcp-rr   [--secs S] [--mtu BYTES] [--json]";

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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    SmoltcpBulk,
    SmoltcpRr,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let verb = match words.next().as_deref() {
        Some("smoltcp-bulk") => Verb::SmoltcpBulk,
        Some("smoltcp-rr") => Verb::SmoltcpRr,
        Some(other) => return Err(format!("'{other}' is no peer")),
        None => return Err("which peer?".into()),
    };
    let mut args = Args { verb, secs: 1.0, buf_bytes: None, mtu: 1_500, json: false };
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
            _ => return Err(format!("'{word}' is no option")),
        }
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

fn run(args: &Args) -> Result<String, String> {
    let time = Duration::from_secs_f64(args.secs);
    match args.verb {
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
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("linerate-peers: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&args) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("linerate-peers: {message}");
            ExitCode::FAILURE
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
