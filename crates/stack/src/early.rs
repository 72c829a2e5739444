//! Early demultiplexing: small segments of all flows, from the device's ring to their sockets.
//!
//! ```text
//!   ring ──▶ usual header? ──▶ flow, hash, table ─┬─ the predicted segment of its connection ──▶ Conn::rcv_quick, there
//!                                                 └─ without payload: set aside ──▶ accept, connection, listener, ...
//! ```
//! A connection that lives for ten segments gets few of them in a row, so [`crate::quick`], which knows one connection,
//! does not help it. Its segments are as small and their headers as usual. Here the headers are read once, as words,
//! and the flow is looked up before IP is asked, as Linux does (`tcp_v4_early_demux`): a connection vouches for its
//! addresses, a predicted segment is done with on the spot, and another without payload (a SYN, an ACK, a FIN) gets the
//! bare descriptor that the general way wants. What `ip_in` and `tcp_in` would do for the packet is done, counters
//! included.
//!
//! Order: what is set aside is received before anything else is polled. Behind a segment that was set aside, one of the
//! same connection is set aside too, or stays in the ring. Whatever is not usual stays in the ring and goes the general
//! way: IPv6, IPv4 options, ECN marks, payload that is not predicted. So does everything under a tap, among shards that
//! share a device, and when connections are many, since then memory has to be asked for ahead ([`crate::lookahead`]).
//!
//! Invariant: an address is believed to be acceptable only if a packet of the same connection was, from the same
//! device, since addresses last changed ([`crate::tcp::Sock::accepted`]).

use linerate_base::{DropReason, Instant, Seq};
use linerate_netdev::{IfIndex, SMALL_BYTES, SmallPacket};
use linerate_skb::{Csum, Skb, SkbCache};
use linerate_wire::flow::FlowKey;
use linerate_wire::ip::IpRepr;
use linerate_wire::tcp::TcpParseError;
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::core_state::Core;
use crate::demux::Entry;
use crate::ip_in;
use crate::lookahead::MIN_SOCKETS;
use crate::quick::{self, IP, LastRx, Words};
use crate::sock::ReadyList;
use crate::tcp::{Body, PROTO_TCP, TcpLayer, find_owner, flag, hash_of, note_dirty, tcp_cx_of};
use crate::tcp_in::Segment;
use crate::tcp_out::settle;
use crate::upcall::IpMeta;

/// A segment without payload that was taken from a ring.
pub(crate) struct Aside {
    flow: FlowKey,
    hash: u64,
    /// Its connection when it was set aside.
    conn: Option<u32>,
    ifindex: IfIndex,
    words: Words,
    /// Bytes of packet.
    len: u32,
    /// The TCP header, and what lay behind it in the ring.
    header: [u8; HEADER_BYTES],
}

/// Room for the longest TCP header.
const HEADER_BYTES: usize = 64;

impl TcpLayer {
    /// Receives small segments with usual headers from all devices, at most `budget`; returns how many.
    pub(crate) fn poll_early(&mut self, core: &mut Core, ready: &mut ReadyList, budget: usize) -> usize {
        let links = &core.links;
        // A tap wants to see packets, and shards that share a device sort them first: both know skbs.
        let general = links.work_pending() || links.tapped || links.siblings.is_some();
        if general || self.socks.len() >= MIN_SOCKETS {
            return 0;
        }
        debug_assert!(self.aside.is_empty(), "segments were forgotten");
        let taken = self.take_early(core, ready, budget);
        if !self.aside.is_empty() {
            let mut aside = core::mem::take(&mut self.aside);
            for a in &aside {
                self.rcv_aside(core, ready, a);
            }
            aside.clear();
            self.aside = aside;
        }
        taken
    }

    /// Takes what is usual from the rings: receives it, or sets it aside. Returns how many.
    fn take_early(&mut self, core: &mut Core, ready: &mut ReadyList, budget: usize) -> usize {
        let Core { links, mem, mibs, cfg, rng, now, kernels, hash_key, .. } = core;
        let Self { socks, reqs, tws, table, timers, dirty, challenge, aside, last_rx, .. } = self;
        let generation = links.generation();
        let budget = budget.min(links.napi.weight());
        let (mut taken, mut quick, mut octets) = (0, 0, 0);
        let mut cx = tcp_cx_of((*now, *kernels), mem, mibs, rng, cfg, challenge);
        for dev in links.devices_mut().filter(|dev| dev.ether.is_none()) {
            let ifindex = dev.ifindex;
            let mut take = |bytes: &[u8; SMALL_BYTES], packet: SmallPacket| {
                let (words, len) = (quick::words_of(bytes), u32::from(packet.len()));
                if !quick::is_usual_ip(&words, len) {
                    return false;
                }
                let usual = quick::is_usual_tcp(&words, len);
                let flow = quick::flow_of(&words);
                let hash = hash_of(hash_key, &flow);
                let mut owner = None;
                if let Some(Entry::Conn(index)) = find_owner(table, (socks, reqs, tws), hash, &flow)
                    && let Some((key, sock)) = socks.entry_by_index_mut(index)
                    && let Body::Conn(conn) = &mut sock.body
                {
                    let direct = sock.flags & (flag::ASIDE | flag::MIN_TTL) == 0
                        && sock.oif == ifindex
                        && sock.accepted == generation
                        && usual
                        && !quick::has_fin(&words);
                    if direct && quick::rcv_plain(&mut cx, conn, bytes, len) {
                        if !settle(timers, ready, sock, key) {
                            note_dirty(dirty, sock, index);
                        }
                        *last_rx = LastRx { key, ifindex, generation };
                        (quick, octets) = (quick + 1, octets + u64::from(len));
                        return true;
                    }
                    owner = Some((index, sock));
                }
                let Some(header) = bytes.get(IP..).and_then(|tcp| tcp.first_chunk()) else { return false };
                if len != quick::headers_len(&words) {
                    return false;
                }
                let conn = owner.map(|(index, sock)| {
                    sock.set(flag::ASIDE);
                    index
                });
                aside.push(Aside { flow, hash, conn, ifindex, words, len, header: *header });
                true
            };
            for q in dev.queues.iter_mut().filter(|q| q.gro.is_none()) {
                taken += q.rx.poll_small(budget - taken, &mut take).0;
            }
        }
        let ip = &mut mibs.ip;
        ip.in_receives += quick;
        ip.in_octets += octets;
        ip.in_no_ect_pkts += quick;
        ip.in_delivers += quick;
        mibs.tcp.in_segs += quick;
        taken
    }

    /// Receives a segment that was set aside.
    fn rcv_aside(&mut self, core: &mut Core, ready: &mut ReadyList, a: &Aside) {
        let ip = &mut core.mibs.ip;
        ip.in_receives += 1;
        ip.in_octets += u64::from(a.len);
        ip.in_no_ect_pkts += 1;
        let generation = core.links.generation();
        let (mut entry, mut vouched) = (None, false);
        if let Some(index) = a.conn
            && let Some(sock) = self.socks.get_by_index_mut(index)
        {
            sock.clear(flag::ASIDE);
            if sock.has(flag::IN_TABLE) && sock.conn().is_some_and(|c| *c.key() == a.flow) {
                entry = Some(Entry::Conn(index));
                vouched = sock.oif == a.ifindex && sock.accepted == generation;
            }
        }
        let (src, dst) = (a.flow.remote_addr(), a.flow.local_addr());
        let mut multicast = false;
        if !vouched {
            let ip = IpRepr::new(src, dst, PROTO_TCP, a.len - IP as u32);
            match ip_in::accept(core, &ip, a.ifindex) {
                Ok(found) => multicast = found,
                Err(reason) => return core.mibs.drops.count(reason),
            }
        }
        core.mibs.ip.in_delivers += 1;
        core.mibs.tcp.in_segs += 1;
        if multicast {
            return core.mibs.drops.count(DropReason::IpInvalidSource);
        }
        let Some(skb) = bare_skb(&mut core.mem.skbs, a, core.now) else {
            return core.mibs.drops.count(DropReason::NoMem);
        };
        let (tos, ttl) = quick::tos_ttl(&a.words);
        let meta = IpMeta { src, dst, ecn: 0, tos, ttl, ifindex: a.ifindex, multicast };
        let h = match header_of(a) {
            Ok(h) => h,
            Err(e) => {
                core.mibs.tcp.in_errs += 1;
                return core.drop_skb(skb, e.drop_reason());
            }
        };
        // What was set aside before it may have changed its owner.
        let entry = entry.or_else(|| self.lookup(a.hash, &a.flow));
        let seg = Segment { meta: &meta, h: &h, hash: a.hash, payload_len: 0, skb };
        self.rcv_owned(core, ready, entry, seg);
    }
}

/// The descriptor of a segment without payload: its TCP header, verified.
fn bare_skb(skbs: &mut SkbCache, a: &Aside, now: Instant) -> Option<Skb> {
    let mut skb = skbs.alloc()?;
    skb.set_head(0, &a.header, a.len as usize - IP);
    skb.transport_header = skb.head_offset();
    skb.csum = Csum::Unnecessary;
    skb.ip_version = 4;
    skb.ifindex = a.ifindex.0;
    skb.hash = a.hash as u32;
    skb.tstamp = now;
    Some(skb)
}

/// The TCP header: read already if it is usual, else parsed.
fn header_of(a: &Aside) -> Result<TcpRepr, TcpParseError> {
    let w = &a.words;
    if !quick::is_usual_tcp(w, a.len) {
        return TcpRepr::parse(a.header.get(..a.len as usize - IP).unwrap_or_default()).map(|(h, _)| h);
    }
    Ok(TcpRepr {
        src_port: (w[5] >> 16) as u16,
        dst_port: w[5] as u16,
        seq: Seq(w[6]),
        ack: Seq(w[7]),
        flags: TcpFlags((w[8] >> 16) as u16 & 0xfff),
        window: w[8] as u16,
        urgent: w[9] as u16,
        opts: TcpOptions { ts: Some(Timestamps { val: w[11], ecr: w[12] }), ..TcpOptions::NONE },
    })
}
