//! The grammar of filter expressions: tokens to an [`Expr`].
//!
//! ```text
//!   expression := factor { (and | or) factor }           from the left, both bind alike
//!   factor     := (not | !) factor | "(" expression ")" | comparison | primitive
//!   primitive  := [protocol] [direction] [type] value    what is missing is that of the primitive before, or any
//!   comparison := header "[" offset [":" size] "]" ["&" number] relation number | len relation number
//!   number     := digits | 0x.. | name | "(" number { "|" number } ")"
//! ```
//! Nesting is bounded by [`MAX_DEPTH`] and the count of tests by [`MAX_TESTS`], so a hostile text costs bounded stack and
//! time. Every error names the token at which it was noticed.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use linerate_wire::Cidr;
use linerate_wire::ip::proto;

use super::lex::Token;
use super::{Base, Cmp, Dir, Expr, FilterError, MAX_DEPTH, MAX_TESTS, Test};
use crate::tap::facts::Net;

/// What kind of value a primitive has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Host,
    Net,
    Port,
    PortRange,
}

/// A protocol before a primitive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Proto {
    Net(Net),
    Transport(u8),
}

impl Proto {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "ip" => Self::Net(Net::V4),
            "ip6" => Self::Net(Net::V6),
            "arp" => Self::Net(Net::Arp),
            "tcp" => Self::Transport(proto::TCP),
            "udp" => Self::Transport(proto::UDP),
            "icmp" => Self::Transport(proto::ICMP),
            "icmp6" => Self::Transport(proto::ICMPV6),
            _ => return None,
        })
    }
    fn test(self) -> Test {
        match self {
            Self::Net(net) => Test::Net(net),
            Self::Transport(p) => Test::Proto(p),
        }
    }
}

/// What stands before a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Qualifiers {
    proto: Option<Proto>,
    dir: Dir,
    kind: Option<Kind>,
}

struct Parser<'a> {
    text: &'a str,
    tokens: &'a [(usize, Token<'a>)],
    next: usize,
    depth: usize,
    tests: usize,
    last: Option<Qualifiers>,
}

type Parsed<T> = Result<T, FilterError>;

/// The expression that the tokens of `text` make.
pub(super) fn expression<'a>(text: &'a str, tokens: &'a [(usize, Token<'a>)]) -> Parsed<Expr> {
    let mut p = Parser { text, tokens, next: 0, depth: 0, tests: 0, last: None };
    let expr = p.expression()?;
    match p.peek() {
        None => Ok(expr),
        Some(Token::Sign(")")) => Err(p.error("there is no parenthesis that this one closes")),
        Some(_) => Err(p.error("expected `and`, `or` or the end")),
    }
}

fn test(t: Test) -> Expr {
    Expr::Test(t)
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.next).map(|(_, t)| *t)
    }
    fn peek_at(&self, n: usize) -> Option<Token<'a>> {
        self.tokens.get(self.next + n).map(|(_, t)| *t)
    }
    /// An error at the next token.
    fn error(&self, message: impl Into<String>) -> FilterError {
        let at = self.tokens.get(self.next).map_or(self.text.len(), |(at, _)| *at);
        FilterError { at, message: message.into() }
    }
    fn take_word(&mut self, is: &str) -> bool {
        let found = self.peek() == Some(Token::Word(is));
        self.next += usize::from(found);
        found
    }
    fn take_sign(&mut self, is: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Sign(s)) if s == is);
        self.next += usize::from(found);
        found
    }
    fn expect_sign(&mut self, sign: &str) -> Parsed<()> {
        if self.take_sign(sign) { Ok(()) } else { Err(self.error(format!("expected `{sign}`"))) }
    }

    fn expression(&mut self) -> Parsed<Expr> {
        let mut left = self.factor()?;
        loop {
            let all = if self.take_word("and") || self.take_sign("&&") {
                true
            } else if self.take_word("or") || self.take_sign("||") {
                false
            } else {
                return Ok(left);
            };
            let right = self.factor()?;
            left = match left {
                Expr::Many { all: same, mut of } if same == all => {
                    of.push(right);
                    Expr::Many { all, of }
                }
                left => Expr::Many { all, of: Vec::from([left, right]) },
            };
        }
    }

    fn factor(&mut self) -> Parsed<Expr> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH} times")));
        }
        self.depth += 1;
        let factor = if self.take_word("not") || self.take_sign("!") {
            Ok(Expr::Not(Box::new(self.factor()?)))
        } else if self.peek() == Some(Token::Sign("(")) && !self.is_number_ahead() {
            self.next += 1;
            let inner = self.expression()?;
            self.expect_sign(")").map(|()| inner)
        } else {
            self.primitive()
        };
        self.depth -= 1;
        factor
    }

    /// Does the parenthesis that comes next hold the left side of a comparison?
    fn is_number_ahead(&self) -> bool {
        let mut open = 0usize;
        for (n, (_, token)) in self.tokens.iter().enumerate().skip(self.next) {
            match token {
                Token::Sign("(") => open += 1,
                Token::Sign(")") => open = open.saturating_sub(1),
                _ => {}
            }
            if open == 0 {
                return matches!(self.tokens.get(n + 1), Some((_, Token::Sign(s))) if *s == "&" || cmp_of(s).is_some());
            }
        }
        false
    }

    fn primitive(&mut self) -> Parsed<Expr> {
        self.tests += 2;
        if self.tests > MAX_TESTS {
            return Err(self.error(format!("more than {} primitives", MAX_TESTS / 2)));
        }
        let word = match self.peek() {
            Some(Token::Sign("(")) => return self.comparison(),
            Some(Token::Word(word)) => word,
            Some(Token::Sign(_)) => return Err(self.error("expected something to test")),
            None => return Err(self.error("something to test is missing here")),
        };
        let then = self.peek_at(1);
        if word == "len" || then == Some(Token::Sign("[")) {
            return self.comparison();
        }
        if let Some(flag) = tcp_flag(word) {
            self.next += 1;
            return Ok(test(value_of(Base::Transport(proto::TCP), (13, 1), flag, Cmp::Ne, 0)));
        }
        if matches!(word, "less" | "greater") {
            self.next += 1;
            let cmp = if word == "less" { Cmp::Le } else { Cmp::Ge };
            let n = self.number()?;
            return Ok(test(value_of(Base::Len, (0, 0), u32::MAX, cmp, n)));
        }
        let Some(q) = self.qualifiers()? else {
            // A protocol alone.
            let found = Proto::of(word).map(|p| test(p.test()));
            return found.ok_or_else(|| self.error("a value is missing"));
        };
        self.value(q)
    }

    /// Protocol, direction and type; `None` when a protocol stands alone.
    fn qualifiers(&mut self) -> Parsed<Option<Qualifiers>> {
        let start = self.next;
        let proto = match self.peek() {
            Some(Token::Word(w)) => Proto::of(w),
            _ => None,
        };
        self.next += usize::from(proto.is_some());
        let dir = self.direction();
        let kind = match self.peek() {
            Some(Token::Word("host")) => Some(Kind::Host),
            Some(Token::Word("net")) => Some(Kind::Net),
            Some(Token::Word("port")) => Some(Kind::Port),
            Some(Token::Word("portrange")) => Some(Kind::PortRange),
            _ => None,
        };
        self.next += usize::from(kind.is_some());
        if dir.is_none() && kind.is_none() {
            if proto.is_some() {
                return Ok(None);
            }
            // A value alone: what was said of the one before holds for it too.
            return match (self.peek(), self.last) {
                (Some(Token::Word(w)), last) if w.starts_with(|c: char| c.is_ascii_digit()) || w.contains(':') => {
                    Ok(Some(last.unwrap_or(Qualifiers { proto: None, dir: Dir::Either, kind: None })))
                }
                _ => Err(self.error("unknown word; see the list of primitives in the manual")),
            };
        }
        let q = Qualifiers { proto, dir: dir.unwrap_or(Dir::Either), kind };
        if let Some(Proto::Transport(p)) = proto {
            let ports = matches!(kind, Some(Kind::Port | Kind::PortRange)) && matches!(p, proto::TCP | proto::UDP);
            if !ports {
                self.next = start;
                return Err(self.error("this protocol has no addresses of its own: write `and` behind it"));
            }
        }
        self.last = Some(q);
        Ok(Some(q))
    }

    fn direction(&mut self) -> Option<Dir> {
        let first = match self.peek() {
            Some(Token::Word(w @ ("src" | "dst"))) => w,
            _ => return None,
        };
        self.next += 1;
        let other = if first == "src" { "dst" } else { "src" };
        if self.peek_at(1) == Some(Token::Word(other)) {
            let both = match self.peek() {
                Some(Token::Word("or") | Token::Sign("||")) => Some(Dir::Either),
                Some(Token::Word("and") | Token::Sign("&&")) => Some(Dir::Both),
                _ => None,
            };
            // `src or dst host A` is one direction; `src A or dst B` never gets here, its value comes first.
            if let Some(both) = both {
                self.next += 2;
                return Some(both);
            }
        }
        Some(if first == "src" { Dir::Src } else { Dir::Dst })
    }

    /// The value behind its qualifiers, and all that both say.
    fn value(&mut self, q: Qualifiers) -> Parsed<Expr> {
        let Some(Token::Word(word)) = self.peek() else {
            return Err(self.error("expected an address or a number"));
        };
        let what = match q.kind {
            None if word.contains('/') => self.net(word)?,
            None | Some(Kind::Host) => {
                let addr: Option<IpAddr> = word.parse().ok();
                let addr = addr.ok_or_else(|| self.error("expected an address; names are not looked up"))?;
                Test::Addr(q.dir, Cidr::host(addr))
            }
            Some(Kind::Net) => self.net(word)?,
            Some(Kind::Port) => {
                let port = self.port(word)?;
                Test::Port(q.dir, port, port)
            }
            Some(Kind::PortRange) => {
                let Some((lo, hi)) = word.split_once('-') else {
                    return Err(self.error("expected two ports with `-` between them"));
                };
                let (lo, hi) = (self.port(lo)?, self.port(hi)?);
                // As in pcap, the order does not matter.
                Test::Port(q.dir, lo.min(hi), lo.max(hi))
            }
        };
        self.next += 1;
        let what = match what {
            Test::Addr(_, net) if q.kind == Some(Kind::Net) => Test::Addr(q.dir, self.masked(net)?),
            Test::Addr(_, net) => Test::Addr(q.dir, net),
            other => other,
        };
        Ok(match q.proto {
            Some(p) => Expr::Many { all: true, of: Vec::from([test(p.test()), test(what)]) },
            None => test(what),
        })
    }

    fn port(&self, word: &str) -> Parsed<u16> {
        let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        let port = if digits { word.parse().ok() } else { None };
        port.ok_or_else(|| self.error("expected a port number from 0 to 65535; names are not looked up"))
    }

    /// `10.0.0.0/8`, `fd00::/8`, or the first octets alone: `10.1`.
    fn net(&self, word: &str) -> Parsed<Test> {
        let short = |word: &str| {
            let octets: Vec<u8> = word.split('.').map(|o| o.parse().ok()).collect::<Option<_>>()?;
            let mut addr = [0; 4];
            addr.get_mut(..octets.len())?.copy_from_slice(&octets);
            Cidr::new(Ipv4Addr::from(addr).into(), octets.len() as u8 * 8)
        };
        let net = match word.split_once('/') {
            Some((addr, len)) if !addr.contains(':') => {
                let len = if len.bytes().all(|b| b.is_ascii_digit()) { len.parse().ok() } else { None };
                short(addr).zip(len).and_then(|(n, len)| Cidr::new(n.addr(), len))
            }
            Some(_) => word.parse().ok(),
            None if word.contains(':') => word.parse().ok(),
            None => short(word),
        };
        let net = net.ok_or_else(|| self.error("expected a network, for example 10.0.0.0/8 or fd00::/8"))?;
        if net.network() != net.addr() {
            return Err(self.error(format!(
                "bits are set behind the prefix: {}/{} is meant?",
                net.network(),
                net.prefix_len()
            )));
        }
        Ok(Test::Addr(Dir::Either, net))
    }

    /// `mask 255.255.0.0` behind a network.
    fn masked(&mut self, net: Cidr) -> Parsed<Cidr> {
        if !self.take_word("mask") {
            return Ok(net);
        }
        let mask = match self.peek() {
            Some(Token::Word(w)) => w.parse::<Ipv4Addr>().ok(),
            _ => None,
        };
        let len = mask.map(|m| m.to_bits()).filter(|m| m.leading_ones() + m.trailing_zeros() >= 32);
        let made =
            len.and_then(|m| if net.addr().is_ipv4() { Cidr::new(net.addr(), m.leading_ones() as u8) } else { None });
        let made = made.filter(|n| n.network() == n.addr());
        let made = made.ok_or_else(|| self.error("expected a mask of leading ones that covers the network"))?;
        self.next += 1;
        Ok(made)
    }
}

fn cmp_of(sign: &str) -> Option<Cmp> {
    Some(match sign {
        "=" | "==" => Cmp::Eq,
        "!=" => Cmp::Ne,
        "<" => Cmp::Lt,
        "<=" => Cmp::Le,
        ">" => Cmp::Gt,
        ">=" => Cmp::Ge,
        _ => return None,
    })
}

fn value_of(base: Base, (at, size): (u16, u8), mask: u32, cmp: Cmp, value: u32) -> Test {
    Test::Value { base, at, size, mask, cmp, value }
}

/// A bit of the thirteenth byte of TCP.
fn tcp_flag(word: &str) -> Option<u32> {
    Some(match word {
        "tcp-fin" => 0x01,
        "tcp-syn" => 0x02,
        "tcp-rst" => 0x04,
        "tcp-push" => 0x08,
        "tcp-ack" => 0x10,
        "tcp-urg" => 0x20,
        "tcp-ece" => 0x40,
        "tcp-cwr" => 0x80,
        _ => return None,
    })
}

/// Names of numbers, with pcap's meaning.
fn named_number(word: &str) -> Option<u32> {
    Some(match word {
        "icmp-echoreply" => 0,
        "icmp-unreach" => 3,
        "icmp-redirect" => 5,
        "icmp-echo" => 8,
        "icmp-timxceed" => 11,
        "icmp-paramprob" => 12,
        "icmp6-destinationunreach" => 1,
        "icmp6-packettoobig" => 2,
        "icmp6-timeexceeded" => 3,
        "icmp6-parameterproblem" => 4,
        "icmp6-echo" => 128,
        "icmp6-echoreply" => 129,
        "icmp6-routersolicit" => 133,
        "icmp6-routeradvert" => 134,
        "icmp6-neighborsolicit" => 135,
        "icmp6-neighboradvert" => 136,
        _ => return tcp_flag(word),
    })
}

/// Comparisons.
impl Parser<'_> {
    fn comparison(&mut self) -> Parsed<Expr> {
        let open = self.take_sign("(");
        let (base, place) = self.load()?;
        let mut mask = if open { self.mask()? } else { None };
        if open {
            self.expect_sign(")")?;
        }
        if mask.is_none() {
            mask = self.mask()?;
        }
        let cmp = match self.peek() {
            Some(Token::Sign(s)) => cmp_of(s),
            _ => None,
        };
        let cmp = cmp.ok_or_else(|| self.error("expected one of = != < <= > >="))?;
        self.next += 1;
        let value = self.number()?;
        Ok(test(value_of(base, place, mask.unwrap_or(u32::MAX), cmp, value)))
    }

    fn mask(&mut self) -> Parsed<Option<u32>> {
        if !self.take_sign("&") {
            return Ok(None);
        }
        let mask = self.number_term(0)?;
        if matches!(self.peek(), Some(Token::Sign("|" | "&"))) {
            return Err(self.error("put the whole mask in parentheses"));
        }
        Ok(Some(mask))
    }

    /// `len`, or `HEADER[OFFSET:SIZE]`.
    fn load(&mut self) -> Parsed<(Base, (u16, u8))> {
        if self.take_word("len") {
            return Ok((Base::Len, (0, 0)));
        }
        let proto = match self.peek() {
            Some(Token::Word(w)) => Proto::of(w),
            _ => None,
        };
        let base = match proto.ok_or_else(|| self.error("expected ip, ip6, arp, tcp, udp, icmp or icmp6 before `[`"))? {
            Proto::Net(net) => Base::Net(net),
            Proto::Transport(p) => Base::Transport(p),
        };
        self.next += 1;
        self.expect_sign("[")?;
        let Some(Token::Word(word)) = self.peek() else { return Err(self.error("expected an offset in bytes")) };
        let (at, size) = word.split_once(':').map_or((word, None), |(a, s)| (a, Some(s)));
        let at = match at {
            "tcpflags" => Some(13),
            "icmptype" | "icmp6type" => Some(0),
            "icmpcode" | "icmp6code" => Some(1),
            at => at.parse::<u16>().ok(),
        };
        let at = at.ok_or_else(|| self.error("expected an offset in bytes"))?;
        let size = match size {
            None | Some("1") => 1,
            Some("2") => 2,
            Some("4") => 4,
            Some(_) => return Err(self.error("a field has 1, 2 or 4 bytes")),
        };
        self.next += 1;
        self.expect_sign("]")?;
        Ok((base, (at, size)))
    }

    /// Terms joined by `|`.
    fn number(&mut self) -> Parsed<u32> {
        self.number_terms(0)
    }

    fn number_terms(&mut self, depth: usize) -> Parsed<u32> {
        let mut n = self.number_term(depth)?;
        while self.take_sign("|") {
            n |= self.number_term(depth)?;
        }
        Ok(n)
    }

    fn number_term(&mut self, depth: usize) -> Parsed<u32> {
        if depth == MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH} times")));
        }
        if self.take_sign("(") {
            let n = self.number_terms(depth + 1)?;
            self.expect_sign(")")?;
            return Ok(n);
        }
        let n = match self.peek() {
            Some(Token::Word(w)) => match w.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => w.parse().ok().or_else(|| named_number(w)),
            },
            _ => None,
        };
        let n = n.ok_or_else(|| self.error("expected a number below 2^32"))?;
        self.next += 1;
        Ok(n)
    }
}
