//! One client of the server: bytes in, lines, a command at a time, bytes out.
//!
//! ```text
//!   recv ─▶ input (at most a line and a little) ─▶ line ─▶ Command ─▶ out ─▶ send
//! ```
//! Nothing here waits. While a command runs, or while `out` is not taken, no further line is looked at and, once `input`
//! is full, nothing more is received: what a client sends too early stays in the socket's buffer. A line that is too long
//! ends the client, because where the next one begins is not known; any other mistake is answered and forgiven.
//!
//! A client that closed its sending side still gets what it asked for. One that closed both is gone, and its command with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linerate_base::Errno;
use rustix::event::PollFlags;
use rustix::io::Errno as Os;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::command::{self, Command, Cx, Step};
use super::door::{Bell, Door};
use super::proto::{MAX_LINE_BYTES, Refusal};

/// Bytes that wait to be taken by a client at which its command pauses.
const OUT_MARK: usize = 64 << 10;
/// Bytes received at a time.
const CHUNK: usize = 4096;

/// Is a client still there?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// Yes.
    Here,
    /// It may be dropped.
    Over,
}

pub(super) struct Peer {
    fd: OwnedFd,
    input: Vec<u8>,
    out: Vec<u8>,
    command: Option<Box<dyn Command>>,
    /// It sends no more.
    eof: bool,
    /// After what is in `out` it is cut off.
    hang_up: bool,
    /// When it last asked something: the server's count of events.
    pub(super) last_event: u64,
}

impl Peer {
    pub(super) fn new(fd: OwnedFd, event: u64) -> Self {
        let (input, out) = (Vec::new(), Vec::new());
        Self { fd, input, out, command: None, eof: false, hang_up: false, last_event: event }
    }
    /// A client that is told why it is not served.
    pub(super) fn refuse(fd: OwnedFd, refusal: &Refusal) {
        let mut this = Self::new(fd, 0);
        this.refused(refusal);
        this.flush();
    }
    /// It asks nothing and is told nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.command.is_none() && self.out.is_empty()
    }
    /// What to sleep for. A hang-up ends every sleep.
    pub(super) fn interest(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.wants_input());
        flags.set(PollFlags::OUT, !self.out.is_empty());
        flags
    }
    fn wants_input(&self) -> bool {
        !self.eof && !self.hang_up && self.input.len() <= MAX_LINE_BYTES
    }

    /// Something happened: on its descriptor, or to an answer that its command waits for.
    pub(super) fn advance(&mut self, seen: PollFlags, doors: &[Door], bell: &Bell) -> Life {
        if seen.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return Life::Over;
        }
        if seen.contains(PollFlags::IN) && self.receive() == Life::Over {
            return Life::Over;
        }
        loop {
            let was_full = self.run(doors, bell);
            if self.flush() == Life::Over {
                return Life::Over;
            }
            let goes_on = match self.command {
                Some(_) => was_full && self.has_room(),
                None => self.has_room() && self.take_line(),
            };
            if !goes_on {
                break;
            }
        }
        if self.flush() == Life::Over {
            return Life::Over;
        }
        let spent = self.eof && self.input.is_empty() && self.command.is_none();
        if self.out.is_empty() && (self.hang_up || spent) { Life::Over } else { Life::Here }
    }

    fn has_room(&self) -> bool {
        self.out.len() < OUT_MARK
    }

    /// Lets the command go on; true when it may have stopped for want of room.
    fn run(&mut self, doors: &[Door], bell: &Bell) -> bool {
        let Some(command) = &mut self.command else { return false };
        match command.advance(&mut Cx { doors, bell, out: &mut self.out, mark: OUT_MARK, eof: self.eof }) {
            Ok(Step::Wait) => return !self.has_room(),
            Ok(Step::Done(said)) => self.say("done", &said),
            Err(refusal) => self.refused(&refusal),
        }
        self.command = None;
        false
    }

    fn say(&mut self, key: &str, value: &impl serde::Serialize) {
        let line = serde_json::json!({ key: value });
        self.out.extend_from_slice(line.to_string().as_bytes());
        self.out.push(b'\n');
    }
    fn refused(&mut self, refusal: &Refusal) {
        self.say("error", refusal);
    }

    /// Starts the command of the next line, or answers what is wrong with it. False when there is no line.
    fn take_line(&mut self) -> bool {
        let end = self.input.iter().position(|&b| b == b'\n');
        if end.unwrap_or(self.input.len()) > MAX_LINE_BYTES {
            let message = format!("a line of more than {MAX_LINE_BYTES} bytes");
            self.refused(&Refusal::new(Errno::EMSGSIZE, message, "connect again and send shorter lines"));
            self.input.clear();
            self.hang_up = true;
            return false;
        }
        let Some(end) = end else {
            if self.eof && !self.input.is_empty() {
                self.input.clear();
                let hint = "end each request with a newline";
                self.refused(&Refusal::new(Errno::EPROTO, "the last line has no end", hint));
            }
            return false;
        };
        let line: Vec<u8> = self.input.drain(..=end).collect();
        if !line.trim_ascii().is_empty() {
            match command::start(&line) {
                Ok(command) => self.command = Some(command),
                Err(refusal) => self.refused(&refusal),
            }
        }
        true
    }

    /// Takes what is here, at most [`CHUNK`]; the next sleep ends at once when there is more.
    fn receive(&mut self) -> Life {
        let mut chunk = [0; CHUNK];
        match recv(&self.fd, &mut chunk, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.eof = true,
            Ok((got, _)) => self.input.extend_from_slice(chunk.get(..got).unwrap_or_default()),
            Err(Os::AGAIN | Os::INTR) => {}
            Err(_) => return Life::Over,
        }
        Life::Here
    }

    /// Sends what the client takes.
    fn flush(&mut self) -> Life {
        let mut sent = 0;
        while let Some(rest) = self.out.get(sent..).filter(|rest| !rest.is_empty()) {
            match send(&self.fd, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => sent += n,
                Err(Os::INTR) => {}
                Err(Os::AGAIN) => break,
                Err(_) => return Life::Over,
            }
        }
        self.out.drain(..sent);
        Life::Here
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
