//! Receive-side scaling: the Toeplitz hash and the indirection table.
//!
//! The hash of a packet's addresses and ports, under a secret 40-byte key, picks a receive queue through a table of 128
//! entries; both directions, key and table are the host's choice. For each set bit of the input the 32 key bits that
//! begin at its position are xored. The input is in the order source address, destination address, source port,
//! destination port, as it stands in the headers. This is the definition that hardware implements; its vectors are the
//! test. It is linear and so no defence against a peer who knows the key: flow tables use a keyed SipHash instead.
//! A hash per frame is dear in software: the software NIC hashes once per super-packet.

use core::net::{IpAddr, SocketAddr};

/// Bytes of a key: enough for IPv6 addresses and ports (36 bytes of input, and a window of 4).
pub const KEY_LEN: usize = 40;

/// Entries of an indirection table.
pub const TABLE_LEN: usize = 128;

/// The hash under one key.
#[derive(Clone, Debug)]
pub struct Toeplitz {
    key: [u8; KEY_LEN],
}

impl Toeplitz {
    /// A hash with this key.
    pub const fn new(key: [u8; KEY_LEN]) -> Self {
        Self { key }
    }
    /// The hash of raw input in header order; bytes beyond the 36th do not count.
    pub fn hash_bytes<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
        let mut rest = self.key.iter();
        // The window: 32 key bits now, and the following byte being shifted in.
        let mut window = rest.by_ref().take(4).fold(0u32, |w, b| w << 8 | u32::from(*b));
        let mut hash = 0;
        for byte in parts.into_iter().flatten() {
            let Some(next) = rest.next() else { break };
            for bit in (0..8).rev() {
                if byte >> bit & 1 == 1 {
                    hash ^= window;
                }
                window = window << 1 | u32::from(next >> bit & 1);
            }
        }
        hash
    }
    /// The hash of addresses alone (fragments, protocols without ports). Addresses of two families hash to 0.
    pub fn hash_addrs(&self, src: IpAddr, dst: IpAddr) -> u32 {
        match (src, dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => self.hash_bytes([&s.octets()[..], &d.octets()[..]]),
            (IpAddr::V6(s), IpAddr::V6(d)) => self.hash_bytes([&s.octets()[..], &d.octets()[..]]),
            _ => 0,
        }
    }
    /// The hash of a TCP or UDP flow as its packets carry it.
    pub fn hash_flow(&self, src: SocketAddr, dst: SocketAddr) -> u32 {
        let (sp, dp) = (src.port().to_be_bytes(), dst.port().to_be_bytes());
        match (src.ip(), dst.ip()) {
            (IpAddr::V4(s), IpAddr::V4(d)) => self.hash_bytes([&s.octets()[..], &d.octets()[..], &sp[..], &dp[..]]),
            (IpAddr::V6(s), IpAddr::V6(d)) => self.hash_bytes([&s.octets()[..], &d.octets()[..], &sp[..], &dp[..]]),
            _ => 0,
        }
    }
}

/// From hash to queue.
#[derive(Clone, Debug)]
pub struct IndirectionTable {
    queues: [u16; TABLE_LEN],
}

impl IndirectionTable {
    /// Spreads evenly over `queues` queues (at least 1), as drivers do by default.
    pub fn even(queues: u16) -> Self {
        let queues = queues.max(1);
        Self { queues: core::array::from_fn(|i| i as u16 % queues) }
    }
    /// The queue of a hash: its low seven bits choose the entry.
    #[inline]
    pub fn queue(&self, hash: u32) -> u16 {
        self.queues.get(hash as usize % TABLE_LEN).copied().unwrap_or(0)
    }
    /// Points one entry at a queue; an entry beyond the table is ignored.
    pub fn set(&mut self, entry: usize, queue: u16) {
        if let Some(e) = self.queues.get_mut(entry) {
            *e = queue;
        }
    }
}
