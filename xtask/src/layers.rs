//! The layer rule: imports go strictly down, and who may use `unsafe` or the standard library.
//!
//! Each directory of `crates/` has a level; a crate depends only on crates of strictly lower levels (dev-dependencies
//! are exempt, since a test may look anywhere). Levels up to [`NOSTD_UP_TO`] say `#![no_std]` and reach `std` only in
//! tests. `allow(unsafe_code)` stands only in the crates of [`UNSAFE_IN`] and in integration tests (a counting allocator
//! can not be written without), and every crate inherits the workspace's lints, without which the rule would be paper.
//!
//! The manifests are read line by line: this workspace writes a dependency on one line or as a table of its own, and
//! anything else fails the check instead of slipping through `cargo`'s eyes (a directory that has no level does, too).

use std::fs;
use std::path::{Path, PathBuf};

use crate::scan;
use crate::steps::Outcome;

/// The level of each directory of `crates/`.
const LEVELS: &[(&str, u8)] = &[
    ("arch", 0),
    ("base", 0),
    ("wire", 1),
    ("cong", 1),
    ("skb", 2),
    ("offload", 3),
    ("tcp", 3),
    ("record", 3),
    ("netdev", 3),
    ("stack", 4),
    ("softnic", 4),
    ("posix", 5),
    ("host", 5),
    ("crypto", 5),
    ("sim", 6),
    ("linerate", 6),
    ("capi", 7),
    ("ctl", 7),
    ("lab", 7),
    ("cli", 8),
];

/// The highest level that has no standard library.
const NOSTD_UP_TO: u8 = 4;

/// The crates that may use `unsafe`.
const UNSAFE_IN: &[&str] = &["arch", "skb", "host", "capi", "probe"];

fn level(dir: &str) -> Option<u8> {
    LEVELS.iter().find(|(name, _)| *name == dir).map(|&(_, level)| level)
}

/// The package in `crates/DIR`.
pub(crate) fn package_name(dir: &str) -> String {
    if dir == "linerate" { dir.into() } else { format!("linerate-{dir}") }
}

/// The directory of a package of ours; `None` for others.
fn dir_of(package: &str) -> Option<&str> {
    if package == "linerate" { Some(package) } else { package.strip_prefix("linerate-") }
}

/// The directories of `crates/` that hold a package, sorted.
pub(crate) fn crate_dirs(root: &Path) -> Result<Vec<String>, String> {
    let crates = root.join("crates");
    let entries = fs::read_dir(&crates).map_err(|e| format!("{}: {e}", crates.display()))?;
    let mut dirs: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    dirs.sort();
    Ok(dirs)
}

/// The directories of the crates without a standard library.
pub(crate) fn nostd_dirs(root: &Path) -> Vec<String> {
    let mut dirs = crate_dirs(root).unwrap_or_default();
    dirs.retain(|dir| level(dir).is_some_and(|level| level <= NOSTD_UP_TO));
    dirs
}

/// All Rust files below `dir`, sorted. An absent directory has none.
pub(crate) fn rust_files(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry.map_err(|e| format!("{}: {e}", dir.display()))?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The step.
pub(crate) fn check(root: &Path) -> Outcome {
    let dirs = crate_dirs(root)?;
    let mut wrong = Vec::new();
    for dir in &dirs {
        let path = root.join("crates").join(dir);
        let manifest = fs::read_to_string(path.join("Cargo.toml")).map_err(|e| format!("{dir}/Cargo.toml: {e}"))?;
        wrong.extend(check_manifest(dir, &manifest));
        for file in rust_files(&path)? {
            let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let place = match file.strip_prefix(&path) {
                Ok(inside) if inside == Path::new("src/lib.rs") => Place::Root,
                Ok(inside) if inside.starts_with("tests") => Place::Test,
                _ => Place::Module,
            };
            let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            wrong.extend(check_source(dir, place, &text).into_iter().map(|what| format!("{name}: {what}")));
        }
    }
    if wrong.is_empty() { Ok(format!("{} crates", dirs.len())) } else { Err(wrong.join("\n")) }
}

fn check_manifest(dir: &str, manifest: &str) -> Vec<String> {
    let Some(own) = level(dir) else {
        return vec![format!("crates/{dir} has no level: give it one in xtask/src/layers.rs")];
    };
    let mut wrong = Vec::new();
    for package in dependencies(manifest) {
        let Some(other) = dir_of(&package) else { continue };
        match level(other) {
            Some(lower) if lower < own => {}
            Some(level) => {
                wrong.push(format!("crates/{dir} (L{own}) depends on {package} (L{level}), which is not below"))
            }
            None => wrong.push(format!("crates/{dir} depends on {package}, which has no level")),
        }
    }
    if !inherits_lints(manifest) {
        wrong.push(format!("crates/{dir}/Cargo.toml does not inherit the workspace's lints"));
    }
    wrong
}

fn inherits_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    lines.find(|line| !line.is_empty()) == Some("workspace = true")
}

/// The packages that a manifest depends on to build, dev-dependencies left out.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut section = "";
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = header;
            if let Some((table, name)) = header.rsplit_once("dependencies.")
                && counts(&format!("{table}dependencies"))
            {
                found.push(name.trim_matches('"').to_string());
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else { continue };
        let in_table =
            section.rsplit_once("dependencies.").is_some_and(|(table, _)| counts(&format!("{table}dependencies")));
        if !in_table && !counts(section) {
            continue;
        }
        // A renamed dependency says which package it is.
        if let Some(package) = renamed(key, value, in_table) {
            found.push(package);
        } else if !in_table {
            found.push(key.trim().split('.').next().unwrap_or_default().trim_matches('"').to_string());
        }
    }
    found
}

/// Whether a table of this name holds dependencies of the build.
fn counts(section: &str) -> bool {
    let kind = section.rsplit('.').next().unwrap_or_default();
    matches!(kind, "dependencies" | "build-dependencies")
}

fn renamed(key: &str, value: &str, in_table: bool) -> Option<String> {
    let quoted = if in_table && key.trim() == "package" {
        value
    } else {
        let (_, after) = value.split_once("package")?;
        after.trim_start().strip_prefix('=')?
    };
    quoted.split('"').nth(1).map(String::from)
}

/// Where a source file stands in its crate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// `src/lib.rs`.
    Root,
    /// Any other file of the crate.
    Module,
    /// An integration test: a crate of its own, never shipped.
    Test,
}

fn check_source(dir: &str, place: Place, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let code = scan::mask(text);
    if !UNSAFE_IN.contains(&dir) && place != Place::Test {
        for (number, line) in code.lines().enumerate() {
            let line: String = line.split_whitespace().collect();
            if ["allow(", "expect(", "warn("].iter().any(|lint| line.contains(&format!("{lint}unsafe_code"))) {
                wrong.push(format!("{}: only {} may use unsafe", number + 1, UNSAFE_IN.join(", ")));
            }
        }
    }
    if level(dir).is_some_and(|level| level <= NOSTD_UP_TO) {
        if place == Place::Root && !code.lines().any(|line| line.trim() == "#![no_std]") {
            wrong.push("L0-L4 say #![no_std]".into());
        }
        let lines: Vec<&str> = code.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let guarded = at > 0
                && lines[at - 1].starts_with("#[cfg(")
                && ["test", "loom"].iter().any(|w| lines[at - 1].contains(w));
            if line.contains("extern crate std") && !guarded {
                wrong.push(format!("{}: L0-L4 reach std only under cfg(test) or cfg(loom)", at + 1));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    #[test]
    fn dependencies_are_found_however_they_are_written() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\nlinerate-base.workspace = true\n# linerate-cli = 1\nloom = \"1\"\n\
                        other = { package = \"linerate-stack\", path = \"y\" }\n[dependencies.linerate-tcp]\npath = \"z\"\n\
                        [dev-dependencies]\nlinerate-cli.workspace = true\n[target.'cfg(unix)'.dependencies]\nlinerate-skb = \"1\"\n\
                        [dependencies.short]\npackage = \"linerate-sim\"\n[dev-dependencies.linerate-lab]\npath = \"q\"\n\
                        [build-dependencies]\ncc = \"1\"\n[features]\nlinerate-x = []\n";
        assert_eq!(
            dependencies(manifest),
            ["linerate-base", "loom", "linerate-stack", "linerate-tcp", "linerate-skb", "short", "linerate-sim", "cc"]
        );
    }

    #[test]
    fn only_strictly_lower_levels_may_be_used() {
        let uses = |name: &str| format!("{LINTS}[dependencies]\n{name}.workspace = true\n");
        assert_eq!(check_manifest("tcp", &uses("linerate-skb")), Vec::<String>::new());
        assert_eq!(check_manifest("cli", &uses("linerate")), Vec::<String>::new());
        assert_eq!(check_manifest("tcp", &uses("linerate-stack")).len(), 1, "upward");
        assert_eq!(check_manifest("tcp", &uses("linerate-offload")).len(), 1, "sideways");
        assert_eq!(check_manifest("tcp", &uses("linerate-nothing")).len(), 1, "unknown");
        assert_eq!(check_manifest("nothing", &uses("linerate-base")).len(), 1, "no level");
        assert_eq!(check_manifest("tcp", "[dependencies]\n").len(), 1, "no lints");
        assert_eq!(check_manifest("tcp", "[lints]\n[dependencies]\nworkspace = true\n").len(), 1, "lints of its own");
    }

    #[test]
    fn unsafe_and_std_stay_where_they_belong() {
        assert_eq!(check_source("tcp", Place::Module, "#![allow(unsafe_code)]\n").len(), 1);
        assert_eq!(check_source("tcp", Place::Module, "#[expect( unsafe_code )]\nfn f() {}").len(), 1);
        assert!(check_source("tcp", Place::Module, "// allow(unsafe_code)\n").is_empty());
        assert!(check_source("skb", Place::Module, "#![allow(unsafe_code)]\n").is_empty());
        assert!(check_source("tcp", Place::Test, "#![allow(unsafe_code)]\n").is_empty());
        assert_eq!(check_source("tcp", Place::Root, "//! #![no_std]\n").len(), 1);
        assert!(check_source("tcp", Place::Root, "#![no_std]\n#[cfg(test)]\nextern crate std;\n").is_empty());
        assert_eq!(check_source("tcp", Place::Root, "#![no_std]\nextern crate std;\n").len(), 1);
        assert!(check_source("cli", Place::Root, "use std::fs;\n").is_empty());
    }

    #[test]
    fn packages_and_directories_name_each_other() {
        for (dir, _) in LEVELS {
            assert_eq!(dir_of(&package_name(dir)), Some(*dir));
        }
        assert_eq!(dir_of("serde"), None);
    }
}
