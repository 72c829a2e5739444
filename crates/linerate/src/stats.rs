//! Counters of a stack: what [`Stack::stats`](crate::Stack::stats) returns.
//!
//! A snapshot is taken on a shard's own thread between two turns, so its numbers fit each other. A stack of several shards
//! is the sum of their snapshots, which are of slightly different moments. Counters only grow, levels (sockets, pages out)
//! come and go; both add up.
//! Limits: a sum does not say which shard it was; ask the shard for that
//! ([`StackHandle::with_each_shard`](crate::StackHandle::with_each_shard)).

use linerate_base::Instant;
use linerate_netdev::{IfIndex, Qstats};
use linerate_stack::steer::SteerStats;
use linerate_stack::{LOOPBACK, Mibs, Shard};

/// Counters of a stack at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The stack's time.
    pub now: Instant,
    /// `Tcp:`, `Ip:`, `Udp:`, `Icmp:` and drops by reason, under Linux's names.
    pub mibs: Mibs,
    /// By interface, the loopback first.
    pub interfaces: Vec<InterfaceStats>,
    /// TCP sockets, orphans included.
    pub tcp_sockets: usize,
    /// Half-open connections.
    pub tcp_requests: usize,
    /// TIME-WAIT states.
    pub tcp_time_wait: usize,
    /// Pages of the shard's own transmit pool that are out.
    pub tx_pages_inflight: u32,
    /// Descriptors that are out.
    pub skbs_inflight: u32,
    /// What shards handed over to each other; zeros with one shard.
    pub steer: SteerStats,
}

/// Counters of one interface.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InterfaceStats {
    /// Its number.
    pub ifindex: IfIndex,
    /// Its name.
    pub name: String,
    /// Its queues' counters, added up.
    pub qstats: Qstats,
}

impl Stats {
    /// The counters of a shard that the caller turns itself.
    pub fn of(shard: &Shard) -> Self {
        let (tcp_sockets, tcp_requests, tcp_time_wait) = shard.tcp_counts();
        let lo = InterfaceStats {
            ifindex: LOOPBACK,
            name: "lo".to_owned(),
            qstats: shard.qstats(LOOPBACK).unwrap_or_default(),
        };
        let devices = shard.links().devices().filter(|d| d.ifindex != LOOPBACK).map(|d| InterfaceStats {
            ifindex: d.ifindex,
            name: d.name.clone(),
            qstats: d.qstats(),
        });
        Self {
            now: shard.now(),
            mibs: shard.mibs().clone(),
            interfaces: std::iter::once(lo).chain(devices).collect(),
            tcp_sockets,
            tcp_requests,
            tcp_time_wait,
            tx_pages_inflight: shard.core().mem.tx_pool.inflight(),
            skbs_inflight: shard.core().mem.skbs.inflight(),
            steer: shard.steer_stats(),
        }
    }

    /// Adds the counters of another shard of the same stack.
    pub fn merge(&mut self, other: &Self) {
        self.now = self.now.max(other.now);
        self.mibs.merge(&other.mibs);
        // Devices have the same numbers on all shards.
        for (mine, theirs) in self.interfaces.iter_mut().zip(&other.interfaces) {
            mine.qstats.merge(&theirs.qstats);
        }
        self.tcp_sockets += other.tcp_sockets;
        self.tcp_requests += other.tcp_requests;
        self.tcp_time_wait += other.tcp_time_wait;
        self.tx_pages_inflight += other.tx_pages_inflight;
        self.skbs_inflight += other.skbs_inflight;
        self.steer.merge(&other.steer);
    }
}
