//! Translations of a guest with an IOMMU: what its front end grants and revokes, and the questions
//! for what is missing (vhost-user specification, "IOMMU support").
//!
//! A session has a table from the first `SET_FEATURES` with `ACCESS_PLATFORM` until its end. It is
//! emptied when the device is reset and when features are set while no queue runs, so that no
//! driver inherits translations of another.

mod questions;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::iotlb::{AnsweredMessage, Counts, Iotlb, IotlbWriter, Miss, Need, Update};
use wire::virtio::features::Features;
use wire::virtio::vhost_user::{IotlbMessage, ProtocolFeatures, code, iotlb_type};

use super::backend::Backend;
use super::channel::SendResult;
use super::fault::Refusal;
use super::message::Message;
use super::session::{Answer, Request, Session};
use questions::{self as question, PATIENCE, Questions};

/// Least time between two `ACCESS_FAIL`s, seconds: QEMU logs each.
const ACCESS_FAIL_INTERVAL: Duration = Duration::from_secs(1);
/// Answers that are read in a row.
const ANSWERS_PER_TURN: usize = 64;
/// Answers that are read before an UPDATE, at most: more than a socket of QEMU holds.
const ANSWERS_BEFORE_UPDATE: usize = 1024;
/// Name of messages on the back-end channel.
const CHANNEL: &str = "SET_BACKEND_REQ_FD";

/// The table of a session, and its questions.
#[derive(Debug)]
pub(super) struct Translation {
    writer: IotlbWriter,
    questions: Questions,
    /// Misses that were denied.
    denied: u64,
    /// Time of the last `ACCESS_FAIL`.
    access_failed: Option<Instant>,
    /// Time at which denials end: those pages are asked for again if they are still needed.
    denials_end: Option<Instant>,
    /// Questions ahead have ended without an answer, and no question was answered since.
    silent: bool,
    /// The session has changed by a message that changes none otherwise; see
    /// [`Session::take_unrecorded`].
    unrecorded: bool,
}

/// Figures of a session's translations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IotlbInfo {
    /// Counters of the table.
    pub counts: Counts,
    /// MISS messages that were sent.
    pub misses: u64,
    /// Misses that were denied: by the front end, for want of an answer or of a channel.
    pub denied: u64,
    /// Those of them that were not answered in time.
    pub unanswered: u64,
    /// Whether there is a channel for questions.
    pub has_channel: bool,
}

/// The descriptors that wake a session with translations, beside its socket.
#[derive(Debug, Clone, Copy)]
pub struct Wakes<'a> {
    /// Readable when translations are missing: [`Session::ask`].
    pub misses: BorrowedFd<'a>,
    /// The channel for questions, if there is one.
    pub channel: Option<ChannelWake<'a>>,
}

/// The channel for questions.
#[derive(Debug, Clone, Copy)]
pub struct ChannelWake<'a> {
    /// Readable when the front end has answered: [`Session::read_answers`].
    pub socket: BorrowedFd<'a>,
    /// A number that no other channel of the session has.
    pub number: u64,
    /// Questions wait until it is writable: [`Session::ask`].
    pub wants_write: bool,
}

impl Translation {
    fn new(writer: IotlbWriter, questions: Questions) -> Self {
        Self {
            writer,
            questions,
            denied: 0,
            access_failed: None,
            denials_end: None,
            silent: false,
            unrecorded: false,
        }
    }

    pub(super) fn table(&self) -> &Arc<Iotlb> {
        self.writer.table()
    }

    /// Notes that the session has changed.
    pub(super) fn changed(&mut self) {
        self.unrecorded = true;
    }

    fn clear(&mut self) {
        self.writer.clear();
        self.questions.clear();
        self.denials_end = None;
    }
}

impl Session {
    /// Returns whether addresses are I/O virtual ones, which need a translation.
    pub(super) fn is_translated(&self) -> bool {
        self.features().contains(Features::ACCESS_PLATFORM)
    }

    /// Returns the table, where addresses need a translation.
    #[must_use]
    pub fn iotlb(&self) -> Option<&Arc<Iotlb>> {
        let used = self.iotlb.as_ref().filter(|_| self.is_translated());
        used.map(Translation::table)
    }

    /// Returns whether the session has a table, which is stored by
    /// [`Backend::keep_iotlb`].
    #[must_use]
    pub fn has_iotlb(&self) -> bool {
        self.iotlb.is_some()
    }

    /// Returns whether a message changes the table and nothing in [`Session::record`], unless
    /// [`Session::take_unrecorded`] says so. It may be served twice; [`Session::set_answered`]
    /// stores that it was answered.
    #[must_use]
    pub fn is_unrecorded(&self, message: &Message) -> bool {
        message.code == code::IOTLB_MSG && self.has_iotlb()
    }

    /// Returns whether [`Session::record`] has changed by a message that does not change it
    /// otherwise, and forgets that.
    pub fn take_unrecorded(&mut self) -> bool {
        let iotlb = self.iotlb.as_mut();
        iotlb.is_some_and(|iotlb| std::mem::take(&mut iotlb.unrecorded))
    }

    /// Stores the message that was answered last, before its answer can leave.
    pub fn set_answered(&self, answered: AnsweredMessage) {
        if let Some(iotlb) = &self.iotlb {
            iotlb.writer.set_answered(answered);
        }
    }

    /// Creates the table, if there is none.
    pub(super) fn create_iotlb(&mut self, backend: &mut dyn Backend) -> Result<(), Refusal> {
        if self.iotlb.is_none() {
            self.replace_iotlb(Questions::default(), backend)?;
        }
        Ok(())
    }

    fn replace_iotlb(
        &mut self,
        questions: Questions,
        backend: &mut dyn Backend,
    ) -> Result<(), Refusal> {
        let (writer, file) = IotlbWriter::create().map_err(|e| e.to_string())?;
        backend.keep_iotlb(file.as_fd());
        self.iotlb = Some(Translation::new(writer, questions));
        Ok(())
    }

    /// Continues the table that a former process has left. A new one takes the place of one that
    /// cannot be read: all is asked for again. So are the questions of that process.
    pub(super) fn restore_iotlb(&mut self, backend: &mut dyn Backend) -> Result<(), Refusal> {
        let kept = backend.kept_iotlb();
        let resumed = kept.as_deref().map(IotlbWriter::resume);
        let now = Instant::now();
        self.iotlb = resumed.and_then(Result::ok).map(|writer| {
            let questions = Questions::after_restart(writer.table().owed(), now);
            Translation::new(writer, questions)
        });
        if let Some(Ok(AnsweredMessage::Waits(_))) = kept.as_deref().map(AnsweredMessage::read) {
            // If it was still in the socket, it has been taken before the session is restored.
            self.set_answered(AnsweredMessage::Taken);
        }
        if self.is_translated() && self.iotlb.is_none() {
            self.replace_iotlb(Questions::after_loss(now), backend)?;
        }
        Ok(())
    }

    /// Empties the table, while no queue runs.
    pub(super) fn forget_translations(&mut self) {
        if let Some(iotlb) = &mut self.iotlb {
            iotlb.clear();
        }
    }

    fn update(&mut self, update: &Update, backend: &mut dyn Backend) -> Result<(), String> {
        let now = Instant::now();
        // QEMU has denied earlier questions on the channel before it sends the UPDATE for another.
        let answers = self.iotlb.as_ref().map_or(0, |iotlb| {
            let owed = usize::try_from(iotlb.questions.answers_to_come());
            owed.unwrap_or(usize::MAX).min(ANSWERS_BEFORE_UPDATE)
        });
        self.take_answers(answers, now, backend);
        let entered = self.enter(update, now, backend);
        // There may be room for further questions.
        self.ask(now, backend);
        entered
    }

    fn enter(
        &mut self,
        update: &Update,
        now: Instant,
        backend: &mut dyn Backend,
    ) -> Result<(), String> {
        let memory = self
            .memory
            .as_ref()
            .ok_or("an UPDATE before guest memory")?;
        let iotlb = self.iotlb.as_mut().ok_or("no table")?;
        let asked = iotlb.questions.answered_by(update);
        let misses = match asked {
            Some(asked) => vec![asked.miss],
            None => iotlb.questions.asked_by_former(update),
        };
        let entered = iotlb.writer.update(memory, update, &misses);
        entered.map_err(|error| error.to_string())?;
        let table = iotlb.writer.table();
        iotlb.questions.updated(update, asked, table, now);
        if asked.is_some() && std::mem::take(&mut iotlb.silent) {
            // It answers again: buffers are not to lack translations for the rest of a second.
            iotlb.writer.end_denials_ahead();
        }
        backend.retry();
        self.start_untranslated(backend);
        Ok(())
    }

    fn invalidate(
        &mut self,
        iova: u64,
        size: u64,
        backend: &mut dyn Backend,
    ) -> Result<(), String> {
        let iotlb = self.iotlb.as_mut().ok_or("no table")?;
        let revoked = iotlb.writer.invalidate(iova, size);
        let lifted = revoked.map_err(|error| error.to_string())?;
        if iotlb.questions.invalidated(iova, size) || lifted {
            backend.retry();
        }
        let began = Instant::now();
        backend.end_access();
        backend.access_ended(began.elapsed());
        // Questions may have ended, and others wait for their room.
        self.ask(Instant::now(), backend);
        Ok(())
    }

    /// Returns the descriptors to wait for.
    #[must_use]
    pub fn wakes(&self) -> Option<Wakes<'_>> {
        let iotlb = self.iotlb.as_ref()?;
        let channel = self.channel.as_ref().map(|(channel, number)| ChannelWake {
            socket: channel.as_fd(),
            number: *number,
            wants_write: iotlb.questions.unsent(self.requests_answers()).is_some(),
        });
        Some(Wakes {
            misses: iotlb.table().asked()?,
            channel,
        })
    }

    /// Returns the time of the next call of [`Session::ask`], whatever happens until then.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let iotlb = self.iotlb.as_ref()?;
        let times = [iotlb.questions.deadline(), iotlb.denials_end];
        times.into_iter().flatten().min()
    }

    /// Asks the front end for the translations that are missing, as far as it takes questions, and
    /// denies those that it has not answered in time. Where it cannot be asked, all are denied.
    pub fn ask(&mut self, now: Instant, backend: &mut dyn Backend) {
        let Some(iotlb) = &mut self.iotlb else {
            return;
        };
        if iotlb.denials_end.is_some_and(|at| at <= now) {
            iotlb.denials_end = None;
            // Queues that wait for their rings, those that run and have lost theirs, and buffers
            // that no frame has needed yet.
            iotlb.writer.end_denials();
            backend.retry();
            self.start_untranslated(backend);
        }
        let mut denied = Vec::new();
        if let Some(iotlb) = &mut self.iotlb {
            iotlb.questions.end_former(iotlb.writer.table().owed(), now);
            denied.extend(std::iter::from_fn(|| iotlb.questions.overdue(now)));
            iotlb.silent |= denied.iter().any(|(_, need)| *need == Need::Ahead);
            if self.channel.is_some() {
                let table = Arc::clone(iotlb.table());
                if iotlb.questions.take(&table, now) {
                    backend.retry();
                }
                self.send_questions();
            } else {
                denied.extend(iotlb.questions.take_all(iotlb.writer.table()));
            }
        }
        self.deny(&denied, now, backend);
    }

    /// Returns whether questions request an answer on the channel.
    fn requests_answers(&self) -> bool {
        self.has(ProtocolFeatures::REPLY_ACK)
    }

    fn send_questions(&mut self) {
        let need_reply = self.requests_answers();
        let (Some(iotlb), Some((channel, _))) = (&mut self.iotlb, &mut self.channel) else {
            return;
        };
        let owed = iotlb.writer.table().owed();
        let sent = iotlb.questions.send(need_reply, owed, |miss| {
            channel.iotlb(message_about(miss, iotlb_type::MISS), need_reply)
        });
        if sent == SendResult::Broken {
            self.close_channel("the front end closed the back-end channel".into());
        }
    }

    /// Reads the front end's answers to questions. All that waits on its socket must be served
    /// before: QEMU sends an UPDATE there before it answers here.
    pub fn read_answers(&mut self, now: Instant, backend: &mut dyn Backend) {
        self.take_answers(ANSWERS_PER_TURN, now, backend);
        if let Some(iotlb) = &mut self.iotlb {
            iotlb.questions.forget_answered();
        }
        self.ask(now, backend);
    }

    /// Takes the answers that wait in the channel, up to `most`.
    fn take_answers(&mut self, most: usize, now: Instant, backend: &mut dyn Backend) {
        let mut denied = Vec::new();
        for _ in 0..most {
            let (Some(iotlb), Some((channel, _))) = (&mut self.iotlb, &mut self.channel) else {
                break;
            };
            let owed = iotlb.writer.table().owed();
            match channel.answer() {
                Ok(None) => break,
                Ok(Some(value)) => match iotlb.questions.answered(value, owed, now) {
                    Some(question::QuestionResult::Denied(miss, need)) => denied.push((miss, need)),
                    Some(question::QuestionResult::Permitted(miss, need, update)) => {
                        let permitted = self.permit(miss, &update, backend);
                        denied.extend((!permitted).then_some((miss, need)));
                    }
                    None => {}
                },
                Err(reason) => self.close_channel(reason),
            }
        }
        self.deny(&denied, now, backend);
    }

    /// Enters what an UPDATE permits that has answered another question before. Returns false if
    /// the guest's memory has changed so that it is wrong now.
    fn permit(&mut self, miss: Miss, update: &Update, backend: &mut dyn Backend) -> bool {
        let (Some(iotlb), Some(memory)) = (&mut self.iotlb, &self.memory) else {
            return false;
        };
        if iotlb.writer.update_further(memory, update, miss).is_err() {
            return false;
        }
        backend.retry();
        self.start_untranslated(backend);
        true
    }

    /// Lets readers do without pages that have no mapping.
    fn deny(&mut self, misses: &[(Miss, Need)], now: Instant, backend: &mut dyn Backend) {
        let (Some(iotlb), Some((first, _))) = (&mut self.iotlb, misses.first()) else {
            return;
        };
        for (miss, need) in misses {
            iotlb.writer.deny(*miss, *need);
        }
        iotlb.denied += misses.len() as u64;
        // The guest may map it later, which QEMU does not report.
        iotlb.denials_end.get_or_insert(now + PATIENCE);
        let due = iotlb
            .access_failed
            .is_none_or(|at| now.saturating_duration_since(at) >= ACCESS_FAIL_INTERVAL);
        if let Some((channel, _)) = self.channel.as_mut().filter(|_| due) {
            iotlb.access_failed = Some(now);
            // It is a report, and not repeated where there is no room.
            channel.iotlb(message_about(*first, iotlb_type::ACCESS_FAIL), false);
        }
        backend.retry();
    }

    /// Closes the channel, and continues without it.
    fn close_channel(&mut self, reason: String) {
        if let Some((channel, _)) = self.channel.take() {
            channel.end();
        }
        self.refusals.note(CHANNEL, &reason);
        if let Some(iotlb) = &mut self.iotlb {
            let owed = iotlb.writer.table().owed();
            iotlb.questions.channel_changed(owed);
            iotlb.changed();
        }
    }

    /// Asks open questions on a new channel.
    pub(super) fn channel_changed(&mut self, backend: &mut dyn Backend) {
        if let Some(iotlb) = &mut self.iotlb {
            let owed = iotlb.writer.table().owed();
            iotlb.questions.channel_changed(owed);
            self.start_untranslated(backend);
        }
    }

    pub(super) fn iotlb_info(&self) -> Option<IotlbInfo> {
        let iotlb = self.iotlb.as_ref().filter(|_| self.is_translated())?;
        Some(IotlbInfo {
            counts: iotlb.table().counts(),
            misses: iotlb.questions.sent,
            denied: iotlb.denied,
            unanswered: iotlb.questions.unanswered,
            has_channel: self.channel.is_some(),
        })
    }
}

/// Returns the message of the back end about a miss.
fn message_about(miss: Miss, kind: u8) -> IotlbMessage {
    IotlbMessage {
        iova: miss.iova(),
        size: 0,
        user_addr: 0,
        permission: miss.access().bits() as u8,
        kind,
    }
}

/// `IOTLB_MSG`: always answered, with 0 or with another number when it was refused and has changed
/// nothing ("IOTLB message": `VHOST_IOTLB_UPDATE`, `VHOST_IOTLB_INVALIDATE`). INVALIDATE is
/// answered when nothing accesses the pages any more.
pub(super) fn message(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let bytes = request.payload.as_slice().try_into();
    let message = IotlbMessage::parse(bytes.map_err(|_| "payload too short")?);
    let IotlbMessage { iova, size, .. } = message;
    let served = match message.kind {
        iotlb_type::UPDATE => {
            let update = Update {
                iova,
                size,
                user_addr: message.user_addr,
                permission: message.permission,
            };
            session.update(&update, backend)
        }
        iotlb_type::INVALIDATE => session.invalidate(iova, size, backend),
        iotlb_type::MISS => Err("MISS is a message of the back end".into()),
        iotlb_type::ACCESS_FAIL => Err("ACCESS_FAIL is a message of the back end".into()),
        other => Err(format!(
            "type {other}, only UPDATE (2) and INVALIDATE (3) are served"
        )),
    };
    if let Err(reason) = &served {
        session.refusals.note("IOTLB_MSG", reason);
    }
    Ok(Answer::u64(served.is_err().into()))
}
