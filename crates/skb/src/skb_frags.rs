//! The payload of an skb: adding, cutting, moving and referencing fragments.
//!
//! The fragments of an skb are one slice. Whatever is added directly behind the last fragment in the same page merges into
//! it, at no cost when it is a clone (no count is taken) and for one subtraction when it is moved. Operations that can run
//! out of fragment slots check first and change nothing when they fail.
//!
//! `payload_sum` is kept true: operations that change the fragments' bytes clear it, except `push_frag_sum`, which
//! combines. `gso_segs`, `truesize` and `csum` are the caller's.
//!
//! Limits: `max_frags` (17, 29, 45, 128: a setting of the cache or the skb), at most 128 pages of 2 MiB, so lengths fit `u32`.
//! A position is found by walking the fragments (at most 128); it does not index.

use crate::desc::{MAX_FRAGS, SKB_TRUESIZE};
use crate::frag::{Frag, OwedRefs};
use crate::skb::Skb;
use alloc::vec::Vec;

impl Skb {
    /// Bytes in head and fragments.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.data_len() + self.head_len() as u32
    }
    /// Has it no bytes at all?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes in fragments.
    #[inline]
    pub fn data_len(&self) -> u32 {
        self.d().data_len
    }
    /// The fragments, in order.
    #[inline]
    pub fn frags(&self) -> &[Frag] {
        self.d().frags()
    }
    /// Fragments.
    #[inline]
    pub fn nr_frags(&self) -> usize {
        self.d().nr as usize
    }
    /// Most fragments that this skb takes.
    #[inline]
    pub fn max_frags(&self) -> usize {
        self.d().max as usize
    }
    /// Sets the limit (1 to [`MAX_FRAGS`]). Fragments beyond a lowered limit stay.
    #[inline]
    pub fn set_max_frags(&mut self, n: usize) {
        self.d_mut().max = n.clamp(1, MAX_FRAGS) as u16;
    }

    /// Adds a fragment at the end (an empty one is let go), merging it with the last when contiguous. Gives it back when
    /// `max_frags` is reached.
    #[inline]
    pub fn push_frag(&mut self, f: Frag) -> Result<(), Frag> {
        let d = self.d_mut();
        let len = f.len();
        if len == 0 {
            return Ok(());
        }
        let f = match d.frags_mut().last_mut() {
            Some(last) => match last.try_merge(f) {
                Ok(()) => {
                    d.data_len += len;
                    d.meta.payload_sum = None;
                    return Ok(());
                }
                Err(f) => f,
            },
            None => f,
        };
        if !d.reserve(1) {
            return Err(f);
        }
        d.push_reserved(f);
        d.meta.payload_sum = None;
        Ok(())
    }

    /// As [`push_frag`](Self::push_frag) for a fragment whose partial checksum is known: keeps `payload_sum` when it was
    /// known so far (or there were no fragments).
    #[inline]
    pub fn push_frag_sum(&mut self, f: Frag, sum: u32) -> Result<(), Frag> {
        let before = if self.data_len() == 0 { Some(0) } else { self.payload_sum };
        let at = self.data_len();
        self.push_frag(f)?;
        self.payload_sum = before.map(|b| linerate_arch::combine(b, sum, at as usize));
        Ok(())
    }

    /// Moves the first fragment out.
    #[inline]
    pub fn pop_front_frag(&mut self) -> Option<Frag> {
        let f = self.d_mut().pop_front();
        if f.is_some() {
            self.payload_sum = None;
        }
        f
    }

    /// Moves fragments out, in order; those that are not taken stay.
    #[inline]
    pub fn drain_frags(&mut self) -> impl Iterator<Item = Frag> + '_ {
        core::iter::from_fn(move || self.pop_front_frag())
    }

    /// Lets all fragments go; the head stays.
    pub fn clear_frags(&mut self) {
        self.d_mut().clear_frags(drop);
        self.payload_sum = None;
    }

    /// Takes `n` bytes off the front: of the head first, then of the fragments. All bytes, when there are fewer.
    pub fn pull(&mut self, n: u32) {
        debug_assert!(n <= self.len(), "pulling {n} of {}", self.len());
        let from_head = n.min(self.head_len() as u32);
        self.pull_head(from_head as usize);
        self.pull_frags(n - from_head);
    }

    /// Takes `n` bytes off the front of the fragments.
    fn pull_frags(&mut self, mut n: u32) {
        if n == 0 {
            return;
        }
        let d = self.d_mut();
        d.meta.payload_sum = None;
        while n > 0 {
            let Some(f) = d.frags_mut().first_mut() else { return };
            if n < f.len() {
                f.advance(n);
                d.data_len -= n;
                return;
            }
            n -= f.len();
            drop(d.pop_front());
        }
    }

    /// Keeps the first `len` bytes (of head and fragments); nothing happens when there are not more.
    pub fn trim(&mut self, len: u32) {
        let Some(mut cut) = self.len().checked_sub(len).filter(|&c| c > 0) else { return };
        let d = self.d_mut();
        d.meta.payload_sum = None;
        while cut > 0 {
            let Some(f) = d.frags_mut().last_mut() else { break };
            if cut < f.len() {
                f.truncate(f.len() - cut);
                d.data_len -= cut;
                return;
            }
            cut -= f.len();
            drop(d.pop_back());
        }
        d.head_end -= cut as u16;
    }

    /// Makes the first `n` bytes linear by moving them out of the fragments, for header parsing. The head's data (and the
    /// header offsets with it) may move towards the front for that. False and unchanged when there are fewer bytes, or
    /// they do not fit the head.
    #[inline]
    pub fn pull_to_head(&mut self, n: usize) -> bool {
        match n.checked_sub(self.head_len()) {
            None | Some(0) => true,
            Some(more) => self.pull_to_head_slow(more),
        }
    }

    fn pull_to_head_slow(&mut self, more: usize) -> bool {
        if more > self.data_len() as usize || !self.make_tailroom(more) {
            return false;
        }
        let d = self.d_mut();
        d.meta.payload_sum = None;
        let mut left = more;
        while left > 0 {
            let end = d.head_end as usize;
            // Two fields of the descriptor at once: the fragment is moved out and put back shortened.
            let Some(mut f) = d.pop_front() else { return false };
            let n = left.min(f.len() as usize);
            if let (Some(to), Some(from)) = (d.head.0.get_mut(end..end + n), f.as_slice().get(..n)) {
                to.copy_from_slice(from);
            }
            d.head_end += n as u16;
            left -= n;
            f.advance(n as u32);
            if !f.is_empty() {
                d.unpop_front(f);
            }
        }
        true
    }

    /// Copies bytes from offset `off` (of head and fragments together) into `dst`; returns how many there were.
    pub fn copy_bytes(&self, off: u32, dst: &mut [u8]) -> usize {
        let mut skip = off as usize;
        let mut done = 0;
        for s in self.slices() {
            let from = s.get(skip.min(s.len())..).unwrap_or_default();
            skip -= skip.min(s.len());
            let n = from.len().min(dst.len() - done);
            if let (Some(to), Some(from)) = (dst.get_mut(done..done + n), from.get(..n)) {
                to.copy_from_slice(from);
            }
            done += n;
            if done == dst.len() {
                break;
            }
        }
        done
    }

    /// Moves all fragments of `other` behind ours, merging at the seam. False and both unchanged when they are too many.
    pub fn append_frags(&mut self, other: &mut Self) -> bool {
        let d = self.d_mut();
        let o = other.d_mut();
        let merge = match (d.frags().last(), o.frags().first()) {
            (Some(a), Some(b)) => a.is_followed_by(b),
            (_, None) => return true,
            _ => false,
        };
        if !d.reserve(o.nr as usize - usize::from(merge)) {
            return false;
        }
        d.meta.payload_sum = None;
        o.meta.payload_sum = None;
        if merge && let Some(f) = o.pop_front() {
            let len = f.len();
            if let Some(Ok(())) = d.frags_mut().last_mut().map(|last| last.try_merge(f)) {
                d.data_len += len;
            }
        }
        d.append_reserved(o);
        true
    }

    /// As [`append_frags`](Self::append_frags), for merging frame after frame: where `other` is one fragment directly behind
    /// our last, that grows, and the count left over is noted in `owed`.
    #[inline]
    pub fn append_frags_owing(&mut self, other: &mut Self, owed: &mut OwedRefs) -> bool {
        let o = other.d_mut();
        if o.nr != 1 {
            return self.append_frags(other);
        }
        let Some(f) = o.pop_front() else { return true };
        match self.push_frag_owing(f, owed) {
            Ok(()) => {
                other.d_mut().meta.payload_sum = None;
                true
            }
            Err(f) => {
                other.d_mut().unpop_front(f);
                false
            }
        }
    }

    /// As [`push_frag`](Self::push_frag); when the fragment merges into our last, its count is noted in `owed`.
    #[inline]
    pub fn push_frag_owing(&mut self, f: Frag, owed: &mut OwedRefs) -> Result<(), Frag> {
        let d = self.d_mut();
        let len = f.len();
        let f = match d.frags_mut().last_mut() {
            Some(last) => match last.try_merge_owing(f, owed) {
                Ok(()) => {
                    d.data_len += len;
                    d.meta.payload_sum = None;
                    return Ok(());
                }
                Err(f) => f,
            },
            None => f,
        };
        self.push_frag(f)
    }

    /// Adds references to `len` payload bytes of `other` from payload offset `off` (its head does not count) behind our
    /// fragments: the way to transmit from the retransmit queue and to cut frames. One count per page touched, none where
    /// it only lengthens our last fragment. False and unchanged when `other` has not so many bytes or the fragments are
    /// too many.
    pub fn clone_frags_from(&mut self, other: &Self, off: u32, len: u32) -> bool {
        if off.checked_add(len).is_none_or(|end| end > other.data_len()) {
            return false;
        }
        if len == 0 {
            return true;
        }
        let (mut from, mut skip) = (other.frags(), off);
        while let Some((f, rest)) = from.split_first()
            && skip >= f.len()
        {
            skip -= f.len();
            from = rest;
        }
        let (mut count, mut left) = (0, len.saturating_add(skip));
        for f in from {
            if left == 0 {
                break;
            }
            left -= left.min(f.len());
            count += 1;
        }
        let d = self.d_mut();
        let merge = match (d.frags().last(), from.first()) {
            (Some(a), Some(b)) => a.ends_before(b, skip),
            _ => false,
        };
        if !d.reserve(count - usize::from(merge)) {
            return false;
        }
        d.meta.payload_sum = None;
        let mut left = len;
        for (i, f) in from.iter().enumerate().take(count) {
            let n = left.min(f.len() - skip);
            match d.frags_mut().last_mut() {
                Some(last) if i == 0 && merge => {
                    last.extend_over(f, skip, n);
                    d.data_len += n;
                }
                _ => d.push_reserved(f.slice(skip, n)),
            }
            left -= n;
            skip = 0;
        }
        debug_assert!(left == 0);
        true
    }

    /// Keeps `at` payload bytes (the head does not count) and moves the rest behind the fragments of `rest`; a fragment
    /// that is cut gets one more count. False and both unchanged when there are fewer bytes or `rest` cannot take them.
    pub fn split_payload(&mut self, at: u32, rest: &mut Self) -> bool {
        let Some(tail) = self.data_len().checked_sub(at) else { return false };
        // References first (it checks everything), then our own go: the counts of whole fragments are handed over.
        if !rest.clone_frags_from(self, at, tail) {
            return false;
        }
        self.trim(self.head_len() as u32 + at);
        true
    }

    /// The bytes of the fragments, in order.
    #[inline]
    pub fn payload_slices(&self) -> impl Iterator<Item = &[u8]> {
        self.frags().iter().map(Frag::as_slice)
    }
    /// All bytes, in order: the head's, then the fragments'.
    #[inline]
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(self.head()).chain(self.payload_slices())
    }
    /// A copy of all bytes (allocates: for tests, captures and reports).
    pub fn to_vec(&self) -> Vec<u8> {
        let mut v = Vec::with_capacity(self.len() as usize);
        self.slices().for_each(|s| v.extend_from_slice(s));
        v
    }

    /// Sets `truesize` to the descriptor plus the pages that the fragments hold, whole; a page held by neighbouring
    /// fragments counts once (SYSTEMS A21). A device that packs several skbs into one page charges each its share instead.
    pub fn charge_pages(&mut self) {
        let mut bytes = SKB_TRUESIZE;
        let mut before: Option<&Frag> = None;
        for f in self.frags() {
            if before.is_none_or(|b| !b.is_same_page(f)) {
                bytes = bytes.saturating_add(f.page_size());
            }
            before = Some(f);
        }
        self.truesize = bytes;
    }
}
