//! `linerate drill`: scripts against this stack, with a report.
//!
//! The command's work without its flags: run files and directories in all variants (or one), in parallel, optionally write
//! JUnit XML. A script that fails is part of the [`Summary`], not an error; an error is a path that cannot be read or a
//! report that cannot be written. It prints nothing itself: `progress` may. `stop` ends it early.

use std::path::{Path, PathBuf};

use super::backend::Backend;
use super::config::VariantConfig;
use super::paths::{CaseResult, RunOptions, Summary, run_paths};
use super::posix_backend::PosixBackend;

fn backend(cfg: &VariantConfig) -> Box<dyn Backend> {
    match PosixBackend::new(cfg) {
        Ok(backend) => Box::new(backend),
        // Reported as the failure of its case.
        Err(text) => panic!("{text}"),
    }
}

/// Runs scripts as `linerate drill PATH... [-jN] [--junit FILE] [-D NAME=VALUE]...` does.
///
/// # Errors
/// A path that cannot be read, a definition without `=`, or a report that cannot be written.
pub fn drill_main(
    paths: &[PathBuf],
    jobs: usize,
    junit: Option<&Path>,
    defines: &[String],
    variant: Option<&str>,
    progress: Option<fn(&CaseResult)>,
    stop: Option<fn() -> bool>,
) -> Result<Summary, String> {
    if let Some(bad) = defines.iter().find(|d| !d.contains('=')) {
        return Err(format!("-D {bad}: expected NAME=VALUE"));
    }
    let options = defines.iter().map(|d| ("define".to_owned(), Some(d.clone()))).collect();
    let opts = RunOptions { paths: paths.to_vec(), jobs, options, variant: variant.map(str::to_owned), progress, stop };
    let summary = run_paths(&opts, backend).map_err(|e| e.to_string())?;
    if let Some(file) = junit {
        std::fs::write(file, summary.junit()).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(summary)
}
