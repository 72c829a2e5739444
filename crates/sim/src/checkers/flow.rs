//! TCP as an observer of the wire sees it, who knows what arrived.
//!
//! For each flow the checker keeps, per direction, the initial sequence number, the highest byte sent, the set of bytes
//! that *arrived*, the right edge of the window that the sender has been told, and what its SYN offered. From these:
//!
//! | a frame that is sent | must |
//! |---|---|
//! | any | be a valid IP packet within the MTU, with a right transport checksum |
//! | SYN-ACK | offer nothing that the SYN did not |
//! | not SYN, not RST | carry a timestamp exactly when both offered it; SACK blocks and ECN only when agreed |
//! | data | fit the peer's MSS, and end within the window that the sender has been told |
//! | ACK | acknowledge only what arrived in one piece; SACK blocks only name bytes that arrived |
//! | ACK | never take back window that was offered, except all of it |
//!
//! Offsets are sequence numbers unwrapped relative to the initial one (the SYN is 0, data begins at 1). A SYN with another
//! initial number starts the flow anew. Retransmissions whose bytes had all arrived are counted as spurious.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use linerate_base::{Instant, Seq};
use linerate_wire::ip::{ecn, proto};
use linerate_wire::{IpRepr, TcpFlags, TcpRepr, checksum};

use super::Violations;
use super::intervals::Intervals;

/// One direction of a flow: from the side that sends these sequence numbers.
#[derive(Clone, Debug, Default)]
struct Half {
    isn: Option<Seq>,
    /// One after the highest offset sent.
    sent_end: u64,
    arrived: Intervals,
    /// Right edge of the window that this sender has been told, as an offset of its own stream.
    told_edge: u64,
    /// Right edge that this side has offered to its peer, as an offset of the peer's stream.
    offered_edge: u64,
    /// What the SYN said.
    mss: u16,
    wscale: Option<u8>,
    ts: bool,
    sack: bool,
    /// ECN bits of the SYN or SYN-ACK meant "I understand".
    ecn: bool,
}

impl Half {
    /// The offset nearest to what was sent so far that has this sequence number; `None` below the initial one.
    fn offset(&self, seq: Seq) -> Option<u64> {
        let isn = self.isn?;
        let near = self.sent_end;
        let delta = i64::from(seq.diff(isn + near as u32));
        near.checked_add_signed(delta)
    }
}

#[derive(Clone, Debug, Default)]
struct Flow {
    /// By side: 0 and 1.
    halves: [Half; 2],
    /// A SYN-ACK was sent: what was agreed is known.
    agreed: bool,
}

impl Flow {
    fn both(&self, what: impl Fn(&Half) -> bool) -> bool {
        self.halves.iter().all(what)
    }
}

/// Totals of one direction, in wire frames with data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataStats {
    /// Frames with data sent.
    pub sent: u64,
    /// Of those, frames that began below the highest byte sent before.
    pub retransmitted: u64,
    /// Retransmissions that arrived after all their bytes had.
    pub spurious: u64,
    /// Payload bytes that arrived for the first time.
    pub fresh_bytes: u64,
}

/// The observer of one link.
#[derive(Debug)]
pub struct FlowChecker {
    mtu_bytes: u32,
    flows: BTreeMap<[SocketAddr; 2], Flow>,
    stats: [DataStats; 2],
    /// What was found.
    pub violations: Violations,
}

/// The facts of a frame.
struct Seen {
    ip: IpRepr,
    tcp: TcpRepr,
    header_len: u32,
    payload: u32,
}

impl FlowChecker {
    /// An observer of a link with this MTU.
    pub fn new(mtu_bytes: u32) -> Self {
        Self { mtu_bytes, flows: BTreeMap::new(), stats: [DataStats::default(); 2], violations: Violations::default() }
    }
    /// Totals of what side `from` sent.
    pub fn stats(&self, from: usize) -> &DataStats {
        &self.stats[from]
    }
    /// Flows seen.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    fn parse(bytes: &[u8], verify: bool) -> Result<Option<Seen>, String> {
        let (ip, at) = IpRepr::parse(bytes).map_err(|e| format!("not an IP packet: {e}"))?;
        let l4 = bytes.get(at..at + ip.payload_len as usize).ok_or("shorter than it says")?;
        if ip.proto != proto::TCP {
            return Ok(None);
        }
        if verify && !checksum::is_valid(checksum::combine(checksum::sum(l4), ip.pseudo_sum())) {
            return Err("a segment with a wrong TCP checksum".to_string());
        }
        let (tcp, header) = TcpRepr::parse(l4).map_err(|e| format!("not a TCP segment: {e}"))?;
        Ok(Some(Seen { ip, tcp, header_len: header as u32, payload: (l4.len() - header) as u32 }))
    }

    fn key(from: usize, seen: &Seen) -> [SocketAddr; 2] {
        let (src, dst) =
            (SocketAddr::new(seen.ip.src, seen.tcp.src_port), SocketAddr::new(seen.ip.dst, seen.tcp.dst_port));
        if from == 0 { [src, dst] } else { [dst, src] }
    }

    /// Side `from` put a frame on the wire.
    pub fn on_sent(&mut self, from: usize, now: Instant, bytes: &[u8]) {
        if bytes.len() as u32 > self.mtu_bytes {
            let (len, mtu) = (bytes.len(), self.mtu_bytes);
            self.violations.note(|| format!("{now:?}: frame of {len} bytes on a wire with MTU {mtu}"));
        }
        let seen = match Self::parse(bytes, true) {
            Ok(Some(seen)) => seen,
            Ok(None) => return,
            Err(what) => return self.violations.note(|| format!("{now:?}: side {from} sent what is {what}")),
        };
        let flow = self.flows.entry(Self::key(from, &seen)).or_default();
        let found = check_sent(flow, from, &seen, &mut self.stats[from]);
        if let Err(what) = found {
            self.violations.note(|| format!("{now:?}: side {from} {}: {what}", describe(&seen)));
        }
    }

    /// The frame that `from` sent was handed to the other side's stack. `by_wire`: a copy that the wire made. A `damaged`
    /// frame did not arrive, unless the damage is where no checksum looks (an IPv6 hop limit).
    pub fn on_arrived(&mut self, from: usize, bytes: &[u8], by_wire: bool, damaged: bool) {
        let Ok(Some(seen)) = Self::parse(bytes, damaged) else { return };
        let Some(flow) = self.flows.get_mut(&Self::key(from, &seen)) else { return };
        let t = &seen.tcp;
        if t.flags.contains(TcpFlags::RST) {
            return;
        }
        let data = note_arrival(&mut flow.halves[from], &seen);
        if let Some((fresh, all_known)) = data {
            let stats = &mut self.stats[from];
            stats.fresh_bytes += fresh;
            stats.spurious += u64::from(all_known && !by_wire);
        }
        if t.flags.contains(TcpFlags::ACK) {
            let edge = window_edge(flow, from, &seen);
            let receiver = &mut flow.halves[1 - from];
            if let Some(edge) = edge {
                receiver.told_edge = receiver.told_edge.max(edge);
            }
        } else if t.flags.contains(TcpFlags::SYN) {
            // The window of a SYN counts from the first byte of data that will be sent.
            let receiver = &mut flow.halves[1 - from];
            receiver.told_edge = receiver.told_edge.max(1 + u64::from(t.window));
        }
    }
}

fn describe(seen: &Seen) -> String {
    let t = &seen.tcp;
    let to = |a: IpAddr, p: u16| SocketAddr::new(a, p);
    format!(
        "{} > {} {} {}:{} ack {} win {}",
        to(seen.ip.src, t.src_port),
        to(seen.ip.dst, t.dst_port),
        t.flags,
        t.seq.0,
        t.end_seq(seen.payload).0,
        t.ack.0,
        t.window
    )
}

/// Bytes of the payload that are new, and whether there were bytes but none new.
fn note_arrival(half: &mut Half, seen: &Seen) -> Option<(u64, bool)> {
    let t = &seen.tcp;
    let start = half.offset(t.seq)?;
    let syn = u64::from(t.flags.contains(TcpFlags::SYN));
    let (from, to) = (start + syn, start + syn + u64::from(seen.payload));
    let end = start + u64::from(t.segment_len(seen.payload));
    let known = half.arrived.contains(from, to);
    let before = half.arrived.end_of_run(0);
    half.arrived.insert(start, end);
    if seen.payload == 0 {
        return None;
    }
    let fresh = if known { 0 } else { half.arrived.end_of_run(0).saturating_sub(before).min(u64::from(seen.payload)) };
    Some((fresh, known))
}

/// Right edge of the window that the frame offers, as an offset of the peer's stream.
fn window_edge(flow: &Flow, from: usize, seen: &Seen) -> Option<u64> {
    let peer = &flow.halves[1 - from];
    let ack = peer.offset(seen.tcp.ack)?;
    let syn = seen.tcp.flags.contains(TcpFlags::SYN);
    let scaled = flow.both(|h| h.wscale.is_some()) && !syn;
    let shift = if scaled { flow.halves[from].wscale.unwrap_or(0).min(14) } else { 0 };
    Some(ack + (u64::from(seen.tcp.window) << shift))
}

fn check_sent(flow: &mut Flow, from: usize, seen: &Seen, stats: &mut DataStats) -> Result<(), String> {
    let t = &seen.tcp;
    if t.flags.contains(TcpFlags::SYN) {
        return check_syn(flow, from, seen);
    }
    if t.flags.contains(TcpFlags::RST) {
        return Ok(());
    }
    if flow.agreed {
        check_agreed(flow, seen)?;
    }
    if t.flags.contains(TcpFlags::ACK) {
        check_ack(flow, from, seen)?;
    }
    check_data(flow, from, seen, stats)
}

fn check_syn(flow: &mut Flow, from: usize, seen: &Seen) -> Result<(), String> {
    let t = &seen.tcp;
    let answer = t.flags.contains(TcpFlags::ACK);
    if !answer && flow.halves[from].isn.is_some_and(|isn| isn != t.seq) {
        *flow = Flow::default();
    }
    let half = &mut flow.halves[from];
    if half.isn.is_some_and(|isn| isn != t.seq) {
        // Another attempt of the peer met a new answer (the first was forgotten): the direction starts again.
        *half = Half { offered_edge: half.offered_edge, ..Half::default() };
    }
    half.isn = Some(t.seq);
    half.sent_end = half.sent_end.max(1 + u64::from(seen.payload));
    // Sent again after the path was found narrower, a SYN says less; the peer may have taken the first.
    half.mss = half.mss.max(t.opts.mss.unwrap_or(if seen.ip.src.is_ipv4() { 536 } else { 1220 }));
    half.wscale = t.opts.wscale;
    half.ts = t.opts.ts.is_some();
    half.sack = t.opts.sack_permitted;
    // A SYN that is sent again no longer asks for ECN, but an answer to the first may come.
    half.ecn |= t.flags.contains(TcpFlags::ECE) && t.flags.contains(TcpFlags::CWR) != answer;
    if !answer {
        return Ok(());
    }
    flow.agreed = true;
    let (offer, reply) = (&flow.halves[1 - from], &flow.halves[from]);
    let unasked = [
        ("timestamps", reply.ts && !offer.ts),
        ("SACK", reply.sack && !offer.sack),
        ("window scaling", reply.wscale.is_some() && offer.wscale.is_none()),
        ("ECN", reply.ecn && !offer.ecn),
    ];
    match unasked.iter().find(|(_, is)| *is) {
        Some((what, _)) => Err(format!("SYN-ACK offers {what}, which the SYN did not")),
        None => Ok(()),
    }
}

fn check_agreed(flow: &Flow, seen: &Seen) -> Result<(), String> {
    let t = &seen.tcp;
    if t.opts.ts.is_some() != flow.both(|h| h.ts) {
        return Err(format!("timestamp {:?} although agreed is {}", t.opts.ts, flow.both(|h| h.ts)));
    }
    if !t.opts.sack.is_empty() && !flow.both(|h| h.sack) {
        return Err("SACK blocks that were not agreed".to_string());
    }
    let ecn_flags = t.flags.intersects(TcpFlags::ECE | TcpFlags::CWR);
    if !flow.both(|h| h.ecn) && (ecn_flags || seen.ip.tos & ecn::MASK != ecn::NOT_ECT) {
        return Err(format!("ECN (tos {:#x}) that was not agreed", seen.ip.tos));
    }
    Ok(())
}

fn check_ack(flow: &mut Flow, from: usize, seen: &Seen) -> Result<(), String> {
    let t = &seen.tcp;
    let peer = &flow.halves[1 - from];
    let Some(ack) = peer.offset(t.ack) else { return Ok(()) };
    let in_one_piece = peer.arrived.end_of_run(0);
    if ack > in_one_piece {
        return Err(format!("acknowledges offset {ack}, but only {in_one_piece} arrived in one piece"));
    }
    for &(left, right) in t.opts.sack.as_slice() {
        let (Some(l), Some(r)) = (peer.offset(left), peer.offset(right)) else { continue };
        if !peer.arrived.contains(l, r) {
            return Err(format!("SACK block {l}..{r} names bytes that did not arrive"));
        }
    }
    if let Some(edge) = window_edge(flow, from, seen) {
        let half = &mut flow.halves[from];
        // Rounding to the window scale may cost less than one unit.
        let unit = 1u64 << half.wscale.unwrap_or(0).min(14);
        // Zero is the one exception: a receiver that ran out of memory says so (Linux since 6.6).
        if edge + unit <= half.offered_edge && t.window != 0 {
            return Err(format!("takes back window: edge {edge} after {}", half.offered_edge));
        }
        half.offered_edge = if t.window == 0 { edge } else { half.offered_edge.max(edge) };
    }
    Ok(())
}

fn check_data(flow: &mut Flow, from: usize, seen: &Seen, stats: &mut DataStats) -> Result<(), String> {
    let t = &seen.tcp;
    let peer_mss = u32::from(flow.halves[1 - from].mss);
    let half = &mut flow.halves[from];
    let Some(start) = half.offset(t.seq) else { return Ok(()) };
    let end = start + u64::from(t.segment_len(seen.payload));
    if seen.payload > 0 {
        stats.sent += 1;
        stats.retransmitted += u64::from(start < half.sent_end);
    }
    let told = half.told_edge;
    half.sent_end = half.sent_end.max(end);
    if seen.payload == 0 {
        return Ok(());
    }
    if flow.agreed && seen.payload + seen.header_len - 20 > peer_mss {
        return Err(format!(
            "{} bytes of data and options for an MSS of {peer_mss}",
            seen.payload + seen.header_len - 20
        ));
    }
    let data_end = start + u64::from(seen.payload);
    if data_end > told {
        return Err(format!("data up to offset {data_end}, but the window ends at {told}"));
    }
    Ok(())
}
