//! Small packets of established connections, from the device's ring to the connection and back, in one look each.
//!
//! ```text
//!   write  Conn::write_small, and read Conn::read_small, without the whole world at hand
//!   rcv    IPv4 and TCP header compared with what the flow's next segment has to look like  ->  Conn::rcv_quick
//!   xmit   Conn::poll_small writes segment and payload into the device's ring, the IP header goes before it
//! ```
//! A request and its response cost two headers and some bytes; layer by layer they cost a descriptor, references to pages,
//! a general parser and emitter and three queues each. What these do is what `ip_in`, `tcp_in`, `ip_out` and the qdisc
//! would do for the same packet, the counters included. They take only what they can decide wholly: IPv4 without options,
//! TCP with timestamps alone, the connection that the last segment was for if it takes any TTL, a device with no backlog
//! that knows [`TxQueue::xmit_small`](linerate_netdev::TxQueue::xmit_small) and that nobody taps. Anything else is refused
//! with nothing changed and goes the general way.
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

use crate::core_state::{Core, Memory};
use crate::sock::{ReadyList, SockId, SockKind};
use crate::tcp::{Body, PROTO_TCP, Sock, TcpLayer, flag, note_dirty, tcp_cx_of};
use crate::tcp_out::settle;

/// IPv4 header without options, bytes.
pub(crate) const IP: usize = 20;
/// TCP header with timestamps, bytes.
pub(crate) const TCP: usize = 32;
/// Version 4, header of five words.
const VERSION_IHL: u32 = 0x45 << 24;
/// Don't fragment.
const DF: u32 = 0x4000;
/// The DSCP bits of the first word: they may be anything.
const DSCP: u32 = 0xfc << 16;
/// Two NOPs and the timestamp option's kind and length.
const TS_OPTION: u32 = 0x0101_080a;
/// ACK, and what may stand beside it, in the word of the header length.
const ACK: u32 = 0x8010 << 16;
const PSH: u32 = 0x0008 << 16;
const FIN: u32 = 0x0001 << 16;

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

/// Word number `at` of a packet's headers as it lies in memory. What it is compared with is turned round by [`net`] instead:
/// that costs nothing where it is a constant.
#[inline(always)]
fn word(bytes: &[u8; SMALL_BYTES], at: usize) -> u32 {
    u32::from_ne_bytes(bytes.as_chunks().0[at])
}

/// Both headers as words in the host's order.
pub(crate) type Words = [u32; (IP + TCP) / 4];

#[inline]
pub(crate) fn words_of(bytes: &[u8; SMALL_BYTES]) -> Words {
    let mut words = [0; (IP + TCP) / 4];
    for (to, from) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *to = u32::from_be_bytes(*from);
    }
    words
}

/// A word as it lies in memory.
#[inline(always)]
const fn net(word: u32) -> u32 {
    word.to_be()
}

/// Are these the headers of a whole, unfragmented and unmarked packet of `len` bytes, with timestamps alone as options and
/// at most PSH beside ACK?
#[inline]
fn is_plain(b: &[u8; SMALL_BYTES], len: u32) -> bool {
    let differs = (word(b, 0) & net(!DSCP) ^ net(VERSION_IHL | len))
        | word(b, 1) & net(!DF & 0xffff)
        | (word(b, 2) & net(0xff << 16) ^ net((PROTO_TCP as u32) << 16))
        | (word(b, 8) & net(!PSH & 0xffff_0000) ^ net(ACK))
        | (word(b, 10) ^ net(TS_OPTION));
    // A header is whole when its words add up to all ones, that is to a multiple of 2^16 - 1, in either byte order.
    let sum = (0..IP / 4).map(|at| u64::from(word(b, at))).sum::<u64>();
    differs == 0 && len >= (IP + TCP) as u32 && sum.is_multiple_of(0xffff)
}

/// Is the packet one of the flow with these [`FlowKey::as_v4_words`](linerate_wire::flow::FlowKey::as_v4_words)? They have
/// our end first, the packet has the sender's.
#[inline]
fn is_of(b: &[u8; SMALL_BYTES], [addrs, ports]: [u64; 2]) -> bool {
    let (src, dst) = (u32::from_be(word(b, 3)), u32::from_be(word(b, 4)));
    let ends = u32::from_be(word(b, 5)).rotate_left(16);
    addrs == u64::from(dst) << 32 | u64::from(src) && ports == u64::from(ends) << 32 | u64::from(PROTO_TCP)
}

/// A sum of words, folded.
#[inline]
fn fold(sum: u64) -> u16 {
    debug_assert!(sum >> 40 == 0, "more words than a header has");
    checksum::fold(((sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32)) as u32)
}

/// Is this the header of a whole, unfragmented and unmarked TCP packet of `len` bytes?
#[inline]
pub(crate) fn is_usual_ip(w: &Words, len: u32) -> bool {
    let [ip @ .., _, _, _, _, _, _, _, _] = w;
    w[0] & !DSCP == VERSION_IHL | len
        && w[1] & !DF & 0xffff == 0
        && w[2] >> 16 & 0xff == u32::from(PROTO_TCP)
        && len >= IP as u32 + 20
        && ip.iter().map(|&word| u64::from(word)).sum::<u64>().is_multiple_of(0xffff)
}

/// Is this the header of a segment with timestamps alone as options and at most PSH and FIN beside ACK?
#[inline]
pub(crate) fn is_usual_tcp(w: &Words, len: u32) -> bool {
    w[8] & !(PSH | FIN) & 0xffff_0000 == ACK && w[10] == TS_OPTION && len >= (IP + TCP) as u32
}

/// Bytes of both headers, as the second says.
#[inline]
pub(crate) fn headers_len(w: &Words) -> u32 {
    IP as u32 + (w[8] >> 28) * 4
}

/// Does it carry a FIN?
#[inline]
pub(crate) fn has_fin(w: &Words) -> bool {
    w[8] & FIN != 0
}

/// The flow of a packet, seen from this host.
#[inline]
pub(crate) fn flow_of(w: &Words) -> FlowKey {
    FlowKey::from_v4(w[4], w[3], w[5] as u16, (w[5] >> 16) as u16, PROTO_TCP)
}

/// The TOS byte and the hop limit.
#[inline]
pub(crate) fn tos_ttl(w: &Words) -> (u8, u8) {
    ((w[0] >> 16) as u8, (w[2] >> 24) as u8)
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
        let Some(sock) = self.socks.get_mut(key) else { return (0, true) };
        if work || sock.flags & (flag::IN_TABLE | flag::MIN_TTL) != flag::IN_TABLE || generation != links.generation() {
            return (0, true);
        }
        let Body::Conn(conn) = &mut sock.body else { return (0, true) };
        let Some(flow) = conn.key().as_v4_words() else { return (0, true) };
        let mut cx = tcp_cx_of((*now, *kernels), mem, mibs, rng, cfg, &mut self.challenge);
        let mut octets = 0;
        let mut take = |bytes: &[u8; SMALL_BYTES], packet: SmallPacket| {
            let len = u32::from(packet.len());
            let taken = is_plain(bytes, len) && is_of(bytes, flow) && rcv_plain(&mut cx, conn, bytes, len);
            octets += if taken { u64::from(len) } else { 0 };
            taken
        };
        // What siblings handed over is looked for in the general way.
        let (mut taken, mut rest) = (0, links.siblings.is_some());
        links.each_queue(|from, q| {
            if from != ifindex || q.gro.is_some() {
                rest = true;
                return;
            }
            let (n, more) = q.rx.poll_small(budget - taken, &mut take);
            taken += n;
            rest |= more;
        });
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

    /// [`Conn::write_small`] on the connection of `id`.
    #[inline]
    pub(crate) fn write_small(&mut self, core: &mut Core, id: SockId, data: &[u8]) -> bool {
        let Some(key) = id.key(SockKind::Tcp) else { return false };
        let Some(sock) = self.socks.get_mut(key) else { return false };
        let Body::Conn(conn) = &mut sock.body else { return false };
        let Memory { tx_page, tcp, .. } = &mut core.mem;
        let taken = conn.write_small(core.now, tx_page, tcp, data);
        if taken {
            note_dirty(&mut self.dirty, sock, key.index);
            self.copied_tx += data.len() as u64;
        }
        taken
    }

    /// [`Conn::read_small`] on the connection of `id`.
    #[inline]
    pub(crate) fn read_small(&mut self, core: &mut Core, id: SockId, buf: &mut [u8]) -> Option<usize> {
        let key = id.key(SockKind::Tcp)?;
        let sock = self.socks.get_mut(key)?;
        let Body::Conn(conn) = &mut sock.body else { return None };
        let Memory { skbs, tcp, .. } = &mut core.mem;
        let n = conn.read_small(core.now, tcp, skbs, buf)?;
        note_dirty(&mut self.dirty, sock, key.index);
        self.copied_rx += n as u64;
        Some(n)
    }

    /// Remembers whose the last segment was, and that its packet was acceptable.
    #[inline]
    pub(crate) fn note_rx(&mut self, index: u32, ifindex: IfIndex, generation: u32) {
        if let Some((key, sock)) = self.socks.entry_by_index_mut(index) {
            self.last_rx = LastRx { key, ifindex, generation };
            // Most often it says so already: the line stays clean.
            if sock.oif == ifindex && sock.accepted != generation {
                sock.accepted = generation;
            }
        }
    }
}

/// Receives a packet of this connection, `len` bytes long, if it is the expected next one.
#[inline]
pub(crate) fn rcv_plain(cx: &mut TcpCx<'_>, conn: &mut Conn, bytes: &[u8; SMALL_BYTES], len: u32) -> bool {
    let now = cx.now;
    let [seq, ack, facts, ts_val, ts_ecr] = [6, 7, 8, 11, 12].map(|at| u32::from_be(word(bytes, at)));
    let quick = Quick { seq, ack, window: facts as u16, psh: facts & PSH != 0, ts_val, ts_ecr };
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

/// Sends the one small segment that a connection has, or its ACK, straight into its device. False: the general way has
/// to look.
#[inline]
pub(crate) fn xmit(core: &mut Core, challenge: &mut TokenBucket, sock: &mut Sock) -> bool {
    let (oif, hash) = (sock.oif, sock.hash as u32);
    let Body::Conn(conn) = &mut sock.body else { return false };
    let held = core.links.backlog | core.links.tapped;
    let Some([addrs, _]) = conn.key().as_v4_words().filter(|_| !held) else { return false };
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
        let words = [VERSION_IHL | u32::from(tos) << 16 | len, u32::from(*ident) << 16 | DF, facts];
        let ends = (addrs >> 32) + (addrs & 0xffff_ffff);
        let sum = words.iter().fold(ends, |sum, &word| sum + u64::from(word));
        let [a, b, c] = [words[0], words[1], facts | u32::from(!fold(sum))].map(u32::to_be_bytes);
        let (to, ip_addrs) = head.split_first_chunk_mut::<12>()?;
        *to = [a, b, c].as_flattened().try_into().ok()?;
        *ip_addrs.first_chunk_mut()? = addrs.to_be_bytes();
        // The pseudo header has the same addresses; zero, protocol and length are its third word.
        let seed = fold(ends + u64::from(u32::from(PROTO_TCP) << 16 | l4_len));
        *rest.get_mut(16..)?.first_chunk_mut()? = seed.to_be_bytes();
        Some(SmallPacket::new(len as u8, IP as u8, payload_len as u8, hash))
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
