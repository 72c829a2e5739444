//! Names of Linux constants that scripts use: levels, options, flags, errors, ioctls.
//!
//! The values are those of Linux on x86-64 and AArch64, kept as data in `symbols.txt` (`NAME VALUE`, one a line, sorted).
//! A few symbols stand for an address (`INADDR_ANY`, `INADDR_LOOPBACK`): they are numbers in host order, like C's.
//! Invariants: names are unique; looking one up costs a hash after the first use. Limits: values fit 64 bits; no symbol
//! has different values in different contexts. It does not know which symbol fits which argument.

use std::collections::HashMap;
use std::sync::OnceLock;

fn table() -> &'static HashMap<&'static str, i64> {
    static TABLE: OnceLock<HashMap<&'static str, i64>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let lines = include_str!("symbols.txt").lines();
        lines.filter_map(|line| line.split_once(' ')).filter_map(|(name, n)| Some((name, n.parse().ok()?))).collect()
    })
}

/// The value of a constant, if the name is known.
pub fn lookup(name: &str) -> Option<i64> {
    table().get(name).copied()
}

/// The symbol of an error number, for messages.
pub(crate) fn errno_name(number: i32) -> String {
    let alias = |n: &str| matches!(n, "EWOULDBLOCK" | "EDEADLOCK" | "ENOTSUP");
    let known = table()
        .iter()
        .find(|(n, v)| **v == i64::from(number) && n.starts_with('E') && !n.starts_with("EPOLL") && !alias(n));
    known.map_or_else(|| format!("errno {number}"), |(n, _)| (*n).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_linux() {
        let known = [
            ("SOCK_STREAM", 1),
            ("AF_INET6", 10),
            ("IPPROTO_TCP", 6),
            ("SOL_SOCKET", 1),
            ("SO_LINGER", 13),
            ("TCP_USER_TIMEOUT", 18),
            ("TCP_RTO_MAX_MS", 44),
            ("MSG_MORE", 0x8000),
            ("O_NONBLOCK", 0o4000),
            ("EPOLLET", 1 << 31),
            ("SIOCINQ", 0x541b),
            ("EINPROGRESS", 115),
            ("NULL", 0),
        ];
        for (name, value) in known {
            assert_eq!(lookup(name), Some(value), "{name}");
        }
        assert_eq!(lookup("NO_SUCH_NAME"), None);
        assert_eq!(errno_name(11), "EAGAIN");
        assert_eq!(errno_name(9999), "errno 9999");
        assert!(table().len() > 700);
    }
}
