//! Bytes as text (RFC 4648 section 4, with padding): packets inside lines of JSON.
//!
//! A line of JSON can hold no arbitrary bytes, and a list of numbers would be three times as long as this.
//!
//! Only whole, padded, canonical text is taken back: anything else is an error, not a guess.

use std::borrow::Cow;

use serde::{Deserialize as _, Deserializer, Serializer};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().zip([16, 8, 0]).fold(0_usize, |word, (&b, shift)| word | usize::from(b) << shift);
        for n in 0..4 {
            let letter = ALPHABET[word >> (18 - 6 * n) & 63];
            text.push(if n <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let (groups, rest) = text.as_bytes().as_chunks::<4>();
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for (n, group) in groups.iter().enumerate() {
        let pads = group.iter().rev().take_while(|&&c| c == b'=').count();
        if pads > 2 || (pads > 0 && n + 1 != groups.len()) {
            return None;
        }
        let mut word = 0_u32;
        for &c in group.iter().take(4 - pads) {
            let digit = match c {
                b'A'..=b'Z' => c - b'A',
                b'a'..=b'z' => c - b'a' + 26,
                b'0'..=b'9' => c - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            word = word << 6 | u32::from(digit);
        }
        word <<= 6 * pads;
        let [_, made @ ..] = word.to_be_bytes();
        let (kept, cut) = made.split_at(3 - pads);
        if cut.iter().any(|&b| b != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    rest.is_empty().then_some(bytes)
}

pub(super) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&encode(bytes))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
    let text = Cow::<str>::deserialize(d)?;
    decode(&text).ok_or_else(|| serde::de::Error::custom("not base64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_standards() {
        let pairs =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (bytes, text) in pairs {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
        for wrong in ["Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zh==", "Zm9=", "Z g=", "Zm9v\n", "Zm9\u{e4}"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
