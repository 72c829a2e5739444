//! An HTTP/1.1 client over a TUN device: fetches a URL, prints how much came how fast, and its SHA-256.
//!
//! ```sh
//! unshare -Urn                    # a shell in which anybody may make devices; or be root. Then, in it:
//! python3 -m http.server 8000 &
//! cargo run --release -p linerate --example http_get -- \
//!     --tun lin0 --addr 10.9.0.2/24 --host-addr 10.9.0.1/24 http://10.9.0.1:8000/Cargo.lock
//! sha256sum Cargo.lock
//! ```
//! `--out FILE` keeps what came. Bodies with a length, in chunks, or up to the end of the connection. Names are looked up by
//! the host. No TLS, no redirects.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use linerate::tun::{Tun, TunConfig};
use linerate::{Interface, ReadHalf, Stack, StackHandle, TcpStream};
use sha2::{Digest, Sha256};

/// The longest head of an answer, bytes, and its header lines.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 128;
/// Interim answers before the one that counts.
const MAX_INTERIM: usize = 8;
/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let Err(e) = run() else { return ExitCode::SUCCESS };
    eprintln!("http_get: {e}");
    // Bad usage has a number of its own, as everywhere.
    ExitCode::from(if e.kind() == ErrorKind::InvalidInput { 2 } else { 1 })
}

fn run() -> io::Result<()> {
    let (mut tun, mut addrs, mut url, mut out) = (TunConfig::default(), Vec::new(), None, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| usage(&format!("{arg} needs a value")));
        match arg.as_str() {
            "--tun" => tun.name = value()?,
            "--addr" => addrs.extend(value()?.split(',').map(str::to_owned)),
            "--host-addr" => {
                for cidr in value()?.split(',') {
                    tun = tun.host_address(cidr.parse().map_err(|e| usage(&format!("{cidr}: {e}")))?);
                }
            }
            "--out" => out = Some(value()?),
            _ if arg.starts_with("http://") => url = Some(arg),
            other => return Err(usage(&format!("there is no option {other}"))),
        }
    }
    let url = url.ok_or_else(|| usage("the URL is missing"))?;
    let mut interface = Interface::tun(Tun::open(&tun)?);
    for addr in &addrs {
        interface = interface.address(addr);
    }
    let stack = Stack::builder().interface(interface).start()?;
    let got = match out {
        Some(path) => fetch(&stack, &url, &mut File::create(path)?)?,
        None => fetch(&stack, &url, &mut io::sink())?,
    };
    let mbit = got.bytes as f64 * 8e-6 / got.took.as_secs_f64();
    let how = if got.chunked { " in chunks" } else { "" };
    println!("{}: {} bytes{how} in {:.3} s, {mbit:.0} Mbit/s", got.status, got.bytes, got.took.as_secs_f64());
    println!("{}  {url}", got.sha256);
    if got.status == 200 { Ok(()) } else { Err(io::Error::other(format!("the server answered {}", got.status))) }
}

fn usage(why: &str) -> io::Error {
    let text = "--tun NAME --addr CIDR[,CIDR] --host-addr CIDR[,CIDR] [--out FILE] http://HOST[:PORT]/PATH";
    io::Error::new(ErrorKind::InvalidInput, format!("{why}\nusage: http_get {text}"))
}

/// What came.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Of the answer: 200 when all is well.
    pub(crate) status: u16,
    /// Bytes of body.
    pub(crate) bytes: u64,
    /// Of the body, in hexadecimal.
    pub(crate) sha256: String,
    /// It came in chunks.
    pub(crate) chunked: bool,
    /// From the first byte of the request to the last of the answer.
    pub(crate) took: Duration,
}

/// Fetches `url` and writes its body to `out`.
pub(crate) fn fetch(stack: &impl AsRef<StackHandle>, url: &str, out: &mut impl Write) -> io::Result<Fetched> {
    let rest = url.strip_prefix("http://").ok_or_else(|| invalid("only http:// is spoken here"))?;
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let has_port = host.rsplit(']').next().is_some_and(|after| after.contains(':'));
    let addr = if has_port { host.to_owned() } else { format!("{host}:80") };
    let stream = TcpStream::connect(stack, addr)?;
    let (mut read, mut write) = stream.split();
    read.set_read_timeout(Some(PATIENCE))?;
    let begin = Instant::now();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: linerate\r\nConnection: close\r\n\r\n");
    write.write_all(request.as_bytes())?;
    let mut read = BufReader::with_capacity(256 << 10, read);
    let Head { status, body } = head(&mut read)?;
    let mut to = Hashed { out, sha: Sha256::new(), bytes: 0 };
    match body {
        Body::Length(len) => copy_exactly(&mut read, len, &mut to)?,
        Body::Chunked => chunks(&mut read, &mut to)?,
        Body::ToTheEnd => _ = io::copy(&mut read, &mut to)?,
    }
    let took = begin.elapsed();
    let sha256 = to.sha.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(Fetched { status, bytes: to.bytes, sha256, chunked: matches!(body, Body::Chunked), took })
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// How the end of a body is known.
enum Body {
    Length(u64),
    Chunked,
    ToTheEnd,
}

struct Head {
    status: u16,
    body: Body,
}

/// Reads the head of the answer; interim ones (status 100 and up) may come before it. The body stays in `read`.
fn head(read: &mut BufReader<ReadHalf>) -> io::Result<Head> {
    for _ in 0..=MAX_INTERIM {
        let head = any_head(read)?;
        if !(100..200).contains(&head.status) {
            return Ok(head);
        }
    }
    Err(invalid("the server does not come to the point"))
}

/// Reads one head, line by line.
fn any_head(read: &mut BufReader<ReadHalf>) -> io::Result<Head> {
    let mut text = Vec::new();
    loop {
        let before = text.len();
        // One line, but never more than there may be in all.
        read.take((MAX_HEAD - before) as u64).read_until(b'\n', &mut text)?;
        match &text[before..] {
            b"\r\n" | b"\n" if before > 0 => break,
            line if line.ends_with(b"\n") => {}
            _ => return Err(invalid("the answer has no end of its head")),
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut headers);
    let done = parsed.parse(&text).map_err(|e| invalid(&e.to_string()))?;
    let (true, Some(status)) = (done.is_complete(), parsed.code) else { return Err(invalid("the head is not whole")) };
    let line = |name: &str| {
        let found = parsed.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name))?;
        Some(str::from_utf8(found.value).unwrap_or_default().trim())
    };
    // RFC 9112 section 6.3: an encoding outdoes a length.
    let body = match (line("transfer-encoding"), line("content-length")) {
        _ if matches!(status, 204 | 304) => Body::Length(0),
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => Body::Chunked,
        (Some(_), _) => return Err(invalid("a transfer coding that was not asked for")),
        (None, Some(len)) => Body::Length(len.parse().map_err(|_| invalid("the length is no number"))?),
        (None, None) => Body::ToTheEnd,
    };
    Ok(Head { status, body })
}

fn copy_exactly(read: &mut impl Read, len: u64, to: &mut impl Write) -> io::Result<()> {
    let came = io::copy(&mut read.take(len), to)?;
    if came == len { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// RFC 9112 section 7.1: a size in hexadecimal and perhaps extensions, the bytes, an empty line; a size of 0 is the end, and
/// trailer lines may follow.
fn chunks(read: &mut BufReader<ReadHalf>, to: &mut impl Write) -> io::Result<()> {
    loop {
        let line = short_line(read)?;
        let Ok(httparse::Status::Complete((_, size))) = httparse::parse_chunk_size(&line) else {
            return Err(invalid("the size of a chunk is none"));
        };
        if size == 0 {
            for _ in 0..MAX_HEADERS {
                if matches!(short_line(read)?.as_slice(), b"\r\n" | b"\n") {
                    return Ok(());
                }
            }
            return Err(invalid("the trailer has no end"));
        }
        copy_exactly(read, size, to)?;
        if short_line(read)? != b"\r\n" {
            return Err(invalid("a chunk is longer than it says"));
        }
    }
}

fn short_line(read: &mut BufReader<ReadHalf>) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    read.take(4096).read_until(b'\n', &mut line)?;
    if line.ends_with(b"\n") { Ok(line) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// Counts and hashes what is written.
struct Hashed<'a, W> {
    out: &'a mut W,
    sha: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Hashed<'_, W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let n = self.out.write(data)?;
        self.sha.update(&data[..n]);
        self.bytes += n as u64;
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
