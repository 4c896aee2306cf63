//! `lasthop port forward`: forwards of a user port, one at a time. Adding and removing replace the
//! list of the port, if the desired state is still the one that was read.

use api::v1::{DesiredState, ForwardSpec, PortKind, PortPatch, PortStatus, Problem, ProblemKind};
use client::{Client, Failure, read};
use hyper::Method;
use hyper::body::Bytes;

use super::args::{Forward, Output};
use super::{ExitStatus, emit, emit_json, show};

/// How often a change is tried anew that met another.
const TRIES: u32 = 5;
/// Status of a request that met another change (RFC 9110, 15.5.13).
const OUTDATED: u16 = 412;

/// Runs a command.
pub(super) async fn run(client: &Client, command: Forward) -> ExitStatus {
    match command {
        Forward::List { name, output } => list(client, &name, output).await,
        Forward::Add {
            name,
            listen,
            to,
            output,
        } => {
            let new = ForwardSpec {
                listen: words(&listen),
                to,
            };
            let response = change(client, &name, |all| add(all, new.clone())).await?;
            if output.json {
                emit_json(&String::from_utf8_lossy(&response))?;
            }
            match refusals(&read(&response)?, &new) {
                Some(refusals) => Err(Failure::Failed(format!(
                    "the forward was added, but the system refuses it, and is asked again every \
                     5 seconds: {refusals}"
                ))),
                None if output.json => Ok(()),
                None => emit(&format!("{} leads to {}\n", new.listen, new.to)),
            }
        }
        Forward::Remove {
            name,
            listen,
            output,
        } => {
            let listen = words(&listen);
            let response = change(client, &name, |all| remove(all, &listen)).await?;
            if output.json {
                return emit_json(&String::from_utf8_lossy(&response));
            }
            emit(&format!("{listen} leads nowhere any more\n"))
        }
    }
}

async fn list(client: &Client, name: &str, output: Output) -> ExitStatus {
    let port: PortStatus = client.read(&format!("/v1/ports/{name}")).await?;
    check_kind(name, port.kind)?;
    let network = port.user_network.clone().unwrap_or_default();
    if output.json {
        let document = serde_json::to_string(&network.forward);
        return emit_json(&document.map_err(|error| Failure::Failed(error.to_string()))?);
    }
    let rows = network.forward.into_iter().map(|forward| {
        let refusals = refusals(&port, &forward).unwrap_or_default();
        (forward, refusals)
    });
    emit(&show::forwards(&rows.collect::<Vec<_>>()))
}

/// Changes the forwards of a port; returns the port.
async fn change(
    client: &Client,
    name: &str,
    edit: impl Fn(Vec<ForwardSpec>) -> Result<Vec<ForwardSpec>, Failure>,
) -> Result<Bytes, Failure> {
    let mut tries = 1;
    loop {
        let (state, tag) = client.get_tagged("/v1/state").await?;
        let state: DesiredState = read(&state)?;
        let port = state.port(name);
        let port = port.ok_or_else(|| Problem::no_such("port", name))?;
        check_kind(name, port.kind)?;
        let patch = PortPatch {
            forward: Some(edit(port.forward.clone())?),
            ..PortPatch::default()
        };
        let path = format!("/v1/ports/{name}");
        let done = client.send_if(Method::PATCH, &path, tag.as_deref(), &patch);
        match done.await {
            Err(Failure::Refused(problem, _)) if problem.status == OUTDATED && tries < TRIES => {
                tries += 1;
            }
            done => return done.map_err(Failure::unchanged),
        }
    }
}

fn check_kind(name: &str, kind: PortKind) -> Result<(), Failure> {
    if kind == PortKind::User {
        return Ok(());
    }
    let detail = format!("port `{name}` is not of kind `user`: it has no forwards");
    Err(Problem::new(ProblemKind::Invalid, detail).into())
}

fn add(mut all: Vec<ForwardSpec>, new: ForwardSpec) -> Result<Vec<ForwardSpec>, Failure> {
    if let Some(before) = all.iter().find(|of| words(&of.listen) == new.listen) {
        let (listen, to) = (&new.listen, &before.to);
        let text = format!("nothing was changed: {listen:?} leads to {to} already");
        return Err(Failure::Invalid(text));
    }
    all.push(new);
    Ok(all)
}

fn remove(mut all: Vec<ForwardSpec>, listen: &str) -> Result<Vec<ForwardSpec>, Failure> {
    let before = all.len();
    all.retain(|of| words(&of.listen) != listen);
    if all.len() == before {
        let text = format!("nothing was changed: there is no forward of {listen:?}");
        return Err(Failure::Invalid(text));
    }
    Ok(all)
}

/// Returns a text with single blanks between its words.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the refusals of the system among the reasons of a port that are about a forward.
fn refusals(port: &PortStatus, forward: &ForwardSpec) -> Option<String> {
    let reason = port.driver_process.as_ref()?.reason.as_ref()?;
    let listen = words(&forward.listen);
    let (address, ports) = listen.rsplit_once(':')?;
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let ports = first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?;
    let is_about = |text: &&str| {
        let rest = text.strip_prefix(address);
        let port = rest.and_then(|rest| rest.strip_prefix(':')?.split_once(": "));
        port.is_some_and(|(port, _)| port.parse().is_ok_and(|port: u16| ports.contains(&port)))
    };
    let found: Vec<&str> = reason.split("; ").filter(is_about).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

#[cfg(test)]
mod tests {
    use api::v1::{DriverStatus, PortSpec, PortState};

    use super::*;

    fn forward(listen: &str) -> ForwardSpec {
        ForwardSpec {
            listen: listen.to_owned(),
            to: "vm1:22".to_owned(),
        }
    }

    #[test]
    fn each_forward_has_its_own_refusals() {
        let mut port = PortStatus::new(&PortSpec::new("out", PortKind::User), PortState::Up);
        let ssh = "tcp 127.0.0.1:22: Permission denied (os error 13)";
        let web = "tcp 127.0.0.1:2222: Address already in use (os error 98)";
        port.driver_process = Some(DriverStatus {
            reason: Some(format!("{ssh}; {web}")),
            ..DriverStatus::default()
        });
        for (listen, found) in [
            ("tcp 127.0.0.1:22", Some(ssh.to_owned())),
            ("tcp  127.0.0.1:2222", Some(web.to_owned())),
            ("tcp 127.0.0.1:20-3000", Some(format!("{ssh}; {web}"))),
            ("tcp 127.0.0.1:23-99", None),
            ("udp 127.0.0.1:22", None),
            ("tcp 127.0.0.11:22", None),
            ("nonsense", None),
        ] {
            assert_eq!(refusals(&port, &forward(listen)), found, "{listen}");
        }
        port.driver_process = None;
        assert_eq!(refusals(&port, &forward("tcp 127.0.0.1:22")), None);
    }

    #[test]
    fn a_forward_is_added_and_removed_once() {
        let one = add(Vec::new(), forward("tcp 127.0.0.1:22")).unwrap();
        let error = add(one.clone(), forward("tcp 127.0.0.1:22")).unwrap_err();
        let text = "nothing was changed: \"tcp 127.0.0.1:22\" leads to vm1:22 already";
        assert_eq!(error.to_string(), text);
        assert_eq!(remove(one.clone(), "tcp 127.0.0.1:22").unwrap(), []);
        let error = remove(one, "tcp 127.0.0.1:23").unwrap_err();
        let text = "nothing was changed: there is no forward of \"tcp 127.0.0.1:23\"";
        assert_eq!(error.to_string(), text);
    }
}
