//! From the IP layer to the application: look-up, queue, `recv`, and ICMP errors.
//!
//! A datagram is queued as the skb that it came in, its head pulled to the payload. Peeking leaves it, reading takes one
//! datagram (or, with `gro`, the train), and the skb goes home when its last byte was taken. A buffer that is too short
//! loses the rest of the datagram, as the socket interface demands; the caller learns the true length.
//!
//! Limits: `rcvbuf`, in truesize, with one datagram always let in (Linux: the check is before the charge).

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use linerate_base::DropReason;
use linerate_netdev::IfIndex;
use linerate_skb::{Frag, SKB_TRUESIZE, Skb};
use linerate_wire::FlowKey;
use linerate_wire::ip::proto;
use linerate_wire::udp::{HEADER_LEN, UdpView};

use super::{Datagram, UdpLayer, UdpRecvError, UdpSock, bound_hash, conn_hash, unspecified};
use crate::core_state::Core;
use crate::icmp::{self, IcmpSend};
use crate::sock::{Ready, ReadyList, SockId, SockKind};
use crate::upcall::{IcmpUp, IpMeta};

/// How to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecvFlags {
    /// MSG_PEEK: the datagram stays in the queue.
    pub peek: bool,
}

/// What was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpRecv {
    /// Bytes written to the buffer.
    pub len: usize,
    /// Bytes of the datagram or train (what MSG_TRUNC returns).
    pub full_len: usize,
    /// Who sent it; IPv4 is not v4-mapped.
    pub from: SocketAddr,
    /// To which address it was sent (IP_PKTINFO; the original destination on any-ip devices).
    pub to: IpAddr,
    /// The device (IP_PKTINFO).
    pub ifindex: IfIndex,
    /// The two ECN bits.
    pub ecn: u8,
    /// The whole TOS byte or traffic class, the ECN bits included.
    pub tos: u8,
    /// Hop limit.
    pub ttl: u8,
    /// UDP_GRO: the buffer holds a train of datagrams of this many bytes each, the last maybe shorter.
    pub gso_size: Option<u16>,
    /// The buffer was too short: bytes are lost (or, peeking, not shown).
    pub truncated: bool,
}

/// Bytes that the next `recv` of `d` returns.
pub(super) fn next_len(s: &UdpSock, d: &Datagram) -> u32 {
    let len = d.skb.len();
    if d.skb.is_gso() && !s.opts.gro { len.min(d.skb.gso_size) } else { len }
}

impl UdpLayer {
    /// Receives a datagram, or a train of them, from the IP layer; its head starts at the UDP header.
    pub(crate) fn rcv(&mut self, core: &mut Core, ready: &mut ReadyList, meta: IpMeta, mut skb: Skb) {
        let (src_port, dst_port) = match UdpView::new_checked(skb.head()) {
            Ok(v) => (v.src_port(), v.dst_port()),
            Err(e) => {
                core.mibs.udp.in_errors += 1;
                return core.drop_skb(skb, e.drop_reason());
            }
        };
        let key = meta.key(proto::UDP, src_port, dst_port);
        let Some(index) = self.lookup(core, &key) else {
            if !meta.multicast {
                core.mibs.udp.no_ports += u64::from(skb.wire_pkts());
                icmp::send_error(core, &meta, proto::UDP, &skb, IcmpSend::PortUnreachable);
            }
            return core.drop_skb(skb, DropReason::NoSocket);
        };
        let pulled = skb.pull_head(HEADER_LEN);
        debug_assert!(pulled, "the view saw these bytes");
        let id = self.socks.key_of(index).map(|k| SockId::new(SockKind::Udp, k));
        let (Some(sock), Some(id)) = (self.socks.get_by_index_mut(index), id) else {
            return core.drop_skb(skb, DropReason::NoSocket);
        };
        if skb.truesize == 0 {
            skb.truesize = SKB_TRUESIZE.saturating_add(skb.data_len());
        }
        let truesize = skb.truesize;
        let bytes = sock.rcvq_bytes.saturating_add(truesize);
        if bytes > sock.opts.rcvbuf_bytes && !sock.rcvq.is_empty() {
            core.mibs.udp.rcvbuf_errors += u64::from(skb.wire_pkts());
            core.mibs.udp.in_errors += u64::from(skb.wire_pkts());
            return core.drop_skb(skb, DropReason::SocketRcvbuff);
        }
        sock.rcvq_bytes = bytes;
        sock.rcvq.push_back(Datagram { meta, src_port, skb, truesize });
        sock.tell(ready, &mut self.remote_dirty, id, Ready::READABLE);
    }

    /// The socket for a flow seen from this host: connected, then bound to the address, then to any.
    fn lookup(&self, core: &Core, flow: &FlowKey) -> Option<u32> {
        if let Some(i) = self.lookup_connected(core, flow) {
            return Some(i);
        }
        let (dst, port) = (flow.local_addr(), flow.local_port());
        let any = |s: &UdpSock| s.peer.is_none();
        let v4_too = |s: &UdpSock| s.peer.is_none() && !s.bind.v6only;
        self.pick(core, dst, port, flow, &any)
            .or_else(|| self.pick(core, unspecified(dst.is_ipv6()), port, flow, &any))
            .or_else(|| dst.is_ipv4().then(|| self.pick(core, unspecified(true), port, flow, &v4_too))?)
    }

    fn lookup_connected(&self, core: &Core, flow: &FlowKey) -> Option<u32> {
        if self.conns.is_empty() {
            return None;
        }
        let same = |s: &UdpSock| s.local == flow.local() && s.peer == Some(flow.remote());
        let hash = conn_hash(&core.hash_key, flow);
        self.conns.find(hash, |i| self.socks.get_by_index(i).is_some_and(same))
    }

    /// The socket bound to exactly this address: the latest, or by the flow's hash one of a `reuseport` group.
    fn pick(
        &self,
        core: &Core,
        addr: IpAddr,
        port: u16,
        flow: &FlowKey,
        wanted: &dyn Fn(&UdpSock) -> bool,
    ) -> Option<u32> {
        let hash = bound_hash(&core.hash_key, addr, port);
        let local = SocketAddr::new(addr, port);
        let fits = |s: &UdpSock| s.local == local && wanted(s);
        let (mut best, mut group) = (None::<(u64, u32, bool)>, 0u64);
        let _ = self.bound.find(hash, |i| {
            if let Some(s) = self.socks.get_by_index(i).filter(|s| fits(s)) {
                group += u64::from(s.bind.reuseport);
                if best.is_none_or(|b| s.order > b.0) {
                    best = Some((s.order, i, s.bind.reuseport));
                }
            }
            false
        });
        match best {
            Some((_, _, true)) if group > 1 => {
                let mut nth = conn_hash(&core.hash_key, flow) % group;
                self.bound.find(hash, |i| {
                    let member = self.socks.get_by_index(i).is_some_and(|s| fits(s) && s.bind.reuseport);
                    let chosen = member && nth == 0;
                    nth = nth.wrapping_sub(u64::from(member && nth > 0));
                    chosen
                })
            }
            other => other.map(|b| b.1),
        }
    }

    /// Takes the next datagram, or with `gro` the next train.
    ///
    /// # Errors
    /// See [`UdpRecvError`].
    pub fn recv_from(
        &mut self,
        core: &mut Core,
        id: SockId,
        buf: &mut [u8],
        flags: RecvFlags,
    ) -> Result<UdpRecv, UdpRecvError> {
        let sock = self.sock_mut(id).ok_or(UdpRecvError::BadSocket)?;
        if let Some(errno) = sock.error.take() {
            return Err(UdpRecvError::Pending(errno));
        }
        let front = sock.rcvq.front().ok_or(UdpRecvError::WouldBlock)?;
        let full_len = next_len(sock, front) as usize;
        let want = full_len.min(buf.len());
        let len = front.skb.copy_bytes(0, buf.get_mut(..want).unwrap_or_default());
        debug_assert_eq!(len, want);
        // A train's last datagram alone is an ordinary one.
        let train = sock.opts.gro && front.skb.is_gso() && full_len > front.skb.gso_size as usize;
        let out = UdpRecv {
            len,
            full_len,
            from: SocketAddr::new(front.meta.src, front.src_port),
            to: front.meta.dst,
            ifindex: front.meta.ifindex,
            ecn: front.meta.ecn,
            tos: front.meta.tos,
            ttl: front.meta.ttl,
            gso_size: if train { u16::try_from(front.skb.gso_size).ok() } else { None },
            truncated: len < full_len,
        };
        if !flags.peek {
            let datagrams = match front.skb.gso_size {
                0 => 1,
                size => full_len.div_ceil(size as usize).max(1) as u64,
            };
            core.mibs.udp.in_datagrams += datagrams;
            take_front(core, sock, full_len as u32);
        }
        Ok(out)
    }

    /// Most fragments that [`Self::recv_frags`] makes of what is first in the queue; `None` without any.
    pub(crate) fn front_frags(&self, id: SockId) -> Option<usize> {
        // What lies in the head is copied, into the rest of a page and perhaps another.
        self.sock(id)?.rcvq.front().map(|d| d.skb.nr_frags() + 2 * usize::from(d.skb.head_len() > 0))
    }

    /// Takes the first datagram or whole train as fragments, for a reader elsewhere. `None` without any, or when there was
    /// no page for bytes in the descriptor's head: then it is lost.
    pub(crate) fn recv_frags(&mut self, core: &mut Core, id: SockId, out: &mut Vec<Frag>) -> Option<UdpRecv> {
        let sock = self.sock_mut(id)?;
        let mut d = sock.rcvq.pop_front()?;
        sock.rcvq_bytes = sock.rcvq_bytes.saturating_sub(d.truesize);
        let full_len = d.skb.len() as usize;
        let gso_size = d.skb.gso_size;
        let mut bytes = d.skb.head();
        while !bytes.is_empty() {
            let page = core.mem.writable_page();
            let Some(frag) = page.and_then(|p| p.append(&core.kernels, bytes)) else {
                out.clear();
                core.mibs.udp.in_errors += 1;
                core.drop_skb(d.skb, DropReason::NoMem);
                return None;
            };
            bytes = bytes.get(frag.len() as usize..).unwrap_or_default();
            out.push(frag);
        }
        while let Some(frag) = d.skb.pop_front_frag() {
            out.push(frag);
        }
        let is_train = gso_size > 0 && full_len > gso_size as usize;
        core.mibs.udp.in_datagrams += if is_train { full_len.div_ceil(gso_size as usize) as u64 } else { 1 };
        core.consume(d.skb);
        Some(UdpRecv {
            len: full_len,
            full_len,
            from: SocketAddr::new(d.meta.src, d.src_port),
            to: d.meta.dst,
            ifindex: d.meta.ifindex,
            ecn: d.meta.ecn,
            tos: d.meta.tos,
            ttl: d.meta.ttl,
            gso_size: if is_train { u16::try_from(gso_size).ok() } else { None },
            truncated: false,
        })
    }

    /// An ICMP error about a datagram of ours.
    pub(crate) fn on_icmp(&mut self, core: &mut Core, ready: &mut ReadyList, up: &IcmpUp) {
        let connected = self.lookup_connected(core, &up.key);
        let Some(index) = connected.or_else(|| self.lookup(core, &up.key)) else {
            core.mibs.icmp.in_errors += 1;
            return;
        };
        if up.mtu_bytes != 0 {
            // No socket state to check the quote against: the four-tuple is all that UDP has.
            let _ = core.links.update_pmtu(up.key.remote_addr(), up.mtu_bytes, core.now);
        }
        let Some(id) = self.socks.key_of(index).map(|k| SockId::new(SockKind::Udp, k)) else { return };
        let Some(sock) = self.socks.get_by_index_mut(index) else { return };
        // RFC 1122 section 4.1.3.3, as Linux does without IP_RECVERR: connected sockets, hard errors.
        if connected.is_some() && (up.fatal || up.mtu_bytes != 0) {
            sock.error = Some(up.errno);
            sock.tell(ready, &mut self.remote_dirty, id, Ready::ERROR | Ready::READABLE);
        }
    }
}

/// Takes `len` bytes off the first datagram, which goes home when nothing is left.
fn take_front(core: &mut Core, sock: &mut UdpSock, len: u32) {
    let Some(front) = sock.rcvq.front_mut() else { return };
    if len < front.skb.len() {
        front.skb.pull(len);
        return;
    }
    if let Some(d) = sock.rcvq.pop_front() {
        debug_assert!(sock.rcvq_bytes >= d.truesize, "the queue's bytes are the sum of its datagrams");
        sock.rcvq_bytes = sock.rcvq_bytes.saturating_sub(d.truesize);
        core.consume(d.skb);
    }
}
