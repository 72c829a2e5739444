//! Small packets against the general way: the same conversation over two software NICs twice, once with devices that hide
//! what they know about small packets. Every packet on the wire, every counter, every turn and every byte has to be equal.

use std::boxed::Box;
use std::format;
use std::string::String;
use std::sync::{Arc, Mutex};
use std::vec;
use std::vec::Vec;

use linerate_base::Instant;
use linerate_base::rng::Rng;
use linerate_netdev::{Features, Qstats, RxCx, RxQueue, SMALL_BYTES, SmallPacket, TxCx, TxDone, TxQueue};
use linerate_skb::SkbBatch;
use linerate_softnic::{NicConfig, pair};
use linerate_tcp::{RecvError, SockOpts};

use crate::config::GroMode;
use crate::{BindOpts, DeviceConfig, Shard, SockId, StackConfig};

/// Packets in the order of their arrival, and how many of them were small ones taken from the ring.
type Log = Arc<Mutex<(Vec<Vec<u8>>, usize)>>;

/// A receive queue that notes what arrives.
struct SpyRx {
    inner: Box<dyn RxQueue + Send>,
    log: Log,
    hide: bool,
}

impl RxQueue for SpyRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let before = out.len();
        let n = self.inner.poll_rx(cx, budget, out);
        self.log.lock().unwrap().0.extend(out.iter().skip(before).map(|skb| skb.to_vec()));
        n
    }
    fn poll_small(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8; SMALL_BYTES], SmallPacket) -> bool,
    ) -> (usize, bool) {
        if self.hide {
            return (0, true);
        }
        let log = &self.log;
        self.inner.poll_small(budget, &mut |bytes, packet| {
            let taken = take(bytes, packet);
            if taken {
                let mut log = log.lock().unwrap();
                log.0.push(bytes[..usize::from(packet.len())].to_vec());
                log.1 += 1;
            }
            taken
        })
    }
    fn irq_enable(&mut self) -> bool {
        self.inner.irq_enable()
    }
    fn irq_disable(&mut self) {
        self.inner.irq_disable();
    }
    fn qstats(&self) -> Qstats {
        self.inner.qstats()
    }
}

/// A transmit queue that may hide that it takes small packets.
struct SpyTx {
    inner: Box<dyn TxQueue + Send>,
    hide: bool,
}

impl TxQueue for SpyTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        self.inner.xmit(cx, batch)
    }
    fn kick(&mut self, cx: &mut TxCx<'_>) {
        self.inner.kick(cx);
    }
    fn xmit_small(&mut self, make: &mut dyn FnMut(&mut [u8; SMALL_BYTES]) -> Option<SmallPacket>) -> bool {
        !self.hide && self.inner.xmit_small(make)
    }
    fn poll_tx(&mut self, cx: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        self.inner.poll_tx(cx, done)
    }
    fn features(&self) -> &Features {
        self.inner.features()
    }
    fn qstats(&self) -> Qstats {
        self.inner.qstats()
    }
}

/// Two shards on one wire, with connections that are open.
struct Lab {
    ends: [Shard; 2],
    logs: [Log; 2],
    socks: Vec<[SockId; 2]>,
    now: Instant,
}

impl Lab {
    fn new(hide: bool, opts: &SockOpts) -> Self {
        let cfg = NicConfig { ring_slots: 256, ..NicConfig::default() };
        let (mut a, mut b) = pair(&cfg, &cfg);
        let logs = [Log::default(), Log::default()];
        let side = |nic: &mut linerate_softnic::Nic, n: usize| {
            let mut shard = Shard::new(StackConfig { seed: 1 + n as u64, ..StackConfig::default() });
            let mut device = DeviceConfig::new("nic0", 1500);
            device.gro = GroMode::Off;
            let dev = shard.add_device(device).unwrap();
            let (rx, tx) = nic.take_queue(0).unwrap();
            let rx = SpyRx { inner: rx, log: logs[n].clone(), hide };
            shard.attach(dev, 0, Box::new(rx), Box::new(SpyTx { inner: tx, hide })).unwrap();
            for addr in [format!("10.0.0.{}/24", n + 1), format!("fd00::{}/64", n + 1)] {
                shard.add_address(dev, addr.parse().unwrap()).unwrap();
            }
            shard
        };
        let ends = [side(&mut a, 0), side(&mut b, 1)];
        let mut lab = Self { ends, logs, socks: Vec::new(), now: Instant::from_secs(1) };
        for to in ["10.0.0.2:80", "10.0.0.2:81", "[fd00::2]:82"] {
            lab.open(to, opts);
        }
        lab
    }

    fn open(&mut self, to: &str, opts: &SockOpts) {
        let to = to.parse().unwrap();
        let listener = self.ends[1].tcp_listen(to, 8, opts, BindOpts::default()).unwrap();
        let client = self.ends[0].tcp_connect(to, None, opts).unwrap();
        for _ in 0..6 {
            self.ends.iter_mut().for_each(|end| {
                end.turn(self.now, 64);
            });
            self.now = self.now.plus_micros(50);
        }
        self.socks.push([client, self.ends[1].accept(listener).unwrap()]);
    }

    /// Sends what there is to be sent; the completions are taken, which small packets have at once.
    fn send(&mut self, end: usize) -> usize {
        let mut sent = self.ends[end].flush();
        loop {
            match self.ends[end].turn(self.now, 0).tx_skbs {
                0 => return sent,
                n => sent += n,
            }
        }
    }

    /// All that an application or an operator can see of one end, but for whether the application limits the sender: that
    /// rests on completions, which a small packet has at once and another with the next turn.
    fn state(&self, end: usize) -> String {
        let shard = &self.ends[end];
        let info = |socks: &[SockId; 2]| {
            let mut info = shard.info(socks[end]).unwrap();
            (info.delivery_rate_app_limited, info.delivery_rate) = (false, 0);
            format!("{info:?}")
        };
        let infos: Vec<String> = self.socks.iter().map(info).collect();
        format!("{:?} {:?} {infos:?}", shard.mibs(), shard.copied_bytes())
    }
}

/// One conversation of small messages with some large ones and some silence. What there is to see after each step, the
/// packets, and how many of them went the short way.
fn converse(seed: u64, hide: bool) -> (Vec<String>, [Vec<Vec<u8>>; 2], usize) {
    let mut rng = Rng::new(seed);
    let mut opts = SockOpts::default();
    opts.nodelay = rng.chance(0.7);
    opts.tos = if rng.chance(0.2) { 0x20 } else { 0 };
    let mut lab = Lab::new(hide, &opts);
    let mut seen = Vec::new();
    let (mut wrote, mut buf) = (0_u8, vec![0; 10_000]);
    for _ in 0..600 {
        let end = rng.below(2) as usize;
        let sock = lab.socks[if rng.chance(0.8) { 0 } else { rng.below(3) as usize }][end];
        match rng.below(14) {
            10.. => {
                // A message as they mostly are: sent, received and read at once.
                let n = 1 + rng.below(68) as usize;
                let at = lab.socks.iter().position(|pair| pair[end] == sock).unwrap();
                let there = lab.socks[at][1 - end];
                seen.push(format!("{:?} {}", lab.ends[end].write(sock, &buf[..n]), lab.send(end)));
                lab.now = lab.now.plus_micros(rng.below(20));
                seen.push(format!("{} {}", lab.ends[1 - end].turn(lab.now, 64).rx_skbs, lab.send(1 - end)));
                seen.push(format!("{:?}", lab.ends[1 - end].read(there, &mut buf)));
            }
            0..=2 => {
                let n = if rng.chance(0.9) { 1 + rng.below(80) } else { 1 + rng.below(4000) } as usize;
                wrote = wrote.wrapping_add(1);
                seen.push(format!("write {:?}", lab.ends[end].write(sock, &vec![wrote; n])));
            }
            3..=4 => {
                let max = if rng.chance(0.8) { buf.len() } else { 1 + rng.below(40) as usize };
                let got = lab.ends[end].read(sock, &mut buf[..max]);
                seen.push(format!("read {got:?} {:?}", got.map(|n| buf[..n].to_vec())));
            }
            5 if rng.chance(0.3) => change_option(&mut lab.ends[end], sock, &mut rng),
            5 => seen.push(format!("flush {}", lab.send(end))),
            6..=8 => {
                let turn = lab.ends[end].turn(lab.now, 64);
                seen.push(format!("turn {} {}", turn.rx_skbs, turn.tx_skbs + lab.send(end)));
            }
            _ => {
                let us = if rng.chance(0.9) { rng.below(500) } else { rng.below(300_000) };
                lab.now = lab.now.plus_micros(us);
            }
        }
        lab.ends[end].check_invariants();
        seen.push(lab.state(end));
    }
    let short = lab.logs.iter().map(|log| log.lock().unwrap().1).sum();
    // By flow: when a wheel looks at a socket for nothing, that may change whose turn it is first.
    let ports = |packet: &Vec<u8>| if packet[0] >> 4 == 4 { packet[20..24].to_vec() } else { packet[40..44].to_vec() };
    let packets = lab.logs.each_ref().map(|log| {
        let mut packets = log.lock().unwrap().0.clone();
        packets.sort_by_key(ports);
        packets
    });
    (seen, packets, short)
}

/// An option that the short way has to respect as well, set in the middle of the conversation.
fn change_option(shard: &mut Shard, sock: SockId, rng: &mut Rng) {
    let on = rng.chance(0.5);
    let which = rng.below(7);
    shard
        .with_opts(sock, |o| match which {
            0 => o.nodelay = on,
            1 => o.cork = on,
            2 => o.tos = if on { 0x28 } else { 0 },
            3 => o.ttl = if on { 33 } else { 0 },
            4 => o.min_ttl = u8::from(on),
            5 => o.notsent_lowat_bytes = if on { 2000 } else { 0 },
            _ => o.user_timeout_ms = if on { 5_000 } else { 0 },
        })
        .unwrap();
}

#[test]
fn small_packets_are_the_same_packets() {
    let mut short = 0;
    for seed in 0..40 {
        let (seen, packets, n) = converse(seed, false);
        let (seen_general, packets_general, none) = converse(seed, true);
        assert_eq!(none, 0);
        for (at, (a, b)) in seen.iter().zip(&seen_general).enumerate() {
            let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
            let around = |s: &str| String::from(&s[same.saturating_sub(40)..s.len().min(same + 40)]);
            assert!(a == b, "seed {seed}, step {at}: {} / {}", around(a), around(b));
        }
        assert!(packets == packets_general, "seed {seed}: packets differ");
        short += n;
    }
    assert!(short > 600, "small packets hardly occur: {short}");
}

/// A connection that wants its peer near looks at the TTL of every packet (RFC 5082), also of small ones.
#[test]
fn a_small_packet_from_far_away_is_dropped() {
    let mut opts = SockOpts::default();
    opts.nodelay = true;
    for hide in [true, false] {
        let mut lab = Lab::new(hide, &opts);
        let [client, server] = lab.socks[0];
        // A message from one end to the other; what the other reads.
        let say = |lab: &mut Lab, from: usize| {
            let [a, b] = if from == 0 { [client, server] } else { [server, client] };
            assert_eq!(lab.ends[from].write(a, b"hello"), Ok(5));
            lab.send(from);
            lab.ends[1 - from].turn(lab.now, 64);
            lab.ends[1 - from].read(b, &mut [0; 8])
        };
        for n in 0..40 {
            assert_eq!(say(&mut lab, n % 2), Ok(5));
        }
        let short = lab.logs[1].lock().unwrap().1;
        assert_eq!(hide, short == 0, "{short} went the short way");
        lab.ends[1].with_opts(server, |o| o.min_ttl = 65).unwrap();
        assert_eq!(say(&mut lab, 0), Err(RecvError::WouldBlock), "hide {hide}");
        assert_eq!(lab.ends[1].mibs().tcp.min_ttl_drop, 1);
    }
}

/// Connections that open, say something, or not, and close, many at once, in an order that the seed decides.
fn short_lives(seed: u64, hide: bool) -> (Vec<String>, [Vec<Vec<u8>>; 2], usize) {
    let mut rng = Rng::new(seed);
    let mut lab = Lab::new(hide, &SockOpts::default());
    let at = "10.0.0.2:90".parse().unwrap();
    let listener = lab.ends[1].tcp_listen(at, 16, &SockOpts::default(), BindOpts::default()).unwrap();
    let mut socks = [Vec::<SockId>::new(), Vec::new()];
    let mut seen = Vec::new();
    let mut buf = [0; 64];
    for _ in 0..500 {
        let end = rng.below(2) as usize;
        let chosen = rng.below(socks[end].len().max(1) as u64) as usize;
        match (rng.below(12), socks[end].get(chosen).copied()) {
            (0, _) if socks[0].len() < 12 => {
                socks[0].push(lab.ends[0].tcp_connect(at, None, &SockOpts::default()).unwrap());
            }
            (1, _) => socks[1].extend(core::iter::from_fn(|| lab.ends[1].accept(listener).ok())),
            (2..=3, Some(sock)) => seen.push(format!("{:?}", lab.ends[end].write(sock, &[seed as u8; 7]))),
            (4, Some(sock)) => seen.push(format!("{:?}", lab.ends[end].read(sock, &mut buf))),
            (5, Some(_)) => {
                let sock = socks[end].swap_remove(chosen);
                seen.push(format!("{:?}", lab.ends[end].close(sock)));
            }
            (6..=9, _) => {
                let turn = lab.ends[end].turn(lab.now, 64);
                seen.push(format!("turn {} {}", turn.rx_skbs, turn.tx_skbs + lab.send(end)));
            }
            (10, _) => lab.now = lab.now.plus_micros(rng.below(500)),
            (11, _) if rng.chance(0.2) => lab.now = lab.now.plus_micros(rng.below(70_000_000)),
            _ => {}
        }
        lab.ends.iter().for_each(Shard::check_invariants);
        seen.push(format!("{:?} {:?}", lab.ends[end].mibs(), lab.ends[end].tcp_counts()));
    }
    let short = lab.logs.iter().map(|log| log.lock().unwrap().1).sum();
    let packets = lab.logs.each_ref().map(|log| {
        let mut packets = log.lock().unwrap().0.clone();
        packets.sort_by_key(|p: &Vec<u8>| p[20..24].to_vec());
        // Identifications count over several flows: whose turn is first may change there.
        packets.iter_mut().for_each(|p| [4, 5, 10, 11].into_iter().for_each(|at| p[at] = 0));
        packets
    });
    (seen, packets, short)
}

#[test]
fn short_connections_are_the_same_connections() {
    let mut short = 0;
    for seed in 0..40 {
        let (seen, packets, n) = short_lives(seed, false);
        let (seen_general, packets_general, none) = short_lives(seed, true);
        assert_eq!(none, 0);
        for (at, (a, b)) in seen.iter().zip(&seen_general).enumerate() {
            assert!(a == b, "seed {seed}, step {at}:\n{a}\n{b}");
        }
        assert!(packets == packets_general, "seed {seed}: packets differ");
        short += n;
    }
    assert!(short > 2_000, "small packets hardly occur: {short}");
}
