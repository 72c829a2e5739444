//! A transfer as a person reads it: one line per segment, with why it was sent and what became of it.
//!
//! ```text
//!     12.345 ms  A > B  .      seq 1461:2921(1460)  ack 1  win 65536           data                      LOST
//! ```
//! The wire alone shows most reasons: a sequence number below the highest sent is a retransmission, an ACK that moves
//! nothing is a duplicate or a window update. *Which* mechanism asked for a retransmission is not on the wire; the network
//! therefore notes with each frame what the sending stack counted during the turn that sent it ([`Counted`]), under Linux's
//! counter names. Numbers are relative to the initial sequence numbers, windows are scaled, times count from the first frame.
//!
//! Limits: TCP only; one link; if one turn sends for two reasons, its frames share the first that fits.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use linerate_base::{Instant, Seq};
use linerate_wire::ip::{ecn, proto};
use linerate_wire::{IpRepr, TcpFlags, TcpRepr};

use crate::tap::{Counted, TapEvent};
use crate::wire::Fate;

/// One direction of a flow as far as the reader has come.
#[derive(Clone, Copy, Debug, Default)]
struct Half {
    isn: Option<Seq>,
    /// After the highest byte sent.
    sent_end: Seq,
    /// Last acknowledgement sent, and the scaled window with it.
    ack: Seq,
    window: u64,
    wscale: Option<u8>,
    /// Data segments received since the last ACK.
    mss: u32,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Row {
    /// When it was sent.
    pub at: Instant,
    /// 0: from side 0.
    pub from: usize,
    /// Flags, as packetdrill writes them.
    pub flags: String,
    /// Relative `first:after(len)`.
    pub seq: String,
    /// Relative acknowledgement, if any.
    pub ack: Option<u32>,
    /// Scaled window, bytes.
    pub window: u64,
    /// Options and marks worth a look.
    pub options: String,
    /// Why it was sent.
    pub reason: String,
    /// What became of it.
    pub fate: String,
}

/// What a transfer came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Frames, by sending side.
    pub wire_pkts: [u64; 2],
    /// Frames with data sent again.
    pub retransmitted: u64,
    /// Frames that never arrived.
    pub lost: u64,
    /// Payload bytes sent for the first time, by side.
    pub bytes: [u64; 2],
    /// Retransmissions by timeout.
    pub rtos: u64,
    /// Tail loss probes.
    pub probes: u64,
}

/// The rows of what a link recorded, in the order in which it was sent.
pub fn rows(events: &[TapEvent]) -> (Vec<Row>, Summary) {
    let mut flows: BTreeMap<[SocketAddr; 2], [Half; 2]> = BTreeMap::new();
    let mut summary = Summary::default();
    let mut sorted: Vec<&TapEvent> = events.iter().collect();
    sorted.sort_by_key(|e| (e.sent, e.id));
    let rows = sorted.into_iter().filter_map(|e| row(e, &mut flows, &mut summary)).collect();
    (rows, summary)
}

fn row(e: &TapEvent, flows: &mut BTreeMap<[SocketAddr; 2], [Half; 2]>, sum: &mut Summary) -> Option<Row> {
    // Only the head was kept: the length of the frame is what the recorder says.
    let (ip, at) = IpRepr::parse_head(&e.bytes, e.len, false).ok()?;
    if ip.proto != proto::TCP {
        return None;
    }
    let (tcp, header) = TcpRepr::parse(e.bytes.get(at..)?).ok()?;
    let payload = ip.payload_len.checked_sub(header as u32)?;
    let (src, dst) = (SocketAddr::new(ip.src, tcp.src_port), SocketAddr::new(ip.dst, tcp.dst_port));
    let flow = flows.entry(if e.from == 0 { [src, dst] } else { [dst, src] }).or_default();
    let reason = if e.copy_of.is_some() { "copy made by the wire".into() } else { reason(flow, e, &tcp, payload, sum) };
    let (us, peer) = (flow[e.from], flow[1 - e.from]);
    let rel = |seq: Seq, isn: Option<Seq>| isn.map_or(seq.0, |isn| seq - isn);
    let (first, after) = (rel(tcp.seq, us.isn), rel(tcp.end_seq(payload), us.isn));
    let scale = if tcp.flags.contains(TcpFlags::SYN) || peer.wscale.is_none() { 0 } else { us.wscale.unwrap_or(0) };
    sum.wire_pkts[e.from] += 1;
    let fate = fate(e);
    sum.lost += u64::from(matches!(e.fate, Fate::Dropped(_)));
    Some(Row {
        at: e.sent,
        from: e.from,
        flags: tcp.flags.to_string(),
        seq: format!("{first}:{after}({payload})"),
        ack: tcp.flags.contains(TcpFlags::ACK).then(|| rel(tcp.ack, peer.isn)),
        window: u64::from(tcp.window) << scale.min(14),
        options: options(&ip, &tcp, peer.isn),
        reason,
        fate,
    })
}

fn options(ip: &IpRepr, tcp: &TcpRepr, peer_isn: Option<Seq>) -> String {
    let mut s = String::new();
    let o = &tcp.opts;
    if let Some(mss) = o.mss {
        let _ = write!(s, "mss {mss} ");
    }
    if o.sack_permitted {
        s.push_str("sackOK ");
    }
    if let Some(shift) = o.wscale {
        let _ = write!(s, "wscale {shift} ");
    }
    if o.ts.is_some() && tcp.flags.contains(TcpFlags::SYN) {
        s.push_str("ts ");
    }
    for &(left, right) in o.sack.as_slice() {
        let rel = |q: Seq| peer_isn.map_or(q.0, |isn| q - isn);
        let _ = write!(s, "sack {}:{} ", rel(left), rel(right));
    }
    match ip.tos & ecn::MASK {
        ecn::NOT_ECT => {}
        ecn::CE => s.push_str("CE "),
        _ => s.push_str("ECT "),
    }
    s.trim_end().to_string()
}

fn fate(e: &TapEvent) -> String {
    let mut s = match e.fate {
        Fate::Dropped(linerate_base::DropReason::WireLoss) => "LOST".to_string(),
        Fate::Dropped(reason) => format!("LOST ({})", reason.name()),
        Fate::InFlight => "under way".to_string(),
        Fate::Delivered => format!("after {:.1} ms", e.ended.since(e.sent).as_secs_f64() * 1e3),
    };
    if e.flipped.is_some() {
        s.push_str(", damaged");
    }
    if e.held_back {
        s.push_str(", overtaken");
    }
    if e.ce {
        s.push_str(", marked");
    }
    s
}

/// Why the segment was sent; brings the flow's state up to it.
fn reason(flow: &mut [Half; 2], e: &TapEvent, tcp: &TcpRepr, payload: u32, sum: &mut Summary) -> String {
    let counted = e.counted.unwrap_or_default();
    let peer = flow[1 - e.from];
    let us = &mut flow[e.from];
    let (syn, ack) = (tcp.flags.contains(TcpFlags::SYN), tcp.flags.contains(TcpFlags::ACK));
    if syn {
        let again = us.isn == Some(tcp.seq);
        us.isn = Some(tcp.seq);
        us.wscale = tcp.opts.wscale;
        us.sent_end = tcp.end_seq(payload);
        (us.ack, us.window) = (tcp.ack, u64::from(tcp.window));
        return match (ack, again) {
            (false, false) => "SYN: open".into(),
            (false, true) => "SYN again: no answer in time".into(),
            (true, false) => "SYN-ACK: accept".into(),
            (true, true) => "SYN-ACK again".into(),
        };
    }
    if tcp.flags.contains(TcpFlags::RST) {
        return "RST: reset".into();
    }
    let scale = if peer.wscale.is_some() { us.wscale.unwrap_or(0).min(14) } else { 0 };
    let window = u64::from(tcp.window) << scale;
    let before = *us;
    (us.ack, us.window) = (tcp.ack, window);
    let end = tcp.end_seq(payload);
    let fin = tcp.flags.contains(TcpFlags::FIN);
    if payload > 0 || fin {
        us.mss = us.mss.max(payload);
        let again = tcp.seq.lt(before.sent_end);
        us.sent_end = before.sent_end.max(end);
        if again {
            sum.retransmitted += 1;
            return retransmission(&counted, sum);
        }
        sum.bytes[e.from] += u64::from(payload);
        return fresh(&counted, payload, fin, sum);
    }
    if tcp.seq.lt(before.sent_end) {
        return if counted.win_probes > 0 { "probe: is the window open?" } else { "probe: are you there?" }.into();
    }
    pure_ack(&before, &peer, tcp, window, &counted)
}

fn retransmission(c: &Counted, sum: &mut Summary) -> String {
    let why = if c.timeouts > 0 {
        sum.rtos += 1;
        "retransmit: RTO"
    } else if c.loss_probes > 0 {
        sum.probes += 1;
        "retransmit: TLP"
    } else if c.lost_retransmit > 0 {
        "retransmit: RACK, again"
    } else if c.fast_retrans > 0 {
        "retransmit: RACK"
    } else if c.slow_start_retrans > 0 {
        "retransmit: after RTO"
    } else {
        "retransmit"
    };
    why.into()
}

fn fresh(c: &Counted, payload: u32, fin: bool, sum: &mut Summary) -> String {
    if c.loss_probes > 0 && payload > 0 {
        sum.probes += 1;
        return "TLP: new data as probe".into();
    }
    match (payload > 0, fin) {
        (true, true) => "data, and the end",
        (true, false) => "data",
        _ => "FIN: the end",
    }
    .into()
}

fn pure_ack(before: &Half, peer: &Half, tcp: &TcpRepr, window: u64, c: &Counted) -> String {
    if c.challenge_acks > 0 {
        return "ACK: challenge".into();
    }
    if let Some(&(_, right)) = tcp.opts.sack.as_slice().first() {
        return if right.le(tcp.ack) || c.dsacks > 0 { "ACK: DSACK, it came twice" } else { "ACK: hole, SACK" }.into();
    }
    if tcp.ack == before.ack {
        return match window {
            0 => "ACK: window closed",
            w if w > before.window => "ACK: window update",
            _ => "ACK: duplicate",
        }
        .into();
    }
    let acked = tcp.ack - before.ack;
    if before.sent_end == tcp.seq && peer.sent_end - before.ack == 1 && acked == 1 {
        return "ACK: of SYN or FIN".into();
    }
    if c.delayed_acks > 0 {
        return "ACK: delayed".into();
    }
    if peer.mss > 0 && acked >= 2 * peer.mss { "ACK: every second".into() } else { "ACK: at once".into() }
}

/// The rows as text, times from the first frame, `names` for the two sides.
pub fn render(events: &[TapEvent], names: [&str; 2]) -> String {
    let (rows, _) = rows(events);
    let Some(start) = rows.first().map(|r| r.at) else { return String::new() };
    let mut out = String::new();
    let wide = |f: fn(&Row) -> usize| rows.iter().map(f).max().unwrap_or(0);
    let (seq, opt, why) = (wide(|r| r.seq.len()), wide(|r| r.options.len()).min(44), wide(|r| r.reason.len()));
    for r in &rows {
        let at = r.at.since(start).as_secs_f64() * 1e3;
        let arrow =
            if r.from == 0 { format!("{} > {}", names[0], names[1]) } else { format!("{} < {}", names[0], names[1]) };
        let ack = r.ack.map_or(String::new(), |a| format!("ack {a}"));
        let _ = writeln!(
            out,
            "{at:>10.3} ms  {arrow}  {:<3} {:<seq$}  {ack:<10} win {:<7} {:<opt$}  {:<why$}  {}",
            r.flags, r.seq, r.window, r.options, r.reason, r.fate
        );
    }
    out
}
