//! The caller's ends of a channel: [`PacketSender`] into the stack, [`PacketReceiver`] out of it.
//!
//! A pushed packet becomes an skb here, on the caller's thread: headers into its head, payload into pages of the sender's own
//! pool (or references to pages that the caller filled), checked against what was said about it. What does not pass
//! becomes an entry with its reason, which the stack counts in its place. Staged packets are published together
//! and ring once ([`PacketSender::flush`]).
//!
//! Invariants: after `WouldBlock` from a `poll_*` the waker is registered and will be called after the condition
//! changed; a [`Packet`] goes home wherever it is dropped. Memory that the stack holds comes home at the next push.
//! Limits: each end serves one thread at a time; a waker that waits for pages does not exist (a packet without a page is dropped).

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use linerate_base::DropReason;
use linerate_host::Wait;
use linerate_host::packet::{HEAD_MAX, Shape, vnet};
use linerate_skb::spsc::{Consumer, Producer};
use linerate_skb::{
    Csum, Frag, HEAD_CAPACITY, MAX_FRAGS, Page, PagePool, PoolConfig, SKB_TRUESIZE, Skb, SkbCache, SkbMeta,
};
use linerate_stack::remote::{WaitFlag, WakerTx};

use super::{IP_MAX_BYTES, Shared, VnetHeader};
use crate::error::Error;
use crate::wait::block_on;

/// A page with less room than this is let go.
const MIN_ROOM: usize = 256;
/// Descriptors of a sender beyond those that its ring can hold: what the stack may hold of them.
const MORE_SKBS: usize = 64 << 10;

/// A packet, or a super-packet, out of the stack: the stack's own pages, which go home when it is dropped. Bytes are in order the
/// link header if there is one, the IP header, and the rest.
pub struct Packet {
    /// `None` only while it is taken apart.
    skb: Option<Skb>,
}

impl Packet {
    pub(super) fn new(skb: Skb) -> Self {
        Self { skb: Some(skb) }
    }
    pub(super) fn into_skb(mut self) -> Option<Skb> {
        self.skb.take()
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "the stack sends no packet without bytes")]
    pub fn len(&self) -> usize {
        self.skb.as_ref().map_or(0, |skb| skb.len() as usize)
    }
    /// Frames of the wire that it stands for, at least 1.
    pub fn wire_pkts(&self) -> u32 {
        self.skb.as_ref().map_or(1, |skb| skb.wire_pkts())
    }
    /// Its bytes, in the pieces in which they lie: all headers first, for `writev` or a cipher.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.skb.iter().flat_map(Skb::slices)
    }
    /// Copies the first `to.len()` bytes out; returns how many there were.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        self.skb.as_ref().map_or(0, |skb| skb.copy_bytes(0, to))
    }
    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.skb.as_ref().map_or_else(Vec::new, Skb::to_vec)
    }
    /// What is still to be done: whether its checksum is to be filled in, and how it is to be cut. The default one, always without
    /// offloads: nothing.
    pub fn header(&self) -> VnetHeader {
        let undone = |skb: &&Skb| skb.is_gso() || matches!(skb.csum, Csum::Partial { .. });
        self.skb.as_ref().filter(undone).map_or_else(VnetHeader::default, vnet::of)
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        if let Some(skb) = self.skb.take() {
            skb.into_home();
        }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet").field("len", &self.len()).field("wire_pkts", &self.wire_pkts()).finish()
    }
}

/// What the sender made of a packet.
pub(super) enum Pushed {
    Packet(Packet),
    /// It died here; the stack counts.
    Dropped(DropReason),
}

/// One end of the caller, as who waits at it.
trait End {
    fn parts(&mut self) -> (&Arc<Shared>, &mut WakerTx);
    fn wait(shared: &Shared) -> &WaitFlag;
}

impl End for PacketSender {
    fn parts(&mut self) -> (&Arc<Shared>, &mut WakerTx) {
        (&self.shared, &mut self.wakers)
    }
    fn wait(shared: &Shared) -> &WaitFlag {
        &shared.wr_wait
    }
}

impl End for PacketReceiver {
    fn parts(&mut self) -> (&Arc<Shared>, &mut WakerTx) {
        (&self.room.shared, &mut self.wakers)
    }
    fn wait(shared: &Shared) -> &WaitFlag {
        &shared.rd_wait
    }
}

/// Registers the waker of `cx`, announces the wait and looks again: the waiting side of `WaitFlag`.
fn poll_with<H: End, T>(
    this: &mut H,
    cx: &mut Context<'_>,
    mut attempt: impl FnMut(&mut H) -> Result<T, Error>,
) -> Poll<Result<T, Error>> {
    match attempt(this) {
        Err(Error::WouldBlock) => {}
        done => return Poll::Ready(done),
    }
    let (shared, wakers) = this.parts();
    let shared = shared.clone();
    if !wakers.register(cx.waker()) {
        // The stack has not yet taken the wakers of several tasks before this one: let it, and come back.
        shared.wake_stack();
        cx.waker().wake_by_ref();
        return Poll::Pending;
    }
    H::wait(&shared).prepare();
    match attempt(this) {
        Err(Error::WouldBlock) => Poll::Pending,
        done => {
            H::wait(&shared).cancel();
            Poll::Ready(done)
        }
    }
}

/// Packets into the stack. Dropping it sends what was staged and ends that direction.
pub struct PacketSender {
    ring: Producer<Pushed>,
    shared: Arc<Shared>,
    wakers: WakerTx,
    shape: Shape,
    pool: PagePool,
    skbs: SkbCache,
    /// The page that the next payload goes to.
    page: Option<Page>,
    mode: Wait,
    limit: Option<Duration>,
}

impl PacketSender {
    pub(super) fn new(
        ring: Producer<Pushed>,
        shared: Arc<Shared>,
        wakers: WakerTx,
        shape: Shape,
        pool: PoolConfig,
    ) -> Self {
        let skbs = SkbCache::new((ring.capacity() + MORE_SKBS).try_into().unwrap_or(u32::MAX));
        let (pool, mode) = (PagePool::new(pool), Wait::default());
        Self { ring, shared, wakers, shape, pool, skbs, page: None, mode, limit: None }
    }

    /// Packets that the ring takes now; 0 also when the stack is gone.
    pub fn room(&mut self) -> usize {
        let all = self.ring.capacity();
        if self.ring.is_closed() { 0 } else { self.ring.room(all) }
    }

    /// One whole packet, copied and told the stack of.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when the ring is full, [`Error::StackGone`]. A packet that can not be received is taken, dropped and
    /// counted.
    pub fn try_push(&mut self, packet: &[u8]) -> Result<(), Error> {
        self.stage(packet, &VnetHeader::default())?;
        self.flush();
        Ok(())
    }

    /// As [`Self::try_push`] for as many of `batch` as there is room for, told the stack of once: returns how many were taken.
    ///
    /// # Errors
    /// As there; `WouldBlock` only when not even the first was taken.
    pub fn try_push_batch(&mut self, batch: &[impl AsRef<[u8]>]) -> Result<usize, Error> {
        let mut taken = 0;
        let mut end = Ok(());
        for packet in batch {
            end = self.stage(packet.as_ref(), &VnetHeader::default());
            if end.is_err() {
                break;
            }
            taken += 1;
        }
        self.flush();
        if taken == 0 { end.map(|()| 0) } else { Ok(taken) }
    }

    /// Copies a packet and makes it ready; [`Self::flush`] tells the stack. `header` says whether its checksum is unfinished
    /// and how it is to be cut, as far as [`ChannelConfig::offloads`](super::ChannelConfig::offloads) allow it.
    ///
    /// # Errors
    /// As [`Self::try_push`]; what was staged before is flushed then.
    pub fn stage(&mut self, packet: &[u8], header: &VnetHeader) -> Result<(), Error> {
        self.admit()?;
        let made = self.copy_in(packet, header);
        self.stage_made(made, header);
        Ok(())
    }

    /// As [`Self::stage`] without copying: the bytes of `frags` in order are one packet. All of it is taken, or nothing. Pages
    /// are used again when everybody in the stack has let go.
    ///
    /// # Errors
    /// As [`Self::stage`].
    pub fn stage_frags(&mut self, frags: &mut Vec<Frag>, header: &VnetHeader) -> Result<(), Error> {
        self.admit()?;
        let made = self.refer_to(frags);
        self.stage_made(made, header);
        Ok(())
    }

    /// As [`Self::stage_frags`], told the stack of.
    ///
    /// # Errors
    /// As [`Self::try_push`].
    pub fn try_push_frags(&mut self, frags: &mut Vec<Frag>, header: &VnetHeader) -> Result<(), Error> {
        self.stage_frags(frags, header)?;
        self.flush();
        Ok(())
    }

    /// As [`Self::stage`] for a packet that another channel's stack sent, by reference.
    ///
    /// # Errors
    /// As [`Self::stage`], with the packet.
    pub fn stage_packet(&mut self, packet: Packet) -> Result<(), (Packet, Error)> {
        if let Err(e) = self.admit() {
            return Err((packet, e));
        }
        let header = packet.header();
        let Some(mut skb) = packet.into_skb() else { return Ok(()) };
        // What its sender knew about it is the header's word now, and judged as any other's. The bytes are the same.
        *skb = SkbMeta { payload_sum: skb.payload_sum, ..SkbMeta::default() };
        self.stage_made(Ok(skb), &header);
        Ok(())
    }

    /// Tells the stack of everything that was staged.
    pub fn flush(&mut self) {
        self.ring.publish();
        self.shared.nudge();
        self.pool.reclaim();
        self.skbs.reclaim();
    }

    fn admit(&mut self) -> Result<(), Error> {
        if self.ring.is_closed() {
            return Err(Error::StackGone);
        }
        if self.ring.room(1) == 0 {
            self.flush();
            return Err(Error::WouldBlock);
        }
        Ok(())
    }

    /// Judges what is said about an skb and puts it, or its end, into the ring.
    fn stage_made(&mut self, made: Result<Skb, DropReason>, header: &VnetHeader) {
        let judged = made.and_then(|mut skb| {
            skb.ip_version = skb.head().get(self.shape.link_len).map_or(0, |b| b >> 4);
            skb.truesize = SKB_TRUESIZE.saturating_add(skb.data_len());
            let judged = if skb.len() > IP_MAX_BYTES.saturating_add(self.shape.link_len as u32) {
                Err(DropReason::PktTooBig)
            } else if *header == VnetHeader::default() {
                Ok(())
            } else {
                vnet::take(&mut skb, header, &self.shape)
            };
            match judged {
                Ok(()) => Ok(skb),
                Err(reason) => {
                    self.skbs.free(skb, &mut self.pool);
                    Err(reason)
                }
            }
        });
        let entry = match judged {
            Ok(skb) => Pushed::Packet(Packet::new(skb)),
            Err(reason) => Pushed::Dropped(reason),
        };
        let staged = self.ring.stage(entry);
        debug_assert!(staged.is_ok(), "admission saw room");
    }

    /// An skb with the headers of a packet that begins with `known` in its head, and where its payload starts.
    fn begin(&mut self, known: &[u8]) -> Result<(Skb, usize), DropReason> {
        if known.is_empty() {
            return Err(DropReason::PktTooSmall);
        }
        let end = self.shape.header_len(known).unwrap_or(known.len());
        let header = known.get(..end).unwrap_or(known);
        let mut skb = self.skbs.alloc().ok_or(DropReason::NoMem)?;
        if skb.tailroom() < header.len() {
            skb.reset_head(HEAD_CAPACITY.saturating_sub(header.len()));
        }
        let whole = skb.put_head_from(header);
        debug_assert!(whole, "headers that were looked for fit the head");
        skb.set_max_frags(MAX_FRAGS);
        Ok((skb, header.len()))
    }

    fn copy_in(&mut self, packet: &[u8], header: &VnetHeader) -> Result<Skb, DropReason> {
        if packet.len() > IP_MAX_BYTES as usize + self.shape.link_len {
            return Err(DropReason::PktTooBig);
        }
        let (mut skb, end) = self.begin(packet.get(..HEAD_MAX).unwrap_or(packet))?;
        // Who will verify the checksum needs the sum of the payload; the copy makes it on its way.
        let sums = header.csum.is_none() && !header.data_valid;
        let kernels = self.shape.kernels;
        let mut rest = packet.get(end..).unwrap_or_default();
        while !rest.is_empty() {
            let pushed = match self.page() {
                None => None,
                Some(page) if sums => {
                    page.append_sum(&kernels, rest).map(|(frag, sum)| (frag.len(), skb.push_frag_sum(frag, sum)))
                }
                Some(page) => page.append(&kernels, rest).map(|frag| (frag.len(), skb.push_frag(frag))),
            };
            let Some((len, Ok(()))) = pushed else {
                self.skbs.free(skb, &mut self.pool);
                return Err(DropReason::NoMem);
            };
            rest = rest.get(len as usize..).unwrap_or_default();
        }
        Ok(skb)
    }

    fn refer_to(&mut self, frags: &mut Vec<Frag>) -> Result<Skb, DropReason> {
        let mut known = [0; HEAD_MAX];
        let mut n = 0;
        for frag in frags.iter() {
            for (to, from) in known.iter_mut().skip(n).zip(frag.as_slice()) {
                *to = *from;
                n += 1;
            }
        }
        let made = self.begin(known.get(..n).unwrap_or_default());
        let (mut skb, end) = match made {
            Ok(made) => made,
            Err(reason) => {
                frags.clear();
                return Err(reason);
            }
        };
        let (mut skip, mut fits) = (end, true);
        for mut frag in frags.drain(..) {
            let passed = skip.min(frag.len() as usize);
            frag.advance(passed as u32);
            skip -= passed;
            fits &= skb.push_frag(frag).is_ok();
        }
        if fits {
            return Ok(skb);
        }
        self.skbs.free(skb, &mut self.pool);
        Err(DropReason::PktTooBig)
    }

    /// The page to append to, with room.
    fn page(&mut self) -> Option<&mut Page> {
        if let Some(full) = self.page.take_if(|p| p.room() < MIN_ROOM && !p.reset_if_sole()) {
            self.pool.recycle_page(full);
        }
        if self.page.is_none() {
            self.page = self.pool.alloc().or_else(|| {
                self.pool.reclaim();
                self.pool.alloc()
            });
        }
        self.page.as_mut()
    }

    /// Ready when the ring takes a packet; `Pending` after the waker of `cx` was registered (the last one registered is woken,
    /// when half of the ring is free).
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        poll_with(self, cx, Self::admit)
    }

    /// As [`Self::try_push`]; `Pending` after the waker of `cx` was registered.
    pub fn poll_push(&mut self, cx: &mut Context<'_>, packet: &[u8]) -> Poll<Result<(), Error>> {
        match self.poll_room(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(self.try_push(packet)),
            other => other,
        }
    }

    /// As [`Self::try_push`], blocking.
    ///
    /// # Errors
    /// `TimedOut` after the limit of [`Self::set_timeout`]; `ConnectionAborted` when the stack is gone.
    pub fn push(&mut self, packet: &[u8]) -> io::Result<()> {
        let (mode, limit) = (self.mode, self.limit);
        Ok(block_on(mode, limit, |cx| self.poll_push(cx, packet))?)
    }

    /// The longest that [`Self::push`] waits; `None` is without end.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }
    /// How [`Self::push`] waits.
    pub fn set_wait(&mut self, mode: Wait) {
        self.mode = mode;
    }
}

impl Drop for PacketSender {
    fn drop(&mut self) {
        self.flush();
    }
}

impl fmt::Debug for PacketSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketSender").field("ring", &self.ring).finish_non_exhaustive()
    }
}

/// Packets out of the stack. Dropping it makes the stack drop what it sends there (`Shutdown`).
pub struct PacketReceiver {
    ring: Consumer<Packet>,
    /// Behind the ring, so that the stack sees that it has closed.
    room: RoomBell,
    wakers: WakerTx,
    pulled_bytes: u64,
    mode: Wait,
    limit: Option<Duration>,
}

/// Tells the stack of room, and at the end that it waits in vain.
struct RoomBell {
    shared: Arc<Shared>,
    limit_bytes: u64,
}

impl Drop for RoomBell {
    fn drop(&mut self) {
        if self.shared.room.notify() {
            self.shared.wake_stack();
        }
    }
}

impl PacketReceiver {
    pub(super) fn new(ring: Consumer<Packet>, shared: Arc<Shared>, wakers: WakerTx, limit_bytes: u64) -> Self {
        let room = RoomBell { shared, limit_bytes };
        Self { ring, room, wakers, pulled_bytes: 0, mode: Wait::default(), limit: None }
    }

    /// Takes up to `max` packets, in order, each into `each`; returns how many, at least 1.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is none; [`Error::StackGone`] when none will come.
    pub fn try_pull_batch(&mut self, max: usize, mut each: impl FnMut(Packet)) -> Result<usize, Error> {
        let closed = self.ring.is_closed();
        let pulled = &mut self.pulled_bytes;
        let n = self.ring.pop_batch(max, |packet| {
            *pulled = pulled.wrapping_add(packet.len() as u64);
            each(packet);
        });
        if n > 0 {
            self.took();
        } else if max > 0 {
            return Err(if closed { Error::StackGone } else { Error::WouldBlock });
        }
        Ok(n)
    }

    /// The next packet.
    ///
    /// # Errors
    /// As [`Self::try_pull_batch`].
    pub fn try_pull(&mut self) -> Result<Packet, Error> {
        let closed = self.ring.is_closed();
        let Some(packet) = self.ring.pop() else {
            return Err(if closed { Error::StackGone } else { Error::WouldBlock });
        };
        self.pulled_bytes = self.pulled_bytes.wrapping_add(packet.len() as u64);
        self.took();
        Ok(packet)
    }

    /// Says what was taken; a stack that waits goes on when half of both limits is free.
    fn took(&mut self) {
        let RoomBell { shared, limit_bytes } = &self.room;
        shared.pulled_bytes.store(self.pulled_bytes, Ordering::Release);
        let waiting = shared.pushed_bytes.load(Ordering::Acquire).wrapping_sub(self.pulled_bytes);
        let roomy = self.ring.len() <= self.ring.capacity() / 2 && waiting <= limit_bytes / 2;
        if roomy && shared.room.notify() {
            shared.wake_stack();
        }
    }

    /// As [`Self::try_pull_batch`]; `Pending` after the waker of `cx` was registered (the last one registered is woken).
    pub fn poll_pull_batch(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        mut each: impl FnMut(Packet),
    ) -> Poll<Result<usize, Error>> {
        poll_with(self, cx, |h| h.try_pull_batch(max, &mut each))
    }

    /// As [`Self::try_pull`]; `Pending` after the waker of `cx` was registered.
    pub fn poll_pull(&mut self, cx: &mut Context<'_>) -> Poll<Result<Packet, Error>> {
        poll_with(self, cx, Self::try_pull)
    }

    /// As [`Self::try_pull`], blocking.
    ///
    /// # Errors
    /// `TimedOut` after the limit of [`Self::set_timeout`]; `ConnectionAborted` when the stack is gone.
    pub fn pull(&mut self) -> io::Result<Packet> {
        let (mode, limit) = (self.mode, self.limit);
        Ok(block_on(mode, limit, |cx| self.poll_pull(cx))?)
    }

    /// As [`Self::try_pull_batch`], blocking.
    ///
    /// # Errors
    /// As [`Self::pull`].
    pub fn pull_batch(&mut self, max: usize, mut each: impl FnMut(Packet)) -> io::Result<usize> {
        let (mode, limit) = (self.mode, self.limit);
        Ok(block_on(mode, limit, |cx| self.poll_pull_batch(cx, max, &mut each))?)
    }

    /// The longest that blocking verbs wait; `None` is without end.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }
    /// How blocking verbs wait.
    pub fn set_wait(&mut self, mode: Wait) {
        self.mode = mode;
    }
}

impl fmt::Debug for PacketReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketReceiver").field("ring", &self.ring).finish_non_exhaustive()
    }
}
