//! What is not believed: RST and SYN in the window, PAWS, old ACKs, odd flags, rate limits.

use crate::state::State;
use crate::testing::Host;
use crate::tx::SendFlags;
use linerate_base::token_bucket::TokenBucket;
use linerate_base::{DropReason, Duration};
use linerate_wire::TcpFlags;

#[test]
fn a_reset_must_hit_the_exact_number() {
    let mut host = Host::new();
    assert_eq!(host.segment(TcpFlags::RST, 100, 0, 0), Err(DropReason::TcpInvalidRst));
    host.acked(1);
    assert_eq!((host.w.mib.challenge_ack, host.conn.state()), (1, State::Established));
    let far = host.conn.receive_window() + 10_000;
    assert_eq!(host.segment(TcpFlags::RST, far, 0, 0), Err(DropReason::TcpInvalidSequence));
    host.silent();
    assert_eq!(host.segment(TcpFlags::RST, 1, 0, 0), Err(DropReason::TcpReset));
    assert_eq!(host.conn.state(), State::Closed);
    host.finish();
}

#[test]
fn a_reset_at_the_sack_edge_is_believed() {
    let mut host = Host::new();
    host.data(1001, 500).unwrap();
    host.sent();
    assert_eq!(host.segment(TcpFlags::RST, 1501, 0, 0), Err(DropReason::TcpReset));
    assert_eq!(host.conn.state(), State::Closed);
    host.finish();
}

#[test]
fn a_syn_in_the_window_is_challenged() {
    let mut host = Host::new();
    assert_eq!(host.segment(TcpFlags::SYN, 50, 0, 0), Err(DropReason::TcpInvalidSyn));
    host.acked(1);
    assert_eq!((host.w.mib.syn_challenge, host.w.mib.challenge_ack), (1, 1));
    assert_eq!(host.segment(TcpFlags::SYN | TcpFlags::ACK, 0, 0, 1), Err(DropReason::TcpInvalidSyn));
    host.silent();
    assert_eq!(host.w.mib.ack_skipped_challenge, 1, "one answer in 500 ms");
    host.w.now += Duration::from_millis(501);
    assert_eq!(host.segment(TcpFlags::SYN, 50, 0, 0), Err(DropReason::TcpInvalidSyn));
    host.acked(1);
    host.finish();
}

#[test]
fn challenges_are_limited_over_the_stack() {
    let mut host = Host::new();
    host.w.cfg.challenge_ack_limit = 1;
    host.w.cfg.invalid_ratelimit_ms = 0;
    host.w.challenge = TokenBucket::new(1, 1);
    for _ in 0..5 {
        let _challenged = host.segment(TcpFlags::RST, 100, 0, 0);
        host.sent();
    }
    assert_eq!(host.w.mib.challenge_ack, 1);
    host.finish();
}

#[test]
fn odd_flags_are_dropped_silently() {
    let mut host = Host::new();
    for flags in
        [TcpFlags::NONE, TcpFlags::FIN, TcpFlags::PSH | TcpFlags::URG, TcpFlags::FIN | TcpFlags::URG | TcpFlags::PSH]
    {
        assert_eq!(host.segment(flags, 1, 10, 0), Err(DropReason::TcpFlags), "{flags:?}");
        host.silent();
    }
    assert_eq!(host.conn.state(), State::Established);
    host.finish();
}

#[test]
fn urgent_data_is_delivered_in_line() {
    let mut host = Host::new();
    let mut h = host.header(TcpFlags::ACK | TcpFlags::URG | TcpFlags::PSH, 1, 1);
    h.urgent = 3;
    host.deliver(&h, &crate::testing::bytes(0, 10), 0).unwrap();
    assert_eq!(host.read_all(), 10);
    host.finish();
}

#[test]
fn paws_refuses_old_timestamps_but_not_resets() {
    let mut host = Host::new();
    host.peer_ts = Some(1000);
    host.data(1, 100).unwrap();
    host.acked(101);
    host.peer_ts = Some(500);
    assert_eq!(host.data(101, 100), Err(DropReason::TcpRfc7323Paws));
    host.acked(101);
    assert_eq!(host.w.mib.paws_estab, 1);
    host.peer_ts = Some(999);
    host.data(101, 100).unwrap();
    assert_eq!(host.conn.rx.ts_recent, 1000, "one tick back is taken, not remembered");
    host.peer_ts = Some(5);
    assert_eq!(host.segment(TcpFlags::RST, 201, 0, 0), Err(DropReason::TcpReset));
    host.finish();
}

#[test]
fn a_late_pure_ack_is_not_answered() {
    let mut host = Host::new();
    host.peer_ts = Some(1000);
    host.data(1, 100).unwrap();
    host.sent();
    host.peer_ts = Some(500);
    assert_eq!(host.segment(TcpFlags::ACK, 1, 0, 1), Err(DropReason::TcpRfc7323Paws));
    host.silent();
    assert_eq!(host.w.mib.paws_old_ack, 1);
    host.finish();
}

#[test]
fn after_24_days_any_timestamp_is_taken() {
    let mut host = Host::new();
    host.peer_ts = Some(1000);
    host.data(1, 100).unwrap();
    host.sent();
    host.w.now += Duration::from_secs(24 * 86_400 + 1);
    host.peer_ts = Some(5);
    host.data(101, 100).unwrap();
    assert_eq!(host.conn.rx.ts_recent, 5);
    host.finish();
}

/// RFC 7323 section 4.3: TS.Recent follows only segments that cover the last ACK sent.
#[test]
fn ts_recent_follows_the_left_edge() {
    let mut host = Host::new();
    host.peer_ts = Some(200);
    host.data(1001, 100).unwrap();
    assert_eq!(host.conn.rx.ts_recent, 100, "beyond the edge");
    host.acked(1);
    host.peer_ts = Some(201);
    host.data(1, 1000).unwrap();
    assert_eq!(host.conn.rx.ts_recent, 201);
    host.finish();
}

#[test]
fn acks_of_unsent_and_of_ancient_data() {
    let mut host = Host::new();
    host.conn.write(&mut host.w.cx(), &[7; 100], SendFlags::default()).unwrap();
    host.sent();
    assert_eq!(host.segment(TcpFlags::ACK, 1, 0, 500), Err(DropReason::TcpAckUnsentData));
    host.acked(1);
    host.segment(TcpFlags::ACK, 1, 0, 101).unwrap();
    host.w.now += core::time::Duration::from_millis(600);
    let mut h = host.header(TcpFlags::ACK, 1, 0);
    h.ack = host.iss - 200_000;
    assert_eq!(host.deliver(&h, &[], 0), Err(DropReason::TcpTooOldAck));
    host.acked(1);
    assert_eq!(host.w.mib.challenge_ack, 2);
    host.finish();
}
