//! Bulk data: two connections, four paced streams, every byte compared.
//!
//! A stream is a function of its number and the position, so that a byte that is lost, doubled or misplaced is found where
//! it happens. A writer sends a piece, sleeps until the next is due, and skips what it is behind with: pacing bounds the CPU
//! that a soak takes, it does not catch up after a stop.
//! At the end a writer closes its direction; its reader reads to the end and knows from the writer how much there had to be.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use linerate::Stack;

use super::{Shared, linerate, linux, read, sleep_until, watched};
use crate::wire::mix;

const PORT: u16 = 7000;
const STREAMS: u64 = 4;
const PIECE_BYTES: usize = 64 << 10;

type Threads<'s> = Vec<ScopedJoinHandle<'s, io::Result<()>>>;

/// Opens the connections and starts their threads.
pub(crate) fn start<'s, 'e>(
    s: &'s Scope<'s, 'e>,
    shared: &'e Shared,
    stack: &Stack,
    mbit: u64,
) -> io::Result<Threads<'s>> {
    let pace = Duration::from_nanos(PIECE_BYTES as u64 * 8 * 1000 * STREAMS / mbit);
    let mut threads = Vec::new();
    // Linux opens one, Linerate the other.
    let mut listener = linerate::TcpListener::bind(stack, linerate(PORT))?;
    let theirs = TcpStream::connect(linerate(PORT))?;
    let (ours, _) = listener.accept()?;
    shared.accepted.fetch_add(1, Ordering::Relaxed);
    threads.extend(both_ways(s, shared, pace, [0, 1], theirs, ours)?);
    let listener = TcpListener::bind(linux(PORT))?;
    shared.opened.fetch_add(1, Ordering::Relaxed);
    let ours = linerate::TcpStream::connect(stack, linux(PORT))?;
    let (theirs, _) = listener.accept()?;
    threads.extend(both_ways(s, shared, pace, [2, 3], theirs, ours)?);
    Ok(threads)
}

fn both_ways<'s, 'e>(
    s: &'s Scope<'s, 'e>,
    shared: &'e Shared,
    pace: Duration,
    streams: [u64; 2],
    linux: TcpStream,
    linerate: linerate::TcpStream,
) -> io::Result<Threads<'s>> {
    let (mut ours, mut write) = linerate.split();
    let (mut linux_read, mut linux_write) = (linux.try_clone()?, linux);
    let totals = [0, 1].map(|_| Arc::new(AtomicU64::new(u64::MAX)));
    let [to_us, from_us] = streams;
    let [us, them] = totals;
    let (us2, them2) = (us.clone(), them.clone());
    Ok(vec![
        s.spawn(move || {
            us.store(send(shared, to_us, pace, &mut linux_write)?, Ordering::Release);
            linux_write.shutdown(Shutdown::Write)
        }),
        s.spawn(move || {
            them.store(send(shared, from_us, pace, &mut write)?, Ordering::Release);
            write.shutdown();
            Ok(())
        }),
        s.spawn(move || receive(shared, to_us, &mut ours, &us2)),
        s.spawn(move || receive(shared, from_us, &mut linux_read, &them2)),
    ])
}

/// Eight bytes of a stream.
fn word(stream: u64, at: u64) -> [u8; 8] {
    mix((stream << 56) ^ at).to_le_bytes()
}

fn send(shared: &Shared, stream: u64, pace: Duration, to: &mut impl Write) -> io::Result<u64> {
    let (mut piece, mut at, mut next) = (vec![0; PIECE_BYTES], 0, Instant::now());
    while !shared.over() {
        for (n, chunk) in (at / 8..).zip(piece.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word(stream, n));
        }
        to.write_all(&piece)?;
        at += PIECE_BYTES as u64;
        next = (next + pace).max(Instant::now());
        sleep_until(next);
    }
    Ok(at)
}

fn receive(shared: &Shared, stream: u64, from: &mut impl Read, total: &AtomicU64) -> io::Result<()> {
    let alive = watched(shared, format!("bulk stream {stream}"));
    let (mut buf, mut at) = (vec![0; PIECE_BYTES], 0_u64);
    loop {
        let n = read(from, &mut buf)?;
        if n == 0 {
            break;
        }
        check(stream, at, &buf[..n])?;
        at += n as u64;
        shared.bulk_bytes.fetch_add(n as u64, Ordering::Relaxed);
        alive.moved();
    }
    drop(alive);
    let end = io::Error::other(format!("stream {stream} ended after {at} bytes"));
    // The writer says how much it was before it closes its direction; through the network that is later than here.
    if total.load(Ordering::Acquire) == at { Ok(()) } else { Err(end) }
}

fn check(stream: u64, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let skip = (at % 8) as usize;
        let want = word(stream, at / 8);
        let n = bytes.len().min(8 - skip);
        if bytes[..n] != want[skip..skip + n] {
            return Err(io::Error::other(format!("stream {stream} differs near byte {at}")));
        }
        (bytes, at) = (&bytes[n..], at + n as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_checked_at_any_position() {
        let all: Vec<u8> = (0..100).flat_map(|n| word(3, n)).collect();
        for (from, to) in [(0, 800), (1, 2), (7, 9), (5, 800), (8, 16)] {
            check(3, from as u64, &all[from..to]).expect("as it was made");
        }
        assert!(check(3, 1, &all[..8]).is_err() && check(2, 0, &all[..1]).is_err());
        let mut wrong = all.clone();
        wrong[777] ^= 1;
        assert!(check(3, 0, &wrong).is_err());
    }
}
