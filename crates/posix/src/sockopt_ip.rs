//! Options of levels SOL_IP, SOL_IPV6 and SOL_UDP.
//!
//! An AF_INET6 socket knows both IP levels (its v4-mapped traffic is IPv4), an AF_INET socket only its own. SOL_IP takes a
//! byte where an int is too long, and gives one back to a caller with less room than an int. On a stream the two ECN bits
//! of TOS belong to TCP and are kept. IP_MINTTL guards streams, as in Linux, against segments and not against ICMP errors.
//! What a datagram's control messages tell (IP_PKTINFO, IP_RECVTTL, ...) is made in `recv`.

use linerate_base::{Errno, Key};
use linerate_stack::udp::PmtuDisc;

use crate::abi::*;
use crate::call::Reply;
use crate::posix::Posix;
use crate::sock::{Proto, Sock};
use crate::sockopt::{Plain, fixed_flag, flag, give, int_of, number, plain_row};

const IP: &[Plain] = &[
    number(SOL_IP, IP_TOS, 0, i32::MIN, i32::MAX),
    number(SOL_IP, IP_TTL, -1, -1, 255),
    number(SOL_IP, IP_MTU_DISCOVER, 1, 0, 5),
    number(SOL_IP, IP_MINTTL, 0, 0, 255),
    flag(SOL_IP, IP_PKTINFO, 0),
    flag(SOL_IP, IP_RECVTTL, 0),
    flag(SOL_IP, IP_RECVTOS, 0),
    flag(SOL_IP, IP_RECVORIGDSTADDR, 0),
    // IP options are not given up, there is no error queue, and only own addresses are bound, with their port at once.
    fixed_flag(SOL_IP, IP_RECVOPTS, 0),
    fixed_flag(SOL_IP, IP_RETOPTS, 0),
    fixed_flag(SOL_IP, IP_RECVERR, 0),
    fixed_flag(SOL_IP, IP_FREEBIND, 0),
    fixed_flag(SOL_IP, IP_TRANSPARENT, 0),
    fixed_flag(SOL_IP, IP_BIND_ADDRESS_NO_PORT, 0),
    number(SOL_IPV6, IPV6_UNICAST_HOPS, -1, -1, 255),
    number(SOL_IPV6, IPV6_MTU_DISCOVER, 1, 0, 5),
    number(SOL_IPV6, IPV6_TCLASS, 0, -1, 255),
    number(SOL_IPV6, IPV6_MINHOPCOUNT, 0, 0, 255),
    flag(SOL_IPV6, IPV6_V6ONLY, 0),
    flag(SOL_IPV6, IPV6_RECVPKTINFO, 0),
    flag(SOL_IPV6, IPV6_RECVHOPLIMIT, 0),
    flag(SOL_IPV6, IPV6_RECVTCLASS, 0),
    fixed_flag(SOL_IPV6, IPV6_RECVERR, 0),
    flag(SOL_IPV6, IPV6_DONTFRAG, 0),
    // Every flow has its label.
    fixed_flag(SOL_IPV6, IPV6_AUTOFLOWLABEL, 1),
    fixed_flag(SOL_IPV6, IPV6_FREEBIND, 0),
];

/// IP_PMTUDISC_WANT and IP_PMTUDISC_DO, all that a stream does: every packet says that it must not be fragmented, and the
/// path MTU is obeyed.
const STREAM_DISCOVERS: core::ops::RangeInclusive<i32> = 1..=2;

fn level_fits(s: &Sock, level: i32) -> bool {
    s.is_v6 || level == SOL_IP
}

/// An int, or a single byte where SOL_IP is given less.
fn ip_value(level: i32, value: Option<&[u8]>, len: i32) -> Result<i32, Errno> {
    match (level, len) {
        (SOL_IP, 0) => Ok(0),
        (SOL_IP, 1..=3) => value.and_then(|v| v.first()).map(|b| i32::from(*b)).ok_or(Errno::EFAULT),
        _ => int_of(value, len),
    }
}

impl Posix {
    pub(crate) fn set_ip(
        &mut self,
        file: Key,
        level: i32,
        name: i32,
        value: Option<&[u8]>,
        len: i32,
    ) -> Result<(), Errno> {
        let s = self.files.sock_at(file).ok_or(Errno::ENOTSOCK)?;
        if !level_fits(s, level) {
            return Err(Errno::ENOPROTOOPT);
        }
        let row = plain_row(IP, level, name).ok_or(Errno::ENOPROTOOPT)?;
        let v = ip_value(level, value, len)?;
        let stream = s.tcp().is_some();
        if (level, name) == (SOL_IP, IP_TTL) && (len < 1 || v == 0) {
            return Err(Errno::EINVAL);
        }
        if (level, name) == (SOL_IPV6, IPV6_V6ONLY) && self.has_port(s) {
            return Err(Errno::EINVAL);
        }
        let mut v = row.checked(v)?;
        let discovers = matches!((level, name), (SOL_IP, IP_MTU_DISCOVER) | (SOL_IPV6, IPV6_MTU_DISCOVER));
        if stream && discovers && !STREAM_DISCOVERS.contains(&v) {
            return Err(Errno::ENOPROTOOPT);
        }
        if (level, name) == (SOL_IP, IP_MINTTL) && len < 1 {
            return Err(Errno::EINVAL);
        }
        match (level, name) {
            (SOL_IP, IP_TOS) => v = if stream { v & 0xfc } else { v & 0xff },
            (SOL_IPV6, IPV6_TCLASS) => v = if stream { v.max(0) & 0xfc } else { v.max(0) },
            _ => {}
        }
        self.with_sock(file, |s| {
            s.plain.insert((level, name), v);
        });
        match (level, name) {
            (SOL_IP, IP_TOS) if stream => self.push_opts(file, |o| o.tos = v as u8),
            (SOL_IP, IP_TTL) if stream => self.push_opts(file, |o| o.ttl = v.max(0) as u8),
            (SOL_IPV6, IPV6_TCLASS) if stream => self.push_opts(file, |o| o.tclass = v as u8),
            (SOL_IPV6, IPV6_UNICAST_HOPS) if stream => self.push_opts(file, |o| o.hop_limit = v.max(0) as u8),
            (SOL_IP, IP_MINTTL) => self.push_opts(file, |o| o.min_ttl = v as u8),
            (SOL_IPV6, IPV6_MINHOPCOUNT) => self.push_opts(file, |o| o.min_hopcount = v as u8),
            (SOL_IP, IP_TOS) | (SOL_IPV6, IPV6_TCLASS) => self.udp_opts(file, |o| o.tos = v as u8),
            (SOL_IP, IP_TTL) | (SOL_IPV6, IPV6_UNICAST_HOPS) => self.udp_opts(file, |o| o.ttl = v.max(0) as u8),
            (SOL_IP, IP_MTU_DISCOVER) => {
                self.udp_opts(file, |o| o.mtu_discover = PmtuDisc::from_number(v).unwrap_or_default());
            }
            (SOL_IPV6, IPV6_MTU_DISCOVER) => {
                self.udp_opts(file, |o| o.mtu_discover6 = PmtuDisc::from_number(v).unwrap_or_default());
            }
            (SOL_IPV6, IPV6_DONTFRAG) => self.udp_opts(file, |o| o.dont_frag6 = v != 0),
            _ => {}
        }
        Ok(())
    }

    fn has_port(&self, s: &Sock) -> bool {
        match s.proto {
            Proto::Tcp(id) => self.shard.local_addr(id).is_some_and(|a| a.port() != 0),
            Proto::Udp(id) => self.shard.udp().local_addr(id).is_some_and(|a| a.port() != 0),
        }
    }

    pub(crate) fn get_ip(&mut self, file: Key, level: i32, name: i32, null: bool, len: i32) -> Result<Reply, Errno> {
        let s = self.files.sock_at(file).ok_or(Errno::ENOTSOCK)?;
        if !level_fits(s, level) {
            return Err(Errno::ENOPROTOOPT);
        }
        let v = match (level, name) {
            (SOL_IP, IP_MTU) | (SOL_IPV6, IPV6_MTU) => self.path_mtu(s).ok_or(Errno::ENOTCONN)?,
            _ => {
                let row = plain_row(IP, level, name).ok_or(Errno::ENOPROTOOPT)?;
                let set = s.plain.get(&(level, name)).copied().unwrap_or(row.default);
                let is_hops = matches!((level, name), (SOL_IP, IP_TTL) | (SOL_IPV6, IPV6_UNICAST_HOPS));
                if is_hops && set < 0 { i32::from(self.shard.config().ttl) } else { set }
            }
        };
        if level == SOL_IP && (1..4).contains(&len) && (0..256).contains(&v) {
            return give(&[v as u8], null, len);
        }
        give(&v.to_le_bytes(), null, len)
    }

    /// The path MTU of a connected socket, bytes.
    fn path_mtu(&self, s: &Sock) -> Option<i32> {
        match s.proto {
            Proto::Tcp(id) => self.shard.conn(id).map(|c| c.path().mtu_bytes as i32),
            Proto::Udp(_) => {
                let peer = s.peer?;
                let route = self.shard.links().route(peer.ip(), None, None, self.shard.now()).ok()?;
                Some(route.path.mtu_bytes as i32)
            }
        }
    }

    pub(crate) fn set_udp(&mut self, file: Key, name: i32, value: Option<&[u8]>, len: i32) -> Result<(), Errno> {
        let v = int_of(value, len)?;
        let v = match name {
            UDP_SEGMENT if (0..=0xffff).contains(&v) => v,
            UDP_SEGMENT => return Err(Errno::EINVAL),
            UDP_GRO => i32::from(v != 0),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        self.with_sock(file, |s| {
            s.plain.insert((SOL_UDP, name), v);
        });
        if name == UDP_GRO {
            self.udp_opts(file, |o| o.gro = v != 0);
        }
        Ok(())
    }

    pub(crate) fn get_udp(&mut self, file: Key, name: i32) -> Result<Vec<u8>, Errno> {
        let s = self.files.sock_at(file).ok_or(Errno::ENOTSOCK)?;
        match name {
            UDP_SEGMENT | UDP_GRO => Ok(s.plain(SOL_UDP, name).to_le_bytes().to_vec()),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }
}
