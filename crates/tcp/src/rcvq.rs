//! The receive queue: data in order, ready for the application (RFC 9293 section 3.10.7.4, seventh step).
//!
//! Fragments stay in the pages that the device filled: queueing moves a pointer, or moves fragments into the tail's skb
//! (coalescing) when they fit. Memory is charged by truesize, never less than the bytes and a descriptor. When the buffer
//! is over its limit, in this order: tiny skbs are copied together into dense pages (*collapse*), the out-of-order queue
//! is pruned from its far end, and the new segment is refused. So neither one-byte segments nor a peer that ignores the
//! window can hold more than `rcvbuf` and one super-packet. Every skb ends freed as consumed or counted as dropped, and
//! `rmem_alloc` falls by what it rose.
//!
//! Reading copies out with the shard's kernels and gives descriptors and pages home on the owner's side;
//! [`Conn::read_frags`] hands the pages themselves to a reader elsewhere and copies nothing but bytes that travelled in
//! the descriptor's head. Out-of-order segments are [`ofo`]'s.

mod collapse;
mod ofo;

use linerate_base::{DropReason, Seq};
use linerate_skb::{Frag, SKB_TRUESIZE, Skb};
use linerate_wire::TcpFlags;

use crate::conn::{Conn, RecvError, ev};
use crate::cx::TcpCx;
use crate::input::{DataFacts, Seg};
use crate::mem::MemAcct;
use crate::rx::{RxSeg, ack};
use crate::state::State;

pub(crate) use ofo::Ofo;

type Taken = Result<(), (Skb, DropReason)>;

/// What an skb is charged: what its device says, but at least its bytes and a descriptor.
pub(crate) fn charge_of(skb: &Skb) -> u32 {
    skb.truesize.max(skb.len().saturating_add(SKB_TRUESIZE))
}

/// Puts the payload of `from` behind that of `to` when it directly follows and fits. What the descriptor cost is saved:
/// returns the bytes to give back; `from` is empty then.
fn try_coalesce(to: &mut RxSeg, from: &mut RxSeg) -> Option<u32> {
    if to.fin || to.end() != from.seq {
        return None;
    }
    if from.skb.head_len() > 0 {
        let fits = to.skb.nr_frags() == 0 && from.skb.nr_frags() == 0;
        if !fits || !to.skb.put_head_from(from.skb.head()) {
            return None;
        }
        from.skb.trim(0);
        to.fin = from.fin;
        // Bytes that moved into a descriptor's spare room cost nothing more.
        return Some(from.skb.truesize);
    }
    if !to.skb.append_frags(&mut from.skb) {
        return None;
    }
    to.fin = from.fin;
    let saved = SKB_TRUESIZE.min(from.skb.truesize);
    to.skb.truesize = to.skb.truesize.saturating_add(from.skb.truesize - saved);
    Some(saved)
}

impl Conn {
    /// Gives memory back to the buffer and to the stack.
    #[inline]
    pub(crate) fn uncharge_rx(&mut self, cx: &mut TcpCx<'_>, bytes: u32) {
        debug_assert!(self.rx.rmem_alloc >= bytes, "receive memory given back twice");
        self.rx.rmem_alloc = self.rx.rmem_alloc.saturating_sub(bytes);
        cx.mem.uncharge(self.tx.group, bytes);
    }

    /// Frees a queued skb as consumed.
    #[inline]
    fn free_rx(&mut self, cx: &mut TcpCx<'_>, skb: Skb) {
        self.uncharge_rx(cx, skb.truesize);
        cx.skbs.free(skb, cx.pool);
    }

    /// Frees a queued skb as dropped.
    #[track_caller]
    fn drop_rx(&mut self, cx: &mut TcpCx<'_>, skb: Skb, reason: DropReason) {
        cx.drops.count(reason);
        self.uncharge_rx(cx, skb.truesize);
        cx.skbs.drop_skb(skb, cx.pool, reason);
    }

    /// The text of an acceptable segment: queue it, keep it for later, or refuse it (Linux `tcp_data_queue`).
    pub(crate) fn data_queue(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, mut skb: Skb) -> Taken {
        if seg.seq == seg.end_seq {
            cx.skbs.free(skb, cx.pool);
            return Ok(());
        }
        self.ecn_accept_cwr(seg);
        self.rx.dsack = None;
        let window = self.receive_window();
        if seg.end_seq.le(self.rx.nxt) {
            // A retransmission of what we have: our ACK was lost.
            cx.mib.delayed_ack_lost += 1;
            self.dsack_set(cx, seg.seq, seg.end_seq);
            return self.refuse(skb, DropReason::TcpOldData);
        }
        if seg.seq != self.rx.nxt && seg.seq.ge(self.rx.nxt + window) {
            return self.refuse(skb, DropReason::TcpOverwindow);
        }
        if seg.seq.gt(self.rx.nxt) {
            return self.queue_ofo(cx, seg, skb);
        }
        if seg.seq.lt(self.rx.nxt) {
            self.dsack_set(cx, seg.seq, self.rx.nxt);
        }
        if window == 0 && !(seg.len == 0 && seg.flags.contains(TcpFlags::FIN)) {
            cx.mib.zero_window_drop += 1;
            return self.refuse(skb, DropReason::TcpZeroWindow);
        }
        let overlap = (self.rx.nxt - seg.seq).min(seg.len);
        let truesize = charge_of(&skb);
        skb.pull(overlap);
        self.queue_in_order(cx, seg, skb, truesize)
    }

    /// An answer without delay, and the skb back to the caller.
    fn refuse(&mut self, skb: Skb, reason: DropReason) -> Taken {
        self.enter_quickack();
        self.rx.ack.pending |= ack::SCHED;
        Err((skb, reason))
    }

    fn queue_in_order(&mut self, cx: &mut TcpCx<'_>, seg: &Seg, skb: Skb, truesize: u32) -> Taken {
        let has_data = !skb.is_empty();
        if !has_data {
            cx.skbs.free(skb, cx.pool);
        } else {
            if !self.rmem_schedule(cx, seg.seq, truesize) {
                self.rx.ack.pending |= ack::SCHED | ack::NOMEM | ack::NOW;
                self.notify(ev::READABLE);
                if !self.rx.queue.is_empty() {
                    cx.mib.rcvq_drop += 1;
                    return Err((skb, self.no_room()));
                }
                // Nothing is queued: without this segment the connection could never go on.
                cx.mem.force(self.tx.group, truesize);
            }
            let facts = DataFacts::of(seg, &skb, truesize);
            self.queue_charged(cx, self.rx.nxt, skb, truesize);
            self.on_data_received(cx, facts);
        }
        if seg.flags.contains(TcpFlags::FIN) {
            self.rx.nxt += 1;
            self.on_fin(cx);
        }
        if self.rx.ofo.is_some() {
            self.drain_ofo(cx);
            if self.rx.ofo_is_empty() {
                // RFC 5681 section 4.2: a filled gap is acknowledged at once.
                self.rx.ack.pending |= ack::NOW;
            }
        }
        Ok(())
    }

    /// Why there was no memory: the socket's limit or the stack's.
    fn no_room(&self) -> DropReason {
        if self.rx.rmem_alloc > self.rx.rcvbuf { DropReason::SocketRcvbuff } else { DropReason::ProtoMem }
    }

    /// Appends an skb whose `truesize` was charged to the stack, beginning at `seq == nxt`.
    #[inline]
    pub(crate) fn queue_charged(&mut self, cx: &mut TcpCx<'_>, seq: Seq, mut skb: Skb, truesize: u32) {
        debug_assert!(seq == self.rx.nxt && !skb.is_empty());
        let len = skb.len();
        skb.truesize = truesize;
        self.rx.rmem_alloc = self.rx.rmem_alloc.saturating_add(truesize);
        if self.rx.queue.is_empty() && self.rx.queue.capacity() > 0 {
            self.rx.queue.push_back(RxSeg { skb, seq, fin: false });
        } else {
            self.append_in_order(cx, RxSeg { skb, seq, fin: false });
        }
        self.rx.nxt += len;
        self.rx.bytes_received += u64::from(len);
        if self.rx.nxt - self.rx.copied_seq >= self.rx.rcvlowat {
            self.notify(ev::READABLE);
        }
    }

    /// The tail of the queue takes over the fragments, or a new entry is made.
    fn append_in_order(&mut self, cx: &mut TcpCx<'_>, mut seg: RxSeg) {
        if let Some(tail) = self.rx.queue.back_mut()
            && let Some(saved) = try_coalesce(tail, &mut seg)
        {
            cx.mib.rcv_coalesce += 1;
            self.uncharge_rx(cx, saved);
            cx.skbs.free(seg.skb, cx.pool);
            return;
        }
        if self.rx.queue.capacity() == 0 {
            self.rx.queue = cx.parts.ring();
        }
        self.rx.queue.push_back(seg);
    }

    /// Finds room for `truesize` bytes and charges the stack; `false`: there is none (Linux `tcp_try_rmem_schedule`).
    fn rmem_schedule(&mut self, cx: &mut TcpCx<'_>, seq: Seq, truesize: u32) -> bool {
        if self.can_ingest() && self.charge_rx(cx, truesize) {
            return true;
        }
        if !self.prune(cx, seq) {
            return false;
        }
        while !self.charge_rx(cx, truesize) {
            if !self.prune_ofo(cx, seq) {
                return false;
            }
        }
        true
    }

    /// Charges the accounts, as far as this socket's share goes.
    fn charge_rx(&self, cx: &mut TcpCx<'_>, truesize: u32) -> bool {
        let group = self.tx.group;
        cx.mem.grants(group, self.mem_bytes(), cx.cfg.rmem_bytes[0]) && cx.mem.charge(group, truesize)
    }

    /// Truesize of all that this connection holds, both ways.
    pub fn mem_bytes(&self) -> u32 {
        self.rx.rmem_alloc.saturating_add(self.tx.wmem_queued)
    }

    /// The stack is short of memory: whatever this connection can do without goes, and its window falls back to a few
    /// segments. What was announced stays (no window shrinks, RFC 9293 section 3.8.6). True when there was something.
    pub fn relieve(&mut self, cx: &mut TcpCx<'_>) -> bool {
        self.release_idle_memory();
        if self.rx.rmem_alloc == 0 || !cx.mem.under_pressure(self.tx.group) {
            return false;
        }
        let before = self.rx.rmem_alloc;
        self.fall_back_under_pressure(cx);
        self.collapse_ofo(cx);
        self.collapse_queue(cx);
        if !cx.mem.grants(self.tx.group, self.mem_bytes(), cx.cfg.rmem_bytes[0]) {
            self.shed_ofo(cx);
        }
        self.rx.rmem_alloc < before
    }

    fn can_ingest(&self) -> bool {
        self.rx.rmem_alloc <= self.rx.rcvbuf
    }

    /// Makes room, gently first (Linux `tcp_prune_queue`).
    fn prune(&mut self, cx: &mut TcpCx<'_>, seq: Seq) -> bool {
        if self.rx.rmem_alloc == 0 {
            return false;
        }
        cx.mib.prune_called += 1;
        if !self.can_ingest() {
            self.clamp_window(cx);
        }
        if self.can_ingest() {
            return true;
        }
        self.collapse_ofo(cx);
        self.collapse_queue(cx);
        if self.can_ingest() {
            return true;
        }
        self.prune_ofo(cx, seq);
        if self.can_ingest() {
            return true;
        }
        cx.mib.rcv_pruned += 1;
        false
    }

    /// Bytes that can be read now.
    pub fn inq_bytes(&self) -> u32 {
        (self.rx.nxt - self.rx.copied_seq).saturating_sub(u32::from(self.rx.shut.done))
    }

    /// A read would not block: data up to SO_RCVLOWAT, end of stream, or an error.
    pub fn is_readable(&self) -> bool {
        let low = self.rx.rcvlowat.min(self.rx.rcvbuf / 2).max(1);
        self.inq_bytes() >= low || self.rx.shut.rcv || self.error.is_some() || self.state == State::Closed
    }

    /// Copies up to `buf.len()` bytes out. `Ok(0)` with room in `buf` is the end of the stream. With `peek` nothing moves.
    ///
    /// # Errors
    /// [`RecvError::WouldBlock`] when nothing is queued; the connection's error, once; `NotConnected` after it died.
    #[inline]
    pub fn read(&mut self, cx: &mut TcpCx<'_>, buf: &mut [u8], peek: bool) -> Result<usize, RecvError> {
        if !peek && let Some(n) = self.read_small(cx.now, cx.mem, cx.skbs, buf) {
            return Ok(n);
        }
        self.read_general(cx, buf, peek)
    }

    /// The rest of [`Self::read`].
    #[inline(never)]
    fn read_general(&mut self, cx: &mut TcpCx<'_>, buf: &mut [u8], peek: bool) -> Result<usize, RecvError> {
        if self.rx.queue.is_empty() {
            return self.read_nothing();
        }
        if peek {
            return Ok(self.peek(cx, buf));
        }
        let mut done = 0;
        while done < buf.len() {
            let Some(front) = self.rx.queue.front_mut() else { break };
            let room = buf.get_mut(done..).unwrap_or_default();
            let n = copy_out(cx, &front.skb, room);
            if n as u32 == front.skb.len() {
                if let Some(seg) = self.rx.queue.pop_front() {
                    self.free_rx(cx, seg.skb);
                }
            } else {
                front.skb.pull(n as u32);
                front.seq += n as u32;
            }
            done += n;
            self.rx.copied_seq += n as u32;
            self.rcv_space_adjust(cx);
        }
        self.after_read(cx.mem, done);
        Ok(done)
    }

    fn peek(&self, cx: &TcpCx<'_>, buf: &mut [u8]) -> usize {
        let mut done = 0;
        for seg in &self.rx.queue {
            match buf.get_mut(done..) {
                Some(room) if !room.is_empty() => done += copy_out(cx, &seg.skb, room),
                _ => break,
            }
        }
        done
    }

    /// What a read finds in an empty queue.
    fn read_nothing(&mut self) -> Result<usize, RecvError> {
        if self.rx.shut.done {
            return Ok(0);
        }
        if let Some(e) = self.error.take() {
            return Err(RecvError::Socket(e));
        }
        if self.rx.shut.rcv {
            return Ok(0);
        }
        Err(if self.state == State::Closed { RecvError::NotConnected } else { RecvError::WouldBlock })
    }

    #[inline]
    pub(crate) fn after_read(&mut self, mem: &MemAcct, copied: usize) {
        if copied > 0 {
            self.cleanup_rbuf(mem, copied);
        }
        if self.rx.queue.is_empty() && self.rx.queue.capacity() > 64 {
            // A burst is over: an idle connection keeps no large ring.
            self.rx.queue.shrink_to(16);
        }
    }

    /// Hands out up to `max_bytes` as page references, oldest first, and returns the bytes. Memory is uncharged here: the
    /// reader's own ring bounds what it holds.
    ///
    /// # Errors
    /// As [`Conn::read`].
    pub fn read_frags(
        &mut self,
        cx: &mut TcpCx<'_>,
        max_bytes: usize,
        out: &mut impl FnMut(Frag),
    ) -> Result<usize, RecvError> {
        if self.rx.queue.is_empty() {
            return self.read_nothing();
        }
        let mut done = 0;
        while done < max_bytes {
            let Some(front) = self.rx.queue.front_mut() else { break };
            let n = hand_out(cx, &mut front.skb, max_bytes - done, out);
            front.seq += n as u32;
            let is_empty = front.skb.is_empty();
            if is_empty && let Some(seg) = self.rx.queue.pop_front() {
                self.free_rx(cx, seg.skb);
            }
            done += n;
            self.rx.copied_seq += n as u32;
            self.rcv_space_adjust(cx);
            if n == 0 && !is_empty {
                // No page for bytes of a head: later.
                break;
            }
        }
        self.after_read(cx.mem, done);
        Ok(done)
    }

    /// Throws away everything received and not read.
    pub(crate) fn purge_rx(&mut self, cx: &mut TcpCx<'_>, reason: DropReason) {
        while let Some(seg) = self.rx.queue.pop_front() {
            self.rx.copied_seq = seg.end();
            self.drop_rx(cx, seg.skb, reason);
        }
        self.purge_ofo(cx, Some(reason));
        cx.parts.keep_ring(core::mem::take(&mut self.rx.queue));
        debug_assert_eq!(self.rx.rmem_alloc, 0, "a purged receiver holds no memory");
    }
}

/// Copies the skb's bytes into `room` with the shard's kernels; returns how many fitted.
fn copy_out(cx: &TcpCx<'_>, skb: &Skb, room: &mut [u8]) -> usize {
    if let ([only], 0) = (skb.frags(), skb.head_len()) {
        // One piece, as of every small message: no walk.
        let from = only.as_slice();
        let n = from.len().min(room.len());
        if let (Some(to), Some(from)) = (room.get_mut(..n), from.get(..n)) {
            cx.kernels.copy(to, from);
        }
        return n;
    }
    let mut done = 0;
    for slice in skb.slices() {
        let n = slice.len().min(room.len() - done);
        if let (Some(to), Some(from)) = (room.get_mut(done..done + n), slice.get(..n)) {
            cx.kernels.copy(to, from);
        }
        done += n;
        if done == room.len() {
            break;
        }
    }
    done
}

/// Moves up to `max` bytes of the skb out as fragments; bytes of the head are copied into a page first.
fn hand_out(cx: &mut TcpCx<'_>, skb: &mut Skb, max: usize, out: &mut impl FnMut(Frag)) -> usize {
    let mut done = 0;
    while done < max {
        let head = skb.head_len();
        if head > 0 {
            let want = head.min(max - done);
            let Some(frag) = skb.head().get(..want).and_then(|bytes| collapse::append_to_page(cx, bytes)) else {
                break;
            };
            let n = frag.len();
            skb.pull(n);
            done += n as usize;
            out(frag);
            continue;
        }
        let room = (max - done).min(u32::MAX as usize) as u32;
        match skb.frags().first() {
            None => break,
            Some(f) if f.len() <= room => {
                let Some(f) = skb.pop_front_frag() else { break };
                done += f.len() as usize;
                out(f);
            }
            Some(f) => {
                let part = f.slice(0, room);
                skb.pull(room);
                done += room as usize;
                out(part);
            }
        }
    }
    done
}
