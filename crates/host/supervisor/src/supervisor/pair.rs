//! Control and the switch.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::time::Instant;

use crate::child::{ControlChild, SwitchChild};
use crate::kind::Kind;

/// One of the pairs of control and switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PairRef {
    /// The pair that serves.
    Serving,
    /// The pair that is to replace it.
    Next,
}

/// Of an upgrade, which replaces a pair.
impl fmt::Display for PairRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PairRef::Serving => "old",
            PairRef::Next => "new",
        })
    }
}

/// Control and the switch, which belong together.
pub(crate) struct Pair {
    pub(crate) control: ControlChild,
    pub(crate) switch: SwitchChild,
    /// The switch's end of its link with control, until it has all that it gets of the switch
    /// before: it executes orders of control at once.
    pub(crate) link: Option<OwnedFd>,
}

impl Pair {
    /// Returns a pair that is linked, or not yet.
    pub(crate) fn new(control: ControlChild, switch: SwitchChild) -> Self {
        Self {
            control,
            switch,
            link: None,
        }
    }

    /// Returns the descriptors to poll. Those of a control that waits for [`Pair::ended_first`]
    /// stay readable, and are none.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let Self {
            control, switch, ..
        } = self;
        let polled = Some(control).filter(|control| control.loss_due().is_none());
        let links = polled.and_then(|c| c.link()).into_iter();
        let links = links.chain(switch.link());
        links
            .chain(polled.into_iter().flat_map(ControlChild::ends))
            .chain(switch.ends())
    }

    /// Returns the process that has ended before the other one, and its exit status.
    ///
    /// Control ends when the switch is gone, and the system closes the sockets of a process before
    /// it reports the end. So control's end may be seen first: if control has reported the loss,
    /// the switch's end is waited for, and excuses control. If the switch does not end in time,
    /// control has failed by itself.
    ///
    /// `control_end` is control's exit status as it was known before its last messages were
    /// received: an end that is seen later may follow from a loss whose report is still queued.
    pub(crate) fn ended_first(
        &mut self,
        control_end: Option<ExitStatus>,
        now: Instant,
    ) -> Option<(Kind, ExitStatus)> {
        let Self {
            control, switch, ..
        } = self;
        let of_switch = switch.has_died().map(|status| (Kind::Switch, status));
        let Some(status) = control_end else {
            return of_switch;
        };
        let of_control = Some((Kind::Control, status));
        match control.loss_until() {
            Some(_) if of_switch.is_some() || !switch.is_alive() => {
                control.excuse_end();
                of_switch.or(of_control)
            }
            Some(until) if now < until => None,
            _ => of_control,
        }
    }
}
