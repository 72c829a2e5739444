//! The manual: what to know beyond the signatures, a chapter per module.
//!
//! These modules hold text and runnable examples, no code. Read [`super_packets`] first, it explains why the rest is as it
//! is; [`embedding`] when the packets are yours; [`errors`] and [`wait_modes`] before writing a server; [`memory`] before tuning one; [`limits`] before choosing this
//! crate. Numbers that depend on a machine are not in here: measure with the command `linerate speed`.

pub mod determinism;
pub mod embedding;
pub mod errors;
pub mod limits;
pub mod looking_inside;
pub mod memory;
pub mod shards;
pub mod super_packets;
pub mod wait_modes;
