//! The receive half: one `readv` per packet, headers into the skb's head, payload into pages (SYSTEMS A26).
//!
//! ```text
//!   hdr [ vnet | predicted headers ]   page 0 [ ...filled... | <- payload   ]   page 1 [ payload -> |      ] ..
//! ```
//! How long the headers are is known only after the read, so it is predicted from the last packet with a payload: bulk
//! flows repeat themselves. Predicted right, the payloads of consecutive packets lie behind each other in a page, and
//! merged packets need one fragment instead of one per frame. Predicted short, the rest of the header is copied from the
//! page and skipped there; predicted long, the payload that fell into the header is copied behind the rest into a
//! fragment of its own. Both are rare and cost some 60 bytes of copying.
//!
//! Pages that a packet did not fill are filled by the next; a page whose fragments are all gone is started again, so that a
//! fast reader stays in the cache. `truesize` counts an skb's own bytes: pages are shared between packets.
//!
//! A poll reads until the kernel has nothing more, the budget is delivered or [`POLL_BYTES`] are read; packets that die
//! count too, up to [`READS_PER_SKB`] reads per skb of budget. Without a page a packet is read and dropped (`NoMem`), as by a NIC without
//! descriptors; otherwise a full queue in the kernel would end every sleep. A packet longer than [`ROOM_BYTES`] can only
//! be a fault of the kernel, or a jumbogram, and is dropped as `PktTooBig`.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;

use linerate_base::DropReason;
use linerate_netdev::{Qstats, RxCx, RxQueue};
use linerate_skb::{Frag, HEAD_CAPACITY, MAX_FRAGS, Page, PagePool, SKB_TRUESIZE, Skb, SkbBatch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv};

use crate::packet::{self, HEAD_MAX, HEAD_MIN, Shape, vnet};
use crate::watch::Watched;

/// Room in pages for one packet: the longest that is no jumbogram, and one byte more to tell that there was more.
const ROOM_BYTES: usize = 66 << 10;
/// The prediction before the first packet: IPv4 and TCP with timestamps.
const HEAD_FIRST: usize = 52;
/// Pieces of one read: the header, and pages of 4 KiB or more, the first partly filled.
const MAX_IOV: usize = 2 + ROOM_BYTES.div_ceil(4096);
/// Pieces of nearly every read: pages are 32 KiB unless set.
const FEW_IOV: usize = 6;
/// A page with less room than this is let go.
const MIN_ROOM: usize = 256;
/// Bytes after which a poll hands over what it read, though there may be more: the application then copies them out of a
/// cache of the second level, and the pages come back to be filled again while they are still there.
const POLL_BYTES: usize = 256 << 10;
/// Reads for each skb of budget, at most.
const READS_PER_SKB: usize = 2;

pub(super) struct TunRx {
    port: Arc<Watched>,
    shape: Shape,
    socket: bool,
    /// In the order in which they are filled; only the first may be filled in part.
    pages: VecDeque<Page>,
    hdr: [u8; 12 + HEAD_MAX],
    /// Header bytes that the next packet is expected to have.
    predicted: usize,
    /// The last read found nothing.
    drained: bool,
    /// Fragments that go behind one that is not made yet; empty between packets.
    later: Vec<Frag>,
    stats: Qstats,
}

impl TunRx {
    pub(super) fn new(port: Arc<Watched>, shape: Shape, socket: bool) -> Self {
        let pages = VecDeque::with_capacity(MAX_IOV);
        let hdr = [0; 12 + HEAD_MAX];
        let (later, stats) = (Vec::with_capacity(MAX_IOV), Qstats::default());
        let predicted = shape.link_len + HEAD_FIRST;
        Self { port, shape, socket, pages, hdr, predicted, drained: false, later, stats }
    }

    /// Makes room for a packet. False: there is not enough memory.
    fn refill(&mut self, pool: &mut PagePool) -> bool {
        while self.pages.front().is_some_and(|p| p.room() < MIN_ROOM)
            && let Some(mut page) = self.pages.pop_front()
        {
            if page.reset_if_sole() {
                self.pages.push_back(page);
            } else {
                pool.recycle_page(page);
            }
        }
        let mut room: usize = self.pages.iter().map(Page::room).sum();
        while room < ROOM_BYTES && self.pages.len() < MAX_IOV - 1 {
            let Some(page) = pool.alloc() else { return false };
            room += page.room();
            self.pages.push_back(page);
        }
        true
    }

    /// Reads one packet: its length, with the virtio header, and the bytes that there was room for.
    fn read(&mut self, into_pages: bool) -> Result<(usize, usize), Errno> {
        let hdr = self.hdr.get_mut(..self.shape.vnet_len + self.predicted).unwrap_or_default();
        let none = &mut VecDeque::new();
        let pages = if into_pages { &mut self.pages } else { none };
        let mut pending = self.socket;
        loop {
            let got = if pages.len() < FEW_IOV {
                readv_into::<FEW_IOV>(&self.port, hdr, pages)
            } else {
                readv_into::<MAX_IOV>(&self.port, hdr, pages)
            };
            match got {
                Err(Errno::INTR) => {}
                // A socket tells once, and first, what became of something that was sent.
                Err(Errno::CONNRESET | Errno::CONNREFUSED) if std::mem::take(&mut pending) => {}
                got => return got,
            }
        }
    }

    /// An skb of the packet that was just read, `len` bytes with the virtio header.
    fn build(&mut self, cx: &mut RxCx<'_>, len: usize) -> Result<Skb, DropReason> {
        let vnet = self.shape.vnet_len;
        let len = len.checked_sub(vnet).filter(|&n| n > 0).ok_or(DropReason::PktTooSmall)?;
        let in_head = len.min(self.predicted);
        let in_pages = len - in_head;
        let end = self.header_end(in_head, in_pages);
        let header = self.hdr.get(vnet..vnet + end).unwrap_or_default();
        let mut skb = cx.skbs.alloc().ok_or(DropReason::NoMem)?;
        if skb.tailroom() < end {
            skb.reset_head(HEAD_CAPACITY - end);
        }
        let mut whole = skb.put_head_from(header);
        if end < in_head {
            whole &= self.spilled(&mut skb, end, in_head, in_pages);
        } else {
            skb.set_max_frags(MAX_FRAGS);
            whole &= commit(&mut self.pages, in_pages, end - in_head, |f| skb.push_frag(f).is_ok());
        }
        if len > end {
            self.predicted = end.max(self.shape.link_len + HEAD_MIN);
        }
        skb.tstamp = cx.now;
        skb.ip_version = skb.head().get(self.shape.link_len).map_or(0, |b| b >> 4);
        skb.truesize = SKB_TRUESIZE.saturating_add(skb.data_len());
        let taken =
            if whole { vnet::take_bytes(&mut skb, self.vnet_header(), &self.shape) } else { Err(DropReason::NoMem) };
        match taken {
            Ok(()) => Ok(skb),
            Err(reason) => {
                cx.skbs.free(skb, cx.pool);
                Err(reason)
            }
        }
    }

    fn vnet_header(&self) -> &[u8] {
        self.hdr.get(..self.shape.vnet_len).unwrap_or_default()
    }

    /// Where the payload starts, bytes from the start of the packet. Header bytes that fell into the pages are copied in
    /// front of it.
    fn header_end(&mut self, in_head: usize, in_pages: usize) -> usize {
        let vnet = self.shape.vnet_len;
        let known = self.hdr.get(vnet..vnet + in_head).unwrap_or_default();
        if let Some(end) = self.shape.header_len(known) {
            return end;
        }
        let more = (HEAD_MAX - in_head).min(in_pages);
        let mut to = self.hdr.get_mut(vnet + in_head..vnet + in_head + more).unwrap_or_default();
        for page in &mut self.pages {
            let from = page.spare_mut();
            let n = from.len().min(to.len());
            let (now, later) = to.split_at_mut(n);
            now.copy_from_slice(from.get(..n).unwrap_or_default());
            to = later;
        }
        let all = self.hdr.get(vnet..vnet + in_head + more).unwrap_or_default();
        // A chain longer than this, or one that breaks off, is for the stack to judge.
        self.shape.header_len(all).unwrap_or(all.len()).max(in_head)
    }

    /// The header was shorter than predicted: payload `[end, in_head)` lies in the header buffer.
    #[cold]
    fn spilled(&mut self, skb: &mut Skb, end: usize, in_head: usize, in_pages: usize) -> bool {
        let vnet = self.shape.vnet_len;
        let later = &mut self.later;
        let mut whole = commit(&mut self.pages, in_pages, 0, |f| {
            later.push(f);
            true
        });
        let mut spill = self.hdr.get(vnet + end..vnet + in_head).unwrap_or_default();
        skb.set_max_frags(MAX_FRAGS);
        for page in &mut self.pages {
            let to = page.spare_mut();
            let n = to.len().min(spill.len());
            let (now, behind) = spill.split_at(n);
            to.iter_mut().zip(now).for_each(|(to, from)| *to = *from);
            whole &= page.commit(n).is_none_or(|f| skb.push_frag(f).is_ok());
            spill = behind;
        }
        for f in self.later.drain(..) {
            whole &= skb.push_frag(f).is_ok();
        }
        whole && spill.is_empty()
    }

    /// One read. `None`: there is nothing to read.
    fn next(&mut self, cx: &mut RxCx<'_>) -> Option<Result<Skb, DropReason>> {
        let room = self.refill(cx.pool);
        let (len, capacity) = match self.read(room) {
            Ok((0, _)) if self.socket && !at_end(&self.port) => return Some(Err(DropReason::PktTooSmall)),
            // A TUN never reads nothing: this is something else, and at its end.
            Ok((0, _)) => {
                self.port.set_broken();
                return None;
            }
            Ok(got) => got,
            // Short of memory: as good as nothing, and asked again at the next sleep.
            Err(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS) => return None,
            Err(_) => {
                self.port.set_broken();
                return None;
            }
        };
        if !room {
            self.stats.rx_alloc_fail += 1;
            return Some(Err(DropReason::NoMem));
        }
        if len >= capacity {
            return Some(Err(DropReason::PktTooBig));
        }
        Some(self.build(cx, len))
    }
}

/// Whether a socket that read nothing will never read anything again, rather than having read an empty message.
#[cold]
fn at_end(port: &Watched) -> bool {
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL;
    let mut fds = [PollFd::new(port, PollFlags::RDHUP)];
    let looked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    looked.is_ok() && fds[0].revents().intersects(gone)
}

/// One `readv` into `hdr` and then `pages`, of which there are fewer than `N`: the bytes that came, and the room.
#[inline]
fn readv_into<const N: usize>(
    port: &Watched,
    hdr: &mut [u8],
    pages: &mut VecDeque<Page>,
) -> Result<(usize, usize), Errno> {
    let mut room = hdr.len();
    let mut iov: [IoSliceMut<'_>; N] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let mut n = 1;
    for (slot, page) in iov.iter_mut().skip(1).zip(pages) {
        room += page.room();
        *slot = IoSliceMut::new(page.spare_mut());
        n += 1;
    }
    iov[0] = IoSliceMut::new(hdr);
    readv(port, iov.get_mut(..n).unwrap_or_default()).map(|len| (len, room))
}

/// Freezes the next `len` bytes of `pages` and hands all but the first `skip` of them to `each`, until it says false.
fn commit(pages: &mut VecDeque<Page>, len: usize, mut skip: usize, mut each: impl FnMut(Frag) -> bool) -> bool {
    let mut left = len;
    for page in pages {
        if left == 0 {
            break;
        }
        let Some(mut frag) = page.commit(left) else { continue };
        left -= frag.len() as usize;
        let passed = skip.min(frag.len() as usize);
        frag.advance(passed as u32);
        skip -= passed;
        if !each(frag) {
            return false;
        }
    }
    left == 0
}

impl RxQueue for TunRx {
    fn poll_rx(&mut self, cx: &mut RxCx<'_>, budget: usize, out: &mut SkbBatch) -> usize {
        let (mut delivered, mut bytes) = (0, 0);
        for _ in 0..budget.saturating_mul(READS_PER_SKB) {
            if delivered == budget || bytes >= POLL_BYTES || self.port.is_broken() {
                break;
            }
            match self.next(cx) {
                None => {
                    self.drained = true;
                    return delivered;
                }
                Some(Ok(skb)) => {
                    packet::count_rx(&mut self.stats, &skb);
                    bytes += skb.len() as usize;
                    out.push(skb);
                    delivered += 1;
                }
                Some(Err(reason)) => cx.drops.count(reason),
            }
        }
        self.drained = self.port.is_broken();
        delivered
    }

    /// Readiness is a level: what comes after the read that found nothing ends the sleep at once.
    fn irq_enable(&mut self) -> bool {
        self.port.want_read(true);
        !self.drained
    }

    fn irq_disable(&mut self) {
        self.port.want_read(false);
    }

    fn qstats(&self) -> Qstats {
        self.stats
    }
}
