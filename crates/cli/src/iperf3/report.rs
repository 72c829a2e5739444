//! What a test says, and to whom: lines as it goes, or one JSON object at its end.
//!
//! Both shapes are iperf3's. [`Report`] only collects: the loop that drives the engine takes the text and prints it. With
//! `--get-server-output` a server keeps a copy for its client. With `--json` nothing is printed before the end; each
//! interval is kept as a JSON value, at most [`INTERVALS_MAX`] of them, so that a day-long test with a short interval does not
//! eat the memory (the key `intervals_left_out` says how many were).

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::proto::{Params, Protocol};
use super::stream::{Counts, TcpSample};
use super::summary::Summary;
use super::test::Role;
use super::{json, text};

/// Most stream intervals that are kept for the JSON.
const INTERVALS_MAX: usize = 200_000;
/// Longest text that is kept for the client, bytes: what a client reads, and some room.
const CAPTURE_MAX: usize = 8 << 20;

/// The number that stands for a stream in reports, where iperf3 has a file descriptor.
pub(crate) const fn socket_number(nth: usize) -> usize {
    5 + 2 * nth
}

/// One stream in one interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Which stream, from 0.
    pub(crate) nth: usize,
    /// This side sends.
    pub(crate) sends: bool,
    pub(crate) counts: Counts,
    pub(crate) jitter_secs: f64,
    pub(crate) tcp: Option<TcpSample>,
}

/// All streams in one interval. Times are seconds since measuring began.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) omitted: bool,
    pub(crate) rows: Vec<Row>,
}

impl Interval {
    /// The streams of each direction together, sending first.
    pub(crate) fn sums(&self) -> Vec<Row> {
        [true, false].into_iter().filter_map(|sends| self.sum(sends)).collect()
    }
    /// The streams of one direction together.
    pub(crate) fn sum(&self, sends: bool) -> Option<Row> {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.sends == sends).collect();
        let counts = rows.iter().fold(Counts::default(), |sum, row| sum.plus(&row.counts));
        let jitter_secs = rows.iter().map(|row| row.jitter_secs / rows.len() as f64).sum();
        (!rows.is_empty()).then_some(Row { nth: 0, sends, counts, jitter_secs, tcp: None })
    }
}

/// What one side says about a test.
pub(crate) struct Report {
    json: bool,
    /// Not yet printed.
    out: String,
    /// Copy for the client.
    capture: Option<String>,
    start: Value,
    intervals: Vec<Value>,
    kept_rows: usize,
    left_out: u64,
    header_is_due: bool,
    /// The client's: what the server printed.
    server_output: Option<Value>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            out: String::new(),
            capture: None,
            start: json!({}),
            intervals: Vec::new(),
            kept_rows: 0,
            left_out: 0,
            header_is_due: true,
            server_output: None,
        }
    }
    /// Text to print.
    pub(crate) fn take_out(&mut self) -> String {
        std::mem::take(&mut self.out)
    }
    /// Keeps a copy of every line from now on.
    pub(crate) fn begin_capture(&mut self) {
        self.capture = Some(String::new());
    }
    /// The copy.
    pub(crate) fn take_capture(&mut self) -> Option<String> {
        self.capture.take()
    }
    /// Notes something for the `start` object.
    pub(crate) fn start_key(&mut self, key: &str, value: Value) {
        self.start[key] = value;
    }
    /// What the server printed or its JSON.
    pub(crate) fn set_server_output(&mut self, output: Option<Value>) {
        self.server_output = output;
    }

    /// A line for people.
    pub(crate) fn line(&mut self, line: &str) {
        if !self.json {
            self.out.push_str(line);
            self.out.push('\n');
        }
        if let Some(capture) = self.capture.as_mut().filter(|c| c.len() + line.len() < CAPTURE_MAX) {
            capture.push_str(line);
            capture.push('\n');
        }
    }

    /// JSON, which is printed though lines are not.
    pub(crate) fn raw(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// All streams are there: who is connected to whom.
    pub(crate) fn connected(&mut self, ends: &[[SocketAddr; 2]]) {
        let mut list = Vec::new();
        for (nth, [local, remote]) in ends.iter().enumerate() {
            let number = socket_number(nth);
            self.line(&format!(
                "[{number:3}] local {} port {} connected to {} port {}",
                local.ip(),
                local.port(),
                remote.ip(),
                remote.port()
            ));
            list.push(json!({
                "socket": number, "local_host": local.ip().to_string(), "local_port": local.port(),
                "remote_host": remote.ip().to_string(), "remote_port": remote.port(),
            }));
        }
        self.start_key("connected", Value::Array(list));
    }
    /// What is going to be done.
    pub(crate) fn test_start(&mut self, params: &Params, mss_bytes: u32) {
        if params.protocol == Protocol::Tcp {
            self.start_key("tcp_mss_default", json!(mss_bytes));
        }
        self.start_key("target_bitrate", json!(params.rate));
        self.start_key("sock_bufsize", json!(params.window));
        self.start_key("test_start", json::test_start(params));
    }

    /// An interval is over.
    pub(crate) fn interval(&mut self, interval: &Interval, params: &Params, role: Role) {
        if self.header_is_due {
            self.header_is_due = false;
            self.line(&text::interval_header(params, role));
        }
        for line in text::interval(interval, params, role) {
            self.line(line.trim_end_matches('\n'));
        }
        if self.kept_rows + interval.rows.len() > INTERVALS_MAX {
            self.left_out += 1;
        } else if self.json {
            self.kept_rows += interval.rows.len();
            self.intervals.push(json::interval(interval, params, role));
        }
    }

    /// The test is over.
    pub(crate) fn summary(&mut self, summary: &Summary) {
        for line in text::summary(summary) {
            self.line(&line);
        }
    }

    /// The whole report as iperf3's JSON; `error` when the test did not end well.
    pub(crate) fn to_json(&self, summary: Option<&Summary>, error: Option<&str>) -> Value {
        let mut value = json!({
            "start": self.start,
            "intervals": self.intervals,
            "end": summary.map_or_else(|| json!({}), json::end),
        });
        if self.left_out > 0 {
            value["intervals_left_out"] = json!(self.left_out);
        }
        match &self.server_output {
            Some(Value::String(text)) => value["server_output_text"] = json!(text),
            Some(object) => value["server_output_json"] = object.clone(),
            None => {}
        }
        if let Some(error) = error {
            value["error"] = json!(error);
        }
        value
    }
    /// What the server printed, to be shown below the client's own report.
    pub(crate) fn server_output_text(&self) -> Option<String> {
        Some(match self.server_output.as_ref()? {
            Value::String(text) => text.clone(),
            object => serde_json::to_string_pretty(object).unwrap_or_default(),
        })
    }
}
