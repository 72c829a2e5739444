//! The few words of rtnetlink that a device of ours needs: look at a link, set it up, give it addresses and routes, make a
//! veth pair to compare with.
//!
//! ```text
//!   nlmsghdr  length u32 | type u16 | flags u16 | sequence u32 | port u32
//!   body      ifinfomsg (16 bytes), ifaddrmsg (8) or rtmsg (12)
//!   attribute length u16 | kind u16 | value, padded to 4 bytes
//! ```
//! Each request asks for an acknowledgement and waits for it, so an error belongs to the call that caused it. A socket
//! speaks for the network namespace of the thread that opened it. Changing anything needs `CAP_NET_ADMIN` in that
//! namespace, which the creator of a user namespace has. Numbers are those of `linux/rtnetlink.h` and `linux/if_link.h`.
//!
//! Limits: one link, address or route at a time; no dumps, no notifications, no deletion.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use linerate_wire::Cidr;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// No duplicate address detection: the address is usable at once.
const IFA_F_NODAD: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const NLMSG_HDR: usize = 16;
/// A reply about one link fits: its statistics and per-family parts are some 2 KiB.
const REPLY_BYTES: usize = 32 << 10;

/// The index of the loopback in every namespace.
pub const LOOPBACK_IFINDEX: u32 = 1;

/// What is known of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LinkInfo {
    /// Its number.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u32,
    /// Is it administratively up?
    pub up: bool,
}

/// What to change about a link; `None` stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkChange {
    /// Up or down.
    pub up: Option<bool>,
    /// Largest IP packet, bytes.
    pub mtu_bytes: Option<u32>,
    /// Packets that may wait for the device (for a TUN: for the reader), set before it is up or after.
    pub tx_queue_len: Option<u32>,
}

/// A socket to the kernel's routing tables.
#[derive(Debug)]
pub struct Rtnl {
    fd: OwnedFd,
    sequence: u32,
}

struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; NLMSG_HDR];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        Self(bytes)
    }
    fn put(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn put32(self, v: u32) -> Self {
        self.put(&v.to_ne_bytes())
    }
    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let len = 4 + value.len() as u16;
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
    fn address(self, kind: u16, addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(a) => self.attribute(kind, &a.octets()),
            IpAddr::V6(a) => self.attribute(kind, &a.octets()),
        }
    }
}

const fn family(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn ne16(b: &[u8], at: usize) -> Option<u16> {
    b.get(at..)?.first_chunk().map(|c| u16::from_ne_bytes(*c))
}
fn ne32(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..)?.first_chunk().map(|c| u32::from_ne_bytes(*c))
}

impl Rtnl {
    /// A socket in this thread's network namespace.
    ///
    /// # Errors
    /// Those of `socket(2)`.
    pub fn open() -> io::Result<Self> {
        // NETLINK_ROUTE is protocol 0.
        Ok(Self { fd: socket(AddressFamily::NETLINK, SocketType::DGRAM, None)?, sequence: 0 })
    }

    /// The link of this name.
    ///
    /// # Errors
    /// `ENODEV` when there is none.
    pub fn link(&mut self, name: &str) -> io::Result<LinkInfo> {
        let mut name = name.as_bytes().to_vec();
        name.push(0);
        self.ask_link(Message::new(RTM_GETLINK, 0).put(&[0; 16]).attribute(IFLA_IFNAME, &name))
    }

    /// The link of this number.
    ///
    /// # Errors
    /// `ENODEV` when there is none.
    pub fn link_by_index(&mut self, ifindex: u32) -> io::Result<LinkInfo> {
        self.ask_link(Message::new(RTM_GETLINK, 0).put32(0).put32(ifindex).put(&[0; 8]))
    }

    fn ask_link(&mut self, message: Message) -> io::Result<LinkInfo> {
        let mut found = None;
        self.request(message, |kind, body| {
            if kind == RTM_NEWLINK {
                found = found.take().or_else(|| parse_link(body));
            }
        })?;
        found.ok_or_else(|| io::Error::other("rtnetlink acknowledged a question that it did not answer"))
    }

    /// Changes a link.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; `EINVAL` for an MTU that the device does not take; `ENODEV`.
    pub fn set_link(&mut self, ifindex: u32, change: LinkChange) -> io::Result<()> {
        let (flags, mask) = change.up.map_or((0, 0), |up| (if up { IFF_UP } else { 0 }, IFF_UP));
        let mut m = Message::new(RTM_NEWLINK, 0).put32(0).put32(ifindex).put32(flags).put32(mask);
        if let Some(mtu) = change.mtu_bytes {
            m = m.attribute(IFLA_MTU, &mtu.to_ne_bytes());
        }
        if let Some(len) = change.tx_queue_len {
            m = m.attribute(IFLA_TXQLEN, &len.to_ne_bytes());
        }
        self.request(m, |_, _| {})
    }

    /// Makes a pair of virtual Ethernet links: `name` here, and `peer` in another network namespace, of which `netns` is
    /// a descriptor (`/proc/PID/ns/net`). Both are down.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN` in both namespaces; `EEXIST` when a name is taken; `EOPNOTSUPP` without the driver.
    pub fn add_veth(&mut self, name: &str, peer: &str, netns: impl AsFd) -> io::Result<()> {
        let netns = netns.as_fd().as_raw_fd().to_ne_bytes();
        let text = |name: &str| [name.as_bytes(), &[0]].concat();
        // An ifinfomsg and its attributes, as at the top.
        let there = Message(vec![0; 16]).attribute(IFLA_IFNAME, &text(peer)).attribute(IFLA_NET_NS_FD, &netns);
        let data = Message(Vec::new()).attribute(VETH_INFO_PEER, &there.0);
        let info = Message(Vec::new()).attribute(IFLA_INFO_KIND, b"veth").attribute(IFLA_INFO_DATA, &data.0);
        let m = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL).put(&[0; 16]);
        self.request(m.attribute(IFLA_IFNAME, &text(name)).attribute(IFLA_LINKINFO, &info.0), |_, _| {})
    }

    /// Gives a link an address, usable at once (no duplicate address detection).
    ///
    /// # Errors
    /// `EEXIST` when the link has it; `EPERM`; `EACCES` when IPv6 is switched off on the link; `ENODEV`.
    pub fn add_address(&mut self, ifindex: u32, cidr: Cidr) -> io::Result<()> {
        let body = [family(cidr.addr()), cidr.prefix_len(), IFA_F_NODAD, 0];
        let m = Message::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL).put(&body).put32(ifindex);
        self.request(m.address(IFA_LOCAL, cidr.addr()).address(IFA_ADDRESS, cidr.addr()), |_, _| {})
    }

    /// Sends a network over a link, without a gateway.
    ///
    /// # Errors
    /// `EEXIST` when there is such a route; `EPERM`; `ENETDOWN` when the link is down; `ENODEV`.
    pub fn add_route(&mut self, ifindex: u32, network: Cidr) -> io::Result<()> {
        let (af, len) = (family(network.addr()), network.prefix_len());
        let body = [af, len, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_LINK, RTN_UNICAST, 0, 0, 0, 0];
        let m = Message::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL).put(&body);
        let m = m.address(RTA_DST, network.network()).attribute(RTA_OIF, &ifindex.to_ne_bytes());
        self.request(m, |_, _| {})
    }

    /// Sends a message and reads what belongs to it, up to its acknowledgement.
    fn request(&mut self, message: Message, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.sequence += 1;
        let Message(mut bytes) = message;
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        sendto(&self.fd, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut reply = vec![0; REPLY_BYTES];
        loop {
            let got = match recv(&self.fd, &mut reply[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                got => got?.0,
            };
            let mut rest = reply.get(..got).unwrap_or_default();
            while let (Some(len), Some(kind), Some(sequence)) = (ne32(rest, 0), ne16(rest, 4), ne32(rest, 8)) {
                let body = rest.get(NLMSG_HDR..len as usize).ok_or_else(malformed)?;
                // A late answer to a request that failed before.
                let ours = sequence == self.sequence;
                if ours && kind == NLMSG_ERROR {
                    let code = ne32(body, 0).ok_or_else(malformed)?.cast_signed();
                    return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.wrapping_neg())) };
                }
                if ours {
                    each(kind, body);
                }
                rest = rest.get((len as usize).next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

fn malformed() -> io::Error {
    io::Error::other("rtnetlink gave an answer that contradicts itself")
}

/// ifinfomsg and its attributes.
fn parse_link(body: &[u8]) -> Option<LinkInfo> {
    let mut info =
        LinkInfo { ifindex: ne32(body, 4)?, name: String::new(), mtu_bytes: 0, up: ne32(body, 8)? & IFF_UP != 0 };
    let mut rest = body.get(16..)?;
    while let (Some(len), Some(kind)) = (ne16(rest, 0), ne16(rest, 2)) {
        let value = rest.get(4..usize::from(len))?;
        match kind {
            IFLA_IFNAME => {
                let text = value.split(|&b| b == 0).next().unwrap_or_default();
                info.name = String::from_utf8_lossy(text).into_owned();
            }
            IFLA_MTU => info.mtu_bytes = ne32(value, 0)?,
            _ => {}
        }
        rest = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
    }
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_found_both_ways() {
        let mut rtnl = Rtnl::open().expect("a netlink socket");
        let by_name = rtnl.link("lo").expect("every namespace has lo");
        assert_eq!((by_name.ifindex, by_name.name.as_str()), (LOOPBACK_IFINDEX, "lo"));
        assert!(by_name.mtu_bytes >= 1280);
        assert_eq!(rtnl.link_by_index(LOOPBACK_IFINDEX).expect("lo"), by_name);
    }

    #[test]
    fn what_is_not_there_is_enodev_and_the_next_answer_is_its_own() {
        let mut rtnl = Rtnl::open().expect("a netlink socket");
        let gone = rtnl.link("no-such-link-0").expect_err("no such link");
        assert_eq!(gone.raw_os_error(), Some(Errno::NODEV.raw_os_error()));
        assert_eq!(rtnl.link("lo").expect("lo").ifindex, LOOPBACK_IFINDEX);
    }

    #[test]
    fn attributes_are_padded_and_cut_replies_are_no_link() {
        let Message(m) = Message::new(RTM_GETLINK, 0).attribute(IFLA_IFNAME, b"abc\0x");
        assert_eq!(m.len(), NLMSG_HDR + 12);
        assert_eq!((ne16(&m, 16), ne16(&m, 18)), (Some(9), Some(IFLA_IFNAME)));
        assert_eq!(parse_link(&[0; 8]), None);
        assert_eq!(parse_link(&[&[0; 16][..], &[200, 0, 3, 0]].concat()), None, "an attribute beyond the end");
        assert_eq!(parse_link(&[&[0; 16][..], &[0, 0, 3, 0]].concat()), None, "an attribute of no length");
    }
}
