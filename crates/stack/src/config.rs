//! What configures a shard and its devices.
//!
//! A [`StackConfig`] is read once at the start; its `tcp` part is an immutable snapshot that may be replaced between
//! turns. Everything random comes from `seed` and `hash_key`: the same configuration and the same packets at the same
//! times give the same run.

use alloc::string::String;
use linerate_arch::Kernels;
use linerate_base::{Duration, HashKey};
use linerate_skb::PoolConfig;
use linerate_tcp::TcpConfig;
use linerate_wire::MacAddr;

/// A shard's configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StackConfig {
    /// Linux's TCP sysctls.
    pub tcp: TcpConfig,
    /// Copy and checksum, chosen for this CPU.
    pub kernels: Kernels,
    /// Seed of all randomness: ISNs, ports, hashes, probe jitter.
    pub seed: u64,
    /// Pages that inline writers copy into; 32 KiB each by default.
    pub tx_pool: PoolConfig,
    /// Most skb descriptors in use at once.
    pub max_skbs: u32,
    /// TCP memory in bytes of truesize: where pressure ends, where it begins, and the hard limit (`tcp_mem`).
    pub tcp_mem_bytes: [u64; 3],
    /// `ip_local_port_range`, inclusive.
    pub local_ports: (u16, u16),
    /// ICMP messages sent per second, and burst (`icmp_msgs_per_sec`, `icmp_msgs_burst`).
    pub icmp_rate: (u32, u32),
    /// Hop limit of packets sent.
    pub ttl: u8,
    /// Skbs taken from one device in a turn before the next has its chance (NAPI weight).
    pub napi_weight: usize,
    /// Longest qdisc queue of a device, skbs.
    pub qdisc_limit_skbs: usize,
    /// Default UDP receive buffer, bytes of truesize (`rmem_default`).
    pub udp_rcvbuf_bytes: u32,
    /// The neighbour table.
    pub neigh: NeighConfig,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            tcp: TcpConfig::default(),
            kernels: Kernels::portable(),
            seed: 0,
            tx_pool: PoolConfig { page_shift: 15, max_pages: 32_768, cache_pages: 128 },
            max_skbs: 1 << 20,
            tcp_mem_bytes: [512 << 20, 768 << 20, 1 << 30],
            local_ports: (32_768, 60_999),
            icmp_rate: (1000, 50),
            ttl: 64,
            napi_weight: 64,
            qdisc_limit_skbs: 1000,
            udp_rcvbuf_bytes: 212_992,
            neigh: NeighConfig::default(),
        }
    }
}

/// How software GRO is done for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroMode {
    /// Frames are delivered one by one.
    Off,
    /// `napi` merges (SYSTEMS A14).
    Software,
}

/// The neighbour table's settings: `net.ipv4.neigh.default` and its IPv6 twin, one set for both families.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NeighConfig {
    /// Entries of one family: below the first none is collected, above the second those that nobody asked for are recycled,
    /// and the third is never exceeded.
    pub gc_thresh: [usize; 3],
    /// `base_reachable_time`: each device draws its own from half to one and a half of it (RFC 4861 section 6.3.2).
    pub base_reachable: Duration,
    /// `delay_first_probe_time`: how long a stale neighbour in use may be confirmed from above before it is asked.
    pub delay_first_probe: Duration,
    /// `retrans_time`: between two solicitations.
    pub retrans: Duration,
    /// `ucast_solicit`: solicitations to a known hardware address.
    pub ucast_solicit: u8,
    /// `mcast_solicit`: solicitations to all.
    pub mcast_solicit: u8,
    /// `unres_qlen_bytes`: truesize that waits for one neighbour.
    pub unres_qlen_bytes: u32,
    /// `locktime`: after a change, answers that say otherwise are ignored so long; the first answer wins. ARP only.
    pub locktime: Duration,
    /// `gc_stale_time`: unused entries are collected after it, once there are `gc_thresh[0]` of them.
    pub gc_stale: Duration,
    /// `arp_accept`: gratuitous ARP makes new entries.
    pub arp_accept: bool,
    /// Not Linux's: nobody replaces the hardware address of a known neighbour by a word of his own. The known address is
    /// asked first, and only when it is silent the others are believed. Costs a moved address up to three probes.
    pub verify_change: bool,
}

impl Default for NeighConfig {
    fn default() -> Self {
        Self {
            gc_thresh: [128, 512, 1024],
            base_reachable: Duration::from_secs(30),
            delay_first_probe: Duration::from_secs(5),
            retrans: Duration::from_secs(1),
            ucast_solicit: 3,
            mcast_solicit: 3,
            unres_qlen_bytes: 212_992,
            locktime: Duration::from_secs(1),
            gc_stale: Duration::from_secs(60),
            arp_accept: false,
            verify_change: false,
        }
    }
}

/// What the frames of a device begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum LinkKind {
    /// The IP header: TUN, and everything between two ends.
    #[default]
    Ip,
    /// An Ethernet II header: TAP, veth, network cards. Neighbours are found by ARP and neighbour discovery.
    Ethernet {
        /// The device's own address.
        mac: MacAddr,
    },
}

/// How the lower half of an IPv6 address that a device makes for itself comes about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AddrGen {
    /// No link-local address, none of advertised prefixes.
    None,
    /// The hardware address (RFC 4291 appendix A), Linux's default.
    #[default]
    Eui64,
    /// A number that is stable in a network and says nothing in another (RFC 7217), under this secret.
    StablePrivacy(HashKey),
}

/// IPv6 on an Ethernet device: `net.ipv6.conf`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ipv6Config {
    /// `accept_ra`: routers are asked for and believed. Off here, on in Linux: a stack inside a program does not take
    /// its routes from strangers unless asked to.
    pub accept_ra: bool,
    /// `addr_gen_mode`.
    pub addr_gen: AddrGen,
    /// `dad_transmits`: solicitations before an address is used; 0 = it is used at once.
    pub dad_transmits: u8,
}

impl Default for Ipv6Config {
    fn default() -> Self {
        Self { accept_ra: false, addr_gen: AddrGen::default(), dad_transmits: 1 }
    }
}

/// A device of a shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// Name, as `ip link` prints it.
    pub name: String,
    /// Largest IP packet of one wire frame, bytes; at most what the queue's features say.
    pub mtu_bytes: u32,
    /// Accept every destination address and tell the socket the original one (any-ip).
    pub any_ip: bool,
    /// Software GRO.
    pub gro: GroMode,
    /// Pages that the device receives into.
    pub rx_pool: PoolConfig,
    /// What frames begin with; queues must say the same (`Features::hard_header_len`).
    pub link: LinkKind,
    /// IPv6 on an Ethernet device.
    pub ipv6: Ipv6Config,
}

impl DeviceConfig {
    /// A device with the usual pools.
    pub fn new(name: impl Into<String>, mtu_bytes: u32) -> Self {
        Self {
            name: name.into(),
            mtu_bytes,
            any_ip: false,
            gro: GroMode::Software,
            rx_pool: PoolConfig { page_shift: 12, max_pages: 65_536, cache_pages: 128 },
            link: LinkKind::Ip,
            ipv6: Ipv6Config::default(),
        }
    }
    /// The same device as Ethernet under this address.
    #[must_use]
    pub fn ethernet(mut self, mac: MacAddr) -> Self {
        self.link = LinkKind::Ethernet { mac };
        self
    }
}
