//! Why a TUN could not be opened or configured, and what to do about it.
//!
//! The kernel says EPERM, EBUSY or EINVAL for half a dozen situations each; the step that failed tells them apart, so each
//! situation has its own variant, whose text ends with the remedy. The number stays ([`TunError::raw_os_error`]), and the
//! conversion to [`std::io::Error`] keeps its kind.

use std::fmt;
use std::io;

use linerate_wire::Cidr;
use rustix::io::Errno;

/// Why a TUN could not be opened or configured.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TunError {
    /// There is no `/dev/net/tun`, or nothing behind it.
    NoDriver {
        /// The error number.
        errno: i32,
    },
    /// Not allowed.
    Permission {
        /// What was tried.
        what: &'static str,
        /// The error number.
        errno: i32,
    },
    /// Somebody else has this device open, and it has no free queue.
    Busy(String),
    /// Not a name that a device can have.
    BadName(String),
    /// A descriptor for the device of this name does not read and write whole packets, or not all do it in one way.
    NotPackets(String),
    /// There is a device of this name, of another kind.
    WrongKind(String),
    /// The device is not there (any more).
    NoSuchDevice(String),
    /// The device does not take this MTU.
    Mtu {
        /// The MTU asked for, bytes.
        mtu_bytes: u32,
        /// The error number.
        errno: i32,
    },
    /// The address or route could not be added.
    Address {
        /// What was to be added.
        cidr: Cidr,
        /// The error number.
        errno: i32,
    },
    /// Anything else.
    Os {
        /// What was tried.
        what: &'static str,
        /// The error number.
        errno: i32,
    },
}

/// The error number inside, 0 when there is none.
pub(super) fn errno_of(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(0)
}

const EPERM: i32 = Errno::PERM.raw_os_error();
const EACCES: i32 = Errno::ACCESS.raw_os_error();
const EEXIST: i32 = Errno::EXIST.raw_os_error();

impl TunError {
    pub(super) fn os(what: &'static str, errno: Errno) -> Self {
        Self::numbered(what, errno.raw_os_error())
    }
    pub(super) fn from_io(what: &'static str, e: &io::Error) -> Self {
        Self::numbered(what, errno_of(e))
    }
    fn numbered(what: &'static str, errno: i32) -> Self {
        if matches!(errno, EPERM | EACCES) { Self::Permission { what, errno } } else { Self::Os { what, errno } }
    }
    /// What opening the clone device answered.
    pub(super) fn of_open(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => Self::NoDriver { errno: errno.raw_os_error() },
            errno => Self::os("opening /dev/net/tun", errno),
        }
    }
    /// What TUNSETIFF answered for `name`.
    pub(super) fn of_attach(name: &str, errno: Errno) -> Self {
        match errno {
            Errno::BUSY => Self::Busy(name.to_owned()),
            Errno::INVAL => Self::WrongKind(name.to_owned()),
            Errno::NODEV => Self::NoSuchDevice(name.to_owned()),
            errno => Self::os("making or attaching to the device", errno),
        }
    }

    /// The Linux error number.
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::NoDriver { errno }
            | Self::Permission { errno, .. }
            | Self::Mtu { errno, .. }
            | Self::Address { errno, .. }
            | Self::Os { errno, .. } => *errno,
            Self::Busy(_) => Errno::BUSY.raw_os_error(),
            Self::BadName(_) | Self::NotPackets(_) | Self::WrongKind(_) => Errno::INVAL.raw_os_error(),
            Self::NoSuchDevice(_) => Errno::NODEV.raw_os_error(),
        }
    }
}

impl fmt::Display for TunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = io::Error::from_raw_os_error(self.raw_os_error());
        match self {
            Self::NoDriver { .. } => write!(
                f,
                "there is no TUN driver ({said}): load it (modprobe tun), or hand /dev/net/tun to this container"
            ),
            Self::Permission { what, .. } => write!(
                f,
                "{what} is not allowed ({said}): it needs CAP_NET_ADMIN; without root, run inside `unshare -Urn`, or \
                 let root make a persistent device (ip tuntap add mode tun user NAME)"
            ),
            Self::Busy(name) => write!(
                f,
                "{name} is in use: choose another name or `lin%d`; its owner is among `fuser /dev/net/tun`; more than \
                 one queue needs a device made with multi_queue"
            ),
            Self::BadName(name) => {
                write!(f, "{name} is not a name for a device: use 1 to 15 bytes without '/', ':', blanks, '.' or '..'")
            }
            Self::NotPackets(name) => write!(
                f,
                "a descriptor for {name} does not carry one packet per read and write: hand over those of a TUN or TAP, or \
                 sockets of kind SOCK_SEQPACKET or SOCK_DGRAM, but not both kinds"
            ),
            Self::WrongKind(name) => write!(
                f,
                "{name} exists and is another kind of device: choose another name, or remove it (ip link del {name}); a \
                 persistent TUN must have been made with multi_queue if more than one queue is wanted"
            ),
            Self::NoSuchDevice(name) => write!(f, "{name} is not there: it was removed, or is in another namespace"),
            Self::Mtu { mtu_bytes, .. } => {
                write!(f, "an MTU of {mtu_bytes} is refused ({said}): 68 to 65535 is possible, 1280 or more with IPv6")
            }
            Self::Address { cidr, errno: EEXIST } => {
                write!(f, "{cidr} is on the device, or routed, already: leave it out, or remove it (ip address del)")
            }
            Self::Address { cidr, errno: EACCES } if cidr.addr().is_ipv6() => {
                write!(f, "{cidr} is refused: IPv6 is switched off there (sysctl net.ipv6.conf.*.disable_ipv6)")
            }
            Self::Address { cidr, .. } => write!(f, "{cidr} is refused ({said}): give an address with its prefix"),
            Self::Os { what, .. } => write!(f, "{what} failed: {said}"),
        }
    }
}

impl std::error::Error for TunError {}

impl From<TunError> for io::Error {
    fn from(e: TunError) -> Self {
        Self::new(Self::from_raw_os_error(e.raw_os_error()).kind(), e)
    }
}
