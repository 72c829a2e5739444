//! The transmit half: one `writev` per super-packet.
//!
//! The kernel takes a packet whole or not at all, and when the call returns it has copied it and carried it up to its socket:
//! transmitted and completed are the same moment, so TCP small queues see no queue behind this device. There is no
//! doorbell besides the call; `tx_kicks` counts calls.
//!
//! No room (`EAGAIN`, when a limit was set with TUNSETSNDBUF) leaves the skb and all behind it with the caller, and asks the
//! sleeper to wait for room ([`TxQueue::is_stopped`]). Any other error is about this one packet, which is dropped:
//! `DevHdr` (the kernel refuses the header or the packet), `NoMem`, `FullRing` (the device is down), `Shutdown` (it is
//! gone). What could not be sent ever is not tried.

use std::io::IoSlice;
use std::sync::Arc;

use linerate_base::DropReason;
use linerate_netdev::{Features, Qstats, TxCx, TxDone, TxQueue};
use linerate_skb::{HEAD_CAPACITY, MAX_FRAGS, Skb, SkbBatch, TxDoneToken};
use linerate_wire::ip::proto;
use linerate_wire::ipv6::{self, JUMBO_HBH_LEN};
use linerate_wire::virtio_net_hdr::PartialCsum;
use rustix::io::{Errno, retry_on_intr, write as write_once, writev};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::packet::{self, Shape, vnet};
use crate::watch::Watched;

/// Pieces of one write: virtio header, head, fragments; far below the kernel's limit of 1024.
const MAX_IOV: usize = 2 + MAX_FRAGS;
/// Pieces of nearly every write.
const FEW_IOV: usize = 2 + 18;
/// Plain packets up to this length are put together before they are written: what the kernel does for a second piece costs
/// more than copying a frame that was summed just now and lies in the first-level cache.
const SMALL_BYTES: usize = 2048;

pub(super) struct TunTx {
    port: Arc<Watched>,
    socket: bool,
    vnet_len: usize,
    features: Features,
    /// Where small packets are put together.
    small: Box<[u8; SMALL_BYTES]>,
    /// Completed, not reported yet.
    done: Vec<(TxDoneToken, u32)>,
    stats: Qstats,
}

impl TunTx {
    pub(super) fn new(port: Arc<Watched>, shape: Shape, socket: bool) -> Self {
        let features = shape.features();
        let small = Box::new([0; SMALL_BYTES]);
        Self { port, socket, vnet_len: shape.vnet_len, features, small, done: Vec::new(), stats: Qstats::default() }
    }

    fn write(&mut self, skb: &Skb) -> Result<(), Errno> {
        self.stats.tx_kicks += 1;
        if self.vnet_len == 0 {
            return match gather(&mut self.small, skb) {
                Some(packet) if !self.socket => retry_on_intr(|| write_once(&*self.port, packet)).map(|_| ()),
                _ => self.write_parts(&[], skb.head(), skb),
            };
        }
        let mut header = vnet::of(skb);
        let mut longer = [0; HEAD_CAPACITY + JUMBO_HBH_LEN];
        let head = match jumbo_head(skb, usize::from(self.features.hard_header_len), &mut longer) {
            Some(head) => {
                header.hdr_len += JUMBO_HBH_LEN as u16;
                header.csum = header.csum.map(|c| PartialCsum { start: c.start + JUMBO_HBH_LEN as u16, ..c });
                head
            }
            None => skb.head(),
        };
        self.write_parts(header.emit().get(..self.vnet_len).unwrap_or_default(), head, skb)
    }

    fn write_parts(&self, header: &[u8], head: &[u8], skb: &Skb) -> Result<(), Errno> {
        if skb.nr_frags() + 2 <= FEW_IOV {
            write::<FEW_IOV>((&self.port, self.socket), header, head, skb)
        } else {
            write::<MAX_IOV>((&self.port, self.socket), header, head, skb)
        }
    }

    /// Sent, or dropped for a reason: the skb's end.
    fn end(&mut self, cx: &mut TxCx<'_>, skb: Skb, reason: Option<DropReason>) {
        self.done.push((skb.tx_done, skb.truesize));
        match reason {
            None => packet::count_tx(&mut self.stats, &skb),
            Some(reason) => cx.drops.count(reason),
        }
        cx.skbs.free(skb, cx.pool);
    }
}

/// The whole packet in one piece, if it fits.
fn gather<'a>(room: &'a mut [u8; SMALL_BYTES], skb: &Skb) -> Option<&'a [u8]> {
    let packet = room.get_mut(..skb.len() as usize)?;
    let mut rest = &mut *packet;
    for bytes in core::iter::once(skb.head()).chain(skb.payload_slices()) {
        let (to, behind) = rest.split_at_mut_checked(bytes.len())?;
        to.copy_from_slice(bytes);
        rest = behind;
    }
    Some(packet)
}

/// The head of an IPv6 packet that is too long for its length field, with a jumbo header in it (RFC 2675), as Linux wants
/// it. `None`: it is not that long, or IPv4, where a length of 0 is enough.
fn jumbo_head<'a>(skb: &Skb, link: usize, to: &'a mut [u8; HEAD_CAPACITY + JUMBO_HBH_LEN]) -> Option<&'a [u8]> {
    let (fixed, rest) = skb.head().split_at_checked(link + ipv6::HEADER_LEN)?;
    let payload = skb.len() - fixed.len() as u32;
    if payload <= u32::from(u16::MAX) || fixed.get(link)? >> 4 != 6 {
        return None;
    }
    let next = *fixed.get(link + ipv6::field::NEXT_HEADER)?;
    let len = skb.head_len() + JUMBO_HBH_LEN;
    let to = to.get_mut(..len)?;
    let (front, behind) = to.split_at_mut(fixed.len());
    let (hbh, l4) = behind.split_at_mut(JUMBO_HBH_LEN);
    front.copy_from_slice(fixed);
    let ip = front.get_mut(link..)?;
    ip.get_mut(4..6)?.fill(0);
    *ip.get_mut(ipv6::field::NEXT_HEADER)? = proto::HOPOPTS;
    ipv6::emit_jumbo_hbh(hbh, next, payload + JUMBO_HBH_LEN as u32);
    l4.copy_from_slice(rest);
    Some(to)
}

fn write<const N: usize>((port, socket): (&Watched, bool), header: &[u8], head: &[u8], skb: &Skb) -> Result<(), Errno> {
    let mut iov = [IoSlice::new(&[]); N];
    let first = usize::from(header.is_empty());
    iov[0] = IoSlice::new(header);
    iov[1] = IoSlice::new(head);
    let mut n = 2;
    for (slot, bytes) in iov.iter_mut().skip(2).zip(skb.payload_slices()) {
        *slot = IoSlice::new(bytes);
        n += 1;
    }
    let parts = iov.get(first..n).unwrap_or_default();
    let mut pending = socket;
    loop {
        let wrote = match socket {
            false => writev(port, parts),
            // The far end of a socket may go at any time, and a signal would be the program's end, too.
            true => {
                sendmsg(port, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            }
        };
        match wrote {
            Err(Errno::INTR) => {}
            // About an earlier message, or about a far end that is gone: then it is said again.
            Err(Errno::CONNRESET | Errno::CONNREFUSED) if std::mem::take(&mut pending) => {}
            wrote => return wrote.map(|_| ()),
        }
    }
}

/// Why the packet was lost, from what the kernel said to its write.
fn reason_of(errno: Errno) -> DropReason {
    match errno {
        Errno::NOMEM | Errno::NOBUFS => DropReason::NoMem,
        Errno::IO | Errno::NETDOWN => DropReason::FullRing,
        Errno::BADFD
        | Errno::BADF
        | Errno::PIPE
        | Errno::NODEV
        | Errno::CONNRESET
        | Errno::CONNREFUSED
        | Errno::NOTCONN => DropReason::Shutdown,
        _ => DropReason::DevHdr,
    }
}

impl TxQueue for TunTx {
    fn xmit(&mut self, cx: &mut TxCx<'_>, batch: &mut SkbBatch) -> usize {
        let mut taken = 0;
        while let Some(skb) = batch.pop_front() {
            let mut reason = packet::refuse(&skb, &self.features);
            if reason.is_none() {
                reason = match self.write(&skb) {
                    Ok(()) => None,
                    Err(Errno::AGAIN) => {
                        batch.push_front(skb);
                        self.stats.tx_stop += 1;
                        self.port.want_write(true);
                        return taken;
                    }
                    Err(errno) => Some(reason_of(errno)),
                };
            }
            self.end(cx, skb, reason);
            taken += 1;
        }
        if taken > 0 {
            self.port.want_write(false);
        }
        taken
    }

    /// Every write was its own doorbell.
    fn kick(&mut self, _cx: &mut TxCx<'_>) {}

    fn poll_tx(&mut self, _cx: &mut TxCx<'_>, done: &mut TxDone) -> usize {
        let n = self.done.len();
        for (token, bytes) in self.done.drain(..) {
            done.push(token, bytes);
        }
        n
    }

    fn is_stopped(&self) -> bool {
        self.port.wants_write() && !self.port.is_broken()
    }

    fn features(&self) -> &Features {
        &self.features
    }

    fn qstats(&self) -> Qstats {
        self.stats
    }
}
