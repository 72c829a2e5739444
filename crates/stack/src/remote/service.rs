//! The shard serves a remote socket: empties its rings, fills them, tells and wakes.
//!
//! Order within one service, and why: what was written comes before what was asked for (FIN, close), the rings come before
//! the events that speak about them (EOF after the last byte), and wakers come last. A service that has nothing to do
//! costs a few loads. It never loops on an application: each ring is taken or filled at most once around.

use alloc::sync::Arc;

use linerate_base::Errno;
use linerate_skb::Frag;
use linerate_tcp::{How, RecvError, SendError, SendFlags, State};

use super::cell::{UP_BYTES, event, flag};
use super::wake::NIL;
use super::{ListenStream, Slot, Stream};
use crate::shard::Shard;
use crate::sock::SockId;
use crate::sync::Ordering;
use crate::tcp::Sock;

/// Bytes read from a connection before they are put into the ring.
const MOVE_BYTES: usize = 64 << 10;

impl Shard {
    /// The start of a turn: commands, marked cells, slots to free.
    pub(crate) fn remote_begin(&mut self) {
        let Some(shared) = &self.remotes.shared else { return };
        shared.asleep.cancel();
        let mut at = shared.dirty.take_all();
        if shared.commands.load(Ordering::Acquire) != 0 {
            shared.commands.swap(0, Ordering::AcqRel);
            self.run_commands();
        }
        while at != NIL {
            let index = at;
            let Some(cell) = self.remotes.slots.get_by_index(index).and_then(Slot::cell) else {
                debug_assert!(false, "a marked cell is not known");
                break;
            };
            at = cell.link.take();
            self.service(index);
        }
        self.bury();
    }

    /// After the output pass: sockets that something happened to. `true` when there is something to transmit again.
    pub(crate) fn remote_end(&mut self) -> bool {
        if self.tcp.remote_dirty.is_empty() && self.udp.remote_dirty.is_empty() {
            return !self.tcp.dirty.is_empty();
        }
        let mut list = core::mem::take(&mut self.tcp.remote_dirty);
        list.append(&mut self.udp.remote_dirty);
        for index in list.drain(..) {
            self.service(index);
        }
        // What a service posted meanwhile waits for the next turn.
        list.append(&mut self.tcp.remote_dirty);
        self.tcp.remote_dirty = list;
        !self.tcp.dirty.is_empty()
    }

    /// Frees slots whose application let its last reference go.
    fn bury(&mut self) {
        let mut zombies = core::mem::take(&mut self.remotes.zombies);
        zombies.retain(|&index| {
            let Some(cell) = self.remotes.slots.get_by_index_mut(index).and_then(Slot::cell_mut) else { return false };
            // The last mark may have come after this turn took the stack: then the number is still in it.
            let free = Arc::get_mut(cell).is_some_and(|cell| !cell.link.is_queued());
            if free && let Some(key) = self.remotes.slots.key_of(index) {
                self.remotes.slots.remove(key);
            }
            !free
        });
        // A listener that goes may let handles go that nobody accepted; their marks come with the next turn.
        zombies.append(&mut self.remotes.zombies);
        self.remotes.zombies = zombies;
    }

    /// Serves one remote socket.
    pub(crate) fn service(&mut self, index: u32) {
        let Some(place) = self.remotes.slots.get_by_index_mut(index) else { return };
        let mut slot = core::mem::replace(place, Slot::Busy);
        let was_dead = slot.is_dead();
        match &mut slot {
            Slot::Busy => debug_assert!(false, "a slot is served within its own service"),
            Slot::Stream(s) => self.service_stream(s),
            Slot::Listener(l) => self.service_listener(l),
            Slot::Udp(u) => self.service_udp(u),
        }
        // A dead one may be marked once more before it is buried.
        if slot.is_dead() && !was_dead {
            self.remotes.zombies.push(index);
        }
        if let Some(place) = self.remotes.slots.get_by_index_mut(index) {
            *place = slot;
        }
    }

    fn service_stream(&mut self, s: &mut Stream) {
        s.rd_wakers.refresh();
        s.wr_wakers.refresh();
        let flags = s.cell.flags.load(Ordering::Acquire);
        let gone = flags & flag::BOTH_GONE == flag::BOTH_GONE;
        if flags & flag::ABORT != 0
            && let Some(id) = s.sock.take()
        {
            let _ = self.abort(id);
            s.cell.post(event::EOF);
        }
        if let Some(id) = s.sock {
            let drained = self.drain_down(s, id);
            let told = self.fill_up(s, id, flags) | self.tell_state(s, id);
            self.obey(s, id, flags);
            self.grant(s, id, drained);
            if told && s.cell.rd_wait.notify() {
                s.rd_wakers.wake();
            }
        } else {
            // A connection that never came to be, or was aborted: whoever waits learns why.
            if s.cell.rd_wait.notify() {
                s.rd_wakers.wake();
            }
            if s.cell.wr_wait.notify() {
                s.wr_wakers.wake();
            }
        }
        if gone && s.sock.is_none() {
            s.dead = true;
        }
    }

    /// Gives what was written to the connection. True when the ring has more room than before.
    fn drain_down(&mut self, s: &mut Stream, id: SockId) -> bool {
        let mut any = false;
        while let Some(frag) = s.held.take().or_else(|| s.down.pop()) {
            let len = u64::from(frag.len());
            match self.write_frag(id, frag, SendFlags::default()) {
                Ok(()) => s.taken += len,
                Err((frag, SendError::WouldBlock)) => {
                    s.held = Some(frag);
                    break;
                }
                Err((_, e)) => {
                    // Nobody will take it any more: it is dropped, and the writer learns why.
                    if let SendError::Socket(e) = e {
                        s.cell.post_error(e.errno());
                    } else if s.cell.flags.load(Ordering::Acquire) & flag::WR_GONE == 0 {
                        s.cell.post_error(e.errno());
                    }
                }
            }
            any = true;
        }
        any
    }

    /// Hands up what was received. True when there is news for the reader.
    fn fill_up(&mut self, s: &mut Stream, id: SockId, flags: u32) -> bool {
        if flags & flag::RD_GONE != 0 {
            return false;
        }
        let mut news = false;
        loop {
            news |= self.fill_once(s, id);
            let in_flight = |s: &Stream| s.moved - s.cell.rcv_read.load(Ordering::Acquire);
            let full = |s: &mut Stream| match s.spill.is_empty() {
                true => !s.ended && in_flight(s) >= UP_BYTES,
                false => s.up.room(1) == 0,
            };
            if !full(s) {
                return news;
            }
            s.cell.up_wait.prepare();
            if full(s) {
                return news;
            }
            s.cell.up_wait.cancel();
        }
    }

    fn fill_once(&mut self, s: &mut Stream, id: SockId) -> bool {
        let mut news = false;
        loop {
            while let Some(frag) = s.spill.pop_front() {
                match s.up.try_push(frag) {
                    Ok(()) => news = true,
                    Err(frag) => {
                        s.spill.push_front(frag);
                        return news;
                    }
                }
            }
            let in_flight = s.moved - s.cell.rcv_read.load(Ordering::Acquire);
            if s.ended || in_flight >= UP_BYTES {
                return news;
            }
            let (up, spill) = (&mut s.up, &mut s.spill);
            let mut hand = |frag: Frag| {
                let over = if spill.is_empty() { up.try_push(frag) } else { Err(frag) };
                if let Err(frag) = over {
                    spill.push_back(frag);
                }
            };
            match self.read_frags(id, MOVE_BYTES, &mut hand) {
                Ok(0) | Err(RecvError::NotConnected) => {
                    s.ended = true;
                    s.cell.post(event::EOF);
                    return true;
                }
                Ok(n) => {
                    s.moved += n as u64;
                    news = true;
                }
                Err(RecvError::Socket(e)) => {
                    s.ended = true;
                    s.cell.post_error(e.errno());
                    return true;
                }
                Err(_) => return news,
            }
        }
    }

    /// The handshake is done, or failed. True when that is news.
    fn tell_state(&mut self, s: &mut Stream, id: SockId) -> bool {
        let Some(conn) = self.conn(id) else { return false };
        let connected = !matches!(conn.state(), State::SynSent | State::SynRcvd | State::Closed);
        connected && s.cell.post(event::CONNECTED)
    }

    /// Shutdown and close, after everything that was written before them.
    fn obey(&mut self, s: &mut Stream, id: SockId, flags: u32) {
        if s.held.is_some() || !s.down.is_empty() {
            return;
        }
        let opening = self.conn(id).is_some_and(|c| c.state() == State::SynSent);
        if flags & flag::BOTH_GONE == flag::BOTH_GONE {
            s.sock = None;
            let _ = self.close(id);
        } else if flags & (flag::SHUT_WR | flag::WR_GONE) != 0 && !s.shut && !opening {
            s.shut = true;
            // Fails only on a connection that is already over.
            let _ = self.shutdown(id, How::Wr);
        }
    }

    /// Raises the writer's limit to what the send buffer has room for.
    fn grant(&mut self, s: &mut Stream, id: SockId, drained: bool) {
        let Some(conn) = s.sock.and_then(|_| self.conn(id)) else { return };
        if conn.state() == State::Closed {
            // The reader may be full, idle or gone, so the writer can not wait until the error is read.
            s.cell.post_write_error(conn.error().map_or(Errno::EPIPE, |e| e.errno()));
        }
        let writable = conn.is_writable() || !conn.state().can_send();
        if conn.state().can_send() && s.held.is_none() {
            let limit = s.taken + conn.snd_free() as u64;
            if limit > s.cell.snd_limit.load(Ordering::Relaxed) {
                s.cell.snd_limit.store(limit, Ordering::Release);
            } else if s.taken == limit {
                // The writer used all that it was granted. It asks the cell and not the connection, which would take it
                // for one that has no more to say, and would not let the buffer grow.
                self.await_space(id);
            }
        }
        if (drained || writable) && s.cell.wr_wait.notify() {
            s.wr_wakers.wake();
        }
    }

    fn await_space(&mut self, id: SockId) {
        if let Some(conn) = self.tcp.sock_mut(id).and_then(Sock::conn_mut) {
            conn.await_space();
        }
    }

    fn service_listener(&mut self, l: &mut ListenStream) {
        l.wakers.refresh();
        if l.cell.flags.load(Ordering::Acquire) & flag::BOTH_GONE == flag::BOTH_GONE {
            if let Some(id) = l.sock.take() {
                let _ = self.close(id);
            }
            l.dead = true;
            return;
        }
        let Some(id) = l.sock else {
            if l.cell.rd_wait.notify() {
                l.wakers.wake();
            }
            return;
        };
        let mut any = false;
        loop {
            while l.incoming.room(1) > 0
                && let Ok(child) = self.take_child(id)
            {
                let Some(handle) = self.hand_out(child) else { break };
                any = true;
                if l.incoming.try_push(handle).is_err() {
                    debug_assert!(false, "there was room");
                }
            }
            if l.incoming.room(1) > 0 {
                break;
            }
            l.cell.up_wait.prepare();
            if l.incoming.room(1) == 0 {
                break;
            }
            l.cell.up_wait.cancel();
        }
        if any && l.cell.rd_wait.notify() {
            l.wakers.wake();
        }
    }
}
