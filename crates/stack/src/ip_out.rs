//! IP output: one header per super-packet, and what a device can not do by itself.
//!
//! ```text
//!   transport ── xmit ──▶ IP header, pseudo-header seed ──▶ qdisc (or loopback)          once per super-packet
//!   xmit_pending:  qdisc ──▶ uncut, when the device cuts and sums          ──▶ TxQueue::xmit ──▶ kick
//!                       └──▶ gso::segment to frames, checksums filled in   ──┘
//! ```
//! Cutting happens behind the qdisc, when the device has room, so that the qdisc counts what the sender counts and the
//! frames are handed over while they are warm. An skb that does not fit the MTU and is no super-packet is cut to fragments
//! where its sender allows that ([`IpTx::frag_mtu`], see [`crate::frag`]), else refused with [`Xmit::TooBig`] (the caller's
//! EMSGSIZE). IPv4 packets that may not be cut carry DF; identifications of a super-packet's frames are consecutive.
//!
//! Every skb ends here: handed on, or counted under a reason. A dropped skb's completion token is reported as done.

use core::net::IpAddr;

use linerate_base::{DropReason, Instant};
use linerate_netdev::{Features, FrameFrags, FrameSource, IfIndex, TxCx, TxDone};
use linerate_offload::gso::{self, CsumMode, Cutter};
use linerate_offload::{OffloadCx, csum};
use linerate_skb::{Csum, Frag, GsoType, HEAD_CAPACITY, Page, PagePool, Skb, SkbBatch, SkbCache};
use linerate_wire::IpRepr;
use linerate_wire::checksum;
use linerate_wire::ethernet::HEADER_LEN;
use linerate_wire::pcapng::LinkType;

use crate::core_state::Core;
use crate::frag;
use crate::link::{Device, LOOPBACK, Links, QueuePair};
use crate::neigh;
use crate::route::RouteInfo;

/// Frames prepared for a device before it is asked to take them: more would only cool down.
const STAGE_SKBS: usize = 64;

/// What the IP header of a packet says, and where the packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpTx {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// Transport protocol.
    pub proto: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Hop limit; 0 = the configuration's.
    pub ttl: u8,
    /// Device, from [`Links::route`].
    pub ifindex: IfIndex,
    /// Not 0: IPv4 without DF, and what is longer than this many bytes is cut to fragments. 0: DF, never cut.
    pub frag_mtu: u32,
}

impl IpTx {
    /// A packet of `proto` along a route.
    pub fn new(route: &RouteInfo, dst: IpAddr, proto: u8) -> Self {
        Self { src: route.src, dst, proto, tos: 0, ttl: 0, ifindex: route.ifindex, frag_mtu: 0 }
    }
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Xmit {
    /// Queued, or on its way to ourselves.
    Ok,
    /// Dropped (and counted) before it reached the device: local congestion (`NET_XMIT_DROP`). Its bytes are not
    /// reported as done.
    Drop(DropReason),
    /// Dropped (and counted): longer than the MTU and not to be cut. Its bytes are not reported as done.
    TooBig {
        /// What fits, bytes of IP packet.
        mtu_bytes: u32,
    },
}

impl Xmit {
    /// Was it handed on?
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }
}

/// Sends an skb whose head starts at its transport header. `Csum::Partial` gets its pseudo-header seed here; the field
/// then holds the folded, not complemented, sum as the offloads expect it.
pub fn xmit(core: &mut Core, mut skb: Skb, tx: &IpTx) -> Xmit {
    if tx.frag_mtu != 0 {
        return frag::xmit(core, skb, tx);
    }
    let len = skb.len();
    let mut ip = IpRepr::new(tx.src, tx.dst, tx.proto, len);
    core.mibs.ip.out_requests += 1;
    ip.tos = tx.tos;
    ip.hop_limit = if tx.ttl == 0 { core.cfg.ttl } else { tx.ttl };
    ip.flow_label = skb.hash & 0xf_ffff;
    if ip.src.is_ipv4() {
        ip.ident = core.links.next_ident(skb.hash, skb.wire_pkts());
    }
    if let Csum::Partial { start, offset } = skb.csum {
        let seed = checksum::fold(ip.pseudo_sum()).to_be_bytes();
        let field = skb.head_from_mut(start.saturating_add(offset)).first_chunk_mut::<2>();
        debug_assert!(field.is_some(), "checksum field outside of the head");
        if let Some(field) = field {
            *field = seed;
        }
    }
    skb.transport_header = skb.head_offset();
    // Both lengths are constants here: the header is made in registers.
    let made = if ip.src.is_ipv4() {
        skb.push_header::<20>().map(|h| ip.emit(h))
    } else {
        skb.push_header::<40>().map(|h| ip.emit(h))
    };
    if made.is_none() {
        return refuse(core, skb, DropReason::DevHdr);
    }
    skb.network_header = skb.head_offset();
    skb.ip_version = if ip.src.is_ipv4() { 4 } else { 6 };
    enqueue(core, skb, tx)
}

#[track_caller]
pub(crate) fn refuse(core: &mut Core, skb: Skb, reason: DropReason) -> Xmit {
    core.mibs.ip.out_discards += 1;
    core.drop_skb(skb, reason);
    Xmit::Drop(reason)
}

/// A whole IP packet goes to its device's qdisc, or back to ourselves.
pub(crate) fn enqueue(core: &mut Core, mut skb: Skb, tx: &IpTx) -> Xmit {
    let ifindex = tx.ifindex;
    let (bytes, frame) = (u64::from(skb.len()), frame_len(&skb));
    let tapped = core.links.tapped;
    let Some(dev) = core.links.dev_mut(ifindex) else {
        return refuse(core, skb, DropReason::FullRing);
    };
    if frame > dev.mtu_bytes {
        let mtu_bytes = dev.mtu_bytes;
        core.mibs.ip.frag_fails += 1;
        let _ = refuse(core, skb, DropReason::PktTooBig);
        return Xmit::TooBig { mtu_bytes };
    }
    if dev.ether.is_some() {
        return neigh::output::xmit(core, skb, tx.dst, ifindex);
    }
    skb.ifindex = ifindex.0;
    if tapped {
        core.taps.sent(core.now, ifindex, tx_queue(dev, &skb), LinkType::Raw, &skb);
    }
    let queued = if ifindex == LOOPBACK { core.links.lo.xmit(skb) } else { dev_enqueue(dev, skb) };
    match queued {
        Ok(()) => {
            if ifindex != LOOPBACK {
                (core.links.backlog, core.links.stopped) = (true, false);
            }
            core.mibs.ip.out_transmits += 1;
            core.mibs.ip.out_octets += bytes;
            Xmit::Ok
        }
        Err(skb) => refuse_queue(core, skb, ifindex),
    }
}

/// The qdisc is full, or the device has none.
#[cold]
fn refuse_queue(core: &mut Core, skb: Skb, ifindex: IfIndex) -> Xmit {
    let is_up = core.links.device(ifindex).is_some_and(Device::is_up);
    refuse(core, skb, if is_up { DropReason::QdiscDrop } else { DropReason::FullRing })
}

/// The queue of the flow.
#[inline]
fn tx_queue(dev: &Device, skb: &Skb) -> u16 {
    let n = dev.queues.len();
    if n > 1 { (skb.hash as usize % n) as u16 } else { 0 }
}

/// To the qdisc of the flow's queue.
#[inline]
fn dev_enqueue(dev: &mut Device, mut skb: Skb) -> Result<(), Skb> {
    skb.queue = tx_queue(dev, &skb);
    match dev.queues.get_mut(usize::from(skb.queue)) {
        Some(q) => q.qdisc.enqueue(skb),
        None => Err(skb),
    }
}

/// A whole frame with its link header goes to the qdisc of an Ethernet device. Counted are those of IP.
pub(crate) fn dev_queue_xmit(core: &mut Core, mut skb: Skb, ifindex: IfIndex) -> Xmit {
    let bytes = u64::from(skb.len()).saturating_sub(HEADER_LEN as u64);
    let is_ip = skb.ip_version != 0;
    let tapped = core.links.tapped;
    let Some(dev) = core.links.dev_mut(ifindex) else {
        return refuse(core, skb, DropReason::FullRing);
    };
    skb.ifindex = ifindex.0;
    if tapped {
        core.taps.sent(core.now, ifindex, tx_queue(dev, &skb), LinkType::Ethernet, &skb);
    }
    match dev_enqueue(dev, skb) {
        Ok(()) => {
            (core.links.backlog, core.links.stopped) = (true, false);
            core.mibs.ip.out_transmits += u64::from(is_ip);
            core.mibs.ip.out_octets += if is_ip { bytes } else { 0 };
            Xmit::Ok
        }
        Err(skb) => refuse_queue(core, skb, ifindex),
    }
}

/// Length of the longest wire frame that an skb (with its IP header) becomes, bytes.
fn frame_len(skb: &Skb) -> u32 {
    if !skb.is_gso() {
        return skb.len();
    }
    // Payload of a super-packet is in its fragments alone; the head is what every frame repeats.
    (skb.head_len() as u32).saturating_add(skb.gso_size.min(skb.data_len()))
}

/// What has to be done to an skb before the device takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Prepare {
    Nothing,
    /// Fill in the checksum.
    Sum,
    /// Cut into frames.
    Cut(CsumMode),
}

fn prepare(skb: &Skb, f: &Features) -> Prepare {
    let by_device = match skb.gso_type {
        GsoType::None => !skb.is_gso(),
        GsoType::TcpV4 => f.tso4,
        GsoType::TcpV6 => f.tso6,
        GsoType::UdpL4 => f.uso,
    };
    let fits = skb.len() <= f.gso_max_size.max(f.mtu) + u32::from(f.hard_header_len)
        && skb.wire_pkts() <= f.gso_max_segs
        && skb.nr_frags() <= f.max_frags as usize;
    if skb.is_gso() && !(by_device && fits && f.tx_csum) {
        return Prepare::Cut(if f.tx_csum { CsumMode::LeavePartial } else { CsumMode::Fill });
    }
    if !f.tx_csum && matches!(skb.csum, Csum::Partial { .. }) { Prepare::Sum } else { Prepare::Nothing }
}

/// Moves what waits in the qdiscs to the devices, and rings each doorbell once. Returns the skbs that devices took.
/// Whatever had to be dropped on the way is counted, and reported to its socket through `done`.
#[inline]
pub fn xmit_pending(core: &mut Core, done: &mut TxDone) -> usize {
    let small = core::mem::take(&mut core.links.small_sent);
    if core.links.backlog { small + xmit_backlog(core, done) } else { small }
}

fn xmit_backlog(core: &mut Core, done: &mut TxDone) -> usize {
    let Core { links, mem, mibs, now, kernels, .. } = core;
    let (mut taken, mut backlog, mut stopped) = (0, false, true);
    for dev in links.devices_mut() {
        let features = *dev.features();
        for q in &mut dev.queues {
            let mut cx = OffloadCx { skbs: &mut mem.skbs, pool: &mut mem.tx_pool, kernels, drops: &mut mibs.drops };
            taken += drain_qdisc(q, &features, &mut cx, *now, done);
            let waits = !q.staged.is_empty() || !q.qdisc.is_empty();
            backlog |= waits;
            stopped &= !waits || q.tx.is_stopped();
        }
    }
    (links.backlog, links.stopped) = (backlog, stopped);
    taken
}

/// One queue: stage, hand over, until the device is full or nothing waits.
fn drain_qdisc(q: &mut QueuePair, f: &Features, cx: &mut OffloadCx<'_>, now: Instant, done: &mut TxDone) -> usize {
    let mut taken = 0;
    // What the device takes as it is goes straight from the queue, when it is no more than a device takes at once.
    let as_is = |skb: &Skb| prepare(skb, f) == Prepare::Nothing && skb.nr_frags() <= f.max_frags.max(1) as usize;
    if q.staged.is_empty() && q.qdisc.len() <= STAGE_SKBS && q.qdisc.iter().all(as_is) {
        let mut tx = TxCx { now, pool: cx.pool, skbs: cx.skbs, drops: cx.drops };
        taken = q.qdisc.lend(|queue| if queue.is_empty() { 0 } else { q.tx.xmit(&mut tx, queue) });
        if taken > 0 {
            q.tx.kick(&mut tx);
        }
        return taken;
    }
    loop {
        while q.staged.len() < STAGE_SKBS
            && let Some(skb) = q.qdisc.dequeue()
        {
            if q.staged.is_empty()
                && let Some(frames) = cut_into(q, &skb, f, cx, now)
            {
                cx.skbs.free(skb, cx.pool);
                taken += frames;
                q.kick = true;
                continue;
            }
            stage(skb, f, cx, &mut q.staged, done);
        }
        let waiting = q.staged.len();
        if waiting == 0 {
            break;
        }
        let mut tx = TxCx { now, pool: cx.pool, skbs: cx.skbs, drops: cx.drops };
        let n = q.tx.xmit(&mut tx, &mut q.staged);
        debug_assert_eq!(n + q.staged.len(), waiting, "a queue miscounted what it took");
        taken += n;
        q.kick |= n > 0;
        if n < waiting {
            break;
        }
    }
    if core::mem::take(&mut q.kick) {
        q.tx.kick(&mut TxCx { now, pool: cx.pool, skbs: cx.skbs, drops: cx.drops });
    }
    taken
}

/// A cutter as a device sees it that takes frames without descriptors.
struct Frames<'a>(Cutter<'a>);

impl FrameSource for Frames<'_> {
    fn header_len(&self) -> usize {
        self.0.header_len()
    }
    #[inline]
    fn next_frame(&mut self, frags: &mut FrameFrags) -> Option<&[u8; HEAD_CAPACITY]> {
        self.0.next_frame(|f| frags.push(f))?;
        Some(self.0.header_padded())
    }
}

/// Cuts a super-packet straight into the device; returns the frames. `None`: it is not to be cut whole with its checksums,
/// or the device does not take it so.
fn cut_into(q: &mut QueuePair, skb: &Skb, f: &Features, cx: &mut OffloadCx<'_>, now: Instant) -> Option<usize> {
    // Frames with a link header are cut in front of it, and go as skbs.
    if f.hard_header_len > 0
        || prepare(skb, f) != Prepare::Cut(CsumMode::Fill)
        || skb.nr_frags() > f.max_frags.max(1) as usize
    {
        return None;
    }
    let cutter = Cutter::new(skb, 0, CsumMode::Fill, cx.kernels).ok()?;
    let segs = cutter.segs() as usize;
    let mut tx = TxCx { now, pool: cx.pool, skbs: cx.skbs, drops: cx.drops };
    (segs > 1 && q.tx.xmit_frames(&mut tx, skb, segs, &mut Frames(cutter))).then_some(segs)
}

/// Prepares one skb and puts what it became into `out`.
fn stage(mut skb: Skb, f: &Features, cx: &mut OffloadCx<'_>, out: &mut SkbBatch, done: &mut TxDone) {
    let before = out.len();
    match prepare(&skb, f) {
        Prepare::Nothing => out.push(skb),
        Prepare::Sum => {
            if !csum::fill_partial(&mut skb, cx.kernels) {
                return end(skb, DropReason::DevHdr, cx, done);
            }
            out.push(skb);
        }
        Prepare::Cut(mode) => {
            let cut = if f.hard_header_len == 0 {
                gso::segment(skb, 0, cx, mode, out)
            } else {
                segment_behind_link(skb, cx, mode, out)
            };
            if let Err((skb, reason)) = cut {
                return end(skb, reason, cx, done);
            }
        }
    }
    let max_frags = f.max_frags.max(1) as usize;
    if out.iter().skip(before).all(|s| s.nr_frags() <= max_frags) {
        return;
    }
    for _ in before..out.len() {
        // Once round the new part of the queue, in order.
        let Some(skb) = out.drain(before..before + 1).next() else { break };
        if skb.nr_frags() <= max_frags {
            out.push(skb);
            continue;
        }
        match compact(skb, max_frags, cx) {
            Ok(skb) => out.push(skb),
            Err(skb) => end(skb, DropReason::NoMem, cx, done),
        }
    }
}

/// Cuts a super-packet that begins with an Ethernet header: all frames get the same.
fn segment_behind_link(
    mut skb: Skb,
    cx: &mut OffloadCx<'_>,
    mode: CsumMode,
    out: &mut SkbBatch,
) -> Result<usize, (Skb, DropReason)> {
    let Some(header) = skb.head().first_chunk::<HEADER_LEN>().copied() else {
        return Err((skb, DropReason::SkbGsoSeg));
    };
    skb.pull_head(HEADER_LEN);
    let before = out.len();
    let segs = gso::segment(skb, 0, cx, mode, out)?;
    for frame in out.iter_mut().skip(before) {
        let room = frame.headroom() >= HEADER_LEN || frame.make_headroom(HEADER_LEN);
        let pushed = frame.push_header::<HEADER_LEN>().map(|h| *h = header);
        debug_assert!(room && pushed.is_some(), "headers of a frame fill its head");
    }
    Ok(segs)
}

/// Copies the payload of a frame in many small pieces into few: rare, and only for devices that take few fragments.
///
/// # Errors
/// Gives the frame back when no memory is free, or pages are too small for `max_frags` of them to hold it.
pub(crate) fn compact(mut skb: Skb, max_frags: usize, cx: &mut OffloadCx<'_>) -> Result<Skb, Skb> {
    let Some(mut made) = cx.skbs.alloc() else { return Err(skb) };
    made.set_max_frags(max_frags);
    let mut page = None::<Page>;
    let mut whole = true;
    for mut bytes in skb.payload_slices() {
        while whole && !bytes.is_empty() {
            if let Some(full) = page.take_if(|p| p.room() == 0) {
                cx.pool.recycle_page(full);
            }
            if page.is_none() {
                page = cx.pool.alloc();
            }
            // Pieces behind each other in one page become one fragment.
            let copied = page.as_mut().and_then(|p| p.append(cx.kernels, bytes));
            let n = copied.as_ref().map_or(0, Frag::len);
            whole = copied.is_some_and(|f| made.push_frag(f).is_ok());
            bytes = bytes.get(n as usize..).unwrap_or_default();
        }
    }
    if let Some(page) = page {
        cx.pool.recycle_page(page);
    }
    if whole {
        let sum = skb.payload_sum;
        skb.clear_frags();
        let moved = skb.append_frags(&mut made);
        debug_assert!(moved, "fewer fragments than there were");
        skb.payload_sum = sum;
    }
    cx.skbs.free(made, cx.pool);
    if whole { Ok(skb) } else { Err(skb) }
}

/// A packet dies behind the qdisc: counted, memory home, its socket told that the bytes are gone.
#[track_caller]
fn end(skb: Skb, reason: DropReason, cx: &mut OffloadCx<'_>, done: &mut TxDone) {
    cx.drops.count(reason);
    done.push(skb.tx_done, skb.truesize);
    cx.skbs.drop_skb(skb, cx.pool, reason);
}

/// Ends what still waits in a device that is taken away.
fn purge(dev: &mut Device, skbs: &mut SkbCache, pool: &mut PagePool, mut lost: impl FnMut(&Skb)) {
    for q in &mut dev.queues {
        while let Some(skb) = q.staged.pop_front().or_else(|| q.qdisc.dequeue()) {
            lost(&skb);
            skbs.drop_skb(skb, pool, DropReason::Shutdown);
        }
    }
}

/// Takes a device away: what waited in it is dropped as [`DropReason::Shutdown`] and reported as done, its queues end.
///
/// # Errors
/// See [`crate::link::AddrError`].
pub fn del_device(core: &mut Core, ifindex: IfIndex, done: &mut TxDone) -> Result<(), crate::link::AddrError> {
    let Core { links, mem, mibs, .. } = core;
    let mut dev = Links::take_device(links, ifindex)?;
    let mut lost = |skb: &Skb| {
        mibs.drops.count(DropReason::Shutdown);
        done.push(skb.tx_done, skb.truesize);
    };
    purge(&mut dev, &mut mem.skbs, &mut mem.tx_pool, &mut lost);
    links.neigh.forget_device(ifindex, |skb| {
        lost(&skb);
        mem.skbs.drop_skb(skb, &mut mem.tx_pool, DropReason::Shutdown);
    });
    let backlog = links.devices().any(|d| d.backlog_skbs() != 0);
    links.backlog = backlog;
    Ok(())
}

#[cfg(test)]
mod tests;
