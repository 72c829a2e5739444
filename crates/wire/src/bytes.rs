//! Big-endian access to header bytes that can not panic.
//!
//! Views keep a slice whose length their constructor checked, so the fallbacks below are never taken by a view; they exist
//! because a peer chooses the bytes and a wrong offset of ours must read as zero, not stop a shard. Writers work on our
//! own buffers, whose size the emitter announces beforehand (`header_len`): a short buffer there is a bug of the caller,
//! and it fails a debug assertion; in release nothing is written beyond the end.
//! Nothing here knows a protocol.

/// The big-endian u16 at `at`; 0 when the slice is too short.
#[inline]
pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    match b.get(at..).and_then(|s| s.first_chunk::<2>()) {
        Some(a) => u16::from_be_bytes(*a),
        None => 0,
    }
}

/// The big-endian u32 at `at`; 0 when the slice is too short.
#[inline]
pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    match b.get(at..).and_then(|s| s.first_chunk::<4>()) {
        Some(a) => u32::from_be_bytes(*a),
        None => 0,
    }
}

/// The byte at `at`; 0 when the slice is too short.
#[inline]
pub(crate) fn byte(b: &[u8], at: usize) -> u8 {
    b.get(at).copied().unwrap_or(0)
}

/// The `N` bytes at `at`; zeros when the slice is too short.
#[inline]
pub(crate) fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    b.get(at..).and_then(|s| s.first_chunk::<N>()).copied().unwrap_or([0; N])
}

/// Writes `v` at `at`.
#[inline]
pub(crate) fn put(b: &mut [u8], at: usize, v: &[u8]) {
    match b.get_mut(at..at + v.len()) {
        Some(d) => d.copy_from_slice(v),
        None => debug_assert!(false, "emit buffer of {} bytes is shorter than the header", b.len()),
    }
}
