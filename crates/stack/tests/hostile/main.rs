//! A shard under bad input: every way to lie in a header, to starve a pool, to flood a listener.
//!
//! All tests talk to a real [`linerate_stack::Shard`] over an in-memory device ([`lab`]) in virtual time, with segments
//! made by hand. What must always hold: no panic, no unbounded memory or work, every skb that dies is counted under its
//! reason (`NotSpecified` stays 0), what an application reads is what a peer sent, and whoever behaves goes on being
//! served. Work is counted in turns and segments, never in seconds.

mod attacks;
mod exhaustion;
mod floods;
mod headers;
mod lab;
mod link;
mod mutations;
mod reasons;
mod windows;
