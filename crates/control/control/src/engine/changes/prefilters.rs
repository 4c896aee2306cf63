//! Prefilters: the tables that the supervisor has.

use std::collections::BTreeMap;
use std::io;

use api::v1::Problem;
use config::desired;
use port::PortId;
use rustix::rand::{GetRandomFlags, getrandom};

use super::super::{Engine, SharedEngine, unavailable};

/// Returns whether counters lack the frames that have ended at the wire, because the tables of the
/// control before this one were not asked for yet.
pub(in crate::engine) fn awaits_any(engine: &Engine) -> bool {
    !engine.forwarding.prefilters.were_asked_for && lacks_any(engine)
}

/// Takes over the tables of uplinks that have none, and stops those without a desired prefilter. A
/// change may have removed the reason why there was none, so all of these are asked for again.
///
/// # Errors
/// The supervisor is gone or does not reply in time.
pub(in crate::engine) async fn follow(engine: &SharedEngine<'_>) -> Result<(), Problem> {
    let done = take_over(engine).await;
    engine.with(|e| e.forwarding.prefilters.were_asked_for = true);
    done
}

async fn take_over(engine: &SharedEngine<'_>) -> Result<(), Problem> {
    let wanted = engine.with(|e| wanted(e));
    engine.with(|e| {
        let now = e.now();
        let prefilters = &mut e.forwarding.prefilters;
        prefilters.retain(now, |port| wanted.contains_key(&port));
    });
    for (port, (name, limit)) in wanted {
        if !engine.with(|e| matches!(e.forwarding.prefilters.of(port), Some(Ok(_)))) {
            let table = engine.with(|e| e.links.supervisor.prefilter(&name));
            let table = table.await.map_err(unavailable)?;
            let seed = seed().map_err(unavailable)?;
            engine.with(|e| e.forwarding.prefilters.take(port, table, seed));
        }
        engine.with(|e| e.forwarding.prefilters.set_limit(port, limit));
    }
    Ok(())
}

/// Returns a secret for the hash of a table.
fn seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Returns the ports with a desired prefilter, with their names and maximum numbers of
/// entries; none while another control serves.
fn wanted(engine: &Engine) -> BTreeMap<PortId, (String, usize)> {
    let mut wanted = BTreeMap::new();
    if engine.store.frozen {
        return wanted;
    }
    for spec in &engine.store.saved.desired.ports {
        let id = engine.store.saved.numbers.ports.get(&spec.name).copied();
        if let Some(id) = id
            && desired::has_prefilter(spec)
        {
            wanted.insert(id, (spec.name.clone(), desired::prefilter_entries(spec)));
        }
    }
    wanted
}

/// Returns whether there is a desired prefilter that control does not know.
pub(in crate::engine) fn lacks_any(engine: &Engine) -> bool {
    let wanted = wanted(engine);
    let mut ports = wanted.keys();
    ports.any(|port| !engine.forwarding.prefilters.knows(*port))
}
