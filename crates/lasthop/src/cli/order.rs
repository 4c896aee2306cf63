//! One command to a running Lasthop: the request, and its answer printed.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use api::v1::{
    AccessListSpec, FdbFilter, FdbFlushed, MirrorSpec, MirrorsDocument, PortStats, PortStatus,
    PortsDocument, SegmentStatus, SegmentsDocument, StaticEntry, StatsDocument, StatusDocument,
    WantedState, WarningsDocument, parse_mac,
};
use hyper::Method;
use hyper::body::Bytes;
use serde::de::DeserializeOwned;

use super::args::{Acl, Command, Fdb, Mirror, Output, Port, Segment, Stats};
use super::client::{
    Client, access_list_path, counts_path, fdb_path, mirror_path, port_path, port_stats_path,
    segment_path,
};
use super::units::printable;
use super::{Done, Failure, emit, emit_json, show};

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
        Command::Acl(command) => acl(client, command).await,
        Command::Stats(Stats {
            explain: true,
            output,
            ..
        }) => emit(&show::reasons(output)),
        Command::Stats(args) => stats(client, &args).await,
        Command::Trace(args) => super::trace::trace(client, args).await,
        Command::Flows(args) => super::trace::flows(client, args).await,
        Command::Capture(wish) => super::capture::capture(client, &wish).await,
        Command::Fdb(command) => fdb(client, command).await,
        Command::Events(wish) => super::events::follow(client, &wish).await,
        Command::Export => {
            let state: WantedState = read(&client.get("/v1/state").await?)?;
            emit(&control::config::export(&state))
        }
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
        true => emit_json(&String::from_utf8_lossy(answer)),
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
            print::<PortStatus>(add.output, &answer, |port| show::change("added", port))?;
            warn_of(client, &add.name).await;
            Ok(())
        }
        Port::Set(set) if set.how.dry_run => super::apply::look_at(client, &set).await,
        Port::Set(set) => {
            let path = port_path(&set.name);
            let patch = set.changes.patch();
            let answer = client.send(Method::PATCH, &path, &patch).await?;
            print::<PortStatus>(set.how.output, &answer, |port| {
                show::change("changed", port)
            })?;
            warn_of(client, &set.name).await;
            Ok(())
        }
        Port::Remove { name, output } => {
            client.delete(&port_path(&name)).await?;
            removed(output, "port", &name)
        }
    }
}

/// Tells what may not be meant of a port that was added or changed. That is done, whatever comes of this.
async fn warn_of(client: &Client, port: &str) {
    let answer = client.get("/v1/warnings").await;
    let document = answer.and_then(|answer| read::<WarningsDocument>(&answer));
    let mut warnings = document.unwrap_or_default().warnings;
    warnings.retain(|warning| warning.ports.iter().any(|name| name == port));
    super::warn(&warnings);
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

async fn acl(client: &Client, command: Acl) -> Done {
    match command {
        Acl::List { output } => {
            let answer = client.get(&counts_path(None)).await?;
            print(output, &answer, show::access_lists)
        }
        Acl::Show { name, output } => {
            let counts = client.get(&counts_path(Some(&name))).await?;
            let list = client.get(&access_list_path(&name)).await?;
            let list: AccessListSpec = read(&list)?;
            print(output, &counts, |counts| show::access_list(&list, counts))
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
    match command {
        Fdb::List {
            segment,
            port,
            output,
        } => {
            let path = fdb_path(&FdbFilter { segment, port });
            print(output, &client.get(&path).await?, show::fdb)
        }
        Fdb::Add {
            mac,
            port,
            segment,
            output,
        } => {
            let path = static_path(&segment, &mac)?;
            let entry = StaticEntry { segment, mac, port };
            let answer = client.send(Method::PUT, &path, &entry).await?;
            print::<StaticEntry>(output, &answer, |entry| {
                format!("{} is behind port {}\n", entry.mac, entry.port)
            })
        }
        Fdb::Remove {
            mac,
            segment,
            output,
        } => {
            client.delete(&static_path(&segment, &mac)?).await?;
            removed(output, "static entry", &mac)
        }
        Fdb::Flush {
            segment,
            port,
            output,
        } => {
            let path = fdb_path(&FdbFilter { segment, port });
            let answer = client.delete_telling(&path).await?;
            print::<FdbFlushed>(output, &answer, |done| match done.flushed {
                1 => "1 entry flushed\n".to_owned(),
                some => format!("{some} entries flushed\n"),
            })
        }
    }
}

/// Path of a static entry. What is no address could be any path.
fn static_path(segment: &str, mac: &str) -> Result<String, Failure> {
    match parse_mac(mac) {
        Some(_) => Ok(format!("/v1/fdb/static/{segment}/{mac}")),
        None => {
            let found = printable(mac);
            let wrong =
                format!("mac: expected a MAC address like 52:54:00:00:00:01, found {found:?}");
            Err(Failure::Wrong(wrong))
        }
    }
}

async fn stats(client: &Client, args: &Stats) -> Done {
    if args.watch {
        return watch(client, args).await;
    }
    let answer = client.get(&stats_path(args)).await?;
    print_stats(args, &answer)
}

fn stats_path(args: &Stats) -> String {
    let one = args.name.as_deref().map(port_stats_path);
    one.unwrap_or_else(|| "/v1/stats".to_owned())
}

fn print_stats(args: &Stats, answer: &Bytes) -> Done {
    match args.output.json {
        true => print::<StatsDocument>(args.output, answer, show::stats),
        false => emit(&show::stats(&read_stats(args, answer)?)),
    }
}

/// What was counted. Of one port, there is nothing about all of them.
fn read_stats(args: &Stats, answer: &Bytes) -> Result<StatsDocument, Failure> {
    match args.name {
        None => read(answer),
        Some(_) => Ok(StatsDocument {
            ports: vec![read::<PortStats>(answer)?],
            ..StatsDocument::default()
        }),
    }
}

/// Shows rates until interrupted, or until nobody reads them. On a terminal, each in the place of the last.
async fn watch(client: &Client, args: &Stats) -> Done {
    let path = stats_path(args);
    if args.output.json {
        loop {
            print_stats(args, &client.get(&path).await?)?;
            tokio::time::sleep(WATCH).await;
        }
    }
    let before = if io::stdout().is_terminal() {
        "\x1b[H\x1b[J"
    } else {
        ""
    };
    let mut last = read_stats(args, &client.get(&path).await?)?;
    let mut at = Instant::now();
    loop {
        tokio::time::sleep(WATCH).await;
        let now = read_stats(args, &client.get(&path).await?)?;
        let table = show::rates(&last, &now, at.elapsed());
        emit(&format!("{before}{table}\n"))?;
        (last, at) = (now, Instant::now());
    }
}
