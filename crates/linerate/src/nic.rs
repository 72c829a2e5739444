//! Devices: the software NIC and its wire, and what any other device has to implement.
//!
//! [`pair`] makes two NICs with a wire between them; [`Interface::nic`](crate::Interface::nic) puts one into a stack. A
//! NIC has no thread: its engines run inside the calls of the stack that owns it. What the "silicon" does is set by
//! [`NicConfig`]: whether frames are really cut ([`NicConfig::cut`]), whether pages cross by reference or are copied
//! ([`Dma`]), who sums ([`CsumOffload`]), and which faults happen to wire frames ([`FaultPlan`]).
//!
//! Any other device is an [`RxQueue`] and a [`TxQueue`], given to
//! [`Interface::device`](crate::Interface::device); [`Features`] is its promise of what it does itself, and the stack does the rest in
//! software. A device whose receive queue was armed calls the stack's [`StackWaker`](crate::StackWaker) when work comes.

pub use linerate_netdev::{
    Fault, FaultInjector, FaultPlan, Features, IfIndex, Qstats, RingParams, RxCx, RxQueue, TxCx, TxDone, TxQueue,
};
pub use linerate_skb::{Csum, GsoType, Skb, SkbBatch, SkbCache, SkbFlags, TxDoneToken};
pub use linerate_softnic::{CsumOffload, Dma, Nic, NicConfig, NicStats, QueuePair, Wake, pair};
