//! The server: takes one client at a time, does what it asks, and goes on with the next.
//!
//! Every accepted connection first waits in `waiting` until its 37-byte cookie is here; so a client that says nothing
//! blocks nobody. With no test under way a cookie begins one; with one under way it must be that test's cookie (a
//! data connection), else the answer is `AccessDenied`. What goes wrong with one client ends that client's test with one
//! line on standard error, and `ServerError` with iperf3's number to the client, never the server.
//!
//! Limits: [`WAITING_MAX`] connections without a cookie, each for [`COOKIE_TIMEOUT`]; [`super::engine::CONTROL_TIMEOUT`] for
//! each step of the protocol; parameters and results are bounded by `proto`; a test that its client does not end is ended.

use std::net::SocketAddr;

use linerate_base::rng::Rng;
use linerate_base::{Duration, Instant};
use linerate_stack::{BindOpts, How, RecvError, Shard, SockId, SockOpts};

use super::engine::{Engine, Settings, earlier};
use super::proto::{COOKIE_LEN, Cookie, State};
use super::session::{Session, Step};

/// Connections that have not yet said who they are.
const WAITING_MAX: usize = 256;
/// How long one may take to say it.
const COOKIE_TIMEOUT: Duration = Duration::from_secs(5);
/// Half-open and unaccepted connections.
const BACKLOG: u32 = 512;

/// Where and how to serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerConfig {
    pub(crate) listen: SocketAddr,
    /// An unspecified IPv6 address takes no IPv4.
    pub(crate) v6only: bool,
    /// End after one test.
    pub(crate) one_off: bool,
    pub(crate) settings: Settings,
}

/// A connection whose cookie is not complete.
struct Waiting {
    sock: SockId,
    got: [u8; COOKIE_LEN],
    len: usize,
    deadline: Instant,
}

/// What became of a waiting connection.
enum Introduced {
    /// Its cookie.
    Said([u8; COOKIE_LEN]),
    /// Not yet.
    Nothing,
    /// It closed, broke or took too long.
    Gone,
}

/// A server and the test it runs.
pub(crate) struct Server {
    config: ServerConfig,
    listener: Option<SockId>,
    waiting: Vec<Waiting>,
    session: Option<Session>,
    rng: Rng,
    tests: u64,
    announced: bool,
    out: String,
    errors: Vec<String>,
    outcome: Option<Result<(), String>>,
}

impl Server {
    pub(crate) fn new(config: ServerConfig) -> Self {
        Self {
            rng: Rng::new(config.settings.around.seed),
            config,
            listener: None,
            waiting: Vec::new(),
            session: None,
            tests: 0,
            announced: false,
            out: String::new(),
            errors: Vec::new(),
            outcome: None,
        }
    }

    /// The test under way.
    #[cfg(test)]
    pub(crate) fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }
    /// Tests that were begun.
    #[cfg(test)]
    pub(crate) fn tests(&self) -> u64 {
        self.tests
    }

    fn listen(&mut self, shard: &mut Shard) -> Result<SockId, String> {
        if let Some(listener) = self.listener {
            return Ok(listener);
        }
        let bind = BindOpts { reuseaddr: true, v6only: self.config.v6only, ..BindOpts::default() };
        let listener = shard
            .tcp_listen(self.config.listen, BACKLOG, &SockOpts::default(), bind)
            .map_err(|e| format!("unable to listen on {}: {e}", self.config.listen))?;
        self.listener = Some(listener);
        Ok(listener)
    }

    fn announce(&mut self) {
        if self.announced || self.config.settings.json {
            return;
        }
        self.announced = true;
        let rule = "-".repeat(59);
        let (port, number) = (self.config.listen.port(), self.tests + 1);
        self.out.push_str(&format!("{rule}\nServer listening on {port} (test #{number})\n{rule}\n"));
    }

    fn accept(&mut self, shard: &mut Shard, listener: SockId, now: Instant) -> bool {
        let mut progress = false;
        while let Ok(sock) = shard.accept(listener) {
            progress = true;
            if self.waiting.len() >= WAITING_MAX {
                let _ = shard.abort(sock);
                continue;
            }
            self.waiting.push(Waiting { sock, got: [0; COOKIE_LEN], len: 0, deadline: now + COOKIE_TIMEOUT });
        }
        progress
    }

    /// Looks who has introduced itself. In the order of arrival: streams are counted in it.
    fn introduce(&mut self, shard: &mut Shard, listener: SockId, now: Instant) -> bool {
        let mut progress = false;
        let mut at = 0;
        while at < self.waiting.len() {
            let sock = self.waiting[at].sock;
            match self.waiting[at].poll(shard, now) {
                Introduced::Nothing => at += 1,
                Introduced::Gone => {
                    let _ = shard.abort(sock);
                    self.waiting.remove(at);
                    progress = true;
                }
                Introduced::Said(cookie) => {
                    self.waiting.remove(at);
                    self.admit(shard, listener, sock, &cookie, now);
                    progress = true;
                }
            }
        }
        progress
    }

    /// A cookie is here: a new client, a stream of the present one, or somebody who has to wait.
    fn admit(&mut self, shard: &mut Shard, listener: SockId, sock: SockId, said: &[u8; COOKIE_LEN], now: Instant) {
        let cookie = Cookie::parse(said);
        if let Some(session) = &mut self.session {
            if cookie.is_ok_and(|cookie| session.wants(&cookie)) {
                if let Err(failure) = session.add_tcp_stream(shard, sock) {
                    self.errors.push(failure.to_string());
                    let _ = shard.abort(sock);
                }
                return;
            }
            let _ = shard.write(sock, &[State::AccessDenied.byte()]);
            let _ = shard.close(sock);
            return;
        }
        match (cookie, shard.local_addr(sock), shard.peer_addr(sock)) {
            (Ok(cookie), Some(local), Some(peer)) => {
                self.tests += 1;
                let session =
                    Session::new(sock, cookie, [local, peer], listener, self.config.settings, self.rng.fork(), now);
                self.session = Some(session);
            }
            (Err(error), _, peer) => {
                let who = peer.map_or_else(String::new, |peer| format!("{peer}: "));
                self.errors.push(format!("{who}{error}"));
                discard_and_close(shard, sock);
            }
            _ => drop(shard.abort(sock)),
        }
    }

    fn advance_session(&mut self, shard: &mut Shard, now: Instant) -> bool {
        let Some(session) = &mut self.session else { return false };
        let step = session.step(shard, now);
        self.out.push_str(&session.take_out());
        match step {
            Step::Idle => false,
            Step::Progress => true,
            Step::Over(result) => {
                self.end_session(shard, result);
                true
            }
        }
    }

    fn end_session(&mut self, shard: &mut Shard, result: Result<(), String>) {
        if let Some(mut session) = self.session.take() {
            session.let_go(shard);
            self.out.push_str(&session.take_out());
        }
        if let Some(listener) = self.listener {
            let _ = shard.with_opts(listener, |opts| *opts = SockOpts::default());
        }
        self.announced = false;
        match result {
            result if self.config.one_off => self.close(shard, result),
            Ok(()) => {}
            Err(message) => self.errors.push(message),
        }
    }

    fn close(&mut self, shard: &mut Shard, result: Result<(), String>) {
        for waiting in self.waiting.drain(..) {
            let _ = shard.abort(waiting.sock);
        }
        if let Some(listener) = self.listener.take() {
            let _ = shard.close(listener);
        }
        self.outcome = Some(result);
    }
}

impl Waiting {
    /// Reads no byte behind the cookie: that may be data of a stream.
    fn poll(&mut self, shard: &mut Shard, now: Instant) -> Introduced {
        while self.len < COOKIE_LEN {
            match shard.read(self.sock, &mut self.got[self.len..]) {
                Ok(0) => return Introduced::Gone,
                Ok(got) => self.len += got,
                Err(RecvError::WouldBlock) if now < self.deadline => return Introduced::Nothing,
                Err(_) => return Introduced::Gone,
            }
        }
        Introduced::Said(self.got)
    }
}

/// Closes so that what was written arrives: with unread bytes a close would be a reset.
pub(crate) fn discard_and_close(shard: &mut Shard, sock: SockId) {
    let _ = shard.read_discard(sock, 1 << 20);
    let _ = shard.shutdown(sock, How::Wr);
    let _ = shard.close(sock);
}

impl Engine for Server {
    fn step(&mut self, shard: &mut Shard, now: Instant) -> bool {
        if self.outcome.is_some() {
            return false;
        }
        let listener = match self.listen(shard) {
            Ok(listener) => listener,
            Err(message) => {
                self.outcome = Some(Err(message));
                return true;
            }
        };
        let mut progress = self.accept(shard, listener, now);
        if !self.waiting.is_empty() {
            progress |= self.introduce(shard, listener, now);
        }
        progress |= self.advance_session(shard, now);
        if self.session.is_none() && self.outcome.is_none() {
            self.announce();
        }
        progress
    }
    fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|w| w.deadline).min();
        earlier(waiting, self.session.as_ref().and_then(Session::next_deadline))
    }
    fn take_out(&mut self) -> String {
        std::mem::take(&mut self.out)
    }
    fn take_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.errors)
    }
    fn outcome(&self) -> Option<Result<(), String>> {
        self.outcome.clone()
    }
    fn interrupt(&mut self, shard: &mut Shard, now: Instant) {
        if self.outcome.is_some() {
            return;
        }
        let result = match &mut self.session {
            // Nothing was lost: this is how a server ends.
            None => Ok(()),
            Some(session) => {
                session.interrupt(shard, now);
                Err("interrupt - the server has terminated".to_owned())
            }
        };
        if let Some(mut session) = self.session.take() {
            self.out.push_str(&session.take_out());
        }
        self.close(shard, result);
    }
}
