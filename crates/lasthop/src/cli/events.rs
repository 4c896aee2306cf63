//! `lasthop events`: what happens, a line for each. It goes on where it was when control is started again, or replaced.

use std::io;
use std::time::Duration;

use api::v1::Event;
use control::events::{asked_by, words};
use http_body_util::BodyExt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::{Instant, sleep};

use super::args::Events;
use super::client::{Client, Download, events_path};
use super::stop::Stop;
use super::units::{printable, printable_json};
use super::{Done, Failure, emit};

/// How long nobody may answer after a stream has ended: longer than an upgrade takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts to go on, and two looks whether anybody reads.
const PAUSE: Duration = Duration::from_millis(250);
/// No line of ours is longer.
const LINE_MAX: usize = 1 << 20;

/// Prints events until it is interrupted, or until nobody reads them.
pub(super) async fn follow(client: &Client, wish: &Events) -> Done {
    let mut stop = Stop::new()?;
    tokio::select! {
        done = print(client, wish) => done,
        () = stop.wanted() => Ok(()),
        () = nobody_reads() => Err(Failure::Unread),
    }
}

async fn print(client: &Client, wish: &Events) -> Done {
    let filter = wish.filter();
    let path = events_path(&filter);
    let mut stream = Stream::default();
    let mut download = client.open(&path).await?;
    loop {
        while let Some(Ok(frame)) = download.body.frame().await {
            let bytes = frame.into_data().unwrap_or_default();
            stream.add(&bytes, |data| emit(&line(data, wish.json)))?;
        }
        if !filter.follows() {
            return Ok(());
        }
        download = go_on(client, &path, &mut stream).await?;
    }
}

/// Connects again, behind what has come.
async fn go_on(client: &Client, path: &str, stream: &mut Stream) -> Result<Download, Failure> {
    stream.break_off();
    let deadline = Instant::now() + PATIENCE;
    loop {
        sleep(PAUSE).await;
        match client.open_behind(path, stream.id.as_deref()).await {
            Ok(download) => return Ok(download),
            Err(Failure::Refused(problem, _)) if problem.status < 500 => {
                return Err((*problem).into());
            }
            Err(failure) if Instant::now() >= deadline => return Err(failure),
            Err(_) => {}
        }
    }
}

/// Waits until whoever reads our output has gone.
async fn nobody_reads() {
    let gone = || {
        let out = io::stdout();
        let mut fds = [PollFd::new(&out, PollFlags::empty())];
        let looked = poll(&mut fds, Some(&Timespec::default()));
        looked.is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    };
    while !gone() {
        sleep(PAUSE).await;
    }
}

/// An event as it is printed.
fn line(data: &str, json: bool) -> String {
    if json {
        return format!("{}\n", printable_json(data));
    }
    let Ok(event) = serde_json::from_str::<Event>(data) else {
        return format!("{}\n", printable(data));
    };
    let by = event.what.by().map(asked_by).unwrap_or_default();
    let left_out = match event.left_out {
        0 => String::new(),
        count => format!(", and {count} before it that were left out"),
    };
    let text = format!("{}{by}{left_out}", words(&event.what));
    let time = printable(&event.time);
    format!("{time} {:<5} {}\n", event.level.as_str(), printable(&text))
}

/// Server-sent events as they come (WHATWG HTML, 9.2.6), as far as Lasthop uses that format.
#[derive(Debug, Default)]
struct Stream {
    /// The begin of a line whose end has not come.
    partial: Vec<u8>,
    /// Of the event whose end has not come.
    next_id: Option<String>,
    data: String,
    /// Of the last event.
    id: Option<String>,
}

impl Stream {
    /// Takes what has come, and has the data of whole events printed.
    fn add(&mut self, bytes: &[u8], mut each: impl FnMut(&str) -> Done) -> Done {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if self.partial.len() > LINE_MAX {
                let text = "what Lasthop sends makes no sense as events";
                return Err(Failure::Failed(text.to_owned()));
            }
            if self.partial.ends_with(b"\n") {
                let line = std::mem::take(&mut self.partial);
                let line = String::from_utf8_lossy(&line);
                self.add_line(line.trim_end(), &mut each)?;
            }
        }
        Ok(())
    }

    fn add_line(&mut self, line: &str, each: &mut impl FnMut(&str) -> Done) -> Done {
        if let Some(id) = line.strip_prefix("id: ") {
            self.next_id = Some(id.to_owned());
        } else if let Some(data) = line.strip_prefix("data: ") {
            data.clone_into(&mut self.data);
        } else if line.is_empty() {
            self.id = self.next_id.take().or(self.id.take());
            let data = std::mem::take(&mut self.data);
            if !data.is_empty() {
                each(&data)?;
            }
        }
        Ok(())
    }

    /// What has not come whole does not count.
    fn break_off(&mut self) {
        *self = Self {
            id: self.id.take(),
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "retry: 1000\nid: a-0\n\nid: a-1\nevent: port\ndata: {\"x\":1}\n\n: nothing new\nid: a-9\n\n\
                        id: a-10\nevent: port\ndata: {\"x\":2}\n";

    #[test]
    fn events_come_whole_whatever_the_pieces() {
        for piece in 1..TEXT.len() {
            let (mut stream, mut all) = (Stream::default(), Vec::new());
            for bytes in TEXT.as_bytes().chunks(piece) {
                let keep = |data: &str| {
                    all.push(data.to_owned());
                    Ok(())
                };
                stream.add(bytes, keep).unwrap();
            }
            assert_eq!(all, [r#"{"x":1}"#]);
            assert_eq!(stream.id.as_deref(), Some("a-9"));
            stream.break_off();
            assert_eq!((stream.next_id, stream.data.as_str()), (None, ""));
            assert_eq!(stream.id.as_deref(), Some("a-9"), "it goes on there");
        }
    }

    #[test]
    fn nonsense_ends_it() {
        let mut stream = Stream::default();
        let piece = vec![b'x'; LINE_MAX / 2];
        let mut add = || stream.add(&piece, |_| Ok(()));
        assert!(add().is_ok() && add().is_ok());
        assert!(add().is_err());
    }

    #[test]
    fn a_line_for_people() {
        let data = r#"{"id":"a-1","time":"2026-01-02T03:04:05.006Z","level":"warn","left_out":3,"kind":"port","port":"vm1",
            "state":"faulted","reason":"a \u001b[31m chain"}"#;
        let expected = "2026-01-02T03:04:05.006Z warn  port vm1 is faulted: a \u{fffd}[31m chain, and 3 before it that were left out\n";
        assert_eq!(line(data, false), expected);
        let data = r#"{"id":"a-2","time":"t","kind":"flushed","by":{"uid":7,"pid":8},"segment":"blue","count":2}"#;
        assert_eq!(
            line(data, false),
            "t info  2 learned addresses of segment blue flushed (uid 7, pid 8)\n"
        );
        assert_eq!(line("{}", false), "{}\n");
        assert_eq!(line(data, true), format!("{data}\n"));
    }
}
