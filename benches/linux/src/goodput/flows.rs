//! The two applications of a flow: one writes as much as it can, one reads until its time is over.
//!
//! Linux's sockets and Linerate's streams are the same to them: [`Read`] and [`Write`] with a time limit. Both sides write
//! pieces of 64 KiB and read into 64 KiB, on a thread of their own, blocking. The verbs' time limit only lets a thread see
//! that its time is over.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use linerate::Stack;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::Side;
use crate::space::Space;

/// How long a verb waits before its thread looks at the clock.
const LOOK_UP: Duration = Duration::from_millis(100);
/// How long a handshake may take. None is lost on the wire; the machine may be busy.
const HANDSHAKE: Duration = Duration::from_secs(5);
const PIECE_BYTES: usize = 64 << 10;

/// Where a flow's end lives.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    Linux(&'a Space),
    Linerate(&'a Stack),
}

impl Place<'_> {
    pub(crate) fn side(self) -> Side {
        match self {
            Self::Linux(_) => Side::Linux,
            Self::Linerate(_) => Side::Linerate,
        }
    }
}

/// A listening socket of either kind.
pub(crate) enum Listener {
    Linux(std::net::TcpListener),
    Linerate(Box<linerate::TcpListener>),
}

impl Listener {
    pub(crate) fn bind(place: Place<'_>, at: SocketAddr) -> io::Result<Self> {
        match place {
            Place::Linux(space) => space.run(|| std::net::TcpListener::bind(at)).map(Self::Linux),
            Place::Linerate(stack) => linerate::TcpListener::bind(stack, at).map(|l| Self::Linerate(Box::new(l))),
        }
    }

    /// Accepts one connection and reads until `secs` after that; gives the bytes read.
    pub(crate) fn serve(self, secs: Duration) -> io::Result<u64> {
        match self {
            Self::Linux(listener) => {
                sockopt::set_socket_timeout(&listener, Timeout::Recv, Some(HANDSHAKE))?;
                let (mut stream, _) = listener.accept()?;
                stream.set_read_timeout(Some(LOOK_UP))?;
                read_until(&mut stream, Instant::now() + secs)
            }
            Self::Linerate(mut listener) => {
                listener.set_accept_timeout(Some(HANDSHAKE));
                let (mut stream, _) = listener.accept()?;
                stream.set_read_timeout(Some(LOOK_UP))?;
                read_until(&mut stream, Instant::now() + secs)
            }
        }
    }
}

/// Connects and writes for `secs`.
pub(crate) fn drive(place: Place<'_>, to: SocketAddr, secs: Duration) -> io::Result<()> {
    match place {
        Place::Linux(space) => {
            let mut stream = space.run(|| connect_linux(to))?;
            stream.set_write_timeout(Some(LOOK_UP))?;
            write_until(&mut stream, Instant::now() + secs)
        }
        Place::Linerate(stack) => {
            let mut stream = linerate::TcpStream::connect_timeout(stack, to, HANDSHAKE)?;
            stream.set_write_timeout(Some(LOOK_UP))?;
            write_until(&mut stream, Instant::now() + secs)
        }
    }
}

/// A socket of the kernel with CUBIC, whatever the host's default is. (The sysctl is the host's alone; the option is free to
/// the root of a namespace.)
fn connect_linux(to: SocketAddr) -> io::Result<std::net::TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_tcp_congestion(&socket, "cubic")?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(HANDSHAKE))?;
    connect(&socket, &to)?;
    Ok(socket.into())
}

fn is_pause(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn read_until(from: &mut impl Read, end: Instant) -> io::Result<u64> {
    let (mut buf, mut bytes) = (vec![0; PIECE_BYTES], 0);
    loop {
        let got = from.read(&mut buf);
        if Instant::now() >= end {
            return Ok(bytes);
        }
        match got {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the sender ended early")),
            Ok(n) => bytes += n as u64,
            Err(e) if is_pause(&e) => {}
            Err(e) => return Err(e),
        }
    }
}

fn write_until(to: &mut impl Write, end: Instant) -> io::Result<()> {
    let piece = vec![0x5a; PIECE_BYTES];
    while Instant::now() < end {
        match to.write(&piece) {
            Ok(_) => {}
            Err(e) if is_pause(&e) => {}
            // The receiver's time is over: it was connected a little earlier.
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
