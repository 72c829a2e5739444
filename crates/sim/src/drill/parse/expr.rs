//! System calls and their expressions (CONFORMANCE section 3.5).
//!
//! `call = NAME ( args ) = RESULT [ERRNO] [(note)]...`. Expressions are integers, symbols, `A|B`, strings, `...`, arrays,
//! structs whose fields are `name=value`, `name(arg)=value` or bare values, and applications such as `htons(8080)`.
//! The notes in parentheses behind an errno are free text: they are read raw, since an apostrophe in them is no token.
//! Invariant: depth is bounded by [`MAX_DEPTH`]. It does not know which argument a call wants: `call` resolves that.

use super::super::ast::{CallSpec, Expr, Field};
use super::super::lex::Tok;
use super::{MAX_DEPTH, Parsed, Parser, locate};

impl Parser<'_> {
    pub(super) fn call(&mut self) -> Parsed<CallSpec> {
        let name = self.any_word("the name of a system call")?;
        self.expect('(')?;
        let args = self.list(')', 0)?;
        self.expect('=')?;
        let result = self.expr(0)?;
        let mut errno = None;
        if let Tok::Word(w) = self.peek()?.tok {
            if !w.starts_with('E') {
                return self.unexpected("an error symbol, a note or the next event");
            }
            errno = Some(w);
            self.next()?;
        }
        let mut note = None;
        while self.is('(')? {
            let start = self.peek()?.start;
            let (text, end) = self.lexer.parenthesised(start).map_err(|e| locate(self.src, e))?;
            note = Some(text.trim().to_owned());
            self.at = end;
        }
        Ok(CallSpec { name, args, result, errno, note })
    }

    /// Expressions separated by commas up to and with `close`.
    fn list(&mut self, close: char, depth: usize) -> Parsed<Vec<Expr>> {
        let mut items = Vec::new();
        while !self.take(close)? {
            items.push(self.expr(depth + 1)?);
            if !self.is(close)? && !self.take(',')? {
                return self.unexpected(&format!("',' or '{close}'"));
            }
        }
        Ok(items)
    }

    pub(super) fn expr(&mut self, depth: usize) -> Parsed<Expr> {
        if depth > MAX_DEPTH {
            return self.unexpected("an expression that is nested less deeply");
        }
        let first = self.primary(depth)?;
        if !self.is('|')? {
            return Ok(first);
        }
        let mut terms = vec![first];
        while self.take('|')? {
            terms.push(self.primary(depth)?);
        }
        Ok(Expr::Or(terms))
    }

    fn primary(&mut self, depth: usize) -> Parsed<Expr> {
        let token = self.peek()?;
        let simple = match token.tok {
            Tok::Int(n) => Expr::Int(n),
            Tok::Float(x) => Expr::Float(x),
            Tok::V4(a) => Expr::V4(a),
            Tok::V6(a) => Expr::V6(a),
            Tok::Ellipsis => Expr::Ellipsis,
            Tok::Str(_) => return self.strings(),
            Tok::Punct('[') => {
                self.next()?;
                return Ok(Expr::List(self.list(']', depth)?));
            }
            Tok::Punct('{') => {
                self.next()?;
                return self.fields(depth);
            }
            Tok::Word(w) => {
                self.next()?;
                if self.take('(')? {
                    return Ok(Expr::Apply(w, self.list(')', depth)?));
                }
                return Ok(Expr::Sym(w));
            }
            _ => return self.unexpected("an expression"),
        };
        self.next()?;
        Ok(simple)
    }

    /// Adjacent strings are one; `...` behind it asks for the prefix only.
    fn strings(&mut self) -> Parsed<Expr> {
        let mut text = String::new();
        while let Tok::Str(s) = self.peek()?.tok {
            text.push_str(&s);
            self.next()?;
        }
        if self.peek()?.tok == Tok::Ellipsis {
            self.next()?;
            return Ok(Expr::StrPrefix(text));
        }
        Ok(Expr::Str(text))
    }

    fn fields(&mut self, depth: usize) -> Parsed<Expr> {
        let mut fields = Vec::new();
        while !self.take('}')? {
            fields.push(self.field(depth + 1)?);
            if !self.is('}')? && !self.take(',')? {
                return self.unexpected("',' or '}'");
            }
        }
        Ok(Expr::Struct(fields))
    }

    fn field(&mut self, depth: usize) -> Parsed<Field> {
        let value = self.expr(depth)?;
        if !self.take('=')? {
            return Ok(Field { name: None, arg: None, value });
        }
        let (name, arg) = match value {
            Expr::Sym(name) => (name, None),
            Expr::Apply(name, mut args) if args.len() == 1 => (name, args.pop()),
            _ => return self.unexpected("a field name before '='"),
        };
        Ok(Field { name: Some(name), arg, value: self.expr(depth)? })
    }
}
