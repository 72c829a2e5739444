//! One slice: namespaces, stacks and wire are made, all flows run at once, everything is taken down.
//!
//! ```text
//!   end 0: Linux, sends      10.0.1.1  --TUN---------.
//!   end 1: Linux, receives   10.0.2.1  --TUN---------+-- wire
//!   end 2: Linerate, sends   10.0.3.1  --seqpacket---+
//!   end 3: Linerate, recvs   10.0.4.1  --seqpacket---'
//! ```
//! A Linerate end is the stock TUN device over a socket pair instead of `/dev/net/tun`: one frame a call, a wake-up when one
//! comes, as with a TUN. The queues towards the wire are long enough that they never drop; the kernel's counters of its
//! devices are looked at afterwards, and a drop there fails the slice, since it would be a loss that nobody chose.
//!
//! Flows begin one after the other, so that they do not keep step.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use linerate::tun::{Offloads, Tun, TunConfig, TunMode, VnetHdr, Watched};
use linerate::{Interface, Stack, StackConfig, Wait};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use serde_json::{Value, json};

use super::flows::{Listener, Place, drive};
use super::{ARRANGEMENTS, Cell, Side};
use crate::space::Space;
use crate::wire::{End, LaneStats, Lanes, Wire, WireReport, WireSpec, mix};

/// Of each flow's own bottleneck.
const RATE_BPS: u64 = 100_000_000;
/// A bottleneck's queue holds a bandwidth-delay product, and at least this.
const QUEUE_MIN_BYTES: u64 = 64 << 10;
/// All flows of all arrangements together should need no more: the wire's CPU is then idle half of the time.
const TOTAL_BPS: f64 = 150e6;
/// A delivery is late by more than this part of the round trip.
pub(crate) const LATE_PER_RTT: u32 = 10;
const MTU_BYTES: u32 = 1500;
/// Frames that may wait in the kernel for the wire's next look.
const TUN_QUEUE_PKTS: u32 = 5000;
/// Of each side of a socket pair; the kernel may grant less.
const PAIR_BUFFER_BYTES: usize = 4 << 20;
const LANES: Lanes = Lanes { first_port: 5000, stride: 100, count: 500 };
/// Between the beginnings of two flows, in round trips, so that not all are in slow start at once; and all flows have begun
/// within this.
const STAGGER_RTTS: u32 = 8;
const ALL_BEGUN: Duration = Duration::from_secs(3);

/// As many flows as may run at once by what the rule of thumb for Reno says of their rate, 3 to 16.
pub(crate) fn flows_for(cell: Cell) -> u16 {
    let loss = (cell.loss_percent / 100.0).max(1e-5);
    let bps = (1.22 * 1448.0 * 8.0 / (cell.rtt_ms as f64 / 1e3) / loss.sqrt()).min(RATE_BPS as f64);
    (TOTAL_BPS / 3.0 / bps).clamp(3.0, 16.0) as u16
}

fn addr(end: usize, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, end as u8 + 1, 1], port))
}

/// A namespace of the kernel that is one end of the wire.
struct LinuxEnd {
    space: Space,
    watched: Arc<Watched>,
    /// Keeps the device's name.
    name: String,
}

impl LinuxEnd {
    fn new(end: usize, cfg: &StackConfig) -> io::Result<Self> {
        let space = Space::fresh()?;
        let triple = |v: [u32; 3]| v.map(|n| n.to_string()).join(" ");
        space.set_sysctls(&[
            ("net.ipv4.tcp_rmem", triple(cfg.tcp.rmem_bytes)),
            ("net.ipv4.tcp_wmem", triple(cfg.tcp.wmem_bytes)),
            ("net.ipv4.tcp_no_metrics_save", "1".into()),
            ("net.ipv4.tcp_sack", "1".into()),
            ("net.ipv4.tcp_dsack", "1".into()),
            ("net.ipv4.tcp_timestamps", "1".into()),
            ("net.ipv4.tcp_window_scaling", "1".into()),
            ("net.ipv4.tcp_moderate_rcvbuf", "1".into()),
            ("net.ipv4.tcp_recovery", "1".into()),
            ("net.ipv4.tcp_ecn", "0".into()),
        ])?;
        let name = format!("wire{end}");
        let cidr = |text: String| text.parse().map_err(|_| io::Error::other(format!("'{text}' is no network")));
        let config = TunConfig::new(&name)
            .plain()
            .mtu(MTU_BYTES)
            .tx_queue_len(TUN_QUEUE_PKTS)
            .host_address(cidr(format!("{}/32", addr(end, 0).ip()))?)
            .host_route(cidr("10.0.0.0/16".into())?);
        let mut tun = space.run(|| Tun::open(&config).map_err(io::Error::from))?;
        let queue = tun.take_queue(0).ok_or_else(|| io::Error::other("a TUN without a queue"))?;
        Ok(Self { space, watched: queue.watched, name })
    }
}

/// A stack whose device is one side of a socket pair, and the other side.
fn linerate_end(end: usize, seed: u64, cfg: &StackConfig) -> io::Result<(Stack, End)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (ours, wires) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for side in [&ours, &wires] {
        sockopt::set_socket_send_buffer_size(side, PAIR_BUFFER_BYTES)?;
    }
    let tun = Tun::from_fds("wire", TunMode::Ip, vec![ours], VnetHdr::Off, Offloads::NONE, MTU_BYTES)?;
    let interface = Interface::tun(tun).address(&format!("{}/16", addr(end, 0).ip()));
    let tcp = cfg.tcp.clone();
    let builder = Stack::builder().interface(interface).configure(|cfg| cfg.tcp = tcp);
    let stack = builder.thread_name(format!("stack{end}")).wait(Wait::Block).seed(seed).start()?;
    Ok((stack, End::Pair(wires)))
}

/// Where there are two CPUs, everything but the wire runs on the first, and the wire, which must be on time, on the last:
/// its number. Threads inherit where their maker runs.
fn give_wire_a_cpu() -> Option<usize> {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    let cpus = CPUS.get_or_init(|| linerate_host::allowed_cpus().unwrap_or_default());
    let (&first, &last) = (cpus.first()?, cpus.last()?);
    (first != last && linerate_host::pin_to_cpu(first).is_ok()).then_some(last)
}

/// The qdisc of new devices; pacing by it would be a difference between the sides.
fn refuse_pacing() -> io::Result<()> {
    let qdisc = std::fs::read_to_string("/proc/sys/net/core/default_qdisc").unwrap_or_default();
    if qdisc.trim() == "fq" {
        return Err(io::Error::other("net.core.default_qdisc is fq, which paces Linux; set it to pfifo_fast"));
    }
    Ok(())
}

/// Runs `flows` flows of each arrangement for `secs` and says everything about it.
pub(crate) fn run(cell: Cell, flows: u16, secs: u64, seed: u64, arrangements: &[usize]) -> io::Result<Value> {
    refuse_pacing()?;
    let wires_cpu = give_wire_a_cpu();
    let cfg = StackConfig::default();
    let one_way = Duration::from_micros(cell.rtt_ms * 500);
    let bdp = RATE_BPS / 8 * cell.rtt_ms / 1000;
    let spec = WireSpec {
        loss: cell.loss_percent / 100.0,
        one_way,
        rate_bps: RATE_BPS,
        queue_bytes: bdp.max(QUEUE_MIN_BYTES),
        late: one_way * 2 / LATE_PER_RTT,
        seed: mix(seed ^ mix(cell.rtt_ms) ^ cell.loss_percent.to_bits()),
    };
    let linux = [LinuxEnd::new(0, &cfg)?, LinuxEnd::new(1, &cfg)?];
    let (sender, sends) = linerate_end(2, seed, &cfg)?;
    let (receiver, receives) = linerate_end(3, seed + 1, &cfg)?;
    let tun = |n: usize| End::Tun(linux[n].watched.clone());
    let wire = Wire::new(spec, LANES, vec![tun(0), tun(1), sends, receives]);
    let places = [
        Place::Linux(&linux[0].space),
        Place::Linux(&linux[1].space),
        Place::Linerate(&sender),
        Place::Linerate(&receiver),
    ];
    let stagger = (2 * STAGGER_RTTS * one_way).min(ALL_BEGUN / u32::from(flows));
    let stop = AtomicBool::new(false);
    let (results, wire) = thread::scope(|s| {
        let wire = s.spawn(|| {
            if let Some(cpu) = wires_cpu {
                let _ = linerate_host::pin_to_cpu(cpu);
            }
            wire.run(&stop)
        });
        let results = run_flows(places, flows, stagger, Duration::from_secs(secs), arrangements);
        stop.store(true, Ordering::Relaxed);
        (results, wire.join())
    });
    let results = results?;
    let wire = wire.map_err(|_| io::Error::other("the wire panicked"))??;
    let mut counters = Vec::new();
    for end in &linux {
        let [_, rx_drops, _, tx_drops] = end.space.device(&end.name)?;
        if rx_drops + tx_drops > 0 {
            return Err(io::Error::other(format!("{}: the kernel's device dropped {rx_drops} + {tx_drops}", end.name)));
        }
        counters.push(of_interest(end.space.counters()?));
    }
    for stack in [&sender, &receiver] {
        let stats = stack.stats().map_err(io::Error::other)?;
        counters.push(of_interest(stats.mibs.tcp.iter().map(|(name, n)| (name.to_owned(), n)).collect()));
    }
    Ok(to_json(cell, flows, secs, seed, &results, &wire, &counters))
}

/// Counters that are not 0 and tell how loss was met.
fn of_interest(all: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let names = [
        "Retrans",
        "Timeouts",
        "LossProbes",
        "Recovery",
        "Spurious",
        "DSACK",
        "Hystart",
        "Undo",
        "Failures",
        "Reorder",
        "Collapsed",
        "Pruned",
        "ZeroWindow",
        "OFO",
        "DelayedACK",
    ];
    all.into_iter().filter(|(name, n)| *n > 0 && names.iter().any(|part| name.contains(part))).collect()
}

/// Bytes by arrangement and flow.
fn run_flows(
    places: [Place<'_>; 4],
    flows: u16,
    stagger: Duration,
    secs: Duration,
    arrangements: &[usize],
) -> io::Result<Vec<(usize, u16, u64)>> {
    let end_of = |side: Side, receives: usize| {
        let base = if side == Side::Linux { 0 } else { 2 };
        debug_assert_eq!(places[base + receives].side(), side);
        base + receives
    };
    let mut listeners = Vec::new();
    for &number in arrangements {
        let end = end_of(ARRANGEMENTS[number].receiver, 1);
        for flow in 0..flows {
            let at = addr(end, LANES.first_port + number as u16 * LANES.stride + flow);
            listeners.push((number, flow, at, Listener::bind(places[end], at)?));
        }
    }
    thread::scope(|s| {
        let mut readers = Vec::new();
        let mut writers = Vec::new();
        for (number, flow, at, listener) in listeners {
            let place = places[end_of(ARRANGEMENTS[number].sender, 0)];
            readers.push((
                number,
                flow,
                s.spawn(move || {
                    // The writer takes its time before it connects.
                    thread::sleep(stagger * u32::from(flow));
                    listener.serve(secs)
                }),
            ));
            writers.push(s.spawn(move || {
                thread::sleep(stagger * u32::from(flow));
                drive(place, at, secs + Duration::from_millis(100))
            }));
        }
        let name = |number: usize, flow| {
            move |e: io::Error| io::Error::new(e.kind(), format!("{}, flow {flow}: {e}", ARRANGEMENTS[number].name))
        };
        let mut results = Vec::new();
        for (number, flow, reader) in readers {
            let bytes = reader.join().unwrap_or_else(|_| Err(io::Error::other("a reader panicked")));
            results.push((number, flow, bytes.map_err(name(number, flow))?));
        }
        for writer in writers {
            writer.join().unwrap_or_else(|_| Err(io::Error::other("a writer panicked")))?;
        }
        Ok(results)
    })
}

fn lane_json(lane: LaneStats) -> Value {
    json!({ "frames": lane.frames, "payload_bytes": lane.payload_bytes, "lost": lane.lost, "queue_drops": lane.queue_drops })
}

fn to_json(
    cell: Cell,
    flows: u16,
    secs: u64,
    seed: u64,
    results: &[(usize, u16, u64)],
    wire: &WireReport,
    counters: &[BTreeMap<String, u64>],
) -> Value {
    let flow = |&(number, flow, bytes): &(usize, u16, u64)| {
        let [data, acks] = wire.lanes[number * usize::from(LANES.stride) + usize::from(flow)];
        json!({ "arrangement": ARRANGEMENTS[number].name, "flow": flow, "bytes": bytes,
                "data": lane_json(data), "acks": lane_json(acks) })
    };
    json!({
        "schema": 1, "loss_percent": cell.loss_percent, "rtt_ms": cell.rtt_ms, "flows": flows, "secs": secs, "seed": seed,
        "rate_bps": RATE_BPS,
        "wire": { "delivered": wire.delivered, "late": wire.late, "busy_share": wire.busy_share, "latest_us": wire.latest.as_micros() as u64,
                  "full_ends": wire.full_ends, "strangers": wire.strangers },
        "results": results.iter().map(flow).collect::<Vec<_>>(),
        "counters": { "linux_sends": counters[0], "linux_receives": counters[1],
                      "linerate_sends": counters[2], "linerate_receives": counters[3] },
    })
}
