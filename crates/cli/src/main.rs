//! The `linerate` command: one binary, one verb per job.
//!
//! Errors go to standard error, one line each, with what to do next. Exit status: 0 success, 1 failure (an interrupted
//! run is one, as with iperf3), 2 bad usage: then nothing ran. With `--json` a failure is also an object with the key
//! `error` on standard output. Ctrl-C ends the verb at its next step and its summary so far is printed; a second one
//! kills the process. A reader of our output that goes away is no error.

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

mod attach;
mod doctor;
mod drill;
mod dropwatch;
mod iperf3;
mod kernel_loopback;
mod link;
mod nstat;
mod sim;
mod speed;
mod ss;
mod tcpdump;
mod usage;

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
    /// The protocol of iperf3 over a TUN device: stock iperf3 can be the peer
    Iperf3(Box<iperf3::args::IperfArgs>),
    /// Scripts of the packetdrill language against this stack
    Drill(drill::DrillArgs),
    /// Random networks under the checkers, replayable from a number
    Sim(sim::SimArgs),
    /// Sockets of a running Linerate, as iproute2's ss shows them
    Ss(Box<ss::SsArgs>),
    /// Counters of a running Linerate, as iproute2's nstat shows them
    Nstat(nstat::NstatArgs),
    /// Devices of a running Linerate, as ip shows them
    Link(link::LinkArgs),
    /// Counters and features of a device of a running Linerate
    Ethtool(link::EthtoolArgs),
    /// Packets of a running Linerate, printed or written as pcapng
    Tcpdump(Box<tcpdump::TcpdumpArgs>),
    /// Drops and resets of a running Linerate as they happen: why, and where
    Dropwatch(dropwatch::DropwatchArgs),
    /// What works on this host, and what costs speed here
    Doctor(doctor::DoctorArgs),
    /// The kernel's side of `speed`
    #[command(hide = true, name = kernel_loopback::VERB)]
    KernelLoopback { plan: String },
}

/// Why a verb did not do what was asked.
pub(crate) enum Failure {
    /// The flags contradict each other: nothing ran (status 2).
    Usage(String),
    /// It was tried (status 1).
    Failed(String),
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

/// What a verb ends with.
pub(crate) type Outcome = Result<(), Failure>;

/// The message of a run that Ctrl-C ended; iperf3's words, which scripts know.
pub(crate) const INTERRUPTED: &str = "interrupt - the user ended the run; the summary covers what was done until then";

fn main() -> ExitCode {
    let outcome = match parse() {
        Ok((cli, given)) => run(&cli.verb, &given),
        Err(error) => return usage::exit(&error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            usage::complain(&message);
            ExitCode::from(2)
        }
        Err(Failure::Failed(message)) => {
            usage::complain(&message);
            ExitCode::from(1)
        }
    }
}

/// The names of the verbs that are shown.
fn verbs() -> impl Iterator<Item = String> {
    let command = Cli::command();
    let names: Vec<_> =
        command.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name().to_owned()).collect();
    names.into_iter()
}

fn parse() -> Result<(Cli, clap::ArgMatches), clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok((cli, matches.subcommand().map(|(_, of_verb)| of_verb.clone()).unwrap_or_default()))
}

fn run(verb: &Verb, given: &clap::ArgMatches) -> Outcome {
    if let Verb::KernelLoopback { plan } = verb {
        return kernel_loopback::child_main(plan).map_err(|e| e.to_string().into());
    }
    // A host that forbids it has no Ctrl-C that prints a summary, and nothing else is different.
    let _ = linerate_host::interrupt::catch();
    match verb {
        Verb::Speed(args) => speed::main(args, given),
        Verb::Iperf3(args) => iperf3::main(args),
        Verb::Drill(args) => drill::main(args),
        Verb::Sim(args) => sim::main(args),
        Verb::Ss(args) => ss::main(args),
        Verb::Nstat(args) => nstat::main(args),
        Verb::Link(args) => link::main(args),
        Verb::Ethtool(args) => link::ethtool(args),
        Verb::Tcpdump(args) => tcpdump::main(args),
        Verb::Dropwatch(args) => dropwatch::main(args),
        Verb::Doctor(args) => doctor::main(args),
        Verb::KernelLoopback { .. } => Ok(()),
    }
}

/// Prints to standard output; a reader that went away (`| head`) is not an error.
fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}
