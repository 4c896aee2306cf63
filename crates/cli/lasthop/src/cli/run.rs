//! Commands to a running Lasthop: sends the request, prints the response.

mod qos;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use api::v1::{
    AccessListSpec, DesiredState, FdbFlushResult, MirrorSpec, MirrorsDocument, PipesDocument,
    PortStats, PortStatus, PortsDocument, PrefilterDocument, SegmentStatus, SegmentsDocument,
    StaticEntry, StatsDocument, UserFlowsDocument, UserLeasesDocument, WarningsDocument, parse_mac,
};
use hyper::Method;
use hyper::body::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::args::{
    Acl, Command, Fdb, Mirror, Output, Pipe, Port, Prefilter, Segment, Stats, UserPort,
};
use super::{ExitStatus, Failure, emit, emit_json, show};
use client::units::printable;
use client::{Client, read, with_query};

/// Period of `stats --watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a command.
pub(super) async fn run(client: &Client, command: Command) -> ExitStatus {
    match command {
        Command::Status(output) => get_and_print(client, "/v1/status", output, show::status).await,
        Command::Port(command) => port(client, command).await,
        Command::Segment(command) => segment(client, command).await,
        Command::QosClass(command) => qos::class(client, command).await,
        Command::QosGroup(command) => qos::group(client, command).await,
        Command::Egress(command) => qos::egress(client, command).await,
        Command::Mirror(command) => mirror(client, command).await,
        Command::Pipe(Pipe::List(output)) => {
            let show = |all: &PipesDocument| show::pipes(&all.pipes);
            get_and_print(client, "/v1/pipes", output, show).await
        }
        Command::User(command) => user(client, command).await,
        Command::Prefilter(command) => prefilter(client, command).await,
        Command::Acl(command) => acl(client, command).await,
        Command::Stats(Stats {
            explain: true,
            output,
            ..
        }) => emit(&show::reasons(output)),
        Command::Stats(args) => stats(client, &args).await,
        Command::Trace(args) => super::trace::trace(client, args).await,
        Command::Flows(args) => super::trace::flows(client, args).await,
        Command::Connections(command) => super::connections::run(client, command).await,
        Command::Capture(args) => super::capture::capture(client, &args).await,
        Command::Fdb(command) => fdb(client, command).await,
        Command::Events(args) => super::events::follow(client, &args).await,
        Command::Export => {
            let state: DesiredState = client.read("/v1/state").await?;
            emit(&config::export(&state))
        }
        // `super::main` runs these without an API connection.
        Command::Run(_)
        | Command::Top
        | Command::Netmap(_)
        | Command::Net(_)
        | Command::LibvirtHook(_)
        | Command::Apply { .. }
        | Command::Reload(_)
        | Command::Upgrade(_)
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

/// Returns a patch of an object of this kind.
///
/// # Errors
/// It changes nothing: there was no option.
fn some(kind: &str, patch: Value) -> Result<Value, Failure> {
    if !patch.is_null() {
        return Ok(patch);
    }
    let text = format!("nothing to change: see lasthop {kind} set --help");
    Err(Failure::Invalid(text))
}

/// Gets a document and prints it.
pub(super) async fn get_and_print<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    output: Output,
    table: impl FnOnce(&T) -> String,
) -> ExitStatus {
    print(output, &client.get(path).await?, table)
}

/// Removes a resource. With `--json` there is no output, as the API returns no document.
async fn remove(client: &Client, path: &str, output: Output, kind: &str, name: &str) -> ExitStatus {
    client.delete(path).await?;
    if output.json {
        return Ok(());
    }
    emit(&format!("{kind} {name} removed\n"))
}

/// Returns the path of a port. Names need no escapes: the argument parser accepts no others.
fn port_path(name: &str) -> String {
    format!("/v1/ports/{name}")
}

async fn port(client: &Client, command: Port) -> ExitStatus {
    match command {
        Port::List(output) => {
            let show = |document: &PortsDocument| show::ports(&document.ports);
            get_and_print(client, "/v1/ports", output, show).await
        }
        Port::Show { name, output } => {
            get_and_print(client, &port_path(&name), output, show::port).await
        }
        Port::Add(add) => {
            let response = client.send(Method::POST, "/v1/ports", &add.spec()).await?;
            changed(client, add.output, &response, "added").await
        }
        Port::Set(set) if set.how.dry_run => {
            let patch = some("port", set.patch())?;
            super::apply::dry_run(client, &set, &patch).await
        }
        Port::Set(set) => {
            let path = port_path(&set.name);
            let patch = some("port", set.patch())?;
            let response = client.send(Method::PATCH, &path, &patch).await?;
            changed(client, set.how.output, &response, "changed").await
        }
        Port::Forward(command) => super::forward::run(client, command).await,
        Port::Remove { name, output } => {
            remove(client, &port_path(&name), output, "port", &name).await
        }
    }
}

/// Prints a port that was added or changed, and the warnings about it. An error of the latter is
/// ignored: the change is done.
async fn changed(client: &Client, output: Output, response: &Bytes, done: &str) -> ExitStatus {
    print(output, response, |port| show::change(done, port))?;
    let port: PortStatus = read(response)?;
    let document = client.read::<WarningsDocument>("/v1/warnings").await;
    let mut warnings = document.unwrap_or_default().warnings;
    warnings.retain(|warning| warning.ports.contains(&port.name));
    super::warn(&warnings);
    Ok(())
}

/// Shows a table of a user port.
async fn user(client: &Client, command: UserPort) -> ExitStatus {
    match command {
        UserPort::Flows(args) => {
            let path = format!("{}/user/flows", port_path(&args.name));
            let path = with_query(&path, &args.filter())?;
            let show = |document: &UserFlowsDocument| match args.is_stalled() {
                true => show::user_stalled(&document.flows),
                false => show::user_flows(&document.flows),
            };
            get_and_print(client, &path, args.output, show).await
        }
        UserPort::Leases { name, output } => {
            let path = format!("{}/user/leases", port_path(&name));
            let show = |document: &UserLeasesDocument| show::user_leases(&document.leases);
            get_and_print(client, &path, output, show).await
        }
    }
}

/// Shows the entries of prefilters.
async fn prefilter(client: &Client, command: Prefilter) -> ExitStatus {
    let Prefilter::List { port, output } = command;
    let ports = match port {
        Some(port) => vec![port],
        None => {
            let document: PortsDocument = client.read("/v1/ports").await?;
            let ports = document.ports.into_iter();
            let with = ports.filter(|port| port.prefilter.is_some());
            with.map(|port| port.name).collect()
        }
    };
    let mut all = Vec::new();
    for port in ports {
        let path = format!("{}/prefilter", port_path(&port));
        all.push(client.read::<PrefilterDocument>(&path).await?);
    }
    if output.json {
        let text =
            serde_json::to_string(&all).map_err(|error| Failure::Failed(error.to_string()))?;
        return emit_json(&text);
    }
    emit(&show::prefilters(&all))
}

async fn segment(client: &Client, command: Segment) -> ExitStatus {
    match command {
        Segment::List(output) => {
            let show = |all: &SegmentsDocument| show::segments(&all.segments);
            get_and_print(client, "/v1/segments", output, show).await
        }
        Segment::Add(add) => {
            let spec = add.spec();
            let response = client.send(Method::POST, "/v1/segments", &spec).await?;
            print::<SegmentStatus>(add.output, &response, |s| {
                format!("segment {} added\n", s.name)
            })
        }
        Segment::Set(set) => {
            let path = format!("/v1/segments/{}", set.name);
            let patch = some("segment", set.patch())?;
            let response = client.send(Method::PATCH, &path, &patch).await?;
            print::<SegmentStatus>(set.output, &response, |s| {
                format!("segment {} changed\n", s.name)
            })
        }
        Segment::Remove { name, output } => {
            let path = format!("/v1/segments/{name}");
            remove(client, &path, output, "segment", &name).await
        }
    }
}

async fn mirror(client: &Client, command: Mirror) -> ExitStatus {
    match command {
        Mirror::List(output) => {
            let show = |all: &MirrorsDocument| show::mirrors(&all.mirrors);
            get_and_print(client, "/v1/mirrors", output, show).await
        }
        Mirror::Add(add) => {
            let spec = add.spec();
            let (method, path, done) = if add.replace {
                (Method::PUT, format!("/v1/mirrors/{}", add.name), "set")
            } else {
                (Method::POST, "/v1/mirrors".to_owned(), "added")
            };
            let response = client.send(method, &path, &spec).await?;
            print::<MirrorSpec>(add.output, &response, |m| {
                format!("mirror {} {done}, copies go to {}\n", m.name, m.to)
            })
        }
        Mirror::Remove { name, output } => {
            let path = format!("/v1/mirrors/{name}");
            remove(client, &path, output, "mirror", &name).await
        }
    }
}

async fn acl(client: &Client, command: Acl) -> ExitStatus {
    match command {
        Acl::List(output) => {
            get_and_print(client, "/v1/access/counts", output, show::access_lists).await
        }
        Acl::Show { name, output } => {
            let path = format!("/v1/access/counts?list={name}");
            let counts = client.get(&path).await?;
            let path = format!("/v1/access/lists/{name}");
            let list: AccessListSpec = client.read(&path).await?;
            print(output, &counts, |counts| show::access_list(&list, counts))
        }
    }
}

async fn fdb(client: &Client, command: Fdb) -> ExitStatus {
    match command {
        Fdb::List(of) => {
            let path = with_query("/v1/fdb", &of.filter())?;
            get_and_print(client, &path, of.output, show::fdb).await
        }
        Fdb::Add {
            mac,
            port,
            segment,
            replace,
            output,
        } => {
            let entry = StaticEntry { segment, mac, port };
            add_static(client, &entry, replace, output).await
        }
        Fdb::Remove {
            mac,
            segment,
            output,
        } => {
            let path = static_path(&segment, &mac)?;
            remove(client, &path, output, "static entry", &mac).await
        }
        Fdb::Flush(of) => {
            let path = with_query("/v1/fdb", &of.filter())?;
            let response = client.delete(&path).await?;
            print::<FdbFlushResult>(of.output, &response, |done| match done.flushed {
                1 => "1 entry flushed\n".to_owned(),
                some => format!("{some} entries flushed\n"),
            })
        }
    }
}

/// Adds a static entry. One that is elsewhere stays, unless it may be replaced.
async fn add_static(
    client: &Client,
    entry: &StaticEntry,
    replace: bool,
    output: Output,
) -> ExitStatus {
    let path = static_path(&entry.segment, &entry.mac)?;
    let (all, tag) = client.get_tagged("/v1/fdb/static").await?;
    let all: Vec<StaticEntry> = read(&all)?;
    let is_same =
        |of: &&StaticEntry| of.segment == entry.segment && of.mac.eq_ignore_ascii_case(&entry.mac);
    let before = all.iter().find(is_same);
    let before = before.filter(|before| before.port != entry.port);
    if let Some(before) = before.filter(|_| !replace) {
        let text = format!(
            "nothing was changed: static entry {} is at port {} already; --replace moves it",
            before.mac, before.port
        );
        return Err(Failure::Invalid(text));
    }
    let done = client.send_if(Method::PUT, &path, tag.as_deref(), entry);
    let response = done.await?;
    print::<StaticEntry>(output, &response, |entry| match before {
        Some(before) => format!(
            "static entry {} moved from port {} to port {}\n",
            entry.mac, before.port, entry.port
        ),
        None => format!("static entry {} added at port {}\n", entry.mac, entry.port),
    })
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
    match &args.name {
        Some(port) => format!("{}/stats", port_path(port)),
        None => "/v1/stats".to_owned(),
    }
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

/// Prints rates until interrupted. On a terminal each table replaces the one before.
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
