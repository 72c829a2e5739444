//! The flow table: from a flow's hash to its socket's index, in 8 bytes a slot (DESIGN section 3, "Sockets").
//!
//! # Theory
//! Keys live elsewhere (in the sockets). A slot holds a 32-bit tag and a 32-bit index, so a cache line holds eight slots and
//! a lookup normally touches one line of the table and then the one socket that it wants.
//!
//! The tag is the upper half of the caller's 64-bit hash, and the *home* slot is the tag's top `k` bits in a table of `2^k`
//! slots. The tag alone therefore says where an entry belongs at any size up to 2^32 slots: growing needs neither the keys
//! nor a callback. The lower bits of the tag tell flows of one neighbourhood apart (11 bits at two million slots); a false
//! match only costs a comparison of keys.
//!
//! Collisions probe linearly in Robin Hood order: entries of a cluster stay sorted by home slot, so a miss stops as soon as
//! it meets an entry nearer to its home than the search is. Removing shifts the rest of the cluster back by one; there are
//! no tombstones, and a table that lived long is as fast as a new one.
//!
//! # Growth
//! At 3/4 full a table of twice the size is allocated (zeroed lazily by the system) and the old one moves over *whole
//! clusters at a time*, at least [`MOVE_SLOTS`] slots per insertion or removal: no call ever pays for the whole table. While
//! that lasts a lookup may search both.
//!
//! # Limits
//! The hash must be keyed (SipHash under a secret [`crate::HashKey`]), else a peer could choose collisions. Equal hashes may
//! be inserted more than once, but each such twin lengthens the same cluster: callers chain equals themselves. Index
//! `u32::MAX` is not representable. The table never shrinks.

use alloc::vec;
use alloc::vec::Vec;

/// Slots of the old table moved per insertion or removal while growing; the new table fills after many times more.
pub const MOVE_SLOTS: usize = 32;

/// Smallest table: two cache lines.
const MIN_BITS: u32 = 4;

/// `tag << 32 | index + 1`; zero is an empty slot, so that a new table is zeroed pages.
type Slot = u64;

const fn pack(tag: u32, index: u32) -> Slot {
    (tag as u64) << 32 | (index as u64 + 1)
}
const fn tag_of(slot: Slot) -> u32 {
    (slot >> 32) as u32
}
const fn index_of(slot: Slot) -> u32 {
    (slot as u32).wrapping_sub(1)
}

/// One power-of-two array of slots.
struct Table {
    slots: Vec<Slot>,
    shift: u32,
    len: usize,
}

impl Table {
    fn new(bits: u32) -> Self {
        Self { slots: vec![0; 1 << bits], shift: u32::BITS - bits, len: 0 }
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    fn home(&self, tag: u32) -> usize {
        (tag >> self.shift) as usize
    }

    /// Slots between the entry at `pos` and its home.
    fn distance(&self, pos: usize, slot: Slot) -> usize {
        pos.wrapping_sub(self.home(tag_of(slot))) & self.mask()
    }

    fn position(&self, tag: u32, mut wanted: impl FnMut(u32) -> bool) -> Option<usize> {
        let mask = self.mask();
        let mut pos = self.home(tag);
        for distance in 0..self.slots.len() {
            let slot = self.slots[pos & mask];
            // The likely case first: most look-ups are for what is there, and lies at home.
            if tag_of(slot) == tag && slot != 0 && wanted(index_of(slot)) {
                return Some(pos);
            }
            if slot == 0 || self.distance(pos, slot) < distance {
                return None;
            }
            pos = (pos + 1) & mask;
        }
        None
    }

    fn insert(&mut self, mut entry: Slot) {
        debug_assert!(self.len < self.mask(), "one slot stays empty, so that every probe ends");
        let mut pos = self.home(tag_of(entry));
        let mut distance = 0;
        loop {
            let slot = self.slots[pos];
            if slot == 0 {
                self.slots[pos] = entry;
                self.len += 1;
                return;
            }
            let theirs = self.distance(pos, slot);
            if theirs < distance {
                self.slots[pos] = entry;
                (entry, distance) = (slot, theirs);
            }
            pos = (pos + 1) & self.mask();
            distance += 1;
        }
    }

    fn remove_at(&mut self, mut pos: usize) {
        loop {
            let next = (pos + 1) & self.mask();
            let slot = self.slots[next];
            if slot == 0 || self.distance(next, slot) == 0 {
                self.slots[pos] = 0;
                self.len -= 1;
                return;
            }
            self.slots[pos] = slot;
            pos = next;
        }
    }
}

/// The table that is being emptied.
struct Old {
    table: Table,
    /// Next slot to move. The slot before it is empty: a cluster is moved whole or not at all.
    cursor: usize,
}

/// A hash table from 64-bit hashes to 32-bit indices. See the module head.
pub struct FlowTable {
    table: Table,
    old: Option<Old>,
}

impl Default for FlowTable {
    fn default() -> Self {
        Self::new()
    }
}

impl FlowTable {
    /// An empty table of the smallest size.
    pub fn new() -> Self {
        Self { table: Table::new(MIN_BITS), old: None }
    }

    /// A table that takes `flows` entries without growing.
    pub fn with_capacity(flows: usize) -> Self {
        let slots = (flows.saturating_mul(4) / 3 + 1).next_power_of_two();
        Self { table: Table::new(slots.trailing_zeros().clamp(MIN_BITS, u32::BITS)), old: None }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.table.len + self.old.as_ref().map_or(0, |o| o.table.len)
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all slots.
    pub fn memory_bytes(&self) -> usize {
        (self.table.slots.len() + self.old.as_ref().map_or(0, |o| o.table.slots.len())) * size_of::<Slot>()
    }

    /// The index inserted under `hash` for which `eq` holds. `eq` compares the keys; it is asked only where 32 bits of the
    /// hash already agree.
    pub fn find(&self, hash: u64, mut eq: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = (hash >> 32) as u32;
        if let Some(pos) = self.table.position(tag, &mut eq) {
            return Some(index_of(self.table.slots[pos]));
        }
        let old = &self.old.as_ref()?.table;
        old.position(tag, eq).map(|pos| index_of(old.slots[pos]))
    }

    /// The slots where a search for `hash` begins, two while the table grows: for the caller's prefetch, when several
    /// searches are to overlap.
    pub fn homes(&self, hash: u64) -> impl Iterator<Item = &u64> {
        let tag = (hash >> 32) as u32;
        self.tables().filter_map(move |t| t.slots.get(t.home(tag)))
    }

    /// The index that [`Self::find`] asks about first, for the same purpose; nothing tells that it is the right one.
    pub fn candidate(&self, hash: u64) -> Option<u32> {
        let mut first = None;
        self.find(hash, |index| {
            first = Some(index);
            true
        });
        first
    }

    fn tables(&self) -> impl Iterator<Item = &Table> {
        core::iter::once(&self.table).chain(self.old.as_ref().map(|o| &o.table))
    }

    /// Adds `index` under `hash`. The caller has made sure that its key is not in the table.
    ///
    /// # Panics
    /// When `index` is `u32::MAX`, or the table would need more than 2^32 slots.
    pub fn insert(&mut self, hash: u64, index: u32) {
        assert!(index != u32::MAX, "index not representable");
        self.migrate();
        // Entries that still wait in the old table count: they will need room here.
        if (self.len() + 1) * 4 > self.table.slots.len() * 3 {
            self.grow();
        }
        self.table.insert(pack((hash >> 32) as u32, index));
    }

    /// Removes `index` from under `hash`; false when it was not there.
    pub fn remove(&mut self, hash: u64, index: u32) -> bool {
        self.migrate();
        let tag = (hash >> 32) as u32;
        for table in core::iter::once(&mut self.table).chain(self.old.as_mut().map(|o| &mut o.table)) {
            if let Some(pos) = table.position(tag, |i| i == index) {
                table.remove_at(pos);
                return true;
            }
        }
        false
    }

    /// Puts `to` in the place of `from`, which was inserted under `hash`: the entry changes its owner and stays where it is.
    /// False when `from` was not there.
    ///
    /// # Panics
    /// When `to` is `u32::MAX`.
    pub fn replace(&mut self, hash: u64, from: u32, to: u32) -> bool {
        assert!(to != u32::MAX, "index not representable");
        let tag = (hash >> 32) as u32;
        for table in core::iter::once(&mut self.table).chain(self.old.as_mut().map(|o| &mut o.table)) {
            if let Some(pos) = table.position(tag, |i| i == from) {
                table.slots[pos] = pack(tag, to);
                return true;
            }
        }
        false
    }

    /// All indices, in no useful order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let old = self.old.iter().flat_map(|o| &o.table.slots);
        self.table.slots.iter().chain(old).filter(|&&s| s != 0).map(|&s| index_of(s))
    }

    /// The longest distance of an entry from its home slot: O(slots), for diagnostics and tests.
    pub fn max_probe(&self) -> usize {
        self.tables()
            .flat_map(|t| t.slots.iter().enumerate().filter(|(_, s)| **s != 0).map(|(pos, &s)| t.distance(pos, s)))
            .max()
            .unwrap_or(0)
    }

    fn grow(&mut self) {
        while self.old.is_some() {
            self.migrate();
        }
        let bits = self.table.slots.len().trailing_zeros() + 1;
        assert!(bits <= u32::BITS, "more than 2^32 slots");
        let table = core::mem::replace(&mut self.table, Table::new(bits));
        // A table is never full, so there is an empty slot; clusters are counted from behind it.
        let empty = table.slots.iter().position(|&s| s == 0).unwrap_or(0);
        let cursor = (empty + 1) & table.mask();
        self.old = Some(Old { table, cursor });
    }

    /// Moves at least [`MOVE_SLOTS`] slots, up to the end of a cluster, from the old table to the new one.
    fn migrate(&mut self) {
        let Some(old) = &mut self.old else { return };
        let mask = old.table.mask();
        let mut moved = 0;
        while old.table.len > 0 {
            let slot = core::mem::take(&mut old.table.slots[old.cursor]);
            old.cursor = (old.cursor + 1) & mask;
            moved += 1;
            if slot != 0 {
                old.table.len -= 1;
                self.table.insert(slot);
            } else if moved >= MOVE_SLOTS {
                return;
            }
        }
        self.old = None;
    }
}

#[cfg(test)]
#[path = "flow_table_tests.rs"]
mod tests;
