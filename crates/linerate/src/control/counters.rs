//! The command `counters`: Linux's counters, the reasons of drops and of resets, and what shards handed to each other; all
//! summed over the shards.
//!
//! Each shard is asked once and copies its tables, so the counters of a shard are of one moment; those of two shards may be
//! a turn apart. All counters grow from the start of the stack; who wants a rate asks twice. `TcpCurrEstab` is a level.
//! IPv4 and IPv6 are counted together, under the names of IPv4 (`Ip*`, `Icmp*`, `Udp*`).

use std::collections::BTreeMap;

use linerate_stack::Mibs;
use linerate_stack::steer::SteerStats;
use serde_json::{Map, Value, json};

use super::command::{Command, Cx, Gather, Started, Step, no_fields};
use super::proto::Refusal;

/// `None` before the question was asked.
struct Counters(Option<Gather<(Mibs, SteerStats)>>);

pub(crate) fn start(given: Map<String, Value>) -> Started {
    no_fields(given)?;
    Ok(Box::new(Counters(None)))
}

impl Command for Counters {
    fn advance(&mut self, cx: &mut Cx<'_>) -> Result<Step, Refusal> {
        let gather = self.0.get_or_insert_with(|| cx.ask_all(|shard| (shard.mibs().clone(), shard.steer_stats())));
        let Some(shards) = gather.poll()? else { return Ok(Step::Wait) };
        let (mut sum, mut steer) = (Mibs::default(), SteerStats::default());
        for (_, (one, handed)) in &shards {
            steer.merge(handed);
            sum.tcp.merge(&one.tcp);
            sum.ip.merge(&one.ip);
            sum.udp.merge(&one.udp);
            sum.icmp.merge(&one.icmp);
            sum.drops.merge(&one.drops);
            sum.rsts.merge(&one.rsts);
        }
        // In the order of Linux's tables, which a map that sorts would lose.
        let named = sum.ip.iter().chain(sum.icmp.iter()).chain(sum.tcp.iter()).chain(sum.udp.iter());
        let list: Vec<(&str, u64)> = named.collect();
        cx.emit("counters", &list)?;
        let drops: BTreeMap<&str, u64> = sum.drops.iter().map(|(reason, n)| (reason.name(), n)).collect();
        cx.emit("drops", &drops)?;
        let resets: BTreeMap<&str, u64> = sum.rsts.iter().map(|(reason, n)| (reason.name(), n)).collect();
        cx.emit("resets", &resets)?;
        let SteerStats { wrong_shard, dropped, from_siblings, .. } = steer;
        let steer = json!({ "wrong_shard": wrong_shard, "dropped": dropped, "from_siblings": from_siblings });
        cx.emit("steer", &steer)?;
        Ok(Step::Done(json!({ "shards": shards.len() })))
    }
}
