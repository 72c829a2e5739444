//! The inline way: two shards over a software wire on one thread. The caller owns both stacks and turns them; between
//! turns it calls the verbs of their sockets. Nothing blocks, nothing sleeps, no thread is started.
//!
//! `cargo run -p linerate --example inline_echo`

use std::error::Error;

use linerate::inline::{BindOpts, DeviceConfig, IfIndex, Ready, RecvError, SendError, Shard, SockOpts, StackConfig};
use linerate::{Clock, nic};

/// Bytes that go there and back.
const TOTAL: usize = 4 << 20;
/// Skbs received in one turn at most.
const BUDGET: usize = 64;

/// A shard with one interface.
fn shard(nic: &mut nic::Nic, cidr: &str, seed: u64) -> Result<Shard, Box<dyn Error>> {
    let mut cfg = StackConfig::default();
    cfg.seed = seed;
    let mut shard = Shard::new(cfg);
    let eth0: IfIndex = shard.add_device(DeviceConfig::new("eth0", nic.features().mtu))?;
    let (rx, tx) = nic.take_queue(0).ok_or("the queue was taken before")?;
    shard.attach(eth0, 0, rx, tx)?;
    shard.add_address(eth0, cidr.parse()?)?;
    Ok(shard)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut a, mut b) = nic::pair(&nic::NicConfig::default(), &nic::NicConfig::default());
    let mut client = shard(&mut a, "10.0.0.1/24", 1)?;
    let mut server = shard(&mut b, "10.0.0.2/24", 2)?;
    let listener = server.tcp_listen("10.0.0.2:7".parse()?, 16, &SockOpts::default(), BindOpts::default())?;
    let sock = client.tcp_connect("10.0.0.2:7".parse()?, None, &SockOpts::default())?;

    let data: Vec<u8> = (0..TOTAL).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    let (mut written, mut back) = (0, Vec::with_capacity(TOTAL));
    let (mut echo, mut held) = (None, Vec::new());
    let (mut buf, clock, mut turns) = (vec![0; 64 << 10], Clock::fast(), 0_u64);
    while back.len() < TOTAL {
        let now = clock.now();
        client.turn(now, BUDGET);
        server.turn(now, BUDGET);
        turns += 1;
        // The server: what arrives goes back, and what does not fit waits.
        while let Some((id, ready)) = server.next_ready() {
            if id == listener && ready.contains(Ready::ACCEPT) {
                echo = Some(server.accept(listener)?);
            }
        }
        if let Some(conn) = echo {
            if held.is_empty() {
                match server.read(conn, &mut buf) {
                    Ok(n) => held.extend_from_slice(&buf[..n]),
                    Err(RecvError::WouldBlock) => {}
                    Err(e) => return Err(e.to_string().into()),
                }
            }
            match server.write(conn, &held) {
                Ok(n) => drop(held.drain(..n)),
                Err(SendError::WouldBlock) => {}
                Err(e) => return Err(e.to_string().into()),
            }
        }
        // The client: writes what fits, reads what is there.
        if client.readiness(sock).contains(Ready::CONNECTED) {
            match client.write(sock, &data[written..]) {
                Ok(n) => written += n,
                Err(SendError::WouldBlock) => {}
                Err(e) => return Err(e.to_string().into()),
            }
            match client.read(sock, &mut buf) {
                Ok(n) => back.extend_from_slice(&buf[..n]),
                Err(RecvError::WouldBlock) => {}
                Err(e) => return Err(e.to_string().into()),
            }
        }
    }
    assert!(back == data, "the echo differs");
    let info = client.info(sock).ok_or("the connection is there")?;
    println!("{TOTAL} bytes there and back in {turns} turns of two shards, {} segments sent", info.segs_out);
    Ok(())
}
