//! Which packets to capture: a small part of the pcap filter language (pcap-filter(7)).
//!
//! ```text
//!   host A, net N/LEN, port P, portrange P-Q     with src, dst, src or dst, src and dst; ip, ip6, arp, tcp, udp before them
//!   ip ip6 arp tcp udp icmp icmp6                protocols
//!   less N, greater N                            length of the whole packet
//!   tcp[13] & 2 != 0, ip[8] < 5, len > 1000      bytes of a header, also tcp[tcpflags] & (tcp-syn|tcp-rst) != 0
//!   tcp-syn, tcp-rst ...                         short for tcp[tcpflags] & tcp-syn != 0
//!   and or not () && || !                        `and` and `or` bind alike, from the left; `not` binds closer
//! ```
//! As in pcap, an operand without qualifiers has those of the operand before: `port 80 or 443`. Differences: addresses and
//! ports are numbers (nothing is looked up), `tcp`, `udp` and `icmp6` see through IPv6 extension headers, byte offsets of
//! `tcp[..]` and `udp[..]` work over IPv6, and a byte that a packet does not have makes its comparison false.
//!
//! A text is compiled once to tests that jump forward only (`Insn`), so a packet is judged in bounded time without
//! recursion, allocation or a way to panic, whatever the text and whatever the packet. Limits: [`MAX_TEXT_BYTES`],
//! [`MAX_TESTS`], [`MAX_DEPTH`]. Not here: VLAN, MPLS, hardware addresses, gateways, arithmetic beyond one mask.

mod lex;
mod parse;
#[cfg(test)]
mod tests;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use linerate_wire::Cidr;
use linerate_wire::ip::proto;

use super::facts::{Facts, Net};

/// Longest text of a filter, bytes.
pub const MAX_TEXT_BYTES: usize = 4096;
/// Most tests of a filter.
pub const MAX_TESTS: usize = 512;
/// Deepest nesting of parentheses and negations.
pub const MAX_DEPTH: usize = 64;

/// Why a text is not a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterError {
    /// Where, bytes from the beginning of the text.
    pub at: usize,
    /// What is wrong.
    pub message: String,
}

impl FilterError {
    /// What is wrong, the text, and below it a mark at the spot; three lines without an end of line.
    pub fn show(&self, text: &str) -> String {
        let column = text.get(..self.at).unwrap_or(text).chars().count();
        alloc::format!("{}\n  {text}\n  {:column$}^", self.message, "")
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (byte {} of the filter)", self.message, self.at)
    }
}
impl core::error::Error for FilterError {}

/// Which end of a packet a test is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dir {
    Src,
    Dst,
    Either,
    Both,
}

impl Dir {
    fn holds(self, src: bool, dst: bool) -> bool {
        match self {
            Self::Src => src,
            Self::Dst => dst,
            Self::Either => src || dst,
            Self::Both => src && dst,
        }
    }
}

/// The header that a byte offset counts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Base {
    Net(Net),
    Transport(u8),
    /// Not a byte: the length of the packet.
    Len,
}

/// How a value is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// One question about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Test {
    Net(Net),
    Proto(u8),
    Addr(Dir, Cidr),
    Port(Dir, u16, u16),
    Value { base: Base, at: u16, size: u8, mask: u32, cmp: Cmp, value: u32 },
}

impl Test {
    fn holds(&self, f: &Facts<'_>) -> bool {
        match *self {
            Self::Net(net) => f.net == net,
            Self::Proto(p) => {
                // Each ICMP belongs to one family.
                let family = match p {
                    proto::ICMP => f.net == Net::V4,
                    proto::ICMPV6 => f.net == Net::V6,
                    _ => true,
                };
                family && f.proto == Some(p)
            }
            Self::Addr(dir, net) => f.ends.is_some_and(|(s, d)| dir.holds(net.contains(s), net.contains(d))),
            Self::Port(dir, lo, hi) => {
                f.ports().is_some_and(|(s, d)| dir.holds((lo..=hi).contains(&s), (lo..=hi).contains(&d)))
            }
            Self::Value { base, at, size, mask, cmp, value } => match load(f, base, at, size) {
                None => false,
                Some(v) => match cmp {
                    Cmp::Eq => v & mask == value,
                    Cmp::Ne => v & mask != value,
                    Cmp::Lt => v & mask < value,
                    Cmp::Le => v & mask <= value,
                    Cmp::Gt => v & mask > value,
                    Cmp::Ge => v & mask >= value,
                },
            },
        }
    }
}

/// A number of `size` bytes, most significant first.
fn load(f: &Facts<'_>, base: Base, at: u16, size: u8) -> Option<u32> {
    let bytes = match base {
        Base::Len => return Some(f.len),
        Base::Net(net) if net == f.net => f.net_bytes,
        Base::Transport(p) if Test::Proto(p).holds(f) => f.l4?,
        Base::Net(_) | Base::Transport(_) => return None,
    };
    let at = usize::from(at);
    let bytes = bytes.get(at..at + usize::from(size))?;
    Some(bytes.iter().fold(0, |v, &b| v << 8 | u32::from(b)))
}

/// A test, and where to go on: an index beyond its own, or an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Insn {
    test: Test,
    yes: u16,
    no: u16,
}

const ACCEPT: u16 = u16::MAX;
const REJECT: u16 = u16::MAX - 1;

/// A compiled filter. The empty one takes everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    program: Vec<Insn>,
}

impl Filter {
    /// Takes everything.
    pub const ALL: Self = Self { program: Vec::new() };

    /// Compiles a text; an empty one takes everything.
    ///
    /// # Errors
    /// [`FilterError`] with the spot.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let tokens = lex::tokens(text)?;
        if tokens.is_empty() {
            return Ok(Self::ALL);
        }
        let expr = parse::expression(text, &tokens)?;
        let mut program = Vec::new();
        expr.emit(&mut program);
        debug_assert!(program.iter().zip(0..).all(|(i, at)| i.yes > at && i.no > at), "a jump goes back");
        Ok(Self { program })
    }

    /// Does it take every packet, without looking?
    pub fn is_all(&self) -> bool {
        self.program.is_empty()
    }

    /// Is this packet one of those?
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        if self.program.is_empty() {
            return true;
        }
        let mut at = 0;
        while let Some(insn) = self.program.get(usize::from(at)) {
            at = if insn.test.holds(facts) { insn.yes } else { insn.no };
        }
        at == ACCEPT
    }
}

/// An expression, before it is compiled.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Expr {
    Test(Test),
    Not(alloc::boxed::Box<Expr>),
    /// All, or any, of several.
    Many {
        all: bool,
        of: Vec<Expr>,
    },
}

impl Expr {
    fn emit(&self, out: &mut Vec<Insn>) {
        let start = out.len();
        self.place(out, ACCEPT, REJECT);
        debug_assert!(start < out.len(), "an expression without a test");
    }

    /// Appends tests that go on at `yes` or `no`.
    fn place(&self, out: &mut Vec<Insn>, yes: u16, no: u16) {
        match self {
            Self::Test(test) => out.push(Insn { test: *test, yes, no }),
            Self::Not(e) => e.place(out, no, yes),
            Self::Many { all, of } => {
                let mut rest = of.as_slice();
                while let [e, after @ ..] = rest {
                    // The last one decides; others go on with their successor, which stands right behind them.
                    let next = if after.is_empty() { None } else { Some((out.len() + e.tests()) as u16) };
                    match (next, all) {
                        (None, _) => e.place(out, yes, no),
                        (Some(next), true) => e.place(out, next, no),
                        (Some(next), false) => e.place(out, yes, next),
                    }
                    rest = after;
                }
            }
        }
    }

    /// How many tests it becomes.
    fn tests(&self) -> usize {
        match self {
            Self::Test(_) => 1,
            Self::Not(e) => e.tests(),
            Self::Many { of, .. } => of.iter().map(Self::tests).sum(),
        }
    }
}
