//! A link: two wires back to back, the observer that checks them and the recorder that remembers.
//!
//! Both devices of a link and the network hold it through [`SharedLink`]. The lock is for `Send` only: everything runs on
//! one thread, so it is never contended, and it is held for the length of one call.
//!
//! A frame's life on a link: [`Link::send`] numbers, records and checks it and offers it to the wire of that direction;
//! the receiving device takes it from the wire and says [`Link::deliver`] or [`Link::drop_at_nic`]. A frame longer than
//! the path allows is answered as a router would (RFC 1191, RFC 8201): with the path's MTU, from an address of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use linerate_base::{DropReason, Instant, Rng};
use linerate_wire::ip::{IpRepr, proto};
use linerate_wire::ipv4;
use linerate_wire::{Icmpv4Repr, Icmpv6Repr, icmp};

use crate::checkers::FlowChecker;
use crate::tap::{Keep, Tap};
use crate::wire::{Fate, Frame, Wire, WireConfig};

/// Where the routers of the paths live.
const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);

/// Two directions between side 0 and side 1.
pub struct Link {
    /// By sending side.
    pub wires: [Wire; 2],
    /// The observer.
    pub checker: FlowChecker,
    /// The recorder.
    pub tap: Tap,
    /// By side: when its device has a transmission to complete.
    pub(crate) tx_deadline: [Option<Instant>; 2],
    /// By side: how long its device waits with received frames.
    pub(crate) coalesce: [std::time::Duration; 2],
}

/// A link as its users hold it.
pub type SharedLink = Arc<Mutex<Link>>;

/// The link, whatever happened to another holder: it is plain data.
pub fn lock(link: &SharedLink) -> MutexGuard<'_, Link> {
    link.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Link {
    /// A link between devices of this MTU; the faults of both wires follow `seed`.
    pub fn new(mtu_bytes: u32, cfg: [WireConfig; 2], keep: Keep, seed: u64) -> SharedLink {
        let mut rng = Rng::new(seed);
        let [there, back] = cfg;
        Arc::new(Mutex::new(Self {
            wires: [Wire::new(there, rng.next_u64()), Wire::new(back, rng.next_u64())],
            checker: FlowChecker::new(mtu_bytes),
            tap: Tap::new(keep),
            tx_deadline: [None; 2],
            coalesce: [std::time::Duration::ZERO; 2],
        }))
    }

    /// Side `from` puts a frame on its wire. Returns when its last bit has left.
    pub fn send(&mut self, from: usize, now: Instant, bytes: Vec<u8>) -> Instant {
        let id = self.tap.next_id();
        let copy_id = self.tap.next_id();
        self.tap.sent(id, from, now, &bytes);
        self.checker.on_sent(from, now, &bytes);
        let wire = &self.wires[from];
        let mtu = wire.config().path_mtu_bytes.unwrap_or(u32::MAX);
        let reply = if bytes.len() as u32 > mtu { too_big(&bytes, mtu) } else { None };
        let end = self.wires[from].offer(now, id, copy_id, bytes);
        if let Some(reason) = end.dropped {
            self.tap.ended(id, now, Fate::Dropped(reason));
        }
        if let Some(e) = self.tap.find(id) {
            (e.flipped, e.held_back, e.ce) = (end.flipped, end.held_back, end.ce);
        }
        if let Some(copy) = end.copy {
            self.tap.copied(copy, id);
        }
        if let Some(message) = reply {
            let id = self.tap.next_id();
            self.tap.sent(id, 1 - from, now, &message);
            self.wires[1 - from].inject(now, id, message);
        }
        end.departs
    }

    /// The stack of the other side has the frame that `from` sent.
    pub fn deliver(&mut self, from: usize, now: Instant, frame: Frame) {
        self.checker.on_arrived(from, &frame.bytes, frame.is_copy, frame.flipped.is_some());
        self.tap.ended(frame.id, now, Fate::Delivered);
        self.wires[from].delivered(frame.bytes.len());
        self.wires[from].recycle(frame.bytes);
    }

    /// The device of the other side had no room for the frame that `from` sent.
    pub fn drop_at_nic(&mut self, from: usize, now: Instant, frame: Frame, reason: DropReason) {
        self.tap.ended(frame.id, now, Fate::Dropped(reason));
        self.wires[from].nic_dropped();
        self.wires[from].recycle(frame.bytes);
    }

    /// When the device of `side` wants to be looked at next.
    pub fn next_for(&self, side: usize) -> Option<Instant> {
        let arrival = self.wires[1 - side].next_arrival().map(|at| at + self.coalesce[side]);
        match (arrival, self.tx_deadline[side]) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Frames that neither arrived nor died.
    pub fn in_flight(&self) -> usize {
        self.wires.iter().map(Wire::in_flight).sum()
    }
}

/// The router's message about a frame that is longer than `mtu`; `None` when it was no packet.
fn too_big(frame: &[u8], mtu: u32) -> Option<Vec<u8>> {
    let (ip, _) = IpRepr::parse(frame).ok()?;
    match (ip.src, ip.dst) {
        (IpAddr::V4(_), _) => {
            let quoted = frame.get(..frame.len().min(icmp::ERROR_LEN_MAX - 28))?;
            let message =
                Icmpv4Repr::Unreachable { code: icmp::unreach::FRAG_NEEDED, mtu: mtu.min(65_535) as u16, quoted };
            let mut bytes = vec![0; ipv4::HEADER_LEN + message.emit_len()];
            IpRepr::new(ROUTER_V4.into(), ip.src, proto::ICMP, message.emit_len() as u32).emit(&mut bytes);
            message.emit(&mut bytes[ipv4::HEADER_LEN..]);
            Some(bytes)
        }
        (IpAddr::V6(to), _) => {
            let quoted = frame.get(..frame.len().min(1280 - 48))?;
            let message = Icmpv6Repr::PacketTooBig { mtu, quoted };
            let mut bytes = vec![0; 40 + message.emit_len()];
            IpRepr::new(ROUTER_V6.into(), ip.src, proto::ICMPV6, message.emit_len() as u32).emit(&mut bytes);
            message.emit(&ROUTER_V6, &to, &mut bytes[40..]);
            Some(bytes)
        }
    }
}
