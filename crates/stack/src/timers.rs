//! Time passes: the three wheels of the TCP layer.
//!
//! One key per entry of each slab, armed at the earliest of its deadlines and moved only when that comes earlier: an RTO
//! that every ACK pushes back costs a comparison, and the wheel fires early now and then to find the deadline moved. A
//! fired connection is dirty, and the output pass arms it again. Work is bounded by the entries that are due; a clock that
//! leaps by hours fires each armed entry once.

use linerate_base::{Instant, TimerWheel};

use crate::core_state::Core;
use crate::shard::earlier;
use crate::tcp::{Sock, TcpLayer, tcp_cx};

impl TcpLayer {
    /// Fires everything that is due at `core.now`.
    pub(crate) fn run_timers(&mut self, core: &mut Core) {
        let now = core.now;
        while let Some(index) = self.timers.pop_expired(now) {
            let Some(conn) = self.socks.get_by_index_mut(index).and_then(Sock::conn_mut) else { continue };
            if conn.next_timer().is_some_and(|at| at <= now) {
                conn.on_timer(&mut tcp_cx(core, &mut self.challenge));
            }
            self.mark(index);
        }
        while let Some(index) = self.req_timers.pop_expired(now) {
            self.on_req_timer(core, index);
        }
        while let Some(index) = self.tw_timers.pop_expired(now) {
            self.on_tw_timer(core, index);
        }
    }

    /// Tells the wheels the time, so that what is armed from now on is near or far from it.
    pub(crate) fn observe(&mut self, now: Instant) {
        self.timers.observe(now);
        self.req_timers.observe(now);
        self.tw_timers.observe(now);
    }

    /// The earliest deadline of the layer.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut next = self.timers.next_deadline();
        for wheel in [&self.req_timers, &self.tw_timers] {
            if !wheel.is_empty() {
                next = earlier(next, wheel.next_deadline());
            }
        }
        next
    }
}

/// Arms a connection's key at its earliest deadline, unless the wheel already looks at it before that.
pub(crate) fn rearm(timers: &mut TimerWheel, index: u32, sock: &Sock) {
    let next = sock.conn().and_then(|c| c.next_timer());
    match (next, timers.deadline(index)) {
        (None, None) => {}
        (None, Some(_)) => {
            timers.cancel(index);
        }
        (Some(at), Some(armed)) if armed <= at => {}
        (Some(at), _) => timers.arm(index, at),
    }
}
