//! A TUN device as queue pairs of the stack: Linux on the other side.
//!
//! ```text
//!   read:   readv [ vnet_hdr | head | page | page | .. ]   one skb, up to 64 KiB, headers in the head, payload in pages
//!   write:  writev[ vnet_hdr | head | frag | frag | .. ]   one skb, cut and summed by the kernel
//! ```
//! With the virtio header (the default) super-packets cross uncut and checksums stay unfinished both ways, as on a veth pair:
//! the kernel's TCP hands over what it would give to a NIC with TSO, and takes what a NIC with GRO would give it. Without
//! it ([`VnetHdr::Off`]) every packet is one MTU frame with finished checksums.
//!
//! **Queues.** Each queue is a descriptor of its own. The kernel sends a flow to the queue that last wrote it, so replies
//! come to the queue that the flow's hash chose; the first frames of a flow may come to any.
//!
//! **Waiting.** A queue says through its [`Watched`] what to poll its descriptor for: to read when a read found nothing, to
//! write when the kernel had no room. Nothing is polled that nobody waits for, so an idle stack sleeps.
//!
//! **Trust.** The writer of a TUN's packets is the kernel, or whoever it forwards for: lengths, offsets and types of the
//! virtio header are checked against the packet and against what was negotiated, and a contradiction is a counted drop. A
//! packet whose checksum the local kernel left unfinished never was on a wire; it counts as verified, as in Linux.
//!
//! **Sockets.** [`Tun::from_fds`] takes any descriptor that carries one packet per read and write. A socket has no signal
//! (`MSG_NOSIGNAL`), may bring empty messages, which are packets of no bytes, and errors about earlier messages, which are
//! passed over; it has an end only where its kind has one (`SOCK_SEQPACKET`).
//!
//! **TAP** ([`TunMode::Ethernet`]) is the same with an Ethernet header in front of each packet, which the stack makes and
//! reads; offsets in the virtio header count from it.
//!
//! Super-packets above 64 KiB (BIG TCP) go to the kernel if asked for; it gives none, since a TUN's
//! own limit is 64 KiB. Not here yet: VLANs, eBPF steering, IFF_NAPI.

mod config;
mod error;
mod rx;
mod sys;
mod tx;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use linerate_arch::Kernels;
use linerate_netdev::{Features, RxQueue, TxQueue};
use rustix::fs::{FileType, OFlags};
use rustix::net::SocketType;

use crate::packet::Shape;
use crate::rtnl::{LinkChange, LinkInfo, Rtnl};
use crate::watch::Watched;

pub use config::{Offloads, PLAIN_QUEUE_LEN, TunConfig, TunMode, VnetHdr};
pub use error::TunError;

/// The longest packet whose length fits its header, bytes.
const IP_MAX_BYTES: u32 = 65_535;
/// The longest super-packet that Linux makes or takes (`GSO_MAX_SIZE`), bytes.
const GSO_MAX_BYTES: u32 = 8 * 65_535;

/// One queue pair of a TUN, and the descriptor to sleep on.
pub struct TunQueue {
    /// From the kernel.
    pub rx: Box<dyn RxQueue + Send>,
    /// To the kernel.
    pub tx: Box<dyn TxQueue + Send>,
    /// Goes into the [`WatchList`](crate::WatchList) of the thread that turns the shard.
    pub watched: Arc<Watched>,
}

/// A TUN device that is open. It lives as long as its queues, unless somebody made it persistent.
#[derive(Debug)]
pub struct Tun {
    name: String,
    ifindex: Option<u32>,
    mode: TunMode,
    vnet_hdr: VnetHdr,
    shape: Shape,
    /// The descriptors are sockets.
    sockets: bool,
    queues: Vec<Option<Arc<Watched>>>,
}

impl Tun {
    /// Opens a device as `cfg` says, and configures the kernel's end of it. What the kernel does not offer is left out:
    /// [`Self::vnet_hdr`] and [`Self::offloads`] say what is in force.
    ///
    /// # Errors
    /// See [`TunError`]. Nothing stays behind.
    pub fn open(cfg: &TunConfig) -> Result<Self, TunError> {
        let queues = cfg.queues.max(1);
        let first = sys::open_queue(&cfg.name, cfg.mode, cfg.vnet_hdr != VnetHdr::Off, queues > 1)?;
        let (name, mut fds) = (first.name, vec![first.fd]);
        let mut vnet_hdr = if first.vnet_hdr { cfg.vnet_hdr } else { VnetHdr::Off };
        while fds.len() < usize::from(queues) {
            fds.push(sys::open_queue(&name, cfg.mode, first.vnet_hdr, true)?.fd);
        }
        let mut want = Offloads::NONE;
        if vnet_hdr != VnetHdr::Off {
            want = cfg.offloads.consistent();
            for fd in &fds {
                vnet_hdr = sys::set_vnet_header(fd, vnet_hdr)?;
            }
        }
        // They belong to the device, not to the queue, and a persistent device keeps those of its last user.
        let offloads = sys::set_offloads(&fds[0], want);
        let link = configure(&name, cfg)?;
        let mut this = Self::over(name, cfg.mode, fds, vnet_hdr, offloads, link.mtu_bytes, false);
        this.ifindex = Some(link.ifindex);
        this.shape.gso_max_size_bytes = cfg.gso_max_size_bytes.clamp(IP_MAX_BYTES, GSO_MAX_BYTES);
        Ok(this)
    }

    /// A device that somebody else opened and configured (a privileged helper, another namespace, a VPN service), or
    /// sockets that carry one packet per message (`SOCK_SEQPACKET`, `SOCK_DGRAM`, connected): one descriptor per queue, all
    /// of one kind. `vnet_hdr` and `offloads` must be what was negotiated with TUNSETVNETHDRSZ and TUNSETOFFLOAD, or what the
    /// other end of the socket speaks; `mtu_bytes` is the device's.
    ///
    /// The descriptors are owned from now on, and closed with the queues. They become non-blocking, which is a property
    /// that duplicates of them share.
    ///
    /// # Errors
    /// [`TunError::NotPackets`] for anything else (a stream, a pipe, a file); [`TunError::BadName`] without a descriptor;
    /// [`TunError::Os`] when one can not be made non-blocking.
    pub fn from_fds(
        name: &str,
        mode: TunMode,
        fds: Vec<OwnedFd>,
        vnet_hdr: VnetHdr,
        offloads: Offloads,
        mtu_bytes: u32,
    ) -> Result<Self, TunError> {
        let mut sockets = None;
        for fd in &fds {
            let os = |e| TunError::os("making the descriptor non-blocking", e);
            let socket = is_socket(fd).ok_or_else(|| TunError::NotPackets(name.to_owned()))?;
            if *sockets.get_or_insert(socket) != socket {
                return Err(TunError::NotPackets(name.to_owned()));
            }
            let flags = rustix::fs::fcntl_getfl(fd).map_err(os)?;
            rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(os)?;
        }
        let Some(sockets) = sockets else {
            return Err(TunError::BadName(format!("{name}, without a descriptor,")));
        };
        let offloads = if vnet_hdr == VnetHdr::Off { Offloads::NONE } else { offloads.consistent() };
        Ok(Self::over(name.to_owned(), mode, fds, vnet_hdr, offloads, mtu_bytes, sockets))
    }

    fn over(
        name: String,
        mode: TunMode,
        fds: Vec<OwnedFd>,
        vnet_hdr: VnetHdr,
        offloads: Offloads,
        mtu_bytes: u32,
        sockets: bool,
    ) -> Self {
        let kernels = Kernels::select(crate::detect_cpu());
        let (vnet_len, link_len) = (vnet_hdr.len_bytes(), mode.header_len());
        let shape = Shape { vnet_len, link_len, offloads, kernels, mtu_bytes, gso_max_size_bytes: IP_MAX_BYTES };
        let queues = fds.into_iter().map(|fd| Some(Watched::new(fd))).collect();
        Self { name, ifindex: None, mode, vnet_hdr, shape, sockets, queues }
    }

    /// The name that it has, also when the kernel chose it.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Its number in the kernel; `None` for a device of [`Self::from_fds`].
    pub fn ifindex(&self) -> Option<u32> {
        self.ifindex
    }
    /// Largest IP packet that is no super-packet, bytes.
    pub fn mtu_bytes(&self) -> u32 {
        self.shape.mtu_bytes
    }
    /// TUN or TAP.
    pub fn mode(&self) -> TunMode {
        self.mode
    }
    /// The header in force.
    pub fn vnet_hdr(&self) -> VnetHdr {
        self.vnet_hdr
    }
    /// The offloads in force.
    pub fn offloads(&self) -> Offloads {
        self.shape.offloads
    }
    /// What its queues promise.
    pub fn features(&self) -> Features {
        self.shape.features()
    }
    /// Queues, taken or not.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Takes a queue pair; `None` when there is none of this number, or it was taken.
    pub fn take_queue(&mut self, queue: usize) -> Option<TunQueue> {
        let watched = self.queues.get_mut(queue)?.take()?;
        Some(TunQueue {
            rx: Box::new(rx::TunRx::new(watched.clone(), self.shape, self.sockets)),
            tx: Box::new(tx::TunTx::new(watched.clone(), self.shape, self.sockets)),
            watched,
        })
    }
}

/// Whether a descriptor that reads and writes whole packets is a socket; `None` when it does not do that.
fn is_socket(fd: &OwnedFd) -> Option<bool> {
    match rustix::net::sockopt::socket_type(fd) {
        Ok(kind) => (kind != SocketType::STREAM).then_some(true),
        // The clone device of TUN and TAP is one of characters.
        Err(_) => {
            let mode = rustix::fs::fstat(fd).ok()?.st_mode;
            (FileType::from_raw_mode(mode) == FileType::CharacterDevice).then_some(false)
        }
    }
}

/// The kernel's end: MTU, queue length, addresses, up.
fn configure(name: &str, cfg: &TunConfig) -> Result<LinkInfo, TunError> {
    let os = |what| move |e| TunError::from_io(what, &e);
    let mut rtnl = Rtnl::open().map_err(os("opening a netlink socket"))?;
    let link = rtnl.link(name).map_err(os("looking at the new device"))?;
    let mut change = LinkChange { mtu_bytes: cfg.mtu_bytes, tx_queue_len: cfg.tx_queue_len, up: None };
    if change != LinkChange::default() {
        rtnl.set_link(link.ifindex, change).map_err(|e| match cfg.mtu_bytes {
            Some(mtu) => TunError::Mtu { mtu_bytes: mtu, errno: error::errno_of(&e) },
            None => TunError::from_io("setting the length of the device's queue", &e),
        })?;
    }
    let address = |cidr| move |e: std::io::Error| TunError::Address { cidr, errno: error::errno_of(&e) };
    for &cidr in &cfg.host_addresses {
        rtnl.add_address(link.ifindex, cidr).map_err(address(cidr))?;
    }
    if cfg.up {
        change = LinkChange { up: Some(true), ..LinkChange::default() };
        rtnl.set_link(link.ifindex, change).map_err(os("bringing the device up"))?;
    }
    for &cidr in &cfg.host_routes {
        rtnl.add_route(link.ifindex, cidr).map_err(address(cidr))?;
    }
    rtnl.link(name).map_err(os("looking at the new device"))
}

#[cfg(test)]
mod tests;
