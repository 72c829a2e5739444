//! The command `devices`: what each shard knows of each of its devices, and what their queues counted.
//!
//! A device whose queues are shared out among shards is told of once for each; sums are the reader's affair. Counters are
//! those of [`Qstats`](linerate_netdev::Qstats). A shard tells of all its devices between two turns, at most
//! [`MAX_DEVICES_TOLD`]; a stack with more is not what this is for.
//!
//! Feature names are ethtool's, so that the two lists can be laid side by side.

use std::collections::BTreeMap;

use linerate_netdev::{Features, Qstats};
use linerate_stack::config::GroMode;
use linerate_stack::{Device, LOOPBACK, Shard};
use serde_json::{Map, Value, json};

use super::command::{Command, Cx, Gather, Started, Step, no_fields};
use super::proto::{DeviceRecord, QueueRecord, Refusal};

/// Devices that a shard tells of.
const MAX_DEVICES_TOLD: usize = 64;

/// `None` before the question was asked.
struct Devices(Option<Gather<Vec<DeviceRecord>>>);

pub(crate) fn start(given: Map<String, Value>) -> Started {
    no_fields(given)?;
    Ok(Box::new(Devices(None)))
}

impl Command for Devices {
    fn advance(&mut self, cx: &mut Cx<'_>) -> Result<Step, Refusal> {
        let gather = self.0.get_or_insert_with(|| cx.ask_all(of_shard));
        let Some(shards) = gather.poll()? else { return Ok(Step::Wait) };
        let mut told = 0;
        for (shard, devices) in shards {
            for mut device in devices {
                device.shard = shard as u32;
                device.queue_qstats.iter_mut().for_each(|queue| queue.shard = shard as u32);
                cx.emit("device", &device)?;
                told += 1;
            }
        }
        Ok(Step::Done(json!({ "devices": told })))
    }
}

fn of_shard(shard: &mut Shard) -> Vec<DeviceRecord> {
    let links = shard.links();
    links.devices().take(MAX_DEVICES_TOLD).map(|d| record(d, links.qstats(d.ifindex).unwrap_or_default())).collect()
}

fn record(device: &Device, qstats: Qstats) -> DeviceRecord {
    let link = match device.mac() {
        _ if device.ifindex == LOOPBACK => "loopback",
        Some(_) => "ether",
        None => "ip",
    };
    let features = device.features();
    let dropped = |q| device.qdisc_stats(q).map_or(0, |s| s.dropped_skbs);
    DeviceRecord {
        shard: 0,
        ifindex: device.ifindex.0,
        name: device.name.clone(),
        link: link.to_owned(),
        mac: device.mac().map(|mac| mac.to_string()),
        up: device.is_up(),
        mtu: device.mtu_bytes,
        queues: device.queue_count() as u32,
        any_ip: device.any_ip,
        addrs: device.addrs().iter().map(ToString::to_string).collect(),
        tentative: device.tentative().map(|cidr| cidr.to_string()).collect(),
        features: named(features, device.gro),
        limits: limits(features),
        backlog_skbs: device.backlog_skbs() as u64,
        qdisc_drops: (0..device.queue_count() as u16).map(dropped).sum(),
        qstats: as_map(&qstats),
        queue_qstats: (0..device.queue_count() as u16)
            .filter_map(|q| Some(QueueRecord { shard: 0, queue: q.into(), qstats: as_map(&device.queue_qstats(q)?) }))
            .collect(),
    }
}

fn as_map(qstats: &Qstats) -> BTreeMap<String, u64> {
    qstats.iter().map(|(name, n)| (name.to_owned(), n)).collect()
}

fn named(f: &Features, gro: GroMode) -> BTreeMap<String, bool> {
    let list = [
        ("rx-checksumming", f.rx_csum),
        ("tx-checksumming", f.tx_csum),
        ("scatter-gather", f.sg),
        ("tx-tcp-segmentation", f.tso4),
        ("tx-tcp6-segmentation", f.tso6),
        ("tx-udp-segmentation", f.uso),
        ("generic-receive-offload", gro == GroMode::Software),
        ("rx-gro-hw", f.gro_hw),
        ("by-reference", f.by_ref),
    ];
    list.into_iter().map(|(name, on)| (name.to_owned(), on)).collect()
}

fn limits(f: &Features) -> BTreeMap<String, u64> {
    let list = [("gso_max_size", f.gso_max_size), ("gso_max_segs", f.gso_max_segs), ("max_frags", f.max_frags)];
    list.into_iter().map(|(name, n)| (name.to_owned(), u64::from(n))).collect()
}
