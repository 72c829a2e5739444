//! The data phase of a test, the same at both ends: streams, time, intervals, and when it is enough.
//!
//! ```text
//!   began ──── omit ────▶ measured ─────────── time, bytes or blocks ───────────▶ ended
//!            (not counted)            intervals are cut at multiples of -i
//! ```
//! Both ends run their own clock: the client decides when a test is over and says so, the server counts until it hears of
//! it. `-n` and `-k` bound what this side sends in all streams together. A server that sends stops there too when nothing
//! is omitted (with `-O` the two ends do not begin to count at the same byte); datagrams it sends until it is told to stop,
//! because the receiver counts what arrived. A test on which nothing moves for [`STALL`] fails, so that no peer can hold
//! this side for ever.

use linerate_base::{Duration, Instant};
use linerate_stack::Shard;

use super::cpu::Usage;
use super::proto::{Params, Protocol, Results, StreamResult};
use super::report::{Interval, Report, Row};
use super::stream::{Buffers, Quota, Stream};

/// Without a byte for so long the peer is believed dead: iperf3's default of `--rcv-timeout`.
pub(crate) const STALL: Duration = Duration::from_secs(120);
/// How much longer than agreed a server lets a test run.
const GRACE: Duration = Duration::from_secs(30);

/// Which end this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Client,
    Server,
}

/// The data phase.
pub(crate) struct Test {
    pub(crate) params: Params,
    pub(crate) role: Role,
    pub(crate) streams: Vec<Stream>,
    buffers: Buffers,
    usage_now: fn() -> Usage,
    usage_began: Usage,
    usage_ended: Usage,
    interval: Option<Duration>,
    started: bool,
    began: Instant,
    measured: Instant,
    omitting: bool,
    interval_began: Instant,
    /// Counts of each stream when the interval began.
    before: Vec<super::stream::Counts>,
    intervals: u64,
    last_moved: Instant,
    ended: Option<Instant>,
}

impl Test {
    pub(crate) fn new(
        params: Params,
        role: Role,
        buffers: Buffers,
        interval: Option<Duration>,
        usage_now: fn() -> Usage,
    ) -> Self {
        Self {
            params,
            role,
            streams: Vec::new(),
            buffers,
            usage_now,
            usage_began: Usage::default(),
            usage_ended: Usage::default(),
            interval,
            started: false,
            began: Instant::ZERO,
            measured: Instant::ZERO,
            omitting: false,
            interval_began: Instant::ZERO,
            before: Vec::new(),
            intervals: 0,
            last_moved: Instant::ZERO,
            ended: None,
        }
    }

    /// Does this side send on stream number `nth` (from 0)? With `--bidir` the client's come first.
    pub(crate) fn sends(params: &Params, role: Role, nth: usize) -> bool {
        let client_sends = if params.bidir { (nth as u64) < params.parallel } else { !params.reverse };
        client_sends == (role == Role::Client)
    }
    /// Streams of both directions.
    pub(crate) const fn stream_count(params: &Params) -> usize {
        (if params.bidir { 2 * params.parallel } else { params.parallel }) as usize
    }
    /// Does this side send on any stream?
    pub(crate) const fn we_send(&self) -> bool {
        self.params.bidir || (self.params.reverse == matches!(self.role, Role::Server))
    }
    /// Has the test begun and not ended?
    pub(crate) fn is_running(&self) -> bool {
        self.started && self.ended.is_none()
    }
    /// Has the clock started?
    pub(crate) const fn has_begun(&self) -> bool {
        self.started
    }
    /// Seconds that were measured so far.
    pub(crate) fn secs(&self, now: Instant) -> f64 {
        self.ended.unwrap_or(now).since(self.measured).as_secs_f64()
    }

    /// The clock starts.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.started = true;
        self.omitting = self.params.omit_secs > 0;
        (self.began, self.measured, self.interval_began, self.last_moved) = (now, now, now, now);
        self.before = vec![Default::default(); self.streams.len()];
        self.usage_began = (self.usage_now)();
        for stream in &mut self.streams {
            stream.start(self.params.rate, now);
        }
    }

    /// Moves what can be moved, cuts intervals, ends the omitted time. True when anything moved.
    pub(crate) fn step(&mut self, shard: &mut Shard, now: Instant, report: &mut Report) -> Result<bool, String> {
        let mut moved = 0;
        let mut blocked = true;
        if self.is_running() {
            (moved, blocked) = self.pump(shard, now)?;
            self.on_time(shard, now, report);
        } else if self.ended.is_some() {
            moved = self.drain(shard, now);
        }
        if moved > 0 || !blocked {
            self.last_moved = now;
        } else if self.is_running() && now.since(self.last_moved) > STALL {
            return Err(format!("no data moved for {} seconds", STALL.as_secs()));
        }
        Ok(moved > 0)
    }

    /// Every stream once; then senders go on until this side has sent as much as it received, so that a burst that arrived
    /// in one turn does not leave `--bidir` with one direction. Bytes that moved, and whether all streams wait for the peer.
    fn pump(&mut self, shard: &mut Shard, now: Instant) -> Result<(u64, bool), String> {
        let mut quota = self.quota();
        let (mut sent, mut received, mut blocked) = (0, 0, true);
        for stream in &mut self.streams {
            let pumped = stream.pump(shard, now, &mut self.buffers, &mut quota)?;
            *(if stream.sends { &mut sent } else { &mut received }) += pumped.bytes;
            blocked &= pumped.blocked;
        }
        while sent < received {
            let before = sent;
            for stream in self.streams.iter_mut().filter(|s| s.sends) {
                sent += stream.pump(shard, now, &mut self.buffers, &mut quota)?.bytes;
            }
            if sent == before {
                break;
            }
        }
        Ok((sent + received, blocked))
    }

    /// What arrives after the end is taken so that the peer is not blocked, and not counted.
    fn drain(&mut self, shard: &mut Shard, now: Instant) -> u64 {
        let mut quota = Quota { bytes: 0, blocks: 0 };
        let mut moved = 0;
        for stream in self.streams.iter_mut().filter(|s| !s.sends && !s.is_over()) {
            let counts = stream.counts;
            match stream.pump(shard, now, &mut self.buffers, &mut quota) {
                Ok(pumped) => moved += pumped.bytes,
                // The peer has let go already.
                Err(_) => stream.let_go(),
            }
            stream.counts = counts;
        }
        moved
    }

    /// What this side may still send.
    fn quota(&self) -> Quota {
        let stops = self.role == Role::Client || (self.params.protocol == Protocol::Tcp && self.params.omit_secs == 0);
        if self.omitting || !stops {
            return Quota::UNLIMITED;
        }
        let left = |limit: u64, done: u64| if limit == 0 { u64::MAX } else { limit.saturating_sub(done) };
        let (bytes, blocks) = self.done(true);
        Quota { bytes: left(self.params.num_bytes, bytes), blocks: left(self.params.blocks, blocks) }
    }

    /// Bytes and blocks that were sent, or received.
    fn done(&self, sent: bool) -> (u64, u64) {
        let streams = self.streams.iter().filter(|s| s.sends == sent);
        streams.fold((0, 0), |(bytes, blocks), s| {
            let n = if self.params.protocol == Protocol::Udp {
                s.counts.datagrams
            } else {
                s.counts.bytes / self.params.len as u64
            };
            (s.counts.bytes.saturating_add(bytes), n.saturating_add(blocks))
        })
    }

    fn on_time(&mut self, shard: &Shard, now: Instant, report: &mut Report) {
        if self.omitting && now >= self.omit_end() {
            self.cut_interval(shard, now, report);
            for stream in &mut self.streams {
                stream.restart(shard);
            }
            self.omitting = false;
            self.measured = now;
            self.interval_began = now;
            self.before.fill(Default::default());
        } else if self.next_interval().is_some_and(|at| now >= at) {
            self.cut_interval(shard, now, report);
        }
    }

    fn omit_end(&self) -> Instant {
        self.began + Duration::from_secs(self.params.omit_secs)
    }

    /// Multiples of the interval since the measured time began, so that late cuts do not add up.
    fn next_interval(&self) -> Option<Instant> {
        let ns = u64::try_from(self.interval?.as_nanos()).ok()?.max(1);
        let elapsed = self.interval_began.nanos_since(self.measured);
        // A cut that came late by less than half an interval keeps its multiple.
        let nth = (elapsed + ns / 2) / ns + 1;
        Some(self.measured + Duration::from_nanos(nth.checked_mul(ns)?))
    }

    fn cut_interval(&mut self, shard: &Shard, now: Instant, report: &mut Report) {
        if self.interval.is_none() {
            return;
        }
        let mut rows = Vec::with_capacity(self.streams.len());
        for (nth, (stream, before)) in self.streams.iter_mut().zip(&mut self.before).enumerate() {
            stream.sample(shard, true);
            let counts = stream.counts.since(before);
            *before = stream.counts;
            rows.push(Row { nth, sends: stream.sends, counts, jitter_secs: stream.jitter_secs(), tcp: stream.tcp });
        }
        let since = |at: Instant| at.since(self.measured).as_secs_f64();
        let interval = Interval { start: since(self.interval_began), end: since(now), omitted: self.omitting, rows };
        report.interval(&interval, &self.params, self.role);
        self.interval_began = now;
        self.intervals += 1;
    }

    /// Has enough been sent or received, or has the time passed? The client's question.
    pub(crate) fn is_enough(&self, now: Instant) -> bool {
        if self.omitting || !self.is_running() {
            return false;
        }
        let p = &self.params;
        if p.num_bytes == 0 && p.blocks == 0 {
            return p.secs > 0 && now.since(self.measured) >= Duration::from_secs(p.secs);
        }
        [true, false].into_iter().any(|sent| {
            let (bytes, blocks) = self.done(sent);
            (p.num_bytes > 0 && bytes >= p.num_bytes) || (p.blocks > 0 && blocks >= p.blocks)
        })
    }

    /// Has what was sent been acknowledged?
    pub(crate) fn is_acked(&self, shard: &Shard) -> bool {
        self.streams.iter().filter(|s| s.sends).all(|s| shard.conn(s.sock).is_none_or(|c| c.outq_bytes() == 0))
    }
    /// The server's question: should the client have ended the test by now?
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.overdue_at().is_some_and(|at| now >= at)
    }
    fn overdue_at(&self) -> Option<Instant> {
        let p = &self.params;
        let timed = p.num_bytes == 0 && p.blocks == 0 && p.secs > 0;
        (timed && self.is_running()).then(|| self.began + Duration::from_secs(p.secs + p.omit_secs) + GRACE)
    }

    /// The end: counts what has arrived, cuts the last interval, stops the clock. Counting ends here.
    pub(crate) fn end(&mut self, shard: &mut Shard, now: Instant, report: &mut Report) {
        if !self.is_running() {
            return;
        }
        let mut quota = Quota { bytes: 0, blocks: 0 };
        for stream in self.streams.iter_mut().filter(|s| !s.sends) {
            if stream.pump(shard, now, &mut self.buffers, &mut quota).is_err() {
                stream.let_go();
            }
        }
        let unseen = self.streams.iter().zip(&self.before).any(|(s, before)| s.counts.bytes != before.bytes);
        if unseen || self.intervals == 0 {
            self.cut_interval(shard, now, report);
        }
        for stream in &mut self.streams {
            let first = stream.extremes == Default::default();
            stream.sample(shard, first);
        }
        self.usage_ended = (self.usage_now)();
        self.ended = Some(now);
    }

    /// When time alone makes something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if !self.is_running() {
            return None;
        }
        let p = &self.params;
        let timed = p.num_bytes == 0 && p.blocks == 0 && p.secs > 0 && !self.omitting;
        let end = timed.then(|| self.measured + Duration::from_secs(p.secs));
        let omit = self.omitting.then(|| self.omit_end());
        let sends = self.streams.iter().filter_map(Stream::next_send).min();
        let stall = Some(self.last_moved + STALL + Duration::from_millis(1));
        let client_end = end.filter(|_| self.role == Role::Client);
        [client_end, omit, self.next_interval(), sends, stall, self.overdue_at()].into_iter().flatten().min()
    }

    /// CPU of this process while the test ran, percent of a core: total, user, system.
    pub(crate) fn cpu_percent(&self) -> [f64; 3] {
        let wall = self.ended.unwrap_or(self.began).since(self.began);
        self.usage_ended.percent_since(&self.usage_began, wall)
    }
    /// CPU time of this process while the test ran.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.usage_ended.total.saturating_sub(self.usage_began.total)
    }

    /// What this side tells the other.
    pub(crate) fn results(&self, now: Instant, congestion: &str) -> Results {
        let secs = self.secs(now);
        let tcp = self.params.protocol == Protocol::Tcp;
        Results {
            cpu: self.cpu_percent(),
            sender_has_retransmits: self.we_send() && tcp,
            congestion: tcp.then(|| congestion.to_owned()),
            streams: self.streams.iter().map(|s| s.result(secs)).collect(),
            server_output: None,
        }
    }
    /// Numbers of the streams.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.streams.iter().map(|s| s.id).collect()
    }
    /// What `results` say about the stream with this number.
    pub(crate) fn find(results: Option<&Results>, id: u32) -> Option<StreamResult> {
        results?.streams.iter().find(|s| s.id == id).copied()
    }
}
