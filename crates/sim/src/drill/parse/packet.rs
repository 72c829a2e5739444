//! Packets (CONFORMANCE section 3.4): IP information, encapsulations, TCP with flags and options, UDP, ICMP.
//!
//! Flags are the one place where blanks count: `P.3` is an ACE digit and `P. 3` a sequence number, so a dot (or a number
//! that begins with one) belongs to the flags only when it touches the letters. Invariants checked here: a range's end is
//! its start plus its length; the options' bytes are a multiple of 4 and at most 40; digits and E/W/A are not mixed; an
//! inbound packet states its window. It does not check that a packet makes sense: odd packets are what tests are for.

use std::net::IpAddr;

use super::super::ast::{
    ACK, AE, Body, CWR, ECE, EcnSpec, Encap, FIN, FlagSpec, IcmpSpec, IpInfo, PSH, PacketSpec, Quote, RST, SYN,
    TcpOption, TcpSpec, URG,
};
use super::super::lex::Tok;
use super::super::packet::options_len;
use super::{Parsed, Parser};

impl Parser<'_> {
    pub(super) fn packet(&mut self, inbound: bool) -> Parsed<PacketSpec> {
        let encap = self.encapsulations()?;
        let ip = self.ip_info()?;
        let psp_spi = if self.take_word("encap")? {
            self.expect_word("psp")?;
            self.expect_word("spi")?;
            Some(self.unsigned("an SPI", u32::MAX.into())? as u32)
        } else {
            None
        };
        let start = self.peek()?.start;
        let body = if self.take_word("icmp")? {
            Body::Icmp(self.icmp()?)
        } else if self.take_word("udp")? {
            let ports = self.ports()?;
            self.expect('(')?;
            let len = self.unsigned("a payload length", 65_507)? as u32;
            self.expect(')')?;
            Body::Udp { ports, len }
        } else {
            Body::Tcp(self.tcp(inbound)?)
        };
        if matches!(body, Body::Udp { .. }) && ip.ecn.is_some() {
            return self.fail_at(start, "ECN words are for TCP only: use tos with udp");
        }
        Ok(PacketSpec { encap, ip, psp_spi, body })
    }

    fn encapsulations(&mut self) -> Parsed<Vec<Encap>> {
        let mut out = Vec::new();
        loop {
            let Tok::Word(word) = self.peek()?.tok else { return Ok(out) };
            match word.as_str() {
                "ipv4" | "ipv6" => {
                    self.next()?;
                    let info = self.ip_info()?;
                    let src = self.ip_address()?;
                    self.expect('>')?;
                    let dst = self.ip_address()?;
                    out.push(Encap::Ip { info, src, dst });
                }
                "gre" => {
                    self.next()?;
                    out.push(self.gre()?);
                }
                "mpls" => {
                    self.next()?;
                    let mut stack = Vec::new();
                    while self.is('(')? {
                        stack.push(self.mpls_entry()?);
                        self.take(',')?;
                    }
                    out.push(Encap::Mpls(stack));
                }
                _ => return Ok(out),
            }
            self.expect(':')?;
        }
    }

    fn ip_address(&mut self) -> Parsed<IpAddr> {
        let addr = match self.peek()?.tok {
            Tok::V4(a) => IpAddr::V4(a),
            Tok::V6(a) => IpAddr::V6(a),
            _ => return self.unexpected("an IP address"),
        };
        self.next()?;
        Ok(addr)
    }

    fn gre(&mut self) -> Parsed<Encap> {
        let mut fields = Vec::new();
        self.take(',')?;
        while !self.is(':')? {
            let name = self.any_word("a GRE field")?;
            if name == "flags" {
                self.expect('[')?;
                while !self.take(']')? {
                    let flag = self.any_word("a GRE flag")?;
                    self.take_word("present")?;
                    fields.push((format!("flag_{flag}"), 1));
                    self.take(',')?;
                }
            } else {
                let value = self.unsigned("a GRE field's value", u32::MAX.into())?;
                fields.push((name, value as i64));
            }
            self.take(',')?;
        }
        Ok(Encap::Gre(fields))
    }

    fn mpls_entry(&mut self) -> Parsed<(u32, u8, bool, u8)> {
        self.expect('(')?;
        let (mut label, mut tc, mut bottom, mut ttl) = (0, 0, false, 0);
        while !self.take(')')? {
            if self.take_word("label")? {
                label = self.unsigned("an MPLS label", 0xf_ffff)? as u32;
            } else if self.take_word("tc")? {
                tc = self.unsigned("a traffic class", 7)? as u8;
            } else if self.take_word("ttl")? {
                ttl = self.unsigned("a TTL", 255)? as u8;
            } else if self.take('[')? {
                self.expect_word("S")?;
                self.expect(']')?;
                bottom = true;
            } else {
                return self.unexpected("label, tc, [S] or ttl");
            }
            self.take(',')?;
        }
        Ok((label, tc, bottom, ttl))
    }

    fn ip_info(&mut self) -> Parsed<IpInfo> {
        let mut info = IpInfo::default();
        let close = match self.peek()?.tok {
            Tok::Punct('(') => ')',
            Tok::Punct('[') => ']',
            _ => return Ok(info),
        };
        self.next()?;
        while !self.take(close)? {
            let start = self.peek()?.start;
            let word = self.any_word("an ECN word, tos, ttl or flowlabel")?;
            match word.as_str() {
                "noecn" => info.ecn = Some(EcnSpec::NotEct),
                "ect0" => info.ecn = Some(EcnSpec::Ect0),
                "ect1" => info.ecn = Some(EcnSpec::Ect1),
                "ce" => info.ecn = Some(EcnSpec::Ce),
                "ect01" => info.ecn = Some(EcnSpec::EitherEct),
                "tos" | "class" => info.tos = Some(self.unsigned("a TOS byte", 255)? as u8),
                "ttl" | "hlim" => info.ttl = Some(self.unsigned("a TTL", 255)? as u8),
                "flowlabel" => info.flowlabel = Some(self.unsigned("a flow label", 0xf_ffff)? as u32),
                _ => return self.fail_at(start, format!("unknown IP information '{word}'")),
            }
            self.take(',')?;
        }
        Ok(info)
    }

    fn ports(&mut self) -> Parsed<Option<(u16, u16)>> {
        if !matches!(self.peek()?.tok, Tok::Int(_)) || self.peek_second()?.tok != Tok::Punct('>') {
            return Ok(None);
        }
        let src = self.unsigned("a port", 65_535)? as u16;
        self.expect('>')?;
        Ok(Some((src, self.unsigned("a port", 65_535)? as u16)))
    }

    fn range(&mut self) -> Parsed<(u32, u32)> {
        let at = self.peek()?.start;
        let seq = self.unsigned("a sequence number", u32::MAX.into())? as u32;
        self.expect(':')?;
        let end = self.unsigned("a sequence number", u32::MAX.into())? as u32;
        self.expect('(')?;
        let len = self.unsigned("a payload length", 65_535)? as u32;
        self.expect(')')?;
        if seq.wrapping_add(len) != end {
            return self.fail_at(at, format!("range {seq}:{end}({len}): the end must be the start plus the length"));
        }
        Ok((seq, len))
    }

    fn tcp(&mut self, inbound: bool) -> Parsed<TcpSpec> {
        let ports = self.ports()?;
        let flags = self.flags()?;
        let (seq, len) = self.range()?;
        let mut spec = TcpSpec { ports, flags, seq, len, ack: None, win: None, urg: None, options: Some(Vec::new()) };
        if self.take_word("ack")? {
            spec.ack = Some(self.unsigned("an acknowledgement number", u32::MAX.into())? as u32);
        }
        let at = self.peek()?.start;
        if self.take_word("win")? {
            spec.win = Some(self.unsigned("a window", 65_535)? as u16);
        } else if inbound {
            return self.fail_at(at, "an inbound TCP packet must state its window: win N");
        }
        if self.take_word("urg")? {
            spec.urg = Some(self.unsigned("an urgent pointer", 65_535)? as u16);
        }
        // '<' begins the options only if a packet does not begin there: a packet would stand behind a time.
        if self.is('<')? {
            let at = self.peek()?.start;
            self.next()?;
            spec.options = self.options()?;
            if inbound && spec.options.is_none() {
                return self.fail_at(at, "<...> is for outbound packets only");
            }
        }
        Ok(spec)
    }

    fn flags(&mut self) -> Parsed<FlagSpec> {
        let mut flags = FlagSpec::default();
        let start = self.peek()?;
        if self.take('-')? {
            return Ok(flags);
        }
        let mut end = start.start;
        if let Tok::Word(letters) = &start.tok {
            for letter in letters.chars() {
                flags.bits |= match letter {
                    'F' => FIN,
                    'S' => SYN,
                    'R' => RST,
                    'P' => PSH,
                    'U' => URG,
                    'E' => ECE,
                    'W' => CWR,
                    'A' => AE,
                    _ => return self.fail_at(start.start, format!("'{letter}' is no TCP flag in '{letters}'")),
                };
            }
            end = start.end;
            self.next()?;
        }
        let dot = self.peek()?;
        let bare = flags.bits == 0;
        match dot.tok {
            Tok::Punct('.') if bare || dot.start == end => flags.bits |= ACK,
            Tok::Float(_) if bare || dot.start == end => {
                let text = self.lexer.text(dot.start, dot.end);
                let ace = match text.strip_prefix('.').and_then(|d| d.parse::<u16>().ok()) {
                    Some(digit @ 0..=7) if text.len() == 2 => digit,
                    _ => return self.fail_at(dot.start, format!("'{text}': an ACE digit is .0 to .7")),
                };
                if flags.bits & (ECE | CWR | AE) != 0 {
                    return self.fail_at(dot.start, "an ACE digit cannot be mixed with E, W or A");
                }
                flags.bits |= ACK | (ace << 6);
                flags.ace = true;
            }
            _ if bare => return self.unexpected("TCP flags"),
            _ => return Ok(flags),
        }
        self.next()?;
        Ok(flags)
    }

    fn options(&mut self) -> Parsed<Option<Vec<TcpOption>>> {
        if self.peek()?.tok == Tok::Ellipsis {
            self.next()?;
            self.expect('>')?;
            return Ok(None);
        }
        let mut list = Vec::new();
        let at = self.peek()?.start;
        while !self.take('>')? {
            list.push(self.option()?);
            if !self.is('>')? && !self.take(',')? {
                return self.unexpected("',' or '>'");
            }
        }
        let bytes = options_len(&list);
        if !bytes.is_multiple_of(4) || bytes > 40 {
            let text = format!("TCP options take {bytes} bytes: pad them to a multiple of 4, at most 40");
            return self.fail_at(at, text);
        }
        Ok(Some(list))
    }

    fn option(&mut self) -> Parsed<TcpOption> {
        let at = self.peek()?.start;
        let name = self.any_word("a TCP option")?;
        Ok(match name.as_str() {
            "nop" => TcpOption::Nop,
            "eol" => TcpOption::Eol,
            "mss" => TcpOption::Mss(self.unsigned("an MSS", 65_535)? as u16),
            "wscale" => TcpOption::Wscale(self.unsigned("a window scale", 255)? as u8),
            "sackOK" => TcpOption::SackOk,
            "sack" => self.sack(at)?,
            "TS" => {
                self.expect_word("val")?;
                let val = self.unsigned("a timestamp", u32::MAX.into())? as u32;
                self.expect_word("ecr")?;
                TcpOption::Timestamp { val, ecr: self.unsigned("a timestamp", u32::MAX.into())? as u32 }
            }
            "FO" => TcpOption::FastOpen(self.hex()?),
            "FOEXP" => TcpOption::FastOpenExp(self.hex()?),
            "md5" => {
                let digest = self.hex()?;
                if digest.len() != 16 {
                    return self.fail_at(at, "md5 wants a digest of 32 hexadecimal digits");
                }
                TcpOption::Md5(digest)
            }
            "ECN" => self.accecn(at)?,
            _ => return self.fail_at(at, format!("unknown TCP option '{name}'")),
        })
    }

    fn sack(&mut self, at: usize) -> Parsed<TcpOption> {
        let mut blocks = Vec::new();
        while matches!(self.peek()?.tok, Tok::Int(_)) {
            let left = self.unsigned("a sequence number", u32::MAX.into())? as u32;
            self.expect(':')?;
            blocks.push((left, self.unsigned("a sequence number", u32::MAX.into())? as u32));
        }
        if !(1..=4).contains(&blocks.len()) {
            return self.fail_at(at, "sack wants 1 to 4 blocks LEFT:RIGHT");
        }
        Ok(TcpOption::Sack(blocks))
    }

    /// Hexadecimal digits of a cookie or digest; none are an empty one.
    fn hex(&mut self) -> Parsed<Vec<u8>> {
        let token = self.peek()?;
        let text = match &token.tok {
            Tok::Word(w) => w.clone(),
            Tok::Int(_) => self.lexer.text(token.start, token.end).to_owned(),
            _ => return Ok(Vec::new()),
        };
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<Vec<_>>>();
        match digits {
            Some(d) if d.len().is_multiple_of(2) => {
                self.next()?;
                Ok(d.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
            }
            _ => self.fail_at(token.start, format!("'{text}' is no sequence of hexadecimal bytes")),
        }
    }

    fn accecn(&mut self, at: usize) -> Parsed<TcpOption> {
        const ORDERS: [(u8, [&str; 3]); 2] = [(172, ["e0b", "ceb", "e1b"]), (174, ["e1b", "ceb", "e0b"])];
        for (kind, names) in ORDERS {
            if !self.is_word(names[0])? {
                continue;
            }
            let mut counters = Vec::new();
            for name in names {
                if !self.take_word(name)? {
                    break;
                }
                counters.push(self.unsigned("a 24-bit counter", 0xff_ffff)? as u32);
            }
            return Ok(TcpOption::AccEcn { kind, counters });
        }
        self.fail_at(at, "ECN wants counters in the order e0b ceb e1b or e1b ceb e0b")
    }

    fn icmp(&mut self) -> Parsed<IcmpSpec> {
        let mut spec = IcmpSpec { kind: self.any_word("an ICMP type")?, code: None, mtu: None, id: None, quote: None };
        loop {
            match self.peek()?.tok {
                Tok::Word(w) if w == "mtu" => {
                    self.next()?;
                    spec.mtu = Some(self.unsigned("an MTU", u32::MAX.into())? as u32);
                }
                Tok::Word(w) if w == "id" => {
                    self.next()?;
                    spec.id = Some(self.unsigned("an identifier", 65_535)? as u16);
                }
                Tok::Word(w) if spec.code.is_none() => {
                    self.next()?;
                    spec.code = Some(w);
                }
                Tok::Punct('[') => {
                    self.next()?;
                    spec.quote = Some(self.quote()?);
                    self.expect(']')?;
                }
                _ => return Ok(spec),
            }
        }
    }

    fn quote(&mut self) -> Parsed<Quote> {
        for (word, raw) in [("udp", false), ("raw", true)] {
            if self.take_word(word)? {
                self.expect('(')?;
                let len = self.unsigned("a payload length", 65_507)? as u32;
                self.expect(')')?;
                return Ok(if raw { Quote::Raw { len } } else { Quote::Udp { len } });
            }
        }
        let (seq, len) = self.range()?;
        Ok(Quote::Tcp { seq, len })
    }
}
