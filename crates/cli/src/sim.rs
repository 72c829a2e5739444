//! `linerate sim`: random networks under the checkers, each from one number.
//!
//! The work is in the `sim` crate; here are the flags, the progress on a terminal, and where captures of failures go. A
//! failing seed prints how to replay it and leaves a pcapng. Exit status 1 when a seed failed or the run was interrupted;
//! an interrupted run reports the seeds that it finished.

use std::path::PathBuf;

use clap::Args;
use linerate_host::interrupt;
use linerate_sim::cli::{CliOpts, cli_run};

/// Random topologies, faults and loads under the checkers, replayable from a number.
#[derive(Clone, Debug, Args)]
pub(crate) struct SimArgs {
    /// First seed
    #[arg(long, value_name = "N")]
    seed: u64,
    /// Seeds to run, one after the other
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Threads
    #[arg(short = 'j', default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Where captures of failing seeds go
    #[arg(long, default_value = ".", value_name = "DIR")]
    out: PathBuf,
}

/// Runs the verb.
pub(crate) fn main(args: &SimArgs) -> crate::Outcome {
    if !args.out.is_dir() {
        let dir = args.out.display();
        return Err(crate::Failure::Failed(format!("{dir}: not a directory; --out names one that exists")));
    }
    let opts = CliOpts { seed: args.seed, count: args.count, json: args.json, threads: usize::from(args.jobs) };
    let bar = if args.json { indicatif::ProgressBar::hidden() } else { indicatif::ProgressBar::new(args.count) };
    let mut text = Vec::new();
    let ok = cli_run(&opts, &args.out, &mut text, &|_| bar.inc(1), &interrupt::caught).map_err(|e| e.to_string())?;
    bar.finish_and_clear();
    crate::print(&String::from_utf8_lossy(&text))?;
    match ok {
        false => Err(String::from("a seed failed; its report says how to replay it").into()),
        true if interrupt::caught() => Err(String::from(crate::INTERRUPTED).into()),
        true => Ok(()),
    }
}
