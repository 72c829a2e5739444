//! Our client against our server: two whole stacks over the software NIC, in virtual time.
//!
//! Every test compares what the two ends counted with what they told each other, so a byte that one end invents or
//! forgets is found. Raw sockets play the clients that iperf3 meets in the wild: silent, talkative, impatient.

use std::net::{IpAddr, SocketAddr};

use linerate_base::{Duration, Instant};
use linerate_netdev::{FaultPlan, IfIndex};
use linerate_softnic::{NicConfig, pair};
use linerate_stack::config::GroMode;
use linerate_stack::{DeviceConfig, RecvError, Shard, SockId, SockOpts, StackConfig};
use linerate_wire::Cidr;
use serde_json::{Value, json};

use super::client::{Client, ClientConfig};
use super::cpu::Usage;
use super::engine::{Engine, Settings, Surroundings};
use super::proto::{PORT, Params, Protocol, State};
use super::server::{Server, ServerConfig};

/// One step of virtual time while something moves: a millisecond is a round trip of two.
const TICK: Duration = Duration::from_micros(500);

struct World {
    now: Instant,
    client: Shard,
    server: Shard,
    engine: Server,
    out: String,
    errors: Vec<String>,
}

fn shard(nic: linerate_softnic::Nic, host: u8) -> Shard {
    let mut nic = nic;
    let mut config = StackConfig::default();
    config.seed = u64::from(host);
    let mut shard = Shard::new(config);
    let mut device = DeviceConfig::new("nic0", 1500);
    device.gro = GroMode::Software;
    let ifindex = shard.add_device(device).unwrap();
    let (rx, tx) = nic.take_queue(0).unwrap();
    shard.attach(ifindex, 0, rx, tx).unwrap();
    for cidr in [format!("10.0.0.{host}/24"), format!("fd00::{host}/64")] {
        shard.add_address(ifindex, cidr.parse::<Cidr>().unwrap()).unwrap();
    }
    shard
}

fn settings(json: bool) -> Settings {
    let around = Surroundings { ifindex: IfIndex(2), wire_cut: true, dma: "ref", seed: 42, usage: Usage::default };
    Settings { interval: Some(Duration::from_secs(1)), json, discard: false, zerocopy: false, around }
}

fn params(extra: Value) -> Params {
    let mut object = json!({ "tcp": true, "time": 1 });
    for (key, value) in extra.as_object().unwrap() {
        object[key] = value.clone();
    }
    Params::parse(&object).unwrap()
}

fn server_addr(v6: bool) -> SocketAddr {
    SocketAddr::new(if v6 { "fd00::2" } else { "10.0.0.2" }.parse::<IpAddr>().unwrap(), PORT)
}

fn client_config(params: Params, v6: bool) -> ClientConfig {
    let server = server_addr(v6);
    ClientConfig {
        server,
        host: server.ip().to_string(),
        bind: None,
        cport: None,
        params,
        connect_timeout: Duration::from_secs(5),
        settings: settings(false),
    }
}

impl World {
    fn new() -> Self {
        Self::with(NicConfig { cut: true, ..NicConfig::default() }, settings(false), false)
    }
    fn with(nic: NicConfig, settings: Settings, one_off: bool) -> Self {
        let (a, b) = pair(&nic, &nic);
        let listen = SocketAddr::new("::".parse().unwrap(), PORT);
        let config = ServerConfig { listen, v6only: false, one_off, settings };
        let mut this = Self {
            now: Instant::from_secs(3),
            client: shard(a, 1),
            server: shard(b, 2),
            engine: Server::new(config),
            out: String::new(),
            errors: Vec::new(),
        };
        // The server listens before anybody knocks.
        this.tick(None);
        this
    }

    /// A turn and a step at both ends.
    fn tick(&mut self, client: Option<&mut Client>) {
        let mut next = None;
        let mut moved = false;
        for shard in [&mut self.client, &mut self.server] {
            let turn = shard.turn(self.now, 256);
            moved |= turn.more || turn.rx_skbs + turn.tx_skbs > 0;
            next = [next, turn.next].into_iter().flatten().min();
        }
        moved |= self.engine.step(&mut self.server, self.now);
        next = [next, self.engine.next_deadline()].into_iter().flatten().min();
        self.out.push_str(&self.engine.take_out());
        self.errors.extend(self.engine.take_errors());
        if let Some(client) = client {
            moved |= client.step(&mut self.client, self.now);
            next = [next, client.next_deadline()].into_iter().flatten().min();
        }
        let soon = self.now + TICK;
        self.now = match next {
            Some(at) if !moved => at.max(soon).min(self.now + Duration::from_secs(1)),
            None if !moved => self.now + Duration::from_millis(100),
            _ => soon,
        };
    }
    fn ticks(&mut self, n: usize) {
        (0..n).for_each(|_| self.tick(None));
    }

    /// Runs a client to its end; at most `secs` of virtual time.
    fn run(&mut self, client: &mut Client, secs: u64) -> Result<(), String> {
        let until = self.now + Duration::from_secs(secs);
        while client.outcome().is_none() {
            assert!(self.now < until, "the client hangs");
            self.tick(Some(client));
        }
        client.outcome().unwrap()
    }

    /// What both ends of a finished test counted must be what they told each other.
    fn test(&mut self, p: Params, v6: bool) -> (Client, u64, u64) {
        let mut client = Client::new(client_config(p.clone(), v6));
        let mut seen = (Vec::new(), Vec::new());
        let until = self.now + Duration::from_secs(60);
        while client.outcome().is_none() {
            assert!(self.now < until, "{p:?} hangs");
            self.tick(Some(&mut client));
            if let Some(test) = self.engine.session().and_then(super::session::Session::test) {
                seen = (test.streams.iter().map(|s| s.counts).collect(), test.ids());
            }
        }
        assert_eq!(client.outcome(), Some(Ok(())), "{p:?}: {:?}", self.errors);
        self.ticks(20);
        assert!(self.errors.is_empty(), "{p:?}: {:?}", self.errors);
        assert!(self.engine.session().is_none(), "{p:?}: the session goes on");
        let (ours, theirs) = client.results();
        let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
        assert_eq!(seen.1, ours.ids());
        let (mut sent, mut received) = (0, 0);
        for ((stream, counted), told) in ours.streams.iter().zip(&seen.0).zip(&theirs.streams) {
            assert_eq!((counted.bytes, stream.id), (told.bytes, told.id), "the server told what it counted");
            let (s, r) =
                if stream.sends { (stream.counts.bytes, told.bytes) } else { (told.bytes, stream.counts.bytes) };
            // With an omitted time the two ends begin to count at different bytes.
            assert!((r <= s || p.omit_secs > 0) && r > 0, "{p:?}: {s} sent, {r} received");
            (sent, received) = (sent + s, received + r);
        }
        (client, sent, received)
    }

    fn raw(&mut self) -> SockId {
        let sock = self.client.tcp_connect(server_addr(false), None, &SockOpts::default()).unwrap();
        self.ticks(6);
        sock
    }
    fn say(&mut self, sock: SockId, bytes: &[u8]) {
        assert_eq!(self.client.write(sock, bytes), Ok(bytes.len()));
        self.ticks(6);
    }
    fn hear(&mut self, sock: SockId) -> Vec<u8> {
        let mut buf = [0; 256];
        match self.client.read(sock, &mut buf) {
            Ok(got) => buf[..got].to_vec(),
            Err(RecvError::WouldBlock) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }
}

const COOKIE: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz2345672345\0";

fn framed(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

#[test]
fn tcp_both_families_all_directions_one_and_eight_streams() {
    for v6 in [false, true] {
        for direction in [json!({}), json!({ "reverse": true }), json!({ "bidirectional": true })] {
            for parallel in [1, 8] {
                let mut p = params(direction.clone());
                (p.parallel, p.len) = (parallel, 16 << 10);
                let mut world = World::new();
                let (client, sent, received) = world.test(p.clone(), v6);
                let streams = client.results().0.unwrap().streams.len();
                assert_eq!(streams as u64, parallel * if p.bidir { 2 } else { 1 });
                // What is missing is on its way or in the last buffers.
                assert!(received * 10 > sent * 5 && received > 1 << 20, "{sent} {received}");
            }
        }
    }
}

#[test]
fn udp_both_families_all_directions_one_and_eight_streams() {
    for v6 in [false, true] {
        for direction in [json!({}), json!({ "reverse": true }), json!({ "bidirectional": true })] {
            for parallel in [1, 8] {
                let mut p = params(direction.clone());
                (p.protocol, p.parallel, p.len, p.rate) = (Protocol::Udp, parallel, 1200, 10_000_000);
                let mut world = World::new();
                let (client, sent, received) = world.test(p.clone(), v6);
                // Ten megabits a second, for a second, on each stream.
                let streams = client.results().0.unwrap().streams.len() as u64;
                let expected = streams * 1_250_000;
                assert!(sent.abs_diff(expected) < expected / 50, "{sent} of {expected}");
                assert!(received >= sent - streams * 12_000, "{received} of {sent}");
                assert!(client.results().0.unwrap().streams.iter().all(|s| s.counts.lost == 0));
            }
        }
    }
}

#[test]
fn a_number_of_bytes_arrives_to_the_last() {
    for p in [json!({ "num": 3_000_001 }), json!({ "num": 3_000_001, "parallel": 3 })] {
        let (_, sent, received) = World::new().test(params(p), false);
        assert_eq!((sent, received), (3_000_001, 3_000_001));
    }
    let (_, sent, received) = World::new().test(params(json!({ "num": 3_000_001, "reverse": true })), false);
    assert_eq!((sent, received), (3_000_001, 3_000_001));
    let (_, sent, received) = World::new().test(params(json!({ "blockcount": 10, "len": 5000 })), true);
    assert_eq!((sent, received), (50_000, 50_000));
}

#[test]
fn a_number_of_datagrams_ends_the_test() {
    let p = params(json!({ "udp": true, "len": 1000, "blockcount": 50, "bandwidth": 1_000_000 }));
    let (client, sent, received) = World::new().test(p, false);
    assert_eq!(sent, 50_000);
    assert!(received >= 49_000);
    let (ours, theirs) = client.results();
    assert_eq!(ours.unwrap().streams[0].counts.datagrams, 50);
    assert!(theirs.unwrap().streams[0].datagrams >= 49);
    // A train of datagrams at full speed, the other way: the client counts what arrived.
    let p = params(json!({ "udp": true, "len": 1000, "num": 500_000, "reverse": true }));
    let (_, _, received) = World::new().test(p, false);
    assert!(received >= 500_000);
}

#[test]
fn tcp_keeps_its_pace() {
    let p = params(json!({ "bandwidth": 80_000_000, "time": 2, "len": 10_000 }));
    let (_, sent, _) = World::new().test(p, false);
    assert!(sent.abs_diff(20_000_000) < 200_000, "{sent}");
    // In bursts of ten.
    let p = params(json!({ "bandwidth": 80_000_000, "time": 2, "len": 10_000, "burst": 10 }));
    let (_, sent, _) = World::new().test(p, false);
    assert!(sent.abs_diff(20_000_000) < 300_000, "{sent}");
}

#[test]
fn the_omitted_time_is_not_counted() {
    let p = params(json!({ "bandwidth": 8_000_000, "omit": 2, "time": 1, "len": 1000 }));
    let mut world = World::new();
    let start = world.now;
    let (_, sent, received) = world.test(p, false);
    assert!(world.now.since(start) > Duration::from_secs(3));
    assert!(sent.abs_diff(1_000_000) < 20_000 && received.abs_diff(1_000_000) < 20_000, "{sent} {received}");
    assert_eq!(world.out.matches("(omitted)").count(), 2, "{}", world.out);
}

#[test]
fn lost_datagrams_are_counted_as_such() {
    let plan = FaultPlan { loss: 0.1, ..FaultPlan::default() };
    let nic = NicConfig { cut: true, fault: Some((plan, 5)), ..NicConfig::default() };
    let mut world = World::with(nic, settings(false), false);
    let p = params(json!({ "udp": true, "len": 1000, "bandwidth": 8_000_000, "time": 2 }));
    let (client, sent, received) = world.test(p, false);
    let theirs = client.results().1.unwrap().streams[0];
    assert_eq!(theirs.bytes / 1000 + theirs.errors, theirs.datagrams);
    assert!((100..300).contains(&theirs.errors), "{theirs:?} {sent} {received}");
}

#[test]
fn socket_options_are_those_that_were_asked_for() {
    let p = params(json!({ "MSS": 600, "window": 65_536, "nodelay": true, "congestion": "reno", "TOS": 0x28 }));
    let mut world = World::new();
    let mut client = Client::new(client_config(p, false));
    while world.engine.session().and_then(super::session::Session::test).is_none_or(|t| t.streams.is_empty()) {
        world.tick(Some(&mut client));
    }
    world.ticks(4);
    let sock = world.engine.session().unwrap().test().unwrap().streams[0].sock;
    let opts = world.server.opts(sock).unwrap();
    assert_eq!((opts.user_mss_bytes, opts.rcvbuf_bytes, opts.nodelay), (600, 131_072, true));
    assert_eq!((opts.congestion_control, opts.tos), (Some("reno"), 0x28));
    assert_eq!(world.run(&mut client, 10), Ok(()));
    assert_eq!(client.results().1.unwrap().congestion.as_deref(), Some("reno"));
    // The next client gets the defaults again.
    let (client, ..) = world.test(params(json!({})), false);
    assert_eq!(client.results().1.unwrap().congestion.as_deref(), Some("cubic"));
}

#[test]
fn the_report_has_iperf3s_shape() {
    let mut config = client_config(params(json!({ "get_server_output": 1, "parallel": 2, "time": 2 })), false);
    config.settings = settings(true);
    let mut client = Client::new(config);
    let mut world = World::new();
    assert_eq!(world.run(&mut client, 30), Ok(()));
    let report: Value = serde_json::from_str(&client.take_out()).expect("one JSON object and nothing else");
    assert_eq!(report["start"]["test_start"]["protocol"], "TCP");
    assert_eq!(report["start"]["connected"].as_array().unwrap().len(), 2);
    assert_eq!(report["intervals"].as_array().unwrap().len(), 2);
    let sum = &report["intervals"][1]["sum"];
    assert!(sum["bits_per_second"].as_f64().unwrap() > 1e6 && sum["sender"] == true && sum["retransmits"].is_u64());
    let end = &report["end"];
    let total: u64 = end["streams"].as_array().unwrap().iter().map(|s| s["sender"]["bytes"].as_u64().unwrap()).sum();
    assert_eq!(end["sum_sent"]["bytes"], total);
    assert!(end["sum_received"]["bits_per_second"].as_f64().unwrap() > 1e6);
    assert_eq!((end["sender_tcp_congestion"].as_str(), end["linerate"]["schema"].as_u64()), (Some("cubic"), Some(1)));
    assert!(end["linerate"]["kernel_loopback"].is_null() && end["linerate"]["wire_pkts"].as_u64().unwrap() > 1000);
    assert!(report["server_output_text"].as_str().unwrap().contains("[SUM]"));
}

#[test]
fn the_text_is_what_iperf3_prints() {
    let mut world = World::with(NicConfig { cut: true, ..NicConfig::default() }, settings(false), true);
    let mut client = Client::new(client_config(params(json!({ "time": 2, "bandwidth": 8_388_608 })), false));
    assert_eq!(world.run(&mut client, 10), Ok(()));
    let text = client.take_out();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Connecting to host 10.0.0.2, port 5201");
    assert!(
        lines[1].starts_with("[  5] local 10.0.0.1 port ") && lines[1].ends_with("connected to 10.0.0.2 port 5201")
    );
    assert_eq!(lines[2], "[ ID] Interval           Transfer     Bitrate         Retr  Cwnd");
    assert!(lines[3].starts_with("[  5]   0.00-1.00   sec  1.12 MBytes  9.4"), "{text}");
    assert_eq!(lines[6], "[ ID] Interval           Transfer     Bitrate         Retr");
    assert!(lines[7].starts_with("[  5]   0.00-2.00   sec  2.12 MBytes  8.91 Mbits/sec    0 "), "{text}");
    assert!(lines[7].ends_with("sender") && lines[8].ends_with("receiver"), "{text}");
    assert!(text.ends_with("\niperf Done.\n"));
    world.ticks(20);
    assert!(
        world.out.contains("Server listening on 5201 (test #1)")
            && world.out.contains("Accepted connection from 10.0.0.1")
    );
    assert_eq!(world.engine.outcome(), Some(Ok(())), "--one-off");
}

#[test]
fn a_busy_server_says_so_and_is_not_disturbed() {
    let mut world = World::new();
    let mut first = Client::new(client_config(params(json!({ "time": 3 })), false));
    for _ in 0..400 {
        world.tick(Some(&mut first));
    }
    let mut second = Client::new(client_config(params(json!({})), false));
    for _ in 0..400 {
        world.tick(Some(&mut second));
        first.step(&mut world.client, world.now);
    }
    let busy = "the server is busy running a test. try again later";
    assert_eq!(second.outcome(), Some(Err(busy.into())));
    assert_eq!(world.run(&mut first, 10), Ok(()));
    assert_eq!(world.engine.tests(), 1);
    // A stranger with the right length and the wrong cookie while streams are due.
    let ctrl = world.raw();
    world.say(ctrl, COOKIE);
    assert_eq!(world.hear(ctrl), [State::ParamExchange.byte()]);
    world.say(ctrl, &framed(br#"{"tcp":true,"time":1,"parallel":2}"#));
    assert_eq!(world.hear(ctrl), [State::CreateStreams.byte()]);
    let stranger = world.raw();
    world.say(stranger, b"zzzzefghijklmnopqrstuvwxyz2345672345\0");
    assert_eq!(world.hear(stranger), [State::AccessDenied.byte()]);
    assert!(world.engine.session().unwrap().test().unwrap().streams.is_empty());
    let mine = world.raw();
    world.say(mine, COOKIE);
    assert_eq!(world.engine.session().unwrap().test().unwrap().streams.len(), 1);
}

#[test]
fn garbage_on_the_control_port_is_an_error_and_the_server_goes_on() {
    let error = |code: u8| [&[State::ServerError.byte(), 0, 0, 0, code][..], &[0; 4]].concat();
    let cases: [(&[u8], &str, u8); 6] = [
        (&framed(b"{ not json"), "cannot be read", 114),
        (&framed(br#"{"tcp":true,"parallel":1000}"#), "parallel", 6),
        (&framed(br#"{"tcp":true,"congestion":"vegas9"}"#), "vegas9", 134),
        (&framed(br#"{"sctp":true}"#), "SCTP", 114),
        (&[0x7f, 0xff, 0xff, 0xff], "at most 8192", 114),
        (&[0, 0, 0x20, 1, b'{'], "at most 8192", 114),
    ];
    for (bytes, complaint, code) in cases {
        let mut world = World::new();
        let ctrl = world.raw();
        world.say(ctrl, COOKIE);
        assert_eq!(world.hear(ctrl), [State::ParamExchange.byte()]);
        world.say(ctrl, bytes);
        assert_eq!(world.hear(ctrl), error(code), "{complaint}");
        assert!(world.errors.len() == 1 && world.errors[0].contains(complaint), "{:?}", world.errors);
        world.errors.clear();
        world.test(params(json!({})), false);
    }
    // States that are not due, and bytes that are no state.
    for (byte, complaint) in
        [(99, "unknown control message (99)"), (13, "ExchangeResults when it was not due"), (4, "TestEnd")]
    {
        let mut world = World::new();
        let ctrl = world.raw();
        world.say(ctrl, COOKIE);
        world.hear(ctrl);
        world.say(ctrl, &framed(br#"{"tcp":true}"#));
        world.hear(ctrl);
        world.say(ctrl, &[byte]);
        assert_eq!(world.hear(ctrl), error(110));
        assert!(world.errors[0].contains(complaint), "{:?}", world.errors);
        world.errors.clear();
        world.test(params(json!({})), false);
    }
    // Not iperf3 at all.
    let mut world = World::new();
    let http = world.raw();
    world.say(http, b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n");
    assert!(
        world.errors[0].contains("no iperf3 client") && world.errors[0].starts_with("10.0.0.1:"),
        "{:?}",
        world.errors
    );
    world.errors.clear();
    world.test(params(json!({})), false);
}

#[test]
fn silent_clients_do_not_hold_the_server() {
    let mut world = World::new();
    // Connected and silent; half a cookie; gone at once.
    let (silent, half, gone) = (world.raw(), world.raw(), world.raw());
    world.say(half, &COOKIE[..20]);
    world.client.close(gone).unwrap();
    world.test(params(json!({})), false);
    world.now += Duration::from_secs(6);
    world.ticks(10);
    for sock in [silent, half] {
        assert!(world.client.read(sock, &mut [0; 8]).is_err(), "reset after its time");
    }
    // In the middle of everything: after the cookie, after the parameters, in the test, each without a good-bye.
    for stage in 0..3 {
        let ctrl = world.raw();
        world.say(ctrl, COOKIE);
        if stage > 0 {
            world.say(ctrl, &framed(br#"{"tcp":true,"time":5}"#));
        }
        if stage > 1 {
            let data = world.raw();
            world.say(data, COOKIE);
            assert!(world.engine.session().unwrap().test().unwrap().is_running());
        }
        for _ in 0..200 {
            world.now += Duration::from_secs(1);
            world.tick(None);
        }
        assert!(world.engine.session().is_none(), "stage {stage}");
        let complaint = std::mem::take(&mut world.errors).join("\n");
        assert!(complaint.contains("in time"), "stage {stage}: {complaint}");
        world.test(params(json!({})), false);
    }
    // A control connection that closes ends the test at once.
    let ctrl = world.raw();
    world.say(ctrl, COOKIE);
    world.hear(ctrl);
    world.client.close(ctrl).unwrap();
    world.ticks(20);
    assert!(world.engine.session().is_none() && world.errors[0].contains("unexpectedly closed"), "{:?}", world.errors);
}

#[test]
fn a_server_that_is_no_server_is_an_error_of_the_client() {
    // Nobody listens there.
    let mut world = World::new();
    let mut config = client_config(params(json!({})), false);
    config.server.set_port(7);
    let message = world.run(&mut Client::new(config.clone()), 10).unwrap_err();
    assert!(message.contains("unable to connect to 10.0.0.2:7") && message.contains("refused"), "{message}");
    // Nobody is there at all.
    config.server = "10.0.0.77:5201".parse().unwrap();
    let message = world.run(&mut Client::new(config), 30).unwrap_err();
    assert!(message.contains("10.0.0.77"), "{message}");
    // Somebody who says something else, or nothing.
    for (reply, complaint) in [
        (&b"220 mail.example.org ESMTP\r\n"[..], "unknown control message (50)"),
        (&[State::TestRunning.byte()], "TestRunning when it was not due"),
        (&[State::ServerError.byte(), 0, 0, 0, 134, 0, 0, 0, 0], "congestion control"),
        (&[State::ServerTerminate.byte()], "the server has terminated"),
        (&[], "did not answer in time"),
    ] {
        let mut world = World::new();
        let port = SocketAddr::new(server_addr(false).ip(), 9999);
        let listener = world.server.tcp_listen(port, 8, &SockOpts::default(), Default::default()).unwrap();
        let mut config = client_config(params(json!({})), false);
        config.server = port;
        let mut client = Client::new(config);
        let until = world.now + Duration::from_secs(60);
        while client.outcome().is_none() {
            assert!(world.now < until, "the client hangs");
            world.tick(Some(&mut client));
            if let Ok(sock) = world.server.accept(listener) {
                world.server.write(sock, reply).unwrap();
            }
        }
        let message = client.outcome().unwrap().unwrap_err();
        assert!(message.contains(complaint), "{complaint}: {message}");
    }
}

#[test]
fn an_interrupted_client_says_what_it_has_and_tells_the_server() {
    let mut world = World::new();
    let mut client = Client::new(client_config(params(json!({ "time": 20 })), false));
    let until = world.now + Duration::from_millis(2500);
    while world.now < until {
        world.tick(Some(&mut client));
    }
    client.interrupt(&mut world.client, world.now);
    let text = client.take_out();
    assert!(text.contains("   2.00-2.") && text.contains("sender") && !text.contains("receiver"), "{text}");
    assert!(client.outcome().unwrap().unwrap_err().contains("interrupt"));
    world.ticks(40);
    assert!(world.errors[0].contains("the client has terminated"), "{:?}", world.errors);
    assert!(world.engine.session().is_none() && world.out.contains("receiver"));
}

#[test]
fn an_interrupted_server_tells_its_client() {
    let mut world = World::new();
    let mut client = Client::new(client_config(params(json!({ "time": 20 })), false));
    for _ in 0..1000 {
        world.tick(Some(&mut client));
    }
    world.engine.interrupt(&mut world.server, world.now);
    assert!(world.engine.outcome().unwrap().is_err());
    let message = world.run(&mut client, 10).unwrap_err();
    assert!(message.contains("the server has terminated"), "{message}");
    let mut idle = World::new();
    idle.engine.interrupt(&mut idle.server, idle.now);
    assert_eq!(idle.engine.outcome(), Some(Ok(())), "Ctrl-C is how a server ends");
}

#[test]
fn sending_by_reference_and_discarding_move_the_same_bytes() {
    let mut world = World::new();
    let mut config = client_config(params(json!({ "num": 5_000_001 })), false);
    config.settings.zerocopy = true;
    let mut client = Client::new(config);
    assert_eq!(world.run(&mut client, 30), Ok(()));
    let (ours, theirs) = client.results();
    assert_eq!((ours.unwrap().streams[0].counts.bytes, theirs.unwrap().streams[0].bytes), (5_000_001, 5_000_001));
    assert_eq!(world.client.copied_bytes().0 / 1_000_000, 0, "only the control connection was copied");
    let mut config = client_config(params(json!({ "num": 5_000_001, "reverse": true })), false);
    config.settings.discard = true;
    let mut client = Client::new(config);
    let before = world.client.copied_bytes().1;
    assert_eq!(world.run(&mut client, 30), Ok(()));
    assert_eq!(client.results().0.unwrap().streams[0].counts.bytes, 5_000_001);
    assert!(world.client.copied_bytes().1 - before < 10_000);
}

/// Conversations from a number: valid messages, some of them cut, doubled, changed or out of turn.
#[test]
fn a_swarm_of_hostile_clients_leaves_the_server_as_it_was() {
    let mut world = World::new();
    let mut rng = linerate_base::rng::Rng::new(20_261_121);
    let texts: [&[u8]; 7] = [
        br#"{"tcp":true,"time":1,"parallel":2}"#,
        br#"{"udp":true,"time":1,"len":16,"bandwidth":1e300,"num":-1}"#,
        br#"{"udp":1,"time":86400,"parallel":128,"reverse":true,"len":65507,"window":536870912}"#,
        br#"{"tcp":true,"bidirectional":true,"len":1,"blockcount":18446744073709551615,"MSS":88,"burst":1000}"#,
        br#"{"streams":[{"id":1,"bytes":18446744073709551615,"jitter":-1e308,"errors":1e308,"end_time":-5}]}"#,
        br#"{"streams":[[[[[[[[[]]]]]]]]]}"#,
        b"\xff\xfe\0\0\0",
    ];
    for _ in 0..300 {
        let mut socks = Vec::new();
        for _ in 0..1 + rng.below(3) {
            let sock = world.raw();
            if rng.chance(0.9) {
                let _ = world.client.write(sock, COOKIE);
            }
            for _ in 0..rng.below(6) {
                let mut bytes = match rng.below(3) {
                    0 => vec![rng.below(256) as u8],
                    1 => vec![[1, 2, 4, 9, 10, 12, 13, 14, 16][rng.below(9) as usize]],
                    _ => framed(texts[rng.below(7) as usize]),
                };
                if rng.chance(0.2) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << rng.below(8);
                }
                bytes.truncate(if rng.chance(0.2) { rng.below(bytes.len() as u64) as usize } else { bytes.len() });
                let _ = world.client.write(sock, &bytes);
                world.ticks(rng.below(4) as usize);
            }
            if rng.chance(0.3) {
                let udp = world.client.udp_bind("10.0.0.1:0".parse().unwrap(), Default::default()).unwrap();
                let hello = [&b"9876"[..], b"98765", b""][rng.below(3) as usize];
                let _ = world.client.send_to(udp, hello, Some(server_addr(false)), Default::default());
                socks.push(udp);
            }
            socks.push(sock);
        }
        world.ticks(8);
        for sock in socks {
            let _ = if rng.chance(0.5) { world.client.abort(sock) } else { world.client.close(sock) };
            let _ = world.client.close(sock);
        }
        world.ticks(rng.below(20) as usize);
    }
    // Whoever is left over gives up in time, nothing is left open, and the next client is served.
    for _ in 0..400 {
        world.now += Duration::from_secs(1);
        world.tick(None);
    }
    assert!(world.engine.session().is_none() && !world.errors.is_empty());
    assert_eq!((world.server.tcp_counts().0, world.server.udp().len()), (1, 0), "the listener alone is left");
    world.errors.clear();
    world.test(params(json!({ "parallel": 2 })), false);
}
