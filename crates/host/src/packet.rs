//! What every device that is handed whole packets by somebody else needs: a TUN, a caller's descriptor, a caller's channel.
//!
//! ```text
//!   [ link header ] IP header, extensions, TCP or UDP header | payload          one packet
//!   '---------------------- head of the skb ---------------' '-- pages --'
//! ```
//! [`Shape::header_len`] finds the end of the headers, [`vnet::take`] judges what the other side says about a packet (who
//! sums it, how it is to be cut), [`vnet::of`] says the same about what is sent, [`refuse`] names what can not be sent, and
//! the counters are those of [`Qstats`]. One set of rules, so that a lie has the same end on all of them.
//!
//! The packet's bytes and the words about it come from a stranger: everything here is checked against the packet and
//! against what was negotiated, and costs the same however it was chosen. What is no IP is handed on as headers only: the
//! stack refuses it, with its own reason. Not here: reading, writing, memory.

pub mod vnet;

use linerate_arch::Kernels;
use linerate_base::DropReason;
use linerate_netdev::{Features, Qstats};
use linerate_skb::{Csum, GsoType, MAX_FRAGS, Skb};
use linerate_wire::ip::proto;
use linerate_wire::{ipv4, ipv6};

use crate::tun::Offloads;

/// Headers longer than this are not looked for: the stack judges a chain of that length, or one that breaks off.
pub const HEAD_MAX: usize = 128;
/// The shortest header that has a payload behind it.
pub(crate) const HEAD_MIN: usize = ipv4::HEADER_LEN;

/// What both halves of every queue need to know.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the virtio header before each packet.
    pub vnet_len: usize,
    /// Bytes of the link header that each packet begins with: 0 or 14.
    pub link_len: usize,
    /// What may cross undone.
    pub offloads: Offloads,
    /// For checksums.
    pub kernels: Kernels,
    /// Longest IP packet that is no super-packet, bytes.
    pub mtu_bytes: u32,
    /// Longest super-packet, bytes.
    pub gso_max_size_bytes: u32,
}

impl Shape {
    /// What a queue promises to the stack.
    pub fn features(&self) -> Features {
        let on = self.offloads;
        Features {
            tx_csum: on.csum,
            tso4: on.tso4,
            tso6: on.tso6,
            uso: on.uso,
            rx_csum: on.csum,
            gro_hw: on.tso4 || on.tso6,
            gso_max_size: self.gso_max_size_bytes,
            max_frags: MAX_FRAGS as u32,
            hard_header_len: self.link_len as u8,
            ..Features::plain(self.mtu_bytes)
        }
    }

    /// Bytes of all headers of a packet, or of its first bytes `b`; `None` when more bytes are needed to tell. What is not IP
    /// has no payload: all of it is headers.
    pub fn header_len(&self, b: &[u8]) -> Option<usize> {
        let link = self.link_len;
        if link > 0 && !matches!(b.get(link - 2..link)?, [0x08, 0x00] | [0x86, 0xdd]) {
            return (b.len() >= HEAD_MAX).then_some(b.len());
        }
        Some(link + ip_header_len(b.get(link..)?)?)
    }
}

/// Length of the IP and transport headers of a packet that starts with `b`; `None` when more bytes are needed to tell.
fn ip_header_len(b: &[u8]) -> Option<usize> {
    let (l4, kind) = match b.first()? >> 4 {
        4 => {
            let ihl = usize::from(b.first()? & 15) * 4;
            let offset = u16::from_be_bytes([*b.get(6)? & 0x1f, *b.get(7)?]);
            (ihl, if offset == 0 { *b.get(9)? } else { proto::NO_NEXT_HEADER })
        }
        6 if matches!(b.get(6), Some(&(proto::TCP | proto::UDP))) => (ipv6::HEADER_LEN, *b.get(6)?),
        6 if b.len() < ipv6::HEADER_LEN => return None,
        6 => match ipv6::walk(b) {
            Ok(chain) => (ipv6::HEADER_LEN + chain.len, chain.proto),
            Err(linerate_wire::IpParseError::Truncated) => return None,
            Err(_) => return Some(b.len()),
        },
        _ => return Some(b.len()),
    };
    let len = match kind {
        proto::TCP => usize::from(b.get(l4 + 12)? >> 4) * 4,
        proto::UDP | proto::ICMP | proto::ICMPV6 => 8,
        _ => 0,
    };
    (l4 + len <= b.len()).then_some(l4 + len)
}

/// Why a device with these features can never send this skb.
pub fn refuse(skb: &Skb, f: &Features) -> Option<DropReason> {
    let partial = matches!(skb.csum, Csum::Partial { .. });
    let link = u32::from(f.hard_header_len);
    if skb.head_len() <= link as usize {
        return Some(DropReason::PktTooSmall);
    }
    if partial && !f.tx_csum {
        return Some(DropReason::DevHdr);
    }
    if skb.nr_frags() > MAX_FRAGS || skb.len() > f.gso_max_size.max(f.mtu) + link {
        return Some(DropReason::PktTooBig);
    }
    if !skb.is_gso() {
        return None;
    }
    let can = match skb.gso_type {
        GsoType::TcpV4 => f.tso4,
        GsoType::TcpV6 => f.tso6,
        GsoType::UdpL4 => f.uso,
        GsoType::None => false,
    };
    // The other side knows the segments of a packet only by its unfinished checksum.
    (!can || !partial || skb.gso_size > f.mtu).then_some(DropReason::SkbGsoSeg)
}

/// Counts a received skb.
pub fn count_rx(s: &mut Qstats, skb: &Skb) {
    let segs = u64::from(skb.wire_pkts());
    s.rx_skbs += 1;
    s.rx_wire_pkts += segs;
    s.rx_bytes += u64::from(skb.len()) + (segs - 1) * skb.head_len() as u64;
    if matches!(skb.csum, Csum::None) {
        s.rx_csum_none += segs;
    } else {
        s.rx_csum_unnecessary += segs;
    }
    if skb.is_gso() {
        s.rx_hw_gro_skbs += 1;
        s.rx_hw_gro_wire_pkts += segs;
    }
}

/// Counts an skb that was sent.
pub fn count_tx(s: &mut Qstats, skb: &Skb) {
    let segs = if skb.is_gso() { u64::from(skb.data_len().div_ceil(skb.gso_size)) } else { 1 };
    s.tx_skbs += 1;
    s.tx_wire_pkts += segs;
    s.tx_bytes += u64::from(skb.len()) + segs.saturating_sub(1) * skb.head_len() as u64;
    if matches!(skb.csum, Csum::Partial { .. }) {
        s.tx_csum_partial += segs;
    } else {
        s.tx_csum_none += segs;
    }
    if segs > 1 {
        s.tx_hw_gso_skbs += 1;
        s.tx_hw_gso_wire_pkts += segs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lengths() {
        let mut v4 = vec![0x45; 60];
        v4[6..8].fill(0);
        v4[9] = proto::TCP;
        v4[32] = 8 << 4;
        assert_eq!(ip_header_len(&v4), Some(52));
        assert_eq!(ip_header_len(&v4[..51]), None, "the options are cut off");
        assert_eq!(ip_header_len(&v4[..9]), None);
        v4[9] = proto::UDP;
        assert_eq!(ip_header_len(&v4), Some(28));
        v4[7] = 1;
        assert_eq!(ip_header_len(&v4), Some(20), "a fragment has no transport header");
        let mut v6 = vec![0x60; 100];
        v6[6] = proto::TCP;
        v6[52] = 8 << 4;
        assert_eq!(ip_header_len(&v6), Some(72));
        assert_eq!(ip_header_len(&v6[..71]), None);
        assert_eq!(ip_header_len(&[0x60, 0, 0]), None);
        v6[6] = proto::DSTOPTS;
        v6[40..48].copy_from_slice(&[proto::UDP, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(ip_header_len(&v6), Some(56));
        assert_eq!(ip_header_len(&[0x10; 9]), Some(9), "no IP: for the stack to refuse");
        assert_eq!(ip_header_len(&[]), None);
    }
}
