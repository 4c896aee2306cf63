//! Filters and descriptions of frames: every text is refused with a column that it has, or is
//! written as a text that is read as the same, if it is not too long; a filter that was read judges
//! any frame, as does its negation, the other way.

use filter::{ExpressionError, Filter, FrameText, MAX_TEXT};
use wire::{MacAddr, ParsedHeaders};

/// Two bytes: how many bytes of text follow; then the text, then a frame.
pub fn run(data: &[u8]) {
    let Some((len, rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
    let (text, frame) = rest.split_at(len);
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    check_filter(text, frame);
    check_frame(text);
}

fn check_filter(text: &str, frame: &[u8]) {
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(error) => return check_error(text, &error),
    };
    let again = filter.to_string();
    if again.len() <= MAX_TEXT {
        assert_eq!(Filter::parse(&again).as_ref(), Ok(&filter), "{again}");
    }
    let parsed = ParsedHeaders::parse(frame, frame.len());
    let len = frame.len() as u32;
    if let Ok(other) = Filter::parse(&format!("not ({text})")) {
        assert_ne!(filter.matches(&parsed, len), other.matches(&parsed, len));
    }
}

fn check_frame(text: &str) {
    let described = match FrameText::parse(text) {
        Ok(described) => described,
        Err(error) => return check_error(text, &error),
    };
    let again = described.to_string();
    assert_eq!(FrameText::parse(&again).as_ref(), Ok(&described), "{again}");
    let (source, destination) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let frame = described.build(source, destination);
    let parsed = ParsedHeaders::parse(&frame, frame.len());
    let (source, destination) = described.ether.unwrap_or((source, destination));
    assert_eq!((parsed.src, parsed.dst), (source, destination));
    assert_eq!(parsed.vlan.map(|tag| tag.vid), described.vlan);
}

fn check_error(text: &str, error: &ExpressionError) {
    assert!(error.column >= 1 && error.column <= 1 + text.chars().count());
    assert!(!error.problem.is_empty());
}
