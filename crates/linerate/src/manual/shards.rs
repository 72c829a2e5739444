//! Several shards: one stack on several cores.
//!
//! A *shard* is a whole stack on one thread. [`Builder::shards`](crate::Builder::shards) makes a stack of several, each with a queue of its own
//! of every interface, and no locks between them. Handles work as with one: a [`TcpListener`](crate::TcpListener) accepts from all
//! shards, [`TcpStream::connect`](crate::TcpStream::connect) uses one after the other, [`Stack::stats`](crate::Stack::stats) is the sum.
//!
//! ```no_run
//! use linerate::tun::{Tun, TunConfig};
//! use linerate::{Interface, Stack};
//!
//! let mut config = TunConfig::default().host_address("10.9.0.1/24".parse().expect("an address"));
//! config.queues = 4;
//! let interface = Interface::tun(Tun::open(&config)?).address("10.9.0.2/24");
//! let stack = Stack::builder().interface(interface).shards(4).start()?;
//! # drop(stack);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! **Whose a flow is** is computed from its packets, alike on every shard
//! ([the rule](linerate_stack::steer)): for TCP a secret hash of the peer's address and both ports; for UDP the local port
//! modulo the number of shards, so four sockets on four consecutive ports are on four shards, and one socket is always on one.
//! A packet that a device delivers to another shard is handed over through a ring and counted
//! ([`Stats::steer`](crate::Stats::steer), `wrong_shard`).
//!
//! **Which devices fit.** A TUN returns a flow on the queue that last wrote it: only a flow's first packets go the long
//! way, and datagrams of a socket that never answers. The software NIC's queue `i` leads to queue `i` of the other
//! end, whose rule is under a key of its own: with shards at both ends most flows are handed over for good, which works and is slower.
//! Each interface needs as many queues as there are shards, or [`Builder::start`](crate::Builder::start) says so.
//!
//! **What is each shard's own**: memory limits (`tcp_mem_bytes`, pools), the backlog of a listener, learned path MTUs,
//! rate limits, `127.0.0.1`'s queue. So limits count once per shard.
//! [`StackHandle::with_shard`](crate::StackHandle::with_shard) is the first shard; changes to addresses or
//! routes at run time must be made on all ([`StackHandle::with_each_shard`](crate::StackHandle::with_each_shard)).
//!
//! **More is not always faster.** One shard carries one flow as fast as four do. Shards help many flows on idle cores;
//! on two cores, whoever reads and writes needs one of them.
