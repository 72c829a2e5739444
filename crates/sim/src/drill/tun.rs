//! The device between a script and the stack: whole IP packets in, whole IP packets out, in no time.
//!
//! As the TUN device that packetdrill opens: super-packets are cut by the stack, which the runner merges again where a
//! script wants. Inbound packets may be longer than the MTU and are super-packets if the variant says of which segment
//! size. Checksums of inbound packets are verified by the stack. Nothing is ever lost or full here, and what is taken is
//! done at once, as when a TUN's reader is always there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_arch::Kernels;
use linerate_base::{DropReason, Instant};
use linerate_netdev::{Features, Qstats, RxCx, RxQueue, TxCx, TxDone, TxQueue};
use linerate_offload::csum;
use linerate_skb::{Csum, GsoType, Skb, SkbBatch};
use linerate_wire::ip::proto;
use linerate_wire::{IpRepr, TcpRepr};

/// Packets on their way, shared by the two queues and the backend.
#[derive(Default)]
pub(crate) struct Tun {
    /// To the stack.
    pub(crate) inbound: VecDeque<Vec<u8>>,
    /// From the stack, with the time at which they left.
    pub(crate) outbound: VecDeque<(Instant, Vec<u8>)>,
}

pub(crate) type SharedTun = Arc<Mutex<Tun>>;

pub(crate) fn lock(tun: &SharedTun) -> MutexGuard<'_, Tun> {
    tun.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The receiving half.
pub(crate) struct TunRx {
    pub(crate) tun: SharedTun,
    /// Segment size of super-packets (`--mss`).
    pub(crate) mss: Option<u16>,
    pub(crate) mtu: u32,
    pub(crate) kernels: Kernels,
    stats: Qstats,
}

/// The transmitting half.
pub(crate) struct TunTx {
    tun: SharedTun,
    features: Features,
    kernels: Kernels,
    done: Vec<(linerate_skb::TxDoneToken, u32)>,
    stats: Qstats,
}

/// Both halves of a device.
pub(crate) fn queues(tun: &SharedTun, mtu: u32, mss: Option<u16>) -> (TunRx, TunTx) {
    let mut features = Features::plain(mtu);
    // Without TSO, as a TUN that packetdrill opens: scripts list segments as they are on the wire.
    features.tx_csum = true;
    let kernels = Kernels::portable();
    let stats = Qstats::default();
    let rx = TunRx { tun: SharedTun::clone(tun), mss, mtu, kernels, stats };
    (rx, TunTx { tun: SharedTun::clone(tun), features, kernels, done: Vec::new(), stats })
}

impl TunRx {
    fn build(&self, cx: &mut RxCx<'_>, bytes: &[u8]) -> Option<Skb> {
        let mut skb = cx.skbs.alloc()?;
        skb.reset_head(0);
        let parsed = IpRepr::parse(bytes).ok();
        let headers = parsed.as_ref().and_then(|(ip, l4)| match ip.proto {
            proto::TCP => bytes.get(*l4..).and_then(|b| TcpRepr::parse(b).ok()).map(|(_, len)| l4 + len),
            proto::UDP => Some(l4 + 8),
            _ => None,
        });
        let (head, mut payload) = bytes.split_at(headers.unwrap_or(128).min(bytes.len()));
        let mut fits = skb.put_head_from(head);
        while fits && !payload.is_empty() {
            let frag = cx.pool.alloc().and_then(|mut page| {
                let frag = page.append(&self.kernels, payload);
                cx.pool.recycle_page(page);
                frag
            });
            fits = frag.is_some_and(|f| {
                payload = payload.split_at(f.len() as usize).1;
                skb.push_frag(f).is_ok()
            });
        }
        if !fits {
            cx.skbs.free(skb, cx.pool);
            return None;
        }
        skb.network_header = skb.head_offset();
        skb.gso_segs = 1;
        skb.tstamp = cx.now;
        if let Some((ip, l4)) = parsed {
            let v4 = ip.src.is_ipv4();
            skb.ip_version = if v4 { 4 } else { 6 };
            skb.transport_header = skb.head_offset() + l4 as u16;
            if let (Some(mss), true) = (self.mss, bytes.len() as u32 > self.mtu) {
                skb.gso_size = u32::from(mss);
                skb.gso_segs = skb.data_len().div_ceil(u32::from(mss.max(1)));
                skb.gso_type = if v4 { GsoType::TcpV4 } else { GsoType::TcpV6 };
            }
        }
        skb.truesize = truesize(bytes.len());
        Some(skb)
    }
}

/// What Linux charges for a packet written to a TUN device: headroom, data and shared info in one power-of-two buffer, and
/// the descriptor. Receive windows follow from it.
fn truesize(len: usize) -> u32 {
    (64 + len + 320).next_power_of_two() as u32 + 256
}

impl RxQueue for TunRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let mut got = 0;
        while got < budget {
            let Some(bytes) = lock(&self.tun).inbound.pop_front() else { break };
            match self.build(cx, &bytes) {
                Some(skb) => {
                    self.stats.rx_skbs += 1;
                    self.stats.rx_bytes += bytes.len() as u64;
                    out.push(skb);
                    got += 1;
                }
                None => cx.drops.count(DropReason::NoMem),
            }
        }
        got
    }
    fn irq_enable(&mut self) -> bool {
        !lock(&self.tun).inbound.is_empty()
    }
    fn irq_disable(&mut self) {}
    fn qstats(&self) -> Qstats {
        self.stats
    }
}

impl TxQueue for TunTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut taken = 0;
        while let Some(mut skb) = batch.pop_front() {
            let whole = csum::fill_partial(&mut skb, &self.kernels);
            debug_assert!(whole && !matches!(skb.csum, Csum::Partial { .. }), "a checksum outside of the head");
            self.stats.tx_skbs += 1;
            self.stats.tx_bytes += u64::from(skb.len());
            lock(&self.tun).outbound.push_back((cx.now, skb.to_vec()));
            self.done.push((skb.tx_done, skb.truesize));
            cx.skbs.free(skb, cx.pool);
            taken += 1;
        }
        taken
    }
    fn kick(&mut self, _cx: &mut TxCx<'_>) {}
    fn poll_tx(&mut self, _cx: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        let n = self.done.len();
        for (token, bytes) in self.done.drain(..) {
            done.push(token, bytes);
        }
        n
    }
    fn features(&self) -> &Features {
        &self.features
    }
    fn qstats(&self) -> Qstats {
        self.stats
    }
}
