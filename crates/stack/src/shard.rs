//! One core's whole stack and its turn.
//!
//! A [`Shard`] owns everything that it needs, so one thread at a time uses it without locks. [`Shard::turn`] is the only
//! door for packets and always does the same, in this order:
//!
//! ```text
//!   1 reclaim     pages and descriptors that came home, commands and dirty cells of remote handles
//!   2 completions TxQueue::poll_tx -> bytes per socket -> TCP small queues
//!   3 rx          napi: poll within the budget, merge -> ip_in -> tcp, udp, icmp
//!   4 timers      everything due at `now`
//!   5 output      poll_xmit of every dirty connection -> ip_out -> qdisc
//!   6 xmit, kick  qdisc -> device, one doorbell each
//! ```
//! Verbs of sockets between turns only mark the socket dirty; what they cause leaves in step 5 of the next turn, in
//! batches. A socket stands in the dirty list at most once. No step looks at sockets that nothing happened to.

use linerate_base::Instant;

/// What a turn did and when the next one is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// Skbs received from devices.
    pub rx_skbs: usize,
    /// Skbs handed to devices.
    pub tx_skbs: usize,
    /// The budget is spent or work is left: call again at once.
    pub more: bool,
    /// The earliest timer or device deadline; `None`: only a packet or a verb makes work.
    pub next: Option<Instant>,
}
