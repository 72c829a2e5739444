//! Rows as `ss` prints them.
//!
//! ```text
//!   Netid State Recv-Q Send-Q Local Address:Port Peer Address:Port Process
//!   tcp   ESTAB 0      0           10.9.0.2:5201     10.9.0.1:4711 timer:(on,200ms,0) ino:0 sk:1 <->
//!            skmem:(r0,rb131072,...) ts sack cubic wscale:7,7 rto:204 rtt:0.1/0.05 ... send 3.1bps ... minrtt:0.05
//! ```
//! Names and order of the words of `-i` are iproute2's; a word whose value says nothing (zero, unknown) is left out, as there.
//! Times are milliseconds, rates bits per second. Two things differ: a timer of seconds and parts of one is written
//! `2.345sec`, and `-e` adds `shard:N`, the shard that has the socket. What Linerate has no number for is 0 (`ino`; `f`, `o`,
//! `bl`, `d` of `skmem`).

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use linerate::TcpInfo;
use linerate::control::SocketRecord;
use linerate_tcp::info::opt;

/// What a row shows besides its ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) netid: bool,
    pub(crate) timers: bool,
    pub(crate) details: bool,
    pub(crate) memory: bool,
    pub(crate) info: bool,
    pub(crate) oneline: bool,
}

/// Cells of a row: netid, state, queues, local address and port, peer's address and port.
const CELLS: usize = 8;
const TITLES: [&str; CELLS] = ["Netid", "State", "Recv-Q", "Send-Q", "Local Address", "Port", "Peer Address", "Port"];
/// Addresses stand at the right, before the colon of their port.
const RIGHT: [bool; CELLS] = [false, false, false, false, true, false, true, false];

/// Pages of rows, whose widths only grow.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Columns,
    widths: [usize; CELLS],
}

impl Table {
    pub(crate) fn new(columns: Columns) -> Self {
        Self { columns, widths: TITLES.map(str::len) }
    }

    /// The text of `sockets`, and before it the titles.
    pub(crate) fn page(&mut self, sockets: &[SocketRecord], titles: bool) -> String {
        let rows: Vec<_> = sockets.iter().map(cells).collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = cell.len().max(*width);
            }
        }
        let mut text = String::new();
        if titles {
            self.row(&mut text, &TITLES.map(str::to_owned), "Process");
        }
        for (socket, row) in sockets.iter().zip(&rows) {
            self.row(&mut text, row, &self.behind(socket));
            let below = self.below(socket);
            if !below.is_empty() {
                let between = if self.columns.oneline { " " } else { "\n\t " };
                text.truncate(text.trim_end().len());
                let _ = writeln!(text, "{between}{below}");
            }
        }
        text
    }

    fn row(&self, text: &mut String, cells: &[String; CELLS], behind: &str) {
        let first = usize::from(!self.columns.netid);
        let start = text.len();
        for (nth, cell) in cells.iter().enumerate().skip(first) {
            let width = self.widths[nth];
            let _ = if RIGHT[nth] { write!(text, "{cell:>width$}:") } else { write!(text, "{cell:<width$} ") };
        }
        text.push_str(behind);
        text.truncate(text.trim_end().len().max(start));
        text.push('\n');
    }

    /// What stands in the line itself.
    fn behind(&self, s: &SocketRecord) -> String {
        let mut words = Vec::new();
        if let Some(timer) = s.timer.as_ref().filter(|_| self.columns.timers) {
            words.push(format!("timer:({},{},{})", timer.name, time_left(timer.left_ms), timer.retries));
        }
        if self.columns.details {
            words.push(format!("ino:0 sk:{:x} shard:{}", s.id.unwrap_or(0), s.shard));
            if s.v6 && s.peer.is_none() {
                words.push(format!("v6only:{}", u8::from(s.v6only)));
            }
            words.push(shut_down(&s.state).to_owned());
        }
        words.join(" ")
    }

    /// What stands in the line below.
    fn below(&self, s: &SocketRecord) -> String {
        let mut words = Vec::new();
        if let Some(m) = s.skmem.filter(|_| self.columns.memory) {
            let (t, tb, w) = (m.wmem_alloc, m.sndbuf, m.wmem_queued);
            words.push(format!("skmem:(r{},rb{},t{t},tb{tb},f0,w{w},o0,bl0,d0)", m.rmem_alloc, m.rcvbuf));
        }
        if let Some(info) = s.tcp_info.as_ref().filter(|_| self.columns.info) {
            words.extend(tcp_words(info, s.congestion.as_deref().unwrap_or_default()));
        }
        words.join(" ")
    }
}

fn cells(s: &SocketRecord) -> [String; CELLS] {
    let port = |n: u16| if n == 0 { "*".to_owned() } else { n.to_string() };
    let end = |end: Option<SocketAddr>| {
        let ip = end.map(|end| end.ip()).filter(|ip| !ip.is_unspecified());
        (address(ip, s.v6, s.v6only), port(end.map_or(0, |end| end.port())))
    };
    let ((local, local_port), (peer, peer_port)) = (end(Some(s.local)), end(s.peer));
    let (recv_q, send_q) = (s.recv_q.to_string(), s.send_q.to_string());
    [s.proto.clone(), s.state.clone(), recv_q, send_q, local, local_port, peer, peer_port]
}

/// An address as a socket of that family has it; `None` is any.
fn address(ip: Option<IpAddr>, v6: bool, v6only: bool) -> String {
    match ip {
        None if !v6 => "0.0.0.0".into(),
        None if v6only => "[::]".into(),
        None => "*".into(),
        Some(IpAddr::V4(ip)) if v6 => format!("[{}]", ip.to_ipv6_mapped()),
        Some(IpAddr::V4(ip)) => ip.to_string(),
        Some(IpAddr::V6(ip)) => format!("[{ip}]"),
    }
}

/// Which directions still flow, received first: what the state says of the two FINs.
fn shut_down(state: &str) -> &'static str {
    match state {
        "FIN-WAIT-1" | "FIN-WAIT-2" => "<--",
        "CLOSE-WAIT" => "-->",
        "LAST-ACK" | "CLOSING" | "TIME-WAIT" => "---",
        _ => "<->",
    }
}

/// Time until a timer, coarser as it is longer.
fn time_left(ms: u64) -> String {
    let (minutes, seconds, rest) = (ms / 60_000, ms / 1000 % 60, ms % 1000);
    match (minutes, seconds) {
        (10.., _) | (1.., 0) => format!("{minutes}min"),
        (1.., _) => format!("{minutes}min{seconds}sec"),
        (0, 10..) => format!("{seconds}sec"),
        (0, 1..) if rest == 0 => format!("{seconds}sec"),
        (0, 1..) => format!("{seconds}.{rest:03}sec"),
        (0, 0) => format!("{rest}ms"),
    }
}

/// Microseconds as milliseconds with up to six digits that count, as C's `%g`.
pub(crate) fn ms(us: u32) -> String {
    general(f64::from(us) / 1000.0)
}

/// C's `%g`: six significant digits, no zeros at the end, a power of ten where that is shorter.
pub(crate) fn general(value: f64) -> String {
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    // Rounded first: 999999.5 has a digit more than it seems.
    let scientific = format!("{value:.5e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).unwrap_or(0);
        return trimmed(&format!("{value:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.unsigned_abs())
}

/// A word with a number, unless it is zero.
fn count(words: &mut Vec<String>, name: &str, n: impl Into<u64>) {
    let n = n.into();
    if n != 0 {
        words.push(format!("{name}:{n}"));
    }
}

/// The words of `-i`, in iproute2's order.
pub(crate) fn tcp_words(i: &TcpInfo, congestion: &str) -> Vec<String> {
    let mut w = Vec::new();
    negotiated(&mut w, i, congestion);
    path(&mut w, i);
    for (name, n) in [
        ("bytes_sent", i.bytes_sent),
        ("bytes_retrans", i.bytes_retrans),
        ("bytes_acked", i.bytes_acked),
        ("bytes_received", i.bytes_received),
        ("segs_out", i.segs_out.into()),
        ("segs_in", i.segs_in.into()),
        ("data_segs_out", i.data_segs_out.into()),
        ("data_segs_in", i.data_segs_in.into()),
    ] {
        count(&mut w, name, n);
    }
    rates(&mut w, i);
    limits(&mut w, i);
    recovery(&mut w, i);
    receiver(&mut w, i);
    w
}

fn negotiated(w: &mut Vec<String>, i: &TcpInfo, congestion: &str) {
    let flags = [(opt::TIMESTAMPS, "ts"), (opt::SACK, "sack"), (opt::ECN, "ecn"), (opt::ECN_SEEN, "ecnseen")];
    w.extend(flags.iter().filter(|(bit, _)| i.options & bit != 0).map(|(_, name)| (*name).to_owned()));
    if !congestion.is_empty() {
        w.push(congestion.to_owned());
    }
    if i.options & opt::WSCALE != 0 {
        w.push(format!("wscale:{},{}", i.snd_wscale, i.rcv_wscale));
    }
}

fn path(w: &mut Vec<String>, i: &TcpInfo) {
    if i.rto != 0 {
        w.push(format!("rto:{}", ms(i.rto)));
    }
    count(w, "backoff", i.backoff);
    if i.rtt != 0 {
        w.push(format!("rtt:{}/{}", ms(i.rtt), ms(i.rttvar)));
    }
    if i.ato != 0 {
        w.push(format!("ato:{}", ms(i.ato)));
    }
    count(w, "mss", i.snd_mss);
    count(w, "pmtu", i.pmtu);
    count(w, "rcvmss", i.rcv_mss);
    count(w, "advmss", i.advmss);
    count(w, "cwnd", i.snd_cwnd);
    // One that was never set is larger than any window.
    if i.snd_ssthresh < 0xffff {
        w.push(format!("ssthresh:{}", i.snd_ssthresh));
    }
}

fn rates(w: &mut Vec<String>, i: &TcpInfo) {
    if let Some(us) = std::num::NonZeroU32::new(i.rtt)
        && i.snd_mss != 0
        && i.snd_cwnd != 0
    {
        let bits = f64::from(i.snd_cwnd) * f64::from(i.snd_mss) * 8.0;
        w.push(format!("send {:.0}bps", bits * 1e6 / f64::from(us.get())));
    }
    count(w, "lastsnd", i.last_data_sent);
    count(w, "lastrcv", i.last_data_recv);
    count(w, "lastack", i.last_ack_recv);
    let bits = |bytes: u64| u128::from(bytes) * 8;
    let is_rate = |bytes: u64| bytes != 0 && bytes != u64::MAX;
    if is_rate(i.pacing_rate) {
        let most = if is_rate(i.max_pacing_rate) { format!("/{}bps", bits(i.max_pacing_rate)) } else { String::new() };
        w.push(format!("pacing_rate {}bps{most}", bits(i.pacing_rate)));
    }
    if i.delivery_rate != 0 {
        w.push(format!("delivery_rate {}bps", bits(i.delivery_rate)));
    }
    count(w, "delivered", i.delivered);
    count(w, "delivered_ce", i.delivered_ce);
    if i.delivery_rate_app_limited {
        w.push("app_limited".into());
    }
}

fn limits(w: &mut Vec<String>, i: &TcpInfo) {
    if i.busy_time == 0 {
        return;
    }
    w.push(format!("busy:{}ms", i.busy_time / 1000));
    for (name, us) in [("rwnd_limited", i.rwnd_limited), ("sndbuf_limited", i.sndbuf_limited)] {
        if us != 0 {
            w.push(format!("{name}:{}ms({:.1}%)", us / 1000, 100.0 * us as f64 / i.busy_time as f64));
        }
    }
}

fn recovery(w: &mut Vec<String>, i: &TcpInfo) {
    count(w, "unacked", i.unacked);
    if i.retrans != 0 || i.total_retrans != 0 {
        w.push(format!("retrans:{}/{}", i.retrans, i.total_retrans));
    }
    count(w, "lost", i.lost);
    count(w, "sacked", i.sacked);
    count(w, "dsack_dups", i.dsack_dups);
    // Three is where every connection begins.
    if i.reordering != 3 {
        count(w, "reordering", i.reordering);
    }
    count(w, "reord_seen", i.reord_seen);
}

fn receiver(w: &mut Vec<String>, i: &TcpInfo) {
    if i.rcv_rtt != 0 {
        w.push(format!("rcv_rtt:{}", ms(i.rcv_rtt)));
    }
    count(w, "rcv_space", i.rcv_space);
    count(w, "rcv_ssthresh", i.rcv_ssthresh);
    count(w, "notsent", i.notsent_bytes);
    if i.min_rtt != 0 && i.min_rtt != u32::MAX {
        w.push(format!("minrtt:{}", ms(i.min_rtt)));
    }
    count(w, "rcv_ooopack", i.rcv_ooopack);
    count(w, "snd_wnd", i.snd_wnd);
    count(w, "rcv_wnd", i.rcv_wnd);
    count(w, "rehash", i.rehash);
}
