//! Connections of frames that waited for control's decision: they are judged again when it comes.

use conntrack::tracker::{CommitResult, FrameJudgement, Summary, Tracking as Session};
use conntrack::{Ingress, Judgement, Millis, Reading};
use flow_table::CachedDecision;
use ipc::records::Connection;
use policy::Action;
use port::{DropReason, PortId};
use wire::MacAddr;
use wire::flow::{Ct, CtState};

use super::commit::{Terms, commit_one, receiver_of};
use super::{Connections, ParsedFrame, far_of, leads_astray};

/// Returns a connection as upcalls have it.
fn record_of(about: Summary) -> Connection {
    Connection {
        far: about.far.map(|port| PortId(port.into())),
        epoch: about.epoch,
        age_ms: about.age,
    }
}

/// Outcome for a frame that waited, when its decision comes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resumption {
    /// This is done with it.
    Decided(CachedDecision),
    /// Its connection has another state now, which control is asked about.
    Changed(Ct, Option<Connection>),
}

impl Connections {
    /// Returns the connection of a frame of the batch that was judged.
    pub(crate) fn about(&mut self, index: usize) -> Option<Connection> {
        let stretch = self
            .stretches
            .iter()
            .find(|stretch| stretch.frames().contains(&index))?;
        let place = stretch.place.or_else(|| self.seen.get(index)?.place)?;
        let session = self.tracker.begin(&self.tracking.settings, self.now);
        session.about(place).map(record_of)
    }

    /// Judges a frame that waited once more, and has its connection opened, renewed, denied,
    /// counted or forgotten as the decision says. `ct`: its state when control was asked.
    pub(crate) fn resume(
        &mut self,
        frame: &ParsedFrame,
        (ingress, (source, destination), len): (Ingress, (MacAddr, MacAddr), usize),
        (ct, (action, class), rule): (Ct, CachedDecision, u32),
        now: Millis,
    ) -> Resumption {
        let dropped = |reason| Resumption::Decided((Action::Drop(reason), class));
        let (read, zone) = (&frame.read, frame.zone);
        let mut session = self.tracker.begin(&self.tracking.settings, now);
        let probe = session.probe(read);
        let ingress = Ingress {
            stations: session.stations(source, destination),
            ..ingress
        };
        let judged = session.judge(read, probe, ingress, zone.epoch);
        if judged.judgement == Judgement::EarlyFragment {
            return dropped(DropReason::FragmentEarly);
        }
        let state = self::state(&session, &judged, (ingress, self.tracking.grace), action);
        let drops = matches!(action, Action::Drop(_));
        // It was to go elsewhere then than to the far port. Now it goes nowhere.
        let was_astray = drops && state.with_state(CtState::MOVED) == ct;
        if state != ct && !was_astray && (drops || !state.state().is_known()) {
            let about = judged.place.and_then(|place| session.about(place));
            return Resumption::Changed(state, about.map(record_of));
        }
        let mut place = judged.place;
        if class.commits() && drops {
            place.inspect(|place| session.deny(*place, ingress.port));
        } else if class.commits() && !state.state().is_known() {
            let terms = Terms::new(class, rule, self.tracking.grace);
            let ends = (ingress, receiver_of(action));
            match commit_one(&mut session, (read, probe, place), ends, zone, &terms) {
                CommitResult::Opened(new)
                | CommitResult::Renewed(new)
                | CommitResult::Passed(new) => place = Some(new),
                CommitResult::Refused(_) => return dropped(DropReason::ConnectionFull),
                CommitResult::Nothing if matches!(read, Reading::Packet(_)) => {
                    return dropped(DropReason::ConnectionInvalid);
                }
                CommitResult::Nothing => {}
            }
        }
        if let Some(place) = place {
            // Frames of known connections were counted when they came.
            if judged.place.is_none() || ct.state().contains(CtState::NEW) {
                session.count(place, 1, len as u64);
            }
            if !drops && matches!(judged.judgement, Judgement::Known { refused: true, .. }) {
                session.forget(place, ingress.port);
            }
        }
        Resumption::Decided((action, class))
    }
}

/// Returns the state of a frame that was judged, if this is its action: see
/// [`Lookup::ask_rules`](crate::forward::flow_batch::Lookup::ask_rules).
fn state(
    session: &Session<'_>,
    judged: &FrameJudgement,
    (ingress, grace): (Ingress, Millis),
    action: Action,
) -> Ct {
    let ct = judged.ct();
    match judged.judgement {
        Judgement::New if judged.is_middle && session.may_answer(ingress, None, grace) => {
            ct.with_state(CtState::REPLY)
        }
        Judgement::Known { connection, .. } | Judgement::Related(connection)
            if leads_astray(ct, far_of(connection.far), action) =>
        {
            ct.with_state(CtState::MOVED)
        }
        _ => ct,
    }
}
