//! Many scripts: files and directories, three variants each, in parallel, with a JUnit report.
//!
//! A case is one script in one variant. Cases share nothing: each has its own backend, made on the thread that runs it, so
//! results do not depend on `jobs`. Invariants: results come in the order of paths and variants; a panic of the stack fails
//! its case only (with unwinding); a script that cannot be parsed is one failed case. Limits: directories are walked to
//! depth [`MAX_DEPTH`]; only `*.pkt` files count. It prints nothing: `progress` may.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::backend::Backend;
use super::config::{VariantConfig, variants};
use super::parse::{parse, parse_options};
use super::run::{RunReport, Verdict, run};

/// Deepest nesting of script directories.
const MAX_DEPTH: usize = 16;

/// What to run and how.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Files and directories.
    pub paths: Vec<PathBuf>,
    /// Threads; 0 = 1.
    pub jobs: usize,
    /// Command-line options `--name[=value]` (they win over the scripts').
    pub options: Vec<(String, Option<String>)>,
    /// Only this variant, if given.
    pub variant: Option<String>,
    /// Called after each case, on the thread that ran it.
    pub progress: Option<fn(&CaseResult)>,
    /// Asked before each case: true leaves it and all that follow out.
    pub stop: Option<fn() -> bool>,
}

/// One script in one variant.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The script.
    pub path: PathBuf,
    /// The variant's name; empty if the script could not be read.
    pub variant: &'static str,
    /// How it went.
    pub report: RunReport,
    /// Real time it took.
    pub wall: std::time::Duration,
}

/// All results.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// In the order of paths and variants.
    pub cases: Vec<CaseResult>,
}

impl Summary {
    fn count(&self, of: impl Fn(&Verdict) -> bool) -> usize {
        self.cases.iter().filter(|c| of(&c.report.verdict)).count()
    }
    /// Cases that passed.
    pub fn passed(&self) -> usize {
        self.count(|v| *v == Verdict::Passed)
    }
    /// Cases that failed.
    pub fn failed(&self) -> usize {
        self.count(|v| matches!(v, Verdict::Failed(_)))
    }
    /// Cases that use what this runner lacks.
    pub fn unsupported(&self) -> usize {
        self.count(|v| matches!(v, Verdict::Unsupported(_)))
    }
    /// The report in JUnit's XML, one suite.
    pub fn junit(&self) -> String {
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let seconds: f64 = self.cases.iter().map(|c| c.wall.as_secs_f64()).sum();
        let (all, failed, skipped) = (self.cases.len(), self.failed(), self.unsupported());
        out += &format!(
            "<testsuite name=\"packetdrill\" tests=\"{all}\" failures=\"{failed}\" skipped=\"{skipped}\" time=\"{seconds:.3}\">\n"
        );
        for c in &self.cases {
            let name = escape(&c.path.display().to_string());
            let time = c.wall.as_secs_f64();
            out += &format!("  <testcase classname=\"{name}\" name=\"{}\" time=\"{time:.3}\">", c.variant);
            match &c.report.verdict {
                Verdict::Passed => {}
                Verdict::Failed(text) => {
                    let first = escape(text.lines().next().unwrap_or(""));
                    out += &format!("<failure message=\"{first}\">{}</failure>", escape(text));
                }
                Verdict::Unsupported(text) => out += &format!("<skipped message=\"{}\"/>", escape(text)),
            }
            out += "</testcase>\n";
        }
        out + "</testsuite>\n"
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' => out += "&#10;",
            c if c.is_control() && c != '\t' => out += "?",
            c => out.push(c),
        }
    }
    out
}

fn collect(path: &Path, depth: usize, out: &mut Vec<PathBuf>) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other(format!("{}: directories are nested too deeply", path.display())));
    }
    if !path.is_dir() {
        std::fs::metadata(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        out.push(path.to_owned());
        return Ok(());
    }
    let mut entries = std::fs::read_dir(path)
        .and_then(Iterator::collect::<io::Result<Vec<_>>>)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let child = entry.path();
        if child.is_dir() || child.extension().is_some_and(|e| e == "pkt") {
            collect(&child, depth + 1, out)?;
        }
    }
    Ok(())
}

struct Case {
    path: PathBuf,
    src: String,
    /// `None`: the script's options could not be read; the text says why.
    config: Result<VariantConfig, String>,
}

fn cases_of(path: &Path, opts: &RunOptions) -> Vec<Case> {
    let shown = path.display();
    let broken = |text: String| vec![Case { path: path.to_owned(), src: String::new(), config: Err(text) }];
    let src = match std::fs::read_to_string(path) {
        Ok(src) => src,
        Err(e) => return broken(format!("{shown}: {e}")),
    };
    let own = match parse_options(&src) {
        Ok(own) => own,
        Err(e) => return broken(format!("{shown}:{}:{}: {}", e.pos.line, e.pos.col, e.text)),
    };
    let own = own.into_iter().map(|o| (Some(o.pos), o.name, o.value));
    let given = opts.options.iter().map(|(n, v)| (None, n.clone(), v.clone()));
    let all: Vec<_> = own.chain(given).collect();
    let only = all.iter().rfind(|(_, n, _)| n == "ip_version").and_then(|(_, _, v)| v.clone());
    let mut out = Vec::new();
    for mut cfg in variants() {
        if only.as_deref().is_some_and(|v| !cfg.is_version(v)) || opts.variant.as_deref().is_some_and(|v| v != cfg.name)
        {
            continue;
        }
        let applied = all.iter().try_for_each(|(pos, name, value)| {
            let place = pos.map_or(String::from("command line"), |p| format!("{shown}:{}:{}", p.line, p.col));
            cfg.set(name, value.as_deref()).map_err(|e| format!("{place}: {e}"))
        });
        let config = applied.and_then(|()| cfg.check()).map(|()| cfg);
        out.push(Case { path: path.to_owned(), src: src.clone(), config });
    }
    out
}

fn run_case(case: &Case, make_backend: &(impl Fn(&VariantConfig) -> Box<dyn Backend> + Sync)) -> CaseResult {
    let begun = std::time::Instant::now();
    let failed = |text: String| RunReport { verdict: Verdict::Failed(text), warnings: Vec::new(), virtual_us: 0 };
    let path = case.path.display().to_string();
    let (variant, report) = match &case.config {
        Err(text) => ("", failed(text.clone())),
        Ok(cfg) => match parse(&case.src, &cfg.defines) {
            Err(e) => (cfg.name, failed(format!("{path}:{}:{}: {}", e.pos.line, e.pos.col, e.text))),
            Ok(_) if cfg.dry_run => {
                (cfg.name, RunReport { verdict: Verdict::Passed, warnings: Vec::new(), virtual_us: 0 })
            }
            Ok(script) => {
                let whole = AssertUnwindSafe(|| run(&path, &script, cfg, make_backend(cfg)));
                let report = catch_unwind(whole).unwrap_or_else(|panic| {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                    failed(format!("{path}: the stack panicked: {}", text.unwrap_or_default()))
                });
                (cfg.name, report)
            }
        },
    };
    CaseResult { path: case.path.clone(), variant, report, wall: begun.elapsed() }
}

/// Runs all scripts in all their variants.
///
/// # Errors
/// A path that does not exist or a directory that cannot be read. A script that fails is no error: see [`Summary`].
pub fn run_paths(
    opts: &RunOptions,
    make_backend: impl Fn(&VariantConfig) -> Box<dyn Backend> + Sync,
) -> io::Result<Summary> {
    let mut files = Vec::new();
    for path in &opts.paths {
        collect(path, 0, &mut files)?;
    }
    let cases: Vec<Case> = files.iter().flat_map(|f| cases_of(f, opts)).collect();
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<CaseResult>>> = Mutex::new(vec![None; cases.len()]);
    std::thread::scope(|scope| {
        for _ in 0..opts.jobs.clamp(1, cases.len().max(1)) {
            scope.spawn(|| {
                while let Some((at, case)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, cases.get(n)?)))
                {
                    if opts.stop.is_some_and(|stop| stop()) {
                        return;
                    }
                    let result = run_case(case, &make_backend);
                    if let Some(show) = opts.progress {
                        show(&result);
                    }
                    let mut all = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    all[at] = Some(result);
                }
            });
        }
    });
    let all = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(Summary { cases: all.into_iter().flatten().collect() })
}

#[cfg(test)]
mod tests;
