//! A writer of pcapng captures into memory.
//!
//! Blocks are appended to a byte vector that the caller drains into a file or keeps: one section header, one interface
//! description per interface, one enhanced packet block per packet, with a comment where one helps (a drop reason, a seed),
//! and at the end what was counted at each interface.
//! Little endian, timestamps in nanoseconds. Packets may come in pieces, as an skb's fragments, and may be longer than
//! 64 KB. A caller that captures for long drains or bounds the vector: nothing here does. There is no reader:
//! tshark is the oracle. Format: draft-ietf-opsawg-pcapng.

use alloc::vec::Vec;

/// What the bytes of an interface's packets begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum LinkType {
    /// Ethernet.
    Ethernet = 1,
    /// An IPv4 or IPv6 header.
    Raw = 101,
}

const SHB: u32 = 0x0a0d_0d0a;
const IDB: u32 = 1;
const ISB: u32 = 5;
const EPB: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const OPT_IF_NAME: u16 = 2;
const OPT_IF_DESCRIPTION: u16 = 3;
const OPT_IF_TSRESOL: u16 = 9;
const OPT_IF_FILTER: u16 = 11;
const OPT_EPB_FLAGS: u16 = 2;
const OPT_EPB_QUEUE: u16 = 6;
const OPT_ISB_STARTTIME: u16 = 2;
const OPT_ISB_ENDTIME: u16 = 3;
const OPT_ISB_IFRECV: u16 = 4;
const OPT_ISB_FILTERACCEPT: u16 = 6;
const OPT_ISB_OSDROP: u16 = 7;
const OPT_ISB_USRDELIV: u16 = 8;
const OPT_SHB_USERAPPL: u16 = 4;

/// What is said of an interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct InterfaceInfo<'a> {
    /// Its name.
    pub name: &'a str,
    /// More about it; empty: nothing.
    pub description: &'a str,
    /// Most bytes taken of a packet; 0: no limit.
    pub snaplen: u32,
    /// The filter in words; empty: all packets.
    pub filter: &'a str,
}

/// Which way a packet went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// In.
    Inbound,
    /// Out.
    Outbound,
}

/// What is said of a packet besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketInfo<'a> {
    /// A comment.
    pub comment: Option<&'a str>,
    /// Its direction, when known.
    pub direction: Option<Direction>,
    /// The queue of its interface.
    pub queue: Option<u32>,
}

/// What was counted at an interface between two times, nanoseconds since the epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InterfaceStats {
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Packets that came by.
    pub received: u64,
    /// Packets that the filter took.
    pub accepted: u64,
    /// Of these, lost for want of room.
    pub lost: u64,
    /// Packets in this file.
    pub delivered: u64,
}

/// The writer.
#[derive(Clone, Debug)]
pub struct PcapngWriter {
    out: Vec<u8>,
    interfaces: u32,
}

impl PcapngWriter {
    /// A new section, written by the program `application`.
    pub fn new(application: &str) -> Self {
        let mut w = Self { out: Vec::new(), interfaces: 0 };
        w.block(SHB, |o| {
            o.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
            o.extend_from_slice(&[1, 0, 0, 0]);
            o.extend_from_slice(&u64::MAX.to_le_bytes());
            option(o, OPT_SHB_USERAPPL, application.as_bytes());
            option(o, OPT_END, &[]);
        });
        w
    }

    /// Describes an interface and returns its id, for [`Self::packet`].
    pub fn add_interface(&mut self, name: &str, link: LinkType) -> u32 {
        self.describe_interface(link, &InterfaceInfo { name, ..InterfaceInfo::default() })
    }

    /// As [`Self::add_interface`], with all that there is to say of it.
    pub fn describe_interface(&mut self, link: LinkType, info: &InterfaceInfo<'_>) -> u32 {
        self.block(IDB, |o| {
            o.extend_from_slice(&(link as u16).to_le_bytes());
            // Reserved.
            o.extend_from_slice(&[0; 2]);
            o.extend_from_slice(&info.snaplen.to_le_bytes());
            option(o, OPT_IF_NAME, info.name.as_bytes());
            if !info.description.is_empty() {
                option(o, OPT_IF_DESCRIPTION, info.description.as_bytes());
            }
            option(o, OPT_IF_TSRESOL, &[9]);
            if !info.filter.is_empty() {
                // Of the kind "text in the language of libpcap".
                option(o, OPT_IF_FILTER, &[&[0], info.filter.as_bytes()].concat());
            }
            option(o, OPT_END, &[]);
        });
        self.interfaces += 1;
        self.interfaces - 1
    }

    /// Appends a packet seen `time_ns` nanoseconds after the epoch. `pieces` are its bytes as far as they were captured;
    /// `orig_len` is its length on the wire in bytes.
    pub fn packet(&mut self, interface: u32, time_ns: u64, pieces: &[&[u8]], orig_len: u32, comment: Option<&str>) {
        self.describe_packet(interface, time_ns, pieces, orig_len, &PacketInfo { comment, ..PacketInfo::default() });
    }

    /// As [`Self::packet`], with all that there is to say of it.
    pub fn describe_packet(
        &mut self,
        interface: u32,
        time_ns: u64,
        pieces: &[&[u8]],
        orig_len: u32,
        info: &PacketInfo<'_>,
    ) {
        debug_assert!(interface < self.interfaces, "interface {interface} was not described");
        let captured: usize = pieces.iter().map(|p| p.len()).sum();
        self.block(EPB, |o| {
            o.extend_from_slice(&interface.to_le_bytes());
            time(o, time_ns);
            o.extend_from_slice(&(captured as u32).to_le_bytes());
            o.extend_from_slice(&orig_len.to_le_bytes());
            for p in pieces {
                o.extend_from_slice(p);
            }
            pad(o);
            if let Some(text) = info.comment {
                option(o, OPT_COMMENT, text.as_bytes());
            }
            if let Some(direction) = info.direction {
                let flags = if direction == Direction::Inbound { 1_u32 } else { 2 };
                option(o, OPT_EPB_FLAGS, &flags.to_le_bytes());
            }
            if let Some(queue) = info.queue {
                option(o, OPT_EPB_QUEUE, &queue.to_le_bytes());
            }
            if info.comment.is_some() || info.direction.is_some() || info.queue.is_some() {
                option(o, OPT_END, &[]);
            }
        });
    }

    /// Appends what was counted at an interface.
    pub fn interface_stats(&mut self, interface: u32, stats: &InterfaceStats) {
        debug_assert!(interface < self.interfaces, "interface {interface} was not described");
        self.block(ISB, |o| {
            o.extend_from_slice(&interface.to_le_bytes());
            time(o, stats.end_ns);
            for (code, ns) in [(OPT_ISB_STARTTIME, stats.start_ns), (OPT_ISB_ENDTIME, stats.end_ns)] {
                let mut at = Vec::with_capacity(8);
                time(&mut at, ns);
                option(o, code, &at);
            }
            option(o, OPT_ISB_IFRECV, &stats.received.to_le_bytes());
            option(o, OPT_ISB_FILTERACCEPT, &stats.accepted.to_le_bytes());
            option(o, OPT_ISB_OSDROP, &stats.lost.to_le_bytes());
            option(o, OPT_ISB_USRDELIV, &stats.delivered.to_le_bytes());
            option(o, OPT_END, &[]);
        });
    }

    /// What was written and not yet taken.
    pub fn as_bytes(&self) -> &[u8] {
        &self.out
    }
    /// Takes what was written, to be appended to the file that has the bytes before it.
    pub fn take(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.out)
    }

    /// One block: type, total length, body, total length again.
    fn block(&mut self, ty: u32, body: impl FnOnce(&mut Vec<u8>)) {
        let start = self.out.len();
        self.out.extend_from_slice(&ty.to_le_bytes());
        self.out.extend_from_slice(&[0; 4]);
        body(&mut self.out);
        let len = ((self.out.len() - start + 4) as u32).to_le_bytes();
        self.out.extend_from_slice(&len);
        self.out[start + 4..start + 8].copy_from_slice(&len);
    }
}

/// A time stamp: the upper half first.
fn time(o: &mut Vec<u8>, ns: u64) {
    o.extend_from_slice(&((ns >> 32) as u32).to_le_bytes());
    o.extend_from_slice(&(ns as u32).to_le_bytes());
}

/// Zeros up to a multiple of 4; every block begins at one, also after a `take`.
fn pad(o: &mut Vec<u8>) {
    o.resize(o.len().next_multiple_of(4), 0);
}

/// One option; a text beyond 65535 bytes is cut.
fn option(o: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    o.extend_from_slice(&code.to_le_bytes());
    o.extend_from_slice(&len.to_le_bytes());
    o.extend_from_slice(value.get(..usize::from(len)).unwrap_or(&[]));
    pad(o);
}
