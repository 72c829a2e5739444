//! Cutting a super-packet into wire frames (SYSTEMS A18), TCP and UDP, IPv4 and IPv6.
//!
//! ```text
//!   [ip tcp][........ payload by reference ........]        gso_size = 4, 3 frames
//!   [ip tcp][....]   [ip tcp][....]   [ip tcp][..]
//! ```
//! All headers are the super-packet's, patched: TCP sequence, CWR only on the first, FIN and PSH only on the last, options
//! verbatim; lengths; the IPv4 identification counts up (or stays, with `SkbFlags::FIXED_ID`). The sums over what does not
//! change are taken once, so that a frame's header checksums cost a few additions; its payload is summed where it
//! lies unless that was done when it was copied there ([`Frag::noted_sum`]), and the last frame's sum is what remains of
//! `payload_sum` when that is known.
//!
//! Payload is never copied: a frame holds slices of the same pages, and all references to one page are taken with
//! one addition. [`Cutter`] is the engine, which hands out header bytes and fragments; [`segment`] wraps them into skbs.
//!
//! Invariants: the frames' payloads in order are the super-packet's; on an error nothing was emitted and the super-packet
//! comes back whole. Limits: at most 65535 frames of at most 65535 bytes; the whole header is linear and nothing else is.
//! Not done: jumbo headers, tunnels, fragments.

use linerate_arch::{Kernels, combine, fold};
use linerate_base::DropReason;
use linerate_skb::{CloneN, Csum, Frag, GsoType, HEAD_CAPACITY, Skb, SkbBatch, SkbFlags, TxDoneToken};
use linerate_wire::checksum;
use linerate_wire::ip::proto;

use crate::OffloadCx;
use crate::headers::{Headers, be16, be32, put16, put32};

/// Most frames of one super-packet.
pub const MAX_SEGS: u32 = 65_535;

const FIN: u16 = 0x01;
const PSH: u16 = 0x08;
const CWR: u16 = 0x80;

/// What happens to the frames' transport checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CsumMode {
    /// Computed here.
    Fill,
    /// Left as `Csum::Partial` with the pseudo-header seeded, for the device.
    LeavePartial,
}

/// One cut: made from a super-packet, gives its frames one after the other.
pub struct Cutter<'a> {
    skb: &'a Skb,
    kernels: &'a Kernels,
    mode: CsumMode,
    headers: Headers,
    /// The header of the frame given last.
    header: [u8; HEAD_CAPACITY],
    gso_size: u32,
    segs: u32,
    given: u32,
    /// Payload bytes not given yet.
    left: u32,
    seq: u32,
    /// The TCP word of data offset and flags of the super-packet.
    flags: u16,
    ident: u16,
    ident_step: u16,
    /// The sender does not sum (UDP over IPv4 with a zero field).
    unsummed: bool,
    /// Sum of the IPv4 header without length, identification and checksum.
    ip_sum: u32,
    /// Sum of pseudo-header and transport header without what changes by frame.
    l4_sum: u32,
    /// Sum of the payload given so far.
    payload_sum: u32,
    /// Known from the second frame on.
    middle: Option<Middle>,
    pieces: Pieces,
}

/// Of a TCP frame that is neither the first nor the last, summed: what all of these have in common.
#[derive(Clone, Copy)]
struct Middle {
    /// The IPv4 header without identification and checksum.
    ip_sum: u32,
    /// Pseudo-header and TCP header without sequence number and checksum.
    l4_sum: u32,
}

/// Where the payload cursor stands.
struct Pieces {
    /// Index of the next fragment.
    next: usize,
    /// References of the current one, taken together.
    clones: Option<CloneN>,
    off: u32,
    left: u32,
}

impl<'a> Cutter<'a> {
    /// Prepares to cut `skb` every `gso_size` payload bytes; 0 means the skb's own `gso_size`.
    ///
    /// # Errors
    /// `SkbGsoSeg`: no segment size, no payload, payload in the head, another protocol or type than announced, lengths
    /// that contradict each other, or more than [`MAX_SEGS`] frames. `PktTooBig`: a frame would exceed 65535 bytes.
    pub fn new(skb: &'a Skb, gso_size: u32, mode: CsumMode, kernels: &'a Kernels) -> Result<Self, DropReason> {
        let gso_size = if gso_size == 0 { skb.gso_size } else { gso_size };
        let headers = Headers::parse(skb)?;
        let segs = Self::check(skb, &headers, gso_size)?;
        let (l4, tcp) = (headers.l4, headers.proto == proto::TCP);
        let mut header = [0; HEAD_CAPACITY];
        let Some(to) = header.get_mut(..headers.end) else { return Err(DropReason::SkbGsoSeg) };
        to.copy_from_slice(skb.head());
        let at = l4 + headers.csum_offset();
        let unsummed =
            !tcp && headers.version == 4 && be16(&header, at) == 0 && !matches!(skb.csum, Csum::Partial { .. });
        let (seq, flags) = if tcp { (be32(&header, l4 + 4), be16(&header, l4 + 12)) } else { (0, 0) };
        let ident = if headers.version == 4 { be16(&header, 4) } else { 0 };
        let mut cutter = Self {
            skb,
            kernels,
            mode,
            headers,
            header,
            gso_size,
            segs,
            given: 0,
            left: skb.data_len(),
            seq,
            flags,
            ident,
            ident_step: u16::from(!skb.flags.contains(SkbFlags::FIXED_ID)),
            unsummed,
            ip_sum: 0,
            l4_sum: 0,
            payload_sum: 0,
            middle: None,
            pieces: Pieces { next: 0, clones: None, off: 0, left: 0 },
        };
        cutter.sum_constants();
        Ok(cutter)
    }

    /// The number of frames, when the super-packet can be cut.
    fn check(skb: &Skb, h: &Headers, gso_size: u32) -> Result<u32, DropReason> {
        let fits_type = matches!(
            (skb.gso_type, h.proto, h.version),
            (GsoType::TcpV4, proto::TCP, 4)
                | (GsoType::TcpV6, proto::TCP, 6)
                | (GsoType::UdpL4, proto::UDP, _)
                | (GsoType::None, proto::TCP | proto::UDP, _)
        );
        let whole = h.l4 as u32 + h.l4_len == skb.len() && h.end == skb.head_len();
        if gso_size == 0 || !fits_type || !whole || skb.data_len() == 0 {
            return Err(DropReason::SkbGsoSeg);
        }
        let segs = skb.data_len().div_ceil(gso_size);
        if segs > MAX_SEGS {
            return Err(DropReason::SkbGsoSeg);
        }
        let longest = gso_size.min(skb.data_len()).saturating_add(h.end as u32);
        if longest > 65_535 {
            return Err(DropReason::PktTooBig);
        }
        Ok(segs)
    }

    fn sum_constants(&mut self) {
        let (h, l4) = (self.headers, self.headers.l4);
        let at = l4 + h.csum_offset();
        put16(&mut self.header, at, 0);
        if h.version == 4 {
            put16(&mut self.header, 2, 0);
            put16(&mut self.header, 4, 0);
            put16(&mut self.header, 10, 0);
            self.ip_sum = checksum::sum(self.header.get(..l4).unwrap_or_default());
        }
        if h.proto == proto::TCP {
            put32(&mut self.header, l4 + 4, 0);
            put16(&mut self.header, l4 + 12, 0);
        } else {
            put16(&mut self.header, l4 + 4, 0);
        }
        let pseudo = h.pseudo(&self.header, 0);
        let transport = match self.mode {
            CsumMode::Fill => checksum::sum(self.header.get(l4..h.end).unwrap_or_default()),
            CsumMode::LeavePartial => 0,
        };
        self.l4_sum = u32::from(fold(pseudo)) + u32::from(fold(transport));
    }

    /// Frames in all, at least 1.
    pub fn segs(&self) -> u32 {
        self.segs
    }
    /// Bytes of each frame's header.
    pub fn header_len(&self) -> usize {
        self.headers.end
    }
    /// Where the transport header starts within it.
    pub fn transport_offset(&self) -> usize {
        self.headers.l4
    }
    /// The header of the frame that [`next_frame`](Self::next_frame) gave last.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.header.get(..self.headers.end).unwrap_or_default()
    }
    /// As [`header`](Self::header), in its first [`header_len`](Self::header_len) bytes, for copies of constant length.
    #[inline]
    pub fn header_padded(&self) -> &[u8; HEAD_CAPACITY] {
        &self.header
    }
    /// Offset of the checksum field from the transport header.
    pub fn csum_offset(&self) -> u16 {
        self.headers.csum_offset() as u16
    }
    /// What a frame's `csum` is, its head starting at `head_offset` of the head buffer.
    pub fn csum(&self, head_offset: u16) -> Csum {
        match self.mode {
            CsumMode::LeavePartial if !self.unsummed => {
                Csum::Partial { start: head_offset + self.headers.l4 as u16, offset: self.csum_offset() }
            }
            _ => Csum::None,
        }
    }

    /// Gives the next frame: its payload goes to `sink` piece by piece, its header is then in [`header`](Self::header).
    /// Returns its payload bytes; `None` when all frames were given.
    #[inline]
    pub fn next_frame(&mut self, mut sink: impl FnMut(Frag)) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        let len = self.gso_size.min(self.left);
        let last = len == self.left;
        // The last frame's sum is what the others left of the whole.
        let rest = match self.skb.payload_sum {
            Some(total) if last => Some(self.remaining_sum(total)),
            _ => None,
        };
        let sums = self.mode == CsumMode::Fill && !self.unsummed && rest.is_none();
        let sum = self.give_pieces(len, sums, &mut sink);
        let sum = rest.unwrap_or(sum);
        if sums && self.skb.payload_sum.is_some() {
            let before = self.skb.data_len() - self.left;
            self.payload_sum = combine(self.payload_sum, sum, before as usize);
        }
        match self.middle {
            Some(middle) if !last => self.patch_middle(middle, sum),
            _ => self.patch(len, last, sum),
        }
        self.left -= len;
        self.given += 1;
        Some(len)
    }

    fn remaining_sum(&self, total: u32) -> u32 {
        let rest = fold(checksum::combine(u32::from(fold(total)), u32::from(!fold(self.payload_sum))));
        let before = self.skb.data_len() - self.left;
        u32::from(if before % 2 == 1 { rest.swap_bytes() } else { rest })
    }

    /// Hands `len` payload bytes out and returns their sum when it is wanted.
    #[inline]
    fn give_pieces(&mut self, len: u32, sums: bool, sink: &mut impl FnMut(Frag)) -> u32 {
        let p = &mut self.pieces;
        if p.left >= len
            && let Some(mut piece) = p.clones.as_mut().and_then(Iterator::next)
        {
            piece.advance(p.off);
            piece.truncate(len);
            p.off += len;
            p.left -= len;
            let sum = if sums { sum_of(&piece, self.kernels) } else { 0 };
            sink(piece);
            return sum;
        }
        self.give_several(len, sums, sink)
    }

    /// The frame reaches into another fragment.
    fn give_several(&mut self, len: u32, sums: bool, sink: &mut impl FnMut(Frag)) -> u32 {
        let (mut done, mut sum) = (0, 0);
        while done < len {
            let p = &mut self.pieces;
            if p.left == 0 {
                let Some(frag) = self.skb.frags().get(p.next) else { break };
                p.next += 1;
                (p.off, p.left) = (0, frag.len());
                // This frame takes one reference, and every further frame that the fragment reaches into another.
                let beyond = frag.len().saturating_sub(len - done);
                p.clones = Some(frag.clone_n(1 + beyond.div_ceil(self.gso_size)));
            }
            let Some(mut piece) = p.clones.as_mut().and_then(Iterator::next) else { break };
            let n = p.left.min(len - done);
            piece.advance(p.off);
            piece.truncate(n);
            p.off += n;
            p.left -= n;
            if sums {
                sum = combine(sum, sum_of(&piece, self.kernels), done as usize);
            }
            done += n;
            sink(piece);
        }
        debug_assert_eq!(done, len, "fragments shorter than data_len");
        sum
    }

    /// Brings the header up to a frame that differs from the one before in sequence number, identification and sums only.
    #[inline]
    fn patch_middle(&mut self, middle: Middle, payload_sum: u32) {
        let (l4, index) = (self.headers.l4, self.given);
        if self.headers.version == 4 {
            let ident = self.ident.wrapping_add(self.ident_step.wrapping_mul(index as u16));
            put16(&mut self.header, 4, ident);
            put16(&mut self.header, 10, checksum::finish(middle.ip_sum + u32::from(ident)));
        }
        let seq = self.seq.wrapping_add(index.wrapping_mul(self.gso_size));
        put32(&mut self.header, l4 + 4, seq);
        // A TCP header is a whole number of words, so the payload's sum adds as it is.
        let sum = middle.l4_sum + (seq >> 16) + (seq & 0xffff) + u32::from(fold(payload_sum));
        put16(&mut self.header, l4 + 16, checksum::finish(sum));
    }

    /// Brings the header up to this frame.
    fn patch(&mut self, len: u32, last: bool, payload_sum: u32) {
        let (h, index) = (self.headers, self.given);
        let l4 = h.l4;
        let l4_len = (h.end - l4) as u32 + len;
        if h.version == 4 {
            let total = l4 as u32 + l4_len;
            let ident = self.ident.wrapping_add(self.ident_step.wrapping_mul(index as u16));
            put16(&mut self.header, 2, total as u16);
            put16(&mut self.header, 4, ident);
            let sum = u32::from(fold(self.ip_sum)) + total + u32::from(ident);
            put16(&mut self.header, 10, checksum::finish(sum));
        } else {
            put16(&mut self.header, 4, ((l4 - 40) as u32 + l4_len) as u16);
        }
        let mut sum = self.l4_sum + l4_len;
        let fill = self.mode == CsumMode::Fill;
        if h.proto == proto::TCP {
            let seq = self.seq.wrapping_add(index.wrapping_mul(self.gso_size));
            let mut flags = self.flags;
            if !last {
                flags &= !(FIN | PSH);
            }
            if index > 0 {
                flags &= !CWR;
            }
            put32(&mut self.header, l4 + 4, seq);
            put16(&mut self.header, l4 + 12, flags);
            if fill {
                sum += u32::from(flags);
                if index > 0 && !last {
                    let total = l4 as u32 + l4_len;
                    self.middle = Some(Middle { ip_sum: u32::from(fold(self.ip_sum)) + total, l4_sum: sum });
                }
                sum += (seq >> 16) + (seq & 0xffff);
            }
        } else {
            put16(&mut self.header, l4 + 4, l4_len as u16);
            if fill {
                sum += l4_len;
            }
        }
        let field = if self.unsummed {
            0
        } else if fill {
            match checksum::finish(sum + u32::from(swap_if(payload_sum, (h.end - l4) % 2 == 1))) {
                0 if h.proto == proto::UDP => 0xffff,
                c => c,
            }
        } else {
            fold(sum)
        };
        put16(&mut self.header, l4 + h.csum_offset(), field);
    }
}

/// The partial sum of a piece: its writer may have noted it.
#[inline]
fn sum_of(piece: &Frag, k: &Kernels) -> u32 {
    piece.noted_sum().unwrap_or_else(|| k.sum(piece.as_slice()))
}

const fn swap_if(sum: u32, odd: bool) -> u16 {
    let s = checksum::fold(sum);
    if odd { s.swap_bytes() } else { s }
}

/// Cuts `skb` into frames of `gso_size` payload bytes (0: its own `gso_size`), appends them to `out`, and returns how many.
/// The completion token and the super-packet's truesize go with the last frame. A super-packet of one frame goes on as
/// it is, with its checksum filled in if that is asked.
///
/// # Errors
/// The super-packet comes back whole with the reason to drop it under: see [`Cutter::new`]; `NoMem` when descriptors ran
/// out. `out` is then as it was.
pub fn segment(
    mut skb: Skb,
    gso_size: u32,
    cx: &mut OffloadCx<'_>,
    mode: CsumMode,
    out: &mut SkbBatch,
) -> Result<usize, (Skb, DropReason)> {
    let before = out.len();
    let segs = match Cutter::new(&skb, gso_size, mode, cx.kernels) {
        Err(reason) => return Err((skb, reason)),
        Ok(cutter) if cutter.segs() == 1 => 1,
        Ok(mut cutter) => {
            let segs = cutter.segs();
            if !emit(&mut cutter, cx, out) {
                for frame in out.drain(before..) {
                    cx.skbs.free(frame, cx.pool);
                }
                drop(cutter);
                return Err((skb, DropReason::NoMem));
            }
            segs
        }
    };
    if segs == 1 {
        if mode == CsumMode::Fill && !crate::csum::fill_partial(&mut skb, cx.kernels) {
            return Err((skb, DropReason::SkbGsoSeg));
        }
        (skb.gso_size, skb.gso_segs, skb.gso_type) = (0, 0, GsoType::None);
        out.push(skb);
        return Ok(1);
    }
    if let Some(last) = out.back_mut() {
        last.tx_done = skb.tx_done;
        last.truesize = skb.truesize;
    }
    cx.skbs.free(skb, cx.pool);
    Ok(segs as usize)
}

/// All frames into `out`; false when a descriptor was missing.
fn emit(cutter: &mut Cutter<'_>, cx: &mut OffloadCx<'_>, out: &mut SkbBatch) -> bool {
    let src = cutter.skb;
    for _ in 0..cutter.segs() {
        let Some(mut frame) = cx.skbs.alloc() else { return false };
        frame.set_max_frags(src.max_frags());
        let mut complete = true;
        let len = cutter.next_frame(|f| complete &= frame.push_frag(f).is_ok());
        if frame.tailroom() < cutter.header_len() {
            frame.reset_head(HEAD_CAPACITY - cutter.header_len());
        }
        complete &= frame.put_head_from(cutter.header());
        if !complete || len.is_none() {
            cx.skbs.free(frame, cx.pool);
            return false;
        }
        let at = frame.head_offset();
        frame.csum = cutter.csum(at);
        frame.network_header = at;
        frame.transport_header = at + cutter.transport_offset() as u16;
        frame.ip_version = cutter.headers.version;
        frame.gso_segs = 1;
        frame.tx_done = TxDoneToken::NONE;
        frame.truesize = 0;
        (frame.hash, frame.mark, frame.flags) = (src.hash, src.mark, src.flags);
        (frame.ifindex, frame.queue, frame.tstamp) = (src.ifindex, src.queue, src.tstamp);
        out.push(frame);
    }
    true
}
