//! Socket options: names, ranges, and what Linux stores for what was set.
//!
//! [`TcpOpt`] is one `setsockopt`. Buffers are doubled, as Linux does, because its accounting includes overhead; they are
//! bounded by `rmem_max` and `wmem_max` before and by the smallest useful buffer after. A value out of range is refused
//! and changes nothing. Options set on a listener are inherited by the connections that complete afterwards; options set
//! on an unbound socket hold for its connection. Reading is plain: [`Shard::opts`].

use linerate_cong::Algorithm;
use linerate_tcp::SockOpts;

use crate::errors::OptError;
use crate::shard::Shard;
use crate::sock::{SockId, SockKind};
use crate::tcp::{Body, flag};

/// `net.core.rmem_max` and `wmem_max`, bytes, before doubling. Linux's classic 212,992 would cap a window at 200 KB where
/// autotuning reaches 16 MB; administrators raise it on every fast host, so the largest autotuned size is the bound here.
pub const BUF_MAX_BYTES: u32 = 16 << 20;
/// Smallest receive buffer, bytes of truesize (Linux SOCK_MIN_RCVBUF on 64 bit).
pub const RCVBUF_MIN_BYTES: u32 = 2304;
/// Smallest send buffer, bytes of truesize (Linux SOCK_MIN_SNDBUF).
pub const SNDBUF_MIN_BYTES: u32 = 4608;

/// One socket option with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TcpOpt<'a> {
    /// TCP_NODELAY.
    NoDelay(bool),
    /// TCP_CORK.
    Cork(bool),
    /// TCP_QUICKACK.
    QuickAck(bool),
    /// SO_KEEPALIVE.
    KeepAlive(bool),
    /// TCP_KEEPIDLE, 1..=32767 s.
    KeepIdle(u32),
    /// TCP_KEEPINTVL, 1..=32767 s.
    KeepIntvl(u32),
    /// TCP_KEEPCNT, 1..=127.
    KeepCnt(u32),
    /// TCP_SYNCNT, 1..=127.
    SynCnt(u32),
    /// TCP_USER_TIMEOUT, ms; 0 = off.
    UserTimeout(u32),
    /// SO_LINGER, seconds.
    Linger(Option<u32>),
    /// TCP_LINGER2, seconds: 0 = config, negative = no FIN-WAIT-2 for orphans.
    Linger2(i32),
    /// TCP_MAXSEG, bytes: 0 or 88..=32767.
    MaxSeg(u32),
    /// SO_RCVBUF, bytes; stored doubled.
    RcvBuf(u32),
    /// SO_SNDBUF, bytes; stored doubled.
    SndBuf(u32),
    /// TCP_WINDOW_CLAMP, bytes; 0 = none.
    WindowClamp(u32),
    /// TCP_NOTSENT_LOWAT, bytes.
    NotSentLowat(u32),
    /// TCP_RTO_MIN_US, at most the longest RTO; 0 = config.
    RtoMinUs(u32),
    /// TCP_CONGESTION.
    Congestion(&'a str),
    /// TCP_DEFER_ACCEPT, seconds.
    DeferAccept(u32),
    /// SO_RCVLOWAT, bytes.
    RcvLowat(u32),
}

/// What Linux stores for SO_RCVBUF.
pub fn rcvbuf_stored(bytes: u32) -> u32 {
    (bytes.min(BUF_MAX_BYTES) * 2).max(RCVBUF_MIN_BYTES)
}
/// What Linux stores for SO_SNDBUF.
pub fn sndbuf_stored(bytes: u32) -> u32 {
    (bytes.min(BUF_MAX_BYTES) * 2).max(SNDBUF_MIN_BYTES)
}

fn in_range(value: u32, low: u32, high: u32) -> Result<u32, OptError> {
    if (low..=high).contains(&value) { Ok(value) } else { Err(OptError::Invalid) }
}

/// Puts `opt` into `o`, or says why not.
fn apply(o: &mut SockOpts, opt: TcpOpt<'_>, rto_max_us: u32) -> Result<(), OptError> {
    match opt {
        TcpOpt::NoDelay(on) => o.nodelay = on,
        TcpOpt::Cork(on) => o.cork = on,
        TcpOpt::QuickAck(on) => o.quickack = Some(on),
        TcpOpt::KeepAlive(on) => o.keepalive = on,
        TcpOpt::KeepIdle(s) => o.keepidle_s = in_range(s, 1, 32_767)?,
        TcpOpt::KeepIntvl(s) => o.keepintvl_s = in_range(s, 1, 32_767)?,
        TcpOpt::KeepCnt(n) => o.keepcnt = in_range(n, 1, 127)? as u8,
        TcpOpt::SynCnt(n) => o.syncnt = in_range(n, 1, 127)? as u8,
        TcpOpt::UserTimeout(ms) => o.user_timeout_ms = in_range(ms, 0, i32::MAX as u32)?,
        TcpOpt::Linger(seconds) => o.linger_s = seconds,
        TcpOpt::Linger2(seconds) => o.linger2_s = seconds,
        TcpOpt::MaxSeg(0) => o.user_mss_bytes = 0,
        TcpOpt::MaxSeg(bytes) => o.user_mss_bytes = in_range(bytes, 88, 32_767)? as u16,
        TcpOpt::RcvBuf(bytes) => o.rcvbuf_bytes = rcvbuf_stored(bytes),
        TcpOpt::SndBuf(bytes) => o.sndbuf_bytes = sndbuf_stored(bytes),
        TcpOpt::WindowClamp(0) => o.window_clamp_bytes = 0,
        TcpOpt::WindowClamp(bytes) => o.window_clamp_bytes = bytes.max(RCVBUF_MIN_BYTES / 2),
        TcpOpt::NotSentLowat(bytes) => o.notsent_lowat_bytes = bytes,
        TcpOpt::RtoMinUs(us) => o.rto_min_us = in_range(us, 0, rto_max_us)?,
        TcpOpt::Congestion(name) => {
            let known = Algorithm::names().iter().find(|n| **n == name);
            o.congestion_control = Some(known.ok_or(OptError::NoSuchAlgorithm)?);
        }
        TcpOpt::DeferAccept(seconds) => o.defer_accept_s = seconds,
        // Not part of what is inherited: the connection keeps it.
        TcpOpt::RcvLowat(_) => {}
    }
    Ok(())
}

impl Shard {
    /// Sets one option.
    ///
    /// # Errors
    /// See [`OptError`].
    pub fn set_opt(&mut self, id: SockId, opt: TcpOpt<'_>) -> Result<(), OptError> {
        let mut wanted = self.opts(id).ok_or(OptError::BadSocket)?.clone();
        apply(&mut wanted, opt, self.core.cfg.tcp.rto_max_us)?;
        if let TcpOpt::RcvLowat(bytes) = opt {
            self.tcp.with_conn(&mut self.core, id, |conn, _| conn.set_rcvlowat(bytes));
            return Ok(());
        }
        self.with_opts(id, |opts| *opts = wanted)
    }

    /// Changes options directly; values are as stored (buffers already doubled) and not checked.
    ///
    /// # Errors
    /// [`OptError::BadSocket`].
    pub fn with_opts(&mut self, id: SockId, change: impl FnOnce(&mut SockOpts)) -> Result<(), OptError> {
        let sock = self.tcp.sock_mut(id).ok_or(OptError::BadSocket)?;
        match &mut sock.body {
            Body::Unbound(u) => change(u.opts.make_mut()),
            Body::Listen(l) => change(l.opts.make_mut()),
            Body::Conn(_) => {
                self.tcp.with_conn(&mut self.core, id, |conn, cx| conn.set_opts(cx, change));
            }
        }
        if let Some(sock) = self.tcp.sock_mut(id) {
            sock.note_min_ttl();
        }
        Ok(())
    }

    /// The options as stored.
    pub fn opts(&self, id: SockId) -> Option<&SockOpts> {
        Some(self.tcp.sock(id)?.opts())
    }

    /// Connections that wait to be accepted, and the bound of their number; `None` for a socket that does not listen.
    pub fn accept_queue(&self, id: SockId) -> Option<(usize, u32)> {
        match &self.tcp.sock(id)?.body {
            Body::Listen(l) => Some((l.accept.len(), l.backlog)),
            _ => None,
        }
    }

    /// Is the socket one whose application let go?
    pub fn is_orphan(&self, id: SockId) -> bool {
        id.kind() == SockKind::Tcp && self.tcp.sock(id).is_some_and(|s| s.has(flag::ORPHAN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_doubling() {
        let mut o = SockOpts::default();
        for bad in [
            TcpOpt::KeepIdle(0),
            TcpOpt::KeepCnt(128),
            TcpOpt::MaxSeg(87),
            TcpOpt::MaxSeg(32_768),
            TcpOpt::UserTimeout(u32::MAX),
            TcpOpt::RtoMinUs(200_000_000),
        ] {
            assert_eq!(apply(&mut o, bad, 120_000_000), Err(OptError::Invalid), "{bad:?}");
        }
        assert_eq!(apply(&mut o, TcpOpt::Congestion("vegas9"), 0), Err(OptError::NoSuchAlgorithm));
        assert_eq!(o, SockOpts::default());
        apply(&mut o, TcpOpt::RcvBuf(10_000), 0).unwrap();
        apply(&mut o, TcpOpt::SndBuf(1), 0).unwrap();
        apply(&mut o, TcpOpt::Congestion("reno"), 0).unwrap();
        assert_eq!((o.rcvbuf_bytes, o.sndbuf_bytes, o.congestion_control), (20_000, 4608, Some("reno")));
        assert_eq!(rcvbuf_stored(u32::MAX), 32 << 20);
    }
}
