//! The virtio header against the packet behind it: what an skb says about itself, and the other way round.
//!
//! ```text
//!   received  NEEDS_CSUM at the transport header  -> Csum::Partial: verified by origin (as CHECKSUM_PARTIAL in Linux)
//!             NEEDS_CSUM elsewhere in the packet  -> summed here, Csum::None: the stack verifies the transport header
//!             DATA_VALID                          -> Csum::Unnecessary
//!             a GSO type that was negotiated      -> gso_size, gso_segs, gso_type
//!   sent      the reverse; hdr_len is what the kernel makes linear
//! ```
//! Received numbers are the writer's word. The rules, each with its reason to drop: a type or checksum help that was not
//! negotiated, offsets or `hdr_len` beyond the packet, a size of 0, an ECN mark beside UDP (`DevHdr`); a type that is not
//! the packet's own, headers that do not lead to a payload, lengths that contradict each other (`SkbGsoSeg`); headers
//! that are no IP, TCP or UDP (their own reasons). A super-packet of one segment is a packet, as in Linux.
//!
//! `Csum::Partial` on a received skb is only safe while it stays inside: who sends it on completes it
//! ([`linerate_offload::csum::fill_partial`]).

use linerate_base::DropReason;
use linerate_offload::{Headers, csum};
use linerate_skb::{Csum, GsoType, HEAD_CAPACITY, Skb};
use linerate_wire::ip::proto;
use linerate_wire::tcp;
use linerate_wire::virtio_net_hdr::{PartialCsum, VirtioGso, VirtioNetHdr};

use super::Shape;

/// Most wire frames of one super-packet.
const MAX_SEGS: u32 = 65_535;
const CWR: u8 = 0x80;

/// As [`take`] for the bytes of a header, of either length.
pub(crate) fn take_bytes(skb: &mut Skb, header: &[u8], shape: &Shape) -> Result<(), DropReason> {
    // Nearly all that is not a super-packet has a header of zeros.
    if header.iter().all(|&b| b == 0) {
        return Ok(());
    }
    let mut whole = [0; linerate_wire::virtio_net_hdr::LEN];
    let n = header.len().min(whole.len());
    whole.iter_mut().zip(header).take(n).for_each(|(to, from)| *to = *from);
    let h = VirtioNetHdr::parse(&whole).map_err(|_| DropReason::DevHdr)?;
    take(skb, &h, shape)
}

/// Takes a received header's word as far as it is true.
///
/// # Errors
/// The reason for which the skb is to be dropped.
pub fn take(skb: &mut Skb, h: &VirtioNetHdr, shape: &Shape) -> Result<(), DropReason> {
    if h.rsc_info || !h.fits(skb.len()) || u32::from(h.hdr_len) > skb.len() {
        return Err(DropReason::DevHdr);
    }
    // From here on as without a link header, but for the offsets, which count from it.
    if !skb.pull_head(shape.link_len) {
        return Err(DropReason::PktTooSmall);
    }
    take_csum(skb, h, shape)?;
    if h.gso != VirtioGso::None {
        take_gso(skb, h, shape)?;
    }
    let back = skb.unpull_head(shape.link_len);
    debug_assert!(back, "the link header was pulled here");
    Ok(())
}

fn take_csum(skb: &mut Skb, h: &VirtioNetHdr, shape: &Shape) -> Result<(), DropReason> {
    let Some(at) = h.csum else {
        if h.data_valid {
            skb.csum = Csum::Unnecessary;
        }
        return Ok(());
    };
    if !shape.offloads.csum {
        return Err(DropReason::DevHdr);
    }
    let Some(from) = usize::from(at.start).checked_sub(shape.link_len) else { return Err(DropReason::DevHdr) };
    let own = Headers::parse(skb).is_ok_and(|p| {
        let field = if p.proto == proto::TCP { 16 } else { 6 };
        matches!(p.proto, proto::TCP | proto::UDP) && from == p.l4 && at.offset == field
    });
    // Within the head after this, which is what everybody else relies on.
    let end = from + usize::from(at.offset) + 2;
    if end > HEAD_CAPACITY || !skb.pull_to_head(end) {
        return Err(DropReason::DevHdr);
    }
    let start = skb.head_offset().saturating_add(from as u16);
    skb.csum = Csum::Partial { start, offset: at.offset };
    if own || csum::fill_partial(skb, &shape.kernels) { Ok(()) } else { Err(DropReason::DevHdr) }
}

fn take_gso(skb: &mut Skb, h: &VirtioNetHdr, shape: &Shape) -> Result<(), DropReason> {
    let on = shape.offloads;
    let (gso_type, negotiated) = match h.gso {
        VirtioGso::TcpV4 => (GsoType::TcpV4, on.tso4),
        VirtioGso::TcpV6 => (GsoType::TcpV6, on.tso6),
        VirtioGso::UdpL4 => (GsoType::UdpL4, on.uso),
        VirtioGso::None | VirtioGso::Udp => (GsoType::None, false),
    };
    if !negotiated || (h.ecn && !on.tso_ecn) {
        return Err(DropReason::DevHdr);
    }
    let p = Headers::parse(skb)?;
    let own = match gso_type {
        GsoType::TcpV4 => p.version == 4 && p.proto == proto::TCP,
        GsoType::TcpV6 => p.version == 6 && p.proto == proto::TCP,
        _ => p.proto == proto::UDP,
    };
    // The reader put exactly the headers into the head; anything else is not what its type says.
    let whole = p.l4 as u32 + p.l4_len == skb.len() && p.end == skb.head_len();
    if !own || !whole || skb.data_len() == 0 {
        return Err(DropReason::SkbGsoSeg);
    }
    let size = u32::from(h.gso_size);
    let segs = skb.data_len().div_ceil(size.max(1));
    if size == 0 || segs > MAX_SEGS {
        return Err(DropReason::SkbGsoSeg);
    }
    if segs > 1 {
        (skb.gso_size, skb.gso_segs, skb.gso_type) = (size, segs, gso_type);
    }
    Ok(())
}

/// The header that says about `skb` what it says about itself.
pub fn of(skb: &Skb) -> VirtioNetHdr {
    let head = skb.head_offset();
    let csum = match skb.csum {
        Csum::Partial { start, offset } => Some(PartialCsum { start: start.saturating_sub(head), offset }),
        _ => None,
    };
    // What the kernel makes linear: all headers, and no payload.
    let mut h = VirtioNetHdr { csum, hdr_len: skb.head_len() as u16, ..VirtioNetHdr::default() };
    if skb.is_gso() && skb.data_len() > skb.gso_size {
        h.gso = match skb.gso_type {
            GsoType::TcpV4 => VirtioGso::TcpV4,
            GsoType::TcpV6 => VirtioGso::TcpV6,
            GsoType::UdpL4 => VirtioGso::UdpL4,
            GsoType::None => VirtioGso::None,
        };
        h.gso_size = skb.gso_size.min(u32::from(u16::MAX)) as u16;
        let flags = csum.and_then(|c| skb.head().get(usize::from(c.start) + tcp::field::FLAGS + 1)).copied();
        h.ecn = h.gso != VirtioGso::UdpL4 && flags.unwrap_or(0) & CWR != 0;
    }
    h
}
