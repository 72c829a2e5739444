//! The stack itself as a backend: [`Posix`] over a [`Shard`], a TUN-like device, a virtual clock.
//!
//! ```text
//!   syscall, inject ─▶ settle: turn the shard and carry sleeping calls on, until nothing moves at this instant
//!   advance(until)  ─▶ settle at each deadline of shard and calls on the way
//! ```
//! Invariants: between two calls of a backend nothing is left to do at the present instant; packets carry the time of the
//! turn that sent them; a sleeping call's completion carries the instant at which it could return. The clock begins at
//! [`ORIGIN`], since a machine's never reads zero either. Shell lines mean what they mean for this stack or are errors that
//! name themselves. Limits: one device, one blocked call is looked at by the runner at a time.

use std::collections::HashMap;

use linerate_base::Instant;
use linerate_netdev::IfIndex;
use linerate_posix as posix;
use linerate_posix::{Data, Posix, RecvKind, Span};
use linerate_skb::PoolConfig;
use linerate_stack::config::GroMode;
use linerate_stack::{DeviceConfig, Route, Shard, StackConfig};
use linerate_wire::Cidr;

use super::backend::{
    Addr, Backend, BlockToken, Buf, Call, CallState, Cmsg, Completion, EpollEvent, Outcome, Output, ShellOp,
};
use super::config::VariantConfig;
use super::host;
use super::tun::{SharedTun, lock, queues};

/// What the clock reads when a backend is made.
pub(super) const ORIGIN: Instant = Instant::from_secs(1_000);
/// Skbs received in one turn.
const BUDGET: usize = 4_096;
/// Turns at one instant: more means that the stack runs in circles.
const MAX_TURNS: usize = 100_000;

/// Linerate under a script.
pub struct PosixBackend {
    pub(super) posix: Posix,
    pub(super) tun: SharedTun,
    pub(super) ifindex: IfIndex,
    pub(super) gateway: std::net::IpAddr,
    now: Instant,
    /// When the shard wants to be turned next.
    next: Option<Instant>,
    /// Calls that returned while nobody asked.
    finished: HashMap<u64, Completion>,
}

impl PosixBackend {
    /// A stack for one variant: its device, address and default route.
    ///
    /// # Errors
    /// The variant's addresses do not fit together.
    pub fn new(cfg: &VariantConfig) -> Result<Self, String> {
        let mut stack = StackConfig::default();
        stack.seed = 1;
        let mut shard = Shard::new(stack);
        let mut device = DeviceConfig::new("tun0", cfg.mtu);
        device.gro = GroMode::Off;
        device.rx_pool = PoolConfig { page_shift: 16, max_pages: 4_096, cache_pages: 64 };
        let ifindex = shard.add_device(device).map_err(|e| e.to_string())?;
        let tun = SharedTun::default();
        let (rx, tx) = queues(&tun, cfg.mtu, cfg.mss);
        shard.attach(ifindex, 0, Box::new(rx), Box::new(tx)).map_err(|e| e.to_string())?;
        let own = Cidr::new(cfg.local_ip, cfg.prefix_len).ok_or("the prefix is longer than the address")?;
        shard.add_address(ifindex, own).map_err(|e| e.to_string())?;
        let any: std::net::IpAddr = if cfg.local_ip.is_ipv4() {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        } else {
            std::net::Ipv6Addr::UNSPECIFIED.into()
        };
        let default = Cidr::new(any, 0).ok_or("no default route")?;
        shard.add_route(Route::new(default, ifindex)).map_err(|e| e.to_string())?;
        let mut it = Self {
            posix: Posix::new(shard),
            tun,
            ifindex,
            gateway: cfg.gateway_ip,
            now: ORIGIN,
            next: None,
            finished: HashMap::new(),
        };
        it.settle();
        Ok(it)
    }

    /// Turns the shard and carries sleeping calls on until nothing moves at this instant.
    pub(super) fn settle(&mut self) {
        for _ in 0..MAX_TURNS {
            let turn = self.posix.shard_mut().turn(self.now, BUDGET);
            self.next = turn.next;
            let moved = self.carry_on();
            let idle = !turn.more && turn.rx_skbs == 0 && turn.tx_skbs == 0;
            if idle && !moved && self.next.is_none_or(|t| t > self.now) {
                return;
            }
        }
        panic!("the stack does not come to rest at {} us", self.now.as_micros());
    }

    /// Goes on with sleeping calls; true when one returned.
    fn carry_on(&mut self) -> bool {
        let mut any = false;
        for token in self.posix.sleeping().collect::<Vec<_>>() {
            if let Some(outcome) = self.posix.poll(self.now, token) {
                any = true;
                self.finished.insert(token.0, Completion { at: self.now, outcome: outcome_of(outcome) });
            }
        }
        any
    }

    /// Checks the invariants of the connections; for tests.
    pub fn posix(&self) -> &Posix {
        &self.posix
    }
}

impl Backend for PosixBackend {
    fn now(&self) -> Instant {
        self.now
    }
    fn next_timer(&self) -> Option<Instant> {
        [self.next, self.posix.next_deadline()].into_iter().flatten().min()
    }
    fn advance(&mut self, until: Instant) {
        while let Some(t) = self.next_timer().filter(|t| *t <= until) {
            self.now = self.now.max(t);
            let before = self.next_timer();
            self.settle();
            if self.next_timer() == before && before.is_some_and(|t| t <= self.now) {
                break;
            }
        }
        self.now = self.now.max(until);
        self.settle();
    }
    fn inject(&mut self, packet: &[u8]) {
        lock(&self.tun).inbound.push_back(packet.to_vec());
        self.settle();
    }
    fn next_output(&mut self) -> Option<(Instant, Vec<u8>)> {
        lock(&self.tun).outbound.pop_front()
    }
    fn syscall(&mut self, call: &Call) -> CallState {
        let state = self.posix.call(self.now, call_of(call));
        self.settle();
        match state {
            posix::CallState::Done(outcome) => CallState::Done(outcome_of(outcome)),
            // It may have returned in the same instant, once its first effects were out.
            posix::CallState::Blocked(token) => match self.finished.remove(&token.0) {
                Some(done) => CallState::Done(done.outcome),
                None => CallState::Blocked(BlockToken(token.0)),
            },
        }
    }
    fn poll_blocked(&mut self, token: BlockToken) -> Option<Completion> {
        self.finished.remove(&token.0)
    }
    fn shell(&mut self, op: &ShellOp) -> Result<(), String> {
        let done = host::shell(self, op);
        self.settle();
        done
    }
}

fn addr_of(a: Addr) -> posix::Addr {
    match a {
        Addr::Null => posix::Addr::Null,
        Addr::Unspec => posix::Addr::Unspec,
        Addr::Inet(a) => posix::Addr::Inet(a),
    }
}

fn span(b: &Buf) -> Span {
    Span { null: b.null, len: b.len }
}

fn data(b: &Buf) -> Data {
    if b.null { Data::Null(b.len) } else { Data::Zeros(b.len) }
}

fn cmsg_of(c: &Cmsg) -> posix::Cmsg {
    posix::Cmsg { level: c.level, kind: c.kind, data: c.data.clone() }
}

fn event_of(e: EpollEvent) -> posix::EpollEvent {
    posix::EpollEvent { events: e.events, data: e.data }
}

/// Calls that move data, in the terms of the posix crate.
fn data_call(call: &Call) -> Option<posix::Call> {
    let recv = |fd: i32, iov: Vec<Span>, flags: i32, kind| Some(posix::Call::Recv { fd, iov, flags, kind });
    let send = |fd: i32, iov: Vec<Data>, flags: i32, addr: Option<Addr>, control: &[Cmsg]| {
        let control = control.iter().map(cmsg_of).collect();
        Some(posix::Call::Send { fd, iov, flags, addr: addr.map(addr_of), control })
    };
    match call {
        Call::Read { fd, buf } => recv(*fd, vec![span(buf)], 0, RecvKind::Read),
        Call::Readv { fd, iov } => recv(*fd, iov.iter().map(span).collect(), 0, RecvKind::Read),
        Call::Recv { fd, buf, flags } | Call::RecvFrom { fd, buf, flags } => {
            recv(*fd, vec![span(buf)], *flags, RecvKind::Recv)
        }
        Call::RecvMsg { fd, iov, flags, control_len } => {
            recv(*fd, iov.iter().map(span).collect(), *flags, RecvKind::Msg { control_len: *control_len })
        }
        Call::Write { fd, buf } => send(*fd, vec![data(buf)], 0, None, &[]),
        Call::Writev { fd, iov } => send(*fd, iov.iter().map(data).collect(), 0, None, &[]),
        Call::Send { fd, buf, flags } => send(*fd, vec![data(buf)], *flags, None, &[]),
        Call::SendTo { fd, buf, flags, addr } => send(*fd, vec![data(buf)], *flags, Some(*addr), &[]),
        Call::SendMsg { fd, iov, flags, addr, control } => {
            send(*fd, iov.iter().map(data).collect(), *flags, Some(*addr), control)
        }
        _ => None,
    }
}

fn call_of(call: &Call) -> posix::Call {
    if let Some(call) = data_call(call) {
        return call;
    }
    match call.clone() {
        Call::Socket { domain, kind, protocol } => posix::Call::Socket { domain, kind, protocol },
        Call::Bind { fd, addr } => posix::Call::Bind { fd, addr: addr_of(addr) },
        Call::Listen { fd, backlog } => posix::Call::Listen { fd, backlog },
        Call::Accept { fd } => posix::Call::Accept { fd, flags: 0 },
        Call::Connect { fd, addr } => posix::Call::Connect { fd, addr: addr_of(addr) },
        Call::Fcntl { fd, cmd, arg } => posix::Call::Fcntl { fd, cmd, arg },
        Call::Ioctl { fd, request, value, null } => posix::Call::Ioctl { fd, request, value, null },
        Call::Close { fd } => posix::Call::Close { fd },
        Call::Shutdown { fd, how } => posix::Call::Shutdown { fd, how },
        Call::GetSockOpt { fd, level, name, null, len } => posix::Call::GetSockOpt { fd, level, name, null, len },
        Call::SetSockOpt { fd, level, name, value, len } => posix::Call::SetSockOpt { fd, level, name, value, len },
        Call::Poll { fds, timeout_ms } => {
            let fds = fds.iter().map(|p| posix::PollFd { fd: p.fd, events: p.events }).collect();
            posix::Call::Poll { fds, timeout_ms }
        }
        Call::EpollCreate { size } => posix::Call::EpollCreate { size },
        Call::EpollCtl { epfd, op, fd, event } => posix::Call::EpollCtl { epfd, op, fd, event: event.map(event_of) },
        Call::EpollWait { epfd, max_events, timeout_ms } => posix::Call::EpollWait { epfd, max_events, timeout_ms },
        // All others were data calls.
        _ => posix::Call::Pipe { flags: 0 },
    }
}

fn outcome_of(outcome: posix::Outcome) -> Outcome {
    match outcome {
        Err(errno) => Outcome::err(errno.number()),
        Ok(reply) => Outcome::with(reply.ret, output_of(reply.out)),
    }
}

fn output_of(out: posix::Out) -> Output {
    match out {
        posix::Out::None => Output::None,
        posix::Out::Addr(a) => Output::Addr(a),
        posix::Out::Bytes(b) => Output::Bytes(b),
        posix::Out::Int(n) => Output::Int(n),
        posix::Out::Revents(r) => Output::Revents(r),
        posix::Out::Events(e) => {
            Output::Events(e.into_iter().map(|e| EpollEvent { events: e.events, data: e.data }).collect())
        }
        posix::Out::Pipe(r, w) => Output::Pipe(r, w),
        posix::Out::Msg(m) => Output::Msg {
            flags: m.flags,
            addr: m.addr,
            control: m.control.into_iter().map(|c| Cmsg { level: c.level, kind: c.kind, data: c.data }).collect(),
        },
    }
}
