//! The loopback: packets to ourselves.
//!
//! Not a device with queues but one FIFO: what `ip_out` sends to a local address waits here for the next poll of `napi`
//! and then takes the same way in as every packet. Payload passes by reference; super-packets pass uncut; nothing is
//! summed, since nothing crosses a wire (`Csum::Unnecessary`). As in Linux the sender is relieved at once: its completion
//! is reported with the next [`crate::napi::reclaim`].
//!
//! Limits: the qdisc limit of the configuration; beyond it packets are dropped, as on a full device. Memory is not
//! copied: a receiver that does not read holds the sender's pages.

use linerate_netdev::{Features, Qstats, TxDone};
use linerate_skb::{Csum, SKB_TRUESIZE, Skb, SkbBatch, TxDoneToken};

/// MTU of the loopback in bytes, as Linux's.
pub(crate) const LOOPBACK_MTU: u32 = 65_536;

/// The FIFO, and what it counted.
#[derive(Debug)]
pub(crate) struct Loopback {
    queue: SkbBatch,
    limit_skbs: usize,
    done: TxDone,
    stats: Qstats,
}

impl Loopback {
    /// The loopback can do everything: nothing has to be done.
    pub(crate) const FEATURES: Features = Features {
        tx_csum: true,
        tso4: true,
        tso6: true,
        uso: true,
        rx_csum: true,
        gro_hw: false,
        sg: true,
        by_ref: true,
        mtu: LOOPBACK_MTU,
        gso_max_size: 65_536,
        gso_max_segs: 65_535,
        max_frags: linerate_skb::MAX_FRAGS as u32,
        hard_header_len: 0,
    };

    pub(crate) fn new(limit_skbs: usize) -> Self {
        Self { queue: SkbBatch::new(), limit_skbs: limit_skbs.max(1), done: TxDone::new(), stats: Qstats::default() }
    }

    /// Sends a packet with its IP header to ourselves.
    ///
    /// # Errors
    /// Gives it back when the limit is reached.
    pub(crate) fn xmit(&mut self, mut skb: Skb) -> Result<(), Skb> {
        if self.queue.len() >= self.limit_skbs {
            self.stats.tx_stop += 1;
            return Err(skb);
        }
        let (wire_pkts, bytes) = (u64::from(skb.wire_pkts()), u64::from(skb.len()));
        self.stats.tx_skbs += 1;
        self.stats.tx_wire_pkts += wire_pkts;
        self.stats.tx_bytes += bytes;
        self.stats.rx_csum_unnecessary += wire_pkts;
        self.done.push(skb.tx_done, skb.truesize);
        skb.tx_done = TxDoneToken::NONE;
        skb.csum = Csum::Unnecessary;
        skb.ifindex = crate::link::LOOPBACK.0;
        skb.queue = 0;
        if skb.truesize == 0 {
            skb.truesize = SKB_TRUESIZE.saturating_add(skb.data_len());
        }
        self.queue.push(skb);
        Ok(())
    }

    /// Moves up to `budget` packets to `out`.
    pub(crate) fn poll(&mut self, budget: usize, out: &mut SkbBatch) -> usize {
        let n = budget.min(self.queue.len());
        if n == 0 {
            return 0;
        }
        for skb in self.queue.drain(..n) {
            self.stats.rx_skbs += 1;
            self.stats.rx_wire_pkts += u64::from(skb.wire_pkts());
            self.stats.rx_bytes += u64::from(skb.len());
            out.push(skb);
        }
        n
    }

    /// Completions since the last call.
    #[inline]
    pub(crate) fn reclaim(&mut self, done: &mut TxDone) -> usize {
        let n = self.done.skbs();
        if n == 0 {
            return 0;
        }
        for (token, bytes) in self.done.drain() {
            done.push(token, bytes);
        }
        n
    }

    pub(crate) fn pending_skbs(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn qstats(&self) -> Qstats {
        self.stats
    }
}
