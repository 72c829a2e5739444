//! What names a flow: the key, and helpers for addresses and prefixes.
//!
//! [`FlowKey`] is one 40-byte form for both families, IPv4 as v4-mapped IPv6, so that one table holds both and a dual-stack
//! listener needs no second look-up. That is safe because [`crate::ip`] refuses mapped addresses inside IPv6 headers. The key
//! is five words: comparing and hashing touch nothing else. Keys are seen from this host: *local* is what the socket
//! is bound to. Scopes of link-local addresses are not part of a key. Hashing is keyed and lives in `base`.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use crate::ip::IpRepr;

/// `addr` as IPv6, IPv4 as v4-mapped.
#[inline]
pub fn to_mapped(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(a) => a.to_ipv6_mapped(),
        IpAddr::V6(a) => a,
    }
}

/// `addr` as IPv4 where it is v4-mapped, else as it is.
#[inline]
pub fn from_mapped(addr: Ipv6Addr) -> IpAddr {
    match addr.to_ipv4_mapped() {
        Some(a) => IpAddr::V4(a),
        None => IpAddr::V6(addr),
    }
}

/// True when a packet may come from `addr`: not multicast, not the limited broadcast, not unspecified, not v4-mapped.
/// Directed broadcasts are known to the interface alone.
pub fn is_unicast_source(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(a) => !(a.is_multicast() || a.is_broadcast() || a.octets()[0] == 0),
        IpAddr::V6(a) => !(a.is_multicast() || a.is_unspecified() || a.to_ipv4_mapped().is_some()),
    }
}

/// The five-tuple of a flow, seen from this host.
#[derive(Clone, Copy, Eq)]
#[repr(transparent)]
pub struct FlowKey([u64; 5]);

/// Compared word by word without a branch: a lookup must not call the library's memory comparison for 40 bytes.
impl PartialEq for FlowKey {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let ([a, b, c, d, e], [v, w, x, y, z]) = (self.0, other.0);
        (a ^ v) | (b ^ w) | (c ^ x) | (d ^ y) | (e ^ z) == 0
    }
}

impl core::hash::Hash for FlowKey {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

const _: () = assert!(size_of::<FlowKey>() == 40);

/// The upper half of the lower word of a v4-mapped address.
const MAPPED: u64 = 0xffff;

/// The 128 bits of an address, IPv4 as v4-mapped.
#[inline]
fn words(addr: IpAddr) -> [u64; 2] {
    match addr {
        IpAddr::V4(a) => [0, MAPPED << 32 | u64::from(a.to_bits())],
        IpAddr::V6(a) => {
            let bits = a.to_bits();
            [(bits >> 64) as u64, bits as u64]
        }
    }
}

/// The inverse of [`words`].
#[inline]
fn addr_of(high: u64, low: u64) -> IpAddr {
    if high == 0 && low >> 32 == MAPPED {
        IpAddr::V4(Ipv4Addr::from_bits(low as u32))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)))
    }
}

impl FlowKey {
    /// The key of `local` talking to `remote`; either may be unspecified with port 0, for a listener.
    pub fn new(local: SocketAddr, remote: SocketAddr, proto: u8) -> Self {
        Self::from_parts(local.ip(), remote.ip(), local.port(), remote.port(), proto)
    }
    /// The key of the flow that a received packet belongs to: its destination is local.
    #[inline]
    pub fn of_rx(ip: &IpRepr, src_port: u16, dst_port: u16) -> Self {
        Self::from_parts(ip.dst, ip.src, dst_port, src_port, ip.proto)
    }
    /// The key of two addresses and two ports.
    #[inline]
    pub fn from_parts(local: IpAddr, remote: IpAddr, local_port: u16, remote_port: u16, proto: u8) -> Self {
        let ([l0, l1], [r0, r1]) = (words(local), words(remote));
        let ports = u64::from(local_port) << 48 | u64::from(remote_port) << 32 | u64::from(proto);
        Self([l0, l1, r0, r1, ports])
    }
    /// The key of two IPv4 addresses and two ports.
    #[inline]
    pub const fn from_v4(local: u32, remote: u32, local_port: u16, remote_port: u16, proto: u8) -> Self {
        let ports = (local_port as u64) << 48 | (remote_port as u64) << 32 | proto as u64;
        Self([0, MAPPED << 32 | local as u64, 0, MAPPED << 32 | remote as u64, ports])
    }
    /// The flow of a TCP packet whose headers lie where they usually do (no IPv4 options, no IPv6 extension headers), seen
    /// from its destination. Nothing is checked: a hint about a packet that is parsed later, good for prefetches only.
    #[inline]
    pub fn peek_tcp(head: &[u8]) -> Option<Self> {
        const TCP: u8 = 6;
        if let Some(h) = head.first_chunk::<24>()
            && h[0] == 0x45
        {
            let addr = |at: usize| IpAddr::V4(Ipv4Addr::new(h[at], h[at + 1], h[at + 2], h[at + 3]));
            let port = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
            return (h[9] == TCP).then(|| Self::from_parts(addr(16), addr(12), port(22), port(20), TCP));
        }
        let h = head.first_chunk::<44>().filter(|h| h[0] >> 4 == 6 && h[6] == TCP)?;
        let addr = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&h[at..at + 16]);
            IpAddr::V6(Ipv6Addr::from(octets))
        };
        let port = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
        Some(Self::from_parts(addr(24), addr(8), port(42), port(40), TCP))
    }
    /// The five words: local address (2), remote address (2), ports and protocol. The same on every machine.
    #[inline]
    pub const fn as_words(&self) -> [u64; 5] {
        self.0
    }
    /// The two words that say the same when both ends are IPv4: the addresses, then ports and protocol. For hashing: half
    /// as many words as the general form.
    #[inline]
    pub const fn as_v4_words(&self) -> Option<[u64; 2]> {
        let [l0, l1, r0, r1, ports] = self.0;
        let both = l0 | r0 == 0 && l1 >> 32 == MAPPED && r1 >> 32 == MAPPED;
        if both { Some([l1 << 32 | (r1 & 0xffff_ffff), ports]) } else { None }
    }
    /// Local address, IPv4 where it is mapped.
    pub fn local_addr(&self) -> IpAddr {
        addr_of(self.0[0], self.0[1])
    }
    /// Remote address, IPv4 where it is mapped.
    pub fn remote_addr(&self) -> IpAddr {
        addr_of(self.0[2], self.0[3])
    }
    /// Local port.
    pub const fn local_port(&self) -> u16 {
        (self.0[4] >> 48) as u16
    }
    /// Remote port.
    pub const fn remote_port(&self) -> u16 {
        (self.0[4] >> 32) as u16
    }
    /// Protocol.
    pub const fn proto(&self) -> u8 {
        self.0[4] as u8
    }
    /// Local address and port.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local_addr(), self.local_port())
    }
    /// Remote address and port.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote_addr(), self.remote_port())
    }
    /// The same flow seen from the other end.
    pub const fn reversed(&self) -> Self {
        let [l0, l1, r0, r1, p] = self.0;
        Self([r0, r1, l0, l1, (p & 0xffff_ffff) | (p >> 48) << 32 | ((p >> 32) & 0xffff) << 48])
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} proto {}", self.local(), self.remote(), self.proto())
    }
}
impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address with the length of its network's prefix, as `10.0.0.1/24`; the host bits are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cidr {
    addr: IpAddr,
    prefix_len: u8,
}

impl Cidr {
    /// `None` when the prefix is longer than the address (32 or 128 bits).
    pub const fn new(addr: IpAddr, prefix_len: u8) -> Option<Self> {
        let max = if addr.is_ipv4() { 32 } else { 128 };
        if prefix_len > max { None } else { Some(Self { addr, prefix_len }) }
    }
    /// The prefix that holds `addr` alone.
    pub const fn host(addr: IpAddr) -> Self {
        Self { addr, prefix_len: if addr.is_ipv4() { 32 } else { 128 } }
    }
    /// The address, host bits included.
    pub const fn addr(&self) -> IpAddr {
        self.addr
    }
    /// Bits of the prefix.
    pub const fn prefix_len(&self) -> u8 {
        self.prefix_len
    }
    /// The network: the address with host bits cleared.
    pub fn network(&self) -> IpAddr {
        match self.addr {
            IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() & mask4(self.prefix_len)).into(),
            IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & mask6(self.prefix_len)).into(),
        }
    }
    /// The directed broadcast address of an IPv4 network that has one (prefix 30 or shorter).
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.addr {
            IpAddr::V4(a) if self.prefix_len < 31 => Some(Ipv4Addr::from_bits(a.to_bits() | !mask4(self.prefix_len))),
            _ => None,
        }
    }
    /// True when `addr` is of the same family and in the network.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.addr, addr) {
            (IpAddr::V4(n), IpAddr::V4(a)) => (n.to_bits() ^ a.to_bits()) & mask4(self.prefix_len) == 0,
            (IpAddr::V6(n), IpAddr::V6(a)) => (n.to_bits() ^ a.to_bits()) & mask6(self.prefix_len) == 0,
            _ => false,
        }
    }
}

fn mask4(prefix_len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0)
}
fn mask6(prefix_len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix_len)).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix_len)
    }
}

/// The text is not `ADDRESS/PREFIX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CidrParseError;

impl fmt::Display for CidrParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected ADDRESS/PREFIX, for example 10.0.0.1/24 or fd00::1/64")
    }
}
impl core::error::Error for CidrParseError {}

/// `ADDRESS/PREFIX`, or an address alone for its host prefix.
impl FromStr for Cidr {
    type Err = CidrParseError;
    fn from_str(s: &str) -> Result<Self, CidrParseError> {
        let (addr, prefix) = s.split_once('/').map_or((s, None), |(a, p)| (a, Some(p)));
        let addr: IpAddr = addr.parse().map_err(|_| CidrParseError)?;
        match prefix {
            None => Ok(Self::host(addr)),
            Some(p) if p.bytes().all(|b| b.is_ascii_digit()) => {
                Self::new(addr, p.parse().map_err(|_| CidrParseError)?).ok_or(CidrParseError)
            }
            Some(_) => Err(CidrParseError),
        }
    }
}
