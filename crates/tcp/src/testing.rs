//! The test bench: one connection against fabricated segments, or two against each other, in virtual time.
//!
//! [`World`] owns what a shard would lend (pools, counters, clock). [`Host`] is a world with one connection: a test hands
//! it segments with numbers relative to both initial sequence numbers (as packetdrill scripts have them) and looks at
//! what it sends. [`Pair`] joins two hosts by a wire with latency and a drop closure; [`Pair::step`] jumps to the next
//! event, so seconds of protocol cost microseconds. Payload is a function of the stream position, so that every byte
//! delivered can be checked. At the end [`World::finish`] demands that every skb, page and charged byte is back home.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use linerate_arch::Kernels;
use linerate_base::mib::TcpMib;
use linerate_base::rng::Rng;
use linerate_base::token_bucket::TokenBucket;
use linerate_base::{DropCounters, DropReason, Duration, Instant, RstCounters, Seq};
use linerate_skb::{Page, PagePool, PoolConfig, SKB_TRUESIZE, Skb, SkbBatch, SkbCache};
use linerate_wire::flow::FlowKey;
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::config::{PathInfo, SockOpts, TcpConfig};
use crate::conn::{Conn, Event, Isn, RecvError};
use crate::cx::{RxMeta, TcpCx};
use crate::mem::MemAcct;
use crate::minisocks::{Disposition, ReqSock};
use crate::parts::Parts;

/// What a shard lends to its connections.
pub(crate) struct World {
    /// The clock.
    pub(crate) now: Instant,
    /// Pages.
    pub(crate) pool: PagePool,
    /// The shared page.
    pub(crate) page: Option<Page>,
    /// Descriptors.
    pub(crate) skbs: SkbCache,
    /// Counters.
    pub(crate) mib: TcpMib,
    /// Drops.
    pub(crate) drops: DropCounters,
    pub(crate) rsts: RstCounters,
    /// Memory.
    pub(crate) parts: Parts,
    pub(crate) mem: MemAcct,
    /// Randomness.
    pub(crate) rng: Rng,
    /// Challenge ACKs.
    pub(crate) challenge: TokenBucket,
    /// Configuration.
    pub(crate) cfg: TcpConfig,
}

impl World {
    /// A world at one second, with `cfg`.
    pub(crate) fn new(cfg: TcpConfig) -> Self {
        Self {
            now: Instant::from_secs(1),
            pool: PagePool::new(PoolConfig { page_shift: 12, max_pages: 16_384, cache_pages: 128 }),
            page: None,
            skbs: SkbCache::new(32_768),
            mib: TcpMib::default(),
            drops: DropCounters::default(),
            rsts: RstCounters::default(),
            parts: Parts::new(),
            mem: MemAcct::default(),
            rng: Rng::new(1),
            challenge: TokenBucket::UNLIMITED,
            cfg,
        }
    }
    /// The context of one call.
    pub(crate) fn cx(&mut self) -> TcpCx<'_> {
        TcpCx {
            now: self.now,
            pool: &mut self.pool,
            page: &mut self.page,
            skbs: &mut self.skbs,
            mib: &mut self.mib,
            drops: &mut self.drops,
            rsts: &mut self.rsts,
            parts: &mut self.parts,
            mem: &mut self.mem,
            rng: &mut self.rng,
            challenge: &mut self.challenge,
            cfg: &self.cfg,
            kernels: Kernels::portable(),
        }
    }
    /// An skb with header and payload, as a device hands it up; each page of payload is charged whole.
    pub(crate) fn skb(&mut self, h: &TcpRepr, payload: &[u8], gso_size: u32) -> Skb {
        let mut skb = self.skbs.alloc().expect("a descriptor");
        let head = skb.push_head(h.header_len()).expect("headroom");
        h.emit(head);
        skb.transport_header = skb.head_offset();
        let mut rest = payload;
        let mut truesize = SKB_TRUESIZE;
        while !rest.is_empty() {
            let mut page = self.pool.alloc().expect("a page");
            let frag = page.append(&Kernels::portable(), rest).expect("an empty page has room");
            rest = &rest[frag.len() as usize..];
            truesize += if payload.len() < 2048 { 2048 } else { page.capacity() as u32 };
            skb.push_frag(frag).expect("few fragments");
            self.pool.recycle_page(page);
        }
        skb.truesize = truesize;
        if gso_size > 0 && payload.len() > gso_size as usize {
            skb.gso_size = gso_size;
            skb.gso_segs = (payload.len() as u32).div_ceil(gso_size);
        }
        skb
    }
    /// Everything is back home.
    ///
    /// # Panics
    /// When something is not.
    pub(crate) fn finish(mut self) {
        if let Some(page) = self.page.take() {
            self.pool.recycle_page(page);
        }
        self.skbs.reclaim();
        self.pool.reclaim();
        assert_eq!(self.skbs.silent_drops(), 0, "an skb died without a reason");
        assert_eq!(self.drops.get(DropReason::NotSpecified), 0);
        assert_eq!(self.skbs.inflight(), 0, "descriptors out");
        assert_eq!(self.pool.inflight(), 0, "pages out");
        assert_eq!(self.mem.allocated_bytes, 0, "bytes charged");
    }
}

/// Byte of the stream at `pos`.
pub(crate) fn pattern(pos: u64) -> u8 {
    (pos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A stretch of the stream.
pub(crate) fn bytes(pos: u64, len: usize) -> Vec<u8> {
    (pos..pos + len as u64).map(pattern).collect()
}

/// An Ethernet path with software offload.
pub(crate) fn path() -> PathInfo {
    PathInfo {
        mtu_bytes: 1500,
        advmss_bytes: 0,
        init_cwnd_segs: 0,
        init_rwnd_segs: 0,
        ip_header_bytes: 20,
        mtu_locked: false,
        rto_min_us: 0,
        gso_max_size_bytes: 65_536,
        gso_max_segs: 64,
        tx_csum: true,
        tso: true,
    }
}

/// Ends of the flow: `.1:8080` here, `.2:5000` there; `swap` gives the peer's view.
pub(crate) fn key(swap: bool) -> FlowKey {
    let end = |o, p| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, o)), p);
    let k = FlowKey::new(end(1, 8080), end(2, 5000), 6);
    if swap { k.reversed() } else { k }
}

/// One segment that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// Its header.
    pub(crate) h: TcpRepr,
    /// Its payload.
    pub(crate) payload: Vec<u8>,
    /// Payload per wire segment, 0 = one.
    pub(crate) gso_size: u32,
    /// ECT(0) was asked for.
    pub(crate) ect: bool,
}

/// A world with one connection, and the numbers that tests count from.
pub(crate) struct Host {
    /// What is lent.
    pub(crate) w: World,
    /// The connection.
    pub(crate) conn: Conn,
    /// The peer's ISN: relative numbers of segments to us.
    pub(crate) irs: Seq,
    /// Our ISN.
    pub(crate) iss: Seq,
    /// TSval that fabricated segments carry; `None`: no timestamps.
    pub(crate) peer_ts: Option<u32>,
    /// ECN bits of the next fabricated segments.
    pub(crate) peer_ecn: u8,
    /// What the application has read.
    pub(crate) read_pos: u64,
    /// Events seen.
    pub(crate) events: Vec<Event>,
}

/// Options of an ordinary SYN.
pub(crate) fn syn_opts(ts: Option<u32>) -> TcpOptions {
    TcpOptions {
        mss: Some(1460),
        wscale: Some(7),
        sack_permitted: true,
        ts: ts.map(|val| Timestamps { val, ecr: 0 }),
        ..TcpOptions::NONE
    }
}

/// The peer's ISN in tests.
pub(crate) const PEER_ISN: Seq = Seq(0xffff_f000);
/// Our ISN in tests.
pub(crate) const OUR_ISN: Seq = Seq(0xffff_ff00);

impl Host {
    /// A listener's connection after the three-way handshake, nothing sent yet.
    pub(crate) fn established(cfg: TcpConfig, opts: SockOpts, syn: TcpOptions) -> Self {
        let mut w = World::new(cfg);
        let h = TcpRepr {
            seq: PEER_ISN,
            flags: TcpFlags::SYN,
            window: 65_535,
            opts: syn,
            src_port: 5000,
            dst_port: 8080,
            ..TcpRepr::default()
        };
        let isn = Isn { iss: OUR_ISN, ts_offset: 0 };
        let mut req = ReqSock::new(&mut w.cx(), &opts, key(false), path(), &h, RxMeta::default(), isn);
        let synack = req.emit_synack(&mut w.cx()).expect("a SYN-ACK");
        let (sa, _) = TcpRepr::parse(synack.head()).expect("a header");
        w.skbs.consume(synack);
        let ts = syn.ts.and(sa.opts.ts).map(|t| Timestamps { val: syn.ts.map_or(0, |s| s.val), ecr: t.val });
        let ack = TcpRepr {
            seq: PEER_ISN + 1,
            ack: OUR_ISN + 1,
            flags: TcpFlags::ACK,
            opts: TcpOptions { ts, ..TcpOptions::NONE },
            ..h
        };
        assert_eq!(req.on_segment(&mut w.cx(), &ack, 0), Disposition::Complete);
        let conn = req.into_conn(&mut w.cx(), opts);
        let mut host = Self {
            w,
            conn,
            irs: PEER_ISN,
            iss: OUR_ISN,
            peer_ts: ts.map(|t| t.val),
            peer_ecn: 0,
            read_pos: 0,
            events: Vec::new(),
        };
        host.deliver(&ack, &[], 0).expect("the ACK of the handshake");
        host.poll_events();
        host
    }

    /// Ordinary options, timestamps on.
    pub(crate) fn new() -> Self {
        Self::established(TcpConfig::default(), SockOpts::default(), syn_opts(Some(100)))
    }
    /// As [`Self::new`] without timestamps.
    pub(crate) fn without_ts() -> Self {
        Self::established(TcpConfig::default(), SockOpts::default(), syn_opts(None))
    }

    /// Hands a segment over as it is.
    pub(crate) fn deliver(&mut self, h: &TcpRepr, payload: &[u8], gso_size: u32) -> Result<(), DropReason> {
        let skb = self.w.skb(h, payload, gso_size);
        let m = RxMeta { ecn: self.peer_ecn, ..RxMeta::default() };
        match self.conn.rcv(&mut self.w.cx(), m, h, skb) {
            Ok(()) => Ok(()),
            Err((skb, reason)) => {
                self.w.drops.count(reason);
                self.w.skbs.free(skb, &mut self.w.pool);
                Err(reason)
            }
        }
    }

    /// A header with relative numbers: first byte of the stream is 1, as in packetdrill.
    pub(crate) fn header(&self, flags: TcpFlags, seq: u32, ack: u32) -> TcpRepr {
        let ts = self.peer_ts.map(|val| Timestamps { val, ecr: self.conn.tsval(self.w.now) });
        TcpRepr {
            src_port: 5000,
            dst_port: 8080,
            seq: self.irs + seq,
            ack: self.iss + ack,
            flags,
            window: 500,
            urgent: 0,
            opts: TcpOptions { ts, ..TcpOptions::NONE },
        }
    }

    /// The peer sends `len` bytes from relative `seq`, acknowledging nothing new, as one skb.
    pub(crate) fn data(&mut self, seq: u32, len: usize) -> Result<(), DropReason> {
        self.segment(TcpFlags::ACK, seq, len, 1)
    }
    /// The peer sends any segment.
    pub(crate) fn segment(&mut self, flags: TcpFlags, seq: u32, len: usize, ack: u32) -> Result<(), DropReason> {
        let h = self.header(flags, seq, ack);
        self.deliver(&h, &bytes(u64::from(seq) - u64::from(seq > 0), len), 1460)
    }

    /// All that `poll_xmit` has to send now.
    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        let mut batch = SkbBatch::new();
        let mut out = Vec::new();
        while self.conn.poll_xmit(&mut self.w.cx(), &mut batch, 64) > 0 {}
        while let Some(mut skb) = batch.pop_front() {
            let (h, len) = TcpRepr::parse(skb.head()).expect("a header");
            let truesize = skb.truesize;
            let ect = skb.flags.contains(crate::output::SKB_ECT0);
            let gso_size = skb.gso_size;
            skb.pull_head(len);
            out.push(Sent { h, payload: skb.to_vec(), gso_size, ect });
            self.w.skbs.free(skb, &mut self.w.pool);
            self.conn.on_tx_done(&mut self.w.cx(), truesize);
        }
        out
    }
    /// The one segment that is sent now.
    #[track_caller]
    pub(crate) fn one(&mut self) -> Sent {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "one segment expected: {sent:?}");
        sent.remove(0)
    }
    /// Nothing is sent now.
    #[track_caller]
    pub(crate) fn silent(&mut self) {
        let sent = self.sent();
        assert!(sent.is_empty(), "nothing expected: {sent:?}");
    }
    /// One pure ACK of relative `ack`; returns its header.
    #[track_caller]
    pub(crate) fn acked(&mut self, ack: u32) -> TcpRepr {
        let s = self.one();
        assert_eq!((s.h.flags - TcpFlags::ECE, s.payload.len()), (TcpFlags::ACK, 0));
        assert_eq!(s.h.ack - self.irs, ack, "acknowledgement");
        s.h
    }
    /// Relative SACK blocks of a header.
    pub(crate) fn sacks(&self, h: &TcpRepr) -> Vec<(u32, u32)> {
        h.opts.sack.as_slice().iter().map(|b| (b.0 - self.irs, b.1 - self.irs)).collect()
    }

    /// Time passes; timers fire on the way, at their time.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.w.now + by;
        while let Some(at) = self.conn.next_timer().filter(|&at| at <= end) {
            self.w.now = self.w.now.max(at);
            self.conn.on_timer(&mut self.w.cx());
            if self.conn.ack_now() {
                return;
            }
        }
        self.w.now = end;
    }

    /// Reads and checks everything there is; returns the bytes.
    pub(crate) fn read_all(&mut self) -> usize {
        let mut total = 0;
        let mut buf = vec![0; 16_384];
        while let Ok(n) = self.read(&mut buf) {
            if n == 0 {
                break;
            }
            total += n;
        }
        total
    }
    /// One read, checked against the pattern.
    pub(crate) fn read(&mut self, buf: &mut [u8]) -> Result<usize, RecvError> {
        let n = self.conn.read(&mut self.w.cx(), buf, false)?;
        for &b in &buf[..n] {
            assert_eq!(b, pattern(self.read_pos), "byte {} of the stream", self.read_pos);
            self.read_pos += 1;
        }
        Ok(n)
    }

    /// Fetches events.
    pub(crate) fn poll_events(&mut self) {
        while let Some(e) = self.conn.poll_event() {
            self.events.push(e);
        }
    }

    /// The end of the test: the connection is dropped, and everything must be home.
    pub(crate) fn finish(mut self) {
        self.conn.purge(&mut self.w.cx());
        self.w.finish();
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

/// What travels on the wire of a [`Pair`].
struct InFlight {
    at: Instant,
    to_server: bool,
    sent: Sent,
}

/// Says whether a segment is lost: its number on the wire, whether it goes to the server, and itself.
pub(crate) type Lose = alloc::boxed::Box<dyn FnMut(u64, bool, &Sent) -> bool>;

/// Two connections, joined by a wire.
pub(crate) struct Pair {
    /// The one that connects.
    pub(crate) client: Host,
    /// The one that was accepted, once it is.
    pub(crate) server: Option<Host>,
    req: Option<(ReqSock, World)>,
    server_opts: SockOpts,
    wire: VecDeque<InFlight>,
    /// One way.
    pub(crate) latency: Duration,
    /// Decides whether a segment is lost: its number on the wire, to the server?, the segment.
    pub(crate) lose: Lose,
    count: u64,
}

impl Pair {
    /// A client that connects to a listener, both with `cfg`.
    pub(crate) fn new(cfg: &TcpConfig) -> Self {
        let mut w = World::new(cfg.clone());
        let isn = Isn { iss: PEER_ISN, ts_offset: 7 };
        let conn = Conn::connect(&mut w.cx(), key(true), path(), SockOpts::default(), isn);
        let client =
            Host { w, conn, irs: OUR_ISN, iss: PEER_ISN, peer_ts: None, peer_ecn: 0, read_pos: 0, events: Vec::new() };
        Self {
            client,
            server: None,
            req: None,
            server_opts: SockOpts::default(),
            wire: VecDeque::new(),
            latency: Duration::from_millis(5),
            lose: alloc::boxed::Box::new(|_, _, _| false),
            count: 0,
        }
    }

    fn put(&mut self, now: Instant, to_server: bool, sent: Sent) {
        self.count += 1;
        if !(self.lose)(self.count, to_server, &sent) {
            self.wire.push_back(InFlight { at: now + self.latency, to_server, sent });
        }
    }

    fn flush(&mut self, now: Instant) {
        self.client.w.now = now;
        for s in self.client.sent() {
            self.put(now, true, s);
        }
        self.client.poll_events();
        if let Some(server) = &mut self.server {
            server.w.now = now;
            let sent = server.sent();
            server.poll_events();
            for s in sent {
                self.put(now, false, s);
            }
        }
    }

    fn listen(&mut self, now: Instant, s: &Sent) {
        if s.h.flags == TcpFlags::SYN && self.req.is_none() {
            let mut w = World::new(self.client.w.cfg.clone());
            w.now = now;
            let isn = Isn { iss: OUR_ISN, ts_offset: 9 };
            let req = ReqSock::new(&mut w.cx(), &self.server_opts, key(false), path(), &s.h, RxMeta::default(), isn);
            self.req = Some((req, w));
            return self.send_synack(now);
        }
        let Some((req, w)) = &mut self.req else { return };
        w.now = now;
        match req.on_segment(&mut w.cx(), &s.h, s.payload.len() as u32) {
            Disposition::Complete => {}
            Disposition::ResendSynAck => return self.send_synack(now),
            _ => return,
        }
        if let Some((req, mut w)) = self.req.take() {
            let conn = req.into_conn(&mut w.cx(), self.server_opts.clone());
            let mut host = Host {
                w,
                conn,
                irs: PEER_ISN,
                iss: OUR_ISN,
                peer_ts: None,
                peer_ecn: 0,
                read_pos: 0,
                events: Vec::new(),
            };
            let taken = host.deliver(&s.h, &s.payload, s.gso_size);
            assert!(taken.is_ok(), "{taken:?}");
            self.server = Some(host);
        }
    }

    fn send_synack(&mut self, now: Instant) {
        let Some((req, w)) = &mut self.req else { return };
        w.now = now;
        if let Some(skb) = req.emit_synack(&mut w.cx()) {
            let (h, _) = TcpRepr::parse(skb.head()).expect("a header");
            w.skbs.consume(skb);
            self.put(now, false, Sent { h, payload: Vec::new(), gso_size: 0, ect: false });
        }
    }

    /// Does the next thing that is due, and returns its time; `None` when nothing is.
    pub(crate) fn step(&mut self) -> Option<Instant> {
        let now = self.now();
        self.flush(now);
        let wire = self.wire.iter().map(|f| f.at).min();
        let timers = [self.client.conn.next_timer(), self.server.as_ref().and_then(|s| s.conn.next_timer())];
        let req = self.req.as_ref().map(|(r, _)| r.deadline());
        let at = timers.into_iter().chain([wire, req]).flatten().min()?.max(now);
        self.set_now(at);
        while let Some(i) = self.wire.iter().position(|f| f.at <= at) {
            let Some(f) = self.wire.remove(i) else { break };
            self.arrive(at, f);
        }
        self.client.conn.on_timer(&mut self.client.w.cx());
        if let Some(s) = &mut self.server {
            s.conn.on_timer(&mut s.w.cx());
        }
        if let Some((req, w)) = &mut self.req
            && req.deadline() <= at
            && req.on_timer(&w.cx()) == crate::minisocks::ReqTimer::Resend
        {
            self.send_synack(at);
        }
        self.flush(at);
        Some(at)
    }

    fn arrive(&mut self, at: Instant, f: InFlight) {
        // A host that is closed or in TIME-WAIT refuses; that is the stack's business.
        let host = match (f.to_server, &mut self.server) {
            (true, None) => return self.listen(at, &f.sent),
            (true, Some(s)) => s,
            (false, _) => &mut self.client,
        };
        let _counted = host.deliver(&f.sent.h, &f.sent.payload, f.sent.gso_size);
    }

    /// The common clock.
    pub(crate) fn now(&self) -> Instant {
        self.client.w.now
    }
    fn set_now(&mut self, at: Instant) {
        self.client.w.now = at;
        if let Some(s) = &mut self.server {
            s.w.now = at;
        }
    }

    /// Steps until `until` says so, at most `limit` times; false when it never did.
    pub(crate) fn drive(&mut self, limit: usize, mut until: impl FnMut(&mut Self) -> bool) -> bool {
        for _ in 0..limit {
            if until(self) {
                return true;
            }
            if self.step().is_none() {
                break;
            }
        }
        until(self)
    }

    /// Both sides must be clean.
    pub(crate) fn finish(self) {
        self.client.finish();
        if let Some(s) = self.server {
            s.finish();
        }
    }
}
