//! Two shards on a software wire of Ethernet kind: TCP, UDP and pings of both families, cut by whoever can cut.

use std::net::SocketAddr;

use linerate_base::{DropReason, Duration, Instant};
use linerate_netdev::{FaultPlan, IfIndex};
use linerate_softnic::{CsumOffload, NicConfig, pair};
use linerate_stack::udp::{RecvFlags, SendOpts};
use linerate_stack::{BindOpts, DeviceConfig, Nud, Shard, SockId, SockOpts, StackConfig};
use linerate_wire::MacAddr;

struct Net {
    s: [Shard; 2],
    now: Instant,
    nics: [linerate_softnic::Nic; 2],
}

const DEV: IfIndex = IfIndex(2);
const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];

impl Net {
    fn new(cfg: NicConfig) -> Self {
        let cfg = NicConfig { ethernet: true, ..cfg };
        let (mut a, mut b) = pair(&cfg, &cfg);
        let shard = |n: usize, nic: &mut linerate_softnic::Nic| {
            let mut s = Shard::new(StackConfig::default());
            let mut dcfg = DeviceConfig::new("eth0", cfg.mtu).ethernet(MACS[n]);
            dcfg.ipv6.dad_transmits = 0;
            let dev = s.add_device(dcfg).unwrap();
            assert_eq!(dev, DEV);
            let (rx, tx) = nic.take_queue(0).unwrap();
            s.attach(dev, 0, rx, tx).unwrap();
            for addr in [format!("10.0.0.{}/24", n + 1), format!("fd00::{}/64", n + 1)] {
                s.add_address(dev, addr.parse().unwrap()).unwrap();
            }
            s
        };
        let s = [shard(0, &mut a), shard(1, &mut b)];
        Self { s, now: Instant::from_secs(1), nics: [a, b] }
    }
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let [a, b] = &mut self.s;
            let turns = [a.turn(self.now, 256), b.turn(self.now, 256)];
            if turns.iter().all(|t| t.rx_skbs == 0 && t.tx_skbs == 0 && !t.more) {
                return;
            }
        }
        panic!("the conversation does not come to rest");
    }
    fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        loop {
            self.settle();
            let [a, b] = &mut self.s;
            let next = [a.turn(self.now, 64).next, b.turn(self.now, 64).next].into_iter().flatten().min();
            let Some(next) = next.filter(|at| *at < end) else { break };
            self.now = next.max(self.now + Duration::from_micros(10));
        }
        self.now = end;
        self.settle();
    }
    /// An established connection to `at` of the second shard.
    fn connect(&mut self, at: SocketAddr) -> [SockId; 2] {
        let l = self.s[1].tcp_listen(at, 8, &SockOpts::default(), BindOpts::default()).unwrap();
        let c = self.s[0].tcp_connect(at, None, &SockOpts::default()).unwrap();
        self.pass(10);
        let s = self.s[1].accept(l).expect("accepted");
        self.s[1].close(l).unwrap();
        [c, s]
    }
    /// Carries `len` known bytes from socket 0 to socket 1, time passing as the flow wants it.
    fn stream(&mut self, [c, s]: [SockId; 2], len: usize) {
        let byte = |i: usize| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8;
        let (mut sent, mut got) = (0, 0);
        let mut buf = vec![0; 1 << 17];
        let start = self.now;
        while got < len {
            if sent < len {
                let n = (len - sent).min(buf.len());
                buf.iter_mut().zip(sent..sent + n).for_each(|(b, i)| *b = byte(i));
                sent += self.s[0].write(c, &buf[..n]).unwrap_or(0);
            }
            self.pass(5);
            while let Ok(n @ 1..) = self.s[1].read(s, &mut buf) {
                assert!(buf[..n].iter().enumerate().all(|(i, b)| *b == byte(got + i)), "bytes at {got}");
                got += n;
            }
            assert!(self.now < start + Duration::from_secs(600), "{got} of {len} after ten minutes");
        }
    }
    fn datagrams(&mut self, v6: bool) {
        let at: SocketAddr = if v6 { "[fd00::2]:9" } else { "10.0.0.2:9" }.parse().unwrap();
        let to = self.s[1].udp_bind(at, Default::default()).unwrap();
        let from = self.s[0].udp_socket(v6);
        self.s[0].send_to(from, b"small", Some(at), SendOpts::default()).unwrap();
        self.pass(1);
        let train: Vec<u8> = (0..10_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let opts = SendOpts { gso_size: Some(1400), ..SendOpts::default() };
        self.s[0].send_to(from, &train, Some(at), opts).unwrap();
        self.pass(1);
        let mut buf = [0; 2000];
        let mut recv = |net: &mut Self| {
            let r = net.s[1].recv_from(to, &mut buf, RecvFlags::default()).unwrap();
            buf[..r.len].to_vec()
        };
        assert_eq!(recv(self), b"small");
        let got: Vec<u8> = (0..8).flat_map(|_| recv(self)).collect();
        assert_eq!(got, train);
        self.s[0].close(from).unwrap();
        self.s[1].close(to).unwrap();
    }
    fn check(&mut self) {
        for s in &mut self.s {
            s.check_invariants();
            let bad: Vec<_> = s.mibs().drops.iter().filter(|d| d.0 != DropReason::WireLoss).collect();
            // A group that the other end joined and this one did not.
            assert!(bad.iter().all(|d| d.0 == DropReason::OtherHost), "{bad:?}");
        }
    }
}

fn exercise(cfg: NicConfig) -> Net {
    let mut net = Net::new(cfg);
    for at in ["10.0.0.2:80", "[fd00::2]:80"] {
        let flow = net.connect(at.parse().unwrap());
        net.stream(flow, 3 << 20);
        net.stream([flow[0], flow[1]], 1);
        net.s[0].close(flow[0]).unwrap();
        net.s[1].close(flow[1]).unwrap();
    }
    net.datagrams(false);
    net.datagrams(true);
    net.check();
    net
}

#[test]
fn super_packets_cross_uncut() {
    let net = exercise(NicConfig::default());
    let tx = net.nics[0].stats().total();
    assert!(tx.tx_wire_pkts > 4 * tx.tx_skbs, "{tx:?}");
}

#[test]
fn the_device_cuts_and_merges_behind_the_link_header() {
    let net = exercise(NicConfig { cut: true, ..NicConfig::default() });
    let (tx, rx) = (net.nics[0].stats().total(), net.nics[1].stats().total());
    assert!(tx.tx_hw_gso_wire_pkts > 4 * tx.tx_hw_gso_skbs && rx.rx_hw_gro_skbs > 0, "{tx:?} {rx:?}");
    assert_eq!(rx.rx_csum_bad, 0);
}

#[test]
fn the_stack_cuts_merges_and_sums_behind_the_link_header() {
    let plain =
        NicConfig { cut: true, tso: false, uso: false, gro_hw: false, csum: CsumOffload::Sw, ..NicConfig::default() };
    let net = exercise(plain);
    let (tx, rx) = (net.nics[0].stats().total(), net.nics[1].stats().total());
    assert_eq!((tx.tx_hw_gso_skbs, tx.tx_csum_partial, rx.rx_hw_gro_skbs), (0, 0, 0));
    exercise(NicConfig { cut: true, tso: false, uso: false, gro_hw: false, ..NicConfig::default() });
}

#[test]
fn pages_are_copied_behind_the_link_header() {
    exercise(NicConfig { cut: true, dma: linerate_softnic::Dma::Copy, max_frags: 4, ..NicConfig::default() });
}

#[test]
fn a_lossy_link_resolves_and_carries() {
    let fault = FaultPlan { loss: 0.05, ..FaultPlan::default() };
    let cfg = NicConfig { fault: Some((fault, 11)), ..NicConfig::default() };
    let mut net = Net::new(cfg);
    let at: SocketAddr = "10.0.0.2:80".parse().unwrap();
    net.s[1].tcp_listen(at, 8, &SockOpts::default(), BindOpts::default()).unwrap();
    let c = net.s[0].tcp_connect(at, None, &SockOpts::default()).unwrap();
    net.pass(20_000);
    assert!(net.s[0].take_error(c).is_none() && net.s[0].write(c, b"x").is_ok());
}

/// Progress of a connection is a proof: while one goes on, nobody is asked.
#[test]
fn a_connection_keeps_its_neighbour_proved() {
    let mut net = Net::new(NicConfig::default());
    let [c, s] = net.connect("10.0.0.2:80".parse().unwrap());
    let peer = "10.0.0.2".parse::<std::net::IpAddr>().unwrap();
    let asked = |net: &Net| net.s[0].neigh_stats().solicits_sent;
    let before = asked(&net);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..400 {
        assert_eq!(net.s[0].write(c, b"request"), Ok(7));
        net.pass(1000);
        assert_eq!(net.s[1].read(s, &mut [0; 64]), Ok(7));
        let n = net.s[0].neighbours().find(|n| n.addr == peer).unwrap();
        seen.insert(n.state.name());
        assert!(n.state != Nud::Probe && n.state != Nud::Failed);
    }
    assert_eq!(asked(&net), before, "no question in 400 seconds");
    assert!(seen.contains("Reachable"));
    // When the connection rests, the neighbour goes stale in silence.
    net.pass(100_000);
    let n = net.s[0].neighbours().find(|n| n.addr == peer).unwrap();
    assert_eq!((n.state, asked(&net)), (Nud::Stale, before));
}

#[test]
fn a_device_that_goes_takes_its_neighbours_along() {
    let mut net = Net::new(NicConfig::default());
    let [c, _] = net.connect("[fd00::2]:80".parse().unwrap());
    let u = net.s[0].udp_socket(false);
    net.s[0].send_to(u, b"waits for ever", Some("10.0.0.77:9".parse().unwrap()), SendOpts::default()).unwrap();
    net.settle();
    assert!(net.s[0].neighbours().count() >= 2);
    net.s[0].del_device(DEV).unwrap();
    assert_eq!((net.s[0].neighbours().count(), net.s[0].mibs().drops.get(DropReason::Shutdown)), (0, 1));
    net.s[0].abort(c).unwrap();
    net.s[0].close(u).unwrap();
    net.pass(10_000);
    net.s[0].assert_quiescent();
}

/// The same prefix on two devices: each has its route, and who names a device gets its.
#[test]
fn every_device_has_its_link_local_prefix() {
    let cfg = NicConfig { ethernet: true, ..NicConfig::default() };
    let (mut a, mut b) = pair(&cfg, &cfg);
    let mut s = Shard::new(StackConfig::default());
    let mut devs = Vec::new();
    for (n, nic) in [&mut a, &mut b].into_iter().enumerate() {
        let dev = s.add_device(DeviceConfig::new(format!("eth{n}"), 1500).ethernet(MACS[n])).unwrap();
        let (rx, tx) = nic.take_queue(0).unwrap();
        s.attach(dev, 0, rx, tx).unwrap();
        devs.push(dev);
    }
    let mut now = Instant::from_secs(1);
    for _ in 0..1000 {
        s.turn(now, 64);
        now += Duration::from_millis(5);
    }
    for (n, dev) in devs.iter().enumerate() {
        let r = s.links().route("fe80::9".parse().unwrap(), None, Some(*dev), now).unwrap();
        assert_eq!((r.ifindex, r.src.to_string()), (*dev, format!("fe80::ff:fe00:{}", n + 1)));
        assert!(s.links().route("ff02::5".parse().unwrap(), None, Some(*dev), now).is_ok());
    }
    s.del_device(devs[0]).unwrap();
    assert_eq!(s.links().route("fe80::9".parse().unwrap(), None, None, now).unwrap().ifindex, devs[1]);
    // A queue of another kind is refused.
    let (mut plain, _) = pair(&NicConfig::default(), &NicConfig::default());
    let dev = s.add_device(DeviceConfig::new("eth9", 1500).ethernet(MACS[0])).unwrap();
    let (rx, tx) = plain.take_queue(0).unwrap();
    assert_eq!(s.attach(dev, 0, rx, tx), Err(linerate_stack::AddrError::Refused));
    assert!(s.add_device(DeviceConfig::new("bad", 1500).ethernet(MacAddr::BROADCAST)).is_err());
}
