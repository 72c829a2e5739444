//! Arithmetic on partial sums: folding, joining, and the sums of a header's own fields.
//!
//! Ones'-complement addition is commutative and associative, and it does not mind byte order: the sum of byte-swapped words
//! is the byte-swapped sum (RFC 1071 section 2 (B)). Both facts are used here: blocks are added in any order, and a block at
//! an odd offset is added with its bytes swapped.
//!
//! Invariant: folding keeps the value modulo 0xffff and never turns a positive sum into 0. Nothing here reads memory.

/// Folds any sum of partial sums to 16 bits, without complementing it.
#[inline]
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The value of a checksum field: the complement of the folded sum.
///
/// Over a block that contains its own correct checksum the result is 0.
#[inline]
pub const fn checksum(sum: u32) -> u16 {
    !fold(sum)
}

/// The partial sum of block `a` followed by block `b`, where `a` is `len_a` bytes long.
#[inline]
pub const fn combine(a: u32, b: u32, len_a: usize) -> u32 {
    let b = fold(b);
    let b = if len_a % 2 == 1 { b.swap_bytes() } else { b };
    fold(fold(a) as u32 + b as u32) as u32
}

/// Adds one 16-bit field (host order) to a partial sum: pseudo-header protocol and length, or an incremental update.
#[inline]
pub const fn sum_u16(sum: u32, field: u16) -> u32 {
    fold(fold(sum) as u32 + field as u32) as u32
}

/// The partial sum of 32-bit fields (host order), such as IPv4 addresses or a u32 length.
#[inline]
pub fn sum_words(words: &[u32]) -> u32 {
    let wide = words.iter().fold(0u64, |acc, &w| acc + u64::from(w));
    u32::from(fold_u64(wide))
}

/// Folds a 64-bit sum of 16-, 32- or 64-bit words of any one byte order.
#[inline]
pub(crate) const fn fold_u64(wide: u64) -> u16 {
    let sum = (wide & 0xffff_ffff) + (wide >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    fold(sum as u32)
}

/// Turns a 64-bit sum of words loaded in native order into a partial sum of big-endian words.
#[inline]
pub(crate) const fn from_native(wide: u64) -> u32 {
    u16::from_be(fold_u64(wide)) as u32
}

/// Ones'-complement addition of 64-bit sums.
#[inline]
pub(crate) const fn add_u64(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u64
}
