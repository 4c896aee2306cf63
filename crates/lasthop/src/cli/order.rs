//! One command to a running Lasthop: the request, and its answer printed.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use api::v1::{
    MirrorSpec, MirrorsDocument, PortStatus, PortsDocument, SegmentStatus, SegmentsDocument,
    StatsDocument, StatusDocument,
};
use hyper::Method;
use hyper::body::Bytes;
use serde::de::DeserializeOwned;

use super::args::{Command, Fdb, Mirror, Output, Port, Segment, Stats};
use super::client::{Client, fdb_path, mirror_path, port_path, segment_path};
use super::{Done, Failure, emit, show};

/// Between two looks of `stats --watch`.
const WATCH: Duration = Duration::from_secs(1);

/// Does a command.
pub(super) async fn obey(client: &Client, command: Command) -> Done {
    match command {
        Command::Status { output } => {
            let answer = client.get("/v1/status").await?;
            print::<StatusDocument>(output, &answer, show::status)
        }
        Command::Port(command) => port(client, command).await,
        Command::Segment(command) => segment(client, command).await,
        Command::Mirror(command) => mirror(client, command).await,
        Command::Stats(Stats {
            watch: true,
            output,
        }) => watch(client, output).await,
        Command::Stats(Stats { output, .. }) => {
            let answer = client.get("/v1/stats").await?;
            print::<StatsDocument>(output, &answer, show::stats)
        }
        Command::Trace(args) => super::trace::trace(client, args).await,
        Command::Flows(args) => super::trace::flows(client, args).await,
        Command::Capture(wish) => super::capture::capture(client, &wish).await,
        Command::Fdb(command) => fdb(client, command).await,
        // These are done before anything gets here.
        Command::Run(_)
        | Command::Top
        | Command::Apply { .. }
        | Command::Reload { .. }
        | Command::Upgrade(_)
        | Command::SelfCheck { .. }
        | Command::Completions { .. }
        | Command::Man { .. } => Ok(()),
    }
}

/// Prints an answer: the document as it came, or a table.
pub(super) fn print<T: DeserializeOwned>(
    output: Output,
    answer: &Bytes,
    table: impl FnOnce(&T) -> String,
) -> Done {
    match output.json {
        true => emit(&format!("{}\n", String::from_utf8_lossy(answer).trim_end())),
        false => emit(&table(&read(answer)?)),
    }
}

/// Reads an answer.
pub(super) fn read<T: DeserializeOwned>(answer: &Bytes) -> Result<T, Failure> {
    let unclear =
        |error| Failure::Failed(format!("the server's answer is not understood: {error}"));
    serde_json::from_slice(answer).map_err(unclear)
}

async fn port(client: &Client, command: Port) -> Done {
    match command {
        Port::List { output } => {
            let answer = client.get("/v1/ports").await?;
            print::<PortsDocument>(output, &answer, |document| show::ports(&document.ports))
        }
        Port::Show { name, output } => {
            let answer = client.get(&port_path(&name)).await?;
            print::<PortStatus>(output, &answer, show::port)
        }
        Port::Add(add) => {
            let answer = client.send(Method::POST, "/v1/ports", &add.spec()).await?;
            print::<PortStatus>(add.output, &answer, |port| show::change("added", port))
        }
        Port::Set(set) => {
            let path = port_path(&set.name);
            let patch = set.changes.patch();
            let answer = client.send(Method::PATCH, &path, &patch).await?;
            print::<PortStatus>(set.output, &answer, |port| show::change("changed", port))
        }
        Port::Remove { name, output } => {
            client.delete(&port_path(&name)).await?;
            removed(output, "port", &name)
        }
    }
}

async fn segment(client: &Client, command: Segment) -> Done {
    match command {
        Segment::List { output } => {
            let answer = client.get("/v1/segments").await?;
            print::<SegmentsDocument>(output, &answer, |all| show::segments(&all.segments))
        }
        Segment::Add(add) => {
            let spec = add.spec();
            let answer = client.send(Method::POST, "/v1/segments", &spec).await?;
            print::<SegmentStatus>(add.output, &answer, |s| {
                format!("segment {} added\n", s.name)
            })
        }
        Segment::Set(set) => {
            let path = segment_path(&set.name);
            let answer = client.send(Method::PATCH, &path, &set.patch()).await?;
            print::<SegmentStatus>(set.output, &answer, |s| {
                format!("segment {} changed\n", s.name)
            })
        }
        Segment::Remove { name, output } => {
            client.delete(&segment_path(&name)).await?;
            removed(output, "segment", &name)
        }
    }
}

async fn mirror(client: &Client, command: Mirror) -> Done {
    match command {
        Mirror::List { output } => {
            let answer = client.get("/v1/mirrors").await?;
            print::<MirrorsDocument>(output, &answer, |all| show::mirrors(&all.mirrors))
        }
        Mirror::Add(add) => {
            let spec = add.spec();
            let (method, path, what) = match add.replace {
                false => (Method::POST, "/v1/mirrors".to_owned(), "added"),
                true => (Method::PUT, mirror_path(&add.name), "put in place"),
            };
            let answer = client.send(method, &path, &spec).await?;
            print::<MirrorSpec>(add.output, &answer, |m| {
                format!("mirror {} {what}, copies go to {}\n", m.name, m.to)
            })
        }
        Mirror::Remove { name, output } => {
            client.delete(&mirror_path(&name)).await?;
            removed(output, "mirror", &name)
        }
    }
}

/// Says that something was removed; there is no document for that.
fn removed(output: Output, what: &str, name: &str) -> Done {
    match output.json {
        true => Ok(()),
        false => emit(&format!("{what} {name} removed\n")),
    }
}

async fn fdb(client: &Client, command: Fdb) -> Done {
    let (output, filter) = command.filter();
    let answer = client.get(&fdb_path(&filter)).await?;
    print(output, &answer, show::fdb)
}

/// Shows rates until interrupted, or until nobody reads them. On a terminal, each in the place of the last.
async fn watch(client: &Client, output: Output) -> Done {
    if output.json {
        loop {
            let answer = client.get("/v1/stats").await?;
            print::<StatsDocument>(output, &answer, show::stats)?;
            tokio::time::sleep(WATCH).await;
        }
    }
    let before = if io::stdout().is_terminal() {
        "\x1b[H\x1b[J"
    } else {
        ""
    };
    let mut last: StatsDocument = read(&client.get("/v1/stats").await?)?;
    let mut at = Instant::now();
    loop {
        tokio::time::sleep(WATCH).await;
        let now: StatsDocument = read(&client.get("/v1/stats").await?)?;
        let table = show::rates(&last, &now, at.elapsed());
        emit(&format!("{before}{table}\n"))?;
        (last, at) = (now, Instant::now());
    }
}
