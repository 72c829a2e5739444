//! From a call as written to a call with live arguments, and from its outcome back to the script's expectation.
//!
//! `...` is filled in here: addresses from the variant, buffers by their length. Descriptors in scripts are names for live
//! ones; [`Env`] holds that map. Strings, integers and structs become bytes in the machine's order, as C would lay them
//! out. Invariants: resolving has no effect; checking compares what CONFORMANCE 3.5 lists and nothing else (the data read
//! is never compared). Limits: `splice`, `sendfile`, `open`, `cap_set` and PSP calls are unsupported and say so.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::ast::{CallSpec, Expr, Field};
use super::backend::{Addr, Buf, Call, Cmsg, EpollEvent, PollFd};
use super::config::VariantConfig;
use super::symbols::lookup;

pub(crate) mod check;

/// Room that a script's recvmsg offers for control messages.
const CONTROL_LEN: usize = 512;

/// Above every live descriptor.
const NO_SUCH_FD: i32 = 1_000_000;

/// What resolution needs to know of the run.
pub(crate) struct Env<'a> {
    pub(crate) cfg: &'a VariantConfig,
    /// Script descriptor -> live descriptor.
    pub(crate) fds: &'a HashMap<i32, i32>,
}

type Resolved<T> = Result<T, String>;

/// An integer: number, symbol, `A|B`, `htons(N)` and its kin (kept in host order).
pub(crate) fn int(e: &Expr) -> Resolved<i64> {
    match e {
        Expr::Int(n) => Ok(*n),
        Expr::Sym(s) => lookup(s).ok_or_else(|| format!("unknown symbol '{s}'")),
        Expr::Or(terms) => terms.iter().try_fold(0, |acc, t| Ok(acc | int(t)?)),
        Expr::Apply(f, args) if matches!(f.as_str(), "htons" | "htonl") && args.len() == 1 => int(&args[0]),
        _ => Err("expected an integer".into()),
    }
}

fn int32(e: &Expr) -> Resolved<i32> {
    int(e).map(|n| n as i32)
}

fn is_null(e: &Expr) -> bool {
    matches!(e, Expr::Sym(s) if s == "NULL")
}

pub(crate) fn field<'e>(fields: &'e [Field], name: &str) -> Option<&'e Expr> {
    fields.iter().find(|f| f.name.as_deref() == Some(name)).map(|f| &f.value)
}

fn buffer(e: &Expr, len: &Expr) -> Resolved<Buf> {
    let null = match e {
        _ if is_null(e) => true,
        Expr::Int(0) => true,
        Expr::Ellipsis | Expr::Str(_) | Expr::StrPrefix(_) | Expr::List(_) => false,
        _ => return Err("expected a buffer: '...' or NULL".into()),
    };
    Ok(Buf { null, len: usize::try_from(int(len)?).unwrap_or(usize::MAX) })
}

/// `[{..., 10}, {NULL, 5}]`
fn iovec(e: &Expr) -> Resolved<Vec<Buf>> {
    let Expr::List(items) = e else { return Err("expected an array of {..., LEN}".into()) };
    items
        .iter()
        .map(|item| match item {
            Expr::Struct(f) if f.len() == 2 => buffer(&f[0].value, &f[1].value),
            _ => Err("expected {..., LEN}".into()),
        })
        .collect()
}

fn address_literal(e: &Expr) -> Resolved<IpAddr> {
    match e {
        Expr::V4(a) => Ok(IpAddr::V4(*a)),
        Expr::V6(a) => Ok(IpAddr::V6(*a)),
        Expr::Str(s) => s.parse().map_err(|_| format!("'{s}' is no IP address")),
        Expr::Apply(f, args) => match (f.as_str(), args.as_slice()) {
            ("inet_addr" | "inet6_addr", [text]) | ("inet_pton", [_, text]) => address_literal(text),
            ("htonl", [n]) => Ok(IpAddr::V4((int(n)? as u32).into())),
            _ => Err(format!("'{f}' gives no IP address")),
        },
        Expr::Sym(s) if s == "in6addr_any" => Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        _ => Ok(IpAddr::V4((int(e)? as u32).into())),
    }
}

/// An explicit socket address, or `None` where the script says `...`.
pub(crate) fn sockaddr(e: &Expr) -> Resolved<Option<Addr>> {
    match e {
        Expr::Ellipsis => Ok(None),
        _ if is_null(e) => Ok(Some(Addr::Null)),
        Expr::Sym(s) if s == "AF_UNSPEC" => Ok(Some(Addr::Unspec)),
        Expr::Struct(fields) => {
            let family = field(fields, "sa_family").or(field(fields, "sin_family")).or(field(fields, "sin6_family"));
            if let Some(Expr::Sym(s)) = family
                && s == "AF_UNSPEC"
            {
                return Ok(Some(Addr::Unspec));
            }
            let port = field(fields, "sin_port").or(field(fields, "sin6_port")).ok_or("sockaddr without sin_port")?;
            let ip = field(fields, "sin_addr").or(field(fields, "sin6_addr")).ok_or("sockaddr without sin_addr")?;
            Ok(Some(Addr::Inet(SocketAddr::new(address_literal(ip)?, int(port)? as u16))))
        }
        _ => Err("expected a socket address: '...', NULL, AF_UNSPEC or {sa_family=..., ...}".into()),
    }
}

/// Bytes of an option value as C lays it out; `None` for NULL.
fn value_bytes(e: &Expr, len: i64) -> Resolved<Option<Vec<u8>>> {
    let ints = |names: &[&str], fields: &[Field], size: usize| -> Resolved<Vec<u8>> {
        let mut out = Vec::new();
        for name in names {
            let v = field(fields, name).map_or(Ok(0), int)?;
            out.extend(&v.to_le_bytes()[..size]);
        }
        Ok(out)
    };
    match e {
        _ if is_null(e) => Ok(None),
        Expr::Ellipsis => Ok(Some(vec![0; usize::try_from(len).unwrap_or(0).min(65_536)])),
        Expr::Str(s) => {
            let mut bytes = s.clone().into_bytes();
            bytes.push(0);
            Ok(Some(bytes))
        }
        Expr::List(items) => {
            let mut out = Vec::new();
            for item in items {
                out.extend(value_bytes(item, 4)?.unwrap_or_default());
            }
            // [N] with length 8 is a 64-bit value; shorter lengths still point at an int.
            if let ([only], 8) = (items.as_slice(), len)
                && let Ok(n) = int(only)
            {
                out = n.to_le_bytes().to_vec();
            }
            Ok(Some(out))
        }
        Expr::Struct(f) if field(f, "onoff").is_some() => ints(&["onoff", "linger"], f, 4).map(Some),
        Expr::Struct(f) if field(f, "tv_sec").is_some() => ints(&["tv_sec", "tv_usec"], f, 8).map(Some),
        Expr::Apply(..) | Expr::V4(_) | Expr::V6(_) if address_literal(e).is_ok() => match address_literal(e)? {
            IpAddr::V4(a) => Ok(Some(a.octets().to_vec())),
            IpAddr::V6(a) => Ok(Some(a.octets().to_vec())),
        },
        _ => Ok(Some((int(e)? as i32).to_le_bytes().to_vec())),
    }
}

fn epoll_event(e: &Expr) -> Resolved<Option<EpollEvent>> {
    match e {
        _ if is_null(e) => Ok(None),
        Expr::Ellipsis => Ok(Some(EpollEvent { events: 0, data: 0 })),
        Expr::Struct(f) => {
            let data = ["fd", "ptr", "u32", "u64"].iter().find_map(|n| field(f, n));
            let events = field(f, "events").map_or(Ok(0), int)?;
            Ok(Some(EpollEvent { events: events as u32, data: data.map_or(Ok(0), int)? as u64 }))
        }
        _ => Err("expected {events=..., fd=...}".into()),
    }
}

pub(crate) fn cmsgs(e: &Expr) -> Resolved<Vec<Cmsg>> {
    let Expr::List(items) = e else { return Err("expected an array of control messages".into()) };
    items
        .iter()
        .map(|item| {
            let Expr::Struct(f) = item else { return Err("expected {cmsg_level=..., ...}".to_owned()) };
            let part = |name: &str| field(f, name).ok_or_else(|| format!("control message without {name}"));
            let data = match part("cmsg_data")? {
                Expr::Struct(_) => return Err("error-queue and timestamp contents are not supported yet".into()),
                e => value_bytes(e, 4)?.unwrap_or_default(),
            };
            Ok(Cmsg { level: int32(part("cmsg_level")?)?, kind: int32(part("cmsg_type")?)?, data })
        })
        .collect()
}

struct Message {
    iov: Vec<Buf>,
    addr: Option<Addr>,
    control: Vec<Cmsg>,
}

fn msghdr(e: &Expr, sending: bool) -> Resolved<Message> {
    let Expr::Struct(f) = e else { return Err("expected {msg_name(...)=..., msg_iov(N)=[...], ...}".into()) };
    let iov = field(f, "msg_iov").map_or(Ok(Vec::new()), iovec)?;
    let addr = field(f, "msg_name").map_or(Ok(None), sockaddr)?;
    let control = match field(f, "msg_control") {
        Some(c) if sending => cmsgs(c)?,
        _ => Vec::new(),
    };
    Ok(Message { iov, addr, control })
}

impl Env<'_> {
    /// A descriptor argument. One that the script never opened, or closed, must be EBADF: it becomes a number that no
    /// stack gives out.
    fn fd(&self, e: &Expr) -> Resolved<i32> {
        let n = int32(e)?;
        Ok(self.fds.get(&n).copied().unwrap_or(if n < 0 { n } else { n.saturating_add(NO_SUCH_FD) }))
    }

    /// An address of this variant: v4-mapped where the sockets are AF_INET6.
    pub(crate) fn own(&self, ip: IpAddr, port: u16) -> Addr {
        let ip = match ip {
            IpAddr::V4(a) if self.cfg.sockets_are_v6 => IpAddr::V6(a.to_ipv6_mapped()),
            other => other,
        };
        Addr::Inet(SocketAddr::new(ip, port))
    }

    fn remote(&self, e: &Expr) -> Resolved<Addr> {
        Ok(sockaddr(e)?.unwrap_or_else(|| self.own(self.cfg.remote_ip, self.cfg.connect_port)))
    }

    /// The call with live arguments.
    pub(crate) fn resolve(&self, spec: &CallSpec) -> Resolved<Call> {
        let a = spec.args.as_slice();
        match (spec.name.as_str(), a) {
            ("read" | "recv" | "recvfrom" | "readv" | "recvmsg", _) => self.receive(spec),
            ("write" | "send" | "sendto" | "writev" | "sendmsg", _) => self.transmit(spec),
            ("getsockopt" | "setsockopt" | "fcntl" | "ioctl", _) => self.control(spec),
            ("poll" | "epoll_create" | "epoll_ctl" | "epoll_wait" | "pipe", _) => self.polling(spec),
            ("socket", [domain, kind, protocol]) => Ok(Call::Socket {
                domain: match domain {
                    Expr::Ellipsis => {
                        if self.cfg.sockets_are_v6 {
                            10
                        } else {
                            2
                        }
                    }
                    e => int32(e)?,
                },
                kind: int32(kind)?,
                protocol: int32(protocol)?,
            }),
            ("bind", [fd, addr, _]) => Ok(Call::Bind {
                fd: self.fd(fd)?,
                addr: sockaddr(addr)?.unwrap_or_else(|| self.own(self.cfg.local_ip, self.cfg.bind_port)),
            }),
            ("listen", [fd, backlog]) => Ok(Call::Listen { fd: self.fd(fd)?, backlog: int32(backlog)? }),
            ("accept", [fd, _, _]) => Ok(Call::Accept { fd: self.fd(fd)? }),
            ("connect", [fd, addr, _]) => Ok(Call::Connect { fd: self.fd(fd)?, addr: self.remote(addr)? }),
            ("close", [fd]) => Ok(Call::Close { fd: self.fd(fd)? }),
            ("shutdown", [fd, how]) => Ok(Call::Shutdown { fd: self.fd(fd)?, how: int32(how)? }),
            ("socket" | "bind" | "listen" | "accept" | "connect" | "close" | "shutdown", _) => Err(arity(spec)),
            (name, _) => Err(format!("system call '{name}' is not supported")),
        }
    }

    fn receive(&self, spec: &CallSpec) -> Resolved<Call> {
        Ok(match (spec.name.as_str(), spec.args.as_slice()) {
            ("read", [fd, b, n]) => Call::Read { fd: self.fd(fd)?, buf: buffer(b, n)? },
            ("readv", [fd, iov, _]) => Call::Readv { fd: self.fd(fd)?, iov: iovec(iov)? },
            ("recv", [fd, b, n, flags]) => Call::Recv { fd: self.fd(fd)?, buf: buffer(b, n)?, flags: int32(flags)? },
            ("recvfrom", [fd, b, n, flags, _, _]) => {
                Call::RecvFrom { fd: self.fd(fd)?, buf: buffer(b, n)?, flags: int32(flags)? }
            }
            ("recvmsg", [fd, msg, flags]) => {
                let iov = msghdr(msg, false)?.iov;
                Call::RecvMsg { fd: self.fd(fd)?, iov, flags: int32(flags)?, control_len: CONTROL_LEN }
            }
            _ => return Err(arity(spec)),
        })
    }

    fn transmit(&self, spec: &CallSpec) -> Resolved<Call> {
        Ok(match (spec.name.as_str(), spec.args.as_slice()) {
            ("write", [fd, b, n]) => Call::Write { fd: self.fd(fd)?, buf: buffer(b, n)? },
            ("writev", [fd, iov, _]) => Call::Writev { fd: self.fd(fd)?, iov: iovec(iov)? },
            ("send", [fd, b, n, flags]) => Call::Send { fd: self.fd(fd)?, buf: buffer(b, n)?, flags: int32(flags)? },
            ("sendto", [fd, b, n, flags, addr, _]) => {
                Call::SendTo { fd: self.fd(fd)?, buf: buffer(b, n)?, flags: int32(flags)?, addr: self.remote(addr)? }
            }
            ("sendmsg", [fd, msg, flags]) => {
                let m = msghdr(msg, true)?;
                // `...` as a name is the peer; only an unconnected socket looks at it.
                let addr = m.addr.unwrap_or_else(|| self.own(self.cfg.remote_ip, self.cfg.connect_port));
                Call::SendMsg { fd: self.fd(fd)?, iov: m.iov, flags: int32(flags)?, addr, control: m.control }
            }
            _ => return Err(arity(spec)),
        })
    }

    fn control(&self, spec: &CallSpec) -> Resolved<Call> {
        Ok(match (spec.name.as_str(), spec.args.as_slice()) {
            ("fcntl", [fd, cmd]) => Call::Fcntl { fd: self.fd(fd)?, cmd: int32(cmd)?, arg: 0 },
            ("fcntl", [fd, cmd, arg]) => Call::Fcntl { fd: self.fd(fd)?, cmd: int32(cmd)?, arg: int(arg)? },
            ("ioctl", [fd, request, arg @ ..]) if arg.len() <= 1 => {
                let value = match arg {
                    [Expr::List(v)] if v.len() == 1 && v[0] != Expr::Ellipsis => int32(&v[0])?,
                    _ => 0,
                };
                let null = matches!(arg, [e] if is_null(e));
                Call::Ioctl { fd: self.fd(fd)?, request: int(request)? as u64, value, null }
            }
            ("getsockopt", [fd, level, name, value, len]) => {
                let len = match len {
                    Expr::List(v) if v.len() == 1 => int32(&v[0])?,
                    _ => return Err("getsockopt wants its length as [N]".into()),
                };
                let null = is_null(value);
                Call::GetSockOpt { fd: self.fd(fd)?, level: int32(level)?, name: int32(name)?, null, len }
            }
            ("setsockopt", [fd, level, name, value, len]) => {
                let len = int(len)?;
                let value = value_bytes(value, len)?;
                let (level, name) = (int32(level)?, int32(name)?);
                Call::SetSockOpt { fd: self.fd(fd)?, level, name, value, len: len as i32 }
            }
            _ => return Err(arity(spec)),
        })
    }

    fn polling(&self, spec: &CallSpec) -> Resolved<Call> {
        Ok(match (spec.name.as_str(), spec.args.as_slice()) {
            ("poll", [Expr::List(items), _, timeout]) => {
                let one = |e: &Expr| {
                    let Expr::Struct(f) = e else { return Err("expected {fd=, events=, revents=}".to_owned()) };
                    let fd = self.fd(field(f, "fd").ok_or("pollfd without fd")?)?;
                    Ok(PollFd { fd, events: field(f, "events").map_or(Ok(0), int)? as i16 })
                };
                let fds = items.iter().map(one).collect::<Resolved<_>>()?;
                Call::Poll { fds, timeout_ms: int32(timeout)? }
            }
            ("epoll_create", [size]) => Call::EpollCreate { size: int32(size)? },
            ("epoll_ctl", [epfd, op, fd, event]) => {
                Call::EpollCtl { epfd: self.fd(epfd)?, op: int32(op)?, fd: self.fd(fd)?, event: epoll_event(event)? }
            }
            ("epoll_wait", [epfd, _, max, timeout]) => {
                Call::EpollWait { epfd: self.fd(epfd)?, max_events: int32(max)?, timeout_ms: int32(timeout)? }
            }
            ("pipe", [_]) => Call::Pipe,
            _ => return Err(arity(spec)),
        })
    }
}

fn arity(spec: &CallSpec) -> String {
    format!("'{}' does not take these {} arguments", spec.name, spec.args.len())
}

#[cfg(test)]
mod tests;
