//! Hand-written accidents: each loses, delays or breaks exactly what it names, and says what must come of it.

use std::net::SocketAddr;
use std::time::Duration;

use linerate_base::{DropReason, Instant};
use linerate_netdev::FaultPlan;
use linerate_sim::apps::{Op, Script};
use linerate_sim::device::NicConfig;
use linerate_sim::link::lock;
use linerate_sim::net::{LinkSpec, Net, Stop, mem_usage};
use linerate_sim::tap::Keep;
use linerate_sim::wire::{Filter, Verdict, WireConfig};
use linerate_skb::PoolConfig;
use linerate_stack::StackConfig;
use linerate_tcp::{SockOpts, SocketError};
use linerate_wire::{IpRepr, TcpFlags, TcpRepr};

const START: Instant = Instant::from_secs(1);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn wire() -> WireConfig {
    WireConfig { rate_bps: 100_000_000, delay: ms(10), ..WireConfig::default() }
}

fn spec() -> LinkSpec {
    LinkSpec::symmetric(1500, wire())
}

/// Two hosts; host 0 dials `client` at the start, host 1 answers with `server`.
fn world_of(cfg: &StackConfig, spec: LinkSpec, v6: bool, client: Script, server: Script) -> Net {
    let mut net = Net::pair(7, Keep::Heads, cfg, spec);
    let addr = SocketAddr::new(Net::addr(0, 1, v6), 80);
    net.listen(1, addr, 64, &server.opts.clone(), move |_| server.clone());
    net.dial(0, START, addr, client);
    net
}

fn world(client: Script, server: Script) -> Net {
    world_of(&StackConfig::default(), spec(), false, client, server)
}

fn filter(net: &Net, from: usize, f: impl FnMut(Instant, u64, &[u8]) -> Verdict + Send + 'static) {
    let f: Filter = Box::new(f);
    lock(&net.links[0]).wires[from].set_filter(Some(f));
}

/// The TCP header and payload length of a frame.
fn tcp(bytes: &[u8]) -> Option<(TcpRepr, u32)> {
    let (ip, at) = IpRepr::parse(bytes).ok()?;
    let (tcp, len) = TcpRepr::parse(bytes.get(at..)?).ok()?;
    Some((tcp, ip.payload_len - len as u32))
}

fn tcp_flags(head: &[u8]) -> Option<TcpFlags> {
    TcpRepr::parse(head.get(20..)?).ok().map(|(t, _)| t.flags)
}

fn run(net: &mut Net) {
    let stop = net.run_until(START + Duration::from_secs(6 * 3600), Net::all_done);
    assert_eq!((stop, net.violations.texts()), (Stop::Done, &[][..]));
}

fn assert_no_errors(net: &Net) {
    for e in net.hosts.iter().flat_map(|h| &h.endpoints) {
        assert_eq!(e.error, None, "{:?}", e.name);
    }
}

/// Runs to the end, to rest, and returns host 0's view.
fn complete(net: &mut Net) -> linerate_base::TcpMib {
    run(net);
    assert_no_errors(net);
    let mib = net.hosts[0].shard.mibs().tcp.clone();
    net.finish();
    assert_eq!(net.violations.texts(), [] as [String; 0]);
    mib
}

fn received(net: &Net) -> u64 {
    net.hosts[1].endpoints.iter().map(|e| e.read).sum()
}

#[test]
fn a_quiet_transfer_needs_nothing() {
    for v6 in [false, true] {
        let mut net = world_of(&StackConfig::default(), spec(), v6, Script::send(2_000_000), Script::sink());
        let mib = complete(&mut net);
        assert_eq!((mib.retrans_segs, mib.timeouts, mib.loss_probes, received(&net)), (0, 0, 0, 2_000_000));
    }
}

#[test]
fn a_closed_window_reopens_although_the_updates_are_lost() {
    let mut server = Script::sink();
    // One read, then nothing for six seconds: the window closes and opens again late.
    server.read_pause = (1.0, ms(6000));
    server.opts.rcvbuf_bytes = 40_000;
    let mut net = world(Script::send(120_000), server);
    let mut lost = 0;
    filter(&net, 1, move |_, _, bytes| {
        // Updates go alone: an ACK without data whose window is open again, while the sender sends nothing.
        let update = tcp(bytes).is_some_and(|(t, len)| len == 0 && t.window > 0 && t.flags == TcpFlags::ACK);
        lost += u64::from(update);
        if update && (8..20).contains(&lost) { Verdict::Lose } else { Verdict::Pass }
    });
    let mib = complete(&mut net);
    assert_eq!(received(&net), 120_000);
    assert!(mib.win_probe > 0 || mib.timeouts > 0, "somebody had to ask: {:?}", (mib.win_probe, mib.timeouts));
}

#[test]
fn a_lost_tail_is_found_by_a_probe_and_not_by_the_timeout() {
    let mut net = world(Script::send(50_000), Script::sink());
    let mut done = false;
    filter(&net, 0, move |_, _, bytes| {
        let tail = !done && tcp(bytes).is_some_and(|(t, len)| len > 0 && t.flags.contains(TcpFlags::FIN));
        done |= tail;
        if tail { Verdict::Lose } else { Verdict::Pass }
    });
    let mib = complete(&mut net);
    assert!(mib.loss_probes >= 1);
    assert_eq!(mib.timeouts, 0);
}

#[test]
fn a_burst_that_takes_the_whole_window_needs_the_timeout_once() {
    let mut net = world(Script::send(3_000_000), Script::sink());
    let (from, until) = (START + ms(150), START + ms(400));
    filter(&net, 0, move |now, _, _| if (from..until).contains(&now) { Verdict::Lose } else { Verdict::Pass });
    let mib = complete(&mut net);
    assert_eq!(received(&net), 3_000_000);
    assert!((1..=3).contains(&mib.timeouts), "{} timeouts", mib.timeouts);
}

#[test]
fn deep_reordering_is_learnt() {
    let mut net = world(Script::send(8_000_000), Script::sink());
    // Every 40th frame comes 2 ms late: seventeen frames of this wire overtake it.
    filter(
        &net,
        0,
        |_, n, bytes| if n % 40 == 0 && bytes.len() > 1000 { Verdict::HoldBack(ms(2)) } else { Verdict::Pass },
    );
    let mib = complete(&mut net);
    let (held, stats) = {
        let link = lock(&net.links[0]);
        (link.wires[0].stats().held_back, *link.checker.stats(0))
    };
    assert!(held > 100, "{held} held back");
    assert_eq!(mib.timeouts, 0);
    assert!(stats.spurious < held / 5, "{} of {held} late segments were sent again for nothing", stats.spurious);
}

#[test]
fn damaged_frames_are_dropped_by_their_checksum_and_sent_again() {
    let faults = FaultPlan { corrupt: 0.02, ..FaultPlan::default() };
    for nic in [NicConfig::plain(1500), NicConfig::full(1500)] {
        for v6 in [false, true] {
            let mut spec = LinkSpec::symmetric(1500, WireConfig { faults: faults.clone(), ..wire() });
            spec.nics = [nic.clone(), nic.clone()];
            let mut net = world_of(&StackConfig::default(), spec, v6, Script::send(1_000_000), Script::sink());
            complete(&mut net);
            let drops = &net.hosts[1].shard.mibs().drops;
            assert!(drops.get(DropReason::TcpCsum) > 0, "{:?}", drops.iter().collect::<Vec<_>>());
            assert_eq!(received(&net), 1_000_000);
        }
    }
}

#[test]
fn every_frame_twice_is_only_noise() {
    let faults = FaultPlan { duplicate: 1.0, ..FaultPlan::default() };
    let spec = LinkSpec::symmetric(1500, WireConfig { faults, ..wire() });
    let mut net = world_of(&StackConfig::default(), spec, false, Script::send(1_000_000), Script::sink());
    let mib = complete(&mut net);
    assert_eq!((received(&net), mib.timeouts), (1_000_000, 0));
    let receiver = &net.hosts[1].shard.mibs().tcp;
    assert!(receiver.dsack_old_sent > 0, "duplicates are reported");
}

#[test]
fn a_tiny_ring_and_a_starved_pool_slow_down_but_do_not_stop() {
    let mut spec = spec();
    let mut nic = NicConfig::plain(1500);
    nic.rx_ring = 4;
    nic.tx_ring = 1;
    nic.coalesce = Duration::from_micros(700);
    nic.rx_starved = vec![(START + ms(25), START + ms(45))];
    spec.nics = [nic.clone(), nic];
    spec.rx_pools = [PoolConfig { page_shift: 12, max_pages: 6, cache_pages: 2 }; 2];
    let mut net = world_of(&StackConfig::default(), spec, false, Script::send(300_000), Script::sink());
    complete(&mut net);
    let drops = &net.hosts[1].shard.mibs().drops;
    assert!(
        drops.get(DropReason::FullRing) > 0 && drops.get(DropReason::NoMem) > 0,
        "{:?}",
        drops.iter().collect::<Vec<_>>()
    );
    assert_eq!(received(&net), 300_000);
}

#[test]
fn one_byte_segments_do_not_cost_a_page_each() {
    let mut client = Script::of([Op::Send(1), Op::Sleep(Duration::from_micros(5))].repeat(65_536));
    client.ops.push(Op::Shutdown);
    client.opts.nodelay = true;
    let mut server = Script::sink();
    server.read_pause = (1.0, ms(400));
    let mut net = world(client, server);
    let (mut most, mut pages) = (0, 0);
    let stop = net.run_until(START + Duration::from_secs(600), |net| {
        let mem = mem_usage(&net.hosts[1].shard);
        most = most.max(mem.tcp_bytes);
        pages = pages.max(u64::from(mem.pages));
        net.all_done()
    });
    assert_eq!((stop, net.violations.texts()), (Stop::Done, &[][..]));
    assert_eq!(received(&net), 65_536);
    // As on Linux the buffer may grow to its limit before what is queued is copied together.
    let limit = u64::from(StackConfig::default().tcp.rmem_bytes[2]);
    assert!(most > 0 && most <= limit + limit / 4, "{most} bytes for at most 64 KiB of data");
    assert!(pages * 4096 <= 2 * most, "{pages} pages are out for {most} bytes charged");
    complete(&mut net);
}

#[test]
fn a_peer_that_never_reads_costs_a_bounded_amount() {
    let mut server = Script::of(vec![Op::Sleep(Duration::from_secs(120))]);
    server.never_read = true;
    let mut net = world(Script::send(1 << 30), server);
    let mut most = [0; 2];
    let stop = net.run_until(START + Duration::from_secs(1000), |net| {
        for (m, h) in most.iter_mut().zip(&net.hosts) {
            *m = (*m).max(mem_usage(&h.shard).tcp_bytes);
        }
        net.all_done()
    });
    assert_eq!((stop, net.violations.texts()), (Stop::Done, &[][..]));
    let cfg = StackConfig::default().tcp;
    assert!(most[0] <= 2 * u64::from(cfg.wmem_bytes[2]), "the sender held {}", most[0]);
    assert!(most[1] <= 2 * u64::from(cfg.rmem_bytes[1]), "the receiver held {}", most[1]);
    assert_eq!(net.hosts[0].endpoints[0].error, Some(SocketError::Reset), "unread data at close is a reset");
    net.finish();
    assert_eq!(net.violations.texts(), [] as [String; 0]);
}

#[test]
fn a_clock_that_leaps_three_hours_breaks_nothing() {
    let mut net = world(Script::send(5_000_000), Script::sink());
    net.leap(START + ms(200), Duration::from_secs(3 * 3600));
    run(&mut net);
    assert_no_errors(&net);
    assert_eq!(received(&net), 5_000_000);
    assert!(net.now > START + Duration::from_secs(3 * 3600));
    // No storm either: one timeout at most for what was in flight.
    let mib = &net.hosts[0].shard.mibs().tcp;
    assert!(mib.timeouts <= 1 && mib.retrans_segs < 2_000, "{} timeouts", mib.timeouts);
    net.finish();
    assert_eq!(net.violations.texts(), [] as [String; 0]);
}

#[test]
fn a_path_that_becomes_narrow_is_followed() {
    for (v6, mtu) in [(false, 1000), (true, 1300)] {
        let mut net = world_of(&StackConfig::default(), spec(), v6, Script::send(4_000_000), Script::sink());
        net.run_until(START + ms(150), |_| false);
        lock(&net.links[0]).wires[0].configure(|c| c.path_mtu_bytes = Some(mtu));
        let mib = complete(&mut net);
        assert_eq!(received(&net), 4_000_000);
        let link = lock(&net.links[0]);
        let refused = link.wires[0].stats().too_big;
        assert!(refused > 0 && refused < 600, "{refused} frames were too long");
        let late = link.tap.events().iter().filter(|e| e.from == 0).rev().take(500);
        assert!(late.map(|e| e.len).max() <= Some(mtu), "the sender learnt the MTU");
        assert!(mib.timeouts <= 2, "{} timeouts", mib.timeouts);
    }
}

#[test]
fn a_storm_of_short_connections_leaves_nothing_behind() {
    let mut net = Net::pair(3, Keep::Nothing, &StackConfig::default(), spec());
    let addr = SocketAddr::new(Net::addr(0, 1, false), 80);
    net.listen(1, addr, 512, &SockOpts::DEFAULT, |_| {
        Script::of(vec![Op::AwaitRead(10), Op::Send(10), Op::AwaitEnd, Op::Shutdown])
    });
    for n in 0..400 {
        let ops = vec![Op::Send(10), Op::AwaitRead(10), Op::Shutdown];
        net.dial(0, START + Duration::from_micros(n * 150), addr, Script::of(ops));
    }
    complete(&mut net);
    assert_eq!((net.hosts[1].endpoints.len(), received(&net)), (400, 4_000));
}

#[test]
fn half_a_close_leaves_the_other_half_open() {
    let client = Script::sink_after_shutdown();
    let server = Script::of(vec![Op::AwaitEnd, Op::Sleep(ms(500)), Op::Send(500_000), Op::Shutdown]);
    let mut net = world(client, server);
    complete(&mut net);
    assert_eq!(net.hosts[0].endpoints[0].read, 500_000);
}

#[test]
fn a_handshake_survives_the_loss_of_each_of_its_segments() {
    for lost in 0..4 {
        let mut net = world(Script::client_rr(3, 100, 100), Script::server_rr(3, 100, 100));
        let (side, number) = [(0, 0), (1, 0), (0, 1), (1, 1)][lost];
        filter(&net, side, move |_, n, _| if n == number { Verdict::Lose } else { Verdict::Pass });
        complete(&mut net);
        assert_eq!(net.hosts[0].endpoints[0].read, 300);
    }
}

#[test]
fn a_host_that_gets_no_turn_for_two_seconds_catches_up() {
    for host in [0, 1] {
        let mut net = world(Script::send(5_000_000), Script::sink());
        net.starve(host, START + ms(120), START + ms(2120));
        complete(&mut net);
        assert_eq!(received(&net), 5_000_000);
    }
}

#[test]
fn ecn_marks_replace_losses() {
    let mut cfg = StackConfig::default();
    cfg.tcp.ecn = 1;
    let wire = WireConfig { rate_bps: 20_000_000, ce_threshold_bytes: Some(30_000), ..wire() };
    let spec = LinkSpec::symmetric(1500, wire);
    let mut net = world_of(&cfg, spec, false, Script::send(5_000_000), Script::sink());
    let mib = complete(&mut net);
    let marked = lock(&net.links[0]).wires[0].stats().ce_marked;
    assert!(marked > 0);
    assert_eq!((mib.retrans_segs, mib.timeouts), (0, 0));
    let link = lock(&net.links[0]);
    let flags = link.tap.events().iter().filter(|e| e.from == 0).filter_map(|e| tcp_flags(&e.bytes));
    // The SYN carries the flag too.
    assert!(flags.filter(|f| f.contains(TcpFlags::CWR)).count() > 1, "the sender answered the echo");
}

#[test]
fn an_abort_reaches_the_peer() {
    let client = Script::of(vec![Op::Send(100_000), Op::Sleep(ms(300)), Op::Abort]);
    let mut net = world(client, Script::sink());
    run(&mut net);
    assert_eq!(net.hosts[1].endpoints[0].error, Some(SocketError::Reset));
    net.finish();
    assert_eq!(net.violations.texts(), [] as [String; 0]);
}
