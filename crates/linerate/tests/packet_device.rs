//! Stacks whose packets the embedder carries: channels that threads pump, and descriptors, with everything else as in the
//! other tests of remote sockets. Streams are compared byte by byte at both ends.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{CLIENT, SERVER, Watchdog, fill, read_stream, write_stream};
use linerate::inline::{DeviceConfig, DropReason, Instant, Shard, StackConfig, udp};
use linerate::nic::FaultPlan;
use linerate::packet_device::{ChannelConfig, PacketFd, PacketReceiver, PacketSender, channel};
use linerate::tun::{Offloads, VnetHdr};
use linerate::{Error, Interface, Parker, Stack, TcpListener, TcpStream, UdpSocket, Wait};
use linerate_host::rtnl::{LinkChange, Rtnl};
use netns::in_namespace;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

fn stack(interface: Interface, name: &str, addr: &str, wait: Wait) -> Stack {
    let interface = interface.address(&format!("{addr}/24"));
    Stack::builder().interface(interface).thread_name(name).wait(wait).start().expect("the stack starts")
}

/// How a pump waits and carries.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Pump {
    /// Blocks, and copies packets one by one.
    Blocking,
    /// Polls as a task, and hands packets on by reference.
    Task,
    /// Sleeps on a descriptor, in batches.
    Descriptor,
}

/// Carries everything from one stack to the other until either is gone.
fn pump(how: Pump, from: PacketReceiver, to: PacketSender, wait: Wait) -> JoinHandle<u64> {
    thread::spawn(move || match how {
        Pump::Blocking => pump_blocking(from, to, wait),
        Pump::Task => pump_task(from, to, &Parker::with_futex()),
        Pump::Descriptor => pump_task(from, to, &Parker::with_eventfd().expect("an eventfd")),
    })
}

fn pump_blocking(mut from: PacketReceiver, mut to: PacketSender, wait: Wait) -> u64 {
    from.set_wait(wait);
    to.set_wait(wait);
    let mut wire_pkts = 0;
    while let Ok(packet) = from.pull() {
        assert_eq!(packet.wire_pkts(), 1);
        if to.push(&packet.to_vec()).is_err() {
            break;
        }
        wire_pkts += 1;
    }
    wire_pkts
}

fn pump_task(mut from: PacketReceiver, mut to: PacketSender, parker: &Parker) -> u64 {
    let waker = parker.unparker().to_waker();
    let mut cx = Context::from_waker(&waker);
    let (mut held, mut wire_pkts) = (Vec::new(), 0);
    loop {
        if held.is_empty() {
            match from.poll_pull_batch(&mut cx, 64, |packet| held.push(packet)) {
                Poll::Ready(Ok(_)) => held.reverse(),
                Poll::Ready(Err(_)) => return wire_pkts,
                Poll::Pending => {
                    sleep(parker);
                    continue;
                }
            }
        }
        match to.poll_room(&mut cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return wire_pkts,
            Poll::Pending => {
                sleep(parker);
                continue;
            }
        }
        while to.room() > 0
            && let Some(packet) = held.pop()
        {
            wire_pkts += u64::from(packet.wire_pkts());
            to.stage_packet(packet).map_err(|(_, e)| e).expect("there was room");
        }
        to.flush();
    }
}

/// As an event loop does that polls descriptors of its own beside the parker's.
fn sleep(parker: &Parker) {
    let Some(fd) = parker.fd() else {
        let _ = parker.wait(Wait::Block, None);
        return;
    };
    if parker.prepare_sleep() {
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, None);
        parker.finish_sleep();
    }
}

/// `len` bytes each way at once, between two stacks.
fn exchange(client: &Stack, server: &Stack, len: u64, dog: &Watchdog) {
    let mut listener = TcpListener::bind(server, (SERVER, 0)).expect("bind");
    let a = TcpStream::connect(client, listener.local_addr()).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    let ((mut ar, mut aw), (mut br, mut bw)) = (a.split(), b.split());
    let tick = dog.ticker();
    thread::scope(|s| {
        s.spawn(|| {
            write_stream(1, len, &mut aw);
            aw.shutdown();
        });
        s.spawn(|| {
            write_stream(2, len, &mut bw);
            bw.shutdown();
        });
        s.spawn(|| read_stream(1, len, &mut br, &tick));
        read_stream(2, len, &mut ar, &tick);
    });
}

/// No packet died of what it was or of what the device did with it. (What was believed lost comes twice, by right.)
#[track_caller]
fn no_drops(stacks: [&Stack; 2], what: &str) {
    use DropReason as R;
    let ours = [
        [R::NotSpecified, R::DevHdr, R::SkbGsoSeg, R::NoMem, R::FullRing, R::PktTooSmall, R::PktTooBig],
        [R::UnhandledProto, R::IpInHdr, R::IpCsum, R::TcpCsum, R::UdpCsum, R::Shutdown, R::TcpHdr],
    ];
    for stack in stacks {
        let drops = stack.stats().expect("the stack runs").mibs.drops;
        let drops: Vec<_> = drops.iter().filter(|(r, n)| *n != 0 && ours.as_flattened().contains(r)).collect();
        assert!(drops.is_empty(), "{what}: {drops:?}");
    }
}

/// Every way to wait on both sides, with rings that are full all the time and rings that never are.
#[test]
fn streams_over_channels() {
    for (how, wait, offloads, ring, ethernet) in [
        (Pump::Blocking, Wait::Block, Offloads::NONE, 4, false),
        (Pump::Blocking, Wait::Adaptive, Offloads::NONE, 1024, true),
        (Pump::Task, Wait::Block, Offloads::ALL, 4, false),
        (Pump::Task, Wait::Adaptive, Offloads::CSUM, 1024, false),
        (Pump::Task, Wait::Adaptive, Offloads::ALL, 1024, true),
        (Pump::Descriptor, Wait::Block, Offloads::ALL, 1024, false),
        (Pump::Descriptor, Wait::Adaptive, Offloads::NONE, 4, false),
    ] {
        let what = format!("{how:?}, {wait:?}, {offloads:?}, {ring} packets, Ethernet {ethernet}");
        let config = ChannelConfig::new(1500).offloads(offloads).rings(ring, ring).tx_bytes(200_000);
        let config = if ethernet { config.ethernet() } else { config };
        let ((left, to_left, from_left), (right, to_right, from_right)) = (channel(&config), channel(&config));
        let client = stack(Interface::channel("vpn0", left), "client", CLIENT, wait);
        let server = stack(Interface::channel("vpn0", right), "server", SERVER, wait);
        let pumps = [pump(how, from_left, to_right, wait), pump(how, from_right, to_left, wait)];
        let dog = Watchdog::new(&what, &[&client, &server]);
        exchange(&client, &server, 3_000_000, &dog);
        no_drops([&client, &server], &what);
        let q = client.stats().expect("the stack runs").interfaces.last().expect("vpn0").qstats;
        assert_eq!(q.tx_hw_gso_skbs > 0, offloads.tso4, "{what}: {q:?}");
        assert!(q.rx_wire_pkts > 2000 && q.tx_bytes > 3_000_000, "{what}: {q:?}");
        assert!(ring > 4 || q.tx_stop > 0, "{what}: never full: {q:?}");
        drop((client, server));
        let wire_pkts: u64 = pumps.map(|p| p.join().expect("the pump ends with its stacks")).iter().sum();
        assert!(wire_pkts >= q.tx_wire_pkts, "{what}");
    }
}

/// A datagram from port 9 of the client to the server's.
fn datagram(data: &[u8]) -> Vec<u8> {
    let (src, dst) = (CLIENT.parse().expect("an address"), SERVER.parse().expect("an address"));
    let ip = linerate_wire::IpRepr::new(src, dst, linerate_wire::ip::proto::UDP, 8 + data.len() as u32);
    let mut packet = vec![0; ip.header_len() + 8];
    ip.emit(&mut packet);
    packet[20..26].copy_from_slice(&[0, 9, 0, 9, 0, 8 + data.len() as u8]);
    packet.extend(data);
    packet
}

/// Datagrams are not sent again, and nothing here waits for time: a lost wake-up is a stall, and stays one.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u32 = 5_000;
    const FLOOD: u32 = 50_000;
    for wait in [Wait::Block, Wait::Adaptive] {
        let (device, mut to_stack, mut from_stack) = channel(&ChannelConfig::new(1500).rings(2, 2));
        let stack = stack(Interface::channel("vpn0", device), "server", SERVER, wait);
        let dog = Watchdog::new(&format!("wake-ups, {wait:?}"), &[&stack]);
        let tick = dog.ticker();
        to_stack.set_wait(wait);
        from_stack.set_wait(wait);
        let mut socket = UdpSocket::bind(&stack, (SERVER, 9)).expect("bind");
        // One at a time: every hand-over finds its other side asleep, or nearly.
        thread::scope(|s| {
            s.spawn(|| {
                let mut buf = [0; 9];
                for _ in 0..ROUNDS {
                    let (n, from) = socket.recv_from(&mut buf).expect("a datagram");
                    socket.send_to(&buf[..n], from).expect("send");
                }
            });
            for n in 0..ROUNDS {
                to_stack.push(&datagram(&n.to_be_bytes())).expect("push");
                assert_eq!(from_stack.pull().expect("an echo").to_vec()[28..], n.to_be_bytes());
                tick.tick();
            }
        });
        // Both rings full all the time.
        thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..FLOOD {
                    to_stack.push(&datagram(b"in")).expect("push");
                    tick.tick();
                }
            });
            s.spawn(|| {
                for n in 0..FLOOD {
                    socket.send_to(&n.to_be_bytes(), (CLIENT, 9)).expect("send");
                }
            });
            for n in 0..FLOOD {
                assert_eq!(from_stack.pull().expect("a datagram").to_vec()[28..], n.to_be_bytes());
                tick.tick();
            }
        });
        let received = || stack.stats().expect("the stack runs").interfaces.last().expect("vpn0").qstats.rx_skbs;
        while received() < u64::from(ROUNDS + FLOOD) {
            thread::yield_now();
        }
    }
}

/// Sockets that carry one packet per message, between two stacks, or from a stack to a program that speaks the header.
#[test]
fn streams_over_descriptors() {
    let all = |fd: OwnedFd| PacketFd::new(fd, 1500).vnet_hdr(VnetHdr::V1, Offloads::ALL);
    let plain = |fd: OwnedFd| PacketFd::new(fd, 1500);
    for (kind, wait, open) in [
        (SocketType::SEQPACKET, Wait::Block, all as fn(OwnedFd) -> PacketFd),
        (SocketType::DGRAM, Wait::Adaptive, all),
        (SocketType::SEQPACKET, Wait::Adaptive, plain),
        (SocketType::DGRAM, Wait::Block, plain),
    ] {
        let (a, b) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("socketpair");
        let what = format!("{kind:?}, {wait:?}, {:?}", open(a.try_clone().expect("a descriptor")));
        let client = stack(Interface::fd("vpn0", open(a)).expect("packets"), "client", CLIENT, wait);
        let server = stack(Interface::fd("vpn0", open(b)).expect("packets"), "server", SERVER, wait);
        let dog = Watchdog::new(&what, &[&client, &server]);
        exchange(&client, &server, 3_000_000, &dog);
        no_drops([&client, &server], &what);
        // An end that goes leaves the other with nothing to do.
        drop(server);
        let gone = TcpStream::connect_timeout(
            &client,
            (SERVER.parse::<std::net::IpAddr>().expect("an address"), 9).into(),
            Duration::from_millis(50),
        );
        assert!(gone.is_err());
        let cpu = || client.handle().with_shard(|_| linerate_host::cpu_time()).expect("the stack runs");
        let before = cpu();
        thread::sleep(Duration::from_millis(200));
        let used = cpu() - before;
        assert!(used < Duration::from_millis(50), "{what}: {used:?} of CPU with nobody there");
    }
    let (a, _b) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let refused = Interface::fd("vpn0", PacketFd::new(a, 1500)).expect_err("a stream");
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput, "{refused}");
}

/// A device of two queues: flows leave over either, and are understood over both.
#[test]
fn several_descriptors_are_the_queues_of_one_device() {
    let pair =
        || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("socketpair");
    let ((a0, b0), (a1, b1)) = (pair(), pair());
    let of = |first, second| Interface::fd("vpn0", PacketFd::new(first, 1500).queue(second)).expect("packets");
    let client = stack(of(a0, a1), "client", CLIENT, Wait::Adaptive);
    let server = stack(of(b0, b1), "server", SERVER, Wait::Adaptive);
    let dog = Watchdog::new("two queues", &[&client, &server]);
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| exchange(&client, &server, 500_000, &dog));
        }
    });
    no_drops([&client, &server], "two queues");
}

/// A shard of one's own, on the thread that also carries its packets: no thread, no waker, no time but ours.
#[test]
fn a_shard_without_a_thread_over_a_channel() {
    let (device, mut to_shard, mut from_shard) = channel(&ChannelConfig::new(1500));
    let mut shard = Shard::new(StackConfig::default());
    let vpn0 = shard.add_device(DeviceConfig::new("vpn0", device.mtu_bytes())).expect("a device");
    let rings = Arc::new(AtomicU64::new(0));
    let bell = rings.clone();
    let (rx, tx) = device.into_queues(Arc::new(move || _ = bell.fetch_add(1, Ordering::Relaxed)));
    shard.attach(vpn0, 0, rx, tx).expect("a queue");
    shard.add_address(vpn0, format!("{SERVER}/24").parse().expect("an address")).expect("an address");
    let at = SocketAddr::new(SERVER.parse().expect("an address"), 9);
    let socket = shard.udp_bind(at, udp::BindOpts::default()).expect("a free port");
    let mut now = Instant::ZERO;
    for n in 0..100_u32 {
        assert!(shard.prepare_sleep());
        assert_eq!(to_shard.try_push_batch(&[datagram(&n.to_be_bytes()), datagram(b"")]), Ok(2));
        assert_eq!(rings.swap(0, Ordering::Relaxed), 1, "one wake-up for both");
        now += Duration::from_micros(10);
        shard.turn(now, 64);
        let mut buf = [0; 9];
        let got = shard.recv_from(socket, &mut buf, udp::RecvFlags::default()).expect("a datagram");
        assert_eq!(buf[..got.len], n.to_be_bytes());
        assert_eq!(shard.recv_from(socket, &mut buf, udp::RecvFlags::default()).expect("another").len, 0);
        shard.send_to(socket, &buf[..4], Some(got.from), udp::SendOpts::default()).expect("room");
        assert!(from_shard.try_pull().is_err(), "nothing leaves but in a turn");
        shard.turn(now, 64);
        assert_eq!(from_shard.try_pull().expect("sent").to_vec()[28..], n.to_be_bytes());
    }
}

/// Opens a TUN as a VPN service would, configures the kernel's end, and gives the descriptor away.
#[allow(unsafe_code)]
fn foreign_tun(name: &str, vnet_hdr: bool) -> OwnedFd {
    unsafe extern "C" {
        fn ioctl(fd: i32, request: u64, ...) -> i32;
    }
    const TUNSETIFF: u64 = 0x4004_54ca;
    const TUNSETOFFLOAD: u64 = 0x4004_54d0;
    const TUNSETVNETHDRSZ: u64 = 0x4004_54d8;
    // IFF_TUN, IFF_NO_PI, IFF_VNET_HDR.
    let flags: u16 = 0x1001 | if vnet_hdr { 0x4000 } else { 0 };
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&flags.to_ne_bytes());
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").expect("a TUN driver");
    let fd = file.as_raw_fd();
    // SAFETY: the kernel reads and writes one `struct ifreq`, which is no longer than the array.
    assert_eq!(unsafe { ioctl(fd, TUNSETIFF, request.as_mut_ptr()) }, 0, "{}", std::io::Error::last_os_error());
    if vnet_hdr {
        let len: i32 = 12;
        // SAFETY: it reads one int.
        assert_eq!(unsafe { ioctl(fd, TUNSETVNETHDRSZ, &raw const len) }, 0);
        // Checksums, TSO over both families with ECN, USO over both.
        // SAFETY: the argument is a number.
        assert_eq!(unsafe { ioctl(fd, TUNSETOFFLOAD, 0x6f_u64) }, 0);
    }
    let mut rtnl = Rtnl::open().expect("netlink");
    let ifindex = rtnl.link(name).expect("it is there").ifindex;
    rtnl.add_address(ifindex, "10.0.0.1/24".parse().expect("an address")).expect("root of the namespace");
    rtnl.set_link(ifindex, LinkChange { up: Some(true), ..LinkChange::default() }).expect("root of the namespace");
    file.into()
}

/// Linux on the other side of a descriptor that somebody else opened, with the virtio header and without.
#[test]
fn a_tun_of_somebody_else() {
    in_namespace("a_tun_of_somebody_else", || {
        for vnet_hdr in [true, false] {
            let fd = PacketFd::new(foreign_tun("vpn0", vnet_hdr), 1500);
            let fd = if vnet_hdr { fd.vnet_hdr(VnetHdr::V1, Offloads::ALL) } else { fd };
            let stack = stack(Interface::fd("vpn0", fd).expect("packets"), "server", SERVER, Wait::Adaptive);
            let dog = Watchdog::new(&format!("somebody else's TUN, header {vnet_hdr}"), &[&stack]);
            let mut listener = TcpListener::bind(&stack, (SERVER, 0)).expect("bind");
            let linux = std::net::TcpStream::connect(listener.local_addr()).expect("Linux connects");
            let (mut read, mut write) = listener.accept().expect("accept").0.split();
            thread::scope(|s| {
                s.spawn(|| {
                    write_stream(1, 3_000_000, &mut &linux);
                    linux.shutdown(std::net::Shutdown::Write).expect("shutdown");
                });
                s.spawn(|| {
                    write_stream(2, 3_000_000, &mut write);
                    write.shutdown();
                });
                s.spawn(|| read_stream(1, 3_000_000, &mut read, &dog.ticker()));
                read_stream(2, 3_000_000, &mut &linux, &dog.ticker());
            });
            no_drops([&stack, &stack], "somebody else's TUN");
            let q = stack.stats().expect("the stack runs").interfaces.last().expect("vpn0").qstats;
            assert_eq!(q.tx_hw_gso_skbs > 0 && q.rx_hw_gro_skbs > 0, vnet_hdr, "{q:?}");
            // The descriptor is the stack's: the device ends with it.
            drop(stack);
            assert!(!std::path::Path::new("/proc/sys/net/ipv4/conf/vpn0").exists());
        }
    });
}

/// Nothing is lost while nobody pumps: what does not fit the ring waits behind it, and every datagram comes in its order.
#[test]
fn a_pump_that_pauses_loses_nothing() {
    let config = ChannelConfig::new(1500).rings(16, 16);
    let ((left, to_left, from_left), (right, to_right, from_right)) = (channel(&config), channel(&config));
    let client = stack(Interface::channel("vpn0", left), "client", CLIENT, Wait::Block);
    let server = stack(Interface::channel("vpn0", right), "server", SERVER, Wait::Block);
    let dog = Watchdog::new("pauses", &[&client, &server]);
    let mut to = UdpSocket::bind(&server, (SERVER, 9)).expect("bind");
    let mut from = UdpSocket::bind(&client, (CLIENT, 0)).expect("bind");
    for n in 0..300_u32 {
        from.send_to(&n.to_be_bytes(), (SERVER, 9)).expect("send");
    }
    thread::sleep(Duration::from_millis(50));
    let q = client.stats().expect("the stack runs").interfaces.last().expect("vpn0").qstats;
    assert_eq!((q.tx_skbs, q.tx_stop > 0), (16, true), "{q:?}");
    let _pumps =
        [pump(Pump::Descriptor, from_left, to_right, Wait::Block), pump(Pump::Task, from_right, to_left, Wait::Block)];
    let mut buf = [0; 9];
    for n in 0..300_u32 {
        assert_eq!(to.recv(&mut buf).expect("a datagram"), 4);
        assert_eq!(buf[..4], n.to_be_bytes());
        dog.ticker().tick();
    }
    no_drops([&client, &server], "pauses");
}

/// Faults on the frames that the caller carries, as on any device.
#[test]
fn faults_on_a_channel() {
    let plan =
        FaultPlan { loss: 0.01, reorder: 0.01, reorder_delay: Duration::from_micros(500), ..FaultPlan::default() };
    let config = ChannelConfig::new(1500).offloads(Offloads::ALL);
    let ((left, to_left, from_left), (right, to_right, from_right)) = (channel(&config), channel(&config));
    let lossy = Interface::channel("vpn0", left).faults(plan.clone(), plan, 11);
    let client = stack(lossy, "client", CLIENT, Wait::Adaptive);
    let server = stack(Interface::channel("vpn0", right), "server", SERVER, Wait::Adaptive);
    let _pumps =
        [pump(Pump::Task, from_left, to_right, Wait::Block), pump(Pump::Task, from_right, to_left, Wait::Block)];
    let dog = Watchdog::new("faults on a channel", &[&client, &server]);
    exchange(&client, &server, 2_000_000, &dog);
    assert!(client.stats().expect("the stack runs").mibs.drops.get(DropReason::WireLoss) > 10);
}

/// The accepting half of a proxy: whatever is addressed is accepted, and every stream knows where it wanted to go.
#[test]
fn every_destination_is_accepted_and_told() {
    let config = ChannelConfig::new(1500);
    let ((left, to_left, from_left), (right, to_right, from_right)) = (channel(&config), channel(&config));
    let world = |i: Interface| i.route("0.0.0.0/0").route("::/0");
    let client = world(Interface::channel("tun0", left)).address("fd00::1/64");
    let client = stack(client, "client", CLIENT, Wait::Adaptive);
    // The proxy has no address of its own.
    let proxy = world(Interface::channel("tun0", right)).any_ip(true);
    let proxy = Stack::builder().interface(proxy).thread_name("proxy").start().expect("the stack starts");
    let _pumps =
        [pump(Pump::Task, from_left, to_right, Wait::Block), pump(Pump::Task, from_right, to_left, Wait::Block)];
    let dog = Watchdog::new("every destination", &[&client, &proxy]);
    let mut listener = TcpListener::bind_every_port(&proxy).expect("bind");
    assert_eq!(listener.local_addr(), "[::]:0".parse().expect("an address"));
    let accepting = thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let to = stream.original_dst().expect("it was accepted");
            assert_eq!(stream.local_addr().expect("connected"), to);
            writeln!(stream, "{to}").expect("write");
        }
    });
    for to in ["203.0.113.7:22", "198.51.100.1:443", "203.0.113.7:65535", "[2001:db8::1]:80", "10.0.0.2:1"] {
        let mut stream = TcpStream::connect(&client, to).expect("connect");
        assert_eq!(stream.original_dst(), None, "this side opened it");
        let mut told = String::new();
        stream.read_to_string(&mut told).expect("read");
        assert_eq!(told.trim(), to);
        dog.ticker().tick();
    }
    drop(proxy);
    accepting.join().expect("the listener ends with its stack");
}

/// Pushes what is no packet, from several kinds of liars, while a stream goes on through the same channel.
#[test]
fn a_hostile_caller_hurts_nobody_else() {
    let config = ChannelConfig::new(1500).offloads(Offloads::ALL);
    let ((left, to_left, from_left), (right, mut to_right, mut from_right)) = (channel(&config), channel(&config));
    let client = stack(Interface::channel("vpn0", left), "client", CLIENT, Wait::Adaptive);
    let server = stack(Interface::channel("vpn0", right), "server", SERVER, Wait::Adaptive);
    let stop = Arc::new(AtomicBool::new(false));
    let pushed = Arc::new(AtomicU64::new(0));
    let (stopped, lies) = (stop.clone(), pushed.clone());
    let liar = thread::spawn(move || {
        let mut from_left = from_left;
        let mut sizes = common::Sizes::new(5);
        let mut garbage = vec![0; 70_000];
        fill(9, 0, &mut garbage);
        while !stopped.load(Ordering::Relaxed) {
            let n = from_left.try_pull_batch(16, |p| drop(to_right.stage_packet(p))).unwrap_or(0);
            let len = sizes.next(70_000) - 1;
            let header = linerate::packet_device::VnetHeader {
                gso_size: sizes.next(70_000) as u16,
                gso: [linerate::packet_device::Gso::TcpV4, linerate::packet_device::Gso::None][sizes.next(2) - 1],
                hdr_len: sizes.next(200) as u16,
                ..Default::default()
            };
            // Of any version, and with any type of transport.
            (garbage[0], garbage[9]) = (sizes.next(256) as u8, [6, 17, 1][sizes.next(3) - 1]);
            match to_right.stage(&garbage[..len], &header) {
                Ok(()) => _ = lies.fetch_add(1, Ordering::Relaxed),
                Err(Error::WouldBlock) => {}
                Err(e) => panic!("{e}"),
            }
            to_right.flush();
            if n == 0 {
                thread::sleep(Duration::from_micros(50));
            }
        }
    });
    let back = thread::spawn(move || {
        let mut to_left = to_left;
        while let Ok(packet) = from_right.pull() {
            if to_left.stage_packet(packet).is_err() {
                // The client asks for what is lost.
                continue;
            }
            to_left.flush();
        }
    });
    let dog = Watchdog::new("a hostile caller", &[&client, &server]);
    exchange(&client, &server, 2_000_000, &dog);
    stop.store(true, Ordering::Relaxed);
    liar.join().expect("no panic");
    let stats = server.stats().expect("the stack runs");
    let drops = &stats.mibs.drops;
    // No lie is taken for a packet: each is a drop, or the echo request that it happens to be.
    assert!(drops.total() > 0 && drops.total() <= pushed.load(Ordering::Relaxed));
    assert_eq!(drops.get(DropReason::NotSpecified), 0);
    for reason in [DropReason::UnhandledProto, DropReason::PktTooSmall] {
        assert!(drops.get(reason) > 0, "{reason:?}: {:?}", drops.iter().collect::<Vec<_>>());
    }
    drop(server);
    back.join().expect("no panic");
}
