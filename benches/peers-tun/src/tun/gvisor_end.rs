//! gVisor's netstack at the other end: a Go program beside this one, built by `cargo xtask peers` where Go is.
//!
//! It inherits the descriptor of the TUN that all contenders get, listens where they listen, and serves one connection. It
//! is a process of its own, so its CPU time is not known here; its garbage collector may use what the kernel's end leaves.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use linerate::tun::VnetHdr;
use rustix::io::{FdFlags, fcntl_setfd};

use super::kernel_end::{Metered, connect_and_measure};
use super::{CONTENDER, Dir, End, Error, PORT, Plan, WARM_UP, open_tun, pin};

/// Ends the child however the run ended.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the program against the kernel's end.
pub(crate) fn run(plan: &Plan) -> Result<(Metered, String), Error> {
    let program = plan.program.as_ref().ok_or_else(|| Error::Unavailable("no --program for gVisor".into()))?;
    let mut tun = open_tun(plan)?;
    let port = tun.take_queue(0).ok_or_else(|| Error::Failed("a device has a queue".into()))?.watched;
    // Inherited by number; this process starts no other program.
    fcntl_setfd(&port, FdFlags::empty()).map_err(std::io::Error::from)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&*port));
    let child = Command::new(program)
        .args(["-fd", &fd.to_string(), "-mtu", &plan.mtu.to_string()])
        .args(["-addr", &CONTENDER.to_string(), "-port", &PORT.to_string()])
        .arg(format!("-vnet={}", tun.vnet_hdr() != VnetHdr::Off))
        .arg(format!("-write={}", plan.dir == Dir::To))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Error::Unavailable(format!("{}: {e}", program.display())))?;
    let mut guard = Guard(child);
    let mut ready = String::new();
    if let Some(out) = guard.0.stdout.take() {
        BufReader::new(out).read_line(&mut ready)?;
    }
    if ready.trim() != "ready" {
        return Err(Error::Failed("gVisor's end did not come up".into()));
    }
    // Not before the child was started, which would inherit it.
    pin(End::Kernel);
    let metered = connect_and_measure(SocketAddr::from((CONTENDER, PORT)), plan.dir, [WARM_UP, plan.time]);
    // A word on its standard error, a wrong byte for example, is the reason that the kernel's end does not know.
    let metered = metered.map_err(|e| Error::Failed(format!("the kernel's end: {e}")))?;
    if let Some(status) = guard.0.try_wait()?.filter(|status| !status.success()) {
        return Err(Error::Failed(format!("gVisor's end: {status}")));
    }
    Ok((metered, "own glue, readv and writev".into()))
}
