//! The threads of a stack as its handles see them: one [`Port`] per shard, and who gets what.
//!
//! ```text
//!   StackHandle ── Shards ┬─ Port 0: command ring, calls ──▶ shard 0 on its thread
//!                         ├─ Port 1: ...                 ──▶ shard 1       flows find their shard by `Homes`
//! ```
//! A listener is opened on every shard. A connection is opened on one shard after the other, so that load spreads, and that
//! shard chooses a port with which the flow comes home to it; a caller who names the port has thereby chosen the shard. The
//! port of a UDP socket names its shard.
//!
//! Invariants: a stack has at least one port; with one shard there is no rule to ask and nothing to choose.
//! Not here: packets. Those find their shard below, in `linerate_stack::steer`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linerate_stack::remote::{HandleError, ShardRemote};
use linerate_stack::steer::Homes;

use crate::driver::Control;

/// The way to one shard.
pub(crate) struct Port {
    /// Behind a lock because the command ring has one producer; only opening a socket takes it, never moving bytes.
    pub(crate) remote: Mutex<ShardRemote>,
    pub(crate) control: Arc<Control>,
}

impl Port {
    /// Sends a command; waits for room in the command ring, which the stack empties once a turn.
    pub(crate) fn command<T>(&self, send: impl Fn(&ShardRemote) -> Result<T, HandleError>) -> Result<T, HandleError> {
        loop {
            match send(&self.remote.lock().unwrap_or_else(PoisonError::into_inner)) {
                Err(HandleError::WouldBlock) => std::thread::yield_now(),
                done => return done,
            }
        }
    }
}

/// The ways to all shards of a stack.
pub(crate) struct Shards {
    ports: Vec<Port>,
    /// `None` for one shard.
    homes: Option<Homes>,
    /// Sockets that may live anywhere are given out in turn.
    next: AtomicUsize,
}

impl Shards {
    pub(crate) fn new(ports: Vec<Port>, homes: Option<Homes>) -> Self {
        debug_assert_eq!(ports.len(), homes.map_or(1, |h| h.shards()));
        Self { ports, homes, next: AtomicUsize::new(0) }
    }
    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.ports.len()
    }
    pub(crate) fn port(&self, shard: usize) -> Option<&Port> {
        self.ports.get(shard)
    }
    pub(crate) fn controls(&self) -> impl Iterator<Item = &Arc<Control>> {
        self.ports.iter().map(|port| &port.control)
    }

    fn in_turn(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.ports.len()
    }
    /// The shard that opens a connection from `local` (port 0: any) to `remote`.
    pub(crate) fn for_connect(&self, local: Option<SocketAddr>, remote: SocketAddr) -> usize {
        match (self.homes, local.map_or(0, |l| l.port())) {
            (None, _) => 0,
            (Some(_), 0) => self.in_turn(),
            (Some(homes), port) => homes.of_tcp(port, remote),
        }
    }
    /// The shard of a UDP socket with this port (0: any).
    pub(crate) fn for_udp(&self, port: u16) -> usize {
        match (self.homes, port) {
            (None, _) => 0,
            (Some(_), 0) => self.in_turn(),
            (Some(homes), port) => homes.of_udp(port),
        }
    }
    /// The shard of a connection.
    pub(crate) fn of_tcp(&self, local_port: u16, peer: SocketAddr) -> usize {
        self.homes.map_or(0, |homes| homes.of_tcp(local_port, peer))
    }
}
