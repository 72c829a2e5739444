//! Looking inside: sockets, counters and devices of a running stack, from another process.
//!
//! A stack that was built with [`Builder::control`](crate::Builder::control) listens on a Unix socket of its user, and the
//! command `linerate` asks there, with the verbs and in the forms of iproute2:
//!
//! | command | shows |
//! |---|---|
//! | `linerate ss -tie` | connections: state, queues, timers, and all of `TCP_INFO` |
//! | `linerate ss -tn state time-wait dport = :443` | those of a state, address or port |
//! | `linerate nstat -az 'TcpExt*'` | Linux's counters since the stack began; `-i 1`: what is added in a second |
//! | `linerate link -s`, `linerate ethtool -S eth0` | devices, addresses, what their queues counted |
//!
//! ```
//! use linerate::control::{Client, ControlPath};
//!
//! let path = std::env::temp_dir().join(format!("looking-inside-{}.sock", std::process::id()));
//! let stack = linerate::Stack::builder().control(ControlPath::At(path.clone())).start()?;
//! // What the command does: any number of lines, each with one key, and then what `done` says.
//! let mut devices = Vec::new();
//! Client::connect(&path)?.request("devices", &(), |key, value| {
//!     assert_eq!(key, "device");
//!     devices.push(value["name"].clone());
//!     Ok(())
//! })?;
//! assert_eq!(devices, ["lo"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **What it costs.** Nothing unless asked for; a thread that sleeps when it is; and while somebody asks, between two turns of a
//! shard the copying of at most 64 sockets. A reader that does not read stops its own dump and nothing else.
//!
//! **What it promises.** The stack does not stand still for a list, so a list is no snapshot: a socket that was open all the while
//! is in it exactly once. [`crate::control`] has the details, the language, and what keeps strangers out.
