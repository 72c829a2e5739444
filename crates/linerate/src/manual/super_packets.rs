//! Super-packets: why one descriptor stands for forty-five packets.
//!
//! A 100 Gbit/s flow of 1500-byte frames is eight million packets a second. No stack that looks up, filters, acknowledges
//! and wakes per packet keeps up on one core, so none should be asked to: consecutive segments of one flow carry the same
//! decision. Linerate's unit is the **skb**, a descriptor with a header and a list of page fragments, that stands for
//! `gso_segs` wire packets of `gso_size` payload bytes each.
//!
//! ```text
//!   write 64 KB -> one skb, 2-3 fragments -> one lookup, one header -> device cuts it (TSO), or the stack at the last moment
//!   45 frames   -> device or napi merges (GRO) -> one skb             -> one lookup, one ACK decision, one wake-up
//! ```
//!
//! What follows from it for a program:
//! - **Write much at once.** 64 KB or more per `write` fills one super-packet; 1 KB per `write` pays all per-call work 64 times.
//! - **Counters say which unit they count.** `rx_skbs` are super-packets, `rx_wire_pkts` are frames; Linux's own counters
//!   (`TcpInSegs`) count wire segments. Their quotient is the aggregation, and the first figure to look at when a flow is slow.
//! - **Offloads are promises of a device** ([`Features`](crate::nic::Features)). What it can not do, the stack does with
//!   the same function, so results are equal and only the cost differs.
//!
//! ```
//! use std::io::{Read, Write};
//! use linerate::{Interface, Stack, TcpListener, TcpStream, nic};
//!
//! let (left, right) = nic::pair(&nic::NicConfig::default(), &nic::NicConfig::default());
//! let here = Stack::builder().interface(Interface::nic("eth0", left).address("10.0.0.1/24")).start()?;
//! let there = Stack::builder().interface(Interface::nic("eth0", right).address("10.0.0.2/24")).start()?;
//! let mut listener = TcpListener::bind(&there, "10.0.0.2:9")?;
//! let sink = std::thread::spawn(move || listener.accept()?.0.read_to_end(&mut Vec::new()));
//! let mut stream = TcpStream::connect(&here, "10.0.0.2:9")?;
//! stream.write_all(&vec![0; 1 << 20])?;
//! drop(stream);
//! assert_eq!(sink.join().expect("no panic")?, 1 << 20);
//! let q = here.stats()?.interfaces[1].qstats;
//! assert!(q.tx_skbs < q.tx_wire_pkts, "many frames a super-packet");
//! # Ok::<(), std::io::Error>(())
//! ```
