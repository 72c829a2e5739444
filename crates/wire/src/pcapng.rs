//! A writer of pcapng captures into memory.
//!
//! Blocks are appended to a byte vector that the caller drains into a file or keeps: one section header, one interface
//! description per interface, one enhanced packet block per packet, with a comment where one helps (a drop reason, a seed).
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
const EPB: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const OPT_IF_NAME: u16 = 2;
const OPT_IF_TSRESOL: u16 = 9;
const OPT_SHB_USERAPPL: u16 = 4;

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
        self.block(IDB, |o| {
            o.extend_from_slice(&(link as u16).to_le_bytes());
            // Reserved, then a snap length of 0: no limit.
            o.extend_from_slice(&[0; 6]);
            option(o, OPT_IF_NAME, name.as_bytes());
            option(o, OPT_IF_TSRESOL, &[9]);
            option(o, OPT_END, &[]);
        });
        self.interfaces += 1;
        self.interfaces - 1
    }

    /// Appends a packet seen `time_ns` nanoseconds after the epoch. `pieces` are its bytes as far as they were captured;
    /// `orig_len` is its length on the wire in bytes.
    pub fn packet(&mut self, interface: u32, time_ns: u64, pieces: &[&[u8]], orig_len: u32, comment: Option<&str>) {
        debug_assert!(interface < self.interfaces, "interface {interface} was not described");
        let captured: usize = pieces.iter().map(|p| p.len()).sum();
        self.block(EPB, |o| {
            o.extend_from_slice(&interface.to_le_bytes());
            o.extend_from_slice(&((time_ns >> 32) as u32).to_le_bytes());
            o.extend_from_slice(&(time_ns as u32).to_le_bytes());
            o.extend_from_slice(&(captured as u32).to_le_bytes());
            o.extend_from_slice(&orig_len.to_le_bytes());
            for p in pieces {
                o.extend_from_slice(p);
            }
            pad(o);
            if let Some(text) = comment {
                option(o, OPT_COMMENT, text.as_bytes());
                option(o, OPT_END, &[]);
            }
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
