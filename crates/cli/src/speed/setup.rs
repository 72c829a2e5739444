//! Two complete stacks over the software NIC, with the applications on them.
//!
//! The client is 10.0.0.1 (fd00::1), the server 10.0.0.2 (fd00::2); for `--test crr` the client owns 4,096 addresses
//! more. Which offload the NIC has and which the stack must do follows from the flags; nothing else differs.
//!
//! The handshakes are done here, on one thread, before the ends are handed to their threads: a run begins with
//! established flows (except `crr`, whose subject they are). Each end owns its shard, its side of the NIC and its
//! application, so that it can move to a thread as one value. Randomness is seeded by the host: runs differ in ISNs,
//! ports and hashes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use linerate_arch::Kernels;
use linerate_base::Instant;
use linerate_host::{Unparker, detect_cpu, random_seed};
use linerate_netdev::IfIndex;
use linerate_softnic::{CsumOffload, Dma as NicDma, Nic, NicConfig, NicStats, Wake, pair};
use linerate_stack::config::GroMode;
use linerate_stack::{BindOpts, DeviceConfig, Shard, SockId, SockOpts, StackConfig};
use linerate_wire::Cidr;

use super::app::{App, Pattern};
use super::args::{Csum, Dma, Gro, SpeedArgs, Test, Touch, WaitMode};
use super::crr::{CLIENT_ADDRESSES, CrrClient, CrrServer};
use super::rr::Rr;
use super::stream::{Source, Stream};

const PORT: u16 = 5201;
/// Ring of a NIC that carries one small packet at a time: 32 KiB each way stay in the second-level cache.
const RR_RING_SLOTS: usize = 256;

/// One end: a stack, its NIC, its application.
pub(crate) struct End {
    pub(crate) shard: Shard,
    pub(crate) nic: NicStats,
    pub(crate) app: Box<dyn App>,
}

/// Both ends, the client first.
pub(crate) struct Ends {
    pub(crate) client: End,
    pub(crate) server: End,
}

/// A shard's configuration for this host and these flags.
pub(crate) fn stack_config(args: &SpeedArgs) -> StackConfig {
    let mut config = StackConfig::default();
    config.kernels = Kernels::select(detect_cpu());
    config.seed = random_seed();
    config.tcp.congestion_control = if args.cc == "reno" { "reno" } else { "cubic" };
    config
}

fn nic_config(args: &SpeedArgs) -> NicConfig {
    NicConfig {
        mtu: args.mtu,
        cut: args.cut.is_on(),
        dma: if args.dma == Dma::Ref { NicDma::Ref } else { NicDma::Copy },
        tso: args.tso.is_on(),
        csum: if args.csum == Csum::Hw { CsumOffload::Hw } else { CsumOffload::Sw },
        gro_hw: matches!(args.gro, Gro::Hw | Gro::HwSw),
        kernels: Kernels::select(detect_cpu()),
        ring_slots: if args.test == Test::Rr { RR_RING_SLOTS } else { NicConfig::default().ring_slots },
        // Of two ends on one thread neither can be woken by the other; one that spins need not be.
        polled: args.threads == 1 || args.wait == WaitMode::Spin,
        ..NicConfig::default()
    }
}

/// The waker of a NIC: it costs a system call only when the far thread sleeps.
struct WakeThread(Unparker);

impl Wake for WakeThread {
    fn wake(&self) {
        self.0.unpark_if_asleep();
    }
}

/// Builds both ends and opens the flows; the handshakes run here, before any clock that counts.
pub(crate) fn build(args: &SpeedArgs, stages: bool, [wake_client, wake_server]: [Unparker; 2]) -> Result<Ends, String> {
    let (mut nic_a, mut nic_b) = pair(&nic_config(args), &nic_config(args));
    nic_a.set_waker(0, Arc::new(WakeThread(wake_client)));
    nic_b.set_waker(0, Arc::new(WakeThread(wake_server)));
    let (mut client, nic_client) = build_shard(args, stages, nic_a, true)?;
    let (mut server, nic_server) = build_shard(args, stages, nic_b, false)?;
    let to = SocketAddr::new(server_ip(args), PORT);
    let (client_app, server_app): Apps = match args.test {
        Test::Crr => crr_apps(args, &mut server, to)?,
        _ => {
            let socks = open_flows(args, &mut client, &mut server, to)?;
            match args.test {
                Test::Rr => rr_apps(args, &socks)?,
                _ => stream_apps(args, &socks)?,
            }
        }
    };
    Ok(Ends {
        client: End { shard: client, nic: nic_client, app: client_app },
        server: End { shard: server, nic: nic_server, app: server_app },
    })
}

fn client_ip(args: &SpeedArgs) -> IpAddr {
    if args.v6 { Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into() } else { Ipv4Addr::new(10, 0, 0, 1).into() }
}

fn server_ip(args: &SpeedArgs) -> IpAddr {
    if args.v6 { Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into() } else { Ipv4Addr::new(10, 0, 0, 2).into() }
}

/// Addresses of the crr clients: within the connected prefix, clear of the two ends.
fn crr_clients(args: &SpeedArgs) -> Vec<IpAddr> {
    (0..CLIENT_ADDRESSES)
        .map(|n| match args.v6 {
            true => IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, n as u16)),
            false => IpAddr::from(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 16, 0)) + n)),
        })
        .collect()
}

fn build_shard(args: &SpeedArgs, stages: bool, mut nic: Nic, client: bool) -> Result<(Shard, NicStats), String> {
    let mut shard = Shard::new(stack_config(args));
    let mut device = DeviceConfig::new("nic0", args.mtu);
    device.gro = if matches!(args.gro, Gro::Sw | Gro::HwSw) { GroMode::Software } else { GroMode::Off };
    let ifindex = shard.add_device(device).map_err(|e| e.to_string())?;
    let stats = nic.stats();
    let (rx, tx) = nic.take_queue(0).ok_or("the NIC has no queue")?;
    shard.attach(ifindex, 0, rx, tx).map_err(|e| e.to_string())?;
    add_address(&mut shard, ifindex, if client { client_ip(args) } else { server_ip(args) })?;
    if client && args.test == Test::Crr {
        for ip in crr_clients(args) {
            add_address(&mut shard, ifindex, ip)?;
        }
    }
    if stages {
        shard.stages_mut().set_on(true);
    }
    Ok((shard, stats))
}

fn add_address(shard: &mut Shard, ifindex: IfIndex, ip: IpAddr) -> Result<(), String> {
    let prefix_len = if ip.is_ipv4() { 16 } else { 64 };
    shard.add_address(ifindex, Cidr::new(ip, prefix_len).ok_or("bad prefix")?).map_err(|e| e.to_string())
}

fn sock_opts(args: &SpeedArgs) -> SockOpts {
    let mut opts = SockOpts::default();
    opts.nodelay = true;
    if let Some(mss) = args.mss {
        opts.user_mss_bytes = mss;
    }
    if let Some(window) = args.window {
        // As setsockopt does: twice what was asked for, because the books are kept in truesize, and not less than what
        // one segment needs (Linux: SOCK_MIN_RCVBUF, SOCK_MIN_SNDBUF).
        let bytes = u32::try_from(window * 2).unwrap_or(u32::MAX);
        opts.rcvbuf_bytes = bytes.max(2304);
        opts.sndbuf_bytes = bytes.max(4608);
    }
    opts
}

/// What runs at the client and at the server.
type Apps = (Box<dyn App>, Box<dyn App>);
/// Connected sockets, client and server ends of each flow.
type Pairs = Vec<(SockId, SockId)>;

fn open_flows(args: &SpeedArgs, client: &mut Shard, server: &mut Shard, to: SocketAddr) -> Result<Pairs, String> {
    let opts = sock_opts(args);
    let listener = server.tcp_listen(to, 4096, &opts, BindOpts::default()).map_err(|e| format!("listen: {e}"))?;
    let mut pairs = Pairs::new();
    let mut now = Instant::from_millis(1);
    for _ in 0..args.flows {
        let sock = client.tcp_connect(to, None, &opts).map_err(|e| format!("connect: {e}"))?;
        let mut child = None;
        for _ in 0..64 {
            client.turn(now, 64);
            server.turn(now, 64);
            now = now.plus_micros(1);
            child = child.or_else(|| server.accept(listener).ok());
        }
        let child = child.ok_or("the handshake did not complete")?;
        pairs.push((sock, child));
    }
    while client.next_ready().is_some() || server.next_ready().is_some() {}
    Ok(pairs)
}

fn stream_apps(args: &SpeedArgs, pairs: &Pairs) -> Result<Apps, String> {
    let pattern = (args.touch == Touch::Verify).then(|| Arc::new(Pattern::new(args.len)));
    let end = || Stream::new(args.len, args.touch, args.rx, pattern.clone());
    let (mut client, mut server) = (end(), end());
    let source = || match &pattern {
        Some(pattern) => Source::Pattern(pattern.clone()),
        None => Source::Same(vec![0x5a; args.len]),
    };
    for &(a, b) in pairs {
        if !args.reverse {
            client.add_writer(a);
            server.add_reader(b);
        }
        if args.reverse || args.bidir {
            server.add_writer(b);
            client.add_reader(a);
        }
    }
    client.set_source(source());
    server.set_source(source());
    if let Some(path) = &args.file {
        let file = open_file(path).map_err(|e| format!("--file {}: {e}", path.display()))?;
        client.set_source(Source::File(file));
        client.hash();
        server.hash();
    }
    Ok((Box::new(client), Box::new(server)))
}

/// Something that can be read to its end: not a directory, which opens and then cannot be read.
fn open_file(path: &std::path::Path) -> std::io::Result<std::fs::File> {
    let file = std::fs::File::open(path)?;
    match file.metadata()?.is_dir() {
        true => Err(std::io::ErrorKind::IsADirectory.into()),
        false => Ok(file),
    }
}

fn rr_apps(args: &SpeedArgs, pairs: &Pairs) -> Result<Apps, String> {
    let mut client = Rr::new(true, args.req_bytes(), args.resp_bytes())?;
    let mut server = Rr::new(false, args.resp_bytes(), args.req_bytes())?;
    for &(a, b) in pairs {
        client.add(a);
        server.add(b);
    }
    Ok((Box::new(client), Box::new(server)))
}

fn crr_apps(args: &SpeedArgs, server: &mut Shard, to: SocketAddr) -> Result<Apps, String> {
    let opts = sock_opts(args);
    let listener = server.tcp_listen(to, 4096, &opts, BindOpts::default()).map_err(|e| format!("listen: {e}"))?;
    let client = CrrClient::new(to, crr_clients(args), args.req_bytes(), args.resp_bytes(), opts);
    Ok((Box::new(client), Box::new(CrrServer::new(listener, args.req_bytes(), args.resp_bytes()))))
}
