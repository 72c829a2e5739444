//! A small scanner of Rust sources: enough to count lines and find functions, not a parser.
//!
//! [`mask`] blanks comments, strings and character literals, so that a brace or a word that remains is code; lines keep
//! their numbers. On the masked text [`test_lines`] finds the bodies of `#[cfg(test)]` items and [`functions`] counts
//! the code lines of each function as clippy's `too_many_lines` does: blank and comment lines are free.
//!
//! Limits: macros are seen as written, and a const expression in braces inside a signature would be taken for the body
//! (nobody here writes one). On unbalanced braces the rest of the file belongs to the last item; the compiler complains
//! about such a file anyway.

/// A function and the number of code lines between its braces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Line of the `fn`, from 1.
    pub(crate) line: usize,
    pub(crate) code_lines: usize,
}

/// `text` with comments, strings and character literals turned into spaces.
pub(crate) fn mask(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skip_from(&chars, at);
        if end > at {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { c } else { ' ' }));
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// The end of the comment or literal that starts at `at`, or `at` when none does.
fn skip_from(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    let after_word = at > 0 && is_word(chars[at - 1]);
    match chars[at] {
        '/' if next == Some('/') => chars[at..].iter().position(|&c| c == '\n').map_or(chars.len(), |n| at + n),
        '/' if next == Some('*') => skip_block_comment(chars, at),
        '"' => skip_quoted(chars, at + 1, '"'),
        'b' | 'c' if next == Some('"') && !after_word => skip_quoted(chars, at + 2, '"'),
        'b' if next == Some('\'') && !after_word => skip_quoted(chars, at + 2, '\''),
        'r' if !after_word => skip_raw(chars, at, at + 1),
        'b' | 'c' if next == Some('r') && !after_word => skip_raw(chars, at, at + 2),
        // A quote is a character when it closes after one, and a lifetime or label otherwise.
        '\'' if next == Some('\\') || chars.get(at + 2) == Some(&'\'') => skip_quoted(chars, at + 1, '\''),
        _ => at,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn skip_block_comment(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    i
}

fn skip_quoted(chars: &[char], mut i: usize, quote: char) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            c if c == quote => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// A raw string whose hashes start at `i`; `at` when it is none (a raw identifier, or a word that starts with r).
fn skip_raw(chars: &[char], at: usize, i: usize) -> usize {
    let hashes = chars[i..].iter().take_while(|&&c| c == '#').count();
    if chars.get(i + hashes) != Some(&'"') {
        return at;
    }
    let mut end = i + hashes + 1;
    while end < chars.len() {
        let closed =
            chars[end] == '"' && chars[end + 1..].iter().take_while(|&&c| c == '#').take(hashes).count() == hashes;
        end += 1;
        if closed {
            return end + hashes;
        }
    }
    chars.len()
}

/// For each line of masked code whether it belongs to a test-only item.
pub(crate) fn test_lines(code: &str) -> Vec<bool> {
    let lines: Vec<&str> = code.lines().collect();
    let mut marks = vec![false; lines.len()];
    let mut at = 0;
    while at < lines.len() {
        let attribute: String = lines[at].split_whitespace().collect();
        let test_only = attribute.starts_with("#[cfg(test)]")
            || attribute.starts_with("#[cfg(all(test,")
            || attribute.starts_with("#[cfg(all(loom,test")
            || attribute.starts_with("#[cfg(loom)]mod")
            || attribute == "#[test]";
        if !test_only {
            at += 1;
            continue;
        }
        let end = item_end(&lines, at);
        marks[at..=end].fill(true);
        at = end + 1;
    }
    marks
}

/// The last line of the item whose attribute is on line `at`.
fn item_end(lines: &[&str], at: usize) -> usize {
    let (mut braces, mut others) = (0_i32, 0_i32);
    for (number, line) in lines.iter().enumerate().skip(at) {
        for c in line.chars() {
            match c {
                '(' | '[' => others += 1,
                ')' | ']' => others -= 1,
                '{' => braces += 1,
                '}' if braces <= 1 => return number,
                '}' => braces -= 1,
                ';' if braces == 0 && others == 0 => return number,
                _ => {}
            }
        }
    }
    lines.len() - 1
}

/// The functions of masked code that have a body, test-only items left out.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let tests = test_lines(code);
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if at > 0 && is_word(bytes[at - 1] as char) {
            continue;
        }
        let rest = code[at + 3..].trim_start();
        let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
        let line = code[..at].matches('\n').count();
        if name.is_empty() || tests.get(line) == Some(&true) {
            continue;
        }
        if let Some(body) = body(&code[at..]) {
            let code_lines = body.lines().filter(|line| !line.trim().is_empty()).count();
            found.push(Function { name, line: line + 1, code_lines });
        }
    }
    found
}

/// What stands between the braces of the function at the start of `code`; `None` for a declaration.
fn body(code: &str) -> Option<&str> {
    let (mut others, mut braces, mut start) = (0_i32, 0_i32, 0);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' if braces == 0 => others += 1,
            ')' | ']' if braces == 0 => others -= 1,
            ';' if braces == 0 && others == 0 => return None,
            '{' => {
                if braces == 0 {
                    start = at + 1;
                }
                braces += 1;
            }
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(&code[start..at]);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_kept() {
        let text = "a // {\nb /* { /* } */ \n} */ c\nlet s = \"}\\\"{\"; let r = r#\"\"}\"#; let b = b'{'; 'out: '{' '\\'' &'a str r#fn";
        let masked = mask(text);
        assert_eq!(masked.lines().count(), text.lines().count());
        assert!(!masked.contains(['{', '}']), "{masked}");
        for word in ["a", "b", "c", "let s =", "'out:", "&'a str", "r#fn"] {
            assert!(masked.contains(word), "{word} in {masked}");
        }
        assert_eq!(mask("\"open").trim(), "");
        assert_eq!(mask("var\"x\"r").trim_end(), "var   r");
    }

    #[test]
    fn test_items_are_told_from_others() {
        let code =
            "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod more;\nfn d() {}\n";
        let marks = test_lines(code);
        assert_eq!(marks, [false, true, true, true, true, false, true, true, false]);
        let names: Vec<String> = functions(code).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["a", "c", "d"]);
    }

    #[test]
    fn functions_are_measured_in_code_lines() {
        let text = "trait T { fn declared(&self) -> [u8; 4]; }\nfn long(f: fn (u8)) -> u8\nwhere\n    u8: Copy,\n{\n    // free\n\n    \
                    let x = 1;\n    if x == 1 {\n        return 2;\n    }\n    x\n}\n";
        assert_eq!(functions(&mask(text)), [Function { name: "long".into(), line: 2, code_lines: 5 }]);
    }
}
