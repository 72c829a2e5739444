//! Segments leave again: one retransmission, and the loop over what recovery believes to be lost.
//!
//! A retransmission takes whole wire segments off the front of a queued segment (which is cut there), or lets small
//! neighbours ride along when the segment is short. It refreshes the segment's transmission time, so RACK can judge the
//! new copy, and counts it as in flight again. What lies above the peer's window is not retransmitted, except that the
//! oldest segment always may be: it is its own window probe.
//!
//! [`Conn::xmit_retransmit_queue`] starts at a hint below which nothing needs retransmission, so that its cost is
//! amortised over the segments, not paid per ACK. It stops at cwnd, at the small queues' limit, and when as much has been
//! sent again as was lost. Which segments are lost is decided elsewhere (`recovery`).

use linerate_base::Seq;
use linerate_cong::CaState;

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::output::{Emit, Out, wire_flags};
use crate::state::State;
use crate::timer::RetransKind;
use crate::tx::{SEG_FRAGS, SEG_TRUESIZE};
use crate::txq::{TxSeg, tag};

/// Retransmission of one queued segment.
impl Conn {
    /// Cuts a queued segment, keeps the counters true and pays for the new one.
    pub(crate) fn split_seg(&mut self, cx: &mut TcpCx<'_>, pos: usize, at: Seq, mss: u32) -> bool {
        let sent = pos < self.tx.fl.q.sent();
        let Some(old) = self.tx.fl.q.get(pos).copied() else { return false };
        if !self.tx.fl.q.split(pos, at) {
            return false;
        }
        let (mut segs, q) = (0, &mut self.tx.fl.q);
        for p in [pos, pos + 1] {
            if let Some(s) = q.get_mut(p) {
                s.set_segs(mss);
                segs += s.segs;
            }
        }
        if sent {
            self.adjust_segs(&old, old.segs, segs);
        }
        self.tx.wmem_queued += SEG_TRUESIZE;
        cx.mem.force(self.tx.group, SEG_TRUESIZE);
        true
    }

    /// The wire segment count of a sent segment with the tags of `seg` changed.
    pub(crate) fn adjust_segs(&mut self, seg: &TxSeg, old: u32, new: u32) {
        let guessed = !self.neg.sack;
        let tx = &mut self.tx;
        if guessed {
            // Duplicate ACKs counted wire segments that no longer exist.
            tx.sacked_out = tx.sacked_out.saturating_sub(old.saturating_sub(new));
        }
        let fix = |n: &mut u32| *n = (*n + new).saturating_sub(old);
        fix(&mut tx.packets_out);
        if seg.has(tag::SACKED) {
            fix(&mut tx.sacked_out);
        }
        if seg.has(tag::LOST) {
            fix(&mut tx.lost_out);
        }
        if seg.has(tag::RETRANS) {
            fix(&mut tx.retrans_out);
        }
    }

    /// Sends up to `segs` wire segments of the segment at `pos` again. `tagged`: it counts as a retransmission in flight
    /// (a tail loss probe does not). False when the window or a resource forbids it.
    pub(crate) fn retransmit_seg(
        &mut self,
        cx: &mut TcpCx<'_>,
        o: &mut Out<'_>,
        pos: usize,
        segs: u32,
        tagged: bool,
    ) -> bool {
        let mss = self.current_mss();
        let Some(seg) = self.tx.fl.q.get(pos).copied().filter(|_| pos < self.tx.fl.q.sent()) else { return false };
        if o.left == 0 || seg.has(tag::SACKED) {
            return false;
        }
        self.mtu_probe_inconclusive();
        if !seg.has(tag::SYN) {
            let room = self.tx.wnd_end().diff(seg.seq);
            if room <= 0 && seg.seq != self.tx.snd_una {
                return false;
            }
            let room = if room <= 0 { mss } else { room as u32 };
            let most = mss.saturating_mul(segs);
            let most = if most <= room {
                most
            } else if room < mss {
                room
            } else {
                room - room % mss
            };
            let fit = self.fit_frags(cx, &seg, most, mss);
            if seg.data_len() > fit {
                self.split_seg(cx, pos, seg.seq + fit, mss);
            } else {
                self.recount(pos, mss);
                if seg.data_len() < room.min(mss) {
                    self.retrans_collapse(cx, pos, room.min(mss), mss);
                }
            }
        }
        let Some(seg) = self.tx.fl.q.get(pos).copied() else { return false };
        let (from, to) = seg.payload();
        let e = if seg.has(tag::SYN) {
            self.syn_emit(&seg, true)
        } else {
            Emit { seq: seg.seq, from, to, flags: wire_flags(&seg, mss), mss, new_data: false, retrans: true }
        };
        if !self.emit(cx, o, &e) {
            return false;
        }
        // What was believed lost is in flight again, whoever asked for it.
        self.seg_retransmitted(cx, pos, &seg, (tagged || seg.has(tag::LOST)) && !seg.has(tag::RETRANS), !tagged);
        true
    }

    fn recount(&mut self, pos: usize, mss: u32) {
        let Some(s) = self.tx.fl.q.get_mut(pos) else { return };
        let old = *s;
        s.set_segs(mss);
        let new = s.segs;
        self.adjust_segs(&old, old.segs, new);
    }

    /// Book-keeping after a retransmission. A probe does not start the clock of time limits.
    fn seg_retransmitted(&mut self, cx: &mut TcpCx<'_>, pos: usize, seg: &TxSeg, tagged: bool, probe: bool) {
        let stamp = self.tsval(cx.now).max(1);
        let delivered = self.tx.delivered;
        let tx = &mut self.tx;
        let fl = &mut *tx.fl;
        let snapshot = (fl.first_tx_at, fl.delivered_at, fl.app_limited != 0);
        if let Some(s) = fl.q.get_mut(pos) {
            s.tx_at = cx.now;
            (s.first_tx_at, s.delivered_at, s.delivered) = (snapshot.0, snapshot.1, delivered);
            s.tags &= !(tag::APP_LIMITED | tag::RATE_DONE);
            s.tags |= tag::EVER_RETRANS | if snapshot.2 { tag::APP_LIMITED } else { 0 };
            s.tags |= if tagged { tag::RETRANS } else { 0 };
        }
        fl.q.ts_touch(pos);
        fl.bytes_retrans = fl.bytes_retrans.wrapping_add(u64::from(seg.len()));
        if tagged {
            tx.retrans_out += seg.segs;
            fl.undo_retrans = fl.undo_retrans.max(0).saturating_add_unsigned(seg.segs);
        }
        if fl.retrans_stamp == 0 && !probe {
            fl.retrans_stamp = stamp;
            if self.state != State::SynSent {
                fl.retrans_at = cx.now;
            }
        }
        tx.total_retrans = tx.total_retrans.wrapping_add(seg.segs);
        cx.mib.retrans_segs += u64::from(seg.segs);
        if seg.has(tag::SYN) {
            cx.mib.syn_retrans += 1;
        }
    }

    /// Lets a small retransmission carry its small neighbours along, up to `space` bytes.
    fn retrans_collapse(&mut self, cx: &mut TcpCx<'_>, pos: usize, space: u32, mss: u32) {
        loop {
            let q = &self.tx.fl.q;
            if pos + 1 >= q.sent() {
                return;
            }
            let (Some(seg), Some(next)) = (q.get(pos).copied(), q.get(pos + 1).copied()) else { return };
            let apart =
                seg.has(tag::EOR | tag::SYN | tag::FIN) || next.has(tag::SACKED | tag::SYN | tag::FIN) || next.segs > 1;
            let len = seg.data_len() + next.data_len();
            if apart || len > space || next.end_seq.gt(self.tx.wnd_end()) {
                return;
            }
            if q.count_frags(seg.seq, next.end_seq) > SEG_FRAGS.min(cx.skbs.max_frags()) {
                return;
            }
            // The neighbour's own tags go: it is part of this retransmission now.
            self.adjust_segs(&next, next.segs, 0);
            if let Some(n) = self.tx.fl.q.get_mut(pos + 1) {
                n.tags &= !tag::TAGBITS;
            }
            self.tx.fl.q.merge_next(pos);
            self.uncharge_seg(cx, 0);
            self.recount(pos, mss);
        }
    }

    /// A segment and `bytes` of its payload left the queues.
    pub(crate) fn uncharge_seg(&mut self, cx: &mut TcpCx<'_>, bytes: u32) {
        self.uncharge_bytes(cx, SEG_TRUESIZE + bytes);
    }
    /// `bytes` of truesize left the queues.
    pub(crate) fn uncharge_bytes(&mut self, cx: &mut TcpCx<'_>, bytes: u32) {
        debug_assert!(self.tx.wmem_queued >= bytes);
        self.tx.wmem_queued = self.tx.wmem_queued.saturating_sub(bytes);
        cx.mem.uncharge(self.tx.group, bytes);
    }
}

impl Conn {
    /// Sends lost segments again, in sequence order, as far as cwnd allows.
    pub(crate) fn xmit_retransmit_queue(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) {
        let max_segs = self.tso_segs(self.current_mss());
        let mut pos = self.tx.fl.retrans_hint.map_or(0, |h| self.tx.fl.q.find(h));
        let (mut hole, mut rearm) = (false, false);
        while pos < self.tx.fl.q.sent() {
            let Some(seg) = self.tx.fl.q.get(pos).copied() else { break };
            if !hole {
                self.tx.fl.retrans_hint = Some(seg.seq);
            }
            let segs = self.tx.cc.cwnd.saturating_sub(self.tx.in_flight()).min(max_segs);
            if segs == 0 || self.tx.retrans_out >= self.tx.lost_out {
                break;
            }
            if !seg.has(tag::LOST) {
                hole |= !seg.has(tag::SACKED | tag::RETRANS);
                pos += 1;
                continue;
            }
            if seg.has(tag::SACKED | tag::RETRANS) {
                pos += 1;
                continue;
            }
            if self.small_queue_full(cx, seg.data_len(), 1) || !self.retransmit_seg(cx, o, pos, segs, true) {
                break;
            }
            let sent = self.tx.fl.q.get(pos).map_or(1, |s| s.segs);
            if self.tx.cc.ca_state == CaState::Loss {
                cx.mib.slow_start_retrans += u64::from(sent);
            } else {
                cx.mib.fast_retrans += u64::from(sent);
            }
            if self.tx.in_cwnd_reduction() {
                self.tx.fl.prr.out = self.tx.fl.prr.out.saturating_add(sent);
            }
            rearm |= pos == 0 && self.timers.retrans_kind() != RetransKind::Reo;
            pos += 1;
        }
        if rearm {
            self.arm_rto(cx, self.clamp_rto_to_user_timeout(cx));
        }
    }
}
