use super::*;

fn ip(v6: bool) -> IpFields {
    let (src, dst) = if v6 { ("fd00::1", "fd00::2") } else { ("192.0.2.1", "192.168.0.1") };
    IpFields { src: src.parse().unwrap(), dst: dst.parse().unwrap(), tos: 0x2, ttl: 64, flow_label: 7 }
}

fn segment() -> TcpFields {
    TcpFields {
        src_port: 5000,
        dst_port: 8080,
        seq: 0xffff_fff0,
        ack: 77,
        flags: 0x118,
        win: 1234,
        urg: 5,
        options: vec![
            TcpOption::Mss(1460),
            TcpOption::SackOk,
            TcpOption::Timestamp { val: 100, ecr: 200 },
            TcpOption::Nop,
            TcpOption::Wscale(8),
            TcpOption::AccEcn { kind: 174, counters: vec![1, 2, 0xff_ffff] },
            TcpOption::Eol,
        ],
    }
}

#[test]
fn tcp_survives_build_and_decode() {
    for v6 in [false, true] {
        let mut tcp = segment();
        tcp.options.truncate(5);
        let bytes = build_tcp(&ip(v6), &tcp, 1001);
        let live = decode(&bytes).unwrap();
        assert_eq!(live.transport, Transport::Tcp(tcp));
        assert_eq!(live.payload, vec![0; 1001]);
        assert_eq!((live.tos, live.ttl, live.flow_label), (2, 64, if v6 { 7 } else { 0 }));
    }
}

#[test]
fn every_option_survives() {
    let list = [
        TcpOption::Sack(vec![(1, 2), (3, 4), (5, 6), (7, 8)]),
        TcpOption::FastOpen(vec![]),
        TcpOption::FastOpen(vec![1, 2, 3, 4]),
        TcpOption::FastOpenExp(vec![9; 8]),
        TcpOption::Md5(vec![7; 16]),
        TcpOption::AccEcn { kind: 172, counters: vec![1] },
        TcpOption::Unknown { kind: 77, data: vec![1, 2] },
    ];
    for o in list {
        assert_eq!(parse_options(&emit_options(std::slice::from_ref(&o))).unwrap(), vec![o.clone()]);
        assert_eq!(emit_options(std::slice::from_ref(&o)).len(), options_len(&[o]));
    }
    assert!(parse_options(&[8, 10, 0]).is_err());
    assert!(parse_options(&[8]).is_err());
    assert!(parse_options(&[8, 1]).is_err());
}

#[test]
fn a_flipped_bit_is_found() {
    for v6 in [false, true] {
        let packets = [
            build_tcp(&ip(v6), &segment(), 100),
            build_udp(&ip(v6), 1, 2, 9),
            build_icmp(&ip(v6), 3, 4, 1200, &[1, 2, 3]),
        ];
        for bytes in packets {
            assert!(decode(&bytes).is_ok());
            let mut bad = bytes.clone();
            *bad.last_mut().unwrap() ^= 0x10;
            assert!(decode(&bad).unwrap_err().contains("checksum"));
            assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        }
    }
}

#[test]
fn known_checksum_of_an_ipv4_header() {
    // RFC 1071's sum worked by hand: 4500 0014 0000 0000 4006 0000 c000 0201 c0a8 0001.
    let fields = IpFields { tos: 0, ..ip(false) };
    let bytes = build_ip(&fields, 6, &[]);
    let words: u32 = [0x4500u32, 0x14, 0, 0, 0x4006, 0xc000, 0x0201, 0xc0a8, 0x0001].iter().sum();
    let expected = !(((words >> 16) + (words & 0xffff)) as u16);
    assert_eq!(be16(&bytes[10..]), expected);
}
