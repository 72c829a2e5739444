//! Drops that only an Ethernet device knows.
//!
//! The laboratory of the Ethernet tests is used as it is; each situation is played once and checked to be counted once, alone.

use linerate_base::DropReason;
use linerate_wire::NdiscRepr;

use ether::{EVIL, Lab, OWN, PEER, nd_with, ping};

#[path = "../ethernet/lab.rs"]
#[allow(dead_code, reason = "these few situations use a part of it")]
mod ether;

fn counted(l: &Lab, reason: DropReason) {
    let drops = &l.s.mibs().drops;
    assert_eq!((drops.get(reason), drops.total()), (1, 1), "{:?}", drops.iter().collect::<Vec<_>>());
}

pub(crate) fn other_host() {
    let mut l = Lab::v4();
    l.answer(ping(EVIL, PEER, "10.0.0.2", "10.0.0.1"));
    counted(&l, DropReason::OtherHost);
}

pub(crate) fn neigh_create_fail() {
    let mut l = Lab::with(|s, _| s.neigh.gc_thresh = [1, 1, 1]);
    l.s.add_address(l.dev, "10.0.0.1/24".parse().unwrap()).unwrap();
    let u = l.udp(false);
    l.send_to(u, "10.0.0.2:9", b"waits");
    assert!(l.s.send_to(u, b"has no place", Some("10.0.0.3:9".parse().unwrap()), Default::default()).is_ok());
    counted(&l, DropReason::NeighCreateFail);
}

pub(crate) fn neigh_failed() {
    let mut l = Lab::v4();
    let u = l.udp(false);
    l.send_to(u, "10.0.0.2:9", b"nobody is there");
    l.pass(5000);
    counted(&l, DropReason::NeighFailed);
}

pub(crate) fn neigh_queue_full() {
    let mut l = Lab::with(|s, _| s.neigh.unres_qlen_bytes = 1);
    l.s.add_address(l.dev, "10.0.0.1/24".parse().unwrap()).unwrap();
    let u = l.udp(false);
    l.send_to(u, "10.0.0.2:9", b"the oldest");
    l.send_to(u, "10.0.0.2:9", b"the newest");
    counted(&l, DropReason::NeighQueueFull);
}

pub(crate) fn ndisc_invalid() {
    let mut l = Lab::v6();
    let ns = NdiscRepr::NeighborSolicit { target: "fd00::1".parse().unwrap(), lla: Some(PEER), nonce: None };
    l.answer(nd_with(OWN, PEER, "fd00::2", "fd00::1", &ns, 64));
    counted(&l, DropReason::NdiscInvalid);
}
