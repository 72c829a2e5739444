//! A tiny stack for the runner's own tests: one passive connection, no recovery.
//!
//! It answers a SYN, sends what is written in segments of [`MSS`] bytes (or uncut), acknowledges data 40 ms later,
//! repeats its SYN-ACK after one second, and lets accept and read block. It is *wrong on demand* ([`Flaws`]), because a
//! judge is tested with guilty ones. Invariants: time moves only in `advance`. It checks nothing that arrives: segments are
//! taken to be in order. It knows no FIN, no close exchange and one connection only.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use linerate_base::{Duration, Instant};

use super::ast::{ACK, PSH, SYN, TcpOption};
use super::backend::{Backend, BlockToken, Call, CallState, Completion, Outcome, Output, ShellOp};
use super::packet::{IpFields, Live, TcpFields, Transport, build_tcp, decode};

pub(crate) const MSS: usize = 1000;
pub(crate) const ISN: u32 = 4_000_000_000;

/// Deliberate faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flaws {
    pub(crate) bad_checksum: bool,
    pub(crate) dirty_payload: bool,
    pub(crate) uncut: bool,
    pub(crate) late_synack: bool,
    pub(crate) wrong_peer: bool,
    pub(crate) panics: bool,
}

#[derive(Default)]
pub(crate) struct Fake {
    flaws: Flaws,
    mapped: bool,
    now: Instant,
    timers: BTreeMap<Instant, Vec<u8>>,
    out: VecDeque<(Instant, Vec<u8>)>,
    peer: Option<(Live, TcpFields)>,
    snd_nxt: u32,
    rcv_nxt: u32,
    unread: i64,
    established: bool,
    waiting: Option<Call>,
    done: Option<Completion>,
    pub(crate) shell: Vec<ShellOp>,
}

impl Fake {
    pub(crate) fn new(flaws: Flaws, mapped: bool) -> Self {
        Self { flaws, mapped, ..Self::default() }
    }

    fn packet(&self, flags: u16, seq: u32, len: usize, options: Vec<TcpOption>) -> Vec<u8> {
        let (live, tcp) = self.peer.as_ref().expect("a SYN came first");
        let ip = IpFields { src: live.dst, dst: live.src, tos: 2, ttl: 64, flow_label: 9 };
        let fields = TcpFields {
            src_port: tcp.dst_port,
            dst_port: tcp.src_port,
            seq,
            ack: self.rcv_nxt,
            flags,
            win: 1000,
            urg: 0,
            options,
        };
        let mut bytes = build_tcp(&ip, &fields, len);
        if self.flaws.bad_checksum {
            *bytes.last_mut().expect("a packet has bytes") ^= 1;
        }
        if self.flaws.dirty_payload && len > 1 {
            // Two changes that leave the checksum right.
            let n = bytes.len();
            bytes[n - 1] = 1;
            let check = u16::from_be_bytes([bytes[36], bytes[37]]);
            let fixed = check.wrapping_sub(if n.is_multiple_of(2) { 1 } else { 256 });
            bytes[36..38].copy_from_slice(&fixed.to_be_bytes());
        }
        bytes
    }

    fn synack(&self) -> Vec<u8> {
        let ts = TcpOption::Timestamp { val: 777, ecr: 0 };
        let options = vec![TcpOption::Mss(1460), TcpOption::Nop, TcpOption::Nop, ts];
        self.packet(SYN | ACK, ISN, 0, options)
    }

    fn send(&mut self, len: usize) {
        let unit = if self.flaws.uncut { len } else { MSS };
        let mut left = len;
        while left > 0 {
            let n = left.min(unit);
            left -= n;
            let flags = if left == 0 { ACK | PSH } else { ACK };
            let bytes = self.packet(flags, self.snd_nxt, n, Vec::new());
            self.out.push_back((self.now, bytes));
            self.snd_nxt = self.snd_nxt.wrapping_add(n as u32);
        }
    }

    fn try_call(&mut self, call: &Call) -> Option<Outcome> {
        Some(match call {
            Call::Accept { .. } if self.established => {
                let (live, tcp) = self.peer.as_ref()?;
                let ip = match live.src {
                    std::net::IpAddr::V4(a) if self.mapped => a.to_ipv6_mapped().into(),
                    other => other,
                };
                let port = if self.flaws.wrong_peer { 1 } else { tcp.src_port };
                Outcome::with(9, Output::Addr(SocketAddr::new(ip, port)))
            }
            Call::Read { buf, .. } if self.unread > 0 => {
                let n = self.unread.min(buf.len as i64);
                self.unread -= n;
                Outcome::ok(n)
            }
            Call::Accept { .. } | Call::Read { .. } => return None,
            Call::Socket { .. } => Outcome::ok(7),
            Call::Write { buf, .. } if buf.null => Outcome::err(14),
            Call::Write { buf, .. } => {
                self.send(buf.len);
                Outcome::ok(buf.len as i64)
            }
            Call::GetSockOpt { .. } => Outcome::with(0, Output::Bytes(vec![1, 0, 0, 0])),
            _ => Outcome::ok(0),
        })
    }

    fn wake(&mut self) {
        if let Some(call) = self.waiting.take() {
            match self.try_call(&call) {
                Some(outcome) => self.done = Some(Completion { at: self.now, outcome }),
                None => self.waiting = Some(call),
            }
        }
    }
}

impl Backend for Fake {
    fn now(&self) -> Instant {
        self.now
    }
    fn next_timer(&self) -> Option<Instant> {
        self.timers.keys().next().copied()
    }
    fn advance(&mut self, until: Instant) {
        assert!(until >= self.now, "the clock never goes back");
        while let Some((at, bytes)) =
            self.timers.first_key_value().filter(|(at, _)| **at <= until).map(|(a, b)| (*a, b.clone()))
        {
            self.timers.remove(&at);
            self.out.push_back((at, bytes));
        }
        self.now = until;
    }
    fn inject(&mut self, packet: &[u8]) {
        assert!(!self.flaws.panics, "told to panic");
        let live = decode(packet).expect("the runner builds good packets");
        let Transport::Tcp(tcp) = live.transport.clone() else { return };
        let len = live.payload.len() as u32;
        if tcp.flags & SYN != 0 {
            self.rcv_nxt = tcp.seq.wrapping_add(1);
            self.snd_nxt = ISN.wrapping_add(1);
            self.peer = Some((live, tcp));
            let delay = Duration::from_millis(if self.flaws.late_synack { 20 } else { 0 });
            self.timers.insert(self.now + delay, self.synack());
            self.timers.insert(self.now + Duration::from_secs(1), self.synack());
            return;
        }
        self.established = true;
        self.timers.clear();
        if len > 0 {
            self.unread += i64::from(len);
            self.rcv_nxt = self.rcv_nxt.wrapping_add(len);
            let ack = self.packet(ACK, self.snd_nxt, 0, Vec::new());
            self.timers.insert(self.now + Duration::from_millis(40), ack);
        }
        self.wake();
    }
    fn next_output(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.out.pop_front()
    }
    fn syscall(&mut self, call: &Call) -> CallState {
        if let Some(outcome) = self.try_call(call) {
            return CallState::Done(outcome);
        }
        self.waiting = Some(call.clone());
        CallState::Blocked(BlockToken(1))
    }
    fn poll_blocked(&mut self, token: BlockToken) -> Option<Completion> {
        assert_eq!(token, BlockToken(1));
        self.done.take()
    }
    fn shell(&mut self, op: &ShellOp) -> Result<(), String> {
        self.shell.push(op.clone());
        if matches!(op, ShellOp::Other(_)) { Err("unknown command".into()) } else { Ok(()) }
    }
}
