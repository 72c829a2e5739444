//! TCP options: the valid set that a connection works with, and the exact list for those who must see every byte.
//!
//! [`TcpOptions`] holds what this stack understands. It is written in Linux's order, so that a header has the same bytes
//! and length as the kernel's: MSS; timestamps, led by SACK-permitted in place of the two NOPs; NOP and window scale;
//! two NOPs and SACK blocks; Fast Open. It is read as Linux reads: unknown kinds are skipped, a later copy of an option
//! replaces an earlier one, a malformed length ends the reading, and handshake options count on a SYN only.
//! [`TcpOption`] and [`emit_list`] know nothing of that: they carry any sequence verbatim, padding included.
//! Nothing here allocates, and 40 bytes bound every loop.

use core::fmt;

use linerate_base::Seq;

use super::OPTIONS_LEN_MAX;
use crate::bytes::{array, be16, be32, put};

/// Option kinds (IANA "TCP Option Kind Numbers").
pub mod kind {
    /// End of option list.
    pub const EOL: u8 = 0;
    /// No operation.
    pub const NOP: u8 = 1;
    /// Maximum segment size (RFC 9293).
    pub const MSS: u8 = 2;
    /// Window scale (RFC 7323).
    pub const WSCALE: u8 = 3;
    /// SACK permitted (RFC 2018).
    pub const SACK_PERMITTED: u8 = 4;
    /// SACK blocks (RFC 2018).
    pub const SACK: u8 = 5;
    /// Timestamps (RFC 7323).
    pub const TIMESTAMPS: u8 = 8;
    /// MD5 signature (RFC 2385).
    pub const MD5: u8 = 19;
    /// TCP-AO (RFC 5925).
    pub const AO: u8 = 29;
    /// Multipath TCP (RFC 8684).
    pub const MPTCP: u8 = 30;
    /// Fast Open cookie (RFC 7413).
    pub const FAST_OPEN: u8 = 34;
    /// Accurate ECN order 0 (RFC 9768).
    pub const ACCECN0: u8 = 172;
    /// Accurate ECN order 1 (RFC 9768).
    pub const ACCECN1: u8 = 174;
    /// Shared experimental kind (RFC 6994).
    pub const EXP: u8 = 254;
}

/// Experiment id of Fast Open before it had a kind of its own (RFC 7413 appendix, RFC 6994).
const FAST_OPEN_EXID: u16 = 0xf989;
/// Longest Fast Open cookie in bytes (RFC 7413 section 4.1.1).
const COOKIE_LEN_MAX: usize = 16;
/// Shortest Fast Open cookie in bytes.
const COOKIE_LEN_MIN: usize = 4;

/// RFC 7323 timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timestamps {
    /// The sender's clock.
    pub val: u32,
    /// Echo of the other side's clock; 0 when nothing was received yet.
    pub ecr: u32,
}

/// Up to four SACK blocks, each `(left, right)`: received from `left` up to, not including, `right`.
#[derive(Clone, Copy, Default)]
pub struct SackBlocks {
    len: u8,
    blocks: [(Seq, Seq); Self::MAX],
}

impl SackBlocks {
    /// Most blocks that an option can hold.
    pub const MAX: usize = 4;
    /// No block.
    pub const EMPTY: Self = Self { len: 0, blocks: [(Seq(0), Seq(0)); Self::MAX] };

    /// The blocks of `slice`, the first four at most.
    pub fn from_slice(slice: &[(Seq, Seq)]) -> Self {
        let mut s = Self::EMPTY;
        for &(left, right) in slice.iter().take(Self::MAX) {
            s.push(left, right);
        }
        s
    }
    /// The blocks in wire order.
    #[inline]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        self.blocks.get(..usize::from(self.len)).unwrap_or(&[])
    }
    /// Appends a block; false (and nothing changes) when four are there.
    #[inline]
    pub fn push(&mut self, left: Seq, right: Seq) -> bool {
        match self.blocks.get_mut(usize::from(self.len)) {
            Some(b) => {
                *b = (left, right);
                self.len += 1;
                true
            }
            None => false,
        }
    }
    /// Number of blocks, 0 to 4.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }
    /// True without blocks.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Blocks in the body of a SACK option: `None` unless it is 1 to 4 whole blocks.
    fn parse(body: &[u8]) -> Option<Self> {
        if body.is_empty() || !body.len().is_multiple_of(8) || body.len() > 8 * Self::MAX {
            return None;
        }
        let mut s = Self::EMPTY;
        for b in body.chunks_exact(8) {
            s.push(Seq(be32(b, 0)), Seq(be32(b, 4)));
        }
        Some(s)
    }
}

impl PartialEq for SackBlocks {
    fn eq(&self, o: &Self) -> bool {
        self.as_slice() == o.as_slice()
    }
}
impl Eq for SackBlocks {}
impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, (l, r)) in self.as_slice().iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{}:{}", l.0, r.0)?;
        }
        f.write_str("]")
    }
}

/// A Fast Open cookie (RFC 7413), or the request for one when it is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FastOpenCookie {
    exp: bool,
    len: u8,
    bytes: [u8; COOKIE_LEN_MAX],
}

impl FastOpenCookie {
    /// A cookie, empty for a request; `exp` selects the experimental kind 254. `None` unless the length is even and 0 or
    /// 4 to 16 bytes.
    pub fn new(exp: bool, cookie: &[u8]) -> Option<Self> {
        let fits = cookie.is_empty() || (COOKIE_LEN_MIN..=COOKIE_LEN_MAX).contains(&cookie.len());
        if !fits || !cookie.len().is_multiple_of(2) {
            return None;
        }
        let mut c = Self { exp, len: cookie.len() as u8, bytes: [0; COOKIE_LEN_MAX] };
        put(&mut c.bytes, 0, cookie);
        Some(c)
    }
    /// The cookie's bytes; empty in a request.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }
    /// True when it came as (or is to be sent as) the experimental option.
    pub const fn is_exp(&self) -> bool {
        self.exp
    }
    /// Length with padding, a multiple of 4.
    fn emit_len(self) -> usize {
        (2 + if self.exp { 2 } else { 0 } + usize::from(self.len)).next_multiple_of(4)
    }
}

/// The options that this stack understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions {
    /// Maximum segment size in bytes, never 0 when parsed; SYN only.
    pub mss: Option<u16>,
    /// Window scale as received (values above 14 are the receiver's to clamp); SYN only.
    pub wscale: Option<u8>,
    /// SACK permitted; SYN only.
    pub sack_permitted: bool,
    /// Timestamps.
    pub ts: Option<Timestamps>,
    /// SACK blocks. At most 3 are sent beside timestamps, 4 without; those that do not fit are left out.
    pub sack: SackBlocks,
    /// Fast Open cookie or request; SYN only.
    pub fastopen: Option<FastOpenCookie>,
    /// An MD5 signature was there. Never sent from here: its digest needs a key and the payload.
    pub md5: bool,
}

/// NOP, NOP, kind 8, length 10: how every stack aligns the timestamps of an established connection.
const ALIGNED_TS: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

impl TcpOptions {
    /// No option.
    pub const NONE: Self = Self {
        mss: None,
        wscale: None,
        sack_permitted: false,
        ts: None,
        sack: SackBlocks::EMPTY,
        fastopen: None,
        md5: false,
    };

    /// Reads option bytes; `syn` says whether the segment is a SYN, without which handshake options do not count.
    #[inline]
    pub fn parse(bytes: &[u8], syn: bool) -> Self {
        let mut o = Self::NONE;
        if bytes.is_empty() {
            return o;
        }
        // Nearly every segment of an established connection: one compare instead of a walk.
        if let Ok(b) = <&[u8; 12]>::try_from(bytes)
            && b[..4] == ALIGNED_TS
        {
            o.ts = Some(Timestamps { val: be32(b, 4), ecr: be32(b, 8) });
            return o;
        }
        o.parse_slow(bytes, syn);
        o
    }

    fn parse_slow(&mut self, bytes: &[u8], syn: bool) {
        let mut rest = bytes;
        while let Some((&k, after)) = rest.split_first() {
            if k == kind::NOP {
                rest = after;
                continue;
            }
            let len = after.first().copied().map_or(0, usize::from);
            // Below 2 the walk would not advance; beyond the end there is no such option.
            let (Some(body), false) = (rest.get(2..len), k == kind::EOL) else { return };
            self.take(k, body, syn);
            rest = rest.get(len..).unwrap_or_default();
        }
    }

    /// One option that is not padding. What a connection does not care about is skipped.
    fn take(&mut self, k: u8, body: &[u8], syn: bool) {
        match (k, body.len()) {
            (kind::MSS, 2) if syn && be16(body, 0) != 0 => self.mss = Some(be16(body, 0)),
            (kind::WSCALE, 1) if syn => self.wscale = Some(array::<1>(body, 0)[0]),
            (kind::SACK_PERMITTED, 0) if syn => self.sack_permitted = true,
            (kind::TIMESTAMPS, 8) => self.ts = Some(Timestamps { val: be32(body, 0), ecr: be32(body, 4) }),
            (kind::SACK, _) => self.sack = SackBlocks::parse(body).unwrap_or(self.sack),
            (kind::MD5, 16) => self.md5 = true,
            (kind::FAST_OPEN | kind::EXP, _) if syn => {
                if let Some(TcpOption::FastOpen { exp, cookie }) = TcpOption::from_parts(k, body)
                    && let Some(c) = FastOpenCookie::new(exp, cookie.as_slice())
                {
                    self.fastopen = Some(c);
                }
            }
            _ => {}
        }
    }

    /// Nothing but timestamps, or not even those: what nearly every segment of an established connection carries.
    #[inline]
    const fn is_usual(&self) -> bool {
        self.mss.is_none()
            && self.wscale.is_none()
            && !self.sack_permitted
            && self.sack.is_empty()
            && self.fastopen.is_none()
    }

    /// How many SACK blocks and whether the Fast Open option fit, and the length of all options: what `emit` writes.
    fn layout(&self) -> (usize, bool, usize) {
        let mut len = 0;
        len += if self.mss.is_some() { 4 } else { 0 };
        len += if self.ts.is_some() {
            12
        } else if self.sack_permitted {
            4
        } else {
            0
        };
        len += if self.wscale.is_some() { 4 } else { 0 };
        let mut blocks = 0;
        if !self.sack.is_empty() {
            blocks = self.sack.len().min((OPTIONS_LEN_MAX - len - 4) / 8);
            len += if blocks > 0 { 4 + 8 * blocks } else { 0 };
        }
        let cookie_len = self.fastopen.map_or(0, FastOpenCookie::emit_len);
        let cookie = cookie_len > 0 && len + cookie_len <= OPTIONS_LEN_MAX;
        (blocks, cookie, if cookie { len + cookie_len } else { len })
    }

    /// Bytes that [`Self::emit`] writes: 0 to 40, a multiple of 4.
    #[inline]
    pub fn emit_len(&self) -> usize {
        if !self.is_usual() {
            return self.layout().2;
        }
        if self.ts.is_some() { 12 } else { 0 }
    }

    /// Writes the options into `buf`, which has at least [`Self::emit_len`] bytes.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        match (self.ts, buf.first_chunk_mut::<12>()) {
            (Some(ts), Some(to)) if self.is_usual() => {
                to[0..4].copy_from_slice(&ALIGNED_TS);
                to[4..8].copy_from_slice(&ts.val.to_be_bytes());
                to[8..12].copy_from_slice(&ts.ecr.to_be_bytes());
            }
            _ => self.emit_all(buf),
        }
    }

    fn emit_all(&self, buf: &mut [u8]) {
        let (blocks, cookie, _) = self.layout();
        let mut at = 0;
        let mut write = |v: &[u8]| {
            put(buf, at, v);
            at += v.len();
        };
        if let Some(mss) = self.mss {
            let m = mss.to_be_bytes();
            write(&[kind::MSS, 4, m[0], m[1]]);
        }
        if let Some(ts) = self.ts {
            write(&if self.sack_permitted { [kind::SACK_PERMITTED, 2, kind::TIMESTAMPS, 10] } else { ALIGNED_TS });
            write(&ts.val.to_be_bytes());
            write(&ts.ecr.to_be_bytes());
        } else if self.sack_permitted {
            write(&[kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.wscale {
            write(&[kind::NOP, kind::WSCALE, 3, shift]);
        }
        if blocks > 0 {
            write(&[kind::NOP, kind::NOP, kind::SACK, (2 + 8 * blocks) as u8]);
            for (left, right) in self.sack.as_slice().iter().take(blocks) {
                write(&left.0.to_be_bytes());
                write(&right.0.to_be_bytes());
            }
        }
        if let (Some(c), true) = (self.fastopen, cookie) {
            let body = c.as_slice();
            if c.exp {
                let [hi, lo] = FAST_OPEN_EXID.to_be_bytes();
                write(&[kind::EXP, 4 + c.len, hi, lo]);
            } else {
                write(&[kind::FAST_OPEN, 2 + c.len]);
            }
            write(body);
            let used = 2 + if c.exp { 2 } else { 0 } + body.len();
            write(&[kind::NOP; 2][..c.emit_len() - used]);
        }
    }
}

/// The bytes of an option that this crate does not interpret: 0 to 38.
#[derive(Clone, Copy)]
pub struct OptionBytes {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl OptionBytes {
    /// Most bytes behind kind and length that 40 bytes of options can hold.
    pub const MAX: usize = OPTIONS_LEN_MAX - 2;

    /// A copy of `bytes`; `None` above 38.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > Self::MAX {
            return None;
        }
        let mut b = Self { len: bytes.len() as u8, bytes: [0; Self::MAX] };
        put(&mut b.bytes, 0, bytes);
        Some(b)
    }
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

impl PartialEq for OptionBytes {
    fn eq(&self, o: &Self) -> bool {
        self.as_slice() == o.as_slice()
    }
}
impl Eq for OptionBytes {}
impl fmt::Debug for OptionBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for b in self.as_slice() {
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

/// One option as it stands on the wire.
///
/// A known kind with a length that does not fit it is [`TcpOption::Unknown`], so that a list is written back unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpOption {
    /// End of list, one byte; padding shows as more of them.
    Eol,
    /// No operation, one byte.
    Nop,
    /// Maximum segment size in bytes.
    Mss(u16),
    /// Window scale shift.
    Wscale(u8),
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks, at least one.
    Sack(SackBlocks),
    /// Timestamps.
    Timestamps(Timestamps),
    /// Fast Open; any cookie length, legal or not.
    FastOpen {
        /// As experiment 0xf989 of kind 254.
        exp: bool,
        /// The cookie, empty in a request.
        cookie: OptionBytes,
    },
    /// MD5 signature.
    Md5([u8; 16]),
    /// Everything else.
    Unknown {
        /// The kind.
        kind: u8,
        /// What follows the length byte.
        data: OptionBytes,
    },
}

impl TcpOption {
    /// Iterates over option bytes in wire order, beyond an end-of-list too; stops at a malformed length
    /// ([`OptionIter::rest`] has what is left then).
    pub fn parse_list(bytes: &[u8]) -> OptionIter<'_> {
        OptionIter { rest: bytes }
    }

    /// Length on the wire in bytes.
    pub fn emit_len(&self) -> usize {
        match self {
            Self::Eol | Self::Nop => 1,
            Self::Mss(_) => 4,
            Self::Wscale(_) => 3,
            Self::SackPermitted => 2,
            Self::Sack(s) => 2 + 8 * s.len(),
            Self::Timestamps(_) => 10,
            Self::FastOpen { exp, cookie } => 2 + if *exp { 2 } else { 0 } + cookie.as_slice().len(),
            Self::Md5(_) => 18,
            Self::Unknown { data, .. } => 2 + data.as_slice().len(),
        }
    }

    fn from_parts(k: u8, body: &[u8]) -> Option<Self> {
        let data = OptionBytes::new(body)?;
        Some(match (k, body.len()) {
            (kind::MSS, 2) => Self::Mss(be16(body, 0)),
            (kind::WSCALE, 1) => Self::Wscale(array::<1>(body, 0)[0]),
            (kind::SACK_PERMITTED, 0) => Self::SackPermitted,
            (kind::SACK, _) => SackBlocks::parse(body).map_or(Self::Unknown { kind: k, data }, Self::Sack),
            (kind::TIMESTAMPS, 8) => Self::Timestamps(Timestamps { val: be32(body, 0), ecr: be32(body, 4) }),
            (kind::MD5, 16) => Self::Md5(array(body, 0)),
            (kind::FAST_OPEN, _) => Self::FastOpen { exp: false, cookie: data },
            (kind::EXP, 2..) if be16(body, 0) == FAST_OPEN_EXID => {
                Self::FastOpen { exp: true, cookie: OptionBytes::new(body.get(2..)?)? }
            }
            _ => Self::Unknown { kind: k, data },
        })
    }

    fn emit(&self, buf: &mut [u8]) {
        let len = self.emit_len() as u8;
        let mut head = |k: u8| put(buf, 0, &[k, len]);
        match self {
            Self::Eol => put(buf, 0, &[kind::EOL]),
            Self::Nop => put(buf, 0, &[kind::NOP]),
            Self::Mss(mss) => {
                head(kind::MSS);
                put(buf, 2, &mss.to_be_bytes());
            }
            Self::Wscale(shift) => {
                head(kind::WSCALE);
                put(buf, 2, &[*shift]);
            }
            Self::SackPermitted => head(kind::SACK_PERMITTED),
            Self::Sack(s) => {
                head(kind::SACK);
                for (i, (left, right)) in s.as_slice().iter().enumerate() {
                    put(buf, 2 + 8 * i, &left.0.to_be_bytes());
                    put(buf, 6 + 8 * i, &right.0.to_be_bytes());
                }
            }
            Self::Timestamps(ts) => {
                head(kind::TIMESTAMPS);
                put(buf, 2, &ts.val.to_be_bytes());
                put(buf, 6, &ts.ecr.to_be_bytes());
            }
            Self::FastOpen { exp: false, cookie } => {
                head(kind::FAST_OPEN);
                put(buf, 2, cookie.as_slice());
            }
            Self::FastOpen { exp: true, cookie } => {
                head(kind::EXP);
                put(buf, 2, &FAST_OPEN_EXID.to_be_bytes());
                put(buf, 4, cookie.as_slice());
            }
            Self::Md5(digest) => {
                head(kind::MD5);
                put(buf, 2, digest);
            }
            Self::Unknown { kind, data } => {
                head(*kind);
                put(buf, 2, data.as_slice());
            }
        }
    }
}

/// Iterator of [`TcpOption::parse_list`].
#[derive(Clone, Debug)]
pub struct OptionIter<'a> {
    rest: &'a [u8],
}

impl<'a> OptionIter<'a> {
    /// The bytes not read yet; not empty after the end when a length was malformed.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl Iterator for OptionIter<'_> {
    type Item = TcpOption;

    fn next(&mut self) -> Option<TcpOption> {
        let (&k, after) = self.rest.split_first()?;
        if k == kind::EOL || k == kind::NOP {
            self.rest = after;
            return Some(if k == kind::EOL { TcpOption::Eol } else { TcpOption::Nop });
        }
        let len = usize::from(*after.first()?);
        // Below 2 the walk would not advance; beyond the end there is no such option.
        let body = self.rest.get(2..len)?;
        let opt = TcpOption::from_parts(k, body)?;
        self.rest = self.rest.get(len..)?;
        Some(opt)
    }
}

/// Writes `list` verbatim, one option after the other and without padding, and returns the bytes written; `None` (and
/// `buf` unspecified) when it does not fit.
pub fn emit_list(list: &[TcpOption], buf: &mut [u8]) -> Option<usize> {
    let mut at = 0;
    for opt in list {
        let len = opt.emit_len();
        opt.emit(buf.get_mut(at..at + len)?);
        at += len;
    }
    Some(at)
}
