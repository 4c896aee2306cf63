//! `lasthop events`: one line for each event. The stream continues after a restart of control and
//! after an upgrade.

use std::time::Duration;

use api::v1::Event;
use api::v1::event_text::{message, requester_text};
use http_body_util::BodyExt;
use ipc::timeouts::EVENTS_RECONNECT;
use tokio::time::{Instant, sleep};

use super::args::Events;
use super::stop::Stop;
use super::{ExitStatus, Failure, emit};
use client::units::{printable, printable_json};
use client::{Client, Download, with_query};

/// Time between two attempts to reconnect.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Upper bound of a line from Lasthop, in bytes.
const LINE_MAX: usize = 1 << 20;

/// Prints events until interrupted.
pub(super) async fn follow(client: &Client, args: &Events) -> ExitStatus {
    let mut stop = Stop::new()?;
    tokio::select! {
        done = print(client, args) => done,
        () = stop.requested() => Ok(()),
    }
}

async fn print(client: &Client, args: &Events) -> ExitStatus {
    let filter = args.filter();
    let path = with_query("/v1/events", &filter)?;
    let mut stream = Stream::default();
    let mut download = client.open(&path, None).await?;
    loop {
        while let Some(Ok(frame)) = download.body.frame().await {
            let bytes = frame.into_data().unwrap_or_default();
            stream.add(&bytes, |data| emit(&line(data, args.json)))?;
        }
        if !filter.follows() {
            return Ok(());
        }
        download = reconnect(client, &path, &mut stream).await?;
    }
}

/// Connects again, after the last event received.
async fn reconnect(client: &Client, path: &str, stream: &mut Stream) -> Result<Download, Failure> {
    stream.discard_partial();
    let deadline = Instant::now() + EVENTS_RECONNECT;
    loop {
        sleep(RETRY_INTERVAL).await;
        match client.open(path, stream.id.as_deref()).await {
            Ok(download) => return Ok(download),
            Err(Failure::Refused(problem, _)) if problem.status < 500 => {
                return Err((*problem).into());
            }
            Err(failure) if Instant::now() >= deadline => return Err(failure),
            Err(_) => {}
        }
    }
}

/// Formats an event.
fn line(data: &str, json: bool) -> String {
    if json {
        return format!("{}\n", printable_json(data));
    }
    let Ok(event) = serde_json::from_str::<Event>(data) else {
        return format!("{}\n", printable(data));
    };
    let by = event.what.by().map(requester_text).unwrap_or_default();
    let suppressed = match event.suppressed {
        0 => String::new(),
        count => format!(" ({count} similar events suppressed)"),
    };
    let text = format!("{}{by}{suppressed}", message(&event.what));
    let time = printable(&event.time);
    format!("{time} {:<5} {}\n", event.level.as_str(), printable(&text))
}

/// A parser of server-sent events (WHATWG HTML, 9.2.6), for the part of the format in use here.
#[derive(Debug, Default)]
struct Stream {
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
    /// The id of the incomplete event.
    next_id: Option<String>,
    data: String,
    /// The id of the last complete event.
    id: Option<String>,
}

impl Stream {
    /// Parses the next bytes and calls `each` with the data of every complete event.
    fn add(&mut self, bytes: &[u8], mut each: impl FnMut(&str) -> ExitStatus) -> ExitStatus {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if self.partial.len() > LINE_MAX {
                let text = "malformed events from Lasthop";
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

    fn add_line(&mut self, line: &str, each: &mut impl FnMut(&str) -> ExitStatus) -> ExitStatus {
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

    /// Discards an incomplete event.
    fn discard_partial(&mut self) {
        *self = Self {
            id: self.id.take(),
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "retry: 1000\nid: a-0\n\n\
                        id: a-1\nevent: port\ndata: {\"x\":1}\n\n\
                        : nothing new\nid: a-9\n\n\
                        id: a-10\nevent: port\ndata: {\"x\":2}\n";

    #[test]
    fn events_are_complete_however_the_stream_is_split() {
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
            stream.discard_partial();
            assert_eq!((stream.next_id, stream.data.as_str()), (None, ""));
            assert_eq!(stream.id.as_deref(), Some("a-9"), "the position is kept");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut stream = Stream::default();
        let piece = vec![b'x'; LINE_MAX / 2];
        let mut add = || stream.add(&piece, |_| Ok(()));
        assert!(add().is_ok() && add().is_ok());
        assert!(add().is_err());
    }

    #[test]
    fn an_event_is_one_line() {
        let data = r#"{"id":"a-1","time":"2026-01-02T03:04:05.006Z","level":"warn",
            "suppressed":3,"kind":"port","port":"vm1","state":"faulted",
            "reason":"a \u001b[31m chain"}"#;
        let text = |data: &str| message(&serde_json::from_str::<Event>(data).unwrap().what);
        let expected = format!(
            "2026-01-02T03:04:05.006Z warn  {} (3 similar events suppressed)\n",
            text(data).replace('\u{1b}', "\u{fffd}")
        );
        assert_eq!(line(data, false), expected);
        let data = r#"{"id":"a-2","time":"t","kind":"fdb_flushed","by":{"uid":7,"pid":8},
            "segment":"blue","count":2}"#;
        let expected = format!("t info  {} (uid 7, pid 8)\n", text(data));
        assert_eq!(line(data, false), expected);
        assert_eq!(line("{}", false), "{}\n");
        assert_eq!(line(data, true), format!("{data}\n"));
    }
}
