//! Short connections: opened at a steady rate, a request, its echo, and an end.
//!
//! Half are opened by Linux and half by Linerate. The first byte of the request says who closes first, so that both sides
//! see both orders, and TIME-WAIT states on both. Clients are threads with a pace of their own; servers answer one
//! connection after the other, each with its own port, since Linux has 28,000 ports for one address and port, and each stays
//! taken for a minute.
//!
//! The time of one connection, from connect to the end of both directions, is watched as a bulk stream is.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use linerate::{Stack, StackHandle};

use super::{Shared, linerate, linux, read, sleep_until, watched};
use crate::wire::mix;

const FIRST_PORT: u16 = 7100;
/// Servers of each side; and as many clients of the other.
const SERVERS: u16 = 4;
const REQUEST_MAX_BYTES: usize = 3000;
/// How long a server waits before it looks whether it should end.
const LOOK_UP: Duration = Duration::from_millis(100);
/// No verb may wait longer: the watch has long told who stood still, and a machine may stop this process for minutes.
const GIVE_UP: Duration = Duration::from_secs(600);

type Threads<'s> = Vec<ScopedJoinHandle<'s, io::Result<()>>>;

/// A connection of either side.
trait Stream: Read + Write {
    fn end_writing(&mut self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn end_writing(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for linerate::TcpStream {
    fn end_writing(&mut self) -> io::Result<()> {
        self.shutdown();
        Ok(())
    }
}

/// Starts servers and clients of both sides.
pub(crate) fn start<'s, 'e>(
    s: &'s Scope<'s, 'e>,
    shared: &'e Shared,
    stack: &Stack,
    conns_per_second: u64,
) -> io::Result<Threads<'s>> {
    let pace = Duration::from_secs(1) * u32::from(2 * SERVERS) / conns_per_second as u32;
    let mut threads = Vec::new();
    for n in 0..SERVERS {
        let port = FIRST_PORT + n;
        let ours = linerate::TcpListener::bind(stack, linerate(port))?;
        let theirs = TcpListener::bind(linux(port))?;
        let handle = stack.handle();
        threads.push(s.spawn(move || serve_linerate(shared, ours)));
        threads.push(s.spawn(move || serve_linux(shared, theirs)));
        let seed = u64::from(n);
        threads.push(s.spawn(move || clients(shared, 0, pace, seed, || open_linux(linerate(port)))));
        threads.push(s.spawn(move || clients(shared, 1, pace, seed, || open_linerate(shared, &handle, linux(port)))));
    }
    Ok(threads)
}

fn open_linux(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, GIVE_UP)?;
    stream.set_read_timeout(Some(GIVE_UP))?;
    Ok(stream)
}

fn open_linerate(shared: &Shared, stack: &StackHandle, to: SocketAddr) -> io::Result<linerate::TcpStream> {
    shared.opened.fetch_add(1, Ordering::Relaxed);
    let mut stream = linerate::TcpStream::connect_timeout(stack, to, GIVE_UP)?;
    stream.set_read_timeout(Some(GIVE_UP))?;
    Ok(stream)
}

fn clients<S: Stream>(
    shared: &Shared,
    who: usize,
    pace: Duration,
    seed: u64,
    open: impl Fn() -> io::Result<S>,
) -> io::Result<()> {
    let name = ["Linux", "Linerate"][who];
    let mut next = Instant::now();
    for number in 0.. {
        if shared.over() {
            break;
        }
        let began = Instant::now();
        let alive = watched(shared, format!("short connection {number} of {name} client {seed}"));
        let told = |e: io::Error| io::Error::new(e.kind(), format!("connection {number} of {name} client {seed}: {e}"));
        exchange(open().map_err(told)?, mix(seed << 32 ^ number)).map_err(told)?;
        drop(alive);
        shared.longest_us.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        shared.done[who].fetch_add(1, Ordering::Relaxed);
        next = (next + pace).max(Instant::now());
        sleep_until(next);
    }
    Ok(())
}

/// A client's whole conversation.
fn exchange(mut stream: impl Stream, random: u64) -> io::Result<()> {
    let client_closes = random & 1 == 1;
    let len = 3 + (random >> 1) as usize % (REQUEST_MAX_BYTES - 3);
    let mut request: Vec<u8> = (0..len).map(|i| mix(random ^ i as u64) as u8).collect();
    request[0] = u8::from(client_closes);
    request[1..3].copy_from_slice(&(len as u16).to_be_bytes());
    stream.write_all(&request)?;
    let mut echo = vec![0; len];
    stream.read_exact(&mut echo)?;
    if client_closes {
        stream.end_writing()?;
    }
    let rest = read(&mut stream, &mut [0])?;
    if echo != request || rest != 0 {
        return Err(io::Error::other("the echo differs"));
    }
    Ok(())
}

/// A server's: the mirror of it.
fn answer(stream: &mut impl Stream) -> io::Result<()> {
    let mut head = [0; 3];
    stream.read_exact(&mut head)?;
    let len = usize::from(u16::from_be_bytes([head[1], head[2]]));
    let mut request = head.to_vec();
    request.resize(len, 0);
    stream.read_exact(&mut request[3..])?;
    stream.write_all(&request)?;
    if head[0] == 0 {
        stream.end_writing()?;
    }
    match read(stream, &mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("more than the request")),
    }
}

fn serve_linux(shared: &Shared, listener: TcpListener) -> io::Result<()> {
    rustix::net::sockopt::set_socket_timeout(&listener, rustix::net::sockopt::Timeout::Recv, Some(LOOK_UP))?;
    let told = |e: io::Error| io::Error::new(e.kind(), format!("a server of Linux: {e}"));
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_read_timeout(Some(GIVE_UP))?;
                answer(&mut stream).map_err(told)?;
            }
            Err(e) if is_pause(&e) && !shared.over() => {}
            Err(e) if is_pause(&e) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}

fn serve_linerate(shared: &Shared, mut listener: linerate::TcpListener) -> io::Result<()> {
    listener.set_accept_timeout(Some(LOOK_UP));
    let told = |e: io::Error| io::Error::new(e.kind(), format!("a server of Linerate: {e}"));
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                stream.set_read_timeout(Some(GIVE_UP))?;
                answer(&mut stream).map_err(told)?;
            }
            Err(e) if is_pause(&e) && !shared.over() => {}
            Err(e) if is_pause(&e) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}

fn is_pause(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
