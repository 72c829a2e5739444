use std::vec::Vec;

use super::*;
use crate::config::StackConfig;
use crate::testing::{Dev, Host, ip, udp_packet};
use crate::udp::{BindOpts, SendOpts};

/// A host of weight 4 with `local` packets on the loopback and `wire` frames on its device.
fn loaded(local: usize, wire: usize) -> Host {
    let cfg = StackConfig { napi_weight: 4, ..StackConfig::default() };
    let mut h = Host::with(cfg, Dev::plain(), &["10.0.0.1/24"]);
    let id = h.udp.socket(&h.core, false);
    let at = "0.0.0.0:7".parse().unwrap();
    h.udp.bind(&mut h.core, id, at, BindOpts::default()).unwrap();
    for _ in 0..local {
        let to = "127.0.0.1:7".parse().unwrap();
        h.udp.send_to(&mut h.core, id, b"local", Some(to), SendOpts::default()).unwrap();
    }
    for _ in 0..wire {
        h.rx.push(udp_packet(&ip("10.0.0.9", "10.0.0.1", 17), 5, 7, b"wire"));
    }
    h
}

/// Polls with `budget` until nothing is left or it is spent; what each poll gave, as (device, skbs).
fn polls(h: &mut Host, mut budget: usize) -> (Vec<(u32, usize)>, bool) {
    let mut seen = Vec::new();
    start_turn(&mut h.core);
    let mut out = SkbBatch::new();
    loop {
        let p = poll(&mut h.core, budget, &mut out);
        budget -= p.rx_skbs;
        assert_eq!(out.len(), p.rx_skbs);
        if let Some(first) = out.front() {
            seen.push((first.ifindex, p.rx_skbs));
        }
        while let Some(skb) = out.pop_front() {
            h.rcv(skb);
        }
        if !p.more || budget == 0 {
            return (seen, p.more);
        }
    }
}

#[test]
fn queues_take_turns_by_weight() {
    let mut h = loaded(6, 10);
    assert_eq!(polls(&mut h, 100), (Vec::from([(1, 4), (2, 4), (1, 2), (2, 4), (2, 2)]), false));
    assert_eq!(h.core.mibs.ip.in_delivers, 16);
    h.turn();
    h.assert_home();
}

#[test]
fn the_rotation_survives_a_spent_budget() {
    let mut h = loaded(9, 9);
    let mut got = [0; 3];
    for _ in 0..3 {
        let (seen, _) = polls(&mut h, 6);
        assert_eq!(seen.iter().map(|s| s.1).sum::<usize>(), 6);
        seen.iter().for_each(|s| got[s.0 as usize] += s.1);
        assert!(got[1].abs_diff(got[2]) <= 4, "neither starves: {got:?}");
    }
    assert_eq!(got, [0, 9, 9]);
    assert_eq!(polls(&mut h, 6), (Vec::new(), false));
    h.turn();
    h.assert_home();
}
