//! Determinism: the same packets, times and seed give the same run.
//!
//! The engine reads no clock, no random source and no CPU register. Time is the argument of
//! [`Shard::turn`](crate::inline::Shard::turn); initial sequence numbers, ports and hash keys come from
//! [`StackConfig::seed`](crate::StackConfig); the copy and checksum functions are chosen by
//! [`kernels`](crate::kernels) and give equal results on every CPU. So a test of an hour of TCP runs in a moment, and a failure is
//! a number that anybody can run again:
//!
//! ```
//! use linerate::inline::{BindOpts, Instant, Shard, SockOpts, StackConfig};
//!
//! fn run(seed: u64) -> Vec<(u64, usize)> {
//!     let mut cfg = StackConfig::default();
//!     cfg.seed = seed;
//!     let mut shard = Shard::new(cfg);
//!     let any = BindOpts::default();
//!     shard.tcp_listen("127.0.0.1:80".parse().unwrap(), 1, &SockOpts::default(), any).unwrap();
//!     let id = shard.tcp_connect("127.0.0.1:80".parse().unwrap(), None, &SockOpts::default()).unwrap();
//!     (0..50).map(|ms| {
//!         shard.turn(Instant::from_millis(ms), 64);
//!         (u64::from(shard.local_addr(id).unwrap().port()), shard.tcp_counts().0)
//!     }).collect()
//! }
//! assert_eq!(run(7), run(7));
//! assert_ne!(run(7)[0], run(8)[0], "another seed, another port");
//! ```
//!
//! A [`Stack`](crate::Stack) is the same engine with the host's clock, the host's random seed and threads: it is *not*
//! deterministic, even with [`Builder::seed`](crate::Builder::seed). Test protocols inline, and threads with a `Stack`.
//!
//! A seed that is known makes sequence numbers guessable. Fix it in tests only.
