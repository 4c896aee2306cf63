//! Words and signs of both languages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::MacAddr;

use crate::{ExpressionError, MAX_TEXT};

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    Open,
    Close,
    Not,
    And,
    Or,
    Arrow,
    End,
}

/// A piece of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    /// In characters from 1.
    pub(super) column: usize,
}

impl Token<'_> {
    pub(super) fn is(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text == word
    }

    /// Returns the error that something else was expected here.
    pub(super) fn expected(&self, what: &str) -> ExpressionError {
        let found = match self.kind {
            Kind::End => "the end".to_owned(),
            _ => format!("`{}`", self.text),
        };
        self.wrong(format!("expected {what}, found {found}"))
    }

    pub(super) fn wrong(&self, problem: String) -> ExpressionError {
        ExpressionError {
            column: self.column,
            problem,
        }
    }
}

/// The tokens of a text, and which is next.
pub(super) struct Tokens<'a> {
    all: Vec<Token<'a>>,
    next: usize,
}

impl<'a> Tokens<'a> {
    /// Cuts `text` into tokens.
    pub(super) fn new(text: &'a str) -> Result<Self, ExpressionError> {
        if text.len() > MAX_TEXT {
            return Err(ExpressionError {
                column: 1,
                problem: format!("longer than {MAX_TEXT} bytes"),
            });
        }
        let (mut all, mut rest, mut column) = (Vec::new(), text, 1);
        loop {
            let trimmed = rest.trim_start();
            column += rest.chars().count() - trimmed.chars().count();
            let token = first(trimmed, column)?;
            all.push(token);
            if token.kind == Kind::End {
                return Ok(Self { all, next: 0 });
            }
            column += token.text.chars().count();
            rest = &trimmed[token.text.len()..];
        }
    }

    /// Returns the next token; at the end this is always the end token.
    pub(super) fn peek(&self) -> Token<'a> {
        self.peek_at(0)
    }

    /// The token `ahead` behind the next.
    pub(super) fn peek_at(&self, ahead: usize) -> Token<'a> {
        let last = self.all.len() - 1;
        self.all[(self.next + ahead).min(last)]
    }

    pub(super) fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.next += 1;
        token
    }

    /// Takes `word` if it is next.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = self.peek().is(word);
        self.next += usize::from(found);
        found
    }

    /// Takes what can be read as a value.
    pub(super) fn value<T>(
        &mut self,
        what: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ExpressionError> {
        let token = self.peek();
        let value = (token.kind == Kind::Word).then(|| read(token.text));
        self.next += 1;
        value.flatten().ok_or_else(|| token.expected(what))
    }

    /// Takes a number of `least` to `most`.
    pub(super) fn number(
        &mut self,
        what: &str,
        least: u32,
        most: u32,
    ) -> Result<u32, ExpressionError> {
        let what = format!("{what} ({least} to {most})");
        self.value(&what, |text| {
            number(text).filter(|n| (least..=most).contains(n))
        })
    }

    pub(super) fn mac(&mut self) -> Result<MacAddr, ExpressionError> {
        self.value("an Ethernet address such as 52:54:00:12:34:56", |text| {
            text.parse().ok()
        })
    }

    /// Takes an IPv4 or IPv6 address.
    pub(super) fn ip(&mut self) -> Result<IpAddr, ExpressionError> {
        self.value("an IPv4 or IPv6 address", |text| text.parse().ok())
    }

    pub(super) fn v4(&mut self) -> Result<Ipv4Addr, ExpressionError> {
        self.value("an IPv4 address", |text| text.parse().ok())
    }

    pub(super) fn v6(&mut self) -> Result<Ipv6Addr, ExpressionError> {
        self.value("an IPv6 address", |text| text.parse().ok())
    }
}

/// A decimal number, or a hexadecimal one behind `0x`.
pub(super) fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(hexadecimal) => (hexadecimal, 16),
        None => (text, 10),
    };
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, radix).ok())?
}

/// The first token of a text without leading space.
fn first(text: &str, column: usize) -> Result<Token<'_>, ExpressionError> {
    const SIGNS: [(&str, Kind); 6] = [
        ("(", Kind::Open),
        (")", Kind::Close),
        ("!", Kind::Not),
        ("&&", Kind::And),
        ("||", Kind::Or),
        (">", Kind::Arrow),
    ];
    let token = |kind, len| Token {
        kind,
        text: &text[..len],
        column,
    };
    if let Some((sign, kind)) = SIGNS.iter().find(|(sign, _)| text.starts_with(sign)) {
        return Ok(token(*kind, sign.len()));
    }
    let len = text.find(|c| !is_of_word(c)).unwrap_or(text.len());
    match &text[..len] {
        "" => end_or_error(text, column),
        "not" => Ok(token(Kind::Not, len)),
        "and" => Ok(token(Kind::And, len)),
        "or" => Ok(token(Kind::Or, len)),
        _ => Ok(token(Kind::Word, len)),
    }
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || ":._/-[]".contains(c)
}

fn end_or_error(text: &str, column: usize) -> Result<Token<'_>, ExpressionError> {
    match text.chars().next() {
        None => Ok(Token {
            kind: Kind::End,
            text: "",
            column,
        }),
        Some(c) => Err(ExpressionError {
            column,
            problem: format!("unexpected character {c:?}"),
        }),
    }
}
