//! One client of the server, from its cookie to its good-bye.
//!
//! ```text
//!   Asking ─▶ Opening ─▶ Running ─▶ Results ─▶ Display ─▶ over
//!   9 ─▶      10 ─▶      1, 2 ─▶    13 ─▶      JSON, 14 ─▶
//!   ◀─ JSON   ◀─ streams  ◀─ 4       ◀─ JSON    ◀─ 16
//! ```
//! A data connection of TCP is found by its cookie (the server's work); one of UDP by its greeting, which must come from the
//! client's address: the socket it came to is connected to its sender and answers, and a fresh one waits for the next. A
//! greeting that comes again is answered again.
//!
//! A step that fails ends the session with a message, and tells the client iperf3's number for it. Every phase has a
//! deadline except `Running`, where the test itself knows when nothing moves or time is long over.

use std::fmt;
use std::net::SocketAddr;

use linerate_base::Instant;
use linerate_base::rng::Rng;
use linerate_stack::udp::{BindOpts, RecvFlags, SendOpts, UdpRecvError};
use linerate_stack::{Shard, SockId, TcpOpt};
use serde_json::json;

use super::ctrl::{Ctrl, CtrlError};
use super::engine::{
    CONTROL_TIMEOUT, LAST_WORDS, Settings, buffers, congestion_name, earlier, set_udp_opts, sock_opts,
};
use super::proto::{
    Cookie, PARAMS_MAX, Params, Protocol, ProtocolError, RESULTS_MAX, Results, State, UDP_HELLO, UDP_HELLO_OLD,
    UDP_REPLY, UDP_REPLY_OLD, error_code,
};
use super::report::Report;
use super::server::discard_and_close;
use super::stream::Stream;
use super::summary::{Snapshot, Summary};
use super::test::{Role, Test};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The parameters are due.
    Asking,
    /// Streams are due.
    Opening,
    Running,
    /// The client's results are due.
    Results,
    /// The client's good-bye is due.
    Display,
}

/// Why a session ended before its time.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    /// iperf3's number, where the client is still there to hear it.
    code: Option<u32>,
}

impl Failure {
    fn new(message: impl Into<String>, code: Option<u32>) -> Self {
        Self { message: message.into(), code }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ProtocolError> for Failure {
    fn from(error: ProtocolError) -> Self {
        Self::new(error.to_string(), Some(error.code()))
    }
}

impl From<CtrlError> for Failure {
    fn from(error: CtrlError) -> Self {
        match error {
            CtrlError::Protocol(error) => error.into(),
            CtrlError::Closed => Self::new("the client has unexpectedly closed the connection", None),
            CtrlError::Broken(_) => Self::new(error.to_string(), None),
        }
    }
}

/// What a step of a session did.
pub(crate) enum Step {
    /// Nothing.
    Idle,
    /// Something.
    Progress,
    /// It is over.
    Over(Result<(), String>),
}

/// One client.
pub(crate) struct Session {
    settings: Settings,
    listener: SockId,
    ctrl: Ctrl,
    cookie: Cookie,
    local: SocketAddr,
    peer: SocketAddr,
    phase: Phase,
    deadline: Option<Instant>,
    rng: Rng,
    test: Option<Test>,
    /// Waits for the greeting of the next UDP stream.
    udp: Option<SockId>,
    congestion: String,
    before: Snapshot,
    theirs: Option<Results>,
    /// A stream broke, and how long the client may still say why.
    broken: Option<(String, Instant)>,
    report: Report,
}

impl Session {
    pub(crate) fn new(
        sock: SockId,
        cookie: Cookie,
        [local, peer]: [SocketAddr; 2],
        listener: SockId,
        settings: Settings,
        rng: Rng,
        now: Instant,
    ) -> Self {
        let mut report = Report::new(settings.json);
        report.begin_capture();
        report.line(&format!("Accepted connection from {}, port {}", peer.ip(), peer.port()));
        report.start_key("version", json!(concat!("linerate ", env!("CARGO_PKG_VERSION"))));
        report.start_key("accepted_connection", json!({ "host": peer.ip().to_string(), "port": peer.port() }));
        report.start_key("cookie", json!(cookie.to_string()));
        let mut ctrl = Ctrl::new(sock);
        ctrl.send_state(State::ParamExchange);
        Self {
            settings,
            listener,
            ctrl,
            cookie,
            local,
            peer,
            phase: Phase::Asking,
            deadline: Some(now + CONTROL_TIMEOUT),
            rng,
            test: None,
            udp: None,
            congestion: String::new(),
            before: Snapshot::default(),
            theirs: None,
            broken: None,
            report,
        }
    }

    /// What is measured.
    #[cfg(test)]
    pub(crate) fn test(&self) -> Option<&Test> {
        self.test.as_ref()
    }
    pub(crate) fn take_out(&mut self) -> String {
        self.report.take_out()
    }
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match &self.broken {
            Some((_, until)) => earlier(self.deadline, Some(*until)),
            None => earlier(self.deadline, self.test.as_ref().and_then(Test::next_deadline)),
        }
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.deadline = (phase != Phase::Running).then(|| now + CONTROL_TIMEOUT);
    }

    /// Goes on as far as it can now.
    pub(crate) fn step(&mut self, shard: &mut Shard, now: Instant) -> Step {
        match self.advance(shard, now) {
            Ok(None) => Step::Over(Ok(())),
            Ok(Some(true)) => Step::Progress,
            Ok(Some(false)) => Step::Idle,
            Err(failure) => {
                if let Some(code) = failure.code {
                    self.ctrl.send_error(code);
                }
                self.conclude(shard, now, Some(&failure.message));
                Step::Over(Err(failure.message))
            }
        }
    }

    /// `None`: the session is over.
    fn advance(&mut self, shard: &mut Shard, now: Instant) -> Result<Option<bool>, Failure> {
        if self.deadline.is_some_and(|at| now >= at) {
            return self.late();
        }
        let mut progress = self.ctrl.flush(shard)?;
        if self.phase == Phase::Opening {
            progress |= self.open_udp_streams(shard)?;
            progress |= self.start_if_complete(shard, now);
        }
        if let Some(test) = self.test.as_mut().filter(|_| self.broken.is_none()) {
            match test.step(shard, now, &mut self.report) {
                Ok(moved) => progress |= moved,
                Err(message) => self.broken = Some((message, now + LAST_WORDS)),
            }
            if test.is_overdue(now) {
                return Err(Failure::new("the client did not end the test in time", Some(error_code::DURATION)));
            }
        }
        match self.listen(shard, now)? {
            None => return Ok(None),
            Some(heard) => progress |= heard,
        }
        match &self.broken {
            Some((message, until)) if now >= *until => Err(Failure::new(message.clone(), Some(error_code::MESSAGE))),
            _ => Ok(Some(progress)),
        }
    }

    fn late(&self) -> Result<Option<bool>, Failure> {
        let what = match self.phase {
            Phase::Asking => "the client did not send its parameters in time",
            Phase::Opening => "the client did not open its streams in time",
            Phase::Running | Phase::Results => "the client did not send its results in time",
            // It has everything; a good-bye is a courtesy.
            Phase::Display => return Ok(None),
        };
        Err(Failure::new(what, Some(error_code::MESSAGE)))
    }

    /// Reads what the client says. `None`: it has said good-bye.
    fn listen(&mut self, shard: &mut Shard, now: Instant) -> Result<Option<bool>, Failure> {
        match self.phase {
            Phase::Asking => {
                let Some(value) = self.ctrl.json(shard, "the parameters", PARAMS_MAX)? else { return Ok(Some(false)) };
                self.begin_opening(shard, Params::parse(&value)?, now)?;
            }
            Phase::Results => {
                let Some(value) = self.ctrl.json(shard, "the client's results", RESULTS_MAX)? else {
                    return Ok(Some(false));
                };
                self.exchange(shard, &value, now)?;
            }
            Phase::Opening | Phase::Running | Phase::Display => {
                let state = match self.ctrl.state(shard) {
                    Err(CtrlError::Closed | CtrlError::Broken(_)) if self.phase == Phase::Display => return Ok(None),
                    other => other?,
                };
                match (state, self.phase) {
                    (None, _) => return Ok(Some(false)),
                    (Some(State::IperfDone), Phase::Display) => return Ok(None),
                    (Some(State::TestEnd), Phase::Running) => self.end_test(shard, now),
                    (Some(State::ClientTerminate), _) => {
                        return Err(Failure::new("the client has terminated", None));
                    }
                    (Some(State::IperfDone), _) => {
                        return Err(Failure::new("the client left before the test was over", None));
                    }
                    (Some(state), _) => return Err(ProtocolError::UnexpectedState(state).into()),
                }
            }
        }
        Ok(Some(true))
    }

    // --- opening -----------------------------------------------------------------------------------------------------

    fn begin_opening(&mut self, shard: &mut Shard, params: Params, now: Instant) -> Result<(), Failure> {
        // Connections inherit from their listener.
        let _ = shard.with_opts(self.listener, |opts| *opts = sock_opts(&params));
        if let (Some(name), Protocol::Tcp) = (&params.congestion, params.protocol) {
            shard.set_opt(self.listener, TcpOpt::Congestion(name)).map_err(|e| ProtocolError::BadParam {
                key: "congestion",
                why: format!("{name}: {e}"),
                code: error_code::CONGESTION,
            })?;
        }
        if !params.get_server_output {
            self.report.take_capture();
        }
        if params.protocol == Protocol::Udp {
            self.udp = Some(self.bind_udp(shard)?);
        }
        let mss = shard.info(self.ctrl.sock()).map_or(0, |info| info.snd_mss);
        let _ = shard.set_opt(self.ctrl.sock(), TcpOpt::NoDelay(true));
        self.report.test_start(&params, mss);
        self.congestion = congestion_name(shard, &params);
        let buffers = buffers(shard, &params, &self.settings, &mut self.rng);
        let around = self.settings.around;
        self.test = Some(Test::new(params, Role::Server, buffers, self.settings.interval, around.usage));
        self.before = Snapshot::take(shard, around.ifindex);
        self.ctrl.send_state(State::CreateStreams);
        self.enter(Phase::Opening, now);
        Ok(())
    }

    /// Is this the cookie of a stream that is missing?
    pub(crate) fn wants(&self, cookie: &Cookie) -> bool {
        self.phase == Phase::Opening
            && *cookie == self.cookie
            && self.test.as_ref().is_some_and(|test| {
                test.params.protocol == Protocol::Tcp && test.streams.len() < Test::stream_count(&test.params)
            })
    }

    /// A data connection introduced itself.
    pub(crate) fn add_tcp_stream(&mut self, shard: &Shard, sock: SockId) -> Result<(), Failure> {
        let ends = shard.local_addr(sock).zip(shard.peer_addr(sock));
        let (local, peer) = ends.ok_or_else(|| Failure::new("a data connection broke", None))?;
        self.add_stream(sock, [local, peer]);
        Ok(())
    }

    fn add_stream(&mut self, sock: SockId, ends: [SocketAddr; 2]) {
        if let Some(test) = &mut self.test {
            let nth = test.streams.len();
            let sends = Test::sends(&test.params, Role::Server, nth);
            test.streams.push(Stream::new(nth, sock, sends, ends, &test.params));
        }
    }

    fn bind_udp(&self, shard: &mut Shard) -> Result<SockId, Failure> {
        let opts = BindOpts { reuseaddr: true, ..BindOpts::default() };
        let bound = shard.udp_bind(self.local, opts);
        bound.map_err(|e| Failure::new(format!("unable to bind UDP {}: {e}", self.local), Some(error_code::MESSAGE)))
    }

    fn open_udp_streams(&mut self, shard: &mut Shard) -> Result<bool, Failure> {
        let mut progress = false;
        while let Some(sock) = self.udp {
            let Some((from, reply)) = self.next_greeting(shard, sock)? else { break };
            progress = true;
            let failed =
                |what: String| Failure::new(format!("unable to open a stream: {what}"), Some(error_code::MESSAGE));
            shard.udp_connect(sock, from).map_err(|e| failed(e.to_string()))?;
            if let Some(test) = &self.test {
                set_udp_opts(shard, sock, &test.params);
            }
            self.add_stream(sock, [self.local, from]);
            // Whoever does not get it asks again.
            let _ = shard.send_to(sock, &reply, None, SendOpts::default());
            let missing = self.test.as_ref().is_some_and(|t| t.streams.len() < Test::stream_count(&t.params));
            self.udp = None;
            if missing {
                self.udp = Some(self.bind_udp(shard)?);
            }
        }
        self.greet_again(shard);
        Ok(progress)
    }

    /// The next greeting of this client, and the answer to it.
    fn next_greeting(&self, shard: &mut Shard, sock: SockId) -> Result<Option<(SocketAddr, [u8; 4])>, Failure> {
        let mut buf = [0; 64];
        loop {
            match shard.recv_from(sock, &mut buf, RecvFlags::default()) {
                Ok(got) if got.from.ip() == self.peer.ip() => {
                    if let Some(reply) = answer(&buf[..got.len]) {
                        return Ok(Some((got.from, reply)));
                    }
                }
                Ok(_) => {}
                Err(UdpRecvError::WouldBlock) => return Ok(None),
                Err(e) => return Err(Failure::new(format!("UDP: {e}"), Some(error_code::MESSAGE))),
            }
        }
    }

    /// Answers greetings whose first answer was lost. No data is sent before the test runs.
    fn greet_again(&self, shard: &mut Shard) {
        let mut buf = [0; 64];
        let streams = self.test.iter().flat_map(|test| &test.streams);
        for sock in streams.map(|s| s.sock).filter(|_| self.phase == Phase::Opening) {
            while let Ok(got) = shard.recv_from(sock, &mut buf, RecvFlags::default()) {
                if let Some(reply) = answer(&buf[..got.len]) {
                    let _ = shard.send_to(sock, &reply, None, SendOpts::default());
                }
            }
        }
    }

    fn start_if_complete(&mut self, _shard: &Shard, now: Instant) -> bool {
        let Some(test) = &mut self.test else { return false };
        if test.streams.len() < Test::stream_count(&test.params) {
            return false;
        }
        let ends: Vec<_> = test.streams.iter().map(|s| [s.local, s.remote]).collect();
        self.report.connected(&ends);
        test.begin(now);
        self.ctrl.send_state(State::TestStart);
        self.ctrl.send_state(State::TestRunning);
        self.enter(Phase::Running, now);
        true
    }

    // --- the end -----------------------------------------------------------------------------------------------------

    fn end_test(&mut self, shard: &mut Shard, now: Instant) {
        if let Some(test) = &mut self.test {
            test.end(shard, now, &mut self.report);
        }
        self.close_streams(shard);
        self.ctrl.send_state(State::ExchangeResults);
        self.enter(Phase::Results, now);
    }

    fn exchange(&mut self, shard: &mut Shard, value: &serde_json::Value, now: Instant) -> Result<(), Failure> {
        let ids = self.test.as_ref().map(Test::ids).unwrap_or_default();
        self.theirs = Some(Results::parse(value, &ids)?);
        let json = self.conclude(shard, now, None);
        if let Some(test) = &self.test {
            let mut results = test.results(now, &self.congestion);
            if test.params.get_server_output {
                let text = self.report.take_capture().map(serde_json::Value::String);
                results.server_output = if self.settings.json { json } else { text };
            }
            self.ctrl.send_json(&results.to_json(test.we_send()));
        }
        self.ctrl.send_state(State::DisplayResults);
        self.enter(Phase::Display, now);
        Ok(())
    }

    /// Says what was measured; with `--json` returns it.
    fn conclude(&mut self, shard: &mut Shard, now: Instant, error: Option<&str>) -> Option<serde_json::Value> {
        if let Some(test) = &mut self.test
            && test.is_running()
        {
            test.end(shard, now, &mut self.report);
        }
        let around = self.settings.around;
        let test = self.test.as_ref().filter(|test| test.has_begun());
        let summary = test.map(|test| {
            let after = Snapshot::take(shard, around.ifindex);
            let mut summary = Summary::new(test, self.theirs.as_ref(), now, &self.congestion, &self.before, &after);
            (summary.linerate.wire_cut, summary.linerate.dma) = (around.wire_cut, around.dma);
            summary
        });
        if let Some(summary) = &summary {
            self.report.summary(summary);
        }
        if !self.settings.json {
            return None;
        }
        let value = self.report.to_json(summary.as_ref(), error);
        self.report.raw(&serde_json::to_string_pretty(&value).unwrap_or_default());
        Some(value)
    }

    /// The user stops the server: says what was measured and tells the client. The streams are left to the end of the
    /// program: a reset of one could overtake the good-bye.
    pub(crate) fn interrupt(&mut self, shard: &mut Shard, now: Instant) {
        self.ctrl.send_state(State::ServerTerminate);
        if self.phase != Phase::Display {
            self.conclude(shard, now, Some("interrupt - the server has terminated"));
        }
        let _ = self.ctrl.flush(shard);
        discard_and_close(shard, self.ctrl.sock());
    }

    /// What the streams still have is of no use to anybody.
    fn close_streams(&mut self, shard: &mut Shard) {
        for stream in self.test.iter_mut().flat_map(|test| &mut test.streams).filter(|s| !s.is_closed()) {
            // A sender's queue is delivered, so that a client that reads on is not cut off by a reset.
            let _ = shard.close(stream.sock);
            stream.set_closed();
        }
        if let Some(sock) = self.udp.take() {
            let _ = shard.close(sock);
        }
    }

    /// Closes everything.
    pub(crate) fn let_go(&mut self, shard: &mut Shard) {
        self.close_streams(shard);
        let _ = self.ctrl.flush(shard);
        discard_and_close(shard, self.ctrl.sock());
    }
}

/// The answer to a greeting; `None` for anything else.
fn answer(datagram: &[u8]) -> Option<[u8; 4]> {
    match *datagram.first_chunk::<4>()? {
        _ if datagram.len() != 4 => None,
        UDP_HELLO => Some(UDP_REPLY),
        UDP_HELLO_OLD => Some(UDP_REPLY_OLD),
        _ => None,
    }
}
