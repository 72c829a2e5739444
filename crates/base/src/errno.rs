//! Linux error numbers: the one table behind every typed error's errno.
//!
//! An error is what the caller did wrong or has to know, and is returned; why a packet died is a
//! [`DropReason`](crate::DropReason), and is counted. Every layer above has one typed error per operation with an
//! `errno()`, so that a native caller matches on meanings and a POSIX caller gets Linux's number.
//!
//! Invariants: the numbers are those of x86-64 and AArch64 Linux, whatever the host is; the texts are `strerror`'s; a
//! number stands in the table once. Not here: `std::io::ErrorKind`, since this crate has no standard library.

macro_rules! errnos {
    ($( $name:ident = $num:literal $text:literal, )+) => {
        /// A Linux error number (x86-64 and AArch64 values).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(i32)]
        pub enum Errno { $( #[doc = $text] $name = $num, )+ }

        impl Errno {
            /// All known numbers.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )+ ];
            /// The symbol, as scripts and manuals write it.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$name => stringify!($name), )+ }
            }
            /// The text that `strerror` gives.
            pub const fn describe(self) -> &'static str {
                match self { $( Self::$name => $text, )+ }
            }
            /// The number.
            pub const fn number(self) -> i32 {
                self as i32
            }
        }
    };
}

errnos! {
    EPERM = 1 "Operation not permitted",
    ENOENT = 2 "No such file or directory",
    EINTR = 4 "Interrupted system call",
    EBADF = 9 "Bad file descriptor",
    EAGAIN = 11 "Resource temporarily unavailable",
    ENOMEM = 12 "Cannot allocate memory",
    EACCES = 13 "Permission denied",
    EFAULT = 14 "Bad address",
    EEXIST = 17 "File exists",
    EINVAL = 22 "Invalid argument",
    EMFILE = 24 "Too many open files",
    ENOTTY = 25 "Inappropriate ioctl for device",
    EPIPE = 32 "Broken pipe",
    EDOM = 33 "Numerical argument out of domain",
    ENOSYS = 38 "Function not implemented",
    ELOOP = 40 "Too many levels of symbolic links",
    ENOTSOCK = 88 "Socket operation on non-socket",
    EDESTADDRREQ = 89 "Destination address required",
    EMSGSIZE = 90 "Message too long",
    EPROTOTYPE = 91 "Protocol wrong type for socket",
    ENOPROTOOPT = 92 "Protocol not available",
    EPROTONOSUPPORT = 93 "Protocol not supported",
    ESOCKTNOSUPPORT = 94 "Socket type not supported",
    EOPNOTSUPP = 95 "Operation not supported",
    EAFNOSUPPORT = 97 "Address family not supported by protocol",
    EADDRINUSE = 98 "Address already in use",
    EADDRNOTAVAIL = 99 "Cannot assign requested address",
    ENETDOWN = 100 "Network is down",
    ENETUNREACH = 101 "Network is unreachable",
    ECONNABORTED = 103 "Software caused connection abort",
    ECONNRESET = 104 "Connection reset by peer",
    ENOBUFS = 105 "No buffer space available",
    EISCONN = 106 "Transport endpoint is already connected",
    ENOTCONN = 107 "Transport endpoint is not connected",
    ETIMEDOUT = 110 "Connection timed out",
    ECONNREFUSED = 111 "Connection refused",
    EHOSTDOWN = 112 "Host is down",
    EHOSTUNREACH = 113 "No route to host",
    EALREADY = 114 "Operation already in progress",
    EINPROGRESS = 115 "Operation now in progress",
    EPROTO = 71 "Protocol error",
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts and numbers are those of the C library, where the system has one of Linux's.
    #[test]
    #[cfg(target_os = "linux")]
    fn agrees_with_the_system() {
        for e in Errno::ALL {
            let system = std::io::Error::from_raw_os_error(e.number());
            assert_eq!(std::format!("{} (os error {})", e.describe(), e.number()), std::format!("{system}"));
            assert!(e.name().starts_with('E'));
        }
    }
}
