//! Prediction against the general way: the same conversation twice, once with prediction taken away, and after every step
//! all that the sender knows has to be equal: sequence numbers, counters, timers, estimators, the congestion control, the
//! queue with its times and tags, and what left.

use std::format;
use std::string::String;
use std::vec::Vec;

use linerate_base::rng::Rng;

use super::*;
use crate::quick::switch;
use crate::txq::TxSeg;

/// Everything that the next step may depend on.
fn state(p: &Peer) -> String {
    let (tx, fl) = (&p.conn.tx, &*p.conn.tx.fl);
    let numbers = (tx.snd_una, tx.snd_nxt, tx.write_seq, tx.snd_wl1, tx.snd_wnd, tx.wmem_queued, tx.wmem_alloc);
    let counts = (tx.packets_out, tx.sacked_out, tx.lost_out, tx.retrans_out, tx.delivered, tx.bytes_acked, tx.flags);
    let rtt = (tx.srtt_us8, tx.mdev_us4, tx.mdev_max_us4, tx.rttvar_us, tx.rtt_seq, tx.rto_us, tx.min_rtt, tx.backoff);
    let rate = (fl.delivered_at, fl.first_tx_at, fl.app_limited, fl.rate_delivered, fl.rate_interval_us);
    let usage = (fl.cwnd_usage_seq, fl.cwnd_used, fl.cwnd_stamp, fl.wstamp, fl.chrono, fl.chrono_at, fl.chrono_ns);
    let more = (fl.rack, fl.prr, fl.pushed_seq, fl.snd_sml, fl.tlp_high_seq, tx.reo_wnd_steps, tx.probes_out);
    // In which slot a segment lies and in how many pages its bytes do depends on when slots and page began anew.
    let times = |s: &TxSeg| (s.tx_at, s.first_tx_at, s.delivered_at, s.delivered, s.segs, s.mss);
    let queue: Vec<String> = (0..fl.q.len())
        .filter_map(|at| fl.q.get(at))
        .map(|s| format!("{:?}", (s.seq, s.end_seq, s.tags, times(s))))
        .collect();
    let cc = (&tx.cc, &tx.algo);
    let world = (&p.mib, p.mem.allocated_bytes, p.conn.next_timer(), p.conn.timers.retrans_kind());
    format!("{numbers:?}\n{counts:?}\n{rtt:?}\n{rate:?}\n{usage:?}\n{more:?}\n{queue:?}\n{cc:?}\n{world:?}")
}

/// A conversation of small writes with some large ones, and a peer that answers, keeps silent, loses and reorders.
fn converse(seed: u64, predict: bool) -> (Vec<String>, Vec<Sent>, u64) {
    switch::set(predict);
    let before = switch::taken();
    let mut rng = Rng::new(seed);
    let mut cfg = Setup::default().cfg;
    cfg.congestion_control = if rng.chance(0.5) { "cubic" } else { "reno" };
    let opts = SockOpts { nodelay: rng.chance(0.5), ..SockOpts::default() };
    let mut p = Peer::with(Setup { cfg, opts, rtt_us: 200, ..Setup::default() });
    let (mut trace, mut left) = (Vec::new(), Vec::new());
    for _ in 0..400 {
        match rng.below(12) {
            0..=3 => {
                let n = if rng.chance(0.9) { 1 + rng.below(1000) } else { rng.below(9000) } as usize;
                let flags = SendFlags { more: rng.chance(0.05), eor: rng.chance(0.1) };
                let _ = p.write_with(n, flags);
            }
            4..=6 => left.extend(p.sent()),
            7..=9 => {
                p.ack(p.conn.tx.snd_nxt - p.iss);
            }
            10 => {
                let us = if rng.chance(0.9) { rng.below(400) } else { rng.below(400_000) };
                left.extend(p.pass_us(us).into_iter().map(|(_, s)| s));
            }
            _ => unusual(&mut p, &mut rng),
        }
        trace.push(state(&p));
    }
    let taken = switch::taken() - before;
    p.finish();
    switch::set(true);
    (trace, left, taken)
}

/// What prediction must leave to the general way.
fn unusual(p: &mut Peer, rng: &mut Rng) {
    let (una, nxt) = (p.conn.tx.snd_una - p.iss, p.conn.tx.snd_nxt - p.iss);
    match rng.below(4) {
        0 => p.wnd = 1 << (11 + rng.below(10)),
        1 if nxt > una + 1 => {
            p.ack(una + 1 + rng.below(u64::from(nxt - una)) as u32);
        }
        2 if nxt > una + 1 => {
            p.sack(una, &[(nxt - 1, nxt)]);
        }
        _ => p.hold = !p.hold,
    }
}

#[test]
fn prediction_changes_nothing() {
    let mut taken = 0;
    for seed in 0..150 {
        let (with, sent_with, n) = converse(seed, true);
        let (without, sent_without, none) = converse(seed, false);
        for (step, (a, b)) in with.iter().zip(&without).enumerate() {
            assert_eq!(a, b, "seed {seed}, step {step}");
        }
        assert_eq!((sent_with, none), (sent_without, 0), "seed {seed}");
        taken += n;
    }
    assert!(taken > 5_000, "the predicted cases hardly occur: {taken}");
}
