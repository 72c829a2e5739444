//! Request and response on standing connections (`--test rr`).
//!
//! The client sends `--req` bytes, the server answers with `--resp` bytes as soon as the request is complete, the client
//! sends the next one. One transaction is open per connection. With both ends in one thread, a transaction is four turns
//! of a shard and no system call; the round trip is read from the slice's clock around it.

use std::sync::Arc;

use hdrhistogram::Histogram;
use linerate_base::Instant;
use linerate_stack::{RecvError, SendError, Shard, SockId};

use super::app::{App, Counters};

/// Longer round trips count as this long, nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// One connection at either end.
struct Line {
    sock: SockId,
    /// Bytes of the current message still to be sent.
    to_send: usize,
    /// Bytes of the current message still to be received.
    to_receive: usize,
    asked_at: Instant,
}

/// One end of request-response connections.
pub(crate) struct Rr {
    lines: Vec<Line>,
    client: bool,
    send_bytes: usize,
    receive_bytes: usize,
    out: Vec<u8>,
    buf: Vec<u8>,
    latency: Histogram<u64>,
    counters: Arc<Counters>,
}

impl Rr {
    /// A client asks with `send_bytes` and expects `receive_bytes`; a server the other way round.
    pub(crate) fn new(client: bool, send_bytes: usize, receive_bytes: usize) -> Result<Self, String> {
        Ok(Self {
            lines: Vec::new(),
            client,
            send_bytes,
            receive_bytes,
            out: vec![0x51; send_bytes],
            buf: vec![0; receive_bytes],
            latency: Histogram::new_with_max(LONGEST_NS, 3).map_err(|e| e.to_string())?,
            counters: Arc::default(),
        })
    }
    pub(crate) fn add(&mut self, sock: SockId) {
        let to_send = if self.client { self.send_bytes } else { 0 };
        let to_receive = if self.client { 0 } else { self.receive_bytes };
        self.lines.push(Line { sock, to_send, to_receive, asked_at: Instant::ZERO });
    }

    fn step_line(&mut self, at: usize, shard: &mut Shard, now: Instant) -> Result<bool, String> {
        let mut progress = false;
        loop {
            let line = &mut self.lines[at];
            let moved = if line.to_send > 0 {
                if self.client && line.to_send == self.send_bytes {
                    line.asked_at = now;
                }
                let rest = &self.out[self.send_bytes - line.to_send..];
                match shard.write(line.sock, rest) {
                    Ok(wrote) => {
                        line.to_send -= wrote;
                        Counters::add(&self.counters.written, wrote as u64);
                        if line.to_send == 0 {
                            // The answer is not there yet: it takes at least a turn.
                            line.to_receive = self.receive_bytes;
                            return Ok(true);
                        }
                        wrote > 0
                    }
                    Err(SendError::WouldBlock) => false,
                    Err(error) => return Err(format!("write: {error}")),
                }
            } else {
                match shard.read(line.sock, &mut self.buf[..line.to_receive]) {
                    Ok(0) => return Err("the other end closed".into()),
                    Ok(got) => {
                        line.to_receive -= got;
                        Counters::add(&self.counters.read, got as u64);
                        if line.to_receive == 0 {
                            line.to_send = self.send_bytes;
                            if self.client {
                                Counters::add(&self.counters.transactions, 1);
                                let ns = now.since(line.asked_at).as_nanos() as u64;
                                self.latency.saturating_record(ns.max(1));
                            }
                        }
                        true
                    }
                    Err(RecvError::WouldBlock) => false,
                    Err(error) => return Err(format!("read: {error}")),
                }
            };
            if !moved {
                return Ok(progress);
            }
            progress = true;
        }
    }
}

impl App for Rr {
    fn step(&mut self, shard: &mut Shard, now: Instant) -> Result<bool, String> {
        let mut progress = false;
        for at in 0..self.lines.len() {
            progress |= self.step_line(at, shard, now)?;
        }
        Ok(progress)
    }
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
    fn first_socket(&self) -> Option<SockId> {
        self.lines.first().map(|line| line.sock)
    }
    fn latency(&self) -> Option<&Histogram<u64>> {
        self.client.then_some(&self.latency)
    }
}
