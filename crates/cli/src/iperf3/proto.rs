//! The protocol of iperf3 as types: cookies, states, parameters, results, and the header of a UDP datagram.
//!
//! ```text
//!   client                         control connection (TCP, port 5201)                        server
//!   cookie (37 bytes) ──────────────────────────────────────────────────────────────────────────▶
//!   ◀──────────────────────────────────────────────────────────────────────── ParamExchange (9)
//!   length, JSON parameters ────────────────────────────────────────────────────────────────────▶
//!   ◀──────────────────────────────────────────────────────────────────────── CreateStreams (10)
//!   data connections, each begins with the cookie (TCP) or a greeting and its answer (UDP)
//!   ◀────────────────────────────────────────────────────────── TestStart (1), TestRunning (2)
//!   TestEnd (4) ────────────────────────────────────────────────────────────────────────────────▶
//!   ◀────────────────────────────────────────────────────────────────────── ExchangeResults (13)
//!   length, JSON results ────────────────▶  ◀──────────────────────────────── length, JSON results
//!   ◀─────────────────────────────────────────────────────────────────────── DisplayResults (14)
//!   IperfDone (16) ─────────────────────────────────────────────────────────────────────────────▶
//! ```
//! A state is one signed byte, a length four bytes in network order. The peer is hostile: a length has a limit before
//! anything is read, a number has a range before it is used, a state that is unknown or not due is an error with a name.
//! Keys that are not known are ignored, as newer peers send more. Not spoken: SCTP and authentication.

use std::fmt;

use linerate_base::rng::Rng;
use serde_json::{Map, Value, json};

/// Where servers listen.
pub(crate) const PORT: u16 = 5201;
/// Bytes of a cookie: 36 characters and a zero.
pub(crate) const COOKIE_LEN: usize = 37;
/// Longest parameters that are read, bytes (iperf3 sends some 300).
pub(crate) const PARAMS_MAX: usize = 8 << 10;
/// Longest results that a server reads, bytes: 256 streams take 40 KiB.
pub(crate) const RESULTS_MAX: usize = 256 << 10;
/// Longest results that a client reads, bytes: they may hold all that the server printed.
pub(crate) const SERVER_RESULTS_MAX: usize = 16 << 20;
/// Most streams in one direction.
pub(crate) const STREAMS_MAX: u64 = 128;
/// Largest block of TCP, bytes.
pub(crate) const TCP_BLOCK_MAX: u64 = 1 << 20;
/// Block of TCP unless told otherwise, bytes.
pub(crate) const TCP_BLOCK: usize = 128 << 10;
/// Largest and smallest datagram, bytes.
pub(crate) const UDP_BLOCK_MAX: u64 = 65_507;
/// The header with a 64-bit count.
pub(crate) const UDP_BLOCK_MIN: u64 = 16;
/// Longest test, seconds.
pub(crate) const SECS_MAX: u64 = 86_400;
/// Longest time left out at the beginning, seconds.
pub(crate) const OMIT_MAX: u64 = 600;
/// Rate of UDP unless told otherwise, bits per second.
pub(crate) const UDP_RATE: u64 = 1 << 20;

/// First datagram of a stream, as iperf3 writes it on a little-endian host, and its answer.
pub(crate) const UDP_HELLO: [u8; 4] = *b"9876";
/// See [`UDP_HELLO`].
pub(crate) const UDP_REPLY: [u8; 4] = *b"6789";
/// The same before version 3.10 or so: 123456789.
pub(crate) const UDP_HELLO_OLD: [u8; 4] = 123_456_789_u32.to_le_bytes();
/// And 987654321.
pub(crate) const UDP_REPLY_OLD: [u8; 4] = 987_654_321_u32.to_le_bytes();

macro_rules! states {
    ($( $(#[doc = $doc:literal])+ $name:ident = $number:literal, )+) => {
        /// What one side tells the other on the control connection.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum State { $( $(#[doc = $doc])+ $name, )+ }

        impl State {
            /// The byte on the wire.
            pub(crate) const fn byte(self) -> u8 {
                match self { $( Self::$name => ($number as i8).cast_unsigned(), )+ }
            }
            /// From the byte on the wire.
            pub(crate) fn parse(byte: u8) -> Result<Self, ProtocolError> {
                match byte.cast_signed() {
                    $( $number => Ok(Self::$name), )+
                    other => Err(ProtocolError::UnknownState(other)),
                }
            }
        }
    };
}

states! {
    /// Server: all streams are there.
    TestStart = 1,
    /// Server: send.
    TestRunning = 2,
    /// Client: the test is over.
    TestEnd = 4,
    /// Server: send your parameters.
    ParamExchange = 9,
    /// Server: open your streams.
    CreateStreams = 10,
    /// Server: interrupted.
    ServerTerminate = 11,
    /// Client: interrupted.
    ClientTerminate = 12,
    /// Server: send your results.
    ExchangeResults = 13,
    /// Server: that was all.
    DisplayResults = 14,
    /// Never sent by iperf3; reserved.
    IperfStart = 15,
    /// Client: good-bye.
    IperfDone = 16,
    /// Server: busy with another client.
    AccessDenied = -1,
    /// Server: an error, whose number and errno follow as two 32-bit numbers in network order.
    ServerError = -2,
}

/// What a peer did wrong, or asked for in vain.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ProtocolError {
    /// A byte that is no state.
    UnknownState(i8),
    /// A state that is not due.
    UnexpectedState(State),
    /// The first 37 bytes are not those of an iperf3 client.
    BadCookie,
    /// A JSON text longer than the limit.
    Oversized { what: &'static str, len: u64, limit: usize },
    /// Bytes that are no JSON object, or an object without what it must have.
    BadJson { what: &'static str, why: String },
    /// A parameter out of range or not supported; the number that iperf3 has for it.
    BadParam { key: &'static str, why: String, code: u32 },
    /// Results of a stream that does not exist.
    NoSuchStream(u64),
}

impl ProtocolError {
    /// The number by which an iperf3 client knows the error: what the server sends after `ServerError`.
    pub(crate) const fn code(&self) -> u32 {
        match self {
            Self::UnknownState(_) | Self::UnexpectedState(_) => error_code::MESSAGE,
            Self::BadCookie => error_code::RECV_COOKIE,
            Self::Oversized { .. } | Self::BadJson { .. } => error_code::RECV_PARAMS,
            Self::BadParam { code, .. } => *code,
            Self::NoSuchStream(_) => error_code::RECV_RESULTS,
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownState(byte) => write!(f, "received an unknown control message ({byte})"),
            Self::UnexpectedState(state) => write!(f, "received the control message {state:?} when it was not due"),
            Self::BadCookie => f.write_str("what connected is no iperf3 client: its first 37 bytes are no cookie"),
            Self::Oversized { what, len, limit } => write!(f, "{what} of {len} bytes; at most {limit} are read"),
            Self::BadJson { what, why } => write!(f, "{what} cannot be read: {why}"),
            Self::BadParam { key, why, .. } => write!(f, "parameter {key}: {why}"),
            Self::NoSuchStream(id) => write!(f, "results of stream {id}, which does not exist"),
        }
    }
}

/// Numbers of iperf3's errors, as its client prints them by text.
pub(crate) mod error_code {
    /// Test duration too long.
    pub(crate) const DURATION: u32 = 5;
    /// Too many parallel streams.
    pub(crate) const NUM_STREAMS: u32 = 6;
    /// Block size too large.
    pub(crate) const BLOCK_SIZE: u32 = 7;
    /// Socket buffer too large.
    pub(crate) const BUF_SIZE: u32 = 8;
    /// TCP MSS too large.
    pub(crate) const MSS: u32 = 10;
    /// Unable to receive the cookie.
    pub(crate) const RECV_COOKIE: u32 = 106;
    /// Unknown control message.
    pub(crate) const MESSAGE: u32 = 110;
    /// Unable to receive parameters.
    pub(crate) const RECV_PARAMS: u32 = 114;
    /// Unable to receive results.
    pub(crate) const RECV_RESULTS: u32 = 117;
    /// Congestion control not supported.
    pub(crate) const CONGESTION: u32 = 134;

    /// What a client says about a number that a server sent.
    pub(crate) fn describe(code: u32) -> &'static str {
        match code {
            DURATION => "the test is too long for it",
            NUM_STREAMS => "too many parallel streams",
            BLOCK_SIZE => "the block size is too large for it",
            BUF_SIZE => "the socket buffer size is too large for it",
            MSS => "the maximum segment size is too large for it",
            27 => "the total bit rate is larger than its limit",
            MESSAGE => "it received an unknown control message",
            RECV_COOKIE => "it could not read the cookie",
            RECV_PARAMS => "it could not read the parameters",
            RECV_RESULTS => "it could not read the results",
            119 => "the client has terminated",
            CONGESTION => "it does not have this congestion control",
            142 => "it wants authentication, which is not supported",
            _ => "it gave no reason that is known here",
        }
    }
}

/// What names a test: all its connections begin with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cookie([u8; COOKIE_LEN]);

impl Cookie {
    /// 36 random characters of iperf3's alphabet.
    pub(crate) fn random(rng: &mut Rng) -> Self {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let mut bytes = [0; COOKIE_LEN];
        for byte in &mut bytes[..COOKIE_LEN - 1] {
            *byte = ALPHABET[rng.below(32) as usize];
        }
        Self(bytes)
    }
    /// From the first bytes of a connection.
    pub(crate) fn parse(bytes: &[u8; COOKIE_LEN]) -> Result<Self, ProtocolError> {
        match bytes.split_last() {
            Some((0, text)) if text.iter().all(u8::is_ascii_alphanumeric) => Ok(Self(*bytes)),
            _ => Err(ProtocolError::BadCookie),
        }
    }
    /// As on the wire.
    pub(crate) const fn bytes(&self) -> &[u8; COOKIE_LEN] {
        &self.0
    }
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.0[..COOKIE_LEN - 1]).unwrap_or_default())
    }
}
impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cookie({self})")
    }
}

/// What carries the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// As reports name it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// What the client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Params {
    pub(crate) protocol: Protocol,
    /// Seconds at the beginning that are not counted.
    pub(crate) omit_secs: u64,
    /// Seconds to send; 0 = until `num_bytes` or `blocks`, or for ever.
    pub(crate) secs: u64,
    /// Bytes to send in all, 0 = no limit.
    pub(crate) num_bytes: u64,
    /// Blocks to send in all, 0 = no limit.
    pub(crate) blocks: u64,
    /// Streams in each direction.
    pub(crate) parallel: u64,
    /// The server sends.
    pub(crate) reverse: bool,
    /// Both send.
    pub(crate) bidir: bool,
    /// Bytes of a block: of a write, or of a datagram.
    pub(crate) len: usize,
    /// Target rate of each stream, bits per second; 0 = no limit.
    pub(crate) rate: u64,
    /// Blocks that are sent at once when the rate allows.
    pub(crate) burst: u32,
    /// Socket buffers, bytes; 0 = automatic.
    pub(crate) window: u32,
    /// Maximum segment size, 0 = automatic.
    pub(crate) mss: u16,
    pub(crate) nodelay: bool,
    pub(crate) tos: u8,
    pub(crate) congestion: Option<String>,
    /// Datagrams carry a 64-bit count.
    pub(crate) udp_64bit: bool,
    /// The server sends what it printed.
    pub(crate) get_server_output: bool,
}

impl Params {
    /// What the client sends.
    pub(crate) fn to_json(&self) -> Value {
        let mut map = Map::new();
        let mut put = |key: &str, value: Value| drop(map.insert(key.to_owned(), value));
        put(if self.protocol == Protocol::Tcp { "tcp" } else { "udp" }, json!(true));
        for (key, number) in [
            ("omit", self.omit_secs),
            ("time", self.secs),
            ("num", self.num_bytes),
            ("blockcount", self.blocks),
            ("parallel", self.parallel),
            ("len", self.len as u64),
            ("pacing_timer", 1000),
        ] {
            put(key, json!(number));
        }
        let optional = [
            ("MSS", u64::from(self.mss)),
            ("window", u64::from(self.window)),
            ("bandwidth", self.rate),
            ("burst", if self.burst > 1 { u64::from(self.burst) } else { 0 }),
            ("TOS", u64::from(self.tos)),
            ("udp_counters_64bit", u64::from(self.udp_64bit)),
            ("get_server_output", u64::from(self.get_server_output)),
        ];
        for (key, number) in optional.into_iter().filter(|(_, number)| *number != 0) {
            put(key, json!(number));
        }
        for (key, on) in [("nodelay", self.nodelay), ("reverse", self.reverse), ("bidirectional", self.bidir)] {
            if on {
                put(key, json!(true));
            }
        }
        if let Some(name) = &self.congestion {
            put("congestion", json!(name));
        }
        // A peer compares it with nothing, but prints it.
        put("client_version", json!(concat!("linerate ", env!("CARGO_PKG_VERSION"))));
        Value::Object(map)
    }

    /// What a server makes of a client's JSON.
    pub(crate) fn parse(value: &Value) -> Result<Self, ProtocolError> {
        let fields = Fields::new(value, "parameters")?;
        if fields.flag("sctp") {
            return Err(bad("sctp", "SCTP is not supported", error_code::RECV_PARAMS));
        }
        if fields.text("authtoken").is_some() {
            return Err(bad("authtoken", "authentication is not supported", error_code::RECV_PARAMS));
        }
        let protocol = if fields.flag("udp") { Protocol::Udp } else { Protocol::Tcp };
        let (least, most, usual) = match protocol {
            Protocol::Tcp => (1, TCP_BLOCK_MAX, TCP_BLOCK as u64),
            Protocol::Udp => (UDP_BLOCK_MIN, UDP_BLOCK_MAX, 1460),
        };
        let this = Self {
            protocol,
            omit_secs: fields.number("omit", 0, 0..=OMIT_MAX, error_code::DURATION)?,
            secs: fields.number("time", 10, 0..=SECS_MAX, error_code::DURATION)?,
            num_bytes: fields.number("num", 0, 0..=u64::MAX, error_code::RECV_PARAMS)?,
            blocks: fields.number("blockcount", 0, 0..=u64::MAX, error_code::RECV_PARAMS)?,
            parallel: fields.number("parallel", 1, 1..=STREAMS_MAX, error_code::NUM_STREAMS)?,
            reverse: fields.flag("reverse"),
            bidir: fields.flag("bidirectional"),
            len: fields.number("len", usual, least..=most, error_code::BLOCK_SIZE)? as usize,
            rate: fields.number("bandwidth", 0, 0..=1 << 50, error_code::RECV_PARAMS)?,
            burst: fields.number("burst", 1, 0..=1000, error_code::RECV_PARAMS)?.max(1) as u32,
            window: fields.number("window", 0, 0..=512 << 20, error_code::BUF_SIZE)? as u32,
            mss: fields.number("MSS", 0, 0..=9216, error_code::MSS)? as u16,
            nodelay: fields.flag("nodelay"),
            tos: fields.number("TOS", 0, 0..=255, error_code::RECV_PARAMS)? as u8,
            congestion: fields.text("congestion").map(str::to_owned),
            udp_64bit: fields.flag("udp_counters_64bit"),
            get_server_output: fields.flag("get_server_output"),
        };
        if this.mss != 0 && this.mss < 88 {
            return Err(bad("MSS", "below 88", error_code::MSS));
        }
        if this.reverse && this.bidir {
            return Err(bad("reverse", "excludes bidirectional", error_code::RECV_PARAMS));
        }
        Ok(this)
    }
}

fn bad(key: &'static str, why: impl Into<String>, code: u32) -> ProtocolError {
    ProtocolError::BadParam { key, why: why.into(), code }
}

/// Access to a JSON object whose author is not trusted. iperf3 writes counts as JSON numbers that may look like floats.
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn new(value: &'a Value, what: &'static str) -> Result<Self, ProtocolError> {
        let why = || ProtocolError::BadJson { what, why: "not a JSON object".into() };
        value.as_object().map(Self).ok_or_else(why)
    }
    fn flag(&self, key: &str) -> bool {
        match self.0.get(key) {
            Some(Value::Bool(on)) => *on,
            Some(Value::Number(n)) => n.as_f64().is_some_and(|n| n != 0.0),
            _ => false,
        }
    }
    fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key)?.as_str()
    }
    /// A number as iperf3's C reads it: `None` when absent or no number.
    fn float(&self, key: &str) -> Option<f64> {
        self.0.get(key)?.as_f64().filter(|n| n.is_finite())
    }
    fn count(&self, key: &str) -> Option<u64> {
        let value = self.0.get(key)?;
        // A double that is negative or too large is clamped by the cast.
        value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0).map(|n| n as u64))
    }
    fn number(
        &self,
        key: &'static str,
        absent: u64,
        range: std::ops::RangeInclusive<u64>,
        code: u32,
    ) -> Result<u64, ProtocolError> {
        if self.0.get(key).is_none_or(Value::is_null) {
            return Ok(absent);
        }
        match self.count(key) {
            Some(n) if range.contains(&n) => Ok(n),
            _ => Err(bad(key, format!("expected {} to {}", range.start(), range.end()), code)),
        }
    }
}

/// What one side counted on one stream.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct StreamResult {
    pub(crate) id: u32,
    pub(crate) bytes: u64,
    /// `None`: this side did not send, or does not know.
    pub(crate) retransmits: Option<u64>,
    pub(crate) jitter_secs: f64,
    /// Datagrams lost.
    pub(crate) errors: u64,
    /// Datagrams sent, or the highest count received.
    pub(crate) datagrams: u64,
    pub(crate) start_secs: f64,
    pub(crate) end_secs: f64,
}

/// What one side counted.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Results {
    /// CPU of the process, percent of one core: total, user, system.
    pub(crate) cpu: [f64; 3],
    pub(crate) sender_has_retransmits: bool,
    pub(crate) congestion: Option<String>,
    pub(crate) streams: Vec<StreamResult>,
    /// What the server printed, when the client asked for it: text, or its JSON.
    pub(crate) server_output: Option<Value>,
}

impl Results {
    /// What is sent.
    pub(crate) fn to_json(&self, we_send: bool) -> Value {
        let streams: Vec<Value> = self
            .streams
            .iter()
            .map(|s| {
                json!({
                    "id": s.id, "bytes": s.bytes, "retransmits": s.retransmits.map_or(-1, |n| n as i64),
                    "jitter": s.jitter_secs, "errors": s.errors, "packets": s.datagrams,
                    "start_time": s.start_secs, "end_time": s.end_secs,
                })
            })
            .collect();
        // -1: not the sender's side.
        let has_retransmits = if we_send { i32::from(self.sender_has_retransmits) } else { -1 };
        let mut value = json!({
            "cpu_util_total": self.cpu[0], "cpu_util_user": self.cpu[1], "cpu_util_system": self.cpu[2],
            "sender_has_retransmits": has_retransmits, "streams": streams,
        });
        if let Some(name) = &self.congestion {
            value["congestion_used"] = json!(name);
        }
        match &self.server_output {
            Some(Value::String(text)) => value["server_output_text"] = json!(text),
            Some(object) => value["server_output_json"] = object.clone(),
            None => {}
        }
        value
    }

    /// What the peer sent, about streams whose ids are `ids`.
    pub(crate) fn parse(value: &Value, ids: &[u32]) -> Result<Self, ProtocolError> {
        let fields = Fields::new(value, "results")?;
        let missing = |why: &str| ProtocolError::BadJson { what: "results", why: why.to_owned() };
        let list = value.get("streams").and_then(Value::as_array).ok_or_else(|| missing("no streams"))?;
        if list.len() > ids.len() {
            return Err(missing("more streams than there are"));
        }
        let streams = list.iter().map(|s| parse_stream(s, ids)).collect::<Result<Vec<_>, _>>()?;
        let cpu = ["cpu_util_total", "cpu_util_user", "cpu_util_system"].map(|key| fields.float(key).unwrap_or(0.0));
        let server_output = value.get("server_output_json").or_else(|| value.get("server_output_text")).cloned();
        Ok(Self {
            cpu,
            sender_has_retransmits: fields.float("sender_has_retransmits") == Some(1.0),
            congestion: fields.text("congestion_used").map(str::to_owned),
            streams,
            server_output,
        })
    }
}

fn parse_stream(value: &Value, ids: &[u32]) -> Result<StreamResult, ProtocolError> {
    let fields = Fields::new(value, "results of a stream")?;
    let missing = |key: &str| ProtocolError::BadJson { what: "results of a stream", why: format!("no {key}") };
    let id = fields.count("id").ok_or_else(|| missing("id"))?;
    let known = ids.iter().copied().find(|&known| u64::from(known) == id);
    // iperf3 writes -1 as the unsigned number of the same bits.
    let retransmits = fields.count("retransmits").filter(|&n| n < 1 << 62);
    Ok(StreamResult {
        id: known.ok_or(ProtocolError::NoSuchStream(id))?,
        bytes: fields.count("bytes").ok_or_else(|| missing("bytes"))?,
        retransmits,
        jitter_secs: fields.float("jitter").unwrap_or(0.0).max(0.0),
        errors: fields.count("errors").unwrap_or(0),
        datagrams: fields.count("packets").unwrap_or(0),
        start_secs: fields.float("start_time").unwrap_or(0.0),
        end_secs: fields.float("end_time").unwrap_or(0.0),
    })
}

/// Numbers of the streams of a test, in the order of their making: 1, 3, 4, 5 ... (iperf3 never gives 2).
pub(crate) const fn stream_id(nth: usize) -> u32 {
    if nth == 0 { 1 } else { nth as u32 + 2 }
}

/// The head of a datagram: when it was sent, and which it is, from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UdpHeader {
    pub(crate) sec: u32,
    pub(crate) usec: u32,
    pub(crate) count: u64,
}

impl UdpHeader {
    /// Writes it; `buf` is at least as long as the header.
    pub(crate) fn emit(&self, buf: &mut [u8], wide: bool) {
        buf[..4].copy_from_slice(&self.sec.to_be_bytes());
        buf[4..8].copy_from_slice(&self.usec.to_be_bytes());
        match wide {
            true => buf[8..16].copy_from_slice(&self.count.to_be_bytes()),
            false => buf[8..12].copy_from_slice(&(self.count as u32).to_be_bytes()),
        }
    }
    /// Reads it; `None` for a datagram that is too short.
    pub(crate) fn parse(buf: &[u8], wide: bool) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*buf.get(at..at + 4)?.first_chunk()?));
        let count = match wide {
            true => u64::from_be_bytes(*buf.get(8..16)?.first_chunk()?),
            false => u64::from(word(8)?),
        };
        Some(Self { sec: word(0)?, usec: word(4)?, count })
    }
    /// Seconds on the sender's clock.
    pub(crate) fn secs(&self) -> f64 {
        f64::from(self.sec) + f64::from(self.usec) / 1e6
    }
}

#[cfg(test)]
mod tests;
