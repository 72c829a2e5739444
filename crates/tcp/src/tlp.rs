//! Tail loss probes (RFC 8985 section 7): a lost tail shall cost two round trips, not an RTO.
//!
//! After a transmission or an ACK in Open or Cwr, a timer of two round trips (and the peer's delayed ACK, when only one
//! segment is out) is armed in place of the RTO, if it is earlier. When it fires, one new segment is sent, or else the
//! last one again: the ACK or SACK that it causes lets RACK find the loss. One probe at a time. If the probe was a
//! retransmission and the ACK shows that it alone repaired a loss, cwnd is reduced once, as for any loss; if a DSACK or a
//! duplicate ACK shows that both copies arrived, nothing happened.
//! What was not sent yet is not lost: a sender whose device is stalled (a receiver that takes nothing, a full ring) sends
//! no probe. Only with SACK, as in Linux.

use linerate_base::Seq;
use linerate_cong::CaState;
use linerate_skb::SKB_TRUESIZE;

use crate::ack::fact;
use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::output::Out;
use crate::rtt::TIMEOUT_MIN_US;
use crate::timer::{RetransKind, Timer};

impl Conn {
    /// Arms the probe, if one makes sense. `advancing_rto`: the RTO would start now, not at the oldest transmission.
    pub(crate) fn schedule_loss_probe(&mut self, cx: &TcpCx<'_>, advancing_rto: bool) -> bool {
        let tx = &self.tx;
        let idle = tx.packets_out == 0 || !matches!(tx.cc.ca_state, CaState::Open | CaState::Cwr);
        if !cx.cfg.tlp || !self.neg.sack || idle {
            return false;
        }
        let mut timeout_us = match tx.srtt_us8 {
            0 => cx.cfg.rto_initial_us,
            srtt => (srtt >> 2) + if tx.packets_out == 1 { self.rto_min_us(cx) } else { TIMEOUT_MIN_US },
        };
        let rto_us = if advancing_rto { i64::from(tx.rto_us) } else { self.rto_delta_us(cx) };
        if rto_us > 0 {
            timeout_us = timeout_us.min(rto_us as u32);
        }
        let at = cx.now.plus_micros(u64::from(timeout_us.min(cx.cfg.rto_max_us)));
        self.timers.set_retrans(RetransKind::Tlp, at);
        true
    }

    /// Sends the probe that the timer asked for.
    pub(crate) fn send_loss_probe(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) {
        if self.tx.packets_out == 0 {
            return;
        }
        // One at a time; the RTO that was armed when the probe timer fired stays.
        if self.tx.fl.tlp_high_seq.is_some() {
            return;
        }
        self.tx.fl.tlp_retrans = false;
        // New data that fits the window and still can not go is held below, as is a tail that never reached the wire: a copy
        // of it would be the second in the queue. Then the RTO guards alone (Linux `tcp_send_loss_probe`).
        let sent = match self.new_probe_fits() {
            true => self.send_new_probe(cx, o),
            false => !self.tail_is_below(cx) && self.probe_tail(cx, o),
        };
        if sent {
            self.tx.fl.tlp_high_seq = Some(self.tx.snd_nxt);
            cx.mib.loss_probes += 1;
            // The RTO starts anew from the probe.
            self.timers.clear(Timer::Retrans);
            self.rearm_rto(cx);
        }
    }

    /// Is the last segment still below, in the qdisc or the device? Completions come in order, so anything of this socket
    /// that is below stands behind it or is it (Linux `skb_still_in_host_queue`).
    fn tail_is_below(&self, cx: &mut TcpCx<'_>) -> bool {
        // A bare ACK is no data.
        let below = self.tx.wmem_alloc > SKB_TRUESIZE;
        cx.mib.spurious_rtx_host_queues += u64::from(below);
        below
    }

    /// Sends the last wire segment again.
    fn probe_tail(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) -> bool {
        let mss = self.current_mss();
        let Some(mut pos) = self.tx.fl.q.sent().checked_sub(1) else { return false };
        let Some(seg) = self.tx.fl.q.get(pos).copied() else { return false };
        let head_len = (seg.segs - 1).saturating_mul(mss);
        if seg.segs > 1 && seg.data_len() > head_len && self.split_seg(cx, pos, seg.seq + head_len, mss) {
            pos += 1;
        }
        let sent = self.retransmit_seg(cx, o, pos, 1, false);
        self.tx.fl.tlp_retrans = sent;
        sent
    }

    /// What an ACK says about the probe that is out.
    pub(crate) fn process_tlp_ack(&mut self, cx: &mut TcpCx<'_>, ack: Seq, facts: u32) {
        let Some(high) = self.tx.fl.tlp_high_seq.filter(|&h| ack.ge(h)) else { return };
        if !self.tx.fl.tlp_retrans || facts & fact::DSACK_TLP != 0 {
            // New data was acknowledged, or both copies arrived.
            self.tx.fl.tlp_high_seq = None;
        } else if ack.gt(high) {
            // The probe repaired a loss all by itself.
            self.init_cwnd_reduction(cx);
            self.set_ca_state(cx, CaState::Cwr);
            self.end_cwnd_reduction(cx);
            self.try_keep_open(cx);
            cx.mib.loss_probe_recovery += 1;
        } else if facts & (fact::SND_UNA_ADVANCED | fact::NOT_DUP | fact::DATA_SACKED) == 0 {
            self.tx.fl.tlp_high_seq = None;
        }
    }
}
