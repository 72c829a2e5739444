//! The control connection: states, lengths and JSON over a socket that never blocks.
//!
//! Reading is by need: [`Ctrl`] takes from the socket only the bytes of the message that is due, so what a peer sends
//! too early or too much stays in the socket's buffer, behind its window. Writing is by copy into a small queue that is
//! flushed whenever there is room. Nothing here knows the order of messages; that is the client's and the server's.
//!
//! Limits: a JSON text is refused by its length, before any of it is read; text is read as it comes, so memory grows only
//! with bytes that really arrived.

use std::fmt;

use linerate_stack::{Ready, RecvError, SendError, Shard, SockId};
use serde_json::Value;

use super::proto::{ProtocolError, State};

/// Why the control connection is of no more use.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum CtrlError {
    /// The peer closed it.
    Closed,
    /// It broke.
    Broken(String),
    /// The peer does not speak the protocol.
    Protocol(ProtocolError),
}

impl From<ProtocolError> for CtrlError {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

impl fmt::Display for CtrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer closed the control connection"),
            Self::Broken(why) => write!(f, "the control connection broke: {why}"),
            Self::Protocol(error) => error.fmt(f),
        }
    }
}

/// One end of a control connection.
pub(crate) struct Ctrl {
    sock: SockId,
    /// Not yet taken by the socket.
    out: Vec<u8>,
    /// The beginning of the message that is due.
    input: Vec<u8>,
}

impl Ctrl {
    pub(crate) const fn new(sock: SockId) -> Self {
        Self { sock, out: Vec::new(), input: Vec::new() }
    }
    pub(crate) const fn sock(&self) -> SockId {
        self.sock
    }
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
    pub(crate) fn send_state(&mut self, state: State) {
        self.out.push(state.byte());
    }
    /// `ServerError` with its number; errno is not told.
    pub(crate) fn send_error(&mut self, code: u32) {
        self.send_state(State::ServerError);
        self.out.extend_from_slice(&code.to_be_bytes());
        self.out.extend_from_slice(&0_u32.to_be_bytes());
    }
    pub(crate) fn send_json(&mut self, value: &Value) {
        let text = value.to_string();
        let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.out.extend_from_slice(&len.to_be_bytes());
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Hands to the socket what it takes; true when anything went.
    pub(crate) fn flush(&mut self, shard: &mut Shard) -> Result<bool, CtrlError> {
        if self.out.is_empty() {
            return Ok(false);
        }
        match shard.write(self.sock, &self.out) {
            Ok(wrote) => {
                self.out.drain(..wrote);
                Ok(wrote > 0)
            }
            Err(SendError::WouldBlock) => Ok(false),
            Err(error) => Err(CtrlError::Broken(error.to_string())),
        }
    }

    /// The next state, when it is here.
    pub(crate) fn state(&mut self, shard: &mut Shard) -> Result<Option<State>, CtrlError> {
        if !self.fill(shard, 1)? {
            return Ok(None);
        }
        let byte = self.input[0];
        self.input.clear();
        Ok(Some(State::parse(byte)?))
    }

    /// The two numbers that follow `ServerError`, when they are here: iperf3's and errno.
    pub(crate) fn error_numbers(&mut self, shard: &mut Shard) -> Result<Option<(u32, u32)>, CtrlError> {
        if !self.fill(shard, 8)? {
            return Ok(None);
        }
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| self.input[at + i]));
        let both = (word(0), word(4));
        self.input.clear();
        Ok(Some(both))
    }

    /// The next JSON text, when it is here: `what` it is, at most `limit` bytes long.
    pub(crate) fn json(
        &mut self,
        shard: &mut Shard,
        what: &'static str,
        limit: usize,
    ) -> Result<Option<Value>, CtrlError> {
        if !self.fill(shard, 4)? {
            return Ok(None);
        }
        let len = u32::from_be_bytes([0, 1, 2, 3].map(|i| self.input[i]));
        if len as usize > limit {
            return Err(ProtocolError::Oversized { what, len: u64::from(len), limit }.into());
        }
        if !self.fill(shard, 4 + len as usize)? {
            return Ok(None);
        }
        let value = serde_json::from_slice(&self.input[4..])
            .map_err(|e| ProtocolError::BadJson { what, why: e.to_string() })?;
        self.input.clear();
        Ok(Some(value))
    }

    /// Reads until `need` bytes are here; true when they are.
    fn fill(&mut self, shard: &mut Shard, need: usize) -> Result<bool, CtrlError> {
        if self.input.len() < need && !is_readable(shard, self.sock) {
            return Ok(false);
        }
        let mut chunk = [0_u8; 4096];
        while self.input.len() < need {
            let most = (need - self.input.len()).min(chunk.len());
            match shard.read(self.sock, &mut chunk[..most]) {
                Ok(0) => return Err(CtrlError::Closed),
                Ok(got) => self.input.extend_from_slice(&chunk[..got]),
                Err(RecvError::WouldBlock) => return Ok(false),
                Err(error) => return Err(CtrlError::Broken(error.to_string())),
            }
        }
        Ok(true)
    }
}

/// Is there anything to read: bytes, the end of the stream, an error? Asking costs less than a read that finds nothing.
pub(crate) fn is_readable(shard: &Shard, sock: SockId) -> bool {
    shard.readiness(sock).intersects(Ready::READABLE | Ready::RDHUP | Ready::HUP | Ready::ERROR)
}
