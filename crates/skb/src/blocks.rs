//! Blocks of 128 fragments, for skbs that outgrow the 17 inside their descriptor.
//!
//! Any thread may need a block (whoever pushes the 18th fragment) and any thread may give one back, so the free list is a
//! Treiber stack. Its head is (tag, index) in one `u64`: the tag counts changes, so that a pop that was interrupted while
//! its block went out and came back fails instead of corrupting the list (the tag wraps after 2^32 changes during *one*
//! interrupted pop, which is not a thing that happens). Blocks are made on demand, up to one per descriptor, and freed only
//! with the cache; so reading `next` of a block that somebody else has just taken is harmless.
//!
//! **Who may touch what when.** `frags`: who took the block, until it is put back. `next`, `head`, `made`, `table`: atomics.
//! Put (Release) happens before the next take (Acquire). It does not shrink, and does not know what a fragment is.

use crate::frag::Frag;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use alloc::alloc::{Layout, alloc, dealloc};
use alloc::boxed::Box;
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};

/// Fragments in a block, and so the most that an skb can have.
pub(crate) const BLOCK_FRAGS: usize = 128;

/// One block. `index` is constant, `next` is the free list's.
#[repr(C, align(64))]
pub(crate) struct FragBlock {
    pub(crate) frags: [MaybeUninit<Frag>; BLOCK_FRAGS],
    next: AtomicU32,
    index: u32,
}

/// The free list: indices are shifted by one, 0 is the end.
pub(crate) struct BlockPool {
    head: AtomicU64,
    made: AtomicU32,
    table: Box<[AtomicPtr<FragBlock>]>,
}

const fn pack(tag: u32, index: u32) -> u64 {
    (tag as u64) << 32 | index as u64
}

impl BlockPool {
    /// At most `max` blocks, none made yet.
    pub(crate) fn new(max: usize) -> Self {
        let table = (0..max).map(|_| AtomicPtr::new(null_mut())).collect();
        Self { head: AtomicU64::new(0), made: AtomicU32::new(0), table }
    }

    fn at(&self, index: u32) -> Option<NonNull<FragBlock>> {
        NonNull::new(self.table.get(index.checked_sub(1)? as usize)?.load(Ordering::Acquire))
    }

    /// A block with meaningless contents; `None` when all are out or the host has no memory.
    pub(crate) fn take(&self) -> Option<NonNull<FragBlock>> {
        let mut head = self.head.load(Ordering::Acquire);
        while let Some(b) = self.at(head as u32) {
            // SAFETY: blocks are freed only with the pool; a stale value is caught by the tag.
            let next = unsafe { b.as_ref() }.next.load(Ordering::Relaxed);
            let new = pack(((head >> 32) as u32).wrapping_add(1), next);
            match self.head.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(b),
                Err(seen) => head = seen,
            }
        }
        self.make()
    }

    #[cold]
    fn make(&self) -> Option<NonNull<FragBlock>> {
        let mut made = self.made.load(Ordering::Relaxed);
        loop {
            if made as usize >= self.table.len() {
                return None;
            }
            match self.made.compare_exchange_weak(made, made + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(seen) => made = seen,
            }
        }
        // SAFETY: the size is not zero. Failure costs the slot, which then stays empty.
        let b = NonNull::new(unsafe { alloc(Layout::new::<FragBlock>()) }.cast::<FragBlock>())?;
        // SAFETY: fresh memory of the right layout; `frags` needs no initialisation.
        unsafe {
            (&raw mut (*b.as_ptr()).next).write(AtomicU32::new(0));
            (&raw mut (*b.as_ptr()).index).write(made + 1);
        }
        self.table.get(made as usize)?.store(b.as_ptr(), Ordering::Release);
        Some(b)
    }

    /// # Safety
    /// `b` was taken from this pool, and its fragments have been moved out.
    pub(crate) unsafe fn put(&self, b: NonNull<FragBlock>) {
        // SAFETY: the caller owns the block; only its atomics and its constant are touched.
        let (next, index) = unsafe { (&(*b.as_ptr()).next, (*b.as_ptr()).index) };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            next.store(head as u32, Ordering::Relaxed);
            let new = pack(((head >> 32) as u32).wrapping_add(1), index);
            match self.head.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }
}

impl Drop for BlockPool {
    fn drop(&mut self) {
        for slot in &self.table {
            if let Some(b) = NonNull::new(slot.load(Ordering::Acquire)) {
                // SAFETY: made by `make`, and all skbs are home, so nobody uses it; fragments in it were moved out.
                unsafe {
                    (&raw mut (*b.as_ptr()).next).drop_in_place();
                    dealloc(b.as_ptr().cast(), Layout::new::<FragBlock>());
                }
            }
        }
    }
}
