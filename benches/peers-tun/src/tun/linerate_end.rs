//! Linerate's end of a flow over a TUN, with its defaults.
//!
//! *Inline*: one thread turns a shard and reads or writes in between; it is what the other contenders do too. *Remote*: a
//! [`Stack`] on a thread of its own and a blocking socket on another, which is how most programs will use it; on two
//! processors these two threads and the kernel's end then share what the inline thread has to itself.
//!
//! Nothing is tuned for this bench: buffers grow by themselves, and the thread waits adaptively. `--wait` and `--buf`
//! change that for comparison.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linerate::inline::{
    BindOpts, DeviceConfig, PoolConfig, RecvError, SendError, Shard, SockId, SockOpts, StackConfig,
};
use linerate::tun::{Tun, WatchList};
use linerate::{Clock, Interface, Stack, TcpListener, Wait};
use linerate_host::Parker;

use super::kernel_end::{Aligned, BLOCK_BYTES, Metered, STALL, pattern, verify};
use super::{CONTENDER, Dir, End, Error, PORT, Plan, WARM_UP, against_kernel, open_tun, pin};

/// Skbs that one turn receives at most.
const BUDGET_SKBS: usize = 256;
/// For how long an adaptive thread polls before it sleeps.
const PATIENCE: Duration = Duration::from_micros(linerate_host::wake::SPIN_US);
/// The longest sleep: the end of the run is looked for at least so often.
const NAP: Duration = Duration::from_millis(20);

fn at() -> SocketAddr {
    (CONTENDER, PORT).into()
}

fn options(plan: &Plan) -> SockOpts {
    let mut opts = SockOpts::default();
    // As stored by SO_SNDBUF and SO_RCVBUF; 0 is automatic.
    let bytes = plan.buf_bytes.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
    (opts.sndbuf_bytes, opts.rcvbuf_bytes) = (bytes, bytes);
    opts
}

/// A shard and where its thread sleeps.
struct Inline {
    shard: Shard,
    clock: Clock,
    parker: Parker,
    watched: WatchList,
    wait: Wait,
}

/// What the application did between two turns.
enum Step {
    Moved,
    Idle,
    Over,
}

impl Inline {
    fn new(mut tun: Tun, wait: Wait) -> Result<Self, Error> {
        let failed = |e: &dyn std::fmt::Display| Error::Failed(e.to_string());
        let mut cfg = StackConfig::default();
        cfg.kernels = linerate::kernels();
        let mut shard = Shard::new(cfg);
        let mut device = DeviceConfig::new(tun.name(), tun.mtu_bytes());
        device.rx_pool = PoolConfig { page_shift: 15, max_pages: 8192, cache_pages: 64 };
        let ifindex = shard.add_device(device).map_err(|e| failed(&e))?;
        let queue = tun.take_queue(0).ok_or_else(|| failed(&"a device has a queue"))?;
        let mut watched = WatchList::new();
        watched.push(queue.watched);
        shard.attach(ifindex, 0, queue.rx, queue.tx).map_err(|e| failed(&e))?;
        let address = format!("{CONTENDER}/24").parse().map_err(|_| failed(&CONTENDER))?;
        shard.add_address(ifindex, address).map_err(|e| failed(&e))?;
        Ok(Self { shard, clock: Clock::fast(), parker: Parker::with_eventfd()?, watched, wait })
    }

    /// Turns until `step` says that it is over; sleeps when neither did anything.
    fn run(&mut self, stop: &AtomicBool, mut step: impl FnMut(&mut Shard) -> io::Result<Step>) -> io::Result<()> {
        let mut idle_since = None;
        while !stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            let turn = self.shard.turn(now, BUDGET_SKBS);
            while self.shard.next_ready().is_some() {}
            match step(&mut self.shard)? {
                Step::Over => return Ok(()),
                Step::Moved => idle_since = None,
                Step::Idle if turn.more || turn.rx_skbs + turn.tx_skbs > 0 => idle_since = None,
                Step::Idle => {
                    let idle = now.since(*idle_since.get_or_insert(now));
                    let sleepy = match self.wait {
                        Wait::Block => true,
                        Wait::Adaptive => idle >= PATIENCE,
                        Wait::Spin => false,
                    };
                    if sleepy && self.shard.prepare_sleep() {
                        let left = turn.next.and_then(|at| self.clock.until(at)).map_or(NAP, |left| left.min(NAP));
                        let _ = self.parker.wait_watching(&mut self.watched, Some(left));
                    }
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, plan: &Plan, stop: &AtomicBool) -> io::Result<()> {
        let listener = self
            .shard
            .tcp_listen(at(), 4, &options(plan), BindOpts::default())
            .map_err(|e| io::Error::other(e.to_string()))?;
        let (pattern, mut block, mut bytes) = (pattern(), Aligned::new(BLOCK_BYTES), 0_u64);
        let mut sock: Option<SockId> = None;
        let dir = plan.dir;
        self.run(stop, |shard| {
            let Some(id) = sock else {
                sock = shard.accept(listener).ok();
                return Ok(if sock.is_some() { Step::Moved } else { Step::Idle });
            };
            let moved = match dir {
                Dir::To => fill(shard, id, &pattern, &mut bytes),
                Dir::From => drain(shard, id, &pattern, &mut block, &mut bytes)?,
            };
            match moved {
                Ok(0) => Ok(Step::Over),
                Ok(_) => Ok(Step::Moved),
                Err((true, _)) => Ok(Step::Idle),
                // The meter has what it wants and let go.
                Err((false, _)) if bytes > 0 => Ok(Step::Over),
                Err((false, e)) => Err(io::Error::other(e)),
            }
        })
    }
}

/// Writes as long as there is room, as a program does that has enough to say: whole super-packets then leave with few
/// wake-ups of the reader, where one block a turn would leave a short segment behind each.
fn fill(shard: &mut Shard, id: SockId, pattern: &[u8], bytes: &mut u64) -> Result<usize, (bool, String)> {
    let before = *bytes;
    loop {
        let rest = pattern.get(*bytes as usize % BLOCK_BYTES..).unwrap_or_default();
        match shard.write(id, rest) {
            Ok(n) => *bytes += n as u64,
            Err(SendError::WouldBlock) if *bytes > before => return Ok((*bytes - before) as usize),
            Err(e) => return Err((e == SendError::WouldBlock, e.to_string())),
        }
    }
}

/// Reads until nothing is left, 0 at the end of the stream.
fn drain(
    shard: &mut Shard,
    id: SockId,
    pattern: &[u8],
    block: &mut [u8],
    bytes: &mut u64,
) -> io::Result<Result<usize, (bool, String)>> {
    let before = *bytes;
    loop {
        match shard.read(id, block) {
            Ok(0) => return Ok(Ok((*bytes - before) as usize)),
            Ok(got) => {
                verify(pattern, block.get(..got).unwrap_or_default(), *bytes)?;
                *bytes += got as u64;
            }
            Err(RecvError::WouldBlock) if *bytes > before => return Ok(Ok((*bytes - before) as usize)),
            Err(e) => return Ok(Err((e == RecvError::WouldBlock, e.to_string()))),
        }
    }
}

/// One thread for the stack and its application.
pub(crate) fn inline(plan: &Plan) -> Result<(Metered, String), Error> {
    let tun = open_tun(plan)?;
    let wait = plan.wait.unwrap_or_default();
    let mut cores = 0.0;
    let metered = against_kernel(plan, at(), [WARM_UP, plan.time], |stop| {
        pin(End::Contender);
        let begin = std::time::Instant::now();
        Inline::new(tun, wait)?.serve(plan, stop)?;
        cores = linerate_host::cpu_time().as_secs_f64() / begin.elapsed().as_secs_f64();
        Ok(())
    })?;
    Ok((Metered { cores_contender: Some(cores), ..metered }, format!("one thread, waiting: {wait:?}")))
}

/// A stack with its own thread, and a blocking socket on another.
pub(crate) fn remote(plan: &Plan) -> Result<(Metered, String), Error> {
    let tun = open_tun(plan)?;
    let wait = plan.wait.unwrap_or_default();
    let stack =
        Stack::builder().interface(Interface::tun(tun).address(&format!("{CONTENDER}/24"))).wait(wait).start()?;
    let before = linerate_host::process_cpu_time();
    let begin = std::time::Instant::now();
    let mut listener = TcpListener::bind(&stack, at())?;
    listener.set_accept_timeout(Some(STALL));
    let metered = against_kernel(plan, at(), [WARM_UP, plan.time], move |_| {
        let mut stream = listener.accept()?.0;
        let (pattern, mut block, mut bytes) = (pattern(), Aligned::new(BLOCK_BYTES), 0_u64);
        loop {
            match plan.dir {
                Dir::To if stream.write_all(&pattern).is_err() => return Ok(()),
                Dir::To => {}
                Dir::From => match stream.read(&mut block) {
                    Ok(0) | Err(_) => return Ok(()),
                    Ok(got) => {
                        verify(&pattern, block.get(..got).unwrap_or_default(), bytes)?;
                        bytes += got as u64;
                    }
                },
            }
        }
    })?;
    let all = (linerate_host::process_cpu_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    let cores = (all - metered.cores_kernel_end).max(0.0);
    Ok((Metered { cores_contender: Some(cores), ..metered }, format!("stack and application apart, waiting: {wait:?}")))
}
