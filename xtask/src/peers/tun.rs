//! The rows over a TUN: one flow between the kernel and each contender, both ways.
//!
//! A group is one direction with or without offloads. Its contenders run one after the other, a round is all of them, and
//! the order is turned round every time; ratios are taken within a round, Linerate's figure by the other's. The text shows
//! both directions of a contender in one line.
//!
//! A contender that this machine can not run is skipped with one line: exit 77 of `linerate-peers-tun`, or no Go for gVisor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{Series, shown, statistics};
use crate::steps::{cargo, output};

/// Seconds of one run, after its warm-up.
const SECS: &str = "0.5";
/// The exit of `linerate-peers-tun` where the machine lacks something.
const EXIT_UNAVAILABLE: i32 = 77;

/// Who stands against the kernel's end, ours first.
const CONTENDERS: &[(&str, &str)] = &[
    ("linerate", "Linerate, inline (one thread)"),
    ("linerate-remote", "Linerate, remote (two threads)"),
    ("smoltcp", "smoltcp, own glue, best settings"),
    ("gvisor", "gVisor netstack, own glue"),
    ("veth", "the kernel's own, over veth"),
    ("loopback", "the kernel's own, over loopback"),
];
/// The kernel's own flows have no TUN to be plain on.
const PLAIN_CONTENDERS: usize = 4;

/// One direction, with or without offloads.
struct Group {
    name: &'static str,
    plain: bool,
    dir: &'static str,
}

const GROUPS: &[Group] = &[
    Group { name: "TUN with super-packets, to the kernel", plain: false, dir: "to" },
    Group { name: "TUN with super-packets, from the kernel", plain: false, dir: "from" },
    Group { name: "TUN plain, to the kernel", plain: true, dir: "to" },
    Group { name: "TUN plain, from the kernel", plain: true, dir: "from" },
];

/// What is measured, for the head of the table.
const ABOUT: &str = "One TCP flow over a TUN, MTU 1500, IPv4, Gbit/s at the kernel's end, which is the same program for all: blocks of \
128 KiB, CUBIC.\nBoth ends copy; each has a processor of its own. The ratio is inline Linerate by the other, in the same round.\n";

/// A group's figures by contender: the series of each, or why there is none; and how it ran last.
#[derive(Default)]
struct Figures {
    series: BTreeMap<&'static str, Series>,
    skipped: BTreeMap<&'static str, String>,
    how: BTreeMap<&'static str, String>,
}

/// Everything that was measured over a TUN.
#[derive(Default)]
pub(crate) struct Report {
    groups: Vec<(&'static Group, Figures)>,
}

/// Builds gVisor's program where Go is; otherwise why not.
fn gvisor(root: &Path, release: &Path) -> Result<PathBuf, String> {
    if Command::new("go").arg("version").output().is_err() {
        return Err("no go".into());
    }
    let program = release.join("linerate-peers-gvisor");
    let mut build = Command::new("go");
    build.current_dir(root.join("benches/peers-tun/gvisor")).args(["build", "-o"]).arg(&program).arg(".");
    let last = |text: String| text.lines().last().unwrap_or_default().to_string();
    output(&mut build).map(|_| program).map_err(|e| format!("go build: {}", last(e)))
}

/// Runs the groups that `wanted` names.
pub(crate) fn run(root: &Path, release: &Path, pairs: usize, wanted: impl Fn(&str) -> bool) -> Result<Report, String> {
    let mut report = Report::default();
    let groups: Vec<&Group> = GROUPS.iter().filter(|g| wanted(g.name)).collect();
    if groups.is_empty() {
        return Ok(report);
    }
    // Apart from the others: what smoltcp needs here would slow it down there.
    output(cargo(root).args(["build", "--release", "-p", "linerate-peers-tun"]))?;
    let gvisor = gvisor(root, release);
    for group in groups {
        eprintln!("{} ...", group.name);
        report.groups.push((group, measure(group, release, &gvisor, pairs)?));
    }
    Ok(report)
}

fn measure(group: &Group, release: &Path, gvisor: &Result<PathBuf, String>, pairs: usize) -> Result<Figures, String> {
    let mut figures = Figures::default();
    if let Err(why) = gvisor {
        figures.skipped.insert("gvisor", why.clone());
    }
    let contenders = if group.plain { &CONTENDERS[..PLAIN_CONTENDERS] } else { CONTENDERS };
    for pair in 0..pairs {
        let mut round: BTreeMap<&'static str, f64> = BTreeMap::new();
        let mut order: Vec<_> = contenders.iter().collect();
        if pair % 2 == 1 {
            order.reverse();
        }
        for &&(contender, _) in &order {
            if figures.skipped.contains_key(contender) {
                continue;
            }
            let mut command = Command::new(release.join("linerate-peers-tun"));
            command.args(["--json", "--secs", SECS, "--stack", contender, "--dir", group.dir]);
            command.args(group.plain.then_some("--plain"));
            if let Ok(program) = gvisor {
                command.arg("--program").arg(program);
            }
            match once(&mut command)? {
                Ok(run) => {
                    let bps = run["bits_per_second"].as_f64().ok_or_else(|| format!("{command:?}: no figure"))?;
                    figures.how.insert(contender, run["how"].as_str().unwrap_or_default().to_string());
                    round.insert(contender, bps);
                }
                Err(why) => _ = figures.skipped.insert(contender, why),
            }
        }
        let ours = round.get("linerate").copied();
        for (contender, bps) in round {
            let series = figures.series.entry(contender).or_default();
            series.other.push(bps);
            if let Some(ours) = ours {
                series.ours.push(ours);
                series.ratios.push(ours / bps);
            }
        }
    }
    Ok(figures)
}

/// One run: its report, or why this machine can not do it.
fn once(command: &mut Command) -> Result<Result<Value, String>, String> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&out.stderr).trim().to_string();
    if out.status.code() == Some(EXIT_UNAVAILABLE) {
        return Ok(Err(said.trim_start_matches("linerate-peers-tun: unavailable: ").to_string()));
    }
    if !out.status.success() {
        return Err(format!("{command:?}: {}\n{said}", out.status));
    }
    serde_json::from_slice(&out.stdout).map(Ok).map_err(|e| format!("{command:?}: {e}"))
}

impl Report {
    /// The table; nothing when nothing was asked for.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (plain, title) in [(false, "with virtio headers and offloads"), (true, "plain: one frame a system call")] {
            let of = |dir| self.groups.iter().find(|(g, _)| g.plain == plain && g.dir == dir).map(|(_, f)| f);
            let (to, from) = (of("to"), of("from"));
            if to.is_none() && from.is_none() {
                continue;
            }
            if text.is_empty() {
                text.push_str(ABOUT);
            }
            text += &format!("{title}\n  {:<32} {:<40} {:<40}\n", "", "to the kernel, ratio", "from the kernel, ratio");
            for (contender, name) in CONTENDERS {
                let cells = [to, from].map(|figures| figures.map_or_else(String::new, |f| f.cell(contender)));
                if cells.iter().any(|cell| !cell.is_empty()) {
                    text += &format!("  {name:<32} {:<40} {:<40}\n", cells[0], cells[1]);
                }
            }
        }
        text
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let rows = self.groups.iter().flat_map(|(group, figures)| {
            CONTENDERS.iter().filter_map(move |(contender, _)| {
                let skipped = figures.skipped.get(contender);
                let series = figures.series.get(contender);
                (skipped.is_some() || series.is_some()).then(|| {
                    json!({ "name": group.name, "contender": contender, "skipped": skipped,
                            "how": figures.how.get(contender),
                            "bits_per_second": statistics(series.map_or(&[], |s| &s.other)),
                            "linerate_by_it": statistics(series.map_or(&[], |s| &s.ratios)) })
                })
            })
        });
        Value::Array(rows.collect())
    }
}

impl Figures {
    fn cell(&self, contender: &str) -> String {
        if let Some(why) = self.skipped.get(contender) {
            return format!("skipped: {why}");
        }
        self.series
            .get(contender)
            .map_or_else(String::new, |s| format!("{}  {}", shown(&s.other, 1e9, 1), shown(&s.ratios, 1.0, 2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_both_ways_a_skip_says_why_and_the_rest_is_left_out() {
        let series = |bps: f64, ratio: f64| Series { ours: vec![1.0], other: vec![bps], ratios: vec![ratio] };
        let mut to = Figures::default();
        to.series.insert("linerate", series(4e10, 1.0));
        to.series.insert("smoltcp", series(3.2e10, 1.25));
        to.skipped.insert("gvisor", "no go".into());
        let mut from = Figures::default();
        from.series.insert("smoltcp", series(5e10, 0.8));
        let report = Report { groups: vec![(&GROUPS[0], to), (&GROUPS[1], from)] };
        let text = report.text();
        let line = |name: &str| text.lines().find(|l| l.contains(name)).unwrap_or_default().to_string();
        assert!(line("smoltcp").contains("32.0 (32.0..32.0)  1.25") && line("smoltcp").contains("50.0"), "{text}");
        assert!(line("gVisor").contains("skipped: no go"), "{text}");
        assert!(!text.contains("veth") && !text.contains("plain"), "{text}");
        let json = report.json();
        assert_eq!(json.as_array().unwrap().len(), 4);
        assert_eq!(json[1]["linerate_by_it"]["median"], 1.25);
        assert_eq!(json[2]["skipped"], "no go");
        assert!(json[2]["bits_per_second"].is_null());
        assert_eq!(Report::default().text(), "");
    }

    #[test]
    fn what_the_machine_lacks_is_a_skip_and_what_goes_wrong_is_not() {
        let sh = |script: &str| once(Command::new("sh").args(["-c", script]));
        assert_eq!(sh("echo linerate-peers-tun: unavailable: no TUN >&2; exit 77"), Ok(Err("no TUN".into())));
        assert_eq!(sh("echo '{\"a\": 1}'"), Ok(Ok(json!({ "a": 1 }))));
        assert!(sh("echo bad >&2; exit 1").is_err_and(|e| e.contains("bad")));
        assert!(sh("echo no json").is_err());
    }
}
