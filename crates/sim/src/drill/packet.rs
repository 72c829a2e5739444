//! IP packets as bytes: building those a script injects, decoding those the stack sends.
//!
//! The runner is a *judge* of the stack under test, so it shares no code with it: a bug in a common parser would hide
//! itself. Headers are plain (no IPv4 options, no extension headers); payload is zeros; all checksums are real. Decoding
//! verifies IP version, header length, total length and every checksum, and says what is wrong in the words of the field
//! concerned. Invariants: `build_*` followed by `decode` gives the same fields back; packets are at most 64 KB. It does not
//! map sequence numbers or compare with the script (`matcher` does), and it reassembles nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ast::TcpOption;

pub(crate) const PROTO_ICMP: u8 = 1;
pub(crate) const PROTO_TCP: u8 = 6;
pub(crate) const PROTO_UDP: u8 = 17;
pub(crate) const PROTO_ICMPV6: u8 = 58;
/// Magic behind the experimental Fast Open option kind 254 (RFC 7413 section 4.1.1).
const FASTOPEN_MAGIC: [u8; 2] = [0xf9, 0x89];

/// Bytes of one option on the wire.
fn option_len(o: &TcpOption) -> usize {
    match o {
        TcpOption::Eol | TcpOption::Nop => 1,
        TcpOption::Mss(_) => 4,
        TcpOption::Wscale(_) => 3,
        TcpOption::SackOk => 2,
        TcpOption::Sack(blocks) => 2 + 8 * blocks.len(),
        TcpOption::Timestamp { .. } => 10,
        TcpOption::FastOpen(cookie) => 2 + cookie.len(),
        TcpOption::FastOpenExp(cookie) => 4 + cookie.len(),
        TcpOption::Md5(digest) => 2 + digest.len(),
        TcpOption::AccEcn { counters, .. } => 2 + 3 * counters.len(),
        TcpOption::Unknown { data, .. } => 2 + data.len(),
    }
}

/// Bytes of an option list on the wire.
pub(crate) fn options_len(list: &[TcpOption]) -> usize {
    list.iter().map(option_len).sum()
}

/// The wire form of an option list (values already live).
pub(crate) fn emit_options(list: &[TcpOption]) -> Vec<u8> {
    let mut out = Vec::new();
    for o in list {
        let len = option_len(o) as u8;
        match o {
            TcpOption::Eol => out.push(0),
            TcpOption::Nop => out.push(1),
            TcpOption::Mss(mss) => {
                out.extend([2, len]);
                out.extend(mss.to_be_bytes());
            }
            TcpOption::Wscale(shift) => out.extend([3, len, *shift]),
            TcpOption::SackOk => out.extend([4, len]),
            TcpOption::Sack(blocks) => {
                out.extend([5, len]);
                for (left, right) in blocks {
                    out.extend(left.to_be_bytes());
                    out.extend(right.to_be_bytes());
                }
            }
            TcpOption::Timestamp { val, ecr } => {
                out.extend([8, len]);
                out.extend(val.to_be_bytes());
                out.extend(ecr.to_be_bytes());
            }
            TcpOption::Md5(digest) => {
                out.extend([19, len]);
                out.extend(digest);
            }
            TcpOption::FastOpen(cookie) => {
                out.extend([34, len]);
                out.extend(cookie);
            }
            TcpOption::FastOpenExp(cookie) => {
                out.extend([254, len]);
                out.extend(FASTOPEN_MAGIC);
                out.extend(cookie);
            }
            TcpOption::AccEcn { kind, counters } => {
                out.extend([*kind, len]);
                counters.iter().for_each(|c| out.extend(&c.to_be_bytes()[1..]));
            }
            TcpOption::Unknown { kind, data } => {
                out.extend([*kind, len]);
                out.extend(data);
            }
        }
    }
    out
}

fn be16(b: &[u8]) -> u16 {
    b.iter().take(2).fold(0, |n, &x| n << 8 | u16::from(x))
}

fn be32(b: &[u8]) -> u32 {
    b.iter().take(4).fold(0, |n, &x| n << 8 | u32::from(x))
}

/// The options of a live packet, in order. An end-of-list option ends the list; padding behind it is not reported.
pub(crate) fn parse_options(mut bytes: &[u8]) -> Result<Vec<TcpOption>, String> {
    let mut out = Vec::new();
    while let [kind, rest @ ..] = bytes {
        if *kind < 2 {
            out.push(if *kind == 0 { TcpOption::Eol } else { TcpOption::Nop });
            if *kind == 0 {
                break;
            }
            bytes = rest;
            continue;
        }
        let len = rest.first().map_or(0, |&l| usize::from(l));
        let Some(data) = bytes.get(2..len) else {
            return Err(format!("TCP option {kind} has the bad length {len}"));
        };
        out.push(one_option(*kind, data));
        bytes = bytes.get(len..).unwrap_or(&[]);
    }
    Ok(out)
}

fn one_option(kind: u8, data: &[u8]) -> TcpOption {
    match (kind, data.len()) {
        (2, 2) => TcpOption::Mss(be16(data)),
        (3, 1) => TcpOption::Wscale(data[0]),
        (4, 0) => TcpOption::SackOk,
        (5, 8 | 16 | 24 | 32) => TcpOption::Sack(data.chunks(8).map(|b| (be32(b), be32(&b[4..]))).collect()),
        (8, 8) => TcpOption::Timestamp { val: be32(data), ecr: be32(&data[4..]) },
        (19, 16) => TcpOption::Md5(data.to_vec()),
        (34, _) => TcpOption::FastOpen(data.to_vec()),
        (254, 2..) if data[..2] == FASTOPEN_MAGIC => TcpOption::FastOpenExp(data[2..].to_vec()),
        (172 | 174, 3 | 6 | 9) => {
            let counters = data.chunks(3).map(|c| be32(&[0, c[0], c[1], c[2]])).collect();
            TcpOption::AccEcn { kind, counters }
        }
        _ => TcpOption::Unknown { kind, data: data.to_vec() },
    }
}

/// The IP header of a packet to build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpFields {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) flow_label: u32,
}

/// A TCP header in live values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TcpFields {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// All 12 bits behind the data offset.
    pub(crate) flags: u16,
    pub(crate) win: u16,
    pub(crate) urg: u16,
    pub(crate) options: Vec<TcpOption>,
}

/// One's complement sum of `bytes`, not yet folded to a checksum.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | c.get(1).map_or(0, |&b| u64::from(b))).sum()
}

fn fold(mut n: u64) -> u16 {
    while n > 0xffff {
        n = (n >> 16) + (n & 0xffff);
    }
    !(n as u16)
}

fn pseudo_sum(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> u64 {
    let addresses = match (src, dst) {
        (IpAddr::V4(s), IpAddr::V4(d)) => sum(&s.octets()) + sum(&d.octets()),
        (IpAddr::V6(s), IpAddr::V6(d)) => sum(&s.octets()) + sum(&d.octets()),
        _ => 0,
    };
    addresses + u64::from(protocol) + len as u64
}

/// An IP packet around `l4`.
pub(crate) fn build_ip(ip: &IpFields, protocol: u8, l4: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(l4.len() + 40);
    match (ip.src, ip.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            out.extend([0x45, ip.tos]);
            out.extend(((l4.len() + 20) as u16).to_be_bytes());
            out.extend([0, 0, 0, 0, ip.ttl, protocol, 0, 0]);
            out.extend(src.octets());
            out.extend(dst.octets());
            let check = fold(sum(&out));
            out[10..12].copy_from_slice(&check.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let first = 6u32 << 28 | u32::from(ip.tos) << 20 | (ip.flow_label & 0xf_ffff);
            out.extend(first.to_be_bytes());
            out.extend((l4.len() as u16).to_be_bytes());
            out.extend([protocol, ip.ttl]);
            out.extend(src.octets());
            out.extend(dst.octets());
        }
        _ => unreachable!("both ends of a packet are of one family: the variant chose them"),
    }
    out.extend(l4);
    out
}

/// A TCP packet with `payload_len` zero bytes.
pub(crate) fn build_tcp(ip: &IpFields, tcp: &TcpFields, payload_len: usize) -> Vec<u8> {
    let options = emit_options(&tcp.options);
    let header_len = 20 + options.len();
    let mut l4 = Vec::with_capacity(header_len + payload_len);
    l4.extend(tcp.src_port.to_be_bytes());
    l4.extend(tcp.dst_port.to_be_bytes());
    l4.extend(tcp.seq.to_be_bytes());
    l4.extend(tcp.ack.to_be_bytes());
    l4.extend((((header_len / 4) as u16) << 12 | (tcp.flags & 0xfff)).to_be_bytes());
    l4.extend(tcp.win.to_be_bytes());
    l4.extend([0, 0]);
    l4.extend(tcp.urg.to_be_bytes());
    l4.extend(options);
    l4.resize(header_len + payload_len, 0);
    let check = fold(sum(&l4) + pseudo_sum(ip.src, ip.dst, PROTO_TCP, l4.len()));
    l4[16..18].copy_from_slice(&check.to_be_bytes());
    build_ip(ip, PROTO_TCP, &l4)
}

/// A UDP packet with `payload_len` zero bytes.
pub(crate) fn build_udp(ip: &IpFields, src_port: u16, dst_port: u16, payload_len: usize) -> Vec<u8> {
    let mut l4 = Vec::with_capacity(8 + payload_len);
    l4.extend(src_port.to_be_bytes());
    l4.extend(dst_port.to_be_bytes());
    l4.extend(((8 + payload_len) as u16).to_be_bytes());
    l4.resize(8 + payload_len, 0);
    let check = match fold(sum(&l4) + pseudo_sum(ip.src, ip.dst, PROTO_UDP, l4.len())) {
        0 => 0xffff,
        c => c,
    };
    l4[6..8].copy_from_slice(&check.to_be_bytes());
    build_ip(ip, PROTO_UDP, &l4)
}

/// An ICMP or ICMPv6 packet: type, code, the header's second word, and what follows.
pub(crate) fn build_icmp(ip: &IpFields, kind: u8, code: u8, word: u32, rest: &[u8]) -> Vec<u8> {
    let mut l4 = vec![kind, code, 0, 0];
    l4.extend(word.to_be_bytes());
    l4.extend(rest);
    let (protocol, pseudo) = match ip.src {
        IpAddr::V4(_) => (PROTO_ICMP, 0),
        IpAddr::V6(_) => (PROTO_ICMPV6, pseudo_sum(ip.src, ip.dst, PROTO_ICMPV6, l4.len())),
    };
    let check = fold(sum(&l4) + pseudo);
    l4[2..4].copy_from_slice(&check.to_be_bytes());
    build_ip(ip, protocol, &l4)
}

/// The transport header of a live packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp(TcpFields),
    Udp { src_port: u16, dst_port: u16 },
    Icmp { kind: u8, code: u8 },
    Other(u8),
}

/// A decoded live packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) flow_label: u32,
    pub(crate) transport: Transport,
    pub(crate) payload: Vec<u8>,
}

/// Decodes one IP packet and verifies lengths and checksums.
pub(crate) fn decode(bytes: &[u8]) -> Result<Live, String> {
    let short = || format!("IP header overflows a packet of {} bytes", bytes.len());
    match bytes.first().map(|b| b >> 4) {
        Some(4) => {
            let header = bytes.get(..20).ok_or_else(short)?;
            if header[0] != 0x45 {
                return Err(format!("ipv4_header_length: expected 20, got {}", u16::from(header[0] & 15) * 4));
            }
            let total = usize::from(be16(&header[2..]));
            if total != bytes.len() {
                return Err(format!("ipv4_total_length: says {total} in a packet of {} bytes", bytes.len()));
            }
            if fold(sum(header)) != 0 {
                return Err("ipv4_checksum is wrong".into());
            }
            if be16(&header[6..]) & 0x3fff != 0 {
                return Err("ipv4_frag_off: the packet is a fragment".into());
            }
            let octets = |at: usize| IpAddr::V4(Ipv4Addr::from(be32(&header[at..])));
            let base = Live {
                src: octets(12),
                dst: octets(16),
                tos: header[1],
                ttl: header[8],
                flow_label: 0,
                transport: Transport::Other(header[9]),
                payload: Vec::new(),
            };
            decode_transport(base, header[9], &bytes[20..])
        }
        Some(6) => {
            let header = bytes.get(..40).ok_or_else(short)?;
            let len = usize::from(be16(&header[4..]));
            if len + 40 != bytes.len() {
                return Err(format!("ipv6_payload_len: says {len} in a packet of {} bytes", bytes.len()));
            }
            let octets = |at: usize| {
                let octets: [u8; 16] = header[at..at + 16].try_into().unwrap_or_default();
                IpAddr::V6(Ipv6Addr::from(octets))
            };
            let first = be32(header);
            let base = Live {
                src: octets(8),
                dst: octets(24),
                tos: (first >> 20) as u8,
                ttl: header[7],
                flow_label: first & 0xf_ffff,
                transport: Transport::Other(header[6]),
                payload: Vec::new(),
            };
            decode_transport(base, header[6], &bytes[40..])
        }
        Some(v) => Err(format!("ip_version: {v} is neither 4 nor 6")),
        None => Err(short()),
    }
}

fn decode_transport(mut live: Live, protocol: u8, l4: &[u8]) -> Result<Live, String> {
    let summed = |protocol| fold(sum(l4) + pseudo_sum(live.src, live.dst, protocol, l4.len())) == 0;
    match protocol {
        PROTO_TCP => {
            let header = l4.get(..20).ok_or("TCP header overflows the packet")?;
            let header_len = usize::from(header[12] >> 4) * 4;
            let options = l4.get(20..header_len).ok_or_else(|| format!("tcp_doff: {header_len} bytes of header"))?;
            if !summed(PROTO_TCP) {
                return Err("tcp_checksum is wrong".into());
            }
            live.transport = Transport::Tcp(TcpFields {
                src_port: be16(header),
                dst_port: be16(&header[2..]),
                seq: be32(&header[4..]),
                ack: be32(&header[8..]),
                flags: be16(&header[12..]) & 0xfff,
                win: be16(&header[14..]),
                urg: be16(&header[18..]),
                options: parse_options(options)?,
            });
            live.payload = l4[header_len..].to_vec();
        }
        PROTO_UDP => {
            let header = l4.get(..8).ok_or("UDP header overflows the packet")?;
            if usize::from(be16(&header[4..])) != l4.len() {
                return Err(format!("udp_len: says {} of {} bytes", be16(&header[4..]), l4.len()));
            }
            if (be16(&header[6..]) != 0 || live.src.is_ipv6()) && !summed(PROTO_UDP) {
                return Err("udp_checksum is wrong".into());
            }
            live.transport = Transport::Udp { src_port: be16(header), dst_port: be16(&header[2..]) };
            live.payload = l4[8..].to_vec();
        }
        PROTO_ICMP | PROTO_ICMPV6 => {
            let header = l4.get(..8).ok_or("ICMP header overflows the packet")?;
            let good = if protocol == PROTO_ICMP { fold(sum(l4)) == 0 } else { summed(PROTO_ICMPV6) };
            if !good {
                return Err("icmp_checksum is wrong".into());
            }
            live.transport = Transport::Icmp { kind: header[0], code: header[1] };
            live.payload = l4[8..].to_vec();
        }
        _ => live.payload = l4.to_vec(),
    }
    Ok(live)
}

#[cfg(test)]
mod tests;
