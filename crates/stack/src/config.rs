//! What configures a shard and its devices.
//!
//! A [`StackConfig`] is read once at the start; its `tcp` part is an immutable snapshot that may be replaced between
//! turns. Everything random comes from `seed` and `hash_key`: the same configuration and the same packets at the same
//! times give the same run.

use alloc::string::String;
use linerate_arch::Kernels;
use linerate_skb::PoolConfig;
use linerate_tcp::TcpConfig;

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
    /// TCP memory in bytes of truesize: pressure and hard limit (`tcp_mem`).
    pub tcp_mem_bytes: [u64; 2],
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
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            tcp: TcpConfig::default(),
            kernels: Kernels::portable(),
            seed: 0,
            tx_pool: PoolConfig { page_shift: 15, max_pages: 32_768, cache_pages: 128 },
            max_skbs: 1 << 20,
            tcp_mem_bytes: [768 << 20, 1 << 30],
            local_ports: (32_768, 60_999),
            icmp_rate: (1000, 50),
            ttl: 64,
            napi_weight: 64,
            qdisc_limit_skbs: 1000,
            udp_rcvbuf_bytes: 212_992,
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
        }
    }
}
