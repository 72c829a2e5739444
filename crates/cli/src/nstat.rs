//! `linerate nstat`: the counters of a running Linerate under Linux's names, in the form of iproute2's `nstat`.
//!
//! **Absolute, always.** `nstat` keeps a file of what it last saw and prints what was added since, unless `-a` says otherwise. Here is no
//! such file: the numbers are those since the stack began, `-a` or not, and nothing is written (`-s` is always on). `-i SECS` is
//! for what happens now: it looks twice, and prints what was added and, in the third column, how much of it a second.
//!
//! Zeros are left out, unless `-z`. `TcpCurrEstab` is a level: what `-i` prints of it is its change, never below 0. IPv4
//! and IPv6 are counted together under the names of IPv4. The numbers of all shards are summed. Patterns are the shell's (`*`, `?`).

use std::fmt::Write as _;

use clap::Args;
use linerate::control::Client;
use serde_json::{Map, Value, json};

use crate::Outcome;
use crate::attach::{Target, parse};

/// Counters of a running Linerate, as iproute2's nstat shows them.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  linerate nstat                       what is not zero, since the stack began
  linerate nstat -az 'TcpExt*'         all of a group
  linerate nstat -i 1 TcpRetransSegs   what is added in a second")]
pub(crate) struct NstatArgs {
    /// Numbers since the stack began: so unless -i
    #[arg(short = 'a', long, conflicts_with = "interval")]
    pub(crate) ignore: bool,
    /// Zeros, too
    #[arg(short, long)]
    pub(crate) zeros: bool,
    /// Keep no record of what was seen: always so
    #[arg(short = 's', long)]
    pub(crate) noupdate: bool,
    /// Look twice, and print what was added between
    #[arg(short, long, value_name = "SECS", value_parser = parse_secs)]
    pub(crate) interval: Option<f64>,
    /// Print JSON, with the reasons of drops and resets, and the skbs that shards handed to each other
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Only these; * and ? stand for anything
    #[arg(value_name = "PATTERN")]
    pub(crate) patterns: Vec<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

fn parse_secs(text: &str) -> Result<f64, String> {
    let secs = text.parse::<f64>().ok().filter(|secs| (0.1..=3600.0).contains(secs));
    secs.ok_or_else(|| "expected seconds between 0.1 and 3600".into())
}

/// What a server told at one moment.
#[derive(Debug, Default)]
struct Counts {
    counters: Vec<(String, u64)>,
    /// Drops and resets by reason, and what shards handed to each other.
    reasons: Map<String, Value>,
}

fn ask(client: &mut Client) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let asked = client.request("counters", &(), |key, value| {
        match key {
            "counters" => counts.counters = parse(value)?,
            "drops" | "resets" | "steer" => _ = counts.reasons.insert(key.to_owned(), value),
            _ => {}
        }
        Ok(())
    });
    asked.map(|_| counts).map_err(|e| e.to_string())
}

/// A counter as it is printed: its name, its value, and how much of it a second.
type Row = (String, u64, f64);

/// Runs the verb.
pub(crate) fn main(args: &NstatArgs) -> Outcome {
    let mut client = args.target.connect()?;
    let first = ask(&mut client)?;
    let (rows, reasons) = match args.interval {
        None => (first.counters.into_iter().map(|(name, n)| (name, n, 0.0)).collect(), first.reasons),
        Some(secs) => {
            let began = std::time::Instant::now();
            std::thread::sleep(std::time::Duration::from_secs_f64(secs));
            let second = ask(&mut client)?;
            (added(&first.counters, second.counters, began.elapsed().as_secs_f64()), Map::new())
        }
    };
    let rows: Vec<Row> = rows.into_iter().filter(|(name, n, _)| args.wants(name, *n)).collect();
    crate::print(&if args.json { as_json(&rows, reasons) } else { as_text(&rows) })?;
    Ok(())
}

impl NstatArgs {
    fn wants(&self, name: &str, n: u64) -> bool {
        let matches = self.patterns.is_empty() || self.patterns.iter().any(|p| glob(p.as_bytes(), name.as_bytes()));
        matches && (n != 0 || self.zeros)
    }
}

fn added(before: &[(String, u64)], after: Vec<(String, u64)>, secs: f64) -> Vec<Row> {
    let old = |name: &str| before.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n);
    let one = |(name, n): (String, u64)| {
        let added = n.saturating_sub(old(&name));
        (name, added, added as f64 / secs)
    };
    after.into_iter().map(one).collect()
}

fn as_text(rows: &[Row]) -> String {
    let mut text = String::from("#linerate\n");
    for (name, n, rate) in rows {
        let _ = writeln!(text, "{name:<31} {n:<18} {rate:.1}");
    }
    text
}

fn as_json(rows: &[Row], reasons: Map<String, Value>) -> String {
    let counters: Map<String, Value> = rows.iter().map(|(name, n, _)| (name.clone(), json!(n))).collect();
    let mut all = Map::from_iter([("linerate".to_owned(), Value::Object(counters))]);
    all.extend(reasons);
    format!("{}\n", Value::Object(all))
}

/// Does `text` match a pattern of the shell's, of which `*` and `?` are known?
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where the last star stands, and how much it has eaten.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match &mut star {
                Some((at, eaten)) => {
                    *eaten += 1;
                    (p, t) = (*at + 1, *eaten);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_the_shells() {
        for (pattern, text) in [
            ("Tcp*", "TcpInSegs"),
            ("*Segs", "TcpInSegs"),
            ("*", ""),
            ("T?pInSegs", "TcpInSegs"),
            ("*In*s", "TcpInSegsIns"),
            ("**a*b*", "xxaxxb"),
        ] {
            assert!(glob(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in
            [("Tcp", "TcpInSegs"), ("*Seg", "TcpInSegs"), ("?", ""), ("tcp*", "TcpInSegs"), ("a*b*c", "acb")]
        {
            assert!(!glob(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        // What makes a naive one slow.
        assert!(!glob("*a*a*a*a*a*a*b".as_bytes(), "a".repeat(5000).as_bytes()));
    }

    #[test]
    fn zeros_are_asked_for() {
        let args = |patterns: &[&str], zeros| NstatArgs {
            patterns: patterns.iter().map(|p| (*p).to_owned()).collect(),
            zeros,
            ..NstatArgs::default()
        };
        assert!(args(&[], false).wants("TcpInSegs", 1) && !args(&[], false).wants("TcpInSegs", 0));
        assert!(args(&["Ip*", "Tcp*"], true).wants("TcpInSegs", 0) && !args(&["Ip*"], true).wants("TcpInSegs", 5));
    }

    #[test]
    fn text_and_json_are_nstats() {
        let rows = [("TcpInSegs".to_owned(), 7, 0.0), ("TcpExtTCPSpuriousRtxHostQueues".to_owned(), 123, 1.25)];
        let text = "#linerate\nTcpInSegs                       7                  0.0\n\
                    TcpExtTCPSpuriousRtxHostQueues  123                1.2\n";
        assert_eq!(as_text(&rows), text);
        let reasons = Map::from_iter([("drops".to_owned(), json!({"NOMEM": 1}))]);
        let expected =
            json!({ "linerate": { "TcpInSegs": 7, "TcpExtTCPSpuriousRtxHostQueues": 123 }, "drops": { "NOMEM": 1 } });
        assert_eq!(serde_json::from_str::<Value>(&as_json(&rows, reasons)).unwrap(), expected);
    }

    #[test]
    fn what_was_added_is_never_below_zero() {
        let before = [("A".to_owned(), 5), ("L".to_owned(), 9)];
        let after = vec![("A".to_owned(), 8), ("L".to_owned(), 7), ("New".to_owned(), 2)];
        let rows = added(&before, after, 2.0);
        assert_eq!(rows, [("A".to_owned(), 3, 1.5), ("L".to_owned(), 0, 0.0), ("New".to_owned(), 2, 1.0)]);
    }
}
