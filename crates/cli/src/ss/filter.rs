//! The filter language of `ss`: states, addresses and ports.
//!
//! ```text
//!   filter := { "state" NAME | "exclude" NAME }  [ expr ]
//!   expr   := all { "or" all }        all := one { ["and"] one }
//!   one    := "not" one | "(" expr ")" | ( "src" | "dst" ) [cmp] HOST[/PREFIX][:PORT] | ( "sport" | "dport" ) cmp [:]PORT
//!   cmp    := = == != < > <= >=  and  eq neq lt gt leq geq; an address is only equal or not
//! ```
//! Groups of states are `ss`'s: `connected` is all but listening and closed, `synchronized` that without syn-sent, `bucket` what is
//! kept small (syn-recv, time-wait), `big` the rest. Ports are numbers. An IPv4 address also matches an IPv6 socket that
//! speaks IPv4.
//!
//! Limits: [`MAX_DEPTH`] parentheses.

use std::net::{IpAddr, SocketAddr};

use linerate::control::SocketRecord;
use linerate_wire::Cidr;

/// Parentheses and `not`s inside each other.
const MAX_DEPTH: usize = 32;

/// The states under `ss`'s two names: in a filter, and in the table. Their order is that of Linux's numbers.
const STATES: [(&str, &str); 11] = [
    ("established", "ESTAB"),
    ("syn-sent", "SYN-SENT"),
    ("syn-recv", "SYN-RECV"),
    ("fin-wait-1", "FIN-WAIT-1"),
    ("fin-wait-2", "FIN-WAIT-2"),
    ("time-wait", "TIME-WAIT"),
    ("closed", "UNCONN"),
    ("close-wait", "CLOSE-WAIT"),
    ("last-ack", "LAST-ACK"),
    ("listening", "LISTEN"),
    ("closing", "CLOSING"),
];
/// Bits of [`STATES`].
const ALL: u16 = (1 << STATES.len()) - 1;
const SYN_SENT: u16 = 1 << 1;
const SYN_RECV: u16 = 1 << 2;
const TIME_WAIT: u16 = 1 << 5;
const CLOSED: u16 = 1 << 6;
const LISTENING: u16 = 1 << 9;
const CONNECTED: u16 = ALL & !(CLOSED | LISTENING);

/// What the words behind the flags ask for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Filter {
    /// Bits of [`STATES`]; `None`: as the flags say.
    states: Option<u16>,
    expr: Option<Expr>,
}

#[derive(Clone, PartialEq, Debug)]
enum Expr {
    Or(Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Host { remote: bool, net: Option<Cidr>, port: Option<u16> },
    Port { remote: bool, cmp: Cmp, port: u16 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cmp {
    Eq,
    Ne,
    Lt,
    Gt,
    Le,
    Ge,
}

impl Cmp {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "=" | "==" | "eq" => Self::Eq,
            "!=" | "ne" | "neq" => Self::Ne,
            "<" | "lt" => Self::Lt,
            ">" | "gt" => Self::Gt,
            "<=" | "le" | "leq" => Self::Le,
            ">=" | "ge" | "geq" => Self::Ge,
            _ => return None,
        })
    }
    fn holds(self, a: u16, b: u16) -> bool {
        match self {
            Self::Eq => a == b,
            Self::Ne => a != b,
            Self::Lt => a < b,
            Self::Gt => a > b,
            Self::Le => a <= b,
            Self::Ge => a >= b,
        }
    }
}

impl Filter {
    /// From the words of the command line, which may hold blanks themselves.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let words = tokens(&words.join(" "));
        let mut left = words.iter().map(String::as_str).peekable();
        let mut states = None;
        while let Some(word @ ("state" | "exclude")) = left.peek().copied() {
            left.next();
            let name = left.next().ok_or_else(|| format!("{word} needs a name; {}", names()))?;
            let bits = state_bits(name).ok_or_else(|| format!("no state '{name}'; {}", names()))?;
            states = Some(match word {
                "state" => states.unwrap_or(0) | bits,
                _ => states.unwrap_or(ALL) & !bits,
            });
        }
        let mut parser = Parser { words: left.collect(), at: 0 };
        let expr = if parser.words.is_empty() { None } else { Some(parser.any(0)?) };
        match parser.peek() {
            Some(word) => Err(format!("'{word}' is not expected in the filter")),
            None => Ok(Self { states, expr }),
        }
    }

    /// The states to ask for, as the table names them; empty: all.
    pub(crate) fn states(&self, all: bool, listening: bool) -> Vec<String> {
        let by_flags = match (all, listening) {
            (true, _) => ALL,
            (_, true) => LISTENING | CLOSED,
            _ => CONNECTED & !(TIME_WAIT | SYN_RECV),
        };
        let bits = self.states.unwrap_or(by_flags);
        if bits == ALL {
            return Vec::new();
        }
        (0..).zip(STATES).filter(|(n, _)| bits & 1 << n != 0).map(|(_, (_, shown))| shown.to_owned()).collect()
    }

    /// Do address and port of the socket match?
    pub(crate) fn matches(&self, socket: &SocketRecord) -> bool {
        self.expr.as_ref().is_none_or(|expr| expr.holds(socket))
    }
}

impl Expr {
    fn holds(&self, s: &SocketRecord) -> bool {
        let end = |remote: bool| if remote { s.peer } else { Some(s.local) };
        match self {
            Self::Or(a, b) => a.holds(s) || b.holds(s),
            Self::And(a, b) => a.holds(s) && b.holds(s),
            Self::Not(a) => !a.holds(s),
            Self::Host { remote, net, port } => end(*remote).is_some_and(|addr: SocketAddr| {
                net.is_none_or(|net| net.contains(addr.ip().to_canonical())) && port.is_none_or(|p| p == addr.port())
            }),
            // An end that there is not has port 0, as in `ss`.
            Self::Port { remote, cmp, port } => cmp.holds(end(*remote).map_or(0, |addr| addr.port()), *port),
        }
    }
}

/// Words, with parentheses and comparisons apart from what they touch.
fn tokens(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    let kind = |c: char| match c {
        '=' | '!' | '<' | '>' => 1,
        '&' | '|' => 2,
        '(' | ')' => 3,
        _ => 0,
    };
    for c in text.chars() {
        if c.is_whitespace() {
            open = false;
            continue;
        }
        let joins =
            words.last().and_then(|w| w.chars().last()).is_some_and(|last| kind(last) == kind(c) && kind(c) != 3);
        match words.last_mut() {
            Some(word) if open && joins => word.push(c),
            _ => words.push(c.to_string()),
        }
        open = true;
    }
    words
}

fn state_bits(name: &str) -> Option<u16> {
    Some(match name {
        "all" => ALL,
        "connected" => CONNECTED,
        "synchronized" => CONNECTED & !SYN_SENT,
        "bucket" => SYN_RECV | TIME_WAIT,
        "big" => ALL & !(SYN_RECV | TIME_WAIT),
        "listen" => LISTENING,
        _ => 1 << STATES.iter().position(|(asked, _)| *asked == name)?,
    })
}

fn names() -> String {
    let names: Vec<_> = STATES.iter().map(|(name, _)| *name).collect();
    format!("states are {}, all, connected, synchronized, bucket, big", names.join(", "))
}

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }
    fn take(&mut self) -> Option<&'a str> {
        let word = self.peek();
        self.at += usize::from(word.is_some());
        word
    }
    fn take_any(&mut self, of: &[&str]) -> bool {
        let is = self.peek().is_some_and(|word| of.contains(&word));
        self.at += usize::from(is);
        is
    }

    fn any(&mut self, depth: usize) -> Result<Expr, String> {
        let mut left = self.all(depth)?;
        while self.take_any(&["or", "|", "||"]) {
            left = Expr::Or(Box::new(left), Box::new(self.all(depth)?));
        }
        Ok(left)
    }
    fn all(&mut self, depth: usize) -> Result<Expr, String> {
        let mut left = self.one(depth)?;
        loop {
            let joined = self.take_any(&["and", "&", "&&"]);
            // Two conditions side by side are joined, too.
            if !joined && matches!(self.peek(), None | Some("or" | "|" | "||" | ")")) {
                return Ok(left);
            }
            left = Expr::And(Box::new(left), Box::new(self.one(depth)?));
        }
    }
    fn one(&mut self, depth: usize) -> Result<Expr, String> {
        if depth > MAX_DEPTH {
            return Err(format!("the filter has more than {MAX_DEPTH} parentheses inside each other"));
        }
        match self.take() {
            Some("not" | "!") => Ok(Expr::Not(Box::new(self.one(depth + 1)?))),
            Some("(") => {
                let inner = self.any(depth + 1)?;
                if self.take_any(&[")"]) { Ok(inner) } else { Err("the filter lacks a ')'".into()) }
            }
            Some(word @ ("src" | "dst")) => self.host(word == "dst"),
            Some(word @ ("sport" | "dport")) => self.port(word == "dport"),
            Some(word) => Err(format!("'{word}' is not expected in the filter; conditions are src, dst, sport, dport")),
            None => Err("the filter ends too early".into()),
        }
    }
    fn cmp(&mut self) -> Option<Cmp> {
        let cmp = Cmp::parse(self.peek()?)?;
        self.at += 1;
        Some(cmp)
    }
    fn port(&mut self, remote: bool) -> Result<Expr, String> {
        let cmp = self.cmp().unwrap_or(Cmp::Eq);
        let word = self.take().ok_or("the filter lacks a port")?;
        let port = word.strip_prefix(':').unwrap_or(word).parse();
        let port = port.map_err(|_| format!("'{word}' is no port; ports are numbers, as :443"))?;
        Ok(Expr::Port { remote, cmp, port })
    }
    fn host(&mut self, remote: bool) -> Result<Expr, String> {
        let cmp = self.cmp().unwrap_or(Cmp::Eq);
        let word = self.take().ok_or("the filter lacks an address")?;
        let (net, port) =
            parse_host(word).ok_or_else(|| format!("'{word}' is no address, as 10.0.0.0/8, [fd00::1]:80 or :443"))?;
        let host = Expr::Host { remote, net, port };
        match cmp {
            Cmp::Eq => Ok(host),
            Cmp::Ne => Ok(Expr::Not(Box::new(host))),
            _ => Err("an address is only equal or not".into()),
        }
    }
}

/// `ADDR[/PREFIX][:PORT]`, IPv6 with a port in brackets; a `*` is any.
fn parse_host(word: &str) -> Option<(Option<Cidr>, Option<u16>)> {
    let port_of = |text: &str| if text == "*" { Some(None) } else { text.parse().ok().map(Some) };
    let (addr, port) = match word.strip_prefix('[') {
        Some(rest) => {
            let (inside, behind) = rest.split_once(']')?;
            let (prefix, port) = behind.split_once(':').map_or((behind, None), |(p, port)| (p, Some(port)));
            (format!("{inside}{prefix}"), port.map_or(Some(None), port_of)?)
        }
        // More than one colon is an IPv6 address without a port.
        None if word.matches(':').count() == 1 => {
            let (addr, port) = word.split_once(':')?;
            (addr.to_owned(), port_of(port)?)
        }
        None => (word.to_owned(), None),
    };
    if addr.is_empty() || addr == "*" {
        return Some((None, port));
    }
    let net = match addr.split_once('/') {
        Some(_) => addr.parse::<Cidr>().ok()?,
        None => {
            let ip: IpAddr = addr.parse::<IpAddr>().ok()?.to_canonical();
            Cidr::new(ip, if ip.is_ipv4() { 32 } else { 128 })?
        }
    };
    Some((Some(net), port))
}
