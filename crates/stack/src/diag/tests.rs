use alloc::vec::Vec;
use std::collections::BTreeMap;

use super::*;
use crate::config::StackConfig;
use crate::tcp::BindOpts;
use linerate_tcp::SockOpts;

const MS: u64 = 1_000_000;

/// A shard that talks to itself over its loopback.
struct Host {
    shard: Shard,
    now: u64,
}

impl Host {
    fn new() -> Self {
        Self { shard: Shard::new(StackConfig::default()), now: 0 }
    }
    fn turns(&mut self, n: u64) {
        for _ in 0..n {
            self.now += MS;
            self.shard.turn(Instant::from_nanos(self.now), 256);
        }
    }
    fn listen(&mut self, addr: &str) -> SockId {
        self.shard
            .tcp_listen(addr.parse().unwrap(), 4096, &SockOpts::default(), BindOpts::default())
            .expect("the port is free")
    }
    fn connect(&mut self, addr: &str) -> SockId {
        self.shard.tcp_connect(addr.parse().unwrap(), None, &SockOpts::default()).expect("there is a route")
    }
    /// A whole dump, `limit` at a time, with `between` after each piece.
    fn dump(&mut self, filter: DiagFilter, limit: usize, mut between: impl FnMut(&mut Self)) -> Vec<SockDiag> {
        let (mut cursor, mut all) = (DiagCursor::default(), Vec::new());
        loop {
            let before = all.len();
            let more = self.shard.diag(&filter, &mut cursor, limit, &mut all);
            assert!(all.len() - before <= limit);
            if !more {
                // Its end is its end.
                assert!(!self.shard.diag(&filter, &mut cursor, limit, &mut all));
                return all;
            }
            between(self);
        }
    }
    fn all(&mut self, filter: DiagFilter) -> Vec<SockDiag> {
        self.dump(filter, usize::MAX, |_| ())
    }
}

#[test]
fn every_kind_of_socket_is_told_of() {
    let mut h = Host::new();
    h.listen("[::]:80");
    let client = h.connect("127.0.0.1:80");
    h.shard.tcp_socket(Family::V4, &SockOpts::default());
    h.shard.udp_bind("127.0.0.1:53".parse().unwrap(), crate::udp::BindOpts::default()).unwrap();
    h.turns(10);
    h.shard.write(client, b"unread").unwrap();
    h.turns(10);
    let dump = h.all(DiagFilter::ALL);
    let states: Vec<_> = dump.iter().map(|d| (d.kind, d.state.name(), d.v6)).collect();
    let expected = [
        (SockKind::Tcp, "LISTEN", true),
        (SockKind::Tcp, "ESTAB", false),
        (SockKind::Tcp, "UNCONN", false),
        (SockKind::Tcp, "ESTAB", true),
        (SockKind::Udp, "UNCONN", false),
    ];
    assert_eq!(states, expected);
    let (listener, here, there) = (&dump[0], &dump[1], &dump[3]);
    assert_eq!((listener.recv_q, listener.send_q), (1, 4096));
    assert_eq!(listener.mem.unwrap().rcvbuf, h.shard.config().tcp.rmem_bytes[1]);
    assert_eq!(here.id, Some(client));
    assert_eq!((Some(here.local), here.peer), (there.peer, Some(there.local)));
    assert_eq!(there.recv_q, 6);
    let tcp = here.tcp.as_ref().expect("asked for");
    assert_eq!((tcp.congestion, tcp.info.bytes_sent, tcp.info.state), ("cubic", 6, 1));
    assert!(there.mem.unwrap().rmem_alloc > 0);
    // What was not asked for is not there.
    let only = |change: fn(&mut DiagFilter)| {
        let mut f = DiagFilter::ALL;
        change(&mut f);
        f
    };
    assert_eq!(h.all(only(|f| f.tcp = false)).len(), 1);
    assert_eq!(h.all(only(|f| f.udp = false)).len(), 4);
    assert_eq!(h.all(only(|f| f.v4 = false)).len(), 2);
    assert_eq!(h.all(only(|f| f.v6 = false)).len(), 3);
    assert_eq!(h.all(only(|f| f.states = DiagState::LISTEN.bit())).len(), 1);
    assert!(h.all(only(|f| f.info = false)).iter().all(|d| d.tcp.is_none()));
}

#[test]
fn timers_have_names_and_times() {
    let mut h = Host::new();
    h.listen("[::]:80");
    let client = h.connect("127.0.0.1:80");
    let before = h.all(DiagFilter::ALL);
    let syn = before.iter().find(|d| d.id == Some(client)).unwrap();
    assert_eq!(syn.state.name(), "SYN-SENT");
    h.turns(5);
    // The server's end closes first, so it is the one that waits.
    let find = |h: &mut Host, state: &str, v6: bool| {
        let all = h.all(DiagFilter::ALL);
        all.into_iter().find(|d| d.state.name() == state && d.v6 == v6).unwrap_or_else(|| panic!("no {state}"))
    };
    let server = find(&mut h, "ESTAB", true).id.unwrap();
    h.shard.close(server).unwrap();
    h.turns(5);
    assert_eq!(find(&mut h, "CLOSE-WAIT", false).id, Some(client));
    h.shard.close(client).unwrap();
    h.turns(5);
    let tw = find(&mut h, "TIME-WAIT", true);
    let timer = tw.timer.expect("it ends");
    assert_eq!((timer.name, tw.id, tw.local.port()), (TimerName::TimeWait, None, 80));
    assert!((55_000..=60_000).contains(&timer.left.as_millis()), "{timer:?}");
}

#[test]
fn a_connections_timer_says_what_it_waits_for() {
    let mut h = Host::new();
    h.listen("127.0.0.1:80");
    let mut opts = SockOpts::default();
    opts.keepalive = true;
    let client = h.shard.tcp_connect("127.0.0.1:80".parse().unwrap(), None, &opts).unwrap();
    h.turns(10);
    let timer = |h: &mut Host| {
        let dump = h.all(DiagFilter::ALL);
        dump.into_iter().find(|d| d.id == Some(client)).unwrap().timer.expect("it waits")
    };
    let keepalive = timer(&mut h);
    assert_eq!((keepalive.name, keepalive.retries), (TimerName::Keepalive, 0));
    assert!((7_190..=7_200).contains(&keepalive.left.as_secs()), "{keepalive:?}");
    // Nobody reads: bytes are under way, and then the window is shut.
    h.shard.write(client, &[0; 100]).unwrap();
    h.turns(1);
    assert_eq!(timer(&mut h).name, TimerName::On);
    let mut quiet = 0;
    while quiet < 3 {
        quiet = if h.shard.write(client, &[0; 65_536]).is_ok() { 0 } else { quiet + 1 };
        h.turns(300);
    }
    let persist = timer(&mut h);
    assert_eq!(persist.name, TimerName::Persist);
    assert!(persist.left.as_millis() > 0, "{persist:?}");
}

#[test]
fn a_dump_in_pieces_tells_of_each_lasting_socket_once() {
    let mut h = Host::new();
    h.listen("127.0.0.1:80");
    let lasting: Vec<_> = (0..300).map(|_| h.connect("127.0.0.1:80")).collect();
    h.turns(20);
    let mut young = Vec::new();
    for limit in [1, 7, 64] {
        let dump = h.dump(DiagFilter::ALL, limit, |h| {
            // The slab is used again and again between the pieces.
            for id in young.drain(..) {
                let _ = h.shard.abort(id);
            }
            young.extend((0..3).map(|_| h.connect("127.0.0.1:80")));
            h.turns(2);
        });
        let mut times: BTreeMap<SockId, usize> = BTreeMap::new();
        for id in dump.iter().filter_map(|d| d.id) {
            *times.entry(id).or_default() += 1;
        }
        assert!(lasting.iter().all(|id| times.get(id) == Some(&1)), "limit {limit}");
        assert!(times.values().all(|&n| n == 1), "no socket twice");
    }
}

#[test]
fn a_call_is_bounded_even_over_free_entries() {
    let mut h = Host::new();
    let ids: Vec<_> = (0..3 * SLOTS_PER_CALL).map(|_| h.shard.tcp_socket(Family::V4, &SockOpts::default())).collect();
    for &id in &ids[..ids.len() - 1] {
        h.shard.close(id).unwrap();
    }
    let (mut cursor, mut out, mut calls) = (DiagCursor::default(), Vec::new(), 1);
    while h.shard.diag(&DiagFilter::ALL, &mut cursor, 64, &mut out) {
        calls += 1;
        assert!(calls < 10);
    }
    assert_eq!((out.len(), calls), (1, 4));
}
