//! Linerate against the Linux kernel in real time: `goodput` and `soak`.
//!
//! Both are verbs of the program in `benches/linux`, which is built here in the release profile and given the words that
//! follow the verb; its `--help` is its message of bad usage. Its output is passed through, and so is its verdict, except
//! that a host without TUN or user namespaces (status 3) is a skip, or a failure under `LINERATE_REQUIRE=all`.
//! Not part of the gate: a short form of each is a test of that package.

use std::path::Path;
use std::process::Command;

use crate::steps::{Outcome, cargo, lacking, output, target_dir};

/// The program's status when the host lacks something.
const LACKING: i32 = 3;

/// The verbs.
pub(crate) const VERBS: [&str; 2] = ["goodput", "soak"];

/// Runs `verb` with `args`.
pub(crate) fn run(root: &Path, verb: &str, args: &[&str]) -> Outcome {
    output(cargo(root).args(["build", "--release", "-p", "linerate-linux"]))?;
    let program = target_dir(root).join("release").join("linerate-linux");
    let status = Command::new(&program).arg(verb).args(args).status();
    let status = status.map_err(|e| format!("{}: {e}", program.display()))?;
    match status.code() {
        Some(0) => Ok(String::new()),
        Some(LACKING) => lacking(&format!("{verb} needs TUN and user namespaces"), "see the message above"),
        _ => Err(format!("{verb}: {status}")),
    }
}
