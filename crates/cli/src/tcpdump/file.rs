//! Packets as a pcapng file.
//!
//! Each pair of device and point is an interface (`tun0:rx`), described when its first packet comes; a point that shows
//! both frames and bare packets (drops on an Ethernet device) is two. What else is known of a packet stands in its options:
//! direction, queue, and as a comment why and where it was dropped and what a super-packet stands for. Each packet is written
//! as soon as it is here, whole blocks at a time, so the file can be read while it grows and after any end. At the end
//! stands what was counted at each interface.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use linerate::control::{CaptureRequest, PacketRecord, PointRecord};
use linerate_wire::pcapng::{Direction, InterfaceInfo, InterfaceStats, LinkType, PacketInfo, PcapngWriter};

/// Device, point, and whether its packets begin with an Ethernet header.
type Key = (String, String, bool);

/// A file that grows.
pub(super) struct PcapFile {
    name: String,
    out: Box<dyn Write>,
    writer: PcapngWriter,
    /// Number, and packets written.
    interfaces: BTreeMap<Key, (u32, u64)>,
    snaplen: u32,
    filter: String,
    first_ns: u64,
    last_ns: u64,
}

impl PcapFile {
    pub(super) fn create(path: &Path, request: &CaptureRequest) -> Result<Self, String> {
        let name = path.display().to_string();
        let out: Box<dyn Write> = if path == Path::new("-") {
            Box::new(std::io::stdout())
        } else {
            Box::new(File::create(path).map_err(|e| format!("{name}: {e}"))?)
        };
        let mut this = Self {
            name,
            out,
            writer: PcapngWriter::new(concat!("linerate ", env!("CARGO_PKG_VERSION"))),
            interfaces: BTreeMap::new(),
            snaplen: request.snaplen,
            filter: request.filter.clone(),
            first_ns: 0,
            last_ns: 0,
        };
        this.flush()?;
        Ok(this)
    }

    fn flush(&mut self) -> Result<(), String> {
        let bytes = self.writer.take();
        self.out.write_all(&bytes).and_then(|()| self.out.flush()).map_err(|e| format!("{}: {e}", self.name))
    }

    fn interface(&mut self, device: &str, point: &str, ethernet: bool) -> &mut (u32, u64) {
        let key = (device.to_owned(), point.to_owned(), ethernet);
        self.interfaces.entry(key).or_insert_with(|| {
            let name = format!("{device}:{point}");
            let description = match point {
                "rx" => "as the device gave it, before merging",
                "rx-gro" => "received, after merging",
                "tx" => "as the stack gave it to the device, before cutting and summing",
                _ => "dropped; why and where is in the comments",
            };
            let link = if ethernet { LinkType::Ethernet } else { LinkType::Raw };
            let info = InterfaceInfo { name: &name, description, snaplen: self.snaplen, filter: &self.filter };
            (self.writer.describe_interface(link, &info), 0)
        })
    }

    pub(super) fn packet(&mut self, p: &PacketRecord) -> Result<(), String> {
        let (interface, written) = self.interface(&p.device, &p.point, p.ethernet);
        *written += 1;
        let interface = *interface;
        let comment = comment(p);
        let direction = match p.point.as_str() {
            "rx" | "rx-gro" => Some(Direction::Inbound),
            "tx" => Some(Direction::Outbound),
            _ => None,
        };
        let info = PacketInfo { comment: comment.as_deref(), direction, queue: Some(u32::from(p.queue)) };
        self.writer.describe_packet(interface, p.at_ns, &[&p.data], p.len, &info);
        if self.first_ns == 0 {
            self.first_ns = p.at_ns;
        }
        self.last_ns = self.last_ns.max(p.at_ns);
        self.flush()
    }

    /// Writes what was counted.
    pub(super) fn finish(&mut self, points: &[PointRecord]) -> Result<(), String> {
        let mut sums: BTreeMap<(&str, &str), InterfaceStats> = BTreeMap::new();
        for p in points {
            let sum = sums.entry((&p.device, &p.point)).or_default();
            sum.received += p.seen_skbs;
            sum.accepted += p.matched_skbs;
            sum.lost += p.lost_skbs;
        }
        for ((device, point), mut stats) in sums {
            (stats.start_ns, stats.end_ns) = (self.first_ns, self.last_ns);
            // What came by without one being taken is an interface, too.
            let of_point = |key: &Key| key.0 == device && key.1 == point;
            if !self.interfaces.keys().any(of_point) {
                self.interface(device, point, false);
            }
            let known: Vec<_> =
                self.interfaces.iter().filter(|(key, _)| of_point(key)).map(|(_, found)| *found).collect();
            for (n, (id, written)) in known.into_iter().enumerate() {
                // Counts are of the point: the second interface of it has none of its own.
                let counted =
                    if n == 0 { stats } else { InterfaceStats { received: 0, accepted: 0, lost: 0, ..stats } };
                self.writer.interface_stats(id, &InterfaceStats { delivered: written, ..counted });
            }
        }
        self.flush()
    }
}

/// What a reader should know of a packet.
fn comment(p: &PacketRecord) -> Option<String> {
    let dropped = p.dropped.as_ref().map(|d| format!("dropped: {} at {}", d.reason, d.place));
    let many =
        (p.wire_pkts > 1).then(|| format!("super-packet of {} wire frames, {} bytes each", p.wire_pkts, p.gso_size));
    match (dropped, many) {
        (Some(a), Some(b)) => Some(format!("{a}; {b}")),
        (a, b) => a.or(b),
    }
}
