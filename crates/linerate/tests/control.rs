//! The control socket: what a dump promises while sockets come and go, and what clients can not do.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use linerate::control::{
    Client, ControlError, ControlPath, Inbox, MAX_CLIENTS, MAX_LINE_BYTES, Parker, Server, SocketRecord, SocketsRequest,
};
use linerate::nic::NicConfig;
use linerate::{Stack, TcpListener, TcpStream, Wait};
use serde_json::Value;

/// A path of this test's own.
fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("lin-{}-{name}.sock", std::process::id()))
}

/// Two stacks; the server's has a control socket.
fn stacks(name: &str) -> (Stack, Stack, PathBuf) {
    let path = path(name);
    let (a, b) = linerate::nic::pair(&NicConfig::default(), &NicConfig::default());
    let stack = |nic, addr: &str| {
        let eth0 = linerate::Interface::nic("eth0", nic).address(&format!("{addr}/24"));
        Stack::builder().interface(eth0).wait(Wait::Block)
    };
    let client = stack(a, CLIENT).start().expect("the stack starts");
    let server = stack(b, SERVER).control(ControlPath::At(path.clone())).start().expect("the stack starts");
    assert_eq!(server.control_path(), Some(path.as_path()));
    (client, server, path)
}

fn sockets(path: &Path, request: &SocketsRequest) -> Vec<SocketRecord> {
    let mut found = Vec::new();
    let mut client = Client::connect(path).expect("it listens");
    let done = client
        .request("sockets", request, |key, value| {
            assert_eq!(key, "socket");
            found.push(serde_json::from_value(value).expect("a socket"));
            Ok(())
        })
        .expect("a dump");
    assert_eq!(done["sockets"].as_u64(), Some(found.len() as u64));
    found
}

#[test]
fn a_flow_is_seen() {
    let (client, server, path) = stacks("flow");
    let mut listener = TcpListener::bind(&server, "10.0.0.2:80").expect("bind");
    let mut out = TcpStream::connect(&client, "10.0.0.2:80").expect("connect");
    let (mut inp, _) = listener.accept().expect("accept");
    out.write_all(&[7; 100_000]).expect("write");
    inp.read_exact(&mut vec![0; 100_000]).expect("read");
    let mut request = SocketsRequest::default();
    request.info = true;
    let all = sockets(&path, &request);
    let flow = all.iter().find(|s| s.state == "ESTAB").expect("the flow");
    assert_eq!((flow.local.to_string().as_str(), flow.proto.as_str()), ("10.0.0.2:80", "tcp"));
    let info = flow.tcp_info.expect("asked for");
    assert_eq!((info.bytes_received, info.state), (100_000, 1));
    assert_eq!(flow.congestion.as_deref(), Some("cubic"));
    assert!(all.iter().any(|s| s.state == "LISTEN" && s.peer.is_none()));
    let mut control = Client::connect(&path).expect("it listens");
    let about = control.about().expect("it speaks");
    assert_eq!((about.pid, about.shards), (std::process::id(), 1));
    // Several requests of one client, in order.
    let mut seen = Vec::new();
    control
        .request("counters", &(), |key, value| {
            seen.push((key.to_owned(), value));
            Ok(())
        })
        .expect("counters");
    let counters = seen[0].1.as_array().expect("a list");
    let count = |name: &str| counters.iter().find(|c| c[0] == name).and_then(|c| c[1].as_u64());
    assert_eq!((count("TcpPassiveOpens"), count("TcpCurrEstab")), (Some(1), Some(1)));
    assert!(count("IpInReceives").is_some_and(|n| n > 2));
    let mut names = Vec::new();
    control
        .request("devices", &(), |_, value| {
            let sum = value["qstats"]["rx_bytes"].as_u64();
            let queues = value["queue_qstats"].as_array().expect("a list").iter();
            let counted: Vec<_> = queues.map(|q| q["qstats"]["rx_bytes"].as_u64()).collect();
            assert!(counted.is_empty() || counted == [sum], "{value}");
            names.push((value["name"].as_str().unwrap().to_owned(), sum));
            Ok(())
        })
        .expect("devices");
    assert_eq!(names.iter().map(|n| n.0.as_str()).collect::<Vec<_>>(), ["lo", "eth0"]);
    assert!(names[1].1.is_some_and(|n| n > 100_000));
    // With the stack goes its socket.
    drop(server);
    assert!(!path.exists());
    assert!(matches!(control.about(), Err(ControlError::Io(..))));
}

#[test]
fn all_shards_answer() {
    let path = path("shards");
    let builder = Stack::builder().shards(3).wait(Wait::Block).control(ControlPath::At(path.clone()));
    let stack = builder.start().expect("the stack starts");
    let _listener = TcpListener::bind(&stack, "127.0.0.1:80").expect("bind");
    let mut client = Client::connect(&path).expect("it listens");
    assert_eq!(client.about().expect("it speaks").shards, 3);
    // A listener is a socket in each shard.
    let listeners: Vec<_> = sockets(&path, &SocketsRequest::default()).iter().map(|s| s.shard).collect();
    assert_eq!(listeners, [0, 1, 2]);
    assert_eq!(client.request("counters", &(), |_, _| Ok(())).expect("counters")["shards"], 3);
    let mut loopbacks = Vec::new();
    let done = client.request("devices", &(), |_, value| {
        loopbacks.push((value["name"].as_str().map(str::to_owned), value["shard"].as_u64()));
        Ok(())
    });
    assert_eq!(done.expect("devices")["devices"], 3);
    assert_eq!(loopbacks, [0, 1, 2].map(|shard| (Some("lo".to_owned()), Some(shard))));
}

/// A raw client.
struct Raw(BufReader<UnixStream>);

impl Raw {
    fn new(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("it listens");
        stream.set_read_timeout(Some(STALL)).expect("a timeout");
        Self(BufReader::new(stream))
    }
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("write");
    }
    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }
    fn error(&mut self) -> String {
        let line = self.line();
        for key in ["message", "hint"] {
            assert!(line["error"][key].as_str().is_some_and(|text| !text.is_empty()), "{line}");
        }
        line["error"]["errno"].as_str().expect("a name").to_owned()
    }
    fn ends(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0) | Err(_))
    }
}

const ABOUT: &[u8] = b"{\"schema\":1,\"cmd\":\"about\"}\n";

#[test]
fn what_is_no_request_is_answered_and_forgiven() {
    let (_client, _server, path) = stacks("garbage");
    let mut raw = Raw::new(&path);
    for (line, errno) in [
        (&b"GET / HTTP/1.1\r\n"[..], "EINVAL"),
        (b"\xff\xfe\x00\n", "EINVAL"),
        (b"[1]\n", "EINVAL"),
        (b"{\"cmd\":\"about\"}\n", "EPROTONOSUPPORT"),
        (b"{\"schema\":2,\"cmd\":\"about\"}\n", "EPROTONOSUPPORT"),
        (b"{\"schema\":1}\n", "EOPNOTSUPP"),
        (b"{\"schema\":1,\"cmd\":\"reboot\"}\n", "EOPNOTSUPP"),
        (b"{\"schema\":1,\"cmd\":\"about\",\"loud\":true}\n", "EINVAL"),
        (b"{\"schema\":1,\"cmd\":\"sockets\",\"tcp\":\"yes\"}\n", "EINVAL"),
        (b"{\"schema\":1,\"cmd\":\"sockets\",\"colour\":\"red\"}\n", "EINVAL"),
        (b"{\"schema\":1,\"cmd\":\"sockets\",\"states\":[\"ASLEEP\"]}\n", "EINVAL"),
    ] {
        raw.send(line);
        assert_eq!(raw.error(), errno, "{}", String::from_utf8_lossy(line));
    }
    // A tower of brackets within the limit, then blank lines, then halves of a good one.
    raw.send(&[&[b'['; 60_000][..], b"\n"].concat());
    assert_eq!(raw.error(), "EINVAL");
    raw.send(b"\n  \n");
    let (first, second) = ABOUT.split_at(9);
    raw.send(first);
    std::thread::sleep(std::time::Duration::from_millis(20));
    raw.send(second);
    assert!(raw.line()["about"]["pid"].is_u64() && raw.line()["done"].is_object());
    // Two at once, and a closed sending side: both are answered.
    raw.send(&[ABOUT, ABOUT, b"{\"half"].concat());
    raw.0.get_ref().shutdown(std::net::Shutdown::Write).expect("shutdown");
    for key in ["about", "done", "about", "done"] {
        assert!(raw.line()[key].is_object());
    }
    assert_eq!(raw.error(), "EPROTO");
    assert!(raw.ends());
}

#[test]
fn a_line_without_end_is_cut_off() {
    let (_client, _server, path) = stacks("long");
    let mut raw = Raw::new(&path);
    let mut chunk = vec![b' '; MAX_LINE_BYTES + 1];
    *chunk.last_mut().unwrap() = b'x';
    raw.send(&chunk);
    assert_eq!(raw.error(), "EMSGSIZE");
    assert!(raw.ends());
}

/// `n` connections, both ends: the client's and the server's.
fn connections(client: &Stack, listener: &mut TcpListener, n: usize) -> Vec<(TcpStream, TcpStream)> {
    (0..n)
        .map(|_| {
            let out = TcpStream::connect(client, "10.0.0.2:80").expect("connect");
            (out, listener.accept().expect("accept").0)
        })
        .collect()
}

/// One byte there and back, on another connection than those that are looked at.
fn round_trips((out, inp): &mut (TcpStream, TcpStream), n: usize) {
    for i in 0..n {
        let mut byte = [0];
        out.write_all(&[i as u8]).expect("write");
        inp.read_exact(&mut byte).expect("read");
        inp.write_all(&byte).expect("write");
        out.read_exact(&mut byte).expect("read");
        assert_eq!(byte, [i as u8]);
    }
}

#[test]
fn a_dump_among_two_thousand_that_come_and_go() {
    let (client, server, path) = stacks("churn");
    let watchdog = Watchdog::new("a dump among many", &[&client, &server]);
    let mut listener = TcpListener::bind(&server, "10.0.0.2:80").expect("bind");
    let lasting = connections(&client, &mut listener, 300);
    let over = AtomicBool::new(false);
    let mut dumps = 0;
    std::thread::scope(|scope| {
        let (ticker, over) = (watchdog.ticker(), &over);
        let (client, listener) = (&client, &mut listener);
        scope.spawn(move || {
            // Older ones go while younger ones come: entries are used again all the time.
            let mut young = std::collections::VecDeque::new();
            for _ in 0..2000 {
                young.extend(connections(client, listener, 1));
                if young.len() > 50 {
                    young.pop_front();
                }
                ticker.tick();
            }
            over.store(true, Ordering::Release);
        });
        while !over.load(Ordering::Acquire) || dumps < 3 {
            let mut times: BTreeMap<_, usize> = BTreeMap::new();
            for socket in sockets(&path, &SocketsRequest::default()) {
                if let (Some(id), Some(peer)) = (socket.id, socket.peer) {
                    *times.entry((id, peer)).or_default() += 1;
                }
            }
            for (out, _) in &lasting {
                let ours = out.local_addr().expect("it is connected");
                let seen: Vec<_> = times.iter().filter(|((_, peer), _)| *peer == ours).collect();
                assert!(matches!(seen[..], [(_, 1)]), "a lasting socket: {seen:?}");
            }
            assert!(times.values().all(|&n| n == 1), "no socket twice");
            dumps += 1;
            watchdog.ticker().tick();
        }
    });
}

#[test]
fn who_does_not_read_holds_nobody_else() {
    let (client, server, path) = stacks("slow");
    let watchdog = Watchdog::new("slow readers", &[&client, &server]);
    let mut listener = TcpListener::bind(&server, "10.0.0.2:80").expect("bind");
    let mut many = connections(&client, &mut listener, 1000);
    let request = b"{\"schema\":1,\"cmd\":\"sockets\",\"info\":true}\n";
    // More than the kernel keeps for any of them: their dumps stand still.
    let mut slow: Vec<_> = (0..MAX_CLIENTS).map(|_| Raw::new(&path)).collect();
    for raw in &mut slow {
        raw.send(request);
        assert!(raw.line()["socket"].is_object());
    }
    round_trips(&mut many[0], 500);
    watchdog.ticker().tick();
    // All places are taken by somebody who is busy.
    assert_eq!(Raw::new(&path).error(), "EAGAIN");
    assert!(matches!(Client::connect(&path).unwrap().about(), Err(ControlError::Refused(r)) if r.errno == "EAGAIN"));
    // One goes away in the middle, and its place is free as soon as that was seen.
    drop(slow.pop());
    while Client::connect(&path).and_then(|mut c| c.about()).is_err() {
        std::thread::yield_now();
    }
    watchdog.ticker().tick();
    // Who reads at last gets all of it.
    let mut left = slow.pop().expect("some are left");
    let mut count = 1;
    let done = loop {
        let line = left.line();
        match line.get("done") {
            Some(done) => break done["sockets"].as_u64(),
            None => count += 1,
        }
    };
    assert_eq!(done, Some(count));
    assert!(count > 1000);
    // The stack ends while dumps stand still.
    drop(server);
    drop(slow);
    assert!(!path.exists());
}

#[test]
fn who_asks_nothing_makes_room() {
    let (_client, _server, path) = stacks("idle");
    let mut idle: Vec<_> = (0..MAX_CLIENTS).map(|_| Raw::new(&path)).collect();
    // All are there, and the second asked longest ago; the first asked again.
    for raw in &mut idle {
        raw.send(ABOUT);
        assert!(raw.line()["about"].is_object() && raw.line()["done"].is_object());
    }
    idle[0].send(ABOUT);
    assert!(idle[0].line()["about"].is_object() && idle[0].line()["done"].is_object());
    assert!(Client::connect(&path).unwrap().about().is_ok());
    assert!(idle[1].ends());
    idle[0].send(ABOUT);
    assert!(idle[0].line()["about"].is_object());
}

#[test]
fn a_shard_that_has_ended_is_no_empty_answer() {
    let path = path("ended");
    let inbox = Inbox::new(Parker::with_futex().unparker());
    let _server = Server::start(&ControlPath::At(path.clone()), vec![inbox.door()]).expect("it listens");
    // What was asked while it lived is refused, too: nobody waits for ever.
    let asked = std::thread::spawn({
        let path = path.clone();
        move || Client::connect(&path).unwrap().request("counters", &(), |_, _| Ok(()))
    });
    let mut client = Client::connect(&path).unwrap();
    assert!(client.about().is_ok());
    drop(inbox);
    let ended = |outcome: Result<Value, ControlError>| {
        assert!(matches!(&outcome, Err(ControlError::Refused(r)) if r.errno == "ECONNABORTED"), "{outcome:?}");
    };
    ended(asked.join().expect("no panic"));
    for cmd in ["sockets", "counters", "devices"] {
        ended(client.request(cmd, &(), |_, _| Ok(())));
    }
    assert!(client.about().is_ok());
}

#[test]
fn a_path_that_is_in_use_is_an_error_of_the_builder() {
    let (_client, _server, path) = stacks("twice");
    let error = Stack::builder().control(ControlPath::At(path.clone())).start().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert!(Client::connect(&path).unwrap().about().is_ok(), "the first one is served on");
}
