//! The script as data: what the parser makes and the executor walks.
//!
//! Nothing here knows an address, a descriptor or a clock: numbers are those of the script ("script space"), times are
//! microseconds from the start or from the event before. Resolution to live values is `call`'s and `matcher`'s work.
//! Invariants kept by the parser: a TCP range's end is its start plus its length; option lists fill whole words (a
//! multiple of 4 bytes, at most 40); only outbound packets carry ranges or `*` as times; only calls carry an `end`.
//! Limits: no MPTCP, TCP-AO or EDO options.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A place in the script, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Pos {
    pub(crate) line: usize,
    pub(crate) col: usize,
}

/// A whole script.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) init: Option<(Pos, String)>,
    pub(crate) events: Vec<Event>,
    pub(crate) cleanup: Option<(Pos, String)>,
}

/// An option line `--name[=value]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScriptOption {
    pub(crate) pos: Pos,
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

/// When an event happens, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Absolute(i64),
    Relative(i64),
    AbsoluteRange(i64, i64),
    RelativeRange(i64, i64),
    Any,
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) pos: Pos,
    pub(crate) when: When,
    /// End of a blocking call, on the same base as `when`.
    pub(crate) end: Option<i64>,
    pub(crate) action: Action,
    /// The source text of the action, blanks squeezed: for error messages.
    pub(crate) text: String,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Inbound(PacketSpec),
    Outbound(PacketSpec),
    Call(CallSpec),
    Shell(String),
    Code(String),
}

/// The ECN field as the script names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EcnSpec {
    NotEct,
    Ect0,
    Ect1,
    Ce,
    /// Outbound: either ECT codepoint.
    EitherEct,
}

/// What stands in `(...)` or `[...]` behind the direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IpInfo {
    pub(crate) ecn: Option<EcnSpec>,
    pub(crate) tos: Option<u8>,
    pub(crate) ttl: Option<u8>,
    pub(crate) flowlabel: Option<u32>,
}

/// An outer header.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Encap {
    Ip { info: IpInfo, src: IpAddr, dst: IpAddr },
    Gre(Vec<(String, i64)>),
    Mpls(Vec<(u32, u8, bool, u8)>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PacketSpec {
    pub(crate) encap: Vec<Encap>,
    pub(crate) ip: IpInfo,
    pub(crate) psp_spi: Option<u32>,
    pub(crate) body: Body,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    Tcp(TcpSpec),
    Udp { ports: Option<(u16, u16)>, len: u32 },
    Icmp(IcmpSpec),
}

/// A 12-bit flags field: bits as on the wire (FIN = 1 ... CWR = 128, AE = 256).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlagSpec {
    pub(crate) bits: u16,
    /// An ACE digit was written: AE, CWR and ECE are one number.
    pub(crate) ace: bool,
}

pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const ACK: u16 = 0x10;
pub(crate) const URG: u16 = 0x20;
pub(crate) const ECE: u16 = 0x40;
pub(crate) const CWR: u16 = 0x80;
pub(crate) const AE: u16 = 0x100;

impl FlagSpec {
    pub(crate) fn has(self, bit: u16) -> bool {
        self.bits & bit != 0
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TcpSpec {
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) flags: FlagSpec,
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) win: Option<u16>,
    pub(crate) urg: Option<u16>,
    /// `None` = `<...>`: not checked.
    pub(crate) options: Option<Vec<TcpOption>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TcpOption {
    Eol,
    Nop,
    Mss(u16),
    Wscale(u8),
    SackOk,
    Sack(Vec<(u32, u32)>),
    Timestamp {
        val: u32,
        ecr: u32,
    },
    FastOpen(Vec<u8>),
    FastOpenExp(Vec<u8>),
    Md5(Vec<u8>),
    /// Kind (172: e0b first, 174: e1b first) and up to three counters in the order of that kind.
    AccEcn {
        kind: u8,
        counters: Vec<u32>,
    },
    /// Seen on the wire only.
    Unknown {
        kind: u8,
        data: Vec<u8>,
    },
}

/// What an ICMP error quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Quote {
    Tcp { seq: u32, len: u32 },
    Udp { len: u32 },
    Raw { len: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IcmpSpec {
    /// Type and code by name or number; their values depend on the IP version.
    pub(crate) kind: String,
    pub(crate) code: Option<String>,
    pub(crate) mtu: Option<u32>,
    pub(crate) id: Option<u16>,
    pub(crate) quote: Option<Quote>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    Int(i64),
    Float(f64),
    Sym(String),
    Str(String),
    /// `"abc"...`: the value begins so.
    StrPrefix(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Or(Vec<Expr>),
    List(Vec<Expr>),
    Struct(Vec<Field>),
    /// `htons(8080)`, `inet_addr("1.2.3.4")`.
    Apply(String, Vec<Expr>),
    Ellipsis,
}

/// `name=value`, `name(arg)=value`, or a bare value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: Option<String>,
    pub(crate) arg: Option<Expr>,
    pub(crate) value: Expr,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallSpec {
    pub(crate) name: String,
    pub(crate) args: Vec<Expr>,
    pub(crate) result: Expr,
    pub(crate) errno: Option<String>,
    pub(crate) note: Option<String>,
}
