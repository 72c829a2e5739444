//! A stack on a thread of its own: [`Stack`], how it is built, and the [`StackHandle`]s through which it is used.
//!
//! [`Stack::builder`] collects configuration, [`Interface`]s and waiting; [`Builder::start`] checks everything, builds the
//! shard on the calling thread (so mistakes are errors there, not panics elsewhere) and moves it onto its own. From then on
//! the only ways to it are sockets ([`crate::TcpStream`], [`crate::TcpListener`]) and [`StackHandle::with_shard`], which
//! runs a closure between two turns; [`StackHandle::stats`] is such a closure.
//!
//! Dropping the `Stack` resets its connections, tells every handle, and joins the thread. Handles do not keep it alive.
//! What wakes the thread: the software NIC, channels and handles by themselves, a TUN or a caller's descriptor by being
//! readable, other devices by calling the [`StackWaker`].

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use linerate_arch::Kernels;
use linerate_base::Instant;
use linerate_host::{Clock, Parker, Tun, Unparker, Wait, WatchList};
use linerate_host::{detect_cpu, faulty, random_seed, spawn_named, spawn_pinned};
use linerate_netdev::{FaultPlan, IfIndex, Qstats, RxQueue, TxQueue};
use linerate_skb::PoolConfig;
use linerate_softnic::Nic;
use linerate_stack::remote::{HandleError, ShardRemote, ShardWaker};
use linerate_stack::{DeviceConfig, LOOPBACK, Mibs, Route, Shard, StackConfig};
use linerate_wire::Cidr;

use crate::control::{ControlPath, Door, Server};
use crate::driver::{Call, Control, Driver};
use crate::error::{Error, kind_of};
use crate::packet_device::{ChannelDevice, PacketFd};
use crate::tun::{MacAddr, TunMode};

pub use linerate_stack::config::GroMode;

/// Skbs received in one turn at most, unless set.
const DEFAULT_BUDGET_SKBS: usize = 256;

/// Ends the sleep of a stack's thread. Whoever brings work to an armed queue calls it; early or twice does no harm.
#[derive(Clone, Debug)]
pub struct StackWaker(Unparker);

impl StackWaker {
    /// Wakes the thread, or keeps it from its next sleep.
    pub fn wake(&self) {
        self.0.unpark();
    }
}

impl ShardWaker for StackWaker {
    fn wake(&self) {
        self.0.unpark();
    }
}

impl crate::nic::Wake for StackWaker {
    fn wake(&self) {
        self.0.unpark();
    }
}

/// One network interface of a stack to be: its queues, addresses and routes.
///
/// ```
/// use linerate::{Interface, nic};
///
/// let (left, _right) = nic::pair(&nic::NicConfig::default(), &nic::NicConfig::default());
/// let eth0 = Interface::nic("eth0", left).address("10.0.0.1/24").address("fd00::1/64").gateway("10.0.0.254");
/// # let _ = eth0;
/// ```
pub struct Interface {
    cfg: DeviceConfig,
    queues: Vec<crate::nic::QueuePair>,
    nic: Option<Nic>,
    tun: Option<Tun>,
    channel: Option<ChannelDevice>,
    faults: Option<(FaultPlan, FaultPlan, u64)>,
    addresses: Vec<String>,
    routes: Vec<(String, Option<String>)>,
}

impl Interface {
    fn new(name: &str, mtu_bytes: u32) -> Self {
        let cfg = DeviceConfig::new(name, mtu_bytes);
        Self {
            cfg,
            queues: Vec::new(),
            nic: None,
            tun: None,
            channel: None,
            faults: None,
            addresses: Vec::new(),
            routes: Vec::new(),
        }
    }

    /// An interface over one end of a software wire: all its queues, its MTU, and its wake-ups.
    pub fn nic(name: &str, nic: Nic) -> Self {
        let mut this = Self::new(name, nic.features().mtu);
        this.nic = Some(nic);
        this
    }

    /// An interface over a TUN or TAP device, with Linux on the other side: all its queues, its MTU and its name. The stack's thread
    /// sleeps on the device's descriptors. `address` is this stack's end; the kernel's is set by
    /// [`TunConfig::host_address`](crate::tun::TunConfig::host_address).
    ///
    /// ```no_run
    /// use linerate::tun::{Tun, TunConfig};
    /// use linerate::{Interface, Stack};
    ///
    /// let tun = Tun::open(&TunConfig::default().host_address("10.9.0.1/24".parse().expect("an address")))?;
    /// let stack = Stack::builder().interface(Interface::tun(tun).address("10.9.0.2/24")).start()?;
    /// # drop(stack);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn tun(tun: Tun) -> Self {
        let mut this = Self::new(tun.name(), tun.mtu_bytes());
        this.cfg.rx_pool = crate::tun::RX_POOL;
        if tun.mode() == TunMode::Ethernet {
            this = this.mac(crate::tun::random_mac());
        }
        this.tun = Some(tun);
        this
    }

    /// An interface over a channel: the caller hands packets in and takes them out. See [`crate::packet_device`].
    pub fn channel(name: &str, device: ChannelDevice) -> Self {
        let mut this = Self::new(name, device.mtu_bytes());
        if device.mode() == TunMode::Ethernet {
            this = this.mac(crate::tun::random_mac());
        }
        this.channel = Some(device);
        this
    }

    /// An interface over descriptors of the caller that carry one packet per read and write. See
    /// [`crate::packet_device`].
    ///
    /// ```
    /// use linerate::packet_device::PacketFd;
    /// use linerate::{Interface, Stack};
    /// use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    ///
    /// let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    /// let vpn0 = Interface::fd("vpn0", PacketFd::new(ours, 1500))?.address("10.0.0.2/24");
    /// let stack = Stack::builder().interface(vpn0).start()?;
    /// # drop((stack, theirs));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for descriptors that keep no packets apart (a stream, a pipe, a file).
    pub fn fd(name: &str, fd: PacketFd) -> io::Result<Self> {
        Ok(Self::tun(fd.open(name)?))
    }

    /// An interface over any queue pair. Its device must call [`Builder::waker`]'s waker when work arrives while its
    /// receive queue is armed ([`RxQueue::irq_enable`]); without that only `Wait::Spin` or timers notice.
    pub fn device(name: &str, mtu_bytes: u32, rx: Box<dyn RxQueue + Send>, tx: Box<dyn TxQueue + Send>) -> Self {
        Self::new(name, mtu_bytes).queue(rx, tx)
    }

    /// One more queue pair.
    pub fn queue(mut self, rx: Box<dyn RxQueue + Send>, tx: Box<dyn TxQueue + Send>) -> Self {
        self.queues.push((rx, tx));
        self
    }

    /// Makes it an Ethernet interface under this hardware address. The device must carry Ethernet frames
    /// ([`TunMode::Ethernet`], [`NicConfig::ethernet`](crate::nic::NicConfig::ethernet)). A TAP has a random one unless set.
    pub fn mac(mut self, mac: MacAddr) -> Self {
        self.cfg = self.cfg.ethernet(mac);
        self
    }

    /// Asks routers on an Ethernet interface, and takes addresses, routes and the MTU from what they advertise over IPv6
    /// (off unless set).
    pub fn accept_ra(mut self, on: bool) -> Self {
        self.cfg.ipv6.accept_ra = on;
        self
    }

    /// An address with its prefix (`10.0.0.1/24`, `fd00::1/64`), and the route to that network.
    pub fn address(mut self, cidr: &str) -> Self {
        self.addresses.push(cidr.to_owned());
        self
    }

    /// A route to a network (`192.168.0.0/16`) over this interface.
    pub fn route(mut self, network: &str) -> Self {
        self.routes.push((network.to_owned(), None));
        self
    }

    /// The default route, over `gateway`: the neighbour to send to on an Ethernet interface. On a link between two ends its
    /// address only says which family, and from which subnet the source address comes.
    pub fn gateway(mut self, gateway: &str) -> Self {
        let any = if gateway.contains(':') { "::/0" } else { "0.0.0.0/0" };
        self.routes.push((any.to_owned(), Some(gateway.to_owned())));
        self
    }

    /// Accepts packets for every address; a socket's local address is then what its peer meant to reach.
    pub fn any_ip(mut self, on: bool) -> Self {
        self.cfg.any_ip = on;
        self
    }

    /// Merging of received frames in software (a device with hardware GRO does it itself).
    pub fn gro(mut self, mode: GroMode) -> Self {
        self.cfg.gro = mode;
        self
    }

    /// Largest IP packet of one wire frame, bytes; not more than the queues take.
    pub fn mtu(mut self, mtu_bytes: u32) -> Self {
        self.cfg.mtu_bytes = mtu_bytes;
        self
    }

    /// Faults on the wire frames of all its queues: `rx` on what the stack receives, `tx` on what it sends, from `seed`.
    /// Super-packets are cut before the plans see them, and the device's offloads are not used: for tests, not for speed.
    pub fn faults(mut self, rx: FaultPlan, tx: FaultPlan, seed: u64) -> Self {
        self.faults = Some((rx, tx, seed));
        self
    }

    /// Pages that each receive queue fills.
    pub fn rx_pool(mut self, pool: PoolConfig) -> Self {
        self.cfg.rx_pool = pool;
        self
    }

    /// Collects the queues of its device.
    fn take_queues(&mut self, waker: &StackWaker, watched: &mut WatchList) {
        if let Some(nic) = &mut self.nic {
            for q in 0..nic.queues() {
                nic.set_waker(q, Arc::new(waker.clone()));
                self.queues.extend(nic.take_queue(q));
            }
        }
        if let Some(tun) = &mut self.tun {
            for q in 0..tun.queues() {
                let Some(queue) = tun.take_queue(q) else { continue };
                watched.push(queue.watched);
                self.queues.push((queue.rx, queue.tx));
            }
        }
        if let Some(channel) = self.channel.take() {
            self.queues.push(channel.into_queues(Arc::new(waker.clone())));
        }
        if let Some((rx, tx, seed)) = &self.faults {
            let kernels = Kernels::select(detect_cpu());
            let bare = std::mem::take(&mut self.queues);
            let wrap = |(n, pair)| faulty::faulty(pair, rx.clone(), tx.clone(), seed.wrapping_add(n), kernels);
            self.queues = (0..).zip(bare).map(wrap).collect();
        }
    }

    /// Makes the device in `shard`.
    fn install(mut self, shard: &mut Shard, waker: &StackWaker, watched: &mut WatchList) -> io::Result<()> {
        let name = self.cfg.name.clone();
        self.take_queues(waker, watched);
        if self.queues.is_empty() {
            return Err(invalid(&name, "it has no queue left to attach"));
        }
        let ifindex = shard.add_device(self.cfg).map_err(|e| io::Error::new(kind_of(e.errno()), e))?;
        for (q, (rx, tx)) in (0..).zip(self.queues) {
            shard.attach(ifindex, q, rx, tx).map_err(|e| io::Error::new(kind_of(e.errno()), e))?;
        }
        for text in &self.addresses {
            let cidr: Cidr = text.parse().map_err(|e| invalid(text, e))?;
            shard.add_address(ifindex, cidr).map_err(|e| io::Error::new(kind_of(e.errno()), e))?;
        }
        for (network, via) in &self.routes {
            let dst: Cidr = network.parse().map_err(|e| invalid(network, e))?;
            let mut route = Route::new(dst, ifindex);
            if let Some(via) = via {
                route = route.via(via.parse::<IpAddr>().map_err(|e| invalid(via, e))?);
            }
            shard.add_route(route).map_err(|e| io::Error::new(kind_of(e.errno()), e))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface")
            .field("config", &self.cfg)
            .field("addresses", &self.addresses)
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}

fn invalid(what: &str, why: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {why}"))
}

/// What a [`Stack`] is built from. Every setting has a default: a stack without interfaces has its loopback.
#[derive(Debug)]
pub struct Builder {
    cfg: StackConfig,
    interfaces: Vec<Interface>,
    wait: Wait,
    name: String,
    cpu: Option<usize>,
    budget_skbs: usize,
    write_pool: PoolConfig,
    control: Option<ControlPath>,
    parker: Parker,
}

impl Builder {
    fn new() -> Self {
        let mut cfg = StackConfig::default();
        cfg.kernels = Kernels::select(detect_cpu());
        cfg.seed = random_seed();
        Self {
            cfg,
            interfaces: Vec::new(),
            wait: Wait::default(),
            name: "linerate".to_owned(),
            cpu: None,
            budget_skbs: DEFAULT_BUDGET_SKBS,
            write_pool: PoolConfig::default(),
            control: None,
            parker: Parker::with_futex(),
        }
    }

    /// Adds an interface. They are numbered from 2 in this order; 1 is the loopback.
    pub fn interface(mut self, interface: Interface) -> Self {
        self.interfaces.push(interface);
        self
    }

    /// Changes the configuration: TCP's sysctls, memory, ports, limits. See [`StackConfig`].
    ///
    /// ```
    /// let stack = linerate::Stack::builder()
    ///     .configure(|cfg| {
    ///         cfg.tcp.ecn = 1;
    ///         cfg.local_ports = (40_000, 50_000);
    ///     })
    ///     .start()?;
    /// # drop(stack);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn configure(mut self, change: impl FnOnce(&mut StackConfig)) -> Self {
        change(&mut self.cfg);
        self
    }

    /// Seed of all randomness (initial sequence numbers, ports, hash keys). The default is the host's random source.
    /// Whoever knows the seed can guess sequence numbers: fix it in tests only.
    pub fn seed(mut self, seed: u64) -> Self {
        self.cfg.seed = seed;
        self
    }

    /// How the stack's thread waits for work; see [`crate::manual::wait_modes`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Name of the thread.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Pins the thread to a CPU. A CPU that does not exist or is not allowed makes [`Self::start`] fail.
    pub fn pin_to_cpu(mut self, cpu: usize) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// Skbs received in one turn at most (256): larger batches against earlier answers.
    pub fn budget_skbs(mut self, skbs: usize) -> Self {
        self.budget_skbs = skbs.max(1);
        self
    }

    /// The pages that each socket's writer copies into (32 KiB each, at most 64 MiB per socket; taken when needed).
    pub fn write_pool(mut self, pool: PoolConfig) -> Self {
        self.write_pool = pool;
        self
    }

    /// Listens for `linerate ss`, `nstat` and the like, which show the stack's sockets and counters to this user; see
    /// [`crate::control`]. Without this nothing listens.
    pub fn control(mut self, path: ControlPath) -> Self {
        self.control = Some(path);
        self
    }

    /// What ends the sleep of the stack's thread, for devices of [`Interface::device`].
    pub fn waker(&self) -> StackWaker {
        StackWaker(self.parker.unparker())
    }

    /// Builds the stack and starts its thread.
    ///
    /// # Errors
    /// `InvalidInput` for text that is no address, an interface without queues or a CPU that may not be used; what the
    /// stack says to the devices, addresses and routes; what the host says to a new thread; see [`Server::start`] for a
    /// control socket.
    pub fn start(mut self) -> io::Result<Stack> {
        if let Some(cpu) = self.cpu
            && !linerate_host::allowed_cpus()?.contains(&cpu)
        {
            return Err(invalid(&format!("CPU {cpu}"), "this process may not run there"));
        }
        let waker = self.waker();
        let mut shard = Shard::new(self.cfg);
        let mut watched = WatchList::new();
        for interface in self.interfaces {
            interface.install(&mut shard, &waker, &mut watched)?;
        }
        if !watched.is_empty() {
            self.parker.use_eventfd()?;
        }
        let remote = shard.remote(Arc::new(waker), self.write_pool);
        let control = Control::new(self.parker.unparker());
        // What it asks before the stack's thread runs waits for that.
        let server = self.control.map(|path| Server::start(&path, vec![Door::new(control.clone())])).transpose()?;
        let clock = Clock::fast();
        let driver = Driver {
            shard,
            parker: self.parker,
            watched,
            control: control.clone(),
            wait: self.wait,
            budget: self.budget_skbs,
            clock,
        };
        let thread = match self.cpu {
            // The affinity was checked above; a CPU that went away since then costs speed, not correctness.
            Some(cpu) => spawn_pinned(self.name, cpu, move |_| driver.run())?,
            None => spawn_named(self.name, move || driver.run())?,
        };
        let handle = StackHandle { remote: Arc::new(Mutex::new(remote)), control, wait: self.wait };
        Ok(Stack { handle, server, thread: Some(thread) })
    }
}

/// A TCP/IP stack that runs on a thread of its own, until it is dropped.
///
/// Dropping it sends a reset to the peer of every open connection, makes every verb of its sockets fail with
/// [`Error::StackGone`] or ECONNABORTED, and joins the thread.
#[derive(Debug)]
pub struct Stack {
    handle: StackHandle,
    server: Option<Server>,
    thread: Option<JoinHandle<()>>,
}

impl Stack {
    /// Everything that can be set; [`Builder::start`] makes the stack.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A way to the stack, to keep where sockets are opened. It does not keep the stack alive.
    pub fn handle(&self) -> StackHandle {
        self.handle.clone()
    }

    /// Where its control socket is, if it has one ([`Builder::control`]).
    pub fn control_path(&self) -> Option<&Path> {
        self.server.as_ref().map(Server::path)
    }

    /// As [`StackHandle::stats`].
    ///
    /// # Errors
    /// As there.
    pub fn stats(&self) -> Result<Stats, Error> {
        self.handle.stats()
    }

    /// Drops the stack and says whether its thread came to a good end.
    ///
    /// # Errors
    /// `Other` when the thread panicked.
    pub fn shutdown(mut self) -> io::Result<()> {
        match self.join() {
            Some(Err(_)) => Err(io::Error::other("the thread of the stack panicked")),
            _ => Ok(()),
        }
    }

    fn join(&mut self) -> Option<std::thread::Result<()>> {
        self.server = None;
        self.handle.control.stop();
        Some(self.thread.take()?.join())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // The panic of the stack's thread was reported when it happened; a second one here would abort.
        let _ = self.join();
    }
}

impl AsRef<StackHandle> for Stack {
    fn as_ref(&self) -> &StackHandle {
        &self.handle
    }
}

impl AsRef<StackHandle> for StackHandle {
    fn as_ref(&self) -> &StackHandle {
        self
    }
}

/// A way to a running [`Stack`], from any thread. Cheap to clone.
#[derive(Clone)]
pub struct StackHandle {
    /// Behind a lock because the command ring has one producer; only opening a socket takes it, never moving bytes.
    remote: Arc<Mutex<ShardRemote>>,
    control: Arc<Control>,
    wait: Wait,
}

impl fmt::Debug for StackHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackHandle").field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl StackHandle {
    /// How the stack waits, and so how its sockets do unless told otherwise.
    pub(crate) fn wait_mode(&self) -> Wait {
        self.wait
    }

    /// Sends a command; waits for room in the command ring, which the stack empties once a turn.
    pub(crate) fn command<T>(&self, send: impl Fn(&ShardRemote) -> Result<T, HandleError>) -> Result<T, Error> {
        loop {
            let done = send(&self.remote.lock().unwrap_or_else(PoisonError::into_inner));
            match done {
                Err(HandleError::WouldBlock) => std::thread::yield_now(),
                done => return done.map_err(Error::from),
            }
        }
    }

    /// Runs `f` on the stack's thread between two turns and returns what it returned: the whole inline API of a running
    /// stack, for configuration, inspection and rare verbs. Commands that this thread gave before (`connect`, `bind`) are
    /// obeyed when `f` runs. Everything waits for `f`, so it must be short and never block; calling this from within
    /// itself would wait for ever. A panic of `f` is passed on to the caller.
    ///
    /// # Errors
    /// [`Error::StackGone`].
    ///
    /// ```
    /// let stack = linerate::Stack::builder().start()?;
    /// let sockets = stack.handle().with_shard(|shard| shard.tcp_counts().0)?;
    /// assert_eq!(sockets, 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn with_shard<R: Send + 'static>(&self, f: impl FnOnce(&mut Shard) -> R + Send + 'static) -> Result<R, Error> {
        let (reply, result) = mpsc::sync_channel(1);
        let call: Call = Box::new(move |shard| {
            // The caller waits, so there is somebody to receive it.
            let _ = reply.send(catch_unwind(AssertUnwindSafe(|| f(shard))));
        });
        if !self.control.call(call) {
            return Err(Error::StackGone);
        }
        match result.recv() {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(mpsc::RecvError) => Err(Error::StackGone),
        }
    }

    /// A snapshot of the stack's counters, all of one moment.
    ///
    /// # Errors
    /// [`Error::StackGone`].
    pub fn stats(&self) -> Result<Stats, Error> {
        self.with_shard(|shard| Stats::of(shard))
    }

    /// Whether two handles name the same stack.
    pub fn is_same_stack(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.control, &other.control)
    }

    /// The `TCP_INFO` of the connection between two addresses.
    pub(crate) fn tcp_info(&self, local: SocketAddr, peer: SocketAddr) -> Result<linerate_stack::TcpInfo, Error> {
        let gone = Error::Socket(linerate_base::Errno::ENOTCONN);
        self.with_shard(move |shard| shard.find(local, peer).and_then(|id| shard.info(id)))?.ok_or(gone)
    }
}

/// Counters of a stack at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The stack's time.
    pub now: Instant,
    /// `Tcp:`, `Ip:`, `Udp:`, `Icmp:` and drops by reason, under Linux's names.
    pub mibs: Mibs,
    /// By interface, the loopback first.
    pub interfaces: Vec<InterfaceStats>,
    /// TCP sockets, orphans included.
    pub tcp_sockets: usize,
    /// Half-open connections.
    pub tcp_requests: usize,
    /// TIME-WAIT states.
    pub tcp_time_wait: usize,
    /// Pages of the shard's own transmit pool that are out.
    pub tx_pages_inflight: u32,
    /// Descriptors that are out.
    pub skbs_inflight: u32,
}

/// Counters of one interface.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InterfaceStats {
    /// Its number.
    pub ifindex: IfIndex,
    /// Its name.
    pub name: String,
    /// Its queues' counters, added up.
    pub qstats: Qstats,
}

impl Stats {
    /// The counters of a shard that the caller turns itself.
    pub fn of(shard: &Shard) -> Self {
        let (tcp_sockets, tcp_requests, tcp_time_wait) = shard.tcp_counts();
        let lo = InterfaceStats {
            ifindex: LOOPBACK,
            name: "lo".to_owned(),
            qstats: shard.qstats(LOOPBACK).unwrap_or_default(),
        };
        let devices = shard.links().devices().filter(|d| d.ifindex != LOOPBACK).map(|d| InterfaceStats {
            ifindex: d.ifindex,
            name: d.name.clone(),
            qstats: d.qstats(),
        });
        Self {
            now: shard.now(),
            mibs: shard.mibs().clone(),
            interfaces: std::iter::once(lo).chain(devices).collect(),
            tcp_sockets,
            tcp_requests,
            tcp_time_wait,
            tx_pages_inflight: shard.core().mem.tx_pool.inflight(),
            skbs_inflight: shard.core().mem.skbs.inflight(),
        }
    }
}
