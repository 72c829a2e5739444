//! The command `drops`: where skbs were dropped and why, and how many resets were sent for what reason.
//!
//! Counters of drops are there anyway; places are told apart only while somebody watches. A request asks the shards to
//! go on watching for `watch_ms`, so a watcher asks again in time, compares, and leaves nothing behind when it dies. The
//! first answer of a watch has no places. Places of a shard and its counters are of one moment: what the counter of a
//! reason grew by beyond its places had no packet at hand (a device's own drops, queues of fragments), or came in
//! larger bursts than are looked at.

use std::collections::BTreeMap;
use std::panic::Location;

use linerate_base::{DropCounters, Duration, Errno, RstCounters};
use linerate_stack::Shard;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::command::{Command, Cx, Gather, Started, Step, fields};
use super::proto::Refusal;

/// Longest watch that is not asked for again, milliseconds.
const MAX_WATCH_MS: u64 = 600_000;

/// The request `drops`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct DropsRequest {
    /// For how long to tell places apart, milliseconds; 0: not at all.
    pub watch_ms: u64,
}

impl Default for DropsRequest {
    fn default() -> Self {
        Self { watch_ms: 5000 }
    }
}

/// Skbs dropped in one place for one reason, since the watch began.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DropRecord {
    /// The shard.
    pub shard: u32,
    /// Changes when the shard's watch began anew: then the counts did, too.
    pub watch: u64,
    /// The reason's name.
    pub reason: String,
    /// The device that it came from or went to; `-`: none yet.
    pub device: String,
    /// The place in our code, `FILE:LINE`.
    pub place: String,
    /// Skbs.
    pub skbs: u64,
    /// Wire frames that they stood for.
    pub wire_pkts: u64,
}

/// What one shard tells.
struct Told {
    places: Vec<DropRecord>,
    drops: DropCounters,
    resets: RstCounters,
}

struct Drops {
    watch_ms: u64,
    asked: Option<Gather<Told>>,
}

pub(crate) fn start(given: Map<String, Value>) -> Started {
    let DropsRequest { watch_ms } = fields(given)?;
    if watch_ms > MAX_WATCH_MS {
        let message = format!("a watch of {watch_ms} ms");
        return Err(Refusal::new(Errno::EINVAL, message, format!("at most {MAX_WATCH_MS}; ask again in time")));
    }
    Ok(Box::new(Drops { watch_ms, asked: None }))
}

/// `FILE:LINE`.
pub(super) fn place_name(place: &Location<'_>) -> String {
    format!("{}:{}", place.file(), place.line())
}

fn of_shard(shard: &mut Shard, watch_ms: u64) -> Told {
    if watch_ms > 0 {
        shard.watch_drops(shard.now() + Duration::from_millis(watch_ms));
    }
    let (watch, places) = (shard.drop_watches(), shard.drop_places().to_vec());
    let device = |ifindex| shard.links().device(ifindex).map_or_else(|| "-".to_owned(), |d| d.name.clone());
    let record = |p: &linerate_stack::tap::DropPlace| DropRecord {
        shard: 0,
        watch,
        reason: p.note.reason.name().to_owned(),
        device: device(p.ifindex),
        place: place_name(p.note.place),
        skbs: p.skbs,
        wire_pkts: p.wire_pkts,
    };
    let places = places.iter().map(record).collect();
    Told { places, drops: shard.mibs().drops.clone(), resets: shard.mibs().rsts.clone() }
}

impl Command for Drops {
    fn advance(&mut self, cx: &mut Cx<'_>) -> Result<Step, Refusal> {
        let watch_ms = self.watch_ms;
        let gather = self.asked.get_or_insert_with(|| cx.ask_all(move |shard: &mut Shard| of_shard(shard, watch_ms)));
        let Some(shards) = gather.poll()? else { return Ok(Step::Wait) };
        let (mut drops, mut resets) = (DropCounters::default(), RstCounters::default());
        let told = shards.len();
        for (shard, one) in shards {
            for place in one.places {
                cx.emit("drop", &DropRecord { shard: shard as u32, ..place })?;
            }
            drops.merge(&one.drops);
            resets.merge(&one.resets);
        }
        let drops: BTreeMap<&str, u64> = drops.iter().map(|(reason, n)| (reason.name(), n)).collect();
        cx.emit("drops", &drops)?;
        let resets: BTreeMap<&str, u64> = resets.iter().map(|(reason, n)| (reason.name(), n)).collect();
        cx.emit("resets", &resets)?;
        Ok(Step::Done(json!({ "shards": told })))
    }
}
