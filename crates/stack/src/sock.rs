//! Names of sockets, what is ready on them, and the queue of those that changed.
//!
//! A [`SockId`] is an index into a slab with the generation of its entry: an id that outlived its socket finds nothing.
//! One bit of the index says which slab. Zero is never a valid id, so it can serve as "nobody" in a completion token.
//!
//! [`Ready`] is a level: [`crate::Shard::readiness`] computes it. Edges are queued: each socket carries the bits that
//! were not yet fetched and stands in the list at most once, so a burst of segments for one socket is one event and
//! the queue is never longer than the number of sockets. A socket that died is skipped when its turn comes.

use alloc::collections::VecDeque;
use core::ops::{BitOr, BitOrAssign};

use linerate_base::Key;
use linerate_skb::TxDoneToken;

/// Which layer owns a socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SockKind {
    /// A TCP socket: unbound, listening or a connection.
    Tcp,
    /// A UDP socket.
    Udp,
}

/// The name of a socket within its shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SockId {
    index: u32,
    generation: u32,
}

/// Bit of the index that says UDP.
const UDP_BIT: u32 = 1 << 31;

impl SockId {
    /// The id of the entry `key` in the slab of `kind`.
    pub(crate) const fn new(kind: SockKind, key: Key) -> Self {
        debug_assert!(key.index < UDP_BIT - 1);
        let index = key.index + 1;
        Self { index: if matches!(kind, SockKind::Udp) { index | UDP_BIT } else { index }, generation: key.generation }
    }
    /// Which layer owns it.
    pub const fn kind(self) -> SockKind {
        if self.index & UDP_BIT == 0 { SockKind::Tcp } else { SockKind::Udp }
    }
    /// The slab key; `None` for a number that was never an id, or one of another kind.
    pub(crate) fn key(self, kind: SockKind) -> Option<Key> {
        let index = (self.index & !UDP_BIT).checked_sub(1)?;
        (self.kind() == kind).then_some(Key { index, generation: self.generation })
    }
    /// As one number, never 0.
    pub const fn as_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }
    /// From [`Self::as_u64`]; any number is safe, it just finds nothing.
    pub const fn from_u64(n: u64) -> Self {
        Self { index: n as u32, generation: (n >> 32) as u32 }
    }
    /// The completion token of skbs sent for this socket.
    pub(crate) const fn token(self) -> TxDoneToken {
        TxDoneToken(self.as_u64())
    }
}

/// What a socket is ready for, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ready(pub u16);

impl Ready {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Bytes, end of stream or an error can be read.
    pub const READABLE: Self = Self(1);
    /// Room in the send buffer (a third of it, as Linux).
    pub const WRITABLE: Self = Self(2);
    /// `accept` returns a connection.
    pub const ACCEPT: Self = Self(4);
    /// The handshake of `connect` completed.
    pub const CONNECTED: Self = Self(8);
    /// An error is pending (SO_ERROR).
    pub const ERROR: Self = Self(16);
    /// Both directions are closed (EPOLLHUP).
    pub const HUP: Self = Self(32);
    /// The peer closed its direction (EPOLLRDHUP).
    pub const RDHUP: Self = Self(64);

    /// True without any bit.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Are all bits of `other` set?
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// Is any bit of `other` set?
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Ready {
    type Output = Self;
    fn bitor(self, o: Self) -> Self {
        Self(self.0 | o.0)
    }
}
impl BitOrAssign for Ready {
    fn bitor_assign(&mut self, o: Self) {
        self.0 |= o.0;
    }
}

/// Sockets with events that their owner has not fetched.
#[derive(Debug, Default)]
pub(crate) struct ReadyList(VecDeque<SockId>);

impl ReadyList {
    /// Adds `bits` to `pending`, the unfetched events of `id`, and queues the socket if it was not queued.
    pub(crate) fn post(&mut self, id: SockId, pending: &mut Ready, bits: Ready) {
        if bits.is_empty() {
            return;
        }
        if pending.is_empty() {
            self.0.push_back(id);
        }
        *pending |= bits;
    }
    /// The longest waiting socket. The caller fetches and clears its pending bits, or skips it if it is gone.
    pub(crate) fn pop(&mut self) -> Option<SockId> {
        self.0.pop_front()
    }
}
