use super::super::config::variants;
use super::super::fake::{Fake, Flaws};
use super::super::parse::parse;
use super::*;

const OPEN: &str = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 bind(3, ..., ...) = 0\n+0 listen(3, 1) = 0\n\
    +0 < S 0:0(0) win 1000 <mss 1000,sackOK,TS val 5 ecr 0>\n+0 > S. 0:0(0) ack 1 <mss 1460,nop,nop,TS val 100 ecr 5>\n\
    +.01 < . 1:1(0) ack 1 win 1000 <nop,nop,TS val 5 ecr 100>\n+0 accept(3, ..., ...) = 4\n";

fn run_in(variant: usize, flaws: Flaws, text: &str) -> RunReport {
    let cfg = &variants()[variant];
    let script = parse(text, &cfg.defines).unwrap_or_else(|e| panic!("{}:{}: {}", e.pos.line, e.pos.col, e.text));
    run("t.pkt", &script, cfg, Box::new(Fake::new(flaws, variant == 1)))
}

fn verdict(text: &str) -> Verdict {
    run_in(0, Flaws::default(), text).verdict
}

#[track_caller]
fn passes(text: &str) {
    assert_eq!(verdict(text), Verdict::Passed);
}

#[track_caller]
fn fails(text: &str) -> String {
    match verdict(text) {
        Verdict::Failed(why) => why,
        other => panic!("{other:?}"),
    }
}

fn opened(rest: &str) -> String {
    format!("{OPEN}{rest}")
}

#[test]
fn a_connection_in_every_variant() {
    let text = opened("+0 write(4, ..., 10) = 10\n+0 > P. 1:11(10) ack 1\n");
    for variant in 0..3 {
        assert_eq!(run_in(variant, Flaws::default(), &text).verdict, Verdict::Passed);
    }
    assert_eq!(run_in(0, Flaws::default(), &text).virtual_us, 10_000);
}

#[test]
fn segments_are_merged_up_to_the_expected_length() {
    passes(&opened("+0 write(4, ..., 2500) = 2500\n+0 > . 1:2001(2000) ack 1\n+0 > P. 2001:2501(500) ack 1\n"));
    passes(&opened("+0 write(4, ..., 2500) = 2500\n+0 > P. 1:2501(2500) ack 1\n"));
    let strict = "--strict_segments\n";
    let mut cfg = variants()[0].clone();
    cfg.set("strict_segments", None).unwrap();
    let text = format!("{strict}{}", opened("+0 write(4, ..., 2500) = 2500\n+0 > P. 1:2501(2500) ack 1\n"));
    let script = parse(&text, &cfg.defines).unwrap();
    let report = run("t.pkt", &script, &cfg, Box::new(Fake::default()));
    assert!(matches!(report.verdict, Verdict::Failed(w) if w.contains("tcp_psh") && w.contains("t.pkt:10:")));
    let uncut = Flaws { uncut: true, ..Flaws::default() };
    let text = opened("+0 write(4, ..., 2500) = 2500\n+0 > . 1:1001(1000) ack 1\n");
    assert!(matches!(run_in(0, uncut, &text).verdict, Verdict::Failed(_)));
}

#[test]
fn a_difference_names_field_line_and_both_packets() {
    let why = fails(&opened("+0 write(4, ..., 10) = 10\n+0 > P. 2:12(10) ack 1\n"));
    assert!(
        why.starts_with(
            "t.pkt:9: error handling packet: live packet field tcp_seq: expected: 2 (0x2) vs actual: 1 (0x1)"
        ),
        "{why}"
    );
    assert!(why.contains("script packet: 0.010000 > P. 2:12(10) ack 1"), "{why}");
    assert!(why.contains("actual packet: 0.010000 P. 1:11(10) ack 1 win 1000"), "{why}");
    assert!(fails(&opened("+0 write(4, ..., 10) = 10 +0 > P. 1:11(10) ack 2")).contains("tcp_ack_seq"));
    assert!(fails(&opened("+0 write(4, ..., 10) = 10 +0 > P. 1:11(10) ack 1 win 3")).contains("tcp_window"));
    assert!(fails(&opened("+0 write(4, ..., 10) = 10 +0 > . 1:11(10) ack 1")).contains("tcp_psh"));
    assert!(fails(&opened("+0 write(4, ..., 10) = 10 +0 > P. 1:11(10) ack 1 <nop,nop,nop,nop>")).contains("tcp_doff"));
    assert!(fails(&opened("+0 write(4, ..., 10) = 10 +0 > [ect1] P. 1:11(10) ack 1")).contains("ip_ecn"));
    passes(&opened("+0 write(4, ..., 10) = 10 +0 > [ect01, ttl 64] P. 1:11(10) ack 1"));
    assert!(fails(&opened("+0 write(4, ..., 10) = 10 +0 > (tos 3) P. 1:11(10) ack 1")).contains("ip_tos"));
}

#[test]
fn broken_packets_of_the_stack_are_found() {
    let text = opened("+0 write(4, ..., 10) = 10 +0 > P. 1:11(10) ack 1");
    let bad = run_in(0, Flaws { bad_checksum: true, ..Flaws::default() }, &text).verdict;
    assert!(matches!(bad, Verdict::Failed(w) if w.contains("checksum")));
    let dirty = run_in(0, Flaws { dirty_payload: true, ..Flaws::default() }, &text).verdict;
    assert!(matches!(dirty, Verdict::Failed(w) if w.contains("is 1 and not zero")));
    let peer = run_in(0, Flaws { wrong_peer: true, ..Flaws::default() }, &text).verdict;
    assert!(matches!(peer, Verdict::Failed(w) if w.contains("peer address")));
}

#[test]
fn time_is_judged_with_its_tolerances() {
    let late = Flaws { late_synack: true, ..Flaws::default() };
    assert!(
        matches!(run_in(0, late, OPEN).verdict, Verdict::Failed(w) if w.contains("timing error") && w.contains("t.pkt:5"))
    );
    passes(&opened("+0 < P. 1:11(10) ack 1 win 1000 <nop,nop,TS val 6 ecr 100>\n+.04 > . 1:1(0) ack 11"));
    passes(&opened("+0 < P. 1:11(10) ack 1 win 1000\n+.037 > . 1:1(0) ack 11"));
    assert!(fails(&opened("+0 < P. 1:11(10) ack 1 win 1000\n+.03 > . 1:1(0) ack 11")).contains("timing error"));
    assert!(fails(&opened("+0 < P. 1:11(10) ack 1 win 1000\n+.05 > . 1:1(0) ack 11")).contains("timing error"));
    passes(&opened("+0 < P. 1:11(10) ack 1 win 1000\n+.01~+.039 > . 1:1(0) ack 11"));
    passes(&opened("+0 < P. 1:11(10) ack 1 win 1000\n* > . 1:1(0) ack 11\n0.06 write(4, ..., 1) = 1"));
    passes(
        "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 < S 0:0(0) win 1\n+0 > S. 0:0(0) ack 1 <...>\n+1 > S. 0:0(0) ack 1 <...>",
    );
    assert!(fails(&opened("+0 > . 1:1(0) ack 1")).contains("timed out waiting for packet"));
    assert!(fails(&opened("+1 close(4) = 0 .5 close(3) = 0")).contains("before that of the event before"));
}

#[test]
fn blocking_calls_return_at_their_end() {
    let listen = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3 +0 listen(3, 1) = 0 +0 < S 0:0(0) win 1 +0 > S. 0:0(0) ack 1 <...>\n";
    let blocked = |end: &str| {
        format!(
            "{listen}+0...{end} accept(3, ..., ...) = 4\n+.5 < . 1:1(0) ack 1 win 1\n+0 write(4, ..., 1) = 1\n+0 > P. 1:2(1) ack 1\n"
        )
    };
    passes(&blocked("0.5"));
    assert!(fails(&blocked("0.2")).contains("expected accept to return at 0.200000 sec but it returned at 0.500000"));
    assert!(fails(&opened("+0...0.1 read(4, ..., 5) = 5")).contains("still blocked"));
    assert!(fails(&opened("+0 read(4, ..., 5) = 5")).contains("nothing will wake it"));
    assert!(fails(&opened("+0...1 close(4) = 0")).contains("timing error"));
}

#[test]
fn system_calls_are_judged() {
    assert!(
        fails(&opened("+0 write(4, NULL, 10) = 10"))
            .contains("runtime error in write call: expected result 10, got -1 with errno 14 (EFAULT)")
    );
    passes(&opened("+0 write(4, NULL, 10) = -1 EFAULT (Bad address)"));
    passes(&opened("+0 getsockopt(4, SOL_TCP, TCP_NODELAY, [1], [4]) = 0"));
    assert!(fails(&opened("+0 frobnicate(4) = 0")).contains("not supported"));
}

#[test]
fn timestamps_are_translated() {
    assert!(fails(&opened("+0 < . 1:1(0) ack 1 win 1 <nop,nop,TS val 7 ecr 999>")).contains("TS val 999"));
}

#[test]
fn shell_lines_reach_the_backend_or_fail() {
    passes("`../common/defaults.sh`\n0 `sysctl -q net.ipv4.tcp_sack=0; sleep 1`\n`sysctl_restore_1.sh`");
    assert!(fails("`frob`\n0 `sleep 0`").contains("error executing init command"));
    assert!(fails("0 `frob`").contains("error executing command"));
    assert!(fails("0 `sleep 0` `frob`").contains("error executing cleanup"));
}

#[test]
fn what_is_missing_is_reported_before_anything_runs() {
    let missing = |text: &str| match verdict(&opened(text)) {
        Verdict::Unsupported(why) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(missing("+0 %{ assert 1 }%"), "t.pkt:8: code blocks are not supported: %{ assert 1 }%");
    assert!(missing("+0 < gre: . 1:1(0) win 1").contains("encapsulation"));
    assert!(missing("+0 > encap psp spi 1 . 1:1(0)").contains("PSP"));
    assert!(missing("+0 splice(3, NULL, 4, NULL, 1, 0) = 1").contains("splice"));
    let cmsg = "+0 recvmsg(4, {msg_control=[{cmsg_level=SOL_IP, cmsg_type=1, cmsg_data={ee_errno=1}}]}, 0) = 0";
    assert!(missing(cmsg).contains("error-queue"));
}

#[test]
fn non_fatal_differences_are_warnings() {
    let mut cfg = variants()[0].clone();
    cfg.set("non_fatal", Some("packet,syscall")).unwrap();
    let text = opened("+0 write(4, ..., 10) = 11 +0 > . 1:11(10) ack 1 +0 close(4) = 0");
    let report = run("t.pkt", &parse(&text, &cfg.defines).unwrap(), &cfg, Box::new(Fake::default()));
    assert_eq!((report.verdict, report.warnings.len()), (Verdict::Passed, 2));
}
