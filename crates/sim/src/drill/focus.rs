//! Which connection a packet line of the script speaks of.
//!
//! The language names no connection: a packet belongs to the socket *under test*. A new `socket()` and a SYN that arrives
//! at a listener move that focus; explicit ports override it. This module keeps the script's sockets with their
//! [`Flow`]s and moves the focus. Invariants: a flow belongs to one socket; remote ports of scripted peers count up from
//! [`FIRST_REMOTE_PORT`], so two connections of a script never share a 4-tuple by accident. It does not see packets' bytes.

use std::net::{IpAddr, SocketAddr};

use super::ast::{ACK, Body, PacketSpec, SYN};
use super::backend::{Addr, Call};
use super::config::VariantConfig;
use super::matcher::Flow;

/// First port of the scripted peer: the first dynamic port (RFC 6335).
const FIRST_REMOTE_PORT: u16 = 49_152;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Fresh,
    Listener,
    /// Connected, connecting or bound: packets belong to its flow.
    Active,
    /// Made by a packet that arrived; not accepted yet if it has no descriptor.
    Child,
}

#[derive(Clone, Debug)]
struct Sock {
    fd: Option<i32>,
    role: Role,
    closed: bool,
    flow: Flow,
}

/// All sockets of a script; the focus is one of them.
#[derive(Debug)]
pub(crate) struct Focus {
    socks: Vec<Sock>,
    current: Option<usize>,
    next_port: u16,
}

fn unmapped(a: SocketAddr) -> SocketAddr {
    match a.ip() {
        IpAddr::V6(v6) => SocketAddr::new(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4), a.port()),
        IpAddr::V4(_) => a,
    }
}

impl Focus {
    pub(crate) fn new() -> Self {
        Self { socks: Vec::new(), current: None, next_port: FIRST_REMOTE_PORT }
    }

    fn add(&mut self, fd: Option<i32>, role: Role, flow: Flow) -> usize {
        self.socks.push(Sock { fd, role, closed: false, flow });
        self.socks.len() - 1
    }

    fn by_fd(&mut self, fd: i32) -> Option<usize> {
        self.socks.iter().rposition(|s| s.fd == Some(fd) && !s.closed)
    }

    fn fresh_remote(&mut self, cfg: &VariantConfig) -> SocketAddr {
        let port = self.next_port;
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_REMOTE_PORT);
        SocketAddr::new(cfg.remote_ip, port)
    }

    /// A call is about to be made on script descriptor `fd`.
    pub(crate) fn before_call(&mut self, fd: Option<i32>, call: &Call, cfg: &VariantConfig) {
        let Some(at) = fd.and_then(|fd| self.by_fd(fd)) else { return };
        match call {
            Call::Bind { addr: Addr::Inet(a), .. } => {
                let a = unmapped(*a);
                let ip = if a.ip().is_unspecified() { cfg.local_ip } else { a.ip() };
                self.socks[at].flow.local = (a.port() != 0).then(|| SocketAddr::new(ip, a.port()));
            }
            Call::Connect { addr: Addr::Inet(a), .. } => {
                let bound = self.socks[at].flow.local;
                // A connect on any other socket changes nothing: it only reports how the first went, or fails.
                if self.socks[at].role == Role::Fresh {
                    self.socks[at].flow = Flow { local: bound, remote: Some(unmapped(*a)), ..Flow::default() };
                    self.socks[at].role = Role::Active;
                }
                self.current = Some(at);
            }
            Call::Connect { addr: Addr::Unspec, .. } => self.socks[at].role = Role::Fresh,
            Call::SendTo { addr: Addr::Inet(a), .. } | Call::SendMsg { addr: Addr::Inet(a), .. } => {
                self.socks[at].flow.remote.get_or_insert(unmapped(*a));
            }
            Call::Close { .. } => self.socks[at].closed = true,
            _ => {}
        }
    }

    /// A call succeeded. `new_fd` is the script's name for the descriptor it made.
    pub(crate) fn after_call(&mut self, fd: Option<i32>, call: &Call, new_fd: Option<i32>) {
        match call {
            Call::Socket { .. } => self.current = Some(self.add(new_fd, Role::Fresh, Flow::default())),
            Call::Listen { .. } => {
                if let Some(at) = fd.and_then(|fd| self.by_fd(fd)) {
                    self.socks[at].role = Role::Listener;
                    self.current = Some(at);
                }
            }
            Call::Accept { .. } => {
                if let Some(child) = self.socks.iter_mut().find(|s| s.role == Role::Child && s.fd.is_none()) {
                    child.fd = new_fd;
                }
            }
            _ => {}
        }
    }

    /// Address of the peer whose connection was accepted as `fd`.
    pub(crate) fn peer_of(&self, fd: i32) -> Option<SocketAddr> {
        self.socks.iter().rfind(|s| s.fd == Some(fd)).and_then(|s| s.flow.remote)
    }

    fn listener(&self) -> Option<usize> {
        self.socks.iter().rposition(|s| s.role == Role::Listener && !s.closed)
    }

    /// The flow of a packet that the script injects.
    pub(crate) fn for_inbound(&mut self, spec: &PacketSpec, cfg: &VariantConfig) -> &mut Flow {
        let (ports, opening) = match &spec.body {
            Body::Tcp(t) => (t.ports, t.flags.bits & (SYN | ACK) == SYN),
            Body::Udp { ports, .. } => (*ports, false),
            Body::Icmp(_) => (None, false),
        };
        let at = match ports {
            Some((remote, local)) => self.with_ports(local, remote, cfg),
            None => self.without_ports(opening, cfg),
        };
        self.current = Some(at);
        let missing = self.socks[at].flow.remote.is_none().then(|| self.fresh_remote(cfg));
        let flow = &mut self.socks[at].flow;
        flow.remote = flow.remote.or(missing);
        flow.local.get_or_insert(SocketAddr::new(cfg.local_ip, cfg.bind_port));
        flow
    }

    fn with_ports(&mut self, local: u16, remote: u16, cfg: &VariantConfig) -> usize {
        let same = |s: &Sock| {
            s.flow.script_ports == Some((local, remote))
                || (s.role != Role::Listener
                    && s.flow.local.map(|a| a.port()) == Some(local)
                    && s.flow.remote.map(|a| a.port()) == Some(remote))
        };
        if let Some(at) = self.socks.iter().rposition(same) {
            return at;
        }
        let flow = Flow {
            local: Some(SocketAddr::new(cfg.local_ip, local)),
            remote: Some(SocketAddr::new(cfg.remote_ip, remote)),
            script_ports: Some((local, remote)),
            ..Flow::default()
        };
        self.add(None, Role::Child, flow)
    }

    fn without_ports(&mut self, opening: bool, cfg: &VariantConfig) -> usize {
        let at = match self.current {
            Some(at) => match self.socks[at].role {
                Role::Listener => None,
                // A closed child's next SYN opens a new connection, if somebody listens.
                Role::Child if opening && self.socks[at].closed && self.listener().is_some() => None,
                _ => Some(at),
            },
            None => None,
        };
        if let Some(at) = at {
            return at;
        }
        let own = self.listener().and_then(|l| self.socks[l].flow.local);
        let flow = Flow {
            local: Some(own.unwrap_or(SocketAddr::new(cfg.local_ip, cfg.bind_port))),
            remote: Some(self.fresh_remote(cfg)),
            ..Flow::default()
        };
        self.add(None, Role::Child, flow)
    }

    /// The flow of a packet that the script expects.
    pub(crate) fn for_outbound(&mut self, spec: &PacketSpec) -> Result<&mut Flow, String> {
        let ports = match &spec.body {
            Body::Tcp(t) => t.ports,
            Body::Udp { ports, .. } => *ports,
            Body::Icmp(_) => None,
        };
        let explicit = ports.and_then(|p| self.socks.iter().rposition(|s| s.flow.script_ports == Some(p)));
        match explicit.or(self.current) {
            Some(at) => Ok(&mut self.socks[at].flow),
            None => Err("no socket is under test yet".into()),
        }
    }
}
