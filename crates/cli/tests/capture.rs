//! `linerate tcpdump` and `dropwatch` on a running stack, with Linux on the other side of a TUN.
//!
//! The stack runs in this process with a control socket, the verbs are processes of their own. The kernel pings, exchanges
//! bytes over TCP, and knocks at a closed port; files are read by a parser written here from the format's specification
//! (draft-ietf-opsawg-pcapng), and by the real tcpdump, which also judges the filters. A host without TUN, user
//! namespaces, ping or tcpdump skips what needs them by name, unless `LINERATE_REQUIRE=all`.

#[path = "../../linerate/tests/common/netns.rs"]
mod netns;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use linerate::control::ControlPath;
use linerate::tun::{Tun, TunConfig};
use linerate::{Interface, Stack, TcpListener};
use linerate_stack::tap::{Facts, Filter};
use linerate_wire::pcapng::LinkType;
use netns::in_namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// Is this program here? If not, says so.
fn has(program: &str, test: &str) -> bool {
    let flag = if program == "ping" { "-V" } else { "--version" };
    let found = Command::new(program).arg(flag).output();
    if let Err(e) = &found {
        let required = std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all");
        assert!(!required, "{test} needs {program}: {e}");
        println!("skipped: {test} needs {program}: {e}");
    }
    found.is_ok()
}

/// A stack at 10.9.0.2 with an echo server at port 7, the kernel at 10.9.0.1.
struct Lab {
    stack: Stack,
    control: PathBuf,
    dir: PathBuf,
}

impl Lab {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("lin-cap-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let control = dir.join("control.sock");
        let cfg = TunConfig::new("lin0").host_address("10.9.0.1/24".parse().expect("an address"));
        let tun = Interface::tun(Tun::open(&cfg).expect("a TUN in a namespace of one's own")).address("10.9.0.2/24");
        let stack =
            Stack::builder().interface(tun).control(ControlPath::At(control.clone())).start().expect("it starts");
        let mut listener = TcpListener::bind(&stack, "10.9.0.2:7").expect("bind");
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut buf = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buf) {
                    let _ = stream.write_all(&buf[..n]);
                }
            }
        });
        Self { stack, control, dir }
    }
    fn verb(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
        command.arg(args[0]).arg("--control").arg(&self.control).args(&args[1..]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
    /// A capture that has begun.
    fn capture(&self, args: &[&str]) -> Capture {
        let mut child = self.verb(&[&["tcpdump"], args].concat()).spawn().expect("it starts");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it speaks");
        assert!(line.contains("capturing"), "{line}");
        Capture { child, said }
    }
    /// A message there and back.
    fn echo(&self, bytes: &[u8]) {
        let mut stream = TcpStream::connect("10.9.0.2:7").expect("it listens");
        stream.write_all(bytes).expect("write");
        let mut back = vec![0; bytes.len()];
        stream.read_exact(&mut back).expect("read");
        assert!(back == bytes);
    }
    /// A port where nobody listens.
    fn knock(&self) {
        assert!(TcpStream::connect("10.9.0.2:9").is_err());
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

struct Capture {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Capture {
    /// Waits for the end; what it wrote, and its last words.
    fn end(mut self) -> (Output, String) {
        let start = Instant::now();
        while self.child.try_wait().expect("wait").is_none() {
            assert!(start.elapsed() < PATIENCE, "it does not end");
            sleep(Duration::from_millis(5));
        }
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("text");
        (self.child.wait_with_output().expect("output"), rest)
    }
    /// Ctrl-C.
    fn interrupt(self) -> String {
        kill_process(Pid::from_raw(self.child.id() as i32).expect("a number"), Signal::INT).expect("it runs");
        let (out, rest) = self.end();
        assert!(out.status.success(), "{rest}");
        rest
    }
}

/// One packet of a file.
#[derive(Debug)]
struct Packet {
    interface: String,
    at_ns: u64,
    len: u32,
    comment: Option<String>,
    flags: u32,
    data: Vec<u8>,
}

/// A file, read by the specification.
#[derive(Debug, Default)]
struct Read {
    packets: Vec<Packet>,
    /// Names, link types, snap lengths and filters.
    interfaces: Vec<(String, u16, u32, String)>,
    /// Interface, received, accepted, lost, delivered.
    stats: Vec<(String, [u64; 4])>,
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().expect("2"))
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("4"))
}
fn time_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) << 32 | u64::from(u32_at(b, at + 4))
}

/// Options as pairs of code and value; the list ends with code 0 or with the block.
fn options(mut b: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut list = Vec::new();
    while b.len() >= 4 && u16_at(b, 0) != 0 {
        let len = usize::from(u16_at(b, 2));
        list.push((u16_at(b, 0), b[4..4 + len].to_vec()));
        b = &b[4 + len.next_multiple_of(4)..];
    }
    list
}

fn parse(b: &[u8]) -> Read {
    let mut read = Read::default();
    let mut at = 0;
    while at < b.len() {
        let (kind, len) = (u32_at(b, at), u32_at(b, at + 4) as usize);
        assert!(len % 4 == 0 && len >= 12 && u32_at(b, at + len - 4) as usize == len, "a block at {at} of {len} bytes");
        let body = &b[at + 8..at + len - 4];
        let option = |list: &[(u16, Vec<u8>)], code| list.iter().find(|(c, _)| *c == code).map(|(_, v)| v.clone());
        let text = |v: Vec<u8>| String::from_utf8(v).expect("UTF-8");
        match kind {
            0x0a0d_0d0a => assert_eq!((at, u32_at(body, 0), u16_at(body, 4)), (0, 0x1a2b_3c4d, 1)),
            1 => {
                let list = options(&body[8..]);
                assert_eq!(option(&list, 9), Some(vec![9]), "nanoseconds");
                let filter = option(&list, 11).map_or(String::new(), |v| text(v[1..].to_vec()));
                let name = text(option(&list, 2).expect("a name"));
                read.interfaces.push((name, u16_at(body, 0), u32_at(body, 4), filter));
            }
            6 => {
                let cap_len = u32_at(body, 12) as usize;
                let list = options(&body[20 + cap_len.next_multiple_of(4)..]);
                read.packets.push(Packet {
                    interface: read.interfaces[u32_at(body, 0) as usize].0.clone(),
                    at_ns: time_at(body, 4),
                    len: u32_at(body, 16),
                    comment: option(&list, 1).map(text),
                    flags: option(&list, 2).map_or(0, |v| u32_at(&v, 0)),
                    data: body[20..20 + cap_len].to_vec(),
                });
            }
            5 => {
                let list = options(&body[12..]);
                let count = |code| u64::from_le_bytes(option(&list, code).expect("it is there").try_into().expect("8"));
                let name = read.interfaces[u32_at(body, 0) as usize].0.clone();
                read.stats.push((name, [count(4), count(6), count(7), count(8)]));
            }
            other => panic!("a block of type {other}"),
        }
        at += len;
    }
    read
}

impl Read {
    fn of(path: &Path) -> Self {
        parse(&std::fs::read(path).expect("a file"))
    }
    /// Packets of an interface that a filter takes.
    fn count(&self, interface: &str, filter: &str) -> usize {
        let filter = Filter::parse(filter).unwrap_or_else(|e| panic!("{}", e.show(filter)));
        let of = self.packets.iter().filter(|p| p.interface == interface);
        of.filter(|p| filter.matches(&Facts::of(&p.data, p.len, LinkType::Raw))).count()
    }
}

/// How many packets of a capture the real tcpdump takes.
fn tcpdump_counts(input: Vec<u8>, filter: &str) -> usize {
    let args = ["-nn", "-r", "-", "-w", "-", "--", filter];
    let mut tcpdump = Command::new("tcpdump");
    let tcpdump = tcpdump.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tcpdump = tcpdump.spawn().expect("it starts");
    let mut to = tcpdump.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || to.write_all(&input).expect("it reads"));
    let out = tcpdump.wait_with_output().expect("output");
    writer.join().expect("all was read");
    assert!(out.status.success(), "{filter}: {}", String::from_utf8_lossy(&out.stderr));
    // A classic file: 24 bytes of header, then 16 before each packet.
    let mut rest = out.stdout.get(24..).unwrap_or_default();
    let mut n = 0;
    while rest.len() >= 16 {
        rest = &rest[16 + u32_at(rest, 8) as usize..];
        n += 1;
    }
    n
}

/// All packets as a classic file, which has one interface.
fn classic(read: &Read) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let mut file = words(&[0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, 101]);
    for p in &read.packets {
        let (secs, ns) = (p.at_ns / 1_000_000_000, p.at_ns % 1_000_000_000);
        file.extend(words(&[secs as u32, ns as u32, p.data.len() as u32, p.len]));
        file.extend_from_slice(&p.data);
    }
    file
}

/// Filters on which both must agree, packet by packet.
const FILTERS: [&str; 24] = [
    "icmp",
    "tcp",
    "udp",
    "ip",
    "ip6",
    "not icmp",
    "host 10.9.0.1",
    "src host 10.9.0.2",
    "dst 10.9.0.2",
    "src net 10.9.0.0/31",
    "net 10.9",
    "net 10.9.0.0 mask 255.255.255.0 and tcp",
    "tcp port 7",
    "dst port 7 or 9",
    "portrange 1-8",
    "src portrange 7-9 and not icmp",
    "tcp[tcpflags] & (tcp-syn|tcp-rst) != 0",
    "tcp[tcpflags] == tcp-syn",
    "(tcp[tcpflags] & tcp-ack) = 0",
    "icmp[icmptype] = icmp-echo",
    "ip[2:2] > 1000",
    "less 60",
    "greater 1000",
    "icmp or tcp and src port 7",
];

/// A file that the test in the namespace and the one that started it both know.
fn shared_file(is_inside: bool, which: &str) -> PathBuf {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid());
    let pid = if is_inside { parent } else { std::process::id() as i32 };
    std::env::temp_dir().join(format!("lin-capture-{pid}-{which}.pcapng"))
}

/// Three pings, two echoes and a knock.
fn check_file(read: &Read, said: &str, when: std::ops::RangeInclusive<u64>) {
    assert!(said.starts_with(&format!("{} skbs taken", read.packets.len())) && said.contains(" 0 lost"), "{said}");
    assert!(read.interfaces.iter().all(|(_, link, snaplen, _)| (*link, *snaplen) == (101, 262_144)));
    // Three pings of 1000 bytes and their answers.
    for (interface, filter) in
        [("lin0:rx", "icmp[0] = 8 and dst 10.9.0.2"), ("lin0:tx", "icmp[0] = 0 and src 10.9.0.2")]
    {
        assert_eq!(read.count(interface, &format!("{filter} and len = 1028")), 3, "{interface}");
    }
    // Three handshakes; the last was answered by a reset, and the SYN was dropped.
    assert_eq!((read.count("lin0:rx", "tcp[13] = tcp-syn"), read.count("lin0:tx", "tcp[13] & 0x3f = 0x12")), (3, 2));
    assert_eq!(
        (read.count("lin0:tx", "tcp-rst and src port 9"), read.count("lin0:drop", "tcp-syn and dst port 9")),
        (1, 1)
    );
    let dropped = read.packets.iter().filter(|p| p.interface == "lin0:drop");
    let comments: Vec<_> = dropped.map(|p| p.comment.as_deref().expect("a reason")).collect();
    let is_knock = |c: &&str| c.starts_with("dropped: NO_SOCKET at ") && c.contains("listen.rs:");
    assert!(comments.iter().any(is_knock), "{comments:?}");
    // All bytes of the large message, in super-packets both ways.
    let payload = |interface: &str| {
        let of = read.packets.iter().filter(|p| p.interface == interface && p.data[9] == 6);
        of.map(|p| p.data[20 + usize::from(p.data[32] >> 4) * 4..].iter().filter(|b| **b == 7).count()).sum::<usize>()
    };
    assert!(payload("lin0:rx") >= 300_000 && payload("lin0:tx") >= 300_000);
    let large = read.packets.iter().filter(|p| p.comment.as_deref().is_some_and(|c| c.starts_with("super-packet of ")));
    assert!(large.clone().count() > 2 && large.clone().all(|p| p.len > 1500 && p.data.len() == p.len as usize));
    let way = |p: &Packet| ["lin0:drop", "lin0:rx", "lin0:tx"].iter().position(|i| *i == p.interface).map(|n| n as u32);
    assert!(read.packets.iter().all(|p| Some(p.flags) == way(p) && when.contains(&p.at_ns)));
    // What was counted is what is there.
    for (name, [received, accepted, lost, delivered]) in &read.stats {
        let there = read.packets.iter().filter(|p| p.interface == *name).count() as u64;
        assert_eq!((*received, *accepted, *lost, *delivered), (there, there, 0, there), "{name}");
    }
    assert_eq!(read.stats.len(), read.interfaces.len());
}

#[test]
fn what_linux_sends_is_in_the_file() {
    let name = "what_linux_sends_is_in_the_file";
    if !has("ping", name) || !has("tcpdump", name) {
        return;
    }
    in_namespace(name, || {
        let lab = Lab::new("file");
        lab.echo(b"before anybody looks");
        let file = lab.dir.join("all.pcapng");
        let began = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
        let capture = lab.capture(&["-w", file.to_str().expect("text")]);
        let one = lab.capture(&["-w", shared_file(true, "one").to_str().expect("text"), "-i", "lin0:rx"]);
        let ping =
            Command::new("ping").args(["-c", "3", "-i", "0.2", "-s", "1000", "10.9.0.2"]).output().expect("it runs");
        assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stdout));
        lab.echo(b"hello");
        lab.echo(&[7; 300_000]);
        lab.knock();
        let said = capture.interrupt();
        let ended = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
        check_file(&Read::of(&file), &said, began..=ended);
        std::fs::copy(&file, shared_file(true, "all")).expect("a copy");
        one.interrupt();
    });
    // The real tcpdump gives up root for a user whom the namespace does not have: it judges outside.
    let (file, one) = (shared_file(false, "all"), shared_file(false, "one"));
    if file.exists() {
        let (all, one) = (Read::of(&file), Read::of(&one));
        for filter in FILTERS {
            let ours: usize = all.interfaces.iter().map(|(i, ..)| all.count(i, filter)).sum();
            assert_eq!(ours, tcpdump_counts(classic(&all), filter), "{filter}");
        }
        // libpcap 1.10 reads a file of ours itself if there is one interface of bare IP in it.
        let bytes = std::fs::read(shared_file(false, "one")).expect("a file");
        assert_eq!(one.packets.len(), all.packets.iter().filter(|p| p.interface == "lin0:rx").count());
        assert_eq!(tcpdump_counts(bytes, "ip"), one.packets.len());
        ["all", "one"]
            .into_iter()
            .for_each(|which| std::fs::remove_file(shared_file(false, which)).expect("it is there"));
    }
}

#[test]
fn points_filters_and_lengths_are_the_process_s_work() {
    let name = "points_filters_and_lengths_are_the_process_s_work";
    in_namespace(name, || {
        let lab = Lab::new("live");
        let file = lab.dir.join("some.pcapng");
        let to_file = ["-w", file.to_str().expect("text"), "-i", "lin0:rx,rx-gro", "-s", "40", "tcp", "port", "7"];
        let some = lab.capture(&to_file);
        let few = lab.capture(&["-n", "-c", "2", "-i", "tx", "tcp-syn or tcp-rst"]);
        let piped = lab.capture(&["-w", "-", "-c", "1"]);
        lab.knock();
        lab.echo(&[1; 5000]);
        let (out, said) = few.end();
        let lines = String::from_utf8(out.stdout).expect("text");
        assert!(out.status.success() && said.starts_with("2 skbs taken"), "{said}");
        let lines: Vec<_> = lines.lines().collect();
        assert!(
            lines[0].contains(" lin0:tx IP 10.9.0.2:9 > 10.9.0.1:") && lines[0].contains("Flags [R.], seq 0, ack "),
            "{lines:?}"
        );
        assert!(lines.len() == 2 && lines[1].contains("10.9.0.2:7 > ") && lines[1].contains("Flags [S."), "{lines:?}");
        let (out, _) = piped.end();
        assert_eq!(parse(&out.stdout).packets.len(), 1);
        some.interrupt();
        let read = Read::of(&file);
        let names: Vec<_> = read
            .interfaces
            .iter()
            .map(|(name, .., snaplen, filter)| (name.as_str(), *snaplen, filter.as_str()))
            .collect();
        assert_eq!(names, [("lin0:rx", 40, "tcp port 7"), ("lin0:rx-gro", 40, "tcp port 7")]);
        assert!(read.packets.iter().all(|p| p.data.len() == 40 && p.len >= 40), "cut at the snap length");
        let all = read.packets.len();
        assert_eq!(read.count("lin0:rx", "port 7") + read.count("lin0:rx-gro", "port 7"), all);
        let [received, accepted, ..] = read.stats[0].1;
        assert!(accepted < received && accepted > 0, "the knock came by and did not match: {:?}", read.stats);
    });
}

#[test]
fn captures_that_die_leave_nothing_and_wrong_ones_are_refused() {
    in_namespace("captures_that_die_leave_nothing_and_wrong_ones_are_refused", || {
        let lab = Lab::new("dies");
        // More than there may be at once, one after the other.
        for _ in 0..12 {
            let mut capture = lab.capture(&["-w", "/dev/null"]);
            lab.echo(b"x");
            capture.child.kill().expect("it lives");
            capture.child.wait().expect("wait");
        }
        let fails = |args: &[&str], status: i32, word: &str| {
            let out = lab.verb(args).output().expect("it runs");
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.code() == Some(status) && said.contains(word), "{args:?}: {said}");
        };
        fails(&["tcpdump", "tcp prot 5"], 2, "\n  tcp prot 5\n      ^");
        fails(&["tcpdump", "-i", "lin0:wire"], 2, "points are rx, rx-gro, tx, drop");
        fails(&["tcpdump", "-i", "eth7"], 1, "devices are lo, lin0");
        fails(&["tcpdump", "-w", "/nonexistent/file"], 1, "/nonexistent/file");
        // A process that ends in the middle leaves whole packets.
        let file = std::env::temp_dir().join(format!("lin-cut-{}.pcapng", std::process::id()));
        let capture = lab.capture(&["-w", file.to_str().expect("text")]);
        lab.echo(b"the last words");
        let patience = Instant::now();
        while Read::of(&file).packets.len() < 8 {
            assert!(patience.elapsed() < PATIENCE, "packets come while the capture runs");
            sleep(Duration::from_millis(10));
        }
        drop(lab);
        let (out, said) = capture.end();
        assert!(out.status.code() == Some(1) && said.contains("control.sock"), "{said}");
        assert!(Read::of(&file).packets.len() >= 8);
        std::fs::remove_file(&file).expect("it is there");
    });
}

#[test]
fn drops_and_resets_are_told_with_reason_and_place() {
    in_namespace("drops_and_resets_are_told_with_reason_and_place", || {
        let lab = Lab::new("drops");
        lab.knock();
        let watch = lab.verb(&["dropwatch", "-c", "6"]).spawn().expect("it starts");
        let json = lab.verb(&["dropwatch", "-t", "2", "--json"]).spawn().expect("it starts");
        // Both have begun when places are told apart.
        let handle = lab.stack.handle();
        let began = Instant::now();
        while handle.with_shard(|shard| shard.drop_watches()).expect("it runs") == 0 {
            assert!(began.elapsed() < PATIENCE);
            sleep(Duration::from_millis(5));
        }
        sleep(Duration::from_millis(300));
        (0..3).for_each(|_| lab.knock());
        let out = watch.wait_with_output().expect("output");
        let text = String::from_utf8(out.stdout).expect("text");
        let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let sum = |kind: &str, device: &str| -> u64 {
            let rows = text.lines().skip(1).map(fields);
            let of = rows.filter(|f| f[2] == kind && f[3] == "NO_SOCKET" && f[4] == device);
            of.map(|f| f[1].parse::<u64>().expect("a number")).sum()
        };
        assert_eq!((sum("drop", "lin0"), sum("drop", "-"), sum("reset", "-")), (3, 0, 3), "{text}");
        assert!(text.contains("listen.rs:"), "{text}");
        let out = json.wait_with_output().expect("output");
        let lines = String::from_utf8(out.stdout).expect("text");
        let rows: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        let of = rows.iter().filter(|r| r["kind"] == "drop" && r["reason"] == "NO_SOCKET" && r["device"] == "lin0");
        assert_eq!(of.filter_map(|r| r["count"].as_u64()).sum::<u64>(), 3, "{lines}");
        let about = lab.stack.handle().with_shard(|shard| shard.drop_places().len()).expect("it runs");
        assert_eq!(about, 1);
    });
}

#[test]
fn the_doctor_finds_something_and_leaves_nothing() {
    let devices = || {
        let text = std::fs::read_to_string("/proc/net/dev").expect("it is there");
        text.matches("lindoctor").count()
    };
    let run = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_linerate")).arg("doctor").args(args).output().expect("it runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    };
    let text = run(&[]);
    assert!(text.starts_with("What works\n") && text.contains("\nWhat costs speed\n") && text.contains("clock source"));
    let json: Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    let checks = json["checks"].as_array().expect("a list");
    assert!(checks.len() >= 15, "{checks:?}");
    let warned: Vec<_> = checks.iter().filter(|c| c["state"] == "warn").collect();
    assert!(warned.iter().all(|c| c["advice"].as_str().is_some_and(|a| !a.is_empty())), "{warned:?}");
    assert_eq!(json["warnings"].as_u64(), Some(warned.len() as u64));
    assert_eq!(devices(), 0);
}
