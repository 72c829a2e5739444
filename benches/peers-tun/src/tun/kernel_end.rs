//! The kernel's end of every flow: a plain blocking reader or writer of 128 KiB with CUBIC, and the meter.
//!
//! CUBIC is set, and no other option: buffers are the kernel's own choice, as an ordinary program gets them. BBR, which
//! some hosts have as a default, paces a flow that has no wire, and a socket that began with it goes on pacing when it is
//! given CUBIC later: so it is set before the handshake, and on the listener of a socket that is accepted.
//!
//! Blocks that are read into begin at a page, and what is written begins 128 bytes before one. On some processors (AMD's
//! Zen 3) `rep movsb`, with which the kernel and glibc copy, runs at 3 GB/s instead of 50 where the destination lies 1 to
//! 31 bytes behind the source modulo the page; and so it does for memory that came from a large `malloc`. The kernel packs
//! what is written into pages from their start, and leaves out the last 31 bytes of a page or fewer where a segment ends
//! there, so the distance grows slowly from where it began: 128 keeps it out of the slow place for a run's time.
//!
//! The meter counts what was read, or what the kernel took of what was written, between the first block after the warm-up
//! and the last block. In the second case what lies in the socket's buffer at both moments is in the figure twice or not
//! at all: at most the buffer, 4 MiB of gigabytes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linerate_host::cpu_time;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketType};

use super::Dir;

/// What is read or written at once.
pub(crate) const BLOCK_BYTES: usize = 128 << 10;
const PAGE_BYTES: usize = 4096;
/// Bytes of what is written that lie before a page boundary.
const PATTERN_AHEAD: usize = 128;
/// A flow in which nothing moves for so long has stalled.
pub(crate) const STALL: Duration = Duration::from_secs(5);

/// What a flow did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metered {
    pub(crate) bits_per_second: f64,
    /// CPU time over wall-clock time of the kernel's end.
    pub(crate) cores_kernel_end: f64,
    /// The same of whoever stood against it, when it is known.
    pub(crate) cores_contender: Option<f64>,
}

/// Bytes that begin at a page, or at a fixed place in one.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros, the first at the start of a page.
    pub(crate) fn new(len: usize) -> Self {
        Self::before_page(len, 0)
    }

    /// `len` zeros, of which `ahead` lie before the first page boundary.
    fn before_page(len: usize, ahead: usize) -> Self {
        let bytes = vec![0; len + 2 * PAGE_BYTES];
        let at = bytes.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES) + PAGE_BYTES - ahead;
        Self { bytes, at, len }
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.at..self.at + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..self.at + self.len]
    }
}

/// The stream: byte `n` of it is byte `n % BLOCK_BYTES` of this.
pub(crate) fn pattern() -> Aligned {
    let mut block = Aligned::before_page(BLOCK_BYTES, PATTERN_AHEAD);
    for (i, byte) in (0_u32..).zip(block.iter_mut()) {
        *byte = (i.wrapping_mul(0x9e37_79b1) >> 24) as u8;
    }
    block
}

/// Compares the last byte of a read with what was sent there. Not all: that would be one more pass over the bytes.
pub(crate) fn verify(pattern: &[u8], got: &[u8], position: u64) -> io::Result<()> {
    let Some((last, before)) = got.split_last() else { return Ok(()) };
    let at = position + before.len() as u64;
    if pattern.get(at as usize % BLOCK_BYTES) == Some(last) {
        Ok(())
    } else {
        Err(io::Error::other(format!("byte {at} arrived wrong")))
    }
}

/// Gives a socket CUBIC before its handshake, and sees to it that nothing waits for ever.
pub(crate) fn prepare(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_congestion(&socket, "cubic")?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(STALL))?;
    Ok(sockopt::set_socket_timeout(&socket, Timeout::Send, Some(STALL))?)
}

/// A prepared socket, connected.
fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    prepare(&socket)?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

/// Connects to the contender, moves the flow and measures it.
pub(crate) fn connect_and_measure(to: SocketAddr, dir: Dir, [warm_up, time]: [Duration; 2]) -> io::Result<Metered> {
    measure(connect(to)?, dir, warm_up, time)
}

/// Reads or writes for `warm_up` and then for `time`, which is measured.
fn measure(mut stream: TcpStream, dir: Dir, warm_up: Duration, time: Duration) -> io::Result<Metered> {
    let (pattern, mut block) = (pattern(), Aligned::new(BLOCK_BYTES));
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    let mut from: Option<(Duration, u64, Duration)> = None;
    loop {
        match dir {
            Dir::From => {
                stream.write_all(&pattern)?;
                bytes += BLOCK_BYTES as u64;
            }
            Dir::To => {
                let got = stream.read(&mut block)?;
                if got == 0 {
                    return Err(io::Error::other("the contender closed the flow"));
                }
                verify(&pattern, block.get(..got).unwrap_or_default(), bytes)?;
                bytes += got as u64;
            }
        }
        let at = begin.elapsed();
        match from {
            None if at >= warm_up => from = Some((at, bytes, cpu_time())),
            Some((since, before, cpu)) if at >= since + time => {
                let secs = (at - since).as_secs_f64();
                return Ok(Metered {
                    bits_per_second: (bytes - before) as f64 * 8.0 / secs,
                    cores_kernel_end: (cpu_time() - cpu).as_secs_f64() / secs,
                    cores_contender: None,
                });
            }
            _ => {}
        }
    }
}

/// The other end of a flow of the kernel with itself: moves bytes until the meter lets go.
pub(crate) fn oppose(mut stream: TcpStream, meter: Dir) -> io::Result<()> {
    let (pattern, mut block, mut bytes) = (pattern(), Aligned::new(BLOCK_BYTES), 0_u64);
    loop {
        match meter {
            // Whatever ends it: the meter is what says whether the flow was good.
            Dir::To => {
                if stream.write_all(&pattern).is_err() {
                    return Ok(());
                }
            }
            Dir::From => match stream.read(&mut block) {
                Ok(0) | Err(_) => return Ok(()),
                Ok(got) => {
                    verify(&pattern, block.get(..got).unwrap_or_default(), bytes)?;
                    bytes += got as u64;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_an_error_wherever_it_is() {
        let pattern = pattern();
        let twice = [&pattern[..], &pattern[..]].concat();
        assert!(verify(&pattern, &twice[5..700], 5).is_ok());
        assert!(verify(&pattern, &twice[BLOCK_BYTES - 2..BLOCK_BYTES + 3], BLOCK_BYTES as u64 - 2).is_ok());
        assert!(verify(&pattern, &twice[6..701], 5).is_err());
        assert!(verify(&pattern, &[], 5).is_ok());
    }
}
