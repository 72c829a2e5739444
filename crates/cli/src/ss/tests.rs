use super::format::{general, tcp_words};
use super::*;
use linerate::TcpInfo;

/// A socket as it comes from the server.
fn socket(change: Value) -> SocketRecord {
    let mut record = json!({
        "shard": 0, "id": 7, "proto": "tcp", "v6": false, "v6only": false, "state": "ESTAB",
        "local": "10.9.0.2:5201", "peer": "10.9.0.1:41000", "recv_q": 0, "send_q": 1448,
        "timer": { "name": "on", "left_ms": 200, "retries": 0 },
        "skmem": { "rmem_alloc": 0, "rcvbuf": 131_072, "wmem_alloc": 1280, "sndbuf": 87_040, "wmem_queued": 2728 },
    });
    record.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    serde_json::from_value(record).unwrap()
}

fn listener(local: &str, v6: bool, v6only: bool) -> SocketRecord {
    socket(json!({ "state": "LISTEN", "local": local, "peer": null, "v6": v6, "v6only": v6only, "send_q": 4096,
                   "timer": null, "skmem": { "rcvbuf": 131_072, "sndbuf": 16_384 } }))
}

fn busy() -> TcpInfo {
    let mut i = TcpInfo::default();
    (i.options, i.snd_wscale, i.rcv_wscale) = (1 | 2 | 4, 7, 10);
    (i.rto, i.rtt, i.rttvar, i.ato) = (204_000, 49, 40, 40_000);
    (i.snd_mss, i.pmtu, i.rcv_mss, i.advmss, i.snd_cwnd, i.snd_ssthresh) = (1448, 1500, 536, 1448, 10, 7);
    (i.bytes_sent, i.bytes_acked, i.segs_out, i.segs_in) = (5_000_000_000, 4_999_000_000, 3_500_000, 90_000);
    (i.last_data_sent, i.pacing_rate, i.delivery_rate) = (4, u64::MAX, 1_250_000_000);
    (i.delivered, i.delivery_rate_app_limited) = (3_499_000, true);
    (i.busy_time, i.rwnd_limited) = (2_000_000, 500_000);
    (i.unacked, i.total_retrans, i.reordering, i.dsack_dups) = (3, 3, 3, 1);
    (i.rcv_space, i.rcv_ssthresh, i.min_rtt, i.snd_wnd, i.rcv_wnd) = (14_600, 64_076, 31, 65_536, 65_160);
    i
}

#[test]
fn rows_are_aligned_as_in_ss() {
    let columns = Columns { netid: true, ..Columns::default() };
    let udp = socket(json!({ "proto": "udp", "state": "UNCONN", "local": "10.9.0.2:53", "peer": null, "send_q": 0 }));
    let rows = [listener("[::]:5201", true, false), socket(json!({})), udp];
    let text = Table::new(columns).page(&rows, true);
    let expected = "\
Netid State  Recv-Q Send-Q Local Address:Port Peer Address:Port  Process
tcp   LISTEN 0      4096               *:5201            *:*
tcp   ESTAB  0      1448        10.9.0.2:5201     10.9.0.1:41000
udp   UNCONN 0      0           10.9.0.2:53        0.0.0.0:*
";
    assert_eq!(text, expected);
    // Without titles, and the widths of the page before are kept.
    let mut table = Table::new(Columns::default());
    table.page(&[socket(json!({ "state": "CLOSE-WAIT" }))], false);
    assert!(table.page(&rows[1..2], false).starts_with("ESTAB      0      1448"));
}

#[test]
fn addresses_are_written_for_the_sockets_family() {
    let shown = |record: SocketRecord| {
        let text = Table::new(Columns::default()).page(&[record], false);
        text.split_whitespace().skip(3).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown(listener("[::]:80", true, true)), "[::]:80 [::]:*");
    assert_eq!(shown(listener("0.0.0.0:80", false, false)), "0.0.0.0:80 0.0.0.0:*");
    assert_eq!(shown(listener("[fd09::2]:80", true, false)), "[fd09::2]:80 *:*");
    assert_eq!(shown(socket(json!({ "v6": true }))), "[::ffff:10.9.0.2]:5201 [::ffff:10.9.0.1]:41000");
    assert_eq!(
        shown(socket(json!({ "v6": true, "local": "[fd09::2]:1", "peer": "[fd09::1]:2" }))),
        "[fd09::2]:1 [fd09::1]:2"
    );
}

#[test]
fn all_that_tcp_knows_in_iproute2s_words() {
    let words = tcp_words(&busy(), "cubic").join(" ");
    let expected = "ts sack cubic wscale:7,10 rto:204 rtt:0.049/0.04 ato:40 mss:1448 pmtu:1500 rcvmss:536 advmss:1448 cwnd:10 \
                    ssthresh:7 bytes_sent:5000000000 bytes_acked:4999000000 segs_out:3500000 segs_in:90000 \
                    send 2364081633bps lastsnd:4 delivery_rate 10000000000bps delivered:3499000 app_limited \
                    busy:2000ms rwnd_limited:500ms(25.0%) unacked:3 retrans:0/3 dsack_dups:1 rcv_space:14600 \
                    rcv_ssthresh:64076 minrtt:0.031 snd_wnd:65536 rcv_wnd:65160";
    assert_eq!(words, expected);
    // A connection of which nothing is known says nothing, and divides by nothing.
    let mut blank = TcpInfo::default();
    blank.snd_ssthresh = 0x7fff_ffff;
    blank.reordering = 3;
    blank.min_rtt = u32::MAX;
    assert_eq!(tcp_words(&blank, ""), [""; 0]);
}

#[test]
fn details_stand_where_ss_has_them() {
    let columns = Columns { timers: true, details: true, memory: true, info: true, ..Columns::default() };
    let mut record = socket(json!({ "congestion": "cubic" }));
    let mut info = TcpInfo::default();
    (info.snd_mss, info.snd_ssthresh, info.reordering) = (1448, u32::MAX, 3);
    record.tcp_info = Some(info);
    let text = Table::new(columns).page(&[record.clone()], false);
    let (row, below) = text.split_once('\n').expect("two lines");
    assert!(row.ends_with("10.9.0.1:41000 timer:(on,200ms,0) ino:0 sk:7 shard:0 <->"), "{row}");
    assert_eq!(below, "\t skmem:(r0,rb131072,t1280,tb87040,f0,w2728,o0,bl0,d0) cubic mss:1448\n");
    let text = Table::new(Columns { oneline: true, ..columns }).page(&[record], false);
    assert_eq!(text.lines().count(), 1);
    assert!(text.contains("<-> skmem:("), "{text}");
    let text = Table::new(columns).page(&[listener("[::]:80", true, false)], false);
    assert!(text.contains("v6only:0 <->\n\t skmem:("), "{text}");
}

#[test]
fn times_until_a_timer() {
    let shown = |ms: u64| {
        let record = socket(json!({ "timer": { "name": "keepalive", "left_ms": ms, "retries": 2 } }));
        let text = Table::new(Columns { timers: true, ..Columns::default() }).page(&[record], false);
        text.split("keepalive,").nth(1).unwrap().trim().to_owned()
    };
    assert_eq!(shown(0), "0ms,2)");
    assert_eq!(shown(37), "37ms,2)");
    assert_eq!(shown(2_345), "2.345sec,2)");
    assert_eq!(shown(3_000), "3sec,2)");
    assert_eq!(shown(58_999), "58sec,2)");
    assert_eq!(shown(119_000), "1min59sec,2)");
    assert_eq!(shown(120_500), "2min,2)");
    assert_eq!(shown(7_200_000 - 1), "119min,2)");
}

#[test]
fn numbers_are_those_of_printf() {
    for (value, text) in [
        (0.0, "0"),
        (0.031, "0.031"),
        (40.0, "40"),
        (204.123_456, "204.123"),
        (999_999.4, "999999"),
        (999_999.5, "1e+06"),
        (1_234_567.0, "1.23457e+06"),
        (0.0001, "0.0001"),
        (0.000_012_345_67, "1.23457e-05"),
    ] {
        assert_eq!(general(value), text, "{value}");
    }
}

fn filter(text: &str) -> Result<Filter, String> {
    Filter::parse(&[text.to_owned()])
}

#[test]
fn states_are_those_of_ss() {
    let states = |text: &str, all, listening| filter(text).unwrap().states(all, listening);
    assert_eq!(states("", true, false), [""; 0]);
    assert_eq!(states("", false, true), ["UNCONN", "LISTEN"]);
    assert!(
        !states("", false, false).iter().any(|s| ["LISTEN", "UNCONN", "TIME-WAIT", "SYN-RECV"].contains(&s.as_str()))
    );
    assert_eq!(states("state time-wait state listening", false, false), ["TIME-WAIT", "LISTEN"]);
    assert_eq!(states("state bucket", true, false), ["SYN-RECV", "TIME-WAIT"]);
    assert_eq!(states("state connected exclude synchronized", false, false), ["SYN-SENT"]);
    assert!(filter("state asleep").unwrap_err().contains("time-wait"));
    assert!(filter("state").is_err());
    // The server knows all of them.
    let known: Vec<_> = linerate_stack::DiagState::ALL.iter().map(|s| s.name().to_owned()).collect();
    assert!(states("state big state bucket exclude listen", false, false).iter().all(|s| known.contains(s)));
    assert_eq!(states("exclude listening", false, false).len() + 1, known.len());
}

#[test]
fn conditions_are_those_of_ss() {
    let s = socket(json!({}));
    let mapped = socket(json!({ "v6": true }));
    let six = socket(json!({ "v6": true, "local": "[fd09::2]:80", "peer": "[fd09::1]:2" }));
    for yes in [
        "sport = :5201",
        "sport == 5201 and dport > 40000",
        "dport gt 40000 sport 5201",
        "( sport = 80 or dport=:41000 )",
        "not sport = 80",
        "!(sport=80)",
        "src 10.9.0.2",
        "src 10.9.0.2:5201",
        "dst 10.9.0.0/24",
        "dst != 10.8.0.0/24 && dport <= :41000",
        "src :5201",
        "src 10.9.0.2:*",
        "sport = 80 and sport = 81 or dst *",
    ] {
        let f = filter(yes).unwrap_or_else(|e| panic!("{yes}: {e}"));
        assert!(f.matches(&s) && f.matches(&mapped), "{yes}");
    }
    for no in ["sport != 5201", "src 10.9.0.1", "dst 10.9.0.1:80", "sport = 80 or dport lt 41000", "src fd09::/64"] {
        assert!(!filter(no).unwrap().matches(&s), "{no}");
    }
    for yes in ["src [fd09::2]:80", "src fd09::/16", "src [fd09::]/16:80", "dst fd09::1"] {
        assert!(filter(yes).unwrap().matches(&six), "{yes}");
    }
    // Without another end there is none to match; its port counts as 0.
    let l = listener("0.0.0.0:80", false, false);
    assert!(!filter("dst 0.0.0.0/0").unwrap().matches(&l) && filter("dport = 0").unwrap().matches(&l));
    let deep = "(".repeat(100);
    for bad in [
        "sport",
        "sport =",
        "sport = http",
        "src 10.9",
        "(sport = 1",
        "sport = 1 )",
        "dst > 10.0.0.1",
        "and",
        "bogus",
        &deep,
    ] {
        assert!(filter(bad).is_err(), "{bad}");
    }
}
