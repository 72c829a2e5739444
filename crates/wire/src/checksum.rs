//! The Internet checksum (RFC 1071) for headers, and the sums of the pseudo-headers.
//!
//! A *partial sum* is a u32 whose value modulo 0xffff is the sum of 16-bit words read in network order. Partial sums of
//! pieces that begin at even offsets add with [`combine`]; [`fold`] brings one to 16 bits; [`finish`] gives the field's
//! value. A message is intact when the fold over it, its checksum field and its pseudo-header is 0xffff ([`is_valid`]).
//! These loops are portable and simple, meant for tens of bytes; payloads are summed by the `arch` crate, whose sums
//! have the same meaning.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Partial sum of `bytes`; an odd last byte counts as the upper half of a word. Any length.
pub fn sum(bytes: &[u8]) -> u32 {
    // Two words at a time: the upper one weighs 2^16, which is 1 modulo 0xffff.
    let (pairs, rest) = bytes.as_chunks::<4>();
    let mut acc: u64 = pairs.iter().map(|w| u64::from(u32::from_be_bytes(*w))).sum();
    let (words, last) = rest.as_chunks::<2>();
    acc += words.iter().map(|w| u64::from(u16::from_be_bytes(*w))).sum::<u64>();
    if let [last] = last {
        acc += u64::from(*last) << 8;
    }
    while acc > u64::from(u32::MAX) {
        acc = (acc & 0xffff_ffff) + (acc >> 32);
    }
    acc as u32
}

/// Sum of two partial sums, with the carry brought round.
#[inline]
pub const fn combine(a: u32, b: u32) -> u32 {
    let (s, carry) = a.overflowing_add(b);
    s.wrapping_add(carry as u32)
}

/// The 16-bit one's complement value of a partial sum.
#[inline]
pub const fn fold(sum: u32) -> u16 {
    let s = (sum & 0xffff) + (sum >> 16);
    let s = (s & 0xffff) + (s >> 16);
    s as u16
}

/// The value of the checksum field for a partial sum over everything else.
#[inline]
pub const fn finish(sum: u32) -> u16 {
    !fold(sum)
}

/// True when a partial sum that includes the checksum field says that nothing was changed.
#[inline]
pub const fn is_valid(sum: u32) -> bool {
    fold(sum) == 0xffff
}

/// The checksum field after one 16-bit word under it changed from `old` to `new` (RFC 1624, equation 3).
#[inline]
pub const fn update16(field: u16, old: u16, new: u16) -> u16 {
    finish(!field as u32 + !old as u32 + new as u32)
}

/// Partial sum of the IPv4 pseudo-header; `len` is the transport's header and payload in bytes (above 65535 only in
/// super-packets that are still to be cut, where the kernel sums the low and high halves too).
#[inline]
pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, proto: u8, len: u32) -> u32 {
    combine(combine(src.to_bits(), dst.to_bits()), u32::from(proto) + (len >> 16) + (len & 0xffff))
}

/// Partial sum of the IPv6 pseudo-header (RFC 8200 section 8.1); `len` as in [`pseudo_v4`].
#[inline]
pub fn pseudo_v6(src: &Ipv6Addr, dst: &Ipv6Addr, proto: u8, len: u32) -> u32 {
    let addrs = combine(sum(&src.octets()), sum(&dst.octets()));
    combine(addrs, u32::from(proto) + (len >> 16) + (len & 0xffff))
}

/// Partial sum of the pseudo-header of either family. Addresses of different families are a bug of the caller.
#[inline]
pub fn pseudo(src: IpAddr, dst: IpAddr, proto: u8, len: u32) -> u32 {
    match (src, dst) {
        (IpAddr::V4(s), IpAddr::V4(d)) => pseudo_v4(s, d, proto, len),
        (IpAddr::V6(s), IpAddr::V6(d)) => pseudo_v6(&s, &d, proto, len),
        (s, d) => {
            debug_assert!(false, "pseudo-header of two families");
            pseudo_v6(&crate::flow::to_mapped(s), &crate::flow::to_mapped(d), proto, len)
        }
    }
}
