//! A fresh user and network namespace with nothing but a loopback that is up.
//!
//! Inside it an ordinary user may choose any congestion control for the kernel's sockets, make TUN devices and give them
//! addresses, all of which the host may forbid outside. Entering needs a process with a single thread (the kernel refuses
//! a user namespace to others), so it is either called first thing by a child process ([`enter_fresh_loopback`]), or done
//! between fork and exec of a child program ([`in_fresh_namespace`]). Where namespaces are switched off, the error says so
//! and nothing changed.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{getgid, getuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::rtnl::{LOOPBACK_IFINDEX, LinkChange, Rtnl};

/// Moves this process into a namespace of its own and brings its loopback up.
///
/// # Errors
/// EINVAL when the process has several threads, EPERM or ENOSPC when the host forbids user namespaces.
pub fn enter_fresh_loopback() -> io::Result<()> {
    unshare()?;
    set_loopback_up()
}

/// Makes `command` run in a user and network namespace of its own, as its root. The loopback there is down until the
/// program calls [`set_loopback_up`].
///
/// [`Command::spawn`] then fails with EPERM, ENOSPC or EUSERS when the host forbids user namespaces.
pub fn in_fresh_namespace(command: &mut Command) -> &mut Command {
    // Everything that allocates is done before the fork.
    let uid_map = format!("0 {} 1", getuid().as_raw());
    let gid_map = format!("0 {} 1", getgid().as_raw());
    let enter = move || {
        unshare()?;
        // Without a mapping the program would lose its capabilities at exec. Groups can be mapped only by who cannot
        // drop them any more (user_namespaces(7)); kernels before 3.19 have no such file.
        let _ = write_file(c"/proc/self/setgroups", b"deny");
        write_file(c"/proc/self/uid_map", uid_map.as_bytes())?;
        write_file(c"/proc/self/gid_map", gid_map.as_bytes())
    };
    // SAFETY: between fork and exec `enter` makes system calls only: it takes no lock and does not allocate (an error
    // made of an errno is a plain value).
    unsafe { command.pre_exec(enter) }
}

/// Moves the calling thread, and no other of its process, into a network namespace of its own, whose loopback is down. What
/// the thread opens from then on belongs there, and so do the `/proc/sys/net` and `/proc/net` that it sees.
///
/// # Errors
/// EPERM without `CAP_SYS_ADMIN` in the process's user namespace, which the root of [`in_fresh_namespace`] has.
pub fn enter_fresh_network() -> io::Result<()> {
    // SAFETY: a network namespace only changes what future system calls of this thread may see; neither the file table nor
    // memory is taken from other threads.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Brings the loopback of this thread's network namespace up.
///
/// # Errors
/// EPERM without `CAP_NET_ADMIN` there.
pub fn set_loopback_up() -> io::Result<()> {
    Rtnl::open()?.set_link(LOOPBACK_IFINDEX, LinkChange { up: Some(true), ..LinkChange::default() })
}

fn unshare() -> io::Result<()> {
    // SAFETY: the flags take away neither the file table nor the memory of other threads; user and network namespace
    // only change what future system calls of this process may see.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?)
}

fn write_file(path: &std::ffi::CStr, bytes: &[u8]) -> io::Result<()> {
    let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, bytes)?;
    Ok(())
}
