//! Judges a call's outcome: return value, errno, and what the call wrote to the caller's memory.
//!
//! The script's arguments are also its expectations: `getsockopt(.., [1460], [4])` says what must come out. So the checks
//! walk the same expressions again. A result written as `...` is not compared; `{scm_sec=0, ...}` and other error-queue
//! contents are refused at resolution, so nothing is compared that is not understood. Invariant: a check changes nothing.

use super::super::ast::{CallSpec, Expr, Field};
use super::super::backend::{EpollEvent, Outcome, Output};
use super::super::symbols::{errno_name, lookup};
use super::{cmsgs, field, int, sockaddr};

/// Calls whose non-negative result names a new descriptor.
pub(crate) fn opens_fd(name: &str) -> bool {
    matches!(name, "socket" | "accept" | "epoll_create" | "open")
}

/// Compares everything; the error says what differs.
pub(crate) fn outcome(spec: &CallSpec, got: &Outcome) -> Result<(), String> {
    result(spec, got)?;
    if got.ret < 0 {
        return Ok(());
    }
    match (&got.out, spec.name.as_str(), spec.args.as_slice()) {
        (Output::Bytes(bytes), "getsockopt", [_, _, _, value, Expr::List(len)]) => {
            option_value(value, bytes)?;
            match len.as_slice() {
                [Expr::Ellipsis] => Ok(()),
                [n] => same("option length", int(n)?, bytes.len() as i64),
                _ => Ok(()),
            }
        }
        (Output::Int(n), "ioctl", [_, _, Expr::List(want)]) => match want.as_slice() {
            [Expr::Ellipsis] | [] => Ok(()),
            [e, ..] => same("ioctl value", int(e)?, i64::from(*n)),
        },
        (Output::Revents(list), "poll", [Expr::List(want), ..]) => {
            for (i, (entry, revents)) in want.iter().zip(list).enumerate() {
                let Expr::Struct(f) = entry else { continue };
                let expected = field(f, "revents").map_or(Ok(0), int)?;
                same(&format!("revents of pollfd {i}"), expected & 0xffff, i64::from(*revents as u16))?;
            }
            Ok(())
        }
        (Output::Events(list), "epoll_wait", [_, want, ..]) => match (want, list.first()) {
            (Expr::Struct(f), Some(first)) => epoll(f, first),
            _ => Ok(()),
        },
        (Output::Addr(actual), "accept", [_, want, _]) | (Output::Addr(actual), "recvfrom", [_, _, _, _, want, _]) => {
            match sockaddr(want)? {
                Some(super::Addr::Inet(expected)) if expected != *actual => {
                    Err(format!("address: expected {expected}, got {actual}"))
                }
                _ => Ok(()),
            }
        }
        (Output::Msg { flags, control, .. }, "recvmsg", [_, Expr::Struct(f), _]) => message(f, *flags, control),
        _ => Ok(()),
    }
}

fn same(what: &str, expected: i64, actual: i64) -> Result<(), String> {
    if expected == actual {
        return Ok(());
    }
    Err(format!("{what}: expected {expected} (0x{expected:x}), got {actual} (0x{actual:x})"))
}

fn result(spec: &CallSpec, got: &Outcome) -> Result<(), String> {
    if spec.result == Expr::Ellipsis {
        return Ok(());
    }
    let expected = int(&spec.result)?;
    let actual = || match got.errno {
        0 => format!("{}", got.ret),
        e => format!("{} with errno {e} ({})", got.ret, errno_name(e)),
    };
    let fits = if opens_fd(&spec.name) && expected >= 0 { got.ret >= 0 } else { expected == got.ret };
    if !fits {
        return Err(format!("expected result {expected}, got {}", actual()));
    }
    let Some(symbol) = &spec.errno else { return Ok(()) };
    let number = lookup(symbol).ok_or_else(|| format!("unknown error symbol '{symbol}'"))?;
    if number != i64::from(got.errno) {
        return Err(format!("expected errno {number} ({symbol}), got {}", actual()));
    }
    Ok(())
}

fn little_endian(bytes: &[u8]) -> i64 {
    let n = bytes.iter().take(8).rev().fold(0_i64, |n, &b| n << 8 | i64::from(b));
    if bytes.len() == 4 { i64::from(n as i32) } else { n }
}

fn option_value(want: &Expr, bytes: &[u8]) -> Result<(), String> {
    match want {
        Expr::Ellipsis => Ok(()),
        Expr::List(items) if items.first() == Some(&Expr::Ellipsis) => Ok(()),
        Expr::List(items) if items.len() == 1 => {
            let expected = int(&items[0])?;
            // A 4-byte option may be written as signed or unsigned.
            let actual = little_endian(bytes);
            let fits = bytes.len() == 4 && expected as u32 == actual as u32;
            if fits { Ok(()) } else { same("option value", expected, actual) }
        }
        Expr::Str(s) => {
            let text = String::from_utf8_lossy(bytes);
            let text = text.trim_end_matches('\0');
            if text == s { Ok(()) } else { Err(format!("option value: expected \"{s}\", got \"{text}\"")) }
        }
        Expr::StrPrefix(s) if bytes.starts_with(s.as_bytes()) => Ok(()),
        Expr::StrPrefix(s) => Err(format!("option value: expected the prefix \"{s}\", got {bytes:?}")),
        Expr::Struct(f) => {
            let words: Vec<_> = bytes.chunks(if bytes.len() == 16 { 8 } else { 4 }).map(little_endian).collect();
            for (i, (Field { name, value, .. }, actual)) in f.iter().zip(words).enumerate() {
                let name = name.clone().unwrap_or_else(|| format!("field {i}"));
                same(&name, int(value)?, actual)?;
            }
            Ok(())
        }
        _ => same("option value", int(want)?, little_endian(bytes)),
    }
}

fn epoll(want: &[Field], got: &EpollEvent) -> Result<(), String> {
    if let Some(e) = field(want, "events") {
        same("epoll events", int(e)? & 0xffff_ffff, i64::from(got.events))?;
    }
    match ["fd", "ptr", "u32", "u64"].iter().find_map(|n| field(want, n)) {
        Some(e) => same("epoll data", int(e)?, got.data as i64),
        None => Ok(()),
    }
}

fn message(want: &[Field], flags: i32, control: &[super::Cmsg]) -> Result<(), String> {
    if let Some(e) = field(want, "msg_flags") {
        same("msg_flags", int(e)?, i64::from(flags))?;
    }
    let Some(e) = field(want, "msg_control").filter(|e| **e != Expr::Ellipsis) else { return Ok(()) };
    let expected = cmsgs(e)?;
    if expected == control { Ok(()) } else { Err(format!("msg_control: expected {expected:?}, got {control:?}")) }
}
