//! One flow between two stacks on threads, measured where the bytes are read.
//!
//! `cargo run --release -p linerate --example throughput [SECONDS]`
//!
//! What the figure is: payload bytes that the reader copied out, over the wall time between its first byte and its last,
//! 1500-byte MTU, super-packets uncut on the wire (as on a veth pair), pages by reference, one copy in and one out, bytes not looked at.
//! Four threads run (two stacks, writer, reader), so a machine with fewer cores measures its scheduler too. A build without
//! `--release` measures nothing worth telling. `linerate speed` does this properly, beside the kernel in the same run.

use std::io::{Read, Write};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use linerate::{Interface, Stack, TcpListener, TcpStream, nic};

fn main() -> io::Result<()> {
    let seconds: f64 = env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(2.0);
    // The NIC's engines copy and sum with the kernels chosen for this CPU.
    let cfg = nic::NicConfig { kernels: linerate::kernels(), ..nic::NicConfig::default() };
    let (left, right) = nic::pair(&cfg, &cfg);
    let client = Stack::builder().interface(Interface::nic("eth0", left).address("10.0.0.1/24")).start()?;
    let server = Stack::builder().interface(Interface::nic("eth0", right).address("10.0.0.2/24")).start()?;
    let mut listener = TcpListener::bind(&server, "10.0.0.2:5001")?;
    let reader = thread::spawn(move || -> io::Result<(u64, Duration)> {
        let (mut stream, _) = listener.accept()?;
        let mut buf = vec![0; 128 << 10];
        let mut bytes = stream.read(&mut buf)? as u64;
        let begin = Instant::now();
        let mut last = begin;
        loop {
            match stream.read(&mut buf)? {
                0 => return Ok((bytes, last - begin)),
                n => (bytes, last) = (bytes + n as u64, Instant::now()),
            }
        }
    });
    let mut stream = TcpStream::connect(&client, "10.0.0.2:5001")?;
    let (data, begin) = (vec![0x5a; 128 << 10], Instant::now());
    while begin.elapsed().as_secs_f64() < seconds {
        stream.write_all(&data)?;
    }
    let info = stream.info()?;
    stream.shutdown();
    let (bytes, time) = reader.join().map_err(|_| io::Error::other("the reader panicked"))??;
    let gbps = bytes as f64 * 8.0 / time.as_secs_f64().max(1e-9) / 1e9;
    println!("{gbps:.2} Gbit/s of payload, copied in and out: {bytes} bytes in {:.3} s", time.as_secs_f64());
    println!("smoothed RTT {} us, cwnd {} segments, {} retransmitted", info.rtt, info.snd_cwnd, info.total_retrans);
    if cfg!(debug_assertions) {
        println!("(a build without --release: this figure says nothing about the stack)");
    }
    Ok(())
}
