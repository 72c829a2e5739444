//! Packet headers as views over bytes and valid representations.
//!
//! Two levels for every header. A *view* has a checked constructor and getters: it knows every field, judges nothing and
//! never panics, so it can log any garbage. A *repr* is a valid value: what can be built can be emitted, and what was
//! emitted parses to the same value. Lengths are bytes, numbers are host order, and no function allocates unless it says
//! so. Nothing here keeps state, reads a clock or verifies a payload: those are the layers above.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod arp;
mod bytes;
pub mod checksum;
pub mod ethernet;
pub mod flow;
pub mod group;
pub mod icmp;
pub mod icmpv6;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod ndisc;
pub mod pcapng;
pub mod tcp;
pub mod udp;
pub mod virtio_net_hdr;

#[cfg(test)]
mod link_tests;
#[cfg(test)]
mod tests;

pub use arp::{ArpOp, ArpParseError, ArpRepr, ArpView};
pub use ethernet::{EthernetRepr, EthernetView, MacAddr};
pub use flow::{Cidr, FlowKey};
pub use icmp::{IcmpParseError, Icmpv4Repr, QuotedPacket};
pub use icmpv6::Icmpv6Repr;
pub use ip::{IpParseError, IpRepr, IpVersion};
pub use ndisc::{NdOption, NdOptions, NdiscRepr};
pub use tcp::{
    FastOpenCookie, OptionBytes, SackBlocks, TcpFlags, TcpOption, TcpOptions, TcpParseError, TcpRepr, TcpView,
    Timestamps,
};
pub use udp::{UdpParseError, UdpRepr, UdpView};
pub use virtio_net_hdr::{PartialCsum, VirtioGso, VirtioNetHdr};
