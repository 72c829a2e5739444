//! What crosses between the two threads: slots of 128 bytes, two cache lines.
//!
//! ```text
//!   First      offload facts, 76 header bytes, 2 fragments      enough for a wire frame
//!   Small      120 bytes of a packet that has no more        requests and responses: no reference crosses
//!   MoreHead   116 header bytes                                 headers above 76 bytes (many options, small datagrams)
//!   MoreFrags  7 fragments                                      super-packets: 17 fragments are 4 slots
//! ```
//! A frame is a `First` and as many continuations as its counts say; all slots of a frame are published together. The
//! header travels in the slot itself (the descriptor stays with its owner's cache), the payload as counted references.
//! [`encode`] and [`Assembler`] are inverses. A slot that is dropped lets its references go, so a ring that dies with
//! frames inside leaks nothing.

use linerate_netdev::{FRAME_HEAD, FrameFrags, SMALL_BYTES};
use linerate_skb::{Csum, Frag, GsoType, HEAD_CAPACITY, Skb, SkbCache, SkbFlags};

pub(crate) const FIRST_HEAD: usize = FRAME_HEAD;
pub(crate) const MORE_HEAD: usize = HEAD_CAPACITY - FIRST_HEAD;
pub(crate) const FIRST_FRAGS: usize = 2;
pub(crate) const MORE_FRAGS: usize = 7;

/// The offload facts of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameMeta {
    pub(crate) gso_size: u32,
    pub(crate) gso_segs: u16,
    pub(crate) gso_type: GsoType,
    pub(crate) hash: u32,
    /// Offset of the transport header from the IP header, 0 = unknown.
    pub(crate) l4: u8,
    pub(crate) fixed_id: bool,
    /// The sender left the checksum to the device and the device did not compute it: good by construction.
    pub(crate) csum_good: bool,
}

#[repr(align(128))]
pub(crate) enum Slot {
    First { frags: [Option<Frag>; FIRST_FRAGS], meta: FrameMeta, head_len: u8, nr_frags: u8, head: [u8; FIRST_HEAD] },
    Small { hash: u32, len: u8, l4: u8, payload_len: u8, bytes: [u8; SMALL_BYTES] },
    MoreHead([u8; MORE_HEAD]),
    MoreFrags([Option<Frag>; MORE_FRAGS]),
}

const _: () = assert!(size_of::<Slot>() == 128);

/// Slots of a frame.
pub(crate) const fn slots_of(head_len: usize, nr_frags: usize) -> usize {
    1 + (head_len > FIRST_HEAD) as usize + nr_frags.saturating_sub(FIRST_FRAGS).div_ceil(MORE_FRAGS)
}

/// As [`encode`] for a header in the first `head_len` bytes of its array: one slot made of copies of constant length
/// where that is enough.
#[inline]
pub(crate) fn encode_padded(
    header: &[u8; HEAD_CAPACITY],
    head_len: usize,
    frags: &mut FrameFrags,
    meta: FrameMeta,
    mut out: impl FnMut(Slot),
) {
    let nr_frags = frags.len() as u8;
    if head_len <= FIRST_HEAD
        && let (Some(frags), Some(head)) = (frags.take_first(), header.first_chunk())
    {
        return out(Slot::First { frags, meta, head_len: head_len as u8, nr_frags, head: *head });
    }
    encode(header.get(..head_len).unwrap_or_default(), frags, meta, out);
}

/// Hands the slots of one frame to `out`, in order; takes all of `frags` (at most 128). A header is at most the capacity of an skb's head.
pub(crate) fn encode(header: &[u8], frags: &mut FrameFrags, meta: FrameMeta, mut out: impl FnMut(Slot)) {
    debug_assert!(header.len() <= HEAD_CAPACITY && frags.len() <= 128);
    let mut head = [0; FIRST_HEAD];
    let (first, more) = header.split_at(header.len().min(FIRST_HEAD));
    if let Some(to) = head.get_mut(..first.len()) {
        to.copy_from_slice(first);
    }
    let nr_frags = frags.len();
    let (frags, mut rest) = frags.take();
    out(Slot::First { frags, meta, head_len: header.len() as u8, nr_frags: nr_frags as u8, head });
    if !more.is_empty() {
        let mut bytes = [0; MORE_HEAD];
        if let Some(to) = bytes.get_mut(..more.len()) {
            to.copy_from_slice(more);
        }
        out(Slot::MoreHead(bytes));
    }
    while rest.len() > 0 {
        out(Slot::MoreFrags(core::array::from_fn(|_| rest.next())));
    }
}

/// The one slot of a frame whose header and fragments fit it; takes the fragments out of `skb`.
#[inline]
pub(crate) fn encode_first(skb: &mut Skb, meta: FrameMeta) -> Option<Slot> {
    let nr_frags = skb.nr_frags();
    if nr_frags > FIRST_FRAGS {
        return None;
    }
    let mut head = [0; FIRST_HEAD];
    let head_len = skb.head_len();
    head.get_mut(..head_len)?.copy_from_slice(skb.head());
    let frags = [skb.pop_front_frag(), skb.pop_front_frag()];
    Some(Slot::First { frags, meta, head_len: head_len as u8, nr_frags: nr_frags as u8, head })
}

/// The skb of a small packet, without its payload; nobody computed its checksum, since it crosses no wire. `None`: no
/// descriptor.
#[inline]
pub(crate) fn small_skb(
    hash: u32,
    head_len: usize,
    l4: u8,
    bytes: &[u8; SMALL_BYTES],
    skbs: &mut SkbCache,
) -> Option<Skb> {
    let mut skb = skbs.alloc()?;
    skb.set_head(HEAD_CAPACITY - SMALL_BYTES, bytes, head_len);
    skb.hash = hash;
    skb.csum = Csum::Unnecessary;
    skb.network_header = skb.head_offset();
    skb.transport_header = skb.head_offset() + u16::from(l4);
    Some(skb)
}

/// Makes skbs of slots again.
#[derive(Default)]
pub(crate) struct Assembler {
    skb: Option<Skb>,
    /// No descriptor was free: the frame's slots are swallowed.
    lost: bool,
    head_left: usize,
    frags_left: usize,
}

/// What a slot completed.
pub(crate) enum Assembled {
    /// More slots of this frame follow.
    No,
    /// A frame.
    Frame(Skb),
    /// A frame for which there was no descriptor.
    Lost,
}

impl Assembler {
    /// Takes the next slot.
    #[inline]
    pub(crate) fn take(&mut self, slot: Slot, skbs: &mut SkbCache) -> Assembled {
        match slot {
            Slot::First { frags, meta, head_len, nr_frags, head } => {
                debug_assert!(self.skb.is_none() && self.head_left == 0 && self.frags_left == 0);
                let (head_len, nr_frags) = (usize::from(head_len), usize::from(nr_frags));
                self.skb = begin(skbs, meta, head_len, nr_frags);
                self.lost = self.skb.is_none();
                self.head_left = head_len;
                self.frags_left = nr_frags;
                self.head(&head);
                let [first, second] = frags;
                self.frag(first);
                self.frag(second);
            }
            Slot::Small { .. } => debug_assert!(false, "small packets are whole"),
            Slot::MoreHead(bytes) => self.head(&bytes),
            Slot::MoreFrags(frags) => self.frags(frags),
        }
        if self.head_left + self.frags_left > 0 {
            return Assembled::No;
        }
        match self.skb.take() {
            Some(skb) if !self.lost => Assembled::Frame(skb),
            Some(skb) => {
                skbs.consume(skb);
                Assembled::Lost
            }
            None => Assembled::Lost,
        }
    }

    /// The frame in the making dies with the device.
    pub(crate) fn clear(&mut self) {
        self.skb.take().into_iter().for_each(Skb::into_home);
    }

    #[inline]
    fn head(&mut self, bytes: &[u8]) {
        let n = self.head_left.min(bytes.len());
        if let Some(skb) = &mut self.skb {
            self.lost |= !skb.put_head_from(bytes.get(..n).unwrap_or_default());
        }
        self.head_left -= n;
    }

    #[inline]
    fn frags<const N: usize>(&mut self, frags: [Option<Frag>; N]) {
        frags.into_iter().for_each(|f| self.frag(f));
    }

    #[inline]
    fn frag(&mut self, f: Option<Frag>) {
        let Some(f) = f else { return };
        self.frags_left = self.frags_left.saturating_sub(1);
        if let Some(skb) = &mut self.skb {
            self.lost |= skb.push_frag(f).is_err();
        }
    }
}

fn begin(skbs: &mut SkbCache, meta: FrameMeta, head_len: usize, nr_frags: usize) -> Option<Skb> {
    let mut skb = skbs.alloc()?;
    if skb.tailroom() < head_len {
        skb.reset_head(HEAD_CAPACITY - head_len);
    }
    if nr_frags > skb.max_frags() {
        skb.set_max_frags(nr_frags);
    }
    skb.gso_size = meta.gso_size;
    skb.gso_segs = u32::from(meta.gso_segs);
    skb.gso_type = meta.gso_type;
    skb.hash = meta.hash;
    skb.csum = if meta.csum_good { Csum::Unnecessary } else { Csum::None };
    if meta.fixed_id {
        skb.flags.insert(SkbFlags::FIXED_ID);
    }
    let at = skb.head_offset();
    skb.network_header = at;
    if meta.l4 > 0 {
        skb.transport_header = at + u16::from(meta.l4);
    }
    Some(skb)
}
