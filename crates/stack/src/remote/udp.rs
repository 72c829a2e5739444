//! UDP sockets from other threads: a cell like a connection's, with datagrams in its rings instead of bytes.
//!
//! ```text
//!   down:  Datagram{to, gso_size, frags}, Frag, Frag, .. | Connect{peer}      published together, so never seen in parts
//!   up:    Datagram{who, what, frags},    Frag, Frag, .. | ...
//! ```
//! Data is copied where the caller is: into pages of the handle's own pool on the way down, out of the pages that the
//! device filled on the way up. A train (UDP_SEGMENT, UDP_GRO) crosses as one entry in both directions; a handle that did
//! not ask for trains takes its datagrams off one by one.
//!
//! Sending is not waiting for the stack, so what the stack says about a datagram (no route, too long, a broadcast that is
//! not allowed, an ICMP error) comes as a *pending error*: the next verb returns it, once, as SO_ERROR does. `connect` is
//! waited for and has an answer of its own. A full up-ring (entries, or [`UP_BYTES`] not yet read) leaves datagrams in the
//! socket's queue, whose SO_RCVBUF decides what is dropped. A full send buffer leaves the down-ring full: `WouldBlock`.
//!
//! Limits: one thread uses a handle; addresses and lengths of one datagram at a time; no MSG_PEEK.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::task::{Context, Poll};

use linerate_arch::Kernels;
use linerate_base::Errno;
use linerate_skb::spsc::{Consumer, Producer, channel};
use linerate_skb::{Frag, Page, PagePool, PoolConfig};

use super::cell::{Shared, SockCell, UP_BYTES, WakerRx, WakerTx, event, flag, waker_ring};
use super::handle::{HandleError, Park, poll_with};
use crate::shard::Shard;
use crate::sock::SockId;
use crate::sync::Ordering;
use crate::udp::{PmtuDisc, UdpRecv, UdpSendError};

/// Entries of each ring: datagrams and their fragments. A received train may have 128 of these.
const RING_ENTRIES: usize = 256;
/// What a datagram without bytes counts as against [`UP_BYTES`].
const DATAGRAM_COST: u64 = 256;
/// Longest datagram or train, bytes.
const LONGEST: usize = 65_535;

/// Options of a remote UDP socket, given when it is made. 0 leaves a size to the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RemoteUdpOpts {
    /// SO_RCVBUF as stored, bytes of truesize.
    pub rcvbuf_bytes: u32,
    /// SO_SNDBUF as stored, bytes of truesize below the socket.
    pub sndbuf_bytes: u32,
    /// SO_BROADCAST.
    pub broadcast: bool,
    /// IP_TOS, IPV6_TCLASS.
    pub tos: u8,
    /// IP_TTL, IPV6_UNICAST_HOPS; 0 = the configuration's.
    pub ttl: u8,
    /// IP_MTU_DISCOVER, IPV6_MTU_DISCOVER.
    pub mtu_discover: PmtuDisc,
}

/// An entry of the ring towards the shard.
enum Down {
    Datagram { to: Option<SocketAddr>, gso_size: Option<u16>, frags: usize },
    Frag(Frag),
    Connect { peer: Option<SocketAddr>, ticket: u32 },
}

/// An entry of the ring towards the application.
enum Up {
    Datagram { what: UdpRecv, frags: usize },
    Frag(Frag),
}

/// The shard's side.
pub(crate) struct UdpStream {
    pub(super) cell: Arc<SockCell>,
    pub(super) sock: Option<SockId>,
    down: Consumer<Down>,
    up: Producer<Up>,
    /// Taken from the ring, and the send buffer was full.
    held: Option<(Option<SocketAddr>, Option<u16>)>,
    /// Its fragments, or those of the datagram at hand.
    frags: Vec<Frag>,
    /// Bytes handed up in all.
    moved: u64,
    pub(super) rd_wakers: WakerRx,
    pub(super) wr_wakers: WakerRx,
    pub(super) dead: bool,
}

impl Drop for UdpStream {
    fn drop(&mut self) {
        self.cell.post(event::GONE);
        if self.cell.rd_wait.notify() {
            self.rd_wakers.wake();
        }
        if self.cell.wr_wait.notify() {
            self.wr_wakers.wake();
        }
    }
}

/// Both sides of a remote UDP socket.
pub(super) fn pair(shared: &Arc<Shared>, kernels: Kernels, pool_cfg: PoolConfig) -> (Box<UdpStream>, RemoteUdp) {
    let cell = SockCell::new(shared.clone());
    let (down_tx, down) = channel(RING_ENTRIES);
    let (up, up_rx) = channel(RING_ENTRIES);
    let (rd_tx, rd_wakers) = waker_ring();
    let (wr_tx, wr_wakers) = waker_ring();
    let stream = Box::new(UdpStream {
        cell: cell.clone(),
        sock: None,
        down,
        up,
        held: None,
        frags: Vec::new(),
        moved: 0,
        rd_wakers,
        wr_wakers,
        dead: false,
    });
    let handle = RemoteUdp {
        cell,
        down: down_tx,
        up: up_rx,
        rd_wakers: rd_tx,
        wr_wakers: wr_tx,
        kernels,
        pool_cfg,
        pool: None,
        page: None,
        scratch: Vec::new(),
        starved: false,
        train: None,
        frags: VecDeque::new(),
        gro: false,
        read: 0,
        ticket: 0,
        peer: None,
    };
    (stream, handle)
}

/// The shard serves a UDP cell.
impl Shard {
    pub(super) fn service_udp(&mut self, u: &mut UdpStream) {
        u.rd_wakers.refresh();
        u.wr_wakers.refresh();
        let gone = u.cell.flags.load(Ordering::Acquire) & flag::BOTH_GONE == flag::BOTH_GONE;
        let Some(id) = u.sock else {
            // It never came to be: whoever waits learns why.
            u.dead |= gone;
            return u.wake_all();
        };
        self.udp.served(id);
        let drained = self.drain_datagrams(u, id);
        if gone {
            // What was sent before the handle went is sent; what is still coming in is nobody's.
            if u.held.is_none() && u.down.is_empty() {
                u.sock = None;
                u.dead = true;
                let _ = self.close(id);
            }
            return;
        }
        let told = self.hand_up(u, id) || u.cell.has_soft_error();
        if told && u.cell.rd_wait.notify() {
            u.rd_wakers.wake();
        }
        if drained && u.cell.wr_wait.notify() {
            u.wr_wakers.wake();
        }
    }

    /// Obeys the down-ring. True when it has more room than before, or an answer was given.
    fn drain_datagrams(&mut self, u: &mut UdpStream, id: SockId) -> bool {
        let mut any = false;
        loop {
            if let Some((to, gso_size)) = u.held.take() {
                match self.udp.send_frags(&mut self.core, id, &mut u.frags, to, gso_size) {
                    Err(UdpSendError::WouldBlock) => {
                        u.held = Some((to, gso_size));
                        return any;
                    }
                    Err(e) => u.cell.post_soft_error(e.errno()),
                    Ok(_) => {}
                }
                u.frags.clear();
            }
            match u.down.pop() {
                None => return any,
                Some(Down::Datagram { to, gso_size, frags }) => {
                    debug_assert!(u.frags.is_empty());
                    for _ in 0..frags {
                        let Some(Down::Frag(frag)) = u.down.pop() else { break };
                        u.frags.push(frag);
                    }
                    debug_assert_eq!(u.frags.len(), frags, "a datagram is published whole");
                    u.held = Some((to, gso_size));
                }
                Some(Down::Frag(_)) => debug_assert!(false, "a fragment belongs to a datagram"),
                Some(Down::Connect { peer, ticket }) => self.connect_remote(u, id, peer, ticket),
            }
            any = true;
        }
    }

    fn connect_remote(&mut self, u: &UdpStream, id: SockId, peer: Option<SocketAddr>, ticket: u32) {
        let errno = match peer {
            Some(peer) => self.udp_connect(id, peer).err().map_or(0, |e| e.errno().number() as u32),
            None => {
                // To forget a peer that is not there is no error, as in Linux.
                self.udp_disconnect(id);
                0
            }
        };
        if let Some(local) = self.udp.local_addr(id) {
            u.cell.set_local(local);
        }
        // For a UDP cell the writer's limit is the answer to the last `connect`.
        u.cell.snd_limit.store(u64::from(ticket) << 32 | u64::from(errno), Ordering::Release);
    }

    /// Moves what was received into the up-ring. True when there is news.
    fn hand_up(&mut self, u: &mut UdpStream, id: SockId) -> bool {
        let mut news = false;
        if let Some(errno) = self.udp.take_error(id) {
            u.cell.post_soft_error(errno);
        }
        loop {
            news |= self.hand_up_once(u, id);
            let Some(need) = self.udp.front_frags(id) else { return news };
            u.cell.up_wait.prepare();
            if !u.takes(need) {
                return news;
            }
            u.cell.up_wait.cancel();
        }
    }

    fn hand_up_once(&mut self, u: &mut UdpStream, id: SockId) -> bool {
        let mut news = false;
        while let Some(need) = self.udp.front_frags(id)
            && u.takes(need)
        {
            let mut frags = Vec::new();
            core::mem::swap(&mut frags, &mut self.remotes.scratch);
            if let Some(what) = self.udp.recv_frags(&mut self.core, id, &mut frags) {
                let count = frags.len();
                debug_assert!(count <= need, "no more than was announced");
                let mut fits = u.up.stage(Up::Datagram { what, frags: count }).is_ok();
                for frag in frags.drain(..) {
                    fits &= u.up.stage(Up::Frag(frag)).is_ok();
                }
                debug_assert!(fits, "there was room");
                u.up.publish();
                u.moved += what.full_len as u64 + DATAGRAM_COST;
                news = true;
            }
            self.remotes.scratch = frags;
        }
        news
    }
}

impl UdpStream {
    /// Has the up-ring room for a datagram of so many fragments?
    fn takes(&mut self, frags: usize) -> bool {
        let in_flight = self.moved - self.cell.rcv_read.load(Ordering::Acquire);
        let need = (frags + 1).min(RING_ENTRIES);
        in_flight < UP_BYTES && self.up.room(need) >= need
    }
    fn wake_all(&mut self) {
        if self.cell.rd_wait.notify() {
            self.rd_wakers.wake();
        }
        if self.cell.wr_wait.notify() {
            self.wr_wakers.wake();
        }
    }
}

/// A UDP socket of a shard, held elsewhere. Dropping it closes it, after what was sent before.
pub struct RemoteUdp {
    cell: Arc<SockCell>,
    down: Producer<Down>,
    up: Consumer<Up>,
    rd_wakers: WakerTx,
    wr_wakers: WakerTx,
    kernels: Kernels,
    pool_cfg: PoolConfig,
    /// Made with the first datagram sent.
    pool: Option<PagePool>,
    page: Option<Page>,
    /// Fragments of the datagram being copied; empty between calls.
    scratch: Vec<Frag>,
    /// The last send found no page.
    starved: bool,
    /// What was taken from the ring and not yet read: its facts, and the bytes left of it.
    train: Option<(UdpRecv, usize)>,
    frags: VecDeque<Frag>,
    gro: bool,
    /// Bytes consumed in all, as the shard counts them.
    read: u64,
    ticket: u32,
    peer: Option<SocketAddr>,
}

impl RemoteUdp {
    /// The pending error, or why the socket is dead.
    fn check(&self) -> Result<(), HandleError> {
        if let Some(errno) = self.cell.take_soft_error() {
            return Err(HandleError::Socket(errno));
        }
        let events = self.cell.events();
        if events & event::ERROR != 0 {
            Err(HandleError::Socket(self.cell.errno()))
        } else if events & event::GONE != 0 || self.down.is_closed() {
            Err(HandleError::Gone)
        } else {
            Ok(())
        }
    }

    /// Sends `data` to `to`, or to the peer of [`Self::start_connect`]: as one datagram, or with `gso_size` as a train of
    /// datagrams of that size, the last maybe shorter.
    ///
    /// # Errors
    /// `WouldBlock` when the ring, the send buffer or the pool is full; a pending error of an earlier datagram, once;
    /// `EMSGSIZE` beyond 65,535 bytes. What the stack says about this datagram is the next call's pending error.
    pub fn try_send_to(
        &mut self,
        data: &[u8],
        to: Option<SocketAddr>,
        gso_size: Option<u16>,
    ) -> Result<usize, HandleError> {
        self.check()?;
        if data.len() > LONGEST {
            return Err(HandleError::Socket(Errno::EMSGSIZE));
        }
        let page_bytes = 1usize << self.pool_cfg.page_shift.clamp(12, 21);
        // The rest of a page, whole pages, and the datagram itself.
        let need = data.len().div_ceil(page_bytes) + 2;
        if self.down.room(need) < need || !self.copy_in(data) {
            return Err(HandleError::WouldBlock);
        }
        let frags = self.scratch.len();
        let mut fits = self.down.stage(Down::Datagram { to, gso_size, frags }).is_ok();
        for frag in self.scratch.drain(..) {
            fits &= self.down.stage(Down::Frag(frag)).is_ok();
        }
        debug_assert!(fits, "there was room");
        self.down.publish();
        self.cell.mark_dirty();
        Ok(data.len())
    }

    /// Copies `data` into pages of the handle's own. False, and nothing is left behind: no page.
    fn copy_in(&mut self, mut data: &[u8]) -> bool {
        let pool = self.pool.get_or_insert_with(|| PagePool::new(self.pool_cfg));
        pool.reclaim();
        self.starved = false;
        while !data.is_empty() {
            if let Some(full) = self.page.take_if(|p| p.room() == 0 && !p.reset_if_sole()) {
                pool.recycle_page(full);
            }
            if self.page.is_none() {
                self.page = pool.alloc();
            }
            let Some(frag) = self.page.as_mut().and_then(|p| p.append(&self.kernels, data)) else {
                self.starved = true;
                self.scratch.clear();
                return false;
            };
            data = data.get(frag.len() as usize..).unwrap_or(&[]);
            self.scratch.push(frag);
        }
        true
    }

    /// As [`Self::try_send_to`]; `Pending` after `cx`'s waker was registered.
    pub fn poll_send_to(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
        to: Option<SocketAddr>,
        gso_size: Option<u16>,
    ) -> Poll<Result<usize, HandleError>> {
        let attempt = |h: &mut Self| h.try_send_to(data, to, gso_size);
        let poll = poll_with(self, cx.waker(), |h| (&h.cell, &mut h.wr_wakers, false), attempt);
        if poll.is_pending() && self.starved {
            // Pages come home from wherever they were read, and nobody tells: look again.
            cx.waker().wake_by_ref();
        }
        poll
    }

    /// As [`Self::try_send_to`], blocking.
    ///
    /// # Errors
    /// Never `WouldBlock`.
    pub fn send_to(
        &mut self,
        park: &dyn Park,
        data: &[u8],
        to: Option<SocketAddr>,
        gso_size: Option<u16>,
    ) -> Result<usize, HandleError> {
        block(park, |cx| self.poll_send_to(cx, data, to, gso_size))
    }

    /// Takes the next datagram, or with [`Self::set_gro`] the next train. A buffer that is too short loses the rest.
    ///
    /// # Errors
    /// `WouldBlock`; a pending error, once; why the socket is dead.
    pub fn try_recv_from(&mut self, buf: &mut [u8]) -> Result<UdpRecv, HandleError> {
        if let Some(errno) = self.cell.take_soft_error() {
            return Err(HandleError::Socket(errno));
        }
        if self.train.is_none() && !self.next_train() {
            self.check()?;
            // The shard pushes before it sets a bit: what was pushed last is seen now.
            if !self.next_train() {
                return Err(HandleError::WouldBlock);
            }
        }
        let Some((what, left)) = self.train.take() else { return Err(HandleError::WouldBlock) };
        let size = what.gso_size.map_or(usize::MAX, usize::from).max(1);
        let full_len = if self.gro { left } else { left.min(size) };
        let len = full_len.min(buf.len());
        self.copy_out(full_len, buf.get_mut(..len).unwrap_or_default());
        if left > full_len {
            self.train = Some((what, left - full_len));
        } else {
            self.consumed(&what);
        }
        // A train's last datagram alone is an ordinary one.
        let gso_size = what.gso_size.filter(|_| self.gro && full_len > size);
        Ok(UdpRecv { len, full_len, gso_size, truncated: len < full_len, ..what })
    }

    fn next_train(&mut self) -> bool {
        let Some(Up::Datagram { what, frags }) = self.up.pop() else { return false };
        debug_assert!(self.frags.is_empty());
        for _ in 0..frags {
            let Some(Up::Frag(frag)) = self.up.pop() else { break };
            self.frags.push_back(frag);
        }
        debug_assert_eq!(self.frags.len(), frags, "a datagram is published whole");
        self.train = Some((what, what.full_len));
        true
    }

    /// Takes `full_len` bytes off the fragments and copies as many as `buf` holds.
    fn copy_out(&mut self, full_len: usize, buf: &mut [u8]) {
        let (mut done, mut copied) = (0, 0);
        while done < full_len {
            let Some(mut frag) = self.frags.pop_front() else { break };
            let take = (full_len - done).min(frag.len() as usize);
            let copy = take.min(buf.len() - copied);
            if let (Some(to), Some(from)) = (buf.get_mut(copied..copied + copy), frag.as_slice().get(..copy)) {
                self.kernels.copy(to, from);
            }
            (done, copied) = (done + take, copied + copy);
            if take < frag.len() as usize {
                frag.advance(take as u32);
                self.frags.push_front(frag);
            }
        }
    }

    /// Tells the shard that a whole entry was read.
    fn consumed(&mut self, what: &UdpRecv) {
        self.read += what.full_len as u64 + DATAGRAM_COST;
        self.cell.rcv_read.store(self.read, Ordering::Release);
        if self.cell.up_wait.notify() {
            self.cell.mark_dirty();
        }
    }

    /// As [`Self::try_recv_from`]; `Pending` after `cx`'s waker was registered.
    pub fn poll_recv_from(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<UdpRecv, HandleError>> {
        let mut found = None;
        let attempt = |h: &mut Self| h.try_recv_from(buf).map(|what| found.insert(what).len);
        let poll = poll_with(self, cx.waker(), |h| (&h.cell, &mut h.rd_wakers, true), attempt);
        poll.map(|done| done.and_then(|_| found.ok_or(HandleError::Gone)))
    }

    /// As [`Self::try_recv_from`], blocking.
    ///
    /// # Errors
    /// Never `WouldBlock`.
    pub fn recv_from(&mut self, park: &dyn Park, buf: &mut [u8]) -> Result<UdpRecv, HandleError> {
        block(park, |cx| self.poll_recv_from(cx, buf))
    }

    /// Begins to fix the peer, or with `None` to forget it; what was sent before goes where it was meant to go.
    /// [`Self::poll_connected`] has the answer.
    ///
    /// # Errors
    /// `WouldBlock` when the ring is full; why the socket is dead.
    pub fn start_connect(&mut self, peer: Option<SocketAddr>) -> Result<(), HandleError> {
        self.check()?;
        let ticket = self.ticket.wrapping_add(1);
        if self.down.room(1) == 0 || self.down.try_push(Down::Connect { peer, ticket }).is_err() {
            return Err(HandleError::WouldBlock);
        }
        (self.ticket, self.peer) = (ticket, peer);
        self.cell.mark_dirty();
        Ok(())
    }

    /// Ready with the answer to the last [`Self::start_connect`].
    pub fn poll_connected(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandleError>> {
        let answer = |h: &mut Self| {
            let word = h.cell.snd_limit.load(Ordering::Acquire);
            if (word >> 32) as u32 != h.ticket {
                let events = h.cell.events();
                return match events & event::GONE != 0 || h.down.is_closed() {
                    true => Err(HandleError::Gone),
                    false => Err(HandleError::WouldBlock),
                };
            }
            match Errno::ALL.iter().find(|e| e.number() == word as u32 as i32) {
                Some(&errno) => Err(HandleError::Socket(errno)),
                None => Ok(0),
            }
        };
        let poll = poll_with(self, cx.waker(), |h| (&h.cell, &mut h.wr_wakers, false), answer).map_ok(|_| ());
        if matches!(poll, Poll::Ready(Err(_))) {
            self.peer = None;
        }
        poll
    }

    /// Ready when the socket is bound, or with the reason why it is not.
    pub fn poll_bound(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandleError>> {
        let state = |h: &mut Self| {
            let events = h.cell.events();
            if events & event::ERROR != 0 {
                Err(HandleError::Socket(h.cell.errno()))
            } else if events & event::CONNECTED != 0 {
                Ok(0)
            } else if events & event::GONE != 0 || h.up.is_closed() {
                Err(HandleError::Gone)
            } else {
                Err(HandleError::WouldBlock)
            }
        };
        poll_with(self, cx.waker(), |h| (&h.cell, &mut h.rd_wakers, true), state).map_ok(|_| ())
    }

    /// Trains are returned whole, with their `gso_size` (UDP_GRO).
    pub fn set_gro(&mut self, on: bool) {
        self.gro = on;
    }
    /// The pending error, taken (SO_ERROR).
    pub fn take_error(&self) -> Option<Errno> {
        self.cell.take_soft_error()
    }
    /// This end, once the shard has it.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.cell.local()
    }
    /// The peer of the last [`Self::start_connect`].
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }
}

/// A `poll_*` verb in a loop.
fn block<T>(
    park: &dyn Park,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, HandleError>>,
) -> Result<T, HandleError> {
    let waker = park.waker();
    loop {
        match poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => park.park(),
        }
    }
}

impl Drop for RemoteUdp {
    fn drop(&mut self) {
        self.cell.raise(flag::BOTH_GONE);
    }
}

/// How a shard makes the socket of a handle.
pub(super) fn apply(o: &mut crate::udp::UdpOpts, with: &RemoteUdpOpts) {
    let or = |set: u32, default: u32| if set == 0 { default } else { set };
    o.rcvbuf_bytes = or(with.rcvbuf_bytes, o.rcvbuf_bytes);
    o.sndbuf_bytes = or(with.sndbuf_bytes, o.sndbuf_bytes);
    (o.broadcast, o.tos, o.ttl) = (with.broadcast, with.tos, with.ttl);
    (o.mtu_discover, o.mtu_discover6) = (with.mtu_discover, with.mtu_discover);
}
