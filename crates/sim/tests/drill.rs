//! Every script of `tests/packetdrill` passes against this stack, in all variants that it asks for.
//!
//! `DRILL=recovery/` runs only the scripts whose path contains that text. `LINERATE_DRILL_LINUX=1` asks the judge as well:
//! the same scripts against the kernel of this host, in real time (root, TUN, `unshare` and python3), a few times at
//! most, since a busy host misses a script's times.

use std::path::{Path, PathBuf};

use linerate_sim::drill::{Backend, ProcessBackend, RunOptions, Summary, Verdict, drill_main, run_paths};

/// Runs of one script against the kernel before its failure counts: scripts at once, and the tolerance in microseconds.
///
/// The first pass goes beside others, since a script mostly sleeps, the later ones alone. A busy host wakes the judge late,
/// so the last passes also widen the tolerance: what is left then is a difference of order, content or timers.
const LINUX_PASSES: [(usize, u32); 4] = [(2, 4_000), (1, 4_000), (1, 12_000), (1, 40_000)];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packetdrill")
}

fn scripts() -> Vec<PathBuf> {
    let only = std::env::var("DRILL").unwrap_or_default();
    let mut files = Vec::new();
    collect(&directory(), &only, &mut files);
    files.sort();
    assert!(!files.is_empty(), "no scripts");
    files
}

fn failures(summary: &Summary) -> Vec<(PathBuf, String)> {
    let failed = |c: &linerate_sim::drill::CaseResult| match &c.report.verdict {
        Verdict::Passed => None,
        Verdict::Failed(text) | Verdict::Unsupported(text) => Some((c.path.clone(), format!("[{}] {text}", c.variant))),
    };
    summary.cases.iter().filter_map(failed).collect()
}

fn report(wrong: &[(PathBuf, String)], all: usize) {
    let texts: Vec<_> = wrong.iter().map(|(_, text)| text.as_str()).collect();
    assert!(wrong.is_empty(), "{} of {all} fail\n{}", wrong.len(), texts.join("\n"));
}

#[test]
fn all_scripts_pass() {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let summary = drill_main(&scripts(), jobs, None, &[], None, None, None).unwrap();
    report(&failures(&summary), summary.cases.len());
}

#[test]
fn all_scripts_describe_linux() {
    let required = std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all");
    if !required && std::env::var_os("LINERATE_DRILL_LINUX").is_none() {
        println!("skipped: needs LINERATE_DRILL_LINUX=1, root, TUN and python3");
        return;
    }
    let child = directory().join("linux_child.py").display().to_string();
    let command = ["unshare", "-n", "python3", &child].map(str::to_owned);
    let mut opts = RunOptions { paths: scripts(), ..RunOptions::default() };
    let mut wrong = Vec::new();
    for (jobs, tolerance_us) in LINUX_PASSES {
        opts.jobs = jobs;
        opts.options = vec![("tolerance_usecs".to_owned(), Some(tolerance_us.to_string()))];
        let summary = run_paths(&opts, |cfg| match ProcessBackend::start(&command, cfg) {
            Ok(backend) => Box::new(backend) as Box<dyn Backend>,
            Err(e) => panic!("the kernel cannot be asked: {e}"),
        });
        wrong = failures(&summary.unwrap());
        opts.paths = wrong.iter().map(|(path, _)| path.clone()).collect();
        opts.paths.dedup();
        if wrong.is_empty() {
            break;
        }
    }
    report(&wrong, scripts().len());
}

fn collect(dir: &Path, only: &str, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, only, files);
        } else if path.extension().is_some_and(|e| e == "pkt") && path.to_string_lossy().contains(only) {
            files.push(path);
        }
    }
}
