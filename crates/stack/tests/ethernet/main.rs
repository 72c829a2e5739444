//! A shard on an Ethernet link: neighbours, addresses, routers and groups, and who lies about them.
//!
//! [`lab`] is one shard whose frames are byte vectors and a link that the test plays, in virtual time; what the shard sends
//! is checked frame by frame. [`flows`] has two shards on a software NIC of Ethernet kind. What must always hold: tables
//! are bounded, a claim that was not asked for does not redirect a flow, who behaves goes on being served, and every skb
//! ends with a reason.

mod addrconf;
mod arp;
mod flows;
mod groups;
mod lab;
mod mutations;
mod ndisc;
