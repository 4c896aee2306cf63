//! The back end's channel: its questions and what they are answered with.

use std::os::unix::net::UnixStream;
use std::sync::Weak;
use std::thread;
use std::time::Duration;

use super::{Answers, Granted, Iommu, PAGE, State};
use crate::frontend::{
    BACKEND_IOTLB_MSG, FLAG_NEED_REPLY, FLAG_REPLY, FrontEnd, FrontError, IotlbKind, IotlbMessage,
    Message, VERSION,
};

/// Time between two looks at what the thread is to do.
const LOOK: Duration = Duration::from_millis(20);
/// Questions that are remembered.
const REMEMBERED: usize = 4096;

/// How questions are answered, if not as they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Not before [`Iommu::answer_held`].
    Late,
    /// Truly, one after the other, after this time for each.
    Slow(Duration),
    /// With a no, whatever is mapped.
    Refused,
    /// With two UPDATEs and two replies.
    Doubled,
    /// Not at all.
    Missing,
    /// With an UPDATE for a page that was not asked for.
    OtherPage,
    /// With bytes that are no message.
    Nonsense,
    /// Not even read: the channel becomes full.
    Deaf,
}

/// Questions, and how they are answered.
#[derive(Debug, Default)]
pub(super) struct Questions {
    lie: Option<Lie>,
    held: Vec<IotlbMessage>,
    asked: Vec<IotlbMessage>,
}

impl Iommu {
    /// Answers questions with this lie until the next call, or honestly.
    pub fn lie(&self, lie: Option<Lie>) {
        self.state().questions.lie = lie;
    }

    /// The questions since this was called last: pages and permissions.
    #[must_use]
    pub fn take_asked(&self) -> Vec<IotlbMessage> {
        std::mem::take(&mut self.state().questions.asked)
    }

    /// Answers what [`Lie::Late`] held back, with UPDATEs for what is mapped by now.
    pub fn answer_held(&self) {
        let mut state = self.state();
        for question in std::mem::take(&mut state.questions.held) {
            self.answer(&mut state, &question);
        }
    }

    /// An UPDATE for a question, if what it asks for is mapped.
    fn answer(&self, state: &mut State, question: &IotlbMessage) -> bool {
        let page = question.iova - question.iova % PAGE;
        let permits =
            |granted: &&Granted| granted.access.permits(question.perm, self.config.answers);
        let mapped = state.table.get(&page);
        let granted = mapped.filter(permits);
        let (Some(_), Some(run)) = (granted, state.run(self, page)) else {
            state.counts.refused += 1;
            return false;
        };
        let update = match self.config.answers {
            Answers::Exact => run,
            Answers::Qemu => IotlbMessage {
                iova: page,
                size: PAGE,
                user: run.user + (page - run.iova),
                ..run
            },
        };
        state.say(&[update]);
        true
    }

    /// Serves a message of the back end. The lock is held from look-up to answer: a mapping that
    /// goes meanwhile would have its UPDATE after its INVALIDATE.
    fn serve_message(&self, channel: &FrontEnd, message: &Message) -> Result<(), FrontError> {
        let mut state = self.state();
        let question = match IotlbMessage::from_bytes(&message.body) {
            Some(asked) if message.request == BACKEND_IOTLB_MSG => asked,
            _ => {
                state.counts.strange += 1;
                return Ok(());
            }
        };
        match question.kind {
            IotlbKind::Miss => state.counts.misses += 1,
            IotlbKind::AccessFail => {
                state.counts.access_fails += 1;
                return Ok(());
            }
            _ => state.counts.strange += 1,
        }
        if state.questions.asked.len() < REMEMBERED {
            state.questions.asked.push(question);
        }
        let (answered, replies) = self.answer_or_lie(&mut state, &question);
        if state.questions.lie == Some(Lie::Nonsense) {
            channel.send_bytes(&[0xee; 61], &[])?;
        }
        drop(state);
        let asks = message.flags & FLAG_NEED_REPLY != 0;
        for _ in 0..if asks { replies } else { 0 } {
            reply(channel, u64::from(!answered))?;
        }
        Ok(())
    }

    /// Whether the question was answered with a mapping, and how often that is said.
    fn answer_or_lie(&self, state: &mut State, question: &IotlbMessage) -> (bool, usize) {
        match state.questions.lie {
            None | Some(Lie::Slow(_)) => (self.answer(state, question), 1),
            Some(Lie::Late) => {
                state.questions.held.push(*question);
                (true, 0)
            }
            Some(Lie::Refused) => (false, 1),
            Some(Lie::Doubled) => {
                self.answer(state, question);
                (self.answer(state, question), 2)
            }
            Some(Lie::OtherPage) => {
                if let Some(run) = state.run(self, question.iova - question.iova % PAGE) {
                    let iova = run.iova ^ 1 << 46;
                    state.say(&[IotlbMessage { iova, ..run }]);
                }
                (true, 1)
            }
            Some(Lie::Missing | Lie::Nonsense | Lie::Deaf) => (true, 0),
        }
    }

    fn present_lie(&self) -> Option<Lie> {
        self.state().questions.lie
    }

    fn is_deaf(&self) -> bool {
        self.present_lie() == Some(Lie::Deaf)
    }
}

fn reply(channel: &FrontEnd, code: u64) -> Result<(), FrontError> {
    let flags = VERSION | FLAG_REPLY;
    channel.send_raw(BACKEND_IOTLB_MSG, flags, 8, &code.to_le_bytes(), &[])
}

/// Serves a channel until it ends or its IOMMU goes.
pub(super) fn spawn(iommu: Weak<Iommu>, channel: UnixStream) -> Result<(), FrontError> {
    let channel = FrontEnd::over(channel, LOOK)?;
    let serve = move || {
        while let Some(deaf) = iommu.upgrade().map(|iommu| iommu.is_deaf()) {
            if deaf {
                thread::sleep(LOOK);
                continue;
            }
            let message = match channel.receive() {
                Ok(message) => message,
                Err(FrontError::Timeout(_)) => continue,
                Err(_) => return,
            };
            // It became deaf while it waited: then this one waits, too.
            while iommu.upgrade().is_some_and(|iommu| iommu.is_deaf()) {
                thread::sleep(LOOK);
            }
            if let Some(Lie::Slow(time)) = iommu.upgrade().and_then(|iommu| iommu.present_lie()) {
                thread::sleep(time);
            }
            // The back end may be gone when it is answered: the next look finds that out.
            let _ = iommu
                .upgrade()
                .map(|iommu| iommu.serve_message(&channel, &message));
        }
    };
    thread::Builder::new().name("iommu".into()).spawn(serve)?;
    Ok(())
}
