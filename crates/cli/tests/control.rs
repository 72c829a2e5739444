//! The verbs that look into a running Linerate: `ss`, `nstat`, `link`, `ethtool`, beside iproute2's own.
//!
//! A stock iperf3 sends over a TUN to `linerate iperf3 -s`. The flow has two ends: ours, which `linerate ss` shows, and the
//! kernel's, which iproute2's `ss` shows; the two must tell the same of it, in the same words, in the same order. A host
//! without iperf3, iproute2, TUN or user namespaces skips this by name, unless `LINERATE_REQUIRE=all`.

#[path = "../../linerate/tests/common/netns.rs"]
mod netns;

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netns::in_namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of this test for control sockets, gone at its end.
struct Runtime(PathBuf);

impl Runtime {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("lin-run-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
        command.args(args).env("XDG_RUNTIME_DIR", &self.0).stdin(Stdio::null());
        command
    }
    fn spawn(&self, args: &[&str]) -> Guard {
        Guard::spawn(self.command(args).stdout(Stdio::null()).stderr(Stdio::null()))
    }
    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("it runs")
    }
    /// What a verb prints.
    #[track_caller]
    fn says(&self, args: &[&str]) -> String {
        let out = self.output(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    }
    /// Why a verb fails, in one line.
    #[track_caller]
    fn fails(&self, args: &[&str]) -> String {
        let out = self.output(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert!(out.stdout.is_empty() && said.lines().count() == 1 && said.starts_with("linerate: "), "{said}");
        said
    }
    /// The files of control sockets.
    fn files(&self) -> Vec<String> {
        let Ok(files) = std::fs::read_dir(self.0.join("linerate")) else { return Vec::new() };
        files.flatten().map(|f| f.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(10));
    }
}

/// A child that does not outlive its test, however that ends.
struct Guard(Child);

impl Guard {
    fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().expect("it starts"))
    }
    /// Ctrl-C, and its end.
    fn interrupt(mut self) {
        kill_process(Pid::from_raw(self.0.id() as i32).expect("a child has a number"), Signal::INT).expect("it runs");
        wait_until("it ends", || self.0.try_wait().expect("wait").is_some());
    }
}

impl Drop for Guard {
    /// The end without a last word.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `-i` says of one socket: words with a colon, and words that are followed by a rate.
fn words(below: &str) -> Vec<(String, String)> {
    let mut words = below.split_whitespace().peekable();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let (key, value) = word.split_once(':').unwrap_or((word, ""));
        let rate = words.peek().filter(|next| value.is_empty() && next.ends_with("bps")).map(|next| (*next).to_owned());
        words.next_if(|_| rate.is_some());
        found.push((key.to_owned(), rate.unwrap_or_else(|| value.to_owned())));
    }
    found
}

/// The row and the words below it of the socket whose row holds `text` and that received or sent the most.
fn busiest(listing: &str, text: &str) -> Option<(String, Vec<(String, String)>)> {
    let mut lines = listing.lines().peekable();
    let mut found = Vec::new();
    while let Some(row) = lines.next() {
        let below = lines.next_if(|line| line.starts_with("\t ")).unwrap_or_default();
        if row.starts_with("ESTAB") && row.contains(text) {
            found.push((row.to_owned(), words(below)));
        }
    }
    let bytes = |words: &[(String, String)], key| number(words, key).unwrap_or(0.0) as u64;
    found.into_iter().max_by_key(|(_, words)| bytes(words, "bytes_received").max(bytes(words, "bytes_acked")))
}

fn number(words: &[(String, String)], key: &str) -> Option<f64> {
    let value = &words.iter().find(|(k, _)| k == key)?.1;
    value.trim_end_matches("bps").split(['/', ',']).next()?.parse().ok()
}

fn ends_of(row: &str) -> (&str, &str) {
    let mut cells = row.split_whitespace().skip(3);
    (cells.next().expect("a local end"), cells.next().expect("a peer"))
}

fn bare(end: &str) -> String {
    end.replace("[::ffff:", "").replace(']', "")
}

#[test]
fn a_flow_is_told_of_as_the_kernel_tells_of_it() {
    in_namespace("a_flow_is_told_of_as_the_kernel_tells_of_it", || {
        for (program, flag) in [("iperf3", "--version"), ("ss", "-V")] {
            if let Err(error) = Command::new(program).arg(flag).output() {
                let required = std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all");
                assert!(!required, "a_flow_is_told_of_as_the_kernel_tells_of_it needs {program}: {error}");
                println!("skipped: a_flow_is_told_of_as_the_kernel_tells_of_it needs {program}: {error}");
                return;
            }
        }
        let run = Runtime::new("flow");
        let server = run.spawn(&[
            "iperf3",
            "-s",
            "--tun",
            "lin0",
            "--addr",
            "10.9.0.2/24,fd09::2/64",
            "--host-addr",
            "10.9.0.1/24,fd09::1/64",
        ]);
        wait_until("it listens", || run.output(&["ss", "-ltnH"]).stdout.windows(5).any(|w| w == b":5201"));
        let listening = run.says(&["ss", "-ltn"]);
        let titles = "State  Recv-Q Send-Q Local Address:Port Peer Address:Port Process\nLISTEN ";
        assert!(listening.starts_with(titles) && listening.contains(" *:5201 "), "{listening}");
        let client = Guard::spawn(
            Command::new("iperf3").args(["-c", "10.9.0.2", "-t", "60", "-b", "200M"]).stdout(Stdio::null()),
        );
        wait_until("bytes flow", || {
            let listing = run.says(&["ss", "-tie"]);
            busiest(&listing, ":5201").is_some_and(|(_, w)| number(&w, "bytes_received") > Some(1e7))
        });
        the_same_of_both_ends(&run);
        counters_grow(&run);
        devices_count(&run);
        drop(client);
        asleep_while_nobody_asks(server.0.id());
        server.interrupt();
        assert!(run.files().is_empty(), "{:?}", run.files());
    });
}

/// Our end, and the kernel's.
fn the_same_of_both_ends(run: &Runtime) {
    let ours = run.says(&["ss", "-tieo", "sport = :5201"]);
    let theirs = Command::new("ss").args(["-tieno", "dport = :5201"]).output().expect("ss runs");
    let theirs = String::from_utf8(theirs.stdout).expect("text");
    let (our_row, our_words) = busiest(&ours, ":5201").unwrap_or_else(|| panic!("{ours}"));
    let (their_row, their_words) = busiest(&theirs, ":5201").unwrap_or_else(|| panic!("{theirs}"));
    let ((local, peer), (their_local, their_peer)) = (ends_of(&our_row), ends_of(&their_row));
    assert_eq!((bare(local), bare(peer)), (bare(their_peer), bare(their_local)));
    // The words that both have, in one order.
    let both = |a: &[(String, String)], b: &[(String, String)]| -> Vec<String> {
        a.iter().map(|(k, _)| k.clone()).filter(|k| b.iter().any(|(other, _)| other == k)).collect()
    };
    let shared = both(&our_words, &their_words);
    assert_eq!(shared, both(&their_words, &our_words), "{our_row}\n{their_row}");
    for word in ["ts", "sack", "wscale", "rto", "rtt", "mss", "pmtu", "rcvmss", "advmss", "cwnd", "segs_in", "snd_wnd"]
    {
        assert!(shared.iter().any(|k| k == word), "{word} is missing: {our_words:?} {their_words:?}");
    }
    let (our, their) = (|key| number(&our_words, key), |key| number(&their_words, key));
    assert!(our_words.iter().any(|(k, _)| k == "cubic"), "{our_words:?}");
    assert_eq!(our("mss"), their("mss"));
    assert_eq!(our("pmtu"), their("pmtu"));
    // A moment later the kernel has sent more.
    assert!(
        our("bytes_received") <= their("bytes_sent") && our("segs_in") <= their("segs_out"),
        "{our_words:?} {their_words:?}"
    );
    assert!(our("data_segs_in") > Some(1000.0) && our("rcv_space") > Some(0.0) && our("rto") >= Some(200.0));
    let wscale = |words: &[(String, String)]| words.iter().find(|(k, _)| k == "wscale").map(|(_, v)| v.clone());
    let swapped = wscale(&their_words).and_then(|v| v.split_once(',').map(|(a, b)| format!("{b},{a}")));
    assert_eq!(wscale(&our_words), swapped);
}

/// The control socket's thread is not woken, whatever the others do.
fn asleep_while_nobody_asks(pid: u32) {
    let switches = || -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
        let read = |task: &std::fs::DirEntry, file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let control = tasks.filter(|task| read(task, "comm").trim() == "control");
        let count =
            |status: String| status.lines().filter(|line| line.contains("ctxt_switches")).map(str::to_owned).collect();
        control.map(|task| count(read(&task, "status"))).next().unwrap_or_default()
    };
    // It may still be closing what the last client left.
    sleep(Duration::from_millis(100));
    let before = switches();
    assert_eq!(before.len(), 2, "{before:?}");
    sleep(Duration::from_millis(300));
    assert_eq!(switches(), before);
}

fn counters_grow(run: &Runtime) {
    let counters = |text: &str| -> Vec<(String, u64)> {
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("#linerate"));
        let row = |line: &str| {
            let mut cells = line.split_whitespace();
            let (name, n) = (cells.next().expect("a name"), cells.next().expect("a number"));
            assert_eq!((cells.next(), cells.next()), (Some("0.0"), None), "{line}");
            (name.to_owned(), n.parse().unwrap_or_else(|e| panic!("{line}: {e}")))
        };
        lines.map(row).collect()
    };
    let first = counters(&run.says(&["nstat", "-az"]));
    let of = |list: &[(String, u64)], name: &str| list.iter().find(|(n, _)| n == name).map(|(_, n)| *n);
    for name in ["IpInReceives", "TcpInSegs", "TcpOutSegs", "TcpPassiveOpens", "TcpExtTCPOrigDataSent"] {
        assert!(of(&first, name) > Some(0), "{name}: {first:?}");
    }
    assert_eq!(of(&first, "TcpExtTCPTimeouts"), Some(0));
    sleep(Duration::from_millis(50));
    let second = counters(&run.says(&["nstat", "-a", "Tcp*Segs"]));
    assert!(second.iter().all(|(name, n)| name.starts_with("Tcp") && name.ends_with("Segs") && *n > 0), "{second:?}");
    assert!(of(&second, "TcpInSegs") > of(&first, "TcpInSegs"));
    let json: Value = serde_json::from_str(&run.says(&["nstat", "-j", "-i", "0.2"])).expect("JSON");
    let added = json["linerate"]["TcpInSegs"].as_u64().expect("a number");
    assert!(added > 0 && Some(added) < of(&second, "TcpInSegs"), "{json}");
}

fn devices_count(run: &Runtime) {
    let link = run.says(&["link", "-s", "lin0"]);
    for part in ["lin0: <POINTOPOINT,NOARP,UP,LOWER_UP> mtu 1500 ", "    inet 10.9.0.2/24\n", "    inet6 fd09::2/64\n"]
    {
        assert!(link.contains(part), "{part}: {link}");
    }
    let stats: Value = serde_json::from_str(&run.says(&["ethtool", "-S", "lin0", "--json"])).expect("JSON");
    let n = |name: &str| stats["lin0"][name].as_u64().expect("a number");
    assert!(n("rx_bytes") > 10_000_000 && n("rx_wire_pkts") > n("rx_skbs") && n("rx_skbs") > 0, "{stats}");
    assert!(run.says(&["ethtool", "-k", "lin0"]).contains("\ntx-tcp-segmentation: on\n"));
    assert!(run.fails(&["link", "eth7"]).contains("lin0"));
}

#[test]
fn one_must_be_running_and_several_must_be_told_apart() {
    let run = Runtime::new("several");
    for verb in ["ss", "nstat", "link"] {
        assert!(run.fails(&[verb]).contains("--control"), "{verb}");
    }
    assert!(run.fails(&["ss", "--pid", "1"]).contains("process 1 "));
    assert!(run.fails(&["ss", "--control", "/no/such.sock"]).contains("/no/such.sock"));
    // Two flows that can be asked, at paths of their own and in the directory that is searched.
    std::fs::create_dir(run.0.join("linerate")).expect("a directory");
    Command::new("chmod").args(["700"]).arg(run.0.join("linerate")).status().expect("chmod");
    let path = |name: &str| run.0.join("linerate").join(name).to_string_lossy().into_owned();
    let flow = |path: &str| run.spawn(&["speed", "-t", "60", "--no-kernel", "--wait", "block", "--control", path]);
    let (first, second) = (path("4000001.sock"), path("4000002.sock"));
    let one = flow(&first);
    wait_until("it listens", || run.output(&["ss"]).status.success());
    let listing = run.says(&["ss", "-tn"]);
    assert_eq!(listing.matches("ESTAB").count(), 2, "both ends: {listing}");
    let other = flow(&second);
    wait_until("both listen", || !run.output(&["ss"]).status.success());
    let said = run.fails(&["ss"]);
    for part in ["4000001", "4000002", "speed -t 60", "--pid"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let mut sockets = Vec::new();
    wait_until("bytes flow", || {
        let json: Value = serde_json::from_str(&run.says(&["ss", "--pid", "4000002", "--json"])).expect("JSON");
        sockets = json["sockets"].as_array().expect("a list").clone();
        sockets.iter().any(|s| s["state"] == "ESTAB" && s["tcp_info"]["bytes_received"].as_u64() > Some(0))
    });
    let shards: Vec<_> = sockets.iter().filter_map(|s| s["shard"].as_u64()).collect();
    assert!(shards.contains(&0) && shards.contains(&1));
    one.interrupt();
    assert_eq!(run.files(), ["4000002.sock"]);
    // A process that was killed leaves its file; the next one with that path takes it, and nobody is misled by it.
    drop(other);
    assert_eq!(run.files(), ["4000002.sock"]);
    assert!(run.fails(&["ss"]).contains("no Linerate"));
    let again = flow(&second);
    wait_until("it listens", || run.output(&["ss"]).status.success());
    again.interrupt();
    assert!(run.files().is_empty());
}

#[test]
fn misuse_is_one_line() {
    let run = Runtime::new("misuse");
    for (args, culprit) in [
        (&["ss", "--bogus"][..], "linerate ss --help"),
        (&["ss", "state", "asleep"], "time-wait"),
        (&["ss", "sport", "=", "http"], "'http'"),
        (&["ss", "-l", "-a"], "--all"),
        (&["ss", "--pid", "1", "--control", "x"], "--control"),
        (&["nstat", "-i", "0"], "0.1 and 3600"),
        (&["ethtool", "lin0"], "--statistics"),
        (&["ethtool", "-S"], "IFNAME"),
        (&["speed", "--test", "idle", "--control", "x"], "--control"),
    ] {
        let out = run.output(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.lines().count() == 1 && said.contains(culprit), "{args:?}: {said}");
    }
}
