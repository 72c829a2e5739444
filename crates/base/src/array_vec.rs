//! A vector of at most `N` elements, stored in place: for SACK blocks, iovecs and other lists with a protocol limit.
//!
//! A TCP header holds at most four SACK blocks; a list of them needs no heap and no unbounded growth. `T: Copy + Default`
//! lets the storage be a plain array without `unsafe`: elements beyond the length keep some old or default value that
//! nobody can see.
//!
//! Invariants: `len <= N <= 65535`; reading is through slices only. Every operation that could exceed `N` returns the element
//! to the caller instead of panicking, since the number of elements is often a peer's choice.

use core::fmt;
use core::ops::{Deref, DerefMut};

/// A list of at most `N` elements. Dereferences to a slice.
#[derive(Clone, Copy)]
pub struct ArrayVec<T, const N: usize> {
    items: [T; N],
    len: u16,
}

impl<T: Copy + Default, const N: usize> ArrayVec<T, N> {
    /// The capacity.
    pub const CAPACITY: usize = N;

    /// An empty list.
    pub fn new() -> Self {
        const { assert!(N <= u16::MAX as usize) };
        Self { items: [T::default(); N], len: 0 }
    }

    /// True when nothing more fits.
    pub fn is_full(&self) -> bool {
        self.len as usize == N
    }

    /// Appends `item`, or gives it back when the list is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        self.insert(self.len as usize, item)
    }

    /// Inserts `item` before element `at`, or gives it back when the list is full or `at > len`.
    pub fn insert(&mut self, at: usize, item: T) -> Result<(), T> {
        let len = self.len as usize;
        if len == N || at > len {
            return Err(item);
        }
        self.items.copy_within(at..len, at + 1);
        self.items[at] = item;
        self.len += 1;
        Ok(())
    }

    /// Removes and returns the last element.
    pub fn pop(&mut self) -> Option<T> {
        self.remove((self.len as usize).checked_sub(1)?)
    }

    /// Removes and returns element `at`; the rest moves down. `None` beyond the end.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        let item = *self.as_slice().get(at)?;
        self.items.copy_within(at + 1..self.len as usize, at);
        self.len -= 1;
        Some(item)
    }

    /// Keeps the elements for which `keep` holds, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let mut kept = 0;
        for i in 0..self.len as usize {
            if keep(&self.items[i]) {
                self.items[kept] = self.items[i];
                kept += 1;
            }
        }
        self.len = kept as u16;
    }

    /// Shortens the list to at most `len` elements.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len.min(N) as u16);
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl<T, const N: usize> ArrayVec<T, N> {
    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        &self.items[..self.len as usize]
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items[..self.len as usize]
    }
}

impl<T: Copy + Default, const N: usize> Default for ArrayVec<T, N> {
    fn default() -> Self {
        Self::new()
    }
}
impl<T, const N: usize> Deref for ArrayVec<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}
impl<T, const N: usize> DerefMut for ArrayVec<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.as_mut_slice()
    }
}
impl<'a, T, const N: usize> IntoIterator for &'a ArrayVec<T, N> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}
impl<T: PartialEq, const N: usize, const M: usize> PartialEq<ArrayVec<T, M>> for ArrayVec<T, N> {
    fn eq(&self, other: &ArrayVec<T, M>) -> bool {
        self.as_slice() == other.as_slice()
    }
}
impl<T: Eq, const N: usize> Eq for ArrayVec<T, N> {}
impl<T: fmt::Debug, const N: usize> fmt::Debug for ArrayVec<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_n_and_no_more() {
        let mut v = ArrayVec::<u32, 4>::new();
        for i in 0..4 {
            assert_eq!(v.push(i), Ok(()));
        }
        assert!(v.is_full());
        assert_eq!((v.push(9), v.insert(0, 8)), (Err(9), Err(8)));
        assert_eq!(v.as_slice(), [0, 1, 2, 3]);
        assert_eq!((v.pop(), v.len()), (Some(3), 3));
    }

    #[test]
    fn inserts_and_removes_in_order() {
        let mut v = ArrayVec::<u32, 5>::new();
        for (at, x) in [(0, 3), (0, 1), (1, 2), (3, 4)] {
            assert_eq!(v.insert(at, x), Ok(()));
        }
        assert_eq!(v.insert(5, 0), Err(0), "a hole is refused");
        assert_eq!(*v, [1, 2, 3, 4]);
        assert_eq!((v.remove(1), v.remove(3)), (Some(2), None));
        v.retain(|&x| x != 3);
        assert_eq!(*v, [1, 4]);
        v.truncate(9);
        assert_eq!(v.iter().sum::<u32>(), 5);
        v.truncate(1);
        v[0] = 7;
        assert_eq!(*v, [7]);
        v.clear();
        assert!(v.is_empty() && v.pop().is_none());
    }

    #[test]
    fn equality_ignores_what_lies_beyond_the_end() {
        let (mut a, mut b) = (ArrayVec::<u8, 4>::new(), ArrayVec::<u8, 8>::new());
        for x in [1, 2, 3] {
            a.push(x).unwrap();
        }
        a.pop();
        for x in [1, 2] {
            b.push(x).unwrap();
        }
        assert_eq!(a, b);
        assert_eq!(std::format!("{a:?}"), "[1, 2]");
    }
}
