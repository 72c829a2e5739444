//! One shard and the outside of its Ethernet device.
//!
//! Frames are byte vectors that begin at the link header. The device is as plain as can be: it neither cuts nor sums nor
//! merges. Each frame that comes out is looked at: our source address, a type that fits what follows, right checksums of
//! IPv4 and ICMPv6.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use linerate_arch::Kernels;
use linerate_base::{DropReason, Duration, Instant};
use linerate_netdev::{Features, IfIndex, Qstats, RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_skb::SkbBatch;
use linerate_stack::{DeviceConfig, NeighInfo, Nud, Shard, StackConfig};
use linerate_wire::ethernet::{EthernetRepr, ethertype};
use linerate_wire::ip::proto;
use linerate_wire::{ArpOp, ArpRepr, Icmpv6Repr, IpRepr, MacAddr, NdiscRepr, checksum};

pub(crate) const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(crate) const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(crate) const EVIL: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x66]);
/// The link-local address that the shard makes of its hardware address.
pub(crate) const OWN_LL: &str = "fe80::ff:fe00:1";
pub(crate) const MTU: u32 = 1500;

type Wire = Arc<Mutex<VecDeque<Vec<u8>>>>;

struct MemRx(Wire);

impl RxQueue for MemRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let mut n = 0;
        while n < budget {
            let Some(frame) = self.0.lock().unwrap().pop_front() else { break };
            let mut skb = cx.skbs.alloc().expect("descriptors");
            let (head, rest) = frame.split_at(frame.len().min(128));
            skb.reset_head(0);
            assert!(skb.put_head_from(head));
            if !rest.is_empty() {
                let mut page = cx.pool.alloc().expect("pages");
                skb.push_frag(page.append(&Kernels::portable(), rest).unwrap()).unwrap();
                cx.pool.recycle_page(page);
            }
            skb.charge_pages();
            skb.tstamp = cx.now;
            out.push(skb);
            n += 1;
        }
        n
    }
    fn irq_enable(&mut self) -> bool {
        !self.0.lock().unwrap().is_empty()
    }
    fn irq_disable(&mut self) {}
    fn qstats(&self) -> Qstats {
        Qstats::default()
    }
}

struct MemTx {
    wire: Wire,
    features: Features,
    done: TxDone,
}

impl TxQueue for MemTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut n = 0;
        while let Some(skb) = batch.pop_front() {
            assert!(skb.len() <= MTU + 14 && !skb.is_gso(), "{} bytes on the wire", skb.len());
            self.wire.lock().unwrap().push_back(skb.to_vec());
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

/// The shard, its device, and the link.
pub(crate) struct Lab {
    pub(crate) s: Shard,
    pub(crate) dev: IfIndex,
    pub(crate) now: Instant,
    rx: Wire,
    tx: Wire,
}

impl Lab {
    /// 10.0.0.1/24 and nothing of IPv6.
    pub(crate) fn v4() -> Self {
        let mut lab = Self::with(|_, d| d.ipv6.addr_gen = linerate_stack::AddrGen::None);
        lab.s.add_address(lab.dev, "10.0.0.1/24".parse().unwrap()).unwrap();
        lab
    }
    /// fd00::1/64 and the link-local address, on no trial; what they report is taken.
    pub(crate) fn v6() -> Self {
        Self::v6_with(|_, _| {})
    }
    pub(crate) fn v6_with(change: impl FnOnce(&mut StackConfig, &mut DeviceConfig)) -> Self {
        let mut lab = Self::with(|s, d| {
            d.ipv6.dad_transmits = 0;
            change(s, d);
        });
        lab.s.add_address(lab.dev, "fd00::1/64".parse().unwrap()).unwrap();
        lab.pass(3000);
        lab.take();
        lab
    }
    /// A device without addresses of the user's.
    pub(crate) fn with(change: impl FnOnce(&mut StackConfig, &mut DeviceConfig)) -> Self {
        let mut cfg = StackConfig::default();
        (cfg.seed, cfg.max_skbs) = (7, 200_000);
        let mut dcfg = DeviceConfig::new("eth0", MTU).ethernet(OWN);
        change(&mut cfg, &mut dcfg);
        let mut s = Shard::new(cfg);
        let (rx, tx) = (Wire::default(), Wire::default());
        let dev = s.add_device(dcfg).unwrap();
        let features = Features { hard_header_len: 14, ..Features::plain(MTU) };
        let queue = MemTx { wire: tx.clone(), features, done: TxDone::new() };
        s.attach(dev, 0, Box::new(MemRx(rx.clone())), Box::new(queue)).unwrap();
        let mut lab = Self { s, dev, now: Instant::from_secs(1000), rx, tx };
        lab.rest();
        lab
    }

    pub(crate) fn inject(&self, frame: Vec<u8>) {
        self.rx.lock().unwrap().push_back(frame);
    }
    /// Turns until nothing happens at this point of time.
    pub(crate) fn rest(&mut self) {
        for _ in 0..100_000 {
            let t = self.s.turn(self.now, 256);
            if t.rx_skbs == 0 && t.tx_skbs == 0 && !t.more {
                assert_eq!(self.drops(DropReason::NotSpecified), 0);
                return;
            }
        }
        panic!("the shard does not come to rest");
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
    /// Everything that the shard sent.
    pub(crate) fn take(&mut self) -> Vec<Out> {
        self.rest();
        let frames: Vec<Vec<u8>> = self.tx.lock().unwrap().drain(..).collect();
        frames.into_iter().map(Out::new).collect()
    }
    /// One frame in, everything that comes of it out.
    pub(crate) fn answer(&mut self, frame: Vec<u8>) -> Vec<Out> {
        self.inject(frame);
        self.take()
    }
    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.s.mibs().drops.get(reason)
    }
    pub(crate) fn neigh(&self, addr: &str) -> Option<NeighInfo> {
        let addr: IpAddr = addr.parse().unwrap();
        self.s.neighbours().find(|n| n.addr == addr)
    }
    pub(crate) fn state(&self, addr: &str) -> Option<Nud> {
        self.neigh(addr).map(|n| n.state)
    }
    /// A UDP socket of the shard, any port.
    pub(crate) fn udp(&mut self, v6: bool) -> linerate_stack::SockId {
        self.s.udp_socket(v6)
    }
    pub(crate) fn send_to(&mut self, id: linerate_stack::SockId, to: &str, data: &[u8]) {
        self.s.send_to(id, data, Some(to.parse().unwrap()), linerate_stack::udp::SendOpts::default()).unwrap();
    }
    /// The neighbour `ip` at `mac` resolves when asked; returns the datagrams that waited.
    pub(crate) fn resolve_v4(&mut self, ip: &str, mac: MacAddr) -> Vec<Out> {
        let ip = ip.parse().unwrap();
        self.answer(arp(OWN, mac, ArpOp::Reply, ip, Ipv4Addr::new(10, 0, 0, 1), OWN))
    }
}

/// One frame of the shard.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) eth: EthernetRepr,
    /// What follows the link header.
    pub(crate) payload: Vec<u8>,
}

impl Out {
    fn new(frame: Vec<u8>) -> Self {
        let (eth, at) = EthernetRepr::parse(&frame).expect("a link header");
        let payload = frame[at..].to_vec();
        assert_eq!(eth.src, OWN, "our hardware address");
        let version = payload[0] >> 4;
        match eth.ethertype {
            ethertype::IPV4 => assert_eq!(version, 4),
            ethertype::IPV6 => assert_eq!(version, 6),
            other => assert_eq!(other, ethertype::ARP),
        }
        let out = Self { eth, payload };
        if let Some(ip) = out.ip() {
            let dst = match ip.dst {
                IpAddr::V4(a) => a.is_multicast() || a.octets()[3] == 255,
                IpAddr::V6(a) => a.is_multicast(),
            };
            assert_eq!(dst, eth.dst.is_multicast(), "a group by a group address, a station by its own: {ip:?}");
            if ip.proto == proto::ICMPV6 {
                let (IpAddr::V6(s), IpAddr::V6(d)) = (ip.src, ip.dst) else { panic!() };
                assert!(Icmpv6Repr::parse(&s, &d, out.body()).is_ok(), "the checksum of {:?}", out.body());
            }
        }
        out
    }
    pub(crate) fn arp(&self) -> Option<ArpRepr> {
        (self.eth.ethertype == ethertype::ARP).then(|| ArpRepr::parse(&self.payload).expect("our own ARP"))
    }
    pub(crate) fn ip(&self) -> Option<IpRepr> {
        (self.eth.ethertype != ethertype::ARP).then(|| IpRepr::parse(&self.payload).expect("our own packet").0)
    }
    /// What follows the IP header.
    pub(crate) fn body(&self) -> &[u8] {
        let at = IpRepr::parse(&self.payload).map_or(0, |p| p.1);
        &self.payload[at..]
    }
    pub(crate) fn nd(&self) -> Option<NdiscRepr<'_>> {
        let ip = self.ip()?;
        if ip.proto != proto::ICMPV6 || !(133..=136).contains(&self.body()[0]) {
            return None;
        }
        assert_eq!(ip.hop_limit, 255);
        Some(NdiscRepr::parse(self.body()).expect("our own discovery"))
    }
}

/// The ARP messages among frames.
pub(crate) fn arps(outs: &[Out]) -> Vec<(MacAddr, ArpRepr)> {
    outs.iter().filter_map(|o| Some((o.eth.dst, o.arp()?))).collect()
}
/// The solicitations among frames: to whom, from which address, for which.
pub(crate) fn solicits(outs: &[Out]) -> Vec<(MacAddr, Ipv6Addr, Ipv6Addr)> {
    let pick = |o: &Out| match (o.nd()?, o.ip()?.src) {
        (NdiscRepr::NeighborSolicit { target, .. }, IpAddr::V6(src)) => Some((o.eth.dst, src, target)),
        _ => None,
    };
    outs.iter().filter_map(pick).collect()
}
/// Datagrams among frames: to which hardware, and their payload.
pub(crate) fn datagrams(outs: &[Out]) -> Vec<(MacAddr, Vec<u8>)> {
    let udp = |o: &&Out| o.ip().is_some_and(|ip| ip.proto == proto::UDP);
    outs.iter().filter(udp).map(|o| (o.eth.dst, o.body()[8..].to_vec())).collect()
}

/// A frame from `src`.
pub(crate) fn eth(dst: MacAddr, src: MacAddr, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut f = vec![0; 14];
    EthernetRepr { dst, src, ethertype: kind, vlan_tci: None }.emit(&mut f);
    f.extend_from_slice(payload);
    // As a card would: padded to 60 bytes.
    f.resize(f.len().max(60), 0xee);
    f
}
/// An ARP message to the hardware `dst`.
pub(crate) fn arp(
    dst: MacAddr,
    sender_mac: MacAddr,
    op: ArpOp,
    sender_ip: Ipv4Addr,
    target_ip: Ipv4Addr,
    target_mac: MacAddr,
) -> Vec<u8> {
    let mut b = [0; 28];
    ArpRepr { op, sender_mac, sender_ip, target_mac, target_ip }.emit(&mut b);
    eth(dst, sender_mac, ethertype::ARP, &b)
}
/// Who has `target`? to all.
pub(crate) fn who_has(mac: MacAddr, sender: &str, target: &str) -> Vec<u8> {
    arp(MacAddr::BROADCAST, mac, ArpOp::Request, sender.parse().unwrap(), target.parse().unwrap(), MacAddr::default())
}

/// An IP packet in a frame.
pub(crate) fn packet(dst_mac: MacAddr, src_mac: MacAddr, ip: &IpRepr, payload: &[u8]) -> Vec<u8> {
    let mut ip = *ip;
    ip.payload_len = payload.len() as u32;
    let mut b = vec![0; ip.header_len()];
    ip.emit(&mut b);
    b.extend_from_slice(payload);
    eth(dst_mac, src_mac, if ip.src.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 }, &b)
}
/// A message of discovery from `src` at `mac`.
pub(crate) fn nd(dst_mac: MacAddr, mac: MacAddr, src: &str, dst: &str, msg: &NdiscRepr<'_>) -> Vec<u8> {
    nd_with(dst_mac, mac, src, dst, msg, 255)
}
pub(crate) fn nd_with(
    dst_mac: MacAddr,
    mac: MacAddr,
    src: &str,
    dst: &str,
    msg: &NdiscRepr<'_>,
    hop_limit: u8,
) -> Vec<u8> {
    let (src, dst): (Ipv6Addr, Ipv6Addr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut b = vec![0; msg.emit_len()];
    msg.emit(&src, &dst, &mut b);
    let mut ip = IpRepr::new(src.into(), dst.into(), proto::ICMPV6, 0);
    ip.hop_limit = hop_limit;
    packet(dst_mac, mac, &ip, &b)
}
/// The hardware address of a group.
pub(crate) fn group(addr: &str) -> MacAddr {
    MacAddr::of_group(addr.parse().unwrap())
}
/// An echo request from `src` at `mac`.
pub(crate) fn ping(dst_mac: MacAddr, mac: MacAddr, src: &str, dst: &str) -> Vec<u8> {
    let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut b = vec![if src.is_ipv4() { 8 } else { 128 }, 0, 0, 0, 0, 7, 0, 1, b'p', b'i', b'n', b'g'];
    let kind = if src.is_ipv4() { proto::ICMP } else { proto::ICMPV6 };
    let pseudo = if src.is_ipv4() { 0 } else { checksum::pseudo(src, dst, kind, b.len() as u32) };
    let sum = checksum::finish(checksum::combine(pseudo, checksum::sum(&b)));
    b[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(dst_mac, mac, &IpRepr::new(src, dst, kind, 0), &b)
}
