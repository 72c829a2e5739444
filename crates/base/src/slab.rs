//! A typed slab with generations: stable small indices for sockets, and keys that notice reuse.
//!
//! # Theory
//! An entry is named by its `u32` index, which other tables store (flow table, timer wheel). Removing an entry makes its
//! index free for the next insertion, last freed first, while the lines are still warm. A [`Key`] adds the generation of
//! the entry: a handle that outlived its entry finds nothing, where a bare index would find a stranger.
//!
//! # Invariants
//! - Entries never move: chunks of about 32 KiB are added, nothing is copied when the slab grows.
//! - The generation of an index changes at each removal. It wraps after 2^32 reuses of one index.
//! - `len` counts occupied entries; the free list links all others that were ever used.
//!
//! # Limits
//! At most `u32::MAX` entries. Memory is kept at the high-water mark until the slab is dropped. Iteration walks all entries
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

struct Entry<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

/// A growable arena of `T`. See the module head.
pub struct Slab<T> {
    /// Every chunk but the last is full-length.
    chunks: Vec<Vec<Entry<T>>>,
    free_head: u32,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slab<T> {
    /// Entries per chunk: a power of two near 32 KiB, at least 8.
    const CHUNK_LEN: usize = {
        let fit = 32_768 / size_of::<Entry<T>>();
        if fit < 8 { 8 } else { 1 << fit.ilog2() }
    };

    /// An empty slab; allocates nothing.
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), free_head: NIL, len: 0 }
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
        // Every chunk but the last is full-length.
        let last = self.chunks.last().map_or(0, Vec::len);
        (self.chunks.len().saturating_sub(1) * Self::CHUNK_LEN + last) as u32
    }

    /// Bytes held for entries, used or free, without what the values own elsewhere.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.len() * Self::CHUNK_LEN * size_of::<Entry<T>>()
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
        let (chunk, offset) = (index as usize / Self::CHUNK_LEN, index as usize % Self::CHUNK_LEN);
        let mut skip = offset;
        for (c, entries) in self.chunks.iter().enumerate().skip(chunk) {
            if let Some((o, e)) = entries.iter().enumerate().skip(skip).find(|(_, e)| e.value.is_some()) {
                return Some(Key { index: (c * Self::CHUNK_LEN + o) as u32, generation: e.generation });
            }
            skip = 0;
        }
        None
    }

    fn push_entry(&mut self) -> u32 {
        if self.chunks.last().is_none_or(|c| c.len() == Self::CHUNK_LEN) {
            self.chunks.push(Vec::with_capacity(Self::CHUNK_LEN));
        }
        let base = (self.chunks.len() - 1) * Self::CHUNK_LEN;
        let chunk = &mut self.chunks[base / Self::CHUNK_LEN];
        let index = base + chunk.len();
        assert!(index < NIL as usize, "slab is full");
        chunk.push(Entry { generation: 0, next_free: NIL, value: None });
        index as u32
    }

    fn entry(&self, index: u32) -> Option<&Entry<T>> {
        self.chunks.get(index as usize / Self::CHUNK_LEN)?.get(index as usize % Self::CHUNK_LEN)
    }

    fn entry_mut(&mut self, index: u32) -> Option<&mut Entry<T>> {
        self.chunks.get_mut(index as usize / Self::CHUNK_LEN)?.get_mut(index as usize % Self::CHUNK_LEN)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn stale_keys_find_nothing() {
        let mut s = Slab::new();
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
        let mut s = Slab::new();
        let keys: Vec<_> = (0..10).map(|i| s.insert(i)).collect();
        for i in [3, 7, 5] {
            s.remove(keys[i]);
        }
        assert_eq!([s.insert(0).index, s.insert(0).index, s.insert(0).index, s.insert(0).index], [5, 7, 3, 10]);
    }

    #[test]
    fn entries_do_not_move_when_the_slab_grows() {
        let mut s = Slab::new();
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
        let mut s = Slab::new();
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
}
