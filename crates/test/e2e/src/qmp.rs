//! QEMU's machine protocol, as much of it as tests need.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use testkit::wait::LIMIT;

/// A control connection to one QEMU.
pub struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Takes over a connection that QEMU has just made.
    pub fn new(stream: UnixStream) -> Qmp {
        stream
            .set_read_timeout(Some(LIMIT))
            .expect("a non-zero time-out");
        let mut qmp = Qmp {
            reader: BufReader::new(stream),
        };
        let greeting = qmp.read();
        assert!(
            greeting.get("QMP").is_some(),
            "not a QMP greeting: {greeting}"
        );
        qmp.execute("qmp_capabilities", json!({}));
        qmp
    }

    /// Runs a command and gives its return value. Panics when QEMU refuses it.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.reader.get_mut(), "{request}").expect("QEMU reads");
        loop {
            let mut answer = self.read();
            assert!(answer.get("error").is_none(), "QMP {command}: {answer}");
            if let Some(value) = answer.get_mut("return") {
                return value.take();
            }
        }
    }

    /// The next message; events come between answers.
    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("QEMU answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("QMP line {line:?}: {error}"))
    }
}
