//! `lasthop port forward`: forwards of a user port, one at a time. Adding and removing replace the
//! list of the port, if the desired state is still the one that was read.

use std::time::Duration;

use api::v1::{
    DesiredState, ForwardSpec, ForwardState, PortKind, Problem, ProblemKind, UserForwardEntry,
    UserForwardsDocument,
};
use client::{Client, Failure, read};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use super::args::{Forward, Output};
use super::{ExitStatus, emit, emit_json, show};

/// How often a change is tried anew that met another.
const TRIES: u32 = 5;
/// How often, and in which interval, the state of a new forward is asked for until the driver
/// process has it.
const OPENING_TRIES: u32 = 40;
const OPENING_INTERVAL: Duration = Duration::from_millis(50);
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
            let ForwardSpec { listen, to } = &new;
            match opened(client, &name, &new).await? {
                (ForwardState::Refused, reason) => Err(Failure::Failed(format!(
                    "the forward was added, but the system refuses it, and is asked again every \
                     5 seconds: {listen}: {}",
                    reason.unwrap_or_default()
                ))),
                _ if output.json => Ok(()),
                (_, Some(reason)) => emit(&format!("{listen} leads to {to}: {reason}\n")),
                (_, None) => emit(&format!("{listen} leads to {to}\n")),
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
    let forwards = forwards(client, name).await?;
    if output.json {
        let document = serde_json::to_string(&forwards);
        return emit_json(&document.map_err(|error| Failure::Failed(error.to_string()))?);
    }
    emit(&show::forwards(&forwards))
}

async fn forwards(client: &Client, name: &str) -> Result<Vec<UserForwardEntry>, Failure> {
    let path = format!("/v1/ports/{name}/user/forwards");
    let document: UserForwardsDocument = client.read(&path).await?;
    Ok(document.forwards)
}

/// Returns the state of a new forward, once the driver process has it, with the reason.
async fn opened(
    client: &Client,
    name: &str,
    new: &ForwardSpec,
) -> Result<(ForwardState, Option<String>), Failure> {
    let mut tries = 1;
    loop {
        let all = forwards(client, name).await?.into_iter();
        let mut own = all.filter(|of| words(&of.listen) == new.listen);
        // Another change may have removed it.
        let Some(entry) = own.next() else {
            return Ok((
                ForwardState::Unknown,
                Some("it was removed again".to_owned()),
            ));
        };
        if entry.state != ForwardState::Opening || tries == OPENING_TRIES {
            return Ok((entry.state, entry.reason));
        }
        tries += 1;
        tokio::time::sleep(OPENING_INTERVAL).await;
    }
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
        let patch = json!({"forward": edit(port.forward.clone())?});
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

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(listen: &str) -> ForwardSpec {
        ForwardSpec {
            listen: listen.to_owned(),
            to: "vm1:22".to_owned(),
        }
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
