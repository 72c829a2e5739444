//! How fast a flow between this machine's kernel and a stack over a TUN is, in both directions.
//!
//! ```sh
//! cargo run --release -p linerate --example tun_throughput                      # two seconds each
//! cargo run --release -p linerate --example tun_throughput -- -t 3 --mtu 9000 --wait block --only inline,plain,up
//! ```
//! `--wait` is the stack's wait mode, `--app` that of the thread that reads or writes a remote socket, `--gso` the longest
//! super-packet sent (above 65535: BIG TCP).
//! It enters a user and network namespace of its own, so it needs no root and touches nothing outside. The kernel's end is
//! a plain writer or reader of 128 KiB with CUBIC. Our end is either a [`Stack`] with its own thread and a blocking
//! [`TcpStream`] (*remote*), or one thread that turns a [`Shard`] and reads or writes in between (*inline*). Every byte is
//! copied in and out at both ends. Figures are payload bits per second of wall-clock time at the reader; the last row is
//! the kernel against itself over its loopback, for scale.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener as LinuxListener, TcpStream as LinuxStream};
use std::thread;
use std::time::{Duration, Instant};

use linerate::inline::{
    BindOpts, DeviceConfig, How, PoolConfig, Ready, RecvError, SendError, Shard, SockId, SockOpts, StackConfig,
};
use linerate::tun::{Tun, TunConfig, WatchList};
use linerate::{Clock, Interface, Stack, TcpListener, TcpStream, Wait};
use linerate_host::Parker;

const CHUNK: usize = 128 << 10;
const BUDGET: usize = 256;

struct Args {
    time: Duration,
    mtu: u32,
    /// gso_max_size.
    gso: u32,
    wait: Wait,
    app: Wait,
    only: Vec<String>,
}

impl Args {
    fn parse() -> io::Result<Self> {
        let mut args = Self {
            time: Duration::from_secs(2),
            mtu: 1500,
            gso: 65_535,
            wait: Wait::default(),
            app: Wait::default(),
            only: Vec::new(),
        };
        let mut words = std::env::args().skip(1);
        while let (Some(flag), Some(value)) = (words.next(), words.next()) {
            match flag.as_str() {
                "-t" => args.time = Duration::from_secs(value.parse().map_err(io::Error::other)?),
                "--mtu" => args.mtu = value.parse().map_err(io::Error::other)?,
                "--gso" => args.gso = value.parse().map_err(io::Error::other)?,
                "--app" => args.app = value.parse().map_err(io::Error::other)?,
                "--wait" => args.wait = value.parse().map_err(io::Error::other)?,
                "--only" => args.only.extend(value.split(',').map(str::to_owned)),
                _ => {
                    return Err(io::Error::other(
                        "flags are -t SECS, --mtu N, --gso BYTES, --wait MODE, --app MODE, --only WORD[,WORD]",
                    ));
                }
            }
        }
        Ok(args)
    }
    /// `--only` names it, or nothing of its kind.
    fn wants(&self, word: &str, kind: &[&str]) -> bool {
        !self.only.iter().any(|w| kind.contains(&w.as_str())) || self.only.iter().any(|w| w == word)
    }
}

fn main() -> io::Result<()> {
    // First of all, while this process has one thread.
    linerate_host::netns::enter_fresh_loopback()?;
    let args = Args::parse()?;
    println!("MTU {}, {:?} each{:14}to the kernel   from the kernel", args.mtu, args.time, "");
    let mut n = 0;
    for (mode, plain) in [("offloads", false), ("plain", true)] {
        for side in ["inline", "remote"] {
            n += 1;
            if args.wants(mode, &["offloads", "plain"]) && args.wants(side, &["inline", "remote"]) {
                let config = if plain { TunConfig::default().plain() } else { TunConfig::default() };
                let host = format!("10.9.{n}.1/24").parse().map_err(io::Error::other)?;
                let tun = Tun::open(&config.mtu(args.mtu).gso_max_size(args.gso).host_address(host))?;
                let run = if side == "inline" { inline } else { remote };
                let [up, down] = run(&args, tun, n)?;
                println!("{mode}, {side:22} {up:7.2} Gbit/s   {down:7.2} Gbit/s");
            }
        }
    }
    if args.wants("kernel", &["inline", "remote"]) {
        let listener = LinuxListener::bind("127.0.0.1:0")?;
        let writer = LinuxStream::connect(listener.local_addr()?)?;
        use_cubic(&writer);
        let lo = flow(args.time, writer, listener.accept()?.0, |s| s.shutdown(Shutdown::Write))?;
        println!("{:32} {lo:7.2} Gbit/s", "kernel loopback");
    }
    Ok(())
}

/// BBR, which some hosts have as a default, paces a flow that has no wire.
fn use_cubic(socket: &LinuxStream) {
    if let Err(e) = rustix::net::sockopt::set_tcp_congestion(socket, "cubic") {
        println!("the kernel's congestion control is its default: {e}");
    }
}

const DIRECTIONS: [&str; 2] = ["up", "down"];

fn remote(args: &Args, tun: Tun, n: u8) -> io::Result<[f64; 2]> {
    let (host, ours) = (format!("10.9.{n}.1"), format!("10.9.{n}.2"));
    let interface = Interface::tun(tun).address(&format!("{ours}/24"));
    let stack = Stack::builder().interface(interface).wait(args.wait).start()?;
    let mut rates = [0.0; 2];
    if args.wants("up", &DIRECTIONS) {
        let listener = LinuxListener::bind((host.as_str(), 0))?;
        let mut mine = TcpStream::connect(&stack, listener.local_addr()?)?;
        mine.set_wait(args.app);
        rates[0] = flow(args.time, mine, listener.accept()?.0, |s| {
            s.shutdown();
            Ok(())
        })?;
    }
    if args.wants("down", &DIRECTIONS) {
        let mut listener = TcpListener::bind(&stack, (ours.as_str(), 0))?;
        let linux = LinuxStream::connect(listener.local_addr())?;
        use_cubic(&linux);
        let mut mine = listener.accept()?.0;
        mine.set_wait(args.app);
        rates[1] = flow(args.time, linux, mine, |s| s.shutdown(Shutdown::Write))?;
    }
    let stats = stack.stats()?;
    report(&stats.mibs, stats.interfaces.last().map(|i| i.qstats).unwrap_or_default());
    Ok(rates)
}

fn report(mibs: &linerate::inline::Mibs, q: linerate::inline::Qstats) {
    println!(
        "  {} wire packets sent in {} calls, {} received in {} skbs; drops {:?}",
        q.tx_wire_pkts,
        q.tx_kicks,
        q.rx_wire_pkts,
        q.rx_skbs,
        mibs.drops.iter().collect::<Vec<_>>()
    );
}

/// Writes for `time` and reads until the end: Gbit/s.
fn flow<W: Write + Send, R: Read>(
    time: Duration,
    mut writer: W,
    mut reader: R,
    shutdown: impl FnOnce(&mut W) -> io::Result<()> + Send,
) -> io::Result<f64> {
    let begin = Instant::now();
    let bytes = thread::scope(|s| {
        let wrote = s.spawn(move || write_for(time, &mut writer).and_then(|()| shutdown(&mut writer)));
        let bytes = read_all(&mut reader);
        wrote.join().map_err(|_| io::Error::other("the writer panicked"))??;
        bytes
    })?;
    Ok(gbit_per_s(bytes, begin))
}

fn write_for(time: Duration, writer: &mut impl Write) -> io::Result<()> {
    let (begin, chunk) = (Instant::now(), vec![7; CHUNK]);
    while begin.elapsed() < time {
        writer.write_all(&chunk)?;
    }
    Ok(())
}

fn read_all(reader: &mut impl Read) -> io::Result<u64> {
    let (mut chunk, mut bytes) = (vec![0; CHUNK], 0);
    loop {
        match reader.read(&mut chunk)? {
            0 => return Ok(bytes),
            n => bytes += n as u64,
        }
    }
}

fn gbit_per_s(bytes: u64, begin: Instant) -> f64 {
    bytes as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e9
}

/// A shard, its clock, and where its thread sleeps.
struct Inline {
    shard: Shard,
    clock: Clock,
    parker: Parker,
    watched: WatchList,
    wait: Wait,
}

impl Inline {
    /// Turns until `step` says that it is over; sleeps when neither did anything.
    fn run(&mut self, mut step: impl FnMut(&mut Shard) -> io::Result<Step>) -> io::Result<()> {
        let mut idle_since = None;
        loop {
            let now = self.clock.now();
            let turn = self.shard.turn(now, BUDGET);
            while self.shard.next_ready().is_some() {}
            match step(&mut self.shard)? {
                Step::Over => return Ok(()),
                Step::Moved => idle_since = None,
                Step::Idle if turn.more || turn.rx_skbs + turn.tx_skbs > 0 => idle_since = None,
                Step::Idle => {
                    let idle = now.since(*idle_since.get_or_insert(now));
                    let patience = Duration::from_micros(if self.wait == Wait::Block { 0 } else { 60 });
                    if self.wait != Wait::Spin && idle >= patience && self.shard.prepare_sleep() {
                        let left = turn.next.and_then(|at| self.clock.until(at));
                        let _ = self.parker.wait_watching(&mut self.watched, left);
                    }
                }
            }
        }
    }
}

enum Step {
    Moved,
    Idle,
    Over,
}

fn inline(args: &Args, mut tun: Tun, n: u8) -> io::Result<[f64; 2]> {
    let (host, ours) = (format!("10.9.{n}.1"), format!("10.9.{n}.2"));
    let mut cfg = StackConfig::default();
    cfg.kernels = linerate::kernels();
    let mut shard = Shard::new(cfg);
    let mut device = DeviceConfig::new(tun.name(), tun.mtu_bytes());
    device.rx_pool = PoolConfig { page_shift: 15, max_pages: 8192, cache_pages: 64 };
    let ifindex = shard.add_device(device).map_err(io::Error::other)?;
    let queue = tun.take_queue(0).ok_or_else(|| io::Error::other("a device has a queue"))?;
    let mut watched = WatchList::new();
    watched.push(queue.watched);
    shard.attach(ifindex, 0, queue.rx, queue.tx).map_err(io::Error::other)?;
    shard.add_address(ifindex, format!("{ours}/24").parse().map_err(io::Error::other)?).map_err(io::Error::other)?;
    let mut this = Inline { shard, clock: Clock::fast(), parker: Parker::with_eventfd()?, watched, wait: args.wait };
    let mut rates = [0.0; 2];
    if args.wants("up", &DIRECTIONS) {
        rates[0] = inline_up(&mut this, args.time, &host)?;
    }
    if args.wants("down", &DIRECTIONS) {
        rates[1] = inline_down(&mut this, args.time, &ours)?;
    }
    report(this.shard.mibs(), this.shard.qstats(ifindex).unwrap_or_default());
    Ok(rates)
}

fn inline_up(this: &mut Inline, time: Duration, host: &str) -> io::Result<f64> {
    let listener = LinuxListener::bind((host, 0))?;
    let sock = this.shard.tcp_connect(listener.local_addr()?, None, &SockOpts::default()).map_err(io::Error::other)?;
    let reader = thread::spawn(move || read_all(&mut listener.accept()?.0));
    let (chunk, begin, mut over) = (vec![7; CHUNK], Instant::now(), false);
    this.run(|shard| {
        if over {
            return Ok(if reader.is_finished() { Step::Over } else { Step::Idle });
        }
        if !shard.readiness(sock).contains(Ready::CONNECTED) {
            return Ok(Step::Idle);
        }
        if begin.elapsed() >= time {
            over = true;
            shard.shutdown(sock, How::Wr).map_err(|e| io::Error::other(format!("{e:?}")))?;
            return Ok(Step::Moved);
        }
        match shard.write(sock, &chunk) {
            Ok(_) => Ok(Step::Moved),
            Err(SendError::WouldBlock) => Ok(Step::Idle),
            Err(e) => Err(io::Error::other(e.to_string())),
        }
    })?;
    let bytes = reader.join().map_err(|_| io::Error::other("the reader panicked"))??;
    Ok(gbit_per_s(bytes, begin))
}

fn inline_down(this: &mut Inline, time: Duration, ours: &str) -> io::Result<f64> {
    let at = format!("{ours}:5000").parse().map_err(io::Error::other)?;
    let opts = SockOpts::default();
    let listener = this.shard.tcp_listen(at, 4, &opts, BindOpts::default()).map_err(io::Error::other)?;
    let begin = Instant::now();
    let writer = thread::spawn(move || {
        let mut linux = LinuxStream::connect(at)?;
        use_cubic(&linux);
        write_for(time, &mut linux)
    });
    let (mut chunk, mut bytes, mut sock): (_, _, Option<SockId>) = (vec![0; CHUNK], 0, None);
    this.run(|shard| {
        let Some(id) = sock else {
            sock = shard.accept(listener).ok();
            return Ok(Step::Idle);
        };
        match shard.read(id, &mut chunk) {
            Ok(0) => Ok(Step::Over),
            Ok(n) => {
                bytes += n as u64;
                Ok(Step::Moved)
            }
            Err(RecvError::WouldBlock) => Ok(Step::Idle),
            Err(e) => Err(io::Error::other(e.to_string())),
        }
    })?;
    writer.join().map_err(|_| io::Error::other("the writer panicked"))??;
    Ok(gbit_per_s(bytes, begin))
}
