//! Simulated networks under virtual time, fault plans, checkers and the packetdrill-language runner.
//!
//! The production stack runs here in a world that is an argument: [`wire`]s with rate, delay and faults, [`device`]s with
//! every offload on or off, and one clock that jumps from event to event. Everything follows from a seed, so a failure is
//! a number, and the same number gives the capture of it.
//!
//! Nothing here is for production: simplicity and checks come before speed. The only place that uses threads runs whole
//! seeds beside each other.

pub mod apps;
pub mod checkers;
pub mod cli;
pub mod device;
pub mod drill;
pub mod link;
pub mod net;
pub mod seed;
pub mod tap;
pub mod timeline;
pub mod wire;
