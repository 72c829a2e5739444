//! Longest prefix match: a path-compressed binary trie over 128-bit keys.
//!
//! Each node stands for a prefix; a child's prefix extends its parent's, and the bit behind the parent's prefix says which
//! child. Chains without branches are compressed, so a look-up visits at most one node per prefix on its path (129 at
//! worst, two or three in practice) and compares whole prefixes with one XOR.
//!
//! ```text
//!   0.0.0.0/0 ──0──▶ 10.0.0.0/8 ──0──▶ 10.1.0.0/16
//!             └─1──▶ 192.168.0.0/16
//! ```
//! Invariants: a node without a value has two children (a branch) or is gone; values are the caller's numbers. IPv4 keys
//! live in a trie of their own, shifted to the upper 32 bits. Nothing here allocates on look-up.

use alloc::vec::Vec;

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u128,
    len: u8,
    child: [u32; 2],
    value: Option<u32>,
}

/// A set of prefixes, each with a number.
#[derive(Debug)]
pub(crate) struct Trie {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

/// Bit `at` of `key` from the top; 0 beyond the last.
fn bit(key: u128, at: u8) -> usize {
    127u32.checked_sub(u32::from(at)).map_or(0, |s| (key >> s & 1) as usize)
}

impl Trie {
    pub(crate) const fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NIL }
    }

    fn node(&self, i: u32) -> Option<&Node> {
        self.nodes.get(i as usize)
    }

    fn alloc(&mut self, node: Node) -> u32 {
        if let Some(i) = self.free.pop() {
            self.nodes[i as usize] = node;
            return i;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Makes the link that led to a position (the root's, or a parent's child) name `to`.
    fn relink(&mut self, link: Option<(u32, usize)>, to: u32) {
        match link {
            None => self.root = to,
            Some((parent, side)) => self.nodes[parent as usize].child[side] = to,
        }
    }

    /// The number of the longest prefix that covers `key` and that `accept` agrees to.
    pub(crate) fn lookup(&self, key: u128, mut accept: impl FnMut(u32) -> bool) -> Option<u32> {
        // Refusals are rare: then the walk begins anew and ends before the prefix that was refused.
        let mut below = u8::MAX;
        loop {
            let (mut at, mut found) = (self.root, None);
            while let Some(n) = self.node(at).filter(|n| n.len < below && (n.key ^ key) & mask(n.len) == 0) {
                found = n.value.map(|v| (n.len, v)).or(found);
                if n.len == 128 {
                    break;
                }
                at = n.child[bit(key, n.len)];
            }
            let (len, v) = found?;
            if accept(v) {
                return Some(v);
            }
            below = len;
        }
    }

    /// The number of exactly this prefix.
    pub(crate) fn get(&self, key: u128, len: u8) -> Option<u32> {
        let mut at = self.root;
        while let Some(n) = self.node(at) {
            if n.len > len || (n.key ^ key) & mask(n.len) != 0 {
                return None;
            }
            if n.len == len {
                return n.value;
            }
            at = n.child[bit(key, n.len)];
        }
        None
    }

    /// Gives the prefix a number; returns the one that it had.
    pub(crate) fn insert(&mut self, key: u128, len: u8, value: u32) -> Option<u32> {
        let key = key & mask(len);
        let leaf = Node { key, len, child: [NIL; 2], value: Some(value) };
        let mut link = None;
        let mut at = self.root;
        while let Some(&n) = self.node(at) {
            let common = ((n.key ^ key).leading_zeros() as u8).min(n.len).min(len);
            if common < n.len {
                // The new prefix ends or branches off inside this node's compressed path.
                let above = if common == len {
                    self.alloc(leaf)
                } else {
                    let new = self.alloc(leaf);
                    let mut child = [NIL; 2];
                    child[bit(key, common)] = new;
                    self.alloc(Node { key: key & mask(common), len: common, child, value: None })
                };
                self.nodes[above as usize].child[bit(n.key, common)] = at;
                self.relink(link, above);
                return None;
            }
            if n.len == len {
                return self.nodes[at as usize].value.replace(value);
            }
            let side = bit(key, n.len);
            link = Some((at, side));
            at = n.child[side];
        }
        let new = self.alloc(leaf);
        self.relink(link, new);
        None
    }

    /// Takes the prefix out; returns its number.
    pub(crate) fn remove(&mut self, key: u128, len: u8) -> Option<u32> {
        let (mut grand, mut parent) = (None, None);
        let mut at = self.root;
        loop {
            let n = *self.node(at)?;
            if n.len > len || (n.key ^ key) & mask(n.len) != 0 {
                return None;
            }
            if n.len == len {
                break;
            }
            let side = bit(key, n.len);
            grand = parent;
            parent = Some((at, side));
            at = n.child[side];
        }
        let old = self.nodes[at as usize].value.take()?;
        self.splice(parent, at);
        // The parent may have been a mere branch of two and now has one way left.
        if let Some((p, _)) = parent {
            self.splice(grand, p);
        }
        Some(old)
    }

    /// Removes a node that has no value and at most one child; the child takes its place.
    fn splice(&mut self, link: Option<(u32, usize)>, at: u32) {
        let Some(&n) = self.node(at) else { return };
        if n.value.is_some() || n.child.iter().all(|&c| c != NIL) {
            return;
        }
        let heir = if n.child[0] == NIL { n.child[1] } else { n.child[0] };
        self.relink(link, heir);
        self.free.push(at);
    }

    /// Nodes in use: diagnostics and tests.
    #[cfg(test)]
    pub(crate) fn nodes_in_use(&self) -> usize {
        self.nodes.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use linerate_base::Rng;

    use super::*;

    fn naive(set: &BTreeMap<(u8, u128), u32>, key: u128) -> Option<u32> {
        set.iter().rev().find(|((len, k), _)| (k ^ key) & mask(*len) == 0).map(|(_, v)| *v)
    }

    #[test]
    fn agrees_with_a_linear_scan() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let (mut trie, mut set) = (Trie::new(), BTreeMap::new());
            // Few distinct bits, so that prefixes nest and branch often.
            let bits = |rng: &mut Rng| {
                let spread = rng.range(1, 60);
                (u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
                    & (u128::MAX << (128 - spread) | u128::from(rng.below(4)))
            };
            for step in 0..600u32 {
                let len = if rng.chance(0.1) { [0, 128][rng.below(2) as usize] } else { rng.range(0, 64) as u8 };
                let key = bits(&mut rng) & mask(len);
                if rng.chance(0.6) {
                    assert_eq!(trie.insert(key, len, step), set.insert((len, key), step));
                } else {
                    // Half of the time something that is there.
                    let pick = set.keys().nth(rng.below(set.len().max(1) as u64) as usize).copied();
                    let (len, key) = pick.filter(|_| rng.chance(0.8)).unwrap_or((len, key));
                    assert_eq!(trie.remove(key, len), set.remove(&(len, key)), "{key:032x}/{len}");
                }
                let probe = bits(&mut rng);
                assert_eq!(trie.lookup(probe, |_| true), naive(&set, probe), "seed {seed} step {step}");
                assert_eq!(trie.get(key, len), set.get(&(len, key)).copied());
                assert!(trie.nodes_in_use() <= 2 * set.len(), "branches without need");
            }
        }
    }

    #[test]
    fn falls_back_to_a_shorter_prefix_that_is_accepted() {
        let mut t = Trie::new();
        t.insert(0, 0, 1);
        t.insert(10 << 120, 8, 2);
        t.insert(10 << 120 | 1 << 112, 16, 3);
        let key = 10u128 << 120 | 1 << 112 | 7;
        assert_eq!(t.lookup(key, |_| true), Some(3));
        assert_eq!(t.lookup(key, |v| v != 3), Some(2));
        assert_eq!(t.lookup(key, |v| v == 1), Some(1));
        assert_eq!(t.lookup(key, |_| false), None);
        assert_eq!(t.lookup(11 << 120, |_| true), Some(1));
    }
}
