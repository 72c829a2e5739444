use std::vec;
use std::vec::Vec;

use linerate_base::DropReason;
use linerate_netdev::TxDone;
use linerate_wire::IpRepr;

use super::*;
use crate::config::StackConfig;
use crate::napi;
use crate::testing::{Dev, Host};
use crate::udp::SendOpts;

#[test]
fn full_qdisc_is_local_congestion_and_order_is_kept() {
    let cfg = StackConfig { qdisc_limit_skbs: 5, ..StackConfig::default() };
    let mut h = Host::with(cfg, Dev { ring: 3, ..Dev::plain() }, &["10.0.0.1/24"]);
    let id = h.udp.socket(&h.core, false);
    let to = "10.0.0.2:7".parse().unwrap();
    for i in 0..10u8 {
        assert_eq!(h.udp.send_to(&mut h.core, id, &[i], Some(to), SendOpts::default()), Ok(1), "as Linux");
    }
    assert_eq!((h.drops(DropReason::QdiscDrop), h.core.mibs.ip.out_discards, h.core.mibs.udp.sndbuf_errors), (5, 5, 5));
    let mut seen = vec![];
    h.turn();
    assert!(h.core.links.work_pending(), "the ring takes three");
    while h.tx.len() != 0 {
        seen.extend(h.tx.take().iter().map(|f| f[28]));
        h.turn();
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    assert_eq!((h.core.mibs.ip.out_requests, h.core.mibs.ip.out_transmits, h.core.mibs.udp.out_datagrams), (10, 5, 5));
    h.assert_home();
}

#[test]
fn frames_of_a_train_have_consecutive_identifications() {
    let mut h = Host::new(1);
    let id = h.udp.socket(&h.core, false);
    let opts = SendOpts { gso_size: Some(100), tos: Some(0xb8), ..SendOpts::default() };
    h.udp.send_to(&mut h.core, id, &[1; 950], Some("10.0.0.2:7".parse().unwrap()), opts).unwrap();
    h.udp.send_to(&mut h.core, id, &[1; 100], Some("10.0.0.2:7".parse().unwrap()), opts).unwrap();
    h.turn();
    let heads: Vec<IpRepr> = h.tx.take().iter().map(|f| IpRepr::parse(f).unwrap().0).collect();
    assert_eq!(heads.len(), 11);
    assert!(heads.iter().all(|r| r.tos == 0xb8 && r.hop_limit == 64 && r.dont_frag));
    assert!(heads.windows(2).all(|w| w[1].ident == w[0].ident.wrapping_add(1)), "{heads:?}");
}

#[test]
fn too_long_for_the_device_is_refused() {
    let mut h = Host::new(1);
    let route = h.core.links.route("10.0.0.2".parse().unwrap(), None, None, h.core.now).unwrap();
    let mut skb = h.core.mem.skbs.alloc().unwrap();
    let mut page = h.core.mem.tx_pool.alloc().unwrap();
    skb.push_frag(page.append(&h.core.kernels, &[0; 1481]).unwrap()).unwrap();
    h.core.mem.tx_pool.recycle_page(page);
    let tx = IpTx::new(&route, "10.0.0.2".parse().unwrap(), 99);
    assert_eq!(xmit(&mut h.core, skb, &tx), Xmit::TooBig { mtu_bytes: 1500 });
    assert_eq!((h.drops(DropReason::PktTooBig), h.core.mibs.ip.frag_fails), (1, 1));
    h.assert_home();
}

#[test]
fn a_removed_device_reports_what_it_held() {
    let mut h = Host::new(1);
    let id = h.udp.socket(&h.core, false);
    for _ in 0..4 {
        h.udp.send_to(&mut h.core, id, &[1; 100], Some("10.0.0.2:7".parse().unwrap()), SendOpts::default()).unwrap();
    }
    let mut done = TxDone::new();
    del_device(&mut h.core, h.dev, &mut done).unwrap();
    assert_eq!((done.skbs(), h.drops(DropReason::Shutdown)), (4, 4));
    for (token, bytes) in done.drain() {
        h.udp.on_tx_done(&mut h.ready, crate::SockId::from_u64(token.0), bytes);
    }
    let gone = h.udp.send_to(&mut h.core, id, b"x", Some("10.0.0.2:7".parse().unwrap()), SendOpts::default());
    assert_eq!(gone, Err(crate::udp::UdpSendError::NoRoute));
    assert!(!h.core.links.is_local("10.0.0.1".parse().unwrap()));
    assert!(!napi::arm(&mut h.core));
    h.assert_home();
}

#[test]
fn arming_tells_of_work_that_came_meanwhile() {
    let mut h = Host::new(1);
    assert!(!napi::arm(&mut h.core));
    h.rx.push(vec![0; 40]);
    assert!(napi::arm(&mut h.core));
    h.turn();
    assert!(!napi::arm(&mut h.core));
}

#[test]
fn a_device_of_few_fragments_gets_few() {
    let mut dev = Dev::plain();
    dev.features.max_frags = 1;
    let mut h = Host::numbered(1, dev);
    let route = h.core.links.route("10.0.0.2".parse().unwrap(), None, None, h.core.now).unwrap();
    let mut skb = h.core.mem.skbs.alloc().unwrap();
    let mut want = vec![];
    for i in 0..9u8 {
        let mut page = h.core.mem.tx_pool.alloc().unwrap();
        let bytes = [i; 100];
        want.extend_from_slice(&bytes);
        skb.push_frag(page.append(&h.core.kernels, &bytes).unwrap()).unwrap();
        h.core.mem.tx_pool.recycle_page(page);
    }
    assert_eq!(skb.nr_frags(), 9);
    assert!(xmit(&mut h.core, skb, &IpTx::new(&route, "10.0.0.2".parse().unwrap(), 99)).is_ok());
    let (f, mut done) = (*h.core.links.device(h.dev).unwrap().features(), TxDone::new());
    let Core { links, mem, mibs, kernels, .. } = &mut h.core;
    let mut cx = OffloadCx { skbs: &mut mem.skbs, pool: &mut mem.tx_pool, kernels, drops: &mut mibs.drops };
    let q = &mut links.dev_mut(h.dev).unwrap().queues[0];
    let skb = q.qdisc.dequeue().unwrap();
    stage(skb, &f, &mut cx, &mut q.staged, &mut done);
    assert!(q.staged.iter().all(|s| s.nr_frags() == 1));
    h.turn();
    assert_eq!(h.tx.take()[0][20..], want);
    h.assert_home();
}
