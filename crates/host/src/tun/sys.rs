//! The ioctls of `/dev/net/tun`, each as a safe function. Numbers are those of `linux/if_tun.h`.
//!
//! The order matters to the kernel: flags with TUNSETIFF, then the header's size and byte order, then offloads. Every step
//! that an older kernel may not know falls back to what it does know, and says so in its result; only a device that
//! could not be opened at all is an error. A device belongs to the network namespace in which the clone device was opened.
//!
//! TAP differs from TUN by a flag and by nothing else in here.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};

use super::config::{Offloads, TunMode, VnetHdr};
use super::error::TunError;

const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const TUNGETFEATURES: Opcode = opcode::read::<u32>(b'T', 207);
const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const TUNGETVNETHDRSZ: Opcode = opcode::read::<c_int>(b'T', 215);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<c_int>(b'T', 216);
const TUNSETVNETLE: Opcode = opcode::write::<c_int>(b'T', 220);

const IFF_TUN: u16 = 0x0001;
const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

const TUN_F_CSUM: usize = 0x01;
const TUN_F_TSO4: usize = 0x02;
const TUN_F_TSO6: usize = 0x04;
const TUN_F_TSO_ECN: usize = 0x08;
const TUN_F_USO4: usize = 0x20;
const TUN_F_USO6: usize = 0x40;

/// Longest name of an interface, without the terminating zero.
const NAME_BYTES: usize = 15;

/// `struct ifreq`, of which only name and flags are used.
#[repr(C)]
#[derive(Clone, Copy)]
struct IfReq {
    name: [u8; 16],
    flags: u16,
    _rest: [u8; 22],
}

// The kernel reads and writes at most this much, on all architectures.
const _: () = assert!(size_of::<IfReq>() == 40);

/// A queue that is attached.
pub(super) struct Opened {
    pub(super) fd: OwnedFd,
    pub(super) name: String,
    /// The header stands before each packet.
    pub(super) vnet_hdr: bool,
}

/// Opens the clone device and attaches to `name`, which is made when it does not exist.
pub(super) fn open_queue(name: &str, mode: TunMode, vnet_hdr: bool, multi_queue: bool) -> Result<Opened, TunError> {
    let bad = name.is_empty() || name.len() > NAME_BYTES || matches!(name, "." | "..");
    if bad || name.bytes().any(|b| b == 0 || b == b'/' || b == b':' || b.is_ascii_whitespace()) {
        return Err(TunError::BadName(name.to_owned()));
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = openat(CWD, c"/dev/net/tun", flags, Mode::empty()).map_err(TunError::of_open)?;
    let known = features(fd.as_fd());
    let vnet_hdr = vnet_hdr && known & u32::from(IFF_VNET_HDR) != 0;
    let mut flags = IFF_NO_PI | if mode == TunMode::Ethernet { IFF_TAP } else { IFF_TUN };
    flags |= if vnet_hdr { IFF_VNET_HDR } else { 0 };
    flags |= if multi_queue { IFF_MULTI_QUEUE } else { 0 };
    let mut request = IfReq { name: [0; 16], flags, _rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which is what `IfReq` is.
    let attach = unsafe { Updater::<TUNSETIFF, IfReq>::new(&mut request) };
    // SAFETY: the argument of this number is the one given above.
    unsafe { ioctl(&fd, attach) }.map_err(|e| TunError::of_attach(name, e))?;
    let chosen = request.name.split(|&b| b == 0).next().unwrap_or_default();
    Ok(Opened { fd, name: String::from_utf8_lossy(chosen).into_owned(), vnet_hdr })
}

/// Flags that the driver knows; a driver that can not say knows the oldest only.
fn features(fd: BorrowedFd<'_>) -> u32 {
    // SAFETY: TUNGETFEATURES writes one unsigned int.
    let get = unsafe { Getter::<TUNGETFEATURES, u32>::new() };
    // SAFETY: the argument of this number is the one given above.
    unsafe { ioctl(fd, get) }.unwrap_or(0)
}

/// Sets size and byte order of the header. Returns the header in force: the 10-byte one on a kernel that can not choose.
pub(super) fn set_vnet_header(fd: &OwnedFd, want: VnetHdr) -> Result<VnetHdr, TunError> {
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    let set = unsafe { Setter::<TUNSETVNETHDRSZ, c_int>::new(want.len_bytes() as c_int) };
    // SAFETY: the argument of this number is the one given above.
    let set = unsafe { ioctl(fd, set) };
    // SAFETY: TUNSETVNETLE reads one int.
    let little_endian = unsafe { Setter::<TUNSETVNETLE, c_int>::new(1) };
    // SAFETY: the argument of this number is the one given above.
    let ordered = unsafe { ioctl(fd, little_endian) };
    // A kernel that does not know the word uses the host's order.
    if let Err(e) = ordered.or_else(|e| if cfg!(target_endian = "little") { Ok(()) } else { Err(e) }) {
        return Err(TunError::os("setting the byte order of the virtio header", e));
    }
    if set.is_ok() {
        return Ok(want);
    }
    // SAFETY: TUNGETVNETHDRSZ writes one int.
    let get = unsafe { Getter::<TUNGETVNETHDRSZ, c_int>::new() };
    // SAFETY: the argument of this number is the one given above.
    match unsafe { ioctl(fd, get) } {
        Ok(12) => Ok(VnetHdr::V1),
        Ok(10) | Err(_) => Ok(VnetHdr::Legacy),
        Ok(_) => Err(TunError::os("setting the size of the virtio header", Errno::INVAL)),
    }
}

/// Asks for offloads, and for less until the kernel agrees. Returns what is in force.
pub(super) fn set_offloads(fd: &OwnedFd, want: Offloads) -> Offloads {
    let no_uso = Offloads { uso: false, ..want };
    let no_ecn = Offloads { tso_ecn: false, ..no_uso };
    for offer in [want, no_uso, no_ecn, Offloads { csum: want.csum, ..Offloads::NONE }] {
        if try_offloads(fd, offer).is_ok() {
            return offer;
        }
    }
    // Nothing is what a new device has; a persistent one keeps what its last user set, unless this is obeyed.
    let _ = try_offloads(fd, Offloads::NONE);
    Offloads::NONE
}

fn try_offloads(fd: &OwnedFd, offer: Offloads) -> Result<(), Errno> {
    let bit = |on: bool, bits: usize| if on { bits } else { 0 };
    let bits = bit(offer.csum, TUN_F_CSUM)
        | bit(offer.tso4, TUN_F_TSO4)
        | bit(offer.tso6, TUN_F_TSO6)
        | bit(offer.tso_ecn, TUN_F_TSO_ECN)
        | bit(offer.uso, TUN_F_USO4 | TUN_F_USO6);
    // SAFETY: TUNSETOFFLOAD takes its bits as the argument itself.
    let set = unsafe { IntegerSetter::<TUNSETOFFLOAD>::new_usize(bits) };
    // SAFETY: the argument of this number is the one given above.
    unsafe { ioctl(fd, set) }
}
