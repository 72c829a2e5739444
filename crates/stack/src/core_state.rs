//! What every protocol of a shard shares: memory, counters, links, randomness.
//!
//! [`Core`] is the part of a shard that is not a socket. The protocol layers (`tcp`, `udp`, `icmp`) are separate fields
//! of the shard and get `&mut Core` beside `&mut self`: disjoint borrows instead of locks or callbacks.
//!
//! Invariants: `now` is set once at the start of a turn and never goes back; all randomness comes from `rng`, so that a
//! seed and the same packets give the same run; every skb ends in [`Core::drop_skb`] (counted) or [`Core::consume`].
//! Memory is bounded by what the configuration says: pages of the pool, descriptors, bytes of truesize in TCP buffers.
//! Receive pages are not here: each queue of a device has its own pool (see [`crate::link`]).

use linerate_arch::Kernels;
use linerate_base::mib::{IcmpMib, IpMib, TcpMib, UdpMib};
use linerate_base::rng::Rng;
use linerate_base::siphash::HashKey;
use linerate_base::{DropCounters, DropReason, Instant, RstCounters};
use linerate_skb::{Page, PagePool, Skb, SkbCache};
use linerate_tcp::{MemAcct, MemLimits, Parts};

use crate::config::StackConfig;
use crate::frag::FragTable;
use crate::link::Links;
use crate::tap::Taps;

/// Memory of a shard.
pub struct Memory {
    /// Pages that inline writers copy into.
    pub tx_pool: PagePool,
    /// The page being appended to, shared by the shard's sockets.
    pub tx_page: Option<Page>,
    /// Descriptors.
    pub skbs: SkbCache,
    /// What TCP sockets hold.
    pub tcp: MemAcct,
    /// What connections that ended left for the next ones.
    pub parts: Parts,
}

/// Counters of a shard, under Linux's names.
#[derive(Clone, Default, Debug)]
pub struct Mibs {
    /// `Tcp:` and `TcpExt:`.
    pub tcp: TcpMib,
    /// `Ip:` and `Ip6:` together.
    pub ip: IpMib,
    /// `Udp:`.
    pub udp: UdpMib,
    /// `Icmp:` and `Icmp6:` together.
    pub icmp: IcmpMib,
    /// Why skbs died.
    pub drops: DropCounters,
    /// Why connections and segments were answered by a RST.
    pub rsts: RstCounters,
}

impl Mibs {
    /// Adds the counts of another shard.
    pub fn merge(&mut self, other: &Self) {
        let Self { tcp, ip, udp, icmp, drops, rsts } = other;
        self.tcp.merge(tcp);
        self.ip.merge(ip);
        self.udp.merge(udp);
        self.icmp.merge(icmp);
        self.drops.merge(drops);
        self.rsts.merge(rsts);
    }
}

/// Everything of a shard that is not a socket.
pub struct Core {
    /// The time of this turn.
    pub now: Instant,
    /// The configuration.
    pub cfg: StackConfig,
    /// Copy and checksum.
    pub kernels: Kernels,
    /// Keyed hash of flows: a peer can not aim at one bucket.
    pub hash_key: HashKey,
    /// Randomness.
    pub rng: Rng,
    /// Memory.
    pub mem: Memory,
    /// Counters.
    pub mibs: Mibs,
    /// Devices, addresses, routes.
    pub links: Links,
    /// Packets that wait for fragments.
    pub frags: FragTable,
    /// Captures.
    pub(crate) taps: Taps,
}

impl Memory {
    /// The page that writers append to, with room; `None` when no page is free.
    pub(crate) fn writable_page(&mut self) -> Option<&mut Page> {
        if let Some(full) = self.tx_page.take_if(|p| p.room() == 0 && !p.reset_if_sole()) {
            self.tx_pool.recycle_page(full);
        }
        if self.tx_page.is_none() {
            self.tx_page = self.tx_pool.alloc();
        }
        self.tx_page.as_mut()
    }
}

impl Core {
    /// The state of a new shard at time zero: the loopback and nothing else.
    pub fn new(cfg: StackConfig) -> Self {
        let mut rng = Rng::new(cfg.seed);
        let mem = Memory {
            tx_pool: PagePool::new(cfg.tx_pool),
            tx_page: None,
            skbs: SkbCache::new(cfg.max_skbs),
            tcp: MemAcct::new(MemLimits::new(cfg.tcp_mem_bytes)),
            parts: Parts::new(),
        };
        Self {
            now: Instant::ZERO,
            kernels: cfg.kernels,
            hash_key: rng.hash_key(),
            rng,
            mem,
            mibs: Mibs::default(),
            links: Links::new(&cfg),
            frags: FragTable::default(),
            taps: Taps::default(),
            cfg,
        }
    }

    /// The end of a packet that nobody wanted: counted under its reason, memory home.
    #[track_caller]
    pub fn drop_skb(&mut self, skb: Skb, reason: DropReason) {
        self.mibs.drops.count(reason);
        self.mem.skbs.drop_skb(skb, &mut self.mem.tx_pool, reason);
    }
    /// The end of a packet that was used up.
    pub fn consume(&mut self, skb: Skb) {
        self.mem.skbs.free(skb, &mut self.mem.tx_pool);
    }
}
