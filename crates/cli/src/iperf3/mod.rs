//! `linerate iperf3`: the protocol of iperf3 as client and server over this stack, so that stock iperf3 can be the peer.
//!
//! ```text
//!   args ─▶ run (device, clock, loop) ─▶ Engine: client | server ─▶ session        one test at a time
//!                                           ctrl ─ proto        test ─ stream ─ pace
//!                                           report ─ text | json ◀─ summary
//! ```
//! The engine is a state machine over an inline shard: time comes in, text comes out, nothing waits. The protocol is
//! written from its documentation and from what iperf3 3.12 sends; what differs is said where it differs.

pub(crate) mod args;
mod client;
mod cpu;
mod ctrl;
mod engine;
mod json;
mod pace;
mod proto;
mod report;
mod run;
mod server;
mod session;
mod stream;
mod summary;
mod test;
mod text;

pub(crate) use run::main;

#[cfg(test)]
mod pair_tests;
