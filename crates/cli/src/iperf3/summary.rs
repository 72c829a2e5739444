//! The books of a finished (or interrupted) test: what both sides counted, stream by stream and in sum.
//!
//! Each stream has a sending and a receiving side. One of them is ours and was counted here; the other is the peer's and
//! is known once results were exchanged, `None` before. A sum runs over the streams of one direction: seconds are the
//! longest, jitter the mean, all else is added. Numbers of the peer are bounded by saturating arithmetic and believed.
//! [`Snapshot`] holds what the shard and its device had counted when the test began, for `end.linerate`.

use std::collections::BTreeMap;

use linerate_base::Instant;
use linerate_netdev::{IfIndex, Qstats};
use linerate_stack::Shard;

use super::proto::{Params, Protocol, Results, StreamResult};
use super::stream::{Counts, TcpExtremes};
use super::test::{Role, Test};
use crate::speed::report::Linerate;

/// One side of a stream, or of all streams of a direction.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Side {
    pub(crate) counts: Counts,
    pub(crate) secs: f64,
    pub(crate) jitter_secs: f64,
    /// The side knows its retransmissions.
    pub(crate) has_retransmits: bool,
}

impl Side {
    pub(crate) fn bits_per_second(&self) -> f64 {
        if self.secs > 0.0 { self.counts.bytes as f64 * 8.0 / self.secs } else { 0.0 }
    }

    /// The peer's side. A sender sees neither loss nor jitter; what its results say of them is an echo of ours.
    fn of_peer(result: &StreamResult, peer_sends: bool) -> Self {
        let counts = Counts {
            bytes: result.bytes,
            datagrams: result.datagrams,
            lost: if peer_sends { 0 } else { result.errors },
            out_of_order: 0,
            retransmits: result.retransmits.unwrap_or(0),
        };
        Self {
            counts,
            secs: (result.end_secs - result.start_secs).max(0.0),
            jitter_secs: if peer_sends { 0.0 } else { result.jitter_secs },
            has_retransmits: result.retransmits.is_some(),
        }
    }
}

/// A stream at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SummaryRow {
    /// Which stream, from 0.
    pub(crate) nth: usize,
    /// We sent.
    pub(crate) sends: bool,
    pub(crate) sender: Option<Side>,
    pub(crate) receiver: Option<Side>,
    pub(crate) extremes: TcpExtremes,
}

/// A test at the end.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) params: Params,
    pub(crate) role: Role,
    pub(crate) rows: Vec<SummaryRow>,
    pub(crate) cpu: [f64; 3],
    /// Of the peer; `None` before the results were exchanged.
    pub(crate) peer_cpu: Option<[f64; 3]>,
    pub(crate) congestion: String,
    pub(crate) peer_congestion: Option<String>,
    pub(crate) linerate: Linerate,
}

impl Summary {
    pub(crate) fn new(
        test: &Test,
        peer: Option<&Results>,
        now: Instant,
        congestion: &str,
        before: &Snapshot,
        after: &Snapshot,
    ) -> Self {
        let secs = test.secs(now);
        let tcp = test.params.protocol == Protocol::Tcp;
        let rows = test.streams.iter().enumerate().map(|(nth, stream)| {
            let ours = Side {
                counts: stream.counts,
                secs,
                jitter_secs: stream.jitter_secs(),
                has_retransmits: stream.sends && tcp,
            };
            let theirs = Test::find(peer, stream.id).map(|result| Side::of_peer(&result, !stream.sends));
            let (sender, receiver) = if stream.sends { (Some(ours), theirs) } else { (theirs, Some(ours)) };
            SummaryRow { nth, sends: stream.sends, sender, receiver, extremes: stream.extremes }
        });
        Self {
            params: test.params.clone(),
            role: test.role,
            rows: rows.collect(),
            cpu: test.cpu_percent(),
            peer_cpu: peer.map(|p| p.cpu),
            congestion: congestion.to_owned(),
            peer_congestion: peer.and_then(|p| p.congestion.clone()),
            linerate: linerate(test, secs, before, after),
        }
    }

    /// The sender's and the receiver's side of all streams on which this side sends, or receives.
    pub(crate) fn sum(&self, sends: bool) -> (Option<Side>, Option<Side>) {
        let rows = || self.rows.iter().filter(|row| row.sends == sends);
        (add(rows().map(|r| r.sender)), add(rows().map(|r| r.receiver)))
    }
}

/// All sides together; `None` when there is none, or one is not known.
fn add(sides: impl Iterator<Item = Option<Side>>) -> Option<Side> {
    let sides = sides.collect::<Option<Vec<Side>>>().filter(|sides| !sides.is_empty())?;
    let mut sum = Side { has_retransmits: true, ..Side::default() };
    for side in &sides {
        sum.counts = sum.counts.plus(&side.counts);
        sum.secs = sum.secs.max(side.secs);
        sum.jitter_secs += side.jitter_secs / sides.len() as f64;
        sum.has_retransmits &= side.has_retransmits;
    }
    Some(sum)
}

/// What the stack and its device had counted at one moment.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    wire: Qstats,
    copied: (u64, u64),
    retrans_segs: u64,
    drops: BTreeMap<&'static str, u64>,
}

impl Snapshot {
    pub(crate) fn take(shard: &Shard, ifindex: IfIndex) -> Self {
        let mibs = shard.mibs();
        Self {
            wire: shard.qstats(ifindex).unwrap_or_default(),
            copied: shard.copied_bytes(),
            retrans_segs: mibs.tcp.retrans_segs,
            drops: mibs.drops.iter().map(|(reason, count)| (reason.name(), count)).collect(),
        }
    }
}

/// The object that all verbs share. Of our stack alone: the peer's frames are counted as they arrive here.
fn linerate(test: &Test, secs: f64, before: &Snapshot, after: &Snapshot) -> Linerate {
    let (was, is) = (&before.wire, &after.wire);
    let rate = |n: u64| if secs > 0.0 { n as f64 / secs } else { 0.0 };
    let pkts = (is.tx_wire_pkts + is.rx_wire_pkts).saturating_sub(was.tx_wire_pkts + was.rx_wire_pkts);
    let bytes = (is.tx_bytes + is.rx_bytes).saturating_sub(was.tx_bytes + was.rx_bytes);
    let moved = |sends: bool| test.streams.iter().filter(|s| s.sends == sends).map(|s| s.counts.bytes).sum::<u64>();
    let (sent, received) = (moved(true), moved(false));
    let tcp = test.params.protocol == Protocol::Tcp;
    // The omitted time was copied, too, but not counted.
    let per_byte = |copied: u64, payload: u64| {
        (tcp && payload > 0 && test.params.omit_secs == 0).then(|| copied as f64 / payload as f64)
    };
    let mib = (sent + received) as f64 / f64::from(1 << 20);
    Linerate {
        schema: 1,
        wire_mode: "full",
        wire_cut: true,
        dma: "copy",
        touch: "none",
        wire_bits_per_second: Some(8.0 * rate(bytes)),
        wire_payload_bits_per_second: Some(8.0 * rate(sent + received)),
        wire_pkts: Some(pkts),
        wire_pkts_per_second: Some(rate(pkts)),
        rx_skbs: Some(is.rx_skbs.saturating_sub(was.rx_skbs)),
        tx_skbs: Some(is.tx_skbs.saturating_sub(was.tx_skbs)),
        copies_per_byte_tx: per_byte(after.copied.0 - before.copied.0, sent),
        copies_per_byte_rx: per_byte(after.copied.1 - before.copied.1, received),
        cpu_ns_per_mib: (mib >= 1.0).then(|| test.cpu_time().as_nanos() as f64 / mib),
        retrans_segs: after.retrans_segs.saturating_sub(before.retrans_segs),
        drops: drops_since(before, after),
        ..Linerate::default()
    }
}

fn drops_since(before: &Snapshot, after: &Snapshot) -> BTreeMap<&'static str, u64> {
    let was = |reason: &str| before.drops.get(reason).copied().unwrap_or(0);
    let grown = after.drops.iter().map(|(&reason, &count)| (reason, count.saturating_sub(was(reason))));
    grown.filter(|(_, count)| *count > 0).collect()
}
