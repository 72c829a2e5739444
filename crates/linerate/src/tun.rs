//! TUN and TAP devices: Linux, and everything that Linux can reach, on the other side of a [`Stack`](crate::Stack).
//!
//! ```text
//!   your program -- Stack -- Interface::tun ==[ TUN lin0 ]== the kernel's routing, sockets, containers, other machines
//!                   10.9.0.2                                  10.9.0.1
//! ```
//! [`TunConfig`] says how the device is opened, and configures the kernel's end: addresses, MTU, routes. By default
//! super-packets of up to 64 KiB cross it whole in both directions, with checksums left undone, as between two ends of a
//! veth pair ([`Offloads`], [`VnetHdr`]). [`Tun::from_fds`] takes descriptors that somebody with more rights opened.
//!
//! Opening one needs `CAP_NET_ADMIN` in the network namespace: root, or anybody inside `unshare -Urn`. Errors say what to
//! do ([`TunError`]).
//!
//! **TUN or TAP.** A TUN is a link of IP packets between two ends. A TAP ([`TunConfig::ethernet`]) carries Ethernet frames: it
//! may be put into a bridge, finds its neighbours by ARP and neighbour discovery, and is slower by that much. An IPv6
//! address is on trial for a second there before it is used (duplicate address detection).
//!
//! With several queues ([`TunConfig::queues`]) the kernel returns a flow on the queue that last wrote it. A stack of several
//! shards ([`Builder::shards`](crate::Builder::shards)) has one of them at least for each. The stack sleeps on the device's
//! descriptors: nothing runs while nothing comes.

pub use linerate_host::tun::{Offloads, PLAIN_QUEUE_LEN, Tun, TunConfig, TunError, TunMode, TunQueue, VnetHdr};
pub use linerate_host::{WatchList, Watched};
pub use linerate_wire::Cidr;
pub use linerate_wire::ethernet::MacAddr;

use linerate_skb::PoolConfig;

/// The receive pool of a queue unless set: pages of 32 KiB, so that a super-packet is in two or three pieces; at most
/// 256 MiB, taken when needed.
pub(crate) const RX_POOL: PoolConfig = PoolConfig { page_shift: 15, max_pages: 8192, cache_pages: 64 };
