//! What a page remembers of sums: true for exactly the bytes that were summed, through all lives of the page.

use linerate_arch::Kernels;
use linerate_skb::{Frag, Page, PagePool, PoolConfig};
use proptest::prelude::*;

fn pool(page_shift: u8) -> PagePool {
    PagePool::new(PoolConfig { page_shift, max_pages: 4, cache_pages: 4 })
}

/// Every range of these lengths: a note is the sum or is not there. Returns how many were there.
fn check(f: &Frag, starts: &[u32], lens: &[u32]) -> usize {
    let mut found = 0;
    for &off in starts {
        for &len in lens {
            let piece = f.slice(off, len);
            if let Some(sum) = piece.noted_sum() {
                assert_eq!(sum, Kernels::portable().sum(piece.as_slice()), "{piece:?}");
                found += 1;
            }
        }
    }
    found
}

#[test]
fn pieces_are_noted_and_nothing_else() {
    let (k, mut pool) = (Kernels::portable(), pool(15));
    let mut page = pool.alloc().expect("a page");
    let bytes: Vec<u8> = (0..10_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let mut f = page.append_noting(&k, &bytes[..5000], 1000, 1448).expect("room");
    assert_eq!(page.extend_noting(&k, &mut f, &bytes[5000..], 344, 1448), 5000);
    assert_eq!(f.as_slice(), bytes);
    let edges: Vec<u32> = [0, 1000, 2448, 3896, 5000, 5344, 6792, 8240, 9688, 10_000].to_vec();
    for pair in edges.windows(2) {
        let piece = f.slice(pair[0], pair[1] - pair[0]);
        assert_eq!(piece.noted_sum(), Some(k.sum(piece.as_slice())), "{pair:?}");
        assert_eq!(f.slice(pair[0], pair[1] - pair[0] - 1).noted_sum(), None);
        assert_eq!(f.slice(pair[0] + 1, pair[1] - pair[0] - 1).noted_sum(), None);
    }
    assert_eq!(f.noted_sum(), None, "two pieces are not one");
    assert_eq!(f.slice(3, 0).noted_sum(), None);
}

#[test]
fn a_new_life_begins_without_notes() {
    let (k, mut pool) = (Kernels::portable(), pool(12));
    let mut page = pool.alloc().expect("a page");
    let f = page.append_noting(&k, &[1; 1448], 1448, 1448).expect("room");
    assert!(f.noted_sum().is_some());
    pool.recycle(f);
    assert!(page.reset_if_sole());
    let f = page.append(&k, &[2; 1448]).expect("room");
    assert_eq!(f.noted_sum(), None, "the writer began again");
    drop(f);
    assert!(page.reset_if_sole());
    let f = page.append_noting(&k, &[3; 1448], 1448, 1448).expect("room");
    assert!(f.noted_sum().is_some());
    pool.recycle_page(page);
    pool.recycle(f);
    let mut page = pool.alloc().expect("the same page");
    let f = page.append(&k, &[4; 1448]).expect("room");
    assert_eq!(f.noted_sum(), None, "the page was home");
}

#[test]
fn who_may_write_in_place_forgets() {
    let (k, mut pool) = (Kernels::portable(), pool(12));
    let mut page = pool.alloc().expect("a page");
    let mut f = page.append_noting(&k, &[1; 2000], 1000, 1000).expect("room");
    assert!(f.get_mut().is_none(), "the writer is still there");
    assert!(f.slice(0, 1000).noted_sum().is_some());
    pool.recycle_page(page);
    f.get_mut().expect("alone now")[5] ^= 1;
    assert_eq!((f.slice(0, 1000).noted_sum(), f.slice(1000, 1000).noted_sum()), (None, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Any mix of noting and plain writes over several lives of a page.
    #[test]
    fn a_note_is_never_wrong(
        shift in 12u8..17,
        ops in prop::collection::vec((0u8..6, 1usize..9000, 1usize..3000, 1usize..3000), 1..60),
    ) {
        let (k, mut pool) = (Kernels::portable(), pool(shift));
        let mut page: Page = pool.alloc().unwrap();
        let mut frags: Vec<Frag> = Vec::new();
        let (mut starts, mut lens, mut next) = (vec![0u32], vec![1u32], 0u8);
        let mut found = 0;
        for (op, len, first, each) in ops {
            next = next.wrapping_add(37);
            let src: Vec<u8> = (0..len).map(|i| next.wrapping_mul(i as u8 | 1).wrapping_add(i as u8)).collect();
            match op {
                0 => frags.extend(page.append(&k, &src)),
                1 | 2 => frags.extend(page.append_noting(&k, &src, first, each)),
                3 => {
                    if let Some(last) = frags.last_mut() {
                        page.extend_noting(&k, last, &src, first, each);
                    }
                }
                4 => {
                    frags.clear();
                    page.reset_if_sole();
                }
                _ => {
                    frags.clear();
                    pool.recycle_page(page);
                    page = pool.alloc().unwrap();
                }
            }
            starts.extend([first as u32, (first + each) as u32]);
            lens.extend([first as u32, each as u32]);
            let n = starts.len().saturating_sub(12);
            for f in &frags {
                found += check(f, &starts[n..], &lens[n..]);
                found += check(f, &[0], &[first as u32, each as u32]);
            }
        }
        drop((frags, page));
        let _ = found;
    }
}
