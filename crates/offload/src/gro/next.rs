//! The short way of merging: the next full frame of the flow that was fed last.
//!
//! In bulk data nearly every frame is the one that was to be expected: its header is the held one's but for sequence number,
//! identification and checksums, and these are known beforehand too. So it needs no parsing and no search:
//!
//! ```text
//!   [ header as it lies in memory ] xor [ expected ] and [ mask ] == 0        in words, 76 bytes, whatever the family
//!   sequence number, identification: equal to the expected
//!   IPv4 checksum, TCP checksum: what is constant was summed when the skb was held, the rest is a few additions
//! ```
//! The payload is summed unless a device has done so. Invariant: whenever this says yes the full rules
//! would have merged the frame too, and left the same; whenever it says no nothing happened. Headers longer than
//! [`NEXT_HEAD`], super-packets and datagrams go the long way.

use linerate_arch::{Kernels, combine};
use linerate_skb::{Frag, Skb};
use linerate_wire::checksum;

use super::{CWR, ENDS, Facts, GroConfig, Held, IdMode, Kind, words};
use crate::headers::be16;

/// Longest header of the short way, bytes: what one slot of a ring carries. Headers are compared in arrays of this length.
pub const NEXT_HEAD: usize = 76;
const WORDS: usize = NEXT_HEAD / 4;

/// All of the IPv4 header but identification and checksum: full frames are of equal length.
const IP4: [u32; 5] =
    words(&[255, 255, 255, 255, 0, 0, 255, 255, 255, 255, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
const IP6: [u32; 10] = [u32::MAX; 10];
/// All of the TCP header but sequence number and checksum.
const TCP: [u32; 5] = words(&[255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 255, 255]);

/// What is known of the next full frame before it comes.
#[derive(Clone, Copy)]
pub(super) struct Next {
    seq: u32,
    ident: u16,
    /// The IPv4 identification may only count (true) or only stay (false) from here on; IPv6 has none.
    counts: bool,
    v4: bool,
    /// Where the transport header starts, and the length of the whole.
    l4: u8,
    len: u8,
    /// Sum of the IPv4 header without identification and checksum.
    ip_sum: u32,
    /// Sum of pseudo-header and TCP header without sequence number and checksum.
    l4_sum: u32,
    /// The header, and which of its bits are compared.
    expected: [u32; WORDS],
    mask: [u32; WORDS],
}

/// A header, followed in its array by anything.
#[derive(Clone, Copy)]
pub struct PaddedHead<'a> {
    /// The bytes.
    pub bytes: &'a [u8; NEXT_HEAD],
    /// How many of them are the header.
    pub len: usize,
}

impl PaddedHead<'_> {
    #[inline]
    fn be16(&self, at: usize) -> u16 {
        self.bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_be_bytes(*b))
    }
    #[inline]
    fn be32(&self, at: usize) -> u32 {
        self.bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
    }
}

/// The words of a header of at most [`NEXT_HEAD`] bytes, zeros behind it.
pub(super) fn pad(head: &[u8]) -> Option<[u8; NEXT_HEAD]> {
    let mut bytes = [0; NEXT_HEAD];
    bytes.get_mut(..head.len())?.copy_from_slice(head);
    Some(bytes)
}

fn mask_of(kind: Kind, len: usize) -> [u32; WORDS] {
    let ip: &[u32] = if kind == Kind::Tcp4 { &IP4 } else { &IP6 };
    // Option bytes are all compared, and header lengths are multiples of four.
    let fixed = ip.iter().chain(&TCP).copied().chain(core::iter::repeat(u32::MAX));
    let mut mask = [0; WORDS];
    mask.iter_mut().zip(fixed).take(len / 4).for_each(|(m, bits)| *m = bits);
    mask
}

impl Next {
    /// Behind one single TCP frame that may begin a super-packet.
    pub(super) fn after(skb: &Skb, f: &Facts) -> Option<Self> {
        let h = &f.headers;
        if !matches!(f.kind, Kind::Tcp4 | Kind::Tcp6) || f.segs != 1 || f.flags & (CWR | ENDS) != 0 {
            return None;
        }
        let head = skb.head();
        let padded = pad(head)?;
        let (ip, l4) = head.split_at_checked(h.l4)?;
        // Taking a word out of a sum is adding its complement.
        let without = |sum: u32, word: u16| u32::from(checksum::fold(sum)) + u32::from(!word);
        let ip_sum = match f.kind {
            Kind::Tcp4 => without(without(checksum::sum(ip), f.ident), be16(ip, 10)),
            _ => 0,
        };
        let l4_sum = checksum::combine(checksum::sum(l4), h.pseudo(head, h.l4_len));
        let l4_sum = without(without(l4_sum, be16(l4, 4)), be16(l4, 6));
        let l4_sum = without(l4_sum, be16(l4, 16));
        let fold = |sum| u32::from(checksum::fold(sum));
        let mut expected = [0; WORDS];
        expected.iter_mut().zip(padded.as_chunks().0).for_each(|(w, b)| *w = u32::from_ne_bytes(*b));
        Some(Self {
            seq: f.seq.wrapping_add(f.payload),
            ident: f.ident.wrapping_add(1),
            counts: true,
            v4: f.kind == Kind::Tcp4,
            l4: h.l4 as u8,
            len: head.len() as u8,
            ip_sum: fold(ip_sum),
            l4_sum: fold(l4_sum),
            expected,
            mask: mask_of(f.kind, head.len()),
        })
    }

    /// The sum of everything but the payload when this is the expected header.
    #[inline]
    fn check(&self, head: PaddedHead<'_>) -> Option<u32> {
        let mut diff = 0;
        for (i, w) in head.bytes.as_chunks().0.iter().enumerate() {
            diff |= (u32::from_ne_bytes(*w) ^ self.expected[i]) & self.mask[i];
        }
        let l4 = usize::from(self.l4);
        if diff != 0 || head.len != usize::from(self.len) || head.be32(l4 + 4) != self.seq {
            return None;
        }
        if self.v4 {
            let sum = self.ip_sum + u32::from(self.ident) + u32::from(head.be16(10));
            if head.be16(4) != self.ident || !checksum::is_valid(sum) {
                return None;
            }
        }
        Some(self.l4_sum + (self.seq >> 16) + (self.seq & 0xffff) + u32::from(head.be16(l4 + 16)))
    }
}

impl Held {
    /// After a merge by the full rules.
    pub(super) fn refresh_next(&mut self) {
        let p = &self.facts;
        if let Some(next) = &mut self.next {
            next.seq = p.seq.wrapping_add(p.payload);
            next.counts = self.id_mode != IdMode::Fixed;
            next.ident = if next.counts { p.ident.wrapping_add(p.segs as u16) } else { p.ident };
        }
    }

    /// After a merge of one full frame.
    #[inline]
    pub(super) fn fed(&mut self, len: u32, truesize: u32) {
        let p = &mut self.facts;
        p.segs += 1;
        p.payload += len;
        self.merged = true;
        self.skb.truesize = self.skb.truesize.saturating_add(truesize);
        if let Some(next) = &mut self.next {
            next.seq = next.seq.wrapping_add(len);
            if next.v4 && next.counts {
                self.id_mode = IdMode::Counts;
                next.ident = next.ident.wrapping_add(1);
            }
        }
    }

    /// Is this the header of the next full frame, and intact? Then the sum of everything but the payload. Decides as the
    /// full rules do wherever it says yes.
    #[inline]
    pub(super) fn is_next(&self, cfg: &GroConfig, head: PaddedHead<'_>, data_len: u32, own_pool: bool) -> Option<u32> {
        let p = &self.facts;
        if data_len != p.mss || own_pool != p.own_pool {
            return None;
        }
        if self.skb.len().saturating_add(data_len) >= cfg.max_size || p.segs >= cfg.max_segs {
            return None;
        }
        self.next.as_ref()?.check(head)
    }
}

/// Partial sum of fragments that follow each other.
#[inline]
pub(super) fn sum_frags<'f>(frags: impl IntoIterator<Item = &'f Frag>, k: &Kernels) -> u32 {
    let mut at = 0;
    frags.into_iter().fold(0, |sum, f| {
        let sum = combine(sum, k.sum(f.as_slice()), at);
        at += f.len() as usize;
        sum
    })
}

/// [`sum_frags`] of one or two.
#[inline]
pub(super) fn sum_pair(frags: &[Option<Frag>; 2], k: &Kernels) -> u32 {
    match frags {
        [Some(only), None] => k.sum(only.as_slice()),
        _ => sum_frags(frags.iter().flatten(), k),
    }
}
