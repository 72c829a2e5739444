//! What the IP layer hands up: the contract between `ip_in` and the transports.
//!
//! `ip_in::rcv` strips the IP header (the skb's head then starts at the transport header), verifies the transport
//! checksum and returns one [`Upcall`]. ICMP answers itself; only the errors that concern a flow of ours come up, already
//! translated as Linux's `icmp_err_convert` does. Nothing here owns memory besides the skb. Addresses are as in the
//! packet; [`IpMeta::key`] makes the table key of it once, and its keyed hash comes from the transport, both once a
//! super-packet.

use core::net::IpAddr;

use linerate_base::{Errno, HashKey, Seq};
use linerate_netdev::IfIndex;
use linerate_skb::Skb;
use linerate_wire::flow::FlowKey;

/// Facts of the IP header of a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpMeta {
    /// Who sent it.
    pub src: IpAddr,
    /// To whom: an address of ours, or on an any-ip device the original destination.
    pub dst: IpAddr,
    /// The two ECN bits (RFC 3168).
    pub ecn: u8,
    /// The whole TOS or traffic class byte.
    pub tos: u8,
    /// Hop limit.
    pub ttl: u8,
    /// The device that received it.
    pub ifindex: IfIndex,
    /// `dst` is a multicast or broadcast address: TCP ignores such packets.
    pub multicast: bool,
}

impl IpMeta {
    /// Is it IPv4?
    pub const fn is_v4(&self) -> bool {
        self.dst.is_ipv4()
    }
    /// The flow of the packet, seen from this host.
    pub fn key(&self, proto: u8, src_port: u16, dst_port: u16) -> FlowKey {
        FlowKey::from_parts(self.dst, self.src, dst_port, src_port, proto)
    }
}

/// The keyed hash under which a flow is found in every table of a shard. Keys of the two families are hashed at different
/// lengths, which SipHash keeps apart.
#[inline]
pub fn flow_hash(hash_key: &HashKey, key: &FlowKey) -> u64 {
    match key.as_v4_words() {
        Some(words) => hash_key.sip13_words(&words),
        None => hash_key.sip13_words(&key.as_words()),
    }
}

/// An ICMP error about a packet that this host sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpUp {
    /// The flow of the quoted packet, local end first; its protocol says which transport is meant.
    pub key: FlowKey,
    /// TCP: the sequence number of the quoted segment.
    pub seq: Seq,
    /// What Linux reports to the socket.
    pub errno: Errno,
    /// Linux's table says that the error ends a connection attempt (or, with `IP_RECVERR`, the connection).
    pub fatal: bool,
    /// Fragmentation needed or packet too big: the next hop's MTU in bytes; 0 = another error.
    pub mtu_bytes: u32,
    /// The device that received it.
    pub ifindex: IfIndex,
}

/// What became of a received packet.
#[derive(Debug)]
pub enum Upcall {
    /// A TCP segment (or super-packet), checksum verified; the skb's head starts at the TCP header.
    Tcp(IpMeta, Skb),
    /// A UDP datagram (or a train of them), checksum verified; the skb's head starts at the UDP header.
    Udp(IpMeta, Skb),
    /// An ICMP error for a socket.
    Icmp(IcmpUp),
    /// Answered, used up, or dropped with a reason that is already counted.
    Consumed,
}
