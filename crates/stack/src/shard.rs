//! One core's whole stack and its turn.
//!
//! A [`Shard`] owns everything that it needs, so one thread at a time uses it without locks. [`Shard::turn`] is the only
//! door for packets and always does the same, in this order:
//!
//! ```text
//!   1 reclaim     pages and descriptors that came home, commands and dirty cells of remote handles
//!   2 completions TxQueue::poll_tx -> bytes per socket -> TCP small queues
//!   3 rx          napi: poll within the budget, merge -> ip_in -> tcp, udp, icmp
//!   4 timers      everything due at `now`
//!   5 output      poll_xmit of every dirty connection -> ip_out -> qdisc
//!   6 xmit, kick  qdisc -> device, one doorbell each
//! ```
//! Verbs of sockets between turns only mark the socket dirty; what they cause leaves in step 5 of the next turn, in
//! batches. A socket stands in the dirty list at most once. No step looks at sockets that nothing happened to.

use alloc::boxed::Box;

use linerate_base::{DropReason, Duration, Instant};
use linerate_netdev::{IfIndex, Qstats, RxQueue, TxDone, TxQueue};
use linerate_skb::SkbBatch;
use linerate_tcp::TcpConfig;
use linerate_wire::Cidr;

use crate::config::{DeviceConfig, StackConfig};
use crate::core_state::{Core, Mibs};
use crate::link::{AddrError, Device, Links};
use crate::mem::Pressure;
use crate::remote::Remotes;
use crate::route::{Route, RouteChangeError};
use crate::sock::{ReadyList, SockId, SockKind};
use crate::stages::{Stage, Stages};
use crate::tcp::{PROTO_TCP, TcpLayer};
use crate::udp::UdpLayer;
use crate::upcall::Upcall;
use crate::{frag, ip_in, ip_out, napi};

/// Time between two looks for memory that connections could do without.
const SHED_INTERVAL: Duration = Duration::from_millis(100);

/// What a turn did and when the next one is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// Skbs received from devices.
    pub rx_skbs: usize,
    /// Skbs handed to devices.
    pub tx_skbs: usize,
    /// The budget is spent or work is left: call again at once.
    pub more: bool,
    /// The earliest timer or device deadline; `None`: only a packet or a verb makes work.
    pub next: Option<Instant>,
}

/// The earlier of two deadlines.
#[inline]
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// One core's whole stack. See the module head.
pub struct Shard {
    pub(crate) core: Core,
    pub(crate) tcp: TcpLayer,
    pub(crate) udp: UdpLayer,
    pub(crate) ready: ReadyList,
    pub(crate) remotes: Remotes,
    stages: Stages,
    pub(crate) pressure: Pressure,
    /// Frames lost for want of memory when it was last looked, and when memory was last taken back for it.
    starved: (u64, Instant),
    /// Skbs of one poll on their way up; empty between turns.
    rx: SkbBatch,
    /// Completions on their way to the sockets; empty between turns.
    done: TxDone,
}

impl Shard {
    /// A shard at time zero with the loopback device 1 (`127.0.0.1/8`, `::1/128`) and nothing else.
    pub fn new(cfg: StackConfig) -> Self {
        let mut core = Core::new(cfg);
        let tcp = TcpLayer::new(&mut core);
        Self {
            core,
            tcp,
            udp: UdpLayer::new(),
            ready: ReadyList::default(),
            remotes: Remotes::default(),
            stages: Stages::default(),
            pressure: Pressure::default(),
            starved: (0, Instant::ZERO),
            rx: SkbBatch::new(),
            done: TxDone::new(),
        }
    }

    /// One turn at `now` (time never goes back: an earlier one counts as the last). At most `budget` skbs are received;
    /// what one turn received may go a little over it by what the last queue merged.
    pub fn turn(&mut self, now: Instant, budget: usize) -> Turn {
        self.stages.begin();
        self.begin(now);
        self.stages.end(Stage::Reclaim);
        let (rx_skbs, mut more) = self.receive(budget);
        self.shed_if_starved();
        self.watch_pressure();
        self.run_neighbours();
        if self.quiet_until() <= self.core.now {
            self.run_due();
        }
        self.stages.end(Stage::Timers);
        more |= self.output();
        self.stages.end(Stage::Output);
        let tx_skbs = ip_out::xmit_pending(&mut self.core, &mut self.done);
        self.completions();
        self.show_dropped();
        self.stages.end(Stage::Xmit);
        more |= !self.tcp.dirty.is_empty() || !self.udp.remote_dirty.is_empty() || self.core.links.work_pending();
        let quiet_until = self.quiet_until();
        let next = (quiet_until != Instant::FAR_FUTURE).then_some(quiet_until);
        Turn { rx_skbs, tx_skbs, more, next: earlier(self.core.links.next_deadline(), next) }
    }

    /// No timer of the stack's own is due before; those of links are theirs.
    #[inline]
    fn quiet_until(&mut self) -> Instant {
        let frags = self.core.frags.next_deadline().unwrap_or(Instant::FAR_FUTURE);
        self.tcp.quiet_until().min(frags)
    }

    /// Something may be due.
    fn run_due(&mut self) {
        self.tcp.run_timers(&mut self.core);
        if self.core.frags.next_deadline().is_some_and(|due| due <= self.core.now) {
            frag::expire(&mut self.core);
        }
    }

    /// Sends what the verbs since the last turn caused, at the time of that turn: for a caller that has just answered and
    /// does not want to receive first. Returns the skbs handed to devices.
    pub fn flush(&mut self) -> usize {
        self.output();
        let tx_skbs = ip_out::xmit_pending(&mut self.core, &mut self.done);
        self.completions();
        self.show_dropped();
        tx_skbs
    }

    /// Time, memory, remote commands, completions.
    #[inline]
    fn begin(&mut self, now: Instant) {
        self.core.now = self.core.now.max(now);
        self.tcp.observe(self.core.now);
        self.core.mem.tx_pool.reclaim();
        self.core.mem.skbs.reclaim();
        self.remote_begin();
        napi::reclaim(&mut self.core, &mut self.done);
        self.completions();
        napi::start_turn(&mut self.core);
    }

    /// Shows who watches drops what was dropped.
    #[inline]
    fn show_dropped(&mut self) {
        if self.core.mem.skbs.has_dropped() {
            self.core.show_dropped();
        }
    }

    /// Tells sockets what left the devices.
    #[inline]
    fn completions(&mut self) {
        if self.done.skbs() != 0 {
            self.complete();
        }
    }

    fn complete(&mut self) {
        for (token, bytes) in self.done.drain() {
            let id = SockId::from_u64(token.0);
            match id.kind() {
                SockKind::Tcp => self.tcp.on_tx_done(&mut self.core, id, bytes),
                SockKind::Udp => self.udp.on_tx_done(&mut self.ready, id, bytes),
            }
        }
    }

    /// Polls within the budget and hands everything up. Returns the skbs received, and whether there may be more.
    fn receive(&mut self, budget: usize) -> (usize, bool) {
        let (mut received, rest) = self.tcp.poll_quick(&mut self.core, &mut self.ready, budget);
        if !rest {
            return (received, false);
        }
        loop {
            received += self.tcp.poll_early(&mut self.core, &mut self.ready, budget - received);
            let poll = napi::poll(&mut self.core, budget - received, &mut self.rx);
            received += poll.rx_skbs;
            if self.core.links.tapped {
                self.core.taps.merged(self.core.now, self.rx.iter());
            }
            self.stages.end(Stage::RxPoll);
            self.tcp.look_ahead(&self.core.hash_key, &self.rx);
            while let Some(skb) = self.rx.pop_front() {
                match ip_in::rcv(&mut self.core, skb) {
                    Upcall::Tcp(meta, skb) => self.tcp.rcv(&mut self.core, &mut self.ready, &meta, skb),
                    Upcall::Udp(meta, skb) => self.udp.rcv(&mut self.core, &mut self.ready, meta, skb),
                    Upcall::Icmp(up) if up.key.proto() == PROTO_TCP => self.tcp.on_icmp(&mut self.core, &up),
                    Upcall::Icmp(up) => self.udp.on_icmp(&mut self.core, &mut self.ready, &up),
                    Upcall::Consumed => {}
                }
            }
            self.show_dropped();
            self.stages.end(Stage::Input);
            if !poll.more || received >= budget {
                return (received, poll.more);
            }
        }
    }

    /// Frames are lost for want of pages or descriptors: what connections hold out of order goes, all of it, because it may
    /// be what the missing frames have no room beside. Looks at every socket, hence only once in [`SHED_INTERVAL`].
    #[inline]
    fn shed_if_starved(&mut self) {
        let lost = self.core.mibs.drops.get(DropReason::NoMem);
        if lost != self.starved.0 && self.core.now >= self.starved.1 + SHED_INTERVAL {
            self.shed(lost);
        }
    }

    #[cold]
    fn shed(&mut self, lost: u64) {
        self.starved = (lost, self.core.now);
        self.core.mibs.tcp.memory_pressures += 1;
        self.tcp.shed(&mut self.core);
        frag::purge(&mut self.core, DropReason::IpFragMem);
    }

    /// The output pass, and once more for what remote handles brought meanwhile.
    #[inline]
    fn output(&mut self) -> bool {
        !self.is_clean() && self.output_pass()
    }

    /// The output pass would find nothing.
    #[inline]
    fn is_clean(&self) -> bool {
        self.tcp.dirty.is_empty() && self.tcp.remote_dirty.is_empty() && self.udp.remote_dirty.is_empty()
    }

    fn output_pass(&mut self) -> bool {
        self.tcp.output_small(&mut self.core, &mut self.ready);
        if self.is_clean() {
            return false;
        }
        let more = self.tcp.output(&mut self.core, &mut self.ready);
        if self.remote_end() && !more { self.tcp.output(&mut self.core, &mut self.ready) } else { more }
    }

    /// The time of the last turn.
    pub fn now(&self) -> Instant {
        self.core.now
    }
    /// Asks all devices and remote handles for a wake-up before the caller sleeps. `false`: work arrived meanwhile, turn
    /// again instead. The next turn takes it back.
    pub fn prepare_sleep(&mut self) -> bool {
        // Both are armed before either is believed.
        let devices = napi::arm(&mut self.core);
        let remotes = self.remotes.prepare_sleep();
        !devices && !remotes && self.tcp.dirty.is_empty() && self.udp.remote_dirty.is_empty()
    }
    /// Linux's counters.
    pub fn mibs(&self) -> &Mibs {
        &self.core.mibs
    }
    /// The configuration.
    pub fn config(&self) -> &StackConfig {
        &self.core.cfg
    }
    /// Swaps the TCP configuration; connections see it from their next segment on.
    pub fn set_tcp_config(&mut self, cfg: TcpConfig) {
        self.core.cfg.tcp = cfg;
    }
    /// Cycles by stage.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }
    /// Cycles by stage, to switch them on and off.
    pub fn stages_mut(&mut self) -> &mut Stages {
        &mut self.stages
    }
    /// Memory, links and randomness of the shard.
    pub fn core(&self) -> &Core {
        &self.core
    }
}

/// Devices, addresses and routes.
impl Shard {
    /// Adds a device without queues; it is down until [`Self::attach`].
    ///
    /// # Errors
    /// See [`AddrError`].
    pub fn add_device(&mut self, cfg: DeviceConfig) -> Result<IfIndex, AddrError> {
        self.core.links.add_device(cfg)
    }
    /// Gives a device its queue pair number `queue`.
    ///
    /// # Errors
    /// See [`AddrError`].
    pub fn attach(
        &mut self,
        ifindex: IfIndex,
        queue: u16,
        rx: Box<dyn RxQueue + Send>,
        tx: Box<dyn TxQueue + Send>,
    ) -> Result<(), AddrError> {
        self.core.links.attach(ifindex, queue, rx, tx)
    }
    /// Takes a device away; what waited in it is dropped.
    ///
    /// # Errors
    /// See [`AddrError`].
    pub fn del_device(&mut self, ifindex: IfIndex) -> Result<(), AddrError> {
        let gone = ip_out::del_device(&mut self.core, ifindex, &mut self.done);
        self.completions();
        gone
    }
    /// A device.
    pub fn device(&self, ifindex: IfIndex) -> Option<&Device> {
        self.core.links.device(ifindex)
    }
    /// A device, to change its settings.
    pub fn device_mut(&mut self, ifindex: IfIndex) -> Option<&mut Device> {
        self.core.links.device_mut(ifindex)
    }
    /// Devices, addresses and routes.
    pub fn links(&self) -> &Links {
        &self.core.links
    }
    /// Adds an address and its connected route. An IPv6 address of an Ethernet device is on trial first
    /// ([`Device::tentative`]) and ours a second or two later, if nobody else has it.
    ///
    /// # Errors
    /// See [`AddrError`].
    pub fn add_address(&mut self, ifindex: IfIndex, cidr: Cidr) -> Result<(), AddrError> {
        self.core.links.add_address(ifindex, cidr)
    }
    /// As [`Self::add_address`] without duplicate address detection (`IFA_F_NODAD`): usable at once.
    ///
    /// # Errors
    /// See [`AddrError`].
    pub fn add_address_nodad(&mut self, ifindex: IfIndex, cidr: Cidr) -> Result<(), AddrError> {
        self.core.links.install_address(ifindex, cidr, true)
    }
    /// Takes an address away.
    ///
    /// # Errors
    /// See [`AddrError`].
    pub fn del_address(&mut self, ifindex: IfIndex, cidr: Cidr) -> Result<(), AddrError> {
        self.core.links.del_address(ifindex, cidr)
    }
    /// Adds a route.
    ///
    /// # Errors
    /// See [`RouteChangeError`].
    pub fn add_route(&mut self, route: Route) -> Result<(), RouteChangeError> {
        self.core.links.add_route(route)
    }
    /// Removes a route.
    ///
    /// # Errors
    /// See [`RouteChangeError`].
    pub fn del_route(&mut self, dst: Cidr, ifindex: IfIndex) -> Result<Route, RouteChangeError> {
        self.core.links.del_route(dst, ifindex)
    }
    /// Counters of a device's queues.
    pub fn qstats(&self, ifindex: IfIndex) -> Option<Qstats> {
        self.core.links.qstats(ifindex)
    }
}
