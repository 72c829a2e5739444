//! Fragments on the way out: packets of UDP and ICMP that are longer than the path MTU (RFC 791, RFC 8200 section 4.5).
//!
//! The checksum is made first, over the whole, since no device can make it over pieces. Then each piece is a new header and
//! references to the pages of the packet, `(mtu - headers) & !7` bytes of payload each but the last. Nothing is copied but
//! the bytes that lay in the head. All pieces are made before one is queued: what can not be cut is not sent in part.
//!
//! The socket's completion travels with the first piece alone: the pieces leave in a row, and a piece that the qdisc
//! refuses behind the first is lost like one on the wire (Linux reports neither). Limits: the pieces of a packet of 65,535
//! bytes at the least MTU of 68 are 1366. Not here: whether a packet may be cut, which its sender says
//! ([`IpTx::frag_mtu`](crate::ip_out::IpTx)).

use linerate_base::DropReason;
use linerate_offload::csum;
use linerate_skb::{Csum, Skb, SkbBatch, TxDoneToken};
use linerate_wire::IpRepr;
use linerate_wire::checksum;
use linerate_wire::ip::proto;
use linerate_wire::ipv4;

use super::head::FRAG_HEADER_LEN;
use super::ident;
use crate::core_state::Core;
use crate::ip_out::{self, IpTx, Xmit};

/// Room for the longest headers of a piece, and those of a link, bytes; the rest of the head is for its payload.
const HEADROOM: usize = 64;

/// Where one piece lies.
#[derive(Clone, Copy)]
struct Cut {
    offset: u32,
    len: u32,
    more: bool,
}

/// Sends an skb whose head starts at its transport header and that may be cut to `tx.frag_mtu`; in IPv4 without DF.
#[cold]
pub(crate) fn xmit(core: &mut Core, mut skb: Skb, tx: &IpTx) -> Xmit {
    core.mibs.ip.out_requests += 1;
    let ip = header(core, &skb, tx);
    let hl = ip.header_len() as u32;
    if skb.is_gso() || hl + skb.len() <= tx.frag_mtu {
        return whole(core, skb, &ip, tx);
    }
    let most = u32::from(u16::MAX) - if ip.src.is_ipv4() { hl } else { 0 };
    let headers = hl + if ip.src.is_ipv4() { 0 } else { FRAG_HEADER_LEN as u32 };
    let room = tx.frag_mtu.saturating_sub(headers) & !7;
    seed(&mut skb, &ip);
    if skb.len() > most || room == 0 || !csum::fill_partial(&mut skb, &core.kernels) {
        core.mibs.ip.frag_fails += 1;
        let _ = ip_out::refuse(core, skb, DropReason::PktTooBig);
        return Xmit::TooBig { mtu_bytes: tx.frag_mtu };
    }
    let mut pieces = SkbBatch::new();
    let made = cut(core, &skb, &ip, room, &mut pieces);
    if !made {
        core.mibs.ip.frag_fails += 1;
        pieces.drain(..).for_each(|piece| core.consume(piece));
        return ip_out::refuse(core, skb, DropReason::NoMem);
    }
    core.consume(skb);
    send_pieces(core, pieces, tx)
}

/// The header of the packet.
fn header(core: &mut Core, skb: &Skb, tx: &IpTx) -> IpRepr {
    let mut ip = IpRepr::new(tx.src, tx.dst, tx.proto, skb.len());
    ip.tos = tx.tos;
    ip.hop_limit = if tx.ttl == 0 { core.cfg.ttl } else { tx.ttl };
    ip.flow_label = skb.hash & 0xf_ffff;
    ip.dont_frag = false;
    if ip.src.is_ipv4() {
        let Core { frags, hash_key, rng, now, .. } = core;
        ip.ident = frags.idents.reserve_v4(hash_key, rng, *now, (tx.src, tx.dst, tx.proto), skb.wire_pkts());
    }
    ip
}

/// The pseudo-header's sum goes where the checksum will be.
fn seed(skb: &mut Skb, ip: &IpRepr) {
    let Csum::Partial { start, offset } = skb.csum else { return };
    let field = skb.head_from_mut(start.saturating_add(offset)).first_chunk_mut::<2>();
    debug_assert!(field.is_some(), "checksum field outside of the head");
    if let Some(field) = field {
        *field = checksum::fold(ip.pseudo_sum()).to_be_bytes();
    }
}

/// It fits: one packet.
fn whole(core: &mut Core, mut skb: Skb, ip: &IpRepr, tx: &IpTx) -> Xmit {
    seed(&mut skb, ip);
    skb.transport_header = skb.head_offset();
    let Some(h) = skb.push_head(ip.header_len()) else {
        return ip_out::refuse(core, skb, DropReason::DevHdr);
    };
    ip.emit(h);
    skb.network_header = skb.head_offset();
    skb.ip_version = if ip.src.is_ipv4() { 4 } else { 6 };
    ip_out::enqueue(core, skb, tx)
}

/// Makes all pieces. False: memory ran out; what was made is in `out`.
fn cut(core: &mut Core, skb: &Skb, ip: &IpRepr, room: u32, out: &mut SkbBatch) -> bool {
    let id = if ip.src.is_ipv4() { 0 } else { ident::random_v6(&mut core.rng) };
    let mut offset = 0;
    while offset < skb.len() {
        let len = room.min(skb.len() - offset);
        let at = Cut { offset, len, more: offset + len < skb.len() };
        let Some(mut piece) = core.mem.skbs.alloc() else { return false };
        let filled = fill(core, &mut piece, skb, at) && push_header(&mut piece, ip, id, at);
        if offset == 0 {
            (piece.tx_done, piece.truesize) = (skb.tx_done, skb.truesize);
        } else {
            piece.tx_done = TxDoneToken::NONE;
        }
        (piece.hash, piece.mark, piece.tstamp) = (skb.hash, skb.mark, skb.tstamp);
        piece.ip_version = skb.ip_version;
        out.push(piece);
        if !filled {
            return false;
        }
        offset += len;
    }
    true
}

/// The payload of a piece: linear bytes by copy, pages by reference.
fn fill(core: &mut Core, piece: &mut Skb, skb: &Skb, at: Cut) -> bool {
    let head = skb.head();
    let (from, end) = (at.offset as usize, (at.offset + at.len) as usize);
    let linear = head.get(from.min(head.len())..end.min(head.len())).unwrap_or_default();
    let in_pages = at.len - linear.len() as u32;
    let page_from = at.offset.saturating_sub(head.len() as u32);
    piece.reset_head(HEADROOM);
    let (in_head, mut rest) = linear.split_at(linear.len().min(piece.tailroom()));
    let mut whole = piece.put_head_from(in_head);
    while whole && !rest.is_empty() {
        let kernels = core.kernels;
        let Some(page) = core.mem.writable_page() else { return false };
        let (now, later) = rest.split_at(rest.len().min(page.room()));
        whole = page.append(&kernels, now).is_some_and(|frag| piece.push_frag(frag).is_ok());
        rest = later;
    }
    whole && piece.clone_frags_from(skb, page_from, in_pages)
}

/// The headers of a piece.
fn push_header(piece: &mut Skb, ip: &IpRepr, id: u32, at: Cut) -> bool {
    let mut ip = *ip;
    ip.payload_len = at.len;
    piece.transport_header = piece.head_offset();
    if ip.src.is_ipv4() {
        let Some(h) = piece.push_header::<{ ipv4::HEADER_LEN }>() else { return false };
        ip.emit(h);
        let field = (at.offset / 8) as u16 | if at.more { ipv4::MF } else { 0 };
        h[ipv4::field::FRAG..ipv4::field::FRAG + 2].copy_from_slice(&field.to_be_bytes());
        ipv4::fill_checksum(h);
    } else {
        let Some(f) = piece.push_header::<FRAG_HEADER_LEN>() else { return false };
        f[0] = ip.proto;
        f[2..4].copy_from_slice(&(at.offset as u16 | u16::from(at.more)).to_be_bytes());
        f[4..8].copy_from_slice(&id.to_be_bytes());
        (ip.proto, ip.payload_len) = (proto::FRAGMENT, at.len + FRAG_HEADER_LEN as u32);
        let Some(h) = piece.push_header::<40>() else { return false };
        ip.emit(h);
    }
    piece.network_header = piece.head_offset();
    true
}

fn send_pieces(core: &mut Core, mut pieces: SkbBatch, tx: &IpTx) -> Xmit {
    let Some(first) = pieces.pop_front() else { return Xmit::Ok };
    let sent = ip_out::enqueue(core, first, tx);
    if !sent.is_ok() {
        core.mibs.ip.frag_fails += 1;
        for piece in pieces {
            let _ = ip_out::refuse(core, piece, DropReason::QdiscDrop);
        }
        return sent;
    }
    core.mibs.ip.frag_creates += 1;
    let mut all = true;
    for piece in pieces {
        let piece_sent = ip_out::enqueue(core, piece, tx).is_ok();
        core.mibs.ip.frag_creates += u64::from(piece_sent);
        all &= piece_sent;
    }
    match all {
        true => core.mibs.ip.frag_oks += 1,
        false => core.mibs.ip.frag_fails += 1,
    }
    Xmit::Ok
}
