use super::super::ast::Action;
use super::super::config::variants;
use super::super::packet::decode;
use super::super::parse::parse;
use super::*;

fn spec(text: &str) -> PacketSpec {
    match parse(&format!("0 {text}"), &HashMap::new()).unwrap().events.remove(0).action {
        Action::Inbound(p) | Action::Outbound(p) => p,
        other => panic!("{other:?}"),
    }
}

fn flow(v6: bool) -> Flow {
    let cfg = &variants()[if v6 { 2 } else { 0 }];
    Flow {
        local: Some(SocketAddr::new(cfg.local_ip, 8080)),
        remote: Some(SocketAddr::new(cfg.remote_ip, 50_000)),
        local_isn: Some(Isn { script: 0, live: 1_000_000 }),
        remote_isn: Some(Isn { script: 100, live: 100 }),
        ..Flow::default()
    }
}

fn built(flow: &mut Flow, text: &str) -> Live {
    decode(&flow.build(&spec(text), &variants()[0]).unwrap()).unwrap()
}

fn tcp(live: &Live) -> &TcpFields {
    match &live.transport {
        Transport::Tcp(t) => t,
        other => panic!("{other:?}"),
    }
}

const NOW: MatchTime = MatchTime { since_first_ts_us: 0, tolerance_us: 4000 };

/// A packet as the stack would send it: an inbound one with its ends exchanged.
fn outbound(seq: u32, len: usize, options: Vec<TcpOption>, flow_label: u32) -> Live {
    let cfg = &variants()[2];
    let ip = IpFields { src: cfg.local_ip, dst: cfg.remote_ip, tos: 0, ttl: 64, flow_label };
    let fields = TcpFields { src_port: 8080, dst_port: 50_000, seq, ack: 101, flags: ACK, win: 9, urg: 0, options };
    decode(&build_tcp(&ip, &fields, len)).unwrap()
}

#[test]
fn inbound_numbers_become_live() {
    let mut f = flow(false);
    f.ts.insert(10, 5555);
    let live = built(&mut f, "< . 1:11(10) ack 5 win 7 <nop,nop,sack 3:9,nop,nop,TS val 8 ecr 10>");
    let t = tcp(&live);
    assert_eq!((t.seq, t.ack, t.win, t.src_port, t.dst_port), (101, 1_000_005, 7, 50_000, 8080));
    assert_eq!(t.options[2], TcpOption::Sack(vec![(1_000_003, 1_000_009)]));
    assert_eq!(t.options[5], TcpOption::Timestamp { val: 8, ecr: 5555 });
    assert_eq!((live.ttl, live.payload.len()), (255, 10));
    assert_eq!(tcp(&built(&mut f, "< S 100:100(0) win 7")).seq, 100);
    assert_eq!(tcp(&built(&mut f, "< S. 100:100(0) ack 1 win 7")).ack, 1_000_001);
    assert_eq!(built(&mut f, "< [ce] . 1:1(0) win 1").tos, 3);
    assert_eq!(built(&mut f, "< (tos 0xb8, ttl 9) . 1:1(0) win 1").ttl, 9);
    assert_eq!(tcp(&built(&mut f, "< 1 > 2 . 1:1(0) win 1")).src_port, 1);
}

#[test]
fn icmp_quotes_what_was_sent() {
    for v6 in [false, true] {
        let mut f = flow(v6);
        let text = if v6 {
            "< icmp packet_too_big mtu 1300 [1:1001(1000)]"
        } else {
            "< icmp unreachable frag_needed mtu 1300 [1:1001(1000)]"
        };
        let live = built(&mut f, text);
        let (kind, header) = if v6 { (2, 40) } else { (3, 20) };
        assert!(matches!(live.transport, Transport::Icmp { kind: k, .. } if k == kind));
        assert_eq!(live.payload.len(), header + 8);
        assert_eq!(live.payload[header..header + 2], 8080_u16.to_be_bytes());
        assert_eq!(live.payload[header + 4..], 1_000_001_u32.to_be_bytes());
        let total = if v6 { 4 } else { 2 };
        let want: u16 = if v6 { 1020 } else { 1040 };
        assert_eq!(live.payload[total..total + 2], want.to_be_bytes());
    }
    let mut f = flow(false);
    let live = built(&mut f, "< icmp unreachable port_unreachable [udp (9)]");
    assert_eq!(live.payload[24..26], 17_u16.to_be_bytes());
}

#[test]
fn timestamps_and_sack_blocks_of_the_stack() {
    let cfg = &mut variants()[2].clone();
    cfg.ts_tick_us = Some(1000);
    let mut f = flow(true);
    let ts = |val| vec![TcpOption::Nop, TcpOption::Nop, TcpOption::Timestamp { val, ecr: 1 }];
    let want = |val| spec(&format!("> . 1:1(0) ack 1 <nop,nop,TS val {val} ecr 0>"));
    assert_eq!(f.check(&want(100), &outbound(1_000_001, 0, ts(70_000), 0), cfg, NOW), Ok(()));
    assert_eq!(f.check(&want(110), &outbound(1_000_001, 0, ts(70_012), 0), cfg, NOW), Ok(()));
    assert!(f.check(&want(110), &outbound(1_000_001, 0, ts(70_030), 0), cfg, NOW).unwrap_err().contains("TS val"));
    let sack = vec![TcpOption::Nop, TcpOption::Nop, TcpOption::Sack(vec![(105, 110)])];
    let ok = f.check(&spec("> . 1:1(0) ack 1 <nop,nop,sack 5:10>"), &outbound(1_000_001, 0, sack.clone(), 0), cfg, NOW);
    assert_eq!(ok, Ok(()));
    let bad = f.check(&spec("> . 1:1(0) ack 1 <nop,nop,sack 5:11>"), &outbound(1_000_001, 0, sack, 0), cfg, NOW);
    assert!(bad.unwrap_err().contains("TCP option 3"));
}

#[test]
fn flow_labels_stay_or_change_with_the_script() {
    let cfg = &variants()[2];
    let mut f = flow(true);
    let mut see = |script: u32, live| {
        let want = spec(&format!("> [flowlabel {script}] . 1:1(0) ack 1"));
        f.check(&want, &outbound(1_000_001, 0, Vec::new(), live), cfg, NOW)
    };
    assert_eq!(see(1, 77), Ok(()));
    assert_eq!(see(1, 77), Ok(()));
    assert!(see(1, 78).unwrap_err().contains("flow_label"));
    assert!(see(2, 77).unwrap_err().contains("was to change"));
    assert_eq!(see(2, 78), Ok(()));
}

#[test]
fn only_parts_of_one_super_packet_are_merged() {
    let part = |seq, len| outbound(seq, len, Vec::new(), 0);
    let merged =
        |first: (u32, usize), next: (u32, usize)| merge(&mut part(first.0, first.1), &part(next.0, next.1), first.1);
    assert!(merged((1, 100), (101, 100)));
    assert!(merged((1, 100), (101, 50)));
    assert!(!merged((1, 100), (102, 100)));
    assert!(!merged((1, 100), (101, 150)));
    assert!(!merged((1, 100), (101, 0)));
    let mut short = part(1, 150);
    assert!(!merge(&mut short, &part(151, 100), 100));
    let mut first = part(1, 100);
    let mut last = part(101, 60);
    if let Transport::Tcp(t) = &mut last.transport {
        t.flags |= PSH | FIN;
    }
    assert!(merge(&mut first, &last, 100));
    assert_eq!((tcp(&first).flags, tcp(&first).seq, first.payload.len()), (ACK | PSH | FIN, 1, 160));
    assert!(!merge(&mut first, &part(161, 100), 100));
}
