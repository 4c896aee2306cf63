//! Traces with the answers of Linux 6.18.

use std::time::Duration;

use crate::answer::{Answer, Entry, agree};
use crate::ours::{From, Ours};

/// A line is `> HEX` or `< HEX`, an IP packet of one side, and after `#` the kernel's answer.
/// `{78*8}` stands for eight bytes 78. A line that begins with `#` names a trace.
const RECORDED: &str = include_str!("recorded.txt");

fn bytes(hex: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = hex;
    while !rest.is_empty() {
        if let Some(run) = rest.strip_prefix('{') {
            let (run, after) = run.split_once('}').expect("a brace closes");
            let (byte, count) = run.split_once('*').expect("a run has a count");
            let byte = u8::from_str_radix(byte, 16).expect("a byte");
            out.extend(vec![byte; count.parse().expect("a count")]);
            rest = after;
        } else {
            let (byte, after) = rest.split_at(2);
            out.push(u8::from_str_radix(byte, 16).expect("a byte"));
            rest = after;
        }
    }
    out
}

impl Answer {
    /// Reads what `Display` writes.
    fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split_whitespace().collect();
        let entry = (words[1] != "-").then(|| Entry {
            seconds: words[2].parse().expect("seconds"),
            state: words[3].to_owned(),
            replied: !words.contains(&"[UNREPLIED]"),
            assured: words.contains(&"[ASSURED]"),
        });
        Self {
            verdict: words[0].to_owned(),
            entry,
        }
    }

    /// Whether both answers are one: seconds pass between the packets of the kernel's.
    fn agrees(&self, other: &Self) -> bool {
        self.verdict == other.verdict && agree(self.entry.as_ref(), other.entry.as_ref())
    }
}

#[test]
fn recorded_answers_are_ours() {
    let mut ours = Ours::new();
    let (mut trace, mut traces, mut packets) = ("", 0, 0);
    let mut wrong = Vec::new();
    for (number, line) in RECORDED.lines().enumerate() {
        if let Some(name) = line.strip_prefix("# ") {
            (trace, traces) = (name, traces + 1);
            continue;
        }
        let (packet, expected) = line.split_once(" # ").expect("a packet has an answer");
        let (from, hex) = packet.split_at(2);
        let from = if from == "> " { From::A } else { From::B };
        packets += 1;
        ours.set_time(Duration::from_millis(packets));
        let answer = ours.ask(from, &bytes(hex));
        let expected = Answer::parse(expected);
        if !answer.agrees(&expected) {
            wrong.push(format!(
                "line {}, {trace}: ours is {answer}, the kernel's {expected}",
                number + 1
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!((traces, packets), (24, 142));
}
