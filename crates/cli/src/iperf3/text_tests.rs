//! Lines compared with what iperf3 3.12 printed for the same numbers.

use serde_json::json;

use super::super::stream::TcpSample;
use super::*;

fn params(extra: serde_json::Value) -> Params {
    let mut object = json!({ "tcp": true });
    for (key, value) in extra.as_object().unwrap() {
        object[key] = value.clone();
    }
    Params::parse(&object).unwrap()
}

fn row(sends: bool, bytes: u64, retransmits: u64, cwnd_bytes: u64) -> Row {
    let counts = Counts { bytes, retransmits, ..Counts::default() };
    let tcp = sends.then_some(TcpSample { cwnd_bytes, ..TcpSample::default() });
    Row { nth: 0, sends, counts, jitter_secs: 0.0, tcp }
}

fn one(row: Row, params: &Params, role: Role) -> String {
    let rows = vec![row];
    interval(&Interval { start: 0.0, end: 1.0, omitted: false, rows }, params, role).remove(0)
}

#[test]
fn amounts_have_three_digits() {
    assert_eq!(bytes(0.0), "0.00 Bytes");
    assert_eq!(bytes(722.0 * 1048576.0), " 722 MBytes");
    assert_eq!(bytes(1.56 * 1073741824.0), "1.56 GBytes");
    assert_eq!(bytes(1000.0 * 1048576.0), "1000 MBytes");
    assert_eq!(bits(6.06e9), "6.06 Gbits");
    assert_eq!(bits(10.2e6), "10.2 Mbits");
    assert_eq!(bits(999.0), " 999 bits");
    assert_eq!(
        ["0", "0.50", "1.5", "12", "100"],
        [0.0, 0.5, 1.5, 12.3, 100.0].map(percent).each_ref().map(String::as_str)
    );
}

#[test]
fn tcp_intervals_look_as_in_iperf3() {
    let p = params(json!({}));
    assert_eq!(
        one(row(true, 757_071_872, 7, 785_408), &p, Role::Client),
        "[  5]   0.00-1.00   sec   722 MBytes  6.06 Gbits/sec    7    767 KBytes       "
    );
    assert_eq!(
        one(row(false, 513_802_240, 0, 0), &p, Role::Server),
        "[  5]   0.00-1.00   sec   490 MBytes  4.11 Gbits/sec                  "
    );
    assert_eq!(interval_header(&p, Role::Client), "[ ID] Interval           Transfer     Bitrate         Retr  Cwnd");
    assert_eq!(interval_header(&p, Role::Server), "[ ID] Interval           Transfer     Bitrate");
}

#[test]
fn directions_are_told_apart() {
    let p = params(json!({ "bidirectional": true, "parallel": 2 }));
    let rows = vec![row(true, 1 << 20, 0, 1 << 16), row(false, 1 << 20, 0, 0)];
    let lines = interval(&Interval { start: 1.0, end: 2.0, omitted: true, rows }, &p, Role::Client);
    let heads: Vec<&str> = lines.iter().map(|l| &l[..11]).collect();
    assert_eq!(heads, ["[  5][TX-C]", "[SUM][TX-C]", "[  5][RX-C]", "[SUM][RX-C]"]);
    assert!(lines.iter().all(|l| l.ends_with("(omitted)")));
}

#[test]
fn udp_intervals_look_as_in_iperf3() {
    let p = params(json!({ "udp": true, "len": 32_768 }));
    let counts = Counts { bytes: 1_277_952, datagrams: 39, lost: 0, ..Counts::default() };
    let sent = Row { nth: 0, sends: true, counts, jitter_secs: 0.0, tcp: None };
    let got = Row { sends: false, jitter_secs: 0.000_046, ..sent };
    assert_eq!(one(sent, &p, Role::Client), "[  5]   0.00-1.00   sec  1.22 MBytes  10.2 Mbits/sec  39  ");
    assert_eq!(
        one(got, &p, Role::Server),
        "[  5]   0.00-1.00   sec  1.22 MBytes  10.2 Mbits/sec  0.046 ms  0/39 (0%)  "
    );
}
