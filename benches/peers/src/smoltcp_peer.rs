//! smoltcp at its best: two interfaces in one thread, joined by queues of pooled frames.
//!
//! Medium IP, so there is no Ethernet header and no neighbour discovery; software checksums both ways (the default of
//! its device capabilities); segmentation offload off. The loop drives ingress and egress apart, so that the receiving
//! application drains *before* the acknowledgement is made and the window it carries is open, and so that frames are
//! consumed while they are still in the cache. That is faster than calling `poll` on both sides in turn. Frames come
//! from a last-in-first-out pool: no allocation after the warm-up.
//!
//! Limits: nothing is lost or reordered on the wire, so recovery is not measured. Every drain compares a word of what
//! arrived with what was sent there; a wrong byte ends the run with an error.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant as Clock};

use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

/// What the application hands over and takes at once.
const BLOCK_BYTES: usize = 128 * 1024;
/// Request and response of the ping-pong.
const MESSAGE_BYTES: usize = 64;
/// Loops between two readings of the clock: it costs 20 ns, a ping-pong some 500.
const LOOPS_PER_CLOCK_READ: u32 = 16;
/// What is not measured at the start of each run: the pool fills, the window opens.
const WARM_UP: Duration = Duration::from_millis(50);
/// One step of the sweep.
const TRIAL: Duration = Duration::from_millis(150);
/// A run whose application has seen nothing for so long has stalled.
const STALL: Duration = Duration::from_secs(5);
const PORT: u16 = 5_201;

/// One way of running the bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bulk {
    pub(crate) mtu: usize,
    /// Size of each socket buffer (sender's and receiver's).
    pub(crate) buf_bytes: usize,
    /// Frames that the sender may emit before the receiver runs.
    pub(crate) burst_frames: usize,
    /// smoltcp's default delay of acknowledgements (10 ms) or none.
    pub(crate) ack_delay: bool,
}

impl Bulk {
    pub(crate) fn new(mtu: usize) -> Self {
        Self { mtu, buf_bytes: 256 * 1024, burst_frames: 64, ack_delay: true }
    }
}

/// A frame of the pool: `buf` is as long as the MTU, `len_bytes` of it are the frame.
struct Frame {
    buf: Box<[u8]>,
    len_bytes: usize,
}

type Queue = Rc<RefCell<VecDeque<Frame>>>;
type Pool = Rc<RefCell<Vec<Frame>>>;

/// One end of the wire.
struct QueueDevice {
    rx: Queue,
    tx: Queue,
    pool: Pool,
    mtu: usize,
}

impl QueueDevice {
    fn pair(mtu: usize) -> (Self, Self) {
        let (there, back, pool) = (Queue::default(), Queue::default(), Pool::default());
        let left = Self { rx: Rc::clone(&back), tx: Rc::clone(&there), pool: Rc::clone(&pool), mtu };
        (left, Self { rx: there, tx: back, pool, mtu })
    }

    fn tx_token(&self) -> TxToken<'_> {
        TxToken { tx: &self.tx, pool: &self.pool, mtu: self.mtu }
    }
}

struct RxToken<'a> {
    frame: Frame,
    pool: &'a RefCell<Vec<Frame>>,
}

struct TxToken<'a> {
    tx: &'a RefCell<VecDeque<Frame>>,
    pool: &'a RefCell<Vec<Frame>>,
    mtu: usize,
}

impl phy::RxToken for RxToken<'_> {
    #[inline]
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.frame.buf[..self.frame.len_bytes]);
        self.pool.borrow_mut().push(self.frame);
        result
    }
}

impl phy::TxToken for TxToken<'_> {
    #[inline]
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let pooled = self.pool.borrow_mut().pop();
        let mut frame = pooled.unwrap_or_else(|| Frame { buf: vec![0; self.mtu].into_boxed_slice(), len_bytes: 0 });
        frame.len_bytes = len;
        let result = f(&mut frame.buf[..len]);
        self.tx.borrow_mut().push_back(frame);
        result
    }
}

impl Device for QueueDevice {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    #[inline]
    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let frame = self.rx.borrow_mut().pop_front()?;
        Some((RxToken { frame, pool: &self.pool }, self.tx_token()))
    }

    #[inline]
    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        Some(self.tx_token())
    }

    fn capabilities(&self) -> DeviceCapabilities {
        // The default says: checksums in both directions are the stack's work.
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ip;
        caps.max_transmission_unit = self.mtu;
        caps
    }
}

/// A host with one socket.
struct Host {
    iface: Interface,
    device: QueueDevice,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl Host {
    fn new(mut device: QueueDevice, last_octet: u8, buf_bytes: usize, ack_delay: bool) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from(last_octet);
        let mut iface = Interface::new(config, &mut device, Instant::ZERO);
        iface.update_ip_addrs(|addrs| {
            // The list holds at least two addresses by default; one fits.
            addrs.push(IpCidr::new(IpAddress::v4(10, 0, 0, last_octet), 24)).expect("room for one address");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; buf_bytes]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        if !ack_delay {
            socket.set_ack_delay(None);
        }
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self { iface, device, sockets, handle }
    }

    #[inline]
    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    #[inline]
    fn ingress(&mut self, now: Instant) {
        while self.iface.poll_ingress_single(now, &mut self.device, &mut self.sockets) != PollIngressSingleResult::None
        {
        }
    }

    /// Emits at most `frames` frames.
    #[inline]
    fn egress(&mut self, now: Instant, frames: usize) {
        for _ in 0..frames {
            if self.iface.poll_egress(now, &mut self.device, &mut self.sockets) == PollResult::None {
                return;
            }
        }
    }
}

/// Time as smoltcp wants it, read every [`LOOPS_PER_CLOCK_READ`] loops.
struct Time {
    start: Clock,
    elapsed: Duration,
    loops: u32,
}

impl Time {
    fn new() -> Self {
        Self { start: Clock::now(), elapsed: Duration::ZERO, loops: 0 }
    }

    #[inline]
    fn tick(&mut self) -> Instant {
        self.loops += 1;
        if self.loops >= LOOPS_PER_CLOCK_READ {
            self.loops = 0;
            self.elapsed = self.start.elapsed();
        }
        Instant::from_micros(self.elapsed.as_micros() as i64)
    }
}

fn connected(set: &Bulk) -> Result<(Host, Host), String> {
    let (left, right) = QueueDevice::pair(set.mtu);
    let mut client = Host::new(left, 1, set.buf_bytes, set.ack_delay);
    let mut server = Host::new(right, 2, set.buf_bytes, set.ack_delay);
    server.socket().listen(PORT).map_err(|e| format!("listen: {e}"))?;
    let Host { iface, sockets, handle, .. } = &mut client;
    sockets
        .get_mut::<tcp::Socket<'_>>(*handle)
        .connect(iface.context(), (IpAddress::v4(10, 0, 0, 2), PORT), 49_152)
        .map_err(|e| format!("connect: {e}"))?;
    for i in 0..10 {
        let now = Instant::from_micros(i);
        client.egress(now, usize::MAX);
        server.ingress(now);
        server.egress(now, usize::MAX);
        client.ingress(now);
        if client.socket().may_send() && server.socket().may_recv() {
            return Ok((client, server));
        }
    }
    Err("the handshake did not complete".into())
}

/// Moves one stream for `time` and returns the receiver's bits per second.
pub(crate) fn bulk(set: &Bulk, time: Duration) -> Result<f64, String> {
    let (mut client, mut server) = connected(set)?;
    let source: Vec<u8> = (0..BLOCK_BYTES as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let mut sink = vec![0_u8; BLOCK_BYTES];
    let mut clock = Time::new();
    let (mut sent, mut received) = (0_usize, 0_usize);
    let mut measured_from: Option<(Duration, usize)> = None;
    let mut progress = (Duration::ZERO, 0);
    loop {
        let now = clock.tick();
        let at = sent % BLOCK_BYTES;
        sent += client.socket().send_slice(&source[at..]).map_err(|e| format!("send: {e}"))?;
        client.egress(now, set.burst_frames);
        server.ingress(now);
        loop {
            let got = server.socket().recv_slice(&mut sink).map_err(|e| format!("recv: {e}"))?;
            if got == 0 {
                break;
            }
            verify(&source, &sink[..got], received)?;
            received += got;
        }
        server.egress(now, usize::MAX);
        client.ingress(now);
        match measured_from {
            None if clock.elapsed >= WARM_UP => measured_from = Some((clock.elapsed, received)),
            Some((from, bytes)) if clock.elapsed >= from + time => {
                return Ok((received - bytes) as f64 * 8.0 / (clock.elapsed - from).as_secs_f64());
            }
            _ => {}
        }
        if received != progress.1 {
            progress = (clock.elapsed, received);
        } else if clock.elapsed > progress.0 + STALL {
            return Err(format!("stalled after {received} bytes with {set:?}"));
        }
    }
}

/// Compares the last bytes of a drain with what was sent there. Not all: that would be a read pass that the other side
/// of the comparison does not make.
fn verify(source: &[u8], got: &[u8], position: usize) -> Result<(), String> {
    let last = got.len() - 1;
    let expected = source[(position + last) % source.len()];
    if got[last] == expected { Ok(()) } else { Err(format!("byte {} arrived wrong", position + last)) }
}

/// Finds the best way of running the transfer by short trials (buffers, then bursts, then the delay of
/// acknowledgements) and runs it for `time`.
pub(crate) fn bulk_best(mtu: usize, time: Duration) -> Result<(Bulk, f64), String> {
    const BUFS: [usize; 6] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20];
    const BURSTS: [usize; 4] = [4, 16, 256, 1 << 20];
    let mut best = Bulk::new(mtu);
    let mut best_bps = 0.0;
    let mut consider = |set: Bulk, best: &mut Bulk| -> Result<(), String> {
        let bps = bulk(&set, TRIAL)?;
        if bps > best_bps {
            (best_bps, *best) = (bps, set);
        }
        Ok(())
    };
    for buf_bytes in BUFS {
        consider(Bulk { buf_bytes, ..Bulk::new(mtu) }, &mut best)?;
    }
    for burst_frames in BURSTS {
        consider(Bulk { burst_frames, ..best }, &mut best)?;
    }
    consider(Bulk { ack_delay: !best.ack_delay, ..best }, &mut best)?;
    Ok((best, bulk(&best, time)?))
}

/// Plays request and response for `time` and returns the round trips per second.
pub(crate) fn rr(mtu: usize, time: Duration) -> Result<f64, String> {
    let set = Bulk { buf_bytes: 8 * 1024, ..Bulk::new(mtu) };
    let (mut client, mut server) = connected(&set)?;
    let mut clock = Time::new();
    let mut message = [0_u8; MESSAGE_BYTES];
    let mut transactions = 0_u64;
    let mut measured_from: Option<(Duration, u64)> = None;
    loop {
        let now = clock.tick();
        let request = [transactions as u8; MESSAGE_BYTES];
        send_message(&mut client, &request)?;
        // One segment is due, and the acknowledgement rides on it: asking for a second would only cost time.
        client.egress(now, 1);
        server.ingress(now);
        receive_message(&mut server, &mut message)?;
        send_message(&mut server, &message)?;
        server.egress(now, 1);
        client.ingress(now);
        receive_message(&mut client, &mut message)?;
        if message != request {
            return Err(format!("response {transactions} arrived wrong"));
        }
        transactions += 1;
        match measured_from {
            None if clock.elapsed >= WARM_UP => measured_from = Some((clock.elapsed, transactions)),
            Some((from, count)) if clock.elapsed >= from + time => {
                return Ok((transactions - count) as f64 / (clock.elapsed - from).as_secs_f64());
            }
            _ => {}
        }
    }
}

/// One segment each way and nothing else in flight, so a message goes and comes whole or something is wrong.
#[inline]
fn send_message(host: &mut Host, message: &[u8; MESSAGE_BYTES]) -> Result<(), String> {
    match host.socket().send_slice(message) {
        Ok(MESSAGE_BYTES) => Ok(()),
        Ok(part) => Err(format!("sent {part} of {MESSAGE_BYTES} bytes")),
        Err(e) => Err(format!("send: {e}")),
    }
}

#[inline]
fn receive_message(host: &mut Host, message: &mut [u8; MESSAGE_BYTES]) -> Result<(), String> {
    match host.socket().recv_slice(message) {
        Ok(MESSAGE_BYTES) => Ok(()),
        Ok(part) => Err(format!("received {part} of {MESSAGE_BYTES} bytes")),
        Err(e) => Err(format!("recv: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_keeps_order_and_reuses_frames() {
        let (mut left, mut right) = QueueDevice::pair(1_500);
        for round in 0..3_u8 {
            for i in 0..4_u8 {
                let token = left.transmit(Instant::ZERO).unwrap();
                phy::TxToken::consume(token, 10, |buf| buf.fill(round * 10 + i));
            }
            for i in 0..4_u8 {
                let (rx, _) = right.receive(Instant::ZERO).unwrap();
                phy::RxToken::consume(rx, |buf| assert_eq!(buf, [round * 10 + i; 10]));
            }
            assert!(right.receive(Instant::ZERO).is_none());
        }
        assert_eq!(left.pool.borrow().len(), 4);
    }

    #[test]
    fn every_setting_moves_the_stream_intact() {
        for buf_bytes in [64 << 10, 1 << 20] {
            for burst_frames in [4, 100_000] {
                for ack_delay in [false, true] {
                    let set = Bulk { mtu: 1_500, buf_bytes, burst_frames, ack_delay };
                    assert!(bulk(&set, Duration::from_millis(20)).unwrap() > 0.0, "{set:?}");
                }
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_an_error() {
        let source = [1, 2, 3, 4];
        assert!(verify(&source, &[3, 4, 1], 2).is_ok());
        assert!(verify(&source, &[3, 4, 2], 2).is_err());
    }
}
