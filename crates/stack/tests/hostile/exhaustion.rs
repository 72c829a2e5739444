//! Pools, rings, queues and budgets that are far too small.
//!
//! Two honest shards talk over a good wire while one of them starves. Nothing may be lost in silence: what dies is counted
//! under its reason, retransmission repairs it, and when the resource returns everything is at home again. So each case
//! ends with whole streams in both directions and with empty books.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use linerate_base::{DropReason, Instant};
use linerate_skb::PoolConfig;
use linerate_stack::udp::{RecvFlags, SendOpts};
use linerate_stack::{DeviceConfig, Shard, SockId, SockOpts, StackConfig};

use crate::lab::{Carrier, Lab, PORT, Setup, assert_stream, stream};

/// Two shards: the first starves, the second does not.
pub(crate) struct Duo {
    pub(crate) a: Lab,
    pub(crate) b: Lab,
}

/// Hands frames on as they are.
pub(crate) fn faithful(frame: Vec<u8>, out: &mut dyn FnMut(Vec<u8>)) {
    out(frame);
}

/// One end's application: writes all of `text`, reads all that comes.
pub(crate) struct App {
    pub(crate) id: Option<SockId>,
    pub(crate) text: Vec<u8>,
    pub(crate) written: usize,
    pub(crate) got: Vec<u8>,
}

impl App {
    pub(crate) fn new(id: Option<SockId>, text: Vec<u8>) -> Self {
        Self { id, text, written: 0, got: Vec::new() }
    }
    pub(crate) fn serve(&mut self, lab: &mut Lab) {
        let Some(id) = self.id else { return };
        while self.written < self.text.len() {
            match lab.s.write(id, &self.text[self.written..]) {
                Ok(n) => self.written += n,
                Err(_) => break,
            }
        }
        let got = lab.read(id);
        self.got.extend(got);
    }
}

impl Duo {
    pub(crate) fn new(a: Setup) -> Self {
        let mut b = Setup { host: 2, ..Setup::default() };
        b.cfg.seed = 99;
        Self { a: Lab::with(a), b: Lab::with(b) }
    }
    /// Everything that happens now.
    pub(crate) fn exchange(&mut self, apps: &mut [App; 2], carrier: &mut Carrier<'_>) -> bool {
        let mut moved = false;
        for _ in 0..200 {
            self.a.rest();
            self.b.rest();
            if apps[1].id.is_none() {
                apps[1].id = self.b.s.accept(self.b.listener).ok();
            }
            apps[0].serve(&mut self.a);
            apps[1].serve(&mut self.b);
            let n = self.a.carry(&mut self.b, carrier) + self.b.carry(&mut self.a, carrier);
            if n == 0 {
                break;
            }
            moved = true;
        }
        self.a.s.check_invariants();
        self.b.s.check_invariants();
        moved
    }
    /// Time goes on to the next deadline of either.
    pub(crate) fn step(&mut self) {
        let next = [&mut self.a, &mut self.b].map(|l| l.s.turn(l.now, 64).next);
        let least = self.a.now + linerate_base::Duration::from_millis(1);
        let now = next.into_iter().flatten().min().unwrap_or(least).max(least);
        (self.a.now, self.b.now) = (now, now);
    }
}

/// `a` connects to `b`, both send `len` bytes to each other, and both get them, within some virtual minutes.
fn starve(setup: Setup, len: usize) -> Duo {
    let mut duo = Duo::new(setup);
    let peer = format!("10.0.0.2:{PORT}").parse().unwrap();
    let id = duo.a.s.tcp_connect(peer, None, &SockOpts::default()).unwrap();
    let texts = [stream(1, len), stream(2, len)];
    let mut apps = [App::new(Some(id), texts[0].clone()), App::new(None, texts[1].clone())];
    for _ in 0..20_000 {
        duo.exchange(&mut apps, &mut faithful);
        if apps[0].got.len() >= len && apps[1].got.len() >= len {
            break;
        }
        duo.step();
    }
    assert_stream(&apps[1].got, &texts[0]);
    assert_stream(&apps[0].got, &texts[1]);
    for (lab, app) in [(&mut duo.a, &apps[0]), (&mut duo.b, &apps[1])] {
        lab.s.close(app.id.unwrap()).unwrap();
    }
    for _ in 0..200 {
        duo.exchange(&mut apps, &mut faithful);
        duo.step();
    }
    duo
}

/// The starved one's drops are of these reasons only, and all memory comes home.
fn settle(duo: Duo, reasons: &[DropReason]) {
    for (reason, n) in duo.a.s.mibs().drops.iter() {
        assert!(reasons.contains(&reason), "{n} skbs dropped as {}", reason.name());
    }
    assert!(duo.a.s.mibs().drops.total() > 0, "it did not starve");
    duo.a.finish();
    duo.b.finish();
}

/// What retransmission brings twice.
const AGAIN: [DropReason; 3] = [DropReason::TcpOldData, DropReason::TcpOfoMerge, DropReason::TcpInvalidSequence];
/// What the shard takes back from its own connections.
const SHED: DropReason = DropReason::TcpOfoQueuePrune;

#[test]
fn few_descriptors() {
    for max_skbs in [6, 8, 12, 20] {
        let duo = starve(Setup::with(|c| c.max_skbs = max_skbs), 60_000);
        settle(duo, &[DropReason::NoMem, SHED, AGAIN[0], AGAIN[1], AGAIN[2]]);
    }
}

#[test]
fn few_receive_pages() {
    for rx_pages in [1, 2, 5] {
        let duo = starve(Setup { rx_pages, ..Setup::default() }, 60_000);
        settle(duo, &[DropReason::NoMem, SHED, AGAIN[0], AGAIN[1], AGAIN[2]]);
    }
}

#[test]
fn few_transmit_pages() {
    for max_pages in [1, 2, 3] {
        let tx_pool = PoolConfig { page_shift: 12, max_pages, cache_pages: 1 };
        let duo = starve(Setup::with(|c| c.tx_pool = tx_pool), 60_000);
        // Writers wait for pages; nobody loses anything.
        assert_eq!(duo.a.s.mibs().drops.iter().collect::<Vec<_>>(), []);
        duo.a.finish();
        duo.b.finish();
    }
}

#[test]
fn a_short_qdisc_behind_a_stuck_ring() {
    let mut lab = Lab::with(Setup::with(|c| c.qdisc_limit_skbs = 2));
    let (mut flow, id) = lab.flow(crate::lab::Peer::v4());
    lab.room.store(0, Ordering::Relaxed);
    let text = stream(5, 100_000);
    assert_eq!(lab.s.write(id, &text), Ok(100_000));
    lab.pass(20_000);
    assert!(lab.take().is_empty());
    assert!(lab.s.device(lab.dev).unwrap().backlog_skbs() <= 2 + 64, "the queue has its limit");
    // Whatever the ring's width then: everything arrives.
    for room in [1, 1, 3, 7, usize::MAX] {
        lab.room.store(room, Ordering::Relaxed);
        lab.rest();
        lab.s.check_invariants();
    }
    lab.pass(30_000);
    assert_stream(&flow.gather(&mut lab), &text);
    lab.finish();
}

#[test]
fn a_ring_of_one_frame() {
    let mut duo = Duo::new(Setup::with(|c| c.qdisc_limit_skbs = 3));
    let peer = format!("10.0.0.2:{PORT}").parse().unwrap();
    let id = duo.a.s.tcp_connect(peer, None, &SockOpts::default()).unwrap();
    let texts = [stream(1, 100_000), stream(2, 100_000)];
    let mut apps = [App::new(Some(id), texts[0].clone()), App::new(None, texts[1].clone())];
    for _ in 0..100_000 {
        duo.a.room.store(1, Ordering::Relaxed);
        duo.exchange(&mut apps, &mut faithful);
        if apps.iter().all(|app| app.got.len() >= 100_000) {
            break;
        }
        duo.step();
    }
    assert_stream(&apps[1].got, &texts[0]);
    assert_stream(&apps[0].got, &texts[1]);
    duo.a.finish();
    duo.b.finish();
}

#[test]
fn a_small_budget_of_tcp_memory() {
    for budget in [8 << 10, 20 << 10, 64 << 10] {
        let duo = starve(Setup::with(|c| c.tcp_mem_bytes = [budget / 4, budget / 2, budget]), 60_000);
        for (reason, n) in duo.a.s.mibs().drops.iter() {
            let known = [DropReason::ProtoMem, SHED, AGAIN[0], AGAIN[1], AGAIN[2]];
            assert!(known.contains(&reason), "{n} skbs dropped as {}", reason.name());
        }
        duo.a.finish();
        duo.b.finish();
    }
}

/// One peer fills every descriptor with segments behind a gap. The shard takes them back, and others go on.
#[test]
fn a_hog_of_descriptors_is_shed() {
    let mut lab = Lab::with(Setup::with(|c| c.max_skbs = 40));
    let (mut hog, hog_id) = lab.flow(crate::lab::Peer::v4());
    let (mut flow, id) = lab.flow(crate::lab::Peer::v4());
    let start = hog.seq;
    for round in 0..20 {
        for at in 0..60 {
            lab.send(hog.data_frame(1 + at * 300, &[1; 200]));
        }
        assert!(lab.drops(DropReason::NoMem) > 0, "the hog fills the shard");
        let data = stream(flow.seq, 700);
        let got = (0..3).any(|_| {
            // As an honest peer retransmits.
            lab.pass(200);
            lab.send(flow.data_frame(0, &data));
            lab.read(id) == data
        });
        assert!(got, "round {round}: the honest peer is starved");
        flow.seq += 700;
    }
    assert!(lab.drops(SHED) > 0 && lab.s.mibs().tcp.memory_pressures > 0);
    lab.s.check_invariants();
    // The hog's own stream is whole when it behaves.
    for part in stream(start, 18_000).chunks(1000) {
        hog.send_data(&mut lab, part);
        lab.read(hog_id);
    }
    let counted = lab.s.info(hog_id).unwrap().bytes_received;
    assert!(counted >= 18_000, "{counted} bytes");
    lab.s.abort(id).unwrap();
    lab.s.abort(hog_id).unwrap();
    lab.prove_alive();
    lab.finish();
}

/// A shard behind one end of a software NIC, with a UDP socket, and how often its bell was rung.
fn behind_nic(mut nic: linerate_softnic::Nic, n: u8) -> (Shard, SockId, Arc<AtomicUsize>) {
    let rung = Arc::new(AtomicUsize::new(0));
    let bell = rung.clone();
    nic.set_waker(
        0,
        Arc::new(move || {
            bell.fetch_add(1, Ordering::Relaxed);
        }),
    );
    let mut s = Shard::new(StackConfig::default());
    let dev = s.add_device(DeviceConfig::new("nic0", 1500)).unwrap();
    let (rx, tx) = nic.take_queue(0).unwrap();
    s.attach(dev, 0, rx, tx).unwrap();
    s.add_address(dev, format!("10.0.0.{n}/24").parse().unwrap()).unwrap();
    let id = s.udp_bind(format!("10.0.0.{n}:9").parse().unwrap(), Default::default()).unwrap();
    (s, id, rung)
}

#[test]
fn a_full_ring_is_waited_for_and_not_asked_again_and_again() {
    let nic = linerate_softnic::NicConfig { ring_slots: 256, ..Default::default() };
    let (a, b) = linerate_softnic::pair(&nic, &nic);
    let ((mut a, from, rung), (mut b, at, _)) = (behind_nic(a, 1), behind_nic(b, 2));
    b.udp_mut().opts_mut(at).unwrap().rcvbuf_bytes = u32::MAX;
    let (mut sent, mut got) = (0, 0);
    let to = Some("10.0.0.2:9".parse().unwrap());
    for round in 1..=20 {
        let now = Instant::from_millis(round);
        while a.send_to(from, b"one of many", to, SendOpts::default()).is_ok() {
            sent += 1;
        }
        // The first turn fills the ring; what is left in the qdisc is no reason to turn again.
        a.turn(now, 64);
        let turn = a.turn(now, 64);
        assert!(!turn.more && turn.tx_skbs == 0, "{turn:?}");
        // The word that there was room the last time may still be unread: it is news once.
        if !a.prepare_sleep() {
            assert!(!a.turn(now, 64).more);
            assert!(a.prepare_sleep(), "nothing to do until the far side has taken something");
        }
        let before = rung.load(Ordering::Relaxed);
        while b.turn(now, 64).rx_skbs > 0 {}
        assert_eq!(rung.load(Ordering::Relaxed), before + 1, "and then it rings, once");
        while b.recv_from(at, &mut [0; 64], RecvFlags::default()).is_ok() {
            got += 1;
        }
        assert!(a.turn(now, 64).tx_skbs > 0, "the sender goes on");
    }
    for ms in 21..200 {
        a.turn(Instant::from_millis(ms), 64);
        b.turn(Instant::from_millis(ms), 64);
        while b.recv_from(at, &mut [0; 64], RecvFlags::default()).is_ok() {
            got += 1;
        }
    }
    assert!(sent > 1000, "{sent}");
    assert_eq!(got, sent, "nothing was lost");
}

#[test]
fn a_sleeper_learns_of_room_that_came_before_it_slept() {
    let nic = linerate_softnic::NicConfig { ring_slots: 256, ..Default::default() };
    let (a, b) = linerate_softnic::pair(&nic, &nic);
    let ((mut a, from, rung), (mut b, ..)) = (behind_nic(a, 1), behind_nic(b, 2));
    let (now, to) = (Instant::from_millis(1), Some("10.0.0.2:9".parse().unwrap()));
    while a.send_to(from, b"one of many", to, SendOpts::default()).is_ok() {}
    a.turn(now, 64);
    while b.turn(now, 64).rx_skbs > 0 {}
    assert_eq!(rung.load(Ordering::Relaxed), 0, "nobody slept");
    assert!(!a.prepare_sleep(), "there is room");
    assert!(a.turn(now, 64).tx_skbs > 0);
}
