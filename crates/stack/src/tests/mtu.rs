//! Paths that drop what is too long without a word (RFC 4821).

use linerate_tcp::TcpConfig;

use super::transfer::{drain, feed};
use super::{Net, SockId};

/// Carries `total` bytes from a to b; returns the milliseconds that it took, or `None` after `limit_ms`.
fn carry(net: &mut Net, c: SockId, s: SockId, total: u64, limit_ms: u64) -> Option<u64> {
    let (mut sent, mut got) = (0, 0);
    for ms in (0..limit_ms).step_by(5) {
        sent = feed(&mut net.a, c, sent, total);
        net.pass(5);
        got = drain(&mut net.b, s, got);
        if got == total {
            return Some(ms + 5);
        }
    }
    None
}

fn net(probing: u8, hole: u32) -> Net {
    let mut a = TcpConfig::default();
    a.mtu_probing = probing;
    let net = Net::with(a, TcpConfig::default());
    net.wires[0].lock().unwrap().black_hole_bytes = hole;
    net
}

#[test]
fn a_black_hole_is_found_and_measured() {
    let mut net = net(1, 1203);
    let (c, s) = net.pair();
    assert_eq!(net.a.info(c).unwrap().snd_mss, 1448);
    let took = carry(&mut net, c, s, 3_000_000, 20_000).expect("the stream goes on");
    // Three seconds of retransmissions arouse the suspicion; then it flows.
    assert!((3_000..8_000).contains(&took), "{took} ms");
    let (m, info) = (&net.a.mibs().tcp, net.a.info(c).unwrap());
    // 1203 bytes less 52 of headers, to within the threshold of the search.
    assert!((1151 - 8..=1151).contains(&info.snd_mss), "MSS {}", info.snd_mss);
    assert!(m.mtup_success >= 3 && m.mtup_fail >= 3, "{} up, {} down", m.mtup_success, m.mtup_fail);
    // A connection that knows the path does not forget it while it rests.
    net.pass(60_000);
    assert!((1151 - 8..=1151).contains(&net.a.info(c).unwrap().snd_mss));
    net.a.abort(c).unwrap();
    net.b.abort(s).unwrap();
    net.finish();
}

#[test]
fn a_narrow_hole_is_found_by_halving() {
    let mut net = net(1, 300);
    let (c, s) = net.pair();
    carry(&mut net, c, s, 20_000, 60_000).expect("the stream goes on");
    assert!(net.a.info(c).unwrap().snd_mss <= 248);
    net.a.abort(c).unwrap();
    net.b.abort(s).unwrap();
    net.finish();
}

#[test]
fn without_probing_a_black_hole_swallows_the_connection() {
    let mut net = net(0, 1203);
    let (c, s) = net.pair();
    assert_eq!(carry(&mut net, c, s, 100_000, 20_000), None);
    assert_eq!((net.a.info(c).unwrap().snd_mss, net.a.mibs().tcp.mtup_fail), (1448, 0));
    net.a.abort(c).unwrap();
    net.b.abort(s).unwrap();
    net.finish();
}

#[test]
fn a_search_from_the_start_finds_the_whole_path() {
    let mut net = net(2, 0);
    let (c, s) = net.pair();
    assert_eq!(net.a.info(c).unwrap().snd_mss, 1024);
    carry(&mut net, c, s, 3_000_000, 20_000).expect("the stream flows");
    let m = &net.a.mibs().tcp;
    assert!((1440..=1448).contains(&net.a.info(c).unwrap().snd_mss));
    assert!(m.mtup_success >= 5 && m.retrans_segs <= m.loss_probes, "{} steps", m.mtup_success);
    assert_eq!((m.mtup_fail, m.timeouts), (0, 0));
    net.a.abort(c).unwrap();
    net.b.abort(s).unwrap();
    net.finish();
}

#[test]
fn what_icmp_says_bounds_the_search() {
    let mut net = net(2, 0);
    let (c, s) = net.pair();
    let peer = net.a.peer_addr(c).unwrap().ip();
    net.a.core.links.update_pmtu(peer, 1100, net.a.now()).unwrap();
    carry(&mut net, c, s, 1_000_000, 20_000).expect("the stream flows");
    assert!((1040..=1048).contains(&net.a.info(c).unwrap().snd_mss), "{}", net.a.info(c).unwrap().snd_mss);
    net.a.abort(c).unwrap();
    net.b.abort(s).unwrap();
    net.finish();
}
