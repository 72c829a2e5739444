//! Binding and connecting: addresses, ports and the three tables.
//!
//! A socket with a port is in `ports` and `bound`; a connected one is in `conns` too and is then skipped in `bound`, since
//! it takes packets of its peer alone. Conflicts are Linux's: two sockets may share a port when their addresses differ and
//! neither is a wildcard that covers the other, or when both set `reuseaddr`, or both `reuseport`. Ephemeral ports are
//! searched from a random start (RFC 6056, algorithm 1), every port of the range at most once.

use core::net::{IpAddr, SocketAddr};

use linerate_base::Key;
use linerate_wire::FlowKey;
use linerate_wire::ip::proto;

use super::{UdpConnectError, UdpLayer, UdpSock, bound_hash, canonical, conn_hash, port_hash, unspecified};
use crate::core_state::Core;
use crate::errors::BindError;
use crate::link::{AddrType, LOOPBACK};
use crate::route::RouteError;
use crate::sock::SockId;

/// How a socket shares its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BindOpts {
    /// SO_REUSEADDR.
    pub reuseaddr: bool,
    /// SO_REUSEPORT: the flow's hash chooses among the sockets of one address.
    pub reuseport: bool,
    /// IPV6_V6ONLY: no IPv4 on an unspecified IPv6 address.
    pub v6only: bool,
    /// IP_TRANSPARENT: any address, as any-ip devices deliver.
    pub transparent: bool,
}

/// Do two local addresses take packets of a common destination?
fn overlap(a: IpAddr, a_v6only: bool, b: IpAddr, b_v6only: bool) -> bool {
    let covers = |any: IpAddr, v6only: bool, other: IpAddr| {
        any.is_unspecified() && (any.is_ipv4() == other.is_ipv4() || (any.is_ipv6() && !v6only))
    };
    a == b || covers(a, a_v6only, b) || covers(b, b_v6only, a)
}

impl UdpLayer {
    /// Binds an unbound socket; port 0 chooses one. Returns the address with its port.
    ///
    /// # Errors
    /// See [`BindError`]; `AddrInUse` also when no ephemeral port is free.
    pub fn bind(
        &mut self,
        core: &mut Core,
        id: SockId,
        addr: SocketAddr,
        opts: BindOpts,
    ) -> Result<SocketAddr, BindError> {
        let key = self.key(id).ok_or(BindError::BadSocket)?;
        let sock = self.socks.get(key).ok_or(BindError::BadSocket)?;
        if sock.local.port() != 0 {
            return Err(BindError::Bound);
        }
        let v6 = sock.v6;
        let mapped = addr.is_ipv6() && canonical(addr).is_ipv4();
        if addr.is_ipv6() != v6 || (mapped && opts.v6only) {
            return Err(BindError::Family);
        }
        let addr = canonical(addr);
        let ours = match core.links.addr_type(addr.ip(), LOOPBACK) {
            AddrType::Other => addr.ip().is_unspecified() || addr.ip().is_multicast() || opts.transparent,
            _ => true,
        };
        if !ours {
            return Err(BindError::AddrNotAvailable);
        }
        let is_home = |port| core.links.siblings.as_ref().is_none_or(|s| s.is_home_of_udp(port));
        if addr.port() != 0 && !is_home(addr.port()) {
            // Its datagrams would all go to another shard.
            return Err(BindError::AddrNotAvailable);
        }
        if addr.port() != 0 && self.conflicts(core, key, addr, opts) {
            return Err(BindError::AddrInUse);
        }
        let port = match addr.port() {
            0 => self.pick_port(core, key, addr.ip(), opts).ok_or(BindError::AddrInUse)?,
            port => port,
        };
        let addr = SocketAddr::new(addr.ip(), port);
        let order = self.next_order;
        self.next_order += 1;
        let sock = self.socks.get_mut(key).ok_or(BindError::BadSocket)?;
        (sock.local, sock.bind, sock.order) = (addr, opts, order);
        self.hash(core, key);
        Ok(addr)
    }

    /// Chooses a port for a socket that has none.
    pub(super) fn autobind(&mut self, core: &mut Core, id: SockId) -> bool {
        match self.sock(id) {
            Some(s) if s.local.port() != 0 => true,
            Some(s) => {
                let (addr, opts) = (SocketAddr::new(unspecified(s.v6), 0), s.bind);
                self.bind(core, id, addr, opts).is_ok()
            }
            None => false,
        }
    }

    /// Does another socket hold `addr` in a way that `opts` does not allow?
    fn conflicts(&self, core: &Core, me: Key, addr: SocketAddr, opts: BindOpts) -> bool {
        let clash = |s: &UdpSock| {
            let shared = (opts.reuseaddr && s.bind.reuseaddr) || (opts.reuseport && s.bind.reuseport);
            s.local.port() == addr.port() && !shared && overlap(s.local.ip(), s.bind.v6only, addr.ip(), opts.v6only)
        };
        let hash = port_hash(&core.hash_key, addr.port());
        self.ports.find(hash, |i| i != me.index && self.socks.get_by_index(i).is_some_and(clash)).is_some()
    }

    fn pick_port(&self, core: &mut Core, me: Key, addr: IpAddr, opts: BindOpts) -> Option<u16> {
        let (low, high) = core.cfg.local_ports;
        let count = u32::from(high.checked_sub(low)?) + 1;
        let start = core.rng.below(u64::from(count)) as u32;
        // Sharing is for ports that somebody named.
        let alone = BindOpts { reuseaddr: false, reuseport: false, ..opts };
        let is_home = |port: &u16| core.links.siblings.as_ref().is_none_or(|s| s.is_home_of_udp(*port));
        (0..count)
            .map(|i| low + ((start + i) % count) as u16)
            .filter(is_home)
            .find(|&port| !self.conflicts(core, me, SocketAddr::new(addr, port), alone))
    }

    /// Enters a socket into the tables that its addresses call for.
    fn hash(&mut self, core: &Core, key: Key) {
        let Some(s) = self.socks.get(key) else { return };
        let (k, local) = (&core.hash_key, s.local);
        if let Some(peer) = s.peer {
            self.conns.insert(conn_hash(k, &FlowKey::new(local, peer, proto::UDP)), key.index);
        }
        self.bound.insert(bound_hash(k, local.ip(), local.port()), key.index);
        self.ports.insert(port_hash(k, local.port()), key.index);
    }

    /// Takes a socket out of all tables.
    pub(super) fn unhash(&mut self, core: &Core, key: Key) {
        let Some(s) = self.socks.get(key) else { return };
        let (k, local, peer) = (&core.hash_key, s.local, s.peer);
        if local.port() == 0 {
            return;
        }
        if let Some(peer) = peer {
            self.conns.remove(conn_hash(k, &FlowKey::new(local, peer, proto::UDP)), key.index);
        }
        let was_bound = self.bound.remove(bound_hash(k, local.ip(), local.port()), key.index);
        let had_port = self.ports.remove(port_hash(k, local.port()), key.index);
        debug_assert!(was_bound && had_port, "a bound socket stands in both tables");
    }

    /// Fixes the peer: datagrams of others are not received, `send` needs no address, ICMP errors are reported. Connecting
    /// again changes the peer.
    ///
    /// # Errors
    /// See [`UdpConnectError`].
    pub fn connect(&mut self, core: &mut Core, id: SockId, peer: SocketAddr) -> Result<(), UdpConnectError> {
        let peer = canonical(peer);
        let sock = self.sock(id).ok_or(UdpConnectError::BadSocket)?;
        let only_v6 = sock.bind.v6only || (!sock.local.ip().is_unspecified() && sock.local.is_ipv6());
        if (peer.is_ipv6() && !sock.v6) || (peer.is_ipv4() && sock.v6 && only_v6) {
            return Err(UdpConnectError::Family);
        }
        let group = core.links.addr_type(peer.ip(), LOOPBACK) == AddrType::Broadcast;
        if group && !sock.opts.broadcast {
            return Err(UdpConnectError::Broadcast);
        }
        let fixed = !sock.local.ip().is_unspecified() && !sock.local_by_connect;
        let src = fixed.then_some(sock.local.ip());
        let route = core.links.route(peer.ip(), src, None, core.now).map_err(|e| match e {
            RouteError::NoRoute => UdpConnectError::NoRoute,
            RouteError::LinkDown => UdpConnectError::LinkDown,
            RouteError::NoSource => UdpConnectError::NoSource,
            RouteError::Family => UdpConnectError::Family,
        })?;
        if !self.autobind(core, id) {
            return Err(UdpConnectError::NoPort);
        }
        let key = self.key(id).ok_or(UdpConnectError::BadSocket)?;
        self.unhash(core, key);
        if let Some(s) = self.socks.get_mut(key) {
            if !fixed {
                s.local.set_ip(route.src);
                s.local_by_connect = true;
            }
            s.peer = Some(peer);
            s.route = None;
            s.error = None;
        }
        self.hash(core, key);
        Ok(())
    }

    /// Forgets the peer (connect with AF_UNSPEC). False when the id names no connected socket.
    pub fn disconnect(&mut self, core: &mut Core, id: SockId) -> bool {
        let Some(key) = self.key(id) else { return false };
        if self.socks.get(key).is_none_or(|s| s.peer.is_none()) {
            return false;
        }
        self.unhash(core, key);
        if let Some(s) = self.socks.get_mut(key) {
            s.peer = None;
            if core::mem::take(&mut s.local_by_connect) {
                s.local.set_ip(unspecified(s.v6));
            }
        }
        self.hash(core, key);
        true
    }
}
