//! UDP sockets of a shard: the layer's verbs, lent the rest of the shard.
//!
//! [`UdpLayer`] does the work; here are only the doors, so that an owner of a shard needs no other type. Ids live in the
//! same space as those of TCP ([`Shard::close`], [`Shard::readiness`] and [`Shard::next_ready`] take both). Nothing
//! blocks. A datagram goes to the device's queue at once and leaves with the next turn.

use core::net::SocketAddr;

use crate::errors::BindError;
use crate::shard::Shard;
use crate::sock::SockId;
use crate::udp::{
    BindOpts as UdpBindOpts, RecvFlags, SendOpts, UdpConnectError, UdpLayer, UdpRecv, UdpRecvError, UdpSendError,
};

impl Shard {
    /// An unbound UDP socket.
    pub fn udp_socket(&mut self, v6: bool) -> SockId {
        self.udp.socket(&self.core, v6)
    }
    /// A socket bound to `local`; port 0 chooses one.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn udp_bind(&mut self, local: SocketAddr, opts: UdpBindOpts) -> Result<SockId, BindError> {
        let id = self.udp.socket(&self.core, local.is_ipv6());
        match self.udp.bind(&mut self.core, id, local, opts) {
            Ok(_) => Ok(id),
            Err(e) => {
                self.udp.close(&mut self.core, id);
                Err(e)
            }
        }
    }
    /// Binds an unbound socket; returns the address with its port.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn udp_bind_socket(
        &mut self,
        id: SockId,
        local: SocketAddr,
        opts: UdpBindOpts,
    ) -> Result<SocketAddr, BindError> {
        self.udp.bind(&mut self.core, id, local, opts)
    }
    /// Fixes the peer.
    ///
    /// # Errors
    /// See [`UdpConnectError`].
    pub fn udp_connect(&mut self, id: SockId, peer: SocketAddr) -> Result<(), UdpConnectError> {
        self.udp.connect(&mut self.core, id, peer)
    }
    /// Forgets the peer (connect with AF_UNSPEC). False when the id names no connected socket.
    pub fn udp_disconnect(&mut self, id: SockId) -> bool {
        self.udp.disconnect(&mut self.core, id)
    }
    /// Sends a datagram, or with `gso_size` a train of them.
    ///
    /// # Errors
    /// See [`UdpSendError`].
    pub fn send_to(
        &mut self,
        id: SockId,
        data: &[u8],
        to: Option<SocketAddr>,
        opts: SendOpts,
    ) -> Result<usize, UdpSendError> {
        self.udp.send_to(&mut self.core, id, data, to, opts)
    }
    /// Takes the next datagram.
    ///
    /// # Errors
    /// See [`UdpRecvError`].
    pub fn recv_from(&mut self, id: SockId, buf: &mut [u8], flags: RecvFlags) -> Result<UdpRecv, UdpRecvError> {
        self.udp.recv_from(&mut self.core, id, buf, flags)
    }
    /// The UDP layer, for what has no verb here.
    pub fn udp(&self) -> &UdpLayer {
        &self.udp
    }
    /// The UDP layer, to change options.
    pub fn udp_mut(&mut self) -> &mut UdpLayer {
        &mut self.udp
    }
}
