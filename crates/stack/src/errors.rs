//! What a caller did wrong, one enum per operation, each with its Linux errno.
//!
//! An error here is an answer to a verb, never the death of a packet (that is a `DropReason`). Errors that a connection
//! met by itself (reset, timeout, ICMP) are [`SocketError`], reported once by the next verb or by `take_error`. `SendError`
//! and `RecvError` of established connections come from the `tcp` crate. A stale [`crate::SockId`] is `BadSocket` (EBADF)
//! where the operation has it, else "not connected". All enums are `#[non_exhaustive]`.

use core::fmt;

use linerate_base::Errno;
pub use linerate_tcp::SocketError;

macro_rules! errors {
    ($( $(#[doc = $doc:literal])+ $name:ident { $( $(#[doc = $vdoc:literal])+ $var:ident = $errno:ident, )+ } )+) => { $(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum $name { $( $(#[doc = $vdoc])+ $var, )+ }

        impl $name {
            /// The Linux error number.
            pub const fn errno(self) -> Errno {
                match self { $( Self::$var => Errno::$errno, )+ }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $( Self::$var => concat!($( $vdoc ),+), )+ }.trim())
            }
        }
        impl core::error::Error for $name {}
    )+ };
}

errors! {
    /// Why a socket was not bound.
    BindError {
        /// The id names no unbound TCP socket.
        BadSocket = EBADF,
        /// The socket is already bound or connected.
        Bound = EINVAL,
        /// The address is not one of this host.
        AddrNotAvailable = EADDRNOTAVAIL,
        /// Another socket holds the address and port, and not both allow sharing.
        AddrInUse = EADDRINUSE,
        /// The address is of another family than the socket.
        Family = EAFNOSUPPORT,
    }
    /// Why a socket does not listen.
    ListenError {
        /// The id names no TCP socket.
        BadSocket = EBADF,
        /// The socket is connected or connecting.
        Connected = EINVAL,
        /// Another socket holds the address and port, and not both allow sharing.
        AddrInUse = EADDRINUSE,
        /// The address is not one of this host.
        AddrNotAvailable = EADDRNOTAVAIL,
        /// The address is of another family than the socket.
        Family = EAFNOSUPPORT,
        /// Unknown congestion control, or an option out of range.
        BadOption = EINVAL,
    }
    /// Why no connection was accepted.
    AcceptError {
        /// No connection is waiting.
        WouldBlock = EAGAIN,
        /// The socket does not listen.
        NotListening = EINVAL,
        /// The id names no TCP socket.
        BadSocket = EBADF,
    }
    /// Why a connection attempt did not begin.
    ConnectError {
        /// The id names no TCP socket.
        BadSocket = EBADF,
        /// The socket is already connected.
        Connected = EISCONN,
        /// A connection attempt is under way.
        InProgress = EALREADY,
        /// The socket listens.
        Listening = EISCONN,
        /// The local address is not one of this host, or all local ports towards this peer are in use.
        AddrNotAvailable = EADDRNOTAVAIL,
        /// The local address and port are taken.
        AddrInUse = EADDRINUSE,
        /// No route leads to the peer.
        NetUnreachable = ENETUNREACH,
        /// The address can not be a peer: multicast, broadcast or port 0 without meaning.
        BadPeer = ECONNREFUSED,
        /// Local and remote address are of different families.
        Family = EAFNOSUPPORT,
        /// Unknown congestion control, or an option out of range.
        BadOption = EINVAL,
        /// The earlier attempt on this socket failed in another way; see `take_error`.
        Failed = ECONNABORTED,
    }
    /// Why an option was not set.
    OptError {
        /// The id names no TCP socket.
        BadSocket = EBADF,
        /// The value is out of range.
        Invalid = EINVAL,
        /// No congestion control of this name.
        NoSuchAlgorithm = ENOENT,
    }
    /// Why `shutdown`, `close` or a query did nothing.
    SockError {
        /// The id names no socket.
        BadSocket = EBADF,
        /// There is no connection.
        NotConnected = ENOTCONN,
    }
}
