//! Recursive descent over a script: options, init command, timed events, cleanup command.
//!
//! Grammar (CONFORMANCE section 3): `script = option* [shell] event* [shell]`, `event = TIME action`, `action = packet |
//! call | shell | code`. Packets live in [`packet`], calls and expressions in [`expr`]. Blanks and newlines are equal, so a
//! statement ends only where the next time begins: no production may swallow a number that could be a time.
//! Invariants: each loop consumes a token, so parsing ends; every error carries line and column. Limits: nesting of
//! expressions is bounded by [`MAX_DEPTH`]. It does not resolve symbols or addresses, and it runs nothing.

use std::collections::HashMap;

use super::ast::{Action, Event, Pos, Script, ScriptOption, When};
use super::lex::{LexError, Lexer, Tok, Token};

mod expr;
mod packet;

/// Deepest nesting of expressions: a script is written by people, who need five.
pub(crate) const MAX_DEPTH: usize = 32;

/// A syntax error: where and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    pub(crate) pos: Pos,
    pub(crate) text: String,
}

pub(crate) type Parsed<T> = Result<T, ParseError>;

/// Reads a whole script.
pub(crate) fn parse(src: &str, defines: &HashMap<String, String>) -> Parsed<Script> {
    let mut own = defines.clone();
    let (_, behind_options) = read_options(src, &mut own)?;
    let mut p = Parser { lexer: Lexer::new(src, &own), src, at: behind_options };
    let mut script = Script::default();
    if let Tok::Shell(text) = p.peek()?.tok {
        script.init = Some((p.pos_here()?, text));
        p.next()?;
    }
    loop {
        match p.peek()?.tok {
            Tok::Eof => break,
            Tok::Shell(text) => {
                script.cleanup = Some((p.pos_here()?, text));
                p.next()?;
                let t = p.peek()?;
                if t.tok != Tok::Eof {
                    return p.fail_at(t.start, "a command without a time may only stand at the very end");
                }
            }
            _ => {
                let event = p.event(script.events.is_empty())?;
                script.events.push(event);
            }
        }
    }
    Ok(script)
}

/// Only the option lines: known before the variant, and so the defines, are chosen.
pub(crate) fn parse_options(src: &str) -> Parsed<Vec<ScriptOption>> {
    read_options(src, &mut HashMap::new()).map(|(options, _)| options)
}

fn read_options(src: &str, defines: &mut HashMap<String, String>) -> Parsed<(Vec<ScriptOption>, usize)> {
    let none = HashMap::new();
    let lexer = Lexer::new(src, &none);
    let (mut options, mut at) = (Vec::new(), 0);
    while let Some((start, name, value, end)) = lexer.option_line(at).map_err(|e| locate(src, e))? {
        if name == "define" {
            match value.and_then(|v| v.split_once('=')) {
                // The command line wins over the script.
                Some((n, v)) => defines.entry(n.to_owned()).or_insert_with(|| v.to_owned()),
                None => {
                    return Err(locate(src, LexError { at: start, text: "define wants NAME=VALUE".into() }));
                }
            };
        }
        options.push(ScriptOption {
            pos: position(src, start),
            name: name.to_owned(),
            value: value.map(str::to_owned),
        });
        at = end;
    }
    Ok((options, at))
}

fn position(src: &str, at: usize) -> Pos {
    let before = &src.as_bytes()[..at.min(src.len())];
    let line = before.iter().filter(|&&c| c == b'\n').count() + 1;
    let col = before.iter().rev().take_while(|&&c| c != b'\n').count() + 1;
    Pos { line, col }
}

fn locate(src: &str, e: LexError) -> ParseError {
    ParseError { pos: position(src, e.at), text: e.text }
}

pub(crate) struct Parser<'a> {
    lexer: Lexer<'a>,
    src: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn fail_at<T>(&self, at: usize, text: impl Into<String>) -> Parsed<T> {
        Err(ParseError { pos: position(self.src, at), text: text.into() })
    }

    fn peek(&self) -> Parsed<Token> {
        self.lexer.token(self.at).map_err(|e| locate(self.src, e))
    }

    fn peek_second(&self) -> Parsed<Token> {
        let first = self.peek()?;
        self.lexer.token(first.end).map_err(|e| locate(self.src, e))
    }

    fn next(&mut self) -> Parsed<Token> {
        let t = self.peek()?;
        self.at = t.end;
        Ok(t)
    }

    fn pos_here(&self) -> Parsed<Pos> {
        Ok(position(self.src, self.peek()?.start))
    }

    fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let t = self.peek()?;
        self.fail_at(t.start, format!("syntax error: expected {wanted}, found {}", t.tok.describe()))
    }

    fn is(&self, c: char) -> Parsed<bool> {
        Ok(self.peek()?.tok == Tok::Punct(c))
    }

    /// Takes `c` if it is next.
    fn take(&mut self, c: char) -> Parsed<bool> {
        let found = self.is(c)?;
        if found {
            self.next()?;
        }
        Ok(found)
    }

    fn expect(&mut self, c: char) -> Parsed<()> {
        if self.take(c)? { Ok(()) } else { self.unexpected(&format!("'{c}'")) }
    }

    fn is_word(&self, word: &str) -> Parsed<bool> {
        Ok(matches!(self.peek()?.tok, Tok::Word(w) if w == word))
    }

    fn take_word(&mut self, word: &str) -> Parsed<bool> {
        let found = self.is_word(word)?;
        if found {
            self.next()?;
        }
        Ok(found)
    }

    fn expect_word(&mut self, word: &str) -> Parsed<()> {
        if self.take_word(word)? { Ok(()) } else { self.unexpected(&format!("'{word}'")) }
    }

    fn any_word(&mut self, wanted: &str) -> Parsed<String> {
        match self.peek()?.tok {
            Tok::Word(w) => {
                self.next()?;
                Ok(w)
            }
            _ => self.unexpected(wanted),
        }
    }

    /// An integer in `0..=max`.
    fn unsigned(&mut self, what: &str, max: u64) -> Parsed<u64> {
        let t = self.peek()?;
        match t.tok {
            Tok::Int(n) if (0..=max as i64).contains(&n) => {
                self.next()?;
                Ok(n as u64)
            }
            Tok::Int(n) => self.fail_at(t.start, format!("{what} {n} is out of range 0..={max}")),
            _ => self.unexpected(what),
        }
    }

    /// Seconds as microseconds.
    fn seconds(&mut self) -> Parsed<i64> {
        let us = match self.peek()?.tok {
            Tok::Int(n) => n.saturating_mul(1_000_000),
            Tok::Float(x) => (x * 1e6).round() as i64,
            _ => return self.unexpected("a time in seconds"),
        };
        self.next()?;
        Ok(us)
    }

    fn event(&mut self, first: bool) -> Parsed<Event> {
        let start = self.peek()?.start;
        let pos = position(self.src, start);
        let (when, end) = self.when()?;
        if first && !matches!(when, When::Absolute(0) | When::Relative(0)) {
            return self.fail_at(start, "the first event must have time 0");
        }
        let action_start = self.peek()?.start;
        let action = self.action()?;
        let outbound = matches!(action, Action::Outbound(_));
        if !outbound && !matches!(when, When::Absolute(_) | When::Relative(_)) {
            return self.fail_at(start, "a time range or '*' is for outbound packets only");
        }
        if end.is_some() && !matches!(action, Action::Call(_)) {
            return self.fail_at(start, "only a system call can have an end time");
        }
        let text = self.lexer.text(action_start, self.at).split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Event { pos, when, end, action, text })
    }

    fn when(&mut self) -> Parsed<(When, Option<i64>)> {
        let start = self.peek()?.start;
        if self.take('*')? {
            return Ok((When::Any, None));
        }
        let relative = self.take('+')?;
        let from = self.seconds()?;
        if from < 0 {
            return self.fail_at(start, "a time cannot be negative");
        }
        if self.take('~')? {
            self.take('+')?;
            let to = self.seconds()?;
            if to < from {
                return self.fail_at(start, "the time range ends before it begins");
            }
            let when = if relative { When::RelativeRange(from, to) } else { When::AbsoluteRange(from, to) };
            return Ok((when, None));
        }
        let mut end = None;
        if self.peek()?.tok == Tok::Ellipsis {
            self.next()?;
            self.take('+')?;
            let to = self.seconds()?;
            if to < from {
                return self.fail_at(start, "the call ends before it begins");
            }
            end = Some(to);
        }
        Ok((if relative { When::Relative(from) } else { When::Absolute(from) }, end))
    }

    fn action(&mut self) -> Parsed<Action> {
        match self.peek()?.tok {
            Tok::Punct('<') => {
                self.next()?;
                Ok(Action::Inbound(self.packet(true)?))
            }
            Tok::Punct('>') => {
                self.next()?;
                Ok(Action::Outbound(self.packet(false)?))
            }
            Tok::Shell(text) => {
                self.next()?;
                Ok(Action::Shell(text))
            }
            Tok::Code(text) => {
                self.next()?;
                Ok(Action::Code(text))
            }
            Tok::Word(_) => Ok(Action::Call(self.call()?)),
            _ => self.unexpected("a packet, a system call, a command or a code block"),
        }
    }
}

#[cfg(test)]
mod tests;
