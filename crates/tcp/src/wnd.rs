//! The receive window: how much the peer may send, in bytes, paid for in memory (SYSTEMS A21, RFC 7323 section 2).
//!
//! The buffer (`rcvbuf`) is memory: truesize. The window is payload. `scaling_ratio` (1/256) converts one into the other;
//! it starts at one half and is measured from real segments, so that a window is never promised that memory cannot keep.
//! `ssthresh` limits the window further and grows only with data that is packed well enough. `rcvbuf` follows the
//! application: what it read in one round trip, twice, up to `tcp_rmem[2]` (dynamic right-sizing), unless SO_RCVBUF was
//! set. The offered right edge never moves back (RFC 9293 section 3.8.6). With a window scale the window is rounded up
//! to its unit; without, down to a multiple of the peer's segment, so that no silly window is offered (RFC 1122 section
//! 4.2.3.3). When less than a sixteenth of the buffer, or less than one segment, is free, the window closes.
//! Not built: `tcp_shrink_window`.

use alloc::collections::VecDeque;

use linerate_base::{Instant, Seq};
use linerate_wire::Timestamps;

use crate::config::{PathInfo, SockOpts, TcpConfig};
use crate::conn::{Conn, Negotiated, initial_rcvbuf, ts_option_bytes};
use crate::cx::TcpCx;
use crate::mem::MemAcct;
use crate::rx::{DelAck, EcnRx, RcvRtt, RcvSpace, Rx, Shut, ack};
use crate::state::State;
use crate::timer::Timer;

/// Largest window scale (RFC 7323 section 2.3).
pub(crate) const MAX_WSCALE: u8 = 14;
/// Half of the buffer's memory is payload, until segments tell better.
const DEFAULT_SCALING_RATIO: u8 = 128;
/// Smallest receive buffer (Linux SOCK_MIN_RCVBUF), bytes.
const RCVBUF_MIN: u32 = 2304;
/// Segments of the autotuner's first guess (TCP_INIT_CWND).
const INIT_SEGS: u32 = 10;
/// Bytes of the RFC 9293 default MSS, bounding the first guess of `rcv_mss`.
const MSS_DEFAULT: u32 = 536;
/// The least guess of `rcv_mss`, bytes.
const MSS_MIN: u32 = 88;

/// What a handshake offers: the window in bytes, the largest ever, and the shift.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InitialWindow {
    pub(crate) rcv_wnd: u32,
    pub(crate) window_clamp: u32,
    pub(crate) wscale: u8,
}

/// Payload bytes that `space` bytes of memory may hold.
fn win_from_space(space: u32, ratio: u8) -> u32 {
    ((u64::from(space) * u64::from(ratio)) >> 8) as u32
}

/// Memory that `win` payload bytes need.
fn space_from_win(win: u64, ratio: u8) -> u64 {
    (win << 8) / u64::from(ratio.max(1))
}

/// Linux's `tcp_select_initial_window`: `space` payload bytes are there, `mss` per segment.
pub(crate) fn select_initial_window(
    cfg: &TcpConfig,
    space: u32,
    mss: u32,
    clamp: u32,
    wscale_ok: bool,
    segs: u32,
) -> InitialWindow {
    let clamp = if clamp == 0 { 65_535 << MAX_WSCALE } else { clamp };
    let mut space = space.min(clamp);
    if mss > 0 && space > mss {
        space -= space % mss;
    }
    let mut rcv_wnd = space;
    if segs > 0 {
        rcv_wnd = rcv_wnd.min(segs.saturating_mul(mss));
    }
    let mut wscale = 0;
    if wscale_ok && cfg.window_scaling {
        let top = space.max(cfg.rmem_bytes[2]).min(clamp).max(1);
        wscale = (top.ilog2() as u8).saturating_sub(15).min(MAX_WSCALE);
    }
    InitialWindow { rcv_wnd, window_clamp: clamp.min(65_535 << wscale), wscale }
}

impl Rx {
    fn empty(rcvbuf: u32, w: InitialWindow) -> Self {
        Self {
            nxt: Seq(0),
            wup: Seq(0),
            wnd: w.rcv_wnd,
            copied_seq: Seq(0),
            irs: Seq(0),
            last_ack_sent: Seq(0),
            window_clamp: w.window_clamp,
            ssthresh: w.rcv_wnd,
            rcvbuf,
            rmem_alloc: 0,
            rcvlowat: 1,
            scaling_ratio: DEFAULT_SCALING_RATIO,
            keep_probes_out: 0,
            ecn: EcnRx::default(),
            shut: Shut::default(),
            ts_recent: 0,
            ts_recent_stamp_s: 0,
            last_oow_ack_ms: 0,
            rcv_tstamp_ms: 0,
            ack: DelAck::default(),
            space: RcvSpace::default(),
            rtt: RcvRtt::default(),
            dsack: None,
            queue: VecDeque::new(),
            ofo: None,
            bytes_received: 0,
            segs_in: 0,
            data_segs_in: 0,
            ooopack: 0,
        }
    }

    /// The receiver of an active open: chooses the window and its scale, and notes in `neg` what the SYN offers.
    pub(crate) fn for_connect(cx: &TcpCx<'_>, path: &PathInfo, opts: &SockOpts, neg: &mut Negotiated) -> Self {
        let cfg = cx.cfg;
        let rcvbuf = initial_rcvbuf(cfg, opts);
        let space = win_from_space(rcvbuf, DEFAULT_SCALING_RATIO);
        let mss = u32::from(neg.our_mss_bytes);
        let w = select_initial_window(cfg, space, mss, opts.window_clamp_bytes, true, u32::from(path.init_rwnd_segs));
        neg.ts = cfg.timestamps;
        neg.sack = cfg.sack;
        neg.wscale = cfg.window_scaling;
        neg.rcv_wscale = w.wscale;
        neg.ecn = cfg.ecn == 1;
        Self::empty(rcvbuf, w)
    }

    /// The receiver of a passive open; the window was chosen by [`listen_window`].
    pub(crate) fn for_accept(rcvbuf: u32, w: InitialWindow, irs: Seq) -> Self {
        let first = irs + 1;
        Self { nxt: first, wup: first, copied_seq: first, last_ack_sent: first, irs, ..Self::empty(rcvbuf, w) }
    }
}

/// Window of a SYN-ACK (Linux `tcp_openreq_init_rwin`).
pub(crate) fn listen_window(
    cfg: &TcpConfig,
    path: &PathInfo,
    opts: &SockOpts,
    mss: u32,
    wscale_ok: bool,
) -> InitialWindow {
    let mut space = win_from_space(initial_rcvbuf(cfg, opts), DEFAULT_SCALING_RATIO);
    let mut clamp = opts.window_clamp_bytes;
    if opts.rcvbuf_bytes != 0 && (clamp > space || clamp == 0) {
        clamp = space;
    }
    let segs = u32::from(path.init_rwnd_segs);
    space = space.max(segs.saturating_mul(mss));
    select_initial_window(cfg, space, mss, clamp, wscale_ok, segs)
}

impl Conn {
    /// Payload that one segment of ours announces to take: the MSS without the options that both ends agreed on.
    pub(crate) fn advmss_data(&self) -> u32 {
        u32::from(self.neg.our_mss_bytes).saturating_sub(ts_option_bytes(&self.neg)).max(1)
    }

    #[inline]
    pub(crate) fn full_space(&self) -> u32 {
        win_from_space(self.rx.rcvbuf, self.rx.scaling_ratio)
    }

    fn free_space(&self) -> u32 {
        win_from_space(self.rx.rcvbuf.saturating_sub(self.rx.rmem_alloc), self.rx.scaling_ratio)
    }

    /// SO_RCVBUF was set: the autotuner keeps its hands off.
    fn rcvbuf_locked(&self) -> bool {
        self.opts.rcvbuf_bytes != 0
    }

    /// On ESTABLISHED: clamps and the autotuner's start (Linux `tcp_init_buffer_space`).
    pub(crate) fn init_buffer_space(&mut self, cx: &TcpCx<'_>) {
        self.rx.space.time = cx.now;
        self.rx.space.seq = self.rx.copied_seq;
        let maxwin = self.full_space();
        let mss = self.advmss_data();
        if self.rx.window_clamp >= maxwin {
            self.rx.window_clamp = maxwin;
        }
        // One segment stays in reserve.
        if self.rx.window_clamp > 2 * mss && self.rx.window_clamp + mss > maxwin {
            self.rx.window_clamp = (2 * mss).max(maxwin.saturating_sub(mss));
        }
        self.rx.ssthresh = self.rx.ssthresh.min(self.rx.window_clamp);
        self.rx.space.space = self.rx.ssthresh.min(self.rx.wnd).min(INIT_SEGS * mss);
    }

    /// The first guess of the peer's segment size (Linux `tcp_initialize_rcv_mss`).
    pub(crate) fn init_rcv_mss(&mut self) {
        let guess = self.advmss_data().min(u32::from(self.neg.peer_mss_bytes.max(1)));
        self.rx.ack.rcv_mss = guess.min(self.rx.wnd / 2).clamp(MSS_MIN, MSS_DEFAULT) as u16;
    }

    /// The window field of a segment that leaves now; remembers what was promised (Linux `tcp_select_window`).
    #[inline]
    pub(crate) fn select_window(&mut self, cx: &mut TcpCx<'_>) -> u16 {
        let our_syn_is_out = self.state == State::SynRcvd && self.snd_una() != self.snd_nxt();
        if self.state == State::SynSent || our_syn_is_out {
            // Never scaled on a SYN.
            return self.rx.wnd.min(65_535) as u16;
        }
        let old = self.rx.wnd;
        let shift = self.neg.rcv_wscale;
        if self.rx.ack.pending & ack::NOMEM != 0 {
            self.rx.wnd = 0;
            self.rx.wup = self.rx.nxt;
            return 0;
        }
        let current = self.receive_window();
        let mut new = self.compute_window(cx.mem);
        if new < current {
            if new == 0 {
                cx.mib.want_zero_window_adv += 1;
            }
            new = align_up(current, shift);
        }
        self.rx.wnd = new;
        self.rx.wup = self.rx.nxt;
        let field = (new.min(65_535 << shift) >> shift) as u16;
        if field == 0 && old != 0 {
            cx.mib.to_zero_window_adv += 1;
        } else if field != 0 && old == 0 {
            cx.mib.from_zero_window_adv += 1;
        }
        field
    }

    /// The window that could be offered now, bytes (Linux `__tcp_select_window`).
    #[inline]
    pub(crate) fn compute_window(&mut self, mem: &MemAcct) -> u32 {
        let allowed = self.full_space();
        let full = self.rx.window_clamp.min(allowed);
        let mss = u32::from(self.rx.ack.rcv_mss).min(full);
        if mss == 0 {
            return 0;
        }
        let mut free = self.free_space();
        let shift = self.neg.rcv_wscale;
        if free < full >> 1 {
            self.rx.ack.quick = 0;
            if mem.under_pressure(self.tx.group) {
                self.limit_ssthresh(4 * self.advmss_data());
            }
            free &= !((1 << shift) - 1);
            if free < allowed >> 4 || free < mss {
                return 0;
            }
        }
        free = free.min(self.rx.ssthresh);
        if shift > 0 {
            return align_up(free, shift);
        }
        let window = self.rx.wnd;
        if i64::from(window) <= i64::from(free) - i64::from(mss) || window > free {
            free - free % mss
        } else if mss == full && free > window + (full >> 1) {
            free
        } else {
            window
        }
    }

    fn limit_ssthresh(&mut self, limit: u32) {
        self.rx.ssthresh = self.rx.ssthresh.min(limit);
    }

    /// Memory is short: the window goes back to a few segments, and a buffer that grew by itself to what it needs.
    pub(crate) fn fall_back_under_pressure(&mut self, cx: &TcpCx<'_>) {
        self.limit_ssthresh(4 * self.advmss_data());
        let least = self.rx.rmem_alloc.max(cx.cfg.rmem_bytes[1]);
        if self.rx.rcvbuf > least && !self.rcvbuf_locked() {
            self.rx.rcvbuf = least;
            self.rx.window_clamp = self.full_space().max(RCVBUF_MIN / 2);
        }
    }

    /// Well packed data earns a larger window (Linux `tcp_grow_window`).
    pub(crate) fn grow_window(&mut self, cx: &TcpCx<'_>, len: u32, truesize: u32) {
        let room = self.rx.window_clamp.min(self.free_space()).saturating_sub(self.rx.ssthresh);
        if room == 0 {
            return;
        }
        if cx.mem.under_pressure(self.tx.group) {
            return self.limit_ssthresh(4 * self.advmss_data());
        }
        let incr = if win_from_space(truesize, self.rx.scaling_ratio) <= len {
            2 * self.advmss_data()
        } else {
            self.grow_for_loose_data(cx.cfg, len, truesize)
        };
        if incr > 0 {
            self.rx.ssthresh += room.min(incr.max(len.saturating_mul(2)));
            self.rx.ack.quick |= 1;
        }
    }

    /// Loosely packed data may grow the window as long as it is far below the largest.
    fn grow_for_loose_data(&self, cfg: &TcpConfig, len: u32, truesize: u32) -> u32 {
        let mut cost = win_from_space(truesize, self.rx.scaling_ratio) >> 1;
        let mut window = win_from_space(cfg.rmem_bytes[2], self.rx.scaling_ratio) >> 1;
        while self.rx.ssthresh <= window && window > 0 {
            if cost <= len {
                return 2 * u32::from(self.rx.ack.rcv_mss);
            }
            cost >>= 1;
            window >>= 1;
        }
        0
    }

    /// A larger segment was seen: what does its payload cost in memory?
    pub(crate) fn update_scaling_ratio(&mut self, len: u32, truesize: u32) {
        let ratio = ((u64::from(len) << 8) / u64::from(truesize.max(1))).clamp(1, 255) as u8;
        if ratio == self.rx.scaling_ratio {
            return;
        }
        self.rx.scaling_ratio = ratio;
        let clamp = self.full_space();
        self.set_window_clamp(clamp);
        self.rx.space.space = self.rx.space.space.min(self.rx.window_clamp);
    }

    /// TCP_WINDOW_CLAMP, and the clamp that follows a new ratio.
    pub(crate) fn set_window_clamp(&mut self, clamp: u32) {
        let old = self.rx.window_clamp;
        self.rx.window_clamp = clamp.max(RCVBUF_MIN / 2);
        if self.rx.window_clamp < old {
            self.limit_ssthresh(self.rx.window_clamp);
        } else {
            self.rx.ssthresh = self.rx.ssthresh.max(self.rx.wnd.min(self.rx.window_clamp));
        }
    }

    /// The queues outgrew the buffer: grow it to what is held, or show that it is full (Linux `tcp_clamp_window`).
    pub(crate) fn clamp_window(&mut self, cx: &TcpCx<'_>) {
        self.rx.ack.quick = 0;
        let max = cx.cfg.rmem_bytes[2];
        if self.rx.rcvbuf < max && !self.rcvbuf_locked() && !cx.mem.under_pressure(self.tx.group) {
            self.rx.rcvbuf = self.rx.rmem_alloc.min(max);
        }
        if self.rx.rmem_alloc > self.rx.rcvbuf {
            self.rx.ssthresh = self.rx.window_clamp.min(2 * self.advmss_data());
        }
    }

    /// Dynamic right-sizing: once per round trip, the buffer follows what the application read (Linux
    /// `tcp_rcv_space_adjust`).
    #[inline]
    pub(crate) fn rcv_space_adjust(&mut self, cx: &TcpCx<'_>) {
        if !self.rx.space_is_due(cx.now) {
            return;
        }
        let copied = (self.rx.copied_seq - self.rx.space.seq).saturating_sub(self.inq_bytes());
        if copied > self.rx.space.space {
            self.rcvbuf_grow(cx, copied);
        }
        self.rx.space.seq = self.rx.copied_seq;
        self.rx.space.time = cx.now;
    }

    /// Sizes the buffer for `per_rtt` bytes a round trip, with room for a sender that doubles.
    pub(crate) fn rcvbuf_grow(&mut self, cx: &TcpCx<'_>, per_rtt: u32) {
        let old = self.rx.space.space.max(1);
        self.rx.space.space = per_rtt;
        if !cx.cfg.moderate_rcvbuf || self.rcvbuf_locked() {
            return;
        }
        let mut win = u64::from(per_rtt) << 1;
        win += (win * u64::from(per_rtt.saturating_sub(old)) / u64::from(old)) << 1;
        if let Some(end) = self.rx.ofo.as_ref().and_then(|o| o.last_end()) {
            win += u64::from(end - self.rx.nxt);
        }
        let cap = u64::from(cx.cfg.rmem_bytes[2]);
        let rcvbuf = space_from_win(win, self.rx.scaling_ratio).min(cap) as u32;
        if rcvbuf > self.rx.rcvbuf && !cx.mem.under_pressure(self.tx.group) {
            self.rx.rcvbuf = rcvbuf;
            self.rx.window_clamp = self.full_space();
        }
    }

    /// RTT by the window: the time in which one advertised window arrives (without timestamps an upper bound).
    #[inline]
    pub(crate) fn rcv_rtt_measure(&mut self, now: Instant) {
        if self.rx.rtt.time != Instant::ZERO {
            if self.rx.nxt.lt(self.rx.rtt.seq) {
                return;
            }
            let sample = now.micros_since(self.rx.rtt.time).max(1);
            self.rcv_rtt_update(sample, true);
        }
        self.rx.rtt.seq = self.rx.nxt + self.rx.wnd;
        self.rx.rtt.time = now;
    }

    /// RTT by timestamps: full segments that echo a new TSval of ours.
    #[inline]
    pub(crate) fn rcv_rtt_measure_ts(&mut self, now: Instant, ts: Option<Timestamps>, len: u32) {
        let Some(ts) = ts else { return };
        if ts.ecr == 0 || ts.ecr == self.rx.rtt.last_tsecr {
            return;
        }
        self.rx.rtt.last_tsecr = ts.ecr;
        if len < u32::from(self.rx.ack.rcv_mss) {
            return;
        }
        let delta = self.tsval(now).wrapping_sub(ts.ecr);
        let us = match self.neg.usec_ts {
            true if delta < i32::MAX as u32 => delta,
            false if delta < (i32::MAX / 1_000) as u32 => delta.max(1) * 1_000,
            _ => return,
        };
        if us > 0 {
            self.rcv_rtt_update(us, false);
        }
    }

    fn rcv_rtt_update(&mut self, sample_us: u32, by_window: bool) {
        let old = self.rx.rtt.rtt_us8;
        let new = sample_us.min(u32::MAX >> 3) << 3;
        if old == 0 || new < old {
            self.rx.rtt.rtt_us8 = new;
        } else if !by_window && self.rx.queue.is_empty() {
            // Smoothed upwards only by samples that a slow reader did not stretch.
            self.rx.rtt.rtt_us8 = old - (old >> 3) + sample_us.min(u32::MAX >> 3);
        }
    }

    /// The application read `copied` bytes: is there something to tell the peer (Linux `__tcp_cleanup_rbuf`)?
    #[inline]
    pub(crate) fn cleanup_rbuf(&mut self, mem: &MemAcct, copied: usize) {
        let pending = self.rx.ack.pending;
        if pending & ack::SCHED != 0 {
            let pushed = pending & ack::PUSHED2 != 0 || (pending & ack::PUSHED != 0 && !self.in_pingpong());
            if self.rx.nxt - self.rx.wup > u32::from(self.rx.ack.rcv_mss)
                || (copied > 0 && pushed && self.rx.rmem_alloc == 0)
            {
                return self.request_ack();
            }
        }
        if copied > 0 && !self.rx.shut.rcv && self.state != State::Closed {
            let now = self.receive_window();
            // With all read no more can be offered than `ssthresh` allows and scaling adds: mostly that is not so much more.
            let shift = self.neg.rcv_wscale;
            let all_read = self.rx.rmem_alloc == 0 && shift > 0;
            let most = u64::from(self.rx.ssthresh) + if all_read { 1 << shift } else { u64::from(u32::MAX) };
            let twice = u64::from(now) * 2;
            if twice <= u64::from(self.rx.window_clamp) && twice <= most {
                let new = self.compute_window(mem);
                if new > 0 && u64::from(new) >= 2 * u64::from(now) {
                    self.request_ack();
                }
            }
        }
    }

    /// SO_RCVBUF as stored (already doubled by the caller); 0 gives the buffer back to the autotuner.
    pub(crate) fn set_rcvbuf(&mut self, cx: &TcpCx<'_>, bytes: u32) {
        self.rx.rcvbuf = if bytes == 0 { cx.cfg.rmem_bytes[1].max(self.rx.rcvbuf) } else { bytes.max(RCVBUF_MIN) };
    }

    /// The receive timers of a connection that ends.
    pub(crate) fn stop_receiver(&mut self) {
        self.timers.clear(Timer::Delack);
        self.timers.clear(Timer::CompAck);
        self.rx.ack.compressed = 0;
    }
}

#[inline]
pub(crate) fn align_up(n: u32, shift: u8) -> u32 {
    let unit = 1u32 << shift;
    n.saturating_add(unit - 1) & !(unit - 1)
}
