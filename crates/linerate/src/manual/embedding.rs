//! Embedding: a program that has packets, and wants streams.
//!
//! VPN and mesh nodes, proxies in front of a TUN, hosts of virtual machines: they are handed IP packets by something of
//! their own and need TCP on top. Four ways to hand them over, by what the program has:
//!
//! | you have | use | who wakes the stack |
//! |---|---|---|
//! | packets in memory, from a cipher, a tunnel, a ring | [`packet_device::channel`](crate::packet_device::channel) | your push |
//! | a descriptor that carries a packet per read: a TUN that a service opened, a seqpacket socket | [`Interface::fd`](crate::Interface::fd) | the descriptor |
//! | the right to open a TUN or TAP | [`Interface::tun`](crate::Interface::tun) | the descriptor |
//! | hardware, or rules of your own for memory | [`Interface::device`](crate::Interface::device) with an [`RxQueue`](crate::nic::RxQueue) and a [`TxQueue`](crate::nic::TxQueue) | you call the [`StackWaker`](crate::StackWaker) |
//!
//! **Batches.** Push many packets and ring once ([`PacketSender::try_push_batch`](crate::packet_device::PacketSender::try_push_batch),
//! or `stage` and `flush`); pull many at once. When both sides can, let super-packets cross whole: one descriptor, one
//! lookup, one acknowledgement for 64 KB ([`super_packets`](super::super_packets)). A tunnel that must encrypt frames one by one
//! anyway loses nothing by leaving [`offloads`](crate::packet_device::ChannelConfig::offloads) off.
//!
//! **An event loop of your own.** Every channel verb takes a waker. For a loop around `poll` or `epoll`, a parker with an eventfd is
//! one, and its descriptor goes into the loop:
//!
//! ```
//! use std::task::{Context, Poll};
//! use linerate::packet_device::{ChannelConfig, channel};
//! use linerate::{Interface, Parker, Stack, UdpSocket};
//! use rustix::event::{PollFd, PollFlags, poll};
//!
//! let (device, _to_stack, mut from_stack) = channel(&ChannelConfig::new(1500));
//! let stack = Stack::builder().interface(Interface::channel("vpn0", device).address("10.0.0.2/24")).start()?;
//! let mut socket = UdpSocket::bind(&stack, "10.0.0.2:9")?;
//! socket.send_to(b"out", "10.0.0.1:9")?;
//!
//! let parker = Parker::with_eventfd()?;
//! let waker = parker.unparker().to_waker();
//! let mut cx = Context::from_waker(&waker);
//! let mut sent = Vec::new();
//! while sent.is_empty() {
//!     match from_stack.poll_pull_batch(&mut cx, 64, |packet| sent.push(packet)) {
//!         Poll::Ready(done) => drop(done?),
//!         // Nothing now. `prepare_sleep` says whether something came meanwhile.
//!         Poll::Pending if parker.prepare_sleep() => {
//!             let bell = parker.fd().expect("this parker has a descriptor");
//!             poll(&mut [PollFd::new(&bell, PollFlags::IN)], None)?; // ... and the descriptors of your own
//!             parker.finish_sleep();
//!         }
//!         Poll::Pending => {}
//!     }
//! }
//! assert_eq!(&sent[0].to_vec()[28..], b"out");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! **A proxy** accepts every destination and asks each stream where it wanted to go. This is the accepting half of a
//! tun2socks: an interface without an address, and a listener on every port.
//!
//! ```
//! use linerate::packet_device::{ChannelConfig, channel};
//! use linerate::{Interface, Stack, TcpListener};
//!
//! # let (device, _to_stack, _from_stack) = channel(&ChannelConfig::new(1500));
//! let tun0 = Interface::channel("tun0", device).any_ip(true).route("0.0.0.0/0").route("::/0");
//! let stack = Stack::builder().interface(tun0).start()?;
//! let mut listener = TcpListener::bind_every_port(&stack)?;
//! std::thread::spawn(move || {
//!     for stream in listener.incoming().map_while(Result::ok) {
//!         // Connect there, by whatever way this proxy has, and copy both directions.
//!         println!("{} wants {:?}", stream.peer_addr(), stream.original_dst());
//!     }
//! });
//! # Ok::<(), std::io::Error>(())
//! ```
//! The handshake is completed before the proxy knows whether its own connection succeeds; a reset is the way to take it back.
//!
//! **Memory.** Pulled packets and fragments that a reader keeps are the stack's pages. Hand them on or drop them soon: a
//! pool whose pages are all out drops what arrives (`NoMem` among [`Stats`](crate::Stats)'s drops).
//!
//! **Lies** of the other side about its packets end as counted drops ([`packet_device`](crate::packet_device) lists them). Only its
//! word that a checksum is good is believed.
