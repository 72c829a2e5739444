//! The way home: an intrusive lock-free stack that objects of one owner return over, and the owner's farewell.
//!
//! Pages and descriptors are handed out by one owner and may be let go anywhere. The last holder pushes the object onto
//! its owner's `Home` through the object's own link, so that the stack is never full and never allocates; the owner takes
//! the *whole* stack with one swap. Nobody pops single nodes, so there is no ABA problem.
//!
//! **Farewell.** An owner may go while objects are out. It swaps the head to a sentinel (`DETACHED`), counts what it
//! took, and adds the number still out to `left`; from then on a holder that finds the sentinel subtracts one instead of
//! pushing. `left` reaches zero from above exactly once: before the owner's addition subtractions only lead below zero,
//! after it the count is the number still out. Who brings it to zero (the owner, by its addition, or a holder, by its
//! subtraction) frees the memory.
//!
//! **Who may touch what when (the proof that the unsafe users rely on).**
//! - `link` of a node: the owner while the node is home; the one thread that pushes it, between its last count going and
//!   the successful compare-exchange; the owner again after `take`/`detach` (Acquire, paired with the push's Release;
//!   later pushes are read-modify-writes and so extend the earlier pushes' release sequences).
//! - the `Home` itself: alive as long as the owner is, or an object is out. A pusher's compare-exchange, or its
//!   subtraction that does not reach zero, is its last access.
//!
//! It does not: bound the number of nodes (the owner's limit does), order them fairly (it is a stack), or wake anyone.

use crate::sync::{AtomicIsize, AtomicPtr, Ordering};
use core::ptr::{NonNull, null_mut};

/// An object that can be a link of a return stack.
///
/// # Safety
/// `link` must always name the same atomic of the object, used for nothing else while the object is out.
pub(crate) unsafe trait Node: Sized {
    /// The intrusive link.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The return stack of one owner. On lines of its own: strangers write here.
#[repr(C, align(128))]
pub(crate) struct Home<T> {
    head: AtomicPtr<T>,
    left: AtomicIsize,
}

fn detached<T>() -> *mut T {
    core::ptr::without_provenance_mut(1)
}

impl<T: Node> Home<T> {
    pub(crate) fn new() -> Self {
        Self { head: AtomicPtr::new(null_mut()), left: AtomicIsize::new(0) }
    }

    /// Sends `node` home from any thread. True: the owner has gone and this was the last object out, so the caller must
    /// free the owner's memory (and it alone may).
    ///
    /// # Safety
    /// `this` is alive; the caller is the only one that can reach `node`, which belongs to this home and is out.
    pub(crate) unsafe fn push(this: *const Self, node: NonNull<T>) -> bool {
        // SAFETY: alive by contract; both fields are atomics.
        let (head, left) = unsafe { (&(*this).head, &(*this).left) };
        let mut top = head.load(Ordering::Relaxed);
        loop {
            if top == detached() {
                // AcqRel: the releaser of the memory must see all that the others did before they let go.
                return left.fetch_sub(1, Ordering::AcqRel) == 1;
            }
            // SAFETY: the caller alone can reach the node.
            unsafe { node.as_ref() }.link().store(top, Ordering::Relaxed);
            match head.compare_exchange_weak(top, node.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return false,
                Err(seen) => top = seen,
            }
        }
    }

    /// The owner takes everything that came home (newest first, linked; null when nothing did).
    #[inline]
    pub(crate) fn take(&self) -> *mut T {
        // A plain load first: an idle turn must not write to a line that strangers share. (Not under loom, which compares
        // an access only with the last one before it, and would not try a push between this load and the swap.)
        #[cfg(not(loom))]
        if self.head.load(Ordering::Relaxed).is_null() {
            return null_mut();
        }
        let top = self.head.swap(null_mut(), Ordering::Acquire);
        debug_assert!(top != detached(), "the owner takes only before it leaves");
        top
    }

    /// The owner leaves: nothing is pushed from here on. What had come home is returned, as by `take`.
    pub(crate) fn detach(&self) -> *mut T {
        self.head.swap(detached(), Ordering::AcqRel)
    }

    /// After `detach`: `out` objects are still out. True: they have all let go meanwhile (or there were none), and the
    /// owner must free the memory.
    pub(crate) fn settle(&self, out: usize) -> bool {
        let out = out.cast_signed();
        self.left.fetch_add(out, Ordering::AcqRel) + out == 0
    }
}

/// The node after `node` in a chain that the owner has taken.
///
/// # Safety
/// `node` is home and belongs to the caller.
#[inline]
pub(crate) unsafe fn next_of<T: Node>(node: NonNull<T>) -> *mut T {
    // SAFETY: the caller owns the node.
    unsafe { node.as_ref() }.link().load(Ordering::Relaxed)
}
