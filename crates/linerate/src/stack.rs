//! A stack on a thread of its own: [`Stack`], how it is built, and the [`StackHandle`]s through which it is used.
//!
//! [`Stack::builder`] collects configuration, [`Interface`]s and waiting; [`Builder::start`] checks everything, builds the
//! shard on the calling thread (so mistakes are errors there, not panics elsewhere) and moves it onto its own. From then on
//! the only ways to it are sockets ([`crate::TcpStream`], [`crate::TcpListener`]) and [`StackHandle::with_shard`], which
//! runs a closure between two turns; [`StackHandle::stats`] is such a closure.
//!
//! Dropping the `Stack` resets its connections, tells every handle, and joins its threads ([`Builder::shards`]: one unless
//! set). Handles do not keep it alive.
//! What wakes a thread: the software NIC, channels and handles by themselves, a TUN or a caller's descriptor by being
//! readable, other devices by calling the [`StackWaker`].

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use linerate_arch::Kernels;
use linerate_base::rng::Rng;
use linerate_host::{Clock, Parker, Tun, Unparker, Wait, WatchList};
use linerate_host::{detect_cpu, faulty, random_seed, spawn_named, spawn_pinned};
use linerate_netdev::{FaultPlan, RxQueue, TxQueue};
use linerate_skb::PoolConfig;
use linerate_softnic::Nic;
use linerate_stack::remote::{HandleError, ShardRemote, ShardWaker};
use linerate_stack::steer::{MAX_SHARDS, siblings};
use linerate_stack::{DeviceConfig, LinkKind, Route, Shard, StackConfig};
use linerate_wire::Cidr;

use crate::control::{ControlPath, Door, Server};
use crate::driver::{Call, Control, Driver};
use crate::error::{Error, kind_of};
use crate::packet_device::{ChannelDevice, PacketFd};
use crate::shards::{Port, Shards};
use crate::tun::{MacAddr, TunMode};

pub use crate::stats::{InterfaceStats, Stats};
pub use linerate_stack::config::GroMode;

/// Skbs received in one turn at most, unless set.
const DEFAULT_BUDGET_SKBS: usize = 256;
/// Between the seeds of two shards.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Makes of the seed that of the key by which flows find their shard.
const STEER_SEED: u64 = 0x686f_6d65_735f_6f66;

/// Ends the sleep of a stack's threads. Whoever brings work to an armed queue calls it; early or twice does no harm.
#[derive(Clone, Debug)]
pub struct StackWaker(Arc<[Unparker]>);

impl StackWaker {
    /// Wakes the threads, or keeps them from their next sleep.
    pub fn wake(&self) {
        self.0.iter().for_each(Unparker::unpark);
    }
}

impl ShardWaker for StackWaker {
    fn wake(&self) {
        Self::wake(self);
    }
}

impl crate::nic::Wake for StackWaker {
    fn wake(&self) {
        Self::wake(self);
    }
}

/// A shard on its way to its thread.
struct Place {
    shard: Shard,
    parker: Parker,
    waker: StackWaker,
    watched: WatchList,
}

impl Place {
    fn new(shard: Shard, parker: Parker) -> Self {
        let waker = StackWaker(Arc::new([parker.unparker()]));
        Self { shard, parker, waker, watched: WatchList::new() }
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
            this = this.mac(linerate_host::random_mac());
        }
        this.tun = Some(tun);
        this
    }

    /// An interface over a channel: the caller hands packets in and takes them out. See [`crate::packet_device`].
    pub fn channel(name: &str, device: ChannelDevice) -> Self {
        let mut this = Self::new(name, device.mtu_bytes());
        if device.mode() == TunMode::Ethernet {
            this = this.mac(linerate_host::random_mac());
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
    /// All queue pairs, by shard: queue `q` is for shard `q` modulo their number, which it wakes.
    fn take_queues(&mut self, places: &mut [Place]) -> Vec<Vec<crate::nic::QueuePair>> {
        let shards = places.len();
        let mut all = std::mem::take(&mut self.queues);
        if let Some(nic) = &mut self.nic {
            for q in 0..nic.queues() {
                let Some(pair) = nic.take_queue(q) else { continue };
                nic.set_waker(q, Arc::new(places[all.len() % shards].waker.clone()));
                all.push(pair);
            }
        }
        if let Some(tun) = &mut self.tun {
            for q in 0..tun.queues() {
                let Some(queue) = tun.take_queue(q) else { continue };
                places[all.len() % shards].watched.push(queue.watched);
                all.push((queue.rx, queue.tx));
            }
        }
        if let Some(channel) = self.channel.take() {
            all.push(channel.into_queues(Arc::new(places[0].waker.clone())));
        }
        if let Some((rx, tx, seed)) = &self.faults {
            let kernels = Kernels::select(detect_cpu());
            let wrap = |(n, pair)| faulty::faulty(pair, rx.clone(), tx.clone(), seed.wrapping_add(n), kernels);
            all = (0..).zip(all).map(wrap).collect();
        }
        let mut by_shard: Vec<_> = (0..shards).map(|_| Vec::new()).collect();
        for (n, pair) in all.into_iter().enumerate() {
            by_shard[n % shards].push(pair);
        }
        by_shard
    }

    /// Makes the device in every shard, under the same number.
    fn install(mut self, places: &mut [Place]) -> io::Result<()> {
        let (name, shards) = (self.cfg.name.clone(), places.len());
        let queues = self.take_queues(places);
        if shards > 1 && self.cfg.link != LinkKind::Ip {
            return Err(invalid(&name, "an Ethernet interface needs a stack of one shard"));
        }
        for (place, queues) in places.iter_mut().zip(queues) {
            if queues.is_empty() && shards > 1 {
                return Err(invalid(&name, format!("it has fewer queues than the stack's {shards} shards")));
            }
            if queues.is_empty() {
                return Err(invalid(&name, "it has no queue left to attach"));
            }
            self.install_in(&mut place.shard, queues)?;
        }
        Ok(())
    }

    fn install_in(&self, shard: &mut Shard, queues: Vec<crate::nic::QueuePair>) -> io::Result<()> {
        let ifindex = shard.add_device(self.cfg.clone()).map_err(|e| io::Error::new(kind_of(e.errno()), e))?;
        for (q, (rx, tx)) in (0..).zip(queues) {
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
    /// One per shard.
    parkers: Vec<Parker>,
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
            parkers: vec![Parker::with_futex()],
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

    /// Name of the thread; of several shards the second is called `NAME-1`, and so on.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Shards (1 unless set, at most 64): each a whole stack on a thread of its own, with a queue of its own of every
    /// interface, which must have so many. A flow belongs to one shard; listeners are on all. See
    /// [`crate::manual::shards`].
    pub fn shards(mut self, shards: usize) -> Self {
        self.parkers.resize_with(shards.clamp(1, MAX_SHARDS), Parker::with_futex);
        self
    }

    /// Pins the thread to a CPU; of several shards each to the next. A CPU that does not exist or is not allowed makes
    /// [`Self::start`] fail.
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

    /// What ends the sleep of the stack's threads, for devices of [`Interface::device`]: of all shards that were asked for
    /// before.
    pub fn waker(&self) -> StackWaker {
        StackWaker(self.parkers.iter().map(Parker::unparker).collect())
    }

    /// Builds the stack and starts its thread.
    ///
    /// # Errors
    /// `InvalidInput` for text that is no address, an interface without queues or a CPU that may not be used; what the
    /// stack says to the devices, addresses and routes; what the host says to a new thread; see [`Server::start`] for a
    /// control socket.
    pub fn start(mut self) -> io::Result<Stack> {
        let cpus = self.cpu.map(|first| first..first + self.parkers.len());
        for cpu in cpus.into_iter().flatten() {
            if !linerate_host::allowed_cpus()?.contains(&cpu) {
                return Err(invalid(&format!("CPU {cpu}"), "this process may not run there"));
            }
        }
        let mut places = self.places();
        for interface in std::mem::take(&mut self.interfaces) {
            interface.install(&mut places)?;
        }
        let (homes, clock) = (places[0].shard.homes(), Clock::fast());
        let mut ports = Vec::with_capacity(places.len());
        for place in &mut places {
            if !place.watched.is_empty() {
                place.parker.use_eventfd()?;
            }
            let remote = place.shard.remote(Arc::new(place.waker.clone()), self.write_pool);
            ports.push(Port { remote: Mutex::new(remote), control: Control::new(place.parker.unparker()) });
        }
        let shards = Arc::new(Shards::new(ports, homes));
        let controls: Arc<[_]> = shards.controls().cloned().collect();
        // What it asks before the stack's threads run waits for that.
        let doors = || controls.iter().map(|control| Door::new(control.clone())).collect();
        let server = self.control.take().map(|path| Server::start(&path, doors())).transpose()?;
        // Dropped on the way out, it ends the threads that run already.
        let mut stack = Stack { handle: StackHandle { shards, wait: self.wait }, server, threads: Vec::new() };
        for (n, Place { shard, parker, watched, .. }) in places.into_iter().enumerate() {
            let (wait, budget, all) = (self.wait, self.budget_skbs, controls.clone());
            let driver = Driver { shard, parker, watched, control: all[n].clone(), all, wait, budget, clock };
            let name = if n == 0 { self.name.clone() } else { format!("{}-{n}", self.name) };
            stack.threads.push(match self.cpu {
                // The affinity was checked above; a CPU that went away since then costs speed, not correctness.
                Some(first) => spawn_pinned(name, first + n, move |_| driver.run())?,
                None => spawn_named(name, move || driver.run())?,
            });
        }
        Ok(stack)
    }

    /// The shards, joined when there are several, each with randomness of its own.
    fn places(&mut self) -> Vec<Place> {
        let seed = self.cfg.seed;
        let parkers = std::mem::take(&mut self.parkers);
        let mut places: Vec<_> = (0..)
            .zip(parkers)
            .map(|(n, parker)| {
                let mut cfg = self.cfg.clone();
                cfg.seed = seed.wrapping_add(SEED_STEP.wrapping_mul(n));
                Place::new(Shard::new(cfg), parker)
            })
            .collect();
        if places.len() > 1 {
            let wakers = places.iter().map(|p| Arc::new(p.waker.clone()) as Arc<dyn ShardWaker>).collect();
            let key = Rng::new(seed ^ STEER_SEED).hash_key();
            for (place, siblings) in places.iter_mut().zip(siblings(key, wakers)) {
                place.shard.join(siblings);
            }
        }
        places
    }
}

/// A TCP/IP stack that runs on a thread of its own (or several, [`Builder::shards`]), until it is dropped.
///
/// Dropping it sends a reset to the peer of every open connection, makes every verb of its sockets fail with
/// [`Error::StackGone`] or ECONNABORTED, and joins the threads.
#[derive(Debug)]
pub struct Stack {
    handle: StackHandle,
    server: Option<Server>,
    threads: Vec<JoinHandle<()>>,
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

    /// Drops the stack and says whether its threads came to a good end.
    ///
    /// # Errors
    /// `Other` when a thread panicked.
    pub fn shutdown(mut self) -> io::Result<()> {
        match self.join() {
            true => Ok(()),
            false => Err(io::Error::other("the thread of the stack panicked")),
        }
    }

    /// Ends all threads; false when one panicked.
    fn join(&mut self) -> bool {
        self.server = None;
        self.handle.shards.controls().for_each(|control| control.stop());
        self.threads.drain(..).map(|thread| thread.join().is_ok()).fold(true, |all, ok| all & ok)
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
    pub(crate) shards: Arc<Shards>,
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

    /// Sends a command to shard number `shard`.
    pub(crate) fn command<T>(
        &self,
        shard: usize,
        send: impl Fn(&ShardRemote) -> Result<T, HandleError>,
    ) -> Result<T, Error> {
        let port = self.shards.port(shard).ok_or(Error::StackGone)?;
        Ok(port.command(send)?)
    }

    /// Shards of the stack.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Runs `f` on the stack's thread between two turns and returns what it returned: the whole inline API of a running
    /// stack, for configuration, inspection and rare verbs. Commands that this thread gave before (`connect`, `bind`) are
    /// obeyed when `f` runs. Everything waits for `f`, so it must be short and never block; calling this from within
    /// itself would wait for ever. A panic of `f` is passed on to the caller. Of several shards it is the first;
    /// [`Self::with_shard_at`] has the others.
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
        self.with_shard_at(0, f)
    }

    /// As [`Self::with_shard`] for the shard of this number, below [`Self::shards`].
    ///
    /// # Errors
    /// [`Error::StackGone`], also without such a shard.
    pub fn with_shard_at<R: Send + 'static>(
        &self,
        index: usize,
        f: impl FnOnce(&mut Shard) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (reply, result) = mpsc::sync_channel(1);
        let call: Call = Box::new(move |shard| {
            // The caller waits, so there is somebody to receive it.
            let _ = reply.send(catch_unwind(AssertUnwindSafe(|| f(shard))));
        });
        if !self.shards.port(index).is_some_and(|port| port.control.call(call)) {
            return Err(Error::StackGone);
        }
        match result.recv() {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(mpsc::RecvError) => Err(Error::StackGone),
        }
    }

    /// Runs `f` on every shard, one after the other; what each returned.
    ///
    /// # Errors
    /// [`Error::StackGone`].
    pub fn with_each_shard<R: Send + 'static>(
        &self,
        f: impl FnMut(&mut Shard) -> R + Clone + Send + 'static,
    ) -> Result<Vec<R>, Error> {
        (0..self.shards()).map(|index| self.with_shard_at(index, f.clone())).collect()
    }

    /// A snapshot of the stack's counters, those of one shard all of one moment; of several shards the sum.
    ///
    /// # Errors
    /// [`Error::StackGone`].
    pub fn stats(&self) -> Result<Stats, Error> {
        let mut each = self.with_each_shard(|shard| Stats::of(shard))?.into_iter();
        let mut sum = each.next().ok_or(Error::StackGone)?;
        each.for_each(|stats| sum.merge(&stats));
        Ok(sum)
    }

    /// Whether two handles name the same stack.
    pub fn is_same_stack(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shards, &other.shards)
    }

    /// The `TCP_INFO` of the connection between two addresses.
    pub(crate) fn tcp_info(&self, local: SocketAddr, peer: SocketAddr) -> Result<linerate_stack::TcpInfo, Error> {
        let gone = Error::Socket(linerate_base::Errno::ENOTCONN);
        let home = self.shards.of_tcp(local.port(), peer);
        self.with_shard_at(home, move |shard| shard.find(local, peer).and_then(|id| shard.info(id)))?.ok_or(gone)
    }
}
