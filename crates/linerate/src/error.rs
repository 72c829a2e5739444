//! Why a verb of a remote socket did nothing, and how that becomes an [`std::io::Error`].
//!
//! One error type for all handles: [`Error`]. It keeps the Linux error number ([`Error::errno`]), and its conversion to
//! [`std::io::Error`] gives the [`ErrorKind`](std::io::ErrorKind) that the standard library gives to that number, with the `Error` itself inside
//! (`io::Error::downcast::<Error>`). Blocking verbs of `std::io::Read` and `Write` speak `io::Error`; `try_*` and `poll_*`
//! speak `Error`. The errors of the inline verbs are their own types, one per operation, in [`crate::inline`].

use std::fmt;
use std::io;

use linerate_base::Errno;
use linerate_stack::remote::HandleError;

/// Why a verb of a remote socket did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Not now: nothing to read, no room to write, nobody to accept (EAGAIN).
    WouldBlock,
    /// The time that the caller set ([`TcpStream::connect_timeout`](crate::TcpStream::connect_timeout),
    /// [`TcpStream::set_read_timeout`](crate::TcpStream::set_read_timeout)) has passed; the socket itself is well.
    TimedOut,
    /// The socket died, or never came to be; the number says why (reset, refused, timed out, unreachable ...).
    Socket(Errno),
    /// This direction was shut down by this side (EPIPE).
    Shutdown,
    /// The [`Stack`](crate::Stack) was dropped (ECONNABORTED).
    StackGone,
}

impl Error {
    /// The Linux error number.
    pub const fn errno(self) -> Errno {
        match self {
            Self::WouldBlock => Errno::EAGAIN,
            Self::TimedOut => Errno::ETIMEDOUT,
            Self::Socket(errno) => errno,
            Self::Shutdown => Errno::EPIPE,
            Self::StackGone => Errno::ECONNABORTED,
        }
    }

    /// The kind that [`std::io::Error`] has for [`Self::errno`].
    pub const fn kind(self) -> io::ErrorKind {
        kind_of(self.errno())
    }
}

/// The table of the standard library for Linux, written down so that it is the same on every host.
pub(crate) const fn kind_of(errno: Errno) -> io::ErrorKind {
    use io::ErrorKind as K;
    match errno {
        Errno::EAGAIN => K::WouldBlock,
        Errno::EINTR => K::Interrupted,
        Errno::ENOENT => K::NotFound,
        Errno::EPERM | Errno::EACCES => K::PermissionDenied,
        Errno::ENOMEM => K::OutOfMemory,
        Errno::EEXIST => K::AlreadyExists,
        Errno::EINVAL => K::InvalidInput,
        Errno::EPIPE => K::BrokenPipe,
        Errno::EADDRINUSE => K::AddrInUse,
        Errno::EADDRNOTAVAIL => K::AddrNotAvailable,
        Errno::ENETDOWN => K::NetworkDown,
        Errno::ENETUNREACH => K::NetworkUnreachable,
        Errno::EHOSTUNREACH => K::HostUnreachable,
        Errno::ECONNABORTED => K::ConnectionAborted,
        Errno::ECONNRESET => K::ConnectionReset,
        Errno::ECONNREFUSED => K::ConnectionRefused,
        Errno::ENOTCONN => K::NotConnected,
        Errno::ETIMEDOUT => K::TimedOut,
        Errno::EOPNOTSUPP | Errno::ENOSYS => K::Unsupported,
        _ => K::Other,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "The time limit of the call has passed",
            Self::Shutdown => "This direction was shut down",
            Self::StackGone => "The stack is gone",
            Self::WouldBlock | Self::Socket(_) => self.errno().describe(),
        })
    }
}

impl std::error::Error for Error {}

impl From<HandleError> for Error {
    fn from(e: HandleError) -> Self {
        match e {
            HandleError::WouldBlock => Self::WouldBlock,
            HandleError::Shutdown => Self::Shutdown,
            HandleError::Gone => Self::StackGone,
            other => Self::Socket(other.errno()),
        }
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        Self::new(e.kind(), e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn kinds_are_those_of_the_standard_library() {
        // Kinds without a stable public name are `Other` here.
        let nameless = ["Uncategorized", "InProgress", "FilesystemLoop"];
        let differ: Vec<_> = Errno::ALL
            .iter()
            .map(|&errno| (errno.name(), io::Error::from_raw_os_error(errno.number()).kind(), kind_of(errno)))
            .filter(|(_, std, ours)| match nameless.contains(&format!("{std:?}").as_str()) {
                true => *ours != io::ErrorKind::Other,
                false => ours != std,
            })
            .collect();
        assert!(differ.is_empty(), "{differ:?}");
    }

    #[test]
    fn an_io_error_keeps_the_typed_one_inside() {
        let e = io::Error::from(Error::Socket(Errno::ECONNREFUSED));
        assert_eq!(e.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(e.to_string(), "Connection refused");
        assert_eq!(e.downcast::<Error>().ok(), Some(Error::Socket(Errno::ECONNREFUSED)));
    }
}
