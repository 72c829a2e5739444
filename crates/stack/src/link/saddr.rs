//! Which address of ours speaks to an IPv6 destination (RFC 6724 section 5).
//!
//! Candidates are compared rule by rule; the first rule that tells two apart decides. As a key of which the greatest wins:
//! the destination itself (1), a scope that reaches it and no more than that (2), not deprecated (3), on the outgoing
//! device (5), the label of the destination (6), the longest common prefix (8). Of equals the first added wins.
//!
//! The policy table is the RFC's default. Rules 4 (home addresses) and 7 (temporary addresses) have nothing to decide here, and
//! 5.5 (the router that advertised the prefix) is not followed, as in Linux. Rule 8 counts no more bits than the
//! candidate's prefix has, also as in Linux.

use core::net::Ipv6Addr;

/// An address that could be the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) addr: Ipv6Addr,
    pub(super) prefix_len: u8,
    /// It belongs to the device that sends.
    pub(super) on_device: bool,
    /// Its preferred lifetime is over.
    pub(super) deprecated: bool,
}

/// Scope of an address as RFC 6724 section 3.1 counts it: 1 interface, 2 link, 5 site, 14 global.
fn scope(a: Ipv6Addr) -> i8 {
    let o = a.octets();
    match (o[0], o[1]) {
        (0xff, flags) => (flags & 0xf) as i8,
        (0xfe, b) if b & 0xc0 == 0x80 => 2,
        (0xfe, b) if b & 0xc0 == 0xc0 => 5,
        _ if a.is_loopback() => 2,
        _ => 14,
    }
}

/// Label of the default policy table (RFC 6724 section 2.1).
fn label(a: Ipv6Addr) -> u8 {
    let (bits, s) = (a.to_bits(), a.segments());
    match s {
        _ if a.is_loopback() => 0,
        _ if bits >> 32 == 0xffff => 4,
        _ if bits >> 32 == 0 => 3,
        [0x2001, 0, ..] => 5,
        [0x2002, ..] => 2,
        [0x3ffe, ..] => 12,
        [w, ..] if w & 0xfe00 == 0xfc00 => 13,
        [w, ..] if w & 0xffc0 == 0xfec0 => 11,
        _ => 1,
    }
}

/// The rules as a key: the greater, the better.
fn rank(c: &Candidate, dst: Ipv6Addr) -> impl Ord + use<> {
    let (s, d) = (scope(c.addr), scope(dst));
    // One that reaches the destination: as narrow as possible. One that does not: as wide as possible.
    let reach = if s >= d { (true, -s) } else { (false, s) };
    let common = (c.addr.to_bits() ^ dst.to_bits()).leading_zeros().min(u32::from(c.prefix_len));
    (c.addr == dst, reach, !c.deprecated, c.on_device, label(c.addr) == label(dst), common)
}

/// The best of the candidates.
pub(super) fn select(candidates: impl Iterator<Item = Candidate>, dst: Ipv6Addr) -> Option<Ipv6Addr> {
    let best = candidates.reduce(|best, c| if rank(&c, dst) > rank(&best, dst) { c } else { best });
    best.map(|c| c.addr)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// Candidates as text: `!` deprecated, `~` on another device.
    fn pick(dst: &str, list: &[&str]) -> std::string::String {
        let candidates: Vec<Candidate> = list
            .iter()
            .map(|t| Candidate {
                addr: t.trim_start_matches(['!', '~']).parse().unwrap(),
                prefix_len: 64,
                on_device: !t.contains('~'),
                deprecated: t.contains('!'),
            })
            .collect();
        std::format!("{}", select(candidates.into_iter(), dst.parse().unwrap()).unwrap())
    }

    /// The examples of RFC 6724 section 10.1, and one for each rule that they leave out.
    #[test]
    fn examples_of_the_rfc() {
        assert_eq!(pick("2001:db8:1::1", &["2001:db8:3::1", "fe80::1"]), "2001:db8:3::1");
        assert_eq!(pick("ff05::1", &["2001:db8:3::1", "fe80::1"]), "2001:db8:3::1");
        assert_eq!(pick("2001:db8:1::1", &["!2001:db8:1::1", "2001:db8:2::1"]), "2001:db8:1::1", "same address");
        assert_eq!(pick("fe80::1", &["!fe80::2", "2001:db8:1::1"]), "fe80::2", "scope before deprecation");
        assert_eq!(pick("2001:db8:1::1", &["2001:db8:3::2", "2001:db8:1::2"]), "2001:db8:1::2", "longest match");
        assert_eq!(
            pick("2002:c633:6401::1", &["2001:db8:1::2", "2002:c633:6401::d5e3:7953"]),
            "2002:c633:6401::d5e3:7953"
        );
        assert_eq!(pick("2001:db8:1::5", &["!2001:db8:1::2", "2001:db8:9::2"]), "2001:db8:9::2", "deprecated");
        assert_eq!(pick("2001:db8:1::5", &["~2001:db8:1::2", "2001:db8:9::2"]), "2001:db8:9::2", "the device");
        assert_eq!(pick("2001:db8:1::5", &["fd00::1", "2003::1"]), "2003::1", "label");
        assert_eq!(pick("fd00:1::5", &["2003::1", "fd00:2::1"]), "fd00:2::1", "label");
        assert_eq!(pick("2001:db8:1::5", &["2003::1", "2003::2"]), "2003::1", "the first of equals");
        assert_eq!(pick("2001:db8::1", &["fe80::1", "::1"]), "fe80::1");
    }

    #[test]
    fn interface_ids_do_not_count_as_a_common_prefix() {
        assert_eq!(pick("2001:db8:1::ffff", &["2001:db8:1::1", "2001:db8:1::fffe"]), "2001:db8:1::1");
    }
}
