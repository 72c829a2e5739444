//! Atomics from `core` or from loom.
//!
//! Every atomic of the remote sockets' wake-up protocol is named through here, so that `--cfg loom` swaps all of them at
//! once and the model checker sees each access. Nothing else of this crate is shared between threads, so nothing else
//! belongs here: no locks, no thread-locals, no spinning.
//!
//! Limit: with `--cfg loom` only the models in `remote::wake_loom` may run.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
