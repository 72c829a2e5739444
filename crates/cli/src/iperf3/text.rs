//! The lines that people and scripts know from iperf3: intervals, sums, and the two lines of each stream at the end.
//!
//! Amounts count in powers of 1024 and are named MBytes, rates count in powers of 1000 and are named Mbits/sec; three
//! digits are shown. A sender's interval ends with its retransmissions and congestion window, a receiver's of UDP with
//! jitter and loss. With `--bidir` every line says the role: TX-C is "the client's end, sending". Streams are numbered
//! 5, 7, 9 and so on, where iperf3 shows file descriptors. These functions make strings and know nothing of where they go.

use super::proto::{Params, Protocol};
use super::report::{Interval, Row, socket_number};
use super::stream::Counts;
use super::summary::{Side, Summary};
use super::test::Role;

/// The rule between intervals and summary.
const RULE: &str = "- - - - - - - - - - - - - - - - - - - - - - - - -";

/// `1.56 GBytes`: powers of 1024.
fn bytes(n: f64) -> String {
    scaled(n, 1024.0, "Bytes")
}
/// `6.71 Gbits`: powers of 1000.
fn bits(n: f64) -> String {
    scaled(n, 1000.0, "bits")
}

fn scaled(mut n: f64, base: f64, unit: &str) -> String {
    let mut prefix = ["", "K", "M", "G", "T", "P", "E"].into_iter();
    let mut chosen = prefix.next().unwrap_or_default();
    while n >= base
        && let Some(next) = prefix.next()
    {
        n /= base;
        chosen = next;
    }
    let decimals = if n < 9.995 { 2 } else { usize::from(n < 99.95) };
    format!("{n:4.decimals$} {chosen}{unit}")
}

/// Two significant digits, as iperf3 shows percentages.
fn percent(n: f64) -> String {
    if n == 0.0 {
        "0".into()
    } else if n < 1.0 {
        format!("{n:.2}")
    } else if n < 9.95 {
        format!("{n:.1}")
    } else {
        format!("{n:.0}")
    }
}

/// `[TX-C]` and so on; empty without `--bidir`.
fn role_label(params: &Params, role: Role, sends: bool) -> &'static str {
    match (params.bidir, role, sends) {
        (false, ..) => "",
        (_, Role::Client, true) => "[TX-C]",
        (_, Role::Client, false) => "[RX-C]",
        (_, Role::Server, true) => "[TX-S]",
        (_, Role::Server, false) => "[RX-S]",
    }
}

/// `[  5][TX-C]   0.00-1.00   sec   722 MBytes  6.06 Gbits/sec`: how every line begins.
fn amount(who: &str, label: &str, start: f64, end: f64, counts: &Counts) -> String {
    let secs = end - start;
    let rate = if secs > 0.0 { counts.bytes as f64 * 8.0 / secs } else { 0.0 };
    format!("[{who}]{label} {start:6.2}-{end:<6.2} sec  {}  {}/sec", bytes(counts.bytes as f64), bits(rate))
}

fn stream_name(nth: usize) -> String {
    format!("{:3}", socket_number(nth))
}

/// The line above the intervals.
pub(crate) fn interval_header(params: &Params, role: Role) -> String {
    let label = if params.bidir { "[Role]" } else { "" };
    let sends = params.bidir || (params.reverse == (role == Role::Server));
    let rest = match (params.protocol, params.bidir, sends) {
        // A client has one headline for both directions.
        (Protocol::Tcp, _, true) => "         Retr  Cwnd",
        (Protocol::Tcp, _, false) => "",
        (Protocol::Udp, false, true) => "         Total Datagrams",
        (Protocol::Udp, ..) => "         Jitter    Lost/Total Datagrams",
    };
    format!("[ ID]{label} Interval           Transfer     Bitrate{rest}")
}

/// The lines of one interval: the streams of a direction and, where there are several, their sum; then the other one.
pub(crate) fn interval(interval: &Interval, params: &Params, role: Role) -> Vec<String> {
    let omitted = if interval.omitted { "(omitted)" } else { "" };
    let mut lines = Vec::new();
    for sends in directions(interval.rows.iter().map(|row| row.sends)) {
        for row in interval.rows.iter().filter(|row| row.sends == sends) {
            lines.push(interval_line(&stream_name(row.nth), interval, row, params, role, true) + omitted);
        }
        if params.parallel > 1
            && let Some(sum) = interval.sum(sends)
        {
            lines.push(interval_line("SUM", interval, &sum, params, role, false) + omitted);
        }
    }
    lines
}

/// Sending and receiving, in the order in which the streams have them.
fn directions(mut sends: impl Iterator<Item = bool>) -> Vec<bool> {
    let first = sends.next();
    first.into_iter().chain(sends.find(|&other| Some(other) != first)).collect()
}

fn interval_line(who: &str, interval: &Interval, row: &Row, params: &Params, role: Role, single: bool) -> String {
    let label = role_label(params, role, row.sends);
    let head = amount(who, label, interval.start, interval.end, &row.counts);
    let rest = match (params.protocol, row.sends) {
        (Protocol::Tcp, true) => {
            let cwnd = row.tcp.filter(|_| single).map(|tcp| bytes(tcp.cwnd_bytes as f64));
            format!("  {:3}   {}", row.counts.retransmits, cwnd.map_or(String::new(), |cwnd| cwnd + "       "))
        }
        (Protocol::Tcp, false) => " ".repeat(18),
        (Protocol::Udp, true) if params.bidir => format!("            {}  ", row.counts.datagrams),
        (Protocol::Udp, true) => format!("  {}  ", row.counts.datagrams),
        (Protocol::Udp, false) => udp_tail(row.jitter_secs, &row.counts),
    };
    head + &rest
}

fn udp_tail(jitter_secs: f64, counts: &Counts) -> String {
    let (lost, all) = (counts.lost, counts.datagrams);
    format!("  {:5.3} ms  {lost}/{all} ({}%)  ", jitter_secs * 1e3, percent(counts.lost_percent()))
}

/// Everything below the intervals.
pub(crate) fn summary(summary: &Summary) -> Vec<String> {
    let params = &summary.params;
    let mut lines = vec![RULE.to_owned(), summary_header(summary)];
    for sends in directions(summary.rows.iter().map(|row| row.sends)) {
        let label = role_label(params, summary.role, sends);
        let mut put = |who: &str, sides: [(Option<Side>, bool); 2]| {
            for (side, is_sender) in sides {
                // As iperf3, a server shows what it counted itself.
                let shown = summary.role == Role::Client || is_sender == sends;
                if let Some(side) = side.filter(|_| shown) {
                    lines.push(summary_line(who, label, &side, params, is_sender));
                }
            }
        };
        for row in summary.rows.iter().filter(|row| row.sends == sends) {
            put(&stream_name(row.nth), [(row.sender, true), (row.receiver, false)]);
        }
        if params.parallel > 1 {
            let (sender, receiver) = summary.sum(sends);
            put("SUM", [(sender, true), (receiver, false)]);
        }
    }
    lines.extend(detail(summary));
    lines
}

fn summary_header(summary: &Summary) -> String {
    let params = &summary.params;
    let label = if params.bidir { "[Role]" } else { "" };
    let shows_sender = summary.role == Role::Client || summary.rows.iter().any(|row| row.sends);
    let rest = match params.protocol {
        Protocol::Tcp if shows_sender => "         Retr",
        Protocol::Tcp => "",
        Protocol::Udp => "         Jitter    Lost/Total Datagrams",
    };
    format!("[ ID]{label} Interval           Transfer     Bitrate{rest}")
}

fn summary_line(who: &str, label: &str, side: &Side, params: &Params, sender: bool) -> String {
    let head = amount(who, label, 0.0, side.secs, &side.counts);
    let name = if sender { "sender" } else { "receiver" };
    match params.protocol {
        Protocol::Tcp if sender && side.has_retransmits => {
            format!("{head}  {:3}             {name}", side.counts.retransmits)
        }
        Protocol::Tcp => format!("{head}                  {name}"),
        Protocol::Udp => format!("{head}{}{name}", udp_tail(side.jitter_secs, &side.counts)),
    }
}

/// Two lines that iperf3 does not have: what the transfer cost and what was lost on the way.
fn detail(summary: &Summary) -> Vec<String> {
    let line = &summary.linerate;
    let mut lines = Vec::new();
    let mut parts = Vec::new();
    if let Some(pkts) = line.wire_pkts {
        parts.push(format!("{pkts} frames in {} skbs", line.rx_skbs.unwrap_or(0) + line.tx_skbs.unwrap_or(0)));
    }
    if let Some(ns) = line.cpu_ns_per_mib {
        parts.push(format!("{ns:.0} ns of CPU per MiB"));
    }
    let copies = [("sending", line.copies_per_byte_tx), ("receiving", line.copies_per_byte_rx)];
    for (what, copies) in copies.into_iter().filter_map(|(what, n)| Some((what, n?))) {
        parts.push(format!("{copies:.2} copies per byte {what}"));
    }
    if !parts.is_empty() {
        lines.push(format!("linerate: {}", parts.join(", ")));
    }
    if !line.drops.is_empty() {
        let drops: Vec<String> = line.drops.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        lines.push(format!("linerate: dropped {}", drops.join(", ")));
    }
    lines
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
