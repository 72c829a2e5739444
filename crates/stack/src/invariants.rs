//! What must hold between turns, whatever the network did: for tests and the simulator.
//!
//! [`Shard::check_invariants`] walks everything (O(sockets)) and panics at the first contradiction. It belongs after turns
//! of a simulation, never into a data path. Checked: every table entry is found under its own key and nothing else is in
//! the table; every local port is held exactly as often as somebody holds it; the wheel looks at each connection before
//! its earliest deadline, and at each neighbour whose state runs out; a socket is dirty exactly when it is listed; listeners count their half-open connections; no skb
//! died without a reason. [`Shard::assert_quiescent`] adds that all memory is home, for the end of a run.

use linerate_base::{DropReason, TimerWheel};

use crate::demux::Entry;
use crate::shard::Shard;
use crate::tcp::{Body, TcpLayer, flag, hash_of};
use crate::timers::REQ_GRACE;

impl Shard {
    /// Checks everything that must hold between turns.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn check_invariants(&self) {
        self.check_drops();
        let tcp = &self.tcp;
        self.check_table();
        check_ports(tcp);
        check_timers(tcp);
        check_dirty(tcp);
        check_listeners(tcp);
        self.core.links.neigh.table.check_invariants();
        for (_, sock) in tcp.socks.iter() {
            if let Some(conn) = sock.conn() {
                conn.check_invariants();
            }
        }
    }

    fn check_drops(&self) {
        let mibs = &self.core.mibs;
        assert_eq!(mibs.drops.get(DropReason::NotSpecified), 0, "an skb was dropped without a reason");
        assert_eq!(self.core.mem.skbs.silent_drops(), 0, "an skb died silently");
        // One that was asked for may wait, or find nobody to go to.
        assert!(mibs.tcp.out_rsts <= mibs.rsts.total(), "a reset without a reason");
    }

    fn check_table(&self) {
        let tcp = &self.tcp;
        let mut entries = 0;
        let mut is_found = |entry: Entry, key: &linerate_wire::flow::FlowKey| {
            entries += 1;
            let hash = hash_of(&self.core.hash_key, key);
            assert_eq!(tcp.lookup(hash, key), Some(entry), "{key} is not found as {entry:?}");
        };
        for (at, sock) in tcp.socks.iter().filter(|(_, s)| s.has(flag::IN_TABLE)) {
            let conn = sock.conn().expect("only connections are in the table");
            is_found(Entry::Conn(at.index), conn.key());
            assert_eq!(sock.hash, hash_of(&self.core.hash_key, conn.key()));
        }
        for (at, req) in tcp.reqs.iter() {
            is_found(Entry::Req(at.index), req.sock.key());
        }
        for (at, tw) in tcp.tws.iter() {
            is_found(Entry::Tw(at.index), tw.sock.key());
        }
        assert_eq!(tcp.table.len(), entries, "the table holds somebody who is gone");
    }

    /// Checks that nothing is left: no sockets but listeners, no TIME-WAIT, all memory home. Pages of handles that other
    /// threads still hold are not the shard's.
    ///
    /// # Panics
    /// When something is left.
    pub fn assert_quiescent(&mut self) {
        self.check_invariants();
        let tcp = &self.tcp;
        for (key, sock) in tcp.socks.iter() {
            assert!(!matches!(sock.body, Body::Conn(_)), "socket {} is still a connection", key.index);
        }
        assert!(tcp.reqs.is_empty() && tcp.tws.is_empty(), "half-open or finished connections are left");
        let late = |wheel: &TimerWheel, end, by| (0..end).any(|i| wheel.deadline(i).is_some_and(|at| at > by));
        let now = self.core.now;
        assert!(tcp.timers.is_empty(), "a timer is armed");
        assert!(!late(&tcp.req_timers, tcp.reqs.index_end(), now + REQ_GRACE), "a request's timer is armed");
        assert!(tcp.tw_timers.is_empty(), "a timer of TIME-WAIT is armed");
        assert_eq!(self.core.mem.tcp.allocated_bytes, 0, "TCP memory is still charged");
        self.core.mem.skbs.reclaim();
        self.core.mem.tx_pool.reclaim();
        assert_eq!(self.core.mem.skbs.inflight(), 0, "descriptors are out");
        let page = u32::from(self.core.mem.tx_page.is_some());
        assert!(self.core.mem.tx_pool.inflight() <= page, "transmit pages are out");
    }
}

fn check_ports(tcp: &TcpLayer) {
    let bound = tcp.socks.iter().filter(|(_, s)| s.has(flag::BOUND)).count();
    let waiting = tcp.tws.iter().filter(|(_, t)| t.flags & flag::BOUND != 0).count();
    assert_eq!(tcp.binds.len(), bound + waiting, "a port is held by nobody, or not held by its owner");
}

fn check_timers(tcp: &TcpLayer) {
    for (at, sock) in tcp.socks.iter() {
        let armed = tcp.timers.deadline(at.index);
        assert_eq!(
            sock.watched,
            armed.unwrap_or(linerate_base::Instant::FAR_FUTURE),
            "the wheel looks at another time"
        );
        let Some(next) = sock.conn().and_then(|c| c.next_timer()) else {
            assert!(armed.is_none() || sock.has(flag::DIRTY), "a timer is armed for nothing");
            continue;
        };
        let in_time = armed.is_some_and(|a| a <= next);
        assert!(in_time || sock.has(flag::DIRTY), "armed at {armed:?}, due at {next:?}");
    }
    assert!(tcp.reqs.iter().all(|(at, _)| tcp.req_timers.is_armed(at.index)), "a request without a timer");
    assert!(tcp.tws.iter().all(|(at, _)| tcp.tw_timers.is_armed(at.index)), "a TIME-WAIT state without a timer");
    assert_eq!(tcp.tw_timers.len(), tcp.tws.len());
}

fn check_dirty(tcp: &TcpLayer) {
    let flagged = tcp.socks.iter().filter(|(_, s)| s.has(flag::DIRTY)).count();
    let is_dirty = |i: &&u32| tcp.socks.get_by_index(**i).is_some_and(|s| s.has(flag::DIRTY));
    assert!(tcp.dirty.iter().filter(is_dirty).count() >= flagged, "a dirty socket is not in the list");
    assert!(tcp.batch.is_empty() && tcp.working.is_empty(), "an output pass left something behind");
}

fn check_listeners(tcp: &TcpLayer) {
    for (key, sock) in tcp.socks.iter() {
        let Body::Listen(l) = &sock.body else { continue };
        let mine = tcp.reqs.iter().filter(|(_, r)| r.listener == key).count();
        assert_eq!(l.syn_qlen as usize, mine, "half-open connections of a listener");
        assert!(l.accept.len() <= l.backlog as usize + 1, "accept queue over its limit");
        for child in &l.accept {
            let child = tcp.sock(*child).expect("who waits to be accepted lives");
            assert!(child.has(flag::UNACCEPTED) && child.conn().is_some());
        }
    }
}
