//! Rounded numbers for text output. JSON documents have the exact ones.

/// Formats a count: exact up to five digits, then with a decimal prefix.
pub fn count(value: u64) -> String {
    match value {
        0..100_000 => value.to_string(),
        _ => scaled(
            value as f64,
            1000.0,
            &["", " k", " M", " G", " T", " P", " E"],
        ),
    }
}

/// Formats bytes with a binary prefix.
pub fn bytes(value: u64) -> String {
    let units = [" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];
    scaled(value as f64, 1024.0, &units)
}

/// Formats a rate per second with a decimal prefix.
pub fn rate(value: f64, unit: &str) -> String {
    let number = scaled(value, 1000.0, &[" ", " k", " M", " G", " T"]);
    format!("{number}{unit}/s").trim_start().to_owned()
}

/// Formats a duration in its two largest units.
pub fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Formats a number with a noun, in the plural if it is not 1.
pub fn plural(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        _ => format!("{count} {thing}s"),
    }
}

/// Formats with three or four significant digits and a prefix; whole numbers stay whole.
fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    // A value that would be rounded up to the base gets the next unit.
    while value >= base - 0.05 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0}{}", units[0]),
        _ => format!("{value:.1}{}", units[unit]),
    }
}

/// Escapes control and bidirectional characters of a JSON document, which JSON permits and a
/// terminal interprets. The document keeps its meaning.
pub fn printable_json(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // White space between values.
            '\n' | '\t' => printable.push(c),
            // Bidirectional characters change the displayed order of a line.
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                printable.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => printable.push(c),
        }
    }
    printable
}

/// Replaces control characters, which a terminal would interpret.
pub fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printable_document_keeps_its_meaning() {
        let hostile = "a\u{1b}[2J\u{9b}2J\u{202e}\u{7f}\u{fc}\n";
        let document = serde_json::json!({ "name": hostile }).to_string();
        let printable = printable_json(&document);
        assert_eq!(printable, r#"{"name":"a\u001b[2J\u009b2J\u202e\u007fü\n"}"#);
        let read: serde_json::Value = serde_json::from_str(&printable).unwrap();
        assert_eq!(read["name"], hostile);
    }

    #[test]
    fn counts() {
        assert_eq!(count(0), "0");
        assert_eq!(count(99_999), "99999");
        assert_eq!(count(100_000), "100.0 k");
        assert_eq!(count(999_999), "1.0 M");
        assert_eq!(count(u64::MAX), "18.4 E");
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(512 << 20), "512.0 MiB");
        assert_eq!(bytes((1 << 30) - 1), "1.0 GiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn rates() {
        assert_eq!(rate(0.0, "bit"), "0 bit/s");
        assert_eq!(rate(1.5e9, "bit"), "1.5 Gbit/s");
        assert_eq!(rate(12_345.0, "pkt"), "12.3 kpkt/s");
    }

    #[test]
    fn durations() {
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(60), "1 min 0 s");
        assert_eq!(duration(3661), "1 h 1 min");
        assert_eq!(duration(90_000), "1 d 1 h");
    }
}
