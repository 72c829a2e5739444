//! Time passes: the three wheels of the TCP layer.
//!
//! One key per entry of each slab, armed at the earliest of its deadlines and moved only when that comes earlier: an RTO
//! that every ACK pushes back costs a comparison, and the wheel fires early now and then to find the deadline moved. A
//! fired connection is dirty, and the output pass arms it again. Work is bounded by the entries that are due; a clock that
//! leaps by hours fires each armed entry once.

use linerate_base::{Duration, Instant, TimerWheel};

use crate::core_state::Core;
use crate::tcp::{Body, Sock, TcpLayer, tcp_cx};

/// A request's key that is to fire within this time stays armed when the request goes: the next one takes its place.
pub(crate) const REQ_GRACE: Duration = Duration::from_secs(2);

impl TcpLayer {
    /// Fires everything that is due at `core.now`.
    pub(crate) fn run_timers(&mut self, core: &mut Core) {
        let now = core.now;
        while let Some(index) = self.timers.pop_expired(now) {
            let Some(sock) = self.socks.get_by_index_mut(index) else { continue };
            sock.watched = Instant::FAR_FUTURE;
            let Body::Conn(conn) = &mut sock.body else { continue };
            if conn.alarm() <= now {
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
    #[inline]
    pub(crate) fn observe(&mut self, now: Instant) {
        self.timers.observe(now);
        self.req_timers.observe(now);
        self.tw_timers.observe(now);
    }

    /// No timer of the layer is due before.
    #[inline]
    pub(crate) fn quiet_until(&mut self) -> Instant {
        self.timers.quiet_until().min(self.req_timers.quiet_until()).min(self.tw_timers.quiet_until())
    }
}

/// Arms a connection's key at its earliest deadline, unless the wheel already looks at it before that.
#[inline]
pub(crate) fn rearm(timers: &mut TimerWheel, index: u32, sock: &mut Sock) {
    let Body::Conn(conn) = &sock.body else { return };
    let alarm = conn.alarm();
    if alarm < sock.watched || (alarm == Instant::FAR_FUTURE && sock.watched != alarm) {
        watch(timers, index, sock);
    }
}

/// The wheel seems to look too late, or for nothing.
fn watch(timers: &mut TimerWheel, index: u32, sock: &mut Sock) {
    let Body::Conn(conn) = &mut sock.body else { return };
    let at = conn.sharpen_alarm();
    if at == Instant::FAR_FUTURE {
        timers.cancel(index);
    } else if at < sock.watched {
        timers.arm(index, at);
    } else {
        return;
    }
    sock.watched = at;
}
