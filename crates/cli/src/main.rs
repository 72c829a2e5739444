//! The `linerate` command: one binary, one verb per job.
//!
//! Errors go to standard error with what to do next. Exit status: 0 success, 1 failure, 2 bad usage.

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod drill;
mod kernel_loopback;
mod sim;
mod speed;

#[derive(Parser)]
#[command(name = "linerate", version, about = "A TCP/IP stack in user space for very fast flows")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// A flow between two complete stacks over the software NIC, beside the kernel's loopback flow
    Speed(Box<speed::args::SpeedArgs>),
    /// Scripts of the packetdrill language against this stack
    Drill(drill::DrillArgs),
    /// Random networks under the checkers, replayable from a number
    Sim(sim::SimArgs),
    /// The kernel's side of `speed`
    #[command(hide = true, name = kernel_loopback::VERB)]
    KernelLoopback { plan: String },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.verb {
        Verb::Speed(args) => speed::main(args),
        Verb::Drill(args) => drill::main(args),
        Verb::Sim(args) => sim::main(args),
        Verb::KernelLoopback { plan } => kernel_loopback::child_main(plan).map_err(|e| e.to_string()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("linerate: {message}");
            ExitCode::from(1)
        }
    }
}

/// Prints to standard output; a reader that went away (`| head`) is not an error.
fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}
