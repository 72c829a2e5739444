//! The steps of the gate and the loop that runs them.
//!
//! A step is a function from the repository's root to a note (what was checked) or a failure (what is wrong and where).
//! Steps are ordered from quick to slow, are independent of each other and change nothing but build directories. The
//! output of a child process is kept and shown only when it failed, so that a green run is one line a step.
//!
//! Not here: what a step needs to be installed. `.ci/run` does that.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::{layers, tidy};

/// A note for the step's line, or everything that is wrong.
pub(crate) type Outcome = Result<String, String>;

/// A step of the gate.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    run: fn(&Path) -> Outcome,
}

/// The whole gate.
pub(crate) const ALL: &[Step] = &[
    Step { name: "fmt", run: fmt },
    Step { name: "layers", run: layers::check },
    Step { name: "tidy", run: tidy::check },
    Step { name: "nostd", run: nostd },
    Step { name: "clippy", run: clippy },
    Step { name: "test", run: test },
    Step { name: "loom", run: loom },
    Step { name: "doc", run: doc },
];

/// The target without a standard library that L0-L4 are compiled for.
const NOSTD_TARGET: &str = "x86_64-unknown-none";

/// Lines of a failed command that are shown: the end is where compilers and tests say what is wrong.
const SHOWN_LINES: usize = 400;

/// Runs `steps` in order; true when none failed.
pub(crate) fn run(root: &Path, steps: &[Step]) -> bool {
    let start = Instant::now();
    let mut failed = Vec::new();
    for step in steps {
        print!("{:<8}", step.name);
        // Whoever waits for a slow step should see which one it is.
        let _ = std::io::stdout().flush();
        let began = Instant::now();
        let outcome = (step.run)(root);
        let secs = began.elapsed().as_secs_f64();
        match outcome {
            Ok(note) => println!("ok   {secs:7.1} s  {note}"),
            Err(message) => {
                println!("FAIL {secs:7.1} s\n{}", message.trim_end());
                failed.push(step.name);
            }
        }
    }
    let secs = start.elapsed().as_secs_f64();
    if failed.is_empty() {
        println!("all {} steps passed in {secs:.1} s", steps.len());
    } else {
        println!("{} of {} steps failed in {secs:.1} s: {}", failed.len(), steps.len(), failed.join(" "));
    }
    failed.is_empty()
}

/// Whether something this machine lacks is a failure instead of a skip.
fn require_all() -> bool {
    std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all")
}

pub(crate) fn lacking(what: &str, remedy: &str) -> Outcome {
    if require_all() {
        Err(format!("{what}, and LINERATE_REQUIRE=all. {remedy}"))
    } else {
        Ok(format!("skipped: {what} ({remedy})"))
    }
}

/// Cargo, in the repository's root.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    // Set for this process by the cargo that runs it; a child compiling other packages must not see them.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        command.env_remove(name);
    }
    command
}

/// Runs `command` and returns its standard output, or the end of all that it printed when it failed.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let shown = shown(command);
    let out = command.output().map_err(|e| format!("{shown}: {e}"))?;
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(stdout);
    }
    let all = format!("{}{stdout}", String::from_utf8_lossy(&out.stderr));
    let lines: Vec<&str> = all.lines().filter(|line| !is_well(line)).collect();
    let from = lines.len().saturating_sub(SHOWN_LINES);
    Err(format!("{shown}: {}\n{}", out.status, lines[from..].join("\n")))
}

/// A line of a failed command that only says that something else went well: it would push out what did not.
fn is_well(line: &str) -> bool {
    const STEPS: [&str; 5] = ["Compiling ", "Checking ", "Running ", "Documenting ", "Doc-tests "];
    let line = line.trim();
    let test = line.starts_with("test ") && line.ends_with(" ok");
    let summary = line.starts_with("running ") || line.starts_with("test result: ok");
    line.is_empty() || test || summary || STEPS.iter().any(|step| line.starts_with(step))
}

/// Where cargo builds.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    let dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root.join(dir)
}

/// A command as one would type it, without the environment that cargo set for us.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn fmt(root: &Path) -> Outcome {
    output(cargo(root).args(["fmt", "--all", "--check"]))?;
    Ok(String::new())
}

fn clippy(root: &Path) -> Outcome {
    output(cargo(root).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(String::new())
}

fn test(root: &Path) -> Outcome {
    let mut command = cargo(root);
    command.args(["test", "--workspace", "--no-fail-fast"]);
    tests_note(&output(&mut command)?)
}

/// Adds up the summaries that `cargo test` prints per binary.
fn tests_note(stdout: &str) -> Outcome {
    let mut counts = [("passed", 0_u64), ("ignored", 0)];
    for line in stdout.lines().filter_map(|line| line.strip_prefix("test result: ok. ")) {
        for part in line.split("; ") {
            let Some((number, word)) = part.split_once(' ') else { continue };
            if let Some(count) = counts.iter_mut().find(|(name, _)| *name == word) {
                count.1 += number.parse::<u64>().map_err(|e| format!("'{line}': {e}"))?;
            }
        }
    }
    let [(_, passed), (_, ignored)] = counts;
    if passed == 0 {
        return Err("no test ran".into());
    }
    Ok(if ignored == 0 { format!("{passed} tests") } else { format!("{passed} tests, {ignored} ignored") })
}

fn doc(root: &Path) -> Outcome {
    output(cargo(root).env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--workspace", "--no-deps"]))?;
    Ok(String::new())
}

/// Builds L0-L4 for a target that has no standard library.
fn nostd(root: &Path) -> Outcome {
    let sysroot = output(Command::new("rustc").current_dir(root).args(["--print", "sysroot"]))?;
    if !Path::new(sysroot.trim()).join("lib/rustlib").join(NOSTD_TARGET).is_dir() {
        let remedy = format!("rustup target add {NOSTD_TARGET}");
        return lacking(&format!("target {NOSTD_TARGET} is not installed"), &remedy);
    }
    let packages: Vec<String> =
        layers::nostd_dirs(root).iter().map(|dir| format!("--package=linerate-{dir}")).collect();
    output(cargo(root).args(["check", "--target", NOSTD_TARGET]).args(&packages))?;
    Ok(format!("{} crates for {NOSTD_TARGET}", packages.len()))
}

/// Runs the model checks of every crate that has some.
fn loom(root: &Path) -> Outcome {
    let mut notes = Vec::new();
    for dir in layers::crate_dirs(root)? {
        if !has_loom_tests(&root.join("crates").join(&dir).join("src"))? {
            continue;
        }
        let package = layers::package_name(&dir);
        let mut command = cargo(root);
        // Optimised, since a model check runs the code some hundred thousand times; but not the shipping profile, whose
        // link-time optimisation would take longer than the checks. Assertions stay on.
        command
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", target_dir(root).join("loom"))
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
            .args(["test", "--release", "--lib", "--package", &package, "loom"]);
        notes.push(format!("{package} {}", tests_note(&output(&mut command)?)?));
    }
    if notes.is_empty() { Err("no crate has loom tests".into()) } else { Ok(notes.join(", ")) }
}

fn has_loom_tests(src: &Path) -> Result<bool, String> {
    for file in layers::rust_files(src)? {
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        if text.contains("loom::model") {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_summaries_are_added_up() {
        let text = "running 2 tests\ntest result: ok. 24 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                    finished in 0.16s\n\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; x";
        assert_eq!(tests_note(text).unwrap(), "27 tests, 1 ignored");
        assert!(tests_note("test result: ok. 0 passed; 0 failed; 0 ignored").is_err());
        assert!(tests_note("").is_err());
    }

    #[test]
    fn a_failed_command_shows_what_it_said() {
        assert_eq!(output(Command::new("sh").args(["-c", "echo good"])).unwrap(), "good\n");
        let message = output(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"])).unwrap_err();
        assert!(message.contains("one") && message.contains("two") && message.contains('3'), "{message}");
        assert!(output(&mut Command::new("no-such-program-here")).is_err());
    }

    #[test]
    fn what_went_well_is_left_out_of_a_failure() {
        for well in ["test a::b ... ok", "running 3 tests", "test result: ok. 3 passed", "", "   Compiling x v0.1.0"] {
            assert!(is_well(well), "{well}");
        }
        for ill in ["test a::b ... FAILED", "test result: FAILED. 1 passed", "thread 'x' panicked at y", "error: no"] {
            assert!(!is_well(ill), "{ill}");
        }
    }

    #[test]
    fn steps_have_distinct_names() {
        for (i, step) in ALL.iter().enumerate() {
            assert!(ALL[..i].iter().all(|other| other.name != step.name));
        }
    }
}
