//! Small packets of established connections, from the device's ring to the connection and back, in one look each.
//!
//! ```text
//!   rcv    IPv4 and TCP header compared with what the flow's next segment has to look like  ->  Conn::rcv_quick
//!   xmit   Conn::poll_small writes segment and payload into the device's ring, the IP header goes before it
//! ```
//! A request and its response cost two headers and some bytes; layer by layer they cost a descriptor, references to pages,
//! a general parser and emitter and three queues each. What these two do is what `ip_in`, `tcp_in`, `ip_out` and the qdisc
//! would do for the same packet, the counters included. They take only what they can decide wholly: IPv4 without options,
//! TCP with timestamps alone, the connection that the last segment was for if it takes any TTL, a device with no backlog
//! that knows [`TxQueue::xmit_small`](linerate_netdev::TxQueue::xmit_small). Anything else is refused with nothing changed
//! and goes the general way.
//!
//! Invariants: a packet is received without asking whether its addresses are acceptable only if a packet of the same
//! connection was, from the same device, since addresses last changed; its checksums were verified, or it never left memory.
//! Not here: IPv6 (its headers and a request do not fit a slot), super-packets, marked (ECN) packets.

use linerate_base::{Key, TokenBucket};
use linerate_netdev::{IfIndex, SMALL_BYTES, SmallPacket};
use linerate_skb::Csum;
use linerate_tcp::{Conn, Quick, TcpCx};
use linerate_wire::checksum;
use linerate_wire::flow::FlowKey;

use crate::core_state::Core;
use crate::sock::ReadyList;
use crate::tcp::{Body, PROTO_TCP, Sock, TcpLayer, flag, note_dirty, tcp_cx_of};
use crate::tcp_out::settle;

/// IPv4 header without options, bytes.
const IP: usize = 20;
/// TCP header with timestamps, bytes.
const TCP: usize = 32;
/// Version 4, header of five words.
const VERSION_IHL: u32 = 0x45 << 24;
/// Don't fragment.
const DF: u32 = 0x4000;
/// The DSCP bits of the first word: they may be anything.
const DSCP: u32 = 0xfc << 16;
/// Two NOPs and the timestamp option's kind and length.
const TS_OPTION: u32 = 0x0101_080a;
/// ACK, and ACK with PSH, in the word of the header length.
const ACK: u32 = 0x8010 << 16;
const PSH: u32 = 0x0008 << 16;
/// Upper half of the lower word of a v4-mapped address.
const MAPPED: u64 = 0xffff << 32;

/// The connection that the last segment was for, and what was found acceptable about its packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LastRx {
    pub(crate) key: Key,
    pub(crate) ifindex: IfIndex,
    /// Of the addresses and settings that this rests on.
    pub(crate) generation: u32,
}

impl LastRx {
    /// Nobody.
    pub(crate) const NONE: Self =
        Self { key: Key { index: u32::MAX, generation: 0 }, ifindex: IfIndex(0), generation: 0 };
}

/// Both headers as words in the host's order.
type Words = [u32; (IP + TCP) / 4];

fn words_of(bytes: &[u8; SMALL_BYTES]) -> Words {
    let mut words = [0; (IP + TCP) / 4];
    for (to, from) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *to = u32::from_be_bytes(*from);
    }
    words
}

/// Sum of the words of an IPv4 header, folded: all ones when nothing was changed.
#[inline]
fn ip_sum(w: &[u32; IP / 4]) -> u16 {
    let sum = w.iter().map(|&w| u64::from(w)).sum::<u64>();
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    checksum::fold(sum as u32)
}

/// Are these the headers of a whole, unfragmented and unmarked packet of `len` bytes, with timestamps alone as options and
/// at most PSH beside ACK?
#[inline]
fn is_plain(w: &Words, len: u32) -> bool {
    let [ip @ .., _, _, _, _, _, _, _, _] = w;
    w[0] & !DSCP == VERSION_IHL | len
        && w[1] & !DF & 0xffff == 0
        && w[2] >> 16 & 0xff == u32::from(PROTO_TCP)
        && w[8] & !PSH & 0xffff_0000 == ACK
        && w[10] == TS_OPTION
        && len >= (IP + TCP) as u32
        && ip_sum(ip) == 0xffff
}

/// Is the packet one of this flow?
#[inline]
fn is_of(w: &Words, key: &FlowKey) -> bool {
    let (src, dst) = (u64::from(w[3]), u64::from(w[4]));
    // Ours first, the sender's second, the protocol.
    let ports = u64::from(w[5].rotate_left(16)) << 32 | u64::from(PROTO_TCP);
    key.as_words() == [0, MAPPED | dst, 0, MAPPED | src, ports]
}

impl TcpLayer {
    /// Receives small packets of the connection that had the last segment, as long as they are the expected ones, from all
    /// devices. Returns how many, and whether there is anything else to receive.
    pub(crate) fn poll_quick(&mut self, core: &mut Core, ready: &mut ReadyList, budget: usize) -> (usize, bool) {
        let LastRx { key, ifindex, generation } = self.last_rx;
        let Core { links, mem, mibs, cfg, rng, now, kernels, .. } = core;
        // As in the general way one queue must not starve the others.
        let budget = budget.min(links.napi.weight());
        let work = links.work_pending() | links.tapped;
        let Some((key, sock)) = self.socks.entry_by_index_mut(key.index).filter(|(k, _)| *k == key) else {
            return (0, true);
        };
        if work || sock.flags & (flag::IN_TABLE | flag::MIN_TTL) != flag::IN_TABLE || generation != links.generation() {
            return (0, true);
        }
        let Body::Conn(conn) = &mut sock.body else { return (0, true) };
        let flow = *conn.key();
        let mut cx = tcp_cx_of((*now, *kernels), mem, mibs, rng, cfg, &mut self.challenge);
        let mut octets = 0;
        let mut take = |bytes: &[u8; SMALL_BYTES], packet: SmallPacket| {
            let words = words_of(bytes);
            let len = u32::from(packet.len);
            let taken = is_plain(&words, len) && is_of(&words, &flow) && rcv_plain(&mut cx, conn, &words, bytes, len);
            octets += if taken { u64::from(len) } else { 0 };
            taken
        };
        // What siblings handed over is looked for in the general way.
        let (mut taken, mut rest) = (0, links.siblings.is_some());
        for dev in links.devices_mut() {
            for q in &mut dev.queues {
                if dev.ifindex != ifindex || q.gro.is_some() {
                    rest = true;
                    continue;
                }
                let (n, more) = q.rx.poll_small(budget - taken, &mut take);
                taken += n;
                rest |= more;
            }
        }
        if taken > 0 {
            let (n, ip) = (taken as u64, &mut mibs.ip);
            ip.in_receives += n;
            ip.in_octets += octets;
            ip.in_no_ect_pkts += n;
            ip.in_delivers += n;
            mibs.tcp.in_segs += n;
            if !settle(&mut self.timers, ready, sock, key) {
                note_dirty(&mut self.dirty, sock, key.index);
            }
        }
        (taken, rest)
    }

    /// Remembers whose the last segment was, and that its packet was acceptable.
    #[inline]
    pub(crate) fn note_rx(&mut self, index: u32, ifindex: IfIndex, generation: u32) {
        if let Some(key) = self.socks.key_of(index) {
            self.last_rx = LastRx { key, ifindex, generation };
        }
    }
}

/// Receives a packet of this connection, `len` bytes long, if it is the expected next one.
#[inline]
fn rcv_plain(cx: &mut TcpCx<'_>, conn: &mut Conn, w: &Words, bytes: &[u8; SMALL_BYTES], len: u32) -> bool {
    let now = cx.now;
    let quick = Quick { seq: w[6], ack: w[7], window: w[8] as u16, psh: w[8] & PSH != 0, ts_val: w[11], ts_ecr: w[12] };
    conn.rcv_quick(cx, &quick, len - (IP + TCP) as u32, |skbs| {
        // From the front of the head, so that others fit behind them.
        let payload = bytes.last_chunk::<{ SMALL_BYTES - IP - TCP }>()?;
        let mut skb = skbs.alloc()?;
        skb.set_head(0, payload, len as usize - (IP + TCP));
        skb.csum = Csum::Unnecessary;
        skb.tstamp = now;
        Some(skb)
    })
}

/// Sends the one small segment that a connection has, straight into its device. False: the general way has to look.
#[inline]
pub(crate) fn xmit(core: &mut Core, challenge: &mut TokenBucket, sock: &mut Sock) -> bool {
    let (oif, hash) = (sock.oif, sock.hash as u32);
    let Body::Conn(conn) = &mut sock.body else { return false };
    let [0, src, 0, dst, _] = conn.key().as_words() else { return false };
    let is_v4 = src & !0xffff_ffff == MAPPED && dst & !0xffff_ffff == MAPPED;
    if !is_v4 || core.links.backlog | core.links.tapped || !conn.wants_xmit() {
        return false;
    }
    let (src, dst) = (src as u32, dst as u32);
    let (tos, ttl) = (conn.opts().tos, conn.opts().ttl);
    let ttl = if ttl == 0 { core.cfg.ttl } else { ttl };
    let Core { links, mem, mibs, cfg, rng, .. } = core;
    let Some((queue, ident)) = links.small_tx(oif, hash) else { return false };
    let mut cx = tcp_cx_of((core.now, core.kernels), mem, mibs, rng, cfg, challenge);
    let mut len = 0;
    let sent = queue.tx.xmit_small(&mut |room: &mut [u8; SMALL_BYTES]| {
        let (head, rest) = room.split_first_chunk_mut::<IP>()?;
        let (header_len, payload_len) = conn.poll_small(&mut cx, rest)?;
        let l4_len = (header_len + payload_len) as u32;
        len = l4_len + IP as u32;
        let facts = u32::from(ttl) << 24 | u32::from(PROTO_TCP) << 16;
        let mut words = [VERSION_IHL | u32::from(tos) << 16 | len, u32::from(*ident) << 16 | DF, facts, src, dst];
        words[2] |= u32::from(!ip_sum(&words));
        for (to, word) in head.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
        // The pseudo header has the same addresses; zero, protocol and length are its third word.
        let seed = ip_sum(&[src, dst, u32::from(PROTO_TCP) << 16 | l4_len, 0, 0]);
        *rest.get_mut(16..)?.first_chunk_mut()? = seed.to_be_bytes();
        Some(SmallPacket { len: len as u8, transport_header: IP as u8, payload_len: payload_len as u8, hash })
    });
    if sent {
        *ident = ident.wrapping_add(1);
        queue.qdisc.passed(len);
        links.small_sent += 1;
        let ip = &mut mibs.ip;
        ip.out_requests += 1;
        ip.out_transmits += 1;
        ip.out_octets += u64::from(len);
    }
    sent
}

#[cfg(test)]
mod tests;
