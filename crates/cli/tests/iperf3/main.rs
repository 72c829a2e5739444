//! `linerate iperf3` against stock iperf3 over a TUN: both roles, both protocols, both families, all directions.
//!
//! Each test runs in a user and network namespace of its own; the kernel's end of the TUN is 10.9.0.1 (fd09::1), ours
//! 10.9.0.2 (fd09::2). Both ends print JSON, and what one says about a stream must be what the other says about it. A
//! host without iperf3, a TUN driver or user namespaces skips these by name, unless `LINERATE_REQUIRE=all`.

#[path = "../../../linerate/tests/common/netns.rs"]
mod netns;
mod table;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netns::in_namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// No run here takes longer, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);
const TUN: [&str; 6] = ["--tun", "lin%d", "--addr", "10.9.0.2/24,fd09::2/64", "--host-addr", "10.9.0.1/24,fd09::1/64"];

/// Who is which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum We {
    Client,
    Server,
}

/// Runs `body` in a namespace, if there is an iperf3 to talk to.
fn with_iperf3(name: &str, body: impl FnOnce()) {
    if let Err(error) = Command::new("iperf3").arg("--version").output() {
        let required = std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all");
        assert!(!required, "{name} needs iperf3: {error}");
        println!("skipped: {name} needs iperf3: {error}");
        return;
    }
    in_namespace(name, body);
}

fn ours(device: &[&str], args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.arg("iperf3").args(args).args(device);
    command
}
fn stock(args: &[&str]) -> Command {
    let mut command = Command::new("iperf3");
    command.args(args);
    command
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Waits for the end; a child that hangs is killed and fails the test.
#[track_caller]
fn finish(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().expect("wait").is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let out = child.wait_with_output().expect("output");
            panic!("hangs; so far: {}{}", text(&out.stdout), text(&out.stderr));
        }
        sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("output")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Does the server (in the kernel or in our stack) listen?
fn is_listening(device: &[&str], we: We) -> bool {
    let state = |table: &str| std::fs::read_to_string(table).unwrap_or_default().contains(":1451 0000");
    // Our own listens once its addresses answer (that of IPv6 on a TAP is on trial for a second or two). A refusal by another
    // port is an answer; whoever asks the port itself is taken for a client.
    let answers = |to: &str| {
        let to: SocketAddr = to.parse().unwrap();
        TcpStream::connect_timeout(&to, Duration::from_millis(50))
            .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
    };
    let has = |address: &str| device.iter().any(|arg| arg.contains(address));
    match we {
        We::Client => state("/proc/net/tcp") || state("/proc/net/tcp6"),
        We::Server => (!has("10.9.0.2") || answers("10.9.0.2:9")) && (!has("fd09::2") || answers("[fd09::2]:9")),
    }
}

fn start_server(we: We, args: &[&str]) -> Child {
    start_server_on(&TUN, we, args)
}

fn start_server_on(device: &[&str], we: We, args: &[&str]) -> Child {
    let args = [&["-s"], args].concat();
    let child = spawn(&mut if we == We::Server { ours(device, &args) } else { stock(&args) });
    let start = Instant::now();
    while !is_listening(device, we) {
        assert!(start.elapsed() < PATIENCE, "the server does not listen");
        sleep(Duration::from_millis(5));
    }
    child
}

fn start_client(we: We, host: &str, args: &[&str]) -> Child {
    start_client_on(&TUN, we, host, args)
}

fn start_client_on(device: &[&str], we: We, host: &str, args: &[&str]) -> Child {
    let args = [&["-c", host], args].concat();
    spawn(&mut if we == We::Client { ours(device, &args) } else { stock(&args) })
}

fn host(we: We, v6: bool) -> &'static str {
    match (we, v6) {
        (We::Client, false) => "10.9.0.1",
        (We::Client, true) => "fd09::1",
        (We::Server, false) => "10.9.0.2",
        (We::Server, true) => "fd09::2",
    }
}

/// One test between the two; both reports.
#[track_caller]
fn run(device: &[&str], we: We, v6: bool, args: &[&str]) -> (Value, Value) {
    let server = start_server_on(device, we, &["-1", "-J"]);
    let client = finish(start_client_on(device, we, host(we, v6), &[args, &["-J"]].concat()));
    let server = finish(server);
    let parse = |who: &str, out: &Output| -> Value {
        let said = text(&out.stdout);
        serde_json::from_str(&said).unwrap_or_else(|e| panic!("{who} {args:?}: {e}: {said}{}", text(&out.stderr)))
    };
    let (c, s) = (parse("client", &client), parse("server", &server));
    assert!(c.get("error").is_none(), "client {args:?}: {}", c["error"]);
    assert!(s.get("error").is_none(), "server {args:?}: {}", s["error"]);
    assert!(client.status.success(), "{args:?}: {}", text(&client.stderr));
    (c, s)
}

#[track_caller]
fn bytes(report: &Value, key: &str) -> u64 {
    report["end"][key]["bytes"].as_u64().unwrap_or_else(|| panic!("no {key} in {}", report["end"]))
}

#[track_caller]
fn rate(report: &Value) -> f64 {
    report["end"]["sum_sent"]["bits_per_second"].as_f64().expect("a rate")
}

/// What the two ends say must be the same: bytes of each direction, as each end counted its own side.
#[track_caller]
fn agree(we: We, v6: bool, args: &[&str]) -> (Value, Value) {
    agree_on(&TUN, we, v6, args)
}

/// As [`agree`], with the flags of the device.
#[track_caller]
fn agree_on(device: &[&str], we: We, v6: bool, args: &[&str]) -> (Value, Value) {
    let (client, server) = run(device, we, v6, args);
    let label = format!("{we:?} v6 {v6} {args:?}");
    let bidir = args.contains(&"--bidir");
    let (up, down) = (!args.contains(&"-R"), args.contains(&"-R") || bidir);
    for client_sends in [true, false].into_iter().filter(|&up_again| if up_again { up } else { down }) {
        // Seen from either end the reverse direction is the server's.
        let suffix = if bidir && !client_sends { "_bidir_reverse" } else { "" };
        let sent = bytes(&client, &format!("sum_sent{suffix}"));
        let received = bytes(&client, &format!("sum_received{suffix}"));
        let own = if client_sends { "sum_received" } else { "sum_sent" };
        let at_server = bytes(&server, &format!("{own}{suffix}"));
        assert_eq!(at_server, if client_sends { received } else { sent }, "{label}: the two reports differ");
        // With an omitted time the two ends begin to count at different bytes.
        let plausible = received <= sent || args.contains(&"-O");
        assert!(received > 0 && plausible, "{label}: {sent} sent, {received} received");
    }
    (client, server)
}

/// Both families, all directions, one and four streams.
fn all_ways(we: We, args: &[&str]) {
    for v6 in [false, true] {
        for direction in [&[][..], &["-R"], &["--bidir"]] {
            for streams in ["1", "4"] {
                agree(we, v6, &[args, direction, &["-P", streams]].concat());
            }
        }
    }
}

#[test]
fn our_client_tcp() {
    with_iperf3("our_client_tcp", || all_ways(We::Client, &["-n", "8M"]));
}
#[test]
fn our_server_tcp() {
    with_iperf3("our_server_tcp", || all_ways(We::Server, &["-n", "8M"]));
}
#[test]
fn our_client_udp() {
    with_iperf3("our_client_udp", || all_ways(We::Client, &["-u", "-b", "20M", "-n", "1M"]));
}
#[test]
fn our_server_udp() {
    with_iperf3("our_server_udp", || all_ways(We::Server, &["-u", "-b", "20M", "-n", "1M"]));
}

#[test]
fn time_rate_and_options() {
    with_iperf3("time_rate_and_options", || {
        for we in [We::Client, We::Server] {
            let (client, server) =
                agree(we, false, &["-t", "2", "-b", "80M", "-i", "0.5", "-w", "256K", "-M", "1000", "-N"]);
            // Never faster than asked for (nor by more than a burst); how much slower is the machine's affair.
            assert!(rate(&client) < 90e6, "{}", client["end"]["sum_sent"]);
            for report in [&client, &server] {
                let intervals = report["intervals"].as_array().expect("intervals");
                assert!((1..=6).contains(&intervals.len()), "{}", intervals.len());
            }
            // What is omitted is not in the sums.
            let (client, _) = agree(we, true, &["-t", "1", "-O", "1", "-b", "80M", "-l", "10K", "-C", "reno"]);
            assert!(rate(&client) < 90e6 && bytes(&client, "sum_sent") < 15_000_000, "{}", client["end"]["sum_sent"]);
            assert_eq!(client["end"]["sender_tcp_congestion"], "reno");
            // 64-bit counts, and blocks.
            let (client, _) = agree(we, false, &["-u", "-k", "200", "-l", "1000", "-b", "10M", "--udp-counters-64bit"]);
            assert_eq!(bytes(&client, "sum_sent"), 200_000);
            // What the server printed comes back: text from one that prints text.
            let server = start_server(we, &["-1"]);
            let out = finish(start_client(we, host(we, false), &["-n", "1M", "--get-server-output"]));
            let said = text(&out.stdout);
            assert!(said.contains("Server output:") && said.contains("Accepted connection from"), "{said}");
            assert!(said.contains("sender") && said.contains("receiver"), "{said}");
            finish(server);
        }
    });
}

#[test]
fn without_copies_and_without_offloads() {
    with_iperf3("without_copies_and_without_offloads", || {
        let (client, _) = agree(We::Client, false, &["-n", "8M", "--zerocopy"]);
        assert!(
            client["end"]["linerate"]["copies_per_byte_tx"].as_f64().is_some_and(|n| n < 0.01),
            "{}",
            client["end"]
        );
        let (client, _) = agree(We::Client, true, &["-n", "8M", "-R", "--skip-rx-copy"]);
        assert!(
            client["end"]["linerate"]["copies_per_byte_rx"].as_f64().is_some_and(|n| n < 0.01),
            "{}",
            client["end"]
        );
        for more in [&["--tso", "off"][..], &["--csum", "sw", "--tso", "off", "--gro", "off"], &["--mtu", "9000"]] {
            let (client, _) = agree(We::Client, false, &[&["-n", "4M", "--bidir"], more].concat());
            assert_eq!(client["end"]["linerate"]["wire_cut"], more.contains(&"--tso"));
        }
    });
}

#[test]
fn a_server_goes_on_with_the_next_client() {
    with_iperf3("a_server_goes_on_with_the_next_client", || {
        let mut server = start_server(We::Server, &[]);
        let to: SocketAddr = "10.9.0.2:5201".parse().unwrap();
        // Somebody who is silent, somebody who is lost, and somebody who leaves in the middle.
        let silent = TcpStream::connect(to).expect("it listens");
        let mut lost = TcpStream::connect(to).expect("it listens");
        lost.write_all(b"GET / HTTP/1.1\r\nHost: 10.9.0.2\r\nAccept: */*\r\n\r\n").expect("write");
        let mut gone = TcpStream::connect(to).expect("it listens");
        gone.write_all(b"abcdefghijklmnopqrstuvwxyz2345672345\0").expect("write");
        let mut state = [0];
        gone.read_exact(&mut state).expect("a state");
        assert_eq!(state, [9]);
        // Meanwhile the server is busy, and stock iperf3 says so.
        let out = finish(start_client(We::Server, "10.9.0.2", &["-t", "1"]));
        assert!(!out.status.success() && text(&out.stderr).contains("busy"), "{}", text(&out.stderr));
        drop(gone);
        sleep(Duration::from_millis(200));
        for args in [&["-n", "1M"][..], &["-u", "-n", "100K", "-b", "10M"], &["-n", "1M", "-R", "-6"]] {
            let host = if args.contains(&"-6") { "fd09::2" } else { "10.9.0.2" };
            let out = finish(start_client(We::Server, host, args));
            assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        }
        // A client that is interrupted, and then the server.
        let client = start_client(We::Server, "10.9.0.2", &["-t", "30"]);
        sleep(Duration::from_millis(1300));
        interrupt(&client);
        finish(client);
        sleep(Duration::from_millis(200));
        interrupt(&server);
        let start = Instant::now();
        while server.try_wait().expect("wait").is_none() && start.elapsed() < PATIENCE {
            sleep(Duration::from_millis(5));
        }
        let out = finish(server);
        let (said, complaints) = (text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "an idle server ends well: {complaints}");
        assert!(said.contains("(test #6)"), "{said}");
        for complaint in ["no iperf3 client", "unexpectedly closed", "the client has terminated"] {
            assert!(complaints.contains(complaint), "{complaint}: {complaints}");
        }
        drop((silent, lost));
    });
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(child.id() as i32).expect("a child has a number");
    kill_process(pid, Signal::INT).expect("it runs");
}

#[test]
fn ctrl_c_prints_the_summary_so_far() {
    with_iperf3("ctrl_c_prints_the_summary_so_far", || {
        let server = start_server(We::Client, &["-1"]);
        let client = start_client(We::Client, "10.9.0.1", &["-t", "30"]);
        sleep(Duration::from_millis(2500));
        interrupt(&client);
        let out = finish(client);
        let said = text(&out.stdout);
        assert_eq!(out.status.code(), Some(1));
        // Two whole intervals, the rest, and the sender's side of the sum, which nobody told us the other side of.
        assert!(said.matches("/sec ").count() >= 3 && said.contains("sender") && !said.contains("receiver"), "{said}");
        assert!(text(&out.stderr).contains("interrupt"), "{}", text(&out.stderr));
        let out = finish(server);
        let said = text(&out.stdout) + &text(&out.stderr);
        assert!(said.contains("the client has terminated"), "{said}");
        // The other way round: our server tells the stock client.
        let server = start_server(We::Server, &[]);
        let client = start_client(We::Server, "10.9.0.2", &["-t", "30"]);
        sleep(Duration::from_millis(2500));
        interrupt(&server);
        let out = finish(server);
        assert!(text(&out.stdout).contains("receiver") && out.status.code() == Some(1), "{}", text(&out.stdout));
        assert!(text(&finish(client).stderr).contains("the server has terminated"));
    });
}

#[test]
fn misuse_is_one_line() {
    let device = &TUN[..];
    for (args, culprit) in [
        (&["-s"][..], "--tun NAME"),
        (&["-s", "--tun", "lin0"], "--addr"),
        (&[][..], "--client"),
        (&["-s", "-c", "10.9.0.1"], "--client"),
        (&["-s", "-t", "5"], "--time"),
        (&["-s", "-R"], "--reverse"),
        (&["-c", "10.9.0.1", "-1"], "--one-off"),
        (&["-c", "10.9.0.1", "-R", "--bidir"], "--bidir"),
        (&["-c", "10.9.0.1", "--tap", "lin0"], "--tap"),
        (&["-c", "10.9.0.1", "-n", "1M", "-k", "3"], "--blockcount"),
        (&["-c", "10.9.0.1", "-b", "fast"], "bits per second"),
        (&["-c", "10.9.0.1", "-P", "129"], "1..=128"),
        (&["-c", "10.9.0.1", "-O", "601"], "600"),
        (&["-c", "10.9.0.1", "-C", "vegas9"], "cubic, reno"),
        (&["-c", "10.9.0.1", "-u", "-l", "10"], "16 to 65507"),
        (&["-c", "10.9.0.1", "-l", "2M"], "at most 1M"),
        (&["-c", "10.9.0.1", "-u", "-M", "1000"], "--udp"),
        (&["-c", "10.9.0.1", "-i", "0.01"], "0.1 and 60"),
        (&["-c", "10.9.0.1", "--tun", "lin0", "--addr", "10.9.0.2"], "10.9.0.2/24"),
        (&["-c", "10.9.0.1", "-6", "--tun", "lin0", "--addr", "10.9.0.2/24"], "IPv6"),
        (&["-c", "10.9.0.1", "-B", "10.9.0.3"], "-B 10.9.0.3"),
        (&["-c", "10.9.0.1", "--gro", "sw"], "--tso off"),
    ] {
        let own_device = args.contains(&"--tun") || args == ["-s"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
        let out =
            command.arg("iperf3").args(args).args(if own_device { &[][..] } else { device }).output().expect("it runs");
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(
            said.lines().count() == 1 && said.starts_with("linerate: ") && said.contains(culprit),
            "{args:?}: {said}"
        );
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn failures_are_one_line() {
    with_iperf3("failures_are_one_line", || {
        let out = finish(start_client(We::Client, "10.9.0.1", &["-t", "1"]));
        assert_eq!(out.status.code(), Some(1));
        assert!(
            text(&out.stderr).starts_with("linerate: unable to connect to 10.9.0.1:5201: "),
            "{}",
            text(&out.stderr)
        );
        let out = finish(start_client(We::Client, "10.9.0.1", &["-t", "1", "-J"]));
        let report: Value = serde_json::from_str(&text(&out.stdout)).expect("JSON");
        assert!(report["error"].as_str().is_some_and(|e| e.contains("refused")), "{report}");
        // A server that is none.
        let listener = TcpListener::bind("0.0.0.0:5201").expect("a free port");
        let client = start_client(We::Client, "10.9.0.1", &["-t", "1"]);
        let (mut peer, _) = listener.accept().expect("a client");
        peer.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").expect("write");
        let out = finish(client);
        assert!(text(&out.stderr).contains("unknown control message"), "{}", text(&out.stderr));
        // A network that does not exist.
        let out = finish(start_client(We::Client, "192.0.2.1", &["-t", "1"]));
        assert!(!out.status.success() && text(&out.stderr).lines().count() == 1, "{}", text(&out.stderr));
    });
}
