//! `linerate speed`: a flow between two complete stacks over the software NIC, and the kernel's own loopback flow beside it.
//!
//! The two run in turn, a second each, in one process tree on the same cores, because a shared machine changes its speed
//! from second to second: only the ratio travels. Between its slices a flow stands still and its clock with it. What is
//! reported is counted: bytes that readers got, frames that crossed the wire, copies that our code made, CPU time that
//! the kernel charged to our threads.

pub(crate) mod app;
pub(crate) mod args;
mod attach;
mod check;
mod control;
mod crr;
mod idle;
pub(crate) mod report;
mod rr;
mod run;
mod setup;
mod stream;
mod tally;

use std::sync::Arc;

use args::{SpeedArgs, Test};
use control::Control;
use linerate_host::{Unparker, interrupt};
use report::{KernelSide, Report};
use run::{Finished, drive, parkers};
use setup::{End, Ends, build};
use tally::Tally;

use crate::kernel_loopback::{KernelLoopback, Plan};

/// Longest slice, seconds: ours and the kernel's alternate at this pace.
const SLICE_SECS: f64 = 1.0;
/// Slow start and page faults of the first moments are left out.
const WARM_UP_SECS: f64 = 0.1;

/// Runs the verb.
pub(crate) fn main(args: &SpeedArgs, given: &clap::ArgMatches) -> crate::Outcome {
    check::check(args, given).map_err(crate::Failure::Usage)?;
    let error = match measure(args) {
        Ok(report) => {
            let text = match args.json {
                true => serde_json::to_string_pretty(&report.to_json(args)).map_err(|e| e.to_string())? + "\n",
                false => report.to_text(args),
            };
            crate::print(&text)?;
            report.error
        }
        Err(message) => {
            if args.json {
                crate::print(&report::failure_json(args, &message))?;
            }
            Some(message)
        }
    };
    error.map_or(Ok(()), |message| Err(message.into()))
}

fn measure(args: &SpeedArgs) -> Result<Report, String> {
    if args.test == Test::Idle {
        return idle_report(args);
    }
    let mut report = flow_report(args, false)?;
    if args.stages && report.error.is_none() {
        report.linerate.stages_ns_per_mib = flow_report(args, true)?.linerate.stages_ns_per_mib;
    }
    Ok(report)
}

fn idle_report(args: &SpeedArgs) -> Result<Report, String> {
    let result = idle::run(args, setup::stack_config(args))?;
    let mut report = tally::empty_report(args);
    report.linerate.rss_growth_bytes = Some(result.rss_growth_bytes);
    report.linerate.transactions_per_second = Some(result.connects_per_second);
    report.lookup_ns = result.lookup_ns;
    report.segment_ns = result.segment_ns;
    report.error = interrupted();
    Ok(report)
}

/// One run: our flow, and between its slices the kernel's.
fn flow_report(args: &SpeedArgs, stages: bool) -> Result<Report, String> {
    let mut kernel = match args.no_kernel || args.file.is_some() || stages {
        true => None,
        false => start_kernel(args)?,
    };
    let threads = usize::from(args.threads);
    let (parkers, unparkers) = parkers(threads);
    let wakers = [unparkers[0].clone(), unparkers[threads - 1].clone()];
    let mut ends = build(args, stages, wakers.clone())?;
    let mut _listening = None;
    if let Some(path) = &args.control {
        let (asked, server) = attach::attach(path, ends, wakers)?;
        (ends, _listening) = (asked, Some(server));
    }
    let control = Arc::new(Control::new(threads));
    let mut tally = Tally::new(args, &ends);
    let groups: Vec<Vec<End>> = into_groups(ends, threads);
    let cpus = linerate_host::allowed_cpus().unwrap_or_default();
    let handles: Vec<_> = groups
        .into_iter()
        .zip(parkers)
        .enumerate()
        .map(|(at, (ends, parker))| {
            let (control, wait) = (control.clone(), args.wait.into());
            // Two ends that poll must not share a core: the one that has work would wait for the one that has none.
            let cpu = (threads > 1).then(|| cpus.get(at).copied()).flatten();
            linerate_host::spawn_named(format!("linerate-{at}"), move || {
                // A host that forbids it costs speed, nothing else.
                let _ = cpu.map(linerate_host::pin_to_cpu);
                drive(ends, &control, &parker, wait)
            })
            .map_err(|e| e.to_string())
        })
        .collect::<Result<_, _>>()?;
    let bar = progress(args);
    let ran = run_slices(args, &control, &unparkers, &mut tally, kernel.as_mut(), &bar);
    bar.finish_and_clear();
    control.stop();
    let finished: Vec<Finished> = handles
        .into_iter()
        .map(|h| h.join().map_err(|_| String::from("a thread panicked")))
        .collect::<Result<_, _>>()?;
    if let Some(message) = finished.iter().find_map(|f| f.error.clone()) {
        return Err(message);
    }
    ran?;
    tally.into_report(args, finished, kernel.as_ref())
}

/// The error of a run that Ctrl-C ended.
fn interrupted() -> Option<String> {
    interrupt::caught().then(|| crate::INTERRUPTED.into())
}

fn into_groups(ends: Ends, threads: usize) -> Vec<Vec<End>> {
    match threads {
        1 => vec![vec![ends.client, ends.server]],
        _ => vec![vec![ends.client], vec![ends.server]],
    }
}

fn run_slices(
    args: &SpeedArgs,
    control: &Control,
    unparkers: &[Unparker],
    tally: &mut Tally,
    mut kernel: Option<&mut KernelLoopback>,
    bar: &indicatif::ProgressBar,
) -> Result<(), String> {
    let threads = usize::from(args.threads);
    if args.file.is_some() {
        return send_file(args, control, unparkers, tally);
    }
    let stop = |tally: &Tally| tally.failed() || interrupt::caught();
    control.slice(WARM_UP_SECS, threads, unparkers, || stop(tally));
    tally.begin();
    if let Some(kernel) = kernel.as_deref_mut() {
        kernel.run(WARM_UP_SECS).map_err(|e| e.to_string())?;
    }
    let slices = (args.secs / SLICE_SECS).ceil().max(1.0);
    for _ in 0..slices as u64 {
        let secs = control.slice(args.secs / slices, threads, unparkers, || stop(tally));
        tally.end_slice(secs);
        if stop(tally) {
            break;
        }
        if let Some(kernel) = kernel.as_deref_mut() {
            tally.kernel_slice(kernel.run(args.secs / slices).map_err(|e| e.to_string())?);
        }
        bar.inc(1);
    }
    Ok(())
}

/// A file is sent once, however long it takes; `-t` bounds the time in which nothing of it arrives.
fn send_file(args: &SpeedArgs, control: &Control, unparkers: &[Unparker], tally: &mut Tally) -> Result<(), String> {
    loop {
        let before = tally.received_bytes();
        let stop = || tally.finished() || interrupt::caught();
        let secs = control.slice(args.secs, usize::from(args.threads), unparkers, stop);
        tally.end_slice(secs);
        if tally.finished() || interrupt::caught() {
            return Ok(());
        }
        if tally.received_bytes() == before {
            return Err(format!("nothing of the file arrived within {} s (-t) after {before} bytes", args.secs));
        }
    }
}

fn progress(args: &SpeedArgs) -> indicatif::ProgressBar {
    // indicatif draws on a terminal only.
    if args.json { indicatif::ProgressBar::hidden() } else { indicatif::ProgressBar::new(args.secs.ceil() as u64) }
}

fn start_kernel(args: &SpeedArgs) -> Result<Option<KernelLoopback>, String> {
    let plan = Plan {
        test: format!("{:?}", args.test).to_lowercase(),
        len: args.len,
        flows: args.flows,
        v6: args.v6,
        trunc: args.rx == args::RxMode::Trunc,
        req: args.req_bytes(),
        resp: args.resp_bytes(),
        window: args.window,
    };
    match KernelLoopback::start(&plan) {
        Ok(kernel) => Ok(Some(kernel)),
        Err(error) => {
            crate::usage::complain(&format!("the kernel's flow did not start ({error}); --no-kernel leaves it out"));
            Ok(None)
        }
    }
}

/// The kernel's side of the report; a ratio only when it ran CUBIC, as we did.
fn kernel_side(args: &SpeedArgs, cc: &str, bits: Option<f64>, tps: Option<f64>) -> KernelSide {
    KernelSide {
        bits_per_second: bits,
        transactions_per_second: tps,
        cc: cc.to_owned(),
        rx: if args.rx == args::RxMode::Trunc { "trunc" } else { "copy" },
        write_bytes: args.len,
    }
}
