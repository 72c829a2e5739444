//! The sender half alone: a conversation with a fabricated peer.
//!
//! [`Peer`] owns one connection and everything it borrows. `write` queues bytes of a known pattern, `sent` fetches what
//! leaves (and checks every payload byte against the pattern, every counter against the queue), `ack` and `sack` answer,
//! `pass_us` lets time go by, firing timers exactly when they are due. Sequence numbers are relative to the ISN, as in
//! packetdrill: the first byte is 1. The device completes at once unless a test holds completions back.

mod basic;
mod hostile;
mod quick;
mod recovery;
mod timers;

use std::vec::Vec;

use linerate_arch::Kernels;
use linerate_base::mib::TcpMib;
use linerate_base::rng::Rng;
use linerate_base::token_bucket::TokenBucket;
use linerate_base::{DropCounters, Instant, RstCounters, Seq};
use linerate_skb::{Page, PagePool, PoolConfig, SkbBatch, SkbCache};
use linerate_wire::flow::FlowKey;
use linerate_wire::{SackBlocks, TcpFlags, TcpRepr, Timestamps};

use crate::ack::AckInfo;
use crate::config::{PathInfo, SockOpts, TcpConfig};
use crate::conn::{Conn, Isn};
use crate::cx::TcpCx;
use crate::input::Seg;
use crate::mem::MemAcct;
use crate::parts::Parts;
use crate::state::State;
use crate::tx::{SendError, SendFlags};

/// One segment as it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) flags: TcpFlags,
    pub(crate) segs: u32,
    pub(crate) mss: u32,
}

impl Sent {
    pub(crate) fn end(&self) -> u32 {
        self.seq + self.len
    }
}

/// Short form for assertions: (seq, len) of data segments.
pub(crate) fn spans(sent: &[Sent]) -> Vec<(u32, u32)> {
    sent.iter().filter(|s| s.len > 0).map(|s| (s.seq, s.len)).collect()
}

pub(crate) struct Peer {
    pub(crate) now: Instant,
    pool: PagePool,
    page: Option<Page>,
    skbs: SkbCache,
    pub(crate) mib: TcpMib,
    drops: DropCounters,
    rsts: RstCounters,
    pub(crate) parts: Parts,
    pub(crate) mem: MemAcct,
    rng: Rng,
    challenge: TokenBucket,
    pub(crate) cfg: TcpConfig,
    pub(crate) conn: Conn,
    out: SkbBatch,
    pub(crate) iss: Seq,
    /// Sequence number of the peer's segments.
    pub(crate) seq: Seq,
    /// Window that the peer announces, bytes.
    pub(crate) wnd: u32,
    /// TSval of the segment sent last.
    pub(crate) last_tsval: u32,
    /// Skbs that the device keeps: their truesize.
    pub(crate) held: Vec<u32>,
    pub(crate) hold: bool,
    pub(crate) written: u64,
    /// Wire frames sent, and how many of these had their sum noted, all of it.
    pub(crate) noted: (u32, u32),
}

/// What a test wants to differ.
pub(crate) struct Setup {
    pub(crate) cfg: TcpConfig,
    pub(crate) path: PathInfo,
    pub(crate) opts: SockOpts,
    pub(crate) iss: u32,
    pub(crate) wnd: u32,
    pub(crate) mss: u16,
    /// Round trip of the handshake, µs.
    pub(crate) rtt_us: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            cfg: TcpConfig { timestamps: false, congestion_control: "reno", ..TcpConfig::default() },
            path: PathInfo {
                mtu_bytes: 1040,
                advmss_bytes: 0,
                init_cwnd_segs: 0,
                init_rwnd_segs: 0,
                ip_header_bytes: 20,
                mtu_locked: false,
                rto_min_us: 0,
                gso_max_size_bytes: 65_536,
                gso_max_segs: 1000,
                tx_csum: true,
                tso: true,
            },
            opts: SockOpts::default(),
            iss: 1_000_000,
            wnd: 1 << 20,
            mss: 1000,
            rtt_us: 100_000,
        }
    }
}

/// Lends the world to a call on the connection.
macro_rules! cx {
    ($p:expr) => {
        &mut TcpCx {
            now: $p.now,
            pool: &mut $p.pool,
            page: &mut $p.page,
            skbs: &mut $p.skbs,
            mib: &mut $p.mib,
            drops: &mut $p.drops,
            rsts: &mut $p.rsts,
            parts: &mut $p.parts,
            mem: &mut $p.mem,
            rng: &mut $p.rng,
            challenge: &mut $p.challenge,
            cfg: &$p.cfg,
            kernels: Kernels::portable(),
        }
    };
}
pub(crate) use cx;

impl Peer {
    /// An established connection: handshake of one round trip, MSS 1000, window 1 MiB, SACK, no timestamps, Reno.
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(crate) fn with(s: Setup) -> Self {
        let mut p = Self::syn_sent(s.cfg, s.path, s.opts, s.iss);
        (p.wnd, p.conn.neg.peer_mss_bytes) = (s.wnd, s.mss);
        let syn = p.sent();
        assert_eq!((syn.len(), syn[0].flags), (1, TcpFlags::SYN));
        p.pass_us(s.rtt_us);
        p.conn.state.on_syn_ack().expect("established");
        p.conn.rx.nxt = p.seq;
        let info = p.ack(1);
        assert!(info.syn_acked && info.una_advanced);
        let now = p.now;
        p.conn.tx_init(cx!(p), now, false);
        p
    }

    pub(crate) fn syn_sent(cfg: TcpConfig, path: PathInfo, opts: SockOpts, iss: u32) -> Self {
        let mut pool = PagePool::new(PoolConfig::default());
        let (mut page, mut skbs, mut mib) = (None, SkbCache::new(1 << 14), TcpMib::default());
        let (mut drops, mut mem, mut rng) = (DropCounters::default(), MemAcct::default(), Rng::new(1));
        let (mut challenge, mut parts) = (TokenBucket::new(1000, 1000), Parts::new());
        let now = Instant::from_secs(1000);
        let key = FlowKey::new("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap(), 6);
        let isn = Isn { iss: Seq(iss), ts_offset: 77 };
        let cx = &mut TcpCx {
            now,
            pool: &mut pool,
            page: &mut page,
            skbs: &mut skbs,
            mib: &mut mib,
            drops: &mut drops,
            rsts: &mut RstCounters::default(),
            parts: &mut parts,
            mem: &mut mem,
            rng: &mut rng,
            challenge: &mut challenge,
            cfg: &cfg,
            kernels: Kernels::portable(),
        };
        let conn = Conn::connect(cx, key, path, opts, isn);
        Self {
            now,
            pool,
            page,
            skbs,
            mib,
            drops,
            rsts: RstCounters::default(),
            parts,
            mem,
            rng,
            challenge,
            cfg,
            conn,
            out: SkbBatch::new(),
            iss: Seq(iss),
            seq: Seq(5001),
            wnd: 1 << 20,
            last_tsval: 0,
            held: Vec::new(),
            hold: false,
            written: 0,
            noted: (0, 0),
        }
    }

    /// The byte at stream offset `at`.
    fn pattern(at: u64) -> u8 {
        (at.wrapping_mul(31) ^ (at >> 8)) as u8
    }

    /// Writes `n` bytes and returns how many were taken.
    pub(crate) fn write(&mut self, n: usize) -> usize {
        self.write_with(n, SendFlags::default()).unwrap_or(0)
    }
    pub(crate) fn write_with(&mut self, n: usize, flags: SendFlags) -> Result<usize, SendError> {
        let data: Vec<u8> = (0..n as u64).map(|i| Self::pattern(self.written + i)).collect();
        let taken = self.conn.write(cx!(self), &data, flags);
        self.written += taken.unwrap_or(0) as u64;
        self.conn.check_invariants();
        taken
    }

    /// What leaves without a descriptor, unless completions are held back, which that way knows nothing of.
    fn sent_small(&mut self) -> Option<Sent> {
        if self.hold {
            return None;
        }
        let mut room = [0; 100];
        let (header, payload) = self.conn.poll_small(cx!(self), &mut room)?;
        let (h, len) = TcpRepr::parse(&room[..header]).unwrap();
        assert_eq!((len, h.flags.contains(TcpFlags::ACK)), (header, !h.flags.contains(TcpFlags::SYN)));
        let seq = h.seq - self.iss;
        for (at, &byte) in room[header..header + payload].iter().enumerate() {
            assert_eq!(byte, Self::pattern(u64::from(seq.wrapping_sub(1)) + at as u64), "byte {at} of {seq}");
        }
        if let Some(ts) = h.opts.ts {
            self.last_tsval = ts.val;
        }
        Some(Sent { seq, len: payload as u32, flags: h.flags, segs: 1, mss: 0 })
    }

    /// Everything that leaves now.
    /// Cuts as a device would, and asks for the sum of each piece.
    fn count_notes(&mut self, skb: &linerate_skb::Skb) {
        let mss = if skb.gso_size == 0 { skb.data_len().max(1) } else { skb.gso_size };
        let (mut at, mut left) = (0, mss.min(skb.data_len()));
        let mut known = left > 0;
        let mut frame_ends = |left: &mut u32, known: &mut bool, rest: u32| {
            self.noted = (self.noted.0 + 1, self.noted.1 + u32::from(*known));
            (*left, *known) = (mss.min(rest), true);
        };
        for frag in skb.frags() {
            let mut off = 0;
            while off < frag.len() {
                let piece = frag.slice(off, left);
                let sum = piece.noted_sum();
                assert!(sum.is_none_or(|sum| sum == Kernels::portable().sum(piece.as_slice())));
                known &= sum.is_some();
                (off, at, left) = (off + piece.len(), at + piece.len(), left - piece.len());
                if left == 0 {
                    frame_ends(&mut left, &mut known, skb.data_len() - at);
                }
            }
        }
    }

    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        loop {
            if let Some(sent) = self.sent_small() {
                all.push(sent);
                continue;
            }
            let mut out = core::mem::take(&mut self.out);
            let n = self.conn.poll_xmit(cx!(self), &mut out, 64);
            assert_eq!(n, out.len());
            for skb in out.drain(..) {
                let (h, len) = TcpRepr::parse(skb.head()).unwrap();
                assert_eq!(len, skb.head_len());
                let seq = h.seq - self.iss;
                self.check_payload(&skb, seq);
                if let Some(ts) = h.opts.ts {
                    self.last_tsval = ts.val;
                }
                all.push(Sent { seq, len: skb.data_len(), flags: h.flags, segs: skb.gso_segs, mss: skb.gso_size });
                self.held.push(skb.truesize);
                self.count_notes(&skb);
                self.skbs.free(skb, &mut self.pool);
            }
            self.out = out;
            if !self.hold {
                self.complete();
            }
            if n == 0 {
                break;
            }
        }
        self.conn.check_invariants();
        all
    }

    fn check_payload(&self, skb: &linerate_skb::Skb, seq: u32) {
        let mut at = u64::from(seq.wrapping_sub(1));
        for slice in skb.payload_slices().map(<[u8]>::to_vec).skip_while(|_| skb.data_len() == 0) {
            // The head is the TCP header: `payload_slices` begins behind it.
            for b in slice {
                assert_eq!(b, Self::pattern(at), "byte at {at}");
                at += 1;
            }
        }
    }

    /// The device has sent everything that it held.
    pub(crate) fn complete(&mut self) {
        for bytes in core::mem::take(&mut self.held) {
            self.conn.on_tx_done(cx!(self), bytes);
        }
    }

    pub(crate) fn seg(&self, ack: u32) -> Seg {
        Seg {
            seq: self.seq,
            end_seq: self.seq,
            ack: self.iss + ack,
            wnd: self.wnd,
            flags: TcpFlags::ACK,
            len: 0,
            gso_segs: 1,
            header_len: 20,
            ts: None,
            sack: SackBlocks::EMPTY,
            now: self.now,
            ece: false,
            ip_ecn: 0,
        }
    }

    /// Delivers a segment of the peer.
    pub(crate) fn feed(&mut self, seg: &Seg) -> AckInfo {
        self.conn.note_peer_alive(&*cx!(self));
        let info = self.conn.on_ack(cx!(self), seg).expect("acceptable");
        self.conn.check_invariants();
        info
    }
    /// A cumulative ACK.
    pub(crate) fn ack(&mut self, ack: u32) -> AckInfo {
        let seg = self.seg(ack);
        self.feed(&seg)
    }
    /// An ACK with SACK blocks.
    pub(crate) fn sack(&mut self, ack: u32, blocks: &[(u32, u32)]) -> AckInfo {
        let mut seg = self.seg(ack);
        let blocks: Vec<_> = blocks.iter().map(|&(l, r)| (self.iss + l, self.iss + r)).collect();
        seg.sack = SackBlocks::from_slice(&blocks);
        self.feed(&seg)
    }
    /// A cumulative ACK that echoes `ecr`.
    pub(crate) fn ack_ts(&mut self, ack: u32, ecr: u32, blocks: &[(u32, u32)]) -> AckInfo {
        let mut seg = self.seg(ack);
        seg.ts = Some(Timestamps { val: 1, ecr });
        let blocks: Vec<_> = blocks.iter().map(|&(l, r)| (self.iss + l, self.iss + r)).collect();
        seg.sack = SackBlocks::from_slice(&blocks);
        self.feed(&seg)
    }

    /// Lets time pass and fires what falls due, each at its time; what leaves meanwhile is returned with its time, µs.
    pub(crate) fn pass_us(&mut self, us: u64) -> Vec<(u64, Sent)> {
        let start = self.now;
        let end = start.plus_micros(us);
        let mut all = Vec::new();
        for _ in 0..10_000 {
            match self.conn.next_timer().filter(|&t| t <= end) {
                Some(t) => {
                    self.now = self.now.max(t);
                    self.conn.on_timer(cx!(self));
                    if self.conn.state != State::Closed {
                        self.conn.check_invariants();
                    }
                    let at = u64::from(self.now.micros_since(start));
                    all.extend(self.sent().into_iter().map(|s| (at, s)));
                }
                None => {
                    self.now = end;
                    return all;
                }
            }
        }
        panic!("timers do not come to rest");
    }

    pub(crate) fn cwnd(&self) -> u32 {
        self.conn.tx.cc.cwnd
    }
    pub(crate) fn close_write(&mut self) {
        self.conn.state.on_close().expect("open");
        self.conn.queue_fin(cx!(self));
    }
    /// Gives everything back and checks that nothing leaks.
    pub(crate) fn finish(mut self) {
        self.conn.purge_tx(cx!(self));
        assert_eq!(self.mem.allocated_bytes, 0, "charged memory");
        self.complete();
        assert_eq!(self.conn.tx.wmem_alloc, 0);
        if let Some(p) = self.page.take() {
            self.pool.recycle_page(p);
        }
        drop(self.conn);
        assert_eq!(self.pool.inflight(), 0, "pages out");
        assert_eq!(self.skbs.inflight(), 0, "descriptors out");
        assert_eq!(self.skbs.silent_drops(), 0);
    }
}
