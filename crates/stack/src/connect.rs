//! Bind and active open: addresses, ports, and what stands in their way.
//!
//! A connection needs a local address (the caller's, or the route's source), a local port (the caller's, or RFC 6056's
//! choice that leaves ports alone which somebody bound, SYSTEMS B43/B45) and a five-tuple that nobody has. A tuple in
//! TIME-WAIT may be taken over when timestamps make it safe (`tcp_tw_reuse`); the new connection then begins behind the
//! old one's numbers and inherits its last timestamp. Ports given out by `connect` are shared among destinations; those
//! taken by `bind` are not. Without privileged ports: every port above 0 may be bound.

use alloc::boxed::Box;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linerate_base::{Instant, Key};
use linerate_tcp::{Conn, Isn, Opts, SockOpts, State};
use linerate_wire::flow::{FlowKey, from_mapped, to_mapped};

use crate::core_state::Core;
use crate::demux::{Entry, Owner, Scope};
use crate::errors::{BindError, ConnectError};
use crate::route::{RouteError, RouteInfo};
use crate::tcp::{
    BindOpts, Body, Family, PROTO_TCP, Sock, TcpLayer, Unbound, bind_flags, flag, hash_of, note_dirty, owner_of, tcp_cx,
};

/// What a tuple in TIME-WAIT leaves to the connection that takes its place.
struct Heritage {
    tw: u32,
    isn: Isn,
    ts_recent: u32,
    stamp_s: u32,
}

/// Where a connection shall go, and with which numbers.
struct Plan {
    route: RouteInfo,
    flow: FlowKey,
    /// Keyed hash of `flow`.
    hash: u64,
    /// That of its local end among the bindings.
    bind_hash: u64,
    heritage: Option<Heritage>,
}

/// What stands at a five-tuple.
enum Tuple {
    Free,
    Reusable(Heritage),
    Taken,
}

/// An IPv4 address given to an IPv6 socket as v4-mapped, as the tables know it.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(from_mapped(to_mapped(addr.ip())), addr.port())
}

/// May a socket of `family` use `addr`? `mapped`: the address was written as v4-mapped IPv6.
fn family_fits(family: Family, addr: SocketAddr, v6only: bool) -> bool {
    match (family, addr) {
        (Family::V4, SocketAddr::V4(_)) => true,
        (Family::V4, SocketAddr::V6(_)) => false,
        (Family::V6, SocketAddr::V6(a)) => !(v6only && a.ip().to_ipv4_mapped().is_some()),
        // Callers of this library may hand a dual-stack socket a plain IPv4 address.
        (Family::V6, SocketAddr::V4(_)) => !v6only,
    }
}

/// The bits that remember the family of a socket that has become a connection.
fn family_flags(family: Family, v6only: bool) -> u16 {
    let only = if v6only { flag::V6ONLY } else { 0 };
    if family == Family::V6 { flag::V6 | only } else { only }
}

impl TcpLayer {
    fn unbound(&mut self, key: Key) -> Option<&mut Unbound> {
        match &mut self.socks.get_mut(key)?.body {
            Body::Unbound(u) => Some(u),
            _ => None,
        }
    }

    /// Binds an unbound socket; port 0 picks one, or stands for all of them ([`BindOpts::any_port`]).
    pub(crate) fn bind(
        &mut self,
        core: &mut Core,
        key: Key,
        addr: SocketAddr,
        opts: BindOpts,
    ) -> Result<(), BindError> {
        let sock = self.socks.get(key).ok_or(BindError::BadSocket)?;
        let Body::Unbound(u) = &sock.body else { return Err(BindError::Bound) };
        if sock.has(flag::BOUND) {
            return Err(BindError::Bound);
        }
        if !family_fits(u.family, addr, opts.v6only) {
            return Err(BindError::Family);
        }
        let mut addr = canonical(addr);
        let ip = addr.ip();
        if !ip.is_unspecified() && !core.links.is_local(ip) && !core.links.devices().any(|d| d.any_ip) {
            return Err(BindError::AddrNotAvailable);
        }
        let (scope, owner) = (Scope::of(ip, opts.v6only), owner_of(bind_flags(opts), false));
        if opts.any_port && addr.port() != 0 {
            return Err(BindError::AddrNotAvailable);
        }
        if addr.port() == 0 && !opts.any_port {
            addr.set_port(self.pick_bind_port(core, scope, owner).ok_or(BindError::AddrInUse)?);
        } else if self.binds.conflicts(addr.port(), scope, owner) {
            return Err(BindError::AddrInUse);
        }
        self.binds.add(addr.port(), scope, owner);
        if let Some(sock) = self.socks.get_mut(key) {
            sock.set(flag::BOUND | bind_flags(opts));
        }
        if let Some(u) = self.unbound(key) {
            u.local = Some(addr);
            u.bind = opts;
        }
        Ok(())
    }

    /// A port for `bind`: odd ones first, since `connect` prefers even ones (Linux), from a random start.
    fn pick_bind_port(&self, core: &mut Core, scope: Scope, owner: Owner) -> Option<u16> {
        let (low, high) = core.cfg.local_ports;
        let count = u32::from(high.saturating_sub(low)) + 1;
        let start = core.rng.below(u64::from(count)) as u32;
        let walk = (0..count).map(|i| low + ((start + i) % count) as u16);
        let fits = |port: &u16| *port != 0 && !self.binds.conflicts(*port, scope, owner);
        let odd = |port: &u16| (port ^ low) & 1 == 1;
        walk.clone().filter(odd).find(fits).or_else(|| walk.clone().find(fits))
    }

    /// Opens a connection from an unbound (or bound) socket; the SYN leaves with the next turn.
    pub(crate) fn connect(&mut self, core: &mut Core, key: Key, remote: SocketAddr) -> Result<(), ConnectError> {
        if self.socks.get(key).is_some_and(|s| s.has(flag::OVER)) {
            self.make_unbound(core, key);
        }
        let sock = self.socks.get(key).ok_or(ConnectError::BadSocket)?;
        let u = match &sock.body {
            Body::Unbound(u) => u,
            Body::Listen(_) => return Err(ConnectError::Listening),
            Body::Conn(c) if c.state() == State::SynSent => return Err(ConnectError::InProgress),
            Body::Conn(_) => return Err(ConnectError::Connected),
        };
        if !family_fits(u.family, remote, u.bind.v6only) {
            return Err(ConnectError::Family);
        }
        let (local, opts, family) = (u.local, u.opts.clone(), family_flags(u.family, u.bind.v6only));
        let plan = self.plan(core, local, remote)?;
        // The binding moves from what was asked for (perhaps a wildcard) to the address that is used.
        self.unbind(key.index);
        let Some(sock) = self.socks.get_mut(key) else { return Err(ConnectError::BadSocket) };
        sock.clear(flag::OVER | flag::V6 | flag::V6ONLY);
        let flags = sock.flags | family;
        let new = self.open(core, plan, opts, flags);
        let Some(sock) = self.socks.get_mut(key) else { return Err(ConnectError::BadSocket) };
        *sock = Sock { remote: sock.remote, pending: sock.pending, ..new };
        self.enlist(key.index);
        Ok(())
    }

    /// A new socket that connects from `local`, whose port is open, or from wherever the route says.
    ///
    /// The port is taken only for this pair of ends (Linux's IP_BIND_ADDRESS_NO_PORT).
    pub(crate) fn connect_new(
        &mut self,
        core: &mut Core,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        opts: &SockOpts,
    ) -> Result<Key, ConnectError> {
        debug_assert!(local.is_none_or(|l| l.port() == 0));
        let local = local.map(canonical);
        let family = if remote.is_ipv4() { Family::V4 } else { Family::V6 };
        if let Some(local) = local {
            let ip = local.ip();
            if !ip.is_unspecified() && !core.links.is_local(ip) && !core.links.devices().any(|d| d.any_ip) {
                return Err(ConnectError::AddrNotAvailable);
            }
            if !family_fits(family, local, false) {
                return Err(ConnectError::Family);
            }
        }
        let plan = self.plan(core, local, remote)?;
        let opts = self.share(opts);
        let sock = self.open(core, plan, opts, family_flags(family, false));
        let key = self.socks.insert(sock);
        self.enlist(key.index);
        Ok(key)
    }

    /// Route, port and five-tuple for a connection from `local` to `remote`.
    fn plan(&mut self, core: &mut Core, local: Option<SocketAddr>, remote: SocketAddr) -> Result<Plan, ConnectError> {
        let remote = peer_of(remote)?;
        let local_ip = local.map(|l| l.ip()).filter(|ip| !ip.is_unspecified());
        if local_ip.is_some_and(|ip| ip.is_ipv4() != remote.is_ipv4()) {
            return Err(ConnectError::Family);
        }
        let route = core.links.route(remote.ip(), local_ip, None, core.now).map_err(route_error)?;
        self.choose_flow(core, route, local.map_or(0, |l| l.port()), remote)
    }

    /// Local port and five-tuple for a connection along `route` to `remote`.
    fn choose_flow(
        &mut self,
        core: &mut Core,
        route: RouteInfo,
        bound_port: u16,
        remote: SocketAddr,
    ) -> Result<Plan, ConnectError> {
        let src = route.src;
        let flow = |port| FlowKey::new(SocketAddr::new(src, port), remote, PROTO_TCP);
        if bound_port != 0 {
            if core.links.siblings.as_ref().is_some_and(|s| !s.is_home_of_tcp(bound_port, remote)) {
                // Its segments would all go to another shard.
                return Err(ConnectError::AddrNotAvailable);
            }
            let flow = flow(bound_port);
            let hash = hash_of(&core.hash_key, &flow);
            let bind_hash = self.binds.prepare(bound_port, src);
            let heritage = match self.tuple(core, &flow, hash) {
                Tuple::Free => None,
                Tuple::Reusable(h) => Some(h),
                Tuple::Taken => return Err(ConnectError::AddrNotAvailable),
            };
            return Ok(Plan { route, flow, hash, bind_hash, heritage });
        }
        let ends = flow(0);
        let hash = match ends.as_v4_words() {
            Some(words) => core.hash_key.sip24_words(&words),
            None => core.hash_key.sip24_words(&ends.as_words()),
        };
        let mut picker = self.ports.take();
        let mut rng = core.rng.clone();
        let mut found = None;
        let port = picker.as_mut().and_then(|p| {
            p.next(hash, &mut rng, |port| {
                if port == 0 || self.binds.explicitly_held(port) {
                    return false;
                }
                if core.links.siblings.as_ref().is_some_and(|s| !s.is_home_of_tcp(port, remote)) {
                    return false;
                }
                let flow = flow(port);
                let hash = hash_of(&core.hash_key, &flow);
                // Most often the first port is free: its binding is on its way while the table is asked.
                let bind_hash = self.binds.prepare(port, src);
                let heritage = match self.tuple(core, &flow, hash) {
                    Tuple::Free => None,
                    Tuple::Reusable(h) => Some(h),
                    Tuple::Taken => return false,
                };
                found = Some(Plan { route, flow, hash, bind_hash, heritage });
                true
            })
        });
        self.ports = picker;
        core.rng = rng;
        debug_assert_eq!(port.is_some(), found.is_some());
        found.ok_or(ConnectError::AddrNotAvailable)
    }

    fn tuple(&mut self, core: &mut Core, flow: &FlowKey, hash: u64) -> Tuple {
        match self.lookup(hash, flow) {
            None => Tuple::Free,
            Some(Entry::Tw(tw)) => {
                let cx = tcp_cx(core, &mut self.challenge);
                let reuse = self.tws.get_by_index(tw).and_then(|t| t.sock.reuse_for_connect(&cx));
                match reuse {
                    Some((isn, ts_recent, stamp_s)) => Tuple::Reusable(Heritage { tw, isn, ts_recent, stamp_s }),
                    None => Tuple::Taken,
                }
            }
            Some(_) => Tuple::Taken,
        }
    }

    /// A connection in SYN-SENT, bound; `flags` are those of the socket that it was.
    fn open(&mut self, core: &mut Core, plan: Plan, opts: Opts, flags: u16) -> Sock {
        let Plan { route, flow, hash, bind_hash, heritage } = plan;
        let isn = heritage.as_ref().map_or_else(|| self.isn.isn(&flow, core.now), |h| h.isn);
        if let Some(h) = &heritage {
            self.remove_tw(core, h.tw);
        }
        let flags = flags | flag::BOUND | flag::IN_TABLE;
        let bind = self.binds.add_at(bind_hash, flow.local_port(), flow.local_addr(), owner_of(flags, false));
        let mut conn = Conn::connect(&mut tcp_cx(core, &mut self.challenge), flow, route.path, opts, isn);
        if let Some(h) = heritage {
            conn.inherit_timestamp(h.ts_recent, h.stamp_s);
        }
        let (oif, route_generation) = (route.ifindex, route.generation);
        // None of its packets was seen yet.
        let accepted = route_generation.wrapping_sub(1);
        let mut sock = Sock { hash, bind, flags, oif, route_generation, accepted, ..Sock::new(Body::Conn(conn)) };
        sock.note_min_ttl();
        sock
    }

    /// Enters a new connection into the table of flows; its SYN leaves with the next pass.
    fn enlist(&mut self, index: u32) {
        let Some(sock) = self.socks.get_by_index_mut(index) else { return };
        self.table.insert(sock.hash, Entry::Conn(index).pack());
        note_dirty(&mut self.dirty, sock, index);
    }

    /// A connection that is over (or was aborted) becomes an unbound socket with the same options.
    pub(crate) fn make_unbound(&mut self, core: &mut Core, key: Key) {
        self.detach(key.index);
        self.timers.cancel(key.index);
        let Some(sock) = self.socks.get_mut(key) else { return };
        sock.watched = Instant::FAR_FUTURE;
        let Body::Conn(conn) = &mut sock.body else { return };
        conn.purge(&mut tcp_cx(core, &mut self.challenge));
        let opts = conn.shared_opts().clone();
        let family = if sock.has(flag::V6) { Family::V6 } else { Family::V4 };
        // A binding's sharing ends with it; the families that the socket speaks stay.
        let bind = BindOpts { v6only: sock.has(flag::V6ONLY), ..BindOpts::default() };
        sock.body = Body::Unbound(Box::new(Unbound { family, local: None, opts, bind, error: None }));
        sock.clear(flag::OVER | flag::REUSE | flag::REUSEPORT | flag::EXPLICIT);
    }

    /// A new unbound socket.
    pub(crate) fn new_socket(&mut self, u: Unbound) -> Key {
        self.socks.insert(Sock::new(Body::Unbound(Box::new(u))))
    }
}

/// The peer that is meant: the unspecified address means this host, as in Linux.
fn peer_of(remote: SocketAddr) -> Result<SocketAddr, ConnectError> {
    let remote = canonical(remote);
    let ip = match remote.ip() {
        IpAddr::V4(a) if a.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(a) if a.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V4(a) if a.is_broadcast() => return Err(ConnectError::NetUnreachable),
        ip if ip.is_multicast() => return Err(ConnectError::NetUnreachable),
        ip => ip,
    };
    if remote.port() == 0 {
        return Err(ConnectError::BadPeer);
    }
    Ok(SocketAddr::new(ip, remote.port()))
}

fn route_error(e: RouteError) -> ConnectError {
    match e {
        RouteError::NoSource => ConnectError::AddrNotAvailable,
        RouteError::Family => ConnectError::Family,
        _ => ConnectError::NetUnreachable,
    }
}
