//! Wire frames without a descriptor each, between a device and the stack's own cutter and merger.
//!
//! Where a device can neither cut nor merge, the stack does, and every wire frame passes between them one by one. A
//! descriptor for each would be filled, queued twice and freed only to carry a header and one or two references for a few
//! instructions. So a device may offer to take frames as they are cut ([`TxQueue::xmit_frames`](crate::TxQueue)), and to
//! hand frames over as they arrive ([`RxQueue::poll_frames`](crate::RxQueue)): what the kernel's drivers do with
//! `napi_gro_frags` and one descriptor that is used again and again.
//!
//! Neither is a feature of hardware: the stack's own code still makes, sums, verifies and merges every frame. A device
//! that offers nothing loses nothing but time, and what it says of frames (order, drops, counters) is the same both ways.

use alloc::vec::Vec;

use linerate_skb::{Frag, HEAD_CAPACITY, Skb, SkbBatch};

use crate::queue::RxCx;

/// Longest header of a frame that is handed over without a descriptor, bytes: IPv6, and TCP with 16 bytes of options.
pub const FRAME_HEAD: usize = 76;

/// Payload of one frame: two references at hand, which is what a frame of a bulk flow has, and room for more.
#[derive(Debug, Default)]
pub struct FrameFrags {
    first: [Option<Frag>; 2],
    more: Vec<Frag>,
    nr: usize,
}

impl FrameFrags {
    /// No payload; `more` fragments beyond two need no allocation.
    pub fn with_capacity(more: usize) -> Self {
        Self { first: [None, None], more: Vec::with_capacity(more), nr: 0 }
    }
    /// Adds a fragment at the end.
    #[inline]
    pub fn push(&mut self, f: Frag) {
        match self.first.get_mut(self.nr) {
            Some(place) => *place = Some(f),
            None => self.more.push(f),
        }
        self.nr += 1;
    }
    /// Fragments.
    #[inline]
    pub fn len(&self) -> usize {
        self.nr
    }
    /// Is there no payload?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.nr == 0
    }
    /// Takes the fragments: the first two, and the others.
    #[inline]
    pub fn take(&mut self) -> ([Option<Frag>; 2], impl ExactSizeIterator<Item = Frag> + '_) {
        self.nr = 0;
        let [a, b] = &mut self.first;
        ([a.take(), b.take()], self.more.drain(..))
    }
    /// Takes the fragments when there are at most two.
    #[inline]
    pub fn take_first(&mut self) -> Option<[Option<Frag>; 2]> {
        if self.nr > 2 {
            return None;
        }
        self.nr = 0;
        let [a, b] = &mut self.first;
        Some([a.take(), b.take()])
    }
}

/// Frames that are given out one by one, in order.
pub trait FrameSource {
    /// Bytes of each frame's header.
    fn header_len(&self) -> usize;
    /// Puts the next frame's payload behind `frags` and returns its header in the first `header_len` bytes; `None` when all
    /// frames were given.
    fn next_frame(&mut self, frags: &mut FrameFrags) -> Option<&[u8; HEAD_CAPACITY]>;
}

/// Whom received frames are for, in order.
pub trait FrameSink {
    /// Offers a frame of a linear header, the first `head_len` bytes of `head`, and at most two fragments, whose transport
    /// checksum nobody has verified. True: it was taken. False: nothing happened, and the frame has to come as an skb.
    fn merge(
        &mut self,
        cx: &mut RxCx<'_>,
        head: &[u8; FRAME_HEAD],
        head_len: usize,
        frags: &mut [Option<Frag>; 2],
        out: &mut SkbBatch,
    ) -> bool;
    /// Takes a frame in a descriptor.
    fn rcv(&mut self, cx: &mut RxCx<'_>, skb: Skb, out: &mut SkbBatch);
}
