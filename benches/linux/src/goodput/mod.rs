//! Goodput under loss: Linux and Linerate over the same emulated wire.
//!
//! A *cell* is a loss rate and a round-trip time. A *slice* of it runs all arrangements at once for some seconds, so that
//! whatever disturbs the machine disturbs them alike; an arrangement is who sends and who receives:
//! ```text
//!   role "sender":    (Linerate -> Linux) / (Linux -> Linux)
//!   role "receiver":  (Linux -> Linerate) / (Linux -> Linux)
//! ```
//! Each arrangement has the same number of independent flows, each flow with its own bottleneck, and flow `i` loses the same
//! frame numbers in every arrangement ([`crate::wire`]). Goodput is what the receiving application read between accepting the
//! connection and the end of its time, handshake excluded, slow start included. `linux-linux-again` is the control: its
//! ratio shows what the method itself does.
//!
//! Both stacks run the profile of Linux's defaults with the same buffer limits: CUBIC with HyStart, SACK, timestamps, RACK
//! and TLP, window autotuning, no pacing, no metrics kept, MTU 1500, no offloads (every frame is an MTU frame).
//!
//! Results of several runs can be added up: `--save` appends slices to a file, `--report` makes the table of a file.

mod args;
mod flows;
mod report;
mod slice;

pub(crate) use args::Args;

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::Value;

/// A loss rate and a round-trip time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    /// Share of frames lost in each direction, percent.
    pub(crate) loss_percent: f64,
    pub(crate) rtt_ms: u64,
}

/// Who is at an end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Linux,
    Linerate,
}

/// Who sends and who receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrangement {
    pub(crate) name: &'static str,
    pub(crate) sender: Side,
    pub(crate) receiver: Side,
}

/// All arrangements; the first is what the others are compared with. Their places choose their ports.
pub(crate) const ARRANGEMENTS: [Arrangement; 5] = [
    Arrangement { name: "linux-linux", sender: Side::Linux, receiver: Side::Linux },
    Arrangement { name: "linerate-linux", sender: Side::Linerate, receiver: Side::Linux },
    Arrangement { name: "linux-linerate", sender: Side::Linux, receiver: Side::Linerate },
    Arrangement { name: "linerate-linerate", sender: Side::Linerate, receiver: Side::Linerate },
    Arrangement { name: "linux-linux-again", sender: Side::Linux, receiver: Side::Linux },
];

/// The verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let slices = match &args.report {
        Some(file) => read(file)?,
        None => measure(args)?,
    };
    if args.json {
        println!("{}", report::json(&slices));
    } else {
        print!("{}", report::table(&slices));
    }
    report::check(&slices)
}

fn measure(args: &Args) -> Result<Vec<Value>, String> {
    let mut slices = Vec::new();
    for number in 0..args.slices {
        // Cells take turns, so that what changes with the hour does not meet one cell alone.
        for &cell in &args.cells {
            let flows = args.flows.unwrap_or_else(|| slice::flows_for(cell));
            let seed = args.seed.wrapping_add(number);
            let result = slice::run(cell, flows, args.secs, seed, &args.arrangements)
                .map_err(|e| format!("{} % at {} ms: {e}", cell.loss_percent, cell.rtt_ms))?;
            if let Some(file) = &args.save {
                let mut out = OpenOptions::new().create(true).append(true).open(file);
                let written = out
                    .as_mut()
                    .map_err(|e| e.to_string())
                    .and_then(|out| writeln!(out, "{result}").map_err(|e| e.to_string()));
                written.map_err(|e| format!("{file}: {e}"))?;
            }
            slices.push(result);
        }
    }
    Ok(slices)
}

/// The slices that earlier runs saved, one a line.
fn read(file: &str) -> Result<Vec<Value>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    text.lines().map(|line| serde_json::from_str(line).map_err(|e| format!("{file}: {e}"))).collect()
}
