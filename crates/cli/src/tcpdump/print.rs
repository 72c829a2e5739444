//! One line per packet, in the manner of tcpdump.
//!
//! Time of day (UTC), device and point, addresses with ports, and the few fields that tell a story: flags and numbers of
//! TCP, length of UDP, kind of ICMP, question and answer of ARP. Options and payload are for Wireshark (`-w`). What is too
//! short or makes no sense is printed as far as it goes; nothing here can fail.

use std::fmt::Write as _;
use std::net::SocketAddr;

use linerate::control::PacketRecord;
use linerate_stack::tap::{Facts, Net};
use linerate_wire::ip::proto;
use linerate_wire::pcapng::LinkType;
use linerate_wire::tcp::{TcpFlags, TcpView};

/// The line, without its end.
pub(super) fn line(p: &PacketRecord) -> String {
    let mut text = String::new();
    let us = p.at_ns / 1000;
    let secs = us / 1_000_000 % 86_400;
    let (h, m, s) = (secs / 3600, secs / 60 % 60, secs % 60);
    let _ = write!(text, "{h:02}:{m:02}:{s:02}.{:06} {}:{} ", us % 1_000_000, p.device, p.point);
    let link = if p.ethernet { LinkType::Ethernet } else { LinkType::Raw };
    let facts = Facts::of(&p.data, p.len, link);
    // From the transport header on: the bytes taken are the packet's first.
    let before = p.data.len() - facts.l4.map_or(0, <[u8]>::len);
    describe(&mut text, &facts, p.len.saturating_sub(before as u32));
    if p.wire_pkts > 1 {
        let _ = write!(text, " ({} wire frames of {})", p.wire_pkts, p.gso_size);
    }
    if let Some(d) = &p.dropped {
        let _ = write!(text, " dropped: {} at {}", d.reason, d.place);
    }
    text
}

/// `l4_len` is the length of the packet from the transport header on, bytes.
fn describe(text: &mut String, f: &Facts<'_>, l4_len: u32) {
    let name = match f.net {
        Net::V4 => "IP",
        Net::V6 => "IP6",
        Net::Arp => return arp(text, f),
        Net::Other => {
            let _ = write!(text, "unknown, length {}", f.len);
            return;
        }
    };
    let Some((src, dst)) = f.ends else {
        let _ = write!(text, "{name} cut short, length {}", f.len);
        return;
    };
    let _ = match f.ports() {
        Some((from, to)) => write!(text, "{name} {} > {}: ", SocketAddr::new(src, from), SocketAddr::new(dst, to)),
        None => write!(text, "{name} {src} > {dst}: "),
    };
    let l4 = f.l4.unwrap_or_default();
    let _ = match (f.proto, f.l4) {
        (Some(p), None) => write!(text, "fragment of protocol {p}, length {}", f.len),
        (Some(proto::TCP), Some(_)) => return tcp(text, l4, l4_len),
        (Some(proto::UDP), Some(_)) => write!(text, "UDP, length {}", l4_len.saturating_sub(8)),
        (Some(p @ (proto::ICMP | proto::ICMPV6)), Some([kind, code, ..])) => icmp(text, p, *kind, *code, l4),
        (Some(p), Some(_)) => write!(text, "protocol {p}, length {l4_len}"),
        (None, _) => write!(text, "headers cut short, length {}", f.len),
    };
}

fn tcp(text: &mut String, l4: &[u8], len: u32) {
    let Ok(view) = TcpView::new_checked(l4) else {
        text.push_str("TCP header cut short");
        return;
    };
    let letters = [
        (TcpFlags::FIN, 'F'),
        (TcpFlags::SYN, 'S'),
        (TcpFlags::RST, 'R'),
        (TcpFlags::PSH, 'P'),
        (TcpFlags::URG, 'U'),
        (TcpFlags::ECE, 'E'),
        (TcpFlags::CWR, 'W'),
        (TcpFlags::ACK, '.'),
    ];
    let flags: String = letters.iter().filter(|(f, _)| view.flags().contains(*f)).map(|(_, c)| *c).collect();
    let flags = if flags.is_empty() { "none".to_owned() } else { flags };
    let len = len.saturating_sub(view.header_len() as u32);
    let _ = write!(text, "Flags [{flags}], seq {}", view.seq().0);
    if view.flags().contains(TcpFlags::ACK) {
        let _ = write!(text, ", ack {}", view.ack().0);
    }
    let _ = write!(text, ", win {}, length {len}", view.window());
}

fn icmp(text: &mut String, p: u8, kind: u8, code: u8, l4: &[u8]) -> std::fmt::Result {
    let name = if p == proto::ICMP { "ICMP" } else { "ICMP6" };
    let what = match (p, kind) {
        (proto::ICMP, 8) | (proto::ICMPV6, 128) => "echo request",
        (proto::ICMP, 0) | (proto::ICMPV6, 129) => "echo reply",
        (proto::ICMP, 3) | (proto::ICMPV6, 1) => return write!(text, "{name} unreachable, code {code}"),
        (proto::ICMPV6, 2) => return write!(text, "{name} packet too big"),
        (proto::ICMP, 11) | (proto::ICMPV6, 3) => return write!(text, "{name} time exceeded, code {code}"),
        (proto::ICMPV6, 135) => return write!(text, "{name} neighbour solicitation"),
        (proto::ICMPV6, 136) => return write!(text, "{name} neighbour advertisement"),
        _ => return write!(text, "{name} type {kind}, code {code}"),
    };
    let field = |at: usize| l4.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    write!(text, "{name} {what}, id {}, seq {}", field(4), field(6))
}

fn arp(text: &mut String, f: &Facts<'_>) {
    let _ = match (f.ends, f.net_bytes.get(6..8)) {
        (Some((from, to)), Some([0, 1])) => write!(text, "ARP, who has {to}? tell {from}"),
        (Some((from, _)), Some([0, 2])) => write!(text, "ARP, {from} is here"),
        _ => write!(text, "ARP, length {}", f.len),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(ethernet: bool, len: u32, data: &[u8]) -> String {
        let record = json!({
            "shard": 0, "at_ns": 3_723_000_004_999_u64, "device": "tun0", "queue": 0, "point": "rx", "ethernet": ethernet,
            "len": len, "wire_pkts": 1, "data": "",
        });
        let mut record: PacketRecord = serde_json::from_value(record).expect("a record");
        record.data = data.to_vec();
        line(&record)
    }

    #[test]
    fn lines_tell_what_tcpdump_tells() {
        let mut ip = vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let mut tcp = ip.clone();
        tcp.extend_from_slice(&[0, 80, 1, 187, 0, 0, 0, 5, 0, 0, 0, 6, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        let told =
            "01:02:03.000004 tun0:rx IP 10.0.0.1:80 > 10.0.0.2:443: Flags [P.], seq 5, ack 6, win 256, length 960";
        assert_eq!(shown(false, 1000, &tcp), told);
        let framed = [&[2; 12][..], &[8, 0], &tcp].concat();
        assert!(shown(true, 1014, &framed).ends_with("length 960"), "{}", shown(true, 1014, &framed));
        ip[9] = 1;
        ip.extend_from_slice(&[8, 0, 0, 0, 0, 9, 0, 3]);
        assert!(shown(false, 84, &ip).ends_with("IP 10.0.0.1 > 10.0.0.2: ICMP echo request, id 9, seq 3"));
        ip[9] = 17;
        ip[7] = 5;
        assert!(shown(false, 84, &ip).ends_with("fragment of protocol 17, length 84"));
        let mut arp = vec![0xff; 12];
        arp.extend_from_slice(&[
            8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9,
        ]);
        assert!(shown(true, 42, &arp).ends_with("ARP, who has 10.0.0.9? tell 10.0.0.1"));
        // However short, it is a line.
        for n in 0..tcp.len() {
            assert!(!shown(false, 1000, &tcp[..n]).contains('\n') && !shown(true, 1000, &framed[..n]).is_empty());
        }
    }
}
