//! Looking inside: sockets, counters, devices, packets and drops of a running stack, from another process.
//!
//! A stack that was built with [`Builder::control`](crate::Builder::control) listens on a Unix socket of its user, and the
//! command `linerate` asks there, with the verbs and in the forms of iproute2:
//!
//! | command | shows |
//! |---|---|
//! | `linerate ss -tie` | connections: state, queues, timers, and all of `TCP_INFO` |
//! | `linerate ss -tn state time-wait dport = :443` | those of a state, address or port |
//! | `linerate nstat -az 'TcpExt*'` | Linux's counters since the stack began; `-i 1`: what is added in a second |
//! | `linerate tcpdump -w F tcp port 443` | packets as they pass, for Wireshark; without `-w` a line each |
//! | `linerate dropwatch` | what is dropped and reset, second by second: reason, device, place in the code |
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
//! **Packets.** A capture sees them at four points: `rx` as the device gave them, `rx-gro` after merging, `tx` as the stack gives
//! them to the device (super-packets uncut, checksums maybe unfinished), and `drop`, with the reason and the place as a comment.
//! In a file each device and point is an interface, `tun0:rx` (Wireshark reads that; tcpdump with
//! libpcap 1.10 reads only files with one interface of bare IP, as `-i tun0:rx` makes them). `-i tun0:rx,tx` chooses; unless told, all but `rx-gro` are taken, so a
//! dropped packet is there twice. The filter is a part of the pcap language, in [`linerate_stack::tap::filter`]; a wrong one is
//! shown with the spot. What the filter takes is copied into a bounded buffer (`-B`); when its reader is late, packets are lost
//! to the capture and counted, never to the connection. While a capture runs, small packets take the general way, so figures of
//! that time are not figures of the other.
//!
//! **Drops.** Counters by reason are complete. The packet and the place are known where a packet was at hand and at most
//! [64](linerate_skb::DROPS_KEPT) were dropped in one step; a device's own drops and whole queues of fragments are counted only,
//! and `dropwatch` prints them without a place.
//!
//! **What it promises.** The stack does not stand still for a list, so a list is no snapshot: a socket that was open all the while
//! is in it exactly once. [`crate::control`] has the details, the language, and what keeps strangers out.
