//! Every script of `tests/packetdrill` passes against this stack, in all variants that it asks for.
//!
//! `DRILL=recovery/` runs only the scripts whose path contains that text.

use std::path::Path;

use linerate_sim::drill::{Verdict, drill_main};

/// Scripts that do not pass yet, and why. A script that passes after all must leave the list.
const OPEN: &[(&str, &str)] = &[
    ("robust/urgent.pkt", "urgent data is not built"),
    ("icmp/frag_needed.pkt", "the rest of a segment that the new MTU cut is sent again at once, Linux waits"),
];

#[test]
fn all_scripts_pass() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packetdrill");
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let only = std::env::var("DRILL").unwrap_or_default();
    let mut files = Vec::new();
    collect(&dir, &only, &mut files);
    files.sort();
    assert!(!files.is_empty(), "no scripts");
    let summary = drill_main(&files, jobs, None, &[], None, None).unwrap();
    let is_open = |path: &Path| OPEN.iter().any(|(name, _)| path.ends_with(name));
    let wrong: Vec<String> = summary
        .cases
        .iter()
        .filter_map(|c| match &c.report.verdict {
            Verdict::Passed if is_open(&c.path) => Some(format!("[{}] {} passes now", c.variant, c.path.display())),
            Verdict::Passed => None,
            _ if is_open(&c.path) => None,
            Verdict::Failed(text) | Verdict::Unsupported(text) => Some(format!("[{}] {text}", c.variant)),
        })
        .collect();
    let (passed, all) = (summary.passed(), summary.cases.len());
    assert!(wrong.is_empty(), "{passed} of {all} pass\n{}", wrong.join("\n"));
}

fn collect(dir: &Path, only: &str, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, only, files);
        } else if path.extension().is_some_and(|e| e == "pkt") && path.to_string_lossy().contains(only) {
            files.push(path);
        }
    }
}
