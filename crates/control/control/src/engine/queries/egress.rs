//! The use of scheduled ports: settings in effect, and the counters of the switch.

use std::collections::BTreeMap;

use api::v1::{
    DEFAULT_CLASS, EgressDocument, EgressPortsDocument, EgressShare, EgressStatus, FullAction,
    PortSpec, Problem,
};
use config::desired::qos;
use ipc::egress::{EgressUse, OutputConfig, Rates, Sender};
use ipc::switching::{SwitchCommand, SwitchEvent};
use port::PortId;

use crate::engine::{Engine, SharedEngine, unavailable};

/// Use of an output by sender and class.
type Uses = BTreeMap<(PortId, u8), EgressUse>;

/// Returns the use of all scheduled ports.
///
/// # Errors
/// 503 when the switch does not answer.
pub(in crate::engine) async fn ports(
    engine: &SharedEngine<'_>,
) -> Result<EgressPortsDocument, Problem> {
    let ports = documents(engine).await?;
    Ok(EgressPortsDocument { ports })
}

/// Returns the use of all scheduled ports, in the operator's order.
pub(in crate::engine) async fn documents(
    engine: &SharedEngine<'_>,
) -> Result<Vec<EgressDocument>, Problem> {
    if engine.with(|e| e.ports.qos.outputs.is_empty()) {
        return Ok(Vec::new());
    }
    let reply = engine.with(|e| e.links.switch.request(SwitchCommand::EgressUse, Vec::new()));
    let mut used: BTreeMap<PortId, Uses> = BTreeMap::new();
    for (event, _) in reply.await.map_err(unavailable)? {
        if let SwitchEvent::EgressUse(port, uses) = event {
            let uses = uses.into_iter().map(|of| ((of.sender, of.class), of));
            used.entry(port).or_default().extend(uses);
        }
    }
    Ok(engine.with(|e| {
        let ports = e.store.saved.desired.ports.iter();
        let one = |spec| document_of(e, spec, &used);
        ports.filter_map(one).collect()
    }))
}

/// Returns the output of a port in effect; `None` for a port that is not scheduled.
pub(in crate::engine) fn status(engine: &Engine, spec: &PortSpec) -> Option<EgressStatus> {
    let id = engine.store.saved.numbers.ports.get(&spec.name)?;
    let output = engine.ports.qos.outputs.get(id)?;
    let link = engine.store.speeds.get(&spec.name).copied();
    let (desired, numbers) = (&engine.store.saved.desired, &engine.store.saved.numbers);
    let configured = qos::output_of(desired, spec, numbers, None)?;
    let promised = configured.promised();
    Some(EgressStatus {
        rate: output.rate,
        link,
        overhead: output.overhead,
        full: match output.full {
            ipc::egress::FullAction::Hold => FullAction::Hold,
            ipc::egress::FullAction::Drop => FullAction::Drop,
        },
        promised,
        scaled: link.is_some_and(|link| promised > link),
    })
}

fn document_of(
    engine: &Engine,
    spec: &PortSpec,
    used: &BTreeMap<PortId, Uses>,
) -> Option<EgressDocument> {
    let output = status(engine, spec)?;
    let id = engine.store.saved.numbers.ports.get(&spec.name)?;
    let config = engine.ports.qos.outputs.get(id)?;
    let none = Uses::new();
    let uses = used.get(id).unwrap_or(&none);
    let senders = config.senders.iter();
    Some(EgressDocument {
        port: spec.name.clone(),
        output,
        shares: senders
            .flat_map(|sender| shares(engine, config, sender, uses))
            .collect(),
    })
}

/// Returns what a sender has at an output: as a whole, and by class.
fn shares(
    engine: &Engine,
    config: &OutputConfig,
    sender: &Sender,
    uses: &Uses,
) -> Vec<EgressShare> {
    let id = PortId(sender.port);
    let name = engine.ports.name(id);
    let spec = engine.store.saved.desired.port(name);
    let usual = Rates {
        min: 0,
        ..Rates::usual()
    };
    let share = |class: String, priority: u8, rates: &Rates| EgressShare {
        sender: name.to_owned(),
        class,
        group: spec.and_then(|spec| spec.qos.group.clone()),
        priority,
        min: rates.min,
        max: rates.max,
        weight: rates.weight,
        ..EgressShare::default()
    };
    let whole = share(String::new(), sender.priority, &sender.rates);
    let mut all = vec![whole];
    for (class, priority) in (0..).zip(config.priorities) {
        let Some(name) = class_name(engine, class) else {
            continue;
        };
        let own = sender.classes.iter().find(|(of, _)| *of == class);
        let used = uses.get(&(id, class));
        let is_idle = used
            .is_none_or(|used| (used.bits, used.dropped_frames, used.waiting_bits) == (0, 0, 0));
        if own.is_none() && is_idle {
            continue;
        }
        let rates = own.map_or(&usual, |(_, rates)| rates);
        let priority = priority.max(sender.priority);
        let mut of_class = share(name.to_owned(), priority, rates);
        if let Some(used) = used {
            of_class.bits = used.bits;
            of_class.held_us = used.held_ns / 1000;
            of_class.dropped_frames = used.dropped_frames;
            of_class.waiting_bits = used.waiting_bits;
        }
        let whole = &mut all[0];
        whole.bits += of_class.bits;
        whole.held_us += of_class.held_us;
        whole.dropped_frames += of_class.dropped_frames;
        whole.waiting_bits += of_class.waiting_bits;
        all.push(of_class);
    }
    all
}

/// Returns the name of a class; `None` for a number that no class has any more.
fn class_name(engine: &Engine, number: u8) -> Option<&str> {
    let mut classes = engine.store.saved.numbers.classes.iter();
    let found = classes.find(|(_, of)| **of == number);
    let found = found.map(|(name, _)| name.as_str());
    found.or((number == 0).then_some(DEFAULT_CLASS))
}
