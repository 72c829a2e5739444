//! Several shards on the queues of the same devices: whose a packet is, and how it comes there.
//!
//! ```text
//!   queue of shard A ──poll──▶ GRO ──▶ home(packet) = A ──▶ ip_in ...
//!                                          │ B: not ours, counted wrong_shard
//!                                          └──▶ ring A→B ──▶ napi of B (one more place of its rotation) ──▶ ip_in ...
//! ```
//! # The rule
//! Every packet has one home, which each shard computes alike from the packet alone ([`Homes`]). No table says where a
//! socket lives, so nothing has to be kept in step:
//!
//! | packet | home |
//! |---|---|
//! | TCP | keyed hash of remote address, remote port and local port |
//! | UDP | local port modulo the number of shards |
//! | fragment | keyed hash of both addresses; put together there, the whole packet goes to its own home |
//! | ICMP error | home of the packet that it quotes |
//! | anything else (echo, other protocols, what can not be read) | where it arrives |
//!
//! So a listener must listen on every shard, and each has the connections whose hash is its own; `connect` takes only ports
//! with which the flow's home is the connecting shard; a UDP socket lives where its port says. The local address is no part of the
//! hash: who connects from a port of his choice knows the home before the route. A device that returns a flow on the queue
//! that last wrote it (a TUN) therefore misses with a flow's first packets only; one that spreads by a hash of its own misses for
//! good, which costs a ring, not correctness. Packets over the loopback follow the same rule.
//!
//! # Rings and sleep
//! One bounded ring for each ordered pair of shards. What finds it full is dropped (`CPU_BACKLOG`, Linux's reason for a
//! full backlog of another CPU): nobody waits for a sibling. A poll publishes once per sibling, then knocks at its door,
//! the same two-sided protocol by which handles wake a sleeping shard, so that neither misses the other. Skbs and pages come home
//! over their owners' lock-free return, wherever they end.
//!
//! # Limits
//! Devices must be numbered alike on all shards, with addresses and routes alike. Neighbour tables are not shared: no
//! Ethernet. Memory limits, path MTUs and rate limits are each shard's own. A packet that is handed over may be overtaken by
//! the next of its flow when the device has learned the queue meanwhile: TCP sees reordering of a few packets once. A shard
//! without siblings computes nothing of this.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linerate_base::{DropReason, HashKey};
use linerate_skb::spsc::{Consumer, Producer, channel};
use linerate_skb::{Skb, SkbBatch};
use linerate_wire::flow::{FlowKey, to_mapped};
use linerate_wire::ip::{IpVersion, proto};
use linerate_wire::ipv4::Ipv4View;
use linerate_wire::ipv6::Ipv6View;
use linerate_wire::{IpParseError, IpRepr, QuotedPacket, icmp, icmpv6};

use crate::core_state::Core;
use crate::ip_in;
use crate::remote::ShardWaker;
use crate::remote::wake::WaitFlag;
use crate::shard::Shard;

/// Most shards of one stack.
pub const MAX_SHARDS: usize = 64;
/// Skbs on their way from one shard to another: several polls of a full queue.
const RING_SKBS: usize = 512;
/// Bytes of an ICMP message that are looked at: as many as are when it is received.
const QUOTE_BYTES: usize = 160;

/// Which shard a packet belongs to: the same answer on every shard. See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Homes {
    key: HashKey,
    shards: u16,
}

impl Homes {
    /// The rule for `shards` shards (at least 1, at most [`MAX_SHARDS`]) under a secret key.
    pub fn new(key: HashKey, shards: usize) -> Self {
        Self { key, shards: shards.clamp(1, MAX_SHARDS) as u16 }
    }
    /// Shards.
    pub const fn shards(&self) -> usize {
        self.shards as usize
    }

    /// Home of the TCP connection between `local_port` of any address of ours and `remote`. The unspecified address means
    /// this host, as for `connect`.
    pub fn of_tcp(&self, local_port: u16, remote: SocketAddr) -> usize {
        let ports = u64::from(local_port) << 16 | u64::from(remote.port());
        let hash = match remote.ip().to_canonical() {
            IpAddr::V4(ip) => {
                let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST } else { ip };
                self.key.sip13_words(&[u64::from(ip.to_bits()) << 32 | ports])
            }
            IpAddr::V6(ip) => {
                let bits = if ip.is_unspecified() { Ipv6Addr::LOCALHOST.to_bits() } else { ip.to_bits() };
                self.key.sip13_words(&[(bits >> 64) as u64, bits as u64, ports])
            }
        };
        self.spread(hash)
    }
    /// Home of the UDP sockets with this local port.
    pub const fn of_udp(&self, local_port: u16) -> usize {
        (local_port % self.shards) as usize
    }
    /// Where the fragments between two addresses are put together.
    fn of_fragment(&self, src: IpAddr, dst: IpAddr) -> usize {
        let (src, dst) = (to_mapped(src).to_bits(), to_mapped(dst).to_bits());
        self.spread(self.key.sip13_words(&[(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64]))
    }
    /// The upper half of a hash times the number of shards: uniform without a division.
    fn spread(&self, hash: u64) -> usize {
        (((hash >> 32) * u64::from(self.shards)) >> 32) as usize
    }

    /// Home of a received packet whose head starts at its IP header; `None`: whoever has it. Headers may be made linear.
    pub fn of_packet(&self, skb: &mut Skb) -> Option<usize> {
        let head = skb.head();
        if let Some(flow) = FlowKey::peek_tcp(head)
            && !is_v4_fragment(head)
        {
            return Some(self.of_flow(&flow));
        }
        match ip_in::parse(skb) {
            Ok((ip, hl)) => self.of_transport(skb, &ip, hl),
            Err(IpParseError::Fragment) => fragment_ends(skb.head()).map(|(src, dst)| self.of_fragment(src, dst)),
            // Dropped and counted where it is.
            Err(_) => None,
        }
    }

    fn of_flow(&self, flow: &FlowKey) -> usize {
        match flow.proto() {
            proto::UDP => self.of_udp(flow.local_port()),
            _ => self.of_tcp(flow.local_port(), flow.remote()),
        }
    }

    fn of_transport(&self, skb: &mut Skb, ip: &IpRepr, hl: usize) -> Option<usize> {
        match ip.proto {
            proto::TCP | proto::UDP => {
                // Both begin with their ports.
                if !skb.pull_to_head(hl + 4) {
                    return None;
                }
                let ports = skb.head().get(hl..hl + 4)?;
                let port = |at: usize| Some(u16::from_be_bytes([*ports.get(at)?, *ports.get(at + 1)?]));
                Some(self.of_flow(&FlowKey::of_rx(ip, port(0)?, port(2)?)))
            }
            proto::ICMP | proto::ICMPV6 => self.of_icmp(skb, hl, ip.src.is_ipv4()),
            _ => None,
        }
    }

    /// An error belongs to the flow that it is about.
    fn of_icmp(&self, skb: &Skb, hl: usize, v4: bool) -> Option<usize> {
        use icmp::ty;
        let mut buf = [0; QUOTE_BYTES];
        let n = skb.copy_bytes(hl as u32, &mut buf);
        let (head, quoted) = buf.get(..n)?.split_first_chunk::<{ icmp::HEADER_LEN }>()?;
        let is_error = match v4 {
            true => matches!(head[0], ty::UNREACHABLE | ty::TIME_EXCEEDED | ty::PARAM_PROBLEM),
            false => head[0] < icmpv6::ty::ECHO_REQUEST,
        };
        if !is_error {
            return None;
        }
        let q = QuotedPacket::parse(quoted)?;
        match q.proto {
            proto::TCP => Some(self.of_tcp(q.src_port(), SocketAddr::new(q.dst, q.dst_port()))),
            proto::UDP => Some(self.of_udp(q.src_port())),
            _ => None,
        }
    }
}

/// Is an IPv4 packet (without options, as the caller knows) a piece of one?
fn is_v4_fragment(head: &[u8]) -> bool {
    const MORE_OR_OFFSET: u16 = 0x3fff;
    match head {
        [0x45, _, _, _, _, _, a, b, ..] => u16::from_be_bytes([*a, *b]) & MORE_OR_OFFSET != 0,
        _ => false,
    }
}

fn fragment_ends(head: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match IpVersion::of_packet(head)? {
        IpVersion::V4 => Ipv4View::new_checked(head).ok().map(|v| (v.src().into(), v.dst().into())),
        IpVersion::V6 => Ipv6View::new_checked(head).ok().map(|v| (v.src().into(), v.dst().into())),
    }
}

/// What became of packets between a shard and its siblings; skbs, all counters only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SteerStats {
    /// Received from our devices for a sibling.
    pub wrong_shard: u64,
    /// Of these, not handed over: the sibling's ring was full, or the sibling gone.
    pub dropped: u64,
    /// Received from siblings.
    pub from_siblings: u64,
}

impl SteerStats {
    /// Adds the counts of another shard.
    pub fn merge(&mut self, other: &Self) {
        self.wrong_shard += other.wrong_shard;
        self.dropped += other.dropped;
        self.from_siblings += other.from_siblings;
    }
}

/// An skb in a ring. When the ring dies with it, it goes home: its shard is gone, and nobody is left to count it.
struct Parcel(Option<Skb>);

impl Drop for Parcel {
    fn drop(&mut self) {
        if let Some(skb) = self.0.take() {
            skb.into_home();
        }
    }
}

/// Where one knocks who left something for a shard.
struct Door {
    asleep: WaitFlag,
    waker: Arc<dyn ShardWaker>,
}

/// A shard's place among its siblings: made by [`siblings`], given to [`Shard::join`].
pub struct Siblings {
    homes: Homes,
    me: usize,
    /// By shard; `None` for ourselves.
    to: Vec<Option<Producer<Parcel>>>,
    from: Vec<Consumer<Parcel>>,
    /// Whose turn it is in `from`.
    next: usize,
    doors: Arc<[Door]>,
    stats: SteerStats,
}

/// Places for as many shards as there are `wakers` (at most [`MAX_SHARDS`]), each of which ends the sleep of the thread that
/// turns its shard. `key` is secret: it spreads flows so that no peer can aim at one shard.
pub fn siblings(key: HashKey, wakers: Vec<Arc<dyn ShardWaker>>) -> Vec<Siblings> {
    debug_assert!((1..=MAX_SHARDS).contains(&wakers.len()));
    let homes = Homes::new(key, wakers.len());
    let doors: Arc<[Door]> = wakers.into_iter().map(|waker| Door { asleep: WaitFlag::new(), waker }).collect();
    let place = |me| Siblings {
        homes,
        me,
        to: Vec::new(),
        from: Vec::new(),
        next: 0,
        doors: doors.clone(),
        stats: SteerStats::default(),
    };
    let mut all: Vec<_> = (0..homes.shards()).map(place).collect();
    for from in 0..all.len() {
        for to in 0..all.len() {
            let (tx, rx) = channel(RING_SKBS);
            let mine = from == to;
            if let Some(s) = all.get_mut(from) {
                s.to.push((!mine).then_some(tx));
            }
            if let Some(s) = all.get_mut(to).filter(|_| !mine) {
                s.from.push(rx);
            }
        }
    }
    all
}

impl Siblings {
    /// The rule that all of them share.
    pub fn homes(&self) -> Homes {
        self.homes
    }

    /// May a connection from `local_port` to `remote` be this shard's?
    #[inline]
    pub(crate) fn is_home_of_tcp(&self, local_port: u16, remote: SocketAddr) -> bool {
        self.homes.of_tcp(local_port, remote) == self.me
    }
    /// May a UDP socket have this port here?
    pub(crate) fn is_home_of_udp(&self, local_port: u16) -> bool {
        self.homes.of_udp(local_port) == self.me
    }

    /// Puts a packet into the ring to its home, unpublished.
    ///
    /// # Errors
    /// Gives it back with the reason why it must die.
    fn hand_over(&mut self, home: usize, skb: Skb) -> Result<(), (Skb, DropReason)> {
        self.stats.wrong_shard += 1;
        let refused = match self.to.get_mut(home) {
            Some(Some(ring)) if !ring.is_closed() => match ring.stage(Parcel(Some(skb))) {
                Ok(()) => return Ok(()),
                Err(mut parcel) => parcel.0.take().map(|skb| (skb, DropReason::CpuBacklog)),
            },
            _ => Some((skb, DropReason::Shutdown)),
        };
        self.stats.dropped += 1;
        refused.map_or(Ok(()), Err)
    }

    /// Shows the siblings what was put into their rings, and wakes those that sleep.
    fn publish(&mut self) {
        for (ring, door) in self.to.iter_mut().zip(self.doors.iter()) {
            let Some(ring) = ring.as_mut().filter(|r| r.staged() > 0) else { continue };
            ring.publish();
            if door.asleep.notify() {
                door.waker.wake();
            }
        }
    }

    /// Announces sleep; `true` when something came meanwhile.
    pub(crate) fn arm(&mut self) -> bool {
        if let Some(door) = self.doors.get(self.me) {
            door.asleep.prepare();
        }
        self.from.iter().any(|ring| !ring.is_empty())
    }
    /// The shard is awake.
    pub(crate) fn disarm(&mut self) {
        if let Some(door) = self.doors.get(self.me) {
            door.asleep.cancel();
        }
    }
}

impl Drop for Siblings {
    /// What waits for a shard that goes is let go now: a ring outlives one of its ends.
    fn drop(&mut self) {
        for ring in &mut self.from {
            while ring.pop().is_some() {}
        }
    }
}

/// Takes out of `out`, which a queue of this shard has just delivered, what belongs to siblings, and hands it over. The
/// order of the rest stays.
pub(crate) fn sift(core: &mut Core, out: &mut SkbBatch) {
    let Some(mut siblings) = core.links.siblings.take() else { return };
    for _ in 0..out.len() {
        let Some(mut skb) = out.pop_front() else { break };
        match siblings.homes.of_packet(&mut skb) {
            Some(home) if home != siblings.me => {
                if let Err((skb, reason)) = siblings.hand_over(home, skb) {
                    core.drop_skb(skb, reason);
                }
            }
            _ => out.push(skb),
        }
    }
    siblings.publish();
    core.links.siblings = Some(siblings);
}

/// A packet that was put together here goes to its home; `Some` when that is here.
pub(crate) fn forward(core: &mut Core, mut whole: Skb) -> Option<Skb> {
    let Some(siblings) = core.links.siblings.as_deref_mut() else { return Some(whole) };
    let home = siblings.homes.of_packet(&mut whole).filter(|home| *home != siblings.me);
    let Some(home) = home else { return Some(whole) };
    // Its fragments were counted here. The whole is counted where it goes on.
    let ip = &mut core.mibs.ip;
    ip.in_receives = ip.in_receives.saturating_sub(1);
    ip.in_octets = ip.in_octets.saturating_sub(u64::from(whole.len()));
    let handed = siblings.hand_over(home, whole);
    siblings.publish();
    if let Err((skb, reason)) = handed {
        core.drop_skb(skb, reason);
    }
    None
}

/// Moves up to `want` skbs that siblings left for this shard to `out`.
pub(crate) fn take(core: &mut Core, want: usize, out: &mut SkbBatch) -> usize {
    let now = core.now;
    let Some(siblings) = core.links.siblings.as_deref_mut() else { return 0 };
    let (mut n, rings) = (0, siblings.from.len());
    for _ in 0..rings {
        let Some(ring) = siblings.from.get_mut(siblings.next) else { break };
        n += ring.pop_batch(want - n, |mut parcel| {
            let Some(mut skb) = parcel.0.take() else { return };
            // The sibling's clock may be another.
            skb.tstamp = now;
            out.push(skb);
        });
        siblings.next = if siblings.next + 1 < rings { siblings.next + 1 } else { 0 };
        if n >= want {
            break;
        }
    }
    siblings.stats.from_siblings += n as u64;
    n
}

/// Several shards on one device.
impl Shard {
    /// Makes this shard one of several that share their devices: each with queues of its own of every device, the devices
    /// numbered alike, with the same addresses and routes. Before the first turn.
    pub fn join(&mut self, siblings: Siblings) {
        debug_assert!(self.core.links.siblings.is_none(), "a shard joins once");
        self.core.links.siblings = Some(Box::new(siblings));
    }
    /// The rule by which packets find their shard; `None` for a shard without siblings.
    pub fn homes(&self) -> Option<Homes> {
        self.core.links.siblings.as_ref().map(|s| s.homes)
    }
    /// What was handed over; zeros for a shard without siblings.
    pub fn steer_stats(&self) -> SteerStats {
        self.core.links.siblings.as_ref().map_or_else(SteerStats::default, |s| s.stats)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
