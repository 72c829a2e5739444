//! The application's way in: bytes become segments of the write queue.
//!
//! `write` copies into the shard's current page and appends to the last unsent segment until that holds `size_goal`
//! bytes: a multiple of the MSS as large as one super-packet may be. `write_frag` takes pages by reference. Neither
//! flattens, and in steady state neither allocates. Segments end early at a record's edge (MSG_EOR) and when they would
//! need more fragments than an skb takes. Towards a device that does not sum, the bytes of each wire segment are summed in
//! the same pass; should segments be cut differently in the end, they are summed again.
//!
//! The buffer is charged by truesize (SYSTEMS A21): bytes plus the price of a segment. As in Linux a segment that was
//! begun may be filled; only a new one needs room, so the buffer can be overrun by one segment. A writer that finds no
//! room, or who has more than TCP_NOTSENT_LOWAT unsent, gets `Event::Writable` once a third of the buffer is free again. PSH is set where a write ends, and inside long
//! writes every half of the peer's largest window. MSG_ZEROCOPY and urgent data are not here.

use linerate_arch::Kernels;
use linerate_base::{Instant, Seq};
use linerate_cong::{CcEvent, CongestionControl};
use linerate_skb::{Frag, Page};

use crate::conn::{Conn, ev};
use crate::cx::TcpCx;
use crate::mem::{MemAcct, MemGroup};
use crate::state::State;
use crate::timer::Timer;
use crate::tx::{Chrono, SEG_FRAGS, SEG_TRUESIZE, SendError, SendFlags, Tx, flag};
use crate::txq::{TxSeg, tag};

/// What one wire segment costs beside its payload when the send buffer is sized: headers, descriptor, shared info.
const SEG_OVERHEAD: u32 = 640;
/// When a writer without memory and without anything in flight is told to try again, µs.
const MEMORY_RETRY_US: u64 = 10_000;
/// Least part of a write for which a nearly empty account begins a segment: about one frame.
const AFFORD_MIN_BYTES: usize = 1024;

/// Shorter writes are summed when their frame is made: most of them end up in one with others.
const NOTE_MIN_BYTES: usize = 512;

/// How much of `want` bytes the account can bear beside `price`: all, or a part that is worth a segment of its own.
fn affordable(mem: &MemAcct, group: MemGroup, want: usize, price: u32) -> Option<usize> {
    let left = mem.left_bytes(group).saturating_sub(u64::from(price));
    let n = want.min(usize::try_from(left).unwrap_or(usize::MAX));
    (n > 0 && (n == want || n >= AFFORD_MIN_BYTES)).then_some(n)
}

impl Conn {
    /// Takes bytes of `data` into the send buffer and returns how many; they leave with [`Conn::poll_xmit`].
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] when nothing was taken (then `Event::Writable` follows), or why nothing ever will be.
    #[inline]
    pub fn write(&mut self, cx: &mut TcpCx<'_>, data: &[u8], flags: SendFlags) -> Result<usize, SendError> {
        if !self.tx.fl.is_born() {
            self.may_write()?;
            self.tx.birth(cx);
        }
        if flags == SendFlags::default() && self.write_small(cx.now, cx.page, cx.mem, data) {
            return Ok(data.len());
        }
        self.write_general(cx, data, flags)
    }

    /// The rest of [`Self::write`].
    #[inline(never)]
    fn write_general(&mut self, cx: &mut TcpCx<'_>, data: &[u8], flags: SendFlags) -> Result<usize, SendError> {
        self.may_write()?;
        self.check_app_limited();
        let goal = self.size_goal();
        let sums = !self.path.tx_csum && data.len() >= NOTE_MIN_BYTES;
        let mut taken = 0;
        while let Some(rest) = data.get(taken..).filter(|r| !r.is_empty()) {
            let Some(n) = self.append(cx, rest, goal, sums) else { break };
            taken += n;
            if self.tx.forced_push() {
                self.tx.mark_push();
            }
        }
        let all = taken == data.len();
        self.end_of_write(cx, taken > 0, all, flags);
        if taken == 0 && !all { Err(SendError::WouldBlock) } else { Ok(taken) }
    }

    /// Takes `frag` by reference, whole.
    ///
    /// # Errors
    /// The fragment comes back with the reason.
    pub fn write_frag(&mut self, cx: &mut TcpCx<'_>, frag: Frag, flags: SendFlags) -> Result<(), (Frag, SendError)> {
        if let Err(e) = self.may_write() {
            return Err((frag, e));
        }
        self.tx.birth(cx);
        self.check_app_limited();
        let goal = self.size_goal();
        let segs = frag.len().div_ceil(goal).saturating_add(1);
        // Room for all of it: a fragment is not taken by halves.
        let price = frag.len().saturating_add(segs.saturating_mul(SEG_TRUESIZE));
        if (self.room_in_tail(cx, goal) == 0 && !self.tx.memory_free()) || !cx.mem.charge(self.tx.group, price) {
            self.wait_for_space(cx);
            return Err((frag, SendError::WouldBlock));
        }
        cx.mem.uncharge(self.tx.group, price);
        let mut rest = frag;
        while !rest.is_empty() {
            let room = match self.room_in_tail(cx, goal) {
                0 => goal,
                room => room,
            };
            let more = if rest.len() > room { Some(rest.split_off(room)) } else { None };
            self.commit(cx, rest.len(), goal);
            let at = self.tx.write_seq - rest.len();
            self.push_piece(at, rest);
            if self.tx.forced_push() {
                self.tx.mark_push();
            }
            match more {
                Some(next) => rest = next,
                None => break,
            }
        }
        self.end_of_write(cx, true, true, flags);
        Ok(())
    }

    /// May the application queue data in this state?
    fn may_write(&mut self) -> Result<(), SendError> {
        if let Some(e) = self.error.take() {
            return Err(SendError::Socket(e));
        }
        match self.state {
            _ if self.rx.shut.snd => Err(SendError::BrokenPipe),
            State::Established | State::CloseWait => Ok(()),
            State::SynSent | State::SynRcvd => Err(SendError::WouldBlock),
            _ => Err(SendError::BrokenPipe),
        }
    }

    /// Copies a piece of `data`: as much as the segment, the page and the accounts take. `sums`: noting the sums of the wire
    /// segments. `None`: no room.
    fn append(&mut self, cx: &mut TcpCx<'_>, data: &[u8], goal: u32, sums: bool) -> Option<usize> {
        let mut room = self.room_in_tail(cx, goal);
        let price = if room == 0 { SEG_TRUESIZE } else { 0 };
        if room == 0 {
            if !self.tx.memory_free() {
                return None;
            }
            room = goal;
        }
        ensure_page(cx)?;
        let n = data.len().min(room as usize).min(cx.page.as_ref()?.room());
        let granted = cx.mem.grants(self.tx.group, self.mem_bytes(), cx.cfg.wmem_bytes[0]);
        let part = if granted { affordable(cx.mem, self.tx.group, n, price) } else { None };
        let n = part.or_else(|| {
            // A connection that has nothing under way may always have one segment (Linux: `tcp_wmem[0]`): no ACK would
            // ever bring the memory that it waits for.
            let alone = self.tx.wmem_queued == 0;
            alone.then(|| n.min(self.current_mss() as usize))
        })?;
        let src = data.get(..n)?;
        let sums = sums.then(|| {
            let mss = self.current_mss() as usize;
            let begun = if price == 0 { goal - room } else { 0 };
            (mss - begun as usize % mss, mss)
        });
        let frag = copy_in(cx.page.as_mut()?, &cx.kernels, self.tx.fl.q.last_frag(), src, sums)?;
        self.commit(cx, n as u32, goal);
        if let Some(frag) = frag {
            let at = self.tx.write_seq - n as u32;
            self.push_piece(at, frag);
        }
        Some(n)
    }

    /// Bytes that still fit the last unsent segment; 0 when a new one is needed.
    fn room_in_tail(&mut self, cx: &TcpCx<'_>, goal: u32) -> u32 {
        let max = SEG_FRAGS.min(cx.skbs.max_frags()).saturating_sub(1);
        match self.tx.fl.q.unsent_tail() {
            Some(t) if !t.has(tag::SYN | tag::FIN | tag::EOR) && usize::from(t.frags) < max => {
                goal.saturating_sub(t.len())
            }
            _ => 0,
        }
    }

    /// Takes `n` bytes into the sequence space: the tail grows when it has room, else a new segment begins.
    fn commit(&mut self, cx: &mut TcpCx<'_>, n: u32, goal: u32) {
        let seq = self.tx.write_seq;
        let grow = self.room_in_tail(cx, goal) >= n;
        let price = if grow { n } else { n + SEG_TRUESIZE };
        if !cx.mem.charge(self.tx.group, price) {
            // The one segment that needs no permission.
            debug_assert!(self.tx.wmem_queued == 0, "the account was asked before");
            cx.mem.force(self.tx.group, price);
        }
        self.tx.wmem_queued += price;
        if let Some(t) = self.tx.fl.q.unsent_tail().filter(|_| grow) {
            t.end_seq += n;
        } else {
            let mut seg = TxSeg::new(seq, n, 0);
            seg.frags = 1;
            self.begin_segment(cx, seg);
        }
        self.tx.write_seq += n;
    }

    /// Appends a segment to the write queue.
    pub(crate) fn begin_segment(&mut self, cx: &mut TcpCx<'_>, seg: TxSeg) {
        self.tx.set_flag(flag::PUSH, false);
        self.slow_start_after_idle(cx);
        self.tx.birth(cx);
        if self.tx.fl.q.is_empty() {
            self.tx.chrono_start(cx.now, Chrono::Busy);
        }
        self.tx.fl.q.push(seg);
    }

    fn push_piece(&mut self, at: Seq, frag: Frag) {
        let own = self.tx.fl.q.push_frag(at, frag);
        if let Some(t) = self.tx.fl.q.unsent_tail().filter(|t| own && t.seq != at) {
            t.frags = t.frags.saturating_add(1);
        }
    }

    /// A writer waits for memory that no ACK will bring: a timer was set to try again.
    pub fn awaits_memory(&self) -> bool {
        self.tx.flag(flag::NOSPACE) && self.tx.fl.q.is_empty()
    }

    /// A writer who only writes what [`Self::snd_free`] allows has used all of it: as a write that found no room, it wants
    /// to be told of some, and the buffer may grow for it.
    pub fn await_space(&mut self) {
        self.tx.set_flag(flag::NOSPACE, true);
    }

    /// The writer wants to be told of room. ACKs make room; when none is to come, pages or the stack's account were
    /// short, which no event of this connection ends, so a timer looks again.
    fn wait_for_space(&mut self, cx: &TcpCx<'_>) {
        self.tx.set_flag(flag::NOSPACE, true);
        if self.tx.fl.q.is_empty() {
            self.timers.set(Timer::Pacing, cx.now.plus_micros(MEMORY_RETRY_US));
        }
    }

    /// PSH, record edges and what the flags say about later bytes.
    fn end_of_write(&mut self, cx: &TcpCx<'_>, any: bool, all: bool, flags: SendFlags) {
        if !all {
            self.wait_for_space(cx);
        }
        if !any {
            return;
        }
        let more = flags.more && all;
        if !more || self.tx.forced_push() {
            self.tx.mark_push();
        }
        if flags.eor
            && all
            && let Some(t) = self.tx.fl.q.unsent_tail()
        {
            t.tags |= tag::EOR;
        }
        self.tx.set_flag(flag::MORE, more);
        self.tx.set_flag(flag::PUSH, !all);
    }

    /// NODELAY was set or CORK taken off: what is queued goes now (Linux's TCP_NAGLE_PUSH).
    pub(crate) fn push_now(&mut self) {
        if self.tx.fl.is_born() && self.tx.fl.q.has_unsent() {
            self.tx.set_flag(flag::PUSH, true);
            self.tx.set_flag(flag::MORE, false);
        }
    }

    /// Bytes of payload that one segment of the write queue aims at: a multiple of the MSS.
    fn size_goal(&self) -> u32 {
        let mss = self.current_mss();
        let max = self.path.gso_max_size_bytes.saturating_sub(u32::from(self.path.ip_header_bytes) + 60);
        let goal = self.bound_to_half_wnd(max.max(mss));
        let segs = (goal / mss).clamp(1, u32::from(self.path.gso_max_segs.max(1)));
        segs * mss
    }

    /// The peer's window is never filled by one unit: at most half of the largest seen (RFC 1122 section 4.2.3.4).
    pub(crate) fn bound_to_half_wnd(&self, len: u32) -> u32 {
        let max = self.tx.max_window;
        let cutoff = if max > 536 { max >> 1 } else { max };
        if cutoff != 0 && len > cutoff { cutoff.max(48) } else { len }
    }

    /// Queues the SYN, or sends the one that is out again with an ACK (simultaneous open).
    pub(crate) fn queue_syn(&mut self, cx: &mut TcpCx<'_>, synack: bool) {
        if synack && self.tx.fl.q.rtx_head().is_some() {
            self.tx.want |= crate::tx::want::HEAD;
            return;
        }
        debug_assert!(self.tx.fl.q.is_empty(), "a SYN comes first");
        self.queue_flag(cx, tag::SYN);
    }

    /// Queues the FIN behind all data.
    pub(crate) fn queue_fin(&mut self, cx: &mut TcpCx<'_>) {
        debug_assert!(self.tx.fl.q.tail().is_none_or(|t| !t.has(tag::FIN)), "a second FIN");
        match self.tx.fl.q.unsent_tail().filter(|t| !t.has(tag::SYN)) {
            Some(t) => {
                t.end_seq += 1;
                t.tags |= tag::FIN;
                self.tx.write_seq += 1;
                self.tx.wmem_queued += 1;
                cx.mem.force(self.tx.group, 1);
            }
            None => self.queue_flag(cx, tag::FIN),
        }
        self.tx.set_flag(flag::PUSH, true);
        self.tx.set_flag(flag::MORE, false);
    }

    /// A segment of one sequence number and no data. It is charged without asking: a connection must be able to close.
    fn queue_flag(&mut self, cx: &mut TcpCx<'_>, tags: u16) {
        let seq = self.tx.write_seq;
        self.begin_segment(cx, TxSeg::new(seq, 1, tags));
        self.tx.write_seq += 1;
        self.tx.wmem_queued += SEG_TRUESIZE + 1;
        cx.mem.force(self.tx.group, SEG_TRUESIZE + 1);
    }

    /// Throws both queues away: the connection is over.
    pub(crate) fn purge_tx(&mut self, cx: &mut TcpCx<'_>) {
        let tx = &mut self.tx;
        cx.mem.uncharge(tx.group, tx.wmem_queued);
        tx.wmem_queued = 0;
        if tx.fl.is_born() {
            tx.fl.q.clear(cx.pool);
            tx.chrono_stop(cx.now, Chrono::Busy);
            tx.fl.retrans_hint = None;
            tx.fl.tlp_high_seq = None;
        }
        (tx.packets_out, tx.sacked_out, tx.lost_out, tx.retrans_out) = (0, 0, 0, 0);
        tx.want &= crate::tx::want::RST;
        // The numbers stay: a reset that is still to be sent needs them.
        tx.write_seq = tx.snd_nxt;
        tx.snd_una = tx.snd_nxt;
        self.timers.clear(Timer::Retrans);
    }

    /// Gives memory of earlier bursts back, for a stack under pressure. Nothing observable changes.
    pub fn release_idle_memory(&mut self) {
        if self.tx.fl.is_born() && self.tx.fl.q.is_empty() {
            self.tx.fl.q.shrink(0);
        }
    }

    /// Takes skbs off the count of what is below the socket (TCP small queues); `bytes` is their truesize.
    pub fn on_tx_done(&mut self, _cx: &mut TcpCx<'_>, bytes: u32) {
        debug_assert!(self.tx.wmem_alloc >= bytes, "more completed than sent");
        self.tx.wmem_alloc = self.tx.wmem_alloc.saturating_sub(bytes);
    }

    /// Whoever waits for room is told once a third of the buffer is free; the buffer may grow first.
    pub(crate) fn check_space(&mut self, cx: &mut TcpCx<'_>) {
        if !self.tx.flag(flag::NOSPACE) {
            return;
        }
        let may_grow = self.opts.sndbuf_bytes == 0 && !cx.mem.under_pressure(self.tx.group);
        if may_grow && self.tx.in_flight() < self.tx.cc.cwnd {
            self.sndbuf_expand(cx);
            self.tx.fl.cwnd_stamp = cx.now;
        }
        if self.is_writable() {
            self.tx.set_flag(flag::NOSPACE, false);
            self.tx.chrono_stop(cx.now, Chrono::SndbufLimited);
            self.notify(ev::WRITABLE);
        }
    }

    /// Sizes the send buffer for two windows, by the truesize of one MSS.
    pub(crate) fn sndbuf_expand(&mut self, cx: &TcpCx<'_>) {
        if self.opts.sndbuf_bytes != 0 {
            return;
        }
        let mss = self.tx.cc.mss.max(u32::from(self.neg.peer_mss_bytes));
        let per_mss = (mss + SEG_OVERHEAD).next_power_of_two() + 256;
        let segs = self.tx.cc.cwnd.max(10).max(u32::from(self.tx.reordering) + 1);
        let want = segs.saturating_mul(per_mss).saturating_mul(2);
        if self.tx.sndbuf < want {
            self.tx.sndbuf = want.min(cx.cfg.wmem_bytes[2]).max(self.tx.sndbuf);
        }
    }

    /// RFC 5681 section 4.1: a window that was not used for more than an RTO is taken back, unless configured otherwise.
    pub(crate) fn slow_start_after_idle(&mut self, cx: &TcpCx<'_>) {
        let last: Instant = self.tx.cc.lsnd_time;
        if !cx.cfg.slow_start_after_idle || self.tx.packets_out > 0 || last == Instant::ZERO {
            return;
        }
        let mut idle = i64::from(cx.now.micros_since(last));
        let rto = i64::from(self.tx.rto_us.max(1));
        if idle <= rto {
            return;
        }
        let floor = self.init_cwnd(cx).min(self.tx.cc.cwnd);
        self.tx.sync_cc();
        let tx = &mut self.tx;
        tx.algo.on_event(&mut tx.cc, cx.now, CcEvent::CwndRestart);
        tx.cc.ssthresh = tx.current_ssthresh();
        idle -= rto;
        while idle > 0 && tx.cc.cwnd > floor {
            tx.cc.cwnd >>= 1;
            idle -= rto;
        }
        tx.cc.cwnd = tx.cc.cwnd.max(floor);
        tx.fl.cwnd_stamp = cx.now;
        tx.fl.cwnd_used = 0;
    }

    /// The initial window: the route's, else the configuration's, in wire segments.
    pub(crate) fn init_cwnd(&self, cx: &TcpCx<'_>) -> u32 {
        match self.path.init_cwnd_segs {
            0 => cx.cfg.init_cwnd_segs,
            route => u32::from(route),
        }
        .clamp(1, self.tx.cc.cwnd_clamp)
    }
}

impl Tx {
    /// Half of the peer's largest window was queued without a push.
    fn forced_push(&self) -> bool {
        self.write_seq.gt(self.fl.pushed_seq + (self.max_window >> 1))
    }
    fn mark_push(&mut self) {
        self.fl.pushed_seq = self.write_seq;
        if let Some(t) = self.fl.q.unsent_tail() {
            t.tags |= tag::PSH;
        }
    }
}

/// Copies all of `src` into `page`, which has the room: `Some(None)` when that only lengthened `last`. `sums`: how far the
/// first wire segment still goes and how long the others will be, when their sums are wanted.
#[inline]
fn copy_in(
    page: &mut Page,
    k: &Kernels,
    last: Option<&mut Frag>,
    src: &[u8],
    sums: Option<(usize, usize)>,
) -> Option<Option<Frag>> {
    let extended = match (last, sums) {
        (None, _) => 0,
        (Some(last), None) => page.extend(k, last, src),
        (Some(last), Some((first, each))) => page.extend_noting(k, last, src, first, each),
    };
    if extended == src.len() {
        return Some(None);
    }
    let frag = match sums {
        None => page.append(k, src)?,
        Some((first, each)) => page.append_noting(k, src, first, each)?,
    };
    Some(Some(frag))
}

/// Sees to it that the shard's current page has room.
fn ensure_page(cx: &mut TcpCx<'_>) -> Option<()> {
    if cx.page.as_ref().is_some_and(|p| p.room() > 0) {
        return Some(());
    }
    if let Some(mut full) = cx.page.take() {
        if full.reset_if_sole() {
            *cx.page = Some(full);
            return Some(());
        }
        cx.pool.recycle_page(full);
    }
    *cx.page = cx.pool.alloc();
    cx.page.as_ref().map(|_| ())
}
