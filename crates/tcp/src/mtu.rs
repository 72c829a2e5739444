//! The path's MTU without ICMP: black holes are found and larger sizes are searched (RFC 4821; Linux's `tcp_mtu_probing`).
//!
//! A router that drops what is too long and says nothing is a *black hole*: small segments pass, full ones never do.
//! With `tcp_mtu_probing` 1 a connection whose retransmissions have gone on for `tcp_retries1` doublings (3 seconds at
//! least) suspects one: its MSS falls to `tcp_base_mss`, and by half at each further timeout. From there, or from the start
//! with 2, it searches upwards by bisection:
//!
//! ```text
//!   search_low               probe = (low + high) / 2                 search_high
//!   | known to pass |--------------------- ? -----------------------| the path's MTU, as far as it is known |
//!                     acknowledged: low = probe      lost: high = probe - 1
//! ```
//! A probe is one segment of real data, sent when the window has room for it and for enough others behind it that its
//! loss shows by SACK or duplicate ACKs, so that a loss is the probe's own fault and costs no window (section 7.6.3). A
//! timeout or a retransmission for another reason makes it inconclusive. The search ends when the interval is below
//! `tcp_probe_threshold`, and begins anew after `tcp_probe_interval`. All sizes are of IP packets, in bytes. What ICMP says
//! bounds the search from above. Not here: Packetization Layer PMTUD of datagrams (RFC 8899).

use linerate_base::{Duration, Instant, Seq};
use linerate_cong::CaState;

use crate::conn::Conn;
use crate::cx::TcpCx;
use crate::output::Out;
use crate::txq::tag;

/// Smallest cwnd that probes, wire segments: a probe's loss must leave enough in flight to be noticed.
const CWND_MIN_SEGS: u32 = 11;

/// One probe in flight.
#[derive(Clone, Copy, Debug)]
struct Probe {
    mtu_bytes: u32,
    start: Seq,
    end: Seq,
}

/// The search of one connection; made when it begins.
#[derive(Clone, Debug)]
pub(crate) struct MtuSearch {
    /// Passes.
    low_bytes: u32,
    /// Nothing longer passes.
    high_bytes: u32,
    probe: Option<Probe>,
    since: Instant,
}

impl MtuSearch {
    /// The largest packet that is known to pass, bytes.
    pub(crate) const fn low_bytes(&self) -> u32 {
        self.low_bytes
    }
    /// The path was said to carry no more than this.
    pub(crate) fn bound(&mut self, mtu_bytes: u32) {
        self.high_bytes = self.high_bytes.min(mtu_bytes);
    }
}

/// What became of the wish to probe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probing {
    /// Nothing is to be probed now.
    No,
    /// As soon as a little more is acknowledged: new data waits for that.
    Soon,
    /// A probe left.
    Sent,
}

impl Conn {
    /// Bytes of all headers of a full segment.
    fn header_bytes(&self) -> u32 {
        u32::from(self.path.ip_header_bytes) + 20 + if self.neg.ts { 12 } else { 0 }
    }
    fn mss_of(&self, mtu_bytes: u32) -> u32 {
        mtu_bytes.saturating_sub(self.header_bytes()).max(1)
    }
    /// The longest packet that the peer or the path may take.
    fn search_top(&self) -> u32 {
        let peer = match self.neg.peer_mss_bytes {
            0 => 536,
            mss => u32::from(mss),
        };
        (peer + 20 + u32::from(self.path.ip_header_bytes)).min(self.path.mtu_bytes)
    }

    /// Begins the search at `tcp_base_mss`.
    pub(crate) fn begin_mtu_search(&mut self, cx: &TcpCx<'_>) {
        let high_bytes = self.search_top();
        let low_bytes = (cx.cfg.base_mss_bytes + self.header_bytes()).min(high_bytes);
        self.tx.mtu = Some(alloc::boxed::Box::new(MtuSearch { low_bytes, high_bytes, probe: None, since: cx.now }));
    }

    /// Retransmissions have gone on for long: perhaps the segments are too long for a router that does not say so.
    pub(crate) fn suspect_black_hole(&mut self, cx: &mut TcpCx<'_>) {
        if cx.cfg.mtu_probing == 0 {
            return;
        }
        let headers = self.header_bytes();
        match &mut self.tx.mtu {
            None => self.begin_mtu_search(cx),
            Some(m) => {
                let half = (m.low_bytes.saturating_sub(headers) >> 1).min(cx.cfg.base_mss_bytes);
                m.low_bytes = half.max(cx.cfg.mtu_probe_floor_bytes).max(cx.cfg.min_snd_mss_bytes) + headers;
                m.probe = None;
            }
        }
        self.sync_mss(cx);
    }

    /// Sends a probe, if one is due and would tell something.
    pub(crate) fn mtu_probe(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>) -> Probing {
        let Some(m) = self.tx.mtu.as_deref() else { return Probing::No };
        let calm = self.tx.cc.ca_state == CaState::Open && self.tx.sacked_out == 0;
        if m.probe.is_some() || !calm || self.tx.cc.cwnd < CWND_MIN_SEGS {
            return Probing::No;
        }
        let mtu = (m.low_bytes + m.high_bytes) >> 1;
        let interval = m.high_bytes.saturating_sub(m.low_bytes);
        if interval < cx.cfg.mtu_probe_threshold_bytes || mtu > m.high_bytes {
            self.search_again(cx);
            return Probing::No;
        }
        let size = self.mss_of(mtu);
        let needed = size.saturating_add((u32::from(self.tx.reordering) + 1).saturating_mul(self.tx.cc.mss));
        let unsent = self.tx.write_seq - self.tx.snd_nxt;
        if unsent < needed || self.tx.snd_wnd < needed || o.left == 0 {
            return Probing::No;
        }
        let flight = self.tx.in_flight();
        let window_full = (self.tx.snd_nxt + needed).gt(self.tx.wnd_end());
        if window_full || flight + 2 > self.tx.cc.cwnd {
            return if flight == 0 { Probing::No } else { Probing::Soon };
        }
        self.send_mtu_probe(cx, o, mtu, size)
    }

    fn send_mtu_probe(&mut self, cx: &mut TcpCx<'_>, o: &mut Out<'_>, mtu_bytes: u32, size: u32) -> Probing {
        self.grow_head(cx, size);
        let pos = self.tx.fl.q.sent();
        let Some(head) = self.tx.fl.q.get(pos).copied() else { return Probing::No };
        // A probe is made of what lies at the head of the queue; where that is a lone small write there is none.
        let whole = head.data_len() >= size && !head.has(tag::SYN) && self.fit_frags(cx, &head, size, size) == size;
        if !whole {
            return Probing::No;
        }
        if let Some(head) = self.tx.fl.q.get_mut(pos) {
            head.set_segs(size);
        }
        if self.send_head(cx, o, size, size).is_none() {
            return Probing::No;
        }
        let (start, end) = (head.seq, head.seq + size);
        debug_assert_eq!(self.tx.snd_nxt, end);
        // It takes the place of two in the window.
        self.tx.cc.cwnd -= 1;
        if let Some(m) = self.tx.mtu.as_deref_mut() {
            m.probe = Some(Probe { mtu_bytes, start, end });
        }
        Probing::Sent
    }

    /// The search has come to its end: after a while the path may be another.
    fn search_again(&mut self, cx: &TcpCx<'_>) {
        let interval = Duration::from_secs(u64::from(cx.cfg.mtu_probe_interval_s));
        let (top, headers, mss) = (self.search_top(), self.header_bytes(), self.tx.cc.mss);
        if let Some(m) = self.tx.mtu.as_deref_mut()
            && cx.now.since(m.since) >= interval
        {
            (m.low_bytes, m.high_bytes, m.since) = ((mss + headers).min(top), top, cx.now);
        }
    }

    /// `snd_una` moved: did it pass a probe?
    pub(crate) fn check_mtu_probe(&mut self, cx: &mut TcpCx<'_>) {
        let una = self.tx.snd_una;
        let Some(m) = self.tx.mtu.as_deref_mut() else { return };
        let Some(probe) = m.probe.take_if(|p| p.end.le(una)) else { return };
        m.low_bytes = probe.mtu_bytes;
        cx.mib.mtup_success += 1;
        // The window is one of bytes: fewer and larger segments fill it (Linux `tcp_mtup_probe_success`).
        let larger = self.mss_of(probe.mtu_bytes).max(1);
        let ssthresh = self.tx.current_ssthresh();
        let cc = &mut self.tx.cc;
        let cwnd = u64::from(cc.cwnd) * u64::from(cc.mss) / u64::from(larger);
        cc.cwnd = (cwnd as u32).max(1);
        (cc.cwnd_cnt, cc.ssthresh) = (0, ssthresh);
        self.tx.fl.cwnd_stamp = cx.now;
        self.sync_mss(cx);
    }

    /// A loss was found. Was it the probe alone? Then nothing is said about congestion: it is cut and sent again.
    pub(crate) fn mtu_probe_lost(&mut self, cx: &mut TcpCx<'_>) -> bool {
        let una = self.tx.snd_una;
        let open = matches!(self.tx.cc.ca_state, CaState::Open | CaState::Disorder);
        let Some(m) = self.tx.mtu.as_deref_mut().filter(|_| open) else { return false };
        let Some(probe) = m.probe.take_if(|p| p.start == una) else { return false };
        m.high_bytes = probe.mtu_bytes.saturating_sub(1);
        cx.mib.mtup_fail += 1;
        self.tx.cc.cwnd += 1;
        self.simple_retransmit(cx);
        true
    }

    /// Something is sent again: a probe that is out would tell nothing.
    #[inline]
    pub(crate) fn mtu_probe_inconclusive(&mut self) {
        if let Some(m) = self.tx.mtu.as_deref_mut() {
            m.probe = None;
        }
    }
}
