//! What a shard and a handle share: one cell per remote socket, and one [`Shared`] per shard.
//!
//! ```text
//!   application thread                       SockCell                              shard
//!   written  <= snd_limit ................ snd_limit  (grows) ................ bytes taken + room in the send buffer
//!   down: Frag ------------------------->  SPSC ring ----------------------->  Conn::write_frag
//!   up:   Frag <-------------------------  SPSC ring <-----------------------  Conn::read_frags
//!   rcv_read (bytes it consumed) ........ rcv_read   (grows) ................. moved - rcv_read <= UP_BYTES
//!   flags: shutdown, gone ............... one word each way .................. events: connected, EOF, error, gone
//! ```
//! Counters are absolute and only grow, so a reader that is late is merely pessimistic. Each word has one writer, except
//! `flags`, whose bits are only ever set. Order is by the rings: the shard sets EOF after the last push, and the handle
//! looks into the ring once more after it saw EOF; the handle sets SHUT_WR after its last push, and the shard empties the
//! ring before it obeys.
//!
//! A waker travels by value through a small ring of its own ([`WakerTx`] to [`WakerRx`]): the shard keeps the newest. So
//! no lock and no shared cell of a non-atomic type is needed.

use alloc::sync::Arc;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::task::Waker;

use linerate_base::Errno;
use linerate_skb::spsc::{Consumer, Producer, channel};
use linerate_wire::flow::{from_mapped, to_mapped};

use super::wake::{DirtyLink, DirtyStack, WaitFlag};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Fragments that wait for the shard, per socket.
pub(crate) const DOWN_FRAGS: usize = 128;
/// Fragments that wait for the application, per socket.
pub(crate) const UP_FRAGS: usize = 128;
/// Bytes that wait in the up-ring; what is beyond stays in the receive queue and closes the window.
pub(crate) const UP_BYTES: u64 = 512 << 10;
/// Wakers that may be on their way to the shard.
const WAKERS: usize = 4;

/// Beside the port of a local end: it was set. The port itself is 0 for a listener on every port.
const LOCAL_KNOWN: u64 = 1 << 16;

/// How a shard's thread is woken. The host supplies it.
pub trait ShardWaker: Send + Sync {
    /// Ends the sleep of the shard's thread, or prevents its next one.
    fn wake(&self);
}

/// Bits of [`SockCell::events`], set by the shard.
pub(crate) mod event {
    /// The handshake is done (or the listener listens).
    pub(crate) const CONNECTED: u32 = 1;
    /// Nothing more comes up.
    pub(crate) const EOF: u32 = 2;
    /// `errno` says why the socket died.
    pub(crate) const ERROR: u32 = 4;
    /// The shard was dropped or let the socket go.
    pub(crate) const GONE: u32 = 8;
    /// Nothing can be written any more, for the reason in `errno`, although there may still be something to read.
    pub(crate) const WR_DEAD: u32 = 16;
}

/// Bits of [`SockCell::flags`], set by the application.
pub(crate) mod flag {
    /// No more writes: send FIN when the ring is empty.
    pub(crate) const SHUT_WR: u32 = 1;
    /// The writing half was dropped.
    pub(crate) const WR_GONE: u32 = 2;
    /// The reading half (or the listener) was dropped.
    pub(crate) const RD_GONE: u32 = 4;
    /// Reset the connection.
    pub(crate) const ABORT: u32 = 8;
    /// Both halves are gone.
    pub(crate) const BOTH_GONE: u32 = WR_GONE | RD_GONE;
}

/// What all remote handles of a shard share with it.
pub(crate) struct Shared {
    pub(crate) dirty: DirtyStack,
    /// The shard sleeps.
    pub(crate) asleep: WaitFlag,
    /// Not 0: some command ring has something.
    pub(crate) commands: AtomicU32,
    pub(crate) waker: Arc<dyn ShardWaker>,
}

impl Shared {
    pub(crate) fn new(waker: Arc<dyn ShardWaker>) -> Self {
        Self { dirty: DirtyStack::new(), asleep: WaitFlag::new(), commands: AtomicU32::new(0), waker }
    }
    /// After publishing: wakes the shard if it sleeps.
    pub(crate) fn nudge(&self) {
        if self.asleep.notify() {
            self.waker.wake();
        }
    }
    /// Is there anything for the shard to look at?
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || self.commands.load(Ordering::Acquire) != 0
    }
}

/// The shared part of one remote socket. See the module head.
pub(crate) struct SockCell {
    pub(crate) shared: Arc<Shared>,
    pub(crate) link: DirtyLink,
    /// Shard: bytes that may have been written in all. UDP: the answer to the last `connect`, its ticket in the upper half.
    pub(crate) snd_limit: AtomicU64,
    /// Shard: bits of [`event`].
    pub(crate) events: AtomicU32,
    /// Shard: Linux's number, before the ERROR or WR_DEAD bit.
    errno: AtomicU32,
    /// Shard, UDP: an error that the next verb takes; Linux's number, 0 without one.
    soft_errno: AtomicU32,
    /// Shard: local address and port (with [`LOCAL_KNOWN`]), before the CONNECTED bit.
    local: [AtomicU64; 3],
    /// Application: bytes consumed in all.
    pub(crate) rcv_read: AtomicU64,
    /// Application: bits of [`flag`].
    pub(crate) flags: AtomicU32,
    /// The application waits to read (or to accept, or for the handshake).
    pub(crate) rd_wait: WaitFlag,
    /// The application waits to write.
    pub(crate) wr_wait: WaitFlag,
    /// The shard waits for room in the up-ring.
    pub(crate) up_wait: WaitFlag,
}

impl SockCell {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            link: DirtyLink::new(),
            snd_limit: AtomicU64::new(0),
            events: AtomicU32::new(0),
            errno: AtomicU32::new(0),
            soft_errno: AtomicU32::new(0),
            local: [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)],
            rcv_read: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            rd_wait: WaitFlag::new(),
            wr_wait: WaitFlag::new(),
            up_wait: WaitFlag::new(),
        })
    }
    /// Application, after publishing: the shard has to look at this cell.
    pub(crate) fn mark_dirty(&self) {
        if self.shared.dirty.push(&self.link) {
            self.shared.nudge();
        }
    }
    /// Application: sets bits of [`flag`] and tells the shard.
    pub(crate) fn raise(&self, bits: u32) {
        self.flags.fetch_or(bits, Ordering::AcqRel);
        self.mark_dirty();
    }
    /// Events so far.
    pub(crate) fn events(&self) -> u32 {
        self.events.load(Ordering::Acquire)
    }
    /// Shard: sets bits of [`event`]; true if any is new.
    pub(crate) fn post(&self, bits: u32) -> bool {
        let before = self.events.load(Ordering::Relaxed);
        if before & bits == bits {
            return false;
        }
        self.events.store(before | bits, Ordering::Release);
        true
    }
    /// Shard: records why the socket died; the first reason stays.
    pub(crate) fn post_error(&self, errno: Errno) {
        self.post_reason(errno, event::ERROR);
    }
    /// Shard: records why nothing can be written any more; the reader learns it when it has read everything.
    pub(crate) fn post_write_error(&self, errno: Errno) {
        self.post_reason(errno, event::WR_DEAD);
    }
    fn post_reason(&self, errno: Errno, bit: u32) {
        if self.events.load(Ordering::Relaxed) & (event::ERROR | event::WR_DEAD) == 0 {
            self.errno.store(errno.number() as u32, Ordering::Relaxed);
        }
        self.post(bit);
    }
    /// Why the socket died; meaningful after the ERROR or WR_DEAD bit was seen.
    pub(crate) fn errno(&self) -> Errno {
        let n = self.errno.load(Ordering::Relaxed) as i32;
        Errno::ALL.iter().copied().find(|e| e.number() == n).unwrap_or(Errno::ECONNABORTED)
    }
    /// Shard: an error that one verb returns, as SO_ERROR does; the newest counts.
    pub(crate) fn post_soft_error(&self, errno: Errno) {
        self.soft_errno.store(errno.number() as u32, Ordering::Release);
    }
    /// Was it not taken yet?
    pub(crate) fn has_soft_error(&self) -> bool {
        self.soft_errno.load(Ordering::Relaxed) != 0
    }
    /// Application: takes it.
    pub(crate) fn take_soft_error(&self) -> Option<Errno> {
        // Mostly there is none, and a load costs nothing.
        if self.soft_errno.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let n = self.soft_errno.swap(0, Ordering::AcqRel) as i32;
        Errno::ALL.iter().copied().find(|e| e.number() == n)
    }
    /// Shard: records the local end.
    pub(crate) fn set_local(&self, addr: SocketAddr) {
        let bits = to_mapped(addr.ip()).to_bits();
        self.local[0].store((bits >> 64) as u64, Ordering::Relaxed);
        self.local[1].store(bits as u64, Ordering::Relaxed);
        self.local[2].store(LOCAL_KNOWN | u64::from(addr.port()), Ordering::Release);
    }
    /// The local end, once it is known.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        let port = self.local[2].load(Ordering::Acquire);
        let (hi, lo) = (self.local[0].load(Ordering::Relaxed), self.local[1].load(Ordering::Relaxed));
        let ip: IpAddr = from_mapped(Ipv6Addr::from_bits(u128::from(hi) << 64 | u128::from(lo)));
        (port & LOCAL_KNOWN != 0).then(|| SocketAddr::new(ip, port as u16))
    }
}

/// The application's end of a waker ring.
#[derive(Debug)]
pub struct WakerTx {
    ring: Producer<Waker>,
    /// The newest that was handed over: the shard keeps it, so the same need not be sent again.
    sent: Option<Waker>,
}

/// The shard's end of a waker ring.
#[derive(Debug)]
pub struct WakerRx {
    ring: Consumer<Waker>,
    newest: Option<Waker>,
}

/// A ring for wakers: its two ends.
pub fn waker_ring() -> (WakerTx, WakerRx) {
    let (tx, rx) = channel(WAKERS);
    (WakerTx { ring: tx, sent: None }, WakerRx { ring: rx, newest: None })
}

impl WakerTx {
    /// Makes `waker` the one that is woken. False when the shard has not taken the last few: then ask again soon.
    pub fn register(&mut self, waker: &Waker) -> bool {
        if self.sent.as_ref().is_some_and(|w| w.will_wake(waker)) {
            return true;
        }
        let sent = self.ring.try_push(waker.clone()).is_ok();
        if sent {
            self.sent = Some(waker.clone());
        }
        sent
    }
}

impl WakerRx {
    /// Takes what was registered; frees the ring.
    pub fn refresh(&mut self) {
        while let Some(w) = self.ring.pop() {
            self.newest = Some(w);
        }
    }
    /// Wakes the newest.
    pub fn wake(&mut self) {
        self.refresh();
        if let Some(w) = &self.newest {
            w.wake_by_ref();
        }
    }
}
