//! Flags that contradict each other or would have no effect: bad usage, told in one line with the way out.
//!
//! What clap can say by itself (ranges, words, two flags that exclude each other) is in `args`. Here is what depends on
//! values: a flag that belongs to another `--test` would be ignored silently, so it is refused when it was really typed
//! (a default is nobody's wish); a segment size that no frame can carry would be a number in the report that never
//! happened. Offloads that need another one (TSO needs the NIC's checksums) are turned off without a word, as ethtool
//! does. Nothing here looks at the host: that is a failure, not bad usage.

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::args::{RxMode, SpeedArgs, Test, Touch};

/// Flags that mean something in some tests only: clap's id, as typed, the tests, what to do instead.
const BELONGS: &[(&str, &str, &[Test], &str)] = &[
    ("flows", "-P", &[Test::Stream, Test::Rr], "crr keeps 64 connections open, idle opens --conns"),
    ("reverse", "-R", &[Test::Stream], "only a stream has a direction"),
    ("bidir", "--bidir", &[Test::Stream], "only a stream has a direction"),
    ("len", "-l", &[Test::Stream], "--req and --resp give the sizes of rr and crr"),
    ("touch", "--touch", &[Test::Stream], "only a stream's reader looks at bytes"),
    ("rx", "--rx", &[Test::Stream], "only a stream's reader has a choice"),
    ("tx", "--tx", &[Test::Stream], "only a stream's writer has a choice"),
    ("file", "--file", &[Test::Stream], "a file is sent by --test stream"),
    ("req", "--req", &[Test::Rr, Test::Crr], "-l gives the size of a stream's writes"),
    ("resp", "--resp", &[Test::Rr, Test::Crr], "-l gives the size of a stream's reads"),
    ("conns", "--conns", &[Test::Idle], "-P gives the number of flows"),
    ("window", "-w", &FLOWS, "idle connections have no data"),
    ("mss", "-M", &FLOWS, "idle connections have no data"),
    ("v6", "-6", &FLOWS, "the idle test is IPv4"),
    ("wait", "--wait", &FLOWS, "the idle test never waits"),
    ("cut", "--cut", &FLOWS, "the idle test has no software NIC"),
    ("dma", "--dma", &FLOWS, "the idle test has no software NIC"),
    ("gro", "--gro", &FLOWS, "the idle test has no software NIC"),
    ("tso", "--tso", &FLOWS, "the idle test has no software NIC"),
    ("csum", "--csum", &FLOWS, "the idle test has no software NIC"),
    ("stages", "--stages", &FLOWS, "idle connections have no stages"),
    ("control", "--control", &FLOWS, "the idle test is over before it could be asked"),
];

const FLOWS: [Test; 3] = [Test::Stream, Test::Rr, Test::Crr];

/// Least MTU that IPv6 runs on (RFC 8200 section 5), bytes.
const IPV6_MIN_MTU: u32 = 1280;

/// What is wrong with the flags, if anything.
pub(crate) fn check(args: &SpeedArgs, given: &ArgMatches) -> Result<(), String> {
    for (id, flag, tests, instead) in BELONGS {
        if given.value_source(id) == Some(ValueSource::CommandLine) && !tests.contains(&args.test) {
            let test = format!("{:?}", args.test).to_lowercase();
            return Err(format!("{flag} has no meaning with --test {test}: {instead}; leave it out"));
        }
    }
    check_sizes(args)?;
    let contradictions = [
        (args.rx == RxMode::Trunc && args.touch != Touch::None, "--rx trunc discards the bytes that --touch looks at"),
        (
            args.rx == RxMode::Trunc && args.file.is_some(),
            "--rx trunc discards the bytes whose SHA-256 --file compares",
        ),
        (
            args.touch == Touch::Verify && args.file.is_some(),
            "--touch verify knows its own pattern, not that of --file",
        ),
        (args.flows > 1 && args.file.is_some(), "--file goes through one flow, and -P asks for more"),
    ];
    match contradictions.iter().find(|(wrong, _)| *wrong) {
        Some((_, why)) => Err(format!("{why}; leave one of the two out")),
        None => Ok(()),
    }
}

fn check_sizes(args: &SpeedArgs) -> Result<(), String> {
    if args.v6 && args.mtu < IPV6_MIN_MTU {
        return Err(format!("--mtu {} is too small for -6: at least {IPV6_MIN_MTU}", args.mtu));
    }
    let headers = if args.v6 { 60 } else { 40 };
    let most = args.mtu - headers;
    match args.mss {
        Some(mss) if u32::from(mss) > most => {
            Err(format!("-M {mss} does not fit into --mtu {}: at most {most}, or a larger --mtu", args.mtu))
        }
        _ => Ok(()),
    }
}
