//! A fresh user and network namespace with nothing but a loopback that is up.
//!
//! Inside it an ordinary user may choose any congestion control for the kernel's sockets, which the host may forbid
//! outside. Entering needs a process with a single thread (the kernel refuses a user namespace to others), so it is
//! called first thing by a child process. Where namespaces are switched off, the error says so and nothing changed.

use std::io;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};
use rustix::thread::{UnshareFlags, unshare_unsafe};

const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST_ACK: u16 = 1 | 4;
const NLMSG_ERROR: u16 = 2;
const LOOPBACK_IFINDEX: i32 = 1;
const IFF_UP: u32 = 1;

/// Moves this process into a namespace of its own and brings its loopback up.
///
/// # Errors
/// EINVAL when the process has several threads, EPERM or ENOSPC when the host forbids user namespaces.
pub fn enter_fresh_loopback() -> io::Result<()> {
    // SAFETY: the flags take away neither the file table nor the memory of other threads; user and network namespace
    // only change what future system calls of this process may see.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?;
    set_loopback_up()
}

fn set_loopback_up() -> io::Result<()> {
    let route = socket(AddressFamily::NETLINK, SocketType::DGRAM, None /* NETLINK_ROUTE is protocol 0 */)?;
    sendto(&route, &link_up_message(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut reply = [0_u8; 512];
    let (got, _) = recv(&route, &mut reply[..], RecvFlags::empty())?;
    match (reply.get(4..6), reply.get(16..20)) {
        (Some(kind), Some(error)) if got >= 20 && kind == NLMSG_ERROR.to_ne_bytes() => {
            let error = i32::from_ne_bytes([error[0], error[1], error[2], error[3]]);
            if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) }
        }
        _ => Err(io::Error::other("rtnetlink gave an unexpected answer")),
    }
}

/// nlmsghdr (length, type, flags, sequence, port) and ifinfomsg (family, type, index, flags, change mask).
fn link_up_message() -> Vec<u8> {
    let mut message = Vec::with_capacity(32);
    message.extend(32_u32.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend([0_u8; 4]);
    message.extend(LOOPBACK_IFINDEX.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message
}
