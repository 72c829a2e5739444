//! A FIFO of skbs: what queues and devices hand to each other.
//!
//! A batch keeps its capacity across turns, so that in steady state handing packets on allocates nothing. It owns its skbs:
//! a batch that is dropped with skbs inside drops them silently (and the cache counts that), so it is emptied with
//! [`SkbBatch::clear_with`] where packets are meant to die.
//!
//! Limits: none of its own; budgets and queue lengths are the caller's. It is not a queue between threads (see
//! [`spsc`](crate::spsc)) and knows no priorities.

use crate::cache::SkbCache;
use crate::pool::PagePool;
use crate::skb::Skb;
use alloc::collections::VecDeque;
use core::ops::RangeBounds;

/// A FIFO of skbs.
#[derive(Debug, Default)]
pub struct SkbBatch(VecDeque<Skb>);

impl SkbBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }
    /// An empty batch with room for `n` skbs.
    pub fn with_capacity(n: usize) -> Self {
        Self(VecDeque::with_capacity(n))
    }
    /// Adds at the end.
    #[inline]
    pub fn push(&mut self, skb: Skb) {
        self.0.push_back(skb);
    }
    /// Puts one back at the front.
    #[inline]
    pub fn push_front(&mut self, skb: Skb) {
        self.0.push_front(skb);
    }
    /// Takes the first.
    #[inline]
    pub fn pop_front(&mut self) -> Option<Skb> {
        self.0.pop_front()
    }
    /// The first.
    #[inline]
    pub fn front(&self) -> Option<&Skb> {
        self.0.front()
    }
    /// The first, to change.
    #[inline]
    pub fn front_mut(&mut self) -> Option<&mut Skb> {
        self.0.front_mut()
    }
    /// The last, to change.
    #[inline]
    pub fn back_mut(&mut self) -> Option<&mut Skb> {
        self.0.back_mut()
    }
    /// Skbs.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Is there none?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Skbs that fit without allocating.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
    /// In order.
    #[inline]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Skb> + ExactSizeIterator {
        self.0.iter()
    }
    /// In order, to change.
    #[inline]
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Skb> + ExactSizeIterator {
        self.0.iter_mut()
    }
    /// Takes a range out, in order.
    ///
    /// # Panics
    /// When the range is not inside the batch.
    #[inline]
    pub fn drain(&mut self, range: impl RangeBounds<usize>) -> impl DoubleEndedIterator<Item = Skb> + '_ {
        self.0.drain(range)
    }
    /// Moves all skbs of `other` behind ours.
    #[inline]
    pub fn append(&mut self, other: &mut Self) {
        self.0.append(&mut other.0);
    }
    /// Frees all skbs on the owner's side; the caller has counted why.
    pub fn clear_with(&mut self, skbs: &mut SkbCache, pool: &mut PagePool) {
        for skb in self.0.drain(..) {
            skbs.free(skb, pool);
        }
    }
}

impl Extend<Skb> for SkbBatch {
    fn extend<I: IntoIterator<Item = Skb>>(&mut self, it: I) {
        self.0.extend(it);
    }
}
impl FromIterator<Skb> for SkbBatch {
    fn from_iter<I: IntoIterator<Item = Skb>>(it: I) -> Self {
        Self(it.into_iter().collect())
    }
}
impl IntoIterator for SkbBatch {
    type Item = Skb;
    type IntoIter = alloc::collections::vec_deque::IntoIter<Skb>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
