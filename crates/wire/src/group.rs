//! Group membership: IGMP (RFC 2236, 3376) and MLD (RFC 2710, 3810), which differ in the size of an address.
//!
//! A host reads queries and writes reports. [`GroupQuery`] is a query of any version of either protocol, told apart by its
//! length as the RFCs demand; [`GroupRecord`] is one record of a version 3 (IGMP) or version 2 (MLD) report, without
//! sources, since the groups that this stack joins take any source; sources in records of others are stepped over. Older
//! reports name one group ([`emit_old`]). Times are decoded to milliseconds.
//!
//! The checksum of IGMP is verified and written here; that of MLD covers the IPv6 pseudo-header and is the ICMPv6
//! layer's on input. Router alert options and hop limits belong to the IP header, which the caller writes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{array, be16, byte, put};
use crate::checksum;
use crate::icmpv6::ty as icmpv6;
use crate::ip::proto;

/// IGMP's message types.
pub mod igmp {
    /// Membership query.
    pub const QUERY: u8 = 0x11;
    /// Version 1 report.
    pub const V1_REPORT: u8 = 0x12;
    /// Version 2 report.
    pub const V2_REPORT: u8 = 0x16;
    /// Version 2 leave.
    pub const V2_LEAVE: u8 = 0x17;
    /// Version 3 report.
    pub const V3_REPORT: u8 = 0x22;
}
/// MLD's version 1 report.
pub const MLD_V1_REPORT: u8 = 131;
/// MLD's version 1 done.
pub const MLD_V1_DONE: u8 = 132;

/// Why a message is discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupParseError {
    /// No length that a query can have, or fewer sources than it announces.
    Length,
    /// The IGMP checksum is wrong.
    Checksum,
    /// Not a query, or its group is not one.
    Type,
}

/// A query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupQuery<'a> {
    /// IGMP 1 to 3, MLD 1 or 2.
    pub version: u8,
    /// The group asked for; unspecified: all.
    pub group: IpAddr,
    /// A report is due within this time, milliseconds.
    pub max_resp_ms: u32,
    /// The querier's robustness variable; 0 = no word on it.
    pub robustness: u8,
    /// The querier's interval in seconds; 0 = no word on it.
    pub interval_s: u32,
    /// Addresses of the sources asked for; empty: any.
    pub sources: &'a [u8],
}

/// The two forms of a code: itself below `limit`, else a mantissa and an exponent of 3 bits.
const fn decode(code: u32, mant_bits: u32) -> u32 {
    if code < 1 << (mant_bits + 3) {
        return code;
    }
    let (mant, exp) = (code & ((1 << mant_bits) - 1), code >> mant_bits & 7);
    (mant | 1 << mant_bits) << (exp + 3)
}

impl<'a> GroupQuery<'a> {
    /// Reads an IGMP message of a host: a query.
    ///
    /// # Errors
    /// See [`GroupParseError`].
    pub fn parse_igmp(b: &'a [u8]) -> Result<Self, GroupParseError> {
        if b.len() < 8 {
            return Err(GroupParseError::Length);
        }
        if !checksum::is_valid(checksum::sum(b)) {
            return Err(GroupParseError::Checksum);
        }
        let group = Ipv4Addr::from(array::<4>(b, 4));
        if byte(b, 0) != igmp::QUERY || !(group.is_multicast() || group.is_unspecified()) {
            return Err(GroupParseError::Type);
        }
        let code = u32::from(byte(b, 1));
        let (version, max_resp_ms) = match (b.len(), code) {
            // RFC 2236 section 4: a version 1 querier leaves the field zero and expects 10 seconds.
            (8, 0) => (1, 10_000),
            (8, _) => (2, code * 100),
            (12.., _) => (3, decode(code, 4) * 100),
            _ => return Err(GroupParseError::Length),
        };
        Self::with_tail(version, group.into(), max_resp_ms, b.get(8..).unwrap_or(&[]), 4)
    }

    /// Reads an MLD query, whole with its ICMPv6 header; its checksum was verified.
    ///
    /// # Errors
    /// See [`GroupParseError`].
    pub fn parse_mld(b: &'a [u8]) -> Result<Self, GroupParseError> {
        let group = Ipv6Addr::from(array::<16>(b, 8));
        if byte(b, 0) != icmpv6::MLD_QUERY || !(group.is_multicast() || group.is_unspecified()) {
            return Err(GroupParseError::Type);
        }
        let code = u32::from(be16(b, 4));
        let (version, max_resp_ms) = match b.len() {
            24 => (1, code),
            28.. => (2, decode(code, 12)),
            _ => return Err(GroupParseError::Length),
        };
        Self::with_tail(version, group.into(), max_resp_ms, b.get(24..).unwrap_or(&[]), 16)
    }

    /// What the newest versions append: robustness, interval, sources.
    fn with_tail(
        version: u8,
        group: IpAddr,
        max_resp_ms: u32,
        tail: &'a [u8],
        addr_len: usize,
    ) -> Result<Self, GroupParseError> {
        let mut q = Self { version, group, max_resp_ms, robustness: 0, interval_s: 0, sources: &[] };
        if !tail.is_empty() {
            q.robustness = byte(tail, 0) & 7;
            q.interval_s = decode(u32::from(byte(tail, 1)), 4);
            let n = usize::from(be16(tail, 2)) * addr_len;
            q.sources = tail.get(4..4 + n).ok_or(GroupParseError::Length)?;
            if n > 0 && group.is_unspecified() {
                return Err(GroupParseError::Type);
            }
        }
        Ok(q)
    }
}

/// What a record says of its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// State: only the listed sources.
    ModeIsInclude = 1,
    /// State: all but the listed sources.
    ModeIsExclude = 2,
    /// Change: only the listed sources from now on; with none listed, a leave.
    ChangeToInclude = 3,
    /// Change: all but the listed sources from now on; with none listed, a join.
    ChangeToExclude = 4,
}

/// One record of a report, without sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupRecord {
    /// What it says.
    pub kind: RecordKind,
    /// The group.
    pub group: IpAddr,
}

const fn addr_len(v4: bool) -> usize {
    if v4 { 4 } else { 16 }
}

fn put_addr(b: &mut [u8], at: usize, a: IpAddr) {
    match a {
        IpAddr::V4(a) => put(b, at, &a.octets()),
        IpAddr::V6(a) => put(b, at, &a.octets()),
    }
}

/// Length of a report of `records` records in bytes: IGMPv3 (`v4`) or MLDv2.
pub const fn report_len(v4: bool, records: usize) -> usize {
    8 + records * (4 + addr_len(v4))
}

/// Writes a report into the first [`report_len`] bytes of `buf`. `pseudo` is the partial sum of the IPv6 pseudo-header
/// (see [`mld_pseudo`]); for IGMP it is 0. All records are of one family.
pub fn emit_report(records: &[GroupRecord], v4: bool, pseudo: u32, buf: &mut [u8]) {
    let len = report_len(v4, records.len());
    let Some(b) = buf.get_mut(..len) else {
        debug_assert!(false, "emit buffer is shorter than the report");
        return;
    };
    b.fill(0);
    put(b, 0, &[if v4 { igmp::V3_REPORT } else { icmpv6::MLDV2_REPORT }]);
    put(b, 6, &(records.len() as u16).to_be_bytes());
    let mut at = 8;
    for r in records {
        debug_assert_eq!(r.group.is_ipv4(), v4);
        put(b, at, &[r.kind as u8]);
        put_addr(b, at + 4, r.group);
        at += 4 + addr_len(v4);
    }
    finish(b, pseudo);
}

/// The records of a report, for those who listen to hosts; `None` for a message that contradicts itself.
pub fn parse_report(b: &[u8], v4: bool) -> Option<impl Iterator<Item = GroupRecord> + '_> {
    let ty = if v4 { igmp::V3_REPORT } else { icmpv6::MLDV2_REPORT };
    if b.len() < 8 || byte(b, 0) != ty {
        return None;
    }
    let step = move |at: usize| {
        let sources = usize::from(be16(b, at + 2)) * addr_len(v4);
        at + 4 + addr_len(v4) + sources + usize::from(byte(b, at + 1)) * 4
    };
    let n = be16(b, 6);
    let end = (0..n).try_fold(8, |at, _| Some(step(at)).filter(|end| *end <= b.len()));
    end?;
    let mut at = 8;
    Some((0..n).filter_map(move |_| {
        let here = at;
        at = step(at);
        let kind = match byte(b, here) {
            1 => RecordKind::ModeIsInclude,
            2 => RecordKind::ModeIsExclude,
            3 => RecordKind::ChangeToInclude,
            4 => RecordKind::ChangeToExclude,
            _ => return None,
        };
        let group = if v4 { array::<4>(b, here + 4).into() } else { array::<16>(b, here + 4).into() };
        Some(GroupRecord { kind, group })
    }))
}

/// Length of a message of the older versions in bytes.
pub const fn old_len(v4: bool) -> usize {
    if v4 { 8 } else { 24 }
}

/// Writes a report (or a leave) of the older versions into the first [`old_len`] bytes of `buf`: `ty` is one of
/// [`igmp`]'s, [`MLD_V1_REPORT`] or [`MLD_V1_DONE`].
pub fn emit_old(ty: u8, group: IpAddr, pseudo: u32, buf: &mut [u8]) {
    let Some(b) = buf.get_mut(..old_len(group.is_ipv4())) else {
        debug_assert!(false, "emit buffer is shorter than the report");
        return;
    };
    b.fill(0);
    put(b, 0, &[ty]);
    put_addr(b, if group.is_ipv4() { 4 } else { 8 }, group);
    finish(b, pseudo);
}

fn finish(b: &mut [u8], pseudo: u32) {
    let sum = checksum::combine(pseudo, checksum::sum(b));
    put(b, 2, &checksum::finish(sum).to_be_bytes());
}

/// Partial sum of the pseudo-header of an MLD message of `len` bytes.
pub fn mld_pseudo(src: &Ipv6Addr, dst: &Ipv6Addr, len: usize) -> u32 {
    checksum::pseudo_v6(src, dst, proto::ICMPV6, len as u32)
}

/// Writes a query, for those who test hosts: version 3 of IGMP or 2 of MLD, without sources. Returns its length.
pub fn emit_query(group: IpAddr, max_resp_code: u16, pseudo: u32, buf: &mut [u8]) -> usize {
    let v4 = group.is_ipv4();
    let len = if v4 { 12 } else { 28 };
    let Some(b) = buf.get_mut(..len) else { return 0 };
    b.fill(0);
    if v4 {
        put(b, 0, &[igmp::QUERY, max_resp_code as u8]);
        put_addr(b, 4, group);
        put(b, 8, &[2, 125]);
    } else {
        put(b, 0, &[icmpv6::MLD_QUERY]);
        put(b, 4, &max_resp_code.to_be_bytes());
        put_addr(b, 8, group);
        put(b, 24, &[2, 125]);
    }
    finish(b, pseudo);
    len
}
