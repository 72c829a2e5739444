//! `linerate link` and `linerate ethtool`: the devices of a running Linerate, as `ip` and `ethtool` show Linux's.
//!
//! A device whose queues are shared out among shards comes once from each; here it is one device again: counters, queues and
//! backlog are summed, the rest is the same everywhere. Frames and skbs are counted apart, because a super-packet is one
//! skb and many frames; both stand in `ethtool -S`, under the names of the kernel's `qstats`. Only reading: nothing is changed here.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{ArgGroup, Args};
use linerate::control::DeviceRecord;
use serde_json::json;

use crate::Outcome;
use crate::attach::{Target, parse};

/// Devices of a running Linerate: addresses, MTU, state.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LinkArgs {
    /// With counters
    #[arg(short, long)]
    pub(crate) stats: bool,
    /// Print JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Only this one
    #[arg(value_name = "IFNAME")]
    pub(crate) device: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

/// Counters and features of a device of a running Linerate.
#[derive(Clone, Debug, Default, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["statistics", "show_features"])))]
pub(crate) struct EthtoolArgs {
    /// Counters of its queues
    #[arg(short = 'S', long)]
    pub(crate) statistics: bool,
    /// What it does itself, and its limits
    #[arg(short = 'k', long)]
    pub(crate) show_features: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Its name
    #[arg(value_name = "IFNAME")]
    pub(crate) device: String,
    #[command(flatten)]
    pub(crate) target: Target,
}

/// Runs `link`.
pub(crate) fn main(args: &LinkArgs) -> Outcome {
    let mut devices = ask(&args.target)?;
    if let Some(name) = &args.device {
        devices = vec![find(devices, name)?];
    }
    let text = match args.json {
        true => format!("{:#}\n", json!(devices)),
        false => devices.iter().map(|device| link_text(device, args.stats)).collect(),
    };
    crate::print(&text)?;
    Ok(())
}

/// Runs `ethtool`.
pub(crate) fn ethtool(args: &EthtoolArgs) -> Outcome {
    let device = find(ask(&args.target)?, &args.device)?;
    let text = match (args.json, args.statistics) {
        (true, true) => format!("{:#}\n", json!({ &device.name: device.qstats, "queues": device.queue_qstats })),
        (true, false) => {
            format!("{:#}\n", json!({ &device.name: { "features": device.features, "limits": device.limits } }))
        }
        (false, true) => statistics_text(&device),
        (false, false) => features_text(&device),
    };
    crate::print(&text)?;
    Ok(())
}

fn ask(target: &Target) -> Result<Vec<DeviceRecord>, String> {
    let mut found: Vec<DeviceRecord> = Vec::new();
    let asked = target.connect()?.request("devices", &(), |key, value| {
        if key == "device" {
            add(&mut found, parse(value)?);
        }
        Ok(())
    });
    asked.map(|_| found).map_err(|e| e.to_string())
}

fn find(mut devices: Vec<DeviceRecord>, name: &str) -> Result<DeviceRecord, String> {
    match devices.iter().position(|device| device.name == name) {
        Some(at) => Ok(devices.swap_remove(at)),
        None => {
            let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
            Err(format!("no device '{name}'; there are {}", names.join(", ")))
        }
    }
}

/// Another shard's share of a device joins the first.
fn add(found: &mut Vec<DeviceRecord>, device: DeviceRecord) {
    let same = |d: &&mut DeviceRecord| d.name == device.name && d.ifindex == device.ifindex;
    let Some(sum) = found.iter_mut().find(same) else { return found.push(device) };
    sum.up |= device.up;
    sum.queues += device.queues;
    sum.backlog_skbs += device.backlog_skbs;
    sum.qdisc_drops += device.qdisc_drops;
    for (name, n) in device.qstats {
        *sum.qstats.entry(name).or_default() += n;
    }
    sum.queue_qstats.extend(device.queue_qstats);
}

fn link_text(d: &DeviceRecord, stats: bool) -> String {
    let kind = match d.link.as_str() {
        "loopback" => "LOOPBACK",
        "ether" => "BROADCAST,MULTICAST",
        _ => "POINTOPOINT,NOARP",
    };
    let (flags, state) = if d.up { (",UP,LOWER_UP", "UP") } else { ("", "DOWN") };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {}: <{kind}{flags}> mtu {} qdisc fifo state {state} queues {}",
        d.ifindex, d.name, d.mtu, d.queues
    );
    let link = if d.link == "ip" { "none" } else { &d.link };
    let _ = writeln!(text, "    link/{link}{}", d.mac.as_ref().map_or(String::new(), |mac| format!(" {mac}")));
    let family = |addr: &str| if addr.contains(':') { "inet6" } else { "inet" };
    for addr in &d.addrs {
        let _ = writeln!(text, "    {} {addr}", family(addr));
    }
    for addr in &d.tentative {
        let _ = writeln!(text, "    {} {addr} tentative", family(addr));
    }
    if stats {
        stats_text(&mut text, d);
    }
    text
}

/// Two small tables, each column as wide as it must be.
fn stats_text(text: &mut String, d: &DeviceRecord) {
    let q = |name: &str| d.qstats.get(name).copied().unwrap_or(0);
    let rx = [
        ("bytes", q("rx_bytes")),
        ("wire_pkts", q("rx_wire_pkts")),
        ("skbs", q("rx_skbs")),
        ("csum_bad", q("rx_csum_bad")),
        ("alloc_fail", q("rx_alloc_fail")),
        ("overruns", q("rx_hw_drop_overruns")),
    ];
    let tx = [
        ("bytes", q("tx_bytes")),
        ("wire_pkts", q("tx_wire_pkts")),
        ("skbs", q("tx_skbs")),
        ("stops", q("tx_stop")),
        ("backlog", d.backlog_skbs),
        ("dropped", d.qdisc_drops),
    ];
    for (name, table) in [("RX:", rx), ("TX:", tx)] {
        let (mut titles, mut numbers) = (format!("    {name}"), String::from("       "));
        for (title, n) in table {
            let width = title.len().max(n.to_string().len()).max(10);
            let _ = write!(titles, " {title:>width$}");
            let _ = write!(numbers, " {n:>width$}");
        }
        text.push_str(&format!("{titles}\n{numbers}\n"));
    }
}

fn statistics_text(d: &DeviceRecord) -> String {
    let mut text = format!("NIC statistics of {}:\n", d.name);
    for (name, n) in &d.qstats {
        let _ = writeln!(text, "     {name}: {n}");
    }
    // One queue has counted all of it.
    for queue in d.queue_qstats.iter().filter(|_| d.queue_qstats.len() > 1) {
        for (name, n) in &queue.qstats {
            let _ = writeln!(text, "     shard_{}_queue_{}_{name}: {n}", queue.shard, queue.queue);
        }
    }
    text
}

fn features_text(d: &DeviceRecord) -> String {
    let mut text = format!("Features for {}:\n", d.name);
    for (name, on) in &d.features {
        let _ = writeln!(text, "{name}: {}", if *on { "on" } else { "off" });
    }
    limits_text(&mut text, &d.limits);
    text
}

fn limits_text(text: &mut String, limits: &BTreeMap<String, u64>) {
    for (name, n) in limits {
        let _ = writeln!(text, "{name}: {n}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it comes from the socket.
    fn device(shard: u32, rx_bytes: u64) -> DeviceRecord {
        let record = json!({
            "shard": shard, "ifindex": 2, "name": "lin0", "link": "ip", "up": true, "mtu": 1500, "queues": 1, "any_ip": false,
            "addrs": ["10.9.0.2/24", "fd09::2/64"], "features": { "tx-checksumming": true, "by-reference": false },
            "limits": { "gso_max_size": 65536 }, "backlog_skbs": 1, "qdisc_drops": 2,
            "qstats": { "rx_bytes": rx_bytes, "rx_wire_pkts": 45, "rx_skbs": 1, "tx_bytes": 5 },
            "queue_qstats": [{ "shard": shard, "queue": 0, "qstats": { "rx_bytes": rx_bytes } }],
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn shares_of_a_device_are_one_device() {
        let mut found = Vec::new();
        add(&mut found, device(0, 1_000));
        add(&mut found, device(1, 234));
        let [d] = &found[..] else { panic!("{found:?}") };
        assert_eq!((d.queues, d.qstats["rx_bytes"], d.qstats["rx_wire_pkts"], d.qdisc_drops), (2, 1_234, 90, 4));
        let text = statistics_text(d);
        assert!(text.contains("\n     rx_bytes: 1234\n"), "{text}");
        assert!(text.ends_with("     shard_0_queue_0_rx_bytes: 1000\n     shard_1_queue_0_rx_bytes: 234\n"), "{text}");
        assert!(find(found, "lin1").is_err_and(|e| e.contains("lin0")));
    }

    #[test]
    fn text_is_ips_and_ethtools() {
        let d = device(0, 65_226_000_000);
        let expected = "\
2: lin0: <POINTOPOINT,NOARP,UP,LOWER_UP> mtu 1500 qdisc fifo state UP queues 1
    link/none
    inet 10.9.0.2/24
    inet6 fd09::2/64
    RX:       bytes  wire_pkts       skbs   csum_bad alloc_fail   overruns
        65226000000         45          1          0          0          0
    TX:      bytes  wire_pkts       skbs      stops    backlog    dropped
                 5          0          0          0          1          2
";
        assert_eq!(link_text(&d, true), expected);
        let without: String = expected.lines().take(4).map(|line| line.to_owned() + "\n").collect();
        assert_eq!(link_text(&d, false), without);
        assert_eq!(
            features_text(&d),
            "Features for lin0:\nby-reference: off\ntx-checksumming: on\ngso_max_size: 65536\n"
        );
        assert!(statistics_text(&d).ends_with("\n     tx_bytes: 5\n"), "a queue alone says nothing new");
    }
}
