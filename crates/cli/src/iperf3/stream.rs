//! One stream of a test: its socket, its direction, and everything that is counted on it.
//!
//! A stream sends or receives; `--bidir` has streams of both kinds. It is pumped between the turns of its shard, as every
//! application over an inline shard: a sender hands over one block (TCP) or one train of datagrams (UDP) per call, so
//! that many streams take turns and bytes just copied are still in the cache when they leave; a receiver takes all
//! that is there. UDP headers are written into a block that is otherwise the same for every datagram; when several
//! datagrams are due they leave as one train (UDP_SEGMENT), with one time stamp.
//!
//! Counting is iperf3's: loss is a gap in the counts, one less for each that comes late; jitter is that of RFC 1889
//! section 6.3.1 (later RFC 3550), on the receiver's clock minus the sender's, so neither clock has to be right. What was
//! sent last and lost is no gap and is not seen by the receiver. Counters start again when the omitted time is over.

use std::net::SocketAddr;

use linerate_base::Instant;
use linerate_skb::Frag;
use linerate_stack::udp::{RecvFlags, SendOpts, UdpRecvError, UdpSendError};
use linerate_stack::{RecvError, SendError, SendFlags, Shard, SockId};

use super::ctrl::is_readable;
use super::pace::Pacer;
use super::proto::{Params, Protocol, StreamResult, UdpHeader};

/// Longest train of datagrams, bytes, and most datagrams in it (Linux's `UDP_MAX_SEGMENTS`).
const TRAIN_BYTES: usize = 65_000;
const TRAIN_DATAGRAMS: u64 = 128;
/// Datagrams or trains taken in one call.
const RECV_MAX: usize = 256;
/// Blocks that a paced stream sends in one call when it is behind.
const PACED_BLOCKS: usize = 64;
/// Room for a train that arrived merged.
const UDP_BUF: usize = 65_536;

/// What is counted, from the beginning of the measured time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Payload bytes.
    pub(crate) bytes: u64,
    /// Datagrams sent, or the highest count received.
    pub(crate) datagrams: u64,
    /// Datagrams missing.
    pub(crate) lost: u64,
    /// Datagrams that came after a later one.
    pub(crate) out_of_order: u64,
    /// Segments sent again.
    pub(crate) retransmits: u64,
}

impl Counts {
    /// What was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            datagrams: self.datagrams.saturating_sub(earlier.datagrams),
            lost: self.lost.saturating_sub(earlier.lost),
            out_of_order: self.out_of_order.saturating_sub(earlier.out_of_order),
            retransmits: self.retransmits.saturating_sub(earlier.retransmits),
        }
    }
    /// Both together.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            datagrams: self.datagrams.saturating_add(other.datagrams),
            lost: self.lost.saturating_add(other.lost),
            out_of_order: self.out_of_order.saturating_add(other.out_of_order),
            retransmits: self.retransmits.saturating_add(other.retransmits),
        }
    }
    /// Share of datagrams that are missing, percent.
    pub(crate) fn lost_percent(&self) -> f64 {
        if self.datagrams == 0 { 0.0 } else { 100.0 * self.lost as f64 / self.datagrams as f64 }
    }
}

/// What a sending TCP connection says about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TcpSample {
    pub(crate) cwnd_bytes: u64,
    pub(crate) snd_wnd_bytes: u64,
    pub(crate) rtt_us: u32,
    pub(crate) rttvar_us: u32,
    pub(crate) pmtu_bytes: u32,
}

/// Extremes over the samples of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TcpExtremes {
    pub(crate) max_cwnd_bytes: u64,
    pub(crate) max_snd_wnd_bytes: u64,
    pub(crate) max_rtt_us: u32,
    pub(crate) min_rtt_us: u32,
    sum_rtt_us: u64,
    samples: u64,
}

impl TcpExtremes {
    fn add(&mut self, s: &TcpSample) {
        self.min_rtt_us = if self.samples == 0 { s.rtt_us } else { self.min_rtt_us.min(s.rtt_us) };
        self.max_rtt_us = self.max_rtt_us.max(s.rtt_us);
        self.max_cwnd_bytes = self.max_cwnd_bytes.max(s.cwnd_bytes);
        self.max_snd_wnd_bytes = self.max_snd_wnd_bytes.max(s.snd_wnd_bytes);
        self.sum_rtt_us += u64::from(s.rtt_us);
        self.samples += 1;
    }
    pub(crate) fn mean_rtt_us(&self) -> u64 {
        self.sum_rtt_us.checked_div(self.samples).unwrap_or(0)
    }
}

/// Bytes and blocks that may still be sent (`-n`, `-k`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

impl Quota {
    pub(crate) const UNLIMITED: Self = Self { bytes: u64::MAX, blocks: u64::MAX };

    const fn is_spent(&self) -> bool {
        self.bytes == 0 || self.blocks == 0
    }
}

/// What a call of [`Stream::pump`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pumped {
    /// Payload bytes that moved.
    pub(crate) bytes: u64,
    /// The socket takes or has nothing more; false for a stream that waits for its pace.
    pub(crate) blocked: bool,
}

/// What all streams of a test send and receive with.
pub(crate) struct Buffers {
    /// Bytes that are sent: a block, or as many datagrams as fit a train.
    data: Vec<u8>,
    /// The same by reference, for `--zerocopy`.
    page: Option<Frag>,
    recv: Vec<u8>,
    /// Received bytes are thrown away in the stack (MSG_TRUNC).
    discard: bool,
}

impl Buffers {
    /// For blocks of `params.len`; the bytes are `fill`'s.
    pub(crate) fn new(params: &Params, discard: bool, mut fill: impl FnMut(&mut [u8])) -> Self {
        let (send_len, recv_len) = match params.protocol {
            Protocol::Tcp => (params.len, params.len),
            Protocol::Udp => ((TRAIN_BYTES / params.len).max(1) * params.len, UDP_BUF),
        };
        let mut data = vec![0; send_len];
        fill(&mut data);
        Self { data, page: None, recv: vec![0; recv_len], discard }
    }
    /// Send by reference to `page`, which holds a block.
    pub(crate) fn send_by_reference(&mut self, page: Frag) {
        self.page = Some(page);
    }
}

/// What the receiver of datagrams remembers.
#[derive(Clone, Copy, Debug, Default)]
struct UdpRx {
    /// Highest count seen, and what it was when counting began.
    highest: u64,
    base: u64,
    transit_secs: Option<f64>,
    jitter_secs: f64,
}

/// One stream.
pub(crate) struct Stream {
    /// Its number in the results.
    pub(crate) id: u32,
    pub(crate) sock: SockId,
    /// This side sends.
    pub(crate) sends: bool,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) counts: Counts,
    /// Of the last sample.
    pub(crate) tcp: Option<TcpSample>,
    pub(crate) extremes: TcpExtremes,
    protocol: Protocol,
    len: usize,
    wide: bool,
    burst: u32,
    pacer: Option<Pacer>,
    /// Bytes of the present block that the socket has not taken.
    block_left: usize,
    /// Datagrams sent since the beginning, omitted ones included: the number of the last.
    udp_sent: u64,
    udp_rx: UdpRx,
    /// Segments sent again before counting began.
    retransmits_base: u64,
    /// A train was refused: the path is too narrow for it, or the device for trains.
    no_trains: bool,
    /// The peer has closed, or this side has let go.
    over: bool,
    /// The socket was closed here.
    closed: bool,
}

impl Stream {
    pub(crate) fn new(nth: usize, sock: SockId, sends: bool, ends: [SocketAddr; 2], params: &Params) -> Self {
        Self {
            id: super::proto::stream_id(nth),
            sock,
            sends,
            local: ends[0],
            remote: ends[1],
            counts: Counts::default(),
            tcp: None,
            extremes: TcpExtremes::default(),
            protocol: params.protocol,
            len: params.len,
            wide: params.udp_64bit,
            burst: params.burst,
            pacer: None,
            block_left: params.len,
            udp_sent: 0,
            udp_rx: UdpRx::default(),
            retransmits_base: 0,
            no_trains: false,
            over: false,
            closed: false,
        }
    }

    /// Starts the clock of the pace.
    pub(crate) fn start(&mut self, rate: u64, now: Instant) {
        let burst = self.len as u64 * u64::from(self.burst);
        self.pacer = (self.sends && rate > 0).then(|| Pacer::new(rate, burst, now));
    }
    /// When a stream that waits for its pace may go on.
    pub(crate) fn next_send(&self) -> Option<Instant> {
        self.pacer.as_ref().filter(|_| self.sends && !self.over).map(Pacer::next)
    }
    /// Jitter of received datagrams, seconds.
    pub(crate) fn jitter_secs(&self) -> f64 {
        self.udp_rx.jitter_secs
    }
    /// The peer has closed its end.
    pub(crate) const fn is_over(&self) -> bool {
        self.over
    }
    /// No more bytes move.
    pub(crate) fn let_go(&mut self) {
        self.over = true;
    }

    /// The socket is no longer ours.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }
    /// The socket was closed.
    pub(crate) fn set_closed(&mut self) {
        (self.over, self.closed) = (true, true);
    }

    /// The omitted time is over: counting begins again.
    pub(crate) fn restart(&mut self, shard: &Shard) {
        self.sample(shard, false);
        self.retransmits_base += self.counts.retransmits;
        self.counts = Counts::default();
        self.extremes = TcpExtremes::default();
        self.udp_rx.base = self.udp_rx.highest;
        self.udp_rx.jitter_secs = 0.0;
    }

    /// Asks the connection how it is; `keep` enters the answer into the extremes.
    pub(crate) fn sample(&mut self, shard: &Shard, keep: bool) {
        if !self.sends || self.protocol != Protocol::Tcp {
            return;
        }
        let Some(info) = shard.info(self.sock) else { return };
        let sample = TcpSample {
            cwnd_bytes: u64::from(info.snd_cwnd) * u64::from(info.snd_mss),
            snd_wnd_bytes: u64::from(info.snd_wnd),
            rtt_us: info.rtt,
            rttvar_us: info.rttvar,
            pmtu_bytes: info.pmtu,
        };
        self.counts.retransmits = u64::from(info.total_retrans).saturating_sub(self.retransmits_base);
        self.tcp = Some(sample);
        if keep {
            self.extremes.add(&sample);
        }
    }

    /// What goes into the results.
    pub(crate) fn result(&self, end_secs: f64) -> StreamResult {
        StreamResult {
            id: self.id,
            bytes: self.counts.bytes,
            retransmits: (self.sends && self.protocol == Protocol::Tcp).then_some(self.counts.retransmits),
            jitter_secs: self.jitter_secs(),
            errors: self.counts.lost,
            datagrams: self.counts.datagrams,
            start_secs: 0.0,
            end_secs,
        }
    }

    /// Moves what can be moved now; a sender takes it off the quota.
    pub(crate) fn pump(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        buffers: &mut Buffers,
        quota: &mut Quota,
    ) -> Result<Pumped, String> {
        match (self.over, self.sends, self.protocol) {
            (true, ..) => Ok(Pumped { bytes: 0, blocked: true }),
            (_, true, Protocol::Tcp) => self.send_tcp(shard, now, buffers, quota),
            (_, true, Protocol::Udp) => self.send_udp(shard, now, buffers, quota),
            (_, false, Protocol::Tcp) => self.recv_tcp(shard, buffers),
            (_, false, Protocol::Udp) => self.recv_udp(shard, now, buffers),
        }
    }

    fn send_tcp(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        buffers: &Buffers,
        quota: &mut Quota,
    ) -> Result<Pumped, String> {
        let mut moved = Pumped::default();
        let blocks = if self.pacer.is_some() { PACED_BLOCKS } else { 1 };
        for _ in 0..blocks {
            let paced = self.pacer.as_mut().is_some_and(|p| p.behind(now).is_none());
            if quota.is_spent() || (paced && self.block_left == self.len) {
                break;
            }
            let bursts = if self.pacer.is_some() { self.burst } else { 1 };
            for _ in 0..bursts {
                let (wrote, blocked) = self.write_block(shard, buffers, quota)?;
                moved.bytes += wrote;
                moved.blocked = blocked;
                if blocked || quota.is_spent() {
                    return Ok(moved);
                }
            }
        }
        Ok(moved)
    }

    /// Hands over what is left of the present block; at its end the next begins. Returns the bytes that the socket took,
    /// and whether it would not take all.
    fn write_block(&mut self, shard: &mut Shard, buffers: &Buffers, quota: &mut Quota) -> Result<(u64, bool), String> {
        let want = self.block_left.min(usize::try_from(quota.bytes).unwrap_or(usize::MAX));
        let from = self.len - self.block_left;
        let done = match &buffers.page {
            // A reference is taken whole or not at all.
            Some(page) => {
                let frag = page.slice(from as u32, want as u32);
                shard.write_frag(self.sock, frag, SendFlags::default()).map(|()| want).map_err(|(_, error)| error)
            }
            None => shard.write(self.sock, &buffers.data[from..from + want]),
        };
        let wrote = match done {
            Ok(wrote) => wrote,
            Err(SendError::WouldBlock) => 0,
            Err(error) => return Err(format!("unable to write to stream {}: {error}", self.id)),
        };
        self.block_left -= wrote;
        self.counts.bytes += wrote as u64;
        quota.bytes -= wrote as u64;
        if let Some(pacer) = &mut self.pacer {
            pacer.sent(wrote as u64);
        }
        if self.block_left == 0 {
            self.block_left = self.len;
            quota.blocks = quota.blocks.saturating_sub(1);
        }
        Ok((wrote as u64, wrote < want))
    }

    fn recv_tcp(&mut self, shard: &mut Shard, buffers: &mut Buffers) -> Result<Pumped, String> {
        let mut moved = Pumped { bytes: 0, blocked: true };
        while is_readable(shard, self.sock) {
            let got = match buffers.discard {
                true => shard.read_discard(self.sock, self.len),
                false => shard.read(self.sock, &mut buffers.recv),
            };
            match got {
                Ok(0) => {
                    self.over = true;
                    return Ok(moved);
                }
                Ok(got) => {
                    moved.bytes += got as u64;
                    self.counts.bytes += got as u64;
                }
                Err(RecvError::WouldBlock) => return Ok(moved),
                Err(error) => return Err(format!("unable to read from stream {}: {error}", self.id)),
            }
        }
        Ok(moved)
    }

    fn send_udp(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        buffers: &mut Buffers,
        quota: &mut Quota,
    ) -> Result<Pumped, String> {
        let mut moved = Pumped::default();
        for _ in 0..PACED_BLOCKS {
            let due = match &mut self.pacer {
                None => u64::MAX,
                Some(pacer) => match pacer.behind(now) {
                    None => return Ok(moved),
                    Some(bytes) => (bytes / self.len as u64 + 1).next_multiple_of(u64::from(self.burst)),
                },
            };
            let most = if self.no_trains { 1 } else { (buffers.data.len() / self.len) as u64 };
            let by_bytes = quota.bytes.div_ceil(self.len as u64);
            let train = due.min(most).min(TRAIN_DATAGRAMS).min(quota.blocks).min(by_bytes);
            if train == 0 {
                return Ok(moved);
            }
            if !self.send_train(shard, now, buffers, train)? {
                moved.blocked = true;
                return Ok(moved);
            }
            let bytes = if self.no_trains { 1 } else { train } * self.len as u64;
            moved.bytes += bytes;
            self.note_sent(bytes, quota);
            if self.pacer.is_none() {
                return Ok(moved);
            }
        }
        Ok(moved)
    }

    fn note_sent(&mut self, bytes: u64, quota: &mut Quota) {
        let datagrams = bytes / self.len as u64;
        self.udp_sent += datagrams;
        self.counts.bytes += bytes;
        self.counts.datagrams += datagrams;
        quota.bytes = quota.bytes.saturating_sub(bytes);
        quota.blocks = quota.blocks.saturating_sub(datagrams);
        if let Some(pacer) = &mut self.pacer {
            pacer.sent(bytes);
        }
    }

    /// Sends `train` datagrams, or one when trains turn out to be refused; false when the socket is full.
    fn send_train(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        buffers: &mut Buffers,
        train: u64,
    ) -> Result<bool, String> {
        let micros = now.as_micros();
        let (sec, usec) = ((micros / 1_000_000) as u32, (micros % 1_000_000) as u32);
        let bytes = train as usize * self.len;
        for (at, datagram) in (1..).zip(buffers.data[..bytes].chunks_exact_mut(self.len)) {
            UdpHeader { sec, usec, count: self.udp_sent + at }.emit(datagram, self.wide);
        }
        let opts = SendOpts { gso_size: (train > 1).then_some(self.len as u16), ..SendOpts::default() };
        match shard.send_to(self.sock, &buffers.data[..bytes], None, opts) {
            Ok(_) => Ok(true),
            Err(UdpSendError::WouldBlock | UdpSendError::NoMem) => Ok(false),
            Err(UdpSendError::BadGsoSize) if train > 1 => {
                self.no_trains = true;
                self.send_train(shard, now, buffers, 1)
            }
            Err(UdpSendError::TooBig) => {
                Err(format!("a datagram of {} bytes is too large for the path: use a smaller -l", self.len))
            }
            Err(error) => Err(format!("unable to write to stream {}: {error}", self.id)),
        }
    }

    fn recv_udp(&mut self, shard: &mut Shard, now: Instant, buffers: &mut Buffers) -> Result<Pumped, String> {
        let mut moved = Pumped { bytes: 0, blocked: true };
        for _ in 0..RECV_MAX {
            match shard.recv_from(self.sock, &mut buffers.recv, RecvFlags::default()) {
                Ok(got) if got.from != self.remote => {}
                Ok(got) => {
                    let each = got.gso_size.map_or(got.len, usize::from).max(1);
                    for datagram in buffers.recv[..got.len].chunks(each) {
                        moved.bytes += self.count_datagram(datagram, now);
                    }
                }
                Err(UdpRecvError::WouldBlock) => return Ok(moved),
                Err(error) => return Err(format!("unable to read from stream {}: {error}", self.id)),
            }
        }
        moved.blocked = false;
        Ok(moved)
    }

    /// Enters one datagram into the books; returns its bytes, 0 for one that is none of this test.
    fn count_datagram(&mut self, datagram: &[u8], now: Instant) -> u64 {
        // A greeting that was sent again is shorter than a header.
        let Some(header) = UdpHeader::parse(datagram, self.wide) else { return 0 };
        self.counts.bytes += datagram.len() as u64;
        let rx = &mut self.udp_rx;
        if header.count > rx.highest {
            let missing = header.count - 1 - rx.highest;
            self.counts.lost = self.counts.lost.saturating_add(missing);
            rx.highest = header.count;
            self.counts.datagrams = rx.highest.saturating_sub(rx.base);
        } else {
            self.counts.out_of_order += 1;
            self.counts.lost = self.counts.lost.saturating_sub(1);
        }
        let transit = now.as_nanos() as f64 / 1e9 - header.secs();
        if let Some(before) = rx.transit_secs {
            rx.jitter_secs += ((transit - before).abs() - rx.jitter_secs) / 16.0;
        }
        rx.transit_secs = Some(transit);
        datagram.len() as u64
    }
}

#[cfg(test)]
mod tests;
