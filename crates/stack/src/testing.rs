//! A host without TCP and a wire of byte vectors: what the tests of IP, ICMP and UDP run on.
//!
//! The device is as plain as can be: each frame on the wire is a `Vec<u8>`, so that tests can look at, change, lose and
//! forge frames. Its transmit side refuses what a plain device may not see (frames beyond the MTU, unfinished checksums)
//! unless told that it can do the work, and then it does it with the offload crate. Its receive side puts the first bytes
//! into the head and the rest into pages; `head_bytes` varies where the cut falls.

use std::boxed::Box;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use linerate_arch::Kernels;
use linerate_base::{DropReason, Duration, Instant};
use linerate_netdev::{Features, IfIndex, Qstats, RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_offload::gso::{self, CsumMode};
use linerate_offload::{OffloadCx, csum};
use linerate_skb::{Csum, Skb, SkbBatch};
use linerate_wire::IpRepr;
use linerate_wire::ip::proto;

use crate::config::{DeviceConfig, GroMode, StackConfig};
use crate::core_state::Core;
use crate::sock::{ReadyList, SockId, SockKind};
use crate::udp::UdpLayer;
use crate::upcall::{IcmpUp, IpMeta, Upcall};
use crate::{frag, ip_in, ip_out, napi};

/// One direction of a wire.
#[derive(Clone, Default)]
pub(crate) struct Wire(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Wire {
    pub(crate) fn push(&self, frame: Vec<u8>) {
        self.0.lock().unwrap().push_back(frame);
    }
    pub(crate) fn pop(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().pop_front()
    }
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        self.0.lock().unwrap().drain(..).collect()
    }
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

struct MemRx {
    wire: Wire,
    head_bytes: usize,
    stats: Qstats,
}

impl RxQueue for MemRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let mut n = 0;
        while n < budget
            && let Some(frame) = self.wire.pop()
        {
            let mut skb = cx.skbs.alloc().unwrap();
            let (head, rest) = frame.split_at(frame.len().min(self.head_bytes));
            assert!(
                skb.put_head_from(head) || {
                    skb.reset_head(0);
                    skb.put_head_from(head)
                }
            );
            if !rest.is_empty() {
                let mut page = cx.pool.alloc().unwrap();
                skb.push_frag(page.append(&Kernels::portable(), rest).unwrap()).unwrap();
                cx.pool.recycle_page(page);
            }
            skb.charge_pages();
            out.push(skb);
            self.stats.rx_skbs += 1;
            n += 1;
        }
        n
    }
    fn irq_enable(&mut self) -> bool {
        self.wire.len() != 0
    }
    fn irq_disable(&mut self) {}
    fn qstats(&self) -> Qstats {
        self.stats
    }
}

struct MemTx {
    wire: Wire,
    features: Features,
    /// Frames that the wire holds at most: the ring.
    ring: usize,
    done: TxDone,
    stats: Qstats,
}

impl TxQueue for MemTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut n = 0;
        while self.wire.len() < self.ring
            && let Some(mut skb) = batch.pop_front()
        {
            n += 1;
            self.done.push(skb.tx_done, skb.truesize);
            let mut frames = SkbBatch::new();
            let kernels = Kernels::portable();
            let mut ocx = OffloadCx { skbs: cx.skbs, pool: cx.pool, kernels: &kernels, drops: cx.drops };
            if skb.is_gso() {
                assert!(self.features.uso && self.features.tx_csum, "a super-packet on a plain device");
                gso::segment(skb, 0, &mut ocx, CsumMode::Fill, &mut frames).unwrap();
            } else {
                if matches!(skb.csum, Csum::Partial { .. }) {
                    assert!(self.features.tx_csum, "an unfinished checksum on a plain device");
                    assert!(csum::fill_partial(&mut skb, &kernels));
                }
                frames.push(skb);
            }
            for frame in frames {
                assert!(frame.len() <= self.features.mtu, "{} bytes on the wire", frame.len());
                self.wire.push(frame.to_vec());
                cx.skbs.free(frame, cx.pool);
                self.stats.tx_wire_pkts += 1;
            }
        }
        n
    }
    fn kick(&mut self, _cx: &mut TxCx<'_>) {
        self.stats.tx_kicks += 1;
    }
    fn poll_tx(&mut self, _cx: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        let n = self.done.skbs();
        self.done.drain().for_each(|(t, b)| done.push(t, b));
        n
    }
    fn features(&self) -> &Features {
        &self.features
    }
    fn qstats(&self) -> Qstats {
        self.stats
    }
}

/// How a test's device is.
#[derive(Clone)]
pub(crate) struct Dev {
    pub(crate) features: Features,
    pub(crate) any_ip: bool,
    pub(crate) gro: GroMode,
    pub(crate) head_bytes: usize,
    pub(crate) ring: usize,
}

impl Dev {
    pub(crate) fn plain() -> Self {
        Self { features: Features::plain(1500), any_ip: false, gro: GroMode::Off, head_bytes: 64, ring: 1 << 20 }
    }
}

/// A stack without TCP.
pub(crate) struct Host {
    pub(crate) core: Core,
    pub(crate) udp: UdpLayer,
    pub(crate) ready: ReadyList,
    /// What came up for TCP, as bytes from the TCP header on.
    pub(crate) tcp: Vec<(IpMeta, Vec<u8>)>,
    pub(crate) icmp_up: Vec<IcmpUp>,
    pub(crate) tx: Wire,
    pub(crate) rx: Wire,
    pub(crate) dev: IfIndex,
}

impl Host {
    pub(crate) fn with(cfg: StackConfig, dev: Dev, addrs: &[&str]) -> Self {
        let mut core = Core::new(cfg);
        core.now = Instant::from_secs(1000);
        let mut dcfg = DeviceConfig::new("mem0", dev.features.mtu);
        (dcfg.any_ip, dcfg.gro) = (dev.any_ip, dev.gro);
        let ifindex = core.links.add_device(dcfg).unwrap();
        let (tx, rx) = (Wire::default(), Wire::default());
        let q = Qstats::default();
        let memrx = MemRx { wire: rx.clone(), head_bytes: dev.head_bytes, stats: q };
        let memtx = MemTx { wire: tx.clone(), features: dev.features, ring: dev.ring, done: TxDone::new(), stats: q };
        core.links.attach(ifindex, 0, Box::new(memrx), Box::new(memtx)).unwrap();
        for a in addrs {
            core.links.add_address(ifindex, a.parse().unwrap()).unwrap();
        }
        Self {
            core,
            udp: UdpLayer::new(),
            ready: ReadyList::default(),
            tcp: Vec::new(),
            icmp_up: Vec::new(),
            tx,
            rx,
            dev: ifindex,
        }
    }
    /// 10.0.0.N/24 and fd00::N/64 on a plain device.
    pub(crate) fn new(n: u8) -> Self {
        Self::numbered(n, Dev::plain())
    }
    pub(crate) fn numbered(n: u8, dev: Dev) -> Self {
        let (a, b) = (std::format!("10.0.0.{n}/24"), std::format!("fd00::{n}/64"));
        let cfg = StackConfig { seed: u64::from(n), ..StackConfig::default() };
        Self::with(cfg, dev, &[&a, &b])
    }

    /// One turn: receive everything, send everything.
    pub(crate) fn turn(&mut self) {
        let mut done = TxDone::new();
        napi::start_turn(&mut self.core);
        let mut batch = SkbBatch::new();
        loop {
            let p = napi::poll(&mut self.core, 256, &mut batch);
            while let Some(skb) = batch.pop_front() {
                self.rcv(skb);
            }
            if !p.more {
                break;
            }
        }
        if self.core.frags.next_deadline().is_some_and(|due| due <= self.core.now) {
            frag::expire(&mut self.core);
        }
        ip_out::xmit_pending(&mut self.core, &mut done);
        napi::reclaim(&mut self.core, &mut done);
        for (token, bytes) in done.drain() {
            let id = SockId::from_u64(token.0);
            assert_eq!(id.kind(), SockKind::Udp);
            self.udp.on_tx_done(&mut self.ready, id, bytes);
        }
        self.core.mem.tx_pool.reclaim();
        self.core.mem.skbs.reclaim();
    }
    pub(crate) fn rcv(&mut self, skb: Skb) {
        match ip_in::rcv(&mut self.core, skb) {
            Upcall::Tcp(meta, skb) => {
                self.tcp.push((meta, skb.to_vec()));
                self.core.drop_skb(skb, DropReason::NoSocket);
            }
            Upcall::Udp(meta, skb) => self.udp.rcv(&mut self.core, &mut self.ready, meta, skb),
            Upcall::Icmp(up) if up.key.proto() == proto::UDP => self.udp.on_icmp(&mut self.core, &mut self.ready, &up),
            Upcall::Icmp(up) => self.icmp_up.push(up),
            Upcall::Consumed => {}
        }
    }
    /// One frame in, what it causes out.
    pub(crate) fn answer(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.rx.push(frame.to_vec());
        self.turn();
        self.tx.take()
    }
    pub(crate) fn sleep(&mut self, d: Duration) {
        self.core.now += d;
    }
    pub(crate) fn drops(&self, r: DropReason) -> u64 {
        self.core.mibs.drops.get(r)
    }
    /// Every skb and page is home, none died in silence.
    pub(crate) fn assert_home(&mut self) {
        self.udp.close_all(&mut self.core);
        frag::purge(&mut self.core, DropReason::Shutdown);
        assert_eq!((self.core.frags.len(), self.core.frags.mem_bytes()), (0, 0));
        if let Some(p) = self.core.mem.tx_page.take() {
            self.core.mem.tx_pool.recycle_page(p);
        }
        self.core.mem.skbs.reclaim();
        self.core.mem.tx_pool.reclaim();
        assert_eq!((self.core.mem.skbs.inflight(), self.core.mem.skbs.silent_drops()), (0, 0));
        assert_eq!((self.core.mem.tx_pool.inflight(), self.drops(DropReason::NotSpecified)), (0, 0));
    }
}

/// Carries frames between two hosts until nothing moves.
pub(crate) fn run(a: &mut Host, b: &mut Host) {
    loop {
        a.turn();
        b.turn();
        let (to_b, to_a) = (a.tx.take(), b.tx.take());
        if to_a.is_empty() && to_b.is_empty() && !a.core.links.work_pending() && !b.core.links.work_pending() {
            break;
        }
        to_b.into_iter().for_each(|f| b.rx.push(f));
        to_a.into_iter().for_each(|f| a.rx.push(f));
    }
}

/// An IP packet with this payload.
pub(crate) fn ip_packet(ip: &IpRepr, payload: &[u8]) -> Vec<u8> {
    let mut ip = *ip;
    ip.payload_len = payload.len() as u32;
    let mut frame = std::vec![0; ip.header_len()];
    ip.emit(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

/// The header from `src` to `dst`.
pub(crate) fn ip(src: &str, dst: &str, protocol: u8) -> IpRepr {
    IpRepr::new(src.parse().unwrap(), dst.parse().unwrap(), protocol, 0)
}

/// A UDP packet with its checksum.
pub(crate) fn udp_packet(ip: &IpRepr, src_port: u16, dst_port: u16, data: &[u8]) -> Vec<u8> {
    let mut b = std::vec![0; 8 + data.len()];
    linerate_wire::UdpRepr { src_port, dst_port, payload_len: data.len() as u32 }.emit(&mut b);
    b[8..].copy_from_slice(data);
    let mut ip = *ip;
    ip.payload_len = b.len() as u32;
    let sum = linerate_wire::checksum::combine(ip.pseudo_sum(), linerate_wire::checksum::sum(&b));
    b[6..8].copy_from_slice(&linerate_wire::udp::finish(sum).to_be_bytes());
    ip_packet(&ip, &b)
}
