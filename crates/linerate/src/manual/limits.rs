//! Limits of this version: what is not there, said before it is looked for.
//!
//! - **A datagram is sent without waiting for the stack**, so what the stack says about it (no route, too long) is the next
//!   verb's error ([`crate::udp`]). One thread uses a [`UdpSocket`](crate::UdpSocket); there is no MSG_PEEK.
//! - **A shard is one thread on one core**, and a flow belongs to one shard. A stack of several ([`super::shards`]) needs a queue
//!   for each of every interface; no Ethernet, and no several processes.
//! - **Devices into the host** are TUN and TAP ([`crate::tun`]): no AF_PACKET or AF_XDP. Packets of your own come over a
//!   channel or a descriptor ([`crate::packet_device`]), one queue pair to a channel.
//! - **Every port** is for TCP ([`TcpListener::bind_every_port`](crate::TcpListener::bind_every_port)); UDP has no such socket.
//! - **Socket options** of a remote socket are those it was made with ([`ConnectOptions`](crate::ConnectOptions),
//!   [`ListenOptions`](crate::ListenOptions), [`UdpOptions`](crate::UdpOptions)).
//! - **Verbs take `&mut self`**: one reader and one writer per connection ([`TcpStream::split`](crate::TcpStream::split)), one thread per listener.
//! - **Ethernet without extras.** ARP, neighbour discovery, router advertisements
//!   ([`Interface::accept_ra`](crate::Interface::accept_ra)), IGMP and MLD, on a TAP, the software NIC or a device of your own.
//!   No VLANs, redirects or DHCP; an IPv6 address there is usable a second or two after the start, when nobody else has it.
//! - **No forwarding**, also not of fragments; no multicast membership, no TCP Fast Open, no MPTCP, no URG semantics beyond Linux's inline reading.
//! - **Names** given to `connect` and `bind` are looked up by the host's resolver, over the host's network.
//! - **The pages of a socket's writer** are its own: many thousand sockets that all write hold a page of 32 KiB each at least.
//!   Use smaller ones ([`Builder::write_pool`](crate::Builder::write_pool)).
//! - A remote reader is handed at most 512 KiB ahead; the rest waits in the receive queue and closes the window.
