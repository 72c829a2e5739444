//! The skb: a thin owned handle to a descriptor, and its linear head.
//!
//! ```text
//!   head buffer (192 bytes)                                        fragments
//!   | headroom | head_off ..data.. head_end | tailroom |   ->   [frag 0][frag 1]...
//! ```
//! An [`Skb`] is one pointer. Headers live in the head: `push_head` grows it to the front and `put_head` at the end (both
//! hand out zeroed bytes, so a writer that leaves a gap shows zeros, never an earlier packet); `pull_head` and
//! `unpull_head` move the start over a header and back. Payload lives in fragments (the `skb_frags` module). An skb's bytes
//! are the head's data followed by the fragments'.
//!
//! Misuse by our own code (more than there is room for) gives `None` or `false` and changes nothing. Ends: see
//! [`SkbCache`](crate::SkbCache). The handle is `Send`; its descriptor's memory outlives the cache while it is out.
//! It does not clone: references to payload are taken with `clone_frags_from` into another skb.

use crate::desc::{Desc, HEAD_CAPACITY, send_home};
use crate::meta::{Csum, SkbMeta};
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// A packet, or a super-packet. Derefs to its [`SkbMeta`].
pub struct Skb(NonNull<Desc>);

const _: () = assert!(size_of::<Option<Skb>>() == size_of::<usize>());

// SAFETY: the handle owns its descriptor alone; fragments are `Send`; the way home works from any thread.
unsafe impl Send for Skb {}
// SAFETY: `&Skb` only reads the descriptor and frozen bytes.
unsafe impl Sync for Skb {}

impl Skb {
    /// # Safety
    /// `d` is reset and the caller gives it away.
    #[inline]
    pub(crate) unsafe fn from_raw(d: NonNull<Desc>) -> Self {
        Self(d)
    }
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<Desc> {
        ManuallyDrop::new(self).0
    }
    #[inline]
    pub(crate) fn d(&self) -> &Desc {
        // SAFETY: ours and alive while the handle is.
        unsafe { self.0.as_ref() }
    }
    #[inline]
    pub(crate) fn d_mut(&mut self) -> &mut Desc {
        // SAFETY: ours alone.
        unsafe { self.0.as_mut() }
    }

    /// The end of an skb on any thread, on purpose: fragments are dropped and the descriptor goes home over the return
    /// stack. Not counted as silent.
    #[inline]
    pub fn into_home(self) {
        // SAFETY: the handle gives the descriptor away.
        unsafe { send_home(self.into_raw(), false) };
    }

    /// The linear bytes.
    #[inline]
    pub fn head(&self) -> &[u8] {
        let d = self.d();
        d.head.0.get(d.head_off as usize..d.head_end as usize).unwrap_or_default()
    }
    /// The linear bytes, to write to.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        let d = self.d_mut();
        d.head.0.get_mut(d.head_off as usize..d.head_end as usize).unwrap_or_default()
    }
    /// Bytes in the head.
    #[inline]
    pub fn head_len(&self) -> usize {
        (self.d().head_end - self.d().head_off) as usize
    }
    /// Where the head's data starts, bytes from the start of the head buffer.
    #[inline]
    pub fn head_offset(&self) -> u16 {
        self.d().head_off
    }
    /// Bytes before the head's data.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.d().head_off as usize
    }
    /// Bytes behind the head's data.
    #[inline]
    pub fn tailroom(&self) -> usize {
        HEAD_CAPACITY - self.d().head_end as usize
    }
    /// The head's bytes from offset `off` of the head *buffer* (as `network_header` counts) to the end of its data.
    #[inline]
    pub fn head_from(&self, off: u16) -> &[u8] {
        let d = self.d();
        if off < d.floor { &[] } else { d.head.0.get(off as usize..d.head_end as usize).unwrap_or_default() }
    }
    /// As [`head_from`](Self::head_from), to write to.
    #[inline]
    pub fn head_from_mut(&mut self, off: u16) -> &mut [u8] {
        let d = self.d_mut();
        if off < d.floor {
            return &mut [];
        }
        d.head.0.get_mut(off as usize..d.head_end as usize).unwrap_or_default()
    }

    /// Grows the head by `n` zeroed bytes to the front and returns them. `None` when there is no headroom.
    #[inline]
    pub fn push_head(&mut self, n: usize) -> Option<&mut [u8]> {
        let d = self.d_mut();
        let off = (d.head_off as usize).checked_sub(n)?;
        let bytes = d.head.0.get_mut(off..d.head_off as usize)?;
        bytes.fill(0);
        d.head_off = off as u16;
        d.floor = d.floor.min(off as u16);
        Some(bytes)
    }

    /// As [`push_head`](Self::push_head) for a header whose length is known when this is compiled.
    #[inline]
    pub fn push_header<const N: usize>(&mut self) -> Option<&mut [u8; N]> {
        let d = self.d_mut();
        let off = (d.head_off as usize).checked_sub(N)?;
        let bytes = d.head.0.get_mut(off..)?.first_chunk_mut::<N>()?;
        *bytes = [0; N];
        d.head_off = off as u16;
        d.floor = d.floor.min(off as u16);
        Some(bytes)
    }

    /// Grows the head by `n` zeroed bytes at its end and returns them. `None` when there is no tailroom.
    #[inline]
    pub fn put_head(&mut self, n: usize) -> Option<&mut [u8]> {
        let d = self.d_mut();
        let end = (d.head_end as usize).checked_add(n)?;
        let bytes = d.head.0.get_mut(d.head_end as usize..end)?;
        bytes.fill(0);
        d.head_end = end as u16;
        Some(bytes)
    }

    /// Makes the first `len` bytes of `src` the head's data, `headroom` bytes from the start of its buffer, in place of what
    /// was there: a copy whose length is known when this is compiled. Both are cut to what there is.
    #[inline]
    pub fn set_head<const N: usize>(&mut self, headroom: usize, src: &[u8; N], len: usize) {
        const { assert!(N <= HEAD_CAPACITY) }
        let headroom = headroom.min(HEAD_CAPACITY - N);
        let d = self.d_mut();
        if let Some(to) = d.head.0.get_mut(headroom..).and_then(|t| t.first_chunk_mut::<N>()) {
            *to = *src;
        }
        (d.head_off, d.floor, d.head_end) = (headroom as u16, headroom as u16, (headroom + len.min(N)) as u16);
    }

    /// Copies `src` behind the head's data. False and unchanged when there is no tailroom.
    #[inline]
    pub fn put_head_from(&mut self, src: &[u8]) -> bool {
        let d = self.d_mut();
        let Some(to) = d.head.0.get_mut(d.head_end as usize..).and_then(|t| t.get_mut(..src.len())) else {
            return false;
        };
        to.copy_from_slice(src);
        d.head_end += src.len() as u16;
        true
    }

    /// Moves the start of the head's data over `n` bytes. False and unchanged when there are fewer.
    #[inline]
    pub fn pull_head(&mut self, n: usize) -> bool {
        let ok = n <= self.head_len();
        if ok {
            self.d_mut().head_off += n as u16;
        }
        ok
    }

    /// Moves the start of the head's data back over `n` bytes that were pulled. False and unchanged when not so many were
    /// ever written there.
    #[inline]
    pub fn unpull_head(&mut self, n: usize) -> bool {
        let d = self.d_mut();
        match (d.head_off as usize).checked_sub(n) {
            Some(off) if off >= d.floor as usize => {
                d.head_off = off as u16;
                true
            }
            _ => false,
        }
    }

    /// Empties the head and starts it at `headroom` bytes (cut to the capacity). Header offsets are cleared.
    #[inline]
    pub fn reset_head(&mut self, headroom: usize) {
        let at = headroom.min(HEAD_CAPACITY) as u16;
        let d = self.d_mut();
        (d.head_off, d.head_end, d.floor) = (at, at, at);
        d.meta.network_header = 0;
        d.meta.transport_header = 0;
    }

    /// Makes headroom of at least `n` by moving the head's data (and the offsets with it) towards the end; what was pulled is
    /// out of reach then. False and unchanged when the head is too full.
    #[cold]
    pub fn make_headroom(&mut self, n: usize) -> bool {
        if n <= self.headroom() {
            return true;
        }
        let len = self.head_len();
        if len + n > HEAD_CAPACITY {
            return false;
        }
        let d = self.d_mut();
        let by = n as u16 - d.head_off;
        d.head.0.copy_within(d.head_off as usize..d.head_end as usize, n);
        d.head_off += by;
        d.head_end += by;
        d.floor = d.head_off;
        d.meta.network_header += by;
        d.meta.transport_header += by;
        if let Csum::Partial { start, .. } = &mut d.meta.csum {
            *start += by;
        }
        true
    }

    /// Makes tailroom of at least `n` by moving the head's data (and the offsets with it) towards the front.
    pub(crate) fn make_tailroom(&mut self, n: usize) -> bool {
        if n <= self.tailroom() {
            return true;
        }
        let len = self.head_len();
        if len + n > HEAD_CAPACITY {
            return false;
        }
        let d = self.d_mut();
        let by = d.head_end - (HEAD_CAPACITY - n) as u16;
        debug_assert!(by <= d.head_off);
        d.head.0.copy_within(d.head_off as usize..d.head_end as usize, (d.head_off - by) as usize);
        d.head_off -= by;
        d.head_end -= by;
        // Bytes before the data have not moved: what was pulled is out of reach.
        d.floor = d.head_off;
        d.meta.network_header = d.meta.network_header.saturating_sub(by);
        d.meta.transport_header = d.meta.transport_header.saturating_sub(by);
        if let Csum::Partial { start, .. } = &mut d.meta.csum {
            *start = start.saturating_sub(by);
        }
        true
    }
}

impl Deref for Skb {
    type Target = SkbMeta;
    #[inline]
    fn deref(&self) -> &SkbMeta {
        &self.d().meta
    }
}
impl DerefMut for Skb {
    #[inline]
    fn deref_mut(&mut self) -> &mut SkbMeta {
        &mut self.d_mut().meta
    }
}

impl Drop for Skb {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: the handle ends here.
        unsafe { send_home(self.0, true) };
    }
}

impl core::fmt::Debug for Skb {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Skb")
            .field("len", &self.len())
            .field("head_len", &self.head_len())
            .field("frags", &self.frags())
            .field("meta", self.d())
            .finish()
    }
}

impl core::fmt::Debug for Desc {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.meta.fmt(f)
    }
}
