//! A counted reference to frozen bytes of a page: (page, offset, length) in 16 bytes.
//!
//! There is one fragment type (docs/decisions/0001-one-fragment-type.md). It is `Send`, and it is let go in one of two
//! ways: by [`PagePool::recycle`](crate::PagePool::recycle) on the side of the pool's owner, where a count of 1 costs a
//! plain load and the page goes straight into the LIFO cache; or by `Drop` anywhere, where the last count sends the page
//! home over the pool's return stack.
//!
//! Invariants: `off + len <= filled <= size` of the page; each `Frag` owns exactly one count; the bytes of a fragment never
//! change unless it holds the page's only count (then [`Frag::get_mut`] lends them, for work in place such as decryption).
//! Proof of exclusiveness: see [`page`](crate::page). A fragment cannot grow except over bytes that another fragment of
//! the same page covered (`try_merge`) or the page's writer has just frozen (`Page::extend`).
//!
//! Limits: no fragment spans two pages; pages are at most 2 MiB, so `u32` arithmetic on one page cannot overflow.

use crate::page::{PageMeta, REFS_STEP_LIMIT, put_refs, take_refs};
use crate::sync::Ordering;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// A counted reference to frozen bytes of one page.
pub struct Frag {
    meta: NonNull<PageMeta>,
    off: u32,
    len: u32,
}

const _: () = assert!(size_of::<Frag>() == 16 && size_of::<Option<Frag>>() == 16);

// SAFETY: the count is atomic, the bytes are frozen (or exclusively ours), and the way home works from any thread.
unsafe impl Send for Frag {}
// SAFETY: `&Frag` only reads frozen bytes and constants, and counts atomically.
unsafe impl Sync for Frag {}

impl Frag {
    /// # Safety
    /// The caller hands over one count of `meta`, and `[off, off + len)` is frozen.
    #[inline]
    pub(crate) unsafe fn from_raw(meta: NonNull<PageMeta>, off: u32, len: u32) -> Self {
        Self { meta, off, len }
    }

    /// Gives up the handle with its count.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<PageMeta> {
        ManuallyDrop::new(self).meta
    }

    #[inline]
    pub(crate) fn meta(&self) -> &PageMeta {
        // SAFETY: we own a count, so the metadata is alive.
        unsafe { self.meta.as_ref() }
    }

    #[inline]
    pub(crate) fn is_of(&self, meta: NonNull<PageMeta>) -> bool {
        self.meta == meta
    }
    #[inline]
    pub(crate) fn ends_at(&self, meta: NonNull<PageMeta>, filled: u32) -> bool {
        self.meta == meta && self.off + self.len == filled
    }

    /// Lengthens by `n` bytes; the caller (the page's writer) has just frozen them behind us.
    #[inline]
    pub(crate) fn grow(&mut self, n: u32) {
        self.len += n;
        debug_assert!(self.off + self.len <= self.meta().size);
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is inside the page, initialised and frozen for as long as our count stands.
        unsafe { core::slice::from_raw_parts(self.meta().data.as_ptr().add(self.off as usize), self.len as usize) }
    }

    /// The bytes to write to, when no other fragment and no writer holds this page (a load; for work in place).
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_sole_owner() {
            return None;
        }
        self.meta().notes.clear();
        let data = self.meta().data.as_ptr();
        // SAFETY: in range; ours is the only count and it is borrowed mutably, so no one else can read or gain a count.
        // The Acquire in `is_sole_owner` orders all earlier readers before us.
        Some(unsafe { core::slice::from_raw_parts_mut(data.add(self.off as usize), self.len as usize) })
    }

    /// The partial checksum of exactly these bytes, when their writer noted it
    /// ([`Page::append_noting`](crate::Page::append_noting)). For senders: a receiver has to look at the bytes.
    #[inline]
    pub fn noted_sum(&self) -> Option<u32> {
        let meta = self.meta();
        meta.notes.get(meta.size, self.off, self.len)
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }
    /// Has it no bytes?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Offset of the first byte in the page.
    #[inline]
    pub fn offset_in_page(&self) -> u32 {
        self.off
    }
    /// Size of the page, bytes (what holding this fragment costs at most).
    #[inline]
    pub fn page_size(&self) -> u32 {
        self.meta().size
    }
    /// Position of the page in its pool (for traces and reports).
    #[inline]
    pub fn page_index(&self) -> u32 {
        self.meta().index
    }
    /// Do both lie in one page?
    #[inline]
    pub fn is_same_page(&self, other: &Self) -> bool {
        self.meta == other.meta
    }
    /// Is `next` in the same page and directly behind?
    #[inline]
    pub fn is_followed_by(&self, next: &Self) -> bool {
        self.meta == next.meta && self.off + self.len == next.off
    }
    /// Does nothing else (fragment or writer) hold the page?
    #[inline]
    pub fn is_sole_owner(&self) -> bool {
        self.meta().refs.load(Ordering::Acquire) == 1
    }

    /// `len` bytes from `off` on, as a fragment of its own (+1). The range is cut to what there is.
    #[inline]
    #[must_use]
    pub fn slice(&self, off: u32, len: u32) -> Self {
        let mut f = self.clone();
        f.advance(off);
        f.truncate(len);
        f
    }

    /// Drops the first `n` bytes (all, when there are fewer).
    #[inline]
    pub fn advance(&mut self, n: u32) {
        let n = n.min(self.len);
        self.off += n;
        self.len -= n;
    }

    /// Keeps the first `n` bytes.
    #[inline]
    pub fn truncate(&mut self, n: u32) {
        self.len = self.len.min(n);
    }

    /// Keeps `[0, at)` and returns `[at, len)` (+1); `at` is cut to `len`.
    #[inline]
    #[must_use]
    pub fn split_off(&mut self, at: u32) -> Self {
        let at = at.min(self.len);
        let mut tail = self.clone();
        tail.advance(at);
        self.len = at;
        tail
    }

    /// When `next` lies directly behind in the same page: takes its bytes over and drops its count. Else gives it back.
    #[inline]
    pub fn try_merge(&mut self, next: Self) -> Result<(), Self> {
        if !self.is_followed_by(&next) {
            return Err(next);
        }
        self.len += next.len;
        // `next` drops here: never the last count, since we hold one.
        Ok(())
    }

    /// As [`try_merge`](Self::try_merge); the count of `next` goes to `owed` instead of being dropped by itself.
    #[inline]
    pub(crate) fn try_merge_owing(&mut self, next: Self, owed: &mut OwedRefs) -> Result<(), Self> {
        if !self.is_followed_by(&next) {
            return Err(next);
        }
        self.len += next.len;
        owed.take(next.into_raw());
        Ok(())
    }

    /// Is byte `skip` of `next` in the same page and directly behind?
    #[inline]
    pub(crate) fn ends_before(&self, next: &Self, skip: u32) -> bool {
        self.meta == next.meta && self.off + self.len == next.off + skip
    }

    /// Lengthens over bytes `[skip, skip + n)` of `next` (see `ends_before`): a merge with a clone, without touching the
    /// count.
    #[inline]
    pub(crate) fn extend_over(&mut self, next: &Self, skip: u32, n: u32) {
        debug_assert!(self.ends_before(next, skip) && n <= next.len - skip);
        self.len += n;
    }

    /// `n` clones for one atomic addition; those that are not taken are given back together. At most 2^24 at a time.
    #[inline]
    pub fn clone_n(&self, n: u32) -> CloneN {
        if n > 0 {
            take_refs(self.meta(), n);
        }
        CloneN { meta: self.meta, off: self.off, len: self.len, left: n }
    }
}

impl Clone for Frag {
    #[inline]
    fn clone(&self) -> Self {
        take_refs(self.meta(), 1);
        Self { meta: self.meta, off: self.off, len: self.len }
    }
}

impl Drop for Frag {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: our one count, given up once.
        unsafe { put_refs(self.meta, 1) };
    }
}

impl core::fmt::Debug for Frag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Frag(page {}, {}+{})", self.page_index(), self.off, self.len)
    }
}

/// Clones of one fragment, their counts already taken. See [`Frag::clone_n`].
pub struct CloneN {
    meta: NonNull<PageMeta>,
    off: u32,
    len: u32,
    left: u32,
}

// SAFETY: it is `left` fragments that have not been given a body yet.
unsafe impl Send for CloneN {}

impl Iterator for CloneN {
    type Item = Frag;
    #[inline]
    fn next(&mut self) -> Option<Frag> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: one of our counts moves to the fragment; the range is that of a fragment, hence frozen.
        Some(unsafe { Frag::from_raw(self.meta, self.off, self.len) })
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}
impl ExactSizeIterator for CloneN {}

impl Drop for CloneN {
    #[inline]
    fn drop(&mut self) {
        if self.left > 0 {
            // SAFETY: the counts that nobody took.
            unsafe { put_refs(self.meta, self.left) };
        }
    }
}

/// Counts of one page that merges have left over, given back together: one atomic for a run of fragments instead of one for
/// each. Whoever keeps it holds the page as a fragment would; dropping it settles.
#[derive(Default)]
pub struct OwedRefs {
    /// Invariant: `n > 0` counts of the page are ours.
    owed: Option<(NonNull<PageMeta>, u32)>,
}

// SAFETY: it is `n` fragments without bodies.
unsafe impl Send for OwedRefs {}

impl OwedRefs {
    /// Takes over one count, of which the caller owned the handle.
    #[inline]
    fn take(&mut self, meta: NonNull<PageMeta>) {
        match &mut self.owed {
            Some((page, n)) if *page == meta && *n < REFS_STEP_LIMIT => *n += 1,
            _ => {
                self.settle();
                self.owed = Some((meta, 1));
            }
        }
    }

    /// Gives back what is owed.
    #[inline]
    pub fn settle(&mut self) {
        if let Some((meta, n)) = self.owed.take() {
            // SAFETY: `n` counts of `meta` were handed to us (the invariant), and are given up once.
            unsafe { put_refs(meta, n) };
        }
    }
}

impl Drop for OwedRefs {
    #[inline]
    fn drop(&mut self) {
        self.settle();
    }
}
