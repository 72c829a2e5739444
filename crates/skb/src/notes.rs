//! What a page remembers: the partial checksums of pieces that were summed while they were copied in.
//!
//! Where no device sums, the bytes that an application writes would be read twice: once to copy them, once more when their
//! frames are made. So a writer that knows where frames will begin sums each piece in the same pass and notes the result
//! beside the page; the cutter asks for it ([`Frag::noted_sum`](crate::Frag::noted_sum)) and sums only what it is not told.
//!
//! ```text
//!   page    [ piece 0 | piece 1 | piece 2 ...          ]
//!   notes   [ off len sum | - | off len sum | - | ... ]       64 of them, at `off * 64 / size` or one on
//! ```
//! A note answers only for exactly the range that was summed. It is a cache: a later piece of the same slot takes its place,
//! and whoever asks in vain sums. Never to be asked by who *verifies*: the bytes must be looked at for that.
//!
//! **Why a note is true.** Frozen bytes do not change while a fragment holds them, and a note is written by the page's one
//! writer before the fragment over its bytes exists; so a holder of that fragment sees this note, or a later one of
//! another range. Notes of an earlier life are cleared when the page starts again, and all are when a sole owner gets
//! its bytes to write to: both times nobody else holds the page. The memory is taken at the first note of a page and
//! kept as long as the page.

use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use alloc::boxed::Box;
use core::ptr::null_mut;

/// Notes of one page.
const NOTES: usize = 64;

#[repr(align(64))]
struct Slots([AtomicU64; NOTES]);

/// The notes of one page; none at first.
pub(crate) struct Notes(AtomicPtr<Slots>);

#[inline]
fn pack(off: u32, len: u32, sum: u32) -> u64 {
    u64::from(off) << 40 | u64::from(len) << 16 | u64::from(sum & 0xffff)
}

impl Notes {
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    #[inline]
    fn slots(&self) -> Option<&Slots> {
        // Acquire: pairs with the Release that showed the fresh slots.
        // SAFETY: null, or made by `Box::into_raw` below and freed only with `self`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    fn make(&self) -> Option<&Slots> {
        let made = Box::new(Slots(core::array::from_fn(|_| AtomicU64::new(0))));
        // Only the page's writer notes, so there is nobody to race with.
        self.0.store(Box::into_raw(made), Ordering::Release);
        self.slots()
    }

    /// Notes the sum of `[off, off + len)` of a page of `size` bytes. Only for the page's writer, before the bytes are frozen.
    #[inline]
    pub(crate) fn note(&self, size: u32, off: u32, len: u32, sum: u32) {
        debug_assert!(len > 0 && off + len <= size && sum <= 0xffff);
        let Some(slots) = self.slots().or_else(|| self.make()) else { return };
        let [first, second] = places(size, off).map(|i| slots.0.get(i));
        // A short piece at the start of a page has a neighbour in its place.
        let is_taken = first.is_some_and(|slot| slot.load(Ordering::Relaxed) != 0);
        if let Some(slot) = if is_taken { second } else { first } {
            slot.store(pack(off, len, sum), Ordering::Relaxed);
        }
    }

    /// The sum of exactly `[off, off + len)`, when it was noted and not forgotten.
    #[inline]
    pub(crate) fn get(&self, size: u32, off: u32, len: u32) -> Option<u32> {
        let (slots, want) = (self.slots()?, pack(off, len, 0) >> 16);
        let notes = places(size, off).into_iter().filter_map(|i| slots.0.get(i)).map(|s| s.load(Ordering::Relaxed));
        notes.filter(|note| len > 0 && note >> 16 == want).map(|note| note as u32 & 0xffff).next()
    }

    /// Forgets everything. The caller alone holds the page.
    #[inline]
    pub(crate) fn clear(&self) {
        if let Some(slots) = self.slots() {
            slots.0.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
        }
    }
}

/// Where the note of a piece from `off` on may be, the usual place first. Page sizes are powers of two from 4 KiB on.
#[inline]
fn places(size: u32, off: u32) -> [usize; 2] {
    let at = (off >> (size.trailing_zeros().saturating_sub(NOTES.trailing_zeros()))) as usize;
    [at, (at + 1) % NOTES]
}

impl Drop for Notes {
    fn drop(&mut self) {
        let slots = self.0.load(Ordering::Relaxed);
        if !slots.is_null() {
            // SAFETY: made by `Box::into_raw`; `self` goes, so nobody reads it any more.
            drop(unsafe { Box::from_raw(slots) });
        }
    }
}
