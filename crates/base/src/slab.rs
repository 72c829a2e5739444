//! A typed slab with generations: stable small indices for sockets, and keys that notice reuse.
//!
//! # Theory
//! An entry is named by its `u32` index, which other tables store (flow table, timer wheel). Removing an entry makes its
//! index free for the next insertion, last freed first, while the lines are still warm. A [`Key`] adds the generation of
//! the entry: a handle that outlived its entry finds nothing, where a bare index would find a stranger.
//!
//! # Invariants
//! - Entries never move: each chunk that is added is as large as all before it, the first about 32 KiB, and nothing is
//!   copied when the slab grows. So there are few chunks, and their addresses stay in the nearest cache; a large slab
//!   consists of large pieces, which a host's allocator can back by huge pages.
//! - The generation of an index changes at each removal. It wraps after 2^32 reuses of one index.
//! - `len` counts occupied entries; the free list links all others that were ever used.
//!
//! # Limits
//! At most `u32::MAX` entries. Up to half of the capacity may be unused; where memory is handed out lazily that half is
//! never touched. Memory is kept at the high-water mark until the slab is dropped. Iteration walks all entries
//! ever used: for dumps, not for data paths.

use alloc::vec::Vec;

/// Name of an entry that notices reuse of its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// Index of the entry, dense from 0.
    pub index: u32,
    /// How often the index was freed before, modulo 2^32.
    pub generation: u32,
}

const NIL: u32 = u32::MAX;

/// As the second parameter of a [`Slab`]: its entries begin with a cache line.
#[repr(align(64))]
pub struct CacheLine;

#[repr(C)]
struct Entry<T, A> {
    align: [A; 0],
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

/// A growable arena of `T`, its entries aligned as `A` is. See the module head.
pub struct Slab<T, A = ()> {
    /// Every chunk but the last is full: the first two have [`Self::FIRST_LEN`] entries, each other twice as many as
    /// the one before.
    chunks: Vec<Vec<Entry<T, A>>>,
    free_head: u32,
    len: usize,
}

impl<T, A> Default for Slab<T, A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, A> Slab<T, A> {
    /// Entries of the first chunk: a power of two near 32 KiB, at least 8.
    const FIRST_LEN: usize = {
        let fit = 32_768 / size_of::<Entry<T, A>>();
        if fit < 8 { 8 } else { 1 << fit.ilog2() }
    };

    /// An empty slab; allocates nothing.
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), free_head: NIL, len: 0 }
    }

    /// The chunk of an entry, and its place there.
    #[inline]
    const fn locate(index: u32) -> (usize, usize) {
        let below = Self::FIRST_LEN - 1;
        let bit = (index as usize | below).ilog2();
        let base = (1 << bit) & !below;
        ((bit + 1 - Self::FIRST_LEN.ilog2()) as usize, index as usize - base)
    }

    /// Entries of a chunk.
    const fn chunk_len(chunk: usize) -> usize {
        if chunk == 0 { Self::FIRST_LEN } else { Self::FIRST_LEN << (chunk - 1) }
    }

    /// Occupied entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more than the highest index that was ever used: every key ever given lies below.
    pub fn index_end(&self) -> u32 {
        self.chunks.iter().map(Vec::len).sum::<usize>() as u32
    }

    /// Bytes held for entries, used or free, without what the values own elsewhere.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.iter().map(Vec::capacity).sum::<usize>() * size_of::<Entry<T, A>>()
    }

    /// Adds a value.
    ///
    /// # Panics
    /// When `u32::MAX` entries are in use.
    pub fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    /// Adds the value that `make` returns; `make` learns the key.
    ///
    /// # Panics
    /// When `u32::MAX` entries are in use.
    pub fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        let index = if self.free_head == NIL { self.push_entry() } else { self.free_head };
        // Our own free list names only existing entries.
        let entry = self.entry_mut(index).expect("free list out of range");
        debug_assert!(entry.value.is_none(), "free list names an occupied entry");
        let key = Key { index, generation: entry.generation };
        let next_free = entry.next_free;
        entry.value = Some(make(key));
        self.free_head = next_free;
        self.len += 1;
        key
    }

    /// The value of `key`, unless it was removed.
    pub fn get(&self, key: Key) -> Option<&T> {
        self.entry(key.index).filter(|e| e.generation == key.generation)?.value.as_ref()
    }

    /// The value of `key`, unless it was removed.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entry_mut(key.index).filter(|e| e.generation == key.generation)?.value.as_mut()
    }

    /// The value at `index`, whatever its generation: for tables that are cleaned when an entry goes.
    pub fn get_by_index(&self, index: u32) -> Option<&T> {
        self.entry(index)?.value.as_ref()
    }

    /// The value at `index`, whatever its generation.
    pub fn get_by_index_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entry_mut(index)?.value.as_mut()
    }

    /// Where the value at `index` lies or would lie, without a look at it: for a prefetch.
    pub fn place_of(&self, index: u32) -> Option<&Option<T>> {
        self.entry(index).map(|entry| &entry.value)
    }

    /// The value at `index` with its present key.
    pub fn entry_by_index_mut(&mut self, index: u32) -> Option<(Key, &mut T)> {
        let entry = self.entry_mut(index)?;
        let key = Key { index, generation: entry.generation };
        entry.value.as_mut().map(|value| (key, value))
    }

    /// The present key of `index`, if occupied.
    pub fn key_of(&self, index: u32) -> Option<Key> {
        let entry = self.entry(index)?;
        entry.value.is_some().then_some(Key { index, generation: entry.generation })
    }

    /// True while `key` names an entry.
    pub fn contains(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    /// Removes and returns the value of `key`.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let free_head = self.free_head;
        let entry = self.entry_mut(key.index).filter(|e| e.generation == key.generation)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = free_head;
        self.free_head = key.index;
        self.len -= 1;
        Some(value)
    }

    /// Drops the value of `key` where it lies; false when it was removed before. For values that are too large to move
    /// out only to be dropped.
    pub fn discard(&mut self, key: Key) -> bool {
        let free_head = self.free_head;
        let Some(entry) = self.entry_mut(key.index).filter(|e| e.generation == key.generation && e.value.is_some())
        else {
            return false;
        };
        entry.value = None;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = free_head;
        self.free_head = key.index;
        self.len -= 1;
        true
    }

    /// All entries, by rising index.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.chunks.iter().flatten().enumerate().filter_map(|(i, e)| {
            let key = Key { index: i as u32, generation: e.generation };
            e.value.as_ref().map(|v| (key, v))
        })
    }

    /// All entries, by rising index.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.chunks.iter_mut().flatten().enumerate().filter_map(|(i, e)| {
            let key = Key { index: i as u32, generation: e.generation };
            e.value.as_mut().map(|v| (key, v))
        })
    }

    /// The first occupied entry at or above `index`: lets a caller walk the slab while it changes it.
    pub fn next_from(&self, index: u32) -> Option<Key> {
        let (first, mut skip) = Self::locate(index);
        let mut base = index as usize - skip;
        for entries in self.chunks.iter().skip(first) {
            if let Some((o, e)) = entries.iter().enumerate().skip(skip).find(|(_, e)| e.value.is_some()) {
                return Some(Key { index: (base + o) as u32, generation: e.generation });
            }
            base += entries.len();
            skip = 0;
        }
        None
    }

    fn push_entry(&mut self) -> u32 {
        let last = self.chunks.len().wrapping_sub(1);
        if self.chunks.last().is_none_or(|c| c.len() == Self::chunk_len(last)) {
            self.chunks.push(Vec::with_capacity(Self::chunk_len(self.chunks.len())));
        }
        let index = self.index_end();
        assert!(index < NIL, "slab is full");
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(Entry { align: [], generation: 0, next_free: NIL, value: None });
        }
        debug_assert!(self.entry(index).is_some_and(|e| e.value.is_none()), "an entry lies elsewhere");
        index
    }

    #[inline]
    fn entry(&self, index: u32) -> Option<&Entry<T, A>> {
        let (chunk, at) = Self::locate(index);
        self.chunks.get(chunk)?.get(at)
    }

    #[inline]
    fn entry_mut(&mut self, index: u32) -> Option<&mut Entry<T, A>> {
        let (chunk, at) = Self::locate(index);
        self.chunks.get_mut(chunk)?.get_mut(at)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn stale_keys_find_nothing() {
        let mut s: Slab<_> = Slab::new();
        let a = s.insert("a");
        assert_eq!(s.remove(a), Some("a"));
        let b = s.insert("b");
        assert_eq!((b.index, b.generation), (a.index, a.generation + 1));
        assert_eq!((s.get(a), s.get(b)), (None, Some(&"b")));
        assert_eq!(s.remove(a), None);
        assert_eq!(s.get_by_index(0), Some(&"b"));
        assert_eq!((s.key_of(0), s.key_of(1)), (Some(b), None));
        assert!(!s.discard(a) && s.discard(b) && !s.discard(b));
        assert_eq!((s.get(b), s.len()), (None, 0));
        assert_eq!(s.insert("c").generation, b.generation + 1);
    }

    #[test]
    fn freed_last_is_reused_first() {
        let mut s: Slab<_> = Slab::new();
        let keys: Vec<_> = (0..10).map(|i| s.insert(i)).collect();
        for i in [3, 7, 5] {
            s.remove(keys[i]);
        }
        assert_eq!([s.insert(0).index, s.insert(0).index, s.insert(0).index, s.insert(0).index], [5, 7, 3, 10]);
    }

    #[test]
    fn entries_do_not_move_when_the_slab_grows() {
        let mut s: Slab<_> = Slab::new();
        let first = s.insert([0u64; 8]);
        let at = core::ptr::from_ref(s.get(first).unwrap());
        for i in 0..100_000u64 {
            s.insert([i; 8]);
        }
        assert_eq!(core::ptr::from_ref(s.get(first).unwrap()), at);
        assert_eq!(s.get_by_index(100_000), Some(&[99_999; 8]));
        assert_eq!(s.get_by_index(100_001), None);
        assert_eq!((s.index_end(), Slab::<u8>::new().index_end()), (100_001, 0));
        s.remove(first);
        assert_eq!(s.index_end(), 100_001);
    }

    #[test]
    fn walks_and_counts() {
        let mut rng = Rng::new(3);
        let mut s: Slab<_> = Slab::new();
        let mut live: Vec<Key> = Vec::new();
        for i in 0..20_000u32 {
            if rng.chance(0.6) || live.is_empty() {
                live.push(s.insert_with(|k| (k, i)));
            } else {
                let gone = live.swap_remove(rng.below(live.len() as u64) as usize);
                assert_eq!(s.remove(gone).map(|v| v.0), Some(gone));
            }
            assert_eq!(s.len(), live.len());
        }
        live.sort_unstable();
        assert_eq!(s.iter().map(|(k, _)| k).collect::<Vec<_>>(), live);
        assert!(s.iter_mut().all(|(k, v)| v.0 == k));
        let mut walked = Vec::new();
        let mut at = 0;
        while let Some(k) = s.next_from(at) {
            walked.push(k);
            at = k.index + 1;
        }
        assert_eq!(walked, live);
    }

    #[test]
    fn chunks_double_and_entries_begin_with_a_line() {
        type Lines = Slab<[u8; 100], CacheLine>;
        let mut s = Lines::new();
        for i in 0..5_000_u32 {
            let key = s.insert([i as u8; 100]);
            assert_eq!(key.index, i);
            let at = core::ptr::from_ref(s.place_of(i).unwrap()).addr();
            assert_eq!(at % 64, 8, "behind the generation");
        }
        assert!((0..5_000).all(|i| s.get_by_index(i) == Some(&[i as u8; 100])));
        assert_eq!((s.get_by_index(5_000), s.get_by_index(u32::MAX)), (None, None));
        assert!(s.chunks.len() <= 8 && s.memory_bytes() < 2 * 5_000 * 128 + 65_536, "{} chunks", s.chunks.len());
        assert_eq!(s.next_from(4_999).map(|k| k.index), Some(4_999));
        assert_eq!(s.next_from(5_000), None);
    }
}
