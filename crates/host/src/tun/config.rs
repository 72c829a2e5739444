//! What a TUN is opened with.
//!
//! The defaults are the fast ones: a virtio header, every offload, one queue, a name of the kernel's choice, up. Whatever the
//! kernel lacks is left out when the device is opened, in the order in which Linux learned it (USO in 6.2, ECN and TSO
//! before), so the same configuration works on old kernels. Switching things off is for comparison and for doubt: each
//! offload has its own switch, under the rules of Linux ([`Offloads::consistent`]).

use linerate_wire::Cidr;

/// Frames that may wait on a device without super-packets ([`TunConfig::plain`]): 12 MB of 1500 bytes. A new device's 500 are
/// 32 MB in super-packets, but of single frames less than one window of a fast flow: the kernel's sender is then held to
/// what fits, and sends in the time of whoever acknowledges, which is ours.
pub const PLAIN_QUEUE_LEN: u32 = 8192;

/// What a packet begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum TunMode {
    /// Its IP header: a TUN, a link between two ends.
    #[default]
    Ip,
    /// An Ethernet header: a TAP, with hardware addresses, ARP and neighbour discovery; it may be put into a bridge.
    Ethernet,
}

impl TunMode {
    /// Bytes of the link header.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Ip => 0,
            Self::Ethernet => linerate_wire::ethernet::HEADER_LEN,
        }
    }
}

/// What stands before each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum VnetHdr {
    /// Nothing: plain packets, no offload.
    Off,
    /// The 10-byte header of virtio 0.9.
    Legacy,
    /// The 12-byte header of virtio 1, which has a count of buffers too.
    #[default]
    V1,
}

impl VnetHdr {
    /// Bytes before each packet.
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Legacy => 10,
            Self::V1 => 12,
        }
    }
}

/// Work that crosses the device undone, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offloads {
    /// Unfinished transport checksums.
    pub csum: bool,
    /// TCP super-packets over IPv4.
    pub tso4: bool,
    /// TCP super-packets over IPv6.
    pub tso6: bool,
    /// TCP super-packets whose first segment carries CWR.
    pub tso_ecn: bool,
    /// UDP super-packets over both (Linux takes both or none).
    pub uso: bool,
}

impl Offloads {
    /// Everything that TUN knows.
    pub const ALL: Self = Self { csum: true, tso4: true, tso6: true, tso_ecn: true, uso: true };
    /// Nothing.
    pub const NONE: Self = Self { csum: false, tso4: false, tso6: false, tso_ecn: false, uso: false };
    /// Checksums only: every packet is one frame.
    pub const CSUM: Self = Self { csum: true, ..Self::NONE };

    /// Without what rests on something that is off: nothing is cut without checksums, and ECN needs TSO.
    #[must_use]
    pub const fn consistent(self) -> Self {
        let Self { csum, tso4, tso6, tso_ecn, uso } = self;
        let (tso4, tso6, uso) = (csum && tso4, csum && tso6, csum && uso);
        Self { csum, tso4, tso6, tso_ecn: tso_ecn && (tso4 || tso6), uso }
    }
}

impl Default for Offloads {
    fn default() -> Self {
        Self::ALL
    }
}

/// How [`Tun::open`](super::Tun::open) opens a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TunConfig {
    /// Name, at most 15 bytes; `%d` in it is replaced by the first free number.
    pub name: String,
    /// TUN or TAP.
    pub mode: TunMode,
    /// Queues, at least 1.
    pub queues: u16,
    /// Header before each packet.
    pub vnet_hdr: VnetHdr,
    /// Offloads to ask for; without a header there are none.
    pub offloads: Offloads,
    /// Longest super-packet sent to the kernel, 65535 to 524280 bytes. Above 65535 is BIG TCP: Linux 5.19 and later take it
    /// over IPv6, 6.3 and later over IPv4; older ones drop what they are sent, and so does Linux 7.0 over IPv6.
    pub gso_max_size_bytes: u32,
    /// MTU of the device, 68 to 65535 bytes; `None` leaves it (1500 for a new one).
    pub mtu_bytes: Option<u32>,
    /// Packets that may wait for us in the kernel, per queue; `None` leaves it (500 for a new device). [`Self::plain`] asks
    /// for [`PLAIN_QUEUE_LEN`].
    pub tx_queue_len: Option<u32>,
    /// Addresses of the kernel's end, each with the route to its network.
    pub host_addresses: Vec<Cidr>,
    /// Further networks that the kernel is to send here.
    pub host_routes: Vec<Cidr>,
    /// Bring it up.
    pub up: bool,
}

impl TunConfig {
    /// The defaults under this name. A name with `%d` is always a new device; another one may exist and be persistent.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            mode: TunMode::default(),
            queues: 1,
            vnet_hdr: VnetHdr::default(),
            offloads: Offloads::default(),
            gso_max_size_bytes: super::IP_MAX_BYTES,
            mtu_bytes: None,
            tx_queue_len: None,
            host_addresses: Vec::new(),
            host_routes: Vec::new(),
            up: true,
        }
    }
    /// A TAP: frames with an Ethernet header.
    #[must_use]
    pub fn ethernet(mut self) -> Self {
        self.mode = TunMode::Ethernet;
        self
    }
    /// Sets the number of queues.
    #[must_use]
    pub fn queues(mut self, n: u16) -> Self {
        self.queues = n;
        self
    }
    /// Sets the header.
    #[must_use]
    pub fn vnet_hdr(mut self, header: VnetHdr) -> Self {
        self.vnet_hdr = header;
        self
    }
    /// Plain packets: no header, no offload, and [`PLAIN_QUEUE_LEN`] of them in the queue unless its length was set before.
    #[must_use]
    pub fn plain(mut self) -> Self {
        self.tx_queue_len = self.tx_queue_len.or(Some(PLAIN_QUEUE_LEN));
        self.vnet_hdr(VnetHdr::Off)
    }
    /// Sets the offloads to ask for.
    #[must_use]
    pub fn offloads(mut self, offloads: Offloads) -> Self {
        self.offloads = offloads;
        self
    }
    /// Sets the longest super-packet sent to the kernel (BIG TCP when above 65535).
    #[must_use]
    pub fn gso_max_size(mut self, bytes: u32) -> Self {
        self.gso_max_size_bytes = bytes;
        self
    }
    /// Sets the MTU.
    #[must_use]
    pub fn mtu(mut self, mtu_bytes: u32) -> Self {
        self.mtu_bytes = Some(mtu_bytes);
        self
    }
    /// Sets how many packets may wait for us in the kernel.
    #[must_use]
    pub fn tx_queue_len(mut self, pkts: u32) -> Self {
        self.tx_queue_len = Some(pkts);
        self
    }
    /// Gives the kernel's end an address.
    #[must_use]
    pub fn host_address(mut self, cidr: Cidr) -> Self {
        self.host_addresses.push(cidr);
        self
    }
    /// Sends a further network here.
    #[must_use]
    pub fn host_route(mut self, network: Cidr) -> Self {
        self.host_routes.push(network);
        self
    }
    /// Leaves the device as it is, up or down.
    #[must_use]
    pub fn leave_down(mut self) -> Self {
        self.up = false;
        self
    }
}

impl Default for TunConfig {
    /// A new device `lin0`, `lin1`, ...
    fn default() -> Self {
        Self::new("lin%d")
    }
}
