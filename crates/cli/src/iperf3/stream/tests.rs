//! Loss, order and jitter of received datagrams, fed one by one.

use linerate_base::{Duration, Instant};
use linerate_stack::{Shard, StackConfig};
use serde_json::json;

use super::*;

fn receiver() -> Stream {
    let params = Params::parse(&json!({ "udp": true, "len": 100 })).unwrap();
    let mut shard = Shard::new(StackConfig::default());
    let sock = shard.udp_socket(false);
    let end = "10.0.0.1:1".parse().unwrap();
    Stream::new(0, sock, false, [end, end], &params)
}

fn datagram(count: u64, sent: Instant) -> [u8; 100] {
    let mut bytes = [0; 100];
    let micros = sent.as_micros();
    UdpHeader { sec: (micros / 1_000_000) as u32, usec: (micros % 1_000_000) as u32, count }.emit(&mut bytes, false);
    bytes
}

#[test]
fn a_gap_is_loss_until_it_is_filled() {
    let mut stream = receiver();
    let now = Instant::from_secs(9);
    for count in [1, 2, 5, 6] {
        assert_eq!(stream.count_datagram(&datagram(count, now), now), 100);
    }
    assert_eq!((stream.counts.lost, stream.counts.datagrams, stream.counts.out_of_order), (2, 6, 0));
    stream.count_datagram(&datagram(4, now), now);
    assert_eq!((stream.counts.lost, stream.counts.datagrams, stream.counts.out_of_order), (1, 6, 1));
    // Twice the same is late, too; nothing goes below zero.
    for _ in 0..5 {
        stream.count_datagram(&datagram(4, now), now);
    }
    assert_eq!((stream.counts.lost, stream.counts.bytes), (0, 1000));
    assert_eq!(stream.counts.lost_percent(), 0.0);
}

#[test]
fn counting_begins_again_after_the_omitted_time() {
    let mut stream = receiver();
    let now = Instant::from_secs(9);
    for count in [1, 4] {
        stream.count_datagram(&datagram(count, now), now);
    }
    stream.restart(&Shard::new(StackConfig::default()));
    assert_eq!(stream.counts, Counts::default());
    for count in [5, 7] {
        stream.count_datagram(&datagram(count, now), now);
    }
    assert_eq!((stream.counts.datagrams, stream.counts.lost, stream.counts.bytes), (3, 1, 200));
}

#[test]
fn jitter_is_that_of_rfc_1889() {
    let mut stream = receiver();
    // The clocks differ by a constant, which does not matter; the transit changes by 1.6 ms each time.
    for (nth, late_us) in (0..3).zip([0, 1600, 0]) {
        let sent = Instant::from_millis(100 + nth * 10);
        let arrived = sent + Duration::from_secs(1000) + Duration::from_micros(late_us);
        stream.count_datagram(&datagram(nth + 1, sent), arrived);
    }
    let expected = 1.6e-3 / 16.0 + (1.6e-3 - 1.6e-3 / 16.0) / 16.0;
    assert!((stream.jitter_secs() - expected).abs() < 1e-9, "{}", stream.jitter_secs());
}

#[test]
fn hostile_counts_do_not_overflow() {
    let params = Params::parse(&json!({ "udp": true, "len": 100, "udp_counters_64bit": 1 })).unwrap();
    let end = "10.0.0.1:1".parse().unwrap();
    let mut stream = Stream::new(0, receiver().sock, false, [end, end], &params);
    let now = Instant::from_secs(9);
    for count in [u64::MAX, 0, u64::MAX, 1] {
        let mut bytes = [0; 100];
        UdpHeader { sec: u32::MAX, usec: u32::MAX, count }.emit(&mut bytes, true);
        stream.count_datagram(&bytes, now);
    }
    assert_eq!(stream.counts.datagrams, u64::MAX);
    assert_eq!(stream.count_datagram(&[0; 15], now), 0, "shorter than a header");
}
