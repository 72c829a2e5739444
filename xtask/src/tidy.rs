//! Small places and clean files: what a compiler does not check but a reader feels.
//!
//! Over all files that git knows or would add: a file has at most 800 lines without tests (a warning above, a failure
//! above 1000), a function at most 100 code lines (clippy warns above 70 already), a module over 60 lines opens with a
//! `//!` head of at least 5. No word from the list of banned synonyms, no path of somebody's machine, no tab, no space
//! at the end of a line, no relative link that leads nowhere.
//!
//! Warnings are part of the step's note and do not fail it. Code of tests is held only to the rules of clean text.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::scan;
use crate::steps::{Outcome, output};

const FILE_LINES_WARN: usize = 800;
const FILE_LINES_MAX: usize = 1_000;
const FUNCTION_LINES_MAX: usize = 100;
/// A module longer than this explains itself first.
const HEAD_FROM_LINES: usize = 60;
const HEAD_LINES_MIN: usize = 5;

/// Text that may stand nowhere, and why. Written in two pieces, so that this file may say it.
const BANNED: &[(&str, &str)] = &[
    (concat!("mb", "uf"), "it is an skb"),
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
];

/// Names that count something without saying what: a super-packet is both 1 and 45.
const BANNED_NAMES: &[&str] = &["packets", "num_packets", "n_packets", "packet_count", "rx_packets", "tx_packets"];

/// Kinds of files that are text of ours.
const TEXT: &[&str] = &["rs", "toml", "md", "yml", "yaml", "sh", "pkt", "json", "h", "c", "txt", ""];

#[derive(Default)]
struct Findings {
    wrong: Vec<String>,
    warnings: Vec<String>,
}

/// The step.
pub(crate) fn check(root: &Path) -> Outcome {
    let mut list = Command::new("git");
    list.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let mut found = Findings::default();
    let mut files = 0;
    for name in output(&mut list)?.split('\0').filter(|name| is_ours(name)) {
        // A file that was deleted but not yet committed is still listed.
        let Ok(bytes) = fs::read(root.join(name)) else { continue };
        let Ok(text) = String::from_utf8(bytes) else {
            found.wrong.push(format!("{name}: not UTF-8"));
            continue;
        };
        files += 1;
        check_text(name, &text, &mut found);
        if name.ends_with(".rs") {
            check_rust(name, &text, &mut found);
        } else if name.ends_with(".md") {
            let dir = root.join(name).parent().map(Path::to_path_buf).unwrap_or_default();
            for target in dead_links(&text, |target| dir.join(target).exists()) {
                found.wrong.push(format!("{name}: the link to {target} leads nowhere"));
            }
        }
    }
    if !found.wrong.is_empty() {
        return Err(found.wrong.join("\n"));
    }
    let mut note = format!("{files} files");
    for warning in found.warnings {
        note.push_str(&format!("\n        warning: {warning}"));
    }
    Ok(note)
}

fn is_ours(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let kind = file.rsplit_once('.').map_or("", |(_, kind)| kind);
    TEXT.contains(&kind) && !file.starts_with("LICENSE")
}

fn check_text(name: &str, text: &str, found: &mut Findings) {
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        for (banned, why) in BANNED {
            if line.to_ascii_lowercase().contains(banned) {
                found.wrong.push(format!("{name}:{number}: '{banned}': {why}"));
            }
        }
        if line.ends_with([' ', '\t', '\r']) {
            found.wrong.push(format!("{name}:{number}: space at the end of the line"));
        } else if line.contains('\t') {
            found.wrong.push(format!("{name}:{number}: a tab"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        found.wrong.push(format!("{name}: no newline at the end"));
    }
}

/// Whether a Rust file is all test or bench.
fn is_test_file(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    file == "tests.rs"
        || file.ends_with("_tests.rs")
        || file.starts_with("test_")
        || file.contains("loom")
        || ["/tests/", "_tests/", "/benches/", "/examples/", "fuzz/"].iter().any(|dir| name.contains(dir))
        || name.starts_with("tests/")
}

fn check_rust(name: &str, text: &str, found: &mut Findings) {
    if is_test_file(name) {
        return;
    }
    let code = scan::mask(text);
    let tests = scan::test_lines(&code);
    let lines = tests.iter().filter(|&&test| !test).count();
    if lines > FILE_LINES_MAX {
        found.wrong.push(format!("{name}: {lines} lines without tests, more than {FILE_LINES_MAX}"));
    } else if lines > FILE_LINES_WARN {
        found.warnings.push(format!("{name}: {lines} lines without tests, more than {FILE_LINES_WARN}"));
    }
    let head = head_lines(text);
    if lines > HEAD_FROM_LINES && head < HEAD_LINES_MIN {
        found.wrong.push(format!("{name}: the head has {head} lines of //!, fewer than {HEAD_LINES_MIN}"));
    }
    for function in scan::functions(&code) {
        if function.code_lines > FUNCTION_LINES_MAX {
            let scan::Function { name: function, line, code_lines } = function;
            found
                .wrong
                .push(format!("{name}:{line}: fn {function} has {code_lines} lines, more than {FUNCTION_LINES_MAX}"));
        }
    }
    for (number, line) in code.lines().enumerate().filter(|(number, _)| tests.get(*number) == Some(&false)) {
        for word in line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| BANNED_NAMES.contains(word)) {
            found
                .wrong
                .push(format!("{name}:{}: '{word}' does not say whether it counts skbs or wire_pkts", number + 1));
        }
    }
}

/// The number of `//!` lines before the first line of code.
fn head_lines(text: &str) -> usize {
    let head = text
        .lines()
        .map(str::trim)
        .take_while(|line| line.is_empty() || line.starts_with("//") || line.starts_with("#!["));
    head.filter(|line| line.starts_with("//!")).count()
}

/// The relative targets of Markdown links for which `exists` says no. Code blocks and code spans are not looked at.
fn dead_links(text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut dead = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Every second piece between backticks is code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for (at, _) in prose.match_indices("](") {
            let rest = &prose[at + 2..];
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            let path = target.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !elsewhere && !path.is_empty() && !exists(path) {
                dead.push(path.to_string());
            }
        }
    }
    dead
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(name: &str, text: &str) -> Findings {
        let mut found = Findings::default();
        check_rust(name, text, &mut found);
        found
    }

    fn wrong_text(text: &str) -> usize {
        let mut found = Findings::default();
        check_text("x.md", text, &mut found);
        found.wrong.len()
    }

    #[test]
    fn long_files_are_found_and_tests_are_free() {
        let head = "//! 1\n//! 2\n//! 3\n//! 4\n//! 5\n";
        let file = |lines: usize| format!("{head}{}", "static A: u8 = 1;\n".repeat(lines));
        assert!(rust("a/src/x.rs", &file(700)).warnings.is_empty());
        assert_eq!(rust("a/src/x.rs", &file(900)).warnings.len(), 1);
        assert_eq!(rust("a/src/x.rs", &file(1_100)).wrong.len(), 1);
        assert!(rust("a/src/x/tests.rs", &file(1_100)).wrong.is_empty());
        let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", file(700), "const B: u8 = 1;\n".repeat(900));
        let found = rust("a/src/x.rs", &tested);
        assert!(found.wrong.is_empty() && found.warnings.is_empty());
    }

    #[test]
    fn modules_explain_themselves() {
        let body = "static A: u8 = 1;\n".repeat(100);
        assert_eq!(rust("a/src/x.rs", &format!("//! Short.\n{body}")).wrong.len(), 1);
        assert!(rust("a/src/x.rs", &format!("//!\n//!\n//!\n//!\n//! x\n#![no_std]\n{body}")).wrong.is_empty());
        assert!(rust("a/src/x.rs", "//! Short.\nfn f() {}\n").wrong.is_empty());
    }

    #[test]
    fn long_functions_and_vague_names_are_found() {
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines));
        assert!(!rust("a/src/x.rs", &function(101)).wrong.iter().all(|w| !w.contains("fn f has 101")));
        assert!(rust("a/src/x.rs", &function(100)).wrong.iter().all(|w| !w.contains("fn f")));
        let name = BANNED_NAMES[0];
        assert_eq!(rust("a/src/x.rs", &format!("let {name} = 1;\n")).wrong.len(), 1);
        assert!(rust("a/src/x.rs", &format!("// all {name}\nlet {name}_free = 1;\n")).wrong.is_empty());
    }

    #[test]
    fn text_is_clean() {
        assert_eq!(wrong_text("good\n"), 0);
        assert_eq!(wrong_text("no newline"), 1);
        assert_eq!(wrong_text("space \n"), 1);
        assert_eq!(wrong_text("a\tb\n"), 1);
        for (banned, _) in BANNED {
            assert_eq!(wrong_text(&format!("an {banned} here\n")), 1, "{banned}");
        }
    }

    #[test]
    fn dead_links_are_found_outside_code() {
        let text = "[a](here.md) [b](gone.md#x) [c](https://x/y) [d](#top) `[e](code.md)`\n```\n[f](fence.md)\n```\n[g](dir/gone.md \"t\")\n";
        assert_eq!(dead_links(text, |path| path == "here.md"), ["gone.md", "dir/gone.md"]);
    }

    #[test]
    fn generated_and_foreign_files_are_left_alone() {
        for name in ["LICENSE-MIT", "Cargo.lock", "a/b.snap", "x.pcapng"] {
            assert!(!is_ours(name), "{name}");
        }
        for name in ["src/a.rs", "README.md", ".ci/run"] {
            assert!(is_ours(name), "{name}");
        }
    }
}
