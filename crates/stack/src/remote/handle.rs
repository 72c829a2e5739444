//! The application's side of a remote socket: `Send`, and never a lock.
//!
//! Copies happen where the caller is: [`WriteHalf::try_write`] copies into pages of the handle's own pool and hands over
//! references, [`ReadHalf::try_read`] copies out of fragments that the shard handed up. Three ways to wait, over the same
//! protocol: not at all (`try_*`: `WouldBlock`), as a task (`poll_*` with a [`Context`]), or blocking with a [`Park`] that
//! the host supplies. A handle splits into halves for two threads.
//!
//! Invariants: `written <= snd_limit`; after `WouldBlock` from a `poll_*` the waker is registered and will be called after
//! the condition changed. Dropping the writing half sends FIN after what was written; dropping both halves closes the
//! socket (as `close`: unread data means RST). A dropped shard shows as [`HandleError::Gone`].
//! Not here: addresses beyond the two ends, socket options after `connect`; a dead handle does not linger.

use alloc::sync::Arc;
use core::fmt;
use core::net::SocketAddr;
use core::task::{Context, Poll, Waker};

use linerate_arch::Kernels;
use linerate_base::Errno;
use linerate_skb::spsc::{Consumer, Producer};
use linerate_skb::{Frag, Page, PagePool, PoolConfig};

use super::cell::{SockCell, WakerTx, event, flag};
use crate::sync::Ordering;

/// Why a verb of a handle did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HandleError {
    /// Not now (EAGAIN).
    WouldBlock,
    /// The socket died; the errno says why.
    Socket(Errno),
    /// This direction was shut down (EPIPE).
    Shutdown,
    /// The shard is gone (ECONNABORTED).
    Gone,
}

impl HandleError {
    /// The Linux error number.
    pub const fn errno(self) -> Errno {
        match self {
            Self::WouldBlock => Errno::EAGAIN,
            Self::Socket(errno) => errno,
            Self::Shutdown => Errno::EPIPE,
            Self::Gone => Errno::ECONNABORTED,
        }
    }
}

impl fmt::Display for HandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "The stack is gone",
            other => other.errno().describe(),
        })
    }
}
impl core::error::Error for HandleError {}

/// How a thread blocks. The host supplies it; [`Park::waker`] must end or prevent the next [`Park::park`].
pub trait Park {
    /// Wakes this thread.
    fn waker(&self) -> Waker;
    /// Sleeps until woken; may return early.
    fn park(&self);
}

/// Tries, and when that would block makes sure that `waker` is called once it might not.
pub(super) fn poll_with<T>(
    half: &mut T,
    waker: &Waker,
    parts: fn(&mut T) -> (&Arc<SockCell>, &mut WakerTx, bool),
    mut attempt: impl FnMut(&mut T) -> Result<usize, HandleError>,
) -> Poll<Result<usize, HandleError>> {
    match attempt(half) {
        Err(HandleError::WouldBlock) => {}
        done => return Poll::Ready(done),
    }
    let (cell, wakers, is_read) = parts(half);
    let cell = cell.clone();
    let wait = if is_read { &cell.rd_wait } else { &cell.wr_wait };
    if !wakers.register(waker) {
        // The shard has not yet taken the wakers of several tasks before this one: let it, and come back.
        cell.mark_dirty();
        waker.wake_by_ref();
        return Poll::Pending;
    }
    wait.prepare();
    match attempt(half) {
        Err(HandleError::WouldBlock) => Poll::Pending,
        done => {
            wait.cancel();
            Poll::Ready(done)
        }
    }
}

/// The reading half.
pub struct ReadHalf {
    pub(super) cell: Arc<SockCell>,
    pub(super) up: Consumer<Frag>,
    pub(super) wakers: WakerTx,
    pub(super) kernels: Kernels,
    /// The fragment that was read in part.
    pub(super) current: Option<Frag>,
    /// Bytes consumed in all.
    pub(super) read: u64,
    pub(super) copied: u64,
}

impl ReadHalf {
    fn next_frag(&mut self) -> Option<Frag> {
        self.current.take().or_else(|| self.up.pop())
    }
    /// Tells the shard what was consumed.
    fn consumed(&mut self, bytes: usize) {
        self.read += bytes as u64;
        self.cell.rcv_read.store(self.read, Ordering::Release);
        if self.cell.up_wait.notify() {
            self.cell.mark_dirty();
        }
    }
    /// Nothing is in the ring: why?
    fn why_empty(&mut self) -> Result<usize, HandleError> {
        let events = self.cell.events();
        // The shard pushes before it sets a bit: what was pushed last is seen now.
        if !self.up.is_empty() {
            return Err(HandleError::WouldBlock);
        }
        if events & event::ERROR != 0 {
            Err(HandleError::Socket(self.cell.errno()))
        } else if events & event::EOF != 0 {
            Ok(0)
        } else if events & event::GONE != 0 || self.up.is_closed() {
            Err(HandleError::Gone)
        } else {
            Err(HandleError::WouldBlock)
        }
    }

    /// Copies up to `buf.len()` bytes out; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`, or why the connection died, after everything received before was read.
    pub fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, HandleError> {
        loop {
            let mut n = 0;
            while n < buf.len() {
                let Some(mut frag) = self.next_frag() else { break };
                let take = (buf.len() - n).min(frag.len() as usize);
                if let (Some(to), Some(from)) = (buf.get_mut(n..n + take), frag.as_slice().get(..take)) {
                    self.kernels.copy(to, from);
                }
                n += take;
                if take < frag.len() as usize {
                    frag.advance(take as u32);
                    self.current = Some(frag);
                }
            }
            if n > 0 {
                self.copied += n as u64;
                self.consumed(n);
                return Ok(n);
            }
            if buf.is_empty() {
                return Ok(0);
            }
            match self.why_empty() {
                Err(HandleError::WouldBlock) if !self.up.is_empty() => {}
                done => return done,
            }
        }
    }

    /// Takes fragments of up to `max_bytes` together (at least one, if there is one) without copying; they may be kept, and
    /// dropped on any thread. `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// As [`Self::try_read`].
    pub fn try_read_frags(&mut self, max_bytes: usize, out: &mut impl FnMut(Frag)) -> Result<usize, HandleError> {
        loop {
            let mut n = 0;
            while n < max_bytes.max(1) {
                let Some(mut frag) = self.next_frag() else { break };
                let room = max_bytes.max(1) - n;
                if frag.len() as usize > room {
                    self.current = Some(frag.split_off(room as u32));
                }
                n += frag.len() as usize;
                out(frag);
            }
            if n > 0 {
                self.consumed(n);
                return Ok(n);
            }
            match self.why_empty() {
                Err(HandleError::WouldBlock) if !self.up.is_empty() => {}
                done => return done,
            }
        }
    }

    /// As [`Self::try_read`]; `Pending` after `cx`'s waker was registered.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<usize, HandleError>> {
        poll_with(self, cx.waker(), |h| (&h.cell, &mut h.wakers, true), |h| h.try_read(buf))
    }

    /// As [`Self::try_read_frags`]; `Pending` after `cx`'s waker was registered.
    pub fn poll_read_frags(
        &mut self,
        cx: &mut Context<'_>,
        max_bytes: usize,
        out: &mut impl FnMut(Frag),
    ) -> Poll<Result<usize, HandleError>> {
        poll_with(self, cx.waker(), |h| (&h.cell, &mut h.wakers, true), |h| h.try_read_frags(max_bytes, out))
    }

    /// As [`Self::try_read`], blocking.
    ///
    /// # Errors
    /// Never `WouldBlock`.
    pub fn read(&mut self, park: &dyn Park, buf: &mut [u8]) -> Result<usize, HandleError> {
        let waker = park.waker();
        loop {
            match self.poll_read(&mut Context::from_waker(&waker), buf) {
                Poll::Ready(done) => return done,
                Poll::Pending => park.park(),
            }
        }
    }

    /// Ready when the handshake is done, or with the reason why it failed.
    pub fn poll_connected(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandleError>> {
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
        poll_with(self, cx.waker(), |h| (&h.cell, &mut h.wakers, true), state).map_ok(|_| ())
    }

    /// This end, once the shard chose it.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.cell.local()
    }

    /// Bytes that were really copied.
    pub fn copied_bytes(&self) -> u64 {
        self.copied
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        self.cell.raise(flag::RD_GONE);
    }
}

/// The writing half.
pub struct WriteHalf {
    pub(super) cell: Arc<SockCell>,
    pub(super) down: Producer<Frag>,
    pub(super) wakers: WakerTx,
    pub(super) kernels: Kernels,
    pub(super) pool_cfg: PoolConfig,
    /// Made with the first write: an idle socket holds no pages.
    pub(super) pool: Option<PagePool>,
    pub(super) page: Option<Page>,
    /// Bytes written in all.
    pub(super) written: u64,
    /// The last write found no page. Pages come home from wherever they were read, and nobody tells the writer.
    pub(super) starved: bool,
    pub(super) shut: bool,
    pub(super) copied: u64,
}

impl WriteHalf {
    /// Bytes that the shard takes now.
    pub fn snd_free(&self) -> usize {
        usize::try_from(self.cell.snd_limit.load(Ordering::Acquire).saturating_sub(self.written)).unwrap_or(usize::MAX)
    }
    fn check(&self) -> Result<(), HandleError> {
        let events = self.cell.events();
        if self.shut {
            Err(HandleError::Shutdown)
        } else if events & (event::ERROR | event::WR_DEAD) != 0 {
            Err(HandleError::Socket(self.cell.errno()))
        } else if events & event::GONE != 0 || self.down.is_closed() {
            Err(HandleError::Gone)
        } else {
            Ok(())
        }
    }
    /// The page to append to, with room.
    fn page(&mut self) -> Option<&mut Page> {
        let pool = self.pool.get_or_insert_with(|| PagePool::new(self.pool_cfg));
        if let Some(full) = self.page.take_if(|p| p.room() == 0 && !p.reset_if_sole()) {
            pool.recycle_page(full);
        }
        if self.page.is_none() {
            self.page = pool.alloc().or_else(|| {
                pool.reclaim();
                pool.alloc()
            });
        }
        self.page.as_mut()
    }

    /// Copies bytes into the handle's own pages and hands them to the shard; may take fewer than given.
    ///
    /// # Errors
    /// `WouldBlock` when the send buffer, the ring or the pool is full; else why nothing can be written any more.
    pub fn try_write(&mut self, data: &[u8]) -> Result<usize, HandleError> {
        self.check()?;
        if let Some(pool) = &mut self.pool {
            pool.reclaim();
        }
        let wanted = data.len().min(self.snd_free());
        let kernels = self.kernels;
        self.starved = false;
        let mut rest = data.get(..wanted).unwrap_or(data);
        while !rest.is_empty() && self.down.room(1) > 0 {
            let Some(frag) = self.page().and_then(|p| p.append(&kernels, rest)) else {
                self.starved = true;
                break;
            };
            rest = rest.get(frag.len() as usize..).unwrap_or(&[]);
            let pushed = self.down.try_push(frag);
            debug_assert!(pushed.is_ok(), "there was room");
        }
        let n = wanted - rest.len();
        self.copied += n as u64;
        self.wrote(n, data.is_empty())
    }

    fn wrote(&mut self, n: usize, nothing_asked: bool) -> Result<usize, HandleError> {
        if n == 0 && !nothing_asked {
            return Err(HandleError::WouldBlock);
        }
        if n > 0 {
            self.written += n as u64;
            self.cell.mark_dirty();
        }
        Ok(n)
    }

    /// Hands over a fragment without copying; its page is freed wherever its last reference ends.
    ///
    /// # Errors
    /// Gives the fragment back: as [`Self::try_write`]. A fragment longer than [`Self::snd_free`] waits until it fits, or
    /// is split by the caller.
    pub fn try_write_frag(&mut self, frag: Frag) -> Result<(), (Frag, HandleError)> {
        if let Err(e) = self.check() {
            return Err((frag, e));
        }
        let len = frag.len() as usize;
        if len > self.snd_free() {
            return Err((frag, HandleError::WouldBlock));
        }
        if let Err(frag) = self.down.try_push(frag) {
            return Err((frag, HandleError::WouldBlock));
        }
        let done = self.wrote(len, true);
        debug_assert!(done.is_ok());
        Ok(())
    }

    /// Hands over as much of a fragment as there is room for, without copying, and returns how many bytes. What is left
    /// stays in `frag`.
    ///
    /// # Errors
    /// As [`Self::try_write`].
    pub fn try_write_frag_part(&mut self, frag: &mut Option<Frag>) -> Result<usize, HandleError> {
        self.check()?;
        let room = if self.down.room(1) > 0 { self.snd_free() } else { 0 };
        let Some(mut piece) = frag.take() else { return Ok(0) };
        let n = room.min(piece.len() as usize);
        if n < piece.len() as usize {
            if n == 0 {
                *frag = Some(piece);
                return Err(HandleError::WouldBlock);
            }
            *frag = Some(piece.split_off(n as u32));
        }
        if n > 0 {
            let pushed = self.down.try_push(piece);
            debug_assert!(pushed.is_ok(), "there was room");
        }
        self.wrote(n, true)
    }

    /// As [`Self::try_write_frag_part`]; `Pending` after `cx`'s waker was registered.
    pub fn poll_write_frag(
        &mut self,
        cx: &mut Context<'_>,
        frag: &mut Option<Frag>,
    ) -> Poll<Result<usize, HandleError>> {
        poll_with(self, cx.waker(), |h| (&h.cell, &mut h.wakers, false), |h| h.try_write_frag_part(frag))
    }

    /// As [`Self::try_write`]; `Pending` after `cx`'s waker was registered. A writer whose pages are all out polls for
    /// them: its pool is smaller than what readers hold, or leases are kept for long.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize, HandleError>> {
        let poll = poll_with(self, cx.waker(), |h| (&h.cell, &mut h.wakers, false), |h| h.try_write(data));
        if poll.is_pending() && self.starved {
            cx.waker().wake_by_ref();
        }
        poll
    }

    /// As [`Self::try_write`], blocking; writes at least one byte.
    ///
    /// # Errors
    /// Never `WouldBlock`.
    pub fn write(&mut self, park: &dyn Park, data: &[u8]) -> Result<usize, HandleError> {
        let waker = park.waker();
        loop {
            match self.poll_write(&mut Context::from_waker(&waker), data) {
                Poll::Ready(done) => return done,
                Poll::Pending => park.park(),
            }
        }
    }

    /// Writes all of `data`, blocking.
    ///
    /// # Errors
    /// Never `WouldBlock`; what was taken before the error is lost to the caller's count.
    pub fn write_all(&mut self, park: &dyn Park, mut data: &[u8]) -> Result<(), HandleError> {
        while !data.is_empty() {
            let n = self.write(park, data)?;
            data = data.get(n..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Ends this direction: FIN follows what was written. The reading half goes on.
    pub fn shutdown(&mut self) {
        if !self.shut {
            self.shut = true;
            self.cell.raise(flag::SHUT_WR);
        }
    }

    /// Bytes that were really copied.
    pub fn copied_bytes(&self) -> u64 {
        self.copied
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        self.cell.raise(flag::WR_GONE);
    }
}

/// A remote socket: both halves and the addresses.
pub struct SockHandle {
    /// The reading half.
    pub read: ReadHalf,
    /// The writing half.
    pub write: WriteHalf,
    pub(super) peer: SocketAddr,
}

impl SockHandle {
    /// The other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
    /// This end, once the shard chose it. On an any-ip device this is the destination that the peer meant.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.read.cell.local()
    }
    /// As [`ReadHalf::try_read`].
    ///
    /// # Errors
    /// As there.
    pub fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, HandleError> {
        self.read.try_read(buf)
    }
    /// As [`WriteHalf::try_write`].
    ///
    /// # Errors
    /// As there.
    pub fn try_write(&mut self, data: &[u8]) -> Result<usize, HandleError> {
        self.write.try_write(data)
    }
    /// As [`WriteHalf::shutdown`].
    pub fn shutdown(&mut self) {
        self.write.shutdown();
    }
    /// Resets the connection; what is queued either way is lost.
    pub fn abort(self) {
        self.read.cell.raise(flag::ABORT);
    }
    /// Blocks until the handshake is done.
    ///
    /// # Errors
    /// Why it failed.
    pub fn wait_connected(&mut self, park: &dyn Park) -> Result<(), HandleError> {
        let waker = park.waker();
        loop {
            match self.read.poll_connected(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => return done,
                Poll::Pending => park.park(),
            }
        }
    }
    /// Two halves, for two threads or tasks.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }
}

/// A listening socket of a shard, held elsewhere. Dropping it closes it.
pub struct RemoteListener {
    pub(super) cell: Arc<SockCell>,
    pub(super) incoming: Consumer<SockHandle>,
    pub(super) wakers: WakerTx,
}

impl RemoteListener {
    /// The next connection.
    ///
    /// # Errors
    /// `WouldBlock`, or why the socket does not listen.
    pub fn try_accept(&mut self) -> Result<SockHandle, HandleError> {
        if let Some(handle) = self.incoming.pop() {
            if self.cell.up_wait.notify() {
                self.cell.mark_dirty();
            }
            return Ok(handle);
        }
        let events = self.cell.events();
        Err(if events & event::ERROR != 0 {
            HandleError::Socket(self.cell.errno())
        } else if events & event::GONE != 0 || self.incoming.is_closed() {
            HandleError::Gone
        } else {
            HandleError::WouldBlock
        })
    }
    /// As [`Self::try_accept`]; `Pending` after `cx`'s waker was registered.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<SockHandle, HandleError>> {
        let mut found = None;
        let attempt = |h: &mut Self| h.try_accept().map(|handle| usize::from(found.replace(handle).is_none()));
        let poll = poll_with(self, cx.waker(), |h| (&h.cell, &mut h.wakers, true), attempt);
        poll.map(|done| done.and_then(|_| found.ok_or(HandleError::Gone)))
    }
    /// Blocks for the next connection.
    ///
    /// # Errors
    /// Why the socket does not listen.
    pub fn accept(&mut self, park: &dyn Park) -> Result<SockHandle, HandleError> {
        let waker = park.waker();
        loop {
            match self.poll_accept(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => return done,
                Poll::Pending => park.park(),
            }
        }
    }
    /// Where it listens, once the shard has it.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.cell.local()
    }
}

impl Drop for RemoteListener {
    fn drop(&mut self) {
        self.cell.raise(flag::BOTH_GONE);
    }
}
