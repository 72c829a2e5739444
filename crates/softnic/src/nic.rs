//! Two NICs and the wire between them.
//!
//! [`pair`] wires queue `i` of one NIC to queue `i` of the other with a ring in each direction. The queues are taken out
//! once, to be attached to shards (which may run on different threads); the [`Nic`] stays with whoever set it up, and
//! keeps what is needed from outside afterwards: statistics and wakers. Dropping a queue closes its ring: the far side's
//! frames then end with `Shutdown`. Spreading flows over queues is the sender's choice of queue in this version.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linerate_netdev::{FaultInjector, FaultyLine, Features, FrameFrags, RxQueue, TxQueue};
use linerate_offload::{Gro, GroConfig};
use linerate_skb::SkbBatch;
use linerate_skb::spsc::{Consumer, Producer, channel};

use crate::config::{CsumOffload, Dma, ETHERNET_HEADER_LEN, NicConfig};
use crate::irq::{Bell, Irq, Wake};
use crate::rx::{Engine, SoftRx};
use crate::slot::{Assembler, Slot};
use crate::stats::{HwTime, NicStats, Published};
use crate::tx::SoftTx;

/// One queue pair, to be attached to a shard.
pub type QueuePair = (Box<dyn RxQueue + Send>, Box<dyn TxQueue + Send>);

/// One end of the wire.
pub struct Nic {
    features: Features,
    queues: Vec<Option<QueuePair>>,
    /// By queue: where the far side's two bells for us fetch our waker.
    wakers: Vec<[Producer<Arc<dyn Wake>>; 2]>,
    stats: NicStats,
}

impl Nic {
    /// What the queues can do.
    pub fn features(&self) -> &Features {
        &self.features
    }
    /// Queue pairs.
    pub fn queues(&self) -> u16 {
        self.queues.len() as u16
    }
    /// Takes a queue pair out; `None` when it does not exist or is gone already.
    pub fn take_queue(&mut self, queue: u16) -> Option<QueuePair> {
        self.queues.get_mut(usize::from(queue))?.take()
    }
    /// A handle on the counters; they go on when the queues are attached.
    pub fn stats(&self) -> NicStats {
        self.stats.clone()
    }
    /// Sets whom to wake when queue `queue` has armed its interrupt and work arrives (frames, or room to transmit). To be
    /// called before the interrupt is armed. False when the queue does not exist or too many changes are pending.
    pub fn set_waker(&mut self, queue: u16, waker: Arc<dyn Wake>) -> bool {
        let Some([a, b]) = self.wakers.get_mut(usize::from(queue)) else { return false };
        a.try_push(waker.clone()).is_ok() && b.try_push(waker).is_ok()
    }
}

impl core::fmt::Debug for Nic {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Nic").field("features", &self.features).field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// Two NICs with a wire between them. They have as many queue pairs as the side that asks for fewer (at least 1), and the
/// wire is cut when either side asks for it or has faults.
pub fn pair(a: &NicConfig, b: &NicConfig) -> (Nic, Nic) {
    debug_assert_eq!(a.ethernet, b.ethernet, "the ends of a wire are of one kind");
    let cut = a.cut || b.cut || a.fault.is_some() || b.fault.is_some();
    let mut nics = (Nic::empty(a, b), Nic::empty(b, a));
    for q in 0..a.queues.min(b.queues).max(1) {
        let (ab, ba) = (channel(a.slots()), channel(b.slots()));
        let (irq_a, irq_b) = (Arc::new(Irq::new()), Arc::new(Irq::new()));
        let ([a_tx, a_rx], [b_tx, b_rx]) = (nics.0.add_waker(&irq_a, a.polled), nics.1.add_waker(&irq_b, b.polled));
        // The bells that A rings are B's, and the other way round.
        nics.0.add_queue(&Side { cfg: a, peer: b, queue: q, cut }, ab.0, ba.1, irq_a, b_tx, b_rx);
        nics.1.add_queue(&Side { cfg: b, peer: a, queue: q, cut }, ba.0, ab.1, irq_b, a_tx, a_rx);
    }
    nics
}

/// What one end of one queue pair is made from.
struct Side<'a> {
    cfg: &'a NicConfig,
    peer: &'a NicConfig,
    queue: u16,
    cut: bool,
}

impl Nic {
    fn empty(cfg: &NicConfig, peer: &NicConfig) -> Self {
        Self {
            // The far side's DMA decides what becomes of our pages.
            features: Features { by_ref: peer.dma == Dma::Ref, ..cfg.features() },
            queues: Vec::new(),
            wakers: Vec::new(),
            stats: NicStats { queues: Vec::new() },
        }
    }

    /// Two bells that ring the owner of `irq`, for the far side's transmitter and receiver.
    fn add_waker(&mut self, irq: &Arc<Irq>, polled: bool) -> [Bell; 2] {
        let (tx, tx_waker) = Bell::new(irq.clone(), polled);
        let (rx, rx_waker) = Bell::new(irq.clone(), polled);
        self.wakers.push([tx_waker, rx_waker]);
        [tx, rx]
    }

    fn add_queue(
        &mut self,
        side: &Side<'_>,
        out: Producer<Slot>,
        input: Consumer<Slot>,
        irq: Arc<Irq>,
        tx_bell: Bell,
        rx_bell: Bell,
    ) {
        let (rx_stats, tx_stats) = (Published::new(), Published::new());
        self.stats.queues.push([rx_stats.clone(), tx_stats.clone()]);
        let tx = side.tx(out, irq.clone(), tx_bell, tx_stats);
        let rx = SoftRx { ring: input, irq, bell: rx_bell, engine: side.engine(rx_stats), time: HwTime::default() };
        self.queues.push(Some((Box::new(rx), Box::new(tx))));
    }
}

impl Side<'_> {
    fn tx(&self, ring: Producer<Slot>, irq: Arc<Irq>, bell: Bell, stats: Arc<Published>) -> SoftTx {
        SoftTx {
            features: Features { by_ref: self.peer.dma == Dma::Ref, ..self.cfg.features() },
            cut: self.cut,
            // Nothing but memory is in between, and both ends leave checksums to their devices.
            small: !self.cut && !self.cfg.ethernet && [self.cfg.csum, self.peer.csum] == [CsumOffload::Hw; 2],
            kernels: self.cfg.kernels,
            ring,
            irq,
            bell,
            pending: SkbBatch::with_capacity(256),
            reserved: 0,
            ring_bell: false,
            frags: FrameFrags::with_capacity(128),
            done: Vec::with_capacity(256),
            stats,
            time: HwTime::default(),
        }
    }

    fn engine(&self, stats: Arc<Published>) -> Engine {
        let cfg = self.cfg;
        let max_frags = cfg.features().max_frags as usize;
        let gro = GroConfig { max_size: cfg.gro_max_size, max_frags, udp: false, hw: true, ..GroConfig::default() };
        let fault = self.peer.fault.as_ref().filter(|(plan, _)| !plan.is_perfect());
        let line = fault.map(|(plan, seed)| {
            // Each queue has a stream of its own.
            Box::new(FaultyLine::new(FaultInjector::new(plan.clone(), seed ^ u64::from(self.queue) << 32)))
        });
        Engine {
            queue: self.queue,
            kernels: cfg.kernels,
            rx_csum: cfg.csum == CsumOffload::Hw,
            copies: cfg.dma == Dma::Copy,
            max_frags,
            assembler: Assembler::default(),
            line,
            gro: (self.cut && cfg.features().gro_hw).then(|| Box::new(Gro::new(gro))),
            page: None,
            ready: SkbBatch::with_capacity(256),
            link: cfg.ethernet.then_some([0; ETHERNET_HEADER_LEN]),
            stats,
        }
    }
}
