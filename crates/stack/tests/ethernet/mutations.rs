//! Whatever the bytes are: no panic, bounded tables, every skb with a reason, and the shard lives on.
//!
//! Frames begin as messages that mean something (ARP, discovery, advertisements of routers, queries, pings), then bytes are
//! changed, cut off or repeated; checksums are repaired so that the changes get past them. Between frames time passes and
//! the shard sends, so that claims meet entries in every state.

use std::net::Ipv6Addr;

use linerate_base::{DropReason, Rng};
use linerate_wire::ethernet::ethertype;
use linerate_wire::ndisc::{PrefixInfo, RouterAdvert, RouterPref};
use linerate_wire::{ArpOp, MacAddr, NdOption, NdOptions, NdiscRepr, checksum, ipv4};
use proptest::prelude::*;

use crate::lab::{EVIL, Lab, OWN, PEER, arp, eth, group, nd, ping, who_has};

fn a(s: &str) -> Ipv6Addr {
    s.parse().unwrap()
}

fn router_advert(rng: &mut Rng) -> Vec<u8> {
    let prefix = PrefixInfo {
        prefix_len: 64,
        on_link: true,
        autonomous: true,
        valid_s: rng.below(9000) as u32,
        preferred_s: rng.below(100) as u32,
        prefix: Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(rng.below(30)) << 64),
    };
    let options = [NdOption::SourceLla(EVIL), NdOption::Mtu(1300), NdOption::Prefix(prefix)];
    let mut bytes = vec![0; 48];
    let mut at = 0;
    for o in &options {
        o.emit(&mut bytes[at..]);
        at += o.emit_len();
    }
    let ra = RouterAdvert {
        hop_limit: 3,
        managed: false,
        other: true,
        pref: RouterPref::High,
        lifetime_s: rng.below(100) as u16,
        reachable_ms: rng.below(3) as u32 * 1000,
        retrans_ms: rng.below(2) as u32 * 500,
        options: NdOptions::new_checked(&bytes).unwrap(),
    };
    nd(group("ff02::1"), EVIL, "fe80::66", "ff02::1", &NdiscRepr::RouterAdvert(ra))
}

fn message(rng: &mut Rng) -> Vec<u8> {
    let who = ["fd00::2", "fd00::3", "fd00::1", "fe80::ff:fe00:1"][rng.below(4) as usize];
    let mac = [PEER, EVIL, OWN, MacAddr::BROADCAST][rng.below(4) as usize];
    let v4 = ["10.0.0.2", "10.0.0.3", "10.0.0.1", "0.0.0.0"][rng.below(4) as usize];
    let (flag, replace) = (rng.chance(0.5), rng.chance(0.5));
    match rng.below(8) {
        0 => who_has(mac, v4, "10.0.0.1"),
        1 => arp(OWN, mac, ArpOp::Reply, v4.parse().unwrap(), "10.0.0.1".parse().unwrap(), OWN),
        2 => who_has(mac, v4, v4),
        3 => {
            let msg =
                NdiscRepr::NeighborAdvert { router: flag, solicited: !flag, replace, target: a(who), lla: Some(mac) };
            nd(OWN, mac, who, "fd00::1", &msg)
        }
        4 => {
            let msg = NdiscRepr::NeighborSolicit { target: a("fd00::1"), lla: flag.then_some(mac), nonce: None };
            let src = if flag { who } else { "::" };
            nd(group("ff02::1:ff00:1"), mac, src, "ff02::1:ff00:1", &msg)
        }
        5 => router_advert(rng),
        6 => ping(OWN, mac, v4, "10.0.0.1"),
        _ => ping(OWN, mac, who, "fd00::1"),
    }
}

/// Changes a few bytes, and makes IPv4 header and ICMPv6 checksums right again most of the time.
fn mutate(rng: &mut Rng, f: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        let at = rng.below(f.len() as u64) as usize;
        f[at] = [0, 0xff, 1, 0x80, rng.next_u32() as u8][rng.below(5) as usize];
    }
    match rng.below(12) {
        0 => f.truncate(rng.below(f.len() as u64) as usize),
        1 => f.extend_from_within(f.len() / 2..),
        2 => f.resize(f.len() + rng.below(1400) as usize, 0x55),
        _ => {}
    }
    if rng.chance(0.8) && f.len() >= 34 && f[12..14] == [8, 0] && f[14] == 0x45 {
        ipv4::fill_checksum(&mut f[14..34]);
    }
    if rng.chance(0.8) && f.len() >= 62 && f[12..14] == [0x86, 0xdd] && f[20] == 58 {
        let len = usize::from(u16::from_be_bytes([f[18], f[19]]));
        let (src, dst) = (f[22..38].first_chunk::<16>().unwrap(), f[38..54].first_chunk::<16>().unwrap());
        let pseudo = checksum::pseudo_v6(&(*src).into(), &(*dst).into(), 58, len as u32);
        if let Some(body) = f.get_mut(54..54 + len).filter(|b| b.len() >= 4) {
            body[2..4].fill(0);
            let sum = checksum::finish(checksum::combine(pseudo, checksum::sum(body)));
            body[2..4].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_link_may_say_what_it_likes(seed in any::<u64>(), verify in any::<bool>(), trials in any::<bool>()) {
        let mut rng = Rng::new(seed);
        let mut l = Lab::with(|s, d| {
            s.seed = seed;
            s.neigh.verify_change = verify;
            s.neigh.gc_thresh = [4, 16, 32];
            d.ipv6.accept_ra = true;
            d.ipv6.dad_transmits = u8::from(trials);
        });
        for addr in ["10.0.0.1/24", "fd00::1/64"] {
            l.s.add_address(l.dev, addr.parse().unwrap()).unwrap();
        }
        let sockets = [l.udp(false), l.udp(true)];
        for _ in 0..400 {
            let mut f = message(&mut rng);
            mutate(&mut rng, &mut f);
            l.inject(f);
            if rng.chance(0.1) {
                let n = 2 + rng.below(60);
                let (id, to) = if rng.chance(0.5) { (0, format!("10.0.0.{n}:9")) } else { (1, format!("[fd00::{n:x}]:9")) };
                // May fail: addresses and routes come and go.
                let _ = l.s.send_to(sockets[id], b"x", Some(to.parse().unwrap()), Default::default());
            }
            if rng.chance(0.2) {
                l.pass(rng.below(7000));
            }
            prop_assert!(l.s.neighbours().count() <= 64);
            prop_assert!(l.s.device(l.dev).unwrap().addrs().len() <= 2 + 1 + 16);
        }
        l.take();
        l.s.check_invariants();
        prop_assert_eq!(l.drops(DropReason::NotSpecified), 0);
        // Whoever asks properly is answered properly.
        let outs = l.answer(who_has(MacAddr([2, 0, 0, 0, 0, 0x77]), "10.0.0.77", "10.0.0.1"));
        prop_assert!(outs.iter().any(|o| o.eth.ethertype == ethertype::ARP && o.eth.dst.0[5] == 0x77), "{:?}", outs);
        for id in sockets {
            l.s.close(id).unwrap();
        }
        // Resolutions at the slowest rate that a router may set, and fragments that wait for others.
        l.pass(200_000);
        l.take();
        l.s.assert_quiescent();
    }
}

/// Frames shorter than anything, and longer than they should be.
#[test]
fn every_length_of_every_message() {
    let mut rng = Rng::new(5);
    let mut l = Lab::v6();
    l.s.add_address(l.dev, "10.0.0.1/24".parse().unwrap()).unwrap();
    for _ in 0..64 {
        let f = message(&mut rng);
        for n in 0..=f.len() {
            l.inject(f[..n].to_vec());
        }
        l.take();
    }
    l.inject(eth(OWN, PEER, ethertype::ARP, &[0; 1486]));
    l.take();
    l.s.check_invariants();
}
