//! Linerate and the Linux kernel judged by the same measure.
//!
//! `goodput` sends many flows over one emulated wire with losses, Linux to Linux, Linerate to Linux and Linux to Linerate,
//! and compares. `soak` lets both exchange bulk data and short connections for as long as asked, and looks for stalls,
//! growth and leaks. Both run in namespaces of their own: this program starts itself again inside a fresh user namespace,
//! so no root is needed and nothing of the host is touched.
//!
//! Exit status: 0 for a good run, 1 for a failed one, 2 for bad usage, 3 when the host lacks something (TUN, namespaces).

mod goodput;
mod ratio;
mod soak;
mod space;
mod wire;

use std::fs::OpenOptions;
use std::process::{Command, ExitCode};

use linerate_host::netns;

const USAGE: &str = "usage: linerate-linux VERB
  goodput [--quick] [--json] [--cells LOSS%:RTT_MS,..] [--flows N] [--slices N] [--secs S] [--seed N]
          [--arrangements NAME,..] [--save FILE] [--report FILE]
  soak    [--secs N] [--mbit N] [--conns N] [--json]";

/// Set in the child.
const INSIDE: &str = "LINERATE_LINUX_NAMESPACE";

const LACKING: u8 = 3;

/// What to do.
enum Run {
    Goodput(goodput::Args),
    Soak(soak::Args),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((verb, args)) = words.split_first() else { return usage("which verb?") };
    let run = match *verb {
        "goodput" => goodput::Args::parse(args).map(Run::Goodput),
        "soak" => soak::Args::parse(args).map(Run::Soak),
        other => Err(format!("there is no verb '{other}'")),
    };
    let run = match run {
        Ok(run) => run,
        Err(message) => return usage(&message),
    };
    let needs_kernel = !matches!(&run, Run::Goodput(args) if args.report.is_some());
    if needs_kernel && std::env::var_os(INSIDE).is_none() {
        return again_inside(&words);
    }
    let done = match &run {
        Run::Goodput(args) => goodput::run(args),
        Run::Soak(args) => soak::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("linerate-linux: {message}");
            ExitCode::FAILURE
        }
    }
}

fn usage(message: &str) -> ExitCode {
    eprintln!("linerate-linux: {message}\n{USAGE}");
    ExitCode::from(2)
}

/// Runs this program with the same words as root of a fresh user and network namespace.
fn again_inside(words: &[&str]) -> ExitCode {
    let lacking = |what: &str, why: std::io::Error| {
        eprintln!("linerate-linux: {what}: {why}");
        ExitCode::from(LACKING)
    };
    if let Err(e) = OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        return lacking("/dev/net/tun", e);
    }
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(e) => return lacking("the path of this program", e),
    };
    let mut command = Command::new(exe);
    command.args(words).env(INSIDE, "1");
    match netns::in_fresh_namespace(&mut command).status() {
        Err(e) => lacking("a user namespace", e),
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}
