//! Repository chores, run as `cargo xtask VERB`.
//!
//! `check` is the whole gate: what it lets through may land. It prints one line a step with its time, goes on after a
//! failure so that one run shows everything, and exits 1 if any step failed. Each step is a verb of its own. A step that
//! needs something this machine lacks says so and is skipped, except under `LINERATE_REQUIRE=all` (as CI sets): then
//! lacking it is a failure.
//!
//! `goodput` and `soak` run Linerate against the Linux kernel. `peers` measures our benches beside other stacks in one
//! run; `speed-json` checks the shape of a report of `linerate speed --json`. Everything here is plain files and child
//! processes: no plug-ins, no configuration.

mod layers;
mod linux;
mod peers;
mod report;
mod scan;
mod steps;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use steps::Outcome;

const USAGE: &str = "usage: cargo xtask VERB
  check                    the whole gate
  fmt layers nostd tidy    one quick step of it
  clippy test loom doc     one slow step of it
  goodput [OPTIONS]        goodput under loss beside Linux over one emulated wire (--quick: a few seconds)
  soak [--secs N]          bulk and short connections with Linux for N seconds: stalls, growth, leaks
  peers [--quick] [--only PATTERN] [--json FILE]
                           our benches beside smoltcp, gVisor and the kernel, over a TUN too; a table, and JSON in FILE
  speed-json FILE          are all keys there in a report of `linerate speed --json`?";

/// The root of the repository that this run is about.
fn root() -> PathBuf {
    // Cargo tells it at run time; the compiled-in path is only right for a binary that was started by hand.
    let xtask = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&xtask).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let root = root();
    match words.split_first() {
        Some((&"check", [])) => exit(steps::run(&root, steps::ALL)),
        Some((&"peers", flags)) => match peers::Options::parse(flags) {
            Some(options) => finish(peers::run(&root, &options)),
            None => usage(),
        },
        Some((verb, args)) if linux::VERBS.contains(verb) => finish(linux::run(&root, verb, args)),
        Some((&"speed-json", [file])) => finish(report::check_file(Path::new(file))),
        Some((verb, [])) => match steps::ALL.iter().position(|step| step.name == *verb) {
            Some(at) => exit(steps::run(&root, &steps::ALL[at..=at])),
            None => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn exit(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(note) => {
            if !note.is_empty() {
                println!("{note}");
            }
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
