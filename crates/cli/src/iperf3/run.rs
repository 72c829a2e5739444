//! From flags to a running engine: the device, the shard, the clock, the loop, the printing.
//!
//! ```text
//!   turn(now) -> engine.step(now) -> print -> outcome? end
//!                                          -> moved?   again
//!                                          -> sleep on the device until the earlier of the shard's and the engine's deadline
//! ```
//! One thread does everything: a packet, its TCP and its application share a core and a cache. Waiting is as `--wait` says;
//! adaptive polls for [`SPIN_US`] before it sleeps, since a wake-up costs about as much. Ctrl-C is looked for at least
//! every [`LONGEST_SLEEP`]. After the end the shard turns on for a moment, so that the last FINs and resets leave.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

use linerate::control::{ControlPath, Inbox, Server as ControlServer};
use linerate_arch::Kernels;
use linerate_base::{Duration, Instant};
use linerate_host::tun::{Offloads, Tun, TunConfig, TunQueue};
use linerate_host::wake::SPIN_US;
use linerate_host::{Clock, Parker, WatchList, detect_cpu, interrupt, random_mac, random_seed};
use linerate_netdev::IfIndex;
use linerate_skb::PoolConfig;
use linerate_stack::config::GroMode;
use linerate_stack::{DeviceConfig, Route, Shard, StackConfig};
use linerate_wire::Cidr;
use serde_json::json;

use super::args::IperfArgs;
use super::client::{Client, ClientConfig};
use super::cpu::Usage;
use super::engine::{Engine, Settings, Surroundings, earlier};
use super::server::{Server, ServerConfig};
use crate::speed::args::{Csum, Gro, WaitMode};
use crate::{Failure, Outcome};

/// Skbs that one turn may take (NAPI's weight): 4 MiB of super-packets between two looks at the application.
const BUDGET: usize = 64;
/// How late a Ctrl-C may be seen.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// Sleeps shorter than the kernel's timers can keep are spun.
const SHORTEST_SLEEP: Duration = Duration::from_micros(60);
/// How long farewells may take.
const FAREWELL: Duration = Duration::from_millis(200);
/// Pages that the device receives into: a super-packet is two or three of them; 256 MiB at most, taken when needed.
const RX_POOL: PoolConfig = PoolConfig { page_shift: 15, max_pages: 8192, cache_pages: 64 };

/// Runs the verb.
pub(crate) fn main(args: &IperfArgs) -> Outcome {
    args.check().map_err(Failure::Usage)?;
    let outcome = match set_up(args) {
        Ok(mut host) => host.run(),
        Err(message) => {
            if args.json {
                let report = json!({ "start": {}, "intervals": [], "end": {}, "error": message });
                crate::print(&format!("{report:#}\n"))?;
            }
            Err(message)
        }
    };
    outcome.map_err(Failure::Failed)
}

/// A shard with its device, its application, and the place to sleep.
struct Host {
    shard: Shard,
    ifindex: IfIndex,
    addresses: Vec<Cidr>,
    /// All of them are ours: those of IPv6 are on trial first where others may have them.
    settled: bool,
    engine: Box<dyn Engine>,
    parker: Parker,
    watched: WatchList,
    clock: Clock,
    wait: WaitMode,
    /// What the control socket asks of the shard.
    inbox: Inbox,
    _control: Option<ControlServer>,
}

fn set_up(args: &IperfArgs) -> Result<Host, String> {
    let mut config = StackConfig::default();
    config.kernels = Kernels::select(detect_cpu());
    config.seed = random_seed();
    let mut shard = Shard::new(config);
    let mut watched = WatchList::new();
    let ifindex = open_device(args, &mut shard, &mut watched)?;
    let seed = random_seed();
    let around = Surroundings { ifindex, wire_cut: !offloads(args).tso4, dma: "copy", seed, usage: Usage::now };
    let settings = Settings {
        interval: (args.interval > 0.0).then(|| Duration::from_secs_f64(args.interval)),
        json: args.json,
        discard: args.skip_rx_copy,
        zerocopy: args.zerocopy,
        around,
    };
    let engine: Box<dyn Engine> = match &args.client {
        Some(host) => Box::new(Client::new(client_config(args, host, settings)?)),
        None => Box::new(Server::new(server_config(args, settings))),
    };
    let parker = Parker::with_eventfd().map_err(|e| format!("eventfd: {e}"))?;
    let inbox = Inbox::new(parker.unparker());
    let control = listen(args, &inbox)?;
    let (addresses, clock, wait) = (args.addr.clone(), Clock::fast(), args.wait);
    Ok(Host {
        shard,
        ifindex,
        addresses,
        settled: false,
        engine,
        parker,
        watched,
        clock,
        wait,
        inbox,
        _control: control,
    })
}

/// The control socket. Where nobody asked for it, a host that has no place for it is told of, and the run goes on.
fn listen(args: &IperfArgs, inbox: &Inbox) -> Result<Option<ControlServer>, String> {
    if args.no_control {
        return Ok(None);
    }
    let path = args.control.clone().map_or(ControlPath::Default, ControlPath::At);
    match ControlServer::start(&path, vec![inbox.door()]) {
        Ok(server) => Ok(Some(server)),
        Err(e) if args.control.is_some() => Err(e.to_string()),
        Err(e) => {
            crate::usage::complain(&format!("{e}; going on without"));
            Ok(None)
        }
    }
}

/// What crosses the device undone. A TUN has one switch for both directions.
fn offloads(args: &IperfArgs) -> Offloads {
    match (args.csum, args.tso.is_on()) {
        (Csum::Sw, _) => Offloads::NONE,
        (Csum::Hw, false) => Offloads::CSUM,
        (Csum::Hw, true) => Offloads::ALL,
    }
}

fn open_device(args: &IperfArgs, shard: &mut Shard, watched: &mut WatchList) -> Result<IfIndex, String> {
    let name = args.tap.as_ref().or(args.tun.as_ref());
    let mut config = TunConfig::new(name.cloned().unwrap_or_default()).offloads(offloads(args));
    if args.tap.is_some() {
        config = config.ethernet();
    }
    config.mtu_bytes = args.mtu;
    config.host_addresses = args.host_addr.clone();
    config.up = !args.host_addr.is_empty();
    let mut tun = Tun::open(&config).map_err(|e| e.to_string())?;
    let mut device = DeviceConfig::new(tun.name(), tun.mtu_bytes());
    if args.tap.is_some() {
        device = device.ethernet(random_mac());
    }
    device.rx_pool = RX_POOL;
    let merges = args.gro.map_or(!tun.offloads().tso4, |gro| matches!(gro, Gro::Sw | Gro::HwSw));
    device.gro = if merges { GroMode::Software } else { GroMode::Off };
    let ifindex = shard.add_device(device).map_err(|e| e.to_string())?;
    let TunQueue { rx, tx, watched: descriptor } = tun.take_queue(0).ok_or("the device has no queue")?;
    shard.attach(ifindex, 0, rx, tx).map_err(|e| e.to_string())?;
    watched.push(descriptor);
    for cidr in &args.addr {
        shard.add_address(ifindex, *cidr).map_err(|e| format!("--addr {}: {e}", cidr.addr()))?;
    }
    for gateway in &args.gw {
        let everything = Cidr::new(if gateway.is_ipv4() { any(false) } else { any(true) }, 0);
        let route = Route::new(everything.ok_or("a route to everything")?, ifindex).via(*gateway);
        shard.add_route(route).map_err(|e| format!("--gw {gateway}: {e}"))?;
    }
    Ok(ifindex)
}

fn any(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

fn client_config(args: &IperfArgs, host: &str, settings: Settings) -> Result<ClientConfig, String> {
    Ok(ClientConfig {
        server: resolve(args, host)?,
        host: host.to_owned(),
        bind: args.bind,
        cport: args.test.cport,
        params: args.params(),
        connect_timeout: Duration::from_millis(args.test.connect_timeout),
        settings,
    })
}

/// The server's address, of a family that this stack has an address of.
fn resolve(args: &IperfArgs, host: &str) -> Result<SocketAddr, String> {
    let wanted = |ip: &IpAddr| {
        let ours = args.bind.map_or_else(|| args.addr.iter().map(Cidr::addr).collect(), |ip| vec![ip]);
        let family = if args.v4 { ip.is_ipv4() } else { !args.v6 || ip.is_ipv6() };
        family && ours.iter().any(|our| our.is_ipv4() == ip.is_ipv4())
    };
    // The host's resolver: this stack has none.
    let found = (host, args.port).to_socket_addrs().map_err(|e| format!("{host} cannot be resolved: {e}"))?;
    found.map(|addr| SocketAddr::new(addr.ip(), addr.port())).find(|addr| wanted(&addr.ip())).ok_or_else(|| {
        format!(
            "{host} has no address of a family that --addr, -4 and -6 allow; give this stack one of the same family"
        )
    })
}

fn server_config(args: &IperfArgs, settings: Settings) -> ServerConfig {
    let ip = args.bind.unwrap_or_else(|| any(!args.v4));
    let listen = SocketAddr::new(ip, args.port);
    ServerConfig { listen, v6only: args.v6, one_off: args.one_off, settings }
}

impl Host {
    fn run(&mut self) -> Result<(), String> {
        let mut idle_since = None;
        let mut interrupted = false;
        loop {
            let now = self.clock.now();
            let turn = self.shard.turn(now, BUDGET);
            let mut busy = turn.rx_skbs + turn.tx_skbs > 0 || turn.more;
            if self.is_settled()? && self.engine.step(&mut self.shard, now) {
                self.shard.flush();
                busy = true;
            }
            busy |= self.inbox.run(&mut self.shard);
            // The engine asks its sockets itself.
            while self.shard.next_ready().is_some() {}
            if interrupt::caught() && !interrupted {
                interrupted = true;
                self.engine.interrupt(&mut self.shard, now);
            }
            self.print()?;
            if let Some(outcome) = self.engine.outcome() {
                self.farewell();
                return outcome;
            }
            if busy {
                idle_since = None;
            } else {
                self.wait(turn.next, now, *idle_since.get_or_insert(now));
            }
        }
    }

    /// Has every address of `--addr` been found to be nobody else's? Nothing is begun before.
    fn is_settled(&mut self) -> Result<bool, String> {
        if !self.settled {
            let device = self.shard.device(self.ifindex).ok_or("the device is gone")?;
            let taken = |cidr: &&Cidr| device.dad_failed().iter().any(|ip| cidr.addr() == *ip);
            if let Some(cidr) = self.addresses.iter().find(taken) {
                return Err(format!("--addr {}: another station on the link has this address", cidr.addr()));
            }
            self.settled = !device.tentative().any(|on_trial| self.addresses.contains(&on_trial));
        }
        Ok(self.settled)
    }

    fn print(&mut self) -> Result<(), String> {
        let out = self.engine.take_out();
        if !out.is_empty() {
            crate::print(&out)?;
        }
        for message in self.engine.take_errors() {
            crate::usage::complain(&message);
        }
        Ok(())
    }

    /// Nothing moved at `now`, nor since `idle_since`.
    fn wait(&mut self, next: Option<Instant>, now: Instant, idle_since: Instant) {
        let due = self.engine.next_deadline().filter(|_| self.settled);
        let left = earlier(next, due).map_or(LONGEST_SLEEP, |at| at.since(now));
        let spins = match self.wait {
            WaitMode::Spin => true,
            WaitMode::Adaptive => now.since(idle_since) < Duration::from_micros(SPIN_US) || left < SHORTEST_SLEEP,
            WaitMode::Block => false,
        };
        if spins {
            // Whoever should bring the work may be waiting for this very core.
            std::thread::yield_now();
            return;
        }
        // A verb that found nothing to do has marked its socket, and a shard with marked sockets does not sleep.
        self.shard.flush();
        if self.shard.prepare_sleep() {
            let _ = self.parker.wait_watching(&mut self.watched, Some(left.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)));
        }
    }

    /// Turns until nothing is left to say, or it takes too long.
    fn farewell(&mut self) {
        let until = self.clock.now() + FAREWELL;
        while self.clock.now() < until {
            let turn = self.shard.turn(self.clock.now(), BUDGET);
            let (socks, half_open, _) = self.shard.tcp_counts();
            if socks + half_open == 0 && !turn.more {
                break;
            }
            if turn.rx_skbs + turn.tx_skbs == 0 && self.shard.prepare_sleep() {
                let _ = self.parker.wait_watching(&mut self.watched, Some(Duration::from_millis(5)));
            }
        }
    }
}
