//! UDP sockets of a [`Stack`](crate::Stack), for any thread.
//!
//! ```text
//!   UdpSocket::bind --send_to, recv_from-->  anybody
//!          '--connect--send, recv--------->  one peer, whose ICMP errors are reported
//! ```
//! Verbs come in three kinds with one meaning, as those of [`crate::tcp`]: blocking, `try_*` and `poll_*`. Many datagrams of
//! one size go and come as a *train*, one super-packet through the whole stack: [`UdpSocket::send_train`] (UDP_SEGMENT) and
//! [`UdpSocket::set_gro`] (UDP_GRO).
//!
//! ```
//! use linerate::{Stack, UdpSocket};
//!
//! let stack = Stack::builder().start()?; // has its loopback
//! let mut server = UdpSocket::bind(&stack, "127.0.0.1:53")?;
//! let mut client = UdpSocket::bind(&stack, "127.0.0.1:0")?;
//! client.connect("127.0.0.1:53")?;
//! client.send(b"who are you?")?;
//! let mut buf = [0; 512];
//! let (n, from) = server.recv_from(&mut buf)?;
//! server.send_to(&buf[..n], from)?;
//! assert_eq!(client.recv(&mut buf)?, 12);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! **Errors.** A datagram is copied into pages and handed over without waiting for the stack. What the stack says about it
//! later (no route, longer than the path and not to be cut, a broadcast that is not allowed, an ICMP error from a
//! connected peer) is a pending error: the next verb returns it, once, and [`UdpSocket::take_error`] takes it (SO_ERROR).
//! Datagrams that find the receive buffer (`rcvbuf_bytes`) full are dropped and counted, as UDP's are.
//!
//! Limits: verbs take `&mut self`, one thread per socket; no MSG_PEEK; no multicast membership. Dropping a socket sends what
//! was given to it before.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};
use std::time::Duration;

use linerate_base::Errno;
use linerate_host::Wait;
use linerate_stack::remote::{HandleError, RemoteUdp, RemoteUdpOpts};
use linerate_stack::udp::{BindOpts, PmtuDisc, UdpRecv};

use crate::error::Error;
use crate::stack::StackHandle;
use crate::wait::block_on;

/// What a UDP socket may be told when it is made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct UdpOptions {
    /// SO_REUSEADDR, SO_REUSEPORT, IPV6_V6ONLY, IP_TRANSPARENT.
    pub bind: BindOpts,
    /// SO_RCVBUF, bytes of memory that datagrams may hold before they are read; 0: the configuration's.
    pub rcvbuf_bytes: u32,
    /// SO_SNDBUF, bytes of memory below the socket; 0: the configuration's.
    pub sndbuf_bytes: u32,
    /// SO_BROADCAST.
    pub broadcast: bool,
    /// IP_TOS or IPV6_TCLASS.
    pub tos: u8,
    /// IP_TTL or IPV6_UNICAST_HOPS; 0: the configuration's.
    pub ttl: u8,
    /// IP_MTU_DISCOVER: whether a datagram longer than the path may be cut to fragments.
    pub mtu_discover: PmtuDisc,
    /// How blocking verbs wait. `None`: as the stack does.
    pub wait: Option<Wait>,
}

/// A received datagram, or with [`UdpSocket::set_gro`] a train of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes that were sent; more than `len` when the buffer was too short, and then the rest is lost.
    pub full_len: usize,
    /// Who sent it.
    pub from: SocketAddr,
    /// The address that it was sent to.
    pub to: IpAddr,
    /// TOS byte or traffic class, ECN bits included.
    pub tos: u8,
    /// TTL or hop limit with which it arrived.
    pub ttl: u8,
    /// The buffer holds a train of datagrams of this many bytes each, the last maybe shorter.
    pub gso_size: Option<u16>,
}

impl From<UdpRecv> for Datagram {
    fn from(r: UdpRecv) -> Self {
        let UdpRecv { len, full_len, from, to, tos, ttl, gso_size, .. } = r;
        Self { len, full_len, from, to, tos, ttl, gso_size }
    }
}

/// A UDP socket of a [`Stack`](crate::Stack). See the [module](crate::udp).
pub struct UdpSocket {
    inner: RemoteUdp,
    mode: Wait,
    read_limit: Option<Duration>,
    write_limit: Option<Duration>,
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no address")
}

fn first_addr(addr: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    addr.to_socket_addrs()?.next().ok_or_else(no_address)
}

/// A time limit as `std` takes it: zero is refused.
fn limit_of(limit: Option<Duration>) -> io::Result<Option<Duration>> {
    match limit {
        Some(Duration::ZERO) => Err(io::Error::new(io::ErrorKind::InvalidInput, "a time limit of zero")),
        limit => Ok(limit),
    }
}

impl UdpSocket {
    /// A socket bound to `addr`; port 0 chooses one. An unspecified address (`0.0.0.0`, `[::]`) means every address of the
    /// stack.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; `ConnectionAborted` when the stack is gone.
    pub fn bind(stack: &impl AsRef<StackHandle>, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(stack, addr, &UdpOptions::default())
    }

    /// As [`Self::bind`] with options.
    ///
    /// # Errors
    /// As there.
    pub fn bind_with(
        stack: &impl AsRef<StackHandle>,
        addr: impl ToSocketAddrs,
        options: &UdpOptions,
    ) -> io::Result<Self> {
        let stack = stack.as_ref();
        let mut opts = RemoteUdpOpts::default();
        (opts.rcvbuf_bytes, opts.sndbuf_bytes) = (options.rcvbuf_bytes, options.sndbuf_bytes);
        (opts.broadcast, opts.tos, opts.ttl) = (options.broadcast, options.tos, options.ttl);
        opts.mtu_discover = options.mtu_discover;
        let mode = options.wait.unwrap_or(stack.wait_mode());
        let mut last = no_address();
        for addr in addr.to_socket_addrs()? {
            let shard = stack.shards.for_udp(addr.port());
            let mut inner = stack.command(shard, |remote| remote.udp(addr, options.bind, &opts))?;
            match block_on(mode, None, |cx| inner.poll_bound(cx)) {
                Ok(()) => return Ok(Self { inner, mode, read_limit: None, write_limit: None }),
                Err(e) => last = e.into(),
            }
        }
        Err(last)
    }

    /// Fixes the peer: datagrams of others are not received, [`Self::send`] needs no address, and its ICMP errors are
    /// reported. Connecting again changes the peer.
    ///
    /// # Errors
    /// `NetworkUnreachable`, `PermissionDenied` (a broadcast address) ...; a pending error.
    pub fn connect(&mut self, addr: impl ToSocketAddrs) -> io::Result<()> {
        let mut last = no_address();
        for addr in addr.to_socket_addrs()? {
            match self.set_peer(Some(addr)) {
                Ok(()) => return Ok(()),
                Err(e) => last = e.into(),
            }
        }
        Err(last)
    }

    /// Forgets the peer.
    ///
    /// # Errors
    /// `ConnectionAborted` when the stack is gone; a pending error.
    pub fn disconnect(&mut self) -> io::Result<()> {
        Ok(self.set_peer(None)?)
    }

    fn set_peer(&mut self, peer: Option<SocketAddr>) -> Result<(), Error> {
        loop {
            match self.inner.start_connect(peer) {
                // The stack empties the ring once a turn.
                Err(HandleError::WouldBlock) => std::thread::yield_now(),
                Err(e) => return Err(e.into()),
                Ok(()) => return block_on(self.mode, None, |cx| self.inner.poll_connected(cx)),
            }
        }
    }

    /// Sends one datagram to `addr`.
    ///
    /// # Errors
    /// `TimedOut` after [`Self::set_write_timeout`]; a pending error; EMSGSIZE beyond 65,535 bytes.
    pub fn send_to(&mut self, data: &[u8], addr: impl ToSocketAddrs) -> io::Result<usize> {
        let to = first_addr(addr)?;
        Ok(block_on(self.mode, self.write_limit, |cx| self.inner.poll_send_to(cx, data, Some(to), None))?)
    }

    /// Sends one datagram to the peer.
    ///
    /// # Errors
    /// As [`Self::send_to`]; EDESTADDRREQ without a peer.
    pub fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        self.need_peer()?;
        Ok(block_on(self.mode, self.write_limit, |cx| self.inner.poll_send_to(cx, data, None, None))?)
    }

    /// Sends `data` as datagrams of `size` bytes each, the last maybe shorter, in one go (UDP_SEGMENT): to `to`, or to the
    /// peer. At most 65,507 bytes (IPv6: 65,527) and 128 datagrams.
    ///
    /// # Errors
    /// As [`Self::send_to`]. A size of 0, or one that does not fit the path, is a pending error.
    pub fn send_train(&mut self, data: &[u8], size: u16, to: Option<SocketAddr>) -> io::Result<usize> {
        if to.is_none() {
            self.need_peer()?;
        }
        Ok(block_on(self.mode, self.write_limit, |cx| self.inner.poll_send_to(cx, data, to, Some(size)))?)
    }

    fn need_peer(&self) -> Result<(), Error> {
        self.inner.peer_addr().map(|_| ()).ok_or(Error::Socket(Errno::EDESTADDRREQ))
    }

    /// As [`Self::send_to`] (`to`: `None` means the peer, `size`: a train), without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when the send buffer is full; else as there.
    pub fn try_send(&mut self, data: &[u8], to: Option<SocketAddr>, size: Option<u16>) -> Result<usize, Error> {
        Ok(self.inner.try_send_to(data, to, size)?)
    }

    /// As [`Self::try_send`]; `Pending` after `cx`'s waker was registered.
    pub fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
        to: Option<SocketAddr>,
        size: Option<u16>,
    ) -> Poll<Result<usize, Error>> {
        self.inner.poll_send_to(cx, data, to, size).map_err(Error::from)
    }

    /// Waits for a datagram. What does not fit `buf` is lost.
    ///
    /// # Errors
    /// `TimedOut` after [`Self::set_read_timeout`]; a pending error (`ConnectionRefused` from a connected peer).
    pub fn recv_from(&mut self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_datagram(buf).map(|d| (d.len, d.from))
    }

    /// As [`Self::recv_from`], for who knows the sender.
    ///
    /// # Errors
    /// As there.
    pub fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_datagram(buf).map(|d| d.len)
    }

    /// As [`Self::recv_from`], with everything that is known about the datagram.
    ///
    /// # Errors
    /// As there.
    pub fn recv_datagram(&mut self, buf: &mut [u8]) -> io::Result<Datagram> {
        let got = block_on(self.mode, self.read_limit, |cx| self.inner.poll_recv_from(cx, buf))?;
        Ok(got.into())
    }

    /// As [`Self::recv_datagram`], without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when none is there; else as there.
    pub fn try_recv(&mut self, buf: &mut [u8]) -> Result<Datagram, Error> {
        Ok(self.inner.try_recv_from(buf)?.into())
    }

    /// As [`Self::try_recv`]; `Pending` after `cx`'s waker was registered.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Datagram, Error>> {
        self.inner.poll_recv_from(cx, buf).map(|done| done.map(Datagram::from).map_err(Error::from))
    }

    /// Whether trains are returned whole, with their [`Datagram::gso_size`] (UDP_GRO). Off: one datagram at a time.
    pub fn set_gro(&mut self, on: bool) {
        self.inner.set_gro(on);
    }

    /// The longest that a receiving verb waits. `None`: for ever.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.read_limit = limit_of(limit)?;
        Ok(())
    }

    /// The longest that a sending verb waits. `None`: for ever.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.write_limit = limit_of(limit)?;
        Ok(())
    }

    /// How blocking verbs wait.
    pub fn set_wait(&mut self, mode: Wait) {
        self.mode = mode;
    }

    /// The pending error, taken.
    pub fn take_error(&mut self) -> Option<Error> {
        self.inner.take_error().map(Error::Socket)
    }

    /// This end.
    ///
    /// # Errors
    /// None: a `UdpSocket` is bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr().ok_or_else(|| Error::StackGone.into())
    }

    /// The peer of [`Self::connect`].
    ///
    /// # Errors
    /// `NotConnected` without one.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr().ok_or_else(|| Error::Socket(Errno::ENOTCONN).into())
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = (self.inner.local_addr(), self.inner.peer_addr());
        f.debug_struct("UdpSocket").field("local", &local).field("peer", &peer).finish_non_exhaustive()
    }
}
