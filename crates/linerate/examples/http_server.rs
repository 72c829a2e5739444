//! An HTTP/1.1 server of a directory, in a stack of its own behind a TUN device.
//!
//! ```sh
//! unshare -Urn                    # a shell in which anybody may make devices; or be root. Then, in it:
//! cargo run --release -p linerate --example http_server -- \
//!     --tun lin0 --addr 10.9.0.2/24,fd09::2/64 --host-addr 10.9.0.1/24,fd09::1/64 --root . &
//! curl -O http://10.9.0.2/Cargo.lock
//! ```
//! GET and HEAD, keep-alive, one range (`curl -C -`). What a stranger may do to it is bounded: 256 connections, each with a
//! thread of its own so that a slow one holds nobody up; 16 KiB of request, ten seconds to send it; thirty
//! seconds in which nothing of an answer can be written. Paths can not leave the directory: every component is opened by itself, beneath the
//! one before, and symbolic links are refused. No TLS, no compression, no listings, no dates.
//!
//! A file is read once, into pages of a pool of this program, and the pages are what the stack sends: nothing is copied
//! from user memory to user memory on the way.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linerate::tun::{Tun, TunConfig};
use linerate::{Interface, PagePool, PoolConfig, ReadHalf, Stack, TcpListener, TcpStream, WriteHalf};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat};

/// Connections at once. Whoever comes later is turned away.
const MAX_CONNECTIONS: usize = 256;
/// The longest request line and header lines together, bytes.
const MAX_REQUEST: usize = 16 << 10;
/// Header lines of a request.
const MAX_HEADERS: usize = 64;
/// How long a connection may wait for the first byte of a request, and how long for the rest.
const IDLE: Duration = Duration::from_secs(15);
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How long not a byte of an answer may find room.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// Pages that a connection reads files into, 64 KiB each: more than a send buffer ever holds.
const PAGES: PoolConfig = PoolConfig { page_shift: 16, max_pages: 128, cache_pages: 64 };

fn main() -> ExitCode {
    let Err(e) = run() else { return ExitCode::SUCCESS };
    eprintln!("http_server: {e}");
    // Bad usage has a number of its own, as everywhere.
    ExitCode::from(if e.kind() == ErrorKind::InvalidInput { 2 } else { 1 })
}

fn run() -> io::Result<()> {
    let (mut tun, mut addrs, mut root, mut port) = (TunConfig::default(), Vec::new(), None, 80);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| usage(&format!("{flag} needs a value")))?;
        match flag.as_str() {
            "--tun" => tun.name = value,
            "--addr" => addrs.extend(value.split(',').map(str::to_owned)),
            "--host-addr" => {
                for cidr in value.split(',') {
                    tun = tun.host_address(cidr.parse().map_err(|e| usage(&format!("{cidr}: {e}")))?);
                }
            }
            "--root" => root = Some(value),
            "--port" => port = value.parse().map_err(|_| usage("--port needs a number"))?,
            other => return Err(usage(&format!("there is no option {other}"))),
        }
    }
    let root = root.ok_or_else(|| usage("--root is missing"))?;
    let mut interface = Interface::tun(Tun::open(&tun)?);
    for addr in &addrs {
        interface = interface.address(addr);
    }
    let stack = Stack::builder().interface(interface).start()?;
    // Port `port` of every address, of both families.
    let listener = TcpListener::bind(&stack, SocketAddr::new("::".parse().map_err(io::Error::other)?, port))?;
    println!("serving {root} on port {port} of {}", addrs.join(", "));
    serve(listener, Path::new(&root))
}

fn usage(why: &str) -> io::Error {
    let text = "--tun NAME --addr CIDR[,CIDR] --host-addr CIDR[,CIDR] --root DIR [--port N]";
    io::Error::new(ErrorKind::InvalidInput, format!("{why}\nusage: http_server {text}"))
}

/// Serves the files below `root` until the stack goes.
pub(crate) fn serve(mut listener: TcpListener, root: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: Arc<OwnedFd> = Arc::new(openat(rustix::fs::CWD, root, flags, Mode::empty())?);
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = stream?;
        if connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            // Dropped, and with it closed.
            connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (root, count) = (root.clone(), connections.clone());
        let started = thread::Builder::new().spawn(move || {
            // A peer that goes away in the middle is no news.
            let _ = connection(stream, &root);
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            // The host has no more threads: as above.
            connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Answers requests until the peer, an error or the protocol ends it.
fn connection(stream: TcpStream, root: &OwnedFd) -> io::Result<()> {
    let (mut read, mut write) = stream.split();
    write.set_write_timeout(Some(WRITE_TIME))?;
    let mut pool = PagePool::new(PAGES);
    // What was read and not yet understood; with pipelining, the next requests.
    let mut buf = Vec::new();
    loop {
        let request = match next_request(&mut read, &mut buf)? {
            Incoming::Request(request) => request,
            Incoming::End => break,
            Incoming::Bad(status) => {
                respond(&mut write, status, &[], true)?;
                break;
            }
        };
        answer(&mut write, &mut pool, root, &request)?;
        if request.close {
            break;
        }
    }
    // What the peer still sends would be answered with a reset, which may overtake our answer: let it finish first.
    write.shutdown();
    read.set_read_timeout(Some(Duration::from_secs(1)))?;
    let (begin, mut sink) = (Instant::now(), [0; 4096]);
    while begin.elapsed() < Duration::from_secs(2) && read.read(&mut sink)? > 0 {}
    Ok(())
}

/// What an answer depends on.
struct Request {
    method: Method,
    /// Components of the path, decoded; none of them is empty, `.` or `..`.
    path: Vec<Vec<u8>>,
    /// The `Range` line, if it asks for bytes.
    range: Option<String>,
    /// No further request comes, or none would be understood.
    close: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Method {
    Get,
    Head,
    Other,
}

enum Incoming {
    Request(Request),
    /// The peer is done.
    End,
    /// Not understood: what to say before closing.
    Bad(&'static str),
}

const BAD_REQUEST: &str = "400 Bad Request";

/// Reads until `buf` begins with a whole request, and takes it out.
fn next_request(read: &mut ReadHalf, buf: &mut Vec<u8>) -> io::Result<Incoming> {
    let mut deadline = Instant::now() + IDLE;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(buf) {
            Ok(httparse::Status::Complete(len)) => {
                let request = understand(&parsed);
                buf.drain(..len);
                return Ok(request.map_or_else(Incoming::Bad, Incoming::Request));
            }
            Ok(httparse::Status::Partial) if buf.len() < MAX_REQUEST => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Ok(Incoming::Bad("431 Request Header Fields Too Large"));
            }
            Err(httparse::Error::Version) => return Ok(Incoming::Bad("505 HTTP Version Not Supported")),
            Err(_) => return Ok(Incoming::Bad(BAD_REQUEST)),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Incoming::Bad("408 Request Timeout"));
        }
        read.set_read_timeout(Some(left))?;
        let mut some = [0; 4096];
        match read.read(&mut some) {
            Ok(0) => return Ok(if buf.is_empty() { Incoming::End } else { Incoming::Bad(BAD_REQUEST) }),
            Ok(n) => {
                if buf.is_empty() {
                    // The clock of a request begins with its first byte, and no byte resets it.
                    deadline = Instant::now() + REQUEST_TIME;
                }
                buf.extend_from_slice(&some[..n]);
            }
            Err(e) if e.kind() == ErrorKind::TimedOut && buf.is_empty() => return Ok(Incoming::End),
            Err(e) if e.kind() == ErrorKind::TimedOut => {}
            Err(e) => return Err(e),
        }
    }
}

/// What a request asks for, or the status that says why not.
fn understand(parsed: &httparse::Request<'_, '_>) -> Result<Request, &'static str> {
    let lines = |name: &'static str| {
        let same = move |h: &&httparse::Header<'_>| h.name.eq_ignore_ascii_case(name);
        parsed.headers.iter().filter(same).map(|h| str::from_utf8(h.value).unwrap_or_default())
    };
    let says = |name, word: &str| lines(name).flat_map(|v| v.split(',')).any(|v| v.trim().eq_ignore_ascii_case(word));
    let one_point_one = parsed.version == Some(1);
    if one_point_one && lines("host").count() != 1 {
        // RFC 9112 section 3.2.
        return Err(BAD_REQUEST);
    }
    let method = match parsed.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => Method::Other,
    };
    // Bodies are not read, so where one ends is not known, nor where the next request would begin.
    let has_body = lines("transfer-encoding").next().is_some() || lines("content-length").any(|v| v.trim() != "0");
    let keep = if one_point_one { !says("connection", "close") } else { says("connection", "keep-alive") };
    let path = components(parsed.path.unwrap_or_default()).ok_or(BAD_REQUEST)?;
    // RFC 9110 section 14.2: of no meaning beside any other method.
    let range =
        lines("range").next().filter(|_| method == Method::Get).filter(|v| v.starts_with("bytes=")).map(str::to_owned);
    Ok(Request { method, path, range, close: has_body || !keep })
}

/// The components of a request's path; `None` for one that is malformed or wants out.
fn components(target: &str) -> Option<Vec<Vec<u8>>> {
    // The form that proxies get: scheme and host are of no interest.
    let target = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    let path = target.strip_prefix('/')?.split(['?', '#']).next()?;
    let mut out = Vec::new();
    for part in path.split('/') {
        let part = percent_decode(part)?;
        match part.as_slice() {
            b"" | b"." => {}
            b".." => return None,
            // An encoded slash is no separator, and no file has one in its name; nor a zero.
            bytes if bytes.contains(&b'/') || bytes.contains(&0) => return None,
            _ => out.push(part),
        }
    }
    Some(out)
}

fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        let digit = |b: Option<u8>| char::from(b?).to_digit(16).map(|d| d as u8);
        out.push(if b == b'%' { digit(bytes.next())? << 4 | digit(bytes.next())? } else { b });
    }
    Some(out)
}

/// Opens a regular file beneath `root`; a directory stands for its `index.html`.
fn open_beneath(root: &OwnedFd, path: &[Vec<u8>]) -> io::Result<File> {
    // No component is a symbolic link, and none is `..`: the kernel never leaves the directory it has just opened.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut dir: Option<OwnedFd> = None;
    let mut rest = path.iter().map(Vec::as_slice).peekable();
    loop {
        let name = CString::new(rest.next().unwrap_or(b"index.html"))?;
        let at = dir.as_ref().unwrap_or(root).as_fd();
        // Before it is opened: opening a device or a pipe may do something.
        let kind = FileType::from_raw_mode(statat(at, &name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
        match kind {
            FileType::Directory => dir = Some(openat(at, &name, flags | OFlags::DIRECTORY, Mode::empty())?),
            FileType::RegularFile if rest.peek().is_none() => {
                let file = File::from(openat(at, &name, flags, Mode::empty())?);
                return if file.metadata()?.is_file() { Ok(file) } else { Err(ErrorKind::NotFound.into()) };
            }
            _ => return Err(ErrorKind::NotFound.into()),
        }
    }
}

fn answer(write: &mut WriteHalf, pool: &mut PagePool, root: &OwnedFd, request: &Request) -> io::Result<()> {
    let close = request.close;
    if request.method == Method::Other {
        return respond(write, "405 Method Not Allowed", &["Allow: GET, HEAD".to_owned()], close);
    }
    let file = match open_beneath(root, &request.path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => return refuse(write, request, "403 Forbidden"),
        Err(_) => return refuse(write, request, "404 Not Found"),
    };
    let size = file.metadata()?.len();
    let mut lines = vec![format!("Content-Type: {}", content_type(&request.path)), "Accept-Ranges: bytes".to_owned()];
    let (status, from, len) = match request.range.as_deref().map_or(Range::All, |r| range(r, size)) {
        Range::All => ("200 OK", 0, size),
        Range::Part { from, len } => {
            lines.push(format!("Content-Range: bytes {from}-{}/{size}", from + len - 1));
            ("206 Partial Content", from, len)
        }
        Range::Unsatisfiable => {
            let line = format!("Content-Range: bytes */{size}");
            return respond(write, "416 Range Not Satisfiable", &[line], close);
        }
    };
    lines.push(format!("Content-Length: {len}"));
    head(write, status, &lines, close)?;
    if request.method == Method::Head { Ok(()) } else { send(write, pool, file, from, len) }
}

/// What a `Range` line means for a file of `size` bytes.
#[derive(Debug, PartialEq)]
enum Range {
    All,
    Part { from: u64, len: u64 },
    Unsatisfiable,
}

/// RFC 9110 section 14.1.2. Several ranges, and what is none, mean the whole, as a server may choose.
fn range(line: &str, size: u64) -> Range {
    let Some((first, last)) = line.trim_start_matches("bytes=").split_once('-') else { return Range::All };
    let number = |s: &str| s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse::<u64>().ok()).flatten();
    let (from, end) = match (number(first), number(last)) {
        (Some(from), Some(last)) if last >= from => (from, last.saturating_add(1).min(size)),
        (Some(from), None) if last.is_empty() => (from, size),
        (None, Some(n)) if first.is_empty() => (size.saturating_sub(n), size),
        _ => return Range::All,
    };
    if from < end { Range::Part { from, len: end - from } } else { Range::Unsatisfiable }
}

fn content_type(path: &[Vec<u8>]) -> &'static str {
    match path.last().map(|name| name.rsplit(|&b| b == b'.').next().unwrap_or_default()) {
        None | Some(b"html" | b"htm") => "text/html; charset=utf-8",
        Some(b"txt" | b"md" | b"rs" | b"toml") => "text/plain; charset=utf-8",
        Some(b"json") => "application/json",
        Some(b"png") => "image/png",
        _ => "application/octet-stream",
    }
}

/// The body: pages that the file is read into, handed over as they are. They are used again once the peer has
/// acknowledged them.
fn send(write: &mut WriteHalf, pool: &mut PagePool, mut file: File, from: u64, mut left: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::Start(from))?;
    while left > 0 {
        pool.reclaim();
        let Some(mut page) = pool.alloc() else {
            // All of them are on their way; the oldest are soon acknowledged.
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let want = left.min(page.capacity() as u64) as usize;
        let mut failed = None;
        let filled = page.fill(want, |room| {
            file.read(room).unwrap_or_else(|e| {
                failed = Some(e);
                0
            })
        });
        pool.recycle_page(page);
        match (filled, failed) {
            (Some(frag), _) => {
                left -= u64::from(frag.len());
                write.write_frag(frag)?;
            }
            // The file has become shorter than was promised: all that can be said is to break off.
            (None, failed) => return Err(failed.unwrap_or_else(|| ErrorKind::UnexpectedEof.into())),
        }
    }
    Ok(())
}

fn refuse(write: &mut WriteHalf, request: &Request, status: &str) -> io::Result<()> {
    if request.method == Method::Head {
        return head(write, status, &[format!("Content-Length: {}", status.len() + 1)], request.close);
    }
    respond(write, status, &[], request.close)
}

/// An answer whose body is its status.
fn respond(write: &mut WriteHalf, status: &str, lines: &[String], close: bool) -> io::Result<()> {
    let mut all = vec![format!("Content-Length: {}", status.len() + 1), "Content-Type: text/plain".to_owned()];
    all.extend_from_slice(lines);
    head(write, status, &all, close)?;
    write.write_all(format!("{status}\n").as_bytes())
}

fn head(write: &mut WriteHalf, status: &str, lines: &[String], close: bool) -> io::Result<()> {
    let connection = if close { "close" } else { "keep-alive" };
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let text = format!("HTTP/1.1 {status}\r\nServer: linerate\r\nConnection: {connection}\r\n{lines}\r\n");
    write.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        let of = |target| {
            components(target)
                .map(|c| c.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect::<Vec<_>>().join("|"))
        };
        assert_eq!(of("/").as_deref(), Some(""));
        assert_eq!(of("/a//./b%20c?x=/../y").as_deref(), Some("a|b c"));
        assert_eq!(of("http://host:80/a/b").as_deref(), Some("a|b"));
        assert_eq!(of("http://host").as_deref(), Some(""));
        for bad in
            ["", "a", "*", "/..", "/a/../b", "/%2e%2E/x", "/a%2fb", "/%00", "/%", "/%2", "/%zz", "/%+1", "ftp://x/"]
        {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranges_are_those_of_the_rfc() {
        let part = |from, len| Range::Part { from, len };
        for (line, want) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=5-9", part(5, 5)),
            ("bytes=5-", part(5, 95)),
            ("bytes=-10", part(90, 10)),
            ("bytes=-1000", part(0, 100)),
            ("bytes=90-1000", part(90, 10)),
            ("bytes=100-", Range::Unsatisfiable),
            ("bytes=-0", Range::Unsatisfiable),
            ("bytes=99999999999999999999-", Range::All),
            ("bytes=0-18446744073709551615", part(0, 100)),
            ("bytes=9-5", Range::All),
            ("bytes=1-2,4-5", Range::All),
            ("bytes=-", Range::All),
            ("bytes=x", Range::All),
        ] {
            assert_eq!(range(line, 100), want, "{line}");
        }
    }
}
