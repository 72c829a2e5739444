//! smoltcp's end of a flow over a TUN, with glue of our own and everything it has switched on.
//!
//! With the virtio header: super-packets up to 64 KiB both ways (its segmentation offload), transport checksums left to
//! the kernel both ways, one system call a super-packet into and out of buffers that stay. Without it: MTU frames with
//! software checksums. Nagle is off, there is no congestion control (its default), and the clock is read rarely.
//!
//! The loop drives ingress and egress apart: some packets in, the application drains, one acknowledgement out. How many,
//! how large the buffers are, and whether the thread sleeps in `poll` or looks again is swept by short trials, and the
//! best is taken for the run.
//!
//! Limits: IPv4; the socket buffers are rings, so a super-packet that meets the end of one is shorter.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use linerate::Wait;
use linerate::tun::Watched;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, Device, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use super::kernel_end::{Aligned, BLOCK_BYTES, Metered, pattern, verify};
use super::{CONTENDER, Dir, End, Error, PORT, Plan, WARM_UP, against_kernel, open_tun, pin};

/// The longest IP packet.
const PACKET_MAX_BYTES: usize = 65_535;
/// Headers of IPv4 and TCP without options.
const HEADERS_BYTES: usize = 40;
/// Where payload lies in a packet's buffer: copies to and from a page's start are fast with it (see
/// [`Aligned`]'s module).
const PAYLOAD_AT: usize = 64;
/// Super-packets of so many pages of payload keep the ring's positions at pages.
const PAGES_MAX_BYTES: usize = HEADERS_BYTES + 15 * 4096;
/// virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
const VNET_BYTES: usize = 10;
const VNET_NEEDS_CSUM: u8 = 1;
const VNET_GSO_TCPV4: u8 = 1;
const IPV4_BYTES: usize = 20;
const IP_PROTO_TCP: u8 = 6;
const TCP_CSUM_OFFSET: usize = 16;
/// One step of the sweep, and what is not measured of it.
const TRIAL: [Duration; 2] = [Duration::from_millis(60), Duration::from_millis(120)];
/// Loops between two readings of the clock.
const LOOPS_PER_CLOCK_READ: u32 = 16;
/// The longest sleep: the end of the run is looked for at least so often.
const NAP: Duration = Duration::from_millis(20);

/// One way of running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Set {
    buf_bytes: usize,
    /// Packets taken in, or sent, before the other half of the loop runs.
    burst: usize,
    wait: Wait,
    /// smoltcp's default delay of acknowledgements (10 ms) or none.
    ack_delay: bool,
    /// The longest super-packet sent.
    segment_max_bytes: usize,
}

/// A TUN with buffers of its own.
struct TunDevice {
    port: Arc<Watched>,
    vnet: bool,
    mtu: usize,
    /// Packets begin so that their payload lies at [`PAYLOAD_AT`].
    rx: Aligned,
    tx: Aligned,
    segment_max_bytes: usize,
}

impl TunDevice {
    fn new(port: Arc<Watched>, vnet: bool, mtu: usize) -> Self {
        let buf = || Aligned::new(PAYLOAD_AT + PACKET_MAX_BYTES);
        Self { port, vnet, mtu, rx: buf(), tx: buf(), segment_max_bytes: PACKET_MAX_BYTES }
    }

    fn header_bytes(&self) -> usize {
        if self.vnet { VNET_BYTES } else { 0 }
    }

    fn token(&mut self) -> TxToken<'_> {
        let header_bytes = self.header_bytes();
        let buf = &mut self.tx[PAYLOAD_AT - HEADERS_BYTES - header_bytes..];
        TxToken { port: &self.port, buf, header_bytes, gso_size: 0 }
    }
}

struct RxToken<'a>(&'a [u8]);

struct TxToken<'a> {
    port: &'a Watched,
    buf: &'a mut [u8],
    header_bytes: usize,
    gso_size: u16,
}

impl phy::RxToken for RxToken<'_> {
    #[inline]
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl phy::TxToken for TxToken<'_> {
    #[inline]
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let frame = &mut self.buf[..self.header_bytes + len];
        let (header, packet) = frame.split_at_mut(self.header_bytes);
        let result = f(packet);
        if !header.is_empty() {
            leave_to_the_kernel(header, packet, self.gso_size);
        }
        // A TUN takes a packet whole; one that it refuses is lost, as on any wire.
        let _ = rustix::io::write(self.port, frame);
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.gso_size = meta.segmentation_offload_size.map_or(0, std::num::NonZero::get);
    }
}

/// Fills the virtio header: the kernel sums, and cuts if `gso_size` is not 0. Seeds the sum with the pseudo header.
fn leave_to_the_kernel(header: &mut [u8], packet: &mut [u8], gso_size: u16) {
    if packet[9] != IP_PROTO_TCP {
        return header.fill(0);
    }
    let tcp = &packet[IPV4_BYTES..];
    let header_bytes = (IPV4_BYTES + usize::from(tcp[12] >> 4) * 4) as u16;
    let tcp_bytes = tcp.len() as u32;
    let words = packet[12..IPV4_BYTES].chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum = words.sum::<u32>() + u32::from(IP_PROTO_TCP) + (tcp_bytes & 0xffff) + (tcp_bytes >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    let at = IPV4_BYTES + TCP_CSUM_OFFSET;
    packet[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
    header[0] = VNET_NEEDS_CSUM;
    header[1] = if gso_size == 0 { 0 } else { VNET_GSO_TCPV4 };
    let fields = [header_bytes, gso_size, IPV4_BYTES as u16, TCP_CSUM_OFFSET as u16];
    for (to, field) in header[2..].chunks_exact_mut(2).zip(fields) {
        to.copy_from_slice(&field.to_le_bytes());
    }
}

impl Device for TunDevice {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    #[inline]
    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let header_bytes = self.header_bytes();
        let at = PAYLOAD_AT - HEADERS_BYTES - header_bytes;
        let got = rustix::io::read(&self.port, &mut self.rx[at..]).ok()?;
        let packet = self.rx.get(at + header_bytes..at + got)?;
        let buf = &mut self.tx[at..];
        Some((RxToken(packet), TxToken { port: &self.port, buf, header_bytes, gso_size: 0 }))
    }

    #[inline]
    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        Some(self.token())
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ip;
        caps.max_transmission_unit = self.mtu;
        if self.vnet {
            // Its own kernel vouches for what comes out of it; what goes in needs only the IP header's sum.
            caps.checksum.ipv4 = Checksum::Tx;
            caps.checksum.tcp = Checksum::None;
            caps.segmentation.tcpv4 = std::num::NonZero::new(self.segment_max_bytes);
        }
        caps
    }
}

/// A host with one listening socket.
struct Host<'a> {
    iface: Interface,
    device: &'a mut TunDevice,
    sockets: SocketSet<'a>,
    handle: SocketHandle,
    set: Set,
    start: Clock,
    elapsed: Duration,
    loops: u32,
}

impl<'a> Host<'a> {
    fn new(device: &'a mut TunDevice, [rx, tx]: &'a mut [Aligned; 2], set: Set, port: u16) -> Result<Self, Error> {
        device.segment_max_bytes = set.segment_max_bytes;
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from(port);
        let mut iface = Interface::new(config, device, Instant::ZERO);
        iface.update_ip_addrs(|addrs| {
            // The list holds at least two addresses by default; one fits.
            addrs.push(IpCidr::new(IpAddress::Ipv4(CONTENDER), 24)).expect("room for one address");
        });
        let mut socket = tcp::Socket::new(
            tcp::SocketBuffer::new(&mut rx[..set.buf_bytes]),
            tcp::SocketBuffer::new(&mut tx[..set.buf_bytes]),
        );
        socket.set_nagle_enabled(false);
        if !set.ack_delay {
            socket.set_ack_delay(None);
        }
        socket.listen(port).map_err(|e| Error::Failed(format!("listen: {e}")))?;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        let (start, elapsed) = (Clock::now(), Duration::ZERO);
        Ok(Self { iface, device, sockets, handle, set, start, elapsed, loops: 0 })
    }

    #[inline]
    fn socket(&mut self) -> &mut tcp::Socket<'a> {
        self.sockets.get_mut(self.handle)
    }

    fn now(&mut self) -> Instant {
        self.loops += 1;
        if self.loops >= LOOPS_PER_CLOCK_READ {
            self.loops = 0;
            self.elapsed = self.start.elapsed();
        }
        Instant::from_micros(self.elapsed.as_micros() as i64)
    }

    /// Takes in at most a burst of packets; true when there was one.
    #[inline]
    fn ingress(&mut self, now: Instant) -> bool {
        for i in 0..self.set.burst {
            let result = self.iface.poll_ingress_single(now, self.device, &mut self.sockets);
            if result == PollIngressSingleResult::None {
                return i > 0;
            }
        }
        true
    }

    /// Sends at most a burst of packets; true when there was one.
    #[inline]
    fn egress(&mut self, now: Instant) -> bool {
        for i in 0..self.set.burst {
            if self.iface.poll_egress(now, self.device, &mut self.sockets) == PollResult::None {
                return i > 0;
            }
        }
        true
    }

    /// Nothing to do: sleep until a packet comes or a timer is due, or look again.
    fn idle(&mut self) {
        self.elapsed = self.start.elapsed();
        if self.set.wait == Wait::Spin {
            return std::hint::spin_loop();
        }
        let now = Instant::from_micros(self.elapsed.as_micros() as i64);
        let due = self.iface.poll_delay(now, &self.sockets).map(Duration::from);
        let nap = Timespec::try_from(due.map_or(NAP, |due| due.min(NAP))).ok();
        let fd = self.device.port.as_fd();
        let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], nap.as_ref());
        self.loops = LOOPS_PER_CLOCK_READ;
    }

    /// Serves the one connection until the meter lets go.
    fn serve(&mut self, dir: Dir, stop: &AtomicBool) -> Result<(), Error> {
        let (pattern, mut block, mut bytes) = (pattern(), Aligned::new(BLOCK_BYTES), 0_u64);
        while !stop.load(Ordering::Relaxed) {
            let now = self.now();
            let mut busy = self.ingress(now);
            match dir {
                Dir::To => loop {
                    let rest = &pattern[bytes as usize % BLOCK_BYTES..];
                    // Not connected yet, or not any more: the meter knows.
                    let sent = self.socket().send_slice(rest).unwrap_or(0);
                    if sent == 0 {
                        break;
                    }
                    bytes += sent as u64;
                    busy = true;
                },
                Dir::From => loop {
                    let got = self.socket().recv_slice(&mut block).unwrap_or(0);
                    if got == 0 {
                        break;
                    }
                    verify(&pattern, &block[..got], bytes)?;
                    bytes += got as u64;
                    busy = true;
                },
            }
            busy |= self.egress(now);
            if !busy {
                self.idle();
            }
        }
        Ok(())
    }
}

fn trial(
    plan: &Plan,
    (device, buffers): &mut (TunDevice, [Aligned; 2]),
    set: Set,
    port: u16,
    times: [Duration; 2],
) -> Result<Metered, Error> {
    let mut cores = 0.0;
    let metered = against_kernel(plan, SocketAddr::from((CONTENDER, port)), times, |stop| {
        pin(End::Contender);
        let begin = Clock::now();
        Host::new(device, buffers, set, port)?.serve(plan.dir, stop)?;
        cores = linerate_host::cpu_time().as_secs_f64() / begin.elapsed().as_secs_f64();
        Ok(())
    })?;
    Ok(Metered { cores_contender: Some(cores), ..metered })
}

/// Finds the best way by short trials, unless the plan names one, and runs it.
pub(crate) fn run(plan: &Plan) -> Result<(Metered, String), Error> {
    const BUFS: [usize; 6] = [128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
    const BURSTS: [usize; 4] = [1, 4, 16, 64];
    let mut tun = open_tun(plan)?;
    let port = tun.take_queue(0).ok_or_else(|| Error::Failed("a device has a queue".into()))?.watched;
    let device = TunDevice::new(port, !plan.plain, plan.mtu as usize);
    let most = plan.buf_bytes.unwrap_or(0).max(BUFS[BUFS.len() - 1]);
    let mut device = (device, [Aligned::new(most), Aligned::new(most)]);
    let mut best = Set {
        buf_bytes: plan.buf_bytes.unwrap_or(256 << 10),
        burst: 16,
        wait: plan.wait.unwrap_or(Wait::Spin),
        ack_delay: true,
        segment_max_bytes: PACKET_MAX_BYTES,
    };
    let (mut best_bps, mut next_port) = (0.0, PORT);
    let mut consider = |set: Set, best: &mut Set| -> Result<(), Error> {
        next_port += 1;
        let bps = trial(plan, &mut device, set, next_port, TRIAL)?.bits_per_second;
        if bps > best_bps {
            (best_bps, *best) = (bps, set);
        }
        Ok(())
    };
    if plan.buf_bytes.is_none() {
        for buf_bytes in BUFS {
            consider(Set { buf_bytes, ..best }, &mut best)?;
        }
    }
    for burst in BURSTS {
        consider(Set { burst, ..best }, &mut best)?;
    }
    if plan.wait.is_none() {
        consider(Set { wait: Wait::Block, ..best }, &mut best)?;
    }
    consider(Set { ack_delay: false, ..best }, &mut best)?;
    if plan.dir == Dir::To && !plan.plain {
        consider(Set { segment_max_bytes: PAGES_MAX_BYTES, ..best }, &mut best)?;
    }
    let metered = trial(plan, &mut device, best, PORT, [WARM_UP, plan.time])?;
    let Set { buf_bytes, burst, wait, ack_delay, segment_max_bytes } = best;
    let delay = if ack_delay { "on" } else { "off" };
    let how = format!(
        "{} KiB buffers, super-packets up to {segment_max_bytes}, bursts of {burst}, waiting: {wait:?}, ack delay {delay}",
        buf_bytes >> 10
    );
    Ok((metered, how))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_virtio_header_says_what_the_kernel_is_to_do() {
        // 10.77.0.2 -> 10.77.0.1, TCP with 20 bytes of header and 3 of payload.
        let mut packet = [0_u8; IPV4_BYTES + 23];
        packet[12..20].copy_from_slice(&[10, 77, 0, 2, 10, 77, 0, 1]);
        packet[IPV4_BYTES + 12] = 5 << 4;
        packet[9] = IP_PROTO_TCP;
        let mut header = [0xff; VNET_BYTES];
        leave_to_the_kernel(&mut header, &mut packet, 1460);
        assert_eq!(header, [1, 1, 40, 0, 0xb4, 5, 20, 0, 16, 0]);
        // 0a4d + 0002 + 0a4d + 0001 + 6 + 23
        assert_eq!(packet[IPV4_BYTES + 16..][..2], 0x14ba_u16.to_be_bytes());
        leave_to_the_kernel(&mut header, &mut packet, 0);
        assert_eq!(header[1..6], [0, 40, 0, 0, 0]);
    }
}
