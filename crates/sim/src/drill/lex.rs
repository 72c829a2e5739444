//! Tokens of the packetdrill language.
//!
//! The language is written without reserved words: whether `1.5` is a time or an ACE digit, or `1:1001` a sequence
//! range, depends on where it stands. So the lexer is *pulled*: the parser asks for the next token at a byte offset, and
//! may also ask for raw text (the free text behind an errno, the value of an option line). Invariants: a token's end is
//! always behind its start, so a parser that consumes tokens terminates; `-D NAME=VALUE` replaces whole word tokens only,
//! and a replacement is never replaced again. Limits: integers are 64 bits; strings know C's one-letter escapes, `\xHH`
//! and octal. It does not track nesting: brackets are the parser's business.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tok {
    Int(i64),
    Float(f64),
    Word(String),
    Str(String),
    Shell(String),
    Code(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Punct(char),
    Ellipsis,
    Eof,
}

impl Tok {
    /// How error messages call this token.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Int(n) => format!("integer {n}"),
            Self::Float(x) => format!("number {x}"),
            Self::Word(w) => format!("word '{w}'"),
            Self::Str(_) => "a string".into(),
            Self::Shell(_) => "a back-quoted command".into(),
            Self::Code(_) => "a code block".into(),
            Self::V4(a) => format!("address {a}"),
            Self::V6(a) => format!("address {a}"),
            Self::Punct(c) => format!("'{c}'"),
            Self::Ellipsis => "'...'".into(),
            Self::Eof => "the end of the script".into(),
        }
    }
}

/// A token with its place: bytes `start..end` of the source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) tok: Tok,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A mistake of the script's writer: byte offset and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LexError {
    pub(crate) at: usize,
    pub(crate) text: String,
}

fn fail<T>(at: usize, text: impl Into<String>) -> Result<T, LexError> {
    Err(LexError { at, text: text.into() })
}

/// The source text and the words that `-D` replaces.
pub(crate) struct Lexer<'a> {
    src: &'a str,
    defines: &'a HashMap<String, String>,
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_'
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(src: &'a str, defines: &'a HashMap<String, String>) -> Self {
        Self { src, defines }
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.src.as_bytes().get(at).copied()
    }

    /// The bytes from `at` while `keep` holds.
    fn run(&self, at: usize, keep: impl Fn(u8) -> bool) -> &'a str {
        let rest = self.src.as_bytes().get(at..).unwrap_or(&[]);
        let len = rest.iter().position(|&c| !keep(c)).unwrap_or(rest.len());
        self.src.get(at..at + len).unwrap_or("")
    }

    /// The source between two offsets.
    pub(crate) fn text(&self, start: usize, end: usize) -> &'a str {
        self.src.get(start..end).unwrap_or("")
    }

    /// First offset at or behind `at` that is neither blank nor comment.
    pub(crate) fn skip_blank(&self, mut at: usize) -> Result<usize, LexError> {
        loop {
            match (self.byte(at), self.byte(at + 1)) {
                (Some(c), _) if c.is_ascii_whitespace() => at += 1,
                (Some(b'/'), Some(b'/')) => at += self.run(at, |c| c != b'\n').len(),
                (Some(b'/'), Some(b'*')) => match self.src[at..].find("*/") {
                    Some(n) => at += n + 2,
                    None => return fail(at, "comment is never closed"),
                },
                _ => return Ok(at),
            }
        }
    }

    /// The token at or behind `at`.
    pub(crate) fn token(&self, at: usize) -> Result<Token, LexError> {
        let start = self.skip_blank(at)?;
        let (tok, end) = self.lex(start)?;
        debug_assert!(end > start || tok == Tok::Eof);
        Ok(Token { tok, start, end })
    }

    fn lex(&self, at: usize) -> Result<(Tok, usize), LexError> {
        let Some(c) = self.byte(at) else { return Ok((Tok::Eof, at)) };
        if let Some(found) = self.address(at) {
            return Ok(found);
        }
        match c {
            b'"' => self.string(at),
            b'`' => match self.src[at + 1..].find('`') {
                Some(n) => Ok((Tok::Shell(self.src[at + 1..at + 1 + n].to_owned()), at + n + 2)),
                None => fail(at, "back-quoted command is never closed"),
            },
            b'%' if self.byte(at + 1) == Some(b'{') => match self.src[at..].find("}%") {
                Some(n) => Ok((Tok::Code(self.src[at + 2..at + n].trim().to_owned()), at + n + 2)),
                None => fail(at, "code block is never closed by }%"),
            },
            b'.' if self.src[at..].starts_with("...") => Ok((Tok::Ellipsis, at + 3)),
            b'.' if self.byte(at + 1).is_some_and(|d| d.is_ascii_digit()) => self.number(at, at),
            b'-' if self.signed_number_follows(at + 1) => self.number(at, at + 1),
            _ if c.is_ascii_digit() => self.number(at, at),
            _ if is_word(c) => {
                let word = self.run(at, is_word);
                Ok((self.word(word, at)?, at + word.len()))
            }
            _ if b"<>()[]{}:,=|+~*-.".contains(&c) => Ok((Tok::Punct(c as char), at + 1)),
            _ => fail(at, format!("unexpected character '{}'", self.src[at..].chars().next().unwrap_or('?'))),
        }
    }

    fn signed_number_follows(&self, at: usize) -> bool {
        let digit = |at| self.byte(at).is_some_and(|c: u8| c.is_ascii_digit());
        digit(at) || (self.byte(at) == Some(b'.') && digit(at + 1))
    }

    /// An IPv4 or IPv6 literal. `1:1001` (a sequence range) is none, because an IPv6 literal has `::` or eight groups.
    fn address(&self, at: usize) -> Option<(Tok, usize)> {
        let six = self.run(at, |c| c.is_ascii_hexdigit() || c == b':' || c == b'.');
        if six.contains("::") || six.matches(':').count() >= 7 {
            // "addr:" closes an encapsulation header, so the last colon may not belong to the literal.
            for text in [six, six.strip_suffix(':').unwrap_or(six)] {
                if let Ok(a) = text.parse() {
                    return Some((Tok::V6(a), at + text.len()));
                }
            }
        }
        let four = self.run(at, |c| c.is_ascii_digit() || c == b'.');
        Some((Tok::V4(four.parse().ok()?), at + four.len()))
    }

    /// A number whose sign is at `start` (or none) and whose digits begin at `at`; or a word that begins with digits.
    fn number(&self, start: usize, at: usize) -> Result<(Tok, usize), LexError> {
        let body = self.run(at, is_word);
        let sign = if start < at { -1 } else { 1 };
        let after = at + body.len();
        if body.bytes().all(|c| c.is_ascii_digit()) {
            let fraction = match self.byte(after) {
                Some(b'.') => self.run(after + 1, |c| c.is_ascii_digit()),
                _ => "",
            };
            if !fraction.is_empty() {
                let end = after + 1 + fraction.len();
                let value: f64 = format!("0{body}.{fraction}").parse().unwrap_or(0.0);
                return Ok((Tok::Float(value * sign as f64), end));
            }
            return match body.parse::<i64>() {
                Ok(n) => Ok((Tok::Int(n * sign), after)),
                Err(_) if start == at => Ok((Tok::Word(body.to_owned()), after)),
                Err(_) => fail(start, format!("number {body} is too large")),
            };
        }
        if let Some(hex) = body.strip_prefix("0x").or_else(|| body.strip_prefix("0X")) {
            return match u64::from_str_radix(hex, 16) {
                Ok(n) => Ok((Tok::Int((n as i64).wrapping_mul(sign)), after)),
                Err(_) => fail(start, format!("bad hexadecimal number {body}")),
            };
        }
        if start < at {
            return fail(start, format!("bad number -{body}"));
        }
        Ok((self.word(body, at)?, after))
    }

    /// A word, or what `-D` puts in its place.
    fn word(&self, word: &str, at: usize) -> Result<Tok, LexError> {
        let Some(value) = self.defines.get(word) else { return Ok(Tok::Word(word.to_owned())) };
        let unquoted = |q: char| value.strip_prefix(q).and_then(|v| v.strip_suffix(q));
        if let Some(text) = unquoted('"') {
            return Ok(Tok::Str(text.to_owned()));
        }
        if let Some(text) = unquoted('`') {
            return Ok(Tok::Shell(text.to_owned()));
        }
        if value.is_empty() {
            return fail(at, format!("-D {word}= has no value"));
        }
        let hex = value.strip_prefix("0x").and_then(|h| u64::from_str_radix(h, 16).ok()).map(|n| n as i64);
        Ok(match value.parse::<i64>().ok().or(hex) {
            Some(n) => Tok::Int(n),
            None => Tok::Word(value.clone()),
        })
    }

    fn string(&self, at: usize) -> Result<(Tok, usize), LexError> {
        let mut out = String::new();
        let mut chars = self.src[at + 1..].char_indices().peekable();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => return Ok((Tok::Str(out), at + i + 2)),
                '\\' => {
                    let Some((_, e)) = chars.next() else { break };
                    let mut digits = |first: &str, radix: u32, max: usize| {
                        let mut n = u32::from_str_radix(first, radix).unwrap_or(0);
                        let mut left = max;
                        while left > 0
                            && let Some(d) = chars.peek().and_then(|(_, c)| c.to_digit(radix))
                        {
                            n = n * radix + d;
                            chars.next();
                            left -= 1;
                        }
                        char::from(n as u8)
                    };
                    out.push(match e {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'a' => '\x07',
                        'b' => '\x08',
                        'f' => '\x0c',
                        'v' => '\x0b',
                        'x' => digits("0", 16, 2),
                        '0'..='7' => digits(e.encode_utf8(&mut [0; 4]), 8, 2),
                        other => other,
                    });
                }
                _ => out.push(c),
            }
        }
        fail(at, "string is never closed")
    }

    /// Raw text of a `(...)` group whose opening parenthesis is at `at`: the text inside and the offset behind it.
    pub(crate) fn parenthesised(&self, at: usize) -> Result<(&'a str, usize), LexError> {
        let mut depth = 0;
        for (i, c) in self.src[at..].char_indices() {
            match c {
                '(' => depth += 1,
                ')' if depth == 1 => return Ok((&self.src[at + 1..at + i], at + i + 1)),
                ')' => depth -= 1,
                _ => {}
            }
        }
        fail(at, "'(' is never closed")
    }

    /// The option line `--name[=value]` at or behind `at`, if there is one: name, value, offset behind it.
    pub(crate) fn option_line(&self, at: usize) -> Result<Option<OptionText<'a>>, LexError> {
        let at = self.skip_blank(at)?;
        if !self.src[at..].starts_with("--") && !self.src[at..].starts_with("-D") {
            return Ok(None);
        }
        let text = self.run(at, |c| !c.is_ascii_whitespace());
        let end = at + text.len();
        if let Some(define) = text.strip_prefix("-D") {
            // "-D NAME=VALUE" and "-DNAME=VALUE" are both in use.
            let from = self.skip_blank(end - define.len())?;
            let define = self.run(from, |c| !c.is_ascii_whitespace());
            return Ok(Some((at, "define", Some(define), from + define.len())));
        }
        let body = &text[2..];
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (body, None),
        };
        Ok(Some((at, name, value, end)))
    }
}

/// Offset, name, value and end of an option line.
pub(crate) type OptionText<'a> = (usize, &'a str, Option<&'a str>, usize);
