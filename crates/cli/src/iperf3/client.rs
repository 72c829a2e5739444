//! The client: connects, says what it wants, opens the streams, ends the test, and reports what both sides counted.
//!
//! ```text
//!   Connecting ─▶ Greeting ─▶ Asked ─▶ Opening ─▶ Starting ─▶ Running ─▶ Ended ─▶ Results ─▶ Display ─▶ done
//!                 ◀─ 9         ◀─ 10               ◀─ 1        ◀─ 2       ◀─ 13     ◀─ JSON    ◀─ 14
//! ```
//! The server's states drive it; each is taken only where it is due. Streams are opened one after the other, so that both
//! sides count them in the same order. Every wait has an end: [`CONTROL_TIMEOUT`] for a step of the protocol,
//! `--connect-timeout` for the first one, and a stall of the data phase is an error there. A transfer of a given size
//! (`-n`, `-k`) ends when it was acknowledged, or [`ACK_WAIT`] later, not when it was handed to the socket.
//!
//! A lost greeting of a UDP stream is sent again each second. Names are resolved before the engine starts.

use std::net::{IpAddr, SocketAddr};

use linerate_base::rng::Rng;
use linerate_base::{Duration, Instant};
use linerate_stack::udp::{BindOpts, RecvFlags, SendOpts, UdpRecvError};
use linerate_stack::{Family, Ready, Shard, SockId, SockOpts, TcpOpt};
use serde_json::json;

use super::ctrl::{Ctrl, CtrlError};
use super::engine::{
    CONTROL_TIMEOUT, Engine, LAST_WORDS, Settings, buffers, congestion_name, earlier, set_udp_opts, sock_opts,
};
use super::proto::{
    Cookie, Params, Protocol, ProtocolError, Results, SERVER_RESULTS_MAX, State, UDP_BLOCK_MAX, UDP_BLOCK_MIN,
    UDP_HELLO, UDP_REPLY, UDP_REPLY_OLD, error_code,
};
use super::report::Report;
use super::stream::Stream;
use super::summary::{Snapshot, Summary};
use super::test::{Role, Test};

/// How long the end of a sized transfer waits for the last acknowledgement.
const ACK_WAIT: Duration = Duration::from_secs(5);
/// Time between two greetings of a UDP stream.
const HELLO_EVERY: Duration = Duration::from_secs(1);

/// What to do, and with whom.
#[derive(Clone, Debug)]
pub(crate) struct ClientConfig {
    pub(crate) server: SocketAddr,
    /// As the user named it.
    pub(crate) host: String,
    /// Source address.
    pub(crate) bind: Option<IpAddr>,
    /// Source port of the first stream.
    pub(crate) cport: Option<u16>,
    /// What is asked for; a `len` of 0 with UDP is chosen by the path.
    pub(crate) params: Params,
    pub(crate) connect_timeout: Duration,
    pub(crate) settings: Settings,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Connecting,
    /// The cookie is sent.
    Greeting,
    /// The parameters are sent.
    Asked,
    /// Streams are being opened.
    Opening,
    /// The server said that the test starts.
    Starting,
    Running,
    /// `TestEnd` is sent.
    Ended,
    /// Our results are sent, the server's are due.
    Results,
    /// Both are known.
    Display,
    /// The server's error number is due.
    Failing,
    Over,
}

/// A stream that is being opened.
#[derive(Clone, Copy)]
struct Opening {
    sock: SockId,
    /// UDP: when to greet again.
    again: Instant,
}

/// The client's side of one test.
pub(crate) struct Client {
    config: ClientConfig,
    phase: Phase,
    deadline: Option<Instant>,
    ctrl: Option<Ctrl>,
    cookie: Cookie,
    rng: Rng,
    test: Option<Test>,
    opening: Option<Opening>,
    enough_since: Option<Instant>,
    before: Snapshot,
    congestion: String,
    theirs: Option<Results>,
    /// A stream broke, and how long the server may still say why.
    broken: Option<(String, Instant)>,
    report: Report,
    outcome: Option<Result<(), String>>,
}

impl Client {
    pub(crate) fn new(config: ClientConfig) -> Self {
        let mut rng = Rng::new(config.settings.around.seed);
        Self {
            cookie: Cookie::random(&mut rng),
            report: Report::new(config.settings.json),
            config,
            phase: Phase::Connecting,
            deadline: None,
            ctrl: None,
            rng,
            test: None,
            opening: None,
            enough_since: None,
            before: Snapshot::default(),
            congestion: String::new(),
            theirs: None,
            broken: None,
            outcome: None,
        }
    }

    /// What was measured and exchanged.
    #[cfg(test)]
    pub(crate) fn results(&self) -> (Option<&Test>, Option<&Results>) {
        (self.test.as_ref(), self.theirs.as_ref())
    }

    fn advance(&mut self, shard: &mut Shard, now: Instant) -> Result<bool, String> {
        if self.deadline.is_some_and(|at| now >= at) {
            return Err(self.late());
        }
        let Some(ctrl) = &mut self.ctrl else { return self.connect(shard, now).map(|()| true) };
        let mut progress = match self.phase {
            Phase::Connecting => self.connecting(shard, now)?,
            _ => ctrl.flush(shard).map_err(|e| e.to_string())?,
        };
        if self.phase == Phase::Opening {
            progress |= self.open_streams(shard, now)?;
        }
        if let Some(test) = self.test.as_mut().filter(|_| self.broken.is_none()) {
            match test.step(shard, now, &mut self.report) {
                Ok(moved) => progress |= moved,
                Err(message) => self.broken = Some((message, now + LAST_WORDS)),
            }
        }
        if self.phase == Phase::Running {
            progress |= self.run(shard, now);
        }
        if self.phase != Phase::Connecting {
            progress |= self.listen(shard, now)?;
        }
        match &self.broken {
            Some((message, until)) if now >= *until => Err(message.clone()),
            _ => Ok(progress),
        }
    }

    fn late(&self) -> String {
        let what = match self.phase {
            Phase::Connecting => return format!("unable to connect to {}: timed out", self.config.server),
            Phase::Opening => "the streams could not be opened in time",
            Phase::Ended | Phase::Results | Phase::Display => "the server did not exchange results in time",
            _ => "the server did not answer in time",
        };
        what.to_owned()
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.deadline = (!matches!(phase, Phase::Running | Phase::Over)).then(|| now + CONTROL_TIMEOUT);
    }

    // --- opening -----------------------------------------------------------------------------------------------------

    fn connect(&mut self, shard: &mut Shard, now: Instant) -> Result<(), String> {
        let sock = self.dial(shard, &SockOpts::default(), None, None)?;
        self.ctrl = Some(Ctrl::new(sock));
        self.deadline = Some(now + self.config.connect_timeout);
        let (ip, port) = (self.config.server.ip(), self.config.server.port());
        self.report.line(&format!("Connecting to host {}, port {port}", self.config.host));
        self.report.start_key("connecting_to", json!({ "host": self.config.host, "port": port, "address": ip }));
        self.report.start_key("version", json!(concat!("linerate ", env!("CARGO_PKG_VERSION"))));
        self.report.start_key("cookie", json!(self.cookie.to_string()));
        Ok(())
    }

    /// Begins a TCP connection to the server.
    fn dial(
        &self,
        shard: &mut Shard,
        opts: &SockOpts,
        congestion: Option<&str>,
        port: Option<u16>,
    ) -> Result<SockId, String> {
        let server = self.config.server;
        let failed = |e: &dyn std::fmt::Display| format!("unable to connect to {server}: {e}");
        let sock = shard.tcp_socket(if server.is_ipv4() { Family::V4 } else { Family::V6 }, opts);
        if let Some(name) = congestion {
            shard.set_opt(sock, TcpOpt::Congestion(name)).map_err(|e| format!("congestion control {name}: {e}"))?;
        }
        if self.config.bind.is_some() || port.is_some() {
            let local = self.local(port);
            shard.bind(sock, local, linerate_stack::BindOpts::default()).map_err(|e| format!("bind {local}: {e}"))?;
        }
        shard.connect(sock, server).map_err(|e| failed(&e))?;
        Ok(sock)
    }

    fn local(&self, port: Option<u16>) -> SocketAddr {
        let any = match self.config.server {
            SocketAddr::V4(_) => IpAddr::from([0_u8; 4]),
            SocketAddr::V6(_) => IpAddr::from([0_u16; 8]),
        };
        SocketAddr::new(self.config.bind.unwrap_or(any), port.unwrap_or(0))
    }

    fn connecting(&mut self, shard: &mut Shard, now: Instant) -> Result<bool, String> {
        let Some(ctrl) = &mut self.ctrl else { return Ok(false) };
        if !is_connected(shard, ctrl.sock(), self.config.server)? {
            return Ok(false);
        }
        ctrl.send_bytes(self.cookie.bytes());
        let mss = shard.info(ctrl.sock()).map_or(1460, |info| info.snd_mss);
        let params = &mut self.config.params;
        if params.len == 0 {
            params.len = u64::from(mss).clamp(UDP_BLOCK_MIN, UDP_BLOCK_MAX) as usize;
        }
        self.report.test_start(params, mss);
        self.congestion = congestion_name(shard, params);
        // Small messages both ways; none should wait for the acknowledgement of the one before.
        let _ = shard.set_opt(ctrl.sock(), TcpOpt::NoDelay(true));
        self.enter(Phase::Greeting, now);
        Ok(true)
    }

    fn begin_opening(&mut self, shard: &Shard, now: Instant) {
        let (params, settings) = (&self.config.params, &self.config.settings);
        let buffers = buffers(shard, params, settings, &mut self.rng);
        let around = settings.around;
        self.test = Some(Test::new(params.clone(), Role::Client, buffers, settings.interval, around.usage));
        self.before = Snapshot::take(shard, around.ifindex);
        if params.reverse {
            self.report.line(&format!("Reverse mode, remote host {} is sending", self.config.host));
        }
        self.enter(Phase::Opening, now);
    }

    /// Opens what is missing, one stream at a time.
    fn open_streams(&mut self, shard: &mut Shard, now: Instant) -> Result<bool, String> {
        let mut progress = false;
        while let Some(test) = &self.test {
            let nth = test.streams.len();
            if nth >= Test::stream_count(&self.config.params) {
                break;
            }
            let port = self.config.cport.map(|port| port.saturating_add(nth as u16));
            let opening = match (self.opening, self.config.params.protocol) {
                (Some(opening), _) => opening,
                (None, Protocol::Tcp) => {
                    let params = &self.config.params;
                    let sock = self.dial(shard, &sock_opts(params), params.congestion.as_deref(), port)?;
                    Opening { sock, again: Instant::FAR_FUTURE }
                }
                (None, Protocol::Udp) => Opening { sock: self.open_udp(shard, port)?, again: now },
            };
            self.opening = Some(opening);
            let ready = match self.config.params.protocol {
                Protocol::Tcp => self.greet_tcp(shard, opening.sock)?,
                Protocol::Udp => self.greet_udp(shard, opening, now)?,
            };
            if !ready {
                break;
            }
            self.add_stream(shard, nth, opening.sock)?;
            progress = true;
        }
        Ok(progress)
    }

    fn open_udp(&self, shard: &mut Shard, port: Option<u16>) -> Result<SockId, String> {
        let local = self.local(port);
        let sock = shard.udp_bind(local, BindOpts::default()).map_err(|e| format!("bind {local}: {e}"))?;
        let server = self.config.server;
        shard.udp_connect(sock, server).map_err(|e| format!("unable to connect to {server}: {e}"))?;
        set_udp_opts(shard, sock, &self.config.params);
        Ok(sock)
    }

    fn greet_tcp(&self, shard: &mut Shard, sock: SockId) -> Result<bool, String> {
        if !is_connected(shard, sock, self.config.server)? {
            return Ok(false);
        }
        match shard.write(sock, self.cookie.bytes()) {
            Ok(wrote) if wrote == self.cookie.bytes().len() => Ok(true),
            Ok(_) => Err("a fresh connection took only part of the cookie".into()),
            Err(error) => Err(format!("unable to send the cookie: {error}")),
        }
    }

    /// Sends the greeting when it is due; true when the answer is here.
    fn greet_udp(&mut self, shard: &mut Shard, opening: Opening, now: Instant) -> Result<bool, String> {
        let mut buf = [0; 64];
        let failed = |e: &dyn std::fmt::Display| format!("unable to open a stream: {e}");
        loop {
            match shard.recv_from(opening.sock, &mut buf, RecvFlags::default()) {
                Ok(got) if buf[..got.len] == UDP_REPLY || buf[..got.len] == UDP_REPLY_OLD => return Ok(true),
                Ok(_) => {}
                Err(UdpRecvError::WouldBlock) => break,
                Err(error) => return Err(failed(&error)),
            }
        }
        if now >= opening.again {
            shard.send_to(opening.sock, &UDP_HELLO, None, SendOpts::default()).map_err(|e| failed(&e))?;
            self.opening = Some(Opening { again: now + HELLO_EVERY, ..opening });
        }
        Ok(false)
    }

    fn add_stream(&mut self, shard: &Shard, nth: usize, sock: SockId) -> Result<(), String> {
        let local = shard.local_addr(sock).or_else(|| shard.udp().local_addr(sock));
        let ends = [local.ok_or("a stream is gone")?, self.config.server];
        let sends = Test::sends(&self.config.params, Role::Client, nth);
        let stream = Stream::new(nth, sock, sends, ends, &self.config.params);
        self.opening = None;
        if let Some(test) = &mut self.test {
            test.streams.push(stream);
        }
        Ok(())
    }

    // --- running -----------------------------------------------------------------------------------------------------

    /// Ends the test when it is enough.
    fn run(&mut self, shard: &mut Shard, now: Instant) -> bool {
        let Some(test) = &mut self.test else { return false };
        if !test.is_enough(now) {
            return false;
        }
        let since = *self.enough_since.get_or_insert(now);
        let timed = self.config.params.num_bytes == 0 && self.config.params.blocks == 0;
        if !timed && !test.is_acked(shard) && now.since(since) < ACK_WAIT {
            return false;
        }
        test.end(shard, now, &mut self.report);
        if let Some(ctrl) = &mut self.ctrl {
            ctrl.send_state(State::TestEnd);
        }
        self.enter(Phase::Ended, now);
        true
    }

    /// Reads what the server says; true when it said anything.
    fn listen(&mut self, shard: &mut Shard, now: Instant) -> Result<bool, String> {
        let Some(ctrl) = &mut self.ctrl else { return Ok(false) };
        let failed = |e: CtrlError| match e {
            CtrlError::Closed => "the server closed the control connection unexpectedly".to_owned(),
            other => other.to_string(),
        };
        match self.phase {
            Phase::Results => {
                let Some(value) = ctrl.json(shard, "the server's results", SERVER_RESULTS_MAX).map_err(failed)? else {
                    return Ok(false);
                };
                let ids = self.test.as_ref().map(Test::ids).unwrap_or_default();
                let theirs = Results::parse(&value, &ids).map_err(|e| e.to_string())?;
                self.report.set_server_output(theirs.server_output.clone());
                self.theirs = Some(theirs);
                self.enter(Phase::Display, now);
                Ok(true)
            }
            Phase::Failing => {
                let Some((code, _errno)) = ctrl.error_numbers(shard).map_err(failed)? else { return Ok(false) };
                Err(format!("the server reports error {code}: {}", error_code::describe(code)))
            }
            _ => match ctrl.state(shard).map_err(failed)? {
                Some(state) => self.on_state(shard, state, now).map(|()| true),
                None => Ok(false),
            },
        }
    }

    fn on_state(&mut self, shard: &mut Shard, state: State, now: Instant) -> Result<(), String> {
        let Some(ctrl) = &mut self.ctrl else { return Ok(()) };
        match (state, self.phase) {
            (State::ParamExchange, Phase::Greeting) => {
                ctrl.send_json(&self.config.params.to_json());
                self.enter(Phase::Asked, now);
            }
            (State::CreateStreams, Phase::Asked) => self.begin_opening(shard, now),
            (State::TestStart, Phase::Opening) => self.start(shard, now)?,
            (State::TestRunning, Phase::Starting) => {
                if let Some(test) = &mut self.test {
                    test.begin(now);
                }
                self.enter(Phase::Running, now);
            }
            (State::ExchangeResults, Phase::Running | Phase::Ended) => {
                if let Some(test) = &mut self.test {
                    // The server may have had enough first.
                    test.end(shard, now, &mut self.report);
                    let results = test.results(now, &self.congestion);
                    ctrl.send_json(&results.to_json(test.we_send()));
                }
                self.enter(Phase::Results, now);
            }
            (State::DisplayResults, Phase::Display) => {
                ctrl.send_state(State::IperfDone);
                self.finish(shard, now);
            }
            (State::AccessDenied, _) => return Err("the server is busy running a test. try again later".into()),
            (State::ServerError, _) => self.enter(Phase::Failing, now),
            (State::ServerTerminate, _) => return Err("the server has terminated".into()),
            _ => return Err(ProtocolError::UnexpectedState(state).to_string()),
        }
        Ok(())
    }

    /// All streams are there, the server says. A UDP stream whose answer was lost is there, too.
    fn start(&mut self, shard: &Shard, now: Instant) -> Result<(), String> {
        let wanted = Test::stream_count(&self.config.params);
        if let (Some(opening), Protocol::Udp) = (self.opening, self.config.params.protocol) {
            let nth = self.test.as_ref().map_or(0, |test| test.streams.len());
            self.add_stream(shard, nth, opening.sock)?;
        }
        let streams = self.test.as_ref().map_or(&[][..], |test| &test.streams);
        if streams.len() != wanted {
            return Err(format!("the server starts with {} of {wanted} streams", streams.len()));
        }
        let ends: Vec<_> = streams.iter().map(|s| [s.local, s.remote]).collect();
        self.report.connected(&ends);
        self.enter(Phase::Starting, now);
        Ok(())
    }

    // --- the end -----------------------------------------------------------------------------------------------------

    fn summary(&self, shard: &Shard, now: Instant) -> Option<Summary> {
        let around = self.config.settings.around;
        let after = Snapshot::take(shard, around.ifindex);
        let test = self.test.as_ref()?;
        let mut summary = Summary::new(test, self.theirs.as_ref(), now, &self.congestion, &self.before, &after);
        (summary.linerate.wire_cut, summary.linerate.dma) = (around.wire_cut, around.dma);
        Some(summary)
    }

    fn finish(&mut self, shard: &mut Shard, now: Instant) {
        if let Some(summary) = self.summary(shard, now) {
            self.report.summary(&summary);
            self.print_json(Some(&summary), None);
        }
        if let Some(text) = self.report.server_output_text() {
            self.report.line("\nServer output:");
            self.report.line(&text);
        }
        self.report.line("\niperf Done.");
        self.let_go(shard, false);
        self.enter(Phase::Over, now);
        self.outcome = Some(Ok(()));
    }

    fn print_json(&mut self, summary: Option<&Summary>, error: Option<&str>) {
        if self.config.settings.json {
            let value = self.report.to_json(summary, error);
            self.report.raw(&serde_json::to_string_pretty(&value).unwrap_or_default());
        }
    }

    fn fail(&mut self, shard: &mut Shard, now: Instant, message: String, good_bye: bool) {
        if let Some(test) = &mut self.test
            && test.is_running()
        {
            test.end(shard, now, &mut self.report);
        }
        let measured = self.test.as_ref().is_some_and(Test::has_begun);
        let summary = if measured { self.summary(shard, now) } else { None };
        if let Some(summary) = &summary {
            self.report.summary(summary);
        }
        self.print_json(summary.as_ref(), Some(&message));
        self.let_go(shard, good_bye);
        self.enter(Phase::Over, now);
        self.outcome = Some(Err(message));
    }

    /// Closes everything. What a stream has queued is of no use to anybody any more; but its reset could overtake a
    /// good-bye on the control connection, so with one to say the streams are left to the end of the program.
    fn let_go(&mut self, shard: &mut Shard, good_bye: bool) {
        for stream in self.test.iter_mut().flat_map(|test| &mut test.streams).filter(|_| !good_bye) {
            stream.set_closed();
            // A socket that is gone already needs no closing.
            let _ = match stream.sends {
                true => shard.abort(stream.sock).or_else(|_| shard.close(stream.sock)),
                false => shard.close(stream.sock),
            };
        }
        if let Some(opening) = self.opening.take() {
            let _ = shard.abort(opening.sock).or_else(|_| shard.close(opening.sock));
        }
        if let Some(ctrl) = &mut self.ctrl {
            let _ = ctrl.flush(shard);
            let _ = shard.close(ctrl.sock());
        }
    }
}

/// Is a connection attempt through? Its failure is an error.
fn is_connected(shard: &mut Shard, sock: SockId, to: SocketAddr) -> Result<bool, String> {
    let ready = shard.readiness(sock);
    if ready.intersects(Ready::ERROR | Ready::HUP) {
        let why = shard.take_error(sock).map_or_else(|| "closed".to_owned(), |e| e.errno().describe().to_owned());
        return Err(format!("unable to connect to {to}: {why}"));
    }
    Ok(ready.contains(Ready::CONNECTED))
}

impl Engine for Client {
    fn step(&mut self, shard: &mut Shard, now: Instant) -> bool {
        if self.outcome.is_some() {
            return false;
        }
        self.advance(shard, now).unwrap_or_else(|message| {
            self.fail(shard, now, message, false);
            true
        })
    }
    fn next_deadline(&self) -> Option<Instant> {
        let hello = self.opening.map(|o| o.again).filter(|&at| at != Instant::FAR_FUTURE);
        let ack = self.enough_since.filter(|_| self.phase == Phase::Running).map(|at| at + ACK_WAIT);
        let test = self.test.as_ref().and_then(Test::next_deadline).filter(|_| ack.is_none());
        let broken = self.broken.as_ref().map(|(_, until)| *until);
        earlier(
            earlier(self.deadline, hello),
            earlier(broken, if broken.is_some() { None } else { earlier(test, ack) }),
        )
    }
    fn take_out(&mut self) -> String {
        self.report.take_out()
    }
    fn take_errors(&mut self) -> Vec<String> {
        Vec::new()
    }
    fn outcome(&self) -> Option<Result<(), String>> {
        self.outcome.clone()
    }
    fn interrupt(&mut self, shard: &mut Shard, now: Instant) {
        if self.outcome.is_none() {
            if let Some(ctrl) = &mut self.ctrl {
                ctrl.send_state(State::ClientTerminate);
            }
            self.fail(shard, now, "interrupt - the client has terminated".into(), true);
        }
    }
}
