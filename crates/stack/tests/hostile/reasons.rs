//! Every drop reason, produced: one situation each, counted exactly once, and nobody else suffers.
//!
//! [`scenario`] matches on [`DropReason`] without a wildcard, so that a new reason does not compile before it has its
//! situation. A reason that only a bug of our own can produce says so instead, with the test that forges it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use linerate_base::{DropReason, HashKey, Instant, Seq};
use linerate_netdev::{FaultPlan, IfIndex};
use linerate_softnic::NicConfig;
use linerate_stack::remote::ShardWaker;
use linerate_stack::steer::siblings;
use linerate_stack::udp::{BindOpts as UdpBindOpts, RecvFlags, SendOpts};
use linerate_stack::{BindOpts, DeviceConfig, Shard, SockId, SockOpts, StackConfig};
use linerate_wire::TcpFlags;
use linerate_wire::ip::proto;

use crate::lab::{Flow, Lab, Peer, Setup, fix_sums, icmp_frame, ip, ip_frame, udp_frame};
use crate::link;

/// How a reason is shown.
enum Shown {
    /// This is the only drop of the laboratory.
    Alone(fn() -> Lab),
    /// It is the only reason, and so many packets die of it at once.
    Together(u64, fn() -> Lab),
    /// Others happen on the way.
    Among(fn() -> Lab),
    /// Not behind a laboratory's device: the function checks for itself.
    Itself(fn()),
    /// Only a bug of the stack produces it; why, and where it is forged.
    Bug,
}
use Shown::{Alone, Among, Bug, Itself, Together};

#[expect(clippy::too_many_lines, reason = "one arm for each reason, without a wildcard")]
fn scenario(reason: DropReason) -> Shown {
    match reason {
        // Counted for nothing on purpose: a packet that nobody accounted for.
        DropReason::NotSpecified => Bug,
        // The stack prepares whatever the device can not do; `offload` forges headers without room, `softnic` unfinished
        // checksums.
        DropReason::DevHdr => Bug,
        // Super-packets are the stack's own; `offload`'s tests forge contradictory ones.
        DropReason::SkbGsoSeg => Bug,
        DropReason::NoSocket => Alone(no_socket),
        DropReason::PktTooSmall => Alone(|| one(vec![0x45; 10])),
        DropReason::PktTooBig => Alone(mtu_of_nothing),
        DropReason::UnhandledProto => Alone(|| one(changed(ping(8), |f| f[0] = 0x55))),
        DropReason::TcpCsum => Alone(|| one(broken_sum(proto::TCP))),
        DropReason::UdpCsum => Alone(|| one(broken_sum(proto::UDP))),
        DropReason::IcmpCsum => Alone(|| one(broken_sum(proto::ICMP))),
        DropReason::IpCsum => Alone(|| one(changed_raw(ping(8), |f| f[8] ^= 1))),
        DropReason::IpInHdr => Alone(|| one(changed(ping(8), |f| f[0] = 0x44))),
        DropReason::IpFragment => Alone(|| one(changed(ping(0), |f| f[7] = 1))),
        DropReason::IpDupFrag => Alone(|| all([fragment(0, 16, 0), fragment(0, 16, 0)])),
        DropReason::IpFragOverlap => Together(2, || all([fragment(0, 16, 0), fragment(8, 16, 0)])),
        DropReason::IpFragEcn => Together(2, || all([fragment(0, 16, 2), changed(fragment(16, 16, 0), |f| f[6] = 0)])),
        DropReason::IpFragMem => Alone(fragment_flood),
        DropReason::FragReasmTimeout => Alone(|| {
            let mut lab = one(fragment(8, 16, 0));
            lab.pass(30_000);
            lab
        }),
        DropReason::IpInAddrErrors => Alone(|| one(icmp_frame(&ip("10.0.0.9", "10.0.0.77", proto::ICMP), &PING))),
        DropReason::IpOutNoRoutes => Alone(no_route),
        DropReason::IpNoProto => Alone(|| one(ip_frame(&ip("10.0.0.9", "10.0.0.1", 99), b"who am I"))),
        DropReason::IpInvalidSource => Alone(|| one(icmp_frame(&ip("224.0.0.5", "10.0.0.1", proto::ICMP), &PING))),
        DropReason::TcpHdr => Alone(|| on_flow(|f, _| changed(f.ack_frame(), |b| b[32] = 0x40 | b[32] & 15))),
        DropReason::TcpFlags => Alone(|| on_flow(|f, _| f.frame(&f.header(TcpFlags::NONE), &[]))),
        DropReason::TcpOldData => Alone(|| {
            on_flow(|f, lab| {
                let again = f.data_frame(0, b"once");
                f.send_data(lab, b"once");
                again
            })
        }),
        DropReason::TcpOverwindow => Alone(|| {
            on_flow(|f, lab| {
                let outs = f.send_data(lab, b"x");
                let window = u32::from(outs.last().expect("an ACK").h.window) << f.shard_wscale;
                f.data_frame(window, b"beyond")
            })
        }),
        DropReason::TcpOfoMerge => Alone(|| {
            on_flow(|f, lab| {
                lab.send(f.data_frame(100, b"early"));
                f.data_frame(100, b"early")
            })
        }),
        DropReason::TcpRfc7323Paws => Alone(paws),
        DropReason::TcpInvalidSequence => Alone(|| on_flow(|f, _| f.data_frame(1 << 30, b"far"))),
        DropReason::TcpInvalidRst => Alone(|| on_flow(|f, _| shifted(f, TcpFlags::RST, 5))),
        DropReason::TcpInvalidSyn => Alone(|| on_flow(|f, _| shifted(f, TcpFlags::SYN, 5))),
        DropReason::TcpTooOldAck => Alone(|| on_flow(|f, _| acking(f, 1 << 20))),
        DropReason::TcpAckUnsentData => Alone(|| on_flow(|f, _| acking(f, (1u32 << 20).wrapping_neg()))),
        DropReason::TcpReset => Alone(|| on_flow(|f, _| shifted(f, TcpFlags::RST, 0))),
        DropReason::TcpAbortOnData => Alone(abort_on_data),
        DropReason::SocketRcvbuff => Alone(udp_full),
        DropReason::ProtoMem => Alone(proto_mem),
        DropReason::TcpOfoQueuePrune => Among(ofo_prune),
        DropReason::TcpListenOverflow => Alone(listen_overflow),
        DropReason::TcpMinisock => Alone(time_wait),
        DropReason::TcpZeroWindow => Alone(zero_window),
        DropReason::TcpMinTtl => Alone(|| {
            on_flow(|f, lab| {
                let sock = lab.s.find(f.local, f.peer).expect("the flow's socket");
                lab.s.with_opts(sock, |o| o.min_ttl = 255).expect("a connection");
                f.data_frame(0, b"from afar")
            })
        }),
        DropReason::IcmpInvalid => {
            Alone(|| one(icmp_frame(&ip("10.0.0.9", "10.0.0.1", proto::ICMP), &[200, 0, 0, 0, 0, 0, 0, 0])))
        }
        DropReason::RateLimited => Among(syn_again),
        DropReason::QdiscDrop => Alone(qdisc_full),
        DropReason::FullRing => Alone(device_down),
        DropReason::CpuBacklog => Itself(ring_of_a_sibling),
        DropReason::NoMem => Among(no_descriptors),
        DropReason::OtherHost => Itself(link::other_host),
        DropReason::NeighCreateFail => Itself(link::neigh_create_fail),
        DropReason::NeighFailed => Itself(link::neigh_failed),
        DropReason::NeighQueueFull => Itself(link::neigh_queue_full),
        DropReason::NdiscInvalid => Itself(link::ndisc_invalid),
        DropReason::WireLoss => Itself(wire_loss),
        DropReason::WireQueue => Itself(wire_queue),
        DropReason::Shutdown => Alone(unplugged),
    }
}

#[test]
fn every_reason_is_produced_once_and_the_shard_lives_on() {
    let mut shown = 0;
    for &reason in DropReason::ALL {
        let (run, alone, dead) = match scenario(reason) {
            Alone(run) => (run, true, 1),
            Together(dead, run) => (run, true, dead),
            Among(run) => (run, false, 1),
            Itself(run) => {
                run();
                shown += 1;
                continue;
            }
            Bug => continue,
        };
        let mut lab = run();
        let drops = lab.s.mibs().drops.clone();
        let seen: Vec<_> = drops.iter().collect();
        assert_eq!(drops.get(reason), dead, "{} among {seen:?}", reason.name());
        assert!(!alone || drops.total() == dead, "{} alone, not {seen:?}", reason.name());
        assert_eq!(drops.get(DropReason::NotSpecified), 0);
        lab.prove_alive();
        lab.finish();
        shown += 1;
    }
    assert_eq!(shown, DropReason::ALL.len() - 3);
}

const PING: [u8; 8] = [8, 0, 0, 0, 0, 1, 0, 1];

/// An echo request of `len` bytes of ICMP.
fn ping(len: usize) -> Vec<u8> {
    let mut message = PING.to_vec();
    message.resize(len, 0xa5);
    icmp_frame(&ip("10.0.0.9", "10.0.0.1", proto::ICMP), &message)
}

/// `len` bytes at `offset` of an echo request that goes on.
fn fragment(offset: u8, len: usize, ecn: u8) -> Vec<u8> {
    changed(ping(len), |f| {
        (f[1], f[6], f[7]) = (ecn, 0x20, offset / 8);
    })
}

/// A laboratory after some frames.
fn all<const N: usize>(frames: [Vec<u8>; N]) -> Lab {
    let mut lab = Lab::new();
    for frame in frames {
        lab.send(frame);
    }
    lab
}

/// Beginnings of packets that never go on, until there is no room for more.
fn fragment_flood() -> Lab {
    let mut lab = Lab::new();
    for ident in 0..u16::MAX {
        lab.send(changed(fragment(0, 16, 0), |f| f[4..6].copy_from_slice(&ident.to_be_bytes())));
        if lab.total_drops() != 0 {
            break;
        }
    }
    lab
}

/// An answer that not even fragments can carry.
fn mtu_of_nothing() -> Lab {
    let mut lab = Lab::new();
    let dev = lab.dev;
    let set = |lab: &mut Lab, mtu| lab.s.device_mut(dev).expect("the device").mtu_bytes = mtu;
    set(&mut lab, 27);
    lab.send(ping(8));
    set(&mut lab, 1500);
    lab
}

/// A frame with a change, and with sums that fit it.
fn changed(mut frame: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut frame);
    fix_sums(&mut frame);
    frame
}

/// A frame with a change.
fn changed_raw(mut frame: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut frame);
    frame
}

fn broken_sum(protocol: u8) -> Vec<u8> {
    let mut frame = match protocol {
        proto::TCP => {
            let flow = Flow::new(Peer::v4(), 999);
            flow.frame(&flow.syn(), &[])
        }
        proto::UDP => udp_frame(&ip("10.0.0.9", "10.0.0.1", proto::UDP), 5, 6, b"datagram"),
        _ => ping(20),
    };
    let last = frame.len() - 1;
    frame[last] ^= 0x10;
    frame
}

/// A laboratory after one frame.
fn one(frame: Vec<u8>) -> Lab {
    let mut lab = Lab::new();
    lab.send(frame);
    lab
}

/// A laboratory with a connection on which `last` says what to send.
fn on_flow(last: fn(&mut Flow, &mut Lab) -> Vec<u8>) -> Lab {
    let mut lab = Lab::new();
    let (mut flow, _) = lab.flow(Peer::v4());
    let frame = last(&mut flow, &mut lab);
    lab.send(frame);
    lab
}

/// A segment without payload, `ahead` of its place.
fn shifted(f: &Flow, flags: TcpFlags, ahead: u32) -> Vec<u8> {
    let mut h = f.header(flags);
    h.seq += ahead;
    f.frame(&h, &[])
}

/// A pure ACK for `back` bytes below what was sent.
fn acking(f: &Flow, back: u32) -> Vec<u8> {
    let mut h = f.header(TcpFlags::ACK);
    h.ack = Seq(h.ack.0.wrapping_sub(back));
    f.frame(&h, &[])
}

fn no_socket() -> Lab {
    let mut flow = Flow::new(Peer::v4(), 999);
    flow.local.set_port(81);
    let mut lab = Lab::new();
    let outs = lab.send(flow.frame(&flow.syn(), &[]));
    assert!(outs.iter().all(|o| o.h.flags.contains(TcpFlags::RST)) && outs.len() == 1);
    lab
}

fn no_route() -> Lab {
    let mut flow = Flow::new(Peer::v4(), 999);
    flow.peer.set_ip("172.16.0.9".parse().unwrap());
    one(flow.frame(&flow.syn(), &[]))
}

fn paws() -> Lab {
    let mut lab = Lab::new();
    let (mut flow, _) = lab.flow(Peer::v4().timestamps(5000));
    let ts = flow.ts.as_mut().expect("negotiated");
    ts.val -= 1000;
    flow.send_data(&mut lab, b"from the past");
    lab
}

fn abort_on_data() -> Lab {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    lab.s.close(id).unwrap();
    lab.rest();
    flow.ack += 1;
    lab.send(flow.ack_frame());
    let outs = flow.send_data(&mut lab, b"anybody there?");
    assert!(outs.iter().any(|o| o.h.flags.contains(TcpFlags::RST)));
    lab
}

fn udp_full() -> Lab {
    let mut lab = Lab::with(Setup::with(|c| c.udp_rcvbuf_bytes = 5000));
    lab.s.udp_bind("10.0.0.1:53".parse().unwrap(), UdpBindOpts::default()).unwrap();
    for _ in 0..2 {
        lab.send(udp_frame(&ip("10.0.0.9", "10.0.0.1", proto::UDP), 53, 53, &[1; 1400]));
    }
    lab
}

fn proto_mem() -> Lab {
    let mut lab = Lab::with(Setup::with(|c| c.tcp_mem_bytes = [32 << 10, 64 << 10, 64 << 10]));
    let (mut flow, id) = lab.flow(Peer::v4());
    let mut sent = 0;
    while lab.total_drops() == 0 {
        flow.send_data(&mut lab, &[2; 1400]);
        sent += 1400;
        assert!(sent < 64 << 10, "charged for less than its bytes");
    }
    assert!(!lab.read(id).is_empty());
    lab
}

fn ofo_prune() -> Lab {
    let mut lab = Lab::new();
    let (flow, id) = lab.flow(Peer::v4());
    lab.s.set_opt(id, linerate_stack::TcpOpt::RcvBuf(8192)).unwrap();
    for at in (0..40).rev() {
        lab.send(flow.data_frame(1 + at * 1450, &[3; 1448]));
        if lab.drops(DropReason::TcpOfoQueuePrune) > 0 {
            break;
        }
    }
    lab
}

fn listen_overflow() -> Lab {
    let mut lab = Lab::with(Setup::tcp(|c| c.syncookies = 0));
    let at = "10.0.0.1:90".parse().unwrap();
    lab.s.tcp_listen(at, 1, &SockOpts::default(), BindOpts::default()).unwrap();
    for port in [1001, 1002] {
        let mut flow = Flow::new(Peer::v4(), port);
        flow.local.set_port(90);
        lab.send(flow.frame(&flow.syn(), &[]));
    }
    lab
}

fn time_wait() -> Lab {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    lab.s.close(id).unwrap();
    lab.rest();
    flow.ack += 1;
    let fin = flow.frame(&flow.header(TcpFlags::FIN | TcpFlags::ACK), &[]);
    lab.send(fin.clone());
    assert_eq!(lab.s.tcp_counts().2, 1, "TIME-WAIT");
    lab.send(fin);
    lab
}

fn zero_window() -> Lab {
    let mut lab = Lab::new();
    lab.s.set_opt(lab.listener, linerate_stack::TcpOpt::RcvBuf(32_768)).unwrap();
    let (mut flow, id) = lab.flow(Peer::bare());
    fill_window(&mut lab, &mut flow);
    // Read, but the window update is not out: the peer's probe finds the window shut and nothing queued.
    assert!(!lab.read(id).is_empty());
    let early: Vec<_> = lab.s.mibs().drops.iter().collect();
    assert_eq!(early, [], "an honest peer fills the window that it was offered");
    flow.send_data(&mut lab, b"x");
    lab
}

/// Sends until the shard's window is shut.
pub(crate) fn fill_window(lab: &mut Lab, flow: &mut Flow) {
    let mut edge = flow.seq.wrapping_add(500);
    for _ in 0..10_000 {
        let room = edge.wrapping_sub(flow.seq) as i32;
        if room <= 0 {
            return;
        }
        let mut outs = flow.send_data(lab, &vec![4; room.min(1000) as usize]);
        lab.pass(250);
        outs.extend(lab.take());
        if let Some(o) = outs.last() {
            edge = o.h.ack.0.wrapping_add(u32::from(o.h.window) << flow.shard_wscale);
        }
    }
    panic!("the window never shuts");
}

fn syn_again() -> Lab {
    let mut lab = Lab::new();
    let flow = Flow::new(Peer::v4(), 999);
    for _ in 0..3 {
        lab.send(flow.frame(&flow.syn(), &[]));
    }
    assert_eq!(lab.drops(DropReason::TcpMinisock), 1);
    lab
}

fn qdisc_full() -> Lab {
    let mut lab = Lab::with(Setup::with(|c| c.qdisc_limit_skbs = 1));
    lab.room.store(0, Ordering::Relaxed);
    lab.inject(ping(8));
    lab.inject(ping(8));
    lab.rest();
    lab.room.store(usize::MAX, Ordering::Relaxed);
    lab
}

fn device_down() -> Lab {
    let mut lab = Lab::new();
    let (mut flow, id) = lab.flow(Peer::v4());
    lab.s.del_device(lab.dev).unwrap();
    assert_eq!(lab.s.write(id, b"into the void"), Ok(13));
    lab.rest();
    lab.plug();
    // The connection outlives its device: the retransmission finds the new one.
    lab.pass(1000);
    assert_eq!(flow.gather(&mut lab), b"into the void");
    lab
}

fn no_descriptors() -> Lab {
    let mut lab = Lab::with(Setup::with(|c| c.max_skbs = 8));
    let (flow, id) = lab.flow(Peer::v4());
    lab.s.write(id, &vec![5; 14_600]).unwrap();
    lab.rest();
    let rst = flow.frame(&flow.header(TcpFlags::RST), &[]);
    lab.send(rst);
    lab
}

fn unplugged() -> Lab {
    let mut lab = Lab::new();
    lab.room.store(0, Ordering::Relaxed);
    lab.send(ping(8));
    lab.s.del_device(lab.dev).unwrap();
    lab.room.store(usize::MAX, Ordering::Relaxed);
    lab.plug();
    lab
}

/// Two shards with a faulty wire from the first to the second, and a UDP socket at each.
fn faulty_pair(plan: FaultPlan) -> [(Shard, SockId); 2] {
    let nic = |fault| NicConfig { fault, gro_hw: false, ..NicConfig::default() };
    let (a, b) = linerate_softnic::pair(&nic(Some((plan, 1))), &nic(None));
    let mut n = 0;
    [a, b].map(|mut nic| {
        n += 1;
        let mut cfg = StackConfig::default();
        (cfg.seed, cfg.udp_rcvbuf_bytes, cfg.max_skbs) = (n, u32::MAX, 200_000);
        let mut s = Shard::new(cfg);
        let dev = s.add_device(DeviceConfig::new("nic0", 1500)).unwrap();
        let (rx, tx) = nic.take_queue(0).unwrap();
        s.attach(dev, 0, rx, tx).unwrap();
        assert_eq!(dev, IfIndex(2));
        s.add_address(dev, format!("10.0.0.{n}/24").parse().unwrap()).unwrap();
        let id = s.udp_bind(format!("10.0.0.{n}:9").parse().unwrap(), UdpBindOpts::default()).unwrap();
        (s, id)
    })
}

/// Datagrams that can be read at the far end after `n` were sent to it `at` some time.
fn datagrams([(a, from), (b, to)]: &mut [(Shard, SockId); 2], n: usize, at: Instant) -> usize {
    let peer = "10.0.0.2:9".parse().unwrap();
    for _ in 0..n {
        a.send_to(*from, b"datagram", Some(peer), SendOpts::default()).unwrap();
        while a.turn(at, 64).tx_skbs > 0 {}
        b.turn(at, 64);
    }
    while b.turn(at, 4096).more {}
    let mut got = 0;
    while b.recv_from(*to, &mut [0; 64], RecvFlags::default()).is_ok() {
        got += 1;
    }
    got
}

fn wire_loss() {
    // Every second frame is lost, beginning with the first.
    let mut pair = faulty_pair(FaultPlan { burst: Some((1.0, 1.0, 1.0)), ..FaultPlan::default() });
    assert_eq!(datagrams(&mut pair, 1, Instant::from_secs(1)), 0);
    let [_, (b, _)] = &pair;
    assert_eq!((b.mibs().drops.get(DropReason::WireLoss), b.mibs().drops.total()), (1, 1));
    assert_eq!(datagrams(&mut pair, 1, Instant::from_secs(1)), 1);
}

/// Datagrams for a sibling that is never turned.
fn ring_of_a_sibling() {
    struct Nobody;
    impl ShardWaker for Nobody {
        fn wake(&self) {}
    }
    let wakers = (0..2).map(|_| Arc::new(Nobody) as Arc<dyn ShardWaker>).collect();
    let mut places = siblings(HashKey([1, 2]), wakers).into_iter();
    let mut shard = Shard::new(StackConfig::default());
    shard.join(places.next().expect("two places"));
    let from = shard.udp_socket(false);
    let mut sent = 0;
    while shard.mibs().drops.total() == 0 {
        // Port 53 is at home on the second of two.
        shard.send_to(from, b"?", Some("127.0.0.1:53".parse().unwrap()), Default::default()).expect("room");
        sent += 1;
        shard.turn(Instant::from_millis(sent), 64);
        assert!(sent < 10_000, "a ring without an end");
    }
    assert_eq!((shard.mibs().drops.get(DropReason::CpuBacklog), shard.steer_stats().dropped), (1, 1));
    drop(places);
    assert_eq!(shard.core().mem.skbs.silent_drops(), 0);
}

fn wire_queue() {
    let delay = linerate_base::Duration::from_millis(1000);
    let mut pair = faulty_pair(FaultPlan { reorder: 1.0, reorder_delay: delay, ..FaultPlan::default() });
    assert_eq!(datagrams(&mut pair, 65_537, Instant::from_secs(1)), 0);
    let [_, (b, _)] = &pair;
    assert_eq!((b.mibs().drops.get(DropReason::WireQueue), b.mibs().drops.total()), (1, 1));
    assert_eq!(datagrams(&mut pair, 0, Instant::from_secs(3)), 65_536);
    assert_eq!(datagrams(&mut pair, 1, Instant::from_secs(4)), 0);
    assert_eq!(datagrams(&mut pair, 0, Instant::from_secs(6)), 1);
}
