//! What UDP sockets do differently: no handshake, a peer that may be changed, errors per datagram.
//!
//! The stack's UDP socket exists from `socket` on; `bind`, `connect` and `send` give it an address. Connecting again
//! changes the peer, AF_UNSPEC forgets it (Linux `udp_disconnect`). Options that reach the stack: SO_RCVBUF, SO_SNDBUF,
//! SO_BROADCAST, UDP_GRO, IP_TOS, IP_TTL, IP_MTU_DISCOVER and their IPv6 twins, IPV6_DONTFRAG. Limits: no multicast
//! membership, no corking.

use std::net::SocketAddr;

use linerate_base::{Errno, Key};
use linerate_stack::udp;

use crate::posix::Posix;
use crate::sock::Proto;

impl Posix {
    pub(crate) fn bind_udp(&mut self, file: Key, local: SocketAddr) -> Result<(), Errno> {
        // The stack tells the families of an AF_INET6 socket apart by how the address is written.
        let Some((Proto::Udp(id), bind, local)) =
            self.files.sock_at(file).map(|s| (s.proto, s.bind_opts(), s.show(local)))
        else {
            return Err(Errno::ENOTSOCK);
        };
        let opts = udp::BindOpts {
            reuseaddr: bind.reuseaddr,
            reuseport: bind.reuseport,
            v6only: bind.v6only,
            transparent: false,
        };
        self.shard.udp_bind_socket(id, local, opts).map(|_| ()).map_err(|e| e.errno())
    }

    pub(crate) fn connect_udp(&mut self, file: Key, peer: SocketAddr) -> Result<(), Errno> {
        let Some(Proto::Udp(id)) = self.files.sock_at(file).map(|s| s.proto) else { return Err(Errno::ENOTSOCK) };
        self.shard.udp_connect(id, peer).map_err(|e| e.errno())?;
        self.with_sock(file, |s| s.peer = Some(peer));
        Ok(())
    }

    pub(crate) fn disconnect_udp(&mut self, file: Key) -> Result<(), Errno> {
        let Some(Proto::Udp(id)) = self.files.sock_at(file).map(|s| s.proto) else { return Err(Errno::ENOTSOCK) };
        // Not being connected is no error here.
        self.shard.udp_disconnect(id);
        self.with_sock(file, |s| s.peer = None);
        Ok(())
    }
}
