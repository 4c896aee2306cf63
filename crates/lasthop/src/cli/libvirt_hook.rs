//! `lasthop libvirt-hook`: the `<bandwidth>` of a libvirt domain's interfaces becomes that of their
//! ports, as libvirt ignores it for interfaces of the type `vhostuser`.
//!
//! libvirt runs hooks of its QEMU driver with a domain and an operation as arguments and the
//! domain's XML on standard input (<https://libvirt.org/hooks.html>), and waits for their end: the
//! domain does not start before, and not at all if a hook fails. So whatever happens here is a
//! warning, and the time is limited. A hook must not call libvirt, which waits for it.
//!
//! ```text
//!   domain    XML -> interfaces with a bandwidth, in libvirt's units
//!   patches   interface and port -> merge patches for the API
//! ```

mod domain;
mod patches;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use api::v1::{PortKind, PortState};
use client::{Client, ExitStatus, Failure, block_on, units};
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::args::LibvirtHook;
use super::upgrade;
use domain::{Domain, Interface};
use patches::Port;

/// Time for an operation of a domain, which waits for it.
const CALL_TIME: Duration = Duration::from_millis(900);
/// Time for all running domains, for which only the start of the service waits.
const RUNNING_TIME: Duration = Duration::from_secs(10);
/// Time in which the switch notices that a VMM has ended.
const DISCONNECT_TIME: Duration = Duration::from_millis(400);
const DISCONNECT_POLL: Duration = Duration::from_millis(20);
/// Maximum size of a domain's XML in bytes.
const MAX_XML: u64 = 8 << 20;

/// A task with the bandwidth of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// The ports get it.
    Set,
    /// The ports get the values of the configuration file again.
    TakeBack,
}

impl Task {
    /// Returns the task of a hook's operation. Before `started` the domain has no VMM, and a port
    /// that it is going to lose may still be in use.
    fn of(operation: &str) -> Option<Self> {
        match operation {
            "started" | "reconnect" => Some(Self::Set),
            "release" => Some(Self::TakeBack),
            _ => None,
        }
    }
}

/// Runs the command: always a success, as a failure would keep libvirt from starting the domain.
pub(super) fn run(runtime_dir: PathBuf, hook: LibvirtHook) -> ExitCode {
    let time = match hook.running {
        Some(_) => RUNNING_TIME,
        None => CALL_TIME,
    };
    let (done, end) = mpsc::channel();
    // A thread, because standard input, files and sockets may all keep it waiting.
    thread::spawn(move || {
        serve(&runtime_dir, &hook);
        // After the time limit there is no receiver.
        let _ = done.send(());
    });
    if end.recv_timeout(time).is_err() {
        let seconds = time.as_secs_f64();
        warn(&format!(
            "not done within {seconds} s, some bandwidth may not be set"
        ));
    }
    ExitCode::SUCCESS
}

/// Writes a warning, which libvirt or systemd may log. Without a standard error it is lost.
fn warn(text: &str) {
    let text = units::printable(text);
    drop(writeln!(io::stderr(), "lasthop: warning: {text}"));
}

fn serve(runtime_dir: &Path, hook: &LibvirtHook) {
    let (task, domains) = match &hook.running {
        Some(dir) => (Task::Set, running(dir)),
        None => match Task::of(hook.operation()) {
            Some(task) => (task, vec![given(&hook.call)]),
            None => return,
        },
    };
    let readable = domains
        .into_iter()
        .filter_map(|domain| domain.map_err(|text| warn(&text)).ok());
    let domains: Vec<Domain> = readable
        .filter(|domain| !domain.interfaces.is_empty())
        .collect();
    if domains.is_empty() {
        return;
    }
    let done = block_on(runtime_dir, async |client| {
        apply(client, task, &domains).await
    });
    if let Err(failure) = done {
        warn(&failure.to_string());
    }
}

/// Reads the domain of a hook from standard input.
fn given(call: &[String]) -> Result<Domain, String> {
    let name = call.first().map_or("", String::as_str);
    parse(io::stdin().lock()).map_err(|error| format!("domain {name}: {error}"))
}

/// Reads the running domains from libvirt's status files; without the directory there is none.
fn running(dir: &Path) -> Vec<Result<Domain, String>> {
    let at = |path: &Path, error: String| format!("{}: {error}", path.display());
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![Err(at(dir, error.to_string()))],
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|name| name == "xml"))
        .collect();
    files.sort();
    let read = |file: &PathBuf| {
        let opened = File::open(file).map_err(|error| error.to_string());
        opened.and_then(parse).map_err(|error| at(file, error))
    };
    files.iter().map(read).collect()
}

fn parse(xml: impl Read) -> Result<Domain, String> {
    let mut text = String::new();
    let read = xml.take(MAX_XML + 1).read_to_string(&mut text);
    read.map_err(|error| format!("cannot read the XML: {error}"))?;
    if text.len() as u64 > MAX_XML {
        return Err(format!("more than {MAX_XML} bytes of XML"));
    }
    domain::read(&text)
}

/// The ports of `GET /v1/ports`.
#[derive(Deserialize)]
struct Ports {
    ports: Vec<Port>,
}

impl Ports {
    async fn read(client: &Client) -> Result<Self, Failure> {
        client.read("/v1/ports").await
    }

    /// Returns the vhost-user port with this socket.
    fn with_socket(&self, socket: &Path, runtime_dir: &Path) -> Option<&Port> {
        let wanted = resolved(socket);
        let mut guests = self
            .ports
            .iter()
            .filter(|port| port.kind == PortKind::VhostUser);
        guests.find(|port| resolved(&runtime_dir.join(&port.socket)) == wanted)
    }
}

/// Returns a path without symbolic links in its directory, so that `/var/run` is `/run`. The socket
/// itself may not exist.
fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// Does the task for all interfaces that have a port here.
async fn apply(client: &Client, task: Task, domains: &[Domain]) -> ExitStatus {
    let ports = Ports::read(client).await?;
    for domain in domains {
        for interface in &domain.interfaces {
            if let Err(error) = serve_interface(client, task, interface, &ports).await {
                let socket = interface.socket.display();
                warn(&format!("domain {}: {socket}: {error}", domain.name));
            }
        }
    }
    Ok(())
}

async fn serve_interface(
    client: &Client,
    task: Task,
    interface: &Interface,
    ports: &Ports,
) -> Result<(), String> {
    let port = ports.with_socket(&interface.socket, client.runtime_dir());
    let port = port.ok_or("no port has this socket, its bandwidth is not set")?;
    let patches = match task {
        Task::Set => patches::set(interface, port)?,
        Task::TakeBack => {
            let port = disconnected(client, &port.name).await?;
            let configured = configured(client.runtime_dir(), &port.name);
            patches::take_back(interface, &port, &configured)
        }
    };
    // Each on its own: a guarantee that is refused leaves the ceilings in force.
    let mut refused = Vec::new();
    for patch in patches {
        let path = format!("/v1/ports/{}", port.name);
        let done = client.send(Method::PATCH, &path, &patch).await;
        refused.extend(done.err().map(|failure| failure.to_string()));
    }
    match refused.is_empty() {
        true => Ok(()),
        false => Err(refused.join("; ")),
    }
}

/// Returns a port once no VMM is connected to it. One may stay: that of the port's owner, if the
/// domain that libvirt releases failed to start because it named the socket of another.
async fn disconnected(client: &Client, name: &str) -> Result<Port, String> {
    let until = Instant::now() + DISCONNECT_TIME;
    let path = format!("/v1/ports/{name}");
    loop {
        let port: Port = client
            .read(&path)
            .await
            .map_err(|failure| failure.to_string())?;
        let connected = [PortState::Connected, PortState::Up, PortState::Faulted];
        if !connected.contains(&port.state) {
            return Ok(port);
        }
        if Instant::now() >= until {
            return Err("a VMM is still connected, its bandwidth stays".to_owned());
        }
        tokio::time::sleep(DISCONNECT_POLL).await;
    }
}

/// Returns a port as the configuration file of the running Lasthop has it, as JSON. A port that is
/// not in it, or in no file that can be read, has no limits of its own.
fn configured(runtime_dir: &Path, name: &str) -> Value {
    let desired = upgrade::configuration(runtime_dir).map_err(|failure| failure.to_string());
    let desired = desired.and_then(|file| {
        let parsed = config::text_of(fs::read(&file), &file)
            .and_then(|text| config::parse(&text, &file, runtime_dir));
        parsed.map_err(|error| error.to_string())
    });
    match desired {
        Ok(desired) => {
            let port = desired.ports.iter().find(|port| port.name == name);
            json!(port)
        }
        Err(error) => {
            warn(&format!(
                "port {name}: without limits now, as no configuration was read: {error}"
            ));
            Value::Null
        }
    }
}
