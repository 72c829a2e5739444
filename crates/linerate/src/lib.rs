//! Linerate: a TCP/IP stack in user space for very fast flows.
//!
//! Linerate is for programs that are handed packets and must terminate TCP (VPN and mesh nodes, tun2socks-like proxies,
//! microVM and sandbox hosts, tests, simulations), and for the question what a fast flow costs. It needs no root, no kernel
//! module and no C. Its unit of work is the **super-packet**: one descriptor that stands for up to 64 KB or more of
//! payload, looked up, acknowledged and handed over once, from the packet edge to the application
//! ([`manual::super_packets`]).
//!
//! # Two ways to a socket
//!
//! | | inline | remote |
//! |---|---|---|
//! | who runs the stack | you: [`inline::Shard::turn`] | a [`Stack`] on its own thread |
//! | sockets are | [`inline::SockId`]s, used between turns | [`TcpStream`], [`TcpListener`], [`UdpSocket`]: `Send` handles |
//! | waiting | never: `WouldBlock` and readiness | blocking, `try_*`, or `poll_*` with a waker |
//! | copies happen | on your one thread | on the thread that reads or writes |
//! | for | event loops, simulators, lowest latency | ordinary programs |
//!
//! **Remote** looks like `std::net`, with the stack as one more argument:
//!
//! ```
//! use std::io::{Read, Write};
//! use linerate::{Interface, Stack, TcpListener, TcpStream, nic};
//!
//! // Two stacks and a software wire between them; a program with a TUN or another device has one stack.
//! let (left, right) = nic::pair(&nic::NicConfig::default(), &nic::NicConfig::default());
//! let here = Stack::builder().interface(Interface::nic("eth0", left).address("10.0.0.1/24")).start()?;
//! let there = Stack::builder().interface(Interface::nic("eth0", right).address("10.0.0.2/24")).start()?;
//!
//! let mut listener = TcpListener::bind(&there, "10.0.0.2:80")?;
//! let server = std::thread::spawn(move || -> std::io::Result<()> {
//!     let (mut stream, _peer) = listener.accept()?;
//!     stream.write_all(b"hello")
//! });
//! let mut stream = TcpStream::connect(&here, "10.0.0.2:80")?;
//! let mut text = String::new();
//! stream.read_to_string(&mut text)?;
//! assert_eq!(text, "hello");
//! server.join().expect("no panic")?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! **Inline**, time is an argument too: the whole exchange below takes no time at all and is the same in every run.
//!
//! ```
//! use linerate::inline::{BindOpts, Instant, Ready, Shard, SockOpts, StackConfig};
//!
//! let mut shard = Shard::new(StackConfig::default()); // has its loopback
//! let listener = shard.tcp_listen("127.0.0.1:80".parse()?, 16, &SockOpts::default(), BindOpts::default())?;
//! let client = shard.tcp_connect("127.0.0.1:80".parse()?, None, &SockOpts::default())?;
//! let mut server = None;
//! for ms in 0..10 {
//!     shard.turn(Instant::from_millis(ms), 64);
//!     while let Some((id, ready)) = shard.next_ready() {
//!         if ready.contains(Ready::ACCEPT) {
//!             server = Some(shard.accept(id)?);
//!         }
//!         if id == client && ready.contains(Ready::CONNECTED) {
//!             shard.write(client, b"hello").expect("an empty send buffer");
//!         }
//!     }
//! }
//! let mut buf = [0; 16];
//! let n = shard.read(server.expect("the handshake is done"), &mut buf).expect("it has arrived");
//! assert_eq!(&buf[..n], b"hello");
//! # let _ = listener;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to read on
//!
//! [`manual`] explains, a chapter each: [embedding](manual::embedding), [super-packets](manual::super_packets), [memory and pages](manual::memory),
//! [wait modes](manual::wait_modes), [several shards](manual::shards), [errors](manual::errors), [determinism](manual::determinism), [looking inside](manual::looking_inside) and the
//! [limits of this version](manual::limits). [`Stack::builder`] has every knob, [`packet_device`] what a program's own packets come and go by, [`nic`] the software NIC and what any
//! device must implement, [`inline`] the engine.
//!
//! # Stability
//!
//! This crate keeps semantic versioning: enums and option structs are `#[non_exhaustive]`. What [`inline`] and [`nic`]
//! re-export comes from internal crates and may move with a minor version until 1.0.
#![forbid(unsafe_code)]

pub mod control;
mod driver;
mod error;
pub mod inline;
pub mod manual;
pub mod nic;
pub mod packet_device;
mod shards;
pub mod stack;
mod stats;
pub mod tcp;
pub mod tun;
pub mod udp;
mod wait;

pub use error::Error;
pub use linerate_base::Errno;
pub use linerate_host::{Clock, Parker, Unparker, Wait, Woken};
pub use linerate_skb::{Frag, PagePool, PoolConfig};
pub use linerate_stack::steer::SteerStats;
pub use linerate_stack::{BindOpts, SockOpts, StackConfig, TcpInfo};
pub use stack::{Builder, Interface, InterfaceStats, Stack, StackHandle, StackWaker, Stats};
pub use tcp::{ConnectOptions, ListenOptions, ReadHalf, TcpListener, TcpStream, WriteHalf};
pub use udp::{Datagram, UdpOptions, UdpSocket};

/// Copy and checksum functions chosen for the CPU that this process runs on. A [`Stack`] uses them by itself; a
/// [`nic::NicConfig`] or an inline [`StackConfig`] starts with the portable ones.
pub fn kernels() -> inline::Kernels {
    inline::Kernels::select(linerate_host::detect_cpu())
}
