//! Idle established connections (`--test idle`): what one costs in memory, and what finding one costs.
//!
//! The stack under test opens `--conns` connections to a *responder*: a device that answers every SYN with the SYN-ACK that
//! can be computed from it, and notes 16 bytes in memory that was touched beforehand. So the growth of this process is the growth of the one stack
//! that holds the connections. At each power of ten on the way two things are timed:
//! - *lookup*: random connections are looked up by address and port, each search beginning when the last has ended;
//! - *segment*: what the data path pays for a segment of a random connection. The responder sends pure ACKs, [`BURST`] at
//!   a time, each of another connection, and the turns that receive them are timed, from the device's queue to the end.
//!   Such a segment is parsed, finds its connection among all, is checked against it and needs no answer.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use linerate_base::rng::Rng;
use linerate_base::{Duration, Seq};
use linerate_host::{Clock, interrupt, rss_bytes};
use linerate_netdev::{Features, IfIndex, Qstats, RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_skb::{Csum, SkbBatch};
use linerate_stack::{DeviceConfig, Ready, Shard, StackConfig};
use linerate_wire::ip::{IpRepr, proto};
use linerate_wire::tcp::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

use super::args::SpeedArgs;

/// Connections to each remote address: far fewer than there are local ports, so that finding a free one stays cheap.
const CONNS_PER_REMOTE: u32 = 4_000;
const LOOKUPS: u32 = 200_000;
/// Segments that arrive together: what a busy queue brings in one poll.
const BURST: usize = 64;
/// Bursts timed at each power of ten.
const BURSTS: usize = 3_000;
/// Handshakes in flight at a time: fewer than the queues hold.
const BATCH: u32 = 256;
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// What the idle test found.
pub(crate) struct IdleResult {
    pub(crate) rss_growth_bytes: u64,
    /// (connections, ns per lookup).
    pub(crate) lookup_ns: Vec<(u32, f64)>,
    /// (connections, ns per received segment).
    pub(crate) segment_ns: Vec<(u32, f64)>,
    pub(crate) connects_per_second: f64,
}

/// Opens the connections and measures.
pub(crate) fn run(args: &SpeedArgs, config: StackConfig) -> Result<IdleResult, String> {
    let mut shard = Shard::new(config);
    let device = shard.add_device(DeviceConfig::new("resp0", args.mtu)).map_err(|e| e.to_string())?;
    let (rx, tx, answers) = responder(args.mtu, args.conns);
    shard.attach(device, 0, Box::new(rx), Box::new(tx)).map_err(|e| e.to_string())?;
    set_up_addresses(&mut shard, device)?;
    let clock = Clock::fast();
    let mut result =
        IdleResult { rss_growth_bytes: 0, lookup_ns: Vec::new(), segment_ns: Vec::new(), connects_per_second: 0.0 };
    // The test's own notes are touched before the count begins.
    let mut ports = vec![1_u16; args.conns as usize];
    ports.clear();
    let before = rss_bytes().unwrap_or(0);
    let mut opening = Duration::ZERO;
    let mut milestone = 1_000_u32.min(args.conns);
    while (ports.len() as u32) < args.conns && !interrupt::caught() {
        let target = (ports.len() as u32 + BATCH).min(milestone);
        let start = clock.now();
        open_until(&mut shard, &clock, &mut ports, target)?;
        opening += clock.now().since(start);
        if ports.len() as u32 == milestone {
            result.lookup_ns.push((milestone, lookup_ns(&shard, &ports, &clock)?));
            result.segment_ns.push((milestone, segment_ns(&mut shard, &answers, &clock)?));
            milestone = milestone.saturating_mul(10).min(args.conns);
        }
    }
    result.connects_per_second = ports.len() as f64 / opening.as_secs_f64().max(1e-9);
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
    let (mut found, mut last) = (0, 0);
    for _ in 0..LOOKUPS {
        // The result of a search decides where the next one goes, so that the processor can not overlap them.
        let n = (rng.below(ports.len() as u64) + last) as usize % ports.len();
        let local = SocketAddr::new(IpAddr::V4(LOCAL), ports[n]);
        if let Some(sock) = shard.find(local, remote_of(n as u32)) {
            found += 1;
            last = sock.as_u64() & 1;
        }
    }
    let ns = clock.now().since(start).as_nanos() as f64 / f64::from(LOOKUPS);
    if found == LOOKUPS { Ok(ns) } else { Err(format!("{} of {LOOKUPS} connections were not found", LOOKUPS - found)) }
}

/// Has the responder send pure ACKs of random connections in bursts, and times the turns that receive them.
fn segment_ns(shard: &mut Shard, answers: &Answers, clock: &Clock) -> Result<f64, String> {
    let before = shard.mibs().tcp.in_segs;
    let conns = answers.lock()?.conns.len() as u64;
    let mut rng = Rng::new(conns);
    let mut spent = Duration::ZERO;
    for _ in 0..BURSTS {
        let mut state = answers.lock()?;
        for _ in 0..BURST {
            let ack = state.conns[rng.below(conns) as usize].segment(TcpFlags::ACK);
            state.queue.push_back(ack);
        }
        drop(state);
        let start = clock.now();
        shard.turn(start, 2 * BURST);
        spent += clock.now().since(start);
    }
    let received = shard.mibs().tcp.in_segs - before;
    match answers.lock()?.queue.is_empty() && received == (BURSTS * BURST) as u64 {
        true => Ok(spent.as_nanos() as f64 / received as f64),
        false => Err(format!("{received} of {} segments were received", BURSTS * BURST)),
    }
}

/// An answer: the head of an IP packet without payload.
type Answer = ([u8; 60], usize);

/// What the responder knows of a connection: enough to speak for its far end.
#[derive(Clone, Copy)]
struct FarEnd {
    remote: Ipv4Addr,
    port: u16,
    /// The initial sequence number of the stack under test.
    irs: u32,
    /// The TSval of its SYN, 0 without timestamps.
    tsval: u32,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Answer>,
    conns: Vec<FarEnd>,
}

#[derive(Default)]
struct Answers(Mutex<State>);

impl Answers {
    fn lock(&self) -> Result<MutexGuard<'_, State>, String> {
        self.0.lock().map_err(|_| "the responder is broken".into())
    }
}

struct ResponderRx(Arc<Answers>);
struct ResponderTx {
    answers: Arc<Answers>,
    features: Features,
    done: TxDone,
}

fn responder(mtu: u32, conns: u32) -> (ResponderRx, ResponderTx, Arc<Answers>) {
    let answers = Arc::new(Answers::default());
    if let Ok(mut state) = answers.lock() {
        // The test's own notes are touched before the count begins.
        state.conns = vec![FarEnd { remote: LOCAL, port: 1, irs: 1, tsval: 1 }; conns as usize];
        state.conns.clear();
    }
    let features = Features { tx_csum: true, rx_csum: true, ..Features::plain(mtu) };
    (ResponderRx(answers.clone()), ResponderTx { answers: answers.clone(), features, done: TxDone::new() }, answers)
}

impl RxQueue for ResponderRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let Ok(mut state) = self.0.lock() else { return 0 };
        let mut taken = 0;
        while taken < budget {
            let Some((bytes, len)) = state.queue.pop_front() else { break };
            let Some(mut skb) = cx.skbs.alloc() else { break };
            skb.put_head_from(&bytes[..len]);
            skb.csum = Csum::Unnecessary;
            out.push(skb);
            taken += 1;
        }
        taken
    }
    fn irq_enable(&mut self) -> bool {
        self.0.lock().is_ok_and(|state| !state.queue.is_empty())
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
            if let (Some(conn), Ok(mut state)) = (FarEnd::of_syn(skb.head()), self.answers.lock()) {
                state.queue.push_back(conn.segment(TcpFlags::SYN | TcpFlags::ACK));
                state.conns.push(conn);
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

impl FarEnd {
    /// The far end of what a SYN opens; nothing for any other segment.
    fn of_syn(packet: &[u8]) -> Option<Self> {
        let (ip, header_len) = IpRepr::parse(packet).ok()?;
        let (syn, _) = TcpRepr::parse(packet.get(header_len..)?).ok()?;
        let IpAddr::V4(remote) = ip.dst else { return None };
        let opening = syn.flags.contains(TcpFlags::SYN) && !syn.flags.contains(TcpFlags::ACK);
        let tsval = syn.opts.ts.map_or(0, |ts| ts.val);
        opening.then_some(Self { remote, port: syn.src_port, irs: syn.seq.0, tsval })
    }

    /// A segment without data: the SYN-ACK, or an ACK that says nothing new.
    fn segment(self, flags: TcpFlags) -> Answer {
        let syn = flags.contains(TcpFlags::SYN);
        let opts = TcpOptions {
            mss: syn.then_some(1460),
            wscale: syn.then_some(7),
            sack_permitted: syn,
            ts: (self.tsval != 0).then_some(Timestamps { val: 1, ecr: self.tsval }),
            ..TcpOptions::default()
        };
        let reply = TcpRepr {
            src_port: 80,
            dst_port: self.port,
            seq: Seq(self.irs ^ 0x5555_5555) + u32::from(!syn),
            ack: Seq(self.irs) + 1,
            flags,
            // As in the SYN-ACK, whose window is never scaled.
            window: if syn { 65_535 } else { 65_535 >> 7 },
            urgent: 0,
            opts,
        };
        let tcp_len = reply.header_len();
        let ip = IpRepr::new(self.remote.into(), LOCAL.into(), proto::TCP, tcp_len as u32);
        let (mut bytes, ip_len) = ([0_u8; 60], ip.header_len());
        ip.emit(&mut bytes[..ip_len]);
        reply.emit(&mut bytes[ip_len..ip_len + tcp_len]);
        (bytes, ip_len + tcp_len)
    }
}
