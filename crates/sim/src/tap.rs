//! What crossed a link, in order: a hash of everything always, the frames themselves on request.
//!
//! The hash covers time, direction, bytes and fate of every frame of a link: two runs of one seed are equal when their
//! hashes are. Keeping frames costs memory, so a run that only asks "does it hold" keeps none; when it fails, the same
//! seed is run again with [`Keep::Heads`] or [`Keep::Whole`] and the capture is written from that run. Replay makes the
//! recorder free.
//!
//! Limits: [`EVENTS_MAX`] frames are kept, later ones are only hashed and counted.

use linerate_base::{Instant, TcpMib};
use linerate_wire::pcapng::{LinkType, PcapngWriter};

use crate::wire::Fate;

/// Most frames that are kept.
pub const EVENTS_MAX: usize = 400_000;
/// Bytes kept of a frame's beginning.
const SNAP_BYTES: usize = 128;

/// What is kept of each frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keep {
    /// Only the hash.
    #[default]
    Nothing,
    /// Headers.
    Heads,
    /// All bytes.
    Whole,
}

/// What a stack counted during the turn that sent a frame: why it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes.
    pub loss_probes: u64,
    /// Retransmissions of fast recovery.
    pub fast_retrans: u64,
    /// Retransmissions after a timeout.
    pub slow_start_retrans: u64,
    /// Retransmissions that were themselves found lost.
    pub lost_retransmit: u64,
    /// Handshake segments sent again.
    pub syn_retrans: u64,
    /// ACKs sent by the delayed-ACK timer.
    pub delayed_acks: u64,
    /// Duplicate SACKs.
    pub dsacks: u64,
    /// Challenge ACKs.
    pub challenge_acks: u64,
    /// Window probes.
    pub win_probes: u64,
    /// Keepalive probes.
    pub keep_alives: u64,
}

impl Counted {
    /// What grew from `a` to `b`.
    pub fn between(a: &TcpMib, b: &TcpMib) -> Self {
        Self {
            timeouts: b.timeouts - a.timeouts,
            loss_probes: b.loss_probes - a.loss_probes,
            fast_retrans: b.fast_retrans - a.fast_retrans,
            slow_start_retrans: b.slow_start_retrans - a.slow_start_retrans,
            lost_retransmit: b.lost_retransmit - a.lost_retransmit,
            syn_retrans: b.syn_retrans - a.syn_retrans,
            delayed_acks: b.delayed_acks - a.delayed_acks,
            dsacks: b.dsack_old_sent + b.dsack_ofo_sent - a.dsack_old_sent - a.dsack_ofo_sent,
            challenge_acks: b.challenge_ack - a.challenge_ack,
            win_probes: b.win_probe - a.win_probe,
            keep_alives: b.keep_alive - a.keep_alive,
        }
    }
}

/// One frame's story.
#[derive(Clone, Debug)]
pub struct TapEvent {
    /// Number on the link.
    pub id: u64,
    /// The side that sent it: 0 or 1.
    pub from: usize,
    /// When it was put on the wire.
    pub sent: Instant,
    /// Its length in bytes.
    pub len: u32,
    /// The first bytes, as sent.
    pub bytes: Vec<u8>,
    /// How it ended.
    pub fate: Fate,
    /// When it ended.
    pub ended: Instant,
    /// A bit was flipped on the way.
    pub flipped: Option<u32>,
    /// It was held back so that others overtook it.
    pub held_back: bool,
    /// It was marked on the way.
    pub ce: bool,
    /// The frame of which it is a copy made by the wire.
    pub copy_of: Option<u64>,
    /// What the sending stack counted during the turn in which it sent this; filled in by the network.
    pub counted: Option<Counted>,
}

/// The recorder of one link.
#[derive(Debug)]
pub struct Tap {
    keep: Keep,
    hash: u64,
    next_id: u64,
    events: Vec<TapEvent>,
    unrecorded: u64,
}

impl Tap {
    /// An empty recorder.
    pub fn new(keep: Keep) -> Self {
        Self { keep, hash: 0xcbf2_9ce4_8422_2325, next_id: 0, events: Vec::new(), unrecorded: 0 }
    }
    /// A number for a frame.
    pub fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
    /// Frames kept, in the order in which they were sent.
    pub fn events(&self) -> &[TapEvent] {
        &self.events
    }
    /// Frames kept, to annotate them.
    pub fn events_mut(&mut self) -> &mut [TapEvent] {
        &mut self.events
    }
    /// Frames seen but not kept although they should have been.
    pub fn unrecorded(&self) -> u64 {
        self.unrecorded
    }
    /// What is kept.
    pub fn keep(&self) -> Keep {
        self.keep
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    /// A frame was put on the wire.
    pub fn sent(&mut self, id: u64, from: usize, now: Instant, bytes: &[u8]) {
        self.mix(id << 1 | from as u64);
        self.mix(now.as_nanos());
        for word in bytes.chunks(8) {
            let mut w = [0; 8];
            w[..word.len()].copy_from_slice(word);
            self.mix(u64::from_le_bytes(w));
        }
        self.record(id, from, now, bytes);
    }

    fn record(&mut self, id: u64, from: usize, now: Instant, bytes: &[u8]) {
        let snap = match self.keep {
            Keep::Nothing => return,
            Keep::Heads => bytes.len().min(SNAP_BYTES),
            Keep::Whole => bytes.len(),
        };
        if self.events.len() >= EVENTS_MAX {
            self.unrecorded += 1;
            return;
        }
        self.events.push(TapEvent {
            id,
            from,
            sent: now,
            len: bytes.len() as u32,
            bytes: bytes[..snap].to_vec(),
            fate: Fate::InFlight,
            ended: now,
            flipped: None,
            held_back: false,
            ce: false,
            copy_of: None,
            counted: None,
        });
    }

    /// The wire made a copy of `of`.
    pub fn copied(&mut self, id: u64, of: u64) {
        self.mix(id ^ of.rotate_left(32));
        if self.events.len() >= EVENTS_MAX {
            return;
        }
        if let Some(original) = self.find(of).cloned() {
            self.events.push(TapEvent { id, copy_of: Some(of), flipped: None, held_back: false, ..original });
        }
    }

    /// The kept event of frame `id`.
    pub fn find(&mut self, id: u64) -> Option<&mut TapEvent> {
        // Numbers grow with the index, and events are few behind it: copies take numbers before they are pushed.
        let at = self.events.partition_point(|e| e.id < id);
        self.events.get_mut(at).filter(|e| e.id == id)
    }

    /// Frame `id` ended.
    pub fn ended(&mut self, id: u64, now: Instant, fate: Fate) {
        let code = match fate {
            Fate::InFlight => 0,
            Fate::Delivered => 1,
            Fate::Dropped(reason) => 2 + reason as u64,
        };
        self.mix(id << 8 | code);
        self.mix(now.as_nanos());
        if let Some(e) = self.find(id) {
            (e.fate, e.ended) = (fate, now);
        }
    }

    /// The capture: both directions on one interface each, with the fate as a comment where it is not plain delivery.
    pub fn to_pcapng(&self, title: &str, names: [&str; 2]) -> Vec<u8> {
        let mut w = PcapngWriter::new(title);
        let interfaces = names.map(|name| w.add_interface(name, LinkType::Raw));
        for e in &self.events {
            let comment = comment(e);
            w.packet(interfaces[e.from], e.sent.as_nanos(), &[&e.bytes], e.len, comment.as_deref());
        }
        w.take()
    }
}

/// What a reader of the capture should know about a frame.
fn comment(e: &TapEvent) -> Option<String> {
    let mut parts = Vec::new();
    match e.fate {
        Fate::Delivered => {}
        Fate::InFlight => parts.push("in flight at the end".to_string()),
        Fate::Dropped(reason) => parts.push(format!("dropped: {}", reason.name())),
    }
    if let Some(bit) = e.flipped {
        parts.push(format!("bit {bit} flipped on the way"));
    }
    if let Some(of) = e.copy_of {
        parts.push(format!("copy of frame {of} made by the wire"));
    }
    if e.held_back {
        parts.push("held back, overtaken".to_string());
    }
    if e.ce {
        parts.push("marked CE on the way".to_string());
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
