//! Scheduling: what differs from a target is sent to the switch.

use api::v1::{DesiredState, PortKind, PortSpec, Problem};
use config::desired::qos::{self, Speeds};
use ipc::egress::{OutputConfig, SenderQos};
use ipc::switching::SwitchCommand;
use port::PortId;

use super::super::ports::Qos;
use super::{SharedEngine, Target, save_problem, unavailable};

/// Checks the guarantees of a target against the speeds of its interfaces, which are open. One that
/// has been in effect before is not refused.
///
/// # Errors
/// The first guarantee that cannot be kept.
pub(super) async fn admit(engine: &SharedEngine<'_>, target: &Target) -> Result<(), Problem> {
    learn_speeds(engine, &target.desired).await?;
    let nothing = DesiredState::default();
    let admitted = engine.with(|e| {
        let before = match target.is_new {
            true => &e.store.saved.desired,
            false => &nothing,
        };
        qos::admit(&target.desired, before, &e.store.speeds)
    });
    match admitted {
        Err(invalid) if !target.is_new => {
            tracing::warn!("guarantees may not be kept: {invalid}");
            Ok(())
        }
        other => other.map_err(|invalid| invalid.to_problem_in(None)),
    }
}

/// Sends the supervisor the bytes that may wait in interfaces, if there are or were any. Its
/// drivers may be new ones.
pub(super) fn rooms(engine: &SharedEngine<'_>, target: &Target) -> Result<(), Problem> {
    engine.with(|e| {
        let room = |spec: &PortSpec| {
            let speed = e.store.speeds.get(&spec.name).copied();
            Some((spec.name.clone(), qos::room_of(spec, speed)?))
        };
        let rooms: Vec<_> = target.desired.ports.iter().filter_map(room).collect();
        let had_any = std::mem::replace(&mut e.ports.has_rooms, !rooms.is_empty());
        if rooms.is_empty() && !had_any && !e.store.saved.scheduled {
            return Ok(());
        }
        let sent = e.links.supervisor.set_rooms(rooms);
        sent.map_err(unavailable)
    })
}

/// Learns the speeds of the interfaces of scheduled ports. Returns whether any has changed. While a
/// link is down its last speed counts.
async fn learn_speeds(engine: &SharedEngine<'_>, desired: &DesiredState) -> Result<bool, Problem> {
    if !has_speeds(desired) {
        engine.with(|e| e.store.speeds.clear());
        return Ok(false);
    }
    let speeds = engine.with(|e| e.links.supervisor.interface_speeds());
    let speeds: Speeds = speeds.await.map_err(unavailable)?.into_iter().collect();
    Ok(engine.with(|e| {
        let mut new = e.store.speeds.clone();
        new.retain(|name, _| desired.port(name).is_some());
        new.extend(speeds);
        let has_changed = e.store.speeds != new;
        e.store.speeds = new;
        has_changed
    }))
}

/// Returns whether there is a scheduled port whose interface has a speed.
pub(in crate::engine) fn has_speeds(desired: &DesiredState) -> bool {
    let mut ports = desired.ports.iter();
    ports.any(|port| port.egress.is_some() && port.kind == PortKind::Uplink)
}

/// Sends the switch the outputs whose interface has another speed than before: a link may come up
/// slower than its guarantees.
///
/// # Errors
/// The switch or the supervisor is gone or does not answer.
pub(in crate::engine) async fn follow_speeds(engine: &SharedEngine<'_>) -> Result<(), Problem> {
    let target = engine.with(|e| e.target());
    if learn_speeds(engine, &target.desired).await? {
        reconcile(engine, &target).await?;
    }
    Ok(())
}

/// Makes classes, senders and outputs match a target whose ports the switch has.
pub(super) async fn reconcile(engine: &SharedEngine<'_>, target: &Target) -> Result<(), Problem> {
    classes(engine, qos::code_points(&target.desired, &target.numbers)).await?;
    let ports = target.desired.ports.iter();
    let numbered = ports.filter_map(|spec| Some((spec, *target.numbers.ports.get(&spec.name)?)));
    let numbered: Vec<(&PortSpec, PortId)> = numbered.collect();
    for (spec, id) in &numbered {
        sender(engine, *id, qos::sender_qos_of(spec, &target.numbers)).await?;
    }
    // Senders come first: an output may promise them something at once.
    for (spec, id) in numbered {
        let speed = engine.with(|e| e.store.speeds.get(&spec.name).copied());
        let desired = qos::output_of(&target.desired, spec, &target.numbers, speed);
        let is_other = output(engine, id, desired).await?;
        if let Some(speed) = speed.filter(|_| is_other) {
            warn_of_slow_link(target, spec, speed);
        }
        engine.with(|e| e.ports.qos.unknown.remove(&id));
    }
    Ok(())
}

/// Sends the switch an order about scheduling. A control that starts after this one knows from the
/// state file that there may be such an order.
async fn order(engine: &SharedEngine<'_>, order: SwitchCommand) -> Result<(), Problem> {
    engine.with(|e| {
        if e.store.saved.scheduled {
            return Ok(());
        }
        e.store.saved.scheduled = true;
        e.save().map_err(save_problem)
    })?;
    engine.order(order).await
}

/// Sends the switch the priority code points of classes, if they differ.
async fn classes(engine: &SharedEngine<'_>, desired: Vec<Option<u8>>) -> Result<(), Problem> {
    let qos_is_same = |qos: &Qos| qos.code_points == desired && !qos.unknown_classes;
    if engine.with(|e| qos_is_same(&e.ports.qos)) {
        return Ok(());
    }
    order(engine, SwitchCommand::SetClasses(desired.clone())).await?;
    engine.with(|e| {
        e.ports.qos.code_points = desired;
        e.ports.qos.unknown_classes = false;
    });
    Ok(())
}

/// Sends the switch the settings of a sender, if they differ.
async fn sender(engine: &SharedEngine<'_>, id: PortId, desired: SenderQos) -> Result<(), Problem> {
    let is_same = engine.with(|e| {
        let had = e.ports.qos.senders.get(&id).cloned();
        had.unwrap_or_default() == desired && !e.ports.qos.unknown.contains(&id)
    });
    if is_same {
        return Ok(());
    }
    order(engine, SwitchCommand::SetQos(id, desired.clone())).await?;
    engine.with(|e| e.ports.qos.senders.insert(id, desired));
    Ok(())
}

/// Logs that an interface is slower than the guarantees at its port.
fn warn_of_slow_link(target: &Target, spec: &PortSpec, speed: u64) {
    let configured = qos::output_of(&target.desired, spec, &target.numbers, None);
    let promised = configured.map_or(0, |output| output.promised());
    if promised > speed {
        let (promised, speed) = (qos::si(promised), qos::si(speed));
        let port = &spec.name;
        tracing::warn!(
            port,
            "guarantees of {promised} are scaled down to a link of {speed}"
        );
    }
}

/// Sends the switch the output of a port, if it differs. Returns whether it does.
async fn output(
    engine: &SharedEngine<'_>,
    id: PortId,
    desired: Option<OutputConfig>,
) -> Result<bool, Problem> {
    let is_same = engine.with(|e| {
        let qos = &e.ports.qos;
        let is_known = !qos.unknown.contains(&id) && !qos.changed.contains(&id);
        is_known && qos.outputs.get(&id) == desired.as_ref()
    });
    if is_same {
        return Ok(false);
    }
    order(engine, SwitchCommand::SetEgress(id, desired.clone())).await?;
    engine.with(|e| {
        let qos = &mut e.ports.qos;
        qos.changed.remove(&id);
        qos.outputs.remove(&id);
        qos.outputs.extend(desired.map(|output| (id, output)));
    });
    Ok(true)
}
