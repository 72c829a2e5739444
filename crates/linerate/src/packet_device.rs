//! Devices of an embedder: packets that a program hands in and takes out itself, over a [`channel`] or a descriptor.
//!
//! ```text
//!   your threads, tasks, rings                                          the stack's thread
//!   PacketSender   --push--> [ ring: packets, super-packets ] --poll--> receives, counts, drops with a reason
//!   PacketReceiver <--pull-- [ ring: packets, super-packets ] <--kick-- sends; what does not fit stays in the qdisc
//! ```
//! **Channel.** [`channel`] gives a device for [`Interface::channel`](crate::Interface::channel) and the two ends of the
//! caller, each `Send` and for one thread at a time. Bytes are copied where the caller is: pushing copies a packet into pages of
//! the sender and sums it in the same pass, and only references cross; [`PacketSender::try_push_frags`] does not copy at
//! all. Pulled packets *are* the stack's pages: drop them soon, from any thread.
//!
//! ```
//! use linerate::packet_device::{ChannelConfig, channel};
//! use linerate::{Interface, Stack, TcpStream};
//!
//! let (device, mut to_stack, mut from_stack) = channel(&ChannelConfig::new(1500));
//! let stack = Stack::builder().interface(Interface::channel("vpn0", device).address("10.0.0.2/24")).start()?;
//! std::thread::scope(|s| {
//!     s.spawn(|| TcpStream::connect(&stack, "10.0.0.1:80"));
//!     // What the stack sends is here, as whole IP packets. This peer answers nothing but its own SYN.
//!     let syn = from_stack.pull()?.to_vec();
//!     assert_eq!((syn[0] >> 4, syn[9], &syn[16..20]), (4, 6, &[10, 0, 0, 1][..]));
//!     let refused = reset_for(&syn);
//!     to_stack.push(&refused)
//! })?;
//! # fn reset_for(syn: &[u8]) -> Vec<u8> {
//! #     use linerate_wire::{IpRepr, checksum};
//! #     let ip = IpRepr::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 20);
//! #     let mut p = vec![0; 40];
//! #     ip.emit(&mut p);
//! #     p[20..22].copy_from_slice(&syn[22..24]);
//! #     p[22..24].copy_from_slice(&syn[20..22]);
//! #     p[28..32].copy_from_slice(&(u32::from_be_bytes(syn[24..28].try_into().unwrap()).wrapping_add(1)).to_be_bytes());
//! #     p[32..34].copy_from_slice(&[0x50, 0x14]);
//! #     let sum = checksum::sum(&[&p[12..20], &[0, 6, 0, 20], &p[20..]].concat());
//! #     p[36..38].copy_from_slice(&checksum::finish(sum).to_be_bytes());
//! #     p
//! # }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! **Backpressure.** Both rings are bounded ([`ChannelConfig::rx_ring`], [`ChannelConfig::tx_ring`],
//! [`ChannelConfig::tx_bytes`]). A full ring towards the stack is [`Error::WouldBlock`](crate::Error::WouldBlock), and a batch
//! says how many it took; nothing is dropped that the caller was not told about, except for want of pages (`NoMem`, counted). A full ring
//! towards the caller stops the device (`tx_stop`): packets wait in the stack's qdisc, and TCP waits behind it.
//!
//! **Waking.** Verbs come in three kinds with one meaning, as those of sockets: blocking, `try_*` and `poll_*` with a waker. The
//! stack is woken only when it sleeps, the caller only when it waits, once for each batch; the protocol is that of remote
//! sockets, which loom has checked. For an event loop that polls descriptors, the waker of a
//! [`Parker`](crate::Parker) with an eventfd makes that descriptor readable.
//!
//! **Super-packets.** With [`ChannelConfig::offloads`] both sides may hand over what is neither cut nor summed, and say so in
//! a [`VnetHeader`], the virtio header of TUN devices and virtual machines. Without, every packet is one frame with its checksums done.
//!
//! **Trust.** The caller may lie: empty packets (`PktTooSmall`), packets above 65,535 bytes (`PktTooBig`), offsets, sizes and types
//! that contradict the packet or were not agreed on (`DevHdr`, `SkbGsoSeg`), and what is no IP (`UnhandledProto`) end as counted drops.
//! The word that a checksum is good is believed; that is what it is for.
//!
//! **Descriptor.** [`PacketFd`] is any descriptor that carries one packet per read and write: a TUN that a VPN service opened,
//! or a connected `SOCK_SEQPACKET` or `SOCK_DGRAM` socket. The stack owns it, reads it dry within its budget, sleeps on it, and closes it.
//!
//! **Every destination.** [`Interface::any_ip`](crate::Interface::any_ip) and
//! [`TcpListener::bind_every_port`](crate::TcpListener::bind_every_port) accept whatever the packets are addressed to;
//! [`TcpStream::original_dst`](crate::TcpStream::original_dst) says where a stream wanted to go.
//!
//! Limits: one queue pair per channel; UDP has no listener on every port; a program that keeps what it pulled keeps the stack's memory.

mod caller;
mod queues;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use linerate_arch::Kernels;
use linerate_host::detect_cpu;
use linerate_host::packet::Shape;
use linerate_host::tun::{Offloads, Tun, TunError, TunMode, VnetHdr};
use linerate_skb::PoolConfig;
use linerate_skb::spsc;
use linerate_stack::remote::{WaitFlag, waker_ring};

pub use self::caller::{Packet, PacketReceiver, PacketSender};
use self::queues::{ChannelRx, ChannelTx};
use crate::nic::{QueuePair, Wake};

pub use linerate_skb::Page;
pub use linerate_wire::virtio_net_hdr::{PartialCsum, VirtioGso as Gso, VirtioNetHdr as VnetHeader};

/// The longest packet whose length fits its header, bytes.
const IP_MAX_BYTES: u32 = 65_535;

/// What a [`channel`] is made with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChannelConfig {
    /// Longest IP packet that is no super-packet, bytes: what the stack keeps to. Longer ones are received all the same.
    pub mtu_bytes: u32,
    /// Whether packets begin with their IP header or with an Ethernet header.
    pub mode: TunMode,
    /// What may cross undone, in both directions.
    pub offloads: Offloads,
    /// Packets that may wait for the stack; brought up to a power of two.
    pub rx_ring: usize,
    /// Packets that may wait for the caller; brought up to a power of two.
    pub tx_ring: usize,
    /// Bytes that may wait for the caller; one packet always may.
    pub tx_bytes: u64,
    /// Pages that pushed packets are copied into. What finds none is dropped (`NoMem`).
    pub pool: PoolConfig,
}

impl ChannelConfig {
    /// IP packets, no offloads, rings of 1024 packets and 4 MiB, pages of 32 KiB up to 256 MiB.
    pub fn new(mtu_bytes: u32) -> Self {
        Self {
            mtu_bytes,
            mode: TunMode::Ip,
            offloads: Offloads::NONE,
            rx_ring: 1024,
            tx_ring: 1024,
            tx_bytes: 4 << 20,
            pool: crate::tun::RX_POOL,
        }
    }
    /// Packets begin with an Ethernet header.
    #[must_use]
    pub fn ethernet(mut self) -> Self {
        self.mode = TunMode::Ethernet;
        self
    }
    /// Sets what may cross undone.
    #[must_use]
    pub fn offloads(mut self, offloads: Offloads) -> Self {
        self.offloads = offloads;
        self
    }
    /// Sets the length of both rings, in packets.
    #[must_use]
    pub fn rings(mut self, rx: usize, tx: usize) -> Self {
        (self.rx_ring, self.tx_ring) = (rx, tx);
        self
    }
    /// Sets the bytes that may wait for the caller.
    #[must_use]
    pub fn tx_bytes(mut self, bytes: u64) -> Self {
        self.tx_bytes = bytes;
        self
    }
    /// Sets the pages that pushed packets are copied into.
    #[must_use]
    pub fn pool(mut self, pool: PoolConfig) -> Self {
        self.pool = pool;
        self
    }
}

/// What the two sides of a channel share besides its rings. Each word has one writer.
pub(crate) struct Shared {
    /// The stack's; not there before it runs.
    waker: OnceLock<Arc<dyn Wake>>,
    /// The stack sleeps.
    asleep: WaitFlag,
    /// The stack waits for room towards the caller.
    room: WaitFlag,
    /// The receiver waits for packets.
    rd_wait: WaitFlag,
    /// The sender waits for room.
    wr_wait: WaitFlag,
    /// Stack: bytes handed to the caller in all.
    pushed_bytes: AtomicU64,
    /// Caller: bytes taken in all.
    pulled_bytes: AtomicU64,
}

impl Shared {
    /// Wakes the stack, whatever it does.
    fn wake_stack(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
    /// After publishing: wakes the stack if it sleeps.
    fn nudge(&self) {
        if self.asleep.notify() {
            self.wake_stack();
        }
    }
}

/// The stack's end of a [`channel`], for [`Interface::channel`](crate::Interface::channel). Dropping it closes the channel.
pub struct ChannelDevice {
    rx: ChannelRx,
    tx: ChannelTx,
    shared: Arc<Shared>,
    shape: Shape,
    mode: TunMode,
}

impl ChannelDevice {
    /// Longest IP packet that is no super-packet, bytes.
    pub fn mtu_bytes(&self) -> u32 {
        self.shape.mtu_bytes
    }
    /// What packets begin with.
    pub fn mode(&self) -> TunMode {
        self.mode
    }
    /// The queues, for a shard of one's own ([`Shard::attach`](crate::inline::Shard::attach)). `waker` is called when packets
    /// or room come after [`Shard::prepare_sleep`](crate::inline::Shard::prepare_sleep); it may be called early or twice.
    pub fn into_queues(self, waker: Arc<dyn Wake>) -> QueuePair {
        // Nobody else had the device, so nobody has set one.
        let _ = self.shared.waker.set(waker);
        (Box::new(self.rx), Box::new(self.tx))
    }
}

impl std::fmt::Debug for ChannelDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelDevice").field("mode", &self.mode).field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// A device whose packets are the caller's: the stack's end, and the caller's ends into the stack and out of it. See the
/// [module](self).
pub fn channel(config: &ChannelConfig) -> (ChannelDevice, PacketSender, PacketReceiver) {
    let shape = Shape {
        vnet_len: 0,
        link_len: config.mode.header_len(),
        offloads: config.offloads.consistent(),
        kernels: Kernels::select(detect_cpu()),
        mtu_bytes: config.mtu_bytes,
        gso_max_size_bytes: IP_MAX_BYTES.max(config.mtu_bytes),
    };
    let shared = Arc::new(Shared {
        waker: OnceLock::new(),
        asleep: WaitFlag::new(),
        room: WaitFlag::new(),
        rd_wait: WaitFlag::new(),
        wr_wait: WaitFlag::new(),
        pushed_bytes: AtomicU64::new(0),
        pulled_bytes: AtomicU64::new(0),
    });
    let (to_stack, rx_ring) = spsc::channel(config.rx_ring.max(1).next_power_of_two());
    let (tx_ring, from_stack) = spsc::channel(config.tx_ring.max(1).next_power_of_two());
    let ((rd_tx, rd_rx), (wr_tx, wr_rx)) = (waker_ring(), waker_ring());
    let device = ChannelDevice {
        rx: ChannelRx::new(rx_ring, shared.clone(), wr_rx),
        tx: ChannelTx::new(tx_ring, shared.clone(), rd_rx, shape, config.tx_bytes),
        shared: shared.clone(),
        shape,
        mode: config.mode,
    };
    let sender = PacketSender::new(to_stack, shared.clone(), wr_tx, shape, config.pool);
    (device, sender, PacketReceiver::new(from_stack, shared, rd_tx, config.tx_bytes))
}

/// Descriptors of the caller that carry one packet per read and write, for [`Interface::fd`](crate::Interface::fd): one for
/// each queue. See the [module](self).
///
/// The stack owns them: they become non-blocking (which duplicates share), and are closed with the stack. What is said about
/// them here is believed: a header that is announced and not sent shows as drops (`DevHdr`, `UnhandledProto`).
#[derive(Debug)]
pub struct PacketFd {
    fds: Vec<OwnedFd>,
    mode: TunMode,
    vnet_hdr: VnetHdr,
    offloads: Offloads,
    mtu_bytes: u32,
}

impl PacketFd {
    /// One descriptor that carries plain IP packets.
    pub fn new(fd: impl Into<OwnedFd>, mtu_bytes: u32) -> Self {
        let (mode, vnet_hdr, offloads) = (TunMode::Ip, VnetHdr::Off, Offloads::NONE);
        Self { fds: vec![fd.into()], mode, vnet_hdr, offloads, mtu_bytes }
    }
    /// One more queue of the same device.
    #[must_use]
    pub fn queue(mut self, fd: impl Into<OwnedFd>) -> Self {
        self.fds.push(fd.into());
        self
    }
    /// Packets begin with an Ethernet header.
    #[must_use]
    pub fn ethernet(mut self) -> Self {
        self.mode = TunMode::Ethernet;
        self
    }
    /// A virtio header stands before each packet, and `offloads` may cross undone.
    #[must_use]
    pub fn vnet_hdr(mut self, header: VnetHdr, offloads: Offloads) -> Self {
        (self.vnet_hdr, self.offloads) = (header, offloads);
        self
    }

    pub(crate) fn open(self, name: &str) -> Result<Tun, TunError> {
        let Self { fds, mode, vnet_hdr, offloads, mtu_bytes } = self;
        Tun::from_fds(name, mode, fds, vnet_hdr, offloads, mtu_bytes)
    }
}
