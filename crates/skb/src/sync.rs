//! Atomics, and the cell of a ring slot, from `core` or from loom.
//!
//! Every atomic of this crate is named through here, so that `--cfg loom` swaps all of them at once and the model checker
//! sees each access. `Arc` is swapped too, because loom must see the edge from the last owner to the destructor.
//! [`SlotCell`] has loom's closure interface, which on `core` compiles to the bare pointer.
//! Nothing else belongs here: no locks, no thread-locals, no spinning.

#[cfg(not(loom))]
pub(crate) use alloc::sync::Arc;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(loom)]
pub(crate) use loom::sync::Arc;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell as SlotCell;

/// A cell whose accesses are raw pointers handed to a closure (loom's interface, at no cost).
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct SlotCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> SlotCell<T> {
    #[inline(always)]
    pub(crate) const fn new(v: T) -> Self {
        Self(core::cell::UnsafeCell::new(v))
    }
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
