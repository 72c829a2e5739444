//! What a shard does when TCP memory runs short, and the groups that its sockets may be in (SYSTEMS A39, A40).
//!
//! The accounts are `linerate_tcp::mem`'s: charging is done where bytes are queued, and under pressure each socket
//! already gets no more than its share. What is left for the shard is to take back: while an account is under pressure,
//! [`Shard::relieve`] visits sockets in turn, at most [`RELIEVE_SOCKETS`] each [`RELIEVE_INTERVAL`], collapses their
//! queues, lets their windows fall back to a few segments, and lets out-of-order data of the greedy go. Nothing of this can
//! starve the others: the work is bounded, and data that was acknowledged in order is never dropped.
//!
//! Groups are named, as control groups are: a service, a tenant, a gateway's peer. A socket is in the group that its options
//! say when its connection begins; children are in their listener's. Not here: budgets across shards (each has its own).

use alloc::string::String;
use alloc::vec::Vec;

use linerate_base::{Duration, Instant, Key};
use linerate_tcp::{MemGroup, MemLimits};

use crate::shard::Shard;
use crate::sock::SockId;
use crate::tcp::{Sock, tcp_cx};

/// Time between two passes over sockets under pressure.
const RELIEVE_INTERVAL: Duration = Duration::from_millis(100);
/// Sockets of one pass.
const RELIEVE_SOCKETS: usize = 4096;

/// What the shard remembers about pressure.
#[derive(Default)]
pub(crate) struct Pressure {
    /// Names of the groups; the first is group 1.
    names: Vec<String>,
    /// Beginnings that were counted.
    begun: u64,
    since: Option<Instant>,
    last: Instant,
    /// Where the next pass begins.
    cursor: u32,
}

/// Memory.
impl Shard {
    /// A group of sockets whose memory is limited together; of a known name: with new limits.
    pub fn mem_group(&mut self, name: &str, limits: MemLimits) -> Option<MemGroup> {
        let acct = &mut self.core.mem.tcp;
        if let Some(at) = self.pressure.names.iter().position(|n| n == name) {
            let group = MemGroup(at as u16 + 1);
            let known = acct.set_group_limits(group, limits);
            debug_assert!(known, "a name without a group");
            return Some(group);
        }
        let group = acct.add_group(limits)?;
        self.pressure.names.push(String::from(name));
        Some(group)
    }
    /// The groups by name, with the bytes that each holds.
    pub fn mem_groups(&self) -> impl Iterator<Item = (&str, u64)> {
        let acct = &self.core.mem.tcp;
        self.pressure.names.iter().enumerate().map(|(i, n)| (n.as_str(), acct.group_bytes(MemGroup(i as u16 + 1))))
    }
    /// Truesize of all that a connection holds, bytes.
    pub fn sock_mem_bytes(&self, id: SockId) -> u32 {
        self.tcp.sock(id).and_then(Sock::conn).map_or(0, |c| c.mem_bytes())
    }

    /// Counts pressure, and takes memory back while there is any.
    #[inline]
    pub(crate) fn watch_pressure(&mut self) {
        self.core.mem.tcp.sockets = self.tcp.socks.len() as u32;
        if self.core.mem.tcp.any_pressure() || self.pressure.begun != self.core.mem.tcp.pressures() {
            self.relieve();
        } else if self.pressure.since.is_some() {
            self.note_relief();
        }
    }

    #[cold]
    fn note_relief(&mut self) {
        if let Some(since) = self.pressure.since.take() {
            self.core.mibs.tcp.memory_pressures_chrono += self.core.now.since(since).as_millis() as u64;
        }
    }

    #[cold]
    fn relieve(&mut self) {
        let (now, begun) = (self.core.now, self.core.mem.tcp.pressures());
        let p = &mut self.pressure;
        self.core.mibs.tcp.memory_pressures += begun - p.begun;
        p.begun = begun;
        p.since.get_or_insert(now);
        if now < p.last + RELIEVE_INTERVAL && p.last != Instant::ZERO {
            return;
        }
        p.last = now;
        let mut from = p.cursor;
        for _ in 0..RELIEVE_SOCKETS {
            let Some(Key { index, .. }) = self.tcp.socks.next_from(from) else {
                from = 0;
                break;
            };
            from = index + 1;
            let conn = self.tcp.socks.get_by_index_mut(index).and_then(Sock::conn_mut);
            if conn.is_some_and(|conn| conn.relieve(&mut tcp_cx(&mut self.core, &mut self.tcp.challenge))) {
                self.tcp.mark(index);
            }
        }
        self.pressure.cursor = from;
    }
}
