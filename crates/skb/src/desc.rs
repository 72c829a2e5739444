//! The descriptor behind an [`Skb`](crate::Skb), and what descriptors share.
//!
//! ```text
//!   0   SkbMeta (offload contract, offsets, steering)   data_len, head and fragment bookkeeping    } two cache lines
//! 128   head: 192 bytes; headers are pushed towards the front from offset 128
//! 320   17 fragments of 16 bytes                                    (used while `block` is null)
//! 592   end, rounded to 640
//! ```
//! Fragments are contiguous at all times: either in the descriptor, or all of them in one chained block of 128; so the
//! fragments of an skb are always one slice, `[first, first + nr)`.
//!
//! Head bytes: `[head_off, head_end)` is the data; `[floor, head_end)` has been written since the skb was handed out,
//! so the front may be moved back down to `floor` without showing bytes of an earlier packet.
//!
//! **Who may touch what when.** A descriptor belongs to its one `Skb` while out (all fields but `link` and `core`), to the
//! cache's owner while home, and to the thread that sends it home in between ([`home`](crate::home)). `core` is constant.
//! `SkbCore` outlives the cache's handle until the last descriptor is home; `chunks` is the owner's, then the freer's.

use crate::blocks::{BLOCK_FRAGS, BlockPool, FragBlock};
use crate::frag::Frag;
use crate::home::{Home, Node};
use crate::meta::SkbMeta;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use alloc::alloc::{Layout, dealloc};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// Bytes of the linear head.
pub const HEAD_CAPACITY: usize = 192;
/// Where a fresh skb's head starts: room for link, network and transport headers with all options (14 + 40 + 60 < 128).
pub const DEFAULT_HEADROOM: usize = 128;
/// Fragments inside the descriptor (the kernel's `MAX_SKB_FRAGS`).
pub const INLINE_FRAGS: usize = 17;
/// Most fragments of an skb.
pub const MAX_FRAGS: usize = BLOCK_FRAGS;
/// What a descriptor itself costs, bytes (SYSTEMS A21).
pub const SKB_TRUESIZE: u32 = size_of::<Desc>() as u32;

/// A descriptor. See the module's head.
#[repr(C, align(64))]
pub(crate) struct Desc {
    pub(crate) meta: SkbMeta,
    /// Bytes in fragments.
    pub(crate) data_len: u32,
    pub(crate) head_off: u16,
    pub(crate) head_end: u16,
    pub(crate) floor: u16,
    pub(crate) first: u16,
    pub(crate) nr: u16,
    pub(crate) max: u16,
    /// Null: the fragments are inline.
    pub(crate) block: *mut FragBlock,
    pub(crate) core: NonNull<SkbCore>,
    pub(crate) link: AtomicPtr<Desc>,
    pub(crate) head: HeadBytes,
    pub(crate) frags: [MaybeUninit<Frag>; INLINE_FRAGS],
}

/// The head's bytes, on lines of their own.
#[repr(C, align(64))]
pub(crate) struct HeadBytes(pub(crate) [u8; HEAD_CAPACITY]);

#[cfg(not(loom))]
const _: () = assert!(core::mem::offset_of!(Desc, head) == 128 && size_of::<Desc>() == 640);

// SAFETY: `link` is one fixed field.
unsafe impl Node for Desc {
    #[inline]
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

/// What descriptors share.
pub(crate) struct SkbCore {
    pub(crate) home: Home<Desc>,
    /// Skbs whose `Drop` ran.
    pub(crate) silent: AtomicU64,
    pub(crate) blocks: BlockPool,
    /// (first, count) of each slab; the owner's, then the freer's.
    pub(crate) chunks: UnsafeCell<Vec<(NonNull<Desc>, usize)>>,
}

pub(crate) fn slab_layout(n: usize) -> Layout {
    Layout::array::<Desc>(n).expect("a slab is far smaller than the address space")
}

impl SkbCore {
    /// Frees everything.
    ///
    /// # Safety
    /// `Home` elected the caller: the handle is gone and all descriptors are home.
    #[cold]
    pub(crate) unsafe fn destroy(core: NonNull<Self>) {
        // SAFETY: made by `Box::leak` in `SkbCache::new`, and nobody else can reach it any more.
        let core = unsafe { Box::from_raw(core.as_ptr()) };
        let Self { chunks, .. } = *core;
        for (first, n) in chunks.into_inner() {
            for i in 0..n {
                // SAFETY: initialised when the slab was made; holds no fragments, being home.
                unsafe { first.add(i).drop_in_place() };
            }
            // SAFETY: allocated with this layout.
            unsafe { dealloc(first.as_ptr().cast(), slab_layout(n)) };
        }
    }
}

impl Desc {
    /// Ready for a new packet. Bytes of the head and slots of fragments keep their old, unreachable contents.
    #[inline]
    pub(crate) fn reset(&mut self, max_frags: u16) {
        debug_assert!(self.nr == 0 && self.block.is_null());
        self.meta = SkbMeta::default();
        self.data_len = 0;
        self.head_off = DEFAULT_HEADROOM as u16;
        self.head_end = DEFAULT_HEADROOM as u16;
        self.floor = DEFAULT_HEADROOM as u16;
        self.first = 0;
        self.nr = 0;
        self.max = max_frags;
    }

    /// First slot of the fragment array in use.
    #[inline]
    pub(crate) fn slots(&self) -> *const Frag {
        match NonNull::new(self.block) {
            None => self.frags.as_ptr().cast(),
            // SAFETY: a chained block is ours.
            Some(b) => unsafe { (&raw const (*b.as_ptr()).frags).cast() },
        }
    }
    #[inline]
    pub(crate) fn slots_mut(&mut self) -> *mut Frag {
        match NonNull::new(self.block) {
            None => self.frags.as_mut_ptr().cast(),
            // SAFETY: a chained block is ours.
            Some(b) => unsafe { (&raw mut (*b.as_ptr()).frags).cast() },
        }
    }
    /// Slots of the array in use.
    #[inline]
    pub(crate) fn slot_count(&self) -> usize {
        if self.block.is_null() { INLINE_FRAGS } else { BLOCK_FRAGS }
    }

    /// The fragments.
    #[inline]
    pub(crate) fn frags(&self) -> &[Frag] {
        // SAFETY: slots [first, first + nr) are initialised (the invariant of this type).
        unsafe { core::slice::from_raw_parts(self.slots().add(self.first as usize), self.nr as usize) }
    }
    #[inline]
    pub(crate) fn frags_mut(&mut self) -> &mut [Frag] {
        let (first, nr) = (self.first as usize, self.nr as usize);
        // SAFETY: as above, borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.slots_mut().add(first), nr) }
    }

    /// Makes room for `n` more fragments behind the last, within `max`: slides them to the front, or moves them into a
    /// block. False and unchanged when there is none.
    #[inline]
    pub(crate) fn reserve(&mut self, n: usize) -> bool {
        let (first, nr) = (self.first as usize, self.nr as usize);
        if nr + n > self.max as usize {
            return false;
        }
        if first + nr + n <= self.slot_count() {
            return true;
        }
        self.make_room(n)
    }

    #[cold]
    fn make_room(&mut self, n: usize) -> bool {
        let (first, nr) = (self.first as usize, self.nr as usize);
        let slots = self.slots_mut();
        if nr + n <= self.slot_count() {
            // SAFETY: both ranges are inside the array; the moved-from slots count as uninitialised from here.
            unsafe { core::ptr::copy(slots.add(first), slots, nr) };
            self.first = 0;
            return true;
        }
        debug_assert!(self.block.is_null() && nr + n <= BLOCK_FRAGS);
        // SAFETY: the core is alive while the descriptor is out.
        let Some(b) = unsafe { self.core.as_ref() }.blocks.take() else { return false };
        // SAFETY: the block is ours now and has room for all; the inline slots count as uninitialised from here.
        unsafe {
            let to = (&raw mut (*b.as_ptr()).frags).cast::<Frag>();
            core::ptr::copy_nonoverlapping(slots.add(first), to, nr);
        }
        self.block = b.as_ptr();
        self.first = 0;
        true
    }

    /// Writes a fragment behind the last, where `reserve` has made room.
    #[inline]
    pub(crate) fn push_reserved(&mut self, f: Frag) {
        let at = self.first as usize + self.nr as usize;
        debug_assert!(at < self.slot_count());
        self.data_len += f.len();
        // SAFETY: `reserve` made sure of the slot, which is uninitialised.
        unsafe { self.slots_mut().add(at).write(f) };
        self.nr += 1;
    }

    /// Moves the first fragment out.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<Frag> {
        if self.nr == 0 {
            return None;
        }
        // SAFETY: the slot is initialised; it counts as uninitialised from here.
        let f = unsafe { self.slots_mut().add(self.first as usize).read() };
        self.nr -= 1;
        self.first = if self.nr == 0 { 0 } else { self.first + 1 };
        self.data_len -= f.len();
        Some(f)
    }

    /// Puts a fragment back where `pop_front` has just taken one.
    #[inline]
    pub(crate) fn unpop_front(&mut self, f: Frag) {
        // An array that `pop_front` emptied starts again at 0, where there is room as well.
        self.first = if self.nr == 0 { 0 } else { self.first.saturating_sub(1) };
        self.data_len += f.len();
        // SAFETY: the slot before the first is the one that `pop_front` left uninitialised (or slot 0 of an empty array).
        unsafe { self.slots_mut().add(self.first as usize).write(f) };
        self.nr += 1;
    }

    /// Moves all fragments of `o` behind ours, where `reserve` has made room.
    pub(crate) fn append_reserved(&mut self, o: &mut Self) {
        let (to, n) = (self.first as usize + self.nr as usize, o.nr as usize);
        debug_assert!(to + n <= self.slot_count());
        let from = o.frags().as_ptr();
        // SAFETY: `n` initialised slots there, room for them here; the slots there count as uninitialised from here.
        unsafe { core::ptr::copy_nonoverlapping(from, self.slots_mut().add(to), n) };
        self.nr += o.nr;
        self.data_len += o.data_len;
        (o.nr, o.first, o.data_len) = (0, 0, 0);
    }

    /// Moves the last fragment out.
    #[inline]
    pub(crate) fn pop_back(&mut self) -> Option<Frag> {
        if self.nr == 0 {
            return None;
        }
        self.nr -= 1;
        // SAFETY: the slot is initialised; it counts as uninitialised from here.
        let f = unsafe { self.slots_mut().add(self.first as usize + self.nr as usize).read() };
        self.data_len -= f.len();
        Some(f)
    }

    /// Moves all fragments out, into `f`, and gives the block back.
    #[inline]
    pub(crate) fn clear_frags(&mut self, mut f: impl FnMut(Frag)) {
        while let Some(frag) = self.pop_front() {
            f(frag);
        }
        self.put_block();
    }

    /// Gives the block back. There are no fragments.
    #[inline]
    pub(crate) fn put_block(&mut self) {
        debug_assert!(self.nr == 0);
        if let Some(b) = NonNull::new(core::mem::replace(&mut self.block, core::ptr::null_mut())) {
            self.first = 0;
            // SAFETY: taken from this core's blocks; its fragments have been moved out.
            unsafe { self.core.as_ref().blocks.put(b) };
        }
    }
}

/// Sends a descriptor home from any thread, dropping its fragments.
///
/// # Safety
/// The caller owns the descriptor, which is out, and never touches it again.
pub(crate) unsafe fn send_home(d: NonNull<Desc>, silent: bool) {
    // SAFETY: ours.
    let desc = unsafe { &mut *d.as_ptr() };
    desc.clear_frags(drop);
    let core = desc.core;
    if silent {
        // SAFETY: the core is alive while the descriptor is out.
        unsafe { core.as_ref() }.silent.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: as above; `push` is the last access to the core unless it says that we must free it.
    if unsafe { Home::push(&raw const (*core.as_ptr()).home, d) } {
        // SAFETY: `push` elected us.
        unsafe { SkbCore::destroy(core) };
    }
}
