//! What a network device is: queues, features, statistics, and faults on its wire frames.
//!
//! A device is a set of queue pairs. A receive queue fills an [`SkbBatch`](linerate_skb::SkbBatch) within a budget, a
//! transmit queue takes from the front of one; neither calls back. Interrupts are two methods ([`RxQueue::irq_enable`],
//! [`RxQueue::irq_disable`]) with NAPI's contract: enabling answers whether work arrived meanwhile, so that no wake-up
//! is lost. What the hardware can do is data ([`Features`]); the stack does in software what is missing.
//!
//! The crate touches no payload and knows no protocol: the offloads themselves are pure functions elsewhere.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod fault;
pub mod features;
pub mod frames;
pub mod line;
pub mod qstats;
pub mod queue;

pub use fault::{Fault, FaultInjector, FaultPlan};
pub use features::{Features, RingParams};
pub use frames::{FRAME_HEAD, FrameFrags, FrameSink, FrameSource};
pub use line::FaultyLine;
pub use qstats::{Counter, Qstats, SharedQstats};
pub use queue::{IfIndex, QueueCx, RxCx, RxQueue, SMALL_BYTES, SmallPacket, TxCx, TxDone, TxQueue};
