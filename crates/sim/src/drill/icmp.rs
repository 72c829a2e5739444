//! Names of ICMP types and codes (RFC 792, RFC 1122, RFC 1812 for IPv4; RFC 4443 for IPv6).
//!
//! A script names them once for both versions where the word exists in both (`unreachable`, `echo_request`); the numbers
//! depend on the version on the wire. `type_N` and `code_N` give numbers directly. Invariant: a code without a type that
//! knows it is an error, never 0. `packet_too_big` is ICMPv6's; in IPv4 it is `unreachable frag_needed`. It knows no
//! extended messages (RFC 4884) and no router or neighbour discovery.

type Names = &'static [(&'static str, u8)];

const TYPES_V4: Names = &[
    ("echo_reply", 0),
    ("unreachable", 3),
    ("source_quench", 4),
    ("redirect", 5),
    ("echo_request", 8),
    ("time_exceeded", 11),
    ("parameter_problem", 12),
    ("timestamp_request", 13),
    ("timestamp_reply", 14),
    ("information_request", 15),
    ("information_reply", 16),
    ("address_mask_request", 17),
    ("address_mask_reply", 18),
];
const UNREACHABLE_V4: Names = &[
    ("net_unreachable", 0),
    ("host_unreachable", 1),
    ("protocol_unreachable", 2),
    ("port_unreachable", 3),
    ("frag_needed", 4),
    ("source_route_failed", 5),
    ("net_unknown", 6),
    ("host_unknown", 7),
    ("source_host_isolated", 8),
    ("net_prohibited", 9),
    ("host_prohibited", 10),
    ("net_unreachable_for_tos", 11),
    ("host_unreachable_for_tos", 12),
    ("packet_filtered", 13),
    ("precedence_violation", 14),
    ("precedence_cutoff", 15),
];
const TIME_EXCEEDED_V4: Names = &[("ttl_exceeded", 0), ("exceeded_ttl", 0), ("exceeded_frag_time", 1)];
const TYPES_V6: Names = &[
    ("unreachable", 1),
    ("packet_too_big", 2),
    ("time_exceeded", 3),
    ("parameter_problem", 4),
    ("echo_request", 128),
    ("echo_reply", 129),
];
const UNREACHABLE_V6: Names = &[
    ("net_unreachable", 0),
    ("no_route", 0),
    ("admin_prohibited", 1),
    ("not_neighbour", 2),
    ("address_unreachable", 3),
    ("port_unreachable", 4),
];
const TIME_EXCEEDED_V6: Names = &[("exceeded_hop_limit", 0), ("exceeded_frag_time", 1)];
const PARAMETER_V6: Names = &[("header_field", 0), ("unknown_next_header", 1), ("unknown_option", 2)];

fn find(names: Names, name: &str, prefix: &str) -> Option<u8> {
    let known = names.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
    known.or_else(|| name.strip_prefix(prefix)?.parse().ok())
}

/// Type and code on the wire; no code is 0.
pub(crate) fn numbers(v6: bool, kind: &str, code: Option<&str>) -> Result<(u8, u8), String> {
    let types = if v6 { TYPES_V6 } else { TYPES_V4 };
    let version = if v6 { "ICMPv6" } else { "ICMP" };
    let kind_number = find(types, kind, "type_").ok_or_else(|| format!("unknown {version} type '{kind}'"))?;
    let Some(code) = code else { return Ok((kind_number, 0)) };
    let codes = match (v6, kind_number) {
        (false, 3) => UNREACHABLE_V4,
        (false, 11) => TIME_EXCEEDED_V4,
        (true, 1) => UNREACHABLE_V6,
        (true, 3) => TIME_EXCEEDED_V6,
        (true, 4) => PARAMETER_V6,
        _ => &[],
    };
    match find(codes, code, "code_") {
        Some(n) => Ok((kind_number, n)),
        None => Err(format!("unknown {version} code '{code}' of type '{kind}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_versions() {
        assert_eq!(numbers(false, "unreachable", Some("frag_needed")), Ok((3, 4)));
        assert_eq!(numbers(true, "packet_too_big", None), Ok((2, 0)));
        assert_eq!(numbers(true, "unreachable", Some("port_unreachable")), Ok((1, 4)));
        assert_eq!(numbers(false, "type_42", Some("code_7")), Ok((42, 7)));
        assert!(numbers(false, "packet_too_big", None).is_err());
        assert!(numbers(true, "unreachable", Some("frag_needed")).is_err());
    }
}
