//! `lasthop libvirt-hook`: the `<bandwidth>` of a libvirt domain's interfaces becomes that of their
//! ports, as libvirt ignores it for interfaces of the type `vhostuser`.
//!
//! libvirt runs hooks of its QEMU driver with a domain and an operation as arguments and the
//! domain's XML on standard input (<https://libvirt.org/hooks.html>), and waits for their end: the
//! domain does not start before, and not at all if a hook fails. So whatever happens here is a
//! warning, and the time is limited. A hook must not call libvirt, which waits for it.
//!
//! libvirt runs no hook when an interface is unplugged. So what a domain has set is noted, and
//! taken back when the domain ends, when it is seen without the interface, or when another domain
//! has the port.
//!
//! ```text
//!   domain    XML -> interfaces with a bandwidth, in libvirt's units
//!   patches   interface, port and record -> merge patches for the API, and the new record
//!   records   what domains have set at ports
//! ```

mod domain;
mod patches;
mod records;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use api::v1::PortKind;
use client::{Client, Failure, block_on, units};
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::args::LibvirtHook;
use super::upgrade;
use domain::{Domain, Interface};
use patches::{Call, Plan, Port};
use records::{Records, ValueChanges};

/// Time for an operation of a domain, which waits for it.
const CALL_TIME: Duration = Duration::from_millis(900);
/// Time for all running domains, for which only the start of the service waits.
const RUNNING_TIME: Duration = Duration::from_secs(10);
/// Maximum size of a domain's XML in bytes.
const MAX_XML: u64 = 8 << 20;

/// A task with the bandwidth of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// The ports get it.
    Set(Call),
    /// The ports get back what was there before.
    TakeBack,
}

impl Task {
    /// Returns the task of a hook's operation. Before `started` the domain has no VMM, and a port
    /// that it is going to lose may still be in use.
    fn of(operation: &str) -> Option<Self> {
        match operation {
            "started" => Some(Self::Set(Call::Start)),
            "reconnect" => Some(Self::Set(Call::Again)),
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
        Some(dir) => (Task::Set(Call::Again), running(dir)),
        None => match Task::of(hook.operation()) {
            Some(task) => (task, vec![given(&hook.call)]),
            None => return,
        },
    };
    let count = domains.len();
    let readable = domains
        .into_iter()
        .filter_map(|domain| domain.map_err(|text| warn(&text)).ok());
    let domains: Vec<Domain> = readable
        .inspect(|domain| {
            for bad in &domain.bad {
                warn(&format!("domain {}: {bad}", domain.name));
            }
        })
        .collect();
    let records = Records::read(runtime_dir).unwrap_or_else(|error| {
        warn(&error);
        Records::default()
    });
    let mut interfaces = domains.iter().flat_map(|domain| &domain.interfaces);
    if records.is_empty() && (task == Task::TakeBack || !interfaces.any(Interface::is_limited)) {
        return;
    }
    // Of a domain whose state was not read nothing is known.
    let are_all = hook.running.as_ref().is_some_and(|dir| dir.exists()) && domains.len() == count;
    let done = block_on(runtime_dir, async |client| {
        let ports = Ports::read(client).await?;
        let mut hook = Ongoing {
            client,
            ports,
            records,
        };
        hook.apply(task, &domains, are_all).await;
        Ok(())
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

/// A hook at work.
struct Ongoing<'a> {
    client: &'a Client,
    ports: Ports,
    records: Records,
}

impl Ongoing<'_> {
    /// Does the task for all domains. `are_all`: no others run.
    async fn apply(&mut self, task: Task, domains: &[Domain], are_all: bool) {
        let mut kept = Vec::new();
        if let Task::Set(call) = task {
            for domain in domains {
                for interface in &domain.interfaces {
                    let port = self.port_of(interface);
                    kept.extend(port.as_ref().map(|port| port.name.clone()));
                    if let Err(error) = self.set(domain, interface, port, call).await {
                        let socket = interface.socket.display();
                        warn(&format!("domain {}: {socket}: {error}", domain.name));
                    }
                }
            }
        }
        // Of a domain with an interface that cannot be read, it is not known which it has no more.
        let is_known = |of: &Domain| task == Task::TakeBack || of.bad.is_empty();
        let ended = self.records.ports_of(|id| {
            let domain = domains.iter().find(|domain| domain.id == id);
            domain.map_or(are_all, is_known)
        });
        for port in ended {
            if !kept.contains(&port)
                && let Err(error) = self.take_back(&port).await
            {
                warn(&format!("port {port}: {error}"));
            }
        }
    }

    /// Returns the port of an interface.
    fn port_of(&self, interface: &Interface) -> Option<Port> {
        let runtime_dir = self.client.runtime_dir();
        let port = self.ports.with_socket(&interface.socket, runtime_dir);
        port.cloned()
    }

    /// Gives an interface's bandwidth to its port.
    async fn set(
        &mut self,
        domain: &Domain,
        interface: &Interface,
        port: Option<Port>,
        call: Call,
    ) -> Result<(), String> {
        let port = match port {
            Some(port) => port,
            None if interface.is_limited() => {
                return Err("no port has this socket, its bandwidth is not set".to_owned());
            }
            None => return Ok(()),
        };
        let requested = patches::requested(interface)?;
        let configured = || configured(self.client.runtime_dir(), &port.name);
        let record = self.records.of(&port.name);
        let plan = Plan::new(&port, record, &domain.id, &requested, call, configured);
        self.carry_out(&port, &domain.id, plan).await
    }

    /// Takes back what a domain has set at a port, which may be gone.
    async fn take_back(&mut self, name: &str) -> Result<(), String> {
        let port = self.ports.ports.iter().find(|port| port.name == name);
        match (port.cloned(), self.records.of(name)) {
            (Some(port), Some(record)) => {
                let plan = Plan::end(&port, record);
                self.carry_out(&port, "", plan).await
            }
            _ => self.records.note(name, "", ValueChanges::new()),
        }
    }

    /// Notes what a domain will have set, and sets it: what is in force is never without a record.
    async fn carry_out(&mut self, port: &Port, domain: &str, plan: Plan) -> Result<(), String> {
        let patches = plan.patches(port);
        let mut wrong = Vec::new();
        let is_end = plan.given.is_empty();
        if !is_end {
            wrong.extend(self.records.note(&port.name, domain, plan.given).err());
        }
        // Each on its own: a guarantee that is refused leaves the ceilings in force.
        for patch in patches {
            let path = format!("/v1/ports/{}", port.name);
            let done = self.client.send(Method::PATCH, &path, &patch).await;
            wrong.extend(done.err().map(|failure| failure.to_string()));
        }
        // What could not be taken back is tried again.
        if is_end && wrong.is_empty() {
            wrong.extend(self.records.note(&port.name, "", ValueChanges::new()).err());
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(wrong.join("; ")),
        }
    }
}

/// Returns a port as the configuration file of the running Lasthop has it, as JSON; null for a port
/// that is not in it.
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
                "port {name}: its limits stay as they are, as no configuration was read: {error}"
            ));
            Value::Null
        }
    }
}
