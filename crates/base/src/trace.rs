//! The trace hook: what a connection did, step by step, for who wants to know (STYLE habit 4).
//!
//! Theory: the core states facts as [`TraceEvent`]s, plain `Copy` data without strings to format. Who does not listen passes
//! [`NoTrace`], a zero-sized type whose `enabled` is a constant `false`: after inlining neither the event nor the question is
//! left. Who listens passes a [`TraceRing`] (the last events of a connection, read when it went wrong) or any other
//! [`Trace`], also as `&mut dyn Trace`.
//!
//! Limits: events say what happened and carry numbers only; they own no memory and borrow no packet. Counting is the job
//! of [`crate::mib`], not of traces. The hook may not act on the stack.

use alloc::collections::VecDeque;

use crate::drop_reason::DropReason;
use crate::time::Instant;

/// What happened.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum TraceKind {
    /// A segment came in.
    Rcv {
        /// First sequence number.
        seq: u32,
        /// Acknowledgement number.
        ack: u32,
        /// Payload, bytes.
        len_bytes: u32,
        /// TCP flags as on the wire.
        flags: u8,
    },
    /// A segment went out.
    Xmit {
        /// First sequence number.
        seq: u32,
        /// Acknowledgement number.
        ack: u32,
        /// Payload, bytes.
        len_bytes: u32,
        /// TCP flags as on the wire.
        flags: u8,
        /// Sent before.
        retrans: bool,
    },
    /// The connection state changed.
    State {
        /// Before.
        from: &'static str,
        /// After.
        to: &'static str,
    },
    /// The congestion state changed (Open, Disorder, Cwr, Recovery, Loss).
    CaState {
        /// Before.
        from: &'static str,
        /// After.
        to: &'static str,
    },
    /// A new congestion window.
    Cwnd {
        /// Window, segments.
        cwnd: u32,
        /// Slow-start threshold, segments.
        ssthresh: u32,
        /// Outstanding, segments.
        in_flight: u32,
    },
    /// A new round-trip sample.
    Rtt {
        /// The sample, microseconds.
        sample_us: u32,
        /// The smoothed value, microseconds.
        srtt_us: u32,
        /// The retransmission timeout that follows, microseconds.
        rto_us: u32,
    },
    /// A named timer fired.
    Timer(&'static str),
    /// An skb died.
    Drop(DropReason),
    /// Anything else, with one number.
    Note(&'static str, u64),
}

/// One fact, with its time and its connection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TraceEvent {
    /// When.
    pub at: Instant,
    /// Index of the socket.
    pub sock: u32,
    /// What.
    pub kind: TraceKind,
}

/// A listener.
pub trait Trace {
    /// False when events need not even be made.
    fn enabled(&self) -> bool {
        true
    }

    /// Takes one event.
    fn event(&mut self, ev: &TraceEvent);

    /// Makes and delivers an event if somebody listens.
    #[inline]
    fn emit(&mut self, make: impl FnOnce() -> TraceEvent)
    where
        Self: Sized,
    {
        if self.enabled() {
            self.event(&make());
        }
    }
}

/// Nobody listens; costs nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoTrace;

impl Trace for NoTrace {
    #[inline(always)]
    fn enabled(&self) -> bool {
        false
    }
    #[inline(always)]
    fn event(&mut self, _: &TraceEvent) {}
}

impl<T: Trace + ?Sized> Trace for &mut T {
    #[inline]
    fn enabled(&self) -> bool {
        (**self).enabled()
    }
    #[inline]
    fn event(&mut self, ev: &TraceEvent) {
        (**self).event(ev);
    }
}

impl<T: Trace> Trace for Option<T> {
    #[inline]
    fn enabled(&self) -> bool {
        self.as_ref().is_some_and(Trace::enabled)
    }
    #[inline]
    fn event(&mut self, ev: &TraceEvent) {
        if let Some(t) = self {
            t.event(ev);
        }
    }
}

/// A black box: the last events, allocated once.
#[derive(Clone, Debug)]
pub struct TraceRing {
    events: VecDeque<TraceEvent>,
    keep: usize,
    lost: u64,
}

impl TraceRing {
    /// Keeps the last `keep` events.
    pub fn new(keep: usize) -> Self {
        Self { events: VecDeque::with_capacity(keep), keep, lost: 0 }
    }

    /// The kept events, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &TraceEvent> {
        self.events.iter()
    }

    /// Events that were overwritten.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl Trace for TraceRing {
    fn event(&mut self, ev: &TraceEvent) {
        if self.events.len() == self.keep {
            self.lost += 1;
            if self.events.pop_front().is_none() {
                return;
            }
        }
        self.events.push_back(*ev);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn note(n: u64) -> TraceEvent {
        TraceEvent { at: Instant::from_nanos(n), sock: 0, kind: TraceKind::Note("n", n) }
    }

    #[test]
    fn nobody_listens_for_free() {
        assert_eq!(size_of::<NoTrace>(), 0);
        NoTrace.emit(|| panic!("made an event for nobody"));
        None::<TraceRing>.emit(|| panic!("made an event for nobody"));
        Trace::emit(&mut &mut NoTrace, || panic!("made an event for nobody"));
    }

    #[test]
    fn the_ring_keeps_the_last_and_never_grows() {
        let mut ring = TraceRing::new(3);
        let room = ring.events.capacity();
        for n in 0..10 {
            ring.emit(|| note(n));
        }
        assert_eq!(ring.iter().map(|e| e.at.as_nanos()).collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!((ring.lost(), ring.events.capacity()), (7, room));
        let mut none = TraceRing::new(0);
        let mut dynamic: &mut dyn Trace = &mut none;
        Trace::emit(&mut dynamic, || note(1));
        assert_eq!((none.iter().count(), none.lost()), (0, 1));
    }
}
