//! Two shards over a wire of plain frames: conversations from SYN to TIME-WAIT in virtual time.
//!
//! The wire is as simple as a device can be: it can neither cut nor sum nor merge, carries byte vectors in order, and may
//! be told to lose frames. So every conversation passes through software GSO, checksums and GRO.

use std::boxed::Box;
use std::collections::VecDeque;
use std::string::ToString;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use linerate_arch::Kernels;
use linerate_base::{Duration, Instant};
use linerate_netdev::{Features, IfIndex, Qstats, RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_skb::SkbBatch;
use linerate_tcp::{SockOpts, TcpConfig};

use crate::{BindOpts, DeviceConfig, Shard, SockId, StackConfig};

mod close;
mod connect;
mod icmp;
mod listen;
mod memory;
mod mtu;
mod transfer;

/// One direction of the wire.
#[derive(Default)]
pub(crate) struct Pipe {
    pub(crate) frames: VecDeque<Vec<u8>>,
    /// Frames that vanish, counted down.
    pub(crate) lose: usize,
    /// Not 0: frames longer than this vanish, and nobody says so.
    pub(crate) black_hole_bytes: u32,
    pub(crate) carried: u64,
}

pub(crate) type SharedPipe = Arc<Mutex<Pipe>>;

struct Rx(SharedPipe);
struct Tx {
    pipe: SharedPipe,
    features: Features,
    done: TxDone,
}

impl RxQueue for Rx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let mut pipe = self.0.lock().unwrap();
        let mut n = 0;
        while n < budget {
            let Some(frame) = pipe.frames.pop_front() else { break };
            let mut skb = cx.skbs.alloc().expect("descriptors");
            let (head, rest) = frame.split_at(frame.len().min(128));
            skb.reset_head(0);
            assert!(skb.put_head_from(head));
            if !rest.is_empty() {
                let mut page = cx.pool.alloc().expect("pages");
                let frag = page.append(&Kernels::portable(), rest).expect("a frame fits a page");
                cx.pool.recycle_page(page);
                skb.push_frag(frag).expect("one fragment");
            }
            skb.tstamp = cx.now;
            out.push(skb);
            n += 1;
        }
        n
    }
    fn irq_enable(&mut self) -> bool {
        !self.0.lock().unwrap().frames.is_empty()
    }
    fn irq_disable(&mut self) {}
    fn qstats(&self) -> Qstats {
        Qstats::default()
    }
}

impl TxQueue for Tx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut pipe = self.pipe.lock().unwrap();
        let mut n = 0;
        while let Some(skb) = batch.pop_front() {
            pipe.carried += 1;
            if pipe.lose > 0 {
                pipe.lose -= 1;
                cx.drops.count(linerate_base::DropReason::WireLoss);
            } else if pipe.black_hole_bytes != 0 && skb.len() > pipe.black_hole_bytes {
                cx.drops.count(linerate_base::DropReason::WireLoss);
            } else {
                pipe.frames.push_back(skb.to_vec());
            }
            self.done.push(skb.tx_done, skb.truesize);
            cx.skbs.free(skb, cx.pool);
            n += 1;
        }
        n
    }
    fn kick(&mut self, _: &mut TxCx<'_>) {}
    fn poll_tx(&mut self, _: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        let n = self.done.skbs();
        for (token, bytes) in self.done.drain() {
            done.push(token, bytes);
        }
        n
    }
    fn features(&self) -> &Features {
        &self.features
    }
    fn qstats(&self) -> Qstats {
        Qstats::default()
    }
}

pub(crate) const A: &str = "10.0.0.1";
pub(crate) const B: &str = "10.0.0.2";

/// Two shards and the wire between them.
pub(crate) struct Net {
    pub(crate) a: Shard,
    pub(crate) b: Shard,
    /// From a to b, from b to a.
    pub(crate) wires: [SharedPipe; 2],
    pub(crate) now: Instant,
}

fn shard(tcp: TcpConfig, seed: u64, rx: &SharedPipe, tx: &SharedPipe, addrs: [&str; 2]) -> Shard {
    let mut cfg = StackConfig { seed, max_skbs: 100_000, ..StackConfig::default() };
    cfg.tcp = tcp;
    let mut s = Shard::new(cfg);
    let dev = s.add_device(DeviceConfig::new("wire0".to_string(), 1500)).unwrap();
    let features = Features::plain(1500);
    let tx = Tx { pipe: tx.clone(), features, done: TxDone::new() };
    s.attach(dev, 0, Box::new(Rx(rx.clone())), Box::new(tx)).unwrap();
    for addr in addrs {
        s.add_address(dev, addr.parse().unwrap()).unwrap();
    }
    s
}

impl Net {
    pub(crate) fn new() -> Self {
        Self::with(TcpConfig::default(), TcpConfig::default())
    }
    pub(crate) fn with(a: TcpConfig, b: TcpConfig) -> Self {
        let wires = [SharedPipe::default(), SharedPipe::default()];
        Self {
            a: shard(a, 1, &wires[1], &wires[0], ["10.0.0.1/24", "fd00::1/64"]),
            b: shard(b, 2, &wires[0], &wires[1], ["10.0.0.2/24", "fd00::2/64"]),
            wires,
            now: Instant::from_secs(1),
        }
    }
    /// Turns both ends once and checks what must hold.
    pub(crate) fn turn(&mut self) -> (crate::Turn, crate::Turn) {
        let turns = (self.a.turn(self.now, 256), self.b.turn(self.now, 256));
        self.a.check_invariants();
        self.b.check_invariants();
        turns
    }
    /// Turns until nothing happens at this point of time.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            let (a, b) = self.turn();
            let quiet = |t: crate::Turn| t.rx_skbs == 0 && t.tx_skbs == 0 && !t.more;
            if quiet(a) && quiet(b) {
                return;
            }
        }
        panic!("the conversation does not come to rest");
    }
    /// Lets `ms` milliseconds pass, from deadline to deadline.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        loop {
            self.settle();
            let (a, b) = self.turn();
            let next = a.next.into_iter().chain(b.next).min();
            match next.filter(|at| *at < end) {
                Some(at) => self.now = at.max(self.now + Duration::from_micros(10)),
                None => break,
            }
        }
        self.now = end;
        self.settle();
    }
    /// b listens on `port`.
    pub(crate) fn listen(&mut self, port: u16, backlog: u32) -> SockId {
        let at = std::format!("{B}:{port}").parse().unwrap();
        self.b.tcp_listen(at, backlog, &SockOpts::default(), BindOpts::default()).unwrap()
    }
    /// a connects to b's `port`.
    pub(crate) fn connect(&mut self, port: u16) -> SockId {
        let at = std::format!("{B}:{port}").parse().unwrap();
        self.a.tcp_connect(at, None, &SockOpts::default()).unwrap()
    }
    /// An established connection: a's end, b's end.
    pub(crate) fn pair(&mut self) -> (SockId, SockId) {
        let l = self.listen(80, 8);
        let c = self.connect(80);
        self.settle();
        let s = self.b.accept(l).expect("accepted");
        self.b.close(l).unwrap();
        (c, s)
    }
    /// Lets everything run out and checks that nothing is left.
    pub(crate) fn finish(&mut self) {
        self.pass(400_000);
        self.a.assert_quiescent();
        self.b.assert_quiescent();
    }
}

/// All events of a shard, by socket.
pub(crate) fn events(s: &mut Shard) -> Vec<(SockId, crate::Ready)> {
    core::iter::from_fn(|| s.next_ready()).collect()
}

/// A stream whose byte at any place is known.
pub(crate) fn byte_at(i: u64) -> u8 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The device of the wire.
pub(crate) const WIRE: IfIndex = IfIndex(2);
