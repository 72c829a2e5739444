//! The Ethernet half of a device: its address, which frames are for us, and what frames of our own look like.
//!
//! On the way in [`Ether::receive`] looks at the 14 bytes of each frame once, before merging: a frame is ours when it is
//! for our address, for all, or for a group that we joined; the others are counted (`OTHERHOST`), as on a card that is not in
//! promiscuous mode. The type field says what follows, and for IP the version there must agree. The header is then taken
//! off, so that everything above sees what a pure-IP device would have delivered. The padding of short frames is cut here,
//! so that GRO never sees it. Frames to a group or to all are marked [`L2_GROUP`]: TCP does not take them, whatever their IP
//! addresses say (RFC 1122 section 3.3.6).
//!
//! Control messages (ARP, discovery, reports) are built as bytes and leave by [`send`] through the qdisc like all else.
//! Not here: VLAN tags (such frames are of an unknown type), 802.3 length frames, pause frames.

use alloc::vec::Vec;
use core::net::IpAddr;

use linerate_base::{DropReason, Duration};
use linerate_netdev::{IfIndex, RxCx};
use linerate_skb::{Csum, HEAD_CAPACITY, Skb, SkbBatch, SkbFlags};
use linerate_wire::ethernet::{EthernetRepr, EthernetView, HEADER_LEN, ethertype};
use linerate_wire::{MacAddr, ipv4, ipv6};

use super::addrconf::Addrconf;
use super::group::Groups;
use super::table::Params;
use crate::config::{Ipv6Config, NeighConfig};
use crate::core_state::Core;
use crate::ip_out;

/// The frame came to a group or to all on the link.
pub(crate) const L2_GROUP: SkbFlags = SkbFlags(SkbFlags::FIRST_PRIVATE.0 << 8);
/// Payload of the shortest Ethernet frame: up to here there may be padding.
const MIN_PAYLOAD: u32 = 46;

/// What an Ethernet device has and a pure-IP device has not.
pub(crate) struct Ether {
    mac: MacAddr,
    pub(crate) conf: Ipv6Config,
    pub(crate) groups: Groups,
    pub(crate) addrconf: Addrconf,
    /// Times of ARP and of neighbour discovery.
    params: [Params; 2],
    /// ARP messages of the last poll.
    pub(crate) arp: SkbBatch,
    /// Queues are attached.
    pub(crate) up: bool,
}

/// What a frame is.
enum Frame {
    Ip { group: bool },
    Arp { group: bool },
    Bad(DropReason),
}

impl Ether {
    pub(crate) fn new(mac: MacAddr, conf: Ipv6Config, neigh: &NeighConfig) -> Self {
        Self {
            mac,
            conf,
            groups: Groups::new(),
            addrconf: Addrconf::default(),
            params: [Params::new(neigh), Params::new(neigh)],
            arp: SkbBatch::new(),
            up: false,
        }
    }
    pub(crate) fn mac(&self) -> MacAddr {
        self.mac
    }
    /// Times of the family of `addr`.
    pub(crate) fn params_of(&mut self, addr: IpAddr) -> &mut Params {
        &mut self.params[usize::from(!addr.is_ipv4())]
    }
    /// Times of neighbour discovery.
    pub(crate) fn nd_retrans(&self) -> Duration {
        self.params[1].retrans
    }

    #[inline]
    fn classify(&self, skb: &Skb) -> Frame {
        let Ok(v) = EthernetView::new_checked(skb.head()) else { return Frame::Bad(DropReason::PktTooSmall) };
        let dst = v.dst();
        let group = dst.is_multicast();
        if dst != self.mac && !(group && (dst == MacAddr::BROADCAST || self.groups.has_mac(dst))) {
            return Frame::Bad(DropReason::OtherHost);
        }
        // Who sends from a group address is nobody (IEEE 802.3 section 3.2.3).
        if v.src().is_multicast() {
            return Frame::Bad(DropReason::IpInvalidSource);
        }
        let version = skb.head().get(HEADER_LEN).map_or(0, |b| b >> 4);
        match (v.outer_type(), version) {
            (ethertype::IPV4, 4) | (ethertype::IPV6, 6) => Frame::Ip { group },
            (ethertype::ARP, _) => Frame::Arp { group },
            (ethertype::IPV4 | ethertype::IPV6, _) if skb.len() == HEADER_LEN as u32 => {
                Frame::Bad(DropReason::PktTooSmall)
            }
            (ethertype::IPV4 | ethertype::IPV6, _) => Frame::Bad(DropReason::IpInHdr),
            _ => Frame::Bad(DropReason::UnhandledProto),
        }
    }

    /// Makes packets of the frames in `batch`: those to be merged stay there, those to a group go to `out`, ARP is kept
    /// for [`super::arp::input`].
    pub(crate) fn receive(&mut self, cx: &mut RxCx<'_>, batch: &mut SkbBatch, out: &mut SkbBatch) {
        for _ in 0..batch.len() {
            let Some(mut skb) = batch.pop_front() else { break };
            // A device that does not split headers may leave fewer bytes in the head.
            let want = skb.len().min(HEADER_LEN as u32 + 1) as usize;
            if skb.head_len() < want {
                skb.pull_to_head(want);
            }
            let frame = self.classify(&skb);
            match frame {
                Frame::Bad(reason) => {
                    cx.drops.count(reason);
                    // Where IP would begin: it says that the link header is still there.
                    skb.network_header = skb.head_offset() + HEADER_LEN as u16;
                    cx.skbs.drop_skb(skb, cx.pool, reason);
                }
                Frame::Arp { group } => {
                    pull(&mut skb, group);
                    self.arp.push(skb);
                }
                Frame::Ip { group } => {
                    pull(&mut skb, group);
                    trim_padding(&mut skb);
                    if group { out.push(skb) } else { batch.push(skb) }
                }
            }
        }
    }
}

/// Takes the link header off; what it said about the receivers stays as a flag.
#[inline]
fn pull(skb: &mut Skb, group: bool) {
    skb.pull_head(HEADER_LEN);
    if group {
        skb.flags.insert(L2_GROUP);
    } else {
        skb.flags.remove(L2_GROUP);
    }
}

/// Cuts a short frame to what its IP header says; a header that contradicts itself is left for IP to judge.
#[inline]
fn trim_padding(skb: &mut Skb) {
    if skb.len() > MIN_PAYLOAD {
        return;
    }
    let head = skb.head();
    let field = |at: usize| head.get(at..at + 2).map_or(0, |b| u32::from(u16::from_be_bytes([b[0], b[1]])));
    let (len, least) = match head.first().map(|b| b >> 4) {
        Some(4) => (field(2), ipv4::HEADER_LEN as u32),
        _ => (field(4) + ipv6::HEADER_LEN as u32, ipv6::HEADER_LEN as u32 + 1),
    };
    if (least..skb.len()).contains(&len) {
        if matches!(skb.csum, Csum::Complete(_)) {
            skb.csum = Csum::None;
        }
        skb.trim(len);
    }
}

/// Sends one message of our own: `payload` behind a link header. False when there is no memory or no device for it, or
/// the qdisc is full: such messages are sent again by their timers.
pub(crate) fn send(core: &mut Core, ifindex: IfIndex, dst: MacAddr, kind: u16, payload: &[u8]) -> bool {
    let Some(src) = core.links.ether(ifindex).filter(|e| e.up).map(Ether::mac) else { return false };
    let Some(mut skb) = core.mem.skbs.alloc() else {
        core.mibs.drops.count(DropReason::NoMem);
        return false;
    };
    skb.reset_head((HEAD_CAPACITY - payload.len().min(HEAD_CAPACITY)).min(64));
    let made = skb.put_head_from(payload)
        && skb.push_header::<HEADER_LEN>().is_some_and(|h| {
            EthernetRepr { dst, src, ethertype: kind, vlan_tci: None }.emit(h);
            true
        });
    if !made {
        debug_assert!(false, "a control message longer than a head");
        core.drop_skb(skb, DropReason::DevHdr);
        return false;
    }
    skb.network_header = skb.head_offset() + HEADER_LEN as u16;
    skb.ip_version = match kind {
        ethertype::IPV4 => 4,
        ethertype::IPV6 => 6,
        _ => 0,
    };
    ip_out::dev_queue_xmit(core, skb, ifindex).is_ok()
}

/// A list of all that is due on Ethernet devices: their numbers.
pub(crate) fn devices(core: &Core) -> Vec<IfIndex> {
    core.links.devices().filter(|d| d.ether.is_some()).map(|d| d.ifindex).collect()
}
