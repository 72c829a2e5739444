//! Filters against packets that are written down byte by byte, against texts that are wrong, and against noise.

use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use linerate_wire::pcapng::LinkType;
use proptest::prelude::*;

use super::{Filter, MAX_DEPTH};
use crate::tap::Facts;

/// IPv4 from 10.0.0.1 to 10.1.2.3 with `l4` behind its header.
fn v4(proto: u8, frag: u16, l4: &[u8]) -> Vec<u8> {
    let mut p = vec![0x45, 0, 0, 20 + l4.len() as u8, 0, 7, 0, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 1, 2, 3];
    p[6..8].copy_from_slice(&frag.to_be_bytes());
    p.extend_from_slice(l4);
    p
}

/// IPv6 from fd00::1 to 2001:db8::2 with `rest` behind its header.
fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut p = vec![0x60, 0, 0, 0, 0, rest.len() as u8, next, 64];
    p.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    p.extend_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    p.extend_from_slice(rest);
    p
}

/// TCP from port 40000 to port 443.
fn tcp(flags: u8) -> Vec<u8> {
    let mut t = vec![0; 20];
    t[..4].copy_from_slice(&[0x9c, 0x40, 0x01, 0xbb]);
    (t[12], t[13]) = (0x50, flags);
    t
}

/// UDP from port 53 to port 5353.
const UDP: [u8; 8] = [0, 53, 0x14, 0xe9, 0, 8, 0, 0];

/// All packets that a filter takes, by name.
fn taken(text: &str) -> Vec<&'static str> {
    let filter = Filter::parse(text).unwrap_or_else(|e| panic!("{}", e.show(text)));
    let mut arp = vec![0xff; 12];
    arp.extend_from_slice(&[
        8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9,
    ]);
    let mut framed = vec![2; 12];
    framed.extend_from_slice(&[8, 0]);
    framed.extend_from_slice(&v4(6, 0, &tcp(0x12)));
    let hop = [&[6, 0, 1, 4, 0, 0, 0, 0][..], &tcp(0x02)].concat();
    let first = [&[17, 0, 0, 1, 0, 0, 0, 5][..], &UDP].concat();
    let later = [17, 0, 0, 8, 0, 0, 0, 5, 1, 2, 3, 4];
    let packets = [
        ("syn4", LinkType::Raw, v4(6, 0, &tcp(0x02))),
        ("rst4", LinkType::Raw, v4(6, 0x4000, &tcp(0x14))),
        ("frag4", LinkType::Raw, v4(6, 5, &tcp(0x02))),
        ("udp4", LinkType::Raw, v4(17, 0x2000, &UDP)),
        ("ping4", LinkType::Raw, v4(1, 0, &[8, 0, 0, 0, 0, 1, 0, 1])),
        ("syn6", LinkType::Raw, v6(0, &hop)),
        ("frag6", LinkType::Raw, v6(44, &later)),
        ("first6", LinkType::Raw, v6(44, &first)),
        ("ping6", LinkType::Raw, v6(58, &[128, 0, 0, 0, 0, 1, 0, 1])),
        ("arp", LinkType::Ethernet, arp),
        ("synack", LinkType::Ethernet, framed),
        ("noise", LinkType::Raw, vec![0xff; 30]),
    ];
    let of = |(name, link, bytes): &(&'static str, LinkType, Vec<u8>)| {
        filter.matches(&Facts::of(bytes, bytes.len() as u32, *link)).then_some(*name)
    };
    packets.iter().filter_map(of).collect()
}

#[test]
fn primitives() {
    let all = taken("");
    assert_eq!(all.len(), 12);
    let cases: &[(&str, &[&str])] = &[
        ("tcp", &["syn4", "rst4", "frag4", "syn6", "synack"]),
        ("udp", &["udp4", "frag6", "first6"]),
        ("icmp", &["ping4"]),
        ("icmp6", &["ping6"]),
        ("arp", &["arp"]),
        ("ip", &["syn4", "rst4", "frag4", "udp4", "ping4", "synack"]),
        ("ip6", &["syn6", "frag6", "first6", "ping6"]),
        ("host 10.1.2.3", &["syn4", "rst4", "frag4", "udp4", "ping4", "synack"]),
        ("dst host 10.0.0.1", &[]),
        ("src 10.0.0.1 and not ip", &["arp"]),
        ("arp host 10.0.0.9", &["arp"]),
        ("arp src host 10.0.0.9", &[]),
        ("dst 2001:db8::2", &["syn6", "frag6", "first6", "ping6"]),
        ("src net fd00::/8 and tcp", &["syn6"]),
        ("net 10.1.0.0/16 and icmp", &["ping4"]),
        ("net 10.1 and icmp", &["ping4"]),
        ("dst net 10.0.0.0 mask 255.254.0.0 and icmp", &["ping4"]),
        ("dst net 10.0.0.0 mask 255.255.0.0", &["arp"]),
        ("src and dst net 10.0.0.0/8 and icmp", &["ping4"]),
        ("src and dst net 10.1.0.0/16", &[]),
        ("src or dst net 10.1.0.0/16 and icmp", &["ping4"]),
        ("port 443", &["syn4", "rst4", "syn6", "synack"]),
        ("tcp port 443 or 80", &["syn4", "rst4", "syn6", "synack"]),
        ("udp port 443", &[]),
        ("src port 53", &["udp4", "first6"]),
        ("dst port 53", &[]),
        ("port 1 or 5353", &["udp4", "first6"]),
        ("portrange 5000-6000", &["udp4", "first6"]),
        ("portrange 6000-5000", &["udp4", "first6"]),
        ("less 30", &["udp4", "ping4", "noise"]),
        ("greater 60", &["syn6"]),
        ("len = 30", &["noise"]),
    ];
    for (text, names) in cases {
        assert_eq!(taken(text), *names, "{text}");
    }
}

#[test]
fn flags_and_bytes() {
    let cases: &[(&str, &[&str])] = &[
        ("tcp[tcpflags] & (tcp-syn|tcp-rst) != 0", &["syn4", "rst4", "syn6", "synack"]),
        ("tcp[tcpflags] & (tcp-syn | tcp-ack) == tcp-syn", &["syn4", "syn6"]),
        ("(tcp[tcpflags] & tcp-rst) != 0", &["rst4"]),
        ("(tcp[tcpflags]) & tcp-rst != 0", &["rst4"]),
        ("tcp[13] = 0x12", &["synack"]),
        ("tcp[tcpflags] == tcp-syn|tcp-ack", &["synack"]),
        ("tcp-syn and not tcp-ack", &["syn4", "syn6"]),
        ("tcp-rst", &["rst4"]),
        ("icmp[icmptype] = icmp-echo", &["ping4"]),
        ("icmp6[icmp6type] == icmp6-echo", &["ping6"]),
        ("udp[0:2] == 53", &["udp4", "first6"]),
        ("udp[2:2] > 5352 and udp[2:2] <= 5353", &["udp4", "first6"]),
        ("ip[16:4] = 0x0a010203 and icmp", &["ping4"]),
        ("ip[6:2] & 0x1fff != 0", &["frag4"]),
        ("ip6[6] = 44", &["frag6", "first6"]),
        ("arp[7] = 1", &["arp"]),
        // What is not there compares as false.
        ("tcp[60] >= 0", &[]),
        ("icmp[0:4] < 0", &[]),
    ];
    for (text, names) in cases {
        assert_eq!(taken(text), *names, "{text}");
    }
}

#[test]
fn operators_bind_as_in_pcap() {
    // From the left, both alike: (icmp or tcp) and ip6.
    assert_eq!(taken("icmp or tcp and ip6"), ["syn6"]);
    assert_eq!(taken("icmp or (tcp and ip6)"), ["ping4", "syn6"]);
    assert_eq!(taken("ip6 and tcp or icmp"), ["ping4", "syn6"]);
    assert_eq!(taken("not icmp and ip and not tcp"), ["udp4"]);
    assert_eq!(taken("not (icmp or tcp) and ip"), ["udp4"]);
    assert_eq!(taken("!(!udp) && !ip6"), ["udp4"]);
    assert_eq!(taken("not not icmp || arp"), ["ping4", "arp"]);
    assert_eq!(taken("ip and (udp or (icmp and (host 10.0.0.1 and not port 9)))"), ["udp4", "ping4"]);
}

#[test]
fn errors_point_at_the_spot() {
    let cases = [
        ("host", 4, "address"),
        ("host example.org", 5, "names are not looked up"),
        ("tcp port http", 9, "port number"),
        ("port 65536", 5, "port number"),
        ("port -1", 5, "port number"),
        ("portrange 80", 10, "two ports"),
        ("tcp and", 7, "missing here"),
        ("tcp or or udp", 7, "unknown word"),
        ("(tcp", 4, "expected `)`"),
        ("tcp)", 3, "no parenthesis"),
        ("tcp udp", 4, "expected `and`"),
        ("tcp host 10.0.0.1", 0, "no addresses of its own"),
        ("vlan 5", 0, "unknown word"),
        ("80", 0, "expected an address"),
        ("net 10.0.0.1/8", 4, "10.0.0.0/8"),
        ("net 10.0.0.0/33", 4, "network"),
        ("net 10.0.0.0 mask 255.0.255.0", 18, "leading ones"),
        ("net 1.2.3.4.5", 4, "network"),
        ("tcp[13] & 2", 11, "expected one of"),
        ("tcp[13] & 2|4 != 0", 11, "parentheses"),
        ("tcp[13:3] = 1", 4, "1, 2 or 4"),
        ("tcp[99999] = 1", 4, "offset"),
        ("foo[1] = 1", 0, "before `[`"),
        ("tcp[13] = 4294967296", 10, "below 2^32"),
        ("less tcp", 5, "below 2^32"),
        ("tcp[13] + 1 = 2", 8, "arithmetic"),
        ("host 10.0.0.1 # x", 14, "means nothing"),
        ("ip and \u{e4}", 7, "means nothing"),
    ];
    for (text, at, message) in cases {
        let e = Filter::parse(text).expect_err(text);
        assert!(e.at == at && e.message.contains(message), "{text}: {e:?}");
        assert!(e.show(text).contains('^') && e.to_string().contains(message));
    }
    assert_eq!(
        Filter::parse("ip and tcp port x").unwrap_err().show("ip and tcp port x").lines().nth(2),
        Some("                  ^")
    );
}

#[test]
fn size_is_bounded() {
    let deep = |n: usize| format!("{}tcp{}", "(".repeat(n), ")".repeat(n));
    assert!(Filter::parse(&deep(MAX_DEPTH - 1)).is_ok());
    assert!(Filter::parse(&deep(MAX_DEPTH)).unwrap_err().message.contains("nested deeper"));
    assert!(Filter::parse(&"not ".repeat(900)).unwrap_err().message.contains("nested deeper"));
    assert!(Filter::parse(&format!("tcp[13] = {}", "(".repeat(900))).unwrap_err().message.contains("nested deeper"));
    assert!(Filter::parse(&["tcp"; 257].join(" or ")).unwrap_err().message.contains("more than 256"));
    assert!(Filter::parse(&"tcp or ".repeat(600)).unwrap_err().message.contains("longer than"));
    // As deep as alternation makes it.
    let mut text = String::from("tcp");
    (0..120).for_each(|n| text += if n % 2 == 0 { " or udp" } else { " and ip" });
    assert_eq!(taken(&text), ["syn4", "rst4", "frag4", "udp4", "synack"]);
}

/// Words that make texts which are nearly right.
const WORDS: [&str; 44] = [
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "src",
    "dst",
    "host",
    "net",
    "port",
    "portrange",
    "mask",
    "and",
    "or",
    "not",
    "(",
    ")",
    "[",
    "]",
    "&",
    "|",
    "!=",
    "=",
    "<",
    "len",
    "less",
    "greater",
    "tcp-syn",
    "tcpflags",
    "13",
    "443",
    "10.0.0.1",
    "10.0.0.0/8",
    "fd00::1",
    "fd00::/8",
    "80-90",
    "0:4",
    "0x1f",
    "&&",
    "!",
    "65535",
    "255.0.0.0",
];

proptest! {
    #[test]
    fn no_text_and_no_packet_makes_it_panic(
        words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..14),
        noise in ".{0,20}",
        bytes in prop::collection::vec(any::<u8>(), 0..120),
        version in 0_usize..3,
    ) {
        let mut bytes = bytes;
        if let Some(b) = bytes.first_mut() {
            *b = [*b, 0x45, 0x60][version];
        }
        let _ = Filter::parse(&noise);
        for text in [words.join(" "), words.concat(), format!("{} {noise}", words.join(" "))] {
            match Filter::parse(&text) {
                Ok(filter) => for link in [LinkType::Raw, LinkType::Ethernet] {
                    filter.matches(&Facts::of(&bytes, bytes.len() as u32, link));
                },
                Err(e) => prop_assert!(e.at <= text.len() && !e.show(&text).is_empty()),
            }
        }
    }

    #[test]
    fn logic_holds_for_any_packet(bytes in prop::collection::vec(any::<u8>(), 0..90), v6 in any::<bool>()) {
        let mut bytes = bytes;
        if let Some(b) = bytes.first_mut() {
            *b = if v6 { 0x60 } else { 0x45 };
        }
        let facts = Facts::of(&bytes, bytes.len() as u32, LinkType::Raw);
        let is = |text: &str| Filter::parse(text).unwrap().matches(&facts);
        let parts = ["tcp", "udp", "ip6", "port 53", "greater 40", "tcp-syn", "ip[8] > 100", "net 128.0.0.0/1"];
        for a in parts {
            prop_assert_eq!(is(&format!("not {a}")), !is(a));
            for b in parts {
                prop_assert_eq!(is(&format!("{a} and {b}")), is(a) && is(b));
                prop_assert_eq!(is(&format!("{a} or {b}")), is(a) || is(b));
                prop_assert_eq!(is(&format!("not ({a} or {b})")), is(&format!("not {a} and not {b}")));
            }
        }
        // A port is that of one of both protocols.
        prop_assert_eq!(is("port 53"), is("tcp port 53") || is("udp port 53"));
        prop_assert_eq!(is("port 53"), is("src port 53") || is("dst port 53"));
    }
}
