//! `linerate dropwatch`: drops and resets of a running Linerate as they happen, second by second.
//!
//! Each second the process is asked what it dropped where, and what it reset why; what was added since the last time is
//! printed, a line for each reason, device and place. A line without a place stands for drops that are counted and nothing else
//! is known of them: a device's own, whole queues of fragments, and bursts beyond what is looked at. Counters of all
//! reasons are complete.
//!
//! The process tells places apart only while it is watched ([`WATCH_MS`] from each question on), so a watcher that dies
//! leaves nothing behind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use linerate::control::{Client, ControlError, DropRecord, DropsRequest};
use linerate_host::interrupt;
use serde::Serialize;
use serde_json::json;

use crate::Outcome;
use crate::attach::{Target, parse};

/// How long the process goes on telling places apart without being asked again, milliseconds.
const WATCH_MS: u64 = 5000;
/// How soon Ctrl-C is noticed.
const LOOK: Duration = Duration::from_millis(20);

/// Drops and resets of a running Linerate.
#[derive(Clone, Debug, Args)]
pub(crate) struct DropwatchArgs {
    /// End after so many drops and resets
    #[arg(short = 'c', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(short = 't', value_name = "SECS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    secs: Option<u64>,
    /// Print JSON: an object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What a count is of. Ordered as it is printed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
struct Row {
    /// `drop` or `reset`.
    kind: &'static str,
    reason: String,
    /// `-`: not known.
    device: String,
    place: String,
}

impl Row {
    fn new(kind: &'static str, reason: &str) -> Self {
        Self { kind, reason: reason.to_owned(), device: "-".into(), place: "-".into() }
    }
}

/// What the process said at one moment.
#[derive(Clone, Default, Debug)]
struct Told {
    places: Vec<DropRecord>,
    drops: BTreeMap<String, u64>,
    resets: BTreeMap<String, u64>,
}

fn ask(client: &mut Client) -> Result<Told, ControlError> {
    let mut told = Told::default();
    let mut request = DropsRequest::default();
    request.watch_ms = WATCH_MS;
    client.request("drops", &request, |key, value| {
        match key {
            "drop" => told.places.push(parse(value)?),
            "drops" => told.drops = parse(value)?,
            "resets" => told.resets = parse(value)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(told)
}

/// What was added from `before` to `after`, zeros left out.
fn added(before: &Told, after: &Told) -> BTreeMap<Row, u64> {
    let mut rows: BTreeMap<Row, u64> = BTreeMap::new();
    let mut placed: BTreeMap<&str, u64> = BTreeMap::new();
    for now in &after.places {
        let same = |old: &&DropRecord| {
            (old.shard, old.watch, &old.reason, &old.device, &old.place)
                == (now.shard, now.watch, &now.reason, &now.device, &now.place)
        };
        // A watch that began anew counts from zero.
        let n = now.skbs.saturating_sub(before.places.iter().find(same).map_or(0, |old| old.skbs));
        let (device, place) = (now.device.clone(), now.place.clone());
        *rows.entry(Row { device, place, ..Row::new("drop", &now.reason) }).or_default() += n;
        *placed.entry(&now.reason).or_default() += n;
    }
    let grown = |before: &BTreeMap<String, u64>, reason: &str, n: u64| {
        n.saturating_sub(before.get(reason).copied().unwrap_or(0))
    };
    for (reason, &n) in &after.drops {
        let all = grown(&before.drops, reason, n);
        rows.insert(Row::new("drop", reason), all.saturating_sub(placed.get(reason.as_str()).copied().unwrap_or(0)));
    }
    for (reason, &n) in &after.resets {
        rows.insert(Row::new("reset", reason), grown(&before.resets, reason, n));
    }
    rows.retain(|_, n| *n > 0);
    rows
}

fn as_text(rows: &BTreeMap<Row, u64>, at: Duration) -> String {
    let secs = at.as_secs() % 86_400;
    let time = format!("{:02}:{:02}:{:02}", secs / 3600, secs / 60 % 60, secs % 60);
    let line = |(row, n): (&Row, &u64)| {
        format!("{time} {n:>9} {:<5} {:<24} {:<12} {}\n", row.kind, row.reason, row.device, row.place)
    };
    rows.iter().map(line).collect()
}

fn as_json(rows: &BTreeMap<Row, u64>, at: Duration) -> String {
    let line = |(row, n): (&Row, &u64)| {
        let mut object = json!(row);
        object["at_ms"] = json!(u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
        object["count"] = json!(n);
        format!("{object}\n")
    };
    rows.iter().map(line).collect()
}

/// Sleeps until `until`; false when the user ends it before.
fn sleep_until(until: Instant) -> bool {
    while !interrupt::caught() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(LOOK));
    }
    false
}

/// Runs the verb.
pub(crate) fn main(args: &DropwatchArgs) -> Outcome {
    let mut client = args.target.connect()?;
    let mut before = ask(&mut client).map_err(|e| e.to_string())?;
    if !args.json {
        crate::print("time         count kind  reason                   device       place\n")?;
    }
    let (began, mut seconds, mut sum) = (Instant::now(), 0, 0);
    let mut on = true;
    while on {
        seconds += 1;
        on = sleep_until(began + Duration::from_secs(seconds));
        // Also of a second that was cut short.
        let after = ask(&mut client).map_err(|e| e.to_string())?;
        let rows = added(&before, &after);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        crate::print(&if args.json { as_json(&rows, at) } else { as_text(&rows, at) })?;
        sum += rows.values().sum::<u64>();
        before = after;
        on &= args.count.is_none_or(|count| sum < count) && args.secs.is_none_or(|secs| seconds < secs);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(watch: u64, places: &[(&str, &str, u64)], drops: &[(&str, u64)], resets: &[(&str, u64)]) -> Told {
        let place = |(reason, place, n): &(&str, &str, u64)| {
            let value = json!({ "shard": 0, "watch": watch, "reason": reason, "device": "tun0", "place": place, "skbs": n, "wire_pkts": n });
            serde_json::from_value(value).expect("a record")
        };
        let map = |list: &[(&str, u64)]| list.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect();
        Told { places: places.iter().map(place).collect(), drops: map(drops), resets: map(resets) }
    }

    #[test]
    fn what_was_added_is_told_with_its_place_as_far_as_known() {
        let first = told(1, &[("TCP_CSUM", "a.rs:1", 2)], &[("TCP_CSUM", 2), ("NOMEM", 7)], &[]);
        let places = [("TCP_CSUM", "a.rs:1", 5), ("TCP_CSUM", "b.rs:2", 1), ("NO_SOCKET", "c.rs:3", 4)];
        let second = told(1, &places, &[("TCP_CSUM", 8), ("NOMEM", 7), ("NO_SOCKET", 4)], &[("NO_SOCKET", 4)]);
        let rows = added(&first, &second);
        let shown: Vec<_> =
            rows.iter().map(|(r, n)| (r.kind, r.reason.as_str(), r.device.as_str(), r.place.as_str(), *n)).collect();
        let expected = [
            ("drop", "NO_SOCKET", "tun0", "c.rs:3", 4),
            ("drop", "TCP_CSUM", "-", "-", 2),
            ("drop", "TCP_CSUM", "tun0", "a.rs:1", 3),
            ("drop", "TCP_CSUM", "tun0", "b.rs:2", 1),
            ("reset", "NO_SOCKET", "-", "-", 4),
        ];
        assert_eq!(shown, expected);
        let text = as_text(&rows, Duration::from_secs(3661));
        assert!(text.starts_with("01:01:01         4 drop  NO_SOCKET                tun0         c.rs:3\n"), "{text}");
        assert_eq!(as_json(&rows, Duration::from_secs(1)).lines().count(), 5);
        assert!(added(&second, &second).is_empty());
        // The watch ended and began again.
        let third = told(2, &[("TCP_CSUM", "a.rs:1", 1)], &[("TCP_CSUM", 9), ("NO_SOCKET", 4)], &[("NO_SOCKET", 4)]);
        assert_eq!(added(&second, &third).into_values().collect::<Vec<_>>(), [1]);
    }
}
