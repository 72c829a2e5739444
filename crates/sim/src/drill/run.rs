//! Runs one script in one variant, in virtual time.
//!
//! ```text
//!   prev event done ("now")     scheduled          scheduled + tolerance
//!        |------------ advance ----->|..................|
//! ```
//! Calls, commands and inbound packets happen exactly when scheduled; an outbound packet is awaited from now on, and its
//! own time stamp is judged: |actual - scheduled| <= max(tolerance_us, percent x gap since the event before). A blocking
//! call starts at its time and is judged when it returns, while later events run. Invariants: the clock moves only in
//! `advance_to` and `sniff`; every wait has an end ([`FOREVER_US`]). Limits: one blocked call at a time; code blocks,
//! encapsulation and PSP are reported as unsupported before anything runs.

use std::collections::{HashMap, VecDeque};

use linerate_base::{Duration, Instant};

use super::ast::{Action, Body, CallSpec, Event, PacketSpec, Pos, Script, When};
use super::backend::{Backend, BlockToken, Call, CallState, Outcome, Output};
use super::call::{Env, check, int};
use super::config::VariantConfig;
use super::focus::Focus;
use super::matcher::{MatchTime, merge};
use super::packet::{Live, decode};
use super::shell::{Step, read as read_shell};

mod support;

/// An unlimited wait of the script (`*`, a call that blocks without an end) gives up after an hour of virtual time.
const FOREVER_US: i64 = 3_600_000_000;
/// Patience behind an expected packet's time (CONFORMANCE 3.3).
const PATIENCE_US: i64 = 2_000_000;
/// Longest gap between segments of one expected packet.
const AGGREGATION_US: i64 = 50_000;

/// How a script went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything happened as written.
    Passed,
    /// Something did not; the text says where and what.
    Failed(String),
    /// The script uses a part of the language that this runner lacks; the text says where.
    Unsupported(String),
}

/// A run's end: verdict, warnings of `--non_fatal`, and the virtual time it took.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// How it went.
    pub verdict: Verdict,
    /// Differences that `--non_fatal` turned into warnings.
    pub warnings: Vec<String>,
    /// Virtual microseconds from the first event to the end.
    pub virtual_us: i64,
}

struct Pending {
    spec: CallSpec,
    call: Call,
    pos: Pos,
    token: BlockToken,
    start_us: i64,
    end_us: i64,
}

struct Runner<'a> {
    path: &'a str,
    cfg: &'a VariantConfig,
    backend: Box<dyn Backend>,
    start: Instant,
    focus: Focus,
    fds: HashMap<i32, i32>,
    /// Scheduled time of the event before; base of tolerances.
    previous_us: i64,
    /// Set if the event before was an inbound packet: its schedule is the next one's base.
    inbound_chain: Option<i64>,
    pending: Option<Pending>,
    taken: VecDeque<(i64, Live)>,
    /// Emission time of the first packet with timestamps.
    first_ts_us: Option<i64>,
    warnings: Vec<String>,
}

/// Runs a parsed script. `path` is for messages.
pub(crate) fn run(path: &str, script: &Script, cfg: &VariantConfig, backend: Box<dyn Backend>) -> RunReport {
    if let Some(text) = support::unsupported(script) {
        let verdict = Verdict::Unsupported(format!("{path}:{text}"));
        return RunReport { verdict, warnings: Vec::new(), virtual_us: 0 };
    }
    let start = backend.now();
    let mut r = Runner {
        path,
        cfg,
        backend,
        start,
        focus: Focus::new(),
        fds: HashMap::new(),
        previous_us: 0,
        inbound_chain: None,
        pending: None,
        taken: VecDeque::new(),
        first_ts_us: None,
        warnings: Vec::new(),
    };
    let result = r.whole(script);
    let virtual_us = r.now_us();
    let verdict = match result {
        Ok(()) => Verdict::Passed,
        Err(text) => Verdict::Failed(text),
    };
    RunReport { verdict, warnings: r.warnings, virtual_us }
}

fn seconds(us: i64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

impl Runner<'_> {
    fn now_us(&self) -> i64 {
        self.backend.now().as_micros() as i64 - self.start.as_micros() as i64
    }

    fn instant(&self, us: i64) -> Instant {
        self.start + Duration::from_micros(us.max(0) as u64)
    }

    fn at<T>(&self, pos: Pos, text: impl AsRef<str>) -> Result<T, String> {
        Err(format!("{}:{}: {}", self.path, pos.line, text.as_ref()))
    }

    fn whole(&mut self, script: &Script) -> Result<(), String> {
        if let Some((pos, text)) = &script.init {
            self.shell(text).or_else(|e| self.at(*pos, format!("error executing init command: {e}")))?;
            // Time zero of the script is behind its set-up.
            self.start = self.backend.now();
        }
        let result = script.events.iter().try_for_each(|e| self.event(e)).and_then(|()| self.finish_pending());
        let cleaned = match &script.cleanup {
            Some((pos, text)) => self.shell(text).or_else(|e| self.at(*pos, format!("error executing cleanup: {e}"))),
            None => Ok(()),
        };
        result.and(cleaned)
    }

    fn shell(&mut self, text: &str) -> Result<(), String> {
        for step in read_shell(text) {
            match step {
                Step::Host(op) => self.backend.shell(&op)?,
                Step::Sleep(us) => {
                    let until = self.now_us() + us;
                    self.advance_to(until)?;
                }
            }
        }
        Ok(())
    }

    fn tolerance(&self, us: i64) -> i64 {
        let share = (us - self.previous_us).max(0) as f64 * self.cfg.tolerance_percent / 100.0;
        self.cfg.tolerance_us.max(share as i64)
    }

    fn advance_to(&mut self, us: i64) -> Result<(), String> {
        let until = self.instant(us);
        if until > self.backend.now() {
            self.backend.advance(until);
        }
        self.collect_pending()
    }

    fn event(&mut self, e: &Event) -> Result<(), String> {
        let now = self.now_us();
        let inbound = matches!(e.action, Action::Inbound(_));
        let base = self.inbound_chain.filter(|_| inbound).unwrap_or(now);
        let (from, to) = match e.when {
            When::Absolute(t) => (t, t),
            When::Relative(t) => (base + t, base + t),
            When::AbsoluteRange(a, b) => (a, b),
            When::RelativeRange(a, b) => (base + a, base + b),
            When::Any => (now, now + FOREVER_US),
        };
        let tolerance = self.tolerance(to);
        if let Action::Outbound(spec) = &e.action {
            let happened = self.outbound(e, spec, from - tolerance, to, tolerance)?;
            self.previous_us = if from == to { to } else { happened };
            self.inbound_chain = None;
            return Ok(());
        }
        if matches!(e.when, When::Absolute(t) if t < self.previous_us) {
            return self.at(e.pos, "time of event is before that of the event before it");
        }
        self.advance_to(from)?;
        if self.now_us() - from > tolerance {
            let (late, want) = (seconds(self.now_us()), seconds(from));
            return self
                .at(e.pos, format!("timing error: expected the event at {want} sec, it happened at {late} sec"));
        }
        match &e.action {
            Action::Inbound(spec) => self.inbound(e, spec)?,
            Action::Call(spec) => {
                let end = e.end.map(|t| if matches!(e.when, When::Relative(_)) { base + t } else { t });
                self.call(e, spec, end)?;
            }
            Action::Shell(text) => {
                self.shell(text).or_else(|err| self.at(e.pos, format!("error executing command: {err}")))?
            }
            Action::Outbound(_) | Action::Code(_) => {}
        }
        self.previous_us = from;
        self.inbound_chain = inbound.then_some(from);
        self.collect_pending()
    }

    fn inbound(&mut self, e: &Event, spec: &PacketSpec) -> Result<(), String> {
        let bytes = self.focus.for_inbound(spec, self.cfg).build(spec, self.cfg);
        let bytes = bytes.or_else(|err| self.at(e.pos, format!("error handling packet: {err}")))?;
        self.backend.inject(&bytes);
        Ok(())
    }

    /// The next outbound packet of the flow under test, waiting until `deadline`.
    fn sniff(&mut self, spec: &PacketSpec, deadline: i64) -> Result<Option<(i64, Live)>, String> {
        let mut stuck = false;
        loop {
            while let Some((at, live)) = self.next_live()? {
                if self.focus.for_outbound(spec)?.concerns(spec, &live) {
                    return Ok(Some((at, live)));
                }
            }
            let (now, end) = (self.backend.now(), self.instant(deadline));
            if now >= end {
                return Ok(None);
            }
            let due = self.backend.next_timer().map_or(end, |t| t.clamp(now, end));
            // A timer that stays due after it ran must not stop the clock.
            let until = if due == now && stuck { now + Duration::from_micros(1) } else { due };
            stuck = due == now;
            self.backend.advance(until);
            self.collect_pending()?;
        }
    }

    fn next_live(&mut self) -> Result<Option<(i64, Live)>, String> {
        if let Some(first) = self.taken.pop_front() {
            return Ok(Some(first));
        }
        let Some((at, bytes)) = self.backend.next_output() else { return Ok(None) };
        let us = at.as_micros() as i64 - self.start.as_micros() as i64;
        let live = decode(&bytes).map_err(|e| format!("{}: the stack sent a malformed packet: {e}", self.path))?;
        Ok(Some((us, live)))
    }

    /// Awaits and judges an outbound packet; gives its time.
    fn outbound(&mut self, e: &Event, spec: &PacketSpec, from: i64, to: i64, tolerance: i64) -> Result<i64, String> {
        let now = self.now_us();
        let whole_seconds = (to - now).max(0) / 1_000_000 * 1_000_000;
        let found = self.sniff(spec, now + whole_seconds + PATIENCE_US)?;
        let Some((at, mut live)) = found else {
            let text = format!(
                "error handling packet: timed out waiting for packet\nscript packet: {} {}",
                seconds(to),
                e.text
            );
            return self.at(e.pos, text);
        };
        self.aggregate(spec, &mut live)?;
        let time = MatchTime {
            since_first_ts_us: at - *self.first_ts_us.get_or_insert(at),
            tolerance_us: self.cfg.tolerance_us,
        };
        let flow = self.focus.for_outbound(spec)?;
        let mut verdict = flow.check(spec, &live, self.cfg, time);
        let dump = flow.describe(&live);
        if verdict.is_ok() && e.when != When::Any && (at < from || at > to + tolerance) {
            let (want, got) = (seconds(to), seconds(at));
            let tolerance = seconds(tolerance);
            verdict = Err(format!(
                "timing error: expected the packet at {want} sec but it left at {got} sec; tolerance {tolerance} sec"
            ));
        }
        let Err(text) = verdict else { return Ok(at) };
        let (want, got) = (seconds(to), seconds(at));
        let text =
            format!("error handling packet: {text}\nscript packet: {want} {}\nactual packet: {got} {dump}", e.text);
        if self.cfg.non_fatal_packet {
            self.warnings.push(format!("{}:{}: {text}", self.path, e.pos.line));
            return Ok(at);
        }
        self.at(e.pos, text)
    }

    /// Merges the segments behind `live` until the length the script expects is there.
    fn aggregate(&mut self, spec: &PacketSpec, live: &mut Live) -> Result<(), String> {
        let Body::Tcp(want) = &spec.body else { return Ok(()) };
        let unit = live.payload.len();
        while !self.cfg.strict_segments && unit > 0 && live.payload.len() < want.len as usize {
            // Too short is wrong anyway, so waiting for the rest cannot spoil a script that would pass.
            let patience = self.now_us() + AGGREGATION_US;
            let Some((at, next)) = self.sniff(spec, patience)? else { return Ok(()) };
            if live.payload.len() + next.payload.len() > want.len as usize || !merge(live, &next, unit) {
                self.taken.push_front((at, next));
                return Ok(());
            }
        }
        Ok(())
    }

    fn call(&mut self, e: &Event, spec: &CallSpec, end: Option<i64>) -> Result<(), String> {
        if end.is_some() {
            self.finish_pending()?;
        }
        let env = Env { cfg: self.cfg, fds: &self.fds };
        let call = env.resolve(spec).or_else(|err| self.at(e.pos, format!("bad call to {}: {err}", spec.name)))?;
        let start_us = self.now_us();
        self.focus.before_call(script_fd(spec), &call, self.cfg);
        let state = self.backend.syscall(&call);
        let mut pending = Pending { spec: spec.clone(), call, pos: e.pos, token: BlockToken(0), start_us, end_us: 0 };
        pending.end_us = end.unwrap_or(start_us);
        match (state, end) {
            (CallState::Done(outcome), None) => self.returned(&pending, &outcome),
            (CallState::Done(outcome), Some(_)) => {
                self.judge_end(&pending, start_us)?;
                self.returned(&pending, &outcome)
            }
            (CallState::Blocked(token), Some(_)) => {
                pending.token = token;
                self.pending = Some(pending);
                Ok(())
            }
            (CallState::Blocked(token), None) => {
                pending.token = token;
                self.sleep_through(&pending)
            }
        }
    }

    /// A call without an end time that blocks after all: the script stands still until it returns.
    fn sleep_through(&mut self, p: &Pending) -> Result<(), String> {
        let limit = self.instant(p.start_us + FOREVER_US);
        loop {
            if let Some(done) = self.backend.poll_blocked(p.token) {
                return self.returned(p, &done.outcome);
            }
            let now = self.backend.now();
            match self.backend.next_timer() {
                Some(t) if now < limit => self.backend.advance(t.max(now + Duration::from_nanos(1)).min(limit)),
                _ => return self.at(p.pos, format!("{} blocks and nothing will wake it", p.spec.name)),
            }
        }
    }

    /// Judges a call that returned and follows what it opened or closed.
    fn returned(&mut self, p: &Pending, outcome: &Outcome) -> Result<(), String> {
        let spec = &p.spec;
        let fd = script_fd(spec);
        let mut verdict = check::outcome(spec, outcome);
        if verdict.is_ok() && outcome.ret >= 0 {
            let named = int(&spec.result).ok().map(|n| n as i32).filter(|_| check::opens_fd(&spec.name));
            if let Some(name) = named {
                self.fds.insert(name, outcome.ret as i32);
            }
            if let (Output::Pipe(r, w), [super::ast::Expr::List(names)]) = (&outcome.out, spec.args.as_slice()) {
                let live = [*r, *w];
                self.fds.extend(names.iter().zip(live).filter_map(|(n, l)| Some((int(n).ok()? as i32, l))));
            }
            self.focus.after_call(fd, &p.call, named);
            if let (Call::Close { .. }, Some(fd)) = (&p.call, fd) {
                self.fds.remove(&fd);
            }
            verdict = self.check_peer(&p.call, named, outcome);
        }
        let Err(text) = verdict else { return Ok(()) };
        let text = format!("runtime error in {} call: {text}", spec.name);
        if self.cfg.non_fatal_syscall {
            self.warnings.push(format!("{}:{}: {text}", self.path, p.pos.line));
            return Ok(());
        }
        self.at(p.pos, text)
    }

    /// accept must report the peer that the script played.
    fn check_peer(&self, call: &Call, fd: Option<i32>, outcome: &Outcome) -> Result<(), String> {
        let (Call::Accept { .. }, Some(fd), Output::Addr(got)) = (call, fd, &outcome.out) else { return Ok(()) };
        let Some(want) = self.focus.peer_of(fd) else { return Ok(()) };
        let env = Env { cfg: self.cfg, fds: &self.fds };
        match env.own(want.ip(), want.port()) {
            super::backend::Addr::Inet(want) if want != *got => {
                Err(format!("peer address: expected {want}, got {got}"))
            }
            _ => Ok(()),
        }
    }

    fn judge_end(&self, p: &Pending, at: i64) -> Result<(), String> {
        let share = (p.end_us - p.start_us) as f64 * self.cfg.tolerance_percent / 100.0;
        let tolerance = self.cfg.tolerance_us.max(share as i64);
        if (at - p.end_us).abs() <= tolerance {
            return Ok(());
        }
        let (want, got) = (seconds(p.end_us), seconds(at));
        self.at(
            p.pos,
            format!("timing error: expected {} to return at {want} sec but it returned at {got} sec", p.spec.name),
        )
    }

    /// Judges the blocked call if it has returned.
    fn collect_pending(&mut self) -> Result<(), String> {
        let Some(p) = self.pending.take() else { return Ok(()) };
        match self.backend.poll_blocked(p.token) {
            Some(done) => {
                let at = done.at.as_micros() as i64 - self.start.as_micros() as i64;
                self.judge_end(&p, at)?;
                self.returned(&p, &done.outcome)
            }
            None => {
                self.pending = Some(p);
                Ok(())
            }
        }
    }

    /// Waits for the blocked call's end, at most as long as it may take.
    fn finish_pending(&mut self) -> Result<(), String> {
        let Some(p) = &self.pending else { return Ok(()) };
        let (pos, end, name) = (p.pos, p.end_us + PATIENCE_US, p.spec.name.clone());
        while self.pending.is_some() && self.now_us() < end {
            let (now, limit) = (self.backend.now(), self.instant(end));
            let next = self.backend.next_timer().map_or(limit, |t| t.max(now + Duration::from_micros(1)).min(limit));
            self.backend.advance(next);
            self.collect_pending()?;
        }
        if self.pending.is_some() {
            return self
                .at(pos, format!("{name} was to return and is still blocked at {} sec", seconds(self.now_us())));
        }
        Ok(())
    }
}

/// The script's descriptor that a call is about.
fn script_fd(spec: &CallSpec) -> Option<i32> {
    if matches!(spec.name.as_str(), "socket" | "poll" | "pipe" | "epoll_create") {
        return None;
    }
    spec.args.first().and_then(|e| int(e).ok()).map(|n| n as i32)
}

#[cfg(test)]
mod tests;
