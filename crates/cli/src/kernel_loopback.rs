//! The host kernel's own loopback flow: the other side of `ratio_to_kernel`.
//!
//! A plain writer and reader over 127.0.0.1 or ::1 with the same `-l`, `-P`, `--rx` and `--test` as ours, and CUBIC set,
//! because a host whose default is BBR would flatter us fourfold (BBR paces loopback flows). Setting CUBIC is a
//! privilege where it is not in `tcp_allowed_congestion_control`; then the whole baseline runs in a fresh user and
//! network namespace, in which its owner may. That needs a process with a single thread, so the baseline is a child
//! process: this binary again, with a hidden verb. Parent and child talk in lines: `run SECONDS` gives one JSON line
//! with what was moved in that slice. Between slices the flow stands still and its threads sleep.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};

/// The hidden verb of the child.
pub(crate) const VERB: &str = "kernel-loopback";

const PAGE_BYTES: usize = 4096;
const WRITE_AHEAD_BYTES: usize = 128;

/// What the child is to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// `stream`, `rr` or `crr`.
    pub(crate) test: String,
    /// Bytes per write.
    pub(crate) len: usize,
    /// Parallel flows.
    pub(crate) flows: u32,
    /// IPv6.
    pub(crate) v6: bool,
    /// Discard with MSG_TRUNC.
    pub(crate) trunc: bool,
    /// Bytes each way (rr, crr).
    pub(crate) req: usize,
    /// Bytes back (rr, crr).
    pub(crate) resp: usize,
    /// Socket buffers, when asked for.
    pub(crate) window: Option<usize>,
}

/// What one slice moved.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Slice {
    /// Bytes that readers got.
    pub(crate) bytes: u64,
    /// Transactions completed.
    pub(crate) transactions: u64,
    /// Seconds that it took.
    pub(crate) secs: f64,
}

/// The parent's handle on the running child.
pub(crate) struct KernelLoopback {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The congestion control that really ran.
    pub(crate) cc: String,
}

impl KernelLoopback {
    /// Starts the child and waits until its flow stands.
    pub(crate) fn start(plan: &Plan) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(VERB)
            .arg(serde_json::to_string(plan)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the child has no pipes"));
        };
        let mut this = Self { child, input, output: BufReader::new(output), cc: String::new() };
        this.cc = this.line()?;
        Ok(this)
    }
    /// Lets the flow run for `secs`.
    pub(crate) fn run(&mut self, secs: f64) -> io::Result<Slice> {
        writeln!(self.input, "run {secs}")?;
        self.input.flush()?;
        let line = self.line()?;
        serde_json::from_str(&line).map_err(io::Error::other)
    }
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the kernel baseline ended early"));
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for KernelLoopback {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child: sets the flow up and obeys the lines on its standard input.
pub(crate) fn child_main(plan: &str) -> io::Result<()> {
    // Ctrl-C reaches the whole process group; the parent, which waits for a line of ours, ends us.
    linerate_host::interrupt::ignore()?;
    let plan: Plan = serde_json::from_str(plan).map_err(io::Error::other)?;
    let cc = choose_congestion_control()?;
    let flows = Flows::start(&plan, &cc)?;
    println!("{cc}");
    for line in io::stdin().lines() {
        let line = line?;
        let Some(secs) = line.strip_prefix("run ").and_then(|s| s.parse::<f64>().ok()) else {
            return Err(io::Error::other("expected: run SECONDS"));
        };
        println!("{}", serde_json::to_string(&flows.slice(secs))?);
    }
    Ok(())
}

/// CUBIC here, or CUBIC in a namespace of our own, or what the host insists on.
fn choose_congestion_control() -> io::Result<String> {
    if try_cubic() {
        return Ok("cubic".into());
    }
    if linerate_host::netns::enter_fresh_loopback().is_ok() && try_cubic() {
        return Ok("cubic".into());
    }
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(sockopt::tcp_congestion(&probe)?)
}

fn try_cubic() -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).is_ok_and(|probe| sockopt::set_tcp_congestion(&probe, "cubic").is_ok())
}

/// Lets all threads run, or holds them.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    lock: Mutex<()>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        if self.open.load(Ordering::Acquire) {
            return;
        }
        if let Ok(mut guard) = self.lock.lock() {
            while !self.open.load(Ordering::Acquire) {
                match self.opened.wait(guard) {
                    Ok(next) => guard = next,
                    Err(_) => return,
                }
            }
        }
    }
    fn set(&self, open: bool) {
        let _guard = self.lock.lock();
        self.open.store(open, Ordering::Release);
        self.opened.notify_all();
    }
}

#[derive(Default)]
struct Shared {
    gate: Gate,
    bytes: AtomicU64,
    transactions: AtomicU64,
}

struct Flows {
    shared: Arc<Shared>,
}

impl Flows {
    fn start(plan: &Plan, cc: &str) -> io::Result<Self> {
        let ip: IpAddr = if plan.v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
        sockopt::set_tcp_congestion(&listener, cc)?;
        let shared = Arc::new(Shared::default());
        for _ in 0..plan.flows {
            match plan.test.as_str() {
                "crr" => spawn_crr(&listener, plan, cc, &shared)?,
                _ => spawn_pair(&listener, plan, cc, &shared)?,
            }
        }
        Ok(Self { shared })
    }
    fn slice(&self, secs: f64) -> Slice {
        let bytes = self.shared.bytes.load(Ordering::Relaxed);
        let transactions = self.shared.transactions.load(Ordering::Relaxed);
        let start = Instant::now();
        self.shared.gate.set(true);
        std::thread::sleep(Duration::from_secs_f64(secs));
        let slice = Slice {
            bytes: self.shared.bytes.load(Ordering::Relaxed) - bytes,
            transactions: self.shared.transactions.load(Ordering::Relaxed) - transactions,
            secs: start.elapsed().as_secs_f64(),
        };
        self.shared.gate.set(false);
        slice
    }
}

/// Sets the congestion control before the handshake: a socket that began with BBR goes on pacing when it is given another.
/// The accepted end has what its listener has.
fn connect(to: SocketAddr, cc: &str) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_tcp_congestion(&socket, cc)?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

fn connected(listener: &TcpListener, plan: &Plan, cc: &str) -> io::Result<(TcpStream, TcpStream)> {
    let client = connect(listener.local_addr()?, cc)?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        if let Some(window) = plan.window {
            sockopt::set_socket_recv_buffer_size(stream, window)?;
            sockopt::set_socket_send_buffer_size(stream, window)?;
        }
    }
    Ok((client, server))
}

fn spawn_pair(listener: &TcpListener, plan: &Plan, cc: &str, shared: &Arc<Shared>) -> io::Result<()> {
    let (client, server) = connected(listener, plan, cc)?;
    let (plan_a, plan_b) = (plan.clone(), plan.clone());
    let (shared_a, shared_b) = (shared.clone(), shared.clone());
    if plan.test == "rr" {
        std::thread::spawn(move || rr_client(client, &plan_a, &shared_a));
        std::thread::spawn(move || rr_server(server, &plan_b));
    } else {
        std::thread::spawn(move || stream_writer(client, &plan_a, &shared_a));
        std::thread::spawn(move || stream_reader(server, &plan_b, &shared_b));
    }
    Ok(())
}

/// Where the first page of `room` begins. Blocks of a stream are placed in pages on purpose: on some processors (AMD's Zen
/// 3) the kernel's copies are slower by more than ten times where the destination lies 1 to 31 bytes behind the source
/// modulo the page, as it does when a large block from `malloc` is read into. The kernel fills pages from their start, and
/// leaves up to 31 bytes out at the end of some, so what is written starts [`WRITE_AHEAD_BYTES`] before a page.
fn page_start(room: &[u8]) -> usize {
    room.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES)
}

fn stream_writer(mut stream: TcpStream, plan: &Plan, shared: &Shared) -> io::Result<()> {
    let room = vec![0x5a_u8; plan.len + 2 * PAGE_BYTES];
    let at = page_start(&room) + PAGE_BYTES - WRITE_AHEAD_BYTES;
    let data = &room[at..at + plan.len];
    loop {
        shared.gate.pass();
        stream.write_all(data)?;
    }
}

fn stream_reader(mut stream: TcpStream, plan: &Plan, shared: &Shared) -> io::Result<()> {
    let mut room = vec![0_u8; plan.len + PAGE_BYTES];
    let at = page_start(&room);
    let buf = &mut room[at..at + plan.len];
    loop {
        let got = if plan.trunc {
            rustix::net::recv(&stream, &mut buf[..], RecvFlags::TRUNC)?.1
        } else {
            stream.read(buf)?
        };
        if got == 0 {
            return Ok(());
        }
        shared.bytes.fetch_add(got as u64, Ordering::Relaxed);
    }
}

fn rr_client(mut stream: TcpStream, plan: &Plan, shared: &Shared) -> io::Result<()> {
    let request = vec![1_u8; plan.req];
    let mut response = vec![0_u8; plan.resp];
    loop {
        shared.gate.pass();
        stream.write_all(&request)?;
        stream.read_exact(&mut response)?;
        shared.transactions.fetch_add(1, Ordering::Relaxed);
    }
}

fn rr_server(mut stream: TcpStream, plan: &Plan) -> io::Result<()> {
    let mut request = vec![0_u8; plan.req];
    let response = vec![1_u8; plan.resp];
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(&response)?;
    }
}

fn spawn_crr(listener: &TcpListener, plan: &Plan, cc: &str, shared: &Arc<Shared>) -> io::Result<()> {
    let (server, shared_a) = (listener.try_clone()?, shared.clone());
    let (plan_a, plan_b, cc) = (plan.clone(), plan.clone(), cc.to_owned());
    let to = listener.local_addr()?;
    std::thread::spawn(move || -> io::Result<()> {
        loop {
            let (mut stream, _) = server.accept()?;
            let mut request = vec![0_u8; plan_b.req];
            stream.read_exact(&mut request)?;
            stream.write_all(&vec![1_u8; plan_b.resp])?;
        }
    });
    std::thread::spawn(move || -> io::Result<()> {
        loop {
            shared_a.gate.pass();
            let mut stream = connect(to, &cc)?;
            stream.write_all(&vec![1_u8; plan_a.req])?;
            let mut response = Vec::new();
            stream.read_to_end(&mut response)?;
            shared_a.transactions.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(())
}
