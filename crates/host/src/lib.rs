//! What the host gives to a stack that asks for everything as an argument: CPU features, clocks, threads, randomness,
//! sleep, and a device with Linux behind it.
//!
//! The layers below are `no_std` and read no clock, no CPU register and no random source. This crate reads them once,
//! or once a turn, and hands plain values down: a [`linerate_base::Instant`] from a [`Clock`], a seed from
//! [`random_seed`], a place to sleep from [`wake`], and queue pairs from [`tun`]. Nothing here allocates in steady state or
//! keeps a thread of its own. It is written for Linux; the time-stamp clock and CPU detection are for x86-64 and fall back to
//! the portable answer elsewhere.
#![allow(unsafe_code)]

pub mod clock;
pub mod cpu;
pub mod faulty;
pub mod interrupt;
pub mod netns;
pub mod packet;
pub mod rand;
pub mod rtnl;
pub mod threads;
pub mod tun;
pub mod usage;
pub mod wake;
pub mod watch;

pub use clock::Clock;
pub use cpu::detect_cpu;
pub use rand::{random_mac, random_seed};
pub use threads::{allowed_cpus, pin_to_cpu, spawn_named, spawn_pinned};
pub use tun::{Tun, TunConfig, TunError};
pub use usage::{cpu_time, process_cpu_time, rss_bytes, task_cpu_time};
pub use wake::{Parker, Unparker, Wait, Woken};
pub use watch::{WatchList, Watched};
