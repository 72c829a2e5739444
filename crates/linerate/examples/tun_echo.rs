//! A TCP echo server in a stack of its own, reachable from this machine over a TUN device.
//!
//! ```sh
//! # As root, or as anybody in a namespace of one's own; then everything else happens in that shell:
//! unshare -Urn
//! cargo run --release -p linerate --example tun_echo
//!
//! # In a second shell (for a namespace: nsenter -t PID -U -n --preserve-credentials, with the printed PID):
//! ping -c 3 10.9.0.2
//! echo hello | nc -N 10.9.0.2 7
//! echo hello | nc -N -6 fd09::2 7
//! ```
//! Options: a name for the device, `plain` for packets without the virtio header, `tap` for Ethernet frames. Ctrl-C ends it, and the device
//! with it.

use std::io;
use std::thread;

use linerate::tun::{Tun, TunConfig};
use linerate::{Interface, Stack, TcpListener, TcpStream};

fn main() -> io::Result<()> {
    let mut config = TunConfig::default();
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "plain" => config = config.plain(),
            "tap" => config = config.ethernet(),
            name => config.name = name.to_owned(),
        }
    }
    for host in ["10.9.0.1/24", "fd09::1/64"] {
        config = config.host_address(host.parse().map_err(io::Error::other)?);
    }
    let tun = Tun::open(&config)?;
    println!("{} (process {}): {:?}, {:?}", tun.name(), std::process::id(), tun.vnet_hdr(), tun.offloads());
    let tun = Interface::tun(tun).address("10.9.0.2/24").address("fd09::2/64");
    let stack = Stack::builder().interface(tun).start()?;

    let servers = ["10.9.0.2:7", "[fd09::2]:7"].map(|addr| {
        let listener = TcpListener::bind(&stack, addr);
        thread::spawn(move || -> io::Result<()> {
            println!("echo on {addr}");
            for stream in listener?.incoming() {
                let stream = stream?;
                thread::spawn(move || echo(stream));
            }
            Ok(())
        })
    });
    for server in servers {
        server.join().map_err(|_| io::Error::other("a server panicked"))??;
    }
    Ok(())
}

fn echo(stream: TcpStream) {
    let peer = stream.peer_addr();
    let (mut read, mut write) = stream.split();
    match io::copy(&mut read, &mut write) {
        Ok(n) => println!("{peer:?}: {n} bytes"),
        Err(e) => println!("{peer:?}: {e}"),
    }
    write.shutdown();
}
