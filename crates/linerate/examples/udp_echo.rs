//! UDP the remote way: an echo server on one stack, a client on another, single datagrams and trains.
//!
//! `cargo run -p linerate --example udp_echo`

use std::{io, thread};

use linerate::{Interface, Stack, UdpSocket, nic};

/// Datagrams of a train, and their size.
const TRAIN: usize = 40;
const SIZE: u16 = 1200;

fn main() -> io::Result<()> {
    let (left, right) = nic::pair(&nic::NicConfig::default(), &nic::NicConfig::default());
    let client = Stack::builder().interface(Interface::nic("eth0", left).address("10.0.0.1/24")).start()?;
    let server = Stack::builder().interface(Interface::nic("eth0", right).address("10.0.0.2/24")).start()?;

    let mut echo = UdpSocket::bind(&server, "10.0.0.2:7")?;
    // Trains are read whole and sent back whole: one super-packet each way, whatever it holds.
    echo.set_gro(true);
    let echo = thread::spawn(move || -> io::Result<usize> {
        let (mut buf, mut echoed) = (vec![0; 65_536], 0);
        loop {
            let d = echo.recv_datagram(&mut buf)?;
            match d.gso_size {
                Some(size) => echo.send_train(&buf[..d.len], size, Some(d.from))?,
                None => echo.send_to(&buf[..d.len], d.from)?,
            };
            echoed += 1;
            if d.len == 0 {
                return Ok(echoed);
            }
        }
    });

    let mut socket = UdpSocket::bind(&client, "10.0.0.1:0")?;
    socket.connect("10.0.0.2:7")?;
    println!("client: {} to {}", socket.local_addr()?, socket.peer_addr()?);
    let mut buf = vec![0; 65_536];
    socket.send(b"one datagram")?;
    let n = socket.recv(&mut buf)?;
    assert_eq!(&buf[..n], b"one datagram");

    let data: Vec<u8> = (0..TRAIN * usize::from(SIZE)).map(|i| (i ^ (i >> 8)) as u8).collect();
    socket.send_train(&data, SIZE, None)?;
    let mut back = Vec::new();
    while back.len() < data.len() {
        let n = socket.recv(&mut buf)?;
        assert_eq!(n, usize::from(SIZE), "datagrams keep their edges");
        back.extend_from_slice(&buf[..n]);
    }
    assert!(back == data, "the echo differs");
    socket.send(b"")?;
    let echoed = echo.join().map_err(|_| io::Error::other("the echo panicked"))??;
    println!("client: {} datagrams there and back, echoed in {echoed} pieces", TRAIN + 2);
    for (name, stack) in [("client", &client), ("server", &server)] {
        let q = stack.stats()?.interfaces.last().map(|i| i.qstats).unwrap_or_default();
        println!("{name}: {} skbs sent for {} wire packets", q.tx_skbs, q.tx_wire_pkts);
    }
    Ok(())
}
