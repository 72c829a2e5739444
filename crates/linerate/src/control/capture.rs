//! The command `capture`: packets as they pass, one `packet` line each, until the client has enough.
//!
//! ```text
//!   add_tap on every shard ─▶ a `capturing` line ─▶ bell (something was taken) ─▶ swap buffers ─▶ lines, as far as there is room ─▶ bell ...
//!   count reached, or the client closed its sending side ─▶ del_tap ─▶ the rest ─▶ a `point` line each ─▶ done
//! ```
//! The shard copies what the filter takes into a buffer and rings; making text of it is this thread's work, one buffer
//! behind. A client that reads slowly makes the shard's buffer run full: then packets are lost and counted
//! ([`PointRecord::lost_skbs`]), and the shard goes on. A client that goes away takes its taps with it.
//!
//! Times are those of turns, turned to time since 1970 by one comparison of both clocks at the start: a capture does not
//! jump when the host's clock is set.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use linerate_base::Errno;
use linerate_netdev::IfIndex;
use linerate_stack::Shard;
use linerate_stack::remote::ShardWaker;
use linerate_stack::tap::{CaptureBuf, Filter, MAX_SNAPLEN, Point, PointStats, Points, Record, TapConfig, TapId};
use linerate_wire::pcapng::LinkType;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::command::{Command, Cx, Started, Step, fields};
use super::door::{Answer, Bell, Door, Reply};
use super::proto::Refusal;

/// Least and most room for packets in a shard, bytes.
const BUFFER_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=256 << 20;

/// The request `capture`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct CaptureRequest {
    /// Names of points: `rx`, `rx-gro`, `tx`, `drop`; none named: all but `rx-gro`.
    pub points: Vec<String>,
    /// Of this device alone.
    pub device: Option<String>,
    /// Most bytes of a packet.
    pub snaplen: u32,
    /// Which packets, in the language of [`linerate_stack::tap::filter`].
    pub filter: String,
    /// Room for packets in each shard, bytes.
    pub buffer_bytes: u64,
    /// Ends after so many.
    pub count: Option<u64>,
}

impl Default for CaptureRequest {
    fn default() -> Self {
        let cfg = TapConfig::default();
        Self {
            points: Vec::new(),
            device: None,
            snaplen: cfg.snaplen,
            filter: String::new(),
            buffer_bytes: cfg.buffer_bytes as u64,
            count: None,
        }
    }
}

/// Why and where a packet was dropped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DropNoteRecord {
    /// The reason's name.
    pub reason: String,
    /// The place in our code, `FILE:LINE`.
    pub place: String,
}

/// One packet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PacketRecord {
    /// The shard that saw it.
    pub shard: u32,
    /// When, nanoseconds since 1970.
    pub at_ns: u64,
    /// The device's name.
    pub device: String,
    /// The device's queue.
    pub queue: u16,
    /// The point.
    pub point: String,
    /// It begins with an Ethernet header; else with an IP header.
    pub ethernet: bool,
    /// Length of the whole packet, bytes.
    pub len: u32,
    /// Wire frames that it stands for.
    pub wire_pkts: u32,
    /// Payload bytes per wire frame of a super-packet, else 0.
    #[serde(default)]
    pub gso_size: u32,
    /// Of a dropped packet.
    #[serde(default)]
    pub dropped: Option<DropNoteRecord>,
    /// Its bytes, as far as they were taken.
    #[serde(with = "super::base64")]
    pub data: Vec<u8>,
}

/// What was counted at one point of one device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PointRecord {
    /// The shard.
    pub shard: u32,
    /// The device's name.
    pub device: String,
    /// The point.
    pub point: String,
    /// Came by.
    pub seen_skbs: u64,
    /// Of these, those that the filter took.
    pub matched_skbs: u64,
    /// Of these, those for which there was no room.
    pub lost_skbs: u64,
}

/// Rings when a tap has something, and says which.
struct News {
    is_there: AtomicBool,
    bell: Bell,
}

impl ShardWaker for News {
    fn wake(&self) {
        self.is_there.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// The tap of one shard; also the shard's closures hold it, which may run when nobody waits for them any more.
type TapCell = Arc<Mutex<Option<TapId>>>;

fn tap_of(cell: &TapCell) -> Option<TapId> {
    *cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a shard tells at the start: the device that is meant, and its clock beside the host's.
type Begun = Result<u64, Refusal>;
/// Devices that were not known yet.
type Names = Vec<(u32, String)>;
type Stats = Vec<PointStats>;

/// What a shard was asked for.
enum Asked {
    Nothing,
    Begin(Answer<(Begun, Names)>),
    Swap(Answer<(CaptureBuf, Names)>),
    End(Answer<(CaptureBuf, Names, Stats)>),
    /// It has told everything.
    Over,
}

/// One shard's part.
struct Part {
    door: Door,
    tap: TapCell,
    news: Arc<News>,
    asked: Asked,
    /// A buffer whose first records were told.
    held: Option<(CaptureBuf, usize)>,
    spare: Option<CaptureBuf>,
    names: BTreeMap<u32, String>,
    /// Time since 1970 less the shard's time, nanoseconds.
    epoch_ns: u64,
    stats: Stats,
}

struct Capture {
    config: TapConfig,
    device: Option<String>,
    count: Option<u64>,
    /// Empty before the first step.
    parts: Vec<Part>,
    told: u64,
    /// The client knows that all taps are there.
    is_on: bool,
    ending: bool,
}

pub(crate) fn start(given: Map<String, Value>) -> Started {
    let request: CaptureRequest = fields(given)?;
    let invalid = |message: String, hint: &str| Refusal::new(Errno::EINVAL, message, hint);
    let mut points = if request.points.is_empty() { TapConfig::default().points } else { Points::NONE };
    for name in &request.points {
        let point = Point::by_name(name);
        let names = Point::ALL.map(Point::name).join(", ");
        points =
            points.with(point.ok_or_else(|| invalid(format!("no point {name:?}"), &format!("points are {names}")))?);
    }
    let filter =
        Filter::parse(&request.filter).map_err(|e| invalid(e.to_string(), "see the manual for the language"))?;
    if !(1..=MAX_SNAPLEN).contains(&request.snaplen) {
        return Err(invalid(format!("a snaplen of {}", request.snaplen), &format!("it is 1 to {MAX_SNAPLEN}")));
    }
    if !BUFFER_BYTES.contains(&request.buffer_bytes) {
        return Err(invalid(format!("a buffer of {} bytes", request.buffer_bytes), "it is 64 KiB to 256 MiB"));
    }
    let buffer_bytes = request.buffer_bytes as usize;
    let config = TapConfig { points, ifindex: None, snaplen: request.snaplen, filter, buffer_bytes };
    let (device, count) = (request.device, request.count);
    Ok(Box::new(Capture { config, device, count, parts: Vec::new(), told: 0, is_on: false, ending: false }))
}

/// Names of devices with a number above `known`.
fn names_above(shard: &Shard, known: u32) -> Names {
    let devices = shard.links().devices().filter(|d| d.ifindex.0 > known);
    devices.map(|d| (d.ifindex.0, d.name.clone())).collect()
}

fn begin(shard: &mut Shard, mut config: TapConfig, device: Option<&str>, cell: &TapCell, news: Arc<News>) -> Begun {
    if let Some(name) = device {
        let found = shard.links().devices().find(|d| d.name == name).map(|d| d.ifindex);
        let refused = || {
            let names: Vec<_> = shard.links().devices().map(|d| d.name.as_str()).collect();
            Refusal::new(Errno::EINVAL, format!("no device {name:?}"), format!("devices are {}", names.join(", ")))
        };
        config.ifindex = Some(found.ok_or_else(refused)?);
    }
    let added = shard.add_tap(config, Some(news));
    let id = added.map_err(|e| Refusal::new(Errno::EAGAIN, e.to_string(), "end one of them and try again"))?;
    *cell.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((wall.as_nanos() as u64).saturating_sub(shard.now().as_nanos()))
}

impl Part {
    fn new(door: Door, bell: &Bell, config: &TapConfig, device: Option<&String>) -> Self {
        let news = Arc::new(News { is_there: AtomicBool::new(false), bell: bell.clone() });
        let tap = TapCell::default();
        let (config, device, for_shard, cell) = (config.clone(), device.cloned(), news.clone(), tap.clone());
        let asked = Answer::ask(&door, bell, move |shard| {
            let begun = begin(shard, config, device.as_deref(), &cell, for_shard);
            (begun, names_above(shard, 0))
        });
        Self {
            door,
            tap,
            news,
            asked: Asked::Begin(asked),
            held: None,
            spare: None,
            names: BTreeMap::new(),
            epoch_ns: 0,
            stats: Vec::new(),
        }
    }

    /// Takes what the shard has answered. True when it is still to answer.
    fn listen(&mut self) -> Result<bool, Refusal> {
        let (names, buf) = match &mut self.asked {
            Asked::Nothing | Asked::Over => return Ok(false),
            Asked::Begin(answer) => match answer.take() {
                Reply::Pending => return Ok(true),
                Reply::Gone => return Ok(self.is_over()),
                Reply::Ready((begun, names)) => {
                    self.epoch_ns = begun?;
                    (names, None)
                }
            },
            Asked::Swap(answer) => match answer.take() {
                Reply::Pending => return Ok(true),
                Reply::Gone => return Ok(self.is_over()),
                Reply::Ready((buf, names)) => (names, Some(buf)),
            },
            Asked::End(answer) => match answer.take() {
                Reply::Pending => return Ok(true),
                Reply::Gone => return Ok(self.is_over()),
                Reply::Ready((buf, names, stats)) => {
                    self.stats = stats;
                    (names, Some(buf))
                }
            },
        };
        let was_end = matches!(self.asked, Asked::End(_));
        self.asked = if was_end { Asked::Over } else { Asked::Nothing };
        self.names.extend(names);
        self.held = buf.map(|buf| (buf, 0));
        Ok(false)
    }

    /// The shard has ended.
    fn is_over(&mut self) -> bool {
        self.asked = Asked::Over;
        false
    }

    /// Asks for what was taken, when there is something and nothing is on its way.
    fn ask(&mut self, bell: &Bell, room_bytes: usize, ending: bool) {
        let is_free = matches!(self.asked, Asked::Nothing) && self.held.is_none();
        let (tap, known) = (self.tap.clone(), self.names.keys().next_back().copied().unwrap_or(0));
        if is_free && ending {
            self.asked = Asked::End(Answer::ask(&self.door, bell, move |shard| {
                let names = names_above(shard, known);
                let (buf, stats) = tap_of(&tap).and_then(|id| shard.del_tap(id)).unwrap_or_default();
                (buf, names, stats)
            }));
        } else if is_free && self.news.is_there.swap(false, Ordering::AcqRel) {
            let mut buf = self.spare.take().unwrap_or_else(|| CaptureBuf::new(room_bytes));
            self.asked = Asked::Swap(Answer::ask(&self.door, bell, move |shard| {
                if let Some(id) = tap_of(&tap) {
                    shard.swap_tap(id, &mut buf);
                }
                (buf, names_above(shard, known))
            }));
        }
    }

    fn name(&self, ifindex: IfIndex) -> String {
        // A packet that was dropped before it had a device has none.
        self.names
            .get(&ifindex.0)
            .cloned()
            .unwrap_or_else(|| if ifindex.0 == 0 { "-".into() } else { format!("if{}", ifindex.0) })
    }

    fn record(&self, shard: usize, r: &Record, bytes: &[u8]) -> PacketRecord {
        PacketRecord {
            shard: shard as u32,
            at_ns: self.epoch_ns.saturating_add(r.at.as_nanos()),
            device: self.name(r.ifindex),
            queue: r.queue,
            point: r.point.name().to_owned(),
            ethernet: r.link == LinkType::Ethernet,
            len: r.orig_len,
            wire_pkts: r.wire_pkts,
            gso_size: r.gso_size,
            dropped: r.dropped.map(|d| DropNoteRecord {
                reason: d.reason.name().to_owned(),
                place: super::drops::place_name(d.place),
            }),
            data: bytes.to_vec(),
        }
    }
}

impl Capture {
    /// Tells records of one shard while the client wants them. False when some are left.
    fn tell(&mut self, cx: &mut Cx<'_>, shard: usize) -> Result<bool, Refusal> {
        let Some(part) = self.parts.get_mut(shard) else { return Ok(true) };
        let Some((mut buf, mut next)) = part.held.take() else { return Ok(true) };
        while let Some((record, bytes)) = buf.get(next)
            && self.count.is_none_or(|count| self.told < count)
        {
            if !cx.has_room() {
                part.held = Some((buf, next));
                return Ok(false);
            }
            cx.emit("packet", &part.record(shard, record, bytes))?;
            next += 1;
            self.told += 1;
        }
        buf.clear();
        part.spare = Some(buf);
        Ok(true)
    }

    fn tell_stats(&mut self, cx: &mut Cx<'_>) -> Result<Step, Refusal> {
        let mut lost = 0;
        for (shard, part) in (0..).zip(&self.parts) {
            for (ifindex, point, stats) in &part.stats {
                lost += stats.lost_skbs;
                let point = PointRecord {
                    shard,
                    device: part.name(*ifindex),
                    point: point.name().to_owned(),
                    seen_skbs: stats.seen_skbs,
                    matched_skbs: stats.matched_skbs,
                    lost_skbs: stats.lost_skbs,
                };
                cx.emit("point", &point)?;
            }
        }
        Ok(Step::Done(json!({ "skbs": self.told, "lost_skbs": lost })))
    }
}

impl Command for Capture {
    fn advance(&mut self, cx: &mut Cx<'_>) -> Result<Step, Refusal> {
        if self.parts.is_empty() {
            let (bell, device) = (cx.bell(), self.device.as_ref());
            self.parts = cx.doors().iter().map(|door| Part::new(door.clone(), bell, &self.config, device)).collect();
        }
        let mut is_over = true;
        for shard in 0..self.parts.len() {
            let Some(part) = self.parts.get_mut(shard) else { break };
            let waits = part.listen()?;
            let all_told = self.tell(cx, shard)?;
            self.ending |= cx.is_client_done() || self.count.is_some_and(|count| self.told >= count);
            let (bell, room, ending) = (cx.bell(), self.config.buffer_bytes, self.ending);
            let Some(part) = self.parts.get_mut(shard) else { break };
            if !waits && all_told {
                part.ask(bell, room, ending);
            }
            is_over &= matches!(part.asked, Asked::Over) && part.held.is_none();
        }
        if !self.is_on && !self.parts.iter().any(|part| matches!(part.asked, Asked::Begin(_))) {
            self.is_on = true;
            cx.emit("capturing", &json!({ "shards": self.parts.len() }))?;
        }
        if is_over { self.tell_stats(cx) } else { Ok(Step::Wait) }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        for part in &self.parts {
            let tap = part.tap.clone();
            // Behind the call that made it. A tap that has ended is none.
            part.door.call(move |shard| {
                if let Some(id) = tap_of(&tap) {
                    shard.del_tap(id);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_crosses_and_wrong_requests_are_refused() {
        let record = PacketRecord {
            shard: 1,
            at_ns: u64::MAX,
            device: "tun0".into(),
            queue: 3,
            point: "drop".into(),
            ethernet: true,
            len: 100_000,
            wire_pkts: 70,
            gso_size: 1448,
            dropped: Some(DropNoteRecord { reason: "TCP_CSUM".into(), place: "a.rs:1".into() }),
            data: (0..=255).collect(),
        };
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<PacketRecord>(&line).unwrap(), record);
        let ask = |given: Value| match given {
            Value::Object(map) => start(map).err().map(|refusal| refusal.to_string()).unwrap_or_default(),
            _ => unreachable!("an object"),
        };
        assert_eq!(ask(json!({})), "");
        assert_eq!(
            ask(json!({"points": ["rx", "tx", "rx-gro", "drop"], "snaplen": 1, "filter": "tcp", "count": 5})),
            ""
        );
        for (given, why) in [
            (json!({"points": ["wire"]}), "points are rx, rx-gro, tx, drop"),
            (json!({"filter": "tcp prot 5"}), "(byte 4 of the filter)"),
            (json!({"snaplen": 0}), "1 to 262144"),
            (json!({"buffer_bytes": 1}), "64 KiB"),
            (json!({"colour": "red"}), "unknown field"),
        ] {
            let said = ask(given.clone());
            assert!(said.contains(why), "{given}: {said}");
        }
    }
}
