//! Neighbour and router discovery for IPv6 (RFC 4861, with the nonce of RFC 3971 as RFC 7527 uses it, router preferences of
//! RFC 4191 and DNS servers of RFC 8106).
//!
//! A message is an ICMPv6 message of type 133 to 136 whose checksum, hop limit and code the caller has looked at; what
//! depends on the message alone is judged here: its length, a target that is no group, and options whose lengths add up
//! to the end ([`NdOptions::new_checked`]; one bad length makes the whole message invalid, RFC 4861 section 4.6). Unknown
//! options are stepped over. Link-layer addresses are Ethernet's: an option of another length than 8 bytes is ignored.
//!
//! An advertisement keeps its options as the bytes they are; they are read again when it is used, one after the other, and
//! a message can not hold more of them than an eighth of its bytes. Redirects are not decoded.

use core::net::Ipv6Addr;

use crate::bytes::{array, be16, be32, byte, put};
use crate::checksum;
use crate::ethernet::MacAddr;
use crate::icmpv6::ty;
use crate::ip::proto;

/// Option numbers.
pub mod opt {
    /// Source link-layer address.
    pub const SOURCE_LLA: u8 = 1;
    /// Target link-layer address.
    pub const TARGET_LLA: u8 = 2;
    /// Prefix information.
    pub const PREFIX: u8 = 3;
    /// MTU.
    pub const MTU: u8 = 5;
    /// Nonce.
    pub const NONCE: u8 = 14;
    /// Recursive DNS servers.
    pub const RDNSS: u8 = 25;
}

/// A lifetime that never ends, seconds.
pub const INFINITE: u32 = u32::MAX;
/// Bytes of a nonce option with the shortest nonce.
const NONCE_LEN: usize = 6;
/// Bytes of a prefix information option.
const PREFIX_LEN: usize = 32;

/// A message that must be discarded in silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NdParseError {
    /// Shorter than its type demands, or a target that is a group.
    Message,
    /// An option of length zero, or one that reaches beyond the end.
    Options,
    /// Not a message of discovery that a host reads.
    Type,
}

/// Prefix information (RFC 4861 section 4.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixInfo {
    /// Length in bits; as it came, a host must check that it is at most 128.
    pub prefix_len: u8,
    /// Addresses of the prefix are on the link.
    pub on_link: bool,
    /// Addresses may be made of it.
    pub autonomous: bool,
    /// Valid lifetime in seconds, [`INFINITE`] for ever.
    pub valid_s: u32,
    /// Preferred lifetime in seconds.
    pub preferred_s: u32,
    /// The prefix; bits behind its length have no meaning.
    pub prefix: Ipv6Addr,
}

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NdOption<'a> {
    /// The sender's hardware address.
    SourceLla(MacAddr),
    /// The target's hardware address.
    TargetLla(MacAddr),
    /// A prefix of the link.
    Prefix(PrefixInfo),
    /// The link's MTU in bytes.
    Mtu(u32),
    /// A number by which a sender knows its own solicitation again.
    Nonce([u8; NONCE_LEN]),
    /// DNS servers.
    Rdnss {
        /// How long they may be used, seconds.
        lifetime_s: u32,
        /// Addresses, 16 bytes each.
        servers: &'a [u8],
    },
    /// Any other, or one of a length that its kind does not have.
    Other {
        /// Number.
        ty: u8,
        /// What follows the two bytes of number and length.
        body: &'a [u8],
    },
}

impl<'a> NdOption<'a> {
    /// From one whole option, its number and length included.
    fn read(b: &'a [u8]) -> Self {
        let ty = byte(b, 0);
        let body = b.get(2..).unwrap_or(&[]);
        match (ty, b.len()) {
            (opt::SOURCE_LLA, 8) => Self::SourceLla(MacAddr(array(b, 2))),
            (opt::TARGET_LLA, 8) => Self::TargetLla(MacAddr(array(b, 2))),
            (opt::MTU, 8) => Self::Mtu(be32(b, 4)),
            (opt::NONCE, 8) => Self::Nonce(array(b, 2)),
            (opt::PREFIX, PREFIX_LEN) => Self::Prefix(PrefixInfo {
                prefix_len: byte(b, 2),
                on_link: byte(b, 3) & 0x80 != 0,
                autonomous: byte(b, 3) & 0x40 != 0,
                valid_s: be32(b, 4),
                preferred_s: be32(b, 8),
                prefix: array::<16>(b, 16).into(),
            }),
            (opt::RDNSS, n) if n >= 24 && n % 16 == 8 => {
                Self::Rdnss { lifetime_s: be32(b, 4), servers: b.get(8..).unwrap_or(&[]) }
            }
            _ => Self::Other { ty, body },
        }
    }

    /// Length in bytes, a multiple of 8.
    pub const fn emit_len(&self) -> usize {
        match self {
            Self::SourceLla(_) | Self::TargetLla(_) | Self::Mtu(_) | Self::Nonce(_) => 8,
            Self::Prefix(_) => PREFIX_LEN,
            Self::Rdnss { servers, .. } => (8 + servers.len()).next_multiple_of(8),
            Self::Other { body, .. } => (2 + body.len()).next_multiple_of(8),
        }
    }

    /// Writes the option into the first [`Self::emit_len`] bytes of `buf`, which are zeros.
    pub fn emit(&self, buf: &mut [u8]) {
        let head = |ty: u8| [ty, (self.emit_len() / 8) as u8];
        match *self {
            Self::SourceLla(a) | Self::TargetLla(a) => {
                let ty = if matches!(self, Self::SourceLla(_)) { opt::SOURCE_LLA } else { opt::TARGET_LLA };
                put(buf, 0, &head(ty));
                put(buf, 2, &a.0);
            }
            Self::Prefix(p) => {
                put(buf, 0, &head(opt::PREFIX));
                put(buf, 2, &[p.prefix_len, u8::from(p.on_link) << 7 | u8::from(p.autonomous) << 6]);
                put(buf, 4, &p.valid_s.to_be_bytes());
                put(buf, 8, &p.preferred_s.to_be_bytes());
                put(buf, 16, &p.prefix.octets());
            }
            Self::Mtu(mtu) => {
                put(buf, 0, &head(opt::MTU));
                put(buf, 4, &mtu.to_be_bytes());
            }
            Self::Nonce(n) => {
                put(buf, 0, &head(opt::NONCE));
                put(buf, 2, &n);
            }
            Self::Rdnss { lifetime_s, servers } => {
                put(buf, 0, &head(opt::RDNSS));
                put(buf, 4, &lifetime_s.to_be_bytes());
                put(buf, 8, servers);
            }
            Self::Other { ty, body } => {
                put(buf, 0, &head(ty));
                put(buf, 2, body);
            }
        }
    }
}

/// Options whose lengths were checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdOptions<'a>(&'a [u8]);

impl<'a> NdOptions<'a> {
    /// No options.
    pub const EMPTY: Self = Self(&[]);

    /// Checks that the lengths lead exactly to the end.
    ///
    /// # Errors
    /// [`NdParseError::Options`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, NdParseError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = match usize::from(byte(rest, 1)) * 8 {
                0 => return Err(NdParseError::Options),
                n => rest.get(n..).ok_or(NdParseError::Options)?,
            };
        }
        Ok(Self(bytes))
    }
    /// The bytes.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = NdOption<'a>> + use<'a> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let len = usize::from(byte(rest, 1)) * 8;
            let (one, more) = if len == 0 { return None } else { rest.split_at_checked(len)? };
            rest = more;
            Some(NdOption::read(one))
        })
    }
    fn source_lla(&self) -> Option<MacAddr> {
        self.iter().find_map(|o| if let NdOption::SourceLla(a) = o { Some(a) } else { None })
    }
    fn target_lla(&self) -> Option<MacAddr> {
        self.iter().find_map(|o| if let NdOption::TargetLla(a) = o { Some(a) } else { None })
    }
    fn nonce(&self) -> Option<[u8; NONCE_LEN]> {
        self.iter().find_map(|o| if let NdOption::Nonce(n) = o { Some(n) } else { None })
    }
}

/// Preference of a router (RFC 4191 section 2.1); the reserved value reads as medium.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RouterPref {
    /// Below others.
    Low,
    /// As routers without an opinion.
    Medium,
    /// Above others.
    High,
}

/// What a router says of itself and the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouterAdvert<'a> {
    /// Hop limit for hosts; 0 = no word on it.
    pub hop_limit: u8,
    /// Addresses are to be had by DHCPv6.
    pub managed: bool,
    /// Other configuration is to be had by DHCPv6.
    pub other: bool,
    /// Preference among routers.
    pub pref: RouterPref,
    /// How long it is a default router, seconds; 0 = it is none.
    pub lifetime_s: u16,
    /// Base reachable time in milliseconds; 0 = no word on it.
    pub reachable_ms: u32,
    /// Time between solicitations in milliseconds; 0 = no word on it.
    pub retrans_ms: u32,
    /// Prefixes, MTU, DNS servers.
    pub options: NdOptions<'a>,
}

/// A valid message of discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NdiscRepr<'a> {
    /// A host asks for routers.
    RouterSolicit {
        /// Its hardware address.
        lla: Option<MacAddr>,
    },
    /// A router answers, or speaks unasked.
    RouterAdvert(RouterAdvert<'a>),
    /// Who has the target address?
    NeighborSolicit {
        /// The address, no group.
        target: Ipv6Addr,
        /// The asker's hardware address; none in duplicate address detection.
        lla: Option<MacAddr>,
        /// To know an own solicitation again.
        nonce: Option<[u8; NONCE_LEN]>,
    },
    /// The sender has the target address.
    NeighborAdvert {
        /// It is a router.
        router: bool,
        /// It was asked, by the receiver alone.
        solicited: bool,
        /// The hardware address replaces a known one.
        replace: bool,
        /// The address, no group.
        target: Ipv6Addr,
        /// Its hardware address.
        lla: Option<MacAddr>,
    },
}

impl<'a> NdiscRepr<'a> {
    /// Reads a whole ICMPv6 message whose checksum was verified.
    ///
    /// # Errors
    /// See [`NdParseError`].
    pub fn parse(b: &'a [u8]) -> Result<Self, NdParseError> {
        let fixed = match byte(b, 0) {
            ty::ROUTER_SOLICIT => 8,
            ty::ROUTER_ADVERT => 16,
            ty::NEIGHBOR_SOLICIT | ty::NEIGHBOR_ADVERT => 24,
            _ => return Err(NdParseError::Type),
        };
        if b.len() < fixed || byte(b, 1) != 0 {
            return Err(NdParseError::Message);
        }
        let options = NdOptions::new_checked(b.get(fixed..).unwrap_or(&[]))?;
        let target = Ipv6Addr::from(array::<16>(b, 8));
        if fixed == 24 && target.is_multicast() {
            return Err(NdParseError::Message);
        }
        let flags = byte(b, 4);
        Ok(match byte(b, 0) {
            ty::ROUTER_SOLICIT => Self::RouterSolicit { lla: options.source_lla() },
            ty::ROUTER_ADVERT => Self::RouterAdvert(RouterAdvert::read(b, options)),
            ty::NEIGHBOR_SOLICIT => Self::NeighborSolicit { target, lla: options.source_lla(), nonce: options.nonce() },
            _ => Self::NeighborAdvert {
                router: flags & 0x80 != 0,
                solicited: flags & 0x40 != 0,
                replace: flags & 0x20 != 0,
                target,
                lla: options.target_lla(),
            },
        })
    }

    /// Length of the message in bytes.
    pub fn emit_len(&self) -> usize {
        let lla = |a: &Option<MacAddr>| if a.is_some() { 8 } else { 0 };
        match self {
            Self::RouterSolicit { lla: a } => 8 + lla(a),
            Self::RouterAdvert(ra) => 16 + ra.options.0.len(),
            Self::NeighborSolicit { lla: a, nonce, .. } => 24 + lla(a) + if nonce.is_some() { 8 } else { 0 },
            Self::NeighborAdvert { lla: a, .. } => 24 + lla(a),
        }
    }

    /// Writes the message, with its checksum, into the first [`Self::emit_len`] bytes of `buf`.
    pub fn emit(&self, src: &Ipv6Addr, dst: &Ipv6Addr, buf: &mut [u8]) {
        let len = self.emit_len();
        let Some(b) = buf.get_mut(..len) else {
            debug_assert!(false, "emit buffer is shorter than the message");
            return;
        };
        b.fill(0);
        match self {
            Self::RouterSolicit { lla } => {
                put(b, 0, &[ty::ROUTER_SOLICIT]);
                emit_options(b, 8, [lla.map(NdOption::SourceLla), None]);
            }
            Self::RouterAdvert(ra) => ra.write(b),
            Self::NeighborSolicit { target, lla, nonce } => {
                put(b, 0, &[ty::NEIGHBOR_SOLICIT]);
                put(b, 8, &target.octets());
                emit_options(b, 24, [lla.map(NdOption::SourceLla), nonce.map(NdOption::Nonce)]);
            }
            Self::NeighborAdvert { router, solicited, replace, target, lla } => {
                put(b, 0, &[ty::NEIGHBOR_ADVERT]);
                put(b, 4, &[u8::from(*router) << 7 | u8::from(*solicited) << 6 | u8::from(*replace) << 5]);
                put(b, 8, &target.octets());
                emit_options(b, 24, [lla.map(NdOption::TargetLla), None]);
            }
        }
        let sum = checksum::combine(checksum::pseudo_v6(src, dst, proto::ICMPV6, len as u32), checksum::sum(b));
        put(b, 2, &checksum::finish(sum).to_be_bytes());
    }
}

fn emit_options(b: &mut [u8], mut at: usize, options: [Option<NdOption<'_>>; 2]) {
    for o in options.into_iter().flatten() {
        o.emit(b.get_mut(at..).unwrap_or(&mut []));
        at += o.emit_len();
    }
}

impl<'a> RouterAdvert<'a> {
    fn read(b: &[u8], options: NdOptions<'a>) -> Self {
        let flags = byte(b, 5);
        let pref = match flags >> 3 & 3 {
            1 => RouterPref::High,
            3 => RouterPref::Low,
            _ => RouterPref::Medium,
        };
        Self {
            hop_limit: byte(b, 4),
            managed: flags & 0x80 != 0,
            other: flags & 0x40 != 0,
            pref,
            lifetime_s: be16(b, 6),
            reachable_ms: be32(b, 8),
            retrans_ms: be32(b, 12),
            options,
        }
    }

    fn write(&self, b: &mut [u8]) {
        let pref = match self.pref {
            RouterPref::High => 1 << 3,
            RouterPref::Medium => 0,
            RouterPref::Low => 3 << 3,
        };
        put(b, 0, &[ty::ROUTER_ADVERT]);
        put(b, 4, &[self.hop_limit, u8::from(self.managed) << 7 | u8::from(self.other) << 6 | pref]);
        put(b, 6, &self.lifetime_s.to_be_bytes());
        put(b, 8, &self.reachable_ms.to_be_bytes());
        put(b, 12, &self.retrans_ms.to_be_bytes());
        put(b, 16, self.options.0);
    }
}
