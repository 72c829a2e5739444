//! A wire between several ends, in real time: delay, a bottleneck of its own for each flow, and chosen losses.
//!
//! ```text
//!   end --read--> lane [ number -> lost? -> queue of bytes at a rate ] --delay--> heap --when due--> write --> end
//! ```
//! Ends are descriptors that give and take one IPv4 frame a call: plain TUNs, or one side of a pair of seqpacket sockets
//! whose other side is a stack's device. A frame goes to the end whose number is the third byte of its destination address.
//!
//! A *lane* is one direction of one flow, named by the flow's fixed port. Its frames are numbered in the order in which they
//! come, and whether one is lost depends on the lane's seed and the number alone: whoever sends, the same numbers are lost.
//! Handshakes are spared (a frame with SYN is never lost), since a lost SYN costs everybody the same second.
//!
//! A frame that arrives at `t` leaves the bottleneck after those before it, at the lane's rate; one that would wait longer
//! than the queue's bytes take is dropped. It is delivered one propagation delay later. Nothing is reordered.
//!
//! **Honesty.** Real time is only as good as the scheduler: how late each delivery was is counted, and a run with many late
//! ones says so. Ends that take no more (a full socket buffer) hold their frames back in order, and that is counted too.
//!
//! Limits: IPv4 and TCP without IP options that matter, one thread, frames of at most [`FRAME_MAX`] bytes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_host::Watched;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The longest frame, bytes: an MTU of 1500 and room to see that it was exceeded.
const FRAME_MAX: usize = 2048;
/// Frames read from one end before the others get their turn.
const READ_BATCH: usize = 64;
/// How often a wire that is idle looks whether it should end, and tries a full end again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_micros(100);

/// What all lanes have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireSpec {
    /// Share of frames that are lost, 0 to 1.
    pub(crate) loss: f64,
    /// Propagation, one way.
    pub(crate) one_way: Duration,
    /// Of each lane's bottleneck.
    pub(crate) rate_bps: u64,
    /// That may wait before each bottleneck.
    pub(crate) queue_bytes: u64,
    /// A delivery later than this counts as late.
    pub(crate) late: Duration,
    /// What the losses are made of.
    pub(crate) seed: u64,
}

/// Which frames are whose: the fixed ports, and how many flows there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes {
    pub(crate) first_port: u16,
    /// Ports of one arrangement; flow `i` of each is seeded alike.
    pub(crate) stride: u16,
    pub(crate) count: u16,
}

/// What happened in a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneStats {
    /// That came.
    pub(crate) frames: u64,
    /// Payload of TCP in them, bytes.
    pub(crate) payload_bytes: u64,
    /// Of the frames, lost by choice.
    pub(crate) lost: u64,
    /// Of the frames, found the queue full.
    pub(crate) queue_drops: u64,
}

/// What happened to the wire.
#[derive(Clone, Debug, Default)]
pub(crate) struct WireReport {
    /// By port from the first on: towards the port, and back.
    pub(crate) lanes: Vec<[LaneStats; 2]>,
    /// Frames delivered.
    pub(crate) delivered: u64,
    /// Of them, late.
    pub(crate) late: u64,
    /// The worst.
    pub(crate) latest: Duration,
    /// Of the time, that the wire's thread used its CPU.
    pub(crate) busy_share: f64,
    /// Times that an end took no more.
    pub(crate) full_ends: u64,
    /// Frames that belong to no lane or end, or have no IPv4 and TCP header.
    pub(crate) strangers: u64,
}

/// One end.
pub(crate) enum End {
    /// The queue of a TUN that somebody keeps.
    Tun(Arc<Watched>),
    /// This side of a socket pair.
    Pair(OwnedFd),
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tun(watched) => watched.as_fd(),
            Self::Pair(fd) => fd.as_fd(),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Lane {
    /// When the bottleneck is idle again, ns.
    free_at: u64,
    stats: LaneStats,
}

/// A frame under way.
struct Frame {
    bytes: Box<[u8]>,
    len: usize,
    to: usize,
}

/// The wire. Ends are numbered from 0; end `i` is reached by addresses whose third byte is `i + 1`.
pub(crate) struct Wire {
    spec: WireSpec,
    map: Lanes,
    ends: Vec<End>,
    /// Frames that an end did not take yet.
    held: Vec<VecDeque<Frame>>,
    lanes: Vec<[Lane; 2]>,
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    under_way: Vec<Option<Frame>>,
    vacant: Vec<usize>,
    spare: Vec<Box<[u8]>>,
    began: Instant,
    order: u64,
    report: WireReport,
}

/// What the wire must know of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    to: usize,
    /// Port from the first on.
    port: usize,
    /// 1: from the fixed port.
    back: usize,
    syn: bool,
    payload_bytes: u64,
}

impl Wire {
    pub(crate) fn new(spec: WireSpec, map: Lanes, ends: Vec<End>) -> Self {
        Self {
            spec,
            map,
            held: ends.iter().map(|_| VecDeque::new()).collect(),
            ends,
            lanes: vec![[Lane::default(); 2]; usize::from(map.count)],
            heap: BinaryHeap::new(),
            under_way: Vec::new(),
            vacant: Vec::new(),
            spare: Vec::new(),
            began: Instant::now(),
            order: 0,
            report: WireReport::default(),
        }
    }

    /// Carries frames until `stop`.
    pub(crate) fn run(mut self, stop: &AtomicBool) -> io::Result<WireReport> {
        // Without it the kernel may wake this thread 50 us late.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        while !stop.load(Ordering::Relaxed) {
            self.wait()?;
            for end in 0..self.ends.len() {
                self.read(end)?;
            }
            self.deliver();
        }
        self.report.busy_share = linerate_host::cpu_time().as_secs_f64() / self.began.elapsed().as_secs_f64();
        self.report.lanes = self.lanes.iter().map(|both| both.map(|lane| lane.stats)).collect();
        Ok(self.report)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn wait(&self) -> io::Result<()> {
        let due = self.heap.peek().map_or(u64::MAX, |Reverse((due, ..))| *due);
        let mut sleep = Duration::from_nanos(due.saturating_sub(self.now())).min(LOOK_AGAIN);
        if self.held.iter().any(|held| !held.is_empty()) {
            sleep = sleep.min(RETRY);
        }
        let sleep = Timespec { tv_sec: 0, tv_nsec: i64::from(sleep.subsec_nanos()) };
        let mut fds: Vec<_> = self.ends.iter().map(|end| PollFd::new(end, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&sleep)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn read(&mut self, end: usize) -> io::Result<()> {
        for _ in 0..READ_BATCH {
            let mut bytes = self.spare.pop().unwrap_or_else(|| vec![0; FRAME_MAX].into());
            match rustix::io::read(&self.ends[end], &mut bytes[..]) {
                Ok(len) if len > 0 => self.take(Frame { bytes, len, to: 0 }),
                Ok(_) | Err(Errno::AGAIN) => {
                    self.spare.push(bytes);
                    return Ok(());
                }
                Err(Errno::INTR) => self.spare.push(bytes),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn take(&mut self, mut frame: Frame) {
        let now = self.now();
        let Some(seen) = look(&frame.bytes[..frame.len], self.map).filter(|seen| seen.to < self.ends.len()) else {
            self.report.strangers += 1;
            return self.spare.push(frame.bytes);
        };
        let lane = &mut self.lanes[seen.port][seen.back];
        let number = lane.stats.frames;
        lane.stats.frames += 1;
        lane.stats.payload_bytes += seen.payload_bytes;
        let flow = seen.port as u64 % u64::from(self.map.stride);
        if !seen.syn && is_lost(&self.spec, flow, seen.back as u64, number) {
            lane.stats.lost += 1;
            return self.spare.push(frame.bytes);
        }
        let ns_of = |bytes: u64| bytes * 8 * 1_000_000_000 / self.spec.rate_bps;
        let leaves = lane.free_at.max(now) + ns_of(frame.len as u64);
        if leaves - now > ns_of(self.spec.queue_bytes) {
            lane.stats.queue_drops += 1;
            return self.spare.push(frame.bytes);
        }
        lane.free_at = leaves;
        frame.to = seen.to;
        let slot = self.vacant.pop().unwrap_or(self.under_way.len());
        if slot == self.under_way.len() {
            self.under_way.push(Some(frame));
        } else {
            self.under_way[slot] = Some(frame);
        }
        self.order += 1;
        self.heap.push(Reverse((leaves + self.spec.one_way.as_nanos() as u64, self.order, slot)));
    }

    /// Hands over what is due.
    fn deliver(&mut self) {
        for end in 0..self.held.len() {
            while let Some(frame) = self.held[end].pop_front() {
                if let Err(frame) = self.write(frame) {
                    self.held[end].push_front(frame);
                    break;
                }
            }
        }
        let mut now = self.now();
        while let Some(&Reverse((due, _, slot))) = self.heap.peek() {
            if due > now {
                now = self.now();
                if due > now {
                    break;
                }
            }
            self.heap.pop();
            self.vacant.push(slot);
            let Some(frame) = self.under_way[slot].take() else { continue };
            let late = Duration::from_nanos(now - due);
            self.report.delivered += 1;
            self.report.late += u64::from(late > self.spec.late);
            self.report.latest = self.report.latest.max(late);
            let end = frame.to;
            if !self.held[end].is_empty() {
                self.held[end].push_back(frame);
            } else if let Err(frame) = self.write(frame) {
                self.report.full_ends += 1;
                self.held[end].push_back(frame);
            }
        }
    }

    fn write(&mut self, frame: Frame) -> Result<(), Frame> {
        match rustix::io::write(&self.ends[frame.to], &frame.bytes[..frame.len]) {
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Err(frame),
            // An end that is gone, or down, takes nothing any more: its frames end here, as on a cable that was pulled.
            _ => {
                self.spare.push(frame.bytes);
                Ok(())
            }
        }
    }
}

/// Reads what matters of an IPv4 and TCP header.
fn look(frame: &[u8], map: Lanes) -> Option<Seen> {
    const TCP: u8 = 6;
    const SYN: u8 = 2;
    let header = usize::from(frame.first()? & 15) * 4;
    if frame[0] >> 4 != 4 || *frame.get(9)? != TCP {
        return None;
    }
    let to = usize::from(*frame.get(18)?).checked_sub(1)?;
    let tcp = frame.get(header..).filter(|tcp| tcp.len() >= 20)?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]).checked_sub(map.first_port);
    let ours = |port: &u16| *port < map.count;
    let (port, back) = match (port(2).filter(ours), port(0).filter(ours)) {
        (Some(port), _) => (port, 0),
        (None, Some(port)) => (port, 1),
        (None, None) => return None,
    };
    let payload = tcp.len().saturating_sub(usize::from(tcp[12] >> 4) * 4);
    let (port, payload_bytes) = (usize::from(port), payload as u64);
    Some(Seen { to, port, back, syn: tcp[13] & SYN != 0, payload_bytes })
}

/// The fate of a frame: a function of seed, flow, direction and number.
fn is_lost(spec: &WireSpec, flow: u64, back: u64, number: u64) -> bool {
    let mut x = mix(spec.seed ^ mix(flow * 2 + back + 1));
    x = mix(x.wrapping_add(number));
    ((x >> 11) as f64) < spec.loss * (1_u64 << 53) as f64
}

/// The finisher of SplitMix64: every bit of the input moves every bit of the output.
pub(crate) fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
