//! Congestion control: numbers in, numbers out. Reno and CUBIC with HyStart.
//!
//! A connection owns a [`CcState`] (cwnd, ssthresh and what is known about the path) and one [`Algorithm`]. On every ACK
//! it first calls [`CongestionControl::pkts_acked`] with what the ACK taught, then, unless proportional rate reduction
//! or another recovery rule sets cwnd, [`CongestionControl::cong_avoid`]. When congestion is seen it asks
//! [`CongestionControl::ssthresh`], and when that proves to have been a mistake [`CongestionControl::undo_cwnd`].
//! Everything else (RTO, ECN marks, a first send after idle) arrives as a [`CcEvent`].
//!
//! Invariants: cwnd is never 0 and never grows beyond `cwnd_clamp`; no input can make an algorithm panic, overflow or
//! loop for longer than a constant; nothing reads a clock or allocates (only boxing a custom algorithm does).
//! Behaviour is that of Linux 6.x with HZ = 1000; units are wire segments of `mss` bytes and microseconds.
//! Not here: loss detection, PRR, pacing, the cwnd of an idle connection. Those belong to the connection.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod algorithm;
mod cubic;
mod hystart;
mod reno;
mod state;

pub use algorithm::{Algorithm, CongestionControl};
pub use cubic::Cubic;
pub use hystart::HystartMib;
pub use reno::Reno;
pub use state::{CaState, CcEvent, CcState, INFINITE_SSTHRESH, RateSample};

#[cfg(test)]
mod tests;
