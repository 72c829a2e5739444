//! Many sockets that hoard, and the few that only want to go on.

use std::vec::Vec;

use linerate_tcp::{MemGroup, MemLimits, SockOpts, TcpConfig};

use super::transfer::{drain, feed};
use super::{B, Net, SockId};
use crate::BindOpts;

/// A net whose second host has so much memory for TCP.
fn net(limits: [u64; 3]) -> Net {
    let mut net = Net::with(TcpConfig::default(), TcpConfig::default());
    let mem = &mut net.b.core.mem.tcp;
    (mem.low_bytes, mem.pressure_bytes, mem.max_bytes) = (limits[0], limits[1], limits[2]);
    net
}

/// `n` connections to b's `port`, whose sockets are in `group`.
fn connections(net: &mut Net, port: u16, n: usize, group: MemGroup) -> Vec<(SockId, SockId)> {
    let mut opts = SockOpts::default();
    opts.mem_group = group;
    let at = std::format!("{B}:{port}").parse().unwrap();
    let l = net.b.tcp_listen(at, 512, &opts, BindOpts::default()).unwrap();
    let pairs = (0..n).map(|_| {
        let c = net.connect(port);
        net.settle();
        (c, net.b.accept(l).unwrap())
    });
    let pairs = pairs.collect();
    net.b.close(l).unwrap();
    pairs
}

/// Writes to all of them and reads nothing, for some time.
fn hoard(net: &mut Net, pairs: &[(SockId, SockId)], most: u64) {
    for _ in 0..20 {
        for &(c, _) in pairs {
            feed(&mut net.a, c, 0, 200_000);
        }
        net.pass(20);
        let held = net.b.core().mem.tcp.allocated_bytes;
        assert!(held <= most, "{held} of {most} bytes");
    }
}

/// Carries `total` bytes to a reader; returns the milliseconds.
fn carry(net: &mut Net, (c, s): (SockId, SockId), from: u64, total: u64) -> u64 {
    let (mut sent, mut got) = (from, from);
    for ms in (0..60_000).step_by(5) {
        sent = feed(&mut net.a, c, sent, from + total);
        net.pass(5);
        got = drain(&mut net.b, s, got);
        if got == from + total {
            return ms + 5;
        }
    }
    panic!("{} of {total} bytes in a minute", got - from);
}

fn end(net: &mut Net, pairs: &[(SockId, SockId)]) {
    for &(c, s) in pairs {
        net.a.abort(c).unwrap();
        let _ = net.b.abort(s);
    }
    net.settle();
}

#[test]
fn hoarders_cost_speed_and_no_connection() {
    let (low, pressure, max) = (2 << 20, 3 << 20, 4 << 20);
    let mut net = net([low, pressure, max]);
    let honest = connections(&mut net, 90, 1, MemGroup::NONE)[0];
    let before = carry(&mut net, honest, 0, 1_000_000);
    assert_eq!(net.b.mibs().tcp.memory_pressures, 0);
    let hoarders = connections(&mut net, 80, 100, MemGroup::NONE);
    // What a connection can not do without is charged over the limit: one segment each.
    hoard(&mut net, &hoarders, max + 100 * 8192);
    let m = net.b.mibs().tcp.clone();
    assert!(m.memory_pressures >= 1, "pressure was noted");
    assert!(net.b.core().mem.tcp.any_pressure());
    // Each has its share, none has all.
    for &(_, s) in &hoarders {
        assert!(net.b.sock_mem_bytes(s) <= (max / 100) as u32 * 2, "{} bytes", net.b.sock_mem_bytes(s));
    }
    // Who reads goes on.
    let during = carry(&mut net, honest, 1_000_000, 1_000_000);
    assert!(during < 30_000, "{during} ms under pressure, {before} before");
    // Their windows shut instead of dropping for ever: nobody sends what has no room.
    let dropped = net.b.mibs().drops.total();
    net.pass(200);
    assert!(net.b.mibs().drops.total() - dropped <= 2 * 100, "drops go on");
    // They go; everything grows back.
    end(&mut net, &hoarders);
    carry(&mut net, honest, 2_000_000, 1_000_000);
    assert!(!net.b.core().mem.tcp.any_pressure());
    let after = carry(&mut net, honest, 3_000_000, 1_000_000);
    assert!(after <= 5 * before.max(20), "{after} ms after, {before} before");
    assert!(net.b.mibs().tcp.memory_pressures_chrono >= 100);
    end(&mut net, &[honest]);
    net.finish();
}

#[test]
fn a_group_that_hoards_hurts_itself_alone() {
    let mut net = net([512 << 20, 768 << 20, 1 << 30]);
    let limits = MemLimits::new([256 << 10, 384 << 10, 512 << 10]);
    let group = net.b.mem_group("tenant", limits).unwrap();
    assert_eq!(net.b.mem_group("tenant", limits), Some(group), "a name is one group");
    let other = net.b.mem_group("other", MemLimits::new([4 << 20, 6 << 20, 8 << 20])).unwrap();
    let hoarders = connections(&mut net, 80, 20, group);
    let free = connections(&mut net, 81, 1, MemGroup::NONE)[0];
    let member = connections(&mut net, 82, 1, other)[0];
    hoard(&mut net, &hoarders, 1 << 30);
    let held = net.b.mem_groups().find(|g| g.0 == "tenant").unwrap().1;
    assert!((256 << 10..(512 << 10) + 20 * 8192).contains(&held), "{held} bytes");
    assert!(net.b.core().mem.tcp.under_pressure(group) && !net.b.core().mem.tcp.under_pressure(other));
    // The others do not notice.
    assert!(carry(&mut net, free, 0, 2_000_000) < 500);
    assert!(carry(&mut net, member, 0, 2_000_000) < 500);
    // A member that reads gets on, in what its group leaves it.
    let (c, s) = hoarders[0];
    let mut got = 0;
    for _ in 0..2000 {
        net.pass(5);
        // What the hoarders were sent is no one stream: bytes count, not their values.
        while let Ok(n @ 1..) = net.b.read(s, &mut [0; 10_000]) {
            got += n;
        }
        let _ = net.a.write(c, &[0; 1000]);
        if got >= 200_000 {
            break;
        }
    }
    assert!(got > 100_000, "{got} bytes");
    end(&mut net, &hoarders);
    end(&mut net, &[free, member]);
    assert_eq!(net.b.mem_groups().map(|g| g.1).sum::<u64>(), 0, "all charges came back");
    net.finish();
}

#[test]
fn writers_share_what_there_is() {
    let mut net = net([512 << 20, 768 << 20, 1 << 30]);
    let mem = &mut net.a.core.mem.tcp;
    (mem.low_bytes, mem.pressure_bytes, mem.max_bytes) = (1 << 20, 3 << 19, 2 << 20);
    let pairs = connections(&mut net, 80, 40, MemGroup::NONE);
    net.turn();
    // Nobody acknowledges: all that is written stays with the writers.
    net.wires[0].lock().unwrap().lose = usize::MAX;
    let mut taken = Vec::new();
    for &(c, _) in &pairs {
        taken.push(feed(&mut net.a, c, 0, 10_000_000));
    }
    let held = net.a.core().mem.tcp.allocated_bytes;
    assert!(held <= (2 << 20) + 40 * 4096, "{held} bytes");
    assert!(taken.iter().all(|&n| n > 0), "everybody may send something: {taken:?}");
    net.wires[0].lock().unwrap().lose = 0;
    for (&(c, s), &n) in pairs.iter().zip(&taken) {
        let mut got = 0;
        for _ in 0..4000 {
            net.pass(5);
            got = drain(&mut net.b, s, got);
            if got == n {
                break;
            }
        }
        assert_eq!(got, n, "the stream of {c:?}");
    }
    end(&mut net, &pairs);
    net.finish();
}
