//! Words and signs of a filter expression, each with its place.
//!
//! A word is a run of letters, digits and `. _ : / -`, so addresses of both families, prefixes, ranges and names such as
//! `tcp-syn` are one word each. Signs are those of the language; `and`, `or` and `not` are words that the parser knows.
//! Anything else is an error that says where. The text is bounded by [`MAX_TEXT_BYTES`].

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::{FilterError, MAX_TEXT_BYTES};

/// One piece of an expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Sign(&'static str),
}

/// Longer ones first.
const SIGNS: [&str; 16] = ["&&", "||", "!=", "==", "<=", ">=", "(", ")", "[", "]", "!", "&", "|", "=", "<", ">"];

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '/' | '-')
}

/// All tokens with their offsets in bytes.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token<'_>)>, FilterError> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!("the expression is longer than {MAX_TEXT_BYTES} bytes");
        return Err(FilterError { at: 0, message });
    }
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..)
        && let Some(c) = rest.chars().next()
    {
        if c.is_whitespace() {
            at += c.len_utf8();
        } else if is_word(c) {
            let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            out.push((at, Token::Word(rest.get(..len).unwrap_or_default())));
            at += len;
        } else if let Some(sign) = SIGNS.iter().find(|s| rest.starts_with(**s)) {
            out.push((at, Token::Sign(sign)));
            at += sign.len();
        } else {
            let message = match c {
                '+' | '*' | '^' | '%' => "arithmetic is not part of this language".to_string(),
                c => format!("{c:?} means nothing here"),
            };
            return Err(FilterError { at, message });
        }
    }
    Ok(out)
}
