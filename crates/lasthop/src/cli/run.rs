//! Commands to a running Lasthop: sends the request, prints the response.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use api::v1::{
    AccessListSpec, DesiredState, FdbFilter, FdbFlushed, MirrorSpec, MirrorsDocument, PortStats,
    PortStatus, PortsDocument, SegmentStatus, SegmentsDocument, StaticEntry, StatsDocument,
    StatusDocument, WarningsDocument, parse_mac,
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
use super::{ExitStatus, Failure, emit, emit_json, show};

/// Period of `stats --watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a command.
pub(super) async fn run(client: &Client, command: Command) -> ExitStatus {
    match command {
        Command::Status(output) => {
            let response = client.get("/v1/status").await?;
            print::<StatusDocument>(output, &response, show::status)
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
        Command::Capture(args) => super::capture::capture(client, &args).await,
        Command::Fdb(command) => fdb(client, command).await,
        Command::Events(args) => super::events::follow(client, &args).await,
        Command::Export => {
            let state: DesiredState = read(&client.get("/v1/state").await?)?;
            emit(&control::config::export(&state))
        }
        // `super::main` runs these without an API connection.
        Command::Run(_)
        | Command::Top
        | Command::Apply { .. }
        | Command::Reload(_)
        | Command::Upgrade(_)
        | Command::SelfCheck { .. }
        | Command::Completions { .. }
        | Command::Man { .. } => Ok(()),
    }
}

/// Prints a response: the unchanged document, or a table.
pub(super) fn print<T: DeserializeOwned>(
    output: Output,
    response: &Bytes,
    table: impl FnOnce(&T) -> String,
) -> ExitStatus {
    if output.json {
        emit_json(&String::from_utf8_lossy(response))
    } else {
        emit(&table(&read(response)?))
    }
}

/// Parses a response.
pub(super) fn read<T: DeserializeOwned>(response: &Bytes) -> Result<T, Failure> {
    serde_json::from_slice(response)
        .map_err(|error| Failure::Failed(format!("malformed response from the server: {error}")))
}

async fn port(client: &Client, command: Port) -> ExitStatus {
    match command {
        Port::List(output) => {
            let response = client.get("/v1/ports").await?;
            print::<PortsDocument>(output, &response, |document| show::ports(&document.ports))
        }
        Port::Show { name, output } => {
            let response = client.get(&port_path(&name)).await?;
            print::<PortStatus>(output, &response, show::port)
        }
        Port::Add(add) => {
            let response = client.send(Method::POST, "/v1/ports", &add.spec()).await?;
            print::<PortStatus>(add.output, &response, |port| show::change("added", port))?;
            warn_about(client, &add.name).await;
            Ok(())
        }
        Port::Set(set) if set.how.dry_run => super::apply::dry_run(client, &set).await,
        Port::Set(set) => {
            let path = port_path(&set.name);
            let patch = set.changes.patch();
            let response = client.send(Method::PATCH, &path, &patch).await?;
            print::<PortStatus>(set.how.output, &response, |port| {
                show::change("changed", port)
            })?;
            warn_about(client, &set.name).await;
            Ok(())
        }
        Port::Remove { name, output } => {
            client.delete(&port_path(&name)).await?;
            removed(output, "port", &name)
        }
    }
}

/// Prints the warnings about a port that was added or changed. An error here is ignored: the change
/// is done.
async fn warn_about(client: &Client, port: &str) {
    let response = client.get("/v1/warnings").await;
    let document = response.and_then(|response| read::<WarningsDocument>(&response));
    let mut warnings = document.unwrap_or_default().warnings;
    warnings.retain(|warning| warning.ports.iter().any(|name| name == port));
    super::warn(&warnings);
}

async fn segment(client: &Client, command: Segment) -> ExitStatus {
    match command {
        Segment::List(output) => {
            let response = client.get("/v1/segments").await?;
            print::<SegmentsDocument>(output, &response, |all| show::segments(&all.segments))
        }
        Segment::Add(add) => {
            let spec = add.spec();
            let response = client.send(Method::POST, "/v1/segments", &spec).await?;
            print::<SegmentStatus>(add.output, &response, |s| {
                format!("segment {} added\n", s.name)
            })
        }
        Segment::Set(set) => {
            let path = segment_path(&set.name);
            let response = client.send(Method::PATCH, &path, &set.patch()).await?;
            print::<SegmentStatus>(set.output, &response, |s| {
                format!("segment {} changed\n", s.name)
            })
        }
        Segment::Remove { name, output } => {
            client.delete(&segment_path(&name)).await?;
            removed(output, "segment", &name)
        }
    }
}

async fn mirror(client: &Client, command: Mirror) -> ExitStatus {
    match command {
        Mirror::List(output) => {
            let response = client.get("/v1/mirrors").await?;
            print::<MirrorsDocument>(output, &response, |all| show::mirrors(&all.mirrors))
        }
        Mirror::Add(add) => {
            let spec = add.spec();
            let (method, path, done) = if add.replace {
                (Method::PUT, mirror_path(&add.name), "set")
            } else {
                (Method::POST, "/v1/mirrors".to_owned(), "added")
            };
            let response = client.send(method, &path, &spec).await?;
            print::<MirrorSpec>(add.output, &response, |m| {
                format!("mirror {} {done}, copies go to {}\n", m.name, m.to)
            })
        }
        Mirror::Remove { name, output } => {
            client.delete(&mirror_path(&name)).await?;
            removed(output, "mirror", &name)
        }
    }
}

async fn acl(client: &Client, command: Acl) -> ExitStatus {
    match command {
        Acl::List(output) => {
            let response = client.get(&counts_path(None)).await?;
            print(output, &response, show::access_lists)
        }
        Acl::Show { name, output } => {
            let counts = client.get(&counts_path(Some(&name))).await?;
            let list = client.get(&access_list_path(&name)).await?;
            let list: AccessListSpec = read(&list)?;
            print(output, &counts, |counts| show::access_list(&list, counts))
        }
    }
}

/// Reports a removal; with `--json` there is no output, as the API returns no document.
fn removed(output: Output, kind: &str, name: &str) -> ExitStatus {
    if output.json {
        return Ok(());
    }
    emit(&format!("{kind} {name} removed\n"))
}

async fn fdb(client: &Client, command: Fdb) -> ExitStatus {
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
            let response = client.send(Method::PUT, &path, &entry).await?;
            print::<StaticEntry>(output, &response, |entry| {
                format!("static entry {} added at port {}\n", entry.mac, entry.port)
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
            let response = client.delete_for_response(&path).await?;
            print::<FdbFlushed>(output, &response, |done| match done.flushed {
                1 => "1 entry flushed\n".to_owned(),
                some => format!("{some} entries flushed\n"),
            })
        }
    }
}

/// Returns the path of a static entry. The address is checked, as it becomes part of a path.
fn static_path(segment: &str, mac: &str) -> Result<String, Failure> {
    if parse_mac(mac).is_some() {
        return Ok(format!("/v1/fdb/static/{segment}/{mac}"));
    }
    let found = printable(mac);
    let text = format!("mac: expected a MAC address like 52:54:00:00:00:01, found {found:?}");
    Err(Failure::Invalid(text))
}

async fn stats(client: &Client, args: &Stats) -> ExitStatus {
    if args.watch {
        return watch(client, args).await;
    }
    let response = client.get(&stats_path(args)).await?;
    print_stats(args, &response)
}

fn stats_path(args: &Stats) -> String {
    let one = args.name.as_deref().map(port_stats_path);
    one.unwrap_or_else(|| "/v1/stats".to_owned())
}

fn print_stats(args: &Stats, response: &Bytes) -> ExitStatus {
    if args.output.json {
        return print::<StatsDocument>(args.output, response, show::stats);
    }
    emit(&show::stats(&read_stats(args, response)?))
}

/// Parses statistics of all ports, or of one port, which have no totals.
fn read_stats(args: &Stats, response: &Bytes) -> Result<StatsDocument, Failure> {
    match args.name {
        None => read(response),
        Some(_) => Ok(StatsDocument {
            ports: vec![read::<PortStats>(response)?],
            ..StatsDocument::default()
        }),
    }
}

/// Prints rates until interrupted or until the output is closed. On a terminal each table replaces
/// the one before.
async fn watch(client: &Client, args: &Stats) -> ExitStatus {
    let path = stats_path(args);
    if args.output.json {
        loop {
            print_stats(args, &client.get(&path).await?)?;
            tokio::time::sleep(WATCH_INTERVAL).await;
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
        tokio::time::sleep(WATCH_INTERVAL).await;
        let now = read_stats(args, &client.get(&path).await?)?;
        let table = show::rates(&last, &now, at.elapsed());
        emit(&format!("{before}{table}\n"))?;
        (last, at) = (now, Instant::now());
    }
}
