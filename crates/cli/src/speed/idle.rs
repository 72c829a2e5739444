//! Idle established connections (`--test idle`): what one costs in memory, and what finding one costs.
//!
//! The stack under test opens `--conns` connections to a *responder without state*: a device that answers every SYN with
//! the SYN-ACK that can be computed from it and forgets it. So the growth of this process is the growth of the one stack
//! that holds the connections. At each power of ten on the way, random connections are looked up by address and port.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use linerate_base::rng::Rng;
use linerate_host::{Clock, interrupt, rss_bytes};
use linerate_netdev::{Features, IfIndex, Qstats, RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_skb::{Csum, SkbBatch};
use linerate_stack::{DeviceConfig, Ready, Shard, StackConfig};
use linerate_wire::ip::IpRepr;
use linerate_wire::tcp::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

use super::args::SpeedArgs;

/// Connections to each remote address: far fewer than there are local ports, so that finding a free one stays cheap.
const CONNS_PER_REMOTE: u32 = 4_000;
const LOOKUPS: u32 = 200_000;
/// Handshakes in flight at a time: fewer than the queues hold.
const BATCH: u32 = 256;
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// What the idle test found.
pub(crate) struct IdleResult {
    pub(crate) rss_growth_bytes: u64,
    /// (connections, ns per lookup).
    pub(crate) lookup_ns: Vec<(u32, f64)>,
    pub(crate) connects_per_second: f64,
}

/// Opens the connections and measures.
pub(crate) fn run(args: &SpeedArgs, config: StackConfig) -> Result<IdleResult, String> {
    let mut shard = Shard::new(config);
    let device = shard.add_device(DeviceConfig::new("resp0", args.mtu)).map_err(|e| e.to_string())?;
    let (rx, tx) = responder(args.mtu);
    shard.attach(device, 0, Box::new(rx), Box::new(tx)).map_err(|e| e.to_string())?;
    set_up_addresses(&mut shard, device)?;
    let clock = Clock::fast();
    let mut result = IdleResult { rss_growth_bytes: 0, lookup_ns: Vec::new(), connects_per_second: 0.0 };
    // The test's own notes are touched before the count begins.
    let mut ports = vec![1_u16; args.conns as usize];
    ports.clear();
    let before = rss_bytes().unwrap_or(0);
    let start = clock.now();
    let mut milestone = 1_000_u32.min(args.conns);
    while (ports.len() as u32) < args.conns && !interrupt::caught() {
        let target = (ports.len() as u32 + BATCH).min(milestone);
        open_until(&mut shard, &clock, &mut ports, target)?;
        if ports.len() as u32 == milestone {
            result.lookup_ns.push((milestone, lookup_ns(&shard, &ports, &clock)?));
            milestone = milestone.saturating_mul(10).min(args.conns);
        }
    }
    let secs = clock.now().since(start).as_secs_f64();
    result.connects_per_second = ports.len() as f64 / secs.max(1e-9);
    result.rss_growth_bytes = rss_bytes().unwrap_or(0).saturating_sub(before) as u64;
    Ok(result)
}

fn set_up_addresses(shard: &mut Shard, device: IfIndex) -> Result<(), String> {
    let cidr = "10.0.0.1/8".parse().map_err(|_| "the test's own prefix does not parse")?;
    shard.add_address(device, cidr).map_err(|e| e.to_string())
}

/// The far end of connection `n`.
fn remote_of(n: u32) -> SocketAddr {
    let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 1, 0, 0)) + n / CONNS_PER_REMOTE);
    SocketAddr::new(IpAddr::V4(ip), 80)
}

/// Opens connections up to `target`, and notes the port that each was given.
fn open_until(shard: &mut Shard, clock: &Clock, ports: &mut Vec<u16>, target: u32) -> Result<(), String> {
    let mut waiting = 0;
    while (ports.len() as u32) < target {
        let n = ports.len() as u32;
        let sock =
            shard.tcp_connect(remote_of(n), None, &Default::default()).map_err(|e| format!("connection {n}: {e}"))?;
        ports.push(shard.local_addr(sock).map_or(0, |local| local.port()));
        waiting += 1;
    }
    for _ in 0..10_000 {
        shard.turn(clock.now(), 1024);
        while let Some((_, ready)) = shard.next_ready() {
            if ready.contains(Ready::ERROR) {
                return Err("a connection attempt failed".into());
            }
            waiting -= i32::from(ready.contains(Ready::CONNECTED));
        }
        if waiting <= 0 {
            return Ok(());
        }
    }
    Err(format!("{waiting} connections were not answered"))
}

fn lookup_ns(shard: &Shard, ports: &[u16], clock: &Clock) -> Result<f64, String> {
    let mut rng = Rng::new(ports.len() as u64);
    let start = clock.now();
    let mut found = 0;
    for _ in 0..LOOKUPS {
        let n = rng.below(ports.len() as u64) as usize;
        let local = SocketAddr::new(IpAddr::V4(LOCAL), ports[n]);
        found += u32::from(shard.find(local, remote_of(n as u32)).is_some());
    }
    let ns = clock.now().since(start).as_nanos() as f64 / f64::from(LOOKUPS);
    if found == LOOKUPS { Ok(ns) } else { Err(format!("{} of {LOOKUPS} connections were not found", LOOKUPS - found)) }
}

/// An answer: the head of an IP packet without payload.
type Answer = ([u8; 60], usize);

#[derive(Default)]
struct Answers(Mutex<VecDeque<Answer>>);

struct ResponderRx(Arc<Answers>);
struct ResponderTx {
    answers: Arc<Answers>,
    features: Features,
    done: TxDone,
}

fn responder(mtu: u32) -> (ResponderRx, ResponderTx) {
    let answers = Arc::new(Answers::default());
    let features = Features { tx_csum: true, rx_csum: true, ..Features::plain(mtu) };
    (ResponderRx(answers.clone()), ResponderTx { answers, features, done: TxDone::new() })
}

impl RxQueue for ResponderRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let Ok(mut answers) = self.0.0.lock() else { return 0 };
        let mut taken = 0;
        while taken < budget {
            let Some((bytes, len)) = answers.pop_front() else { break };
            let Some(mut skb) = cx.skbs.alloc() else { break };
            skb.put_head_from(&bytes[..len]);
            skb.csum = Csum::Unnecessary;
            out.push(skb);
            taken += 1;
        }
        taken
    }
    fn irq_enable(&mut self) -> bool {
        self.0.0.lock().is_ok_and(|answers| !answers.is_empty())
    }
    fn irq_disable(&mut self) {}
    fn qstats(&self) -> Qstats {
        Qstats::default()
    }
}

impl TxQueue for ResponderTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut taken = 0;
        while let Some(skb) = batch.pop_front() {
            if let (Some(answer), Ok(mut answers)) = (answer(skb.head()), self.answers.0.lock()) {
                answers.push_back(answer);
            }
            self.done.push(skb.tx_done, skb.truesize);
            cx.skbs.free(skb, cx.pool);
            taken += 1;
        }
        taken
    }
    fn kick(&mut self, _cx: &mut TxCx<'_>) {}
    fn poll_tx(&mut self, _cx: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        let skbs = self.done.skbs();
        for (token, bytes) in self.done.drain() {
            done.push(token, bytes);
        }
        skbs
    }
    fn features(&self) -> &Features {
        &self.features
    }
    fn qstats(&self) -> Qstats {
        Qstats::default()
    }
}

/// The SYN-ACK to a SYN; nothing for anything else. Computed from the SYN alone.
fn answer(packet: &[u8]) -> Option<Answer> {
    let (ip, header_len) = IpRepr::parse(packet).ok()?;
    let (syn, _) = TcpRepr::parse(packet.get(header_len..)?).ok()?;
    if !syn.flags.contains(TcpFlags::SYN) || syn.flags.contains(TcpFlags::ACK) {
        return None;
    }
    let opts = TcpOptions {
        mss: syn.opts.mss,
        wscale: syn.opts.wscale.map(|_| 7),
        sack_permitted: syn.opts.sack_permitted,
        ts: syn.opts.ts.map(|ts| Timestamps { val: 1, ecr: ts.val }),
        ..TcpOptions::default()
    };
    let reply = TcpRepr {
        src_port: syn.dst_port,
        dst_port: syn.src_port,
        seq: linerate_base::Seq(syn.seq.0 ^ 0x5555_5555),
        ack: syn.seq + 1,
        flags: TcpFlags::SYN | TcpFlags::ACK,
        window: 65_535,
        urgent: 0,
        opts,
    };
    let tcp_len = reply.header_len();
    let reply_ip = IpRepr::new(ip.dst, ip.src, ip.proto, tcp_len as u32);
    let mut bytes = [0_u8; 60];
    let ip_len = reply_ip.header_len();
    reply_ip.emit(bytes.get_mut(..ip_len)?);
    reply.emit(bytes.get_mut(ip_len..ip_len + tcp_len)?);
    Some((bytes, ip_len + tcp_len))
}
