//! The table of connections: made when a rule needs it first, with its settings.

use std::os::fd::OwnedFd;

use api::v1::Problem;
use config::desired::{connection_settings, layout_of, placed};
use ipc::switching::{ConnectionFlush, SwitchCommand};
use policy::Program;

use super::super::{SharedEngine, unavailable};
use super::Target;

/// Has the switch track connections with the settings of a target, if a rule of it needs that, or
/// earlier ones did. The table stays until Lasthop ends.
///
/// # Errors
/// There cannot be a table: the rule, with the reason. Nothing has changed then.
pub(super) async fn admit(engine: &SharedEngine<'_>, target: &Target) -> Result<(), Problem> {
    let refuse = |why: &str| {
        let refused = target.access.rules().refuse_stateful(why);
        refused.map_err(|error| placed(&target.desired.access, &error).to_problem_in(None))
    };
    let spec = &target.desired.switch.connections;
    let mut file = None;
    if !engine.with(|e| e.connections.is_there()) {
        if refuse("").is_ok() {
            return Ok(());
        }
        match ask(engine, layout_of(spec).bytes()).await? {
            Ok(made) => file = Some(made),
            Err(why) => return refuse(&why),
        }
    }
    let settings = connection_settings(spec);
    if engine.with(|e| e.connections.has(&settings)) {
        return Ok(());
    }
    let order = SwitchCommand::Track(settings.clone());
    let done = engine.with(|e| e.links.switch.request(order, Vec::new()));
    match done.await {
        Ok(_) => {
            engine.with(|e| e.connections.set(file, settings));
            Ok(())
        }
        Err(error) => refuse(&error.to_string()).and(Err(unavailable(error))),
    }
}

/// Forgets the connections of segments that are tracked from this program on. Where a segment was
/// tracked before, they have gone on without the tracker, which would take their frames for others.
pub(super) async fn forget_untracked(
    engine: &SharedEngine<'_>,
    program: &Program,
) -> Result<(), Problem> {
    let segments: Vec<_> = engine.with(|e| {
        let old = &e.forwarding.program;
        let may_know = e.connections.is_there() && old.epoch() != 0;
        let all = program.tracked_segments().iter();
        let new = all.map(|(segment, _)| *segment);
        let new = new.filter(|segment| old.tracks(*segment).is_none());
        new.filter(|_| may_know).collect()
    });
    for segment in segments {
        let flush = ConnectionFlush::Segment(segment);
        engine.order(SwitchCommand::FlushConnections(flush)).await?;
    }
    Ok(())
}

/// Requests the file of the table; or returns the reason why there is none.
async fn ask(engine: &SharedEngine<'_>, bytes: u64) -> Result<Result<OwnedFd, String>, Problem> {
    let asked = engine.with(|e| e.links.supervisor.connection_table(bytes));
    asked.await.map_err(unavailable)
}
