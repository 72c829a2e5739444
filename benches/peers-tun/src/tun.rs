//! One TCP flow between the Linux kernel and a stack in user space, over a TUN.
//!
//! ```text
//!   contender (a thread, or a child process) == TUN peers0, 10.77.0.1/24 == the kernel's end: a plain reader or writer
//!   10.77.0.2:5201, listens                                                connects; the only meter
//! ```
//! All contenders get the same device, the same kernel's end ([`kernel_end`]) and the same job: blocks of 128 KiB are
//! copied in at one end and out at the other, and whoever reads compares the last byte of each read with what was sent
//! there. The meter is the kernel's end for all of them: bytes that it read, or wrote, between two readings of its clock
//! after a warm-up.
//!
//! The two ends have a processor each where there are two: left to the scheduler they share one in some runs and not in
//! others, which halves a figure. Contenders that use several threads (a remote Linerate, gVisor) are free to run anywhere.
//!
//! It runs in a user and network namespace of its own, so it needs no root and leaves nothing behind; entering it takes a
//! process with one thread, so the work is done by a child: this binary again. Where namespaces or TUN devices are not to
//! be had, [`Error::Unavailable`] says so, which `cargo xtask peers` prints as a skipped row.
//!
//! Not comparable with figures over a wire: nothing is lost, and no byte is summed where checksums are offloaded.

pub(crate) mod gvisor_end;
pub(crate) mod kernel_end;
pub(crate) mod kernel_flow;
pub(crate) mod linerate_end;
pub(crate) mod smoltcp_end;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linerate::Wait;
use linerate::tun::{Tun, TunConfig, VnetHdr};
use linerate_host::{allowed_cpus, netns, pin_to_cpu};
use serde_json::{Value, json};

use kernel_end::Metered;

/// The kernel's end of the TUN and the contender's.
pub(crate) const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const CONTENDER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(crate) const PORT: u16 = 5_201;
/// What is not measured at the start of a run: windows open, buffers grow, caches fill.
pub(crate) const WARM_UP: Duration = Duration::from_millis(300);
/// The hidden first word of the child in its namespace.
pub(crate) const INSIDE: &str = "inside";
/// What the child's exit says when the machine lacks something.
const EXIT_UNAVAILABLE: u8 = 77;

/// Where the flow goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dir {
    /// To the kernel: it reads.
    To,
    /// From the kernel: it writes.
    From,
}

/// Who stands against the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contender {
    /// One thread that turns a shard and reads or writes in between.
    Linerate,
    /// A stack with a thread of its own, and a blocking socket on another.
    LinerateRemote,
    /// smoltcp with the glue of [`smoltcp_end`].
    Smoltcp,
    /// gVisor's netstack in a Go program with glue of its own.
    Gvisor,
    /// The kernel against itself over a veth pair.
    Veth,
    /// The kernel against itself over its loopback.
    Loopback,
}

/// One run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) contender: Contender,
    pub(crate) dir: Dir,
    /// Without virtio header: every packet is one frame, summed in software.
    pub(crate) plain: bool,
    pub(crate) time: Duration,
    pub(crate) mtu: u32,
    /// How the contender waits; `None`: as it likes best.
    pub(crate) wait: Option<Wait>,
    /// Size of the contender's socket buffer; `None`: as it likes best.
    pub(crate) buf_bytes: Option<usize>,
    /// The program that runs gVisor's netstack.
    pub(crate) program: Option<PathBuf>,
}

impl Plan {
    /// `secs` of MTU 1500 with offloads, everything else at its best.
    pub(crate) fn new(contender: Contender, dir: Dir) -> Self {
        let (time, mtu) = (Duration::from_secs(1), 1_500);
        Self { contender, dir, plain: false, time, mtu, wait: None, buf_bytes: None, program: None }
    }
}

/// Why there is no figure.
#[derive(Debug)]
pub(crate) enum Error {
    /// This machine lacks something.
    Unavailable(String),
    /// It went wrong.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "unavailable: {why}"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Self::Failed(e.to_string())
    }
}

impl FromStr for Dir {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "to" => Ok(Self::To),
            "from" => Ok(Self::From),
            _ => Err(format!("'{s}' is not one of to, from")),
        }
    }
}

impl FromStr for Contender {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Ok(match s {
            "linerate" => Self::Linerate,
            "linerate-remote" => Self::LinerateRemote,
            "smoltcp" => Self::Smoltcp,
            "gvisor" => Self::Gvisor,
            "veth" => Self::Veth,
            "loopback" => Self::Loopback,
            _ => return Err(format!("'{s}' is not one of linerate, linerate-remote, smoltcp, gvisor, veth, loopback")),
        })
    }
}

/// Runs this binary again with `words` in a namespace of its own, and hands its output and its exit on.
pub(crate) fn run_inside(words: &[String]) -> Result<ExitCode, Error> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg(INSIDE).args(words);
    let unavailable = |e| Error::Unavailable(format!("a namespace of our own: {e}"));
    let status = netns::in_fresh_namespace(&mut child).status().map_err(unavailable)?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// The exit of a run that ended in `error`.
pub(crate) fn exit_of(error: &Error) -> ExitCode {
    match error {
        Error::Unavailable(_) => ExitCode::from(EXIT_UNAVAILABLE),
        Error::Failed(_) => ExitCode::FAILURE,
    }
}

/// The run itself, in its namespace: the JSON report.
pub(crate) fn run(plan: &Plan) -> Result<Value, Error> {
    netns::set_loopback_up()?;
    let (metered, how) = match plan.contender {
        Contender::Linerate => linerate_end::inline(plan)?,
        Contender::LinerateRemote => linerate_end::remote(plan)?,
        Contender::Smoltcp => smoltcp_end::run(plan)?,
        Contender::Gvisor => gvisor_end::run(plan)?,
        Contender::Veth => kernel_flow::veth(plan)?,
        Contender::Loopback => kernel_flow::loopback(plan)?,
    };
    Ok(json!({
        "bits_per_second": metered.bits_per_second.round(),
        "direction": if plan.dir == Dir::To { "to" } else { "from" },
        "offloads": !plan.plain,
        "mtu": plan.mtu,
        "cores_kernel_end": metered.cores_kernel_end,
        "cores_contender": metered.cores_contender,
        "how": how,
    }))
}

/// The device that every contender gets: the old short virtio header, which all of them know.
pub(crate) fn open_tun(plan: &Plan) -> Result<Tun, Error> {
    let config = TunConfig::new("peers0").mtu(plan.mtu);
    let config = if plan.plain { config.plain() } else { config.vnet_hdr(VnetHdr::Legacy) };
    let address = format!("{KERNEL}/24").parse().map_err(|e| Error::Failed(format!("{KERNEL}: {e:?}")))?;
    let tun = Tun::open(&config.host_address(address)).map_err(|e| Error::Unavailable(e.to_string()))?;
    if tun.vnet_hdr() == VnetHdr::Off && !plan.plain {
        return Err(Error::Unavailable("this kernel's TUN has no virtio header".into()));
    }
    Ok(tun)
}

/// Which end a thread belongs to, to give it a processor of its own.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Kernel,
    Contender,
}

/// Pins the calling thread to the processor of its end; does nothing where there is one processor.
pub(crate) fn pin(end: End) {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    // Read once: a pinned thread sees only its own.
    let cpus = CPUS.get_or_init(|| allowed_cpus().unwrap_or_default());
    if let (Some(&first), Some(&last)) = (cpus.first(), cpus.last())
        && first != last
    {
        // Refused, it is where the scheduler wants it.
        let _ = pin_to_cpu(match end {
            End::Kernel => last,
            End::Contender => first,
        });
    }
}

/// Runs `contender` on a thread of its own while the kernel's end moves the flow and measures it.
pub(crate) fn against_kernel(
    plan: &Plan,
    to: SocketAddr,
    [warm_up, time]: [Duration; 2],
    contender: impl FnOnce(&AtomicBool) -> Result<(), Error> + Send,
) -> Result<Metered, Error> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let contender = s.spawn(|| contender(&stop));
        pin(End::Kernel);
        let metered = kernel_end::connect_and_measure(to, plan.dir, [warm_up, time]);
        stop.store(true, Ordering::Release);
        let ended = contender.join().map_err(|_| Error::Failed("the contender panicked".into()))?;
        // What went wrong first is what it was: the kernel's end only sees that nothing comes.
        ended.and(metered.map_err(|e| Error::Failed(format!("the kernel's end: {e}"))))
    })
}
