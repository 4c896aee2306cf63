//! The host's end of the agent in `scripts/guest-init`: commands go in, output and exit status come
//! out.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use testkit::wait::within;

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The exit status.
    pub status: i32,
    /// Both output streams.
    pub output: String,
}

#[derive(Default)]
struct State {
    /// How often the guest has come up.
    boots: u32,
    last_id: u64,
    waiting: HashMap<u64, Sender<Answer>>,
}

/// A connection to a guest's agent. It survives a reset of the guest; commands that ran then are
/// lost.
pub struct Agent {
    writer: UnixStream,
    state: Arc<Mutex<State>>,
}

/// A command that runs in the guest.
pub struct Job {
    command: String,
    answer: Receiver<Answer>,
}

impl Agent {
    /// Takes over the connection that QEMU has made for the guest's second serial port.
    pub fn new(stream: UnixStream) -> Agent {
        let state = Arc::new(Mutex::new(State::default()));
        let reader = stream.try_clone().expect("one more descriptor");
        let shared = Arc::clone(&state);
        std::thread::spawn(move || listen(reader, &shared));
        Agent {
            writer: stream,
            state,
        }
    }

    /// Waits until the guest has come up for the `boot`-th time. False after `limit`.
    pub fn ready(&self, boot: u32, limit: Duration) -> bool {
        within(limit, || (self.boots() >= boot).then_some(())).is_some()
    }

    /// How often the guest has come up.
    pub fn boots(&self) -> u32 {
        lock(&self.state).boots
    }

    /// Starts a shell command in the guest.
    pub fn start(&mut self, command: &str) -> Job {
        let (sender, answer) = channel();
        let id = {
            let mut state = lock(&self.state);
            state.last_id += 1;
            let id = state.last_id;
            state.waiting.insert(id, sender);
            id
        };
        // A dead QEMU takes no commands; the job then reports that it was lost.
        if writeln!(self.writer, "{id} {}", to_hex(command.as_bytes())).is_err() {
            lock(&self.state).waiting.remove(&id);
        }
        Job {
            command: command.to_owned(),
            answer,
        }
    }
}

impl Job {
    /// Waits for the command's end. None when the guest was reset or killed meanwhile. Panics after
    /// `limit`.
    pub fn outcome(self, limit: Duration) -> Option<Answer> {
        match self.answer.recv_timeout(limit) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!(
                "in the guest, after {limit:?} still running: {}",
                self.command
            ),
        }
    }

    /// Waits for the command's end, which must be a good one, and gives its output.
    pub fn wait(self, limit: Duration) -> String {
        let command = self.command.clone();
        let answer = self
            .outcome(limit)
            .unwrap_or_else(|| panic!("the guest went away while it ran: {command}"));
        assert_eq!(
            answer.status, 0,
            "in the guest: {command}\n{}",
            answer.output
        );
        answer.output
    }
}

fn listen(stream: UnixStream, state: &Mutex<State>) {
    for line in BufReader::new(stream).split(b'\n') {
        let Ok(line) = line else { break };
        understand(&String::from_utf8_lossy(&line), state);
    }
    lock(state).waiting.clear();
}

fn understand(line: &str, state: &Mutex<State>) {
    let mut state = lock(state);
    // After a reset the first line may carry the tail of an answer that was cut off.
    if line.trim_end().ends_with("ready") {
        state.boots += 1;
        state.waiting.clear();
    } else if let Some((id, answer)) = parse(line)
        && let Some(sender) = state.waiting.remove(&id)
    {
        // The one who asked may have stopped waiting.
        let _ = sender.send(answer);
    }
}

fn parse(line: &str) -> Option<(u64, Answer)> {
    let mut words = line.split_whitespace();
    let id = words.next()?.parse().ok()?;
    let status = words.next()?.parse().ok()?;
    let output = from_hex(words.next().unwrap_or_default())?;
    Some((
        id,
        Answer {
            status,
            output: String::from_utf8_lossy(&output).into_owned(),
        },
    ))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let (pairs, []) = digits.as_ref()?.as_chunks::<2>() else {
        return None;
    };
    pairs
        .iter()
        .map(|[high, low]| u8::try_from(high * 16 + low).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_back() {
        let line = format!("7 3 {}", to_hex("no such host\n".as_bytes()));
        assert_eq!(
            parse(&line),
            Some((
                7,
                Answer {
                    status: 3,
                    output: "no such host\n".into()
                }
            ))
        );
        assert_eq!(
            parse("8 0 "),
            Some((
                8,
                Answer {
                    status: 0,
                    output: String::new()
                }
            ))
        );
        assert_eq!(parse("8 0 6"), None);
        assert_eq!(parse("noise"), None);
    }
}
