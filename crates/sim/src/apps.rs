//! Applications whose every byte and step follows from a seed.
//!
//! An [`Endpoint`] is one end of one connection. It has a script of what to send and when, and a reader with its own
//! temper: sizes of reads, pauses, or no reading at all. Bulk senders, request and response, half close, abort in the
//! middle and storms of short connections are scripts, not programs.
//!
//! Stream content is a function of the flow and of the position, so a receiver checks every byte without knowing what
//! was sent: byte `p` of a direction is `TABLE[(key + p) mod 65521]`. The period is a prime above any segment, so that a
//! segment in the wrong place never looks right. Length and end are compared after the run by [`compare_streams`].
//!
//! Endpoints use the inline verbs between turns and never block; they poll when the network says that something moved.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::OnceLock;

use linerate_base::{Duration, Instant, Rng};
use linerate_stack::{Ready, Shard, SockId};
use linerate_tcp::{How, RecvError, SendError, SockOpts, SocketError};

use crate::checkers::Violations;

/// Most bytes of one read or write.
pub const CHUNK_MAX: usize = 65_536;
const PERIOD: usize = 65_521;

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut bytes = vec![0; PERIOD + CHUNK_MAX];
        Rng::new(0x7061_7474_6572_6e21).fill(&mut bytes[..PERIOD]);
        bytes.copy_within(..CHUNK_MAX.min(PERIOD), PERIOD);
        let rest = CHUNK_MAX - CHUNK_MAX.min(PERIOD);
        bytes.copy_within(..rest, 2 * PERIOD);
        bytes
    })
}

/// `len` (at most [`CHUNK_MAX`]) bytes of the stream `key` from position `at` on.
pub fn pattern(key: u64, at: u64, len: usize) -> &'static [u8] {
    let start = ((key % PERIOD as u64) + at % PERIOD as u64) as usize % PERIOD;
    &table()[start..start + len.min(CHUNK_MAX)]
}

/// What the writing side does, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Sends so many bytes.
    Send(u64),
    /// Goes on when so many bytes were read, counted from the beginning.
    AwaitRead(u64),
    /// Goes on when the peer has ended its stream.
    AwaitEnd,
    /// Does nothing for a while.
    Sleep(Duration),
    /// Ends the own stream; the peer's goes on.
    Shutdown,
    /// Resets the connection.
    Abort,
}

/// What one end of a connection does.
#[derive(Clone, Debug)]
pub struct Script {
    /// What is sent, and when.
    pub ops: Vec<Op>,
    /// A write hands over 1 to so many bytes.
    pub write_max: usize,
    /// A read asks for 1 to so many bytes.
    pub read_max: usize,
    /// After a read: with this probability nothing is read for that long.
    pub read_pause: (f64, Duration),
    /// Never reads; closes when the ops are done.
    pub never_read: bool,
    /// Closes when the ops are done, without waiting for the peer's end.
    pub close_early: bool,
    /// Socket options.
    pub opts: SockOpts,
}

impl Script {
    /// Sends `bytes`, ends the stream, reads to the peer's end, closes.
    pub fn send(bytes: u64) -> Self {
        Self::of(vec![Op::Send(bytes), Op::Shutdown])
    }
    /// Only reads; ends its stream when the peer has.
    pub fn sink() -> Self {
        Self::of(vec![Op::AwaitEnd, Op::Shutdown])
    }
    /// Ends its own stream at once and reads to the peer's end: half close from the start.
    pub fn sink_after_shutdown() -> Self {
        Self::of(vec![Op::Shutdown])
    }
    /// These ops, with large reads and writes and no pauses.
    pub fn of(ops: Vec<Op>) -> Self {
        Self {
            ops,
            write_max: CHUNK_MAX,
            read_max: CHUNK_MAX,
            read_pause: (0.0, Duration::ZERO),
            never_read: false,
            close_early: false,
            opts: SockOpts::DEFAULT,
        }
    }
    /// The asking side of `rounds` requests of `req` bytes with answers of `resp` bytes.
    pub fn client_rr(rounds: u64, req: u64, resp: u64) -> Self {
        let round = |n| [Op::Send(req), Op::AwaitRead((n + 1) * resp)];
        Self::of((0..rounds).flat_map(round).chain([Op::Shutdown]).collect())
    }
    /// The answering side of the same.
    pub fn server_rr(rounds: u64, req: u64, resp: u64) -> Self {
        let round = |n| [Op::AwaitRead((n + 1) * req), Op::Send(resp)];
        Self::of((0..rounds).flat_map(round).chain([Op::AwaitEnd, Op::Shutdown]).collect())
    }
}

/// Both ends of a connection, the one that dialled first.
pub type FlowName = (SocketAddr, SocketAddr);

/// One end of one connection.
pub struct Endpoint {
    /// The socket, until it is closed.
    pub sock: Option<SockId>,
    /// Which flow.
    pub name: FlowName,
    /// The end that dialled.
    pub is_client: bool,
    ops: VecDeque<Op>,
    script: Script,
    rng: Rng,
    connected: bool,
    wake: Option<Instant>,
    read_wake: Option<Instant>,
    /// Bytes that the stack took.
    pub written: u64,
    /// Bytes of the current `Send` still to be handed over.
    left: u64,
    /// Bytes read and verified.
    pub read: u64,
    /// The peer's end was read.
    pub eof: bool,
    /// We ended our stream.
    pub fin: bool,
    /// We reset the connection on purpose.
    pub aborted: bool,
    /// How the connection failed, if it did.
    pub error: Option<SocketError>,
    /// A byte that should not have been there.
    pub mismatch: Option<String>,
    /// When it was made, and when it was done.
    pub times: (Instant, Option<Instant>),
}

fn stream_key(name: &FlowName, from_client: bool) -> u64 {
    let port = |a: &SocketAddr| u64::from(a.port());
    port(&name.0).wrapping_mul(7919) + port(&name.1).wrapping_mul(104_729) + u64::from(from_client) * 15_485_863
}

impl Endpoint {
    /// One end of `name`.
    pub fn new(sock: SockId, name: FlowName, is_client: bool, script: Script, rng: Rng, now: Instant) -> Self {
        Self {
            sock: Some(sock),
            name,
            is_client,
            ops: script.ops.clone().into(),
            script,
            rng,
            connected: false,
            wake: None,
            read_wake: None,
            written: 0,
            left: 0,
            read: 0,
            eof: false,
            fin: false,
            aborted: false,
            error: None,
            mismatch: None,
            times: (now, None),
        }
    }
    /// Nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.sock.is_none()
    }
    /// When it wants to be polled although nothing moved.
    pub fn next_wake(&self) -> Option<Instant> {
        match (self.wake, self.read_wake) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Reads (into `scratch`) and writes what is possible. True when anything moved.
    pub fn poll(&mut self, now: Instant, shard: &mut Shard, scratch: &mut [u8]) -> bool {
        let Some(sock) = self.sock else { return false };
        if !self.connected {
            // A shutdown during the handshake would abort it, as on Linux; whatever ended the attempt is read below.
            self.connected = shard.readiness(sock).intersects(Ready::CONNECTED | Ready::HUP | Ready::ERROR);
            if !self.connected {
                return false;
            }
        }
        let reads = self.poll_read(now, shard, sock, scratch);
        let writes = self.poll_ops(now, shard, sock);
        // What was read may be what an op waited for, and the other way round.
        let more = (reads || writes) && self.sock.is_some() && self.poll_ops(now, shard, sock);
        self.finish(now, shard);
        reads || writes || more
    }

    fn finish(&mut self, now: Instant, shard: &mut Shard) {
        let Some(sock) = self.sock else { return };
        let scripted = self.ops.is_empty() && self.wake.is_none_or(|at| at <= now);
        let over = scripted && (self.eof || self.script.close_early || self.aborted || self.script.never_read);
        if over || self.error.is_some() {
            if !self.aborted {
                // A socket that died of itself may be gone; there is nothing to learn from that here.
                let _ = shard.close(sock);
            }
            self.sock = None;
            (self.wake, self.read_wake) = (None, None);
            self.times.1 = Some(now);
        }
    }

    fn poll_read(&mut self, now: Instant, shard: &mut Shard, sock: SockId, scratch: &mut [u8]) -> bool {
        if self.script.never_read || self.eof || self.error.is_some() {
            return false;
        }
        if self.read_wake.is_some_and(|at| now < at) {
            return false;
        }
        self.read_wake = None;
        let key = stream_key(&self.name, !self.is_client);
        let most = self.script.read_max.min(CHUNK_MAX).min(scratch.len());
        let buf = &mut scratch[..most];
        let mut moved = false;
        loop {
            let ask = self.rng.range(1, buf.len() as u64) as usize;
            match shard.read(sock, &mut buf[..ask]) {
                Ok(0) => {
                    self.eof = true;
                    return true;
                }
                Ok(n) => {
                    moved = true;
                    if buf[..n] != *pattern(key, self.read, n) && self.mismatch.is_none() {
                        let at = buf[..n].iter().zip(pattern(key, self.read, n)).position(|(a, b)| a != b);
                        self.mismatch =
                            Some(format!("wrong byte at {} of the stream", self.read + at.unwrap_or(0) as u64));
                    }
                    self.read += n as u64;
                    let (chance, pause) = self.script.read_pause;
                    if chance > 0.0 && self.rng.chance(chance) {
                        self.read_wake = Some(now + pause);
                        return true;
                    }
                }
                Err(RecvError::WouldBlock) => return moved,
                Err(RecvError::Socket(e)) => {
                    self.error = Some(e);
                    return true;
                }
                Err(e) => {
                    self.mismatch.get_or_insert_with(|| format!("read failed with {e:?}"));
                    self.error = Some(SocketError::Aborted);
                    return true;
                }
            }
        }
    }

    fn poll_ops(&mut self, now: Instant, shard: &mut Shard, sock: SockId) -> bool {
        let mut moved = false;
        while self.error.is_none() {
            if self.wake.is_some_and(|at| now < at) {
                return moved;
            }
            self.wake = None;
            let Some(op) = self.ops.front().copied() else { return moved };
            let goes_on = match op {
                Op::Send(n) => {
                    if self.left == 0 {
                        self.left = n;
                    }
                    let before = self.written;
                    let all = self.push(shard, sock);
                    moved |= self.written > before;
                    all
                }
                Op::AwaitRead(n) => self.read >= n || self.eof,
                Op::AwaitEnd => self.eof,
                Op::Sleep(d) => {
                    self.wake = Some(now + d);
                    true
                }
                Op::Shutdown => {
                    self.fin = shard.shutdown(sock, How::Wr).is_ok();
                    true
                }
                Op::Abort => {
                    let _ = shard.abort(sock);
                    self.aborted = true;
                    self.ops.clear();
                    return true;
                }
            };
            if !goes_on {
                return moved;
            }
            moved = true;
            self.ops.pop_front();
        }
        moved
    }

    /// Hands over what is left of the current `Send`; true when that is all of it.
    fn push(&mut self, shard: &mut Shard, sock: SockId) -> bool {
        let key = stream_key(&self.name, self.is_client);
        while self.left > 0 {
            let most = self.left.min(self.script.write_max.min(CHUNK_MAX) as u64);
            let len = self.rng.range(1, most) as usize;
            match shard.write(sock, pattern(key, self.written, len)) {
                Ok(n) => {
                    self.written += n as u64;
                    self.left -= n as u64;
                }
                Err(SendError::WouldBlock) => return false,
                Err(SendError::Socket(e)) => {
                    self.error = Some(e);
                    return false;
                }
                Err(_) => {
                    self.error = Some(SocketError::BrokenPipe);
                    return false;
                }
            }
        }
        true
    }
}

/// Compares what both ends of every flow say (endpoints of all hosts, in the order in which they were made).
pub fn compare_streams<'a>(endpoints: impl Iterator<Item = &'a Endpoint>, found: &mut Violations) {
    let mut flows: BTreeMap<FlowName, [Vec<&Endpoint>; 2]> = BTreeMap::new();
    for e in endpoints {
        if let Some(what) = &e.mismatch {
            found.note(|| format!("flow {:?}: {what}", e.name));
        }
        flows.entry(e.name).or_default()[usize::from(!e.is_client)].push(e);
    }
    for (name, [clients, servers]) in &flows {
        for (client, server) in clients.iter().zip(servers) {
            for (from, to) in [(client, server), (server, client)] {
                if to.read > from.written {
                    found.note(|| format!("flow {name:?}: {} bytes read of {} written", to.read, from.written));
                }
                if to.eof && from.fin && !from.aborted && to.error.is_none() && to.read != from.written {
                    found.note(|| {
                        format!("flow {name:?}: the stream ended after {} of {} bytes", to.read, from.written)
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_one_stream_however_it_is_cut() {
        for key in [0, 5, 65_520, 1 << 40] {
            let whole: Vec<u8> = (0..4u64).flat_map(|i| pattern(key, i * 65_536, CHUNK_MAX).to_vec()).collect();
            for at in [0u64, 1, 65_520, 65_521, 65_536, 131_000, 190_000] {
                assert_eq!(pattern(key, at, 3000), &whole[at as usize..at as usize + 3000]);
            }
        }
    }

    #[test]
    fn a_shifted_segment_is_seen() {
        for shift in [1u64, 536, 1448, 1460, 8960, 65_483] {
            assert_ne!(pattern(3, 10_000, 64), pattern(3, 10_000 + shift, 64));
        }
    }
}
