//! The laboratory: one shard, a device of byte vectors, and peers whose every bit is under control.
//!
//! A frame is a `Vec<u8>` that starts at its IP header. [`Lab`] injects frames, turns the shard until it rests and looks
//! at what came out: each frame sent is parsed and its checksums are verified, so that no test passes on garbage. A
//! [`Flow`] is the peer's end of one connection: it knows the numbers of an honest peer and builds any header from them.
//! The device can neither cut nor sum nor merge; its rings and pools can be made as small as a test likes, and it counts
//! what it has no memory for.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use linerate_arch::Kernels;
use linerate_base::{DropReason, Duration, Instant, Seq};
use linerate_netdev::{Features, IfIndex, Qstats, RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_skb::{Csum, PoolConfig, SkbBatch};
use linerate_stack::{BindOpts, DeviceConfig, Ready, RecvError, Shard, SockId, SockOpts, StackConfig};
use linerate_tcp::TcpConfig;
use linerate_wire::ip::proto;
use linerate_wire::{IpParseError, IpRepr, TcpFlags, TcpOptions, TcpRepr, Timestamps, checksum};

/// What a wire does to each frame: whatever it hands on arrives.
pub(crate) type Carrier<'a> = dyn FnMut(Vec<u8>, &mut dyn FnMut(Vec<u8>)) + 'a;

/// One direction of the wire.
#[derive(Clone, Default)]
pub(crate) struct Wire(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Wire {
    pub(crate) fn push(&self, frame: Vec<u8>) {
        self.0.lock().unwrap().push_back(frame);
    }
    fn pop(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().pop_front()
    }
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        self.0.lock().unwrap().drain(..).collect()
    }
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

struct MemRx(Wire);

impl RxQueue for MemRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let mut n = 0;
        while n < budget
            && let Some(frame) = self.0.pop()
        {
            let Some(mut skb) = cx.skbs.alloc() else {
                cx.drops.count(DropReason::NoMem);
                continue;
            };
            let (head, rest) = frame.split_at(frame.len().min(128));
            skb.reset_head(0);
            assert!(skb.put_head_from(head));
            let page = if rest.is_empty() { None } else { cx.pool.alloc() };
            if !rest.is_empty() {
                let Some(mut page) = page else {
                    cx.drops.count(DropReason::NoMem);
                    cx.skbs.free(skb, cx.pool);
                    continue;
                };
                let frag = page.append(&Kernels::portable(), rest).expect("a frame fits a page");
                cx.pool.recycle_page(page);
                skb.push_frag(frag).expect("one fragment");
            }
            skb.charge_pages();
            skb.tstamp = cx.now;
            out.push(skb);
            n += 1;
        }
        n
    }
    fn irq_enable(&mut self) -> bool {
        self.0.len() != 0
    }
    fn irq_disable(&mut self) {}
    fn qstats(&self) -> Qstats {
        Qstats::default()
    }
}

struct MemTx {
    wire: Wire,
    features: Features,
    /// Frames that the ring still takes.
    room: Arc<AtomicUsize>,
    done: TxDone,
}

impl TxQueue for MemTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut n = 0;
        while self.room.load(Ordering::Relaxed) > 0
            && let Some(skb) = batch.pop_front()
        {
            self.room.fetch_sub(1, Ordering::Relaxed);
            assert!(!skb.is_gso() && !matches!(skb.csum, Csum::Partial { .. }), "work left to a plain device");
            assert!(skb.len() <= self.features.mtu, "{} bytes on the wire", skb.len());
            self.wire.push(skb.to_vec());
            self.done.push(skb.tx_done, skb.truesize);
            cx.skbs.free(skb, cx.pool);
            n += 1;
        }
        n
    }
    fn kick(&mut self, _: &mut TxCx<'_>) {}
    fn poll_tx(&mut self, _: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        let n = self.done.skbs();
        self.done.drain().for_each(|(token, bytes)| done.push(token, bytes));
        n
    }
    fn features(&self) -> &Features {
        &self.features
    }
    fn qstats(&self) -> Qstats {
        Qstats::default()
    }
}

/// How a laboratory is set up.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) cfg: StackConfig,
    pub(crate) rx_pages: u32,
    /// Last part of the shard's addresses.
    pub(crate) host: u8,
}

impl Default for Setup {
    fn default() -> Self {
        let mut cfg = StackConfig::default();
        (cfg.seed, cfg.max_skbs) = (7, 200_000);
        Self { cfg, rx_pages: 65_536, host: 1 }
    }
}

impl Setup {
    pub(crate) fn with(change: impl FnOnce(&mut StackConfig)) -> Self {
        let mut setup = Self::default();
        change(&mut setup.cfg);
        setup
    }
    pub(crate) fn tcp(change: impl FnOnce(&mut TcpConfig)) -> Self {
        Self::with(|cfg| change(&mut cfg.tcp))
    }
}

/// The port of the listener that every laboratory has.
pub(crate) const PORT: u16 = 7;

/// A shard and the outside of its device.
pub(crate) struct Lab {
    pub(crate) s: Shard,
    pub(crate) dev: IfIndex,
    pub(crate) now: Instant,
    pub(crate) listener: SockId,
    rx: Wire,
    tx: Wire,
    /// Room in the transmit ring, frames.
    pub(crate) room: Arc<AtomicUsize>,
    setup: Setup,
    next_port: u16,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }
    pub(crate) fn with(setup: Setup) -> Self {
        let mut s = Shard::new(setup.cfg.clone());
        let at = SocketAddr::new("::".parse().unwrap(), PORT);
        let listener = s.tcp_listen(at, 64, &SockOpts::default(), BindOpts::default()).unwrap();
        let room = Arc::new(AtomicUsize::new(usize::MAX));
        let now = Instant::from_secs(1000);
        let (rx, tx) = (Wire::default(), Wire::default());
        let mut lab = Self { s, dev: IfIndex(0), now, listener, rx, tx, room, setup, next_port: 20_000 };
        lab.plug();
        lab
    }
    /// A new device at the old wire, with the usual addresses.
    pub(crate) fn plug(&mut self) {
        let mut cfg = DeviceConfig::new("mem0", 1500);
        cfg.rx_pool = PoolConfig { max_pages: self.setup.rx_pages, ..cfg.rx_pool };
        self.dev = self.s.add_device(cfg).unwrap();
        let features = Features::plain(1500);
        let tx = MemTx { wire: self.tx.clone(), features, room: self.room.clone(), done: TxDone::new() };
        self.s.attach(self.dev, 0, Box::new(MemRx(self.rx.clone())), Box::new(tx)).unwrap();
        let n = self.setup.host;
        for addr in [format!("10.0.0.{n}/24"), format!("fd00::{n}/64")] {
            self.s.add_address(self.dev, addr.parse().unwrap()).unwrap();
        }
    }

    /// Puts a frame on the wire to the shard.
    pub(crate) fn inject(&self, frame: Vec<u8>) {
        self.rx.push(frame);
    }
    /// Turns until nothing happens at this point of time; returns the turns that it took.
    pub(crate) fn rest(&mut self) -> usize {
        for turns in 1..100_000 {
            let t = self.s.turn(self.now, 64);
            if t.rx_skbs == 0 && t.tx_skbs == 0 && (!t.more || self.room.load(Ordering::Relaxed) == 0) {
                assert_eq!(self.drops(DropReason::NotSpecified), 0);
                return turns;
            }
        }
        panic!("the shard does not come to rest");
    }
    /// Carries what this shard sent to another, each frame as `carrier` leaves it; returns the frames.
    pub(crate) fn carry(&mut self, to: &mut Self, carrier: &mut Carrier<'_>) -> usize {
        let frames = self.tx.take();
        let n = frames.len();
        frames.into_iter().for_each(|f| carrier(f, &mut |f| to.rx.push(f)));
        n
    }
    /// One frame in, everything that comes of it out.
    pub(crate) fn send(&mut self, frame: Vec<u8>) -> Vec<Out> {
        self.inject(frame);
        self.rest();
        self.take()
    }
    /// TCP segments that the shard sent since the last time. All frames are checked; others than TCP are left out.
    pub(crate) fn take(&mut self) -> Vec<Out> {
        self.tx.take().iter().filter_map(|f| Out::parse(f)).collect()
    }
    /// Everything that the shard sent, as bytes.
    pub(crate) fn take_raw(&mut self) -> Vec<Vec<u8>> {
        let frames = self.tx.take();
        frames.iter().for_each(|f| drop(Out::parse(f)));
        frames
    }
    /// Lets `ms` milliseconds pass, from deadline to deadline.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        loop {
            self.rest();
            let next = self.s.turn(self.now, 64).next.filter(|at| *at < end);
            let Some(next) = next else { break };
            self.now = next.max(self.now + Duration::from_micros(10));
        }
        self.now = end;
        self.rest();
    }

    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.s.mibs().drops.get(reason)
    }
    pub(crate) fn total_drops(&self) -> u64 {
        self.s.mibs().drops.total()
    }
    /// Takes everything readable.
    pub(crate) fn read(&mut self, id: SockId) -> Vec<u8> {
        let (mut all, mut buf) = (Vec::new(), vec![0; 65_536]);
        loop {
            match self.s.read(id, &mut buf) {
                Ok(0) | Err(_) => return all,
                Ok(n) => all.extend_from_slice(&buf[..n]),
            }
        }
    }
    /// Pages of the receive pool that are out.
    pub(crate) fn rx_pages(&self) -> u32 {
        self.s.device(self.dev).and_then(|d| d.rx_pool(0)).map_or(0, |p| p.inflight())
    }
    pub(crate) fn mem_bytes(&self) -> u64 {
        self.s.core().mem.tcp.allocated_bytes
    }

    /// A port that no flow had yet.
    pub(crate) fn fresh_port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }
    /// A peer connects: its end and the shard's socket.
    pub(crate) fn flow(&mut self, with: Peer) -> (Flow, SockId) {
        let mut flow = Flow::new(with, self.fresh_port());
        let syn = flow.frame(&flow.syn(), &[]);
        let outs = self.send(syn);
        let synack = outs.iter().find(|o| o.h.dst_port == flow.peer.port()).expect("a SYN-ACK");
        assert!(synack.h.flags.contains(TcpFlags::SYN | TcpFlags::ACK) && synack.h.ack.0 == flow.seq.wrapping_add(1));
        flow.take_synack(&synack.h);
        let ack = flow.ack_frame();
        self.send(ack);
        let id = self.s.accept(self.listener).expect("established");
        (flow, id)
    }
    /// The shard connects to a peer: the peer's end and the shard's socket.
    pub(crate) fn flow_out(&mut self, with: Peer) -> (Flow, SockId) {
        let mut flow = Flow::new(with, 4242);
        flow.peer.set_port(self.fresh_port());
        let id = self.s.tcp_connect(flow.peer, None, &SockOpts::default()).unwrap();
        self.rest();
        let syn = self.take().pop().expect("a SYN");
        assert_eq!(syn.h.flags - TcpFlags::ECE - TcpFlags::CWR, TcpFlags::SYN);
        flow.local.set_port(syn.h.src_port);
        flow.take_syn(&syn.h);
        let mut synack = flow.syn();
        (synack.flags, synack.ack) = (TcpFlags::SYN | TcpFlags::ACK, Seq(flow.ack));
        let frame = flow.frame(&synack, &[]);
        self.send(frame);
        flow.seq = flow.seq.wrapping_add(1);
        assert!(self.s.readiness(id).contains(Ready::WRITABLE));
        (flow, id)
    }

    /// A whole honest conversation with the shard, both ways, from SYN to reset.
    pub(crate) fn prove_alive(&mut self) {
        self.rest();
        self.take();
        for family in [Peer::v4(), Peer::v6()] {
            let (mut flow, id) = self.flow(family);
            let text: Vec<u8> = (0..3000u32).map(|i| (i * 7 % 251) as u8).collect();
            let mut got = Vec::new();
            for part in text.chunks(1000) {
                flow.send_data(self, part);
                got.extend(self.read(id));
            }
            assert_eq!(got, text, "an honest stream");
            assert_eq!(self.s.write(id, &text), Ok(text.len()));
            self.rest();
            let back = flow.gather(self);
            assert_eq!(back, text, "an honest answer");
            let rst = flow.frame(&flow.header(TcpFlags::RST | TcpFlags::ACK), &[]);
            self.send(rst);
            assert!(matches!(self.s.read(id, &mut [0; 8]), Err(RecvError::Socket(_))));
            self.s.close(id).unwrap();
        }
        self.s.check_invariants();
    }
    /// Closes everything, waits, and checks that all memory came home.
    pub(crate) fn finish(mut self) {
        self.room.store(usize::MAX, Ordering::Relaxed);
        self.s.reset_all();
        self.rest();
        self.pass(400_000);
        self.s.assert_quiescent();
        assert_eq!(self.rx_pages(), 0, "receive pages are out");
    }
}

/// A segment that the shard sent.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) h: TcpRepr,
    pub(crate) data: Vec<u8>,
}

impl Out {
    /// Checks a frame as a strict receiver would; `None`: good, but not TCP. A fragment has no checksum to check.
    fn parse(frame: &[u8]) -> Option<Self> {
        let (ip, hl) = match IpRepr::parse(frame) {
            Err(IpParseError::Fragment) => return None,
            parsed => parsed.expect("a valid IP header"),
        };
        assert_eq!(frame.len(), hl + ip.payload_len as usize, "no padding, no lack");
        let l4 = &frame[hl..];
        let pseudo = if ip.proto == proto::ICMP { 0 } else { ip.pseudo_sum() };
        assert!(checksum::is_valid(checksum::combine(pseudo, checksum::sum(l4))), "a wrong checksum was sent");
        (ip.proto == proto::TCP).then(|| {
            let (h, len) = TcpRepr::parse(l4).expect("a valid TCP header");
            Self { h, data: l4[len..].to_vec() }
        })
    }
}

/// Who connects, and with what.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) v6: bool,
    pub(crate) opts: TcpOptions,
    pub(crate) iss: u32,
    pub(crate) window: u16,
    pub(crate) host: u8,
}

impl Peer {
    pub(crate) fn v4() -> Self {
        let opts = TcpOptions { mss: Some(1460), wscale: Some(7), sack_permitted: true, ..TcpOptions::NONE };
        Self { v6: false, opts, iss: 0x1000_0000, window: 0xffff, host: 9 }
    }
    pub(crate) fn v6() -> Self {
        Self { v6: true, ..Self::v4() }
    }
    /// No options but the MSS.
    pub(crate) fn bare() -> Self {
        Self { opts: TcpOptions { mss: Some(1460), ..TcpOptions::NONE }, ..Self::v4() }
    }
    pub(crate) fn timestamps(self, val: u32) -> Self {
        Self { opts: TcpOptions { ts: Some(Timestamps { val, ecr: 0 }), ..self.opts }, ..self }
    }
    pub(crate) fn iss(self, iss: u32) -> Self {
        Self { iss, ..self }
    }
}

/// The peer's end of a connection.
#[derive(Clone)]
pub(crate) struct Flow {
    /// The shard's end.
    pub(crate) local: SocketAddr,
    /// Ours.
    pub(crate) peer: SocketAddr,
    /// Next sequence number that we send.
    pub(crate) seq: u32,
    /// Next that we expect.
    pub(crate) ack: u32,
    pub(crate) window: u16,
    /// Our clock and the shard's last, when timestamps are in use.
    pub(crate) ts: Option<Timestamps>,
    /// Shift of the windows that the shard announces.
    pub(crate) shard_wscale: u8,
    pub(crate) syn_opts: TcpOptions,
}

impl Flow {
    pub(crate) fn new(with: Peer, port: u16) -> Self {
        let (local, peer) = match with.v6 {
            false => (String::from("10.0.0.1"), format!("10.0.0.{}", with.host)),
            true => (String::from("fd00::1"), format!("fd00::{}", with.host)),
        };
        Self {
            local: SocketAddr::new(local.parse().unwrap(), PORT),
            peer: SocketAddr::new(peer.parse().unwrap(), port),
            seq: with.iss,
            ack: 0,
            window: with.window,
            ts: None,
            shard_wscale: 0,
            syn_opts: with.opts,
        }
    }
    pub(crate) fn syn(&self) -> TcpRepr {
        TcpRepr { opts: self.syn_opts, ..self.header(TcpFlags::SYN) }
    }
    fn take_syn(&mut self, h: &TcpRepr) {
        self.ack = h.seq.0.wrapping_add(1);
        if let (Some(mine), Some(theirs)) = (self.syn_opts.ts, h.opts.ts) {
            self.ts = Some(Timestamps { val: mine.val, ecr: theirs.val });
            self.syn_opts.ts = self.ts;
        }
        if let (Some(_), Some(shift)) = (self.syn_opts.wscale, h.opts.wscale) {
            self.shard_wscale = shift;
        }
    }
    pub(crate) fn take_synack(&mut self, h: &TcpRepr) {
        self.take_syn(h);
        self.seq = self.seq.wrapping_add(1);
    }
    /// The header of an honest segment.
    pub(crate) fn header(&self, flags: TcpFlags) -> TcpRepr {
        TcpRepr {
            src_port: self.peer.port(),
            dst_port: self.local.port(),
            seq: Seq(self.seq),
            ack: if flags.contains(TcpFlags::ACK) { Seq(self.ack) } else { Seq(0) },
            flags,
            window: self.window,
            urgent: 0,
            opts: TcpOptions { ts: self.ts, ..TcpOptions::NONE },
        }
    }
    pub(crate) fn frame(&self, h: &TcpRepr, data: &[u8]) -> Vec<u8> {
        tcp_frame(self.peer, self.local, h, data)
    }
    pub(crate) fn ack_frame(&self) -> Vec<u8> {
        self.frame(&self.header(TcpFlags::ACK), &[])
    }
    /// A data segment `ahead` bytes beyond the next.
    pub(crate) fn data_frame(&self, ahead: u32, data: &[u8]) -> Vec<u8> {
        let mut h = self.header(TcpFlags::ACK | TcpFlags::PSH);
        h.seq += ahead;
        self.frame(&h, data)
    }
    /// Sends the next bytes.
    pub(crate) fn send_data(&mut self, lab: &mut Lab, data: &[u8]) -> Vec<Out> {
        let frame = self.data_frame(0, data);
        self.seq = self.seq.wrapping_add(data.len() as u32);
        lab.send(frame)
    }
    /// Receives in order and acknowledges until the shard falls silent for half a minute. A simple receiver: it keeps
    /// nothing that is out of order and sends no SACK, so that after a loss all of it comes again by timeouts.
    pub(crate) fn gather(&mut self, lab: &mut Lab) -> Vec<u8> {
        let (mut all, mut silent) = (Vec::new(), 0);
        let mut outs = lab.take();
        while silent < 5 {
            let before = self.ack;
            for o in outs.drain(..).filter(|o| o.h.dst_port == self.peer.port()) {
                if o.h.seq.0 == self.ack {
                    self.ack = self.ack.wrapping_add(o.data.len() as u32);
                    all.extend(o.data);
                }
            }
            silent = if self.ack == before { silent + 1 } else { 0 };
            let ack = self.ack_frame();
            outs = lab.send(ack);
            if silent > 0 {
                lab.pass(500 << silent);
                outs.extend(lab.take());
            }
        }
        all
    }
}

/// The last acknowledgement number of some segments.
pub(crate) fn last_ack(outs: &[Out]) -> Option<u32> {
    outs.iter().rev().find(|o| o.h.flags.contains(TcpFlags::ACK)).map(|o| o.h.ack.0)
}

/// A TCP segment in its IP packet, summed.
pub(crate) fn tcp_frame(src: SocketAddr, dst: SocketAddr, h: &TcpRepr, data: &[u8]) -> Vec<u8> {
    let mut l4 = vec![0; h.header_len()];
    h.emit(&mut l4);
    l4.extend_from_slice(data);
    let mut frame = ip_frame(&IpRepr::new(src.ip(), dst.ip(), proto::TCP, 0), &l4);
    fix_sums(&mut frame);
    frame
}

/// A TCP segment whose option bytes are what they are (a multiple of 4 of them).
pub(crate) fn tcp_frame_with(flow: &Flow, h: &TcpRepr, options: &[u8], data: &[u8]) -> Vec<u8> {
    let mut l4 = vec![0; 20];
    TcpRepr { opts: TcpOptions::NONE, ..*h }.emit(&mut l4);
    l4[12] = ((20 + options.len()) as u8 / 4) << 4 | l4[12] & 0xf;
    l4.extend_from_slice(options);
    l4.extend_from_slice(data);
    let mut frame = ip_frame(&IpRepr::new(flow.peer.ip(), flow.local.ip(), proto::TCP, 0), &l4);
    fix_sums(&mut frame);
    frame
}

/// An IP packet with this payload.
pub(crate) fn ip_frame(ip: &IpRepr, payload: &[u8]) -> Vec<u8> {
    let mut ip = *ip;
    ip.payload_len = payload.len() as u32;
    let mut frame = vec![0; ip.header_len()];
    ip.emit(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

/// A header between two addresses.
pub(crate) fn ip(src: &str, dst: &str, protocol: u8) -> IpRepr {
    IpRepr::new(src.parse().unwrap(), dst.parse().unwrap(), protocol, 0)
}

/// A UDP datagram, summed.
pub(crate) fn udp_frame(ip: &IpRepr, src_port: u16, dst_port: u16, data: &[u8]) -> Vec<u8> {
    let mut l4 = vec![0; 8];
    linerate_wire::UdpRepr { src_port, dst_port, payload_len: data.len() as u32 }.emit(&mut l4);
    l4.extend_from_slice(data);
    let mut frame = ip_frame(ip, &l4);
    fix_sums(&mut frame);
    frame
}

/// An ICMP message of either family, summed.
pub(crate) fn icmp_frame(ip: &IpRepr, message: &[u8]) -> Vec<u8> {
    let mut frame = ip_frame(ip, message);
    fix_sums(&mut frame);
    frame
}

/// Makes the checksums of a frame right, whatever else is wrong with it: of the IPv4 header as long as it says it is, and
/// of a transport that starts behind it. What can not be found stays as it is.
pub(crate) fn fix_sums(frame: &mut [u8]) {
    let (at, protocol, pseudo) = match frame.first().map(|b| b >> 4) {
        Some(4) if frame.len() >= 20 => {
            let hl = usize::from(frame[0] & 15) * 4;
            if (20..=frame.len()).contains(&hl) {
                frame[10..12].fill(0);
                let sum = checksum::finish(checksum::sum(&frame[..hl]));
                frame[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            let total = usize::from(u16::from_be_bytes([frame[2], frame[3]])).min(frame.len());
            let len = total.saturating_sub(hl) as u32;
            let addr = |at: usize| -> [u8; 4] { frame[at..at + 4].try_into().unwrap() };
            let p = frame[9];
            (hl, p, checksum::pseudo_v4(addr(12).into(), addr(16).into(), p, len))
        }
        Some(6) if frame.len() >= 40 => {
            let addr = |at: usize| -> std::net::Ipv6Addr {
                let a: [u8; 16] = frame[at..at + 16].try_into().unwrap();
                a.into()
            };
            let len = usize::from(u16::from_be_bytes([frame[4], frame[5]])).min(frame.len() - 40) as u32;
            (40, frame[6], checksum::pseudo_v6(&addr(8), &addr(24), frame[6], len))
        }
        _ => return,
    };
    let end = match frame[0] >> 4 {
        4 => usize::from(u16::from_be_bytes([frame[2], frame[3]])).min(frame.len()),
        _ => (40 + usize::from(u16::from_be_bytes([frame[4], frame[5]]))).min(frame.len()),
    };
    let Some(l4) = frame.get_mut(at..end) else { return };
    let (field, pseudo) = match protocol {
        proto::TCP => (16, pseudo),
        proto::UDP => (6, pseudo),
        proto::ICMP => (2, 0),
        proto::ICMPV6 => (2, pseudo),
        _ => return,
    };
    if l4.len() < field + 2 {
        return;
    }
    l4[field..field + 2].fill(0);
    let sum = checksum::finish(checksum::combine(pseudo, checksum::sum(l4)));
    l4[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The byte of an endless stream at a sequence number: what every honest sender of these tests sends there.
pub(crate) fn byte_at(seq: u32) -> u8 {
    (seq.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// The stream from `seq` on.
pub(crate) fn stream(seq: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| byte_at(seq.wrapping_add(i))).collect()
}

/// Compares streams and says where they part, without printing them.
#[track_caller]
pub(crate) fn assert_stream(got: &[u8], want: &[u8]) {
    let same = got.iter().zip(want).take_while(|(a, b)| a == b).count();
    assert!(
        got.len() == want.len() && same == want.len(),
        "{} bytes instead of {}, equal for the first {same}",
        got.len(),
        want.len()
    );
}
