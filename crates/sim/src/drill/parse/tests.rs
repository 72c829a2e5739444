use super::super::ast::{Body, EcnSpec, Expr, Field, Quote, TcpOption};
use super::*;

fn read(src: &str) -> Script {
    parse(src, &HashMap::new()).unwrap_or_else(|e| panic!("{}:{}: {}", e.pos.line, e.pos.col, e.text))
}

fn error(src: &str) -> String {
    match parse(src, &HashMap::new()) {
        Ok(s) => panic!("parsed: {s:?}"),
        Err(e) => format!("{}:{}: {}", e.pos.line, e.pos.col, e.text),
    }
}

fn one_packet(text: &str) -> super::super::ast::PacketSpec {
    match read(&format!("0 {text}")).events.remove(0).action {
        Action::Inbound(p) | Action::Outbound(p) => p,
        other => panic!("{other:?}"),
    }
}

fn one_tcp(text: &str) -> super::super::ast::TcpSpec {
    match one_packet(text).body {
        Body::Tcp(t) => t,
        other => panic!("{other:?}"),
    }
}

fn one_call(text: &str) -> super::super::ast::CallSpec {
    match read(&format!("0 {text}")).events.remove(0).action {
        Action::Call(c) => c,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_parts_of_a_script() {
    let text = "// head\n--ip_version=ipv4 --mtu=1300\n--define=N=5\n`../common/defaults.sh`\n/* a\n b */\n\
         0 socket(..., SOCK_STREAM, IPPROTO_TCP) = N\n+.5 `ls`\n*  > . 1:1(0) ack 1\n+0 %{ assert True }%\n`rm x`\n";
    let s = read(text);
    let options = parse_options(text).unwrap();
    assert_eq!(options.len(), 3);
    assert_eq!((options[1].name.as_str(), options[1].value.as_deref()), ("mtu", Some("1300")));
    assert_eq!(s.init.unwrap().1, "../common/defaults.sh");
    assert_eq!(s.cleanup.unwrap().1, "rm x");
    assert_eq!(s.events.len(), 4);
    assert!(matches!(&s.events[0].action, Action::Call(c) if c.result == Expr::Int(5)));
    assert!(matches!(&s.events[1].action, Action::Shell(t) if t == "ls"));
    assert_eq!(s.events[2].when, When::Any);
    assert!(matches!(&s.events[3].action, Action::Code(t) if t == "assert True"));
    assert_eq!(s.events[3].pos, Pos { line: 10, col: 1 });
}

#[test]
fn times() {
    let whens = |src: &str| read(src).events.iter().map(|e| (e.when, e.end)).collect::<Vec<_>>();
    let all = whens(
        "0 `a` 1.5 `b` +.25 `c` +1 > . 1:1(0)\n2~2.5 > . 1:1(0)\n+.1~+.2 > . 1:1(0)\n\
         +0...30 connect(3, ..., ...) = 0\n3...3.000001 read(4, ..., 1) = 1",
    );
    assert_eq!(
        all,
        vec![
            (When::Absolute(0), None),
            (When::Absolute(1_500_000), None),
            (When::Relative(250_000), None),
            (When::Relative(1_000_000), None),
            (When::AbsoluteRange(2_000_000, 2_500_000), None),
            (When::RelativeRange(100_000, 200_000), None),
            (When::Relative(0), Some(30_000_000)),
            (When::Absolute(3_000_000), Some(3_000_001)),
        ]
    );
    assert!(error("1 `a`").contains("first event must have time 0"));
    assert!(error("0 `x` 0~1 `a`").contains("outbound packets only"));
    assert!(error("0...1 `a`").contains("only a system call"));
    assert!(error("0 `a` 2~1 > . 1:1(0)").starts_with("1:7:"));
}

#[test]
fn flags_and_ace_digits() {
    let flags = |text: &str| {
        let f = one_tcp(&format!("> {text} 1:1(0)")).flags;
        (f.bits, f.ace)
    };
    assert_eq!(flags("."), (0x10, false));
    assert_eq!(flags("-"), (0, false));
    assert_eq!(flags("FP."), (0x19, false));
    assert_eq!(flags("SEW"), (0xc2, false));
    assert_eq!(flags("SEWA."), (0x1d2, false));
    assert_eq!(flags("RU."), (0x34, false));
    assert_eq!(flags(".5"), (0x150, true));
    assert_eq!(flags("P.3"), (0xd8, true));
    assert_eq!(flags("P."), (0x18, false));
    assert!(error("0 > X. 1:1(0)").contains("no TCP flag"));
    assert!(error("0 > E.3 1:1(0)").contains("mixed"));
    assert!(error("0 > .8 1:1(0)").contains("ACE digit"));
}

#[test]
fn a_tcp_header_in_full() {
    let t = one_tcp("< 5000 > 8080 PU. 4294967290:4(10) ack 7 win 0 urg 3 <nop, nop, sack 1:2 3:4>");
    assert_eq!(t.ports, Some((5000, 8080)));
    assert_eq!((t.seq, t.len, t.ack, t.win, t.urg), (4_294_967_290, 10, Some(7), Some(0), Some(3)));
    assert_eq!(t.options.unwrap()[2], TcpOption::Sack(vec![(1, 2), (3, 4)]));
    assert!(error("0 > . 1:5(3)").contains("start plus the length"));
    assert!(error("0 < . 1:1(0) ack 1").contains("window"));
    assert!(one_tcp("> . 1:1(0) <...>").options.is_none());
    assert!(error("0 < . 1:1(0) win 1 <...>").contains("outbound"));
    assert!(error("0 > . 1:1(0) <nop>").contains("multiple of 4"));
}

#[test]
fn every_tcp_option() {
    let text = "> S 0:0(0) <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 8,FO,nop,nop>";
    let list = one_tcp(text).options.unwrap();
    assert_eq!(list[0], TcpOption::Mss(1460));
    assert_eq!(list[2], TcpOption::Timestamp { val: 100, ecr: 0 });
    assert_eq!(list[5], TcpOption::FastOpen(vec![]));
    let one = |o: &str| one_tcp(&format!("> . 1:1(0) <{o}>")).options.unwrap().remove(0);
    assert_eq!(
        one("FO 3021b9d889017eeb,nop,nop"),
        TcpOption::FastOpen(vec![0x30, 0x21, 0xb9, 0xd8, 0x89, 1, 0x7e, 0xeb])
    );
    assert_eq!(one("FO 12345678,nop,eol"), TcpOption::FastOpen(vec![0x12, 0x34, 0x56, 0x78]));
    assert_eq!(one("FOEXP abcd,nop,nop"), TcpOption::FastOpenExp(vec![0xab, 0xcd]));
    assert_eq!(one("md5 000102030405060708090a0b0c0d0e0f,nop,nop"), TcpOption::Md5((0..16).collect()));
    assert_eq!(one("ECN e0b 1 ceb 2 e1b 3,nop"), TcpOption::AccEcn { kind: 172, counters: vec![1, 2, 3] });
    assert_eq!(one("ECN e1b 9,nop,nop,nop"), TcpOption::AccEcn { kind: 174, counters: vec![9] });
    assert!(error("0 > . 1:1(0) <bogus>").contains("unknown TCP option"));
    assert!(error("0 > . 1:1(0) <sack>").contains("1 to 4"));
}

#[test]
fn ip_information_and_encapsulation() {
    assert_eq!(one_packet("> [ect0] . 1:1(0)").ip.ecn, Some(EcnSpec::Ect0));
    assert_eq!(one_packet("> (ect01) . 1:1(0)").ip.ecn, Some(EcnSpec::EitherEct));
    let info = one_packet("< [ce, flowlabel 0x3] . 1:1(0) win 1").ip;
    assert_eq!((info.ecn, info.flowlabel), (Some(EcnSpec::Ce), Some(3)));
    let info = one_packet("< (tos 0xb8, ttl 3) . 1:1(0) win 1").ip;
    assert_eq!((info.tos, info.ttl), (Some(0xb8), Some(3)));
    let p = one_packet("< ipv4 192.0.2.2 > 192.0.2.3: ipv6 fd00::1 > fd00::2: gre: . 1:1(0) win 1");
    assert_eq!(p.encap.len(), 3);
    let p = one_packet("> mpls (label 5, tc 1, [S], ttl 64): encap psp spi 7 . 1:1(0)");
    assert_eq!((p.encap.len(), p.psp_spi), (1, Some(7)));
    assert!(error("0 > [ect0] udp (1)").contains("tos"));
    assert!(error("0 > [nonsense] . 1:1(0)").contains("unknown IP information"));
}

#[test]
fn udp_and_icmp() {
    assert_eq!(one_packet("> udp (1000)").body, Body::Udp { ports: None, len: 1000 });
    assert_eq!(one_packet("< udp 53 > 8080 (4)").body, Body::Udp { ports: Some((53, 8080)), len: 4 });
    let icmp = |text: &str| match one_packet(text).body {
        Body::Icmp(i) => i,
        other => panic!("{other:?}"),
    };
    let i = icmp("< icmp unreachable frag_needed mtu 1200 [1:1461(1460)]");
    assert_eq!((i.kind.as_str(), i.code.as_deref(), i.mtu), ("unreachable", Some("frag_needed"), Some(1200)));
    assert_eq!(i.quote, Some(Quote::Tcp { seq: 1, len: 1460 }));
    assert_eq!(icmp("< icmp echo_request id 5 [raw (8)]").quote, Some(Quote::Raw { len: 8 }));
    assert_eq!(icmp("> icmp type_3 code_3 [udp (9)]").quote, Some(Quote::Udp { len: 9 }));
}

#[test]
fn calls_and_expressions() {
    let c = one_call("connect(3, ..., ...) = -1 EINPROGRESS (Operation's free (nested) text) (note)");
    assert_eq!((c.errno.as_deref(), c.note.as_deref()), (Some("EINPROGRESS"), Some("note")));
    assert_eq!(c.result, Expr::Int(-1));
    let c = one_call("fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0x2 (flags O_RDWR)");
    assert_eq!(c.args[2], Expr::Or(vec![Expr::Sym("O_RDWR".into()), Expr::Sym("O_NONBLOCK".into())]));
    assert_eq!(c.result, Expr::Int(2));
    let c = one_call(r#"bind(3, {sa_family=AF_INET, sin_port=htons(8080), sin_addr=inet_addr("1.2.3.4")}, ...) = 0"#);
    let Expr::Struct(fields) = &c.args[1] else { panic!() };
    assert_eq!(fields[1].value, Expr::Apply("htons".into(), vec![Expr::Int(8080)]));
    let c = one_call("recvmsg(4, {msg_name(...)=..., msg_iov(1)=[{...,10}], msg_flags=MSG_EOR}, 0) = 10");
    let Expr::Struct(fields) = &c.args[1] else { panic!() };
    assert_eq!(fields[0], Field { name: Some("msg_name".into()), arg: Some(Expr::Ellipsis), value: Expr::Ellipsis });
    let c = one_call(r#"getsockopt(3, SOL_TCP, TCP_CONGESTION, "cu" "bic"..., [5]) = 0"#);
    assert_eq!(c.args[3], Expr::StrPrefix("cubic".into()));
    assert_eq!(one_call(r#"f("a\n\x41\0") = 0"#).args[0], Expr::Str("a\nA\0".into()));
    assert!(error("0 close(3) = 0 bogus").contains("error symbol"));
    assert!(error("0 f([1, 2) = 0").contains("','"));
    assert!(error(&format!("0 f({}", "[".repeat(100))).contains("nested"));
}

#[test]
fn defines_replace_words_only() {
    let d: HashMap<String, String> = [("COOKIE", "3021b9d889017eeb"), ("L", "SOL_IP"), ("T", "\"x\""), ("N", "0x10")]
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .into();
    let s = parse("0 f(L, T, N, LL) = 0 +0 > S 0:0(0) <FO COOKIE,nop,nop>", &d).unwrap();
    let Action::Call(c) = &s.events[0].action else { panic!() };
    assert_eq!(c.args, vec![Expr::Sym("SOL_IP".into()), Expr::Str("x".into()), Expr::Int(16), Expr::Sym("LL".into())]);
    let Action::Outbound(p) = &s.events[1].action else { panic!() };
    assert!(matches!(&p.body, Body::Tcp(t) if t.options.as_ref().unwrap()[0] != TcpOption::FastOpen(vec![])));
}

#[test]
fn errors_name_their_place() {
    assert_eq!(
        error("0 `a`\n+0 > . 1:1(0) ack\n"),
        "3:1: syntax error: expected an acknowledgement number, found the end of the script"
    );
    assert!(error("0 `a").contains("never closed"));
    assert!(error("/* x").contains("never closed"));
    assert!(error("0 `a` `b` 1 `c`").contains("very end"));
    assert!(error("0 f(\"x) = 0").contains("never closed"));
    assert!(error("0 %{ x").contains("never closed"));
    assert!(error("0 f(1;2) = 0").contains("unexpected character"));
}
