//! The command `sockets`: all shards one after the other, [`PIECE_SOCKETS`] at a time.
//!
//! One question is on its way at any time. The shard copies records (some hundred bytes each) and goes on; making text of them is
//! the server's work. The next piece is asked for when the client has room, so a client that reads slowly makes the dump
//! slow and nothing else.

use linerate_base::Errno;
use linerate_stack::diag::{DiagCursor, DiagFilter, DiagState, SockDiag};
use serde_json::{Map, Value, json};

use super::command::{Command, Cx, Started, Step, all_ended, fields};
use super::door::{Answer, Reply};
use super::proto::{Refusal, SocketRecord, SocketsRequest};

/// Sockets that a shard tells of between two turns.
pub(crate) const PIECE_SOCKETS: usize = 64;

/// What a shard answers: some sockets, where it stands, and whether there may be more.
type Piece = (Vec<SockDiag>, DiagCursor, bool);

struct Sockets {
    filter: DiagFilter,
    shard: usize,
    cursor: DiagCursor,
    asked: Option<Answer<Piece>>,
    /// A shard has answered.
    alive: bool,
    told: u64,
}

pub(crate) fn start(given: Map<String, Value>) -> Started {
    let request: SocketsRequest = fields(given)?;
    let mut states = if request.states.is_empty() { u16::MAX } else { 0 };
    for name in &request.states {
        let state = DiagState::ALL.into_iter().find(|state| state.name() == name).ok_or_else(|| {
            let names: Vec<_> = DiagState::ALL.iter().map(|state| state.name()).collect();
            Refusal::new(Errno::EINVAL, format!("no state {name:?}"), format!("states are {}", names.join(", ")))
        })?;
        states |= state.bit();
    }
    let SocketsRequest { tcp, udp, v4, v6, info, .. } = request;
    let filter = DiagFilter { tcp, udp, v4, v6, states, info };
    Ok(Box::new(Sockets { filter, shard: 0, cursor: DiagCursor::default(), asked: None, alive: false, told: 0 }))
}

impl Sockets {
    fn take(&mut self, cx: &mut Cx<'_>, piece: Piece) -> Result<(), Refusal> {
        let (sockets, cursor, more) = piece;
        self.alive = true;
        for socket in &sockets {
            cx.emit("socket", &SocketRecord::new(self.shard, socket))?;
        }
        self.told += sockets.len() as u64;
        self.cursor = cursor;
        if !more {
            self.next_shard();
        }
        Ok(())
    }
    fn next_shard(&mut self) {
        self.shard += 1;
        self.cursor = DiagCursor::default();
    }
}

impl Command for Sockets {
    fn advance(&mut self, cx: &mut Cx<'_>) -> Result<Step, Refusal> {
        if let Some(answer) = &mut self.asked {
            match answer.take() {
                Reply::Pending => return Ok(Step::Wait),
                Reply::Ready(piece) => self.take(cx, piece)?,
                Reply::Gone => self.next_shard(),
            }
            self.asked = None;
        }
        if !cx.has_room() {
            return Ok(Step::Wait);
        }
        let (filter, mut cursor) = (self.filter, self.cursor);
        self.asked = cx.ask(self.shard, move |shard| {
            let mut sockets = Vec::new();
            let more = shard.diag(&filter, &mut cursor, PIECE_SOCKETS, &mut sockets);
            (sockets, cursor, more)
        });
        match (&self.asked, self.alive) {
            (Some(_), _) => Ok(Step::Wait),
            // There is no shard of that number: all have told.
            (None, true) => Ok(Step::Done(json!({ "sockets": self.told }))),
            (None, false) => Err(all_ended()),
        }
    }
}
