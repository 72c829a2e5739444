//! The receive window: initial values, closing, opening, growth, limits.

use crate::config::{SockOpts, TcpConfig};
use crate::testing::{Host, bytes, syn_opts};
use linerate_base::{DropReason, Duration};
use linerate_wire::{TcpFlags, TcpOptions};

#[test]
fn the_linux_profile_opens_with_65535_and_grows_with_data() {
    let mut host = Host::new();
    assert_eq!(host.conn.negotiated().rcv_wscale, 8);
    host.data(1, 1448).unwrap();
    let first = u32::from(host.acked(1449).window) << 8;
    assert!(first >= 65_535, "{first}");
    let mut right = host.conn.rx.wup + host.conn.rx.wnd;
    for i in 1..40 {
        host.data(1 + i * 1448, 1448).unwrap();
        host.read_all();
        for s in host.sent() {
            let edge = s.h.ack + (u32::from(s.h.window) << 8);
            assert!(edge.ge(right), "the right edge moved back");
            right = edge;
        }
    }
    host.finish();
}

#[test]
fn a_slow_reader_closes_the_window_and_a_read_opens_it() {
    let opts = SockOpts { rcvbuf_bytes: 40_000, ..SockOpts::default() };
    let mut host = Host::established(TcpConfig::default(), opts, syn_opts(Some(1)));
    let mut seq = 1;
    let mut closed = false;
    for _ in 0..60 {
        let room = host.conn.receive_window();
        if room == 0 {
            closed = true;
            break;
        }
        let len = room.min(1000);
        host.data(seq, len as usize).unwrap();
        seq += len;
        for s in host.sent() {
            assert_eq!(s.h.ack - host.irs, seq);
        }
        host.advance(Duration::from_millis(300));
        host.sent();
    }
    assert!(closed, "the window never closed: {}", host.conn.receive_window());
    assert!(host.w.mib.to_zero_window_adv >= 1);
    // A probe into the closed window is refused and answered.
    assert_eq!(host.data(seq, 1), Err(DropReason::TcpOverwindow));
    assert_eq!(host.acked(seq).window, 0);
    assert_eq!(host.read_all(), seq as usize - 1);
    let update = host.acked(seq);
    assert!(update.window > 0, "draining the queue announces the window");
    assert_eq!(host.w.mib.from_zero_window_adv, 1);
    host.data(seq, 1000).unwrap();
    host.finish();
}

#[test]
fn data_beyond_the_window_is_refused() {
    let mut host = Host::new();
    let wnd = host.conn.receive_window();
    assert_eq!(host.data(1 + wnd + 5000, 100), Err(DropReason::TcpInvalidSequence));
    host.acked(1);
    host.finish();
}

#[test]
fn without_a_scale_the_window_is_a_multiple_of_the_segment() {
    let opts = TcpOptions { wscale: None, ..syn_opts(None) };
    let mut host =
        Host::established(TcpConfig::default(), SockOpts { rcvbuf_bytes: 50_000, ..SockOpts::default() }, opts);
    for i in 0..10 {
        host.data(1 + i * 1460, 1460).unwrap();
        host.read_all();
        host.sent();
    }
    let mss = u32::from(host.conn.rx.ack.rcv_mss);
    assert_eq!(mss, 1460);
    let w = host.conn.compute_window(host.w.cx().mem);
    assert!(w.is_multiple_of(mss) && w > 0, "{w}");
    host.finish();
}

/// A reader that keeps up gets a larger buffer every round trip, up to `tcp_rmem[2]`; SO_RCVBUF stops that.
#[test]
fn the_buffer_follows_the_reader() {
    for locked in [false, true] {
        let opts = SockOpts { rcvbuf_bytes: if locked { 200_000 } else { 0 }, ..SockOpts::default() };
        let mut host = Host::established(TcpConfig::default(), opts, syn_opts(Some(1)));
        let before = host.conn.rx.rcvbuf;
        let mut seq = 1u32;
        for _round in 0..40 {
            let target = seq + (host.conn.receive_window().min(400_000) / 14_480 * 14_480);
            while seq != target {
                let h = host.header(TcpFlags::ACK, seq, 1);
                host.deliver(&h, &bytes(u64::from(seq) - 1, 14_480), 1448).unwrap();
                seq += 14_480;
                host.read_all();
                host.sent();
            }
            host.advance(Duration::from_millis(20));
            host.sent();
            host.peer_ts = host.peer_ts.map(|t| t + 20);
        }
        assert!(host.conn.rx.rtt.rtt_us8 > 0);
        if locked {
            assert_eq!(host.conn.rx.rcvbuf, before);
        } else {
            assert!(host.conn.rx.rcvbuf > before, "{} > {before}", host.conn.rx.rcvbuf);
            assert!(host.conn.rx.rcvbuf <= host.w.cfg.rmem_bytes[2]);
        }
        host.finish();
    }
}

#[test]
fn memory_is_charged_by_truesize() {
    let mut host = Host::new();
    host.data(1, 100).unwrap();
    assert_eq!(host.conn.rx.rmem_alloc, 640 + 2048, "a descriptor and its share of a page");
    assert_eq!(host.w.mem.allocated_bytes, 640 + 2048);
    host.read_all();
    assert_eq!((host.conn.rx.rmem_alloc, host.w.mem.allocated_bytes), (0, 0));
    host.finish();
}

#[test]
fn the_scaling_ratio_is_learnt_from_large_segments() {
    let mut host = Host::without_ts();
    assert_eq!(host.conn.rx.scaling_ratio, 128);
    host.data(1, 1460).unwrap();
    assert_eq!(host.conn.rx.scaling_ratio, (1460u32 * 256 / (640 + 2048)) as u8);
    host.finish();
}

/// The stack's hard limit: the first segment of an empty queue is taken all the same, the next is refused and the window
/// says zero.
#[test]
fn the_stacks_memory_limit_refuses() {
    let mut host = Host::new();
    host.w.mem.max_bytes = 1000;
    host.data(1, 1000).unwrap();
    assert_eq!(host.acked(1001).window, 0, "out of memory is announced");
    let refused = host.data(1001, 1000);
    assert_eq!(refused, Err(DropReason::TcpOverwindow));
    host.acked(1001);
    host.w.mem.max_bytes = 1 << 30;
    assert_eq!(host.read_all(), 1000);
    host.sent();
    host.data(1001, 1000).unwrap();
    assert_eq!(host.read_all(), 1000);
    host.finish();
}
