//! Transport checksums over a linear head and page fragments.
//!
//! The Internet checksum is a sum of 16-bit words, so sums of pieces add; a piece that begins at an odd offset adds with
//! its bytes swapped ([`linerate_arch::combine`]). That makes three things cheap: fragments of any length, a payload whose
//! sum is known from the copy that brought it here (`payload_sum`), and a device's sum over the whole packet
//! (`Csum::Complete`).
//!
//! [`check_l4`] answers for TCP and UDP over IPv4 and IPv6; other protocols (ICMP) are the layers' own. A packet whose
//! lengths contradict each other is *not checked* rather than bad: IP drops it under its real reason. [`fill_partial`] is
//! what a device does with `Csum::Partial`. Not here: SCTP's CRC, UDP-Lite, the IPv4 header checksum.

use linerate_arch::{Kernels, combine, fold};
use linerate_skb::{Csum, Skb};
use linerate_wire::checksum;
use linerate_wire::ip::proto;

use crate::headers::{Headers, be16, put16};

/// What [`check_l4`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The bytes are what the sender summed, or it chose not to sum (UDP over IPv4).
    Good,
    /// At least one bit is wrong.
    Bad,
    /// Nothing to check here: another protocol, a fragment, or a malformed packet.
    NotChecked,
}

/// Partial sum of `len` bytes from offset `from` of the head on, through the fragments; less when there are fewer.
/// Uses `payload_sum` when the range ends where the packet ends.
pub fn sum_from(skb: &Skb, from: usize, len: u32, k: &Kernels) -> u32 {
    let head = skb.head().get(from..).unwrap_or_default();
    let mut done = head.len().min(len as usize);
    let mut sum = k.sum(head.get(..done).unwrap_or_default());
    let mut left = len as usize - done;
    if let Some(payload) = skb.payload_sum
        && left == skb.data_len() as usize
    {
        return combine(sum, payload, done);
    }
    for s in skb.payload_slices() {
        if left == 0 {
            break;
        }
        let n = left.min(s.len());
        sum = combine(sum, k.sum(s.get(..n).unwrap_or_default()), done);
        done += n;
        left -= n;
    }
    sum
}

/// Partial sum of all fragments of `skb`.
pub fn payload_sum(skb: &Skb, k: &Kernels) -> u32 {
    sum_from(skb, skb.head_len(), skb.data_len(), k)
}

/// Verifies the TCP or UDP checksum and notes success as `Csum::Unnecessary`. What a device or we verified before, and
/// what comes from this host unsummed (`Csum::Partial`), is good without a look at the bytes.
pub fn check_l4(skb: &mut Skb, k: &Kernels) -> Verdict {
    if matches!(skb.csum, Csum::Unnecessary | Csum::Partial { .. }) {
        return Verdict::Good;
    }
    match Headers::parse(skb) {
        Ok(h) => check_parsed(skb, &h, k),
        Err(_) => Verdict::NotChecked,
    }
}

pub(crate) fn check_parsed(skb: &mut Skb, h: &Headers, k: &Kernels) -> Verdict {
    let mut len = h.l4_len;
    match h.proto {
        proto::TCP => {}
        proto::UDP => {
            let field = u32::from(be16(skb.head(), h.l4 + 4));
            let whole = field == 0 && skb.is_gso();
            if !whole && !(8..=h.l4_len).contains(&field) {
                return Verdict::NotChecked;
            }
            if !whole {
                len = field;
            }
            if be16(skb.head(), h.l4 + 6) == 0 {
                // RFC 8200 section 8.1: over IPv6 a sender must sum.
                if h.version == 6 {
                    return Verdict::Bad;
                }
                skb.csum = Csum::Unnecessary;
                return Verdict::Good;
            }
        }
        _ => return Verdict::NotChecked,
    }
    let pseudo = h.pseudo(skb.head(), len);
    let body = match skb.csum {
        // The device summed everything from the IP header on: take the network headers out again.
        Csum::Complete(sum) if h.l4 as u32 + len == skb.len() => {
            let network = k.sum(skb.head().get(..h.l4).unwrap_or_default());
            checksum::combine(u32::from(fold(sum)), u32::from(!fold(network)))
        }
        _ => sum_from(skb, h.l4, len, k),
    };
    if !checksum::is_valid(checksum::combine(u32::from(fold(body)), u32::from(fold(pseudo)))) {
        return Verdict::Bad;
    }
    skb.csum = Csum::Unnecessary;
    Verdict::Good
}

/// As [`check_l4`]: false only when the checksum is wrong.
pub fn verify_l4(skb: &mut Skb, k: &Kernels) -> bool {
    check_l4(skb, k) != Verdict::Bad
}

/// Finishes a `Csum::Partial`: sums from `start` to the end, stores the field, and leaves `Csum::None` (the packet carries
/// its checksum). False when the offsets do not lie in the head; the skb is then unchanged. Any other state is fine as
/// it is.
pub fn fill_partial(skb: &mut Skb, k: &Kernels) -> bool {
    let Csum::Partial { start, offset } = skb.csum else { return true };
    let Some(from) = usize::from(start).checked_sub(usize::from(skb.head_offset())) else { return false };
    let at = from + usize::from(offset);
    if at + 2 > skb.head_len() {
        return false;
    }
    let len = skb.len() - from as u32;
    let sum = sum_from(skb, from, len, k);
    // A sum of zero is written as its other representation: for UDP zero means "not summed" (RFC 768), and for TCP both
    // verify alike.
    let field = match checksum::finish(sum) {
        0 if offset == 6 => 0xffff,
        c => c,
    };
    put16(skb.head_mut(), at, field);
    skb.csum = Csum::None;
    true
}
