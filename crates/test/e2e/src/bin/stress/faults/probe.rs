//! Asks Lasthop's API for its status without ever waiting for it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::Deserialize;

const REQUEST: &[u8] = b"GET /v1/status HTTP/1.1\r\nHost: lasthop\r\nConnection: close\r\n\r\n";

/// Process numbers by name, from a status.
pub(crate) type Processes = BTreeMap<String, u32>;

#[derive(Debug, Deserialize)]
struct Status {
    processes: Vec<Process>,
}

#[derive(Debug, Deserialize)]
struct Process {
    name: String,
    pid: Option<u32>,
}

/// One question at a time, and a new one when there was no answer.
#[derive(Debug)]
pub(crate) struct Probe {
    socket: PathBuf,
    asked: Option<UnixStream>,
    answer: Vec<u8>,
}

impl Probe {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            asked: None,
            answer: Vec::new(),
        }
    }

    /// Asks, or looks for the answer.
    pub(crate) fn poll(&mut self) -> Option<Processes> {
        let Some(stream) = &mut self.asked else {
            self.answer.clear();
            self.asked = ask(&self.socket).ok();
            return None;
        };
        let mut part = [0; 16 << 10];
        match stream.read(&mut part) {
            Ok(0) => {
                self.asked = None;
                processes(&self.answer)
            }
            Ok(length) => {
                self.answer.extend_from_slice(&part[..length]);
                None
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // The process has died.
            Err(_) => {
                self.asked = None;
                None
            }
        }
    }
}

fn ask(socket: &PathBuf) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_nonblocking(true)?;
    stream.write_all(REQUEST)?;
    Ok(stream)
}

/// Parses a whole reply; `None` for anything but a status.
fn processes(answer: &[u8]) -> Option<Processes> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    if !head.starts_with("HTTP/1.1 200 ") {
        return None;
    }
    let status: Status = serde_json::from_str(body).ok()?;
    let running = status.processes.into_iter();
    Some(
        running
            .filter_map(|process| Some((process.name, process.pid?)))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_answers_count() {
        let good = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n\
            {\"version\": \"1\", \"processes\": \
            [{\"name\": \"control\", \"pid\": 7, \"restarts\": 0}, {\"name\": \"driver t0\", \
            \"pid\": null}]}";
        let found = processes(good.as_bytes()).expect("a status");
        assert_eq!(found, Processes::from([("control".to_owned(), 7)]));
        for bad in [
            "",
            "HTTP/1.1 200 OK\r\n",
            &good[..good.len() - 1],
            &good.replace("200 OK", "503 Service Unavailable"),
        ] {
            assert_eq!(processes(bad.as_bytes()), None, "{bad}");
        }
    }
}
