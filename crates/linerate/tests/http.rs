//! Files to and from real programs: `curl` fetches from our server, our client from `nginx`, over a TUN, without loss and
//! through loss and reordering of wire frames in both directions. What comes is compared by its SHA-256.
//!
//! Server and client are the examples themselves. Each test runs in a namespace of its own (`common/netns.rs`). The files are small here;
//! with `LINERATE_LONG=1` in the environment they are 1 GiB each, and every transfer prints its time.

mod common;
#[path = "../examples/http_get.rs"]
#[allow(dead_code, reason = "its command line is not used here")]
mod http_get;
#[path = "../examples/http_server.rs"]
#[allow(dead_code, reason = "its command line is not used here")]
mod http_server;
#[path = "common/netns.rs"]
mod netns;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream as LinuxStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::fill;
use linerate::inline::DropReason;
use linerate::nic::FaultPlan;
use linerate::tun::{Tun, TunConfig};
use linerate::{Interface, Stack, Stats, TcpListener};
use netns::in_namespace_with;
use sha2::{Digest, Sha256};

const HOST: [&str; 2] = ["10.9.0.1", "[fd09::1]"];
const OURS: [&str; 2] = ["10.9.0.2", "[fd09::2]"];

/// Bytes of the file of a test.
fn size(short: u64) -> u64 {
    if std::env::var_os("LINERATE_LONG").is_some() { 1 << 30 } else { short }
}

/// A directory that goes with the test.
struct Dir(PathBuf);
impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }
    fn file(&self, name: &str, data: &[u8]) {
        std::fs::write(self.0.join(name), data).expect("a file");
    }
    /// A file of `len` bytes of which no two blocks are equal, and its SHA-256.
    fn big_file(&self, name: &str, len: u64) -> String {
        let mut file = File::create(self.0.join(name)).expect("a file");
        let (mut block, mut sha) = (vec![0; 1 << 20], Sha256::new());
        fill(len, 0, &mut block);
        let mut at = 0;
        while at < len {
            block[..8].copy_from_slice(&at.to_le_bytes());
            let n = (len - at).min(block.len() as u64) as usize;
            file.write_all(&block[..n]).expect("room on the disk");
            sha.update(&block[..n]);
            at += n as u64;
        }
        hex(sha)
    }
}
impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn hex(sha: Sha256) -> String {
    sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

fn stack(set: impl FnOnce(Interface) -> Interface) -> Stack {
    let mut config = TunConfig::default();
    for cidr in ["10.9.0.1/24", "fd09::1/64"] {
        config = config.host_address(cidr.parse().expect("an address"));
    }
    let tun = Interface::tun(Tun::open(&config).expect("a TUN in a namespace of one's own"));
    let tun = set(tun.address("10.9.0.2/24").address("fd09::2/64"));
    Stack::builder().interface(tun).start().expect("the stack starts")
}

/// One frame in a hundred is lost and one in a hundred late, each way.
fn lossy(interface: Interface) -> Interface {
    let plan = FaultPlan { loss: 0.01, reorder: 0.01, reorder_delay: Duration::from_millis(1), ..FaultPlan::default() };
    interface.faults(plan.clone(), plan, 20)
}

fn serve(stack: &Stack, root: &Path) {
    let listener = TcpListener::bind(stack, "[::]:80").expect("bind");
    let root = root.to_owned();
    thread::spawn(move || http_server::serve(listener, &root));
}

#[track_caller]
fn check_stats(stats: &Stats) {
    use DropReason as R;
    let ours =
        [R::NotSpecified, R::DevHdr, R::SkbGsoSeg, R::NoMem, R::PktTooSmall, R::PktTooBig, R::IpInHdr, R::TcpCsum];
    let drops: Vec<_> = stats.mibs.drops.iter().filter(|(r, n)| *n != 0 && ours.contains(r)).collect();
    assert!(drops.is_empty(), "{drops:?}");
}

fn curl(args: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["-sS", "--path-as-is", "--max-time", "1200", "--noproxy", "*"]).args(args);
    command
}

/// What curl prints.
#[track_caller]
fn curl_text(args: &[&str]) -> String {
    let out = curl(args).output().expect("curl");
    assert!(out.status.success(), "curl {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The SHA-256 of what curl fetches, and its bytes.
#[track_caller]
fn curl_sha(url: &str) -> (u64, String) {
    let mut child = curl(&[url, "--fail"]).stdout(Stdio::piped()).spawn().expect("curl");
    let mut from = child.stdout.take().expect("a pipe");
    let (mut sha, mut bytes, mut buf) = (Sha256::new(), 0, vec![0; 256 << 10]);
    loop {
        let n = from.read(&mut buf).expect("read");
        if n == 0 {
            break;
        }
        sha.update(&buf[..n]);
        bytes += n as u64;
    }
    assert!(child.wait().expect("curl").success(), "{url} after {bytes} bytes");
    (bytes, hex(sha))
}

/// Seen with `--nocapture`.
fn report(what: &str, bytes: u64, took: Duration) {
    let gbit = bytes as f64 * 8e-9 / took.as_secs_f64();
    println!("{what}: {bytes} bytes in {:.1} s, {gbit:.2} Gbit/s", took.as_secs_f64());
}

/// Every status, header and trick of which the server says something, as curl sees it.
#[test]
fn curl_and_the_server_understand_each_other() {
    in_namespace_with(&["curl"], "curl_and_the_server_understand_each_other", || {
        let dir = Dir::new("http-words");
        dir.file("hello.txt", b"hello, world\n");
        dir.file("a b.txt", b"blank");
        dir.file("empty", b"");
        std::fs::create_dir(dir.0.join("sub")).expect("a directory");
        dir.file("sub/index.html", b"<p>sub</p>");
        std::os::unix::fs::symlink("/etc/passwd", dir.0.join("leak")).expect("a link");
        std::os::unix::fs::symlink("/etc", dir.0.join("etc")).expect("a link");
        std::os::unix::fs::symlink("hello.txt", dir.0.join("inside")).expect("a link");
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.0.join("pipe"), rustix::fs::Mode::RWXU).expect("a pipe");
        let stack = stack(|i| i);
        serve(&stack, &dir.0);
        for at in OURS {
            let url = |path: &str| format!("http://{at}{path}");
            let get = |path: &str| curl_text(&["--fail", &url(path)]);
            assert_eq!(get("/hello.txt"), "hello, world\n");
            assert_eq!(get("/a%20b.txt?query"), "blank");
            assert_eq!(
                (get("/empty"), get("/sub/"), get("/./sub/index.html")),
                (String::new(), "<p>sub</p>".into(), "<p>sub</p>".into())
            );
            let status = |args: &[&str]| curl_text(&[&["-o", "/dev/null", "-w", "%{http_code}"], args].concat());
            let of = |path: &str| status(&[&url(path)]);
            for gone in ["/none", "/hello.txt/x", "/", "/leak", "/etc/passwd", "/inside", "/pipe", "/sub/none"] {
                assert_eq!(of(gone), "404", "{gone}");
            }
            for bad in
                ["/../etc/passwd", "/sub/../../etc/passwd", "/%2e%2e/etc/passwd", "/sub%2findex.html", "/%00", "/%zz"]
            {
                assert_eq!(of(bad), "400", "{bad}");
            }
            for method in ["DELETE", "OPTIONS", "BREW"] {
                assert_eq!(status(&["-X", method, &url("/hello.txt")]), "405", "{method}");
            }
            // A body that nobody reads does not cost the answer.
            let body = "x".repeat(500_000);
            assert_eq!(status(&["-H", "Expect:", "--data-binary", &body[..100_000], &url("/hello.txt")]), "405");
            assert_eq!(status(&["-H", &format!("X-Long: {}", &body[..20_000]), &url("/hello.txt")]), "431");
            let head = curl_text(&["-I", &url("/hello.txt")]).to_lowercase();
            assert!(head.starts_with("http/1.1 200 ok\r\n") && head.contains("\r\ncontent-length: 13\r\n"), "{head}");
            assert!(curl_text(&["-I", &url("/none")]).starts_with("HTTP/1.1 404 "));
            let part = |range: &str| curl_text(&["-r", range, "-w", " %{http_code}", &url("/hello.txt")]);
            assert_eq!(
                (part("7-"), part("0-4"), part("-6")),
                ("world\n 206".into(), "hello 206".into(), "world\n 206".into())
            );
            assert!(part("13-").ends_with(" 416"));
            let two = curl_text(&["-w", "%{num_connects} ", &url("/hello.txt"), &url("/none"), &url("/empty")]);
            assert_eq!(two, "hello, world\n1 404 Not Found\n0 0 ", "one connection for all three");
            assert_eq!(status(&["-0", &url("/hello.txt")]), "200");
        }
        raw_requests();
        check_stats(&stack.stats().expect("the stack runs"));
    });
}

/// What no decent client says.
fn raw_requests() {
    for (said, answer) in [
        ("GET /hello.txt HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "),
        ("GET /hello.txt HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "HTTP/1.1 400 "),
        ("GET hello.txt HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 400 "),
        ("GET /hello.txt HTTP/2.0\r\nHost: a\r\n\r\n", "HTTP/1.1 505 "),
        ("\x16\x03\x01\x02\r\n\r\n", "HTTP/1.1 400 "),
        ("GET http://x/hello.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 "),
        // Two at once.
        ("HEAD /empty HTTP/1.1\r\nHost: x\r\n\r\nGET /none HTTP/1.0\r\n\r\n", "HTTP/1.1 200 "),
    ] {
        let mut linux = LinuxStream::connect((OURS[0], 80)).expect("Linux connects");
        linux.set_read_timeout(Some(common::STALL)).expect("a time limit");
        linux.write_all(said.as_bytes()).expect("write");
        let mut got = String::new();
        linux.read_to_string(&mut got).expect("the server closes");
        assert!(got.starts_with(answer), "{said:?}: {got}");
        assert_eq!(got.matches("HTTP/1.1 ").count(), 1 + usize::from(said.contains("/none")), "{got}");
    }
}

/// Connections that send half a request, or take nothing of their answers, hold nobody else up.
#[test]
fn slow_clients_hold_nobody_up() {
    in_namespace_with(&["curl"], "slow_clients_hold_nobody_up", || {
        let dir = Dir::new("http-slow");
        let sha = dir.big_file("big", 16 << 20);
        let stack = stack(|i| i);
        serve(&stack, &dir.0);
        let slow: Vec<_> = (0..100)
            .map(|n| {
                let mut linux = LinuxStream::connect((OURS[0], 80)).expect("Linux connects");
                let said = if n % 2 == 0 { "GET /big HTTP/1.1\r\nHost: x\r\n\r\n" } else { "GET /big HTTP/1.1\r\nHo" };
                linux.write_all(said.as_bytes()).expect("write");
                linux
            })
            .collect();
        for _ in 0..3 {
            assert_eq!(curl_sha(&format!("http://{}/big", OURS[0])), (16 << 20, sha.clone()));
        }
        // Who took nothing until now gets the whole, and whole.
        let mut patient = &slow[0];
        patient.write_all(b"GET /none HTTP/1.0\r\n\r\n").expect("write");
        let mut all = Vec::new();
        patient.read_to_end(&mut all).expect("read");
        let at = all.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
        assert_eq!(hex(Sha256::new_with_prefix(&all[at..at + (16 << 20)])), sha);
        assert!(all[at + (16 << 20)..].starts_with(b"HTTP/1.1 404 "));
    });
}

/// `curl` fetches one file over each family.
fn curl_fetches(what: &str, len: u64, set: impl FnOnce(Interface) -> Interface) -> Stats {
    let dir = Dir::new(&what.replace(' ', "-"));
    let sha = dir.big_file("big", len);
    let stack = stack(set);
    serve(&stack, &dir.0);
    for at in OURS {
        let begin = Instant::now();
        assert_eq!(curl_sha(&format!("http://{at}/big")), (len, sha.clone()), "{what}");
        report(&format!("curl from our server, {what}, {at}"), len, begin.elapsed());
    }
    stack.stats().expect("the stack runs")
}

#[test]
fn curl_fetches_a_file() {
    in_namespace_with(&["curl"], "curl_fetches_a_file", || check_stats(&curl_fetches("clean", size(64 << 20), |i| i)));
}

#[test]
fn curl_fetches_a_file_through_loss() {
    in_namespace_with(&["curl"], "curl_fetches_a_file_through_loss", || {
        let stats = curl_fetches("1 % loss and reordering", size(16 << 20), lossy);
        check_stats(&stats);
        assert!(stats.mibs.drops.get(DropReason::WireLoss) > 20);
    });
}

/// nginx in the foreground, with nothing of the host's but its binary.
struct Nginx(Child);
impl Nginx {
    fn start(dir: &Dir) -> Self {
        let root = dir.0.display();
        let temps: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {root}/temp-{name};\n"))
            .collect();
        let config = format!(
            "user root root; daemon off; master_process off; worker_processes 1; pid {root}/nginx.pid; error_log stderr crit;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; sendfile on; {temps}\n\
               server {{ listen 10.9.0.1:80; listen [fd09::1]:80; root {root};\n\
                 location /chunked/ {{ alias {root}/; ssi on; ssi_types *; }}\n\
               }}\n\
             }}\n"
        );
        dir.file("nginx.conf", config.as_bytes());
        let (conf, prefix) = (format!("{root}/nginx.conf"), format!("{root}/"));
        let child = Command::new("nginx").args(["-c", &conf, "-p", &prefix]).spawn().expect("nginx");
        let begin = Instant::now();
        while LinuxStream::connect("10.9.0.1:80").is_err() {
            assert!(begin.elapsed() < common::STALL, "nginx does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        Self(child)
    }
}
impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Our client fetches one file over each family, with a length and in chunks.
fn we_fetch(what: &str, len: u64, set: impl FnOnce(Interface) -> Interface) -> Stats {
    let dir = Dir::new(&format!("nginx-{}", what.replace(' ', "-")));
    let sha = dir.big_file("big", len);
    let stack = stack(set);
    let _nginx = Nginx::start(&dir);
    for (at, path, chunked) in [(HOST[0], "/big", false), (HOST[1], "/big", false), (HOST[0], "/chunked/big", true)] {
        let got = http_get::fetch(&stack, &format!("http://{at}{path}"), &mut io::sink()).expect("an answer");
        assert_eq!((got.status, got.bytes, &got.sha256, got.chunked), (200, len, &sha, chunked), "{what}, {at}{path}");
        report(&format!("our client from nginx, {what}, {at}{path}"), len, got.took);
    }
    let none = http_get::fetch(&stack, &format!("http://{}/none", HOST[1]), &mut io::sink()).expect("an answer");
    assert_eq!(none.status, 404);
    stack.stats().expect("the stack runs")
}

#[test]
fn our_client_fetches_from_nginx() {
    in_namespace_with(&["nginx"], "our_client_fetches_from_nginx", || {
        check_stats(&we_fetch("clean", size(64 << 20), |i| i));
    });
}

#[test]
fn our_client_fetches_from_nginx_through_loss() {
    in_namespace_with(&["nginx"], "our_client_fetches_from_nginx_through_loss", || {
        let stats = we_fetch("1 % loss and reordering", size(16 << 20), lossy);
        check_stats(&stats);
        assert!(stats.mibs.drops.get(DropReason::WireLoss) > 20);
    });
}
