//! Commands about traffic classes, groups of senders and scheduled ports.

use std::time::{Duration, Instant};

use api::v1::{
    EgressDocument, QosClassSpec, QosClassesDocument, QosGroupStatus, QosGroupsDocument,
};
use hyper::Method;

use super::super::args::{Egress, QosClass, QosGroup};
use super::super::{ExitStatus, emit, show};
use super::{get_and_print, port_path, print, remove, some};
use client::{Client, read};

/// Time between the two samples of `egress show`.
const SAMPLED: Duration = Duration::from_secs(1);

const CLASSES: &str = "/v1/qos/classes";
const GROUPS: &str = "/v1/qos/groups";

pub(super) async fn class(client: &Client, command: QosClass) -> ExitStatus {
    match command {
        QosClass::List(output) => {
            let show = |all: &QosClassesDocument| show::qos_classes(&all.classes);
            get_and_print(client, CLASSES, output, show).await
        }
        QosClass::Add(add) => {
            let response = client.send(Method::POST, CLASSES, &add.spec()).await?;
            print::<QosClassSpec>(add.output, &response, |of| {
                format!("class {} added\n", of.name)
            })
        }
        QosClass::Set(set) => {
            let path = format!("{CLASSES}/{}", set.name);
            let patch = some("qos-class", set.patch())?;
            let response = client.send(Method::PATCH, &path, &patch).await?;
            print::<QosClassSpec>(set.output, &response, |of| {
                format!("class {} changed\n", of.name)
            })
        }
        QosClass::Remove { name, output } => {
            remove(client, &format!("{CLASSES}/{name}"), output, "class", &name).await
        }
    }
}

pub(super) async fn group(client: &Client, command: QosGroup) -> ExitStatus {
    match command {
        QosGroup::List(output) => {
            let show = |all: &QosGroupsDocument| show::qos_groups(&all.groups);
            get_and_print(client, GROUPS, output, show).await
        }
        QosGroup::Add(add) => {
            let response = client.send(Method::POST, GROUPS, &add.spec()).await?;
            print::<QosGroupStatus>(add.output, &response, |of| {
                format!("group {} added\n", of.name)
            })
        }
        QosGroup::Set(set) => {
            let path = format!("{GROUPS}/{}", set.name);
            let patch = some("qos-group", set.patch())?;
            let response = client.send(Method::PATCH, &path, &patch).await?;
            print::<QosGroupStatus>(set.output, &response, |of| {
                format!("group {} changed\n", of.name)
            })
        }
        QosGroup::Remove { name, output } => {
            remove(client, &format!("{GROUPS}/{name}"), output, "group", &name).await
        }
    }
}

/// Shows a scheduled port: as JSON its counters, else the rates within a second.
pub(super) async fn egress(client: &Client, command: Egress) -> ExitStatus {
    let Egress::Show { name, output } = command;
    let path = format!("{}/egress", port_path(&name));
    let response = client.get(&path).await?;
    if output.json {
        return print::<EgressDocument>(output, &response, |_| String::new());
    }
    let (last, at): (EgressDocument, _) = (read(&response)?, Instant::now());
    tokio::time::sleep(SAMPLED).await;
    let now: EgressDocument = client.read(&path).await?;
    emit(&show::egress(&last, &now, at.elapsed()))
}
