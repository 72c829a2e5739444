//! One page: its metadata line, and its single writer.
//!
//! ```text
//!  0            filled                capacity
//!  |  frozen      |   the writer's       |
//!  [ frag ][frag] |                      |
//! ```
//! A [`Page`] is the only way to write into a page from the pool: bytes `[0, filled)` are frozen and may be referenced by
//! [`Frag`]s, bytes beyond belong to the writer. Only filled ranges become fragments, so bytes of an earlier life of the
//! page cannot be reached. The memory is zeroed when it first comes from the host.
//!
//! **Counts.** The page's `refs` is the number of fragments plus the writer's share. The writer takes its share in bulk
//! (`BIAS`) with one plain store when the page is handed out and pays fragments from it, so that `append` needs no atomic;
//! what is left of the share goes back in one subtraction (or none, when the writer is the sole owner on the pool's side).
//!
//! **Who may touch which field when.** `data`, `size`, `index`, `core` are written before the page is first handed out
//! and never again. `notes` follow [`notes`](crate::notes). `refs` is atomic; it is stored plainly only by the pool's owner while the page is home. `link` follows
//! [`home`](crate::home). Bytes `[filled, size)` are touched only through the one `Page` (`&mut`), bytes `[0, filled)` are
//! only read, until all counts are gone or one fragment holds the only count (then `&mut Frag` may write its own range).
//! Last reader to next writer: each count is dropped with Release, and who finds or makes the count its own does so
//! with Acquire.

use crate::frag::Frag;
use crate::home::{Home, Node};
use crate::notes::Notes;
use crate::pool::PoolCore;
use crate::sync::{AtomicPtr, AtomicU32, Ordering, fence};
use core::ptr::NonNull;
use linerate_arch::Kernels;

/// The writer's share of counts when a page is handed out: enough for a fragment per byte of a 64 KiB page before the
/// first atomic top-up.
pub(crate) const BIAS: u32 = 1 << 16;

/// More counts than this on one page mean that somebody forgets fragments on purpose; the overflow must not be reached.
const REFS_LIMIT: u32 = 1 << 30;

/// Most counts taken in one go (far above the frames of any super-packet, far below the distance to overflow).
pub(crate) const REFS_STEP_LIMIT: u32 = 1 << 24;

/// What is known of one page, on a line of its own, away from the data.
#[repr(C, align(64))]
pub(crate) struct PageMeta {
    /// Fragments out plus what is left of the writer's share. Meaningless while home.
    pub(crate) refs: AtomicU32,
    /// Bytes in the page.
    pub(crate) size: u32,
    /// First byte.
    pub(crate) data: NonNull<u8>,
    /// The pool that it belongs to.
    pub(crate) core: NonNull<PoolCore>,
    /// The way home, and the owner's free list.
    pub(crate) link: AtomicPtr<PageMeta>,
    /// Position in the pool, for reports.
    pub(crate) index: u32,
    /// Sums of pieces; the writer notes, everybody may ask.
    pub(crate) notes: Notes,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PageMeta>() == 64);

// SAFETY: `link` is one fixed field.
unsafe impl Node for PageMeta {
    #[inline]
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

/// Takes `n` more counts. The caller holds at least one already, so the page cannot go home meanwhile.
#[inline]
pub(crate) fn take_refs(meta: &PageMeta, n: u32) {
    assert!(n <= REFS_STEP_LIMIT, "too many references in one step");
    let old = meta.refs.fetch_add(n, Ordering::Relaxed);
    if old > REFS_LIMIT {
        refs_overflow(meta, n);
    }
}

#[cold]
fn refs_overflow(meta: &PageMeta, n: u32) -> ! {
    meta.refs.fetch_sub(n, Ordering::Relaxed);
    panic!("page reference count overflow: fragments are being forgotten");
}

/// Lets `n` counts go, on any thread; the last sends the page home over its pool's return stack.
///
/// # Safety
/// The caller owns `n >= 1` counts of `meta` and never uses them again.
#[inline]
pub(crate) unsafe fn put_refs(meta: NonNull<PageMeta>, n: u32) {
    // SAFETY: alive, because the caller owns a count.
    if unsafe { meta.as_ref() }.refs.fetch_sub(n, Ordering::Release) == n {
        // SAFETY: that was the last count, so the page is ours alone.
        unsafe { send_home(meta) };
    }
}

/// # Safety
/// The caller took the last count away.
#[cold]
unsafe fn send_home(meta: NonNull<PageMeta>) {
    // All readers' accesses happen before the page's next life.
    fence(Ordering::Acquire);
    // SAFETY: nobody else can reach the page; its core is alive because the page is out.
    let core = unsafe { meta.as_ref() }.core;
    // SAFETY: as above; `push` is the last access to the core unless it says that we must free it.
    if unsafe { Home::push(&raw const (*core.as_ptr()).home, meta) } {
        // SAFETY: `push` elected us.
        unsafe { PoolCore::destroy(core) };
    }
}

/// The single writer of a page. See the module's head; dropping it keeps the fragments valid.
pub struct Page {
    meta: NonNull<PageMeta>,
    filled: u32,
    /// What is left of the writer's counts; always >= 1.
    bias: u32,
}

// SAFETY: a `Page` is a unique right to bytes and counts that no thread owns by identity; the counts are atomic and the
// way home is lock-free from any thread. `&Page` only reads constants.
unsafe impl Send for Page {}
// SAFETY: see above; no method of `&Page` writes anything.
unsafe impl Sync for Page {}

impl Page {
    /// # Safety
    /// `meta` is home and the caller is its pool's owner, who gives it away by this call.
    #[inline]
    pub(crate) unsafe fn from_home(meta: NonNull<PageMeta>) -> Self {
        // Nobody else can see the page, so a plain store does.
        // SAFETY: alive, and ours.
        let page = unsafe { meta.as_ref() };
        page.refs.store(BIAS, Ordering::Relaxed);
        page.notes.clear();
        Self { meta, filled: 0, bias: BIAS }
    }

    #[inline]
    pub(crate) fn meta(&self) -> &PageMeta {
        // SAFETY: we own a count, so the metadata is alive.
        unsafe { self.meta.as_ref() }
    }

    /// Gives up the handle with its counts: (page, counts).
    #[inline]
    pub(crate) fn into_raw(self) -> (NonNull<PageMeta>, u32) {
        let this = core::mem::ManuallyDrop::new(self);
        (this.meta, this.bias)
    }

    /// Bytes in the page.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.meta().size as usize
    }
    /// Frozen bytes.
    #[inline]
    pub fn filled(&self) -> usize {
        self.filled as usize
    }
    /// Bytes that can still be written.
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity() - self.filled()
    }
    /// Position of the page in its pool (stable for the pool's life; for traces and reports).
    #[inline]
    pub fn index(&self) -> u32 {
        self.meta().index
    }

    /// The next `len` bytes, which are the writer's own.
    #[inline]
    fn tail(&mut self, len: usize) -> &mut [u8] {
        debug_assert!(len <= self.room());
        let len = len.min(self.room());
        // SAFETY: `filled + len <= size`; the bytes were initialised by the host allocation; nothing but this `Page`
        // (borrowed mutably) can reach bytes from `filled` on.
        unsafe { core::slice::from_raw_parts_mut(self.meta().data.as_ptr().add(self.filled()), len) }
    }

    /// Freezes the next `len` bytes (<= room, >= 1) into a fragment.
    #[inline]
    fn freeze(&mut self, len: usize) -> Frag {
        debug_assert!(len >= 1 && len <= self.room());
        if self.bias == 1 {
            take_refs(self.meta(), BIAS);
            self.bias += BIAS;
        }
        self.bias -= 1;
        let off = self.filled;
        self.filled += len as u32;
        // SAFETY: one count moves from our share to the fragment; the range is inside the page and now frozen.
        unsafe { Frag::from_raw(self.meta, off, len as u32) }
    }

    /// Copies `min(room, src.len())` bytes in and returns them frozen; `None` when that is nothing.
    #[inline]
    pub fn append(&mut self, k: &Kernels, src: &[u8]) -> Option<Frag> {
        let n = src.len().min(self.room());
        if n == 0 {
            return None;
        }
        k.copy(self.tail(n), src.get(..n)?);
        Some(self.freeze(n))
    }

    /// As [`append`](Self::append), and sums the bytes in the same pass: the fragment and its partial checksum.
    #[inline]
    pub fn append_sum(&mut self, k: &Kernels, src: &[u8]) -> Option<(Frag, u32)> {
        let n = src.len().min(self.room());
        if n == 0 {
            return None;
        }
        let sum = k.copy_sum(self.tail(n), src.get(..n)?);
        Some((self.freeze(n), sum))
    }

    /// As [`append`](Self::append) for bytes that will leave without a device that sums: notes the sums of pieces (see
    /// [`Frag::noted_sum`]), the first of `first` bytes, the others of `each`, both at least 1.
    #[inline]
    pub fn append_noting(&mut self, k: &Kernels, src: &[u8], first: usize, each: usize) -> Option<Frag> {
        let n = src.len().min(self.room());
        if n == 0 {
            return None;
        }
        self.copy_noting(k, src.get(..n)?, first, each);
        Some(self.freeze(n))
    }

    /// As [`extend`](Self::extend), noting sums as [`append_noting`](Self::append_noting) does.
    #[inline]
    pub fn extend_noting(&mut self, k: &Kernels, last: &mut Frag, src: &[u8], first: usize, each: usize) -> usize {
        let n = src.len().min(self.room());
        if n == 0 || !last.ends_at(self.meta, self.filled) {
            return 0;
        }
        let Some(src) = src.get(..n) else { return 0 };
        self.copy_noting(k, src, first, each);
        self.filled += n as u32;
        last.grow(n as u32);
        n
    }

    /// Copies `src` (no more than there is room for) behind the frozen bytes and notes the sums of its pieces.
    fn copy_noting(&mut self, k: &Kernels, src: &[u8], first: usize, each: usize) {
        let (size, start) = (self.meta().size, self.filled());
        let (mut done, mut piece) = (0, first.max(1));
        while let Some(rest) = src.get(done..).filter(|r| !r.is_empty()) {
            let from = rest.get(..piece).unwrap_or(rest);
            let n = from.len();
            let Some(to) = self.tail(done + n).get_mut(done..) else { return };
            let sum = k.copy_sum(to, from);
            self.meta().notes.note(size, (start + done) as u32, n as u32, sum);
            done += n;
            piece = each.max(1);
        }
    }

    /// Copies bytes in behind `last` and lengthens it, without a new reference: for small writes that follow each other.
    /// Returns how many bytes; 0 when `last` does not end at this page's fill mark, or there is no room.
    #[inline]
    pub fn extend(&mut self, k: &Kernels, last: &mut Frag, src: &[u8]) -> usize {
        let n = src.len().min(self.room());
        if n == 0 || !last.ends_at(self.meta, self.filled) {
            return 0;
        }
        let Some(src) = src.get(..n) else { return 0 };
        k.copy(self.tail(n), src);
        self.filled += n as u32;
        last.grow(n as u32);
        n
    }

    /// Lets `f` write into the next `min(len, room)` bytes and say how many it wrote (counted from the start of what it
    /// was given; more than that is cut); those are frozen. `f` sees bytes of the page's earlier life, and must have
    /// written all that it claims. `None` when that is nothing.
    #[inline(always)]
    pub fn fill(&mut self, len: usize, f: impl FnOnce(&mut [u8]) -> usize) -> Option<Frag> {
        let len = len.min(self.room());
        if len == 0 {
            return None;
        }
        let wrote = f(self.tail(len));
        debug_assert!(wrote <= len, "the filler claims more than it was given");
        let wrote = wrote.min(len);
        if wrote == 0 { None } else { Some(self.freeze(wrote)) }
    }

    /// The bytes behind the frozen ones, to write to: for a read that scatters over several pages at once. They show the
    /// page's earlier life, and nothing is frozen until [`commit`](Self::commit).
    #[inline]
    pub fn spare_mut(&mut self) -> &mut [u8] {
        self.tail(self.room())
    }

    /// Freezes the first `len` bytes of [`spare_mut`](Self::spare_mut) (cut to the room), which the caller has written.
    /// `None` when that is nothing.
    #[inline]
    pub fn commit(&mut self, len: usize) -> Option<Frag> {
        let len = len.min(self.room());
        if len == 0 { None } else { Some(self.freeze(len)) }
    }

    /// Skips bytes up to a multiple of `align` (a power of two), or to the end of the page. Skipped bytes are unreachable.
    #[inline]
    pub fn align_to(&mut self, align: usize) {
        debug_assert!(align.is_power_of_two());
        let up = self.filled().saturating_add(align.wrapping_sub(1)) & !align.wrapping_sub(1);
        self.filled = up.min(self.capacity()) as u32;
    }

    /// Takes a fragment of this page back without an atomic read-modify-write: its count is the writer's again. When that
    /// was the last one out, the page starts again at 0, so that small writes stay in few lines. A fragment of another page
    /// is given back.
    #[inline]
    pub fn take_back(&mut self, f: Frag) -> Option<Frag> {
        if !f.is_of(self.meta) {
            return Some(f);
        }
        // Its one count, which nobody gives up.
        let _ = f.into_raw();
        self.bias += 1;
        self.reset_if_sole();
        None
    }

    /// When all fragments are gone: starts again at 0. Returns whether it did.
    #[inline]
    pub fn reset_if_sole(&mut self) -> bool {
        // Acquire: the readers of the gone fragments are done before we write again.
        let sole = self.meta().refs.load(Ordering::Acquire) == self.bias;
        if sole {
            self.filled = 0;
            self.meta().notes.clear();
        }
        sole
    }
}

impl Drop for Page {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: our share, given up once.
        unsafe { put_refs(self.meta, self.bias) };
    }
}

impl core::fmt::Debug for Page {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Page")
            .field("index", &self.index())
            .field("filled", &self.filled)
            .field("capacity", &self.capacity())
            .finish()
    }
}
