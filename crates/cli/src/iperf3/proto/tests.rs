//! Messages as they are on the wire, and everything that is no message.

use serde_json::{Value, json};

use super::*;

fn params() -> Params {
    Params::parse(&json!({ "tcp": true })).expect("the least that a client may send")
}

#[test]
fn states_are_bytes_and_back() {
    for byte in 0..=u8::MAX {
        match State::parse(byte) {
            Ok(state) => assert_eq!(state.byte(), byte),
            Err(error) => assert_eq!(error, ProtocolError::UnknownState(byte.cast_signed())),
        }
    }
    assert_eq!((State::AccessDenied.byte(), State::ServerError.byte()), (0xff, 0xfe));
    assert_eq!(State::parse(13), Ok(State::ExchangeResults));
    assert!(State::parse(3).is_err() && State::parse(0).is_err());
}

#[test]
fn a_cookie_is_36_characters_and_a_zero() {
    let cookie = Cookie::random(&mut Rng::new(7));
    assert_eq!(Cookie::parse(cookie.bytes()), Ok(cookie));
    assert_ne!(cookie, Cookie::random(&mut Rng::new(8)));
    assert_eq!(cookie.to_string().len(), 36);
    for garbage in [[b'a'; COOKIE_LEN], [0; COOKIE_LEN], *b"GET / HTTP/1.1\r\nHost: example.com\r\n\n\0"] {
        assert_eq!(Cookie::parse(&garbage), Err(ProtocolError::BadCookie));
    }
}

#[test]
fn parameters_of_iperf3_3_12_are_understood() {
    // As sent by `iperf3 -c HOST -R -n 1M -w 64K -N -M 1000 -C cubic -O 1`.
    let text = r#"{"tcp":true,"omit":1,"time":0,"num":1048576,"blockcount":0,"MSS":1000,"nodelay":true,"parallel":1,
        "reverse":true,"window":65536,"len":131072,"pacing_timer":1000,"congestion":"cubic","client_version":"3.12"}"#;
    let parsed = Params::parse(&serde_json::from_str(text).unwrap()).unwrap();
    let expected = Params {
        omit_secs: 1,
        secs: 0,
        num_bytes: 1 << 20,
        reverse: true,
        window: 65_536,
        mss: 1000,
        nodelay: true,
        congestion: Some("cubic".into()),
        ..params()
    };
    assert_eq!(parsed, expected);
    // As sent by `iperf3 -u -c HOST -t 1 --udp-counters-64bit`.
    let text = r#"{"udp":true,"omit":0,"time":1,"num":0,"blockcount":0,"parallel":1,"len":32768,"bandwidth":1048576,
        "pacing_timer":1000,"udp_counters_64bit":1,"client_version":"3.12"}"#;
    let parsed = Params::parse(&serde_json::from_str(text).unwrap()).unwrap();
    assert_eq!((parsed.protocol, parsed.udp_64bit, parsed.len, parsed.rate), (Protocol::Udp, true, 32_768, 1 << 20));
}

#[test]
fn what_we_send_we_understand() {
    let all = Params {
        protocol: Protocol::Udp,
        omit_secs: 3,
        secs: 86_400,
        num_bytes: 1 << 40,
        blocks: 9,
        parallel: 128,
        reverse: false,
        bidir: true,
        len: 1448,
        rate: 100_000_000_000,
        burst: 10,
        window: 1 << 20,
        mss: 1400,
        nodelay: true,
        tos: 0x28,
        congestion: Some("reno".into()),
        udp_64bit: true,
        get_server_output: true,
    };
    assert_eq!(Params::parse(&all.to_json()), Ok(all));
    assert_eq!(Params::parse(&params().to_json()), Ok(params()));
}

#[test]
fn parameters_out_of_range_are_refused_with_iperf3s_number() {
    let refused = |key: &str, value: Value| {
        let mut object = json!({ "tcp": true });
        object[key] = value;
        match Params::parse(&object) {
            Err(ProtocolError::BadParam { key: named, code, .. }) => (named == key).then_some(code),
            _ => None,
        }
    };
    for (key, value, code) in [
        ("parallel", json!(1000), error_code::NUM_STREAMS),
        ("parallel", json!(0), error_code::NUM_STREAMS),
        ("parallel", json!(-1), error_code::NUM_STREAMS),
        ("time", json!(86_401), error_code::DURATION),
        ("omit", json!(601), error_code::DURATION),
        ("len", json!(0), error_code::BLOCK_SIZE),
        ("len", json!(1.0e300), error_code::BLOCK_SIZE),
        ("len", json!("128K"), error_code::BLOCK_SIZE),
        ("window", json!(1_u64 << 40), error_code::BUF_SIZE),
        ("MSS", json!(10), error_code::MSS),
        ("MSS", json!(65_535), error_code::MSS),
        ("TOS", json!(256), error_code::RECV_PARAMS),
        ("num", json!([1]), error_code::RECV_PARAMS),
        ("sctp", json!(true), error_code::RECV_PARAMS),
        ("authtoken", json!("secret"), error_code::RECV_PARAMS),
    ] {
        assert_eq!(refused(key, value.clone()), Some(code), "{key}: {value}");
    }
    // A datagram has a header and must fit an IP packet.
    for len in [15, 65_508] {
        assert!(Params::parse(&json!({ "udp": true, "len": len })).is_err());
    }
    assert!(Params::parse(&json!([1, 2])).is_err());
    assert!(Params::parse(&json!({ "tcp": true, "reverse": true, "bidirectional": true })).is_err());
}

#[test]
fn results_of_iperf3_3_12_are_understood() {
    let text = r#"{"cpu_util_total":13.9,"cpu_util_user":0.2,"cpu_util_system":13.7,
        "sender_has_retransmits":18446744073709551615,"congestion_used":"bbr","streams":[
        {"id":1,"bytes":319880103,"retransmits":18446744073709551615,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":1.059066},
        {"id":3,"bytes":326500352,"retransmits":7,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":1.05907}]}"#;
    let results = Results::parse(&serde_json::from_str(text).unwrap(), &[1, 3]).unwrap();
    assert_eq!((results.cpu, results.sender_has_retransmits), ([13.9, 0.2, 13.7], false));
    assert_eq!((results.streams[0].bytes, results.streams[0].retransmits), (319_880_103, None));
    assert_eq!((results.streams[1].id, results.streams[1].retransmits), (3, Some(7)));
    assert_eq!(results.streams[1].end_secs, 1.05907);
}

#[test]
fn results_of_ours_come_back_and_those_of_strangers_do_not() {
    let stream = StreamResult {
        id: 3,
        bytes: 9,
        retransmits: Some(2),
        jitter_secs: 0.5,
        errors: 1,
        datagrams: 4,
        start_secs: 0.0,
        end_secs: 2.5,
    };
    let ours = Results {
        cpu: [3.0, 1.0, 2.0],
        sender_has_retransmits: true,
        congestion: Some("cubic".into()),
        streams: vec![stream],
        server_output: Some(json!("text")),
    };
    assert_eq!(Results::parse(&ours.to_json(true), &[1, 3]), Ok(ours.clone()));
    assert_eq!(Results::parse(&ours.to_json(true), &[1]), Err(ProtocolError::NoSuchStream(3)));
    let twice = json!({ "streams": [{ "id": 1, "bytes": 1 }, { "id": 1, "bytes": 1 }] });
    assert!(Results::parse(&twice, &[1]).is_err());
    for garbage in [
        json!({}),
        json!({ "streams": 7 }),
        json!({ "streams": [{}] }),
        json!({ "streams": [{ "id": 1 }] }),
        json!(null),
    ] {
        assert!(Results::parse(&garbage, &[1]).is_err(), "{garbage}");
    }
}

#[test]
fn stream_numbers_leave_out_two() {
    assert_eq!([0, 1, 2, 3].map(stream_id), [1, 3, 4, 5]);
}

#[test]
fn the_header_of_a_datagram_has_two_widths() {
    let header = UdpHeader { sec: 85, usec: 243_069, count: 0x1_0000_0002 };
    let mut bytes = [0; 20];
    header.emit(&mut bytes, true);
    assert_eq!(UdpHeader::parse(&bytes, true), Some(header));
    assert_eq!(bytes[..8], [0, 0, 0, 85, 0, 3, 0xb5, 0x7d]);
    header.emit(&mut bytes, false);
    assert_eq!(UdpHeader::parse(&bytes[..12], false), Some(UdpHeader { count: 2, ..header }));
    assert_eq!(UdpHeader::parse(&bytes[..11], false), None);
    assert_eq!(UdpHeader::parse(&bytes[..15], true), None);
}
