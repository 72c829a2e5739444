//! Shards, links between them, and one clock that jumps.
//!
//! ```text
//!   host 0: shard, endpoints ── link 0 ── host 1: shard, endpoints
//!                            └─ link 1 ── host 2 ...                 one virtual clock
//! ```
//! A [`Net`] does what an event loop does, for all hosts at once: at one instant every host that has something to do gets
//! turns until none has, then the clock jumps to the earliest deadline of a shard, a wire or an endpoint. Nothing else
//! moves time, so hours of idle cost nothing and a run is the same on every machine.
//!
//! Plans bend time on purpose: a host that is not turned for a while (a stolen CPU), a clock that leaps by hours (a
//! suspended laptop). The checkers run throughout; [`Net::finish`] adds those that need everything closed.
//!
//! Limits: steps and turns at one instant are bounded; exceeding either is a failure of liveness, not a hang.

use std::net::{IpAddr, SocketAddr};

use linerate_base::{DropReason, Duration, Instant, Rng, TcpMib};
use linerate_netdev::IfIndex;
use linerate_skb::PoolConfig;
use linerate_stack::config::GroMode;
use linerate_stack::{BindOpts, DeviceConfig, LOOPBACK, Shard, SockId, StackConfig};
use linerate_tcp::SockOpts;
use linerate_wire::Cidr;

use crate::apps::{CHUNK_MAX, Endpoint, Script, compare_streams};
use crate::checkers::Violations;
use crate::device::{self, NicConfig};
use crate::link::{Link, SharedLink, lock};
use crate::tap::{Counted, Keep};
use crate::wire::WireConfig;

/// Turns of one host at one instant, after which it is said to spin.
const TURNS_AT_ONCE_MAX: u32 = 20_000;
/// The shards' own invariants cost a walk over all sockets: once in so many turns.
const CHECK_EVERY_TURNS: u64 = 64;
/// Turns of one host at one instant that did nothing although it asked for them.
const IDLE_TURNS_MAX: u32 = 16;

/// How one link is built.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// Largest IP packet, bytes.
    pub mtu_bytes: u32,
    /// By sending side.
    pub wires: [WireConfig; 2],
    /// By side.
    pub nics: [NicConfig; 2],
    /// Software GRO, by side.
    pub gro: [GroMode; 2],
    /// Receive pages, by side.
    pub rx_pools: [PoolConfig; 2],
}

impl LinkSpec {
    /// The same wire both ways and devices with every offload.
    pub fn symmetric(mtu_bytes: u32, wire: WireConfig) -> Self {
        let pool = PoolConfig { page_shift: 12, max_pages: 65_536, cache_pages: 128 };
        Self {
            mtu_bytes,
            wires: [wire.clone(), wire],
            nics: [NicConfig::full(mtu_bytes), NicConfig::full(mtu_bytes)],
            gro: [GroMode::Software; 2],
            rx_pools: [pool; 2],
        }
    }
}

/// What a host's memory is out for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemUsage {
    /// Descriptors out.
    pub skbs: u32,
    /// Pages out, of all pools; the one that writers append to is home.
    pub pages: u32,
    /// Bytes that TCP sockets are charged for.
    pub tcp_bytes: u64,
    /// Skbs that died without anybody saying so.
    pub silent_drops: u64,
}

/// What `shard` holds now.
pub fn mem_usage(shard: &Shard) -> MemUsage {
    let mem = &shard.core().mem;
    let rx = shard.links().devices().filter(|d| d.ifindex != LOOPBACK);
    let rx_pages: u32 = rx.filter_map(|d| d.rx_pool(0)).map(|p| p.inflight()).sum();
    let page = u32::from(mem.tx_page.is_some());
    MemUsage {
        skbs: mem.skbs.inflight(),
        pages: rx_pages + mem.tx_pool.inflight().saturating_sub(page),
        tcp_bytes: mem.tcp.allocated_bytes,
        silent_drops: mem.skbs.silent_drops(),
    }
}

type Accepts = Box<dyn FnMut(&mut Rng) -> Script>;

struct Listener {
    sock: SockId,
    accepts: Accepts,
}

struct Dial {
    at: Instant,
    to: SocketAddr,
    script: Script,
}

/// One host.
pub struct Host {
    /// Its stack.
    pub shard: Shard,
    /// Its ends of connections, in the order in which they were made.
    pub endpoints: Vec<Endpoint>,
    listeners: Vec<Listener>,
    dials: Vec<Dial>,
    links: Vec<(usize, usize)>,
    rng: Rng,
    budget: usize,
    scratch: Vec<u8>,
    next: Option<Instant>,
    more: bool,
    dirty: bool,
    starved: Vec<(Instant, Instant)>,
    /// Turns taken.
    pub turns: u64,
}

/// Why a run stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The condition holds.
    Done,
    /// Nothing will ever happen again.
    Idle,
    /// The time limit.
    TimeLimit,
    /// The step limit.
    StepLimit,
    /// A checker found something.
    Violation,
}

/// The network.
pub struct Net {
    /// The clock.
    pub now: Instant,
    /// Hosts, by number.
    pub hosts: Vec<Host>,
    /// Links, by number.
    pub links: Vec<SharedLink>,
    /// What the checkers found.
    pub violations: Violations,
    /// Events handled.
    pub steps: u64,
    /// More than this many steps mean that the run does not end.
    pub steps_max: u64,
    /// (when, by how much) the clock leaps.
    leaps: Vec<(Instant, Duration)>,
    keep: Keep,
    rng: Rng,
    seen_events: Vec<usize>,
}

impl Net {
    /// An empty network.
    pub fn new(seed: u64, keep: Keep) -> Self {
        Self {
            // Not zero, so that "never" and "at the beginning" are different times for whoever keeps time in a zero.
            now: Instant::from_secs(1),
            hosts: Vec::new(),
            links: Vec::new(),
            violations: Violations::default(),
            steps: 0,
            steps_max: 20_000_000,
            leaps: Vec::new(),
            keep,
            rng: Rng::new(seed),
            seen_events: Vec::new(),
        }
    }

    /// Adds a host whose turns take up to `budget` skbs; its randomness follows the network's seed.
    pub fn add_host(&mut self, mut cfg: StackConfig, budget: usize) -> usize {
        cfg.seed = self.rng.next_u64();
        self.hosts.push(Host {
            shard: Shard::new(cfg),
            endpoints: Vec::new(),
            listeners: Vec::new(),
            dials: Vec::new(),
            links: Vec::new(),
            rng: self.rng.fork(),
            budget: budget.max(1),
            scratch: vec![0; CHUNK_MAX],
            next: None,
            more: false,
            dirty: true,
            starved: Vec::new(),
            turns: 0,
        });
        self.hosts.len() - 1
    }

    /// The address of `side` on link number `link`.
    pub fn addr(link: usize, side: usize, v6: bool) -> IpAddr {
        let (n, h) = (link as u8, side as u8 + 1);
        if v6 { [0xfd00, 0, 0, u16::from(n), 0, 0, 0, u16::from(h)].into() } else { [10, 0, n, h].into() }
    }

    /// Connects host `a` (side 0) with host `b` (side 1) and gives both an address of each family.
    pub fn connect(&mut self, a: usize, b: usize, spec: LinkSpec) -> usize {
        let n = self.links.len();
        let link = Link::new(spec.mtu_bytes, spec.wires, self.keep, self.rng.next_u64());
        let v6 = spec.mtu_bytes >= 1280;
        for (side, (host, nic)) in [a, b].into_iter().zip(spec.nics).enumerate() {
            let mut cfg = DeviceConfig::new(format!("sim{n}"), spec.mtu_bytes);
            cfg.gro = spec.gro[side];
            cfg.rx_pool = spec.rx_pools[side];
            let seed = self.rng.next_u64();
            let (rx, tx) = device::queues(&link, side, nic, seed);
            let h = &mut self.hosts[host];
            let ifindex: IfIndex = h.shard.add_device(cfg).expect("few devices");
            h.shard.attach(ifindex, 0, Box::new(rx), Box::new(tx)).expect("a fresh device takes a queue");
            for (v6, prefix) in [(false, 24), (true, 64)].into_iter().take(1 + usize::from(v6)) {
                let cidr = Cidr::new(Self::addr(n, side, v6), prefix).expect("a prefix within the address");
                h.shard.add_address(ifindex, cidr).expect("a fresh device takes an address");
            }
            h.links.push((n, side));
        }
        self.links.push(link);
        self.seen_events.push(0);
        n
    }

    /// Two hosts with one configuration, connected.
    pub fn pair(seed: u64, keep: Keep, cfg: &StackConfig, spec: LinkSpec) -> Self {
        let mut net = Self::new(seed, keep);
        net.add_host(cfg.clone(), 256);
        net.add_host(cfg.clone(), 256);
        net.connect(0, 1, spec);
        net
    }

    /// `host` listens on all addresses of a family; what a connection does is up to `accepts`.
    pub fn listen(
        &mut self,
        host: usize,
        local: SocketAddr,
        backlog: u32,
        opts: &SockOpts,
        accepts: impl FnMut(&mut Rng) -> Script + 'static,
    ) {
        let h = &mut self.hosts[host];
        match h.shard.tcp_listen(local, backlog, opts, BindOpts::default()) {
            Ok(sock) => h.listeners.push(Listener { sock, accepts: Box::new(accepts) }),
            Err(e) => self.violations.note(|| format!("host {host} could not listen on {local}: {e}")),
        }
    }
    /// `host` dials `to` at a time.
    pub fn dial(&mut self, host: usize, at: Instant, to: SocketAddr, script: Script) {
        let h = &mut self.hosts[host];
        h.dials.push(Dial { at, to, script });
        h.dials.sort_by_key(|d| d.at);
        h.dirty = true;
    }
    /// `host` gets no turn in this time.
    pub fn starve(&mut self, host: usize, from: Instant, until: Instant) {
        self.hosts[host].starved.push((from, until));
    }
    /// The clock leaps forward by `by` as soon as it reaches `at`.
    pub fn leap(&mut self, at: Instant, by: Duration) {
        self.leaps.push((at, by));
        self.leaps.sort();
    }
    /// Stops listening everywhere.
    pub fn close_listeners(&mut self) {
        for h in &mut self.hosts {
            for l in h.listeners.drain(..) {
                let _ = h.shard.close(l.sock);
            }
            h.dirty = true;
        }
    }
    /// Marks a host whose sockets were used directly.
    pub fn touch(&mut self, host: usize) {
        self.hosts[host].dirty = true;
    }

    /// Every dial was made and every endpoint is done.
    pub fn all_done(&self) -> bool {
        self.hosts.iter().all(|h| h.dials.is_empty() && h.endpoints.iter().all(Endpoint::is_done))
    }
    /// One number for all that crossed all links.
    pub fn trace_hash(&self) -> u64 {
        self.links.iter().fold(0, |h, l| (h ^ lock(l).tap.hash()).rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Runs until `cond` holds, or `limit` is reached, or nothing will happen any more.
    pub fn run_until(&mut self, limit: Instant, mut cond: impl FnMut(&Self) -> bool) -> Stop {
        loop {
            self.settle();
            if self.violations.count() > 0 {
                return Stop::Violation;
            }
            if cond(self) {
                return Stop::Done;
            }
            self.steps += 1;
            if self.steps > self.steps_max {
                return Stop::StepLimit;
            }
            let Some(next) = self.next_event() else { return Stop::Idle };
            if next > limit {
                self.now = self.now.max(limit);
                return Stop::TimeLimit;
            }
            self.advance(next);
        }
    }
    /// Runs for a while.
    pub fn run_for(&mut self, time: Duration) -> Stop {
        let limit = self.now + time;
        self.run_until(limit, |_| false)
    }

    fn advance(&mut self, next: Instant) {
        self.now = self.now.max(next);
        while self.leaps.first().is_some_and(|&(at, _)| at <= self.now) {
            let (_, by) = self.leaps.remove(0);
            self.now += by;
        }
    }

    /// The earliest time at which anything happens.
    fn next_event(&self) -> Option<Instant> {
        let leap = self.leaps.first().map(|l| l.0);
        let hosts = (0..self.hosts.len()).filter_map(|h| {
            let at = self.next_of(h)?;
            // What was due in the past is due now, or when the host is fed again.
            Some(self.hosts[h].fed_at(at.max(self.now)))
        });
        hosts.chain(leap).min()
    }

    fn next_of(&self, h: usize) -> Option<Instant> {
        let host = &self.hosts[h];
        if host.more || host.dirty {
            return Some(self.now);
        }
        let wires = host.links.iter().filter_map(|&(n, side)| lock(&self.links[n]).next_for(side));
        let ends = host.endpoints.iter().filter_map(Endpoint::next_wake);
        let dial = host.dials.first().map(|d| d.at);
        wires.chain(ends).chain(dial).chain(host.next).min()
    }

    /// Turns at this instant until no host has anything to do.
    fn settle(&mut self) {
        let mut rounds = 0u32;
        loop {
            let mut quiet = true;
            for h in 0..self.hosts.len() {
                let due = self.next_of(h).is_some_and(|at| at <= self.now);
                if due && self.hosts[h].fed_at(self.now) <= self.now {
                    self.serve(h);
                    quiet = false;
                }
            }
            rounds += 1;
            if quiet {
                break;
            }
            if rounds > TURNS_AT_ONCE_MAX || self.steps > self.steps_max {
                let now = self.now;
                self.violations.note(|| format!("{now:?}: no rest after {rounds} rounds at one instant"));
                break;
            }
        }
        for link in &self.links {
            lock(link).checker.violations.drain_into(&mut self.violations);
        }
    }

    /// One host: endpoints, turn, events.
    fn serve(&mut self, h: usize) {
        self.steps += 1;
        let now = self.now;
        let recording = self.keep != Keep::Nothing;
        let host = &mut self.hosts[h];
        let before = recording.then(|| host.shard.mibs().tcp.clone());
        host.poll_apps(now, &mut self.violations, h);
        let mut idle = 0;
        loop {
            host.dirty = false;
            let turn = host.shard.turn(now, host.budget);
            host.turns += 1;
            (host.next, host.more) = (turn.next, turn.more);
            let mut moved = turn.rx_skbs + turn.tx_skbs > 0;
            let mut events = false;
            while host.shard.next_ready().is_some() {
                events = true;
            }
            if events || moved {
                moved |= host.poll_apps(now, &mut self.violations, h);
            }
            idle = if moved { 0 } else { idle + 1 };
            // Work that waits for a full device is not work for now: the device has told when it will be done.
            let device_full =
                host.links.iter().any(|&(n, side)| lock(&self.links[n]).tx_deadline[side].is_some_and(|at| at > now));
            if !moved && device_full {
                host.more = false;
            }
            let again = host.more || host.dirty || host.next.is_some_and(|at| at <= now);
            if !again || moved {
                // Others may have something to do first: the next round comes back here.
                host.more |= again;
                break;
            }
            if idle > IDLE_TURNS_MAX {
                let why = (turn.more, turn.next);
                self.violations.note(|| {
                    format!("{now:?}: host {h} asks for turns (more, next: {why:?}) and does nothing in them")
                });
                host.more = false;
                break;
            }
        }
        if host.turns.is_multiple_of(CHECK_EVERY_TURNS) {
            host.shard.check_invariants();
        }
        if host.shard.mibs().drops.get(DropReason::NotSpecified) > 0 {
            self.violations.note(|| format!("{now:?}: host {h} dropped a packet without a reason"));
        }
        if let Some(before) = before {
            self.annotate(h, &before);
        }
    }

    /// Tells the recorder what the stack counted in the turns that sent the latest frames.
    fn annotate(&mut self, h: usize, before: &TcpMib) {
        let counted = Counted::between(before, &self.hosts[h].shard.mibs().tcp);
        for &(n, side) in &self.hosts[h].links {
            let mut link = lock(&self.links[n]);
            let from = self.seen_events[n];
            for e in link.tap.events_mut().iter_mut().skip(from).filter(|e| e.from == side) {
                e.counted = Some(counted);
            }
            self.seen_events[n] = link.tap.events().len();
        }
    }

    /// Checks that hold at any time: the shards' own equations and the wires' books.
    pub fn check(&mut self) {
        for (h, host) in self.hosts.iter().enumerate() {
            host.shard.check_invariants();
            let silent = mem_usage(&host.shard).silent_drops;
            if silent > 0 {
                self.violations.note(|| format!("host {h}: {silent} skbs died silently"));
            }
        }
        for (n, link) in self.links.iter().enumerate() {
            let link = lock(link);
            for (side, wire) in link.wires.iter().enumerate() {
                // Frames in a receive ring have left the wire and are not yet delivered.
                if wire.stats().balance() < wire.in_flight() as i64 {
                    self.violations
                        .note(|| format!("link {n}, side {side}: the books do not balance: {:?}", wire.stats()));
                }
            }
        }
    }

    /// After everything was closed: runs until nothing moves and checks that all memory is home and all streams are whole.
    pub fn finish(&mut self) -> Stop {
        self.close_listeners();
        // TIME-WAIT takes a minute, orphans retry for some more.
        let limit = self.now + Duration::from_secs(4 * 3600);
        let stop = self.run_until(limit, |_| false);
        let ends = self.hosts.iter().flat_map(|h| &h.endpoints);
        compare_streams(ends, &mut self.violations);
        self.check();
        if stop != Stop::Idle {
            self.violations.note(|| format!("after everything was closed the network does not come to rest: {stop:?}"));
            return stop;
        }
        for (n, link) in self.links.iter().enumerate() {
            let link = lock(link);
            for (side, wire) in link.wires.iter().enumerate() {
                if wire.stats().balance() != 0 {
                    self.violations
                        .note(|| format!("link {n}, side {side}: frames unaccounted for: {:?}", wire.stats()));
                }
            }
        }
        for (h, host) in self.hosts.iter_mut().enumerate() {
            host.shard.turn(self.now, 64);
            host.shard.assert_quiescent();
            let mem = mem_usage(&host.shard);
            if mem.skbs > 0 || mem.pages > 0 || mem.tcp_bytes > 0 {
                self.violations.note(|| format!("host {h}: not everything is home: {mem:?}"));
            }
        }
        stop
    }
}

impl Host {
    /// The first time at or after `at` at which this host gets its turn.
    fn fed_at(&self, mut at: Instant) -> Instant {
        while let Some(&(_, until)) = self.starved.iter().find(|&&(from, until)| from <= at && at < until) {
            at = until;
        }
        at
    }

    /// Dials what is due, accepts, and polls every endpoint. True when anything moved.
    fn poll_apps(&mut self, now: Instant, found: &mut Violations, h: usize) -> bool {
        let mut moved = false;
        while self.dials.first().is_some_and(|d| d.at <= now) {
            let dial = self.dials.remove(0);
            moved = true;
            match self.shard.tcp_connect(dial.to, None, &dial.script.opts) {
                Ok(sock) => {
                    let local = self.shard.local_addr(sock).unwrap_or(dial.to);
                    let rng = self.rng.fork();
                    self.endpoints.push(Endpoint::new(sock, (local, dial.to), true, dial.script, rng, now));
                }
                Err(e) => found.note(|| format!("{now:?}: host {h} could not dial {}: {e}", dial.to)),
            }
        }
        for l in &mut self.listeners {
            while let Ok(sock) = self.shard.accept(l.sock) {
                moved = true;
                let name = self.shard.peer_addr(sock).zip(self.shard.local_addr(sock));
                let Some(name) = name else {
                    // Reset between the handshake and the accept: there is nobody to talk to.
                    let _ = self.shard.close(sock);
                    continue;
                };
                let script = (l.accepts)(&mut self.rng);
                let rng = self.rng.fork();
                self.endpoints.push(Endpoint::new(sock, name, false, script, rng, now));
            }
        }
        for e in self.endpoints.iter_mut().filter(|e| !e.is_done()) {
            moved |= e.poll(now, &mut self.shard, &mut self.scratch);
        }
        self.dirty |= moved;
        moved
    }
}
