//! The JSON of a report in iperf3's shape, with `end.linerate` besides.
//!
//! Keys and units are iperf3's: bytes, bits per second, milliseconds of jitter, microseconds of round-trip time; the name
//! `packets` counts datagrams. Where a value is the peer's and was not learnt (the test was interrupted) the object is
//! there with nulls, so that a reader finds the same keys in every report. `sum_*` are the direction in which the
//! client sends (with -R: the server), `sum_*_bidir_reverse` the other one of `--bidir`, seen from either end.

use serde_json::{Map, Value, json};

use super::proto::{Params, Protocol};
use super::report::{Interval, Row, socket_number};
use super::summary::{Side, Summary, SummaryRow};
use super::test::Role;

/// `start.test_start`.
pub(crate) fn test_start(params: &Params) -> Value {
    json!({
        "protocol": params.protocol.name(), "num_streams": params.parallel, "blksize": params.len,
        "omit": params.omit_secs, "duration": params.secs, "bytes": params.num_bytes, "blocks": params.blocks,
        "reverse": u8::from(params.reverse), "bidir": u8::from(params.bidir), "tos": params.tos,
        "target_bitrate": params.rate,
    })
}

fn put(map: &mut Map<String, Value>, pairs: impl IntoIterator<Item = (&'static str, Value)>) {
    map.extend(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)));
}

/// One element of `intervals`.
pub(crate) fn interval(interval: &Interval, params: &Params, role: Role) -> Value {
    let streams: Vec<Value> = interval
        .rows
        .iter()
        .map(|row| {
            let mut map = interval_row(interval, row, params);
            map.insert("socket".into(), json!(socket_number(row.nth)));
            Value::Object(map)
        })
        .collect();
    let mut value = json!({ "streams": streams });
    for sum in &interval.sums() {
        let first = !params.bidir || sum.sends == (role == Role::Client);
        let key = if first { "sum" } else { "sum_bidir_reverse" };
        value[key] = Value::Object(interval_row(interval, sum, params));
    }
    value
}

fn interval_row(interval: &Interval, row: &Row, params: &Params) -> Map<String, Value> {
    let secs = interval.end - interval.start;
    let rate = if secs > 0.0 { row.counts.bytes as f64 * 8.0 / secs } else { 0.0 };
    let mut map = Map::new();
    put(
        &mut map,
        [
            ("start", json!(interval.start)),
            ("end", json!(interval.end)),
            ("seconds", json!(secs)),
            ("bytes", json!(row.counts.bytes)),
            ("bits_per_second", json!(rate)),
            ("omitted", json!(interval.omitted)),
            ("sender", json!(row.sends)),
        ],
    );
    match (params.protocol, row.sends) {
        (Protocol::Tcp, true) => {
            map.insert("retransmits".into(), json!(row.counts.retransmits));
            if let Some(tcp) = &row.tcp {
                put(
                    &mut map,
                    [
                        ("snd_cwnd", json!(tcp.cwnd_bytes)),
                        ("snd_wnd", json!(tcp.snd_wnd_bytes)),
                        ("rtt", json!(tcp.rtt_us)),
                        ("rttvar", json!(tcp.rttvar_us)),
                        ("pmtu", json!(tcp.pmtu_bytes)),
                    ],
                );
            }
        }
        (Protocol::Tcp, false) => {}
        (Protocol::Udp, true) => put(&mut map, [("packets", json!(row.counts.datagrams))]),
        (Protocol::Udp, false) => put(
            &mut map,
            [
                ("jitter_ms", json!(row.jitter_secs * 1e3)),
                ("lost_packets", json!(row.counts.lost)),
                ("packets", json!(row.counts.datagrams)),
                ("lost_percent", json!(row.counts.lost_percent())),
            ],
        ),
    }
    map
}

/// One side: the same keys whether its numbers are known or not.
fn side(side: Option<&Side>, params: &Params, is_sender_side: bool, we_send: bool) -> Map<String, Value> {
    let number = |f: &dyn Fn(&Side) -> Value| side.map_or(Value::Null, f);
    let mut map = Map::new();
    put(
        &mut map,
        [
            ("start", json!(0)),
            ("end", number(&|s| json!(s.secs))),
            ("seconds", number(&|s| json!(s.secs))),
            ("bytes", number(&|s| json!(s.counts.bytes))),
            ("bits_per_second", number(&|s| json!(s.bits_per_second()))),
            ("sender", json!(we_send)),
        ],
    );
    match params.protocol {
        Protocol::Tcp if is_sender_side => put(
            &mut map,
            [("retransmits", number(&|s| if s.has_retransmits { json!(s.counts.retransmits) } else { Value::Null }))],
        ),
        Protocol::Tcp => {}
        Protocol::Udp => put(
            &mut map,
            [
                ("jitter_ms", number(&|s| json!(s.jitter_secs * 1e3))),
                ("lost_packets", number(&|s| json!(s.counts.lost))),
                ("packets", number(&|s| json!(s.counts.datagrams))),
                ("lost_percent", number(&|s| json!(s.counts.lost_percent()))),
            ],
        ),
    }
    map
}

fn stream(row: &SummaryRow, params: &Params) -> Value {
    let number = json!(socket_number(row.nth));
    if params.protocol == Protocol::Udp {
        // One object: the receiver's loss and jitter, the sender's amount.
        let mut map = side(row.sender.as_ref().or(row.receiver.as_ref()), params, true, row.sends);
        if let Some(receiver) = &row.receiver {
            let lost = side(Some(receiver), params, false, row.sends);
            map.extend(
                lost.into_iter()
                    .filter(|(key, _)| ["jitter_ms", "lost_packets", "lost_percent"].contains(&key.as_str())),
            );
            map.insert("out_of_order".into(), json!(receiver.counts.out_of_order));
        } else {
            map.insert("out_of_order".into(), Value::Null);
        }
        map.insert("socket".into(), number);
        return json!({ "udp": map });
    }
    let mut sender = side(row.sender.as_ref(), params, true, row.sends);
    let mut receiver = side(row.receiver.as_ref(), params, false, row.sends);
    if row.sends {
        put(
            &mut sender,
            [
                ("max_snd_cwnd", json!(row.extremes.max_cwnd_bytes)),
                ("max_snd_wnd", json!(row.extremes.max_snd_wnd_bytes)),
                ("max_rtt", json!(row.extremes.max_rtt_us)),
                ("min_rtt", json!(row.extremes.min_rtt_us)),
                ("mean_rtt", json!(row.extremes.mean_rtt_us())),
            ],
        );
    }
    sender.insert("socket".into(), number.clone());
    receiver.insert("socket".into(), number);
    json!({ "sender": sender, "receiver": receiver })
}

/// `end`.
pub(crate) fn end(summary: &Summary) -> Value {
    let params = &summary.params;
    let mut value = json!({ "streams": summary.rows.iter().map(|row| stream(row, params)).collect::<Vec<_>>() });
    // Without a suffix it is the direction in which the client sends, at both ends; without --bidir it is the only one.
    let first = if params.bidir { summary.role == Role::Client } else { summary.rows.iter().any(|row| row.sends) };
    let both = [(first, ""), (!first, "_bidir_reverse")];
    let directions = if params.bidir { &both[..] } else { &both[..1] };
    for &(sends, suffix) in directions {
        let (sender, receiver) = summary.sum(sends);
        value[format!("sum_sent{suffix}")] = Value::Object(side(sender.as_ref(), params, true, sends));
        value[format!("sum_received{suffix}")] = Value::Object(side(receiver.as_ref(), params, false, sends));
        if params.protocol == Protocol::Udp {
            let both = receiver.as_ref().or(sender.as_ref());
            value[format!("sum{suffix}")] = Value::Object(side(both, params, false, sends));
        }
    }
    let peer = |i: usize| summary.peer_cpu.map(|cpu| cpu[i]);
    value["cpu_utilization_percent"] = json!({
        "host_total": summary.cpu[0], "host_user": summary.cpu[1], "host_system": summary.cpu[2],
        "remote_total": peer(0), "remote_user": peer(1), "remote_system": peer(2),
    });
    if params.protocol == Protocol::Tcp {
        // Of the client's sending direction, as iperf3: with -R the client is the receiver.
        let (ours, theirs) = (json!(summary.congestion), json!(summary.peer_congestion));
        let client_sends = !params.reverse;
        let we_are_sender = client_sends == (summary.role == Role::Client);
        let (sender, receiver) = if we_are_sender { (ours, theirs) } else { (theirs, ours) };
        value["sender_tcp_congestion"] = sender;
        value["receiver_tcp_congestion"] = receiver;
    }
    value["linerate"] = json!(summary.linerate);
    value
}
