//! The remote way: two stacks, each on a thread of its own, and sockets used like those of `std::net`.
//!
//! `cargo run -p linerate --example remote_echo`

use std::io::{Read, Write};
use std::{io, thread};

use linerate::{Interface, Stack, TcpListener, TcpStream, nic};

/// Bytes that go there and back.
const TOTAL: usize = 16 << 20;

fn main() -> io::Result<()> {
    let (left, right) = nic::pair(&nic::NicConfig::default(), &nic::NicConfig::default());
    let client = Stack::builder().interface(Interface::nic("eth0", left).address("10.0.0.1/24")).start()?;
    let server = Stack::builder().interface(Interface::nic("eth0", right).address("10.0.0.2/24")).start()?;

    let mut listener = TcpListener::bind(&server, "10.0.0.2:7")?;
    let echo = thread::spawn(move || -> io::Result<u64> {
        let (stream, peer) = listener.accept()?;
        println!("server: {peer} is connected");
        let (mut read, mut write) = stream.split();
        let n = io::copy(&mut read, &mut write)?;
        write.shutdown();
        Ok(n)
    });

    let stream = TcpStream::connect(&client, "10.0.0.2:7")?;
    println!("client: connected from {}", stream.local_addr()?);
    let data: Vec<u8> = (0..TOTAL).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    let (mut read, mut write) = stream.split();
    // Both directions at once: an echo of more than the buffers hold needs a reader while it is written.
    let back = thread::scope(|s| {
        s.spawn(|| {
            let done = write.write_all(&data);
            write.shutdown();
            done
        });
        let mut back = Vec::with_capacity(TOTAL);
        read.read_to_end(&mut back).map(|_| back)
    })?;
    assert!(back == data, "the echo differs");
    let echoed = echo.join().map_err(|_| io::Error::other("the echo panicked"))??;
    println!("client: {echoed} bytes there and back, all equal");
    for (name, stack) in [("client", &client), ("server", &server)] {
        let q = stack.stats()?.interfaces.last().map(|i| i.qstats).unwrap_or_default();
        println!("{name}: {} skbs sent for {} wire packets, {} doorbells", q.tx_skbs, q.tx_wire_pkts, q.tx_kicks);
    }
    Ok(())
}
